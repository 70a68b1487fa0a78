"""What expressions of a pattern take over from a user's connection: settings, values, macros, types, functions."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from query.errors import DataError

#: Settings of DuckDB that differ from the defaults, by name: TimeZone, integer_division, default_null_order, ...
Settings = tuple[tuple[str, str], ...]
#: The name of a setting whose value is a `Lent`.
FUNCTIONS = "functions of the connection"
#: Numbers of `Lent`.
_lent = count()


class Lent(str):
    """Names of a user's functions, and a number, with the DuckDB connection that has them: in settings, for one
    statement.

    Expressions with such settings are computed on cursors of that connection."""

    #: A weak reference: settings are remembered for longer than a connection lives.
    connection: weakref.ref[Any]
    names: frozenset[str]

    @staticmethod
    def of(connection: Any, names: Collection[str]) -> Lent:
        made = Lent(f"{', '.join(sorted(names))} (statement {next(_lent)})")
        made.connection, made.names = weakref.ref(connection), frozenset(names)
        return made

    def cursor(self, settings: Settings) -> Any:
        """Returns a cursor of the connection, with the other settings."""
        owner = self.connection()
        if owner is None:
            raise DataError(f"the connection that has {', '.join(sorted(self.names))} is closed", "keep it open")
        cursor = owner.cursor()
        for name, value in to_set(settings):
            quoted = value.replace("'", "''")
            cursor.execute(f"SET {name}='{quoted}'")
        return cursor


def lent_in(settings: Settings) -> Lent | None:
    """Returns the connection whose functions expressions call, None without such functions."""
    return next((value for _, value in settings if isinstance(value, Lent)), None)


def needed(sql: str, settings: Settings) -> Settings:
    """Returns the settings that a text depends on: without those of functions that it does not call."""
    lent = lent_in(settings)
    if lent is None or not lent.names.isdisjoint(re.findall(r"\w+", sql.lower())):
        return settings
    return tuple(one for one in settings if one[1] is not lent)


def to_set(settings: Settings) -> Settings:
    """Returns the settings that connections of ours get. Our own statements rely on the default order."""
    return tuple(one for one in settings if one[0] not in (FUNCTIONS, "default_order"))


#: Time zones equal to UTC.
UTC = ("UTC", "Etc/UTC")


@dataclass(frozen=True, slots=True)
class Overload:
    """One body of a macro. signature: its parameters as in CREATE MACRO, with types and defaults. types: of the
    parameters, None for any. defaults: SQL by parameter in lower case."""

    signature: str
    parameters: tuple[str, ...]
    types: tuple[str | None, ...]
    defaults: Mapping[str, str]
    body: str


@dataclass(frozen=True, slots=True)
class Session:
    """The properties of a user's connection that expressions of a pattern depend on.

    settings: those that are adopted. value: returns SQL of an expression's value on that connection, None if it has
    none; value None: there is no connection. macros, types: names of its own macros and types, lower case. overloads:
    returns the bodies of a macro that a path of names calls, none for a macro that is out of reach. type: returns what
    a type stands for. functions: names of its other functions that DuckDB alone does not have, lower case."""

    settings: Settings = ()
    value: Callable[[str], str | None] | None = None
    macros: frozenset[str] = frozenset()
    overloads: Callable[[tuple[str, ...]], tuple[Overload, ...]] = lambda path: ()
    types: frozenset[str] = frozenset()
    type: Callable[[str], str] = str
    functions: frozenset[str] = frozenset()

    @property
    def nulls_first(self) -> tuple[bool, bool]:
        """Returns whether nulls come first in ascending order, and in descending order."""
        order = dict(self.settings).get("default_null_order", "")
        return order.startswith("NULLS_FIRST"), order in ("NULLS_FIRST", "NULLS_LAST_ON_ASC_FIRST_ON_DESC")

    @property
    def descends(self) -> bool:
        """True if ORDER BY without a direction is descending."""
        return dict(self.settings).get("default_order", "").startswith("DESC")


NO_SESSION = Session()


def zoned(settings: Settings) -> bool:
    """True if times with a time zone read differently from UTC, or cannot be cast."""
    changed = dict(settings)
    other = not {"Calendar", "disable_timestamptz_casts"}.isdisjoint(changed)
    return other or changed.get("TimeZone", "UTC") not in UTC


def collation_of(settings: Settings) -> str:
    """Returns the collation of text, in lower case; empty for byte order."""
    return dict(settings).get("default_collation", "").lower()


def collation_key(collation: str, sql: str) -> str:
    """Returns SQL of a text whose byte order is the order of `sql` under a collation, which is not empty."""
    parts = collation.split(".")
    for part in sorted(parts, key=lambda p: p not in _COMBINED):  # a language comes last
        sql = f"{_COMBINED[part]}({sql})" if part in _COMBINED else f"icu_sort_key({sql}, '{part}')"
    return sql


#: Collations that prepare a text for another one, and their functions.
_COMBINED = {"nocase": "lower", "noaccent": "strip_accents", "nfc": "nfc_normalize"}
