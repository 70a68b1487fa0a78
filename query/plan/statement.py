"""The outer SELECT: pattern factors and history joins replaced by tables, and DuckDB's errors about the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from query.errors import Diagnostic, Span, first_line, nearest
from query.language import duck
from query.language.ast import HistoryKind, PatternFactor
from query.language.cut import with_lists
from query.language.duck import DuckFault, Node
from query.language.lexer import TokenKind, tokenize
from query.language.pieces import ComposedSql, SqlPiece
from query.plan.bind_faults import volatile_diagnostic
from query.plan.expression import quote
from query.plan.fingerprint import names_a_file
from query.plan.typed import type_diagnostic
from query.schema import Field

FACTOR_TABLE = "__hybrid_factor_"
HISTORY_TABLE = "__hybrid_history_"

#: A name that is a whole input, with or without quotes.
BARE_NAME = re.compile(r'\s*("(?:[^"]++|"")*+"|[^\W\d]\w*)\s*')

#: History joins that add the columns of PA to the rows of PL.
JOINING = (HistoryKind.JOIN, HistoryKind.LEFT, HistoryKind.NEAREST, HistoryKind.LEFT_NEAREST)


def unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def rewrite(text: str, cuts: Sequence[tuple[Span, str]], inside: Span | None = None) -> ComposedSql:
    """Returns the query's text, or text[inside], with the stretches of `cuts` in it replaced. Of nested cuts the outer
    one counts."""
    inside = inside or Span(0, len(text))
    pieces: list[SqlPiece] = []
    at = inside.start
    for span, sql in sorted(cuts, key=lambda cut: (cut[0].start, -cut[0].end)):
        if span.start < at or span.end > inside.end:
            continue
        if at < span.start:
            pieces.append(SqlPiece(text[at : span.start], Span(at, span.start), True))
        if sql:
            pieces.append(SqlPiece(sql, span, False))
        at = span.end
    if at < inside.end:
        pieces.append(SqlPiece(text[at : inside.end], Span(at, inside.end), True))
    return ComposedSql(tuple(pieces))


def input_statement(text: str, factor: PatternFactor, cuts: Sequence[tuple[Span, str]]) -> ComposedSql:
    """Returns the SELECT of a factor's input, with the WITH lists that it sees."""
    pieces: list[SqlPiece] = []

    def ours(sql: str) -> SqlPiece:
        return SqlPiece(sql, factor.input_span, False)

    lists = [scope for scope in factor.scopes if scope.names]
    for i, scope in enumerate(lists):
        pieces += [ours("SELECT * FROM (")] if i else []
        pieces += [*rewrite(text, cuts, scope.span).pieces, ours(" ")]
    pieces += [ours("SELECT * FROM "), *rewrite(text, cuts, factor.input_span).pieces]
    pieces += [ours(")")] * (len(lists) - 1)
    return ComposedSql(tuple(pieces))


def only_read(sql: str) -> str:
    """Returns the SELECT of an input without the entries of its first WITH list that it does not read: so that layers
    of a hierarchy that read the same have the same text."""
    tokens = tokenize(sql)
    listed = next((of for of in with_lists(tokens, -1, len(tokens.items)) if of.first == 0 and not of.recursive), None)
    if listed is None:
        return sql
    entries = {tokens.items[e.name].text.strip('"').lower(): e for e in listed.entries}
    read: set[str] = set()
    todo = [range(listed.entries[-1].close + 1, len(tokens.items))]
    while todo:
        names = {tokens.items[i].text.strip('"').lower() for i in todo.pop()} & entries.keys()
        todo += [range(entries[name].open, entries[name].close) for name in names - read]
        read |= names
    kept = [sql[tokens.items[e.name].start : tokens.items[e.close].end] for name, e in entries.items() if name in read]
    behind = sql[tokens.items[listed.entries[-1].close].end :].strip()
    return f"WITH {', '.join(kept)} {behind}" if kept else behind


