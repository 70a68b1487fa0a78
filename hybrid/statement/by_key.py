"""Matches a large table that is stored partition by partition, without sorting it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.reader import RangeRequest
from hybrid.join.candidates import one_clock
from hybrid.rows.inputs import BATCH_ROWS, compare, keys_of, one_batch, some_columns, stands_in_order, times_us
from matching.batch import EventBatch, Matches
from matching.ordering import sorting_order
from query.language.ast import Selection
from query.plan.plan import Plan

#: With fewer rows a sort is cheap, and matches are returned in the order in which they complete.
ROWS_MIN = 1 << 17


@dataclass(frozen=True, slots=True)
class ByKey:
    """A bounded input stored partition by partition, each in the total order.

    ts_us: times of its rows, zeros without a time column. clock_us: times for the matcher, shifted per partition so
    that they never decrease. Offset and sequence of an event are its position in the table."""

    table: pa.Table
    ts_us: np.ndarray
    clock_us: np.ndarray

    @staticmethod
    def of(name: str, table: pa.Table, plan: Plan, time: str | None) -> ByKey | None:
        """Returns the table as ByKey if it is large, stored by partition, and not in the order of ORDER BY; else None.
        """
        strict = plan.selection is Selection.STRICT  # compares neighbours across partitions
        if table.num_rows < ROWS_MIN or strict or not plan.partition_by or stands_in_order(table, plan.order_by):
            return None
        block = _blocks(table, plan)
        if block is None:
            return None
        ts_us = np.zeros(table.num_rows, np.int64) if time is None else times_us(table, time, name)
        interval_us = plan.within.interval_us if plan.within is not None else None
        # only WITHIN reads times
        return ByKey(table, ts_us, ts_us if interval_us is None else one_clock(ts_us, block, interval_us))

    def batches(self, columns: Collection[str]) -> Iterator[EventBatch]:
        """Yields batches of at most BATCH_ROWS rows, zero copy."""
        start = 0
        for batch in some_columns(self.table, columns).to_batches(max_chunksize=BATCH_ROWS):
            stop = start + batch.num_rows
            at = np.arange(start, stop, dtype=np.int64)
            if stop > start:
                yield EventBatch(batch, self.clock_us[start:stop], np.zeros(stop - start, np.int32), at, at)
            start = stop

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


def _blocks(table: pa.Table, plan: Plan) -> np.ndarray | None:
    """Returns for each row the number of its partition, from 0 on. None unless the table is stored partition by
    partition, each in the order of ORDER BY, or if that cannot be checked cheaply."""
    names = list(dict.fromkeys(c.name for c in plan.partition_by))
    begins = np.zeros(table.num_rows, bool)
    for name in names:
        column = table.column(name)
        if not _plain(column.type):
            return None
        before, behind = column.slice(0, len(column) - 1), column.slice(1)
        begins[1:] |= ~pc.fill_null(pc.equal(before, behind), False).to_numpy()
        if column.null_count:
            begins[1:] &= ~(before.is_null().to_numpy() & behind.is_null().to_numpy())
    begins[0] = True
    first = np.flatnonzero(begins)
    if 2 * len(first) > table.num_rows:
        return None
    undecided = ~begins[1:]
    for key in keys_of(plan.order_by):
        column = table.column(key.column)
        compared = compare(column.slice(0, len(column) - 1), column.slice(1), key)
        if compared is None or (undecided & compared[0]).any():
            return None
        undecided &= compared[1]
    keys = table.select(names).take(pa.array(first))
    if keys.group_by(names).aggregate([]).num_rows < len(first):
        return None  # a partition continues after another one
    return np.cumsum(begins) - 1


def _plain(type: pa.DataType) -> bool:
    """True if equal values of a type have equal representations."""
    whole = pa.types.is_integer(type) or pa.types.is_boolean(type) or pa.types.is_string(type)
    return whole or pa.types.is_date(type) or pa.types.is_timestamp(type)
