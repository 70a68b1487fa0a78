"""Plans written by hand: a pattern, its conditions, and what differs from the defaults."""

from __future__ import annotations

from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import TRUE, Column, Expression, Navigation
from query.plan.pattern import (
    Anchor,
    Repeat,
    RowPattern,
    Sequence,
    Variable,
    negated,
    variables,
)
from query.plan.plan import AfterMatch, Define, Order, Plan
from query.schema import Field, Schema

SCHEMA = Schema("ticks", (Field("ts", "TIMESTAMP"), Field("price", "DOUBLE"), Field("vol", "BIGINT")), time="ts")
TS, PRICE, VOL = (Column(f.name, f.type) for f in SCHEMA.fields)
A, B, C, D, S = map(Variable, "ABCDS")
START, END = Anchor(True), Anchor(False)


def plan_of(pattern: RowPattern, conditions: dict[str, Expression] | None = None, **changes: object) -> Plan:
    names = (*variables(pattern), *negated(pattern))
    fields: dict[str, object] = {
        "schema": SCHEMA, "partition_by": (), "order_by": (Order(TS),), "measures": (), "rows": RowsPerMatch.ONE,
        "after": AfterMatch(AfterMatchKind.PAST_LAST_ROW), "pattern": pattern, "within": None,
        "selection": Selection.PARTITION, "subsets": (),
        "defines": tuple(Define(n, (conditions or {}).get(n, TRUE)) for n in names),
    }  # fmt: skip
    return Plan(**(fields | changes))  # type: ignore[arg-type]


def sequence(*parts: RowPattern) -> Sequence:
    return Sequence(parts)


def star(body: RowPattern, greedy: bool = True) -> Repeat:
    return Repeat(body, 0, None, greedy)


def option(body: RowPattern, greedy: bool = True) -> Repeat:
    return Repeat(body, 0, 1, greedy)


def previous(column: Column) -> Navigation:
    return Navigation(column, (), None, 0, -1, False, column.type)
