"""DuckDB connections: creation, file access, interrupts, and translation of DuckDB's errors."""

from __future__ import annotations

import _thread
import os
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

import duckdb

from query.errors import DataError, Diagnostic, QueryError, Span, first_line
from query.language import duck as language_duck
from query.language.duck import (
    Settings,
    bind_statement,
    connect,
    made_in_time,
    note,
    out_of_memory,
    shut,
    tells_of_ctrl_c,
)
from query.language.operators import operator_hint
from query.language.session import lent_in
from query.plan.statement import NO_ACCESS, Describe
from query.schema import Field
from query.stopping import clear_dropped, is_dropped

#: Seconds after a Ctrl-C by which DuckDB raises it, if ever.
_DROPPED_S = 0.2
#: Times that long until it is raised again: Python prints and drops what is raised while it deletes an object.
_AGAIN = 5
_lock = threading.Lock()
_bases: dict[Access, duckdb.DuckDBPyConnection] = {}
#: The thread of the statement that runs on a connection of the user.
_users: weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, int] = weakref.WeakKeyDictionary()


@contextmanager
def interruptible(connection: duckdb.DuckDBPyConnection | None = None) -> Iterator[None]:
    """Lets Ctrl-C end DuckDB statements with KeyboardInterrupt, on `connection` and on each `cursor` and database made
    meanwhile. DuckDB itself raises other errors, or loses a Ctrl-C during planning and in sorts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held, came = _Interrupt([] if connection is None else [connection]), False
    plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # or there is a block around this one
    try:
        if plain:
            language_duck.made_meanwhile = held.connections
            signal.signal(signal.SIGINT, held.come)
        yield
        if held.came:
            raise KeyboardInterrupt
    except (RuntimeError, duckdb.Error, DataError, QueryError) as error:
        if held.came or tells_of_ctrl_c(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        came, held.left = held.came, True  # from here on it is noted, and raised at the end
        if plain:
            with held.lock:  # a signal that is sent meanwhile comes before the handler changes
                language_duck.made_meanwhile = None
            clear_dropped()
            if signal.getsignal(signal.SIGINT) == held.come:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if held.came and not came:
            raise KeyboardInterrupt


class _Interrupt:
    """Handles SIGINT while DuckDB may run. connections: may run statements in the main thread. left: the block ends."""

    def __init__(self, connections: list[duckdb.DuckDBPyConnection]) -> None:
        self.connections = connections
        self.came = self.left = False
        self.lock = threading.Lock()
        self._place = (0, 0)  # the frame itself would keep the block around it from its end

    def come(self, number: int, frame: FrameType | None) -> None:
        first, self.came = not self.came, True
        if self.left:
            return
        self._place = _place(frame)
        if first:
            threading.Thread(target=self._insist, daemon=True).start()
        if not is_dropped(frame):
            raise KeyboardInterrupt

    def _insist(self) -> None:
        """Interrupts DuckDB while the frame that got the KeyboardInterrupt does not move on. Raises it again where it
        has moved on for long and all goes on."""
        main, rounds = threading.main_thread().ident or 0, 0
        while not self.left:
            time.sleep(_DROPPED_S)
            rounds += 1
            again = rounds % _AGAIN == 0
            with self.lock:
                if self.left:  # else the next statement would be interrupted
                    break
                if again or _place(sys._current_frames().get(main)) == self._place:
                    for connection in list(self.connections):
                        with suppress(duckdb.Error):  # it may be closed
                            connection.interrupt()
                if again:
                    _thread.interrupt_main()


def _place(frame: FrameType | None) -> tuple[int, int]:
    return (0, 0) if frame is None else (id(frame), frame.f_lasti)


@dataclass(frozen=True, slots=True)
class Access:
    """Access of statements to files and network. outside: any file and the network; otherwise only `files` and all
    files below `folders`."""

    outside: bool = False
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


#: ANYTHING: the default of statements in Python. NOTHING: our own computations.
ANYTHING = Access(outside=True)
NOTHING = Access()


def access_to(
    external: bool, files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (), home: str = ""
) -> Access:
    """Returns the access of a database. external False: only `files`, one path or several, a directory for all files in
    it; relative paths start from `home`. Raises DataError for a path that does not exist."""
    if isinstance(files, (str, os.PathLike)):  # iterated, each letter would be a path, even `/`
        files = (files,)
    if external and files:
        raise DataError("files has no effect with external=True, which allows any file", "use one of the two")
    if external:
        return ANYTHING
    found: list[str] = []
    folders: list[str] = []
    for file in files:
        place = os.path.abspath(os.path.join(home, os.fspath(file)))
        if not os.path.exists(place):
            raise DataError(f"file {os.fspath(file)} does not exist", "name a file, or a directory for all files in it")
        (folders if os.path.isdir(place) else found).append(place)
    return Access(False, tuple(found), tuple(folders))


def cursor(
    memory_limit: str | None = None, access: Access = NOTHING, own_files: Sequence[str] = (), settings: Settings = ()
) -> duckdb.DuckDBPyConnection:
    """Returns a fresh in-memory connection: UTC unless `settings` change it, no progress bar, no access to the caller's
    Python variables.

    Use one per query and thread: a shared connection mixes up rows between threads. Registered names are private to it.
    own_files: files of ours, readable under any `access`. Costs a few microseconds; with own_files, settings or
    memory_limit some milliseconds.
    """
    if memory_limit is not None or settings or (own_files and not access.outside):
        made = _database(memory_limit, access, own_files, settings)
    else:
        with _lock:
            if access not in _bases:
                _bases[access] = _database(None, access)
            made = _bases[access].cursor()
    note(made)
    return made


@contextmanager
def connections_made() -> Iterator[list[duckdb.DuckDBPyConnection]]:
    """Within, the list gets each connection that is made in this thread."""
    found: list[duckdb.DuckDBPyConnection] = []
    token = made_in_time.set(found)
    try:
        yield found
    finally:
        made_in_time.reset(token)


def _database(
    memory_limit: str | None, access: Access, own_files: Sequence[str] = (), settings: Settings = ()
) -> duckdb.DuckDBPyConnection:
    lent = lent_in(settings)
    if lent is not None:
        theirs: duckdb.DuckDBPyConnection = lent.cursor(settings)
        return theirs
    own = connect(memory_limit=memory_limit, settings=settings, extensions=access.outside)
    if not access.outside:
        shut(own, (*access.files, *own_files), access.folders)
    return own


def binder(access: Access) -> Describe:
    """Returns the function by which query.plan.bind asks DuckDB for the columns of statements that may name files."""

    def describe(sql: str, tables: Mapping[str, Sequence[Field]], select: bool = True, /) -> tuple[Field, ...]:
        return bind_statement(sql, tables, select, on=cursor(access=access))

    return describe


@contextmanager
def used_alone(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Keeps a connection for the statement of this thread. Raises DataError where another one uses it, and where it is
    closed meanwhile."""
    mine, outermost = threading.get_ident(), False
    try:
        with _lock:
            user = _users.get(connection)
            if user not in (None, mine):
                raise _in_use()
            outermost = user is None  # a function of the user may run a statement, too
            _users[connection] = mine
        yield
    except duckdb.ResourceInUseException:
        raise _in_use() from None
    except duckdb.ConnectionException as error:
        if "closed" not in str(error):
            raise
        raise DataError("the connection was closed while the statement ran", "close it afterwards") from None
    finally:
        if outermost:
            with _lock:
                _users.pop(connection, None)


