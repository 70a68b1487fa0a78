"""Files as a source: one file, a directory or a glob, read once or followed as they grow.

A partition is a file. Its name is the absolute path at which it was first read, followed by #2, #3 if another file was
read there before. A position is the number of a record, from 0: a line of NDJSON, a record of CSV (a line, unless a
quoted value contains a line end), a row of Parquet. A CSV header and blank lines count.

A file is recognised by its bytes, not by its path: the first bytes and the last ones read (live.sources.known_files).
A renamed or moved file continues its partition. A copy of a file that still exists is not read. To resume from a
position, a file is read from the last known mark before it, or from its start, and earlier records are skipped.

Files are read in order of their paths, each up to its end at the start of its turn, so a growing file does not delay
others. CSV and NDJSON are read by whole records: a torn last line waits for its line end, unless the file is read once
or is compressed. Parquet and compressed files are read when they are complete.

Content that was read must stay. A path whose content was replaced, and is not found under another path, raises a
DataError, as record numbers would mean other records; with followed rotation it becomes the next partition. A change in
place between the first and the last bytes is not detected.
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

#: Block size in bytes for CSV and NDJSON; a longer record takes several blocks.
BLOCK_BYTES = 1 << 20
#: Rows of one batch of Parquet.
BATCH_ROWS = 1 << 14
_LIMIT = f"{RECORD_BYTES_MAX >> 20} MB"
#: Seconds between two looks at the directory.
LOOK_S = 0.05
#: Seconds that a poll without a wait may read on until it has a whole record.
READ_S = 0.2
#: Limits of one turn, so that small files are returned together: files and rows.
FILES_TOGETHER, ROWS_TOGETHER = 64, 1000
#: Seconds without growth after which a file may be over: if its last event is known, and if not. Files after an
#: incomplete Parquet file wait for it for the longer one.
QUIET_S, LONG_QUIET_S = 1.0, 60.0
#: Seconds for which the unread rest of a removed file is reported.
TOLD_S = 600.0
#: Number of faults that are reported one by one.
TROUBLES_MAX = 10
#: Marks of a file kept in memory, for rows that were returned and may not be archived yet.
MARKS_MAX = 64
_MARK = b"\xef\xbb\xbf"

_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileSettings:
    """Which files are read, and how.

    path: a file, a directory (all files below it) or a glob; below directories, names that begin with a dot or an
    underscore are ignored.
    format: None: by suffix, .csv .ndjson .jsonl .json .parquet .pq, each optionally with .gz; other files are ignored.
    follow: True: waits for new records and new files; False: reads everything once. A .gz file is read when it is
    complete; it cannot be followed alone.
    rotation: the meaning of new content at a path whose earlier content is nowhere to be found: "error", or "follow":
    a new file. With "follow", app.log.1 and app.log-20240301.gz belong to app.log and are read before it.
    times, missing, finer: see Decoding. delimiter, header, nulls: of CSV. Without a header the fields are the declared
    columns in order. An unquoted field that equals one of `nulls` is null.
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
    """Reads events from files. Resumes from positions.

    memory: the file that stores facts about the files read (live.sources.known_files); keep it as long as the archive
    that holds the positions. None: facts live as long as this object, and older files are recognised by path only.
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
        self._readers: dict[str, _Text | _Parquet] = {}  # the files being read, by partition
        self._inodes: dict[tuple[int, int], _Text | _Parquet] = {}  # the same, by (device, inode)
        self._enrolled: set[str] = set()  # partitions whose file identity is durable
        self._marks: dict[str, deque[Known]] = {}  # marks of rows returned and maybe not archived yet, by partition
        self._turns: deque[str] = deque()  # paths to read in this round
        self._waits: dict[str, str] = {}  # reason why a file is not read now, by path
        self._odd: dict[str, str] = {}  # the same for paths that cannot be read as files
        self._there: dict[str, _Identity] = {}  # the files found by the last look
        self._blind = False  # whether some directory or file could not be listed
        self._judged_s = -LOOK_S  # monotonic time of the last check for files that are over
        self._gone: dict[str, float] = {}  # monotonic time at which a file was found removed, by partition
        self._torn: dict[str, tuple[float, str]] = {}  # monotonic time, and report of the unread rest, by partition
        self._holding: set[str] = set()  # the partitions that hold the watermark
        self._newest: tuple[int, str] | None = None  # first event time and name of the partition that began last
        self._elsewhere: dict[tuple[int, int], str] = {}  # partitions known by path only, by inode
        self._lost: list[str] = []  # partitions read before, without known facts and without a file at their path
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
            hint = "give one character other than a quote or a line end"
            raise DataError(f"invalid delimiter {self._settings.delimiter!r}", hint)
        self._known.read()
        self._positions = dict(positions)
        for known in self._known:
            self._enrolled.add(known.partition)
            if known.partition in positions:
                self._holding.add(known.partition)
                self._began(known)
        for name in positions.keys() - self._enrolled:
            # Read by a release that stored no facts, or by a source of another name: recognised by its path.
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
            hint = "check the path; set the format if the suffix does not show it"
            raise DataError(f"no file to read in {self._path}", hint)

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
                    # With very many files a look is slow: spend at most a tenth of the time on it.
                    time.sleep(min(until - now, max(LOOK_S, 9 * (now - began))))
        except DataError as error:
            self._failed = error
            raise

    def kept(self, positions: Mapping[str, int]) -> None:
        """Stores the last mark of each file whose records are all archived."""
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
        """Returns the current faults, the first TROUBLES_MAX of them and the number of the others, or None."""
        found = self._troubles()
        more = f" (and {len(found) - TROUBLES_MAX} more)" if len(found) > TROUBLES_MAX else ""
        return "; ".join(found[:TROUBLES_MAX]) + more if found else None

    def _troubles(self) -> list[str]:
        found = [] if self._unwritten is None else [self._unwritten]
        found += self._odd.values()
        if not self._files and not found and self._settings.follow:
            gone = any(known.path == self._path for known in self._known)
            return [f"{self._path} was removed" if gone else f"no file to read in {self._path} yet"]
        now_s = time.monotonic()
        self._torn = {name: told for name, told in self._torn.items() if now_s - told[0] < TOLD_S}
        return [*found, *self._waits.values(), *(what for _, what in self._torn.values())]

    def path_of(self, partition: str) -> str | None:
        """Returns the current path of a partition's file, or None. Thread safe."""
        file = self._readers.get(partition)
        return None if file is None else file.path

    def partition_at(self, path: str) -> str | None:
        """Returns the partition of the file at a path, in any spelling, or None if it is not read. Thread safe."""
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
        """Reads until there is something to return. Returns it, and whether more can be read at once if it is empty.
        Small files are read together, so that their facts are stored by one write."""
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
                    break  # the files after it in order wait with it
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
                self._failed = error  # raised by the next call: earlier rows are returned first
                break
            if self._is_awaited(file):
                self._turns.clear()
                break
            if not more and self._turns:
                self._turns.popleft()
            if not found and not more and file.partition is not None and file.partition not in self._enrolled:
                fresh += self._taken(file, [])  # an older release read it, and stored no facts
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
            # The identity of these files could not be stored: nothing is returned, and they are read again.
            for known in fresh:
                self._enrolled.discard(known.partition)
            before = list(self._files)
            for partition in {item.source for item in out}:
                self._forget(partition)
            if not self._settings.follow:  # otherwise the next look finds them
                self._files = {p: file for p in before if (file := self._files.get(p) or self._new(p)) is not None}
            return [], False
        for item in out:
            if isinstance(item, Piece) and item.next is not None:
                self._positions[item.source] = max(item.next, self._positions.get(item.source, 0))
        return out, bool(out) or moved

    def _read(self, file: _Text | _Parquet) -> tuple[list[Piece | Bad] | None, bool]:
        """Reads the next block of a file. Returns its items, None if there is nothing new, and whether the turn of the
        file continues."""
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
                file.identity = None  # a fault of the system, not of the content: read again though unchanged
            self._waits[file.path] = f"{file.path} cannot be read yet: {_said(error)}"
            return None, False
        except _Unfit as error:
            if not self._settings.follow or file.path == self._path:
                raise
            # A file that does not fit does not stop the others. It is read again when it has changed.
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
        """Records the items read from a file. Returns the facts to store before these items may be returned."""
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
        # A stored mark is never ahead of the archive.
        return [replace(known, mark=Mark(), stamp=None)]

    def _write(self, some: list[Known]) -> bool:
        try:
            self._known.write(some)
        except OSError as error:
            self._unwritten = f"facts about files cannot be stored: {_said(error)}"
            return False
        if some:
            self._unwritten = None
        return True

    # ---- identity of files

    @staticmethod
    def _is_awaited(file: _Text | _Parquet) -> bool:
        """True if later files wait for this incomplete Parquet file. Limited in time, so that a damaged file does not
        stop the others."""
        return (
            isinstance(file, _Parquet)
            and file.stuck
            and file.partition is not None
            and time.monotonic() - file.stuck_s < LONG_QUIET_S
        )

    def _stirs(self, file: _Text | _Parquet) -> bool:
        """True if a file may have something to read."""
        if file.ended:
            return False
        found = self._there.get(file.path)
        if file.partition is None:
            return file.judged != found or (file.copy_of is not None and file.copy_of not in self._readers)
        return file.identity != found or not (file.at_end or file.stuck)

    def _look(self) -> dict[str, _Identity]:
        """Finds new and removed files. Returns the files that exist, by path."""
        there, self._odd, self._blind = _listed(self._path, self._settings.rotation == "follow")
        for path in [p for p in self._odd if not self._blind and p != self._path and self._format(p) is None]:
            del self._odd[path]
        for path in [path for path in self._files if path not in there]:
            file = self._files[path]
            if file.partition is not None:
                self._gone[file.partition] = time.monotonic()
                if file.unread:
                    self._torn[file.partition] = time.monotonic(), f"{path} was removed, and {file.unread}"
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
        """Returns a file that is not identified yet, or None if it is not one to read."""
        packed = path.endswith(".gz")
        format = self._format(path)
        if format is None:
            if path == self._path:
                raise DataError(f"{path}: unknown suffix", "set the format")
            return None
        if packed and (format == "parquet" or (self._settings.follow and path == self._path)):
            hint = "Parquet is compressed inside" if format == "parquet" else "unpack it, or set follow to false"
            if path == self._path or not self._settings.follow:
                raise DataError(f"{path} cannot be followed, as it is compressed", hint)
            self._odd[path] = f"{path} is not read, as it is compressed ({hint})"
            return None
        if format == "parquet":
            return _Parquet(path, self._decoder)
        return _Text(path, self._decoder, self._settings, format)

    def _format(self, path: str) -> FileFormat | None:
        return _format_at(path, self._settings)

    def _drop(self, file: _Text | _Parquet) -> None:
        """Closes a file and forgets its reader; the facts about it stay."""
        file.close()
        if file.inode is not None and self._inodes.get(file.inode) is file:
            del self._inodes[file.inode]
        if self._files.get(file.path) is file:
            del self._files[file.path]
        if file.partition is not None and self._readers.get(file.partition) is file:
            del self._readers[file.partition]

    def _forget(self, partition: str) -> None:
        """Drops the reader of a partition, so that its file is read again from the last returned position."""
        file = self._readers.get(partition)
        self._marks.pop(partition, None)
        if file is not None:
            self._drop(file)

    def _identify(self, file: _Text | _Parquet) -> bool:
        """Finds the partition of a file. Returns whether it is to be read. Raises OSError, EOFError or zlib.error if it
        cannot be read."""
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
        # Facts of partitions without archived rows are ignored: of another database, or to be read again from here.
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
            many = "" if len(self._lost) == 1 else f" or another of {len(self._lost):,} removed files"
            self._torn[name] = time.monotonic(), (
                f"{file.path} is read as a new file, because the facts about files ({self._known.path}) were removed: "
                f"if it is {self._lost[0]}{many}, its events are archived twice"
            )
        return True

    def _is_copy(self, file: _Text | _Parquet, found: _Identity, known: Known, what: str) -> None:
        file.judged, file.copy_of = found, known.partition
        file.ended = not self._settings.follow
        self._waits[file.path] = f"{file.path} {what} and is not read: its events would be read twice"

    def _reader_of(self, partition: str) -> _Text | _Parquet | None:
        """Returns the file that a partition is read from, or None if it was removed or replaced."""
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
        """Handles other content at the path of a partition: finds its file under another name; else raises DataError,
        or, with followed rotation, ends the partition."""
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
                message = f"{file.path} was truncated to {found.size} bytes after {size} bytes were read"
            else:
                message = f"{file.path} was replaced or rewritten"
            hint = 'restore it, and write new files under new names; or set rotation = "follow" to read it as a new one'
            raise DataError(message, f"its record numbers would mean other records: {hint}")
        rest = file.was or "later records, if any, were not read"
        what = f"the earlier file is not found: {known.mark.records} of its records were read; {rest}"
        self._torn[known.partition] = time.monotonic(), f"{file.path} was replaced, and {what}"
        self._known.put(replace(known, path=""))
        self._write([replace(known, path="")])
        self._gone.setdefault(known.partition, 0.0)

    def _name(self, file: _Text | _Parquet, found: _Identity) -> str:
        """Returns the partition name of a file whose content is not known."""
        old = file.path if file.path in self._positions else self._elsewhere.get(found.inode)
        if old is not None and old not in self._readers and self._known.get(old) is None:
            return old  # an older release read it, and stored no facts
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

    # ---- partitions that hold the watermark

    def _began(self, known: Known) -> None:
        if known.first_us is not None and (self._newest is None or known.first_us > self._newest[0]):
            self._newest = known.first_us, known.partition

    def _over(self) -> list[Piece | Bad]:
        """Returns a last piece for each file that seems over: a removed file, or one that was read to its end, has not
        grown since, and is followed by a file that begins at its last event time. A later event of it counts again."""
        now_s, out = time.monotonic(), list[Piece | Bad]()
        unsure = self._blind or any(f.partition is None and f.judged is None for f in self._files.values())
        for partition in sorted(self._holding):
            file = self._readers.get(partition)
            if file is None:
                if unsure:
                    continue  # its file may be one of those not identified
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
        if file.newest_us is None or file.first_us is None:  # an older release read it, and stored no times
            return quiet_s >= LONG_QUIET_S
        # Files that grow in parallel begin together; a file that follows another may begin a little before its end.
        overlap_us = min(self._schema.lateness_us, (file.newest_us - file.first_us) // 2)
        begun_us = self._newest[0]
        return quiet_s >= QUIET_S and begun_us >= file.newest_us - overlap_us and begun_us > file.first_us


_ROTATED = re.compile(r"(?<=.)[.-]\d[\dT_:.Z-]*$")


def _base(name: str) -> str:
    """Returns the path without the suffix of rotation: .1, .12, -20240301."""
    folder, name = os.path.split(name)
    return os.path.join(folder, _ROTATED.sub("", name))


def _order(there: Mapping[str, _Identity], rotated: bool) -> list[str]:
    """Returns the paths in reading order: by name. With followed rotation, rotated files precede the current one, the
    oldest first, by counter or date."""
    if not rotated:
        return sorted(there)

    def place(path: str) -> tuple[str, bool, list[int], int, str]:
        name = path.removesuffix(".gz")
        base = _base(name)
        return base, base == name, _age(name[len(base) :]), there[path].modified_ns, path

    return sorted(there, key=place)


def _age(behind: str) -> list[int]:
    """Returns the sort key of a rotation suffix, from old to new: a counter, of which 1 is the newest, or the digits of
    a date. Names are compared rather than modification times, which a copy or a packer may change."""
    numbers = [int(digits) for digits in re.findall(r"\d+", behind)]
    return [-numbers[0]] if len(numbers) == 1 and numbers[0] < 10_000_000 else numbers


def _covers(path: str, name: str) -> bool:
    """True if `name`, which does not exist, would belong to `path`."""
    return name.startswith(path + os.sep) or name == path or (glob.has_magic(path) and fnmatch.fnmatch(name, path))


def _format_at(path: str, settings: FileSettings) -> FileFormat | None:
    """Returns the format of a file by its path, or None if it is not read."""
    name = path.removesuffix(".gz")
    if settings.rotation == "follow":
        name = _base(name)
    return settings.format or _SUFFIXES.get(os.path.splitext(name.lower())[1])


def read_by_both(one: FileSettings, other: FileSettings) -> str | None:
    """Returns a path that both sources read, in any spelling, existing or not, or None."""
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
    """True if the settings cover a path, whether or not the file exists."""
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
    """Returns the existing files of a path; the reason, by path, why others cannot be read; and whether some could not
    be listed. rotated: rotated predecessors of a single file belong to it."""
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
                odd[name] = f"{name} is a link to {os.readlink(name)}, which does not exist"
            continue
        except OSError as error:
            refused(error)
            continue
        if stat.S_ISREG(state.st_mode):
            found[name] = _Identity.from_stat(state)
        else:
            odd[name] = f"{name} is {_kind(state.st_mode)}, not a file, and is not read"
    return found, odd, blind


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a directory" if stat.S_ISDIR(mode) else "a device"


def _is_shorter(opened: IO[bytes], count: int) -> bool:
    """True if an open file has fewer than `count` bytes."""
    opened.seek(max(count - 1, 0))
    return count > 0 and not opened.read(1)


def _has_lines(torn: bytes) -> bool:
    """True if a torn record contains a line end. A final carriage return may be half of one and does not count."""
    return b"\n" in torn or b"\r" in torn[:-1]


def _said(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error) or type(error).__name__


class _OtherFile(Exception):
    """The path has another file than the one that was read. what: the unread rest of the earlier file, or ""."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class _Unfit(DataError):
    """A file lacks columns of the stream, or a readable header."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """Inode, size and modification time of a file: unchanged if all are equal."""

    inode: tuple[int, int]
    size: int
    modified_ns: int

    @staticmethod
    def of(file: str | int) -> _Identity:
        """Returns the identity of a path or an open file. Raises OSError."""
        return _Identity.from_stat(os.stat(file))

    @staticmethod
    def from_stat(state: os.stat_result) -> _Identity:
        return _Identity((state.st_dev, state.st_ino), state.st_size, state.st_mtime_ns)

    @property
    def stamp(self) -> tuple[int, int]:
        return self.size, self.modified_ns


class _File:
    """One file of a source.

    partition: its name, None until the file is identified; inode: its inode at that time. identity: its state when it
    was last opened for reading. judged: its state when it was found to have nothing to read; copy_of: the partition of
    the same content, if that was the reason. was: the unread rest of the earlier file at this path. weak: the file was
    identified by less than HEAD_BYTES, so it may still turn out to be a copy. stuck: it could not be read in its
    present state; stuck_s: since when, monotonic.
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
        """Opens its content, unpacked. Raises OSError."""
        return gzip.open(self.path) if self.packed else open(self.path, "rb")  # type: ignore[return-value]

    def begin(self, partition: str, known: Known | None, position: int) -> None:
        """Assigns the partition; its records below `position` were read before."""
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
        self._wanted = 0  # number of the first record not read before
        self._resume: Known | None = None  # the mark to read from, None for the start of the file
        self._next = 0  # number of the next record
        self._at = 0  # bytes read
        self._done = 0  # bytes of whole records among them
        self._rest = b""  # the bytes after them: a torn record
        self._long: bytes | None = None  # the beginning of a record that is too long, until its end is found
        self._passed = 0  # bytes of that record that were read
        self._passed_tail = b""  # the last of these bytes
        self._head, self._head_max = b"", HEAD_BYTES
        self._tail = b""  # the last bytes of the whole records
        self._goal = -1  # byte at which this turn ends, -1 between turns
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
        """True after its first record."""
        return self._next > self._header

    @property
    def at_end(self) -> bool:
        return self.identity is not None and self._goal < 0

    @property
    def unread(self) -> str:
        """Report of its unread rest, or ""."""
        if self._rest or self._long is not None:
            return "its last record was torn"
        return "" if self.at_end else "it was not read to its end"

    @property
    def waits(self) -> str | None:
        """The fault that stops it, other than a missing line end of its last record, or None."""
        if self._long is None:
            if self._csv and self.at_end and _has_lines(self._rest):
                why = "is a quote not closed, or do lines end with a carriage return only?"
                return f"{self.path}: record {self._next} has no end yet, and later lines wait: {why}"
            return None
        return f"{self.path}: record {self._next} is longer than {_LIMIT} and has no end yet"

    def begin(self, partition: str, known: Known | None, position: int) -> None:
        super().begin(partition, known, position)
        self._wanted = position
        self._resume = known if known is not None and 0 < known.mark.records <= position else None

    def known(self) -> Known | None:
        """Returns the facts about it; None before its first record."""
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
        """Reads the next block. Returns its items, None if there is nothing new, and whether this turn continues."""
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
        """Opens the file for a turn. Returns False if it is unchanged. Raises _OtherFile if it is another file."""
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
        """True if an open file contains the bytes that were read, as far as its head and tail show."""
        if not self._fact().is_in(file):
            return False
        last = (self._rest if self._long is None else self._passed_tail)[-TAIL_BYTES:]
        file.seek(self._at - len(last))
        return file.read(len(last)) == last

    def _go_on(self, known: Known) -> None:
        """Resumes at the mark of `known`."""
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
                f"{self.path} has {known} records, but {self._wanted} were read before",
                "it was truncated or replaced; write new files under new names",
            )

    def _pass(self, data: bytes) -> None:
        """Counts bytes of whole records, or of the end of one, as read."""
        self._done += len(data)
        self._tail = (self._tail + data[-TAIL_BYTES:])[-TAIL_BYTES:]
        if len(self._head) < self._head_max:
            self._head = (self._head + data)[: self._head_max]

    def _taken(self, data: bytes, final: bool) -> list[Piece | Bad]:
        """Returns the whole records of the pending rest and the data; keeps the new rest. final: the file ends here."""
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
        """Goes past a record that is too long, after its end was found."""
        assert self._long is not None
        if self._next >= self._wanted:
            bad.append(self._too_long(self._next, self._long))
        if len(self._head) < self._head_max:
            self._head = (self._head + self._long)[: self._head_max]
            self._head_max = len(self._head)  # the bytes after it were dropped
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
        """Returns the rows, their numbers, the bad records and the torn rest. behind: number of bytes after `data`, of
        a line without an end."""
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
                    raise DataError(f"{self.path}: the header is longer than {_LIMIT}", "check the file")
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
        """Returns the rows of whole records, and their numbers; appends bad records to `bad`. last: the file ends with
        them."""
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
        # A record has as many fields as the header.
        self._width = len(header)
        try:
            self._fields = by_name([name.strip() for name in header], self._decoder.schema, self._decoder.rules)
        except DataError as error:
            hint = error.hint or f"it has {', '.join(header)}"
            hint += "; check the delimiter, and whether the file has a header"
            raise _Unfit(f"{self.path}: {error.message}", hint) from None


def _offset(bad: Bad) -> int:
    assert bad.offset is not None
    return bad.offset


class _Parquet(_File):
    """A Parquet file, read when its footer is written."""

    waits = None

    def __init__(self, path: str, decoder: Decoder) -> None:
        super().__init__(path)
        self._decoder = decoder
        self._next = 0  # number of the first row not read before
        self._file: pq.ParquetFile | None = None
        self._parts: Iterator[pa.RecordBatch] = iter(())
        self._first = 0  # number of the first row of the next batch
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
        """Returns the facts about it; None until it is complete."""
        if self._content is None or self.partition is None:
            return None
        mark = replace(self._content.mark, records=self._next)
        return replace(
            self._content, partition=self.partition, mark=mark, first_us=self.first_us, newest_us=self.newest_us
        )

    def read(self) -> tuple[list[Piece | Bad] | None, bool]:
        """Reads the next batch. Returns its items, and whether there may be more."""
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
                f"{self.path} has {rows} rows, but {self._next} were read before",
                "it was replaced; write new files under new names",
            )
        with self.bytes() as file:
            head = file.read(HEAD_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            mark = Mark(0, size, digest(file.read()))
        self._content = Known("", self.path, len(head), digest(head), mark)
