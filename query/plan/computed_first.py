"""Finds the parts of a hierarchy's conditions and measures that cannot fail, the integers for which that holds, and the
parts to compute for every event beforehand, so that a failure shows as in layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from query.language.duck import Settings
from query.plan.boxes import TIMES, column_of
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Column,
    Constant,
    Expression,
    Navigation,
    Opaque,
    conjuncts,
    is_row_local,
    walk,
)
from query.plan.never_fails import NEVER_FAIL, never_fails
from query.plan.plan import Define, Measure, Plan
from query.plan.row_parts import of_one_row, total
from query.schema import Field

#: Conditions that compute with integers are known to be possible as long as those of the events are within this bound.
INTEGER_MAX = 2**31
#: More events than any match has.
ANY_NUMBER = 2**40
#: By integer type, the largest value of both signs.
_LARGEST = {
    "TINYINT": 2**7 - 1, "SMALLINT": 2**15 - 1, "INTEGER": 2**31 - 1, "BIGINT": 2**63 - 1, "HUGEINT": 2**127 - 1,
}  # fmt: skip
#: Types of columns whose values are looked at.
_LOOKED_AT = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")
#: Types of values that are computed beforehand: Arrow has them as DuckDB has.
_COMPUTED = (*_LOOKED_AT, "BOOLEAN", "DOUBLE", "VARCHAR", "TIMESTAMP", "DATE")


@dataclass(frozen=True, slots=True)
class ComputedColumn:
    """A column that is computed for every event of a batch beforehand. If that fails for one, layers decide whether it
    is read."""

    field: Field
    value: Expression


@dataclass(frozen=True, slots=True)
class ComputedFirst:
    """A hierarchy in which nothing fails that layers could read where one pattern does not.

    plan: it, over events with further columns. columns: these. integers: columns, also of these, whose values beyond
    INTEGER_MAX could make a condition fail."""

    plan: Plan
    columns: tuple[ComputedColumn, ...]
    integers: tuple[str, ...]


def computed_first(plan: Plan, events_max: int | None) -> ComputedFirst | str:
    """Returns a hierarchy with columns for what may fail; a string says what may fail between events. events_max: most
    events of a match, None: any number."""
    bounds = {f.name: min(INTEGER_MAX, _LARGEST[f.type]) for f in plan.schema.fields if f.type in _LOOKED_AT}
    search = _Search(plan.settings, plan.order_by[0].column, events_max or ANY_NUMBER)
    try:
        found, _ = search.layer(plan, bounds, outermost=True)
    except _MayFail as what:
        return str(what)
    columns = tuple(ComputedColumn(Field(column.name, column.type), e) for e, column in search.columns.items())
    schema = replace(plan.schema, fields=(*plan.schema.fields, *(c.field for c in columns)))
    looked_at = {f.name for f in schema.fields if f.type in _LOOKED_AT}
    integers = tuple(name for name in search.read if name in looked_at)
    return ComputedFirst(replace(found, schema=schema), columns, integers)


class _MayFail(Exception):
    """The text of an expression that may fail."""


@dataclass(slots=True)
class _Search:
    """settings: of DuckDB. time: of the events. events_max: of a match. columns: what is computed beforehand. read:
    columns that are computed with."""

    settings: Settings
    time: Column
    events_max: int
    columns: dict[Expression, Column] = field(default_factory=dict)
    read: dict[str, None] = field(default_factory=dict)

    def layer(
        self, plan: Plan, bounds: Mapping[str, int], outermost: bool = False
    ) -> tuple[Plan, dict[str, int]]:
        """Returns a layer, and the largest values of its measures that are integers. bounds: of columns. outermost: its
        measures are read of the same matches in any case. Raises _MayFail."""
        bounds = dict(bounds)
        boxes = []
        for box in plan.boxes:
            inner, below = self.layer(box.plan, bounds)
            bounds |= {column_of(box, shown): below[name] for shown, name in box.columns if name in below}
            boxes.append(replace(box, plan=inner))
        boxed = {box.variable for box in plan.boxes}
        events = _Events(frozenset(plan.schema.names), frozenset(boxed))
        defines: list[Define] = []
        for d in plan.defines:
            at_event = events if d.variable not in boxed else replace(events, columns=frozenset())
            condition = self._safe(d.condition, f"the condition of {d.variable}", bounds, at_event)
            defines.append(replace(d, condition=condition))
        measures = list(plan.measures)
        if not outermost:
            at_last = events if not boxed else replace(events, columns=frozenset())
            measures = [
                Measure(m.name, self._safe(m.expression, f"the measure {m.name}", bounds, at_last)) for m in measures
            ]
        known = bounds | self._bounds()
        found = {m.name: _largest(m.expression, known, self.events_max) for m in measures}
        layer = replace(plan, boxes=tuple(boxes), defines=tuple(defines), measures=tuple(measures))
        return layer, {name: most for name, most in found.items() if most is not None}

    def _bounds(self) -> dict[str, int]:
        return {c.name: min(INTEGER_MAX, _LARGEST[c.type]) for c in self.columns.values() if c.type in _LOOKED_AT}

    def _safe(self, e: Expression, what: str, bounds: Mapping[str, int], events: _Events) -> Expression:
        """Returns an expression that can be computed on every row. what: names it."""
        if never_fails(e, self.time):
            return e
        if not self._is_possible(e, bounds):
            e = self._apart(e, bounds, events)
            if not self._is_possible(e, {**bounds, **self._bounds()}):
                raise _MayFail(what)
        if not never_fails(e, self.time):
            self.read.update((x.name, None) for x in walk(e) if isinstance(x, Column))
        return e

    # ---- columns

    def _apart(self, e: Expression, bounds: Mapping[str, int], events: _Events) -> Expression:
        """Returns an expression with columns for what may fail, which is read of one event."""
        parts = conjuncts(e)
        local = [part for part in parts if events.has(part) and part != TRUE]
        found = [self._with_columns(part, bounds, events) for part in parts if part not in local]
        if local:  # computed together, as by layers
            found.insert(0, self._with_columns(_all_of(local), bounds, events))
        return _all_of(found)

    def _with_columns(self, e: Expression, bounds: Mapping[str, int], events: _Events) -> Expression:
        if self._is_possible(e, bounds):
            return e
        if events.has(e):
            return self._column(e)
        match e:
            case Navigation(argument, variables) if not events.has_boxes(variables) and is_row_local(argument):
                return replace(e, argument=self._column(argument))
            case Aggregate(argument=argument, variables=variables) if (
                e.plain and argument is not None and not events.has_boxes(variables) and is_row_local(argument)
            ):
                return replace(e, argument=self._column(argument))
            case Call(_, arguments) | Opaque(_, arguments):
                of_row = of_one_row(e, self.settings)
                if of_row is not None and not events.has_boxes(of_row.variables):
                    return replace(of_row, argument=self._column(of_row.argument))
                return replace(e, arguments=tuple(self._with_columns(a, bounds, events) for a in arguments))
        return e

    def _column(self, e: Expression) -> Expression:
        """Returns the column for an expression of one event."""
        if e.type not in _COMPUTED or not any(isinstance(x, Column) for x in walk(e)):
            return e
        return self.columns.setdefault(e, Column(f"#computed {len(self.columns)}", e.type))

    # ---- what cannot fail

    def _is_possible(self, e: Expression, bounds: Mapping[str, int]) -> bool:
        """True if an expression can be computed on every row whose integers keep to the bounds."""
        if _largest(e, bounds, self.events_max) is not None or never_fails(e, self.time):
            return True
        match e:
            case Call("-", arguments, "INTERVAL"):
                return all(map(self._is_time, arguments))
            case Call(function, arguments) if function in NEVER_FAIL:
                return all(self._is_possible(a, bounds) for a in arguments)
            case Navigation(argument):
                return self._is_possible(argument, bounds)
            case Call() | Opaque():
                added = (x for x in walk(e) if isinstance(x, Aggregate))
                return total(e, self.settings) and all(self._is_possible(x, bounds) for x in added)
            case _:
                return False

    def _is_time(self, e: Expression) -> bool:
        """True of the time of an event, and of the first or last time of a match."""
        of = e.argument if isinstance(e, Navigation) and not e.physical_offset else e
        return isinstance(of, Column) and of.name in (self.time.name, *(f"#{name}" for name in TIMES))


@dataclass(frozen=True, slots=True)
class _Events:
    """What of a layer is read of events. columns: of the current row, none if that may be a match. boxes: variables
    that stand for matches."""

    columns: frozenset[str]
    boxes: frozenset[str]

    def has(self, e: Expression) -> bool:
        """True if an expression reads the current row only, and that is an event."""
        read = [x for x in walk(e) if not isinstance(x, Call | Opaque | Constant)]
        return bool(self.columns) and all(isinstance(x, Column) and x.name in self.columns for x in read)

    def has_boxes(self, variables: tuple[str, ...]) -> bool:
        """True if a row of these variables (none: of any) may be a match."""
        return bool(self.boxes & set(variables)) if variables else bool(self.boxes)


def _all_of(parts: list[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else Call("and", tuple(parts), "BOOLEAN")


def _largest(e: Expression, bounds: Mapping[str, int], events_max: int) -> int | None:
    """Returns the largest absolute value of an expression that is an integer and can be computed, else None. bounds: of
    columns. events_max: of a match."""
    if e.type not in _LARGEST:
        return None
    most = _LARGEST[e.type]

    def of(*parts: Expression) -> list[int] | None:
        found = [_largest(part, bounds, events_max) for part in parts]
        return None if None in found else [n for n in found if n is not None]

    found: int | None
    match e:
        case Constant(int(value)):
            found = abs(value)
        case Column(name):
            found = bounds.get(name, most)
        case Navigation(argument) if (inner := of(argument)):
            (found,) = inner
        case Aggregate("count"):
            found = INTEGER_MAX if e.plain and not e.inputs else None
        case Aggregate("sum", Column() as argument) if e.plain and (inner := of(argument)):
            found = events_max * inner[0]
        case Call("+" | "-", (a, b)) if inner := of(a, b):
            found = sum(inner)
        case Call("*", (a, b)) if inner := of(a, b):
            found = inner[0] * inner[1]
        case Call("//" | "%", (a, b)) if inner := of(a, b):
            found = inner[0]
        case Call("neg" | "abs" | "cast", (a,)) if inner := of(a):
            (found,) = inner
        case _:
            found = None
    return found if found is not None and found <= most else None
