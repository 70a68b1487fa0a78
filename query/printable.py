"""Escapes control characters in texts that people read, so that foreign text forges no line and no colour."""

from __future__ import annotations

import re
from typing import Any

#: C0 and C1 controls, DEL, line and paragraph separators, lone surrogates, and what changes the direction of a text.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROLS_IN_LINES = re.compile(_CONTROLS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def printable(text: str) -> str:
    """Returns a text on one line, with control characters as escapes: `\\n`, `\\x1b`, `\\u202e`."""
    return _CONTROLS.sub(_escape, text)


def printable_lines(text: str, indent: str = "") -> str:
    """Returns a text of ours that may quote others: tabs and line breaks stay, other control characters are escapes.
    indent: begins each line after the first, so that none looks like a new message."""
    return _CONTROLS_IN_LINES.sub(_escape, text).replace("\n", f"\n{indent}")


def printable_values(value: Any) -> Any:
    """Returns dicts and lists of JSON with all their texts and keys printable, their line breaks kept."""
    match value:
        case str():
            return printable_lines(value, "  ")
        case dict():
            return {printable(key): printable_values(one) for key, one in value.items()}
        case list():
            return [printable_values(one) for one in value]
    return value


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
