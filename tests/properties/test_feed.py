"""Many queries over one stream: each gets what it would get alone, whenever the others come, go or fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import EventBatch, Matches
from matching.drive import Drive
from matching.feed import Feed, Member
from matching.matcher import KernelMatcher, make_matcher
from matching.ordering import Ordering
from query.automaton.program import NoKernel, assemble
from query.errors import DataError, QueryError
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.test_kernel import Answer, answer_of
from tests.properties.test_skip_till import skipping
from tests.strategies import SCHEMA, SECOND_US, Row, events, plans

#: AFTER MATCH SKIP TO that would not move on warns; these tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")


@dataclass(frozen=True)
class Asked:
    """A query, the push before which it is added, and the one before which it is removed."""

    plan: Plan
    begin: int
    end: int


class Alone:
    """A query with an order and rows of its own."""

    def __init__(self, plan: Plan) -> None:
        self.drive = Drive(Ordering(SCHEMA), make_matcher(plan, lenient=True))
        self.failed = False

    def push(self, batch: EventBatch, watermark_us: int | None, end: bool = False) -> list[Matches] | None:
        """None: it has failed."""
        if self.failed:
            return None
        try:
            found = self.drive.push(batch, watermark_us)
            return found + (self.drive.advance(None) if end else [])
        except (DataError, QueryError):
            self.failed = True
            return None


def can_run(plan: Plan) -> bool:
    try:
        assemble(plan)
    except NoKernel:
        return False
    return True


@st.composite
def askings(draw: st.DrawFn, pushes: int) -> list[Asked]:
    """Two to four queries, most of them with one PARTITION BY, with conditions in common."""
    raising = draw(st.booleans())
    drawn = [draw(plans(raising=raising) | skipping(raising)) for _ in range(draw(st.integers(2, 4)))]
    if draw(st.booleans()):
        drawn = [replace(plan, partition_by=drawn[0].partition_by) for plan in drawn]
    if draw(st.booleans()):
        drawn[1] = drawn[0]
    assume(all(map(can_run, drawn)))
    out = []
    for plan in drawn:
        begin = draw(st.just(0) | st.integers(0, pushes - 1))
        out.append(Asked(plan, begin, draw(st.just(pushes) | st.integers(begin, pushes))))
    return out


def pieces(rows: list[Row], order: list[int], cuts: list[int]) -> list[tuple[EventBatch, int | None]]:
    """The rows in order of arrival, cut, each piece with the watermark behind it: nothing is late."""
    whole = batch_of(SCHEMA, rows)
    bounds = sorted({0, len(rows), *cuts})
    out: list[tuple[EventBatch, int | None]] = []
    for low, high in pairwise(bounds):
        at = np.array(order[low:high], np.int64)
        part = replace(whole.take(at), seq=np.arange(low, high))
        left = [int(rows[i]["ts"]) for i in order[high:]]  # type: ignore[call-overload]
        last = max(int(row["ts"]) for row in rows)  # type: ignore[call-overload]
        out.append((part, min(left, default=last)))
    return out


@pytest.mark.parametrize(("slack", "dense"), [(0, 256), (3, 2), (1 << 15, 256)])
@pytest.mark.parametrize("late", [False, True])
def test_each_query_gets_what_it_would_get_alone(
    slack: int, dense: int, late: bool, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    monkeypatch.setattr("matching.rows.SLACK", slack)  # compaction after almost every batch
    monkeypatch.setattr("matching.matcher.DENSE_ROWS_MIN", dense)
    schema = replace(SCHEMA, lateness_us=60 * SECOND_US) if late else SCHEMA
    seen: Counter[str] = Counter()

    @given(rows=events(min_size=4), data=st.data())
    def check(rows: list[Row], data: st.DataObject) -> None:
        order = data.draw(st.permutations(range(len(rows)))) if late else list(range(len(rows)))
        parts = pieces(rows, order, data.draw(st.lists(st.integers(1, len(rows)), max_size=5)))
        asked = data.draw(askings(len(parts)))
        feed = Feed(schema)
        members: dict[int, Member] = {}
        alone: dict[int, Alone] = {}
        seq = 0
        for i, (part, watermark_us) in enumerate(parts):
            for k, query in enumerate(asked):
                if query.end == i and k in members:
                    feed.remove(members.pop(k))
                if query.begin == i < query.end:
                    members[k] = feed.add(query.plan, seq)
                    alone[k] = Alone(query.plan)
                    alone[k].drive.ordering = Ordering(schema)
            seq += len(part)
            last = i == len(parts) - 1
            feed.push(part, watermark_us)
            if last:
                feed.advance(None)
            for k, member in members.items():
                theirs = alone[k].push(part, watermark_us, last)
                assert (member.failure is not None) == (theirs is None)
                found = member.take_found()
                if theirs is not None:
                    ours: Answer = answer_of(found)
                    assert ours == answer_of(theirs)
                    seen["a match"] += bool(ours)
                    seen["a match of one that came later"] += bool(ours) and asked[k].begin > 0
        kernels = [m.matcher for m in members.values() if isinstance(m.matcher, KernelMatcher)]
        seen["examples"] += 1
        seen["rows shared"] += any(len(kernel.rows) > 1 for kernel in kernels)
        seen["shared by one that came later"] += any(len(kernel.rows) > 1 and kernel.floor > 0 for kernel in kernels)
        seen["a failure"] += any(one.failed for one in alone.values())

    check()
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in seen.items()))
    for what in ("a match", "rows shared"):
        assert 5 * seen[what] >= seen["examples"], what
    if seen["examples"] >= 100:
        assert seen["a match of one that came later"] > 0
