"""A pattern of boxes whose search several feeds share, as one of these feeds sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matcher, Matches
from matching.drive import UnfitMatch
from matching.emitted import only
from matching.hierarchy.held import joined, none, restored, saved
from matching.hierarchy.searches import Origin, SharedSearch
from matching.kernels.layout import grown
from matching.state import as_array, pack, unpack, unpack_head
from query.errors import DataError
from query.plan.boxes import FIRST, LAST, CountedEvents, counts_of
from query.plan.plan import Plan

#: Version of Followed.snapshot; restore refuses others.
STATE_VERSION = 1
#: Least number of events at which those are looked for that no match to come can contain.
LOOKED_AT_MIN = 8192
#: Columns of the events that are kept, before those of counts.
_SOURCE, _OFFSET, _SEQ, _POSITION, _TS = range(5)


class Followed:
    """See matching.batch.Matcher: the matches of a search in the events of a feed, which are its own part of those that
    the search has. A match comes once its last event has come, or later.

    origin: what the feed shares with others. make: returns the matcher of a plan. use: of its matches, see Origin.key.
    counted: see matching.hierarchy.modules.Modules. queries: returns the number of queries of the feed that read it.
    events: returns the events of a push with all their columns, which only the feed that is ahead needs."""

    def __init__(
        self, plan: Plan, origin: Origin, make: Callable[[], Matcher], use: str, counted: Sequence[CountedEvents],
        queries: Callable[[], int], events: Callable[[], EventBatch],
    ) -> None:  # fmt: skip
        self.plan = plan
        self._origin = origin
        self._make = make
        self._key = origin.key(plan, use)
        self._of_reader = queries
        self._events = events
        self._pairs = [(FIRST.name, LAST.name), *((a.name, b.name) for a, b in map(counts_of, counted))]
        self._within_us = None if plan.within is None else plan.within.interval_us
        self._waiting: list[Matches] = []
        self._sources: tuple[str, ...] = ("default",)
        #: the numbers of the first event of its matches, of the first one kept, and of the next one
        self._begin = self._low = self._next = 0
        self._kept = np.zeros((0, _TS + 1 + 2 * len(counted)), np.int64)
        self._look_at = LOOKED_AT_MIN
        self._search: SharedSearch | None = None
        #: see matching.drive.NotesUnfit
        self.notes_unfit = True
        self.unfit: UnfitMatch | None = None

    # ---- the search

    @property
    def search(self) -> SharedSearch:
        assert self._search is not None
        return self._search

    @property
    def queries(self) -> int:
        return self._of_reader()

    def begin(self) -> None:
        """Begins with the events that arrive from now on."""
        arrived = self._origin.arrived(self.plan)
        search = self._origin.fitting(self.plan, self._key)
        self._join(search or self._origin.searches.new(self._key, arrived, self._make()))
        self._begin = self._low = self._next = self.search.seen

    def _join(self, search: SharedSearch) -> None:
        self._search = search
        search.join(self)

    def leave(self) -> None:
        """Ends: the search goes on for the others."""
        if self._search is not None:
            self._search.leave(self)
            self._search = None

    def take(self, found: Matches) -> None:
        self._waiting.append(found)

    # ---- Matcher

    @property
    def stuck(self) -> int:
        return 0

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher. The columns of FROM may be missing."""
        self._keep(batch)
        search, first = self.search, self._next
        self._next += len(batch)
        search.give(first, len(batch), self._events)
        return self._come()

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        self.search.advance(watermark_us)
        return self._come()

    @property
    def failed_us(self) -> int | None:
        """Returns the time of the event at which the search has failed, once that has come."""
        at = self.search.failed_number - self._low
        failed = self.search.failure is not None and 0 <= at < self._next - self._low
        return int(self._kept[at, _TS]) if failed else None

    @property
    def failed_row(self) -> tuple[int, int] | None:
        """Returns the source and the offset of the event at which the search has failed, once that has come."""
        if self.failed_us is None:
            return None
        at = self.search.failed_number - self._low
        return int(self._kept[at, _SOURCE]), int(self._kept[at, _OFFSET])

    def before_failure(self) -> list[Matches]:
        """Returns the matches that were decided before the event at which `push` has failed."""
        return [self._ready()]

    def _come(self) -> Matches:
        failure = self.search.failure
        if failure is not None and self._next > self.search.failed_number:
            raise failure
        return self._ready()

    def _ready(self) -> Matches:
        """Returns the matches that wait and whose last events have come."""
        unfit = self.search.unfit
        if unfit is not None and self._low <= unfit.last < self._next:
            self.unfit = unfit._replace(last=int(self._kept[unfit.last - self._low, _POSITION]))
        waiting, ready = self._waiting, []
        self._waiting = []
        for found in waiting:
            first, last = (_numbers(found, column) for column in self._pairs[0])
            come = last < self._next
            mine = np.flatnonzero(come & (first >= self._begin))
            if len(mine):
                ready.append(self._own(only(found, mine)))
            if not come.all():
                self._waiting.append(only(found, np.flatnonzero(~come)))
        return joined(ready) if ready else none(self._sources)

    # ---- events

    def _keep(self, batch: EventBatch) -> None:
        """Keeps what the next events are in this feed."""
        self._sources = batch.sources
        used, n = self._next - self._low, len(batch)
        if used + n > self._look_at:
            self._forget()
            used = self._next - self._low
            self._look_at = max(LOOKED_AT_MIN, 2 * (used + n))
        if used + n > len(self._kept):
            self._kept = grown(self._kept, max(1024, 2 * (used + n)))
        into, columns = self._kept[used : used + n], batch.columns
        into[:, _SOURCE], into[:, _OFFSET], into[:, _SEQ] = batch.source, batch.offset, batch.seq
        into[:, _TS], into[:, _POSITION] = batch.ts_us, np.asarray(columns.column(FIRST.name))
        for i, name in enumerate((name for pair in self._pairs[1:] for name in pair), _TS + 1):
            into[:, i] = np.asarray(columns.column(name))

    def _forget(self) -> None:
        """Drops the events that no match to come can contain."""
        low, search = min(self._next, self.search.least_number), self.search
        if self._within_us is not None and search.advanced_us is not None:
            times = self._kept[: self._next - self._low, _TS]
            low = max(low, self._low + int(np.searchsorted(times, search.advanced_us - self._within_us)))
        for found in self._waiting:
            low = min(low, int(_numbers(found, FIRST.name).min()))
        if search.unfit is not None:
            low = min(low, search.unfit.last)
        if low > self._low:
            self._kept = self._kept[low - self._low : self._next - self._low].copy()
            self._low = low

    def _own(self, found: Matches) -> Matches:
        """Returns matches of the search with the events of this feed."""
        rows, first, last = found.rows, *(_numbers(found, column) for column in self._pairs[0])
        kept, low = self._kept, self._low
        for i, pair in enumerate(self._pairs):
            at = [_POSITION, _POSITION] if not i else [_TS + 2 * i - 1, _TS + 2 * i]
            for name, numbers, column in zip(pair, (first, last), at, strict=True):
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, rows.schema.field(place), pa.array(kept[numbers - low, column]))
        events = found.event_offset - low
        return replace(
            found, rows=rows, event_source=kept[events, _SOURCE].astype(np.int32), event_offset=kept[events, _OFFSET],
            event_seq=kept[events, _SEQ], sources=self._sources,
        )  # fmt: skip

    # ---- checkpoints

    def snapshot(self) -> bytes:
        """Returns its state and that of the search."""
        search = self.search
        head = {
            "version": STATE_VERSION, "followed": True, "key": self._key, "uid": search.uid, "arrived": search.arrived,
            "seen": search.seen, "advanced_us": search.advanced_us, "ended": search.ended, "begin": self._begin,
            "unfit": None if search.unfit is None else search.unfit.saved(),
            "low": self._low, "next": self._next, "waiting": len(self._waiting), "sources": list(self._sources),
        }  # fmt: skip
        arrays = {"search": as_array(search.snapshot()), "kept": self._kept[: self._next - self._low]}
        for i, found in enumerate(self._waiting):
            arrays |= saved(found, f"{i} ")
        return pack(head, arrays)

    def fits(self, state: bytes) -> bool:
        """True if it can restore a snapshot: it is of the same plan."""
        head = unpack_head(state)
        if (head.get("version"), head.get("key")) != (STATE_VERSION, self._key):
            return False
        return self._make().fits(unpack(state)[1]["search"].tobytes())

    def restore(self, state: bytes) -> None:
        """Restores a snapshot that fits. Feeds that have read one search do so again."""
        head, arrays = unpack(state)
        if (head.get("version"), head.get("key")) != (STATE_VERSION, self._key):
            raise DataError("this state belongs to another query or version", "start the query again")
        searches = self._origin.searches

        def saved_search() -> SharedSearch:
            search = searches.new(self._key, head["arrived"], self._make())
            search.matcher.restore(arrays["search"].tobytes())
            search.saved_unfit = UnfitMatch.restored(head.get("unfit"))
            search.seen, search.advanced_us, search.ended = head["seen"], head["advanced_us"], head["ended"]
            return search

        self.leave()
        self._join(searches.restored(head["uid"], saved_search))
        self._begin, self._low, self._next = head["begin"], head["low"], head["next"]
        self._sources, self._kept = tuple(head["sources"]), arrays["kept"].copy()
        self._waiting = [restored(arrays, f"{i} ") for i in range(head["waiting"])]


def is_followed(state: bytes) -> bool:
    """True if a state is that of a Followed; matchers have others."""
    try:
        return bool(unpack_head(state).get("followed"))
    except DataError:
        return False


def _numbers(found: Matches, column: str) -> np.ndarray:
    return np.asarray(found.rows.column(column))
