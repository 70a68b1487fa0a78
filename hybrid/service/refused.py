"""What is said of payloads that are refused: each kind at most once a minute, with its count."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

#: A kind is said so often, in seconds; of a stream so many kinds are told apart.
EVERY_S, KINDS_MAX = 60.0, 50
#: What differs between refusals of one kind: values, places, numbers.
_VALUES = re.compile(r"'.*?'(?=[ ;:,)]|$)|\d+", re.DOTALL)
_REST = "for other reasons"


@dataclass(slots=True)
class _Kind:
    """count: how many have not been said yet; last: the reason and the place of the last one."""

    said_s: float
    count: int
    last: str


class Refused:
    """Counts refused payloads by stream and kind, and says them."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def add(self, stream: str, where: str, reason: str, now_s: float) -> None:
        """Counts a payload of a stream, and says the first one of its kind. where: its place in its source."""
        key = stream, _VALUES.sub("?", reason)
        if key not in self._kinds and sum(known == stream for known, _ in self._kinds) >= KINDS_MAX:
            key = stream, _REST
        kind = self._kinds.get(key)
        last = f"{reason if len(reason) <= 200 else reason[:197] + '...'} ({where})"
        if kind is None:
            self._kinds[key] = _Kind(now_s, 0, last)
            self._say(f"stream {stream}: a payload is refused: {last}")
            return
        kind.count += 1
        kind.last = last
        self._tell(key, kind, now_s)

    def tell(self, now_s: float, all: bool = False) -> None:
        """Says what has come since a kind was last said, if that is a minute ago. all: however long it is."""
        for key, kind in list(self._kinds.items()):
            if kind.count:
                self._tell(key, kind, now_s, all)
            elif now_s - kind.said_s >= EVERY_S:
                del self._kinds[key]  # it is over: the next one is said at once

    def _tell(self, key: tuple[str, str], kind: _Kind, now_s: float, all: bool = False) -> None:
        if all or now_s - kind.said_s >= EVERY_S:
            more = "one more payload is" if kind.count == 1 else f"{kind.count:,} more payloads are"
            self._say(f"stream {key[0]}: {more} refused, the last one: {kind.last}")
            kind.said_s, kind.count = now_s, 0
