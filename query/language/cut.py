"""Finds the pieces of a SELECT that are not DuckDB's: pattern factors, SASE+ statements, history joins and ALERT
ONCE."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from query.errors import Diagnostic, QueryError, Span
from query.language.lexer import Token, TokenKind, Tokens, tokenize, words_of


@dataclass(frozen=True, slots=True)
class FactorCut:
    """`input [[AS] name [(columns)]] MATCH_RECOGNIZE ( ... ) [[AS] alias [(columns)]]`, by indices of tokens.

    The input's relation is [first, behind), its name [behind, keyword), with the name itself at `input_alias` or None.
    `open` and `close` are the parentheses. alias: the index of the output's name or None; columns: the names in
    parentheses after it. last: the last token of the factor.
    """

    first: int
    behind: int
    input_alias: int | None
    keyword: int
    open: int
    close: int
    alias: int | None
    columns: tuple[int, ...]
    last: int


@dataclass(frozen=True, slots=True)
class HistoryCut:
    """`[kind] JOIN HISTORY OF ... ON condition`: the tokens [first, last]."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class SaseCut:
    """`input [[AS] name] [TYPE BY column] PATTERN SEQ ( ... ) ...` after FROM, by indices of tokens: the input and its
    name as in FactorCut, the column's index or None, and the index of PATTERN. first = behind: there is no FROM. last:
    the last token, before the bracket or semicolon that ends the statement. returned: the index of a RETURN before FROM
    and PATTERN, or None.
    """

    first: int
    behind: int
    input_alias: int | None
    type_column: int | None
    keyword: int
    last: int
    returned: int | None = None

    @property
    def start(self) -> int:
        """Returns the first token: of RETURN, or of the input."""
        return self.first if self.returned is None else self.returned

    @property
    def returned_end(self) -> int:
        """Returns the index after the values of a RETURN before FROM and PATTERN."""
        if self.behind > self.first:
            return self.first - 1
        return self.keyword if self.type_column is None else self.type_column - 2


@dataclass(frozen=True, slots=True)
class AlertCut:
    """`ALERT ONCE ...` up to the end of the statement: the tokens [first, last]."""

    first: int
    last: int


Cut = FactorCut | HistoryCut | SaseCut | AlertCut


@dataclass(frozen=True, slots=True)
class WithEntry:
    """One entry of a WITH list, by indices of tokens: its name, and the parentheses of its query."""

    name: int
    open: int
    close: int


@dataclass(frozen=True, slots=True)
class WithList:
    """A WITH list: the index of WITH, and its entries."""

    first: int
    recursive: bool
    entries: tuple[WithEntry, ...]


_NAMES = (TokenKind.WORD, TokenKind.QUOTED)
_JOIN_KINDS = {"LEFT", "INNER", "SEMI", "ANTI", "NEAREST"}
_OTHER_JOIN_KINDS = {"RIGHT", "FULL", "CROSS", "NATURAL", "ASOF", "POSITIONAL"}
#: Words that may not precede JOIN HISTORY, or one of its kinds.
_NO_KINDS = _OTHER_JOIN_KINDS | {"LEFT", "INNER", "OUTER"}
_JOIN_WORDS = _JOIN_KINDS | _OTHER_JOIN_KINDS | {"OUTER", "JOIN"}
#: Words that end a table factor and are never its alias.
_CLAUSE_WORDS = words_of(
    "WHERE GROUP ORDER HAVING LIMIT OFFSET QUALIFY WINDOW UNION EXCEPT INTERSECT SELECT FROM ON USING FETCH SET AND OR"
)
#: Words that end one query of a set operation, or the statement.
_QUERY_ENDS = ("SELECT", "UNION", "EXCEPT", "INTERSECT", ";")
_FOLLOW_WORDS = (
    _CLAUSE_WORDS | (_JOIN_WORDS - {"NEAREST"}) | words_of("AS TABLESAMPLE PIVOT UNPIVOT RETURNING MATCH_RECOGNIZE")
)


