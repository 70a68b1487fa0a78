"""The meaning of ONE ROW PER WINDOW: all matches in each window, aggregated. Slow and obvious; it is the definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MAX_PREC, Context, Decimal, localcontext
from fractions import Fraction
from itertools import product
from typing import Any

from query.language.ast import RowsPerMatch
from query.plan.expression import Expression
from query.plan.pattern import RowPattern, negated, sides, variables
from query.plan.plan import Plan, Within
from query.plan.trends import Over, TrendAggregate
from query.reference import STEPS_MAX, find, of_one_zero, partition_key
from query.values import Evaluate, EvaluationScope, PartitionRows, Row, value


@dataclass(frozen=True, slots=True)
class TrendRow:
    """The row of one window and group. start_us, end_us: of the window, [start, end). group: the values of GROUP BY.
    values: of the plan's aggregates, in their order: int of counts and of sums of whole numbers, Decimal of sums of
    DECIMALs, else as the argument's; None is null."""

    start_us: int
    end_us: int
    group: tuple[object, ...]
    values: tuple[Any, ...]


def trend_rows(
    plan: Plan, rows: Sequence[Row], ts_us: Sequence[int], *, evaluate: Evaluate | None = None,
    steps_max: int = STEPS_MAX,
) -> list[TrendRow]:  # fmt: skip
    """Returns a row for each window and group with a trend, by window, then group (nulls first). HAVING and the
    measures, which are expressions over these rows, are left to the caller.

    A window is a bounded input of its own: its events of one partition. The trends of the partitions of a group are
    put together. A trend of AND is a pair of a match of each side, which may share events. rows, ts_us: as
    `query.reference.find` takes them. Raises as `find` does; exponential in the number of rows of a window."""
    trends = plan.trends
    assert trends is not None
    alone = [_of_side(plan, side, Within(trends.within_us)) for side in sides(plan.pattern)]
    inputs: dict[tuple[int, tuple[object, ...]], list[int]] = {}
    for i, row in enumerate(rows):
        for k in trends.windows(ts_us[i]):
            inputs.setdefault((k, partition_key(plan, row)), []).append(i)
    found: dict[tuple[int, tuple[object, ...]], list[list[tuple[str, Row]]]] = {}
    groups: dict[tuple[object, ...], tuple[object, ...]] = {}
    for (k, _), index in inputs.items():
        of = [rows[i] for i in index]
        times = [ts_us[i] for i in index]
        found_alone = [find(side, of, times, evaluate=evaluate, steps_max=steps_max) for side in alone]
        matches = [tuple(x for match in pair for x in match.labels) for pair in product(*found_alone)]
        if matches:
            by = partition_key(replace(plan, partition_by=trends.group_by), of[0])
            groups.setdefault(by, tuple(of_one_zero(of[0][c.name]) for c in trends.group_by))
            listed = found.setdefault((k, by), [])
            listed += [[(name, of[i]) for name, i in labels] for labels in matches]
    out = []
    for k, by in sorted(found, key=lambda at: (at[0], [_order(v) for v in groups[at[1]]])):
        start = k * trends.slide_us
        values = tuple(aggregated(a, found[k, by], evaluate) for a in trends.aggregates)
        out.append(TrendRow(start, start + trends.within_us, groups[by], values))
    return out


def _of_side(plan: Plan, side: RowPattern, window: Within) -> Plan:
    """Returns the plan whose matches in a window are those of one side of AND, or those of the whole pattern."""
    own = {*variables(side), *negated(side)}
    defines = tuple(d for d in plan.defines if d.variable in own)
    return replace(plan, pattern=side, defines=defines, trends=None, rows=RowsPerMatch.ONE, measures=(), within=window)


def _order(value: Any) -> tuple[bool, Any]:
    """Sorts values of a group, nulls first and NaN last."""
    return value is not None, _nan_last(value)


def _nan_last(value: Any) -> tuple[bool, Any]:
    """Orders values as DuckDB does: NaN is the largest."""
    nan = isinstance(value, float) and math.isnan(value)
    return nan, 0 if nan else value


def aggregated(a: TrendAggregate, trends: Sequence[Sequence[tuple[str, Row]]], evaluate: Evaluate | None) -> Any:
    """Returns an aggregate over trends, each a list of (variable, event). An event counts once for each trend that has
    it; null values are skipped, and the sum of nothing is null."""
    if a.over is Over.MATCHES:
        return len(trends)
    events = [row for trend in trends for name, row in trend if not a.variables or name in a.variables]
    if a.over is Over.EVENTS:
        return len(events)
    assert a.argument is not None
    values = [v for row in events if (v := _of(a.argument, row, evaluate)) is not None]
    match a.over:
        case Over.VALUES:
            return len(values)
        case Over.MIN:
            return min(values, default=None, key=_nan_last)
        case Over.MAX:
            return max(values, default=None, key=_nan_last)
    if not values:
        return None
    exact = not isinstance(values[0], float)
    total = sum(map(Fraction, values)) if exact else sum(values)
    if a.over is Over.AVG:
        return float(total / len(values))
    if isinstance(values[0], Decimal):
        with localcontext(Context(prec=MAX_PREC, Emax=MAX_EMAX)):
            return sum(values, Decimal(0))
    return int(total) if exact else total


def _of(argument: Expression, row: Row, evaluate: Evaluate | None) -> Any:
    """Returns the value of a row-local expression at one event."""
    return value(argument, EvaluationScope(PartitionRows((), [0]), [row], (), 0, 0, None, evaluate))
