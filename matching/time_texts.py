"""Texts and numbers as times of a declared type; null where one is none, or is finer than the type."""

from __future__ import annotations

import fractions

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import TIME_END_US, Int64Array
from matching.scalar_texts import (
    each_text,
    holds_any,
    in_duckdb,
    number_of,
    valid_of,
    whole_number,
)
from matching.value_types import UNITS, Type

#: An hour without minutes, which DuckDB does not accept.
_HOUR = r"^(\d{4}-\d\d-\d\d[ T]\d\d)(Z|[+-]\d\d(?::?\d\d)?)?$"
_FINER = {"us": r"\.\d{6}\d*[1-9]", "ns": r"\.\d{9}\d*[1-9]"}


def finest_of(type: pa.DataType) -> str:
    return "ns" if getattr(type, "unit", "us") == "ns" else "us"


def without_finer(texts: pa.Array, type: Type) -> pa.Array:
    """Returns texts of times without the digits beyond a type's precision."""
    kept = 9 if finest_of(type.arrow) == "ns" else 6
    return pc.replace_substring_regex(texts, rf"(\d[T ]?\d\d:\d\d:\d\d\.\d{{{kept}}})\d+", r"\1")


def iso_times(texts: pa.Array, type: Type) -> pa.Array:
    """Reads ISO 8601 and the other forms of DuckDB; without a zone it is UTC."""
    finest = finest_of(type.arrow)
    try:
        try:
            found = _parsed(texts, finest)
        except pa.ArrowInvalid:
            found = _parsed(texts, "ns").cast(pa.timestamp("us"))  # nine digits, three of them zeros
            if finest == "ns":
                raise
        return _same_instant(found, type.arrow)
    except pa.ArrowInvalid:
        pass
    texts = pc.replace_substring_regex(pc.utf8_trim_whitespace(texts), _HOUR, r"\1:00\2")
    kept = f"CASE WHEN NOT regexp_matches(x, '{_FINER[finest]}') THEN x END"
    if finest == "ns":
        return in_duckdb(texts, f"TRY_CAST({kept} AS TIMESTAMP_NS)", type.arrow)
    return _from_us(in_duckdb(texts, f"TRY_CAST(TRY_CAST({kept} AS TIMESTAMPTZ) AS TIMESTAMP)", _US), type, texts)


_US = pa.timestamp("us")


def _from_us(found: pa.Array, type: Type, texts: pa.Array | None = None) -> pa.Array:
    """Returns timestamps in microseconds as those of a type, if they are the same instant. texts: their source; some
    dates are before and after all timestamps."""
    try:
        return _same_instant(found, type.arrow)
    except pa.ArrowInvalid:
        pass
    back = f"TRY_CAST(x AS {type.name})"
    same = f"CASE WHEN TRY_CAST({back} AS TIMESTAMP) = x THEN {back} END"
    return in_duckdb(found, same, type.arrow)


def _same_instant(found: pa.Array, type: pa.DataType) -> pa.Array:
    """Casts timestamps. Raises ArrowInvalid if one is out of the type's range."""
    if found.type == type:
        return found
    out = found.cast(type)
    if pa.types.is_date(type) and not pc.all(pc.equal(out.cast(found.type), found), min_count=0).as_py():
        raise pa.ArrowInvalid("a time of day would be lost")
    return out


def _parsed(texts: pa.Array, unit: str) -> pa.Array:
    """Parses timestamps. Raises ArrowInvalid. Most columns have one form: all texts end in Z, or none has a zone."""
    naive, zoned = pa.timestamp(unit), pa.timestamp(unit, "UTC")
    if pc.all(pc.ends_with(texts, "Z"), min_count=0).as_py():
        return texts.cast(zoned).cast(naive)
    try:
        return texts.cast(naive)
    except pa.ArrowInvalid:
        pass
    with_zone = pc.match_substring_regex(texts, r"[T ].*(Z|[+-]\d\d(:?\d\d)?)$")
    nothing = pa.scalar(None, pa.string())
    instants = pc.if_else(with_zone, texts, nothing).cast(zoned).cast(naive)
    return pc.coalesce(instants, pc.if_else(with_zone, nothing, texts).cast(naive))


