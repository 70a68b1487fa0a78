"""Bulk archiving by Spark: the same rows in the same order as `archive.ingest`, read and written in parallel.

The driver decides which files are new. Executors read parts of files (chunks of CSV and NDJSON that can be cut exactly,
row groups of Parquet, else whole files) with the code of `archive.ingest`, so a row has the same offset in both. Spark
stores the rows, partitions them by range of (period, keys, time) and sorts them; our writer writes the files in the
executors; the driver commits once. Refused: Spark's readers of CSV and JSON, which do not number rows and read some
texts differently; and its writer, whose statistics and row groups differ from ours.
"""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
import pyarrow as pa

from archive import ingest as embedded
from archive.checks import FileReadPlan
from archive.ingest import NONE, Count, IngestReport, Job, Progress, Todo, Told, Written, unit_of_days
from archive.inputs import CHUNK_BYTES, Chunk, InputFormat, Part, chunks_of, parts_of, row_groups
from archive.layout import DAY_US, FILE_ROWS_MAX, SEQ, DataFile, Unit, key_names, stored_schema, time_name
from archive.place import Place
from archive.spark.files import TOLD, Loads, Scans, Writes, told_schema
from archive.spark.session import Where, functions, ignore_pandas, in_words, is_connect, spark_session
from archive.spark.ship import task
from archive.spark.told import FailedTask, Loaded, hear
from archive.spark.types import quoted, spark_type
from query.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The driver itself scans files with fewer bytes in total.
_SCAN_HERE_BYTES = 4 * CHUNK_BYTES
#: Rows of Parquet row groups that are read together.
_PART_ROWS = 1 << 20
#: Limit of tasks, each of which costs Spark some milliseconds.
_TASKS_MAX = 4096


def ingest(where: Where, job: Job, told: Told = lambda progress: None) -> IngestReport:
    """Runs `archive.ingest.ingest` by Spark. where: as in archive.spark.session. Executors must see the files and the
    archive under the same paths as the driver.

    Raises DataError as `archive.ingest.ingest` does, and if Spark fails."""
    session = spark_session(where)
    ignore_pandas()
    return embedded.run(job, told, partial(_scan, session), partial(_write, session))


# Converted here, not around the job: a refused connection to Java is an OSError, which embedded.run would report as an
# archive that cannot be written.
@in_words("Spark has failed", "nothing has changed")
def _scan(session: SparkSession, readings: Sequence[FileReadPlan], told: Told) -> list[tuple[Chunk, ...]]:
    places = [(r.file, start, end, r.delimiter) for r in readings for start, end in chunks_of(r.file)]
    sizes = [end - start for _, start, end, _ in places]
    total = sum(sizes)
    if total < _SCAN_HERE_BYTES:
        return embedded.scan(readings, told)
    tasks = packed(places, sizes)
    with shown(session, told, "look", total):
        frame = numbered(session, len(tasks)).mapInArrow(
            task("archive.spark.files:scan", pickle.dumps(Scans(tasks))), f"task bigint, {TOLD} binary"
        )
        answer = frame.toArrow()
    in_order = answer.take(np.argsort(answer.column("task").to_numpy(), kind="stable"))
    chunks = iter([chunk for found in heard(in_order) for chunk in found])
    return [tuple(next(chunks) for _ in chunks_of(reading.file)) for reading in readings]


