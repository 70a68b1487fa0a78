"""Macros and types of a user's connection in a pattern's expressions: calls become the macro's body, types what they
stand for.

DuckDB itself chooses among overloads, and its message about a call that fits none has the defaults of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from query.errors import Diagnostic, Span
from query.language import duck
from query.language.duck import DuckFault, Node
from query.language.session import Overload, Session
from query.plan.bind_faults import macro_diagnostic
from query.plan.tree import NAVIGATION, expressions, parameter_names, type_name
from query.plan.typed import type_diagnostic

#: Macros inside macros; DuckDB forbids that one calls itself.
DEPTH_MAX = 100


def in_place(
    value: Any, session: Session, type_of: Callable[[Node], str | None], span: Callable[[Node], Span],
    faults: list[Diagnostic], depth: int = 0,
) -> Any:  # fmt: skip
    """Returns a syntax tree with the bodies of the connection's macros in place of calls, and what its types stand for
    in place of their names. type_of: see `expanded`. depth: the number of macros around the tree."""
    if not session.macros and not session.types:
        return value
    if isinstance(value, list):
        return [in_place(v, session, type_of, span, faults, depth) for v in value]
    if not isinstance(value, dict):
        return value
    value = {k: in_place(v, session, type_of, span, faults, depth) for k, v in value.items()}
    if value.get("class") == "CAST":
        return _to_plain_type(value, session)
    name = str(value["function_name"]).lower() if value.get("class") == "FUNCTION" else ""
    if name not in session.macros or name in (*NAVIGATION, "classifier", "match_number"):
        return value
    path = tuple(p for p in (value["catalog"], value["schema"], value["function_name"]) if p)
    overloads = session.overloads(path) if depth < DEPTH_MAX else ()
    if not overloads:
        faults.append(macro_diagnostic(".".join(path), span(value), depth == DEPTH_MAX))
        return value
    try:
        body = expanded(value, overloads, type_of)
    except DuckFault as fault:
        faults.append(type_diagnostic(fault, span(value)))
        return value
    return in_place(body, session, type_of, span, faults, depth + 1)


def expanded(call: Node, overloads: Sequence[Overload], type_of: Callable[[Node], str | None]) -> Node:
    """Returns the body of a macro with the arguments of a call in place of its parameters; calls of macros in the body
    remain. type_of: the DuckDB type of an argument, None for a constant. Raises DuckFault if no overload fits."""
    name = str(call["function_name"])
    if call["distinct"] or call["filter"] or call["order_bys"]["orders"]:
        message = f"{name} is a macro, which takes no DISTINCT, FILTER or ORDER BY"
        raise DuckFault(message, "BINDER", "", "", None, None)
    given = [(str(a["name"]), a["expression"]) for a in call["arguments"]]
    chosen = overloads[0]
    if len(overloads) > 1 or any(chosen.types) or len(given) != len(chosen.parameters) or any(n for n, _ in given):
        chosen = overloads[_fitting(name, overloads, given, type_of)]
    place = {k: call[k] for k in ("query_location", "query_location_length")}
    values: dict[str, Node] = {}
    unnamed = iter([value for argument, value in given if not argument])
    named = {argument.lower(): value for argument, value in given if argument}
    for parameter, type in zip(chosen.parameters, chosen.types):
        key = parameter.lower()
        value = named[key] if key in named else next(unnamed, None)
        value = _at(duck.parse_expression(chosen.defaults[key]), place) if value is None else {**value, "alias": ""}
        if type and type_of(value) != type:
            cast = duck.parse_expression(f"CAST(NULL AS {type})")
            value = {**_at(cast, place), "child": value}
        values[key] = value
    body = _at(duck.parse_expression(chosen.body), place)
    return {**_put(body, values), "alias": call["alias"]}


def _to_plain_type(cast: Node, session: Session) -> Node:
    """Returns a CAST to what the user's types in it stand for."""
    named = {str(n["type_name"]).lower() for n in expressions(cast["type_expr"]) if n["class"] == "TYPE"}
    if session.types.isdisjoint(named):
        return cast
    written = duck.parse_expression(f"CAST(NULL AS {session.type(type_name(cast))})")
    return {**cast, "type_expr": _at(written["type_expr"], _place(cast))}


def _fitting(
    name: str, overloads: Sequence[Overload], given: Sequence[tuple[str, Node]], type_of: Callable[[Node], str | None]
) -> int:
    """Returns the number of the overload that DuckDB chooses for these arguments."""
    arguments = []
    for argument, value in given:
        type = type_of(value)
        sql = duck.deserialize({**value, "alias": ""}) if type is None else f"CAST(NULL AS {type})"
        arguments.append(f"{duck.quote(argument)} := {sql}" if argument else sql)
    return duck.chosen_overload([o.signature for o in overloads], ", ".join(arguments), name)


def _at(value: Any, place: Mapping[str, int]) -> Any:
    """Returns a tree with all its parts at the place of a call."""
    if isinstance(value, dict):
        return {k: place.get(k, _at(v, place)) for k, v in value.items()}
    return [_at(v, place) for v in value] if isinstance(value, list) else value


def _put(value: Any, values: Mapping[str, Node]) -> Any:
    """Returns a tree with values in place of parameters. A lambda's parameters hide those of the macro, and are renamed
    where a value names a column like them."""
    if isinstance(value, list):
        return [_put(v, values) for v in value]
    if not isinstance(value, dict):
        return value
    if value.get("class") == "COLUMN_REF":
        name, *path = (str(part) for part in value["column_names"])
        found = values.get(name.lower())
        if found is None:
            return value
        for part in path:
            text = part.replace("'", "''")
            field = _at(duck.parse_expression(f"struct_extract(x, '{text}')"), _place(value))
            first = {**field["arguments"][0], "expression": found}
            found = {**field, "arguments": [first, *field["arguments"][1:]]}
        return {**found, "alias": value["alias"]}
    if value.get("class") == "FUNCTION" and str(value["schema"]).lower() in values and not value["catalog"]:
        argument = {"name": "", "expression": {**values[str(value["schema"]).lower()], "alias": ""}}
        alone = {"schema": "", "qualified_name": {"path": [value["function_name"]]}}  # x.f(y) is f(x, y)
        value = {**value, **alone, "arguments": [argument, *value["arguments"]]}
    if value.get("class") == "LAMBDA":
        hidden = parameter_names(value["lhs"])
        inside = {k: v for k, v in values.items() if k not in hidden}
        columns = {str(n["column_names"][0]).lower() for v in inside.values() for n in expressions(v)
                   if n["class"] == "COLUMN_REF"}  # fmt: skip
        fresh = {name: _fresh(name, columns | hidden) for name in hidden & columns}
        renamed = {old: {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", **_place(value),
                         "column_names": [new]} for old, new in fresh.items()}  # fmt: skip
        return {**value, "lhs": _put(value["lhs"], renamed), "expr": _put(value["expr"], {**inside, **renamed})}
    return {k: _put(v, values) for k, v in value.items()}


def _place(node: Node) -> dict[str, int]:
    return {k: node[k] for k in ("query_location", "query_location_length")}


def _fresh(name: str, taken: set[str] | frozenset[str]) -> str:
    """Returns a name like this one that is not taken."""
    number = 1
    while f"{name}{number}" in taken:
        number += 1
    return f"{name}{number}"
