"""The patterns of a live query that reads several streams, or in which a pattern reads the rows of another.

A pattern has one input, or several that are merged by time. An input is a stream, whose events arrive as they are
pushed, or the rows of another pattern after the SQL between the two. Such rows take their time from one of their
columns and are held back until no earlier one can come (query.plan.lag computes how far behind the watermark a row may
be). Rows joined with history wait until their ranges are complete, and hold the later ones back meanwhile.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa

from archive.reader import WHOLE, HistoryReader, RangeRequest, positions_in
from hybrid.join.driver import Driver, HistoryStream
from hybrid.join.pattern_history import views
from hybrid.join.requests import Asking
from hybrid.join.strategies import strategy_of
from hybrid.join.strategies.base import Strategy
from hybrid.rows import duck
from hybrid.rows.answer import output_schema
from hybrid.rows.inputs import OrderedInput, table_of
from hybrid.rows.merged import Merged, MergedReader
from hybrid.rows.outer import Outer, factor_name
from hybrid.rows.taking import one_batch
from hybrid.rows.times import show_us
from hybrid.statement.statement import live_matcher
from hybrid.watch.held_rows import HeldRows
from hybrid.watch.merged_feed import held_back
from hybrid.watch.query_spec import END_US
from matching.batch import EventBatch, Matcher, Matches
from matching.budget import Budget, budget
from matching.drive import Drive
from matching.limits import over_budget
from matching.members import bytes_taken, rows_searched, share_out, spills_of
from matching.ordering import Ordering
from matching.spill import SpillStats
from matching.types import arrow_schema
from query.errors import DataError, QueryError
from query.plan.expression import Column
from query.plan.plan import FactorPlan, Order, Plan, QueryPlan, RowsOf
from query.plan.statement import FACTOR_TABLE, HISTORY_TABLE
from query.schema import Schema

if TYPE_CHECKING:
    from matching.rows import Rows
    from matching.spilled import Spilled


#: Minimum number of a pattern's rows that are kept as evidence for the matches over them.
KEPT_ROWS = 1_000_000

#: Progress of each stream, by its name in lower case: its watermark, END_US, or None.
Frontier = Mapping[str, int | None]
NO_HISTORY: Mapping[str, HistoryStream] = MappingProxyType({})


def plain(plan: QueryPlan) -> bool:
    """True if a live query is one pattern over one stream."""
    return len(plan.factors) == 1 and not plan.factors[0].members


def plan_streams(plan: QueryPlan) -> tuple[str, ...]:
    """Returns the streams that a live query reads, by name in lower case."""
    names = [sql for f in plan.factors for sql, r in zip(f.inputs, f.rows_of, strict=True) if r is None]
    return tuple(dict.fromkeys(stream_key(name) for name in names))


def streams_beside(plan: QueryPlan) -> tuple[str, ...]:
    """Returns the streams whose history the patterns below the last one, and boxes, are joined with, by name in lower
    case."""
    below = [name for factor in plan.factors[:-1] for name in histories_of(factor)]
    return tuple(dict.fromkeys([*below, *(name for factor in plan.factors for name in factor.beside)]))


def histories_of(factor: FactorPlan) -> tuple[str, ...]:
    """Returns the streams that the history joins of a pattern read, by name in lower case."""
    return tuple(dict.fromkeys(name for h in factor.histories for name in h.streams))


def stream_key(text: str) -> str:
    """Returns the lower-case name of a stream that is written plain or quoted."""
    return text.strip().strip('"').lower()


def outermost(plan: QueryPlan) -> QueryPlan:
    """Returns the part of a live query's plan that reads the rows of its last pattern."""
    last = len(plan.factors) - 1
    if not last:
        return plan
    renamed = re.sub(rf"\b({FACTOR_TABLE}|{HISTORY_TABLE}){last}(?=\b|_)", r"\g<1>0", plan.select_sql)
    return replace(plan, select_sql=renamed, factors=(plan.factors[last],))


