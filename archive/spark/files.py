"""The executors' part of reading, archiving and rewriting files. Does not import Spark.

Rows have their stored columns. Other results of a task (row counts, written files, errors) are in an additional column
TOLD (archive.spark.told) of rows that are otherwise null. Files of a task that ran twice or of a failed job are never
committed, so no reader sees them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from archive.checks import FileReadPlan, Options, read_checked
from archive.ingest import NONE, Count, bad_rows, count_of, event_rows, write_bad
from archive.inputs import Chunk, InputFile, Part, scan_chunk
from archive.layout import DAY_US, DataFile, Unit, stored_schema, time_name, write_sorted
from archive.place import Place
from archive.spark.told import FailedTask, Loaded, say
from query.errors import DataError, first_line
from query.schema import Schema

TOLD = "__told"
#: Size of files of bad rows.
_BAD_BYTES = 64 << 20
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Scans:
    """Chunks to scan: (file, start, end, delimiter), grouped by task."""

    tasks: tuple[tuple[tuple[InputFile, int, int, str], ...], ...]


@dataclass(frozen=True, slots=True)
class Loads:
    """Parts of files to read and check: (file number, part), grouped by task."""

    schema: Schema
    options: Options
    place: Place
    job: int
    readings: dict[int, FileReadPlan]
    tasks: tuple[tuple[tuple[int, Part], ...], ...]


@dataclass(frozen=True, slots=True)
class Rereads:
    """Data files of a table to read: paths, grouped by task."""

    schema: Schema
    place: Place
    tasks: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Writes:
    """Argument for writing rows sorted by (period, keys, time)."""

    schema: Schema
    place: Place
    unit: Unit


def told_schema(schema: Schema) -> pa.Schema:
    """Returns the stored columns and TOLD."""
    return stored_schema(schema).append(pa.field(TOLD, pa.binary()))


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """Yields the task numbers of a partition: its rows."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _saying(what: object, schema: Schema) -> pa.RecordBatch:
    columns = told_schema(schema)
    nulls = [pa.nulls(1, field.type) for field in columns][:-1]
    return pa.RecordBatch.from_arrays([*nulls, pa.array([say(what)], pa.binary())], schema=columns)


def scan(argument: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Scans chunks; yields a list of Chunk, or FailedTask, per task."""
    wanted: Scans = pickle.loads(argument)
    for number in _numbers(batches):
        found: list[Chunk] | FailedTask
        try:
            found = [scan_chunk(*place) for place in wanted.tasks[number]]
        except DataError as error:
            found = FailedTask(error)
        yield pa.record_batch({"task": [number], TOLD: pa.array([say(found)], pa.binary())})


def load(argument: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads and checks parts of files; yields the good rows, and a Loaded or FailedTask per task. Writes bad rows to
    the quarantine."""
    wanted: Loads = pickle.loads(argument)
    for number in _numbers(batches):
        try:
            yield from _load(wanted, wanted.tasks[number])
        except DataError as error:
            yield _saying(FailedTask(error), wanted.schema)


def _load(wanted: Loads, parts: Sequence[tuple[int, Part]]) -> Iterator[pa.RecordBatch]:
    counts: dict[int, Count] = {}
    days: set[int] = set()
    quarantined: list[DataFile] = []
    held: list[pa.Table] = []
    for number, part in parts:
        reading = wanted.readings[number]
        for checked in read_checked(reading, part, wanted.schema, wanted.options):
            counts[number] = counts.get(number, NONE) + count_of(checked)
            days.update(np.unique(checked.ts_us // DAY_US).tolist())
            if len(checked.ts_us):
                rows = event_rows(checked, number, wanted.schema)
                told = pa.nulls(rows.num_rows, pa.binary())
                yield from rows.append_column(TOLD, told).to_batches(_BATCH_ROWS)
            if checked.bad.num_rows:
                held.append(bad_rows(checked, reading.file.path, wanted.job))
                if sum(rows.nbytes for rows in held) > _BAD_BYTES:
                    quarantined.append(write_bad(pa.concat_tables(held), wanted.place))
                    held = []
    if held:
        quarantined.append(write_bad(pa.concat_tables(held), wanted.place))
    yield _saying(Loaded(counts, tuple(sorted(days)), tuple(quarantined)), wanted.schema)


def reread(argument: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads data files; yields their rows, and a Loaded or FailedTask per task, with counts by the file's index in the
    task."""
    wanted: Rereads = pickle.loads(argument)
    columns = stored_schema(wanted.schema)
    time = time_name(wanted.schema)
    for number in _numbers(batches):
        counts: dict[int, Count] = {}
        days: set[int] = set()
        try:
            for i, path in enumerate(wanted.tasks[number]):
                for batch in _stored_batches(wanted.place / path, columns):
                    counts[i] = counts.get(i, NONE) + Count(batch.num_rows, 0, 0)
                    ts_us = batch.column(time).view(pa.int64()).to_numpy()
                    days.update(np.unique(ts_us // DAY_US).tolist())
                    told = pa.nulls(batch.num_rows, pa.binary())
                    yield pa.RecordBatch.from_arrays([*batch.columns, told], schema=told_schema(wanted.schema))
            yield _saying(Loaded(counts, tuple(sorted(days))), wanted.schema)
        except (pa.ArrowException, OSError) as error:
            message = f"{wanted.place} cannot be read: {first_line(error)}"
            yield _saying(FailedTask(DataError(message, "a file was removed or changed")), wanted.schema)


def _stored_batches(path: Place, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a data file with the current columns; missing ones are null."""
    with path.filesystem.open_input_file(path.key) as source:
        for batch in pq.ParquetFile(source, page_checksum_verification=True).iter_batches(_BATCH_ROWS):
            yield _fitted(batch, columns)


def write(argument: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Writes sorted rows; yields a DataFile per file, or FailedTask."""
    wanted: Writes = pickle.loads(argument)
    columns = stored_schema(wanted.schema)
    fitted = (_fitted(batch, columns) for batch in batches if batch.num_rows)
    found: DataFile | FailedTask
    try:
        for found in write_sorted(fitted, wanted.place, wanted.schema, wanted.unit):
            yield pa.record_batch({TOLD: pa.array([say(found)], pa.binary())})
    except OSError as error:
        message = f"the archive of {wanted.schema.name} in {wanted.place} cannot be written: {error}"
        found = FailedTask(DataError(message, "executors write to it: make room or give permission"))
        yield pa.record_batch({TOLD: pa.array([say(found)], pa.binary())})


def _fitted(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in columns:
        at = batch.schema.get_field_index(field.name)
        array = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
        arrays.append(array if array.type == field.type else array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
