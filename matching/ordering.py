"""The total order of a stream's events: sorting by it, and releasing events in it as the watermark allows."""

from __future__ import annotations

import json
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import EventBatch, Int64Array
from matching.ipc import to_ipc
from matching.types import arrow_schema
from query.errors import DataError
from query.schema import Schema

STATE_VERSION = 1

#: Number of sorted runs of about equal size that are merged into one: few merges per event, and few runs to search.
FAN_OUT = 16
#: Number of unsorted rows from which a radix sort is used.
RADIX_ROWS_MIN = 1 << 16
#: The ingest sequence of a first event; of n merged streams one of each, of stream k that with seq % n = k.
Since: TypeAlias = int | tuple[int, ...]


def total_order(batch: EventBatch, schema: Schema) -> Int64Array:
    """The row numbers of `batch` in the total order: (time, tie columns, source name, offset), ascending; int64 (n,).

    Tie columns compare as DuckDB's ORDER BY with NULLS FIRST does: null first, strings and blobs by their bytes,
    -0 = 0, NaN largest and equal to itself. Source names compare by code point. Rows equal in all four are one event.
    Cost: one sort by time, and one of the rows with equal times; a few passes where they are sorted or nearly so.
    """
    n = len(batch)
    ts_us = batch.ts_us
    if n < 2 or bool((ts_us[1:] > ts_us[:-1]).all()):
        return np.arange(n, dtype=np.int64)
    order = sorting_order(ts_us, stable=False).astype(np.int64, copy=False)
    ts_us = ts_us.take(order)
    equal = ts_us[1:] == ts_us[:-1]
    tied = np.zeros(n, np.bool_)
    tied[1:] |= equal
    tied[:-1] |= equal
    at = np.flatnonzero(tied)
    if len(at) == 0:
        return order
    rows = order[at]
    keys = [np.cumsum(np.concatenate([[False], ~equal]))[at]]
    names = batch.columns.schema.names
    keys += [column_ranks(batch.columns.column(_position(names, name)).take(pa.array(rows))) for name in schema.order]
    if len(batch.sources) > 1:
        keys.append(_rank(batch.sources)[batch.source[rows]])
    keys.append(batch.offset[rows])
    order[at] = rows[_argsort(keys)]
    return order


def sorting_order(values: np.ndarray, stable: bool = True) -> np.ndarray:
    """Returns the rows that sort whole numbers (n,), equal ones in their order if stable; int32 or int64 (n,)."""
    descents = int(np.count_nonzero(values[1:] < values[:-1]))
    if not descents:
        return np.arange(len(values), dtype=np.int64)
    # A few sorted runs are merged (timsort) many times faster than they are sorted; the rest is sorted faster.
    if descents < 64 or len(values) < RADIX_ROWS_MIN or values.dtype != np.int64:
        return np.argsort(values, kind="stable" if stable or descents < 64 else "quicksort")
    from matching.kernels.radix import radix_argsort  # loads numba, too slow for few rows

    return radix_argsort(values)


def sort_events(batch: EventBatch, schema: Schema) -> EventBatch:
    """Returns the rows in the total order; the batch itself, without a copy, if they are in it."""
    if _is_sorted(batch, schema):
        return batch
    return batch.take(total_order(batch, schema))


def check_order(schema: Schema) -> None:
    """Raises DataError for a tie column that is unknown or whose type has no order."""
    for name in schema.order:
        field = schema.field(name)
        if field is None:
            known = ", ".join(schema.names)
            raise DataError(f"tie column {name} is not a column of {schema.name}", f"available: {known}")
        type = arrow_schema(schema).field(field.name).type
        if pa.types.is_nested(type) or pa.types.is_interval(type) or field.type.startswith("ENUM"):
            raise DataError(
                f"tie column {field.name} is {field.type}, which has no order",
                "order by numbers, strings, blobs, booleans, dates or times",
            )


def passes_at_once(schema: Schema) -> bool:
    """True if on-time events of a stream arrive in the total order, while they have one source."""
    return schema.lateness_us == 0 and not schema.order


def in_sources(batch: EventBatch, sources: tuple[str, ...]) -> EventBatch:
    """Returns the batch with these source names, followed by those that they lack."""
    if batch.sources == sources:
        return batch
    names = dict.fromkeys((*sources, *batch.sources))
    sources = tuple(names)
    places = {name: place for place, name in enumerate(names)}
    index = [places[name] for name in batch.sources]
    source = batch.source
    if index != list(range(len(index))):
        source = np.array(index, np.int32)[source]
    return EventBatch(batch.columns, batch.ts_us, source, batch.offset, batch.seq, sources)


def from_then_on(seq: Int64Array, since_seq: Since) -> np.ndarray:
    """Returns which ingest sequences are not before a first one, bool (n,)."""
    if isinstance(since_seq, int):
        return seq >= since_seq
    return seq >= np.array(since_seq, np.int64)[seq % len(since_seq)]


