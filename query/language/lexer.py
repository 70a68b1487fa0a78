"""Text to tokens, by DuckDB's lexical rules and, inside PATTERN ( ... ), by those of row patterns.

Not `duckdb.tokenize`: it takes `A$` for one name, `$B$ ... $B$` for a string and `$)` for one operator, which are all
row patterns, counts bytes, and does not report an unclosed string.

`tokenize` is long: one loop with a case for each kind of token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from query.errors import Diagnostic, QueryError, Span
from query.stopping import heed

DEPTH_MAX = 200
PATTERN_DEPTH_MAX = 50  # plans and automata walk patterns recursively


def words_of(text: str) -> frozenset[str]:
    return frozenset(text.split())


class TokenKind(Enum):
    WORD = "word"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"


class Token(NamedTuple):
    """A piece of the text, text[start:end]. `word` is a WORD or SYMBOL in upper case, and empty for others."""

    kind: TokenKind
    text: str
    word: str
    start: int
    end: int

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a text without comments; `partner` leads from each bracket's index to that of the other one."""

    text: str
    items: tuple[Token, ...]
    partner: dict[int, int]

    def words(self, i: int, *expected: str) -> bool:
        """True if the tokens from i on are these words or symbols."""
        if not 0 <= i <= len(self.items) - len(expected):
            return False
        for word in expected:  # asked of every token: a generator takes three times as long
            if self.items[i].word != word:
                return False
            i += 1
        return True


_NAME = r"(?:[A-Za-z_]|[^\x00-\x7f\s])"
_COMMON = r"""
    (?P<space>\s+|--[^\n]*)
  | (?P<comment>/\*)
  | (?P<escaped>[eE]'(?:[^'\\]++|\\.|'')*+(?P<escaped_end>'?))
  | (?P<string>'(?:[^']++|'')*+(?P<string_end>'?))
  | (?P<quoted>"(?:[^"]++|"")*+(?P<quoted_end>"?))
"""
_SQL = re.compile(
    _COMMON
    + rf"""
  | (?P<dollar>\$(?P<tag>(?:{_NAME}(?:[0-9]|{_NAME})*)?)\$)
  | (?P<word>{_NAME}(?:[0-9$]|{_NAME})*)
  | (?P<number>(?:[0-9][0-9_]*(?:\.(?!\.)[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)
  | (?P<symbol>.)
""",
    re.VERBOSE | re.DOTALL,
)
_PATTERN = re.compile(
    _COMMON
    + rf"""
  | (?P<word>{_NAME}(?:[0-9]|{_NAME})*)
  | (?P<number>[0-9]+)
  | (?P<symbol>\{{-|-\}}|.)
""",
    re.VERBOSE | re.DOTALL,
)
_HEED_TOKENS = 1024
_NEVER = re.compile("[\x00\ud800-\udfff]")
_KINDS = {
    "escaped": TokenKind.STRING,
    "string": TokenKind.STRING,
    "dollar": TokenKind.STRING,
    "quoted": TokenKind.QUOTED,
    "word": TokenKind.WORD,
    "number": TokenKind.NUMBER,
    "symbol": TokenKind.SYMBOL,
}
_OUTER_GROUP = {"escaped_end": "escaped", "string_end": "string", "quoted_end": "quoted", "tag": "dollar"}
_CLOSER = {"(": ")", "[": "]", "{": "}"}
_PATTERN_CLOSER = {"(": ")", "{-": "-}"}  # the braces of quantifiers are left to the grammar


