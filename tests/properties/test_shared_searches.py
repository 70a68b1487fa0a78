"""Live queries with boxes over different streams: a pattern that several have in common is searched once, and each
query gets what it would get alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from hybrid.rows.merged import Merged
from hybrid.watch.merged_feed import shared_input
from matching.batch import EventBatch
from matching.feed import Feed
from matching.hierarchy.followed import Followed
from matching.hierarchy.matcher import HierarchyMatcher
from matching.hierarchy.searches import Origin, Searches
from matching.members import Member
from matching.spill import Spill
from query.errors import HybridWarning
from query.plan.plan import FactorPlan
from query.schema import Schema
from tests.hierarchies import EVENTS, OTHERS, Event, Leaf, composed, factor_of, leaves, over, statement
from tests.matching.memory_store import MemoryStore
from tests.properties.comparing import FEWER
from tests.properties.test_shared_streams import in_order

#: The streams; the pattern in common reads the first.
STREAMS: Mapping[str, Schema] = {"events": EVENTS, "others": OTHERS, "more": replace(EVENTS, name="more")}
READ = ("events", "others", "more")


@dataclass(frozen=True)
class Asked:
    """A query, the streams that it reads, and the arrivals before which it comes and goes (None: it stays)."""

    factor: FactorPlan
    reads: frozenset[str]
    begin: int
    end: int | None


class Database:
    """The feeds of a database, by what they merge (None: they read the stream `events`), which share searches."""

    def __init__(self, spill_bytes: int | None) -> None:
        self.searches = Searches()
        self.spill_bytes = spill_bytes
        self.arrived = dict.fromkeys(STREAMS, 0)
        self.feeds: dict[Merged | None, Feed] = {}
        self.members: dict[int, tuple[Merged | None, Member]] = {}

    def feed(self, merged: Merged | None) -> Feed:
        if merged not in self.feeds:
            spill = None if self.spill_bytes is None else Spill(self.spill_bytes, MemoryStore())
            origin = Origin(self.searches, {name: name for name in streams_of(merged)}, self.arrived.__getitem__)
            self.feeds[merged] = Feed(EVENTS if merged is None else merged.schema, spill=spill, origin=origin)
        return self.feeds[merged]

    def watch(self, q: int, asked: Asked) -> None:
        merged = shared_input(asked.factor) if asked.factor.members else None
        names = streams_of(merged)
        since = tuple(self.arrived[name] * len(names) + k for k, name in enumerate(names))
        self.members[q] = merged, self.feed(merged).add(asked.factor.plan, since if merged else since[0])

    def close(self, q: int) -> None:
        merged, member = self.members.pop(q)
        self.feeds[merged].remove(member)
        if not len(self.feeds[merged]):
            del self.feeds[merged]

    def push(self, stream: str, batch: EventBatch, reached: Mapping[str, int]) -> None:
        self.arrived[stream] += len(batch)
        for merged, feed in self.feeds.items():
            names = streams_of(merged)
            if stream not in names:
                continue
            if merged is None:
                feed.push(batch, reached[stream])
                continue
            feed.push(merged.events(names.index(stream), batch), None)
            if set(names) <= reached.keys():
                feed.advance(min(reached[name] for name in names))

    def end(self) -> None:
        for feed in self.feeds.values():
            feed.advance(None)

    def restarted(self, asked: list[Asked]) -> Database:
        """Returns a database that goes on from the saved states of its feeds."""
        again = Database(None)
        again.arrived.update(self.arrived)
        for merged, feed in self.feeds.items():
            mine = {q: member for q, (of, member) in self.members.items() if of == merged}
            state, saved = feed.snapshot(list(mine.values()))
            names = [next(q for q, member in mine.items() if member is one) for one in saved]
            found = again.feed(merged).restore(state, [asked[q].factor.plan for q in names])
            for q, member in zip(names, found, strict=True):
                assert isinstance(member, Member)
                again.members[q] = merged, member
        return again

    def shared(self) -> bool:
        """True if several feeds read one search."""
        read = [
            (of, module.matcher.search)
            for of, member in self.members.values() if isinstance(member.matcher, HierarchyMatcher)
            for module in member.matcher.patterns().values() if isinstance(module.matcher, Followed)
        ]  # fmt: skip
        return any(one is other and of != beside for of, one in read for beside, other in read)


def streams_of(merged: Merged | None) -> tuple[str, ...]:
    return ("events",) if merged is None else tuple(member.name for member in merged.members)


def expected(asked: Asked, events: tuple[Event, ...], order: list[int]) -> list[tuple[Leaf, ...]]:
    """Returns the matches of the events that arrive after a query has come, by the reference."""
    mine = sorted(i for i in order[asked.begin :] if events[i].stream in asked.reads)
    factor = asked.factor if asked.factor.members else None
    found = composed(asked.factor.plan, [events[i] for i in mine], factor=factor, numbers=mine)
    return [tuple((path, mine[i]) for path, i in match.leaves()) for match in found]


def answered(
    asked: list[Asked], events: tuple[Event, ...], order: list[int], restarts: set[int], spill_bytes: int | None
) -> tuple[list[list[tuple[Leaf, ...]]], set[str]]:
    """Returns the matches of each query, and what has happened."""
    db, seen, reached = Database(spill_bytes), set[str](), dict[str, int]()
    found: list[list[tuple[Leaf, ...]]] = [[] for _ in asked]
    for i, at in enumerate(order):
        for q, one in enumerate(asked):
            if one.end == i and q in db.members:
                db.close(q)
            if one.begin == i and one.end != i:
                db.watch(q, one)
        if i in restarts and db.members:
            db = db.restarted(asked)
            seen.add("restarted")
        stream, n = events[at].stream, db.arrived[events[at].stream]
        reached[stream] = events[at].ts_us
        db.push(stream, batch_of(events[at], at, n), reached)
        for q, (_, member) in db.members.items():
            found[q] += leaves(member.take_found())
        if db.shared():
            seen.add("searched once for several feeds")
    db.end()
    for q, (_, member) in db.members.items():
        found[q] += leaves(member.take_found())
        assert member.failure is None
    return found, seen


def batch_of(one: Event, at: int, seq: int) -> EventBatch:
    """Returns an event as its stream has it. Its offset is its place among all events."""
    schema = STREAMS[one.stream]
    values = {"ts": one.ts_us, "tm": one.ts_us, "s": one.type, "k": one.key, "i": at}
    types = {"TIMESTAMP": pa.timestamp("us"), "VARCHAR": pa.string(), "BIGINT": pa.int64(), "INTEGER": pa.int32()}
    columns = pa.record_batch(
        [pa.array([values[f.name]], types[f.type]) for f in schema.fields], [f.name for f in schema.fields]
    )
    return EventBatch(columns, np.array([one.ts_us]), np.zeros(1, np.int32), np.array([at]), np.array([seq]))


@st.composite
def alike(draw: st.DrawFn, n: int) -> list[Asked]:
    """Queries over several sets of streams that have a pattern of events of one stream in common."""
    inner, after = draw(st.sampled_from(["NEXT", "ANY"])), "AFTER MATCH NO SKIP"
    if draw(st.integers(0, 3)) == 0:
        inner, after = draw(st.sampled_from(["PARTITION", "NEXT"])), "AFTER MATCH SKIP PAST LAST ROW"
    pattern = draw(st.sampled_from(["A B", "A+ B", "A ~Y B", "A B+"]))
    defines = "A AS s = 'a', B AS s IN ('b', 'x')" + ", Y AS s = 'y'" * ("Y" in pattern)
    visit = {"visit": statement(pattern, inner, defines, draw(st.sampled_from([2, 4])), after=after)}
    late = draw(st.booleans())  # some come while events are on their way
    asked = []
    for source in draw(st.lists(st.sampled_from(READ), min_size=2, max_size=4)):
        upper = draw(st.sampled_from(["V E", "E V", "V U", "V+ E", "V ~E U", "(V | E) U"]))
        of_other = draw(st.sampled_from(READ)) if draw(st.booleans()) else None
        boxes = {"V": "V AS PATTERN visit", "U": f"U AS PATTERN {'other' if of_other else 'visit'} ON n <= 3"}
        defines = ", ".join([
            *(text for name, text in boxes.items() if name in upper), *["E AS s IN ('b', 'y')"] * ("E" in upper)
        ])  # fmt: skip
        other = {"other": statement("B", "NEXT", "B AS s = 'b'", source=of_other)} if of_other else {}
        outer = draw(st.sampled_from(["NEXT", "ANY", "PARTITION"]))
        text = statement(upper, outer, defines, draw(st.sampled_from([4, 8])), source=source)
        factor = factor_of(over(visit | other, text), STREAMS)
        begin = draw(st.integers(0, n // 2)) if late else 0
        end = draw(st.integers(n // 2, n - 1)) if draw(st.integers(0, 3)) == 0 else None
        reads = frozenset(m.name for m in factor.members) or frozenset(("events",))
        asked.append(Asked(factor, reads, begin, end))
    return asked


@pytest.mark.slow
@FEWER
@given(st.data())
def test_queries_over_different_streams_search_a_common_pattern_once(data: st.DataObject) -> None:
    """They come and go while events of some streams wait for those of others, and are continued from their states."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        n = data.draw(st.integers(12, 30))
        events = data.draw(in_order(n, (*STREAMS, "events")))
        order = in_arrival(data.draw, events)
        asked = data.draw(alike(n))
        restarts = data.draw(st.sets(st.integers(0, n - 1), max_size=4))
        spill_bytes = data.draw(st.sampled_from([None, None, 0, 1 << 12])) if not restarts else None
        found, seen = answered(asked, events, order, restarts, spill_bytes)
        for what in (*seen, "matches" if any(found) else "no match"):
            event(what)
        for q, one in enumerate(asked):
            if one.end is None:
                assert found[q] == expected(one, events, order)


def in_arrival(draw: st.DrawFn, events: tuple[Event, ...]) -> list[int]:
    """Draws an order of arrival in which each stream is in order."""
    left = {name: [i for i, e in enumerate(events) if e.stream == name] for name in STREAMS}
    order = []
    while some := [name for name in left if left[name]]:
        order.append(left[draw(st.sampled_from(some))].pop(0))
    return order
