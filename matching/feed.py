"""All live queries of one stream: one order, one pass over each batch, rows shared by those with the same PARTITION BY.

Each query gets what it would get alone. It sees the events pushed after it was added; neither the others, nor their
coming and going, nor their errors enter into its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from matching.batch import EventBatch, Matcher, Matches
from matching.drive import ROWS_MAX
from matching.ordering import Ordering
from matching.state import pack, unpack
from query.errors import DataError
from query.language.ast import AfterMatchKind
from query.plan.expression import MatchNumber, walk
from query.plan.plan import Plan
from query.schema import Schema

if TYPE_CHECKING:  # loads the kernels, which the first query does
    from matching.matcher import Builder, KernelMatcher
    from matching.rows import Rows


#: Version of Feed.snapshot; restore refuses others.
STATE_VERSION = 1


class Member:
    """One query of a feed. found: its non-empty Matches since they were last taken away, in order of emission; failure:
    why it takes no more rows. kernel: its matcher, if that shares rows."""

    __slots__ = ("failure", "found", "kernel", "matcher")

    def __init__(self, matcher: Matcher, kernel: KernelMatcher | None) -> None:
        self.matcher = matcher
        self.kernel = kernel
        self.found: list[Matches] = []
        self.failure: Exception | None = None

    def take_found(self) -> list[Matches]:
        found, self.found = self.found, []
        return found

    def guarded(self, act: Callable[..., Matches | None], *arguments: object) -> None:
        """Acts, unless the query has failed; keeps what is found, or the error."""
        if self.failure is not None:
            return
        try:
            matches = act(*arguments)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's own)
            self.failure = error
            return
        if matches is not None and (len(matches) or matches.rows.num_rows):
            self.found.append(matches)


class _Group:
    """Members behind the same rows. since_seq: those below it are not for them (0: none such can come any more).
    rows: None for one member whose matcher keeps its own."""

    __slots__ = ("members", "rows", "since_seq")

    def __init__(self, rows: Rows | None, since_seq: int) -> None:
        self.rows = rows
        self.since_seq = since_seq
        self.members: list[Member] = []

    @property
    def kernels(self) -> list[tuple[Member, KernelMatcher]]:
        """The members that share the rows and have not failed."""
        return [(m, m.kernel) for m in self.members if m.kernel is not None and m.failure is None]

    def push(self, batch: EventBatch) -> None:
        """Takes the next events of the total order."""
        if self.rows is None:
            for member in self.members:
                member.guarded(member.matcher.push, batch)
            return
        try:
            self.rows.append(batch)
        except Exception as error:  # noqa: BLE001  (the rows are shared, and so is what goes wrong with them)
            for member in self.members:
                member.failure = member.failure or error
            return
        kernels = self.kernels
        for member, kernel in kernels:
            member.guarded(kernel.take, batch.sources)
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
                member.guarded(member.matcher.advance, watermark_us)
            return
        held = self.rows.held()
        kernels = self.kernels
        for member, kernel in kernels:
            member.guarded(kernel.expire, watermark_us, held)
        if watermark_us is None:
            self.rows.let_go(held)
        for member, kernel in kernels:
            if not kernel.settled:
                member.guarded(kernel.emit, watermark_us is None)


class Feed:
    """The matchers of one stream behind one Ordering. Takes on-time events in arrival order. Not thread safe."""

    __slots__ = ("_advanced_us", "_builder", "_groups", "ordering")

    def __init__(self, schema: Schema, builder: Builder | None = None) -> None:
        """builder: who makes kernels of their own for queries that run long (see matching.matcher.make_matcher)."""
        self.ordering = Ordering(schema)
        self._builder = builder
        self._groups: list[_Group] = []
        self._advanced_us: int | None = None

    def __len__(self) -> int:
        """How many queries there are."""
        return sum(len(group.members) for group in self._groups)

    def add(self, plan: Plan, since_seq: int) -> Member:
        """A query that sees the events pushed from now on. since_seq: the ingest sequence of the next event."""
        from matching.matcher import KernelMatcher, make_matcher

        hidden_seq = since_seq if len(self.ordering) else 0  # what is held back is not for it
        shared = [g.rows for g in self._groups if g.rows is not None and g.since_seq == hidden_seq]
        matcher = make_matcher(plan, lenient=True, shared=shared, builder=self._builder)
        kernel = matcher if isinstance(matcher, KernelMatcher) else None
        member = Member(matcher, kernel)
        rows = None if kernel is None else kernel.rows
        group = next((g for g in self._groups if g.rows is rows and rows is not None), None)
        if group is None:
            group = _Group(rows, hidden_seq)
            self._groups.append(group)
        group.members.append(member)
        return member

    def succeed(self, old: Member, plan: Plan, read: Callable[[int, int], EventBatch]) -> Member | None:
        """The query of another plan in the place of `old`, with all that the rows have become: where the two differ
        only in measures and in how these are shown; else None, and nothing has changed. read: the events of the stream
        with a time from the first to the second."""
        for group in self._groups:
            if old in group.members and old.kernel is not None:
                kernel = old.kernel.successor(plan, read)
                if kernel is not None:
                    member = Member(kernel, kernel)
                    group.members[group.members.index(old)] = member
                    return member
        return None

    def replay(self, plan: Plan, since_seq: int, events: EventBatch) -> Member:
        """A query that is as if it had been added before the event `since_seq`. events: those from there on, in the
        total order; what has not been handed on yet may be among them. Raises what the query fails of."""
        from matching.matcher import KernelMatcher, make_matcher

        matcher = make_matcher(plan, lenient=True, builder=self._builder)
        events = self.ordering.known(events)
        held = np.isin(events.seq, self.ordering.held_seqs())
        if held.any():
            events = events.take(np.flatnonzero(~held))
        for start in range(0, len(events), ROWS_MAX):
            matcher.push(events.slice(start, min(start + ROWS_MAX, len(events))))
        if self._advanced_us is not None:
            matcher.advance(self._advanced_us)
        kernel = matcher if isinstance(matcher, KernelMatcher) else None
        member = Member(matcher, kernel)
        hidden = self.ordering.held_count(since_seq) < len(self.ordering)
        group = _Group(None if kernel is None else kernel.rows, since_seq if hidden else 0)
        group.members.append(member)
        self._groups.append(group)
        return member

    def snapshot(self, wanted: Collection[Member]) -> tuple[bytes, list[Member]]:
        """All that it and some of its members have become, and these in the order that `restore` takes. What they have
        found and nobody has taken is not in it."""
        groups: list[dict[str, object]] = []
        parts: dict[str, np.ndarray] = {"ordering": _as_array(self.ordering.snapshot())}
        members: list[Member] = []
        for group in self._groups:
            chosen = [member for member in group.members if any(member is one for one in wanted)]
            if not chosen:
                continue
            i = len(groups)
            kernels = group.rows is not None
            groups.append({"since_seq": group.since_seq, "members": len(chosen), "kernels": kernels})
            if group.rows is not None:
                parts |= {f"{i}.{name}": array for name, array in group.rows.snapshot().items()}
            for j, member in enumerate(chosen):
                own = member.matcher.snapshot() if member.kernel is None else member.kernel.snapshot_own()
                parts[f"{i}/{j}"] = _as_array(own)
            members += chosen
        head = {"version": STATE_VERSION, "groups": groups, "advanced_us": self._advanced_us}
        return pack(head, parts), members

    def restore(self, state: bytes, plans: Sequence[Plan]) -> list[Member]:
        """Takes over a snapshot of a feed of the same stream whose members had these plans; gives its members in their
        order. It must be new. Raises DataError for any other state; it is then of no use."""
        from matching.matcher import KernelMatcher, make_matcher

        head, parts = unpack(state)
        if head.get("version") != STATE_VERSION:
            message = f"the saved state has version {head.get('version')}; this program reads {STATE_VERSION}"
            raise DataError(message, "start the queries anew")
        self.ordering.restore(parts["ordering"].tobytes())
        self._advanced_us = head["advanced_us"]
        left = list(plans)
        members: list[Member] = []
        for i, kept in enumerate(head["groups"]):
            shared: list[Rows] | None = [] if kept["kernels"] else None
            group = _Group(None, kept["since_seq"])
            for _ in range(kept["members"]):
                matcher = make_matcher(left.pop(0), lenient=True, shared=shared, builder=self._builder)
                kernel = matcher if isinstance(matcher, KernelMatcher) else None
                if (kernel is None) == kept["kernels"] or (shared is not None and len(shared) != 1):
                    raise DataError("the saved state is of other queries", "start them anew")
                group.members.append(Member(matcher, kernel))
            if shared:
                group.rows = shared[0]
                group.rows.restore({n.removeprefix(f"{i}."): a for n, a in parts.items() if n.startswith(f"{i}.")})
            for j, member in enumerate(group.members):
                own = parts[f"{i}/{j}"].tobytes()
                if member.kernel is None:
                    member.matcher.restore(own)
                else:
                    member.kernel.restore_own(own)
            if group.rows is not None:
                group.rows.restored()
            self._groups.append(group)
            members += group.members
        return members

    @property
    def advanced_us(self) -> int | None:
        """The watermark that the queries have been told, or None."""
        return self._advanced_us

    def remove(self, member: Member) -> None:
        """Forgets a query and what only it needed."""
        for group in self._groups:
            if member in group.members:
                group.members.remove(member)
                if group.rows is not None and member.kernel is not None:
                    group.rows.remove(member.kernel)
        self._groups = [group for group in self._groups if group.members]

    def push(self, batch: EventBatch, watermark_us: int | None) -> None:
        """Takes n on-time events and the stream's watermark after them, or None if it has none yet."""
        self._give(self.ordering.push(batch, watermark_us))
        if watermark_us is not None:
            self._advance(watermark_us)

    def advance(self, watermark_us: int | None) -> None:
        """No event with time < watermark_us can still come; None: the input has ended."""
        self._give(self.ordering.advance(watermark_us))
        self._advance(watermark_us)

    def _give(self, batch: EventBatch) -> None:
        for group in self._groups:
            mine = batch
            if group.since_seq and len(batch):
                seen = batch.seq >= group.since_seq
                mine = batch if seen.all() else batch.take(np.flatnonzero(seen))
                if len(self.ordering) == self.ordering.held_count(group.since_seq):
                    group.since_seq = 0
            for start in range(0, len(mine), ROWS_MAX):
                whole = len(mine) <= ROWS_MAX
                group.push(mine if whole else mine.slice(start, min(start + ROWS_MAX, len(mine))))

    def _advance(self, watermark_us: int | None) -> None:
        if watermark_us is not None:
            # At an unchanged watermark nothing more is decided: events that have come since are not before it.
            if self._advanced_us is not None and watermark_us <= self._advanced_us:
                return
            self._advanced_us = watermark_us
        for group in self._groups:
            group.advance(watermark_us)


def _as_array(state: bytes) -> np.ndarray:
    return np.frombuffer(state, np.uint8)


def needed_from(plan: Plan, watermark_us: int | None) -> int | None:
    """The time of the first event that can still matter to what comes out once the watermark is passed; None: all may.
    An event is forgotten if matches do not hang on each other and read nothing before their first row."""
    from query.automaton.program import NoKernel, assemble

    free = plan.after.kind in (AfterMatchKind.NO_SKIP, AfterMatchKind.TO_NEXT_ROW)
    numbered = (isinstance(e, MatchNumber) for m in plan.measures for e in walk(m.expression))
    if watermark_us is None or plan.within is None or plan.within.interval_us is None or not free or any(numbered):
        return None
    try:
        program = assemble(plan)
    except NoKernel:
        return None
    if program.before or program.after or any(program.first_row) or program.absent or program.unmatched:
        return None
    return watermark_us - plan.within.interval_us
