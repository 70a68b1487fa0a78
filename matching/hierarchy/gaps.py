"""Negations between two elements of a pattern with boxes, tested on matches without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matcher
from matching.hierarchy.counts import KeyCodes
from matching.state import as_array
from query.plan.boxes import FIRST, FIRST_US, LAST, Gap

#: Number of rows that may be kept although none needs them.
PARTS_MIN = 1 << 12


class GapRows(NamedTuple):
    """Rows of one negation by key and last position. latest: the latest first position so far within the key."""

    key: Int64Array
    first: Int64Array
    last: Int64Array
    first_us: Int64Array
    latest: Int64Array

    def violated(self, key: Int64Array, after: Int64Array, until: Int64Array) -> np.ndarray:
        """Returns, for each gap, whether a row lies wholly in it: begins after one position and ends before another."""
        far = max(int(self.last.max()), int(until.max(initial=0))) + 2
        # of the rows that end before it one begins latest
        place = np.searchsorted(self.key * far + self.last, key * far + until) - 1
        found = np.maximum(place, 0)
        return (place >= 0) & (self.key[found] == key) & (self.latest[found] > after)


def gap_rows(key: Int64Array, first: Int64Array, last: Int64Array, first_us: Int64Array) -> GapRows:
    """Returns the rows that begin later than all rows of their key that end before them: of two rows inside a gap the
    other one is not needed."""
    order = np.lexsort((first, last, key))
    key, first, last, first_us = key[order], first[order], last[order], first_us[order]
    far = int(first.max(initial=0)) + 1  # keys are far apart
    latest = np.maximum.accumulate(first + key * far) - key * far
    kept = np.concatenate([[True], (first[1:] > latest[:-1]) | (key[1:] != key[:-1])])[: len(key)]
    return GapRows(key[kept], first[kept], last[kept], first_us[kept], latest[kept])


class GapTest:
    """The rows of one negation so far, and the matches that they rule out.

    Rows are kept in parts, each at least twice as long as the next: a push sorts few of them again."""

    __slots__ = ("_begin_us", "_codes", "_matcher", "_parts", "_settled", "gap")

    def __init__(self, gap: Gap, matcher: Matcher) -> None:
        self.gap = gap
        self._matcher = matcher
        self._codes = KeyCodes()
        self._parts: list[GapRows] = []
        self._settled = 0  # number of rows after all parts were put together
        self._begin_us: int | None = None  # rows that begin earlier are not needed

    def push(self, batch: EventBatch) -> None:
        """Takes the next merged rows."""
        rows = self._matcher.push(batch).rows
        if rows.num_rows:
            first, last, first_us = (np.asarray(rows.column(c.name)) for c in (FIRST, LAST, FIRST_US))
            self._add(gap_rows(self._keys(rows), first, last, first_us))

    def _add(self, part: GapRows) -> None:
        total = len(part.key) + sum(len(one.key) for one in self._parts)
        everything = total > 2 * self._settled + PARTS_MIN  # many may be needed no more
        while self._parts and (everything or len(self._parts[-1].key) < 2 * len(part.key)):
            part = self._both(self._parts.pop(), part)
        self._parts.append(part)
        if everything:
            self._settled = len(part.key)

    def _both(self, earlier: GapRows, later: GapRows) -> GapRows:
        key, first, last, first_us = (
            np.concatenate([getattr(earlier, name), getattr(later, name)]) for name in GapRows._fields[:4]
        )
        if self._begin_us is not None:
            kept = first_us >= self._begin_us
            key, first, last, first_us = key[kept], first[kept], last[kept], first_us[kept]
        return gap_rows(key, first, last, first_us)

    def violated(self, rows: pa.Table) -> np.ndarray:
        """Returns, for each match, whether a row lies wholly in its gap. rows: the output rows of the matches."""
        found = np.zeros(rows.num_rows, np.bool_)
        if not rows.num_rows:
            return found
        after, until = (np.asarray(rows.column(name)) for name in (self.gap.after, self.gap.until))
        key = self._keys(rows)
        for part in self._parts:
            if len(part.key):
                found |= part.violated(key, after, until)
        return found

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
        return {
            "matcher": as_array(self._matcher.snapshot()), "codes": self._codes.snapshot(),
            "key": whole.key, "first": whole.first, "last": whole.last, "first_us": whole.first_us,
        }  # fmt: skip

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self._matcher.restore(state["matcher"].tobytes())
        self._codes.restore(state["codes"])
        whole = gap_rows(state["key"], state["first"], state["last"], state["first_us"])
        self._parts, self._settled, self._begin_us = [whole], len(whole.key), None

    def _keys(self, rows: pa.Table) -> Int64Array:
        columns = [rows.column(c.name).combine_chunks() for c in self.gap.rows.partition_by]
        return self._codes.of(columns, rows.num_rows)
