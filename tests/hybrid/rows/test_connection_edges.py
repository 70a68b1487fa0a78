"""A user's connection gives a statement its clock, types and functions, serves one thread, and may be closed."""

from __future__ import annotations

import threading
import time
from typing import Any

import duckdb
import pytest

import hybrid
from query.language.duck import AGGREGATE_MACROS


def three_rows() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT i, 's' || i AS s FROM range(3) AS r(i)")
    return connection


def measured(measure: str, pattern: str = "A+", connection: duckdb.DuckDBPyConnection | None = None) -> Any:
    text = f"SELECT x FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES {measure} AS x PATTERN ({pattern}))"
    return hybrid.sql(text, connection or three_rows()).fetchall()


def taken(condition: str, connection: duckdb.DuckDBPyConnection | None = None) -> Any:
    text = f"SELECT x FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES list(i) AS x PATTERN (A+) DEFINE A AS {condition})"
    return hybrid.sql(text, connection or three_rows()).fetchall()


def test_each_macro_of_duckdb_that_aggregates_is_known() -> None:
    calls = "list_transform(regexp_extract_all(macro_definition, '(\\w+)\\(', 1), lambda w: lower(w))"
    found = duckdb.connect().execute(
        "WITH a AS (SELECT DISTINCT function_name AS n FROM duckdb_functions() WHERE function_type = 'aggregate') "
        f"SELECT DISTINCT function_name FROM duckdb_functions() AS f, a WHERE f.internal AND function_type = 'macro' "
        f"AND list_contains({calls}, a.n)"
    ).fetchall()  # fmt: skip
    assert {name for (name,) in found} <= AGGREGATE_MACROS


def test_macros_of_duckdb_that_aggregate_read_all_rows() -> None:
    # Before: [('[2]',)], and no match of the conditions.
    assert measured("json_group_array(i)") == [("[0,1,2]",)]
    assert measured("json_group_object(s, i)") == [('{"s0":0,"s1":1,"s2":2}',)]
    assert taken("json_group_array(i) = '[0]'") == [([0],)]
    assert taken("json_array_length(json_group_array(A.i)) <= 2") == [([0, 1],), ([2],)]


@pytest.mark.parametrize(("measure", "type"), [
    ("'12:00:00+02'::TIMETZ", "TIME WITH TIME ZONE"), ("max(md5_number(s))", "UHUGEINT"), ("i::BIGNUM", "BIGNUM"),
    ("list(md5_number(s))", "UHUGEINT[]"), ("bitstring_agg(i, 0, 7)", "BIT"), ("max(i::BIT)::VARCHAR", "BIT"),
    ("variant_group_array(i)", "VARIANT"), ("union_value(n := i)", "UNION(n BIGINT)"), ("get_type(i)", "TYPE"),
    ("{'a': i::BIT}", "STRUCT(a BIT)"), ("sum(i::BIGNUM)::VARCHAR", "BIGNUM"),
])  # fmt: skip
def test_a_measure_of_a_type_that_arrow_lacks_is_refused(measure: str, type: str) -> None:
    # Before: a time without its zone, -1 for the largest UHUGEINT, bytes, or errors of Arrow.
    with pytest.raises(hybrid.QueryError, match="that patterns cannot hand on") as error:
        measured(measure)
    assert f"{type} is a type" in str(error.value)


@pytest.mark.parametrize("name", ["GEOMETRY", "VARIANT", "BIGNUM", "TYPE", "BIT", "ENUM"])
def test_a_field_may_be_called_like_a_type(name: str) -> None:
    # Before: a STRUCT with a field GEOMETRY was refused, as if it had that type.
    assert measured(f"{{'{name}': i, 'a': 1}}", "A{3}") == [({name: 2, "a": 1},)]


def test_values_of_such_types_within_a_row_are_computed() -> None:
    assert measured("right((i::BIT)::VARCHAR, 1)", "A{2}") == [("1",)]
    assert measured("count(DISTINCT md5_number(s))") == [(3,)]
    assert taken("i::BIT > PREV(i::BIT)") == [([1, 2],)]


def test_an_empty_map_is_a_measure() -> None:
    # Before: Arrow ended the process: "Map array keys array should have no nulls".
    assert measured("map()", "A{3}") == [([],)]
    assert measured("{'a': map()}", "A{3}") == [({"a": []},)]


