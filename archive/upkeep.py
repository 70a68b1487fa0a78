"""What is done to a table besides appending: compaction, retention, vacuum and verification.

Compaction decides on the statistics of the files alone (`plan_rewrites`, pure) and takes effect in one commit each
(`rewrite`). Files of a period that goes on are merged by size, so that a row is rewritten a few times on its way to a
large file; when the period is over, its files become ones that stand by (key, time). A commit that finds that files
have been removed since is refused and decides again, so that two that compact at once lose time and nothing else; the
lock (`one_at_a_time`) spares them that on one machine.

Nothing here deletes a file that a snapshot of the last hours may read, but `vacuum` with a grace of zero.
"""

from __future__ import annotations

import itertools
import tempfile
import warnings
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
from archive.table import Table, TableSnapshot
from matching.batch import Int64Array
from query.errors import DataError, HybridWarning, first_line
from query.schema import Schema

#: So many files of about one size are merged into one.
FAN_IN = 8
#: A period that is over is rewritten when one row in so many is not in order of keys.
LOOSE_ONE_IN = 4
#: A file with fewer rows than one in so many of its period, and less than half full, is small: FAN_IN become one.
SMALL_ONE_IN = 10
#: A file that no longer belongs to the table, or never did, stays for so long: a query may read it, a writer may be
#: about to commit it.
GRACE_HOURS = 24
#: How often marking late events begins anew where others have changed the table meanwhile.
MARK_ATTEMPTS_MAX = 20
LOCK = "_maintenance.lock"


