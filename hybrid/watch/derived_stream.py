"""Derived streams: the rows of a live query as the events of a stream, their declaration and their lag."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from hybrid.rows.faults import fault
from hybrid.rows.inputs import TIME_TYPES
from hybrid.watch.alerts import Alerts
from hybrid.watch.held_rows import HeldRows
from hybrid.watch.query_spec import END_US
from matching.types import duckdb_type, holds_digits
from query.errors import DataError, QueryError, Span, nearest
from query.plan.joined_rows import joined_faults, rows_after_us
from query.plan.lag import in_order_of_last_events, lag_us
from query.plan.plan import QueryPlan
from query.plan.statement import origin
from query.plan.trends import WINDOW_COLUMNS


@dataclass(frozen=True, slots=True)
class Pour:
    """A live query whose rows feed a stream.

    reads: the streams it reads, those of its histories included, by name in lower case; target: the one it feeds.
    lag_us: how far behind `reached` a row may come out. reached: the watermark of the input, held back by rows that
    wait for their history (END_US: no row can come; None: no watermark yet). held: where the order in which rows come
    out depends on how events come: what holds them back, so that their offsets are those of a table of them.
    """

    alerts: Alerts
    reads: frozenset[str]
    target: str
    lag_us: int
    reached: Callable[[], int | None]
    held: HeldRows | None = None

    @property
    def before_us(self) -> int | None:
        """Returns the time before which no row can come any more; END_US if none can come, None if that is unknown."""
        reached_us = self.reached()
        return reached_us if reached_us is None or reached_us == END_US else reached_us - self.lag_us

    def fetch(self, whole: bool = False) -> pa.Table:
        """Returns the rows that are ready for the stream. whole: those that are still held, too, as when the query has
        failed. Raises the error of the query after its rows, and DataError for a row without a time."""
        held = self.held is not None and len(self.held) > 0 and self.alerts.failed and not self.alerts.unread_count
        rows = self.alerts.schema.empty_table() if held else self.alerts.take()
        whole = whole or self.alerts.failed
        if self.held is None:
            return rows
        self.held.add(rows)
        before_us = self.before_us
        ready = self.held.release(None if whole or before_us == END_US else -END_US if before_us is None else before_us)
        return rows.schema.empty_table() if ready is None else self.held.sorted(ready)

    def put_back(self, rows: pa.Table) -> None:
        """Keeps fetched rows that the stream has not taken."""
        if self.held is None:
            self.alerts.put_back()
        else:
            self.held.add(rows)


@dataclass(frozen=True, slots=True)
class DerivedDeclaration:
    """The declaration of a stream of a query's rows; the names are those of Database.create_stream."""

    columns: dict[str, str]
    time: str
    order: tuple[str, ...]
    lateness: timedelta
    lag_us: int


def held_rows(plan: QueryPlan, rows: DerivedDeclaration, name: str) -> HeldRows | None:
    """Returns what holds the rows of a query back, or None if they come out in one order, however events come."""
    last = plan.factors[-1].plan
    ordered = last.trends is not None or in_order_of_last_events(last)
    return None if ordered else HeldRows(name, rows.time)


def rows_as_events(plan: QueryPlan, schema: pa.Schema, time: str | None) -> DerivedDeclaration:
    """Returns the declaration that makes the rows of a live query events. schema: of the rows; time: their time column,
    or None if they have exactly one, or are of windows, which come out at their ends. Events of equal time are ordered
    by the other columns, independent of emission order.

    Raises QueryError if a row may come out any time after its time, DataError for an invalid time column."""
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in seen:
            raise DataError(f"the rows have two columns {name}", "give one of them another name with AS")
        seen.add(name.lower())
    columns = {field.name: duckdb_type(field.type) for field in schema}
    for field in filter(holds_digits, schema):
        message = f"{field.name} is a BIGNUM, a number of any size, which a stream does not hold yet"
        raise DataError(message, f"cast it in the SELECT: {field.name}::DOUBLE AS {field.name}, or ::BIGINT")
    times = [name for name, type in columns.items() if type in TIME_TYPES]
    if time is None and plan.factors[-1].plan.trends is not None:
        times = [WINDOW_COLUMNS[1].name] if WINDOW_COLUMNS[1].name in times else times
    if time is None:
        if len(times) != 1:
            has = f"have several times: {', '.join(times)}" if times else "have no column of time"
            raise DataError(f"the rows {has}", "name the time column: watch(text, into=name, time=column)")
        time = times[0]
    found = next((name for name in columns if name.lower() == time.lower()), None)
    if found is None or found not in times:
        raise DataError(f"the rows have no time column {time}", nearest(time, times))
    traced = origin(plan.select_sql, found)
    if faults := list(joined_faults(plan.factors[-1], found, traced, Span(0, len(plan.text)))):
        raise QueryError(faults, plan.text)
    lag = lag_us(plan.factors[-1].plan, None if traced is None else traced[1])
    if lag is None:
        alias = plan.factors[-1].alias
        hint = f"add WITHIN INTERVAL '...' to {alias}, or let each match end with its last event and take its time"
        raise fault("HQ220", f"rows of {alias} may come out any time after {found}", plan.text, hint)
    order = tuple(f.name for f in schema if f.name != found and not _has_no_order(f.type))
    waits_us = max(rows_after_us(plan.factors[-1]), 0)
    lateness = timedelta(microseconds=max(lag + waits_us, 1))  # lateness 0 would hold nothing back
    return DerivedDeclaration(columns, found, order, lateness, lag)


def _has_no_order(type: Any) -> bool:
    return pa.types.is_nested(type) or pa.types.is_interval(type)
