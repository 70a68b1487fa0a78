"""The thread beside the loop of a service, which goes on whatever the loop waits for: it says once a second that the
process lives, and ends the process where a stop takes too long."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: How often it says so, in seconds.
EVERY_S = 1.0
#: How often it looks whether it is to stop, in seconds.
LOOK_S = 0.1
_STOPS = (signal.SIGTERM, signal.SIGINT)


class Pulse:
    """beat: called once a second. exit: ends the process with a code, as os._exit does: at a second SIGTERM or SIGINT,
    and where the process is still there `stop_s` after the first one, of which `late` then tells people."""

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
        """Returns when nothing is said any more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Looks at signals too, in a block that begins before `start`, in the main thread. Python's own handlers wait
        until that is back from a store that does not answer; what the interpreter writes to a descriptor comes at
        once."""
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
        """Returns after so long, or a little sooner."""
        seconds = min(LOOK_S, max(0.0, seconds))
        if self._woken is None:
            self._stopping.wait(seconds)
        elif select.select([self._woken], [], [], seconds)[0]:
            for number in self._woken.recv(4096):
                if number in _STOPS:
                    if self._until_s is not None:
                        self._exit(128 + number)
                    self._until_s = time.monotonic() + self._stop_s
