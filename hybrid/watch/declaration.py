"""Stream declarations: checked, compared, and kept in a file of the stream's directory in a database."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from archive.place import Place
from hybrid.rows.times import duration_us, positive_us, show_duration
from query.errors import DataError, check_text, first_line, nearest, warn
from query.language.duck import canonical_type
from query.schema import Field, Schema

#: In the directory of a stream: its declaration, and the table of its archive.
STREAM_FILE, TABLE = "stream.json", "table"
#: In the directory of a database: marks an unfinished copy.
INCOMPLETE = "_incomplete"
#: Directory of a database with an empty file for each stream that is being removed.
DROPPED = "_dropped"
#: Version 1 has no `sum`, the SHA-256 of all other fields.
STREAM_VERSION = 2
#: Maximum length of a name in UTF-8: file names may have 255 bytes, and files beside a stream append an ending to its
#: name.
NAME_BYTES_MAX = 200


def declared(
    name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema, time: str, key: str | Sequence[str],
    order: Sequence[str], lateness: Any, retention: Any,
) -> Schema:
    """Returns the schema of a declaration. Raises DataError for an inconsistent one."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise DataError(f"{name!r} cannot name a stream", "use letters, digits and underscores")
    if name.startswith("_"):
        raise DataError(f"{name} cannot name a stream", "names that begin with an underscore are reserved")
    check_length(name, "stream")
    if not isinstance(columns, (Mapping, pa.Schema)):
        raise DataError(f"the columns of stream {name} are types by name, not {columns!r:.60}", '{"ts": "TIMESTAMP"}')
    fields = []
    seen: set[str] = set()
    of_names = columns.items() if isinstance(columns, Mapping) else zip(columns.names, columns.types, strict=True)
    for column, type in of_names:
        if column.lower() in seen:
            raise DataError(f"stream {name} has two columns {column}", "names compare without case")
        if column.lower() in ("_source", "_offset", "_seq", "_late") or column.lower().startswith("__hybrid"):
            message = f"stream {name} cannot have a column {column}"
            raise DataError(message, "the archive keeps its own column of that name")
        seen.add(column.lower())
        fields.append(Field(column, _type(name, column, type)))
    schema = Schema(name, tuple(fields))

    def known(what: str, column: str) -> str:
        check_text(column, f"{what} of stream {name}")
        field = schema.field(column)
        if field is None:
            raise DataError(f"{what} {column} is not a column of {name}", nearest(column, schema.names))
        return field.name

    keys = (key,) if isinstance(key, str) else tuple(key)
    ties = (order,) if isinstance(order, str) else tuple(order)
    return replace(
        schema,
        time=known("the time", time),
        keys=tuple(known("the key", k) for k in keys),
        order=tuple(known("the tie column", o) for o in ties),
        lateness_us=duration_us(lateness, "lateness"),
        retention_us=None if retention is None else positive_us(retention, "retention"),
    )


def differences(was: Schema, now: Schema) -> list[str]:
    """Returns the differences between two declarations, in words; empty if they are equal. Names compare without
    case."""
    found = []
    before, after = ({f.name.lower(): f for f in schema.fields} for schema in (was, now))
    for name, field in before.items():
        if name not in after:
            found.append(f"column {field.name} is left out")
        elif after[name].type != field.type:
            found.append(f"column {field.name} is {field.type}, not {after[name].type}")
    new = [f.name for name, f in after.items() if name not in before]
    if new:
        found.append(f"it has no column {', '.join(new)}")
    elif not found and list(before) != list(after):
        found.append(f"its columns are {', '.join(was.names)} in this order")
    for what, one, other in (
        ("the time", was.time or "", now.time or ""), ("the key", ", ".join(was.keys), ", ".join(now.keys)),
        ("the order", ", ".join(was.order), ", ".join(now.order)),
    ):  # fmt: skip
        if one.lower() != other.lower():
            found.append(f"{what} is {one or 'none'}, not {other or 'none'}")
    for what, us, other_us in (
        ("lateness", was.lateness_us, now.lateness_us), ("retention", was.retention_us, now.retention_us)
    ):  # fmt: skip
        if us != other_us:
            found.append(f"{what} is {show_duration(us)}, not {show_duration(other_us)}")
    return found


