"""Expressions that can be computed on every row."""

from __future__ import annotations

from typing import assert_never

from query.plan.expression import (
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    MatchNumber,
    Navigation,
    Opaque,
)

_FLOATING = ("DOUBLE", "FLOAT")
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
#: Operators that have a value for all arguments.
NEVER_FAIL = frozenset(
    (
        "and", "or", "not", "=", "<>", "<", "<=", ">", ">=", "is_distinct", "is_not_distinct", "is_null",
        "is_not_null", "coalesce", "case", "in", "between",
    )
)  # fmt: skip


def never_fails(expression: Expression, time: Column) -> bool:
    """Returns True if an expression cannot raise on any row: no integers or decimals that may overflow, no casts that
    may fail, and no functions known only to DuckDB. time: a column without infinities."""

    def below(parts: tuple[Expression, ...]) -> bool:
        return all(never_fails(part, time) for part in parts)

    match expression:
        case Constant() | Column() | Classifier():
            return True
        case Navigation(argument):
            return never_fails(argument, time)
        case Aggregate(function, _, type=type):
            exact = function in ("count", "min", "max", "avg") or (function == "sum" and type in _FLOATING)
            return expression.plain and exact and below(expression.inputs)
        case Call(function, arguments, type):
            if not below(arguments):
                return False
            if function in NEVER_FAIL:
                return True
            if function in ("+", "-", "*", "/", "neg", "abs") and type in _FLOATING:
                return all(a.type in (*_FLOATING, *_INTEGERS) for a in arguments)
            if function == "-" and type == "INTERVAL":
                return all(_is_time(a, time) for a in arguments)
            if function == "cast":
                (source,) = arguments
                wider = _INTEGERS[: _INTEGERS.index(type)] if type in _INTEGERS[:4] else ()
                return source.type == type or source.type in wider or (
                    type == "DOUBLE" and source.type in (*_INTEGERS, *_FLOATING)
                )
            return False
        case MatchNumber() | Opaque():
            return False
        case _:
            assert_never(expression)


def _is_time(expression: Expression, time: Column) -> bool:
    return expression == time or (isinstance(expression, Navigation) and expression.argument == time)
