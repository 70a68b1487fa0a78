"""Resolves the names of one statement to tables, streams and DuckDB relations, and reads them.

Long: one class registers what the statement names, and each way to read it depends on what is registered."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

import duckdb
import pyarrow as pa

from archive.reader import WHOLE, HistoryReader, RangeRequest
from archive.search.search import SearchReport
from hybrid.join.pattern_history import PatternHistory
from hybrid.join.spark_ranges import LargeRanges
from hybrid.rows import duck, positions
from hybrid.rows.faults import NO_CONNECTION, fault
from hybrid.rows.frames import given_by
from hybrid.rows.inputs import (
    TIME_TYPES,
    NamedTable,
    OrderedInput,
    fields_of,
    has_ties,
    named_table,
    plain_type,
    readable,
    some_columns,
    table_of,
    tables_of,
    time_of,
    times_us,
    types_not_in_arrow,
)
from hybrid.rows.limited import bytes_of_statements, memory_of
from hybrid.rows.merged import Merged, MergedReader
from hybrid.rows.positions import IN_MAX
from hybrid.rows.reread import alike
from hybrid.rows.session import (
    Functions,
    collated,
    comparable,
    is_lacking,
    register,
    session_of,
    settings_of,
    texts_of,
    unregister,
)
from hybrid.rows.taking import some_rows
from hybrid.statement.by_key import ByKey, Met
from hybrid.statement.first_text import with_texts
from hybrid.statement.flowing import Flowing
from hybrid.statement.on_spark import OnSpark
from hybrid.statement.resorted import Resorted, resorted
from hybrid.statement.stream_input import StreamInput
from matching.batch import EventBatch
from matching.types import arrow_schema
from query.errors import DataError, QueryError, Span, check_text, nearest, warn
from query.language import ast
from query.language.cut import lacks_input
from query.language.duck import describe_on
from query.language.session import NO_SESSION, Session, collation_of
from query.plan.bind import bind, shortened
from query.plan.expression import Call, Classifier, Column, Expression, Navigation, Opaque, quote, walk
from query.plan.output import output_columns
from query.plan.plan import FactorPlan, HistoryPlan, Order, Plan, QueryPlan
from query.plan.statement import FACTOR_TABLE, HISTORY_TABLE, rows_as_values
from query.schema import Field, Schema

#: With more events, a stream is searched in ranges of keys, several in parallel.
SEARCH_ROWS_MIN = 2_000_000
#: With more events, a stream is not copied for DuckDB. MEMORY_TABLE: name prefix of its events that are not in files.
WHOLE_ROWS_MAX = 1_000_000
MEMORY_TABLE = "__hybrid_memory_"
#: A star or a word for all columns, in a SELECT.
ALL_COLUMNS = re.compile(
    r"(?:\bselect|\bdistinct|\ball|\bfrom|\bcolumns\s*\(|\bon\s*\([^)]*\)|[,.])\s*\*|\b(?:natural|unpivot|summarize)\b"
    r"|^\s*(?:from|table)\b(?!.*\bselect\b)", re.I | re.S,
)
#: Words of functions that may give other values when a SELECT is read again.
VARYING = {
    "random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid", "nextval", "currval", "now", "today", "age",
    "get_current_timestamp", "current_timestamp", "current_date", "current_time", "current_localtimestamp",
    "current_localtime", "transaction_timestamp", "localtime", "localtimestamp", "txid_current", "query", "query_table",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bounded:
    """A complete history: a plain relation, or the snapshot of an archive."""

    source: HistoryReader
    first_us: int | None
    watermark_us: int | None = None
    ended: bool = True
    revision: object = None

    def begins_us(self) -> int | None:
        return self.first_us

    def reader(self, in_files: bool = False) -> HistoryReader:
        return self.source


class Relations:
    """The tables and streams that one statement names. Use within `open()`, which removes registered names at the end.
    """

    def __init__(
        self,
        text: str,
        tables: Mapping[str, Any],
        streams: Mapping[str, StreamInput] | None = None,
        connection: duckdb.DuckDBPyConnection | None = None,
        memory_limit: str | None = None,
        search_rows_min: int | None = None,
        spark: OnSpark | None = None,
        large: LargeRanges | None = None,
        access: duck.Access = duck.ANYTHING,
        patterns: Mapping[str, str] | None = None,
    ) -> None:
        """patterns: the named patterns that the statement uses, by name in lower case."""
        check_text(text)
        self._search_rows_min = SEARCH_ROWS_MIN if search_rows_min is None else search_rows_min
        self.spark = spark
        self.large = large
        self.patterns = patterns or None
        texts = (text, *(patterns or {}).values())
        self._words = {word for one in texts for word in _words(one)}
        self._text = text
        self._given = {name.lower(): (name, data) for name, data in tables.items()}
        self.given = given_by(tables)
        self._sources: dict[str, NamedTable] = {}
        #: By input: the columns that were read of it.
        self._read: dict[str, pa.Table] = {}
        self._streams = dict(streams or {})
        self._positions: dict[str, bool] = {}
        self._functions: Functions | None = None
        self._history_orders: dict[str, list[str]] = {}
        #: By name: columns that are ENUMs on the user's connection.
        self._registered: dict[str, Mapping[str, str]] = {}
        self._described: dict[str, Sequence[Field]] = {}
        self._views: set[str] = set()
        #: By SELECT that the connection reads: the errors of columns that patterns cannot read.
        self._refused: dict[str, dict[str, DataError]] = {}
        #: By input: collations of its text columns.
        self._collated: dict[str, Mapping[str, str]] = {}
        self._filled: set[str] = set()  # named tables that are registered with their rows
        #: Search reports of patterns over large streams, by the alias of the factor.
        self.reports: dict[str, SearchReport] = {}
        #: Warnings about matches that exist only because streams end here.
        self.open_matches: list[str] = []
        if lacks_input(text):
            self._words |= {*self._given, *self._streams}
        for key, (name, data) in self._given.items():
            if key not in self._words and _is_option(data):
                message = f"{name} is neither an option nor a table in the text"
                raise DataError(message, "tables are passed by name: hybrid.sql(text, ticks=df)")
        self._own = connection is None
        self._access = access
        self._limited = memory_limit is not None or not self._own
        self.connection = connection or duck.cursor(memory_limit, access, self._viewed())

    @property
    def bytes_max(self) -> int:
        """Returns the memory that the statement may take."""
        return memory_of(self.connection) if self._limited else bytes_of_statements(None)

    def _viewed(self) -> list[str]:
        """Returns the archived files that DuckDB may read after `load`."""
        named = [s for key, s in self._streams.items() if key in self._words and key not in self._given]
        return [path for s in named if s.snapshot.rows_max > WHOLE_ROWS_MAX for path in s.snapshot.paths()]

    def names(self) -> tuple[str, ...]:
        """Returns the names of tables and streams."""
        streams = (s.schema.name for key, s in self._streams.items() if key not in self._given)
        return (*(name for name, _ in self._given.values()), *streams)

    def open(self) -> AbstractContextManager[Relations]:
        return self._opened()

    @contextmanager
    def _opened(self) -> Iterator[Relations]:
        with nullcontext() if self._own else duck.used_alone(self.connection):
            try:
                # DuckDB must not resolve unknown names to our own Python variables; duck.cursor never does.
                seen = nullcontext() if self._own else duck.settings(self.connection, python_enable_replacements=False)
                with seen:
                    self._register_columns()
                    yield self
            finally:
                self._close()

    def _register_columns(self) -> None:
        """Registers the tables and streams of the text without rows: patterns read the columns they need, and histories
        are read by range. See `load` for those that a SELECT reads."""
        for key, (name, _) in self._given.items():
            if key in self._words:
                self.register(name, self._source(key).empty, self._source(key).fields)
        for key, stream in self._streams.items():
            if key in self._words and key not in self._given:
                self.register(stream.schema.name, arrow_schema(stream.schema).empty_table())

    def _close(self) -> None:
        """Removes the registered names."""
        if not self._own:
            for name, enums in self._registered.items():
                unregister(self.connection, name, enums)
        for name in self._views:  # only on our own connections, as streams never come with a user's
            self.connection.execute(f"DROP VIEW {quote(name)}")
        self._registered.clear()
        self._described.clear()
        self._views.clear()
        self._filled.clear()

    def register(self, name: str, table: pa.Table, fields: Sequence[Field] = ()) -> None:
        """Registers a table for the statement's SQL, until the end of `open()`. fields: its columns; BIGNUMs become
        BIGNUMs again, and ENUMs ENUMs on a user's connection."""
        texts = texts_of(fields, self.has_enums)
        register(self.connection, name, table, texts)
        self._registered[name] = texts

    @property
    def has_enums(self) -> bool:
        """True if ENUMs stay ENUMs, as on a user's connection, of tables that are given, and where the statement itself
        casts to one; otherwise they are text."""
        if not self._own or "enum" in self._words:
            return True
        return any(self._source(key).enums for key in self._given if key in self._words)

    def load(self, plan: QueryPlan) -> None:
        """Registers the events of streams that DuckDB itself selects from: a table in the total order up to
        WHOLE_ROWS_MAX events, beyond that a view of files and memory, from which DuckDB reads the needed parts."""
        inputs = [(sql, f.plan.columns) for f in plan.factors for sql in f.inputs if _bare(sql) is None]
        words: set[str] = set()
        for sql, columns in [(plan.select_sql, None), *inputs]:
            read = self._selected(sql)
            for key in read & self._given.keys():
                every = columns if columns is not None else self._source(key).refused
                whole = ALL_COLUMNS.search(sql) or (every and key in rows_as_values(sql))
                self._refuse([key], {*_words(sql), *(every if whole else ())})
            words |= read
        self._fill(words)
        for key, stream in self._streams.items():
            if key in words & self._words and key not in self._given:
                name, snapshot = stream.schema.name, stream.snapshot
                memory = f"{MEMORY_TABLE}{name}"
                view = None if snapshot.rows_max <= WHOLE_ROWS_MAX else snapshot.select_sql(quote(memory), stream.late)
                if view is None:
                    self.register(name, pa.Table.from_batches([snapshot.read(RangeRequest(late=stream.late)).columns]))
                else:
                    self.register(memory, pa.Table.from_batches([snapshot.recent(stream.late).columns]))
                    self.connection.execute(f"CREATE OR REPLACE TEMP VIEW {quote(name)} AS {view}")
                    self._views.add(name)

    @staticmethod
    def _selected(sql: str) -> set[str]:
        """Returns the tables that a SELECT reads, in lower case; for other statements, all words."""
        try:  # on a connection without views: DuckDB would expand them
            return {name.lower() for name in duck.cursor().get_table_names(sql)}
        except duckdb.Error:  # the statement creates its table, or is a fragment
            return {w.lower() for w in re.findall(r"\w+", sql)}

    def _fill(self, words: Collection[str]) -> None:
        """Registers the rows of those named tables that DuckDB itself selects from."""
        for key in self._given:
            if key in words and key in self._words and key not in self._filled:
                self.register(self._given[key][0], self.table(key), self._source(key).fields)
                self._filled.add(key)

    def _source(self, key: str) -> NamedTable:
        """Returns a named table."""
        if key not in self._sources:
            name, data = self._given[key]
            self._sources[key] = named_table(data, name, self._access)
        return self._sources[key]

    def table(self, key: str, columns: Collection[str] | None = None) -> pa.Table:
        """Returns a named table as Arrow. columns: the needed ones (None: all)."""
        source = self._source(key)
        return self._reading(key, source.empty, columns, source.table)

    def _reading(
        self, key: str, empty: pa.Table, columns: Collection[str] | None,
        read: Callable[[Collection[str] | None], pa.Table],
    ) -> pa.Table:  # fmt: skip
        """Returns columns of an input. What has been read of it is read again only with more columns. Raises DataError
        if its rows are others by then."""
        wanted = empty if columns is None else some_columns(empty, columns)
        known = self._read.get(key)
        if known is None or not set(wanted.column_names) <= set(known.column_names):
            names = set(wanted.column_names) | set(() if known is None else known.column_names)
            found = read(names)
            if known is not None and not alike(known, found.select(known.column_names)):
                message = f"the rows of {key} are not those that the matches were found in: they have changed since"
                raise DataError(message, "run the statement again")
            known = self._read[key] = found
        return known.select(wanted.column_names)

    def stream(self, text: str) -> StreamInput | None:
        """Returns the stream that an input text names, or None. A given table hides a stream of the same name."""
        key = _bare(text)
        return self._streams.get(key) if key is not None and key not in self._given else None

    def open_inputs(self, factor: FactorPlan) -> list[StreamInput]:
        """Returns the streams among the inputs of a factor that have not ended."""
        streams = [self.stream(sql) for sql in factor.inputs]
        return [one for one in streams if one is not None and not one.ended]

    def searched_by_spark(self, factor: FactorPlan) -> tuple[StreamInput, ...]:
        """Returns the streams that Spark searches for a factor, one for each of its inputs; none if this process does.
        """
        streams = [] if self.spark is None else [self.stream(sql) for sql in factor.inputs]
        found = tuple(stream for stream in streams if stream is not None)
        return found if len(found) == len(streams) else ()

    def streams_in(self, text: str) -> list[str]:
        """Returns the names of streams in an input text."""
        words = {w.lower() for w in re.findall(r"\w+", text)}
        return [s.schema.name for key, s in self._streams.items() if key in words and key not in self._given]

    def allow(self, query: ast.QuerySyntax) -> None:
        """Raises QueryError for COPY without file access, and for INSERT and CREATE without a user's connection."""
        if query.kind is ast.StatementKind.COPY and not self._access.outside:
            what = "COPY writes a file, and this database has external=False"
            raise fault("HQ100", what, query.text, "use the rows of the result", query_head(query))
        if self._own and query.kind in (ast.StatementKind.INSERT, ast.StatementKind.CREATE_TABLE):
            hint = "hybrid.sql(text, connection); the result is DuckDB's row count"
            what = f"{query.kind.value} {NO_CONNECTION}"
            raise fault("HQ100", what, query.text, f"pass one: {hint}", query_head(query))

    def expect(self, query: ast.QuerySyntax) -> None:
        """Records the relations that the query joins as histories, and the columns that order them."""
        for join in query.histories:
            matches = [join.match, *(f.match for f in query.factors)]
            orders = [m.order_by[0].expression.text.strip().strip('"').lower() for m in matches if m and m.order_by]
            self._history_orders.setdefault(join.stream.written.lower(), []).extend(orders)
        for module in query.modules:
            self.expect(module.query)

    def bind(self, query: ast.QuerySyntax) -> QueryPlan:
        """Returns the plan of a query over these relations."""
        self._text = query.text  # with the patterns that FROM reads: DuckDB reports errors about this text
        self.expect(query)
        try:
            session = NO_SESSION if self._own or not query.factors else self._session(query)
            others = self.others()
            plan = bind(query, self.resolve, relations=others, describe=self.describe, session=session)
            collation = "" if self._own else self._collation(query, plan, collation_of(session.settings))
            if collation != collation_of(session.settings):  # of all texts that expressions compare
                session = replace(session, settings=(*session.settings, ("default_collation", collation)))
                plan = bind(query, self.resolve, relations=others, describe=self.describe, session=session)
        except duckdb.Error as error:  # for example in an aborted transaction
            raise duck.query_error(error, self._text) from None
        except QueryError as error:  # it may be about the type of a column that cannot be read, which is text here
            self._refuse([*self._given, *self._refused], self._words)
            raise with_texts(error, query, self) from None
        for factor in plan.factors:
            self._refuse(factor.inputs, factor.plan.columns)
            for history in factor.histories:
                columns = self._words if history.plan is None else history.plan.columns
                self._refuse([history.schema.name], columns)
        return plan

    def _refuse(self, tables: Iterable[str], columns: Collection[str]) -> None:
        """Raises the DataError of the first of these columns that cannot be read. tables: inputs, or names."""
        read = {c.lower() for c in columns}
        for text in tables:
            key = _bare(text) or text.lower()
            given = self._source(key).refused if key in self._given and key in self._words else {}
            for column, error in {**given, **self._refused.get(_select_of(text), {})}.items():
                if column.lower() in read:
                    raise error

    def _readable(self, select: str, name: str) -> duckdb.DuckDBPyRelation:
        """Returns what the connection reads by a SELECT, columns that patterns cannot read as text."""
        return readable(self.connection.sql(select), name, self._refused.setdefault(select, {}))

    def _session(self, query: ast.QuerySyntax) -> Session:
        """Returns the session of the user's connection. Raises QueryError for settings that patterns do not support."""
        taken, refused = settings_of(self.connection)
        for name, value in refused:
            message = f"the connection has {name} = {value}, which patterns do not support"
            raise fault("HQ500", message, query.text, f"RESET {name} before, and SET it again after", query_head(query))
        return session_of(self.connection, taken, self._known_functions(), self._words)

    def _known_functions(self) -> Functions:
        """Returns the functions of the connection, listed once for a statement."""
        if self._functions is None:
            self._functions = Functions.of(self.connection)
        return self._functions

    def _collation(self, query: ast.QuerySyntax, plan: QueryPlan, default: str) -> str:
        """Returns the collation under which the statement's expressions compare text, and records those of columns.
        Raises QueryError where there is no single one, or where a clause supports none."""
        found: set[str] = set()
        for i, factor in enumerate(plan.factors):
            of, span = factor.plan, query.factors[i].match.span
            joins = [join for join in query.histories if join.factor == i]
            for h, join in zip(factor.histories, joins, strict=True):
                columns = h.schema.names if h.plan is None else h.plan.columns
                self._refuse_collation(self._collations(quote(h.schema.name), h.schema, default), columns, join.span)
            texts = self._collations(factor.input_sql, factor.schema, default)
            if not any(texts.get(c) for c in of.columns):
                found |= {""} if default == "" and any(texts.get(c) == "" for c in of.columns) else set()
                continue
            if factor.histories or factor.members or of.trends is not None or of.boxes:
                self._refuse_collation(texts, of.columns, span)
            read = (*(d.condition for d in of.defines), *(m.expression for m in of.measures))
            parts = [part for e in read for part in walk(e)]
            inside = {part.name for part in parts if isinstance(part, Column)}
            keys = {c.name for c in of.partition_by}
            why = ": it is a key of PARTITION BY, and the values of its rows are read as well"
            one = of.rows is ast.RowsPerMatch.ONE
            self._refuse_collation(texts, keys & inside if one else keys, span, why)
            here = {texts[c] for c in inside & texts.keys()}
            if any(here) and (len(here) > 1 or (not default and any(map(_is_other_text, parts)))):
                self._refuse_collation(texts, inside, span, ": other text beside it has none, or another one")
            found |= here
            self._collated[factor.input_sql] = texts
        if len(found | ({default} if default else set())) > 1:
            message = f"the texts of this statement have several collations: {', '.join(sorted(found | {default}))}"
            raise fault("HQ500", message, query.text, "write COLLATE in the input, the same for all", query_head(query))
        return max(found, default=default)

    def _collations(self, sql: str, schema: Schema, default: str) -> dict[str, str]:
        """Returns the collations of an input's text columns, by name; empty for byte order."""
        key = _bare(sql)
        whole = sql if key is None else f"SELECT * FROM {sql}"
        own = {} if key is not None and key in self._given else collated(self.connection, whole)
        return {f.name: own.get(f.name, default) for f in schema.fields if f.type == "VARCHAR" or own.get(f.name)}

    def collations(self, plan: QueryPlan) -> list[dict[str, str]]:
        """Returns, by factor, the collations of its output columns that are columns of its input."""
        found = []
        for factor in plan.factors:
            texts = self._collated.get(factor.input_sql, {})
            of = {f.name: f.name for f in output_columns(factor.plan)}
            for m in factor.plan.measures:
                value = m.expression.argument if isinstance(m.expression, Navigation) else m.expression
                of[m.name] = value.name if isinstance(value, Column) else ""
            found.append({name: texts[c] for name, c in of.items() if texts.get(c)})
        return found

    def _refuse_collation(self, texts: Mapping[str, str], columns: Collection[str], span: Span, why: str = "") -> None:
        """Raises QueryError if one of the columns has a collation."""
        for column, collation in texts.items():
            if column in columns and collation:
                message = f"{column} has the collation {collation.upper()}, which patterns do not support here{why}"
                own = quote(column)
                hint = f"remove it in the input: FROM (SELECT * REPLACE ({own} COLLATE C AS {own}) FROM ...)"
                raise fault("HQ500", message, self._text, hint, span)

    def resolve(self, text: str) -> Schema:
        """Returns the schema of an input: a stream, a named table, or anything that DuckDB can select from. Reads no
        rows. Raises LookupError with a hint for an unknown name, QueryError for SQL that DuckDB rejects."""
        stream = self.stream(text)
        if stream is not None:
            return stream.schema
        key = _bare(text)
        if key is not None and key in self._given:
            return self._plain(self._given[key][0], self._source(key).fields)
        name = shortened(text) if key is None else text.strip().strip('"')
        try:
            relation = self._readable(f"SELECT * FROM {text}", name)
            empty = table_of(relation.limit(0), name)
        except duckdb.Error as error:
            if key is not None and isinstance(error, duckdb.CatalogException):
                known = [n for n, _ in self._given.values()] + [s.schema.name for s in self._streams.values()]
                raise LookupError(nearest(name, [*known, *sorted(self._known())])) from None
            raise duck.query_error(error, self._text, text.strip()) from None
        types = types_not_in_arrow(relation, self.has_enums)
        return self._plain(name, tuple(Field(f.name, types.get(f.name, f.type)) for f in fields_of(empty)))

    def describe(
        self, sql: str, tables: Mapping[str, Sequence[Field]], select: bool = True, /
    ) -> tuple[Field, ...]:
        """Returns the columns of a statement; see query.plan.statement.Describe. tables: columns of pattern factors and
        history joins, which are registered without rows."""
        for name, fields in tables.items():
            # patterns of boxes have statements, and so tables, of their own
            if name.startswith((FACTOR_TABLE, HISTORY_TABLE)) and self._described.get(name) != fields:
                self._described[name] = fields
                columns = tuple(fields) or (Field("nothing", "INTEGER"),)  # binding reports missing columns later
                self.register(name, arrow_schema(Schema(name, columns)).empty_table(), columns)
        with self._errors_as_json():
            described = describe_on(self.connection, sql, select)
        return tuple(
            f if is_lacking(f.type, self.has_enums) else Field(f.name, plain_type(f.type)) for f in described
        )

    @contextmanager
    def _errors_as_json(self) -> Iterator[None]:
        if not self._own:
            with duck.settings(self.connection, errors_as_json=True):
                yield
            return
        self.connection.execute("SET errors_as_json=true")  # nobody else has a transaction or a value of it here
        try:
            yield
        finally:
            self.connection.execute("SET errors_as_json=false")

    def _plain(self, name: str, fields: tuple[Field, ...]) -> Schema:
        """Returns the schema of a plain relation. As a history it gets a time: the column that orders it (or PL), if
        that is a time, or else its only time column."""
        orders = self._history_orders.get(name.lower())
        time = None
        if orders is not None:
            times = [f.name for f in fields if f.type in TIME_TYPES]
            time = next((t for o in orders for t in times if t.lower() == o), times[0] if len(times) == 1 else None)
        return Schema(name, fields, time=time)

    def others(self) -> dict[str, tuple[Field, ...]]:
        """Returns the columns of tables that the outer SELECT may name besides pattern factors."""
        found = {name: self._source(key).fields for key, (name, _) in self._given.items() if key in self._words}
        for key, stream in self._streams.items():
            if key in self._words:
                found.setdefault(stream.schema.name, stream.schema.fields)
        if not self._own:
            for name in self._known() & self._words - {n.lower() for n in found}:
                with suppress(LookupError, DataError):  # of another schema, or with a type that cannot be exported
                    found[name] = self.resolve(quote(name)).fields
        return found

    def _known(self) -> set[str]:
        """Returns tables and views of the connection, in lower case, without DuckDB's own."""
        names = "SELECT table_name FROM duckdb_tables() UNION SELECT view_name FROM duckdb_views() WHERE NOT internal"
        return {str(name).lower() for (name,) in self.connection.execute(names).fetchall()}

    def rows(self, text: str, name: str, columns: Collection[str] | None = None) -> pa.Table:
        """Returns the rows of an input that is not a stream: a name or a SELECT. A named table bypasses DuckDB.
        columns: the needed ones (None: all)."""
        key = _bare(text)
        if key is not None and key in self._given:
            return self.table(key, columns)
        select = _select_of(text)
        self._fill(self._selected(select))
        with self._faults_of(name):
            if VARYING & {w.lower() for w in re.findall(r"\w+", select)}:
                columns = None  # read again, it would have other values
            relation = self._readable(select, name)
            self._refuse([text], columns or ())

            def read(names: Collection[str] | None) -> pa.Table:
                kept = [c for c in relation.columns if names is None or c in names]
                return table_of(relation.project(", ".join(map(quote, kept))), name)

            return self._reading(text, pa.table({c: [] for c in relation.columns}), columns, read)

    def kept(self, text: str) -> pa.Table | None:
        """Returns the columns that have been read of an input that is not a stream; None: it is to be read. Raises
        DataError if only the connection of a user could read it, which may be at something else by now."""
        key = _bare(text)
        found = self._read.get(key if key is not None and key in self._given else text)
        if found is None and not self._own:
            raise DataError("the rows of this input are not kept")
        return found

    def has_positions(self, text: str) -> bool:
        """True if the rows of an input that is not a stream have positions: a table, a frame, a file, or a SELECT that
        preserves its order. Rows of patterns and history joins have none."""
        if text not in self._positions:
            self._positions[text] = self._position_of(text)
        return self._positions[text]

    def _named(self, key: str) -> bool | None:
        """True if the rows of a named table or stream have positions; None for a name of the connection."""
        if key in self._given:
            data = self._given[key][1]
            return positions.of_relation(data) if isinstance(data, duckdb.DuckDBPyRelation) else True
        if key in self._streams or key.startswith((FACTOR_TABLE, HISTORY_TABLE)):
            return False
        return None

    def ordered(
        self, text: str, name: str, order_by: tuple[Order, ...], time: str | None,
        columns: Collection[str] | None = None, rows: pa.Table | None = None,
    ) -> OrderedInput:  # fmt: skip
        """Returns the rows of an input that is not a stream, in the order of ORDER BY. columns: the needed ones (None:
        all); all are read where rows without positions are ordered by content. rows: None if as they are."""
        positioned = self.has_positions(text)
        rows = self.rows(text, name, columns if positioned else None) if rows is None else rows
        ordered = OrderedInput.of(name, rows, order_by, time, by_content=not positioned)
        if not positioned and self._position_of(text, inf) and has_ties(ordered.table, order_by):
            warn(f"rows of {name} that are equal in ORDER BY are ordered by content: after a long IN list DuckDB "
                "returns them in undefined order; add columns to ORDER BY to distinguish them")
        return ordered

    def _position_of(self, text: str, in_max: float = IN_MAX) -> bool:
        """True if the rows of an input have positions. in_max: as of positions.of_select."""
        key = _bare(text)
        known = None if key is None else self._named(key)
        if known is not None:
            return known
        select = _select_of(text)
        return positions.of_select(
            select, lambda sql: self.connection.execute(sql).fetchall(), self._named, in_max,
            lambda: self._known_functions().table_macros,
        )  # fmt: skip

    def factor(
        self, factor: FactorPlan, by_key: bool = False, again: bool = True,
        met: Met | None = None,
    ) -> tuple[Iterator[EventBatch], HistoryReader, bool]:  # fmt: skip
        """Returns batches of a pattern factor's events in the total order, the reader to read them again, and True if
        late rows are included. by_key: a table may be read partition by partition; the reader is then a ByKey. again:
        events are read again for evidence, with all columns; otherwise a table is read with those that the plan reads.
        met: returns the rows of a table that may change matches, and those alone are brought into order."""
        if factor.members:
            return self.merged(factor)
        stream = self.stream(factor.input_sql)
        if stream is None:
            plan, name = factor.plan, factor.plan.schema.name
            collated = any(self._collated.get(factor.input_sql, {}).values())
            columns = None if again or collated else plan.columns
            rows = self.rows(factor.input_sql, name, columns if self.has_positions(factor.input_sql) else None)
            self._refuse([factor.input_sql], plan.columns)
            time = time_of(plan.order_by)
            if time is not None and rows.column(time).null_count and (plan.within is None or plan.within.rows):
                time = None  # rows without a time keep their place, and no WITHIN needs their distance
            if collated:
                keys = [c.name for c in plan.partition_by]
                rows, order_by = comparable(rows, keys, plan.order_by, self._collated[factor.input_sql])
                by_text = self.ordered(factor.input_sql, name, order_by, time, rows=rows)
                return by_text.batches(plan.columns), by_text, False
            if by_key and self.has_positions(factor.input_sql):
                standing = ByKey.of(name, rows, plan, time, met)
                if standing is not None:
                    return standing.batches(plan.columns), standing, False
                if met is not None and (kept := met(rows)) is not None:
                    if time is not None:
                        times_us(rows, time, name)  # a row without a time is an error, also one that is left out
                    read = {*kept.columns, *(o.column.name for o in plan.order_by)}
                    some = OrderedInput.of(name, some_rows(some_columns(rows, read), kept.rows), plan.order_by, time)
                    return some.batches(plan.columns), some, False
            ordered = self.ordered(factor.input_sql, name, plan.order_by, time, columns)
            return ordered.batches(plan.columns), ordered, False
        batches = stream.snapshot.batches(replace(stream.request, columns=factor.plan.columns))
        return resorted(batches, factor.plan.order_by), stream.snapshot, stream.late

    def flowing(self, factor: FactorPlan) -> Flowing | None:
        """Returns the input of a pattern factor, to be matched while it is read, without evidence. None for an input
        whose rows must be there before they are matched, for a small one, and for streams."""
        text, plan, name = factor.input_sql, factor.plan, factor.plan.schema.name
        collated = any(self._collated.get(text, {}).values())
        if factor.members or collated or self.stream(text) is not None or not self.has_positions(text):
            return None
        key = _bare(text)
        given = key if key is not None and key in self._given else None
        if (text if given is None else given) in self._read:
            return None
        tables = self._source(given).tables(plan.columns) if given is not None else self._tables(text, plan)
        if tables is None:
            return None
        found = Flowing.of(name, tables, plan, time_of(plan.order_by))
        if isinstance(found, Flowing):
            return found
        self._read[text if given is None else given] = found
        return None

    def _tables(self, text: str, plan: Plan) -> Generator[pa.Table] | None:
        """Yields the rows of an input of the connection as they are read; None if it reads named tables."""
        select = _select_of(text)
        read = self._selected(select)
        if VARYING & {w.lower() for w in re.findall(r"\w+", select)} or read & {*self._given, *self._streams}:
            return None
        faults = partial(self._faults_of, plan.schema.name)
        with faults():
            relation = self._readable(select, plan.schema.name)
            self._refuse([text], plan.columns)
            kept = [c for c in relation.columns if c in plan.columns] or relation.columns[:1]
            return tables_of(relation.project(", ".join(map(quote, kept))), plan.schema.name, faults)

    @contextmanager
    def _faults_of(self, name: str) -> Iterator[None]:
        """Raises QueryError for what DuckDB cannot read of an input."""
        try:
            yield
        except (duckdb.Error, OSError) as error:  # OSError: while Arrow reads from DuckDB
            raise duck.query_error(error, self._text, name) from None

    def searched(self, factor: FactorPlan) -> StreamInput | None:
        """Returns the stream of a pattern factor if it is large enough to be searched in parts, else None."""
        stream = None if factor.members else self.stream(factor.input_sql)
        return stream if stream is not None and stream.snapshot.rows_max > self._search_rows_min else None

    def merged(self, factor: FactorPlan) -> tuple[Iterator[EventBatch], HistoryReader, bool]:
        """Returns what `factor` does for the inputs of a MERGE."""
        readers: list[tuple[HistoryReader, RangeRequest]] = []
        for member in factor.members:
            stream = self.stream(member.input_sql)
            if stream is not None:
                readers.append((stream.snapshot, stream.request))
            else:
                time = member.schema.column(member.schema.time or "")
                order_by = (Order(Column(time.name, time.type)),)
                readers.append((self.ordered(member.input_sql, member.name, order_by, time.name), WHOLE))
        reader = MergedReader(Merged(factor.schema, factor.members), readers)
        return resorted(reader.batches(), factor.plan.order_by), reader, False

    def history(self, history: HistoryPlan) -> tuple[Bounded | PatternHistory, bool]:
        """Returns the history of a join, and True if it includes late rows. It is a stream's snapshot, the rows of a
        named pattern, or a plain relation ordered by its time."""
        name = history.schema.name
        if history.rows_of is not None:
            below, late = [], False
            for one in history.rows_of.inputs:
                read = self.stream(one.input_sql)
                if read is None:
                    message = f"HISTORY OF {name} reads the stream {one.name}, which a table of that name hides"
                    raise DataError(message, "pass the table by another name")
                below.append(Bounded(read.snapshot, read.begins_us))
                late = late or read.late
            return PatternHistory.of(history, below), late
        stream = self.stream(quote(name))
        if stream is not None:
            reader: HistoryReader = stream.snapshot
            if history.plan is not None and len(history.plan.order_by) > 1:
                reader = Resorted(reader, history.plan.order_by)
            return Bounded(reader, stream.begins_us), stream.late
        time = history.schema.column(history.schema.time or "")
        order_by = history.plan.order_by if history.plan is not None else (Order(Column(time.name, time.type)),)
        ordered = self.ordered(quote(name), name, order_by, time.name)
        return Bounded(ordered, int(ordered.ts_us[0]) if len(ordered.ts_us) else None), False


