"""Partial matches of layers in one memory limit, and what is said of them."""

from __future__ import annotations

import pytest

import matching.engines.choose as choose
from matching.feed import Feed
from matching.members import Member
from matching.spill import Spill
from query.errors import QueryError
from tests.hierarchies import EVENTS, Event, batch_of, composed, leaves, over, plan_of, statement
from tests.matching.memory_store import MemoryStore

VISIT = {"visit": statement("X Y", "NEXT", "X AS s = 'x', Y AS s = 'y'", 1_000, key=True)}
THEFT = VISIT | {"theft": statement("V E", "NEXT", "V AS PATTERN visit, E AS s = 'e'", 2_000, key=True)}
RING = over(THEFT, statement("T U", "NEXT", "T AS PATTERN theft, U AS PATTERN theft", 4_000, key=True))


def events(keys: int) -> tuple[Event, ...]:
    """Two thefts of each key, one step of all keys after the other."""
    kinds = "xyexye"
    return tuple(Event(kind, f"{kind}{k}", keys * i + k, f"k{k}") for i, kind in enumerate(kinds) for k in range(keys))


def spilled(member: Member) -> list[tuple[int, int]]:
    """Partitions on disk, and how often one came back, of each layer."""
    return [(stats.out, stats.read_back) for stats in member.spills]


@pytest.mark.slow
def test_one_limit_is_for_all_layers() -> None:
    # Before: each layer had the whole limit.
    plan, all_of_them = plan_of(RING), events(60)
    limit, found = 20_000, []
    feed = Feed(EVENTS, spill=Spill(limit, MemoryStore()))
    member = feed.add(plan, 0)
    batch, out = batch_of(all_of_them), 0
    for begin in range(0, len(all_of_them), 20):
        if begin == 180:
            state, _ = feed.snapshot([member])
            feed = Feed(EVENTS, spill=Spill(limit, MemoryStore()))
            (member,) = (one for one in feed.restore(state, [plan]) if isinstance(one, Member))
        feed.push(batch.slice(begin, begin + 20), all_of_them[begin + 19].ts_us)
        found += leaves(member.take_found())
        assert sum(stats.bytes for stats in member.spills) <= limit
        out = max(out, sum(there > 0 for there, _ in spilled(member)))
    feed.advance(None)
    found += leaves(member.take_found())
    assert len(found) == 60
    assert found == [tuple(match.leaves()) for match in composed(plan, all_of_them)]
    assert out == 3
    assert sum(back for _, back in spilled(member)) > 60


@pytest.mark.slow
def test_rows_of_which_nothing_is_in_memory_have_room_again() -> None:
    # Before: with two PARTITION BYs all had a limit of 0, from the first batch on.
    feed = Feed(EVENTS, spill=Spill(1 << 20, MemoryStore()))
    members = [feed.add(plan_of(statement("X Y", "NEXT", "X AS s = 'x', Y AS s = 'y'", 900, key=key)), 0)
               for key in (False, True)]
    feed.push(batch_of(events(50)), None)
    assert members[1].spill.out == 0
    plain = feed.add(plan_of(RING), 300)
    feed.push(batch_of(events(50)), None)
    assert [there for there, _ in spilled(plain)] == [0, 0, 0]


def test_a_layer_that_stays_in_memory_is_named() -> None:
    inner = VISIT["visit"].replace("PARTITION BY k ", "")
    feed = Feed(EVENTS, spill=Spill(0, MemoryStore()))
    member = feed.add(plan_of(over({"visit": inner}, statement("V E", "NEXT", "V AS PATTERN visit, E AS s = 'e'"))), 0)
    assert [stats.why for stats in member.spills] == [
        "without PARTITION BY every event touches the only partition",
        "pattern visit: without PARTITION BY every event touches the only partition",
    ]


def test_too_many_partial_matches_name_the_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: only the text of PATTERN told which layer it was.
    monkeypatch.setattr(choose, "RUNS_MAX", 10)
    many = statement("X M+ Y", "ANY", "X AS s = 'x', M AS i > X.i, Y AS s = 'y'")
    pair = statement("C D", "ANY", "C AS PATTERN crowd, D AS s = 'e'", 9)
    text = over({"crowd": many, "pair": pair}, statement("P Q", "ANY", "P AS PATTERN pair, Q AS s = 'e'", 9))
    feed = Feed(EVENTS)
    member = feed.add(plan_of(text), 0)
    feed.push(batch_of(tuple(Event("x", f"x{i}", 0) for i in range(1_000))), None)
    assert isinstance(member.failure, QueryError)
    where = "in pattern pair: in pattern crowd: PATTERN (X M+ Y): one partition needs more than 10 "
    assert where in str(member.failure)
