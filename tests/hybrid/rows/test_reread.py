"""Whether rows that are read again are the same: NaN equals itself wherever it stands, and nothing else has changed."""

from __future__ import annotations

import pyarrow as pa
import pytest

import hybrid
from hybrid.rows.reread import alike

NAN = float("nan")
COLUMNS = {
    "float": pa.array([NAN, 1.0, None]),
    "list": pa.array([[NAN], None, [1.0, None], []]),
    "fixed": pa.array([[NAN, 1.0], None], pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"a": NAN, "b": "x"}, None, {"a": None, "b": None}]),
    "map": pa.array([[("a", NAN)], None, [("a", 1.0), ("b", None)]], pa.map_(pa.string(), pa.float64())),
    "lists of structs": pa.array([[{"a": NAN}, None], None, []]),
    "text": pa.array(["a", None]),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_equal_rows(name: str) -> None:
    # Before: a NaN in a list, struct or map was another one.
    column = COLUMNS[name]
    chunks = pa.chunked_array([column.slice(0, 1), column.slice(1)])
    assert alike(pa.table({"x": column}), pa.table({"x": chunks}))


@pytest.mark.parametrize("name", COLUMNS)
def test_other_rows(name: str) -> None:
    column = COLUMNS[name]
    for other in (
        pa.concat_arrays([column.slice(1), column.slice(0, 1)]), column.slice(1),
        pa.concat_arrays([column, column.slice(0, 1)]), pa.nulls(len(column), column.type),
    ):  # fmt: skip
        assert not alike(pa.table({"x": column}), pa.table({"x": other}))


@pytest.mark.parametrize("measure", ["list(x)", "{'a': FIRST(x)}", "histogram(x)", "FIRST(l)"])
def test_evidence_of_nested_values(measure: str) -> None:
    # Before: DataError, these are not the rows that the matches were found in.
    rows = pa.table({"i": [1, 2, 3], "x": [NAN, 1.0, 2.0], "l": [[NAN], None, [1.0]]})
    found = hybrid.sql(f"SELECT z FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES {measure} AS z PATTERN (A+))", t=rows)
    assert len(found.evidence()) == 3
