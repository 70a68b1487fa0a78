"""DuckDB parses and types scalar expressions. The only file of `query/` that imports duckdb.

Long: all that `query/` asks of DuckDB is here."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, lru_cache
from typing import Any

import duckdb

from query.errors import DataError, first_line
from query.language.session import FUNCTIONS, lent_in, needed, to_set
from query.language.session import Settings as Settings
from query.schema import Field
from query.stopping import heed, is_asked

#: Maximum number of idle connections of each kind; more are closed.
IDLE_MAX = 16
#: Gets each database that the main thread makes while Ctrl-C is to end what runs on it; None otherwise.
made_meanwhile: list[duckdb.DuckDBPyConnection] | None = None
#: Gets each connection that this thread makes while a timeout is to end what runs on it; None otherwise.
made_in_time: ContextVar[list[duckdb.DuckDBPyConnection] | None] = ContextVar("connections made", default=None)
#: Maximum number of cached answers of DuckDB for each kind of question. The answers depend on the text only, and texts
#: repeat: within a query, in its next version, and in queries over one stream.
_KEPT = 512


def connect(
    *, threads: int | None = None, memory_limit: str | None = None, spill: str | None = None,
    settings: Settings = (), extensions: bool = False,
) -> duckdb.DuckDBPyConnection:  # fmt: skip
    """Returns a new database in memory: in UTC by default, without a progress bar, without the caller's variables in
    FROM. Hybrid makes its databases of DuckDB here only.

    threads, memory_limit: None: DuckDB's default. spill: the directory for spilled data. extensions: a statement may
    load and install extensions. Raises duckdb.Error for an invalid memory limit."""
    config: dict[str, Any] = {"python_enable_replacements": False}
    if not extensions:
        config |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    given = {"threads": threads, "memory_limit": memory_limit, "temp_directory": spill}
    connection = duckdb.connect(":memory:", config=config | {k: v for k, v in given.items() if v is not None})
    for name, value in (("TimeZone", "UTC"), *to_set(settings)):
        connection.execute(f"SET GLOBAL {name}={_text(value)}")
    hide_progress(connection)
    note(connection)
    return connection


def note(connection: duckdb.DuckDBPyConnection) -> None:
    """Lets Ctrl-C and the timeout of a statement end what will run on a connection."""
    if made_meanwhile is not None and threading.current_thread() is threading.main_thread():
        made_meanwhile.append(connection)
    _note_in_time(connection)


def _note_in_time(connection: duckdb.DuckDBPyConnection) -> None:
    if (found := made_in_time.get()) is not None:
        found.append(connection)


def hide_progress(connection: duckdb.DuckDBPyConnection) -> None:
    """Turns the progress bar of a connection off (a setting of each connection)."""
    try:
        connection.execute("SET enable_progress_bar=false")
    except duckdb.InvalidInputException:
        pass  # Jupyter without ipywidgets: there is no progress bar, and DuckDB rejects the setting


@contextmanager
def ctrl_c() -> Iterator[None]:
    """Raises KeyboardInterrupt where DuckDB raises a RuntimeError for it."""
    try:
        yield
    except RuntimeError as error:
        if tells_of_ctrl_c(error):
            raise KeyboardInterrupt from error
        raise


def tells_of_ctrl_c(error: Exception) -> bool:
    """True if an error is DuckDB's answer to Ctrl-C: during planning, or in a Python function that it calls. It has no
    class of its own for either."""
    return any(words in str(error) for words in ("Query interrupted", "KeyboardInterrupt"))


@contextmanager
def lent(
    idle: list[duckdb.DuckDBPyConnection], make: Callable[[], duckdb.DuckDBPyConnection]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Lends an idle or new connection for one query of one thread. It is idle again afterwards, unless it was
    interrupted: an unread result blocks it. Ctrl-C is a KeyboardInterrupt, see `ctrl_c`.

    Connections are in no threading.local: subprocess with a preexec_fn (so pyspark starts Java) ends the thread-locals
    of all other threads in its child, and closing a DuckDB connection there causes signal 11."""
    heed()
    try:
        connection = idle.pop()
        _note_in_time(connection)
    except IndexError:
        connection = make()
    whole = False
    try:
        with ctrl_c():
            yield connection
        whole = True
    except duckdb.Error as error:
        whole = not isinstance(error, duckdb.InterruptException)
        raise
    finally:
        if (found := made_in_time.get()) is not None and connection in found:
            found.remove(connection)
        # after a timeout it may be interrupted at any time, in another query too
        if whole and len(idle) < IDLE_MAX and not is_asked():
            idle.append(connection)


