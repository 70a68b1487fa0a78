"""The clocks of a database: one that does not jump, and a thread that looks at them for silent sources, silent streams,
and checkpoints that are due."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable

from hybrid.rows.times import show_duration
from query.errors import HybridWarning

#: What the thread is called, and how often it looks, in seconds.
TICKER = "hybrid-ticker"
EVERY_S = 0.25
#: How long its end is waited for, in seconds.
STOP_S = 5.0
#: The time of day that differs by more from what has gone by has jumped, in microseconds; less is a correction, which
#: is followed by so many seconds in a second.
JUMP_US, FOLLOWED = 10_000_000, 0.05


def since_boot_s() -> float:
    """Seconds of a clock that never goes back and goes on while the machine is suspended; where there is none such
    (outside of Linux), of time.monotonic, to which a suspension is a jump of the time of day."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SteadyClock:
    """The time of day without its jumps: as it was at the first look, plus what has gone by since then.

    Of the two, the time of day as it is (`wall_us`) and as it would be (`steady_us`), nobody knows which is right after
    a jump. So each use takes the careful one: `earliest_us` is what a watermark may follow, `latest_us` what an event
    may not be too far ahead of. None before the first look."""

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
        """Looks at the time of day, and at a clock that never goes back. What is to be said of a jump, once."""
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
            return ["the clock of this machine is again where it was before it jumped"]
        jump, way = show_duration(abs(off_us) // 1_000_000 * 1_000_000), "forward" if off_us > 0 else "back"
        return [
            f"the clock of this machine has jumped {way} by {jump}: no watermark moves by that, heartbeats go on as if "
            "it had not, and events may be as far ahead as either time allows"
        ]

    def confirm(self, newest_us: int | None) -> list[str]:
        """Takes the time of day for right where it has jumped forward and an event has come that is nearer to it."""
        if self.steady_us is None or newest_us is None or self.wall_us - self.steady_us <= JUMP_US:
            return []
        if newest_us - self.steady_us <= (self.wall_us - self.steady_us) // 2:
            return []
        self.steady_us, self._told_us = self.wall_us, 0
        return ["events have come of the time that the clock of this machine has jumped to: it counts from now on"]


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
