"""What comes in as a table: keys of all dicts, NaN and null, offsets of any size."""

from __future__ import annotations

import re
import warnings
from datetime import datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import hybrid
from hybrid.statement.statement import compare_with_reference

NOON = datetime(2024, 1, 1, 12)
ALL_ROWS = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts ALL ROWS PER MATCH PATTERN (A))"


def test_keys_of_all_dicts_are_columns() -> None:
    """In order of first appearance; what a dict lacks is null there."""
    events = [{"ts": NOON}, {"ts": NOON, "b": 1}, {"a": "x", "ts": NOON}]
    # Before: a column ts alone, no word.
    assert hybrid.sql(ALL_ROWS, t=events).arrow().to_pylist() == [
        {"ts": NOON, "b": None, "a": None},
        {"ts": NOON, "b": 1, "a": None},
        {"ts": NOON, "b": None, "a": "x"},
    ]
    conditions = "SELECT b FROM t MATCH_RECOGNIZE (MEASURES A.b AS b PATTERN (A) DEFINE A AS b = 1)"
    assert hybrid.sql(conditions, t=events).arrow().to_pylist() == [{"b": 1}]


def test_two_keys_that_differ_in_case_are_two_columns() -> None:
    with pytest.raises(hybrid.DataError, match="two columns"):
        hybrid.sql(ALL_ROWS, t=[{"ts": NOON, "v": 1}, {"ts": NOON, "V": 2}])


# ---- NaN -------------------------------------------------------------------------------------------------------------

COLUMNS = {"ts": [NOON, NOON + timedelta(seconds=1)], "x": [1.0, float("nan")]}
#: What means null by NaN, and what means NaN.
MEAN_NULL: dict[str, Any] = {
    "float64 of pandas": pd.DataFrame(COLUMNS),
    "Float64 of pandas": pd.DataFrame(COLUMNS).astype({"x": "Float64"}),
    "series of pandas": dict(pd.DataFrame(COLUMNS).items()),
}
MEAN_NAN: dict[str, Any] = {
    "polars": pl.DataFrame(COLUMNS),
    "Arrow": pa.table(COLUMNS),
    "columns": COLUMNS,
    "dicts": [{"ts": ts, "x": x} for ts, x in zip(*COLUMNS.values(), strict=True)],
}


@pytest.mark.parametrize("name", [*MEAN_NULL, *MEAN_NAN])
def test_nan_of_pandas_is_null_and_nan_of_others_is_nan(name: str) -> None:
    """In a table and in a push alike; and as DuckDB reads what it can read."""
    data = (MEAN_NULL | MEAN_NAN)[name]
    expected = "[1.0, None]" if name in MEAN_NULL else "[1.0, nan]"
    assert str(hybrid.sql(ALL_ROWS, t=data).arrow().column("x").to_pylist()) == expected
    with hybrid.connect() as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "x": "DOUBLE"}, time="ts")
        db.push("t", data)
        assert str(db.sql(ALL_ROWS).arrow().column("x").to_pylist()) == expected
    if isinstance(data, pd.DataFrame | pl.DataFrame | pa.Table):
        with duckdb.connect() as connection:
            connection.register("t", data)
            assert str([x for (x,) in connection.sql("SELECT x FROM t").fetchall()]) == expected


def test_missing_texts_of_pandas_are_null() -> None:
    frame = pd.DataFrame({"ts": COLUMNS["ts"], "x": ["a", np.nan]})
    assert hybrid.sql(ALL_ROWS, t=frame).arrow().column("x").to_pylist() == ["a", None]


# ---- offsets of FIRST, LAST, PREV and NEXT ---------------------------------------------------------------------------

