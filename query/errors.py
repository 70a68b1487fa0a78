"""Errors that point at the query text: spans, diagnostics, the one caret renderer, and the table of codes."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of characters, [start, end), of the query text."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """The smallest span that covers both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


NOWHERE = Span(0, 0)

#: Every code a QueryError may carry, with what it says in general. docs/errors.md is checked against this table.
CODES: dict[str, str] = {
    "HQ100": "the text is not a query of this language",
    "HQ101": "a MATCH_RECOGNIZE clause could not be read",
    "HQ102": "a scalar expression could not be read",
    "HQ103": "a clause appears twice or out of order",
    "HQ104": "a quantifier that can never be met",
    "HQ105": "an interval that is not a fixed length of time",
    "HQ200": "a table or stream that does not exist",
    "HQ201": "a column that does not exist",
    "HQ202": "a row pattern variable that is not in PATTERN",
    "HQ203": "a row pattern variable that is defined twice",
    "HQ204": "DEFINE names a variable that is not in PATTERN",
    "HQ205": "a type that does not fit",
    "HQ206": "two output columns of one name",
    "HQ207": "one call that mixes row pattern variables",
    "HQ208": "a navigation that does not nest as physical(logical())",
    "HQ209": "FINAL in DEFINE",
    "HQ210": "an aggregate inside an aggregate or a navigation",
    "HQ211": "WITHIN needs an order by time",
    "HQ212": "a stream is ordered by its time first",
    "HQ213": "a volatile function has no fixed answer on a stream",
    "HQ214": "negation at the start or end needs WITHIN",
    "HQ215": "AFTER MATCH, WITH UNMATCHED ROWS or TIMEOUT ROWS does not fit",
    "HQ216": "a subset that does not fit",
    "HQ217": "an output without columns",
    "HQ218": "a reference to the events of a SASE+ variable that does not fit",
    "HQ219": "inputs that cannot be merged into one",
    "HQ220": "a live pattern over rows whose time has no bound",
    "HQ300": "a JOIN HISTORY that cannot be answered",
    "HQ301": "a history range that is not made of times",
    "HQ400": "an outer SELECT that has no answer on an unbounded stream",
    "HQ500": "not supported yet",
    "HQ600": "the pattern needs more positions or partial matches than its budget",
    "HQ601": "AFTER MATCH SKIP TO would not move on",
    "HQ700": "the text is not TOML",
    "HQ701": "a key of an app file that does not exist",
    "HQ702": "something that an app file lacks",
    "HQ703": "a value of an app file that does not fit",
    "HQ704": "a name in an app file that nothing has",
    "HQ705": "an extra that is not installed",
}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault of a query.

    code: a key of CODES; message: what is wrong; span: where in the text; label: what stands under the caret;
    hint: what to do instead, or empty.
    """

    code: str
    message: str
    span: Span
    label: str = ""
    hint: str = ""

    def render(self, text: str, name: str = "query") -> str:
        """The message with the line it is about, a caret under the span, and the hint; without a text no line."""
        if not text:
            return f"error[{self.code}]: {self.message}" + (f"\nhint: {self.hint}" if self.hint else "")
        start = max(0, min(self.span.start, len(text)))
        end = max(start, min(self.span.end, len(text)))
        line_start = text.rfind("\n", 0, start) + 1
        line_end = text.find("\n", start)
        line = text[line_start : len(text) if line_end < 0 else line_end]
        number = text.count("\n", 0, start) + 1
        column = start - line_start
        width = max(1, sum(map(_columns, line[column : end - line_start])))
        pad = "".join("\t" if c == "\t" else " " * _columns(c) for c in line[:column])
        # control characters and halves of surrogate pairs have no width, or cannot be printed at all
        bad = {c for c in line if c != "\t" and unicodedata.category(c) in ("Cc", "Cs")}
        line = "".join("\ufffd" if c in bad else c for c in line.removesuffix("\r"))
        parts = [
            f"error[{self.code}]: {self.message}",
            f"  --> {name}:{number}:{column + 1}",
            f"{number:>4} | {line}",
            f"     | {pad}{'^' * width} {self.label}".rstrip(),
        ]
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)


def _columns(character: str) -> int:
    """How many columns a terminal gives to a character."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


class QueryError(Exception):
    """A query that cannot be answered as written. `diagnostics` has every fault found; `text` is the query."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...] | list[Diagnostic], text: str = "") -> None:
        self.diagnostics = tuple(diagnostics)
        self.text = text
        super().__init__(self.render())

    def __reduce__(self) -> tuple[type[QueryError], tuple[tuple[Diagnostic, ...], str]]:
        """Errors are pickled where another process has found them."""
        return type(self), (self.diagnostics, self.text)

    def render(self, name: str = "query") -> str:
        """All faults, in the order of the text."""
        ordered = sorted(self.diagnostics, key=lambda d: (d.span, d.code))
        return "\n\n".join(d.render(self.text, name) for d in ordered)


class DataError(Exception):
    """Data that does not fit its stream: what is wrong, where, and what to do. Nothing of the batch was taken."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}\nhint: {hint}" if hint else message)

    def __reduce__(self) -> tuple[type[DataError], tuple[str, str]]:
        """Errors are pickled where another process has found them."""
        return type(self), (self.message, self.hint)


class NotKept(DataError):
    """Events that may be all right cannot be kept now, because a disk is full, say: the same push may be made again."""


class HybridWarning(UserWarning):
    """Something a user should know and may accept: a slow path, an idle clause, unbounded state."""


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """A hint that names the closest known spelling, or lists what there is."""
    import difflib

    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    if close:
        return f"did you mean {next(k for k in known if k.lower() == close[0])}?"
    return f"available: {', '.join(known[:12])}" if known else ""


#: Stands before each cause of an error of deltalake, in colours.
_CAUSE = "\u21b3"
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


def first_line(error: object) -> str:
    """What an error of a library says, without what it says below; of one that says its cause at the end, as deltalake
    does behind arrows (503 Service Unavailable), that too."""
    lines = str(error).strip().split("\n")
    cause = lines[-1].partition(_CAUSE)[2]
    return f"{lines[0]}: {_COLOURS.sub('', cause).strip()}" if cause else lines[0]
