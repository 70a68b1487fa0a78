"""Detects JSON objects that have a declared member twice: readers silently take the first or the last one.

Good objects cost a few hundredths of a microsecond: a count over all of them together shows whether a second member is
possible; only then are objects examined one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

#: A member whose name is written with an escape; texts of values that look like one cause a needless examination.
_ESCAPED_NAME = re.compile(rb'\\(?:[^"\\]|\\.)*"\s*:')
_NAME = re.compile(rb'"((?:[^"\\]|\\.)*)"\s*:')


def members_twice(
    whole: bytes, lines: Callable[[], Sequence[bytes]], count: int, present: Mapping[str, int],
    nested: Collection[str] = (), inside: int = 0, cased: bool = False,
) -> list[tuple[int, str]]:  # fmt: skip
    """Returns which JSON objects have a member twice: (index, name of the member), by index.

    whole: all of them, one after the other; lines: returns each by itself; count: their number. present: the declared
    members, and the number of objects that have each with a value that is not null. nested: those whose values may be
    objects, which may have members twice too (named by their path); inside: the number of commas needed by the nested
    values read. cased: True if some were found under names in another case. Undeclared members may occur twice."""
    if commas(whole) == sum(present.values()) - count + inside:
        return []  # all commas are between members with a value
    names = {name: _written(name) for name in present}
    if nested or None in names.values() or (b"\\" in whole and _ESCAPED_NAME.search(whole)):
        some = [i for i, line in enumerate(lines()) if b"\\" in line or _repeats(line)]
    else:
        written = [(name, text) for name, text in names.items() if text is not None]
        more = [text for name, text in written if cased or whole.count(text) != present[name]]
        some = [i for i, line in enumerate(lines()) if any(line.count(text) > 1 for text in more)] if more else []
    if not some:
        return []
    each = lines()
    found = ((i, _twice(each[i], present)) for i in some)
    return [(i, name) for i, name in found if name is not None]


def commas(whole: bytes) -> int:
    """Returns the number of commas, including those in texts."""
    return int(np.count_nonzero(np.frombuffer(whole, np.uint8) == ord(",")))


def _written(name: str) -> bytes | None:
    """Returns a name as written in an object, if it can be written without an escape in one way only."""
    text = json.dumps(name, ensure_ascii=False)
    return text.encode() if text == f'"{name}"' else None


def _repeats(line: bytes) -> bool:
    """True if one name occurs twice in an object, at any depth; names with escapes are ignored."""
    names = _NAME.findall(line)
    return len(set(names)) < len(names)


class _Members(list[tuple[str, Any]]):
    """A JSON object as written."""


def _twice(line: bytes, declared: Collection[str]) -> str | None:
    """Returns the first declared member that an object has twice, or the path of one inside it; None if there is
    none."""
    try:
        members = json.loads(line, object_pairs_hook=_Members)
        return _first_twice(members, declared) if isinstance(members, _Members) else None
    except (ValueError, RecursionError):
        return None  # invalid JSON is reported elsewhere


def _first_twice(value: Any, declared: Collection[str] | None = None) -> str | None:
    if not isinstance(value, _Members):
        return next(filter(None, map(_first_twice, value)), None) if isinstance(value, list) else None
    seen: set[str] = set()
    for name, inner in value:
        if declared is None or name in declared:
            if name in seen:
                return name
            seen.add(name)
            if (path := _first_twice(inner)) is not None:
                return f"{name}.{path}"
    return None