def tables_of(statement: ComposedSql) -> set[str]:
    """The names of the tables that a SELECT reads, in lower case; none if it cannot be parsed."""
    try:
        tree = duck.parse_statement(statement.sql)
    except DuckFault:
        return set()
    return {str(node["table_name"]).lower() for node in _nodes(tree) if node.get("type") == "BASE_TABLE"}


def rows_as_values(sql: str) -> set[str]:
    """Returns the names of the tables of which a SELECT may read whole rows as values, as in SELECT t FROM t, in lower
    case; none if it cannot be parsed."""
    try:
        nodes = list(_nodes(duck.parse_statement(sql)))
    except DuckFault:
        return set()
    tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
    named = {str(node["alias"] or node["table_name"]).lower(): str(node["table_name"]).lower() for node in tables}
    columns = [node["column_names"] for node in nodes if node.get("class") == "COLUMN_REF"]
    return {named[str(path[0]).lower()] for path in columns if len(path) == 1 and str(path[0]).lower() in named}


def factors_in(sql: str) -> tuple[int, ...]:
    """Returns the pattern factors whose rows a SELECT reads; unread entries of WITH do not count."""
    if FACTOR_TABLE not in sql:
        return ()
    found = _relations(sql)
    return tuple(sorted(int(name.removeprefix(FACTOR_TABLE)) for name in found if name.startswith(FACTOR_TABLE)))


