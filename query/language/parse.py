"""Parses a query: text -> ast.QuerySyntax. Every fault is a QueryError whose spans lie inside the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import lark

from query.errors import Diagnostic, ExpandedText, QueryError, Span, in_pattern, nearest
from query.language import ast, sase
from query.language.build import (
    SELECTIONS,
    expression_of,
    identifier_of,
    match_recognize,
    name_of,
    span_of,
    tokens_of,
    trees_of,
    within_of,
)
from query.language.build_trends import Trend, TrendEvent, listed_of, returned_of, trend_of
from query.language.clauses import Input
from query.language.cut import (
    AlertCut,
    Cut,
    FactorCut,
    HistoryCut,
    SaseCut,
    WithEntry,
    cut,
    enclosing,
    joined_factor,
    with_lists,
)
from query.language.duck import command_error, statement_count, syntax_error
from query.language.lexer import TokenKind, Tokens, tokenize
from query.language.named import boxes, entries_seen, expanded, is_table, refuse_pattern_statement, written
from query.language.named import histories as histories_of
from query.language.names import beginning_hint, quoting_hint
from query.language.operators import operator_hint
from query.language.pieces import widest
from query.language.read import error_at, read_tokens
from query.language.sase_trends import check_clauses, is_trend, recognize_trends

#: Words of statements that write.
_WRITING = {"INSERT", "UPDATE", "DELETE", "MERGE", "COPY"}
#: What the statement reads instead of a WITH entry that only boxes read.
UNREAD = "SELECT 0"


def parse(
    text: str, inputs: Sequence[str] = (), patterns: Mapping[str, str] | None = None, tables: Sequence[str] = (),
    known: dict[str, ast.ModuleSyntax] | None = None,
) -> ast.QuerySyntax:  # fmt: skip
    """Returns the query of a text: its pattern factors, SASE+ statements and history joins; the rest is any SELECT of
    DuckDB, or an INSERT, CREATE TABLE AS or COPY of one.

    inputs: the existing tables and streams: a SASE+ statement without FROM reads the only one. patterns: the queries of
    named patterns, by name in lower case, which boxes and FROM may name; the text of the result has those that FROM
    reads in WITH (query.language.named). tables: more names that hide patterns in FROM. known: the named patterns that
    boxes of other texts name, with the same inputs and patterns; those of this one are added. Raises QueryError with a
    fault for each unreadable piece, or else with DuckDB's error about the rest; HQ222 for a box without a pattern, or
    of one made of itself. About 2 ms for a hybrid query, after 0.2 s for the first text of a process.
    """
    refuse_pattern_statement(text)
    whole = expanded(text, (*inputs, *tables), patterns or {})
    named = patterns or {}
    return _parse(whole, inputs, named, named, (), {} if known is None else known)


def _parse(
    text: str, inputs: Sequence[str], patterns: Mapping[str, str], named: Mapping[str, str], inside: tuple[str, ...],
    known: dict[str, ast.ModuleSyntax],
) -> ast.QuerySyntax:  # fmt: skip
    """See `parse`. patterns: those that boxes may name: named ones, and entries of WITH around the text. inside: the
    patterns whose queries are being read, the outermost first."""
    if inside:
        text = expanded(text, (), named, inside)
    tokens = tokenize(text)
    if all(token.word == ";" for token in tokens.items):
        raise QueryError([Diagnostic("HQ100", "there is no query in the text", Span(0, len(text)))], text)
    modules, unread = _modules(tokens, inputs, patterns, named, inside, known)
    modules = (*modules, *_histories(tokens, inputs, named, {m.name for m in modules}, inside))
    cuts = tuple(c for c in cut(tokens) if not any(_lies_in(tokens, c, span) for span in unread))
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
    factors = _with_times(text, factors)
    kind = _kind(tokens, any(not isinstance(piece, AlertCut) for piece in cuts))
    _check_around(tokens, cuts, kind, unread)
    return ast.QuerySyntax(text, tuple(factors), tuple(histories), kind, alert, modules, unread)


# ---- patterns that boxes name ------------------------------------------------------------------------------------


def _modules(
    tokens: Tokens, inputs: Sequence[str], patterns: Mapping[str, str], named: Mapping[str, str],
    inside: tuple[str, ...], known: dict[str, ast.ModuleSyntax],
) -> tuple[tuple[ast.ModuleSyntax, ...], tuple[Span, ...]]:
    """Returns the patterns that boxes of the statement name and that exist, each once; and the queries of WITH entries
    that nothing but boxes reads. known: see `parse`."""
    found: dict[str, ast.ModuleSyntax] = {}
    unread: list[Span] = []
    # an entry stands before the boxes that name it: whether its own boxes are of the statement is known by then
    for i in reversed(list(boxes(tokens))):
        name, place = written(tokens, i), tokens.items[i].start
        entry = {written(tokens, e.name): e for e in entries_seen(tokens, i)}.get(name)
        if entry is not None and _is_added(tokens, entry):
            entry = None  # the pattern itself, without the columns that FROM shows
        if entry is not None and not _is_read(tokens, entry):
            unread = widest(unread, Span(tokens.items[entry.open].end, tokens.items[entry.close].start))
        if name in found or any(s.start <= place < s.end for s in unread):
            continue
        if entry is None and name not in patterns:
            others = [*patterns, *(written(tokens, e.name) for e in entries_seen(tokens, i))]
            hint = nearest(name, others) or "name one: CREATE PATTERN name AS SELECT ..., or WITH name AS (SELECT ...)"
            raise error_at(
                tokens.text, "HQ222", f"there is no pattern {name}", tokens.items[i].span, "no such pattern", hint
            )
        if name in inside:
            raise _of_itself(tokens, i, inside)
        everywhere = entry is None and patterns is named  # no WITH is around it
        if everywhere and name in known:
            found[name] = known[name]
            continue
        if entry is None:
            text, below = patterns[name], patterns
        else:
            text, below = _body(tokens, entry), {**patterns, **_bodies(tokens, entry.open)}
        try:
            found[name] = ast.ModuleSyntax(name, _parse(text, inputs, below, named, (*inside, name), known))
        except QueryError as error:
            if error.text != text:
                raise  # a fault in a pattern that this one uses
            if entry is not None:
                raise QueryError(error.diagnostics, tokens.text) from None
            raise QueryError(*in_pattern(name, error.diagnostics, text)) from None
        if everywhere:
            known[name] = found[name]
    if found:  # an entry that nothing reads would be a second pattern of the statement
        entries = {e.name: e for listed in with_lists(tokens, -1, len(tokens.items)) for e in listed.entries}
        for entry in entries.values():
            span = Span(tokens.items[entry.open].end, tokens.items[entry.close].start)
            if _has_pattern(tokens, entry) and not _is_read(tokens, entry) and not _is_added(tokens, entry):
                unread = widest(unread, span)
    return tuple(found.values()), tuple(unread)


def _of_itself(tokens: Tokens, i: int, inside: tuple[str, ...]) -> QueryError:
    """Returns the fault of a pattern that is named inside itself, by token i."""
    name = written(tokens, i)
    ring = " -> ".join((*inside[inside.index(name) :], name))
    return error_at(tokens.text, "HQ222", f"the pattern {name} is made of itself", tokens.items[i].span, ring,
                    "a box stands for a pattern of a lower layer")


def _histories(
    tokens: Tokens, inputs: Sequence[str], named: Mapping[str, str], known: set[str], inside: tuple[str, ...]
) -> Iterator[ast.ModuleSyntax]:
    """Yields the named patterns whose rows are histories, each once. known: those that boxes name, too. inside: see
    `_parse`."""
    for i in histories_of(tokens, named, inputs):
        name = written(tokens, i)
        if name not in known:
            known.add(name)
            if name in inside:
                raise _of_itself(tokens, i, inside)
            try:
                yield ast.ModuleSyntax(name, _parse(named[name], (), named, named, (*inside, name), {}))
            except QueryError as error:
                if error.text != named[name]:
                    raise
                raise QueryError(*in_pattern(name, error.diagnostics, named[name])) from None


def _is_added(tokens: Tokens, entry: WithEntry) -> bool:
    """True if an entry of WITH is a named pattern that FROM reads."""
    if not isinstance(tokens.text, ExpandedText):
        return False
    start, end = tokens.items[entry.open].end, tokens.items[entry.close].start
    return any(start <= span.start and span.end <= end for _, span in tokens.text.queries())


def _with_times(text: str, factors: Sequence[ast.PatternFactor]) -> list[ast.PatternFactor]:
    """Returns the factors of a statement; those that are named patterns show the times of their matches, too."""
    found = list(factors)
    for _, span in text.queries() if isinstance(text, ExpandedText) else ():
        inside = [i for i, f in enumerate(found) if span.start <= f.span.start and f.span.end <= span.end]
        if inside:
            found[inside[-1]] = replace(found[inside[-1]], times=True)
    return found


def _body(tokens: Tokens, entry: WithEntry) -> str:
    """Returns the query of a WITH entry, with the entries that it reads, and else blanks before it, so that it has its
    place in the text. Entries with patterns are left out: their rows are not known by themselves."""
    start, end = tokens.items[entry.open].end, tokens.items[entry.close].start
    before = re.sub(r"[^\n]", " ", tokens.text[:start])
    read = _read_in(tokens, entry)
    lists = [w for at in (-1, *enclosing(tokens, entry.open)) for w in with_lists(tokens, at, entry.open)]
    kept = 0
    for listed in lists:
        mine = [e for e in listed.entries if e.name in read]
        for k, one in enumerate(mine):
            head = tokens.items[listed.first]
            if k:
                comma = tokens.items[one.name - 1]
                before = _put(before, comma.start, comma.text)
            else:
                before = _put(before, head.start, "," if kept else head.text)
                if listed.recursive and not kept:
                    word = tokens.items[listed.first + 1]
                    before = _put(before, word.start, word.text)
            begin, until = tokens.items[one.name].start, tokens.items[one.close].end
            before = _put(before, begin, tokens.text[begin:until])
            kept += 1
    own = tokens.text[start:end]
    if kept and tokens.words(entry.open + 1, "WITH"):
        own = _put(own, tokens.items[entry.open + 1].start - start, ",   ")
    return before + own


def _put(text: str, at: int, part: str) -> str:
    return text[:at] + part + text[at + len(part) :]


def _read_in(tokens: Tokens, entry: WithEntry) -> set[int]:
    """Returns the entries without patterns that the query of an entry may read, directly or through others, each by its
    name's token."""
    seen = {written(tokens, e.name): e for e in entries_seen(tokens, entry.open)}
    found: set[int] = set()
    todo = [entry]
    while todo:
        inside = todo.pop()
        for i in range(inside.open + 1, inside.close):
            token = tokens.items[i]
            if token.kind not in (TokenKind.WORD, TokenKind.QUOTED):
                continue
            one = seen.get(written(tokens, i))
            if one is None or one.name in found or tokens.items[i - 1].word not in ("FROM", "JOIN", ",", "("):
                continue
            if not _has_pattern(tokens, one):
                found.add(one.name)
                todo.append(one)
    return found


