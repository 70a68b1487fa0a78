"""Neighbours of rows in their partitions, at any distance."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from matching.store import RowStore
from tests.events import batch_of
from tests.strategies import SCHEMA, Row


def store_of(partitions: list[int]) -> RowStore:
    store = RowStore({}, (), pa.schema([]), linked=True)
    rows: list[Row] = [{"ts": i, "k": None, "s": None, "v": None, "x": None} for i in range(len(partitions))]
    store.append(batch_of(SCHEMA, rows), np.array(partitions, np.int64), 4)
    return store


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(-45, 45), st.data())
def test_a_row_is_found_at_any_distance(partitions: list[int], offset: int, data: st.DataObject) -> None:
    store = store_of(partitions)
    store.floor = data.draw(st.integers(0, len(partitions)))
    asked = data.draw(st.lists(st.integers(-1, len(partitions) - 1), max_size=60))
    expected = []
    for position in asked:
        own = [i for i, p in enumerate(partitions) if p == partitions[position]]
        seen = [i for i in own if i >= store.floor or i == position]
        if position < store.floor and offset > 0:  # a link to a row below the floor is none
            seen = [i for i in own if i >= position]
            seen = seen if all(i >= store.floor for i in seen[1 : offset + 1]) else []
        at = seen.index(position) + offset if position in seen else -1
        there = position >= 0 and 0 <= at < len(seen)
        expected.append(seen[at] if there else (position if offset == 0 else -1))
    assert store.chase(np.array(asked, np.int64), offset).tolist() == expected


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40), st.integers(0, 12),
    st.integers(0, 12), st.integers(0, 12),
)  # fmt: skip
def test_rows_are_kept_near_marked_ones_and_at_the_end(
    rows: list[tuple[int, bool]], before: int, behind: int, last: int
) -> None:
    store = store_of([p for p, _ in rows])
    keep = np.array([*(marked for _, marked in rows), False])
    store.keep_near(before, behind, last, keep)
    expected = []
    for i, (partition, _) in enumerate(rows):
        own = [j for j, (p, _) in enumerate(rows) if p == partition]
        at = own.index(i)
        marked = [own.index(j) for j in own if rows[j][1]]
        expected.append(any(-before <= at - m <= behind for m in marked) or at >= len(own) - last)
    assert keep.tolist() == [*expected, False]


@pytest.mark.parametrize("condition", ["PREV(v, {n}) IS NULL", "NEXT(v, {n}) IS NULL", "LAST(v, {n}) IS NULL"])
@pytest.mark.parametrize("n", [150_000, 10**12])
def test_a_neighbour_beyond_the_input_is_null_at_no_cost(condition: str, n: int) -> None:
    """Before: a list of so many offsets was made to drop rows, and so many steps were made for each row."""
    rows = pa.table({"ts": np.arange(140_000), "v": np.arange(140_000) % 7})
    text = f"""FROM rows MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n AFTER MATCH SKIP PAST LAST ROW
        PATTERN (A B*) DEFINE A AS v = 0, B AS v > 0 AND {condition.format(n=n)}) AS m"""
    found = hybrid.sql(text, rows=rows).arrow()
    assert found.column("n").to_pylist() == [7] * 20_000
