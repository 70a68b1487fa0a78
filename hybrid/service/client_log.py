"""What the clients of brokers log, said by the service: each kind of line once a minute, with how often it came."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from hybrid.service.repeated import Repeated

#: The logger under which all sources and sinks have theirs.
LOGGER = "live"
_NUMBERS = re.compile(r"\d+")


class ClientLog(logging.Handler):
    """Hands lines to `said`, from whatever thread, between `start` and `stop`. Lines that differ in numbers only are of
    one kind. level: what is less is not said."""

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
        except Exception:  # noqa: BLE001  (a client's line is not worth more)
            text = str(record.msg)
        name = record.name.removeprefix("live.")
        line = f"{name}: {record.levelname.lower()}: {text}"

        def again(count: int) -> str:
            return f"{line} ({'once more' if count == 1 else f'{count:,} more like it, the last one'})"

        self._said.add(name, _NUMBERS.sub("0", text), line, again, self._now())