def _in_use() -> DataError:
    hint = "give each thread a connection of its own: hybrid.sql(text, connection.cursor())"
    return DataError("another thread is using the connection", hint)


def check_memory_limit(limit: str) -> None:
    """Raises DataError if DuckDB does not read the text as a memory size."""
    try:
        connect(memory_limit=limit).close()
    except duckdb.Error:
        message = f"memory_limit is {limit!r}: invalid memory size"
        raise DataError(message, "write it as '2GB' or '500MB'") from None


def query_error(
    error: duckdb.Error | OSError, text: str, about: str = "", code: str = "HQ100"
) -> QueryError | DataError:
    """Returns DuckDB's error as a QueryError, or as a DataError if DuckDB is out of memory or the connection is in use
    elsewhere. error: an OSError if Arrow
    was reading from DuckDB.

    about: the part of the text in question (default: all of it). The span is the first name in the message that is
    found there, or else the whole part."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if isinstance(error, duckdb.ResourceInUseException):
        return _in_use()
    if isinstance(error, duckdb.OutOfMemoryException) or str(error).startswith("Out of Memory Error"):
        return out_of_memory(lines[0] if lines else "")
    message = re.sub(r"^\w+ Error: ", "", first_line(error)) if lines else "DuckDB rejects the statement"
    hints = ("candidate", "did you mean")
    hint = "; ".join(line.strip() for line in lines[1:3] if any(h in line.lower() for h in hints))
    hint = hint or operator_hint(message, text)
    lowered = message.lower()
    if isinstance(error, duckdb.PermissionException):
        hint = NO_ACCESS
    if lowered.startswith("referenced table"):
        code, hint = "HQ200", "the input of a pattern is evaluated alone: it cannot refer to tables around it"
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
    if cast := re.fullmatch(r"(Could not convert string .*) when casting from source column (\w+)", message):
        message, name = cast[1], cast[2]
        hint = hint or f"{name} is text: compare it with a text, or write TRY_CAST({name} AS ...)"
        places = [m.start() + span.start for m in re.finditer(rf"\b{name}\b", text[span.start : span.end])]
        span = Span(places[0], places[0] + len(name)) if len(places) == 1 else span
    return QueryError([Diagnostic(code, message, span, "", hint)], text)


def _quoted(message: str) -> list[str]:
    """Returns the quoted names of DuckDB's message, and the one after `with name`."""
    names = re.findall(r'"([^"]+)"', message) + re.findall(r"with name (\S+) does not exist", message)
    return [n for n in names if n]


@contextmanager
def settings(connection: duckdb.DuckDBPyConnection, **wanted: bool) -> Iterator[None]:
    """Changes settings of a connection temporarily; but not inside a transaction of the user, where an error would
    prevent changing them back."""
    try:
        numbers = [connection.execute("SELECT txid_current()").fetchall() for _ in range(2)]
    except duckdb.ConnectionException:
        raise DataError("the connection is closed", "pass one that is open") from None
    except duckdb.TransactionException:
        hint = "an error has ended it: connection.rollback()"
        raise DataError("the open transaction of the connection is aborted", hint) from None
    if numbers[0] == numbers[1]:
        yield
        return
    names = list(wanted)
    # all rows: with a result left open the connection takes no tables
    (row,) = connection.execute("SELECT " + ", ".join(f"current_setting('{name}')" for name in names)).fetchall()
    before = {name: value for name, value in zip(names, row) if value != wanted[name]}
    try:
        for name in before:
            connection.execute(f"SET {name} = {wanted[name]}")
    except duckdb.InvalidInputException:  # its configuration is locked
        before = {}
    try:
        yield
    finally:
        for name, value in before.items():
            connection.execute(f"SET {name} = {value}")
