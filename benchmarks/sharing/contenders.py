"""The ways to run a workload, on equal terms: the same plans, the same batches, and word of the same watermarks.

`none` is the bare matcher of each query (matching.matcher), with no database around it, since contenders that share are
bare as well. `feed` is these matchers in one feed (matching.feed): keys and rows are taken in once for all queries, and
only trends are counted by each query alone; beside it a contender shows what sharing of trends is worth. `watch` is
what a user has today: `db.watch` of each query in one database in memory.

A batch ends where a window may, so that latency is the time from handing over the batch with the last event of a window
to the rows of a query.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import hybrid
from benchmarks import answers
from matching.batch import EventBatch
from matching.feed import Feed
from matching.matcher import make_matcher
from matching.shared_queries import SharedQueries, groups_of
from matching.workload.sharing_mode import SharingMode
from query.plan.plan import Plan
from query.schema import Schema
from simulator.scenario import MINUTE_US

#: Events of a batch at most.
BATCH_ROWS = 4096


class Piece(NamedTuple):
    """A batch, and the time before which all events are there after it (None: the input has ended)."""

    batch: EventBatch
    until_us: int | None


class Workload(NamedTuple):
    """Queries by name: their texts and their plans over one stream."""

    schema: Schema
    texts: Mapping[str, str]
    plans: Mapping[str, Plan]


#: Takes a piece; yields the name and the rows of each query as soon as they are known.
Push = Callable[[Piece], Iterator[tuple[str, pa.Table]]]


class Choosing(SharedQueries):
    """Queries counted together, and the time that choosing and changing their plan takes. seconds: of the processor, of
    all since it was set to 0."""

    seconds = 0.0

    def choose(self) -> None:
        begun = time.process_time()
        super().choose()
        Choosing.seconds += time.process_time() - begun


#: Is given the name of a query and rows of it; what it does is not timed.
Take = Callable[[str, pa.Table], object]


@dataclass(frozen=True, slots=True)
class Result:
    """open_seconds: until events could be pushed; seconds, cpu_seconds: of all pushes; choosing_seconds: of the
    processor, of these for choosing and changing plans; latencies: of each query and window with rows, in seconds by
    the clock and of processor time, float64 (n, 2); peak_bytes: by how much resident memory grew at most. This tells
    something only of the first run in a process, and if rows are not kept."""

    open_seconds: float
    seconds: float
    cpu_seconds: float
    choosing_seconds: float
    latencies: np.ndarray
    peak_bytes: int


class Digest:
    """Counts and hashes of the rows of each query, which do not depend on their order. A Take."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self._sums: dict[str, int] = {}

    def __call__(self, name: str, table: pa.Table) -> None:
        self.rows[name] = self.rows.get(name, 0) + len(table)
        mark = int(answers.fingerprint(table, table.column_names), 16)
        self._sums[name] = (self._sums.get(name, 0) + mark) % 2**64

    def hash(self) -> str:
        """16 hex digits of all rows."""
        lines = [f"{name} {self.rows[name]} {self._sums[name]:x}" for name in sorted(self.rows)]
        return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def pieces_of(events: pa.Table, slide_minutes: int, rows: int = BATCH_ROWS) -> list[Piece]:
    """Returns events in order of time as batches that end at each multiple of the slide."""
    times = events["ts"].cast(pa.int64()).to_numpy()
    count = len(times)
    (columns,) = events.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=events.schema)]
    at = np.arange(count)
    whole = EventBatch(columns, times, np.zeros(count, np.int32), at, at)
    window = times // (slide_minutes * MINUTE_US)
    ends = [*(np.flatnonzero(np.diff(window)) + 1).tolist(), count]
    found, start = [], 0
    for end in ends:
        for stop in [*range(start + rows, end, rows), end]:
            found.append(Piece(whole.slice(start, stop), int(times[stop]) if stop < count else None))
            start = stop
    return found


def resident_bytes() -> int:
    """Of this process, now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run(open_queries: Callable[[Workload], Push], workload: Workload, pieces: Sequence[Piece], take: Take) -> Result:
    """Runs a workload over a stream."""
    before = peak = resident_bytes()
    begun = time.perf_counter()
    Choosing.seconds = 0.0
    push = open_queries(workload)
    open_seconds = time.perf_counter() - begun
    latencies: list[tuple[float, float]] = []
    seconds = cpu_seconds = 0.0
    for piece in pieces:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        came = [
            (name, table, (time.perf_counter() - begun, time.process_time() - cpu_begun))
            for name, table in push(piece)
            if len(table)
        ]
        seconds += time.perf_counter() - begun
        cpu_seconds += time.process_time() - cpu_begun
        peak = max(peak, resident_bytes())
        for name, table, after in came:
            take(name, table)
            latencies += [after] * len(table["window_end"].unique())
    choosing = Choosing.seconds
    return Result(open_seconds, seconds, cpu_seconds, choosing, np.array(latencies).reshape(-1, 2), peak - before)


def unshared(workload: Workload) -> Push:
    """Each query by a matcher of its own."""
    matchers = {name: make_matcher(plan) for name, plan in workload.plans.items()}

    def push(piece: Piece) -> Iterator[tuple[str, pa.Table]]:
        for name, matcher in matchers.items():
            yield name, matcher.push(piece.batch).rows
            yield name, matcher.advance(piece.until_us).rows

    return push


def fed(workload: Workload) -> Push:
    """All queries by the matchers of one feed."""
    feed = Feed(workload.schema)
    members = {name: feed.add(plan, 0) for name, plan in workload.plans.items()}

    def push(piece: Piece) -> Iterator[tuple[str, pa.Table]]:
        if piece.until_us is None:
            feed.push(piece.batch, int(piece.batch.ts_us[-1]))
            feed.advance(None)
        else:
            feed.push(piece.batch, piece.until_us)
        for name, member in members.items():
            if member.failure is not None:
                raise member.failure
            for matches in member.take_found():
                yield name, matches.rows

    return push


def watched(workload: Workload) -> Push:
    """Each query by db.watch. The database stays open as long as what is returned."""
    db, schema = hybrid.connect(), workload.schema
    db.create_stream(schema.name, {f.name: f.type for f in schema.fields}, time="ts", key=list(schema.keys))
    alerts = {name: db.watch(text) for name, text in workload.texts.items()}

    def push(piece: Piece) -> Iterator[tuple[str, pa.Table]]:
        db.push(schema.name, piece.batch.columns)
        until = piece.until_us
        db.advance(schema.name, None if until is None else pa.scalar(until, pa.timestamp("us")).as_py())
        for name, each in alerts.items():
            yield name, each.take()
        if until is None:
            db.close()

    return push


def together(mode: SharingMode) -> Callable[[Workload], Push]:
    """All queries in one engine, in a mode of sharing; in groups of as many conditions as one engine takes."""

    def opened(workload: Workload) -> Push:
        groups = [Choosing(plans, mode) for plans in groups_of(workload.plans)]

        def push(piece: Piece) -> Iterator[tuple[str, pa.Table]]:
            for group in groups:
                for name, matches in group.push(piece.batch).items():
                    yield name, matches.rows
                for name, matches in group.advance(piece.until_us).items():
                    yield name, matches.rows

        return push

    return opened


#: By name.
CONTENDERS: dict[str, Callable[[Workload], Push]] = {
    "none": unshared, "feed": fed, "watch": watched,
    **{name: together(mode) for name, mode in (("merged", SharingMode.NONE), ("hamlet", SharingMode.HAMLET),
                                               ("static", SharingMode.STATIC), ("dynamic", SharingMode.DYNAMIC))},
}  # fmt: skip
