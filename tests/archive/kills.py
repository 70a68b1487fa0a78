"""How processes are killed, and how often: a few times in the suite, KILLS=100 times and more in `make nightly`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

#: Kills of one archive that is written and maintained, at all of its named points in turn.
KILLS = int(os.environ.get("KILLS", "2"))
#: Kills at each named point of a job that archives files.
ROUNDS = 3 if KILLS >= 60 else 1


class Death:
    """Of this process, by SIGKILL, at the count-th time it passes the named point."""

    def __init__(self, point: str, count: int) -> None:
        self._point = point
        self._left = count

    def next_at(self, name: str) -> bool:
        """Whether passing the point of that name would be the end."""
        return name == self._point and self._left == 1

    def passing(self, name: str) -> None:
        if self.next_at(name):
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= name == self._point

    def after(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The call, with the point behind it."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self.passing(name)
            return result

        return wrapped
