"""The outer SELECT: DuckDB runs it over the rows of the pattern factors, or Arrow does if it only picks columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from hybrid.rows import duck
from hybrid.rows.answer import COMPLETE, ROW, Answer, Side, output_schema, side_schema
from hybrid.rows.evidence import NO_EVIDENCE
from hybrid.rows.faults import fault
from hybrid.rows.session import arrow_of, register, texts_of, unregister
from query.language.ast import HistoryKind, StatementKind
from query.plan.bind import ADD_A_COLUMN, history_columns
from query.plan.output import output_columns
from query.plan.plan import FactorPlan, QueryPlan
from query.plan.statement import FACTOR_TABLE, HISTORY_TABLE
from query.schema import Field

#: (0 for the factor's rows, k for the rows of history join k - 1; column of these rows; name in the output)
Projection = tuple[tuple[int, str, str], ...]


def factor_name(i: int) -> str:
    """Returns the table name of factor i in the outer SELECT."""
    return f"{FACTOR_TABLE}{i}"


def side_name(i: int, k: int) -> str:
    """Returns the table name of history join k of factor i, row-aligned with the factor's table."""
    return f"{HISTORY_TABLE}{i}_{k}"


def empty_answer(factor: FactorPlan) -> Answer:
    """Returns an answer without rows, in the factor's output columns."""
    return Answer(
        output_schema(factor.plan).empty_table(), NO_EVIDENCE, np.empty(0, np.int64), _nothing(factor)
    )


def _nothing(factor: FactorPlan) -> tuple[Side, ...]:
    """Returns the factor's history joins without rows."""
    nothing = np.empty(0, np.int64)
    return tuple(
        Side(
            pa.table({}) if h.kind in (HistoryKind.SEMI, HistoryKind.ANTI) else side_schema(h).empty_table(),
            NO_EVIDENCE, nothing, nothing.astype(bool),
        )
        for h in factor.histories
    )


