"""Aggregates over all matches of a pattern without finding them, for a SELECT that reads only partition columns and
such aggregates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows import duck
from hybrid.rows.answer import output_schema
from hybrid.rows.outer import Outer, factor_name, select_tree
from hybrid.statement.flowing import OutOfOrder
from hybrid.statement.narrow import narrow_first
from matching.drive import run
from query.errors import DataError, QueryError
from query.language.ast import RowsPerMatch, StatementKind
from query.plan.output import output_columns
from query.plan.over_matches import COLUMN, MATCHES, OverMatches, over_matches, plan_of_trends
from query.plan.plan import FactorPlan, Plan, QueryPlan
from query.plan.trends import BIGNUM, Over, TrendAggregate
from query.schema import Field, Schema

if TYPE_CHECKING:
    from hybrid.statement.relations import Relations
    from matching.batch import EventBatch

_CLASSES = {
    "COLUMN_REF", "CONSTANT", "COMPARISON", "CONJUNCTION", "CAST", "TYPE", "OPERATOR", "BETWEEN", "FUNCTION", "CASE",
}  # fmt: skip
#: Functions of values, which may be computed from aggregates.
_SCALAR = {
    "abs", "ceil", "ceiling", "concat", "date_trunc", "floor", "greatest", "least", "ln", "log", "log10", "log2",
    "lower", "nullif", "round", "sqrt", "upper",
}  # fmt: skip
_AGGREGATES = {"count", "sum", "avg", "mean", "min", "max"}
#: Largest number of decimal digits of a whole number that is an int64 here.
_INT64_DIGITS = 18
#: With fewer matches, a sum that is not finite is left to the search: an event may have an infinite value.
_FOUND_MAX = 10_000_000
#: Most digits of a divisor of a sum of doubles.
_DIVISOR_MAX = 360
#: Digits that are divided: of the dividend as many as a HUGEINT holds, of the divisor half of them.
_DIVIDEND, _DIVISOR = 38, 19
#: Marks the error of the SELECT for a number that its type cannot hold.
_TOO_LARGE = "__hybrid_too_large"
#: Most digits of a number in a message, and of a divisor in one step.
_LEADING = 60
_HUGEINT_MAX = 2**127 - 1
_HUGEINT_MIN = "CAST('-170141183460469231731687303715884105728' AS HUGEINT)"


@dataclass(frozen=True, slots=True)
class CountedSelect:
    """How an outer SELECT is answered without matches. sql: the SELECT over one row per partition with a match, which
    has the partition columns, and for each of `aggregates` a column called COLUMN and its index. calls: lines of
    EXPLAIN. alike: pairs of aggregates that must be equal in every partition; otherwise the matches have to be found.
    divided: the plan that is counted, which may divide the partitions further. trends: the plan of the aggregates, None
    if only the number of matches is available. paths: that number can be counted by state, up to the largest BIGINT."""

    sql: str
    calls: tuple[str, ...]
    aggregates: tuple[TrendAggregate, ...]
    alike: tuple[tuple[int, int], ...]
    divided: Plan
    trends: Plan | None
    paths: bool

    def __str__(self) -> str:
        lines = ["-- matches are counted, not searched for", *self.calls]
        engines = ["up to 2^63 - 1 in a partition by state"] if self.paths else []
        engines += ["as trends in one window"] if self.trends is not None else []
        return "\n".join([*lines, f"counted     {'; beyond that, '.join(engines)}"])


def counted_select(plan: QueryPlan) -> CountedSelect | None:
    """Returns the outer SELECT over one row per partition instead of one per match.

    None unless the SELECT uses only partition columns, constants, operators and aggregates over matches that are
    aggregates over trends (query.plan.over_matches), and an engine can count."""
    if plan.kind is not StatementKind.SELECT or len(plan.factors) != 1:
        return None
    (factor,) = plan.factors
    if factor.histories or factor.columns or factor.plan.rows is not RowsPerMatch.ONE:
        return None
    if not any(name in plan.select_sql.lower() for name in _AGGREGATES):
        return None
    tree = select_tree(plan.select_sql)
    if tree is None:
        return None
    node = tree["statements"][0]["node"]
    source = _source(node["from_table"])
    if source is None or node["sample"] or node["qualify"] or node["cte_map"]["map"]:
        return None
    node["from_table"], alias = source
    if any(m["type"] not in ("ORDER_MODIFIER", "LIMIT_MODIFIER") for m in node["modifiers"]):
        return None
    named = [bool(item.get("alias")) for item in node["select_list"]]
    counting = _Counting(factor, alias, [str(item.get("alias", "")) for item in node["select_list"]])
    for part in ("select_list", "where_clause", "group_expressions", "having", "modifiers"):
        node[part] = counting.rewritten(node[part])
    if not counting.calls or counting.refused:
        return None
    aggregates = counting.aggregates
    divided = _divided(factor.plan)
    trends = None if _looks_up(divided) else _trends(divided, aggregates)
    paths = aggregates == (MATCHES,) and _counts(divided)
    if trends is None and not paths:
        return None
    schema = Outer(plan).schema()
    if not all(named):
        for item, name in zip(node["select_list"], schema.names, strict=True):
            item["alias"] = name
    row = duck.cursor().execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    if row is None:
        return None
    counted = CountedSelect(str(row[0]), tuple(counting.calls), aggregates, counting.alike, divided, trends, paths)
    return counted if _has_schema(plan, counted, schema) else None


def _source(table: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """Returns the factor's table in a FROM clause, with the alias of the clause, and that alias. Subqueries may be
    around it that pick all columns, or some of them by their names."""
    alias = str(table["alias"])
    while table["type"] == "SUBQUERY":
        inner = table["subquery"]["node"]
        if inner["type"] != "SELECT_NODE" or table["sample"] or table["column_name_alias"]:
            return None
        some = ("modifiers", "where_clause", "group_expressions", "having", "qualify", "sample")
        if any(inner[part] for part in some) or inner["cte_map"]["map"] or not all(map(_picks, inner["select_list"])):
            return None
        table = inner["from_table"]
    if table["type"] != "BASE_TABLE" or table["table_name"] != factor_name(0) or table["column_name_alias"]:
        return None
    return None if table["sample"] else (table | {"alias": alias}, alias)


def _picks(item: dict[str, Any]) -> bool:
    """True if an item of a SELECT list is `*`, or columns with their names."""
    if item["type"] == "STAR":
        lists = ("exclude_list", "replace_list", "rename_list", "qualified_exclude_list", "expr", "columns")
        return not any(item[name] for name in lists)
    return item["type"] == "COLUMN_REF" and item["alias"].lower() in ("", item["column_names"][-1].lower())


def _has_schema(plan: QueryPlan, counted: CountedSelect, schema: pa.Schema) -> bool:
    """True if the SELECT over aggregates has the columns of the one over matches."""
    (factor,) = plan.factors
    fields = [output_schema(factor.plan).field(c.name) for c in factor.plan.partition_by]
    texts = [pa.field(f"{COLUMN}{i}", _kept_type(a)) for i, a in enumerate(counted.aggregates)]
    try:
        rows = pa.schema([*fields, *texts]).empty_table()
        found = Outer(plan).run_over(counted.sql, rows, fields=_bignums(counted.aggregates)).schema
    except (QueryError, KeyError):
        return False
    return bool(found.equals(schema))


def _kept_type(a: TrendAggregate) -> pa.DataType:
    from matching.types import plain_type

    return pa.string() if a.type in (BIGNUM, "VARCHAR") else plain_type(a.type)


def _bignums(aggregates: Sequence[TrendAggregate]) -> tuple[Field, ...]:
    """Returns the columns of whole numbers, DECIMALs too, which are without their point."""
    return tuple(Field(f"{COLUMN}{i}", BIGNUM) for i, a in enumerate(aggregates) if _is_whole(a))


def _is_whole(a: TrendAggregate) -> bool:
    return a.over not in (Over.MIN, Over.MAX) and a.type in (BIGNUM, "VARCHAR")


def _scale(a: TrendAggregate) -> int:
    """Returns the decimal places of a sum."""
    found = re.fullmatch(r"DECIMAL\(\d+,(\d+)\)", "" if a.argument is None else a.argument.type)
    return int(found[1]) if found is not None and a.over is Over.SUM else 0


class _Counting:
    """One walk over DuckDB's syntax tree. refused: it has an expression that needs the matches. calls: what each
    aggregate over matches is, by its text."""

    def __init__(self, factor: FactorPlan, alias: str, aliases: Sequence[str]) -> None:
        plan = self._plan = factor.plan
        self.calls: dict[str, None] = {}
        self.refused = False
        self._columns: dict[TrendAggregate, int] = {}
        self._alike: dict[tuple[int, int], None] = {}
        names = [f.name.lower() for f in output_columns(plan)]
        partition = {c.name.lower() for c in plan.partition_by}
        self.refused = len(set(names)) < len(names) or any(n.startswith(COLUMN) for n in names)
        self._plain = partition | ({a.lower() for a in aliases if a} - (set(names) - partition))
        self._qualified = {(alias.lower(), name) for name in partition}
        self._alias = alias.lower()
        self._measures = {m.name.lower(): m for m in plan.measures}

    @property
    def aggregates(self) -> tuple[TrendAggregate, ...]:
        return tuple(self._columns)

    @property
    def alike(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._alike)

    def rewritten(self, part: Any) -> Any:
        """Returns the part with every aggregate over matches as one over partitions."""
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
        elif kind in ("CONSTANT", "TYPE"):
            return node
        elif kind == "CAST" and not node["try_cast"] and (cast := self._cast(node)) is not None:
            return cast
        elif kind == "FUNCTION" and not node["is_operator"] and node["function_name"] not in _SCALAR:
            found = self._over_matches(node)
            if found is None:
                self.refused = True
                return node
            name, over = found
            return self._call(node, self._sql(name, over), name, over, node["alias"])
        return {key: self.rewritten(value) for key, value in node.items()}

    def _cast(self, node: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the cast of a count or a sum of whole numbers to a type that may hold more; else None."""
        type, child = str(node["type_expr"].get("type_name", "")).upper(), node["child"]
        if child["class"] != "FUNCTION" or type not in (BIGNUM, "HUGEINT", "DOUBLE") or node["type_expr"]["children"]:
            return None
        found = self._over_matches(child)
        if found is None:
            return None
        name, over = found
        if name[0] not in "cs" or not _is_whole(over.total) or over.total.type != BIGNUM:
            return None
        total = self._total(over.total)
        total = f"coalesce({total}, 0)" if name.startswith("count") else total
        shown = f"CAST({total} AS VARCHAR)"
        match type:
            case "HUGEINT":
                sql = _hugeint(name, total)
            case "DOUBLE":
                double = f"CAST({shown} AS DOUBLE)"
                sql = f"CASE WHEN isinf({double}) THEN {_error(name, total, type)} ELSE {double} END"
            case _:
                sql = f"CAST({total} AS {BIGNUM})"
        return self._call(child, sql, name, over, node["alias"])

    def _over_matches(self, node: dict[str, Any]) -> tuple[str, OverMatches] | None:
        """Returns the text of a call and what it is over trends; None for another function, or one that needs the
        matches."""
        function = str(node["function_name"])
        if node["schema"] or node["export_state"] or node["order_bys"]["orders"]:
            return None
        if function == "count_star":
            return None if node["distinct"] else ("count(*)", OverMatches(MATCHES))
        if function not in _AGGREGATES or len(node["arguments"]) != 1:
            return None
        if node["distinct"] and function not in ("min", "max"):
            return None
        argument = node["arguments"][0]["expression"]
        if argument["class"] != "COLUMN_REF":
            return None
        *qualifier, column = (str(name).lower() for name in argument["column_names"])
        measure = self._measures.get(column)
        if measure is None or qualifier not in ([], [self._alias]):
            return None
        over = over_matches(function, measure.expression, self._plan.pattern)
        return None if over is None else (f"{function}({measure.name})", over)

    def _column(self, a: TrendAggregate) -> str:
        return f'"{COLUMN}{self._columns.setdefault(a, len(self._columns))}"'

    def _total(self, a: TrendAggregate) -> str:
        return f"sum({self._column(a)})"

    def _sql(self, name: str, over: OverMatches) -> str:
        """Returns SQL over partitions with the value and the type of an aggregate over matches."""
        a = over.total
        if a.over in (Over.MIN, Over.MAX):
            return f"{a.over.value}({self._column(a)})"
        total = self._total(a)
        if over.values is not None:
            count = self._total(over.values)
            if not _is_whole(a):
                return _double_quotient(total, count)
            return _quotient(total, count, _scale(a))
        if name.startswith("count("):
            count = f"coalesce({total}, 0)"
            failing = _error(name, total, "BIGINT")
            return f"CASE WHEN {count} > {2**63 - 1} THEN {failing} ELSE CAST({count} AS BIGINT) END"
        if not _is_whole(a):
            return total
        return _hugeint(name, total) if a.type == BIGNUM else _decimal(name, total, _scale(a))

    def _call(self, node: dict[str, Any], sql: str, name: str, over: OverMatches, alias: str) -> dict[str, Any]:
        """Returns the tree of SQL over partitions in place of a call, with its FILTER; notes the call."""
        self.calls[f"{name:<11} = {over}"] = None
        if over.alike is not None:
            one, two = (self._columns.setdefault(each, len(self._columns)) for each in over.alike)
            self._alike[one, two] = None
        where = self.rewritten(node["filter"])

        def filtered(part: Any) -> Any:
            match part:
                case list():
                    return [filtered(p) for p in part]
                case {"class": "FUNCTION", "function_name": "sum" | "min" | "max"}:
                    return part | {"filter": where}
                case dict():
                    return {key: filtered(value) for key, value in part.items()}
                case _:
                    return part

        tree = select_tree(f"SELECT {sql}")
        found: dict[str, Any] = filtered(tree["statements"][0]["node"]["select_list"][0])
        return found | {"alias": alias}


