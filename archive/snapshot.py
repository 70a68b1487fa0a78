"""Snapshot of the history of one stream: buffer and table as one, read by time, key and condition, or in batches."""

from __future__ import annotations

import threading
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from archive.place import Place
from archive.reader import WHOLE, RangeRequest, Values
from archive.recent import (
    SEALED_ROWS,
    BoolArray,
    EventChunk,
    KeyRange,
    ResolvedRequest,
    Windows,
    columns_schema,
    joined,
    meets,
    select,
)
from matching.batch import EventBatch
from matching.ordering import sort_events
from matching.types import arrow_schema
from query.errors import DataError, nearest
from query.plan.expression import Column, Expression, quote, walk
from query.schema import Schema

if TYPE_CHECKING:
    from archive.scan import RowGroups
    from archive.table_snapshot import TableSnapshot

#: Default limit of rows in a batch of HistorySnapshot.batches; and of the batches that DuckDB sorts for them.
BATCH_ROWS_MAX = 1 << 18
SORT_BATCH_ROWS = 1 << 17
#: Rows read in the time that a separate read costs.
GAP_ROWS = 1 << 15
#: Growth of the parts of a range that is read from its end (newest_first).
GROWTH = 16
#: Limit of events in a batch of `since`.
SINCE_ROWS = 1 << 20