# ---- compaction


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files that become others with the same rows. unit: the periods of the new ones, whose rows stand by (key, time);
    None: one file or two, by (time bucket, key, time)."""

    paths: tuple[str, ...]
    rows: int
    unit: Unit | None


def closed_before_us(table: TableSnapshot, schema: Schema) -> int:
    """The day of the newest event begins here, lateness taken off: periods before it are over. Late events of them
    still come, and are found; there are few."""
    span_us = table.span_us()
    return 0 if span_us is None else (span_us[1] - schema.lateness_us) // DAY_US * DAY_US


def plan_rewrites(table: TableSnapshot, closed_us: int) -> list[Rewrite]:
    """What is worth rewriting, the oldest first. closed_us: periods that end before it are over. Doing one of them and
    asking again comes to an end."""
    over = np.flatnonzero(table.max_us < closed_us)
    found = _closed(table, over)
    open_ones = np.flatnonzero(table.max_us >= closed_us)
    return found + _merges(table, open_ones)


def _closed(table: TableSnapshot, files: np.ndarray) -> list[Rewrite]:
    """Of files whose time is over: by periods, or what hangs together where a file spans several."""
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
        return []  # one row group, whatever its order
    if int(rows[loose].sum()) * LOOSE_ONE_IN >= total and loose.any():
        return [_rewrite(table, files, unit)]
    small = files[(rows * SMALL_ONE_IN < total) & (rows * 2 < FILE_ROWS_MAX)]
    return [_rewrite(table, small, unit)] if len(small) >= FAN_IN else []


def _merges(table: TableSnapshot, files: np.ndarray) -> list[Rewrite]:
    """Of files whose time goes on: FAN_IN or more of one size, which came one after the other."""
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
    """Files of one size differ by less than a factor of FAN_IN; a row group or less is the smallest."""
    return (rows // ROW_GROUP_ROWS).bit_length() // (FAN_IN.bit_length() - 1)


def _rewrite(table: TableSnapshot, files: np.ndarray, unit: Unit | None) -> Rewrite:
    return Rewrite(tuple(table.paths[i] for i in files), int(table.rows[files].sum()), unit)


def compact(
    table: Table,
    *,
    closed_us: int | None = None,
    memory_limit: str = MEMORY_LIMIT,
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[Rewrite]:
    """Rewrites until nothing is worth it; gives each rewrite that took effect. closed_us: see plan_rewrites; by default
    the day of the newest event. stopped: asked often; True ends it soon, with the table as the last commit left it.

    Bounded memory (memory_limit for sorting, and a file of rows); what does not fit is sorted on local disk. Raises
    DataError where files cannot be read or written; the table is then as before."""
    while not stopped():
        before = table.snapshot()
        edge_us = closed_before_us(before, table.schema) if closed_us is None else closed_us
        todo = plan_rewrites(before, edge_us)
        if not todo:
            return
        if rewrite(table, before, todo[0], memory_limit, stopped):
            yield todo[0]


def rewrite(
    table: Table, before: TableSnapshot, what: Rewrite, memory_limit: str, stopped: Callable[[], bool]
) -> bool:
    """Does one rewrite in one commit. False, and nothing has changed, if another has removed files meanwhile, or if it
    was stopped."""
    written: list[DataFile] = []
    try:
        for file in _files(table, before, what, memory_limit):
            written.append(file)
            if stopped():
                _forget(table.directory, written)
                return False
    except (OSError, duckdb.Error, pa.ArrowException, DataError) as error:
        _forget(table.directory, written)
        raise DataError(
            f"the archive of {table.schema.name} in {table.directory} cannot be compacted: {first_line(error)}",
            "nothing has changed; make room, or see what hybrid archive verify says",
        ) from error
    if sum(file.rows for file in written) != what.rows:
        _forget(table.directory, written)
        raise DataError(
            f"{len(what.paths)} files of {table.directory} have other rows than the table says",
            "hybrid archive verify says which",
        )
    # From here on the log may name the new files, whatever it answers: they go only where it has clearly refused them,
    # and a store may still be at it. What is left over is for vacuum.
    if table.replace(before, what.paths, written) is not None:
        return True
    if table.directory.on_disk:
        _forget(table.directory, written)
    return False


def _forget(directory: Place, files: Iterable[DataFile]) -> None:
    """Takes away what was written in vain; what cannot be is an orphan, for vacuum."""
    for file in files:
        try:
            (directory / file.path).remove()
        except OSError:
            pass


def _files(table: Table, before: TableSnapshot, what: Rewrite, memory_limit: str) -> Iterator[DataFile]:
    stored = stored_schema(table.schema)
    chosen = set(what.paths)
    index = np.array([i for i, path in enumerate(before.paths) if path in chosen], np.int64)
    checked(table.directory, before, index, table.schema, None)
    keys = [(table.directory / path).key for path in what.paths]
    rows = ds.dataset(keys, schema=stored, format=CHECKED, filesystem=table.directory.filesystem)
    if what.unit is None:
        yield from write_files(rows.to_table().combine_chunks(), table.directory, table.schema)
        return
    with tempfile.TemporaryDirectory(prefix="hybrid-sort-") as scratch, sorting(scratch, memory_limit) as connection:
        connection.register("stored", rows)
        reader = connection.sql(f"SELECT * FROM stored ORDER BY {sorted_by(table.schema, what.unit)}")
        batches = (batch.cast(stored) for batch in reader.to_arrow_reader(4 * ROW_GROUP_ROWS))
        yield from write_sorted(batches, table.directory, table.schema, what.unit)


# ---- late events


def mark_late(table: Table, from_seq: int, late: Int64Array) -> TableSnapshot:
    """Marks the events from an ingest sequence on anew, in one commit: late are those whose sequences are given, and no
    others. Files in which nothing changes stay. Raises DataError; the table is then as before."""
    stored = stored_schema(table.schema)
    for _ in range(MARK_ATTEMPTS_MAX):
        before = table.snapshot()
        index = before.select(None, None, {}, KeyRange(SEQ, from_seq, None))
        removed: list[str] = []
        written: list[DataFile] = []
        try:
            checked(table.directory, before, index, table.schema, None)
            for i in index:
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
                    written += write_files(rows, table.directory, table.schema)
        except (OSError, pa.ArrowException, DataError) as error:
            _forget(table.directory, written)
            raise DataError(
                f"late events of {table.schema.name} in {table.directory} cannot be marked: {first_line(error)}",
                "nothing has changed; make room, or see what hybrid archive verify says",
            ) from error
        if not removed:
            return before
        after = table.set_aside(before, removed, written)
        if after is not None:
            return after
        if table.directory.on_disk:
            _forget(table.directory, written)
    raise DataError(f"late events of {table.schema.name} cannot be marked: others always change the table", "try again")


# ---- retention and vacuum


def expire(table: Table, before_us: int) -> tuple[int, int]:
    """Takes the files out of the table whose every row is older; how many files and rows that were. They stay on disk
    for the queries that read them, until vacuum."""
    before = table.snapshot()
    after = table.drop_before(before_us)
    gone = set(before.paths) - set(after.paths)
    rows = sum(int(n) for path, n in zip(before.paths, before.rows) if path in gone)
    return len(gone), rows


def vacuum(table: Table, grace_hours: int = GRACE_HOURS, dry_run: bool = False) -> list[str]:
    """Deletes files that do not belong to the table: those that were taken out more than grace_hours ago, and those
    that no commit ever named and that are older than that. Their paths; dry_run: only these.

    Where a file that no commit names is the only one that has some events, no such file is deleted, and a HybridWarning
    says so. A reader whose snapshot is older than the grace loses its files, and says so."""
    orphans = set(table.removable(grace_hours)) - set(table.removable(grace_hours, orphans=False))
    alone = [fault for fault, _ in faults.lost_rows(table, False) if fault.path in orphans] if orphans else []
    for fault in alone:
        message = f"{table.directory}/{fault.path} {fault.message}: it stays; hybrid archive repair takes it in"
        warnings.warn(message, HybridWarning, stacklevel=2)
    if dry_run:
        return table.removable(grace_hours, orphans=not alone)
    return table.vacuum(grace_hours, orphans=not alone)


# ---- verification


@dataclass(frozen=True, slots=True)
class Finding:
    """What verification found. kind: "broken" where rows are lost or wrong; "waiting" for a file that was taken out and
    "orphan" for one that was never in, which vacuum deletes in time. path: of a file below the table, or empty."""

    kind: Literal["broken", "waiting", "orphan"]
    path: str
    message: str


def verify(table: Table, deep: bool = False, progress: Callable[[int, int], None] | None = None) -> list[Finding]:
    """Compares the table with its files: each is there, has the size, the rows and the columns that the log says, and
    the list of the input files that were archived can be read. deep: reads all bytes and rows too: checksums, bounds of
    the times, sources, sequences, each event once, and events that only files without a commit have.

    progress: called with (files done, files). Costs a request for each file, deep a read of all."""
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
        found.append(Finding("broken", "", f"events with ingest sequences {low:,} to {high:,} are in no file"))
    waiting = set(table.removable(0, orphans=False))
    for path in table.removable(0):
        if path not in there:
            continue  # deleted already: the log remembers for a while
        if path in waiting:
            found.append(Finding("waiting", path, "was taken out of the table"))
        elif path in lost:
            kind: Literal["broken", "orphan"] = "broken" if lost[path].committed else "orphan"
            found.append(Finding(kind, path, f"{lost[path].message}; hybrid archive repair takes them in"))
        else:
            found.append(Finding("orphan", path, "was never in the table"))
    return found


def _file_fault(table: Table, snapshot: TableSnapshot, number: int, deep: bool) -> str | None:
    """What is wrong with the contents of a file whose bytes are what was written, or None."""
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
        return "has events outside of the times that the table says"
    if pc.max(rows.column(SEQ)).as_py() > snapshot.boundary_sequence:
        return "has ingest sequences that the table has not given"
    unknown = set(pc.unique(rows.column(SOURCE)).to_pylist()) - set(snapshot.sources)
    if unknown:
        return f"has rows of sources that the table does not name: {', '.join(map(str, sorted(unknown, key=str)))}"
    return None


def _doubled(table: Table, paths: list[str]) -> list[Finding]:
    """Events that are there twice."""
    with tempfile.TemporaryDirectory(prefix="hybrid-sort-") as scratch, sorting(scratch, MEMORY_LIMIT) as connection:
        connection.register("stored", faults.identities(table, paths))
        twice = connection.execute(
            f"SELECT {SOURCE}, {OFFSET}, count(*) FROM stored GROUP BY ALL HAVING count(*) > 1 ORDER BY ALL LIMIT 10"
        ).fetchall()
    return [
        Finding("broken", "", f"event {offset} of source {source} is there {count} times")
        for source, offset, count in twice
    ]


# ---- who may


@contextmanager
def one_at_a_time(directory: Place) -> Iterator[bool]:
    """Whether this process is the one that maintains a table, until the block ends or the process does. In a store
    there is no lock: there the commits alone decide."""
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
