"""MATCH_NUMBER, and the order of matches, where further columns divide the rows of a partition (matching.tied)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array
from matching.decode import Decode
from matching.kernels.layout import grown
from matching.keys import Keys
from matching.state import read_array, saved_array
from matching.store import RowStore


class MatchNumbers:
    """The number of the last match of each partition. restarts_at: number of partitions from which all are forgotten,
    where nothing reads the numbers; None: never."""

    def __init__(self, types: Sequence[pa.DataType], restarts_at: int | None) -> None:
        self._types = types
        self._restarts_at = restarts_at
        self._forget()

    def _forget(self) -> None:
        self._keys = Keys(self._types)
        self._last = np.zeros(1, np.int64)

    def number(self, keys: Sequence[pa.Array], count: int) -> Int64Array:
        """Returns the numbers of the next matches, in their order. keys: the values of PARTITION BY of each."""
        if self._restarts_at is not None and len(self._keys) > self._restarts_at:
            self._forget()
        ids = self._keys.encode(keys, count)
        if len(self._last) < len(self._keys):
            self._last = grown(self._last, 2 * len(self._keys))
        order = np.argsort(ids, kind="stable")
        of = ids[order]
        begins = np.flatnonzero(np.diff(of, prepend=-1))
        counts = np.diff(begins, append=count)
        numbers = np.empty(count, np.int64)
        numbers[order] = self._last[of] + np.arange(1, count + 1) - np.repeat(begins, counts)
        self._last[of[begins]] += counts
        return numbers

    def snapshot(self) -> dict[str, np.ndarray]:
        keys = {f"key.{name}": saved_array(values) for name, values in self._keys.snapshot().items()}
        return keys | {"last": self._last}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self._last = arrays["last"]
        keys = {name.removeprefix("key."): a for name, a in arrays.items() if name.startswith("key.")}
        self._keys.restore({name: read_array(array) for name, array in keys.items()})


class Overlaps:
    """Which matches, in order, do not overlap an earlier one, where those of each value were found one per start.

    Of one start only the first match is wanted even so: the later ones cover its rows, so they overlap what it does.
    What a match may overlap begins no later than it ends. So the last row of the last match decides."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # by group of partitions, the last row of the last match

    def without(self, out: Decode, groups: Int64Array) -> Decode:
        """Returns the matches that stay. groups: of each."""
        stay = []
        ends = zip(groups.tolist(), out.start.tolist(), out.last_rows().tolist(), strict=True)
        for at, (group, start, last) in enumerate(ends):
            if start > self._last.get(group, -1):
                self._last[group] = last
                stay.append(at)
        return out if len(stay) == out.count else out.take(np.array(stay, np.int64))

    def move(self, moved: Int64Array) -> None:
        """Renumbers rows. moved: the new position of each, negative for one that is dropped."""
        kept = np.flatnonzero(moved >= 0)
        places = {group: int(np.searchsorted(kept, row, "right")) - 1 for group, row in self._last.items()}
        self._last = {group: row for group, row in places.items() if row >= 0}

    def snapshot(self) -> dict[str, np.ndarray]:
        return {"group": np.array([*self._last], np.int64), "row": np.array([*self._last.values()], np.int64)}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        self._last = dict(zip(arrays["group"].tolist(), arrays["row"].tolist(), strict=True))


def in_order(out: Decode, store: RowStore, within_us: int) -> Decode:
    """Returns matches that waited for the end of WITHIN in the order of that end, then of their last rows, then of
    their first ones. Those of one value are in this order, and the rows of the store in the total order."""
    order = np.lexsort((out.start, out.last_rows(), deadlines(out, store, within_us)))
    return out if (order[:-1] < order[1:]).all() else out.take(order)


def deadlines(out: Decode, store: RowStore, within_us: int) -> Int64Array:
    """Returns when WITHIN is over for each match."""
    return np.asarray(store.ts[out.start] + within_us)
