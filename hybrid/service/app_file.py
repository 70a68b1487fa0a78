"""Loads and checks the file of `hybrid run`; reports all its faults at once, each at its position.

A table is checked by its model (hybrid.service.app_tables); references, streams, patterns and queries by the code that
runs them later.

Long: one class checks one file, since its faults are reported together.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hybrid.service import toml_places
from hybrid.service.app import App, Query, state_directory
from hybrid.service.app_tables import (
    SINKS,
    SOURCES,
    AppTable,
    DatabaseTable,
    FileSinkTable,
    FileSourceTable,
    LimitsTable,
    MetricsTable,
    PatternTable,
    QueryTable,
    SimulatorSourceTable,
    SinkTable,
    SourceTable,
    StreamTable,
)
from hybrid.service.connectors import file_settings, make_sink, make_source
from hybrid.service.declare import declare, late_rows, named_rows
from hybrid.service.toml_places import Places, read_toml
from hybrid.watch.declaration import NAME_BYTES_MAX
from hybrid.watch.shedding import Shed
from live.sinks.base import Sink
from live.sources.base import Source
from query.errors import DataError, Diagnostic, Error, QueryError, Span, nearest
from query.extras import install_command
from query.schema import Schema

if TYPE_CHECKING:
    from hybrid.rows.duck import Access
    from hybrid.rows.times import BadTime


EXTRAS = {"kafka": "confluent_kafka", "mqtt": "paho", "apprise": "apprise"}
SECTIONS = ("database", "streams", "sources", "patterns", "queries", "sinks", "metrics", "limits")
#: A reference to an environment variable, or to a file.
_VARIABLE = re.compile(r"\$\{(?:([A-Za-z_][A-Za-z0-9_]*)|file:([^{}]+))\}")


def state_of(where: Path) -> Path:
    """Returns the state directory of an app file, whose other tables may be faulty, or of a database directory. Raises
    DataError if the file cannot be read, and AppError if its `database` table cannot."""
    if where.is_dir():
        return where / "_service" if os.path.isdir(where / "_service") else where
    text = _read(where, str(where))
    try:
        data, places = read_toml(text)
    except QueryError as error:
        raise AppError([(str(where), error)]) from None
    check = _Check(where, {"database": data.get("database")}, places)
    if check.found:
        raise AppError([(str(where), QueryError(check.found, text))])
    database = check.data["database"]
    given = database if isinstance(database, dict) else {}
    path, state = (v if isinstance(v, str) else None for v in (given.get("path"), given.get("state")))
    return state_directory(where.absolute(), path, state)


class AppError(Error):
    """All faults of an app file. parts: file names with their faults. code: of the first of them."""

    def __init__(self, parts: list[tuple[str, QueryError]]) -> None:
        self.parts = tuple(parts)
        self.code = parts[0][1].code
        super().__init__(self.render())

    def render(self) -> str:
        return "\n\n".join(error.render(name) for name, error in self.parts)


def load(path: str | Path) -> App:
    """Reads and checks an app file, without opening its database, sources or sinks. Raises AppError for its faults, and
    DataError if the file cannot be read."""
    path = Path(path)
    text = _read(path, str(path))
    try:
        data, places = read_toml(text)
    except QueryError as error:
        raise AppError([(str(path), error)]) from None
    check = _Check(path, data, places)
    app = check.app()
    parts = [(str(path), QueryError(check.found, text))] if check.found else []
    if parts or check.elsewhere:
        raise AppError(parts + check.elsewhere)
    return app


def _read(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror}", "name an app file, such as app.toml") from None
    except UnicodeDecodeError:
        raise DataError(f"cannot read {name}: it is not UTF-8", "save it as UTF-8") from None


class _Check:
    """One check of a file. found: its faults; elsewhere: faults of the query files that it names. named: the texts of
    its patterns, by name in lower case; broken: those with faults."""

    def __init__(self, path: Path, data: dict[str, Any], places: Places) -> None:
        self.path = path
        self.places = places
        self.found: list[Diagnostic] = []
        self.elsewhere: list[tuple[str, QueryError]] = []
        self.files = [path.absolute()]
        self.named: dict[str, str] = {}
        self.broken: set[str] = set()
        self.data: dict[str, Any] = {
            name: given if name in ("queries", "patterns") else self.filled_in(given, (name,))
            for name, given in data.items()
        }

    def filled_in(self, given: Any, path: toml_places.Path) -> Any:
        """Returns a value with its environment variables and files substituted."""
        match given:
            case dict():
                return {key: self.filled_in(value, (*path, key)) for key, value in given.items()}
            case list():
                return [self.filled_in(value, (*path, i)) for i, value in enumerate(given)]
            case str():
                return _VARIABLE.sub(lambda found: self.secret(found, self.places.value(path)), given)
        return given

    def secret(self, found: re.Match[str], place: Span) -> str:
        """Returns what a reference stands for: an environment variable, or a file without its last line break."""
        name, file = found.groups()
        if file is not None:
            try:
                return (self.path.absolute().parent / file).read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                self.fault("HQ704", f"cannot read {file}: {why}", place, hint="name a file that the service can read")
        elif name in os.environ:
            return os.environ[name]
        else:
            hint = f"set it before starting the service: export {name}=..."
            self.fault("HQ704", f"environment variable {name} is not set", place, hint=hint)
        return found[0]

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.found.append(Diagnostic(code, message, span, label, hint))

    def app(self) -> App:
        """Checks everything. Returns the app of the tables without faults."""
        for name in self.data:
            if name not in SECTIONS:
                self.fault("HQ701", f"unknown table {name}", self.places.key((name,)), hint=nearest(name, SECTIONS))
        streams = {name: self.table(StreamTable, ("streams", name)) for name in self.names("streams")}
        for section in ("sources", "queries", "sinks"):
            for name in self.names(section, silent=True):
                if not re.fullmatch(r"[A-Za-z_][\w-]*", name) or len(name.encode()) > NAME_BYTES_MAX:
                    span = self.places.key((section, name))
                    hint = f"use letters, digits, _ and -, and at most {NAME_BYTES_MAX} bytes"
                    self.fault("HQ703", f"invalid name {name!r}", span, hint=hint)
        sources = {name: self.kind(SOURCES, ("sources", name)) for name in self.names("sources")}
        sinks = {name: self.kind(SINKS, ("sinks", name)) for name in self.names("sinks")}
        self.apart(sinks)
        asked = {name: self.table(QueryTable, ("queries", name)) for name in self.names("queries")}
        named = {name: self.table(PatternTable, ("patterns", name)) for name in self.names("patterns")}
        texts = {n: self.text("patterns", n, table) for n, table in named.items() if table is not None}
        patterns = {name: text for name, text in texts.items() if text is not None}
        self.broken |= {name.lower() for name in self.names("patterns") if name not in patterns}
        database = self.table(DatabaseTable, ("database",), {})
        metrics = self.table(MetricsTable, ("metrics",), None)
        limits = self.table(LimitsTable, ("limits",), {})
        if database is not None:
            self.memory(database)
        if metrics is not None:
            self.extra("metrics", "prometheus_client", ("metrics",))
        for name, stream in streams.items():
            if stream is not None and stream.late is not None:
                self.known("sink", stream.late, ("streams", name, "late"))
        for name, source in sources.items():
            given = self.given(("sources", name))
            if isinstance(given, dict) and isinstance(given.get("stream"), str):
                self.known("stream", given["stream"], ("sources", name, "stream"))
            if source is not None:
                self.simulated(name, source, streams)
        self.sharing = (database or DatabaseTable()).sharing
        access = self.access(() if database is None else database.files)
        queries = self.queries(streams, sources, patterns, asked, sinks, access)
        self.read_once(sources)
        self.write_apart(sinks, sources, database)
        return App(
            self.path.absolute(), tuple(self.files), database or DatabaseTable(), _there(streams), _there(sources),
            queries, _there(sinks), metrics, limits or LimitsTable(), patterns,
        )  # fmt: skip

    # ---- tables

    def names(self, section: str, silent: bool = False) -> list[str]:
        """Returns the names of the tables in a section. silent: reports no fault."""
        tables = self.data.get(section, {})
        if not isinstance(tables, dict):
            if silent:
                return []
            self.fault("HQ703", f"{section} is not a table of tables", self.places.key((section,)),
                       hint=f"write [{section}.name] above its keys")  # fmt: skip
            return []
        return list(tables)

    def given(self, path: toml_places.Path) -> Any:
        found: Any = self.data
        for name in path:
            found = found[name]
        return found

    def table(self, model: type[Any], path: toml_places.Path, absent: Any = ...) -> Any:
        """Returns a table as its model, or None if it is faulty. absent: the content of a missing table; None: returns
        None for it."""
        if absent is not ... and path[0] not in self.data:
            return None if absent is None else model(**absent)
        given = self.given(path)
        try:
            return model.model_validate(given)
        except ValidationError as error:
            found = error.errors(include_url=False)
        for one in found:
            self.wrong(one, path, model)
        wrong = {one["loc"][0] for one in found if one["loc"]}
        if not isinstance(given, dict) or wrong - set(given):
            return None
        try:  # the valid keys are still checked against the other tables
            return model.model_validate({key: value for key, value in given.items() if key not in wrong})
        except ValidationError:
            return None

    def kind(self, kinds: Mapping[str, type[Any]], path: toml_places.Path) -> Any:
        """Returns a table as the model of its `type`, or None if it is faulty."""
        given = self.given(path)
        type = given.get("type") if isinstance(given, dict) else None
        if type is None:
            hint = f"add type, one of {', '.join(kinds)}"
            self.fault("HQ702", f"{'.'.join(map(str, path))} has no type", self.places.key(path), hint=hint)
            return None
        if type not in kinds:
            span, what = self.places.value((*path, "type")), path[0][:-1]  # type: ignore[index]
            self.fault("HQ703", f"unknown {what} type {type}", span, hint=nearest(str(type), tuple(kinds)))
            return None
        if type in EXTRAS:
            self.extra(type, EXTRAS[type], (*path, "type"))
        return self.table(kinds[type], path)

    def wrong(self, error: Any, base: toml_places.Path, model: type[AppTable]) -> None:
        """Reports a fault found by pydantic, in words of the app file and at its position."""
        path = (*base, *error["loc"])
        name = next(part for part in reversed(path) if isinstance(part, str))  # not the index of an item
        where = ".".join(map(str, path[:-1]))
        described = model.model_fields.get(str(error["loc"][0])) if error["loc"] else None
        about = described.description or "" if described is not None else ""
        match error["type"]:
            case "missing":
                self.fault("HQ702", f"{where} has no {name}", self.places.key(path), hint=f"{name}: {about}")
            case "extra_forbidden":
                hint = nearest(str(name), tuple(model.model_fields))
                self.fault("HQ701", f"{where} has no key {name}", self.places.key(path), hint=hint)
            case "literal_error":
                known = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
                hint = nearest(str(error["input"]), known)
                self.fault("HQ703", f"{name} is {self.written(path)}", self.places.value(path), hint=hint)
            case "value_error":
                bad: BadTime = error["ctx"]["error"].args[0]
                message = f"{name} is {self.written(path)}{bad.reason}"
                self.fault("HQ703", message, self.places.value(path), hint=bad.hint)
            case kind:
                said = _KINDS.get(kind)
                wanted = f"not {said}" if said else error["msg"][:1].lower() + error["msg"][1:]
                message = f"{name} is {self.written(path)}: {wanted}"
                hint = f"{path[len(base)]}: {about}" if about else ""
                self.fault("HQ703", message, self.places.value(path), hint=hint)

    def written(self, path: toml_places.Path) -> str:
        """Returns a value as written in the file, shortened."""
        span = self.places.value(path)
        text = self.places.text[span.start : span.end].split("\n")[0]
        return text if len(text) <= 40 else text[:37] + "..."

    # ---- references between tables

    def known(self, what: str, name: str, path: toml_places.Path) -> bool:
        """Reports a stream or sink that is not defined. Returns True if it is, faulty or not."""
        tables = self.data.get(what + "s", {})
        names = tuple(tables) if isinstance(tables, dict) else ()
        if name in names or (what == "stream" and name.lower() in map(str.lower, names)):
            return True
        hint = nearest(name, names) or f"add [{what}s.{name}]"
        self.fault("HQ704", f"{what} {name} is not defined", self.places.value(path), hint=hint)
        return False

    def apart(self, sinks: Mapping[str, SinkTable | None]) -> None:
        """Reports sinks that write to the same file or directory, in any spelling."""
        taken: dict[object, str] = {}
        for name, sink in sinks.items():
            if isinstance(sink, FileSinkTable):
                place = self.bare().place(sink.path)
                try:
                    there = os.stat(place)
                    known: set[object] = {os.path.realpath(place), (there.st_dev, there.st_ino)}
                except OSError:
                    known = {os.path.realpath(place)}
                other = next((taken[one] for one in known if one in taken), None)
                if other is not None:
                    message = f"sinks {other} and {name} write to the same path: their rows would mix"
                    hint = f"give {name} its own path; or let several queries use {other}"
                    self.fault("HQ703", message, self.places.value(("sinks", name, "path")), hint=hint)
                taken |= dict.fromkeys(known, name)

    def read_once(self, sources: Mapping[str, SourceTable | None]) -> None:
        """Reports sources that read the same file into the same stream, in any spelling."""
        from live.sources.listing import read_by_both

        before: list[tuple[str, FileSourceTable]] = []
        for name, source in sources.items():
            if not isinstance(source, FileSourceTable):
                continue
            for other, that in before:
                if that.stream.lower() != source.stream.lower():
                    continue
                path = read_by_both(*(file_settings(one, self.bare()) for one in (that, source)))
                if path is not None:
                    message = f"sources {other} and {name} both read {path}: its events would be in {that.stream} twice"
                    hint = "let one source read it: give them different paths, or remove one"
                    self.fault("HQ703", message, self.places.value(("sources", name, "path")), hint=hint)
                    break
            before.append((name, source))

    def write_apart(
        self, sinks: Mapping[str, SinkTable | None], sources: Mapping[str, SourceTable | None],
        database: DatabaseTable | None,
    ) -> None:  # fmt: skip
        """Reports sinks that write into files of a source, of the app, of the database or of the service's state."""
        from live.sources.listing import may_read

        app = self.bare()
        path = None if database is None or database.path is None or "://" in database.path else database.path
        around = path is None or _is_in(os.path.realpath(app.path), Path(app.place(path)))  # such as ".": has all files
        kept = {
            "the state of the service": state_directory(app.path, path, None if database is None else database.state),
            "the database": None if path is None or around else Path(app.place(path)),
        }
        reads = [(name, file_settings(s, app)) for name, s in sources.items() if isinstance(s, FileSourceTable)]
        for name, sink in sinks.items():
            if not isinstance(sink, FileSinkTable):
                continue
            place = os.path.realpath(app.place(sink.path))
            # The file or directory, and for a directory a file in it.
            files = [place, os.path.join(place, "part-00000000.parquet")] if sink.format == "parquet" else [place]
            what = next((
                f"files that source {source} reads" for source, settings in reads
                if any(may_read(settings, file) for file in files)
                or _is_one(place, settings.path)
            ), None)  # fmt: skip
            if what is None and any(_is_one(place, file) for file in self.files):
                what = "a file of the app"
            if what is None:
                what = next((w for w, k in kept.items() if k is not None and _is_in(place, k)), None)
            if what is not None:
                message, hint = f"sink {name} writes into {what}", f"give {name} its own path"
                self.fault("HQ703", message, self.places.value(("sinks", name, "path")), hint=hint)

    def extra(self, extra: str, module: str, path: toml_places.Path) -> None:
        if importlib.util.find_spec(module) is None:
            message = f"the extra {extra} is not installed"
            self.fault("HQ705", message, self.places.value(path), hint=install_command(extra))

    def memory(self, database: DatabaseTable) -> None:
        from archive.place import place_of
        from hybrid.rows import duck

        if database.memory_limit is not None:
            self.guarded(lambda: duck.check_memory_limit(str(database.memory_limit)), ("database", "memory_limit"))
        if database.path is not None:
            self.guarded(lambda: place_of(str(database.path)), ("database", "path"))
        if database.log not in (None, "none") and (database.path is None or "://" in database.path):
            hint = "give it a path on disk, or remove log: events that sources can send again need none"
            self.fault("HQ703", "only a database on disk has a log", self.places.value(("database", "log")), hint=hint)
        if database.spark is not None or database.spark_events is not None:
            from hybrid.join.spark_ranges import large_ranges

            at = ("database", "spark_events" if database.spark is None else "spark")
            if database.spark is not None and importlib.util.find_spec("pyspark") is None:
                self.extra("spark", "pyspark", at)
            else:
                kept = database.path is not None
                self.guarded(lambda: large_ranges(database.spark, database.spark_events, kept), at)

    def access(self, files: Sequence[str]) -> Access:
        """Returns the access of queries to files; reports files that do not exist."""
        from hybrid.rows.duck import NOTHING, access_to

        home = str(self.path.absolute().parent)
        listed = isinstance(self.data.get("database", {}).get("files"), list)
        at = [("database", "files", i) if listed else ("database", "files") for i in range(len(files))]
        there = [self.guarded(lambda f=file: access_to(False, [f], home), place) for file, place in zip(files, at)]
        return access_to(False, files, home) if all(there) else NOTHING

    def guarded(self, act: Any, path: toml_places.Path, of_key: bool = False) -> bool:
        """Runs `act`, and reports a DataError as a fault at `path`. Returns True if it raised none."""
        try:
            act()
        except DataError as error:
            span = self.places.key(path) if of_key else self.places.value(path)
            self.fault("HQ703", error.message, span, hint=error.hint)
            return False
        return True

    def sink(self, table: SinkTable) -> Sink:
        return make_sink(table, self.bare())

    def source(self, table: SourceTable, schema: Schema) -> Source:
        return make_source(table, schema, self.bare())

    def bare(self) -> App:
        """Returns an app that has only its path."""
        return App(self.path.absolute(), (), DatabaseTable(), {}, {}, {}, {}, None, LimitsTable())

    def simulated(self, name: str, source: SourceTable, streams: Mapping[str, StreamTable | None]) -> None:
        """Reports a stream whose columns are not those of its simulator."""
        if not isinstance(source, SimulatorSourceTable):
            return
        from hybrid.service.simulated import simulated_columns

        stream = next((s for n, s in streams.items() if n.lower() == source.stream.lower()), None)
        columns = simulated_columns(source.type)
        if stream is not None and sorted(c.lower() for c in stream.columns) != sorted(columns):
            self.fault("HQ703", f"a simulator of type {source.type} does not fit stream {source.stream}",
                       self.places.value(("sources", name, "stream")),
                       hint=f"its columns are {', '.join(f'{c} {t}' for c, t in columns.items())}")  # fmt: skip

    # ---- streams and queries

    def queries(
        self, streams: Mapping[str, StreamTable | None], sources: Mapping[str, SourceTable | None],
        patterns: Mapping[str, str], asked: Mapping[str, QueryTable | None],
        sinks: Mapping[str, SinkTable | None], access: Access,
    ) -> dict[str, Query]:
        """Declares the streams in an in-memory database with the access of the service, makes their sources, creates
        the patterns, and plans the queries. Returns the queries without faults."""
        from hybrid.database.database import Database

        with Database(access=access) as db:
            faulty = {name for name, stream in streams.items() if stream is None or not self.stream(db, name, stream)}
            for name, stream in streams.items():
                late = None if stream is None or stream.late is None else sinks.get(stream.late)
                if late is not None and name not in faulty:
                    rows = late_rows(db.late(name).schema.empty_table(), name)
                    self.guarded(lambda s=late, of=rows.schema: self.sink(s).check(of), ("streams", name, "late"))
            for name, source in sources.items():
                known = source is not None and next((n for n in streams if n.lower() == source.stream.lower()), None)
                if source is not None and known and known not in faulty:
                    schema = db.schema(known)
                    self.guarded(lambda s=source, of=schema: self.source(s, of), ("sources", name))
            self.patterns(db, patterns, faulty)
            return {
                name: query
                for name, table in asked.items()
                if table is not None and (query := self.query(db, name, table, sinks, faulty))
            }

    def stream(self, db: Any, name: str, stream: StreamTable) -> bool:
        """Declares a stream; reports its faults. Returns True if it has none."""
        from hybrid.watch.declaration import declared

        base: toml_places.Path = ("streams", name)
        before = len(self.found)
        if not self.guarded(lambda: declared(name, {"t": "TIMESTAMP"}, "t", (), (), 0, None), base, of_key=True):
            return False
        for column, type in stream.columns.items():
            def alone(column: str = column, type: str = type) -> None:
                declared(name, {column: type}, column, (), (), 0, None)

            self.guarded(alone, (*base, "columns", column))
        names = {column.lower() for column in stream.columns}
        for key, columns in (("time", (stream.time,)), ("key", stream.key), ("order", stream.order)):
            for i, column in enumerate(columns):
                if column.lower() not in names:
                    at: toml_places.Path = (*base, key, i)
                    self.fault("HQ704", f"{name} has no column {column}", self.places.value(at),
                               hint=nearest(column, tuple(stream.columns)))  # fmt: skip
        self.as_before(name, stream)
        if len(self.found) > before:
            return False
        def declare_new() -> None:
            twin = next((known for known in db.streams() if known.lower() == name.lower()), None)
            if twin is not None:
                raise DataError(f"{twin} and {name} are one stream: names are case-insensitive", "choose another name")
            declare(db, name, stream)

        return self.guarded(declare_new, base, of_key=True)

    def as_before(self, name: str, stream: StreamTable) -> None:
        """Reports differences from the stream's declaration in an existing database that cannot be changed."""
        from archive.place import place_of
        from hybrid.watch.declaration import stream_directory

        path = self.data.get("database", {}).get("path")
        if not isinstance(path, str) or "://" in path or not (self.path.parent / path).is_dir():
            return
        try:
            was, _ = stream_directory(place_of(self.path.parent / path), name)
        except (DataError, OSError):
            return  # the start of the service reports faults of the database
        if was is None:
            return
        base: toml_places.Path = ("streams", name)
        types = {f.name.lower(): f.type for f in was.fields}
        for column, type in stream.columns.items():
            before = types.get(column.lower())
            if before is not None and self.type_of(type) != before:
                self.changed(was, f"column {column}", before, type, (*base, "columns", column))
        for key, one, other in (
            ("time", (was.time or "",), (stream.time,)), ("key", was.keys, stream.key),
            ("order", was.order, stream.order),
        ):  # fmt: skip
            if [n.lower() for n in one] != [n.lower() for n in other]:
                there = isinstance(self.given(base), dict) and key in self.given(base)
                at = (*base, key) if there else base
                self.changed(was, f"the {key}", ", ".join(one) or "none", ", ".join(other) or "none", at)

    @staticmethod
    def type_of(type: str) -> str:
        """Returns a type in the form of stored declarations; an unknown type, reported elsewhere, as it is."""
        from query.language.duck import canonical_type

        try:
            return canonical_type(type)
        except Exception:  # noqa: BLE001  (DuckDB's complaint about a type comes in many classes)
            return type

    def changed(self, was: Schema, what: str, before: str, now: str, path: toml_places.Path) -> None:
        place = self.places.value(path) if len(path) > 2 else self.places.key(path)
        message = f"{what} of stream {was.name} is {before} in the database, but {now} here"
        self.fault("HQ703", message, place, hint=(
            f"it cannot change: restore {before}, or declare a stream of another name, and fill it from this one "
            f"with hybrid sql (-o {was.name}.parquet) and hybrid archive ingest"
        ))  # fmt: skip

    def query(
        self, db: Any, name: str, table: QueryTable, sinks: Mapping[str, SinkTable | None], faulty: set[str]
    ) -> Query | None:
        base: toml_places.Path = ("queries", name)
        known = [sink for i, sink in enumerate(table.sinks) if self.known("sink", sink, (*base, "sinks", i))]
        text = self.text("queries", name, table)
        if text is None or self.uses_broken(text):
            return None
        schema: Any = None
        reads: tuple[str, ...] = ()

        def plan() -> None:
            nonlocal schema, reads
            schema, reads = db.rows_of(text, shed)

        shed = None if table.shed is None else Shed(table.shed.lag, table.shed.after, table.shed.least)
        if not self.planned(plan, base, text, table.file, faulty):
            return None
        for i, sink in enumerate(table.sinks):
            found = sinks.get(sink)
            if found is not None:
                rows = named_rows(schema.empty_table(), name)
                self.guarded(lambda s=found, of=rows.schema: self.sink(s).check(of), (*base, "sinks", i))
        sharing = table.sharing or self.sharing
        return Query(text, tuple(known), reads, shed, table.start, sharing, db.patterns_in(text))

    def text(self, section: str, name: str, table: QueryTable | PatternTable) -> str | None:
        """Returns the text of a query or pattern; None after reporting that it has none."""
        base: toml_places.Path = (section, name)
        if (table.sql is None) == (table.file is None):
            what = "has no text" if table.sql is None else "has two texts"
            self.fault("HQ702", f"{section}.{name} {what}", self.places.key(base), hint="give it either sql or file")
            return None
        if table.file is None:
            return table.sql
        place = self.path.parent / table.file
        self.files.append(place.absolute())
        try:
            return _read(place, table.file)
        except DataError as error:
            hint = f"name a file with the {'query' if section == 'queries' else 'pattern'}"
            self.fault("HQ704", error.message, self.places.value((*base, "file")), hint=hint)
            return None

    def planned(
        self, act: Callable[[], None], base: toml_places.Path, text: str, file: str | None, faulty: set[str]
    ) -> bool:
        """Runs `act`, and reports the faults of a text, which is in a file or in the table at `base`. Returns True if
        it raised none. faulty: streams that are not declared."""
        try:
            act()
        except QueryError as error:
            kept = [d for d in error.diagnostics if not (faulty and d.code == "HQ200")]
            if kept and error.text != text:  # of a pattern that it uses
                self.fault(kept[0].code, kept[0].message, self.places.value((*base, "sql" if file is None else "file")))
            elif kept and file is not None:
                self.elsewhere.append((str(self.path.parent / file), QueryError(kept, text)))
            elif kept:
                self.found += [self.moved(d, (*base, "sql"), text) for d in kept]
            return False
        except DataError as error:
            at = self.places.value((*base, "sql" if file is None else "file"))
            self.fault("HQ703", error.message, at, hint=error.hint)
            return False
        return True

    def patterns(self, db: Any, texts: Mapping[str, str], faulty: set[str]) -> None:
        """Creates the patterns of the file, and those of an existing database that fit, in the database of the check;
        reports their faults."""
        from hybrid.database.patterns import in_order, refuse_ring

        streams = {name.lower() for name in db.streams()}  # a pattern cannot have their names
        given = {name.lower(): text for name, text in texts.items() if name.lower() not in streams}
        self.named = dict.fromkeys(self.broken, "") | given
        for name in in_order(texts):
            table = self.given(("patterns", name))
            file = table.get("file")

            def create(name: str = name) -> None:
                if name.lower() in self.named:
                    refuse_ring(name.lower(), self.named)
                db.create_pattern(name, texts[name])

            if self.uses_broken(texts[name]) or not self.planned(create, ("patterns", name), texts[name], file, faulty):
                self.broken.add(name.lower())
        there = {name: text for name, text in self.patterns_before().items() if name not in map(str.lower, texts)}
        for name in in_order(there):
            with suppress(DataError, QueryError):  # it may be of streams that the file does not have
                db.create_pattern(name, there[name])

    def uses_broken(self, text: str) -> bool:
        """True if a text uses a pattern of the file that has a fault, which is reported already."""
        from query.language.named import used_patterns

        return not self.broken.isdisjoint(used_patterns(text, self.named))

    def patterns_before(self) -> dict[str, str]:
        """Returns the named patterns of an existing database on disk, by name in lower case."""
        from archive.place import place_of
        from hybrid.database.pattern_file import read_patterns

        path = self.data.get("database", {}).get("path")
        if not isinstance(path, str) or "://" in path:
            return {}
        try:
            return {key: p.text for key, p in read_patterns(place_of(self.path.parent / path)).items()}
        except (DataError, OSError):
            return {}  # the start of the service reports faults of the database

    def moved(self, fault: Diagnostic, path: toml_places.Path, text: str) -> Diagnostic:
        """Returns a fault of a query text with its position in the app file."""
        span = self.places.in_string(path, fault.span)
        return Diagnostic(fault.code, fault.message, span, fault.label, fault.hint)


def _is_one(path: str, other: str | Path) -> bool:
    """True if two paths mean one file, existing or not."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _is_in(path: str, directory: Path) -> bool:
    root = os.path.realpath(directory)
    return path == root or path.startswith(root + os.sep)


def _there(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {name: table for name, table in tables.items() if table is not None}


_KINDS = {
    "string_type": "a string", "int_type": "an integer", "int_from_float": "an integer",
    "bool_type": "true or false", "float_type": "a number", "dict_type": "a table", "model_type": "a table",
    "model_attributes_type": "a table", "tuple_type": "a list", "list_type": "a list",
}  # fmt: skip
