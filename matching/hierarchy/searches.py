"""Searches of patterns of boxes that several feeds read: each pattern is searched once, although the feeds merge
different streams.

A pattern reads the same events of its streams in every feed, in the same order, whatever other streams are merged with
them; only the time at which a feed hands them on differs. The feed that is ahead gives the next events to the search,
and one that is behind takes the matches once it has handed on their last events. Events have numbers in a search; each
feed knows what they are among its own (matching.hierarchy.followed)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable
from weakref import ReferenceType, ref

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matcher, Matches
from matching.drive import NotesUnfit, UnfitMatch, before_failure, failed_at, first_unfit, unfit_of
from query.plan.boxes import FIRST, LAST, all_counted_keys, bounded, independent_of_before, with_interval
from query.plan.fingerprint import fingerprint
from query.plan.plan import Plan
from query.plan.plan import modules as patterns

#: Names the events of a search.
SOURCES = ("events",)


@runtime_checkable
class NeedsRows(Protocol):
    """A matcher that tells which rows it needs, see matching.matcher.KernelMatcher."""

    def least_offset(self, source: int) -> int | None: ...


class Taker(Protocol):
    """A feed's part of a search. queries: see matching.hierarchy.followed.Followed."""

    def take(self, found: Matches) -> None:
        """Takes matches, in order of emission; events are given by their numbers."""
        ...

    @property
    def queries(self) -> int: ...


class SharedSearch:
    """One search. key: of the pattern and its streams. arrived: number of on-time events of its streams that had
    arrived before its first one. uid: tells it from the others of a database. seen: number of events that it
    has searched in. failure: its error, if there is one; from event `failed_number` on it finds nothing more."""

    def __init__(self, key: str, uid: int, arrived: int, matcher: Matcher) -> None:
        self.key = key
        self.uid = uid
        self.arrived = arrived
        self.matcher = matcher
        if isinstance(matcher, NotesUnfit):
            matcher.notes_unfit = True
        self._readers: list[ReferenceType[Taker]] = []
        self.saved_unfit: UnfitMatch | None = None  # before a restart
        self.seen = 0
        self.advanced_us: int | None = None
        self.ended = False
        self.failure: Exception | None = None
        self.failed_number = 0

    def give(self, number: int, count: int, events: Callable[[], EventBatch]) -> None:
        """Takes so many events of a feed from a number on; those that it has had are left out. events: returns them."""
        assert number <= self.seen
        if self.failure is not None or number + count <= self.seen:
            return
        batch = events()
        new = _numbered(batch.slice(self.seen - number, len(batch)), self.seen)
        first, self.seen = self.seen, self.seen + len(new)
        try:
            found = [self.matcher.push(new)]
        except Exception as error:  # noqa: BLE001  (each reader raises it once it comes to the event)
            found = self._failed(error, first, new)
        self._offer(found)

    def advance(self, watermark_us: int | None) -> None:
        """See matching.batch.Matcher; a watermark that it has passed changes nothing."""
        if self.failure is not None or self.ended:
            return
        if watermark_us is None:
            self.ended = True
        elif self.advanced_us is not None and watermark_us <= self.advanced_us:
            return
        else:
            self.advanced_us = watermark_us
        try:
            found = [self.matcher.advance(watermark_us)]
        except Exception as error:  # noqa: BLE001  (as in `give`)
            found = self._failed(error, self.seen - 1, None)
        self._offer(found)

    def _failed(self, error: Exception, first: int, batch: EventBatch | None) -> list[Matches]:
        self.failure, self.failed_number = error, first
        found = before_failure(self.matcher)
        failed_us = failed_at(self.matcher)
        if batch is not None and failed_us is not None:
            self.failed_number += int(np.searchsorted(batch.ts_us, failed_us))
        return found

    @property
    def unfit(self) -> UnfitMatch | None:
        """Returns the first match with a measure that cannot be computed, with the number of its last event."""
        return first_unfit(self.saved_unfit, unfit_of(self.matcher))

    def _offer(self, found: list[Matches]) -> None:
        for matches in found:
            if len(matches):
                for reader in self.readers:
                    reader.take(matches)

    @property
    def readers(self) -> list[Taker]:
        """Returns the feeds' parts that read it."""
        return [reader for one in self._readers if (reader := one()) is not None]

    def join(self, reader: Taker) -> None:
        """Adds a reader, for as long as something else has it."""
        self._readers.append(ref(reader))

    @property
    def least_number(self) -> int:
        """Returns the least number of events that matches to come may contain, as far as the matcher knows."""
        least = self.matcher.least_offset(0) if isinstance(self.matcher, NeedsRows) else 0
        return self.seen if least is None else least

    def snapshot(self) -> bytes:
        """Returns the state of its matcher."""
        return self.matcher.snapshot()

    def leave(self, reader: Taker) -> None:
        """Removes a reader."""
        self._readers = [one for one in self._readers if one() is not reader]


