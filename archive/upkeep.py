"""Maintenance of a table: compaction, late marks, retention, vacuum and verification.

Compaction chooses files by their statistics (`plan_rewrites`, pure) and commits each rewrite (`rewrite`). Files of an
open period are merged by size, so that each row is rewritten a few times until it is in a large file. Files of a closed
period are rewritten sorted by (key, time). A rewrite is refused if files were removed since it was planned, and is then
planned again: two concurrent compactions only waste time. The lock (`one_at_a_time`) avoids that on one machine.

Only `vacuum` with a grace of zero deletes files that recent snapshots may read.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from archive import faults, head
from archive.interrupts import handle_waiting
from archive.layout import (
    DAY_US,
    FILE_ROWS_MAX,
    LATE,
    OFFSET,
    ROW_GROUP_ROWS,
    SEQ,
    SOURCE,
    DataFile,
    Unit,
    is_by_key,
    period_codes,
    stored_schema,
    time_name,
    unit_of,
    write_files,
    write_sorted,
)
from archive.place import Place
from archive.recent import KeyRange
from archive.scan import CHECKED, checked
from archive.sorting import MEMORY_LIMIT, sorted_by, sorting
from archive.table import Table
from archive.table_snapshot import TableSnapshot
from matching.batch import Int64Array
from query.errors import DataError, first_line, warn
from query.schema import Schema

#: Number of files of about one size that are merged into one.
FAN_IN = 8
#: A closed period is rewritten if at least one row in this many is in a file that is not sorted by key.
LOOSE_ONE_IN = 4
#: A file is small if it has less than one in this many rows of its period and is less than half full; FAN_IN small
#: files are merged.
SMALL_ONE_IN = 10
#: Hours for which removed and uncommitted files are kept: a query may read them, or a writer be about to commit them.
GRACE_HOURS = 24
#: Limit of attempts to mark late events, if others change the table meanwhile.
MARK_ATTEMPTS_MAX = 20
LOCK = "_maintenance.lock"


# ---- compaction


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files to replace by others with the same rows. unit: period of the new files, which are sorted by (key, time);
    None: merge into one or two files, sorted by (time bucket, key, time)."""

    paths: tuple[str, ...]
    rows: int
    unit: Unit | None


def closed_before_us(table: TableSnapshot, schema: Schema) -> int:
    """Returns the beginning of the day of the newest event minus the lateness: periods before it are closed. Their few
    late events are still archived and found."""
    span_us = table.span_us()
    return 0 if span_us is None else (span_us[1] - schema.lateness_us) // DAY_US * DAY_US


def plan_rewrites(table: TableSnapshot, closed_us: int) -> list[Rewrite]:
    """Returns the rewrites worth doing, oldest first. closed_us: periods that end before it are closed. Applying one
    and planning again terminates."""
    over = np.flatnonzero(table.max_us < closed_us)
    found = _closed(table, over)
    open_ones = np.flatnonzero(table.max_us >= closed_us)
    return found + _merges(table, open_ones)


def _closed(table: TableSnapshot, files: np.ndarray) -> list[Rewrite]:
    """Plans rewrites of closed files: per period, or per group of periods connected by files that span several."""
    if not len(files):
        return []
    low, high = table.min_us[files], table.max_us[files]
    unit = unit_of(int(table.rows[files].sum()), low, high)
    first, last = period_codes(low, unit), period_codes(high, unit)
    order = np.argsort(first, kind="stable")
    reached = np.maximum.accumulate(last[order])
    starts = np.flatnonzero(np.concatenate([[True], first[order][1:] > reached[:-1]]))
    found = []
    for start, stop in itertools.pairwise([*starts.tolist(), len(order)]):
        found += _of_period(table, files[order[start:stop]], unit)
    return found


def _of_period(table: TableSnapshot, files: np.ndarray, unit: Unit) -> list[Rewrite]:
    rows = table.rows[files]
    total = int(rows.sum())
    loose = np.array([not is_by_key(table.paths[i]) for i in files])
    if len(files) == 1 and total <= ROW_GROUP_ROWS:
        return []  # one row group: the order does not matter
    if int(rows[loose].sum()) * LOOSE_ONE_IN >= total and loose.any():
        return [_rewrite(table, files, unit)]
    small = files[(rows * SMALL_ONE_IN < total) & (rows * 2 < FILE_ROWS_MAX)]
    return [_rewrite(table, small, unit)] if len(small) >= FAN_IN else []


