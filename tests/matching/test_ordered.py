"""Trends whose neighbours are compared, counted by trees of values: matching/engines/run_ordered.py and
matching/kernels/ordered.py. tests/properties/test_ordered.py compares them with lists of events and the reference."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from matching.engines.run_ordered import RunOrdered
from matching.engines.run_trends import RunTrends
from matching.matcher import KernelMatcher, make_matcher
from matching.program.trends import TrendTable
from query.errors import DataError
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import constant
from tests.trends import EVENTS, Row, plan_of, read_rows, row, rows_of, statement

RISING = "A: count(A.*) = 1 OR v > LAST(A.v, 1)"


@contextmanager
def by_lists() -> Iterator[None]:
    """Within, each event looks at those before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrendTable, "ordered", property(lambda self: False))
        yield


def engine_of(plan: Plan) -> str:
    matcher = make_matcher(plan)
    assert isinstance(matcher, KernelMatcher)
    return matcher.engine.tag


def found(plan: Plan, events: list[Row], size: int = 1000) -> list[tuple[Any, ...]]:
    matcher = make_matcher(plan)
    whole = batch_of(EVENTS, events)
    parts = [whole.slice(i, min(len(events), i + size)) for i in range(0, len(events), size)]
    return rows_of(plan, [*map(matcher.push, parts), matcher.advance(None)])


def both(plan: Plan, events: list[Row], size: int = 1000) -> list[tuple[Any, ...]]:
    """Returns the rows by trees, which are those by lists."""
    assert engine_of(plan) == RunOrdered.tag
    with by_lists():
        assert engine_of(plan) == RunTrends.tag
        wanted = found(plan, events, size)
    assert found(plan, events, size) == wanted
    return wanted


@pytest.mark.parametrize("condition", [
    RISING, "B: v > LAST(A.v)", "B: LAST(A.d) <= d", "B: g = LAST(A.g)", "B: g <> LAST(A.g)", "B: ts > LAST(A.ts)",
    "B: v + 1 > LAST(A.v) * 2", "A: count(A.*) = 1 OR m < LAST(m, 1); B: h = LAST(A.h)", "B: v > LAST(A.v) AND d > 1",
])  # fmt: skip
def test_one_comparison_is_found_by_its_value(condition: str) -> None:
    assert engine_of(plan_of(statement("A+ B", 10, 5, conditions=condition))) == RunOrdered.tag


@pytest.mark.parametrize("more", [
    {"conditions": "B: v > LAST(A.v) AND d > LAST(A.d)"}, {"conditions": "B: v > LAST(A.v) OR d > LAST(A.d)"},
    {"conditions": "B: v - LAST(A.v) > 1"}, {"conditions": "B: LAST(A.v) > LAST(A.h)"},
    {"conditions": RISING, "selection": "SELECTION SKIP TILL NEXT MATCH"},
    {"conditions": RISING, "selection": "SELECTION PARTITION"}, {},
])  # fmt: skip
def test_anything_else_is_not(more: dict[str, str]) -> None:
    assert engine_of(plan_of(statement("A+ B", 10, 5, **more))) == RunTrends.tag


def test_a_negated_event_takes_trends_away() -> None:
    assert engine_of(plan_of(statement("A+ (NOT C) B", 10, 5, conditions=RISING))) == RunTrends.tag
    assert engine_of(plan_of(statement("A+ B (NOT C)", 10, 5, conditions=RISING))) == RunTrends.tag


def test_the_names_of_a_state_are_pinned() -> None:
    """A state with another name would make queries go through their events again: see tests/matching/test_state.py."""
    matcher = make_matcher(plan_of(statement("A+ B", 10, 5, partition="g", conditions="B: v > LAST(A.v)")))
    matcher.push(batch_of(EVENTS, read_rows("A@1{2} A@2{3} B@3")))
    assert isinstance(matcher, KernelMatcher)
    assert matcher.engine.tag == "ordered trends"
    assert set(matcher.engine.snapshot()) == {
        "nodes", "cells", "of", "first", "entries", "sums", "out", "counters", "roots", "below",
    }  # fmt: skip


def test_a_state_of_lists_is_another_one() -> None:
    plan = plan_of(statement("A+ B", 10, 5, conditions=RISING))
    with by_lists():
        before = make_matcher(plan)
    after = make_matcher(plan)
    assert isinstance(before, KernelMatcher)
    assert isinstance(after, KernelMatcher)
    assert after.fits(after.snapshot())
    assert not after.fits(before.snapshot())


@pytest.mark.slow
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
@pytest.mark.parametrize("size", [17, 1000])
@pytest.mark.parametrize("turned", [False, True])
def test_each_comparison_counts_what_an_obvious_program_does(
    compare: Callable[[Any, Any], bool], size: int, turned: bool
) -> None:
    sign = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=", "ne": "<>"}[compare.__name__]
    rng = np.random.default_rng(11)
    values = [None if rng.random() < 0.1 else int(v) for v in rng.integers(-20, 20, 300)]
    plan = plan_of(statement(
        "A+", 10, 10, measures="COUNT(MATCHES) AS n, COUNT(A.*) AS c, SUM(A.v) AS s",
        conditions=f"A: count(A.*) = 1 OR {f'LAST(A.v, 1) {sign} v' if turned else f'v {sign} LAST(A.v, 1)'}",
    ))  # fmt: skip
    ends: list[tuple[int | None, int, int, int]] = []  # of trends by their last event: its value, count, events, sum
    for v in values:
        n, c, s = 1, 1, v or 0
        for before, n_before, c_before, s_before in ends:
            if v is not None and before is not None and (compare(before, v) if turned else compare(v, before)):
                n, c, s = n + n_before, c + c_before + n_before, s + s_before + n_before * v
        ends.append((v, n, c, s))
    wanted = [tuple(sum(of[i] for of in ends) for i in (1, 2, 3))]
    assert [r[2:] for r in both(plan, [row("A", i / 100, v) for i, v in enumerate(values)], size)] == wanted