def cut(tokens: Tokens) -> tuple[Cut, ...]:
    """Returns the pieces in the order of their ends. Pieces in the input of a pattern factor come before it; otherwise
    pieces do not overlap. Raises QueryError for incomplete pieces, and for pieces where no table is allowed, or inside
    the clauses of another piece."""
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
        elif _is_alert(tokens, i):
            piece = _alert(tokens, i)
        elif _is_sase(tokens, i):
            piece = _sase(tokens, i)
        elif items[i].word == "HISTORY" and tokens.words(i + 1, "OF") and _may_name(tokens, i + 2):
            raise _fault(
                tokens,
                "HISTORY OF must follow JOIN",
                items[i],
                items[i + 1],
                hint="write JOIN, LEFT JOIN, SEMI JOIN, ANTI JOIN, NEAREST JOIN or LEFT NEAREST JOIN before HISTORY OF",
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
        _refuse_nesting(tokens, piece)
        cuts.append(piece)
        i = piece.last + 1
    return tuple(cuts)


# ---- what a piece can see ----------------------------------------------------------------------------------------


def enclosing(tokens: Tokens, i: int) -> tuple[int, ...]:
    """The indices of the brackets that are open at token i, outermost first."""
    return tuple(sorted(a for a, b in tokens.partner.items() if a < i < b))


def with_lists(tokens: Tokens, open: int, end: int) -> tuple[WithList, ...]:
    """Returns the WITH lists of the query that begins after token `open` (-1: the text), as far as they are complete,
    or have begun an entry, before token `end`."""
    found: list[WithList] = []
    i = open + 1
    while i < end:
        if tokens.items[i].word == "WITH":
            entries, behind = _entries(tokens, i)
            if entries:
                found.append(WithList(i, tokens.words(i + 1, "RECURSIVE"), entries))
                i = behind
                continue
        i = tokens.partner[i] + 1 if tokens.items[i].word in ("(", "[", "{") else i + 1
    return tuple(found)


def _entries(tokens: Tokens, first: int) -> tuple[tuple[WithEntry, ...], int]:
    """Returns the entries of the WITH list at token `first`, and the index after them; no entries for another use of
    WITH."""
    items = tokens.items
    entries: list[WithEntry] = []
    i = first + 1 + tokens.words(first + 1, "RECURSIVE")
    while i < len(items) and items[i].kind in _NAMES:
        name = i
        i = tokens.partner[i + 1] + 1 if tokens.words(i + 1, "(") else i + 1
        if tokens.words(i, "USING", "KEY", "("):
            i = tokens.partner[i + 2] + 1
        if not tokens.words(i, "AS"):
            break
        i += 1
        i += tokens.words(i, "NOT")
        i += tokens.words(i, "MATERIALIZED")
        if not tokens.words(i, "("):
            break
        entries.append(WithEntry(name, i, tokens.partner[i]))
        i = tokens.partner[i] + 1
        if not tokens.words(i, ","):
            break
        i += 1
    return tuple(entries), i


def joined_factor(tokens: Tokens, cuts: Sequence[Cut], history: HistoryCut) -> int | None:
    """Returns the index, among the patterns of `cuts`, of the one that a history join follows: the last one before it
    in the same FROM. None if there is none."""
    around = enclosing(tokens, history.first)
    factors = [c for c in cuts if isinstance(c, FactorCut | SaseCut)]
    for i in reversed(range(len(factors))):
        factor = factors[i]
        if factor.last >= history.first or enclosing(tokens, factor.first) != around:
            continue
        between = range(factor.last + 1, history.first)
        if any(tokens.items[t].word in _QUERY_ENDS and enclosing(tokens, t) == around for t in between):
            return None
        return i
    return None


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
    """True if token i is part of a qualified name, as in `m.history`."""
    return tokens.words(i - 1, ".")


def _may_name(tokens: Tokens, i: int) -> bool:
    named = 0 <= i < len(tokens.items) and tokens.items[i].kind in _NAMES and tokens.items[i].word not in _FOLLOW_WORDS
    return named and not _is_alert(tokens, i)


def _refuse_nesting(tokens: Tokens, piece: Cut) -> None:
    inner: list[int] = []
    if isinstance(piece, AlertCut):
        return
    if isinstance(piece, SaseCut):
        behind = range(piece.keyword, piece.last)
        if joins := [i for i in behind if tokens.words(i, "JOIN", "HISTORY", "OF")]:
            hint = "write FROM stream MATCH_RECOGNIZE ( ... ) AS pl JOIN HISTORY OF ..."
            raise _fault(
                tokens,
                "a SASE+ statement that is joined with history is not supported yet",
                tokens.items[joins[0]],
                tokens.items[joins[0] + 2],
                code="HQ500",
                hint=hint,
            )
        inner += [i for i in behind if tokens.words(i, "MATCH_RECOGNIZE", "(")]
        inner += [i for i in behind if i > piece.keyword and tokens.words(i, "PATTERN", "SEQ", "(")]
    elif isinstance(piece, FactorCut):
        inner += [i for i in range(piece.open, piece.close) if tokens.words(i, "MATCH_RECOGNIZE", "(")]
        inner += [i for i in range(piece.open, piece.close) if tokens.words(i, "JOIN", "HISTORY", "OF")]
    else:
        recognitions = [i for i in range(piece.first, piece.last) if tokens.words(i, "MATCH_RECOGNIZE", "(")]
        end = 0
        for i in recognitions:  # the history's own one is the first outside of any parentheses
            if end or any(a < i < b for a, b in tokens.partner.items() if piece.first <= a < b <= piece.last):
                inner.append(i)
            else:
                end = tokens.partner[i + 1]
        joins = [i for i in range(piece.first, piece.last) if tokens.words(i, "JOIN", "HISTORY", "OF")]
        inner += joins[1:]
    if inner:
        raise _fault(
            tokens,
            "a pattern inside the clauses of a pattern is not supported yet",
            tokens.items[min(inner)],
            code="HQ500",
            hint="put it into the input: FROM (SELECT ... MATCH_RECOGNIZE ( ... )) MATCH_RECOGNIZE ( ... )",
        )


# ---- pattern factors -------------------------------------------------------------------------------------------


def _factor(tokens: Tokens, keyword: int) -> FactorCut:
    items = tokens.items
    if not tokens.words(keyword + 1, "("):
        name = items[keyword].text
        hint = f'quote it if it is a name: "{name}"' if tokens.words(keyword - 1, "AS") else ""
        raise _fault(tokens, "expected '(' after MATCH_RECOGNIZE", items[keyword], hint=hint)
    close = tokens.partner[keyword + 1]
    first, behind, input_alias = _input(tokens, keyword, "MATCH_RECOGNIZE")

    alias: int | None = None
    last = close
    if tokens.words(close + 1, "AS"):
        if not _may_name(tokens, close + 2):
            found = items[min(close + 2, len(items) - 1)]
            raise _fault(tokens, "expected a name after AS", found)
        alias = last = close + 2
    elif _may_name(tokens, close + 1) and not _is_join_word(tokens, close + 1):
        alias = last = close + 1
    columns: tuple[int, ...] = ()
    if alias is not None and tokens.words(alias + 1, "("):
        last = tokens.partner[alias + 1]
        columns = _names_between(tokens, alias + 1, last)
    return FactorCut(first, behind, input_alias, keyword, keyword + 1, close, alias, columns, last)


def _names_between(tokens: Tokens, open: int, close: int) -> tuple[int, ...]:
    """The names between two parentheses, separated by commas. Raises QueryError for anything else."""
    for i in range(open + 1, close + 1):
        due = (i - open) % 2 == 1
        if due != (i < close and tokens.items[i].kind in _NAMES) or not (due or i == close or tokens.words(i, ",")):
            what = "a column name" if due else "',' or ')'"
            raise _fault(tokens, f"expected {what}, found {tokens.items[i].text}", tokens.items[i])
    return tuple(range(open + 1, close, 2))


def _input(tokens: Tokens, keyword: int, what: str) -> tuple[int, int, int | None]:
    """Returns the relation before token `keyword` (a name, a call, a string or a subquery): the index of its first
    token, the index after its last, and the index of its alias or None. what: the clause at `keyword`, for messages."""
    items = tokens.items
    first = _relation_start(tokens, keyword - 1)
    if first is None:
        word = items[keyword - 1] if keyword else None
        if word is not None and word.kind is TokenKind.WORD and _opens_relation(tokens, keyword - 2):
            hint = f'quote it if it is a table: "{word.text}"'
            raise _fault(tokens, f"{word.text} is a word of SQL", word, hint=hint)
        raise _fault(tokens, f"expected a table before {what}", items[keyword], hint=f"write FROM table {what} ( ... )")
    if _opens_relation(tokens, first - 1):
        return first, keyword, None
    behind = first - tokens.words(first - 1, "AS")
    named = _relation_start(tokens, behind - 1)
    is_alias = items[first].kind in _NAMES and not tokens.words(first + 1, ".")
    if is_alias and named is not None and _opens_relation(tokens, named - 1):
        if tokens.words(first + 1, "("):
            _names_between(tokens, first + 1, tokens.partner[first + 1])
        return named, behind, first
    raise _fault(
        tokens,
        f"{what} must follow a table of FROM or JOIN",
        items[keyword],
        hint=f"put the input into parentheses: FROM (SELECT ... ) {what} ( ... )",
    )


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
    """True if a table is expected after token i."""
    return i >= 0 and tokens.items[i].word in ("FROM", "JOIN", ",", "(")


def _is_join_word(tokens: Tokens, i: int) -> bool:
    """True if token i begins a join: LEFT, SEMI and the like only before JOIN, since they may be names too."""
    word = tokens.items[i].word
    if word == "JOIN":
        return True
    return word in _JOIN_WORDS and i + 1 < len(tokens.items) and tokens.items[i + 1].word in _JOIN_WORDS


# ---- SASE+ -----------------------------------------------------------------------------------------------------

_BEGINS_SASE = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:(RETURN)|(?:TYPE\s+BY\s+\S+\s+)?PATTERN)\b", re.IGNORECASE | re.DOTALL
)


