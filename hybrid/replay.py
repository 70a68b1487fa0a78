"""A query as if it had run since it, or another in whose place it comes, began: from the events that are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hybrid.backfill import Filling
from hybrid.watched import Watch
from matching.feed import Member, needed_from
from query.errors import DataError
from query.plan.plan import Plan

if TYPE_CHECKING:
    from matching.shedding import Shedder


def successor(old: Watch, plan: Plan, fresh: bool) -> Member | None:
    """The member of a new version as if it had run since the old one began; None: it may begin afresh instead.
    fresh: whether it may, where events since then are not kept; else that is a DataError."""
    stream, feed = old.stream, old.stream.feed
    assert feed is not None
    assert old.member is not None
    reader = stream.reader()
    member = feed.succeed(old.member, plan, lambda low, high: reader.read(low, high, closed=True))
    if member is not None:
        return member
    shedder = old.member.shedder
    member = replayed(old, plan, None if shedder is None else shedder.anew(plan.partition_by))
    if member is None and not fresh:
        raise DataError(
            "the new version cannot go on where the old one is: events since that began are no longer kept",
            "db.replace(..., fresh=True) begins with an empty state; a longer retention keeps them",
        )
    return member


def replayed(
    watch: Watch, plan: Plan, shedder: Shedder | None, events_max: int | None = None
) -> Member | None:
    """A member that is as if the plan had run since a query began, from the events that are kept; None where they
    are not, or are more than `events_max`. Raises what the query fails of, and DataError for files that are gone."""
    stream, feed = watch.stream, watch.stream.feed
    assert feed is not None
    reader = stream.kept.snapshot()
    low_us = needed_from(plan, feed.advanced_us)
    dropped_us = stream.dropped_us
    if watch.from_us is not None:
        filling = Filling(plan, watch.from_us, shedder, low_us)
        few = events_max is None or reader.stretch_rows(filling.reached_us)[0] <= events_max
        if not few or (dropped_us is not None and dropped_us > filling.reached_us):
            return None
        member = filling.enter(feed, reader, stream.live)
        if member.failure is not None:
            feed.remove(member)
            raise member.failure
        member.found = []
        return member
    whole = low_us is None or (dropped_us is not None and dropped_us > low_us)
    if events_max is not None and reader.stretch_rows(None if whole else low_us)[0] > events_max:
        return None
    events = reader.read(None if whole else low_us, None)
    mine = np.flatnonzero(events.seq >= watch.since_seq)
    if whole and len(mine) != stream.on_time_count - watch.accepted_before:
        return None
    return feed.replay(plan, watch.since_seq, events.take(mine), shedder)
