"""Finds, in a DuckDB SELECT, the pieces that are not DuckDB's: pattern factors and history joins."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from query.errors import Diagnostic, QueryError, Span
from query.language.lexer import Token, TokenKind, Tokens, tokenize, words_of


@dataclass(frozen=True, slots=True)
class FactorCut:
    """`input MATCH_RECOGNIZE ( ... ) [[AS] alias]`, by indices of tokens: the input is [first, keyword), `open` and
    `close` are the parentheses, alias the name's index or None, and last the last token of all."""

    first: int
    keyword: int
    open: int
    close: int
    alias: int | None
    last: int


@dataclass(frozen=True, slots=True)
class HistoryCut:
    """`[kind] JOIN HISTORY OF ... ON condition`: the tokens [first, last]."""

    first: int
    last: int


Cut = FactorCut | HistoryCut


@dataclass(frozen=True, slots=True)
class WithList:
    """The WITH list a statement begins with: its text up to the SELECT, and the names it defines, in lower case."""

    text: str
    names: frozenset[str]

_NAMES = (TokenKind.WORD, TokenKind.QUOTED)
_JOIN_KINDS = {"LEFT", "INNER", "SEMI", "ANTI", "NEAREST"}
_OTHER_JOIN_KINDS = {"RIGHT", "FULL", "CROSS", "NATURAL", "ASOF", "POSITIONAL"}
_JOIN_WORDS = _JOIN_KINDS | _OTHER_JOIN_KINDS | {"OUTER", "JOIN"}
#: Words that end a table factor and are never its alias.
_CLAUSE_WORDS = words_of(
    "WHERE GROUP ORDER HAVING LIMIT OFFSET QUALIFY WINDOW UNION EXCEPT INTERSECT SELECT FROM ON USING FETCH SET AND OR"
)
_FOLLOW_WORDS = _CLAUSE_WORDS | (_JOIN_WORDS - {"NEAREST"}) | words_of("AS TABLESAMPLE PIVOT UNPIVOT MATCH_RECOGNIZE")


def cut(tokens: Tokens) -> tuple[Cut, ...]:
    """The pieces in the order of the text; they do not overlap. Raises QueryError for pieces that are not whole, stand
    where no table can stand, or nest."""
    items = tokens.items
    cuts: list[Cut] = []
    i = 0
    while i < len(items):
        piece: Cut | None = None
        if _is_name_part(tokens, i) or items[i].kind is not TokenKind.WORD:
            pass
        elif items[i].word == "MATCH_RECOGNIZE":
            piece = _factor(tokens, i)
        elif items[i].word == "JOIN":
            piece = _history(tokens, i)
        elif items[i].word == "HISTORY" and tokens.words(i + 1, "OF") and _may_name(tokens, i + 2):
            raise _fault(
                tokens,
                "HISTORY OF stands behind JOIN only",
                items[i],
                items[i + 1],
                hint="write JOIN, LEFT JOIN, SEMI JOIN, ANTI JOIN or NEAREST JOIN before HISTORY OF",
            )
        elif (
            len(items[i].word) > 10
            and tokens.words(i + 1, "(")
            and difflib.SequenceMatcher(None, items[i].word, "MATCH_RECOGNIZE").ratio() > 0.8
        ):
            raise _fault(tokens, "expected MATCH_RECOGNIZE", items[i], hint="did you mean MATCH_RECOGNIZE?")
        if piece is None:
            i += 1
            continue
        _refuse_nesting(tokens, piece, cuts)
        cuts.append(piece)
        i = piece.last + 1
    return tuple(cuts)


def with_list(text: str) -> WithList:
    """The WITH list at the head of a statement; an empty one if there is none, or if a pattern stands inside it: then
    it cannot be evaluated by itself."""
    tokens = tokenize(text)
    items = tokens.items
    nothing = WithList("", frozenset())
    if not items or items[0].word != "WITH":
        return nothing
    names = []
    i = 2 if tokens.words(1, "RECURSIVE") else 1
    while i < len(items) and items[i].kind in _NAMES:
        names.append(text[items[i].start : items[i].end].strip('"').lower())
        while i < len(items) and items[i].word != "AS":
            i += 1
        while i < len(items) and items[i].word != "(":
            i += 1
        end = tokens.partner.get(i)
        if end is None or any(t.word in ("MATCH_RECOGNIZE", "HISTORY") for t in items[i:end]):
            return nothing
        i = end + 1
        if i >= len(items) or items[i].word != ",":
            break
        i += 1
    if i >= len(items):
        return nothing
    return WithList(text[: items[i].start], frozenset(names))


