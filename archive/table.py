"""One Delta Lake table per stream, through deltalake, as a thin commit log: our files, one atomic commit each.

What is in the log besides files, from format version 1 on:

* table properties `hybrid.format` (this version), `hybrid.stream` (the declared schema as JSON), `hybrid.sources` (the
  names of all sources, as JSON), `hybrid.added` (the columns that older files may lack, as JSON) and `hybrid.gaps` (the
  ingest sequences that are known to be lost, from and to, as JSON; older tables lack it). They are metadata
  of the table rather than a file beside it: written by the very commit that creates it, they cannot be torn, forgotten
  in a copy, or missing on an object store.
* application transactions: `<stream>/<source>` with the last offset taken, `seq` with the last ingest sequence, and
  `maintenance`, counted up by every commit that removes files; `ingest`, the mark of the last job that archived files
  (archive/ingest.py), which names the list of them; `writer`, the epoch of who appends (archive/writer.py); `expired`,
  the time before which events were taken out.

deltalake records transactions but compares them only between commits that raced: so each verb loads, compares, commits,
and starts again on a conflict. Every append carries `seq`, so two writers always conflict, and each row goes in once.
Never optimize.compact() or z_order() here: they drop the transactions, and two that race double every row.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from archive import head
from archive.layout import (
    FORMAT_VERSION,
    OFFSET,
    SEQ,
    SOURCE,
    DataFile,
    events_in_words,
    stored_schema,
    time_name,
    to_stored,
    write_files,
)
from archive.place import Place, place_of
from archive.recent import FILES, BoolArray, KeyRange, fresh_rows, next_offsets
from archive.sums import Damaged
from matching.batch import EventBatch, Int64Array
from query.errors import DataError, HybridWarning, first_line
from query.schema import Schema

_FORMAT, _STREAM, _SOURCES, _ADDED = "hybrid.format", "hybrid.stream", "hybrid.sources", "hybrid.added"
_GAPS = "hybrid.gaps"
_SEQ, _MAINTENANCE, _INGEST, _WRITER, _EXPIRED = "seq", "maintenance", "ingest", "writer", "expired"
_CONFIGURATION = {"delta.checkpointInterval": "10"}
#: How long entries of the log stay that a checkpoint has made superfluous: every commit looks through them. Clocks of a
#: store and of those who write to it differ.
_LOG_SECONDS_ON_DISK, _LOG_SECONDS_IN_STORE = 10, 600
#: Only appends delete old entries: two that do so at once find that the other was first.
_KEEP_LOG = PostCommitHookProperties(cleanup_expired_logs=False)
#: A commit that took longer may have been made behind entries that were deleted meanwhile, and is looked up.
_STALL_SECONDS = 5
#: Delta lets writers cut the time statistics of a file to milliseconds.
_STATISTICS_SLACK_US = 999
_COMMIT_ATTEMPTS_MAX = 100
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """The table at one version, never changed: files with their statistics, and how far each source got.

    sizes: int64 (n files,), in bytes. min_us, max_us: int64 (n files,), bounds of the time column; the widest where a
    file has none. statistics: columns `min.x`, `max.x`, `null_count.x`, a row per file. sources: all that ever wrote;
    offsets: source -> offset expected next. boundary_sequence: last ingest sequence in files, -1 if none. maintenance:
    commits that removed files. added: columns that a file may lack, with nulls in their place.
    """

    version: int
    paths: tuple[str, ...]
    sizes: Int64Array
    rows: Int64Array
    min_us: Int64Array
    max_us: Int64Array
    statistics: pa.Table
    sources: tuple[str, ...]
    offsets: Mapping[str, int]
    boundary_sequence: int
    maintenance: int
    added: tuple[str, ...] = ()
    _known: dict[str, _Bounds | None] = field(default_factory=dict, compare=False, repr=False)

    def span_us(self) -> tuple[int, int] | None:
        """Times of the first and the last event, the last to a millisecond, or None without events. What files without
        statistics hold is not known."""
        low, high = self.min_us[self.min_us > _INT64.min], self.max_us[self.max_us < _INT64.max]
        return (int(low.min()), int(high.max()) - _STATISTICS_SLACK_US) if len(low) and len(high) else None

    def select(
        self, low_us: int | None, end_us: int | None, keys: Mapping[str, pa.Array], span: KeyRange | None = None
    ) -> Int64Array:
        """Numbers of the files that may hold a row with low_us <= time < end_us and these values, in order of time.

        Half a millisecond for 2,000 files and one value; a sort of the values comes to that."""
        keep = np.ones(len(self.paths), np.bool_)
        if low_us is not None:
            keep &= self.max_us >= low_us
        if end_us is not None:
            keep &= self.min_us < end_us
        index = np.flatnonzero(keep)
        for name, values in keys.items():
            if len(index) and (pa.types.is_string(values.type) or pa.types.is_integer(values.type)):
                bounds = self._bounds(name)
                if bounds is not None:
                    index = index[bounds.may_hold(index, values)]
        if span is not None and (bounds := self._bounds(span.column)) is not None:
            index = index[bounds.overlaps(index, span)]
        return index[np.argsort(self.min_us[index], kind="stable")]

    def files(self, low_us: int | None, end_us: int | None, keys: Mapping[str, pa.Array]) -> list[str]:
        """Their paths below the table's directory."""
        return [self.paths[i] for i in self.select(low_us, end_us, keys)]

    def uris(self, directory: Place, index: Int64Array) -> list[str]:
        """The files with these numbers, as DuckDB takes them."""
        root = str(directory).rstrip("/") + "/"
        return [root + self.paths[i] for i in index]

    def only_source(self, index: Int64Array) -> str | None:
        """The source of all rows of these files, if their statistics say that there is only one."""
        bounds = self._bounds(SOURCE)
        return None if bounds is None else bounds.only_value(index)

    def missing(self, damaged: Damaged) -> str:
        """The events that cannot be read of a damaged file, in words: how many, of which source, from which offset to
        which; by the bounds of its row groups, or else of the file."""
        at = self.paths.index(damaged.path)
        if damaged.sums is not None and damaged.groups is not None and {SOURCE, OFFSET} <= damaged.sums.bounds.keys():
            rows = sum(damaged.sums.rows[group] for group in damaged.groups)
            source, offset = damaged.sums.bounds[SOURCE], damaged.sums.bounds[OFFSET]
            some = damaged.groups
            return events_in_words(
                rows, min(source.least[some]), max(source.greatest[some]), min(offset.least[some]),
                max(offset.greatest[some]),
            )  # fmt: skip
        bounds = [self._bounds(SOURCE), self._bounds(OFFSET)]
        known = [None if b is None else (b.least[at], b.greatest[at]) for b in bounds]
        (first, last), (low, high) = (k if k is not None else (None, None) for k in known)
        return events_in_words(int(self.rows[at]), first, last, low, high)

    def _bounds(self, name: str) -> _Bounds | None:
        """The bounds of a column of strings or integers, or None where there are none."""
        if name not in self._known:
            self._known[name] = _Bounds.of(self.statistics, name, self.rows)
        return self._known[name]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Of one column, for each file: least and greatest value (objects, which compare as DuckDB and Parquet do), whether
    these are known, whether there may be a null, and whether there is nothing else."""

    least: np.ndarray
    greatest: np.ndarray
    known: BoolArray
    null: BoolArray
    only_null: BoolArray

    @staticmethod
    def of(statistics: pa.Table, name: str, rows: Int64Array) -> _Bounds | None:
        if statistics.column_names.count(f"min.{name}") != 1:
            return None
        least, greatest, nulls = (
            np.array(statistics.column(f"{what}.{name}").to_pylist(), object) for what in ("min", "max", "null_count")
        )
        known = np.array([a is not None and b is not None for a, b in zip(least, greatest)], np.bool_)
        null, only_null = ((nulls != 0).astype(np.bool_), (nulls == rows).astype(np.bool_))
        return _Bounds(least, greatest, known, null, only_null)

    def may_hold(self, index: Int64Array, values: pa.Array) -> BoolArray:
        """For each of these files whether it may hold one of the values, or a null if that is among them."""
        wanted = np.array(sorted(values.drop_null().to_pylist()), object)
        found = self.null[index] & (values.null_count > 0)
        if len(wanted):
            known = self.known[index]
            found |= ~known & ~self.only_null[index]
            some = index[known]
            at = np.searchsorted(wanted, self.least[some])
            inside = at < len(wanted)
            found[known] |= inside & (wanted[np.minimum(at, len(wanted) - 1)] <= self.greatest[some]).astype(np.bool_)
        return found

    def overlaps(self, index: Int64Array, span: KeyRange) -> BoolArray:
        """For each of these files whether it may hold a value of the range."""
        found = ~self.only_null[index]
        known = self.known[index]
        some = index[known]
        if span.low is not None:
            found[known] &= (self.greatest[some] >= span.low).astype(np.bool_)
        if span.end is not None:
            found[known] &= (self.least[some] < span.end).astype(np.bool_)
        return found

    def only_value(self, index: Int64Array) -> str | None:
        """The value of all rows of these files, if there is only one."""
        value = self.least[index[0]]
        same = (self.least[index] == value) & (self.greatest[index] == value) & self.known[index] & ~self.null[index]
        return value if bool(same.all()) else None


class Table:
    """The table of one stream in one directory. Not thread safe; several processes may have it open.

    epoch: that of its writer: appends are refused once a later one has claimed the table. None: it claims nothing.
    Raises DataError where the directory cannot be read or written, or holds something else."""

    __slots__ = ("_delta", "_snapshot", "directory", "epoch", "schema")

    def __init__(self, directory: Place, schema: Schema, delta: DeltaTable) -> None:
        self.directory = directory
        self.schema = schema
        self.epoch: int | None = None
        self._delta = delta
        self._snapshot: TableSnapshot | None = None

    @classmethod
    def create(cls, where: str | PathLike[str] | Place, schema: Schema) -> Table:
        """A new table, or the one that is there already if its stream is declared the same or has more columns now,
        behind the others; older rows have nulls there. Lateness and retention are as declared from then on."""
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
                f"{directory} archives stream {table.schema.name} with another declaration: {difference}",
                "declare it as it is archived, with new columns behind the others if there are any, or give it another "
                "name",
            )
        _take_over(directory)
        return table

    @staticmethod
    def begin(directory: Place, schema: Schema) -> None:
        """Begins a log in which there is no file yet."""
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
            # Another process may have been first: then its table is the one.
            if not is_table(directory):
                raise _no_table(directory, error) from error

    @classmethod
    def open(cls, where: str | PathLike[str] | Place, version: int | None = None) -> Table:
        """The table that is there. version: as it was then, to be read only."""
        directory = place_of(where)
        try:
            for fault in head.check(directory):
                warnings.warn(f"{fault}: hybrid archive repair writes it anew", HybridWarning, stacklevel=2)
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
                f"{directory} is a Delta table, but no archived stream", "read it with read_parquet or another engine"
            )
        format = configuration[_FORMAT]
        if not format.isdigit() or int(format) > FORMAT_VERSION:
            raise DataError(
                f"{directory} has archive format {format}; this program reads formats up to {FORMAT_VERSION}",
                "open it with a newer release",
            )
        # The files are read directly: a feature that changes what they mean (deletion vectors, say) must be refused.
        features = sorted(set(protocol.reader_features or ()) - {"timestampNtz"})
        if features:
            raise DataError(
                f"{directory} uses features of Delta tables that are not supported yet: {', '.join(features)}",
                "rewrite the table without them",
            )
        return cls(directory, schema_from_json(configuration[_STREAM]), delta)

    def opened(self) -> TableSnapshot:
        """The table as it was opened."""
        return self._read()

    def snapshot(self) -> TableSnapshot:
        """The newest version of the table. Costs under a millisecond if nothing is new, else O(files)."""
        self._update()
        known = self._snapshot
        if known is None or known.version != self._delta.version():
            self._snapshot = known = self._read()
        return known

    def last_offset(self, source: str) -> int | None:
        """Offset of the last row of a source that is in the table, or None. As of the last verb."""
        return self._delta.transaction_version(self._application(source))

    @property
    def last_seq(self) -> int:
        """Greatest ingest sequence ever appended, -1 before the first row. As of the last verb."""
        version = self._delta.transaction_version(_SEQ)
        return -1 if version is None else version

    def append(self, batch: EventBatch, late: BoolArray) -> TableSnapshot:
        """Adds rows in one atomic commit and returns the table with them. late: bool (n,).

        Idempotent: a row whose offset is not above the last one of its source is there already and left out, also if
        another process put it there a moment ago. Nothing has changed if it raises."""
        files: list[DataFile] | None = None
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            try:
                # Before anything is compared: a new name is a commit, and with it come those of other writers.
                self._register([batch.sources[i] for i in np.unique(batch.source)])
                before = self.snapshot()
                self._check_epoch()
                fresh = fresh_rows(batch, before.offsets)
                if fresh is not None:
                    # Files written for all rows stay behind without a commit: no reader ever sees them.
                    batch, late, files = batch.take(fresh), late[fresh], None
                if len(batch) == 0:
                    return before
                if files is None:
                    files = write_files(to_stored(batch, late, self.schema), self.directory, self.schema)
                transactions = [
                    Transaction(self._application(name), expected - 1) for name, expected in next_offsets(batch).items()
                ]
                sequence = Transaction(_SEQ, max(before.boundary_sequence, int(batch.seq.max())))
                self._commit([_added(file) for file in files], [*transactions, sequence, *self._claimed()])
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                raise self._not_written(error) from error
            return self.snapshot()
        raise self._not_written("other writers were always faster")

    @property
    def last_epoch(self) -> int:
        """Of the writer that claimed the table last, 0 without one. As of the last verb."""
        return self._delta.transaction_version(_WRITER) or 0

    def claim(self) -> None:
        """Makes the epoch known in a commit of its own, so that those who wrote before are refused from then on.
        Raises DataError if a later one was faster."""
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            try:
                self._update()
                self._check_epoch(claiming=True)
                # with the sequence, so that it meets an append that is under way
                sequence = [Transaction(_SEQ, self.last_seq)] if self.last_seq >= 0 else []
                self._commit([], [*sequence, *self._claimed()])
                return
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                raise self._not_written(error) from error
        raise self._not_written("other writers were always faster")

    def _check_epoch(self, claiming: bool = False) -> None:
        if self.epoch is not None and self.last_epoch + claiming > self.epoch:
            raise DataError(
                f"another process has taken over {self.directory}: what this one appends is refused",
                "close this database; events that are in no file yet are in its log, if it has one, or lost",
            )

    def _claimed(self) -> list[Transaction]:
        return [] if self.epoch is None else [Transaction(_WRITER, self.epoch)]

    def ingest_mark(self, *, newest: bool = True) -> int | None:
        """The mark of the last job that archived files, now; or as of the last verb."""
        if newest:
            self._update()
        return self._delta.transaction_version(_INGEST)

    def ingest(self, files: Iterable[DataFile], before: int | None, mark: int) -> TableSnapshot | None:
        """Adds files of the source FILES in one atomic commit that leaves `mark` behind. Their rows have sequence
        numbers below zero, so that writers of events, who count from zero, never meet them.

        Returns None, with nothing changed, if the mark is not `before` any more: another job was faster."""
        actions: list[AddAction | RemoveAction] = [_added(file) for file in files]
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            try:
                self._register([FILES])
                now = self.ingest_mark()
                if now == mark:
                    return self.snapshot()  # the log has taken it, and only its answer was lost
                if now != before:
                    return None
                self._commit(actions, [Transaction(_INGEST, mark)])
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                raise self._not_written(error, "nothing of the files is in it; make room or give permission") from error
            return self.snapshot()
        raise self._not_written("other writers were always faster")

    def replace(self, before: TableSnapshot, removed: Iterable[str], added: Iterable[DataFile]) -> TableSnapshot | None:
        """Puts files with the same rows in the place of others, in one commit: what compaction does.

        before: the snapshot the decision was made on. Returns None, with nothing changed, if any commit has removed
        files since: the loser of a race must decide again."""
        out = [_removed(path, data_change=False) for path in removed]
        return self._maintain(before, [*out, *(_added(file, data_change=False) for file in added)])

    def drop_before(self, time_us: int) -> TableSnapshot:
        """Takes out the files whose every row is older than time_us. They stay on disk for old snapshots."""
        for _ in range(_COMMIT_ATTEMPTS_MAX):
            before = self.snapshot()
            old = [path for path, last_us in zip(before.paths, before.max_us) if last_us < time_us]
            if not old:
                return before
            edge = [Transaction(_EXPIRED, max(time_us, self.expired_us))] if time_us > 0 else []
            after = self._maintain(before, [_removed(path, data_change=True) for path in old], edge)
            if after is not None:
                return after
        raise self._not_written("other writers were always faster")

    @property
    def gaps(self) -> list[tuple[int, int]] | None:
        """Ingest sequences that are known to be lost, from and to; None for a table of an earlier release, of which it
        is not known what was taken out for its age."""
        text = self._delta.metadata().configuration.get(_GAPS)
        return None if text is None else [(low, high) for low, high in json.loads(text)]

    def note_gaps(self, gaps: Iterable[tuple[int, int]]) -> None:
        """Puts down which ingest sequences are lost: they are no fault any more."""
        try:
            self._alter({_GAPS: json.dumps(list(gaps))})
        except (DeltaError, OSError) as error:
            raise self._not_written(error) from error

    @property
    def expired_us(self) -> int:
        """Events before this time were taken out, as far as is known. As of the last verb."""
        return self._delta.transaction_version(_EXPIRED) or _INT64.min

    def set_aside(
        self, before: TableSnapshot, removed: Iterable[str], added: Iterable[DataFile], mark: int | None = None
    ) -> TableSnapshot | None:
        """Takes files out that are damaged, with what could be read of them in their place. before: see replace. mark:
        of the list of archived input files, if that changes with it."""
        out = [_removed(path, data_change=True) for path in removed]
        marked = [] if mark is None else [Transaction(_INGEST, mark)]
        return self._maintain(before, [*out, *(_added(file) for file in added)], marked)

    def take_in(self, files: Iterable[DataFile], rows: pa.Table) -> None:
        """Adds files whose commit was lost. rows: theirs, as they are stored."""
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
                self._commit([_added(file) for file in files], [*transactions, sequence] if names else [])
                return
            except CommitFailedError:
                continue
            except (DeltaError, OSError) as error:
                raise self._not_written(error) from error
        raise self._not_written("other writers were always faster")

    def declare(self, schema: Schema) -> None:
        """Declares the stream with another lateness or retention; nothing else may differ."""
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
        """Declares the stream with more columns, see Schema.widens. In two commits: a table that has only the first
        has columns that nobody reads yet, and the same call goes on from there. Files stay as they are."""
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
        """Columns that came after the first rows: a file may lack them, its rows then have nulls there."""
        return tuple(json.loads(self._delta.metadata().configuration.get(_ADDED, "[]")))

    def vacuum(self, grace_hours: int, orphans: bool = True) -> list[str]:
        """Deletes files that were taken out more than grace_hours ago, and with `orphans` those that were never in and
        are older than that; those whose names begin with an underscore are not the table's. Returns their paths."""
        old = self.removable(grace_hours, orphans)
        if old:
            self._vacuum(grace_hours, dry_run=False, full=orphans)
        return old

    def removable(self, grace_hours: int, orphans: bool = True) -> list[str]:
        """What vacuum would delete; orphans: also what was never in."""
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
            self._commit(actions, [Transaction(_MAINTENANCE, now.maintenance + 1), *also])
        except CommitFailedError:
            now = self.snapshot()
            added = {action.path for action in actions if isinstance(action, AddAction)}
            # The log may have taken it, and only its answer was lost: a store is asked again, and then refuses.
            return now if added and added <= set(now.paths) else None
        except (DeltaError, OSError) as error:
            raise self._not_written(error) from error
        return self.snapshot()

    def _commit(self, actions: list[AddAction | RemoveAction], transactions: list[Transaction]) -> None:
        """One entry of the log, or CommitFailedError: decide again on what is there now.

        An entry is put where none is yet, which is safe as long as entries stay. So a commit that took long enough for
        others to have deleted theirs (the process was stopped, say), or that ended in an error which may come of such
        deletions, counts if a fresh look at the table finds what it did, and only then."""
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
                raise CommitFailedError("others have gone on")
        self._update()
        _committed(self.directory, version + 1, self._delta.version())

    def _update(self) -> None:
        """Catches up with the log. Entries may be deleted while it looks: then it begins with the last checkpoint."""
        try:
            self._delta.update_incremental()
        except (DeltaError, OSError):
            self._reload()

    def _reload(self) -> None:
        self._delta = DeltaTable(self.directory.delta_uri, storage_options=self.directory.storage_options)
        self._snapshot = None

    def _register(self, names: list[str]) -> None:
        """Makes sure that the table names these sources: deltalake finds a transaction only by its name."""
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
            _alter_in_child(self.directory, version, properties)
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
            _bound(actions, f"min.{time}", _INT64.min, 0),
            _bound(actions, f"max.{time}", _INT64.max, _STATISTICS_SLACK_US),
            actions,
            tuple(sources),
            {name: offset + 1 for name, offset in taken if offset is not None},
            self.last_seq,
            delta.transaction_version(_MAINTENANCE) or 0,
            self.added,
        )

    def _not_written(
        self, why: object, hint: str = "the events are still in memory; make room or give permission, and flush again"
    ) -> DataError:
        where = f"the archive of {self.schema.name} in {self.directory}"
        return DataError(f"{where} cannot be written: {first_line(why)}", hint)


