"""The matchers of layers over the same merged rows: each row is stored once and its conditions are computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from matching.batch import EventBatch, Matcher
from matching.engines.buffered_runs import group as group_of
from matching.members import Group, Member
from matching.purpose import Purpose
from matching.rows import Rows
from query.plan.plan import Plan

#: Returns the matcher of a plan, over one of these rows if it may share them; otherwise its own are added to them.
Over = Callable[[Plan, Purpose, list[Rows]], Matcher]


class Uppers:
    """The matchers of some layers, which take the same steps; each has a member of a group, by the layer's id."""

    __slots__ = ("_groups", "_members", "_over", "_restored", "_step")

    def __init__(self, over: Over) -> None:
        self._over = over
        self._groups: list[Group] = []
        self._members: dict[int, Member] = {}
        self._step = 0
        self._restored = False  # and the rows do not know all matchers yet

    def add(self, of: int, plan: Plan, purpose: Purpose) -> Member | None:
        """Returns the member of a layer, which sees the rows from now on; None if its matcher cannot share rows."""
        self._complete()
        shared = [group.rows for group in self._groups if group.rows is not None]
        member = Member(self._over(plan, purpose, shared))
        if member.kernel is None:
            return None
        rows = member.kernel.rows
        group = next((g for g in self._groups if g.rows is rows), None)
        if group is None:
            group = Group(rows, 0)
            self._groups.append(group)
        group.members.append(member)
        self._members[of] = member
        return member

    def keep_only(self, layers: set[int]) -> None:
        """Removes the matchers of all other layers."""
        self._complete()
        for of in self._members.keys() - layers:
            member = self._members.pop(of)
            for group in self._groups:
                if member in group.members:
                    group.members.remove(member)
                    assert group.rows is not None
                    assert member.kernel is not None
                    group.rows.remove(member.kernel)
        self._groups = [group for group in self._groups if group.members]

    def step(self, step: int, batch: EventBatch | None, watermark_us: int | None, ended: bool) -> None:
        """Takes a step unless it has been taken: the next merged rows (None: there are none), then a watermark (None:
        it has not moved) or the end."""
        if step == self._step:
            return
        self._step = step
        self._complete()
        for group in self._groups:
            for member in group.members:
                member.found.clear()  # of a layer that has failed, and asks no more
            if batch is not None:
                group.push(batch)
            if ended or watermark_us is not None:
                group.advance(None if ended else watermark_us)

    def snapshot(self, layers: set[int] | None) -> dict[str, np.ndarray]:
        """Returns the rows of some layers (None: of all), without the state of matchers, which is saved after it."""
        self._complete()
        arrays: dict[str, np.ndarray] = {}
        for i, rows in enumerate(self._rows(layers)):
            arrays |= {f"{i}.{name}": array for name, array in rows.snapshot().items()}
        return arrays

    def fits(self, state: Mapping[str, np.ndarray]) -> bool:
        """True if it can restore a snapshot: as many matchers share rows in it, as far as that can be seen."""
        return {name.split(".")[0] for name in state} == {str(i) for i in range(len(self._groups))}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot that fits; the state of matchers is restored after it."""
        for i, rows in enumerate(self._rows(None)):
            rows.restore(group_of(str(i), dict(state)))
        self._restored = True

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
