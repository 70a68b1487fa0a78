"""Puts DuckDB's types on bound expressions, and gives each operator the form that its argument types require."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from query.errors import Diagnostic, Span, TextColumn
from query.language import duck
from query.language.duck import DuckFault, Settings
from query.language.operators import OF_LISTS
from query.language.session import collation_key, collation_of, zoned
from query.plan.expression import (
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    MatchNumber,
    Navigation,
    Opaque,
    children,
    show,
    to_sql,
)
from query.schema import Schema

#: Types of times that can order events.
TIME_TYPES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
ARITHMETIC = {"+", "-", "*", "/", "//", "%"}
#: Operators whose arguments are compared with one another.
COMPARING = {"=", "<>", "<", ">", "<=", ">=", "is_distinct", "is_not_distinct", "between", "in"}
#: Types whose operators every engine computes; expressions of other types are left to DuckDB as a whole.
NUMERIC = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
    *("FLOAT", "DOUBLE", "DECIMAL"),
}
TEMPORAL = {"DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "INTERVAL"}
#: Settings that decide about divisions by zero, and about functions of doubles without a value.
_STRICT = {"ieee_floating_point_ops", "error_on_division_by_zero"}
#: The type that reads differently in each time zone.
ZONED = "TIMESTAMP WITH TIME ZONE"
#: A call in DuckDB's message that no function takes, and the types of numbers there.
_CALL = re.compile(r"(?:argument types|function call) ['\"](.+?)(\(.*\))['\"]")
_NUMBER = re.compile(r"\b(DECIMAL|DOUBLE|FLOAT|HUGEINT|BIGINT|INTEGER|INTEGER_LITERAL|SMALLINT|TINYINT)\b")
CORE = NUMERIC | TEMPORAL | {"BOOLEAN", "VARCHAR", duck.NULL_TYPE}


def typed(
    root: Expression, schema: Schema, faults: list[Diagnostic], settings: Settings = ()
) -> Expression:
    """Returns the expression with DuckDB's type on every node, all from one DESCRIBE.

    Adds DuckDB's errors to `faults`, of the innermost expressions only; the result is meaningless then.
    """
    leaves: dict[Expression, str] = {}
    sql: dict[Expression, str] = {}
    for e in dict.fromkeys(_post_order(root)):
        text = leaf_sql(e, leaves)
        if text is not None:
            leaves[e] = text
        if not isinstance(e, Constant | Column | Classifier | MatchNumber):
            sql[e] = to_sql(e, leaves)
    types: dict[Expression, str] = {}
    if sql:
        try:
            types = dict(zip(sql, duck.describe(list(sql.values()), {"row": schema.fields}, settings), strict=True))
        except DuckFault as fault:
            faults += _untypable(sql, schema, settings) or [type_diagnostic(fault, root.span)]
            return root
    return core(retyped(root, types), settings)


def _untypable(sql: dict[Expression, str], schema: Schema, settings: Settings) -> list[Diagnostic]:
    """Returns DuckDB's errors about the innermost expressions that it rejects. sql: inner expressions first."""
    refused: set[Expression] = set()
    found: list[Diagnostic] = []
    for e, text in sql.items():
        if not refused.isdisjoint(children(e)):
            refused.add(e)
            continue
        try:
            duck.describe([text], {"row": schema.fields}, settings)
        except DuckFault as fault:
            refused.add(e)
            found.append(_about_text(fault, e, schema.name) or type_diagnostic(fault, e.span))
    return found


def _about_text(fault: DuckFault, e: Expression, table: str) -> Diagnostic | None:
    """Returns DuckDB's error about an expression that takes a column of text for a number; None for others."""
    texts = [(part, column) for part in children(e) if (column := text_column(part)) is not None]
    head, *candidates = fault.message.splitlines()
    taking = _CALL.search(head)
    compared = re.match(r"Cannot compare values of type (?:VARCHAR and type )?(\w+)", head)
    if not texts or not (taking or compared):
        return None
    part, column = texts[0]
    names = e.variables if isinstance(e, Aggregate) and isinstance(part, Column) else ()
    shown, more = f"{names[0]}.{column}" if len(names) == 1 else show(part), ""
    if taking is not None:
        if not _take_numbers(candidates):
            return None
        message = f"{taking[1]} takes numbers, and {shown} is VARCHAR"
        more = {"+": "; || joins texts", "-": "; for times AS TIMESTAMP"}.get(taking[1], "")
    elif compared is not None:
        if not _NUMBER.fullmatch(compared[1]):
            return None
        message = f"{shown} is VARCHAR, and is compared with {compared[1].removesuffix('_LITERAL')}"
    hint = f"write TRY_CAST({shown} AS DOUBLE): a number, or null where the text is none{more}"
    return Diagnostic("HQ205", message, e.span, "", hint, TextColumn(table, column, "DOUBLE"))


