"""WITH UNMATCHED ROWS: the rows that a match may still cover, and those that none has covered when they are settled."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import Arrays
from matching.kernels.jit import kernel
from matching.kernels.layout import grown
from matching.store import RowStore
from query.plan.output import Outcome


@kernel
def open_rows(partition, begin, end, waiting):
    """Marks the rows [begin, end) of the store as unsettled; waiting: per partition the first such row, -1 none."""
    for i in range(begin, end):
        p = partition[i]
        if waiting[p] < 0:
            waiting[p] = i


@kernel
def settle(frontier, following, taken, every_row, covered, waiting, out):
    """Settles the rows of each partition before its frontier (-1: all that were taken) and writes the uncovered ones to
    `out`. following: the next row in a row's partition; every_row: all rows were taken, otherwise see `taken`. Returns
    (rows settled, rows written). O(partitions + rows settled)."""
    settled = 0
    written = 0
    for p in range(len(frontier)):
        row = waiting[p]
        while row >= 0 and row != frontier[p] and (every_row or taken[row]):
            settled += 1
            if not covered[row]:
                out[written] = row
                written += 1
            row = following[row]
        waiting[p] = row
    return settled, written


@kernel
def mark_open(ids, waiting, following, keep):
    """Marks the unsettled rows."""
    for p in ids:
        row = waiting[p]
        while row >= 0:
            keep[row] = True
            row = following[row]


class Unsettled:
    """The first unsettled row of each partition and, for each row of the store, whether a match covers it."""

    def __init__(self) -> None:
        self._waiting = np.full(1024, -1, np.int64)
        self._covered = np.zeros(1024, np.bool_)
        self._open = 0

    def take_over(self, store: RowStore, rows: Int64Array, covered: np.ndarray, partitions: int) -> None:
        """Takes `rows` of the store, in order, all unsettled; covered: True if a match covers a row."""
        self._waiting = np.full(max(partitions, 1024), -1, np.int64)
        self._covered = np.zeros(max(store.count, 1024), np.bool_)
        self._covered[rows] = covered
        self._waiting[store.partition[rows[::-1]]] = rows[::-1]  # the first one of each partition is written last
        self._open = len(rows)

    def append(self, store: RowStore, begin: int, partitions: int) -> None:
        """Takes the rows of the store from `begin` on."""
        if partitions > len(self._waiting):
            self._waiting = grown(self._waiting, max(partitions, 2 * len(self._waiting)), -1)
        if store.count > len(self._covered):
            self._covered = grown(self._covered, max(store.count, 2 * len(self._covered)))
        self._covered[begin : store.count] = False
        open_rows(store.partition, begin, store.count, self._waiting)
        self._open += store.count - begin

    def settle(self, store: RowStore, frontier: Int64Array, taken: np.ndarray | None, out: Decode) -> Decode:
        """Returns `out`, with the newly unmatched rows between its entries, in the order of starts of each partition.
        taken: True for the rows of the store that have been taken; None: all have."""
        matched = out.outcome == Outcome.MATCH
        lengths = np.diff(out.bounds)
        self._covered[out.rows[np.repeat(matched, lengths)]] = True
        self._covered[out.start[matched & (lengths == 0)]] = True
        rows = np.empty(self._open, np.int64)
        settled, written = settle(
            frontier, store.next, store.released if taken is None else taken, taken is None, self._covered,
            self._waiting, rows,
        )
        self._open -= settled
        if not written:
            return out
        unmatched = Decode()
        unmatched.begin(written)
        unmatched.room(0)
        unmatched.start[:] = rows[:written]
        unmatched.partition[:] = store.partition[rows[:written]]
        unmatched.number[:] = 0
        unmatched.outcome[:] = Outcome.UNMATCHED
        if not out.count:
            return unmatched
        both = out.then(unmatched)
        return both.take(np.argsort(both.start, kind="stable"))

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray) -> None:
        """Marks the rows that have to be kept."""
        mark_open(ids, self._waiting, store.next, keep)

    def move(self, row_moved: Int64Array) -> None:
        kept = np.flatnonzero(row_moved[:-1] >= 0)
        self._covered[: len(kept)] = self._covered[kept]
        self._waiting = np.where(self._waiting >= 0, row_moved[self._waiting], -1)

    def snapshot(self) -> Arrays:
        return {"waiting": self._waiting, "covered": self._covered, "open": np.array([self._open])}

    def restore(self, arrays: Arrays) -> None:
        self._waiting, self._covered = arrays["waiting"], arrays["covered"]
        self._open = int(arrays["open"][0])
