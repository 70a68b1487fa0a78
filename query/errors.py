"""Errors with positions in the query text: spans, diagnostics, their renderer, and the table of codes."""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import traceback
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType, FunctionType, TracebackType
from typing import ParamSpec, TypeVar

from query.printable import printable_lines

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A half-open range of characters, [start, end), of the query text."""

    start: int
    end: int

    def to(self, other: Span) -> Span:
        """Returns the smallest span that covers both."""
        return Span(min(self.start, other.start), max(self.end, other.end))


NO_SPAN = Span(0, 0)

#: All codes of QueryErrors, with their meanings. A test compares docs/errors.md with this table.
CODES: dict[str, str] = {
    "HQ100": "invalid query",
    "HQ101": "invalid MATCH_RECOGNIZE clause",
    "HQ102": "invalid scalar expression",
    "HQ103": "repeated or misplaced clause",
    "HQ104": "quantifier that cannot be met",
    "HQ105": "interval without a fixed duration",
    "HQ200": "unknown table or stream",
    "HQ201": "unknown column",
    "HQ202": "row pattern variable that is not in PATTERN",
    "HQ203": "row pattern variable defined twice",
    "HQ204": "DEFINE names a variable that is not in PATTERN",
    "HQ205": "type mismatch",
    "HQ206": "duplicate output column",
    "HQ207": "call that mixes row pattern variables",
    "HQ208": "navigation that does not nest as physical(logical())",
    "HQ209": "FINAL in DEFINE",
    "HQ210": "aggregate inside an aggregate or a navigation",
    "HQ211": "WITHIN an interval without ORDER BY a time",
    "HQ212": "ORDER BY of a stream that does not begin with its time",
    "HQ213": "volatile function over a stream",
    "HQ214": "leading or trailing negation without WITHIN",
    "HQ215": "invalid use of AFTER MATCH, WITH UNMATCHED ROWS or TIMEOUT ROWS",
    "HQ216": "invalid SUBSET",
    "HQ217": "output without columns",
    "HQ218": "invalid reference to the events of a SASE+ variable",
    "HQ219": "inputs that MERGE cannot combine",
    "HQ220": "live pattern over rows without a time bound",
    "HQ221": "invalid ONE ROW PER WINDOW or SASE+ trend statement",
    "HQ222": "invalid named pattern or box",
    "HQ300": "invalid JOIN HISTORY",
    "HQ301": "history range whose bounds are not times",
    "HQ400": "outer SELECT without an answer on an unbounded stream",
    "HQ500": "not supported yet",
    "HQ600": "pattern that exceeds its budget of positions or partial matches",
    "HQ601": "AFTER MATCH SKIP TO that would not move on",
    "HQ602": "statement that takes longer than its timeout",
    "HQ700": "invalid TOML",
    "HQ701": "unknown key in an app file",
    "HQ702": "missing part of an app file",
    "HQ703": "invalid value in an app file",
    "HQ704": "unknown name in an app file",
    "HQ705": "extra that is not installed",
}


#: All codes of DataErrors, with their meanings; docs/errors.md has them, too.
DATA_CODES: dict[str, str] = {
    "HQ800": "data or an argument that does not fit",
    "HQ801": "valid events that cannot be stored now",
    "HQ802": "a database that is open for writing elsewhere",
    "HQ803": "a live query that an interrupt ended in the middle of a batch",
}


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of text that is read as another type. value: the text that has failed, if one is known."""

    table: str
    column: str
    type: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error in a query, or one warning.

    code: a key of CODES, or empty for a warning. message: the error. span: its position in the text. label: text after
    the caret, or empty. hint: a way to fix it, or empty. about: the text that is taken for a number, or None.
    """

    code: str
    message: str
    span: Span
    label: str = ""
    hint: str = ""
    about: TextColumn | None = None

    def render(self, text: str, name: str = "query") -> str:
        """Returns the message, the line of the text with a caret under the span, and the hint. An empty text gives no
        line."""
        message = printable_lines(self.message)
        head = f"error[{self.code}]: {message}" if self.code else message
        if not text:
            return head + (f"\nhint: {self.hint}" if self.hint else "")
        start = max(0, min(self.span.start, len(text)))
        end = max(start, min(self.span.end, len(text)))
        line_start = text.rfind("\n", 0, start) + 1
        line_end = text.find("\n", start)
        line = text[line_start : len(text) if line_end < 0 else line_end]
        number = text.count("\n", 0, start) + 1
        column = start - line_start
        width = max(1, sum(map(_columns, line[column : end - line_start])))
        pad = "".join("\t" if c == "\t" else " " * _columns(c) for c in line[:column])
        # control characters and lone surrogates have no width, or cannot be printed
        bad = {c for c in line if c != "\t" and unicodedata.category(c) in ("Cc", "Cs")}
        line = "".join("\ufffd" if c in bad else c for c in line.removesuffix("\r"))
        parts = [
            head,
            f"  --> {name}:{number}:{column + 1}",
            f"{number:>4} | {line}",
            f"     | {pad}{'^' * width} {self.label}".rstrip(),
        ]
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)


def width(text: str) -> int:
    """Returns the width of a text in terminal columns."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    """Returns the width of a character in terminal columns."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


