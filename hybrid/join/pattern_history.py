"""The rows of a named pattern as a history: found again for each request, in the events that can be part of them.

A row has the time of the last event of its match. It is there once the live pattern would have emitted it, so that the
history is that of a stream into which a live query has put the rows from the start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.reader import HistoryReader, RangeRequest, Values
from hybrid.join.driver import HistoryStream
from hybrid.rows.inputs import order_index
from hybrid.rows.merged import Merged, MergedReader
from hybrid.rows.taking import one_batch
from matching.batch import EventBatch, Matcher, Matches
from matching.identity import id_lanes
from matching.types import arrow_schema
from query.plan.boxes import common_keys
from query.plan.expression import Column
from query.plan.fingerprint import fingerprint
from query.plan.lag import last_event_lag_us
from query.plan.plan import Box, HistoryPlan, Order, Plan

S = TypeVar("S", bound=HistoryStream)


def views(histories: Sequence[HistoryPlan], streams: Mapping[str, S]) -> dict[str, S | PatternHistory]:
    """Returns the histories of a factor by name in lower case. streams: those that they read."""
    found: dict[str, S | PatternHistory] = {}
    for history in histories:
        sources = [streams[name] for name in history.streams]
        name = history.schema.name.lower()
        found[name] = sources[0] if history.rows_of is None else PatternHistory.of(history, sources)
    return found


class _Search:
    """Finds the matches of a pattern in bounded inputs. Calls wait for each other."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._lock = Lock()
        self._matcher: Matcher | None = None
        self._empty = b""

    def __call__(self, events: EventBatch, watermark_us: int | None) -> list[Matches]:
        """Returns the matches that are decided at a watermark; None: at the end."""
        from matching.matcher import make_matcher  # loads the kernels

        with self._lock:
            if self._matcher is None:
                self._matcher = make_matcher(self.plan, lenient=True)
                self._empty = self._matcher.snapshot()
            self._matcher.restore(self._empty)
            return [self._matcher.push(events), self._matcher.advance(watermark_us)]


@dataclass(frozen=True, slots=True)
class PatternHistory:
    """See hybrid.join.driver.HistoryStream. history: its rows_of is the pattern; sources: the streams that it
    reads."""

    history: HistoryPlan
    box: Box
    sources: tuple[HistoryStream, ...]
    search: _Search

    @staticmethod
    def of(history: HistoryPlan, sources: Sequence[HistoryStream]) -> PatternHistory:
        box = history.rows_of
        assert box is not None
        return PatternHistory(history, box, tuple(sources), _Search(box.plan))

    def _reached_us(self) -> int | None:
        """Returns the least watermark of the streams that go on; None while one has none, and if none goes on."""
        reached = [source.watermark_us for source in self.sources if not source.ended]
        return None if None in reached else min((w for w in reached if w is not None), default=None)

    @property
    def watermark_us(self) -> int | None:
        watermark_us, lag_us = self._reached_us(), last_event_lag_us(self.box.plan)
        return None if watermark_us is None or lag_us is None else watermark_us - lag_us

    @property
    def ended(self) -> bool:
        return all(source.ended for source in self.sources)

    @property
    def revision(self) -> object:
        return tuple(source.revision for source in self.sources)

    def begins_us(self) -> int | None:
        """Returns the first instant of complete history. Of a stream that drops events, matches that began before these
        may lack."""
        reach_us, begins = self.history.reach_us, []
        for source, read in zip(self.sources, self.box.inputs, strict=True):
            begins_us = source.begins_us()
            if begins_us is not None and read.schema.retention_us is not None:
                if reach_us is None:
                    return None
                begins_us += reach_us
            begins += [] if begins_us is None else [begins_us]
        return max(begins, default=None)

    def reader(self, in_files: bool = False) -> HistoryReader:
        readers = tuple(source.reader() for source in self.sources)
        return PatternReader(self.history, self.box, readers, self.search, self._reached_us(), self.ended)


@dataclass(frozen=True, slots=True)
class PatternReader:
    """Reads the rows of a pattern by the times of their last events. sources: of its streams; watermark_us: the least
    of theirs; ended: all have ended."""

    history: HistoryPlan
    box: Box
    sources: tuple[HistoryReader, ...]
    search: _Search
    watermark_us: int | None
    ended: bool

    def read(self, request: RangeRequest) -> EventBatch:
        """Returns the rows of a range, by time, then by content, as a stream of rows orders them."""
        plan = self.box.plan
        reach_us, lag_us = self.history.reach_us, last_event_lag_us(plan)
        low_us = None if request.low_us is None or reach_us is None else int(request.low_us) - reach_us
        until_us = None if request.end_us is None or lag_us is None else request.end_us + lag_us
        if not self.ended:
            reached_us = self.watermark_us
            until_us = reached_us if until_us is None or reached_us is None else min(until_us, reached_us)
        if until_us is None and not self.ended:
            events = self._events(RangeRequest(0, 0))  # nothing is decided yet
        else:
            events = self._events(RangeRequest(low_us, until_us, keys=self._keys(request), late=request.late))
        return self._rows(self.search(events, until_us), request)

    def _events(self, request: RangeRequest) -> EventBatch:
        merged = self.history.merged
        if merged is None:
            return self.sources[0].read(replace(request, columns=self.box.plan.columns))
        readers = [(reader, RangeRequest(late=request.late)) for reader in self.sources]
        return MergedReader(Merged(merged, self.box.inputs), readers).read(replace(request, keys=None))

    def _keys(self, request: RangeRequest) -> dict[str, Values] | None:
        """Returns the part of the keys that events of other values do not affect."""
        common = {name.lower() for name in common_keys(self.box.plan)}
        shown = {column: name for column, name in self.box.columns if name.lower() in common}
        found = {shown[column]: values for column, values in (request.keys or {}).items() if column in shown}
        return found or None

    def _rows(self, found: Sequence[Matches], request: RangeRequest) -> EventBatch:
        mark = fingerprint(self.box.plan)
        lanes = [
            id_lanes(mark, m.event_bounds, m.event_variable, m.event_source, m.event_offset, m.variables, m.sources)
            for m in found
        ]
        # the id of a match says which row it is, whichever events were read to find it
        number = np.concatenate(lanes)[:, 0] & np.int64(2**62 - 1)
        ts_us = np.concatenate([m.last_us for m in found])
        schema, fields = self.history.schema, arrow_schema(self.history.schema)
        rows = pa.concat_tables([m.rows for m in found])
        columns = [
            rows.column(name).cast(field.type).combine_chunks()
            for field, (_, name) in zip(fields, self.box.columns, strict=True)
        ]
        kept = np.ones(len(ts_us), np.bool_)
        if request.low_us is not None:
            kept &= ts_us >= request.low_us
        if request.end_us is not None:
            kept &= ts_us < request.end_us
        for name, values in (request.keys or {}).items():
            column = columns[schema.names.index(name)]
            wanted = values if isinstance(values, pa.Array) else pa.array(list(values), column.type)
            kept &= np.asarray(pc.is_in(column, value_set=wanted.cast(column.type)))
        index = np.flatnonzero(kept)
        table = pa.Table.from_arrays(columns, schema=fields).take(pa.array(index))
        time = schema.column(schema.time or "")
        order = order_index(table, (Order(Column(time.name, time.type)),), by_content=True)
        if order is not None:
            index, table = index[order], table.take(pa.array(order))
        number = number[index]
        return EventBatch(
            one_batch(table), ts_us[index], np.zeros(len(index), np.int32), number, number, ("default",)
        )
