"""Files as a source: one file, a directory or a glob, read once or followed as they grow.

A partition is a file, named by the absolute path at which it was first read (with #2, #3 behind it, if another file was
read there before); a position is the number of a record in it, from 0, the header of a CSV file and blank lines
included: for NDJSON the line, for CSV the line unless a quoted value holds a line end, for Parquet the row.

A file is known by its bytes, the first ones and the last that were read (live.sources.known_files), not by its path:
one that was renamed or moved, or whose path is spelled otherwise, goes on as the partition that it is; one that has the
content of another which is still there is not read. To go on from a position a file is read from the last place that is
known to lie before it, or from its start, and the records up to the position are passed over.

Files are taken in order of their paths, each up to where it ended when its turn came, so that what is there already
comes in order and no file that grows keeps others waiting. Of CSV and NDJSON only whole records are taken: a torn last
line waits for its line end, unless the file is read once or is compressed. Parquet and compressed files are taken when
they are complete.

What was read must stay: a path at which other bytes stand than those that were read there, which are under no other
path either, is a DataError, for its records would be taken for others; or, where rotation is followed, the next
partition. A file that is rewritten in place between its first bytes and its last is not noticed.
"""

from __future__ import annotations

import fnmatch
import glob
import gzip
import itertools
import os
import re
import stat
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from live.sources.base import Bad, Piece
from live.sources.decode import Decoder, Decoding, Finer, Times, concat
from live.sources.known_files import HEAD_BYTES, TAIL_BYTES, Known, KnownFiles, Mark, digest
from matching.batch import Int64Array
from matching.checked import by_name, texts_checked
from matching.csv_records import (
    EXCERPT_BYTES,
    RECORD_BYTES_MAX,
    TOO_LONG,
    column_of,
    cut,
    header_of,
    read_records,
    texts_of,
    without_long,
)
from query.errors import DataError, first_line
from query.schema import Schema

FileFormat: TypeAlias = Literal["csv", "ndjson", "parquet"]

#: CSV and NDJSON are read in blocks of so many bytes, or as many as a record needs.
BLOCK_BYTES = 1 << 20
#: Parquet is handed out in batches of so many rows.
BATCH_ROWS = 1 << 14
_LIMIT = f"{RECORD_BYTES_MAX >> 20} MB"
#: How long, in seconds, a poll waits before it looks again.
LOOK_S = 0.05
#: How long, in seconds, a poll reads on that waits for nothing but has not met a whole record yet.
READ_S = 0.2
#: Small files are handed out together, so many at a time, up to so many rows.
FILES_TOGETHER, ROWS_TOGETHER = 64, 1000
#: A file that has not grown for so long, in seconds, may be over: where its last event is known, and where it is not.
#: For as long as the latter those behind a Parquet file that is not complete wait for it.
QUIET_S, LONG_QUIET_S = 1.0, 60.0
#: How long it is told, in seconds, what was not read of a file that is gone.
TOLD_S = 600.0
#: So much of what is wrong is told by name.
TROUBLES_MAX = 10
#: Of so much that was handed out of a file, and may not be archived yet, it is known where it ends.
MARKS_MAX = 64
_MARK = b"\xef\xbb\xbf"

