"""Facts about the partitions of a stream that complement the offsets in the archive, in one file per stream.

Both kinds stay true after a crash and after a restore of the archive:

- `Topic`: the identity of the topic that was read: the id assigned by its brokers, and how often it was recreated;
- `Passed`: the position at which a partition continues if the archive expects a given offset, or has no row of it:
  after rejected payloads, or where reading began. It is ignored if the archive expects another offset, so it is never
  ahead of the events.

The file is JSON with its CRC-32 and is replaced as a whole.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from query.errors import DataError

FORMAT = 1
#: Sources of one stream share its file, each from its own thread.
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Topic:
    """Identity of a topic. id: as its brokers report it, None if they do not. generation: 1, plus one for each time the
    topic was recreated."""

    id: str | None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Passed:
    """Reading continues at `next` if the archive expects `at`. at: None if the archive has no row of the partition."""

    at: int | None
    next: int


@dataclass(frozen=True, slots=True)
class Told:
    """Content of the file: topics by name, passed positions by partition."""

    topics: dict[str, Topic] = field(default_factory=dict)
    passed: dict[str, Passed] = field(default_factory=dict)

    def positions(self, archived: Mapping[str, int]) -> dict[str, int]:
        """Returns the positions at which partitions continue. archived: the offsets that the archive expects next."""
        beyond = {name: one.next for name, one in self.passed.items() if archived.get(name) == one.at}
        return {**archived, **beyond}


class Marks:
    """Reads and stores the facts of one stream. file: where they are stored; None: in this object only."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._told = Told()

    def read(self) -> Told:
        """Returns the stored facts. Raises DataError if the file is damaged."""
        with _LOCK:
            return self._read()

    def keep(self, topics: Mapping[str, Topic] | None = None, passed: Mapping[str, Passed] | None = None) -> None:
        """Adds facts and replaces those of the same topics and partitions. Durable on return. Raises OSError, and
        DataError as `read` does."""
        if not topics and not passed:
            return
        with _LOCK:
            before = self._read()
            after = Told({**before.topics, **(topics or {})}, {**before.passed, **(passed or {})})
            if after == before:
                return
            if self._file is not None:
                _write(self._file, after)
            self._told = after

    def _read(self) -> Told:
        if self._file is None:
            return self._told
        try:
            text = self._file.read_bytes()
        except FileNotFoundError:
            return Told()
        try:
            crc, body = text.split(b"\n", 1)
            if int(crc, 16) != zlib.crc32(body):
                raise ValueError("wrong checksum")
            told: dict[str, Any] = json.loads(body)
            version = told["version"]
        except (ValueError, KeyError, TypeError) as error:
            hint = "restore it, or delete it: the present topics then count as those that were read"
            raise DataError(f"{self._file}, the record of the topics read, is damaged: {error}", hint) from None
        if version != FORMAT:
            hint = "run the release that wrote it or a later one"
            raise DataError(f"{self._file} has format {version}; this program reads format {FORMAT}", hint)
        return Told(
            {name: Topic(*one) for name, one in told["topics"].items()},
            {name: Passed(*one) for name, one in told["passed"].items()},
        )


def _write(file: Path, told: Told) -> None:
    body = json.dumps({
        "version": FORMAT,
        "topics": {name: [one.id, one.generation] for name, one in told.topics.items()},
        "passed": {name: [one.at, one.next] for name, one in told.passed.items()},
    }).encode()  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(b"%08x\n" % zlib.crc32(body) + body)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
