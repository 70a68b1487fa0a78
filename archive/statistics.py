"""What is known of a stream's history without reading it all, for those who decide how to search it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from archive.recent import KeyRange
from archive.search.search import key_column
from archive.snapshot import HistorySnapshot
from matching.batch import EventBatch
from query.plan.plan import Plan

#: Events that a pattern is tried on.
SAMPLE_EVENTS = 500_000


@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """events: in files and in memory, late ones among them; recent: in memory. first_us, last_us: bounds of their
    times, None without any. files, archived_bytes: of the table. keys: for each key column about how many values it
    has."""

    events: int
    recent: int
    first_us: int | None
    last_us: int | None
    files: int
    archived_bytes: int
    keys: Mapping[str, int]

    @property
    def per_second(self) -> float:
        if self.first_us is None or self.last_us is None:
            return 0.0
        return self.events * 1e6 / max(self.last_us - self.first_us, 1)

    def events_per_value(self, column: str) -> float:
        """About how many events there are of one value of a key."""
        return self.events / max(self.keys[column], 1)


@dataclass(frozen=True, slots=True)
class PatternStatistics:
    """What came of a pattern in a sample. events: that were read; matches: in them; values: how many values of the key
    they have (None: the pattern cannot be cut by one). whole: the sample is everything there is."""

    events: int
    matches: int
    values: int | None
    whole: bool

    @property
    def per_event(self) -> float:
        return self.matches / max(self.events, 1)

    @property
    def per_value(self) -> float | None:
        return None if self.values is None else self.matches / max(self.values, 1)


def stream_statistics(snapshot: HistorySnapshot) -> StreamStatistics:
    """Statistics of files and memory; the keys are counted in their columns: a tenth of a second for 10 M events."""
    span, files, size = snapshot.extent()
    first_us, last_us = span if span is not None else (None, None)
    keys = {name: snapshot.distinct(name) for name in snapshot.schema.keys}
    return StreamStatistics(
        snapshot.rows_max, len(snapshot.recent(late=True)), first_us, last_us, files, size, keys
    )


def pattern_statistics(
    snapshot: HistorySnapshot, plan: Plan, events_max: int = SAMPLE_EVENTS, late: bool = False
) -> PatternStatistics:
    """Tries a pattern on about so many events: on the whole history of some keys, evenly chosen, where matches lie in
    single keys, and otherwise on the last part of the history. A match that would begin before that part is not seen,
    so a pattern that is longer than the part is underrated."""
    from matching.engines.engine import Purpose
    from matching.matcher import make_matcher

    total, _ = snapshot.stretch_rows()
    column = key_column(plan, snapshot.schema)
    matcher = make_matcher(plan, purpose=Purpose.ROWS)
    events = matches = 0
    values: set[object] | None = None if column is None else set()

    def take(batch: EventBatch) -> None:
        nonlocal events, matches
        events += len(batch)
        matches += len(matcher.push(batch))
        if values is not None and column is not None:
            values.update(batch.columns.column(column).unique().to_pylist())

    if total <= events_max:
        for batch in snapshot.batches(None, None, late=late, columns=plan.columns):
            take(batch)
    elif column is None:
        low_us = snapshot.time_before_last(events_max)
        for batch in snapshot.batches(low_us, None, late=late, columns=plan.columns):
            take(batch)
    else:
        # A few of many ranges of the key, one after the other: a matcher takes times in order, so each gets its own.
        parts = -(-total // events_max) * 4
        cuts = snapshot.key_cuts(column, parts, late=late)
        edges = [None, *cuts, None]
        chosen = np.unique(np.linspace(0, len(edges) - 2, min(4, len(edges) - 1)).astype(np.int64))
        for i in chosen.tolist():
            span = KeyRange(column, edges[i], edges[i + 1])
            for batch in snapshot.batches(None, None, late=late, columns=plan.columns, span=span):
                take(batch)
            matches += len(matcher.advance(None))
            matcher = make_matcher(plan, purpose=Purpose.ROWS)
    matches += len(matcher.advance(None))
    return PatternStatistics(events, matches, None if values is None else len(values), total <= events_max)