@pytest.mark.slow
def test_numbers_are_exact_at_any_size() -> None:
    """Rising and equal values up to both ends of a BIGINT, and sums of both signs, in windows that overlap."""
    rng = np.random.default_rng(2)
    ends = (-(2**63), 2**63 - 1, 7, -1, 2**62)
    events = [row("AAAB"[i % 4], i / 40, ends[rng.integers(5)], "xy"[i // 4 % 2], d=float(i % 7)) for i in range(1200)]
    measures = "COUNT(MATCHES) AS n, COUNT(A.*) AS c, SUM(A.v) AS s, AVG(v) AS a, MIN(v) AS lo, MAX(A.d) AS hi"
    conditions = "A: count(A.*) = 1 OR v >= LAST(A.v, 1); B: d <> LAST(A.d)"
    text = statement("A+ B", 20, 5, partition="g", group="g", measures=measures, conditions=conditions)
    rows = both(plan_of(text), events, 100)
    assert max(r[3] for r in rows) > 2**90
    assert min(r[5] for r in rows) < -(2**100)


def test_more_limbs_than_there_may_be() -> None:
    text = statement("A+", 10, 10, conditions="A: count(A.*) = 1 OR h = LAST(A.h, 1)")
    with constant("matching.engines.run_trends.LIMBS_MAX", 2), pytest.raises(DataError, match="more than 128 bits"):
        found(plan_of(text), [row("A", i / 1000, h=1) for i in range(200)])


@pytest.mark.parametrize("pattern", ["A+ B", "(A B)+", "A (A | B)+", "(A+ B)+ A"])
def test_an_event_of_two_variables_does_not_follow_itself(pattern: str) -> None:
    text = statement(pattern, 10, 5).replace("type = 'A'", "v > 0").replace(
        "type = 'B'", "v < 9 AND v >= LAST(v, 1)"
    )  # fmt: skip
    rng = np.random.default_rng(3)
    events = [row("A", i / 8, int(rng.integers(0, 12))) for i in range(200)]
    assert both(plan_of(text), events, 23)


@pytest.mark.slow
def test_a_state_is_restored_in_the_middle_of_a_window() -> None:
    plan = plan_of(statement("A+ B", 10, 5, partition="g", group="g", conditions=RISING))
    rng = np.random.default_rng(4)
    events = [row("AB"[i % 5 == 4], i / 50, int(rng.integers(40)), "xyz"[i % 3]) for i in range(600)]
    matcher, out = make_matcher(plan), []
    for begin in range(0, 600, 50):
        out.append(matcher.push(batch_of(EVENTS, events[begin : begin + 50], begin)))
        new = make_matcher(plan)
        new.restore(matcher.snapshot())
        matcher = new
    assert rows_of(plan, [*out, matcher.advance(None)]) == both(plan, events)


@pytest.mark.slow
def test_closed_windows_leave_no_memory() -> None:
    matcher = make_matcher(plan_of(statement("A+", 4, 2, partition="g", conditions=RISING)))
    assert isinstance(matcher, KernelMatcher)
    for k in range(200):
        matcher.push(batch_of(EVENTS, [row("A", 10 * k + i / 10, i % 7, str(k)) for i in range(20)], 20 * k))
        assert len(matcher.advance((10 * k + 9) * 1_000_000)) == 2
    assert len(matcher.engine.snapshot()["entries"]) < 50  # 7 values in each of 3 windows, and some that are free


def test_both_sides_of_and_have_trees_where_they_compare() -> None:
    text = "FROM events TYPE BY type PATTERN SEQ(A+ a, B b) AND C+ c WHERE b.v > a.v WITHIN 9 SECONDS RETURN {}"
    plan = plan_of(text.format("COUNT(*), SUM(b.v)"))
    rng = np.random.default_rng(6)
    events = [row("ABC"[rng.integers(3)], i / 4, int(rng.integers(9))) for i in range(60)]
    with by_lists():
        wanted = found(plan, events)
    assert found(plan, events, 7) == wanted != []


def test_explain_says_ordered() -> None:
    matcher = make_matcher(plan_of(statement("A+", 10, 5, conditions=RISING)))
    assert isinstance(matcher, KernelMatcher)
    shown = str(matcher.chosen)
    assert "engine      counts of trends by state, window and ordered value" in shown
    assert "trees find them" in shown


@pytest.mark.slow
def test_a_long_window_costs_little_more_an_event() -> None:
    """Before: each event looked at all of its window, so 8,000 of them took 64 times as long as 1,000."""
    plan = plan_of(statement("A+", 100, 100, conditions=RISING, measures="COUNT(MATCHES) AS n, SUM(A.v) AS s"))
    rng = np.random.default_rng(3)
    events = [row("A", i / 100, int(rng.integers(1 << 20))) for i in range(8000)]

    def seconds(count: int) -> float:
        matcher, batch = make_matcher(plan), batch_of(EVENTS, events[:count])
        began = time.process_time()
        matcher.push(batch)
        return time.process_time() - began

    seconds(10)  # compiles
    few, many = min(seconds(1000) for _ in range(3)), min(seconds(8000) for _ in range(2))
    assert many < 30 * max(few, 0.002)
    with by_lists():
        seconds(10)
        assert many < seconds(8000) / 5