@in_words("Spark has failed", "nothing has changed")
def _write(session: SparkSession, job: Job, todo: Sequence[Todo], told: Told, number: int) -> Written:
    parts = [(one.number, part) for one in todo for part in _parts(one)]
    shares = Counter(n for n, _ in parts)
    sizes = {one.number: one.reading.file.size // max(1, shares[one.number]) for one in todo}
    tasks = packed(parts, [sizes[n] for n, _ in parts])
    readings = {one.number: one.reading for one in todo}
    loads = Loads(job.schema, job.options, job.directory, number, readings, tasks)
    total = sum(one.reading.file.size for one in todo)

    def check(found: list[Loaded]) -> None:
        bad = sum(count.bad for loaded in found for count in loaded.counts.values())
        if job.max_bad is not None and bad > job.max_bad:
            raise embedded.too_bad(bad, job.max_bad)

    argument = ("archive.spark.files:load", pickle.dumps(loads))
    files, found = laid_out(session, job.schema, job.directory, argument, len(tasks), told, total, check)
    counts = {one.number: NONE for one in todo}
    for loaded in found:
        for n, count in loaded.counts.items():
            counts[n] += count
    return Written(files, [file for loaded in found for file in loaded.quarantined], counts)


def _parts(one: Todo) -> list[Part]:
    file = one.reading.file
    return row_groups(file, _PART_ROWS) if file.format is InputFormat.parquet else parts_of(file, one.chunks)


def packed(items: Sequence[Any], sizes: Sequence[int]) -> tuple[tuple[Any, ...], ...]:
    """Groups items, in order, into tasks of about CHUNK_BYTES."""
    limit = max(CHUNK_BYTES, sum(sizes) // _TASKS_MAX)
    tasks: list[list[Any]] = []
    room = 0
    for item, size in zip(items, sizes):
        if not tasks or size > room:
            tasks.append([])
            room = limit
        tasks[-1].append(item)
        room -= size
    return tuple(map(tuple, tasks))


def laid_out(
    session: SparkSession, schema: Schema, place: Place, reads: tuple[str, bytes], tasks: int, told: Told, total: int,
    check: Callable[[list[Loaded]], None] = lambda found: None,
) -> tuple[list[DataFile], list[Loaded]]:
    """Runs tasks that read rows, and writes the rows as uncommitted files of the table; returns these and the results
    of the tasks.

    reads: function and argument of the tasks. tasks: their number. check: called with the results before anything is
    written; may raise."""
    from pyspark.storagelevel import StorageLevel

    F = functions(session)
    columns = ", ".join(f"{quoted(f.name)} {spark_type(f.type)}" for f in told_schema(schema))
    rows = numbered(session, tasks).mapInArrow(task(*reads), columns)
    # Rows in memory would take the heap from the sort that follows: Java with 1 GB died of 50 million rows.
    rows.persist(StorageLevel.DISK_ONLY)
    try:
        with shown(session, told, "read", total):
            found: list[Loaded] = heard(rows.where(F.col(TOLD).isNotNull()).select(TOLD).toArrow())
        check(found)
        count = sum((count for loaded in found for count in loaded.counts.values()), NONE)
        if not count.rows:
            return [], found
        unit = unit_of_days({day for loaded in found for day in loaded.days}, count.rows)
        good = rows.where(F.col(TOLD).isNull()).drop(TOLD)
        with shown(session, told, "write", total, count):
            return heard(_written(session, good, schema, place, unit, count.rows).toArrow()), found
    finally:
        with suppress(Exception):  # nothing to release if Spark has ended; that error is raised already
            rows.unpersist()


def _written(session: SparkSession, rows: DataFrame, schema: Schema, place: Place, unit: Unit, count: int) -> DataFrame:
    F = functions(session)
    time = quoted(time_name(schema))
    order = [F.expr(text).asc() for text in _period(time, unit)]
    order += [*(F.col(quoted(key)).asc_nulls_last() for key in key_names(schema)), F.col(time).asc()]
    tasks = -(-count // FILE_ROWS_MAX)
    cut = rows.repartitionByRange(tasks, *order) if tasks > 1 else rows.coalesce(1)
    in_order = cut.sortWithinPartitions(*order, F.col(SEQ).asc())
    run = task("archive.spark.files:write", pickle.dumps(Writes(schema, place, unit)))
    return in_order.select(*(F.col(quoted(name)) for name in stored_schema(schema).names)).mapInArrow(
        run, f"{TOLD} binary"
    )


def _period(time: str, unit: Unit) -> list[str]:
    """Returns SQL sort expressions that are equal within a period and ascend with it, in any session time zone."""
    match unit:
        case "all":
            return []
        case "h" | "D":
            width_us = DAY_US if unit == "D" else DAY_US // 24
            return [f"unix_micros({time}) - pmod(unix_micros({time}), {width_us}L)"]
        case "M" | "Y":
            days = f"(unix_micros({time}) - pmod(unix_micros({time}), {DAY_US}L)) div {DAY_US}L"
            return [f"trunc(date_add(DATE '1970-01-01', CAST({days} AS INT)), '{unit * 2}')"]
        case _:
            assert_never(unit)


# ---- Spark


def numbered(session: SparkSession, tasks: int) -> DataFrame:
    """Returns a row with the number of each task, each in a separate partition."""
    return session.range(0, tasks, 1, tasks)


def heard(answer: pa.Table) -> list[Any]:
    """Returns the results of tasks. Raises the error of the first failed one."""
    found = [hear(payload.as_buffer()) for payload in answer.column(TOLD)]
    for one in found:
        if isinstance(one, FailedTask):
            raise one.error
    return found


@contextmanager
def shown(session: SparkSession, told: Told, step: Any, total: int, count: Count = NONE) -> Iterator[None]:
    """Context manager that reports progress by the tasks of Spark's running stages; with Spark Connect only begin and
    end."""
    told(Progress(step, 0, total, count.rows, count.bad))
    over = threading.Event()
    watcher = None
    if not is_connect(session):
        watcher = threading.Thread(target=_watch, args=(session, told, step, total, count, over), daemon=True)
        watcher.start()
    try:
        yield
        over.set()
        if watcher is not None:
            watcher.join()
        told(Progress(step, total, total, count.rows, count.bad))
    finally:
        over.set()


def _watch(
    session: SparkSession, told: Told, step: Any, total: int, count: Count, over: threading.Event
) -> None:
    tracker = session.sparkContext.statusTracker()
    while not over.wait(1):
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001  (Spark has ended, which the main thread reports)
            return
        tasks = sum(stage.numTasks for stage in stages if stage is not None)
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if tasks:
            told(Progress(step, total * done // tasks, total, count.rows, count.bad))
