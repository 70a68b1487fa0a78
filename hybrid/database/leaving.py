"""Cleanup of a database without `close`: at the end of the process, at garbage collection, and in a child after a fork.

Events in memory are written to files, and the write lock is released. Named queries resume later from their last
checkpoint: a newer one cannot be taken, because the threads that read history have ended. A killed process does
nothing of this; the log covers that case.
"""

from __future__ import annotations

import _thread
import atexit
import gc
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from archive.place import Place
from archive.writer import Writer, WriterLocked, claim
from query.errors import DataError, first_line

if TYPE_CHECKING:
    from archive.keeper import Keeper
    from hybrid.watch.stream import Stream
    from hybrid.watch.ticker import Ticker

#: Seconds to wait at the end of the process for a database that another thread holds.
PATIENCE_S = 10.0


class Leavable(Protocol):
    """The methods of a database that end it."""

    def end_with_process(self, patience_s: float) -> None: ...

    def disown(self) -> None: ...


@dataclass(slots=True)
class Left:
    """The resources of a database to release after the last reference to it is gone."""

    streams: dict[str, Stream]
    writer: Writer | None = None
    keeper: Keeper | None = None
    ticker: Ticker | None = None
    process: int = field(default_factory=os.getpid)

    def finish(self) -> None:
        """Stops the threads, writes events in memory, and releases the write lock."""
        if self.process != os.getpid():
            return
        for thread in (self.ticker, self.keeper):
            if thread is not None:
                thread.stop()
        for stream in list(self.streams.values()):
            try:
                stream.kept.flush()
                stream.save()
            except (DataError, OSError) as error:
                rest = "in its log only" if stream.kept.is_logged else "lost"
                said = f"{stream.schema.name} was not closed; its events in memory are {rest}"
                sys.stderr.write(f"hybrid: {said}: {error}\n")
            stream.kept.release()
        if self.writer is not None:
            self.writer.release()


_open: weakref.WeakSet[Leavable] = weakref.WeakSet()
_left: queue.SimpleQueue[Left] = queue.SimpleQueue()
_finishing = threading.Lock()


def owned(db: Leavable) -> None:
    """Registers a database that this process opens: its children disown it."""
    _open.add(db)


def watch_over(db: Leavable, left: Left) -> weakref.finalize[..., Any]:
    """Registers the cleanup of a database. Call `detach` of the result after `close`."""
    found = weakref.finalize(db, _abandoned, left)
    found.atexit = False
    return found


def _abandoned(left: Left) -> None:
    # this thread may hold any lock, so another thread cleans up
    _left.put(left)
    _thread.start_new_thread(settle, ())


def settle() -> None:
    """Cleans up all abandoned databases, one after the other."""
    while True:
        with _finishing:
            try:
                left = _left.get_nowait()
            except queue.Empty:
                return
            left.finish()


def writer_of(place: Place, tables: Sequence[Place]) -> Writer:
    """Returns the write lock of a database (archive.writer.claim), after abandoned databases of this process have
    released theirs. Raises DataError."""
    settle()
    try:
        return claim(place, tables)
    except WriterLocked as error:
        if not error.mine:
            raise
    collect()
    return claim(place, tables)


def collect() -> None:
    """Collects garbage, then cleans up all abandoned databases."""
    gc.collect()
    settle()


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Returns a function that calls a method while its object is alive, without keeping it alive."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        bound = found()
        if bound is not None:
            bound()

    return call


@atexit.register
def _at_exit() -> None:
    for db in list(_open):
        try:
            db.end_with_process(PATIENCE_S)
        except Exception as error:  # noqa: BLE001  (the other databases are cleaned up in any case)
            sys.stderr.write(f"hybrid: a database could not be cleaned up at exit: {first_line(error)}\n")
    settle()


def _in_child() -> None:
    """Disowns all databases after a fork: the parent owns them, and its threads may hold their locks."""
    global _left, _finishing
    _left, _finishing = queue.SimpleQueue(), threading.Lock()
    for db in list(_open):
        db.disown()


os.register_at_fork(after_in_child=_in_child)
