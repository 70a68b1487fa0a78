"""Warnings about words that are operators of patterns in other languages, and row pattern variables here."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from query.errors import Diagnostic
from query.language import ast

#: Between two variables: A FOLLOWED BY B, A THEN B.
_WORDS = ("FOLLOWED", "FOLLOWEDBY", "BY", "THEN")


def operators_elsewhere(pattern: ast.PatternSyntax, defined: Collection[str]) -> Iterator[Diagnostic]:
    """Yields a warning for the first of these words in a sequence, unless a variable of the name is defined."""
    parts = pattern.parts if isinstance(pattern, ast.PatternSequence) else ()
    names = [part.name for part in parts if isinstance(part, ast.PatternVariable)]
    words = [name for name in names if name.name in _WORDS and not name.quoted and name.name not in defined]
    if words and len(words) < len(parts):
        message = f"{words[0].name} is a variable here, and takes any row"
        hint = "A B are rows side by side; SELECTION SKIP TILL NEXT MATCH allows others between them"
        yield Diagnostic("", message, words[0].span, "no operator", hint)
