"""The output columns of a plan."""

from __future__ import annotations

from query.language.ast import RowsPerMatch
from query.plan.plan import Plan
from query.schema import Field


def output_columns(plan: Plan) -> tuple[Field, ...]:
    """Names and DuckDB types of the rows a plan gives, in order.

    ONE ROW PER MATCH: partition columns, then measures. ALL ROWS PER MATCH: partition columns, order columns,
    measures, then the remaining input columns.
    """
    partition = [Field(c.name, c.type) for c in plan.partition_by]
    measures = [Field(m.name, m.type) for m in plan.measures]
    if plan.rows is RowsPerMatch.ONE:
        return (*partition, *measures)
    order = [Field(o.column.name, o.column.type) for o in plan.order_by]
    front = list(dict.fromkeys([*partition, *order]))
    return (*front, *measures, *(f for f in plan.schema.fields if f not in front))
