"""Work that may take long asks now and then whether it is to stop, and says how far it is.

Who starts it holds a Stop, sets `asked` at its time, and so ends it at the next question: nothing below has a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FrameType


class Stopped(Exception):
    """The work was asked to stop."""


@dataclass(slots=True)
class Stop:
    """asked: True if the work is to stop. rows: how many have been matched so far, of `total`, as far as that is known.
    bytes_max: memory that partial matches may take; None: any."""

    bytes_max: int | None = None
    asked: bool = False
    rows: int = 0
    total: int | None = None


_stop: ContextVar[Stop | None] = ContextVar("stop", default=None)
#: Functions that compiled code calls: Python prints and drops what is raised as they begin.
_dropping: set[CodeType] = set()
_interrupted = False


def drops(*functions: Callable[..., object]) -> None:
    """Notes functions that compiled code calls, of which the last one heeds within."""
    _dropping.update(function.__code__ for function in functions)


def is_dropped(frame: FrameType | None) -> bool:
    """True if Python would drop a KeyboardInterrupt that is raised in a frame of the main thread: the next `heed` there
    raises it then."""
    global _interrupted
    dropped = frame is not None and frame.f_code in _dropping
    _interrupted = _interrupted or dropped
    return dropped


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    """Within, `heed` asks this Stop."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def clear_dropped() -> None:
    """Forgets a KeyboardInterrupt that `heed` has not raised: it is raised otherwise."""
    global _interrupted
    _interrupted = False


def heed(rows: int = 0) -> None:
    """Raises Stopped if the work is to stop, and a KeyboardInterrupt that would have been dropped. rows: matched since
    the last call."""
    global _interrupted
    if _interrupted and threading.current_thread() is threading.main_thread():
        _interrupted = False
        raise KeyboardInterrupt
    stop = _stop.get()
    if stop is not None:
        stop.rows += rows
        if stop.asked:
            raise Stopped


def is_asked() -> bool:
    """True if the work is to stop."""
    stop = _stop.get()
    return stop is not None and stop.asked


def expect(rows: int) -> None:
    """Notes that so many rows more are to be matched. Those that were matched before, while they were read, belong to
    the total."""
    stop = _stop.get()
    if stop is not None:
        stop.total = (stop.rows if stop.total is None else stop.total) + rows


def bytes_max() -> int | None:
    """Returns the memory that partial matches may take; None: any."""
    stop = _stop.get()
    return None if stop is None else stop.bytes_max
