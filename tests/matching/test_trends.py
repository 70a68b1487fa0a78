"""Aggregates over all trends of windows: matching/engines/run_trends.py, matching/trend_rows.py, their kernels and
their program. tests/properties/test_trends.py compares them with the reference."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.engines.choose import choose_engine
from matching.engines.run_trends import LIMBS_MAX, in_order, out_of_order
from matching.kernels import trends as kernels
from matching.matcher import KernelMatcher, make_matcher
from matching.program.trends import trend_program
from matching.purpose import Purpose
from matching.rows import Rows
from matching.trend_numbers import exactly_added, few_doubles, limbs_of, nearest, sums_of_doubles, whole_numbers
from matching.trend_rows import grouped
from matching.window_parts import put_together
from query.automaton.trends import trend_automaton
from query.errors import DataError, QueryError
from query.plan.plan import Plan
from tests.events import batch_of
from tests.trends import ALL_MEASURES, EVENTS, Row, expected, plan_of, read_rows, row, rows, rows_of, statement

#: pattern, events, WITHIN and SLIDE, keys; and of each row: start, (group,) trends, COUNT(A), SUM, MIN and MAX of A.v.
WORKED = [
    ("A+ B", "A@1{2} A@2{3} B@3 A@4{5} B@5", (10, 10), "", [(0, 10, 16, 50, 2, 5)]),
    ("(A B)+", "A@1{2} B@2 A@3{3} B@4", (10, 10), "", [(0, 4, 5, 12, 2, 3)]),
    ("((A)+)+", "A@1{1} A@2{2} A@3{4}", (10, 10), "", [(0, 7, 12, 28, 1, 4)]),
    ("A NOT C B", "A@1 C@2 A@3 B@4 B@5", (10, 10), "", [(0, 2, 2, None, None, None)]),
    ("A B NOT C", "A@1 B@2 C@3 B@4 A@5 B@6", (10, 10), "", [(0, 3, 3, None, None, None)]),
    ("NOT C A B", "A@1{1} C@2 A@3{2} B@4", (10, 10), "", [(0, 1, 1, 1, 1, 1)]),
    ("(A NOT C B)+", "A@1{1} C@2 B@3 A@4{2} B@5 C@6", (10, 10), "", [(0, 1, 1, 2, 2, 2)]),
    ("(A | C) B", "A@1{1} C@2 B@3", (10, 10), "", [(0, 2, 1, 1, 1, 1)]),
    ("A B", "A@1{1} B@3 A@4{7} B@6", (4, 2), "", [(0, 1, 1, 1, 1, 1), (4, 1, 1, 7, 7, 7)]),
    ("A B", "A@1{1,g=x} A@2{2,g=y} B@3{g=x} B@4{g=y}", (10, 10), "g",
     [(0, "x", 1, 1, 1, 1, 1), (0, "y", 1, 1, 2, 2, 2)]),
]  # fmt: skip


def found(plan: Plan, events: list[Row], size: int = 1000) -> list[tuple[object, ...]]:
    matcher = make_matcher(plan)
    whole = batch_of(EVENTS, events)
    parts = [whole.slice(i, min(len(events), i + size)) for i in range(0, len(events), size)]
    return rows_of(plan, [*map(matcher.push, parts), matcher.advance(None)])


def plan_of_matches(pattern: str, condition: str) -> Plan:
    return plan_of(
        f"SELECT * FROM events MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS v PATTERN ({pattern}) "
        f"DEFINE B AS {condition}) AS m"
    )


@pytest.mark.parametrize(("pattern", "events", "windows", "key", "wanted"), WORKED, ids=[w[0] for w in WORKED])
def test_the_worked_examples(
    pattern: str, events: str, windows: tuple[int, int], key: str, wanted: list[tuple[object, ...]]
) -> None:
    plan = plan_of(statement(pattern, *windows, partition=key, group=key))
    rows = [(start * 1_000_000, (start + windows[0]) * 1_000_000, *rest) for start, *rest in wanted]
    assert expected(plan, read_rows(events)) == rows
    assert found(plan, read_rows(events)) == rows


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_numbers_are_exact_at_any_size(size: int) -> None:
    """600 A and then a B: every set of A but the empty one; with values up to both ends of a BIGINT."""
    values = [(-(2**63), 2**63 - 1, 7)[i % 3] for i in range(600)]
    events = [row("A", i / 1000, v, m=Decimal("0.01")) for i, v in enumerate(values)] + [row("B", 1)]
    measures = "COUNT(MATCHES) AS n, COUNT(A.*) AS c, SUM(A.v) AS s, AVG(A.v) AS a, SUM(A.m) AS m"
    plan = plan_of(statement("A+ B", 10, 10, measures=measures))
    ((_, _, n, c, s, a, m),) = found(plan, events, size)
    half = 2**599
    assert (n, c, s) == (2**600 - 1, 600 * half, sum(values) * half)
    assert a == sum(values) / 600
    assert m == 6 * half


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("pattern", ["A+ B", "(A B)+", "A (B C)+ D", "(A | B)+ C", "A (B+ | C) D?"])
@pytest.mark.parametrize(("conditions", "within"), [("", 10), ("", 7), ("B: v < 3; D: v <> 1", 10)])
@pytest.mark.parametrize(
    "more", ["", ", SUM(d) AS sd, AVG(A.d) AS ad", ", MIN(A.d) AS ld, MAX(v) AS hv, MIN(B.v) AS lb, SUM(B.d) AS sb"]
)
def test_one_window_at_a_time_gives_what_many_do(
    pattern: str, conditions: str, within: int, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """matching.kernels.trend_steps and matching.kernels.trends: the same rows and the same state, also where one goes
    on after the other, at a row with several labels, and in what numbers of one limb and of several have left."""
    rng = np.random.default_rng(3)
    values, doubles = [None, 1, 2, -5, 2**40, -(2**62)], [None, 0.0, 0.1, -0.7, 1e100]
    seconds = np.cumsum(np.where(np.arange(1200) % 400 < 300, 0.05, 0.6))
    events = [
        row("ABCD"[rng.integers(4)], second, values[rng.integers(2 + i // 300)], h=int(rng.integers(3)),
            d=doubles[rng.integers(5)])
        for i, second in enumerate(seconds)
    ]  # fmt: skip
    measures = f"COUNT(MATCHES) AS n, COUNT(A.*) AS ca, SUM(A.v) AS sa, SUM(v) AS s, COUNT(B.v) AS cb{more}"
    text = statement(pattern, within, 10, partition="h", group="h", measures=measures, conditions=conditions)
    if conditions:
        text = text.replace("A AS type = 'A'", "A AS type IN ('A', 'B')")
    plan = plan_of(text)
    by_steps, states = found(plan, events, 100), []
    for steps in (True, False):
        if not steps:
            monkeypatch.setattr("matching.engines.run_trends.has_steps", lambda *of: False)
        matcher = make_matcher(plan)
        matcher.push(batch_of(EVENTS, events[:650]))
        states.append(matcher.snapshot())
    assert found(plan, events, 100) == by_steps
    assert len(by_steps) > 10
    monkeypatch.undo()
    halves = []
    for state in states:
        matcher = make_matcher(plan)
        matcher.restore(state)
        halves.append(rows_of(plan, [matcher.push(batch_of(EVENTS, events[650:])), matcher.advance(None)]))
    assert halves[0] == halves[1]
    assert halves[0]


def test_more_limbs_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matching.engines.run_trends.LIMBS_MAX", 2)
    plan = plan_of(statement("A+", 10, 10))
    with pytest.raises(DataError, match=r"a count of trends has more than 128 bits(.|\n)*shorten WITHIN"):
        found(plan, [row("A", i / 1000) for i in range(200)])
    assert LIMBS_MAX > 2


@pytest.mark.slow
def test_a_state_that_grew_is_restored_in_the_middle() -> None:
    plan = plan_of(statement("A+ B", 10, 5, partition="g", group="g"))
    events = [row("AB"[i % 5 == 4], i / 50, i, "xyz"[i % 3]) for i in range(400)]
    matcher, out = make_matcher(plan), []
    for begin in range(0, 400, 50):
        out.append(matcher.push(batch_of(EVENTS, events[begin : begin + 50], begin)))
        new = make_matcher(plan)
        new.restore(matcher.snapshot())
        matcher = new
    assert rows_of(plan, [*out, matcher.advance(None)]) == found(plan, events)


def test_the_names_of_a_state_are_pinned() -> None:
    """A state with another name would make queries go through their events again: see tests/matching/test_state.py."""
    plan = plan_of(statement("A+ B", 10, 5, partition="g", conditions="B: v > LAST(A.v) + 1 AND h > LAST(A.h)"))
    matcher = make_matcher(plan)
    matcher.push(batch_of(EVENTS, read_rows("A@1{2} A@2{3} B@3")))
    assert isinstance(matcher, KernelMatcher)
    assert matcher.engine.tag == "trends"
    assert set(matcher.engine.snapshot()) == {"nodes", "cells", "of", "first", "entries", "sums", "out", "counters"}


@pytest.mark.slow
def test_a_watermark_closes_windows_and_a_closed_window_leaves_no_memory() -> None:
    plan = plan_of(statement("A+", 4, 2, partition="g"))
    matcher = make_matcher(plan)
    assert isinstance(matcher, KernelMatcher)
    for k in range(200):
        matcher.push(batch_of(EVENTS, [row("A", 10 * k, 1, str(k))], k))
        assert len(matcher.advance((10 * k + 9) * 1_000_000)) == 2
        assert not matcher.engine.busy(np.arange(min(k, 1))).any()
    assert matcher.engine.snapshot()["nodes"].shape[0] < 10


def test_rows_of_trends_are_shown_and_not_stored() -> None:
    """A column that the query reads is that of the batch until its rows are taken, and nothing is written to it later,
    when another query keeps rows of the same input."""
    shared: list[Rows] = []
    trends = plan_of(statement("A+ B", 10, 10, measures="SUM(v) AS s", conditions="B: v > 1"))
    matcher = make_matcher(trends, shared=shared)
    store = shared[0].store
    batch = batch_of(EVENTS, [row("C", i, 1) for i in range(9)] + [row("A", 9, 2), row("B", 9, 3)])
    given = batch.columns.column("v").to_numpy()
    shared[0].append(batch)
    assert isinstance(matcher, KernelMatcher)
    assert np.shares_memory(store.values["v"], given)
    wanted = matcher.wants(batch.sources)
    assert wanted is not None
    assert len(wanted) < len(batch)
    matcher.take(shared[0].retain([wanted]))
    assert not np.shares_memory(store.values["v"], given)
    shared[0].taken()
    assert store.count == 0
    assert rows_of(trends, [matcher.advance(None)]) == [(0, 10_000_000, 5)]

    other = make_matcher(plan_of_matches("A B", "v > 1"), shared=shared)
    assert isinstance(other, KernelMatcher)
    assert len(shared) == 1
    later = batch_of(EVENTS, [row("A", 20, 5), row("B", 21, 6)], 11)
    shared[0].append(later)
    assert store.count == 2
    assert not np.shares_memory(store.values["v"], later.columns.column("v").to_numpy())
    assert store.values["v"][:2].tolist() == [5, 6]


def test_idle_keys_are_forgotten_while_no_row_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matching.rows.KEYS_MIN", 8)
    monkeypatch.setattr("matching.rows.SLACK", 40)
    matcher = make_matcher(plan_of(statement("A+ B", 10, 10, partition="v", group="v", measures="COUNT(MATCHES) AS n")))
    assert isinstance(matcher, KernelMatcher)
    matcher.rows.compact_at, matcher.rows.forget_at = 40, 8
    for i in range(100):
        matcher.push(batch_of(EVENTS, [row("A", 10 * i, i), row("B", 10 * i + 1, i)], 2 * i))
    assert len(matcher.keys) < 60


def test_policy_of_strategies() -> None:
    """Under PARTITION any other event of the key ends a trend, under NEXT one that could be taken is."""
    events = read_rows("A@1 C@2 A@3 B@4 B@5")
    trends = {
        selection: found(plan_of(statement("A B", 10, 10, selection=selection)), events)[0][2]
        for selection in ("SELECTION PARTITION", "SELECTION SKIP TILL NEXT MATCH", "SELECTION SKIP TILL ANY MATCH")
    }
    assert list(trends.values()) == [1, 2, 4]


def test_what_has_no_engine_is_enumerated() -> None:
    for more in ({"conditions": "B: sign(v - LAST(A.v)) = 1"}, {"measures": "MAX(A.g) AS g"}):
        plan = plan_of(statement("A B", 10, 10, **more))
        with pytest.warns(match="runs through the reference matcher"):
            make_matcher(plan)


def test_the_explained_engine() -> None:
    plan = plan_of(statement("A NOT C B+", 10, 10, measures="COUNT(MATCHES) AS n, SUM(B.v) AS s, MIN(B.d) AS l"))
    _, table = trend_program(plan)
    assert str(table) == (
        "windows     10 seconds every 10 seconds\n"
        "states      0 start: A -> 1\n"
        "            1: B -> 2, trend 0; not C -> none\n"
        "            2: B -> 2, trend 0\n"
        "adds        whole 1 for each v of B\n"
        "            whole v of B\n"
        "            least smallest d of B"
    )


@pytest.mark.slow
def test_an_automaton_that_is_too_large() -> None:
    plan = plan_of(statement("(A{40} B{40}){2}", 10, 10))
    assert len(trend_automaton(plan.pattern).states) == 160
    for pattern in ("(A{50}){50}", "(A | B)* A (A | B){12}"):
        with pytest.raises(QueryError, match="HQ600"):
            trend_automaton(plan_of(statement(pattern, 10, 10)).pattern)


def test_numbers_of_several_rows_are_added() -> None:
    numbers = [5, -7, 2**200, -(2**190), 2**62]
    limbs = np.array([[[(n >> (64 * i)) & (2**64 - 1) for i in range(4)]] for n in numbers], np.uint64).view(np.int64)
    assert whole_numbers(limbs, np.array([0, 0, 1, 1, 1]), 2).tolist() == [[-2], [2**200 - 2**190 + 2**62]]
    small = np.array([[[3]], [[-4]]], np.int64)
    assert whole_numbers(small, np.array([0, 0]), 1).tolist() == [[-1]]


@pytest.mark.slow
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_sums_of_doubles_are_exact_in_any_order(values: list[float]) -> None:
    """The double next to the exact sum, also from a few doubles that stand for many."""
    exact = sum(map(Fraction, values), Fraction())
    wanted = nearest(exact)
    assert exactly_added(values) == exactly_added(values[::-1]) == wanted
    few = few_doubles(values)
    assert sum(map(Fraction, few), Fraction()) == exact
    assert len(few) <= len(values)
    group = np.zeros(len(values), np.int64)
    assert sums_of_doubles(np.array(values), group, 2).tolist() == [wanted, 0.0]


def test_sums_of_doubles_that_are_not_finite() -> None:
    inf, nan = math.inf, math.nan
    for values, wanted in (([1.0, inf, 2.0], inf), ([-inf, 1.0, -inf], -inf), ([1e308, 1e308, 1e308], inf)):
        assert exactly_added(values) == exactly_added(few_doubles(values)) == wanted
    for values in ([inf, -inf, 1.0], [nan, 1.0, 2.0], [inf, nan, -inf]):
        assert math.isnan(exactly_added(values))
        assert math.isnan(exactly_added(few_doubles(values)))
    assert exactly_added([1e308, 1e308, -1e308]) == exactly_added(few_doubles([1e308, 1e308, -1e308])) == 1e308


@pytest.mark.slow
@settings(max_examples=30)
@given(events=rows(10), group=st.sampled_from(("", "g", "h", "g, h")), cut=st.integers(0, 3))
def test_parts_of_some_partitions_each_are_the_rows_of_all(events: list[Row], group: str, cut: int) -> None:
    """To the last digit of a sum of doubles."""
    text = statement("A+ B", 10, 5, partition="g, h", group=group, measures=ALL_MEASURES)
    plan = plan_of(text)
    chosen = choose_engine(plan, Purpose.PARTS)
    assert chosen.trends is not None
    parts, keys = [], list(dict.fromkeys((r["g"], r["h"]) for r in events))
    for some in (keys[:cut], keys[cut:]):
        mine = [r for r in events if (r["g"], r["h"]) in some]
        matcher = make_matcher(plan, purpose=Purpose.PARTS)
        half = len(mine) // 2
        for batch in (mine[:half], mine[half:]):
            if batch:
                parts.append(matcher.push(batch_of(EVENTS, batch)).rows)
        parts.append(matcher.advance(None).rows)
    whole = make_matcher(plan, purpose=Purpose.ROWS)
    wanted = [whole.push(batch_of(EVENTS, events)).rows, whole.advance(None).rows]
    assert put_together(plan, chosen.trends, parts).equals(pa.concat_tables(wanted))


def test_rows_by_window_then_group_nulls_first() -> None:
    first, number = grouped(np.array([2, 1, 1, 1]), [pa.array(["b", "b", None, "b"]), pa.array([1, 2, 3, 2])])
    assert first.tolist() == [2, 1, 0]
    assert number.tolist() == [2, 1, 0, 1]


def test_doubles_as_whole_numbers_in_their_order() -> None:
    values = np.array([-np.inf, -1.5, 0.0, 5e-324, 2.5, np.inf, np.nan])
    ordered = in_order(values)
    assert (np.diff(ordered) > 0).all()
    assert np.array_equal(out_of_order(ordered), values, equal_nan=True)
    assert in_order(np.array([-0.0]))[0] == in_order(np.array([0.0]))[0]


def test_neighbours_that_differ_in_the_sign_of_zero_are_equal() -> None:
    """Before: -0.0 was smaller than 0.0."""
    events = [row("A", i, d=d) for i, d in enumerate((-0.0, 0.0, -0.0))]
    plan = plan_of(statement("A A", 10, 10, conditions="A: count(A.*) = 1 OR d = LAST(A.d, 1)"))
    assert found(plan, events)[0][2] == expected(plan, events)[0][2] == 3


def test_unsigned_neighbours_and_labels_of_neighbours() -> None:
    """Before: an internal error each."""
    plan = plan_of(statement("A+", 10, 10, conditions="A: count(A.*) = 1 OR v::UBIGINT > LAST(A.v::UBIGINT, 1)"))
    with pytest.warns(match="runs through the reference matcher"):
        make_matcher(plan)
    with pytest.raises(QueryError, match="HQ221"):
        plan_of(statement("A+", 10, 10, conditions="A: LAST(CLASSIFIER(), 1) = 'A'"))


def test_more_values_between_neighbours_than_bits() -> None:
    """Before: the 65th value was null or not as the first one is."""
    some = " AND ".join(f"v + {i} >= LAST(A.v + {i}, 1)" for i in range(70))
    plan = plan_of(statement("A+", 10, 10, conditions=f"A: count(A.*) = 1 OR ({some})"))
    with pytest.warns(match="more than 62 values"):
        make_matcher(plan)


def test_a_condition_on_single_rows_is_tested_once() -> None:
    plan = plan_of(statement("A B", 10, 10, conditions="B: v > 3 AND v > LAST(A.v)"))
    _, table = trend_program(plan)
    ((_, _, pair),) = table.pairs
    assert [c.function for one in pair for c in one] == [">"]


def test_sums_of_decimals_by_enumeration_are_exact() -> None:
    """Before: they were rounded to 28 digits."""
    events = [row("A", i, v=2**62, m=Decimal("12345678.91")) for i in range(3)]
    measures = "SUM(A.v::DECIMAL(38, 10)) AS s, SUM(A.m) AS m, MAX(A.g) AS g"
    plan = plan_of(statement("A+", 10, 10, measures=measures))
    with pytest.warns(match="reference"):
        ((_, _, s, m, _),) = found(plan, events)
    assert (s, m) == (12 * 2**62, 12 * Decimal("12345678.91"))


def test_kernel_constants_are_those_of_the_enumerations() -> None:
    assert tuple(kernels.PassedOver) == (kernels.ANY, kernels.NEXT, kernels.ENDS)


@pytest.mark.parametrize(
    ("condition", "n"),
    [
        ("abs(v - LAST(A.v)) < 3", 3), ("v > 1.05 * LAST(A.v) + 1", 1), ("v IN (LAST(A.v), 9)", 1),
        ("NOT (v > LAST(A.v))", 2), ("v BETWEEN LAST(A.v) AND LAST(A.v) + 3", 3),
        ("CASE WHEN LAST(A.v) = 4 THEN v = 4 ELSE v > 4 END", 2), ("ts - LAST(A.ts) <= INTERVAL '2' SECOND", 3),
    ],
)  # fmt: skip
def test_conditions_that_compute_with_both_neighbours(condition: str, n: int) -> None:
    """Before: they were enumerated."""
    events = read_rows("A@1{4} A@2{6} B@3{4} B@4{7}")
    plan = plan_of(statement("A B", 10, 10, conditions=f"B: {condition}", measures="COUNT(MATCHES) AS n"))
    assert found(plan, events) == expected(plan, events) == [(0, 10_000_000, n)]
    assert isinstance(make_matcher(plan), KernelMatcher)


def test_trends_of_neighbours_that_are_near_each_other() -> None:
    """Before: HQ600, for they were enumerated. 400 events of the same value: every set of them."""
    near = "A: count(A.*) = 1 OR abs(v - LAST(A.v, 1)) < 3"
    plan = plan_of(statement("A+", 10, 10, conditions=near, measures="COUNT(MATCHES) AS n"))
    assert found(plan, [row("A", i / 100, 4 + 10 * (i == 200)) for i in range(401)]) == [(0, 10_000_000, 2**400)]


def test_a_condition_between_neighbours_that_overflows() -> None:
    plan = plan_of(statement("A B", 10, 10, conditions="B: v - LAST(A.v) > 0"))
    assert found(plan, [row("A", 1, -5), row("C", 2, 2**63 - 1), row("B", 3, 1)])[0][2] == 1
    with pytest.raises(DataError, match="the condition of B overflows or divides by zero at 1970-01-01 00:00:02"):
        found(plan, [row("A", 1, -5), row("B", 2, 2**63 - 1)])


def both(pattern: str, returned: str, more: str = "") -> Plan:
    """Returns the plan of a SASE+ statement with AND in a window of 10 seconds."""
    text = f"FROM events TYPE BY type PATTERN {pattern} {more} WITHIN 10 SECONDS RETURN {returned}"
    return plan_of(text)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_pairs_of_and_are_counted_and_not_enumerated(size: int) -> None:
    """Before: HQ600. Sums of both sides, of doubles and of the smallest and largest values of either."""
    events = [row("A", i / 100, i - 7, d=float(i % 3)) for i in range(200)] + [row("C", 3, 5, d=0.5), row("B", 4, 2)]
    returned = "COUNT(*), COUNT(A), SUM(a.v), AVG(c.v), MIN(x.v), SUM(x.d), COUNT(c)"
    plan = both("SEQ(A+ a, B b) AND SEQ(A+ x, C c)", returned)
    assert isinstance(make_matcher(plan), KernelMatcher)
    ((_, _, n, events_of_a, total, average, least, doubles, c),) = found(plan, events, size)
    one, half = 2**200 - 1, 2**199
    assert n == c == one * one
    assert events_of_a == 2 * 200 * half * one
    assert total == sum(i - 7 for i in range(200)) * half * one
    assert (average, least) == (5.0, -7)
    assert doubles == pytest.approx(sum(i % 3 for i in range(200)) * half * one)


@pytest.mark.slow
def test_pairs_of_and_by_partition_and_across_windows() -> None:
    """A window and partition in which one side has nothing gives no row, and its rows are not kept."""
    events = read_rows("A@1{1,g=x} B@2{g=x} C@3{g=y} A@4{2,g=y} A@11{5,g=x} B@12{g=x} C@13{g=x} C@14{g=x} A@21 C@22")
    plan = both("SEQ(A a, B b) AND C c", "COUNT(*), SUM(a.v), COUNT(c)", "WHERE [g]")
    assert expected(plan, events) == [(10_000_000, 20_000_000, 2, 10, 2)]
    for size in (1, 2, 4, 100):
        assert found(plan, events, size) == expected(plan, events)
    matcher = make_matcher(plan)
    whole = batch_of(EVENTS, events)
    rows = []
    for i in range(len(events)):
        rows.append(matcher.push(whole.slice(i, i + 1)))
        state, matcher = matcher.snapshot(), make_matcher(plan)
        matcher.restore(state)
    assert rows_of(plan, [*rows, matcher.advance(None)]) == expected(plan, events)


def test_numbers_as_limbs_and_back() -> None:
    numbers = np.array([[5, -7], [2**200, -(2**190)], [0, 2**63]], object)
    assert whole_numbers(limbs_of(numbers, 2), np.arange(3), 3).tolist() == numbers.tolist()
    assert limbs_of(numbers[:0], 2).shape[:2] == (0, 2)


def test_smallest_and_largest_booleans_and_sums_of_them() -> None:
    """Before: they were enumerated, so that 400 events were too many."""
    measures = "MIN(A.v > 3) AS lo, MAX(A.v > 3) AS hi, SUM(A.v > 3) AS n, AVG(A.v > 3) AS a, MAX(B.v > 3) AS b"
    plan = plan_of(statement("A+ B", 10, 10, measures=measures))
    events = read_rows("A@1{4} A@2{1} A@3 B@4")
    assert found(plan, events) == expected(plan, events) == [(0, 10_000_000, False, True, 4, 0.5, None)]
    many = [row("A", i / 100, i % 2 * 9) for i in range(400)] + [row("B", 4, 4)]
    assert found(plan, many)[0][2:5] == (False, True, 200 * 2**399)


def test_sums_of_decimals_without_a_fraction_are_bignums() -> None:
    """Before: VARCHAR, which is compared with nothing."""
    measures = "SUM(A.v::DECIMAL(18,0)) AS s, SUM(A.m) AS m"
    plan = plan_of(statement("A+", 10, 10, measures=measures))
    assert plan.trends is not None
    assert [a.type for a in plan.trends.aggregates] == ["BIGNUM", "VARCHAR"]
    events = [row("A", i, 3, m=Decimal("0.25")) for i in range(3)]
    assert found(plan, events) == expected(plan, events) == [(0, 10_000_000, 36, Decimal("3.00"))]


def test_sums_of_decimals_are_not_compared_as_texts() -> None:
    """Before: '9.5' was larger than '12.5', without a word."""
    with pytest.raises(QueryError, match=r"HQ221(.|\n)*text of its digits(.|\n)*sum\(A.m\)::DECIMAL\(38,2\)"):
        plan_of(statement("A B", 10, 10, measures="SUM(A.m) > SUM(B.m) AS more"))
    plan_of(statement("A B", 10, 10, measures="SUM(A.m)::DECIMAL(38,2) > SUM(B.m)::DECIMAL(38,2) AS more"))


def test_a_far_event_between_two_windows() -> None:
    """The length of a window is a tenth of the time to the next one: the last event is in none."""
    plan = plan_of(statement("A", 1, 10, measures="COUNT(MATCHES) AS n"))
    events = [row("A", 0.5), row("A", 5), {**row("A", 0), "ts": 2**62}]
    assert found(plan, events) == expected(plan, events) == [(0, 1_000_000, 1)]