def lacks_input(text: str) -> bool:
    """True if a text is a SASE+ statement without FROM."""
    begins = _BEGINS_SASE.match(text)
    if begins is None or begins[1] is None:
        return begins is not None
    try:
        tokens = tokenize(text)
    except QueryError:
        return False
    return any(_is_sase(tokens, i) and _from(tokens, i) is None for i in _beside(tokens, len(tokens.items)))


def _beside(tokens: Tokens, i: int) -> Iterator[int]:
    """Yields the tokens before token i in the same brackets and the same statement, the nearest first, brackets with
    what is in them by their last token."""
    i -= 1
    while i >= 0 and tokens.items[i].word not in ("(", "[", "{", ";"):
        yield i
        i = tokens.partner[i] - 1 if tokens.items[i].word in (")", "]", "}") else i - 1


def _from(tokens: Tokens, i: int) -> int | None:
    """Returns the FROM before token i that belongs to the same query, or None."""
    for at in _beside(tokens, i):
        word = "" if _is_name_part(tokens, at) else tokens.items[at].word
        if word == "FROM" and not tokens.words(at - 1, "DISTINCT"):
            return at
        if word in _QUERY_ENDS:
            return None
    return None


def _returned(tokens: Tokens, i: int) -> int | None:
    """Returns the RETURN that is the first word of the query of token i, or None."""
    found: int | None = None
    for at in _beside(tokens, i):
        word = "" if _is_name_part(tokens, at) else tokens.items[at].word
        if word == "RETURN" and not tokens.words(at + 1, "AS") and not tokens.words(at + 1, "FROM"):
            if at == 0 or tokens.items[at - 1].word not in (",", "TABLE", "INTO", "EXISTS", "WITH", "RECURSIVE"):
                found = at
        elif word == "FROM" and found is not None and not tokens.words(at - 1, "DISTINCT"):
            return None
        elif word in _QUERY_ENDS:
            return None if word == "SELECT" else found
    return found


