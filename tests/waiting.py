"""Waits that end by what happens: how busy the machine is, decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A guard against hanging, never what a test is about: a wait that takes so long fails its test.
GUARD_S = 120.0


def until(
    holds: Callable[[], object], step: Callable[[], object] = lambda: time.sleep(0.01),
    seen: Callable[[], object] = lambda: "",
) -> None:  # fmt: skip
    """Returns when something holds. step: what is done before it is looked at again. seen: said if it never holds."""
    end = time.monotonic() + GUARD_S
    while not holds():
        assert time.monotonic() < end, f"it did not come to pass: {seen()}"
        step()
