"""Work that may take long asks now and then whether it is to stop, and says how far it is.

Who starts it holds a Stop, sets `asked` at its time, and so ends it at the next question: nothing below has a clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


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


@contextmanager
def stopping(stop: Stop) -> Iterator[None]:
    """Within, `heed` asks this Stop."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def heed(rows: int = 0) -> None:
    """Raises Stopped if the work is to stop. rows: matched since the last call."""
    stop = _stop.get()
    if stop is not None:
        stop.rows += rows
        if stop.asked:
            raise Stopped


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
