"""One Delta Lake table per stream, through deltalake: our own data files, added by atomic commits.

Besides files, format version 1 keeps in the Delta log:

* Table properties: `hybrid.format` (the version), `hybrid.stream` (the declared schema as JSON), `hybrid.sources` (the
  names of all sources, as JSON), `hybrid.added` (columns that older files may lack, as JSON) and `hybrid.gaps` (ingest
  sequences known to be lost, from and to, as JSON; absent in older tables). The commit that creates the table writes
  them, so they cannot be torn, forgotten in a copy, or missing in an object store, as a separate file could.
* Application transactions: `<stream>/<source>` (the last archived offset), `seq` (the last ingest sequence),
  `maintenance` (counts commits that remove files), `ingest` (the mark of the last job that archived files, which names
  their list; archive/ingest.py), `writer` (the epoch of the writer; archive/writer.py) and `expired` (events before
  this time were removed).

deltalake records transactions but compares them only between commits that raced. So each method loads, compares and
commits, and starts again on a conflict. Every append carries `seq`, so two writers always conflict and each row is
archived once. Never call optimize.compact() or z_order() here: they drop the transactions, and two concurrent calls
duplicate every row.

Long: every method of Table is one commit of this protocol.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from os import PathLike

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from archive import head
from archive.alter_table import alter_in_child
from archive.layout import (
    FORMAT_VERSION,
    OFFSET,
    SEQ,
    SOURCE,
    DataFile,
    stored_schema,
    time_name,
    to_stored,
    write_files,
)
from archive.place import Place, place_of
from archive.recent import FILES, BoolArray, fresh_rows, next_offsets
from archive.table_snapshot import ARROW_INT64, STATISTICS_SLACK_US, TableSnapshot
from matching.batch import EventBatch, Int64Array
from query.errors import DataError, first_line, warn
from query.schema import Schema

_FORMAT, _STREAM, _SOURCES, _ADDED = "hybrid.format", "hybrid.stream", "hybrid.sources", "hybrid.added"
_GAPS = "hybrid.gaps"
_SEQ, _MAINTENANCE, _INGEST, _WRITER, _EXPIRED = "seq", "maintenance", "ingest", "writer", "expired"
_CONFIGURATION = {"delta.checkpointInterval": "10"}
#: Retention of log entries that a checkpoint has replaced. Short, because every commit lists the entries; longer in a
#: store, because its clock and those of its writers differ.
_LOG_SECONDS_ON_DISK, _LOG_SECONDS_IN_STORE = 10, 600
#: Only appends delete old log entries: two concurrent appends conflict.
_KEEP_LOG = PostCommitHookProperties(cleanup_expired_logs=False)
#: A slower commit is verified: entries that it should have conflicted with may have been deleted meanwhile.
_STALL_SECONDS = 5
_COMMIT_ATTEMPTS_MAX = 100


class Table:
    """The table of one stream in one directory. Not thread safe; several processes may have it open.

    epoch: the epoch of its writer, or None. Appends are refused after a writer with a later epoch has claimed the
    table. Raises DataError if the directory cannot be read or written, or holds something else."""

    __slots__ = ("_delta", "_snapshot", "directory", "epoch", "schema")

    def __init__(self, directory: Place, schema: Schema, delta: DeltaTable) -> None:
        self.directory = directory
        self.schema = schema
        self.epoch: int | None = None
        self._delta = delta
        self._snapshot: TableSnapshot | None = None

    @classmethod
    def create(cls, where: str | PathLike[str] | Place, schema: Schema) -> Table:
        """Creates a table, or opens an existing one with the same declaration. Applies a new lateness or retention, and
        adds new columns after the others; older rows have nulls there."""
        directory = place_of(where)
        stored_schema(schema)
        if not is_table(directory):
            try:
                _check_empty(directory)
            except OSError as error:
                raise _no_table(directory, error) from error
            cls.begin(directory, schema)
        table = cls.open(directory)
        settled = replace(table.schema, lateness_us=schema.lateness_us, retention_us=schema.retention_us)
        if settled != table.schema and (settled == schema or schema.widens(settled)):
            table.declare(settled)
        if schema.widens(table.schema):
            table.add_columns(schema)
        if table.schema != schema:
            difference = _difference(table.schema, schema)
            raise DataError(
                f"{directory} archives stream {table.schema.name} with a different declaration: {difference}",
                "use the archived declaration, with new columns only after the others, or choose another name",
            )
        _take_over(directory)
        return table

    @staticmethod
    def begin(directory: Place, schema: Schema) -> None:
        """Creates the log of an empty table."""
        columns = stored_schema(schema)
        try:
            directory.make()
            DeltaTable.create(
                directory.delta_uri,
                schema=columns,
                name=schema.name,
                configuration={
                    **_CONFIGURATION,
                    "delta.logRetentionDuration": _log_retention(directory),
                    _FORMAT: str(FORMAT_VERSION),
                    _STREAM: schema_to_json(schema),
                    _SOURCES: "[]",
                    _GAPS: "[]",
                },
                raise_if_key_not_exists=False,
                storage_options=directory.storage_options,
            )
            _committed(directory, 0, 0)
        except (DeltaError, OSError) as error:
            # Another process may have created the table first: that one is used.
            if not is_table(directory):
                raise _no_table(directory, error) from error

    @classmethod
    def open(cls, where: str | PathLike[str] | Place, version: int | None = None) -> Table:
        """Opens an existing table. version: an older version, for reading only."""
        directory = place_of(where)
        try:
            for fault in head.check(directory):
                warn(f"{fault}: hybrid archive repair rewrites it")
            delta = DeltaTable(directory.delta_uri, version, storage_options=directory.storage_options)
            configuration = delta.metadata().configuration
            protocol = delta.protocol()
        except TableNotFoundError as error:
            _check_empty(directory)
            raise DataError(f"there is no archived stream in {directory}", "create it first") from error
        except (DeltaError, OSError) as error:
            raise _no_table(directory, error) from error
        if _FORMAT not in configuration:
            raise DataError(
                f"{directory} is a Delta table, but not an archived stream",
                "read it with read_parquet or another engine",
            )
        format = configuration[_FORMAT]
        if not format.isdigit() or int(format) > FORMAT_VERSION:
            raise DataError(
                f"{directory} has archive format {format}; this program reads formats up to {FORMAT_VERSION}",
                "open it with a newer release",
            )
        # Files are read directly, so features that change their meaning (deletion vectors, for example) are refused.
        features = sorted(set(protocol.reader_features or ()) - {"timestampNtz"})
        if features:
            raise DataError(
                f"{directory} uses features of Delta tables that are not supported yet: {', '.join(features)}",
                "rewrite the table without them",
            )
        return cls(directory, schema_from_json(configuration[_STREAM]), delta)

    def opened(self) -> TableSnapshot:
        """Returns the table at the version it was opened with."""
        return self._read()

    def snapshot(self) -> TableSnapshot:
        """Returns the newest version of the table. Costs under a millisecond if nothing is new, else O(files)."""
        self._update()
        known = self._snapshot
        if known is None or known.version != self._delta.version():
            self._snapshot = known = self._read()
        return known

    def last_offset(self, source: str) -> int | None:
        """Returns the last archived offset of a source, or None. As of the last call that read the log."""
        return self._delta.transaction_version(self._application(source))

    @property
    def last_seq(self) -> int:
        """Greatest ingest sequence ever appended, -1 before the first row. As of the last call that read the log."""
        version = self._delta.transaction_version(_SEQ)
        return -1 if version is None else version

    def append(self, batch: EventBatch, late: BoolArray, go_on: Callable[[], None] = lambda: None) -> TableSnapshot:
        """Adds rows in one atomic commit; returns the table with them. late: bool (n,). go_on: see `write_files`.

        Idempotent: skips rows whose offset is not above the last archived one of their source, also if another process
        has just added them. Raises DataError and changes nothing if the table cannot be written."""
        files: list[DataFile] | None = None
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            try:
                # Before the comparison: registering a source is a commit, which brings those of other writers.
                self._register([batch.sources[i] for i in np.unique(batch.source)])
                before = self.snapshot()
                self._check_epoch()
                fresh = fresh_rows(batch, before.offsets)
                if fresh is not None:
                    # Files already written for all rows are never committed: no reader sees them.
                    batch, late, files = batch.take(fresh), late[fresh], None
                if len(batch) == 0:
                    return before
                if files is None:
                    files = write_files(to_stored(batch, late, self.schema), self.directory, self.schema, go_on)
                transactions = [
                    Transaction(self._application(name), expected - 1) for name, expected in next_offsets(batch).items()
                ]
                sequence = Transaction(_SEQ, max(before.boundary_sequence, int(batch.seq.max())))
                self.commit([_added(file) for file in files], [*transactions, sequence, *self._claimed()])
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                raise self._not_written(error) from error
            return self.snapshot()
        raise self._not_written("other writers were always faster")

    @property
    def last_epoch(self) -> int:
        """Epoch of the last writer that claimed the table, 0 without one. As of the last call that read the log."""
        return self._delta.transaction_version(_WRITER) or 0

    def claim(self) -> None:
        """Commits the epoch, so that appends of earlier writers are refused from now on. Raises DataError if a writer
        with the same or a later epoch has claimed the table."""
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            try:
                self._update()
                self._check_epoch(claiming=True)
                # with the sequence, to conflict with a concurrent append
                sequence = [Transaction(_SEQ, self.last_seq)] if self.last_seq >= 0 else []
                self.commit([], [*sequence, *self._claimed()])
                return
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                raise self._not_written(error) from error
        raise self._not_written("other writers were always faster")

    def _check_epoch(self, claiming: bool = False) -> None:
        if self.epoch is not None and self.last_epoch + claiming > self.epoch:
            raise DataError(
                f"another process has taken over {self.directory}: appends of this one are refused",
                "close this database; events not yet flushed are in its log, if it has one, or lost",
            )

    def _claimed(self) -> list[Transaction]:
        return [] if self.epoch is None else [Transaction(_WRITER, self.epoch)]

    def ingest_mark(self, *, newest: bool = True) -> int | None:
        """Returns the mark of the last job that archived files. newest: reads the log first."""
        if newest:
            self._update()
        return self._delta.transaction_version(_INGEST)

    def ingest(self, files: Iterable[DataFile], before: int | None, mark: int) -> TableSnapshot | None:
        """Adds files of the source FILES in one atomic commit that sets the mark. Their rows have negative sequence
        numbers, so they never conflict with events, which count from zero.

        Returns None and changes nothing if the current mark is not `before`: another job was faster."""
        actions: list[AddAction | RemoveAction] = [_added(file) for file in files]
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            try:
                self._register([FILES])
                now = self.ingest_mark()
                if now == mark:
                    return self.snapshot()  # committed before; only the response was lost
                if now != before:
                    return None
                self.commit(actions, [Transaction(_INGEST, mark)])
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                hint = "nothing was archived; make room or give permission, and run it again"
                raise self._not_written(error, hint) from error
            return self.snapshot()
        raise self._not_written("other writers were always faster")

    def replace(self, before: TableSnapshot, removed: Iterable[str], added: Iterable[DataFile]) -> TableSnapshot | None:
        """Replaces files by others with the same rows, in one commit (compaction).

        before: the snapshot on which the choice of files is based. Returns None and changes nothing if another commit
        has removed files since: choose again on a new snapshot."""
        out = [_removed(path, data_change=False) for path in removed]
        return self._maintain(before, [*out, *(_added(file, data_change=False) for file in added)])

    def drop_before(self, time_us: int) -> TableSnapshot:
        """Removes files in which every row is older than time_us; they stay on disk for older snapshots."""
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            before = self.snapshot()
            old = [path for path, last_us in zip(before.paths, before.max_us) if last_us < time_us]
            if not old:
                return before
            edge = Transaction(_EXPIRED, max(time_us, self.expired_us))
            after = self._maintain(before, [_removed(path, data_change=True) for path in old], [edge])
            if after is not None:
                return after
        raise self._not_written("other writers were always faster")

    @property
    def gaps(self) -> list[tuple[int, int]] | None:
        """Ingest sequences known to be lost, (first, last) pairs; None for a table of an earlier release, in which
        expired events cannot be told from lost ones."""
        text = self._delta.metadata().configuration.get(_GAPS)
        return None if text is None else [(low, high) for low, high in json.loads(text)]

    def note_gaps(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Records lost ingest sequences, so that they are no longer reported as faults."""
        try:
            self._alter({_GAPS: json.dumps(list(gaps))})
        except (DeltaError, OSError) as error:
            raise self._not_written(error) from error

    @property
    def expired_us(self) -> int:
        """Events before this time were removed; the int64 minimum if none is known. As of the last call that read the
        log."""
        edge_us = self._delta.transaction_version(_EXPIRED)
        return ARROW_INT64.min if edge_us is None else edge_us

    def set_aside(
        self, before: TableSnapshot, removed: Iterable[str], added: Iterable[DataFile], mark: int | None = None
    ) -> TableSnapshot | None:
        """Replaces damaged files by files of their readable rows. before: as in `replace`. mark: the new mark of the
        list of archived input files, if it changes. Returns None as `replace` does."""
        out = [_removed(path, data_change=True) for path in removed]
        marked = [] if mark is None else [Transaction(_INGEST, mark)]
        return self._maintain(before, [*out, *(_added(file) for file in added)], marked)

    def take_in(self, files: Iterable[DataFile], rows: pa.Table) -> None:
        """Adds files whose commit was lost. rows: their stored rows."""
        names = [name for name in pc.unique(rows.column(SOURCE)).to_pylist() if name != FILES]
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            try:
                self._register(names)
                last = {name: self.last_offset(name) for name in names}
                for name in names:
                    top = pc.max(rows.filter(pc.equal(rows.column(SOURCE), name)).column(OFFSET)).as_py()
                    last[name] = max(top, -1 if last[name] is None else last[name])
                transactions = [Transaction(self._application(name), int(top or 0)) for name, top in last.items()]
                sequence = Transaction(_SEQ, max(self.last_seq, pc.max(rows.column(SEQ)).as_py()))
                self.commit([_added(file) for file in files], [*transactions, sequence] if names else [])
                return
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                raise self._not_written(error) from error
        raise self._not_written("other writers were always faster")

    def declare(self, schema: Schema) -> None:
        """Changes the lateness or retention of the declaration; nothing else may differ."""
        try:
            self._update()
            self._alter({_STREAM: schema_to_json(schema)})
        except (DeltaError, OSError) as error:
            raise DataError(
                f"the archive of {self.schema.name} in {self.directory} cannot be changed: {first_line(error)}",
                "nothing has changed; try again",
            ) from error
        self.schema = schema

    def add_columns(self, schema: Schema) -> None:
        """Adds columns to the declaration (Schema.widens); files are not rewritten. Takes two commits: a table with
        only the first has columns that nobody reads yet, and repeating the call completes it."""
        self._update()
        before = self._delta.version()
        added = [field.name for field in schema.fields[len(self.schema.fields) :]]
        try:
            present = {field.name for field in self._delta.schema().fields}
            columns = pa.schema([field for field in stored_schema(schema) if field.name in {*added} - present])
            if len(columns):
                self._delta.alter.add_columns(
                    list(DeltaSchema.from_arrow(columns).fields), post_commithook_properties=_KEEP_LOG
                )
                self._update()
            properties = {_STREAM: schema_to_json(schema), _ADDED: json.dumps([*self.added, *added])}
            self._alter(properties)
            _committed(self.directory, before + 1, self._delta.version())
        except (DeltaError, OSError) as error:
            raise DataError(
                f"the archive of {self.schema.name} in {self.directory} cannot take columns: {first_line(error)}",
                "nothing has changed; try again",
            ) from error
        self.schema = schema
        self._snapshot = None

    @property
    def added(self) -> tuple[str, ...]:
        """Columns that were added later: a file may lack them, and its rows have nulls there."""
        return tuple(json.loads(self._delta.metadata().configuration.get(_ADDED, "[]")))

    def vacuum(self, grace_hours: int, orphans: bool = True) -> list[str]:
        """Deletes files removed from the table more than grace_hours ago; returns their paths. orphans: also deletes
        files of that age that were never committed, except those whose names begin with an underscore."""
        old = self.removable(grace_hours, orphans)
        if old:
            self._vacuum(grace_hours, dry_run=False, full=orphans)
        return old

    def removable(self, grace_hours: int, orphans: bool = True) -> list[str]:
        """Returns the paths that `vacuum` would delete."""
        return sorted(self._vacuum(grace_hours, dry_run=True, full=orphans))

    def _vacuum(self, grace_hours: int, dry_run: bool, full: bool) -> list[str]:
        try:
            self._update()
            version = self._delta.version()
            found: list[str] = self._delta.vacuum(
                retention_hours=grace_hours, dry_run=dry_run, enforce_retention_duration=False, full=full,
                post_commithook_properties=_KEEP_LOG,
            )
            self._update()
            if self._delta.version() > version:
                _committed(self.directory, version + 1, self._delta.version())
        except (DeltaError, OSError) as error:
            raise self._not_written(error) from error
        return found

    def _maintain(
        self, before: TableSnapshot, actions: list[AddAction | RemoveAction], also: Iterable[Transaction] = ()
    ) -> TableSnapshot | None:
        now = self.snapshot()
        if now.maintenance != before.maintenance:
            return None
        try:
            self.commit(actions, [Transaction(_MAINTENANCE, now.maintenance + 1), *also])
        except CommitFailedError:
            now = self.snapshot()
            added = {action.path for action in actions if isinstance(action, AddAction)}
            # The commit may have succeeded with its response lost: the retry of the store then conflicts with it.
            return now if added and added <= set(now.paths) else None
        except (DeltaError, OSError) as error:
            raise self._not_written(error) from error
        return self.snapshot()

    def commit(self, actions: list[AddAction | RemoveAction], transactions: list[Transaction]) -> None:
        """Writes one entry of the log; raises CommitFailedError on a conflict.

        deltalake writes the entry with the next free version, which is safe as long as the entries of others exist.
        They may have been deleted if the commit was slow (a stopped process, for example) or failed. Such a commit
        counts only if the reloaded table shows its changes."""
        version, started = self._delta.version(), time.time()
        cleans = all(isinstance(action, AddAction) for action in actions)
        failed: Exception | None = None
        try:
            self._delta.create_write_transaction(
                actions,
                mode="append",
                schema=self._delta.schema(),
                commit_properties=CommitProperties(app_transactions=transactions),
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=True) if cleans else _KEEP_LOG,
            )
        except CommitFailedError:
            raise
        except (DeltaError, OSError) as error:
            failed = error
        if failed is not None or abs(time.time() - started) > _STALL_SECONDS:
            self._reload()
            there = set(self._read().paths)
            if any((action.path in there) != isinstance(action, AddAction) for action in actions):
                if failed is not None and self._delta.version() == version:
                    raise failed
                raise CommitFailedError("another writer has committed")
        self._update()
        _committed(self.directory, version + 1, self._delta.version())

    def _update(self) -> None:
        """Reads new entries of the log. If entries are deleted meanwhile, loads the table from the last checkpoint."""
        try:
            self._delta.update_incremental()
        except (DeltaError, OSError):
            self._reload()

    def _reload(self) -> None:
        self._delta = DeltaTable(self.directory.delta_uri, storage_options=self.directory.storage_options)
        self._snapshot = None

    def _register(self, names: list[str]) -> None:
        """Adds new sources to the table property: deltalake finds a transaction only by its name."""
        self._update()
        known = self._sources()
        new = [name for name in names if name not in known]
        if new:
            self._alter({_SOURCES: json.dumps([*known, *new])})

    def _alter(self, properties: dict[str, str]) -> None:
        version = self._delta.version()
        if self.directory.on_disk:
            self._delta.alter.set_table_properties(
                properties, raise_if_not_exists=False, post_commithook_properties=_KEEP_LOG
            )
        else:
            alter_in_child(self.directory, version, properties)
        self._update()
        _committed(self.directory, version + 1, self._delta.version())

    def _sources(self) -> list[str]:
        return json.loads(self._delta.metadata().configuration.get(_SOURCES, "[]"))

    def _application(self, source: str) -> str:
        return f"{self.schema.name}/{source}"

    def _read(self) -> TableSnapshot:
        delta = self._delta
        actions = pa.table(delta.get_add_actions(flatten=True))
        time = time_name(self.schema)
        sources = self._sources()
        taken = ((name, self.last_offset(name)) for name in sources)
        return TableSnapshot(
            delta.version(),
            tuple(actions.column("path").to_pylist()),
            actions.column("size_bytes").to_numpy(),
            actions.column("num_records").to_numpy(),
            _bound(actions, f"min.{time}", ARROW_INT64.min, 0),
            _bound(actions, f"max.{time}", ARROW_INT64.max, STATISTICS_SLACK_US),
            actions,
            tuple(sources),
            {name: offset + 1 for name, offset in taken if offset is not None},
            self.last_seq,
            delta.transaction_version(_MAINTENANCE) or 0,
            self.added,
        )

    def _not_written(
        self, why: object, hint: str = "the events stay in memory; make room or give permission, and flush again"
    ) -> DataError:
        where = f"the archive of {self.schema.name} in {self.directory}"
        return DataError(f"{where} cannot be written: {first_line(why)}", hint)


