"""Threads for work beside a database, which the end of the process does not wait for.

The pools of concurrent.futures join their threads when the interpreter ends: after Ctrl-C a process would stay until a
slow archive has answered.
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
    """An executor of at most so many daemon threads, which are started when they are needed and stay. Calls are run in
    the order in which they were submitted."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0  # threads that wait for a call, less the calls that none has taken yet

    def submit(self, call: Callable[P, T], /, *given: P.args, **named: P.kwargs) -> Future[T]:
        """Lets a thread run the call."""
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

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            if future.set_running_or_notify_cancel():
                try:
                    result = call()
                except BaseException as error:  # noqa: BLE001  (it is raised where the result is taken)
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, call
            with self._lock:
                self._idle += 1
