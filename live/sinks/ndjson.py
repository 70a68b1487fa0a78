"""Writes rows to a file, one JSON line per row: each row exactly once, also after a crash."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from live.sinks.base import JOIN_ID, MATCH_ID, Lost, Standing, check_ids, trouble, unmatched_id
from live.sinks.json_lines import check_json, json_lines
from query.errors import DataError

#: Bytes before a cursor that identify the file it was written for.
TAIL_BYTES = 1024


class NdjsonSink:
    """Appends to one file on local disk. The cursor is the length of the file, with the counts of rows before it that
    will come again.

    On `open`, bytes after the cursor are those of a run that was killed: a torn last line is cut off, and the ids of
    the other rows are read (about 100 bytes of memory per row), so that they are skipped when they come again.
    A missing or empty file starts anew, so old files may be moved away, also while rows are written: each write and
    each cursor compares the path with the open file, and raises Lost if it is another file. A file that replaced the
    old one, recognised by the bytes before the cursor, is read as if there were no cursor.

    The file is locked, so that two sinks, in one process or in two, cannot mix their lines.
    """

    __slots__ = ("_durable", "_file", "_length", "_path", "_standing", "_torn", "_unsafe")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: int | None = None
        self._length = 0
        self._durable = 0  # length that is known to be durable
        self._standing = Standing()
        self._torn = False
        self._unsafe = False
        if not self._path.parent.is_dir():
            raise DataError(f"directory {self._path.parent} of the file of rows does not exist", "create it")
        if self._path.exists() and not stat.S_ISREG(self._path.stat().st_mode):
            raise DataError(f"{self._path} is not a regular file: rows cannot be appended", "choose another path")

    def check(self, schema: pa.Schema) -> None:
        check_ids(schema)
        check_json(schema)

    def open(self, cursor: str | None) -> None:
        length, left, more = read_cursor(cursor, "length")
        self.close_file()  # with its lock
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise trouble(f"{self._path} cannot be opened", error.strerror, "check the path and its rights") from error
        try:
            lock(file, self._path)
            if self._unsafe:
                # Bytes that the disk rejected can still be read, and would count as written.
                os.ftruncate(file, min(os.fstat(file).st_size, self._durable))
            here = os.fstat(file)
            size, inode = here.st_size, more.get("inode", here.st_ino)
            tail = more.get("tail")
            another = size >= length and tail is not None and tail != _tail(file, length)
            if not size or another or (size < length and inode != here.st_ino):
                length, left = 0, {}  # the whole file counts as written since the cursor
            elif size < length:
                message = f"{self._path} has {size} bytes, but had {length} at the last checkpoint"
                raise DataError(message, "restore the whole file, or move it away to start a new one")
            self._standing = Standing(left)
            self._length = self._read(file, length)
            os.ftruncate(file, self._length)
            os.fsync(file)
            sync_directory(self._path.parent)
        except (SinkLocked, DataError):
            os.close(file)
            raise
        except OSError as error:
            os.close(file)
            raise trouble(f"{self._path} cannot be read", error.strerror, "check the disk") from error
        self._file, self._durable, self._torn, self._unsafe = file, self._length, False, False

    def _read(self, file: int, start: int) -> int:
        """Counts the rows from byte `start` on. Returns the end of the last whole one."""
        end = start
        with open(file, "rb", closefd=False) as lines:
            lines.seek(start)
            for line in lines:
                # After a power cut, blocks that never reached the disk are zeros.
                if line[:1] in (b"{", b"\0") and (b"\0" in line or not line.endswith(b"\n")):
                    break
                try:
                    row = json.loads(line)
                    match, join = row[MATCH_ID] or unmatched_id(line.decode().removesuffix("\n")), row.get(JOIN_ID)
                    self._standing.add(match, join or "")
                except (ValueError, KeyError, TypeError, AttributeError):
                    message = f"{self._path}: the line at byte {end} is not a row of a live query"
                    raise DataError(message, "choose another file") from None
                end += len(line)
        return end

    def write(self, rows: pa.Table) -> None:
        self._standing.write(rows, self._append)

    def _append(self, rows: pa.Table) -> None:
        file = self._opened()
        data = memoryview("".join(line + "\n" for line in json_lines(rows)).encode())
        try:
            self._cut(file)
            self._check_file(file)
            self._torn = True
            done = 0
            while done < len(data):
                done += os.pwrite(file, data[done:], self._length + done)
        except Lost:
            raise
        except OSError as error:
            try:
                self._cut(file)
            except OSError:
                pass  # the next write tries it again
            raise trouble(f"{self._path} cannot be written", error.strerror, "free disk space") from error
        self._length += done
        self._torn = False

    def _cut(self, file: int) -> None:
        """Removes the torn end left by a failed write."""
        if self._torn:
            os.ftruncate(file, self._length)
            self._torn = False

    def _check_file(self, file: int) -> None:
        """Raises Lost if the path has another file, or the file does not end where the last write ended."""
        size = os.fstat(file).st_size
        if is_moved(file, self._path):
            raise Lost(f"{self._path} was removed, moved or replaced while rows were written to it")
        if size < self._length:
            raise Lost(f"{self._path} was truncated to {size:,} bytes while rows were written to it")
        if size > self._length:
            raise Lost(f"{self._path} has {size - self._length:,} bytes written by another program")

    def cursor(self) -> str | None:
        file = self._opened()
        try:
            self._cut(file)
            os.fsync(file)
        except OSError as error:
            self._unsafe = True
            raise Lost(f"{self._path} cannot be written: {error.strerror}\nhint: check the disk") from error
        self._check_file(file)  # after the sync: a file moved away from now on contains these rows
        self._durable = self._length
        more = {"inode": os.fstat(file).st_ino, "tail": _tail(file, self._length)}
        return write_cursor("length", self._length, self._standing, more)

    def close(self) -> None:
        if self._file is not None:
            try:
                self.cursor()
            finally:
                self.close_file()

    def close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> int:
        if self._file is None:
            raise DataError(f"{self._path} is not open", "open the sink first")
        if self._unsafe:
            # The system drops pages that it could not write: a second sync would succeed without them.
            raise Lost(f"{self._path} has lost rows that the disk rejected\nhint: start from the last checkpoint")
        return self._file


class SinkLocked(OSError):
    """Another sink has locked the file."""


def lock(file: int, path: Path) -> None:
    """Locks a file or a directory for this sink until it is closed. Raises SinkLocked if another sink has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = f"{path} is locked by another sink, of this service or another\nhint: give each sink its own path"
        raise SinkLocked(message) from None
    except OSError:
        pass  # a file system without locks


def is_moved(file: int, path: Path) -> bool:
    """True if an open file or directory is no longer the one at its path."""
    try:
        return not os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return True


def read_cursor(cursor: str | None, name: str) -> tuple[int, dict[str, int], dict[str, Any]]:
    """Returns the position `name` of a cursor, the counts of rows before it that will come again, and the whole cursor.
    Raises DataError for a cursor of another sink."""
    if cursor is None:
        return 0, {}, {}
    try:
        found = json.loads(cursor)
        return int(found[name]), dict(found["left"]), found
    except (ValueError, KeyError, TypeError):
        message = f"invalid cursor of this sink: {cursor[:80]!r}"
        raise DataError(message, "another kind of sink wrote it: start without it") from None


def write_cursor(name: str, position: int, standing: Standing, more: Mapping[str, Any] | None = None) -> str:
    return json.dumps({name: position, "left": standing.left, **(more or {})})


def _tail(file: int, length: int) -> str:
    """Returns a hash of the last bytes before `length`, which distinguishes another file at the same path."""
    begin = max(0, length - TAIL_BYTES)
    return hashlib.blake2b(os.pread(file, length - begin, begin), digest_size=8).hexdigest()


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
