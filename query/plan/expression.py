"""The closed set of bound expressions. Scalar operators and functions have DuckDB's meaning.

Types are DuckDB type names in DuckDB's own spelling (`BIGINT`, `DECIMAL(21,1)`, `TIMESTAMP`, ...).

Leaves determine the row that is read:
  Column        the candidate row itself (DEFINE) or the current row (MEASURES)
  Navigation    a row found by LAST/FIRST over a variable's rows of the match, then PREV/NEXT in the partition
  Aggregate     rows of the match so far (RUNNING) or of the whole match (FINAL)
  Classifier, MatchNumber

Two expressions are equal if they have the same meaning; positions in the text do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import assert_never

from query.errors import NO_SPAN, Span

Value = None | bool | int | float | Decimal | str


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. INTERVAL constants of fixed length are int microseconds; other values keep their SQL text in `sql`."""

    value: Value
    type: str
    span: Span = field(default=NO_SPAN, compare=False)
    sql: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    span: Span = field(default=NO_SPAN, compare=False)


class Logical(Enum):
    FIRST = "FIRST"
    LAST = "LAST"


@dataclass(frozen=True, slots=True)
class Navigation:
    """The value of `argument` at another row.

    variables: the primary variables whose rows the logical step counts (a union has several), or empty for all rows
    of the match. logical None: start from the candidate / current row (a bare PREV or NEXT).
    logical_offset: rows of those variables further on (FIRST) or further back (LAST).
    physical_offset: rows of the partition; negative is PREV, positive NEXT.
    final: count the rows of the whole match (MEASURES only); otherwise up to the current row.
    argument holds Column, Constant, Classifier (of the row reached), MatchNumber, Call and Opaque only.
    """

    argument: Expression
    variables: tuple[str, ...]
    logical: Logical | None
    logical_offset: int
    physical_offset: int
    final: bool
    type: str
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`function(argument)` over the rows of `variables` (empty: all rows of the match).

    argument None: count(*) or count(A.*). In DEFINE the candidate is included. function is lower case. more: the
    arguments after the first. where: FILTER (WHERE ...). order: ORDER BY inside the call, each expression with its
    direction in SQL ("ASC NULLS LAST"). All of them are read at the aggregated rows, in their order, like `argument`,
    and may contain the same as the argument of a Navigation. Constants among them stay literals in SQL: DuckDB
    requires, for example, a constant fraction of a quantile. before: True if the candidate, which is a row of
    `variables`, is excluded (DEFINE only).
    """

    function: str
    argument: Expression | None
    variables: tuple[str, ...]
    distinct: bool
    final: bool
    type: str
    span: Span = field(default=NO_SPAN, compare=False)
    more: tuple[Expression, ...] = ()
    where: Expression | None = None
    order: tuple[tuple[Expression, str], ...] = ()
    before: bool = False

    @property
    def inputs(self) -> tuple[Expression, ...]:
        """Everything read at each aggregated row: arguments, filter, sort keys."""
        first = () if self.argument is None else (self.argument,)
        condition = () if self.where is None else (self.where,)
        return (*first, *self.more, *condition, *(key for key, _ in self.order))

    @property
    def plain(self) -> bool:
        """One argument at most, no FILTER, no ORDER BY, no DISTINCT."""
        return not (self.more or self.where or self.order or self.distinct)

    def sql(self, names: dict[Expression, str]) -> str:
        """Returns the call over a table; `names` are the columns of the inputs."""

        def of(e: Expression) -> str:
            return to_sql(e, names)

        arguments = ", ".join(map(of, (self.argument, *self.more))) if self.argument is not None else "*"
        order = " ORDER BY " + ", ".join(f"{of(key)} {how}" for key, how in self.order) if self.order else ""
        call = f"{self.function}({'DISTINCT ' if self.distinct else ''}{arguments}{order})"
        return call + (f" FILTER (WHERE {of(self.where)})" if self.where is not None else "")


@dataclass(frozen=True, slots=True)
class Classifier:
    """The variable of the current row."""

    span: Span = field(default=NO_SPAN, compare=False)
    type: str = "VARCHAR"


@dataclass(frozen=True, slots=True)
class MatchNumber:
    span: Span = field(default=NO_SPAN, compare=False)
    type: str = "BIGINT"


@dataclass(frozen=True, slots=True)
class Call:
    """An operator of the core that every engine here knows.

    function is one of
      and or not  = <> < <= > >=  is_distinct is_not_distinct  is_null is_not_null
      + - * / // %  neg abs  cast (to `type`)  coalesce
      case (condition, value, condition, value, ..., otherwise)  in (needle, item, ...)  between (input, low, high)
    """

    function: str
    arguments: tuple[Expression, ...]
    type: str
    span: Span = field(default=NO_SPAN, compare=False)


@dataclass(frozen=True, slots=True)
class Opaque:
    """An expression that only DuckDB computes: `sql` over placeholders `"_0"`, `"_1"`, ... that stand for
    `arguments`."""

    sql: str
    arguments: tuple[Expression, ...]
    type: str
    span: Span = field(default=NO_SPAN, compare=False)


Expression = Constant | Column | Navigation | Aggregate | Classifier | MatchNumber | Call | Opaque
TRUE = Constant(True, "BOOLEAN")

INFIX = {"=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "//", "%"}


def children(expression: Expression) -> tuple[Expression, ...]:
    """Direct sub-expressions."""
    match expression:
        case Call(_, arguments) | Opaque(_, arguments):
            return arguments
        case Navigation(argument):
            return (argument,)
        case Aggregate():
            return expression.inputs
        case Constant() | Column() | Classifier() | MatchNumber():
            return ()
        case _:
            assert_never(expression)


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and everything below it, outermost first."""
    yield expression
    for child in children(expression):
        yield from walk(child)


