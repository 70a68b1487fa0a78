"""When a live query leaves out keys because more comes than can be matched: decided here, enacted by matching.shedding.

It is off unless a query asks for it. Nothing is ever left out of the archive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hybrid.rows.faults import not_supported
from hybrid.rows.times import duration_us, positive_us, show_us
from matching.types import plain_type
from query.errors import DataError
from query.language.ast import Selection
from query.plan.plan import QueryPlan

if TYPE_CHECKING:
    from matching.shedding import Shedder

#: Of a time without overload the length, in those of `after`, behind which all keys are taken in again.
CALM = 4
#: Of a replay that takes keys in again the most events.
REPLAY_EVENTS_MAX = 5_000_000
#: Decisions that are listed, the last ones.
LISTED = 10


@dataclass(frozen=True, slots=True)
class Shed:
    """Lets a live query leave out keys.

    lag: how old the newest event may be, by the clock, when it is taken. after: for how long it has to be older than
    that before half of the keys are left out, and as much later half of those left, and so on. least: the share of the
    keys that is kept whatever comes. Raises DataError."""

    lag: timedelta | str = "10s"
    after: timedelta | str = "5s"
    least: float = 1 / 16

    def __post_init__(self) -> None:
        positive_us(self.lag, "lag")
        duration_us(self.after, "after")
        if not 0 < self.least <= 1:
            raise DataError(f"least is {self.least}", "it is a share of the keys: more than 0, and 1 at most")

    def __str__(self) -> str:
        return (
            f"keys are left out, by halves down to {self.least:.3g} of them, while the newest event is taken more than "
            f"{duration_us(self.lag, 'lag') / 1e6:g} s late for {duration_us(self.after, 'after') / 1e6:g} s"
        )

    def save(self) -> tuple[int, int, float]:
        return duration_us(self.lag, "lag"), duration_us(self.after, "after"), self.least


def restored(saved: tuple[int, int, float] | None) -> Shed | None:
    """The inverse of Shed.save."""
    if saved is None:
        return None
    lag_us, after_us, least = saved
    return Shed(timedelta(microseconds=lag_us), timedelta(microseconds=after_us), least)


def check(plan: QueryPlan, into: str | None) -> None:
    """Raises QueryError for a live query whose rows would not be those of the keys that are kept."""
    pattern = plan.factors[-1].plan

    def refuse(what: str, hint: str) -> None:
        raise not_supported(f"shedding of {what}", plan.text, hint)

    if len(plan.factors) > 1 or plan.factors[0].members:
        refuse("a query over several streams or patterns", "shed the queries over one stream")
    if not pattern.partition_by:
        refuse("a query without PARTITION BY", "it leaves out whole partitions: name their columns")
    if pattern.selection is Selection.STRICT:
        refuse("a query under SELECTION STRICT", "there an event of any key may end a match")
    if plan.alert is not None:
        refuse("a query with ALERT ONCE", "an alert that is missing would suppress nothing")
    if into is not None:
        refuse(f"rows that go into {into}", "what reads them would take missing rows for what has not happened")
    for column in pattern.partition_by:
        if pa.types.is_nested(plain_type(column.type)):
            refuse(f"partitions by {column.name}, a {column.type}", "partition by its parts")


class Pressure:
    """Which share of the keys a query keeps, from how late events are taken. share: 1 at first. Not thread safe."""

    def __init__(self, shed: Shed, share: float = 1.0) -> None:
        self.lag_us, self.after_us, self.least = shed.save()
        self.share = share
        self._over_s: float | None = None  # since when events are late
        self._calm_s: float | None = None  # since when they are not

    def look(self, now_s: float, lag_us: int | None) -> float:
        """The share of the keys to keep now. now_s: of a clock that never goes back. lag_us: how old the newest event
        was when it was taken, None where nothing has come since the last look, which is no overload."""
        over = lag_us is not None and lag_us > self.lag_us
        self._over_s = (now_s if self._over_s is None else self._over_s) if over else None
        self._calm_s = (now_s if self._calm_s is None else self._calm_s) if not over else None
        if self._over_s is not None and (now_s - self._over_s) * 1e6 >= self.after_us and self.share > self.least:
            self._over_s = now_s
            return max(self.share / 2, self.least)
        if self._calm_s is not None and (now_s - self._calm_s) * 1e6 >= CALM * self.after_us and self.share < 1:
            self._calm_s = now_s  # if they cannot be taken in again, that is tried again so much later
            return 1.0
        return self.share


class Shedding:
    """What one live query has been allowed, how it stands, and what was decided so far."""

    def __init__(self, shed: Shed, share: float = 1.0) -> None:
        self.shed = shed
        self.pressure = Pressure(shed, share)
        self.decisions: deque[tuple[int | None, float, str]] = deque(maxlen=LISTED)
        #: What leaves out partitions, once the query has begun; it stays when the query is over.
        self.shedder: Shedder | None = None
        #: Events that the stream had accepted when it was last looked at.
        self.looked_count = 0

    def decided(self, at_us: int | None, share: float, reason: str) -> None:
        """From now on that share of the keys is kept. at_us: the event time by then."""
        self.pressure.share = share
        self.decisions.append((at_us, share, reason))

    def __str__(self) -> str:
        return f"{self.shed}; keeps {self.pressure.share:.3g} of them now"

    def stats(self) -> dict[str, Any]:
        """Of Alerts.stats."""
        assert self.shedder is not None
        account = self.shedder.account()
        recall = account.recall
        return {
            "kept_share": self.pressure.share, "events_matched": account.taken, "events_shed": account.shed,
            "keys_shed": account.keys, "rows_withheld": account.withheld,
            "estimated_recall": None if recall is None else round(recall, 4),
            "shed_decisions": [
                {"at": show_us(at_us), "kept_share": share, "reason": reason} for at_us, share, reason in self.decisions
            ],
        }  # fmt: skip

    def save(self) -> dict[str, Any]:
        return {"shed": self.shed.save(), "share": self.pressure.share, "decisions": list(self.decisions)}


def shedding_of(saved: Mapping[str, Any] | None) -> Shedding | None:
    """What Shedding.save gave."""
    if saved is None:
        return None
    shed = restored(saved["shed"])
    assert shed is not None
    found = Shedding(shed, saved["share"])
    found.decisions.extend(tuple(one) for one in saved["decisions"])
    return found
