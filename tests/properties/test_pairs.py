"""Conditions over two rows mean what DuckDB computes over a join of them: values and errors, in kernels."""

from __future__ import annotations

import os
import re
import warnings
from random import Random

import duckdb
import pyarrow as pa
import pytest

import hybrid
from hybrid.statement.statement import compare_with_reference
from matching.answers import Answers
from query.errors import DataError, HybridWarning, QueryError
from tests.expressions import KINDS, expression, pairs

#: How many expressions are drawn; a night has time for 20,000.
EXPRESSIONS = int(os.environ.get("EXPRESSIONS", "80"))
PARTS = 4
PAIRS = 40
#: Of the expressions that DuckDB takes, the part that kernels know at least.
KNOWN = 0.9


def over_join(text: str) -> str:
    """Returns the expression over `a` and `b`, the rows of a pair."""
    return re.sub(r"(A\.)?\b(q|i|t|v|w|d|e|u|s|b)\b(?![('])", lambda m: ("a." if m[1] else "b.") + m[2], text)


def condition(text: str, pattern: str = "A B") -> str:
    return f"""SELECT k FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES LAST(k) AS z PATTERN ({pattern})
        DEFINE B AS ({text}) IS NOT DISTINCT FROM want)"""


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_condition_over_two_rows_is_what_duckdb_computes(part: int) -> None:
    seen = {"kernel": 0, "reference": 0}
    for seed in range(part, EXPRESSIONS, PARTS):
        random = Random(seed)
        text = expression(random, random.choice(KINDS), random.choice((1, 1, 2, 2, 3)))
        table = pairs(random, PAIRS)
        if "A." not in text:
            continue
        con = duckdb.connect()
        con.register("t", table)
        sql = over_join(text)
        join = "(SELECT * FROM t WHERE ts = '2024-01-01') a JOIN (SELECT * FROM t WHERE ts > '2024-01-01') b USING (k)"
        try:
            asked = f"SELECT k, TRY({sql}) AS want, TRY(({sql}) IS NULL) IS NULL AS fails FROM {join}"
            wanted = con.sql(asked).to_arrow_table()
        except duckdb.Error:
            continue  # no such types
        con.register("w", wanted)
        good = con.sql("SELECT t.*, want FROM t JOIN w USING (k) WHERE NOT fails ORDER BY k, ts").to_arrow_table()
        with warnings.catch_warnings():
            warnings.simplefilter("error", HybridWarning)
            try:
                found = hybrid.sql(condition(text), t=good).arrow().num_rows
            except HybridWarning:
                seen["reference"] += 1
                continue
            except QueryError:
                continue  # the types of `want` and of a literal
        seen["kernel"] += 1
        assert found == good.num_rows // 2, (seed, text)
        bad = wanted.filter(wanted["fails"])
        if bad.num_rows:
            one = con.sql(f"SELECT t.*, want FROM t JOIN w USING (k) WHERE k = {bad['k'][0]} ORDER BY ts")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HybridWarning)  # decimals are looked at in wider types before
                with pytest.raises(DataError):
                    hybrid.sql(condition(text), t=one.to_arrow_table()).arrow()
    assert seen["kernel"] >= KNOWN * (seen["kernel"] + seen["reference"]), seen
    assert seen["kernel"] > EXPRESSIONS // PARTS // 3, seen


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("text", [
    "coalesce(A.q, 5) > 4", "lower(A.s) IS NULL", "lower(coalesce(A.s, 'X')) = 'x'", "A.u::DATE IS NULL",
    "v > coalesce(round(A.v * 2, 1), 0)", "greatest(A.v, v) = v", "hour(coalesce(A.u, u)) = hour(u)", "s < A.s",
    "coalesce(A.s, '') <= s", "v >= coalesce(stddev(A.v), 0)", "v >= coalesce(var_pop(A.v), 0)", "A.b::INT = 1",
    "date_diff('day', coalesce(A.u, u), u) = 0", "(sum(A.t) / 2)::INT < 40", "length(A.s || s) < 4",
])  # fmt: skip
def test_where_there_is_no_other_row_the_reference_decides(text: str) -> None:
    table = pairs(Random(7), 60).append_column("want", [[True] * 120])
    found = 0
    for pattern in ("A? B", "A* B", "B A? B"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            rows, same = compare_with_reference(condition(text, pattern), {"t": table})
        assert same, (text, pattern)
        found += rows
    assert found, text


@pytest.mark.slow
def test_functions_of_two_times_are_those_of_duckdb() -> None:
    # Before: weeks were counted by their Mondays, and epoch rounded once instead of by days.
    con = duckdb.connect()
    con.execute("""CREATE TABLE t AS SELECT i // 2 AS k, i AS n, TIMESTAMP '1940-01-01' + to_microseconds(
        (hash(i) % 3000000000000000)::BIGINT) AS u FROM range(4000) r(i)""")
    con.execute("ALTER TABLE t ADD COLUMN p TIMESTAMP; UPDATE t SET p = o.u FROM t o WHERE o.n + 1 = t.n")
    for text in ("date_diff('week', {}, u)", "epoch(u - {})", "date_diff('month', {}, u)"):
        table = con.sql(f"SELECT *, {text.format('p')} AS want FROM t ORDER BY n").to_arrow_table()
        found = hybrid.sql(f"""SELECT k FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY n MEASURES count(*) AS c
            PATTERN (A B) DEFINE B AS {text.format('A.u')} = want)""", t=table).arrow()
        assert found.num_rows == 2000, text


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("selection", ["SKIP TILL NEXT MATCH", "SKIP TILL ANY MATCH", "PARTITION", "STRICT"])
@pytest.mark.parametrize("pattern", ["A+ B", "A B", "A? B", "A B+"])
def test_texts_are_ordered_by_every_engine(pattern: str, selection: str) -> None:
    # Before: AttributeError, where runs with equal values are one.
    few = pairs(Random(11), 8).drop_columns(["k"]).append_column("k", [[0] * 8 + [1] * 8])
    for after in ("NO SKIP", "SKIP PAST LAST ROW"):
        text = f"""SELECT k, c FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts, q, i, s MEASURES count(*) AS c
            AFTER MATCH {after} PATTERN ({pattern}) SELECTION {selection} DEFINE B AS s < A.s)"""
        with warnings.catch_warnings():
            warnings.simplefilter("error", HybridWarning)
            rows, same = compare_with_reference(text, {"t": few})
        assert same
        assert rows or pattern == "A? B" or selection == "STRICT"


def test_what_cannot_be_computed_of_a_row_fails_where_it_is_read() -> None:
    """`A.s::INT` is a value of A's row, but that row is not at fault."""
    rows = [{"ts": f"2024-01-01 00:00:0{i}", "v": v, "s": s} for i, (v, s) in enumerate(zip((1, 2, 9, 1), "1x34"))]
    con = duckdb.connect()
    con.execute("CREATE TABLE t (ts TIMESTAMP, v INTEGER, s VARCHAR)")
    con.executemany("INSERT INTO t VALUES (?, ?, ?)", [list(row.values()) for row in rows])
    table = con.sql("SELECT * FROM t").to_arrow_table()
    text = "SELECT m FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(v) AS m PATTERN (A B) DEFINE B AS {})"
    with warnings.catch_warnings():
        warnings.simplefilter("error", HybridWarning)
        assert hybrid.sql(text.format("v = 1 AND A.s::INT > 1"), t=table).arrow().to_pylist() == [{"m": 1}]
        with pytest.raises(DataError, match="cannot be computed"):
            hybrid.sql(text.format("v = 9 AND A.s::INT > 1"), t=table)


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    "date_diff('month', greatest(coalesce(A.u, u), date_trunc('hour', A.u)), (A.u + INTERVAL 90 MINUTE)) > -9",
    "age(greatest(A.u, u), A.u + INTERVAL 90 MINUTE) < INTERVAL 1 DAY",
])  # fmt: skip
def test_a_value_of_a_row_that_may_have_an_error_is_given_to_functions(text: str) -> None:
    # Before: "Scalar Function with name refuse does not exist".
    with warnings.catch_warnings():
        warnings.simplefilter("error", HybridWarning)
        rows, same = compare_with_reference(f"""SELECT k FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
            MEASURES LAST(k) AS z PATTERN (A B) DEFINE B AS {text})""", {"t": pairs(Random(3), 60)})
    assert same
    assert rows


