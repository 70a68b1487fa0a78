"""Texts as numbers, truth values, bytes and UUIDs of a declared type; null where a text is none."""

from __future__ import annotations

import base64
import binascii
import decimal
import re
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.value_types import Type
from query.language.duck import quiet_connection

#: Longer texts are no integers, decimals or times.
_LONGEST_NUMBER = 1000


def only(column: pa.Array, good: Sequence[bool]) -> pa.Array:
    return column if all(good) else pc.if_else(pa.array(good, pa.bool_()), column, pa.scalar(None, column.type))


def holds_any(texts: pa.Array, characters: bytes) -> bool:
    """True if one of some characters occurs in texts."""
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return False
    ends = np.frombuffer(texts.buffers()[1], np.int32)[[texts.offset, texts.offset + len(texts)]]
    part = np.frombuffer(data, np.uint8)[ends[0] : ends[1]]
    return any(bool((part == character).any()) for character in characters)


def each_text(texts: pa.Array, read: Callable[[str], Any], type: pa.DataType) -> pa.Array:
    return pa.array([None if text is None else read(text) for text in texts.to_pylist()], type)


_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_OTHER_BASE = re.compile(r"0[xX][0-9a-fA-F]{1,40}|0[bB][01]{1,130}", re.ASCII)
_NO_NUMBER = re.compile(r"[+-]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE)


def number_of(text: str) -> decimal.Decimal | None:
    """Returns the exact number of a text; None for none, or one with more digits than any type can hold."""
    text = text.strip()
    if len(text) > _LONGEST_NUMBER:
        return None
    if _OTHER_BASE.fullmatch(text):
        return decimal.Decimal(int(text, 0))
    if not _NUMBER.fullmatch(text):
        return None
    number = decimal.Decimal(text.replace("_", ""))
    return None if number.adjusted() > 100 and number else number


def whole_number(number: decimal.Decimal | None, scale: int, places: int = 0) -> int | None:
    """Returns number * scale * 10^places, if that is whole."""
    if number is None or (number and number.adjusted() < -_LONGEST_NUMBER):
        return None
    with decimal.localcontext() as context:
        context.prec = 2 * _LONGEST_NUMBER + 200
        scaled = (number * scale).scaleb(places)
        return int(scaled) if scaled == scaled.to_integral_value() else None


_WIDE = pa.decimal128(38, 9)


def integers(texts: pa.Array, type: Type) -> pa.Array:
    exact = pa.types.is_decimal(type.arrow)
    unsigned = type.name == "UHUGEINT"
    if not holds_any(texts, b"xX-" if unsigned else b"xX"):  # Arrow reads 0xFF as the bits of a number: -1
        try:
            return _as_decimals(texts, type.arrow) if exact else texts.cast(type.arrow)
        except pa.ArrowInvalid:
            pass
        try:
            # 3.0; doubles tell all texts of 15 digits apart
            few = not exact and _longest(texts) <= 15 and not holds_any(texts, b"eE")
            return (texts.cast(pa.float64()) if few else _as_decimals(texts, _WIDE)).cast(type.arrow)
        except pa.ArrowInvalid:
            pass
    if exact:
        low, high = 0 if unsigned else 1 - 10**38, 10**38 - 1
    else:
        bits, signed = type.arrow.bit_width, pa.types.is_signed_integer(type.arrow)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def read(text: str) -> Any:
        value = whole_number(number_of(text), 1)
        return None if value is None or not low <= value <= high else decimal.Decimal(value) if exact else value

    return each_text(texts, read, type.arrow)


def _longest(texts: pa.Array) -> int:
    return pc.max(pc.binary_length(texts)).as_py() or 0


def _as_decimals(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Casts to decimals. Raises ArrowInvalid. Texts that are too long are checked first: Arrow accepts some (of 400
    nines it makes -1)."""
    if _longest(texts) > 38 or holds_any(texts, b"eE"):
        raise pa.ArrowInvalid("too long")
    return texts.cast(type)


def decimals(texts: pa.Array, type: Type) -> pa.Array:
    try:
        return _as_decimals(texts, type.arrow)
    except pa.ArrowInvalid:
        pass
    scale, limit = type.arrow.scale, 10**type.arrow.precision

    def read(text: str) -> decimal.Decimal | None:
        value = whole_number(number_of(text), 1, scale)
        if value is None or not -limit < value < limit:
            return None
        with decimal.localcontext() as context:
            context.prec = 100
            return decimal.Decimal(value).scaleb(-scale)

    return each_text(texts, read, type.arrow)


def floats(texts: pa.Array, type: Type) -> pa.Array:
    wide = _doubles(texts)
    return wide if type.arrow == wide.type else nearest(wide, type.arrow)


def _doubles(texts: pa.Array) -> pa.Array:
    """Returns the nearest doubles; null for numbers that are too large."""
    try:
        column = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        column = each_text(texts, _double, pa.float64())
    infinite = pc.is_inf(column)
    if not pc.any(infinite, min_count=0).as_py():
        return column
    word = pc.match_substring(texts, "inf", ignore_case=True)
    return pc.if_else(pc.or_(pc.invert(infinite), word), column, pa.scalar(None, pa.float64()))


def _double(text: str) -> float | None:
    text = text.strip()
    if _NUMBER.fullmatch(text) or _NO_NUMBER.fullmatch(text):
        return float(text.replace("_", ""))
    return None


def nearest(wide: pa.Array, type: pa.DataType) -> pa.Array:
    """Returns doubles as the nearest numbers of a type of floating numbers: null instead of infinity."""
    column = wide.cast(type, safe=False)
    lost = pc.and_(pc.is_inf(column), pc.invert(pc.is_inf(wide)))
    return pc.if_else(lost, pa.scalar(None, type), column) if pc.any(lost, min_count=0).as_py() else column


_WORDS = {"true": True, "t": True, "yes": True, "y": True, "1": True}
_WORDS |= {"false": False, "f": False, "no": False, "n": False, "0": False}


def booleans(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.bool_())
    except pa.ArrowInvalid:
        return each_text(texts, lambda text: _WORDS.get(text.strip().lower()), pa.bool_())


def blobs(texts: pa.Array, type: Type) -> pa.Array:
    """Returns base64 decoded; a text with a backslash, which base64 lacks, is DuckDB's text of a BLOB."""
    escaped = cast_texts(texts, type).to_pylist() if holds_any(texts, b"\\") else None
    found: list[bytes | None] = []
    for i, text in enumerate(texts.to_pylist()):
        value = None
        if text is not None and escaped is not None and "\\" in text:
            value = escaped[i]
        elif text is not None:
            try:
                value = base64.b64decode(text.strip(), validate=True)
            except (binascii.Error, ValueError):
                pass
        found.append(value)
    return pa.array(found, type.arrow)


_UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def uuids(texts: pa.Array) -> pa.Array:
    if pc.all(pc.match_substring_regex(texts, _UUID), min_count=0).as_py():
        return texts
    return in_duckdb(pc.utf8_trim_whitespace(texts), "CAST(TRY_CAST(x AS UUID) AS VARCHAR)", pa.string())


def cast_texts(texts: pa.Array, type: Type) -> pa.Array:
    return in_duckdb(texts, f"TRY_CAST(x AS {type.name})", type.arrow)


def in_duckdb(column: pa.Array, expression: str, type: pa.DataType) -> pa.Array:
    """Evaluates an expression of DuckDB's over a column x; all null if it has no meaning."""
    cursor = quiet_connection()
    try:
        cursor.register("raw", pa.table({"x": column}))
        found = cursor.sql(f"SELECT {expression} AS x FROM raw").to_arrow_table().column(0).combine_chunks()
    except duckdb.Error:
        return pa.nulls(len(column), type)
    finally:
        cursor.close()
    if pa.types.is_dictionary(found.type) and not pa.types.is_dictionary(type):
        found = found.dictionary_decode()
    return found if found.type == type else found.cast(type)


def valid_of(column: pa.Array) -> np.ndarray:
    found: np.ndarray = column.is_valid().to_numpy(zero_copy_only=False)
    return found