class Outer:
    """The outer SELECT of one statement. extra: tables that it names besides the factors."""

    __slots__ = ("_access", "_collations", "_extra", "_has_enums", "_plan", "_projection", "_shows_complete", "fields")

    def __init__(
        self, plan: QueryPlan, extra: Mapping[str, pa.Table] | None = None, access: duck.Access = duck.NOTHING,
        has_enums: bool = False, collations: Sequence[Mapping[str, str]] = (),
    ) -> None:  # fmt: skip
        """has_enums: ENUM columns of the factors are ENUMs in the SQL; otherwise they are text. collations: by factor,
        those of its columns."""
        for factor in plan.factors:
            if not len(output_schema(factor.plan)):
                raise fault("HQ217", f"the matches of {factor.alias} have no column to show", plan.text, ADD_A_COLUMN)
        self._plan = plan
        self._access = access
        self._has_enums = has_enums
        self._collations = {
            factor_name(i): {name: f"COLLATE {collation}" for name, collation in of.items()}
            for i, of in enumerate(collations)
        }
        #: columns of the tables of factors and history joins, by table name
        self.fields: dict[str, tuple[Field, ...]] = {}
        for i, factor in enumerate(plan.factors):
            self.fields[factor_name(i)] = output_columns(factor.plan)
            self.fields |= {side_name(i, k): history_columns(h) for k, h in enumerate(factor.histories)}
        self._extra = dict(extra or {})
        self._shows_complete = re.search(rf"\b{COMPLETE}\b", plan.text, re.IGNORECASE) is not None
        self._projection: Projection | None = None
        if len(plan.factors) == 1 and plan.kind is StatementKind.SELECT and not self._shows_complete:
            columns = {factor_name(0): output_schema(plan.factors[0].plan).names}
            columns |= {side_name(0, k): side.rows.column_names for k, side in enumerate(_nothing(plan.factors[0]))}
            self._projection = projection(plan.select_sql, columns)

    @property
    def access(self) -> duck.Access:
        """Files and network access of the SELECT."""
        return self._access

    @property
    def text(self) -> str:
        return self._plan.text

    @property
    def picks(self) -> bool:
        """True if the SELECT only picks columns of one pattern without history joins."""
        return self._projection is not None and not self._plan.factors[0].histories

    def run(
        self, answers: Sequence[Answer], connection: duckdb.DuckDBPyConnection | None = None
    ) -> pa.Table:
        """Returns the rows of the statement. connection: has the other tables that are not in `extra`. Raises
        QueryError."""
        if self._projection is not None:
            tables = [answers[0].live, *(side.rows for side in answers[0].sides)]
            picked = [tables[k].column(column) for k, column, _ in self._projection]
            fields = [tables[k].schema.field(column).with_name(name) for k, column, name in self._projection]
            found = pa.table(picked, schema=pa.schema(fields))
            return found if connection is None else self._typed(found, connection)
        return self._select(self._plan.select_sql, answers, connection, rows=False)

    def _typed(self, rows: pa.Table, connection: duckdb.DuckDBPyConnection) -> pa.Table:
        """Casts rows of picked columns to the connection's types: its time zone and its ENUMs."""
        if not self._has_enums and not any(pa.types.is_timestamp(t) and t.tz is not None for t in rows.schema.types):
            return rows
        nothing = [empty_answer(factor) for factor in self._plan.factors]
        wanted = self._select(self._plan.select_sql, nothing, connection, rows=False).schema
        return pa.table(
            [
                column.dictionary_encode().cast(to) if pa.types.is_dictionary(to) else column.cast(to)
                for column, to in zip(rows.columns, wanted.types)
            ],
            schema=wanted,
        )

    def sources(
        self, answers: Sequence[Answer], connection: duckdb.DuckDBPyConnection | None = None
    ) -> list[np.ndarray] | None:
        """Returns for each factor the row number that each output row comes from. None if output rows have no single
        origin (grouping, factors inside subqueries)."""
        if self._projection is not None:
            return [np.arange(len(answers[0]))]
        if not self._plan.factors:
            return []
        if self._plan.kind is not StatementKind.SELECT:
            return None
        traced = _traced(self._plan.select_sql, len(self._plan.factors))
        if traced is None:
            return None
        n = len(self._plan.factors)
        try:
            table = self._select(traced, answers, connection, rows=True)
        except Exception:  # noqa: BLE001  (any error about the added columns means that rows cannot be traced)
            return None
        last: list[pa.ChunkedArray] = table.columns[-n:]
        if any(c.null_count for c in last):
            return None
        return [np.asarray(c.to_numpy(), np.int64) for c in last]

    def schema(self, connection: duckdb.DuckDBPyConnection | None = None) -> pa.Schema:
        """Returns the columns of the statement. Raises QueryError if DuckDB rejects it."""
        return self.run([empty_answer(f) for f in self._plan.factors], connection).schema

    def tables(self, i: int, answer: Answer, rows: bool = False) -> dict[str, pa.Table]:
        """Returns the tables of factor i and its history joins, by name. rows: adds the row number as last column of
        the factor's table."""
        live = answer.live
        if rows:
            live = live.append_column(ROW, pa.array(np.arange(len(answer))))
        found = {factor_name(i): live}
        for k, side in enumerate(answer.sides):
            table = side.rows
            names = {c.lower() for c in table.column_names}
            if self._shows_complete and table.num_columns and COMPLETE not in names:
                complete = {COMPLETE: pa.array(side.complete)}
                table = pa.table(dict(zip(table.column_names, table.columns)) | complete)
            found[side_name(i, k)] = table
        return {name: table for name, table in found.items() if table.num_columns}

    def _select(
        self, select_sql: str, answers: Sequence[Answer], connection: duckdb.DuckDBPyConnection | None, rows: bool
    ) -> pa.Table:
        tables: dict[str, pa.Table] = {}
        for i, answer in enumerate(answers):
            tables |= self.tables(i, answer, rows)
        return self._over(select_sql, tables, connection)

    def run_over(
        self, select_sql: str, rows: pa.Table, connection: duckdb.DuckDBPyConnection | None = None,
        fields: Sequence[Field] = (),
    ) -> pa.Table:  # fmt: skip
        """Runs another SELECT with `rows` as the table of factor 0. fields: its columns besides those of the factor's
        rows; BIGNUMs that come as text become BIGNUMs. Raises QueryError."""
        texts = [f for f in fields if pa.types.is_string(rows.schema.field(f.name).type)]
        return self._over(select_sql, {factor_name(0): rows}, connection, texts)

    def _over(
        self, select_sql: str, tables: Mapping[str, pa.Table], connection: duckdb.DuckDBPyConnection | None,
        more: Sequence[Field] = (),
    ) -> pa.Table:  # fmt: skip
        tables = self._extra | dict(tables)
        on = connection or duck.cursor(access=self._access)
        registered: dict[str, dict[str, str]] = {}
        try:
            for name, table in tables.items():
                texts = texts_of((*self.fields.get(name, ()), *more), self._has_enums)
                registered[name] = texts | self._collations.get(name, {})
                register(on, name, table, registered[name])
            return arrow_of(on.sql(select_sql))  # INSERT and the like return DuckDB's row count
        except duckdb.Error as error:
            raise duck.query_error(error, self._plan.text) from None
        finally:
            if connection is not None:
                for name, enums in registered.items():
                    unregister(on, name, enums)


