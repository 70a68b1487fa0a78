"""Warnings about row pattern variables that take any row, where their names say that more was meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import assert_never

from query.errors import Diagnostic, nearest
from query.language import ast
from query.plan import pattern as rp

#: Between two variables: A FOLLOWED BY B, A THEN B.
_WORDS = ("FOLLOWED", "FOLLOWEDBY", "BY", "THEN")
#: Names of variables that are meant to take any row: A, B2, ANY, ANYTHING.
_ANY = re.compile(r"[A-Z]\d*|ANY.*")


def any_row(syntax: ast.PatternSyntax, pattern: rp.RowPattern, defined: Collection[str]) -> Iterator[Diagnostic]:
    """Yields warnings about variables without a condition in DEFINE. pattern: of the syntax. defined: the variables
    that have one.

    Quiet about one that may be the first row of a match, where a chain starts (`START DOWN+`), about names of one
    letter, those that begin with ANY, and quoted ones. Of operators of other languages, the first one is named."""
    parts = syntax.parts if isinstance(syntax, ast.PatternSequence) else ()
    names = [part.name for part in parts if isinstance(part, ast.PatternVariable)]
    words = [name for name in names if name.name in _WORDS and not name.quoted and name.name not in defined]
    if words and len(words) < len(parts):
        message = f"{words[0].name} is a variable here, and takes any row"
        hint = "A B are rows side by side; SELECTION SKIP TILL NEXT MATCH allows others between them"
        yield Diagnostic("", message, words[0].span, "no operator", hint)
        return
    starts = {name for name, before in rp.rows_before(pattern).items() if not before}
    quiet = {*defined, *starts}
    for element in elements(syntax):
        name = element.name
        if name.quoted or name.name in quiet or _ANY.fullmatch(name.name):
            continue
        quiet.add(name.name)
        takes = "any row is one" if isinstance(element, ast.PatternNegation) else "it takes any row"
        close = nearest(name.written, [known for known in defined if known != name.name])
        close = f"{close} " if close.startswith("did") else ""
        hint = f"{close}DEFINE {name.written} AS true says that any row is meant"
        yield Diagnostic("", f"{name.written} has no condition in DEFINE: {takes}", name.span, "any row", hint)


def elements(syntax: ast.PatternSyntax) -> list[ast.PatternVariable | ast.PatternNegation]:
    """Returns the variables of a pattern, negated ones too, in order of the text."""
    match syntax:
        case ast.PatternVariable() | ast.PatternNegation():
            return [syntax]
        case ast.PatternSequence(parts) | ast.PatternAlternation(parts) | ast.PatternPermute(parts):
            return [e for part in parts for e in elements(part)]
        case ast.PatternConjunction(sides):
            return [e for side in sides for e in elements(side)]
        case ast.PatternQuantified(body) | ast.PatternExclusion(body):
            return elements(body)
        case ast.PatternEmpty() | ast.PatternAnchor():
            return []
        case _:
            assert_never(syntax)
