"""The executor's part of a search: runs rows of Spark's Arrow batches, by partition, through matchers. Does not import
Spark.

Returns one row per part of the answer: `failed`, and `payload` (archive.spark.told), which is opaque to Spark. So all
types and errors of a query are preserved exactly.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from archive.layout import LATE, OFFSET, SEQ, SOURCE, from_stored_rows, stored_schema, time_name
from archive.search.partitions import inputs
from archive.search.slices import SLICE, Slices, own, own_rows, sliced
from archive.spark.told import say, say_matches
from matching.batch import EventBatch, Matches
from matching.drive import run
from matching.emitted import only
from matching.ipc import to_ipc
from matching.purpose import Purpose
from matching.types import arrow_schema
from matching.window_parts import WINDOW
from query.errors import DataError, HybridWarning, QueryError
from query.plan.plan import Plan
from query.schema import Field, Schema

#: Columns of the result of a task.
ANSWER = pa.schema([("failed", pa.bool_()), ("payload", pa.binary())])
#: Approximate size of the payload of one row.
PART_BYTES = 8 << 20


#: The last column of a Purpose.COUNTS answer.
COUNT = "__hybrid_count"


#: A partition column made of several, of which each row has at most one, and these.
UnevenKey: TypeAlias = tuple[Field, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Search:
    """Argument of a task. plan: over the columns that are read. sources: all sources of the rows. source: the source of
    all rows, if known. keys: the columns that partition the rows. slices: time slices, which partition them too; the
    rows then have the column SLICE. rows_together: see archive.search.partitions. merged: the columns of the matcher's
    events if they are more than those of the plan; unread: those of them that nothing reads, null there. uneven: keys
    that are columns of the rows beside these."""

    plan: Plan
    sources: tuple[str, ...]
    source: str | None
    keys: tuple[str, ...]
    purpose: Purpose
    slices: Slices | None
    rows_together: int
    merged: Schema | None = None
    unread: tuple[str, ...] = ()
    uneven: tuple[UnevenKey, ...] = ()

    @property
    def schema(self) -> Schema:
        """The columns of the matcher's events."""
        return self.plan.schema if self.merged is None else self.merged

    @property
    def over(self) -> Schema:
        """These columns behind the uneven keys."""
        return replace(self.schema, fields=(*(field for field, _ in self.uneven), *self.schema.fields))

    @property
    def columns(self) -> pa.Schema:
        """The stored columns of the task's rows, without SLICE: the declared ones, and the hidden ones required by the
        order or the answer."""
        left_out = {LATE, *([SOURCE] if self.source is not None else []), *([] if self.with_events else [SEQ])}
        left_out.update(self.unread)
        return pa.schema([field for field in stored_schema(self.over) if field.name not in left_out])

    @property
    def with_events(self) -> bool:
        return self.purpose is Purpose.MATCHES


