"""Which files were archived in a table, and the rows of them that did not fit; see archive/ingest.py for when each is
written."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction
from pyarrow import feather

from archive.layout import DAY_US, DataFile
from archive.place import Place
from archive.table import Table
from query.errors import DataError, first_line

LISTS, QUARANTINE = "_ingest", "_quarantine"
_JOBS = "jobs"
#: A list is _MAGIC, the SHA-256 of the rest, and an Arrow file; a copy lies beside it.
_MAGIC, _SUFFIX, _COPY = b"hybrid list 1\n", ".list", ".copy"
_ATTEMPTS_MAX = 10
#: What a job has left behind stays for so long: another may be reading it, or about to commit it.
_LEFT_US = 7 * DAY_US

#: A row of the list for each file.
LISTED = pa.schema(
    [
        ("number", pa.int64()), ("path", pa.string()), ("size", pa.int64()), ("modified_us", pa.int64()),
        ("fingerprint", pa.string()), ("rows", pa.int64()), ("bad", pa.int64()), ("job", pa.int64()),
        ("archived_us", pa.int64()),
    ]
)  # fmt: skip
BAD_ROWS = pa.schema(
    [
        ("job", pa.int64()), ("archived_at", pa.timestamp("us", "UTC")), ("file", pa.string()), ("row", pa.int64()),
        ("reason", pa.string()), ("raw", pa.string()),
    ]
)  # fmt: skip


def ingested_files(directory: Place) -> pa.Table:
    """The input files that are in the table in this directory, a row each: number, path, fingerprint, counts, job and
    time. Raises DataError."""
    return read_list(directory, Table.open(directory).ingest_mark())[0]


def read_list(directory: Place, mark: int | None) -> tuple[pa.Table, list[DataFile]]:
    """The files archived up to the job of that mark, and what that job quarantined."""
    if mark is None:
        return LISTED.empty_table(), []
    path = directory / LISTS / f"{mark}{_SUFFIX}"
    try:
        if (directory / LISTS / f"{mark}.arrow").exists():  # of an earlier release: without a checksum
            path = directory / LISTS / f"{mark}.arrow"
            body = path.read_bytes()
        else:
            found = _body(path.read_bytes())
            if found is None:
                raise pa.ArrowInvalid("it is not what was written")
            body = found
        table = feather.read_table(pa.BufferReader(body))
    except (OSError, pa.ArrowException) as error:
        message = f"the list of archived files, {path}, cannot be read: {first_line(error)}"
        hint = "restore it from a copy, or let hybrid archive repair make one: without it files could be archived twice"
        raise DataError(message, hint) from error
    quarantined = json.loads(table.schema.metadata[b"quarantine"])
    return table.replace_schema_metadata(None), [DataFile(*one) for one in quarantined]


def write_list(directory: Place, mark: int, files: pa.Table, quarantined: Iterable[DataFile]) -> None:
    """Puts down which files are archived once the commit of that mark is made; rows as LISTED."""
    named = json.dumps([[f.path, f.size, f.rows, f.statistics] for f in quarantined])
    folder = directory / LISTS
    folder.make()
    out = pa.BufferOutputStream()
    feather.write_feather(files.replace_schema_metadata({"quarantine": named}), out, compression="zstd")
    body = out.getvalue().to_pybytes()
    for suffix in (_SUFFIX, _COPY):
        (folder / f"{mark}{suffix}").write_bytes(_MAGIC + hashlib.sha256(body).digest() + body)
    folder.sync()


def restore_list(directory: Place, mark: int | None, aside: Callable[[str], str]) -> str | None:
    """Puts the copy of a list in its place; gives its path, or None if the copy is no better. aside: moves away what
    is at a path."""
    path, copy = f"{LISTS}/{mark}{_SUFFIX}", directory / LISTS / f"{mark}{_COPY}"
    data = copy.read_bytes() if copy.exists() else b""
    if _body(data) is None:
        return None
    aside(path)
    (directory / path).write_bytes(data)
    return path


def newest_mark(directory: Place) -> int | None:
    """The mark of the last list that is whole, for a log that no longer says it."""
    marks = {int(name.partition(".")[0]) for name in (directory / LISTS).names() if name.partition(".")[0].isdigit()}
    for mark in sorted(marks, reverse=True):
        try:
            read_list(directory, mark)
            return mark
        except DataError:
            continue
    return None


def _body(data: bytes) -> bytes | None:
    """The Arrow file in a list, or None if it is not what was written."""
    body = data[len(_MAGIC) + 32 :]
    return body if data == _MAGIC + hashlib.sha256(body).digest() + body else None


def tidy(directory: Place, mark: int) -> None:
    """Removes what older jobs have left behind: their lists, each part of ours, and what was written in vain. Not what
    a job that runs may need."""
    before_us = time.time_ns() // 1000 - _LEFT_US
    try:
        for entry in (directory / LISTS).entries():
            if entry.written_us < before_us and entry.path.partition(".")[0] != str(mark):
                (directory / LISTS / entry.path).remove()
        quarantine = directory / QUARANTINE
        if DeltaTable.is_deltatable(quarantine.delta_uri, quarantine.storage_options):
            table = DeltaTable(quarantine.delta_uri, storage_options=quarantine.storage_options)
            hours = _LEFT_US // 3_600_000_000
            table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)
    except (DeltaError, OSError):
        pass  # the next job does it


def publish(directory: Place, mark: int | None, files: Iterable[DataFile]) -> None:
    """Adds the files that the job of that mark has quarantined to the table of bad rows, if they are not there yet."""
    files = list(files)
    if mark is None or not files:
        return
    number = mark >> 32
    try:
        where, options = directory.delta_uri, directory.storage_options
        if not DeltaTable.is_deltatable(where, options):
            try:
                DeltaTable.create(where, schema=BAD_ROWS, name="quarantine", storage_options=options)
            except DeltaError:
                pass  # another job was first
        for _ in range(_ATTEMPTS_MAX):
            table = DeltaTable(where, storage_options=options)
            last = table.transaction_version(_JOBS)
            if last is not None and last >= number:
                return
            try:
                table.create_write_transaction(
                    [
                        AddAction(file.path, file.size, {}, time.time_ns() // 1_000_000, True, file.statistics)
                        for file in files
                    ],
                    mode="append",
                    schema=table.schema(),
                    commit_properties=CommitProperties(app_transactions=[Transaction(_JOBS, number)]),
                )
                return
            except CommitFailedError:
                continue
    except (DeltaError, OSError) as error:
        raise DataError(
            f"the quarantine in {directory} cannot be written: {first_line(error)}",
            "the good rows are archived; the bad ones follow when the same command is run again",
        ) from error
