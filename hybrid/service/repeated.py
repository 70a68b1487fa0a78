"""Rate-limits repeated log lines: each kind at most once a minute, with its count."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds between two lines of a kind; number of kinds that are distinguished in a group.
EVERY_S, KINDS_MAX = 60.0, 50
_REST = "for other reasons"


@dataclass(slots=True)
class _Kind:
    """One kind of lines. said_s: when it was last logged; count: lines since then; again: text for that many lines."""

    said_s: float
    count: int
    again: Callable[[int], str]


class Repeated:
    """Counts lines by group and kind. Logs the first one of a kind at once, and later ones once a minute. Thread
    safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._guard = threading.Lock()
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def add(self, group: str, kind: str, first: str, again: Callable[[int], str], now_s: float) -> None:
        """Counts a line. first: its text if it is the first of its kind. again: the text for a number of further lines,
        of which this is the last."""
        with self._guard:
            key = group, kind
            if key not in self._kinds and sum(known == group for known, _ in self._kinds) >= KINDS_MAX:
                key = group, _REST
            known = self._kinds.get(key)
            if known is None:
                self._kinds[key] = _Kind(now_s, 0, again)
                line: str | None = first
            else:
                known.count, known.again = known.count + 1, again
                line = _due(known, now_s)
        if line is not None:
            self._say(line)

    def tell(self, now_s: float, all: bool = False) -> None:
        """Logs the lines counted since their kind was last logged, if that was at least a minute ago. all: without
        regard to the time."""
        with self._guard:
            lines = [_due(kind, now_s, all) for kind in self._kinds.values() if kind.count]
            for key, kind in list(self._kinds.items()):
                if now_s - kind.said_s >= EVERY_S:
                    del self._kinds[key]  # the next line of this kind is logged at once
        for line in lines:
            if line is not None:
                self._say(line)


def _due(kind: _Kind, now_s: float, all: bool = False) -> str | None:
    if not all and now_s - kind.said_s < EVERY_S:
        return None
    line = kind.again(kind.count)
    kind.said_s, kind.count = now_s, 0
    return line
