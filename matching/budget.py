"""The memory that the live queries of a database may take together. A query that does not fit fails, alone.

Groups of queries compare with the limit after each slice of events; within a slice, engines do after some thousand rows
(matching.engines.engine.check). Rows, runs and the nodes that runs share count; unused parts of arrays do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

from query.stopping import Stop, stopping

#: Rows that come before it is looked at again: what a few rows add is little.
ROWS_UNSEEN = 64
#: Share of the limit from which on a query is held to what the others leave.
NEARLY = 0.5

Key = TypeVar("Key")


@runtime_checkable
class LetsGo(Protocol):
    """A holder of partial matches whose memory has parts that nothing needs. let_go: drops them, and returns the bytes
    that are left."""

    def let_go(self) -> int: ...


class Budget:
    """limit_bytes: of all live queries together; queries: how many there are. A query fails if they take more and it
    takes more than an equal share. A query that reads the archive asks in a thread of its own, beside pushes."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.queries = 1
        self._lock = threading.Lock()
        #: The bytes that each holder takes, as far as it was looked at.
        self.taken: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._unseen: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    @contextmanager
    def open(self, beside: bool = False) -> Iterator[None]:
        """Within, the work of live queries keeps to it. beside: it has no lock, and lets other queries alone."""
        token, apart = _current.set(self), _beside.set(beside)
        try:
            with stopping(Stop(self.limit_bytes)):
                yield
        finally:
            _current.reset(token)
            _beside.reset(apart)

    @property
    def share(self) -> int:
        """Returns the bytes of an equal share."""
        return self.limit_bytes // max(1, self.queries)

    def is_due(self, holder: object, rows: int) -> bool:
        """True if what a holder of partial matches takes is to be looked at, after so many rows more. That of one with
        much is each time: it may have let it go."""
        unseen = self._unseen.get(holder, ROWS_UNSEEN) + rows
        due = unseen >= ROWS_UNSEEN or 2 * self.taken.get(holder, 0) > self.share
        with self._lock:
            self._unseen[holder] = 0 if due else unseen
        return due

    def note(self, holder: object, together: int) -> None:
        """Notes what the queries of a holder take together, in bytes."""
        with self._lock:
            self.taken[holder] = together

    def _total(self) -> int:
        with self._lock:
            return sum(self.taken.values())

    def left(self, holder: object) -> int | None:
        """Returns what each query of a holder may take, in bytes; None: as much as there is."""
        total, own = self._total(), self.taken.get(holder, 0)
        return None if total <= NEARLY * self.limit_bytes else max(self.limit_bytes - (total - own), self.share)

    def look(self, holder: object, together: int, own: Callable[[], dict[Key, int]]) -> list[Key]:
        """Notes what the queries of a holder take: bytes together, and own: of each, which is slow to find. Returns
        those that have to go. Before that, other holders let go of what nothing needs."""
        self.note(holder, together)
        if not _beside.get() and self._total() > self.limit_bytes:
            with self._lock:
                others = [one for one in self.taken if one is not holder and isinstance(one, LetsGo)]
            for other in others:
                self.note(other, other.let_go())
        total, gone = self._total(), []
        if total > self.limit_bytes:
            each = own()
            for key in sorted(each, key=lambda key: -each[key]):
                if total > self.limit_bytes and each[key] > self.share:
                    gone.append(key)
                    total -= each[key]
            self.note(holder, max(0, together - sum(each[key] for key in gone)))
        return gone


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)
_beside: ContextVar[bool] = ContextVar("beside", default=False)


def budget() -> Budget | None:
    """Returns the budget that the work keeps to; None: it is no work of live queries, or has no limit."""
    return _current.get()