CLOCKS = (
    "now()", "current_timestamp", "localtimestamp", "localtime", "current_time", "get_current_timestamp()",
    "transaction_timestamp()", "today()", "current_date", "txid_current()",
)  # fmt: skip


@pytest.mark.parametrize("clock", CLOCKS)
def test_the_clock_of_a_connection_outside_of_a_transaction(clock: str) -> None:
    # Before: "the value of now has a type that patterns cannot read".
    assert taken(f"{clock} IS NOT NULL AND {clock} = {clock}") == [([0, 1, 2],)]


def test_where_a_connection_is() -> None:
    connection = duckdb.connect()
    connection.execute("ATTACH ':memory:' AS other; CREATE SCHEMA other.s; USE other.s")
    connection.execute("CREATE TABLE t AS SELECT 1 AS i")
    where = "current_catalog() || current_database() || current_schema()"
    assert measured(where, "A", connection) == [("otherothers",)]


@pytest.mark.parametrize("order", ["asc", "ascending", "desc", "DESCENDING"])
def test_rows_come_in_the_default_order(order: str) -> None:
    # Before: descending also where `asc` was set, which DuckDB calls ASC, and its default ASCENDING.
    connection = three_rows()
    connection.execute(f"SET default_order = '{order}'")
    expected = connection.execute("SELECT list(i ORDER BY i) FROM t").fetchall()
    assert measured("list(i)", "A+", connection) == expected


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("call", [
    "list_reverse_sort([1, 3, NULL, 2])", "array_reverse_sort([1, 2])",
    "list_reverse_sort([1, NULL, 2], 'NULLS FIRST')",
])  # fmt: skip
def test_lists_are_sorted_in_the_default_order(order: str, call: str) -> None:
    connection = three_rows()
    connection.execute(f"SET default_order = '{order}'")
    assert measured(call, "A{3}", connection) == connection.execute(f"SELECT {call}").fetchall()


LEVELS = "(['low', 'high', 'crit'])[i + 1]::level"


@pytest.mark.parametrize("condition", [
    "st.l >= 'high'::level", "mp['k'] > 'high'::level", "ls[1].q >= 'high'::level", "st >= {'l': 'high'::level}",
    "ar[1] >= 'high'::level",
])  # fmt: skip
def test_enums_in_other_types_have_their_order(condition: str) -> None:
    # Before: the order of their texts.
    connection = duckdb.connect()
    connection.execute("CREATE TYPE level AS ENUM ('low', 'high', 'crit')")
    values = f"{{'l': {LEVELS}}} AS st, map(['k'], [{LEVELS}]) AS mp, [{{'q': {LEVELS}}}] AS ls"
    connection.execute(f"CREATE TABLE t AS SELECT i, {values}, array_value({LEVELS}) AS ar FROM range(3) AS r(i)")
    expected = connection.execute(f"SELECT i FROM t WHERE {condition}").fetchall()
    text = f"SELECT x FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES A.i AS x PATTERN (A) DEFINE A AS {condition})"
    assert hybrid.sql(text, connection).fetchall() == expected
    ordered = "SELECT x FROM t MATCH_RECOGNIZE (ORDER BY st DESC MEASURES list(i) AS x PATTERN (A+))"
    assert hybrid.sql(ordered, connection).fetchall() == [([2, 1, 0],)]
    largest = "SELECT x FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES max(st) AS x PATTERN (A+))"
    largest += " WHERE x > {'l': 'low'::level}"
    assert hybrid.sql(largest, connection).fetchall() == [({"l": "crit"},)]


def test_arrays_of_enums_are_read() -> None:
    # Before: "Failed to parse string: 'a' as a scalar of type uint8", with a hint about times.
    rows = duckdb.sql("SELECT i, [s]::ENUM('b', 'a')[1] AS x FROM (VALUES (1, 'a'), (2, 'b')) AS v(i, s)")
    text = "SELECT * FROM rows MATCH_RECOGNIZE (ORDER BY i MEASURES A.x[1] AS y PATTERN (A))"
    assert hybrid.sql(text, rows=rows).fetchall() == [("a",), ("b",)]


@pytest.mark.slow
def test_threads_that_share_a_connection_are_told_so() -> None:
    # Before: one read the results of the other: ValueError, TypeError, and settings and views that stayed.
    connection = three_rows()
    found: list[object] = []

    def work() -> None:
        for _ in range(10):
            try:
                found.append(measured("list(i)", "A+", connection))
            except hybrid.DataError as error:
                found.append(str(error).partition("\n")[0])
            time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one in ([([0, 1, 2],)], "another thread is using the connection") for one in found)
    assert [([0, 1, 2],)] in found
    assert connection.execute("SELECT current_setting('python_enable_replacements')").fetchall() == [(True,)]
    assert connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall() == []


