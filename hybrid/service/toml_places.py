"""Finds the positions of keys and values in a TOML text, which tomllib does not report, for errors that point there."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

from query.errors import Diagnostic, QueryError, Span

#: The path of a value: names of tables and keys, and indexes in arrays.
Path = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*'""")
_DOT = re.compile(r"[ \t]*\.[ \t]*")
_IS = re.compile(r"[ \t]*=[ \t]*")
# A multi-line string may have one or two quotes right before the three that end it.
_STRING = re.compile(
    r'''"""(?:\\.|[^\\])*?"""(?:"{0,2})|\'\'\'.*?\'\'\'(?:'{0,2})|"(?:\\.|[^"\\\n])*"|'[^'\n]*\'''', re.DOTALL
)
_BARE = re.compile(r"[^,\]}#\n]*")
_ESCAPE = re.compile(r"\\(?:u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|x[0-9A-Fa-f]{2}|(?P<goes_on>[ \t]*\n\s*)|.)", re.DOTALL)
_WHERE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Places:
    """Positions in a TOML text. keys: the position of a path's last name; of a table, in its first header. values: the
    position of its value; of a table, the same as its key."""

    text: str
    keys: dict[Path, Span]
    values: dict[Path, Span]

    def key(self, path: Path) -> Span:
        """Returns the position of a key; if it does not exist, that of the nearest table around it."""
        return self._nearest(self.keys, path)

    def value(self, path: Path) -> Span:
        """Returns the position of a value; if it does not exist, that of the nearest table around it."""
        return self._nearest(self.values, path)

    def _nearest(self, spans: dict[Path, Span], path: Path) -> Span:
        while path and path not in spans:
            path = path[:-1]
        return spans.get(path, Span(0, 0))

    def in_string(self, path: Path, span: Span) -> Span:
        """Returns the position in the text of a range of characters of a string value."""
        characters = written(self.text, self.values[path])
        start, end = (max(0, min(at, len(characters) - 1)) for at in (span.start, span.end))
        return Span(characters[start], characters[end - 1] + 1 if end > start else characters[start])


def read_toml(text: str) -> tuple[dict[str, Any], Places]:
    """Returns the content of a TOML text, and its positions. Lines must end with "\\n". Raises QueryError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        where = _WHERE.search(said)
        at = len(text.rstrip())
        if where and where[1]:
            lines = text.split("\n")
            at = sum(len(line) + 1 for line in lines[: int(where[1]) - 1]) + int(where[2]) - 1
        message = said[: where.start()] if where else said
        raise QueryError([Diagnostic("HQ700", message, Span(at, at + 1))], text) from None
    return data, _Scanner(text).scan()


def written(text: str, span: Span) -> list[int]:
    """Returns the position of each character of a string value, and last the end of the string."""
    quotes = 3 if text.startswith(('"""', "'''"), span.start) else 1
    at, end = span.start + quotes, span.end - quotes
    if quotes == 3 and text[at] == "\n":
        at += 1
    basic = text[span.start] == '"'
    found = []
    while at < end:
        escape = _ESCAPE.match(text, at) if basic and text[at] == "\\" else None
        if escape is None or escape["goes_on"] is None:
            found.append(at)
        at = at + 1 if escape is None else escape.end()
    return [*found, end]


class _Scanner:
    """Scans a text that tomllib has parsed, so it need not check for faults."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.keys: dict[Path, Span] = {}
        self.values: dict[Path, Span] = {}
        self.counts: dict[Path, int] = {}

    def scan(self) -> Places:
        table: Path = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return Places(self.text, self.keys, self.values)

    def _skip(self, what: re.Pattern[str]) -> None:
        found = what.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def _names(self, base: Path) -> Path:
        """Reads a dotted key below `base`, and notes the position of each part."""
        path = base
        while True:
            found = _KEY.match(self.text, self.at)
            assert found is not None
            name = found[0] if found[0][0] not in "\"'" else tomllib.loads(f"k = {found[0]}")["k"]
            if path in self.counts:  # the key belongs to the last table of the array
                path = (*path, self.counts[path] - 1)
            path = (*path, name)
            span = Span(self.at, found.end())
            self.keys.setdefault(path, span)
            self.values.setdefault(path, span)
            self.at = found.end()
            dot = _DOT.match(self.text, self.at)
            if dot is None:
                return path
            self.at = dot.end()

    def _header(self) -> Path:
        of_array = self.text.startswith("[[", self.at)
        self.at += 2 if of_array else 1
        self._skip(re.compile(r"[ \t]*"))
        path = self._names(())
        self._skip(re.compile(r"[ \t]*\]{1,2}"))
        if of_array:
            self.counts[path] = self.counts.get(path, 0) + 1
            path = (*path, self.counts[path] - 1)
            self.keys[path] = self.values[path] = self.keys[path[:-1]]
        return path

    def _pair(self, table: Path) -> None:
        path = self._names(table)
        self._skip(_IS)
        self._value(path)

    def _value(self, path: Path) -> None:
        start = self.at
        match self.text[start]:
            case "{":
                self._list("}", lambda i: self._pair(path))
            case "[":
                self._list("]", lambda i: self._value((*path, i)))
            case '"' | "'":
                self._skip(_STRING)
            case _:
                self._skip(_BARE)
                self.at = start + len(self.text[start : self.at].rstrip())
        self.values[path] = Span(start, self.at)

    def _list(self, end: str, item: Any) -> None:
        self.at += 1
        self._skip(_BLANK)
        i = 0
        while self.text[self.at] != end:
            item(i)
            i += 1
            self._skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
                self._skip(_BLANK)
        self.at += 1
