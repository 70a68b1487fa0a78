"""The matches of a live query that began before it joined the patterns that other queries read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.emitted import only
from matching.hierarchy.held import joined
from matching.ordering import in_sources
from query.plan.boxes import independent_of_before
from query.plan.lag import in_order_of_last_events
from query.plan.pattern import min_rows
from query.plan.plan import Plan


def can_be_divided(plan: Plan) -> bool:
    """True if the matches of a pattern can be found in two parts, by the time of their first event: none depends on
    another or on earlier events, each comes out with its last event, and there is a WITHIN after which the first part
    is complete."""
    ends = plan.within is not None and plan.within.interval_us is not None
    return ends and min_rows(plan.pattern) > 0 and independent_of_before(plan) and in_order_of_last_events(plan)


class Earlier:
    """The matches that begin before a time, until WITHIN has passed, from a matcher of their own. sources: as its
    events name them."""

    __slots__ = ("_over_us", "_until_us", "matcher", "sources")

    def __init__(self, plan: Plan, matcher: Matcher, until_us: int, sources: tuple[str, ...]) -> None:
        assert plan.within is not None
        assert plan.within.interval_us is not None
        self.matcher = matcher
        self.sources = sources
        self._until_us = until_us
        self._over_us = until_us + plan.within.interval_us

    def over(self, time_us: int | None) -> bool:
        """True if no more of them can come: no event with a lower time (None: none at all)."""
        return time_us is None or time_us > self._over_us

    def push(self, batch: EventBatch, later: Matches) -> Matches:
        """Takes the next events. Returns their matches, with the later ones of another matcher, in order of emission:
        by last events, and those of one by first events."""
        named = in_sources(batch, self.sources)
        self.sources = named.sources
        return _in_order(self._mine(self.matcher.push(named)), later, batch.seq)

    def advance(self, watermark_us: int | None, later: Matches) -> Matches:
        """See matching.batch.Matcher, and `push`."""
        mine = self._mine(self.matcher.advance(watermark_us))
        return _together([mine, later]) if len(mine) else later

    def _mine(self, found: Matches) -> Matches:
        return only(found, np.flatnonzero(found.first_us < self._until_us))

    def snapshot(self) -> tuple[dict[str, Any], bytes]:
        """Returns a head for JSON, and the state of the matcher."""
        return {"until_us": self._until_us, "sources": list(self.sources)}, self.matcher.snapshot()

    @staticmethod
    def restored(plan: Plan, head: dict[str, Any], matcher: Matcher, state: bytes) -> Earlier | None:
        """Returns it from a snapshot; None if a matcher cannot restore its state."""
        if not matcher.fits(state):
            return None
        matcher.restore(state)
        return Earlier(plan, matcher, head["until_us"], tuple(head["sources"]))


def _in_order(mine: Matches, later: Matches, seq: Int64Array) -> Matches:
    """Returns the matches of both in the order of their last events, which are among the events `seq`."""
    if not len(mine):
        return later
    if not len(later):
        return _together([mine, later])
    order = np.argsort(seq, kind="stable")
    places = [order[np.searchsorted(seq[order], one.event_seq[one.event_bounds[1:] - 1])] for one in (mine, later)]
    if places[0].max() <= places[1].min():
        return _together([mine, later])
    parts = []
    for place in np.unique(np.concatenate(places)).tolist():
        for one, at in zip((mine, later), places, strict=True):
            here = np.flatnonzero(at == place)
            if len(here):
                parts.append(only(one, here))
    return _together(parts)


def _together(parts: list[Matches]) -> Matches:
    """Returns the matches of all parts, one after the other, with the same names of sources."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.sources))
    places = {name: i for i, name in enumerate(names)}
    return joined([
        replace(part, sources=names, event_source=_recoded(part, places)) for part in parts
    ])


def _recoded(part: Matches, places: dict[str, int]) -> np.ndarray:
    return np.array([places[name] for name in part.sources] or [0], np.int32)[part.event_source]