@pytest.mark.slow
def test_a_timeout_ends_a_function_of_the_connection() -> None:
    # Before: after all 65,536 rows of a batch.
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT i FROM range(60_000) AS r(i)")

    called: list[int] = []

    def slow(x: int) -> int:
        called.append(x)
        time.sleep(0.0005)
        return x

    connection.create_function("slow", slow, ["BIGINT"], "BIGINT")
    text = "SELECT count(*) FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES slow(A.i) AS x PATTERN (A))"
    with pytest.raises(hybrid.QueryError, match="HQ602"):
        hybrid.sql(text, connection, timeout=1)
    assert 0 < len(called) < 60_000


@pytest.mark.slow
def test_a_connection_that_is_closed_meanwhile() -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT i FROM range(60_000) AS r(i)")

    def close_it() -> None:
        while True:
            try:
                return connection.close()
            except duckdb.ResourceInUseException:  # for moments, as its cursors compute
                time.sleep(0.001)

    def close(x: int) -> int:
        if x == 100:
            threading.Thread(target=close_it).start()
        time.sleep(0.0001)
        return x

    connection.create_function("close", close, ["BIGINT"], "BIGINT")
    text = "SELECT sum(x) FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES close(A.i) AS x PATTERN (A))"
    with pytest.raises(hybrid.Error, match="closed"):
        hybrid.sql(text, connection).fetchall()


COLLATED = "FROM c MATCH_RECOGNIZE (PARTITION BY s ORDER BY i MEASURES count(*) AS n PATTERN (Z+))"
SINGLE = "FROM c MATCH_RECOGNIZE (ORDER BY i MEASURES Z.s AS x PATTERN (Z))"
ALL_ROWS = "FROM c MATCH_RECOGNIZE (ORDER BY i MEASURES Z.i AS j ALL ROWS PER MATCH PATTERN (Z))"


@pytest.mark.parametrize(("text", "expected"), [
    (f"SELECT n {COLLATED} WHERE s = 'A'", [(2,)]), (f"SELECT count(*) {SINGLE} WHERE x = 'A'", [(2,)]),
    (f"SELECT count(*) {ALL_ROWS} WHERE s = 'b'", [(2,)]), (f"SELECT count(DISTINCT s) {ALL_ROWS}", [(2,)]),
    (f"SELECT list(j ORDER BY s, j) {ALL_ROWS}", [([1, 4, 2, 3],)]),
    ("SELECT count(*) FROM made WHERE x = 'B'", [(2,)]),
])  # fmt: skip
def test_columns_keep_their_collation_behind_a_pattern(text: str, expected: list[tuple[Any, ...]]) -> None:
    # Before: no row of the first, one of the second: they were compared byte by byte.
    connection = duckdb.connect()
    connection.execute("CREATE TABLE c (i BIGINT, s VARCHAR COLLATE NOCASE)")
    connection.execute("INSERT INTO c VALUES (1, 'a'), (2, 'B'), (3, 'b'), (4, 'A')")
    hybrid.sql(f"CREATE TABLE made AS SELECT x {SINGLE}", connection)
    assert hybrid.sql(text, connection).fetchall() == expected
    views = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    assert views == []


def _below(a: int, b: int) -> bool:
    if b > 5:
        raise ValueError(f"odd value {b}")
    return a < b


@pytest.mark.parametrize("condition", ["f(A.v, v)", "f(v, v)", "f(A.v, A.v)", "f(A.v, v) AND count(*) > 1"])
def test_the_error_of_a_function_is_told_wherever_a_condition_calls_it(condition: str) -> None:
    # Before: "overflows or divides by zero at one of the rows", or "a function does not take one of its values".
    with duckdb.connect() as connection:
        connection.create_function("f", _below)
        connection.execute("CREATE TABLE t AS SELECT i AS ts, i % 9 AS v FROM range(40) r(i)")
        text = f"FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS a PATTERN (A B) DEFINE B AS {condition}) AS m"
        with pytest.raises(hybrid.DataError, match=r"ValueError: odd value [678]\n  --> query:1:81"):
            hybrid.sql(text, connection)
