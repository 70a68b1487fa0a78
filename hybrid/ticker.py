"""One thread that looks at the clock for a database: silent sources, silent streams, checkpoints that are due."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

from query.errors import HybridWarning

#: What the thread is called, and how often it looks, in seconds.
TICKER = "hybrid-ticker"
EVERY_S = 0.25
#: How long its end is waited for, in seconds.
STOP_S = 5.0


class Ticker:
    """Started by start, stopped by stop; calls `tick` in between. An error of one call is a warning; the next one comes
    all the same."""

    def __init__(self, tick: Callable[[], None], every_s: float = EVERY_S) -> None:
        self._tick = tick
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=TICKER, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended, or STOP_S are over. Not to be called by whoever holds what `tick` waits
        for."""
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001  (a stopped clock would hold every watermark, unsaid)
                message = f"looking at the clock failed, and is tried again: {error!r}"
                warnings.warn(message, HybridWarning, stacklevel=1)