def _has_pattern(tokens: Tokens, entry: WithEntry) -> bool:
    return any(
        tokens.items[i].word == "MATCH_RECOGNIZE" or tokens.words(i, "PATTERN", "SEQ", "(")
        for i in range(entry.open, entry.close)
    )


def _bodies(tokens: Tokens, i: int) -> dict[str, str]:
    return {written(tokens, e.name): _body(tokens, e) for e in entries_seen(tokens, i)}


def _is_read(tokens: Tokens, entry: WithEntry) -> bool:
    """True if anything but boxes may read a WITH entry."""
    name, of_boxes = written(tokens, entry.name), set(boxes(tokens))
    return any(
        token.kind in (TokenKind.WORD, TokenKind.QUOTED) and i not in of_boxes and i != entry.name
        and written(tokens, i) == name and is_table(tokens, i)
        for i, token in enumerate(tokens.items)
    )  # fmt: skip


def _lies_in(tokens: Tokens, piece: Cut, span: Span) -> bool:
    return span.start <= tokens.items[piece.first].start < span.end


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
    raise error_at(
        tokens.text,
        "HQ500",
        f"a {token.text.lower()} cannot hold a pattern",
        tokens.items[first].span.to(token.span),
        hint="use CREATE TABLE ... AS SELECT to store the current matches",
    )


