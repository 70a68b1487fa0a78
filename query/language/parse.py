"""Parses a query: text -> ast.QuerySyntax. Every fault is a QueryError whose spans lie inside the text."""

from __future__ import annotations

import difflib
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import lark
from lark.common import LexerConf
from lark.lexer import Lexer
from lark.parsers.lalr_interactive_parser import InteractiveParser

from query.cache import cache_home, is_private
from query.errors import Diagnostic, QueryError, Span
from query.language import ast, sase
from query.language.cut import (
    AlertCut,
    Cut,
    FactorCut,
    HistoryCut,
    SaseCut,
    cut,
    enclosing,
    joined_factor,
    with_lists,
)
from query.language.duck import command_error, interval_parts, statement_count, syntax_error
from query.language.lexer import Token, TokenKind, Tokens, tokenize, words_of

ROWS_MAX = 10**9
REPEAT_MAX = 10**9

#: Words of statements that write.
_WRITING = {"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"}
#: The position of WITHIN and SELECTION, which are allowed in either order.
_EITHER_WAY = 7
#: The clauses of MATCH_RECOGNIZE: the words each begins with, and its position.
_CLAUSES: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("PARTITION BY", ("PARTITION", "BY"), 0),
    ("ORDER BY", ("ORDER", "BY"), 1),
    ("MEASURES", ("MEASURES",), 2),
    ("ONE ROW PER MATCH", ("ONE", "ROW"), 3),
    ("ALL ROWS PER MATCH", ("ALL", "ROWS"), 3),
    ("TIMEOUT ROWS", ("TIMEOUT", "ROWS"), 4),
    ("AFTER MATCH", ("AFTER", "MATCH"), 5),
    ("PATTERN", ("PATTERN", "("), 6),
    ("WITHIN", ("WITHIN",), _EITHER_WAY),
    ("SELECTION", ("SELECTION",), _EITHER_WAY),
    ("SUBSET", ("SUBSET",), 8),
    ("DEFINE", ("DEFINE",), 9),
)
_CLAUSE_OF_WORD = {words[0]: (name, words, place) for name, words, place in _CLAUSES}
_ORDER_HINT = (
    "the order is PARTITION BY, ORDER BY, MEASURES, ONE ROW or ALL ROWS PER MATCH, TIMEOUT ROWS, AFTER MATCH, PATTERN, "
    "WITHIN, SELECTION, SUBSET, DEFINE"
)
_UNITS = frozenset(
    f"{unit}{plural}"
    for unit in words_of("MICROSECOND MILLISECOND SECOND MINUTE HOUR DAY WEEK MONTH QUARTER YEAR DECADE")
    for plural in ("", "S")
)

#: Words before an operand of a scalar expression, and words that may continue after an operand.
_OPERATORS = words_of(
    "AND OR NOT LIKE ILIKE GLOB SIMILAR TO BETWEEN SYMMETRIC IN IS WHEN THEN ELSE CASE DISTINCT FROM ESCAPE COLLATE "
    "INTERVAL AT RUNNING FINAL"
)
_CONTINUATIONS = _UNITS | words_of("END ISNULL NOTNULL FILTER OVER TIME ZONE WITH WITHOUT PRECISION VARYING")
#: Keywords that determine the end of the expressions after them.
_CONTEXTS = words_of("PARTITION ORDER MEASURES DEFINE FROM TO BETWEEN AND ON")
_DIRECTIONS = ("ASC", "DESC", "NULLS")
#: Words that begin a clause of the query around a SASE+ statement.
_OUTER_WORDS = words_of("GROUP ORDER HAVING LIMIT OFFSET QUALIFY UNION EXCEPT INTERSECT JOIN")
_NEVER_NAMES = words_of("AS FROM ON AND OR TO BETWEEN SELECT WHERE JOIN")

_SHOWN = {
    "NAME": "a name",
    "VARIABLE": "a row pattern variable",
    "EXPRESSION": "an expression",
    "NUMBER": "a whole number",
    "STRING": "a string",
    "UNIT": "a unit of time",
    "WITH_TIMEOUT": "WITH",
    "$END": "the end",
}


def parse(text: str, inputs: Sequence[str] = ()) -> ast.QuerySyntax:
    """Returns the query of a text: its pattern factors, SASE+ statements and history joins; the rest is any SELECT of
    DuckDB, or an INSERT, CREATE TABLE AS or COPY of one.

    inputs: the existing tables and streams: a SASE+ statement without FROM reads the only one. Raises QueryError with
    one fault for each unreadable piece, or else with DuckDB's error about the rest. About 2 ms for a hybrid query,
    after 0.2 s for the first text of a process.
    """
    tokens = tokenize(text)
    if not tokens.items:
        raise QueryError([Diagnostic("HQ100", "there is no query in the text", Span(0, len(text)))], text)
    cuts = cut(tokens)
    factors: list[ast.PatternFactor] = []
    histories: list[ast.HistoryJoin] = []
    alert: ast.AlertOnceSyntax | None = None
    faults: list[Diagnostic] = []
    for piece in cuts:
        try:
            if isinstance(piece, FactorCut):
                factors.append(_factor(tokens, piece, inputs))
            elif isinstance(piece, SaseCut):
                factors.append(_sase(tokens, piece, inputs))
            elif isinstance(piece, AlertCut):
                alert = _alert(tokens, piece)
            else:
                history = _history(tokens, piece)
                histories.append(replace(history, factor=joined_factor(tokens, cuts, piece)))
        except QueryError as error:
            faults += error.diagnostics
    if faults:
        raise QueryError(faults, text)
    kind = _kind(tokens, any(not isinstance(piece, AlertCut) for piece in cuts))
    _check_around(tokens, cuts, kind)
    return ast.QuerySyntax(text, tuple(factors), tuple(histories), kind, alert)


