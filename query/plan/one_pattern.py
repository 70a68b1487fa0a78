"""A pattern with boxes as one plain pattern that gives the same rows in the same order, with the same evidence and the
same errors (query.plan.flatten: the same matches)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from query.plan.boxes import TIMES, column_of
from query.plan.expression import (
    Aggregate,
    Call,
    Column,
    Constant,
    Expression,
    Logical,
    Navigation,
    conjuncts,
    walk,
)
from query.plan.fingerprint import fingerprint
from query.plan.flatten import flattened
from query.plan.never_fails import never_fails
from query.plan.pattern import Empty, Negation, Repeat, RowPattern, Sequence, Variable
from query.plan.plan import Measure, Plan
from query.schema import Field

#: The position of an event among those of FROM.
PLACE = Field("#place", "BIGINT")
#: Most events of a match.
EVENTS_MAX = 64
#: Conditions that compute with integers are known to be possible as long as those of the events are within this bound.
INTEGER_MAX = 2**31
#: Calls that can be computed where their arguments can.
_PLAIN = frozenset(("and", "or", "not", "=", "<>", "<", "<=", ">", ">=", "is_distinct", "is_not_distinct", "is_null",
                    "is_not_null", "between"))  # fmt: skip
#: By integer type, the largest value of both signs.
_LARGEST = {
    "TINYINT": 2**7 - 1, "SMALLINT": 2**15 - 1, "INTEGER": 2**31 - 1, "BIGINT": 2**63 - 1, "HUGEINT": 2**127 - 1,
}  # fmt: skip
#: Types of columns whose values are looked at.
_LOOKED_AT = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT")


@dataclass(frozen=True, slots=True)
class Crossing:
    """A box of which conditions compare events, while others compare events around it: partial matches are pairs of
    these. path: of the box. few: events inside are compared for equality, so that it has few matches of its own."""

    path: str
    few: bool


@dataclass(frozen=True, slots=True)
class OnePattern:
    """A plain pattern whose matches all have the same variables.

    plan: it. names: the variable of each event of a match. paths: of these variables in the pattern with boxes. layers:
    number of searches in its place. order: which of the events tell the order of matches with the same last event, the
    first one first. integers: columns of which values beyond INTEGER_MAX could make a condition fail."""

    plan: Plan
    names: tuple[str, ...]
    paths: tuple[str, ...]
    layers: int
    order: tuple[int, ...]
    integers: tuple[str, ...]
    crossing: Crossing | None

    @property
    def placed(self) -> Plan:
        """Returns the pattern with further measures, the positions of the events of a match: each its `PLACE`."""
        measures = tuple(
            Measure(f"#place {i}", Navigation(
                Column(PLACE.name, PLACE.type), (name,), Logical.FIRST, self.names[:i].count(name), 0, False, PLACE.type
            ))
            for i, name in enumerate(self.names)
        )  # fmt: skip
        schema = replace(self.plan.schema, fields=(*self.plan.schema.fields, PLACE))
        return replace(self.plan, schema=schema, measures=(*self.plan.measures, *measures))


def one_pattern(plan: Plan) -> OnePattern | str:
    """Returns the plain pattern; a string says why none is known to give the same."""
    flat = flattened(plan)
    if isinstance(flat, str):
        return flat
    if plan.within is None:
        return "the pattern has no WITHIN: all events would be kept, for the case that layers have to take over"
    elements = _elements(plan)
    names = _fixed(flat.pattern)
    if elements is None or names is None or len(names) > EVENTS_MAX:
        return "matches differ in their variables, of which their order is made"
    if not (isinstance(plan.pattern, Variable) or _inside(plan.pattern)):
        return "a negation at an edge is decided by the whole first element"
    if _reads_beside(plan):
        return "rows beside the match are read, which do not have to be in the last WITHIN"
    integers = _may_fail(plan)
    if isinstance(integers, str):
        return f"{integers} may fail, which is an error even where no match of the pattern around it reads it"
    order = tuple(dict.fromkeys(_of_match(elements)))
    paths = tuple(path for element in elements for path in element.paths)
    crossing = _crossing(flat, names, elements)
    return OnePattern(flat, names, paths, len(_searched(plan)), order, integers, crossing)


# ---- events of a match


@dataclass(frozen=True, slots=True)
class _Element:
    """An element of a match. first: the index of its first event among those of the whole match. paths: of its events.
    parts: of a match of a box's pattern, its elements. name: its variable."""

    name: str
    first: int
    paths: tuple[str, ...]
    parts: tuple[_Element, ...] = ()

    @property
    def last(self) -> int:
        return self.first + len(self.paths) - 1


