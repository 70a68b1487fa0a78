"""Runs that are dominated go: they match only where a preferred run does, which cuts them."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.engines.run_lists import RunLists
from matching.matcher import KernelMatcher, make_matcher
from matching.program import live
from matching.program.dominance import dominance
from query.errors import DataError, QueryError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema
from tests.events import batch_of
from tests.matching.test_folded_nodes import expected
from tests.properties.comparing import Answer, answer_of, constant, or_error
from tests.strategies import Row

TICKS = Schema("e", (Field("ts", "BIGINT"), Field("k", "VARCHAR"), Field("p", "DOUBLE"), Field("i", "BIGINT"),
                     Field("j", "INTEGER"), Field("d", "DECIMAL(6,1)"), Field("w", "TIMESTAMP")))  # fmt: skip
LAST = (1 << 63) - 1
#: A better run has a smaller first value, a larger one, or a smaller largest one of A.
DOMINATED = (
    "PATTERN (A+ B) DEFINE B AS p > 2 * FIRST(p)",
    "PATTERN (A+ B) DEFINE B AS p - FIRST(p) < -3 AND p < 9",
    "PATTERN (A+ B C?) DEFINE B AS i > FIRST(i), C AS i > FIRST(i)",
    "PATTERN (A A+ B+ C) DEFINE B AS p >= MAX(A.p), C AS p > FIRST(A.p) * 1.5 + 1",
    "PATTERN (A+ B) DEFINE B AS p * -2 > LAST(A.p) - 4 AND 3 > MIN(A.p)",
    "PATTERN (A+ B) DEFINE B AS p < MIN(A.p)",
    "PATTERN (A (C | B)* D) DEFINE C AS i < 2, B AS i < 6, D AS i > 5 AND p > MAX(B.p)",
    "PATTERN (A+ B) DEFINE B AS d - FIRST(d) > 0.2",
    "PATTERN (A+ B) DEFINE B AS p / FIRST(p) > 1.05",
    "PATTERN (A+ B C) DEFINE B AS p / MIN(A.p) - 1 >= 0.5, C AS 100 * (p - FIRST(p)) / FIRST(p) > 2",
    "PATTERN (A+ B) DEFINE B AS 0.9 > p / MAX(A.p) AND i > 2",
    "PATTERN (A+ B) DEFINE B AS 1 - i / FIRST(i) < -0.5",
    "PATTERN (A+ B) DEFINE B AS d / LAST(A.d) < 0.9 AND (d - FIRST(d)) / FIRST(d) >= 0.2",
    "PATTERN (A+ B C) DEFINE B AS d < LAST(A.d) - FIRST(A.d) + 0.1, C AS (d - FIRST(d)) * 2 < d - MAX(A.d)",
    "PATTERN (A+ B) DEFINE B AS d - FIRST(d) > LAST(A.d) - d - FIRST(d)",
    "PATTERN (A+ B) DEFINE B AS p - FIRST(p) > 2 AND i > FIRST(i)",
    "PATTERN (A+ B C?) DEFINE B AS p > FIRST(p) AND i % 3 <> FIRST(i) % 3 AND count(*) > 3, C AS p > MIN(A.p)",
    "PATTERN (A+ B) DEFINE B AS p > FIRST(p) AND d - FIRST(A.d) BETWEEN 0.1 AND 0.3",
    "PATTERN ((A | B)+ C) DEFINE A AS i < 5, C AS count(A.i) > 2 AND count(B.p) < 4 AND p > MIN(B.p)",
    "PATTERN (A+ B) DEFINE B AS count(*) >= 5 AND p < 3",
    "PATTERN (A+ B) DEFINE B AS date_diff('minute', FIRST(A.w), w) >= 3 AND p > FIRST(p)",
    "PATTERN (A+ B C?) DEFINE B AS epoch(w) - epoch(LAST(A.w)) < -60, C AS date_diff('hour', LAST(A.w), w) < 1",
    "PATTERN (A+ B) DEFINE B AS p - i::DOUBLE > p - FIRST(A.i) / 2 AND floor(d) - floor(FIRST(A.d)) > 2",
    "PATTERN (A+ B) DEFINE B AS -p > FIRST(p) - 2 AND p > LAST(A.p) AND FIRST(A.i) < i",
)
#: Likewise, unless an integer overflows.
OF_INTEGERS = (
    "PATTERN (A+ B) DEFINE B AS i > 2 * FIRST(i)",
    "PATTERN (A+ B) DEFINE B AS i > FIRST(i) + 9 AND p < 5",
    "PATTERN (A+ B) DEFINE B AS 9 - LAST(A.i) * 3 < i",
    "PATTERN (A A+ B) DEFINE B AS i > MIN(A.i) + 9 AND i < 3 + MAX(A.i)",
    "PATTERN (A+ B C) DEFINE A AS i > -9 OR i < -99, B AS i < MAX(A.i) - 9, C AS i < FIRST(A.i) * 2 - 4",
    "AFTER MATCH SKIP TO NEXT ROW PATTERN ((A | B){2,} C) DEFINE C AS i > LAST(A.i) - -5 AND i - 1 > MIN(B.i)",
    "PATTERN (A+ B) DEFINE B AS i - FIRST(i) > 2",
    "PATTERN (A+ B) DEFINE B AS FIRST(i) - (i - 1) > 2 AND j + MAX(A.i) < 6",
    "PATTERN (A+ B C) DEFINE B AS j - LAST(A.j) > 2, C AS 3 * MIN(A.j) + i > 4",
    "PATTERN (A+ B C?) DEFINE A AS i < 9, B AS p < 3 AND MIN(A.i) - 3 + j > 2, C AS i - 2 * FIRST(i) > 2",
    "PATTERN (A+ B) DEFINE B AS epoch(w - FIRST(w)) >= 120 AND p > 2",
    "PATTERN (A+ B C?) DEFINE B AS extract(epoch FROM w - INTERVAL 1 DAY - LAST(A.w)) / 60 < -1445, C AS i < FIRST(i)",
    "AFTER MATCH SKIP TO LAST B PATTERN (((A | B){2,3} C)+ D) DEFINE A AS i > 0, C AS LAST(A.i) - j > 2, D AS j > -i",
)
#: Of these no order of values is known.
NOT = (
    "PATTERN (A+ B) DEFINE B AS p > FIRST(p) * FIRST(p)",
    "PATTERN (A+ B) DEFINE B AS i * FIRST(i) > 2",
    "PATTERN (A+ B) DEFINE B AS LAST(A.i) - FIRST(i) > 2",
    "PATTERN (A+ B) DEFINE B AS p > FIRST(p) OR p < 0",
    "PATTERN (A+ B) DEFINE B AS p = FIRST(p)",
    "PATTERN (A+ B) DEFINE B AS p > FIRST(p) AND -p > FIRST(p) - LAST(p, 1)",
    "PATTERN (A+ B+ C) DEFINE B AS p > FIRST(p), C AS p < FIRST(p)",
    "PATTERN (A+ B) DEFINE B AS p / FIRST(p) > -1",
    "PATTERN (A+ B) DEFINE B AS p / FIRST(p) <= -1",
    "PATTERN (A+ B) DEFINE B AS 2 / (p / FIRST(p)) < 1",
    "PATTERN (A+ B) DEFINE B AS p / FIRST(p) > p",
    "PATTERN (A+ B) DEFINE B AS p / (FIRST(p) * 1e-300) > 2",
    "PATTERN (A+ B) DEFINE B AS avg(A.p) > p",
)
#: Runs of one start only dominate each other.
OF_START = (
    "PATTERN (A+ B) WITHIN 5 ROWS DEFINE B AS p > 2 * FIRST(p)",
    "AFTER MATCH SKIP TO NEXT ROW PATTERN (A+ B) DEFINE B AS p > 2 * FIRST(p)",
    "AFTER MATCH SKIP TO NEXT ROW PATTERN ((A | B){4} C) DEFINE A AS p > 2, C AS p < LAST(A.p)",
    "AFTER MATCH SKIP TO LAST B PATTERN ((A | B){2,5} B C) DEFINE A AS p > 2, C AS i = FIRST(B.i)",
    "AFTER MATCH SKIP TO NEXT ROW PATTERN ((A B?)+? C) DEFINE B AS i < LAST(A.i), C AS i = LAST(B.i)",
    "PATTERN ((A | B){4} C) WITHIN 6 ROWS DEFINE A AS p > 2, C AS i <> LAST(A.i) AND p < MAX(B.p)",
    "PATTERN ((A | B)+ C) WITHIN 6 ROWS DEFINE A AS p > 2, C AS count(A.p) = count(B.p)",
)
#: Runs that are equal in what conditions read: all but one go.
EQUAL = (
    "PATTERN ((A | B){4} C) DEFINE A AS p > 2, C AS p < LAST(A.p)",
    "PATTERN ((A | B){2,5} C) DEFINE A AS p > 2, B AS i < FIRST(A.i), C AS i = LAST(B.i)",
    "PATTERN ((A B?){3} C) DEFINE B AS i < LAST(A.i), C AS i = FIRST(B.i)",
    "PATTERN ((A | B)+ C) DEFINE A AS p > 2, C AS count(A.p) = count(B.p)",
    "PATTERN ((A? B?){3} C+) DEFINE A AS p > 1, C AS i <> FIRST(A.i) AND i = LAST(B.i)",
)


def row_of(ts: int, p: float | None, i: int | None, k: str = "a") -> Row:
    if i is None:
        return {"ts": ts, "k": k, "p": p, "i": None, "j": None, "d": None, "w": None}
    j, w = min(max(i, -(1 << 31)), (1 << 31) - 1), 60_000_000 * (i % 1000)
    return {"ts": ts, "k": k, "p": p, "i": i, "j": j, "d": Decimal(i % 100) / 10, "w": w}


def plan_of(body: str) -> Plan:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES count(*) AS n {body})"
    return bind(parse(text), lambda _: TICKS).factors[0].plan


def matcher_of(plan: Plan) -> KernelMatcher:
    found = make_matcher(plan, lenient=True)
    assert isinstance(found, KernelMatcher)
    assert isinstance(found.engine, RunLists)
    return found


@pytest.mark.parametrize("body", [*DOMINATED, *OF_INTEGERS])
def test_conditions_that_compare_let_runs_dominate(body: str) -> None:
    found = dominance(matcher_of(plan_of(body)).program)
    assert found is not None
    assert any(found.better)


@pytest.mark.parametrize("body", NOT)
def test_runs_with_other_values_stay_where_no_order_is_known(body: str) -> None:
    found = dominance(matcher_of(plan_of(body)).program)
    assert found is not None
    assert not any(found.better)


@pytest.mark.parametrize("body", [*OF_START, *EQUAL])
def test_runs_of_other_starts_stay_unless_a_match_cuts_them(body: str) -> None:
    found = dominance(matcher_of(plan_of(body)).program)
    assert found is not None
    assert found.of_start == (body in OF_START)


@pytest.mark.parametrize("body", [
    "PATTERN (A+ B) DEFINE B AS p > PREV(p) AND MATCH_NUMBER() < 3 AND p > FIRST(p)",
    "AFTER MATCH NO SKIP PATTERN (A+ B) DEFINE B AS p > FIRST(p)",
])  # fmt: skip
def test_all_runs_stay_where_each_may_be_a_match(body: str) -> None:
    assert dominance(matcher_of(plan_of(body)).program) is None


EDGES = (0.5, -0.0, math.inf, -math.inf, math.nan, 1.7e308, -1.7e308, 5e-324, 2e-308)
NUMBERS = st.sampled_from([*map(float, range(-4, 9)), *EDGES])
ROWS = st.lists(st.tuples(st.integers(0, 1), st.none() | NUMBERS, st.none() | st.integers(-3, 9)), max_size=24)


@pytest.mark.slow
@given(st.sampled_from([*DOMINATED, *OF_START, *EQUAL]), ROWS, st.integers(1, 9))
def test_matches_are_those_of_the_reference(
    body: str, values: list[tuple[int, float | None, int | None]], size: int
) -> None:
    rows = [row_of(at, p, i, "ab"[k]) for at, (k, p, i) in enumerate(values)]
    plan = plan_of(body)
    with constant("matching.engines.run_lists.LEAST_PRUNED", 1):
        matcher = matcher_of(plan)
        found = [matcher.push(batch_of(TICKS, rows[at : at + size], at)) for at in range(0, len(rows), size)]
        found.append(matcher.advance(None))
    assert answer_of(found) == (expected(plan, rows, TICKS) if rows else [])


LARGE = [s * (1 << e) - b for s, e, b in itertools.product((1, -1), (61, 62, 63), range(-9, 10, 3))]
INTEGERS = st.integers(-3, 9) | st.sampled_from([n for n in LARGE if -(1 << 63) <= n < 1 << 63])


@pytest.mark.slow
@given(st.sampled_from(OF_INTEGERS), st.lists(st.none() | INTEGERS, max_size=16), st.integers(1, 9))
def test_a_run_stays_if_its_condition_may_overflow(body: str, values: list[int | None], size: int) -> None:
    # Before: no runs were dropped whose conditions compute with integers: of 1,000 starts each was tried at each row.
    rows = [row_of(at, float(at % 7), i) for at, i in enumerate(values)]
    plan = plan_of(body)

    def answer() -> Answer:
        with constant("matching.engines.run_lists.LEAST_PRUNED", 1):
            matcher = matcher_of(plan)
            found = [matcher.push(batch_of(TICKS, rows[at : at + size], at)) for at in range(0, len(rows), size)]
            return answer_of([*found, matcher.advance(None)])

    assert or_error(answer) == or_error(lambda: expected(plan, rows, TICKS) if rows else [])


@pytest.mark.parametrize(("condition", "large", "fails"), [
    ("i > FIRST(i) + 9", LAST - 8, True), ("i > FIRST(i) + 9", LAST - 9, False),
    ("i > 90 + 3 * FIRST(i)", (LAST - 90) // 3 + 1, True), ("i > 90 + 3 * FIRST(i)", (LAST - 90) // 3, False),
    ("i > MIN(A.i) - -9", LAST - 8, True), ("i > MIN(A.i) - -9", LAST - 9, False),
])  # fmt: skip
def test_an_overflow_of_a_start_that_others_dominate(condition: str, large: int, fails: bool) -> None:
    rows = [row_of(at, float(at == 1), i) for at, i in enumerate([1, large, 5, 1, 2])]
    plan = plan_of(f"PATTERN (A+ B) DEFINE B AS p = 0 AND {condition}")
    with constant("matching.engines.run_lists.LEAST_PRUNED", 1):
        matcher = matcher_of(plan)
        with pytest.raises(DataError, match="verflow") if fails else nullcontext():
            for row in rows:
                matcher.push(batch_of(TICKS, [row], row["ts"]))
            matcher.advance(None)
    assert (or_error(lambda: expected(plan, rows, TICKS)) is None) == fails


@pytest.mark.parametrize("condition", ["i - FIRST(i) > 9", "FIRST(A.i) - i < -9"])
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(("then", "error"), [
    ([5, 20], False), ([20], False), ([1 - LAST], True), ([5, -LAST - 1, 1], True), ([1 - LAST, 20], False),
    ([3 - LAST], False), ([3 - LAST, 20], False), ([LAST, 20], False),
])  # fmt: skip
def test_runs_that_have_gone_come_again_with_a_row_for_which_they_may_overflow(
    condition: str, saved: bool, then: list[int], error: bool
) -> None:
    # Before: no run went, since the difference with a row to come may overflow: 80,000 rows of 20 keys took 9 s.
    rows = [row_of(at, float(at > 7), i) for at, i in enumerate([0, 0, 3, 1, 0, 2, 3, 1, *then])]
    plan = plan_of(f"PATTERN (A+ B) DEFINE B AS p = 1 AND {condition}")
    with constant("matching.engines.run_lists.LEAST_PRUNED", 1):
        matcher = matcher_of(plan)
        found = [matcher.push(batch_of(TICKS, rows[:8]))]
        assert isinstance(matcher.engine, RunLists)
        assert int(matcher.engine._partitions.length[0]) < 4
        if saved:
            state = matcher.snapshot()
            matcher = matcher_of(plan)
            matcher.restore(state)

        def answer() -> Answer:
            for at in range(8, len(rows)):
                found.append(matcher.push(batch_of(TICKS, [rows[at]], at)))
            return answer_of([*found, matcher.advance(None)])

        ours, theirs = or_error(answer), or_error(lambda: expected(plan, rows, TICKS))
    assert ours == theirs
    assert (ours is None) == error
    assert isinstance(matcher.engine, RunLists)
    assert matcher.engine._dominated is not None
    assert matcher.engine._dominated.better.any() == (max(map(abs, then)) <= 20)


def test_a_run_with_a_null_stays_beside_one_with_a_value() -> None:
    # Before: no error. `null AND error` is one, `false AND error`, of the run that dropped the other, is none.
    rows = [row_of(at, 1.0, i) for at, i in enumerate([0, 0, -1 - LAST])]
    condition = "i > LAST(A.i) + 5 AND i - 1 > MIN(B.i)"
    plan = plan_of(f"AFTER MATCH SKIP TO NEXT ROW PATTERN ((A | B){{2,}} C) DEFINE C AS {condition}")
    with constant("matching.engines.run_lists.LEAST_PRUNED", 1):
        matcher = matcher_of(plan)
        ours = or_error(lambda: answer_of([
            *(matcher.push(batch_of(TICKS, [row], at)) for at, row in enumerate(rows)), matcher.advance(None),
        ]))  # fmt: skip
    assert ours is None
    assert or_error(lambda: expected(plan, rows, TICKS)) is None


@pytest.mark.parametrize(("condition", "values"), [
    ("p > MAX(A.p)", [3.0, None, 0.0, 2.0]), ("p < MIN(A.p)", [1.0, None, 5.0, 4.0]),
])  # fmt: skip
def test_a_null_that_a_row_fills_is_not_the_worst_value(condition: str, values: list[float | None]) -> None:
    # Before: the run that began with a null went when a later one had a value: the match began one row too late.
    rows = [row_of(at, p, at) for at, p in enumerate(values)]
    plan = plan_of(f"PATTERN (A+ B) DEFINE A AS i < 3, B AS i = 3 AND {condition}")
    with constant("matching.engines.run_lists.LEAST_PRUNED", 1):
        matcher = matcher_of(plan)
        found = [matcher.push(batch_of(TICKS, [row], row["ts"])) for row in rows]
    assert answer_of([*found, matcher.advance(None)]) == expected(plan, rows, TICKS)


@pytest.mark.parametrize("condition", [
    "p > LAST(A.p) AND p < LAST(A.p, 1)", "i > LAST(A.i) AND i < LAST(A.i, 1)",
    "p / LAST(A.p) > 1.1 AND p < LAST(A.p, 1)",
])  # fmt: skip
def test_a_value_that_becomes_that_of_another_register_is_no_worse_one(condition: str) -> None:
    # Before: the run that bound 3 as its last A dropped the one that bound 9, which alone matches: no match.
    body = f"PATTERN ((A | B){{3}} A C) DEFINE C AS {condition} AND count(A.p) < 3"
    rows = [row_of(at, float(p), p) for at, p in enumerate([3, 9, 1, 5, 7])]
    plan = plan_of(body)
    with constant("matching.engines.run_lists.LEAST_PRUNED", 1):
        matcher = matcher_of(plan)
        assert isinstance(matcher.engine, RunLists)
        found = []
        for row in rows:
            found.append(matcher.push(batch_of(TICKS, [row], int(str(row["ts"])))))
            matcher.engine._prune(np.array([0]), all_of=True)
    ours = answer_of([*found, matcher.advance(None)])
    assert len(ours) == 1
    assert ours == expected(plan, rows, TICKS)


def test_few_runs_stay_of_many_starts() -> None:
    # Before: 20,000 runs, each of which was tried at each row.
    rng = np.random.default_rng(3)
    rows = [row_of(i, float(p), 0) for i, p in enumerate(rng.uniform(1, 100, 20_000))]
    matcher = matcher_of(plan_of("PATTERN (A+ B) DEFINE B AS p > 2000 * FIRST(p)"))
    matcher.push(batch_of(TICKS, rows))
    assert isinstance(matcher.engine, RunLists)
    assert int(matcher.engine._partitions.length[0]) < 400


@pytest.mark.parametrize("condition", [
    "p - FIRST(p) > 98 AND ts - FIRST(ts) > 1000000", "p > FIRST(p) + 98 AND i > FIRST(i) + 98", "count(*) > 100000",
    "p > FIRST(p) + 98 AND i % 2 <> FIRST(i) % 2",
])  # fmt: skip
def test_few_runs_stay_of_conditions_that_each_have_an_order(condition: str) -> None:
    # Before: 4,000 runs. Of two conditions each run was compared with one other only, or with none.
    # (Of the last one FIRST(i) has to be equal, which has 99 values.)
    rng = np.random.default_rng(3)
    rows = [row_of(at, float(p), int(i)) for at, (p, i) in enumerate(rng.integers(1, 100, (4_000, 2)))]
    matcher = matcher_of(plan_of(f"PATTERN (A+ B) DEFINE B AS {condition}"))
    matcher.push(batch_of(TICKS, rows))
    assert isinstance(matcher.engine, RunLists)
    assert int(matcher.engine._partitions.length[0]) < 500


def test_few_runs_stay_where_events_come_one_at_a_time() -> None:
    # Before: runs were dropped between the rows of a push only, of pushes of one row never.
    matcher = matcher_of(plan_of("PATTERN (A+ B) DEFINE B AS p > 2000 * FIRST(p)"))
    for i in range(300):
        matcher.push(batch_of(TICKS, [row_of(i, 1.0 + i % 90, 0)], i))
    assert isinstance(matcher.engine, RunLists)
    assert int(matcher.engine._partitions.length[0]) < 200


def test_equal_runs_are_one_whatever_overflows() -> None:
    condition = "p > 0 AND p / LAST(A.p) > 3 AND i > LAST(A.i) + 9"
    matcher = matcher_of(plan_of(f"PATTERN ((A | B){{30}} C) DEFINE C AS {condition}"))
    for at in range(60):
        matcher.push(batch_of(TICKS, [row_of(at, -1.0, LAST)], at))
    assert isinstance(matcher.engine, RunLists)
    assert int(matcher.engine._partitions.length[0]) < 1_000


def test_equal_runs_are_one_behind_a_row_for_which_others_came_again() -> None:
    rows = [row_of(at, 1.0, at % 4) for at in range(60)]
    rows[30] = row_of(30, 1.0, 1 - LAST)
    matcher = matcher_of(plan_of("PATTERN ((A | B){50} C) DEFINE C AS p > 1 AND i - LAST(A.i) > 1000"))
    for at, row in enumerate(rows):
        matcher.push(batch_of(TICKS, [row], at))
    assert isinstance(matcher.engine, RunLists)
    assert int(matcher.engine._partitions.length[0]) < 1_000


@pytest.mark.parametrize("after", ["", "AFTER MATCH SKIP TO NEXT ROW"])
@pytest.mark.parametrize(("body", "ends"), [
    ("PATTERN ((A | B){50} C) DEFINE A AS p > 50, C AS p < LAST(A.p) - 1000", False),
    ("PATTERN ((A | B){50} C) DEFINE A AS p > 50, B AS p < FIRST(A.p), C AS p > 90", True),
    ("PATTERN ((A B?){40}) DEFINE B AS p < LAST(A.p)", True),
    ("PATTERN ((A | B)+ C) DEFINE A AS p > 50, C AS count(B.p) > 3000", False),
])  # fmt: skip
def test_equal_runs_are_one(body: str, ends: bool, after: str) -> None:
    # Before: each way to bind the rows was a run, until there were too many of them: HQ600.
    rng = np.random.default_rng(3)
    rows = [row_of(i, float(p), 0) for i, p in enumerate(rng.uniform(1, 100, 400))]
    matcher = matcher_of(plan_of(f"{after} {body}"))
    found = [matcher.push(batch_of(TICKS, rows)), matcher.advance(None)]
    assert bool(answer_of(found)) == ends
    assert isinstance(matcher.engine, RunLists)
    assert int(matcher.engine._partitions.length[0]) < 100_000


def test_many_partial_matches_that_differ_are_too_many_and_those_that_are_equal_are_not() -> None:
    rows = [row_of(i, float(i % 7), 0) for i in range(300)]
    for size in (1, 300):
        matcher = matcher_of(plan_of("PATTERN ((A | B)+ C) DEFINE C AS p > 9 + LAST(A.p)"))
        for at in range(0, len(rows), size):
            matcher.push(batch_of(TICKS, rows[at : at + size], at))
    matcher = matcher_of(plan_of("PATTERN ((A | B)+ C) DEFINE C AS p > sum(A.p) * sum(A.i)"))
    with pytest.raises(QueryError, match="HQ600"):  # each way has a sum of its own
        matcher.push(batch_of(TICKS, [row | {"p": 1.1**row["ts"], "i": 1 << min(row["ts"], 40)} for row in rows]))


def test_registers_of_many_states_are_found_in_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: states were passed from the first to the last, of 1,000 a thousand times: 24 s, whatever the events.
    calls = []
    monkeypatch.setattr(live, "_before", lambda *asked, of=live._before: calls.append(asked) or of(*asked))
    program = matcher_of(plan_of("PATTERN (A{1000} B) DEFINE B AS p > FIRST(A.p)")).program
    found = live.live_registers(program)
    assert len(found) > 1_000
    assert all(found[1:1000])
    assert len(calls) < 2 * len(found)