@dataclass(frozen=True, slots=True)
class Insert:
    """A piece of an ExpandedText that its author did not write: `before`, the query of a named pattern, and `after`.

    at: its place in the author's text. name: of the pattern; empty for other pieces, which are all in `before`.
    read_at: the span of the author's text because of which it is there."""

    at: int
    before: str
    query: str
    after: str
    name: str
    read_at: Span

    def __len__(self) -> int:
        return len(self.before) + len(self.query) + len(self.after)


class ExpandedText(str):
    """A statement with the queries of the named patterns that it reads. A QueryError about it shows the author's text,
    or that of the pattern.

    own: the author's text. inserts: in the order of their places."""

    own: str
    inserts: tuple[Insert, ...]

    @staticmethod
    def of(own: str, inserts: Sequence[Insert]) -> ExpandedText:
        """Returns a text with pieces inserted."""
        parts: list[str] = []
        at = 0
        for insert in inserts:
            parts += [own[at : insert.at], insert.before, insert.query, insert.after]
            at = insert.at
        found = ExpandedText("".join([*parts, own[at:]]))
        found.own, found.inserts = own, tuple(inserts)
        return found

    def queries(self) -> list[tuple[str, Span]]:
        """Returns the names of the patterns whose queries are in this text, at any depth, with the spans of these."""
        found: list[tuple[str, Span]] = []
        shift = 0
        for insert in self.inserts:
            begin = insert.at + shift + len(insert.before)
            if insert.name:
                found.append((insert.name, Span(begin, begin + len(insert.query))))
            if isinstance(insert.query, ExpandedText):
                inner = insert.query.queries()
                found += [(name, Span(begin + s.start, begin + s.end)) for name, s in inner]
            shift += len(insert)
        if isinstance(self.own, ExpandedText):
            found += [(name, Span(self._shown(s.start), self._shown(s.end))) for name, s in self.own.queries()]
        return found

    def placed(self, diagnostics: Sequence[Diagnostic]) -> tuple[tuple[Diagnostic, ...], str]:
        """Returns errors about this text as errors about its author's text; if all are in the query of one pattern, as
        errors about that."""
        own: list[Diagnostic] = []
        inside: list[tuple[Insert, Diagnostic]] = []
        for fault in diagnostics:
            wide = fault.span.end > fault.span.start
            insert, start = self._place(fault.span.start)
            last, end = self._place(fault.span.end - wide)
            if insert is not None and insert is last and insert.name and min(start, end) >= 0:
                inside.append((insert, replace(fault, span=Span(start, max(start, end + wide)))))
            elif insert is not None and insert is last:
                own.append(replace(fault, span=insert.read_at))
            else:
                begin = start if insert is None else insert.at
                behind = last.at if last is not None else end + wide
                own.append(replace(fault, span=Span(begin, max(begin, behind))))
        if not own and len({id(insert) for insert, _ in inside}) == 1:
            insert = inside[0][0]
            return in_pattern(insert.name, [fault for _, fault in inside], insert.query)
        own += [
            replace(in_pattern(insert.name, [fault], insert.query)[0][0], span=insert.read_at)
            for insert, fault in inside
        ]
        return self.own.placed(own) if isinstance(self.own, ExpandedText) else (tuple(own), self.own)

    def _place(self, offset: int) -> tuple[Insert | None, int]:
        """Returns the place of a character: in the query of an insert, -1 if it is before or after that; or (None) in
        the author's text."""
        shift = 0
        for insert in self.inserts:
            begin = insert.at + shift
            if offset < begin:
                break
            if offset < begin + len(insert):
                inner = offset - begin - len(insert.before)
                return insert, inner if 0 <= inner <= len(insert.query) else -1
            shift += len(insert)
        return None, offset - shift

    def _shown(self, offset: int) -> int:
        """Returns the offset of a character of the author's text in this text."""
        return offset + sum(len(insert) for insert in self.inserts if insert.at <= offset)