def _is_other_text(e: Expression) -> bool:
    """True for a text that is made of no other text: it has no collation."""
    if not isinstance(e, Call | Opaque):
        return isinstance(e, Classifier)
    return e.type == "VARCHAR" and bool(e.arguments) and all(a.type != "VARCHAR" for a in e.arguments)


def _is_option(data: Any) -> bool:
    """True if a value cannot be meant as a table."""
    return data is None or isinstance(data, bool | int | float) or (isinstance(data, str) and not set("./") & set(data))


def query_head(query: ast.QuerySyntax) -> Span:
    """Returns the span of the first word of a statement."""
    start = len(query.text) - len(query.text.lstrip())
    return Span(start, start + len(query.text.split()[0]))


def _words(text: str) -> set[str]:
    """Returns the words and the quoted names of a text, in lower case."""
    return {w.lower() for w in re.findall(r"\w+", text) + re.findall(r'"([^"]+)"', text)}


def _select_of(text: str) -> str:
    """Returns the SELECT of an input: a name or a SELECT."""
    return text if _bare(text) is None else f"SELECT * FROM {text}"


def _bare(text: str) -> str | None:
    """Returns the lower-case name if the text is a single name, else None."""
    text = text.strip()
    if re.fullmatch(r"[A-Za-z_]\w*", text):
        return text.lower()
    if re.fullmatch(r'"(?:[^"]|"")+"', text):
        return text[1:-1].replace('""', '"').lower()
    return None
