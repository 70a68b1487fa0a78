"""The matches of a live query that began before it joined the patterns that other queries read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.drive import before_failure
from matching.emitted import only
from matching.hierarchy.held import joined, none
from matching.ordering import in_sources
from query.plan.boxes import independent_of_before
from query.plan.lag import in_order_of_last_events
from query.plan.pattern import min_rows
from query.plan.plan import Plan

#: The steps of the path of an event, and its place in the total order.
_Event: TypeAlias = tuple[list[str], tuple[int, str, int]]


def can_be_divided(plan: Plan) -> bool:
    """True if the matches of a pattern can be found in two parts, by the time of their first event: none depends on
    another or on earlier events, each comes out with its last event, and there is a WITHIN after which the first part
    is complete. The order of events must show in their times, sources and offsets."""
    ends = plan.within is not None and plan.within.interval_us is not None
    own = ends and min_rows(plan.pattern) > 0 and len(plan.order_by) == 1
    return own and independent_of_before(plan) and in_order_of_last_events(plan)


class Earlier:
    """The matches that begin before a time, until WITHIN has passed, from a matcher of their own. sources: as its
    events name them."""

    __slots__ = ("_over_us", "_plan", "_until_us", "matcher", "sources")

    def __init__(self, plan: Plan, matcher: Matcher, until_us: int, sources: tuple[str, ...]) -> None:
        assert plan.within is not None
        assert plan.within.interval_us is not None
        self.matcher = matcher
        self.sources = sources
        self._plan = plan
        self._until_us = until_us
        self._over_us = until_us + plan.within.interval_us

    def over(self, time_us: int | None) -> bool:
        """True if no more of them can come: no event with a lower time (None: none at all)."""
        return time_us is None or time_us > self._over_us

    def push(self, batch: EventBatch, later: Matches, upto: int) -> Matches:
        """Takes the first `upto` of the next events. Returns their matches, with the later ones of another matcher, in
        order of emission."""
        named = in_sources(batch.slice(0, upto), self.sources)
        self.sources = named.sources
        return _in_order(self._plan, self._mine(self.matcher.push(named)), later, batch.seq)

    def before_failure(self, batch: EventBatch, later: Matches, at: int) -> Matches:
        """Returns what `push` has decided before the event at which it has failed. at: its index."""
        before = np.isin(later.event_seq[later.event_bounds[1:] - 1], batch.seq[:at])
        found = before_failure(self.matcher)
        mine = self._mine(joined(found) if found else none(self.sources))
        return _in_order(self._plan, mine, only(later, np.flatnonzero(before)), batch.seq)

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


def _in_order(plan: Plan, mine: Matches, later: Matches, seq: Int64Array) -> Matches:
    """Returns the matches of both in the order of their last events, which are among the events `seq`, and those with
    one last event as layers give them."""
    if not len(mine):
        return later
    both = _together([mine, later])
    if not len(later):
        return both
    order = np.argsort(seq, kind="stable")
    last = order[np.searchsorted(seq[order], both.event_seq[both.event_bounds[1:] - 1])].tolist()
    tied = set(last[: len(mine)]) & set(last[len(mine) :])
    places = [(at, _of_match(plan, _events_of(both, i)) if at in tied else ()) for i, at in enumerate(last)]
    index = np.array(sorted(range(len(both)), key=places.__getitem__))
    return _together([only(both, part) for part in np.split(index, np.flatnonzero(np.diff(index) < 0) + 1)])


def _events_of(found: Matches, i: int) -> list[_Event]:
    """Returns the events of a match, each with the steps of its path and its place in the total order."""
    at = slice(*found.event_bounds[i : i + 2].tolist())
    paths = [found.variables[variable].split(".") for variable in found.event_variable[at].tolist()]
    sources = [found.sources[source] for source in found.event_source[at].tolist()]
    return list(zip(paths, zip(found.event_ts_us[at].tolist(), sources, found.event_offset[at].tolist())))


def _of_match(plan: Plan, events: list[_Event]) -> tuple[object, ...]:
    """Returns what orders the matches of a layer with one last event: its last element, and then all from the first
    on."""
    elements: list[list[_Event]] = []
    for event in events:
        head = event[0][0]
        if elements and len(event[0]) > 1 and elements[-1][0][0][0] == head:
            elements[-1].append(event)
        else:
            elements.append([event])
    places = [_of_element(plan, of) for of in elements]
    return places[-1], *places


def _of_element(plan: Plan, events: list[_Event]) -> tuple[object, ...]:
    """Returns the place of an event or of a match of a box among merged rows, see matching.hierarchy.merging.ORDER."""
    path, first = events[0]
    if len(path) == 1:
        return first, 0
    variable = path[0].partition("[")[0]
    box = next(box for box in plan.boxes if box.variable == variable)
    return events[-1][1], 1, first, box.name, *_of_match(box.plan, [(path[1:], place) for path, place in events])


def _together(parts: list[Matches]) -> Matches:
    """Returns the matches of all parts, one after the other, with the same names of sources."""
    names = tuple(dict.fromkeys(name for part in parts for name in part.sources))
    places = {name: i for i, name in enumerate(names)}
    return joined([
        replace(part, sources=names, event_source=_recoded(part, places)) for part in parts
    ])


def _recoded(part: Matches, places: dict[str, int]) -> np.ndarray:
    return np.array([places[name] for name in part.sources] or [0], np.int32)[part.event_source]
