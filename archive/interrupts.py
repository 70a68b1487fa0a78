"""Ctrl-C waits until a change is whole: a block that changes several things runs to its end, then it is interrupted.

Python raises KeyboardInterrupt in the main thread, between any two instructions. A block in another thread is not
interrupted, and needs nothing. Blocks that may wait long (for a slow archive, for a reader) stay outside.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Deferred:
    """A context manager in which SIGINT is noted, and handed to its handler at the end of the block.

    Blocks may be nested: the outermost one decides. Entering and leaving costs about a microsecond. Not reusable while
    it is entered."""

    __slots__ = ("_handler", "_noted")

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._noted = False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or isinstance(getattr(handler, "__self__", None), Deferred):
            return  # ignored, the system's own, or an outer block holds it already
        self._handler = handler
        try:
            signal.signal(signal.SIGINT, self._note)
        except ValueError:  # an interpreter beside the main one gets no signals
            self._handler = None

    def __exit__(self, *_: object) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        signal.signal(signal.SIGINT, handler)
        if self._noted:
            self._noted = False
            handler(signal.SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True
