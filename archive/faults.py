"""Finds the faults of a table: a closed set of kinds, each with one repair (archive.repair).

`head.LogFault`: a log entry or a head. `FileFault`: a data file. `LostRows`: an uncommitted data file with events that
no file of the table has. `ListFault`: the list of archived input files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from archive import head, ingested
from archive.layout import OFFSET, SEQ, SOURCE, events_in_words, stored_schema, time_name
from archive.recent import FILES, KeyRange
from archive.sorting import MEMORY_LIMIT, sorting
from archive.sums import Damaged, inspect, said
from archive.table import Table
from archive.table_snapshot import TableSnapshot
from query.errors import DataError, first_line

#: The offset of a row of an input file is (file number << RECORD_BITS) + record number.
RECORD_BITS = 32


@dataclass(frozen=True, slots=True)
class FileFault:
    """A missing or damaged data file. path: relative to the table. what: the end of a sentence that begins with the
    path. lost: its unreadable events, in words. groups: the damaged row groups; None: the whole file. gone: True if
    there is no such file."""

    path: str
    what: str
    lost: str
    groups: tuple[int, ...] | None
    gone: bool

    @property
    def message(self) -> str:
        return f"{self.what}, with {self.lost}"


@dataclass(frozen=True, slots=True)
class LostRows:
    """An uncommitted data file with events that no file of the table has. committed: True if a commit of these events
    or of later ones was lost; else a process may have ended before its commit."""

    path: str
    message: str
    committed: bool


@dataclass(frozen=True, slots=True)
class ListFault:
    """A fault of the list of archived input files."""

    message: str


def data_faults(table: Table, snapshot: TableSnapshot) -> Iterator[FileFault]:
    """Yields the faults of data files. Reads all bytes."""
    for path, size in zip(snapshot.paths, snapshot.sizes.tolist()):
        fault = data_fault(table, snapshot, path, int(size))
        if fault is not None:
            yield fault


def data_fault(
    table: Table, snapshot: TableSnapshot, path: str, size: int, deep: bool = True
) -> FileFault | None:
    """Returns the damage of one data file, or None. deep: reads all of its bytes, else the footer."""
    place = table.directory / path
    try:
        found = inspect(table.directory, path, size, deep)
        if found is None:
            if place.size() != size:
                raise Damaged(path, f"has {place.size():,} bytes, not {size:,}")
            if not deep:
                return None
            with pq.ParquetFile(place.key, filesystem=place.filesystem, page_checksum_verification=True) as file:
                file.read()
            return None
        sums, bad = found
        if not bad:
            return None
        damaged = Damaged(path, f"is damaged in {said(bad, len(sums.crcs))}", sums, bad)
    except Damaged as error:
        damaged = error
    except FileNotFoundError:
        damaged = Damaged(path, "is missing", gone=True)
    except (OSError, pa.ArrowException) as error:
        damaged = Damaged(path, f"cannot be read: {first_line(error)}")
    groups = None if damaged.groups is None else tuple(damaged.groups)
    return FileFault(path, damaged.what, snapshot.missing(damaged), groups, damaged.gone)


def lost_rows(table: Table, waiting: bool) -> Iterator[tuple[LostRows, pa.Table]]:
    """Yields uncommitted data files with their rows that no file of the table has. Leaves out rows of input files
    outside of the list, and expired events. waiting: includes files that were removed from the table and are not yet
    deleted. Reads the table anew for each file, so the caller may add rows in between."""
    orphans = set(table.removable(0))
    if not waiting or table.gaps is None:
        orphans -= set(table.removable(0, orphans=False))
    orphans = {path for path in orphans if path.endswith(".parquet") and not path.startswith("_")}
    numbers: Any = None
    for path in sorted(orphans):
        try:
            place = table.directory / path
            found = inspect(table.directory, path, place.size())
            with pq.ParquetFile(place.key, filesystem=place.filesystem, page_checksum_verification=True) as file:
                good = [g for g in range(file.num_row_groups) if found is None or g not in found[1]]
                rows = file.read_row_groups(good)
            if rows.schema != stored_schema(table.schema):
                continue
        except (Damaged, OSError, pa.ArrowException):
            continue  # unreadable, or already deleted
        rows = rows.filter(pc.greater_equal(rows.column(time_name(table.schema)).cast(pa.int64()), table.expired_us))
        from_files = pc.equal(rows.column(SOURCE), FILES)
        if pc.any(from_files).as_py():
            if numbers is None:
                listed, _ = ingested.read_list(table.directory, table.ingest_mark())
                numbers = listed.column("number").combine_chunks()
            known = pc.is_in(pc.shift_right(rows.column(OFFSET), RECORD_BITS), numbers)
            rows = rows.filter(pc.or_(pc.invert(from_files), known))
        snapshot = table.snapshot()
        rows = _absent(table, snapshot, rows)
        if rows.num_rows:
            committed = not head.knows(table.directory) or _are_committed(snapshot, rows)
            yield LostRows(path, f"is not in the table, but alone has {span(rows)}", committed), rows


def _are_committed(snapshot: TableSnapshot, rows: pa.Table) -> bool:
    """Returns True if the table has archived offsets beyond one of these rows, or if rows are from input files."""
    firsts = rows.group_by(SOURCE).aggregate([(OFFSET, "min")]).to_pylist()
    return any(one[f"{OFFSET}_min"] < snapshot.offsets.get(one[SOURCE], 0) or one[SOURCE] == FILES for one in firsts)


def _absent(table: Table, snapshot: TableSnapshot, rows: pa.Table) -> pa.Table:
    """Returns the rows that no file of the table has."""
    if not rows.num_rows or not snapshot.paths:
        return rows
    offsets = pc.min_max(rows.column(OFFSET)).as_py()
    index = snapshot.select(None, None, {}, KeyRange(OFFSET, offsets["min"], offsets["max"] + 1))
    if not len(index):
        return rows
    with tempfile.TemporaryDirectory(prefix="hybrid-sort-") as scratch, sorting(scratch, MEMORY_LIMIT) as connection:
        connection.register("kept", identities(table, [snapshot.paths[i] for i in index]))
        connection.register("loose", rows.append_column("position", pa.array(np.arange(rows.num_rows))))
        text = (
            f"SELECT position FROM loose ANTI JOIN kept ON loose.{SOURCE} = kept.{SOURCE} "
            f"AND loose.{OFFSET} = kept.{OFFSET} ORDER BY 1"
        )
        return rows.take(pa.array(connection.execute(text).fetchnumpy()["position"]))


def span(rows: pa.Table) -> str:
    source, offset = (pc.min_max(rows.column(name)).as_py() for name in (SOURCE, OFFSET))
    return events_in_words(rows.num_rows, source["min"], source["max"], offset["min"], offset["max"])


def sequence_gaps(table: Table, snapshot: TableSnapshot) -> list[tuple[int, int]]:
    """Returns the missing ingest sequences as (first, last) pairs, without the recorded gaps. Empty for a table with a
    retention or with expired events, in which missing ones are expected."""
    if table.gaps is None or table.schema.retention_us is not None or snapshot.boundary_sequence < 0:
        return []  # expired events may leave memory without coming into a file
    if table.expired_us > np.iinfo(np.int64).min:
        return []
    rows = identities(table, snapshot.paths) if snapshot.paths else pa.table({SEQ: pa.array([], pa.int64())})
    end = snapshot.boundary_sequence + 1
    with tempfile.TemporaryDirectory(prefix="hybrid-sort-") as scratch, sorting(scratch, MEMORY_LIMIT) as connection:
        connection.register("stored", rows)
        there = connection.execute(f"SELECT count(*) FROM stored WHERE {SEQ} >= 0").fetchone()
        if there == (end,):
            return []
        connection.execute(
            f"CREATE TABLE given AS SELECT {SEQ} FROM stored WHERE {SEQ} >= 0 UNION ALL SELECT unnest([-1, {end}])"
        )
        for low, high in table.gaps:
            connection.execute(f"INSERT INTO given SELECT unnest(range({low}, {high + 1}))")
        found = connection.execute(
            f"SELECT {SEQ} + 1, next - 1 FROM (SELECT {SEQ}, lead({SEQ}) OVER (ORDER BY {SEQ}) AS next FROM given) "
            f"WHERE next > {SEQ} + 1 ORDER BY 1"
        ).fetchall()
    return [(low, high) for low, high in found]


def list_fault(table: Table) -> ListFault | None:
    """Returns the damage of the list of archived input files, or None."""
    try:
        ingested.read_list(table.directory, table.ingest_mark())
    except DataError as error:
        return ListFault(first_line(error))
    return None


def identities(table: Table, paths: Sequence[str]) -> ds.Dataset:
    """Returns source, offset and ingest sequence of all events in some files."""
    columns = pa.schema([(SOURCE, pa.string()), (OFFSET, pa.int64()), (SEQ, pa.int64())])
    keys = [(table.directory / path).key for path in paths]
    return ds.dataset(keys, schema=columns, format="parquet", filesystem=table.directory.filesystem)
