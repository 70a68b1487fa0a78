"""Live queries with boxes over the same streams: each gets what it would get alone, whenever the others come and go."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from hybrid.watch.merged_feed import in_fixed_order, shared_input
from matching.batch import EventBatch
from matching.feed import Feed
from matching.hierarchy.matcher import HierarchyMatcher
from matching.members import Member
from query.errors import HybridWarning
from query.plan.plan import FactorPlan
from tests.hierarchies import (
    STREAMS,
    Event,
    Leaf,
    batch_of,
    composed,
    event_lists,
    factor_of,
    leaves,
    named_patterns,
    over,
    patterns_over,
    statement,
)
from tests.properties.comparing import FEWER

SOURCES = ("events", "others", "MERGE(events, others)")


@dataclass(frozen=True)
class Asked:
    """A query, and the arrivals before which it comes and goes (None: it stays)."""

    factor: FactorPlan
    begin: int
    end: int | None


@st.composite
def askings(draw: st.DrawFn, key: bool, n: int) -> list[Asked]:
    """Queries that have patterns in common and read both streams, some in the other order."""
    patterns = draw(named_patterns(key, ["NEXT", "ANY", "STRICT"], SOURCES))
    outermost = patterns_over(tuple(patterns), key, ["NEXT", "ANY"], boxed=True, sources=SOURCES)
    factors = [factor_of(over(patterns, text)) for text, _ in draw(st.lists(outermost, min_size=2, max_size=4))]
    read = [shared_input(factor) for factor in factors if factor.members and factor.plan.boxes]
    assume(read)
    alike = [f for f in factors if f.members and f.plan.boxes and shared_input(f) == read[0]]
    asked = []
    for factor in alike:
        begin = draw(st.just(0) | st.integers(0, n - 1))
        asked.append(Asked(factor, begin, draw(st.none() | st.integers(begin, n - 1))))
    return asked


def in_arrival(draw: st.DrawFn, events: tuple[Event, ...]) -> list[int]:
    """Draws an order of arrival in which each stream is in order."""
    left = {name: [i for i, e in enumerate(events) if e.stream == name] for name in STREAMS}
    order = []
    while some := [name for name in left if left[name]]:
        order.append(left[draw(st.sampled_from(some))].pop(0))
    return order


def merged(factor: FactorPlan, events: tuple[Event, ...], order: list[int]) -> EventBatch:
    """Returns the merged events in order of arrival, which their ingest sequences tell. Their offsets are their places
    in `events`."""
    fixed, shared = in_fixed_order(factor), shared_input(factor)
    whole = batch_of(events, replace(factor, members=fixed.members, merged=fixed.schema))
    whole = whole.take(np.argsort(whole.offset)[order])
    seq = np.arange(len(order)) * len(shared.members) + whole.seq % len(shared.members)
    return replace(whole, columns=whole.columns.select(shared.schema.names), seq=seq)


def watermark(events: tuple[Event, ...], arrived: list[int]) -> int | None:
    last = {events[i].stream: events[i].ts_us for i in arrived}
    return min(last.values()) if len(last) == len(STREAMS) else None


def expected(asked: Asked, events: tuple[Event, ...], order: list[int]) -> list[tuple[Leaf, ...]]:
    """Returns the matches of the events that arrive after a query has come, by the reference."""
    mine = sorted(order[asked.begin :])
    found = composed(asked.factor.plan, [events[i] for i in mine], factor=asked.factor, numbers=mine)
    return [tuple((path, mine[i]) for path, i in match.leaves()) for match in found]


def answered(
    asked: list[Asked], events: tuple[Event, ...], order: list[int], restarts: set[int]
) -> tuple[list[list[tuple[Leaf, ...]]], set[str]]:
    """Returns the matches of each query, and what has happened."""
    schema, n = shared_input(asked[0].factor).schema, len(shared_input(asked[0].factor).members)
    batch = merged(asked[0].factor, events, order)
    feed, seen = Feed(schema), set[str]()
    members: dict[int, Member] = {}
    found: list[list[tuple[Leaf, ...]]] = [[] for _ in asked]
    for i in range(len(events)):
        for q, one in enumerate(asked):
            if one.end == i and q in members:
                feed.remove(members.pop(q))
            if one.begin == i and one.end != i:
                members[q] = feed.add(one.factor.plan, tuple(i * n + k for k in range(n)))
        joining = any(matcher.earlier is not None for matcher in layered(members))
        seen |= {"joined later"} if joining else set()
        if i in restarts and members:
            seen |= {"restarted while joining"} if joining else set()
            state, saved = feed.snapshot(list(members.values()))
            names = [next(q for q, member in members.items() if member is one) for one in saved]
            feed = Feed(schema)
            restored = feed.restore(state, [asked[q].factor.plan for q in names])
            members = {q: one for q, one in zip(names, restored, strict=True) if isinstance(one, Member)}
            assert len(members) == len(names)
        feed.push(batch.slice(i, i + 1), None)
        reached_us = watermark(events, order[: i + 1])
        if reached_us is not None:
            feed.advance(reached_us)
        for q, member in members.items():
            found[q] += leaves(member.take_found())
    matchers = layered(members)
    seen |= {"modules shared"} if len({id(one.modules) for one in matchers}) < len(matchers) else set()
    feed.advance(None)
    for q, member in members.items():
        found[q] += leaves(member.take_found())
        assert member.failure is None
    return found, seen


def layered(members: dict[int, Member]) -> list[HierarchyMatcher]:
    return [m.matcher for m in members.values() if isinstance(m.matcher, HierarchyMatcher)]


@pytest.mark.slow
@FEWER
@given(st.data())
def test_each_query_is_answered_as_alone(data: st.DataObject) -> None:
    """Queries come and go between events of which some wait for the other stream, and the feed is continued from its
    snapshot. Matches come in the same order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        key = data.draw(st.booleans())
        events = data.draw(event_lists(key, streams=tuple(STREAMS)))
        order = data.draw(st.composite(in_arrival)(events))
        asked = data.draw(askings(key, len(events)))
        restarts = data.draw(st.sets(st.integers(0, len(events) - 1)))
        found, seen = answered(asked, events, order, restarts)
        for what in (*seen, "matches" if any(found) else "no match"):
            event(what)
        for q, one in enumerate(asked):
            if one.end is None:
                assert found[q] == expected(one, events, order)