def _elements(plan: Plan, first: int = 0, path: str = "") -> tuple[_Element, ...] | None:
    """Returns the elements of each match; None if matches differ in their variables."""
    names = _fixed(plan.pattern)
    if names is None:
        return None
    boxes = {box.variable: box for box in plan.boxes}
    found: list[_Element] = []
    for i, name in enumerate(names):
        if name not in boxes:
            found.append(_Element(name, first, (path + name,)))
        else:
            nth = names[:i].count(name) + 1
            parts = _elements(boxes[name].plan, first, f"{path}{name}{f'[{nth}]' if nth > 1 else ''}.")
            if parts is None:
                return None
            found.append(_Element(name, first, tuple(p for part in parts for p in part.paths), parts))
        first = found[-1].last + 1
    return tuple(found)


def _fixed(pattern: RowPattern) -> tuple[str, ...] | None:
    """Returns the variables of the rows of each match; None if matches differ in them."""
    match pattern:
        case Variable(name):
            return (name,)
        case Sequence(parts):
            found = [_fixed(part) for part in parts]
            return None if None in found else tuple(name for names in found if names is not None for name in names)
        case Repeat(body, at_least, at_most):
            one = _fixed(body) if at_least == at_most and at_least <= EVENTS_MAX else None
            return None if one is None else one * at_least
        case Negation() | Empty():
            return ()
        case _:
            return None


def _searched(plan: Plan) -> set[str]:
    """Returns the fingerprints of the patterns of all layers, of which equal ones are searched once."""
    return {fingerprint(plan)}.union(*(_searched(box.plan) for box in plan.boxes))


def _reads_beside(plan: Plan) -> bool:
    """True if a layer reads PREV or NEXT."""
    read = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    nodes = (e for expression in read for e in walk(expression))
    own = any(isinstance(e, Navigation) and (e.physical_offset or e.logical is None) for e in nodes)
    return own or any(_reads_beside(box.plan) for box in plan.boxes)


def _inside(pattern: RowPattern) -> bool:
    """True if no negation is at an edge of a pattern."""
    parts = pattern.parts if isinstance(pattern, Sequence) else (pattern,)
    return not any(isinstance(part, Negation) for part in (parts[0], parts[-1]))


def _of_match(elements: tuple[_Element, ...]) -> Iterator[int]:
    """Yields the events that tell the order of matches: by last element, first element, and all from the first on."""
    for element in (elements[-1], elements[0], *elements):
        yield from _of_element(element)


def _of_element(element: _Element) -> Iterator[int]:
    """Yields the events that tell the place of merged rows: right after the last event, by first event, then in the
    order in which the pattern of the box emits them."""
    yield element.last
    yield element.first
    if element.parts:
        yield from _of_match(element.parts)


# ---- errors


class _MayFail(Exception):
    """The text of an expression that may fail."""


def _may_fail(plan: Plan) -> tuple[str, ...] | str:
    """Returns the integer columns that must be small, so that no condition of a layer and no measure of a box can fail;
    or what may fail in any case."""
    bounds = {f.name: min(INTEGER_MAX, _LARGEST[f.type]) for f in plan.schema.fields if f.type in _LOOKED_AT}
    read: dict[str, None] = {}
    try:
        _check(plan, bounds, read, outermost=True)
    except _MayFail as what:
        return str(what)
    return tuple(name for name in read if name in bounds)


