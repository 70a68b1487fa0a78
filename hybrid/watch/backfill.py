"""Backfill: a live query that begins in the past reads the archive from there, and then continues with its streams.

Events below the watermark are read first, in the total order; pushes need not wait, since no on-time event can arrive
there any more. The events that the watermark has passed meanwhile follow, between two pushes. Events ahead of the
watermark are treated like newly arrived ones: they are held back until no earlier one can come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from archive.reader import RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.rows.inputs import SORTED_MAX
from hybrid.statement.progress import Far
from hybrid.statement.statement import live_matcher
from hybrid.watch.live_query import LiveQuery, Step, guarded
from hybrid.watch.query_spec import END_US
from live.stream import LiveStream
from matching.batch import EventBatch
from matching.budget import Budget
from matching.drive import parts
from matching.feed import Feed, Member, shares_trends
from matching.ordering import in_sources
from matching.purpose import Purpose
from query.plan.plan import Plan

if TYPE_CHECKING:
    from matching.hierarchy.modules import Join
    from matching.shedding import Shedder
    from matching.workload.sharing_mode import SharingMode


class Filling:
    """A query over one stream that reads the archive. Not thread safe.

    from_us: the first event time of the query. low_us: earlier events cannot be part of a match (None: from_us)."""

    __slots__ = ("_from_us", "_plan", "_sources", "count", "member", "reached_us")

    def __init__(
        self, plan: Plan, from_us: int, shedder: Shedder | None = None, low_us: int | None = None,
        purpose: Purpose = Purpose.LIVE, sharing: SharingMode | None = None, join: Join | None = None,
    ) -> None:  # fmt: skip
        """purpose, sharing: see matching.feed.Feed.add. join: of boxes joined with history."""
        self._plan = plan
        self._from_us = from_us
        self.reached_us = from_us if low_us is None else max(from_us, low_us)
        self._sources: tuple[str, ...] = ()
        counted = None
        if sharing is not None and shedder is None and shares_trends(plan):
            from matching.together import counted_alone

            counted = counted_alone(plan, sharing, purpose)
        own = Purpose.LIVE if shedder else purpose
        self.member = Member(live_matcher(plan, purpose=own, join=join), shedder) if counted is None else counted
        #: Number of events taken.
        self.count = 0

    def read(self, snapshot: HistorySnapshot, watermark_us: int | None) -> None:
        """Takes the events from the current position up to the watermark. Raises DataError for missing files."""
        if watermark_us is None or watermark_us <= self.reached_us:
            return
        request = RangeRequest(self.reached_us, watermark_us, columns=self._plan.columns)
        for batch in snapshot.batches(request, sorted_max=SORTED_MAX):
            self.take(batch)
        self.reached_us = watermark_us

    def take(self, batch: EventBatch) -> None:
        """Takes the next events in the total order."""
        self.count += len(batch)
        named = in_sources(batch, self._sources)
        self._sources = named.sources
        for part in parts(named):
            self.member.push_alone(part)

    def enter(self, feed: Feed, snapshot: HistorySnapshot, live: LiveStream) -> Member:
        """Takes the remaining events, between two pushes, and joins the feed. Returns its member."""
        self.read(snapshot, live.watermark_us)
        return self.join(feed, snapshot.read(RangeRequest(self.reached_us)), live)

    def join(self, feed: Feed, ahead: EventBatch, live: LiveStream, since_seq: int = 0) -> Member:
        """Joins the feed. Returns its member. ahead: the events of the query above the watermark, in the total order;
        since_seq: see Feed.enter."""
        self.count += len(ahead)
        known = (*self._sources, *ahead.sources, *live.offsets, *live.expected)
        sources = tuple(dict.fromkeys(known))
        feed.enter(self.member, ahead, live.watermark_us, self._from_us, sources, since_seq)
        return self.member


def steps(
    names: Sequence[str], snapshots: Mapping[str, HistorySnapshot], low_us: Mapping[str, int],
    end_us: Mapping[str, int | None], columns: Mapping[str, Collection[str] | None],
) -> Iterator[Step]:  # fmt: skip
    """Yields the kept events of several streams with low_us <= time < end_us (None: no end), in the steps that a chain
    takes, interleaved by time, with the given columns (None: all). Memory: a few batches of each stream, and the events
    that wait for a stream that ends earlier."""
    asked = {name: RangeRequest(low_us[name], end_us[name], columns=columns[name]) for name in names}
    parts = {name: snapshots[name].batches(asked[name], sorted_max=SORTED_MAX) for name in names}
    heads: dict[str, EventBatch | None] = {name: next(batches, None) for name, batches in parts.items()}
    while some := [head for head in heads.values() if head is not None]:
        last_us = min(int(head.ts_us[-1]) for head in some)  # no later batch has an event up to here
        for name, head in heads.items():
            if head is None:
                continue
            cut = int(np.searchsorted(head.ts_us, last_us, "right"))
            heads[name] = head.slice(cut, len(head)) if cut < len(head) else next(parts[name], None)
            if cut:
                yield name, head.slice(0, cut), None
        for name in names:
            end = end_us[name]
            yield name, None, last_us + 1 if end is None else min(last_us + 1, end)


class Past:
    """Reads the part of the archive that precedes a live query, within a budget. Raises DataError for missing files."""

    def __init__(self, query: LiveQuery, from_us: int, budget: Budget) -> None:
        self.query = query
        self._budget = budget
        self.streams = query.events.streams
        self._low_us = dict.fromkeys(self.streams, from_us)
        self._taken = 0
        self._look()
        known = [(s, from_us, self._reached_us[name]) for name, s in self._snapshots.items()]
        self._rows = sum(s.stretch_rows(low, end)[0] for s, low, end in known if end is not None and end > low)

    def _look(self) -> None:
        self._snapshots = {name: s.kept.snapshot() for name, s in self.streams.items()}
        self._reached_us = {name: END_US if s.ended else s.watermark_us for name, s in self.streams.items()}

    def far(self) -> Far:
        """Returns how far it is."""
        taken = min(self._taken, self._rows)  # others may push meanwhile
        return Far(f"{taken:,} of {self._rows:,} events of the past matched", taken, self._rows)

    def read(self) -> None:
        """Reads the events below the watermarks of the last look."""
        end = {name: max(low, self._reached_us[name] or low) for name, low in self._low_us.items()}
        columns = {name: self.query.events.columns(name) for name in self.streams}
        for step in steps(tuple(self.streams), self._snapshots, self._low_us, end, columns):
            self._push(step)
        self._low_us = end

    def read_rest(self) -> None:
        """Reads the events that the watermarks have passed since, and those ahead of them. Called between two
        pushes."""
        self._look()
        self.read()
        for step in self.query.events.enter(self._snapshots, self._low_us):
            self._push(step)

    def _push(self, step: Step) -> None:
        with self._budget.open(beside=True):  # pushes have the lock, if any
            guarded(self.query, lambda query: query.push(*step))
        self._taken += 0 if step[1] is None else len(step[1])
