"""Warnings about conditions that read a variable before a row of it can have been matched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from query.errors import Diagnostic
from query.plan import pattern as rp
from query.plan.expression import Aggregate, Call, Expression, Navigation, children
from query.plan.plan import Define

#: Operators whose answer over null is not null.
_TAKE_NULL = ("is_null", "is_not_null", "is_distinct", "is_not_distinct", "coalesce")


def read_too_early(pattern: rp.RowPattern, defines: Sequence[Define]) -> Iterator[Diagnostic]:
    """Yields warnings about conditions that read variables of which no row can come before theirs.

    Counts, and tests for null, have an answer then; conditions of negated variables may read what is behind them."""
    before, taken = rp.may_precede(pattern), rp.variables(pattern)

    def too_early(e: Expression, candidate: str) -> Navigation | Aggregate | None:
        if isinstance(e, Navigation | Aggregate) and e.variables:
            counts = isinstance(e, Aggregate) and e.function == "count"
            known = counts or any(v == candidate or (v, candidate) in before for v in e.variables)
            return None if known else e
        if isinstance(e, Call) and e.function in _TAKE_NULL:
            return None
        return next((found for child in children(e) if (found := too_early(child, candidate)) is not None), None)

    for define in defines:
        read = too_early(define.condition, define.variable) if define.variable in taken else None
        if read is not None:
            own, others = rp.Variable(define.variable), " or ".join(map(str, map(rp.Variable, read.variables)))
            message = f"the condition of {own} reads {others}, of which no row comes before {own}"
            hint = f"write the comparison into the condition of {others}, which can read {own}"
            yield Diagnostic("", message, read.span, "always null", hint)
