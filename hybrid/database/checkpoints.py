"""The checkpoints of a database: schedule, content and writer thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from functools import cache

from archive.interrupts import Deferred
from hybrid.database.opened import Opened
from hybrid.join.daemons import Daemons
from hybrid.watch import checkpoint
from hybrid.watch.flow import Flow
from hybrid.watch.memory import Memory
from hybrid.watch.recovery import state_of
from query.errors import DataError, warn

#: Prefix of the name of the thread that writes checkpoints.
WRITERS = "hybrid-checkpoint"


class Checkpoints:
    """number, taken_s: number and time (time.monotonic) of the last checkpoint. notes: the caller's notes in it.
    memory: notified when a checkpoint is on disk. every_us: interval between checkpoints; None: only on request."""

    def __init__(self, opened: Opened, flow: Flow, memory: Memory, every_us: int | None) -> None:
        self._opened = opened
        self._flow = flow
        self.memory = memory
        self.every_us = every_us
        self.number, self.taken_s = 0, time.monotonic()
        self.notes: dict[str, str] = {}
        self._writing: Future[int] | None = None
        #: True if a checkpoint was written when a query with a name began or ended last.
        self.names_kept = True
        self._joined, self._waiting = 0, False

    def resumed(self, number: int, notes: dict[str, str]) -> None:
        """Resumes from the checkpoint with this number."""
        self.number, self.taken_s, self.notes = number, time.monotonic(), notes

    def take(self, notes: Mapping[str, str] | None = None) -> int:
        """Takes a checkpoint, locked while the state is copied. Returns its number; see Database.checkpoint."""
        with self._opened.lock, Deferred():
            write = self._copied(notes)
        number = write()
        with self._opened.lock, Deferred():
            self.memory.kept()
        return number

    def begin(self, notes: Mapping[str, str] | None) -> Future[int]:
        """Copies the state and lets a thread write it; see Database.begin_checkpoint."""
        with self._opened.lock, Deferred():
            self._writing = _writers(os.getpid()).submit(self._copied(notes))
            return self._writing

    def wait(self) -> None:
        """Waits until no checkpoint is being written."""
        if self._writing is not None:
            self._writing.exception()  # returns after the write, successful or not

    @contextmanager
    def one(self) -> Iterator[None]:
        """Defers `keep_names` to the end of the context: one checkpoint for all queries that begin or end inside."""
        self._joined += 1
        try:
            yield
        finally:
            self._joined -= 1
            if not self._joined and self._waiting:
                self._waiting = False
                self.keep_names()

    def keep_names(self) -> None:
        """Takes a checkpoint after a named query has begun or ended, so that the running queries survive a crash."""
        if self._joined:
            self._waiting = True
            return
        failed = self._tried()
        self.names_kept = not failed
        for message in failed:
            warn(message)

    def take_if_due(self) -> list[str]:
        """Takes a checkpoint if one is due. Returns the error if it failed."""
        due = self.every_us is not None and self._flow.named and self._age_us() >= self.every_us
        return self._tried() if due else []

    def _age_us(self) -> float:
        return (time.monotonic() - self.taken_s) * 1e6

    def _tried(self) -> list[str]:
        try:
            self.take()
        except (DataError, OSError) as error:
            return [f"checkpoint failed: {error}"]
        return []

    def _copied(self, notes: Mapping[str, str] | None) -> Callable[[], int]:
        """Copies the state of a checkpoint. Returns a function that writes it without the lock."""
        opened = self._opened
        opened.check_writes("take a checkpoint")
        path = opened.path
        if path is None:
            raise DataError("a database in memory has no checkpoints", "hybrid.connect(path) keeps them")
        if interrupted := self._flow.interrupted():
            raise DataError(
                f"query {interrupted[0]} was interrupted in the middle of a batch: its state cannot be saved",
                "close the database and open it again: its queries resume from the previous checkpoint",
            )
        running, self._writing = self._writing, None
        if running is not None and running.exception() is None:  # its write has ended
            self.memory.kept()
        number = self.number + 1
        self.notes = self.notes if notes is None else dict(notes)
        state = state_of(opened.streams, self._flow.merged, self._flow.named, self.notes)
        self.number, self.taken_s = number, time.monotonic()
        reached = [(stream.kept, stream.kept.last_seq) for stream in opened.streams.values()]

        def write() -> int:
            if opened.log != "fsync":
                for kept, last_seq in reached:
                    kept.flush(last_seq)
            checkpoint.write(path, number, state)
            return number

        return write


@cache
def _writers(process: int) -> Executor:
    """Returns the single thread of this process that writes checkpoints."""
    return Daemons(1, WRITERS)