def _take_numbers(candidates: list[str]) -> bool:
    """True if a function, by DuckDB's list of its forms, takes numbers and no text."""
    return any(map(_NUMBER.search, candidates)) and not any(re.search(r"VARCHAR.*->", line) for line in candidates)


def text_column(e: Expression) -> str | None:
    """Returns the column of text that an expression has a value of."""
    match e:
        case Column(name, "VARCHAR"):
            return name
        case Navigation(argument):
            return text_column(argument)
        case Aggregate("min" | "max" | "first" | "last" | "any_value" | "mode", argument) if argument is not None:
            return text_column(argument)
    return None


#: Functions of patterns alone, with their calls.
_OF_PATTERNS = {
    "PREV": "PREV(x)", "NEXT": "NEXT(x)", "MATCH_NUMBER": "MATCH_NUMBER()", "CLASSIFIER": "CLASSIFIER()",
}  # fmt: skip


#: What to write for functions of other engines.
_ELSEWHERE = {
    "MATCH_ROWTIME": "the time of a match is that of its last row: LAST(ts), of the time column",
    "MATCH_PROCTIME": "the time of a match is that of its last row: LAST(ts), of the time column",
    "MATCH_SEQUENCE_NUMBER": "write RUNNING count(*), under ALL ROWS PER MATCH",
    "NVL": "write coalesce(a, b)", "NVL2": "write CASE WHEN a IS NOT NULL THEN b ELSE c END",
    "TO_DATE": "write CAST(x AS DATE), or strptime(x, '%d.%m.%Y')", "SYSDATE": "write a constant, or a column",
    "TIMESTAMPDIFF": "write date_diff('second', a, b), or b - a", "DATEADD": "write x + INTERVAL 1 DAY",
    "TIMESTAMPADD": "write x + INTERVAL 1 DAY",
}  # fmt: skip


def type_diagnostic(fault: DuckFault, span: Span, outside: bool = False) -> Diagnostic:
    """Returns HQ102 for an unknown function, HQ205 for types that do not fit. outside: of the clauses of a pattern."""
    lines = [line.strip() for line in fault.message.splitlines() if line.strip()]
    hint = next((line for line in lines[1:] if line.startswith("Did you mean")), "")
    if fault.kind == "MISSING_ENTRY" and fault.name:
        hint = hint[:1].lower() + hint[1:]
        close = difflib.get_close_matches(fault.name.upper(), _OF_PATTERNS, n=1, cutoff=0.75)
        if fault.name.upper() in _ELSEWHERE:
            hint = _ELSEWHERE[fault.name.upper()]
        elif close and outside:
            hint = f"name it in MEASURES, {_OF_PATTERNS[close[0]]} AS n, and write n here"
        elif close:
            hint = f"did you mean {close[0]}?"
        elif hint.lower().endswith(f'.{fault.name.lower()}"?'):  # other transactions do not see what one creates
            hint = "if the transaction that created it is open, COMMIT it"
        return Diagnostic("HQ102", f"unknown function {fault.name}", span, "no such function", hint)
    message = lines[0] if lines else "the types do not fit"
    if message.startswith("Macro ") and len(lines) > 1:
        candidates = [line for line in lines[1:] if "(" in line and line.endswith(")")]
        return Diagnostic("HQ205", message.split(". ")[0], span, hint=f"available: {'; '.join(candidates[:3])}")
    message = message.replace("INTEGER_LITERAL", "INTEGER").replace("STRING_LITERAL", "VARCHAR")
    if call := _CALL.search(message):
        candidates = [line for line in lines[1:] if "->" in line]
        hint = "cast one of them"
        if call[1] == "-" and call[2] == "(VARCHAR, VARCHAR)":
            hint = "cast both: CAST(x AS TIMESTAMP), or AS DOUBLE"
        elif call[1] == "+" and "VARCHAR" in call[2]:
            hint = "cast one of them, or join texts with ||"
        elif call[1] == "&&":
            hint = OF_LISTS
        if "VARCHAR" in call[2] and _take_numbers(candidates) and call[1] not in ("+", "-"):
            hint = "write TRY_CAST(... AS DOUBLE): a number, or null where the text is none"
        elif call[1].isidentifier() and candidates:
            hint = "available: " + "; ".join(candidates[:3])
        message = f"{call[1]} does not take {call[2]}"
    elif message.startswith(("Cannot compare", "Cannot mix")):
        hint = "cast one of them"
        if "INTERVAL" in message and re.search(r"INTEGER|BIGINT|DOUBLE|DECIMAL", message):
            hint = "compare it with an INTERVAL, such as INTERVAL 1 DAY, or the seconds epoch(...) with a number"
    elif message.startswith("Window functions"):
        hint = "use PREV(x) and NEXT(x) for neighbouring rows, FIRST(A.x) and LAST(A.x) for rows of the match"
    return Diagnostic("HQ205", message, span, hint=hint)