@st.composite
def alike(draw: st.DrawFn, n: int) -> list[Asked]:
    """Queries that have a pattern of events of one stream in common, all of whose matches are given."""
    inner, outer = draw(st.sampled_from(["NEXT", "ANY"])), st.sampled_from(["NEXT", "ANY"])
    pattern = draw(st.sampled_from(["A B", "A+ B", "A ~Y B", "A B+"]))
    defines = "A AS s = 'a', B AS s IN ('b', 'x')" + ", Y AS s = 'y'" * ("Y" in pattern)
    visit = {"visit": statement(pattern, inner, defines, draw(st.sampled_from([2, 4])))}
    asked = []
    for i in range(draw(st.integers(2, 4))):
        upper = draw(st.sampled_from(["V E", "E V", "V U", "V+ E", "V ~E U", "(V | E) U"]))
        boxes = {"V": "V AS PATTERN visit", "U": f"U AS PATTERN visit ON n <= {draw(st.integers(2, 3))}"}
        defines = ", ".join([
            *(text for name, text in boxes.items() if name in upper), *["E AS s IN ('b', 'y')"] * ("E" in upper)
        ])  # fmt: skip
        text = statement(upper, draw(outer), defines, draw(st.sampled_from([4, 8])), source="others")
        begin = 0 if not i else draw(st.integers(0, n // 2))
        asked.append(Asked(factor_of(over(visit, text)), begin, None))
    return asked


@st.composite
def in_order(draw: st.DrawFn, n: int, streams: tuple[str, ...]) -> tuple[Event, ...]:
    """Returns n events of some streams in the total order: by time, then by the name of the stream."""
    steps = draw(st.lists(st.sampled_from([0, 1, 1, 2]), min_size=n, max_size=n))
    kinds = draw(st.lists(st.sampled_from("aabbxy"), min_size=n, max_size=n))
    of = draw(st.lists(st.sampled_from(streams), min_size=n, max_size=n))
    drawn = sorted(zip(np.cumsum(steps).tolist(), of, kinds, strict=True), key=lambda one: one[:2])
    return tuple(Event(kind, f"{kind}{i}", at, None, stream) for i, (at, stream, kind) in enumerate(drawn))


@pytest.mark.slow
@FEWER
@given(st.data())
def test_queries_that_come_later_read_the_patterns_of_others(data: st.DataObject) -> None:
    """One that comes while events wait, which it does not see, reads the same patterns as the others later on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        n = data.draw(st.integers(15, 30))
        events = data.draw(in_order(n, tuple(STREAMS)))
        order = data.draw(st.composite(in_arrival)(events))
        asked = data.draw(alike(n))
        restarts = data.draw(st.sets(st.integers(0, n - 1), max_size=4))
        found, seen = answered(asked, events, order, restarts)
        for what in (*seen, "matches" if any(found) else "no match"):
            event(what)
        for q, one in enumerate(asked):
            assert found[q] == expected(one, events, order)