def select_tree(select_sql: str) -> Any:
    """Returns DuckDB's syntax tree of a plain SELECT, or None."""
    row = duck.cursor().execute("SELECT json_serialize_sql(?)", [select_sql]).fetchone()
    tree: Any = json.loads(row[0]) if row else {"error": True}
    if tree.get("error") or len(tree["statements"]) != 1 or tree["statements"][0]["node"]["type"] != "SELECT_NODE":
        return None
    return tree


def projection(select_sql: str, columns: Mapping[str, Sequence[str]]) -> Projection | None:
    """Returns the picked columns and their names if the SELECT only picks columns of factor 0 and its history joins,
    with unique output names; else None. That may be through an entry of WITH, such as that of a named pattern. columns:
    by table, in the order of the row-by-row join."""
    tree = select_tree(select_sql)
    return None if tree is None else _picked(tree["statements"][0]["node"], columns)


def _picked(node: Any, columns: Mapping[str, Sequence[str]]) -> Projection | None:
    """Returns the projection that a node of a syntax tree is; see `projection`."""
    entries = node["cte_map"]["map"]
    if entries:
        table = node["from_table"]
        if len(entries) > 1 or table["type"] != "BASE_TABLE" or table["schema_name"] or table["column_name_alias"]:
            return None
        name, entry = table["table_name"], entries[0]
        query = entry["value"]["query_node"]
        if entry["key"].lower() != name.lower() or entry["value"]["aliases"] or query["type"] != "SELECT_NODE":
            return None
        below = _picked(query, columns)
        if below is None:
            return None
        shown = {column: (k, of) for k, of, column in below}
        above = _picked({**node, "cte_map": {"map": []}}, {name: tuple(shown)})
        return None if above is None else tuple((*shown[column], name) for _, column, name in above)
    plain = not (
        node["modifiers"] or node["where_clause"] or node["group_expressions"]
        or node["having"] or node["qualify"] or node["sample"]
    )
    tables = _side_by_side(node["from_table"])
    if not plain or tables is None or [name for name, _ in tables] != [t for t, names in columns.items() if names]:
        return None
    place = {table: k for k, table in enumerate(columns)}
    all_columns = [(place[table], c) for table, _ in tables for c in columns[table]]
    of_alias = {alias.lower(): place[table] for table, alias in tables}
    picked: list[tuple[int, str, str]] = []
    for item in node["select_list"]:
        if item["type"] == "STAR":
            lists = ("exclude_list", "replace_list", "rename_list", "qualified_exclude_list")
            changed = any(item[name] for name in lists)
            if changed or item["expr"] or item["columns"] or item["relation_name"].lower() not in ("", *of_alias):
                return None
            whose = of_alias.get(item["relation_name"].lower())
            picked += [(k, c, c) for k, c in all_columns if whose in (None, k)]
        elif item["type"] == "COLUMN_REF":
            *qualifier, name = item["column_names"]
            if len(qualifier) > 1 or (qualifier and qualifier[0].lower() not in of_alias):
                return None
            whose = of_alias[qualifier[0].lower()] if qualifier else None
            found = [(k, c) for k, c in all_columns if c.lower() == name.lower() and whose in (None, k)]
            if len(found) != 1:
                return None
            # DuckDB spells an output column as declared, not as referenced
            picked.append((*found[0], item["alias"] or found[0][1]))
        else:
            return None
    names = [name.lower() for _, _, name in picked]
    return tuple(picked) if len(set(names)) == len(names) else None


