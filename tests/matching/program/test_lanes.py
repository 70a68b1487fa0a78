"""Conditions in lanes (numpy masks, bytecode) and in the reference mean what DuckDB says, on random expressions."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.by_reference import ReferenceMatcher
from matching.features import lowered
from matching.matcher import KernelMatcher
from matching.program.lanes import INT64_MIN
from matching.program.program import NoKernel, assemble
from query.errors import DataError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema
from tests.engines import matcher_by
from tests.events import batch_of
from tests.properties.comparing import FEWER

SCHEMA = Schema(
    "e",
    (
        Field("ts", "TIMESTAMP"), Field("i", "INTEGER"), Field("b", "BIGINT"), Field("x", "DOUBLE"),
        Field("y", "DOUBLE"), Field("d", "DECIMAL(9,2)"), Field("o", "BOOLEAN"),
        Field("f", "FLOAT"), Field("da", "DATE"), Field("ti", "TIME"),
    ),
    time="ts",
)  # fmt: skip
OPERATORS = ("+", "-", "*", "/", "//", "%")
NUMBERS = ("i", "b", "x", "y", "d", "2", "-3", "0.5", "1.25", "0", "1e0", "7")


COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
DATES = ("da", "da", "DATE '2020-02-29'", "DATE '1960-01-01'", "(da + 1)", "(2 + da)",
         "(da - CASE WHEN o THEN 59 END)", "coalesce(da, NULL)")  # fmt: skip
TIMES = ("ti", "ti", "TIME '10:00:00.5'", "TIME '24:00:00'", "CASE WHEN o THEN ti END")
FLOATS = ("f", "f", "f", "x", "b", "i", "d", "0.5", "0.1", "1", "CAST(f AS DOUBLE)", "CAST('0.1' AS FLOAT)")


def others() -> st.SearchStrategy[str]:
    """Comparisons of dates, times and FLOATs."""

    def of(values: tuple[str, ...]) -> st.SearchStrategy[str]:
        value = st.sampled_from(values)
        return st.one_of(
            st.builds(lambda a, op, b: f"({a} {op} {b})", value, st.sampled_from(COMPARISONS), value),
            st.builds(lambda a, b, c: f"({a} BETWEEN {b} AND {c})", value, value, value),
            st.builds(lambda a, b, c: f"({a} IN ({b}, {c}))", value, value, value),
        )

    days = st.builds(lambda n: f"(da - DATE '2020-01-01' > {n})", st.sampled_from((0, 59, -100_000)))
    return st.one_of(of(DATES), of(TIMES), of(FLOATS), days)


def numbers(depth: int) -> st.SearchStrategy[str]:
    leaf = st.sampled_from(NUMBERS)
    if depth == 0:
        return leaf
    below = numbers(depth - 1)
    return st.one_of(
        leaf,
        st.tuples(below, st.sampled_from(OPERATORS), below).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        below.map(lambda n: f"(-{n})"),
        below.map(lambda n: f"abs({n})"),
        st.tuples(truths(depth - 1), below, below).map(lambda t: f"CASE WHEN {t[0]} THEN {t[1]} ELSE {t[2]} END"),
        st.tuples(below, below).map(lambda t: f"coalesce({t[0]}, {t[1]})"),
        below.map(lambda n: f"CAST({n} AS DOUBLE)"),
    )


def truths(depth: int) -> st.SearchStrategy[str]:
    number = numbers(max(0, depth - 1))
    compared = st.tuples(
        number, st.sampled_from(COMPARISONS), number
    ).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
    if depth == 0:
        return st.one_of(compared, st.just("o"), number.map(lambda n: f"({n} IS NULL)"))
    below = truths(depth - 1)
    return st.one_of(
        compared,
        others(),
        st.tuples(below, st.sampled_from(["AND", "OR"]), below).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        below.map(lambda t: f"(NOT {t})"),
        st.tuples(number, number, number).map(lambda t: f"({t[0]} BETWEEN {t[1]} AND {t[2]})"),
        st.tuples(number, number, number).map(lambda t: f"({t[0]} IN ({t[1]}, {t[2]}))"),
        number.map(lambda n: f"({n} IS NOT NULL)"),
    )


VALUES = {
    "i": st.sampled_from([None, 0, 1, -5, 2, 2**31 - 1, -(2**31)]),
    "b": st.sampled_from([None, 0, 1, -2, 7, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "x": st.sampled_from([None, 0.0, -0.0, 1.5, -2.0, float("nan"), float("inf"), 1e300]),
    "y": st.sampled_from([None, 0.0, 1.5, 0.1, float("nan"), float("-inf")]),
    "d": st.sampled_from([None, Decimal("0.00"), Decimal("1.25"), Decimal("-9999999.99"), Decimal("0.50")]),
    "o": st.sampled_from([None, True, False]),
    "f": st.sampled_from([None, 0.5, 0.10000000149011612, -2.0, float("nan"), float("inf"), 16777216.0]),
    "da": st.sampled_from([None, dt.date(2020, 2, 29), dt.date(2020, 3, 1), dt.date(1960, 1, 1), dt.date(9999, 1, 1)]),
    "ti": st.sampled_from([None, dt.time(0), dt.time(10, 0, 0, 500_000), dt.time.max]),
}
ROWS = st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=6)


def plan_of(condition: str) -> Plan:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS t PATTERN (A) DEFINE A AS {condition})"
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan


def of_the_run(condition: str) -> str:
    """The same condition by way of the run: in A's own condition A.x is the candidate's x."""
    out, word = "", ""
    for c in condition + " ":
        if c.isalpha():
            word += c
            continue
        out += f"A.{word}" if word in VALUES else word
        out += c
        word = ""
    return out


def matched(matcher: KernelMatcher | ReferenceMatcher, rows: list[dict[str, object]]) -> list[int]:
    found = [matcher.push(batch_of(SCHEMA, rows)), matcher.advance(None)]
    return sorted(seq for m in found for seq in m.event_seq.tolist())


@pytest.mark.slow
@FEWER
@given(condition=truths(2), rows=ROWS)
def test_every_way_to_evaluate_agrees_with_duckdb(condition: str, rows: list[dict[str, object]]) -> None:
    rows = [{"ts": n, **row} for n, row in enumerate(rows)]
    batch = batch_of(SCHEMA, rows)
    connection = duckdb.connect()
    connection.register("e", pa.Table.from_batches([batch.columns]))
    try:
        answer = connection.sql(f"SELECT ({condition}) AS c FROM e").fetchall()
    except duckdb.Error:
        assume(False)  # overflow or division by zero: every way raises, which other tests hold
    expected = [n for n, (value,) in enumerate(answer) if value]
    plan = plan_of(condition)
    kernel = matcher_by(plan)
    assert matched(kernel, rows) == expected
    assert matched(ReferenceMatcher(plan), rows) == expected
    dependent = plan_of(of_the_run(condition))
    try:
        program = assemble(dependent)
    except NoKernel:
        return
    try:
        assert matched(matcher_by(dependent, program=program), rows) == expected
    except DataError:
        return  # 64 bits where DuckDB has 128: an error, never a wrong answer


@pytest.mark.parametrize("condition", [
    # Before: the quotient of the smallest number had the wrong sign, and its remainder was wrong too.
    "b // 2 < 0", "b // 7 = -1317624576693539401", "b % 7 = -1", "b // b = 1", "i // b = 0 AND i % b = i",
    # Before: OverflowError, for a factor of more than 64 bits.
    "CAST(d AS DECIMAL(38,25)) > CAST(i AS DECIMAL(38,25))",
])  # fmt: skip
def test_numbers_at_the_end_of_64_bits(condition: str) -> None:
    rows = [{"ts": n, "i": -5, "b": INT64_MIN, "d": Decimal("2.50")} | dict.fromkeys(("x", "y", "o", "f", "da", "ti"))
            for n in range(2)]  # fmt: skip
    batch = batch_of(SCHEMA, rows)
    with duckdb.connect() as connection:
        connection.register("e", pa.Table.from_batches([batch.columns]))
        assert connection.sql(f"SELECT ({condition}) FROM e").fetchall() == [(True,), (True,)]
    for text in (condition, of_the_run(condition)):
        plan = plan_of(text)
        assert matched(matcher_by(plan), rows) == matched(ReferenceMatcher(plan), rows) == [0, 1]
    dependent = plan_of(re.sub(r"\b[bid]\b", lambda name: f"FIRST({name[0]})", condition))
    try:
        program = assemble(dependent)
    except NoKernel:
        return
    assert matched(matcher_by(dependent, program=program), rows) == [0, 1]


@pytest.mark.parametrize(
    "condition", ["i < b", "b * 2 > i + 1", "d * 0.5 < 1.25", "x < y", "ts < ts + INTERVAL '1' DAY", "i % 2 = 0 AND o",
     "da >= DATE '2020-01-01'", "da - PREV(da) = 1", "ti < TIME '10:00:00'", "f < PREV(f)", "f > 0.5"],
)
def test_common_conditions_need_no_duckdb(condition: str) -> None:
    assert lowered(plan_of(condition).condition("A")) is not None


def test_integers_do_not_pass_through_float64() -> None:
    rows = [{"ts": 0, "i": 0, "b": 2**53 + 1, "x": 0.0, "y": 0.0} | dict.fromkeys(("d", "o", "f", "da", "ti"))]
    odd, even = 2**53 + 1, 2**53
    for condition in (f"b = {odd}", f"b > {even}", f"A.b = {odd}", f"A.b <> {even}"):
        plan = plan_of(condition)
        assert matched(matcher_by(plan), rows) == [0], condition
    assert np.float64(2**53 + 1) == 2**53
