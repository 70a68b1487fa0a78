"""Recent events in memory: immutable pieces, held by reference, selected by their least and greatest time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import EventBatch, Int64Array
from matching.types import arrow_schema
from query.plan.expression import Column, Expression, quote, to_sql, walk
from query.schema import Schema

BoolArray = np.ndarray[tuple[int], np.dtype[np.bool_]]

#: Source of all rows that were archived from files (archive/ingest.py); no source of events may use this name.
FILES = "(files)"
#: Number of small pieces that are joined into one, so that pushes of single events leave few pieces to search.
FAN_OUT = 64
#: Limits of DuckDB's finite timestamps; a bound outside of them bounds nothing.
TIME_MIN_US, TIME_MAX_US = -9_223_372_022_400_000_000, 9_223_372_036_854_775_806
#: Pieces with this many rows are never copied.
SEALED_ROWS = 4096


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Range low <= value < end of a column of strings or integers, in its declared type; None: unbounded. Excludes
    nulls."""

    column: str
    low: str | int | None
    end: str | int | None


@dataclass(frozen=True, slots=True)
class Windows:
    """Time windows of partitions.

    columns: the partition columns. stretch_us: length of the stretches that time is cut into (from 1970 in both
    directions), so that rows and windows are joined by equality, however many windows a partition has. table: one row
    per window and stretch that it touches: the values of the columns (null is an ordinary value), the number of the
    stretch, the first and the last instant of the window, timestamp[us, UTC]. Windows of a partition do not overlap."""

    columns: tuple[str, ...]
    stretch_us: int
    table: pa.Table

    @staticmethod
    def around(columns: Sequence[str], rows: pa.RecordBatch, ts_us: Int64Array, reach_us: int) -> Windows:
        """Returns the windows within reach_us of rows in time order; merges windows that overlap or touch. ts_us:
        int64 (n,), the times of the rows."""
        code = np.zeros(len(ts_us), np.int64)
        for name in columns:
            encoded = rows.column(name).dictionary_encode(null_encoding="encode")
            code = code * len(encoded.dictionary) + encoded.indices.to_numpy(zero_copy_only=False)
            code = np.unique(code, return_inverse=True)[1].reshape(-1).astype(np.int64)
        order = np.argsort(code, kind="stable")
        code, times = code[order], ts_us[order]
        near = (code[1:] == code[:-1]) & (times[1:] - times[:-1] <= 2 * reach_us + 1)
        first = np.flatnonzero(np.concatenate([[True] * (len(order) > 0), ~near]))
        last = np.append(first[1:], len(order))[: len(first)] - 1
        low = np.maximum(times[first], TIME_MIN_US + reach_us) - reach_us
        high = np.minimum(times[last], TIME_MAX_US - reach_us) + reach_us
        # A window touches at most two stretches per row in it.
        stretch_us = 2 * reach_us + 1
        begins, ends = _stretch(low, stretch_us), _stretch(high, stretch_us)
        touched = ends - begins + 1
        window = np.repeat(np.arange(len(first)), touched)
        stretch = np.arange(len(window)) - np.repeat(np.cumsum(touched) - touched, touched) + begins[window]
        values = [rows.column(name).take(pa.array(order[first][window])) for name in columns]
        bounds = [pa.array(bound[window]).view(pa.timestamp("us", "UTC")) for bound in (low, high)]
        table = pa.table([*values, pa.array(stretch), *bounds], names=window_names(len(columns)))
        return Windows(tuple(columns), stretch_us, table)

    @property
    def condition(self) -> str:
        """SQL condition that joins rows to their windows; the time column is the placeholder {time}."""
        names = window_names(len(self.columns))
        tests = []
        for column, name in zip(self.columns, names):
            sign = "IS NOT DISTINCT FROM" if self.table.column(name).null_count else "="
            tests.append(f"{quote(column)} {sign} {name}")
        tests.append(f"epoch_us({{time}}) // {self.stretch_us} = {names[-3]}")
        return " AND ".join([*tests, f"{{time}} >= {names[-2]}", f"{{time}} <= {names[-1]}"])


def _stretch(ts_us: Int64Array, stretch_us: int) -> Int64Array:
    """Returns the stretch number of each instant, rounded towards zero as by DuckDB's //."""
    down = ts_us // stretch_us
    return down + ((ts_us < 0) & (ts_us % stretch_us != 0))


