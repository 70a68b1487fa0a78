"""The memory that the live queries of a database may take together. A query that does not fit fails, alone.

What is over the limit is looked at after each slice of events; within one, engines ask after some thousand rows
(matching.engines.engine.check). Counted are rows, runs, and the nodes that runs share, not the parts of an array that
are not used yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakKeyDictionary

from query.stopping import Stop, stopping

#: Rows that come before it is looked at again: what a few rows add is little.
ROWS_UNSEEN = 64
#: Share of the limit from which on a query is held to what the others leave.
NEARLY = 0.5

Key = TypeVar("Key")


class Budget:
    """limit_bytes: of all live queries together; queries: how many there are. A query fails if they take more and it
    takes more than an equal share. Not thread safe."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.queries = 1
        self._taken: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._unseen: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    @contextmanager
    def open(self) -> Iterator[None]:
        """Within, the work of live queries keeps to it."""
        token = _current.set(self)
        try:
            with stopping(Stop(self.limit_bytes)):
                yield
        finally:
            _current.reset(token)

    def is_due(self, holder: object, rows: int) -> bool:
        """True if what a holder of partial matches takes is to be looked at, after so many rows more."""
        unseen = self._unseen.get(holder, ROWS_UNSEEN) + rows
        due = unseen >= ROWS_UNSEEN
        self._unseen[holder] = 0 if due else unseen
        return due

    def look(
        self, holder: object, together: int, own: Callable[[], dict[Key, int]]
    ) -> tuple[list[Key], int | None]:  # fmt: skip
        """Notes what the queries of a holder take: bytes together, and own: of each, which is slow to find. Returns
        those that have to go, and what each of the others may take; None: as much as there is."""
        self._taken[holder] = together
        total, share = sum(self._taken.values()), self.limit_bytes // max(1, self.queries)
        if total <= NEARLY * self.limit_bytes:
            return [], None
        gone = []
        if total > self.limit_bytes:
            each = own()
            for key in sorted(each, key=lambda key: -each[key]):
                if total > self.limit_bytes and each[key] > share:
                    gone.append(key)
                    total -= each[key]
            self._taken[holder] = max(0, together - sum(each[key] for key in gone))
        return gone, max(self.limit_bytes - (total - self._taken[holder]), share)


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def budget() -> Budget | None:
    """Returns the budget that the work keeps to; None: it is no work of live queries, or has no limit."""
    return _current.get()
