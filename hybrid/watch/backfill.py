"""A live query that begins in the past: it reads the archive from there on, and then goes on with its streams.

What lies below the watermark is read first, in the total order; no on-time event can come there any more, so nobody has
to wait meanwhile. Then, between two pushes, comes what has passed the watermark since; and what lies ahead of it goes
the way of events that have just come: it is held back until nothing that sorts before it can come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from archive.reader import RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.rows.inputs import SORTED_MAX
from hybrid.statement.statement import live_matcher
from hybrid.watch.live_query import LiveQuery, Step, guarded
from hybrid.watch.query_spec import END_US
from live.stream import LiveStream
from matching.batch import EventBatch
from matching.drive import parts
from matching.feed import Feed, Member
from matching.ordering import in_sources
from matching.purpose import Purpose
from query.plan.plan import Plan

if TYPE_CHECKING:
    from matching.shedding import Shedder


class Filling:
    """A query over one stream that reads the archive. Not thread safe.

    from_us: events before that are not for it. low_us: nor do events before that matter (None: as from_us)."""

    __slots__ = ("_from_us", "_plan", "_sources", "count", "member", "reached_us")

    def __init__(
        self, plan: Plan, from_us: int, shedder: Shedder | None = None, low_us: int | None = None,
        purpose: Purpose = Purpose.LIVE,
    ) -> None:  # fmt: skip
        """purpose: see matching.feed.Feed.add."""
        self._plan = plan
        self._from_us = from_us
        self.reached_us = from_us if low_us is None else max(from_us, low_us)
        self._sources: tuple[str, ...] = ()
        self.member = Member(live_matcher(plan, purpose=Purpose.LIVE if shedder else purpose), shedder)
        #: How many events it has taken.
        self.count = 0

    def read(self, snapshot: HistorySnapshot, watermark_us: int | None) -> None:
        """Takes the events below the watermark, from where it stands on. Raises DataError for files that are gone."""
        if watermark_us is None or watermark_us <= self.reached_us:
            return
        columns = self._plan.columns
        for batch in snapshot.batches(self.reached_us, watermark_us, columns=columns, sorted_max=SORTED_MAX):
            self.take(batch)
        self.reached_us = watermark_us

    def take(self, batch: EventBatch) -> None:
        """Takes the next events of the total order."""
        self.count += len(batch)
        named = in_sources(batch, self._sources)
        self._sources = named.sources
        for part in parts(named):
            self.member.guarded(self.member.matcher.push, part)

    def enter(self, feed: Feed, snapshot: HistorySnapshot, live: LiveStream) -> Member:
        """Takes the rest, between two pushes, and is a member of the feed then."""
        self.read(snapshot, live.watermark_us)
        return self.join(feed, snapshot.read(RangeRequest(self.reached_us)), live)

    def join(self, feed: Feed, ahead: EventBatch, live: LiveStream, since_seq: int = 0) -> Member:
        """Is a member of the feed from now on. ahead: the events of it that the watermark has not passed, in the total
        order; since_seq: see Feed.enter."""
        self.count += len(ahead)
        known = (*self._sources, *ahead.sources, *live.offsets, *live.expected)
        sources = tuple(dict.fromkeys(known))
        feed.enter(self.member, ahead, live.watermark_us, self._from_us, sources, since_seq)
        return self.member


def steps(
    names: Sequence[str], snapshots: Mapping[str, HistorySnapshot], low_us: Mapping[str, int],
    end_us: Mapping[str, int | None], columns: Mapping[str, Collection[str] | None],
) -> Iterator[Step]:  # fmt: skip
    """What is kept of several streams, low_us <= time < end_us (None: all), as a chain takes it, all of them going on
    together, with the columns named (None: all). Memory: some batches of each, and what then waits for a stream that
    ends earlier."""
    parts = {
        name: snapshots[name].batches(low_us[name], end_us[name], columns=columns[name], sorted_max=SORTED_MAX)
        for name in names
    }
    heads: dict[str, EventBatch | None] = {name: next(batches, None) for name, batches in parts.items()}
    while some := [head for head in heads.values() if head is not None]:
        last_us = min(int(head.ts_us[-1]) for head in some)  # nothing up to here is still to come
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
    """What a live query reads of the archive before it begins. Raises DataError for files that are gone."""

    def __init__(self, query: LiveQuery, from_us: int) -> None:
        self.query = query
        self.streams = query.events.streams
        self._low_us = dict.fromkeys(self.streams, from_us)
        self._look()

    def _look(self) -> None:
        self._snapshots = {name: s.kept.snapshot() for name, s in self.streams.items()}
        self._reached_us = {name: END_US if s.ended else s.watermark_us for name, s in self.streams.items()}

    def read(self) -> None:
        """Reads what lies below the watermarks of the last look."""
        end = {name: max(low, self._reached_us[name] or low) for name, low in self._low_us.items()}
        columns = {name: self.query.events.columns(name) for name in self.streams}
        for step in steps(tuple(self.streams), self._snapshots, self._low_us, end, columns):
            self._push(step)
        self._low_us = end

    def read_rest(self) -> None:
        """Reads what has passed the watermarks since, and what lies ahead of them. Between two pushes."""
        self._look()
        self.read()
        for step in self.query.events.enter(self._snapshots, self._low_us):
            self._push(step)

    def _push(self, step: Step) -> None:
        guarded(self.query, lambda query: query.push(*step))