_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Which files, and how they are read.

    path: a file, a directory (all files below it), or a glob; names that begin with a dot or an underscore are left out
    below directories. format: None: by suffix, .csv .ndjson .jsonl .json .parquet .pq, and .gz behind it; files with
    another suffix are left out. follow: whether more may come, new files too; otherwise all is read once. A file ending
    in .gz is read when it is complete, and cannot be followed alone. rotation: what a file is that stands where another
    was read, of which nothing is there any more: an error, or, by "follow", a new one; then app.log.1 and
    app.log-20240301.gz belong to app.log, and are read before it.
    times, missing, finer: see Decoding. delimiter, header, nulls: of CSV; without a header the fields are the declared
    columns in their order; a field without quotes that is one of `nulls` is null.
    """

    path: str
    format: FileFormat | None = None
    follow: bool = True
    times: Times = "iso"
    missing: Literal["error", "null"] = "error"
    delimiter: str = ","
    header: bool = True
    nulls: tuple[str, ...] = ("",)
    rotation: Literal["error", "follow"] = "error"
    finer: Finer = "error"


class FileSource:
    """Events from files. Resumes.

    memory: the file in which it keeps what it knows of those it has read (live.sources.known_files), for as long as the
    archive that its positions come from; None: it knows them by their paths, and otherwise for as long as it lives.
    """

    resumes = True

    def __init__(self, schema: Schema, settings: FileSettings, memory: Path | None = None) -> None:
        self._settings = settings
        self._path = _absolute(settings.path)
        self._schema = schema
        self._decoder = Decoder(schema, Decoding("json", settings.times, settings.missing, finer=settings.finer))
        self._positions: dict[str, int] = {}
        self._known = KnownFiles(memory)
        self._files: dict[str, _Text | _Parquet] = {}  # by path
        self._readers: dict[str, _Text | _Parquet] = {}  # those that are read, by partition
        self._inodes: dict[tuple[int, int], _Text | _Parquet] = {}  # the same, by where they are on the disk
        self._enrolled: set[str] = set()  # partitions of which it is durable which file they are
        self._marks: dict[str, deque[Known]] = {}  # what was handed out and may not be archived yet, by partition
        self._turns: deque[str] = deque()
        self._waits: dict[str, str] = {}  # by path, why it is not read now
        self._odd: dict[str, str] = {}  # the same of what is no file
        self._there: dict[str, _Identity] = {}  # what was seen at the last look
        self._blind = False  # not all could be seen
        self._judged_s = -LOOK_S  # when it was last looked which files are over
        self._gone: dict[str, float] = {}  # by partition: since when its file is not there, of the monotonic clock
        self._torn: dict[str, tuple[float, str]] = {}  # by partition, when its file went, and what was not read of it
        self._holding: set[str] = set()  # the partitions that hold back the watermark
        self._newest: tuple[int, str] | None = None  # time of the first event of the partition that began last, and it
        self._elsewhere: dict[tuple[int, int], str] = {}  # by inode, partitions that were read under another path
        self._lost: list[str] = []  # partitions that were read, and of which nothing is known nor at their path
        self._unwritten: str | None = None
        self._failed: DataError | None = None

    @property
    def ended(self) -> bool:
        return not self._settings.follow and all(file.ended for file in self._files.values())

    @property
    def partitions(self) -> tuple[str, ...]:
        return ()

    def open(self, positions: Mapping[str, int]) -> None:
        if len(self._settings.delimiter) != 1 or self._settings.delimiter in '"\r\n':
            raise DataError(f"{self._settings.delimiter!r} cannot stand between fields", "give one character")
        self._known.read()
        self._positions = dict(positions)
        for known in self._known:
            self._enrolled.add(known.partition)
            if known.partition in positions:
                self._holding.add(known.partition)
                self._began(known)
        for name in positions.keys() - self._enrolled:
            # Read by a release that kept nothing, or by a source of another name: known by its path.
            if not os.path.isabs(name):
                continue
            try:
                self._elsewhere[_Identity.of(name).inode] = name
            except OSError:
                if self._known.path is not None and not self._known.found:
                    self._lost.append(name)
                if _covers(self._path, name):
                    self._holding.add(name)
        self._there = self._look()
        if not self._files and not self._settings.follow:
            hint = "check the path; the format is known by a suffix, or say it"
            raise DataError(f"there is no file to read in {self._path}", hint)

    def poll(self, seconds: float) -> list[Piece | Bad]:
        if self._failed is not None:
            raise self._failed
        start = time.monotonic()
        until = start + seconds
        try:
            while True:
                began = time.monotonic()
                out, more = self._turn()
                now = time.monotonic()
                if out or self.ended or now >= (max(until, start + READ_S) if more else until):
                    return out
                if not more:
                    # Looking at very many files takes its time: at most a tenth of it goes there.
                    time.sleep(min(until - now, max(LOOK_S, 9 * (now - began))))
        except DataError as error:
            self._failed = error
            raise

    def kept(self, positions: Mapping[str, int]) -> None:
        """Writes down how far the files are known by what is archived of them."""
        done: list[Known] = []
        for partition, marks in list(self._marks.items()):
            position, last = positions.get(partition, 0), None
            while marks and marks[0].mark.records <= position:
                last = marks.popleft()
            if last is not None:
                done.append(last)
            if not marks:
                del self._marks[partition]
        self._write(done)

    def trouble(self) -> str | None:
        """What is wrong, the first by name; how many more there are."""
        found = self._troubles()
        more = f" (and {len(found) - TROUBLES_MAX} more)" if len(found) > TROUBLES_MAX else ""
        return "; ".join(found[:TROUBLES_MAX]) + more if found else None

    def _troubles(self) -> list[str]:
        found = [] if self._unwritten is None else [self._unwritten]
        found += self._odd.values()
        if not self._files and not found and self._settings.follow:
            gone = any(known.path == self._path for known in self._known)
            return [f"{self._path} is gone" if gone else f"there is no file to read in {self._path} yet"]
        now_s = time.monotonic()
        self._torn = {name: told for name, told in self._torn.items() if now_s - told[0] < TOLD_S}
        return [*found, *self._waits.values(), *(what for _, what in self._torn.values())]

    def path_of(self, partition: str) -> str | None:
        """Where the file of a partition is now. From any thread."""
        file = self._readers.get(partition)
        return None if file is None else file.path

    def partition_at(self, path: str) -> str | None:
        """Which partition the file at a path is read as, however the path is spelled; None: it is not read. From any
        thread."""
        try:
            file = self._inodes.get(_Identity.of(path).inode)
            return file.partition if file is not None and os.path.samefile(file.path, path) else None
        except OSError:
            return None

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._known.close()

    # ---- reading

    def _turn(self) -> tuple[list[Piece | Bad], bool]:
        """What the next block says that says something; and whether, where there is none, more may be read at once.
        Small files are taken together: what is written down of each is written at once."""
        if time.monotonic() - self._judged_s > LOOK_S:
            self._judged_s = time.monotonic()
            if over := self._over():
                return over, True
        if not self._turns:
            if self._settings.follow:
                self._there = self._look()
            for path, next_file in self._files.items():
                if self._stirs(next_file):
                    self._turns.append(path)
                elif self._is_awaited(next_file):
                    break  # what comes behind it in order waits with it
        moved = False
        out: list[Piece | Bad] = []
        fresh: list[Known] = []
        rows = files = 0
        while self._turns and rows < ROWS_TOGETHER and files < FILES_TOGETHER:
            file = self._files.get(self._turns[0])
            if file is None:
                self._turns.popleft()
                continue
            try:
                found, more = self._read(file)
            except DataError as error:
                if not out:
                    raise
                self._failed = error  # what came before it is handed out first
                break
            if self._is_awaited(file):
                self._turns.clear()
                break
            if not more and self._turns:
                self._turns.popleft()
            if not found and not more and file.partition is not None and file.partition not in self._enrolled:
                fresh += self._taken(file, [])  # an older release has read it
            if found:
                files += 1
                rows += sum(len(item.rows) if isinstance(item, Piece) else 1 for item in found)
                out += found
                fresh += self._taken(file, found)
            elif more:
                moved = True
                break
            moved |= found is not None
        if fresh and not self._write(fresh):
            # Which file these rows are of could not be written down: they are read again, and nothing was taken.
            for known in fresh:
                self._enrolled.discard(known.partition)
            before = list(self._files)
            for partition in {item.source for item in out}:
                self._forget(partition)
            if not self._settings.follow:  # else they are found when it looks again
                self._files = {p: file for p in before if (file := self._files.get(p) or self._new(p)) is not None}
            return [], False
        for item in out:
            if isinstance(item, Piece) and item.next is not None:
                self._positions[item.source] = max(item.next, self._positions.get(item.source, 0))
        return out, bool(out) or moved

    def _read(self, file: _Text | _Parquet) -> tuple[list[Piece | Bad] | None, bool]:
        """What the next block of a file says, None where there is nothing; and whether its turn goes on."""
        try:
            if file.partition is not None and file.weak and not file.started:
                del self._readers[file.partition]
                file.partition = None
            if file.partition is None and not self._identify(file):
                return None, False
            out, more = ([], False) if file.ended else file.read()
        except _OtherFile as other:
            self._drop(file)
            anew = self._new(file.path)
            if anew is not None:
                anew.was = other.what
                self._files[file.path] = anew
            return None, anew is not None
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            file.close()
            if not self._settings.follow:
                raise DataError(f"{file.path} cannot be read: {_said(error)}", "is it complete?") from error
            of_system = isinstance(error, OSError) and error.errno is not None
            if not (of_system and file.stuck):
                file.stuck_s = time.monotonic()
            file.stuck = True
            if of_system:
                file.identity = None  # not of the content: it is read again though it is as it was
            self._waits[file.path] = f"{file.path} cannot be read yet: {_said(error)}"
            return None, False
        except _Unfit as error:
            if not self._settings.follow or file.path == self._path:
                raise
            # One file that does not fit stops no other. It is looked at again when it has changed.
            judged = file.identity
            self._drop(file)
            anew = self._new(file.path)
            if anew is not None:
                anew.judged = judged
                self._files[file.path] = anew
            hint = f" ({error.hint})" if error.hint else ""
            self._waits[file.path] = f"{error.message}{hint}; the file is not read"
            return None, False
        file.stuck = False
        self._waits.pop(file.path, None)
        if file.waits is not None:
            self._waits[file.path] = file.waits
        return out, more

    def _taken(self, file: _Text | _Parquet, out: list[Piece | Bad]) -> list[Known]:
        """Keeps in mind what was read; what has to be written down before it is handed out."""
        assert file.partition is not None
        for item in out:
            if isinstance(item, Piece) and item.rows.num_rows:
                times = pc.min_max(item.rows.column(self._schema.time).cast(pa.int64())).as_py()
                first_us, newest_us = times["min"], times["max"]
                file.first_us = first_us if file.first_us is None else file.first_us
                file.newest_us = newest_us if file.newest_us is None else max(file.newest_us, newest_us)
                file.read_s = time.monotonic()
                self._holding.add(file.partition)
            if isinstance(item, Piece) and item.last:
                self._holding.discard(file.partition)
        known = file.known()
        if known is None:
            return []
        self._known.put(known)
        self._began(known)
        marks = self._marks.setdefault(file.partition, deque())
        marks.append(known)
        if len(marks) > MARKS_MAX:
            self._marks[file.partition] = deque(itertools.islice(marks, 1, None, 2))
        if file.partition in self._enrolled:
            return []
        self._enrolled.add(file.partition)
        # On disk no mark is ahead of what is archived.
        return [replace(known, mark=Mark(), stamp=None)]

    def _write(self, some: list[Known]) -> bool:
        try:
            self._known.write(some)
        except OSError as error:
            self._unwritten = f"what is known of the files cannot be written down: {_said(error)}"
            return False
        if some:
            self._unwritten = None
        return True

    # ---- which file is which

    @staticmethod
    def _is_awaited(file: _Text | _Parquet) -> bool:
        """Whether a file is not complete, and is read before those behind it all the same: for as long as it may still
        be written, so that one that is damaged stops no other."""
        return (
            isinstance(file, _Parquet)
            and file.stuck
            and file.partition is not None
            and time.monotonic() - file.stuck_s < LONG_QUIET_S
        )

    def _stirs(self, file: _Text | _Parquet) -> bool:
        """Whether there may be something to read in a file."""
        if file.ended:
            return False
        found = self._there.get(file.path)
        if file.partition is None:
            return file.judged != found or (file.copy_of is not None and file.copy_of not in self._readers)
        return file.identity != found or not (file.at_end or file.stuck)

    def _look(self) -> dict[str, _Identity]:
        """Finds files that are new, and those that are gone. Returns what is there."""
        there, self._odd, self._blind = _listed(self._path, self._settings.rotation == "follow")
        for path in [p for p in self._odd if not self._blind and p != self._path and self._format(p) is None]:
            del self._odd[path]
        for path in [path for path in self._files if path not in there]:
            file = self._files[path]
            if file.partition is not None:
                self._gone[file.partition] = time.monotonic()
                if file.unread:
                    self._torn[file.partition] = time.monotonic(), f"{path} is gone, and {file.unread}"
            self._waits.pop(path, None)
            self._drop(file)
        known, order = self._files, _order(there, self._settings.rotation == "follow")
        self._files = {}
        for path in order:
            before = known.get(path)
            if before is not None and before.ended and before.partition is not None and before.identity != there[path]:
                self._drop(before)
                before = None
            if (next_file := before or self._new(path)) is not None:
                self._files[path] = next_file
        return there

    def _new(self, path: str) -> _Text | _Parquet | None:
        """A file of which is not known yet what it is."""
        packed = path.endswith(".gz")
        format = self._format(path)
        if format is None:
            if path == self._path:
                raise DataError(f"{path}: the suffix does not say what is in it", "say its format")
            return None
        if packed and (format == "parquet" or (self._settings.follow and path == self._path)):
            hint = "Parquet is compressed inside" if format == "parquet" else "unpack it, or set follow to false"
            if path == self._path or not self._settings.follow:
                raise DataError(f"{path} cannot be followed, as it is compressed", hint)
            self._odd[path] = f"{path} is not read, as it is compressed: {hint}"
            return None
        if format == "parquet":
            return _Parquet(path, self._decoder)
        return _Text(path, self._decoder, self._settings, format)

    def _format(self, path: str) -> FileFormat | None:
        return _format_at(path, self._settings)

    def _drop(self, file: _Text | _Parquet) -> None:
        """Lets go of a file, of which is known what it was."""
        file.close()
        if file.inode is not None and self._inodes.get(file.inode) is file:
            del self._inodes[file.inode]
        if self._files.get(file.path) is file:
            del self._files[file.path]
        if file.partition is not None and self._readers.get(file.partition) is file:
            del self._readers[file.partition]

    def _forget(self, partition: str) -> None:
        """Reads a file again from what was handed out of it."""
        file = self._readers.get(partition)
        self._marks.pop(partition, None)
        if file is not None:
            self._drop(file)

    def _identify(self, file: _Text | _Parquet) -> bool:
        """Finds out which partition a file is; whether it is to be read. Raises OSError and the like."""
        found = _Identity.of(file.path)
        if file.judged == found and (file.copy_of is None or file.copy_of in self._readers):
            return False
        with file.bytes() as opened:
            head = opened.read(max(self._known.head_bytes_max, HEAD_BYTES))
            if not head and self._settings.follow:
                file.judged = found  # it is empty so far
                return False
            alike = self._known.alike(head)
            same = [k for k in alike if (file.packed and k.stamp == found.stamp) or k.is_in(opened)]
            shorter = [k for k in alike if k not in same and _is_shorter(opened, k.mark.bytes)]
        file.weak = len(head) < HEAD_BYTES
        for known in sorted(same, key=lambda k: (k.partition in self._readers, k.path != file.path)):
            other = self._reader_of(known.partition)
            if other is not None:
                self._is_copy(file, found, known, f"has the same content as {other.path}")
                return False
            self._begin(file, known.partition, replace(known, path=file.path))
            return True
        # What nothing is archived of was of another database, or comes again from the file that is there now.
        at_path = [k for k in self._known if k.path == file.path and k.partition not in self._readers]
        before = [k for k in at_path if k.partition in self._positions]
        for known in shorter:
            if known not in before:
                self._is_copy(file, found, known, f"is the beginning of {known.path or known.partition}")
                return False
        for known in before:
            self._replaced(file, found, known)
        name = self._name(file, found)
        self._begin(file, name, None)
        if self._lost and name not in self._positions:
            many = "" if len(self._lost) == 1 else f" or another of {len(self._lost):,} that are not there any more"
            self._torn[name] = time.monotonic(), (
                f"{file.path} is read as a new file, as what was known of files is gone ({self._known.path}): if it is "
                f"{self._lost[0]}{many}, its events are archived twice"
            )
        return True

    def _is_copy(self, file: _Text | _Parquet, found: _Identity, known: Known, what: str) -> None:
        file.judged, file.copy_of = found, known.partition
        file.ended = not self._settings.follow
        self._waits[file.path] = f"{file.path} {what} and is not read: its events would be taken twice"

    def _reader_of(self, partition: str) -> _Text | _Parquet | None:
        """The file that a partition is read from, if it is still there and still that one."""
        file = self._readers.get(partition)
        if file is None:
            return None
        known = self._known.get(partition)
        try:
            if known is None or file.identity == _Identity.of(file.path):
                return file
            with file.bytes() as opened:
                if known.is_in(opened):
                    return file
        except (OSError, EOFError, zlib.error):
            pass
        path = file.path
        self._drop(file)
        anew = self._new(path)
        if anew is not None and os.path.exists(path):
            self._files[path] = anew
        return None

    def _replaced(self, file: _Text | _Parquet, found: _Identity, known: Known) -> None:
        """Another file is where that of a partition was: finds that one under another name, or raises DataError, or,
        where rotation is followed, takes it for over."""
        there, _, _ = _listed(self._path, self._settings.rotation == "follow")
        for path in there:
            other = self._files.get(path)
            if path == file.path or (other is not None and other.partition is not None):
                continue
            other = other or self._new(path)
            if other is None:
                continue
            try:
                with other.bytes() as opened:
                    if not known.is_in(opened):
                        continue
            except (OSError, EOFError, zlib.error):
                continue
            self._files[path] = other
            self._begin(other, known.partition, replace(known, path=path))
            return
        if self._settings.rotation == "error":
            size = known.mark.bytes
            if isinstance(file, _Text) and not file.packed and found.size < size:
                message = f"{file.path} has become shorter: {found.size} bytes, and {size} were read"
            else:
                message = f"{file.path} was replaced by another file, or written anew"
            hint = 'put it back, and write new files under new names; or let rotation = "follow" read it as a new one'
            raise DataError(message, f"its records would be taken for those read before: {hint}")
        rest = file.was or "what stood behind that, if anything, was not read"
        what = f"the file before it is not found: {known.mark.records} records were read of it; {rest}"
        self._torn[known.partition] = time.monotonic(), f"{file.path} was replaced, and {what}"
        self._known.put(replace(known, path=""))
        self._write([replace(known, path="")])
        self._gone.setdefault(known.partition, 0.0)

    def _name(self, file: _Text | _Parquet, found: _Identity) -> str:
        """The partition of a file that is not known by its content."""
        old = file.path if file.path in self._positions else self._elsewhere.get(found.inode)
        if old is not None and old not in self._readers and self._known.get(old) is None:
            return old  # an older release has read it
        names = itertools.chain([file.path], (f"{file.path}#{number}" for number in itertools.count(2)))
        taken = self._positions.keys() | self._readers.keys()
        return next(name for name in names if name not in taken and self._known.get(name) is None)

    def _begin(self, file: _Text | _Parquet, partition: str, known: Known | None) -> None:
        file.inode = _Identity.of(file.path).inode
        self._inodes[file.inode] = file
        if known is not None:
            self._known.put(known)
        file.begin(partition, known, self._positions.get(partition, 0))
        self._waits.pop(file.path, None)
        self._gone.pop(partition, None)
        self._torn.pop(partition, None)
        self._readers[partition] = file

    # ---- what holds back the watermark

    def _began(self, known: Known) -> None:
        if known.first_us is not None and (self._newest is None or known.first_us > self._newest[0]):
            self._newest = known.first_us, known.partition

    def _over(self) -> list[Piece | Bad]:
        """The ends of files that are over, as far as is known: those that are gone, and those that were read to their
        end and have been quiet since, when another file has begun at the time that they had come to. With the next
        event that such a file has, it counts again."""
        now_s, out = time.monotonic(), list[Piece | Bad]()
        unsure = self._blind or any(f.partition is None and f.judged is None for f in self._files.values())
        for partition in sorted(self._holding):
            file = self._readers.get(partition)
            if file is None:
                if unsure:
                    continue  # it may be one of those
                if now_s - self._gone.get(partition, now_s - QUIET_S) < QUIET_S:
                    continue
            elif not file.ended and not self._is_over(file, partition):
                continue
            self._holding.discard(partition)
            nothing = self._decoder.nothing
            next_ = self._positions.get(partition, 0)
            out.append(Piece(partition, nothing, np.zeros(0, np.int64), next_, True))
        return out

    def _is_over(self, file: _Text | _Parquet, partition: str) -> bool:
        if file.stuck or not file.at_end or self._newest is None or self._newest[1] == partition:
            return False
        assert file.identity is not None
        quiet_s = max(time.time() - file.identity.modified_ns / 1e9, time.monotonic() - file.read_s)
        if file.newest_us is None or file.first_us is None:  # an older release has read it
            return quiet_s >= LONG_QUIET_S
        # Files that grow side by side begin together; one that follows another may begin a little before its end.
        overlap_us = min(self._schema.lateness_us, (file.newest_us - file.first_us) // 2)
        begun_us = self._newest[0]
        return quiet_s >= QUIET_S and begun_us >= file.newest_us - overlap_us and begun_us > file.first_us


_ROTATED = re.compile(r"(?<=.)[.-]\d[\dT_:.Z-]*$")


def _base(name: str) -> str:
    """The path without what rotation puts behind it: .1, .12, -20240301."""
    folder, name = os.path.split(name)
    return os.path.join(folder, _ROTATED.sub("", name))


def _order(there: Mapping[str, _Identity], rotated: bool) -> list[str]:
    """The paths in the order in which they are read: of their names; where rotation is followed, what was rotated away
    stands before what took its place, the oldest first, as their counters or dates say."""
    if not rotated:
        return sorted(there)

    def place(path: str) -> tuple[str, bool, list[int], int, str]:
        name = path.removesuffix(".gz")
        base = _base(name)
        return base, base == name, _age(name[len(base) :]), there[path].modified_ns, path

    return sorted(there, key=place)


def _age(behind: str) -> list[int]:
    """What rotation has put behind a name, to be ordered from old to new: a counter, of which 1 is the newest, or the
    digits of a date. A copy or a packer may set the time of a file, but not its name."""
    numbers = [int(digits) for digits in re.findall(r"\d+", behind)]
    return [-numbers[0]] if len(numbers) == 1 and numbers[0] < 10_000_000 else numbers


def _covers(path: str, name: str) -> bool:
    """Whether a path that is not there would be one of those that a path means."""
    return name.startswith(path + os.sep) or name == path or (glob.has_magic(path) and fnmatch.fnmatch(name, path))


def _format_at(path: str, settings: FileSettings) -> FileFormat | None:
    """The format of a file by its path; None: it is not read."""
    name = path.removesuffix(".gz")
    if settings.rotation == "follow":
        name = _base(name)
    return settings.format or _SUFFIXES.get(os.path.splitext(name.lower())[1])


def read_by_both(one: FileSettings, other: FileSettings) -> str | None:
    """A path that both mean, however they spell it: of a file that is there, or that may come."""
    here, there = (
        {identity.inode: path for path, identity in found.items() if _format_at(path, settings) is not None}
        for settings in (one, other)
        for found in (_listed(_absolute(settings.path), settings.rotation == "follow")[0],)
    )
    shared = sorted(here[inode] for inode in here.keys() & there.keys())
    if shared:
        return shared[0]
    return next((b.path for a, b in ((one, other), (other, one)) if may_read(a, b.path)), None)


def may_read(settings: FileSettings, path: str) -> bool:
    """Whether a file at a path, there or not, is one of those that are read."""
    own, name = os.path.realpath(_absolute(settings.path)), os.path.realpath(_absolute(path))
    if name == own:
        return True
    if _format_at(name, settings) is None and not os.path.isdir(name):
        return False
    if glob.has_magic(own) and not os.path.exists(own):
        parts, wanted = name.split(os.sep), own.split(os.sep)
        if "**" in wanted:
            return fnmatch.fnmatch(name, own.replace("**" + os.sep, "*"))
        return len(parts) == len(wanted) and all(map(fnmatch.fnmatch, parts, wanted))
    below = name.removeprefix(own + os.sep)
    return below != name and not any(part.startswith((".", "_")) for part in below.split(os.sep))


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _listed(path: str, rotated: bool) -> tuple[dict[str, _Identity], dict[str, str], bool]:
    """The files that a path means, those that are there; by path, what keeps others from being read; and whether there
    may be more that could not be seen. rotated: what was rotated away from a single file belongs to it."""
    found: dict[str, _Identity] = {}
    odd: dict[str, str] = {}
    blind = False

    def refused(error: OSError) -> None:
        nonlocal blind
        blind = True
        odd[str(error.filename)] = f"{error.filename} cannot be read: {_said(error)}"

    if os.path.isdir(path):
        names = []
        for folder, folders, here in os.walk(path, onerror=refused):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            names += [os.path.join(folder, name) for name in here if not name.startswith((".", "_"))]
    elif glob.has_magic(path) and not os.path.exists(path):
        names = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
    else:
        names = [path]
        if rotated:
            beside = re.compile(re.escape(path) + r"[.-]\d[\dT_:.Z-]*(\.gz)?")
            names += [name for name in glob.glob(glob.escape(path) + "*") if beside.fullmatch(name)]
    for name in names:
        try:
            state = os.stat(name)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(name):
                odd[name] = f"{name} is a link to {os.readlink(name)}, and that is not there"
            continue
        except OSError as error:
            refused(error)
            continue
        if stat.S_ISREG(state.st_mode):
            found[name] = _Identity.from_stat(state)
        else:
            odd[name] = f"{name} is no file but {_kind(state.st_mode)}, and is not read"
    return found, odd, blind


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a directory" if stat.S_ISDIR(mode) else "a device"


def _is_shorter(opened: IO[bytes], count: int) -> bool:
    """Whether an open file has less than so many bytes."""
    opened.seek(max(count - 1, 0))
    return count > 0 and not opened.read(1)


def _has_lines(torn: bytes) -> bool:
    """Whether a line ends in what is no whole record; a carriage return at the end may be the half of a line end."""
    return b"\n" in torn or b"\r" in torn[:-1]


def _said(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error) or type(error).__name__


class _OtherFile(Exception):
    """A path holds another file than the one that was read there. what: of that one was not read, or ""."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class _Unfit(DataError):
    """A file has not the columns of the stream, or no header that can be read."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """How a file is seen to be unchanged without looking into it."""

    inode: tuple[int, int]
    size: int
    modified_ns: int

    @staticmethod
    def of(file: str | int) -> _Identity:
        """Of a path or an open file. Raises OSError."""
        return _Identity.from_stat(os.stat(file))

    @staticmethod
    def from_stat(state: os.stat_result) -> _Identity:
        return _Identity((state.st_dev, state.st_ino), state.st_size, state.st_mtime_ns)

    @property
    def stamp(self) -> tuple[int, int]:
        return self.size, self.modified_ns


class _File:
    """A file that a path means.

    partition: which one it is, None as long as that is not known; inode: where it was on the disk then. identity: as it
    was when it was last opened to be read. judged: as it was when nothing was found that is to be read of it; copy_of:
    because it has the content of that partition. was: what was not read of the file that was there before. weak:
    whether it was so short when it was recognised that it may yet become the copy of another. stuck: whether it could
    not be read as it is; stuck_s: since when.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.packed = path.endswith(".gz")
        self.partition: str | None = None
        self.ended = False
        self.identity: _Identity | None = None
        self.inode: tuple[int, int] | None = None
        self.judged: _Identity | None = None
        self.copy_of: str | None = None
        self.was = ""
        self.weak = self.stuck = False
        self.stuck_s = 0.0
        self.first_us: int | None = None
        self.newest_us: int | None = None
        self.read_s = 0.0

    def bytes(self) -> IO[bytes]:
        """What stands in it, unpacked. Raises OSError."""
        return gzip.open(self.path) if self.packed else open(self.path, "rb")  # type: ignore[return-value]

    def begin(self, partition: str, known: Known | None, position: int) -> None:
        """It is this partition, the records of which below `position` were taken."""
        self.partition = partition
        self.judged = self.copy_of = None
        if known is not None:
            self.first_us, self.newest_us = known.first_us, known.newest_us
            if known.stamp is not None and known.mark.records <= position:
                found = _Identity.of(self.path)
                if found.stamp == known.stamp:
                    self.identity, self.ended = found, True


