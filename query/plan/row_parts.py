"""Conditions in which whatever reads one row of the match is a value of that row.

`lower(A.s)` is `LAST(A.lower(s))`: the function is computed once for each row, in whole batches, and a run keeps its
value. What is left between rows are operators and functions of which engines know the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from query.language import duck
from query.language.duck import Settings
from query.plan.bind_expression import opened
from query.plan.expression import (
    TRUE,
    Call,
    Column,
    Constant,
    Expression,
    Navigation,
    Opaque,
    children,
    is_row_local,
    to_sql,
    walk,
)
from query.plan.never_fails import never_fails

#: Functions of DuckDB that have a value for every argument.
_TOTAL = frozenset(
    (
        "lower", "upper", "lcase", "ucase", "length", "len", "strlen", "trim", "ltrim", "rtrim", "reverse", "left",
        "right", "starts_with", "ends_with", "suffix", "prefix", "contains", "year", "month", "day", "hour", "minute",
        "second", "dayofweek", "weekday", "isodow", "dayofyear", "quarter", "date_part", "md5", "isnan", "isinf",
        "isfinite", "hash", "||", "~~", "!~~", "~~*", "!~~*",
    )
)  # fmt: skip
#: The parts of which date_diff counts how many of seven days lie between two times, not their bounds.
_OF_DAYS = ("week", "weeks", "w", "yearweek")
#: No column: none is known to be free of infinities.
_NO_TIME = Column("", "")


def by_rows(condition: Expression, engines_know: Callable[[Expression], bool], settings: Settings = ()) -> Expression:
    """Returns a condition that means the same, with its parts that read one row of the match as values of that row.

    engines_know: True for a part that engines compute from values of the rows as it is; such parts stay."""

    def apart(e: Expression) -> Expression:
        if is_row_local(e) or not isinstance(e, Call | Opaque) or engines_know(e):
            return e
        found = list(dict.fromkeys(_reads(e)))
        if len({_row(n) for n in found}) == 1 and (value := _at_row(e, found, settings)) is not None:
            return value
        if isinstance(e, Call):
            return replace(e, arguments=tuple(map(apart, e.arguments)))
        inner = _bounds_apart(_opened(e, settings))
        if not isinstance(inner, Call | Opaque):
            return apart(inner)
        return replace(inner, arguments=tuple(map(apart, inner.arguments)))

    return apart(condition)


def at_its_row(e: Expression, settings: Settings) -> Expression | None:
    """Returns what reads one row of the match as a value of that row, with the error where it has none. None for what
    reads others, or has a value without such a row."""
    found = list(dict.fromkeys(_reads(e)))
    if len({_row(n) for n in found}) != 1:
        return None
    nothing = duck.fold(to_sql(e, {n: f"CAST(NULL AS {n.type})" for n in found}), settings)
    return _at_row(e, found, settings) if nothing is not None and nothing.value is None else None


def has_refused(e: Expression) -> bool:
    """True if a part is a value of a row that may have an error there, which engines know and DuckDB does not."""
    return any(isinstance(part, Call) and part.function == "refuse" for part in walk(e))


def _reads(e: Expression) -> Iterator[Expression]:
    """Yields what reads rows: columns, navigations, aggregates, classifiers and match numbers."""
    if isinstance(e, Call | Opaque):
        for child in children(e):
            yield from _reads(child)
    elif not isinstance(e, Constant):
        yield e


def _row(e: Expression) -> object:
    """Equal for navigations to the same row of the match; another object for anything else."""
    if isinstance(e, Navigation) and e.logical is not None and is_row_local(e.argument):
        return e.variables, e.logical, e.logical_offset, e.physical_offset, e.final
    return object()


def of_one_row(e: Expression, settings: Settings = ()) -> Navigation | None:
    """Returns an expression that reads one row of the match as a value of that row, null if there is no such row. None
    if it reads others, or has a value where there is none."""
    reads = list(dict.fromkeys(_reads(e)))
    rows = [n for n in reads if isinstance(n, Navigation) and is_row_local(n.argument)]
    places = {replace(n, argument=TRUE, type="") for n in rows}
    if len(places) != 1 or len(rows) < len(reads):
        return None
    nothing = duck.fold(to_sql(e, {n: f"CAST(NULL AS {n.type})" for n in rows}), settings)
    if nothing is None or nothing.value is not None:
        return None
    return replace(rows[0], argument=_put(e, {n: n.argument for n in rows}), type=e.type)


def _at_row(e: Expression, reads: list[Expression], settings: Settings) -> Expression | None:
    """Returns an expression that reads one row as a value of that row, or None if it has none."""
    row = reads[0]
    if not isinstance(row, Navigation) or row.logical is None or not is_row_local(row.argument):
        return None
    inner = _put(e, {n: n.argument for n in reads if isinstance(n, Navigation)})
    nothing = duck.fold(to_sql(e, {n: f"CAST(NULL AS {n.type})" for n in reads}), settings)
    if nothing is None or not is_row_local(inner):
        return None

    def at(value: Expression, type: str) -> Navigation:
        return replace(row, argument=value, type=type)

    if total(inner, settings):
        value: Expression = at(inner, e.type)
    else:
        fails = Opaque('(TRY(("_0") IS NULL) IS NULL)', (inner,), "BOOLEAN", e.span)
        refused = Call("refuse", (at(fails, "BOOLEAN"),), "BOOLEAN", e.span)
        tried = at(Opaque('TRY("_0")', (inner,), e.type, e.span), e.type)
        value = Call("case", (refused, Constant(None, e.type), tried), e.type, e.span)
    if nothing.value is None:
        return value
    # where there is no such row the expression has a value nevertheless: coalesce(A.x, 0)
    there = Call("is_not_null", (at(TRUE, "BOOLEAN"),), "BOOLEAN", e.span)
    sql = f"CAST({to_sql(e, {n: f'CAST(NULL AS {n.type})' for n in reads})} AS {e.type})"
    return Call("case", (there, value, Constant(nothing.value, e.type, e.span, sql)), e.type, e.span)


def total(e: Expression, settings: Settings) -> bool:
    """True if a value of one row can be computed for every row."""
    match e:
        case Opaque():
            inner = _opened(e, settings)
            if inner != e:
                return total(inner, settings)
            called = re.match(r'"?(\w+)"?\(|\("_\d+" (\S+) ', e.sql)
            known = called is not None and (called[1] or called[2]) in _TOTAL
            return known and all(total(a, settings) for a in e.arguments)
        case Call(_, arguments):
            alone = replace(e, arguments=tuple(Column("", a.type) for a in arguments))
            return never_fails(alone, _NO_TIME) and all(total(a, settings) for a in arguments)
        case Navigation(argument):
            return total(argument, settings)
        case _:
            return True


def _bounds_apart(e: Expression) -> Expression:
    """Returns date_diff of two times, the number of bounds between them, as the difference of two numbers that each
    time has of its own."""
    found = re.match(r"""date_?diff\(('\w+'), "_0", "_1"\)$""", e.sql) if isinstance(e, Opaque) else None
    if found is None or not isinstance(e, Opaque) or {a.type for a in e.arguments} not in ({"TIMESTAMP"}, {"DATE"}):
        return e
    if found[1][1:-1].lower() in _OF_DAYS:
        return e
    a, b = e.arguments
    text = f"date_diff({found[1]}, {a.type} '1000-01-01', \"_0\")"
    return Call("-", tuple(Opaque(text, (x,), e.type, e.span) for x in (b, a)), e.type, e.span)


def _opened(e: Opaque, settings: Settings) -> Expression:
    """Returns it as operators, and functions of their own; itself if it is one function already."""
    found = opened(e.sql, tuple(a.type for a in e.arguments), settings)
    if found is None or found.type != e.type:
        return e
    return _put(found, {Column(f"_{i}", a.type): a for i, a in enumerate(e.arguments)})


def _put(e: Expression, instead: dict[Expression, Expression]) -> Expression:
    """Returns the expression with others in place of some of its parts."""
    if e in instead:
        return instead[e]
    if isinstance(e, Call | Opaque):
        return replace(e, arguments=tuple(_put(a, instead) for a in e.arguments))
    return e