def widened(was: Schema, now: Schema) -> Schema | None:
    """Returns the old declaration extended by the new one's additional columns; None if the two differ otherwise."""
    count = len(was.fields)
    if len(now.fields) <= count or differences(was, replace(now, fields=now.fields[:count])):
        return None
    return replace(was, fields=(*was.fields, *now.fields[count:]))


def with_columns(was: Schema, types: Mapping[str, str]) -> Schema | None:
    """Returns a declaration extended by the given columns that it lacks; None if it has them all. Raises DataError."""
    more = {column: type for column, type in types.items() if was.field(column) is None}
    fields = {f.name: f.type for f in was.fields} | more
    now = declared(was.name, fields, was.time or "", was.keys, was.order, 0, None)
    return replace(was, fields=now.fields) if more else None


def otherwise(was: Schema, now: Schema) -> DataError:
    """Returns the error that lists the differences between two declarations."""
    message = f"stream {was.name} already exists with a different declaration: {'; '.join(differences(was, now))}"
    return DataError(message, "repeat the existing declaration, new columns last; or choose another name")


def check_query_name(name: Any) -> None:
    """Raises DataError for an invalid query name."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise DataError(f"{name!r} cannot name a query", "use a text without control characters, such as 'falls'")
    check_length(name, "query")


def check_length(name: str, what: str) -> None:
    """Raises DataError for a name that is too long."""
    size = len(name.encode())
    if size > NAME_BYTES_MAX:
        message = f"the name of the {what} {name[:20]}... has {size} bytes"
        raise DataError(message, f"use at most {NAME_BYTES_MAX}")


def _type(stream: str, column: str, type: str | pa.DataType) -> str:
    from matching.types import arrow_type, contains, duckdb_type

    try:
        if isinstance(type, pa.DataType):
            type = duckdb_type(type)
        given = arrow_type(type)
        if contains(given, pa.types.is_union):
            raise DataError(
                f"{stream}.{column}: {type} is no type of a stream: Parquet has no UNION",
                "declare a STRUCT with a column for each member, or a VARCHAR",
            )
        return canonical_type(type)
    except DataError:
        raise
    except Exception as error:  # noqa: BLE001  (DuckDB raises many classes for a bad type)
        message = first_line(error)
        hint = "use a DuckDB type, such as TIMESTAMP, VARCHAR or DOUBLE"
        raise DataError(f"{stream}.{column}: {message}", hint) from None


@dataclass(frozen=True, slots=True)
class Pace:
    """The settings of a stream that depend on the clock, in microseconds of the clock; None: off.

    idle_us: the idle timeout: a source silent for so long no longer holds the watermark back. heartbeat_us: if no
    source has sent anything for so long, the watermark follows the clock at this distance, less the lateness. ahead_us:
    an event further ahead of the clock on arrival is refused."""

    idle_us: int | None = None
    heartbeat_us: int | None = None
    ahead_us: int | None = None

    @property
    def ticks(self) -> bool:
        """True if time alone may raise the watermark."""
        return self.idle_us is not None or self.heartbeat_us is not None


UNPACED = Pace()


def pace_of(idle: Any, heartbeat: Any, max_ahead: Any) -> Pace:
    """Returns the pace of these settings. Raises DataError for an invalid duration, or one that is not positive."""
    given = {"idle": idle, "heartbeat": heartbeat, "max_ahead": max_ahead}
    return Pace(*(None if value is None else positive_us(value, what) for what, value in given.items()))


def settings(schema: Schema, pace: Pace, changed: Mapping[str, Any]) -> tuple[Schema, Pace, list[str]]:
    """Returns the schema and pace with changed settings, and the changes in words. Raises DataError for a setting that
    is fixed."""
    was = {
        "lateness": schema.lateness_us, "retention": schema.retention_us, "idle": pace.idle_us,
        "heartbeat": pace.heartbeat_us, "max_ahead": pace.ahead_us,
    }  # fmt: skip
    now, said = dict(was), []
    for what, value in changed.items():
        if what not in was:
            hint = "create_stream adds columns; another time, key or order needs a new stream, filled from the source"
            raise DataError(f"{what} of stream {schema.name} cannot be changed", hint)
        if what == "lateness":
            now[what] = 0 if value is None else duration_us(value, what)
        else:
            now[what] = None if value is None else positive_us(value, what)
        if now[what] != was[what]:
            said.append(f"{what} is {show_duration(now[what])} from now on, it was {show_duration(was[what])}")
    return (
        replace(schema, lateness_us=now["lateness"] or 0, retention_us=now["retention"]),
        Pace(now["idle"], now["heartbeat"], now["max_ahead"]), said,
    )  # fmt: skip


def write_declaration(
    directory: Place, schema: Schema, watermark_us: int | None, pace: Pace = UNPACED, expected: Sequence[str] = (),
    logged: bool = False,
) -> None:
    """Writes the declaration, the watermark, the sources it waits for, and the presence of a log to the stream's
    directory. Atomic."""
    state = {
        "version": STREAM_VERSION, **schema.to_dict(), "watermark_us": watermark_us, "idle_us": pace.idle_us,
        "heartbeat_us": pace.heartbeat_us, "ahead_us": pace.ahead_us, "expected": list(expected), "logged": logged,
    }  # fmt: skip
    (directory / STREAM_FILE).write_text(json.dumps({**state, "sum": _sum(state)}, indent=1))


def _sum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def read_declaration(directory: Place) -> tuple[Schema, int | None, Pace, tuple[str, ...], bool]:
    """Returns the declaration in a stream's directory: schema, saved watermark, pace, the sources that the watermark
    waited for, and True if a log must exist. If the file is missing, warns and takes the declaration from the table.
    Raises DataError."""
    file = directory / STREAM_FILE
    if not file.exists():
        from archive.table import Table

        schema = Table.open(directory / TABLE).schema
        message = f"{file} is missing: {schema.name} is declared as its table is, without idle and heartbeat settings"
        warn(message)
        return schema, None, UNPACED, (), False
    try:
        state = json.loads(file.read_text())
        version, written = state["version"], state.pop("sum", None)
        if version not in (1, STREAM_VERSION):
            raise DataError(f"{file} has version {version}", f"this program reads versions up to {STREAM_VERSION}")
        if version > 1 and written != _sum(state):
            raise ValueError("its checksum does not match")
        pace = Pace(state.get("idle_us"), state.get("heartbeat_us"), state.get("ahead_us"))
        return Schema.from_dict(state), state["watermark_us"], pace, tuple(state.get("expected", ())), bool(
            state.get("logged", False)
        )
    except (ValueError, KeyError, TypeError) as error:
        hint = "restore it from a copy, or run hybrid archive repair to rebuild it from the table"
        raise DataError(f"{file} is damaged: {error}", hint) from None


def stream_names(database: Place) -> list[str]:
    """Returns the names of the streams in a database, in order, without those whose removal has begun. Raises DataError
    for an unfinished copy."""
    names = database.names()
    if INCOMPLETE in names:
        raise DataError(f"{database} is an unfinished snapshot", "run hybrid archive snapshot again")
    gone = set((database / DROPPED).names()) if DROPPED in names else set()
    places = ((name, database / name) for name in names if name not in gone)
    return [name for name, at in places if _is_stream(at)]


def _is_stream(at: Place) -> bool:
    """Returns True if the directory holds a stream. A new one that a full disk or a crash cut short before its first
    commit is none: only an empty log is left of it."""
    if (at / STREAM_FILE).exists():
        return True
    table = at / TABLE
    log = table / "_delta_log"
    if not log.exists():
        return False
    begun = table.on_disk and set(table.names()) == {log.name} and not any(n.endswith(".json") for n in log.names())
    return not begun


def begin_drop(database: Place, name: str) -> None:
    """Notes that a stream is removed: from now on it is none of the database, whatever is left of it."""
    (database / DROPPED).make()
    (database / DROPPED / name).write_text("")
    (database / DROPPED).sync()


def finish_drops(database: Place) -> None:
    """Deletes what is left of the streams whose removal has begun."""
    for name in (database / DROPPED).names():
        if (database / DROPPED / name).exists():
            clear(database / name)
            (database / DROPPED / name).remove()


def clear(directory: Place) -> None:
    """Deletes all files of a directory, and on disk the directory."""
    if directory.on_disk:
        if directory.exists():
            shutil.rmtree(directory)
        return
    for path in [entry.path for entry in directory.entries()]:
        (directory / path).remove()


def stream_directory(database: Place, name: str) -> tuple[Schema | None, Place]:
    """Returns the declaration of a stream (None: no such stream) and its directory; the database need not be open.
    Raises DataError."""
    for known in stream_names(database):
        if known.lower() == name.lower():
            return read_declaration(database / known)[0], database / known
    return None, database / name
