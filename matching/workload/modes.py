"""The ways to choose sharing plans for a workload, and the plans with which they begin."""

from __future__ import annotations

from enum import Enum

from matching.workload.cost import EventRates
from matching.workload.graph import chosen
from matching.workload.plan import SharedSet, SharingPlan, unshared
from matching.workload.program import Splitting
from matching.workload.template import Template


class SharingMode(Enum):
    """none: each query counts on its own. hamlet: queries share events of one type that repeats, burst by burst.
    static: the plan is chosen once, for the first rates. dynamic: the plan follows the rates."""

    NONE = "none"
    HAMLET = "hamlet"
    STATIC = "static"
    DYNAMIC = "dynamic"

    @property
    def splitting(self) -> Splitting:
        """Returns when sets of its plans split in a window."""
        match self:
            case SharingMode.HAMLET:
                return Splitting.BY_BURSTS
            case SharingMode.DYNAMIC:
                return Splitting.BY_SNAPSHOTS
            case _:
                return Splitting.NEVER

    @property
    def measures(self) -> bool:
        """True if its plans depend on rates."""
        return self in (SharingMode.STATIC, SharingMode.DYNAMIC)


def first_plan(mode: SharingMode, template: Template, rates: EventRates | None) -> SharingPlan:
    """Returns the plan with which a workload begins. rates: None before there are any: nothing is shared then."""
    if mode is SharingMode.HAMLET:
        return flat_kleene(template)
    if mode.measures and rates is not None:
        return chosen(template, rates)
    return unshared(template)


def flat_kleene(template: Template) -> SharingPlan:
    """Returns the plan in which all queries that repeat one event type share its node ([HAMLET]), and nothing else."""
    sets = []
    left = {q: set(path.labels) for q, path in enumerate(template.queries)}
    for node in range(len(template.nodes)):
        users = [q for q, path in enumerate(template.queries) if (node, node) in path.edges]
        if len(users) > 1:
            sets.append(SharedSet(tuple(users), (node,)))
            for q in users:
                left[q].remove(node)
    alone = [SharedSet((q,), tuple(sorted(nodes))) for q, nodes in left.items() if nodes]
    return SharingPlan((*sets, *alone))
