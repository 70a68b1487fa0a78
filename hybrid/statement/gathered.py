"""Matches a large table of many keys: its rows are brought together by key, block by block, or matched alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from hybrid.rows.inputs import BATCH_ROWS, FIRST_ROWS, OrderedInput, events_of, some_columns
from hybrid.rows.taking import Ahead, Chunks
from hybrid.statement.by_key import ROWS_MIN, blocks_of, is_plain
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import advanced, pushed
from matching.ordering import sorting_order
from query.errors import DataError, QueryError
from query.language.ast import Selection
from query.plan.plan import Plan
from query.stopping import heed

#: Of many keys, rows are brought together before they are matched: a matcher of so many misses the cache at each row.
#: What counts are the different keys of the first rows.
KEYS_MANY = 1 << 12


@dataclass(frozen=True, slots=True)
class Gathered:
    """The rows of an input partition by partition, in the order in which partitions appear. They are taken block by
    block, so that they are not held twice.

    seq, rows: the sequences of the rows, partition by partition, and their numbers in the table; begins: the first
    place of each partition."""

    ordered: OrderedInput
    seq: np.ndarray
    rows: np.ndarray
    begins: np.ndarray

    @staticmethod
    def of(ordered: OrderedInput, plan: Plan) -> Gathered | None:
        """Returns the rows of an input by key; None unless there are many partitions."""
        names = list(dict.fromkeys(c.name for c in plan.partition_by))
        rows = ordered.table.num_rows
        if rows < ROWS_MIN or not names or plan.selection is Selection.STRICT:
            return None
        first = ordered.table.select(names).slice(0, FIRST_ROWS)
        if not all(is_plain(kind) for kind in first.schema.types):
            return None
        if not has_many_keys(first, plan):
            return None
        from matching.kernels.radix import by_number  # loads numba, as the matcher has
        from matching.keys import numbered

        keys = [column.combine_chunks() for column in ordered.table.select(names).columns]
        ids = numbered(keys, rows)
        del keys
        return Gathered(ordered, *by_number(ids, ordered.order))

    def blocks(self, columns: Collection[str]) -> Iterator[Iterator[EventBatch]]:
        """Yields batches of whole partitions, at most BATCH_ROWS rows together unless it is one partition."""
        count, chunks = len(self.seq), Chunks.of(some_columns(self.ordered.table, columns))
        some, most = chunks.ahead(count, lambda low, high: self.rows[low:high]), min(BATCH_ROWS, chunks.most)
        return (self._events(some, start, stop, most) for start, stop in blocks_of(self.begins, count))

    def _events(self, some: Ahead, start: int, stop: int, most: int) -> Iterator[EventBatch]:
        """Yields the rows [start, stop) in batches of at most `most` rows."""
        for at in range(start, stop, most):
            end = min(at + most, stop)
            seq = self.seq[at:end].astype(np.int64, copy=False)
            yield events_of(*some(at, end), seq, self.ordered.row_us, self.ordered.time)


def has_many_keys(rows: pa.Table, plan: Plan) -> bool:
    """True if the first FIRST_ROWS rows have at least KEYS_MANY different keys of PARTITION BY."""
    names = list(dict.fromkeys(c.name for c in plan.partition_by))
    if not names:
        return False
    return rows.select(names).slice(0, FIRST_ROWS).group_by(names).aggregate([]).num_rows >= KEYS_MANY


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
    if not all(is_plain(column.type) and column.num_chunks == 1 for column in keys):  # several: of more than 2 GB
        return None
    order, ts_us = ordered.order, ordered.ts_us
    partition = numbered([column.chunk(0) for column in keys], len(ts_us)).astype(np.int64, copy=False)
    stays = matcher.stay(partition if order is None else partition[order], ts_us, order)
    if stays is None or not matcher.take_runs():
        return None
    seq = np.flatnonzero(stays)
    heed(len(ts_us) - len(seq))
    alone = Gathered(ordered, seq, seq if order is None else order[seq], np.arange(len(seq)))
    found: list[Matches] = []
    for batches in alone.blocks(plan.columns):
        found += pushed(matcher, batches)
        found += advanced(matcher, None)
        matcher.restart()
    return found
