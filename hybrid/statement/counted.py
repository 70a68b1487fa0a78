"""Counts matches without finding them, for a SELECT that reads only partition columns and count(*) of one pattern."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hybrid.rows import duck
from hybrid.rows.outer import Outer, factor_name, select_tree
from matching.drive import run
from query.errors import QueryError
from query.language.ast import RowsPerMatch, StatementKind
from query.plan.output import output_columns
from query.plan.plan import FactorPlan, Plan, QueryPlan

if TYPE_CHECKING:
    from hybrid.statement.relations import Relations

#: Column with the number of matches of a partition, in the table that replaces the factor's rows.
COUNT = "__hybrid_count"

_CLASSES = {"COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "CAST", "OPERATOR", "BETWEEN", "FUNCTION"}


def counted_select(plan: QueryPlan) -> str | None:
    """Returns the outer SELECT over one row per partition instead of one per match, with count(*) as a sum of COUNT.

    None unless the SELECT uses only partition columns, constants, operators and count(*), and an engine can count."""
    if plan.kind is not StatementKind.SELECT or len(plan.factors) != 1 or "count" not in plan.select_sql.lower():
        return None
    (factor,) = plan.factors
    if factor.histories or factor.columns or factor.plan.rows is not RowsPerMatch.ONE:
        return None
    tree = select_tree(plan.select_sql)
    if tree is None:
        return None
    node = tree["statements"][0]["node"]
    source = node["from_table"]
    if source["type"] != "BASE_TABLE" or source["table_name"] != factor_name(0) or source["column_name_alias"]:
        return None
    if source["sample"] or node["sample"] or node["qualify"] or node["cte_map"]["map"]:
        return None
    if any(m["type"] not in ("ORDER_MODIFIER", "LIMIT_MODIFIER") for m in node["modifiers"]):
        return None
    named = [bool(item.get("alias")) for item in node["select_list"]]
    counting = _Counting(factor, [str(item.get("alias", "")) for item in node["select_list"]])
    for part in ("select_list", "where_clause", "group_expressions", "having", "modifiers"):
        node[part] = counting.rewritten(node[part])
    if not counting.counts or counting.refused or not _counts(factor.plan):
        return None
    if not all(named):
        for item, name in zip(node["select_list"], Outer(plan).schema().names, strict=True):
            item["alias"] = name
    row = duck.cursor().execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    return str(row[0]) if row else None


class _Counting:
    """One walk over DuckDB's syntax tree. refused: it has an expression that cannot be counted. counts: number of
    count(*) calls."""

    def __init__(self, factor: FactorPlan, aliases: Sequence[str]) -> None:
        self.counts = 0
        self.refused = False
        partition = {c.name.lower() for c in factor.plan.partition_by}
        others = {f.name.lower() for f in output_columns(factor.plan)} - partition
        self._plain = partition | ({a.lower() for a in aliases if a} - others)
        self._qualified = {(factor.alias.lower(), name) for name in partition}
        tree = select_tree(f"SELECT CAST(coalesce(sum({COUNT}), 0) AS BIGINT)")
        self._sum = json.dumps(tree["statements"][0]["node"]["select_list"][0])

    def rewritten(self, part: Any) -> Any:
        """Returns the part with every count(*) as a sum."""
        match part:
            case list():
                return [self.rewritten(p) for p in part]
            case {"class": kind}:
                return self._expression(part, str(kind))
            case dict():
                return {key: self.rewritten(value) for key, value in part.items()}
            case _:
                return part

    def _expression(self, node: dict[str, Any], kind: str) -> dict[str, Any]:
        self.refused |= kind not in _CLASSES
        if kind == "COLUMN_REF":
            names = tuple(name.lower() for name in node["column_names"])
            self.refused |= not (names in self._qualified or (len(names) == 1 and names[0] in self._plain))
        elif kind == "CONSTANT":
            return node
        elif kind == "FUNCTION" and not node["is_operator"]:
            if node["function_name"] != "count_star" or node["distinct"] or node["schema"] or node["export_state"]:
                self.refused = True
                return node
            self.counts += 1
            found: dict[str, Any] = json.loads(self._sum)
            found["alias"] = node["alias"]
            (total, _) = found["child"]["children"]
            total["filter"] = self.rewritten(node["filter"])
            return found
        return {key: self.rewritten(value) for key, value in node.items()}


def _counts(plan: Plan) -> bool:
    """True if an engine can count the matches of a plan."""
    from matching.engines.choose import choose_engine
    from matching.purpose import Purpose

    try:
        return choose_engine(plan, Purpose.COUNTS).engine is not None
    except QueryError:  # the search for matches reports the error
        return False


def count_matches(factor: FactorPlan, relations: Relations) -> pa.Table:
    """The partition columns, and COUNT: a row for each partition with a match."""
    from matching.engines.choose import choose_engine
    from matching.matcher import KernelMatcher
    from matching.purpose import Purpose

    plan = replace(factor.plan, measures=())
    names = [*(c.name for c in plan.partition_by), COUNT]
    stream = relations.searched_by_spark(factor)
    if stream is not None and relations.spark is not None:
        return relations.spark.counts(plan, stream).rename_columns(names)
    matcher = KernelMatcher(plan, choose_engine(plan, Purpose.COUNTS))
    batches, _, _ = relations.factor(factor, by_key=True)
    for _ in run(matcher, batches):
        pass  # it has numbers instead of matches
    keys, totals = matcher.counts()
    return pa.table([*keys, pa.array(totals)], names=names)
