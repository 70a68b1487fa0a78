"""Parameters: `$name`, `$1` and `?` with the values of Python, as DuckDB reads them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid import DataError, HybridWarning, QueryError
from query.language.parameters import filled, literal

ROWS = [{"ts": dt.datetime(2024, 1, 1) + dt.timedelta(seconds=i), "v": v} for i, v in enumerate([1, 5, 2, 9])]
RISE = """SELECT hi, $tag AS tag FROM rows MATCH_RECOGNIZE (
    ORDER BY ts MEASURES LAST(v) AS hi PATTERN (A B? C $) WITHIN $window
    DEFINE C AS v >= PREV(v) + $least)
WHERE hi < $most"""

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**120), 2**120), st.floats(), TEXTS,
    st.binary(), st.dates(), st.datetimes(), st.times(), st.timedeltas(), st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9),
    st.lists(st.integers(-5, 5), min_size=1),
)  # fmt: skip


CONNECTION = duckdb.connect()


@pytest.mark.slow
@given(VALUES)
def test_a_literal_is_the_value(value: Any) -> None:
    (found,) = CONNECTION.execute(f"SELECT {literal(value, '$v')}").fetchall()
    if value != value:
        assert found[0] != found[0]
    elif isinstance(value, UUID):
        assert str(found[0]) == str(value)
    else:
        assert found[0] == value
        assert value is None or isinstance(found[0], type(value))


@pytest.mark.parametrize(("value", "expected"), [
    (np.datetime64("2024-03-01T09:00:00.000001", "ns"), dt.datetime(2024, 3, 1, 9, 0, 0, 1)),
    (np.timedelta64(90_000_000_000, "ns"), dt.timedelta(seconds=90)), (np.datetime64("NaT", "ns"), None),
    (np.array(["2024-03-01"], "datetime64[ns]"), [dt.datetime(2024, 3, 1)]),
    (np.datetime64("2024-03-01", "D"), dt.date(2024, 3, 1)),
])  # fmt: skip
def test_times_of_numpy(value: object, expected: object) -> None:
    # Before: those in nanoseconds, which pandas has, were numbers.
    assert duckdb.connect().execute(f"SELECT {literal(value, '$v')}").fetchall() == [(expected,)]


def test_named_parameters_in_every_clause() -> None:
    params = {"tag": "it's", "window": dt.timedelta(seconds=3), "least": np.int64(4), "most": Decimal("9.5")}
    assert hybrid.sql(RISE, params=params, rows=ROWS).fetchall() == [(9, "it's")]
    assert hybrid.sql(RISE, params={**params, "least": 8}, rows=ROWS).fetchall() == []
    assert hybrid.sql(RISE, params={**params, "most": 9}, rows=ROWS).fetchall() == []


def test_parameters_in_order() -> None:
    assert hybrid.sql("SELECT ?, ? + 1", params=["a", 2]).fetchall() == [("a", 3)]
    assert hybrid.sql("SELECT $2, $1, $2", params=("a", 2)).fetchall() == [(2, "a", 2)]
    with hybrid.connect() as db:
        assert db.sql("SELECT ?", params=[7]).fetchall() == [(7,)]


def test_parameters_of_live_queries_backtests_and_graphs() -> None:
    # Before: only those of hybrid.sql and Database.sql.
    text = """SELECT low FROM ticks MATCH_RECOGNIZE (MEASURES A.v AS low PATTERN (A B)
        SELECTION SKIP TILL ANY MATCH DEFINE A AS v < $most, B AS v > $least)"""
    values = [{"ts": dt.datetime(2024, 3, 1, 9, i), "v": i} for i in range(6)]
    params = {"most": 2, "least": 4}
    ordered = text.replace("MEASURES", "ORDER BY ts MEASURES")
    assert hybrid.matches(ordered, params=params, ticks=values).decode().to_pylist() == [{"low": 0}, {"low": 1}]
    with hybrid.connect() as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
        with pytest.warns(HybridWarning, match="may be kept for ever"):
            alerts = db.watch(text, params=params)
        db.push("ticks", values)
        db.advance("ticks", dt.datetime(2024, 3, 2))
        assert alerts.fetch().to_pylist() == [{"low": 0}, {"low": 1}]
        assert db.backtest(text, "2024-03-01", params=params).fetchall() == [(0,), (1,)]
        with pytest.raises(QueryError, match=r"\$most"):
            db.watch(text.replace("$least", "$least + nothing"), params=params)


def test_what_is_no_parameter() -> None:
    text = "SELECT '$a ?', $$ $a $$, \"$a\" FROM t MATCH_RECOGNIZE (PATTERN (^ A? $) -- $a\n)"
    assert filled(text, {}) == text


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tag": 1}, r"\$window has no value\nhint: params has \$tag"),
        ([1], r"\$tag has no value"),
        (5, "params are values by name or in order, not 5"),
        ("abc", "params are values by name or in order, not 'abc'"),
    ],
)
def test_parameters_without_values(params: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        hybrid.sql(RISE, params=params, rows=ROWS)


def test_values_without_parameters_or_literals() -> None:
    with pytest.raises(DataError, match=r"the text has no parameter \$b"):
        hybrid.sql("SELECT $a", params={"a": 1, "b": 2})
    with pytest.raises(DataError, match=r"parameter \$a is a object, which has no literal"):
        hybrid.sql("SELECT $a", params={"a": object()})
    for text in (RISE, RISE.replace("WITHIN $window", "")):
        with pytest.raises(QueryError, match=r"hint: give it a value: params="):
            hybrid.sql(text, rows=ROWS)


def test_an_error_shows_the_parameter() -> None:
    with pytest.raises(QueryError) as error:
        hybrid.sql(
            "SELECT * FROM rows MATCH_RECOGNIZE (PATTERN (A) DEFINE A AS lower(ts) > $most)",
            params={"most": 1},
            rows=ROWS,
        )
    assert "DEFINE A AS lower(ts) > $most)" in str(error.value)
    assert "/*" not in str(error.value)
