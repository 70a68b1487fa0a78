"""The events of a live query that is a member of a feed: the part that feeds of one stream and of several share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybrid.join.driver import Driver
from hybrid.watch.memory import Holder
from matching.feed import Feed, Member
from matching.spill import SpillStats


class AsMember:
    """See hybrid.watch.live_query.Events. member: None before the query begins, and once it reads no more events."""

    __slots__ = ("_failed_us", "_read_back_before", "_stuck_before", "member")

    def __init__(self) -> None:
        self.member: Member | None = None
        self._stuck_before = self._read_back_before = 0
        self._failed_us: int | None = None

    @property
    def _feed_now(self) -> Feed | None:
        """Returns the feed that it reads; None without one."""
        raise NotImplementedError

    def _note_end(self, member: Member) -> None:
        """Notes what is told of a member that reads no more events."""
        self._stuck_before, self._read_back_before = member.stuck, sum(spill.read_back for spill in member.spills)
        self._failed_us = member.failed_us

    @property
    def failure(self) -> Exception | None:
        return None if self.member is None else self.member.failure

    @property
    def failed_us(self) -> int | None:
        return self._failed_us if self.member is None else self.member.failed_us

    @property
    def drivers(self) -> Sequence[Driver]:
        return ()

    @property
    def holders(self) -> Sequence[Holder]:
        return ()  # the feed holds its partial matches

    @property
    def spill(self) -> Sequence[SpillStats]:
        return [SpillStats(None, read_back=self._read_back_before)] if self.member is None else self.member.spills

    @property
    def patterns(self) -> Mapping[str, Mapping[str, int]]:
        feed = self._feed_now
        return {} if self.member is None or feed is None else feed.patterns(self.member)

    @property
    def stuck(self) -> int:
        return self._stuck_before if self.member is None else self.member.stuck

    def take_trouble(self) -> list[str]:
        return []
