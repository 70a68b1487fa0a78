"""Objects of JSON as rows of a stream.

Objects whose members are written as the columns are declared are decoded directly by msgspec. Any other one (a number
where a text is declared, 3.0 for an integer, a name in another case) is decoded member by member, and each value is
read as written (matching.values.read_raws). The meaning of an object depends neither on the way it is decoded nor on
other objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array
from matching.checked import Checked, check, time_of, types_of
from matching.json_members import commas, members_twice
from matching.scalar_texts import nearest
from matching.time_texts import whole_since_1970
from matching.value_types import UNITS, Rules, Type
from matching.values import ABSENT, as_lists, member, read_arrow, read_raws, read_texts
from query.schema import Schema

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError)
_NAMED = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_INTEGER = re.compile(rb"-?\d+")
#: Maximum number of objects of a batch that are examined for columns written differently.
_ASKED = 16
_FOUL = "the row is not UTF-8"
_NULL = (None, b"null")
_EMPTY = "the payload is empty (a tombstone?)"


class JsonRows:
    """Reads objects of one stream."""

    __slots__ = (
        "_cased", "_fixed", "_getters", "_object", "_raw", "_raw_object", "_rules", "_schema", "_time", "_types",
    )  # fmt: skip

    def __init__(self, schema: Schema, rules: Rules, fixed: Mapping[int, str | None] | None = None) -> None:
        """fixed: texts of columns that replace the members of all objects, None for null."""
        self._schema = schema
        self._fixed = dict(fixed or {})
        self._rules = rules
        self._types = types_of(schema)
        self._time = time_of(schema)
        #: Columns that are read as written: always, or since a differently written one came.
        self._raw = {i for i, type in enumerate(self._types) if _python_type(type, rules) is msgspec.Raw}
        names = {f"f{i}": name for i, name in enumerate(schema.names)}
        row = msgspec.defstruct("Raws", [(f"f{i}", msgspec.Raw, None) for i in range(len(names))], rename=names)
        self._raw_object = msgspec.json.Decoder(row).decode
        self._getters = [attrgetter(f"f{i}") for i in range(len(names))]
        self._cased = False  # True if a member was looked up under names in another case
        self._decoder()

    def _decoder(self) -> None:
        fields: list[tuple[Any, ...]] = []
        for i, type in enumerate(self._types):
            if i in self._fixed:
                fields.append((f"f{i}", msgspec.Raw, None))
                continue
            kind: Any = msgspec.Raw if i in self._raw else _python_type(type, self._rules) | None
            optional = self._rules.missing == "null" and i != self._time
            fields.append((f"f{i}", kind, None) if optional else (f"f{i}", kind))
        fields.sort(key=len)
        names = {f"f{i}": name for i, name in enumerate(self._schema.names)}
        self._object = msgspec.json.Decoder(msgspec.defstruct("Row", fields, rename=names, gc=False)).decode

    def read(self, payloads: Sequence[bytes | None]) -> Checked:
        """Returns the rows of some objects, one each."""
        self._cased = False
        plain: Sequence[int] = range(len(payloads))
        other: list[int] = []
        try:
            objects = [self._object(payload) for payload in payloads]  # type: ignore[arg-type]
        except _UNREADABLE:
            objects, good = [], []
            for i, payload in enumerate(payloads):
                try:
                    objects.append(self._object(payload))  # type: ignore[arg-type]
                    good.append(i)
                except _UNREADABLE:
                    other.append(i)
            plain = good
        columns = [self._column(i, list(map(get, objects))) for i, get in enumerate(self._getters)]
        again = self._in_other_case(columns, payloads, plain)
        if again:
            keep = np.ones(len(plain), np.bool_)
            keep[again] = False
            columns = [(column.filter(pa.array(keep)), None if bad is None else bad[keep]) for column, bad in columns]
            other = sorted([*other, *(plain[i] for i in again)])
            plain = np.array(plain)[keep].tolist()
        wrong: dict[int, str] = {}
        if other:
            columns = self._with_others(columns, plain, other, payloads, wrong)
        self._unread(columns, payloads, wrong)

        def shown(i: int, row: int) -> str:
            return self._shown(payloads[row] or b"", i)

        found = check(self._schema, columns, shown, wrong, self._rules)
        if found.bad:
            bad = [(row, why if _is_utf8(payloads[row] or b"") else _FOUL) for row, why in found.bad]
            found = replace(found, bad=bad)
        return self._once(found, payloads)

    # ---- objects that are written as declared

    def _column(self, i: int, values: list[Any]) -> tuple[pa.Array, np.ndarray | None]:
        type = self._types[i]
        if i in self._fixed:
            return self._constant(i, len(values))
        if i in self._raw:
            found, bad = read_raws([None if raw is None else bytes(raw) for raw in values], type, self._rules)
            return found, bad if bad.any() else None
        kind = _python_type(type, self._rules)
        if kind is int:
            try:
                if type.kind in ("timestamp", "date"):
                    return whole_since_1970(pa.array(values, pa.int64()), type, UNITS[self._rules.times]), None
                return pa.array(values, type.arrow), None
            except (pa.ArrowException, OverflowError):
                texts = pa.array([None if value is None else str(value) for value in values], pa.string())
        elif kind is float:
            wide = pa.array(values, pa.float64())
            found = wide if type.arrow == wide.type else nearest(wide, type.arrow)
            return found, _lost(wide, found)
        elif kind is bool:
            return pa.array(values, pa.bool_()), None
        else:
            texts = pa.array(values, pa.string())
        found = read_texts(texts, type, self._rules)
        return found, None if found is texts else _lost(texts, found)

    def _constant(self, i: int, count: int) -> tuple[pa.Array, np.ndarray | None]:
        texts = pa.repeat(pa.scalar(self._fixed[i], pa.string()), count)
        found, bad = read_arrow(texts, self._types[i], self._rules)
        return found, bad if bad.any() else None

    def _in_other_case(
        self, columns: list[tuple[pa.Array, np.ndarray | None]], payloads: Sequence[bytes | None], plain: Sequence[int]
    ) -> list[int]:
        """Returns the indices in `plain` of objects that may have an unnoticed member under a name in another case."""
        if self._rules.missing == "error":
            return []  # otherwise an absent member would have been noticed
        lacking = [
            (name, column) for i, (name, (column, bad)) in enumerate(zip(self._schema.names, columns))
            if i not in self._fixed and column.null_count > (0 if bad is None else bad.sum())
        ]  # fmt: skip
        if not lacking:
            return []
        whole = b"\n".join([payloads[i] or b"" for i in plain])
        present = sum(len(plain) - column.null_count for column, _ in columns)
        if not self._fixed and commas(whole) == present - len(plain):
            return []  # there are no other members
        some: set[int] = set()
        lowered = whole.lower()
        for name, column in lacking:
            exact, any_case = f'"{name}"'.encode(), f'"{name.lower()}"'.encode()
            if b"\\" not in whole and name.isascii() and lowered.count(any_case) == whole.count(exact):
                continue
            for at in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
                line = payloads[plain[at]] or b""
                if b"\\" in line or not name.isascii() or line.lower().count(any_case) != line.count(exact):
                    some.add(at)
        return sorted(some)

    # ---- others

    def _with_others(
        self, columns: list[tuple[pa.Array, np.ndarray | None]], plain: Sequence[int], other: list[int],
        payloads: Sequence[bytes | None], wrong: dict[int, str],
    ) -> list[tuple[pa.Array, np.ndarray | None]]:
        """Returns all columns in the order of the payloads. Adds the errors of objects to `wrong`."""
        raws: list[list[bytes | None]] = [[] for _ in self._types]
        for i in other:
            values, why = self._members(payloads[i])
            if why:
                wrong[i] = why
                values = [None] * len(values)
            for column, value in zip(raws, values):
                column.append(value)
        at = np.empty(len(payloads), np.int64)
        at[plain] = np.arange(len(plain))
        at[other] = np.arange(len(plain), len(payloads))
        order = pa.array(at)
        out: list[tuple[pa.Array, np.ndarray | None]] = []
        changed = False
        for i, (column, bad) in enumerate(columns):
            if i in self._fixed:
                out.append(self._constant(i, len(payloads)))
                continue
            more, worse = read_raws(raws[i], self._types[i], self._rules)
            some = np.concatenate([np.zeros(len(plain), np.bool_) if bad is None else bad, worse])
            out.append((pa.concat_arrays([column, more]).take(order), some[at] if some.any() else None))
            if i not in self._raw:
                kind = _python_type(self._types[i], self._rules)
                asked = [raw for raw, no in zip(raws[i][:_ASKED], worse) if raw is not None and not no]
                if not all(_is_written_as(raw, kind) for raw in asked):
                    self._raw.add(i)
                    changed = True
        if changed:
            self._decoder()
        return out

    def _members(self, payload: bytes | None) -> tuple[list[bytes | None], str | None]:
        """Returns the raw value of each column, and the error of the object."""
        nothing: list[bytes | None] = [None] * len(self._types)
        if not payload:
            return nothing, _EMPTY
        try:
            row = self._raw_object(payload)
        except _UNREADABLE as error:
            return nothing, _broken(error)
        values: list[Any] = [get(row) for get in self._getters]
        if any(value is None for value in values):
            try:
                named = _NAMED(payload)
                self._cased = True
                values = [
                    named.get(name) if value is not None else member(named, name)
                    for name, value in zip(self._schema.names, values)
                ]
            except _UNREADABLE:
                pass  # a name that is not UTF-8 is no column's
            except ValueError as error:
                return nothing, str(error)
        raws = [None if value is None or value is ABSENT else bytes(value) for value in values]
        lacking = [
            f"{name} is {'missing' if raw is None else 'null'}"
            for i, (name, raw) in enumerate(zip(self._schema.names, raws))
            if i not in self._fixed
            and ((raw is None and self._rules.missing == "error") or (i == self._time and raw in _NULL))
        ]  # fmt: skip
        return raws, "; ".join(lacking) or None

    def _unread(
        self, columns: list[tuple[pa.Array, np.ndarray | None]], payloads: Sequence[bytes | None], wrong: dict[int, str]
    ) -> None:
        """Marks objects that have no declared member except the time, but others."""
        if len(columns) == 1 or self._rules.missing == "error":
            return
        empty = np.ones(len(payloads), np.bool_)
        for i, (column, bad) in enumerate(columns):
            if i != self._time and i not in self._fixed:
                if not column.null_count:
                    return
                empty &= column.is_null().to_numpy(zero_copy_only=False)
                if bad is not None:
                    empty &= ~bad
        time = self._schema.names[self._time].lower()
        declared = {name.lower() for name in self._schema.names}
        for row in np.flatnonzero(empty).tolist():
            if row in wrong:
                continue
            others = [name for name in names_of(payloads[row] or b"") if name.lower() != time]
            if others and not any(name.lower() in declared for name in others):
                shown = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
                wrong[row] = f"no member but {self._schema.names[self._time]} is a declared column; found {shown}"

    def _shown(self, payload: bytes, i: int) -> str:
        if i in self._fixed:
            return self._fixed[i] or ""
        raw = self._members(payload)[0][i]
        if raw is None:
            return ""
        try:
            text = msgspec.json.decode(raw) if raw[:1] == b'"' else raw.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError):
            text = raw.decode(errors="backslashreplace")
        return str(text)

    def _once(self, found: Checked, payloads: Sequence[bytes | None]) -> Checked:
        """Removes the objects that have a member twice: only the last one was read."""
        n = len(found.indices)
        if not n:
            return found
        lines: Any = payloads if n == len(payloads) else [payloads[i] for i in found.indices.tolist()]
        rows = found.rows
        read = [i for i in range(len(self._types)) if i not in self._fixed]
        names = self._schema.names
        present = {names[i]: n - rows.column(i).null_count for i in read}
        nested = [names[i] for i in read if self._types[i].inner]
        inside = sum(_commas_inside(rows.column(i), self._types[i]) for i in read if self._types[i].inner)
        twice = members_twice(b"\n".join(lines), lambda: lines, n, present, nested, inside, self._cased)
        if not twice:
            return found
        keep = np.ones(n, np.bool_)
        keep[[i for i, _ in twice]] = False
        bad = [*found.bad, *((int(found.indices[i]), f"member {name} occurs twice") for i, name in twice)]
        at: Int64Array = found.indices[keep]
        return Checked(rows.filter(pa.array(keep)), found.ts_us[keep], at, sorted(bad))


def _commas_inside(column: pa.Array, type: Type) -> int:
    """Returns the number of commas between the parts of nested values, as read."""
    there = len(column) - column.null_count
    if type.kind == "struct":
        parts = list(zip(column.flatten(), (inner for _, inner in type.inner)))
        own = sum(len(part) - part.null_count for part, _ in parts) - there
    else:
        column = as_lists(column)
        flat = column.flatten()
        lengths = pc.list_value_length(column)
        own = len(flat) - (pc.sum(pc.greater(lengths, 0), min_count=0).as_py() or 0)
        inner = type.inner[-1][1]
        parts = [(flat.field(1) if type.kind == "map" else flat, inner)]
    return int(own) + sum(_commas_inside(part, inner) for part, inner in parts if inner.inner)


def names_of(payload: bytes) -> list[str]:
    """Returns the members of an object; [] for a payload that is none."""
    try:
        return list(_NAMED(payload))
    except _UNREADABLE:
        return []


def _lost(given: pa.Array, found: pa.Array) -> np.ndarray | None:
    if given.null_count == found.null_count:
        return None
    lost: np.ndarray = pc.and_(given.is_valid(), found.is_null()).to_numpy(zero_copy_only=False)
    return lost


def _python_type(type: Type, rules: Rules) -> Any:
    """Returns the type for which msgspec decodes a value that is written as declared."""
    match type.kind:
        case "text" | "blob" | "time" | "choice" | "uuid" | "other":
            return str
        case "integer":
            return int if pa.types.is_integer(type.arrow) else msgspec.Raw
        case "float":
            return float
        case "boolean":
            return bool
        case "timestamp" | "date":
            return int if rules.times in UNITS else str
        case _:
            return msgspec.Raw


def _is_written_as(raw: bytes, kind: Any) -> bool:
    if raw == b"null":
        return True
    if kind is int:
        return _INTEGER.fullmatch(raw) is not None
    if kind is float:
        return raw[:1] in b"-0123456789"
    return raw[:1] in (b"tf" if kind is bool else b'"')


def _broken(error: BaseException) -> str:
    if isinstance(error, msgspec.ValidationError):
        return f"not a JSON object: {error}"
    if isinstance(error, RecursionError):
        return "broken JSON: it is nested too deeply"
    return f"broken JSON: {error}"


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode()
        return True
    except UnicodeDecodeError:
        return False
