"""The limits of one statement: how long it may take, and how much memory its partial matches may."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import duckdb

from hybrid.rows.duck import connections_made, cursor
from hybrid.rows.times import duration_us, show_duration
from query.errors import NO_SPAN, DataError, Diagnostic, QueryError
from query.stopping import Stop, Stopped, stopping

UNITS = {"": 1, **{f"{p}b": 1000**i for i, p in enumerate(("", "k", "m", "g", "t"))}}
UNITS |= {f"{p}ib": 1024**i for i, p in enumerate(("k", "m", "g", "t"), 1)}
#: Seconds after which DuckDB is interrupted once more, if it goes on.
_AGAIN_S = 0.1
_SHORTEST_S = 1e-6


def bytes_of(limit: str) -> int:
    """Returns the bytes of a memory size as DuckDB writes it: '2GB' is 2 * 1000**3, '2GiB' 2 * 1024**3. Raises
    DataError."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", limit)
    unit = None if found is None else UNITS.get(found[2].lower().rstrip("s") if found[2].lower() != "s" else "?")
    if found is None or unit is None:
        raise DataError(f"memory_limit is {limit!r}: invalid memory size", "write it as '2GB' or '500MB'")
    return int(float(found[1]) * unit)


def seconds_of(timeout: Any) -> float | None:
    """Returns the seconds of a timeout: a number of them, or a duration. Raises DataError."""
    if timeout is None:
        return None
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    seconds = timeout if is_number else duration_us(timeout, "timeout") / 1_000_000
    if not seconds >= _SHORTEST_S:  # NaN is neither
        raise DataError(f"timeout is {timeout!r}: it must be above 0", "write it as '30s', or as a number of seconds")
    if seconds > threading.TIMEOUT_MAX:
        raise DataError(f"timeout is {timeout!r}: it must be below 292 years", "leave it out for no limit")
    return float(seconds)


@contextmanager
def limited(text: str, timeout: Any, connection: duckdb.DuckDBPyConnection | None) -> Iterator[Stop]:
    """Within, work ends with QueryError HQ602 after the timeout (None: never). Interrupts DuckDB on `connection` and on
    each `duck.cursor` made meanwhile. The memory of partial matches has no limit until it is given to the Stop."""
    seconds = seconds_of(timeout)
    stop = Stop()
    if seconds is None:
        with stopping(stop):
            yield stop
        return
    over = threading.Event()

    def end(connections: list[duckdb.DuckDBPyConnection]) -> None:
        if over.wait(seconds):
            return
        stop.asked = True
        while not over.wait(_AGAIN_S):
            for one in list(connections):
                with suppress(duckdb.ConnectionException):  # it has been closed
                    one.interrupt()

    with stopping(stop), connections_made() as connections:
        if connection is not None:
            connections.append(connection)
        waits = threading.Thread(target=end, args=(connections,), name="hybrid-timeout", daemon=True)
        waits.start()
        try:
            yield stop
        except (Stopped, duckdb.Error, DataError, QueryError, RuntimeError) as error:
            if not stop.asked:
                raise
            raise _too_long(text, seconds, stop.rows) from error
        finally:
            over.set()
            waits.join()


def _too_long(text: str, seconds: float, rows: int) -> QueryError:
    far = f"{rows:,} rows were matched by then" if rows else "the first batch of rows was not matched by then"
    message = f"the statement was stopped after its timeout of {show_duration(int(seconds * 1_000_000))}; {far}"
    hint = "give it more time, add WITHIN or PARTITION BY, or read fewer rows; `hybrid explain` shows how it runs"
    if not rows:
        hint = f"{hint}; the first statement of its kind is compiled first, which is kept for the next ones"
    return QueryError([Diagnostic("HQ602", message, NO_SPAN, hint=hint)], text)


def memory_of(connection: duckdb.DuckDBPyConnection) -> int:
    """Returns the memory_limit of a connection, in bytes."""
    cursor = connection.cursor()  # the user may be reading a result on the connection
    try:
        row = cursor.execute("SELECT current_setting('memory_limit')").fetchone()
    except duckdb.OutOfMemoryException:
        return 0  # not enough to ask; the statement says so
    finally:
        cursor.close()
    assert row is not None
    return bytes_of(str(row[0]))


def bytes_of_statements(limit: str | None) -> int:
    """Returns the memory that a statement may take under a memory_limit; None: DuckDB's own limit."""
    try:
        return _default_bytes() if limit is None else bytes_of(limit)
    except MemoryError:
        return 0


@cache
def _default_bytes() -> int:
    own = cursor()
    try:
        found = memory_of(own)
    finally:
        own.close()
    if not found:  # there was not enough memory to ask: the next statement asks again
        raise MemoryError
    return found