def _post_order(expression: Expression) -> Iterator[Expression]:
    for child in children(expression):
        yield from _post_order(child)
    yield expression


def leaf_sql(expression: Expression, leaves: dict[Expression, str]) -> str | None:
    """SQL over a table "row" that has the type of a navigation, aggregate or other leaf; None for the rest."""
    match expression:
        case Navigation(argument):
            return to_sql(argument, leaves)
        case Aggregate():
            return f'(SELECT {expression.sql(leaves)} FROM "row")'
        case Classifier():
            return "CAST(NULL AS VARCHAR)"
        case MatchNumber():
            return "CAST(NULL AS BIGINT)"
        case _:
            return None


def retyped(expression: Expression, types: dict[Expression, str]) -> Expression:
    """Returns the expression with the types found for its parts."""
    type = types.get(expression, "")
    match expression:
        case Call(_, arguments) | Opaque(_, arguments):
            return replace(expression, arguments=tuple(retyped(a, types) for a in arguments), type=type)
        case Navigation(argument):
            return replace(expression, argument=retyped(argument, types), type=type)
        case Aggregate():
            return replace(_over_inputs(expression, lambda e: retyped(e, types)), type=type)
        case _:
            return expression


def _over_inputs(aggregate: Aggregate, change: Callable[[Expression], Expression]) -> Aggregate:
    """The aggregate with each of its inputs changed."""
    return replace(
        aggregate,
        argument=None if aggregate.argument is None else change(aggregate.argument),
        more=tuple(map(change, aggregate.more)),
        where=None if aggregate.where is None else change(aggregate.where),
        order=tuple((change(key), how) for key, how in aggregate.order),
    )


def _as_condition(where: Expression) -> Expression:
    """Returns the condition of FILTER as a BOOLEAN, as DuckDB casts it."""
    if where.type == "BOOLEAN":
        return where
    if isinstance(where, Constant) and where.type == duck.NULL_TYPE:
        return Constant(None, "BOOLEAN", where.span)
    return Call("cast", (where,), "BOOLEAN", where.span)


def base_type(type: str) -> str:
    """Returns DECIMAL for DECIMAL(9,2); lists, structs and the like are unchanged."""
    return "DECIMAL" if re.fullmatch(r"DECIMAL\(\d+,\d+\)", type) else type