def conjuncts(condition: Expression) -> tuple[Expression, ...]:
    """The top-level ANDs of a condition, flattened, in order."""
    if isinstance(condition, Call) and condition.function == "and":
        return tuple(c for a in condition.arguments for c in conjuncts(a))
    return (condition,)


def is_row_local(expression: Expression) -> bool:
    """True if the value depends on the candidate row and rows at fixed physical offsets only, not on the match."""
    match expression:
        case Constant() | Column():
            return True
        case Navigation(argument, logical=logical):
            return logical is None and is_row_local(argument)
        case Aggregate() | Classifier() | MatchNumber():
            return False
        case Call(_, arguments) | Opaque(_, arguments):
            return all(map(is_row_local, arguments))
        case _:
            assert_never(expression)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal_sql(constant: Constant) -> str:
    """The constant as DuckDB SQL of exactly its type."""
    if constant.sql:
        return constant.sql
    value = constant.value
    if value is None:
        return f"CAST(NULL AS {constant.type})" if constant.type not in ("", '"NULL"', "NULL") else "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if constant.type == "INTERVAL":
        return f"to_microseconds({value}::BIGINT)"
    if isinstance(value, str):
        text = "'" + value.replace("'", "''") + "'"
        return text if constant.type == "VARCHAR" else f"CAST({text} AS {constant.type})"
    return f"CAST('{value}' AS {constant.type})"


