"""The clocks of a database: a steady time of day, and a thread that checks idle sources, heartbeats and due
checkpoints."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hybrid.rows.times import show_duration
from query.errors import warn

#: Name of the thread, and its interval in seconds.
TICKER = "hybrid-ticker"
EVERY_S = 0.25
#: Seconds that `stop` waits for the thread.
STOP_S = 5.0
#: A difference of more microseconds between the time of day and the time elapsed is a jump; a smaller one is a
#: correction, followed at this many seconds in a second.
JUMP_US, FOLLOWED = 10_000_000, 0.05


def since_boot_s() -> float:
    """Returns seconds of a monotonic clock that continues while the machine is suspended; outside of Linux of
    time.monotonic, for which a suspension is a jump of the time of day."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """The time of day without its jumps: that of the first look, plus the time elapsed since.

    After a jump either the time of day (`wall_us`) or the steady time (`steady_us`) may be right. Each use takes the
    careful one: a watermark may follow `earliest_us`, and `latest_us` bounds how far ahead an event may be. None before
    the first look."""

    __slots__ = ("_boot_s", "_told_us", "steady_us", "wall_us")

    def __init__(self) -> None:
        self.steady_us: int | None = None
        self.wall_us = 0
        self._boot_s = 0.0
        self._told_us = 0

    @property
    def earliest_us(self) -> int | None:
        return None if self.steady_us is None else min(self.steady_us, self.wall_us)

    @property
    def latest_us(self) -> int | None:
        return None if self.steady_us is None else max(self.steady_us, self.wall_us)

    def look(self, wall_us: int, boot_s: float) -> list[str]:
        """Reads the time of day and a monotonic clock. Returns a warning of a jump, once."""
        if self.steady_us is None:
            self.steady_us = wall_us
        else:
            gone_us = max(0, round((boot_s - self._boot_s) * 1e6))
            self.steady_us += gone_us
            off_us = wall_us - self.steady_us
            if abs(off_us) <= JUMP_US:
                most_us = round(gone_us * FOLLOWED)
                self.steady_us += max(-most_us, min(off_us, most_us))
        self.wall_us, self._boot_s = wall_us, boot_s
        off_us = wall_us - self.steady_us
        if abs(off_us - self._told_us) <= JUMP_US:
            return []
        self._told_us = off_us if abs(off_us) > JUMP_US else 0
        if not self._told_us:
            return ["the clock of this machine has returned to its time before the jump"]
        jump, way = show_duration(abs(off_us) // 1_000_000 * 1_000_000), "forward" if off_us > 0 else "back"
        return [
            f"the clock of this machine has jumped {way} by {jump}: no watermark moves by that, heartbeats "
            "continue as if it had not, and events may be as far ahead as either time allows"
        ]

    def confirm(self, newest_us: int | None) -> list[str]:
        """Accepts the time of day after a jump forward once an event has a time nearer to it. Returns a notice of
        that."""
        if self.steady_us is None or newest_us is None or self.wall_us - self.steady_us <= JUMP_US:
            return []
        if newest_us - self.steady_us <= (self.wall_us - self.steady_us) // 2:
            return []
        self.steady_us, self._told_us = self.wall_us, 0
        return ["events confirm the time that the clock of this machine has jumped to: it is used from now on"]


class Ticker:
    """A thread that calls `tick` at an interval. An error of a call becomes a warning, and the next call follows."""

    def __init__(self, tick: Callable[[], None], every_s: float = EVERY_S) -> None:
        self._tick = tick
        self._every_s = every_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=TICKER, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread, waiting up to STOP_S. The caller must not hold a lock that `tick` waits for."""
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001  (a stopped clock would silently hold every watermark)
                message = f"checking the clock failed and is retried: {error!r}"
                warn(message)