def _merges(table: TableSnapshot, files: np.ndarray) -> list[Rewrite]:
    """Plans merges of files of open periods: of FAN_IN or more files of one size, consecutive in time."""
    found = []
    rows = table.rows[files]
    sizes = np.array([_size(int(n)) for n in rows], np.int64)
    for size in np.unique(sizes[rows < FILE_ROWS_MAX]):
        same = files[(sizes == size) & (rows < FILE_ROWS_MAX)]
        same = same[np.argsort(table.min_us[same], kind="stable")]
        if len(same) < FAN_IN:
            continue
        some = max(FAN_IN, int(np.searchsorted(np.cumsum(table.rows[same]), 2 * FILE_ROWS_MAX)))
        found.append(_rewrite(table, same[:some], None))
    return found


def _size(rows: int) -> int:
    """Returns the size class of a file: sizes in a class differ by less than a factor of FAN_IN; 0 up to about a row
    group."""
    return (rows // ROW_GROUP_ROWS).bit_length() // (FAN_IN.bit_length() - 1)


def _rewrite(table: TableSnapshot, files: np.ndarray, unit: Unit | None) -> Rewrite:
    return Rewrite(tuple(table.paths[i] for i in files), int(table.rows[files].sum()), unit)


def compact(
    table: Table,
    *,
    closed_us: int | None = None,
    memory_limit: str = MEMORY_LIMIT,
    stopped: Callable[[], bool] | None = None,
) -> Iterator[Rewrite]:
    """Applies rewrites until none is worth doing; yields each one that was committed.

    closed_us: see plan_rewrites; None: the day of the newest event. stopped: polled often, from another thread while
    events are sorted; True ends the compaction soon after, with the table as of the last commit. Memory: memory_limit
    for sorting, which spills to local disk, and the rows of a file. Raises DataError if files cannot be read or
    written; the table is then unchanged."""
    while stopped is None or not stopped():
        before = table.snapshot()
        edge_us = closed_before_us(before, table.schema) if closed_us is None else closed_us
        todo = plan_rewrites(before, edge_us)
        if not todo:
            return
        if rewrite(table, before, todo[0], memory_limit, stopped):
            yield todo[0]


def rewrite(
    table: Table, before: TableSnapshot, what: Rewrite, memory_limit: str, stopped: Callable[[], bool] | None = None
) -> bool:
    """Applies one rewrite in one commit. Returns False and changes nothing if another process has removed files
    meanwhile, or if it was stopped. Raises DataError."""
    written: list[DataFile] = []
    try:
        for file in _files(table, before, what, memory_limit, stopped):
            written.append(file)
            if stopped is not None and stopped():
                _forget(table.directory, written)
                return False
    except (OSError, duckdb.Error, pa.ArrowException, DataError) as error:
        _forget(table.directory, written)
        if stopped is not None and stopped():
            return False
        raise DataError(
            f"the archive of {table.schema.name} in {table.directory} cannot be compacted: {first_line(error)}",
            "nothing has changed; make room, or run hybrid archive verify",
        ) from error
    if sum(file.rows for file in written) != what.rows:
        _forget(table.directory, written)
        raise DataError(
            f"{len(what.paths)} files of {table.directory} have other row counts than the table says",
            "hybrid archive verify names them",
        )
    # From here on the log may list the new files, even if the commit fails. They are deleted only after a clear
    # refusal, and never in a store, which may still be committing. Vacuum deletes the rest.
    if table.replace(before, what.paths, written) is not None:
        return True
    if table.directory.on_disk:
        _forget(table.directory, written)
    return False


def _forget(directory: Place, files: Iterable[DataFile]) -> None:
    """Deletes files that were not committed; those that cannot be deleted are left to vacuum."""
    for file in files:
        try:
            (directory / file.path).remove()
        except OSError:
            pass


def _files(
    table: Table, before: TableSnapshot, what: Rewrite, memory_limit: str, stopped: Callable[[], bool] | None
) -> Iterator[DataFile]:
    stored = stored_schema(table.schema)
    chosen = set(what.paths)
    index = np.array([i for i, path in enumerate(before.paths) if path in chosen], np.int64)
    checked(table.directory, before, index, table.schema, None)
    keys = [(table.directory / path).key for path in what.paths]
    rows = ds.dataset(keys, schema=stored, format=CHECKED, filesystem=table.directory.filesystem)
    if what.unit is None:
        yield from write_files(rows.to_table().combine_chunks(), table.directory, table.schema)
        return
    with (
        tempfile.TemporaryDirectory(prefix="hybrid-sort-") as scratch,
        sorting(scratch, memory_limit, stopped) as connection,
    ):
        connection.register("stored", rows)
        reader = connection.sql(f"SELECT * FROM stored ORDER BY {sorted_by(table.schema, what.unit)}")
        batches = (batch.cast(stored) for batch in reader.to_arrow_reader(4 * ROW_GROUP_ROWS))
        yield from write_sorted(batches, table.directory, table.schema, what.unit)


# ---- late events


def mark_late(table: Table, from_seq: int, late: Int64Array) -> TableSnapshot:
    """Replaces the late marks of events from an ingest sequence on, in one commit. late: int64, the sequences of the
    late events. Rewrites only files with changed marks. Raises DataError, and KeyboardInterrupt if a Ctrl-C waits; the
    table is then unchanged."""
    stored = stored_schema(table.schema)
    for _ in range(MARK_ATTEMPTS_MAX):
        before = table.snapshot()
        index = before.select(None, None, {}, KeyRange(SEQ, from_seq, None))
        removed: list[str] = []
        written: list[DataFile] = []
        try:
            checked(table.directory, before, index, table.schema, None)
            for i in index:
                handle_waiting()
                key = (table.directory / before.paths[i]).key
                files = ds.dataset([key], schema=stored, format=CHECKED, filesystem=table.directory.filesystem)
                rows = files.to_table().combine_chunks()
                seq, was = (np.asarray(rows.column(name).to_numpy()) for name in (SEQ, LATE))
                now = np.where(seq >= from_seq, np.isin(seq, late), was)
                if (now != was).any():
                    marks = pa.array(now, pa.bool_())
                    removed.append(before.paths[i])
                    place = rows.column_names.index(LATE)
                    rows = rows.set_column(place, stored.field(LATE), marks)
                    written += write_files(rows, table.directory, table.schema, handle_waiting)
        except KeyboardInterrupt:
            _forget(table.directory, written)
            raise
        except (OSError, pa.ArrowException, DataError) as error:
            _forget(table.directory, written)
            raise DataError(
                f"late events of {table.schema.name} in {table.directory} cannot be marked: {first_line(error)}",
                "nothing has changed; make room, or run hybrid archive verify",
            ) from error
        if not removed:
            return before
        after = table.set_aside(before, removed, written)
        if after is not None:
            return after
        if table.directory.on_disk:
            _forget(table.directory, written)
    message = f"late events of {table.schema.name} cannot be marked: other writers were always faster"
    raise DataError(message, "try again")


# ---- retention and vacuum


def expire(table: Table, before_us: int) -> tuple[int, int]:
    """Removes the files in which every row is older than before_us; returns the numbers of files and rows. The files
    stay on disk until vacuum, for queries that read them."""
    before = table.snapshot()
    after = table.drop_before(before_us)
    gone = set(before.paths) - set(after.paths)
    rows = sum(int(n) for path, n in zip(before.paths, before.rows) if path in gone)
    return len(gone), rows


def vacuum(table: Table, grace_hours: int = GRACE_HOURS, dry_run: bool = False) -> list[str]:
    """Deletes files that were removed from the table more than grace_hours ago, and uncommitted files older than that;
    returns their paths. dry_run: deletes nothing.

    If an uncommitted file has events that no other file has, no uncommitted file is deleted, with a HybridWarning. A
    reader whose snapshot is older than the grace may raise DataError for a deleted file."""
    orphans = set(table.removable(grace_hours)) - set(table.removable(grace_hours, orphans=False))
    alone = [fault for fault, _ in faults.lost_rows(table, False) if fault.path in orphans] if orphans else []
    for fault in alone:
        message = f"{table.directory}/{fault.path} {fault.message}: it is kept; hybrid archive repair adds its events"
        warn(message)
    if dry_run:
        return table.removable(grace_hours, orphans=not alone)
    return table.vacuum(grace_hours, orphans=not alone)


# ---- verification


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of verification. kind: "broken": rows are lost or wrong; "waiting": a file removed from the table;
    "orphan": an uncommitted file. Vacuum deletes the last two later. path: of a file, relative to the table, or
    empty."""

    kind: Literal["broken", "waiting", "orphan"]
    path: str
    message: str


def verify(table: Table, deep: bool = False, progress: Callable[[int, int], None] | None = None) -> list[Finding]:
    """Verifies the table: each file exists with the size, the rows and the columns of the log, and the list of archived
    input files is readable. deep: also reads all bytes: checks checksums, time bounds, sources, sequences, duplicate
    events, and events that only uncommitted files have.

    progress: called with (files done, files). Costs a request per file; deep reads all files."""
    snapshot = table.snapshot()
    found: list[Finding] = []
    there = {entry.path for entry in table.directory.entries() if entry.path.endswith(".parquet")}
    sound: list[str] = []
    for number, path in enumerate(snapshot.paths):
        damaged = faults.data_fault(table, snapshot, path, int(snapshot.sizes[number]), deep)
        message = _file_fault(table, snapshot, number, deep) if damaged is None else damaged.message
        if message is None:
            sound.append(path)
        else:
            found.append(Finding("broken", path, message))
        if progress is not None:
            progress(number + 1, len(snapshot.paths))
    if deep and sound:
        found += _doubled(table, sound)
    unreadable = faults.list_fault(table)
    if unreadable is not None:
        found.append(Finding("broken", "", unreadable.message))
    found += [Finding("broken", f.path, f"is {f.what}") for f in head.copies_damaged(table.directory)]
    lost = {fault.path: fault for fault, _ in faults.lost_rows(table, False)} if deep else {}
    for low, high in faults.sequence_gaps(table, snapshot) if deep and len(sound) == len(snapshot.paths) else ():
        found.append(Finding("broken", "", f"events with ingest sequences {low:,} to {high:,} are missing"))
    waiting = set(table.removable(0, orphans=False))
    for path in table.removable(0):
        if path not in there:
            continue  # deleted already, but still in the log
        if path in waiting:
            found.append(Finding("waiting", path, "was removed from the table"))
        elif path in lost:
            kind: Literal["broken", "orphan"] = "broken" if lost[path].committed else "orphan"
            found.append(Finding(kind, path, f"{lost[path].message}; hybrid archive repair adds them"))
        else:
            found.append(Finding("orphan", path, "was never committed"))
    return found


def _file_fault(table: Table, snapshot: TableSnapshot, number: int, deep: bool) -> str | None:
    """Returns the fault in the contents of an undamaged file, or None."""
    place = table.directory / snapshot.paths[number]
    try:
        with pq.ParquetFile(place.key, filesystem=place.filesystem) as file:
            if file.metadata.num_rows != snapshot.rows[number]:
                return f"has {file.metadata.num_rows:,} rows, not {snapshot.rows[number]:,}"
            columns = {field.name: field.type for field in file.schema_arrow}
            for field in stored_schema(table.schema):
                if field.name in columns and columns[field.name] != field.type:
                    return f"column {field.name} is {columns[field.name]}, not {field.type}"
                if field.name not in columns and field.name not in table.added:
                    return f"column {field.name} is missing"
            return _rows_fault(table, snapshot, number, file.read()) if deep else None
    except (OSError, pa.ArrowException) as error:
        return f"cannot be read: {first_line(error)}"


def _rows_fault(table: Table, snapshot: TableSnapshot, number: int, rows: pa.Table) -> str | None:
    ts_us = rows.column(time_name(table.schema)).cast(pa.int64()).to_numpy()
    if int(ts_us.min()) < snapshot.min_us[number] or int(ts_us.max()) > snapshot.max_us[number]:
        return "has events outside of its time bounds in the log"
    if pc.max(rows.column(SEQ)).as_py() > snapshot.boundary_sequence:
        return "has ingest sequences after the last one of the table"
    unknown = set(pc.unique(rows.column(SOURCE)).to_pylist()) - set(snapshot.sources)
    if unknown:
        return f"has rows of sources that the table does not list: {', '.join(map(str, sorted(unknown, key=str)))}"
    return None


def _doubled(table: Table, paths: list[str]) -> list[Finding]:
    """Returns findings for up to ten duplicate events."""
    with tempfile.TemporaryDirectory(prefix="hybrid-sort-") as scratch, sorting(scratch, MEMORY_LIMIT) as connection:
        connection.register("stored", faults.identities(table, paths))
        twice = connection.execute(
            f"SELECT {SOURCE}, {OFFSET}, count(*) FROM stored GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 10"
        ).fetchall()
    return [
        Finding("broken", "", f"event {offset} of source {source} is archived {count} times")
        for source, offset, count in twice
    ]


# ---- who may


@contextmanager
def one_at_a_time(directory: Place) -> Iterator[bool]:
    """Yields True if this process has the maintenance lock of a table, held until the end of the block. Always True in
    a store, which has no locks: there conflicts are detected by commits."""
    if not directory.on_disk:
        yield True
        return
    import fcntl

    with open(directory / LOCK, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
