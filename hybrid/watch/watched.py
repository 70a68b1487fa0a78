"""One live query over one stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hybrid.join.driver import Driver
from hybrid.join.requests import Asking
from hybrid.join.spark_ranges import LargeRanges
from hybrid.join.strategies.base import Strategy
from hybrid.rows.answer import count_matches
from hybrid.statement.statement import live_matcher
from hybrid.watch.alerts import Alerts
from hybrid.watch.query_spec import END_US, Asked
from hybrid.watch.shedding import Shedding, shedding_of
from hybrid.watch.stream import Stream
from matching.feed import Member
from query.plan.plan import FactorPlan


class Watch:
    """One live query on one stream: a member of the stream's feed, and a driver if it joins history.

    since_seq: the ingest sequence of the first event it may see; accepted_before: how many on-time events the stream
    had taken by then. from_us: what is kept from then on is for it too (None: only what comes). member: None before
    it begins, and once no more events are for it."""

    __slots__ = (
        "accepted_before", "alerts", "asked", "asking", "driver", "factor", "from_us", "histories", "member",
        "shedding", "since_seq", "stream", "stuck_before",
    )  # fmt: skip

    def __init__(
        self, factor: FactorPlan, stream: Stream, histories: Mapping[str, Stream], strategy: Strategy,
        in_order: bool = False, from_us: int | None = None, spark: LargeRanges | None = None,
    ) -> None:  # fmt: skip
        """strategy, in_order, spark: see Driver."""
        self.factor = factor
        self.stream = stream
        self.histories = dict(histories)
        self.from_us = from_us
        self.since_seq = stream.live.next_seq if from_us is None else -(2**62)
        self.accepted_before = stream.on_time_count
        self.member: Member | None = None
        self.stuck_before = 0
        self.driver = None
        if self.factor.histories:
            self.driver = Driver(self.factor, strategy, live_matcher, in_order, spark=spark)
        self.alerts: Alerts
        self.asked: Asked | None = None
        self.asking: Asking | None = None
        self.shedding: Shedding | None = None

    def save(self) -> dict[str, Any]:
        """What it has become beside its member, for hybrid.watch.saved; to be followed by that of the feed."""
        return {
            "since_seq": self.since_seq, "accepted_before": self.accepted_before, "stuck_before": self.stuck_before,
            "from_us": self.from_us,
            "shedding": None if self.shedding is None else self.shedding.save(),
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> bool:
        """Goes on from what `save` gave; always True, see ChainWatch.restore."""
        self.since_seq, self.accepted_before = saved["since_seq"], saved["accepted_before"]
        self.stuck_before, self.from_us = saved["stuck_before"], saved.get("from_us")
        self.shedding = shedding_of(saved.get("shedding"))
        return True

    def takes(self, stream: Stream) -> bool:
        """Whether a change of that stream may decide something."""
        return stream is self.stream or any(h is stream for h in self.histories.values())

    def collect(self) -> None:
        """Hands on what the feed has found for it. Raises what the query failed of, behind what came before."""
        if self.member is None:
            return
        found = self.member.take_found()
        if self.driver is None:
            self.alerts.add(found)
        elif found:
            self.driver.take(found)
            self.alerts.count(count_matches(found))
        if self.member.failure is not None:
            raise self.member.failure

    def leave(self) -> None:
        """Takes no more events, and gives up what was kept for them."""
        feed, member = self.stream.feed, self.member
        if feed is None or member is None:
            return
        self.stuck_before, self.member = member.matcher.stuck, None
        feed.remove(member)
        if not len(feed):
            self.stream.feed = None

    @property
    def watermark_us(self) -> int | None:
        """Of the stream; END_US if that has ended."""
        return END_US if self.stream.ended else self.stream.watermark_us

    @property
    def stuck_count(self) -> int:
        """Matches from which AFTER MATCH SKIP TO would not have moved on."""
        own = self.stuck_before if self.member is None else self.member.matcher.stuck
        return own + (self.driver.stuck_count if self.driver is not None else 0)

    def settle(self) -> None:
        """Answers matches whose history is complete by now; ends the alerts when nothing more can come."""
        over = self.stream.ended or self.member is None
        if self.asking is not None:
            events = self.stream.on_time_count - self.accepted_before
            for answer in self.asking.settle(self.histories, self.stream.watermark_us, over, events):
                self.alerts.add_answer(answer)
        if over and (self.driver is None or not self.driver.waiting_count):
            self.alerts.finish("ended" if self.member is not None else "replaced")