def shut(connection: duckdb.DuckDBPyConnection, files: Sequence[str] = (), folders: Sequence[str] = ()) -> None:
    """Removes access to files, directories and the network from a connection and its cursors, permanently: only these
    files and those below these folders are readable, no extension is loaded, and no setting changes except for the form
    of errors."""
    connection.execute("SET autoinstall_known_extensions=false; SET autoload_known_extensions=false")
    # spill files; every statement may read that directory, so it is private
    private = os.path.join(tempfile.gettempdir(), f"hybrid-{secrets.token_hex(16)}")
    connection.execute(f"SET temp_directory={_text(private)}")
    connection.execute("SET allowed_configs=['errors_as_json', 'enable_progress_bar']")
    connection.execute(f"SET allowed_paths=[{', '.join(map(_text, files))}]")
    connection.execute(f"SET allowed_directories=[{', '.join(map(_text, folders))}]")
    connection.execute("SET enable_external_access=false; SET lock_configuration=true")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True)
class _Home:
    """An in-memory database for questions about texts and values under the same settings. idle, binders: its idle
    connections, see `lent`."""

    database: duckdb.DuckDBPyConnection
    idle: list[duckdb.DuckDBPyConnection] = field(default_factory=list)
    binders: list[duckdb.DuckDBPyConnection] = field(default_factory=list)


@lru_cache(maxsize=8)  # settings of a user seldom change
def _home(settings: Settings) -> _Home:
    """Returns the database of these settings: UTC by default, no threads of its own, no files. Queries use cursors of
    it, since a shared connection mixes the rows of threads."""
    database = connect(threads=1, settings=settings)
    # common_subexpressions would move a failing cast out of the TRY or CASE around it
    database.execute("SET GLOBAL disabled_optimizers='common_subexpressions'")
    shut(database)
    return _Home(database)


def renew(error: duckdb.Error) -> None:
    """Lets the next query have new databases if an error has ended the last ones: after a fatal one DuckDB refuses
    everything."""
    if isinstance(error, duckdb.FatalException):
        _home.cache_clear()


def quiet_connection(settings: Settings = ()) -> duckdb.DuckDBPyConnection:
    """Lends a connection for parsing, typing, folding constants and evaluating expressions, for one query of one
    thread: in memory, in UTC unless the settings differ, with one thread, without files. Tables registered on it are
    dropped at the end. Costs 10 microseconds."""
    lent = lent_in(settings)
    if lent is None:
        own = _home(settings).database.cursor()
        _note_in_time(own)  # DuckDB itself hears a Ctrl-C of the main thread
        return own
    cursor: duckdb.DuckDBPyConnection = lent.cursor(settings)
    hide_progress(cursor)
    note(cursor)  # a function of the user may take long
    return cursor


def idle_connection(settings: Settings = ()) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    """Lends such a connection for one query."""

    def made() -> duckdb.DuckDBPyConnection:
        connection = quiet_connection(settings)
        hide_progress(connection)
        return connection

    return lent([] if lent_in(settings) else _home(settings).idle, made)


def _binder(settings: Settings = ()) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    """Lends such a connection whose errors carry positions."""
    return lent([] if lent_in(settings) else _home(settings).binders, lambda: _new_binder(settings))


