"""Defers Ctrl-C to the end of a block, so that a change of several objects is complete.

Python raises KeyboardInterrupt in the main thread, between any two instructions. Blocks in other threads are never
interrupted. Code that may wait long (for a slow archive or a reader) stays outside of such blocks.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Deferred:
    """Context manager that records SIGINT and calls its handler at the end of the block.

    Blocks may be nested: the outermost one calls the handler. Entering and leaving cost about a microsecond. One
    instance cannot be entered twice at a time."""

    __slots__ = ("_handler", "_noted")

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None
        self._noted = False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or isinstance(getattr(handler, "__self__", None), Deferred):
            return  # ignored, the system's default, or deferred by an outer block
        self._handler = handler
        try:
            signal.signal(signal.SIGINT, self._note)
        except ValueError:  # a subinterpreter gets no signals
            self._handler = None

    def __exit__(self, *_: object) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        if signal.getsignal(signal.SIGINT) == self._note:  # or what the handler has set
            signal.signal(signal.SIGINT, handler)
        if self._noted:
            self._noted = False
            handler(signal.SIGINT, None)

    def call(self) -> None:
        """Calls the handler now, in the middle of the block. It may set another handler."""
        handler = self._handler
        assert handler is not None
        self._noted = False
        signal.signal(signal.SIGINT, handler)
        try:
            handler(signal.SIGINT, None)
        finally:
            if signal.getsignal(signal.SIGINT) == handler:
                signal.signal(signal.SIGINT, self._note)

    @property
    def noted(self) -> bool:
        return self._noted

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted = True


def is_interrupted() -> bool:
    """True if a Ctrl-C waits for the end of a Deferred block of this thread."""
    return _waiting() is not None


def handle_waiting() -> None:
    """Calls the handler of a Ctrl-C that waits, between parts of work that has changed nothing yet. Python's own raises
    KeyboardInterrupt; that of a program that only notes the Ctrl-C lets the work go on."""
    owner = _waiting()
    if owner is not None:
        owner.call()


def _waiting() -> Deferred | None:
    if threading.current_thread() is not threading.main_thread():
        return None
    owner = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return owner if isinstance(owner, Deferred) and owner.noted else None


class Abandoned(Exception):
    """Work that may be done later was left off for a Ctrl-C."""


def go_on() -> None:
    """Raises Abandoned if a Ctrl-C waits."""
    if is_interrupted():
        raise Abandoned