def search(argument: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs a pickled Search over rows sorted by (slice, keys, total order), whose columns are those of
    Search.columns, then SLICE if they have it, whatever their names. An error of the query or the data is the
    last part of the answer: if it were raised, Spark would retry the task and wrap the error."""
    wanted: Search = pickle.loads(argument)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)  # the driver has issued it
        try:
            for payload in _payloads(wanted, batches):
                yield _part(False, payload)
        except (DataError, QueryError) as error:
            yield _part(True, say(error))


def _part(failed: bool, payload: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([failed]), pa.array([payload], pa.binary())], schema=ANSWER)


def _payloads(wanted: Search, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    from matching.matcher import make_matcher

    if wanted.purpose is Purpose.COUNTS:
        yield from map(to_ipc, _counts(wanted, batches))
        return
    plan = wanted.plan if wanted.slices is None else sliced(wanted.plan)
    if plan.trends is not None:
        for rows in _inputs(wanted, batches):
            for found in run(make_matcher(plan, wanted.sources, purpose=wanted.purpose), rows):
                yield from map(to_ipc, _cut(_own_windows(wanted, found.rows)))
        return
    # of a slice the events say which matches are its own
    purpose = wanted.purpose if wanted.slices is None else Purpose.MATCHES
    for rows in _inputs(wanted, batches):
        for found in run(make_matcher(plan, wanted.sources, purpose=purpose), rows):
            kept = found if wanted.slices is None else own(found, wanted.slices)
            if wanted.with_events:
                yield from map(say_matches, _cut_matches(kept))
            else:
                yield from map(to_ipc, _cut(kept.rows))


def _own_windows(wanted: Search, rows: pa.Table) -> pa.Table:
    """Returns rows of windows, or parts of them, without those of other slices."""
    trends, cut = wanted.plan.trends, wanted.slices
    assert trends is not None
    if cut is None:
        return rows
    if wanted.purpose is Purpose.PARTS:
        start_us = rows.column(WINDOW).to_numpy() * trends.slide_us
        return own_rows(rows, f"g{len(trends.group_by)}", start_us, cut)
    return own_rows(rows, SLICE, rows.column(0).cast(pa.int64()).to_numpy(), cut)


def _counts(wanted: Search, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yields tables of partition columns and COUNT, one row per partition with a match."""
    from matching.engines.choose import choose_engine
    from matching.matcher import KernelMatcher

    chosen = choose_engine(wanted.plan, wanted.purpose)
    names = [*(c.name for c in wanted.plan.partition_by), COUNT]
    for rows in _inputs(wanted, batches):
        counting = KernelMatcher(wanted.plan, chosen, wanted.sources)
        for _ in run(counting, rows):
            pass
        keys, totals = counting.counts()
        if len(totals):
            yield pa.table([*keys, pa.array(totals)], names=names)


def _inputs(wanted: Search, batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[EventBatch]]:
    """Yields the rows as inputs of matchers."""
    schema = wanted.over
    stored, declared, time = wanted.columns, arrow_schema(schema), time_name(schema)
    nulls = [field for field in stored_schema(schema) if field.name in wanted.unread]

    names = [*stored.names, *([] if wanted.slices is None else [SLICE])]

    def events(batch: pa.RecordBatch) -> EventBatch:
        batch = batch.rename_columns(names)
        # The types may differ in the session's time zone and in the names of list items.
        rows = pa.Table.from_batches([batch.select(stored.names)]).cast(stored)
        if not wanted.with_events:
            rows = rows.append_column(SEQ, rows.column(OFFSET))  # a placeholder: not part of the answer
        for field in nulls:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        found = from_stored_rows(rows, declared, time, wanted.sources, wanted.source)
        if wanted.slices is None:
            return found
        columns = [batch.column(SLICE), *found.columns.columns]
        return replace(found, columns=pa.RecordBatch.from_arrays(columns, names=[SLICE, *declared.names]))

    by = wanted.keys if wanted.slices is None else (SLICE, *wanted.keys)
    over = schema if wanted.slices is None else sliced(wanted.plan).schema
    found = inputs((events(batch) for batch in batches if batch.num_rows), over, by, wanted.rows_together)
    return found if not wanted.uneven else (map(partial(_without, len(wanted.uneven)), rows) for rows in found)


def _without(n: int, batch: EventBatch) -> EventBatch:
    """Returns events without their first n columns."""
    return replace(batch, columns=batch.columns.select(batch.columns.schema.names[n:]))


def _cut(rows: pa.Table) -> Iterator[pa.Table]:
    """Yields parts of about PART_BYTES."""
    step = max(1, rows.num_rows * PART_BYTES // max(1, rows.nbytes))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _cut_matches(found: Matches) -> Iterator[Matches]:
    """Yields parts of about PART_BYTES with whole matches."""
    size = found.rows.nbytes + 32 * len(found.event_seq)
    step = max(1, len(found) * PART_BYTES // max(1, size))
    for start in range(0, len(found), step):
        yield only(found, np.arange(start, min(start + step, len(found))))
