"""Parameters of a statement: `$name`, `$1` and `?`, replaced by literals of their values."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from query.errors import DataError, ExpandedText, Insert, Span
from query.language.lexer import TokenKind, Tokens, tokenize

#: Values of parameters by name or in order; None: the text has none.
Params = Mapping[str, Any] | Sequence[Any] | None
MICROSECOND = dt.timedelta(microseconds=1)


def filled(text: str, values: Mapping[str, Any] | Sequence[Any]) -> str:
    """Returns a statement with literals in place of its parameters; errors about it show the parameters.

    values: by name for `$name`, in order for `?` and `$1`. Parameters stand where an expression may stand, and behind
    WITHIN as timedeltas, not in PATTERN, where `$` and `?` mean other things. Raises DataError for values without a
    parameter, parameters without a value, and values that no literal has."""
    if isinstance(values, str | bytes) or not isinstance(values, Mapping | Sequence):
        raise DataError(f"params are values by name or in order, not {values!r:.60}", '{"limit": 5} or [5]')
    named = dict(values) if isinstance(values, Mapping) else {str(i + 1): v for i, v in enumerate(values)}
    inserts: list[Insert] = []
    used: set[str] = set()
    lowered = {str(name).lower(): name for name in named}  # as in DuckDB, names are compared without case
    for asked, span in _parameters(tokenize(text)):
        name = asked if asked in named else lowered.get(asked.lower(), asked)
        if name not in named:
            known = ", ".join(f"${k}" for k in named)
            example = f'{{"{name}": 5}}' if not name.isdecimal() else "[5]"
            hint = f"params has {known}" if known else f"give it one: params={example}"
            if f"${name}" in named:
                hint = f'names in params have no $: {{"{name}": ...}}'
            raise DataError(f"{text[span.start : span.end]} has no value", hint)
        used.add(name)
        # the parameter becomes a comment: places in the text stay the author's
        inserts.append(Insert(span.start, f"{literal(named[name], f'${name}')}/*", "", "", "", span))
        inserts.append(Insert(span.end, "*/", "", "", "", span))
    for name in named:
        if name not in used:
            hint = "parameters are $name, or ? in order, outside PATTERN"
            raise DataError(f"the text has no parameter ${name}", hint)
    return ExpandedText.of(text, inserts) if inserts else text


def _parameters(tokens: Tokens) -> Iterator[tuple[str, Span]]:
    """Yields name or number, and place, of each parameter."""
    items, i, asked = tokens.items, 0, 0
    while i < len(items):
        if items[i].word in ("PATTERN", "SEQ") and tokens.words(i + 1, "("):
            i = tokens.partner[i + 1]
        elif items[i].word == "?":
            asked += 1
            yield str(asked), items[i].span
        elif items[i].word == "$" and i + 1 < len(items) and items[i + 1].start == items[i].end:
            if items[i + 1].kind in (TokenKind.WORD, TokenKind.NUMBER):
                yield items[i + 1].text, items[i].span.to(items[i + 1].span)
                i += 1
        i += 1


def literal(value: Any, name: str) -> str:
    """Returns DuckDB's literal of a Python value. name: for the DataError if there is none."""
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        if value.dtype.str.endswith(("[ns]", "[ps]", "[fs]", "[as]")):  # Python would have numbers
            value = value.astype(f"{value.dtype.kind}8[us]")
        value = value.tolist()  # of an array, a list
    if kind.__name__ in ("NaTType", "NAType") and kind.__module__.startswith("pandas."):
        return "NULL"
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(value) if value >= 0 else f"({value})"
        case float():
            if not math.isfinite(value):
                return f"CAST('{value}' AS DOUBLE)"
            return f"CAST({value!r} AS DOUBLE)"
        case Decimal() if value.is_finite():
            return f"({value:f})" if value < 0 else f"{value:f}"
        case str():
            return _quoted(value)
        case bytes():
            return "'" + "".join(f"\\x{b:02X}" for b in value) + "'::BLOB"
        case UUID():
            return f"'{value}'::UUID"
        case dt.datetime():
            return f"{'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'} '{value.isoformat(sep=' ')}'"
        case dt.date():
            return f"DATE '{value.isoformat()}'"
        case dt.time() if value.tzinfo is None:
            return f"TIME '{value.isoformat()}'"
        case dt.timedelta():
            seconds, us = divmod((value - dt.timedelta(days=value.days)) // MICROSECOND, 1_000_000)
            return f"INTERVAL '{value.days} days {seconds} seconds {us} microseconds'"
        case list() | tuple():
            return f"[{', '.join(literal(v, name) for v in value)}]"
        case dict() if value and all(isinstance(k, str) for k in value):
            return "{" + ", ".join(f"{_quoted(k)}: {literal(v, name)}" for k, v in value.items()) + "}"
    raise DataError(f"parameter {name} is a {type(value).__name__}, which has no literal", "pass it in a table")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
