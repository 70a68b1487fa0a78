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
    Key,
    OrderedInput,
    compare_neighbours,
    keys_of,
    one_batch,
    some_columns,
    stands_in_order,
    time_of,
    times_us,
)
from hybrid.rows.taking import some_rows, taken
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import advanced, pushed, run
from matching.ordering import sorting_order
from query.errors import DataError, QueryError
from query.language.ast import Selection
from query.plan.plan import Order, Plan
from query.stopping import heed

#: With fewer rows a sort is cheap, and matches are returned in the order in which they complete.
ROWS_MIN = 1 << 17
#: Of many keys, rows are brought together before they are matched: a matcher of so many misses the cache at each row.
#: What counts are the different keys of the first rows.
KEYS_MANY = 1 << 12


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
    that they never decrease. begins: the first row of each partition. seq: of its rows, None if it is their position in
    the table; order: their offsets by seq, None if both are the same. time: the column of the table that has the times;
    both arrays of times are empty then."""

    table: pa.Table
    ts_us: np.ndarray
    clock_us: np.ndarray
    begins: np.ndarray
    seq: np.ndarray | None = None
    order: np.ndarray | None = None
    time: str | None = None

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
            first = _firsts(begins, kept.rows, table.num_rows)
            begins = np.flatnonzero(first)
            table, ts_us = some_rows(some_columns(table, kept.columns), kept.rows), ts_us[kept.rows]
        interval_us = plan.within.interval_us if plan.within is not None else None
        clock_us = ts_us
        if interval_us is not None:  # only WITHIN reads times
            block = np.zeros(len(ts_us), np.int64)
            block[begins[1:]] = 1
            clock_us = one_clock(ts_us, np.cumsum(block), interval_us)
        return ByKey(table, ts_us, clock_us, begins)

    @staticmethod
    def gathered(ordered: OrderedInput, plan: Plan) -> ByKey | None:
        """Returns the rows of an input partition by partition, in the order in which partitions appear; None unless
        there are many partitions."""
        names = list(dict.fromkeys(c.name for c in plan.partition_by))
        rows = len(ordered.ts_us)
        if rows < ROWS_MIN or not names or plan.selection is Selection.STRICT:
            return None
        first = ordered.table.select(names).slice(0, FIRST_ROWS)
        if not all(_plain(kind) for kind in first.schema.types):
            return None
        if not has_many_keys(first, plan):
            return None
        from matching.kernels.radix import by_number  # loads numba, as the matcher has
        from matching.keys import numbered

        order = ordered.order
        table = ordered.table.select(names) if order is None else taken(ordered.table.select(names), order)
        keys = [column.combine_chunks() for column in table.columns]
        ids = numbered(keys, table.num_rows)
        del keys, table
        counts = np.bincount(ids)
        begins = np.cumsum(counts) - counts
        seq = by_number(ids, begins)
        del ids, counts
        table = taken(some_columns(ordered.table, plan.columns), seq if order is None else order[seq])
        time = time_of(plan.order_by)
        shown = time in table.column_names and _as_us(table.column(time))
        ts_us = np.zeros(0, np.int64) if shown else ordered.ts_us[seq]
        # a matcher that restarts compares no times of two keys
        return ByKey(table, ts_us, ts_us, begins, seq, order, time if shown else None)

    def batches(self, columns: Collection[str]) -> Iterator[EventBatch]:
        """Yields batches of at most BATCH_ROWS rows, zero copy."""
        return self._events(some_columns(self.table, columns), 0, self.table.num_rows)

    def blocks(self, columns: Collection[str]) -> Iterator[Iterator[EventBatch]]:
        """Yields batches of whole partitions, at most BATCH_ROWS rows together unless it is one partition."""
        table = some_columns(self.table, columns)
        start, rows = 0, self.table.num_rows
        while start < rows:
            at = int(np.searchsorted(self.begins, start + BATCH_ROWS, side="right"))
            stop = rows if start + BATCH_ROWS >= rows else int(self.begins[at - 1])
            if stop <= start:
                stop = int(self.begins[at]) if at < len(self.begins) else rows
            yield self._events(table, start, stop)
            start = stop

    def _events(self, table: pa.Table, start: int, stop: int) -> Iterator[EventBatch]:
        """Yields the rows [start, stop) in batches of at most BATCH_ROWS rows, zero copy."""
        for batch in table.slice(start, stop - start).to_batches(max_chunksize=BATCH_ROWS):
            end = start + batch.num_rows
            seq = np.arange(start, end) if self.seq is None else self.seq[start:end].astype(np.int64, copy=False)
            offset = seq if self.order is None else self.order[seq]
            if end > start:
                times = self.clock_us[start:end] if self.time is None else _us_of(batch.column(self.time))
                yield EventBatch(batch, times, np.zeros(end - start, np.int32), offset, seq)
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


def has_many_keys(rows: pa.Table, plan: Plan) -> bool:
    """True if the first FIRST_ROWS rows have at least KEYS_MANY different keys of PARTITION BY."""
    names = list(dict.fromkeys(c.name for c in plan.partition_by))
    if not names:
        return False
    return rows.select(names).slice(0, FIRST_ROWS).group_by(names).aggregate([]).num_rows >= KEYS_MANY


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


def dates(matcher: Matcher) -> bool:
    """True if the bare matches of a matcher come with the rows that decided them: see `run_gathered`."""
    from matching.matcher import KernelMatcher

    return isinstance(matcher, KernelMatcher) and matcher.dates


def knowing(new: Matcher, old: Matcher) -> Matcher:
    """Returns a new matcher, which knows what conditions the rows meet if the old one of the same plan does."""
    from matching.matcher import KernelMatcher

    if isinstance(new, KernelMatcher) and isinstance(old, KernelMatcher):
        new.know(old.known)
    return new


def run_gathered(matcher: Matcher, blocks: Iterator[Iterator[EventBatch]], waits: bool) -> list[Matches] | None:
    """Returns the bare matches of blocks of rows that were gathered key by key, in the order in which they come out of
    rows in the total order: by the row that decided them, then those that the end decided; in no order if each `waits`.
    None if a condition could not be computed: which one comes first, the total order says."""
    from matching.matcher import KernelMatcher

    found: list[Matches] = []
    at_end: list[Matches] = []
    assert isinstance(matcher, KernelMatcher)
    runs = matcher.take_runs()
    assert runs, "a new matcher"
    try:
        for batches in blocks:
            found += pushed(matcher, batches)
            at_end += advanced(matcher, None)
            matcher.restart()
    except (DataError, QueryError):
        return None
    found = [m for m in found if len(m)]
    if waits or not found:
        return [*found, *at_end]
    if any(m.decided_seq is None for m in found):
        return None
    by = np.concatenate([m.decided_seq[m.row_match] for m in found if m.decided_seq is not None])
    first, order, schema = found[0], pa.array(sorting_order(by)), found[0].rows.schema
    parts = [[chunk for m in found for chunk in m.rows.column(i).chunks] for i in range(len(schema))]
    first = replace(first, rows=schema.empty_table())
    del by, found
    columns: list[pa.Array | pa.ChunkedArray] = []
    while parts:  # column by column, so that they are not held twice
        columns.append(pa.chunked_array(parts.pop(0), schema.field(len(columns)).type).combine_chunks().take(order))
    return [replace(first, rows=pa.table(columns, schema=schema)), *at_end]


def run_alone(matcher: Matcher, ordered: OrderedInput, plan: Plan) -> list[Matches] | None:
    """Returns the bare matches of an input, in its order, if each is a row of itself: rows of a partition are not
    brought together, and nothing is kept of them. None if rows may change the matches of others, or if the matcher does
    not know what conditions they meet."""
    from matching.keys import numbered  # loads numba, as the matcher has
    from matching.matcher import KernelMatcher

    names = list(dict.fromkeys(c.name for c in plan.partition_by))
    if not isinstance(matcher, KernelMatcher) or matcher.known is None or not names:
        return None
    keys = ordered.table.select(names).combine_chunks().columns
    if not all(_plain(column.type) and column.num_chunks == 1 for column in keys):  # several: of more than 2 GB
        return None
    order, ts_us = ordered.order, ordered.ts_us
    partition = numbered([column.chunk(0) for column in keys], len(ts_us)).astype(np.int64, copy=False)
    stays = matcher.stay(partition if order is None else partition[order], ts_us, order)
    if stays is None or not matcher.take_runs():
        return None
    seq = np.flatnonzero(stays)
    heed(len(ts_us) - len(seq))
    table = some_columns(ordered.table, plan.columns)
    table = some_rows(table, seq) if order is None else taken(table, order[seq])
    alone = ByKey(table, ts_us[seq], ts_us[seq], np.arange(len(seq)), seq, order)
    found: list[Matches] = []
    for batches in alone.blocks(plan.columns):
        found += pushed(matcher, batches)
        found += advanced(matcher, None)
        matcher.restart()
    return found


def _begins(table: pa.Table, plan: Plan) -> np.ndarray | None:
    """Returns the first row of each partition. None unless the table is stored partition by partition, each in the
    order of ORDER BY, or if that cannot be checked cheaply."""
    names = list(dict.fromkeys(c.name for c in plan.partition_by))
    if not all(_plain(table.schema.field(name).type) for name in names):
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


def _firsts(begins: np.ndarray, rows: np.ndarray, count: int) -> np.ndarray:
    """Returns which of some rows of a table, ascending, are the first ones of their partition among these, bool (n,).
    begins: the first row of each partition; count: of the table's rows."""
    marked = np.zeros(count, np.int32)
    marked[begins] = 1
    partition = np.cumsum(marked, out=marked)[rows]
    return np.diff(partition, prepend=0) > 0


def _as_us(times: pa.ChunkedArray) -> bool:
    """True if times are kept as the matcher reads them."""
    return pa.types.is_timestamp(times.type) and times.type.unit == "us" and not times.null_count


def _us_of(times: pa.Array) -> np.ndarray:
    return np.asarray(times.view(pa.int64()))


def _plain(type: pa.DataType) -> bool:
    """True if equal values of a type have equal representations."""
    whole = pa.types.is_integer(type) or pa.types.is_boolean(type) or pa.types.is_string(type)
    return whole or pa.types.is_date(type) or pa.types.is_timestamp(type)
