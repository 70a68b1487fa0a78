"""Pattern search by Spark in the files of a stream: partitions rows by key, sorts them, and runs our matchers in tasks.

Spark reads the pruned files (the required columns and the range), shuffles rows of one key into one task, sorts them by
(key, total order), spilling to disk, and passes them on in Arrow batches. `archive.spark.task` matches them in bounded
memory for any number of rows per key. If there is a single or a dominant key and `archive.search.slices` allows it,
rows are cut by time too, so that many tasks share a giant key.

The order of the result across partitions is undefined: use ORDER BY in the outer SELECT.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from archive.layout import LATE, OFFSET, SOURCE, stored_schema, time_name
from archive.place import Place
from archive.reader import RangeRequest
from archive.scan import checked
from archive.search.partitions import ROWS_TOGETHER
from archive.search.slices import SLICE, Slices, reach, slices
from archive.spark.session import functions, ignore_pandas, in_words
from archive.spark.ship import task
from archive.spark.task import COUNT, Search
from archive.spark.told import hear, hear_matches
from archive.spark.types import quoted, spark_type
from archive.sums import FOOTERS
from archive.table_snapshot import TableSnapshot
from matching.batch import Int64Array, Matches
from matching.emitted import matches_of_rows
from matching.engines.choose import choose_engine
from matching.ipc import from_ipc
from matching.matcher import make_matcher
from matching.purpose import Purpose
from matching.trend_rows import grouped
from matching.types import arrow_schema, arrow_type
from matching.window_parts import put_together
from query.errors import DataError, QueryError, first_line
from query.language.ast import Selection
from query.plan.boxes import common_keys
from query.plan.output import output_columns
from query.plan.plan import Plan
from query.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

#: Default rows per task.
TASK_ROWS = 250_000
#: A key with more rows than this many tasks is cut by time, if allowed.
GIANT_TASKS = 4
FAR_US = 1 << 62

__all__ = ["COUNT", "Archived", "counts", "matches", "rows", "why_not"]


@dataclass(frozen=True, slots=True)
class Archived:
    """The events to search: those of a table snapshot in a range. request: the range, and late."""

    place: Place
    table: TableSnapshot
    schema: Schema
    request: RangeRequest


def why_not(plan: Plan) -> str:
    """Returns the part of a plan that Spark cannot do, or an empty string: matchers get rows in the total order, so
    ORDER BY must be a prefix of it."""
    schema = plan.schema
    total = [schema.field(schema.time or ""), *(schema.field(name) for name in schema.order)]
    for i, order in enumerate(plan.order_by):
        known = total[i] if i < len(total) else None
        natural = not order.descending and (i == 0 or order.nulls_first)
        if known is None or known.name != order.column.name or not natural:
            return f"ORDER BY {order}"
    return ""


def rows(
    session: SparkSession, archived: Archived, plan: Plan, *, tasks: int | None = None, sliced: bool | None = None
) -> pa.Table:
    """Returns the output rows of a plan, with the columns of query.plan.output; order across partitions is undefined.

    tasks: number of tasks (None: one per TASK_ROWS, at most spark.sql.shuffle.partitions). sliced: cuts rows by time
    too, if allowed (None: if it pays). Raises DataError and QueryError as the search in one process does, and DataError
    if Spark fails."""
    if plan.trends is not None:
        return _windows(session, archived, plan, tasks, sliced)
    out = arrow_schema(Schema("", output_columns(plan)))
    return _stacked(_search(session, archived, plan, Purpose.ROWS, tasks, sliced), out)


def _windows(
    session: SparkSession, archived: Archived, plan: Plan, tasks: int | None, sliced: bool | None, told: bool = False
) -> pa.Table:
    """Returns the rows of windows, by window, then group. Each task counts its partitions, which are put together here;
    without an engine a task has all partitions of a group."""
    chosen = choose_engine(plan, Purpose.PARTS)
    if chosen.trends is not None:
        parts = _search(session, archived, plan, Purpose.PARTS, tasks, sliced, told)
        return put_together(plan, chosen.trends, [from_ipc(part) for part in parts])
    assert plan.trends is not None
    out = arrow_schema(Schema("", output_columns(plan)))
    found = _stacked(_search(session, archived, plan, Purpose.ROWS, tasks, sliced, told), out).combine_chunks()
    start, *groups = (found.column(i).combine_chunks() for i in (0, *range(2, 2 + len(plan.trends.group_by))))
    return found.take(pa.array(grouped(start.cast(pa.int64()).to_numpy(), groups)[0]))


def matches(
    session: SparkSession, archived: Archived, plan: Plan, *, tasks: int | None = None, sliced: bool | None = None,
    told: bool = False,
) -> list[Matches]:  # fmt: skip
    """Returns matches with their rows and events; parameters as in `rows`. told: the caller has already issued the
    warnings about the kernel's limits."""
    if plan.trends is not None:
        found = _windows(session, archived, plan, tasks, sliced, told)
        nothing = make_matcher(plan, archived.table.sources).advance(None)
        return [matches_of_rows(plan, found, None, nothing)]
    return [hear_matches(part) for part in _search(session, archived, plan, Purpose.MATCHES, tasks, sliced, told)]


