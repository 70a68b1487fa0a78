"""Pattern search by Spark in the files of streams: partitions rows by key, sorts them, and runs our matchers in tasks.

Spark reads the pruned files (the required columns and the range), shuffles rows of one key into one task, sorts them by
(key, total order), spilling to disk, and passes them on in Arrow batches. `archive.spark.task` matches them in bounded
memory for any number of rows per key. If there is a single or a dominant key and `archive.search.slices` allows it,
rows are cut by time too, so that many tasks share a giant key.

The order of the result across partitions is undefined: use ORDER BY in the outer SELECT.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from archive.layout import OFFSET, SOURCE, stored_schema, time_name
from archive.search.partitions import ROWS_TOGETHER
from archive.search.slices import SLICE, Slices, reach, slices
from archive.spark.read import (
    Archived,
    Archives,
    MergedArchives,
    SelectedFiles,
    in_words_of,
    read_files,
    selected_files,
    sources_of,
)
from archive.spark.session import functions
from archive.spark.ship import task
from archive.spark.task import COUNT, Search, UnevenKey
from archive.spark.told import hear, hear_matches
from archive.spark.types import quoted
from matching.batch import Matches
from matching.emitted import matches_of_rows
from matching.engines.choose import choose_engine
from matching.ipc import from_ipc
from matching.matcher import make_matcher
from matching.purpose import Purpose
from matching.trend_rows import grouped
from matching.types import arrow_schema, arrow_type
from matching.window_parts import put_together
from query.errors import DataError, QueryError
from query.language.ast import Selection
from query.plan.boxes import common_keys
from query.plan.output import output_columns
from query.plan.plan import Plan
from query.schema import STREAM, Field, Schema

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame, SparkSession

#: Default rows per task.
TASK_ROWS = 250_000
#: A key with more rows than this many tasks is cut by time, if allowed.
GIANT_TASKS = 4
FAR_US = 1 << 62
#: Prefix of columns that hold the values of a key with uneven types.
UNEVEN = "__hybrid_key"
_SIGNED = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
INTEGERS = {*_SIGNED, *(f"U{name}" for name in _SIGNED), "HUGEINT"}

__all__ = ["COUNT", "Archived", "MergedArchives", "counts", "matches", "rows", "why_not"]


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
    session: SparkSession, archives: Archives, plan: Plan, *, tasks: int | None = None, sliced: bool | None = None
) -> pa.Table:
    """Returns the output rows of a plan, with the columns of query.plan.output; order across partitions is undefined.

    tasks: number of tasks (None: one per TASK_ROWS, at most spark.sql.shuffle.partitions). sliced: cuts rows by time
    too, if allowed (None: if it pays). Raises DataError and QueryError as the search in one process does, and DataError
    if Spark fails."""
    if plan.trends is not None:
        return _windows(session, archives, plan, tasks, sliced)
    out = arrow_schema(Schema("", output_columns(plan)))
    return _stacked(_search(session, archives, plan, Purpose.ROWS, tasks, sliced), out)


def _windows(
    session: SparkSession, archives: Archives, plan: Plan, tasks: int | None, sliced: bool | None, told: bool = False
) -> pa.Table:
    """Returns the rows of windows, by window, then group. Each task counts its partitions, which are put together here;
    without an engine a task has all partitions of a group."""
    chosen = choose_engine(plan, Purpose.PARTS)
    if chosen.trends is not None:
        parts = _search(session, archives, plan, Purpose.PARTS, tasks, sliced, told)
        return put_together(plan, chosen.trends, [from_ipc(part) for part in parts])
    assert plan.trends is not None
    out = arrow_schema(Schema("", output_columns(plan)))
    found = _stacked(_search(session, archives, plan, Purpose.ROWS, tasks, sliced, told), out).combine_chunks()
    start, *groups = (found.column(i).combine_chunks() for i in (0, *range(2, 2 + len(plan.trends.group_by))))
    return found.take(pa.array(grouped(start.cast(pa.int64()).to_numpy(), groups)[0]))


def matches(
    session: SparkSession, archives: Archives, plan: Plan, *, tasks: int | None = None, sliced: bool | None = None,
    told: bool = False,
) -> list[Matches]:  # fmt: skip
    """Returns matches with their rows and events; parameters as in `rows`. told: the caller has already issued the
    warnings about the kernel's limits."""
    if plan.trends is not None:
        found = _windows(session, archives, plan, tasks, sliced, told)
        nothing = make_matcher(plan, sources_of(archives)).advance(None)
        return [matches_of_rows(plan, found, None, nothing)]
    return [hear_matches(part) for part in _search(session, archives, plan, Purpose.MATCHES, tasks, sliced, told)]


