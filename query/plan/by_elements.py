"""Rows, structs and lists that are made to be compared, compared element by element.

`(a, b) = (A.a, A.b)` is `a IS NOT DISTINCT FROM A.a AND b IS NOT DISTINCT FROM A.b`: DuckDB takes a null within such a
value for equal to a null. Engines know these, and look rows up by them."""

from __future__ import annotations

import re
from dataclasses import replace

from query.language.duck import Settings
from query.language.session import collation_of
from query.plan.expression import Call, Expression, Opaque

#: Comparisons of made values: whether they are for being equal.
_COMPARED = {
    '("_0" = "_1")': True, '("_0" IS NOT DISTINCT FROM "_1")': True,
    '("_0" <> "_1")': False, '("_0" IS DISTINCT FROM "_1")': False,
}  # fmt: skip
_MADE = re.compile(r'("row"|list_value|struct_pack)\((.*)\)')
_ELEMENT = re.compile(r'(?:(\w+|"[^"]+") := )?"_(\d+)"')


def by_elements(e: Expression, settings: Settings = ()) -> Expression:
    """Returns an expression that means the same, with comparisons of made values as those of their elements, and none
    negated."""
    if collation_of(settings):
        return e
    match e:
        case Opaque(sql, (a, b), "BOOLEAN") if sql in _COMPARED:
            return _by_pairs(e, a, b, _COMPARED[sql])
        case Call("not", (Call("<>", arguments, "BOOLEAN"),)):
            return Call("=", arguments, "BOOLEAN", e.span)
        case Call("and" | "or" | "not", arguments):
            return replace(e, arguments=tuple(by_elements(a, settings) for a in arguments))
    return e


def _by_pairs(e: Opaque, a: Expression, b: Expression, equal: bool) -> Expression:
    mine, theirs = _elements(a), _elements(b)
    if not mine or not theirs or mine[0] != theirs[0] or len(mine[1]) != len(theirs[1]):
        return e
    pairs = tuple(zip(mine[1], theirs[1]))
    if any(x.type != y.type or "COLLATE" in x.type for x, y in pairs):
        return e
    function = "is_not_distinct" if equal else "is_distinct"
    parts = tuple(Call(function, pair, "BOOLEAN", e.span) for pair in pairs)
    return parts[0] if len(parts) == 1 else Call("and" if equal else "or", parts, "BOOLEAN", e.span)


def _elements(e: Expression) -> tuple[list[str], list[Expression]] | None:
    """Returns how a value is made, and its elements; None if they are not told apart."""
    found = _MADE.fullmatch(e.sql) if isinstance(e, Opaque) else None
    if found is None or not isinstance(e, Opaque):
        return None
    parts = [_ELEMENT.fullmatch(part) for part in found[2].split(", ")]
    if None in parts:
        return None
    named = [part for part in parts if part is not None]
    return [found[1], *(part[1] or "" for part in named)], [e.arguments[int(part[2])] for part in named]