class _Text(_File):
    """A CSV or NDJSON file."""

    def __init__(self, path: str, decoder: Decoder, settings: FileSettings, format: FileFormat) -> None:
        super().__init__(path)
        self._decoder = decoder
        self._settings = settings
        self._csv = format == "csv"
        self._header = int(self._csv and settings.header)
        self._wanted = 0  # records before it were taken
        self._resume: Known | None = None  # where reading begins, None for the start of the file
        self._next = 0  # number of the record that comes next
        self._at = 0  # bytes read
        self._done = 0  # of these, those of whole records
        self._rest = b""  # those behind them: a torn record
        self._long: bytes | None = None  # the beginning of a record that is too long, while its end is looked for
        self._passed = 0  # bytes of it that were read, of which
        self._passed_tail = b""  # these are the last
        self._head, self._head_max = b"", HEAD_BYTES
        self._tail = b""  # the last bytes of the whole records
        self._goal = -1  # how far this turn goes, -1 between turns
        self._file: Any = None
        self._fields: list[int | None] | None = None if settings.header else list(range(len(decoder.schema.fields)))
        self._width = len(decoder.schema.fields)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._goal = -1

    @property
    def started(self) -> bool:
        """Whether a record of it was read."""
        return self._next > self._header

    @property
    def at_end(self) -> bool:
        return self.identity is not None and self._goal < 0

    @property
    def unread(self) -> str:
        """What of it was not read, or ""."""
        if self._rest or self._long is not None:
            return "its last record was torn"
        return "" if self.at_end else "it was not read to its end"

    @property
    def waits(self) -> str | None:
        """What it waits for, other than to grow."""
        if self._long is None:
            if self._csv and self.at_end and _has_lines(self._rest):
                why = "is a quote of it not closed, or do lines end in carriage returns alone?"
                return f"{self.path}: record {self._next} has no end yet, and lines behind it wait: {why}"
            return None
        return f"{self.path}: the end of record {self._next}, which is longer than {_LIMIT}, is not there yet"

    def begin(self, partition: str, known: Known | None, position: int) -> None:
        super().begin(partition, known, position)
        self._wanted = position
        self._resume = known if known is not None and 0 < known.mark.records <= position else None

    def known(self) -> Known | None:
        """What is known of it; None before its first record."""
        if self.partition is None or not self.started:
            return None
        stamp = self.identity.stamp if self.packed and self.ended and self.identity is not None else None
        return self._fact(stamp)

    def _fact(self, stamp: tuple[int, int] | None = None) -> Known:
        mark = Mark(self._next, self._done, digest(self._tail))
        return Known(
            self.partition or "", self.path, len(self._head), digest(self._head), mark, self.first_us, self.newest_us,
            stamp,
        )  # fmt: skip

    def read(self) -> tuple[list[Piece | Bad] | None, bool]:
        """What the next block says, None where nothing is new; and whether this turn goes on."""
        if self._goal < 0 and not self._begin():
            return None, False
        data = self._file.read(BLOCK_BYTES if self.packed else min(BLOCK_BYTES, self._goal - self._at))
        self._at += len(data)
        over = not data if self.packed else self._at >= self._goal or not data
        final = over and (self.packed or not self._settings.follow)
        out = self._taken(data, final)
        if over:
            self._over(final)
        return out, not over

    def _begin(self) -> bool:
        """Opens the file for a turn, unless nothing is new in it. Raises _OtherFile where it is another one."""
        found = _Identity.of(self.path)
        if found == self.identity:
            return False
        self.close()
        self._file = self.bytes()
        if not self.packed:
            found = _Identity.of(self._file.fileno())
        if self._resume is not None:
            self._go_on(self._resume)
        elif not self._holds(self._file):
            raise _OtherFile(self.unread)
        self._file.seek(self._at)
        self.identity, self._goal = found, found.size
        return True

    def _holds(self, file: IO[bytes]) -> bool:
        """Whether what was read of it stands in a file, at the ends of what is kept of that."""
        if not self._fact().is_in(file):
            return False
        last = (self._rest if self._long is None else self._passed_tail)[-TAIL_BYTES:]
        file.seek(self._at - len(last))
        return file.read(len(last)) == last

    def _go_on(self, known: Known) -> None:
        """Begins at the mark of what is known of it."""
        if self._header:
            data = b""
            while not cut(data, self._settings.delimiter):
                block = self._file.read(1 << 16)
                if not block:
                    raise _OtherFile("")
                data = (data + block).removeprefix(_MARK)
                end = data.rfind(b"\n") + 1
                self._file.seek(end - len(data), os.SEEK_CUR)
                data = data[:end]
            self._read_header(data)
            self._head_max = HEAD_BYTES + data.find(b"\n") + 1
        self._file.seek(0)
        self._head = self._file.read(min(self._head_max, known.mark.bytes))
        count = min(TAIL_BYTES, known.mark.bytes)
        self._file.seek(known.mark.bytes - count)
        self._tail = self._file.read(count)
        self._next, self._done = known.mark.records, known.mark.bytes
        self._at, self._resume = self._done, None

    def _over(self, final: bool) -> None:
        self.close()
        self.ended = final
        known = self._next + (bool(self._rest) or self._long is not None)
        if known < self._wanted:
            raise DataError(
                f"{self.path} has {known} records, and {self._wanted} of it were read before",
                "it was cut or replaced; write new files under new names",
            )

    def _pass(self, data: bytes) -> None:
        """These bytes of whole records, or of the end of one, are done with."""
        self._done += len(data)
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if len(self._head) < self._head_max:
            self._head = (self._head + data)[: self._head_max]

    def _taken(self, data: bytes, final: bool) -> list[Piece | Bad]:
        """The whole records of the data, in which all that was not taken yet stands; the rest is kept."""
        data = self._rest + data
        self._rest = b""
        first, bad = self._next, list[Bad]()
        if self._long is not None:
            end = data.find(b"\n") + 1 or len(data)
            self._passed += end
            self._passed_tail = (self._passed_tail + data[:end])[-TAIL_BYTES:]
            if not data.endswith(b"\n", 0, end) and not final:
                return []
            data = data[end:]
            self._pass_long(bad)
        end = len(data) if final else data.rfind(b"\n") + 1
        lines, behind = data[:end], len(data) - end
        if self._done == 0:
            lines = lines.removeprefix(_MARK)
        if lines and not lines.endswith(b"\n"):
            lines += b"\n"
        rows, numbers, wrong, torn = self._of_csv(lines, final, behind) if self._csv else self._of_lines(lines)
        bad += wrong
        self._pass(data[: end - len(torn)])
        self._rest = data[end - len(torn) :]
        if len(self._rest) > RECORD_BYTES_MAX and not torn:
            self._long, self._passed, self._passed_tail = self._rest, len(self._rest), self._rest[-TAIL_BYTES:]
            self._long, self._rest = self._long[:HEAD_BYTES], b""
        if not final and (self._next == first or self._next <= self._wanted):
            return []
        bad.sort(key=_offset)
        assert self.partition is not None
        return [*bad, Piece(self.partition, rows, numbers, max(self._next, self._wanted), final)]

    def _pass_long(self, bad: list[Bad]) -> None:
        """The end of a record that is too long was found."""
        assert self._long is not None
        if self._next >= self._wanted:
            bad.append(self._too_long(self._next, self._long))
        if len(self._head) < self._head_max:
            self._head = (self._head + self._long)[: self._head_max]
            self._head_max = len(self._head)  # what follows is not known any more
        self._done += self._passed
        self._tail = self._passed_tail
        self._next += 1
        self._long, self._passed, self._passed_tail = None, 0, b""

    def _too_long(self, number: int, data: bytes) -> Bad:
        assert self.partition is not None
        return Bad(self.partition, number, data[:EXCERPT_BYTES], TOO_LONG)

    def _of_lines(self, data: bytes) -> tuple[pa.RecordBatch, Int64Array, list[Bad], bytes]:
        lines = data.split(b"\n")[:-1]
        first = self._next
        self._next += len(lines)
        assert self.partition is not None
        wanted = [i for i in range(max(self._wanted - first, 0), len(lines)) if lines[i] and not lines[i].isspace()]
        long = [i for i in wanted if len(lines[i]) > RECORD_BYTES_MAX] if len(data) > RECORD_BYTES_MAX else []
        bad = [self._too_long(first + i, lines[i]) for i in long]
        wanted = [i for i in wanted if i not in long]
        if len(wanted) < len(lines):
            lines = [lines[i] for i in wanted]
        rows, numbers, wrong = self._decoder.decode(self.partition, lines, np.array(wanted, np.int64) + first)
        return rows, numbers, bad + wrong, b""

    def _of_csv(self, data: bytes, final: bool, behind: int) -> tuple[pa.RecordBatch, Int64Array, list[Bad], bytes]:
        """behind: so many bytes of a line that has no end yet follow."""
        assert self.partition is not None
        if len(data) + behind > RECORD_BYTES_MAX:
            parts, torn = without_long(data, self._settings.delimiter, behind, final, RECORD_BYTES_MAX)
        else:
            end = len(data) if final else cut(data, self._settings.delimiter)
            parts, torn = [(data[:end], False)] if end else [], data[end:]
        found: list[tuple[pa.RecordBatch, Int64Array]] = []
        bad: list[Bad] = []
        for i, (part, long) in enumerate(parts):
            if self._next == 0 and self._settings.header:
                if long:
                    raise DataError(f"{self.path}: its header is longer than {_LIMIT}", "check the file")
                self._read_header(part)
                self._head_max = HEAD_BYTES + data.find(b"\n") + 1
            if not long:
                found.append(self._of_records(part, final and i == len(parts) - 1, bad))
                continue
            if self._next >= self._wanted:
                bad.append(self._too_long(self._next, part))
            self._next += 1
        rows = concat(self._decoder.schema, [rows for rows, _ in found])
        return rows, np.concatenate([np.zeros(0, np.int64), *(numbers for _, numbers in found)]), bad, torn

    def _of_records(self, data: bytes, last: bool, bad: list[Bad]) -> tuple[pa.RecordBatch, Int64Array]:
        """The rows of whole records, and their numbers; what is no row goes to `bad`. last: whether the file ends
        with them."""
        assert self.partition is not None
        assert self._fields is not None
        first, delimiter = self._next, self._settings.delimiter
        records = read_records(data, self._width, delimiter, self._settings.nulls, first, last)
        self._next += records.count
        fields, numbers = records.fields, records.numbers
        low = max(self._wanted, self._header)
        if first < low:
            keep = numbers >= low
            fields, numbers = fields.filter(pa.array(keep)), numbers[keep]
        for number, reason, text in records.broken:
            if number >= low:
                bad.append(Bad(self.partition, number, text.encode(errors="backslashreplace"), reason))
        columns = [None if at is None else column_of(fields, at) for at in self._fields]
        checked = texts_checked(self._decoder.schema, columns, len(numbers), self._decoder.rules)
        texts = texts_of(fields, [i for i, _ in checked.bad], delimiter)
        for (i, reason), text in zip(checked.bad, texts):
            bad.append(Bad(self.partition, int(numbers[i]), text.encode(errors="backslashreplace"), reason))
        return checked.rows, numbers[checked.indices]

    def _read_header(self, data: bytes) -> None:
        try:
            header = header_of(data, self._settings.delimiter)
        except DataError as error:
            raise _Unfit(f"{self.path}: {error.message}", error.hint) from None
        # Its width says how many fields a record has.
        self._width = len(header)
        try:
            self._fields = by_name([name.strip() for name in header], self._decoder.schema, self._decoder.rules)
        except DataError as error:
            hint = error.hint or f"it has {', '.join(header)}"
            hint += "; is the delimiter right, is there a header?"
            raise _Unfit(f"{self.path}: {error.message}", hint) from None


