"""Frames and tables of the caller, found by their names."""

from __future__ import annotations

import threading

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import hybrid
from hybrid import DataError, QueryError
from tests.waiting import GUARD_S

ticks = pd.DataFrame({"ts": pd.date_range("2024-01-01", periods=4, freq="min"), "price": [3.0, 2.0, 1.0, 2.0]})
FALLS = """SELECT * FROM {} MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(D.price) AS low
    PATTERN (S D+) DEFINE D AS price < PREV(price)) AS m"""
PEAKS = "SELECT max(price) AS top FROM {}"


def test_a_global_frame() -> None:
    assert hybrid.sql(FALLS.format("ticks")).fetchall() == [(1.0,)]


@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "arrow", "relation", "dataset"])
def test_a_local_table_of_any_kind(kind: str) -> None:
    arrow = pa.Table.from_pandas(ticks)
    mine = {
        "pandas": ticks, "polars": pl.from_arrow(arrow), "lazy": pl.from_arrow(arrow).lazy(), "arrow": arrow,
        "relation": duckdb.from_arrow(arrow), "dataset": ds.dataset(arrow),
    }[kind]  # fmt: skip
    assert mine is not None
    assert hybrid.sql(FALLS.format("mine")).fetchall() == [(1.0,)]
    assert hybrid.sql(PEAKS.format("mine")).fetchall() == [(3.0,)]


def test_local_names_come_after_given_ones_and_those_of_the_connection() -> None:
    other = ticks.assign(price=ticks["price"] + 10)
    assert hybrid.sql(PEAKS.format("ticks"), ticks=other).fetchall() == [(13.0,)]
    con = duckdb.connect()
    con.execute("CREATE TABLE ticks AS SELECT 99.0 AS price")
    assert hybrid.sql(PEAKS.format("ticks"), con).fetchall() == [(99,)]
    assert hybrid.sql(PEAKS.format("other"), con).fetchall() == [(13.0,)]
    assert hybrid.sql(f"WITH ticks AS (FROM other) {PEAKS.format('ticks')}").fetchall() == [(13.0,)]


def test_a_local_variable_hides_a_global_one_and_others_are_no_tables() -> None:
    ticks = [{"price": 1.0}]  # a list is no table unless it is given
    with pytest.raises(QueryError, match="unknown table"):
        hybrid.sql(PEAKS.format("ticks"))
    assert hybrid.sql(PEAKS.format("ticks"), ticks=ticks).fetchall() == [(1.0,)]


def test_a_database_finds_them_unless_it_is_closed_to_the_outside() -> None:
    with hybrid.connect() as db:
        db.create_stream("other", {"ts": "TIMESTAMP", "price": "DOUBLE"}, time="ts")
        assert db.sql(FALLS.format("ticks")).fetchall() == [(1.0,)]
    with hybrid.connect(external=False) as db, pytest.raises(QueryError, match="unknown table or stream ticks"):
        db.sql(FALLS.format("ticks"))


def test_the_index_of_a_frame_is_no_column() -> None:
    indexed = ticks.set_index("ts")  # noqa: F841 (found by its name)
    with pytest.raises(QueryError, match=r"it is the index of indexed: pass indexed\.reset_index\(\)"):
        hybrid.sql(FALLS.format("indexed"))


def test_a_frame_with_two_columns_of_one_name() -> None:
    twins = pd.concat([ticks, ticks[["price"]]], axis=1)  # noqa: F841 (found by its name)
    with pytest.raises(DataError, match="twins has two columns price"):
        hybrid.sql(FALLS.format("twins"))


def test_an_object_column_of_numbers_beyond_64_bits() -> None:
    wide = ticks.assign(n=pd.Series([2**64, 1, 2, 3], dtype=object))  # noqa: F841 (found by its name)
    # Before: OverflowError; then a DataError without the name of the column, though no clause reads it.
    assert hybrid.sql(FALLS.format("wide")).fetchall() == [(1.0,)]
    with pytest.raises(DataError, match=r"table wide, column n: .*too large"):
        hybrid.sql(FALLS.replace("D.price", "D.n").format("wide"))


