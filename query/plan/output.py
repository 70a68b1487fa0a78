"""The output columns of a plan."""

from __future__ import annotations

from query.language.ast import RowsPerMatch
from query.plan.plan import Plan
from query.schema import Field


def output_columns(plan: Plan) -> tuple[Field, ...]:
    """Names and types of the output, in order: partition columns then measures (ONE ROW PER MATCH); partition, order,
    measures, remaining input columns (ALL ROWS PER MATCH). SQL:2016 R010, as docs/semantics.md says."""
    partition = [Field(c.name, c.type) for c in plan.partition_by]
    measures = [Field(m.name, m.type) for m in plan.measures]
    if plan.rows is RowsPerMatch.ONE:
        return (*partition, *measures)
    names = {f.name for f in partition}
    order = [Field(o.column.name, o.column.type) for o in plan.order_by if o.column.name not in names]
    names |= {f.name for f in order}
    rest = [f for f in plan.schema.fields if f.name not in names]
    return (*partition, *order, *measures, *rest)
