"""History of one stream: the buffer in memory and the table as one; append, flush, consistent snapshots."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from archive.interrupts import Abandoned, go_on
from archive.place import Place, place_of
from archive.recent import BoolArray, EventChunk, RBuffer, fresh_rows, joined, next_offsets, piece_of
from archive.snapshot import HistorySnapshot
from matching.batch import EventBatch, Int64Array
from matching.types import arrow_schema
from query.errors import DataError, NotKept, warn
from query.schema import Schema

if TYPE_CHECKING:
    from archive.log import Contents, Log, Policy
    from archive.table import Table
    from archive.table_snapshot import TableSnapshot

#: Default limit of buffered rows; the append that reaches it flushes.
MEMORY_ROWS_MAX = 100_000
#: Default limit of buffered bytes.
MEMORY_BYTES_MAX = 256 << 20
#: Seconds after which the keeper flushes buffered events.
AGE_MAX_S = 5.0
#: Directory of the write-ahead log, in the directory of the table.
LOG = "_log"
#: Name of the keeper's thread (archive.keeper).
KEEPER = "hybrid-keeper"


class History:
    """The archived events of one stream. Thread safe: append, flush, snapshot and read from any thread.

    schema: the declared stream. directory: the directory of its table, one per stream; None keeps all events in memory.
    memory_rows_max, memory_bytes_max: the append that reaches one of them flushes; the keeper of the database
    (archive.keeper) flushes events older than AGE_MAX_S. log: the policy of the write-ahead log, which has the events
    on disk before append returns (archive.log); None: events are in memory only until the flush. epoch: the writer's
    (archive.writer), or None. read_only: writes nothing; `refresh` reads events that another process has appended.
    logged_watermark_us: the last watermark in the log, or None.

    A directory that exists is continued after its last commit and its log. Raises DataError if the directory holds
    another stream, a different declaration, a newer format or a broken log, or if a column cannot be archived. Warns
    with HybridWarning if the end of the log is unreadable.
    """

    __slots__ = (
        "_archived_seq", "_bytes", "_first_appended_us", "_first_archived_us", "_flushing", "_lock", "_log",
        "_log_lost", "_offsets", "_oldest_s", "_read_only", "_recent", "_sealed", "_sources", "_table",
        "_table_snapshot", "_written_since_s", "beside", "directory", "expire_us", "failure", "last_seq",
        "logged_watermark_us", "memory_bytes_max", "memory_rows_max", "revision", "schema",
        "skipped",
    )  # fmt: skip

    def __init__(
        self, schema: Schema, directory: str | PathLike[str] | Place | None, memory_rows_max: int | None = None,
        memory_bytes_max: int = MEMORY_BYTES_MAX, log: Policy | None = None, epoch: int | None = None,
        read_only: bool = False,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.directory = None if directory is None else place_of(directory)
        self.memory_rows_max = MEMORY_ROWS_MAX if memory_rows_max is None else memory_rows_max
        self.memory_bytes_max = memory_bytes_max
        #: Greatest ingest sequence so far, -1 before the first event.
        self.last_seq = -1
        # _lock guards the fields below and is held briefly; _flushing is held while a flush writes.
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._recent = RBuffer()
        self._sealed: tuple[EventChunk, ...] = ()
        # Buffered bytes, and the arrival of the oldest buffered event (time.monotonic).
        self._bytes = 0
        self._oldest_s: float | None = None
        self._offsets: dict[str, int] = {}
        self._sources: tuple[str, ...] = ()
        self._archived_seq = -1  # all events up to this sequence are in files; later ones may be
        self._log: Log | None = None
        self._log_lost = False
        self.logged_watermark_us: int | None = None
        #: Source -> skipped offset, for sources whose last log entry is a skip (archive.log).
        self.skipped: dict[str, int] = {}
        #: Counts changes of the archived events or their columns other than appends.
        self.revision = 0
        # Time of the first on-time event in files ("unknown" until asked for), and of those appended since opening.
        self._first_archived_us: int | Literal["unknown"] | None = None
        self._first_appended_us: int | None = None
        self._table: Table | None = None
        self._table_snapshot: TableSnapshot | None = None
        self._read_only = read_only
        #: If set, an append that reaches the limit calls it instead of flushing: another thread flushes.
        self.beside: Callable[[], None] | None = None
        #: If set, the thread that flushes drops events before this time (drop_due).
        self.expire_us: int | None = None
        #: Error of the last flush, None if it succeeded; and the start of a running flush (time.time).
        self.failure: str | None = None
        self._written_since_s: float | None = None
        if self.directory is not None:
            # Imported here: a history in memory starts without deltalake.
            from archive.table import Table

            self._first_archived_us = "unknown"
            if log is not None and not self.directory.on_disk:
                raise DataError(f"a log cannot be kept in {self.directory}", "open a database on disk, or without log")
            if read_only:
                self.refresh()
                return
            self._table = Table.create(self.directory, schema)
            self._table.epoch = epoch
            opened = self._table_snapshot = self._table.snapshot()
            self._offsets.update(opened.offsets)
            self._sources = tuple(sorted(opened.sources))
            self.last_seq = opened.boundary_sequence
            if self.directory.on_disk:
                self._read_log(Path(self.directory) / LOG, log)

    def _read_log(self, directory: Path, policy: Policy | None) -> None:
        """Restores the buffer from the log: events that a previous process had logged but not yet flushed."""
        from archive.log import Log, read, segments

        found = read(directory, self.schema, self.last_seq + 1, self._offsets)
        found.check()
        found.set_aside()
        self._take_in(found)
        if policy is not None:
            self._log = Log(
                directory, self.schema, policy, found.segment, found.next_frame, found.watermark_us, self._next_seq(),
                found.skipped,
            )
        else:
            self.flush()
        if not self._recent.row_count:  # all logged events are in files
            for path in segments(directory):
                if self._log is None or not self._log.writes(path):
                    path.unlink()

    def _next_seq(self) -> int | None:
        """The next ingest sequence, which a new segment of the log records; None with a retention, because expired
        events may leave memory without coming into a file."""
        return self.last_seq + 1 if self.schema.retention_us is None else None

    def _take_in(self, found: Contents) -> None:
        """Appends the entries of a log to the buffer."""
        from archive.log import LoggedRows

        for message in found.dropped:
            warn(message)
        self.logged_watermark_us, self.skipped = found.watermark_us, found.skipped
        for entry in found.entries:
            if isinstance(entry, LoggedRows):
                self._keep(entry.batch, entry.late)

    @property
    def offsets(self) -> dict[str, int]:
        """Source -> next expected offset: one above the last that was appended."""
        with self._lock:
            return dict(self._offsets)

    @property
    def table_snapshot(self) -> TableSnapshot | None:
        """The current snapshot of the table, or None without a table."""
        with self._lock:
            return self._table_snapshot

    @property
    def first_us(self) -> int | None:
        """Time of the first archived event that is not late, or None. The first call after opening reads a file."""
        with self._lock:
            archived, table = self._first_archived_us, self._table_snapshot
        if archived == "unknown":
            from archive.scan import first_time_us

            assert self.directory is not None
            assert table is not None
            archived = first_time_us(self.directory, table, self.schema)  # without the lock: a store may be slow
            with self._lock:
                if self._table_snapshot is table:
                    self._first_archived_us = archived
        with self._lock:
            return min((t for t in (archived, self._first_appended_us) if t is not None), default=None)

    def append(self, batch: EventBatch, late: BoolArray) -> None:
        """Appends events in order of arrival. late: bool (n,). Drops redelivered events: those whose offset is below
        the next expected one of their source.

        Holds the arrays by reference: do not write to them again. Costs a few passes over int64 columns, a write to
        disk with a log, and a flush every memory_rows_max rows. Raises DataError and appends nothing if the columns
        differ from the declared ones or the log cannot be written. If the flush fails, it raises, too, but all events
        stay in memory and the next append or flush tries again; a Ctrl-C leaves the flush to these without an error.
        """
        if len(batch) != len(late):
            raise ValueError(f"{len(batch)} events, but {len(late)} marks")
        declared = arrow_schema(self.schema)
        if not batch.columns.schema.equals(declared):
            raise DataError(
                f"the columns differ from those of {self.schema.name}: {', '.join(map(str, batch.columns.schema))}",
                f"declared: {', '.join(map(str, declared))}",
            )
        with self._lock:  # a flush in another thread begins a new segment, and closes the file of this one
            lost = self._log is not None and (self._log_lost or self._log.is_gone())
        if lost:
            self._log_again()
        if self._keep(batch, late) and self._table is not None:
            if self.beside is None:
                with suppress(Abandoned):
                    self.flush(go_on=go_on)
            else:
                self.beside()

    def _log_again(self) -> None:
        """Flushes the buffer and begins a new log after the log was removed: its events are still in memory."""
        assert self._log is not None
        gone = f"the log of {self.schema.name} in {self.directory} was removed while it was written"
        with self._lock:
            self._log_lost = True  # until the buffer is flushed
            self._log.close()
            held = self._recent.row_count + sum(map(len, self._sealed))
        try:
            self.flush()
        except DataError as error:
            raise NotKept(f"{gone}, and the {held:,} events in memory cannot be archived: {error}") from error
        self._log_lost = False
        message = f"{gone}; the {held:,} events in memory were archived and a new log was begun"
        warn(message)

    def reach(self, watermark_us: int) -> None:
        """Logs a watermark that was raised without events, if there is a log. Raises DataError."""
        with self._lock:
            if self._log is not None:
                self._log.reach(watermark_us)

    def skip(self, source: str, offset: int) -> None:
        """Logs that a source had no events up to an offset, if there is a log. Raises DataError."""
        with self._lock:
            if self._log is not None:
                self._log.skip(source, offset)

    def _keep(self, batch: EventBatch, late: BoolArray) -> bool:
        """Logs and buffers events; returns True if the buffer has reached its limit."""
        with self._lock:
            fresh = fresh_rows(batch, self._offsets)
            if fresh is not None:
                batch, late = batch.take(fresh), late[fresh]
            if len(batch) == 0:
                return False
            # Steps that may fail come first. Log and buffer change together: an event is in both or in neither.
            piece = piece_of(batch, late)
            nbytes = _nbytes([piece])
            oldest_s = time.monotonic() if self._oldest_s is None else self._oldest_s
            reached = next_offsets(batch)
            sources = self._sources
            if any(name not in sources for name in reached):  # rows of input files have the source FILES
                sources = tuple(sorted({*sources, *reached}))
            offsets = {**self._offsets, **reached}
            last_seq = max(self.last_seq, int(batch.seq.max()))
            first, before = piece.first_on_time_us(), self._first_appended_us
            if first is None or (before is not None and before <= first):
                first = before
            was = (self._bytes, self._oldest_s, self._offsets, self._sources, self.last_seq, self._first_appended_us)
            mark = None if self._log is None else self._log.mark()
            try:
                if self._log is not None:
                    self._log.append(batch, late)
                (
                    self._bytes, self._oldest_s, self._offsets, self._sources, self.last_seq, self._first_appended_us
                ) = (self._bytes + nbytes, oldest_s, offsets, sources, last_seq, first)  # fmt: skip
                self._recent.append(piece)
            except BaseException:
                (
                    self._bytes, self._oldest_s, self._offsets, self._sources, self.last_seq, self._first_appended_us
                ) = was  # fmt: skip
                if self._log is not None and mark is not None:
                    self._log.rewind(mark)
                raise
            return self._is_full()

    def _is_full(self) -> bool:
        held = self._recent.row_count + sum(map(len, self._sealed))
        return held >= self.memory_rows_max or self._bytes >= self.memory_bytes_max

    @property
    def held(self) -> tuple[int, int]:
        """Buffered rows and bytes."""
        with self._lock:
            return self._recent.row_count + sum(map(len, self._sealed)), self._bytes

    @property
    def written_since_s(self) -> float | None:
        """Start of the running flush (time.time), or None."""
        return self._written_since_s

    def flush(self, up_to: int | None = None, go_on: Callable[[], None] = lambda: None) -> None:
        """Writes all buffered events to the table in one commit; returns when they are on disk. Does not block
        snapshots. up_to: does nothing if events up to this ingest sequence are in files once a flush under way has
        ended. go_on: may end it, see `write_files`. Raises DataError if the flush fails; the events stay in memory and
        part of the history."""
        if self._table is None or self._read_only:
            return
        with self._flushing:
            if up_to is not None and up_to <= self._archived_seq:
                return
            with self._lock:
                sealed_seq = self.last_seq
                sealed, held, since_s = self._sealed + self._recent.pieces(), self._bytes, self._oldest_s
                self._sealed, self._recent, self._oldest_s = sealed, RBuffer(), None
                if not sealed:
                    return
                # New events go into another segment; the older ones are deleted once the sealed events are in files.
                logged = self._log.rotate(self._next_seq()) if self._log is not None else []
            self._written_since_s = time.time()
            try:
                rows = joined(sealed)
                late = np.zeros(len(rows), np.bool_) if rows.late is None else rows.late
                written = self._table.append(rows.batch, late, go_on)
            except BaseException as error:
                with self._lock:
                    self._oldest_s = since_s
                if not isinstance(error, Abandoned):
                    self.failure = str(error)
                raise
            finally:
                self._written_since_s = None
            self.failure = None
            with self._lock:
                # One step: no snapshot sees the rows twice or not at all.
                sources = tuple(sorted({*self._sources, *written.sources}))
                self._archived_seq = sealed_seq
                self._table_snapshot, self._sealed, self._bytes, self._sources = (
                    written, (), self._bytes - held, sources
                )  # fmt: skip
            for path in logged:
                path.unlink(missing_ok=True)

    def flush_older(self, age_s: float) -> bool:
        """Flushes if the oldest buffered event arrived at least age_s ago or the buffer is full; returns True if it
        flushed. Raises as flush does."""
        with self._lock:
            since_s, full = self._oldest_s, self._is_full()
        if self._table is None or (not full and (since_s is None or time.monotonic() - since_s < age_s)):
            return False
        self.flush()
        return True

    def drop_due(self) -> None:
        """Drops events before `expire_us`, if set, and looks up the first remaining event: both may read an object
        store. Raises as drop_before does."""
        expire_us = self.expire_us
        if expire_us is None:
            return
        self.drop_before(expire_us)
        if self.expire_us == expire_us:
            self.expire_us = None
        _ = self.first_us

    def refresh(self) -> None:
        """Reads the newest version of the table, with commits of other processes. Older snapshots stay valid."""
        if self._read_only:
            self._read_anew()
            return
        if self._table is None:
            return
        with self._flushing:
            newest = self._table.snapshot()
            with self._lock:
                before, sealed = self._table_snapshot, self._not_in(newest)
                nbytes = self._bytes - _nbytes(self._sealed) + _nbytes(sealed)
                self._table_snapshot, self._sealed, self._bytes = newest, sealed, nbytes
                if before is None or int(before.rows.sum()) != int(newest.rows.sum()):
                    self.revision += 1
                self._sources = tuple(sorted({*self._sources, *newest.sources}))
                if before is None or before.span_us() != newest.span_us():
                    self._first_archived_us = "unknown"

    def _read_anew(self) -> None:
        """Reads the events of another process: its log first, then its table. Events that leave the log in between are
        in the table by then, so each event is seen exactly once."""
        from archive.log import read, read_beside
        from archive.table import Table, is_table

        assert self.directory is not None
        logged = read_beside(Path(self.directory) / LOG) if self.directory.on_disk else []
        with self._flushing:
            if self._table is None and is_table(self.directory):
                self._table = Table.open(self.directory)
            newest = None if self._table is None else self._table.snapshot()
            offsets = {} if newest is None else dict(newest.offsets)
            boundary = -1 if newest is None else newest.boundary_sequence
            found = read(logged, self.schema, boundary + 1, offsets)
            found.check()
            with self._lock:
                self.revision += 1
                self._table_snapshot = newest
                self._recent, self._sealed, self._bytes, self._oldest_s = RBuffer(), (), 0, None
                self._offsets, self.last_seq = offsets, boundary
                self._sources = () if newest is None else tuple(sorted(newest.sources))
                self._first_archived_us = None if newest is None else "unknown"
                self._first_appended_us = None
            self._take_in(found)

    def declare(self, schema: Schema) -> None:
        """Changes the lateness or retention; nothing else may differ. Raises DataError and changes nothing if the
        table cannot be changed."""
        with self._flushing:
            if self._table is not None:
                self._table.declare(schema)
            with self._lock:
                self.schema = schema

    def add_columns(self, schema: Schema) -> None:
        """Adds columns after the others (Schema.widens); earlier events have nulls there. Snapshots keep their
        columns. Raises DataError and changes nothing if the table cannot be changed."""
        with self._flushing:
            if self._table is not None:
                self._table.add_columns(schema)
            with self._lock:
                recent = RBuffer()
                table = None if self._table is None else self._table.snapshot()
                for piece in self._not_in(table) + self._recent.pieces():
                    recent.append(_widened(piece, schema))
                if self._log is not None:
                    self._log.rotate(self._next_seq(), schema)
                self.revision, self.schema, self._sealed, self._recent, self._table_snapshot, self._bytes = (
                    self.revision + 1, schema, (), recent, table, _nbytes(recent.pieces())
                )  # fmt: skip

    def mark_late(self, from_seq: int, late: Int64Array) -> None:
        """Replaces the late marks of events from an ingest sequence on. late: int64, ascending, the sequences of the
        late events. Removes the watermark from the log. Raises DataError; repeating the call completes it."""
        self.flush()
        with self._flushing:
            marked = None
            if self._table is not None:
                from archive.upkeep import mark_late

                marked = mark_late(self._table, from_seq, late)
            with self._lock:
                recent = RBuffer()
                for piece in self._not_in(marked) + self._recent.pieces():
                    now = np.zeros(len(piece), np.bool_) if piece.late is None else piece.late
                    now = np.where(piece.batch.seq >= from_seq, np.isin(piece.batch.seq, late), now)
                    recent.append(piece_of(piece.batch, now))
                on_time = (piece.first_on_time_us() for piece in recent.pieces())
                self._first_appended_us = min((t for t in on_time if t is not None), default=None)
                self._first_archived_us = None if marked is None else "unknown"
                self.revision, self._table_snapshot, self._sealed, self._recent, self._bytes = (
                    self.revision + 1, marked, (), recent, _nbytes(recent.pieces())
                )  # fmt: skip
                logged = [] if self._log is None else self._log.forget_watermark(self._next_seq())
            self.logged_watermark_us = None
            for path in logged:
                path.unlink(missing_ok=True)

    def drop_before(self, time_us: int) -> None:
        """Drops files and buffered pieces in which every event is older than time_us. Older snapshots keep them."""
        with self._flushing:
            table = self._table.drop_before(time_us) if self._table is not None else None
            with self._lock:
                kept = [piece for piece in self._not_in(table) + self._recent.pieces() if piece.max_us >= time_us]
                recent = RBuffer()
                for piece in kept:
                    recent.append(piece)
                nbytes = _nbytes(kept)
                on_time = (piece.first_on_time_us() for piece in kept)
                first = min((t for t in on_time if t is not None), default=None)
                archived: Literal["unknown"] | None = None if table is None else "unknown"
                self.revision, self._table_snapshot, self._sealed, self._recent, self._bytes = (
                    self.revision + 1, table, (), recent, nbytes
                )  # fmt: skip
                self._first_archived_us, self._first_appended_us = archived, first

    def _not_in(self, table: TableSnapshot | None) -> tuple[EventChunk, ...]:
        """Returns the sealed pieces without the events of a table: a flush that is interrupted after its commit, for
        example by Ctrl-C, leaves its events in memory until the next flush, which skips them."""
        if table is None:
            return self._sealed
        kept: list[EventChunk] = []
        for piece in self._sealed:
            fresh = fresh_rows(piece.batch, table.offsets)
            if fresh is None:
                kept.append(piece)
            elif len(fresh):
                late = np.zeros(len(piece), np.bool_) if piece.late is None else piece.late
                kept.append(piece_of(piece.batch.take(fresh), late[fresh]))
        return tuple(kept)

    def snapshot(self) -> HistorySnapshot:
        """Returns an immutable view of all events appended so far. Costs microseconds."""
        with self._lock:
            return HistorySnapshot(
                self.schema, self._sealed + self._recent.pieces(), self._sources, self.directory, self._table_snapshot
            )

    def close(self) -> None:
        """Flushes. Snapshots stay readable."""
        self.flush()
        self.release()

    def release(self) -> None:
        """Closes the log without flushing."""
        if self._log is not None:
            self._log.close()

    @property
    def is_logged(self) -> bool:
        return self._log is not None


def archived_schema(where: Place, schema: Schema) -> Schema:
    """Returns the schema of the table if it has more columns than `schema`, else `schema`. The table is ahead after a
    crash between the two steps of adding columns."""
    from archive.table import Table

    if not (where / "_delta_log").exists():
        return schema
    archived = Table.open(where).schema
    archived = replace(archived, lateness_us=schema.lateness_us, retention_us=schema.retention_us)
    return archived if archived.widens(schema) else schema


def check_there(directory: Path, stream: str) -> None:
    """Raises DataError if a required log is missing."""
    from archive.log import REPAIR, segments

    if not segments(directory):
        message = f"the log of {stream} in {directory} is missing, and with it the events not yet flushed"
        raise DataError(message, REPAIR)


def _nbytes(pieces: Iterable[EventChunk]) -> int:
    """Returns the approximate bytes of buffered pieces."""
    return sum(piece.batch.columns.nbytes + 28 * len(piece) for piece in pieces)


def _widened(piece: EventChunk, schema: Schema) -> EventChunk:
    """Returns the piece with nulls in its missing columns."""
    batch, columns = piece.batch, arrow_schema(schema)
    missing = [pa.nulls(len(batch), field.type) for field in list(columns)[batch.columns.num_columns :]]
    wide = pa.RecordBatch.from_arrays([*batch.columns.columns, *missing], schema=columns)
    return replace(piece, batch=replace(batch, columns=wide))