class HistorySnapshot:
    """Immutable view of a history at one instant: the files up to a commit and the buffered events after it.

    Made by History.snapshot. Any number of threads may read it, also after the History is closed. late_left_out: number
    of late rows that its reads have skipped so far.
    """

    __slots__ = ("_counting", "_directory", "_groups", "_pieces", "_sources", "_table", "late_left_out", "schema")

    def __init__(
        self,
        schema: Schema,
        pieces: tuple[EventChunk, ...],
        sources: tuple[str, ...],
        directory: Place | None = None,
        table: TableSnapshot | None = None,
    ) -> None:
        self.schema = schema
        self._pieces = pieces
        self._sources = sources
        self._directory = directory
        self._table = table
        self._groups: dict[tuple[str, int | None, int | None], RowGroups] = {}
        self._counting = threading.Lock()
        self.late_left_out = 0

    def read(self, request: RangeRequest, where: Expression | None = None) -> EventBatch:
        """Returns the events of a range in the total order of the stream.

        The result has the requested columns, the time and the tie columns, in the declared order; no others are read.
        Its `sources` are all sources of the history, sorted by name, for any range. where: a condition on single
        events that raises for none of them.
        Skips pieces and files outside the range or the keys. DuckDB reads the files with all its threads; buffered
        pieces in time order are sliced without a search per row.
        Raises DataError if a column does not exist, if values do not fit its type, or if a file was removed.
        """
        return self._read(self._wanted(request, where))

    def read_times(self, ts_us: np.ndarray, request: RangeRequest = WHOLE) -> EventBatch:
        """Returns the events at these times, in the total order. Reads the ranges that contain them. request: of each
        range, apart from its bounds."""
        times = np.unique(np.asarray(ts_us, np.int64))
        found: list[EventBatch] = []
        gap_us = self.gap_us()
        if not gap_us and self._pieces:  # each read looks at every piece in memory
            low_us, last_us = min(p.min_us for p in self._pieces), max(p.max_us for p in self._pieces)
            gap_us = (last_us - low_us) * GAP_ROWS // sum(map(len, self._pieces))
        for group in merged(times, times, gap_us):
            low_us, last_us = int(times[group[0]]), int(times[group[-1]])
            for batch in self.batches(replace(request, low_us=low_us, high_us=last_us, closed=True)):
                at = np.minimum(np.searchsorted(times, batch.ts_us), len(times) - 1)
                found.append(batch.take(np.flatnonzero(times[at] == batch.ts_us)))
        return self._together(self._wanted(request), found)

    def key_cuts(self, column: str, parts: int, request: RangeRequest = WHOLE) -> list[Any]:
        """Returns ascending values that cut a column of strings or integers into at most `parts` ranges with about
        equally many events of the request. Reads that column."""
        from archive.scan import key_cuts

        name = self._column(column)
        wanted = self._wanted(replace(request, columns=[name]))
        recent = self._recent(wanted).columns.column(name)
        only = replace(wanted, columns=(name,))
        return key_cuts(self._directory, self._table, self.schema, only, recent, parts)

    def count_where(
        self, conditions: Sequence[Expression], request: RangeRequest = WHOLE, files_max: int | None = None
    ) -> tuple[int, list[int]]:
        """Returns the number of events in a range, and of those that meet each condition. conditions: on single events,
        raising for none. Reads only their columns. files_max: counts in at most so many files and in the buffer, for an
        estimate."""
        columns = {e.name for c in conditions for e in walk(c) if isinstance(e, Column)}
        wanted = self._wanted(replace(request, columns=columns))
        recent = self._recent(wanted)
        counts = np.array([len(recent), *(int(meets(recent.columns, c).sum()) for c in conditions)])
        if self._table is not None and self._directory is not None:
            from archive.scan import count

            index = self._table.select(wanted.low_us, wanted.end_us, {})
            if files_max is not None and len(index) > files_max:
                index = index[np.linspace(0, len(index) - 1, files_max).astype(np.int64)]
            if len(index):
                counts += count(self._directory, self._table, index, self.schema, wanted, list(conditions))
        return int(counts[0]), counts[1:].tolist()

    def count_in(self, windows: Windows, request: RangeRequest = WHOLE) -> int:
        """Returns the number of events of a range inside the windows. Reads the columns of the windows and the time."""
        wanted = replace(self._wanted(replace(request, columns=windows.columns)), windows=windows)
        found = len(self._recent(wanted))
        if self._table is not None and self._directory is not None:
            from archive.scan import count

            index = self._table.select(wanted.low_us, wanted.end_us, {})
            if len(index):
                found += count(self._directory, self._table, index, self.schema, wanted, [])[0]
        return found

    def distinct(self, column: str) -> int:
        """Returns the approximate number of distinct values of a column. Reads that column."""
        from archive.scan import distinct

        name = self._column(column)
        wanted = replace(self._wanted(RangeRequest(late=True, columns=[name])), columns=(name,))
        recent = self.recent(late=True).columns.column(name)
        return distinct(self._directory, self._table, self.schema, wanted, recent)

    def extent(self) -> tuple[tuple[int, int] | None, int, int]:
        """Returns ((first, last) time or None without events, number of files, their bytes)."""
        bounds = [(piece.min_us, piece.max_us) for piece in self._pieces]
        files = size = 0
        if self._table is not None:
            archived = self._table.span_us()
            bounds += [archived] if archived is not None else []
            files, size = len(self._table.paths), int(self._table.sizes.sum())
        if not bounds:
            return None, files, size
        return (min(low for low, _ in bounds), max(high for _, high in bounds)), files, size

    def time_before_last(self, events: int) -> int | None:
        """Returns a time from which on there are about so many events, by file statistics; None: all events."""
        recent = self.recent(late=True)
        if len(recent) > events:
            return int(recent.ts_us[-events])
        wanted = self._wanted(RangeRequest(late=True))
        stretches = [(low, rows) for low, _, rows in self._stretches(wanted, 0)]
        left = events - len(recent)
        for low, rows in reversed(stretches):
            if left < rows:
                if low is None or self._table is None:
                    return None
                newest = int(self._table.max_us[self._table.min_us >= low].max())
                return newest - (newest - low) * max(left, 0) // rows
            left -= rows
        return None

    def touched_rows(
        self, spans: Sequence[KeyRange], low_us: int | None = None, high_us: int | None = None
    ) -> int:
        """Returns the number of archived rows scanned by reading each of these ranges of one column."""
        wanted = self._wanted(RangeRequest(low_us, high_us, late=True))
        if self._table is None or not spans:
            return 0
        index = self._table.select(wanted.low_us, wanted.end_us, {})
        if not len(index):
            return 0
        groups = self._row_groups(replace(wanted, span=spans[0]))
        return sum(int(groups.rows[groups.touched(span)].sum()) for span in spans)

    def stretch_rows(self, low_us: int | None = None, high_us: int | None = None) -> tuple[int, int]:
        """Returns upper bounds: of the events in a range, and of those in files of it that overlap in time."""
        wanted = self._wanted(RangeRequest(low_us, high_us, late=True))
        stretches = [rows for _, _, rows in self._stretches(wanted, 0)]
        return sum(stretches) + len(self._recent(wanted)), max(stretches, default=0)

    def looked_at(self, low_us: int, last_us: int, keys: int) -> int:
        """Estimates the archived events scanned by a read of so many keys in [low_us, last_us]: one row group per file
        and key, as in files sorted by key."""
        if self._table is None:
            return 0
        from archive.layout import ROW_GROUP_ROWS  # loads pyarrow.parquet, which is not needed without files

        rows = self._table.rows[self._table.select(low_us, last_us + 1, {})]
        return int(np.minimum(rows, keys * ROW_GROUP_ROWS).sum())

    def about_rows(self, low_us: int, last_us: int) -> int:
        """Estimates the number of events in [low_us, last_us], with late ones: assumes that the events of each file
        and buffered piece are spread evenly over its time range."""
        spans = [(piece.min_us, piece.max_us, len(piece)) for piece in self._pieces]
        starts, ends, rows = (np.array([span[k] for span in spans], np.float64) for k in range(3))
        if self._table is not None:
            starts = np.concatenate([starts, self._table.min_us])
            ends, rows = np.concatenate([ends, self._table.max_us]), np.concatenate([rows, self._table.rows])
        inside = np.minimum(ends, last_us) - np.maximum(starts, low_us) + 1
        return int(np.sum(rows * np.clip(inside / (ends - starts + 1), 0, 1)))

    def newest_first(self, low_us: int, last_us: int, events: int) -> Iterator[tuple[int, int]]:
        """Cuts [low_us, last_us] between files; yields the parts, newest first. The first has at least `events` events,
        each following one GROWTH times as many, as far as there are cuts."""
        found, wanted = 0, self._wanted(RangeRequest(low_us, last_us, closed=True, late=True))
        for begin_us, _, rows in reversed(self._stretches(wanted, 0)):
            found += rows
            if begin_us is not None and found >= events and low_us < begin_us <= last_us:
                yield begin_us, last_us
                last_us, found, events = begin_us - 1, 0, events * GROWTH
        yield low_us, last_us

    @property
    def rows_max(self) -> int:
        """Upper bound of the number of events, with late ones."""
        archived = 0 if self._table is None else int(self._table.rows.sum())
        return archived + sum(map(len, self._pieces))

    def recent(self, late: bool = False) -> EventBatch:
        """Returns the buffered events in the total order. late: includes late ones."""
        return self._recent(self._wanted(RangeRequest(late=late)))

    def since(self, seq: int) -> Generator[tuple[EventBatch, BoolArray]]:
        """Yields (events, late) with ingest sequences from `seq` on, in order of arrival. late: bool (n,). Leaves out
        rows that were archived from files. No batch of files has more than SINCE_ROWS events; none is empty. Raises
        DataError if a file cannot be read."""
        if self._table is not None and self._directory is not None:
            from archive.layout import SEQ
            from archive.scan import scan_since

            index = self._table.select(None, None, {}, KeyRange(SEQ, seq, None))
            if len(index):
                top = self._table.boundary_sequence + 1
                for low in range(max(seq, 0), top, SINCE_ROWS):
                    end = min(top, low + SINCE_ROWS)
                    found = scan_since(self._directory, self._table, self.schema, index, low, end, self._sources)
                    if len(found[0]):
                        yield found
        for piece in self._pieces:
            at = np.flatnonzero(piece.batch.seq >= max(seq, 0))
            if len(at):
                late = np.zeros(len(piece), np.bool_) if piece.late is None else piece.late
                whole = len(at) == len(piece)
                yield (piece.batch, late) if whole else (piece.batch.take(at), late[at])

    def select_sql(self, memory: str, late: bool = False) -> str | None:
        """Returns DuckDB SQL of all events with their declared columns, in undefined order, for a connection in UTC;
        DuckDB pushes filters and projections down into the files. memory: the SQL name of the buffered events
        (`recent`). None if there are no files, or if they are in an object store."""
        if self._table is None or self._directory is None or not self._directory.on_disk or not self._table.paths:
            return None
        from archive.scan import select_sql

        columns = ", ".join(map(quote, self.schema.names))
        archived = select_sql(self._directory, self._table, self.schema, late)
        return f"{archived} UNION ALL SELECT {columns} FROM {memory}"

    def paths(self) -> list[str]:
        """Returns the URIs of the files that `select_sql` reads."""
        if self._table is None or self._directory is None or not self._directory.on_disk:
            return []
        return list(self._table.uris(self._directory, np.arange(len(self._table.paths))))

    def gap_us(self) -> int:
        """Returns the gap up to which two ranges are read faster together than apart: the time of about GAP_ROWS
        events."""
        if self._table is None or not len(self._table.paths):
            return 0
        rows = int(self._table.rows.sum())
        low_us, high_us = int(self._table.min_us.min()), int(self._table.max_us.max())
        return (high_us - low_us) * GAP_ROWS // max(rows, 1)

    def batches(
        self, request: RangeRequest = WHOLE, *, where: Expression | None = None, span: KeyRange | None = None,
        windows: Windows | None = None, rows_max: int | None = None, sorted_max: int | None = None,
    ) -> Generator[EventBatch]:  # fmt: skip
        """Yields the result of `read` in non-empty batches, in the total order: for more events than fit into memory.
        All events of one instant are in one batch. A batch has at most rows_max rows (None: BATCH_ROWS_MAX), unless a
        single instant has more. span: the range of values of one column. windows: events must lie in one of them.

        Files that overlap in time with at most max(rows_max, sorted_max) rows are read and sorted at once, in half the
        time, with memory for twice these rows. DuckDB sorts larger ones within archive.scan.SORT_MEMORY, spilling to
        the directory for temporary files. Otherwise memory holds a few batches. Closing or dropping the iterator frees
        all of it."""
        wanted = replace(
            self._wanted(request, where),
            span=None if span is None else replace(span, column=self._column(span.column)),
            windows=windows,
        )
        rows_max = rows_max or BATCH_ROWS_MAX
        return self._batches(wanted, rows_max, max(rows_max, sorted_max or 0))

    def _batches(self, wanted: ResolvedRequest, rows_max: int, sorted_max: int) -> Generator[EventBatch]:
        recent = self._recent(wanted)
        at = 0  # rows of `recent` already yielded
        for low_us, end_us, rows in self._stretches(wanted, rows_max):
            part = wanted.between(low_us, end_us)
            if rows <= sorted_max:
                events = self._archived(part)
                stop = len(recent) if end_us is None else int(np.searchsorted(recent.ts_us, end_us))
                yield from _cut(self._together(wanted, [events, recent.slice(at, stop)]), rows_max)
                at = stop
                continue
            held: list[EventBatch] = []  # of one instant, which may continue in the next batch
            for batch in self._sorted(part, min(rows_max, SORT_BATCH_ROWS)):
                last_us = int(batch.ts_us[-1])
                if held and int(held[0].ts_us[0]) == last_us:
                    held.append(batch)
                    continue
                stop = max(at, int(np.searchsorted(recent.ts_us, last_us)))
                cut = int(np.searchsorted(batch.ts_us, last_us))
                yield from _cut(self._together(wanted, [*held, batch.slice(0, cut), recent.slice(at, stop)]), rows_max)
                held, at = [batch.slice(cut, len(batch))], stop
            stop = len(recent) if end_us is None else max(at, int(np.searchsorted(recent.ts_us, end_us)))
            yield from _cut(self._together(wanted, [*held, recent.slice(at, stop)]), rows_max)
            at = stop
        yield from _cut(recent.slice(at, len(recent)), rows_max)

    def _stretches(self, wanted: ResolvedRequest, rows_max: int) -> list[tuple[int | None, int | None, int]]:
        """Cuts the range between files; returns (low, end, upper bound of rows) per stretch. Files that overlap in time
        are in one stretch; small stretches are merged up to rows_max."""
        table = self._table
        if table is None:
            return []
        index = table.select(wanted.low_us, wanted.end_us, wanted.keys, wanted.span)
        min_us, max_us, rows = table.min_us[index], table.max_us[index], table.rows[index]
        if wanted.span is not None and int(rows.sum()) > rows_max:
            groups = self._row_groups(wanted)
            touched = np.flatnonzero(groups.touched(wanted.span))
            touched = touched[np.argsort(groups.min_us[touched], kind="stable")]
            min_us, max_us, rows = groups.min_us[touched], groups.max_us[touched], groups.rows[touched]
        if not len(rows):
            return []
        reach = np.maximum.accumulate(max_us)
        begins = np.concatenate([[0], np.flatnonzero(min_us[1:] > reach[:-1]) + 1])
        if wanted.filtered and wanted.span is None:
            begins = begins[:1]  # the number of rows that pass the filter is unknown
        sizes = np.add.reduceat(rows, begins)
        cuts, room = [0], rows_max
        for group, size in enumerate(sizes):
            if group and size > room:
                cuts.append(group)
                room = rows_max
            room -= int(size)
        edges = [wanted.low_us, *(int(min_us[begins[cut]]) for cut in cuts[1:]), wanted.end_us]
        return [(low, end, int(n)) for low, end, n in zip(edges[:-1], edges[1:], np.add.reduceat(sizes, cuts))]

    def _row_groups(self, wanted: ResolvedRequest) -> RowGroups:
        assert self._table is not None
        assert self._directory is not None
        assert wanted.span is not None
        from archive.scan import row_groups

        # Cached: all parts of one search request the same column and range.
        asked = (wanted.span.column, wanted.low_us, wanted.end_us)
        known = self._groups.get(asked)
        if known is None:
            index = self._table.select(wanted.low_us, wanted.end_us, {})
            known = row_groups(self._directory, self._table, index, self.schema, wanted.span.column)
            self._groups[asked] = known
        return known

    def _read(self, wanted: ResolvedRequest) -> EventBatch:
        return self._together(wanted, [self._archived(wanted), self._recent(wanted)])

    def _archived(self, wanted: ResolvedRequest) -> EventBatch | None:
        """Returns the wanted events in files, in undefined order."""
        if self._table is None or self._directory is None:
            return None
        from archive.scan import scan

        part, left_out = scan(self._directory, self._table, self.schema, wanted, self._sources)
        self._leave_out(left_out)
        return part

    def _sorted(self, wanted: ResolvedRequest, rows: int) -> Iterator[EventBatch]:
        """Yields the wanted events in files, in the total order."""
        assert self._table is not None
        assert self._directory is not None
        from archive.scan import scan_in_order

        for part, left_out in scan_in_order(self._directory, self._table, self.schema, wanted, self._sources, rows):
            self._leave_out(left_out)
            if part is not None:
                yield part

    def _recent(self, wanted: ResolvedRequest) -> EventBatch:
        """Returns the wanted events in memory, in the total order."""
        parts = []
        pieces = self._pieces
        if wanted.filtered:  # filtering many small pieces costs more than joining them
            small = [piece for piece in pieces if len(piece) < SEALED_ROWS]
            large = [piece for piece in pieces if len(piece) >= SEALED_ROWS]
            pieces = (*large, joined(small)) if len(small) > 1 else pieces
        for piece in pieces:
            part, left_out = select(piece, wanted)
            self._leave_out(left_out)
            if part is not None:
                parts.append(part)
        return self._together(wanted, parts)

    def _together(self, wanted: ResolvedRequest, parts: Sequence[EventBatch | None]) -> EventBatch:
        """Joins parts of the wanted events, in the total order."""
        some = [part for part in parts if part is not None and len(part)]
        if not some:
            return _nothing(self.schema, self._sources, wanted.columns)
        return sort_events(EventBatch.concat(some, self._sources), self.schema)

    def _leave_out(self, count: int) -> None:
        if count:
            with self._counting:
                self.late_left_out += count

    def _wanted(self, request: RangeRequest, where: Expression | None = None) -> ResolvedRequest:
        keys = {self._column(name): self._values(name, values) for name, values in (request.keys or {}).items()}
        low_us = None if request.low_us is None else int(request.low_us)
        return ResolvedRequest(low_us, request.end_us, keys, request.late, self._columns(request.columns), where)

    def _columns(self, columns: Collection[str] | None) -> tuple[str, ...]:
        """Returns column names in declared order, with the time and the tie columns."""
        if columns is None:
            return self.schema.names
        always = [name for name in (self.schema.time, *self.schema.order) if name is not None]
        read = {self._column(name) for name in (*columns, *always)}
        return tuple(name for name in self.schema.names if name in read)

    def files(self) -> tuple[Place, TableSnapshot] | None:
        """Returns the directory and the table snapshot if all events are in files; None with buffered events or
        without a directory."""
        if self._table is None or self._directory is None or self._pieces:
            return None
        return self._directory, self._table

    def _column(self, name: str) -> str:
        field = self.schema.field(name)
        if field is None:
            raise DataError(f"stream {self.schema.name} has no column {name}", nearest(name, self.schema.names))
        return field.name

    def _values(self, name: str, values: Values) -> pa.Array:
        type = arrow_schema(self.schema).field(self._column(name)).type
        try:
            array = values if isinstance(values, pa.Array) else pa.array(values)
            if pa.types.is_dictionary(array.type):
                array = array.dictionary_decode()
            return array.cast(type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(
                f"column {name} of {self.schema.name} cannot be compared with these values: {error}",
                f"give values of type {type}",
            ) from error


def _nothing(schema: Schema, sources: tuple[str, ...], columns: tuple[str, ...]) -> EventBatch:
    zeros = np.zeros(0, np.int64)
    empty = pa.RecordBatch.from_pylist([], schema=columns_schema(schema, columns))
    return EventBatch(empty, zeros, zeros.astype(np.int32), zeros, zeros, sources)


def merged(low_us: np.ndarray, last_us: np.ndarray, gap_us: int = 0) -> Iterator[np.ndarray]:
    """Groups n ranges [low, last] that overlap, touch, or lie at most gap_us apart; yields the ascending indexes of
    each group. Empty ranges (low > last) are in no group."""
    rows = np.flatnonzero(low_us <= last_us)
    if not len(rows):
        return
    rows = rows[np.argsort(low_us[rows], kind="stable")]
    reach = np.maximum.accumulate(last_us[rows])
    cuts = np.flatnonzero(low_us[rows][1:] - reach[:-1] - 1 > gap_us) + 1
    for group in np.split(rows, cuts):
        yield np.sort(group)


def _cut(batch: EventBatch, rows_max: int) -> Iterator[EventBatch]:
    """Yields non-empty slices of at most rows_max rows that do not split an instant."""
    start = 0
    while start < len(batch):
        stop = start + rows_max
        if stop >= len(batch):
            stop = len(batch)
        else:
            cut = int(np.searchsorted(batch.ts_us, batch.ts_us[stop]))
            stop = cut if cut > start else int(np.searchsorted(batch.ts_us, batch.ts_us[stop], "right"))
        yield batch.slice(start, stop)
        start = stop
