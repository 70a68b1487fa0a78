"""The lag of a live pattern: how far behind the watermark the time of a row to come may lie."""

from __future__ import annotations

from typing import assert_never

from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import Column, Logical, Navigation, walk
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
    min_rows,
)
from query.plan.plan import Joined, Plan
from query.plan.trends import WINDOW_COLUMNS


def lag_us(plan: Plan, column: str | None) -> int | None:
    """Returns the lag by `column`: with the watermark at w, no row whose time in `column` is below w - lag_us can still
    come out; None if there is no such bound. column: a column of the output, or None for a time that is computed from
    several.

    0 for the time of the last event if matches are emitted with it. Otherwise the time of WITHIN, after which each
    start is decided; None if rows wait for the next row of their partition. A row of a window comes out at its end.
    """
    if plan.trends is not None:
        start, end = (field.name for field in WINDOW_COLUMNS)
        return {start: plan.trends.within_us, end: 0}.get(column or "")
    below = _below_us(plan)
    if _looks_ahead(plan) or below is None:
        return None
    if column is not None and _is_last(plan, column) and ends_at_once(plan):
        return below
    return plan.within.interval_us + below if plan.within is not None and plan.within.interval_us is not None else None


def last_event_lag_us(plan: Plan) -> int | None:
    """Returns the lag by the time of a row's last event: with the watermark at w, no row whose last event has a time
    below w - lag can still come out."""
    below = _below_us(plan)
    if _looks_ahead(plan) or below is None:
        return None
    if in_order_of_last_events(plan):
        return 0
    own = 0 if ends_at_once(plan) else None if plan.within is None else plan.within.interval_us
    waits = 0 if plan.joined is None else _waits_us(plan.joined)
    return None if own is None or waits is None else own + below + waits


def _waits_us(joined: Joined) -> int | None:
    """Returns how long a match waits at most for its histories, by event time; None if there is no bound."""
    waits = 0
    for history in joined.factor.histories:
        # rows of a pattern are there when it gives them
        later_us = 0 if history.rows_of is None else last_event_lag_us(history.rows_of.plan)
        if history.after_us is None or later_us is None:
            return None
        waits = max(waits, history.after_us + later_us)
    return waits


def _below_us(plan: Plan) -> int | None:
    """Returns the largest lag of the patterns of its boxes."""
    lags = [last_event_lag_us(box.plan) for box in plan.boxes]
    return None if None in lags else max((lag for lag in lags if lag is not None), default=0)


def in_order_of_last_events(plan: Plan) -> bool:
    """True if rows are emitted in the order of their last events, whatever the batches: each with that event."""
    unmatched = plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED
    here = not _looks_ahead(plan) and not unmatched and ends_at_once(plan) and plan.joined is None
    return here and all(in_order_of_last_events(box.plan) for box in plan.boxes)


def _looks_ahead(plan: Plan) -> bool:
    expressions = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    ahead = any(isinstance(e, Navigation) and e.physical_offset > 0 for root in expressions for e in walk(root))
    return ahead or False in anchors(plan.pattern)


def _is_last(plan: Plan, column: str) -> bool:
    """True if the output column is the time of the match's last event."""
    measure = next((m.expression for m in plan.measures if m.name.lower() == column.lower()), None)
    if not plan.order_by:
        return False
    time = plan.order_by[0].column.name
    if plan.rows is not RowsPerMatch.ONE:  # each row of a match has its own time, so a match must be one row
        unmatched = plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED
        return measure is None and column.lower() == time.lower() and _max_rows(plan.pattern) == 1 and not unmatched
    if isinstance(measure, Column):
        return measure.name == time
    if not isinstance(measure, Navigation):
        return False
    plain = isinstance(measure.argument, Column) and measure.argument.name == time
    to_last = measure.logical is Logical.LAST and not measure.logical_offset and not measure.physical_offset
    ends = _endings(plan.pattern)
    return plain and to_last and (not measure.variables or (None not in ends and ends <= set(measure.variables)))


def prefers_one(plan: Plan) -> bool:
    """True if a pattern with boxes gives one preferred match of each start. Another one may end before it, so that all
    of WITHIN must have passed."""
    skips = plan.after.kind is not AfterMatchKind.NO_SKIP
    return bool(plan.boxes) and skips and plan.selection in (Selection.STRICT, Selection.PARTITION)


def ends_at_once(plan: Plan) -> bool:
    """True if every match is emitted with its last event: no later event can replace it or rule it out."""
    if plan.timeout_rows or _forbids_behind(plan.pattern) or prefers_one(plan):
        return False
    if plan.after.kind is AfterMatchKind.NO_SKIP:
        return True
    if plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY):
        return True
    return min_rows(plan.pattern) == _max_rows(plan.pattern)


def _forbids_behind(pattern: RowPattern) -> bool:
    """True if a negation may follow the last row."""
    if isinstance(pattern, Conjunction):
        return any(map(_forbids_behind, pattern.sides))
    parts = pattern.parts if isinstance(pattern, Sequence) else (pattern,)
    return any(isinstance(p, Negation) and not sum(map(min_rows, parts[i + 1 :])) for i, p in enumerate(parts))


def _endings(pattern: RowPattern) -> frozenset[str | None]:
    """Returns the variables that the last row may have; None: possibly no row."""
    match pattern:
        case Variable(name):
            return frozenset({name})
        case Sequence(parts):
            found: frozenset[str | None] = frozenset({None})
            for part in reversed(parts):
                found = (found - {None}) | _endings(part)
                if None not in found:
                    break
            return found
        case Alternation(choices) | Conjunction(choices):
            return frozenset().union(*map(_endings, choices))
        case Repeat(body, at_least):
            return _endings(body) | (frozenset() if at_least else frozenset({None}))
        case Exclusion(body):
            return _endings(body)
        case Empty() | Negation() | Anchor():
            return frozenset({None})
        case _:
            assert_never(pattern)


def _max_rows(pattern: RowPattern) -> float:
    """Most rows any match can have."""
    match pattern:
        case Variable():
            return 1
        case Sequence(parts):
            return sum(map(_max_rows, parts))
        case Alternation(choices):
            return max(map(_max_rows, choices))
        case Conjunction(sides):
            return sum(map(_max_rows, sides))
        case Repeat(body, _, at_most):
            most = _max_rows(body)
            return 0 if not most else float("inf") if at_most is None else at_most * most
        case Exclusion(body):
            return _max_rows(body)
        case Empty() | Negation() | Anchor():
            return 0
        case _:
            assert_never(pattern)
