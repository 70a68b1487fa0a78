"""What is said of payloads that are refused."""

from __future__ import annotations

import re

from hybrid.repeated import Repeated

#: What differs between refusals of one kind: values, places, numbers.
_VALUES = re.compile(r"'.*?'(?=[ ;:,)]|$)|\d+", re.DOTALL)


def tell_refused(said: Repeated, stream: str, where: str, reason: str, now_s: float) -> None:
    """Counts a payload of a stream. where: its place in its source."""
    last = f"{reason if len(reason) <= 200 else reason[:197] + '...'} ({where})"

    def again(count: int) -> str:
        more = "one more payload is" if count == 1 else f"{count:,} more payloads are"
        return f"stream {stream}: {more} refused, the last one: {last}"

    first = f"stream {stream}: a payload is refused: {last}"
    said.add(f"stream {stream}", _VALUES.sub("?", reason), first, again, now_s)