def counts(session: SparkSession, archived: Archived, plan: Plan, *, tasks: int | None = None) -> pa.Table:
    """Returns the partition columns and COUNT, one row per partition with a match. For plans whose matches can be
    counted without being built (matching.engines.choose.choose_engine)."""
    fields = [(c.name, arrow_type(c.type)) for c in plan.partition_by]
    out = pa.schema([*fields, (COUNT, pa.int64())])
    return _stacked(_search(session, archived, replace(plan, measures=()), Purpose.COUNTS, tasks, False), out)


def _stacked(parts: Sequence[bytes], out: pa.Schema) -> pa.Table:
    tables = [from_ipc(part).cast(out) for part in parts]
    return pa.concat_tables(tables) if tables else out.empty_table()


# ---- the Spark job ---------------------------------------------------------------------------------------------------


def _search(
    session: SparkSession, archived: Archived, plan: Plan, purpose: Purpose, tasks: int | None, by_time: bool | None,
    told: bool = False,
) -> list[bytes]:  # fmt: skip
    """Returns the payloads of the answer."""
    refused = why_not(plan)
    assert not refused, refused
    if not told:
        make_matcher(plan, lenient=True)  # issues the warnings about the kernel's limits
    table = archived.table
    index = table.select(archived.request.low_us, archived.request.end_us, {})
    if not len(index):
        return []
    plan = narrowed(plan)
    keys = cut_by(plan)
    wanted = Search(plan, table.sources, table.only_source(index), keys, purpose, None, ROWS_TOGETHER)
    frame = _read(session, archived, wanted, [table.paths[i] for i in index])
    if tasks is None:
        tasks_max = int(session.conf.get("spark.sql.shuffle.partitions") or 200)
        tasks = max(1, min(tasks_max, -(-int(table.rows[index].sum()) // TASK_ROWS)))
    cut = _slices(archived, frame, plan, keys, index, tasks, by_time)
    if cut is not None:
        parts, error = _ask(session, archived, frame, replace(wanted, slices=cut), tasks)
        if error is None:
            return parts
        # The error may be an artifact of a slice's edge: search again without slices.
    parts, error = _ask(session, archived, frame, wanted, tasks)
    if error is not None:
        raise error
    return parts


def _slices(
    archived: Archived, frame: DataFrame, plan: Plan, keys: Sequence[str], index: Int64Array, tasks: int,
    by_time: bool | None,
) -> Slices | None:
    """Returns the time slices for the rows of the files at `index`, or None."""
    distance = reach(plan)
    if distance is None or by_time is False or (tasks < 2 and not by_time):
        return None
    low, high = int(archived.table.min_us[index].min()), int(archived.table.max_us[index].max())
    low = low if archived.request.low_us is None else max(low, archived.request.low_us)
    high = high if archived.request.end_us is None else min(high, archived.request.end_us - 1)
    if plan.trends is not None:
        low -= plan.trends.within_us  # the start of no window is before it
    if not -FAR_US < low <= high < FAR_US:  # a file without statistics
        return None
    found = slices(distance, low, high, tasks)
    if by_time or found is None or not keys:
        return found
    with _spark(archived):
        largest = frame.groupBy(*map(quoted, keys)).count().agg({"count": "max"}).collect()[0][0] or 0
    return found if largest > GIANT_TASKS * TASK_ROWS else None


def _ask(
    session: SparkSession, archived: Archived, frame: DataFrame, wanted: Search, tasks: int
) -> tuple[list[bytes], DataError | QueryError | None]:
    """Runs the search in tasks; returns the payloads of the answer, or the error of the first failed task."""
    F, schema = functions(session), wanted.plan.schema
    keys = [_comparable(F, name, schema) for name in wanted.keys]
    if wanted.slices is not None:
        frame = _with_slices(F, frame, schema, wanted)
        keys.insert(0, F.col(SLICE))
    order = [F.col(quoted(time_name(schema))), *(_comparable(F, name, schema) for name in schema.order)]
    order += [F.col(name) for name in (SOURCE, OFFSET) if name in wanted.columns.names]
    cut = frame.repartition(tasks, *keys) if keys else frame.repartition(1)
    in_order = cut.sortWithinPartitions(*(column.asc_nulls_first() for column in (*keys, *order)))
    run = task("archive.spark.task:search", pickle.dumps(wanted))
    with _spark(archived):
        answer = in_order.mapInArrow(run, "failed boolean, payload binary").toArrow()
    failed, payloads = answer.column("failed").to_pylist(), answer.column("payload")
    for fails, payload in zip(failed, payloads):
        if fails:
            error = hear(payload.as_buffer())
            assert isinstance(error, (DataError, QueryError))
            return [], error
    return [payload.as_buffer() for payload in payloads], None


def _read(session: SparkSession, archived: Archived, wanted: Search, paths: Sequence[str]) -> DataFrame:
    """Returns the stored rows of the range, with the columns for the tasks."""
    F, schema = functions(session), wanted.plan.schema
    stored = stored_schema(schema)
    ddl = ", ".join(f"{quoted(field.name)} {spark_type(field.type)}" for field in stored)
    # Only footers are checked here: executors verify the page checksums of what they read.
    index = np.flatnonzero(np.isin(np.array(archived.table.paths, object), np.array(paths, object)))
    checked(archived.place, archived.table, index, schema, FOOTERS)
    with _spark(archived):
        reader = session.read.option("parquet.page.verify-checksum.enabled", "true").schema(ddl)
        frame = reader.parquet(*(spark_path(archived.place / path) for path in paths))
    time = F.col(quoted(time_name(schema)))
    if archived.request.low_us is not None:
        frame = frame.where(time >= F.timestamp_micros(F.lit(archived.request.low_us)))
    if archived.request.end_us is not None:
        frame = frame.where(time < F.timestamp_micros(F.lit(archived.request.end_us)))
    if not archived.request.late:
        frame = frame.where(~F.col(LATE))
    return frame.select(*map(quoted, wanted.columns.names))


def _with_slices(F: Any, frame: DataFrame, schema: Schema, wanted: Search) -> DataFrame:
    """Returns the frame with each row once per slice that gets it."""
    cut, distance = wanted.slices, reach(wanted.plan)
    assert cut is not None
    assert distance is not None
    time = f"unix_micros({quoted(time_name(schema))}) - {cut.start_us}L"
    first = F.expr(f"greatest(0L, {time} - {distance.behind_us}L) div {cut.width_us}L")
    last = F.expr(f"least({cut.count - 1}L, ({time} + {distance.before_us}L) div {cut.width_us}L)")
    return frame.withColumn(SLICE, F.explode(F.sequence(first, last)))


# ---- which columns ---------------------------------------------------------------------------------------------------


def narrowed(plan: Plan) -> Plan:
    """Returns the plan over a schema with only the columns it reads, the time and the tie columns."""
    schema, read = plan.schema, {name.lower() for name in (*plan.columns, plan.schema.time or "", *plan.schema.order)}
    fields = tuple(f for f in schema.fields if f.name.lower() in read)
    return replace(plan, schema=replace(schema, fields=fields, keys=()))


def cut_by(plan: Plan) -> tuple[str, ...]:
    """Returns the partition columns by which Spark partitions rows: those that it hashes and compares as we do. Rows
    equal in these stay together; the matcher separates them by the others. Empty under STRICT, which reads the whole
    stream. Of layers those by which all of them are partitioned: without any, one task gets all rows. Of windows
    without an engine, the columns of GROUP BY: their rows are not put together."""
    columns = plan.partition_by
    if plan.trends is not None:
        columns = columns if choose_engine(plan, Purpose.PARTS).trends is not None else plan.trends.group_by
    elif plan.boxes:
        common = common_keys(plan)
        columns = tuple(c for c in columns if c.name in common)
    elif plan.selection is Selection.STRICT:
        return ()
    stored = stored_schema(plan.schema)
    return tuple(c.name for c in columns if not pa.types.is_nested(stored.field(c.name).type))


def spark_path(place: Place) -> str:
    """Returns a file's path for Spark: with Hadoop's s3a scheme for a store, and with glob characters escaped."""
    root = place.root if place.on_disk else place.root.replace("s3://", "s3a://", 1)
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", root)


def _comparable(F: Any, name: str, schema: Schema) -> SparkColumn:
    """Returns a column that Spark compares as the total order does: maps -0 to 0. NaN last and texts by bytes are the
    same in Spark, and nulls are placed by the caller."""
    field = stored_schema(schema).field(schema.column(name).name)
    column = F.col(quoted(field.name))
    return column + F.lit(0.0) if pa.types.is_floating(field.type) else column


# ---- errors ----------------------------------------------------------------------------------------------------------


@contextmanager
def _spark(archived: Archived) -> Iterator[None]:
    """Context manager that turns errors of Spark into DataError."""
    where = f"the archive of {archived.schema.name} in {archived.place}"
    ignore_pandas()
    with in_words(f"Spark could not search {where}"):
        try:
            yield
        except Exception as error:
            if not re.search(r"PATH_NOT_FOUND|FILE_NOT_EXIST|FileNotFoundException", str(error)):
                raise
            why = f"{where} cannot be read: {first_line(error)}"
            raise DataError(why, "a file was removed, or executors cannot see it") from None
