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

import itertools
import os
import time
import zlib
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from live.sources.base import Bad, Piece
from live.sources.decode import Decoder, Decoding
from live.sources.file_readers import OtherFile, ParquetFile, TextFile, Unfit, is_shorter
from live.sources.known_files import HEAD_BYTES, Known, KnownFiles, Mark
from live.sources.listing import (
    FileFormat,
    FileSettings,
    Identity,
    absolute,
    covers,
    format_at,
    listed,
    reading_order,
    reason_of,
)
from query.errors import DataError
from query.schema import Schema

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


class FileSource:
    """Reads events from files. Resumes from positions.

    memory: the file that stores facts about the files read (live.sources.known_files); keep it as long as the archive
    that holds the positions. None: facts live as long as this object, and older files are recognised by path only.
    """

    def __init__(self, schema: Schema, settings: FileSettings, memory: Path | None = None) -> None:
        self._settings = settings
        self._path = absolute(settings.path)
        self._schema = schema
        self._decoder = Decoder(schema, Decoding("json", settings.times, settings.missing, finer=settings.finer))
        self._positions: dict[str, int] = {}
        self._known = KnownFiles(memory)
        self._files: dict[str, TextFile | ParquetFile] = {}  # by path
        self._readers: dict[str, TextFile | ParquetFile] = {}  # the files being read, by partition
        self._inodes: dict[tuple[int, int], TextFile | ParquetFile] = {}  # the same, by (device, inode)
        self._enrolled: set[str] = set()  # partitions whose file identity is durable
        self._marks: dict[str, deque[Known]] = {}  # marks of rows returned and maybe not archived yet, by partition
        self._turns: deque[str] = deque()  # paths to read in this round
        self._waits: dict[str, str] = {}  # reason why a file is not read now, by path
        self._odd: dict[str, str] = {}  # the same for paths that cannot be read as files
        self._there: dict[str, Identity] = {}  # the files found by the last look
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
                self._elsewhere[Identity.of(name).inode] = name
            except OSError:
                if self._known.path is not None and not self._known.found:
                    self._lost.append(name)
                if covers(self._path, name):
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
            file = self._inodes.get(Identity.of(path).inode)
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

    def _read(self, file: TextFile | ParquetFile) -> tuple[list[Piece | Bad] | None, bool]:
        """Reads the next block of a file. Returns its items, None if there is nothing new, and whether the turn of the
        file continues."""
        try:
            if file.partition is not None and file.weak and not file.started:
                del self._readers[file.partition]
                file.partition = None
            if file.partition is None and not self._identify(file):
                return None, False
            out, more = ([], False) if file.ended else file.read()
        except OtherFile as other:
            self._drop(file)
            anew = self._new(file.path)
            if anew is not None:
                anew.was = other.what
                self._files[file.path] = anew
            return None, anew is not None
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            file.close()
            if not self._settings.follow:
                raise DataError(f"{file.path} cannot be read: {reason_of(error)}", "is it complete?") from error
            of_system = isinstance(error, OSError) and error.errno is not None
            if not (of_system and file.stuck):
                file.stuck_s = time.monotonic()
            file.stuck = True
            if of_system:
                file.identity = None  # a fault of the system, not of the content: read again though unchanged
            self._waits[file.path] = f"{file.path} cannot be read yet: {reason_of(error)}"
            return None, False
        except Unfit as error:
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

    def _taken(self, file: TextFile | ParquetFile, out: list[Piece | Bad]) -> list[Known]:
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
            self._unwritten = f"facts about files cannot be stored: {reason_of(error)}"
            return False
        if some:
            self._unwritten = None
        return True

    # ---- identity of files

    @staticmethod
    def _is_awaited(file: TextFile | ParquetFile) -> bool:
        """True if later files wait for this incomplete Parquet file. Limited in time, so that a damaged file does not
        stop the others."""
        return (
            isinstance(file, ParquetFile)
            and file.stuck
            and file.partition is not None
            and time.monotonic() - file.stuck_s < LONG_QUIET_S
        )

    def _stirs(self, file: TextFile | ParquetFile) -> bool:
        """True if a file may have something to read."""
        if file.ended:
            return False
        found = self._there.get(file.path)
        if file.partition is None:
            return file.judged != found or (file.copy_of is not None and file.copy_of not in self._readers)
        return file.identity != found or not (file.at_end or file.stuck)

    def _look(self) -> dict[str, Identity]:
        """Finds new and removed files. Returns the files that exist, by path."""
        there, self._odd, self._blind = listed(self._path, self._settings.rotation == "follow")
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
        known, order = self._files, reading_order(there, self._settings.rotation == "follow")
        self._files = {}
        for path in order:
            before = known.get(path)
            if before is not None and before.ended and before.partition is not None and before.identity != there[path]:
                self._drop(before)
                before = None
            if (next_file := before or self._new(path)) is not None:
                self._files[path] = next_file
        return there

    def _new(self, path: str) -> TextFile | ParquetFile | None:
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
            return ParquetFile(path, self._decoder)
        return TextFile(path, self._decoder, self._settings, format)

    def _format(self, path: str) -> FileFormat | None:
        return format_at(path, self._settings)

    def _drop(self, file: TextFile | ParquetFile) -> None:
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

    def _identify(self, file: TextFile | ParquetFile) -> bool:
        """Finds the partition of a file. Returns whether it is to be read. Raises OSError, EOFError or zlib.error if it
        cannot be read."""
        found = Identity.of(file.path)
        if file.judged == found and (file.copy_of is None or file.copy_of in self._readers):
            return False
        with file.bytes() as opened:
            head = opened.read(max(self._known.head_bytes_max, HEAD_BYTES))
            if not head and self._settings.follow:
                file.judged = found  # it is empty so far
                return False
            alike = self._known.alike(head)
            same = [k for k in alike if (file.packed and k.stamp == found.stamp) or k.is_in(opened)]
            shorter = [k for k in alike if k not in same and is_shorter(opened, k.mark.bytes)]
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

    def _is_copy(self, file: TextFile | ParquetFile, found: Identity, known: Known, what: str) -> None:
        file.judged, file.copy_of = found, known.partition
        file.ended = not self._settings.follow
        self._waits[file.path] = f"{file.path} {what} and is not read: its events would be read twice"

    def _reader_of(self, partition: str) -> TextFile | ParquetFile | None:
        """Returns the file that a partition is read from, or None if it was removed or replaced."""
        file = self._readers.get(partition)
        if file is None:
            return None
        known = self._known.get(partition)
        try:
            if known is None or file.identity == Identity.of(file.path):
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

    def _replaced(self, file: TextFile | ParquetFile, found: Identity, known: Known) -> None:
        """Handles other content at the path of a partition: finds its file under another name; else raises DataError,
        or, with followed rotation, ends the partition."""
        there, _, _ = listed(self._path, self._settings.rotation == "follow")
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
            if isinstance(file, TextFile) and not file.packed and found.size < size:
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

    def _name(self, file: TextFile | ParquetFile, found: Identity) -> str:
        """Returns the partition name of a file whose content is not known."""
        old = file.path if file.path in self._positions else self._elsewhere.get(found.inode)
        if old is not None and old not in self._readers and self._known.get(old) is None:
            return old  # an older release read it, and stored no facts
        names = itertools.chain([file.path], (f"{file.path}#{number}" for number in itertools.count(2)))
        taken = self._positions.keys() | self._readers.keys()
        return next(name for name in names if name not in taken and self._known.get(name) is None)

    def _begin(self, file: TextFile | ParquetFile, partition: str, known: Known | None) -> None:
        file.inode = Identity.of(file.path).inode
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

    def _is_over(self, file: TextFile | ParquetFile, partition: str) -> bool:
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
