"""Events of matches that came out without them: found again, they are those that the reference gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from archive.reader import RangeRequest, positions_in
from hybrid.rows.evidence import of_matches
from hybrid.watch.found_again import with_events
from matching.batch import EventBatch
from matching.identity import id_texts
from matching.purpose import Purpose
from query.plan.expression import MatchNumber, walk
from query.plan.fingerprint import fingerprint
from query.plan.plan import Plan
from tests.engines import matcher_by
from tests.events import batch_of
from tests.properties.comparing import FEWER, answer_of, drawn_until, program_of, reference_of, run
from tests.properties.test_carried import carried
from tests.properties.test_skip_till import skipping
from tests.strategies import SCHEMA, Row, events, plans

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")


@dataclass(frozen=True, slots=True)
class Kept:
    """All events, as an archive has them."""

    events: EventBatch

    def read(self, request: RangeRequest, /) -> EventBatch:
        return self.events.slice(*positions_in(self.events.ts_us, request))


@pytest.mark.slow
def test_events_that_are_found_again_equal_the_reference(record_property: Callable[[str, object], None]) -> None:
    """All at once, as after one fetch, the matches of each batch alone, and in parts of a few events; with ids that are
    those of the events, where they are asked for."""
    counts: Counter[str] = Counter()

    @FEWER
    @given(
        rows=events(min_size=4), plan=carried() | skipping() | plans(timeouts=False, unmatched=False),
        size=st.sampled_from((1, 4, 100)), events_max=st.integers(1, 9),
        purpose=st.sampled_from((Purpose.FOUND_AGAIN, Purpose.KEPT_ROWS, Purpose.IDENTIFIED)),
    )  # fmt: skip
    def check(plan: Plan, rows: list[Row], size: int, events_max: int, purpose: Purpose) -> None:
        matcher = matcher_by(plan, purpose=purpose, program=program_of(plan), lenient=True)
        counts["drawn"] += 1
        assume(matcher.purpose.again)
        assert matcher.purpose is purpose
        expected = reference_of(plan, rows)
        found, kept = run(matcher, rows, size), Kept(batch_of(SCHEMA, rows))
        some = [m for m in found if len(m)]
        assert all(m.ends is not None and not len(m.event_seq) for m in some)
        counts["examples"] += 1
        counts["a match"] += bool(some)
        if not some:
            assert not expected
            return
        assert answer_of([*with_events(plan, some, kept, 0, None)]) == expected
        assert answer_of([m for one in some for m in with_events(plan, [one], kept, 0, None)]) == expected
        parts = [*with_events(plan, some, kept, 0, None, events_max)]
        assert answer_of(parts) == expected
        counts["several parts"] += len(parts) > 1
        for m in parts if purpose is Purpose.IDENTIFIED else ():
            assert m.ids is not None
            assert id_texts(m.ids).to_pylist() == of_matches(m).ids(fingerprint(plan))
        counts[purpose.name] += 1
        counts["contiguous"] += not matcher.program.ignore
        read = [e for x in plan.measures for e in walk(x.expression)]
        counts["numbered"] += MatchNumber() in read and bool(matcher.program.ignore)
        counts["several batches"] += len(some) > 1
        counts["carried"] += matcher.chosen.carried is not None
        counts["a chain"] += matcher.chosen.chain is not None
        counts["all rows"] += matcher.chosen.keeps_rows

    wanted = ("a match", "several batches", "several parts", "carried", "a chain", "all rows", "contiguous", "numbered")
    wanted += ("FOUND_AGAIN", "KEPT_ROWS", "IDENTIFIED")
    drawn_until(check, lambda: all(counts[what] for what in wanted))
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in counts.items()))
    for what in wanted:
        assert counts[what], what
