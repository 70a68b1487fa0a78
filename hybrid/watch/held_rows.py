"""Rows of a query that are held back until no earlier one can come, so that they leave in their total order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hybrid.rows.inputs import OrderedInput, times_us
from matching.batch import Int64Array
from query.plan.expression import Column
from query.plan.plan import Order


class HeldRows:
    """Rows with their times. name: of the rows, for messages; time: their time column."""

    __slots__ = ("_name", "_time", "content")

    def __init__(self, name: str, time: str) -> None:
        self._name, self._time = name, time
        #: Tables with the times of their rows, for hybrid.watch.saved.
        self.content: list[tuple[pa.Table, Int64Array]] = []

    def __len__(self) -> int:
        return sum(len(times) for _, times in self.content)

    def add(self, rows: pa.Table) -> int | None:
        """Adds rows, and returns their least time, None without rows. Raises DataError for a row without a time."""
        if not rows.num_rows:
            return None
        times = times_us(rows, self._time, self._name)
        self.content.append((rows, times))
        return int(times.min())

    def release(self, before_us: int | None) -> pa.Table | None:
        """Takes out the rows with a time below `before_us` (None: all), as they were added; None if there are none."""
        out: list[pa.Table] = []
        kept: list[tuple[pa.Table, Int64Array]] = []
        for table, times in self.content:
            ready = np.ones(len(times), np.bool_) if before_us is None else times < before_us
            if not ready.any():
                kept.append((table, times))
            elif ready.all():
                out.append(table)
            else:
                out.append(table.filter(pa.array(ready)))
                kept.append((table.filter(pa.array(~ready)), times[~ready]))
        self.content = kept
        return pa.concat_tables(out) if out else None

    def sorted(self, rows: pa.Table) -> pa.Table:
        """Returns rows in the order of a table of them: by time, then by content."""
        by_time = (Order(Column(self._time, "TIMESTAMP")),)
        return OrderedInput.of(self._name, rows, by_time, self._time, by_content=True).table