def _error(name: str, total: str, type: str) -> str:
    """A cast that fails and says why; `error()` has side effects for DuckDB, so that no alias could stand for it."""
    quoted = name.replace("'", "''")
    return f"CAST('{_TOO_LARGE} ' || CAST({total} AS VARCHAR) || ' {type} {quoted} |' AS {type})"


def _hugeint(name: str, total: str) -> str:
    outside = f"{total} > {_HUGEINT_MAX} OR {total} < {_HUGEINT_MIN}"
    return f"CASE WHEN {outside} THEN {_error(name, total, 'HUGEINT')} ELSE CAST({total} AS HUGEINT) END"


def _decimal(name: str, total: str, scale: int) -> str:
    """The DECIMAL of a number without its point."""
    type = f"DECIMAL(38,{scale})"
    whole = f"CAST({total} AS HUGEINT)"
    text = f"CAST({whole} AS VARCHAR)"
    if scale:
        unit = f"CAST({10**scale} AS HUGEINT)"
        sign = f"CASE WHEN {total} < 0 THEN '-' ELSE '' END"
        places = f"lpad(CAST(abs({whole} % {unit}) AS VARCHAR), {scale}, '0')"
        text = f"{sign} || CAST(abs({whole} // {unit}) AS VARCHAR) || '.' || {places}"
    outside = f"{total} >= {10**38} OR {total} <= -{10**38}"
    return f"CASE WHEN {outside} THEN {_error(name, total, type)} ELSE CAST({text} AS {type}) END"


