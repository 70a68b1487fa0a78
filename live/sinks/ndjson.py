"""Rows in a file, a line of JSON for each: every row once, wherever the process was killed."""

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

#: So many bytes before a cursor tell whether a file is the one that it was written for.
TAIL_BYTES = 1024


class NdjsonSink:
    """Appends to one file on local disk. Its cursor is the length of the file, and the rows before it that are still
    to come again.

    What stands behind the cursor on `open` was written by a run that was killed: a torn last line is cut off, and of
    the others the ids are read (memory: about 100 bytes a row), so that they are left out when they come again. A
    file that is not there, or empty, begins anew, so that old ones may be moved away, also while rows are written: the
    path is compared with the open file at each write and each cursor, and another file there is Lost. One that took
    the place of the old one, as its last bytes before the cursor tell, is read as if there were no cursor.

    The file is locked: two sinks, of one process or of two, do not write into each other's lines.
    """

    __slots__ = ("_durable", "_file", "_length", "_path", "_standing", "_torn", "_unsafe")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: int | None = None
        self._length = 0
        self._durable = 0  # of the length, what the disk has taken
        self._standing = Standing()
        self._torn = False
        self._unsafe = False
        if not self._path.parent.is_dir():
            raise DataError(f"there is no directory {self._path.parent} for the file of rows", "create it")
        if self._path.exists() and not stat.S_ISREG(self._path.stat().st_mode):
            raise DataError(f"{self._path} is no regular file, to which rows could be appended", "choose another path")

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
                # What the disk has refused can still be read, and would be taken for what stands there.
                os.ftruncate(file, min(os.fstat(file).st_size, self._durable))
            here = os.fstat(file)
            size, inode = here.st_size, more.get("inode", here.st_ino)
            tail = more.get("tail")
            another = size >= length and tail is not None and tail != _tail(file, length)
            if not size or another or (size < length and inode != here.st_ino):
                length, left = 0, {}  # all of it counts as written since
            elif size < length:
                message = f"{self._path} has {size} bytes, and had {length} at the last checkpoint"
                raise DataError(message, "put the whole file back, or move it away: a new one is begun then")
            self._standing = Standing(left)
            self._length = self._read(file, length)
            os.ftruncate(file, self._length)
            os.fsync(file)
            sync_directory(self._path.parent)
        except (Locked, DataError):
            os.close(file)
            raise
        except OSError as error:
            os.close(file)
            raise trouble(f"{self._path} cannot be read", error.strerror, "check the disk") from error
        self._file, self._durable, self._torn, self._unsafe = file, self._length, False, False

    def _read(self, file: int, start: int) -> int:
        """Notes the rows from byte `start` on; where the last whole one ends."""
        end = start
        with open(file, "rb", closefd=False) as lines:
            lines.seek(start)
            for line in lines:
                # Blocks that never reached the disk are zeros after a power cut.
                if line[:1] in (b"{", b"\0") and (b"\0" in line or not line.endswith(b"\n")):
                    break
                try:
                    row = json.loads(line)
                    match, join = row[MATCH_ID] or unmatched_id(line.decode().removesuffix("\n")), row.get(JOIN_ID)
                    self._standing.add(match, join or "")
                except (ValueError, KeyError, TypeError, AttributeError):
                    message = f"{self._path} has at byte {end} a line that is no row of a live query"
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
                pass  # before the next write, then
            raise trouble(f"{self._path} cannot be written", error.strerror, "make room for it") from error
        self._length += done
        self._torn = False

    def _cut(self, file: int) -> None:
        """Takes back what a write has left that failed."""
        if self._torn:
            os.ftruncate(file, self._length)
            self._torn = False

    def _check_file(self, file: int) -> None:
        """Raises Lost where the file is no longer the one at the path, or does not end where the last write ended."""
        size = os.fstat(file).st_size
        if is_moved(file, self._path):
            raise Lost(f"{self._path} was removed, moved or replaced while rows were written to it")
        if size < self._length:
            raise Lost(f"{self._path} was cut to {size:,} bytes while rows were written to it")
        if size > self._length:
            raise Lost(f"{self._path} has {size - self._length:,} bytes that another program has written")

    def cursor(self) -> str | None:
        file = self._opened()
        try:
            self._cut(file)
            os.fsync(file)
        except OSError as error:
            self._unsafe = True
            raise Lost(f"{self._path} cannot be written: {error.strerror}\nhint: check the disk") from error
        self._check_file(file)  # behind the sync: whoever takes the file away from now on has these rows in it
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
            # The system forgets what it could not write: a second try would succeed without it.
            raise Lost(f"{self._path} has lost rows that the disk refused\nhint: start from the last checkpoint")
        return self._file


class Locked(OSError):
    """Another sink has the file."""


def lock(file: int, path: Path) -> None:
    """Takes a file or a directory for this sink alone, until it is closed. Raises Locked where another has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = f"{path} is written by another sink, of this service or of another\nhint: give each sink its own path"
        raise Locked(message) from None
    except OSError:
        pass  # a file system without locks


def is_moved(file: int, path: Path) -> bool:
    """Whether an open file or directory is no longer the one at its path."""
    try:
        return not os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return True


def read_cursor(cursor: str | None, name: str) -> tuple[int, dict[str, int], dict[str, Any]]:
    """The position that a cursor calls `name`, the rows before it that are still to come again, and all it says."""
    if cursor is None:
        return 0, {}, {}
    try:
        found = json.loads(cursor)
        return int(found[name]), dict(found["left"]), found
    except (ValueError, KeyError, TypeError):
        message = f"{cursor[:80]!r} is no cursor of this sink"
        raise DataError(message, "a sink of another kind wrote it: start without it") from None


def write_cursor(name: str, position: int, standing: Standing, more: Mapping[str, Any] | None = None) -> str:
    return json.dumps({name: position, "left": standing.left, **(more or {})})


def _tail(file: int, length: int) -> str:
    """What the last bytes before `length` are, as a hash: another file at the same path is told by it."""
    begin = max(0, length - TAIL_BYTES)
    return hashlib.blake2b(os.pread(file, length - begin, begin), digest_size=8).hexdigest()


def sync_directory(path: Path) -> None:
    """Makes names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