@pytest.mark.parametrize("text", ["(A.e - A.q)::DECIMAL(18,0) IS NULL", "(e - A.q)::DECIMAL(9,0) IS NULL"])
def test_a_part_beyond_64_bits_beside_a_null_is_null(text: str) -> None:
    # Before: an error, since q * 10000 is too large and the cast to DECIMAL(18,0) refuses other values.
    table = pa.table({"ts": [0, 1, 2], "e": pa.array([None, None, 1], pa.decimal128(9, 4)), "q": [1 << 62, 1 << 62, 3]})
    with pytest.warns(HybridWarning, match="reference"):
        rows, same = compare_with_reference(f"""SELECT a FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS a
            PATTERN (A B) DEFINE B AS {text}) AS m""", {"t": table})
    assert same
    assert rows == 1


@pytest.mark.slow
def test_values_of_any_type_may_be_given_to_functions() -> None:
    con = duckdb.connect()
    con.execute("""CREATE TABLE t AS SELECT i // 2 AS k, i AS n, (i % 7)::HUGEINT * 10000000000000000000000 AS h,
        [i % 3, i % 2] AS l, {'a': i % 3, 'b': 'x' || (i % 2)} AS st, (i % 5)::UBIGINT AS ub,
        (i % 3)::DECIMAL(38, 2) AS dd, (CASE WHEN i % 3 = 0 THEN 'a' ELSE 'b' END)::ENUM('b', 'a') AS e,
        TIMESTAMP_NS '2024-01-01' + INTERVAL (i % 4) DAY AS tn FROM range(600) r(i)""")
    table = con.sql("SELECT * FROM t").to_arrow_table()
    for text in ("{}h > {}h", "list_contains({}l, {}l[1])", "{}st.a > {}st.a", "{}ub >= {}ub", "{}dd - {}dd > 0",
                 "{}e < {}e", "{}tn > {}tn", "{}h + {}h > 0", "len({}l) > {}l[2]"):  # fmt: skip
        (wanted,) = con.execute(f"""SELECT count(*) FROM t a JOIN t b ON a.n + 1 = b.n AND a.k = b.k
            WHERE {text.format('b.', 'a.')}""").fetchall()
        with warnings.catch_warnings():
            warnings.simplefilter("error", HybridWarning)
            found = hybrid.sql(f"""SELECT k FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY n MEASURES count(*) AS c
                PATTERN (A B) DEFINE B AS {text.format('', 'A.')})""", t=table).arrow()
        assert found.num_rows == wanted[0] > 0, text


