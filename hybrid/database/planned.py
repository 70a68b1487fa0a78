"""Planning of a live query over the streams of a database, with its outer SELECT."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from hybrid.rows.duck import Access, binder, interruptible
from hybrid.rows.faults import fault
from hybrid.rows.inputs import fields_of, to_arrow
from hybrid.rows.outer import Outer
from hybrid.watch.chain import outermost, plan_streams, stream_key, streams_beside
from hybrid.watch.stream import Stream
from query.errors import nearest
from query.language import ast
from query.language.lexer import tokenize, words_of
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import QueryPlan
from query.schema import Schema

#: Words that follow a table or a condition, in statements that are no filter of one stream.
_ENDS = words_of(
    "JOIN LEFT RIGHT FULL INNER CROSS NATURAL ASOF SEMI ANTI USING TABLESAMPLE GROUP ORDER HAVING LIMIT OFFSET QUALIFY "
    "WINDOW SELECT UNION EXCEPT INTERSECT ,"
)


@dataclass(frozen=True, slots=True)
class Planned:
    """static: static tables by name. streams: those that its patterns read, and those whose history inner patterns
    are joined with; histories: those whose history its rows are joined with; all by name in lower case. patterns: the
    named patterns that it uses."""

    query: ast.QuerySyntax
    plan: QueryPlan
    outer: Outer
    static: Mapping[str, pa.Table]
    streams: Mapping[str, Stream]
    histories: Mapping[str, Stream]
    patterns: Mapping[str, str]


def planned(
    text: str, tables: Mapping[str, Any], streams: Mapping[str, Stream], access: Access, patterns: Mapping[str, str]
) -> Planned:
    """Plans a live query over streams and named tables. access: what its SQL may read. patterns: the named patterns
    that it uses. Raises QueryError."""
    query = parse(text, tuple(s.schema.name for s in streams.values()), patterns or None, tuple(tables))
    if not query.factors:
        raise fault("HQ400", "a live query needs FROM stream MATCH_RECOGNIZE (...)", text, _as_pattern(text, streams))

    def resolve(name: str) -> Schema:
        stream = streams.get(stream_key(name))
        if stream is None:
            raise LookupError(nearest(name.strip(), [s.schema.name for s in streams.values()]))
        return stream.schema

    words = {w.lower() for w in re.findall(r"\w+", query.text)}
    with interruptible():
        static = {name: to_arrow(data, name, access) for name, data in tables.items() if name.lower() in words}
        relations = {name: fields_of(t) for name, t in static.items()}
        plan = bind(query, resolve, live=True, relations=relations, describe=binder(access))
        outer = Outer(outermost(plan), static, access)
        outer.schema()  # DuckDB checks the outer SELECT before any event
    joined = [name for h in plan.factors[-1].histories for name in h.streams]
    read = {name: streams[name] for name in (*plan_streams(plan), *streams_beside(plan))}
    return Planned(query, plan, outer, static, read, {name: streams[name] for name in joined}, patterns)


def _as_pattern(text: str, streams: Mapping[str, Stream]) -> str:
    """Returns a hint: the statement with its filter as a pattern of one row, if it filters one stream; otherwise what
    answers it."""
    tokens = tokenize(text)
    items = tokens.items
    at = next((i for i in range(len(items)) if tokens.words(i, "FROM")), len(items))
    stream = streams.get(items[at + 1].text.strip('"').lower()) if at + 1 < len(items) else None
    behind = at + 2 + tokens.words(at + 2, "AS")
    alias = items[behind].text if behind < len(items) and items[behind].word not in ("WHERE", ";", *_ENDS) else ""
    where = behind + bool(alias)
    end = next((i for i in range(where, len(items)) if items[i].word in (";", *_ENDS)), len(items))
    more = end < len(items) and items[end].word != ";"
    if stream is None or more or "(" in (token.word for token in items[:where]):
        return "db.sql answers it from the events so far"
    define = ""
    if tokens.words(where, "WHERE"):
        own, shown = {alias.lower(), stream.schema.name.lower()}, text[: items[end - 1].end]
        for i in reversed(range(where + 1, end - 1)):  # a condition names the columns alone
            if items[i].text.strip('"').lower() in own and tokens.words(i + 1, "."):
                shown = shown[: items[i].start] + shown[items[i + 1].end :]
        define = f" DEFINE A AS {shown[items[where + 1].start :]}"
    time = stream.schema.time
    return f"FROM {items[at + 1].text} MATCH_RECOGNIZE (ORDER BY {time} ALL ROWS PER MATCH PATTERN (A){define})"
