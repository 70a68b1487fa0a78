"""All live queries of one stream: one order, one pass over each batch, rows shared by those with the same PARTITION BY.

Each query gets the same answer as alone, from the events pushed after it was added; other queries, their arrival, end
and errors do not affect it.

Long: one class holds the queries of a stream; each of its methods is one way by which they come, go, or are saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import ref

import numpy as np

from matching.batch import EventBatch, Matcher
from matching.budget import budget
from matching.by_reference import ReferenceMatcher
from matching.drive import advanced, pushed
from matching.emitted import later
from matching.members import Group, Member, share_out
from matching.ordering import Ordering, Since, from_then_on, in_sources
from matching.purpose import Purpose
from matching.spill import Spill
from matching.state import as_array, pack, unpack
from query.errors import DataError
from query.plan.plan import Plan
from query.schema import Schema

if TYPE_CHECKING:  # loads the kernels; left to the first query
    from matching.engines.engine import Builder
    from matching.hierarchy.modules import Join, Modules
    from matching.hierarchy.searches import Origin
    from matching.rows import Rows
    from matching.shedding import Shedder
    from matching.spilled import Spilled
    from matching.together import CountedQuery, Together
    from matching.workload.sharing_mode import SharingMode


#: Version of Feed.snapshot; restore refuses others.
STATE_VERSION = 1
NO_PLACES = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Unread:
    """A query whose state has another meaning for this release: it must be replayed. shedder: its own, in its saved
    state."""

    shedder: Shedder | None


class Feed:
    """The matchers of one stream after one Ordering. Takes on-time events in arrival order. Not thread safe."""

    __slots__ = (
        "_advanced_us", "_apart", "_builder", "_ended", "_given_us", "_groups", "_join", "_names", "_origin",
        "_scattered", "_spill", "limit_bytes", "ordering",
    )  # fmt: skip

    def __init__(
        self, schema: Schema, builder: Builder | None = None, spill: Spill | None = None, join: Join | None = None,
        origin: Origin | None = None,
    ) -> None:  # fmt: skip
        """builder: makes specialised kernels for long-running queries (see matching.matcher.make_matcher). spill: where
        partial matches go that do not fit in memory; its limit is for all queries together, may be changed
        (limit_bytes), and is divided according to their use. join: of boxes joined with history. origin: what it shares
        with other feeds."""
        self.ordering = Ordering(schema)
        self._builder = builder
        self._join = join
        self._origin = origin
        self._spill = spill
        self.limit_bytes = 0 if spill is None else spill.limit_bytes
        self._groups: list[Group] = []
        self._advanced_us: int | None = None
        self._ended = False  # and no event has come since
        self._names = 0  # of queries that are counted together, so far
        self._scattered = False  # queries may have to be put together, or taken apart
        self._apart = False  # queries may have patterns of boxes of their own that others read, too
        self._given_us: int | None = None  # the time of the last event that was handed on

    def __len__(self) -> int:
        """Returns the number of queries."""
        return sum(len(group.members) for group in self._groups)

    def declare(self, schema: Schema) -> None:
        """Adopts a declaration of the stream that differs in its lateness only."""
        for ordering in (self.ordering, *(g.ordering for g in self._groups if g.ordering is not None)):
            ordering.declare(schema)

    def _make(self, plan: Plan, purpose: Purpose, shared: list[Rows] | None = None) -> Matcher:
        """Returns a matcher of a live query."""
        from matching.matcher import make_matcher

        return make_matcher(
            plan, lenient=True, shared=shared, builder=self._builder, purpose=purpose, spill=self._spill,
            join=self._join,
        )  # fmt: skip

    def _purpose(self, purpose: Purpose, shedder: Shedder | None) -> Purpose:
        """Returns the purpose of a new matcher: LIVE with a shedder, because the archive also has the events of shed
        keys; runs that may spill keep their rows."""
        if shedder is not None:
            return Purpose.LIVE
        return Purpose.KEPT_ROWS if purpose is Purpose.FOUND_AGAIN and self._spill is not None else purpose

    def add(
        self, plan: Plan, since_seq: Since, shedder: Shedder | None = None, purpose: Purpose = Purpose.LIVE,
        sharing: SharingMode | None = None,
    ) -> Member:  # fmt: skip
        """Adds a query that sees the events pushed from now on. since_seq: the ingest sequence of the next event.
        shedder: of the plan's PARTITION BY, if partitions may be left out. purpose: the use of its matches. sharing:
        how trends are counted together with those of other queries of the same mode; None: on their own."""
        hidden_seq = since_seq if len(self.ordering) else 0  # held-back events are not for it
        if sharing is not None and shedder is None and shares_trends(plan):
            return self._add_together(plan, hidden_seq, purpose, sharing)
        if plan.boxes and shedder is None:
            return self._add_layered(plan, hidden_seq, purpose)
        shared = [
            g.rows for g in self._groups
            if g.rows is not None and g.since_seq == hidden_seq and g.shedder is None and g.plain
        ]
        matcher = self._make(plan, self._purpose(purpose, shedder), [] if shedder else shared)
        member = Member(matcher, shedder)
        rows = None if member.kernel is None else member.kernel.rows
        group = next((g for g in self._groups if g.rows is rows and rows is not None), None)
        if group is None:
            group = Group(rows, hidden_seq)
            self._groups.append(group)
        group.members.append(member)
        return member

    def _add_layered(self, plan: Plan, since_seq: Since, purpose: Purpose) -> Member:
        """Adds a query whose patterns of boxes are searched once for all that read them; as one plain pattern, if that
        is cheaper and none of them has been read before. A query that runs goes on as it is."""
        from matching.hierarchy.choice import as_one, shares_patterns
        from matching.hierarchy.matcher import may_join

        others = (m.plan_of_boxes for g in self._groups for m in g.members)
        elsewhere = self._origin is not None and self._origin.knows(plan)
        known = elsewhere or shares_patterns(plan, (p for p in others if p))
        if not isinstance(as_one(plan, purpose), str) and not known:
            alone = Group(None, since_seq)
            alone.members.append(Member(self._make(plan, purpose)))
            self._groups.append(alone)
            return alone.members[0]
        group = next((
            g for g in self._groups
            if g.modules is not None and g.since_seq == since_seq and g.plain and not g.sources
            and may_join(plan, g.modules)
        ), None)  # fmt: skip
        if group is None:
            group = Group(None, since_seq)
            self._groups.append(group)
            self._apart = True
        modules = self._modules(group, plan)
        modules.begins_now = True
        try:
            member = self._layered(modules, plan, purpose)
        finally:
            modules.begins_now = False
        group.members.append(member)
        return member

    def _modules(self, group: Group, plan: Plan) -> Modules:
        """Returns the modules of a group, which gets them if it has none."""
        from matching.hierarchy.matcher import modules_for
        from matching.hierarchy.united import queries_of
        from matching.shared_uppers import SharedUppers

        if group.modules is None:
            over = partial(SharedUppers, self._make)
            group.modules = modules_for(plan, self._make, self._join, True, over, self._origin)
            group.modules.queries_of = partial(queries_of, ref(group))
        return group.modules

    def _layered(self, modules: Modules, plan: Plan, purpose: Purpose) -> Member:
        """Returns a query that shares modules."""
        from matching.hierarchy.matcher import HierarchyMatcher

        return Member(HierarchyMatcher(plan, self._make, purpose=purpose, modules=modules))

    def _add_together(self, plan: Plan, since_seq: Since, purpose: Purpose, mode: SharingMode) -> CountedQuery:
        group = next((
            g for g in self._together()
            if g.since_seq == since_seq and g.plain and not g.sources and g.matches(plan, mode, purpose)
        ), None)  # fmt: skip
        if group is None:
            group = self._new_together(mode, purpose, since_seq)
        self._names += 1
        self._scattered = True
        return group.add(str(self._names), plan)

    def _new_together(self, mode: SharingMode, purpose: Purpose, since_seq: Since) -> Together:
        from matching.together import Together

        group = Together(mode, purpose, since_seq)
        self._groups.append(group)
        return group

    def _together(self) -> Iterator[Together]:
        for group in self._groups:
            if group.together:
                yield cast("Together", group)

    def _unite(self, first_us: int) -> None:
        """Lets queries with boxes that began apart join the patterns of others. first_us: see `unite`."""
        if self._apart and self._given_us is not None and first_us > self._given_us:
            from matching.hierarchy.united import unite

            self._apart = unite(self._groups, self.ordering.sources, first_us)

    def _gather(self) -> None:
        """Lets new queries join those that they are counted with, and puts groups together that see the same events
        from now on."""
        if not self._scattered:
            return
        self._scattered = False
        groups = list(self._together())
        for group in groups:
            for member in group.join():
                alone = self._new_together(group.mode, group.purpose, group.since_seq)
                alone.ordering, alone.from_us, alone.ahead_us = group.ordering, group.from_us, group.ahead_us
                alone.members.append(member)
                member.together = alone
                if alone.join():
                    alone.members.append(member)
                    member.failure = cannot_be_counted()
        known: list[Together] = []
        for group in [g for g in groups if g.members and g.plain and not g.since_seq]:
            first = group.members[0].plan
            if any(one.matches(first, group.mode, group.purpose) and one.absorb(group) for one in known):
                self._groups.remove(group)
            else:
                known.append(group)

    def succeed(
        self, old: Member, plan: Plan, read: Callable[[int, int], EventBatch], purpose: Purpose = Purpose.LIVE
    ) -> Member | None:  # fmt: skip
        """Replaces `old` by a query of another plan, with the state of its rows, if the two differ only in measures and
        their output. Returns None, without any change, otherwise. read: returns the events of the stream with a time
        from the first to the second. purpose: as in `add`."""
        for together in self._together():
            if old in together.members:
                self._scattered = True
                return together.succeed(old, plan, purpose)
        for group in self._groups:
            if old in group.members and old.kernel is not None:
                kernel = old.kernel.successor(plan, read, purpose)
                if kernel is not None:
                    member = Member(kernel, old.shedder)
                    group.members[group.members.index(old)] = member
                    return member
            elif old in group.members:
                return group.layered_successor(old, plan)
        return None

    def add_anew(self, old: Member, plan: Plan) -> Member | None:
        """Adds a query in the place of `old`, which is removed next. It begins with an empty state, but for patterns of
        boxes that both have: they go on. Returns None, without any change, if there are none."""
        for group in self._groups:
            if old in group.members and old.shedder is None and not group.together:
                return group.layered_anew(old, plan, self._make)
        return None

    def in_mode(self, old: Member, plan: Plan, purpose: Purpose, mode: SharingMode | None) -> Member | None:
        """As `succeed`, for a query that is counted in another mode from now on; mode: see `add`."""
        self._gather()
        for together in self._together():
            if mode is not None and old in together.members:
                group = together.in_mode(old, plan, purpose, mode)
                if group is None:
                    return None
                self._groups = [g for g in self._groups if g.members]
                self._groups.append(group)
                self._scattered = True
                return group.members[0]
        return None

    def replay(
        self, plan: Plan, since_seq: Since, events: EventBatch, shedder: Shedder | None = None,
        from_us: int | None = None, purpose: Purpose = Purpose.LIVE, sharing: SharingMode | None = None,
        wide: bool = False, instead: Member | None = None,
    ) -> Member:  # fmt: skip
        """Adds a query in the state of having been added before the event `since_seq`. events: those from there on, in
        the total order, possibly including held-back ones. shedder: as in `add`; none of these events is left out.
        from_us: earlier events are not for it. wide: the reference matches it from now on. instead: of a
        query that has failed; the matches after its own come out. Raises the failure of the query."""
        events = self.ordering.known(events)
        held = np.isin(events.seq, self.ordering.held_seqs())
        if held.any():
            events = events.take(np.flatnonzero(~held))
        hidden = self.ordering.held_count(since_seq) < len(self.ordering)
        if sharing is not None and shedder is None and shares_trends(plan):
            return self._replay_together(plan, since_seq if hidden else 0, events, from_us, purpose, sharing)
        matcher = ReferenceMatcher(plan, lenient=True) if wide else self._make(plan, self._purpose(purpose, shedder))
        first, count = (None, 0) if instead is None else instead.after
        at = NO_PLACES if first is None else np.flatnonzero(events.seq == first)
        cut = int(at[0]) if len(at) else len(events)
        for _ in pushed(matcher, [events.slice(0, cut)]):
            pass  # it has been emitted
        if instead is not None and instead.told_us is not None:
            matcher.advance(instead.told_us)  # and what time had decided
        found = list(pushed(matcher, [events.slice(cut, len(events))]))
        if self._advanced_us is not None:
            found += advanced(matcher, self._advanced_us)
        if instead is not None and self._ended:
            found += advanced(matcher, None)
        member = Member(matcher, shedder)
        member.found = [] if instead is None else later(found, count)
        group = Group(None if member.kernel is None else member.kernel.rows, since_seq if hidden else 0)
        if from_us is not None and (self._advanced_us is None or self._advanced_us < from_us):
            group.from_us = from_us
        group.members.append(member)
        self._groups.append(group)
        self._apart = True
        return member

    def _replay_together(
        self, plan: Plan, since_seq: Since, events: EventBatch, from_us: int | None, purpose: Purpose, mode: SharingMode
    ) -> CountedQuery:  # fmt: skip
        """See `replay`. The query is counted with others from the next events on."""
        group = self._new_together(mode, purpose, since_seq)
        self._names += 1
        member = group.add(str(self._names), plan)
        if group.join():
            self._groups.remove(group)
            raise cannot_be_counted()
        group.push_all(events)
        if self._advanced_us is not None:
            group.advance(self._advanced_us)
        if member.failure is not None:
            self._groups.remove(group)
            raise member.failure
        member.take_found()  # it has been emitted
        if from_us is not None and (self._advanced_us is None or self._advanced_us < from_us):
            group.from_us = from_us
        self._scattered = True
        return member

    def enter(
        self, member: Member, ahead: EventBatch, watermark_us: int | None, from_us: int, sources: tuple[str, ...],
        since_seq: Since = 0,
    ) -> None:  # fmt: skip
        """Adds a query that has had all events of the stream from `from_us` on with a time below the watermark.

        watermark_us: the stream's (None: there is none yet). ahead: all other events from `from_us` on, in the total
        order, including those held back here. sources: all names of sources so far, as in the query's events.
        since_seq: the query skips held-back events with a lower ingest sequence. A query that is counted in a group of
        its own (matching.together.counted_alone) is counted with others as soon as it sees the same events."""
        since_seq = max(since_seq, 0) if isinstance(since_seq, int) else since_seq
        if member.matcher is None:
            counted = cast("CountedQuery", member)
            self._names += 1
            counted.together.rename(counted, str(self._names))
            group: Group = counted.together
            group.since_seq, self._scattered = since_seq, True
        else:
            group = Group(None if member.kernel is None else member.kernel.rows, since_seq)
            group.members.append(member)
        group.sources = sources
        if watermark_us is None or watermark_us < from_us:
            group.from_us = from_us
        own = Ordering(self.ordering.schema)
        own.known(in_sources(ahead, sources))
        group.push_all(own.push(ahead, watermark_us))
        if watermark_us is not None:
            group.advance(watermark_us)
        if len(own) and set(own.held_seqs().tolist()) != set(self._held_from(from_us, since_seq)):
            group.ordering, group.ahead_us = own, int(ahead.ts_us[-1])
        self._groups.append(group)
        self._apart = True

    def _held_from(self, from_us: int, since_seq: Since) -> list[int]:
        """Returns the ingest sequences of the events that are held back, from a time and an ingest sequence on."""
        held = self.ordering.held()
        return [int(seq) for seq in held.seq[(held.ts_us >= from_us) & from_then_on(held.seq, since_seq)]]

    def held_count(self, member: Member, since_seq: Since) -> int:
        """Returns the number of events from that ingest sequence on that are held back from one of its queries."""
        own = next((g.ordering for g in self._groups if member in g.members), None)
        return self.ordering.held_count(since_seq) if own is None else len(own)

    def patterns(self, member: Member) -> dict[str, dict[str, int]]:
        """Returns, for each pattern of a query's boxes that is searched as a layer, the number of events that it was
        searched in, and of queries that read it."""
        from matching.hierarchy.united import patterns_read

        return next((patterns_read(group, member) for group in self._groups if member in group.members), {})

    def snapshot(self, wanted: Collection[Member]) -> tuple[bytes, list[Member]]:
        """Returns the state of the feed and of some members, and these members in the order that `restore` takes.
        Pending matches are not included."""
        self._gather()
        groups: list[dict[str, object]] = []
        parts: dict[str, np.ndarray] = {"ordering": as_array(self.ordering.snapshot())}
        members: list[Member] = []
        for group in self._groups:
            chosen = [member for member in group.members if any(member is one for one in wanted)]
            if not chosen:
                continue
            i = len(groups)
            kernels = group.rows is not None
            groups.append({
                "since_seq": group.since_seq, "members": len(chosen), "kernels": kernels, "from_us": group.from_us,
                "ahead_us": group.ahead_us, "sources": list(group.sources),
            })  # fmt: skip
            groups[-1]["purposes"] = [member.purpose.name for member in chosen]
            groups[-1]["wide"] = any(isinstance(member.matcher, ReferenceMatcher) for member in chosen)
            if group.ordering is not None:
                parts[f"own{i}"] = as_array(group.ordering.snapshot())
            if group.together:
                together = cast("Together", group)
                head, state = together.snapshot([m for m in together.members if m in chosen])
                groups[-1]["together"], parts[f"{i}/0"] = head, as_array(state)
                members += chosen
                continue
            if group.modules is not None:
                from matching.hierarchy.matcher import used_by

                layered, arrays = group.modules.snapshot(used_by(member.matcher for member in chosen))
                groups[-1]["layered"] = layered
                parts |= {f"modules{i}.{name}": array for name, array in arrays.items()}
            if group.shedder is not None:
                parts |= {f"shed{i}.{name}": array for name, array in group.shedder.snapshot().items()}
            if group.rows is not None:
                parts |= {f"{i}.{name}": array for name, array in group.rows.snapshot().items()}
            for j, member in enumerate(chosen):
                own = member.alone.snapshot() if member.kernel is None else member.kernel.snapshot_own()
                parts[f"{i}/{j}"] = as_array(own)
            members += chosen
        head = {"version": STATE_VERSION, "groups": groups, "advanced_us": self._advanced_us}
        return pack(head, parts), members

    def restore(self, state: bytes, plans: Sequence[Plan]) -> list[Member | Unread]:
        """Restores a snapshot of a feed of the same stream whose members had these plans. Returns its members in their
        order. The feed must be new. Raises DataError for any other state, and is unusable then."""
        from matching.shedding import Shedder

        head, parts = unpack(state)
        if head.get("version") != STATE_VERSION:
            message = f"the saved state has version {head.get('version')}; this program reads {STATE_VERSION}"
            raise DataError(message, "start the queries again")
        self.ordering.restore(parts["ordering"].tobytes())
        self._advanced_us, self._apart = head["advanced_us"], True
        left = list(plans)
        members: list[Member | Unread] = []
        for i, kept in enumerate(head["groups"]):
            shared: list[Rows] | None = [] if kept["kernels"] else None
            since_seq = kept["since_seq"]
            group = Group(None, tuple(since_seq) if isinstance(since_seq, list) else since_seq)
            group.from_us, group.ahead_us = kept.get("from_us"), kept.get("ahead_us", 0)
            group.sources = tuple(kept.get("sources", ()))
            if f"own{i}" in parts:
                group.ordering = Ordering(self.ordering.schema)
                group.ordering.restore(parts[f"own{i}"].tobytes())
            if "together" in kept:
                members += self._restore_together(kept, parts[f"{i}/0"].tobytes(), group, left)
                continue
            layered = kept.get("layered")
            for purpose in _purposes(kept):
                plan = left.pop(0)
                if layered is not None and plan.boxes:
                    group.members.append(self._layered(self._modules(group, plan), plan, purpose))
                else:
                    member = Member(self._make(plan, purpose, shared))
                    if kept.get("wide") and member.kernel is not None:
                        member = Member(ReferenceMatcher(plan, lenient=True))
                    group.members.append(member)
            shedder = None
            if shed := {n.removeprefix(f"shed{i}."): a for n, a in parts.items() if n.startswith(f"shed{i}.")}:
                shedder = Shedder(plans[len(members)].partition_by)
                shedder.restore(shed)
            states = [parts[f"{i}/{j}"].tobytes() for j in range(len(group.members))]
            alike = all((m.kernel is not None) == kept["kernels"] for m in group.members)
            below = {n.removeprefix(f"modules{i}."): a for n, a in parts.items() if n.startswith(f"modules{i}.")}
            if layered is not None:
                alike = alike and group.modules is not None and group.modules.fits(layered, below)
            if not alike or (shared is not None and len(shared) != 1) or not all(
                m.alone.fits(state) for m, state in zip(group.members, states, strict=True)
            ):
                members += [Unread(shedder)] * len(states)
                continue
            if group.modules is not None and layered is not None:
                group.modules.restore(layered, below)
            if shared:
                group.rows = shared[0]
                group.rows.restore({n.removeprefix(f"{i}."): a for n, a in parts.items() if n.startswith(f"{i}.")})
            for member, own in zip(group.members, states, strict=True):
                if member.kernel is None:
                    member.alone.restore(own)
                else:
                    member.kernel.restore_own(own)
            if group.rows is not None:
                group.rows.restored()
            if shedder is not None:
                group.members[0].shedder = shedder
            self._groups.append(group)
            members += group.members
        return members

    def _restore_together(
        self, kept: Mapping[str, Any], state: bytes, like: Group, left: list[Plan]
    ) -> Sequence[Member | Unread]:
        """Restores a group whose queries are counted together. like: has its events; left: the plans of its members and
        those after them, of which they are taken."""
        from matching.workload.sharing_mode import SharingMode

        head = kept["together"]
        plans = [left.pop(0) for _ in head["names"]]
        group = self._new_together(SharingMode(head["mode"]), _purposes(kept)[0], like.since_seq)
        group.from_us, group.ahead_us, group.sources = like.from_us, like.ahead_us, like.sources
        group.ordering = like.ordering
        self._names = max(self._names, *map(int, head["names"]))
        self._scattered = True
        if not all(map(shares_trends, plans)) or not group.restore(head, state, plans):
            self._groups.remove(group)
            return [Unread(None)] * len(plans)
        return group.members

    @property
    def shares(self) -> bool:
        """True if other feeds read the search of a pattern of its queries."""
        return any(group.modules is not None and group.modules.shares for group in self._groups)

    def strays(self, batch: EventBatch) -> bool:
        """True if the next events, in order of arrival, come here in another order than in feeds that merge the stream
        with others and share a search."""
        given_us = self._given_us
        return given_us is not None and self.ordering.stands_before(batch, given_us) and self.shares

    def take_trouble(self) -> list[str]:
        """Returns the spilling failures since the last call."""
        return [trouble for _, spilled in self._may_leave() for trouble in spilled.take_trouble()]

    @property
    def advanced_us(self) -> int | None:
        """Returns the last watermark that the queries were given, or None."""
        return self._advanced_us

    def remove(self, member: Member) -> None:
        """Removes a query and the state that only it needed."""
        for group in self._groups:
            if member in group.members:
                group.members.remove(member)
                self._scattered |= group.together
                if group.rows is not None and member.kernel is not None:
                    group.rows.remove(member.kernel)
                group.tidy()
        self._groups = [group for group in self._groups if group.members]

    def keep_only(self, members: Collection[Member]) -> None:
        """Removes all other queries."""
        for group in self._groups:
            for member in [m for m in group.members if m not in members]:
                self.remove(member)

    def push(self, batch: EventBatch, watermark_us: int | None) -> None:
        """Takes n on-time events and the stream's watermark after them, or None if it has none yet."""
        self._give(self.ordering.push(batch, watermark_us), batch, watermark_us)
        if watermark_us is not None:
            self._advance(watermark_us)

    def advance(self, watermark_us: int | None) -> None:
        """Announces that no event with time < watermark_us can still come; None: the input has ended."""
        self._give(self.ordering.advance(watermark_us), None, watermark_us, watermark_us is None)
        self._advance(watermark_us)

    def _share_out(self) -> None:
        """Divides the memory limit among the rows of each PARTITION BY, and of each layer."""
        share_out(self.limit_bytes, self._may_leave())

    def _may_leave(self) -> list[tuple[Rows, Spilled]]:
        """Returns the rows, each once, that may leave memory."""
        if self._spill is None:
            return []
        rows = {id(r): r for g in self._groups for m in g.members for r in m.rows}
        return [(r, r.spilled) for r in rows.values() if r.spilled is not None]

    def _give(
        self, batch: EventBatch, came: EventBatch | None, watermark_us: int | None, ended: bool = False
    ) -> None:
        """Hands on the next events of the total order. came: the events, in order of arrival, that released them."""
        self._share_out()
        self._gather()
        self._ended = ended
        if len(batch):
            self._unite(int(batch.ts_us[0]))
            self._given_us = int(batch.ts_us[-1])
        for group in self._groups:
            for member in group.members:
                if member.failure is None:
                    member.told_us = self._advanced_us
            if group.ordering is not None:
                group.own(came, watermark_us, ended, self.ordering)
                self._scattered |= group.together and group.ordering is None
                continue
            mine = group.wanted(batch)
            if group.since_seq and len(batch):
                seen = from_then_on(batch.seq, group.since_seq)
                mine = batch if seen.all() else batch.take(np.flatnonzero(seen))
                if len(self.ordering) == self.ordering.held_count(group.since_seq):
                    group.since_seq = 0
                    self._scattered |= group.together
            group.push_all(mine)

    def _advance(self, watermark_us: int | None) -> None:
        if watermark_us is not None:
            # An unchanged watermark decides nothing more: later events are not before it.
            if self._advanced_us is not None and watermark_us <= self._advanced_us:
                return
            self._advanced_us = watermark_us
        held = budget()
        for group in self._groups:
            if group.from_us is not None and watermark_us is not None and watermark_us >= group.from_us:
                group.from_us = None
                self._scattered |= group.together
            group.advance(watermark_us)
            if held is not None and held.is_due(group, 0):
                held.note(group, group.taken_bytes())


def shares_trends(plan: Plan) -> bool:
    """True if the trends of a query can be counted together with those of others."""
    from matching.workload.program import shareable

    return plan.trends is not None and shareable(plan) is None


def cannot_be_counted() -> DataError:
    """Returns the error of a query that the engine of many queries refuses even alone."""
    return DataError("the trends of this query cannot be counted together with others", 'watch it with sharing="none"')


def _purposes(kept: Mapping[str, Any]) -> list[Purpose]:
    """Returns the purposes of the members of a group in a snapshot. Earlier releases stored two flags instead."""
    if "purposes" in kept:
        return [Purpose[name] for name in kept["purposes"]]
    never = [False] * kept["members"]
    flags = zip(kept.get("found_again", never), kept.get("carries", never), strict=True)
    again = {True: Purpose.FOUND_AGAIN, False: Purpose.KEPT_ROWS}
    return [again[carries] if found_again else Purpose.LIVE for found_again, carries in flags]
