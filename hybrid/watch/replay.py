"""A query as if it had run since it, or another in whose place it comes, began: from the events that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from archive.reader import RangeRequest
from hybrid.watch.backfill import Filling
from hybrid.watch.chain import ChainWatch
from hybrid.watch.watched import Watch
from matching.batch import EventBatch
from matching.feed import Member, needed_from
from matching.shedding import Shedder
from query.errors import DataError
from query.plan.plan import Plan

if TYPE_CHECKING:
    from hybrid.watch.stream import Stream


def successor(old: Watch, plan: Plan, fresh: bool) -> Member | None:
    """The member of a new version as if it had run since the old one began; None: it may begin afresh instead.
    fresh: whether it may, where events since then are not kept; else that is a DataError."""
    stream, feed = old.stream, old.stream.feed
    assert feed is not None
    assert old.member is not None
    reader = stream.reader()
    member = feed.succeed(old.member, plan, lambda low, high: reader.read(RangeRequest(low, high, closed=True)))
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
    events = reader.read(RangeRequest(None if whole else low_us))
    mine = np.flatnonzero(events.seq >= watch.since_seq)
    if whole and len(mine) != stream.on_time_count - watch.accepted_before:
        return None
    return feed.replay(plan, watch.since_seq, events.take(mine), shedder)


# ---- from a checkpoint whose states cannot be read


def made_anew(watch: Watch) -> bool:
    """Puts a member into the feed of the stream that is as if the query had run until the checkpoint that the stream
    stands at: what it found by then has come out. False: the events since it began are not all kept, and it has seen
    those that are. Raises what the query fails of."""
    stream, feed, plan = watch.stream, watch.stream.feed, watch.factor.plan
    assert feed is not None
    shedder = None
    if watch.shedding is not None:
        old = watch.shedding.shedder or Shedder(plan.partition_by)
        shedder = watch.shedding.shedder = old.anew(plan.partition_by)
        if watch.shedding.pressure.share < 1:
            watch.shedding.decided(stream.live.newest_us, 1.0, "a new version")
    events, whole = _had(stream, watch.since_seq, watch.from_us, needed_from(plan, feed.advanced_us))
    watch.member = feed.replay(plan, watch.since_seq, events, shedder, watch.from_us)
    return whole


def chain_made_anew(watch: ChainWatch, streams: Mapping[str, Stream]) -> bool:
    """The same for a query over several streams or patterns; False also where its checkpoint does not say when it
    began. streams: those that it reads."""
    found: dict[str, EventBatch] = {}
    all_kept = True
    for name, stream in streams.items():
        known = watch.from_us is not None or name in watch.since
        found[name], whole = _had(stream, watch.since.get(name, 0), watch.from_us, None)
        all_kept &= whole and known
    watch.replay(found)
    return all_kept


def _had(stream: Stream, since_seq: int, from_us: int | None, needed_us: int | None) -> tuple[EventBatch, bool]:
    """The on-time events, in the total order, that a query has had by the checkpoint that the stream stands at, and
    whether all of them are kept. since_seq, from_us: where it began; needed_us: older ones do not matter (None: all
    do)."""
    end_seq, retention_us, watermark_us = stream.live.next_seq, stream.schema.retention_us, stream.watermark_us
    reader = stream.kept.snapshot()
    low_us = max((t for t in (from_us, needed_us) if t is not None), default=None)
    if low_us is None:
        kept = sum(int(np.count_nonzero(batch.seq < end_seq)) for batch, _ in reader.since(since_seq))
        whole = kept == end_seq - since_seq
    else:
        whole = retention_us is None or watermark_us is None or watermark_us - retention_us <= low_us
    events = reader.read(RangeRequest(low_us))
    mine = events.seq < end_seq
    if from_us is None:
        mine &= events.seq >= since_seq
    return events.take(np.flatnonzero(mine)), whole
