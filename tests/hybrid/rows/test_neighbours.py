"""Rows in their order are recognised by comparing neighbours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from hybrid.rows import taking
from hybrid.rows.neighbours import Key, compare, compare_neighbours

KINDS = [pa.int8(), pa.int64(), pa.uint64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.float64()]


@pytest.mark.parametrize("most", [2, 1000])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_neighbours_are_compared_alike_however_chunks_are_cut(
    nulls: bool, kind: pa.DataType, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunk by chunk or put together, with empty chunks and one row."""
    monkeypatch.setattr(taking, "CHUNKS_MAX", most)
    monkeypatch.setattr(taking, "TAKEN_ROWS", 1)
    rng = np.random.default_rng(1)
    for rows in (1, 2, 3, 40):
        drawn = pa.array(rng.integers(0, 4, rows), pa.int32(), mask=rng.random(rows) < (0.3 if nulls else 0.0))
        whole = drawn.cast(pa.int64()).cast(kind) if kind != pa.date32() else drawn.cast(kind)
        cuts = [0, *np.sort(rng.integers(0, rows + 1, 5)).tolist(), rows]
        column = pa.chunked_array([whole.slice(low, high - low) for low, high in pairwise(cuts)], kind)
        for key in (Key("x"), Key("x", descending=True), Key("x", nulls_first=True)):
            left, right = pa.chunked_array([whole.slice(0, rows - 1)], kind), pa.chunked_array([whole.slice(1)], kind)
            found, expected = compare_neighbours(column, key), compare(left, right, key)
            assert found is not None
            assert expected is not None
            assert [side.tolist() for side in found] == [side.tolist() for side in expected]
            assert len(found[0]) == rows - 1
