"""Reads history in threads, so that live detection continues while an archive is slow.

Each query runs one request at a time, so rows are in the order of the live pattern. Matches found meanwhile stay
pending and share the next request. A push waits for its answer within a small share of the time, so that its rows are
usually available when it returns. Only one push waits for a request: a slow archive does not delay later pushes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from functools import cache
from typing import Any

from hybrid.join.apart import UNCOMPUTED, answers_apart
from hybrid.join.daemons import Daemons
from hybrid.join.driver import Driver, HistoryStream
from hybrid.rows.answer import Answer

#: Share of the time that pushes may wait for answers, and most seconds that one may wait if none has waited lately.
PATIENCE, PATIENCE_S = 0.2, 1.0
#: Most parallel requests. One read uses all threads of DuckDB already, but a slow archive must not delay others.
READERS_MAX = 4
#: Name prefix of these threads.
POOLS = "hybrid-asking-"


@dataclass(frozen=True, slots=True)
class Pools:
    """Thread pools of requests. readers: read history, up to READERS_MAX in parallel. takers: one thread, which
    collects late answers and may wait for the lock of a database."""

    readers: Executor
    takers: Executor


def pools() -> Pools:
    """Returns the thread pools of this process, shared by all its databases."""
    return _pools(os.getpid())


@cache
def _pools(process: int) -> Pools:
    return Pools(Daemons(READERS_MAX, f"{POOLS}history"), Daemons(1, f"{POOLS}answers"))


class Asking:
    """Runs the requests of one driver in a pool. `settle` is called with the lock of the database held.

    pool: None: requests run in the calling thread. over: called in a pool thread, without the lock, when a request
    completes; it must not wait for the lock. late: late rows of histories count, too."""

    __slots__ = ("_given_up", "_late", "_over", "_patience_s", "_pool", "_running", "_waited_s", "driver")

    def __init__(
        self, driver: Driver, pool: Executor | None, over: Callable[[], None], late: bool = False
    ) -> None:
        self.driver = driver
        self._late = late
        self._pool = pool
        self._over = over
        self._running: Future[Answer | None] | None = None
        self._given_up: Future[Answer | None] | None = None  # a push has waited for it already
        self._patience_s = PATIENCE_S
        self._waited_s = time.monotonic()

    def prepare(self, histories: Mapping[str, HistoryStream]) -> None:
        """Reads a bit of history before the first request, so that code is loaded and compiled by then."""
        if self._pool is not None and self._running is None:
            self._running = self._pool.submit(self.driver.warm, histories)
            self._running.add_done_callback(lambda _: self._over())

    def settle(
        self, histories: Mapping[str, HistoryStream], watermark_us: int | None, ended: bool, events: int | None
    ) -> Iterator[Answer]:
        """Yields the completed answers in order, and begins a request if none runs. See Driver.begin. If one fails,
        yields the answers of matches before those that cannot be joined, and raises the error of the first one."""
        failed: Exception | None = None

        def begin(most: int | None, sample: bool) -> Callable[[], Answer] | None:
            return self.driver.begin(histories, self._late, watermark_us, ended, events, sample, most)

        def leave_out(error: Exception) -> None:
            nonlocal failed
            failed = failed or error
            self.driver.leave_out_first()

        while True:
            try:
                yield from self._settled(lambda: begin(None, self._pool is None))
                return
            except UNCOMPUTED:
                yield from answers_apart(self.driver, lambda most: begin(most, False), leave_out)
                if failed is not None:
                    raise failed from None

    def _settled(self, begin: Callable[[], Callable[[], Answer] | None]) -> Iterator[Answer]:
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
            request = begin()
            if request is None:
                return
            if self._pool is None:
                yield self.driver.finish(request())
                continue
            self._running = self._pool.submit(request)
            self._running.add_done_callback(lambda _: self._over())

    def _wait(self, running: Future[Answer | None]) -> None:
        """Waits until the request completes, at most for the remaining patience."""
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
        """The request that runs, or whose answer was not collected yet; None without one."""
        return self._running
