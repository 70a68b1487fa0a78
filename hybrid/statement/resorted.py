"""Events of streams in an ORDER BY that begins with their time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from hybrid.rows.inputs import order_index
from matching.batch import EventBatch
from matching.drive import parts
from query.plan.plan import Order


@dataclass(frozen=True, slots=True)
class Resorted:
    """Reads a history in the ORDER BY of the history pattern."""

    source: HistoryReader
    order_by: tuple[Order, ...]

    def read(self, request: RangeRequest) -> EventBatch:
        batch = self.source.read(request)
        index = order_index(pa.Table.from_batches([batch.columns]), self.order_by)
        return batch if index is None else batch.take(index)


def resorted(batches: Iterator[EventBatch], order_by: tuple[Order, ...]) -> Iterator[EventBatch]:
    """Yields a stream's events in an ORDER BY that begins with its time, in slices. Each input batch must have all
    events of its instants."""
    for batch in batches:
        if len(order_by) > 1:
            index = order_index(pa.Table.from_batches([batch.columns]), order_by)
            batch = batch if index is None else batch.take(index)
        yield from parts(batch)
