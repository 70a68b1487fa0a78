"""A pattern with boxes as one plain pattern, where that finds the same matches: the flattened automaton of [HIERARCHY].

The variables of a box's pattern take the place of the box: `V_X` is the X of the match that is V. Composition is the
meaning (query.hierarchy_reference), so most hierarchies cannot be flattened: a run that looks for the next X of V takes
the first one, and dies if WITHIN of V is over before Y, while composition looks for whole matches of V.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.boxes import TIMES, column_of, common_keys
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    Opaque,
    conjuncts,
    walk,
)
from query.plan.pattern import (
    Alternation,
    Anchor,
    Conjunction,
    Empty,
    Exclusion,
    Negation,
    Repeat,
    RowPattern,
    Sequence,
    Variable,
    anchors,
    excludes,
    min_rows,
    negated,
    occurrences,
    variables,
)
from query.plan.plan import Box, Define, Plan

T0, T1 = (f"#{name}" for name in TIMES)
#: Types of a time whose differences are intervals.
_TIMES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE")


class _Differs(Exception):
    """The reason why a plain pattern would not find the same."""


def flattened(plan: Plan) -> Plan | str:
    """Returns the plain pattern with the same matches as a pattern with boxes, event by event, and the same output
    rows; matches with the same last event may come in another order. A string says why there is none that is known to
    be equal.

    All layers must be SKIP TILL ANY MATCH and AFTER MATCH NO SKIP, and partitioned alike; but a pattern whose matches
    are single events finds them whatever it says, and a sequence of such boxes and events takes the same ones under any
    strategy. WITHIN of a box's pattern becomes a condition on its events. A box that may occur twice in a match must be
    a sequence of variables, so that the events tell where one match ends and the next begins."""
    try:
        return _flat(plan)
    except _Differs as why:
        return str(why)


def _flat(plan: Plan) -> Plan:
    if plan.reads is not None:
        raise _Differs("its layers read several streams")
    _layer(plan, "the pattern")
    if not plan.boxes:
        return plan
    taken = {*variables(plan.pattern), *negated(plan.pattern)}
    inlined: dict[str, _Inlined] = {}
    for box in plan.boxes:
        if box.variable in negated(plan.pattern):
            raise _Differs(f"{box.variable} is negated: a match of {box.name} must lie in the gap as a whole")
        inlined[box.variable] = _inlined(plan, box, taken)
    outer = _Outer(plan, inlined)
    defines: list[Define] = []
    for define in plan.defines:
        of = inlined.get(define.variable)
        if of is None:
            defines.append(replace(define, condition=outer.expression(define.condition, define.variable)))
            continue
        condition = outer.expression(define.condition, define.variable)
        if condition != TRUE and of.last is None:
            raise _Differs(f"the condition of {define.variable} holds of whole matches of {of.box.name}, which may end "
                           "with several variables")
        for inner in of.defines(plan.within.interval_us if plan.within else None):
            added = condition if inner.variable == of.last else TRUE
            defines.append(replace(inner, condition=_both(inner.condition, added)))
    measures = tuple(replace(m, expression=outer.expression(m.expression, None)) for m in plan.measures)
    pattern = _put(plan.pattern, {name: of.pattern for name, of in inlined.items()})
    subsets = tuple((name, of) for name, of in plan.subsets if not set(of) & set(inlined))
    return replace(plan, pattern=pattern, defines=tuple(defines), measures=measures, subsets=subsets, boxes=())


def _layer(plan: Plan, name: str) -> None:
    """Checks one pattern by itself."""
    if plan.joined is not None:
        raise _Differs(f"{name} is joined with history: its matches are not found by events alone")
    if plan.trends is not None or plan.rows is not RowsPerMatch.ONE or plan.timeout_rows:
        raise _Differs(f"{name} has other rows than one for each match")
    alone = _is_one_event(plan)
    in_turn = bool(plan.boxes) and all(_is_one_event(box.plan) for box in plan.boxes) and _is_in_turn(plan.pattern)
    if plan.selection is not Selection.SKIP_TILL_ANY and not alone and not in_turn:
        raise _Differs(f"{name} is SELECTION {plan.selection.value}: which events lie between depends on the layer")
    moves_on = (AfterMatchKind.NO_SKIP, AfterMatchKind.TO_NEXT_ROW, AfterMatchKind.PAST_LAST_ROW)
    if plan.after.kind is not AfterMatchKind.NO_SKIP and not (alone and plan.after.kind in moves_on):
        raise _Differs(f"{name} has AFTER MATCH {plan.after}")
    if plan.within is not None and plan.within.rows is not None:
        raise _Differs(f"{name} has WITHIN {plan.within}")
    if anchors(plan.pattern) or excludes(plan.pattern):
        raise _Differs(f"{name} has ^, $ or an exclusion")


@dataclass(frozen=True, slots=True)
class _Inlined:
    """A box whose pattern, already plain, takes its place.

    plan: that pattern, with its own names. names: new names of its variables. once: true if a match has one match of it
    at most. single: its variables that have one event in each match of it. first, last: the new names of the variables
    of its first and last event, if these are always the same and have no other event."""

    box: Box
    plan: Plan
    names: Mapping[str, str]
    once: bool
    single: frozenset[str]
    first: str | None
    last: str | None

    @property
    def all(self) -> tuple[str, ...]:
        """Returns the new names of the variables that take rows."""
        return tuple(self.names[name] for name in variables(self.plan.pattern))

    @property
    def time(self) -> Column:
        return self.plan.order_by[0].column

    @property
    def marker(self) -> str | None:
        """Returns the new name of a variable with one event in each match of it."""
        return next((self.names[n] for n in variables(self.plan.pattern) if n in self.single), None)

    @property
    def pattern(self) -> RowPattern:
        put: dict[str, RowPattern] = {old: Variable(new) for old, new in self.names.items()}
        return _put(self.plan.pattern, put, self.names)

    def defines(self, outer_us: int | None) -> Iterator[Define]:
        """Yields the conditions of its variables. outer_us: WITHIN of the pattern around it."""
        gaps = set(negated(self.plan.pattern))
        within = self.plan.within.interval_us if self.plan.within else None
        bounded = within is not None and (outer_us is None or outer_us > within)
        for define in self.plan.defines:
            if define.variable in gaps and any(_is_of_all(e) for e in walk(define.condition)):
                raise _Differs(f"the condition of ~{define.variable} in {self.box.name} reads all rows of its match")
            condition = self.renamed(define.condition)
            name = self.names[define.variable]
            if bounded and within is not None and define.variable not in gaps and name != self.first:
                condition = _both(self._within(within), condition)
            yield Define(name, condition)

    def _within(self, interval_us: int) -> Expression:
        if self.time.type not in _TIMES:
            raise _Differs(f"WITHIN of {self.box.name} over a {self.time.type} is not written as a condition")
        took = Call("-", (self.time, self.begin()), "INTERVAL")
        return Call("<=", (took, Constant(interval_us, "INTERVAL")), "BOOLEAN")

    def begin(self) -> Navigation:
        """Returns the time of its first event."""
        if self.first is not None:
            return self.at(self.time, (self.first,), Logical.LAST)
        return self.at(self.time, self.all, Logical.FIRST)

    def at(self, argument: Expression, names: tuple[str, ...], logical: Logical = Logical.LAST) -> Navigation:
        return Navigation(argument, names, logical, 0, 0, False, argument.type)

    def shown(self, column: str) -> Expression | None:
        """Returns the measure of its pattern that a merged column shows, in that pattern's terms; None if it shows
        none."""
        name = next((name for shown, name in self.box.columns if column_of(self.box, shown) == column), None)
        measure = next((m for m in self.plan.measures if m.name == name), None)
        if measure is not None:
            return measure.expression
        return next((c for c in self.plan.partition_by if c.name == name), None)

    def of_one(self, column: str) -> tuple[Expression, str] | None:
        """Returns what a merged column is at the one event of a variable in each match of it, and the new name of that
        variable; None if it is not of that kind."""
        if column == T0:
            return None if self.first is None else (self.time, self.first)
        if column in (T1, self.time.name):
            return None if self.last is None else (self.time, self.last)
        e = self.shown(column)
        if isinstance(e, Column):  # of the last row
            return None if self.last is None else (e, self.last)
        if not isinstance(e, Navigation) or not isinstance(e.argument, Column) or e.physical_offset:
            return None
        if len(e.variables) != 1 or e.variables[0] not in self.single or e.logical_offset:
            return None
        return e.argument, self.names[e.variables[0]]

    def value(self, column: str) -> Expression:
        """Returns what a merged column is in its one match, read from a later row or its last one."""
        if column == T0:
            return self.begin()
        if column in (T1, self.time.name):
            return self.at(self.time, (self.last,) if self.last else self.all)
        e = self.shown(column)
        if e is None:
            raise _Differs(f"{column} of FROM is read in a match of {self.box.name}")
        steps = [x for x in walk(e) if isinstance(x, Navigation) and x.physical_offset]
        if any(x.logical is None or x.physical_offset > 0 for x in steps):
            raise _Differs(f"{column} reads rows beside the last one of the match")
        return self.renamed(e, measure=True)

    def renamed(self, e: Expression, measure: bool = False) -> Expression:
        """Returns an expression of its pattern with the new names. measure: its current row is the last one."""
        match e:
            case Constant():
                return e
            case Column():
                return self.at(e, (self.last,) if self.last else self.all) if measure else e
            case Navigation():
                of = e.argument
                if any(isinstance(x, Classifier | MatchNumber) for x in walk(of)):
                    raise _Differs(f"{self.box.name} reads CLASSIFIER() or MATCH_NUMBER()")
                if e.logical is None:
                    return e
                return replace(e, variables=self._named(e.variables), final=False)
            case Aggregate():
                if any(isinstance(x, Classifier | MatchNumber) for x in walk(e)):
                    raise _Differs(f"{self.box.name} reads CLASSIFIER() or MATCH_NUMBER()")
                return replace(e, variables=self._named(e.variables), final=False)
            case Classifier() | MatchNumber():
                raise _Differs(f"{self.box.name} reads CLASSIFIER() or MATCH_NUMBER()")
            case Call(_, arguments) | Opaque(_, arguments):
                return replace(e, arguments=tuple(self.renamed(a, measure) for a in arguments))
            case _:
                assert_never(e)

    def _named(self, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.names[name] for name in names) or self.all


def _inlined(plan: Plan, box: Box, taken: set[str]) -> _Inlined:
    """Returns how the pattern of a box takes its place. taken: names of variables, to which the new ones are added."""
    _layer(box.plan, box.name)
    inner = _flat(box.plan)
    pattern = inner.pattern
    keys = {c.name.lower() for c in plan.partition_by}
    shared = {name.lower() for name in common_keys(replace(plan, boxes=(box,)))}
    if keys != shared or keys != {c.name.lower() for c in inner.partition_by}:
        raise _Differs(f"{box.name} is not partitioned like the pattern around it")
    if inner.order_by != plan.order_by or inner.settings != plan.settings:
        raise _Differs(f"{box.name} has another order or other settings than the pattern around it")
    if not min_rows(pattern):
        raise _Differs(f"{box.name} may match nothing, which is no event")
    parts = _parts(pattern)
    for i, part in enumerate(parts):
        if isinstance(part, Negation):
            if Variable(box.variable) not in _parts(plan.pattern):
                raise _Differs(f"{box.name} has a negation, and {box.variable} is inside a group")
            if not sum(map(min_rows, parts[:i])) or not sum(map(min_rows, parts[i + 1 :])):
                raise _Differs(f"~{part.name} of {box.name} may lie at an edge: it holds for WITHIN of {box.name}")
    names: dict[str, str] = {}
    for name in (d.variable for d in inner.defines):
        new = f"{box.variable}_{name}"
        while new in taken:
            new += "_"
        taken.add(new)
        names[name] = new
    single = frozenset(n for n in variables(pattern) if occurrences(pattern, {n}) == (1, 1))
    first, last = (
        names[part.name] if isinstance(part, Variable) and part.name in single else None
        for part in (parts[0], parts[-1])
    )
    once = occurrences(plan.pattern, {box.variable})[1] in (0, 1)
    if not once:
        _is_sequence(box, inner, parts)
    return _Inlined(box, inner, names, once, single, first, last)


def _is_sequence(box: Box, inner: Plan, parts: tuple[RowPattern, ...]) -> None:
    """Checks that matches of a box that follow each other can be told apart, and that conditions read their own."""
    why = f"{box.variable} may occur twice, and "
    order = [part.name for part in parts if isinstance(part, Variable)]
    if len(order) < len(parts) or len(set(order)) < len(order):
        raise _Differs(why + f"the events of two matches of {box.name} do not tell where the second begins")
    for define in inner.defines:
        at = order.index(define.variable)
        for e in walk(define.condition):
            if isinstance(e, Aggregate) or (isinstance(e, Navigation) and not _is_last(e, order[: at + 1])):
                raise _Differs(why + f"conditions of {box.name} read more than the last rows of single variables")


@dataclass(frozen=True, slots=True)
class _Outer:
    """The expressions of a pattern with boxes, in terms of the plain pattern."""

    plan: Plan
    inlined: Mapping[str, _Inlined]

    def expression(self, e: Expression, at: str | None) -> Expression:
        """Returns an expression in terms of the plain pattern. at: the variable whose condition it is; None: it is a
        measure."""
        match e:
            case Constant():
                return e
            case Column():
                return self._column(e, at)
            case Navigation():
                return self._navigation(e, at)
            case Aggregate():
                return self._aggregate(e, at)
            case Classifier() | MatchNumber():
                raise _Differs("CLASSIFIER() or MATCH_NUMBER() is read beside boxes")
            case Call(_, arguments) | Opaque(_, arguments):
                return replace(e, arguments=tuple(self.expression(a, at) for a in arguments))
            case _:
                assert_never(e)

    def _column(self, e: Column, at: str | None) -> Expression:
        """A column of the current row."""
        of = self.inlined.get(at) if at is not None else None
        if of is not None:
            if (one := of.of_one(e.name)) is not None:
                return of.at(one[0], (one[1],))
            if not of.once:
                raise _Differs(f"{e.name} of {at} is read, and {at} may occur twice")
            return of.value(e.name)
        if at is None and e.name != self.plan.order_by[0].column.name and _ends(self.plan.pattern) & set(self.inlined):
            raise _Differs(f"{e.name} of the last row is read, which may be a match")
        return self._of_event(e)

    def _navigation(self, e: Navigation, at: str | None) -> Expression:
        if e.physical_offset or e.logical is None:
            raise _Differs("PREV or NEXT is read beside boxes")
        boxed = set(e.variables) & set(self.inlined)
        if not e.variables:
            if e.logical is Logical.LAST and not e.logical_offset:
                return self.expression(e.argument, at)
            if e.logical_offset or _ends(self.plan.pattern, first=True) & set(self.inlined):
                raise _Differs("rows of the match are counted, and a match of a box is one row")
        if not boxed:
            return replace(e, argument=self._of_event(e.argument))
        if len(e.variables) > 1:
            raise _Differs("a subset contains a box")
        of = self.inlined[e.variables[0]]
        if isinstance(e.argument, Column) and (one := of.of_one(e.argument.name)) is not None:
            return replace(e, argument=one[0], variables=(one[1],))
        if not of.once or e.logical_offset:
            raise _Differs(f"{e.variables[0]} may occur twice, and its {_first_column(e)} is read")
        found = self.expression(e.argument, e.variables[0])
        if not isinstance(found, Navigation) and not self._present(e.variables[0], at):
            raise _Differs(f"{e.variables[0]} may be missing where its {_first_column(e)} is read")
        return found

    def _aggregate(self, e: Aggregate, at: str | None) -> Expression:
        names = e.variables or variables(self.plan.pattern)
        boxed = [name for name in names if name in self.inlined]
        if e.variables and not boxed:
            inputs = tuple(map(self._of_event, e.inputs))
            if inputs != e.inputs and not e.plain:
                raise _Differs(f"{e.function} over times of events")
            return replace(e, argument=inputs[0]) if e.plain and inputs else e
        if not e.plain or e.before or at in negated(self.plan.pattern):
            raise _Differs(f"{e.function} over rows that may be matches")
        if e.argument is None:
            markers = [self.inlined[name].marker if name in self.inlined else name for name in names]
            if None in markers:
                raise _Differs("matches are counted whose pattern has no variable with one row in each")
            return replace(e, variables=tuple(name for name in markers if name is not None))
        of = self.inlined[boxed[0]]
        one = of.of_one(e.argument.name) if isinstance(e.argument, Column) and len(names) == 1 else None
        if one is None:
            raise _Differs(f"{e.function} over values of matches")
        return replace(e, argument=one[0], variables=(one[1],))

    def _of_event(self, e: Expression) -> Expression:
        """Returns an expression of one event: it begins and ends at its time."""
        match e:
            case Column(name) if name in (T0, T1):
                return replace(self.plan.order_by[0].column, span=e.span)
            case Call(_, arguments) | Opaque(_, arguments):
                return replace(e, arguments=tuple(map(self._of_event, arguments)))
            case _:
                return e

    def _present(self, variable: str, at: str | None) -> bool:
        """True if each match has a row of a variable before rows of another one (None: before its end)."""
        parts = _parts(self.plan.pattern)
        own = next((i for i, part in enumerate(parts) if part == Variable(variable)), None)
        if own is None:
            return False
        begin = own if at == variable else own + 1
        return at is None or at in negated(self.plan.pattern) or all(
            at not in variables(part) for part in parts[:begin]
        )


def _put(pattern: RowPattern, put: Mapping[str, RowPattern], gaps: Mapping[str, str] | None = None) -> RowPattern:
    """Returns a pattern with patterns in the places of variables, and other names of negated ones."""

    def one(p: RowPattern) -> RowPattern:
        match p:
            case Variable(name):
                return put.get(name, p)
            case Negation(name):
                return Negation(gaps[name]) if gaps is not None else p
            case Sequence(parts):
                return Sequence(tuple(part for p in parts for part in _parts(one(p))))
            case Alternation(choices):
                return Alternation(tuple(map(one, choices)))
            case Repeat(body) | Exclusion(body):
                return replace(p, body=one(body))
            case Empty() | Anchor() | Conjunction():
                return p
            case _:
                assert_never(p)

    return one(pattern)


def _parts(pattern: RowPattern) -> tuple[RowPattern, ...]:
    return pattern.parts if isinstance(pattern, Sequence) else (pattern,)


def _is_one_event(plan: Plan) -> bool:
    """True if each match is one event."""
    return isinstance(plan.pattern, Variable) and all(_is_one_event(box.plan) for box in plan.boxes)


def _is_in_turn(pattern: RowPattern) -> bool:
    """True if a match waits for one variable at a time."""
    return all(isinstance(part, Variable | Negation) for part in _parts(pattern))


def _ends(pattern: RowPattern, first: bool = False) -> set[str]:
    """Returns the variables that the last (or first) row of a match may have."""
    match pattern:
        case Variable(name):
            return {name}
        case Sequence(parts):
            found: set[str] = set()
            for part in parts if first else reversed(parts):
                found |= _ends(part, first)
                if min_rows(part):
                    break
            return found
        case Alternation(choices) | Conjunction(choices):
            return set().union(*(_ends(choice, first) for choice in choices))
        case Repeat(body) | Exclusion(body):
            return _ends(body, first)
        case Empty() | Negation() | Anchor():
            return set()
        case _:
            assert_never(pattern)


def _is_of_all(e: Expression) -> bool:
    """True of a navigation or aggregate over all rows of the match."""
    match e:
        case Navigation(variables=(), logical=logical):
            return logical is not None
        case Aggregate(variables=()):
            return True
    return False


def _is_last(e: Navigation, names: list[str]) -> bool:
    """True of the last row of one of these variables, and of a row beside the candidate."""
    if e.logical is None:
        return True
    return e.logical is Logical.LAST and not e.logical_offset and len(e.variables) == 1 and e.variables[0] in names


def _first_column(e: Expression) -> str:
    return next((x.name for x in walk(e) if isinstance(x, Column)), "value")


def _both(first: Expression, second: Expression) -> Expression:
    parts = tuple(p for e in (first, second) for p in conjuncts(e) if p != TRUE)
    return TRUE if not parts else parts[0] if len(parts) == 1 else Call("and", parts, "BOOLEAN")