def _rows(sql: str, values: Sequence[str] = (), settings: Settings = ()) -> list[tuple[Any, ...]]:
    """The rows of a SELECT."""
    with idle_connection(settings) as connection:
        return connection.execute(sql, list(values)).fetchall()


#: Node types of WITH entries that write, in a syntax tree.
_WRITING_NODE = re.compile(r'"type":"(INSERT|UPDATE|DELETE|MERGE|COPY)_QUERY_NODE"')


@lru_cache(maxsize=_KEPT)
def syntax_error(sql: str) -> tuple[str, int, int] | None:
    """Returns DuckDB's syntax error for a SELECT: (message, start, end) in characters, or None if it parses.

    ("", 0, 0) means a statement that parses and is no SELECT. About 0.5 ms.
    """
    try:
        found = _rows("SELECT json_serialize_sql(?)", [sql])[0]
    except duckdb.Error as error:
        return first_line(error), 0, len(sql)
    answer = json.loads(found[0]) if found else {}
    if not answer.get("error"):
        writes = _WRITING_NODE.search(found[0])
        return None if writes is None else (f"WITH may contain SELECT only, found {writes[1]}", 0, len(sql))
    if answer.get("error_type") != "parser":
        return "", 0, 0
    data = sql.encode()
    start, length = int(answer.get("position", len(data))), 0
    if match := re.match(r"\[(\d+),(\d+)\]$", str(answer.get("location", ""))):
        start, length = int(match[1]), int(match[2])
    # DuckDB counts bytes of UTF-8
    first = len(data[:start].decode(errors="ignore"))
    return str(answer["error_message"]), first, first + len(data[start : start + length].decode(errors="ignore"))


def command_error(sql: str) -> tuple[str, int, int] | None:
    """Returns DuckDB's syntax error for one statement of any kind: (message, start, end) in characters, or None if it
    parses."""
    try:
        with _binder() as binder:
            binder.extract_statements(sql)
    except duckdb.Error as error:
        fault = _error(error, sql)
        start = len(sql) if fault.start is None else fault.start
        return fault.message, start, start if fault.end is None else fault.end
    return None


def statement_count(sql: str) -> int:
    """Returns the number of statements that DuckDB would run; 1 for a text that it cannot parse."""
    if ";" not in sql:
        return 1
    try:
        with _binder() as binder:
            return len(binder.extract_statements(sql))
    except duckdb.Error:
        return 1


@lru_cache(maxsize=1024)
def interval_parts(sql: str) -> tuple[int, int] | None:
    """Returns (whole months, remaining microseconds) of an INTERVAL literal, or None if DuckDB cannot read it."""
    try:
        parts = "datepart('year', i) * 12 + datepart('month', i), epoch_us(i)"
        found = _rows(f"SELECT {parts} FROM (SELECT {sql} AS i)")[0]
    except duckdb.Error:
        return None
    return (int(found[0]), int(found[1])) if found else None


# ---- parsing and typing ----------------------------------------------------------------------------------------

Node = dict[str, Any]
_NO_LOCATION = 2**64 - 1


class DuckFault(Exception):
    """An error of DuckDB about a piece of SQL.

    kind: DuckDB's error_subtype (`SYNTAX_ERROR`, `COLUMN_NOT_FOUND`, `MISSING_ENTRY`, ...) or its exception type; name,
    what: the missing entry and its kind (Table or Scalar Function), if DuckDB names them; start, end: character offsets
    in the given SQL, or None.
    """

    def __init__(self, message: str, kind: str, name: str, what: str, start: int | None, end: int | None) -> None:
        self.message = message
        self.kind = kind
        self.name = name
        self.what = what
        self.start = start
        self.end = end
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Folded:
    """The value of a constant expression and its DuckDB type. Values that Python has no exact type for (dates, lists,
    intervals with months) are DuckDB's text of them. microseconds: of an INTERVAL of fixed length."""

    value: bool | int | float | Decimal | str | None
    type: str
    text: str | None
    microseconds: int | None = None


