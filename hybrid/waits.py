"""Why a match of a live query may come late: said to the one who asks the query."""

from __future__ import annotations

from typing import assert_never

from query.plan.expression import Navigation, walk
from query.plan.pattern import (
    Alternation,
    Anchor,
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
from query.plan.plan import Plan


def waits(plan: Plan) -> list[str]:
    """Why matches of a live query may come late, if they may: warnings for the one who asks."""
    found = []
    if plan.within is None and ends_greedily(plan.pattern):
        found.append(
            "the pattern ends in a greedy quantifier: a match comes out when the next event of its partition does not "
            "go on with it; WITHIN would bound the wait"
        )
    expressions = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    if any(isinstance(e, Navigation) and e.physical_offset > 0 for root in expressions for e in walk(root)):
        found.append("NEXT holds its partition back until the next event of the partition is there")
    if False in anchors(plan.pattern):
        found.append(
            "$ holds its partition back until the next event of the partition is there; it holds only behind the last "
            "event of a stream that has ended"
        )
    return found


def ends_greedily(pattern: RowPattern) -> bool:
    """Whether a match may go on behind a point where it could end, and would rather."""
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
        case Alternation(choices):
            return any(map(ends_greedily, choices))
        case Exclusion(body):
            return ends_greedily(body)
        case Variable() | Empty() | Negation() | Anchor():
            return False
        case _:
            assert_never(pattern)
