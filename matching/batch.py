"""The input and output of a Matcher: event batches and matches, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from query.plan.plan import Plan

Int64Array = np.ndarray[tuple[int], np.dtype[np.int64]]

#: Times lie strictly between -TIME_END_US and TIME_END_US (the year 148108), so that adding a WITHIN or taking off a
#: lateness never overflows; DuckDB's 'infinity' and '-infinity' lie outside.
TIME_END_US = 2**62


@dataclass(frozen=True, slots=True)
class EventBatch:
    """n events of one input.

    columns: the declared columns, n rows, no hidden ones; a subset of them if only that was requested. ts_us: int64
    (n,), event time in microseconds UTC (zeros for an input without time). source: int32 (n,), index into `sources`;
    offset: int64 (n,), position in its source. (stream, source, offset) is the identity of an event. seq: int64 (n,),
    ingest sequence: marks the seam between memory and files, and locates the event for evidence. Rows handed to a
    Matcher are in the total order of the input: (time, tie columns, source name, offset).
    """

    columns: pa.RecordBatch
    ts_us: Int64Array
    source: np.ndarray[tuple[int], np.dtype[np.int32]]
    offset: Int64Array
    seq: Int64Array
    sources: tuple[str, ...] = ("default",)

    def __len__(self) -> int:
        return len(self.ts_us)

    def slice(self, start: int, stop: int) -> EventBatch:
        """Rows [start, stop), zero copy."""
        cut = slice(start, stop)
        return EventBatch(
            self.columns.slice(start, stop - start), self.ts_us[cut], self.source[cut], self.offset[cut], self.seq[cut],
            self.sources,
        )

    def take(self, index: Int64Array) -> EventBatch:
        """The rows at `index`, in that order."""
        source = self.source.take(index) if len(self.sources) > 1 else np.zeros(len(index), np.int32)
        return EventBatch(
            self.columns.take(pa.array(index)), self.ts_us.take(index), source, self.offset.take(index),
            self.seq.take(index), self.sources,
        )

    @staticmethod
    def concat(batches: Sequence[EventBatch], sources: tuple[str, ...] | None = None) -> EventBatch:
        """Concatenates one batch or more; a single batch with exactly these sources is returned unchanged. sources: of
        the result, a superset of those of all rows (None: all names in the batches)."""
        if sources is None:
            sources = tuple(dict.fromkeys(name for batch in batches for name in batch.sources))
        if len(batches) == 1 and batches[0].sources == sources:
            return batches[0]
        source = []
        places = {name: place for place, name in enumerate(sources)}
        for batch in batches:
            # A batch may name sources it has no rows of.
            index = [places.get(name, 0) for name in batch.sources]
            source.append(batch.source if index == list(range(len(index))) else np.array(index, np.int32)[batch.source])
        if len(batches) == 1:
            only = batches[0]
            return EventBatch(only.columns, only.ts_us, source[0], only.offset, only.seq, sources)
        return EventBatch(
            pa.concat_batches([batch.columns for batch in batches]),
            np.concatenate([batch.ts_us for batch in batches]),
            np.concatenate(source),
            np.concatenate([batch.offset for batch in batches]),
            np.concatenate([batch.seq for batch in batches]),
            sources,
        )


@dataclass(frozen=True, slots=True)
class Ends:
    """The ends of n matches, from which their events can be found again. first_seq, last_seq: int64 (n,), the ingest
    sequences of the first and the last event of each match. low_us, high_us: the earliest first and the latest last
    event time of all matches."""

    first_seq: Int64Array
    last_seq: Int64Array
    low_us: int
    high_us: int

    @staticmethod
    def concat(parts: Sequence[Ends]) -> Ends | None:
        """Concatenates ends; None without any."""
        if not parts:
            return None
        first, last = (np.concatenate([getattr(e, n) for e in parts]) for n in ("first_seq", "last_seq"))
        return Ends(first, last, min(e.low_us for e in parts), max(e.high_us for e in parts))


@dataclass(frozen=True, slots=True)
class Matches:
    """n matches in order of emission, with the output rows and the evidence.

    rows: the output rows: partition columns then measures (ONE ROW PER MATCH); partition, order, measures, remaining
    columns (ALL ROWS PER MATCH). row_match: int64, for each output row the index of its match. number: int64 (n,),
    MATCH_NUMBER; if the plan does not read it, it restarts after a key was idle. first_us, last_us: int64 (n,) times of
    the first and last matched event (of the start row, for an empty match). Evidence: the matched events of match i are
    event_*[event_bounds[i]:event_bounds[i+1]], in order; event_variable is an index into `variables`. ends: replaces
    times and evidence, see matching.purpose; contiguous matches then keep only the variables of their events. ids:
    int64 (n, 2), the match ids (matching.identity), if the purpose includes them. decided_seq: int64 (n,), the ingest
    sequence of the row that decided each match, if they were found key by key and come in no order of rows.
    """

    rows: pa.Table
    row_match: Int64Array
    number: Int64Array
    first_us: Int64Array
    last_us: Int64Array
    event_bounds: Int64Array
    event_variable: np.ndarray[tuple[int], np.dtype[np.int16]]
    event_ts_us: Int64Array
    event_source: np.ndarray[tuple[int], np.dtype[np.int32]]
    event_offset: Int64Array
    event_seq: Int64Array
    variables: tuple[str, ...]
    sources: tuple[str, ...]
    outcome: np.ndarray[tuple[int], np.dtype[np.int8]] | None = None
    ends: Ends | None = None
    ids: np.ndarray | None = None
    decided_seq: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.number)


class Matcher(Protocol):
    """Finds the matches of one plan in one input. Not thread safe.

    push takes the next events of the total order and returns the matches decided by them. advance announces that no
    event with time < watermark_us can still come (None: the input has ended) and returns the matches decided by that:
    runs expire when watermark_us > first + WITHIN. snapshot is the state that another matcher needs to continue; fits
    is True if it can be restored: it is of the same plan, and of a release that gives its numbers the same meaning.
    stuck: number of matches from which AFTER MATCH SKIP TO would not have moved on; only a lenient matcher continues
    after one.
    """

    plan: Plan

    @property
    def stuck(self) -> int: ...

    def push(self, batch: EventBatch) -> Matches: ...
    def advance(self, watermark_us: int | None) -> Matches: ...
    def snapshot(self) -> bytes: ...
    def fits(self, state: bytes) -> bool: ...
    def restore(self, state: bytes) -> None: ...
