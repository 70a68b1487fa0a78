"""Types whose values are not what their numbers say: infinite times, HUGEINT, intervals of days, broken decimals."""

from __future__ import annotations

from uuid import UUID

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


#: A pattern that is asked of rows with columns i and x.
ROWS = "SELECT * FROM {} MATCH_RECOGNIZE (ORDER BY i MEASURES B.i AS i PATTERN (A B) DEFINE B AS {})"
UUIDS = """(SELECT i, x::UUID AS x FROM (VALUES (1, '00000000-0000-0000-0000-00000000000a'),
    (2, '80000000-0000-0000-0000-00000000000a')) AS t(i, x))"""


@pytest.mark.parametrize("condition", [
    "x = '80000000-0000-0000-0000-00000000000A'", "x IN ('{80000000-0000-0000-0000-00000000000a}', A.x)", "x > A.x",
    "typeof(x) = 'UUID'", "hash(x) = hash(x::VARCHAR::UUID)", "x <> A.x AND max(x) = x",
])  # fmt: skip
@pytest.mark.parametrize("kind", ["subquery", "relation", "arrow", "pandas"])
def test_uuids_are_uuids(kind: str, condition: str) -> None:
    # Before: texts, so that another spelling of a UUID was not found.
    tables: dict[str, object] = {
        "relation": duckdb.sql(UUIDS),
        "arrow": pa.table({"i": [1, 2], "x": pa.array([UUID(int=n).bytes for n in (10, 10 + (1 << 127))], pa.uuid())}),
        "pandas": duckdb.sql(UUIDS).df(),
    }
    if kind == "subquery":
        assert hybrid.sql(ROWS.format(UUIDS, condition)).fetchall() == [(2,)]
    else:
        assert hybrid.sql(ROWS.format("t", condition), t=tables[kind]).fetchall() == [(2,)]


def test_enums_of_a_cast_have_their_order() -> None:
    # Before: they were texts, unless of a user's connection or of a table that is given.
    rows = "(SELECT i, x::ENUM('b', 'a') AS x FROM (VALUES (1, 'b'), (2, 'a')) AS t(i, x))"
    assert hybrid.sql(ROWS.format(rows, "x > A.x AND max(x) = 'a'")).fetchall() == [(2,)]
    assert hybrid.sql(ROWS.format(rows, "x < A.x")).fetchall() == []


def test_types_that_arrow_lacks_reach_the_outer_select() -> None:
    # Before: DECIMAL(38, 0), of which // is not whole, and text.
    rows = UUIDS.replace("SELECT i,", "SELECT i, i::HUGEINT AS h,")
    pattern = f"""SELECT {{}} FROM {rows} MATCH_RECOGNIZE (ORDER BY i
        MEASURES B.h AS h, B.x AS x PATTERN (A B))"""
    inner = pattern.format("h + 1 AS h, x, 1 AS i")
    for text in (
        pattern.format("h // 3, typeof(h), typeof(x), x = '{80000000-0000-0000-0000-00000000000a}'"),
        f"""SELECT * FROM ({inner}) MATCH_RECOGNIZE (ORDER BY i MEASURES (A.h - 1) // 3 AS a, typeof(A.h) AS b,
            typeof(A.x) AS c, A.x = '80000000-0000-0000-0000-00000000000A' AS d PATTERN (A))""",
    ):
        assert hybrid.sql(text).fetchall() == [(0, "HUGEINT", "UUID", True)]


@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
@pytest.mark.parametrize("condition", [
    "count(DISTINCT x) = 2", "count(DISTINCT {'a': x}) = 2", "count(DISTINCT [x, NULL]) = 2",
    "count(DISTINCT {'a': [A.x]}) = 1",
])  # fmt: skip
def test_lists_and_structs_are_counted(condition: str) -> None:
    # Before: TypeError, unhashable type.
    rows = "(VALUES (1, [0.0::DOUBLE, 'nan'::DOUBLE]), (2, [1.0, NULL])) AS t(i, x)"
    assert hybrid.sql(ROWS.format(rows, condition)).fetchall() == [(2,)]
    equal = "(VALUES (1, [0.0::DOUBLE, 'nan'::DOUBLE]), (2, [-0.0, 'nan'::DOUBLE])) AS t(i, x)"
    assert hybrid.sql(ROWS.format(equal, condition)).fetchall() == ([(2,)] if "1" in condition else [])


@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_decimals_of_many_places_are_rounded() -> None:
    # Before: OverflowError, Python int too large to convert to C long.
    rows = "(SELECT i, x::DECIMAL(38, 20) AS x FROM (VALUES (1, '123456789012345678.5'), (2, '1.25')) AS t(i, x))"
    for condition in ("round(x - A.x, 1) < 0", "floor(x) < floor(A.x)", "x::DECIMAL(18, 0) < A.x::DECIMAL(18, 0)"):
        assert hybrid.sql(ROWS.format(rows, condition)).fetchall() == [(2,)]


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