def _is_sase(tokens: Tokens, i: int) -> bool:
    """True if PATTERN SEQ ( or the PATTERN of a trend begins at token i. Raises QueryError for an obvious misspelling
    of the first."""
    items = tokens.items
    if tokens.words(i, "PATTERN", "SEQ", "("):
        return True
    if items[i].word == "PATTERN" and tokens.words(i + 2, "(") and (i == 0 or _may_name(tokens, i - 1)):
        if difflib.SequenceMatcher(None, items[i + 1].word, "SEQ").ratio() > 0.5:
            raise _fault(tokens, f"expected SEQ, found {items[i + 1].text}", items[i + 1], hint="did you mean SEQ?")
    elif tokens.words(i + 1, "SEQ", "(") and (i == 0 or _may_name(tokens, i - 1)):
        if difflib.SequenceMatcher(None, items[i].word, "PATTERN").ratio() > 0.7:
            raise _fault(tokens, f"expected PATTERN, found {items[i].text}", items[i], hint="did you mean PATTERN?")
    return items[i].word == "PATTERN" and _heads_trend(tokens, i)


def _heads_trend(tokens: Tokens, i: int) -> bool:
    """True if the PATTERN at token i is that of a trend: no name of SQL, as in `FROM t pattern (a, b)`."""
    if i == 0:
        return True
    behind = i + 1
    if not (tokens.words(behind, "(") or tokens.words(behind, "~") or tokens.words(behind, "∼")):
        if not (tokens.words(behind, "NOT") or (_may_name(tokens, behind) and not _is_join_word(tokens, behind))):
            return False
    if tokens.words(i - 3, "TYPE", "BY") or _returned(tokens, i) is not None:
        return True
    if not _follows_input(tokens, i):
        return False
    if not tokens.words(behind, "("):
        return True
    close = tokens.partner[behind]
    inside = tokens.items[behind + 1 : close]
    if any(t.kind not in _NAMES and t.word != "," for t in inside) or len(inside) == 2:
        return True
    return len(inside) == 1 and any(tokens.words(close + 1, word) for word in ("+", "*", "AND", "OR", "WITHIN"))


