"""Calls a function of the user with the rows of a live query, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa

from hybrid.watch.alerts import Alerts
from query.errors import Error, called_at, first_line, raised_at, warn


class Listener:
    """A thread that fetches the rows of a query and hands them to a function, until the query or the database ends.

    The function is called with one batch after the other, and may use the database. If it raises, the rows of this call
    and all later ones wait to be fetched, and a warning says so: no row is lost, and no push fails. If the query fails,
    the function gets the rows before, and a warning has the error."""

    def __init__(self, alerts: Alerts, callback: Callable[[pa.Table], object], of: str) -> None:
        """of: the query, for messages."""
        self._alerts = alerts
        self._callback = callback
        self._of = of
        self._watched_at = called_at()  # the thread has no line of the user
        self._thread = threading.Thread(target=self._run, name=f"hybrid callback of {of}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._alerts.wait():
            try:
                rows = self._alerts.fetch()
            except Error as error:
                warn(f"{self._of} has ended: {first_line(error)}", self._watched_at)
                return
            if rows.num_rows:
                try:
                    self._callback(rows)
                except Exception as error:  # noqa: BLE001 (whatever the user's function raises)
                    self._alerts.put_back()
                    said = f"{type(error).__name__}: {first_line(error)}"
                    message = f"the callback of {self._of} is not called any more ({said}); its rows wait to be fetched"
                    warn(message, raised_at(error) or self._watched_at)
                    return

    @property
    def runs(self) -> bool:
        """True until the function has had all rows, or has failed."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Waits until the function has had all rows, or has failed. Does nothing in the function itself."""
        if threading.current_thread() is not self._thread:
            self._thread.join()