def schema_to_json(schema: Schema) -> str:
    """A declaration as it stands in the table; `schema_from_json` gives an equal one."""
    return json.dumps(schema.to_dict())


def schema_from_json(text: str) -> Schema:
    return Schema.from_dict(json.loads(text))


def _difference(archived: Schema, declared: Schema) -> str:
    """What the two say differently, in words."""
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
    """A bound of the time column for each file, `unknown` where the file has none."""
    if actions.column_names.count(name) != 1:
        return np.full(actions.num_rows, unknown, np.int64)
    times = actions.column(name).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).combine_chunks()
    known = times.is_valid().to_numpy(zero_copy_only=False)
    return np.where(known, times.fill_null(0).to_numpy() + slack, unknown)


def is_table(directory: Place) -> bool:
    """Whether there is a Delta table."""
    log = directory / "_delta_log"
    if not directory.on_disk:
        # not by deltalake, which lets no other thread run meanwhile: a store may take its time
        return any(name.endswith((".json", ".parquet")) for name in log.names())
    if not log.exists():
        return False
    return bool(DeltaTable.is_deltatable(directory.delta_uri, storage_options=directory.storage_options))


#: deltalake lets no other thread run while it alters a table, and a store may take its time: a service would be frozen.
_CHILD = """
import json, sys
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError
uri, options, version, properties = json.load(sys.stdin)
try:
    DeltaTable(uri, version, storage_options=options).alter.set_table_properties(
        properties, raise_if_not_exists=False,
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )
except CommitFailedError as error:
    print(json.dumps(["conflict", str(error)]))
except Exception as error:
    print(json.dumps(["error", str(error)]))
else:
    print(json.dumps(["done", ""]))
"""