class Searches:
    """The searches of a database."""

    def __init__(self) -> None:
        self._known: list[SharedSearch] = []
        self._restored: dict[int, SharedSearch] = {}  # by the uid that they were saved with
        self._next = 0

    def all(self) -> list[SharedSearch]:
        """Returns the searches that feeds read."""
        self._known = [one for one in self._known if one.readers]
        return self._known

    def new(self, key: str, arrived: int, matcher: Matcher) -> SharedSearch:
        """Returns a new search."""
        self._next += 1
        search = SharedSearch(key, self._next, arrived, matcher)
        self._known.append(search)
        return search

    def fitting(self, key: str, arrived: int, independent: bool) -> SharedSearch | None:
        """Returns the search that a feed can read which sees the events that arrive from now on: one that has seen
        those before, and nothing else. arrived: as of SharedSearch, now. independent: True if matches do not depend on
        events before them; else it must have seen none."""
        return next((
            one for one in self.all()
            if one.key == key and one.failure is None and one.unfit is None and not one.ended
            and one.seen == arrived - one.arrived and (independent or not one.seen)
        ), None)  # fmt: skip

    def restored(self, uid: int, make: Callable[[], SharedSearch]) -> SharedSearch:
        """Returns the search that was saved with this uid; `make` returns it to the first reader."""
        found = self._restored.get(uid)
        if found is None or not found.readers:
            found = self._restored[uid] = make()
        return found


class Origin:
    """A feed as the searches of its database see it. streams: the stream behind each name that its events have, both in
    lower case; a feed of one stream has that one, under any name. arrived: returns the number of on-time events of a
    stream so far."""

    def __init__(
        self, searches: Searches, streams: Mapping[str, str], arrived: Callable[[str], int]
    ) -> None:
        self.searches = searches
        self._streams = streams
        self._arrived = arrived

    def key(self, plan: Plan, use: str) -> str:
        """Returns what makes two searches one: the pattern, and the streams that it reads. use: of its matches."""
        names = self._names(plan)
        # events of one stream have no column with its name
        read = [f"{name} {self._streams[name]}" if len(names) > 1 else self._streams[name] for name in names]
        return f"{fingerprint(replace(plan, reads=None))}{use} {', '.join(read)}"

    def arrived(self, plan: Plan) -> int:
        """Returns the number of on-time events of the streams of a pattern so far."""
        return sum(self._arrived(self._streams[name]) for name in self._names(plan))

    def knows(self, plan: Plan) -> bool:
        """True if a pattern with boxes can read the searches of other feeds."""
        counted = all_counted_keys(plan)

        def below(one: Plan) -> bool:
            return any(
                below(box.plan) if box.plan.boxes else known(with_interval(box.plan, counted))
                for box in patterns(one.boxes)
            )

        def known(leaf: Plan) -> bool:
            return self.fitting(leaf, self.key(leaf, "")) is not None

        return bool(self.searches.all()) and below(bounded(plan))

    def fitting(self, plan: Plan, key: str) -> SharedSearch | None:
        """Returns the search that a pattern which sees the events that arrive from now on can read, None without
        one."""
        return self.searches.fitting(key, self.arrived(plan), independent_of_before(plan))

    def _names(self, plan: Plan) -> Sequence[str]:
        if plan.reads is None:
            return sorted(self._streams)
        return sorted(name.lower() for name in plan.reads.streams)


def _numbered(batch: EventBatch, first: int) -> EventBatch:
    """Returns events of a feed as those of a search, which begin and end with their numbers."""
    numbers = np.arange(first, first + len(batch))
    columns = dict(zip(batch.columns.schema.names, batch.columns.columns, strict=True))
    columns |= dict.fromkeys((FIRST.name, LAST.name), pa.array(numbers))
    return EventBatch(
        pa.RecordBatch.from_arrays(list(columns.values()), list(columns)), batch.ts_us, np.zeros(len(batch), np.int32),
        numbers, numbers, SOURCES,
    )  # fmt: skip
