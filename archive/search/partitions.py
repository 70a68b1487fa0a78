"""Rows that stand by partition, and in the total order within it, as inputs of matchers: no partition as a whole in
memory, and no matcher for each of many small ones."""

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

#: So many rows of small partitions go through one matcher together; a partition with more has its own.
ROWS_TOGETHER = 1 << 18


def inputs(
    batches: Iterable[EventBatch], schema: Schema, keys: Sequence[str], rows_together: int = ROWS_TOGETHER
) -> Iterator[Iterator[EventBatch]]:
    """Cuts rows into bounded inputs, each for one matcher: whole partitions, and each in one input only.

    batches: rows by (keys, total order), ascending as `matching.ordering.total_order` compares, null first; all of one
    tuple of sources. schema: has the keys and the tie columns among its fields. keys: the columns they are cut by;
    none: all rows are one partition. An input has its rows in the total order: many small partitions sorted together,
    or a single one in batches as they came. Like those of itertools.groupby, an input must be read to its end before
    the next one is asked for.

    Memory: rows_together rows, and a batch. Cost: a comparison of neighbours in each key, and a sort of the rows of
    small partitions. Raises DataError where the rows do not stand in that order.
    """
    return _Inputs(_checked(batches, schema, keys, max(1, rows_together // 4)), schema, rows_together).all()


class _Inputs:
    """pieces: parts of the rows with the numbers of the rows at which other partitions begin."""

    def __init__(self, pieces: Iterator[tuple[EventBatch, Int64Array]], schema: Schema, rows_together: int) -> None:
        self._pieces = pieces
        self._schema = schema
        self._rows_together = rows_together
        self._whole: list[EventBatch] = []  # partitions that have ended
        self._open: list[EventBatch] = []  # the last one, which may go on

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
        """The open partition, and what is still to come of it."""
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
    """Pieces of at most rows_max rows, and the numbers of the rows of each at which another partition begins (the very
    first row begins one too)."""
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
    """For each row but the first whether it is of another partition than the one before; False for the first. Raises
    DataError where partitions do not ascend."""
    begins = np.zeros(len(batch), np.bool_)
    columns = [batch.columns.column(name) for name in keys]
    for column in columns:
        codes = pc.fill_null(column.dictionary_encode().indices, -1).to_numpy()
        begins[1:] |= codes[1:] != codes[:-1]
    # Codes tell apart what compares as equal (0 and -0): the few rows where something changes are compared in full.
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
    """Raises DataError where the rows of a partition do not stand in the total order."""
    ts_us, same = batch.ts_us, ~begins[1:]
    if bool((same & (ts_us[1:] < ts_us[:-1])).any()):
        raise _out_of_order("times within a partition")
    # Rows of one partition and one time have one number: what is left to compare is what the order asks next.
    number = np.cumsum(np.concatenate([[False], begins[1:] | (ts_us[1:] != ts_us[:-1])]))
    order = total_order(replace(batch, ts_us=number), schema)
    if not np.array_equal(order, np.arange(len(order))):
        raise _out_of_order("events of one time")


def _out_of_order(what: str) -> DataError:
    return DataError(f"rows came out of order: {what}", "this is a fault of hybrid or of Spark: please report it")
