"""Several inputs as one by time: the columns of `MERGE(a, b)`, and where each input has them.

Columns of equal name become one column, of a type that holds all values; an input that lacks one has null there. The
time column is named as in the first input. A leading column, STREAM, names the input of each row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from query.errors import Diagnostic, Span
from query.language import duck
from query.language.duck import DuckFault
from query.schema import STREAM, Field, Schema

#: Types of event times.
TIMES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE")


@dataclass(frozen=True, slots=True)
class MergedInput:
    """One of the merged inputs. name: its value of STREAM. input_sql: as of FactorPlan. schema: its columns, with a
    time. places: as `positions` returns, if columns of the merged input are not found by their names."""

    name: str
    input_sql: str
    schema: Schema
    places: tuple[int | None, ...] = ()


def positions(merged: Schema, member: Schema) -> tuple[int | None, ...]:
    """Returns, for each column of the merged input, the index of the member's column; None for STREAM and for one it
    lacks."""
    own = {f.name.lower(): i for i, f in enumerate(member.fields)}
    time = own.pop((member.time or "").lower())
    found = [own.get(f.name.lower()) for f in merged.fields]
    found[merged.names.index(merged.time or "")] = time
    found[0] = None
    return tuple(found)


def merge(
    name: str, inputs: Sequence[tuple[MergedInput, Span]], order: str | None, faults: list[Diagnostic]
) -> tuple[Schema, tuple[MergedInput, ...]] | None:
    """Returns the merged input and its members, each with its time; None after adding faults to `faults`.

    inputs: with their spans in the text. order: the column that ORDER BY begins with, if there is one."""
    before = len(faults)

    def fault(message: str, span: Span, label: str = "", hint: str = "") -> None:
        faults.append(Diagnostic("HQ219", message, span, label, hint))

    declared = next((m.schema.time for m, _ in inputs if m.schema.time is not None), None)
    members = []
    for member, span in inputs:
        schema = member.schema
        time = schema.time or _time_of(schema, order or declared)
        if time is None:
            times = [f.name for f in schema.fields if f.type in TIMES]
            has = f"has several times: {', '.join(times)}" if times else "has no time column"
            fault(f"inputs are merged by time, and {member.name} {has}", span, "when?", "say which by ORDER BY"
                  if times else "merge streams, or tables with a TIMESTAMP")
        elif schema.field(STREAM) is not None:
            fault(f"{member.name} has a column {STREAM}", span, "reserved for the name of the stream in merged rows",
                  "rename it by WITH, or declare the stream with another column name")
        members.append(replace(member, schema=replace(schema, time=time)))
    if len(faults) > before:
        return None
    time = members[0].schema.time or ""
    types: dict[str, str] = {}
    spelt: dict[str, str] = {}
    first: dict[str, str] = {}
    for member, (_, span) in zip(members, inputs):
        for f in member.schema.fields:
            is_time = f.name == member.schema.time
            key = time.lower() if is_time else f.name.lower()
            if key == time.lower() and not is_time:
                fault(f"{member.name}.{f.name} is not its time, but {time} is the time of the merged rows", span,
                      f"its time is {member.schema.time}", f"rename one of the two columns {time}")
                continue
            both = _common(types[key], f.type) if key in types else f.type
            if both is None:
                fault(f"{f.name} is {f.type} in {member.name} and {types[key]} in {first[key]}", span,
                      "one column of two types", "cast one of them by WITH, or declare the streams alike")
                continue
            types[key] = both
            spelt.setdefault(key, time if is_time else f.name)
            first.setdefault(key, member.name)
    order_of_ties = ties(members, [span for _, span in inputs], faults)
    if len(faults) > before:
        return None
    fields = (Field(STREAM, "VARCHAR"), *(Field(spelt[key], type) for key, type in types.items()))
    return Schema(name, fields, time, order=order_of_ties), tuple(members)


def _time_of(schema: Schema, wanted: str | None) -> str | None:
    """Returns the time of a plain table: the wanted column, or the only time it has."""
    named = schema.field(wanted) if wanted is not None else None
    if named is not None and named.type in TIMES:
        return named.name
    times = [f.name for f in schema.fields if f.type in TIMES]
    return times[0] if len(times) == 1 else None


def _common(a: str, b: str) -> str | None:
    """Returns the type that holds every value of both exactly: of equal types, numbers, times, and texts. None if there
    is none."""
    if a == b:
        return a
    families = [{_family(a), _family(b)} <= family for family in _FAMILIES]
    if not any(families):
        return None
    try:
        both = duck.describe([f"coalesce(CAST(NULL AS {a}), CAST(NULL AS {b}))"], {})[0]
    except DuckFault:
        return None
    return both if not families[0] or (_holds(both, a) and _holds(both, b)) else None


_INTEGER_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64, "HUGEINT": 128}
_MANTISSA_BITS = {"FLOAT": 24, "DOUBLE": 53}
_FAMILIES = (
    {*_INTEGER_BITS, *(f"U{name}" for name in _INTEGER_BITS), *_MANTISSA_BITS, "DECIMAL"},
    {"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"},
    {"VARCHAR", "ENUM"},
)


def _family(type: str) -> str:
    return type[: type.index("(")] if type.startswith(("DECIMAL(", "ENUM(")) else type


def _range(type: str) -> tuple[int, int, int]:
    """Returns, for an integer or DECIMAL type, the least and largest value, times 10 ** scale, and the scale."""
    if decimal := re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", type):
        largest = 10 ** int(decimal[1]) - 1
        return -largest, largest, int(decimal[2])
    if type in _INTEGER_BITS:
        return -(2 ** (_INTEGER_BITS[type] - 1)), 2 ** (_INTEGER_BITS[type] - 1) - 1, 0
    return 0, 2 ** _INTEGER_BITS[type[1:]] - 1, 0


def _holds(wide: str, type: str) -> bool:
    """True if a numeric type holds every value of another one."""
    if type in _MANTISSA_BITS:
        return wide in _MANTISSA_BITS and _MANTISSA_BITS[wide] >= _MANTISSA_BITS[type]
    low, high, scale = _range(type)
    if wide in _MANTISSA_BITS:
        return scale == 0 and max(-low, high) <= 2 ** _MANTISSA_BITS[wide]
    least, largest, places = _range(wide)
    return scale <= places and least <= low * 10 ** (places - scale) and high * 10 ** (places - scale) <= largest


def ties(members: Sequence[MergedInput], spans: Sequence[Span], faults: list[Diagnostic]) -> tuple[str, ...]:
    """Returns the tie columns of merged inputs: those common to all members, STREAM, and those that one has alone."""
    orders = [tuple(o.lower() for o in m.schema.order) for m in members]
    common = 0
    while all(len(o) > common and o[common] == orders[0][common] for o in orders):
        common += 1
    rest: list[str] = []
    for i, (member, span) in enumerate(zip(members, spans)):
        for tie in member.schema.order[common:]:
            sharing = next((m.name for k, m in enumerate(members) if k != i and m.schema.field(tie) is not None), None)
            if sharing is not None:
                faults.append(Diagnostic(
                    "HQ219", f"{tie} orders events of equal time in {member.name}, and {sharing} has such a column too",
                    span, "another order in each", f"declare both streams with order=['{tie}']"))  # fmt: skip
            rest.append(tie)
    return (*members[0].schema.order[:common], STREAM, *rest)
