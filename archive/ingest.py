"""Bulk archiving of files: CSV, NDJSON and Parquet into the table of a stream, in one commit, each file once.

Output of a job, which makes it repeatable:

* Data files with the rows of all its input files; their source is FILES. The input files of a stream are numbered in
  order of archiving. `_offset` is the file number times 2^32 plus the record number, and `_seq` is `_offset` - 2^55.
  Sequences of events count from zero, so they never collide with these and need no coordination with a writer of
  events. Rows of files are never late.
* `_ingest/<mark>.list`, the list of all input files so far: number, fingerprint, path, counts. The commit that adds the
  data files sets the mark as a transaction, so list and rows take effect together. A job overtaken by another one sees
  an unknown mark and starts again.
* `_quarantine`, a separate Delta table: the bad rows with their raw text and the reasons. Its files are written
  before the commit and named in the job's list; this job publishes them after the commit, or the next job after a
  crash.

A source per file would be more informative in queries, but the table has a transaction and a name per source: looking
up 2,000 of them takes 0.75 s at every opening (`python -m benchmarks.spark.ingest`).
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archive.checks import CheckedRecords, FileReadPlan, Options, check_options, plan_reading, read_checked
from archive.delta_inputs import DeltaInput, left_since, messages_of
from archive.ingested import BAD_ROWS, LISTED, QUARANTINE, publish, read_list, tidy, write_list
from archive.inputs import (
    BLOCK_BYTES,
    WHOLE,
    Chunk,
    InputFile,
    InputFormat,
    chunks_of,
    find_files,
    fingerprint,
    is_as_it_was,
    scan_chunk,
)
from archive.layout import (
    DAY_US,
    DataFile,
    Unit,
    file_statistics,
    stored_schema,
    time_name,
    to_stored,
    unit_of,
    write_sorted,
)
from archive.place import Place
from archive.recent import FILES
from archive.sorting import sorted_by, sorting
from archive.table import Table
from matching.batch import EventBatch
from query.errors import DataError, first_line
from query.schema import Schema

#: Limits of records per file and files per stream. Offsets stay below 2^55, so that sequences times the members of a
#: MERGE fit into int64.
_RECORDS, _FILES_MAX = 1 << 32, 1 << 23
_SEQ_BASE = -(1 << 55)
_ATTEMPTS_MAX = 10
#: Bytes of rows in memory before they are spilled to disk for sorting.
_MEMORY_BYTES = 256 << 20
_SORT_MEMORY = "512MB"
_QUARANTINE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """Files to archive in a stream.

    directory: the directory of the stream's table, created if missing. inputs: files, directories (recursive) and
    globs, as paths or URLs. format: None: by suffix. changed: whether a file whose path was archived with other
    contents is an error or is added as another file. max_bad: with more bad rows nothing is archived.
    """

    schema: Schema
    directory: Place
    inputs: tuple[str, ...]
    format: InputFormat | None = None
    options: Options = field(default_factory=Options)
    changed: Literal["error", "add"] = "error"
    max_bad: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a job. step: the current step. done, total: bytes of input in this step, rows when writing. rows,
    bad: good and bad rows so far."""

    step: Literal["look", "read", "write"]
    done: int
    total: int
    rows: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class IngestReport:
    """Result of a job. files: number of newly archived files. known: number of skipped files, which are in the archive
    or twice among the inputs. rows, bad: numbers of archived and of quarantined rows. blank: number of empty records.
    quarantine: the table of bad rows. messages: notes for the user."""

    files: int
    known: int
    rows: int
    bad: int
    blank: int
    quarantine: Place
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Todo:
    """A file to archive. number: its number in the stream. chunks: as found by `scan`."""

    number: int
    reading: FileReadPlan
    fingerprint: str
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Count:
    """Row counts of a file."""

    rows: int
    bad: int
    blank: int

    def __add__(self, other: Count) -> Count:
        return Count(self.rows + other.rows, self.bad + other.bad, self.blank + other.blank)


