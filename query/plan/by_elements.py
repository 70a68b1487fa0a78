"""Rows, structs and lists that are made to be compared, compared element by element.

`(a, b) = (A.a, A.b)` is `a IS NOT DISTINCT FROM A.a AND b IS NOT DISTINCT FROM A.b`: DuckDB takes a null within such a
value for equal to a null. Engines know these, and look rows up by them."""

from __future__ import annotations

import re
from dataclasses import replace

from query.language.duck import Settings
from query.language.session import collation_of
from query.plan.expression import Call, Constant, Expression, Opaque

#: Comparisons of made values: whether they are for being equal.
_COMPARED = {
    '("_0" = "_1")': True, '("_0" IS NOT DISTINCT FROM "_1")': True,
    '("_0" <> "_1")': False, '("_0" IS DISTINCT FROM "_1")': False,
}  # fmt: skip
_WHOLE = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT"}
_MADE = re.compile(r'("row"|list_value|struct_pack)\((.*)\)')
#: An element with its name: an expression, a text or a whole number.
_ELEMENT = re.compile(r"""(?:(\w+|"[^"]+") := )?(?:"_(\d+)"|('(?:[^']++|'')*+')|(\d{1,9}))(?:, |$)""")


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
    if not all((x.type == y.type and "COLLATE" not in x.type) or _are_whole(x, y) for x, y in pairs):
        return e
    function = "is_not_distinct" if equal else "is_distinct"
    parts = tuple(Call(function, pair, "BOOLEAN", e.span) for pair in pairs)
    return parts[0] if len(parts) == 1 else Call("and" if equal else "or", parts, "BOOLEAN", e.span)


def _elements(e: Expression) -> tuple[list[str], list[Expression]] | None:
    """Returns how a value is made, and its elements; None if they are not told apart."""
    found = _MADE.fullmatch(e.sql) if isinstance(e, Opaque) else None
    if found is None or not isinstance(e, Opaque):
        return None
    at, names, elements = 0, [found[1]], list[Expression]()
    while at < len(found[2]):
        part = _ELEMENT.match(found[2], at)
        if part is None:
            return None
        name, place, text, number = part.groups()
        names.append(name or "")
        if place:
            elements.append(e.arguments[int(place)])
        elif text:
            elements.append(Constant(text[1:-1].replace("''", "'"), "VARCHAR", e.span))
        else:
            elements.append(Constant(int(number), "INTEGER", e.span))
        at = part.end()
    return names, elements


def _are_whole(x: Expression, y: Expression) -> bool:
    """True for whole numbers of which one is a constant."""
    return {x.type, y.type} <= _WHOLE and (isinstance(x, Constant) or isinstance(y, Constant))