def _offset(bad: Bad) -> int:
    assert bad.offset is not None
    return bad.offset


class _Parquet(_File):
    """A Parquet file, taken when its footer is there."""

    waits = None

    def __init__(self, path: str, decoder: Decoder) -> None:
        super().__init__(path)
        self._decoder = decoder
        self._next = 0  # rows before it were taken
        self._file: pq.ParquetFile | None = None
        self._parts: Iterator[pa.RecordBatch] = iter(())
        self._first = 0  # number of the row that comes next
        self._content: Known | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def started(self) -> bool:
        return self._content is not None

    @property
    def at_end(self) -> bool:
        return self.ended

    @property
    def unread(self) -> str:
        return "it was not read to its end" if self._file is not None else ""

    def begin(self, partition: str, known: Known | None, position: int) -> None:
        super().begin(partition, known, position)
        self._next = position

    def known(self) -> Known | None:
        """What is known of it; None as long as it is not complete."""
        if self._content is None or self.partition is None:
            return None
        mark = replace(self._content.mark, records=self._next)
        return replace(
            self._content, partition=self.partition, mark=mark, first_us=self.first_us, newest_us=self.newest_us
        )

    def read(self) -> tuple[list[Piece | Bad] | None, bool]:
        """The next batch, and whether there may be more."""
        assert self.partition is not None
        if self._file is None:
            self._open()
            assert self._file is not None
        elif (found := _Identity.of(self.path)) != self.identity:
            with self.bytes() as file:
                if self._content is None or not self._content.is_in(file):
                    raise _OtherFile(self.unread)
            self.identity = found
        out: list[Piece | Bad] = []
        batch = next(self._parts, None)
        if batch is None:
            self.ended = True
            self.close()
            return [Piece(self.partition, self._decoder.nothing, np.zeros(0, np.int64), self._next, True)], False
        skip = min(max(self._next - self._first, 0), batch.num_rows)
        first = self._first + skip
        self._first += batch.num_rows
        if skip == batch.num_rows:
            return [], True
        try:
            checked, raws = self._decoder.of_arrow(pa.Table.from_batches([batch.slice(skip)]))
        except DataError as error:
            raise _Unfit(f"{self.path}: {error.message}", error.hint) from None
        for (i, reason), raw in zip(checked.bad, raws):
            out.append(Bad(self.partition, first + i, raw, reason))
        self._next = self._first
        return [*out, Piece(self.partition, checked.rows, checked.indices + first, self._next)], True

    def _open(self) -> None:
        self.identity = _Identity.of(self.path)
        self._file = pq.ParquetFile(self.path)
        self._parts, self._first = self._file.iter_batches(BATCH_ROWS), 0
        rows = self._file.metadata.num_rows
        if rows < self._next:
            raise DataError(
                f"{self.path} has {rows} rows, and {self._next} of it were read before",
                "it was replaced; write new files under new names",
            )
        with self.bytes() as file:
            head = file.read(HEAD_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            mark = Mark(0, size, digest(file.read()))
        self._content = Known("", self.path, len(head), digest(head), mark)
