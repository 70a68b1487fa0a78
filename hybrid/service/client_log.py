"""Forwards the log of broker clients to the service log: each kind of line once a minute, with its count."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from hybrid.service.repeated import Repeated

#: The parent of the loggers of all sources and sinks.
LOGGER = "live"
_NUMBERS = re.compile(r"\d+")


class ClientLog(logging.Handler):
    """Forwards lines to `said` between `start` and `stop`. Thread safe. Lines that differ only in numbers are of one
    kind. level: lines of lower levels are dropped."""

    def __init__(
        self, said: Repeated, now: Callable[[], float] = time.monotonic, level: int = logging.WARNING
    ) -> None:
        super().__init__(level)
        self._said = said
        self._now = now

    def start(self) -> None:
        logger = logging.getLogger(LOGGER)
        logger.addHandler(self)
        logger.propagate = False

    def stop(self) -> None:
        logger = logging.getLogger(LOGGER)
        logger.removeHandler(self)
        logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = " ".join(record.getMessage().split())
        except Exception:  # noqa: BLE001  (a client's malformed log call must not fail the service)
            text = str(record.msg)
        name = record.name.removeprefix("live.")
        line = f"{name}: {record.levelname.lower()}: {text}"

        def again(count: int) -> str:
            return f"{line} ({'once more' if count == 1 else f'{count:,} more like it, the last one'})"

        self._said.add(name, _NUMBERS.sub("0", text), line, again, self._now())
