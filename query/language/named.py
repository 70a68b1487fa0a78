"""Named patterns in a text: the statements that create and drop them, the places that name them, and the text in which
FROM reads their rows.

Tables of a name hide a named pattern of the same name, as do entries of WITH. `expanded` puts the query of each pattern
that FROM or JOIN names into WITH: the rest is a statement like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from query.errors import Diagnostic, ExpandedText, Insert, QueryError, Span, check_text
from query.language.build import identifier_of
from query.language.cut import WithEntry, enclosing, with_lists
from query.language.lexer import TokenKind, Tokens, tokenize
from query.language.read import names_box, names_pattern

#: The columns of a named pattern's rows beside its own: the times of its first and last event.
TIMES = ("t0", "t1")
_NAMES = (TokenKind.WORD, TokenKind.QUOTED)
#: Words after which a comma does not continue FROM.
_LISTS = ("SELECT", "WHERE", "BY", "HAVING", "WINDOW", "QUALIFY", "VALUES", "SET", "RETURNING", "RETURN", ";")
_QUERY_HEADS = ("SELECT", "WITH", "FROM", "RETURN")


# ---- statements ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreatePattern:
    """`CREATE [OR REPLACE] PATTERN name AS query`. name_span: of the name; query: the text's stretch of the query."""

    name: str
    name_span: Span
    query: Span
    replace: bool


@dataclass(frozen=True, slots=True)
class DropPattern:
    """`DROP PATTERN [IF EXISTS] name`."""

    name: str
    name_span: Span
    if_exists: bool


#: What streams have in place of statements.
_OF_STREAMS = {"CREATE": "create_stream", "ALTER": "alter_stream", "DROP": "drop_stream"}


def pattern_statement(text: str) -> CreatePattern | DropPattern | None:
    """Returns the statement about a named pattern that a text is, or None if it is another one. Raises QueryError for
    an incomplete one, and for one about a stream."""
    check_text(text)
    head = text.lstrip()[:6].upper()
    if not head.startswith(("CREATE", "DROP", "ALTER", "--", "/*")):
        return None
    tokens = tokenize(text)
    items = tokens.items
    if tokens.words(1, "STREAM") and (method := _OF_STREAMS.get(items[0].word)) is not None:
        raise QueryError([Diagnostic("HQ100", f"{items[0].word} STREAM is no statement", items[1].span, "",
                         f"call db.{method}(...) of hybrid.connect(path)")], text)  # fmt: skip
    replaces = tokens.words(0, "CREATE", "OR", "REPLACE", "PATTERN")
    if not (replaces or tokens.words(0, "CREATE", "PATTERN") or tokens.words(0, "DROP", "PATTERN")):
        return None
    creates = items[0].word == "CREATE"
    i = 4 if replaces else 2
    if_exists = not creates and tokens.words(i, "IF", "EXISTS")
    i += 2 * if_exists
    if creates and tokens.words(i, "IF"):
        raise _expected(tokens, i, "a name", "write CREATE OR REPLACE PATTERN, which replaces an existing one")
    if i >= len(items) or items[i].kind not in _NAMES:
        raise _expected(tokens, i, "the name of the pattern")
    name, span = identifier_of(items[i].text, items[i].span).written, items[i].span
    if not creates:
        end = i + 1 + tokens.words(i + 1, ";")
        if end < len(items):
            raise _expected(tokens, end, "the end of DROP PATTERN")
        return DropPattern(name, span, if_exists)
    if not tokens.words(i + 1, "AS"):
        hint = "write CREATE PATTERN name AS SELECT * FROM stream MATCH_RECOGNIZE ( ... )"
        raise _expected(tokens, i + 1, "AS", hint)
    last = len(items) - 1 - (items[-1].word == ";")
    if last < i + 2:
        raise _expected(tokens, i + 2, "the query of the pattern")
    return CreatePattern(name, span, Span(items[i + 2].start, items[last].end), replaces)