class Ordering:
    """Hands the on-time events of one stream on in the total order, each once no earlier one can come.

    With one source, lateness 0 and no tie columns that is at once: on-time events of such a stream arrive in order, and
    batches pass through without a copy. Otherwise an event is released when watermark > its time, never at equality.
    From the moment a second source is seen events are held back; one that has passed through before stays so: if a
    second source then sends an event of that very time and its name sorts first, it comes after it.

    A pure function of the pushed events: no clock, no I/O. Late events must not be handed in. Not thread safe. Cost:
    O(log n) moves per held event.
    """

    __slots__ = ("_at_once", "_nothing", "_runs", "_sources", "schema", "watermark_us")

    def __init__(self, schema: Schema) -> None:
        check_order(schema)
        self.schema = schema
        self.watermark_us: int | None = None
        self._at_once = passes_at_once(schema)
        self._sources: tuple[str, ...] = ()
        # Held events: runs, each in the total order; sources of all are prefixes of self._sources.
        self._runs: list[EventBatch] = []
        zeros = np.zeros(0, np.int64)
        empty = pa.RecordBatch.from_pylist([], schema=arrow_schema(schema))
        self._nothing = EventBatch(empty, zeros, zeros.astype(np.int32), zeros, zeros, ())

    @property
    def sources(self) -> tuple[str, ...]:
        """Returns the names of all sources so far."""
        return self._sources

    def __len__(self) -> int:
        """Returns the number of events held back."""
        return sum(map(len, self._runs))

    def held_count(self, since_seq: Since) -> int:
        """Returns the number of events held back from that ingest sequence on."""
        return sum(int(np.count_nonzero(from_then_on(run.seq, since_seq))) for run in self._runs)

    def held_seqs(self) -> Int64Array:
        """Returns the ingest sequences of the events held back, in no order."""
        return np.concatenate([np.zeros(0, np.int64), *(run.seq for run in self._runs)])

    def push(self, batch: EventBatch, watermark_us: int | None) -> EventBatch:
        """Takes on-time events in arrival order and the watermark after them (None: there is none yet).

        Returns the events that may be matched now, in the total order. Its `sources` names all sources seen so far,
        in order of appearance, so an index keeps its meaning from batch to batch.
        """
        batch = self.known(batch)
        self._raise(watermark_us)
        if self._passes and not self._runs:
            return batch
        if len(batch):
            self._runs.append(sort_events(batch, self.schema))
        return self._release()

    def declare(self, schema: Schema) -> None:
        """Adopts a declaration that differs in its lateness only. Held-back events keep their turn."""
        self.schema = schema
        self._at_once = passes_at_once(schema)

    def stands_before(self, batch: EventBatch, given_us: int) -> bool:
        """True if one of the next events belongs before some that have passed through: it has the time of the last of
        these, `given_us`, and is of the second source."""
        others = [name for name in batch.sources if name not in self._sources]
        return self._passes and bool(self._sources and others) and bool((batch.ts_us == given_us).any())

    @property
    def _passes(self) -> bool:
        """True if events arrive in order."""
        return self._at_once and len(self._sources) <= 1

    def advance(self, watermark_us: int | None) -> EventBatch:
        """Announces that no event with time < watermark_us can still come (None: none at all). Returns the events
        released."""
        if watermark_us is None:
            runs, self._runs = self._runs, []
            return self._merged(runs)
        self._raise(watermark_us)
        return self._release()

    def snapshot(self) -> bytes:
        """The state as an Arrow IPC stream: the held events, and in its metadata version, sources and watermark."""
        held = self.held()
        state = {"version": STATE_VERSION, "sources": self._sources, "watermark_us": self.watermark_us}
        # The hidden columns come last and are found by place: a declared column may have any name.
        arrays = [*held.columns.columns, *map(pa.array, (held.ts_us, held.source, held.offset, held.seq))]
        names = [*held.columns.schema.names, "_ts_us", "_source", "_offset", "_seq"]
        fields = [pa.field(name, array.type) for name, array in zip(names, arrays)]
        schema = pa.schema(fields, metadata={"ordering": json.dumps(state)})
        return to_ipc(pa.RecordBatch.from_arrays(arrays, schema=schema))

    def restore(self, state: bytes) -> None:
        """Restores a snapshot of an Ordering of the same schema. Raises DataError for any other state."""
        try:
            with pa.ipc.open_stream(state) as reader:
                metadata = json.loads((reader.schema.metadata or {})[b"ordering"])
                batch = reader.read_next_batch()
        except (pa.ArrowException, OSError, KeyError, ValueError, StopIteration) as error:
            message = f"the saved order of {self.schema.name} is invalid: {error}"
            raise DataError(message, "start from the archive") from None
        columns = batch.select(list(range(batch.num_columns - 4)))
        declared = self._nothing.columns.schema
        for field in list(declared)[columns.num_columns :]:  # the stream has got more columns since
            columns = columns.append_column(field, pa.nulls(len(columns), field.type))
        if metadata["version"] != STATE_VERSION or not columns.schema.equals(declared):
            raise DataError(
                f"the saved order of {self.schema.name} has version {metadata['version']} or other columns",
                f"this program reads version {STATE_VERSION} with the declared columns; start from the archive",
            )
        ts_us, source, offset, seq = (column.to_numpy() for column in batch.columns[-4:])
        self._sources = tuple(metadata["sources"])
        self.watermark_us = metadata["watermark_us"]
        held = EventBatch(columns, ts_us, source, offset, seq, self._sources)
        self._runs = [held] if len(held) else []

    def _raise(self, watermark_us: int | None) -> None:
        if watermark_us is not None and (self.watermark_us is None or watermark_us > self.watermark_us):
            self.watermark_us = watermark_us

    def known(self, batch: EventBatch) -> EventBatch:
        """Returns the batch with the sources of those handed on; adds new sources to them."""
        named = in_sources(batch, self._sources)
        self._sources = named.sources
        return named

    def held(self) -> EventBatch:
        """Returns the events held back, in the total order."""
        return self._merged(self._runs)

    def _release(self) -> EventBatch:
        w = self.watermark_us
        released: list[EventBatch] = []
        if w is not None:
            if self._passes:
                w += 1  # held back under another lateness: later events of this time sort after it
            kept: list[EventBatch] = []
            for run in self._runs:
                if run.ts_us[0] >= w:
                    kept.append(run)
                    continue
                cut = int(np.searchsorted(run.ts_us, w, side="left"))
                released.append(run.slice(0, cut))
                if cut < len(run):
                    kept.append(run.slice(cut, len(run)))
            self._runs = kept
        self._compact()
        return self._merged(released)

    def _compact(self) -> None:
        """Merges the last runs while FAN_OUT of them are no larger (within a factor of FAN_OUT) than the last one."""
        while len(self._runs) >= FAN_OUT:
            tier = _tier(self._runs[-1])
            first = len(self._runs)
            while first and _tier(self._runs[first - 1]) <= tier:
                first -= 1
            if len(self._runs) - first < FAN_OUT:
                return
            self._runs[first:] = [self._merged(self._runs[first:])]

    def _merged(self, runs: list[EventBatch]) -> EventBatch:
        """The rows of several runs in the total order, as one batch."""
        if not runs:
            empty = self._nothing
            return EventBatch(empty.columns, empty.ts_us, empty.source, empty.offset, empty.seq, self._sources)
        together = EventBatch.concat(runs, self._sources)
        if len(runs) == 1:
            return together
        return sort_events(together, self.schema)


