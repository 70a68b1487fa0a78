"""The named patterns of a database: created, checked against its streams and each other, and dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from hybrid.database.opened import Opened
from hybrid.database.pattern_file import NamedPattern, write_patterns
from hybrid.rows.duck import binder, interruptible
from hybrid.rows.faults import fault
from hybrid.watch.chain import stream_key
from hybrid.watch.declaration import check_length
from hybrid.watch.flow import Flow
from query.errors import DataError, Diagnostic, QueryError, Span, check_text, nearest
from query.language import ast
from query.language.cut import lacks_input
from query.language.duck import reserved_words
from query.language.lexer import tokenize
from query.language.named import CreatePattern, DropPattern, used_patterns, uses
from query.language.parse import parse
from query.plan.bind import Known, columns_of
from query.schema import Field, Schema


def create(opened: Opened, flow: Flow, given: Mapping[str, str], replaces: bool, force: bool = False) -> None:
    """Creates named patterns, all or none; with `replaces` also in place of existing ones. force: even if patterns or
    live queries that use them would not fit any more. Raises QueryError about one of the texts, and DataError."""
    if not isinstance(given, Mapping):
        hint = "db.create_patterns({'visit': 'SELECT * FROM clicks MATCH_RECOGNIZE ( ... )'})"
        raise DataError(f"patterns are texts by name, not {type(given).__name__}", hint)
    for name in given:
        _check_name(opened, name)
    texts = {name: _body(text) for name, text in given.items()}
    for name in texts:
        known = opened.patterns.get(name.lower())
        if known is not None and known.text != texts[name] and not replaces:
            hint = "CREATE OR REPLACE PATTERN, or replace=True, replaces it"
            raise DataError(f"pattern {known.name} already exists with another text", hint)
    new = {name.lower(): NamedPattern(name, text) for name, text in texts.items()}
    if all(opened.patterns.get(key) == pattern for key, pattern in new.items()):
        return
    after = {**opened.patterns, **new}
    all_texts = {key: pattern.text for key, pattern in after.items()}
    for key in new:
        refuse_ring(key, all_texts)
    read, bound = dict[str, ast.ModuleSyntax](), Known()  # each pattern is read and bound once
    with interruptible():
        columns = {
            key: _columns(opened, pattern.text, all_texts, read=read, known=bound) for key, pattern in new.items()
        }
        if not force:
            for key in new:
                _check_users(opened, flow, key, columns[key], new.keys())
            _check_others(opened, new.keys(), all_texts)
    _keep(opened, after)


def drop(opened: Opened, flow: Flow, name: str, if_exists: bool = False) -> bool:
    """Drops a named pattern. Returns False if there is none and `if_exists`. Raises DataError."""
    check_text(name, "the name of a pattern")
    found = opened.patterns.get(name.lower())
    if found is None:
        if if_exists:
            return False
        known = [p.name for p in opened.patterns.values()]
        raise DataError(f"there is no pattern {name}", nearest(name, known) or "create it with create_pattern")
    users = [*_patterns_of(opened, name.lower()), *_queries_of(flow, name.lower())]
    if users:
        raise DataError(f"pattern {found.name} is used by {', '.join(users)}", "drop or close these first")
    _keep(opened, {key: p for key, p in opened.patterns.items() if key != name.lower()})
    return True


def run(opened: Opened, flow: Flow, text: str, statement: CreatePattern | DropPattern) -> str:
    """Runs a statement about a named pattern. Returns what it did, in a word."""
    if not opened.access.outside:
        what = "a database with external=False takes no CREATE PATTERN and DROP PATTERN from texts"
        raise fault("HQ100", what, text, "call db.create_pattern or db.drop_pattern", statement.name_span)
    if isinstance(statement, DropPattern):
        return "dropped" if drop(opened, flow, statement.name, statement.if_exists) else "none"
    query = text[statement.query.start : statement.query.end]
    existed = statement.name.lower() in opened.patterns
    try:
        create(opened, flow, {statement.name: query}, statement.replace)
    except QueryError as error:
        if error.text != query:
            raise
        at = statement.query.start
        moved = [replace(d, span=Span(d.span.start + at, d.span.end + at)) for d in error.diagnostics]
        raise QueryError(moved, text) from None
    return "replaced" if existed and statement.replace else "created"


def in_order(texts: Mapping[str, str]) -> list[str]:
    """Returns the names of patterns, those that others use before these. texts: by name."""
    named = {name.lower(): text for name, text in texts.items()}
    found: list[str] = []

    def visit(name: str, inside: tuple[str, ...]) -> None:
        if name not in found and name not in inside:
            for other, _ in uses(named[name], named):
                visit(other, (*inside, name))
            found.append(name)

    for name in named:
        visit(name, ())
    written = {name.lower(): name for name in texts}
    return [written[name] for name in found]


def _body(text: str) -> str:
    """Returns the query of a pattern without a semicolon after it. Raises QueryError for a text without a query."""
    check_text(text, "the query of a pattern")
    items = tokenize(text).items
    last = len(items) - 1 - (bool(items) and items[-1].word == ";")
    if last < 0:
        raise fault("HQ100", "there is no query in the text", text)
    return text[: items[last].end]


def _check_name(opened: Opened, name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name):
        raise DataError(f"{name!r} cannot name a pattern", "use letters, digits and underscores, a letter first")
    check_length(name, "pattern")
    if name.lower() in reserved_words() and name.lower() not in opened.patterns:
        raise DataError(f"{name} is a word of SQL, and cannot name a pattern", "choose another name")
    stream = opened.streams.get(name.lower())
    if stream is not None:
        raise DataError(f"{stream.schema.name} is a stream, and cannot name a pattern too", "choose another name")


def refuse_ring(name: str, texts: Mapping[str, str]) -> None:
    """Raises QueryError HQ222 if a pattern is made of itself. texts: of all patterns, by name in lower case."""
    text = texts[name]

    seen: set[str] = set()

    def path(at: str, before: tuple[str, ...]) -> tuple[str, ...] | None:
        if at == name:
            return (*before, at)
        if at in seen:
            return None  # no way leads from there, or one that is looked at is followed already
        seen.add(at)
        ways = (path(other, (*before, at)) for other, _ in uses(texts[at], texts))
        return next((way for way in ways if way is not None), None)

    for other, span in uses(text, texts):
        ring = path(other, ())
        if ring is not None:
            label, hint = " -> ".join((name, *ring)), "a pattern is made of patterns of lower layers"
            raise QueryError([Diagnostic("HQ222", f"the pattern {name} is made of itself", span, label, hint)], text)


def _columns(
    opened: Opened, text: str, texts: Mapping[str, str], without: str = "",
    read: dict[str, ast.ModuleSyntax] | None = None, known: Known | None = None,
) -> tuple[Field, ...]:  # fmt: skip
    """Returns the columns of a pattern over the streams that exist, `without` one of them. read, known: patterns that
    others use, as `parse` and `columns_of` add them. Raises QueryError."""
    streams = {key: stream for key, stream in opened.streams.items() if key != without}
    names = [s.schema.name for s in streams.values()]
    if lacks_input(text):
        raise fault("HQ222", "a named pattern names its stream", text, "write FROM stream before PATTERN",
                    Span(0, len(text)))  # fmt: skip
    query = parse(text, names, texts, known=read)
    if not query.factors or query.kind is not ast.StatementKind.SELECT or query.alert is not None:
        raise fault("HQ222", "a named pattern is a SELECT from MATCH_RECOGNIZE or PATTERN SEQ", text,
                    "write SELECT * FROM stream MATCH_RECOGNIZE ( ... )")  # fmt: skip

    def resolve(name: str) -> Schema:
        stream = streams.get(stream_key(name))
        if stream is None:
            raise LookupError(nearest(name.strip(), names))
        return stream.schema

    return columns_of(query, resolve, binder(opened.access), known)


def _check_users(
    opened: Opened, flow: Flow, name: str, columns: tuple[Field, ...], given: Set[str]
) -> None:
    """Raises DataError if a pattern that others use would get other columns."""
    old = opened.patterns.get(name)
    if old is None:
        return
    users = [user for user in _patterns_of(opened, name) if user.partition(" ")[2].lower() not in given]
    users += _queries_of(flow, name)
    if not users:
        return
    try:
        was = _columns(opened, old.text, {key: p.text for key, p in opened.patterns.items()})
    except QueryError:
        return  # its stream has changed: nothing can use it any more
    before, after = ([(f.name.lower(), f.type) for f in fields] for fields in (was, columns))
    if before != after:
        message = f"pattern {old.name} is used by {', '.join(users)}, and would have other columns"
        raise DataError(message, "drop or close these first, or create a pattern of another name")


def _check_others(opened: Opened, given: Set[str], texts: Mapping[str, str]) -> None:
    """Raises DataError if a pattern that uses new ones would no longer be valid."""
    for key, pattern in opened.patterns.items():
        if key not in given and not given.isdisjoint(used_patterns(pattern.text, texts)):
            try:
                _columns(opened, pattern.text, texts)
            except QueryError as error:
                message = f"pattern {pattern.name}, which uses it, would be invalid: {error.diagnostics[0].message}"
                raise DataError(message, "drop it first, or create a pattern of another name") from None


def readers_of(opened: Opened, stream: str) -> list[str]:
    """Returns the patterns that read a stream, directly or through others: those that are invalid without it."""
    texts = {key: p.text for key, p in opened.patterns.items()}
    return [
        f"pattern {pattern.name}"
        for pattern in opened.patterns.values()
        if _is_valid(opened, pattern.text, texts) and not _is_valid(opened, pattern.text, texts, stream.lower())
    ]


def _is_valid(opened: Opened, text: str, texts: Mapping[str, str], without: str = "") -> bool:
    try:
        _columns(opened, text, texts, without)
    except QueryError:
        return False
    return True


def _patterns_of(opened: Opened, name: str) -> Iterator[str]:
    """Yields the patterns that use a pattern, directly or through others."""
    texts = {key: p.text for key, p in opened.patterns.items()}
    for key, pattern in opened.patterns.items():
        if key != name and name in used_patterns(pattern.text, texts):
            yield f"pattern {pattern.name}"


def _queries_of(flow: Flow, name: str) -> Iterator[str]:
    """Yields the live queries that use a pattern."""
    for query in flow.queries:
        if name in query.alerts.patterns and not query.alerts.done:
            yield query.name


def _keep(opened: Opened, patterns: Mapping[str, NamedPattern]) -> None:
    if opened.path is not None:
        write_patterns(opened.path, patterns)
    opened.patterns = dict(patterns)
