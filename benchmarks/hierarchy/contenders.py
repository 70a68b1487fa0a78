"""The ways to find the matches of a hierarchy, on equal terms: the same stream, the same batches.

`hierarchical` has a matcher for each layer, `flattened` the one of the plain pattern that finds the same
(query.plan.flatten), `chosen` what `make_matcher` takes (matching.hierarchy.choice): all with all events of each match
as evidence. `hced` is the algorithm of the paper in plain Python; it finds fewer matches, so its are counted and not
compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from benchmarks.answers import mixed
from benchmarks.hierarchy.hced import Hced
from benchmarks.hierarchy.workloads import Shape, plan_of
from matching.batch import EventBatch, Matcher, Matches
from matching.hierarchy.matcher import HierarchyMatcher
from matching.matcher import make_matcher
from query.plan.flatten import flattened

#: Events of a batch at most.
BATCH_ROWS = 4096
#: Takes a batch and the time before which all events are there after it (None: the input has ended).
Push = Callable[[EventBatch, int | None], Iterator[Matches | int]]


@dataclass(frozen=True, slots=True)
class Result:
    """seconds, cpu_seconds: of all pushes. peak_bytes: by how much resident memory grew at most, which tells something
    only of the first run in a process. hash: of the events of all matches, whatever their order; "" if they were only
    counted."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    matches: int
    hash: str


def batches_of(events: pa.Table, rows: int = BATCH_ROWS) -> list[EventBatch]:
    """Returns events in order of time as batches."""
    times = events["ts"].cast(pa.int64()).to_numpy()
    (columns,) = events.combine_chunks().to_batches()
    at = np.arange(len(times))
    whole = EventBatch(columns, times, np.zeros(len(times), np.int32), at, at)
    return [whole.slice(start, min(start + rows, len(times))) for start in range(0, len(times), rows)]


def run(contender: str, shape: Shape, batches: Sequence[EventBatch]) -> Result:
    """Runs a contender over a stream."""
    push = CONTENDERS[contender](shape)
    before = peak = _resident_bytes()
    seconds = cpu_seconds = 0.0
    count, total, hashed = 0, 0, True
    for i, batch in enumerate(batches):
        until = int(batches[i + 1].ts_us[0]) if i + 1 < len(batches) else None
        begun, cpu_begun = time.perf_counter(), time.process_time()
        found = list(push(batch, until))
        seconds += time.perf_counter() - begun
        cpu_seconds += time.process_time() - cpu_begun
        peak = max(peak, _resident_bytes())
        for matches in found:
            hashed = hashed and not isinstance(matches, int)
            count += matches if isinstance(matches, int) else len(matches)
            total += 0 if isinstance(matches, int) else events_sum(matches)
    return Result(seconds, cpu_seconds, peak - before, count, f"{total % 2**64:016x}" if hashed else "")


def events_sum(matches: Matches) -> int:
    """Returns a hash of the events of each match, added up. The place of an event in its match gives its variable."""
    bounds = matches.event_bounds
    if len(bounds) < 2:
        return 0
    place = np.arange(bounds[-1]) - np.repeat(bounds[:-1], np.diff(bounds))
    word = mixed(matches.event_offset.astype(np.uint64) * np.uint64(64) + place.astype(np.uint64))
    of_match = np.add.reduceat(word, bounds[:-1]) if len(word) else word
    return int(mixed(of_match).sum())


def _matched(matcher: Matcher) -> Push:
    def push(batch: EventBatch, until_us: int | None) -> Iterator[Matches | int]:
        yield matcher.push(batch)
        yield matcher.advance(until_us)

    return push


def hierarchical(shape: Shape) -> Push:
    plan = plan_of(shape)
    if not plan.boxes:
        return _matched(make_matcher(plan))
    return _matched(HierarchyMatcher(plan, lambda layer, use: make_matcher(layer, purpose=use)))


def chosen(shape: Shape) -> Push:
    return _matched(make_matcher(plan_of(shape)))


def flat(shape: Shape) -> Push:
    plan = flattened(plan_of(shape))
    if isinstance(plan, str):
        raise ValueError(plan)
    return _matched(make_matcher(plan))


def hced(shape: Shape) -> Push:
    runs = Hced(shape)

    def push(batch: EventBatch, until_us: int | None) -> Iterator[Matches | int]:
        yield sum(1 for _ in runs.push(batch.columns))

    return push


#: By name.
CONTENDERS: Mapping[str, Callable[[Shape], Push]] = {
    "hierarchical": hierarchical, "flattened": flat, "chosen": chosen, "hced": hced,
}  # fmt: skip


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