def _fault(
    tokens: Tokens,
    message: str,
    first: Token,
    last: Token | None = None,
    *,
    code: str = "HQ100",
    label: str = "",
    hint: str = "",
) -> QueryError:
    return QueryError([Diagnostic(code, message, Span(first.start, (last or first).end), label, hint)], tokens.text)


def _is_name_part(tokens: Tokens, i: int) -> bool:
    """Whether token i is a column or table of a qualified name, as in `m.history`."""
    return tokens.words(i - 1, ".")


def _may_name(tokens: Tokens, i: int) -> bool:
    return 0 <= i < len(tokens.items) and tokens.items[i].kind in _NAMES and tokens.items[i].word not in _FOLLOW_WORDS


def _refuse_nesting(tokens: Tokens, piece: Cut, before: list[Cut]) -> None:
    inner: list[int] = [c.keyword if isinstance(c, FactorCut) else c.first for c in before if c.last >= piece.first]
    if isinstance(piece, FactorCut):
        inner += [i for i in range(piece.open, piece.close) if tokens.words(i, "MATCH_RECOGNIZE", "(")]
    else:
        recognitions = [i for i in range(piece.first, piece.last) if tokens.words(i, "MATCH_RECOGNIZE", "(")]
        end = 0
        for i in recognitions:  # the history's own one is the first outside of any parenthesis
            if end or any(a < i < b for a, b in tokens.partner.items() if piece.first <= a < b <= piece.last):
                inner.append(i)
            else:
                end = tokens.partner[i + 1]
    own_join = isinstance(piece, HistoryCut)
    joins = [i for i in range(piece.first, piece.last) if tokens.words(i, "JOIN", "HISTORY", "OF")]
    inner += joins[own_join:]
    if inner:
        raise _fault(
            tokens,
            "a pattern inside a pattern is not supported yet",
            tokens.items[min(inner)],
            code="HQ500",
            hint="match the inner pattern in a query of its own",
        )


# ---- pattern factors -------------------------------------------------------------------------------------------


def _factor(tokens: Tokens, keyword: int) -> FactorCut:
    items = tokens.items
    if not tokens.words(keyword + 1, "("):
        raise _fault(tokens, "expected '(' behind MATCH_RECOGNIZE", items[keyword])
    close = tokens.partner[keyword + 1]
    first = _input_start(tokens, keyword)

    alias: int | None = None
    last = close
    if tokens.words(close + 1, "AS"):
        if not _may_name(tokens, close + 2):
            found = items[min(close + 2, len(items) - 1)]
            raise _fault(tokens, "expected a name behind AS", found)
        alias = last = close + 2
    elif _may_name(tokens, close + 1) and not _is_join_word(tokens, close + 1):
        alias = last = close + 1
    if alias is not None and tokens.words(alias + 1, "("):
        raise _fault(
            tokens,
            "column names behind the alias are not supported yet",
            items[alias + 1],
            items[tokens.partner[alias + 1]],
            code="HQ500",
            hint="name the columns in MEASURES",
        )
    return FactorCut(first, keyword, keyword + 1, close, alias, last)


def _input_start(tokens: Tokens, keyword: int) -> int:
    """Index of the first token of the relation before MATCH_RECOGNIZE: a name, a call, a string or a subquery."""
    items = tokens.items
    first = _relation_start(tokens, keyword - 1)
    if first is None:
        hint = "write FROM table MATCH_RECOGNIZE ( ... )"
        raise _fault(tokens, "expected a table before MATCH_RECOGNIZE", items[keyword], hint=hint)
    if _opens_relation(tokens, first - 1):
        return first
    named = _relation_start(tokens, first - 1 - tokens.words(first - 1, "AS"))
    if named is not None and _opens_relation(tokens, named - 1):
        raise _fault(
            tokens,
            "an alias of the input is not supported yet",
            items[first],
            items[keyword - 1],
            code="HQ500",
            hint="leave it out: columns are used without it; an alias behind MATCH_RECOGNIZE ( ... ) names the output",
        )
    raise _fault(tokens, "MATCH_RECOGNIZE stands behind a table of FROM or JOIN", items[keyword])