def _quotient(total: str, count: str, scale: int) -> str:
    """The double next to a quotient of numbers of any size, by their leading digits; null for none."""
    one, two = f"ltrim(CAST({total} AS VARCHAR), '-')", f"CAST({count} AS VARCHAR)"
    dividend = f"CAST(rpad(left({one}, {_DIVIDEND}), {_DIVIDEND}, '0') AS HUGEINT)"
    digits = f"{dividend} // CAST(left({two}, {_DIVISOR}) AS HUGEINT)"
    exponent = f"length({one}) - {_DIVIDEND} - greatest(length({two}) - {_DIVISOR}, 0) - {scale}"
    quotient = f"CAST(CAST({digits} AS VARCHAR) || 'e' || ({exponent}) AS DOUBLE)"
    return f"CASE WHEN {total} < 0 THEN -{quotient} ELSE {quotient} END"


def _double_quotient(total: str, count: str) -> str:
    """The quotient of a double and a number of _DIVISOR_MAX digits at most."""
    digits = f"CAST({count} AS VARCHAR)"
    left_out = f"greatest(length({digits}) - {_LEADING}, 0)"
    return f"{total} / CAST(left({digits}, {_LEADING}) AS DOUBLE) / CAST('1e' || {left_out} AS DOUBLE)"


