"""Load shedding: decides when a live query leaves out keys because of overload; matching.shedding enacts it.

It is off unless a query asks for it. The archive always keeps all events.
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
from query.plan.boxes import common_keys
from query.plan.plan import QueryPlan

if TYPE_CHECKING:
    from matching.shedding import Shedder

#: Length of the time without overload after which all keys are included again, in units of `after`.
CALM = 4
#: Maximum number of events of a replay that includes all keys again.
REPLAY_EVENTS_MAX = 5_000_000
#: Number of decisions listed, the last ones.
LISTED = 10


@dataclass(frozen=True, slots=True)
class Shed:
    """Lets a live query leave out keys under overload.

    lag: the maximum age of the newest event, by the clock, when it is taken. after: duration of a greater age before
    half of the keys are left out, and after which half of the remaining ones follow, and so on. least: the share of
    keys that is always kept. Raises DataError."""

    lag: timedelta | str = "10s"
    after: timedelta | str = "5s"
    least: float = 1 / 16

    def __post_init__(self) -> None:
        positive_us(self.lag, "lag")
        duration_us(self.after, "after")
        if not 0 < self.least <= 1:
            raise DataError(f"least is {self.least}", "give a share of the keys: more than 0, and 1 at most")

    def __str__(self) -> str:
        return (
            f"keys are left out, by halves down to {self.least:.3g} of them, while the newest event is taken more than "
            f"{duration_us(self.lag, 'lag') / 1e6:g} s late for {duration_us(self.after, 'after') / 1e6:g} s"
        )

    def save(self) -> tuple[int, int, float]:
        return duration_us(self.lag, "lag"), duration_us(self.after, "after"), self.least


def check_is_shed(shed: object) -> None:
    """Raises DataError for anything but a Shed or None."""
    if shed is not None and not isinstance(shed, Shed):
        raise DataError(f"shed is of type {type(shed).__name__}", 'pass hybrid.Shed(lag="10s"), or None for all keys')


def restored(saved: tuple[int, int, float] | None) -> Shed | None:
    """Returns the inverse of Shed.save."""
    if saved is None:
        return None
    lag_us, after_us, least = saved
    return Shed(timedelta(microseconds=lag_us), timedelta(microseconds=after_us), least)


def check(plan: QueryPlan, into: str | None) -> None:
    """Raises QueryError for a live query whose rows for the kept keys would depend on the others."""
    pattern = plan.factors[-1].plan

    def refuse(what: str, hint: str) -> None:
        raise not_supported(f"shedding of {what}", plan.text, hint)

    if len(plan.factors) > 1 or plan.factors[0].members or plan.factors[0].beside:
        refuse("a query over several streams or patterns", "shed the queries over one stream")
    if pattern.trends is not None:
        refuse("rows of windows", "a window in which a key is left out would have a part of its trends")
    if not pattern.partition_by:
        refuse("a query without PARTITION BY", "shedding leaves out whole partitions: name their columns")
    if pattern.boxes and set(common_keys(pattern)) != {c.name for c in pattern.partition_by}:
        refuse("a pattern whose boxes are partitioned by other columns", "let all layers have the same PARTITION BY")
    if pattern.selection is Selection.STRICT:
        refuse("a query under SELECTION STRICT", "under STRICT an event of any key may end a match")
    if plan.alert is not None:
        refuse("a query with ALERT ONCE", "a missing alert would not suppress later ones")
    if into is not None:
        refuse(f"rows that go into {into}", "its readers would mistake missing rows for events that did not happen")
    for column in pattern.partition_by:
        if pa.types.is_nested(plain_type(column.type)):
            refuse(f"partitions by {column.name}, a {column.type}", "partition by its parts")


class Pressure:
    """Computes the share of keys that a query keeps from the age of its events. share: 1 at first. Not thread safe."""

    def __init__(self, shed: Shed, share: float = 1.0) -> None:
        self.lag_us, self.after_us, self.least = shed.save()
        self.share = share
        self._over_s: float | None = None  # start of the overload
        self._calm_s: float | None = None  # start of the time without overload

    def look(self, now_s: float, lag_us: int | None) -> float:
        """Returns the share of keys to keep. now_s: of a monotonic clock. lag_us: the age of the newest event when it
        was taken; None if no event has arrived since the last look, which is no overload."""
        over = lag_us is not None and lag_us > self.lag_us
        self._over_s = (now_s if self._over_s is None else self._over_s) if over else None
        self._calm_s = (now_s if self._calm_s is None else self._calm_s) if not over else None
        if self._over_s is not None and (now_s - self._over_s) * 1e6 >= self.after_us and self.share > self.least:
            self._over_s = now_s
            return max(self.share / 2, self.least)
        if self._calm_s is not None and (now_s - self._calm_s) * 1e6 >= CALM * self.after_us and self.share < 1:
            self._calm_s = now_s  # a failed attempt to include them is repeated after as long again
            return 1.0
        return self.share


class Shedding:
    """The shedding of one live query: its settings, its current share, and its decisions."""

    def __init__(self, shed: Shed, share: float = 1.0) -> None:
        self.shed = shed
        self.pressure = Pressure(shed, share)
        self.decisions: deque[tuple[int | None, float, str]] = deque(maxlen=LISTED)
        #: The filter of partitions once the query has begun; it stays after the query's end.
        self.shedder: Shedder | None = None
        #: Number of events that the stream had accepted at the last look.
        self.looked_count = 0

    def decided(self, at_us: int | None, share: float, reason: str) -> None:
        """Records a decision: the share of keys kept from now on. at_us: the current event time."""
        self.pressure.share = share
        self.decisions.append((at_us, share, reason))

    def __str__(self) -> str:
        return f"{self.shed}; keeps {self.pressure.share:.3g} of them now"

    def stats(self) -> dict[str, Any]:
        """Returns the part of Alerts.stats."""
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
    """Returns the inverse of Shedding.save."""
    if saved is None:
        return None
    shed = restored(saved["shed"])
    assert shed is not None
    found = Shedding(shed, saved["share"])
    found.decisions.extend(tuple(one) for one in saved["decisions"])
    return found
