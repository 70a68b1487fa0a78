"""Calls a function of the user with the rows of a live query, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pyarrow as pa

from hybrid.watch.alerts import Alerts
from query.errors import Error, called_at, first_line, raised_at, warn


class Listener:
    """A thread that fetches the rows of a query and hands them to a function, until the query or the database ends.

    The function is called with one batch after the other, and may use the database. If it raises, the rows of this call
    and all later ones wait to be fetched, and a warning says so: no row is lost, and no push fails. If the query fails,
    the function gets the rows before, and a warning has the error."""

    def __init__(
        self, alerts: Alerts, callback: Callable[[pa.Table], object], of: str, after: Listener | None = None
    ) -> None:
        """of: the query, for messages. after: that of the version which this query replaces; its rows come first, and
        the function is never called twice at once."""
        self.alerts = alerts
        self.callback = callback
        self._of = of
        self._after = after
        self._calling: threading.Lock = threading.Lock() if after is None else after._calling
        self._turned = threading.Condition()
        self._called, self._calls, self._over = False, 0, False
        self._watched_at = called_at()  # the thread has no line of the user
        self._thread = threading.Thread(target=self._run, name=f"hybrid callback of {of}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._after is not None:
                self._after.give(None)
                self._after = None
            self._hand_on()
        finally:
            self._over = True
            self._turn(False)

    def _hand_on(self) -> None:
        while self.alerts.wait():
            self._turn(True)
            try:
                rows = self.alerts.fetch()
            except Error as error:
                warn(f"{self._of} has ended: {first_line(error)}", self._watched_at)
                return
            if rows.num_rows:
                try:
                    with self._calling:
                        self.callback(rows)
                except Exception as error:  # noqa: BLE001 (whatever the user's function raises)
                    self.alerts.put_back()
                    said = f"{type(error).__name__}: {first_line(error)}"
                    message = f"the callback of {self._of} is not called any more ({said}); its rows wait to be fetched"
                    warn(message, raised_at(error) or self._watched_at)
                    return
            self._turn(False)

    def _turn(self, called: bool) -> None:
        """Notes that the function is called, or has returned."""
        with self._turned:
            self._called, self._calls = called, self._calls + (not called)
            self._turned.notify_all()

    def follow(self, alerts: Alerts) -> Listener:
        """Returns the thread that calls the function with the rows of a new version of the query."""
        return Listener(alerts, self.callback, self._of, self)

    @property
    def runs(self) -> bool:
        """True until the function has had all rows, or has failed."""
        return self._thread.is_alive()

    @property
    def is_here(self) -> bool:
        """True in the function itself."""
        return threading.current_thread() is self._thread

    def give(self, until_s: float | None) -> bool:
        """Waits as `wait` does. Returns True if the function was called meanwhile."""
        before = self._calls
        self.wait(until_s)
        return self._calls != before

    def wait(self, until_s: float | None) -> bool:
        """Waits until the function has returned with the rows that are there now, until a time of time.monotonic at
        most. Returns False if it has not, and in the function itself. Others may push without end, so it does not wait
        for more: the call that runs now, and the next one, which gets all rows."""
        if self.is_here:
            return False
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        with self._turned:
            before = self._calls
            done = self._turned.wait_for(lambda: self._at_rest or self._calls >= before + 2, left_s)
            return done and not (self._over and self.alerts.unread_count)

    @property
    def _at_rest(self) -> bool:
        return self._over or not (self._called or self.alerts.unread_count)

    def join(self) -> None:
        """Waits until the function has had all rows, or has failed. Does nothing in the function itself."""
        if not self.is_here:
            self._thread.join()