def counts(session: SparkSession, archives: Archives, plan: Plan, *, tasks: int | None = None) -> pa.Table:
    """Returns the partition columns and COUNT, one row per partition with a match. For plans whose matches can be
    counted without being built (matching.engines.choose.choose_engine)."""
    fields = [(c.name, arrow_type(c.type)) for c in plan.partition_by]
    out = pa.schema([*fields, (COUNT, pa.int64())])
    return _stacked(_search(session, archives, replace(plan, measures=()), Purpose.COUNTS, tasks, False), out)


def _stacked(parts: Sequence[bytes], out: pa.Schema) -> pa.Table:
    tables = [from_ipc(part).cast(out) for part in parts]
    return pa.concat_tables(tables) if tables else out.empty_table()


# ---- the Spark job ---------------------------------------------------------------------------------------------------


def _search(
    session: SparkSession, archives: Archives, plan: Plan, purpose: Purpose, tasks: int | None, by_time: bool | None,
    told: bool = False,
) -> list[bytes]:  # fmt: skip
    """Returns the payloads of the answer."""
    refused = why_not(plan)
    assert not refused, refused
    if not told:
        make_matcher(plan, lenient=True)  # issues the warnings about the kernel's limits
    files = selected_files(archives)
    if not files:
        return []
    wanted = asked(archives, files, plan, purpose)
    frame = read_files(session, archives, files, wanted)
    if tasks is None:
        tasks_max = int(session.conf.get("spark.sql.shuffle.partitions") or 200)
        count = sum(int(one.archived.table.rows[one.files].sum()) for one in files)
        tasks = max(1, min(tasks_max, -(-count // TASK_ROWS)))
    cut = _slices(archives, files, frame, wanted, tasks, by_time)
    if cut is not None:
        parts, error = _ask(session, archives, frame, replace(wanted, slices=cut), tasks)
        if error is None:
            return parts
        # The error may be an artifact of a slice's edge: search again without slices.
    parts, error = _ask(session, archives, frame, wanted, tasks)
    if error is not None:
        raise error
    return parts


def asked(archives: Archives, files: Sequence[SelectedFiles], plan: Plan, purpose: Purpose) -> Search:
    """Returns what tasks are asked for, not cut by time."""
    sources = sources_of(archives)
    if plan.reads is not None:
        assert isinstance(archives, MergedArchives)
        keys, uneven = keys_of_layers(plan, archives.schema)
        unread = unread_by_layers(plan, archives.schema)
        return Search(plan, sources, None, keys, purpose, None, ROWS_TOGETHER, archives.schema, unread, uneven)
    source = files[0].archived.table.only_source(files[0].files) if isinstance(archives, Archived) else None
    plan = narrowed(plan)
    return Search(plan, sources, source, cut_by(plan), purpose, None, ROWS_TOGETHER)


def _slices(
    archives: Archives, files: Sequence[SelectedFiles], frame: DataFrame, wanted: Search, tasks: int,
    by_time: bool | None,
) -> Slices | None:  # fmt: skip
    """Returns the time slices for the rows of the files, or None."""
    plan, keys, distance = wanted.plan, wanted.keys, reach(wanted.plan)
    if distance is None or by_time is False or (tasks < 2 and not by_time):
        return None
    spans = []
    for archived, index, _ in files:
        low, high = int(archived.table.min_us[index].min()), int(archived.table.max_us[index].max())
        request = archived.request
        low = low if request.low_us is None else max(low, request.low_us)
        spans.append((low, high if request.end_us is None else min(high, request.end_us - 1)))
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    if plan.trends is not None:
        low -= plan.trends.within_us  # the start of no window is before it
    if not -FAR_US < low <= high < FAR_US:  # a file without statistics
        return None
    found = slices(distance, low, high, tasks)
    if by_time or found is None or not keys:
        return found
    with in_words_of(archives):
        largest = frame.groupBy(*map(quoted, keys)).count().agg({"count": "max"}).collect()[0][0] or 0
    return found if largest > GIANT_TASKS * TASK_ROWS else None


def _ask(
    session: SparkSession, archives: Archives, frame: DataFrame, wanted: Search, tasks: int
) -> tuple[list[bytes], DataError | QueryError | None]:
    """Runs the search in tasks; returns the payloads of the answer, or the error of the first failed task."""
    F, schema = functions(session), wanted.over
    keys = [_comparable(F, name, schema) for name in wanted.keys]
    if wanted.slices is not None:
        frame = _with_slices(F, frame, schema, wanted)
        keys.insert(0, F.col(SLICE))
    order = [F.col(quoted(time_name(schema))), *(_comparable(F, name, schema) for name in schema.order)]
    order += [F.col(name) for name in (SOURCE, OFFSET) if name in wanted.columns.names]
    cut = frame.repartition(tasks, *keys) if keys else frame.repartition(1)
    in_order = cut.sortWithinPartitions(*(column.asc_nulls_first() for column in (*keys, *order)))
    in_order = in_order.toDF(*(f"c{i}" for i in range(len(in_order.columns))))  # mapInArrow takes no name with a dot
    run = task("archive.spark.task:search", pickle.dumps(wanted))
    with in_words_of(archives):
        answer = in_order.mapInArrow(run, "failed boolean, payload binary").toArrow()
    failed, payloads = answer.column("failed").to_pylist(), answer.column("payload")
    for fails, payload in zip(failed, payloads):
        if fails:
            error = hear(payload.as_buffer())
            assert isinstance(error, (DataError, QueryError))
            return [], error
    return [payload.as_buffer() for payload in payloads], None


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


def keys_of_layers(plan: Plan, merged: Schema) -> tuple[tuple[str, ...], tuple[UnevenKey, ...]]:
    """Returns `cut_by` where the layers of a hierarchy read several streams: merged columns, and columns that are made
    of several: a column of PARTITION BY may have one type of whole numbers in one stream and another one in the next.
    One of other uneven types does not partition rows."""
    stored, keys, uneven = stored_schema(merged), list[str](), list[UnevenKey]()
    for key in common_keys(plan):
        at: dict[str, set[str | None]] = {}
        for layer in layers_of(plan):
            assert layer.reads is not None
            index = layer.schema.names.index(layer.schema.column(key).name)
            for stream, name in zip(layer.reads.streams, layer.reads.columns[index], strict=True):
                at.setdefault(stream, set()).add(name)
        names = list(dict.fromkeys(name for of in at.values() for name in of if name is not None))
        if any(len(of) > 1 for of in at.values()) or pa.types.is_nested(stored.field(names[0]).type):
            continue
        if len(names) == 1:
            keys.append(names[0])
        elif all(merged.column(name).type in INTEGERS for name in names):
            wide = any(not pa.types.is_integer(stored.field(name).type) for name in names)
            field = Field(f"{UNEVEN}{len(uneven)}", "HUGEINT" if wide else "BIGINT")
            uneven.append((field, tuple(names)))
            keys.append(field.name)
    return tuple(keys), tuple(uneven)


def unread_by_layers(plan: Plan, merged: Schema) -> tuple[str, ...]:
    """Returns the merged columns that no layer reads."""
    read = {STREAM, merged.time, *merged.order}
    for layer in layers_of(plan):
        assert layer.reads is not None
        columns = zip(layer.schema.names, layer.reads.columns, strict=True)
        read |= {name for column, at in columns if column in layer.columns for name in at}
    return tuple(name for name in merged.names if name not in read)


def layers_of(plan: Plan) -> Iterator[Plan]:
    """Yields the patterns of a hierarchy; one that several boxes have, several times."""
    yield plan
    for box in plan.boxes:
        yield from layers_of(box.plan)


def _comparable(F: Any, name: str, schema: Schema) -> SparkColumn:
    """Returns a column that Spark compares as the total order does: maps -0 to 0. NaN last and texts by bytes are the
    same in Spark, and nulls are placed by the caller."""
    field = stored_schema(schema).field(schema.column(name).name)
    column = F.col(quoted(field.name))
    return column + F.lit(0.0) if pa.types.is_floating(field.type) else column
