"""The present faults of a service: logged when they are new and when they end, and shown in the status."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from query.errors import DataError, HybridWarning, QueryError

#: Seconds after which a write to the archive, or a turn of the loop, is reported as slow.
SLOW_S = 5.0


class Trouble:
    """The present faults, by component. say: writes a log line. Thread safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._guard = threading.Lock()
        self._faults: dict[str, str] = {}

    def fault(self, where: str, what: str) -> None:
        """Sets the fault of a component, and logs it if it is new."""
        head = _head(what)
        with self._guard:
            new = _head(self._faults.get(where, "")) != head
            self._faults[where] = what
        if new:
            self._say(f"{where}: {head}")

    def well(self, where: str) -> None:
        """Ends the fault of a component, and logs that it has recovered."""
        with self._guard:
            ended = self._faults.pop(where, None) is not None
        if ended:
            self._say(f"{where}: recovered")

    def judge(self, where: str, what: str | None) -> None:
        """Sets the fault of a component, or ends it if there is none."""
        if what is None:
            self.well(where)
        else:
            self.fault(where, what)

    def forget(self, where: str) -> None:
        """Ends the fault of a component without a log line."""
        with self._guard:
            self._faults.pop(where, None)

    def faults(self) -> dict[str, str]:
        """Returns a copy of the present faults."""
        with self._guard:
            return dict(self._faults)

    def __contains__(self, where: str) -> bool:
        return where in self._faults

    @contextmanager
    def warned(self, where: str) -> Iterator[None]:
        """Logs the warnings of Hybrid that the block raises."""
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", HybridWarning)
            yield
        for warning in found:
            if issubclass(warning.category, HybridWarning):
                self._say(f"{where}: {warning.message}")


def _head(what: str) -> str:
    """Returns a fault without its count of failures, which changes."""
    return what.split(" (failed")[0]


def is_slow(seconds: float) -> bool:
    """True if a write or a turn of the loop that takes so long is reported."""
    return seconds > SLOW_S


def pending_since(when: float) -> str:
    """Returns the report of a write that does not end. when: its start, in seconds since 1970."""
    return f"a write has been pending since {clock(when)}: the disk or the store is slow or does not answer"


def clock(when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%H:%M:%S} UTC"


def said(error: Exception) -> str:
    """Returns the text of an error, with its type if it is none of ours or of the system."""
    known = isinstance(error, (QueryError, DataError, OSError))
    return str(error) if known else f"{type(error).__name__}: {error}"
