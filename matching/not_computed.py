"""Errors of conditions and measures that DuckDB cannot compute for some rows: the place in the query, and what to
write."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from query.errors import NO_SPAN, NotComputed, Span, TextColumn
from query.language.duck import NULL_TYPE
from query.language.operators import operator_hint
from query.plan.boxes import as_written
from query.plan.expression import Call, Constant, Expression, show, walk
from query.plan.typed import COMPARING, text_column


def not_computed(what: str, expressions: Sequence[Expression], reason: str) -> NotComputed:
    """Returns the error of expressions, of which one has failed. what: they are. reason: DuckDB's message."""
    shown = ", ".join(map(as_written, expressions))
    of_operator = operator_hint(reason, shown)
    hint = of_operator or f"guard it with TRY(...), TRY_CAST or CASE in: {shown}"
    span, label, about = expressions[0].span if len(expressions) == 1 else NO_SPAN, "", None
    suspects = dict.fromkeys(s for e in expressions for s in _of_text(e)) if reason.startswith("Conversion") else {}
    if len(suspects) == 1:
        ((span, label, of_text, column, type),) = suspects
        hint = of_operator or of_text
        value = re.search(r"Could not convert string '(.*)' to ", reason)
        about = TextColumn("", column, type, value[1]) if column and value else None
    if re.search(r"Type UINT128 with value \d+ can't be cast", reason):
        reason = "a whole number beyond 2^127 - 1 is no HUGEINT, as which it is compared"
        hint = "write it as DOUBLE, 1e38, or compare UHUGEINTs: CAST(... AS UHUGEINT)"
    reason = re.sub(r" when casting from source column .*", "", reason)
    return NotComputed(f"{what} cannot be computed for these rows: {reason}", hint, span, label, about)


def _of_text(expression: Expression) -> Iterator[tuple[Span, str, str, str | None, str]]:
    """Yields what reads text as another type: its place, what it is, a hint, the column of the text, and the type."""
    for e in walk(expression):
        if not isinstance(e, Call):
            continue
        texts = [a for a in e.arguments if a.type == "VARCHAR"]
        others = [a for a in e.arguments if a.type not in ("VARCHAR", NULL_TYPE)]
        if e.function == "cast" and texts:
            text = show(texts[0])
            guarded = f"TRY_CAST({text} AS {e.type}), null for other texts, or compare with a text"
            wrong = isinstance(texts[0], Constant)
            hint = f"write a value of type {e.type} for {text}" if wrong else guarded
            yield e.span, f"read as {e.type}", hint, text_column(texts[0]), e.type
        elif e.function in COMPARING and texts and others:
            text, other = show(texts[0]), others[0]
            as_text = f"'{show(other)}'" if isinstance(other, Constant) else f"CAST({show(other)} AS VARCHAR)"
            label = f"{text} is text, {show(other)} is {other.type}"
            hint = f"compare texts: {as_text}; or numbers: TRY_CAST({text} AS {other.type})"
            yield e.span, label, hint, text_column(texts[0]), other.type
