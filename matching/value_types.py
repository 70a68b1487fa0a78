"""A declared type, and the rules by which its values are read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from matching.types import plain_type
from query.language.duck import quiet_connection

Kind: TypeAlias = Literal[
    "text", "integer", "decimal", "float", "boolean", "blob", "timestamp", "date", "time", "choice", "uuid", "json",
    "list", "array", "struct", "map", "other",
]  # fmt: skip

Finer: TypeAlias = Literal["error", "cut"]

#: Units of times that are numbers since 1970, in nanoseconds.
UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


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


DEFAULT_RULES = Rules()


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
            inner = tuple((part, _type(one, str(one), plain_type(str(one)))) for part, one in parts)
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
