"""Which aggregates over the rows of all matches, one row per match, are aggregates over trends.

They need no match: `sum(n)` over matches whose measure n is `count(B.*)` adds up the events of B in all matches. A plan
for them has one window with all events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    Aggregate,
    Call,
    Classifier,
    Column,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    Opaque,
    children,
    is_row_local,
    walk,
)
from query.plan.first_apart import with_first_apart
from query.plan.pattern import RowPattern, anchors, min_rows, occurrences, sides, variables
from query.plan.plan import Measure, Plan
from query.plan.trends import Neighbours, Over, TrendAggregate, Trends, neighbours, reaches_too_far, result_type

#: The length of the window with all events, in microseconds. Their times are not read.
WINDOW_US = 1 << 40
#: The name of the column of an aggregate, followed by its index.
COLUMN = "__hybrid_"

_OVER = {"sum": Over.SUM, "avg": Over.AVG, "mean": Over.AVG, "min": Over.MIN, "max": Over.MAX}
MATCHES = TrendAggregate(Over.MATCHES, None, (), result_type(Over.MATCHES, "") or "")


@dataclass(frozen=True, slots=True)
class OverMatches:
    """An aggregate over matches by aggregates over trends. total: its value, or of an average the sum. values: of an
    average, the number of values. alike: two that must be equal, else the equation does not hold."""

    total: TrendAggregate
    values: TrendAggregate | None = None
    alike: tuple[TrendAggregate, TrendAggregate] | None = None

    def __str__(self) -> str:
        value = self.total.name + (f" / {self.values.name}" if self.values is not None else "")
        return value + (f", if {self.alike[0].name} = {self.alike[1].name}" if self.alike is not None else "")


def over_matches(function: str, measure: Expression, pattern: RowPattern) -> OverMatches | None:
    """Returns what `function` of a measure over all matches of a pattern is in terms of trends, or None. function:
    count, sum, avg, mean, min or max."""
    if isinstance(measure, Aggregate):
        return _of_aggregate(function, measure, pattern)
    of_one = _of_one_event(measure, pattern)
    if of_one is None:
        return None
    argument, names = of_one
    values = _aggregate(Over.VALUES, argument, names)
    if function == "count":
        return None if values is None else OverMatches(values)
    over = _OVER.get(function)
    if over is None or values is None:
        return None
    total = _aggregate(Over.SUM if over is Over.AVG else over, argument, names)
    return None if total is None else OverMatches(total, values if over is Over.AVG else None)


def _of_aggregate(function: str, e: Aggregate, pattern: RowPattern) -> OverMatches | None:
    if not e.plain or (e.argument is not None and not _of_event(e.argument)):
        return None
    over = {"count": Over.EVENTS if e.argument is None else Over.VALUES, **_OVER}.get(e.function)
    if over is None or over is Over.AVG:
        return None
    total = _aggregate(over, e.argument, e.variables)
    if total is None:
        return None
    if over in (Over.EVENTS, Over.VALUES):  # never null
        match function:
            case "sum":
                return OverMatches(total)
            case "avg" | "mean":
                return OverMatches(total, MATCHES)
            case "count":
                return OverMatches(MATCHES)
        return None
    if function == e.function:
        return OverMatches(total)
    least, _ = occurrences(pattern, e.variables or variables(pattern))
    events, values = _aggregate(Over.EVENTS, None, e.variables), _aggregate(Over.VALUES, e.argument, e.variables)
    if not least or events is None or values is None:
        return None
    match function:  # it is null where no event of the match has a value: never, if each event has one
        case "count":
            return OverMatches(MATCHES, alike=(events, values))
        case "avg" | "mean" if over is Over.SUM:
            return OverMatches(total, MATCHES, (events, values))
    return None


def _aggregate(over: Over, argument: Expression | None, names: tuple[str, ...]) -> TrendAggregate | None:
    kind = result_type(over, "" if argument is None else argument.type)
    return None if kind is None else TrendAggregate(over, argument, names, kind)


def _of_event(e: Expression) -> bool:
    """True if an expression reads the columns of one event and nothing else."""
    return is_row_local(e) and not any(isinstance(x, Navigation) for x in walk(e))


def _of_one_event(e: Expression, pattern: RowPattern) -> tuple[Expression, tuple[str, ...]] | None:
    """Returns a measure that reads only one event of a match as an expression over its columns, with the variables of
    which a match has this event only. A match without it has no value. Otherwise None."""
    found = {_event_read(x, pattern) for x in _reads(e)}
    names = next(iter(found), None)
    if names is None or len(found) != 1:
        return None
    least, most = occurrences(pattern, names)
    if most != 1 or (least != 1 and not isinstance(e, Navigation)):
        return None
    argument = _at_event(e)
    return (argument, names) if _of_event(argument) else None


def _reads(e: Expression) -> Iterator[Expression]:
    """Yields the parts of a measure that read an event."""
    if isinstance(e, Navigation | Column | Aggregate | Classifier | MatchNumber):
        yield e
        return
    for child in children(e):
        yield from _reads(child)


def _event_read(e: Expression, pattern: RowPattern) -> tuple[str, ...] | None:
    """Returns the variables of which one is that of the event, which is their first or last one; None for other reads.
    """
    order = neighbours(pattern)
    match e:
        case Column():
            return tuple(sorted(order.last))
        case Navigation(_, variables, logical, 0, 0) if logical is not None:
            at_ends = order.first if logical is Logical.FIRST else order.last
            return tuple(sorted(variables or at_ends))
        case _:
            return None


def _at_event(e: Expression) -> Expression:
    """Returns an expression over one event with its columns in place of the navigation to it."""
    match e:
        case Navigation(argument):
            return argument
        case Call(arguments=arguments) | Opaque(arguments=arguments):
            return replace(e, arguments=tuple(map(_at_event, arguments)))
        case _:
            return e


def plan_of_trends(plan: Plan, aggregates: Sequence[TrendAggregate]) -> Plan | None:
    """Returns the plan of these aggregates over all matches of each partition, called COLUMN and their index; or None
    if the matches of the plan are not the trends of one window."""
    strict = plan.selection is Selection.STRICT and plan.partition_by  # events of other partitions are not passed over
    if plan.rows is not RowsPerMatch.ONE or plan.trends is not None or plan.timeout_rows or plan.within is not None:
        return None
    if plan.after.kind is not AfterMatchKind.NO_SKIP or strict or anchors(plan.pattern):
        return None
    if not all(map(min_rows, sides(plan.pattern))):
        return None
    primary, order = variables(plan.pattern), neighbours(plan.pattern)
    alone = Neighbours(frozenset(), frozenset(), {}, True)
    for define in plan.defines:
        reach = order if define.variable in primary else alone
        if any(True for _ in reaches_too_far(define.variable, define.condition, reach)):
            return None
    measures = [Measure(f"{COLUMN}{i}", Column(a.name, a.type)) for i, a in enumerate(aggregates)]
    trends = Trends(WINDOW_US, WINDOW_US, plan.partition_by, tuple(aggregates))
    found = replace(plan, rows=RowsPerMatch.WINDOW, measures=tuple(measures), trends=trends)
    return with_first_apart(found)
