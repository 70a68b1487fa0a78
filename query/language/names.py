"""Hints about names that SQL reads as words of its own."""

from __future__ import annotations

import difflib

from query.errors import QueryError
from query.language.duck import reserved_words
from query.language.lexer import TokenKind, tokenize, words_of

#: Words that stand before an expression or a table, and are hardly ever meant as names.
_STRUCTURE = words_of(
    "SELECT DISTINCT FROM WHERE AND OR NOT ON BY AS IN IS LIKE HAVING QUALIFY CASE WHEN THEN ELSE UNION EXCEPT "
    "INTERSECT CAST NULL TRUE FALSE INTO WITH USING BETWEEN JOIN INNER OUTER CROSS NATURAL FOR VALUES SHOW DESCRIBE"
)
#: Of these, words that begin a part of an expression, and are columns where none is open.
_PARTS = words_of("WHEN THEN ELSE FROM INTO USING FOR LIKE BETWEEN")
#: Words that are never names before BY.
_BEFORE_BY = words_of("ORDER GROUP PARTITION")
#: First words of statements.
BEGINNINGS = ("SELECT", "WITH", "FROM", "VALUES", "INSERT", "CREATE", "COPY")


def quoting_hint(text: str, at: int) -> str:
    """Returns a hint to quote the name because of which a text has a syntax error at offset `at`: the word there or the
    one before. Empty if neither can be meant as a name."""
    try:
        tokens = tokenize(text)
    except QueryError:
        return ""
    items = tokens.items
    here = next((i for i, token in enumerate(items) if token.end > at), len(items))
    cases = any(token.word == "CASE" for token in items)
    for i in (here, here - 1):
        if not 0 <= i < len(items) or items[i].kind is not TokenKind.WORD:
            continue
        meant = items[i].word not in _STRUCTURE or (items[i].word in _PARTS and not cases)
        if not meant or tokens.words(i - 1, "SELECT", "FROM"):
            continue
        if items[i].word.lower() not in reserved_words() or (items[i].word in _BEFORE_BY and tokens.words(i + 1, "BY")):
            continue
        before = items[i - 1] if i else None
        symbol = before is not None and before.kind is TokenKind.SYMBOL and before.word not in (")", "]", "}", ".")
        if before is None or symbol or before.word in _STRUCTURE:
            return f'{items[i].text} is a word of SQL: quote it if it is a name, "{items[i].text}"'
    return ""


def beginning_hint(text: str, at: int) -> str:
    """Returns a hint which first word of a statement the one at offset `at` may be meant as, that the word before is
    meant as FROM, or where WITHIN belongs; empty if they are other words, or like none."""
    before, behind = text[:at].split(), text[at:].split()
    if before and behind:
        if before[-1].upper() == "WITHIN":
            return "WITHIN follows PATTERN (...), inside of MATCH_RECOGNIZE"
        written = before[-1].upper()
        is_like = written != "FROM" and difflib.get_close_matches(written, ["FROM"], cutoff=0.7)
        return "did you mean FROM?" if is_like else ""
    close = difflib.get_close_matches(behind[0].upper(), BEGINNINGS, n=1) if behind else []
    return f"did you mean {close[0]}?" if close else ""
