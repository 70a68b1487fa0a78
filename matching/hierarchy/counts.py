"""The number of each event among those with equal keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array
from matching.kernels.layout import grown
from matching.state import read_table, saved_table
from query.plan.boxes import CountedEvents
from query.schema import STREAM


class KeyCodes:
    """Gives keys, the values of some columns, numbers from 0; null equals null, and NaN NaN. O(keys) in memory."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: pa.Table | None = None  # the values, by number

    def __len__(self) -> int:
        return 0 if self._known is None else self._known.num_rows

    def of(self, columns: Sequence[pa.Array], n: int) -> Int64Array:
        """Returns the numbers of the keys of n rows; new keys get new ones. Without columns all rows have one key."""
        if not columns:
            return np.zeros(n, np.int64)
        batch = pa.table({f"k{i}": column for i, column in enumerate(columns)})
        kept = len(self)
        whole = pa.concat_tables([batch if self._known is None else self._known, batch][not kept:]).combine_chunks()
        code = np.zeros(whole.num_rows, np.int64)
        for name in whole.column_names:
            values = whole.column(name).combine_chunks()
            part = np.asarray(pc.dictionary_encode(values, null_encoding="encode").indices).astype(np.int64)
            code = np.unique(code * (int(part.max(initial=0)) + 1) + part, return_inverse=True)[1].reshape(-1)
        # numbers are places in the order of appearance
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        if len(first) > kept:
            self._known = whole.take(pa.array(np.sort(first)))
        return np.argsort(np.argsort(first))[inverse.reshape(-1)][kept:]

    def snapshot(self) -> np.ndarray:
        """Returns its state."""
        return np.zeros(0, np.uint8) if self._known is None else saved_table(self._known)

    def restore(self, state: np.ndarray) -> None:
        """Restores a snapshot."""
        self._known = read_table(state) if len(state) else None


def places_within(code: Int64Array) -> Int64Array:
    """Returns how many equal values precede each of n values."""
    order = np.argsort(code, kind="stable")
    begins = np.diff(code[order], prepend=code[order[:1]] - 1) != 0
    first = np.maximum.accumulate(np.where(begins, np.arange(len(code)), 0))
    out = np.empty(len(code), np.int64)
    out[order] = np.arange(len(code)) - first
    return out


class Counts:
    """Counts events by the values of some columns."""

    __slots__ = ("_codes", "_of", "_seen", "counted")

    def __init__(self, counted: CountedEvents) -> None:
        self.counted = counted
        self._of = pa.array(counted.of, pa.string())
        self._codes = KeyCodes()
        self._seen: Int64Array = np.zeros(1, np.int64)

    def number(self, events: pa.RecordBatch) -> tuple[Int64Array, Int64Array]:
        """Returns, for each of the next events, the number of counted events with its keys before it, and that up to
        it."""
        n = events.num_rows
        if not self.counted.keys and not self.counted.of:
            self._seen[0] += n
            upto = np.arange(self._seen[0] - n + 1, self._seen[0] + 1)
            return upto - 1, upto
        if self.counted.of:
            is_counted = np.asarray(pc.is_in(events.column(STREAM), value_set=self._of))
        else:
            is_counted = np.ones(n, np.bool_)
        code = self._codes.of([events.column(name) for name in self.counted.keys], n)
        self._seen = grown(self._seen, max(1, len(self._codes)))
        if self.counted.of:
            order = np.argsort(code, kind="stable")
            of_keys = np.bincount(code, minlength=len(self._seen))
            so_far = np.cumsum(is_counted[order])
            begins = np.cumsum(of_keys) - of_keys  # of each key in `order`
            upto = np.empty(n, np.int64)
            upto[order] = so_far - np.concatenate([[0], so_far])[begins][code[order]]
        else:
            upto = places_within(code) + 1
        upto += self._seen[code]
        self._seen += np.bincount(code[is_counted], minlength=len(self._seen))
        return upto - is_counted, upto

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its state."""
        return {"keys": self._codes.snapshot(), "seen": self._seen}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self._codes.restore(state["keys"])
        self._seen = state["seen"]
