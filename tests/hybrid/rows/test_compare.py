"""db.compare: the rows that only one of two versions of a query gives."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

import hybrid
from hybrid.rows.compare import difference
from query.errors import DataError, QueryError

QUERY = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, B.v AS b
    PATTERN (A B) DEFINE B AS v > A.v)"""


def test_rows_are_counted_and_nulls_and_nan_are_equal() -> None:
    nan = float("nan")
    old = pa.table({"x": [1, 1, 2, None, 5], "y": [nan, nan, 0.5, None, 1.0], "gone": [0] * 5})
    new = pa.table({"y": [nan, None, 2.0, 0.5, 0.5], "more": [0] * 5, "x": [1, None, 5, 2, 2]})
    found = difference(old, new)
    rows = [tuple(map(str, row.values())) for row in found.rows.to_pylist()]
    assert rows == [("old", "1", "nan"), ("old", "5", "1.0"), ("new", "5", "2.0"), ("new", "2", "0.5")]
    assert (found.only_old, found.only_new, found.both, len(found)) == (2, 2, 3, 4)
    assert (found.columns_old, found.columns_new) == (("gone",), ("more",))
    assert str(found).splitlines()[0] == "3 rows are equal, 2 only old, 2 only new"


def test_without_rows_and_with_names_of_ours() -> None:
    empty = pa.table({"version": pa.array([], pa.int64())})
    assert len(difference(empty, empty)) == 0
    found = difference(empty, pa.table({"version": [7]}))
    assert found.rows.to_pylist() == [{"version_": "new", "version": 7}]
    with pytest.raises(DataError, match="the versions share no column"):
        difference(pa.table({"a": [1]}), pa.table({"b": [1]}))


@pytest.mark.slow
def test_two_versions_over_one_period() -> None:
    with hybrid.connect() as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}, time="ts", key="k")
        start = dt.datetime(2024, 1, 1)
        values = [1, 2, 5, 9, 3, 4, 3, 8]
        db.push("ticks", [{"ts": start + dt.timedelta(seconds=i), "k": "p", "v": v} for i, v in enumerate(values)])
        found = db.compare(QUERY, QUERY.replace("v > A.v", "v > A.v + 1"), start)
        assert found.rows.to_pylist() == [
            {"version": "old", "k": "p", "a": 1, "b": 2}, {"version": "old", "k": "p", "a": 5, "b": 9},
            {"version": "old", "k": "p", "a": 3, "b": 4}, {"version": "new", "k": "p", "a": 2, "b": 5},
        ]  # fmt: skip
        assert found.both == 1
        assert len(db.compare(QUERY, QUERY, start)) == 0
        assert db.compare(QUERY, QUERY, start, start + dt.timedelta(seconds=3)).both == 1
        with pytest.raises(QueryError):
            db.compare(QUERY, "SELECT", start)