FIVE = pa.table({"ts": pa.array(range(5), pa.timestamp("us")), "v": range(5)})
HUGE = (2**31, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
@pytest.mark.parametrize("n", HUGE)
@pytest.mark.parametrize(
    "call", ["FIRST(v, {})", "LAST(v, {})", "PREV(v, {})", "NEXT(v, {})", "PREV(LAST(A.v, {0}), {0})"]
)
def test_an_offset_beyond_all_rows_reads_null(call: str, n: int) -> None:
    # Before: FIRST and LAST of 2**63 and more were an OverflowError, or null after another query.
    navigation = call.format(n)
    text = "SELECT m FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES {} AS m PATTERN (A+) DEFINE A AS {})"
    measures, condition = text.format(navigation, "true"), text.format("count(*)", f"{navigation} IS NULL")
    for _ in range(2):
        assert hybrid.sql(measures, t=FIVE).arrow().to_pylist() == [{"m": None}]
        assert hybrid.sql(condition, t=FIVE).arrow().to_pylist() == [{"m": 5}]
    assert compare_with_reference(measures, {"t": FIVE}) == (1, True)


@pytest.mark.slow
def test_last_a_thousand_rows_back_is_answered() -> None:
    table = pa.table({"ts": pa.array(range(1_500), pa.timestamp("us")), "v": range(1_500)})
    text = """SELECT n FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A+)
              DEFINE A AS LAST(v, 1000) IS NULL OR LAST(v, 1000) < 200)"""
    # Before: RecursionError.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hybrid.sql(text, t=table).arrow().to_pylist() == [{"n": 1_200}, {"n": 300}]


def test_measures_far_back_are_read_from_the_match() -> None:
    table = pa.table({"ts": pa.array(range(400), pa.timestamp("us")), "v": range(400)})
    text = """SELECT f, near, far FROM t MATCH_RECOGNIZE (ORDER BY ts
              MEASURES FIRST(A.v, 300) AS f, LAST(A.v, 100) AS near, LAST(A.v, 2000) AS far
              PATTERN (A+ B) SELECTION SKIP TILL NEXT MATCH
              DEFINE A AS LAST(A.v, 1) IS NULL OR v > LAST(A.v, 1), B AS v = 350) LIMIT 1"""
    assert hybrid.sql(text, t=table).arrow().to_pylist() == [{"f": 300, "near": 249, "far": None}]


def test_nanoseconds_are_truncated_as_the_hint_says() -> None:
    t = pd.DataFrame({"ts": pd.to_datetime([1_500, 2_000], unit="ns"), "v": [1, 2]})
    wanted = [datetime(1970, 1, 1, 0, 0, 0, 1), datetime(1970, 1, 1, 0, 0, 0, 2)]
    for table in (t, pl.from_pandas(t), pa.Table.from_pandas(t)):
        with pytest.raises(hybrid.DataError, match=r"^t\.ts has times that are finer than a microsecond") as refused:
            hybrid.sql(ALL_ROWS, t=table)
    calls = re.fullmatch(r"truncate them: (.*) in pandas, (.*) in Polars, or pass (.*)", refused.value.hint)
    assert calls is not None
    pandas, polars, relation = calls.groups()
    names: dict[str, Any] = {"pl": pl, "duckdb": duckdb, "t": pl.from_pandas(t)}
    assert hybrid.sql(ALL_ROWS, t=eval(polars, names)).arrow()["ts"].to_pylist() == wanted
    assert hybrid.sql(ALL_ROWS, t=eval(relation)).arrow()["ts"].to_pylist() == wanted
    exec(pandas)
    assert hybrid.sql(ALL_ROWS, t=t).arrow()["ts"].to_pylist() == wanted


@pytest.mark.parametrize("condition", ["x < {}", "x IN (3, {})", "x = {}"])
def test_whole_numbers_beyond_a_hugeint(condition: str) -> None:
    text = "SELECT * FROM t MATCH_RECOGNIZE (MEASURES A.x AS x PATTERN (A) DEFINE A AS {})"
    given = condition.format(2**127 + 5)
    with pytest.raises(hybrid.DataError, match=r"a whole number beyond 2\^127 - 1 is no HUGEINT") as refused:
        hybrid.sql(text.format(given), t=[{"x": 3}])
    assert "CAST(... AS UHUGEINT)" in refused.value.hint
    found = hybrid.sql(text.format(given.replace("x", "CAST(x AS UHUGEINT)")), t=[{"x": 3}])
    assert len(found.arrow()) == (condition != "x = {}")