def tokenize(text: str) -> Tokens:
    """Returns the tokens of a text.

    Raises QueryError HQ100 for text that can never be SQL: an unclosed string, comment or bracket, a NUL or half a
    surrogate pair, brackets nested deeper than DEPTH_MAX.
    """

    def fault(message: str, start: int, end: int, label: str = "", hint: str = "") -> QueryError:
        return QueryError([Diagnostic("HQ100", message, Span(start, end), label, hint)], text)

    if bad := _NEVER.search(text):
        raise fault(f"the character U+{ord(bad[0]):04X} is not allowed in a query", bad.start(), bad.end())

    items: list[Token] = []
    partner: dict[int, int] = {}
    opened: list[int] = []  # indices of brackets not closed yet
    recognitions: set[int] = set()  # those of them after MATCH_RECOGNIZE
    pattern_depth = 0  # len(opened) inside PATTERN ( ... ); 0 outside
    position = 0
    while position < len(text):
        found = (_PATTERN if pattern_depth else _SQL).match(text, position)
        assert found is not None  # <symbol> takes any character
        start, position, group = position, found.end(), found.lastgroup or ""
        group = _OUTER_GROUP.get(group, group)
        if group == "space":
            continue
        if group == "comment":
            position = _comment_end(text, start)
            if position < 0:
                raise fault("a comment that does not end", start, start + 2, "opened here", "close it with */")
            continue
        if group in ("escaped", "string", "quoted") and not found[f"{group}_end"]:
            what, end = ("quoted name", '"') if group == "quoted" else ("string", "'")
            raise fault(f"a {what} that does not end", start, start + 1, "opened here", f"close it with {end}")
        if group == "dollar":
            closed = text.find(found["dollar"], position)
            if closed < 0:
                hint = f"close it with {found['dollar']}"
                raise fault("a string that does not end", start, position, "opened here", hint)
            position = closed + len(found["dollar"])

        if not len(items) % _HEED_TOKENS:
            heed()
        piece = text[start:position]
        word = piece.upper() if group in ("word", "symbol") else ""
        items.append(Token(_KINDS[group], piece, word, start, position))
        if group != "symbol":
            continue
        index = len(items) - 1
        closers = _PATTERN_CLOSER if pattern_depth else _CLOSER
        if piece in closers:
            before = items[index - 1].word if index else ""
            if piece == "(" and before == "MATCH_RECOGNIZE":
                recognitions.add(index)
            elif piece == "(" and before == "PATTERN" and not pattern_depth and opened and opened[-1] in recognitions:
                pattern_depth = len(opened) + 1
            opened.append(index)
            if len(opened) > DEPTH_MAX:
                raise fault(f"brackets nested deeper than {DEPTH_MAX}", start, position)
            if pattern_depth and len(opened) - pattern_depth > PATTERN_DEPTH_MAX:
                raise fault(f"a row pattern nested deeper than {PATTERN_DEPTH_MAX}", start, position)
        elif piece in closers.values():
            if not opened:
                raise fault(f"nothing is open that {piece} could close", start, position)
            if closers[items[opened[-1]].text] != piece:
                other = items[opened[-1]]
                raise fault(
                    f"expected {closers[other.text]} before {piece}",
                    start,
                    position,
                    f"{other.text} of line {text.count(chr(10), 0, other.start) + 1} is still open",
                )
            first = opened.pop()
            partner[first], partner[index] = index, first
            if len(opened) < pattern_depth:
                pattern_depth = 0
    if opened:
        token = items[_left_open(Tokens(text, tuple(items), partner), recognitions, opened)]
        hint = f"add {(_CLOSER | _PATTERN_CLOSER)[token.text]}"
        raise fault(f"{token.text} is never closed", token.start, token.end, "opened here", hint)
    return Tokens(text, tuple(items), partner)


#: Words of which each begins a clause of MATCH_RECOGNIZE, with the word that follows; empty: any.
_CLAUSES = {
    "MEASURES": "", "PATTERN": "(", "SUBSET": "", "DEFINE": "", "AFTER": "MATCH", "ONE": "ROW", "ALL": "ROWS",
    "WITHIN": "INTERVAL", "SELECTION": "",
}  # fmt: skip


def _left_open(tokens: Tokens, recognitions: set[int], opened: list[int]) -> int:
    """Returns the bracket of a text with too few closing ones that its author has probably left open, rather than the
    one that lacks a partner: all later brackets close one too far inside. opened: those without a partner.

    The first of these signs says so: a clause inside of brackets; in DEFINE, the next variable inside of brackets, or
    AS behind brackets; a bracket that begins a line, with another indentation than the line of its partner."""
    items, partner = tokens.items, tokens.partner
    stack: list[int] = []
    defining = -1  # the bracket of the recognition of which this is DEFINE
    for i, token in enumerate(items):
        inside = bool(stack) and not recognitions.isdisjoint(stack)
        deeper = inside and stack[-1] not in recognitions
        follows = _CLAUSES.get(token.word)
        if follows is not None and tokens.words(i + 1, *[follows] * bool(follows)):
            if deeper:
                return stack[-1]
            defining = stack[-1] if inside and token.word == "DEFINE" else -1
        elif token.word == "AS" and defining in stack:
            if stack[-1] == defining and items[i - 1].word == ")":
                return partner[i - 1]
            if deeper and items[i - 1].kind in (TokenKind.WORD, TokenKind.QUOTED) and items[i - 2].word == ",":
                return stack[-1]
        elif i in partner and partner[i] < i:
            own = _indentation(tokens.text, token.start)
            if own not in (None, _indentation(tokens.text, items[partner[i]].start, within=True)):
                return partner[i]
            stack.pop()
        if i in opened or partner.get(i, -1) > i:
            stack.append(i)
    return opened[-1]


def _indentation(text: str, at: int, within: bool = False) -> str | None:
    """Returns the blanks at the beginning of the line of a character, None if that is not the first of its line.
    within: it may be any of its line."""
    line = text[text.rfind("\n", 0, at) + 1 : at]
    blanks = line[: len(line) - len(line.lstrip())]
    return blanks if within or blanks == line else None


def _comment_end(text: str, start: int) -> int:
    """Returns the end of the /* comment */ that begins at start (they nest), or -1."""
    depth = 0
    for found in re.compile(r"/\*|\*/").finditer(text, start):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return -1