def to_sql(expression: Expression, leaves: dict[Expression, str] | None = None) -> str:
    """DuckDB SQL of an expression. `leaves` gives the SQL of sub-expressions that are computed elsewhere
    (navigations, aggregates, classifier, match number); a Column not in it is its quoted name."""
    leaves = leaves or {}
    if expression in leaves:
        return leaves[expression]

    def sql(e: Expression) -> str:
        return to_sql(e, leaves)

    match expression:
        case Constant():
            return literal_sql(expression)
        case Column(name):
            return quote(name)
        case Call("and" | "or" as op, arguments):
            return "(" + f" {op.upper()} ".join(map(sql, arguments)) + ")"
        case Call("not", (a,)):
            return f"(NOT {sql(a)})"
        case Call("is_null", (a,)):
            return f"({sql(a)} IS NULL)"
        case Call("is_not_null", (a,)):
            return f"({sql(a)} IS NOT NULL)"
        case Call("is_distinct", (a, b)):
            return f"({sql(a)} IS DISTINCT FROM {sql(b)})"
        case Call("is_not_distinct", (a, b)):
            return f"({sql(a)} IS NOT DISTINCT FROM {sql(b)})"
        case Call("neg", (a,)):
            return f"(-{sql(a)})"
        case Call("cast", (a,), type):
            return f"CAST({sql(a)} AS {type})"
        case Call("between", (a, low, high)):
            return f"({sql(a)} BETWEEN {sql(low)} AND {sql(high)})"
        case Call("in", (a, *items)):
            return f"({sql(a)} IN ({', '.join(map(sql, items))}))"
        case Call("case", arguments):
            pairs = zip(arguments[:-1:2], arguments[1::2], strict=True)
            whens = " ".join(f"WHEN {sql(c)} THEN {sql(v)}" for c, v in pairs)
            return f"(CASE {whens} ELSE {sql(arguments[-1])} END)"
        case Call(op, (a, b)) if op in INFIX:
            return f"({sql(a)} {op} {sql(b)})"
        case Call(function, arguments):
            return f"{function}({', '.join(map(sql, arguments))})"
        case Opaque(template, arguments):
            # in one pass: an argument may itself be a column called "_0"
            return "(" + re.sub(r'"_(\d+)"', lambda m: sql(arguments[int(m[1])]), template) + ")"
        case Navigation() | Aggregate() | Classifier() | MatchNumber():
            raise ValueError(f"no SQL of its own: {show(expression)}")
        case _:
            assert_never(expression)


_UNITS_US = {
    "day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000, "millisecond": 1000,
    "microsecond": 1,
}  # fmt: skip


def show_interval(us: int) -> str:
    """Returns an interval as SQL writes it, in the largest unit that needs no fraction: 90 minutes."""
    unit = next(unit for unit, size in _UNITS_US.items() if us % size == 0) if us else "second"
    number = us // _UNITS_US[unit]
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def show(expression: Expression) -> str:
    """The expression as the EXPLAIN outputs print it: SQL, with variables and navigation written out."""
    match expression:
        case Constant(int(value), "INTERVAL"):
            return f"INTERVAL {show_interval(value)}"
        case Constant(sql=sql) if sql:
            return sql
        case Constant(None):
            return "NULL"
        case Constant(value):
            return repr(value) if isinstance(value, str) else str(value)
        case Column(name):
            return name
        case Navigation(argument, names, logical, logical_offset, physical, final):
            inner = show(argument)
            if names:
                inner = f"{'|'.join(names)}.{inner}"
            if logical is not None:
                offset = f", {logical_offset}" if logical_offset else ""
                inner = f"{'FINAL ' if final else ''}{logical.value}({inner}{offset})"
            if physical:
                offset = f", {abs(physical)}" if abs(physical) != 1 else ""
                inner = f"{'PREV' if physical < 0 else 'NEXT'}({inner}{offset})"
            return inner
        case Aggregate(function, argument, names, distinct, final):
            rows = f"{'|'.join(names)}." if names else ""

            def of(e: Expression) -> str:
                return show(e) if isinstance(e, Constant) else rows + show(e)

            inner = ", ".join(map(of, (argument, *expression.more))) if argument is not None else f"{rows}*"
            order = ", ".join(f"{of(key)} {how}" for key, how in expression.order)
            where = f" FILTER (WHERE {of(expression.where)})" if expression.where is not None else ""
            call = f"{function}({'DISTINCT ' if distinct else ''}{inner}{' ORDER BY ' + order if order else ''})"
            return f"{'FINAL ' if final else ''}{'EARLIER ' if expression.before else ''}{call}{where}"
        case Classifier():
            return "CLASSIFIER()"
        case MatchNumber():
            return "MATCH_NUMBER()"
        case Call(_, arguments) | Opaque(_, arguments):
            return to_sql(expression, {a: show(a) for a in arguments})
        case _:
            assert_never(expression)