def core(expression: Expression, settings: Settings = ()) -> Expression:
    """Returns a typed expression in which string literals have the type they are compared as, and operators on types
    beyond numbers, times, booleans and text are left to DuckDB as a whole."""

    def down(e: Expression) -> Expression:
        return core(e, settings)

    match expression:
        case Navigation(argument):
            return replace(expression, argument=down(argument))
        case Aggregate():
            aggregate = _of_keys(_over_inputs(expression, down), collation_of(settings))
            return replace(aggregate, where=None if aggregate.where is None else _as_condition(aggregate.where))
        case Opaque(sql, arguments):
            read = any(a.type == "VARCHAR" for a in arguments) and collation_of(settings)
            if (read or not _STRICT.isdisjoint(dict(settings))) and not sql.startswith("("):
                sql = f"({sql})"  # engines compute functions that they know by their text; with DuckDB's defaults
            return replace(expression, sql=sql, arguments=tuple(map(down, arguments)))
        case Call(function, arguments, type):
            arguments = tuple(map(down, arguments))
            if function in COMPARING:
                arguments = _meeting(arguments, settings)
                collation = collation_of(settings)
                if collation and {a.type for a in arguments} <= {"VARCHAR", duck.NULL_TYPE}:
                    arguments = tuple(_key(a, collation) for a in arguments)
            elif function == "coalesce":
                arguments = tuple(_as(a, type, settings) for a in arguments)
            elif function == "case":
                last = len(arguments) - 1
                arguments = tuple(_as(a, type, settings) if i % 2 or i == last else a for i, a in enumerate(arguments))
            call = replace(expression, arguments=arguments)
            return call if _is_core(call, settings) else _as_opaque(call)
        case _:
            return expression


def _meeting(arguments: tuple[Expression, ...], settings: Settings) -> tuple[Expression, ...]:
    """Gives string literals among compared values the type of the other values."""
    others = [a.type for a in arguments if not (isinstance(a, Constant) and a.type in ("VARCHAR", duck.NULL_TYPE))]
    return tuple(_as(a, others[0], settings) for a in arguments) if others else arguments


def _as(value: Expression, type: str, settings: Settings) -> Expression:
    """Returns a string literal read as `type`; anything else unchanged."""
    if not isinstance(value, Constant) or value.type != "VARCHAR" or type in ("VARCHAR", duck.NULL_TYPE):
        return value
    if base_type(type) not in CORE:
        return value
    sql = f"CAST({to_sql(value)} AS {type})"
    folded = duck.fold(sql, settings)
    if folded is None or (type == "INTERVAL" and folded.microseconds is None):
        # DuckDB raises when the value is needed, and so do we
        return Call("cast", (value,), type, value.span)
    if folded.microseconds is not None:
        return Constant(folded.microseconds, type, value.span, sql)
    numeric = base_type(type) in NUMERIC or type == "BOOLEAN"
    return Constant(folded.value, type, value.span, "" if numeric else sql)


def _key(text: Expression, collation: str) -> Expression:
    """Returns a text that compares by its bytes as the given one under the collation."""
    if text.type != "VARCHAR":
        return text
    if isinstance(text, Constant) and (folded := duck.fold(collation_key(collation, to_sql(text)))) is not None:
        return Constant(folded.value, "VARCHAR", text.span)
    return Opaque(collation_key(collation, '"_0"'), (text,), "VARCHAR", text.span)


def _of_keys(e: Aggregate, collation: str) -> Aggregate:
    """Returns min, max and count(DISTINCT) of text with a collation as aggregates that compare bytes."""
    if not collation or e.argument is None or e.argument.type != "VARCHAR":
        return e
    key = _key(e.argument, collation)
    if e.function in ("min", "max") and not e.more:
        return replace(e, function=f"arg_{e.function}", more=(key,), distinct=False)
    return replace(e, argument=key) if e.function == "count" and e.distinct else e


def _is_core(call: Call, settings: Settings) -> bool:
    types = [base_type(a.type) for a in call.arguments]
    met = {*types, call.type} - {"BOOLEAN", duck.NULL_TYPE}
    if call.function in ("/", "//", "%") and not _STRICT.isdisjoint(dict(settings)):
        return False
    if zoned(settings) and ZONED in met and len(met) > 1 and call.function not in ("is_null", "is_not_null"):
        return False  # the meaning of a zone: casts, days that are not 24 hours
    if call.function in ARITHMETIC or call.function in ("neg", "abs"):
        return all(t in NUMERIC | TEMPORAL | {duck.NULL_TYPE} for t in types)
    if call.function in ("is_null", "is_not_null"):
        return True
    return all(t in CORE for t in [*types, base_type(call.type)])


def _as_opaque(call: Call) -> Opaque:
    leaves = {a: f'"_{i}"' for i, a in enumerate(dict.fromkeys(call.arguments))}
    return Opaque(to_sql(call, leaves), tuple(leaves), call.type, call.span)
