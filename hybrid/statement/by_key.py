"""Matches a large table that is stored partition by partition, without sorting it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from archive.reader import RangeRequest
from hybrid.join.candidates import one_clock
from hybrid.rows.inputs import (
    BATCH_ROWS,
    FIRST_ROWS,
    keys_of,
    some_columns,
    stands_in_order,
    times_us,
)
from hybrid.rows.neighbours import Key, compare_neighbours
from hybrid.rows.taking import long_batches, one_batch, some_rows
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import advanced, pushed, run
from matching.ordering import sorting_order
from query.language.ast import Selection
from query.plan.plan import Order, Plan

#: With fewer rows a sort is cheap, and matches are returned in the order in which they complete.
ROWS_MIN = 1 << 17


class RowsMet(NamedTuple):
    """The rows of a table that may change matches, ascending, and the columns that a matcher reads of them."""

    rows: np.ndarray
    columns: Collection[str]


#: Returns those rows of a table; None: all may change matches.
Met = Callable[[pa.Table], RowsMet | None]


@dataclass(frozen=True, slots=True)
class ByKey:
    """A bounded input stored partition by partition, each in the total order.

    ts_us: times of its rows, zeros without a time column. clock_us: times for the matcher, shifted per partition so
    that they never decrease. begins: the first row of each partition."""

    table: pa.Table
    ts_us: np.ndarray
    clock_us: np.ndarray
    begins: np.ndarray

    @staticmethod
    def of(name: str, table: pa.Table, plan: Plan, time: str | None, met: Met | None = None) -> ByKey | None:
        """Returns the table as ByKey if it is large, stored by partition, and not in the order of ORDER BY; else None.
        met: returns the rows that it is to have."""
        strict = plan.selection is Selection.STRICT  # compares neighbours across partitions
        if table.num_rows < ROWS_MIN or strict or not plan.partition_by or stands_in_order(table, plan.order_by):
            return None
        begins = _begins(table, plan)
        if begins is None:
            return None
        ts_us = np.zeros(table.num_rows, np.int64) if time is None else times_us(table, time, name)
        if met is not None and (kept := met(table)) is not None:
            begins = np.searchsorted(kept.rows, begins)  # the next row kept, of the same partition or of a later one
            begins = begins[np.diff(begins, append=len(kept.rows)) > 0]
            table, ts_us = some_rows(some_columns(table, kept.columns), kept.rows), ts_us[kept.rows]
        interval_us = plan.within.interval_us if plan.within is not None else None
        clock_us = ts_us
        if interval_us is not None:  # only WITHIN reads times
            clock_us = one_clock(ts_us, begins, interval_us)
        return ByKey(table, ts_us, clock_us, begins)

    def batches(self, columns: Collection[str]) -> Iterator[EventBatch]:
        """Yields batches of at most BATCH_ROWS rows, zero copy."""
        return self._events(some_columns(self.table, columns), 0, self.table.num_rows)

    def blocks(self, columns: Collection[str]) -> Iterator[Iterator[EventBatch]]:
        """Yields batches of whole partitions, at most BATCH_ROWS rows together unless it is one partition."""
        table = some_columns(self.table, columns)
        return (self._events(table, start, stop) for start, stop in blocks_of(self.begins, self.table.num_rows))

    def _events(self, table: pa.Table, start: int, stop: int) -> Iterator[EventBatch]:
        """Yields the rows [start, stop) in batches of at most BATCH_ROWS rows, zero copy except for short chunks."""
        for batch in long_batches(table.slice(start, stop - start).to_batches(max_chunksize=BATCH_ROWS)):
            end = start + batch.num_rows
            at = np.arange(start, end)
            yield EventBatch(batch, self.clock_us[start:end], np.zeros(end - start, np.int32), at, at)
            start = end

    def own_times(self, found: Matches) -> Matches:
        """Returns the matches with the original times of their events."""
        if self.clock_us is self.ts_us:
            return found

        def own(us: np.ndarray) -> np.ndarray:
            at = np.searchsorted(self.clock_us, us)  # within a partition, the clock is its times plus a constant
            return us - self.clock_us[at] + self.ts_us[at]

        events = self.ts_us[found.event_seq]
        return replace(found, event_ts_us=events, first_us=own(found.first_us), last_us=own(found.last_us))

    def read(self, request: RangeRequest) -> EventBatch:
        """Returns the rows of a range, by time. The request has no keys, as the input is not a history."""
        assert not request.keys
        inside = np.ones(len(self.ts_us), bool)
        if request.low_us is not None:
            inside &= self.ts_us >= request.low_us
        if request.high_us is not None:
            inside &= (self.ts_us <= request.high_us) if request.closed else (self.ts_us < request.high_us)
        at = np.flatnonzero(inside)
        at = at[sorting_order(self.ts_us[at])]
        rows = one_batch(self.table.take(pa.array(at)))
        return EventBatch(rows, self.ts_us[at], np.zeros(len(at), np.int32), at, at)


def blocks_of(begins: np.ndarray, rows: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of rows of whole partitions, at most BATCH_ROWS together unless it is one partition. begins: the
    first row of each."""
    start = 0
    while start < rows:
        at = int(np.searchsorted(begins, start + BATCH_ROWS, side="right"))
        stop = rows if start + BATCH_ROWS >= rows else int(begins[at - 1])
        if stop <= start:
            stop = int(begins[at]) if at < len(begins) else rows
        yield start, stop
        start = stop