def parse_match_recognize(text: str, span: Span) -> ast.MatchRecognize:
    """Returns the clauses in text[span], the text between the parentheses of MATCH_RECOGNIZE ( ... )."""
    tokens = tokenize(text, span)
    clauses = _read(tokens, "clauses", 0, len(tokens.items), min(span.end, len(text)))
    return _match_recognize(text, clauses, span)


# ---- pieces of the statement -----------------------------------------------------------------------------------

_KINDS = {"INSERT": ast.StatementKind.INSERT, "CREATE": ast.StatementKind.CREATE_TABLE, "COPY": ast.StatementKind.COPY}


def _kind(tokens: Tokens, patterns: bool) -> ast.StatementKind:
    """Returns the kind of a statement, by its first word or the one after its WITH list. An unknown kind without a
    pattern passes for a SELECT, so that DuckDB reports it."""
    lists = with_lists(tokens, -1, len(tokens.items))
    at_head = bool(lists) and lists[0].first == 0
    first = lists[0].entries[-1].close + 1 if at_head else 0
    word = tokens.items[first].word if first < len(tokens.items) else ""
    kind = _KINDS.get(word, ast.StatementKind.SELECT)
    if kind is not ast.StatementKind.CREATE_TABLE:
        return kind
    i = first + 1 + 2 * tokens.words(first + 1, "OR", "REPLACE")
    i += any(tokens.words(i, word) for word in ("TEMP", "TEMPORARY"))
    if tokens.words(i, "TABLE"):
        return kind
    if not patterns:
        return ast.StatementKind.SELECT
    token = tokens.items[min(i, len(tokens.items) - 1)]
    raise _error(
        tokens.text,
        "HQ500",
        f"a {token.text.lower()} cannot hold a pattern",
        tokens.items[first].span.to(token.span),
        hint="use CREATE TABLE ... AS SELECT to store the current matches",
    )


def _factor(tokens: Tokens, piece: FactorCut, inputs: Sequence[str]) -> ast.PatternFactor:
    items, text = tokens.items, tokens.text

    def name(i: int) -> ast.Identifier:
        return _identifier(items[i].text, items[i].span)

    clauses = _read(tokens, "clauses", piece.open + 1, piece.close, items[piece.close].start)
    keyword, close = items[piece.keyword], items[piece.close]
    columned = piece.input_alias is not None and tokens.words(piece.input_alias + 1, "(")
    merged = _merged(tokens, piece, inputs)
    if merged and columned and piece.input_alias is not None:
        opening = items[piece.input_alias + 1].span
        hint = "the columns are called as those of the merged inputs"
        raise _error(text, "HQ500", "names for the columns of MERGE are not supported", opening, hint=hint)
    input_span = items[piece.first].span.to(items[(piece.keyword if columned else piece.behind) - 1].span)
    return ast.PatternFactor(
        input=text[input_span.start : input_span.end],
        input_span=input_span,
        match=_match_recognize(text, clauses, keyword.span.to(close.span)),
        alias=None if piece.alias is None else name(piece.alias),
        span=items[piece.first].span.to(items[piece.last].span),
        input_alias=None if piece.input_alias is None else name(piece.input_alias),
        columns=tuple(map(name, piece.columns)),
        scopes=_scopes(tokens, piece.first),
        merged=merged,
    )


def _merged(tokens: Tokens, piece: FactorCut | SaseCut, inputs: Sequence[str]) -> tuple[ast.Identifier, ...]:
    """Returns the names in `MERGE(a, b)`, if that is the input; those of `inputs` in their declared spelling."""
    spelt = {name.lower(): name for name in inputs}
    items, first = tokens.items, piece.first
    if first == piece.behind or not tokens.words(first, "MERGE", "("):
        return ()
    close = tokens.partner[first + 1]
    found: list[ast.Identifier] = []
    for i in range(first + 2, close + 1):
        token, due = items[i], (i - first) % 2 == 0
        if due and i < close and token.kind in (TokenKind.WORD, TokenKind.QUOTED):
            name = _identifier(token.text, token.span)
            if name.written.lower() in (n.written.lower() for n in found):
                raise _error(tokens.text, "HQ219", f"{name.written} is merged twice", token.span, "the second time")
            found.append(replace(name, written=spelt.get(name.written.lower(), name.written)))
        elif due or not (i == close or token.word == ","):
            what = "the name of a stream or table" if due else "',' or ')'"
            raise _error(tokens.text, "HQ100", f"expected {what}, found {token.text}", token.span,
                         hint="MERGE(a, b) takes names; name a subquery by WITH")
    return tuple(found)


def _scopes(tokens: Tokens, at: int) -> tuple[ast.WithScope, ...]:
    """The WITH lists that a table at token `at` sees, outermost first."""
    items = tokens.items
    found: list[ast.WithScope] = []
    for open in (-1, *enclosing(tokens, at)):
        for listed in with_lists(tokens, open, at):
            seen = [e for e in listed.entries if e.close < at]
            inside = next((e for e in listed.entries if e.open < at < e.close), None)
            span = Span(items[listed.first].start, items[seen[-1].close].end if seen else items[listed.first].start)
            names = [_identifier(items[e.name].text, items[e.name].span).written.lower() for e in listed.entries]
            own = names[listed.entries.index(inside)] if inside is not None and listed.recursive else None
            if seen or own is not None:
                found.append(ast.WithScope(span, tuple(names[: len(seen)]), own))
    return tuple(found)


