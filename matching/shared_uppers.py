"""The matchers of layers over the same merged rows: each row is stored once and its conditions are computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from matching.batch import EventBatch, Matcher, Matches
from matching.engines.buffered_runs import group as group_of
from matching.members import Group, Member
from matching.purpose import Purpose
from matching.rows import Rows
from query.plan.plan import Plan

#: Returns the matcher of a plan, over one of these rows if it may share them; otherwise its own are added to them.
Make = Callable[[Plan, Purpose, list[Rows]], Matcher]


class SharedUppers:
    """See matching.hierarchy.uppers.Uppers. Each matcher has a member of a group."""

    __slots__ = ("_groups", "_make", "_members", "_restored", "_step", "waits")

    def __init__(self, make: Make) -> None:
        self._make = make
        self._groups: list[Group] = []
        self._members: dict[int, Member] = {}
        self._step = 0
        self._restored = False  # and the rows do not know all matchers yet
        self.waits = False

    def add(self, of: int, plan: Plan, purpose: Purpose, waits: bool) -> Matcher | None:
        self._complete()
        if of in self._members:
            self._remove(self._members.pop(of))
        shared = [group.rows for group in self._groups if group.rows is not None]
        member = Member(self._make(plan, purpose, shared))
        if member.kernel is None:
            return None
        rows = member.kernel.rows
        group = next((g for g in self._groups if g.rows is rows), None)
        if group is None:
            group = Group(rows, 0)
            self._groups.append(group)
        group.members.append(member)
        self._members[of] = member
        self.waits |= waits
        return member.kernel

    def succeed(
        self, old: int, new: int, plan: Plan, read: Callable[[int, int], EventBatch], purpose: Purpose
    ) -> Matcher | None:
        self._complete()
        was, fresh = self._members[old], self._members[new]
        assert was.kernel is not None
        kernel = was.kernel.successor(plan, read, purpose)
        if kernel is None:
            return None
        self._remove(fresh)
        (group,) = [g for g in self._groups if was in g.members]
        member = Member(kernel)
        group.members[group.members.index(was)] = member
        del self._members[old]
        self._members[new] = member
        return kernel

    def keep_only(self, layers: set[int]) -> None:
        self._complete()
        for of in self._members.keys() - layers:
            self._remove(self._members.pop(of))

    def _remove(self, member: Member) -> None:
        for group in self._groups:
            if member in group.members:
                group.members.remove(member)
                assert group.rows is not None
                assert member.kernel is not None
                group.rows.remove(member.kernel)
        self._groups = [group for group in self._groups if group.members]

    def step(
        self, of: int, step: int, batch: EventBatch | None, watermark_us: int | None, ended: bool
    ) -> list[Matches]:
        if step != self._step:
            self._step = step
            self._complete()
            for group in self._groups:
                for member in group.members:
                    member.found.clear()  # of a layer that has failed, and asks no more
                if batch is not None:
                    group.push(batch)
                if ended or watermark_us is not None:
                    group.advance(None if ended else watermark_us)
        return self._members[of].take_found()

    def failure(self, of: int) -> Exception | None:
        return self._members[of].failure

    def none(self, of: int) -> Matches:
        kernel = self._members[of].kernel
        assert kernel is not None
        return kernel.emit()

    def snapshot(self, layers: set[int] | None) -> dict[str, np.ndarray]:
        self._complete()
        arrays: dict[str, np.ndarray] = {}
        for i, rows in enumerate(self._rows(layers)):
            arrays |= {f"{i}.{name}": array for name, array in rows.snapshot().items()}
        return arrays

    def fits(self, state: Mapping[str, np.ndarray]) -> bool:
        return {name.split(".")[0] for name in state} == {str(i) for i in range(len(self._groups))}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        for i, rows in enumerate(self._rows(None)):
            rows.restore(group_of(str(i), dict(state)))
        self._restored = True

    def snapshot_of(self, of: int) -> bytes:
        kernel = self._members[of].kernel
        assert kernel is not None
        return kernel.snapshot_own()

    def restore_of(self, of: int, state: bytes) -> None:
        kernel = self._members[of].kernel
        assert kernel is not None
        kernel.restore_own(state)

    def _rows(self, layers: set[int] | None) -> list[Rows]:
        """Returns the rows of some layers in an order that depends on what they are only."""
        wanted = [member for of, member in self._members.items() if layers is None or of in layers]
        found = [g.rows for g in self._groups if g.rows is not None and any(m in wanted for m in g.members)]
        return sorted(found, key=lambda rows: rows.spilled is None)

    def _complete(self) -> None:
        if self._restored:
            self._restored = False
            for rows in self._rows(None):
                rows.restored()
