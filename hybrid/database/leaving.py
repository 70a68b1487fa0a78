"""What becomes of a database that is left without `close`: at the end of the process, when nobody has it any more, and
in a child after a fork.

Its events go into files, and the right to write it is given back. Queries with a name go on from their last checkpoint:
what they need to take a newer one (threads that read history) has ended by then. A process that is killed runs nothing
of this; that is what the log is for.
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
from archive.writer import Locked, Writer, claim
from query.errors import DataError, first_line

if TYPE_CHECKING:
    from archive.keeper import Keeper
    from hybrid.watch.stream import Stream
    from hybrid.watch.ticker import Ticker

#: A database that another thread holds for longer is left as it is when the process ends.
PATIENCE_S = 10.0


class Leavable(Protocol):
    """A database, as far as its end goes."""

    def end_with_process(self, patience_s: float) -> None: ...

    def disown(self) -> None: ...


@dataclass(slots=True)
class Left:
    """What there is to be done for a database that nobody has any more."""

    streams: dict[str, Stream]
    writer: Writer | None = None
    keeper: Keeper | None = None
    ticker: Ticker | None = None
    process: int = field(default_factory=os.getpid)

    def finish(self) -> None:
        """Stops its threads, writes what is in memory, and gives the right to write back."""
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
                said = f"{stream.schema.name} was left without close, and what was in memory is {rest}"
                sys.stderr.write(f"hybrid: {said}: {error}\n")
            stream.kept.release()
        if self.writer is not None:
            self.writer.release()


_open: weakref.WeakSet[Leavable] = weakref.WeakSet()
_left: queue.SimpleQueue[Left] = queue.SimpleQueue()
_finishing = threading.Lock()


def watch_over(db: Leavable, left: Left) -> weakref.finalize[..., Any]:
    """Does what is to be done when the database is left; `detach` once it is closed."""
    _open.add(db)
    found = weakref.finalize(db, _abandoned, left)
    found.atexit = False
    return found


def _abandoned(left: Left) -> None:
    # this thread may hold any lock, so that another one does it
    _left.put(left)
    _thread.start_new_thread(settle, ())


def settle() -> None:
    """Returns when nothing is to be done for databases that nobody has any more."""
    while True:
        with _finishing:
            try:
                left = _left.get_nowait()
            except queue.Empty:
                return
            left.finish()


def writer_of(place: Place, tables: Sequence[Place]) -> Writer:
    """The right to write a database, as archive.writer.claim gives it; databases of this process that nobody has any
    more give it back first. Raises DataError."""
    settle()
    try:
        return claim(place, tables)
    except Locked as error:
        if not error.mine:
            raise
    collect()
    return claim(place, tables)


def collect() -> None:
    """Settles those too of which it is not known yet that nobody has them."""
    gc.collect()
    settle()


def weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Calls a method as long as somebody else has its object."""
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
        except Exception as error:  # noqa: BLE001  (whatever it is, the others are to be left too)
            sys.stderr.write(f"hybrid: a database could not be left in order: {first_line(error)}\n")
    settle()


def _in_child() -> None:
    """After a fork: databases are the parent's. Their locks may be held by threads that are not here."""
    global _left, _finishing
    _left, _finishing = queue.SimpleQueue(), threading.Lock()
    for db in list(_open):
        db.disown()


os.register_at_fork(after_in_child=_in_child)
