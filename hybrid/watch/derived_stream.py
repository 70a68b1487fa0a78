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
from matching.types import duckdb_type, holds_digits
from query.errors import DataError, QueryError, Span, nearest
from query.plan.joined_rows import joined_faults, rows_after_us
from query.plan.lag import lag_us
from query.plan.plan import QueryPlan
from query.plan.statement import origin
from query.plan.trends import WINDOW_COLUMNS


@dataclass(frozen=True, slots=True)
class Pour:
    """A live query whose rows feed a stream.

    reads: the streams it reads, those of its histories included, by name in lower case; target: the one it feeds.
    lag_us: how far behind `reached` a row may come out. reached: the watermark of the input, held back by rows that
    wait for their history (END_US: no row can come; None: no watermark yet).
    """

    alerts: Alerts
    reads: frozenset[str]
    target: str
    lag_us: int
    reached: Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class DerivedDeclaration:
    """The declaration of a stream of a query's rows; the names are those of Database.create_stream."""

    columns: dict[str, str]
    time: str
    order: tuple[str, ...]
    lateness: timedelta
    lag_us: int


def rows_as_events(plan: QueryPlan, schema: pa.Schema, time: str | None) -> DerivedDeclaration:
    """Returns the declaration that makes the rows of a live query events. schema: of the rows; time: their time column,
    or None if they have exactly one, or are of windows, which come out at their ends. Events of equal time are ordered
    by the other columns, independent of emission order.

    Raises QueryError if a row may come out any time after its time, DataError for an invalid time column."""
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
