"""The heartbeat thread of a service, which never waits for the loop: it reports once a second that the process lives,
and ends the process if a stop takes too long."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds between two beats.
EVERY_S = 1.0
#: Seconds between two checks whether to stop.
LOOK_S = 0.1
_STOPS = (signal.SIGTERM, signal.SIGINT)


class Pulse:
    """Calls `beat` once a second. Calls `exit` with an exit code at a second SIGTERM or SIGINT, and, after `late`, if
    the process still runs `stop_s` seconds after the first one."""

    def __init__(
        self, beat: Callable[[], None], stop_s: float, late: Callable[[], None],
        exit: Callable[[int], object] = os._exit,
    ) -> None:  # fmt: skip
        self._beat = beat
        self._stop_s = stop_s
        self._late = late
        self._exit = exit
        self._until_s: float | None = None
        self._stopping = threading.Event()
        self._woken: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="hybrid-pulse", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread and waits for it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Watches signals too, within this block. Enter it in the main thread before `start`. Python's own handlers run
        only when the main thread returns from a call, such as one to a store that does not answer; the wakeup
        descriptor is written at once."""
        wakes, self._woken = socket.socketpair()
        for end in (wakes, self._woken):
            end.setblocking(False)
        before = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            self.stop()
            wakes.close()
            self._woken.close()

    def _run(self) -> None:
        due_s = time.monotonic()
        while not self._stopping.is_set():
            self._wait(due_s - time.monotonic())
            now_s = time.monotonic()
            if self._until_s is not None and now_s >= self._until_s:
                self._late()
                self._exit(1)
            if now_s >= due_s:
                due_s = now_s + EVERY_S
                self._beat()

    def _wait(self, seconds: float) -> None:
        """Waits `seconds`, at most LOOK_S; handles signals."""
        seconds = min(LOOK_S, max(0.0, seconds))
        if self._woken is None:
            self._stopping.wait(seconds)
        elif select.select([self._woken], [], [], seconds)[0]:
            for number in self._woken.recv(4096):
                if number in _STOPS:
                    if self._until_s is not None:
                        self._exit(128 + number)
                    self._until_s = time.monotonic() + self._stop_s
