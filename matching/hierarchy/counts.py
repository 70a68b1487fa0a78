"""The number of each event among those with equal keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array
from matching.ipc import from_ipc, to_ipc


class Counts:
    """Counts events by the values of some columns, null equal to null and NaN to NaN. O(number of keys) in memory."""

    __slots__ = ("_keys", "_seen", "keys")

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self._keys: pa.Table | None = None  # values of keys, by code
        self._seen: Int64Array = np.zeros(0 if keys else 1, np.int64)

    def number(self, events: pa.RecordBatch) -> Int64Array:
        """Returns the numbers of the next events, from 1 for the first with its keys."""
        n = events.num_rows
        if not self.keys:
            self._seen[0] += n
            return np.arange(self._seen[0] - n + 1, self._seen[0] + 1)
        code = self._codes(events)
        order = np.argsort(code, kind="stable")
        begins = np.concatenate([[True], np.diff(code[order]) != 0]) if n else np.zeros(0, np.bool_)
        first = np.maximum.accumulate(np.where(begins, np.arange(n), 0))
        out = np.zeros(n, np.int64)
        out[order] = np.arange(n) - first + 1
        out += self._seen[code]
        self._seen += np.bincount(code, minlength=len(self._seen))
        return out

    def snapshot(self) -> bytes:
        """Returns its state."""
        table = self._keys if self._keys is not None else pa.table({})
        return to_ipc(table.append_column("#seen", pa.array(self._seen)) if table.num_columns else
                      pa.table({"#seen": self._seen}))

    def restore(self, state: bytes) -> None:
        """Restores a snapshot."""
        table = from_ipc(state)
        self._seen = np.array(table.column("#seen"), np.int64).copy()
        self._keys = table.drop_columns(["#seen"]) if table.num_columns > 1 else None

    def _codes(self, events: pa.RecordBatch) -> Int64Array:
        """Returns the codes of the keys of events; new keys get new ones."""
        batch = pa.table({f"k{i}": events.column(name) for i, name in enumerate(self.keys)})
        known = batch.slice(0, 0) if self._keys is None else self._keys
        whole = pa.concat_tables([known, batch]).combine_chunks()
        code = np.zeros(whole.num_rows, np.int64)
        for name in whole.column_names:
            values = whole.column(name).combine_chunks()
            encoded = pc.dictionary_encode(values, null_encoding="encode").indices
            part = np.asarray(encoded).astype(np.int64)
            code = np.unique(code * (int(part.max(initial=0)) + 1) + part, return_inverse=True)[1].reshape(-1)
        kept = known.num_rows
        # codes of keys are their places in the order of appearance
        _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        by_place = np.argsort(np.argsort(first))
        places = by_place[inverse.reshape(-1)]
        fresh = np.sort(first)
        if len(fresh) > kept:
            self._keys = whole.take(pa.array(fresh))
            self._seen = np.concatenate([self._seen, np.zeros(len(fresh) - kept, np.int64)])
        return places[kept:]
