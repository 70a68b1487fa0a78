"""Output rows: what `matching.measures` gives for matches equals what the reference says of them."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from matching import measures
from matching.array_lanes import truth
from matching.by_reference import DuckEvaluation, to_arrow, to_python
from matching.features import RowValues, columns_read, storable
from matching.measure_ways import STREAMED
from matching.measures import FoundMatches, Measures
from matching.store import RowStore
from matching.types import plain_type
from query import reference
from query.errors import DataError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.expression import Column, Expression
from query.plan.output import Outcome, output_columns
from query.plan.plan import Plan
from query.schema import Field, Schema
from tests.events import batch_of
from tests.properties.comparing import is_nightly

SCHEMA = Schema(
    "t",
    (
        Field("k", "VARCHAR"), Field("ts", "TIMESTAMP"), Field("s", "VARCHAR"), Field("v", "BIGINT"),
        Field("i", "INTEGER"), Field("x", "DOUBLE"), Field("f", "FLOAT"), Field("d", "DECIMAL(6,2)"),
        Field("w", "DECIMAL(38,2)"), Field("h", "HUGEINT"), Field("yes", "BOOLEAN"), Field("e", "ENUM('low', 'high')"),
        Field("u", "UUID"), Field("l", "INTEGER[]"), Field("r", "STRUCT(a INTEGER, b VARCHAR)"),
        Field("m", "MAP(VARCHAR, INTEGER)"), Field("iv", "INTERVAL"), Field("tm", "TIME"), Field("b", "BLOB"),
        Field("tn", "TIMESTAMP_NS"), Field("tm_s", "TIMESTAMP_S"), Field("tm_ms", "TIMESTAMP_MS"), Field("dt", "DATE"),
        Field("tz", "TIMESTAMP WITH TIME ZONE"), Field("ub", "UBIGINT"),
    ),
    time="ts",
)  # fmt: skip
Row = dict[str, Any]


def rows_of(seed: int, n: int = 24, keys: str = "ab") -> list[Row]:
    """Random rows of SCHEMA, one value in six null."""
    rng = random.Random(seed)

    def one(i: int) -> Row:
        values: Row = {
            "s": rng.choice(["a", "bb", "", "it's", "ä", "4", "3"]), "v": rng.randint(-5, 9), "i": rng.randint(0, 3),
            "x": rng.choice([0.1, 0.2, 0.3, 1e16, -1e16, 2.5]), "f": rng.choice([0.5, 1.25, -3.0, 100.0]),
            "d": Decimal(rng.randint(-500, 500)) / 100, "w": Decimal(rng.randint(-(10**20), 10**20)) / 100,
            "h": rng.choice([1, -7, 2**80, -(2**70)]), "yes": rng.random() < 0.5, "e": rng.choice(["low", "high"]),
            "u": f"00000000-0000-0000-0000-00000000000{rng.randint(0, 9)}",
            "l": [rng.randint(0, 3) for _ in range(rng.randint(0, 2))], "r": {"a": rng.randint(0, 2), "b": "z"},
            "m": [("p", rng.randint(0, 2))], "iv": pa.MonthDayNano([rng.randint(0, 1), rng.randint(0, 3), 5000]),
            "tm": datetime.time(rng.randint(0, 23), 1), "b": bytes([rng.randint(0, 255)]), "tn": rng.randint(0, 9),
            "tm_s": rng.randint(0, 9) * 1_000_000, "tm_ms": rng.randint(0, 9) * 1000,
            "dt": datetime.date(2024, 1, rng.randint(1, 9)), "tz": rng.randint(0, 10**6), "ub": rng.choice([0, 2**63]),
        }  # fmt: skip
        nulls = {name: None if rng.random() < 1 / 6 else value for name, value in values.items()}
        return {"k": rng.choice(keys), "ts": i} | nulls

    return [one(i) for i in range(n)]


def plan_of(measure_list: str, rows: str = "ONE ROW PER MATCH", tail: str = "") -> Plan:
    text = (
        f"SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {measure_list} {rows} "
        f"PATTERN (A | B | C | D) {tail} SUBSET U = (A, C) DEFINE A AS true) AS m"
    )
    return bind(parse(text), lambda name: SCHEMA).factors[0].plan


VARIABLES = ("A", "B", "C", "D", "B")  # the last one stands inside {- -}
SHOWN = (True, True, True, True, False)
WAITING = ("waiting for A", "waiting for B, C")


def found_in(
    seed: int, rows: Sequence[Row], outcomes: Sequence[Outcome], longest: int = 6
) -> list[reference.ReferenceMatch]:
    """Random matches of rows that lie next to each other in a partition, some empty, some rows excluded."""
    rng = random.Random(seed)
    found = []
    for number in range(10):
        key = rng.choice([row["k"] for row in rows])
        index = [i for i, row in enumerate(rows) if row["k"] == key]
        begin = rng.randrange(len(index))
        outcome = rng.choice(outcomes)
        length = 0 if outcome is Outcome.UNMATCHED else rng.randint(outcome is Outcome.TIMEOUT, longest)
        taken = index[begin : begin + length]
        labels = tuple((rng.choice("ABCD"), i) for i in taken)
        excluded = frozenset(i for name, i in labels if name == "B" and rng.random() < 0.5)
        waiting = rng.choice((("A",), ("B", "C"))) if outcome is Outcome.TIMEOUT else ()
        n = number + 1 if outcome is Outcome.MATCH else 0
        found.append(reference.ReferenceMatch((key,), n, labels, index[begin], outcome, excluded, waiting))
    return found


def store_of(plan: Plan, rows: Sequence[Mapping[str, object]], expressions: Sequence[Expression]) -> RowStore:
    """All rows, linked, with the columns that the expressions read."""
    fields = {f.name: f for f in plan.schema.fields}
    numeric, other = {}, []
    for name in columns_read(expressions):
        lane = storable(fields[name].type)
        if lane is None:
            other.append(name)
        else:
            numeric[name] = lane.floating
    schema = pa.schema([(n, plain_type(fields[n].type)) for n in (*numeric, *other)])
    store = RowStore(numeric, other, schema, linked=True)
    keys = sorted({str(row["k"]) for row in rows})
    store.append(batch_of(plan.schema, rows), np.array([keys.index(str(row["k"])) for row in rows]), len(keys))
    return store


def output(plan: Plan, rows: Sequence[Row], found: Sequence[reference.ReferenceMatch]) -> pa.Table:
    """What `Measures` gives for matches found by anyone."""
    of = Measures(plan, VARIABLES, SHOWN, WAITING)
    store = store_of(plan, rows, [*of.needs(), *(Column(c.name, c.type) for c in plan.partition_by)])

    def variable(match: reference.ReferenceMatch, name: str, row: int) -> int:
        return 4 if row in match.excluded else VARIABLES.index(name)

    waiting = [WAITING.index("waiting for " + ", ".join(m.waiting)) if m.waiting else -1 for m in found]
    flat = FoundMatches(
        np.array([row for m in found for _, row in m.labels], np.int64),
        np.array([variable(m, name, row) for m in found for name, row in m.labels], np.int16),
        np.cumsum([0, *(len(m.labels) for m in found)]),
        np.array([m.start for m in found], np.int64),
        np.zeros(len(found), np.int64),
        np.array([m.number for m in found], np.int64),
        np.array([m.outcome for m in found], np.int8),
        np.array(waiting, np.int64),
    )
    keys = [to_arrow([m.partition[0] for m in found], "VARCHAR")]
    table, match = of.table(store, flat, keys)
    assert len(match) == len(table)
    assert (np.diff(match) >= 0).all()
    return table


def expected(plan: Plan, rows: Sequence[Row], found: Sequence[reference.ReferenceMatch]) -> pa.Table:
    """What the reference gives for them."""
    times = [int(row["ts"]) for row in rows]
    output = reference.match_rows(plan, rows, times, found, DuckEvaluation())
    said = [row for match in output for row in match]
    fields = output_columns(plan)
    columns = {f.name: plain(to_arrow([row[f.name] for row in said], f.type), f.type) for f in fields}
    return pa.table(columns)


def plain(array: pa.Array, type: str) -> pa.Array:
    return array if array.type == plain_type(type) else array.cast(plain_type(type))


def same(plan: Plan, rows: Sequence[Row], found: Sequence[reference.ReferenceMatch]) -> pa.Table:
    """The output of both, which have to be equal to the last bit."""
    ours, theirs = output(plan, rows, found), expected(plan, rows, found)
    assert ours.schema.equals(theirs.schema)
    for field in output_columns(plan):
        a, b = (to_python(t.column(field.name).combine_chunks(), field.type) for t in (ours, theirs))
        assert list(map(repr, a)) == list(map(repr, b)), field.name
    return ours


ALL = "ALL ROWS PER MATCH"
ROWS = ("ONE ROW PER MATCH", ALL, f"{ALL} OMIT EMPTY MATCHES")
SEEDS = range(20 if is_nightly() else 1)
EVERYTHING = (Outcome.MATCH, Outcome.MATCH, Outcome.TIMEOUT)


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_match", ROWS[:2])
def test_every_type_as_a_measure(rows_per_match: str) -> None:
    rows = rows_of(1)
    names = [f.name for f in SCHEMA.fields if f.name not in ("k", "ts")]
    listed = [f"LAST(A.{n}) AS a_{n}, PREV({n}) AS p_{n}, FIRST({n}, 1) AS f_{n}" for n in names]
    counted = [f"count({n}) AS c_{n}, list(B.{n}) AS l_{n}" for n in names]
    lowest = [f"min(U.{n}) AS n_{n}, max({n}) AS x_{n}" for n in names]
    plan = plan_of(", ".join([*listed, *counted, *lowest]), rows_per_match)
    table = same(plan, rows, found_in(1, rows, (Outcome.MATCH,)))
    assert len(table) >= 10
    assert len(table.columns) > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rows_per_match", ROWS)
def test_measures_of_all_kinds(rows_per_match: str, seed: int) -> None:
    rows = rows_of(seed)
    plan = plan_of(
        "CLASSIFIER() AS c, MATCH_NUMBER() AS n, count(*) AS rows, count(U.*) AS us, sum(v) AS total, sum(A.x) AS ax, "
        "avg(x) AS ex, avg(d) AS ed, sum(d) AS td, min(x) AS lx, max(B.d) AS hd, sum(f) AS tf, avg(f) AS af, "
        "max(f) AS hf, sum(w) AS tw, sum(h % 100) AS th, min(e) AS le, FINAL sum(v) AS ft, FINAL LAST(s) AS fs, "
        "FINAL count(B.s) AS fb, upper(s) AS us_, LAST(A.s) || CLASSIFIER() AS lc, v - FIRST(v) AS dv, "
        "ts - FIRST(ts) AS dt_, FIRST(A.ts, 1) AS f1, LAST(U.v, 2) AS l2, PREV(LAST(A.v, 1), 2) AS pl, NEXT(v) AS nv, "
        "1 AS one, 'x' AS x_, coalesce(v, -1) AS cv, sum(v) + count(*) AS sc, sum(yes::INT) AS sy, "
        "sqrt(count(*)) AS sq, stddev(x) AS sd, MATCH_NUMBER() * 2 AS n2, "
        "CASE WHEN CLASSIFIER() = 'A' THEN x ELSE v END AS cx, sum(v) % 3 AS mod, sum(v)::VARCHAR AS text",
        rows_per_match,
    )
    assert len(same(plan, rows, found_in(seed, rows, EVERYTHING))) > 4


CALLS = [
    "count(DISTINCT s)", "count(DISTINCT A.i)", "sum(DISTINCT x)", "sum(v) FILTER (WHERE i > 1)",
    "count(*) FILTER (WHERE yes)", "count(v) FILTER (WHERE s = 'a')", "avg(DISTINCT d)", "list(DISTINCT i)",
    "string_agg(s, '-')", "string_agg(s, '-' ORDER BY v DESC, ts)", "string_agg(DISTINCT s, ',')",
    "arg_max(s, v)", "arg_min(A.s, A.x)", "arg_max(s, v, 2)", "max(v, 2)", "arbitrary(U.s)", "any_value(s)",
    "list(v ORDER BY v, ts) FILTER (WHERE v > 0)", "array_agg(s)", "median(x)", "quantile_cont(x, 0.25)",
    "quantile_disc(v, 0.5)", "mode(s)", "mad(x)", "stddev_samp(x)", "var_pop(f)", "corr(x, v)", "regr_slope(x, v)",
    "covar_pop(v, x)", "product(x)", "geomean(abs(x))", "skewness(x)", "kurtosis(x)", "entropy(s)", "bool_and(yes)",
    "bool_or(B.yes)", "bit_xor(v)", "histogram(s)", "count_if(v > 2)", "approx_count_distinct(s)", "fsum(x)",
    "sum(x ORDER BY v, ts)", "list(CLASSIFIER())", "string_agg(CLASSIFIER() || s, ',')", "sum(MATCH_NUMBER() + v)",
    "count(DISTINCT CLASSIFIER())", "min(A.s || CLASSIFIER(A))", "sum(h)", "avg(w)", "min(r)", "max(l)", "list(iv)",
    "count(A.v) FILTER (WHERE A.i IN (1, 2))", "sum(ub)", "avg(i)", "wavg(x, i)", "avg(iv)", "max(b)", "mean(v)",
    "avg(ub)", "avg(h % 1000)", "avg(v * 4000000000000000000::HUGEINT)",
    "sum(TRY(s::INT)) FILTER (WHERE TRY(s::INT * 2) < 9)",
]  # fmt: skip


#: How aggregates of two values begin.
TWO = ("corr", "covar", "regr")


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("rows_per_match", "seed"), [(rows, seed) for rows in ROWS[:2] for seed in SEEDS])
def test_aggregates(rows_per_match: str, seed: int) -> None:
    rows = rows_of(seed, 30)
    listed = [f"{call} AS got{i}" for i, call in enumerate(CALLS)]
    if rows_per_match == ALL:
        listed += [f"FINAL {call} AS whole{i}" for i, call in enumerate(CALLS)]
    table = same(plan_of(", ".join(listed), rows_per_match), rows, found_in(seed, rows, EVERYTHING, longest=7))
    empty = [call for i, call in enumerate(CALLS) if table.column(f"got{i}").null_count == len(table)]
    assert not empty


@pytest.mark.slow
def test_prefixes_in_several_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "PREFIX_ROWS", 7)
    rows = rows_of(3, 30)
    same(plan_of("stddev(x) AS sd, count(*) AS n", ALL), rows, found_in(3, rows, EVERYTHING, longest=9))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3 if is_nightly() else 1))
def test_each_row_of_a_long_match_costs_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: each row cost the rows of its match so far; stddev over 50,000 rows of 5 matches took 18 s.
    monkeypatch.setattr(measures, "STREAMED_MIN", 3)
    calls = [f"{name}({x})" for name in sorted(STREAMED) for x in ("x", "v") if not name.startswith(TWO)]
    calls += [f"{name}(x, v)" for name in sorted(STREAMED) if name.startswith(TWO)]
    calls += ["mode(s)", "stddev(A.x)", "corr(x, v) FILTER (WHERE v > 1)", "stddev(DISTINCT v)", "mode(v ORDER BY x)"]
    rows = rows_of(seed, 40)
    listed = ", ".join(f"{call} AS got{i}" for i, call in enumerate(calls))
    same(plan_of(listed, ALL), rows, found_in(seed, rows, EVERYTHING, longest=12))


@pytest.mark.slow
@pytest.mark.parametrize("rows_per_match", ["ONE ROW PER MATCH", ALL])
def test_navigation_to_classifiers(rows_per_match: str) -> None:
    rows = rows_of(5)
    plan = plan_of(
        "LAST(upper(CLASSIFIER())) AS a, FIRST(A.s || CLASSIFIER(A)) AS b_, LAST(CLASSIFIER(), 1) AS c, "
        "PREV(CLASSIFIER()) AS d_, NEXT(CLASSIFIER()) AS e_, PREV(LAST(CLASSIFIER(U), 1)) AS f_, FIRST(s || v) AS g, "
        "LAST(coalesce(B.v, 7)) AS h_, LAST(A.v * 2, 1) AS i_, FINAL LAST(lower(CLASSIFIER())) AS j",
        rows_per_match,
    )
    same(plan, rows, found_in(5, rows, EVERYTHING))


@pytest.mark.parametrize("seed", range(4))
def test_unmatched_rows_and_timeouts(seed: int) -> None:
    rows = rows_of(seed)
    listed = "count(*) AS n, MATCH_NUMBER() AS number, sum(v) AS total, 1 AS one, LAST(s) AS last, 9 // count(*) AS q"
    unmatched = plan_of(listed, f"{ALL} WITH UNMATCHED ROWS")
    outcomes = (Outcome.MATCH, Outcome.UNMATCHED)
    found = [m for m in found_in(seed, rows, outcomes) if m.labels or m.outcome is Outcome.UNMATCHED]
    found = [reference.ReferenceMatch(m.partition, m.number, m.labels, m.start, m.outcome) for m in found]
    table = same(unmatched, rows, found)
    null = table.filter(pa.compute.is_null(table.column("number")))
    assert len(null)
    assert null.column("n").null_count == null.column("one").null_count == len(null)
    for rows_per_match in ("ONE ROW PER MATCH", ALL):
        plan = plan_of("count(*) AS n, MATCH_NUMBER() AS number", f"{rows_per_match} TIMEOUT ROWS", "WITHIN 5 ROWS")
        table = same(plan, rows, found_in(seed, rows, EVERYTHING))
        assert table.column_names[-2:] == ["labels", "timeout"]
        waiting = set(table.column("timeout").to_pylist())
        assert waiting <= {None, *WAITING}
        assert len(waiting) > 1


def test_no_row_of_a_match_that_is_all_excluded() -> None:
    rows = rows_of(2, 6, "a")
    found = [reference.ReferenceMatch(("a",), 1, (("B", 0), ("B", 1)), 0, excluded=frozenset({0, 1}))]
    assert len(same(plan_of("count(*) AS n", ALL), rows, found)) == 0
    assert same(plan_of("count(*) AS n"), rows, found).column("n").to_pylist() == [2]


def test_an_error_in_a_branch_that_is_not_taken_does_not_count() -> None:
    rows = rows_of(2, 6, "a")
    for row in rows:
        row["s"] = "a"
    found = [reference.ReferenceMatch(("a",), 1, (("A", 0), ("B", 1)), 0)]
    guarded = "CASE WHEN CLASSIFIER() = 'C' THEN LAST(A.s::INT) ELSE 5 END AS n"
    assert same(plan_of(guarded, ALL), rows, found).column("n").to_pylist() == [5, 5]
    with pytest.raises(DataError, match="Could not convert"):
        output(plan_of("LAST(s::INT) AS n, count(*) AS c", ALL), rows, found)
    # rows of other variables are not computed
    rows[1]["s"] = "4"
    assert same(plan_of("sum(B.s::INT) AS n", ALL), rows, found).column("n").to_pylist() == [None, 4]


@pytest.mark.slow
def test_attempt_marks_what_cannot_be_computed() -> None:
    rows = rows_of(7, 40)
    listed = "v + 1 AS a, s::INT AS b_, 9223372036854775806 + v AS c, h + 1 AS d_, i // i AS e_, 1 // PREV(i) AS f_"
    plan = plan_of(listed)
    expressions = [m.expression for m in plan.measures]
    values = RowValues(expressions)
    store = store_of(plan, rows, expressions)
    positions = np.arange(len(rows))
    found, failing = values.attempt(store, positions)
    assert failing[0] is None
    broken = 0
    for index, ((cells, valid), failed) in enumerate(zip(found, failing, strict=True)):
        alone = RowValues([expressions[index]])
        for position in range(len(rows)):
            if failed is not None and failed[position]:
                broken += 1
                with pytest.raises(DataError) as error:
                    alone.evaluate(store, np.array([position]))
                assert str(values.why(store, position, index)) == str(error.value)
                assert valid is not None
                assert not valid[position]
            else:
                ((cell, known),) = alone.evaluate(store, np.array([position]))
                assert (valid is None or valid[position]) == (known is None or known[0])
                assert cells[position] == cell[0] or not (known is None or known[0])
    assert broken > 20
    ours, none = values.attempt(store, positions[:0])
    assert [len(v) for v, _ in ours] == [0] * 6
    assert none == [None] * 6


def over_words(words: Sequence[str | None], listed: str) -> tuple[RowStore, RowValues]:
    """Rows of one partition with these words in `s`, and the expressions of a list of measures over them."""
    rows: list[Row] = [{"k": "a", "ts": i, "s": word} for i, word in enumerate(words)]
    schema = Schema("t", tuple(f for f in SCHEMA.fields if f.name in rows[0]), time="ts")
    text = (
        "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts "
        f"MEASURES {listed} PATTERN (A) DEFINE A AS true) AS m"
    )
    plan = bind(parse(text), lambda name: schema).factors[0].plan
    expressions = [m.expression for m in plan.measures]
    return store_of(plan, rows, expressions), RowValues(expressions)


def test_texts_are_computed_once_a_value() -> None:
    rng = random.Random(1)
    words = [rng.choice(["ab", "abc", "b", None, ""]) for _ in range(6000)]
    listed = "s LIKE 'ab%' AS a, s IS NULL AS n, length(s) AS l, s = PREV(s) AS p, random() < 0.5 AND s = 'b' AS r"
    store, values = over_words(words, listed)
    for positions in (slice(0, 0), slice(0, 1), slice(0, 6000), slice(7, 5000), np.arange(5999, -1, -1)):
        chosen = words[positions] if isinstance(positions, slice) else words[::-1]
        a, n, (length, there), _, r = values.evaluate(store, positions)
        there = np.ones(len(chosen), np.bool_) if there is None else there
        assert truth(a).tolist() == [w is not None and w.startswith("ab") for w in chosen]
        assert truth(n).tolist() == [w is None for w in chosen]
        assert [None if w is None else len(w) for w in chosen] == [
            int(v) if known else None for v, known in zip(length, there, strict=True)
        ]
        if chosen.count("b") > 100:
            assert 0.3 < truth(r).sum() / chosen.count("b") < 0.7


@pytest.mark.parametrize(("least", "most"), [(0, 40), (1 << 12, 40), (0, 1 << 16), (1 << 12, 1 << 16)])
def test_a_text_that_cannot_be_computed_fails_where_it_is_read(
    least: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matching.features.WORDS_MIN", least)
    monkeypatch.setattr("matching.features.WORDS_MAX", most)
    texts = [None if i % 31 == 5 else "no number" if i == 333 else str(i % 37 if i < 350 else i) for i in range(400)]
    store, values = over_words(texts, "CAST(s AS INTEGER) AS i, s > '3' AS b, upper(s) AS u")
    for low, high in ((0, 100), (100, 350), (300, 333), (334, 360), (360, 400), (320, 340)):
        ours, failing = values.attempt(store, slice(low, high))
        (i, i_valid), (b, b_valid), (u, _) = ours
        here = texts[low:high]
        fails = [s == "no number" for s in here]
        assert [False] * len(here) == fails if failing[0] is None else failing[0].tolist() == fails
        assert failing[1:] == [None, None]
        there = [s is not None for s in here]
        assert (b_valid.tolist() if b_valid is not None else [True] * len(here)) == there
        assert truth((b, b_valid)).tolist() == [s is not None and s > "3" for s in here]
        readable = np.array(there) & ~np.array(fails)
        assert (i_valid is None and all(there)) or i_valid.tolist() == readable.tolist()
        assert i[readable].tolist() == [int(s) for s, ok in zip(here, readable) if ok and s is not None]
        names = values.codes.encoders["VARCHAR"].of(u.astype(np.int64)).to_pylist()
        assert [name for name, ok in zip(names, there) if ok] == [s.upper() for s in here if s is not None]


@pytest.mark.slow
def test_a_running_aggregate_is_linear_in_the_rows() -> None:
    n = 20_000
    rows: list[Row] = [{"k": "a", "ts": i, "s": str(i % 7), "v": i % 5, "x": i / 8, "i": i} for i in range(n)]
    schema = Schema("t", tuple(f for f in SCHEMA.fields if f.name in rows[0]), time="ts")
    text = (
        "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES count(*) AS n, sum(v) AS v_, "
        "avg(A.x) AS a, min(B.s) AS b, FIRST(B.v, 900) AS f, LAST(A.v, 900) AS l, count(DISTINCT s) AS c, "
        "string_agg(s, '') FILTER (WHERE v = 4 AND x < 50) AS g, arg_max(s, x) AS m "
        f"{ALL} PATTERN (A | B) DEFINE A AS true) AS m"
    )
    plan = bind(parse(text), lambda name: schema).factors[0].plan
    found = [reference.ReferenceMatch(("a",), 1, tuple(("AB"[i % 2], i) for i in range(n)), 0)]
    table = output(plan, rows, found)  # a square of 20,000 rows would take minutes
    assert table.column("n").to_pylist() == list(range(1, n + 1))
    assert table.column("l").to_pylist() == [(i - i % 2 - 1800) % 5 if i >= 1800 else None for i in range(n)]
    assert table.column("m").to_pylist() == [str(i % 7) for i in range(n)]
