"""Conditions on rows of the match far back, as conditions on rows of the partition, where no row lies between rows of
a match."""

from __future__ import annotations

from dataclasses import replace

from matching.program.registers import REGISTERS_MAX
from query.plan.expression import (
    Aggregate,
    Call,
    Classifier,
    Constant,
    Expression,
    Logical,
    Navigation,
    Opaque,
    is_row_local,
    walk,
)
from query.plan.pattern import Repeat, RowPattern, Variable, variables
from query.plan.pattern import Sequence as Concatenation

#: Offsets of LAST above it are read from the rows before, instead of kept by every run.
NEIGHBOURS_FROM = 8


def rows_together(pattern: RowPattern) -> tuple[str, ...]:
    """Returns the variables whose rows follow each other in every match, if no row lies between two rows of it: those
    that stand at one place, alone or repeated, and in no group."""
    parts = pattern.parts if isinstance(pattern, Concatenation) else (pattern,)
    alone = [part.body if isinstance(part, Repeat) else part for part in parts]
    names = [part.name for part in alone if isinstance(part, Variable)]
    elsewhere = {n for part in alone if not isinstance(part, Variable) for n in variables(part)}
    return tuple(n for n in names if names.count(n) == 1 and n not in elsewhere)


def by_neighbours(e: Expression, together: tuple[str, ...]) -> Expression:
    """Returns a condition in which LAST(x, n) of many rows is PREV(x, n) of the last one, as far as they go, and the
    variable of a row before is that of a row of the match: no row of the partition lies between two rows of it.
    together: the variables whose rows follow each other."""
    match e:
        case Navigation(Classifier(), (), None, _, offset, False, type) if offset:
            if offset > 0:
                return Constant(None, type)  # no row of the match
            return replace(e, logical=Logical.LAST, logical_offset=-offset, physical_offset=0)
        case Navigation(Classifier()):
            return e
        case Navigation(argument, names, Logical.LAST, n, step, False, type) if (
            n > NEIGHBOURS_FROM and is_row_local(argument) and (not names or (len(names) == 1 and names[0] in together))
        ):
            count = Aggregate("count", None, names, False, False, "BIGINT")
            there = Call(">", (count, Constant(n, "BIGINT")), "BOOLEAN")
            last = Logical.LAST if names else None
            return Call(
                "case", (there, Navigation(argument, names, last, 0, step - n, False, type), Constant(None, type)), type
            )
        case Call(_, arguments) | Opaque(_, arguments):
            return replace(e, arguments=tuple(by_neighbours(a, together) for a in arguments))
        case _:
            return e


def is_far(condition: Expression) -> bool:
    """True if a condition reads a row of the match so far back that no run keeps its value."""
    found = (e for e in walk(condition) if isinstance(e, Navigation) and e.logical is Logical.LAST)
    return any(e.logical_offset >= REGISTERS_MAX for e in found)
