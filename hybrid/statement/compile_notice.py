"""A word on the terminal where kernels are compiled for more than a second: once for each release and machine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds after which people want to know what takes so long; what takes COMPILED_S is not read from the cache.
PATIENCE_S, COMPILED_S = 1.0, 0.1
TEXT = "hybrid compiles what this query needs, once for this release: some seconds ..."

_inside, _spent_s = False, 0.0
#: True while `hybrid.statement.progress` shows TEXT among the rest.
told_elsewhere = False


def compiles() -> bool:
    """True while a kernel is compiled or read from the cache."""
    return _inside


@contextmanager
def noticed() -> Iterator[None]:
    """Shows TEXT on stderr once compilation has taken PATIENCE_S in this process, until it ends; one inside of another
    shows nothing."""
    global _inside, _spent_s  # numba compiles in one thread at a time
    if _inside:
        yield
        return
    shown = threading.Event()

    def show() -> None:
        if told_elsewhere:
            return
        shown.set()
        sys.stderr.write(TEXT)
        sys.stderr.flush()

    timer = threading.Timer(max(COMPILED_S, PATIENCE_S - _spent_s), show)
    timer.daemon = True
    timer.start()
    _inside, began = True, time.perf_counter()
    try:
        yield
    finally:
        _inside, took = False, time.perf_counter() - began
        _spent_s += took if took > COMPILED_S else 0.0
        timer.cancel()
        timer.join()
        if shown.is_set():
            sys.stderr.write("\r" + " " * len(TEXT) + "\r")
            sys.stderr.flush()


def tell_people() -> None:
    """Lets compilation show the notice, if stderr is a terminal."""
    from matching.kernels import jit

    jit.while_compiling = noticed if sys.stderr is not None and sys.stderr.isatty() else jit.nullcontext
