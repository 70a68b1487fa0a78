"""Files archived by Spark: the same rows in the same places as `archive.ingest` gives, read and written by many.

The driver decides which files are new, as ever. Executors read parts of files (chunks of CSV and NDJSON that can be cut
exactly, row groups of Parquet, else whole files) with the very code that one process uses, so a row has the same offset
whoever reads it. What they have read is kept by Spark, cut by range of (period, keys, time), sorted, and written by our
own writer in the executors; the driver commits once. Refused: Spark's own readers of CSV and JSON, which number no rows
and mean something else by some texts; and its own writer, whose statistics and row groups are not ours.
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
from archive.checks import Reading
from archive.ingest import NONE, Count, Job, Progress, Report, Todo, Told, Written, unit_of_days
from archive.inputs import CHUNK_BYTES, Chunk, Format, Part, chunks_of, parts_of, row_groups
from archive.layout import DAY_US, FILE_ROWS_MAX, SEQ, DataFile, Unit, key_names, stored_schema, time_name
from archive.place import Place
from archive.spark.files import TOLD, Loads, Scans, Writes, told_schema
from archive.spark.session import Where, functions, ignore_pandas, in_words, is_connect, spark_session
from archive.spark.ship import task
from archive.spark.told import Failed, Loaded, hear
from archive.spark.types import quoted, spark_type
from query.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Files of fewer bytes altogether are looked at by the driver itself.
_SCAN_HERE_BYTES = 4 * CHUNK_BYTES
#: Row groups of Parquet are read together up to so many rows.
_PART_ROWS = 1 << 20
#: More tasks than this are put together: each costs Spark some milliseconds.
_TASKS_MAX = 4096


def ingest(where: Where, job: Job, told: Told = lambda progress: None) -> Report:
    """`archive.ingest.ingest` by Spark. where: as in archive.spark.session. The executors must see the files and the
    archive under the paths that the driver uses.

    Raises DataError as one process does, and where Spark fails."""
    session = spark_session(where)
    ignore_pandas()
    return embedded.run(job, told, partial(_scan, session), partial(_write, session))


# In words here, not around the job: a connection that Java no longer takes is an OSError, and embedded.run would say of
# it that the archive cannot be written.
@in_words("Spark has failed", "nothing has changed")
def _scan(session: SparkSession, readings: Sequence[Reading], told: Told) -> list[tuple[Chunk, ...]]:
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
    return row_groups(file, _PART_ROWS) if file.format is Format.parquet else parts_of(file, one.chunks)


def packed(items: Sequence[Any], sizes: Sequence[int]) -> tuple[tuple[Any, ...], ...]:
    """Items put together, in order, into tasks of about CHUNK_BYTES."""
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
    """Runs so many tasks that read rows, and writes what they give as files of the table, which no commit names yet.

    check: told what was read before anything is written; what it raises is raised."""
    from pyspark.storagelevel import StorageLevel

    F = functions(session)
    columns = ", ".join(f"{quoted(f.name)} {spark_type(f.type)}" for f in told_schema(schema))
    rows = numbered(session, tasks).mapInArrow(task(*reads), columns)
    # In memory, the rows of a large job take the heap from the sort behind: with 1 GB Java died of 50 million.
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
        with suppress(Exception):  # where Spark has ended there is nothing to let go of, and why is on its way
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
    """To be sorted by: what is equal for times of one period, and grows with it, whatever the session's time zone."""
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
    """A row for each task, with its number, each in a partition of its own."""
    return session.range(0, tasks, 1, tasks)


def heard(answer: pa.Table) -> list[Any]:
    """What tasks have said. Raises what one of them has failed of."""
    found = [hear(payload.as_buffer()) for payload in answer.column(TOLD)]
    for one in found:
        if isinstance(one, Failed):
            raise one.error
    return found


@contextmanager
def shown(session: SparkSession, told: Told, step: Any, total: int, count: Count = NONE) -> Iterator[None]:
    """Tells how far Spark is, by the tasks of the stages that run; nothing in between by Spark Connect."""
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
        except Exception:  # noqa: BLE001  (Spark has ended; whoever waits for the answer says so)
            return
        tasks = sum(stage.numTasks for stage in stages if stage is not None)
        done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
        if tasks:
            told(Progress(step, total * done // tasks, total, count.rows, count.bad))
