"""The late events of a stream, for whoever wants to see them: they are in the archive, and no live query has them."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

from archive.recent import BoolArray
from matching.batch import EventBatch

#: So many that nobody has fetched are held.
HELD_MAX = 100_000


class LateEvents:
    """Late events since this was first asked for, in the order in which they came.

    May be read from another thread than the one that pushes. dropped: how many were let go because nobody fetched
    them; they are in the archive all the same."""

    def __init__(self, columns: pa.Schema) -> None:
        self.schema = columns.append(pa.field("_source", pa.string())).append(pa.field("_offset", pa.int64()))
        self.dropped = 0
        self._lock = threading.Lock()
        self._held: list[pa.Table] = []
        self._count = 0

    def add(self, batch: EventBatch, late: BoolArray) -> None:
        """For the engine: the events of a push, and which of them are late, bool (n,)."""
        events = batch.take(np.flatnonzero(late))
        names = pa.array(events.sources, pa.string()).take(pa.array(events.source))
        columns = [*events.columns.columns, names, pa.array(events.offset)]
        if events.columns.num_columns + 2 != len(self.schema):  # the stream has more columns by now
            fields = list(events.columns.schema)
            self.schema = pa.schema([*fields, *list(self.schema)[-2:]])
        with self._lock:
            self._held.append(pa.Table.from_arrays(columns, schema=self.schema))
            self._count += len(events)
            while self._count > HELD_MAX and len(self._held) > 1:
                gone = self._held.pop(0).num_rows
                self._count -= gone
                self.dropped += gone

    def fetch(self) -> pa.Table:
        """Those since the last fetch: the declared columns, `_source` and `_offset`."""
        with self._lock:
            held, self._held, self._count = self._held, [], 0
        return pa.concat_tables(held, promote_options="default") if held else self.schema.empty_table()
