"""One sink of a service, written in a thread of its own; what it has not taken for good is kept."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import pyarrow as pa

from live.sinks.base import Lost, Refused, Sink
from query.errors import DataError, first_line

#: After a failure it is tried again in this many seconds, then twice as many, and so on up to the last.
RETRY_S, RETRY_MAX_S = 1.0, 60.0
#: A call of a sink that has not returned for so long is said, in seconds.
SLOW_S = 5.0

Call = Literal["open", "write", "cursor"]
_CALLED: dict[Call, str] = {"open": "open", "write": "write to", "cursor": "flush"}


class Parcel(NamedTuple):
    """Rows of one query, in its order. since: when they were put, by the outlet's `now`."""

    query: str
    rows: pa.Table
    since: float = 0.0


class Outlet:
    """Hands rows to a sink in their order, and tries again, with growing pauses, what fails; also to make the sink.

    All calls of the sink come from `turn`: from the thread that `start` begins, or from whoever drives the service.
    No other method waits for the sink, but `settle` and `close`, which say how long.
    cursor: where the sink stood at the last checkpoint; backlog: what it had not taken by then. now: seconds that
    never go back; wall: seconds since 1970. rows_max: a query that has so many rows here gets no more events, and half
    as many written rows at the most wait to be made durable. refusals: a row that was refused so often for what it is
    goes to `set_aside`, as its id, its JSON and why, and the sink goes on without it; None: it is tried for ever.
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
        #: What there is to say once, for people: added by the sink's thread, taken by the service.
        self.notices: deque[str] = deque()
        self._make = make
        self._sink: Sink | None = None
        self._now, self._wall = now, wall
        self._rows_max = rows_max
        self._changed = threading.Condition()
        self._pending: deque[Parcel] = deque(parcel._replace(since=now()) for parcel in backlog)
        self._written: list[Parcel] = []  # handed over, and not yet known to be durable
        self._unsettled = 0  # rows of those
        self._unread: Counter[str] = Counter()
        for parcel in self._pending:
            self._unread[parcel.query] += parcel.rows.num_rows
        self._retry_s = 0.0
        self._failed: Call | None = None  # what has failed last, and did not succeed since
        self._trouble: str | None = None
        self._failing_since = ""
        self._calling: tuple[Call, float, str] | None = None  # the call under way, and when it began
        self._full_since = ""
        self._again = 0  # parcels that are written again before the sink is asked whether they are durable
        self._opened = self._reopened = self._settling = self._closing = False
        self._thread: threading.Thread | None = None

    # ---- for the sink's thread

    def turn(self) -> bool:
        """Opens the sink, makes durable what it has, or hands it the next rows; whether something was done."""
        if self._now() < self._retry_s:
            return False
        call = self._due()
        if call is None:
            return False
        self._calling = (call, self._now(), self._clock())
        try:
            cursor = self._call(call)
        except Exception as error:  # noqa: BLE001  (whatever it is, nothing is lost: it is tried again, and said)
            try:
                if isinstance(error, Refused) and self._leave_out(error):
                    return True
            except OSError as full:
                error = OSError(f"a row that it refuses cannot be kept: {full}")
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
            # Rows that are handed over do not say that they can be made durable, nor the other way round.
            if self._failed == call:
                self._failed, self._trouble, self.failures = None, None, 0
            self._retry_s = 0.0
            self._changed.notify_all()
        return True

    def _due(self) -> Call | None:
        """What the sink is to do next."""
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
                call = "cursor"  # well again is what was made durable
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
        """Sets aside the rows that were refused too often; whether there are such. Raises OSError where they cannot be
        kept."""
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
        """Opens the sink again, and lets all rows come again that it may have lost; whether for the first time: then
        that is no trouble, but said."""
        rows, self._again = self._unsettled, len(self._written)
        self._pending.extendleft(reversed(self._written))
        self._written, self._unsettled, self._opened, self._settling = [], 0, False, bool(self._again)
        first, self._reopened = not self._reopened, True
        if first:
            self.notices.append(f"{first_line(error)}; it is opened again, and takes {rows:,} rows again")
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
        except Exception as error:  # noqa: BLE001  (it is left anyway; what it did not take is kept)
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
        """Rows that were another's go before those that wait."""
        with self._changed:
            for parcel in reversed(list(parcels)):
                self._pending.appendleft(parcel)
                self._unread[parcel.query] += parcel.rows.num_rows
            self._changed.notify_all()

    def ask(self) -> None:
        """Asks the sink to make durable what it was given. Does not wait for it."""
        with self._changed:
            if not self._written:
                return
            self._settling = True
            self._changed.notify_all()
        if self._thread is None:
            self.turn()

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for after `ask`: it is done, or the sink is in trouble."""
        return not self._settling or bool(self.failures)

    def settle(self, seconds: float) -> None:
        """Asks, and waits so long at the most. A sink in trouble is not waited for."""
        self.ask()
        if self._thread is not None:
            with self._changed:
                self._changed.wait_for(lambda: self.settled, seconds)

    def undelivered(self) -> list[Parcel]:
        """What the sink has not taken for good, in order."""
        with self._changed:
            return [*self._written, *self._pending]

    @property
    def rows_unread(self) -> int:
        """Rows that the sink has not taken for good."""
        return sum(self._unread.values())

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

    @property
    def oldest_s(self) -> float:
        """For how long the next row has been waiting to be handed over, in seconds."""
        with self._changed:
            return self._now() - self._pending[0].since if self._pending else 0.0

    def trouble(self) -> str | None:
        """What is wrong with the sink now, and since when: it fails, it does not return, or rows come faster than it
        takes them. Asked once a second."""
        full = next((n for n in self._unread.values() if n >= self._rows_max), None)
        self._full_since = "" if full is None else self._full_since or self._clock()
        if self._trouble is not None:
            return self._trouble
        calling = self._calling
        if calling is not None and self._now() - calling[1] >= SLOW_S:
            return f"the call to {_CALLED[calling[0]]} it has not returned since {calling[2]}; its rows wait"
        if full is not None:
            return f"rows come faster than it takes them: {full:,} wait since {self._full_since}, and their streams"
        return None

    def _clock(self) -> str:
        return f"{datetime.fromtimestamp(self._wall(), UTC):%Y-%m-%d %H:%M:%S} UTC"

    def close(self, seconds: float = 5.0) -> None:
        """Lets the sink go; waits so long for its thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            self._finish()
        else:
            self._thread.join(seconds)
