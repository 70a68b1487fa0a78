"""Conditions on the match so far over texts, dates, times, FLOATs and CLASSIFIER() run in the kernel and give what the
reference gives."""

from __future__ import annotations

import datetime as dt
import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.by_reference import ReferenceMatcher
from matching.keys import Encoder
from matching.matcher import make_matcher
from matching.program.program import assemble
from query.errors import DataError, HybridWarning
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
        Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("s", "VARCHAR"), Field("w", "VARCHAR"),
        Field("u", "UUID"), Field("z", "BLOB"), Field("d", "DATE"), Field("t", "TIME"), Field("f", "FLOAT"),
        Field("x", "DOUBLE"), Field("i", "INTEGER"), Field("h", "HUGEINT"), Field("v", "INTERVAL"),
    ),
    time="ts",
)  # fmt: skip
UUIDS = tuple(f"0000000{n}-0000-0000-0000-00000000000a" for n in (1, 2))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "k": st.sampled_from(["p", "q"]),
    "s": st.sampled_from(["a", "b", "A", "a", "", None]),
    "w": st.sampled_from(["a", "b", "B", "a ", None]),
    "u": st.sampled_from([*UUIDS, None]),
    "z": st.sampled_from([b"a", b"\x00", None]),
    "d": st.sampled_from([dt.date(2020, 1, 1), dt.date(2020, 1, 2), dt.date(1960, 12, 31), None]),
    "t": st.sampled_from([dt.time(10), dt.time(10, 0, 0, 1), dt.time(0), None]),
    "f": st.sampled_from([0.5, 1.5, 0.10000000149011612, -0.0, 0.0, float("nan"), None]),
    "x": st.sampled_from([0.5, 0.1, float("nan"), None]),
    "i": st.sampled_from([0, 1, 2, None]),
    "h": st.just(None),
    "v": st.just(None),
}
TEXTS = ("s", "w", "A.s", "PREV(s)", "'a'", "lower(s)", "FIRST(s)", "LAST(B.w, 1)", "LAST(lower(A.s))", "FIRST(U.w)",
         "LAST(CLASSIFIER(), 1)", "FIRST(CLASSIFIER())", "coalesce(A.w, s, 'b')", "'B'", "PREV(A.w)",
         "CASE WHEN count(*) > 2 THEN A.s ELSE w END", "CASE WHEN i > 1 THEN 'x' END", "NULL")  # fmt: skip
DATES = ("d", "A.d", "LAST(d, 1)", "d + 1", "A.d - i", "i + A.d", "min(d)", "max(A.d)", "DATE '2020-01-02'", "PREV(d)",
         "coalesce(A.d, d)")  # fmt: skip
TIMES = ("t", "A.t", "FIRST(t)", "max(t)", "TIME '10:00:00'", "PREV(A.t)")
FLOATS = ("f", "A.f", "LAST(f, 1)", "min(f)", "x", "A.x", "0.5", "1.5", "f::DOUBLE", "CASE WHEN i > 0 THEN A.f END")
EQUAL = ("=", "<>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
ORDER = (*EQUAL, "<", "<=", ">", ">=")


def compared(values: Sequence[str], operators: Sequence[str]) -> st.SearchStrategy[str]:
    pick = st.sampled_from(values)
    return st.builds(lambda a, op, b: f"({a} {op} {b})", pick, st.sampled_from(operators), pick)


CONDITIONS = st.one_of(
    compared(TEXTS, EQUAL),
    compared(TEXTS, EQUAL),
    compared(("u", "A.u", "FIRST(u)", "LAST(u, 1)", "U.u"), EQUAL),
    compared(("z", "A.z", "FIRST(z)"), EQUAL),
    compared(DATES, ORDER),
    compared(TIMES, ORDER),
    compared(FLOATS, ORDER),
    st.builds(lambda a, b: f"({a} IN ('a', {b}))", st.sampled_from(TEXTS[:4]), st.sampled_from(TEXTS)),
    st.builds(lambda a: f"({a} IS NULL)", st.sampled_from((*TEXTS, *DATES, *TIMES, *FLOATS))),
    st.builds(lambda a, n: f"(count({a}) <= {n})", st.sampled_from("swudv"), st.integers(0, 2)),
    st.builds(lambda n: f"(count(A.s) FILTER (WHERE A.s = A.w) < {n})", st.integers(1, 2)),
    st.builds(lambda n: f"(d - A.d BETWEEN 0 AND {n})", st.integers(0, 2)),
    st.just("(f IN (A.f, 0.1, x))"),
    st.just("(f BETWEEN A.f AND 1.5)"),
)
JOINED = st.one_of(
    CONDITIONS,
    st.builds(lambda a, op, b: f"({a} {op} {b})", CONDITIONS, st.sampled_from(("AND", "OR")), CONDITIONS),
    CONDITIONS.map(lambda c: f"(NOT {c})"),
)
PATTERNS = ("A B+", "A B* C", "(A|B)+ C", "A (B|C)+", "A+? B", "A{1,2} B C?")
ROWS = st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=9)


