"""The number of each event among those with equal keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array
from matching.kernels.layout import grown
from matching.keys import Keys
from matching.state import as_array, pack, read_array, saved_array, unpack
from query.plan.boxes import CountedEvents
from query.schema import STREAM


class KeyCodes:
    """Gives keys, the values of some columns, numbers from 0; null equals null, and NaN NaN. O(keys) in memory."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: Keys | None = None  # of the types of the first columns

    def __len__(self) -> int:
        return 0 if self._keys is None else len(self._keys)

    def of(self, columns: Sequence[pa.Array], n: int) -> Int64Array:
        """Returns the numbers of the keys of n rows; new keys get new ones. Without columns all rows have one key."""
        if self._keys is None:
            self._keys = Keys([c.type.value_type if pa.types.is_dictionary(c.type) else c.type for c in columns])
        return self._keys.encode(columns, n)

    def snapshot(self) -> np.ndarray:
        """Returns its state."""
        if self._keys is None:
            return np.zeros(0, np.uint8)
        types = [str(i) for i in range(len(self._keys.encoders))]
        tables = {name: saved_array(values) for name, values in self._keys.snapshot().items()}
        return as_array(pack({"columns": types}, tables))

    def restore(self, state: np.ndarray) -> None:
        """Restores a snapshot."""
        self._keys = None
        if len(state):
            head, tables = unpack(state.tobytes())
            arrays = {name: read_array(table) for name, table in tables.items()}
            self._keys = Keys([arrays[f"values.{i}"].type for i in head["columns"]])
            self._keys.restore(arrays)


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
        code = self._codes.of([events.column(name) for name in self.counted.keys], n)
        if len(self._codes) > len(self._seen):
            self._seen = grown(self._seen, max(len(self._codes), 2 * len(self._seen)))
        is_counted = np.ones(n, np.bool_)
        if self.counted.of:
            is_counted = np.asarray(pc.is_in(events.column(STREAM), value_set=self._of))
            order = np.argsort(code, kind="stable")
            of_keys = np.bincount(code, minlength=len(self._codes))
            so_far = np.cumsum(is_counted[order])
            begins = np.cumsum(of_keys) - of_keys  # of each key in `order`
            upto = np.empty(n, np.int64)
            upto[order] = so_far - np.concatenate([[0], so_far])[begins][code[order]]
        else:
            upto = places_within(code) + 1
        upto += self._seen[code]
        np.maximum.at(self._seen, code, upto)
        return upto - is_counted, upto

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its state."""
        return {"keys": self._codes.snapshot(), "seen": self._seen}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self._codes.restore(state["keys"])
        self._seen = state["seen"]