def character_offsets(text: str) -> Sequence[int]:
    """Returns, for each UTF-8 byte of `text`, and its end, the index of the character it belongs to."""
    if text.isascii():
        return range(len(text) + 1)
    offsets = [i for i, c in enumerate(text) for _ in c.encode()]
    return [*offsets, len(text)]


def _fault(detail: Mapping[str, Any], sql: str, prefix: int) -> DuckFault:
    """Returns the fault of an error in JSON. prefix: bytes before `sql` in the text that DuckDB read."""
    message = str(detail.get("exception_message") or detail.get("error_message") or "")
    start = end = None
    if "position" in detail:
        offsets = character_offsets(sql)
        begin, length = int(detail["position"]) - prefix, 1
        if "location" in detail:
            length = int(str(detail["location"]).strip("[]").split(",")[1])
        start = offsets[max(0, min(begin, len(offsets) - 1))]
        end = max(start, offsets[max(0, min(begin + length, len(offsets) - 1))])
    kind = str(detail.get("error_subtype") or detail.get("exception_type") or detail.get("error_type") or "")
    return DuckFault(message, kind, str(detail.get("name", "")), str(detail.get("type", "")), start, end)


def _error(error: duckdb.Error, sql: str, prefix: int = 0) -> DuckFault:
    """Returns the fault of an exception of a connection with errors_as_json. Raises DataError if no SQL is to blame."""
    text = str(error)
    try:
        detail = json.loads(text[text.index("{") :])
    except ValueError:
        detail = {"exception_message": text.splitlines()[0], "exception_type": type(error).__name__}
    if isinstance(error, duckdb.OutOfMemoryException):
        raise out_of_memory(str(detail.get("exception_message")))
    return _fault(detail, sql, prefix)


def out_of_memory(why: str) -> DataError:
    """Returns the error for a statement that exceeds DuckDB's memory. why: DuckDB's message."""
    line = next(iter(why.splitlines()), "").removeprefix("Out of Memory Error: ")
    message = f"DuckDB has too little memory for this statement: {line}"
    hint = "give it more (memory_limit= of hybrid.connect, SET memory_limit on a connection of yours), or read less"
    return DataError(message, hint)


def _new_binder(settings: Settings = ()) -> duckdb.DuckDBPyConnection:
    """A connection whose errors carry positions."""
    binder = quiet_connection(settings)
    binder.execute("SET errors_as_json=true")
    return binder


@lru_cache(maxsize=_KEPT)
def _serialized(sql: str, settings: Settings) -> str:
    return str(_rows("SELECT json_serialize_sql(?)", [sql], settings)[0][0])


def _serialize(sql: str, prefix: int, settings: Settings = ()) -> list[Node]:
    """The statements of `sql`; locations become characters of `sql[prefix:]` in every node (prefix is ASCII)."""
    answer: Node = json.loads(_serialized(sql, settings))
    if answer["error"]:
        raise _fault(answer, sql[prefix:], prefix)
    offsets = character_offsets(sql[prefix:])

    def translate(value: Any) -> None:
        if isinstance(value, dict):
            start = value.get("query_location", _NO_LOCATION)
            if start != _NO_LOCATION:
                first = max(0, min(start - prefix, len(offsets) - 1))
                last = max(0, min(start - prefix + value["query_location_length"], len(offsets) - 1))
                value["query_location"] = offsets[first]
                value["query_location_length"] = offsets[last] - offsets[first]
            for child in value.values():
                translate(child)
        elif isinstance(value, list):
            for child in value:
                translate(child)

    translate(answer["statements"])
    statements: list[Node] = answer["statements"]
    return statements


