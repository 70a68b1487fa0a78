"""The meaning of a text, a value of JSON or a value of Arrow in a declared type, defined here only, for payloads of
live sources and for archived files. docs/sources.md has it as a table.

A value is accepted if and only if it means the same in the declared type: digits beyond the type's precision make it
bad unless they are zeros, with one exception, floating numbers, which take the nearest. Each function has a fast path
for well-formed columns, a few passes of Arrow, and one for others, value by value or through DuckDB's TRY_CAST. Both
give a value the same meaning, whatever its neighbours.

matching/scalar_texts.py and matching/time_texts.py read the texts of scalar types.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array
from matching.scalar_texts import (
    blobs,
    booleans,
    cast_texts,
    decimals,
    floats,
    holds_any,
    in_duckdb,
    integers,
    nearest,
    only,
    uuids,
    valid_of,
)
from matching.time_texts import (
    finest_of,
    iso_times,
    since_1970,
    times_in_form,
    times_of_day,
    whole_since_1970,
    without_finer,
)
from matching.types import arrow_type, contains, duckdb_type
from matching.value_types import DEFAULT_RULES, UNITS, Rules, Type
from query.language.duck import quiet_connection

_NESTED = ("list", "array", "struct", "map")


# ---- texts


def read_texts(texts: pa.Array, type: Type, rules: Rules = DEFAULT_RULES) -> pa.Array:
    """Returns texts as values of a type: null for nulls and for bad texts."""
    match type.kind:
        case "text":
            return texts
        case "integer":
            return integers(texts, type)
        case "decimal":
            return decimals(texts, type)
        case "float":
            return floats(texts, type)
        case "boolean":
            return booleans(texts)
        case "blob":
            return blobs(texts, type)
        case "timestamp" | "date":
            cut = rules.finer == "cut" and type.kind == "timestamp"
            if rules.times in UNITS:
                return since_1970(texts, type, UNITS[rules.times], cut)
            texts = without_finer(texts, type) if cut else texts
            return iso_times(texts, type) if rules.times == "iso" else times_in_form(texts, type, rules.times)
        case "time":
            return times_of_day(without_finer(texts, type) if rules.finer == "cut" else texts, type)
        case "choice":
            choices = pa.array(type.choices, pa.string())
            found = pc.if_else(pc.is_in(texts, choices), texts, pa.scalar(None, pa.string()))
            return found if found.type == type.arrow else found.dictionary_encode().cast(type.arrow)
        case "uuid":
            return uuids(texts)
        case "json":
            return only(texts, [text is None or is_json(text) for text in texts.to_pylist()])
        case "list" | "array" | "struct" | "map":
            return _nested_texts(texts, type, rules)
        case _:
            return cast_texts(texts, type)


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


# ---- values of JSON


def read_raws(raws: Sequence[bytes | None], type: Type, rules: Rules = DEFAULT_RULES) -> tuple[pa.Array, np.ndarray]:
    """Returns raw values of JSON as values of a type; and which of them are bad: bool (n,).

    None is an absent member. A JSON text is read as its content (read_texts), any other value as its JSON text; a
    nested value is accepted whole or not at all."""
    if type.kind not in _NESTED:
        given, there = _texts_of(raws, type)
        found = read_texts(given, type, rules)
        if found.null_count == len(there) - np.count_nonzero(there):
            return found, np.zeros(len(raws), np.bool_)
        return found, there & ~valid_of(found)
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
    if holds_any(written, b"n"):
        written = pc.if_else(pc.equal(written, b"null"), pa.scalar(None, pa.binary()), written)
    if type.kind not in _TEXTS_ONLY and not holds_any(written, b'"'):
        try:
            return written.cast(pa.string()), valid_of(written)
        except pa.ArrowInvalid:
            pass
    there = valid_of(written)
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
        bad[owners[~valid_of(keys)]] = True
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
        cast = in_duckdb(others, f"TRY(CAST(x AS {shape}))", arrow_type(shape)).to_pylist()
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


def read_arrow(column: pa.Array, type: Type, rules: Rules = DEFAULT_RULES) -> tuple[pa.Array, np.ndarray]:
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
    there = valid_of(column)
    if t.is_string(given) or t.is_large_string(given) or t.is_string_view(given):
        texts = column.cast(pa.string())
        if type.kind != "text" and pc.any(pc.equal(texts, ""), min_count=0).as_py():
            texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            there = valid_of(texts)
        found = read_texts(texts, type, rules)
        return found, there & ~valid_of(found)
    if checked or type.kind == "text":
        found = read_texts(in_duckdb(column, "TRY_CAST(x AS VARCHAR)", pa.string()), type, rules)
        return found, there & ~valid_of(found)
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
            found = since_1970(column.cast(pa.string()), type, UNITS[rules.times], cut)
    elif type.kind == "float" and (t.is_integer(given) or t.is_floating(given) or t.is_decimal(given)):
        found = nearest(column.cast(pa.float64(), safe=False), type.arrow)
    else:
        if rules.finer == "cut" and t.is_timestamp(given) and given.unit == "ns" and type.kind == "timestamp":
            column = pc.floor_temporal(column, unit="microsecond") if finest_of(type.arrow) == "us" else column
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
            found = in_duckdb(column, same, type.arrow)
    return found, there & ~valid_of(found)


def _duckdb_name(type: pa.DataType) -> str:
    try:
        return duckdb_type(type)
    except duckdb.Error:
        return "NULL"  # DuckDB has no such type: nothing can be cast


def _nested_arrow(column: pa.Array, type: Type, rules: Rules) -> tuple[pa.Array, np.ndarray]:
    t = pa.types
    n = len(column)
    there = valid_of(column)
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
    if (type.kind in ("list", "array") and family(given) == "list") or (type.kind == "map" and t.is_map(given)):
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


def read_python(values: Sequence[Any], type: Type, rules: Rules = DEFAULT_RULES) -> tuple[pa.Array, np.ndarray]:
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
    return found, np.array([value is not None for value in values], np.bool_) & ~valid_of(found)


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
    return valid_of(column) & ~valid_of(read_texts(column, type))


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
    views = t.is_list_view(type) or t.is_large_list_view(type)
    if t.is_list(type) or t.is_large_list(type) or t.is_fixed_size_list(type) or views:
        return "list"
    return str(type) if t.is_primitive(type) else type.__class__.__name__


def has_list_view(type: pa.DataType) -> bool:
    """True if a type is or contains a list view, which Arrow casts to an invalid array."""
    return contains(type, lambda t: pa.types.is_list_view(t) or pa.types.is_large_list_view(t))


def exact_cast(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Returns values of Arrow as those of another type. Raises ArrowInvalid if a value would change."""
    given = column.type
    if has_list_view(given):
        given = arrow_type(_duckdb_name(given))
        column = in_duckdb(column, "x", given)
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


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