def _alter_in_child(directory: Place, version: int, properties: Mapping[str, str]) -> None:
    """Sets properties of a table as it is at a version, in a process of its own. Raises CommitFailedError where the
    table has gone on, and OSError."""
    given = json.dumps([directory.delta_uri, directory.storage_options, version, properties])
    done = subprocess.run(
        [sys.executable, "-c", _CHILD], input=given, capture_output=True, text=True, start_new_session=True,
        check=False,
    )  # fmt: skip
    try:
        outcome, said = json.loads(done.stdout)
    except ValueError:
        raise OSError(f"the process that alters {directory} has failed: {done.stderr.strip()[-200:]}") from None
    if outcome == "conflict":
        raise CommitFailedError(said)
    if outcome == "error":
        raise OSError(said)


def _log_retention(directory: Place) -> str:
    return f"interval {_LOG_SECONDS_ON_DISK if directory.on_disk else _LOG_SECONDS_IN_STORE} seconds"


def _committed(directory: Place, first: int, last: int) -> None:
    """Forces the entries of a commit to disk, and lets the head of the log name them."""
    _sync_log(directory, first, last)
    _take_over(directory)


def _take_over(directory: Place) -> None:
    """Lets the head name what is in the log, also of commits of others, and of one before whose head a crash came."""
    try:
        head.advance(directory)
    except OSError:
        pass  # the commits stand; the next one tries it again


def _check_empty(directory: Place) -> None:
    """Raises DataError where there is no log, but what belongs to one: a new table would hide it."""
    if not directory.exists():
        return
    head.check(directory)
    left = next((e.path for e in directory.entries() if e.path.endswith(".parquet") and not e.path.startswith("_")), "")
    if left:
        raise DataError(
            f"{directory} has data files, {left} among them, but no log that names them",
            "restore _delta_log from a copy, or let hybrid archive repair take in the files that it can read",
        )


def _sync_log(directory: Place, first: int, last: int) -> None:
    """Forces the log entries of these versions to disk, where they are still there."""
    log = directory / "_delta_log"
    for version in range(first, last + 1):
        try:
            (log / f"{version:020}.json").sync()
        except FileNotFoundError:
            pass
    log.sync()


def _no_table(directory: Place, error: BaseException) -> DataError:
    return DataError(f"{directory} cannot be opened as an archived stream: {first_line(error)}", "check the directory")
