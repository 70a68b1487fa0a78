"""Notes about patterns that give many matches of one start: a run stays in a loop, and leaves it, at each event."""

from __future__ import annotations

from collections.abc import Iterator

from query.errors import Diagnostic
from query.language import ast


def many_per_start(query: ast.QuerySyntax) -> Iterator[Diagnostic]:
    """Yields a note for each pattern under SKIP TILL NEXT MATCH in which an element follows a loop, unless AFTER MATCH
    is given: it gives a match for each later event of that element."""
    for factor in query.factors:
        match, parts = factor.match, factor.match.pattern
        next_match = match.selection is not None and match.selection.selection is ast.Selection.SKIP_TILL_NEXT
        if not next_match or match.after is not None or not isinstance(parts, ast.PatternSequence):
            continue
        rows = [part for part in parts.parts if not isinstance(part, ast.PatternNegation)]
        loops = [part for part in rows[:-1] if isinstance(part, ast.PatternQuantified) and part.at_most is None]
        if loops:
            hint = "AFTER MATCH SKIP PAST LAST ROW gives one for each start"
            message = "each later event of what follows the loop ends a further match of the same start"
            yield Diagnostic("", message, loops[-1].span, "stays open", hint)