class PatternChain:
    """Finds the matches of the last pattern of a live query. Not thread safe, and unusable after an error.

    schemas: of the streams, by name in lower case. static: the tables that SQL between patterns may read. beside: the
    streams whose history patterns below the last one are joined with, by name in lower case; strategy: when these are
    asked. Raises DataError for inputs without a total order.
    """

    __slots__ = ("_last", "_reached", "streams")

    def __init__(
        self, plan: QueryPlan, schemas: Mapping[str, Schema], static: Mapping[str, pa.Table],
        make: Callable[[Plan], Matcher], access: duck.Access = duck.NOTHING,
        beside: Mapping[str, HistoryStream] = NO_HISTORY, strategy: Strategy | None = None,
    ) -> None:
        patterns: list[_Pattern] = []
        asked = strategy_of("auto") if strategy is None else strategy
        outer = Outer(plan, static, access) if beside else None
        for i, factor in enumerate(plan.factors):
            joined = None
            if outer is not None and factor.histories and i + 1 < len(plan.factors):
                joined = _Joined(i, factor, {name: beside[name] for name in histories_of(factor)}, asked, outer)
            inputs: list[_Stream | _Rows] = []
            for k, (sql, rows_of) in enumerate(zip(factor.inputs, factor.rows_of, strict=True)):
                if rows_of is None:
                    inputs.append(_Stream(schemas[stream_key(sql)]))
                else:
                    inputs.append(_Rows(patterns[rows_of.factor], sql, rows_of, factor, k, static, access))
            patterns.append(_Pattern(factor, inputs, make, joined))
        self._last = patterns[-1]
        self.streams = self._last.streams
        self._reached: dict[str, int | None] = dict.fromkeys(self.streams)

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> list[Matches]:
        """Takes on-time events of a stream in order of arrival, or None, and its watermark after them (END_US: the
        stream has ended; None: no watermark yet). Returns the matches decided by that, in order of emission."""
        if watermark_us is not None:
            self._reached[stream] = watermark_us
        return self._last.push(stream, batch, self._reached)

    @property
    def failure(self) -> Exception | None:
        """Returns the error of a pattern, after which no more matches come; None if none has failed."""
        return next((p.drive.failure for p in self.patterns if p.drive.failure is not None), None)

    def save(self) -> dict[str, Any]:
        """Returns the whole state, for hybrid.watch.saved."""
        return {"reached": dict(self._reached), "last": self._last.save()}

    def fits(self, saved: Mapping[str, Any]) -> bool:
        """True if the chain can continue from a state that `save` returned."""
        return self._last.fits(saved["last"])

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores a state that `save` returned for the same query. Raises DataError for another query."""
        self._reached = dict(saved["reached"])
        self._last.restore(saved["last"])

    @property
    def ended(self) -> bool:
        return self.watermark_us == END_US

    @property
    def watermark_us(self) -> int | None:
        """Returns the watermark of the last pattern's input."""
        return self._last.watermark_us(self._reached)

    @property
    def held_back(self) -> int:
        """Returns the number of events and rows held back because earlier ones may come, or their history does."""
        return self._last.held_back

    @property
    def stuck(self) -> int:
        """Returns the number of matches where AFTER MATCH SKIP TO would not have moved on."""
        return self._last.stuck

    @property
    def patterns(self) -> list[_Pattern]:
        """Returns all patterns, the last one first."""
        found = [self._last]
        for pattern in found:
            found += [i.below for i in pattern.inputs if isinstance(i, _Rows) and i.below not in found]
        return found

    def declare(self, schema: Schema) -> None:
        """Adopts a declaration of a stream that differs in its lateness only."""
        for pattern in self.patterns:
            first = pattern.inputs[0]
            waits = pattern.merged is not None or pattern.factor.beside
            if not waits and isinstance(first, _Stream) and first.name == schema.name.lower():
                pattern.drive.ordering.declare(schema)

    def columns(self, stream: str) -> tuple[str, ...] | None:
        """Returns the columns of a stream that its patterns read; None: all, if it is merged with others."""
        named: set[str] = set()
        for pattern in self.patterns:
            if any(isinstance(i, _Stream) and i.name == stream for i in pattern.inputs):
                if pattern.merged is not None:
                    return None
                named.update(pattern.factor.plan.columns)
        return tuple(sorted(named))

    def reader(self, readers: Mapping[str, HistoryReader]) -> HistoryReader:
        """Returns a reader of the last pattern's input, for evidence. readers: of the streams."""
        return self._last.reader(readers)


