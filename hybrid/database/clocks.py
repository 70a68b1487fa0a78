"""The clocks of a database: they advance watermarks, shed keys under overload, and refuse events too far ahead."""

from __future__ import annotations

import time
from collections.abc import Callable

from hybrid.watch.flow import Flow
from hybrid.watch.stream import Stream
from hybrid.watch.ticker import SteadyClock, Ticker, since_boot_s


class Clocks:
    """The clocks of a database, and the thread that looks at them. tick: what that calls; None: nobody but the user
    looks. always: whether it is needed in any case."""

    def __init__(self, flow: Flow, tick: Callable[[], None] | None, always: bool) -> None:
        self._flow = flow
        self._tick = tick
        self._always = always
        self.steady = SteadyClock()
        self.ticker: Ticker | None = None

    @property
    def paced(self) -> bool:
        """Returns whether time alone may raise a watermark."""
        return any(s.pace.ticks for s in self._flow.streams.values())

    def wind(self) -> Ticker | None:
        """Starts the thread, if it is needed and does not run. Returns it, if it runs."""
        needed = self._always or self.paced or any(q.events.shedding is not None for q in self._flow.queries)
        if needed and self.ticker is None and self._tick is not None:
            self.ticker = Ticker(self._tick)
            self.ticker.start()
        return self.ticker

    def stop(self) -> None:
        """Returns when the thread has ended. Not to be called with the database's lock, for which that may wait."""
        if self.ticker is not None:
            self.ticker.stop()

    def look(self, now_s: float | None, wall_us: int | None) -> list[str]:
        """Raises watermarks, and leaves out keys or takes them in again. Returns what is to be said of that. now_s,
        wall_us: see Database.tick."""
        boot_s = since_boot_s() if now_s is None else now_s
        now_s = time.monotonic() if now_s is None else now_s
        wall_us = time.time_ns() // 1000 if wall_us is None else wall_us
        paced = [s for s in self._flow.streams.values() if s.pace.ticks and not s.live.driven and not s.ended]
        trouble = self.steady.look(wall_us, boot_s) if paced else []
        for stream in paced:
            trouble += self.steady.confirm(stream.live.newest_us if stream.news else None)
        for stream in paced:
            assert self.steady.earliest_us is not None
            reached_us = stream.tick(now_s, self.steady.earliest_us)
            if reached_us is not None:
                trouble += self._flow.raised(stream, reached_us)
        for query in self._flow.queries:
            if query.events.shedding is not None:
                trouble += query.events.look(now_s, wall_us, query.name)
        return trouble

    def ceiling(self, stream: Stream) -> tuple[int | None, list[str]]:
        """Returns the time that events of a stream may not be beyond, if there is one; and what is to be said of the
        clock."""
        ahead_us = stream.pace.ahead_us
        if ahead_us is None:
            return None, []
        said = self.steady.look(time.time_ns() // 1000, since_boot_s())
        assert self.steady.latest_us is not None
        return self.steady.latest_us + ahead_us, said
