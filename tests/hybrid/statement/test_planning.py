"""hybrid.plan: from a text and the columns of its inputs to the plan that every path starts from."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import hybrid
from query.errors import DataError, QueryError

TEXT = """SELECT symbol, low FROM ticks MATCH_RECOGNIZE (
  PARTITION BY symbol ORDER BY ts MEASURES LAST(DOWN.price) AS low
  PATTERN (A DOWN{2,} UP) DEFINE DOWN AS price < PREV(price), UP AS price >= PREV(price)) AS m"""
COLUMNS = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}


def test_a_plan_over_columns_is_that_of_the_table() -> None:
    table = pa.table({"ts": pa.array([0], pa.timestamp("us")), "symbol": ["A"], "price": [1.0]})
    planned = hybrid.plan(TEXT, {"ticks": COLUMNS})
    answered = hybrid.sql(TEXT, ticks=table)
    assert planned == answered.plan
    assert str(planned) == answered.explain("plan")


def test_a_plan_over_a_stream_is_that_of_its_queries() -> None:
    with hybrid.connect() as db:
        db.create_stream("ticks", COLUMNS, time="ts", key="symbol")
        schemas = {"ticks": db.schema("ticks")}
        alerts = db.watch(TEXT)
        assert hybrid.plan(TEXT, schemas, live=True) == alerts.plan
        assert hybrid.plan(TEXT, schemas) == db.sql(TEXT).plan
        assert str(hybrid.plan(TEXT, schemas)) == db.explain(TEXT, "plan")


def test_what_cannot_be_planned_is_said() -> None:
    with pytest.raises(QueryError, match="has no column prize"):
        hybrid.plan(TEXT.replace("PREV(price)", "PREV(prize)"), {"ticks": COLUMNS})
    with pytest.raises(QueryError, match="ticks"):
        hybrid.plan(TEXT, {"tocks": COLUMNS})
    with pytest.raises(DataError, match="a live query reads streams"):
        hybrid.plan(TEXT, {"ticks": COLUMNS}, live=True)


@pytest.mark.parametrize("columns", [pd.DataFrame({"ts": [1]}), ["ts"], {"ts": int}, {"ts": "TIMESTAMPP"}], ids=str)
def test_columns_that_are_none(columns: Any) -> None:
    # Before: TypeErrors, AttributeErrors and ValueErrors from inside.
    with pytest.raises(DataError, match=r"types by name|is no DuckDB type"):
        hybrid.plan("SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS ts PATTERN (A))", {"t": columns})
