"""A plan of trends to tables: the automaton by labels, the conditions of each label, and what is added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from matching.program.conditions import ConditionCode
from matching.program.lanes import Lane, Leaf, Lowered, NoLane, kept_lane, lower
from matching.program.opcodes import OpCode
from matching.program.program import NoKernel, Program, TextCodes, assemble
from query.automaton.trends import TrendAutomaton, trend_automaton
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Call,
    Constant,
    Expression,
    Navigation,
    Opaque,
    conjuncts,
    is_row_local,
    show,
)
from query.plan.pattern import Alternation, Conjunction, Variable, sides
from query.plan.plan import AfterMatch, Define, Plan
from query.plan.trends import Over, TrendAggregate, Trends, condition_after, neighbours, previous

#: A whole number, a double, or the smallest or largest value.
WHOLE, FLOAT, LEAST = "whole", "float", "least"
#: Most alternatives of a condition between two events.
ALTERNATIVES_MAX = 64
#: Most values that are kept of an event: each has a bit that says whether it is null.
KEPT_MAX = 62
#: Windows that hold an event from which on they are put together from panes, and from which on that costs less than to
#: count queries together.
PANES_FROM, PANES_ALONE_FROM = 50, 100
#: A pane has a square of so many records at most.
CELLS_MAX = 16


@dataclass(frozen=True, slots=True)
class Sum:
    """Something added up beside the count of trends. value: index of the feature that is read, -1: the number 1.
    labels: indices of the labels whose events are meant. ones: adds 1 for each value that is not null. largest: of
    LEAST, the largest value instead of the smallest."""

    kind: str
    value: int
    labels: tuple[int, ...]
    ones: bool = False
    largest: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """How an aggregate comes from sums: their indices among those of their kind, -1: not used. The count of trends is
    `total` -1. values: of SUM and AVG, the count of values that are not null. scale: decimal digits of a sum, or of a
    smallest value."""

    aggregate: TrendAggregate
    kind: str
    total: int
    values: int = -1
    scale: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left function right` of two features, each of the event (False) or of the one right before it (True); right -1:
    the left one is true."""

    function: str
    left: int
    left_before: bool
    right: int = -1
    right_before: bool = False

    @property
    def values(self) -> tuple[int, ...]:
        """Returns the features that are read."""
        return (self.left,) if self.right < 0 else (self.left, self.right)

    @property
    def before(self) -> tuple[int, ...]:
        """Returns the features that are read of the event right before."""
        sides = ((self.left, self.left_before), (self.right, self.right_before))
        return tuple(v for v, before in sides if before and v >= 0)


