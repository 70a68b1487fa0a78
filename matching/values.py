"""The meaning of a text, a value of JSON or a value of Arrow in a declared type, defined here only, for payloads of
live sources and for archived files. docs/sources.md has it as a table.

A value is accepted if and only if it means the same in the declared type: digits beyond the type's precision make it
bad unless they are zeros, with one exception, floating numbers, which take the nearest. Each function has a fast path
for well-formed columns, a few passes of Arrow, and one for others, value by value or through DuckDB's TRY_CAST. Both
give a value the same meaning, whatever its neighbours.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import fractions
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import TIME_END_US, Int64Array
from matching.types import arrow_type, duckdb_type, plain_type
from query.language.duck import quiet_connection

Kind: TypeAlias = Literal[
    "text", "integer", "decimal", "float", "boolean", "blob", "timestamp", "date", "time", "choice", "uuid", "json",
    "list", "array", "struct", "map", "other",
]  # fmt: skip

Finer: TypeAlias = Literal["error", "cut"]

#: Units of times that are numbers since 1970, in nanoseconds.
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_NESTED = ("list", "array", "struct", "map")
#: Longer texts are no integers, decimals or times.
_LONGEST_NUMBER = 1000


@dataclass(frozen=True, slots=True)
class Type:
    """A declared type. name: DuckDB's; arrow: that of its columns; inner: the elements, members or (key, value) of a
    nested one, by name; choices: of an ENUM."""

    name: str
    arrow: pa.DataType
    kind: Kind
    inner: tuple[tuple[str, Type], ...] = ()
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules by which values are read.

    times: the form of times: iso; s, ms, us or ns for numbers since 1970; or a form of strptime. missing: the meaning
    of a declared member that an object lacks. finer: the treatment of a time finer than its type: bad, or, with "cut",
    the last time of the type before it.
    """

    times: str = "iso"
    missing: Literal["error", "null"] = "error"
    finer: Finer = "error"


@cache
def type_of(name: str) -> Type:
    """Returns the type of that name. Raises ValueError for an unknown one."""
    arrow = plain_type(name)
    return _type(quiet_connection().type(name), name, arrow)


def _type(known: Any, name: str, arrow: pa.DataType) -> Type:
    inner: tuple[tuple[str, Type], ...] = ()
    choices: tuple[str, ...] = ()
    kind: Kind = "other"
    match known.id:
        case "list" | "array" | "struct" | "map":
            kind = known.id
            parts = [(part, one) for part, one in known.children if part != "size"]
            inner = tuple((part, _type(one, str(one), arrow_type(str(one)))) for part, one in parts)
        case "enum":
            kind, choices = "choice", tuple(known.children[0][1])
        case "uuid":
            kind = "uuid"
        case "boolean" | "float" | "double" | "blob" | "date":
            kind = {"double": "float"}.get(known.id, known.id)
        case "time" | "time_ns" | "time with time zone":
            kind = "time"
        case "varchar":
            kind = "json" if name.upper() == "JSON" or str(known) == "JSON" else "text"
        case "decimal":
            kind = "decimal"
        case other if other.startswith("timestamp"):
            kind = "timestamp"
        case _ if pa.types.is_integer(arrow) or pa.types.is_decimal(arrow):
            kind = "integer"
    return Type(name, arrow, kind, inner, choices)


# ---- texts


def read_texts(texts: pa.Array, type: Type, rules: Rules = Rules()) -> pa.Array:
    """Returns texts as values of a type: null for nulls and for bad texts."""
    match type.kind:
        case "text":
            return texts
        case "integer":
            return _integers(texts, type)
        case "decimal":
            return _decimals(texts, type)
        case "float":
            return _floats(texts, type)
        case "boolean":
            return _booleans(texts)
        case "blob":
            return _blobs(texts, type)
        case "timestamp" | "date":
            cut = rules.finer == "cut" and type.kind == "timestamp"
            if rules.times in UNITS:
                return _since_1970(texts, type, UNITS[rules.times], cut)
            texts = _without_finer(texts, type) if cut else texts
            return _iso(texts, type) if rules.times == "iso" else _in_form(texts, type, rules.times)
        case "time":
            return _times_of_day(_without_finer(texts, type) if rules.finer == "cut" else texts, type)
        case "choice":
            choices = pa.array(type.choices, pa.string())
            found = pc.if_else(pc.is_in(texts, choices), texts, pa.scalar(None, pa.string()))
            return found if found.type == type.arrow else found.dictionary_encode().cast(type.arrow)
        case "uuid":
            return _uuids(texts)
        case "json":
            return _only(texts, [text is None or is_json(text) for text in texts.to_pylist()])
        case "list" | "array" | "struct" | "map":
            return _nested_texts(texts, type, rules)
        case _:
            return _cast(texts, type)


