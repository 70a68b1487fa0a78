"""The figures of a service for its status: of streams, queries, sources and sinks, and their rates."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from hybrid.rows.times import show_us
from hybrid.service.sink_writer import Outlet
from hybrid.service.source_reader import Reader
from hybrid.watch.late import LATELY_MIN
from hybrid.watch.stream import Reached

#: Seconds over which a rate is measured.
RATE_OVER_S = 10.0


class Rates:
    """Rates of growing counts, per second."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, Counter[str]]] = deque()

    def take(self, now_s: float, counts: Counter[str]) -> None:
        """Takes the current counts."""
        self._taken.append((now_s, counts))
        while len(self._taken) > 1 and self._taken[0][0] < now_s - RATE_OVER_S:
            self._taken.popleft()

    def of(self, name: str) -> float:
        (since_s, before), (now_s, counts) = self._taken[0], self._taken[-1]
        return round((counts[name] - before[name]) / (now_s - since_s), 1) if now_s > since_s else 0.0


def late_trouble(lately: Mapping[str, int], watermark_us: int | None, now_s: float) -> str | None:
    """Returns the trouble of a stream most of whose last events came late, or None. lately: of Database.streams."""
    if lately["events"] < LATELY_MIN or lately["late"] * 2 <= lately["events"] or watermark_us is None:
        return None
    if watermark_us > now_s * 1e6:
        return (
            "most of the last events came late: the watermark is ahead of the clock, because an event or the clock "
            "was ahead; hybrid archive rewind sets it back"
        )
    return (
        "most of the last events came late: their source is further behind the others than `lateness`, or an event or "
        "the clock was ahead; hybrid archive rewind sets the watermark back"
    )


def of_stream(told: Mapping[str, Any], reached: Reached, now_s: float) -> dict[str, Any]:
    """Returns the figures of a stream. told: of Database.streams. now_s: since 1970."""
    mark_us, newest_us = reached.watermark_us, reached.newest_us
    held = told["held_by"] or {"source": None, "since": None, "silent_s": None}
    return {
        **{key: told[key] for key in ("events", "accepted", "late", "duplicates", "ended", "lately")},
        "watermark": show_us(mark_us), "lag_s": None if mark_us is None else round(now_s - mark_us / 1e6, 3),
        "behind_newest_s": None if mark_us is None or newest_us is None else (newest_us - mark_us) / 1e6,
        "held_by": held["source"], "held_since": held["since"], "held_s": held["silent_s"],
    }  # fmt: skip


def of_query(stats: Mapping[str, Any], failed: bool) -> dict[str, Any]:
    """Returns the figures of a query. stats: of its alerts."""
    counts = ("suppressed", "held_back", "spilled", "waiting_for_history", "history_reads")
    return {
        "state": "failed" if failed else stats["state"], "matches": stats["matches"], "runs": stats.get("runs"),
        **{key: stats.get(key, 0) for key in counts},
        "kept_share": stats.get("kept_share"), "shed": stats.get("events_shed", 0),
        "recall": stats.get("estimated_recall"),
        "sharing": stats.get("sharing"), "counted_with": stats.get("counted_with", 0),
    }  # fmt: skip


def of_source(reader: Reader) -> dict[str, Any]:
    state = "failed" if reader.failure else "ended" if reader.ended else "reading"
    places = reader.places
    partitions = {
        name: {"position": place.position, "end": place.end, "lag": place.lag, "lost": place.lost}
        for name, place in places.items()
    }  # fmt: skip
    lags = [place.lag for place in places.values() if place.lag is not None]
    return {
        "stream": reader.stream, "queued": reader.queued, "state": state, "partitions": partitions,
        "lag": sum(lags) if lags else None,
        "lost": sum(place.lost for place in places.values()) if places else None,
    }  # fmt: skip


def of_sink(outlet: Outlet) -> dict[str, Any]:
    return {
        "rows": max(0, outlet.rows_written - outlet.rows_refused), "refused": outlet.rows_refused,
        "failures": outlet.failures, "unread": outlet.rows_unread, "oldest_s": round(outlet.oldest_s, 3),
    }  # fmt: skip
