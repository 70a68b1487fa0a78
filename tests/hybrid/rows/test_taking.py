"""Rows are taken a part at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hybrid.rows import taking
from hybrid.rows.taking import some_rows, taken

NOON = datetime(2024, 1, 1, 12)


@pytest.mark.parametrize("rows_at_once", [1, 3, 7, 1000])
def test_rows_are_taken_in_pieces_as_at_once(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: millions of rows in one call, and Ctrl-C waited for it."""
    monkeypatch.setattr(taking, "TAKEN_ROWS", rows_at_once)
    values: list[tuple[pa.DataType, list[Any]]] = [
        (pa.int64(), [3, None, 1, 2, 5, 4, None]), (pa.string(), ["a", "", None, "d", "e", "f", "g"]),
        (pa.list_(pa.int32()), [[1], [], None, [2, 3], [4], [5], [6]]),
        (pa.struct([("x", pa.float64())]), [{"x": 1.0}, None, {"x": None}, {"x": 2.0}, {"x": 3.0}, None, {"x": 4.0}]),
        (pa.timestamp("us", "UTC"), [NOON] * 6 + [None]), (pa.null(), [None] * 7),
    ]  # fmt: skip
    whole = pa.table([pa.array(v, t) for t, v in values], names=list("abcdef"))
    order = np.array([6, 0, 5, 1, 4, 2, 3, 0])
    for table in (whole, pa.concat_tables([whole.slice(0, 2), whole.slice(2, 0), whole.slice(2)])):
        assert taken(table, order).equals(whole.take(pa.array(order)))
        assert taken(table, order[:0]).equals(whole.slice(0, 0))
        for some in ([], [0], [1, 2, 5], [6], list(range(7))):
            rows = np.array(some, np.int64)
            found = some_rows(table, rows)
            assert found.equals(whole.take(pa.array(rows)))
            assert all(column.num_chunks <= 1 for column in found.columns)