def _divided(plan: Plan) -> Plan:
    """Returns a plan with the same matches; with further partitions if the rows of a match have values in common."""
    from matching.tied import Tied, tied

    looked_up = tied(plan)
    return looked_up.plan if isinstance(looked_up, Tied) and not looked_up.numbered else plan


def _looks_up(plan: Plan) -> bool:
    """True if the search looks partial matches up by value: aggregates over trends would read all rows before."""
    from matching.program.equalities import equalities_of_steps
    from matching.program.program import NoKernel, assemble

    try:
        return bool(equalities_of_steps(assemble(plan)))
    except NoKernel:
        return False


def _counts(plan: Plan) -> bool:
    """True if an engine can count the matches of a plan by state."""
    from matching.engines.choose import choose_engine
    from matching.purpose import Purpose

    try:
        return choose_engine(plan, Purpose.COUNTS).engine is not None
    except QueryError:  # the search for matches reports the error
        return False


def _wanted(aggregates: Sequence[TrendAggregate]) -> tuple[TrendAggregate, ...]:
    """Returns the aggregates, and the number of matches if there are sums of doubles: see _finite."""
    sums = any(a.type == "DOUBLE" and a.over is Over.SUM for a in aggregates)
    return (*aggregates, MATCHES) if sums and MATCHES not in aggregates else tuple(aggregates)


