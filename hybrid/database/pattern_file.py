"""The file of a database's named patterns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archive.place import Place
from query.errors import DataError, first_line

#: In the directory of a database.
PATTERNS = "_patterns.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class NamedPattern:
    """name: as it was written. text: its query."""

    name: str
    text: str


def write_patterns(database: Place, patterns: Mapping[str, NamedPattern]) -> None:
    """Writes all named patterns, or none if that fails. Raises DataError."""
    state = {"version": _VERSION, "patterns": {p.name: p.text for p in patterns.values()}}
    file = database / PATTERNS
    try:
        file.write_text(json.dumps({**state, "sum": _sum(state)}, indent=1))
        database.sync()
    except OSError as error:
        message = f"{file} cannot be written: {first_line(error)}"
        raise DataError(message, "the patterns are unchanged: free disk space or grant write permission") from error


def read_patterns(database: Place) -> dict[str, NamedPattern]:
    """Returns the named patterns of a database by name in lower case; none if it has no file of them. Raises DataError
    for a damaged file."""
    file = database / PATTERNS
    try:
        state = json.loads(file.read_text())
        if not isinstance(state, dict) or not state.keys() >= {"version", "patterns", "sum"}:
            raise ValueError("it is not a file of named patterns")
        written = state.pop("sum")
        if state["version"] != _VERSION:
            raise DataError(f"{file} has version {state['version']}", f"this program reads version {_VERSION}")
        if written != _sum(state):
            raise ValueError("its checksum does not match")
        patterns = state["patterns"]
        if not isinstance(patterns, dict) or not all(isinstance(text, str) for text in patterns.values()):
            raise ValueError("its patterns are not texts by name")
        if len({name.lower() for name in patterns}) < len(patterns):
            raise ValueError("two of its patterns have one name")
        return {name.lower(): NamedPattern(name, text) for name, text in state["patterns"].items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise DataError(f"{file} cannot be read: {first_line(error)}", "check the path and its permissions") from None
    except (ValueError, RecursionError) as error:
        hint = "restore it from a copy, or run hybrid archive repair, which sets it aside; running queries keep theirs"
        raise DataError(f"{file} is damaged: {error}", hint) from None


def patterns_fault(database: Place) -> str | None:
    """Returns the fault of the file of named patterns, or None."""
    try:
        read_patterns(database)
    except DataError as error:
        return first_line(error)
    return None


def _sum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
