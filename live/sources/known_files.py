"""Facts about the files that a source has read: they recognise a file by its bytes at any path.

Positions come from the archive, which commits them with the rows. The facts here are about contents: "the first 2,000
records of this partition are the first 91,230 bytes; the file begins with this, and these bytes end with that". A fact
stays true after a crash, so it may be older than the archive. Only the identity of a partition must be durable before
its first rows are returned.

On disk the facts are a log of JSON lines, each after its CRC-32; the last line of a partition counts. The log is
rewritten when it has grown to several times its content. A torn last line was being written when the process ended. Any
other unreadable line is an error, because an unrecognised file would be archived twice.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from query.errors import DataError

#: Bytes that recognise a file: at its start (after a CSV header), and before the position that it was read to.
HEAD_BYTES, TAIL_BYTES = 1 << 12, 1 << 10
#: The log is rewritten when it is larger than this and than four times its content.
LOG_BYTES = 1 << 20
FORMAT = 1


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Mark:
    """The first `records` records of a file are its first `bytes` bytes. tail: the hash of the last TAIL_BYTES of
    these."""

    records: int = 0
    bytes: int = 0
    tail: str = digest(b"")


@dataclass(frozen=True, slots=True)
class Known:
    """The facts about one partition.

    path: the last path of its file, "" if the file was replaced. head: the hash of its first `head_bytes` bytes, after
    decompression. first_us, newest_us: event times of its first and of its newest event. stamp: size and mtime of a
    compressed file that was read to its end.
    """

    partition: str
    path: str
    head_bytes: int
    head: str
    mark: Mark = Mark()
    first_us: int | None = None
    newest_us: int | None = None
    stamp: tuple[int, int] | None = None

    def is_in(self, file: IO[bytes]) -> bool:
        """True if an open file has this head, and this tail at the mark."""
        file.seek(0)
        head = file.read(self.head_bytes)
        if len(head) < self.head_bytes or digest(head) != self.head:
            return False
        count = min(TAIL_BYTES, self.mark.bytes)
        file.seek(self.mark.bytes - count)
        return digest(file.read(count)) == self.mark.tail

    def to_json(self) -> dict[str, Any]:
        mark = self.mark
        return {
            "partition": self.partition, "path": self.path, "head": [self.head_bytes, self.head],
            "mark": [mark.records, mark.bytes, mark.tail], "times": [self.first_us, self.newest_us],
            "stamp": self.stamp,
        }  # fmt: skip

    @staticmethod
    def from_json(told: dict[str, Any]) -> Known:
        (head_bytes, head), (first_us, newest_us), stamp = told["head"], told["times"], told["stamp"]
        return Known(
            told["partition"], told["path"], head_bytes, head, Mark(*told["mark"]), first_us, newest_us,
            None if stamp is None else (stamp[0], stamp[1]),
        )  # fmt: skip


class KnownFiles:
    """The facts about all partitions of a source: in memory (`put`) and on disk (`write`).

    path: the file on disk; None: facts live as long as the process.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, Known] = {}
        self._heads: defaultdict[int, dict[str, dict[str, None]]] = defaultdict(dict)
        self._written: dict[str, bytes] = {}
        self._out: IO[bytes] | None = None
        self._bytes = 0
        #: True if the file existed when `read` was called.
        self.found = False

    def __iter__(self) -> Iterator[Known]:
        return iter(list(self._known.values()))

    def get(self, partition: str) -> Known | None:
        return self._known.get(partition)

    def put(self, known: Known) -> None:
        """Replaces the facts about a partition, in memory."""
        before = self._known.get(known.partition)
        self._known[known.partition] = known
        if before is not None and (before.head_bytes, before.head) == (known.head_bytes, known.head):
            return
        if before is not None:
            self._heads[before.head_bytes][before.head].pop(known.partition)
            if not self._heads[before.head_bytes][before.head]:
                del self._heads[before.head_bytes][before.head]
            if not self._heads[before.head_bytes]:
                del self._heads[before.head_bytes]
        self._heads[known.head_bytes].setdefault(known.head, {})[known.partition] = None

    @property
    def head_bytes_max(self) -> int:
        """The number of bytes that `alike` needs at most."""
        return max(self._heads, default=0)

    def alike(self, head: bytes) -> list[Known]:
        """Returns the facts whose head equals the beginning of a file. head: the first `head_bytes_max` bytes of the
        file, or the whole file if it is shorter."""
        found: list[Known] = []
        state, at = blake2b(digest_size=16), 0
        for length in sorted(self._heads):
            if length > len(head):
                break
            state.update(head[at:length])
            at = length
            found += [self._known[name] for name in self._heads[length].get(state.hexdigest(), ())]
        return found

    def read(self) -> None:
        """Reads the facts from disk. Called once. Raises DataError if the file is damaged."""
        if self.path is None:
            return
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            data = None
        if data is not None:
            self.found = True
            for known in self._entries(data):
                self.put(known)
                self._written[known.partition] = _line(known.to_json())
        try:
            self._anew()
        except OSError:
            pass  # for example a full disk: the first `write` tries again and raises

    def _entries(self, data: bytes) -> Iterator[Known]:
        lines = data.split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            try:
                crc, text = line.split(b" ", 1)
                if crc != b"%08x" % zlib.crc32(text):
                    raise ValueError("wrong checksum")
                told = json.loads(text)
                if number == 1:
                    version = told["version"]
                else:
                    yield Known.from_json(told)
            except (ValueError, KeyError, TypeError) as error:
                raise self._damaged(f"line {number} cannot be read: {error}") from None
            if number == 1 and version != FORMAT:
                hint = "run the release that wrote it or a later one"
                raise DataError(f"{self.path} has format {version}; this program reads format {FORMAT}", hint)
        if not lines:
            raise self._damaged("it is empty")

    def _damaged(self, what: str) -> DataError:
        hint = "restore it, or delete it: the files that were read are then recognised by path only"
        return DataError(f"{self.path}, the record of the files read, is damaged: {what}", hint)

    def write(self, some: Iterable[Known]) -> None:
        """Makes these facts durable, and all earlier ones if the log was removed. May be repeated after an OSError."""
        lines = {known.partition: _line(known.to_json()) for known in some}
        if self.path is None:
            return
        if self._out is not None and not self._stands(self.path, self._out):
            self.close()
        elif not lines:
            return
        self._written |= lines
        if self._out is None or self._bytes > max(LOG_BYTES, 4 * sum(map(len, self._written.values()))):
            self._anew()
            return
        data = b"".join(lines.values())
        try:
            self._out.write(data)
            self._out.flush()
            os.fsync(self._out.fileno())
        except OSError:
            self.close()  # the end of the log is unknown now: the next write rewrites it
            raise
        self._bytes += len(data)

    @staticmethod
    def _stands(path: Path, out: IO[bytes]) -> bool:
        """True if the open file is the one at the path."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(out.fileno()))
        except FileNotFoundError:
            return False

    def _anew(self) -> None:
        """Rewrites the log: writes all facts to a new file, which replaces it."""
        assert self.path is not None
        self.close()
        part = self.path.with_name(self.path.name + ".part")
        out = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        try:
            data = _line({"version": FORMAT}) + b"".join(self._written.values())
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
            os.replace(part, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            out.close()
            raise
        self._out, self._bytes = out, len(data)

    def close(self) -> None:
        if self._out is not None:
            out, self._out = self._out, None
            try:
                out.close()
            except OSError:
                pass  # `write` has raised it


def _line(told: dict[str, Any]) -> bytes:
    text = json.dumps(told, ensure_ascii=True, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)