NONE = Count(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Written:
    """Data and quarantine files to commit, and the counts of each input file by its number."""

    files: list[DataFile]
    quarantined: list[DataFile]
    counts: Mapping[int, Count]


Told = Callable[[Progress], None]
#: Scans all chunks of files.
Scan = Callable[[Sequence[FileReadPlan], Told], list[tuple[Chunk, ...]]]
#: Reads, checks, sorts and writes the rows of files. The last argument is the number of the job.
Write = Callable[[Job, Sequence[Todo], Told, int], Written]


def ingest(job: Job, told: Told = lambda progress: None) -> IngestReport:
    """Archives the new files among the inputs in one commit; in this process, in bounded memory.

    Idempotent, also after a crash. Raises DataError and changes nothing if a file cannot be read or lacks the declared
    columns, if there are too many bad rows, or if the archive cannot be written.
    """
    return run(job, told, scan, write)


def run(job: Job, told: Told, scan: Scan, write: Write) -> IngestReport:
    """Runs `ingest` with the given scan and write steps (Spark)."""
    check_options(job.schema, job.options)
    files, left_out, tables = find_files(job.inputs, job.format, job.directory.options)
    own = f"{job.directory}/"
    files = [file for file in files if not file.path.startswith(own)]
    planned: dict[str, FileReadPlan] = {}
    if not (job.directory / "_delta_log").exists():
        # All files are new: errors in their columns are reported before a table is created.
        planned = {file.path: plan_reading(file, job.schema, job.options) for file in files}
    table = Table.create(job.directory, job.schema)
    quarantine = job.directory / QUARANTINE
    try:
        for _ in range(_ATTEMPTS_MAX):
            mark = table.ingest_mark()
            listed, pending = read_list(job.directory, mark)
            publish(quarantine, mark, pending)
            todo = _choose(job, files, planned, listed, told, scan)
            known = len(files) - len(todo)
            messages = (*messages_of(tables), *_messages(todo, left_out), *_left(job, todo, tables, listed))
            if not todo:
                return IngestReport(0, known, 0, 0, 0, quarantine, messages)
            number = 1 if mark is None else (mark >> 32) + 1
            written = write(job, todo, told, number)
            total = sum(written.counts.values(), NONE)
            if job.max_bad is not None and total.bad > job.max_bad:
                raise too_bad(total.bad, job.max_bad)
            _unchanged(todo)
            next_mark = number << 32 | secrets.randbits(31)
            archived = pa.concat_tables([listed, _listed(todo, written, number)])
            write_list(job.directory, next_mark, archived, written.quarantined)
            if table.ingest(written.files, mark, next_mark) is not None:
                publish(quarantine, next_mark, written.quarantined)
                tidy(job.directory, next_mark)
                return IngestReport(len(todo), known, total.rows, total.bad, total.blank, quarantine, messages)
    except (OSError, duckdb.Error, pa.ArrowException) as error:
        why = first_line(error)
        message = f"the archive of {job.schema.name} in {job.directory} cannot be written: {why}"
        raise DataError(message, "nothing was archived; make room or give permission, and run it again") from error
    raise DataError(f"other jobs were always faster in {job.directory}", "run it again when they have ended")


def format_of(name: str | None) -> InputFormat | None:
    """Returns the format of that name. Raises DataError for an unknown one."""
    try:
        return None if name is None else InputFormat(name)
    except ValueError:
        raise DataError(f"unknown file format {name!r}", f"available: {', '.join(InputFormat)}") from None


def _messages(todo: Sequence[Todo], left_out: int) -> tuple[str, ...]:
    names = dict.fromkeys(name for one in todo for name in one.reading.ignored)
    found = [f"skipped {left_out} file{'s' * (left_out > 1)} with other suffixes"] if left_out else []
    return (*found, *([f"skipped columns that are not declared: {', '.join(names)}"] if names else []))


def _left(job: Job, todo: Sequence[Todo], tables: Sequence[DeltaInput], listed: pa.Table) -> tuple[str, ...]:
    """Returns a note about Delta tables that have deleted or rewritten files which are archived. Raises DataError if
    they have new ones, too: these may have the same rows."""
    found = []
    for table, count in left_since(tables, listed.column("path").to_pylist()):
        new = [one for one in todo if one.reading.file.path in table.partitions]
        files = f"{count:,} archived file{'s' * (count > 1)}"
        message = f"the Delta table {table.root} has deleted or rewritten {files} by version {table.version}"
        if new and job.changed == "error":
            hint = "archive the table in a new stream; if all rows of its new files are new, use --changed add"
            raise DataError(f"{message}: its new files may have rows that are archived", hint)
        found.append(f"{message}; the rows that it no longer has stay in the archive")
    return tuple(found)


def too_bad(bad: int, limit: int, hint: str = "see them with a higher limit") -> DataError:
    """Returns the error for more bad rows than allowed."""
    return DataError(f"{bad:,} rows are bad, more than {limit:,}: nothing was archived", hint)


# ---- which files are new


def _choose(
    job: Job, files: Sequence[InputFile], planned: dict[str, FileReadPlan], listed: pa.Table, told: Told, scan: Scan
) -> list[Todo]:
    """Returns the files to archive: those whose fingerprint is not in the list. planned: path -> reading, extended by
    the files that are opened here."""
    rows = listed.select(["path", "size", "modified_us", "fingerprint"]).to_pylist()
    at_path = {row["path"]: row for row in rows}
    known = {row["fingerprint"] for row in rows}
    unsure = []
    for file in files:
        row = at_path.get(file.path)
        same = row is not None and row["size"] == file.size and row["modified_us"] == file.modified_us != 0
        if not same:
            if file.path not in planned:
                planned[file.path] = plan_reading(file, job.schema, job.options)
            unsure.append(planned[file.path])
    todo: list[Todo] = []
    count = (pc.max(listed.column("number")).as_py() if listed.num_rows else -1) + 1
    for reading, chunks in zip(unsure, scan(unsure, told)):
        file = reading.file
        mark = fingerprint(file.size, [chunk.digest for chunk in chunks])
        if reading.constants:
            mark += "".join(f"/{job.schema.fields[i].name}={text}" for i, text in reading.constants)
        if mark in known:
            continue
        row = at_path.get(file.path)
        if row is not None and job.changed == "error":
            raise DataError(
                f"{file.path} was archived before with different contents",
                "rows in both would be duplicated; if all rows are new, --changed add archives it as another file",
            )
        if count == _FILES_MAX:
            raise DataError(f"stream {job.schema.name} already has {_FILES_MAX:,} files", "merge several input files")
        known.add(mark)
        todo.append(Todo(count, reading, mark, chunks))
        count += 1
    return todo


def _unchanged(todo: Sequence[Todo]) -> None:
    """Raises DataError if a file was changed after it was hashed."""
    for one in todo:
        file = one.reading.file
        if not is_as_it_was(file):
            message = f"{file.path} was changed while it was read: nothing was archived"
            raise DataError(message, "archive only files that are complete")


def scan(readings: Sequence[FileReadPlan], told: Told) -> list[tuple[Chunk, ...]]:
    """Scans all chunks of files in up to four threads: hashing releases the interpreter lock."""
    places = [(r.file, start, end, r.delimiter) for r in readings for start, end in chunks_of(r.file)]
    total = sum(end - start for _, start, end, _ in places)
    done = 0
    found: dict[str, list[Chunk]] = {reading.file.path: [] for reading in readings}
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for (file, start, end, _), chunk in zip(places, pool.map(lambda place: scan_chunk(*place), places)):
            found[file.path].append(chunk)
            done += end - start
            told(Progress("look", done, total))
    return [tuple(found[reading.file.path]) for reading in readings]


def _listed(todo: Sequence[Todo], written: Written, number: int) -> pa.Table:
    """Returns the rows of the list for new files."""
    now_us = time.time_ns() // 1000
    rows = [
        {
            "number": one.number, "path": one.reading.file.path, "size": one.reading.file.size,
            "modified_us": one.reading.file.modified_us, "fingerprint": one.fingerprint,
            "rows": written.counts.get(one.number, NONE).rows, "bad": written.counts.get(one.number, NONE).bad,
            "job": number, "archived_us": now_us,
        }
        for one in todo
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=LISTED)


# ---- rows


def event_rows(checked: CheckedRecords, number: int, schema: Schema) -> pa.Table:
    """Returns the checked rows of a file in stored form, in the order of the file. number: the file's number."""
    n = len(checked.ts_us)
    if n and int(checked.numbers[-1]) >= _RECORDS:
        raise DataError(f"a file has more than {_RECORDS:,} records", "split it")
    offset = checked.numbers + number * _RECORDS
    batch = EventBatch(checked.rows, checked.ts_us, np.zeros(n, np.int32), offset, offset + _SEQ_BASE, (FILES,))
    return to_stored(batch, np.zeros(n, np.bool_), schema)


def bad_rows(checked: CheckedRecords, path: str, job: int) -> pa.Table:
    """Returns the bad rows of a batch as rows of the quarantine, with row numbers from 1."""
    bad = checked.bad
    n = bad.num_rows
    now = pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC"))
    numbers = pa.array(bad.column("record").to_numpy() + 1)
    columns = [pa.repeat(job, n), pa.repeat(now, n), pa.repeat(pa.scalar(path), n), numbers]
    return pa.table([*columns, bad.column("reason"), bad.column("raw")], schema=BAD_ROWS)


def count_of(checked: CheckedRecords) -> Count:
    return Count(len(checked.ts_us), checked.bad.num_rows, checked.blank)


def write_bad(rows: pa.Table, directory: Place) -> DataFile:
    """Writes bad rows into a file of the quarantine, which `publish` makes visible."""
    folder = directory / QUARANTINE
    folder.make()
    path = folder / f"{uuid.uuid4().hex}.parquet"
    pq.write_table(rows, path.key, compression="zstd", filesystem=path.filesystem)
    path.sync()
    folder.sync()
    return DataFile(path.name, path.size(), rows.num_rows, file_statistics(rows))


def write(job: Job, todo: Sequence[Todo], told: Told, number: int) -> Written:
    """Reads, checks, sorts and writes the rows of files in this process."""
    total = sum(one.reading.file.size for one in todo)
    counts: dict[int, Count] = {}
    quarantined: list[DataFile] = []
    held_bad: list[pa.Table] = []
    all_counted = NONE
    done = 0
    spool = _Spool(job.schema)
    try:
        for one in todo:
            file = one.reading.file
            counted = NONE
            for batches, checked in enumerate(read_checked(one.reading, WHOLE, job.schema, job.options), 1):
                counted += count_of(checked)
                if len(checked.ts_us):
                    spool.add(event_rows(checked, one.number, job.schema))
                if checked.bad.num_rows:
                    held_bad.append(bad_rows(checked, file.path, number))
                    if job.max_bad is not None and all_counted.bad + counted.bad > job.max_bad:
                        raise too_bad(all_counted.bad + counted.bad, job.max_bad, "the last: " + _last(held_bad[-1]))
                    if sum(rows.nbytes for rows in held_bad) > _QUARANTINE_BYTES:
                        quarantined.append(write_bad(pa.concat_tables(held_bad), job.directory))
                        held_bad = []
                seen = done + min(batches * BLOCK_BYTES, file.size)
                told(Progress("read", seen, total, all_counted.rows + counted.rows, all_counted.bad + counted.bad))
            counts[one.number] = counted
            all_counted += counted
            done += file.size
            told(Progress("read", done, total, all_counted.rows, all_counted.bad))
        if held_bad:
            quarantined.append(write_bad(pa.concat_tables(held_bad), job.directory))
        files = []
        rows = 0
        for file_written in spool.write(job.directory):
            files.append(file_written)
            rows += file_written.rows
            told(Progress("write", rows, all_counted.rows, all_counted.rows, all_counted.bad))
    finally:
        spool.close()
    return Written(files, quarantined, counts)


def _last(rows: pa.Table) -> str:
    row = rows.slice(rows.num_rows - 1).to_pylist()[0]
    return f"{row['file']}, row {row['row']}: {row['reason']}"


class _Spool:
    """Collects stored rows, in memory up to _MEMORY_BYTES and else on disk, and sorts them at the end."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._folder: Path | None = None
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._files: list[str] = []
        self._rows = 0
        self._days: set[int] = set()

    def add(self, rows: pa.Table) -> None:
        ts_us = rows.column(time_name(self._schema)).combine_chunks().view(pa.int64()).to_numpy()
        self._days.update(np.unique(ts_us // DAY_US).tolist())
        self._held.append(rows)
        self._bytes += rows.nbytes
        self._rows += rows.num_rows
        if self._bytes > _MEMORY_BYTES:
            self._spill()

    def _spill(self) -> None:
        path = self._disk() / f"{len(self._files)}.parquet"
        pq.write_table(pa.concat_tables(self._held), path, compression="lz4", row_group_size=1 << 17)
        self._files.append(str(path))
        self._held, self._bytes = [], 0

    def _disk(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="hybrid-ingest-"))
        return self._folder

    def write(self, directory: Place) -> Iterator[DataFile]:
        """Sorts the rows and yields the files written."""
        if not self._rows:
            return
        unit = unit_of_days(self._days, self._rows)
        with sorting(str(self._disk()), _SORT_MEMORY) as connection:
            if self._files:
                # Spills all rows: DuckDB 2.0 does not spill enough of a union with rows in memory.
                if self._held:
                    self._spill()
                files = ", ".join("'" + name.replace("'", "''") + "'" for name in self._files)
                rows = f"read_parquet([{files}], hive_partitioning=false)"
            else:
                connection.register("held", pa.concat_tables(self._held))
                rows = "held"
            text = f"SELECT * FROM {rows} ORDER BY {sorted_by(self._schema, unit)}"
            stored = stored_schema(self._schema)
            batches = (batch.cast(stored) for batch in connection.sql(text).to_arrow_reader(1 << 16))
            yield from write_sorted(batches, directory, self._schema, unit)

    def close(self) -> None:
        self._held = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def unit_of_days(days: Iterable[int], rows: int) -> Unit:
    """Returns the period to cut so many rows into (layout.unit_of). days: day numbers since 1970."""
    first_us = np.array(sorted(days), np.int64) * DAY_US
    return unit_of(rows, first_us, first_us + DAY_US - 1)