def _check(plan: Plan, bounds: Mapping[str, int], read: dict[str, None], outermost: bool = False) -> dict[str, int]:
    """Returns the largest values of the measures of a layer that are integers. bounds: of columns. read: gets the
    columns that must keep to them. outermost: its measures are read of the same matches in any case. Raises
    _MayFail."""
    bounds = dict(bounds)
    for box in plan.boxes:
        below = _check(box.plan, bounds, read)
        bounds |= {column_of(box, shown): below[name] for shown, name in box.columns if name in below}
    wanted = [(f"the condition of {d.variable}", d.condition) for d in plan.defines]
    wanted += [] if outermost else [(f"the measure {m.name}", m.expression) for m in plan.measures]
    for what, expression in wanted:
        if never_fails(expression, plan.order_by[0].column):
            continue
        if not _is_possible(expression, bounds, plan.order_by[0].column):
            raise _MayFail(what)
        read.update((e.name, None) for e in walk(expression) if isinstance(e, Column))
    found = {m.name: _largest(m.expression, bounds) for m in plan.measures}
    return {name: most for name, most in found.items() if most is not None}


def _is_possible(expression: Expression, bounds: Mapping[str, int], time: Column) -> bool:
    """True if an expression can be computed on every row whose integers keep to the bounds."""
    if _largest(expression, bounds) is not None:
        return True
    match expression:
        case Call("-", arguments, "INTERVAL"):
            return all(_is_time(a, time) for a in arguments)
        case Call(function, arguments) if function in _PLAIN:
            return all(_is_possible(a, bounds, time) for a in arguments)
        case _:
            return never_fails(expression, time)


def _is_time(e: Expression, time: Column) -> bool:
    """True of the time of an event, and of the first or last time of a match."""
    of = e.argument if isinstance(e, Navigation) and not e.physical_offset else e
    return isinstance(of, Column) and of.name in (time.name, *(f"#{name}" for name in TIMES))


def _largest(e: Expression, bounds: Mapping[str, int]) -> int | None:
    """Returns the largest absolute value of an expression that is an integer and can be computed, else None."""
    if e.type not in _LARGEST:
        return None
    most = _LARGEST[e.type]

    def of(*parts: Expression) -> list[int] | None:
        found = [_largest(part, bounds) for part in parts]
        return None if None in found else [n for n in found if n is not None]

    found: int | None
    match e:
        case Constant(int(value)):
            found = abs(value)
        case Column(name):
            found = bounds.get(name, most)
        case Navigation(argument, physical_offset=0) if (inner := of(argument)):
            (found,) = inner
        case Aggregate("count"):
            found = INTEGER_MAX if e.plain and not e.inputs else None
        case Aggregate("sum", Column() as argument) if e.plain and (inner := of(argument)):
            found = EVENTS_MAX * inner[0]
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


# ---- cost


def _crossing(flat: Plan, names: tuple[str, ...], elements: tuple[_Element, ...]) -> Crossing | None:
    """Returns the first box inside of which conditions compare events, while one behind its first event reads an event
    before it."""
    conditions = [conjuncts(flat.condition(name)) for name in names]
    for element in elements:
        if not element.parts:
            continue
        inside = set(names[element.first : element.last + 1])
        before = set(names[: element.first]) - inside
        own = [c for of in conditions[element.first + 1 : element.last + 1] for c in of if _reads(c) & inside]
        if own and any(_reads(c) & before for of in conditions[element.first + 1 :] for c in of):
            few = any(isinstance(c, Call) and c.function == "=" and _reads(c) <= inside for c in own)
            return Crossing(element.paths[0].rpartition(".")[0], few)
        if (below := _crossing(flat, names, element.parts)) is not None:
            return below
    return None


def _reads(condition: Expression) -> set[str]:
    """Returns the variables of other events that a condition reads."""
    return {name for e in walk(condition) if isinstance(e, Navigation | Aggregate) for name in e.variables}
