"""The clocks of a database: they advance watermarks, shed keys under overload, and refuse events too far ahead."""

from __future__ import annotations

import time
from collections.abc import Callable

from hybrid.watch.flow import Flow
from hybrid.watch.stream import Stream
from hybrid.watch.ticker import SteadyClock, Ticker, since_boot_s


class Clocks:
    """The clocks of a database and the thread that reads them. tick: called by the thread; None: no thread, the user
    calls Database.tick. always: whether the thread is needed without paced streams and shedding queries too."""

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
        """Starts the thread if it is needed. Returns the thread, or None if none runs."""
        needed = self._always or self.paced or any(q.events.shedding is not None for q in self._flow.queries)
        if needed and self.ticker is None and self._tick is not None:
            self.ticker = Ticker(self._tick)
            self.ticker.start()
        return self.ticker

    def stop(self) -> None:
        """Stops the thread and waits for it. Call it without the database's lock, for which the thread may wait."""
        if self.ticker is not None:
            self.ticker.stop()

    def look(self, now_s: float | None, wall_us: int | None) -> list[str]:
        """Raises watermarks by the clock and adjusts load shedding. Returns warnings. now_s, wall_us: see
        Database.tick."""
        boot_s = since_boot_s() if now_s is None else now_s
        now_s = time.monotonic() if now_s is None else now_s
        wall_us = time.time_ns() // 1000 if wall_us is None else wall_us
        paced = [s for s in self._flow.streams.values() if s.pace.ticks and not s.live.driven and not s.ended]
        paced = [s for s in paced if s.owed is None]  # else owed events would come behind the watermark
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
        """Returns the latest event time that a stream accepts (None: no limit), and warnings about the clock."""
        ahead_us = stream.pace.ahead_us
        if ahead_us is None:
            return None, []
        said = self.steady.look(time.time_ns() // 1000, since_boot_s())
        assert self.steady.latest_us is not None
        return self.steady.latest_us + ahead_us, said