def parse_expression(text: str, settings: Settings = ()) -> Node:
    """DuckDB's syntax tree of one scalar expression, `query_location` in characters of `text`.

    Raises DuckFault if it is none, or more than one."""
    prefix = "SELECT "
    plain = tuple(one for one in settings if one[0] != FUNCTIONS)
    statements = _serialize(prefix + text, len(prefix), plain)
    node = statements[0]["node"]
    if len(statements) == 1 and node["type"] == "SELECT_NODE" and len(node["select_list"]) == 1:
        item: Node = node["select_list"][0]
        rest = [node[k] for k in ("where_clause", "having", "sample", "qualify", "group_expressions", "modifiers")]
        if not item["alias"] and not any(rest) and node["from_table"]["type"] == "EMPTY":
            return item
        end = span_in(item)
        raise DuckFault("unexpected text after the expression", "SYNTAX_ERROR", "", "", end[1] if end else 0, len(text))
    raise DuckFault("this is more than one expression", "SYNTAX_ERROR", "", "", 0, len(text))


def span_in(node: Node) -> tuple[int, int] | None:
    """Characters [start, end) that a syntax tree covers, parentheses around it apart; None if it has no location."""
    found: list[tuple[int, int]] = []

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("query_location", _NO_LOCATION) != _NO_LOCATION and "class" in value:
                found.append((value["query_location"], value["query_location"] + value["query_location_length"]))
            for child in value.values():
                visit(child)
        elif isinstance(value, list):
            for child in value:
                visit(child)

    visit(node)
    return (min(s for s, _ in found), max(e for _, e in found)) if found else None


def deserialize(node: Node) -> str:
    """DuckDB SQL of a syntax tree."""
    if node["class"] == "CONSTANT" and node["literal"]["kind"] == "INTEGER":  # as written: lists of them are long
        return str(node["literal"]["text"])
    select = json.loads(_empty_select())
    select["statements"][0]["node"]["select_list"] = [{**_nowhere(node), "alias": ""}]
    return _deserialized(json.dumps(select)).removeprefix("SELECT ")


def _nowhere(value: Any) -> Any:
    """Returns a part of a syntax tree without its positions in the text."""
    if isinstance(value, dict):
        return {k: 0 if k in ("query_location", "query_location_length") else _nowhere(v) for k, v in value.items()}
    return [_nowhere(v) for v in value] if isinstance(value, list) else value


@lru_cache(maxsize=_KEPT)
def _deserialized(select: str) -> str:
    return str(_rows("SELECT json_deserialize_sql(?)", [select])[0][0])


@cache
def _empty_select() -> str:
    return str(_rows("SELECT json_serialize_sql('SELECT 1')")[0][0])


def chosen_overload(signatures: Sequence[str], arguments: str, name: str) -> int:
    """Returns the number of the overload that DuckDB chooses for the arguments of a macro. Raises DuckFault if none
    fits, or for signatures that need types of a connection."""
    bodies = ", ".join(f"({signature}) AS {i}" for i, signature in enumerate(signatures))
    with _new_binder() as connection:
        try:
            connection.execute(f"CREATE TEMP MACRO {quote(name)}{bodies}")
            return int(connection.execute(f"SELECT {quote(name)}({arguments})").fetchall()[0][0])
        except duckdb.Error as error:
            raise _error(error, arguments) from None


def parse_statement(sql: str) -> Node:
    """DuckDB's syntax tree of a whole SELECT. Raises DuckFault with character offsets."""
    statements = _serialize(sql, 0)
    if len(statements) != 1:
        raise DuckFault("this is more than one statement", "SYNTAX_ERROR", "", "", 0, len(sql))
    node: Node = statements[0]["node"]
    return node


def nulls(fields: Sequence[Field]) -> str:
    """A SELECT of one row of typed nulls with these columns."""
    return "SELECT " + ", ".join(f"CAST(NULL AS {f.type}) AS {quote(f.name)}" for f in fields)


