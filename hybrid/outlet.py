"""One sink of a service, written in a thread of its own; what it has not taken for good is kept."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pyarrow as pa

from live.sinks.base import Sink
from query.errors import DataError

#: After a failure it is tried again in this many seconds, then twice as many, and so on up to the last.
RETRY_S, RETRY_MAX_S = 1.0, 60.0


class Parcel(NamedTuple):
    """Rows of one query, in its order."""

    query: str
    rows: pa.Table


class Outlet:
    """Hands rows to a sink in their order, and tries again, with growing pauses, what fails.

    All calls of the sink come from `turn`: from the thread that `start` begins, or from whoever drives the service.
    cursor: where the sink stood at the last checkpoint; backlog: what it had not taken by then. now: seconds.
    rows_max: so many written rows at the most wait to be made durable.
    """

    def __init__(
        self, name: str, sink: Sink, cursor: str | None, backlog: Iterable[Parcel], rows_max: int,
        now: Callable[[], float],
    ) -> None:  # fmt: skip
        self.name = name
        self.cursor = cursor
        self.trouble: str | None = None
        self.failures = 0
        self.rows_written = 0
        self._sink = sink
        self._now = now
        self._rows_max = rows_max
        self._changed = threading.Condition()
        self._pending: deque[Parcel] = deque(backlog)
        self._written: list[Parcel] = []  # handed over, and not yet known to be durable
        self._unread: Counter[str] = Counter()
        for parcel in self._pending:
            self._unread[parcel.query] += parcel.rows.num_rows
        self._retry_s = 0.0
        self._opened = self._settling = self._closing = False
        self._thread: threading.Thread | None = None

    # ---- for the sink's thread

    def turn(self) -> bool:
        """Opens the sink, makes durable what it has, or hands it the next rows; whether something was done."""
        if self._now() < self._retry_s:
            return False
        try:
            if not self._opened:
                self._sink.open(self.cursor)
                self._opened = True
            settle = self._settling or sum(p.rows.num_rows for p in self._written) > self._rows_max // 2
            if settle:
                cursor = self._sink.cursor()
            elif self._pending:
                parcel = self._pending[0]
                self._sink.write(parcel.rows)
            else:
                return False
        except Exception as error:  # noqa: BLE001  (whatever it is, nothing is lost: it is tried again, and said)
            with self._changed:
                pause_s = min(RETRY_MAX_S, RETRY_S * 2**self.failures)
                self.failures += 1
                self._retry_s = self._now() + pause_s
                said = str(error) if isinstance(error, (DataError, OSError)) else f"{type(error).__name__}: {error}"
                self.trouble = f"{said} (failed {self.failures} times, again in {pause_s:g} s)"
                self._settling = False
                self._changed.notify_all()
            return False
        with self._changed:
            self.trouble, self.failures, self._retry_s = None, 0, 0.0
            if settle:
                self.cursor = cursor
                for done in self._written:
                    self._unread[done.query] -= done.rows.num_rows
                self._written = []
                self._settling = False
            else:
                self._written.append(self._pending.popleft())
                self.rows_written += parcel.rows.num_rows
            self._changed.notify_all()
        return True

    def _run(self) -> None:
        while not self._closing:
            if not self.turn():
                with self._changed:
                    if not self._closing and (not (self._pending or self._settling) or self.failures):
                        self._changed.wait(0.2)
        self._finish()

    def _finish(self) -> None:
        try:
            self._sink.close()
        except Exception as error:  # noqa: BLE001  (it is left anyway; what it did not take is kept)
            self.trouble = str(error)

    # ---- for the service

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"hybrid sink {self.name}", daemon=True)
        self._thread.start()

    def put(self, query: str, rows: pa.Table) -> None:
        with self._changed:
            self._pending.append(Parcel(query, rows))
            self._unread[query] += rows.num_rows
            self._changed.notify_all()

    def settle(self, seconds: float) -> None:
        """Lets the sink make durable what it was given; waits so long at the most. A sink in trouble is left alone."""
        with self._changed:
            if not self._written or self.failures:
                return
            self._settling = True
            self._changed.notify_all()
            if self._thread is not None:
                self._changed.wait_for(lambda: not self._settling, seconds)
                return
        self.turn()

    def undelivered(self) -> list[Parcel]:
        """What the sink has not taken for good, in order."""
        with self._changed:
            return [*self._written, *self._pending]

    def unread(self, query: str) -> int:
        """Rows of a query that the sink has not taken for good."""
        return self._unread[query]

    @property
    def settling(self) -> bool:
        """Whether the sink still makes durable what it was given when `settle` was called."""
        return self._settling

    @property
    def waiting(self) -> bool:
        """Whether there are rows to hand over."""
        return bool(self._pending)

    def close(self, seconds: float = 5.0) -> None:
        """Lets the sink go; waits so long for its thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            self._finish()
        else:
            self._thread.join(seconds)
