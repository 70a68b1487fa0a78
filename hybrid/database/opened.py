"""The options of an open database, and the checks of whether this process may use and write it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from archive.forks import check_delta, check_process
from archive.place import Place
from archive.writer import Writer
from hybrid.database.pattern_file import NamedPattern, read_patterns
from hybrid.join.spark_ranges import LargeRanges
from hybrid.rows.duck import Access
from hybrid.watch.declaration import stream_names
from hybrid.watch.stream import Stream, reopened
from query.errors import DataError, first_line, nearest
from query.language.named import used_patterns

if TYPE_CHECKING:
    from archive.log import Policy


class Opened:
    """path: the database's place, None in memory. log: sync policy of the log. large: searches large ranges of history
    on Spark. writer: the write lock. wake: wakes the thread that writes files, if pushes do not. lock: held by the
    callers of all methods.

    streams, patterns: by name in lower case."""

    def __init__(
        self, path: Place | None, log: Policy | None, read_only: bool, access: Access, large: LargeRanges | None,
        streams: dict[str, Stream],
    ) -> None:  # fmt: skip
        self.path = path
        self.log = log
        self.read_only = read_only
        self.access = access
        self.large = large
        self.streams = streams
        self.patterns: dict[str, NamedPattern] = {}
        self.lock = threading.RLock()
        self.closed = False
        self.process = os.getpid()
        self.writer: Writer | None = None
        self.wake: Callable[[], None] | None = None

    @property
    def epoch(self) -> int | None:
        return None if self.writer is None else self.writer.epoch

    def find(self, path: str) -> list[str]:
        """Returns the names of the database's streams; creates its directory if missing. path: as the user gave it."""
        assert self.path is not None
        check_delta()
        if self.path.on_disk and os.path.exists(self.path) and not os.path.isdir(self.path):
            raise DataError(f"{path} is a file", "a database is a directory")
        try:
            if not self.read_only:
                self.path.make(private=True)
            elif self.path.on_disk and not os.path.exists(self.path):
                raise DataError(f"there is no database {path}", "hybrid.connect creates one, without read_only")
            return stream_names(self.path)
        except OSError as error:
            raise DataError(f"{path} cannot be opened: {first_line(error)}", "check the place") from None

    def reopen(self, path: str) -> None:
        """Opens the streams of the database, and reads its patterns."""
        assert self.path is not None
        self.patterns = read_patterns(self.path)
        for name in self.find(path):
            stream = reopened(self.path / name, self.log, self.epoch, self.read_only)
            twin = self.streams.setdefault(stream.schema.name.lower(), stream)
            if twin is not stream:
                both = " and ".join(str(s.directory) for s in (twin, stream))
                raise DataError(f"two streams have the same name: {both}", "names are case-insensitive: move one away")

    def check_process(self) -> None:
        """Raises DataError in a child after a fork."""
        check_process("this database in memory" if self.path is None else str(self.path), self.process)

    def check(self) -> None:
        """Raises DataError if the database is closed, or was opened before a fork."""
        self.check_process()
        if self.closed:
            raise DataError("this database is closed", "open it again with hybrid.connect")

    def check_writes(self, what: str) -> None:
        """Raises DataError if the database is closed or read-only, or if another process writes it."""
        self.check()
        if self.read_only:
            hint = "hybrid.connect(path), without read_only"
            raise DataError(f"this database is open for reading only: it cannot {what}", hint)
        if self.writer is not None:
            self.writer.check()

    def refresh(self) -> None:
        """Rereads the streams and patterns that another process writes, if this database is read-only. Raises DataError
        after a fork."""
        self.check_process()
        if self.read_only and self.path is not None and not self.closed:
            self.patterns = read_patterns(self.path)
            names = stream_names(self.path)
            for gone in self.streams.keys() - {name.lower() for name in names}:
                del self.streams[gone]
            for name in names:
                known = self.streams.get(name.lower())
                if known is None or not known.reread():
                    stream = reopened(self.path / name, None, read_only=True)
                    self.streams[stream.schema.name.lower()] = stream

    def used(self, text: str, tables: Iterable[str] = ()) -> dict[str, str]:
        """Returns the texts of the named patterns that a statement needs, by name in lower case. tables: those given
        with the statement."""
        texts = {key: pattern.text for key, pattern in self.patterns.items()}
        return used_patterns(text, texts, [*self.streams, *tables])

    def stream(self, name: str) -> Stream:
        self.check()
        found = self.streams.get(str(name).lower())
        if found is None:
            known = [s.schema.name for s in self.streams.values()]
            raise DataError(f"there is no stream {name}", nearest(str(name), known) or "create it with create_stream")
        return found

    def fed_stream(self, name: str) -> Stream:
        """Returns a stream that may be pushed to."""
        self.check_writes("take events")
        state = self.stream(name)
        if state.live.driven:
            raise DataError(f"stream {state.schema.name} is fed by a live query", "push to the streams that it reads")
        return state

    def release(self) -> None:
        """Closes files and releases the write lock."""
        try:
            for stream in self.streams.values():
                stream.kept.release()
        finally:
            if self.writer is not None:
                self.writer.release()
