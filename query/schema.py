"""The shape of a stream: its columns with DuckDB types, its time, key, tie columns and lateness.

Time is int64 microseconds, UTC, everywhere; names of such values end in `_us`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

_NAMED = re.compile(r"""'(?:[^']++|'')*+'|"(?:[^"]++|"")*+\"""")
#: Types that DuckDB exports to Arrow as another type. (The name of a field stands before another word.)
_UNFAITHFUL = re.compile(r"\b(BIT|UHUGEINT|TIME WITH TIME ZONE|UNION|VARIANT|GEOMETRY|BIGNUM|TYPE)(?=$|[(),[])")


def without_names(type: str) -> str:
    """Returns a DuckDB type without the values of ENUMs and quoted names of fields."""
    return _NAMED.sub("", type)


def is_unfaithful(type: str) -> bool:
    """True for a type that DuckDB exports to Arrow as another one or as nothing that Arrow reads, or that has such a
    type in it."""
    return _UNFAITHFUL.search(without_names(type)) is not None


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name as declared and its DuckDB type, for example `BIGINT`, `DECIMAL(9,2)`, `TIMESTAMP`."""

    name: str
    type: str


#: The column of merged inputs that names the stream or table of each row.
STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of an input and, if it is a stream or has one, its time.

    time: name of the time column, or None for a plain relation. keys: columns most queries partition by.
    order: tie columns, compared after the time. lateness_us, retention_us: microseconds; 0 and None by default.
    """

    name: str
    fields: tuple[Field, ...]
    time: str | None = None
    keys: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    lateness_us: int = 0
    retention_us: int | None = None

    def field(self, name: str) -> Field | None:
        """Returns the column of that name, or None; names compare without case, as in DuckDB."""
        lowered = name.lower()
        return next((f for f in self.fields if f.name.lower() == lowered), None)

    def column(self, name: str) -> Field:
        """Returns the column of that name, which must exist."""
        field = self.field(name)
        assert field is not None, f"{self.name} has no column {name}"
        return field

    def widens(self, other: Schema) -> bool:
        """True if it is the other with more columns at the end."""
        count = len(other.fields)
        return len(self.fields) > count and replace(self, fields=self.fields[:count]) == other

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the columns, in order."""
        return tuple(f.name for f in self.fields)

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON; `from_dict` gives an equal schema."""
        return {
            "name": self.name, "fields": [[f.name, f.type] for f in self.fields], "time": self.time,
            "keys": list(self.keys), "order": list(self.order), "lateness_us": self.lateness_us,
            "retention_us": self.retention_us,
        }  # fmt: skip

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Schema:
        """Returns the schema of a dict. Ignores other keys. Raises KeyError, TypeError or ValueError for an invalid
        one."""
        return Schema(
            stored["name"], tuple(Field(name, type) for name, type in stored["fields"]), stored["time"],
            tuple(stored["keys"]), tuple(stored["order"]), stored["lateness_us"], stored["retention_us"],
        )  # fmt: skip

    def __str__(self) -> str:
        columns = ", ".join(f"{f.name} {f.type}" for f in self.fields)
        return f"{self.name}({columns})" + (f" time {self.time}" if self.time else "")