def _side_by_side(node: Any) -> list[tuple[str, str]] | None:
    """Returns (table, alias) pairs of a FROM clause of row-by-row (POSITIONAL) joins; None for any other clause."""
    if node["sample"] or (node["alias"] and node["type"] == "JOIN"):
        return None
    if node["type"] == "JOIN":
        left, right = _side_by_side(node["left"]), _side_by_side(node["right"])
        rows = node["ref_type"] == "POSITIONAL"
        return None if not rows or left is None or right is None else [*left, *right]
    if node["type"] != "BASE_TABLE" or node["column_name_alias"]:
        return None
    return [(node["table_name"], node["alias"] or node["table_name"])]


def _traced(select_sql: str, count: int) -> str | None:
    """Returns the SELECT with the factors' row numbers as last columns. None if they would change the result, or if a
    factor is in a subquery. count: the number of factors."""
    tree = select_tree(select_sql)
    if tree is None:
        return None
    node = tree["statements"][0]["node"]
    found = _with_rows(node, {factor_name(i) for i in range(count)}, {})
    if found is None or len(found) < count:
        return None
    for i in range(count):
        node["select_list"].append(_column(found[factor_name(i)]))
    row = duck.cursor().execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    return str(row[0]) if row else None


def _with_rows(node: Any, factors: Set[str], entries: Mapping[str, Any]) -> dict[str, list[str]] | None:
    """Returns for each factor that FROM of a SELECT reads, itself or by WITH, the column that has its row number there,
    after adding it to the entries of WITH. None if a row of the SELECT has no single origin. entries: those around the
    SELECT, by name in lower case."""
    distinct = any(m["type"] == "DISTINCT_MODIFIER" for m in node["modifiers"])
    if node["type"] != "SELECT_NODE" or node["group_expressions"] or distinct:
        return None
    entries = {**entries, **{str(e["key"]).lower(): e["value"]["query_node"] for e in node["cte_map"]["map"]}}
    found: dict[str, list[str]] = {}
    for name, shown in _joined_tables(node["from_table"]):
        inner = {name: [name, ROW]} if name in factors else {}
        entry = None if name in factors else entries.get(name.lower())
        if entry is not None:
            around = {key: other for key, other in entries.items() if key != name.lower()}
            inner = _with_rows(entry, factors, around) or {}
        for factor, column in inner.items():
            if factor in found:
                return None
            found[factor] = [shown, ROW]
            if entry is not None:
                found[factor] = [shown, f"{ROW}_{factor}"]
                entry["select_list"].append(_column(column, f"{ROW}_{factor}"))
    return found


def _column(names: list[str], alias: str = "") -> dict[str, object]:
    """Returns a column of a table as a node of DuckDB's syntax tree."""
    return {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": alias, "query_location": 0, "column_names": names}


def _joined_tables(node: Any) -> list[tuple[str, str]]:
    """Returns the tables of a FROM clause, without tables of subqueries, each with its name there."""
    if node["type"] == "JOIN":
        return [*_joined_tables(node["left"]), *_joined_tables(node["right"])]
    name = str(node.get("table_name", ""))
    return [(name, str(node["alias"]) or name)] if node["type"] == "BASE_TABLE" else []
