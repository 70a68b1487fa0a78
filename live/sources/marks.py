"""What a source has to know of its partitions beside the offsets that the archive holds, in a file of one stream.

Two kinds of facts, each of which stays true whatever a crash, or a restored archive, makes of the rows:

- which topic it is that was read: the id that its brokers give it, and how often it was made anew (`Topic`);
- where a partition goes on when the archive expects exactly a certain offset in it, or none at all (`Passed`): behind
  payloads that were refused, or, for a partition of which nothing was archived, where its reading began. Where the
  archive expects another offset the fact says nothing, so it is never ahead of the events.

The file is JSON with its CRC-32, replaced as a whole.
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
#: Sources of one stream share its file, each in a thread of its own.
_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True)
class Topic:
    """id: as its brokers say, None where they do not. generation: 1, and one more for each time it was made anew."""

    id: str | None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Passed:
    """Reading goes on at `next` where the archive expects `at`; None: it has nothing of the partition."""

    at: int | None
    next: int


@dataclass(frozen=True, slots=True)
class Told:
    """What the file says: by topic, and by partition."""

    topics: dict[str, Topic] = field(default_factory=dict)
    passed: dict[str, Passed] = field(default_factory=dict)

    def positions(self, archived: Mapping[str, int]) -> dict[str, int]:
        """Where the partitions go on. archived: the offsets that the archive expects next."""
        beyond = {name: one.next for name, one in self.passed.items() if archived.get(name) == one.at}
        return {**archived, **beyond}


class Marks:
    """The facts of one stream. file: where they are kept; None: in this object only, for as long as it lives."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._told = Told()

    def read(self) -> Told:
        """Raises DataError where the file cannot be read."""
        with _LOCK:
            return self._read()

    def keep(self, topics: Mapping[str, Topic] | None = None, passed: Mapping[str, Passed] | None = None) -> None:
        """Adds facts, or replaces those of the same topics and partitions. Durable when it returns. Raises OSError,
        and DataError as `read` does."""
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
                raise ValueError("its checksum is wrong")
            told: dict[str, Any] = json.loads(body)
            version = told["version"]
        except (ValueError, KeyError, TypeError) as error:
            hint = "restore it, or delete it: topics are then taken for those that were read"
            raise DataError(f"{self._file}, which says which topics were read, is damaged: {error}", hint) from None
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
