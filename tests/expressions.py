"""Random conditions over two rows, in SQL, and pairs of rows with what lies at the edges of their types."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from random import Random

import pyarrow as pa

COLUMNS = {
    "int": ("q", "i", "t"), "float": ("v", "w"), "dec": ("d", "e"), "ts": ("u",), "text": ("s",), "bool": ("b",),
}  # fmt: skip
SCHEMA = pa.schema(
    [
        ("k", pa.int64()), ("ts", pa.timestamp("us")), ("q", pa.int64()), ("i", pa.int32()), ("t", pa.int8()),
        ("v", pa.float64()), ("w", pa.float64()), ("d", pa.decimal128(12, 2)), ("e", pa.decimal128(9, 4)),
        ("u", pa.timestamp("us")), ("s", pa.string()), ("b", pa.bool_()),
    ]
)  # fmt: skip
CONSTANTS = {
    "int": ("0", "1", "2", "3", "10", "-7", "60"), "float": ("0.5::DOUBLE", "1e3", "2.5::DOUBLE"),
    "dec": ("1.5", "0.01", "10.25"), "text": ("'a'", "''", "'Xy'"),
}  # fmt: skip
_COMPARE = ("=", "<>", "<", "<=", ">", ">=")
#: By the kind of the result, texts with the kinds of their parts in braces; alternatives within one by `/`.
_FORMS = {
    "int": (
        "({int} + {int})", "({int} - {int})", "({int} * {int})", "({int} // {int})", "({int} % {int})", "abs({int})",
        "(-{int})", "({float})::INT", "({float})::BIGINT", "({float})::SMALLINT", "({dec})::INT", "({dec})::BIGINT",
        "({int})::INT", "({int})::TINYINT", "({bool})::INT", "date_diff('second', {ts}, {ts})",
        "date_diff('minute', {ts}, {ts})", "date_diff('day', {ts}, {ts})", "date_diff('month', {ts}, {ts})",
        "date_diff('week', {ts}, {ts})", "date_diff('year', {ts}, {ts})", "date_sub('minute', {ts}, {ts})",
        "date_sub('hour', {ts}, {ts})", "length({text})", "hour({ts})", "sign({int})", "greatest({int}, {int})",
        "least({int}, {int}, {int})", "coalesce({int}, {int})", "CASE WHEN {bool} THEN {int} ELSE {int} END",
        "if({bool}, {int}, {int})", "nullif({int}, {int})", "ifnull({int}, {int})", "({int} & {int})",
        "({int} | {int})", "round({int})", "floor({int})", "epoch_ms({ts})",
        "levenshtein({text}, {text})", "instr({text}, {text})", "length({text} || {text})", "ascii({text})",
        "length(repeat({text}, ({int} % 5)::INT))",
    ),
    "float": (
        "({number}::DOUBLE + {float})", "({float} - {float})", "({float} * {float})", "({number} / {number})",
        "({float} % {float})", "round({float}, 0)", "round({float}, 1)", "round({float}, 2)", "round({float}, 6)",
        "round({float})", "floor({float})", "ceil({float})", "trunc({float})", "sqrt({number})", "ln({number})",
        "log({number})", "log2({number})", "exp({number})", "cbrt({float})", "pow({number}, {number})",
        "({float} ** 2)", "({float} ^ {float})", "sin({float})", "atan2({float}, {float})",
        "greatest({float}, {float})", "least({float}, {float})", "coalesce({float}, {float})",
        "CASE WHEN {bool} THEN {float} WHEN {bool} THEN {float} END", "epoch({ts} - {ts})", "epoch({ts})",
        "abs({float})", "({number})::DOUBLE", "radians({float})", "extract(epoch FROM {ts} - {ts})",
        "jaro_similarity({text}, {text})", "(length({text}) / {number})",
    ),
    "dec": (
        "({dec} + {dec})", "({dec} - {int})", "({dec} * {dec})", "round({dec}, 0)", "round({dec}, 1)",
        "round({dec}, 2)", "round({dec})", "floor({dec})", "ceil({dec})", "trunc({dec})", "abs({dec})",
        "greatest({dec}, {dec})", "({dec} % {dec})", "({dec})::DECIMAL(18,0)", "({dec})::DECIMAL(18,1)",
        "({dec})::DECIMAL(18,3)", "({int})::DECIMAL(18,2)", "nullif({dec}, {dec})",
        "({text} || '1')::DECIMAL(12,2)",
    ),
    "ts": (
        "greatest({ts}, {ts})", "coalesce({ts}, {ts})", "date_trunc('hour', {ts})", "date_trunc('month', {ts})",
        "({ts} + INTERVAL 90 MINUTE)", "CASE WHEN {bool} THEN {ts} ELSE {ts} END",
    ),
    "text": (
        "lower({text})", "upper({text})", "left({text}, 1)", "({text} || 'b')", "coalesce({text}, {text})",
        "replace({text}, 'a', 'b')", "CASE WHEN {bool} THEN {text} ELSE {text} END", "({text} || {text})",
        "left({text}, length({text}))", "substr({text}, length({text}), 1)", "concat({text}, {text})",
        "({int})::VARCHAR",
        "replace({text}, {text}, {text})", "strftime({ts}, '%H')", "greatest({text}, {text})",
    ),
    "bool": (
        *(f"({{number}} {op} {{number}})" for op in _COMPARE), *(f"({{text}} {op} {{text}})" for op in _COMPARE),
        *(f"({{ts}} {op} {{ts}})" for op in _COMPARE), "({bool} AND {bool})", "({bool} OR {bool})", "(NOT {bool})",
        "({number} IS NULL)", "({int} BETWEEN {int} AND {int})", "({int} IN ({int}, {int}))",
        "({text} IN ('a', {text}))", "({text} IS DISTINCT FROM {text})", "({int})::BOOLEAN",
        "({ts}::DATE = {ts}::DATE)", "isnan({float})", "({ts} - {ts} > INTERVAL 1 HOUR)",
        "starts_with({text}, {text})", "ends_with({text}, {text})", "contains({text}, {text})", "({text} LIKE {text})",
        "({text} ILIKE {text} || '%')", "({text} NOT LIKE {text})", "regexp_matches({text}, '^' || {text})",
        "({text} SIMILAR TO {text})", "({text} || {text} = {text})", "(({text})::INT > {int})", "({text} IS NULL)",
    ),
}  # fmt: skip
KINDS = tuple(_FORMS)


def expression(random: Random, kind: str, depth: int, other: str = "A.") -> str:
    """Returns an expression of a kind over the columns of a row and, with `other` before them, of another row."""
    if depth <= 0 or (depth < 3 and random.random() < 0.15):
        if kind in CONSTANTS and random.random() < 0.12:
            return random.choice(CONSTANTS[kind])
        return random.choice((other, "")) + random.choice(COLUMNS[kind])
    form = random.choice(_FORMS[kind])

    def part(found: re.Match[str]) -> str:
        of = random.choice(("int", "float", "dec")) if found[1] == "number" else found[1]
        return expression(random, of, depth - 1, other)

    return re.sub(r"\{(\w+)\}", part, form)


def pairs(random: Random, count: int) -> pa.Table:
    """Returns `count` pairs of rows, of the keys k = 0, 1, ..., a second apart."""
    values: dict[str, Callable[[], object]] = {
        "q": lambda: random.choice((0, 1, 2, 5, -3, 100, 2**62, -7, 12345, 60)),
        "i": lambda: random.choice((0, 1, -1, 7, 2**31 - 1, -50, 3, 1000)), "t": lambda: random.choice((0, 1, -5, 100)),
        "v": lambda: random.choice((0.0, -0.0, 1.5, -2.5, 0.5, 3.25, 1e10, float("nan"), float("inf"), 2.675, 1.005,
                                    round(random.random() * 100, 2), random.random())),
        "w": lambda: random.choice((1.0, 2.0, 0.1, -1e-3, round(random.random() * 10, 3), random.random() * 1000)),
        "d": lambda: Decimal(random.randrange(-(10**6), 10**6)).scaleb(-2),
        "e": lambda: Decimal(random.randrange(-(10**5), 10**5)).scaleb(-4),
        "u": lambda: random.choice((datetime(2024, 1, 1), datetime(1965, 3, 1))) + timedelta(
            days=random.randrange(28), seconds=random.randrange(86400), microseconds=random.choice((0, 500, 999_999))),
        "s": lambda: random.choice(("a", "b", "A", "ab", "", "Xy", "xY", "aé", "a%", "zzz")),
        "b": lambda: random.random() < 0.5,
    }  # fmt: skip
    rows = [
        {"k": k, "ts": datetime(2024, 1, 1) + timedelta(seconds=second)}
        | {name: None if random.random() < 0.12 else value() for name, value in values.items()}
        for k in range(count)
        for second in (0, 1)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)
