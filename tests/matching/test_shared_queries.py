"""All modes of sharing give the rows that each query has on its own, while plans and queries change."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.matcher import make_matcher
from matching.program.program import NoKernel
from matching.shared_queries import SharedQueries, groups_of
from matching.workload import cost
from matching.workload.modes import flat_kleene
from matching.workload.sharing_mode import SharingMode, Splitting
from matching.workload.template import template
from query.plan.plan import Plan
from tests.events import batch_of
from tests.matching.test_workload_matcher import COLUMNS, alone, streams, workloads
from tests.properties.comparing import fewer
from tests.trends import EVENTS, Row, expected, plan_of, row, rows_of, statement

pytestmark = pytest.mark.slow  # its kernels take half a minute to compile


@pytest.fixture
def eager() -> Iterator[None]:
    """Plans are chosen as soon as events are measured, by the units of the equations: they share and change more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "WEIGHTS", cost.ADDITIONS)
        patch.setattr("matching.shared_queries.BETWEEN_SEARCHES", 0)
        yield


def rows(queries: SharedQueries, events: list[Row], size: int, restored: bool = False) -> dict[str, list[Any]]:
    """Returns the rows of each query. restored: goes on from a snapshot in the middle."""
    found: dict[str, list[Matches]] = {name: [] for name in queries.queries}
    for begin in range(0, len(events), size):
        for name, matches in queries.push(batch_of(EVENTS, events[begin : begin + size], begin)).items():
            found[name].append(matches)
        if restored and begin <= len(events) / 2 < begin + size:
            new = SharedQueries(queries.queries, queries.mode)
            new.restore(queries.snapshot())
            queries = new
    for name, matches in queries.advance(None).items():
        found[name].append(matches)
    return {name: rows_of(plan, found[name]) for name, plan in queries.queries.items()}


@fewer(2)
@given(st.data())
def test_all_modes_give_the_rows_of_the_reference(data: st.DataObject) -> None:
    plans, events = data.draw(workloads()), data.draw(streams())
    mode, size = data.draw(st.sampled_from(SharingMode)), data.draw(st.integers(1, 20))
    restored = data.draw(st.booleans())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matching.shared_queries.MEASURED_EVENTS", 5)
        patch.setattr("matching.shared_queries.BETWEEN_SEARCHES", 0)
        if data.draw(st.booleans()):
            patch.setattr(cost, "WEIGHTS", cost.ADDITIONS)
        found = rows(SharedQueries(plans, mode), events, size, restored)
    assert found == {name: expected(plan, events) for name, plan in plans.items()}


def workload(count: int) -> dict[str, Plan]:
    """Queries with starts of their own, a common loop and a common end."""
    plans = {}
    for i in range(count):
        text = statement("A (B C)+ D", 40, 40, measures=COLUMNS[0], conditions=f"A: v = {i}")
        plans[f"q{i}"] = plan_of(text)
    return plans


def phases(rates: tuple[float, ...], each: int, queries: int) -> list[Row]:
    """Events of which so many parts are starts, phase by phase."""
    random = np.random.default_rng(4)
    events = []
    for rate in rates:
        for _ in range(each):
            kind = "A" if random.random() < rate else random.choice(list("BBCCD"))
            events.append(row(str(kind), len(events) / 10, int(random.integers(queries))))
    return events


@pytest.mark.usefixtures("eager")
def test_large_streams_are_equal_in_all_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matching.shared_queries.MEASURED_EVENTS", 400)
    plans, events = workload(12), phases((0.02, 0.5, 0.02), 800, 12)
    want = {name: alone(plan, events) for name, plan in plans.items()}
    assert max(int(found[0][2]) for found in want.values() if found) > 2**64
    shared = {}
    for mode in SharingMode:
        queries = SharedQueries(plans, mode)
        assert rows(queries, events, 200) == want
        shared[mode] = [len(s.queries) for s in queries.plan.sets]
    assert max(shared[SharingMode.NONE]) == max(shared[SharingMode.HAMLET]) == 1
    assert max(shared[SharingMode.STATIC]) == 12


@pytest.mark.usefixtures("eager")
def test_queries_come_and_go_in_all_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matching.shared_queries.MEASURED_EVENTS", 100)
    everything, events = workload(6), phases((0.1, 0.1), 500, 6)
    first = {name: everything[name] for name in ("q0", "q1", "q2", "q3")}
    second = {name: everything[name] for name in ("q3", "q1", "q5")}
    for mode in SharingMode:
        queries = SharedQueries(first, mode)
        found: dict[str, list[Matches]] = {name: [] for name in everything}
        for begin in range(0, 1000, 50):
            if begin == 500:
                queries.change(second)
            for name, matches in queries.push(batch_of(EVENTS, events[begin : begin + 50], begin)).items():
                found[name].append(matches)
        for name, matches in queries.advance(None).items():
            found[name].append(matches)
        for name in ("q1", "q3"):
            assert rows_of(everything[name], found[name]) == alone(everything[name], events), mode
        assert rows_of(everything["q5"], found["q5"]) == alone(everything["q5"], events[500:]), mode


@pytest.mark.parametrize(("length", "shared"), [(60, True), (2, False)])
def test_bursts_of_one_type_are_shared(length: int, shared: bool) -> None:
    """[HAMLET]: queries that repeat one type share its node; a burst that is long enough is counted once."""
    starts = [f"A: v = {i}" for i in range(6)]
    plans = {c: plan_of(statement("A B+ D", 1000, 1000, measures=COLUMNS[0], conditions=c)) for c in starts}
    plan = flat_kleene(template(plans))
    assert sorted(len(s.queries) for s in plan.sets) == [1] * 6 + [6]
    assert SharingMode.HAMLET.splitting is Splitting.BY_BURSTS
    events: list[Row] = []
    for _ in range(4):
        for kind in ["A", "A", *["B"] * length, "D"]:
            events.append(row(kind, len(events) / 10, len(events) % 6))
    queries = SharedQueries(plans, SharingMode.HAMLET)
    assert rows(queries, events, 1000) == {name: alone(p, events) for name, p in plans.items()}
    assert (queries.snapshots > 0) == shared


def test_too_many_conditions_are_refused_and_grouped() -> None:
    plans = {f"q{i}": plan_of(statement("A B", 4, 4, conditions=f"A: v = {i}; B: v = -{i}")) for i in range(40)}
    with pytest.raises(NoKernel, match="more than 62"):
        SharedQueries(plans)
    few = {"q0": plans["q0"]}
    queries = SharedQueries(few)
    with pytest.raises(NoKernel, match="more than 62"):  # Before: it had the names of the new queries.
        queries.change(plans)
    assert queries.queries == few
    assert rows(queries, [row("A", 1, 0), row("B", 2, 0)], 10) == {
        "q0": alone(plans["q0"], [row("A", 1, 0), row("B", 2, 0)])
    }
    groups = groups_of(plans)
    assert [len(g) for g in groups] == [31, 9]
    assert [name for g in groups for name in g] == list(plans)
    assert all(make_matcher(plan) for plan in plans.values())
