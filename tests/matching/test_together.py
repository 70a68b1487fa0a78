"""Queries of trends in a feed are counted together, and each has the rows that it has alone, whenever the others come,
go or fail, and wherever the feed is saved."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import EventBatch, Matches
from matching.feed import Feed, Member
from matching.purpose import Purpose
from matching.together import CountedQuery
from matching.workload.sharing_mode import SharingMode
from query.plan.plan import Plan
from tests.events import batch_of
from tests.matching.test_workload_matcher import alone, streams, workloads
from tests.properties.comparing import fewer
from tests.trends import EVENTS, SECOND, Row, plan_of, row, rows_of, statement

pytestmark = pytest.mark.slow  # its kernels take half a minute to compile

#: Events may come three seconds late.
LATE = replace(EVENTS, lateness_us=3 * SECOND)
SHARED = [mode for mode in SharingMode if mode is not SharingMode.NONE]


@dataclass
class Query:
    """A query, the pushes before which it begins and ends, the same one in a feed alone, and the rows of both."""

    plan: Plan
    begin: int
    end: int
    member: Member | None = None
    alone: Feed | None = None
    alone_member: Member | None = None
    found: list[Matches] = field(default_factory=list)
    wanted: list[Matches] = field(default_factory=list)

    def take(self) -> None:
        for member, into in ((self.member, self.found), (self.alone_member, self.wanted)):
            if member is not None:
                into.extend(member.take_found())


def failing(draw: st.DrawFn) -> Plan:
    """A query of which a condition cannot be computed for some events."""
    condition = f"CASE WHEN v = {draw(st.integers(2, 5))} THEN type::BIGINT ELSE 1 END > 0"
    return plan_of(statement("A B+", 20, 20, partition="g", conditions=f"B: {condition}"))


@st.composite
def pushes(draw: st.DrawFn) -> list[tuple[EventBatch, int]]:
    """Batches of events in order of arrival, each with the watermark after it."""
    events, found, low, seq = draw(streams(60)), [], 0, 0
    while events:
        size = draw(st.integers(1, 15))
        part, events = events[:size], events[size:]
        back = [draw(st.sampled_from([0, 0, SECOND, 2 * SECOND])) for _ in part]
        late = [{**each, "ts": max(low, each["ts"] - by)} for each, by in zip(part, back, strict=True)]
        low = max(low, max(each["ts"] for each in late) - 3 * SECOND)
        found.append((batch_of(EVENTS, late, seq), low))
        seq += size
    return found


def restored(feed: Feed, queries: list[Query], lost: set[int]) -> Feed:
    """Returns a new feed with the state of a feed, without the queries `lost`."""
    kept = [q for i, q in enumerate(queries) if q.member is not None and i not in lost]
    state, order = feed.snapshot([q.member for q in kept if q.member is not None])
    new = Feed(LATE)
    of = {id(q.member): q for q in kept}
    again = new.restore(state, [of[id(member)].plan for member in order])
    for i in lost:
        queries[i].member = queries[i].alone_member = None
        queries[i].end = -1
    for member, was in zip(again, order, strict=True):
        assert isinstance(member, Member)
        of[id(was)].member = member
    return new


def run(data: st.DataObject, queries: list[Query], batches: list[tuple[EventBatch, int]], mode: SharingMode) -> Feed:
    feed, seq = Feed(LATE), 0
    for i, (batch, watermark_us) in enumerate(batches):
        for query in queries:
            if query.end == i and query.member is not None:
                feed.remove(query.member)
                query.member = query.alone_member = None
            if query.begin == i and query.end > i:
                query.member = feed.add(query.plan, seq, sharing=mode)
                query.alone = Feed(LATE)
                if i:  # it holds back the same events, which the query does not see
                    query.alone.restore(feed.snapshot([])[0], [])
                query.alone_member = query.alone.add(query.plan, seq)
        feed.push(batch, watermark_us)
        for query in queries:
            if query.alone is not None and query.alone_member is not None:
                query.alone.push(batch, watermark_us)
            query.take()
        seq += len(batch)
        if data.draw(st.integers(0, 5)) == 0:
            here = [j for j, q in enumerate(queries) if q.member is not None]
            lost = set(data.draw(st.lists(st.sampled_from(here), max_size=1))) if here else set()
            feed = restored(feed, queries, lost)
    feed.advance(None)
    for query in queries:
        if query.alone is not None and query.alone_member is not None:
            query.alone.advance(None)
        query.take()
    return feed


@fewer(3)
@given(st.data())
def test_each_query_has_the_rows_that_it_has_alone(data: st.DataObject) -> None:
    plans = [*data.draw(workloads()).values(), *data.draw(workloads()).values()]
    plans += [data.draw(st.composite(failing)()) for _ in range(data.draw(st.integers(0, 2)))]
    batches, mode = data.draw(pushes()), data.draw(st.sampled_from(SHARED))
    last = len(batches)
    begin, end = st.sampled_from([0, 0, last // 3, last // 2]), st.sampled_from([last, last, last - 1])
    queries = [Query(plan, data.draw(begin), data.draw(end)) for plan in plans]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matching.shared_queries.MEASURED_EVENTS", 5)
        patch.setattr("matching.shared_queries.BETWEEN_SEARCHES", 0)
        run(data, queries, batches, mode)
    for query in queries:
        assert rows_of(query.plan, query.found) == rows_of(query.plan, query.wanted)
        if query.member is not None and query.alone_member is not None:
            failures = [query.member.failure, query.alone_member.failure]
            assert (failures[0] is None) == (failures[1] is None)


def plain(condition: str, pattern: str = "A+ B") -> Plan:
    return plan_of(statement(pattern, 400, 400, measures="COUNT(MATCHES) AS n, SUM(v) AS s", conditions=condition))


def many(count: int) -> list[Row]:
    return [row("B" if i % 10 == 9 else "A", i, i % 7) for i in range(count)]


def fed(feed: Feed, members: list[Member], events: list[Row], size: int) -> list[list[Matches]]:
    found: list[list[Matches]] = [[] for _ in members]
    for begin in range(0, len(events), size):
        part = events[begin : begin + size]
        feed.push(batch_of(EVENTS, part, begin), part[-1]["ts"])
        for member, into in zip(members, found, strict=True):
            into += member.take_found()
    feed.advance(None)
    for member, into in zip(members, found, strict=True):
        into += member.take_found()
    return found


@pytest.mark.thinned(3)
@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("mode", SHARED)
def test_a_count_that_is_too_large_fails_alone(mode: SharingMode, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("shared_trends", "run_trends"):
        monkeypatch.setattr(f"matching.engines.{module}.LIMBS_MAX", 2)
    monkeypatch.setattr("matching.shared_queries.MEASURED_EVENTS", 20)
    plans = [plain("A: v = 3"), plain(""), plain("A: v < 0"), plain("A: v = 4; B: v > 3")]
    feed, events = Feed(EVENTS), many(290)
    members = [feed.add(plan, 0, sharing=mode) for plan in plans]
    found = fed(feed, members, events, size)
    assert [str(m.failure)[:30] for m in members if m.failure] == ["a count of trends has more tha"]
    assert members[1].failure is not None
    for plan, rows in ((plans[i], found[i]) for i in (0, 2, 3)):
        assert rows_of(plan, rows) == alone(plan, events)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.parametrize("mode", SHARED)
def test_a_condition_that_cannot_be_computed_fails_alone(mode: SharingMode, size: int) -> None:
    # Before: the others counted the events of its push that come before the failing one twice, and a query that fails
    # later in the same push lost the rows that were decided between.
    fails_at = "B: CASE WHEN v = {} THEN type::BIGINT ELSE 1 END > 0"
    plans = [plan_of(statement("A+ B", 10, 5, conditions=c)) for c in (fails_at.format(5), "", fails_at.format(4))]
    events = [row("B" if i % 4 == 3 else "A", i, 5 if i == 27 else 4 if i == 47 else i % 4) for i in range(60)]
    feed = Feed(EVENTS)
    members = [feed.add(plan, 0, sharing=mode) for plan in plans]
    found = fed(feed, members, events, size)
    assert [member.failure is None for member in members] == [False, True, False]
    for plan, rows, at in zip(plans, found, (27, 60, 47), strict=True):
        ended = [each for each in alone(plan, events[:at]) if at == 60 or each[1] <= at * SECOND]
        assert rows_of(plan, rows) == ended
        assert len(ended) > 2


def test_queries_of_different_times_are_put_together() -> None:
    feed, plans = Feed(LATE), [plain(f"A: v > {i}") for i in range(4)]
    events = many(60)
    first = [feed.add(plan, 0, sharing=SharingMode.DYNAMIC) for plan in plans[:2]]
    feed.push(batch_of(EVENTS, events[:20], 0), events[15]["ts"])
    later = [feed.add(plan, 20, sharing=SharingMode.DYNAMIC) for plan in plans[2:]]
    groups = lambda: {id(m.together) for m in (*first, *later) if isinstance(m, CountedQuery)}  # noqa: E731
    assert len(groups()) == 2  # the later ones do not see the events that are held back
    feed.push(batch_of(EVENTS, events[20:40], 20), events[35]["ts"])
    feed.push(batch_of(EVENTS, events[40:], 40), events[-1]["ts"])
    assert len(groups()) == 1
    feed.advance(None)
    for plan, member, seen in zip(plans, (*first, *later), (events, events, events[20:], events[20:]), strict=True):
        assert rows_of(plan, member.take_found()) == alone(plan, seen)


def test_queries_of_other_keys_windows_and_uses_stay_apart() -> None:
    def member(text: str, purpose: Purpose = Purpose.LIVE, mode: SharingMode = SharingMode.DYNAMIC) -> Any:
        return feed.add(plan_of(text), 0, purpose=purpose, sharing=mode)

    feed = Feed(EVENTS)
    base = statement("A+ B", 20, 10, partition="g")
    one = member(base)
    assert member(statement("A+ B", 20, 10, partition="g", conditions="A: v > 1")).together is one.together
    assert member(statement("A+ B", 20, 20, partition="g")).together is not one.together
    assert member(statement("A+ B", 20, 10, partition="h")).together is not one.together
    assert member(base, Purpose.IDENTIFIED).together is not one.together
    assert member(base, mode=SharingMode.STATIC).together is not one.together
    assert not isinstance(member(statement("A+ B", 20, 10, partition="g", conditions="B: v > LAST(A.v)")), CountedQuery)


def test_rows_have_the_ids_that_they_have_alone() -> None:
    plan, events = plain("A: v > 2"), many(40)
    ids = []
    for sharing in (None, SharingMode.DYNAMIC):
        feed = Feed(EVENTS)
        members = [feed.add(p, 0, purpose=Purpose.IDENTIFIED, sharing=sharing) for p in (plan, plain("A: v > 3"))]
        found = fed(feed, members, events, 11)[0]
        ids.append(np.concatenate([m.ids for m in found if m.ids is not None]))
    assert len(ids[0])
    assert (ids[0] == ids[1]).all()


def test_a_new_version_that_counts_the_same_goes_on_in_open_windows() -> None:
    feed, events = Feed(EVENTS), many(60)
    first, other = (feed.add(plain(f"A: v > {i}"), 0, sharing=SharingMode.DYNAMIC) for i in (1, 2))
    feed.push(batch_of(EVENTS, events[:30], 0), events[29]["ts"])
    text = statement("A+ B", 400, 400, measures="COUNT(MATCHES) AS n, SUM(v) + 1 AS s", conditions="A: v > 1")
    assert feed.succeed(other, plain("A: v > 3"), lambda *_: pytest.fail("reads events")) is None
    again = feed.succeed(first, plan_of(text), lambda *_: pytest.fail("reads events"))
    assert again is not None
    feed.push(batch_of(EVENTS, events[30:], 30), None)
    feed.advance(None)
    (window,) = (row for m in again.take_found() for row in m.rows.to_pylist())
    ((_, _, count, total),) = alone(plain("A: v > 1"), events)
    assert (int(window["n"]), int(window["s"])) == (count, total + 1)
    assert rows_of(plain("A: v > 2"), other.take_found()) == alone(plain("A: v > 2"), events)
    assert not first.take_found()
