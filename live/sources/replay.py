"""Replays recorded batches as a live feed: at a rate, at a multiple of event time, or without pauses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from query.errors import DataError

#: Span, in seconds of the replay, of the events that are yielded together.
STEP_S = 0.05


def replay(
    batches: Iterable[pa.RecordBatch],
    speed: float | None = None,
    *,
    rate: float | None = None,
    time_column: str | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of `batches` in order, no row before it is due.

    speed: seconds of event time per second, from the first event on; needs time_column, a timestamp or date. An
    out-of-order event is due with the latest event before it. rate: rows per second. Neither: whole batches, without
    pauses.
    Batches are split, zero copy, into steps of STEP_S. Overdue rows are yielded without a pause; none is skipped.
    clock, sleep: in seconds; pass your own to run on simulated time.
    Raises DataError for a speed or rate that is not above 0, for both at once, and for a speed without times.
    """
    for name, value in (("speed", speed), ("rate", rate)):
        if value is not None and not value > 0:
            raise DataError(f"{name} is {value}", "give a number above 0, or None for as fast as possible")
    if speed is not None and rate is not None:
        raise DataError("a replay has a speed or a rate, not both", "leave one of them out")
    if speed is not None and time_column is None:
        raise DataError("a replay at a speed needs the time column", "give time_column=")
    return _replay(batches, speed, rate, time_column or "", clock, sleep)


def _replay(
    batches: Iterable[pa.RecordBatch],
    speed: float | None,
    rate: float | None,
    time_column: str,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[pa.RecordBatch]:
    start_s = clock()
    first_us: int | None = None
    rows = 0
    due_s = 0.0
    for batch in batches:
        n = batch.num_rows
        if n == 0 or (speed is None and rate is None):
            yield batch
            continue
        if rate is not None:
            due = np.arange(rows, rows + n) / rate
            rows += n
        else:
            assert speed is not None
            ts_us = _times(batch, time_column)
            first_us = int(ts_us[0]) if first_us is None else first_us
            due = np.maximum(np.maximum.accumulate((ts_us - first_us) / (1e6 * speed)), due_s)
        due_s = float(due[-1])
        cuts = np.flatnonzero(np.diff(np.floor(due / STEP_S))) + 1
        for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), n]):
            wait_s = start_s + float(due[high - 1]) - clock()
            if wait_s > 0:
                sleep(wait_s)
            yield batch.slice(low, high - low)


def _times(batch: pa.RecordBatch, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise DataError(f"column {name} to replay by does not exist", f"available: {', '.join(batch.schema.names)}")
    column = batch.column(index)
    if not (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)) or column.null_count:
        raise DataError(f"column {name} is {column.type} or has nulls", "replay by a timestamp or date without nulls")
    whole = column.cast(pa.timestamp("us"), safe=False)  # nanoseconds are irrelevant for pacing
    return np.asarray(whole.view(pa.int64()))