def _trends(plan: Plan, aggregates: Sequence[TrendAggregate]) -> Plan | None:
    """Returns the plan of aggregates over all matches of a plan, None if no engine has them."""
    from matching.engines.choose import choose_engine
    from matching.purpose import Purpose

    kinds = (c.type for c in plan.partition_by)
    if any(t.startswith(("STRUCT", "MAP", "UNION")) or t == "INTERVAL" or t.endswith("]") for t in kinds):
        return None  # GROUP BY does not take them
    over = plan_of_trends(plan, _wanted(aggregates))
    try:
        return over if over is not None and choose_engine(over, Purpose.ROWS).engine is not None else None
    except QueryError:
        return None


def counted_answer(
    counted: CountedSelect, factor: FactorPlan, relations: Relations, outer: Outer,
    connection: duckdb.DuckDBPyConnection | None,
) -> pa.Table | None:  # fmt: skip
    """Returns the rows of the statement; None if its matches have to be found. Raises DataError for a number that its
    type cannot hold."""
    rows = _rows(counted, factor, relations)
    if rows is None:
        return None
    try:
        return outer.run_over(counted.sql, rows, connection, _bignums(counted.aggregates))
    except QueryError as error:
        raise _too_large(error) from None


def _too_large(error: QueryError) -> Exception:
    found = re.search(rf"{_TOO_LARGE} (-?)(\d+) (\S+) (.*?) \|", str(error))
    if found is None:
        return error
    sign, number, type, name = found.groups()
    scale = re.fullmatch(r"DECIMAL\(38,(\d+)\)", type)
    digits = len(number) - (int(scale[1]) if scale else 0)
    short = len(number) <= _LEADING and not scale
    shown = sign + (number if short else f"{number[0]}.{number[1:4]}e+{digits - 1}")
    exact = "" if scale else f"{name}::{BIGNUM} is exact, and "
    hint = f"{exact}avg, min and max have no such bound; ONE ROW PER WINDOW gives exact numbers of any size"
    return DataError(f"{name} is {shown}, more than a {type} can hold", hint)


def _rows(counted: CountedSelect, factor: FactorPlan, relations: Relations) -> pa.Table | None:
    """Returns the partition columns and the aggregates, a row for each partition with a match."""
    from matching.engines.run_counts import TooManyMatches

    on_spark = bool(relations.searched_by_spark(factor))
    if counted.paths:
        try:
            return _counted_by_state(factor, counted.divided, relations)
        except TooManyMatches:
            if counted.trends is None or on_spark:
                raise
    if counted.trends is None or on_spark:
        return None
    return _over_trends(counted, counted.trends, factor, relations)


def _counted_by_state(factor: FactorPlan, divided: Plan, relations: Relations) -> pa.Table:
    streams = relations.searched_by_spark(factor)
    plan = replace(factor.plan if streams else divided, measures=())
    names = [*(c.name for c in plan.partition_by), f"{COLUMN}0"]
    factor = replace(factor, plan=plan)
    if streams and relations.spark is not None:
        return relations.spark.counts(factor, streams).rename_columns(names)
    return narrow_first(plan, lambda one: _counted_in(relations, replace(factor, plan=one), names))


