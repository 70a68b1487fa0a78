"""Delivery faults: delayed rows, interleaved sources, redelivered batches. Nothing is lost.

No fault makes a row late. A row is sent at most half the lateness after its event time. A batch arrives when its last
row is sent, at most the other half after its first one. So no row arrives after another row, of any source, whose event
time is later by more than the lateness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from query.schema import Schema
from simulator.scenario import ArrivingBatch, generator


@dataclass(frozen=True, slots=True)
class SourceLog:
    """Output of one source: rows in order of sending (row i has offset i). sent_us: int64 (n,), ascending."""

    source: str
    rows: pa.Table
    sent_us: np.ndarray


def delayed(
    source: str, rows: pa.Table, time: str, delay_us_max: int, p_delay: float, rng: np.random.Generator
) -> SourceLog:
    """Returns the log of a source that sends each row at its event time or, with probability p_delay, up to
    delay_us_max later.

    time: the time column of `rows`, TIMESTAMP. Rows sent at the same time keep the order of `rows`.
    """
    ts_us = rows[time].cast(pa.int64()).to_numpy()
    held = rng.random(len(ts_us)) < p_delay
    sent_us = ts_us + np.where(held, rng.integers(0, delay_us_max + 1, len(ts_us)), 0)
    order = np.argsort(sent_us, kind="stable")
    return SourceLog(source, rows.take(pa.array(order)), sent_us[order])


def interleaved(
    stream: str, logs: Sequence[SourceLog], span_us: int, rows_max: int, rng: np.random.Generator
) -> tuple[ArrivingBatch, ...]:
    """Returns the batches of several sources in order of arrival; each source keeps its order and offsets.

    A batch has 1 to rows_max rows, sent within span_us, and arrives when its last row is sent. Batches that arrive at
    the same time are in random order. A different rng gives a different interleaving of the same events.
    """
    arrivals: list[ArrivingBatch] = []
    arrived_us: list[int] = []
    rank: list[int] = []
    ranks = rng.permutation(len(logs))
    for log, its_rank in zip(logs, ranks, strict=True):
        start, n = 0, len(log.sent_us)
        columns = log.rows.combine_chunks()
        while start < n:
            stop = min(
                start + int(rng.integers(1, rows_max + 1)),
                int(np.searchsorted(log.sent_us, log.sent_us[start] + span_us, side="right")),
            )
            batch = columns.slice(start, stop - start).to_batches()[0]
            arrivals.append(ArrivingBatch(stream, log.source, start, batch))
            arrived_us.append(int(log.sent_us[stop - 1]))
            rank.append(int(its_rank))
            start = stop
    order = sorted(range(len(arrivals)), key=lambda i: (arrived_us[i], rank[i]))
    return tuple(arrivals[i] for i in order)


def redelivered(
    arrivals: Sequence[ArrivingBatch], p_redelivery: float, rng: np.random.Generator
) -> tuple[ArrivingBatch, ...]:
    """Returns the arrivals with redeliveries. Redelivered rows keep their offsets.

    With probability p_redelivery each: a batch arrives again up to eight arrivals later; or its last rows are sent
    again with the next batch of its source, which then begins with known rows and ends with new ones.
    """
    result: list[tuple[float, ArrivingBatch]] = []
    before: dict[tuple[str, str], ArrivingBatch] = {}
    for i, arrival in enumerate(arrivals):
        last = before.get((arrival.stream, arrival.source))
        before[arrival.stream, arrival.source] = arrival
        if last is not None and rng.random() < p_redelivery:
            again = int(rng.integers(1, last.batch.num_rows + 1))
            tail = last.batch.slice(last.batch.num_rows - again)
            joined = pa.concat_batches([tail, arrival.batch])
            arrival = ArrivingBatch(arrival.stream, arrival.source, arrival.offset - again, joined)
        result.append((float(i), arrival))
        if rng.random() < p_redelivery:
            result.append((i + int(rng.integers(0, 8)) + 0.5, arrival))
    return tuple(arrival for _, arrival in sorted(result, key=lambda pair: pair[0]))


def deliver(
    schema: Schema,
    sources: Mapping[str, pa.Table],
    seed: int,
    rows_max: int = 64,
    p_delay: float = 0.3,
    p_redelivery: float = 0.05,
    interleaving: int = 0,
) -> tuple[ArrivingBatch, ...]:
    """Delivers one stream with all these faults, within the lateness of its schema.

    sources: source -> its rows in order of event time. `seed` determines the delays and thus the offsets; `seed` and
    `interleaving` determine batches, order of arrival and redeliveries. Deliveries that differ only in `interleaving`
    have the same events with the same offsets.
    """
    if schema.time is None:
        raise ValueError(f"{schema.name} has no time column, which delays require")
    delay_us_max = schema.lateness_us // 2
    delays = generator(seed)
    logs = [
        delayed(source, rows, schema.time, delay_us_max, p_delay, delays) for source, rows in sorted(sources.items())
    ]
    rng = np.random.Generator(np.random.PCG64([seed, interleaving]))
    arrivals = interleaved(schema.name, logs, schema.lateness_us - delay_us_max, rows_max, rng)
    return redelivered(arrivals, p_redelivery, rng)
