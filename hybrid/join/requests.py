"""History is asked beside the stream: live detection goes on while an archive is slow.

One request of a query runs at a time, in a thread of a pool, so rows come out in the order of PL. What is
found meanwhile waits, and goes into the next request together. A push waits for its answer where that takes a small
share of the time only: then its rows are there when it returns, as if nothing ran beside it. One request is waited for
once: a slow archive does not hold up the pushes behind that one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from functools import cache
from typing import Any

from hybrid.join.daemons import Daemons
from hybrid.join.driver import Driver, History
from hybrid.rows.answer import Answer

#: The share of the time that pushes may wait for answers, and the seconds that one may wait if none has waited lately.
PATIENCE, PATIENCE_S = 0.2, 1.0
#: Requests that run at a time: a read uses all threads of DuckDB already, but a slow archive must not hold up others.
READERS_MAX = 4
#: What the names of these threads begin with.
POOLS = "hybrid-asking-"


@dataclass(frozen=True, slots=True)
class Pools:
    """The threads that ask. readers: read history, so many at a time; takers: one, which takes answers that came late,
    and may wait for the lock of a database."""

    readers: Executor
    takers: Executor


def pools() -> Pools:
    """Those of this process, for all its databases."""
    return _pools(os.getpid())


@cache
def _pools(process: int) -> Pools:
    return Pools(Daemons(READERS_MAX, f"{POOLS}history"), Daemons(1, f"{POOLS}answers"))


class Asking:
    """Lets the requests of one driver run in a pool. `settle` is called with the lock of the database held.

    pool: None: requests run where they are begun. over: called in a thread of the pool, without the lock, when a
    request is over; it must not wait for the lock either."""

    __slots__ = ("_given_up", "_over", "_patience_s", "_pool", "_running", "_waited_s", "driver")

    def __init__(self, driver: Driver, pool: Executor | None, over: Callable[[], None]) -> None:
        self.driver = driver
        self._pool = pool
        self._over = over
        self._running: Future[Answer | None] | None = None
        self._given_up: Future[Answer | None] | None = None  # has been waited for long enough
        self._patience_s = PATIENCE_S
        self._waited_s = time.monotonic()

    def prepare(self, histories: Mapping[str, History]) -> None:
        """Looks at history before a match asks for it: what a first read has to load and to compile is there then."""
        if self._pool is not None and self._running is None:
            self._running = self._pool.submit(self.driver.warm, histories)
            self._running.add_done_callback(lambda _: self._over())

    def settle(
        self, histories: Mapping[str, History], watermark_us: int | None, ended: bool, events: int | None
    ) -> Iterator[Answer]:
        """Gives what has been answered by now, one after the other; begins a request if none runs. See Driver.begin.
        Raises what one failed of, after the answers before it."""
        while True:
            if self._running is not None:
                if self._running is not self._given_up and self.driver.waiting_count:
                    self._wait(self._running)
                if not self._running.done():
                    return
                running, self._running = self._running, None
                answer = running.result()
                if answer is not None:
                    yield self.driver.finish(answer)
            request = self.driver.begin(histories, False, watermark_us, ended, events, self._pool is None)
            if request is None:
                return
            if self._pool is None:
                yield self.driver.finish(request())
                continue
            self._running = self._pool.submit(request)
            self._running.add_done_callback(lambda _: self._over())

    def _wait(self, running: Future[Answer | None]) -> None:
        """Returns when a request is over, or patience has run out."""
        if running.done():
            return
        self._given_up = running
        now_s = time.monotonic()
        self._patience_s = min(PATIENCE_S, self._patience_s + PATIENCE * (now_s - self._waited_s))
        self._waited_s = now_s
        if self._patience_s > 0:
            wait([running], self._patience_s)
            self._waited_s = time.monotonic()
            self._patience_s -= self._waited_s - now_s

    @property
    def running(self) -> Future[Any] | None:
        """The request that runs, or whose answer nobody has taken yet."""
        return self._running
