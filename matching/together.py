"""The queries of a feed whose trends are counted together (matching.shared_queries)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matching.batch import EventBatch, Matches
from matching.engines.shared_trends import TooLarge
from matching.limits import over_budget
from matching.members import Group, Member
from matching.ordering import Since, in_sources
from matching.program.program import VARIABLES_MAX, NoKernel
from matching.purpose import Purpose
from matching.shared_queries import SharedQueries, close_together, conditions_of
from matching.spill import SpillStats
from matching.workload.program import workload_key
from matching.workload.sharing_mode import SharingMode
from matching.workload_matcher import QueriesFailed, counts_the_same
from query.errors import DataError
from query.plan.plan import Plan


class CountedQuery(Member):
    """A query that is counted together with others. name: unique in its feed. conditions: of its variables."""

    __slots__ = ("conditions", "name", "plan", "together")

    def __init__(self, name: str, plan: Plan, together: Together) -> None:
        super().__init__(None)
        self.name = name
        self.plan = plan
        self.conditions = frozenset(conditions_of(plan))
        self.together = together

    def push_alone(self, batch: EventBatch) -> None:
        self.together.push(batch)

    @property
    def spill(self) -> SpillStats:
        """Returns the statistics of all queries that are counted together."""
        return self.together.spill

    @property
    def purpose(self) -> Purpose:
        return self.together.purpose

    @property
    def others(self) -> int:
        return len(self.together.members) - 1

    def show(self) -> str:
        """Returns the lines of EXPLAIN about sharing."""
        return self.together.show(self)


class Together(Group):
    """Shareable queries with one key that see the same events. mode: how the sharing plan is chosen; purpose: the use
    of the rows of all. queries: None before the first events."""

    __slots__ = ("mode", "purpose", "queries")

    together = True
    members: list[CountedQuery]  # type: ignore[assignment]

    def __init__(self, mode: SharingMode, purpose: Purpose, since_seq: Since) -> None:
        super().__init__(None, since_seq)
        self.mode = mode
        self.purpose = purpose
        self.queries: SharedQueries | None = None

    def matches(self, plan: Plan, mode: SharingMode, purpose: Purpose) -> bool:
        """True if it may take a query of this plan."""
        first = self.members[0].plan
        if (mode, purpose, workload_key(plan)) != (self.mode, self.purpose, workload_key(first)):
            return False
        return len(conditions_of(plan).union(*(m.conditions for m in self.members))) <= VARIABLES_MAX

    def add(self, name: str, plan: Plan) -> CountedQuery:
        """Adds a query that sees the events from the next `join` on."""
        member = CountedQuery(name, plan, self)
        self.members.append(member)
        return member

    def rename(self, member: CountedQuery, name: str) -> None:
        """Gives a query a name that is unique in the feed that it comes to."""
        if self.queries is not None:
            self.queries.rename(member.name, name)
        member.name = name

    def succeed(self, old: CountedQuery, plan: Plan, purpose: Purpose) -> CountedQuery | None:
        """Replaces one of its queries by one of another plan, with its open windows, if both count the same; returns
        None otherwise."""
        if purpose is not self.purpose or old.failure is not None or not counts_the_same(old.plan, plan):
            return None
        member = CountedQuery(old.name, plan, self)
        self.members[self.members.index(old)] = member
        return member

    def in_mode(self, old: CountedQuery, plan: Plan, purpose: Purpose, mode: SharingMode) -> Together | None:
        """Returns a group of another mode with one of its queries, by another plan, with its open windows; that query
        is no longer in this one. None, without any change, if both do not count the same, or if it cannot go on so."""
        if old.failure is not None or purpose is not self.purpose or not counts_the_same(old.plan, plan):
            return None
        if not self.plain or self.since_seq:
            return None
        group = Together(mode, purpose, 0)
        group.sources = self.sources
        group.add(old.name, plan)
        if self.queries is not None and old.name in self.queries.queries:
            group.queries = self.queries.in_mode(mode, old.name, plan)
        self.members.remove(old)
        return group

    @property
    def _running(self) -> dict[str, Plan]:
        return {m.name: m.plan for m in self.members if m.failure is None}

    def join(self) -> list[CountedQuery]:
        """Counts the queries added since the last call, and no longer those removed. Returns, and removes, those that
        cannot be counted with the others."""
        wanted = self._running
        try:
            self._count(wanted)
            return []
        except NoKernel:
            pass
        known = [] if self.queries is None else [name for name in self.queries.queries if name in wanted]
        refused = []
        for member in [m for m in self.members if m.name in wanted and m.name not in known]:
            try:
                self._count({name: wanted[name] for name in (*known, member.name)})
                known.append(member.name)
            except NoKernel:
                self.members.remove(member)
                refused.append(member)
        return refused

    def _count(self, plans: Mapping[str, Plan]) -> None:
        """Counts these queries from now on. Raises NoKernel, and then nothing has changed."""
        if not plans:
            self.queries = None
        elif self.queries is None:
            self.queries = SharedQueries(plans, self.mode, purpose=self.purpose)
        elif plans != self.queries.queries:
            self.queries.change(plans)

    def absorb(self, other: Together) -> bool:
        """Counts the queries of another group, too, which sees the same events from now on. Returns False, without any
        change, if they cannot be counted together. `join` was called for both."""
        if len(frozenset().union(*(m.conditions for m in (*self.members, *other.members)))) > VARIABLES_MAX:
            return False
        mine, theirs = self.queries, other.queries
        if mine is not None and theirs is not None:
            try:
                closed = close_together([mine, theirs])
            except TooLarge:
                return False  # the next event, or the watermark, says whose count it is
            for group, found in zip((self, other), closed, strict=True):
                group._deliver(found)
            try:
                mine.absorb({**mine.queries, **theirs.queries}, [theirs])
            except NoKernel:
                return False
            except Exception as error:  # noqa: BLE001  (of all of them, as in push)
                self._all_fail(error)
                other._all_fail(error)
                return False
        if mine is None:
            self.queries, self.sources = theirs, other.sources
        for member in other.members:
            member.together = self
        self.members += other.members
        return True

    # ---- events

    def push(self, batch: EventBatch) -> None:
        """See Group.push. A query that cannot go on fails alone."""
        if self.sources:
            batch = in_sources(batch, self.sources)
            self.sources = batch.sources
        while self.queries is not None and len(batch):
            try:
                self._deliver(self.queries.push(batch))
                return
            except QueriesFailed as failed:
                self._without(failed)
                batch = batch.slice(failed.taken, len(batch))
                if failed.halfway and self.queries is not None:
                    self.push(batch.slice(0, 1))
                    self._end_row()
                    batch = batch.slice(1, len(batch))
            except Exception as error:  # noqa: BLE001  (of all of them)
                self._all_fail(error)

    def _end_row(self) -> None:
        if self.queries is not None:
            self.queries.end_row()

    def advance(self, watermark_us: int | None) -> None:
        """See matching.batch.Matcher."""
        while self.queries is not None:
            try:
                self._deliver(self.queries.advance(watermark_us))
                return
            except QueriesFailed as failed:
                self._without(failed)
            except Exception as error:  # noqa: BLE001  (as in push)
                self._all_fail(error)

    def _deliver(self, found: Mapping[str, Matches]) -> None:
        for member in self.members:
            matches = found.get(member.name)
            if matches is not None and len(matches):
                member.found.append(matches)
        if self.queries is not None and (failures := self.queries.take_failures()):
            self._fail(failures)

    def _without(self, failed: QueriesFailed) -> None:
        self._deliver(failed.found)
        self._fail(failed.errors)

    def _fail(self, errors: Mapping[str, Exception]) -> None:
        for member in self.members:
            member.failure = member.failure or errors.get(member.name)
        try:
            self._count(self._running)
        except Exception as error:  # noqa: BLE001  (as in push)
            self._all_fail(error)

    def _all_fail(self, error: Exception) -> None:
        for member in self.members:
            member.failure = member.failure or error
        self.queries = None

    def taken_bytes(self) -> int:
        return 0 if self.queries is None else self.queries.taken_bytes

    def _taken_by_each(self, together: int) -> dict[Member, int]:
        """Returns equal parts: the queries have the same windows."""
        going = [m for m in self.members if m.failure is None]
        return dict.fromkeys(going, together // max(1, len(going)))

    def _over_budget(self, member: Member, limit_bytes: int) -> None:
        assert isinstance(member, CountedQuery)
        self._fail({member.name: over_budget(member.plan, None, 0, limit_bytes)})

    # ---- state

    def snapshot(self, chosen: Sequence[CountedQuery]) -> tuple[dict[str, Any], bytes]:
        """Returns the state of some of its queries: a head, and a part. `join` was called."""
        names = [m.name for m in chosen if m.failure is None]
        queries = self.queries
        if queries is not None and names != list(queries.queries):
            queries = queries.only(names)
        head = {"mode": self.mode.value, "names": [m.name for m in chosen], "counted": names}
        return head, b"" if queries is None or not names else queries.snapshot()

    def restore(self, head: Mapping[str, Any], state: bytes, plans: Sequence[Plan]) -> bool:
        """Restores the queries of a snapshot, which had these plans, in their order. Returns False if its state has
        another meaning now."""
        for name, plan in zip(head["names"], plans, strict=True):
            member = self.add(name, plan)
            if name not in head["counted"]:
                member.failure = DataError("this query had failed before it was saved", "start it again")
        try:
            self._count(self._running)
        except NoKernel:
            return False
        if self.queries is None:
            return True
        if not self.queries.fits(state):
            return False
        self.queries.restore(state)
        return True

    # ---- for the user

    @property
    def spill(self) -> SpillStats:
        """Returns statistics of the memory of all."""
        if self.queries is None:
            return SpillStats("no event has come yet")
        return self.queries.spill

    def show(self, member: CountedQuery) -> str:
        """Returns the lines of EXPLAIN about sharing, for one of the queries."""
        names = [m.name for m in self.members]
        others = f"with {len(names) - 1} others" if len(names) > 1 else "with no other now"
        lines = [f"{self.mode.value}: counted {others}"]
        queries = self.queries
        if queries is not None and member.name in queries.queries:
            lines += queries.show(list(queries.queries).index(member.name))
        return "\n".join(f"{'' if i else 'sharing':<12}{line}" for i, line in enumerate(lines))


def counted_alone(plan: Plan, mode: SharingMode, purpose: Purpose) -> CountedQuery | None:
    """Returns a query that counts in a group of its own, of no feed yet; None if the engine of many refuses it."""
    group = Together(mode, purpose, 0)
    member = group.add("0", plan)
    return None if group.join() else member