def since_1970(texts: pa.Array, type: Type, unit_ns: int, cut: bool = False) -> pa.Array:
    """Reads numbers in that unit. cut: digits finer than the type are dropped."""
    if not holds_any(texts, b"xX"):
        try:
            return whole_since_1970(texts.cast(pa.int64()), type, unit_ns)
        except pa.ArrowInvalid:
            pass
    target_ns = _unit_ns(type.arrow)
    limit = 1 << 31 if pa.types.is_date32(type.arrow) else 1 << 63

    if cut and unit_ns < target_ns and not holds_any(texts, b"xX."):
        try:
            numbers = texts.cast(pa.int64())
            floored = np.floor_divide(numbers.fill_null(0).to_numpy(zero_copy_only=False), target_ns // unit_ns)
            return pa.array(floored, pa.int64(), mask=~valid_of(numbers)).view(type.arrow)
        except pa.ArrowInvalid:
            pass

    def read(text: str) -> int | None:
        number = number_of(text)
        if cut and number is not None and abs(number.adjusted()) < 30:
            value: int | None = fractions.Fraction(number) * unit_ns // target_ns
        else:
            whole = whole_number(number, unit_ns)
            value = None if whole is None or whole % target_ns else whole // target_ns
        return value if value is not None and -limit < value < limit else None

    integers = pa.int32() if pa.types.is_date32(type.arrow) else pa.int64()
    return each_text(texts, read, integers).view(type.arrow)


def whole_since_1970(numbers: pa.Array, type: Type, unit_ns: int) -> pa.Array:
    """Returns integers in that unit as times. Raises ArrowInvalid if one of them is invalid."""
    unit = next(name for name, ns in UNITS.items() if ns == unit_ns)
    found = numbers.cast(pa.timestamp(unit))
    return _same_instant(found, type.arrow)


def _unit_ns(type: pa.DataType) -> int:
    return 86_400 * UNITS["s"] if pa.types.is_date(type) else UNITS[type.unit]


def times_in_form(texts: pa.Array, type: Type, form: str) -> pa.Array:
    return in_duckdb(texts, f"TRY_CAST(try_strptime(x, {_text(form)}) AS {type.name})", type.arrow)


def times_of_day(texts: pa.Array, type: Type) -> pa.Array:
    # Arrow has no time of day 24:00:00, which DuckDB accepts.
    kept = f"CASE WHEN NOT regexp_matches(x, '{_FINER[finest_of(type.arrow)]}|^24') THEN x END"
    return in_duckdb(pc.utf8_trim_whitespace(texts), f"TRY_CAST({kept} AS {type.name})", type.arrow)


def times_us(column: pa.Array) -> Int64Array:
    """Returns the times of events, int64 (n,), microseconds since 1970; TIME_END_US for nulls and for times out of
    range."""
    type = column.type
    if pa.types.is_date(type):
        column = column.cast(pa.int32()) if pa.types.is_date32(type) else column.cast(pa.date32()).cast(pa.int32())
        unit_ns = 86_400 * UNITS["s"]
    else:
        unit_ns = UNITS[type.unit]
    numbers = column.view(pa.int64()) if unit_ns != 86_400 * UNITS["s"] else column.cast(pa.int64())
    none = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    values: Int64Array = (numbers.fill_null(0) if none is not None else numbers).to_numpy(zero_copy_only=False)
    if unit_ns < 1000:
        bad = values % 1000 != 0
        out = values // 1000
    else:
        factor = unit_ns // 1000
        bad = np.abs(values // 1) >= TIME_END_US // factor
        out = values if factor == 1 else np.where(bad, 0, values) * factor
    bad |= (out <= -TIME_END_US) | (out >= TIME_END_US)
    if none is not None:
        bad |= none
    return np.where(bad, TIME_END_US, out) if bad.any() else out


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
