"""A pattern with boxes as one plain pattern that gives the same rows in the same order, with the same evidence and the
same errors (query.plan.flatten: the same matches)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from query.plan.computed_first import ComputedColumn, computed_first
from query.plan.expression import Aggregate, Call, Column, Expression, Logical, Navigation, conjuncts, walk
from query.plan.fingerprint import fingerprint
from query.plan.flatten import flattened
from query.plan.pattern import Empty, Negation, Repeat, RowPattern, Sequence, Variable, min_rows, variables
from query.plan.plan import Measure, Plan
from query.schema import Field

#: The position of an event among those of FROM.
PLACE = Field("#place", "BIGINT")
#: Most events of a match that are told one by one, and most variables.
EVENTS_MAX = 64
#: Most layers of a pattern whose matches have different variables.
LEVELS_MAX = 7


@dataclass(frozen=True, slots=True)
class Crossing:
    """A box of which conditions compare events, while others compare events around it: partial matches are pairs of
    these. path: of the box. few: events inside are compared for equality, so that it has few matches of its own."""

    path: str
    few: bool


@dataclass(frozen=True, slots=True)
class ElementStep:
    """An element on the way to an event. variable: of it in its layer. rank: its place in the pattern. box: the name of
    its pattern; "" of an event. repeated: it may occur several times in a row; then `begins` if the event is the first
    one of each."""

    variable: str
    rank: int
    box: str = ""
    repeated: bool = False
    begins: bool = False


@dataclass(frozen=True, slots=True)
class OnePattern:
    """A plain pattern that gives the matches of a hierarchy.

    plan: it. names: the variable of each event of a match, if that is the same in all matches; otherwise the variables
    in the order of the pattern. paths: of these variables in the pattern with boxes. steps: to each of them from the
    outermost layer, if matches differ; else none. layers: number of searches in its place. order: which of the events
    tell the order of matches with the same last event, the first one first; none with steps. integers: columns of which
    values beyond INTEGER_MAX could make a condition fail. computed: columns that are computed beforehand. rows_before:
    how many rows before an event are read."""

    plan: Plan
    names: tuple[str, ...]
    paths: tuple[str, ...]
    steps: tuple[tuple[ElementStep, ...], ...]
    layers: int
    order: tuple[int, ...]
    integers: tuple[str, ...]
    computed: tuple[ComputedColumn, ...]
    rows_before: int
    crossing: Crossing | None

    @property
    def placed(self) -> Plan:
        """Returns the pattern with further measures, the positions of the events of a match: each its `PLACE`. Without
        steps only."""
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
    same = elements is not None and sum(len(e.paths) for e in elements) <= EVENTS_MAX
    steps = () if same else _steps_to_events(plan)
    if steps is None or max(map(len, steps), default=0) > LEVELS_MAX or len(steps) > EVENTS_MAX:
        return "matches differ in their variables, and the pattern does not tell their order"
    if not (isinstance(plan.pattern, Variable) or _inside(plan.pattern)):
        return "a negation at an edge is decided by the whole first element"
    beside = [offset for offset in _offsets(plan) if offset]
    if any(offset > 0 for offset in beside):
        return "NEXT is read, which one pattern would wait for elsewhere"
    first = computed_first(plan, EVENTS_MAX if same else None)
    if isinstance(first, str):
        return f"{first} may fail, which is an error even where no match of the pattern around it reads it"
    flat = flattened(first.plan)
    assert not isinstance(flat, str)
    shown = elements if elements is not None and same else _elements(plan, rounds=2)
    assert shown is not None
    order = tuple(dict.fromkeys(_of_match(shown))) if same else ()
    paths = tuple(path for element in shown for path in element.paths)
    of_match = _fixed(flat.pattern, 2 if steps else None)
    assert of_match is not None
    crossing = _crossing(flat, of_match, shown)
    if steps:
        paths = tuple(".".join(step.variable for step in of) for of in steps)
    names = variables(flat.pattern) if steps else of_match
    back = max((-offset for offset in beside), default=0)
    return OnePattern(
        flat, names, paths, steps, len(_searched(plan)), order, first.integers, first.columns, back, crossing
    )


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


def _elements(
    plan: Plan, first: int = 0, path: str = "", rounds: int | None = None
) -> tuple[_Element, ...] | None:
    """Returns the elements of each match; None if matches differ in their variables. rounds: see `_fixed`."""
    names = _fixed(plan.pattern, rounds)
    if names is None:
        return None
    boxes = {box.variable: box for box in plan.boxes}
    found: list[_Element] = []
    for i, name in enumerate(names):
        if name not in boxes:
            found.append(_Element(name, first, (path + name,)))
        else:
            nth = names[:i].count(name) + 1
            parts = _elements(boxes[name].plan, first, f"{path}{name}{f'[{nth}]' if nth > 1 else ''}.", rounds)
            if parts is None:
                return None
            found.append(_Element(name, first, tuple(p for part in parts for p in part.paths), parts))
        first = found[-1].last + 1
    return tuple(found)


def _fixed(pattern: RowPattern, rounds: int | None = None) -> tuple[str, ...] | None:
    """Returns the variables of the rows of each match; None if matches differ in them. rounds: of a loop with several
    numbers, to get an example."""
    match pattern:
        case Variable(name):
            return (name,)
        case Sequence(parts):
            found = [_fixed(part, rounds) for part in parts]
            return None if None in found else tuple(name for names in found if names is not None for name in names)
        case Repeat(body, at_least, at_most):
            same = at_least == at_most and at_least <= EVENTS_MAX
            one = _fixed(body, rounds) if same or rounds is not None else None
            return None if one is None else one * (at_least if same else rounds or 0)
        case Negation() | Empty():
            return ()
        case _:
            return None


def _steps_to_events(plan: Plan) -> tuple[tuple[ElementStep, ...], ...] | None:
    """Returns the steps to each variable of the plain pattern, in its order. None if the order of matches is not known:
    in each layer rows have the variables in their order, each for itself, and another round before the next one; inner
    layers end with an event."""
    boxes = {box.variable: box for box in plan.boxes}
    found: list[tuple[ElementStep, ...]] = []
    seen: set[str] = set()
    for rank, part in enumerate(plan.pattern.parts if isinstance(plan.pattern, Sequence) else (plan.pattern,)):
        if isinstance(part, Negation | Empty):
            continue
        repeated = isinstance(part, Repeat)
        body = part.body if isinstance(part, Repeat) and part.greedy else part
        if not isinstance(body, Variable) or body.name in seen:
            return None
        seen.add(body.name)
        if body.name not in boxes:
            found.append((ElementStep(body.name, rank),))
            continue
        inner = boxes[body.name].plan
        below = _steps_to_events(inner)
        if below is None or below[-1][0].box or not min_rows(_last_part(inner.pattern)):
            return None
        for i, of in enumerate(below):
            found.append((ElementStep(body.name, rank, boxes[body.name].name, repeated, repeated and not i), *of))
    return tuple(found)


def _last_part(pattern: RowPattern) -> RowPattern:
    return pattern.parts[-1] if isinstance(pattern, Sequence) else pattern


def _searched(plan: Plan) -> set[str]:
    """Returns the fingerprints of the patterns of all layers, of which equal ones are searched once."""
    return {fingerprint(plan)}.union(*(_searched(box.plan) for box in plan.boxes))


def _offsets(plan: Plan) -> Iterator[int]:
    """Yields the steps of PREV (negative) and NEXT in all layers."""
    for expression in (*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)):
        yield from (e.physical_offset for e in walk(expression) if isinstance(e, Navigation))
    for box in plan.boxes:
        yield from _offsets(box.plan)


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
