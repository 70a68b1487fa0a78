"""Cuts rows sorted by (partition, total order) into inputs of matchers: a large partition is never in memory as a
whole, and many small ones share a matcher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.recent import BoolArray
from matching.batch import EventBatch, Int64Array
from matching.ordering import column_ranks, sort_events, total_order
from query.errors import DataError
from query.schema import Schema

#: Rows of small partitions that share a matcher; a partition with more rows has its own.
ROWS_TOGETHER = 1 << 18


def inputs(
    batches: Iterable[EventBatch], schema: Schema, keys: Sequence[str], rows_together: int = ROWS_TOGETHER
) -> Iterator[Iterator[EventBatch]]:
    """Cuts rows into inputs, each for one matcher. Each partition is in exactly one input.

    batches: rows sorted by (keys, total order), ascending by `matching.ordering.total_order`, nulls first; all with the
    same tuple of sources. schema: has the keys and the tie columns. keys: the partition columns; empty: all rows are
    one partition. Each input is in the total order: several small partitions sorted together, or a single large one
    batch by batch. As with itertools.groupby, read an input to its end before requesting the next one.

    Memory: rows_together rows and a batch. Cost: a comparison of neighbouring rows in each key, and a sort of small
    partitions. Raises DataError if the rows are not sorted.
    """
    return _Inputs(_checked(batches, schema, keys, max(1, rows_together // 4)), schema, rows_together).all()


class _Inputs:
    """State of `inputs`. pieces: parts of the rows, each with the indexes at which partitions begin."""

    def __init__(self, pieces: Iterator[tuple[EventBatch, Int64Array]], schema: Schema, rows_together: int) -> None:
        self._pieces = pieces
        self._schema = schema
        self._rows_together = rows_together
        self._whole: list[EventBatch] = []  # partitions that have ended
        self._open: list[EventBatch] = []  # the last partition, which may continue

    def all(self) -> Iterator[Iterator[EventBatch]]:
        for piece, begins in self._pieces:
            self._add(piece, begins)
            if _rows(self._whole) + _rows(self._open) <= self._rows_together:
                continue
            if self._whole:
                yield self._together()
            if _rows(self._open) > self._rows_together:
                yield self._alone()
        self._whole += self._open
        self._open = []
        if self._whole:
            yield self._together()

    def _add(self, piece: EventBatch, begins: Int64Array) -> None:
        if not len(begins):
            self._open.append(piece)
            return
        first, last = int(begins[0]), int(begins[-1])
        self._whole += [*self._open, *(part for part in (piece.slice(0, first), piece.slice(first, last)) if len(part))]
        self._open = [piece.slice(last, len(piece))]

    def _together(self) -> Iterator[EventBatch]:
        whole, self._whole = self._whole, []
        return iter((sort_events(EventBatch.concat(whole), self._schema),))

    def _alone(self) -> Iterator[EventBatch]:
        """Yields the open partition up to its end."""
        held, self._open = self._open, []
        yield from held
        del held
        for piece, begins in self._pieces:
            if not len(begins):
                yield piece
                continue
            if begins[0]:
                yield piece.slice(0, int(begins[0]))
            self._add(piece.slice(int(begins[0]), len(piece)), begins - begins[0])
            return


def _rows(batches: list[EventBatch]) -> int:
    return sum(map(len, batches))


def _checked(
    batches: Iterable[EventBatch], schema: Schema, keys: Sequence[str], rows_max: int
) -> Iterator[tuple[EventBatch, Int64Array]]:
    """Yields pieces of at most rows_max rows, each with the indexes at which a partition begins (the very first row
    included). Raises DataError if the rows are not sorted."""
    last: EventBatch | None = None
    for batch in batches:
        for start in range(0, len(batch), rows_max):
            piece = batch.slice(start, min(start + rows_max, len(batch)))
            seam = piece if last is None else EventBatch.concat([last, piece.slice(0, 1)])
            begins = _begins(piece, keys)
            begins[0] = last is None or bool(_begins(seam, keys)[1])
            if last is not None:
                _check(seam, _begins(seam, keys), schema)
            _check(piece, begins, schema)
            yield piece, np.flatnonzero(begins)
            last = piece.slice(len(piece) - 1, len(piece))


def _begins(batch: EventBatch, keys: Sequence[str]) -> BoolArray:
    """Returns for each row True if its partition differs from that of the row before; False for the first. Raises
    DataError if partitions do not ascend."""
    begins = np.zeros(len(batch), np.bool_)
    columns = [batch.columns.column(name) for name in keys]
    for column in columns:
        codes = pc.fill_null(column.dictionary_encode().indices, -1).to_numpy()
        begins[1:] |= codes[1:] != codes[:-1]
    # Different codes may compare as equal (0 and -0), so the few rows where codes change are compared by rank.
    at = np.flatnonzero(begins)
    if not len(at):
        return begins
    some = pa.array(np.concatenate([at[:1] - 1, at]))
    greater, less = np.zeros(len(at), np.bool_), np.zeros(len(at), np.bool_)
    for column in columns:
        ranks = column_ranks(column.take(some))
        undecided = ~(greater | less)
        greater |= undecided & (ranks[1:] > ranks[:-1])
        less |= undecided & (ranks[1:] < ranks[:-1])
    if less.any():
        raise _out_of_order(f"partitions, by {', '.join(keys)}")
    begins[at] = greater
    return begins


def _check(batch: EventBatch, begins: BoolArray, schema: Schema) -> None:
    """Raises DataError if the rows of a partition are not in the total order."""
    ts_us, same = batch.ts_us, ~begins[1:]
    if bool((same & (ts_us[1:] < ts_us[:-1])).any()):
        raise _out_of_order("times within a partition")
    # Rows with the same partition and time get the same number, which replaces both in the comparison.
    number = np.cumsum(np.concatenate([[False], begins[1:] | (ts_us[1:] != ts_us[:-1])]))
    order = total_order(replace(batch, ts_us=number), schema)
    if not np.array_equal(order, np.arange(len(order))):
        raise _out_of_order("events of one time")


def _out_of_order(what: str) -> DataError:
    return DataError(f"rows are out of order: {what}", "this is a bug in hybrid or Spark: please report it")
