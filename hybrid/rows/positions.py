"""Decides whether the rows of a relation have positions, which break ties of ORDER BY.

Rows of tables, frames and files have positions. SELECTs keep them where DuckDB preserves the order: one table in FROM,
WHERE, a list of columns, LIMIT, UNION ALL, views and subqueries of these. After joins, aggregates, DISTINCT, window
functions and ORDER BY the order is undefined.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import duckdb

from hybrid.rows import duck

#: With more constants, DuckDB may turn an IN list into a join, which loses the order of rows.
IN_MAX = 5
_VIEWS = "SELECT lower(schema_name), lower(view_name), sql FROM duckdb_views() WHERE NOT internal"
_MACROS = "SELECT lower(function_name) FROM duckdb_functions() WHERE function_type = 'table_macro'"
_KEEPS_ORDER = "SELECT current_setting('preserve_insertion_order')"
#: Parts of a SELECT and classes of expressions that lose positions.
_PARTS = ("group_expressions", "group_sets", "having", "sample", "qualify")
_CLASSES = ("SUBQUERY", "WINDOW")
#: Table functions that run a statement they are given.
_DYNAMIC = {"query", "query_table"}


def of_relation(relation: duckdb.DuckDBPyRelation) -> bool:
    """True if the rows of a DuckDB relation have positions."""

    def run(sql: str) -> list[tuple[Any, ...]]:
        found = relation.query("__hybrid_relation", sql)
        return [] if found is None else found.fetchall()

    try:
        return of_select(relation.sql_query(), run)
    except duckdb.Error:  # the relation has no text, or its connection is closed
        return False


def of_select(
    sql: str, run: Callable[[str], list[tuple[Any, ...]]], named: Callable[[str], bool | None] = lambda name: None,
    in_max: float = IN_MAX, table_macros: Callable[[], Collection[str]] | None = None,
) -> bool:  # fmt: skip
    """True if the rows of a SELECT have positions.

    run: queries the connection of the SELECT. named: for a lower-case name that we provide instead of the connection,
    True if its rows have positions; None for other names. in_max: longest IN list that keeps positions.
    table_macros: returns those of the connection (None: asks it, which takes 10 ms)."""
    if not run(_KEEPS_ORDER)[0][0]:
        return False
    views = {(str(schema), str(name)): str(text) for schema, name, text in run(_VIEWS)}

    @cache
    def macros() -> set[str]:
        known = [name for (name,) in run(_MACROS)] if table_macros is None else table_macros()
        return {*known, *_DYNAMIC}

    def of_table(schema: str, name: str) -> bool:
        known = None if schema else named(name)
        if known is not None:
            return known
        meant = [view for view in views if view[1] == name and schema in ("", view[0])]
        # popped: a view that names itself means a view of another schema
        return all(of_text(_body(text)) for text in [views.pop(view) for view in meant])

    def of_text(text: str | None) -> bool:
        tree = None if text is None else _tree(text)
        return tree is not None and _longest_list(tree) <= in_max and _of_node(tree, of_table, macros, frozenset())

    return of_text(sql)


def _tree(sql: str) -> Any:
    """Returns DuckDB's syntax tree of one SELECT, or None."""
    row = duck.cursor().execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    tree: Any = json.loads(row[0]) if row else {"error": True}
    return None if tree.get("error") or len(tree["statements"]) != 1 else tree["statements"][0]["node"]


def _body(view: str) -> str | None:
    """Returns the SELECT of a CREATE VIEW, or None if it is not found."""
    places = (match.end() for match in re.finditer(r"\bAS\b", view))
    return next((view[at:] for at in places if _tree(view[at:]) is not None), None)


def _of_node(
    node: Any, of_table: Callable[[str, str], bool], macros: Callable[[], set[str]], ctes: frozenset[str]
) -> bool:
    """True if the rows of a query node have positions. ctes: names of WITH entries, all with positions."""
    limits = ("LIMIT_MODIFIER",)
    if any(m["type"] not in limits or m["limit_type"] != "ROW_COUNT" for m in node["modifiers"]):
        return False
    given = node["cte_map"]["map"]
    if node["type"] == "SET_OPERATION_NODE":  # here DuckDB may materialize WITH entries, in undefined order
        parts = node.get("children") or [node.get("left"), node.get("right")]
        all_rows = node["setop_type"] == "UNION" and node["setop_all"] and not given and not ctes
        return all_rows and all(part is not None and _of_node(part, of_table, macros, ctes) for part in parts)
    if node["type"] != "SELECT_NODE" or any(node[part] for part in _PARTS):
        return False
    if node["aggregate_handling"] != "STANDARD_HANDLING":  # GROUP BY ALL
        return False
    for entry in given:
        query = entry["value"]
        materialized = query["materialized"] == "CTE_MATERIALIZE_ALWAYS"
        if materialized or not _of_node(query["query_node"], of_table, macros, ctes):
            return False
        ctes |= {str(entry["key"]).lower()}
    if not _plain([node["select_list"], node["where_clause"]]):
        return False
    return _of_source(node["from_table"], of_table, macros, ctes)


def _of_source(
    source: Any, of_table: Callable[[str, str], bool], macros: Callable[[], set[str]], ctes: frozenset[str]
) -> bool:
    if source.get("sample"):
        return False
    match source["type"]:
        case "BASE_TABLE":
            schema, name = source["schema_name"].lower(), source["table_name"].lower()
            return (not schema and name in ctes) or of_table(schema, name)
        case "TABLE_FUNCTION":
            return source["function"]["function_name"].lower() not in macros()
        case "SUBQUERY":
            return _of_node(source["subquery"]["node"], of_table, macros, ctes)
        case "EMPTY" | "EXPRESSION_LIST":
            return True
        case _:
            return False


def _plain(part: Any) -> bool:
    """True if the expressions depend on their own row only."""
    match part:
        case list():
            return all(map(_plain, part))
        case {"class": kind} if kind in _CLASSES:
            return False
        case dict():
            return all(map(_plain, part.values()))
        case _:
            return True


def _longest_list(part: Any) -> int:
    """Returns the length of the longest IN list."""
    match part:
        case list():
            return max(map(_longest_list, part), default=0)
        case dict():
            own = len(part.get("children", ())) - 1 if part.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN") else 0
            return max([own, *map(_longest_list, part.values())])
        case _:
            return 0