class _Joined:
    """The histories that a pattern below another one is joined with. streams: those that they read, by name in lower
    case."""

    def __init__(
        self, i: int, factor: FactorPlan, streams: Mapping[str, HistoryStream], strategy: Strategy, outer: Outer
    ) -> None:
        self.streams = tuple(streams)
        self._histories = views(factor.histories, streams)
        self.driver = Driver(factor, strategy, live_matcher)
        # in this thread: later events may have to wait for the answer
        self._asking = Asking(self.driver, None, lambda: None)
        self._i, self._outer = i, outer

    def tables(self, found: Sequence[Matches], watermark_us: int | None) -> Iterator[dict[str, pa.Table]]:
        """Yields the rows that new matches and the progress of the streams complete, as tables of the SQL above. The
        watermark is that of the pattern's input."""
        failed: QueryError | None = None
        try:
            self.driver.take(found)
        except QueryError as error:
            failed = error
        for answer in self._asking.settle(self._histories, watermark_us, watermark_us == END_US, None):
            if len(answer):
                yield self._outer.tables(self._i, answer)
        if failed is not None:
            raise failed


class _Pattern:
    """One pattern with its inputs. joined: of one whose rows are joined with history, for the pattern above."""

    streams: tuple[str, ...]

    def __init__(
        self, factor: FactorPlan, inputs: list[_Stream | _Rows], make: Callable[[Plan], Matcher], joined: _Joined | None
    ) -> None:
        self.factor = factor
        self.inputs = inputs
        self.joined = joined
        below = [name for i in inputs for name in i.streams]
        self.streams = tuple(dict.fromkeys([*below, *(() if joined is None else joined.streams), *factor.beside]))
        self.merged = Merged(factor.schema, factor.members) if factor.members else None
        # rows of a pattern arrive in order and are not held back again
        schema = inputs[0].schema if self.merged is None else self.merged.schema
        self.drive = Drive(Ordering(held_back(schema) if factor.beside else schema), make(factor.plan))
        self.ended = False
        #: Memory limit of its partial matches, if they may leave memory; divided among its layers with each push.
        self.limit_bytes = next((spilled.limit_bytes for _, spilled in self._may_leave()), 0)

    @property
    def spill(self) -> Sequence[SpillStats]:
        """Returns the number of partial matches in memory and on disk, of each of its layers."""
        return spills_of(self.drive.matcher)

    def _may_leave(self) -> list[tuple[Rows, Spilled]]:
        return [(rows, rows.spilled) for rows in rows_searched(self.drive.matcher) if rows.spilled is not None]

    def take_trouble(self) -> list[str]:
        """See matching.feed.Feed."""
        return [trouble for _, spilled in self._may_leave() for trouble in spilled.take_trouble()]

    def push(self, stream: str, batch: EventBatch | None, reached: Frontier) -> list[Matches]:
        found: list[Matches] = []
        share_out(self.limit_bytes, self._may_leave())
        for k, source in enumerate(self.inputs):
            events = source.take(stream, batch, reached)
            if events is not None and len(events):
                found += self.drive.push(self.merged.events(k, events) if self.merged is not None else events, None)
        w = self.watermark_us(reached)
        if w == END_US and not self.ended:
            self.ended = True
            found += self.drive.advance(None)
        elif w is not None and w != END_US:
            found += self.drive.advance(w)
        if (held := budget()) is not None and held.is_due(self, 0 if batch is None else len(batch)):
            self._look(held)
        return found

    def _look(self, held: Budget) -> None:
        """Fails if it takes too much memory."""
        if self.drive.failure is None:
            together = bytes_taken(self.drive.matcher)
            gone = held.look(self, together, lambda: {"": together})
            self.drive.failure = over_budget(self.factor.plan, None, 0, held.limit_bytes) if gone else None

    def save(self) -> dict[str, Any]:
        inputs = [i.save() if isinstance(i, _Rows) else None for i in self.inputs]
        driver = None if self.joined is None else self.joined.driver.save()
        return {"drive": self.drive.snapshot(), "ended": self.ended, "inputs": inputs, "driver": driver}

    def fits(self, saved: Mapping[str, Any]) -> bool:
        below = (i.below.fits(kept["below"]) for i, kept in zip(self.inputs, saved["inputs"]) if isinstance(i, _Rows))
        return self.drive.fits(saved["drive"]) and all(below)

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.drive.restore(saved["drive"])
        self.ended = saved["ended"]
        if self.joined is not None:
            self.joined.driver.restore(saved["driver"])
        for source, kept in zip(self.inputs, saved["inputs"], strict=True):
            if isinstance(source, _Rows):
                source.restore(kept)

    def watermark_us(self, reached: Frontier) -> int | None:
        """Returns the least watermark of the inputs and of what boxes are joined with; None while one has none. A
        failure holds it at its event."""
        least = END_US
        if self.drive.failure is not None:
            if self.drive.failed_us is None:
                return None
            least = self.drive.failed_us
        for w in (*(source.watermark_us(reached) for source in self.inputs), *map(reached.get, self.factor.beside)):
            if w is None:
                return None
            least = min(least, w)
        return least

    @property
    def held_back(self) -> int:
        return len(self.drive.ordering) + sum(i.held_back for i in self.inputs)

    @property
    def stuck(self) -> int:
        return self.drive.matcher.stuck + sum(i.below.stuck for i in self.inputs if isinstance(i, _Rows))

    def reader(self, readers: Mapping[str, HistoryReader]) -> HistoryReader:
        own = [i.reader(readers) for i in self.inputs]
        return own[0] if self.merged is None else MergedReader(self.merged, [(r, WHOLE) for r in own])


