"""Negations of a pattern with boxes, tested on matches without them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matcher
from matching.hierarchy.counts import KeyCodes
from matching.state import as_array
from query.plan.boxes import FIRST, FIRST_US, LAST, LAST_US, Gap, GapPlace


class GapTest:
    """The rows of one negation so far, and the matches that they rule out.

    Kept are only rows that begin later than all rows of the partition that end before them: of two rows inside a gap
    the other one is not needed, nor at an edge, where it is further away."""

    __slots__ = ("_codes", "_first", "_first_us", "_key", "_last", "_last_us", "gap", "matcher")

    def __init__(self, gap: Gap, matcher: Matcher) -> None:
        self.gap = gap
        self.matcher = matcher
        self._codes = KeyCodes()
        self._key: Int64Array = np.zeros(0, np.int64)
        self._first: Int64Array = np.zeros(0, np.int64)
        self._last: Int64Array = np.zeros(0, np.int64)
        self._first_us: Int64Array = np.zeros(0, np.int64)
        self._last_us: Int64Array = np.zeros(0, np.int64)

    def push(self, batch: EventBatch) -> None:
        """Takes the next merged rows."""
        rows = self.matcher.push(batch).rows
        if not rows.num_rows:
            return
        key = np.concatenate([self._key, self._keys(rows)])
        first = np.concatenate([self._first, np.asarray(rows.column(FIRST.name))])
        last = np.concatenate([self._last, np.asarray(rows.column(LAST.name))])
        first_us = np.concatenate([self._first_us, np.asarray(rows.column(FIRST_US.name))])
        last_us = np.concatenate([self._last_us, np.asarray(rows.column(LAST_US.name))])
        order = np.lexsort((first, last, key))
        key, first, last = key[order], first[order], last[order]
        first_us, last_us = first_us[order], last_us[order]
        # the latest beginning so far within a key: keys are far apart
        far = int(first.max()) + 1
        latest = np.maximum.accumulate(first + key * far) - key * far
        kept = np.concatenate([[True], (first[1:] > latest[:-1]) | (key[1:] != key[:-1])])
        self._key, self._first, self._last = key[kept], first[kept], last[kept]
        self._first_us, self._last_us = first_us[kept], last_us[kept]

    def violated(self, rows: pa.Table) -> np.ndarray:
        """Returns, for each match, whether a row lies wholly in its gap. rows: an output row of each match."""
        if not len(self._key):
            return np.zeros(rows.num_rows, np.bool_)
        bounds = [np.asarray(rows.column(name)) for name in self.gap.columns]
        key = self._keys(rows)
        if self.gap.place is GapPlace.END:
            after, begin_us, _ = bounds
            far = max(int(self._first.max()), int(after.max(initial=0))) + 2
            # the first row that begins after the last element: of all that do, it ends earliest
            place = np.searchsorted(self._key * far + self._first, key * far + after, side="right")
            found = np.minimum(place, len(self._key) - 1)
            near = self._last_us[found] <= begin_us + self.gap.within_us
            return (place < len(self._key)) & (self._key[found] == key) & near
        until, other = bounds
        far = max(int(self._last.max()), int(until.max(initial=0))) + 2
        # the last row that ends before the next element: of all that do, it begins latest
        place = np.searchsorted(self._key * far + self._last, key * far + until) - 1
        found = np.maximum(place, 0)
        inside = self.gap.place is GapPlace.INSIDE
        near = self._first[found] > other if inside else self._first_us[found] >= other - self.gap.within_us
        return (place >= 0) & (self._key[found] == key) & near

    def due_us(self, rows: pa.Table) -> Int64Array:
        """Returns, for each match of a pattern that ends in this negation, the time after which nothing violates it.
        rows: an output row of each match."""
        return np.asarray(rows.column(self.gap.columns[-1])) + self.gap.within_us

    def drop_before(self, time_us: int) -> None:
        """Drops the rows that begin earlier: no match to come does."""
        kept = self._first_us >= time_us
        if not kept.all():
            self._key, self._first, self._last = self._key[kept], self._first[kept], self._last[kept]
            self._first_us, self._last_us = self._first_us[kept], self._last_us[kept]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its state."""
        return {
            "matcher": as_array(self.matcher.snapshot()), "codes": self._codes.snapshot(),
            "key": self._key, "first": self._first, "last": self._last, "first_us": self._first_us,
            "last_us": self._last_us,
        }  # fmt: skip

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self.matcher.restore(state["matcher"].tobytes())
        self._codes.restore(state["codes"])
        self._key, self._first = state["key"], state["first"]
        self._last, self._first_us, self._last_us = state["last"], state["first_us"], state["last_us"]

    def _keys(self, rows: pa.Table) -> Int64Array:
        columns = [rows.column(c.name).combine_chunks() for c in self.gap.rows.partition_by]
        return self._codes.of(columns, rows.num_rows)
