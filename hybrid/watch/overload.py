"""Overload of a live query that may leave out keys: what of that is done to it while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybrid.watch.flow import guarded
from hybrid.watch.replay import replayed
from hybrid.watch.shedding import REPLAY_EVENTS_MAX, Shed, Shedding
from hybrid.watch.watched import Watch
from query.errors import DataError

if TYPE_CHECKING:
    from matching.shedding import Shedder


def shedder_of(watch: Watch) -> Shedder | None:
    """What leaves out partitions of a query, if it may."""
    if watch.shedding is None:
        return None
    from matching.shedding import Shedder

    return Shedder(watch.factor.plan.partition_by)


def allow(watch: Watch, shed: Shed | None) -> None:
    """How a running query may leave out keys from now on; None: not at all, all of them are taken in again. Raises
    DataError, and nothing has changed, where that needs events that are not kept any more."""
    assert watch.member is not None
    was, out = watch.shedding, watch.shedding is not None and watch.shedding.pressure.share < 1
    watch.shedding = None if shed is None else Shedding(shed)
    if was is not None and watch.shedding is not None:
        watch.shedding.pressure.share, watch.shedding.decisions = was.pressure.share, was.decisions
        watch.shedding.shedder = was.shedder
    elif not out and shed is None:
        watch.member.shedder = None
    else:
        try:
            _rebuild(watch)
        except DataError:
            watch.shedding = was
            raise


def look(watch: Watch, now_s: float, wall_us: int) -> list[str]:
    """Lets a query leave out keys, or take them in again, as the load has it; what is to be said of that.
    now_s, wall_us: the clocks of Database.tick."""
    shedding, live = watch.shedding, watch.stream.live
    assert shedding is not None
    assert watch.member is not None
    came = live.accepted_count != shedding.looked_count and live.newest_us is not None
    shedding.looked_count = live.accepted_count
    lag_us = wall_us - live.newest_us if came and live.newest_us is not None else None
    share = shedding.pressure.look(now_s, lag_us)
    if share == shedding.pressure.share:
        return []
    name = "a live query" if watch.asked is None else f"query {watch.asked.name}"
    if share == 1:
        try:
            _rebuild(watch)
        except DataError as error:
            return [f"{name} cannot take in all keys again: {error}"]
    else:
        assert watch.member.shedder is not None
        watch.member.shedder.keep(share)
    late = "no overload any more" if lag_us is None or share == 1 else f"{lag_us / 1e6:.1f} s late"
    shedding.decided(live.newest_us, share, late)
    return [f"{name} keeps {share:.3g} of its keys: {late}"]


def _rebuild(watch: Watch) -> None:
    """Lets a query go on as if no key had ever been left out, from the events that are kept. Raises DataError, and
    nothing has changed, where they are not, or too many."""
    feed, old = watch.stream.feed, watch.member
    assert feed is not None
    assert old is not None
    shedder = None
    if watch.shedding is not None:
        shedder = old.shedder or shedder_of(watch)
    member = replayed(watch, watch.factor.plan, shedder, REPLAY_EVENTS_MAX)
    if member is None:
        raise DataError(
            "events since the query began are no longer kept, or are too many", "close it, and watch it anew"
        )
    guarded(watch, Watch.collect)
    feed.remove(old)
    watch.member = member
    if watch.shedding is not None and shedder is not None:
        watch.shedding.shedder = shedder
        shedder.keep(1.0)
