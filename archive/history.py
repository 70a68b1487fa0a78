"""History of one stream: recent memory and table as one; append, flush, consistent snapshots."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from archive.place import Place, place_of
from archive.recent import BoolArray, Piece, RBuffer, fresh_rows, joined, next_offsets, piece_of
from archive.snapshot import HistorySnapshot
from matching.batch import EventBatch, Int64Array
from matching.types import arrow_schema
from query.errors import DataError, HybridWarning, NotKept
from query.schema import Schema

if TYPE_CHECKING:
    from archive.log import Contents, Log, Policy
    from archive.table import Table, TableSnapshot

#: Rows in memory that an append writes to the table, unless it is told otherwise.
MEMORY_ROWS_MAX = 100_000
#: What is in memory is in files after so many seconds.
AGE_MAX_S = 5.0
#: In the directory of a stream's table: its log.
LOG = "_log"
#: What the thread is called that sees to it.
KEEPER = "hybrid-keeper"


class History:
    """The kept events of one stream. append and flush from one thread or several, snapshots and reads from any.

    schema: the stream as declared. directory: where its table is or will be, one directory per stream; None keeps
    all in memory. memory_rows_max, memory_bytes_max: so much in memory is written to the table by the append that
    reaches it; what is older than AGE_MAX_S, by the keeper of the database (archive.keeper). log: whether an append
    returns when the events are in a log on disk, and what that survives (archive.log); None: they are in memory
    alone until the flush. Opening a directory goes on where its last commit or its log ended. logged_watermark_us:
    the watermark that the log ended with, or None. epoch: that of the writer (archive.writer), None without one.
    read_only: nothing is written; `refresh` takes over what another process has appended since. Raises DataError if the
    directory holds another stream, another declaration or a newer format, for columns that cannot be archived, and for
    a log that is broken; HybridWarning for an end of a log that cannot be read.
    """

    __slots__ = (
        "_bytes", "_first_appended_us", "_first_archived_us", "_flushing", "_lock", "_log", "_log_lost", "_offsets",
        "_oldest_s", "_read_only", "_recent", "_sealed", "_sources", "_table", "_table_snapshot", "directory",
        "last_seq", "logged_watermark_us", "memory_bytes_max", "memory_rows_max", "revision", "schema",
        "skipped",
    )  # fmt: skip

    def __init__(
        self, schema: Schema, directory: str | PathLike[str] | Place | None, memory_rows_max: int | None = None,
        memory_bytes_max: int = 256 << 20, log: Policy | None = None, epoch: int | None = None,
        read_only: bool = False,
    ) -> None:  # fmt: skip
        self.schema = schema
        self.directory = None if directory is None else place_of(directory)
        self.memory_rows_max = MEMORY_ROWS_MAX if memory_rows_max is None else memory_rows_max
        self.memory_bytes_max = memory_bytes_max
        #: Greatest ingest sequence so far, -1 before the first event.
        self.last_seq = -1
        # _lock guards what follows, for moments; _flushing is held while a flush writes.
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._recent = RBuffer()
        self._sealed: tuple[Piece, ...] = ()
        # Of what is in memory: its bytes, and when the first of it came, on the clock of time.monotonic.
        self._bytes = 0
        self._oldest_s: float | None = None
        self._offsets: dict[str, int] = {}
        self._sources: tuple[str, ...] = ()
        self._log: Log | None = None
        self._log_lost = False
        self.logged_watermark_us: int | None = None
        #: Of sources whose last word in the log was no event, the offset of that.
        self.skipped: dict[str, int] = {}
        #: How often something other than an append has changed which events are kept, or their columns.
        self.revision = 0
        # Of the files as they were opened, which is looked up when it is asked for; and of all appended since.
        self._first_archived_us: int | Literal["unknown"] | None = None
        self._first_appended_us: int | None = None
        self._table: Table | None = None
        self._table_snapshot: TableSnapshot | None = None
        self._read_only = read_only
        if self.directory is not None:
            # Only here, so that a history in memory starts without them.
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
        """Takes the events into memory again that a process before this one had in its log and in no file."""
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
        if not self._recent.row_count:  # what there was is in files
            for path in segments(directory):
                if self._log is None or not self._log.writes(path):
                    path.unlink()

    def _next_seq(self) -> int | None:
        """The ingest sequence that the log says it goes on from. None with a retention: what is too old may go from
        memory, and never come into a file."""
        return self.last_seq + 1 if self.schema.retention_us is None else None

    def _take_in(self, found: Contents) -> None:
        """Takes what a log has into memory."""
        from archive.log import Rows

        for message in found.dropped:
            warnings.warn(message, HybridWarning, stacklevel=2)
        self.logged_watermark_us, self.skipped = found.watermark_us, found.skipped
        for entry in found.entries:
            if isinstance(entry, Rows):
                self._keep(entry.batch, entry.late)

    @property
    def offsets(self) -> dict[str, int]:
        """For each source the offset expected next: one above the last that was appended."""
        with self._lock:
            return dict(self._offsets)

    @property
    def table_snapshot(self) -> TableSnapshot | None:
        """The table as snapshots see it now, or None without one."""
        with self._lock:
            return self._table_snapshot

    @property
    def first_us(self) -> int | None:
        """Time of the first on-time event that is kept, or None. The first call after opening looks into a file."""
        with self._lock:
            archived = self._first_archived_us
            if archived == "unknown":
                from archive.scan import first_time_us

                assert self.directory is not None
                assert self._table_snapshot is not None
                archived = self._first_archived_us = first_time_us(self.directory, self._table_snapshot, self.schema)
            return min((t for t in (archived, self._first_appended_us) if t is not None), default=None)

    def append(self, batch: EventBatch, late: BoolArray) -> None:
        """Takes events as they arrived. late: bool (n,). An event whose offset is below the one expected next from its
        source is a redelivery and left out.

        Held by reference: do not write into the arrays again. Costs a few passes over int64 columns, with a log a write
        to disk, and every memory_rows_max rows a flush. Raises DataError, having taken nothing, if the columns are not
        the declared ones or the log cannot be written; if the flush fails all events stay in memory, and the
        next append or flush tries again.
        """
        if len(batch) != len(late):
            raise ValueError(f"{len(batch)} events, but {len(late)} marks")
        declared = arrow_schema(self.schema)
        if not batch.columns.schema.equals(declared):
            raise DataError(
                f"these are not the columns of {self.schema.name}: {', '.join(map(str, batch.columns.schema))}",
                f"they must be {', '.join(map(str, declared))}",
            )
        if self._log is not None and (self._log_lost or self._log.is_gone()):
            self._log_again()
        if self._keep(batch, late) and self._table is not None:
            self.flush()

    def _log_again(self) -> None:
        """Somebody has removed the log: what was in it is still in memory, and goes into files."""
        assert self._log is not None
        gone = f"the log of {self.schema.name} in {self.directory} was removed while it was written"
        with self._lock:
            self._log_lost = True  # until what is in memory is in files
            self._log.close()
            held = self._recent.row_count + sum(map(len, self._sealed))
        try:
            self.flush()
        except DataError as error:
            raise NotKept(f"{gone}, and the {held:,} events in memory cannot be archived: {error}") from error
        self._log_lost = False
        message = f"{gone}; the {held:,} events that were in memory are archived, and a new log begins"
        warnings.warn(message, HybridWarning, stacklevel=2)

    def reach(self, watermark_us: int) -> None:
        """The watermark was raised without events: that goes into the log, if there is one. Raises DataError."""
        with self._lock:
            if self._log is not None:
                self._log.reach(watermark_us)

    def skip(self, source: str, offset: int) -> None:
        """A source has sent nothing up to an offset that is an event: that goes into the log, if there is one. Raises
        DataError."""
        with self._lock:
            if self._log is not None:
                self._log.skip(source, offset)

    def _keep(self, batch: EventBatch, late: BoolArray) -> bool:
        """Takes events into memory, by way of the log; whether there are enough for a flush."""
        with self._lock:
            fresh = fresh_rows(batch, self._offsets)
            if fresh is not None:
                batch, late = batch.take(fresh), late[fresh]
            if len(batch) == 0:
                return False
            # All that may fail comes first: what follows the log is one step, so that an event is in both or in none.
            piece = piece_of(batch, late)
            nbytes = batch.columns.nbytes + 28 * len(batch)
            oldest_s = time.monotonic() if self._oldest_s is None else self._oldest_s
            reached = next_offsets(batch)
            sources = self._sources
            if any(name not in sources for name in reached):  # rows of files have one that no event has
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
            held = self._recent.row_count + sum(map(len, self._sealed))
            return held >= self.memory_rows_max or self._bytes >= self.memory_bytes_max

    def flush(self) -> None:
        """Writes all events in memory to the table, in one commit, and returns when they are on disk. Snapshots may be
        taken meanwhile. Raises DataError if that fails; the events are then still in memory and part of history."""
        if self._table is None or self._read_only:
            return
        with self._flushing:
            with self._lock:
                sealed, held, since_s = self._sealed + self._recent.pieces(), self._bytes, self._oldest_s
                self._sealed, self._recent, self._oldest_s = sealed, RBuffer(), None
                if not sealed:
                    return
                # from here on events go into another segment: these are superfluous once what is sealed is in files
                logged = self._log.rotate(self._next_seq()) if self._log is not None else []
            try:
                rows = joined(sealed)
                late = np.zeros(len(rows), np.bool_) if rows.late is None else rows.late
                written = self._table.append(rows.batch, late)
            except BaseException:
                with self._lock:
                    self._oldest_s = since_s
                raise
            with self._lock:
                # In one step, so that no snapshot sees the rows twice or not at all.
                sources = tuple(sorted({*self._sources, *written.sources}))
                self._table_snapshot, self._sealed, self._bytes, self._sources = (
                    written, (), self._bytes - held, sources
                )  # fmt: skip
            for path in logged:
                path.unlink(missing_ok=True)

    def flush_older(self, age_s: float) -> bool:
        """Flushes if the oldest event in memory came longer ago; whether it did. Raises as flush does."""
        with self._lock:
            since_s = self._oldest_s
        if self._table is None or since_s is None or time.monotonic() - since_s < age_s:
            return False
        self.flush()
        return True

    def refresh(self) -> None:
        """Takes over what others have committed to the table: compaction and files before all. Older snapshots stay."""
        if self._read_only:
            self._read_anew()
            return
        if self._table is None:
            return
        with self._flushing:
            newest = self._table.snapshot()
            with self._lock:
                before, self._table_snapshot = self._table_snapshot, newest
                if before is None or int(before.rows.sum()) != int(newest.rows.sum()):
                    self.revision += 1
                self._sources = tuple(sorted({*self._sources, *newest.sources}))
                if before is None or before.span_us() != newest.span_us():
                    self._first_archived_us = "unknown"

    def _read_anew(self) -> None:
        """Takes over the events of another process: first those in its log, then the table, which has by then those
        that were in the log before. So each event that it has taken until now is seen, once."""
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
        """Goes on with another lateness or retention; nothing else may differ. Raises DataError, having changed
        nothing, if the table cannot take it."""
        with self._flushing:
            if self._table is not None:
                self._table.declare(schema)
            with self._lock:
                self.schema = schema

    def add_columns(self, schema: Schema) -> None:
        """Goes on with more columns behind the others (Schema.widens); events so far have nulls there. Snapshots keep
        the columns they have. Raises DataError, having changed nothing, if the table cannot take them."""
        with self._flushing:
            if self._table is not None:
                self._table.add_columns(schema)
            with self._lock:
                recent = RBuffer()
                for piece in self._sealed + self._recent.pieces():
                    recent.append(_widened(piece, schema))
                table = None if self._table is None else self._table.snapshot()
                if self._log is not None:
                    self._log.rotate(self._next_seq(), schema)
                self.revision, self.schema, self._sealed, self._recent, self._table_snapshot = (
                    self.revision + 1, schema, (), recent, table
                )  # fmt: skip

    def mark_late(self, from_seq: int, late: Int64Array) -> None:
        """Marks the events from an ingest sequence on anew: late are those whose sequences are given, ascending, and no
        others. A watermark in the log is forgotten. Raises DataError; what is marked by then is said by the next call
        that is the same."""
        self.flush()
        with self._flushing:
            marked = None
            if self._table is not None:
                from archive.upkeep import mark_late

                marked = mark_late(self._table, from_seq, late)
            with self._lock:
                recent = RBuffer()
                for piece in self._sealed + self._recent.pieces():
                    now = np.zeros(len(piece), np.bool_) if piece.late is None else piece.late
                    now = np.where(piece.batch.seq >= from_seq, np.isin(piece.batch.seq, late), now)
                    recent.append(piece_of(piece.batch, now))
                on_time = (piece.first_on_time_us() for piece in recent.pieces())
                self._first_appended_us = min((t for t in on_time if t is not None), default=None)
                self._first_archived_us = None if marked is None else "unknown"
                self.revision, self._table_snapshot, self._sealed, self._recent = self.revision + 1, marked, (), recent
                logged = [] if self._log is None else self._log.forget_watermark(self._next_seq())
            self.logged_watermark_us = None
            for path in logged:
                path.unlink(missing_ok=True)

    def drop_before(self, time_us: int) -> None:
        """Forgets files and pieces of memory whose every event is older than time_us. Older snapshots keep them."""
        with self._flushing:
            table = self._table.drop_before(time_us) if self._table is not None else None
            with self._lock:
                kept = [piece for piece in self._sealed + self._recent.pieces() if piece.max_us >= time_us]
                recent = RBuffer()
                for piece in kept:
                    recent.append(piece)
                nbytes = sum(piece.batch.columns.nbytes + 28 * len(piece) for piece in kept)
                on_time = (piece.first_on_time_us() for piece in kept)
                first = min((t for t in on_time if t is not None), default=None)
                archived: Literal["unknown"] | None = None if table is None else "unknown"
                self.revision, self._table_snapshot, self._sealed, self._recent, self._bytes = (
                    self.revision + 1, table, (), recent, nbytes
                )  # fmt: skip
                self._first_archived_us, self._first_appended_us = archived, first

    def snapshot(self) -> HistorySnapshot:
        """Everything appended so far, as one immutable view. Costs microseconds."""
        with self._lock:
            return HistorySnapshot(
                self.schema, self._sealed + self._recent.pieces(), self._sources, self.directory, self._table_snapshot
            )

    def close(self) -> None:
        """Flushes. Snapshots stay readable."""
        self.flush()
        self.release()

    def release(self) -> None:
        """Closes the log; writes nothing."""
        if self._log is not None:
            self._log.close()

    @property
    def is_logged(self) -> bool:
        return self._log is not None


def archived_schema(where: Place, schema: Schema) -> Schema:
    """The schema, or that of the table at a place if it has more columns: a crash came before that was written down."""
    from archive.table import Table

    if not (where / "_delta_log").exists():
        return schema
    archived = Table.open(where).schema
    archived = replace(archived, lateness_us=schema.lateness_us, retention_us=schema.retention_us)
    return archived if archived.widens(schema) else schema


def check_there(directory: Path, stream: str) -> None:
    """Raises DataError if there is nothing of a log that must be there."""
    from archive.log import REPAIR, segments

    if not segments(directory):
        message = f"the log of {stream} in {directory} is missing, and with it events that are in no file yet"
        raise DataError(message, REPAIR)


def _widened(piece: Piece, schema: Schema) -> Piece:
    """The piece with nulls in the columns that it lacks."""
    batch, columns = piece.batch, arrow_schema(schema)
    missing = [pa.nulls(len(batch), field.type) for field in list(columns)[batch.columns.num_columns :]]
    wide = pa.RecordBatch.from_arrays([*batch.columns.columns, *missing], schema=columns)
    return replace(piece, batch=replace(batch, columns=wide))
