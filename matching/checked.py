"""Rows checked against the declaration of a stream: valid rows become events, others are bad, with reasons."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from matching.batch import TIME_END_US, Int64Array
from matching.time_texts import times_us
from matching.types import arrow_schema
from matching.value_types import UNITS, Rules, Type, type_of
from matching.values import ABSENT, member, read_arrow, read_python
from query.errors import DataError, nearest
from query.language.duck import quiet_connection
from query.schema import Schema

_SHOWN = 60
_FINER = re.compile(r"\.\d{6}\d*[1-9]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
#: A microsecond as a power of ten of each unit of times.
_MICROSECOND = {"s": -6, "ms": -3, "us": 0, "ns": 3}


@dataclass(frozen=True, slots=True)
class Checked:
    """rows: the valid rows, in the declared Arrow types; ts_us: int64 (n,), their times; indices: int64 (n,), their
    indices among the given rows, ascending; bad: (index, reason) of the others, ascending."""

    rows: pa.RecordBatch
    ts_us: Int64Array
    indices: Int64Array
    bad: Sequence[tuple[int, str]]


def types_of(schema: Schema) -> tuple[Type, ...]:
    """The types of the declared columns."""
    return tuple(type_of(field.type) for field in schema.fields)


def time_of(schema: Schema) -> int:
    """Returns the index of the time column."""
    name = (schema.time or "").lower()
    return next(i for i, field in enumerate(schema.fields) if field.name.lower() == name)


def check(
    schema: Schema, columns: Sequence[tuple[pa.Array, np.ndarray | None]], shown: Callable[[int, int], str],
    wrong: Mapping[int, str], rules: Rules,
) -> Checked:
    """Checks columns in their declared types, each with its bad values, null there: bool (n,) or None. shown: returns
    the given text of a column and row; wrong: other errors of rows, by index."""
    at = time_of(schema)
    times = times_us(columns[at][0])
    n = len(times)
    bad = times == TIME_END_US
    for _, some in columns:
        if some is not None:
            bad |= some
    if wrong:
        bad[list(wrong)] = True
    declared = arrow_schema(schema)
    rows = pa.RecordBatch.from_arrays([column for column, _ in columns], schema=declared)
    if not bad.any():
        return Checked(rows, times, np.arange(n, dtype=np.int64), ())
    reasons: list[tuple[int, str]] = []
    for row in np.flatnonzero(bad).tolist():
        reasons.append((row, wrong.get(row) or _why(schema, columns, shown, rules, at, row)))
    indices = np.flatnonzero(~bad)
    return Checked(rows.filter(pa.array(~bad)), times[indices], indices, reasons)


def _why(
    schema: Schema, columns: Sequence[tuple[pa.Array, np.ndarray | None]], shown: Callable[[int, int], str],
    rules: Rules, at: int, row: int,
) -> str:
    found = []
    time, some = columns[at]
    if not time[row].is_valid and (some is None or not some[row]):
        found.append(f"{schema.fields[at].name} is null")
    elif time[row].is_valid and times_us(time.slice(row, 1))[0] == TIME_END_US:
        found.append(f"{schema.fields[at].name}: {quoted(shown(at, row))} is a time out of range")
    for i, (field, (_, some)) in enumerate(zip(schema.fields, columns)):
        if some is not None and some[row]:
            text = shown(i, row)
            found.append(f"{field.name}: {quoted(text)} is no {field.type}{_more(text, type_of(field.type), rules)}")
    return "; ".join(found)


def _more(text: str, type: Type, rules: Rules) -> str:
    if type.kind in ("timestamp", "time") and _FINER.search(text):
        return ": it is finer than a microsecond; `finer` may cut it"
    if type.kind in ("timestamp", "date") and rules.times == "iso" and _NUMBER.fullmatch(text):
        return ": set `times` to its unit if it is a time since 1970"
    if type.kind in ("timestamp", "date") and rules.times in UNITS and _NUMBER.fullmatch(text):
        # By its digits, as it may have thousands of them.
        whole, _, part = text.partition(".")
        zeros = len(whole + part) - len((whole + part).rstrip("0"))
        if type.kind == "timestamp" and zeros - len(part) < _MICROSECOND[rules.times]:
            return f": in {rules.times} since 1970 it is finer than a microsecond; `finer` may cut it"
        day = " of a whole day" if type.kind == "date" else ""
        return f": no valid time{day} in {rules.times} since 1970; is `times` another unit?"
    return ""


def quoted(text: str) -> str:
    """A value in a message."""
    return f"'{text if len(text) <= _SHOWN else text[: _SHOWN - 3] + '...'}'"


def texts_checked(schema: Schema, columns: Sequence[pa.Array | None], count: int, rules: Rules) -> Checked:
    """Checks fields of CSV, a column of texts for each declared one, or None for nulls. An empty text is a value for
    VARCHAR only."""
    found: list[tuple[pa.Array, np.ndarray | None]] = []
    for texts, type in zip(columns, types_of(schema)):
        if texts is None:
            found.append((pa.nulls(count, type.arrow), None))
        elif type.kind == "text":
            found.append((texts, None))
        else:
            found.append(_with_bad(texts, type, rules))

    def shown(i: int, row: int) -> str:
        texts = columns[i]
        return "" if texts is None else str(texts[row].as_py())

    return check(schema, found, shown, {}, rules)


def _with_bad(texts: pa.Array, type: Type, rules: Rules) -> tuple[pa.Array, np.ndarray | None]:
    found, bad = read_arrow(texts, type, rules)
    return found, bad if bad.any() else None


def arrow_checked(schema: Schema, columns: Sequence[pa.Array | None], count: int, rules: Rules) -> Checked:
    """Checks Arrow columns, one for each declared one, or None for nulls."""
    found: list[tuple[pa.Array, np.ndarray | None]] = []
    for column, type in zip(columns, types_of(schema)):
        if column is None:
            found.append((pa.nulls(count, type.arrow), None))
        else:
            found.append(read_arrow(column, type, rules))

    def shown(i: int, row: int) -> str:
        column = columns[i]
        return "" if column is None else shown_value(column[row])

    return check(schema, found, shown, {}, rules)


def objects_checked(schema: Schema, objects: Sequence[Mapping[str, Any]], rules: Rules) -> Checked:
    """Checks objects of Python values, such as records of Avro."""
    at = time_of(schema)
    wrong: dict[int, str] = {}
    given: list[list[Any]] = []
    for i, name in enumerate(schema.names):
        values: list[Any] = []
        for row, one in enumerate(objects):
            value: Any = None
            try:
                value = one[name] if name in one else member(one, name)
            except ValueError as error:
                wrong.setdefault(row, str(error))
            if value is ABSENT:
                value = None
                if rules.missing == "error" or i == at:
                    wrong[row] = f"{wrong[row]}; {name} is missing" if row in wrong else f"{name} is missing"
            values.append(value)
        given.append(values)
    found = [read_python(values, type, rules) for values, type in zip(given, types_of(schema))]
    return check(schema, found, lambda i, row: str(given[i][row]), wrong, rules)


#: Errors of Arrow and Python for values beyond Python's range: the year 17036, nanoseconds without pandas.
BEYOND = (ValueError, OverflowError, ArithmeticError, TypeError, ImportError, pa.ArrowException)


def shown_value(value: pa.Scalar) -> str:
    """Returns the text of any Arrow value."""
    try:
        return str(value.cast(pa.string()).as_py() if pa.types.is_temporal(value.type) else value.as_py())
    except BEYOND:
        pass
    try:
        return str(value.cast(pa.int64()).as_py())
    except BEYOND:
        return f"a value of {value.type}"


def shown_rows(table: pa.Table, at: Sequence[int]) -> list[str]:
    """Returns rows of Arrow as JSON, as DuckDB writes it; as text if DuckDB cannot."""
    if not at:
        return []
    some = table.take(pa.array(at, pa.int64()))
    cursor = quiet_connection()
    try:
        cursor.register("raw", some)
        return [text for (text,) in cursor.execute("SELECT CAST(to_json(raw) AS VARCHAR) FROM raw").fetchall()]
    except (duckdb.Error, pa.ArrowException):
        columns = [(name, some.column(name)) for name in some.column_names]
        return [str({name: shown_value(column[row]) for name, column in columns}) for row in range(len(at))]
    finally:
        cursor.close()


def by_name(names: Sequence[str], schema: Schema, rules: Rules) -> list[int | None]:
    """Returns the index of each declared column among the names, which compare without case; None for one that is
    missing and may be. Raises DataError for one that is required and missing, and for one that occurs twice."""
    lowered = [name.lower() for name in names]
    found: list[int | None] = []
    at = time_of(schema)
    for i, field in enumerate(schema.fields):
        count = lowered.count(field.name.lower())
        if count > 1:
            raise DataError(f"column {field.name} occurs twice", "names compare without case")
        if count:
            found.append(lowered.index(field.name.lower()))
        elif rules.missing == "null" and i != at:
            found.append(None)
        else:
            raise DataError(f"column {field.name} is missing", nearest(field.name, list(names)))
    return found
