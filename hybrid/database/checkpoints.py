"""The checkpoints of a database: when one is due, what goes into it, and who writes it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from functools import cache

from archive.interrupts import Deferred
from hybrid.database.opened import Opened
from hybrid.join.daemons import Daemons
from hybrid.watch import checkpoint
from hybrid.watch.flow import Flow
from hybrid.watch.memory import Memory
from hybrid.watch.recovery import state_of
from query.errors import DataError, HybridWarning

#: What the thread that writes checkpoints is called, at its beginning.
WRITERS = "hybrid-checkpoint"


class Checkpoints:
    """number, taken_s: of the last one, and when it was taken, by time.monotonic. notes: what its taker has noted in
    it. memory: told of what is on disk. every_us: how often one is due; None: never by itself."""

    def __init__(self, opened: Opened, flow: Flow, memory: Memory, every_us: int | None) -> None:
        self._opened = opened
        self._flow = flow
        self.memory = memory
        self.every_us = every_us
        self.number, self.taken_s = 0, time.monotonic()
        self.notes: dict[str, str] = {}
        self._writing: Future[int] | None = None
        #: Whether a checkpoint was written when a query with a name began or ended last.
        self.names_kept = True

    def resumed(self, number: int, notes: dict[str, str]) -> None:
        """Goes on from the checkpoint with that number."""
        self.number, self.taken_s, self.notes = number, time.monotonic(), notes

    def take(self, notes: Mapping[str, str] | None = None) -> int:
        """Takes a checkpoint, with the lock for as long as its state is copied; see Database.checkpoint."""
        with self._opened.lock, Deferred():
            write = self._copied(notes)
        number = write()
        with self._opened.lock, Deferred():
            self.memory.kept()
        return number

    def begin(self, notes: Mapping[str, str] | None) -> Future[int]:
        """Takes a checkpoint that a thread writes; see Database.begin_checkpoint."""
        with self._opened.lock, Deferred():
            self._writing = _writers(os.getpid()).submit(self._copied(notes))
            return self._writing

    def wait(self) -> None:
        """Returns when none is being written."""
        if self._writing is not None:
            self._writing.exception()  # it is written by then, or could not be

    def keep_names(self) -> None:
        """Takes a checkpoint when a query with a name has begun or ended: what runs then goes on after a crash."""
        failed = self._tried()
        self.names_kept = not failed
        for message in failed:
            warnings.warn(message, HybridWarning, stacklevel=3)

    def take_if_due(self) -> list[str]:
        """Returns why none could be taken, if one is due."""
        due = self.every_us is not None and self._flow.named and self._age_us() >= self.every_us
        return self._tried() if due else []

    def _age_us(self) -> float:
        return (time.monotonic() - self.taken_s) * 1e6

    def _tried(self) -> list[str]:
        try:
            self.take()
        except (DataError, OSError) as error:
            return [f"no checkpoint could be taken: {error}"]
        return []

    def _copied(self, notes: Mapping[str, str] | None) -> Callable[[], int]:
        """Copies what goes into a checkpoint. Returns what writes it, without the lock."""
        opened = self._opened
        opened.check_writes("take a checkpoint")
        path = opened.path
        if path is None:
            raise DataError("a database in memory has no checkpoints", "hybrid.connect(path) keeps them")
        if interrupted := self._flow.interrupted():
            raise DataError(
                f"query {interrupted[0]} was interrupted in the middle of a batch: what it has become is not kept",
                "close the database and open it again: its queries go on from the checkpoint before",
            )
        running, self._writing = self._writing, None
        if running is not None and running.exception() is None:  # what is kept on disk for one is that of the last
            self.memory.kept()
        number = self.number + 1
        self.notes = self.notes if notes is None else dict(notes)
        state = state_of(opened.streams, self._flow.named, self.notes)
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
    """The thread of this process that writes checkpoints, one after the other."""
    return Daemons(1, WRITERS)
