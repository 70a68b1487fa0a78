"""Boxes: row pattern variables that stand for matches of another pattern, and the rows that a pattern with boxes reads.

Such a pattern reads its own input merged with the matches of its boxes. A match is a row with the interval from its
first to its last event, and stands right after its last event. `over_rows` writes what intervals mean as conditions on
these rows: then any matcher of plain rows finds the matches ([HIERARCHY]; composition is the meaning).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from query.language.ast import Selection
from query.plan.expression import TRUE, Call, Column, Constant, Expression, Logical, Navigation
from query.plan.pattern import Negation, RowPattern, Sequence, rows_before, variables
from query.schema import Field, Schema

if TYPE_CHECKING:
    from query.plan.plan import Plan

#: Of a merged row: the box's pattern (0: an event of FROM), and the positions of its first and last event among those
#: of FROM.
KIND, FIRST, LAST = Field("#kind", "INTEGER"), Field("#first", "BIGINT"), Field("#last", "BIGINT")
#: The times of its first and last event, in microseconds.
FIRST_US, LAST_US = Field("#first_us", "BIGINT"), Field("#last_us", "BIGINT")
#: The number of events before its first one, and up to its last one: a row follows another without an event between
#: them if its `before` is the other's `upto`. Counted are those of the partition, or of all under STRICT.
BEFORE, UPTO = Field("#before", "BIGINT"), Field("#upto", "BIGINT")
#: The columns t0 and t1 of a variable.
TIMES = ("t0", "t1")


@dataclass(frozen=True, slots=True)
class Box:
    """`variable AS PATTERN name`: the variable takes matches of `plan`, a pattern over the same input.

    columns: of its matches, each with the output column of the plan that it shows."""

    variable: str
    name: str
    plan: Plan
    columns: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.variable} AS PATTERN {self.name}"


def modules(boxes: tuple[Box, ...]) -> tuple[Box, ...]:
    """Returns the first box of each pattern, in order. The k-th has KIND k + 1."""
    return tuple({box.name: box for box in reversed(boxes)}[name] for name in dict.fromkeys(b.name for b in boxes))


def kind_of(boxes: tuple[Box, ...], variable: str) -> int:
    """Returns the KIND of the rows that a variable takes."""
    name = next((box.name for box in boxes if box.variable == variable), None)
    return next((k for k, box in enumerate(modules(boxes), 1) if box.name == name), 0)


def column_of(box: Box, column: str) -> str:
    """Returns the merged column that holds a column of a box."""
    return f"{box.name}.{column}"


def merged_schema(schema: Schema, boxes: tuple[Box, ...], time: Column) -> Schema:
    """Returns the columns of merged rows: those of FROM, null in matches unless they are the time or columns of
    PARTITION BY; those of each pattern, null elsewhere; and the interval. time: of ORDER BY."""
    from query.plan.output import output_columns

    fields = list(schema.fields)
    for box in modules(boxes):
        types = {c.name: c.type for c in output_columns(box.plan)}
        fields += [Field(column_of(box, shown), types[name]) for shown, name in box.columns]
    fields += [Field(f"#{name}", time.type) for name in TIMES]
    return replace(schema, fields=(*fields, KIND, FIRST, LAST, FIRST_US, LAST_US, BEFORE, UPTO))


@lru_cache(maxsize=256)
def over_rows(plan: Plan) -> Plan:
    """Returns the plain pattern over merged rows that finds the matches of a pattern with boxes.

    Raises ValueError, with the reason, where conditions on rows cannot say what intervals mean."""
    begin = {name for name, least in rows_before(plan.pattern).items() if not least}
    boxed = {box.variable for box in plan.boxes}
    gaps = dict(_gaps(plan.pattern))
    defines = []
    for define in plan.defines:
        name = define.variable
        parts: list[Expression] = [_call("=", _KIND, Constant(kind_of(plan.boxes, name), "INTEGER"))]
        if name in gaps:
            parts += _in_gap(plan, name, gaps[name], boxed)
        else:
            parts += _after_the_row_before(plan, begin, name in boxed, name in begin)
        parts += [define.condition] if define.condition != TRUE else []
        defines.append(replace(define, condition=Call("and", tuple(parts), "BOOLEAN") if parts[1:] else parts[0]))
    passes = plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
    selection = plan.selection if passes else Selection.SKIP_TILL_ANY
    schema = merged_schema(plan.schema, plan.boxes, plan.order_by[0].column)
    return replace(plan, schema=schema, boxes=(), defines=tuple(defines), selection=selection)


def _after_the_row_before(plan: Plan, begin: set[str], boxed: bool, begins: bool) -> Iterator[Expression]:
    """Yields the conditions of a variable that takes rows: after the row before it in the match, next to it if the
    strategy asks for that, and within WITHIN of the earliest event."""
    before = Navigation(_LAST, (), Logical.LAST, 1, 0, False, _LAST.type)
    if boxed:  # an event stands after the last event of any row before it
        yield _or_first(_call(">", _FIRST, before), begins, before)
    if plan.selection in (Selection.STRICT, Selection.PARTITION):
        upto = Navigation(_UPTO, (), Logical.LAST, 1, 0, False, _UPTO.type)
        yield _or_first(_call("=", _BEFORE, upto), begins, before)
    if plan.within is not None and plan.within.interval_us is not None and begin & {box.variable for box in plan.boxes}:
        # WITHIN counts from the first row's last event
        first = Navigation(_FIRST_US, (), Logical.FIRST, 0, 0, False, _FIRST_US.type)
        yield _call("<=", _call("-", _LAST_US, first), Constant(plan.within.interval_us, "BIGINT"))


def _in_gap(plan: Plan, name: str, gap: tuple[RowPattern, RowPattern], boxed: set[str]) -> Iterator[Expression]:
    """Yields the conditions of a negated variable: its rows lie wholly between those before and after the gap."""
    before, behind = (variables(side) for side in gap)
    if set(before) & set(behind):
        both = sorted(set(before) & set(behind))[0]
        raise ValueError(f"~{name} lies between two places of {both}: give one of them another name")
    first_row = Navigation(_FIRST_US, before or behind, Logical.FIRST, 0, 0, False, _FIRST_US.type)
    within = None if plan.within is None else plan.within.interval_us
    if before and name in boxed:
        yield _call(">", _FIRST, Navigation(_LAST, before, Logical.LAST, 0, 0, False, _LAST.type))
    if behind and (boxed & set(behind)):
        yield _call("<", _LAST, Navigation(_FIRST, behind, Logical.FIRST, 0, 0, False, _FIRST.type))
    if within is None:
        return
    if not behind and (boxed & set(before)):
        yield _call("<=", _call("-", _LAST_US, first_row), Constant(within, "BIGINT"))
    if not before and name in boxed:
        last_row = Navigation(_LAST_US, behind, Logical.LAST, 0, 0, False, _LAST_US.type)
        yield _call("<=", _call("-", last_row, _FIRST_US), Constant(within, "BIGINT"))


def _gaps(pattern: RowPattern) -> Iterator[tuple[str, tuple[RowPattern, RowPattern]]]:
    """Yields the negated variables of a pattern, each with the parts before and after its gap."""
    parts = pattern.parts if isinstance(pattern, Sequence) else (pattern,)
    for i, part in enumerate(parts):
        if isinstance(part, Negation):
            yield part.name, (Sequence(parts[:i]), Sequence(parts[i + 1 :]))


def _or_first(condition: Expression, begins: bool, before: Expression) -> Expression:
    """Returns the condition of a row on the one before it; begins: it may be the first row."""
    return _call("or", Call("is_null", (before,), "BOOLEAN"), condition) if begins else condition


def _call(function: str, left: Expression, right: Expression) -> Expression:
    return Call(function, (left, right), "BIGINT" if function == "-" else "BOOLEAN")


_KIND, _FIRST, _LAST, _FIRST_US, _LAST_US, _BEFORE, _UPTO = (
    Column(field.name, field.type) for field in (KIND, FIRST, LAST, FIRST_US, LAST_US, BEFORE, UPTO)
)