def refuse_pattern_statement(text: str) -> None:
    """Raises QueryError for CREATE PATTERN and DROP PATTERN, where no statement of a database is allowed."""
    found = pattern_statement(text)
    if found is not None:
        what = "CREATE PATTERN" if isinstance(found, CreatePattern) else "DROP PATTERN"
        raise QueryError([Diagnostic("HQ100", f"{what} is a statement of a database", found.name_span, "",
                         "run it with db.sql of hybrid.connect(path), or hybrid sql -d PATH; WITH name AS ( ... ) "
                         "names a pattern in one statement")], text)  # fmt: skip


def _expected(tokens: Tokens, i: int, what: str, hint: str = "") -> QueryError:
    token = tokens.items[i] if i < len(tokens.items) else None
    end = len(tokens.text)
    found, span = ("the end", Span(end, end)) if token is None else (token.text, token.span)
    return QueryError([Diagnostic("HQ100", f"expected {what}, found {found}", span, "", hint)], tokens.text)


# ---- places that name patterns -------------------------------------------------------------------------------------


def boxes(tokens: Tokens) -> Iterator[int]:
    """Yields the tokens that name the pattern of a box: `v AS PATTERN name`, and `PATTERN name v` in SEQ."""
    for i, token in enumerate(tokens.items):
        if token.word == "PATTERN" and names_pattern(tokens, i):
            if tokens.words(i - 1, "AS") or (names_box(tokens, i) and _is_element(tokens, i)):
                yield i + 1


def _is_element(tokens: Tokens, i: int) -> bool:
    """True if an element of SEQ may begin at token i."""
    before = tokens.items[i - 1].word if i else ""
    if before not in ("(", ",", "~", "∼"):
        return False
    around = enclosing(tokens, i)
    if before == "(" and len(around) > 1 and tokens.items[around[-1] - 1].word in ("~", "∼"):
        around = around[:-1]
    return bool(around) and tokens.words(around[-1] - 1, "SEQ", "(")


def written(tokens: Tokens, i: int) -> str:
    """Returns the name at token i, in lower case."""
    return identifier_of(tokens.items[i].text, tokens.items[i].span).written.lower()


def histories(tokens: Tokens, patterns: Mapping[str, str], inputs: Sequence[str]) -> Iterator[int]:
    """Yields the tokens that name a pattern in HISTORY OF."""
    for i in _read(tokens, patterns, inputs):
        if tokens.items[i - 1].word == "OF" and not _is_entry(tokens, i):
            yield i


def entries_seen(tokens: Tokens, i: int) -> Iterator[WithEntry]:
    """Yields the WITH entries that stand before token i where it can see them, the innermost last."""
    for open in (-1, *enclosing(tokens, i)):
        for listed in with_lists(tokens, open, i):
            yield from (e for e in listed.entries if e.close < i)


def entry_around(text: str, place: int) -> str | None:
    """Returns the name of the innermost entry of WITH around a place of a text, None outside of all."""
    tokens = tokenize(text)
    at = next((i for i, token in enumerate(tokens.items) if token.end > place), len(tokens.items))
    found = None
    for open in (-1, *enclosing(tokens, at)):
        entries = [e for listed in with_lists(tokens, open, at) for e in listed.entries if e.open < at < e.close]
        found = tokens.items[entries[0].name] if entries else found
    return None if found is None else identifier_of(found.text, found.span).written


def used_patterns(text: str, patterns: Mapping[str, str], inputs: Sequence[str] = ()) -> dict[str, str]:
    """Returns the named patterns that a statement needs, directly or through others. patterns: texts by name in lower
    case. inputs: the tables and streams, which hide patterns in FROM. A text that cannot be read uses none."""
    found: dict[str, str] = {}
    todo = uses(text, patterns, inputs)
    while todo:
        name, _ = todo.pop()
        if name not in found:
            found[name] = patterns[name]
            todo += uses(patterns[name], patterns)
    return found


def uses(text: str, patterns: Mapping[str, str], inputs: Sequence[str] = ()) -> list[tuple[str, Span]]:
    """Returns the named patterns that a text names itself, each with its place, in the order of the text."""
    if not patterns:
        return []
    try:
        tokens = tokenize(text)
        named = [i for i in boxes(tokens) if written(tokens, i) in patterns and not _is_entry(tokens, i)]
        named += [i for i in _read(tokens, patterns, inputs) if not _is_entry(tokens, i)]
        return [(written(tokens, i), tokens.items[i].span) for i in sorted(named)]
    except QueryError:
        return []  # `parse` reports it