def _relation_start(tokens: Tokens, end: int) -> int | None:
    """Index of the first token of the relation whose last token is at `end`, or None if none ends there."""
    first = end
    if tokens.words(end, ")"):
        first = tokens.partner[end]
        if not _may_name(tokens, first - 1):
            return first
        first -= 1
    elif end >= 0 and tokens.items[end].kind is TokenKind.STRING:
        return end
    elif not _may_name(tokens, end):
        return None
    while tokens.words(first - 1, ".") and _may_name(tokens, first - 2):
        first -= 2
    return first


def _opens_relation(tokens: Tokens, i: int) -> bool:
    """Whether a table stands behind token i."""
    return i >= 0 and tokens.items[i].word in ("FROM", "JOIN", ",", "(")


def _is_join_word(tokens: Tokens, i: int) -> bool:
    """Whether token i begins a join: LEFT, SEMI and the like only where JOIN follows, as they may name things too."""
    word = tokens.items[i].word
    if word == "JOIN":
        return True
    return word in _JOIN_WORDS and i + 1 < len(tokens.items) and tokens.items[i + 1].word in _JOIN_WORDS


# ---- history joins ---------------------------------------------------------------------------------------------


def _history(tokens: Tokens, join: int) -> HistoryCut | None:
    """The history join whose JOIN is at `join`, or None if it is a join of SQL."""
    items = tokens.items
    if not tokens.words(join + 1, "HISTORY", "OF"):
        _check_misspelt(tokens, join)
        return None
    if not _may_name(tokens, join + 3) and not tokens.words(join + 3, "FROM") and not tokens.words(join + 3, "BETWEEN"):
        if tokens.words(join + 3, "ON") or tokens.words(join + 3, "USING"):
            return None  # a table `history` that is called `of`
    first = join
    if tokens.words(first - 1, "OUTER"):
        first -= 1
    kind = items[first - 1] if first else None
    if kind is not None and kind.word in _OTHER_JOIN_KINDS:
        raise _fault(
            tokens,
            f"history cannot be joined by {kind.word} JOIN",
            kind,
            items[join],
            code="HQ300",
            hint="there is JOIN, LEFT JOIN, SEMI JOIN, ANTI JOIN and NEAREST JOIN",
        )
    if kind is not None and kind.word in _JOIN_KINDS:
        first -= 1

    i = join + 3
    while i < len(items):
        word = items[i].word
        if word in ("(", "[", "{"):
            i = tokens.partner[i] + 1
            continue
        if word in (",", ")", "]", "}", ";"):
            break
        if not _is_name_part(tokens, i):
            ends = word in _CLAUSE_WORDS - {"FROM", "ON", "AND", "OR", "SET"}
            if ends or (i > join + 3 and _is_join_word(tokens, i)):
                break
        i += 1
    return HistoryCut(first, i - 1)


def _check_misspelt(tokens: Tokens, join: int) -> None:
    """Raise for a join that is plainly meant to be one of history."""
    items = tokens.items

    def ranged(i: int) -> bool:
        return tokens.words(i, "FROM") or tokens.words(i, "BETWEEN")

    if tokens.words(join + 1, "HISTORY") and (ranged(join + 2) or ranged(join + 3)):
        raise _fault(tokens, "expected OF behind HISTORY", items[join + 2], hint="write JOIN HISTORY OF stream FROM")
    if tokens.words(join + 1, "OF"):
        raise _fault(tokens, "expected HISTORY", items[join + 1], hint="write JOIN HISTORY OF stream FROM")
    if tokens.words(join + 2, "OF") and _may_name(tokens, join + 3):
        raise _fault(tokens, "expected HISTORY", items[join + 1], hint="did you mean HISTORY?")