def _sase(tokens: Tokens, piece: SaseCut, inputs: Sequence[str]) -> ast.PatternFactor:
    items, text = tokens.items, tokens.text
    keyword = items[piece.keyword].span.to(items[piece.keyword + 1].span)
    statement = _statement(text, _read(tokens, "sase", piece.keyword, piece.last + 1, items[piece.last].end))
    named = None if piece.input_alias is None else items[piece.input_alias]
    alias = None if named is None else _identifier(named.text, named.span)
    merged = _merged(tokens, piece, inputs)
    if piece.behind > piece.first:
        input_span, head = items[piece.first].span.to(items[piece.behind - 1].span), ""
        input = text[input_span.start : input_span.end]
        last = items[piece.behind - 1]
        names = [last.text.strip('"')] if last.kind in (TokenKind.WORD, TokenKind.QUOTED) else []
        names += [alias.written] if alias is not None else []
    else:
        input_span, head = keyword, "FROM "
        merged = _types(text, statement, piece, inputs, keyword)
        names = [n.written for n in merged]
        input = _sql_name(names[0]) if len(names) == 1 else f"MERGE({', '.join(map(_sql_name, names))})"
        merged = merged if len(names) > 1 else ()
    column = None if piece.type_column is None else items[piece.type_column].span
    streams = tuple(n.written for n in merged)
    match = sase.recognize(tokens, statement, sase.Input(tuple(names), column, streams), keyword)
    span = items[piece.first].span.to(items[piece.last].span)
    scopes = _scopes(tokens, piece.first)
    return ast.PatternFactor(input, input_span, match, alias, span, alias, (), scopes, head, merged)


def _types(
    text: str, statement: sase.Statement, piece: SaseCut, inputs: Sequence[str], keyword: Span
) -> tuple[ast.Identifier, ...]:
    """Returns the inputs of a SASE+ statement without FROM: the only one, or those that the types of its events
    name."""
    spelt = {name.lower(): name for name in inputs}
    types = {e.type.written.lower(): e.type for e in statement.events}
    if len(inputs) != 1 and piece.type_column is None and types.keys() <= spelt.keys():
        return tuple(replace(type, written=spelt[name]) for name, type in types.items())
    if len(inputs) == 1:
        return (ast.Identifier(inputs[0], inputs[0], True, keyword),)
    listed = ", ".join(sorted(inputs)[:8])
    if inputs and piece.type_column is None and types.keys() & spelt.keys():
        type = next(t for name, t in types.items() if name not in spelt)
        hint = f"available: {listed}; if a column holds the types: FROM input TYPE BY column PATTERN SEQ ( ... )"
        message = f"unknown event type {type.written}"
        raise _error(text, "HQ200", message, type.span, "no such stream or table", hint)
    has = f"{len(inputs)} inputs are available" if inputs else "no input is available"
    hint = f"write FROM and one of {listed}" if inputs else "write FROM stream PATTERN SEQ ( ... )"
    raise _error(text, "HQ200", f"FROM is missing, and {has}", keyword, "which input?", hint)


