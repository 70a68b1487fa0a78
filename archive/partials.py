"""Partial matches on disk: an append-only log of records, in segments. A matching.spill.SpillStore.

A segment is MAGIC, then frames (matching.records.frame): a word with length and checksum, and the record. The caller of
`put` keeps the places, so there is no index here, only the number of live bytes per segment. Records are never
overwritten: a record that was read back is still there for a restart from an older checkpoint.

Segments in a manifest are kept until two later manifests are durable (`kept`); segments found at the start of a process
until the next one is. A process writes only into its own segments, so an end torn by a crash is never read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from archive.place import Place, open_private
from matching.batch import Int64Array
from matching.records import WORD, frame, unframe
from query.errors import DataError

#: Directory of the segments, in the directory of a database.
PARTIALS = "_partials"
MAGIC = b"hybrid partials\n"
SUFFIX = ".partials"
#: Size at which a segment is closed.
SEGMENT_BYTES = 1 << 26
#: Records with smaller gaps are read together.
GAP_BYTES = 1 << 12
#: A segment with a smaller share of live bytes is worn.
WORN = 0.25
#: A place is (segment << SHIFT) + the position of its frame in bytes.
SHIFT = 40


class PartialStore:
    """The records of one database, in one directory on disk. Not thread safe; one process at a time."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Reads and writes nothing until first use."""
        self._directory = Path(directory)
        self._files: dict[int, int] = {}  # descriptors
        self._sizes: dict[int, int] = {}
        self._live: dict[int, int] = {}
        self._active = -1  # the segment that is written, -1 none
        self._next: int | None = None
        self._unforced: set[int] = set()
        self._current: frozenset[int] = frozenset()  # segments of the last manifest
        self._named: list[frozenset[int]] = []  # segments of earlier manifests that are to be kept
        self._restored: bytes | None = None
        self._anew = False

    # ---- records

    def put(self, bounds: Int64Array, data: np.ndarray) -> Int64Array:
        """See matching.spill.SpillStore. Writes all records at once."""
        places, framed = frame(bounds, data)
        segment = self._writable()
        begin = self._sizes[segment]
        try:
            write_all(self._files[segment], framed)
        except OSError:
            self._give_up(segment)
            raise
        self._sizes[segment] = begin + len(framed)
        self._live[segment] += len(framed)
        self._unforced.add(segment)
        if self._sizes[segment] >= SEGMENT_BYTES:
            self._active = -1
        return (segment << SHIFT) + begin + places

    def read(self, places: Int64Array, lengths: Int64Array) -> tuple[Int64Array, np.ndarray]:
        """See matching.spill.SpillStore. Reads in disk order, neighbouring records together."""
        order = np.argsort(places, kind="stable")
        segment, at = places[order] >> SHIFT, places[order] & ((1 << SHIFT) - 1)
        end = at + WORD + lengths[order]
        apart = (segment[1:] != segment[:-1]) | (at[1:] - end[:-1] > GAP_BYTES)
        first = np.concatenate([[0], np.flatnonzero(apart) + 1]) if len(places) else np.zeros(0, np.int64)
        last = np.concatenate([first[1:], [len(places)]]) - 1 if len(places) else first
        sizes = end[last] - at[first]
        base = np.cumsum(sizes) - sizes
        framed = np.empty(int(sizes.sum()), np.uint8)
        view = memoryview(framed.data)
        for number, begin, low, size in zip(
            segment[first].tolist(), at[first].tolist(), base.tolist(), sizes.tolist(), strict=True
        ):
            self._read_into(number, begin, view[low : low + size])
        run = np.repeat(np.arange(len(first)), last - first + 1)
        found = np.empty(len(places), np.int64)
        found[order] = base[run] + at - at[first][run]
        bounds, data, bad = unframe(framed, found, lengths)
        if bad >= 0:
            raise self._spoilt(int(places[bad]) >> SHIFT)
        return bounds, data

    def drop(self, places: Int64Array, lengths: Int64Array) -> None:
        """See matching.spill.SpillStore."""
        self._count(places, lengths, -1)
        self._remove_dead()

    def adopt(self, places: Int64Array, lengths: Int64Array) -> None:
        """See matching.spill.SpillStore."""
        self._count(places, lengths, 1)

    @property
    def wears(self) -> bool:
        """See matching.spill.SpillStore."""
        return bool(self._worn())

    def worn(self, places: Int64Array) -> np.ndarray:
        """See matching.spill.SpillStore."""
        return np.isin(places >> SHIFT, self._worn())

    def _worn(self) -> list[int]:
        return [n for n, live in self._live.items() if n != self._active and 0 < live < WORN * self._sizes[n]]

    # ---- checkpoints

    def manifest(self) -> bytes:
        """See matching.spill.SpillStore. Forces records written since the last manifest to disk."""
        for segment in sorted(self._unforced):
            os.fsync(self._files[segment])
        if self._unforced:
            Place(str(self._directory)).sync()
        self._unforced.clear()
        live = {n: self._sizes[n] for n, live in sorted(self._live.items()) if live}
        self._current = frozenset(live)
        return json.dumps({"segments": live}).encode()

    def kept(self) -> None:
        """Records that the last manifest is in a durable checkpoint; deletes segments that no kept manifest needs."""
        self._named = [*self._named, self._current][-2:]
        self._remove_dead()

    def restore(self, manifest: bytes) -> None:
        """See matching.spill.SpillStore."""
        if manifest == self._restored:
            return
        if self._restored is not None:
            raise DataError("parts of a checkpoint name different partial matches", "restore an older checkpoint")
        named = {int(n): size for n, size in json.loads(manifest)["segments"].items()}
        there = self._numbers()
        for number, size in named.items():
            if number not in there or self._path(number).stat().st_size < size:
                raise self._spoilt(number)
        for number in there:
            self._sizes[number] = named.get(number, self._path(number).stat().st_size)
            self._live[number] = 0
        self._restored, self._current = manifest, frozenset(named)
        self._named = [frozenset(there), self._current]

    def clear(self) -> None:
        """Starts without a checkpoint: all existing segments are unused. They are deleted at the first write, not now,
        because this process may only read the database."""
        assert not self._sizes
        self._anew = True

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()
        self._active = -1

    # ---- segments

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}{SUFFIX}"

    def _numbers(self) -> list[int]:
        if not self._directory.exists():
            return []
        stems = [p.name.removesuffix(SUFFIX) for p in self._directory.iterdir() if p.name.endswith(SUFFIX)]
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def _writable(self) -> int:
        """Returns the number of the current segment; begins one if needed."""
        if self._active >= 0:
            return self._active
        self._directory.mkdir(parents=True, exist_ok=True)
        if self._next is None:
            there = self._numbers()
            self._next = max(there, default=-1) + 1
            for number in there if self._anew else ():
                self._path(number).unlink(missing_ok=True)
        number = self._next
        file = open_private(self._path(number), os.O_RDWR | os.O_TRUNC | os.O_APPEND)
        self._next = number + 1
        try:
            write_all(file, np.frombuffer(MAGIC, np.uint8))
        except OSError:
            os.close(file)
            self._path(number).unlink(missing_ok=True)
            raise
        self._files[number], self._sizes[number], self._live[number] = file, len(MAGIC), 0
        self._active = number
        return number

    def _give_up(self, segment: int) -> None:
        """Truncates a segment after a failed write; if that fails, the next write begins a new segment."""
        try:
            os.ftruncate(self._files[segment], self._sizes[segment])
        except OSError:
            self._active = -1

    def _read_into(self, number: int, begin: int, into: memoryview) -> None:
        file = self._files.get(number)
        if file is None:
            try:
                file = self._files[number] = os.open(self._path(number), os.O_RDONLY)
            except FileNotFoundError:
                raise self._spoilt(number) from None
        done = 0
        while done < len(into):
            got = os.preadv(file, [into[done:]], begin + done)
            if not got:
                raise self._spoilt(number)
            done += got

    def _count(self, places: Int64Array, lengths: Int64Array, sign: int) -> None:
        segments, of = np.unique(places >> SHIFT, return_inverse=True)
        sizes = np.zeros(len(segments), np.int64)
        np.add.at(sizes, of, lengths + WORD)
        for number, size in zip(segments.tolist(), sizes.tolist(), strict=True):
            self._live[number] += sign * size

    def _remove_dead(self) -> None:
        """Deletes segments without live records that no kept manifest names."""
        dead = [n for n, live in self._live.items() if not live and n != self._active]
        if not dead:
            return
        wanted = self._current.union(*self._named)
        for number in dead:
            if number in wanted:
                continue
            file = self._files.pop(number, None)
            if file is not None:
                os.close(file)
            del self._live[number], self._sizes[number]
            self._unforced.discard(number)
            try:
                self._path(number).unlink(missing_ok=True)
            except OSError:
                pass  # deleted later, when a process starts without a checkpoint

    def _spoilt(self, number: int) -> DataError:
        message = f"partial matches in {self._path(number)} are damaged"
        return DataError(message, "restore the file, or remove the newest checkpoint to start from the one before")


def write_all(file: int, data: np.ndarray) -> None:
    view = memoryview(data.data)
    while len(view):
        view = view[os.write(file, view) :]