def is_json(text: str) -> bool:
    """True if DuckDB accepts a text as JSON."""
    try:
        _ANY(text)
        return True
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        pass
    try:
        found = quiet_connection().execute("SELECT TRY_CAST(? AS JSON) IS NOT NULL", [text]).fetchone()
    except (duckdb.Error, UnicodeEncodeError):
        return False
    return found is not None and bool(found[0])


_ANY = msgspec.json.Decoder(msgspec.Raw).decode


def _only(column: pa.Array, good: Sequence[bool]) -> pa.Array:
    return column if all(good) else pc.if_else(pa.array(good, pa.bool_()), column, pa.scalar(None, column.type))


def _holds(texts: pa.Array, characters: bytes) -> bool:
    """True if one of some characters occurs in texts."""
    data = texts.buffers()[2]
    if data is None or not len(texts):
        return False
    ends = np.frombuffer(texts.buffers()[1], np.int32)[[texts.offset, texts.offset + len(texts)]]
    part = np.frombuffer(data, np.uint8)[ends[0] : ends[1]]
    return any(bool((part == character).any()) for character in characters)


def _each(texts: pa.Array, read: Callable[[str], Any], type: pa.DataType) -> pa.Array:
    return pa.array([None if text is None else read(text) for text in texts.to_pylist()], type)


