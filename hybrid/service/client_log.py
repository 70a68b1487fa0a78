"""What the clients of brokers log, said by the service: each line of a kind once a minute, with how often it came."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

#: The logger under which all sources and sinks have theirs.
LOGGER = "live"
#: A line of one kind is said once in so many seconds; so many kinds are told apart.
AGAIN_S, KINDS_MAX = 60.0, 1000
_NUMBERS = re.compile(r"\d+")


class ClientLog(logging.Handler):
    """Hands lines to `say`, from whatever thread, between `start` and `stop`. Lines that differ in numbers only are of
    one kind. level: what is less is not said."""

    def __init__(
        self, say: Callable[[str], None], now: Callable[[], float] = time.monotonic, level: int = logging.WARNING
    ) -> None:
        super().__init__(level)
        self._say = say
        self._now = now
        self._guard = threading.Lock()
        self._kinds: dict[str, tuple[float, int]] = {}  # when it was last said, and how often it came since

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
        kind, now = f"{record.name} {_NUMBERS.sub('0', text)}", self._now()
        with self._guard:
            said, since = self._kinds.get(kind, (None, 0))
            if said is not None and now - said < AGAIN_S:
                self._kinds[kind] = said, since + 1
                return
            if len(self._kinds) >= KINDS_MAX:
                self._kinds.clear()
            self._kinds[kind] = now, 0
        more = f" ({since:,} more since it was last said)" if since else ""
        self._say(f"{record.name.removeprefix('live.')}: {record.levelname.lower()}: {text}{more}")