def _tier(run: EventBatch) -> int:
    return (len(run).bit_length() - 1) // (FAN_OUT.bit_length() - 1)


def _position(names: list[str], name: str) -> int:
    lowered = name.lower()
    return next(i for i, known in enumerate(names) if known.lower() == lowered)


def _rank(sources: tuple[str, ...]) -> Int64Array:
    """Returns, for each source, its rank in the order of their names."""
    rank = np.empty(len(sources), np.int64)
    rank[sorted(range(len(sources)), key=sources.__getitem__)] = np.arange(len(sources))
    return rank


def column_ranks(column: pa.Array) -> Int64Array:
    """Numbers that compare as the values do in the total order; 0 for null, 1 and more for values; int64 (n,)."""
    if pa.types.is_floating(column.type):
        # numpy takes -0 and 0 for equal, NaN for the largest and equal to itself.
        codes = np.unique(column.to_numpy(zero_copy_only=False), return_inverse=True)[1].astype(np.int64) + 1
    else:
        codes = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    if column.null_count:
        codes[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return codes


def _argsort(keys: list[Int64Array]) -> Int64Array:
    """Returns row numbers by the keys, the most significant first. As one int64 key if their ranges allow it: 5 times
    faster."""
    folded, room = np.zeros(len(keys[0]), np.int64), 1
    for key in keys:
        low = int(key.min())
        span = int(key.max()) - low + 1
        room *= span
        if room >= 2**62:
            return np.lexsort(keys[::-1])
        folded *= span
        folded += key - low
    return np.argsort(folded)


def _is_sorted(batch: EventBatch, schema: Schema) -> bool:
    """True only if the rows are in the total order; False also if tie columns would have to be compared."""
    ts_us = batch.ts_us
    if len(ts_us) < 2 or bool((ts_us[1:] > ts_us[:-1]).all()):
        return True
    if schema.order or not bool((ts_us[1:] >= ts_us[:-1]).all()):
        return False
    after = batch.offset[1:] > batch.offset[:-1]
    if len(batch.sources) > 1:
        rank = _rank(batch.sources)[batch.source]
        after = (rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & after)
    return bool((after | (ts_us[1:] > ts_us[:-1])).all())