def describe(
    expressions: Sequence[str], tables: Mapping[str, Sequence[Field]], settings: Settings = ()
) -> tuple[str, ...]:
    """Returns the DuckDB types of expressions over tables, each of one row of nulls. Nothing is computed.

    Raises DuckFault (with meaningless offsets)."""
    with_list = ", ".join(f"{quote(name)} AS ({nulls(fields)})" for name, fields in tables.items() if fields)
    names = ", ".join(quote(name) for name, fields in tables.items() if fields)
    items = ", ".join(f"({e}) AS c{i}" for i, e in enumerate(expressions))
    before, behind = f"WITH {with_list}" if with_list else "", f"FROM {names}" if names else ""
    sql = f"DESCRIBE {before} SELECT {items} {behind}"
    return _described(sql, needed(sql, settings))


@lru_cache(maxsize=_KEPT)
def _described(sql: str, settings: Settings) -> tuple[str, ...]:
    try:
        with _binder(settings) as binder:
            rows = binder.execute(sql).fetchall()
    except duckdb.Error as error:
        raise _error(error, sql) from None
    return tuple(str(row[1]) for row in rows)


@cache
def canonical_type(name: str) -> str:
    """DuckDB's own spelling of a type: BIGINT for int8, TIMESTAMP WITH TIME ZONE for TIMESTAMPTZ."""
    return describe([f"CAST(NULL AS {name})"], {})[0]


def fold(sql: str, settings: Settings = ()) -> Folded | None:
    """Returns the value of an expression without columns, or None if its computation raises."""
    return _folded(sql, needed(sql, settings))


@cache
def _folded(sql: str, settings: Settings) -> Folded | None:
    if re.fullmatch("[0-9]{1,9}", sql):
        return Folded(int(sql), "INTEGER", str(int(sql)))
    try:
        with _binder(settings) as binder:
            rows = binder.execute(f"SELECT x, typeof(x), CAST(x AS VARCHAR) FROM (SELECT ({sql}) AS x)").fetchall()
    except (duckdb.Error, ValueError, OverflowError):
        rows = []
    if not rows:
        return None
    row = rows[0]
    value, type, text = row[0], str(row[1]), row[2]
    if value is None:
        return Folded(None, type, None)
    if type == "INTERVAL":
        parts = interval_parts(f"({sql})")
        fixed = parts is not None and parts[0] == 0
        return Folded(parts[1] if parts and fixed else text, type, text, parts[1] if parts and fixed else None)
    exact = isinstance(value, bool | int | float | Decimal) or type == "VARCHAR"
    return Folded(value if exact else text, type, text)


#: DuckDB's own macros whose bodies aggregate; they take no ORDER BY.
AGGREGATE_MACROS = frozenset([
    "geomean", "geometric_mean", "wavg", "weighted_avg", "json_group_array", "json_group_object", "variant_group_array",
])  # fmt: skip


@cache
def aggregate_names() -> frozenset[str]:
    """Returns the names of DuckDB's aggregate functions, lower case, and of the macros for aggregates."""
    rows = _rows("SELECT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'")
    return frozenset(row[0].lower() for row in rows) | AGGREGATE_MACROS


@cache
def function_names() -> frozenset[str]:
    """Returns the names of all functions that DuckDB has by itself, lower case."""
    return frozenset(row[0].lower() for row in _rows("SELECT DISTINCT function_name FROM duckdb_functions()"))


@cache
def session_names() -> frozenset[str]:
    """Returns the names of functions whose value is constant within a statement only: variables, the schema, now."""
    rows = _rows(f"SELECT function_name FROM duckdb_functions() WHERE {_OF_SESSION}")
    return frozenset(row[0].lower() for row in rows) | CLOCK_WORDS | {"current_catalog"}