_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_OTHER_BASE = re.compile(r"0[xX][0-9a-fA-F]{1,40}|0[bB][01]{1,130}", re.ASCII)
_NO_NUMBER = re.compile(r"[+-]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE)


def _number(text: str) -> decimal.Decimal | None:
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


def _whole(number: decimal.Decimal | None, scale: int, places: int = 0) -> int | None:
    """Returns number * scale * 10^places, if that is whole."""
    if number is None or (number and number.adjusted() < -_LONGEST_NUMBER):
        return None
    with decimal.localcontext() as context:
        context.prec = 2 * _LONGEST_NUMBER + 200
        scaled = (number * scale).scaleb(places)
        return int(scaled) if scaled == scaled.to_integral_value() else None


_WIDE = pa.decimal128(38, 9)


def _integers(texts: pa.Array, type: Type) -> pa.Array:
    exact = pa.types.is_decimal(type.arrow)
    unsigned = type.name == "UHUGEINT"
    if not _holds(texts, b"xX-" if unsigned else b"xX"):  # Arrow reads 0xFF as the bits of a number: -1
        try:
            return _as_decimals(texts, type.arrow) if exact else texts.cast(type.arrow)
        except pa.ArrowInvalid:
            pass
        try:
            # 3.0; doubles tell all texts of 15 digits apart
            few = not exact and _longest(texts) <= 15 and not _holds(texts, b"eE")
            return (texts.cast(pa.float64()) if few else _as_decimals(texts, _WIDE)).cast(type.arrow)
        except pa.ArrowInvalid:
            pass
    if exact:
        low, high = 0 if unsigned else 1 - 10**38, 10**38 - 1
    else:
        bits, signed = type.arrow.bit_width, pa.types.is_signed_integer(type.arrow)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def read(text: str) -> Any:
        value = _whole(_number(text), 1)
        return None if value is None or not low <= value <= high else decimal.Decimal(value) if exact else value

    return _each(texts, read, type.arrow)


def _longest(texts: pa.Array) -> int:
    return pc.max(pc.binary_length(texts)).as_py() or 0


def _as_decimals(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """Casts to decimals. Raises ArrowInvalid. Texts that are too long are checked first: Arrow accepts some (of 400
    nines it makes -1)."""
    if _longest(texts) > 38 or _holds(texts, b"eE"):
        raise pa.ArrowInvalid("too long")
    return texts.cast(type)


def _decimals(texts: pa.Array, type: Type) -> pa.Array:
    try:
        return _as_decimals(texts, type.arrow)
    except pa.ArrowInvalid:
        pass
    scale, limit = type.arrow.scale, 10**type.arrow.precision

    def read(text: str) -> decimal.Decimal | None:
        value = _whole(_number(text), 1, scale)
        if value is None or not -limit < value < limit:
            return None
        with decimal.localcontext() as context:
            context.prec = 100
            return decimal.Decimal(value).scaleb(-scale)

    return _each(texts, read, type.arrow)


def _floats(texts: pa.Array, type: Type) -> pa.Array:
    wide = _doubles(texts)
    return wide if type.arrow == wide.type else nearest(wide, type.arrow)


def _doubles(texts: pa.Array) -> pa.Array:
    """Returns the nearest doubles; null for numbers that are too large."""
    try:
        column = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        column = _each(texts, _double, pa.float64())
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


def _booleans(texts: pa.Array) -> pa.Array:
    try:
        return texts.cast(pa.bool_())
    except pa.ArrowInvalid:
        return _each(texts, lambda text: _WORDS.get(text.strip().lower()), pa.bool_())


def _blobs(texts: pa.Array, type: Type) -> pa.Array:
    """Returns base64 decoded; a text with a backslash, which base64 lacks, is DuckDB's text of a BLOB."""
    escaped = _cast(texts, type).to_pylist() if _holds(texts, b"\\") else None
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


def _uuids(texts: pa.Array) -> pa.Array:
    if pc.all(pc.match_substring_regex(texts, _UUID), min_count=0).as_py():
        return texts
    return _in_duckdb(pc.utf8_trim_whitespace(texts), "CAST(TRY_CAST(x AS UUID) AS VARCHAR)", pa.string())


def _cast(texts: pa.Array, type: Type) -> pa.Array:
    return _in_duckdb(texts, f"TRY_CAST(x AS {type.name})", type.arrow)


def _in_duckdb(column: pa.Array, expression: str, type: pa.DataType) -> pa.Array:
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


# ---- times


#: An hour without minutes, which DuckDB does not accept.
_HOUR = r"^(\d{4}-\d\d-\d\d[ T]\d\d)(Z|[+-]\d\d(?::?\d\d)?)?$"
_FINER = {"us": r"\.\d{6}\d*[1-9]", "ns": r"\.\d{9}\d*[1-9]"}


def _finest(type: pa.DataType) -> str:
    return "ns" if getattr(type, "unit", "us") == "ns" else "us"


def _without_finer(texts: pa.Array, type: Type) -> pa.Array:
    """Returns texts of times without the digits beyond a type's precision."""
    kept = 9 if _finest(type.arrow) == "ns" else 6
    return pc.replace_substring_regex(texts, rf"(\d[T ]?\d\d:\d\d:\d\d\.\d{{{kept}}})\d+", r"\1")


def _iso(texts: pa.Array, type: Type) -> pa.Array:
    """Reads ISO 8601 and the other forms of DuckDB; without a zone it is UTC."""
    finest = _finest(type.arrow)
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
        return _in_duckdb(texts, f"TRY_CAST({kept} AS TIMESTAMP_NS)", type.arrow)
    return _from_us(_in_duckdb(texts, f"TRY_CAST(TRY_CAST({kept} AS TIMESTAMPTZ) AS TIMESTAMP)", _US), type, texts)


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
    return _in_duckdb(found, same, type.arrow)


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


def _since_1970(texts: pa.Array, type: Type, unit_ns: int, cut: bool = False) -> pa.Array:
    """Reads numbers in that unit. cut: digits finer than the type are dropped."""
    if not _holds(texts, b"xX"):
        try:
            return whole_since_1970(texts.cast(pa.int64()), type, unit_ns)
        except pa.ArrowInvalid:
            pass
    target_ns = _unit_ns(type.arrow)
    limit = 1 << 31 if pa.types.is_date32(type.arrow) else 1 << 63

    if cut and unit_ns < target_ns and not _holds(texts, b"xX."):
        try:
            numbers = texts.cast(pa.int64())
            floored = np.floor_divide(numbers.fill_null(0).to_numpy(zero_copy_only=False), target_ns // unit_ns)
            return pa.array(floored, pa.int64(), mask=~_valid(numbers)).view(type.arrow)
        except pa.ArrowInvalid:
            pass

    def read(text: str) -> int | None:
        number = _number(text)
        if cut and number is not None and abs(number.adjusted()) < 30:
            value: int | None = fractions.Fraction(number) * unit_ns // target_ns
        else:
            whole = _whole(number, unit_ns)
            value = None if whole is None or whole % target_ns else whole // target_ns
        return value if value is not None and -limit < value < limit else None

    integers = pa.int32() if pa.types.is_date32(type.arrow) else pa.int64()
    return _each(texts, read, integers).view(type.arrow)


def whole_since_1970(numbers: pa.Array, type: Type, unit_ns: int) -> pa.Array:
    """Returns integers in that unit as times. Raises ArrowInvalid if one of them is invalid."""
    unit = next(name for name, ns in UNITS.items() if ns == unit_ns)
    found = numbers.cast(pa.timestamp(unit))
    return _same_instant(found, type.arrow)


def _unit_ns(type: pa.DataType) -> int:
    return 86_400 * UNITS["s"] if pa.types.is_date(type) else UNITS[type.unit]


def _in_form(texts: pa.Array, type: Type, form: str) -> pa.Array:
    return _in_duckdb(texts, f"TRY_CAST(try_strptime(x, {_text(form)}) AS {type.name})", type.arrow)


def _times_of_day(texts: pa.Array, type: Type) -> pa.Array:
    # Arrow has no time of day 24:00:00, which DuckDB accepts.
    kept = f"CASE WHEN NOT regexp_matches(x, '{_FINER[_finest(type.arrow)]}|^24') THEN x END"
    return _in_duckdb(pc.utf8_trim_whitespace(texts), f"TRY_CAST({kept} AS {type.name})", type.arrow)


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


# ---- values of JSON


def read_raws(raws: Sequence[bytes | None], type: Type, rules: Rules = Rules()) -> tuple[pa.Array, np.ndarray]:
    """Returns raw values of JSON as values of a type; and which of them are bad: bool (n,).

    None is an absent member. A JSON text is read as its content (read_texts), any other value as its JSON text; a
    nested value is accepted whole or not at all."""
    if type.kind not in _NESTED:
        given, there = _texts_of(raws, type)
        found = read_texts(given, type, rules)
        if found.null_count == len(there) - np.count_nonzero(there):
            return found, np.zeros(len(raws), np.bool_)
        return found, there & ~_valid(found)
    bad = np.zeros(len(raws), np.bool_)
    parts: list[Any] = []
    decode = _LIST if type.kind in ("list", "array") else _OBJECT
    for i, raw in enumerate(raws):
        try:
            parts.append(None if raw is None or raw == b"null" else decode(raw))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            parts.append(None)
            bad[i] = True
    return _assembled(parts, type, rules, bad, _read_members)


def _read_members(raws: Sequence[Any], type: Type, rules: Rules) -> tuple[pa.Array, np.ndarray]:
    return read_raws([None if raw is None else bytes(raw) for raw in raws], type, rules)


_LIST = msgspec.json.Decoder(list[msgspec.Raw]).decode
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_STRING = msgspec.json.Decoder(str).decode


def _texts_of(raws: Sequence[bytes | None], type: Type) -> tuple[pa.Array, np.ndarray]:
    """Returns the texts of JSON values, null for unreadable ones, and which of them are present and not null: bool
    (n,)."""
    written = pa.array(raws, pa.binary())
    if _holds(written, b"n"):
        written = pc.if_else(pc.equal(written, b"null"), pa.scalar(None, pa.binary()), written)
    if type.kind not in _TEXTS_ONLY and not _holds(written, b'"'):
        try:
            return written.cast(pa.string()), _valid(written)
        except pa.ArrowInvalid:
            pass
    there = _valid(written)
    texts = [_text_of(raw, type) if some and raw is not None else None for raw, some in zip(raws, there.tolist())]
    return pa.array(texts, pa.string()), there


#: Types whose only values are JSON texts.
_TEXTS_ONLY = ("blob", "choice", "uuid")


def _text_of(raw: bytes, type: Type) -> str | None:
    try:
        if raw[:1] == b'"':
            return _STRING(raw)
        return None if type.kind in _TEXTS_ONLY else raw.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


#: An absent member.
ABSENT = object()


def member(values: Mapping[str, Any], name: str) -> Any:
    """Returns the member of that name, else the one whose name differs in case only; ABSENT if there is none. Raises
    ValueError if there are two of these."""
    if name in values:
        return values[name]
    lowered = name.lower()
    names = [given for given in values if given.lower() == lowered]
    if len(names) > 1:
        raise ValueError(f"member {name} occurs twice, as {' and '.join(names)}")
    return values[names[0]] if names else ABSENT


def _valid(column: pa.Array) -> np.ndarray:
    found: np.ndarray = column.is_valid().to_numpy(zero_copy_only=False)
    return found


#: Reads some values.
_Read: TypeAlias = Callable[[Sequence[Any], Type, Rules], tuple[pa.Array, np.ndarray]]


def _assembled(
    parts: list[Any], type: Type, rules: Rules, bad: np.ndarray, read: _Read
) -> tuple[pa.Array, np.ndarray]:
    """Returns lists and objects as a column, null for None; adds to `bad`. read: reads the nested values."""
    n = len(parts)
    if type.kind == "struct":
        children = []
        for name, inner in type.inner:
            values: list[Any] = []
            for i, part in enumerate(parts):
                value = None
                if part is not None:
                    try:
                        value = member(part, name)
                    except ValueError:
                        bad[i] = True
                    if value is ABSENT:
                        value = None
                        bad[i] |= rules.missing == "error"
                values.append(value)
            child, wrong = read(values, inner, rules)
            bad |= wrong
            children.append(child)
        none = pa.array(np.array([part is None for part in parts], np.bool_) | bad)
        return pa.StructArray.from_arrays(children, fields=list(type.arrow), mask=none), bad
    there = [part or {} for part in parts]
    counts = np.array(list(map(len, there)), np.int64)
    whole = np.array([part is not None for part in parts], np.bool_) & ~bad
    owners = np.repeat(np.arange(n), counts)
    keys = None
    if type.kind == "map":
        keys = read_texts(pa.array([key for part in there for key in part], pa.string()), type.inner[0][1], rules)
        bad[owners[~_valid(keys)]] = True
        values = [value for part in there for value in part.values()]
    else:
        values = [value for part in there for value in part]
    found, wrong = read(values, type.inner[-1][1], rules)
    bad[owners[wrong]] = True
    return _lists(counts, whole, keys, found, type, bad)


def _lists(
    counts: Int64Array, whole: np.ndarray, keys: pa.Array | None, found: pa.Array, type: Type, bad: np.ndarray
) -> tuple[pa.Array, np.ndarray]:
    """Returns lists, arrays or maps of their concatenated elements and their lengths. whole: the present ones; `bad`
    ones are null, and are added to."""
    if type.kind == "array":
        bad |= whole & (counts != type.arrow.list_size)
    whole = whole & ~bad
    keep = whole[np.repeat(np.arange(len(counts)), counts)]
    counts = np.where(whole, counts, 0)
    if not keep.all():
        found = found.filter(pa.array(keep))
        keys = None if keys is None else keys.filter(pa.array(keep))
    if type.kind == "array":
        rows = pa.FixedSizeListArray.from_arrays(found, type.arrow.list_size).cast(type.arrow)
        return rows.take(pa.array(np.cumsum(whole) - 1, mask=~whole)), bad
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    offsets = pa.array(ends, pa.int32(), mask=np.append(~whole, False))
    if keys is not None:
        return pa.MapArray.from_arrays(offsets, keys, found, type.arrow), bad
    return pa.ListArray.from_arrays(offsets, found, type=type.arrow), bad


def _nested_texts(texts: pa.Array, type: Type, rules: Rules) -> pa.Array:
    """Reads texts that are JSON, or DuckDB's own texts of nested values."""
    given = texts.to_pylist()
    raws = [text.strip().encode() if text is not None and is_json(text) else None for text in given]
    if any(raw is None and text is not None for text, raw in zip(given, raws)):
        # DuckDB's reading of such a text with texts as elements, as JSON.
        shape = _shape(type)
        others = pa.array([text if raw is None else None for text, raw in zip(given, raws)], pa.string())
        cast = _in_duckdb(others, f"TRY(CAST(x AS {shape}))", arrow_type(shape)).to_pylist()
        raws = [
            msgspec.json.encode(_as_json(value, type)) if raw is None and value is not None else raw
            for raw, value in zip(raws, cast)
        ]
    return _nulled(*read_raws(raws, type, rules))


def _nulled(column: pa.Array, bad: np.ndarray) -> pa.Array:
    return column.take(pa.array(np.arange(len(column)), mask=bad)) if bad.any() else column


def _shape(type: Type) -> str:
    """Returns the same nested type with texts in it."""
    match type.kind:
        case "list":
            return f"{_shape(type.inner[0][1])}[]"
        case "array":
            return f"{_shape(type.inner[0][1])}[{type.arrow.list_size}]"
        case "struct":
            return f"STRUCT({', '.join(_name(name) + ' ' + _shape(one) for name, one in type.inner)})"
        case "map":
            return f"MAP({_shape(type.inner[0][1])}, {_shape(type.inner[1][1])})"
        case _:
            return "VARCHAR"


def _as_json(value: Any, type: Type) -> Any:
    """Returns a Python value of a type's shape in its JSON form."""
    if value is None:
        return None
    match type.kind:
        case "list" | "array":
            return [_as_json(one, type.inner[0][1]) for one in value]
        case "struct":
            return {name: _as_json(value[name], one) for name, one in type.inner}
        case "map":
            return {key: _as_json(one, type.inner[1][1]) for key, one in value}
        case _:
            return value


# ---- values of Arrow


def read_arrow(column: pa.Array, type: Type, rules: Rules = Rules()) -> tuple[pa.Array, np.ndarray]:
    """Returns values of Arrow as values of a type; and which of them are bad: bool (n,). Texts are read; for a declared
    text, other values become DuckDB's text of them."""
    given = column.type
    t = pa.types
    if t.is_dictionary(given):
        column, given = column.dictionary_decode(), given.value_type
    if t.is_null(given):
        return pa.nulls(len(column), type.arrow), np.zeros(len(column), np.bool_)
    checked = type.kind in ("choice", "uuid", "json")
    if given == type.arrow and not checked and type.kind not in _NESTED:
        return column, np.zeros(len(column), np.bool_)
    there = _valid(column)
    if t.is_string(given) or t.is_large_string(given) or t.is_string_view(given):
        texts = column.cast(pa.string())
        if type.kind != "text" and pc.any(pc.equal(texts, ""), min_count=0).as_py():
            texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            there = _valid(texts)
        found = read_texts(texts, type, rules)
        return found, there & ~_valid(found)
    if checked or type.kind == "text":
        found = read_texts(_in_duckdb(column, "TRY_CAST(x AS VARCHAR)", pa.string()), type, rules)
        return found, there & ~_valid(found)
    if isinstance(column, pa.ExtensionArray):
        column, given = column.storage, column.storage.type
    if type.kind in _NESTED:
        return _nested_arrow(column, type, rules)
    if type.kind in ("timestamp", "date") and t.is_integer(given):
        if rules.times not in UNITS:
            return pa.nulls(len(column), type.arrow), there
        try:
            found = whole_since_1970(column.cast(pa.int64()), type, UNITS[rules.times])
        except pa.ArrowInvalid:
            cut = rules.finer == "cut" and type.kind == "timestamp"
            found = _since_1970(column.cast(pa.string()), type, UNITS[rules.times], cut)
    elif type.kind == "float" and (t.is_integer(given) or t.is_floating(given) or t.is_decimal(given)):
        found = nearest(column.cast(pa.float64(), safe=False), type.arrow)
    else:
        if rules.finer == "cut" and t.is_timestamp(given) and given.unit == "ns" and type.kind == "timestamp":
            column = pc.floor_temporal(column, unit="microsecond") if _finest(type.arrow) == "us" else column
        try:
            found = exact_cast(column, type.arrow) if family(given) == family(type.arrow) else None
        except pa.ArrowInvalid:
            found = None
        numbers = family(given) == "number" and type.kind in ("integer", "decimal")
        if numbers and (found is None or type.name == "UHUGEINT"):
            found = read_texts(column.cast(pa.string()), type, rules)
        elif found is None:
            value, back = f"TRY_CAST(x AS {type.name})", f"AS {_duckdb_name(given)}"
            same = f"CASE WHEN TRY_CAST({value} {back}) IS NOT DISTINCT FROM x THEN {value} END"
            found = _in_duckdb(column, same, type.arrow)
    return found, there & ~_valid(found)


def _duckdb_name(type: pa.DataType) -> str:
    try:
        return duckdb_type(type)
    except duckdb.Error:
        return "NULL"  # DuckDB has no such type: nothing can be cast


def _nested_arrow(column: pa.Array, type: Type, rules: Rules) -> tuple[pa.Array, np.ndarray]:
    t = pa.types
    n = len(column)
    there = _valid(column)
    bad = np.zeros(n, np.bool_)
    given = column.type
    if type.kind == "struct" and t.is_struct(given):
        parts = {given.field(i).name: child for i, child in enumerate(column.flatten())}
        children = []
        for name, inner in type.inner:
            try:
                child = member(parts, name)
            except ValueError:
                child, bad = ABSENT, bad | there
            if child is ABSENT and rules.missing == "error":
                bad = bad | there
            found, wrong = read_arrow(pa.nulls(n) if child is ABSENT else child, inner, rules)
            bad = bad | wrong
            children.append(found)
        return pa.StructArray.from_arrays(children, fields=list(type.arrow), mask=pa.array(~there | bad)), bad
    lists = t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given) or t.is_list_view(given)
    if (type.kind in ("list", "array") and lists) or (type.kind == "map" and t.is_map(given)):
        column = as_lists(column)
        flat = column.flatten()
        counts = pc.list_value_length(column).fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
        owners = np.repeat(np.arange(n), counts)
        keys = None
        if type.kind == "map":
            keys, wrong = read_arrow(flat.field(0), type.inner[0][1], rules)
            bad[owners[wrong]] = True
            flat = flat.field(1)
        found, wrong = read_arrow(flat, type.inner[-1][1], rules)
        bad[owners[wrong]] = True
        return _lists(counts, there, keys, found, type, bad)
    return pa.nulls(n, type.arrow), there


# ---- values of Python


def read_python(values: Sequence[Any], type: Type, rules: Rules = Rules()) -> tuple[pa.Array, np.ndarray]:
    """Returns values of Python, such as those of Avro, as values of a type; and which of them are bad: bool (n,)."""
    bad = np.zeros(len(values), np.bool_)
    if type.kind in _NESTED:
        wanted = list if type.kind in ("list", "array") else dict
        parts = [value if isinstance(value, wanted) else None for value in values]
        for i, (value, part) in enumerate(zip(values, parts)):
            bad[i] = value is not None and part is None
        return _assembled(parts, type, rules, bad, read_python)
    kinds = {value.__class__ for value in values} - {None.__class__}
    if len(kinds) > 1:
        # In parts of one kind each, because Arrow would choose one type for all of them.
        parts_of = [[i for i, value in enumerate(values) if value.__class__ is kind] for kind in kinds]
        none = [i for i, value in enumerate(values) if value is None]
        columns = [pa.nulls(len(none), type.arrow)]
        for some in parts_of:
            found, wrong = read_python([values[i] for i in some], type, rules)
            columns.append(found)
            bad[some] = wrong
        order = np.argsort([*none, *(i for some in parts_of for i in some)], kind="stable")
        return pa.concat_arrays(columns).take(pa.array(order)), bad
    # Arrow ends the process for a Decimal 1e-999999999.
    if decimal.Decimal not in kinds and not (float in kinds and type.kind in ("timestamp", "date")):
        try:
            return read_arrow(pa.array(values), type, rules)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            pass
    # Large integers, numbers that are times, types unknown to Arrow: a double means its shortest digits.
    try:
        texts = pa.array([None if value is None else str(value) for value in values], pa.string())
    except (pa.ArrowException, ValueError):
        texts = pa.array([None if value is None else _encodable(str(value)) for value in values], pa.string())
    found = read_texts(texts, type, rules)
    return found, np.array([value is not None for value in values], np.bool_) & ~_valid(found)


def _encodable(text: str) -> str | None:
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return None


def as_lists(column: pa.Array) -> pa.Array:
    """Returns maps as lists of structs of keys and values, for which Arrow has more functions; lists unchanged."""
    type = column.type
    return column.cast(pa.list_(pa.struct([type.key_field, type.item_field]))) if pa.types.is_map(type) else column


def is_chosen(type: Type) -> bool:
    """True if a type, or one inside it, is an ENUM, UUID or JSON, whose columns in Arrow hold any texts."""
    return type.kind in ("choice", "uuid", "json") or any(is_chosen(inner) for _, inner in type.inner)


def not_chosen(column: pa.Array, type: Type) -> np.ndarray:
    """Returns which values of a column in the Arrow type of such a type are invalid: bool (n,)."""
    if type.inner:
        return read_arrow(column, type, Rules(missing="null"))[1]
    return _valid(column) & ~_valid(read_texts(column, type))


def family(type: pa.DataType) -> str:
    """Returns the family of a type: types of one family are converted into each other if that is exact, others
    never."""
    t = pa.types
    if t.is_integer(type) or t.is_floating(type) or t.is_decimal(type):
        return "number"
    if t.is_string(type) or t.is_large_string(type) or t.is_string_view(type):
        return "string"
    if t.is_binary(type) or t.is_large_binary(type) or t.is_binary_view(type) or t.is_fixed_size_binary(type):
        return "binary"
    if t.is_timestamp(type) or t.is_date(type):
        return "time"
    if t.is_time(type):
        return "time of day"
    if t.is_list(type) or t.is_large_list(type) or t.is_fixed_size_list(type) or t.is_list_view(type):
        return "list"
    return str(type) if t.is_primitive(type) else type.__class__.__name__


def exact_cast(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Returns values of Arrow as those of another type. Raises ArrowInvalid if a value would change."""
    given = column.type
    if pa.types.is_integer(given) and pa.types.is_decimal(target):
        # Arrow requires room for all values of the integer type; decimals are checked value by value.
        column, given = column.cast(pa.decimal128(38, 0)), pa.decimal128(38, 0)
    out = column.cast(target)
    # Arrow's safe cast rounds in some cases: the way back must lead to the same values.
    rounds = any(pa.types.is_floating(x) or pa.types.is_decimal(x) for x in (given, target)) or pa.types.is_date(target)
    if rounds and not _widens(given, target):
        back = out.cast(given)
        same = pc.equal(back, column)
        if pa.types.is_floating(given):
            same = pc.or_(same, pc.is_nan(column))
        if not pc.all(same, min_count=0).as_py():
            raise pa.ArrowInvalid("a value would be rounded")
    return out


def _widens(given: pa.DataType, target: pa.DataType) -> bool:
    return pa.types.is_floating(given) and pa.types.is_floating(target) and given.bit_width <= target.bit_width


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