def in_pattern(name: str, diagnostics: Sequence[Diagnostic], text: str) -> tuple[tuple[Diagnostic, ...], str]:
    """Returns errors about the query of a named pattern with the name of it."""
    placed, own = text.placed(diagnostics) if isinstance(text, ExpandedText) else (tuple(diagnostics), text)
    return tuple(replace(fault, message=f"in pattern {name}: {fault.message}") for fault in placed), own


def shown_at(warning: Diagnostic, text: str) -> str:
    """Returns the text of a warning about a query, with its place there."""
    (placed,), own = text.placed([warning]) if isinstance(text, ExpandedText) else ((warning,), text)
    return placed.render(own)


def own_text(text: str) -> str:
    """Returns a statement as its author wrote it."""
    return own_text(text.own) if isinstance(text, ExpandedText) else text


#: Packages whose lines are no user's, and of those that stand between theirs and a user's.
_OURS = frozenset(
    {"hybrid", "live", "archive", "matching", "query", "simulator", "contextlib", "functools", "concurrent", "lark"}
)


class Error(Exception):
    """Base of all errors for mistakes of a user, and for data and disks that fail. Anything else is a fault of ours.

    code: as in docs/errors.md; it does not change its meaning. Each class is shown by the name of the public one that
    catches it, `hybrid.DataError`."""

    code: str = "HQ800"
    _home = (__name__, "Error")

    def __init_subclass__(cls) -> None:
        if cls.__module__.partition(".")[0] in _OURS:
            cls._home = cls.__module__, cls.__qualname__
            public = cls.__name__ in ("QueryError", "DataError")
            cls.__module__, cls.__qualname__ = "hybrid", cls.__name__ if public else cls.__bases__[0].__qualname__

    def __reduce__(self) -> tuple[Callable[..., Error], tuple[object, ...]]:
        """Supports pickling, for errors raised in other processes; executors of Spark have no `hybrid`."""
        return _rebuilt, (*type(self)._home, *self._arguments())

    def _arguments(self) -> tuple[object, ...]:
        """Returns the arguments that make the same error."""
        return self.args


Error.__module__ = "hybrid"


def _rebuilt(module: str, name: str, *arguments: object) -> Error:
    return getattr(importlib.import_module(module), name)(*arguments)  # type: ignore[no-any-return]