@pytest.mark.slow
def test_runs_of_all_partitions_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: each partition by itself, 800 times: a condition on the first row of long matches was 20 times slower in
    # small pushes.
    calls = []
    answer = Answers.answer
    monkeypatch.setattr(Answers, "answer", lambda self: calls.append(1) or answer(self))
    rows = duckdb.sql("""SELECT TIMESTAMP '2024-01-01' + i * INTERVAL 1 SECOND AS ts, (i % 100)::INT AS k,
        left(md5(i::VARCHAR), 6) AS s FROM range(4_000) AS r(i)""").to_arrow_table()
    text = """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES count(*) AS n
        PATTERN (A B+) DEFINE B AS hamming(s, A.s) < 7)"""
    with hybrid.connect() as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "k": "INTEGER", "s": "VARCHAR"}, time="ts", key="k")
        with pytest.warns(HybridWarning, match="greedy quantifier"):
            alerts = db.watch(text)
        for batch in rows.to_batches(max_chunksize=500):
            db.push("t", pa.Table.from_batches([batch]))
        db.advance("t", None)
        found = alerts.fetch()
    assert found.column("n").to_pylist() == [40] * 100
    assert 0 < len(calls) < 60


@pytest.mark.slow
@pytest.mark.parametrize(("body", "rows", "most"), [
    ("PATTERN (A B) SELECTION SKIP TILL NEXT MATCH DEFINE A AS i % 10 = 0, B AS {}", 2_000, 900),
    ("AFTER MATCH SKIP TO NEXT ROW PATTERN (A X*? B) WITHIN 30 ROWS DEFINE B AS {}", 4_000, 90),
])  # fmt: skip
@pytest.mark.parametrize("condition", ["levenshtein(s, A.s) < 2", "jaccard(s || i % 3, A.s || A.i % 5) > 0.99"])
def test_runs_that_wait_are_asked_for_together(
    body: str, rows: int, most: int, condition: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before: a call for almost each pair of rows: 60,000 and 25,000 of them.
    calls = []
    answer = Answers.answer
    monkeypatch.setattr(Answers, "answer", lambda self: calls.append(1) or answer(self))
    t = duckdb.sql(f"SELECT i AS ts, i, left(md5(i::VARCHAR), 8) AS s FROM range({rows}) AS r(i)").to_arrow_table()
    hybrid.sql(f"FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.i AS a, B.i AS b {body.format(condition)}) AS m", t=t)
    assert 0 < len(calls) < most
