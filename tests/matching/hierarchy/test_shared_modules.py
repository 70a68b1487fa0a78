"""Live queries that read one pattern: it is searched once, and each gets its own answer."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.feed import Feed
from matching.hierarchy.matcher import HierarchyMatcher
from matching.members import Member
from query.errors import HybridWarning
from query.plan.plan import Plan
from tests.hierarchies import (
    EVENTS,
    Event,
    batch_of,
    composed,
    event_lists,
    events_of,
    leaves,
    named_patterns,
    over,
    patterns_over,
    plan_of,
    statement,
)
from tests.properties.comparing import FEWER

VISIT = {"visit": statement("X Y", "NEXT", "X AS s = 'x', Y AS s = 'y'", 20)}


def expected(plan: Plan, events: tuple[Event, ...], begin: int, end: int) -> list[tuple[tuple[str, int], ...]]:
    found = composed(plan, events[begin:end], begin)
    return [tuple((path, i + begin) for path, i in match.leaves()) for match in found]


@pytest.mark.slow
@FEWER
@given(st.data())
def test_each_query_is_answered_as_alone(data: st.DataObject) -> None:
    """Queries come and go between batches, and the feed is continued from its snapshot."""
    key = data.draw(st.booleans())
    patterns = data.draw(named_patterns(key, ["NEXT", "ANY", "STRICT"]))
    outermost = patterns_over(tuple(patterns), key, ["NEXT", "ANY"], boxed=True)
    texts = data.draw(st.lists(outermost, min_size=2, max_size=3))
    events = data.draw(event_lists(key))
    begins = [data.draw(st.integers(0, len(events) - 1)) for _ in texts]
    ends = [data.draw(st.one_of(st.none(), st.integers(b, len(events) - 1))) for b in begins]
    restarts = data.draw(st.sets(st.integers(0, len(events) - 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        plans = [plan_of(over(patterns, text)) for text, _ in texts]
        feed, batch = Feed(EVENTS), batch_of(events)
        members: dict[int, Member] = {}
        found: list[list[tuple[tuple[str, int], ...]]] = [[] for _ in plans]
        for i in range(len(events)):
            for q, end in enumerate(ends):
                if end == i and q in members:
                    feed.remove(members.pop(q))
            for q, begin in enumerate(begins):
                if begin == i and ends[q] != i:
                    members[q] = feed.add(plans[q], i)
            if i in restarts and members:
                state, order = feed.snapshot(list(members.values()))
                names = [next(q for q, member in members.items() if member is one) for one in order]
                feed = Feed(EVENTS)
                restored = feed.restore(state, [plans[q] for q in names])
                assert all(isinstance(one, Member) for one in restored)
                members = {q: one for q, one in zip(names, restored, strict=True) if isinstance(one, Member)}
            feed.push(batch.slice(i, i + 1), events[i].ts_us)
            for q, member in members.items():
                found[q] += leaves(member.take_found())
        feed.advance(None)
        for q, member in members.items():
            found[q] += leaves(member.take_found())
            assert member.failure is None
        for q, plan in enumerate(plans):
            if ends[q] is None:
                assert sorted(found[q]) == sorted(expected(plan, events, begins[q], len(events)))


@pytest.mark.slow
def test_a_pattern_is_searched_once() -> None:
    feed, events = Feed(EVENTS), tuple(events_of("x1@1 y1@2 e1@3 x2@4 y2@5 e2@6"))
    texts = [statement("V E", "NEXT", f"V AS PATTERN visit ON n < {n}, E AS s = 'e'", 10) for n in range(3, 13)]
    members = [feed.add(plan_of(over(VISIT, text)), 0) for text in texts]
    feed.push(batch_of(events), 6)
    feed.advance(None)
    assert [len(leaves(member.take_found())) for member in members] == [2] * 10
    (searched,) = {id(m): m for member in members for m in matcher_of(member).modules}.values()
    assert searched.searched == len(events)


def test_matches_that_began_before_a_query_are_not_for_it() -> None:
    feed, events = Feed(EVENTS), tuple(events_of("x1@1 y1@2 x2@3 y2@4"))
    plan = plan_of(over(VISIT, statement("V", "NEXT", "V AS PATTERN visit")))
    first = feed.add(plan, 0)
    feed.push(batch_of(events[:1]), 1)
    second = feed.add(plan, 1)
    feed.push(batch_of(events).slice(1, 4), 4)
    feed.advance(None)
    assert leaves(first.take_found()) == [(("V.X", 0), ("V.Y", 1)), (("V.X", 2), ("V.Y", 3))]
    assert leaves(second.take_found()) == [(("V.X", 2), ("V.Y", 3))]
    assert matcher_of(first).modules is matcher_of(second).modules


@pytest.mark.slow
def test_events_of_matches_that_nothing_needs_are_dropped_without_within() -> None:
    # Before: all were kept, for ever.
    pair = {"pair": statement("X Y", "PARTITION", "X AS s = 'x', Y AS s = 'y'")}
    feed = Feed(EVENTS)
    member = feed.add(plan_of(over(pair, statement("P", "PARTITION", "P AS PATTERN pair"))), 0)
    found = 0
    for begin in range(0, 20_000, 1_000):
        events = tuple(Event("xy"[i % 2], f"e{i}", i) for i in range(begin, begin + 1_000))
        feed.push(batch_of(events), begin + 1_000)
        found += len(leaves(member.take_found()))
    assert found == 10_000
    assert matcher_of(member).layer.merging.members.events < 9_000


def matcher_of(member: Member) -> HierarchyMatcher:
    assert isinstance(member.matcher, HierarchyMatcher)
    return member.matcher