def run_by_key(matcher: Matcher, standing: ByKey, columns: Collection[str]) -> Iterator[Matches]:
    """Yields the matches of a table by key: those that rows decide, and then those that the end of the input decides,
    each partition by partition. Cost and memory of a key do not depend on how many there are."""
    from matching.matcher import KernelMatcher  # loads numba, as the matcher has

    if not isinstance(matcher, KernelMatcher) or not matcher.take_runs():
        yield from run(matcher, standing.batches(columns))
        return
    at_end: list[Matches] = []
    for batches in standing.blocks(columns):
        yield from pushed(matcher, batches)
        at_end += advanced(matcher, None)
        matcher.restart()
    yield from at_end


def _begins(table: pa.Table, plan: Plan) -> np.ndarray | None:
    """Returns the first row of each partition. None unless the table is stored partition by partition, each in the
    order of ORDER BY, or if that cannot be checked cheaply."""
    names = list(dict.fromkeys(c.name for c in plan.partition_by))
    if not all(is_plain(table.schema.field(name).type) for name in names):
        return None
    if table.num_rows > 2 * FIRST_ROWS and _of_blocks(table.slice(0, FIRST_ROWS), plan, names, FIRST_ROWS) is None:
        return None
    return _of_blocks(table, plan, names, table.num_rows // 2)


def _of_blocks(table: pa.Table, plan: Plan, names: list[str], most: int) -> np.ndarray | None:
    """Does what `_begins` does. names: of the columns of PARTITION BY; most: of so many keys in no order it looks
    whether one comes again."""
    begins = np.zeros(table.num_rows, np.bool_)
    begins[0] = True
    for name in names:
        column = table.column(name)
        compared = compare_neighbours(column, Key(name))
        if compared is None:
            return None
        begins[1:] |= ~compared[1]
    undecided = ~begins[1:]
    for key in keys_of(plan.order_by):
        column = table.column(key.column)
        compared = compare_neighbours(column, key)
        if compared is None or (undecided & compared[0]).any():
            return None
        undecided &= compared[1]
    first = np.flatnonzero(begins)
    keys = table.select(names).take(pa.array(first)) if len(first) < table.num_rows else table.select(names)
    if stands_in_order(keys, tuple(Order(c) for c in plan.partition_by)):
        return first  # neighbours differ, so no key comes again
    if len(first) > most or keys.group_by(names).aggregate([]).num_rows < len(first):
        return None  # a partition continues after another one
    return first


def is_plain(type: pa.DataType) -> bool:
    """True if equal values of a type have equal representations."""
    whole = pa.types.is_integer(type) or pa.types.is_boolean(type) or pa.types.is_string(type)
    return whole or pa.types.is_date(type) or pa.types.is_timestamp(type)