def _is_entry(tokens: Tokens, i: int) -> bool:
    """True if an entry of WITH hides the pattern named at token i."""
    name = written(tokens, i)
    if any(written(tokens, e.name) == name for e in entries_seen(tokens, i)):
        return True
    around = [listed for open in (-1, *enclosing(tokens, i)) for listed in with_lists(tokens, open, i)]
    inside = [e for listed in around if listed.recursive for e in listed.entries if e.open < i < e.close]
    return any(written(tokens, e.name) == name for e in inside)


def _read(tokens: Tokens, patterns: Mapping[str, str], inputs: Sequence[str]) -> Iterator[int]:
    """Yields the tokens that name a pattern where a table may stand."""
    names = patterns.keys() - {name.lower() for name in inputs}
    for i, token in enumerate(tokens.items):
        if token.kind in _NAMES and not tokens.words(i + 1, ".") and not tokens.words(i + 1, "("):
            if token.text.strip('"').lower() in names and written(tokens, i) in names and is_table(tokens, i):
                yield i


def is_table(tokens: Tokens, i: int) -> bool:
    """True if a table may stand at token i: after FROM, JOIN or HISTORY OF, a comma of FROM, or in MERGE ( ... )."""
    before = tokens.items[i - 1].word if i else ""
    match before:
        case "JOIN":
            return not tokens.words(i - 2, ".")
        case "OF":
            return tokens.words(i - 3, "JOIN", "HISTORY")
        case "FROM":
            return _is_from(tokens, i - 1)
        case "," | "(":
            return _continues_from(tokens, i - 1)
    return False


def _is_from(tokens: Tokens, i: int) -> bool:
    """True if the FROM at token i is that of a query, and not of a call such as EXTRACT(year FROM x)."""
    if tokens.words(i - 1, ".") or (tokens.words(i - 1, "DISTINCT") and tokens.words(i - 2, "IS")):
        return False
    if tokens.words(i - 3, "IS", "NOT", "DISTINCT"):
        return False
    return any(tokens.items[at].word in _QUERY_HEADS for at in (*_before(tokens, i), i) if at != i) or (
        i == 0 or tokens.items[i - 1].word in ("(", ")", ";", "UNION", "ALL", "EXCEPT", "INTERSECT", "AS")
    )


def _before(tokens: Tokens, i: int) -> Iterator[int]:
    """Yields the tokens before token i in the same brackets, the nearest first; of brackets only the last token."""
    i -= 1
    while i >= 0 and tokens.items[i].word not in ("(", "[", "{", ";"):
        yield i
        i = tokens.partner[i] - 1 if tokens.items[i].word in (")", "]", "}") else i - 1


def _continues_from(tokens: Tokens, i: int) -> bool:
    """True if the comma or bracket at token i is between or around tables of FROM."""
    if tokens.items[i].word == "(":
        if tokens.words(i - 1, "MERGE"):
            i -= 1
        before = tokens.items[i - 1].word if i else ""
        if before in ("FROM", "JOIN"):
            return before == "JOIN" or _is_from(tokens, i - 1)
        return before in (",", "(") and _continues_from(tokens, i - 1)
    at = i
    for at in _before(tokens, i):
        if tokens.items[at].word == "FROM":
            return _is_from(tokens, at)
        if tokens.items[at].word in _LISTS:
            return False
    opened = at - 1 if at != i else i - 1
    return tokens.words(opened, "(") and _continues_from(tokens, opened)


# ---- FROM a named pattern ------------------------------------------------------------------------------------------


