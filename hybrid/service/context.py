"""Shared by the parts of a service: the app, the database, the clock, the log and the faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hybrid.database.database import Database
from hybrid.service.app import App
from hybrid.service.repeated import Repeated
from hybrid.service.trouble import Trouble


def _wait(event: threading.Event, seconds: float) -> None:
    event.wait(seconds)


@dataclass(frozen=True, slots=True)
class Clock:
    """now: seconds since 1970; ticks: monotonic seconds; wait: waits until an event is set or seconds have passed."""

    now: Callable[[], float] = time.time
    ticks: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], None] = _wait


@dataclass(slots=True)
class Context:
    """The state that the parts of a service share. Only the thread of the loop changes it.

    app: replaced by a reload. say: writes a log line. threads: False makes the loop do all work itself, in order.
    wake: ends a pause of the loop. db: opened by `Service.start`, and again when queries go back to the last
    checkpoint. doing: the present work of the loop, for the status."""

    app: App
    say: Callable[[str], None]
    clock: Clock
    threads: bool
    trouble: Trouble
    repeated: Repeated
    wake: threading.Event = field(default_factory=threading.Event)
    db: Database = field(init=False)
    doing: str = ""