def _sql_name(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _statement(text: str, tree: _Node) -> sase.Statement:
    """Returns the SASE+ statement of a tree; variables are not looked up yet."""
    events: list[sase.Event] = []
    within: ast.WithinSyntax | None = None
    returned: tuple[sase.Returned, ...] | None = None
    for child in _trees(tree):
        match str(child.data):
            case "one_event" | "many_events" | "no_event" as kind:
                type, name = map(_name, _tokens(child))
                events.append(sase.Event(type, name, kind == "many_events", kind == "no_event", _span(child)))
            case "conditions":
                strategy, *listed = _trees(child)
                body = next(map(_span, _tokens(child)), None)
                names = tuple(sase.Listed(_name(x.children[0]), x.data == "many", _span(x)) for x in listed)
                selection = ast.SelectionSyntax(_SELECTIONS[str(strategy.data)], _span(strategy))
            case "within" | "within_rows":
                within = _within(text, child)
            case "returns":
                returned = tuple(
                    sase.Returned(_span(_tokens(r)[0]), _name(_tokens(r)[1]) if len(_tokens(r)) > 1 else None)
                    for r in _trees(child)
                )
    return sase.Statement(tuple(events), selection, names, body, within, returned, _span(tree))


def _history(tokens: Tokens, piece: HistoryCut) -> ast.HistoryJoin:
    text = tokens.text
    tree = _read(tokens, "history_join", piece.first, piece.last + 1, tokens.items[piece.last].end)
    kind, match, alias = ast.HistoryKind.JOIN, None, None
    as_known = False
    stream, bounds, on = None, None, None
    for child in tree.children:
        if isinstance(child, lark.Token):
            if child.type == "NAME":
                stream = _name(child)
            else:
                on = _expression(child)
            continue
        match child.data:
            case "left" | "semi" | "anti" | "nearest":
                kind = ast.HistoryKind[child.data.upper()]
            case "inner":
                pass
            case "half_open" | "closed":
                bounds = child
            case "known":
                as_known = True
            case "match_recognize":
                match = _match_recognize(text, _trees(child)[0], _span(child))
            case "alias":
                alias = _name(child.children[0])
    assert stream is not None
    assert on is not None
    assert bounds is not None
    low, high = (_expression(b) for b in bounds.children)
    return ast.HistoryJoin(kind, stream, low, high, bounds.data == "closed", as_known, match, alias, on, _span(tree))


def _alert(tokens: Tokens, piece: AlertCut) -> ast.AlertOnceSyntax:
    text = tokens.text
    tree = _read(tokens, "alert", piece.first, piece.last + 1, tokens.items[piece.last].end)
    columns: list[ast.AlertColumn] = []
    for child in _trees(tree):
        if child.data == "per":
            for column in _trees(child):
                *table, name = map(_name, _tokens(column))
                columns.append(ast.AlertColumn(table[0] if table else None, name, _span(column)))
            continue
        within = _within(text, child, "ALERT ONCE WITHIN")
        if within.interval_us is None:
            hint = "write WITHIN INTERVAL '10' MINUTE"
            raise _error(text, "HQ105", "ALERT ONCE goes by time", within.span, hint=hint)
        if not within.interval_us:
            raise _error(text, "HQ105", "ALERT ONCE WITHIN takes more than no time", within.span)
    return ast.AlertOnceSyntax(tuple(columns), within.interval_us or 0, _span(tree))


def _check_around(tokens: Tokens, cuts: tuple[Cut, ...], kind: ast.StatementKind) -> None:
    """Raises DuckDB's error about the statement with blanks for MATCH_RECOGNIZE, and plain joins of the same length for
    those of history."""
    items, text = tokens.items, tokens.text
    pieces: list[tuple[Span, str]] = []
    for piece in cuts:
        if isinstance(piece, FactorCut):
            pieces.append((Span(items[piece.behind - 1].end, items[piece.close].end), ""))
        elif isinstance(piece, SaseCut):
            stands = piece.behind > piece.first
            start = items[piece.behind - 1].end if stands else items[piece.first].start
            pieces.append((Span(start, items[piece.last].end), "" if stands else "FROM _"))
        elif isinstance(piece, AlertCut):
            pieces.append((items[piece.first].span.to(items[piece.last].span), ""))
        else:
            pieces.append((items[piece.first].span.to(items[piece.last].span), "JOIN _ ON 1"))
    for i, token in enumerate(items[:-1]):
        if token.word == ";" and items[i + 1].word != ";":
            raise _error(text, "HQ100", "expected one statement", items[i + 1].span, "the second begins here")
    plain, position = [], 0
    for span, stand_in in pieces:
        plain += [text[position : span.start], stand_in.ljust(span.end - span.start)]
        position = span.end
    whole = "".join(plain) + text[position:]
    found = syntax_error(whole) if kind is ast.StatementKind.SELECT else command_error(whole)
    if found is None or not found[0]:
        if statement_count(whole) > 1:  # even if the lexer reads one statement: each would be run
            raise _error(text, "HQ100", "expected one statement", Span(0, len(text)))
    if found is None:
        return
    message, start, end = found
    if not message:
        if cuts:
            hint = "begin with SELECT, WITH or FROM, or keep the rows by INSERT INTO, CREATE TABLE AS or COPY"
            raise _error(text, "HQ100", "a pattern query is a SELECT", items[0].span, hint=hint)
        for token in items:  # DESCRIBE, PIVOT and their like have no tree to inspect
            if token.word in _WRITING:
                raise _error(text, "HQ100", f"{token.word} is not allowed in such a statement", token.span)
        return
    span = Span(start, max(start, end))
    for inside, _ in pieces:
        if inside.start <= start < inside.end:
            span = next(t.span for t in items if t.start >= inside.start)
    if message.startswith("syntax error at or near"):
        message = f"unexpected {text[span.start : span.end]}" if span.end > span.start else "unexpected end"
    raise _error(text, "HQ100", message, span)


# ---- tokens through the grammar --------------------------------------------------------------------------------


class _NoLexer(Lexer):
    """A lexer that lark requires; tokens are fed one by one, since lark's own lexers need a pattern for every
    terminal."""

    def __init__(self, conf: LexerConf) -> None: ...

    def lex(self, *_: Any) -> Iterator[lark.Token]:
        return iter(())


class _Grammar(NamedTuple):
    parser: lark.Lark
    terminals: dict[str, str]  # keyword or symbol -> terminal
    shown: dict[str, str]  # terminal -> as messages show it


_OPTIONS: dict[str, Any] = {
    "parser": "lalr", "start": ["clauses", "history_join", "sase", "alert"], "propagate_positions": True,
    "maybe_placeholders": False,
}  # fmt: skip


def _parser(text: str, home: Path) -> lark.Lark:
    """Returns the parser of a grammar, from the cache in a directory if possible, else built, which takes most of a
    second. A parser that cannot be cached is not kept."""
    made_of = f"{lark.__version__} {sys.version_info[:2]} {_OPTIONS} {__name__} {text}"
    file = home / f"grammar-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}"
    if not is_private(home):
        return lark.Lark(text, lexer=_NoLexer, **_OPTIONS)
    try:
        with file.open("rb") as kept:
            return lark.Lark.load(kept)
    except Exception:  # noqa: BLE001  (a damaged cache is rebuilt)
        parser = lark.Lark(text, lexer=_NoLexer, **_OPTIONS)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with part.open("wb") as out:
            parser.save(out)
        part.replace(file)
    except OSError:
        pass
    return parser


@cache
def _grammar() -> _Grammar:
    """The grammar, made ready on first use."""
    parser = _parser(Path(__file__).with_name("match_recognize.lark").read_text(encoding="utf-8"), cache_home())
    terminals = {t.pattern.value: t.name for t in parser.terminals if t.pattern is not None}
    shown = {name: word if word[0].isalpha() else f"'{word}'" for word, name in terminals.items()}
    return _Grammar(parser, terminals, shown | _SHOWN)


def _read(tokens: Tokens, start: str, first: int, last: int, end: int) -> lark.Tree[lark.Token]:
    """The tree of the tokens [first, last); end is the position in the text where they end."""
    return _Reader(tokens, start, first, last, end).read()


class _Reader:
    """One walk of tokens through the grammar. The parser's state determines a word's terminal."""

    def __init__(self, tokens: Tokens, start: str, first: int, last: int, end: int) -> None:
        self.tokens, self.start, self.first, self.last, self.end = tokens, start, first, last, end
        self.grammar = _grammar()
        self.parser: InteractiveParser = self.grammar.parser.parse_interactive(start=start)
        self.context = ""  # the keyword that determines the end of expressions
        self.clauses: list[str] = []  # words that began the clauses so far

    def read(self) -> lark.Tree[lark.Token]:
        items = self.tokens.items
        i = self.first
        while i < self.last:
            accepted = self._accepted()
            if "EXPRESSION" in accepted:
                stop = self._expression_end(i)
                if stop > i:
                    self._feed("EXPRESSION", items[i].start, items[stop - 1].end, i)
                    i = stop
                    continue
            terminal = self._terminal(i, accepted)
            if terminal is None:
                self._refuse(i)
            self._feed(terminal, items[i].start, items[i].end, i)
            word = items[i].word
            if word in _CLAUSE_OF_WORD and terminal == self.grammar.terminals.get(word) and self._clause_at(i):
                self.clauses.append(word)
            if terminal == word and word in _CONTEXTS:
                self.context = word
            i += 1
        if "$END" not in self._expected():
            self._refuse(self.last)
        tree: lark.Tree[lark.Token] = self.parser.feed_eof()  # type: ignore[no-untyped-call]
        return tree

    def _expected(self) -> set[str]:
        """Returns exactly the terminals that can come next; slow."""
        return {str(name) for name in self.parser.accepts()}  # type: ignore[no-untyped-call]

    def _accepted(self) -> Any:
        """Returns the terminals that can come next, and some that cannot, by the state's row of the LALR table."""
        state = self.parser.parser_state
        return state.parse_conf.states[state.position]

    def _feed(self, terminal: str, start: int, end: int, i: int) -> None:
        text = self.tokens.text[start:end]
        try:
            self.parser.feed_token(lark.Token(terminal, text, start_pos=start, end_pos=end))
        except lark.UnexpectedInput:
            self._refuse(i)

    def _terminal(self, i: int, accepted: Any) -> str | None:
        token = self.tokens.items[i]
        match token.kind:
            case TokenKind.STRING | TokenKind.NUMBER:
                name = token.kind.name
                return name if name in accepted else None
            case TokenKind.SYMBOL:
                name = self.grammar.terminals.get(token.word, "")
                return name if name in accepted else None
        if token.kind is TokenKind.WORD:
            if token.word == "WITH" and "WITH_TIMEOUT" in accepted and self.tokens.words(i + 1, "TIMEOUT"):
                return "WITH_TIMEOUT"
            keyword = self.grammar.terminals.get("~" if token.word == "∼" else token.word)
            if keyword in accepted and (keyword != "PERMUTE" or self.tokens.words(i + 1, "(")):
                return keyword
            if "UNIT" in accepted and token.word in _UNITS:
                return "UNIT"
            if token.word in _NEVER_NAMES or (self._clause_at(i) and self._has_clauses(i)):
                return None
            if self.start == "alert" and token.word == "WITHIN":
                return None
        return next((name for name in ("NAME", "VARIABLE") if name in accepted), None)

    def _has_clauses(self, i: int) -> bool:
        """True if token i is inside MATCH_RECOGNIZE ( ... )."""
        if self.start == "clauses":
            return True
        return any(
            self.tokens.words(a - 1, "MATCH_RECOGNIZE") and a < i < b
            for a, b in self.tokens.partner.items()
            if self.first <= a < b < self.last
        )

    def _clause_at(self, i: int) -> bool:
        """True if a clause certainly begins at token i, judged by the token after its first word."""
        items = self.tokens.items
        found = _CLAUSE_OF_WORD.get(items[i].word)
        if found is None:
            return False
        following = items[i + 1] if i + 1 < self.last else None
        match items[i].word:
            case "DEFINE" | "SUBSET":
                return self.tokens.words(i + 2, "AS" if items[i].word == "DEFINE" else "=")
            case "WITHIN":
                return following is not None and (following.word == "INTERVAL" or following.kind is TokenKind.NUMBER)
            case "SELECTION":
                return following is not None and following.word in ("STRICT", "PARTITION", "SKIP")
            case "MEASURES":
                return following is not None and following.word not in (",", "AS")
            case _:
                return self.tokens.words(i, *found[1])

    # ---- where an expression ends

    def _expression_end(self, start: int) -> int:
        """The index of the first token from start on that is no longer part of the scalar expression."""
        items, partner = self.tokens.items, self.tokens.partner
        in_clause = self.context in ("PARTITION", "ORDER", "MEASURES", "DEFINE")
        case_depth = 0
        operand = False  # True after the end of an operand, when only an operator or the end can follow
        i = start
        while i < self.last:
            token = items[i]
            word = token.word
            if word in ("(", "[", "{"):
                i = partner[i] + 1
                operand = True
                continue
            if word in (")", "]", "}", ";") or (word == "," and self.context != "ON"):
                return i
            if token.kind is TokenKind.WORD and not self.tokens.words(i - 1, "."):
                if word == "CASE":
                    case_depth += 1
                elif word == "END":
                    case_depth -= 1
                if in_clause:
                    ended = word == "AS" or self._ends_clause(i, operand)
                elif self.start == "sase":
                    ended = word == "AS" or (operand and word in _OUTER_WORDS | {"WITHIN"})
                else:
                    ended = self.context != "ON" and self._ends_bound(i, case_depth)
                if ended:
                    return i
                # `at` is a column if no operand precedes it
                operand = word not in _OPERATORS or (word == "AT" and not operand)
            else:
                operand = token.kind is not TokenKind.SYMBOL
            i += 1
        return self.last

    def _ends_clause(self, i: int, operand: bool) -> bool:
        """True if the word at i, in an expression of a clause, begins the text after the expression."""
        items = self.tokens.items
        word = items[i].word
        if word in _CLAUSE_OF_WORD:
            following = items[i + 1].word if i + 1 < self.last else ""
            if word == "WITHIN" and following == "GROUP":  # percentile_cont(0.5) WITHIN GROUP (ORDER BY x)
                return False
            # `pattern(x)` is a call if an operand is due; so is a column called `measures`
            return operand or (self._clause_at(i) and word not in ("PATTERN", "MEASURES", "WITHIN"))
        if word == "WITH" and self.tokens.words(i + 1, "TIMEOUT", "ROWS"):
            return operand
        if not operand or word in _OPERATORS or word in _CONTINUATIONS:
            return False
        if self.context == "ORDER" and word in _DIRECTIONS:
            return True
        # two operands in a row are no expression: if the second looks like a keyword, report it there
        keywords = [*_CLAUSE_OF_WORD, *(_DIRECTIONS if self.context == "ORDER" else ())]
        return bool(difflib.get_close_matches(word, keywords, n=1, cutoff=0.76))

    def _ends_bound(self, i: int, case_depth: int) -> bool:
        """True if the word at i, in a bound of a history range, follows the bound."""
        match self.tokens.items[i].word:
            case "AS" | "ON":
                return True
            case "MATCH_RECOGNIZE":
                return self.tokens.words(i + 1, "(")
            case "TO":
                return self.context == "FROM" and not self.tokens.words(i - 1, "SIMILAR")
            case "AND":
                return self.context == "BETWEEN" and case_depth <= 0
            case _:
                return False

    # ---- faults

    def _refuse(self, i: int) -> NoReturn:
        """Raises the fault that token i (or the end, if i is last) is not allowed here."""
        items, text = self.tokens.items, self.tokens.text
        accepted = self._expected() - {"$END"}
        ended = i >= self.last
        token = items[i] if i < len(items) and not (ended and self.start == "history_join") else None
        if token is None:
            token = Token(TokenKind.SYMBOL, "the end", "", self.end, self.end)
        code = "HQ101" if self._has_clauses(min(i, self.last - 1)) else "HQ100"
        found = token.text if len(token.text) <= 40 else token.text[:37] + "..."
        before = items[i - 1] if i > self.first else None

        def fail(message: str, span: Span = token.span, label: str = "", hint: str = "", code: str = code) -> NoReturn:
            raise _error(text, code, message, span, label, hint)

        # a missing comma between two definitions: the name after it became part of the condition
        if token.word == "AS" and self.context == "DEFINE" and before is not None and "COMMA" in accepted:
            fail(f"expected ',' before {before.text}", before.span, hint="definitions are separated by commas")

        begins = not ended and token.word in _CLAUSE_OF_WORD and code == "HQ101"
        if begins and token.word != "PATTERN":
            begins = self.tokens.words(i, *_CLAUSE_OF_WORD[token.word][1])
        if begins and self.clauses:
            name, _, place = _CLAUSE_OF_WORD[token.word]
            for other in self.clauses:
                if other == token.word or place == _CLAUSE_OF_WORD[other][2] != _EITHER_WAY:
                    fail(
                        f"{name} appears twice"
                        if other == token.word
                        else f"{name} comes after {_CLAUSE_OF_WORD[other][0]}",
                        code="HQ103",
                        hint=f"keep one {name} clause" if other == token.word else "keep one of the two",
                    )
            latest = max(self.clauses, key=lambda c: _CLAUSE_OF_WORD[c][2])
            if place < _CLAUSE_OF_WORD[latest][2]:
                fail(f"{name} comes after {_CLAUSE_OF_WORD[latest][0]}", code="HQ103", hint=_ORDER_HINT)

        if "EXPRESSION" in accepted:
            fail(f"expected an expression, found {found}", code="HQ102" if code == "HQ101" else code)

        in_pattern = "VARIABLE" in accepted and "LPAR" in accepted
        if in_pattern and token.word in ("*", "+", "?", "{"):
            if before is not None and before.word in ("*", "+", "?", "}"):
                fail("a quantifier follows another one", hint="group them: (A+)*")
            if before is not None and before.word not in ("(", "|", ",", "{-", "PATTERN"):
                fail("a negated variable takes no quantifier", hint="~B already means that no B occurs")
            fail(f"expected a row pattern before the quantifier {found}")

        if self.start == "sase" and token.word == "WITHIN" and accepted != {"WHERE"}:
            fail(f"unexpected {found}", hint="WITHIN is allowed once, between } and RETURN")
        if self.start == "sase" and token.word in _OUTER_WORDS:
            fail(f"unexpected {found}", hint="put the statement into parentheses: FROM (FROM ... PATTERN SEQ ...) AS m")
        if self.start == "sase" and token.word == "[" and before is not None:
            fail(f"{before.text} is one event, not an array", hint=f"an array is Type+ {before.text}[]", code="HQ218")
        if self.start == "alert" and token.word == "(":
            fail("unexpected (", hint="PER takes columns of the output: give the expression a name in the SELECT")
        if self.start == "alert" and not accepted:
            fail(f"unexpected {found}", hint="ALERT ONCE must follow the whole statement")
        if token.word == "," and accepted == {"RPAR"} and code == "HQ101":
            fail(f"expected ')', found {found}", hint="write consecutive rows side by side: PATTERN (A B)")
        shown = self._shown(accepted)
        if token.kind is TokenKind.WORD and len(token.word) > 2:
            words = {s.split()[0]: s for s in shown} | {u: u for u in _UNITS if "UNIT" in accepted}
            close = difflib.get_close_matches(token.word, sorted(words), n=1, cutoff=0.6)
            if close and close[0] == token.word:  # `expected` is the token after it here
                hint = "WITH UNMATCHED ROWS must follow ALL ROWS PER MATCH" if token.word == "WITH" else ""
                fail(f"unexpected {found}", hint=hint)
            if close:
                meant = words[close[0]]
                fail(f"expected {meant}, found {found}", hint=f"did you mean {meant}?")
        if in_pattern:
            fail(
                f"expected a row pattern, found {found}"
                if "RPAR" not in accepted
                else f"unexpected {found} in a row pattern"
            )
        if "PATTERN" in accepted and (ended or token.word in _CLAUSE_OF_WORD):
            fail(f"expected PATTERN, found {found}", hint="every MATCH_RECOGNIZE has a PATTERN ( ... )")
        if accepted == {"AS"} and self.context == "MEASURES":
            # `pattern(x)` may be a call: after a superfluous comma PATTERN was read as one
            at = next((j for j in range(i - 1, self.first, -1) if items[j].word in ("PATTERN", "AS")), self.first)
            if items[at].word == "PATTERN" and items[at - 1].word in (",", "MEASURES"):
                fail("expected a measure, found PATTERN", items[at].span, hint="the last measure has no comma after it")
            fail(f"expected AS, found {found}", hint="a measure has a name: count(*) AS n")
        if accepted:
            needs_strategy = accepted == {"WHERE"}
            hint = "every SEQ has a strategy: WHERE skip_till_next_match(a, b) { ... }" if needs_strategy else ""
            listed = ", ".join(shown[:-1]) + (" or " if len(shown) > 1 else "") + shown[-1]
            fail(f"expected {listed}, found {found}", hint=hint)
        fail(f"unexpected {found}")

    def _shown(self, accepted: set[str]) -> list[str]:
        """Returns the accepted terminals as messages name them: clauses in their order, after all others."""
        clause_names = {} if "STRICT" in accepted else {words[0]: name for name, words, _ in _CLAUSES}
        clauses = [name for word, name in clause_names.items() if word in accepted]
        rest = sorted({self.grammar.shown.get(a, a) for a in accepted if a not in clause_names})
        return rest + clauses


def _error(text: str, code: str, message: str, span: Span, label: str = "", hint: str = "") -> QueryError:
    return QueryError([Diagnostic(code, message, span, label, hint)], text)


# ---- trees to syntax -------------------------------------------------------------------------------------------

_Node = Any  # lark.Tree or lark.Token: both have positions, and lark types neither

_ROWS = {
    "one_row": ast.RowsPerMatch.ONE,
    "all_rows_show_empty": ast.RowsPerMatch.ALL_SHOW_EMPTY,
    "all_rows_omit_empty": ast.RowsPerMatch.ALL_OMIT_EMPTY,
    "all_rows_with_unmatched": ast.RowsPerMatch.ALL_WITH_UNMATCHED,
}
_AFTER = {
    "skip_past_last_row": ast.AfterMatchKind.PAST_LAST_ROW,
    "skip_to_next_row": ast.AfterMatchKind.TO_NEXT_ROW,
    "skip_to_first": ast.AfterMatchKind.TO_FIRST,
    "skip_to_last": ast.AfterMatchKind.TO_LAST,
    "no_skip": ast.AfterMatchKind.NO_SKIP,
}
_SELECTIONS = {
    "strict": ast.Selection.STRICT,
    "partition": ast.Selection.PARTITION,
    "skip_till_next": ast.Selection.SKIP_TILL_NEXT,
    "skip_till_any": ast.Selection.SKIP_TILL_ANY,
}


def _span(node: _Node) -> Span:
    if isinstance(node, lark.Token):
        return Span(node.start_pos or 0, node.end_pos or 0)
    return Span(node.meta.start_pos, node.meta.end_pos)


def _trees(node: _Node) -> list[_Node]:
    return [child for child in node.children if isinstance(child, lark.Tree)]


def _tokens(node: _Node) -> list[lark.Token]:
    return [child for child in node.children if isinstance(child, lark.Token)]


def _expression(token: _Node) -> ast.ExpressionText:
    return ast.ExpressionText(str(token), _span(token))


def _identifier(written: str, span: Span) -> ast.Identifier:
    if written.startswith('"'):
        name = written[1:-1].replace('""', '"')
        return ast.Identifier(name, name, True, span)
    return ast.Identifier(written.upper(), written, False, span)


def _name(token: _Node) -> ast.Identifier:
    return _identifier(str(token), _span(token))


def _match_recognize(text: str, clauses: _Node, span: Span) -> ast.MatchRecognize:
    partition_by: tuple[ast.ExpressionText, ...] = ()
    order_by: tuple[ast.OrderItem, ...] = ()
    measures: tuple[ast.MeasureSyntax, ...] = ()
    rows: ast.RowsPerMatch | None = None
    after: ast.AfterMatchSyntax | None = None
    pattern: ast.PatternSyntax | None = None
    within: ast.WithinSyntax | None = None
    selection: ast.SelectionSyntax | None = None
    subsets: tuple[ast.SubsetSyntax, ...] = ()
    defines: tuple[ast.DefineSyntax, ...] = ()
    timeout: Span | None = None
    for clause in clauses.children:
        kind = str(clause.data)
        if kind in _ROWS:
            rows = _ROWS[kind]
        elif kind in _AFTER:
            variable = next((_name(t) for t in _tokens(clause)), None)
            after = ast.AfterMatchSyntax(_AFTER[kind], variable, _span(clause))
        elif kind in _SELECTIONS:
            selection = ast.SelectionSyntax(_SELECTIONS[kind], _span(clause))
        else:
            match kind:
                case "partition_by":
                    partition_by = tuple(map(_expression, clause.children))
                case "order_by":
                    order_by = tuple(map(_order_item, clause.children))
                case "measures":
                    measures = tuple(
                        ast.MeasureSyntax(_expression(m.children[0]), _name(m.children[1]), _span(m))
                        for m in clause.children
                    )
                case "timeout":
                    timeout = _span(clause)
                case "pattern":
                    pattern = _whole_pattern(text, clause)
                case "within" | "within_rows":
                    within = _within(text, clause)
                case "subset":
                    subsets = tuple(
                        ast.SubsetSyntax(_name(s.children[0]), tuple(map(_name, s.children[1:])), _span(s))
                        for s in clause.children
                    )
                case "define":
                    defines = tuple(
                        ast.DefineSyntax(_name(d.children[0]), _expression(d.children[1]), _span(d))
                        for d in clause.children
                    )
    assert pattern is not None
    return ast.MatchRecognize(
        partition_by, order_by, measures, rows, after, pattern, within, selection, subsets, defines, span, timeout
    )


def _order_item(node: _Node) -> ast.OrderItem:
    kinds = {str(child.data) for child in _trees(node)}
    nulls_first = True if "nulls_first" in kinds else False if "nulls_last" in kinds else None
    return ast.OrderItem(_expression(node.children[0]), "descending" in kinds, nulls_first, _span(node))


def _within(text: str, node: _Node, what: str = "WITHIN") -> ast.WithinSyntax:
    """Returns the bound of WITHIN. what: the words before the interval, for messages."""
    span = _span(node)
    number = next((t for t in _tokens(node) if t.type == "NUMBER"), None)
    if number is not None and not str(number).replace("_", "").isdecimal():
        raise _error(
            text,
            "HQ105",
            f"expected a whole number, found {number}",
            _span(number),
            hint="write a smaller unit, or INTERVAL '1 hour 30 minutes'",
        )
    if node.data == "within_rows":
        rows = _count(str(number))
        if not 1 <= rows <= ROWS_MAX:
            raise _error(text, "HQ101", f"WITHIN takes 1 to {ROWS_MAX:,} rows", _span(number))
        return ast.WithinSyntax(None, rows, span)

    length = next(t for t in _tokens(node) if t.type in ("NUMBER", "STRING"))
    unit = next((t for t in _tokens(node) if t.type == "UNIT"), None)
    where = Span(_span(length).start, _span(unit if unit is not None else length).end)
    if unit is not None and length.type == "STRING" and "." in length:  # DuckDB would truncate the fraction
        raise _error(
            text,
            "HQ105",
            f"expected a whole number, found {length}",
            _span(length),
            hint="write a smaller unit, or INTERVAL '1 hour 30 minutes'",
        )
    parts = interval_parts(f"INTERVAL {length} {unit or ''}")
    if parts is None:
        raise _error(text, "HQ105", "an interval that cannot be read", where, hint="write INTERVAL '10' MINUTE")
    months, microseconds = parts
    if months:
        raise _error(text, "HQ105", "months and years have no fixed length", where, hint="write it in days")
    if microseconds < 0:
        raise _error(text, "HQ105", f"{what} cannot be negative", where)
    return ast.WithinSyntax(microseconds, None, span)


# ---- row patterns ----------------------------------------------------------------------------------------------


def _whole_pattern(text: str, node: _Node) -> ast.PatternSyntax:
    inner = _trees(node)
    if inner:
        return _pattern(text, inner[0])
    whole = _span(node)
    return ast.PatternEmpty(Span(text.index("(", whole.start + len("PATTERN")), whole.end))


def _pattern(text: str, node: _Node) -> ast.PatternSyntax:
    """A pattern's syntax; groups leave no node of their own, but their parentheses are in the span."""
    span = _span(node)
    match str(node.data):
        case "variable":
            return ast.PatternVariable(_name(node.children[0]), span)
        case "negation":
            return ast.PatternNegation(_name(node.children[0]), span)
        case "alternation" | "sequence" if len(node.children) == 1:
            return _pattern(text, node.children[0])
        case "alternation":
            return ast.PatternAlternation(tuple(_pattern(text, c) for c in node.children), span)
        case "sequence":
            return ast.PatternSequence(tuple(_pattern(text, c) for c in node.children), span)
        case "quantified":
            body, quantifier = node.children
            return _quantified(text, _pattern(text, body), quantifier, span)
        case "start_anchor" | "end_anchor":
            return ast.PatternAnchor(node.data == "start_anchor", span)
        case "empty":
            return ast.PatternEmpty(span)
        case "group":
            return replace(_pattern(text, node.children[0]), span=span)
        case "permute":
            return ast.PatternPermute(tuple(_pattern(text, c) for c in node.children), span)
        case "exclusion":
            return ast.PatternExclusion(_pattern(text, node.children[0]), span)
        case other:
            raise AssertionError(other)


def _quantified(text: str, body: ast.PatternSyntax, node: _Node, span: Span) -> ast.PatternSyntax:
    bounds = [_count(str(token)) for token in _tokens(node)]
    greedy = not _trees(node)
    least, most = 0, None
    match str(node.data):
        case "plus":
            least = 1
        case "optional":
            most = 1
        case "exactly":
            least, most = bounds[0], bounds[0]
        case "at_least":
            least = bounds[0]
        case "at_most":
            most = bounds[0]
        case "between":
            least, most = bounds
    if most == 0:
        raise _error(
            text,
            "HQ104",
            "at most 0 repetitions",
            _span(node),
            "never matches a row",
            "leave the element out, or write () for an empty pattern",
        )
    if most is not None and least > most:
        raise _error(
            text,
            "HQ104",
            f"at least {least} and at most {most} repetitions",
            _span(node),
            "can never be met",
            "the smaller number comes first",
        )
    if max([least, *bounds]) > REPEAT_MAX:
        raise _error(text, "HQ104", f"more than {REPEAT_MAX:,} repetitions", _span(node))
    return ast.PatternQuantified(body, least, most, greedy, span)


def _count(digits: str) -> int:
    """Returns the number, or one that exceeds every limit if it has more digits."""
    digits = digits.replace("_", "")
    return int(digits) if len(digits) <= 18 else 10**18