def plan_of(pattern: str, conditions: dict[str, str], after: str = "") -> Plan:
    defines = ", ".join(f"{name} AS {condition}" for name, condition in conditions.items())
    text = f"""SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
        MEASURES CLASSIFIER() AS c, A.s AS s, min(d) AS d, max(t) AS t, LAST(f) AS f, FIRST(u) AS u, count(d) AS n
        {after} PATTERN ({pattern}) SUBSET U = (A, B) DEFINE {defines})"""
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    pattern = draw(st.sampled_from(PATTERNS))
    names = [name for name in "BC" if name in pattern]
    conditions = {name: draw(JOINED) for name in names[: draw(st.integers(1, 2))]}
    return plan_of(pattern, conditions, draw(st.sampled_from(("", "AFTER MATCH SKIP TO NEXT ROW"))))


def answer_of(found: Sequence[Matches]) -> list[str]:
    out = []
    for matches in found:
        bounds = matches.event_bounds.tolist()
        rows = matches.rows.to_pylist()
        labels = [matches.variables[v] for v in matches.event_variable.tolist()]
        for i in range(len(matches)):
            cut = slice(bounds[i], bounds[i + 1])
            out.append(repr((int(matches.number[i]), labels[cut], matches.event_seq.tolist()[cut], rows[i])))
    return sorted(out)


def timed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"ts": n, **dict.fromkeys(VALUES), "k": "p", **row} for n, row in enumerate(rows)]


@pytest.mark.slow
@FEWER
@given(rows=ROWS, plan=plans(), data=st.data())
def test_the_kernel_equals_the_reference(plan: Plan, rows: list[dict[str, Any]], data: st.DataObject) -> None:
    rows = timed(rows)
    program = assemble(plan)  # each of these conditions runs in the kernel
    reference = ReferenceMatcher(plan)
    expected = answer_of([reference.push(batch_of(SCHEMA, rows)), reference.advance(None)])
    kernel = matcher_by(plan, program=program)
    found, at = [], 0
    while at < len(rows):
        size = data.draw(st.integers(1, len(rows) - at))
        found.append(kernel.push(batch_of(SCHEMA, rows[at : at + size], at)))
        at += size
        if data.draw(st.booleans()):
            state = kernel.snapshot()
            kernel = matcher_by(plan, program=program)
            kernel.restore(state)
    assert answer_of([*found, kernel.advance(None)]) == expected


def numbers(plan: Plan, rows: list[dict[str, Any]]) -> list[list[int]]:
    """The rows of each match, by the kernel."""
    kernel = matcher_by(plan)
    found = [kernel.push(batch_of(SCHEMA, timed(rows))), kernel.advance(None)]
    return [
        m.event_seq.tolist()[low:high]
        for m in found
        for low, high in zip(m.event_bounds.tolist(), m.event_bounds.tolist()[1:], strict=False)
    ]


def reference_numbers(plan: Plan, rows: list[dict[str, Any]]) -> list[list[int]]:
    reference = ReferenceMatcher(plan)
    found = [reference.push(batch_of(SCHEMA, rows)), reference.advance(None)]
    return [m.event_seq.tolist()[a:b] for m in found for a, b in pairwise(m.event_bounds.tolist())]