class _Stream:
    """A stream as an input."""

    held_back = 0

    def __init__(self, schema: Schema) -> None:
        self.schema: Schema = schema
        self.name = schema.name.lower()
        self.streams: tuple[str, ...] = (self.name,)

    def take(self, stream: str, batch: EventBatch | None, reached: Frontier) -> EventBatch | None:
        return batch if stream == self.name else None

    def watermark_us(self, reached: Frontier) -> int | None:
        return reached[self.name]

    def reader(self, readers: Mapping[str, HistoryReader]) -> HistoryReader:
        return readers[self.name]


class _Rows:
    """The rows of a pattern as an input, numbered in their total order, which is that of a table in
    hybrid.rows.inputs."""

    def __init__(
        self, below: _Pattern, sql: str, rows_of: RowsOf, factor: FactorPlan, k: int, static: Mapping[str, pa.Table],
        access: duck.Access,
    ) -> None:
        self.below = below
        self.streams: tuple[str, ...] = below.streams
        self.time = rows_of.time
        own = factor.members[k].schema if factor.members else factor.plan.schema
        self.schema: Schema = replace(own, time=rows_of.time)
        self._sql, self._lag_us, self._static, self._access = sql, rows_of.lag_us, static, access
        self._table = factor_name(rows_of.factor)
        time = self.schema.column(rows_of.time)
        # Merged rows are ordered by time alone, as those of a table.
        by_time = (Order(Column(time.name, time.type)),)
        self._order_by = by_time if factor.members else factor.plan.order_by
        self._held = HeldRows(self.schema.name, self.time)
        self._kept: deque[EventBatch] = deque()
        self._count = 0
        self._reached_us: int | None = None

    @property
    def held_back(self) -> int:
        joined = self.below.joined
        return len(self._held) + (0 if joined is None else joined.driver.waiting_count) + self.below.held_back

    def take(self, stream: str, batch: EventBatch | None, reached: Frontier) -> EventBatch | None:
        """Returns the rows that no later row can precede."""
        if stream not in self.streams:
            return None
        found = self.below.push(stream, batch, reached)
        if self.below.joined is not None:
            for tables in self.below.joined.tables(found, self.below.watermark_us(reached)):
                self._hold(tables)
        elif found:
            rows = pa.concat_tables([m.rows for m in found])
            self._hold({self._table: rows.cast(output_schema(self.below.factor.plan))})
        self._reached_us = self.watermark_us(reached)
        return self._release(self._reached_us) if self._reached_us is not None else None

    def watermark_us(self, reached: Frontier) -> int | None:
        w = self.below.watermark_us(reached)
        waiting_us = None if self.below.joined is None else self.below.joined.driver.waiting_from_us()
        if waiting_us is not None and w is not None:
            w = min(w, waiting_us)
        if w is None or w == END_US:
            return w
        # A match may come out whose last event is behind the watermark, by no more than the lag.
        return w - self._lag_us if self._reached_us is None else max(w - self._lag_us, self._reached_us)

    def reader(self, readers: Mapping[str, HistoryReader]) -> HistoryReader:
        return _Recent(self.schema, tuple(self._kept))

    def save(self) -> dict[str, Any]:
        return {
            "below": self.below.save(), "held": list(self._held.content), "kept": list(self._kept),
            "count": self._count, "reached_us": self._reached_us,
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.below.restore(saved["below"])
        self._held.content, self._kept = saved["held"], deque(saved["kept"])
        self._count, self._reached_us = saved["count"], saved["reached_us"]

    def _hold(self, tables: Mapping[str, pa.Table]) -> None:
        connection = duck.cursor(access=self._access)
        try:
            for name, table in {**self._static, **tables}.items():
                connection.register(name, table)
            table = table_of(connection.sql(self._sql), self.schema.name)
        except duckdb.Error as error:
            raise duck.query_error(error, self._sql) from None
        least_us = self._held.add(table)
        if least_us is not None and self._reached_us is not None and least_us < self._reached_us:
            raise DataError(
                f"a row of {self.below.factor.alias} has {self.time} {show_us(least_us)}, and rows "
                f"up to {show_us(self._reached_us)} are already matched",
                "let the time of the row be that of an event of its match",
            )

    def _release(self, w: int) -> EventBatch | None:
        rows = self._held.release(w)
        if rows is None:
            return None
        ordered = OrderedInput.of(self.schema.name, rows, self._order_by, self.time, by_content=True)
        columns = one_batch(ordered.table)
        n = columns.num_rows
        columns = pa.RecordBatch.from_arrays(columns.columns, schema=arrow_schema(self.schema))
        at = np.arange(self._count, self._count + n, dtype=np.int64)
        self._count += n
        events = EventBatch(columns, ordered.ts_us, np.zeros(n, np.int32), at, at)
        self._kept.append(events)
        while self._count - int(self._kept[0].seq[-1]) > KEPT_ROWS:
            self._kept.popleft()
        return events


@dataclass(frozen=True, slots=True)
class _Recent:
    """The rows of a pattern that are still kept, in their order."""

    schema: Schema
    batches: tuple[EventBatch, ...]

    def read(self, request: RangeRequest) -> EventBatch:
        """Returns the rows of a range. Keys are not supported: no history request reads these rows."""
        assert not request.keys
        parts = []
        for batch in self.batches:
            start, stop = positions_in(batch.ts_us, request)
            if start < stop:
                parts.append(batch.slice(start, stop))
        if not parts:
            none = np.zeros(0, np.int64)
            columns = pa.RecordBatch.from_pylist([], schema=arrow_schema(self.schema))
            return EventBatch(columns, none, none.astype(np.int32), none, none)
        return EventBatch.concat(parts)