def origins(sqls: Sequence[str], patterns: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the origins of inputs for the fingerprint: of streams and tables their names, in lower case; of patterns
    their fingerprints; of each SELECT its words. Files have no name here: they may be moved.

    sqls: each a bare name or a SELECT. patterns: fingerprints, by the tables that stand for patterns."""
    found: set[str] = set()
    selects: list[str] = []
    for sql in sqls:
        bare = BARE_NAME.fullmatch(sql)
        found |= {unquoted(bare[1]).lower()} if bare else _relations(sql)
        selects += [] if bare else [_words_of(sql)]
    return (*sorted(patterns.get(name, name) for name in found if not names_a_file(name)), *selects)


def _words_of(sql: str) -> str:
    """Returns a SELECT without layout, comments, case that does not matter, and the names of files, which follow FROM
    or JOIN or are arguments of a function there."""
    tokens = tokenize(sql)
    words: list[str] = []
    files_until = -1
    for i, token in enumerate(tokens.items):
        read = i > 0 and tokens.items[i - 1].word in ("FROM", "JOIN")
        if token.kind is TokenKind.WORD and read and tokens.words(i + 1, "("):
            files_until = max(files_until, tokens.partner[i + 1])
        given = i < files_until and tokens.items[i - 1].word in ("(", "[", ",")
        name = unquoted(token.text)
        if token.kind is TokenKind.STRING:
            words.append("file" if read or given else token.text)
        elif token.kind is TokenKind.QUOTED:
            words.append("file" if read and names_a_file(name) else quote(name.lower()))
        else:
            words.append(quote(name.lower()) if token.kind is TokenKind.WORD else token.text)
    return " ".join(words)


def _relations(sql: str) -> set[str]:
    """The tables that a SELECT reads, in lower case; none if it cannot be parsed."""
    try:
        tree = duck.parse_statement(sql)
    except DuckFault:
        return set()
    found: set[str] = set()
    _read(tree, {}, found)
    return found


def _read(value: Any, entries: Mapping[str, Node], found: set[str]) -> None:
    """Adds the tables that a part of a syntax tree reads. entries: of the WITH lists around it."""
    if isinstance(value, list):
        for item in value:
            _read(item, entries, found)
    elif isinstance(value, dict):
        if "cte_map" in value:
            own = {str(e["key"]).lower(): e["value"]["query_node"] for e in value["cte_map"]["map"]}
            entries = {**entries, **own}
        name = str(value.get("table_name", "")).lower()
        if value.get("type") == "BASE_TABLE" and name in entries:
            _read(entries[name], {k: e for k, e in entries.items() if k != name}, found)
        elif value.get("type") == "BASE_TABLE":
            found.add(name)
        for key, child in value.items():
            if key != "cte_map":
                _read(child, entries, found)


def same_input(sql: str) -> str:
    """Returns a text that is equal for inputs that are equal but for layout and entries of WITH that they do not read.
    sql: a bare name or a SELECT."""
    bare = BARE_NAME.fullmatch(sql)
    if bare:
        return unquoted(bare[1]).lower()
    try:
        tree = duck.parse_statement(sql)
    except DuckFault:
        return sql
    read: set[str] = set()
    _note_entries(tree, read)
    return json.dumps(_pruned(tree, read), sort_keys=True)


def _note_entries(node: Node, read: set[str]) -> None:
    """Adds the entries of the WITH list of a query that it reads, directly or through others."""
    entries = {str(e["key"]).lower(): e["value"]["query_node"] for e in node.get("cte_map", {}).get("map", [])}
    todo: list[Any] = [{key: value for key, value in node.items() if key != "cte_map"}]
    while todo:
        for part in _nodes(todo.pop()):
            name = str(part.get("table_name", "")).lower()
            if name in entries and name not in read:
                read.add(name)
                todo.append(entries[name])


def _pruned(value: Any, read: set[str]) -> Any:
    """Returns a part of a syntax tree without places in the text and without entries of WITH that are not read."""
    if isinstance(value, list):
        return [_pruned(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _pruned(child, read) for key, child in value.items() if key != "query_location"}
    if "cte_map" in value:
        found["cte_map"] = [
            [str(e["key"]).lower(), _pruned(e["value"], read)] for e in value["cte_map"]["map"]
            if str(e["key"]).lower() in read
        ]  # fmt: skip
    return found


def picks_only(sql: str) -> bool:
    """True if a SELECT only picks columns of one table, or of rows joined with history: no condition, no grouping, no
    order."""
    try:
        node = duck.parse_statement(sql)
    except DuckFault:
        return False
    if node["type"] != "SELECT_NODE" or not _one_table(node["from_table"]) or node["modifiers"]:
        return False
    more = (node[part] for part in ("where_clause", "having", "qualify", "group_expressions", "sample"))
    return not any(more) and all(item["type"] in ("STAR", "COLUMN_REF") for item in node["select_list"])


def _one_table(table: Node) -> bool:
    """True for a table, and for a factor beside the histories that it is joined with."""
    if table["type"] == "JOIN":
        return table["ref_type"] == "POSITIONAL" and _one_table(table["left"]) and _one_table(table["right"])
    return bool(table["type"] == "BASE_TABLE")


def origin(sql: str, column: str) -> tuple[str, str] | None:
    """Returns the table and column of which an output column of a SELECT is an unchanged copy; None if it is no
    copy."""
    try:
        return _origin_in(duck.parse_statement(sql), column.lower(), {})
    except DuckFault:
        return None


def _origin_in(node: Node, column: str, entries: Mapping[str, Node]) -> tuple[str, str] | None:
    """Returns the origin of a column of a node. entries: the WITH lists that the node sees."""
    if node["type"] != "SELECT_NODE":
        return None
    entries = {**entries, **{str(e["key"]).lower(): e["value"]["query_node"] for e in node["cte_map"]["map"]}}
    for item in node["select_list"]:
        if item["type"] == "STAR":
            changed = ("exclude_list", "replace_list", "rename_list", "qualified_exclude_list")
            plain = not (any(item[name] for name in changed) or item["expr"] or item["columns"])
            found = _origin_from(node["from_table"], column, item["relation_name"].lower(), entries) if plain else None
            if found is not None or not plain:
                return found
        elif item["type"] == "COLUMN_REF":
            *qualifier, name = (str(n).lower() for n in item["column_names"])
            if (str(item["alias"]) or name).lower() == column and len(qualifier) <= 1:
                return _origin_from(node["from_table"], name, "".join(qualifier), entries)
        elif str(item["alias"]).lower() == column:
            return None
    return None


def _origin_from(
    table: Node, column: str, qualifier: str, entries: Mapping[str, Node]
) -> tuple[str, str] | None:
    """Returns the origin of a column of a table of FROM. qualifier: the table's name there, or empty."""
    if table["type"] == "JOIN":
        left = _origin_from(table["left"], column, qualifier, entries)
        return left if left is not None else _origin_from(table["right"], column, qualifier, entries)
    if table["type"] not in ("BASE_TABLE", "SUBQUERY") or table["column_name_alias"]:
        return None
    called = str(table["alias"] or table.get("table_name", "")).lower()
    if qualifier not in ("", called):
        return None
    if table["type"] == "SUBQUERY":
        return _origin_in(table["subquery"]["node"], column, entries)
    name = str(table["table_name"])
    inner = entries.get(name.lower())
    if inner is not None:
        return _origin_in(inner, column, {k: e for k, e in entries.items() if k != name.lower()})
    return (name, column) if name.startswith((FACTOR_TABLE, HISTORY_TABLE)) else None


#: Hint for a statement that reads a forbidden file.
NO_ACCESS = "only files that were named may be read: hybrid.connect(..., external=False, files=[...])"


class Describe(Protocol):
    """Asks DuckDB for the output columns of a SELECT over these tables and everything else it knows; other statements
    (select=False) are only bound. Raises DuckFault with character offsets."""

    def __call__(
        self, sql: str, tables: Mapping[str, Sequence[Field]], select: bool = True, /
    ) -> tuple[Field, ...]: ...


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a statement may use. tables: columns by name; shown: the same for tables whose columns the user
    renames. aliases: the user's name of each generated table; silent: aliases of SEMI and ANTI histories, which add no
    columns.
    """

    tables: Mapping[str, Sequence[Field]]
    shown: Mapping[str, Sequence[Field]]
    aliases: Mapping[str, str]
    silent: frozenset[str]


def check(
    statement: ComposedSql, text: str, names: Names, describe: Describe, select: bool = True
) -> tuple[Field, ...] | Diagnostic:
    """Returns the output columns of the statement, or DuckDB's error about it."""
    sql = statement.sql
    try:
        return describe(sql, names.tables, select)
    except DuckFault as fault:
        return _diagnostic(fault, statement, text, names)


def _diagnostic(fault: DuckFault, statement: ComposedSql, text: str, names: Names) -> Diagnostic:
    tables, aliases = {**names.tables, **names.shown}, names.aliases
    message = fault.message
    for table, alias in aliases.items():
        message = message.replace(table, alias)
    said = first_line(message) if message else "DuckDB refuses the statement"
    column = re.search(r'Referenced column "(.+?)" (?:was )?not found', said)
    of_table = re.search(r'(?:Table|Values list) "(.+?)" does not have a column named "(.+?)"', said)
    table_missing = re.search(r'Referenced table "(.+?)" not found', said)

    def place(name: str) -> Span:
        """Returns the span of the name: at DuckDB's position if that is in the user's text, else searched for."""
        if fault.start is not None and fault.end is not None:
            found = _find(name, text, statement.origin(fault.start, fault.end))
            if found is not None:
                return found
        for piece in statement.pieces:
            found = _find(name, text, piece.span) if piece.verbatim else None
            if found is not None:
                return found
        return Span(0, len(text))

    if column or of_table:
        name = column[1] if column else of_table[2] if of_table else ""
        read = _tables_read(statement.sql)
        known = [f.name for t, fields in tables.items() if t.lower() in read for f in fields]
        if of_table:
            known = next((_names(tables, t) for t, a in aliases.items() if a.lower() == of_table[1].lower()), known)
        hint = nearest(name, list(dict.fromkeys(known)))
        of_input = any(f.name.lower() == name.lower() for fields in tables.values() for f in fields)
        if of_input and known:
            hint = f"the pattern returns {', '.join(list(dict.fromkeys(known))[:12])}: add {name} to MEASURES"
        where = f"{of_table[1]} has no column {name}" if of_table else f"unknown column {name}"
        return Diagnostic("HQ201", where, place(name), "no such column", hint)
    if missing := re.match(r"Values were not provided for the following.* parameters: (\w+)", said):
        name = "?" if missing[1].isdecimal() and f"${missing[1]}" not in text else f"${missing[1]}"
        hint = "give it a value: params=" + ("[5]" if missing[1].isdecimal() else f'{{"{missing[1]}": 5}}')
        at = text.find(name)
        return Diagnostic("HQ100", f"{name} has no value", Span(at, at + len(name)), "", hint)
    if table_missing:
        name = table_missing[1]
        hint = nearest(name, list(aliases.values()))
        if name.lower() in names.silent:
            hint = f"SEMI JOIN and ANTI JOIN add no columns: {name} is allowed only in ON"
        return Diagnostic("HQ200", f"table {name} is not in scope", place(name), "no such table", hint)
    if fault.kind == "MISSING_ENTRY" and fault.what == "Table":
        known_tables = [t for t in tables if t not in aliases]
        hint = nearest(fault.name, known_tables) if known_tables else ""
        return Diagnostic("HQ200", f"unknown table {fault.name}", place(fault.name), "no such table", hint)
    if fault.kind == "MISSING_ENTRY" and fault.name:
        return type_diagnostic(fault, place(fault.name), outside=True)
    span = Span(0, len(text))
    if fault.start is not None and fault.end is not None:
        span = statement.origin(fault.start, fault.end)
    if said.startswith("Ambiguous reference to column"):
        return Diagnostic("HQ201", said, span, "in more than one table")
    if fault.kind in ("SYNTAX_ERROR", "parser", "Parser"):
        return Diagnostic("HQ100", said, span)
    if fault.kind == "Permission":
        return Diagnostic("HQ100", said, span, "", NO_ACCESS)
    if fault.kind == "IO":
        return Diagnostic("HQ200", said, span)
    if fault.kind in ("NO_MATCHING_FUNCTION", "Binder", "Conversion"):
        return type_diagnostic(DuckFault(message, fault.kind, fault.name, fault.what, None, None), span)
    return Diagnostic("HQ100", said, span)


def _tables_read(sql: str) -> frozenset[str]:
    """Returns the names, lower case, of the tables that FROM of a SELECT reads, itself or in its parts."""
    try:
        tree = duck.parse_statement(sql)
    except DuckFault:
        return frozenset()
    return frozenset(str(n["table_name"]).lower() for n in _nodes(tree) if n.get("type") == "BASE_TABLE")


def _names(tables: Mapping[str, Sequence[Field]], table: str) -> list[str]:
    return [f.name for f in tables.get(table, ())]


def _find(name: str, text: str, span: Span) -> Span | None:
    """Returns the last occurrence of a name, as a word of its own, in text[span]."""
    pattern = rf'"{re.escape(name)}"|(?<!\w){re.escape(name)}(?!\w)'
    found = list(re.finditer(pattern, text[span.start : span.end], re.IGNORECASE))
    return Span(span.start + found[-1].start(), span.start + found[-1].end()) if found else None


# ---- clauses that a live or hybrid query may not contain ---------------------------------------------------------


def volatile_calls(statement: ComposedSql) -> list[Diagnostic]:
    """Returns HQ213 for now(), random() and the like in the SELECT."""
    try:
        tree = duck.parse_statement(statement.sql)
    except DuckFault:
        return []
    found: list[Diagnostic] = []
    for node in _nodes(tree):
        name = ""
        if node.get("class") == "FUNCTION":
            name = str(node["function_name"])
        elif node.get("class") == "COLUMN_REF" and str(node["column_names"][0]).lower() in duck.CLOCK_WORDS:
            name = str(node["column_names"][0])
        if duck.is_volatile(name.lower(), len(node.get("arguments", ()))):
            found.append(volatile_diagnostic(name, _origin(statement, node)))
    return found


#: By first word of a clause: its name, and an alternative to it.
_INSTEAD = {
    "GROUP": "aggregate in MEASURES, or over the fetched tables",
    "HAVING": "filter with WHERE, or over the fetched tables",
    "DISTINCT": "make matches distinct by AFTER MATCH SKIP, or over the fetched tables",
    "ORDER": "matches come in the order of their emission; sort the fetched tables",
    "LIMIT": "stop fetching when there is enough",
    "UNION": "watch each query on its own",
    "EXCEPT": "watch each query on its own, or use ANTI JOIN HISTORY",
    "INTERSECT": "watch each query on its own, or use SEMI JOIN HISTORY",
    "SAMPLE": "filter with WHERE",
}
_MODIFIERS = {"ORDER_MODIFIER": "ORDER", "DISTINCT_MODIFIER": "DISTINCT"}  # LIMIT has several
_CLAUSE = {"GROUP": "GROUP BY", "ORDER": "ORDER BY"}


def unbounded_clauses(statement: ComposedSql) -> list[Diagnostic]:
    """Returns the clauses that would need all matches of a live query, which never ends (HQ400)."""
    try:
        tree = duck.parse_statement(statement.sql)
    except DuckFault:
        return []
    found: list[Diagnostic] = []
    _visit(tree, frozenset(), statement, found)
    return list(dict.fromkeys(found))


def _visit(node: Node, unbounded: frozenset[str], statement: ComposedSql, found: list[Diagnostic]) -> bool:
    """Checks one query node. Returns True if its rows never end. unbounded: names of WITH whose rows never end."""
    for entry in node.get("cte_map", {}).get("map", []):
        if _visit(entry["value"]["query_node"], unbounded, statement, found):
            unbounded |= {str(entry["key"]).lower()}
    if node["type"] != "SELECT_NODE":
        parts = [p for p in (*(node.get("children") or ()), node.get("left"), node.get("right")) if p]
        visited = [_visit(p, unbounded, statement, found) for p in parts]
        if any(visited):
            word = str(node.get("setop_type", "UNION"))
            found.append(_refusal(word if word in _INSTEAD else "UNION", word, None, statement))
            _check_modifiers(node, statement, found)
        return any(visited)
    live = _from(node["from_table"], unbounded, statement, found)
    for part in _nodes([node["select_list"], node["where_clause"], node["having"], node["qualify"]]):
        if part.get("class") == "SUBQUERY" and _visit(part["subquery"]["node"], unbounded, statement, found):
            found.append(Diagnostic(
                "HQ400", "a subquery has no answer on an unbounded stream", _origin(statement, part),
                "waits for the last match", "put the stream's matches into FROM"))  # fmt: skip
    if not live:
        return False
    if node["group_expressions"] or node["group_sets"]:
        first = node["group_expressions"][0] if node["group_expressions"] else None
        found.append(_refusal("GROUP", "GROUP BY", first, statement))
    if node["having"]:
        found.append(_refusal("HAVING", "HAVING", node["having"], statement))
    if node["sample"]:
        found.append(_refusal("SAMPLE", "SAMPLE", None, statement))
    _check_modifiers(node, statement, found)
    for part in _own_nodes([node["select_list"], node["where_clause"], node["qualify"]]):
        if part.get("class") == "WINDOW":
            found.append(Diagnostic(
                "HQ400", "a window function has no answer on an unbounded stream", _origin(statement, part),
                "waits for the last match", "compute it in MEASURES, or over the fetched tables"))  # fmt: skip
        elif part.get("class") == "FUNCTION" and str(part["function_name"]).lower() in duck.aggregate_names():
            found.append(Diagnostic(
                "HQ400", f"{part['function_name'].removesuffix('_star')} has no answer on an unbounded stream",
                _origin(statement, part), "waits for the last match",
                "aggregate in MEASURES, or over the fetched tables"))  # fmt: skip
    return True


def _check_modifiers(node: Node, statement: ComposedSql, found: list[Diagnostic]) -> None:
    for modifier in node["modifiers"]:
        word = _MODIFIERS.get(modifier["type"], "LIMIT")
        found.append(_refusal(word, _CLAUSE.get(word, word), modifier, statement))


def _from(node: Node | None, unbounded: frozenset[str], statement: ComposedSql, found: list[Diagnostic]) -> bool:
    """True if a table of FROM never ends; checks the subqueries in it."""
    if node is None:
        return False
    match node["type"]:
        case "BASE_TABLE":
            name = str(node["table_name"])
            return name.startswith((FACTOR_TABLE, HISTORY_TABLE)) or name.lower() in unbounded
        case "JOIN":
            left, right = (_from(node[side], unbounded, statement, found) for side in ("left", "right"))
            kind = str(node["join_type"])
            if (left and kind in ("RIGHT", "OUTER", "FULL")) or (right and kind not in ("INNER", "RIGHT")):
                found.append(Diagnostic(
                    "HQ400", f"this {kind} JOIN has no answer on an unbounded stream", _origin(statement, node),
                    "waits for the last match",
                    "let the stream's matches lead: ... AS m LEFT JOIN table ON ..."))  # fmt: skip
            return left or right
        case "SUBQUERY":
            return _visit(node["subquery"]["node"], unbounded, statement, found)
        case _:
            # PIVOT and the like: unbounded if any part of it is
            inner = [n for n in _nodes(node) if n is not node and n.get("type") in ("BASE_TABLE", "JOIN", "SUBQUERY")]
            visited = [_from(n, unbounded, statement, found) for n in inner]
            return any(visited)


def _refusal(word: str, clause: str, node: Any, statement: ComposedSql) -> Diagnostic:
    return Diagnostic(
        "HQ400", f"{clause} has no answer on an unbounded stream", _keyword(word, clause, node, statement),
        "waits for the last match", _INSTEAD.get(word, ""))  # fmt: skip


def _keyword(word: str, clause: str, node: Any, statement: ComposedSql) -> Span:
    """Returns the span of the clause's words: the last ones before its first expression, or the first of the
    statement."""
    starts = [n["query_location"] for n in _nodes(node) if 0 <= n.get("query_location", -1) < len(statement.sql)]
    pattern = r"\b" + r"\s+".join(map(re.escape, clause.split())) + r"\b"
    hits = list(re.finditer(pattern, statement.sql, re.IGNORECASE))
    before = [m for m in hits if starts and m.start() < min(starts)]
    hit = before[-1] if before else hits[0] if hits else None
    return statement.origin(hit.start(), hit.end()) if hit else statement.origin(0, len(statement.sql))


def _origin(statement: ComposedSql, node: Node) -> Span:
    found = duck.span_in(node)
    return statement.origin(*found) if found else statement.origin(0, len(statement.sql))


def _nodes(value: Any) -> list[Node]:
    """All nodes of a syntax tree."""
    found: list[Node] = []
    if isinstance(value, dict):
        if "type" in value:
            found.append(value)
        for child in value.values():
            found += _nodes(child)
    elif isinstance(value, list):
        for child in value:
            found += _nodes(child)
    return found


def _own_nodes(value: Any) -> list[Node]:
    """Nodes of a query's own expressions, not of subqueries in them."""
    found: list[Node] = []
    if isinstance(value, dict):
        if value.get("class") == "SUBQUERY":
            return found
        if "type" in value:
            found.append(value)
        for child in value.values():
            found += _own_nodes(child)
    elif isinstance(value, list):
        for child in value:
            found += _own_nodes(child)
    return found
