"""Writes rows to a directory of Parquet files: each row exactly once, also after a crash."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from live.sinks.base import JOIN_ID, MATCH_ID, Lost, Standing, check_ids, row_ids, trouble
from live.sinks.json_lines import check_json
from live.sinks.ndjson import SinkLocked, is_moved, lock, read_cursor, sync_directory, write_cursor
from query.errors import DataError, first_line

#: Buffered rows after which a file is written before the next cursor.
FILE_ROWS = 100_000


class ParquetSink:
    """Writes `part-00000000.parquet`, `part-00000001.parquet`, ... into a directory on local disk: one file per cursor
    or 100,000 rows, and per schema, if queries share the sink or one was replaced.

    A file is written under a name that begins with a dot, synced and renamed, so that a visible file is whole. The
    cursor is the number of the next file, with the counts of rows in earlier files that will come again. On `open`,
    files from the cursor on are those of a run that was killed: their rows are skipped when they come again.
    The directory is locked for this sink. Lost is raised if it is removed, moved or replaced while rows are written.
    """

    __slots__ = ("_directory", "_file", "_next", "_row_count", "_rows", "_standing")

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._rows: dict[pa.Schema, list[pa.Table]] = {}  # buffered rows, by file to be written
        self._row_count = 0
        self._next = 0
        self._standing = Standing()
        self._file: int | None = None  # of the open directory
        if self._directory.exists() and not self._directory.is_dir():
            raise DataError(f"{self._directory} is a file", "give a directory for the Parquet files")

    def check(self, schema: pa.Schema) -> None:
        check_ids(schema)
        check_json(schema)  # the id of a row without a match is a hash of its JSON
        for field in schema:
            try:
                nothing = pa.Table.from_batches([], pa.schema([field]))
                pq.write_table(nothing, pa.BufferOutputStream())
            except (pa.ArrowException, NotImplementedError) as error:
                message = f"Parquet cannot represent the column {field.name}: {first_line(error)}"
                raise DataError(message, "cast it to VARCHAR in the outer SELECT") from None

    def open(self, cursor: str | None) -> None:
        start, left, _ = read_cursor(cursor, "next")
        self.close_file()  # with its lock
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise trouble(f"{self._directory} cannot be opened", error, "check the path and its rights") from error
        try:
            lock(file, self._directory)
            names = os.listdir(self._directory)
            numbers = sorted(int(m[1]) for m in map(_PART.fullmatch, names) if m)
            for name in names:
                if _UNFINISHED.fullmatch(name):
                    (self._directory / name).unlink()
            standing = Standing(left)
            for number in numbers:
                if number >= start:
                    for row in row_ids(_identified(self._directory / _part(number))):
                        standing.add(row.match, row.join)
        except (SinkLocked, DataError):
            os.close(file)
            raise
        except pa.ArrowInvalid as error:
            os.close(file)
            message = f"{self._directory} has a file that cannot be read: {first_line(error)}"
            raise DataError(message, "choose another directory, or remove the file") from None
        except OSError as error:
            os.close(file)
            raise trouble(f"{self._directory} cannot be opened", error, "check the path and its rights") from error
        self._rows, self._row_count, self._standing, self._file = {}, 0, standing, file
        self._next = max([start, *(number + 1 for number in numbers)])

    def write(self, rows: pa.Table) -> None:
        self._standing.write(rows, self._gather)

    def _gather(self, rows: pa.Table) -> None:
        if self._file is None:
            raise DataError(f"{self._directory} is not open", "open the sink first")
        if self._row_count >= FILE_ROWS:
            self._flush()
        plain = rows if isinstance(rows, pa.Table) else pa.table(rows)  # what `fetch` returns is only like a table
        self._rows.setdefault(rows.schema, []).append(plain)
        self._row_count += rows.num_rows

    def _flush(self) -> None:
        """Writes the buffered rows; they stay buffered if that fails."""
        if not self._row_count:
            return
        self._check_directory()
        for schema in list(self._rows):
            self._write_file(pa.concat_tables(self._rows[schema]))
            self._row_count -= sum(rows.num_rows for rows in self._rows.pop(schema))

    def _write_file(self, rows: pa.Table) -> None:
        unfinished, name = self._directory / f".{_part(self._next)}", self._directory / _part(self._next)
        try:
            with open(unfinished, "wb") as file:
                pq.write_table(rows, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            os.rename(unfinished, name)
            sync_directory(self._directory)
        except OSError as error:
            raise trouble(f"{name} cannot be written", error, "free disk space") from error
        self._next += 1

    def _check_directory(self) -> None:
        if self._file is not None and is_moved(self._file, self._directory):
            raise Lost(f"{self._directory} was removed, moved or replaced while rows were written to it")

    def cursor(self) -> str | None:
        self._flush()
        self._check_directory()  # last: a directory moved away from now on contains these rows
        return write_cursor("next", self._next, self._standing)

    def close(self) -> None:
        if self._file is not None:
            try:
                self._flush()
            finally:
                self.close_file()  # releases the lock for the next sink

    def close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


_PART = re.compile(r"part-(\d{8,})\.parquet")
_UNFINISHED = re.compile(r"\.part-\d{8,}\.parquet")


def _part(number: int) -> str:
    return f"part-{number:08d}.parquet"


def _identified(path: Path) -> pa.Table:
    """Returns the id columns of a file, or all columns if a row has no match."""
    with pq.ParquetFile(path) as file:
        ids = file.read(columns=[c for c in file.schema_arrow.names if c in (MATCH_ID, JOIN_ID)])
        return file.read() if MATCH_ID in ids.column_names and ids.column(MATCH_ID).null_count else ids
