"""Log lines about rejected payloads and rows."""

from __future__ import annotations

import re

from hybrid.service.repeated import Repeated

#: The parts that differ between rejections of one kind: values, positions, numbers.
_VALUES = re.compile(r"'.*?'(?=[ ;:,)]|$)|\d+", re.DOTALL)


def tell_refused(said: Repeated, stream: str, where: str, reason: str, now_s: float) -> None:
    """Counts and logs a rejected payload of a stream. where: its position in its source."""
    last = f"{reason if len(reason) <= 200 else reason[:197] + '...'} ({where})"

    def again(count: int) -> str:
        more = "1 more payload" if count == 1 else f"{count:,} more payloads"
        return f"stream {stream}: {more} rejected, the last one: {last}"

    first = f"stream {stream}: payload rejected: {last}"
    said.add(f"stream {stream}", _VALUES.sub("?", reason), first, again, now_s)


def tell_refused_row(said: Repeated, sink: str, id: str, reason: str, file: str, now_s: float) -> None:
    """Counts and logs a row that a sink rejected and continues without. file: the file that keeps it."""

    def again(count: int) -> str:
        more = "1 more row" if count == 1 else f"{count:,} more rows"
        return f"sink {sink}: {more} skipped and kept in {file}, the last one: {id}: {reason}"

    kind = _VALUES.sub("?", reason.replace(id, ""))
    said.add(f"sink {sink}", kind, f"sink {sink}: row skipped and kept in {file}: {reason}", again, now_s)
