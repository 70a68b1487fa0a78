"""Which rows can matter to layers: those that meet a row-local condition of one of their variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa

from matching.array_lanes import truth
from matching.batch import EventBatch, Int64Array
from matching.features import RowValues, columns_read, storable
from matching.store import RowStore
from matching.types import plain_type
from query.language.duck import Settings
from query.plan.expression import Column, Expression, walk

#: Least number of rows, for each condition, of which those are looked for that conditions can take: fewer are merged
#: sooner.
SIEVED_MIN = 64
#: Least number of rows if DuckDB has to be asked, which takes some milliseconds.
ASKED_MIN = 1 << 14


class Sieve:
    """Finds the rows that meet one of some row-local conditions, or for which one cannot be computed: the matcher
    decides whether it is read."""

    __slots__ = ("_least", "_store", "_values")

    def __init__(self, conditions: Collection[Expression], settings: Settings) -> None:
        self._values = RowValues(tuple(conditions), settings=settings)
        self._least = SIEVED_MIN * len(conditions) if self._values.by_arrays else ASKED_MIN
        types = {e.name: e.type for x in conditions for e in walk(x) if isinstance(e, Column)}
        lanes = {name: storable(types[name]) for name in columns_read(self._values.expressions)}
        numeric = {name: lane.floating for name, lane in lanes.items() if lane is not None}
        schema = pa.schema([(name, plain_type(type)) for name, type in types.items()])
        self._store = RowStore(numeric, [name for name in lanes if name not in numeric], schema, False)

    def met(self, columns: Mapping[str, pa.Array], n: int) -> Int64Array | None:
        """Returns the indices of the rows to keep of n; None: all, or as good as all."""
        if n < self._least:
            return None
        index = self.which(columns, n)
        return None if 8 * len(index) > 7 * n else index

    def which(self, columns: Mapping[str, pa.Array], n: int) -> Int64Array:
        """Returns the indices of the rows to keep of n, however many these are."""
        read = self._store.schema.names
        at = np.zeros(n, np.int64)
        rows = pa.RecordBatch.from_arrays([columns[name] for name in read], read)
        self._store.show(EventBatch(rows, at, np.zeros(n, np.int32), at, at), at)
        kept = np.zeros(n, np.bool_)
        for value, failed in zip(*self._values.attempt(self._store, slice(0, n)), strict=True):
            kept |= truth(value)
            if failed is not None:
                kept |= failed
        self._store.forget()
        return np.flatnonzero(kept)