def test_text_by_hand() -> None:
    rows = [{"s": "a"}, {"s": "a"}, {"s": "A"}, {"s": "a"}, {"s": None}, {"s": "a"}]
    assert numbers(plan_of("A B+", {"B": "s = A.s"}), rows) == [[0, 1]]
    assert numbers(plan_of("A B+", {"B": "s IS NOT DISTINCT FROM A.s OR s = 'A'"}), rows) == [[0, 1, 2, 3]]
    assert numbers(plan_of("A B+", {"B": "s <> A.s"}), rows) == [[1, 2], ]
    assert numbers(plan_of("A (B|C)+", {"B": "LAST(CLASSIFIER(), 1) = 'A'"}), rows) == [[0, 1, 2, 3, 4, 5]]


def test_dates_by_hand() -> None:
    days = [dt.date(2020, 2, 28), dt.date(2020, 2, 29), dt.date(2020, 3, 1), dt.date(2020, 3, 3), dt.date.max]
    rows = [{"d": d} for d in days]
    assert numbers(plan_of("A B+", {"B": "d = LAST(d, 1) + 1"}), rows) == [[0, 1, 2]]
    assert numbers(plan_of("A B+", {"B": "d - LAST(d, 1) BETWEEN 2 AND 100"}), rows) == [[2, 3]]


def test_dates_that_do_not_end_stay_what_they_are() -> None:
    rows = [{"i": 1}, {"i": 2}]
    plan = plan_of("A B", {"B": "CAST('infinity' AS DATE) - A.i = CAST('infinity' AS DATE) AND A.i = 1"})
    assert numbers(plan, rows) == [[0, 1]]
    plan = plan_of("A B", {"B": "DATE '5881580-07-10' + A.i > d"})
    kernel = matcher_by(plan)
    with pytest.raises(DataError):
        kernel.push(batch_of(SCHEMA, timed([{"i": 1, "d": dt.date(2020, 1, 1)}] * 2)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("condition", "expected"),
    [("sum(A.h) > 2", [[1, 2], [3, 4]]), ("fsum(A.i) >= i", [[1, 2], [3, 4]]), ("min(A.h) < h", [[0, 1], [2, 3]])],
)
def test_what_has_no_exact_lane_is_asked_of_duckdb(condition: str, expected: list[list[int]]) -> None:
    """Before: these ran through the reference."""
    plan = plan_of("A B", {"A": "i >= 0", "B": condition})
    rows = [{"h": 1, "i": 0}, {"h": 2**100, "i": 1}, {"h": 1, "i": 0}, {"h": 2**99, "i": 4}, {"h": 2**120, "i": 2}]
    assert assemble(plan).asked
    assert numbers(plan, timed(rows)) == expected == reference_numbers(plan, timed(rows))


def test_intervals_and_numbers_beyond_64_bits_are_exact() -> None:
    schema_rows = timed([{"h": 2**100, "i": 1}, {"h": 2**100, "i": 1}, {"h": 2**100 + 1, "i": 1}])
    plan = plan_of("A B+", {"B": "h = A.h"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        matcher = make_matcher(plan)
    found = [matcher.push(batch_of(SCHEMA, schema_rows)), matcher.advance(None)]
    assert [m.event_seq.tolist() for m in found if len(m)] == [[0, 1]]


def test_codes_of_nested_values() -> None:
    import pyarrow as pa

    encoder = Encoder(pa.list_(pa.int64()))
    first = encoder.encode(pa.array([[1], None, [2, None], [1]], encoder.type))
    again = encoder.encode(pa.array([[2, None], [], [1]], encoder.type))
    assert (first.tolist(), again.tolist()) == ([0, 1, 2, 0], [2, 3, 0])
    assert encoder.values.to_pylist() == [[1], None, [2, None], []]
    entries = pa.map_(pa.string(), pa.list_(pa.int64()))
    maps = pa.array([[("a", [1])], [("a", [2])], [("a", [1])]], entries)
    assert Encoder(entries).encode(maps).tolist() == [0, 1, 0]
