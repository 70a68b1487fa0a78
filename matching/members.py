"""The queries of a feed, in groups that see the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.budget import Budget, budget
from matching.drive import ROWS_MAX, before_failure, failed_at
from matching.ordering import Ordering, Since, in_sources
from matching.purpose import Purpose
from matching.spill import BY_REFERENCE, SpillStats
from query.plan.plan import Plan
from query.stopping import Stop, stopping

if TYPE_CHECKING:  # loads the kernels; left to the first query
    from matching.hierarchy.modules import Modules
    from matching.matcher import KernelMatcher
    from matching.rows import Rows
    from matching.shedding import Shedder
    from matching.spilled import Spilled

#: Least number of events in a slice for partitions that may leave memory: if that is too many, one of them does not
#: fit.
SLICE_MIN = 64


class Member:
    """One query of a feed. found: its pending non-empty Matches, in order of emission; failure: the reason why it takes
    no more rows. matcher: its own; None: it is counted together with others. kernel: its matcher, if that shares rows.
    shedder: leaves out partitions of the query, which then shares rows with no other query. bytes_max: memory that its
    partial matches may take; None: what the budget allows (matching.budget). after: the first of
    the last events (None: only time has passed), and how many matches have come since. told_us: the watermark that was
    announced before that."""

    __slots__ = ("after", "bytes_max", "failure", "found", "kernel", "matcher", "shedder", "told_us")

    def __init__(self, matcher: Matcher | None, shedder: Shedder | None = None) -> None:
        from matching.matcher import KernelMatcher

        self.matcher = matcher
        self.kernel = matcher if isinstance(matcher, KernelMatcher) else None
        self.shedder = shedder
        self.found: list[Matches] = []
        self.failure: Exception | None = None
        self.bytes_max: int | None = None
        self.after: tuple[int | None, int] = None, 0
        self.told_us: int | None = None

    @property
    def stuck(self) -> int:
        """See matching.batch.Matcher."""
        return 0 if self.matcher is None else self.matcher.stuck

    @property
    def failed_us(self) -> int | None:
        """Returns the time of the event at which it has failed; None if it is not known."""
        return None if self.failure is None else failed_at(self.matcher)

    @property
    def alone(self) -> Matcher:
        """Returns its own matcher."""
        assert self.matcher is not None
        return self.matcher

    def push_alone(self, batch: EventBatch) -> None:
        """Takes the next events of the total order, in no group with others."""
        self.guarded(self.alone.push, batch)

    @property
    def spill(self) -> SpillStats:
        """Returns the number of partial matches in memory and on disk, of the outermost pattern."""
        if self.kernel is None:
            return BY_REFERENCE
        return self.kernel.spill

    @property
    def spills(self) -> Sequence[SpillStats]:
        """Returns the number of partial matches in memory and on disk, of each of its patterns."""
        return [self.spill] if self.matcher is None else spills_of(self.matcher)

    @property
    def rows(self) -> Sequence[Rows]:
        """Returns the rows that its patterns search in."""
        return rows_searched(self.matcher)

    @property
    def purpose(self) -> Purpose:
        """Returns the use of its matches."""
        return Purpose.LIVE if self.kernel is None else self.kernel.purpose

    @property
    def plan_of_boxes(self) -> Plan | None:
        """Returns the plan of a pattern with boxes, None for others."""
        from matching.hierarchy.flattened import FlattenedMatcher
        from matching.hierarchy.matcher import HierarchyMatcher

        return self.matcher.plan if isinstance(self.matcher, FlattenedMatcher | HierarchyMatcher) else None

    @property
    def why_layers(self) -> str | None:
        """Returns why a pattern with boxes that could run as one plain pattern does not; None if it does, or has no
        boxes."""
        from matching.hierarchy.flattened import FlattenedMatcher
        from matching.hierarchy.matcher import HierarchyMatcher

        if isinstance(self.matcher, FlattenedMatcher):
            return self.matcher.why_layers
        return "other queries read its patterns too" if isinstance(self.matcher, HierarchyMatcher) else None

    @property
    def others(self) -> int:
        """Returns the number of queries that it is counted with."""
        return 0

    def show(self) -> str:
        """Returns the lines of EXPLAIN about what it shares with other queries."""
        return ""

    def take_found(self) -> list[Matches]:
        found, self.found = self.found, []
        return found

    def guarded(self, act: Callable[..., Matches | None], *arguments: object) -> None:
        """Acts, unless the query has failed; stores its matches, or its error and the matches before it."""
        if self.failure is not None:
            return
        try:
            with nullcontext() if self.bytes_max is None else stopping(Stop(self.bytes_max)):
                matches = act(*arguments)
            found = [] if matches is None else [matches]
        except Exception as error:  # noqa: BLE001  (any failure is the query's own)
            self.failure = error
            found = before_failure(self.alone)
        self.after = self.after[0], self.after[1] + sum(map(len, found))
        for some in found:
            among = some if self.shedder is None else self.shedder.among(some)
            if len(among) or among.rows.num_rows:
                self.found.append(among)


def searches_of(matcher: Matcher | None) -> Iterator[tuple[str, Matcher | None]]:
    """Yields the matchers of all layers of a matcher that search in rows, with the name of the pattern (empty: the
    outermost)."""
    from matching.hierarchy.matcher import HierarchyMatcher

    yield from matcher.searches if isinstance(matcher, HierarchyMatcher) else (("", matcher),)


def rows_searched(matcher: Matcher | None) -> Sequence[Rows]:
    """Returns the rows that a matcher searches in, of all its layers."""
    from matching.matcher import KernelMatcher

    return [one.rows for _, one in searches_of(matcher) if isinstance(one, KernelMatcher)]


def spills_of(matcher: Matcher | None) -> Sequence[SpillStats]:
    """Returns the number of partial matches in memory and on disk, of each layer of a matcher."""
    from matching.matcher import KernelMatcher

    found = []
    for name, one in searches_of(matcher):
        stats = one.spill if isinstance(one, KernelMatcher) else BY_REFERENCE
        found.append(replace(stats, why=f"pattern {name}: {stats.why}") if name and stats.why is not None else stats)
    return found


def bytes_taken(matcher: Matcher | None) -> int:
    """Returns the bytes of the rows and partial matches of a matcher that shares them with no other."""
    from matching.hierarchy.flattened import FlattenedMatcher

    if isinstance(matcher, FlattenedMatcher):
        return matcher.kept_bytes + bytes_taken(matcher.runs)
    return sum(_part(rows, feeds) for rows, feeds in _searched(matcher))


def _searched(matcher: Matcher | None) -> list[tuple[Rows, int]]:
    """Returns the rows that a matcher searches in, each with the number of feeds that do."""
    from matching.hierarchy.matcher import HierarchyMatcher

    feeds = matcher.feeds if isinstance(matcher, HierarchyMatcher) else {}
    return [(rows, feeds.get(id(rows), 1)) for rows in rows_searched(matcher)]


def _part(rows: Rows, feeds: int) -> int:
    """Returns the bytes of rows that fall to one of the feeds that search in them."""
    return (rows.used_bytes + rows.key_bytes) // feeds


def share_out(limit_bytes: int, rows: Sequence[tuple[Rows, Spilled]]) -> None:
    """Divides a memory limit among rows: one half by what they use, the other equally, so that rows of which nothing is
    in memory can have something there again."""
    if not rows:
        return
    used = [int(r.used_bytes) + 1 for r, _ in rows] if len(rows) > 1 else [1]
    equal, total = limit_bytes // 2 // len(rows), sum(used)
    for mine, (_, spilled) in zip(used, rows, strict=True):
        spilled.limit_bytes = equal + (limit_bytes - limit_bytes // 2) * mine // total


class Group:
    """Members with the same rows. since_seq: they skip events with a lower ingest sequence (0: no such event can come
    any more). rows: None for one member whose matcher keeps its own.

    Of a member that has read the archive first, see Feed.enter: from_us: it skips earlier events (None: none can come
    any more); ordering: its own, while it holds back events that are unknown to the feed, the last of them at ahead_us;
    sources: as its events name them (empty: as those of the feed do). together: True if its members are counted
    together (matching.together). modules: the patterns of boxes that its members share, who then all have boxes."""

    together = False
    __slots__ = (
        "__weakref__", "_slice", "ahead_us", "from_us", "members", "modules", "ordering", "rows", "since_seq",
        "sources",
    )  # fmt: skip

    def __init__(self, rows: Rows | None, since_seq: Since) -> None:
        self.rows = rows
        self.since_seq = since_seq
        self.modules: Modules | None = None
        self.members: list[Member] = []
        self.from_us: int | None = None
        self.ordering: Ordering | None = None
        self.ahead_us = 0
        self.sources: tuple[str, ...] = ()
        self._slice = ROWS_MAX

    @property
    def plain(self) -> bool:
        """True if its members see the events of the feed unchanged."""
        return self.from_us is None and self.ordering is None

    def push_all(self, batch: EventBatch) -> None:
        """Takes the next events of the total order, in slices. Queries that take too much memory fail."""
        at, held = 0, budget()
        if held is not None:
            self._allow(held)
        for member in self.members:
            if member.failure is None:
                member.after = int(batch.seq[0]) if len(batch) else None, 0
        while at < len(batch):
            part = batch.slice(at, min(at + self._slice, len(batch))) if len(batch) > self._slice else batch
            self.push(part)
            at += len(part)
            if held is not None and held.is_due(self, len(part)):
                self._look(held)

    def _look(self, held: Budget) -> None:
        """Lets queries fail that take too much memory. Where partitions may leave it, slices become shorter first."""
        together, spilled = self.taken_bytes(), None if self.rows is None else self.rows.spilled
        if spilled is not None:
            most = spilled.most_bytes
            much = 2 * most > held.limit_bytes
            self._slice = max(SLICE_MIN, self._slice // 2) if much else min(ROWS_MAX, 2 * self._slice)
            if self._slice == SLICE_MIN:
                together = max(together, most)
        for member in held.look(self, together, lambda: self._taken_by_each(together)):
            self._over_budget(member, held.limit_bytes)
        self._allow(held)

    def _allow(self, held: Budget) -> None:
        """Notes what each query may take from now on: others may have let go of memory."""
        allowed = held.left(self)
        for member in self.members:
            member.bytes_max = allowed

    def _over_budget(self, member: Member, limit_bytes: int) -> None:
        """Ends a query that takes too much memory, and drops what only it needs."""
        from matching.limits import over_budget

        matcher, kernel = member.matcher, member.kernel
        assert matcher is not None
        member.failure = over_budget(matcher.plan, None if kernel is None else kernel.program, 0, limit_bytes)
        if self.rows is not None and kernel is not None:
            kernel.give_up()
            self.rows.remove(kernel)
            self.rows.drop(self.rows.mark())

    def let_go(self) -> int:
        """Drops what nothing needs, and returns the bytes that are left."""
        if self.rows is not None:
            self.rows.tidy()
        return self.taken_bytes()

    def taken_bytes(self) -> int:
        """Returns the bytes of the rows and partial matches of all members."""
        if self.rows is not None:
            return self.rows.used_bytes + self.rows.key_bytes
        searched = {id(rows): (rows, feeds) for m in self.members for rows, feeds in _searched(m.matcher)}
        apart = sum(bytes_taken(m.matcher) for m in self.members if not m.rows)
        return apart + sum(_part(rows, feeds) for rows, feeds in searched.values())

    def _taken_by_each(self, together: int) -> dict[Member, int]:
        """Returns the bytes of the rows and partial matches of each member; of rows that several share those that it
        needs. together: of all of them."""
        going = [m for m in self.members if m.failure is None]
        if len(going) == 1:
            return {going[0]: together}
        if self.rows is None:
            return {m: bytes_taken(m.matcher) for m in going}
        row = self.rows.bytes_of_row()
        return {m: k.used_bytes + row * int(np.count_nonzero(self.rows.needed(k))) for m, k in self.kernels}

    def own(self, batch: EventBatch | None, watermark_us: int | None, ended: bool, feeds: Ordering) -> None:
        """Takes events in order of arrival through its own ordering, which ends once all events unknown to the feed are
        handed on."""
        assert self.ordering is not None
        if batch is not None:
            self.push_all(self.ordering.push(self.wanted(batch), watermark_us))
        elif not ended:
            self.push_all(self.ordering.advance(watermark_us))
        reached_us = self.ordering.watermark_us
        if ended or (reached_us is not None and reached_us > self.ahead_us):
            rest = self.ordering.advance(None)
            # without the events that the feed has handed on already; its later ones come from there
            self.push_all(rest.take(np.flatnonzero(~np.isin(rest.seq, feeds.held_seqs()))))
            self.ordering = None

    def wanted(self, batch: EventBatch) -> EventBatch:
        """Returns the events that belong to its members."""
        if self.from_us is None or not len(batch):
            return batch
        seen = batch.ts_us >= self.from_us
        return batch if seen.all() else batch.take(np.flatnonzero(seen))

    def layered_successor(self, old: Member, plan: Plan) -> Member | None:
        """Replaces a member with boxes by a query of another plan, with its state. Returns None, without any change,
        unless the two differ only in measures of the outermost pattern and in their output."""
        from matching.hierarchy.matcher import HierarchyMatcher

        if not isinstance(old.matcher, HierarchyMatcher):
            return None
        new = old.matcher.successor(plan)
        member = old if new is None else Member(new, old.shedder)
        self.members[self.members.index(old)] = member
        self.tidy()
        return None if new is None else member

    def layered_anew(self, old: Member, plan: Plan, make: Callable[[Plan, Purpose], Matcher]) -> Member | None:
        """Adds a query that begins now, but for the patterns of boxes that `old` has too: they go on. Returns None,
        without any change, if there are none. make: see matching.hierarchy.modules.Modules."""
        from matching.hierarchy.matcher import HierarchyMatcher

        matcher = old.matcher
        new = matcher.begun_anew(plan, make) if isinstance(matcher, HierarchyMatcher) else None
        if new is None:
            self.tidy()
            return None
        self.modules = new.modules
        member = Member(new)
        self.members.append(member)
        return member

    def tidy(self) -> None:
        """Drops the patterns of boxes that no member reads any more."""
        from matching.hierarchy.matcher import HierarchyMatcher, used_by

        layered = [m.matcher for m in self.members if isinstance(m.matcher, HierarchyMatcher)]
        read = {id(matcher.modules): matcher.modules for matcher in layered}
        if self.modules is not None:
            read[id(self.modules)] = self.modules
        for modules in read.values():
            modules.keep_only(used_by(layered))

    @property
    def kernels(self) -> list[tuple[Member, KernelMatcher]]:
        """The members that share the rows and have not failed."""
        return [(m, m.kernel) for m in self.members if m.kernel is not None and m.failure is None]

    @property
    def shedder(self) -> Shedder | None:
        """Returns the shedder of its only member."""
        return self.members[0].shedder if self.members else None

    def push(self, batch: EventBatch) -> None:
        """Takes the next events of the total order."""
        if self.sources:
            batch = in_sources(batch, self.sources)
            self.sources = batch.sources
        if self.shedder is not None and len(batch):
            batch = self.shedder.take(batch)
            if not len(batch):
                return
        if self.rows is None:
            for member in self.members:
                member.guarded(member.alone.push, batch)
            return
        try:
            self.rows.append(batch)
        except Exception as error:  # noqa: BLE001  (the rows are shared, and so are their failures)
            for member in self.members:
                member.failure = member.failure or error
            return
        kernels = self.kernels
        wanted: list[Int64Array | None] = []
        for member, kernel in kernels:
            try:
                wanted.append(kernel.wants(batch.sources))
            except Exception as error:  # noqa: BLE001  (as in Member.guarded)
                member.failure = error
        retained = self.rows.retain(wanted)
        for member, kernel in kernels:
            member.guarded(kernel.take, retained)
        self.rows.taken()
        for member, kernel in kernels:
            if not kernel.settled:
                member.guarded(kernel.emit)
            if member.failure is not None:
                self.rows.remove(kernel)
        self.rows.compact()

    def advance(self, watermark_us: int | None) -> None:
        """See matching.batch.Matcher."""
        if self.rows is None:
            for member in self.members:
                member.guarded(member.alone.advance, watermark_us)
            return
        held = self.rows.held()
        try:
            self.rows.reach(watermark_us)
        except Exception as error:  # noqa: BLE001  (as in push)
            for member in self.members:
                member.failure = member.failure or error
            return
        kernels = self.kernels
        for member, kernel in kernels:
            member.guarded(kernel.expire, watermark_us, held)
        if watermark_us is None:
            self.rows.let_go(held)
        for member, kernel in kernels:
            if not kernel.settled:
                member.guarded(kernel.emit, watermark_us is None)
        if self.rows.spilled is not None:
            for member, kernel in kernels:
                if member.failure is not None:
                    self.rows.remove(kernel)
            self.rows.compact()
