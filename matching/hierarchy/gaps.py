"""Negations of a pattern with boxes, tested on matches without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matcher
from matching.hierarchy.counts import KeyCodes
from matching.state import as_array
from query.plan.boxes import FIRST, FIRST_US, LAST, LAST_US, Gap, GapPlace

#: Number of rows that may be kept although none needs them.
PARTS_MIN = 1 << 12
#: The columns of a row's interval, in the order of GapRows.
_INTERVAL = (FIRST.name, LAST.name, FIRST_US.name, LAST_US.name)


class GapRows(NamedTuple):
    """Rows of one negation by key and last position; within a key they are by first position, too (see `gap_rows`)."""

    key: Int64Array
    first: Int64Array
    last: Int64Array
    first_us: Int64Array
    last_us: Int64Array

    def violated(self, gap: Gap, key: Int64Array, bounds: Sequence[Int64Array]) -> np.ndarray:
        """Returns, for each match, whether one of at least one row lies wholly in its gap. bounds: Gap.columns."""
        if gap.place is GapPlace.END:
            after, begin_us, _ = bounds
            far = max(int(self.first.max()), int(after.max(initial=0))) + 2
            # the first row that begins after the last element: of all that do, it ends earliest
            place = np.searchsorted(self.key * far + self.first, key * far + after, side="right")
            found = np.minimum(place, len(self.key) - 1)
            near = self.last_us[found] <= begin_us + gap.within_us
            return (place < len(self.key)) & (self.key[found] == key) & near
        until, other = bounds
        far = max(int(self.last.max()), int(until.max(initial=0))) + 2
        # the last row that ends before the next element: of all that do, it begins latest
        place = np.searchsorted(self.key * far + self.last, key * far + until) - 1
        found = np.maximum(place, 0)
        inside = gap.place is GapPlace.INSIDE
        near = self.first[found] > other if inside else self.first_us[found] >= other - gap.within_us
        return (place >= 0) & (self.key[found] == key) & near


def gap_rows(
    key: Int64Array, first: Int64Array, last: Int64Array, first_us: Int64Array, last_us: Int64Array
) -> GapRows:
    """Returns the rows that begin later than all rows of their key that end before them: of two rows inside a gap the
    other one is not needed, nor at an edge, where it is further away."""
    order = np.lexsort((first, last, key))
    key, first, last = key[order], first[order], last[order]
    far = int(first.max(initial=0)) + 1  # keys are far apart
    latest = np.maximum.accumulate(first + key * far) - key * far
    kept = np.concatenate([[True], (first[1:] > latest[:-1]) | (key[1:] != key[:-1])])[: len(key)]
    return GapRows(key[kept], first[kept], last[kept], first_us[order][kept], last_us[order][kept])


class GapTest:
    """The rows of one negation so far, and the matches that they rule out.

    Rows are kept in parts, each at least twice as long as the next: a push sorts few of them again."""

    __slots__ = ("_begin_us", "_codes", "_parts", "_settled", "gap", "matcher")

    def __init__(self, gap: Gap, matcher: Matcher) -> None:
        self.gap = gap
        self.matcher = matcher
        self._codes = KeyCodes()
        self._parts: list[GapRows] = []
        self._settled = 0  # number of rows after all parts were put together
        self._begin_us: int | None = None  # rows that begin earlier are not needed

    def push(self, batch: EventBatch) -> None:
        """Takes the next merged rows."""
        rows = self.matcher.push(batch).rows
        if rows.num_rows:
            interval = (np.asarray(rows.column(name)) for name in _INTERVAL)
            self._add(gap_rows(self._keys(rows), *interval))

    def _add(self, part: GapRows) -> None:
        total = len(part.key) + sum(len(one.key) for one in self._parts)
        everything = total > 2 * self._settled + PARTS_MIN  # many may be needed no more
        while self._parts and (everything or len(self._parts[-1].key) < 2 * len(part.key)):
            part = self._both(self._parts.pop(), part)
        self._parts.append(part)
        if everything:
            self._settled = len(part.key)

    def _both(self, earlier: GapRows, later: GapRows) -> GapRows:
        columns = [np.concatenate(pair) for pair in zip(earlier, later, strict=True)]
        if self._begin_us is not None:
            kept = columns[GapRows._fields.index("first_us")] >= self._begin_us
            columns = [values[kept] for values in columns]
        return gap_rows(*columns)

    def violated(self, rows: pa.Table) -> np.ndarray:
        """Returns, for each match, whether a row lies wholly in its gap. rows: an output row of each match."""
        found = np.zeros(rows.num_rows, np.bool_)
        if not rows.num_rows:
            return found
        bounds = [np.asarray(rows.column(name)) for name in self.gap.columns]
        key = self._keys(rows)
        for part in self._parts:
            if len(part.key):
                found |= part.violated(self.gap, key, bounds)
        return found

    def due_us(self, rows: pa.Table) -> Int64Array:
        """Returns, for each match of a pattern that ends in this negation, the time after which nothing violates it.
        rows: an output row of each match."""
        return np.asarray(rows.column(self.gap.columns[-1])) + self.gap.within_us

    def drop_before(self, time_us: int) -> None:
        """Notes that no match to come begins earlier, so that rows that do may be dropped."""
        self._begin_us = time_us

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its state."""
        while len(self._parts) > 1:
            later = self._parts.pop()
            self._parts.append(self._both(self._parts.pop(), later))
        none = np.zeros(0, np.int64)
        (whole,) = self._parts or [GapRows(none, none, none, none, none)]
        own = {"matcher": as_array(self.matcher.snapshot()), "codes": self._codes.snapshot()}
        return own | dict(zip(GapRows._fields, whole, strict=True))

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self.matcher.restore(state["matcher"].tobytes())
        self._codes.restore(state["codes"])
        whole = GapRows(*(state[name] for name in GapRows._fields))
        self._parts, self._settled, self._begin_us = [whole], len(whole.key), None

    def _keys(self, rows: pa.Table) -> Int64Array:
        columns = [rows.column(c.name).combine_chunks() for c in self.gap.rows.partition_by]
        return self._codes.of(columns, rows.num_rows)