@dataclass(frozen=True, slots=True)
class Computed:
    """A condition as bytecode, for those that are no comparisons. A feature is of the event; a register is the feature
    of the same index of the one right before. before: these features. code: the index of its instructions in
    TrendTable.code."""

    code: int
    before: tuple[int, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """Returns no features: it reads none in the order of comparisons."""
        return ()


#: Of a label after another: alternatives, each of conditions that must all hold. Without an alternative no event may
#: follow.
Pair = tuple[tuple[Comparison | Computed, ...], ...]


@dataclass(frozen=True, slots=True)
class TrendTable:
    """The tables of the trend engine. labels: the variables, by their bits; features: those of the program. pairs: the
    conditions of labels, by the label of the event right before (-1: none) and their own, where there are any. code:
    the instructions of each `Computed` condition; `constants` are their operands. others: of AND, the automata of its
    further sides."""

    trends: Trends
    selection: Selection
    labels: tuple[str, ...]
    automaton: TrendAutomaton
    features: tuple[tuple[Expression, Lane], ...]
    sums: tuple[Sum, ...]
    puts: tuple[Put, ...]
    pairs: tuple[tuple[int, int, Pair], ...] = ()
    code: tuple[tuple[tuple[int, int, int], ...], ...] = ()
    constants: tuple[int | float, ...] = ()
    others: tuple[TrendAutomaton, ...] = ()

    @property
    def automata(self) -> tuple[TrendAutomaton, ...]:
        """Returns the automaton of each side of AND, or the only one."""
        return (self.automaton, *self.others)

    @property
    def pane_windows(self) -> int:
        """Returns the number of windows that hold an event if panes can count them (matching.kernels.panes), else 0: an
        event then moves trends in a way that is the same whatever their numbers are."""
        cells = max(len(a.states) + len(a.ends) for a in self.automata)
        linear = self.selection is Selection.SKIP_TILL_ANY and not self.pairs and cells <= CELLS_MAX
        return self.trends.within_us // self.trends.slide_us if linear else 0

    @property
    def ordered(self) -> bool:
        """True if each condition between two events compares a value of one with one of the other, so that the trends
        that an event may continue are found by its value (matching.kernels.ordered). Negated events, and strategies
        that do not keep all trends, take some away."""
        negated = any(any(s.violated for s in a.states) or any(a.ends) for a in self.automata)
        between = [pair for before, _, pair in self.pairs if before >= 0]
        compared = all(len(pair) <= 1 and all(map(_compares, pair)) for pair in between)
        computed = any(isinstance(c, Computed) for _, _, pair in self.pairs for one in pair for c in one)
        stays = self.selection is Selection.SKIP_TILL_ANY and not negated
        return bool(between) and compared and stays and not computed

    @property
    def by_panes(self) -> bool:
        """True if panes cost less than to count each window on its own."""
        return self.pane_windows >= PANES_FROM

    def of_kind(self, kind: str) -> list[Sum]:
        """Returns the sums of a kind, in the order of their indices."""
        return [s for s in self.sums if s.kind == kind]

    def show_conditions(self, local: Sequence[Expression]) -> str:
        """Returns the lines of EXPLAIN with the conditions of labels and the values of events."""
        lines = [f"bit {i} {v}: {show(c)}" for i, (v, c) in enumerate(zip(self.labels, local, strict=True))]
        shown = [f"{'mask' if i == 0 else '':<12}{line}" for i, line in enumerate(lines)]
        shown += [f"{'values' if i == 0 else '':<12}{show(e)}" for i, (e, _) in enumerate(self.features)]
        return "\n".join(shown)

    def __str__(self) -> str:
        lines = [self.trends.show_windows(), *map(str, self.automata)]
        lines += [f"{'adds' if i == 0 else '':<12}{self._shown(s)}" for i, s in enumerate(self.sums)]
        return "\n".join(lines)

    def _shown(self, s: Sum) -> str:
        names = "|".join(self.labels[v] for v in s.labels)
        value = "1" if s.value < 0 else show(self.features[s.value][0])
        what = f"1 for each {value}" if s.ones else f"{'largest' if s.largest else 'smallest'} {value}" if (
            s.kind == LEAST) else value  # fmt: skip
        return f"{s.kind} {what} of {names}"


def _compares(conditions: Sequence[Comparison | Computed]) -> bool:
    """True of one comparison of a value of an event with one of the event before."""
    if len(conditions) != 1 or isinstance(conditions[0], Computed):
        return False
    c = conditions[0]
    return c.right >= 0 and c.left_before != c.right_before


def trend_program(plan: Plan) -> tuple[Program, TrendTable]:
    """Returns the program whose labels are the variables of a plan of trends, negated ones too, and its table. Raises
    NoKernel for AND, and as `conjoined_program` does."""
    if isinstance(plan.pattern, Conjunction):
        raise NoKernel("AND of two patterns")
    return conjoined_program(plan)


def conjoined_program(plan: Plan) -> tuple[Program, TrendTable]:
    """Like `trend_program`, also for AND. Raises NoKernel for conditions between two events that have no bytecode, and
    for values that a lane cannot hold; QueryError if the pattern is too large."""
    assert plan.trends is not None
    names = tuple(d.variable for d in plan.defines)
    one = Variable(names[0]) if len(names) == 1 else Alternation(tuple(map(Variable, names)))
    each = replace(
        plan, pattern=one, trends=None, rows=RowsPerMatch.ONE, measures=(), within=None, subsets=(),
        selection=Selection.SKIP_TILL_ANY, after=AfterMatch(AfterMatchKind.NO_SKIP),
        defines=tuple(Define(d.variable, _local(d.condition)) for d in plan.defines),
    )  # fmt: skip
    program = assemble(each)
    assert not program.features  # conditions on single rows are no features
    labels = program.variables
    reads = ConditionCode()
    sums: list[Sum] = []

    def feature(expression: Expression) -> int:
        try:
            lane = kept_lane(expression.type)
            if expression.type == "INTERVAL" or lane.coded:
                raise NoKernel(f"{show(expression)} of type {expression.type}")
            return reads.feature(expression)
        except NoLane as why:
            raise NoKernel(f"{show(expression)}: {why}") from None

    def add(s: Sum) -> int:
        if s not in sums:
            sums.append(s)
        return [x for x in sums if x.kind == s.kind].index(s)

    puts: list[Put] = []
    for a in plan.trends.aggregates:
        members = tuple(v for v, name in enumerate(labels) if not a.variables or name in a.variables)
        if a.over is Over.MATCHES:
            puts.append(Put(a, WHOLE, -1))
            continue
        if a.over is Over.EVENTS:
            puts.append(Put(a, WHOLE, add(Sum(WHOLE, -1, members))))
            continue
        assert a.argument is not None
        if a.over is Over.VALUES:
            counted = _whether(a.argument)
            puts.append(Put(a, WHOLE, add(Sum(WHOLE, feature(counted), members, ones=True))))
            continue
        value = feature(a.argument)
        lane = reads.lanes[value]
        if a.over in (Over.MIN, Over.MAX):
            puts.append(Put(a, LEAST, add(Sum(LEAST, value, members, largest=a.over is Over.MAX)), scale=lane.scale))
            continue
        values = add(Sum(WHOLE, value, members, ones=True))
        kind = FLOAT if lane.floating else WHOLE
        puts.append(Put(a, kind, add(Sum(kind, value, members)), values, lane.scale))
    pairs: list[tuple[int, int, Pair]] = []
    code: list[tuple[tuple[int, int, int], ...]] = []
    order = neighbours(plan.pattern)
    for v, name in enumerate(labels):
        condition = _conjunction([c for c in conjuncts(plan.condition(name)) if not is_row_local(c)])
        if condition == TRUE:
            continue
        for before in [*([None] if name in order.first else []), *sorted(order.before(name))]:
            pair = _pair(condition_after(condition, name, before), reads, code)
            if pair != ((),):
                pairs.append((-1 if before is None else labels.index(before), v, pair))
    if len(values_before(pairs)) > KEPT_MAX:
        raise NoKernel(f"a condition between two events of a trend on more than {KEPT_MAX} values")
    features = tuple(zip(reads.features, reads.lanes, strict=True))
    automaton, *others = map(trend_automaton, sides(plan.pattern))
    table = TrendTable(
        plan.trends, plan.selection, labels, automaton, features, tuple(sums), tuple(puts), tuple(pairs), tuple(code),
        tuple(reads.values), tuple(others),
    )  # fmt: skip
    return replace(
        program, features=features, texts=TextCodes(tuple(reads.texts)), within_us=plan.trends.within_us
    ), table


def _local(condition: Expression) -> Expression:
    """Returns the part of a condition that reads its event only."""
    return _conjunction([c for c in conjuncts(condition) if is_row_local(c)])


def _conjunction(parts: Sequence[Expression]) -> Expression:
    return TRUE if not parts else parts[0] if len(parts) == 1 else Call("and", tuple(parts), "BOOLEAN")


def values_before(pairs: Sequence[tuple[int, int, Pair]]) -> tuple[tuple[int, bool], ...]:
    """Returns the features that conditions read of the event right before, those that are kept of an event: each with
    True if bytecode reads it, and False if it is compared."""
    each = [c for _, _, pair in pairs for one in pair for c in one]
    return tuple(dict.fromkeys((v, isinstance(c, Computed)) for c in each for v in c.before))


_COMPARED = ("=", "<>", "<", "<=", ">", ">=")
#: A comparison before its values are features.
_Compared = tuple[str, tuple[Expression, bool], tuple[Expression, bool] | None]


def _pair(condition: Expression, reads: ConditionCode, code: list[tuple[tuple[int, int, int], ...]]) -> Pair:
    """Returns a condition after one variable, as comparisons if it is nothing else, otherwise as one of `code`, to
    which it is added: bytecode reads its operands in their order, and some may fail. Raises NoKernel for values without
    a lane."""
    found = _alternatives(condition)
    try:
        if found is not None:
            return tuple(tuple(_comparison(reads, *c) for c in one) for one in found)
        instructions: list[tuple[int, int, int]] = []
        reads.emit(lower(condition, lambda e: _leaf(e, reads)), instructions)
    except NoLane as why:
        raise NoKernel(f"the condition {show(condition)} between two events of a trend ({why})") from None
    if any(op == OpCode.RANK for op, _, _ in instructions):
        raise NoKernel(f"the condition {show(condition)} between two events of a trend (order of VARCHAR)")
    before = tuple(dict.fromkeys(a for op, a, _ in instructions if op == OpCode.REGISTER))
    if tuple(instructions) not in code:
        code.append(tuple(instructions))
    return ((Computed(code.index(tuple(instructions)), before),),)


def _leaf(e: Expression, reads: ConditionCode) -> Lowered | None:
    """Returns what only one of the two events is read for as a value of it, where it has a lane; a register is one of
    the event right before."""
    if isinstance(e, Constant):
        return reads.leaf(e)
    side = _side(e)
    if side is None or e.type == "INTERVAL":
        return None
    plain, before = side
    try:
        feature = reads.feature(plain)
    except NoLane:
        return None
    return Leaf(feature if before else ("feature", feature), kept_lane(e.type))


def _comparison(
    reads: ConditionCode, function: str, left: tuple[Expression, bool], right: tuple[Expression, bool] | None
) -> Comparison:
    one = reads.feature(left[0])
    if right is None:
        return Comparison(function, one, left[1])
    return Comparison(function, one, left[1], reads.feature(right[0]), right[1])


def _alternatives(condition: Expression) -> tuple[tuple[_Compared, ...], ...] | None:
    """Returns a condition as alternatives of comparisons that must all hold, None for one of another form, or for too
    many of them."""
    if isinstance(condition, Constant):
        return ((),) if condition.value is True else ()
    found: tuple[tuple[_Compared, ...], ...]
    if isinstance(condition, Call) and condition.function in ("or", "and") and _side(condition) is None:
        parts = [of for a in condition.arguments if (of := _alternatives(a)) is not None]
        if len(parts) < len(condition.arguments):
            return None
        if condition.function == "or":
            found = tuple(dict.fromkeys(one for of in parts for one in of))
        elif prod(map(len, parts)) > ALTERNATIVES_MAX:
            return None
        else:
            found = tuple(tuple(c for one in ways for c in one) for ways in product(*parts))
        return found if len(found) <= ALTERNATIVES_MAX else None
    if (side := _side(condition)) is not None:
        return ((("is", side, None),),)
    if not isinstance(condition, Call) or condition.function not in _COMPARED:
        return None
    left, right = map(_side, condition.arguments)
    if left is None or right is None:
        return None
    try:
        one, two = kept_lane(left[0].type), kept_lane(right[0].type)
    except NoLane:
        return None
    same = (one.floating, one.scale, one.unit, one.coded) == (two.floating, two.scale, two.unit, two.coded)
    if not same or "INTERVAL" in (left[0].type, right[0].type):
        return None
    if one.coded and condition.function not in ("=", "<>"):
        return None
    return (((condition.function, left, right),),)


def _side(e: Expression) -> tuple[Expression, bool] | None:
    """Returns an expression over one event, and True if that is the one right before; None if it reads both."""
    if is_row_local(e):
        return e, False
    plain = _of_previous(e)
    return None if plain is None else (plain, True)


def _of_previous(e: Expression) -> Expression | None:
    """Returns an expression that only reads the previous event, as one over that event; else None."""
    match e:
        case Navigation(argument):
            return argument if e == previous(argument) else None
        case Constant():
            return e
        case Call(arguments=arguments) | Opaque(arguments=arguments):
            parts = [_of_previous(a) for a in arguments]
            return None if None in parts else replace(e, arguments=tuple(p for p in parts if p is not None))
        case _:
            return None


def _whether(argument: Expression) -> Expression:
    """Returns an expression of a kept type that is null where the argument is."""
    there = Call("is_not_null", (argument,), "BOOLEAN")
    return Call("case", (there, Constant(1, "INTEGER"), Constant(None, "INTEGER")), "INTEGER")
