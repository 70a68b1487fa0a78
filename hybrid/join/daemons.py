"""An executor of daemon threads, which do not delay the end of the process.

The executors of concurrent.futures join their threads at exit: after Ctrl-C a process would wait for a slow archive.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Daemons(Executor):
    """An executor of at most threads_max daemon threads, started on demand and kept until `shutdown`. Calls start in
    the order of submission."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0  # idle threads minus queued calls

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        """Queues a call and returns its future."""
        future: Future[T] = Future()
        with self._lock:
            self._idle -= 1
            start = self._idle < 0 and self._started < self._threads_max
            if start:
                self._started += 1
                self._idle += 1
                name = f"{self._name}_{self._started}"
        self._calls.put((future, lambda: call(*given, **named)))
        if start:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends each thread after the submitted calls, without waiting. Nothing may be submitted afterwards."""
        for _ in range(self._started):
            self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001  (future.result() raises it)
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, call, item
            with self._lock:
                self._idle += 1
