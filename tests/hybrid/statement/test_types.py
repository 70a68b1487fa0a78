"""Types whose values are not what their numbers say: infinite times, HUGEINT, intervals of days, broken decimals."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import hybrid
from query.errors import DataError


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
@pytest.mark.parametrize("type", ["TIMESTAMP", "TIMESTAMPTZ"])
@pytest.mark.parametrize("endless", ["infinity", "-infinity"])
@pytest.mark.parametrize("condition", [
    "{a} - INTERVAL 2 HOUR = {a}", "{a} - INTERVAL 2 HOUR < {a}", "{b} < {a} + INTERVAL 2 HOUR",
    "{a} + INTERVAL 1 DAY >= {b}", "{a} - {b} > INTERVAL 1 DAY", "{b} - {a} < INTERVAL 1 DAY",
])  # fmt: skip
def test_infinite_times(type: str, endless: str, condition: str) -> None:
    # Before: computed with as numbers, in the reference too.
    rows = f"(VALUES (1, {type} '{endless}'), (2, {type} '2024-01-01')) AS t(i, x)"
    text = f"""SELECT count(*) AS n FROM {rows} MATCH_RECOGNIZE (ORDER BY i MEASURES A.i AS a
        PATTERN (A B) DEFINE B AS {condition.format(a='A.x', b='x')})"""
    asked = condition.format(a="a.x", b="b.x")
    try:
        wanted = duckdb.sql(f"""SELECT count(*) FROM {rows.replace('AS t', 'AS a')}, {rows.replace('AS t', 'AS b')}
            WHERE a.i = 1 AND b.i = 2 AND {asked}""").fetchall()
    except duckdb.Error:
        with pytest.raises(DataError, match="infinite"):
            hybrid.sql(text)
        return
    assert hybrid.sql(text).fetchall() == wanted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_sums_of_a_subquery_are_huge_integers() -> None:
    # Before: DECIMAL(38, 0), of which // is not whole, and a median is.
    source = "(SELECT i, sum(v) AS h FROM (VALUES (1, 1), (2, 2), (3, 7)) AS r(i, v) GROUP BY i)"
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE sums AS FROM {source}")
    relation = connection.table("sums")
    text = """SELECT * FROM {} MATCH_RECOGNIZE (ORDER BY i MEASURES C.h // 2 AS a, median(A.h) AS b, mad(A.h) AS c,
        typeof(C.h) AS t PATTERN (A A C) DEFINE C AS h // 2 = 3)"""
    wanted = [(3, 1.5, 0.5, "HUGEINT")]
    assert hybrid.sql(text.format(source)).fetchall() == wanted
    assert hybrid.sql(text.format("sums"), connection=connection).fetchall() == wanted
    assert hybrid.sql(text.format("r"), r=relation).fetchall() == wanted


@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_the_larger_interval_is_that_of_duckdb() -> None:
    # Before: by length in DEFINE, and as in DuckDB in MEASURES.
    rows, larger = "(VALUES (1, INTERVAL 1 DAY), (2, INTERVAL 25 HOUR)) AS t(i, x)", "greatest(x, A.x) = INTERVAL 1 DAY"
    text = f"SELECT * FROM {rows} MATCH_RECOGNIZE (ORDER BY i MEASURES {{}} AS m PATTERN (A B) DEFINE B AS {{}})"
    assert hybrid.sql(text.format(larger, "TRUE")).fetchall() == [(True,)]
    assert hybrid.sql(text.format("A.i", larger)).fetchall() == [(1,)]


def test_a_fatal_error_of_duckdb_ends_one_statement() -> None:
    # Before: all later ones of the process, too: "database has been invalidated".
    broken = pa.Array.from_buffers(
        pa.decimal128(38, 0), 1, [None, pa.py_buffer(np.array([0, -(2**63)], np.int64))]
    )  # a decimal of more digits than its type has
    text = "SELECT a FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES x::VARCHAR AS a PATTERN (A))"
    with pytest.raises(DataError):
        hybrid.sql(text, t=pa.table({"i": [1], "x": broken}))
    assert hybrid.sql(text, t=pa.table({"i": [1], "x": [2]})).fetchall() == [("2",)]