@cache
def lambda_names() -> frozenset[str]:
    """Returns the names of functions that take a lambda; elsewhere `x -> y` is the arrow of JSON."""
    rows = _rows("SELECT function_name FROM duckdb_functions() WHERE list_contains(parameter_types, 'LAMBDA')")
    return frozenset(row[0].lower() for row in rows)


@cache
def reserved_words() -> frozenset[str]:
    """Returns the words that cannot name a table or column without quotes, lower case."""
    rows = _rows("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')")
    return frozenset(row[0].lower() for row in rows) | {"match_recognize"}


@cache
def volatile_names() -> frozenset[str]:
    """Returns the names of functions whose value is not a function of their arguments: volatile ones, the clock, the
    session."""
    rows = _rows(f"SELECT function_name FROM duckdb_functions() WHERE stability = 'VOLATILE' OR {_OF_SESSION}")
    # `error` never has a value; reservoir_quantile draws a sample; the others are macros and keywords over the clock
    # and the session
    others = {"ago", "reservoir_quantile", "current_catalog"} | CLOCK_WORDS
    return (frozenset(row[0].lower() for row in rows) - {"error"}) | others


def is_volatile(name: str, arguments: int) -> bool:
    """True if the value of a call is not a function of its arguments. age(t) is the time from t to today, although
    DuckDB reports otherwise."""
    return name in volatile_names() or (name == "age" and arguments == 1)


#: DuckDB's mark of functions that read the clock, a setting or a variable. From 2.0.1 on it also marks those that
#: depend on the time zone, such as `TIMESTAMPTZ - INTERVAL`; the time zone is in the plan.
_OF_SESSION = """(stability = 'CONSISTENT_WITHIN_QUERY' AND NOT (len(parameter_types) > 0
    AND regexp_matches(concat_ws(',', return_type, array_to_string(parameter_types, ',')), 'TIME ZONE|TIMESTAMPTZ')))"""
CLOCK_WORDS = frozenset(
    ["current_date", "current_time", "current_timestamp", "localtime", "localtimestamp", "current_user", "session_user"]
)


def bind_statement(
    sql: str, tables: Mapping[str, Sequence[Field]], select: bool = True, *, on: duckdb.DuckDBPyConnection | None = None
) -> tuple[Field, ...]:
    """Returns the output columns of a SELECT over empty tables of these columns; none for any other statement
    (select=False), which is bound as well. on: a fresh cursor to bind it with, which may open the files that the
    statement names; None: no file is opened. Raises DuckFault with character offsets. Nothing is computed."""
    cursor = on or _new_binder()
    try:
        cursor.execute("SET errors_as_json=true")
        for name, fields in tables.items():
            columns = ", ".join(f"{quote(f.name)} {f.type if f.type != NULL_TYPE else 'INTEGER'}" for f in fields)
            create = f"CREATE TEMP TABLE {quote(name)}({columns or 'nothing INTEGER'})"
            try:
                cursor.execute(create)
            except duckdb.Error as error:
                fault = _error(error, create)
                raise DuckFault(f"{name}: {fault.message}", fault.kind, "", "", None, None) from None
        return describe_on(cursor, sql, select)
    finally:
        cursor.close()


def describe_on(connection: duckdb.DuckDBPyConnection, sql: str, select: bool = True) -> tuple[Field, ...]:
    """Returns the output columns as bind_statement, over the tables of a connection, which must have errors_as_json
    set."""
    prefix = "DESCRIBE " if select else "EXPLAIN "
    try:
        rows = connection.execute(prefix + sql).fetchall()
    except duckdb.Error as error:
        raise _error(error, sql, len(prefix)) from None
    return tuple(Field(str(row[0]), str(row[1])) for row in rows) if select else ()


#: The type DuckDB gives a bare NULL.
NULL_TYPE = '"NULL"'


def quote(name: str) -> str:
    """Returns a name as SQL."""
    return '"' + name.replace('"', '""') + '"'
