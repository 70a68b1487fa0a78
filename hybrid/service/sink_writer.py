"""Writes one sink of a service in its own thread, and keeps the rows that the sink has not made durable."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import pyarrow as pa

from live.sinks.base import Lost, Refused, Sink
from query.errors import DataError, first_line

#: First and longest pause in seconds before a retry; the pause doubles with each failure.
RETRY_S, RETRY_MAX_S = 1.0, 60.0
#: Seconds after which a call of the sink that has not returned is reported.
SLOW_S = 5.0

Call = Literal["open", "write", "cursor"]
_CALLED: dict[Call, str] = {"open": "open", "write": "write to", "cursor": "flush"}


class Parcel(NamedTuple):
    """Rows of one query, in order. since: the time of `put`, by the outlet's `now`."""

    query: str
    rows: pa.Table
    since: float = 0.0


class Outlet:
    """Writes rows to a sink in order. Retries failed calls with growing pauses, including `make`, which creates the
    sink.

    `turn` makes all calls of the sink: in the thread that `start` starts, or called by the service. Of the other
    methods only `settle` and `close` wait for the sink, for a given time.
    cursor: the sink's cursor at the last checkpoint. backlog: the rows that were pending then. now: monotonic seconds;
    wall: seconds since 1970. rows_max: pending rows of a query at which its streams wait; after half as many written
    rows the sink is asked for a cursor. refusals: number of rejections of a row for its content, after which
    `set_aside` gets its id, JSON and reason, and the sink continues without it; None: retried without end.
    """

    def __init__(
        self, name: str, make: Callable[[], Sink], cursor: str | None, backlog: Iterable[Parcel], rows_max: int,
        now: Callable[[], float], wall: Callable[[], float], refusals: int | None = None,
        set_aside: Callable[[str, str, str], None] = lambda *_: None,
    ) -> None:  # fmt: skip
        self.name = name
        self.cursor = cursor
        self.failures = self.rows_refused = 0
        self._refusals_max, self._set_aside = refusals, set_aside
        self._refusals: Counter[str] = Counter()  # by row
        self.rows_written = 0
        #: Lines for the log: added by the sink's thread, taken by the service.
        self.notices: deque[str] = deque()
        self._make = make
        self._sink: Sink | None = None
        self._now, self._wall = now, wall
        self._rows_max = rows_max
        self._changed = threading.Condition()
        self._pending: deque[Parcel] = deque(parcel._replace(since=now()) for parcel in backlog)
        self._written: list[Parcel] = []  # written, and not known to be durable
        self._unsettled = 0  # number of their rows
        self._unread: Counter[str] = Counter()
        for parcel in self._pending:
            self._unread[parcel.query] += parcel.rows.num_rows
        self._retry_s = 0.0
        self._failed: Call | None = None  # the call that failed last and has not succeeded since
        self._trouble: str | None = None
        self._failing_since = ""
        self._calling: tuple[Call, float, str] | None = None  # the present call, with its start in `now` and as text
        self._full_since = ""
        self._again = 0  # parcels to write again before the sink is asked for a cursor
        self._opened = self._reopened = self._settling = self._closing = False
        self._thread: threading.Thread | None = None

    # ---- for the sink's thread

    def turn(self) -> bool:
        """Makes the next call of the sink: open, cursor or write. Returns True if it succeeded or skipped rows."""
        if self._now() < self._retry_s:
            return False
        call = self._due()
        if call is None:
            return False
        self._calling = (call, self._now(), self._clock())
        try:
            cursor = self._call(call)
        except Exception as error:  # noqa: BLE001  (of any type: it is reported and retried, and nothing is lost)
            try:
                if isinstance(error, Refused) and self._leave_out(error):
                    return True
            except OSError as full:
                error = OSError(f"a rejected row cannot be stored: {full}")
            self._note_failure(call, error)
            return False
        finally:
            self._calling = None
        with self._changed:
            if call == "open":
                self._opened = True
            elif call == "write":
                parcel = self._pending.popleft()
                self._written.append(parcel)
                self._again = max(0, self._again - 1)
                self._unsettled += parcel.rows.num_rows
                self.rows_written += parcel.rows.num_rows
            else:
                self.cursor = cursor
                self._refusals.clear()
                for done in self._written:
                    self._unread[done.query] -= done.rows.num_rows
                self._written, self._unsettled, self._settling, self._reopened = [], 0, False, False
            # A successful write does not show that a failed cursor would succeed, nor the reverse.
            if self._failed == call:
                self._failed, self._trouble, self.failures = None, None, 0
            self._retry_s = 0.0
            self._changed.notify_all()
        return True

    def _due(self) -> Call | None:
        """Returns the next call of the sink, or None."""
        if not self._opened:
            return "open"
        if self._written and ((self._settling and not self._again) or self._unsettled > self._rows_max // 2):
            return "cursor"
        return "write" if self._pending else None

    def _call(self, call: Call) -> str | None:
        if self._sink is None:
            self._sink = self._make()
        if call == "open":
            self._sink.open(self.cursor)
        elif call == "write":
            self._sink.write(self._pending[0].rows)
        else:
            return self._sink.cursor()
        return None

    def _note_failure(self, call: Call, error: Exception) -> None:
        said = str(error) if isinstance(error, (DataError, OSError)) else f"{type(error).__name__}: {error}"
        with self._changed:
            if isinstance(error, Lost):
                call = "cursor"  # only a cursor shows that the sink has recovered
                if self._take_back(error):
                    return
            pause_s = min(RETRY_MAX_S, RETRY_S * 2**self.failures)
            if not self.failures:
                self._failing_since = self._clock()
            self.failures += 1
            self._failed = call
            self._retry_s = self._now() + pause_s
            times = f"{self.failures} times since {self._failing_since}"
            self._trouble = f"{said} (failed {times}, again in {pause_s:g} s)"
            self._changed.notify_all()

    def _leave_out(self, error: Refused) -> bool:
        """Sets aside the rows that were rejected `refusals` times. Returns True if there were any. Raises OSError if
        they cannot be stored."""
        self._refusals.update(error.rows.keys())
        over = [id for id in error.rows if self._refusals_max and self._refusals[id] >= self._refusals_max]
        for id in over:
            self._set_aside(id, error.rows[id], first_line(error))
            self._sink.leave_out(id)  # type: ignore[union-attr]
            del self._refusals[id]
            self.rows_refused += 1
        if over:
            with self._changed:
                self._failed, self._trouble, self.failures, self._retry_s = None, None, 0, 0.0
        return bool(over)

    def _take_back(self, error: Lost) -> bool:
        """Makes the sink open again and get all rows that it may have lost. Returns True for the first time since the
        last cursor: this is logged, but not a failure."""
        rows, self._again = self._unsettled, len(self._written)
        self._pending.extendleft(reversed(self._written))
        self._written, self._unsettled, self._opened, self._settling = [], 0, False, bool(self._again)
        first, self._reopened = not self._reopened, True
        if first:
            self.notices.append(f"{first_line(error)}; it is opened again, and {rows:,} rows are written again")
        self._changed.notify_all()
        return first

    def _run(self) -> None:
        while not self._closing:
            if not self.turn():
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._ready(), 0.2)
        self._finish()

    def _ready(self) -> bool:
        return self._now() >= self._retry_s and self._due() is not None

    def _finish(self) -> None:
        try:
            if self._sink is not None:
                self._sink.close()
        except Exception as error:  # noqa: BLE001  (the sink is dropped anyway; its pending rows are kept)
            self._trouble = str(error)

    # ---- for the service

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"hybrid sink {self.name}", daemon=True)
        self._thread.start()

    def put(self, query: str, rows: pa.Table) -> None:
        with self._changed:
            self._pending.append(Parcel(query, rows, self._now()))
            self._unread[query] += rows.num_rows
            self._changed.notify_all()

    def take_over(self, parcels: Iterable[Parcel]) -> None:
        """Puts rows of a replaced sink before the pending ones."""
        with self._changed:
            for parcel in reversed(list(parcels)):
                self._pending.appendleft(parcel)
                self._unread[parcel.query] += parcel.rows.num_rows
            self._changed.notify_all()

    def ask(self) -> None:
        """Requests a cursor, which makes the written rows durable. Does not wait for it."""
        with self._changed:
            if not self._written:
                return
            self._settling = True
            self._changed.notify_all()
        if self._thread is None:
            self.turn()

    @property
    def settled(self) -> bool:
        """True if there is nothing to wait for after `ask`: it is done, or the sink fails."""
        return not self._settling or bool(self.failures)

    def settle(self, seconds: float) -> None:
        """Requests a cursor and waits for it, `seconds` at most. Does not wait for a failing sink."""
        self.ask()
        if self._thread is not None:
            with self._changed:
                self._changed.wait_for(lambda: self.settled, seconds)

    def undelivered(self) -> list[Parcel]:
        """Returns the rows that the sink has not made durable, in order."""
        with self._changed:
            return [*self._written, *self._pending]

    @property
    def rows_unread(self) -> int:
        """Number of rows that the sink has not made durable."""
        return sum(self._unread.values())

    def unread(self, query: str) -> int:
        """Returns the number of rows of a query that the sink has not made durable."""
        return self._unread[query]

    @property
    def waiting(self) -> bool:
        """True if there are rows to write."""
        return bool(self._pending)

    @property
    def oldest_s(self) -> float:
        """Age of the next row to write, in seconds; 0 without one."""
        with self._changed:
            return self._now() - self._pending[0].since if self._pending else 0.0

    def trouble(self) -> str | None:
        """Returns the current fault and its beginning: a failure, a call that does not return, or too many pending
        rows. None without a fault. Called once a second."""
        full = next((n for n in self._unread.values() if n >= self._rows_max), None)
        self._full_since = "" if full is None else self._full_since or self._clock()
        if self._trouble is not None:
            return self._trouble
        calling = self._calling
        if calling is not None and self._now() - calling[1] >= SLOW_S:
            return f"the call to {_CALLED[calling[0]]} it has not returned since {calling[2]}; its rows are pending"
        if full is not None:
            return f"rows come faster than it takes them: {full:,} pending since {self._full_since}; their streams wait"
        return None

    def _clock(self) -> str:
        return f"{datetime.fromtimestamp(self._wall(), UTC):%Y-%m-%d %H:%M:%S} UTC"

    def close(self, seconds: float = 5.0) -> None:
        """Closes the sink; waits for its thread, `seconds` at most."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            self._finish()
        else:
            self._thread.join(seconds)
