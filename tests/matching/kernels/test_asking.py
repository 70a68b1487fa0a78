"""A Ctrl-C that comes as compiled code calls Python."""

from __future__ import annotations

import signal
import sys
from typing import Any

import pytest

from hybrid.rows.duck import interruptible
from matching.kernels import asking
from query.stopping import heed


def ask_and_heed(monkeypatch: pytest.MonkeyPatch) -> None:
    with interruptible():
        handler: Any = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(asking, "_answer", lambda number: handler(signal.SIGINT, sys._getframe(1)) or 7)
        assert asking._asked(0) == 7
        heed()
        raise AssertionError("heed has raised nothing")


def test_what_python_would_drop_is_raised_by_the_next_heed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what is raised as a function begins that compiled code calls."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a session of Spark has set another one
    try:
        with pytest.raises(KeyboardInterrupt):
            ask_and_heed(monkeypatch)
    finally:
        signal.signal(signal.SIGINT, before)
    heed()  # nothing of it stays
