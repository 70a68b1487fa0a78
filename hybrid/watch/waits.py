"""Reasons why a match of a live query may come late, and partial matches may never end, as warnings to its user."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import assert_never

from query.language.ast import Selection
from query.plan.boxes import bounded
from query.plan.expression import Constant, Navigation, walk
from query.plan.lag import prefers_one
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
from query.plan.plan import FactorPlan, Plan


def waits(plan: Plan, of: str) -> list[str]:
    """Returns warnings that matches of a live query may come late or that partial ones may never end. of: names the
    query, or one of its patterns."""
    found = []
    why = endless(plan)
    if why is not None:
        found.append(f"partial matches of {of} may be kept for ever: {why}")
    if plan.within is None and ends_greedily(plan.pattern):
        found.append(
            "the pattern ends in a greedy quantifier: a match is emitted when the next event of its partition does not "
            "extend it; WITHIN would bound the wait"
        )
    expressions = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    if any(isinstance(e, Navigation) and e.physical_offset > 0 for root in expressions for e in walk(root)):
        found.append("NEXT holds its partition back until the next event of the partition arrives")
    if False in anchors(plan.pattern):
        found.append(
            "$ holds its partition back until the next event of the partition arrives; it is true only after the last "
            "event of a stream that has ended"
        )
    return found


def endless(plan: Plan) -> str | None:
    """Returns why partial matches of a live query may never end, and are kept forever; None if each of them ends with
    WITHIN, or with a row that does not extend it."""
    return _endless(bounded(plan))


def _endless(plan: Plan) -> str | None:
    """See `endless`. The patterns of boxes have the WITHIN of their callers."""
    for box in plan.boxes:
        if (why := _endless(box.plan)) is not None:
            return f"of {box.name}, {why}"
    if plan.within is not None:
        return None
    if prefers_one(plan):
        return f"AFTER MATCH {plan.after} decides between matches at the end of the stream; WITHIN would decide earlier"
    if plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY):
        if _single(plan.pattern):
            return None
        return f"SELECTION {plan.selection.value} may skip rows forever; WITHIN would end it"
    if plan.boxes:
        if _single(plan.pattern):
            return None
        return "a match of a box may begin with the next event, whenever it ends; WITHIN would end it"
    tested = {d.variable for d in plan.defines if d.condition != Constant(True, "BOOLEAN")}
    loop = _taking_all(plan.pattern, tested)
    return None if loop is None else f"{loop} takes every row forever; a condition on it or WITHIN would end it"


def endless_of(factors: Iterable[FactorPlan]) -> dict[str, str]:
    """Returns, for stats(), why partial matches of some patterns may be kept forever."""
    found = [why for factor in factors if (why := endless(factor.plan)) is not None]
    return {"unbounded": "; ".join(dict.fromkeys(found))} if found else {}


def _single(pattern: RowPattern) -> bool:
    """True if each match is one row, so that there are no partial matches."""
    match pattern:
        case Variable() | Empty() | Anchor():
            return True
        case Alternation(choices):
            return all(map(_single, choices))
        case Sequence(parts):
            return sum(not isinstance(part, Anchor | Empty) for part in parts) <= 1 and all(map(_single, parts))
        case Exclusion(body):
            return _single(body)
        case Repeat(body, _, at_most):
            return at_most in (0, 1) and _single(body)
        case Negation() | Conjunction():
            return False
        case _:
            assert_never(pattern)


def _taking_all(pattern: RowPattern, tested: Set[str]) -> Repeat | None:
    """Returns an unbounded loop whose body takes any row; None if there is none. tested: the variables with a
    condition."""
    match pattern:
        case Repeat(body, _, at_most):
            return pattern if at_most is None and _any_row(body, tested) else _taking_all(body, tested)
        case Sequence(parts) | Alternation(parts) | Conjunction(parts):
            return next((found for part in parts if (found := _taking_all(part, tested)) is not None), None)
        case Exclusion(body):
            return _taking_all(body, tested)
        case Variable() | Empty() | Negation() | Anchor():
            return None
        case _:
            assert_never(pattern)


def _any_row(pattern: RowPattern, tested: Set[str]) -> bool:
    """True if any rows match the pattern."""
    match pattern:
        case Variable(name):
            return name not in tested
        case Sequence(parts):
            return min_rows(pattern) > 0 and all(_any_row(part, tested) for part in parts if min_rows(part))
        case Alternation(choices):
            return any(_any_row(choice, tested) for choice in choices)
        case Repeat(body) | Exclusion(body):
            return _any_row(body, tested)
        case Empty() | Negation() | Anchor() | Conjunction():
            return False
        case _:
            assert_never(pattern)


def ends_greedily(pattern: RowPattern) -> bool:
    """True if a match may be extended beyond a point where it could end, and prefers that."""
    match pattern:
        case Repeat(body, at_least, at_most, greedy):
            return (greedy and at_most != at_least) or ends_greedily(body)
        case Sequence(parts):
            for part in reversed(parts):
                if ends_greedily(part):
                    return True
                if min_rows(part):
                    return False
            return False
        case Alternation(choices) | Conjunction(choices):
            return any(map(ends_greedily, choices))
        case Exclusion(body):
            return ends_greedily(body)
        case Variable() | Empty() | Negation() | Anchor():
            return False
        case _:
            assert_never(pattern)