def window_names(columns: int) -> list[str]:
    """Returns the column names of a table of windows, which are reserved."""
    return [*(f"__hybrid_value{i}" for i in range(columns)), "__hybrid_stretch", "__hybrid_low", "__hybrid_high"]


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A resolved request to a history: low_us <= time < end_us, and one of the values in each column of `keys` (null
    matches null).

    late: includes late rows. columns: the declared columns to read, in declared order, with the time and the tie
    columns. where: a condition on single rows over declared columns that raises for none. span: the range of values of
    one column. windows: rows must lie in one of them."""

    low_us: int | None
    end_us: int | None
    keys: Mapping[str, pa.Array]
    late: bool
    columns: tuple[str, ...]
    where: Expression | None = None
    span: KeyRange | None = None
    windows: Windows | None = None

    @property
    def filtered(self) -> bool:
        """True if it has conditions other than the time range and late."""
        return bool(self.keys) or self.where is not None or self.span is not None or self.windows is not None

    def between(self, low_us: int | None, end_us: int | None) -> ResolvedRequest:
        """Returns the same request with another time range."""
        return replace(self, low_us=low_us, end_us=end_us)


def columns_schema(schema: Schema, columns: tuple[str, ...]) -> pa.Schema:
    """Returns the Arrow schema of some declared columns."""
    declared = arrow_schema(schema)
    return pa.schema([declared.field(name) for name in columns])


@dataclass(frozen=True, slots=True)
class EventChunk:
    """Events in order of arrival, immutable. late: bool (n,), or None if no event is late. min_us, max_us: of all
    rows."""

    batch: EventBatch
    late: BoolArray | None
    min_us: int
    max_us: int

    def __len__(self) -> int:
        return len(self.batch)

    def first_on_time_us(self) -> int | None:
        """Returns the least time of an event that is not late, or None."""
        if self.late is None:
            return self.min_us
        on_time = self.batch.ts_us[~self.late]
        return int(on_time.min()) if len(on_time) else None


def piece_of(batch: EventBatch, late: BoolArray) -> EventChunk:
    """Makes a piece of at least one event. Holds both arguments by reference: do not write to them again."""
    ts_us = batch.ts_us
    return EventChunk(batch, late if late.any() else None, int(ts_us.min()), int(ts_us.max()))


class RBuffer:
    """The buffer of pieces that are not in files yet. append costs O(1) amortized; each event is copied at most twice
    until its piece has SEALED_ROWS rows. Not thread safe; the tuple that `pieces` returns never changes."""

    __slots__ = ("_levels", "_pieces", "row_count")

    def __init__(self) -> None:
        # Sealed pieces, then pieces joined of FAN_OUT small ones, then small pieces: this is the order of arrival.
        self._levels: tuple[list[EventChunk], list[EventChunk], list[EventChunk]] = ([], [], [])
        self._pieces: tuple[EventChunk, ...] | None = ()
        self.row_count = 0

    def append(self, piece: EventChunk) -> None:
        """Appends a piece; changes nothing if it raises."""
        sealed, middle, small = self._levels
        more: list[EventChunk] = []  # of sealed ones
        if len(piece) >= SEALED_ROWS:
            if middle or small:
                more.append(joined([*middle, *small]))
            more.append(piece)
            middle, small = [], []
        else:
            small = [*small, piece]
            if len(small) == FAN_OUT:
                middle, small = [*middle, joined(small)], []
                if len(middle) == FAN_OUT or sum(map(len, middle)) >= SEALED_ROWS:
                    more.append(joined(middle))
                    middle = []
        whole = len(sealed)
        try:
            sealed += more
            self._levels, self._pieces, self.row_count = (sealed, middle, small), None, self.row_count + len(piece)
        except BaseException:
            del sealed[whole:]
            raise

    def pieces(self) -> tuple[EventChunk, ...]:
        """Returns all pieces in order of arrival. O(number of pieces) after an append, else O(1)."""
        if self._pieces is None:
            sealed, middle, small = self._levels
            self._pieces = (*sealed, *middle, *small)
        return self._pieces


def joined(pieces: Iterable[EventChunk]) -> EventChunk:
    """Joins pieces into one, in order (one copy)."""
    pieces = tuple(pieces)
    if len(pieces) == 1:
        return pieces[0]
    late: BoolArray | None = None
    if any(piece.late is not None for piece in pieces):
        late = np.concatenate([np.zeros(len(p), np.bool_) if p.late is None else p.late for p in pieces])
    return EventChunk(
        EventBatch.concat([piece.batch for piece in pieces]),
        late,
        min(piece.min_us for piece in pieces),
        max(piece.max_us for piece in pieces),
    )


def select(piece: EventChunk, asked: ResolvedRequest) -> tuple[EventBatch | None, int]:
    """Returns the wanted events of a piece in order of arrival, or None; and the number of late ones left out. Does not
    copy if the whole piece is wanted, or if a time range selects from events in time order."""
    low_us, end_us = asked.low_us, asked.end_us
    if (low_us is not None and piece.max_us < low_us) or (end_us is not None and piece.min_us >= end_us):
        return None, 0
    batch, marked = piece.batch, piece.late
    ts_us = batch.ts_us
    wanted: BoolArray | None = None
    if (low_us is not None and piece.min_us < low_us) or (end_us is not None and piece.max_us >= end_us):
        if bool((ts_us[1:] >= ts_us[:-1]).all()):
            start = 0 if low_us is None else int(np.searchsorted(ts_us, low_us))
            stop = len(ts_us) if end_us is None else int(np.searchsorted(ts_us, end_us))
            batch = batch.slice(start, stop)
            marked = None if marked is None else marked[start:stop]
        else:
            wanted = np.ones(len(ts_us), np.bool_)
            if low_us is not None:
                wanted &= ts_us >= low_us
            if end_us is not None:
                wanted &= ts_us < end_us
    for name, values in asked.keys.items():
        among = pc.is_in(batch.columns.column(name), value_set=values).to_numpy(zero_copy_only=False)
        wanted = among if wanted is None else wanted & among
    if asked.span is not None:
        inside = _inside(batch.columns, asked.span)
        wanted = inside if wanted is None else wanted & inside
    if asked.windows is not None:
        inside = _in_windows(batch, asked.windows)
        wanted = inside if wanted is None else wanted & inside
    if asked.where is not None and len(batch):
        met = meets(batch.columns, asked.where)
        wanted = met if wanted is None else wanted & met
    left_out = 0
    if marked is not None and not asked.late:
        left_out = int(np.count_nonzero(marked if wanted is None else marked & wanted))
        wanted = ~marked if wanted is None else wanted & ~marked
    if len(asked.columns) < batch.columns.num_columns:
        columns = batch.columns.select(list(asked.columns))
        batch = EventBatch(columns, batch.ts_us, batch.source, batch.offset, batch.seq, batch.sources)
    if wanted is not None and not wanted.all():
        batch = batch.take(np.flatnonzero(wanted))
    return (batch if len(batch) else None), left_out


def _inside(columns: pa.RecordBatch, span: KeyRange) -> BoolArray:
    """Returns for each row True if its value is in the range."""
    column = columns.column(span.column)
    found = column.is_valid()
    if span.low is not None:
        found = pc.and_(found, pc.greater_equal(column, pa.scalar(span.low, column.type)))
    if span.end is not None:
        found = pc.and_(found, pc.less(column, pa.scalar(span.end, column.type)))
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def _in_windows(batch: EventBatch, windows: Windows) -> BoolArray:
    """Returns for each row True if it lies in one of the windows."""
    from query.language.duck import quiet_connection

    cursor = quiet_connection()
    read = {name: batch.columns.column(name) for name in windows.columns}
    times = pa.array(batch.ts_us).view(pa.timestamp("us", "UTC"))
    rows = pa.table({**read, "__hybrid_time": times, "__hybrid_row": np.arange(len(batch))})
    cursor.register("rows", rows)
    cursor.register("windows", windows.table)
    on = windows.condition.format(time="__hybrid_time")
    found = cursor.sql(f"SELECT __hybrid_row FROM rows JOIN windows ON {on}").to_arrow_table()
    inside = np.zeros(len(batch), np.bool_)
    inside[found.column(0).to_numpy()] = True
    return inside


def meets(columns: pa.RecordBatch, condition: Expression) -> BoolArray:
    """Returns for each row True if it meets a condition on single rows, computed by DuckDB."""
    from query.language.duck import quiet_connection

    read = dict.fromkeys(e.name for e in walk(condition) if isinstance(e, Column)) or columns.schema.names[:1]
    cursor = quiet_connection()
    cursor.register("rows", pa.Table.from_batches([columns.select(list(read))]))
    found = cursor.sql(f"SELECT coalesce({to_sql(condition)}, false) AS {quote('met')} FROM rows").to_arrow_table()
    return np.asarray(found.column(0).combine_chunks().to_numpy(zero_copy_only=False), np.bool_)


def by_source(batch: EventBatch) -> Iterator[tuple[str, slice | Int64Array]]:
    """Yields (name, rows) for each source of the batch. Nearly free for a single source, the common case."""
    source = batch.source
    if len(source) and bool((source == source[0]).all()):
        yield batch.sources[source[0]], slice(None)
        return
    for index in np.unique(source):
        yield batch.sources[index], np.flatnonzero(source == index)


def fresh_rows(batch: EventBatch, offsets: Mapping[str, int]) -> Int64Array | None:
    """Returns the indexes of rows whose offset is not below the next expected one of their source; None if all."""
    fresh: np.ndarray | None = None
    for name, rows in by_source(batch):
        expected = offsets.get(name, 0)
        new = batch.offset[rows] >= expected
        if not new.all():
            fresh = np.ones(len(batch), np.bool_) if fresh is None else fresh
            fresh[rows] = new
    return None if fresh is None else np.flatnonzero(fresh)


def next_offsets(batch: EventBatch) -> dict[str, int]:
    """Returns source -> next expected offset after these rows."""
    return {name: int(batch.offset[rows].max()) + 1 for name, rows in by_source(batch)}