def expanded(
    text: str, inputs: Sequence[str], patterns: Mapping[str, str], inside: tuple[str, ...] = ()
) -> str:
    """Returns a statement with the queries of the named patterns that FROM or JOIN reads as entries of WITH; the text
    itself if it reads none. HISTORY OF a named pattern stays. inside: the patterns that this text is part of, the
    outermost first. Raises QueryError, HQ222, for a pattern made of itself."""
    if not any(name in text.lower() for name in patterns):
        return text
    tokens = tokenize(text)
    added: dict[tuple[int, str], int] = {}
    for i in _read(tokens, patterns, inputs):
        name = written(tokens, i)
        if _is_entry(tokens, i):
            continue
        span = tokens.items[i].span
        if tokens.items[i - 1].word == "OF":
            continue  # read by ranges
        if name in inside:
            ring = " -> ".join((*inside[inside.index(name) :], name))
            raise QueryError([Diagnostic("HQ222", f"the pattern {name} is made of itself", span, ring,
                             "a pattern reads patterns of lower layers")], text)  # fmt: skip
        added.setdefault((_head(tokens, i, name), name), i)
    if not added:
        return text
    inserts: list[Insert] = []
    for head in sorted({head for head, _ in added}):
        listed = tokens.items[head].word == "WITH"
        after = head + listed + (listed and tokens.words(head + 1, "RECURSIVE"))
        names = [name for at, name in added if at == head]
        for k, name in enumerate(names):
            body = expanded(_with_times(patterns[name]), (), patterns, (*inside, name))
            begin = "WITH " if not listed and k == 0 else ""
            end = "\n), " if listed or k + 1 < len(names) else "\n) "
            quoted = '"' + name.replace('"', '""') + '"'
            read_at = tokens.items[added[head, name]].span
            inserts.append(Insert(tokens.items[after].start, f"{begin}{quoted} AS (", body, end, name, read_at))
    return ExpandedText.of(text, inserts)


def _head(tokens: Tokens, i: int, name: str) -> int:
    """Returns the first token of the outermost query around token i whose WITH list may take an entry of a name."""
    found = i
    for open in (-1, *enclosing(tokens, i)):
        head = None
        for at in _before(tokens, i if open == -1 and not enclosing(tokens, i) else _within(tokens, open, i)):
            if tokens.items[at].word in _QUERY_HEADS and not tokens.words(at - 1, "."):
                head = at
        if head is None:
            continue
        lists = [listed for listed in with_lists(tokens, open, len(tokens.items)) if listed.first == head]
        if not any(written(tokens, e.name) == name for listed in lists for e in listed.entries):
            return head
        found = head
    return found


def _within(tokens: Tokens, open: int, i: int) -> int:
    """Returns token i, or the bracket around it that stands directly in the brackets opened at `open`."""
    inner = [at for at in enclosing(tokens, i) if at > open]
    return inner[0] if inner else i


def _with_times(body: str) -> str:
    """Returns the query of a pattern whose SELECT lists columns with the times of its matches among them."""
    tokens = tokenize(body)
    items = tokens.items
    lists = with_lists(tokens, -1, len(items))
    first = lists[0].entries[-1].close + 1 if lists and lists[0].first == 0 else 0
    if not tokens.words(first, "SELECT"):
        return body
    end = next((i for i in _levelled(tokens, first + 1) if items[i].word == "FROM" and _is_from(tokens, i)), None)
    if end is None:
        return body
    one_row = any(tokens.words(i, "ORDER", "BY") for i in range(end, len(items))) and not any(
        tokens.words(i, "ALL", "ROWS", "PER") or tokens.words(i, "PER", "WINDOW") for i in range(end, len(items))
    )
    listed = [i for i in _levelled(tokens, first + 1) if i < end]
    named = {written(tokens, i) for i in listed if items[i].kind in _NAMES}
    if not one_row or any(items[i].word in ("*", "COLUMNS") for i in listed) or tokens.words(first + 1, "DISTINCT"):
        return body  # all columns, or no times
    lacking = [name for name in TIMES if name not in named]
    at = items[end - 1].end
    added = Insert(at, "".join(f", {name}" for name in lacking), "", "", "", Span(at, at))
    return ExpandedText.of(body, [added]) if lacking else body


def _levelled(tokens: Tokens, i: int) -> Iterator[int]:
    """Yields the tokens from token i on that are in no further brackets."""
    while i < len(tokens.items):
        yield i
        i = tokens.partner[i] + 1 if tokens.items[i].word in ("(", "[", "{") else i + 1
