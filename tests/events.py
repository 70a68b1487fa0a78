"""Rows as tests write them, and the batches that matchers take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch
from matching.by_reference import to_arrow
from matching.types import arrow_schema
from query.schema import Schema


def batch_of(schema: Schema, rows: Sequence[Mapping[str, object]], first: int = 0) -> EventBatch:
    """Rows in total order as a batch of source "default"; offset and seq count from `first`.

    Times are int microseconds; the schema's time column gives ts_us (zeros without one)."""
    arrays = [to_arrow([row[f.name] for row in rows], f.type) for f in schema.fields]
    n = len(rows)
    times = [row[schema.time] if schema.time else 0 for row in rows]
    numbers = np.arange(first, first + n, dtype=np.int64)
    columns = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))
    return EventBatch(columns, np.array(times, np.int64), np.zeros(n, np.int32), numbers, numbers)
