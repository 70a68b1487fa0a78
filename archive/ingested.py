"""The list of archived input files of a table, and the quarantine of their bad rows. archive/ingest.py tells when each
is written."""

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
#: A list is _MAGIC, the SHA-256 of the rest, and an Arrow file; there is a copy beside it.
_MAGIC, _SUFFIX, _COPY = b"hybrid list 1\n", ".list", ".copy"
_ATTEMPTS_MAX = 10
#: Age at which leftovers of jobs are removed: another job may be reading or about to commit younger ones.
_LEFT_US = 7 * DAY_US

#: Columns of the list, one row per file.
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
    """Returns the archived input files of the table in a directory, as LISTED: one row per file. Raises DataError."""
    return read_list(directory, Table.open(directory).ingest_mark())[0]


def read_list(directory: Place, mark: int | None) -> tuple[pa.Table, list[DataFile]]:
    """Returns the files archived up to the job of that mark, as LISTED, and the quarantine files of that job. Raises
    DataError if the list cannot be read."""
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
                raise pa.ArrowInvalid("wrong checksum")
            body = found
        table = feather.read_table(pa.BufferReader(body))
    except (OSError, pa.ArrowException) as error:
        message = f"the list of archived files, {path}, cannot be read: {first_line(error)}"
        hint = "restore it from a copy, or run hybrid archive repair: without the list files could be archived twice"
        raise DataError(message, hint) from error
    quarantined = json.loads(table.schema.metadata[b"quarantine"])
    return table.replace_schema_metadata(None), [DataFile(*one) for one in quarantined]


def write_list(directory: Place, mark: int, files: pa.Table, quarantined: Iterable[DataFile]) -> None:
    """Writes the list of archived files, valid once the commit with that mark is made. files: rows as LISTED."""
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
    """Replaces a list by its copy; returns its path, or None if the copy is damaged too. aside: moves the file at a
    path away."""
    path, copy = f"{LISTS}/{mark}{_SUFFIX}", directory / LISTS / f"{mark}{_COPY}"
    data = copy.read_bytes() if copy.exists() else b""
    if _body(data) is None:
        return None
    aside(path)
    (directory / path).write_bytes(data)
    return path


def newest_mark(directory: Place) -> int | None:
    """Returns the mark of the newest readable list, for a log that has lost it; None without one."""
    marks = {int(name.partition(".")[0]) for name in (directory / LISTS).names() if name.partition(".")[0].isdigit()}
    for mark in sorted(marks, reverse=True):
        try:
            read_list(directory, mark)
            return mark
        except DataError:
            continue
    return None


def _body(data: bytes) -> bytes | None:
    """Returns the Arrow file in a list, or None if its checksum is wrong."""
    body = data[len(_MAGIC) + 32 :]
    return body if data == _MAGIC + hashlib.sha256(body).digest() + body else None


def tidy(directory: Place, mark: int) -> None:
    """Removes old leftovers of earlier jobs: their lists, and quarantine files that were never published. Keeps all
    that a running job may need."""
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
    """Adds the quarantine files of the job of that mark to the table of bad rows, unless they are in it already. Raises
    DataError."""
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
            "the good rows are archived; run the same command again to store the bad ones",
        ) from error