def _counted_in(relations: Relations, factor: FactorPlan, names: list[str]) -> pa.Table:
    from matching.engines.choose import choose_engine
    from matching.matcher import KernelMatcher
    from matching.purpose import Purpose

    plan = factor.plan

    def counted(batches: Iterable[EventBatch]) -> pa.Table:
        matcher = KernelMatcher(plan, choose_engine(plan, Purpose.COUNTS))
        for _ in run(matcher, batches):
            pass  # it has numbers instead of matches
        keys, totals = matcher.counts()
        return pa.table([*keys, pa.array(totals)], names=names)

    flowing = relations.flowing(factor)
    if flowing is not None:
        with suppress(OutOfOrder), closing(flowing.batches()) as rows:
            return counted(rows)
    return counted(relations.factor(factor, by_key=True, again=False)[0])


def _over_trends(counted: CountedSelect, plan: Plan, factor: FactorPlan, relations: Relations) -> pa.Table | None:
    from matching.engines.choose import choose_engine
    from matching.engines.run_trends import TooManyTrends
    from matching.matcher import KernelMatcher
    from matching.purpose import Purpose
    from matching.trend_rows import InfiniteSum
    from matching.types import arrow_schema

    matcher = KernelMatcher(plan, choose_engine(plan, Purpose.ROWS))
    batches, _, _ = relations.factor(replace(factor, plan=plan), by_key=True, again=False)
    try:
        parts = [found.rows for found in run(matcher, _at_once(batches))]
    except TooManyTrends as many:
        message = f"these are too many matches: {many.message}"
        raise DataError(message, "choose rows with WHERE in the input, or make the conditions stricter") from None
    except InfiniteSum as sum_:
        hint = "cast the values to DECIMAL, whose sums are exact, or take min and max"
        raise DataError(f"{sum_.aggregate} over all matches is more than a DOUBLE can hold", hint) from None
    except DataError:  # of a value that the search may not read
        return None
    empty = arrow_schema(Schema("", output_columns(plan))).empty_table()
    rows = pa.concat_tables([empty, *parts])
    columns = [c.combine_chunks() for c in rows.columns[2:]]  # without the bounds of the window
    keys = columns[: len(factor.plan.partition_by)]
    wanted = _wanted(counted.aggregates)
    totals = columns[len(plan.partition_by) :]
    numbers = [_numbers(column, a) for column, a in zip(totals, wanted, strict=True)]
    if any(not numbers[i].equals(numbers[k]) for i, k in counted.alike):
        return None
    of = dict(zip(wanted, numbers, strict=True))
    if not _finite(counted, of):
        return None
    shown = numbers[: len(counted.aggregates)]
    return pa.table([*keys, *shown], names=[*(c.name for c in factor.plan.partition_by), *_names(len(shown))])


def _names(count: int) -> list[str]:
    return [f"{COLUMN}{i}" for i in range(count)]


def _at_once(batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """Yields batches whose events are all in the first window."""
    return (replace(batch, ts_us=np.zeros(len(batch), np.int64)) for batch in batches)


def _numbers(column: pa.Array, a: TrendAggregate) -> pa.Array:
    """Returns a column of whole numbers as int64 if all fit, else their digits; sums of DECIMALs without the point."""
    if not _is_whole(a):
        return column
    digits = pc.replace_substring(column, ".", "") if _scale(a) else column
    longest = pc.max(pc.binary_length(digits)).as_py()
    return digits.cast(pa.int64()) if longest is None or longest <= _INT64_DIGITS else digits


def _finite(counted: CountedSelect, of: dict[TrendAggregate, pa.Array]) -> bool:
    """True if all sums of doubles are finite; False if the search should add them up. Raises DataError if there are too
    many matches for that."""
    for a in counted.aggregates:
        if a.over is not Over.SUM or a.type != "DOUBLE":
            continue
        values = of.get(replace(a, over=Over.VALUES, type=BIGNUM))
        long = values is not None and not pa.types.is_integer(values.type) and (
            (pc.max(pc.binary_length(values)).as_py() or 0) > _DIVISOR_MAX)  # fmt: skip
        if not long and pc.all(pc.is_finite(of[a])).as_py() is not False:
            continue
        matches = of[MATCHES]
        if pa.types.is_integer(matches.type) and (pc.sum(matches).as_py() or 0) <= _FOUND_MAX:
            return False
        hint = "cast the values to DECIMAL, whose sums are exact, or take min and max"
        raise DataError(f"{a.name} over all matches is more than a DOUBLE can hold", hint)
    return True
