"""Queries on DuckDB's syntax trees of a pattern's expressions, and the words that DuckDB lacks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from query.errors import Span
from query.language import duck
from query.language.ast import ExpressionText
from query.language.duck import Node
from query.language.session import Session

NAVIGATION = {"prev", "next", "first", "last"}
#: Node classes without a meaning in a pattern's expression, and their names in messages.
UNSUPPORTED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a positional reference",
    "COLLATE": "COLLATE",
    "DEFAULT": "DEFAULT",
}
#: What to write instead of some of them.
INSTEAD = {
    "PARAMETER": 'give it a value: params={"name": 5} for $name, [5] for ?',
    "SUBQUERY": "compute it in the input: FROM (SELECT *, (SELECT ...) AS x FROM t) MATCH_RECOGNIZE (...)",
    "WINDOW": "compute it in the input: FROM (SELECT *, avg(x) OVER (...) AS mean FROM t) MATCH_RECOGNIZE (...)",
}


@dataclass(frozen=True, slots=True)
class Word:
    """RUNNING or FINAL in front of a call."""

    final: bool
    span: Span


#: Words after which a column may be called final or running.
_OPERATOR_WORDS = "in|and|or|not|is|like|ilike|between|similar|glob|then|else|when|end|as|collate|at|over|filter"


_QUOTED = r"""'(?:[^']++|'')*+'|"(?:[^"]++|"")*+\""""


def blank_words(text: ExpressionText) -> tuple[str, dict[int, Word]]:
    """The text with RUNNING and FINAL before a call blanked, and each of them by the offset of its call."""
    words: dict[int, Word] = {}
    source = list(text.text)
    # literals and quoted names are matched first so that no word is found inside them
    pattern = rf"""{_QUOTED}|\b(running|final)\s+(?=(?!(?:{_OPERATOR_WORDS})\b)[a-z_]\w*\s*\()"""
    for found in re.finditer(pattern, text.text, re.IGNORECASE):
        if found[1]:
            start, end = found.span(1)
            source[start:end] = " " * (end - start)
            words[found.end()] = Word(found[1].upper() == "FINAL", text.place(start, end))
    return "".join(source), words


#: Number of literals from which a list after IN is one value: a tree of each of them would cost more than its answers.
LIST_MIN = 256
_LITERAL = r"""\s*+(?:[-+]?+\d++(?:\.\d*+)?+|(?:DATE\s++|TIMESTAMP\s++)?+'(?:[^'"]++|'')*+'|NULL)\s*+"""
_TEXTS_AND_LISTS = re.compile(
    rf"""{_QUOTED}|\bIN\s*+\(({_LITERAL}(?:,{_LITERAL}){{{LIST_MIN - 1},}}+)\)""", re.IGNORECASE
)


def blank_lists(source: str) -> tuple[str, dict[str, str]]:
    """The text with long lists of literals after IN as a column's name and blanks, and each list by that name. Places
    in the text stay."""
    lists: dict[str, str] = {}

    def blanked(found: re.Match[str]) -> str:
        if not found[1]:
            return found[0]
        name = f"(list {len(lists)})"
        lists[name] = found[1]
        return found[0][: found.start(1) - found.start()] + f'"{name}"'.ljust(len(found[1])) + ")"

    return _TEXTS_AND_LISTS.sub(blanked, source), lists


def word_without_call(source: str) -> tuple[str, str] | None:
    """Returns RUNNING or FINAL before a likely column, and that column: `FINAL A.x` is no syntax of any dialect."""
    column = r'(?:\w+|"(?:[^"]++|"")*+")'
    pattern = rf"\b(running|final)\s+(?!(?:{_OPERATOR_WORDS})\b)((?:{column}\.)*{column})"
    found = re.search(pattern, source, re.IGNORECASE)
    return (found[1].upper(), found[2]) if found else None


def expressions(value: Any) -> Iterator[Node]:
    """Every node of a syntax tree that is an expression."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for child in value.values():
            yield from expressions(child)
    elif isinstance(value, list):
        for child in value:
            yield from expressions(child)


def reads_match(function: str) -> bool:
    """True for navigations, aggregates, CLASSIFIER and MATCH_NUMBER."""
    return function in NAVIGATION or function in ("classifier", "match_number") or function in duck.aggregate_names()


def is_plain_call(node: Node) -> bool:
    """True for a call of a scalar function whose value depends on those of its arguments alone."""
    if node["class"] != "FUNCTION" or node["distinct"] or node["filter"] or node["order_bys"]["orders"]:
        return False
    name, arguments = str(node["function_name"]).lower(), node["arguments"]
    special = reads_match(name) or name in duck.lambda_names() or name == "unnest"
    return bool(arguments) and not special and not duck.is_volatile(name, len(arguments))


def reads_rows(node: Node) -> bool:
    """True if the node alone keeps a tree from being a constant."""
    if node["class"] == "FUNCTION":
        name = str(node["function_name"]).lower()
        volatile = duck.is_volatile(name, len(node["arguments"]))
        return reads_match(name) or volatile or name in ("error", "unnest")
    return node["class"] == "COLUMN_REF" or node["class"] in UNSUPPORTED


def parameter_names(lhs: Node) -> frozenset[str]:
    return frozenset(str(n["column_names"][0]).lower() for n in expressions(lhs) if n["class"] == "COLUMN_REF")


def type_name(cast: Node) -> str:
    """The type a CAST names, as DuckDB writes it; names of a user's types stay."""
    null = {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "query_location": 0, "query_location_length": 0,
            "literal": {"kind": "NULL_LITERAL", "text": ""}}
    sql = duck.deserialize({**cast, "child": null, "alias": "", "try_cast": False})
    return sql.removeprefix("CAST(NULL AS ").removesuffix(")")


def direction(order: Node, session: Session) -> str:
    """Returns the order of an aggregate's sort key in SQL; nulls are placed as in the session by default."""
    descending = order["type"] == "DESCENDING" or (order["type"] == "ORDER_DEFAULT" and session.descends)
    nulls = order["null_order"]
    if nulls not in ("NULLS FIRST", "NULLS LAST"):
        nulls = "NULLS FIRST" if session.nulls_first[descending] else "NULLS LAST"
    return f"{'DESC' if descending else 'ASC'} {nulls}"
