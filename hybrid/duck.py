"""DuckDB connections of the face: where they come from, and how its errors become ours."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from query.errors import DataError, Diagnostic, QueryError, Span
from query.language.duck import hide_progress, out_of_memory

_lock = threading.Lock()
_base: duckdb.DuckDBPyConnection | None = None


def cursor(memory_limit: str | None = None) -> duckdb.DuckDBPyConnection:
    """A fresh in-memory connection: UTC, no progress bar, and no look at the caller's Python variables.

    One for each query and thread (a shared connection mixes up rows under threads). Names registered on it are seen by
    it alone. Costs a few microseconds.
    """
    global _base
    if memory_limit is not None:
        own = duckdb.connect(":memory:", config={"python_enable_replacements": False, "memory_limit": memory_limit})
        own.execute("SET GLOBAL TimeZone='UTC'")
        hide_progress(own)
        return own
    with _lock:
        if _base is None:
            _base = duckdb.connect(":memory:", config={"python_enable_replacements": False})
            _base.execute("SET GLOBAL TimeZone='UTC'")
            hide_progress(_base)
        return _base.cursor()


def check_memory_limit(limit: str) -> None:
    """Raises DataError for a text that DuckDB does not take for an amount of memory."""
    try:
        duckdb.connect(":memory:", config={"memory_limit": limit}).close()
    except duckdb.Error:
        message = f"memory_limit is {limit!r}, which is no amount of memory"
        raise DataError(message, "write it as '2GB' or '500MB'") from None


def query_error(error: duckdb.Error, text: str, about: str = "", code: str = "HQ100") -> QueryError | DataError:
    """DuckDB's complaint as a QueryError of the whole text, under the part of it that DuckDB names if that is found; as
    a DataError where it has too little memory, for which no text is to blame."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if isinstance(error, duckdb.OutOfMemoryException):
        return out_of_memory(lines[0] if lines else "")
    message = re.sub(r"^\w+ Error: ", "", lines[0]) if lines else "DuckDB refuses the statement"
    hints = ("candidate", "did you mean")
    hint = "; ".join(line.strip() for line in lines[1:3] if any(h in line.lower() for h in hints))
    lowered = message.lower()
    if lowered.startswith("referenced table"):
        code, hint = "HQ200", "what a pattern is matched over is evaluated by itself, without the tables around it"
    elif "table with name" in lowered or "table function with name" in lowered:
        code = "HQ200"
    elif "column" in lowered and ("not found" in lowered or "does not exist" in lowered):
        code = "HQ201"
    start = text.find(about) if about else 0
    if start < 0:
        start, about = 0, ""
    span = Span(start, start + (len(about) or len(text)))
    for name in _quoted(message):
        found = text.lower().find(name.lower(), span.start, span.end)
        if found >= 0:
            span = Span(found, found + len(name))
            break
    return QueryError([Diagnostic(code, message, span, "", hint)], text)


def _quoted(message: str) -> list[str]:
    """The names DuckDB put into quotes, and the one after `with name`."""
    names = re.findall(r'"([^"]+)"', message) + re.findall(r"with name (\S+) does not exist", message)
    return [n for n in names if n]


@contextmanager
def settings(connection: duckdb.DuckDBPyConnection, **wanted: bool) -> Iterator[None]:
    """Changes settings of a connection for a while; but not inside a transaction of the user's, as they could not be
    changed back once an error has aborted it."""
    numbers = [connection.execute("SELECT txid_current()").fetchall() for _ in range(2)]
    if numbers[0] == numbers[1]:
        yield
        return
    names = list(wanted)
    row = connection.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names)).fetchone()
    before = dict(zip(names, row or ()))
    try:
        for name, value in wanted.items():
            connection.execute(f"SET {name} = {value}")
        yield
    finally:
        for name, value in before.items():
            connection.execute(f"SET {name} = {value}")