def test_one_base_class_of_errors() -> None:
    with pytest.raises(hybrid.Error) as query:
        hybrid.sql("SELECT * FROM nothing_of_this_name")
    assert query.value.code == "HQ200"
    with pytest.raises(hybrid.Error) as data:
        hybrid.sql("SELECT * FROM t", t=5)
    assert data.value.code == "HQ800"
    assert set(dir(hybrid)) == set(hybrid.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["enable_external_access", "python_enable_replacements"])
def test_a_connection_that_sees_no_variables(setting: str) -> None:
    con = duckdb.connect(config={setting: "false"})
    # Before: a statement on a connection without external access read the frames of whoever ran it.
    with pytest.raises(QueryError, match="unknown table ticks"):
        hybrid.sql(PEAKS.format("ticks"), con)
    with pytest.raises(QueryError, match="unknown table or stream ticks"):
        hybrid.sql(FALLS.format("ticks"), con)
    # Before: DuckDB's ResourceInUseException, where replacements were off.
    assert hybrid.sql(FALLS.format("ticks"), con, ticks=ticks).fetchall() == [(1.0,)]


@pytest.mark.parametrize(("value", "said"), [
    ([{"ts": 1, "price": 2.0}], r"mine is a list here: pass it by name, hybrid\.sql\(text, mine=mine\)"),
    ({"ts": [1], "price": [2.0]}, r"mine is a dict here: pass it by name, hybrid\.sql\(text, mine=mine\)"),
    (ticks["price"], r"mine is a Series here, not a table: use mine\.to_frame\(\)"),
    (5, "mine is an int here, not a table"),
])  # fmt: skip
def test_a_variable_that_is_no_table(value: object, said: str) -> None:
    mine = value  # noqa: F841 (found by its name)
    # Before: no hint that there is a variable of that name.
    with pytest.raises(QueryError, match=said):
        hybrid.sql(FALLS.format("mine"))


def test_a_name_of_a_frame_that_is_nearly_right_or_an_attribute() -> None:
    # Before: no hint.
    with pytest.raises(QueryError, match=r"did you mean ticks\?"):
        hybrid.sql(FALLS.format("tikcs"))
    owner = type("Owner", (), {"ticks": ticks})  # noqa: F841 (found by its name)
    with pytest.raises(QueryError, match=r"pass it by a name: hybrid\.sql\(text, ticks=owner\.ticks\)"):
        hybrid.sql(FALLS.format("owner.ticks"))


def test_the_index_of_a_frame_without_a_name() -> None:
    timed = ticks.set_index("ts").rename_axis(None)  # noqa: F841 (found by its name)
    # Before: `available: price`, with no word about the index.
    with pytest.raises(QueryError, match=r"for the index of timed pass timed\.reset_index\(names='ts'\)"):
        hybrid.sql(FALLS.format("timed"))


def test_an_object_column_of_several_types() -> None:
    mixed = ticks.assign(price=pd.Series([3, "two", 1, 2], dtype=object))  # noqa: F841 (found by its name)
    # Before: Arrow's arguments as a tuple.
    with pytest.raises(DataError, match=r"table mixed, column price: Could not convert 'two' with type str") as caught:
        hybrid.sql(FALLS.format("mixed"))
    assert caught.value.hint is not None
    assert "mixed['price'].astype(str)" in caught.value.hint


def test_a_column_of_complex_numbers() -> None:
    numbers = pd.DataFrame({"z": [1j]})  # noqa: F841 (found by its name)
    # Before: pyarrow's ArrowNotImplementedError.
    with pytest.raises(DataError, match="table numbers, column z: Unsupported numpy type"):
        hybrid.sql("SELECT * FROM numbers")


