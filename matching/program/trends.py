"""A plan of trends to tables: the automaton by labels, the conditions of each label, and what is added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matching.program.lanes import Lane, NoLane, kept_lane
from matching.program.program import NoKernel, Program, assemble, storable_feature
from query.automaton.trends import TrendAutomaton, trend_automaton
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import Call, Constant, Expression, conjuncts, is_row_local, show
from query.plan.pattern import Alternation, Variable
from query.plan.plan import AfterMatch, Plan
from query.plan.trends import Over, TrendAggregate, Trends

#: A whole number, a double, or the smallest or largest value.
WHOLE, FLOAT, LEAST = "whole", "float", "least"


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
class TrendTable:
    """What the trend engine runs. labels: the variables, by their bits; features: those of the program."""

    trends: Trends
    selection: Selection
    labels: tuple[str, ...]
    automaton: TrendAutomaton
    features: tuple[tuple[Expression, Lane], ...]
    sums: tuple[Sum, ...]
    puts: tuple[Put, ...]

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
        lines = [f"windows     {self.trends.within_us} us every {self.trends.slide_us} us", str(self.automaton)]
        lines += [f"{'adds' if i == 0 else '':<12}{self._shown(s)}" for i, s in enumerate(self.sums)]
        return "\n".join(lines)

    def _shown(self, s: Sum) -> str:
        names = "|".join(self.labels[v] for v in s.labels)
        value = "1" if s.value < 0 else show(self.features[s.value][0])
        what = f"1 for each {value}" if s.ones else f"{'largest' if s.largest else 'smallest'} {value}" if (
            s.kind == LEAST) else value  # fmt: skip
        return f"{s.kind} {what} of {names}"


def trend_program(plan: Plan) -> tuple[Program, TrendTable]:
    """Returns the program whose labels are the variables of a plan of trends, negated ones too, and its table. Raises
    NoKernel for conditions between two events and for values that a lane cannot hold; QueryError if the pattern is too
    large."""
    assert plan.trends is not None
    for define in plan.defines:
        for part in conjuncts(define.condition):
            if not is_row_local(part):
                raise NoKernel(f"the condition {show(part)} between two events of a trend")
    names = tuple(d.variable for d in plan.defines)
    one = Variable(names[0]) if len(names) == 1 else Alternation(tuple(map(Variable, names)))
    each = replace(
        plan, pattern=one, trends=None, rows=RowsPerMatch.ONE, measures=(), within=None, subsets=(),
        selection=Selection.SKIP_TILL_ANY, after=AfterMatch(AfterMatchKind.NO_SKIP),
    )  # fmt: skip
    program = assemble(each)
    assert not program.features  # conditions on single rows are no features
    labels = program.variables
    features: list[tuple[Expression, Lane]] = []
    sums: list[Sum] = []

    def feature(expression: Expression) -> int:
        try:
            lane = kept_lane(expression.type)
            storable_feature(expression)
        except NoLane as why:
            raise NoKernel(f"{show(expression)}: {why}") from None
        if lane.coded or lane.boolean or expression.type == "INTERVAL":
            raise NoKernel(f"{show(expression)} of type {expression.type}")
        if (expression, lane) not in features:
            features.append((expression, lane))
        return features.index((expression, lane))

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
        lane = features[value][1]
        if a.over in (Over.MIN, Over.MAX):
            puts.append(Put(a, LEAST, add(Sum(LEAST, value, members, largest=a.over is Over.MAX)), scale=lane.scale))
            continue
        values = add(Sum(WHOLE, value, members, ones=True))
        kind = FLOAT if lane.floating else WHOLE
        puts.append(Put(a, kind, add(Sum(kind, value, members)), values, lane.scale))
    table = TrendTable(
        plan.trends, plan.selection, labels, trend_automaton(plan.pattern), tuple(features), tuple(sums), tuple(puts)
    )
    return replace(program, features=tuple(features), within_us=plan.trends.within_us), table


def _whether(argument: Expression) -> Expression:
    """Returns an expression of a kept type that is null where the argument is."""
    there = Call("is_not_null", (argument,), "BOOLEAN")
    return Call("case", (there, Constant(1, "INTEGER"), Constant(None, "INTEGER")), "INTEGER")