def schema_to_json(schema: Schema) -> str:
    """Returns a declaration as stored in the table; `schema_from_json` reads it."""
    return json.dumps(schema.to_dict())


def schema_from_json(text: str) -> Schema:
    return Schema.from_dict(json.loads(text))


def _difference(archived: Schema, declared: Schema) -> str:
    """Describes the first difference of two declarations."""
    for ours, theirs in zip(archived.fields, declared.fields):
        if ours != theirs:
            return f"column {ours.name} {ours.type} is now {theirs.name} {theirs.type}"
    for what in ("name", "time", "keys", "order", "lateness_us", "retention_us"):
        if getattr(archived, what) != getattr(declared, what):
            return f"{what} {getattr(archived, what)!r} is now {getattr(declared, what)!r}"
    return f"{len(archived.fields)} columns are now {len(declared.fields)}"


def _added(file: DataFile, data_change: bool = True) -> AddAction:
    return AddAction(file.path, file.size, {}, time.time_ns() // 1_000_000, data_change, file.statistics)


def _removed(path: str, data_change: bool) -> RemoveAction:
    return RemoveAction(path, data_change, time.time_ns() // 1_000_000)


def _bound(actions: pa.Table, name: str, unknown: int, slack: int) -> Int64Array:
    """Returns a bound of the time column for each file, `unknown` for a file without statistics."""
    if actions.column_names.count(name) != 1:
        return np.full(actions.num_rows, unknown, np.int64)
    times = actions.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).combine_chunks()
    known = times.is_valid().to_numpy(zero_copy_only=False)
    return np.where(known, times.fill_null(0).to_numpy() + slack, unknown)


def is_table(directory: Place) -> bool:
    """Returns True if the directory holds a Delta table."""
    log = directory / "_delta_log"
    if not directory.on_disk:
        # without deltalake, which would block all other threads while a slow store responds
        return any(name.endswith((".json", ".parquet")) for name in log.names())
    if not log.exists():
        return False
    return bool(DeltaTable.is_deltatable(directory.delta_uri, storage_options=directory.storage_options))


def _log_retention(directory: Place) -> str:
    return f"interval {_LOG_SECONDS_ON_DISK if directory.on_disk else _LOG_SECONDS_IN_STORE} seconds"


def _committed(directory: Place, first: int, last: int) -> None:
    """Forces log entries to disk and updates the head (archive.head)."""
    _sync_log(directory, first, last)
    _take_over(directory)


def _take_over(directory: Place) -> None:
    """Updates the head to the newest log entry, also of other processes or of a commit that a crash cut short."""
    try:
        head.advance(directory)
    except OSError:
        pass  # the commits are valid; the next one updates the head


def _check_empty(directory: Place) -> None:
    """Raises DataError if the directory has data files or a head but no log: a new table would hide them."""
    if not directory.exists():
        return
    head.check(directory)
    left = next((e.path for e in directory.entries() if e.path.endswith(".parquet") and not e.path.startswith("_")), "")
    if left:
        raise DataError(
            f"{directory} has data files, {left} among them, but no log that lists them",
            "restore _delta_log from a copy, or run hybrid archive repair to add the readable files",
        )


def _sync_log(directory: Place, first: int, last: int) -> None:
    """Forces the log entries of these versions to disk, skipping deleted ones."""
    log = directory / "_delta_log"
    for version in range(first, last + 1):
        try:
            (log / f"{version:020}.json").sync()
        except FileNotFoundError:
            pass
    log.sync()


def _no_table(directory: Place, error: BaseException) -> DataError:
    return DataError(f"{directory} cannot be opened as an archived stream: {first_line(error)}", "check the directory")
