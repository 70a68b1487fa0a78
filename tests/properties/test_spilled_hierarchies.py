"""Partial matches of any layer that leave memory change nothing, nor do restarts while they are on disk."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.feed import Feed
from matching.matcher import make_matcher
from matching.members import Member, rows_searched, share_out
from matching.spill import Policy, Spill
from query.errors import HybridWarning
from tests.hierarchies import (
    EVENTS,
    STREAMS,
    batch_of,
    composed,
    event_lists,
    factor_of,
    leaves,
    named_patterns,
    over,
    patterns_over,
    plan_of,
)
from tests.matching.memory_store import MemoryStore
from tests.properties.comparing import drawn_alike, drawn_until, fewer, is_nightly

SELECTIONS = ["NEXT", "ANY", "PARTITION"]
#: Bytes of all layers: nothing stays; some does; nothing has to leave.
LIMITS = (0, 0, 0, 500, 1_500, 1 << 30)


@pytest.mark.slow
def test_layers_that_leave_memory_change_nothing(record_property: Callable[[str, object], None]) -> None:
    """Rows, evidence and order are those of composition. After a crash another feed goes on from a snapshot, over a
    store that knows no more than its manifest."""
    tally: Counter[str] = Counter()

    @drawn_alike
    @given(data=st.data(), limit=st.sampled_from(LIMITS), policy=st.sampled_from(Policy))
    def check(data: st.DataObject, limit: int, policy: Policy) -> None:
        patterns = data.draw(named_patterns(True, SELECTIONS))
        outermost = data.draw(patterns_over(tuple(patterns), True, SELECTIONS, boxed=True))[0]
        events = data.draw(event_lists(True))
        restarts = data.draw(st.sets(st.integers(1, len(events) - 1), max_size=3))
        size = data.draw(st.sampled_from([1, 1, 2, 5]))
        spill = Spill(limit, MemoryStore(), policy)
        plan = plan_of(over(patterns, outermost))
        feed, found, layers = Feed(EVENTS, spill=spill), [], set[int]()
        member, batch = feed.add(plan, 0), batch_of(events)
        for begin in range(0, len(events), size):
            if begin in restarts:
                state, _ = feed.snapshot([member])
                feed = Feed(EVENTS, spill=replace(spill, store=MemoryStore()))
                (restored,) = feed.restore(state, [plan])
                assert isinstance(restored, Member)
                member = restored
            end = min(begin + size, len(events))
            feed.push(batch.slice(begin, end), events[end - 1].ts_us)
            found += leaves(member.take_found())
            assert member.failure is None
            spilled = [rows.spilled for rows in member.rows if rows.spilled is not None]
            layers |= {i for i, one in enumerate(spilled) if one.out_count}
            tally["read back"] += any(one.read_count for one in spilled)
        feed.advance(None)
        found += leaves(member.take_found())
        assert found == [tuple(match.leaves()) for match in composed(plan, events)]
        tally["matches"] += bool(found)
        tally[f"{len(layers)} layers spilled"] += 1

    def met() -> bool:
        several = tally["2 layers spilled"] + tally["3 layers spilled"]
        return min(tally["matches"], several, tally["read back"] // 3) > (30 if is_nightly() else 12)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        drawn_until(check, met)
    record_property("examples", str(dict(tally)))
    assert met(), tally


@pytest.mark.slow
@pytest.mark.nightly
def test_layers_of_several_streams_that_leave_memory_change_nothing(
    record_property: Callable[[str, object], None],
) -> None:
    tally: Counter[str] = Counter()
    sources = ("events", "others", "MERGE(events, others)")

    @fewer(2)
    @given(data=st.data(), limit=st.sampled_from(LIMITS), policy=st.sampled_from(Policy))
    def check(data: st.DataObject, limit: int, policy: Policy) -> None:
        patterns = data.draw(named_patterns(True, SELECTIONS, sources))
        outermost = data.draw(patterns_over(tuple(patterns), True, SELECTIONS, boxed=True, sources=sources))[0]
        events = data.draw(event_lists(True, streams=tuple(STREAMS)))
        size = data.draw(st.sampled_from([1, 1, 2, 5]))
        factor = factor_of(over(patterns, outermost))
        assume(factor.merged is not None)
        spill = Spill(limit, MemoryStore(), policy)
        matcher, batch = make_matcher(factor.plan, lenient=True, spill=spill), batch_of(events, factor)
        may_leave = [(rows, rows.spilled) for rows in rows_searched(matcher) if rows.spilled is not None]
        found = []
        for begin in range(0, len(events), size):
            share_out(limit, may_leave)
            found += leaves([matcher.push(batch.slice(begin, min(begin + size, len(events))))])
        found += leaves([matcher.advance(None)])
        assert found == [tuple(match.leaves()) for match in composed(factor.plan, events, factor=factor)]
        tally["matches"] += bool(found)
        tally["read back"] += any(one.read_count for _, one in may_leave)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        drawn_until(check, lambda: tally["matches"] > 20 and tally["read back"] > 20)
    record_property("examples", str(dict(tally)))
    assert tally["matches"] > 20
    assert tally["read back"] > 20
