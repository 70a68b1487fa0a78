"""One stream of a database, with what takes its events in and what keeps them; and one live query over one stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archive.history import History
from archive.place import Place
from hybrid.alerts import Alerts
from hybrid.answer import count_matches
from hybrid.asking import Asking
from hybrid.candidates import Reader
from hybrid.chain import END_US
from hybrid.declaration import UNPACED, Pace, write_declaration
from hybrid.driver import Driver
from hybrid.front import live_matcher
from hybrid.large_ranges import LargeRanges
from hybrid.late import LateEvents
from hybrid.recovery import Asked
from hybrid.shedding import Shedding, shedding_of
from hybrid.strategies.base import Strategy
from live.stream import LiveStream
from matching.feed import Feed, Member
from query.plan.plan import FactorPlan
from query.schema import Schema


@dataclass(slots=True)
class Stream:
    """One stream: what takes its events in, and what keeps them. As a history it is what the driver asks."""

    schema: Schema
    live: LiveStream
    kept: History
    directory: Place | None
    dropped_us: int | None = None
    feed: Feed | None = None
    pace: Pace = UNPACED
    heard_s: dict[str, float] = field(default_factory=dict)
    late: LateEvents | None = None

    @property
    def watermark_us(self) -> int | None:
        return self.live.watermark_us

    @property
    def ended(self) -> bool:
        return self.live.ended

    @property
    def on_time_count(self) -> int:
        """How many on-time events it has taken since it was opened."""
        return self.live.accepted_count - self.live.late_count

    @property
    def revision(self) -> object:
        return self.kept.revision

    def begins_us(self) -> int | None:
        first_us, watermark_us, retention_us = self.kept.first_us, self.live.watermark_us, self.schema.retention_us
        if first_us is None or watermark_us is None or retention_us is None:
            return first_us
        return max(first_us, watermark_us - retention_us)

    def reader(self, in_files: bool = False) -> Reader:
        if in_files:
            self.kept.flush()
        return self.kept.snapshot()

    def forget(self) -> None:
        """Drops what lies behind retention, a tenth of it at a time."""
        watermark_us, retention_us, first_us = self.live.watermark_us, self.schema.retention_us, self.kept.first_us
        if watermark_us is None or retention_us is None or first_us is None:
            return
        edge_us = watermark_us - retention_us
        since_us = first_us if self.dropped_us is None else max(first_us, self.dropped_us)
        if edge_us - since_us > retention_us // 10:
            self.kept.drop_before(edge_us)
            self.dropped_us = edge_us

    def save(self) -> None:
        """Writes what the archive does not hold itself. Atomic."""
        if self.directory is not None:
            write_declaration(self.directory, self.schema, self.live.watermark_us, self.pace, self.live.expected)

    def hear(self, source: str, now_s: float) -> None:
        """Something came from a source, at that time of a clock that never goes back."""
        if self.pace.idle_us is not None or self.pace.heartbeat_us is not None:
            self.heard_s[source] = now_s

    def tick(self, now_s: float, wall_us: int) -> int | None:
        """Looks at the clocks: the first never goes back, the second is the time of day. The watermark that there is by
        that, if it is another one."""
        before = self.live.watermark_us
        if self.pace.idle_us is not None:
            silent_s = self.pace.idle_us / 1e6
            # in the order in which they fell silent, so that it does not matter how often somebody looks
            for source, heard in sorted(self.heard_s.items(), key=lambda item: item[1]):
                if now_s - heard >= silent_s:
                    self.live.idle([source])
        if self.pace.heartbeat_us is not None and before is not None:
            last = max(self.heard_s.values(), default=now_s)
            if now_s - last >= self.pace.heartbeat_us / 1e6:
                self.live.advance(wall_us - self.pace.heartbeat_us - self.schema.lateness_us)
        return self.live.watermark_us if self.live.watermark_us != before else None


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a stream has come. positions: for each source the offset expected next; watermark_us, newest_us (the
    largest event time): None before the first event."""

    positions: dict[str, int]
    watermark_us: int | None
    newest_us: int | None


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
        """What it has become beside its member, for hybrid.saved; to be followed by that of the feed."""
        return {
            "since_seq": self.since_seq, "accepted_before": self.accepted_before, "stuck_before": self.stuck_before,
            "from_us": self.from_us,
            "shedding": None if self.shedding is None else self.shedding.save(),
        }  # fmt: skip

    def restore(self, saved: Mapping[str, Any]) -> None:
        self.since_seq, self.accepted_before = saved["since_seq"], saved["accepted_before"]
        self.stuck_before, self.from_us = saved["stuck_before"], saved.get("from_us")
        self.shedding = shedding_of(saved.get("shedding"))

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
