"""What is said of payloads, and of rows, that are refused."""

from __future__ import annotations

import re

from hybrid.service.repeated import Repeated

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


def tell_refused_row(said: Repeated, sink: str, id: str, reason: str, file: str, now_s: float) -> None:
    """Counts a row that a sink goes on without. file: where it is kept."""

    def again(count: int) -> str:
        more = "one more row is" if count == 1 else f"{count:,} more rows are"
        return f"sink {sink}: {more} left out and kept in {file}, the last one: {id}: {reason}"

    kind = _VALUES.sub("?", reason.replace(id, ""))
    said.add(f"sink {sink}", kind, f"sink {sink}: a row is left out and kept in {file}: {reason}", again, now_s)
