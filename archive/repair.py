"""Repairs a damaged table: sets damaged files aside, restores copies and readable rows, and reports the lost events.

Each fault (archive.faults) has one repair, reported as a `RepairedFault`. Nothing is deleted: damaged files are moved
to `_aside`, which vacuum ignores. Opening a table changes nothing, so a table can be opened before a repair.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from archive import head, ingested
from archive.faults import (
    RECORD_BITS,
    FileFault,
    ListFault,
    data_faults,
    identities,
    list_fault,
    lost_rows,
    sequence_gaps,
    span,
)
from archive.layout import OFFSET, SOURCE, DataFile, file_statistics, stored_schema, write_files
from archive.place import Place
from archive.recent import FILES, KeyRange
from archive.sorting import MEMORY_LIMIT, sorting
from archive.table import Table
from query.errors import DataError
from query.schema import Schema

#: Directory of damaged files, in the directory of a table.
ASIDE = "_aside"
_AGAIN = "unless restored below, write them to a file and archive it: hybrid archive ingest"


@dataclass(frozen=True, slots=True)
class RepairedFault:
    """The repair of one fault. path: relative to the table. done: the repair, in words. missing: the lost events, in
    words, or empty. again: how to archive these again."""

    path: str
    done: str
    missing: str = ""
    again: str = ""

    def __str__(self) -> str:
        missing = f"; missing: {self.missing}" if self.missing else ""
        return f"{self.path} {self.done}{missing}{self.again and '; ' + self.again}"


def repair(directory: Place, schema: Schema | None = None) -> list[RepairedFault]:
    """Repairs the table in a directory as far as possible; returns the repairs. schema: the declaration of the stream,
    if known, needed if the log is lost. No other process may write to the table meanwhile.

    Raises DataError if the table cannot be repaired; files already set aside stay there."""
    done = list(_log(directory, schema))
    table = Table.open(directory)
    fault = list_fault(table)
    if fault is not None:
        done.append(_list(table, fault))
    lost = list(data_faults(table, table.snapshot()))
    done += [_data_file(table, one) for one in lost]
    done += list(_orphans(table, bool(lost)))
    done += _incomplete(table)
    gaps = sequence_gaps(table, table.snapshot())
    if gaps:
        table.note_gaps([*(table.gaps or []), *gaps])
        if not any(one.missing for one in done):  # else they are reported already
            done += [_gap(low, high) for low, high in gaps]
    for one in head.copies_damaged(directory):
        aside(directory, one.path)
        head.copy_again(directory, one.path)
        done.append(RepairedFault(one.path, f"was {one.what} and was rewritten"))
    head.advance(directory)
    return done


def _gap(low: int, high: int) -> RepairedFault:
    count = high - low + 1
    missing = f"{count:,} event{'s' if count > 1 else ''}, ingest sequences {low:,} to {high:,}"
    return RepairedFault("the table", "lacks events that were archived; the gap is recorded", missing)


def aside(directory: Place, path: str) -> str:
    """Moves a file of a table, if it exists, to ASIDE; returns its new path."""
    place, number = directory / path, 0
    folder = directory / ASIDE
    folder.make()
    while True:
        name = f"{path.replace('/', '-')}{f'.{number}' if number else ''}"
        if not (folder / name).exists():
            break
        number += 1
    if place.exists():
        place.move(folder / name)
        folder.sync()
    return f"{ASIDE}/{name}"





def _log(directory: Place, schema: Schema | None) -> Iterator[RepairedFault]:
    faults = head.faults(directory)
    lost = [fault for fault in faults if fault.needed and fault.copy is None]
    if lost or not head.has_log(directory):
        yield _anew(directory, schema, [fault.path for fault in lost])
        return
    for fault in faults:
        where = aside(directory, fault.path) if fault.what == "damaged" else ""
        if fault.copy is not None:
            (directory / fault.path).write_bytes(fault.copy)
            (directory / head.LOG).sync()
        moved = f"moved to {where}, " if where else ""
        put = "restored from its copy" if fault.copy is not None else "nothing is lost without it"
        yield RepairedFault(fault.path, f"was {fault.what}: {moved}{put}")
    if any(fault.path.startswith(head.LOG) for fault in faults):
        yield from _log(directory, schema)  # repairs a hint that names an incomplete checkpoint
    head.advance(directory)


def _anew(directory: Place, schema: Schema | None, lost: Sequence[str]) -> RepairedFault:
    """Replaces a log with lost entries by a new one, to which `_orphans` then adds the data files."""
    if schema is None:
        raise DataError(f"the log of {directory} and the stream's declaration are lost", "restore one from a copy")
    moved = [aside(directory, name) for name in (head.LOG, head.HEAD) if (directory / name).exists()]
    Table.begin(directory, schema)
    mark = ingested.newest_mark(directory)
    if mark is not None:
        Table.open(directory).ingest([], None, mark)
    what = ", ".join(lost) or head.LOG
    old = f"the log was moved to {' and '.join(moved)}, and" if moved else "there was no log, and"
    return RepairedFault(what, f"was lost without a copy: {old} a new one was begun")


def _list(table: Table, fault: ListFault) -> RepairedFault:
    path = ingested.restore_list(table.directory, table.ingest_mark(), lambda path: aside(table.directory, path))
    if path is None:
        raise DataError(fault.message, "restore it from a backup: its copy in the archive is lost too")
    return RepairedFault(path, "was damaged: it was restored from its copy")


def _data_file(table: Table, fault: FileFault) -> RepairedFault:
    """Removes a damaged file from the table and writes its intact row groups to another file."""
    snapshot = table.snapshot()
    written: list[DataFile] = []
    place = table.directory / fault.path
    kept = 0
    if fault.groups is not None:
        with pq.ParquetFile(place.key, filesystem=place.filesystem, page_checksum_verification=True) as file:
            rows = file.read_row_groups([g for g in range(file.num_row_groups) if g not in fault.groups])
        rows = rows.cast(pa.schema([stored_schema(table.schema).field(name) for name in rows.column_names]))
        kept = rows.num_rows
        if kept:
            written = write_files(rows, table.directory, table.schema)
    if table.set_aside(snapshot, [fault.path], written) is None:
        raise DataError(f"{table.directory} was changed meanwhile", "end the other process, and repair it again")
    where = aside(table.directory, fault.path)
    so = "removed from the table" if fault.gone else f"moved to {where}"
    more = f", its other {kept:,} events written to another file" if kept else ""
    return RepairedFault(fault.path, f"{fault.what}: {so}{more}", fault.lost, _AGAIN)


def _orphans(table: Table, waiting: bool) -> Iterator[RepairedFault]:
    """Adds the events that only uncommitted files have."""
    for fault, rows in lost_rows(table, waiting):
        place = table.directory / fault.path
        with pq.ParquetFile(place.key, filesystem=place.filesystem) as file:
            whole = file.metadata.num_rows == rows.num_rows
        if whole:
            files = [DataFile(fault.path, place.size(), rows.num_rows, file_statistics(rows))]
        else:
            files = write_files(rows, table.directory, table.schema)
        table.take_in(files, rows)
        yield RepairedFault(fault.path, f"was not in the table: {span(rows)} were added from it")


def _incomplete(table: Table) -> list[RepairedFault]:
    """Removes all rows of input files with lost rows, so that these files can be archived again."""
    mark = table.ingest_mark()
    if mark is None:
        return []
    listed, _ = ingested.read_list(table.directory, mark)
    snapshot = table.snapshot()
    with tempfile.TemporaryDirectory(prefix="hybrid-sort-") as scratch, sorting(scratch, MEMORY_LIMIT) as connection:
        connection.register("kept", identities(table, snapshot.paths))
        text = f"SELECT {OFFSET} >> {RECORD_BITS}, count(*) FROM kept WHERE {SOURCE} = '{FILES}' GROUP BY ALL"
        counts: dict[int, int] = dict(connection.execute(text).fetchall()) if snapshot.paths else {}
    torn = [row for row in listed.to_pylist() if counts.get(row["number"], 0) < row["rows"]]
    if not torn or table.gaps is None or table.expired_us > np.iinfo(np.int64).min:
        return []  # missing rows may have expired
    numbers = pa.array([row["number"] for row in torn])
    removed, added = [], []
    for i in snapshot.select(None, None, {}, KeyRange(OFFSET, min(numbers.to_pylist()) << RECORD_BITS, None)):
        place = table.directory / snapshot.paths[i]
        with pq.ParquetFile(place.key, filesystem=place.filesystem, page_checksum_verification=True) as file:
            rows = file.read()
        out = pc.and_(
            pc.equal(rows.column(SOURCE), FILES), pc.is_in(pc.shift_right(rows.column(OFFSET), RECORD_BITS), numbers)
        )
        if pc.any(out).as_py():
            removed.append(snapshot.paths[i])
            rest = rows.filter(pc.invert(out))
            added += write_files(rest, table.directory, table.schema) if rest.num_rows else []
    kept = listed.filter(pc.invert(pc.is_in(listed.column("number"), numbers)))
    next_mark = ((mark >> 32) + 1) << 32
    ingested.write_list(table.directory, next_mark, kept, [])
    if table.set_aside(snapshot, removed, added, mark=next_mark) is None:
        raise DataError(f"{table.directory} was changed meanwhile", "end the other process, and repair it again")
    done = "is an input file with lost events: its other events were removed"
    again = "archive it again: hybrid archive ingest"
    return [RepairedFault(row["path"], done, f"all of its {row['rows']:,} events", again) for row in torn]
