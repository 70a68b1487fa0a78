"""Matches a large input while it is read, as long as its rows come in the order of ORDER BY, in little memory."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from hybrid.rows.inputs import stands_in_order, times_us
from hybrid.rows.taking import long_batches, one_batch
from hybrid.statement.gathered import has_many_keys
from matching.batch import EventBatch
from query.plan.plan import Plan

#: Inputs with fewer rows are read whole: they are read once, whatever is asked of the result later.
ROWS_MIN = 1 << 21


class OutOfOrder(Exception):
    """A row of the input precedes a smaller one, or has no time: all rows must be read before they are matched."""


@dataclass(frozen=True, slots=True)
class Flowing:
    """An input that is read while it is matched.

    first: its first rows. rest: the others, which can be read once. time: the event-time column, or None."""

    name: str
    first: pa.Table
    rest: Generator[pa.Table]
    plan: Plan
    time: str | None

    @staticmethod
    def of(name: str, tables: Generator[pa.Table], plan: Plan, time: str | None) -> Flowing | pa.Table:
        """Returns the input, whose rows come as tables. All its rows as one table, if there are few, if they are not in
        the order of ORDER BY, or if they have so many keys that it is better to bring these together first."""
        read: list[pa.Table] = []
        for table in tables:
            read.append(table)
            if sum(map(len, read)) >= ROWS_MIN:
                first = pa.concat_tables(read)
                timed = time is None or not first.column(time).null_count
                if timed and stands_in_order(first, plan.order_by) and not has_many_keys(first, plan):
                    return Flowing(name, first, tables, plan, time)
                break
        return pa.concat_tables([*read, *tables])

    def batches(self) -> Generator[EventBatch]:
        """Yields the rows in batches. Raises OutOfOrder. Closed early, it closes what it reads from."""
        start, last = 0, self.first.slice(0, 0)
        with closing(self.rest):
            for table in self._tables():
                if self.time is not None and table.column(self.time).null_count:
                    raise OutOfOrder
                pair = pa.concat_tables([last, table])
                if start >= len(self.first) and not stands_in_order(pair, self.plan.order_by):
                    raise OutOfOrder
                rows = len(table)
                at = np.arange(start, start + rows, dtype=np.int64)
                ts_us = times_us(table, self.time, self.name) if self.time is not None else np.zeros(rows, np.int64)
                yield EventBatch(one_batch(table), ts_us, np.zeros(rows, np.int32), at, at)
                start, last = start + rows, table.slice(rows - 1)

    def _tables(self) -> Iterator[pa.Table]:
        """Yields the rows. No table has some of the first rows, whose order is known, and some of the others."""
        rest = (batch for table in self.rest for batch in table.to_batches())
        batches = chain(long_batches(self.first.to_batches()), long_batches(rest))
        return (pa.Table.from_batches([batch]) for batch in batches)
