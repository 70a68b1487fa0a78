"""Events of matches that came out without them: found again, they are those that the reference gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from archive.reader import RangeRequest, positions_in
from hybrid.watch.found_again import with_events
from matching.batch import EventBatch
from matching.engines.engine import Purpose
from query.plan.plan import Plan
from tests.engines import matcher_by
from tests.events import batch_of
from tests.properties.comparing import FEWER, answer_of, program_of, reference_of, run
from tests.properties.test_carried import carried
from tests.properties.test_skip_till import skipping
from tests.strategies import SCHEMA, Row, events

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")


@dataclass(frozen=True, slots=True)
class Kept:
    """All events, as an archive has them."""

    events: EventBatch

    def read(self, request: RangeRequest, /) -> EventBatch:
        return self.events.slice(*positions_in(self.events.ts_us, request))


@pytest.mark.slow
def test_events_that_are_found_again_equal_the_reference(record_property: Callable[[str, object], None]) -> None:
    """All at once, as after one fetch, and the matches of each batch alone."""
    counts: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=4), plan=carried() | skipping(), size=st.sampled_from((1, 4, 100)))
    def check(plan: Plan, rows: list[Row], size: int) -> None:
        matcher = matcher_by(plan, purpose=Purpose.FOUND_AGAIN, program=program_of(plan), lenient=True)
        counts["drawn"] += 1
        assume(matcher.found_again)
        expected = reference_of(plan, rows)
        found, kept = run(matcher, rows, size), Kept(batch_of(SCHEMA, rows))
        some = [m for m in found if len(m)]
        counts["examples"] += 1
        counts["a match"] += bool(some)
        if not some:
            assert not expected
            return
        assert answer_of(with_events(plan, some, kept, 0, None)) == expected
        assert answer_of([m for one in some for m in with_events(plan, [one], kept, 0, None)]) == expected
        counts["several batches"] += len(some) > 1
        counts["carried"] += matcher.chosen.carried is not None
        counts["a chain"] += matcher.chosen.chain is not None
        counts["all rows"] += matcher.chosen.keeps_rows

    check()
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in counts.items()))
    for what in ("a match", "several batches", "carried", "a chain", "all rows"):
        assert counts[what], what