def at_boundary(function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a public function: the traceback of an error that it raises has the lines of the user alone. All lines are
    shown if the environment variable HYBRID_TRACEBACK is `full`."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        handled = sys.exception()
        try:
            return function(*args, **kwargs)
        except Error as error:
            if os.environ.get("HYBRID_TRACEBACK") != "full":
                error.__traceback__ = _of_others(error.__traceback__)
                error.__context__ = None if handled is error else handled
                error.__suppress_context__ = error.__cause__ is not None
            raise  # adds no line

    return call


def _of_others(found: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the lines of these packages."""
    if found is None:
        return None
    rest = _of_others(found.tb_next)
    return rest if _is_ours(found.tb_frame) else TracebackType(rest, found.tb_frame, found.tb_lasti, found.tb_lineno)


def public(cls: type[C]) -> type[C]:
    """Wraps the public methods of a class, see `at_boundary`."""
    for name, method in vars(cls).copy().items():
        if isinstance(method, FunctionType) and not name.startswith("_"):
            setattr(cls, name, at_boundary(method))
    return cls


class QueryError(Error):
    """Raised for a query that cannot be answered as written. code: of the first error. diagnostics: all errors found.
    text: the query."""

    diagnostics: tuple[Diagnostic, ...]
    text: str

    def __init__(self, diagnostics: tuple[Diagnostic, ...] | list[Diagnostic], text: str = "") -> None:
        if isinstance(text, ExpandedText):
            diagnostics, text = text.placed(diagnostics)
        self.diagnostics = tuple(diagnostics)
        self.text = text
        self.code = min(self.diagnostics, key=_place).code if self.diagnostics else "HQ100"
        super().__init__(self.render())

    def _arguments(self) -> tuple[object, ...]:
        return self.diagnostics, self.text

    def render(self, name: str = "query") -> str:
        """Returns all diagnostics as text, in the order of the query. A column that is missing in several places is
        told once."""
        shown: dict[object, Diagnostic] = {}
        for d in sorted(self.diagnostics, key=_place):
            shown.setdefault((d.code, d.message) if d.code == "HQ201" else d, d)
        return "\n\n".join(d.render(self.text, name) for d in shown.values())


def _place(diagnostic: Diagnostic) -> tuple[Span, str]:
    return diagnostic.span, diagnostic.code


class DataError(Error):
    """Raised for data that does not fit its stream, and for invalid arguments. No row of the batch was taken. message:
    the error and its position. hint: a way to fix it, or empty."""

    message: str
    hint: str

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message = printable_lines(message)
        self.hint = hint = printable_lines(hint)
        super().__init__(f"{message}\nhint: {hint}" if hint else message)

    def _arguments(self) -> tuple[object, ...]:
        return self.message, self.hint


class NotKept(DataError):
    """Raised if valid events cannot be stored now, for example on a full disk. The same push can be retried."""

    code = "HQ801"


class Overflows(DataError):
    """Raised for a condition with a number beyond 64 bits, which may have a value in DuckDB's wider types, or with a
    division by zero."""


class TooWide(Overflows):
    """Raised for a value of a row that has no number of 64 bits, where others of its column have."""


class NotComputed(DataError):
    """Raised if a condition or measure cannot be computed for a row. span: its place in the query, NO_SPAN if that is
    unknown. label: text after the caret, or empty. about: the text that has failed, of the table of the row, or None.
    """

    def __init__(
        self, message: str, hint: str, span: Span = NO_SPAN, label: str = "", about: TextColumn | None = None
    ) -> None:
        super().__init__(message, hint)
        self.span = span
        self.label = label
        self.about = about

    def placed(self, text: str) -> DataError:
        """Returns the same error with its place in the text of the query."""
        shown = Diagnostic("", self.message, self.span, self.label)
        return DataError(shown_at(shown, text), self.hint)

    def _arguments(self) -> tuple[object, ...]:
        return self.message, self.hint, self.span, self.label, self.about


class HybridWarning(UserWarning):
    """Warning about a query or service that works with a drawback: a slow path, a clause without effect, unbounded
    state."""

    __module__ = "hybrid"


def warn(message: str, at: tuple[str, int] | None = None) -> None:
    """Warns by a HybridWarning at the line of the user that has called, the innermost one outside of these packages.
    at: its file and number, in a thread that no line of the user has called."""
    message = printable_lines(message)
    if at is not None:
        warnings.warn_explicit(message, HybridWarning, *at)
        return
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, HybridWarning, stacklevel=level)


def called_at() -> tuple[str, int]:
    """Returns file and number of the line of the user that has called."""
    frame = sys._getframe()
    while frame.f_back is not None and _is_ours(frame):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def raised_at(error: BaseException) -> tuple[str, int] | None:
    """Returns file and number of the first line of the user that led to an error, None if there is none."""
    frames = (found for found in traceback.walk_tb(error.__traceback__) if not _is_ours(found[0]))
    return next(((frame.f_code.co_filename, line) for frame, line in frames), None)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _OURS


def check_text(text: object, what: str = "a query") -> None:
    """Raises DataError for an argument that is no text."""
    if not isinstance(text, str):
        raise DataError(f"{what} is a text, not {type(text).__name__} ({text!r:.60})")


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Returns a hint with the closest known name, or else with the first 12 known names."""
    import difflib

    close = difflib.get_close_matches(name.lower(), [k.lower() for k in known], n=1, cutoff=0.6)
    if close:
        return f"did you mean {next(k for k in known if k.lower() == close[0])}?"
    return f"available: {', '.join(known[:12])}" if known else ""


#: Precedes each cause in an error of deltalake, in colours.
_CAUSE = "\u21b3"
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


def first_line(error: object) -> str:
    """Returns the first line of a library's error. If the last line has a cause after an arrow, as in deltalake (503
    Service Unavailable), appends that cause; after DuckDB's `CSV Error on Line: 3`, the line that says why."""
    lines = str(error).strip().split("\n")
    if "CSV Error on Line" in lines[0]:
        said = (line.strip() for line in lines[1:] if not line.startswith("Original Line"))
        return ": ".join([lines[0], *[line for line in said if line][:1]])
    cause = lines[-1].partition(_CAUSE)[2]
    return f"{lines[0]}: {_COLOURS.sub('', cause).strip()}" if cause else lines[0]