@pytest.mark.parametrize("name", ["order", "group", "at", "left", "select"])
def test_a_table_named_by_a_word_of_sql(name: str) -> None:
    # Before: a syntax error, since the rows took the name without its quotes.
    assert hybrid.sql(FALLS.removesuffix(" AS m").format(f'"{name}"'), **{name: ticks}).fetchall() == [(1.0,)]
    assert hybrid.sql(FALLS.format(f'"{name}"').replace("AS m", f'AS "{name}"'), **{name: ticks}).fetchall() == [(1.0,)]


def test_columns_of_the_input_that_the_pattern_does_not_return() -> None:
    # Before: `did you mean price?` for price, and a list of columns that are not there.
    with pytest.raises(QueryError, match=r"unknown column price(.|\n)*the pattern returns low: add price to MEASURES"):
        hybrid.sql(FALLS.replace("*", "price", 1).format("ticks"))
    with pytest.raises(QueryError, match=r"unknown column nothing(.|\n)*hint: available: low$"):
        hybrid.sql(FALLS.replace("*", "nothing", 1).format("ticks"))


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "relation"])
def test_ordered_categories_compare_in_their_order(kind: str) -> None:
    moods = ["low", "fair", "high"]
    values = ["low", "fair", "high", "fair", None, "low", "high"]
    con = duckdb.connect()
    con.execute("CREATE TYPE mood AS ENUM ('low', 'fair', 'high')")
    con.register("plain", pa.table({"i": range(7), "mood": pa.array(values)}))
    con.execute("CREATE TABLE t AS SELECT i, mood::mood AS mood FROM plain ORDER BY i")
    frame = pl.DataFrame({"i": range(7), "mood": pl.Series(values, dtype=pl.Enum(moods))})
    t = {
        "pandas": pd.DataFrame({"i": range(7), "mood": pd.Categorical(values, moods, ordered=True)}),
        "polars": frame, "lazy": frame.lazy(), "relation": con.table("t"),
    }[kind]  # fmt: skip
    rises = """SELECT * FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES LAST(mood) AS mood, max(mood) AS top, A.i AS i
        PATTERN (A B+) DEFINE B AS mood > PREV(mood))"""
    # Before: compared as text, in which fair is below high, and low above both; DuckDB and pandas have the order.
    for text in (rises, "SELECT max(mood), min(mood) FROM t", "SELECT * FROM t ORDER BY mood, i",
                 rises.replace("ORDER BY i", "ORDER BY mood, i"), rises.replace("FROM t", "FROM (SELECT * FROM t)"),
                 f"SELECT max(mood), count(*) FROM ({rises}) WHERE mood > 'fair'"):  # fmt: skip
        assert hybrid.sql(text, t=t).fetchall() == hybrid.sql(text, con).fetchall()
    assert hybrid.sql(rises, t=t).fetchall() == [("high", "high", 0), ("high", "high", 5)]
    assert hybrid.sql(rises, t=t).evidence().num_rows == 5
    if kind == "pandas":
        assert hybrid.sql(rises, t=t).df()["mood"].dtype == t["mood"].dtype
    if kind == "polars":
        assert hybrid.sql(rises, t=t).pl()["mood"].dtype == t["mood"].dtype


@pytest.mark.slow
def test_two_threads_on_one_connection() -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT range AS ts, 7919 * range % 101 AS price FROM range(2000)")
    busy, over = threading.Event(), threading.Event()

    def slow(x: int) -> int:
        busy.set()
        assert over.wait(GUARD_S)
        return x

    con.create_function("slow", slow, ["BIGINT"], "BIGINT")
    other = threading.Thread(target=lambda: con.sql("SELECT max(slow(ts)) FROM t LIMIT 1").fetchall())
    other.start()
    assert busy.wait(GUARD_S)
    try:
        # Before: DuckDB's ResourceInUseException.
        with pytest.raises(DataError, match="another thread is using the connection") as caught:
            hybrid.sql(FALLS.format("t"), con)
    finally:
        over.set()
        other.join()
    assert "connection.cursor()" in str(caught.value.hint)
    assert len(hybrid.sql(FALLS.format("t"), con.cursor())) > 500
    assert len(hybrid.sql(FALLS.format("t"), con)) > 500
