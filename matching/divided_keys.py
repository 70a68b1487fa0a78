"""Partition ids of rows that further columns divide (matching.tied)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array
from matching.keys import Keys, keep_only


class DividedKeys(Keys):
    """Partition ids of several columns together: those of all but the last one and a value of the last, so any number
    of values have room."""

    def __init__(self, types: Sequence[pa.DataType], whole: int, keeps: bool = False) -> None:
        """whole: number of columns with ids of their own, one at least. keeps: these are never freed."""
        self._keeps = keeps
        self._before = len(types) - 1  # columns before the last one
        self._whole = DividedKeys(types[:-1], whole, keeps) if self._before > whole else Keys(types[:-1])
        super().__init__([pa.int64(), types[-1]])

    def encode(self, columns: Sequence[pa.Array], rows: int) -> Int64Array:
        """Partition id of each row, int64 (rows,)."""
        return super().encode([pa.array(self._whole.encode(columns[:-1], rows)), columns[-1]], rows)

    def whole(self, ids: Int64Array) -> Int64Array:
        """Returns the ids of the first columns alone, of these partition ids."""
        before = self._but_last(ids)
        return self._whole.whole(before) if isinstance(self._whole, DividedKeys) else before

    def _but_last(self, ids: Int64Array) -> Int64Array:
        return np.asarray(super().values(0, ids).to_numpy())

    def forget(self, ids: Int64Array) -> None:
        """Frees ids in use, for other keys. Cost: linear in the ids in use."""
        super().forget(ids)
        if self._keeps and not isinstance(self._whole, DividedKeys):
            return
        first = self.encoders[0]
        there = np.ones(len(first), np.bool_)
        there[first.free] = False
        keep_only(self._whole, first.of(np.flatnonzero(there)).to_numpy())

    def values(self, column: int, ids: Int64Array) -> pa.Array:
        """The values of partition column `column` for these partition ids."""
        return super().values(1, ids) if column == self._before else self._whole.values(column, self._but_last(ids))

    @property
    def nbytes(self) -> int:
        """Returns the approximate bytes of the tables: see Keys."""
        return super().nbytes + self._whole.nbytes

    def snapshot(self) -> dict[str, pa.Array]:
        """Returns the tables of the first columns, by names of their own, and those of all."""
        return super().snapshot() | {f"whole.{name}": table for name, table in self._whole.snapshot().items()}

    def restore(self, tables: dict[str, pa.Array]) -> None:
        """Restores the result of `snapshot`."""
        super().restore(tables)
        self._whole.restore({n.removeprefix("whole."): t for n, t in tables.items() if n.startswith("whole.")})
