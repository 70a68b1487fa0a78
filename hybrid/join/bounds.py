"""Evaluates the bounds of the ranges in which live matches are joined with history."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

from hybrid.join.candidates import Ranges
from hybrid.join.history_cache import FAR_US
from hybrid.rows import duck
from query.plan.plan import HistoryPlan
from query.plan.typed import ZONED


def ranges_of(history: HistoryPlan, live_alias: str, live: pa.Table) -> Ranges:
    """Evaluates the bounds of a history join over PL's output rows, as DuckDB does. A null bound gives an empty range.

    live_alias: SQL of the alias of these rows."""
    shifted = _shifted(history, live)
    if shifted is not None:
        return shifted
    connection = duck.cursor(settings=history.settings)
    connection.register("__hybrid_live", live)

    time = history.schema.column(history.schema.time or "").type
    type = time if time == ZONED else "TIMESTAMP"  # as in a comparison with the time column, in the session's time zone
    low_sql, high_sql = (f"CAST(({sql}) AS {type})" for sql in (history.low_sql, history.high_sql))
    try:
        bounds = connection.sql(f"SELECT {low_sql} AS low, {high_sql} AS high FROM __hybrid_live AS {live_alias}")
        table = bounds.to_arrow_table()
    except duckdb.Error as error:
        raise duck.query_error(error, f"{history.low_sql} {history.high_sql}", code="HQ301") from None
    known = _known(table, "low") & _known(table, "high")
    # DuckDB's infinities are the ends of int64
    low, high = (
        np.clip(np.asarray(table.column(c).cast(pa.int64()).fill_null(0).to_numpy(), np.int64), -FAR_US, FAR_US)
        for c in ("low", "high")
    )
    last = high if history.closed else high - 1
    return Ranges(np.where(known, low, 0), np.where(known, last, -1))


def _shifted(history: HistoryPlan, live: pa.Table) -> Ranges | None:
    """Evaluates the bounds without DuckDB, in microseconds, if both are a time of the match plus a constant duration;
    else returns None."""
    low, high = history.low_shift, history.high_shift
    if low is None or high is None or history.settings:
        return None
    known, bounds = np.ones(live.num_rows, bool), []
    for shift in (low, high):
        column = live.column(shift.column)
        if column.type != pa.timestamp("us"):
            return None
        us = np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(), np.int64)
        if len(us) and (us.min() < -FAR_US or us.max() > FAR_US):
            return None  # an infinity stays one
        bounds.append(np.clip(us + shift.us, -FAR_US, FAR_US))
        known &= np.asarray(column.is_valid().to_numpy(), bool)
    last = bounds[1] if history.closed else bounds[1] - 1
    return Ranges(np.where(known, bounds[0], 0), np.where(known, last, -1))


def _known(table: pa.Table, column: str) -> np.ndarray:
    return np.asarray(table.column(column).is_valid().to_numpy(), bool)