def _follows_input(tokens: Tokens, i: int) -> bool:
    """True if FROM and one relation, with a name or without, precede token i."""
    first = _relation_start(tokens, i - 1)
    if first is None or tokens.words(first - 1, "FROM"):
        return first is not None
    named = _relation_start(tokens, first - 1 - tokens.words(first - 1, "AS"))
    return named is not None and tokens.words(named - 1, "FROM")


def _sase(tokens: Tokens, keyword: int) -> SaseCut:
    items = tokens.items
    last = keyword
    while last + 1 < len(items) and items[last + 1].word not in (")", "]", "}", ";"):
        if _is_alert(tokens, last + 1):
            break
        last = tokens.partner[last + 1] if items[last + 1].word in ("(", "[", "{") else last + 1
    typed = tokens.words(keyword - 3, "TYPE", "BY") and _may_name(tokens, keyword - 1)
    head = keyword - 3 if typed else keyword
    column = keyword - 1 if typed else None
    returned = _returned(tokens, head)
    if not head or (returned == 0 and _from(tokens, head) is None):
        return SaseCut(head, head, None, column, keyword, last, returned)
    what = "PATTERN SEQ" if tokens.words(keyword + 1, "SEQ") else "PATTERN"
    first, behind, alias = _input(tokens, head, what)
    if not tokens.words(first - 1, "FROM"):
        raise _fault(
            tokens,
            f"{what} must follow FROM, not {items[first - 1].text}",
            items[keyword],
            items[keyword + 1],
            hint="write FROM stream PATTERN SEQ ( ... ), or put that into parentheses: (FROM ... PATTERN SEQ ...) AS m"
            if not tokens.words(first - 1, ",")
            else "write FROM MERGE(a, b) PATTERN SEQ ( ... ) for several streams, merged by time",
        )
    return SaseCut(first, behind, alias, column, keyword, last, returned)


# ---- ALERT ONCE ------------------------------------------------------------------------------------------------


def _is_alert(tokens: Tokens, i: int) -> bool:
    """True if ALERT ONCE begins at token i: three words that are consecutive in no SQL."""
    return tokens.words(i, "ALERT", "ONCE") and (
        i + 2 == len(tokens.items) or tokens.items[i + 2].word in ("PER", "WITHIN", "BY", "EVERY", "FOR", ";")
    )


def _alert(tokens: Tokens, first: int) -> AlertCut:
    items = tokens.items
    if enclosing(tokens, first):
        message = "ALERT ONCE must follow the whole statement"
        raise _fault(tokens, message, items[first], items[first + 1], code="HQ103", label="inside of brackets")
    last = first
    while last + 1 < len(items) and items[last + 1].word != ";":
        last += 1
        if last > first and _is_alert(tokens, last):
            hint = "keep one of the two; PER takes several columns, separated by commas"
            raise _fault(tokens, "ALERT ONCE appears twice", items[last], items[last + 1], code="HQ103", hint=hint)
    return AlertCut(first, last)


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
    if first and items[first - 1].word in _JOIN_KINDS:
        first -= 1
    if tokens.words(first - 1, "LEFT", "NEAREST"):
        first -= 1
    if first and items[first - 1].word in _NO_KINDS:
        words = " ".join(item.word for item in items[first - 1 : join + 1])
        others = "what ASOF joins do:" if "ASOF" in words else "available: JOIN, LEFT JOIN, SEMI JOIN, ANTI JOIN,"
        hint = f"{others} NEAREST JOIN, LEFT NEAREST JOIN"
        message = f"history cannot be joined by {words}"
        raise _fault(tokens, message, items[first - 1], items[join], code="HQ300", hint=hint)

    i = join + 3
    while i < len(items):
        word = items[i].word
        if tokens.words(i, "PATTERN", "SEQ", "("):
            raise _fault(
                tokens,
                "a SASE+ statement on history is not supported yet",
                items[i],
                items[i + 1],
                code="HQ500",
                hint="write JOIN HISTORY OF stream FROM low TO high MATCH_RECOGNIZE ( ... )",
            )
        if word in ("(", "[", "{"):
            i = tokens.partner[i] + 1
            continue
        if word in (",", ")", "]", "}", ";") or _is_alert(tokens, i):
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
        raise _fault(tokens, "expected OF after HISTORY", items[join + 2], hint="write JOIN HISTORY OF stream FROM")
    if tokens.words(join + 1, "OF"):
        raise _fault(tokens, "expected HISTORY", items[join + 1], hint="write JOIN HISTORY OF stream FROM")
    if tokens.words(join + 2, "OF") and _may_name(tokens, join + 3):
        raise _fault(tokens, "expected HISTORY", items[join + 1], hint="did you mean HISTORY?")
