"""Rows are taken a part at a time."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hybrid.rows import taking
from hybrid.rows.taking import Chunks, long_batches, some_rows, taken

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


@pytest.mark.parametrize("rows_at_once", [1, 3, 50])
@pytest.mark.parametrize("chunks_max", [1, 4, 1000])
def test_rows_in_another_order_come_part_by_part(
    rows_at_once: int, chunks_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: a second table of all rows was made first."""
    monkeypatch.setattr(taking, "TAKEN_ROWS", rows_at_once)
    monkeypatch.setattr(taking, "CHUNKS_MAX", chunks_max)
    random = np.random.default_rng(rows_at_once * chunks_max)
    for count, cuts in ((100, 0), (100, 1), (100, 9), (51, 60), (1, 0), (0, 0)):
        texts = [None if x % 7 == 0 else f"t{x}" for x in random.integers(0, 99, count)]
        whole = pa.table({"a": random.integers(0, 9, count), "t": pa.array(texts, pa.string())})
        at = [0, *np.sort(random.integers(0, count + 1, cuts)), count]
        table = pa.concat_tables([whole.slice(low, high - low) for low, high in pairwise(at)])
        for order in (random.permutation(count).astype(np.int32), np.arange(count), random.integers(0, count, count)):
            chunks = Chunks.of(table)
            assert chunks.most <= rows_at_once
            some = chunks.ahead(count, lambda low, high, order=order: order[low:high])
            steps = [0, *np.sort(random.integers(0, count + 1, 5)), count]
            came = [some(low, high) for low, high in pairwise(steps)]
            assert pa.Table.from_batches([batch for batch, _ in came]).equals(whole.take(pa.array(order)))
            assert np.array_equal(np.concatenate([rows for _, rows in came]), order)


def test_long_texts_are_taken_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array has room for 2 GB of texts."""
    monkeypatch.setattr(taking, "TAKEN_BYTES", 10_000)
    assert Chunks.of(pa.table({"t": ["x" * 1_000] * 40})).most == 9
    assert Chunks.of(pa.table({"t": ["x" * 20_000]})).most == 1


@pytest.mark.parametrize("most", [1, 4, 9, 1000])
def test_short_batches_are_put_together(most: int) -> None:
    """Before: 200,000 rows in chunks of 100 took nine times as long as in one."""
    whole = pa.table({"x": list(range(100))})
    cuts = [0, 0, 1, 2, 5, 5, 6, 30, 31, 33, 34, 60, 61, 80, 99, 100, 100]
    chunks = [whole.slice(low, high - low) for low, high in pairwise(cuts)]
    given = pa.concat_tables(chunks).to_batches(max_chunksize=most)
    found = list(long_batches(given, most))
    assert [x for batch in found for x in batch.column(0).to_pylist()] == list(range(100))
    lengths = [batch.num_rows for batch in found]
    assert max(lengths) <= most
    assert min(lengths) > 0
    assert all(a + b > most // 2 for a, b in pairwise(lengths))
    assert len(found) <= len(given)