def _factor(tokens: Tokens, piece: FactorCut, inputs: Sequence[str]) -> ast.PatternFactor:
    items, text = tokens.items, tokens.text

    def name(i: int) -> ast.Identifier:
        return identifier_of(items[i].text, items[i].span)

    clauses = read_tokens(tokens, "clauses", piece.open + 1, piece.close, items[piece.close].start)
    keyword, close = items[piece.keyword], items[piece.close]
    columned = piece.input_alias is not None and tokens.words(piece.input_alias + 1, "(")
    merged = _merged(tokens, piece, inputs)
    if merged and columned and piece.input_alias is not None:
        opening = items[piece.input_alias + 1].span
        hint = "the columns are called as those of the merged inputs"
        raise error_at(text, "HQ500", "names for the columns of MERGE are not supported", opening, hint=hint)
    input_span = items[piece.first].span.to(items[(piece.keyword if columned else piece.behind) - 1].span)
    return ast.PatternFactor(
        input=text[input_span.start : input_span.end],
        input_span=input_span,
        match=match_recognize(text, clauses, keyword.span.to(close.span)),
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
            name = identifier_of(token.text, token.span)
            if name.written.lower() in (n.written.lower() for n in found):
                raise error_at(tokens.text, "HQ219", f"{name.written} is merged twice", token.span, "the second time")
            found.append(replace(name, written=spelt.get(name.written.lower(), name.written)))
        elif due or not (i == close or token.word == ","):
            what = "the name of a stream or table" if due else "',' or ')'"
            raise error_at(tokens.text, "HQ100", f"expected {what}, found {token.text}", token.span,
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
            names = [identifier_of(items[e.name].text, items[e.name].span).written.lower() for e in listed.entries]
            own = names[listed.entries.index(inside)] if inside is not None and listed.recursive else None
            if seen or own is not None:
                found.append(ast.WithScope(span, tuple(names[: len(seen)]), own))
    return tuple(found)


def _sase(tokens: Tokens, piece: SaseCut, inputs: Sequence[str]) -> ast.PatternFactor:
    items, text = tokens.items, tokens.text
    keyword = items[piece.keyword].span.to(items[piece.keyword + tokens.words(piece.keyword + 1, "SEQ")].span)
    statement = _trend(tokens, piece) if is_trend(tokens, piece) else _flat(tokens, piece)
    named = None if piece.input_alias is None else items[piece.input_alias]
    alias = None if named is None else identifier_of(named.text, named.span)
    merged = _merged(tokens, piece, inputs)
    if piece.behind > piece.first:
        input_span, head = items[piece.first].span.to(items[piece.behind - 1].span), ""
        input = text[input_span.start : input_span.end]
        last = items[piece.behind - 1]
        names = [last.text.strip('"')] if last.kind in (TokenKind.WORD, TokenKind.QUOTED) else []
        names += [alias.written] if alias is not None else []
    else:
        input_span, head = keyword, "FROM "
        of_events = [e.type for e in statement.events if isinstance(e, TrendEvent) or not e.box]
        merged = _types(text, of_events, piece, inputs, keyword)
        names = [n.written for n in merged]
        input = _sql_name(names[0]) if len(names) == 1 else f"MERGE({', '.join(map(_sql_name, names))})"
        merged = merged if len(names) > 1 else ()
    column = None if piece.type_column is None else items[piece.type_column].span
    streams = tuple(n.written for n in merged)
    input_of = Input(tuple(names), column, streams)
    if isinstance(statement, Trend):
        match = recognize_trends(tokens, statement, input_of, keyword)
    else:
        match = sase.recognize(tokens, statement, input_of, keyword)
    if piece.returned is not None:
        head = "FROM "
    span = items[piece.start].span.to(items[piece.last].span)
    scopes = _scopes(tokens, piece.first)
    return ast.PatternFactor(input, input_span, match, alias, span, alias, (), scopes, head, merged)


def _types(
    text: str, events: Sequence[ast.Identifier], piece: SaseCut, inputs: Sequence[str], keyword: Span
) -> tuple[ast.Identifier, ...]:
    """Returns the inputs of a SASE+ statement without FROM: the only one, or those that the types of its events
    name."""
    spelt = {name.lower(): name for name in inputs}
    types = {type.written.lower(): type for type in events}
    if types and len(inputs) != 1 and piece.type_column is None and types.keys() <= spelt.keys():
        return tuple(replace(type, written=spelt[name]) for name, type in types.items())
    if len(inputs) == 1:
        return (ast.Identifier(inputs[0], inputs[0], True, keyword),)
    listed = ", ".join(sorted(inputs)[:8])
    if inputs and piece.type_column is None and types.keys() & spelt.keys():
        type = next(t for name, t in types.items() if name not in spelt)
        hint = f"available: {listed}; if a column holds the types: FROM input TYPE BY column PATTERN SEQ ( ... )"
        message = f"unknown event type {type.written}"
        raise error_at(text, "HQ200", message, type.span, "no such stream or table", hint)
    has = f"{len(inputs)} inputs are available" if inputs else "no input is available"
    hint = f"write FROM and one of {listed}" if inputs else "write FROM stream PATTERN SEQ ( ... )"
    raise error_at(text, "HQ200", f"FROM is missing, and {has}", keyword, "which input?", hint)


def _sql_name(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _trend(tokens: Tokens, piece: SaseCut) -> Trend:
    """Returns a trend statement; variables are not looked up yet."""
    if named := [i for i in boxes(tokens) if piece.keyword < i <= piece.last]:
        span = tokens.items[named[0] - 1].span.to(tokens.items[named[0]].span)
        hint = "name a strategy, return matches, and aggregate in the SELECT around them"
        raise error_at(tokens.text, "HQ500", "a box in a statement about trends is not supported yet", span,
                       "a pattern of its own", hint)
    check_clauses(tokens, piece)
    items, returned = tokens.items, None
    if piece.returned is not None:
        last = piece.returned_end
        returned = read_tokens(tokens, "returns", piece.returned, last, items[last - 1].end)
    tree = read_tokens(tokens, "trend", piece.keyword, piece.last + 1, items[piece.last].end)
    return trend_of(tokens.text, tree, returned)


def _flat(tokens: Tokens, piece: SaseCut) -> sase.Statement:
    """Returns a statement about matches; variables are not looked up yet."""
    text = tokens.text
    tree = read_tokens(tokens, "sase", piece.keyword, piece.last + 1, tokens.items[piece.last].end)
    events: list[sase.Event] = []
    within: ast.WithinSyntax | None = None
    returned: tuple[sase.Returned, ...] | None = None
    for child in trees_of(tree):
        match str(child.data):
            case "one_event" | "many_events" | "no_event" as kind:
                *box, type, name = tokens_of(child)
                plus, negated = kind == "many_events", kind == "no_event"
                events.append(sase.Event(name_of(type), name_of(name), plus, negated, span_of(child), bool(box)))
            case "conditions":
                strategy, *listed = trees_of(child)
                body = next(map(span_of, tokens_of(child)), None)
                names = listed_of(listed)
                selection = ast.SelectionSyntax(SELECTIONS[str(strategy.data)], span_of(strategy))
            case "within" | "within_rows":
                within = within_of(text, child)
            case "returns":
                returned = returned_of(child)
    return sase.Statement(tuple(events), selection, names, body, within, returned, span_of(tree))


def _history(tokens: Tokens, piece: HistoryCut) -> ast.HistoryJoin:
    text = tokens.text
    tree = read_tokens(tokens, "history_join", piece.first, piece.last + 1, tokens.items[piece.last].end)
    kind, match, alias = ast.HistoryKind.JOIN, None, None
    as_known = False
    stream, bounds, on = None, None, None
    for child in tree.children:
        if isinstance(child, lark.Token):
            if child.type == "NAME":
                stream = name_of(child)
            else:
                on = expression_of(child)
            continue
        match child.data:
            case "left" | "semi" | "anti" | "nearest" | "left_nearest":
                kind = ast.HistoryKind[child.data.upper()]
            case "inner":
                pass
            case "half_open" | "closed":
                bounds = child
            case "known":
                as_known = True
            case "match_recognize":
                match = match_recognize(text, trees_of(child)[0], span_of(child))
            case "alias":
                alias = name_of(child.children[0])
    assert stream is not None
    assert on is not None
    assert bounds is not None
    low, high = (expression_of(b) for b in bounds.children)
    return ast.HistoryJoin(kind, stream, low, high, bounds.data == "closed", as_known, match, alias, on, span_of(tree))


def _alert(tokens: Tokens, piece: AlertCut) -> ast.AlertOnceSyntax:
    text = tokens.text
    tree = read_tokens(tokens, "alert", piece.first, piece.last + 1, tokens.items[piece.last].end)
    columns: list[ast.AlertColumn] = []
    for child in trees_of(tree):
        if child.data == "per":
            for column in trees_of(child):
                *table, name = map(name_of, tokens_of(column))
                columns.append(ast.AlertColumn(table[0] if table else None, name, span_of(column)))
            continue
        within = within_of(text, child, "ALERT ONCE WITHIN")
        if within.interval_us is None:
            hint = "write WITHIN INTERVAL '10' MINUTE"
            raise error_at(text, "HQ105", "ALERT ONCE goes by time", within.span, hint=hint)
        if not within.interval_us:
            raise error_at(text, "HQ105", "ALERT ONCE WITHIN takes more than no time", within.span)
    return ast.AlertOnceSyntax(tuple(columns), within.interval_us or 0, span_of(tree))


def _check_around(
    tokens: Tokens, cuts: tuple[Cut, ...], kind: ast.StatementKind, unread: Sequence[Span] = ()
) -> None:
    """Raises DuckDB's error about the statement with blanks for MATCH_RECOGNIZE, and plain joins of the same length for
    those of history. unread: the queries of patterns that only boxes read."""
    items, text = tokens.items, tokens.text
    pieces: list[tuple[Span, str]] = [(span, UNREAD) for span in unread]
    for piece in cuts:
        if isinstance(piece, FactorCut):
            pieces.append((Span(items[piece.behind - 1].end, items[piece.close].end), ""))
        elif isinstance(piece, SaseCut):
            stands = piece.behind > piece.first
            if piece.returned is not None and stands:
                pieces.append((Span(items[piece.returned].start, items[piece.first - 1].start), ""))
            start = items[piece.behind - 1].end if stands else items[piece.start].start
            pieces.append((Span(start, items[piece.last].end), "" if stands else "FROM _"))
        elif isinstance(piece, AlertCut):
            pieces.append((items[piece.first].span.to(items[piece.last].span), ""))
        else:
            pieces.append((items[piece.first].span.to(items[piece.last].span), "JOIN _ ON 1"))
    for i, token in enumerate(items[:-1]):
        if token.word == ";" and items[i + 1].word != ";":
            raise error_at(text, "HQ100", "expected one statement", items[i + 1].span, "the second begins here")
    if items and items[0].word == "EXPLAIN":
        hint = "result.explain() shows the plan of a result, `hybrid explain` that of a text"
        raise error_at(text, "HQ100", "EXPLAIN is no statement here", items[0].span, hint=hint)
    plain, position = [], 0
    for span, stand_in in sorted(pieces, key=lambda piece: piece[0].start):
        plain += [text[position : span.start], stand_in.ljust(span.end - span.start)]
        position = span.end
    whole = "".join(plain) + text[position:]
    found = syntax_error(whole) if kind is ast.StatementKind.SELECT else command_error(whole)
    if found is None or not found[0]:
        if statement_count(whole) > 1:  # even if the lexer reads one statement: each would be run
            raise error_at(text, "HQ100", "expected one statement", Span(0, len(text)))
    if found is None:
        return
    message, start, end = found
    if not message:
        if cuts:
            hint = "begin with SELECT, WITH or FROM, or keep the rows by INSERT INTO, CREATE TABLE AS or COPY"
            if any(token.word == "PIVOT" for token in items):  # which DuckDB runs first, to find its values
                hint = "name the values of PIVOT: ON column IN ('a', 'b')"
            raise error_at(text, "HQ100", "a pattern query is a SELECT", items[0].span, hint=hint)
        for token in items:  # DESCRIBE, PIVOT and their like have no tree to inspect
            if token.word in _WRITING:
                raise error_at(text, "HQ100", f"{token.word} is not allowed in such a statement", token.span)
        return
    span = Span(start, max(start, end))
    for inside, _ in pieces:
        if inside.start <= start < inside.end:
            span = next(t.span for t in items if t.start >= inside.start)
    if message.startswith("syntax error at or near"):
        message = f"unexpected {text[span.start : span.end]}" if span.end > span.start else "unexpected end"
    hint = operator_hint(message, text) or quoting_hint(text, span.start) or beginning_hint(text, start)
    if re.fullmatch(r"\S+\.\w+", text.strip()):
        hint = "a query is the statement itself: read the file, Path(...).read_text()"
    raise error_at(text, "HQ100", message, span, hint=hint)
