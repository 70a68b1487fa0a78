"""The output columns of a plan."""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

from query.language.ast import RowsPerMatch
from query.plan.pattern import min_rows
from query.plan.plan import Plan
from query.plan.trends import WINDOW_COLUMNS
from query.schema import Field

#: Columns that TIMEOUT ROWS adds after all others: the variables of the (partial) match's rows in order, and the
#: variables that a partial match was waiting for at its timeout (`waiting for B, C`), null for a match.
TIMEOUT_COLUMNS = (Field("labels", "VARCHAR[]"), Field("timeout", "VARCHAR"))


class Outcome(IntEnum):
    """The outcome of an attempt: a match, an unmatched row (WITH UNMATCHED ROWS), or a partial match that timed out
    (TIMEOUT ROWS)."""

    MATCH = 0
    UNMATCHED = 1
    TIMEOUT = 2


def has_others(plan: Plan) -> bool:
    """True if rows may be of other attempts than matches with rows: timeouts, unmatched rows and empty matches."""
    return plan.timeout_rows or plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED or not min_rows(plan.pattern)


def output_columns(plan: Plan) -> tuple[Field, ...]:
    """Returns names and DuckDB types of a plan's rows, in order.

    ONE ROW PER MATCH: partition columns, then measures. ALL ROWS PER MATCH: partition columns, order columns, measures,
    then the remaining input columns. TIMEOUT ROWS adds TIMEOUT_COLUMNS. ONE ROW PER WINDOW: the window's bounds, the
    groups, then measures.
    """
    if plan.trends is not None:
        groups = [Field(c.name, c.type) for c in plan.trends.group_by]
        zoned = any(o.column.type == "TIMESTAMP WITH TIME ZONE" for o in plan.order_by[:1])
        bounds = [replace(f, type=plan.order_by[0].column.type) if zoned else f for f in WINDOW_COLUMNS]
        return (*bounds, *groups, *(Field(m.name, m.type) for m in plan.measures))
    front = front_columns(plan)
    measures = [Field(m.name, m.type) for m in plan.measures]
    behind = TIMEOUT_COLUMNS if plan.timeout_rows else ()
    if plan.rows is RowsPerMatch.ONE:
        return (*front, *measures, *behind)
    return (*front, *measures, *(f for f in plan.schema.fields if f not in front), *behind)


def front_columns(plan: Plan) -> tuple[Field, ...]:
    """Returns the columns of a plan's rows before its measures, unless they are rows of windows."""
    partition = [Field(c.name, c.type) for c in plan.partition_by]
    order = [Field(o.column.name, o.column.type) for o in plan.order_by]
    return tuple(partition if plan.rows is RowsPerMatch.ONE else dict.fromkeys([*partition, *order]))
