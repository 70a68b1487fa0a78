"""The plans with which the modes of sharing begin."""

from __future__ import annotations

from matching.workload.cost import EventRates
from matching.workload.graph import chosen
from matching.workload.plan import SharedSet, SharingPlan, unshared
from matching.workload.sharing_mode import SharingMode
from matching.workload.template import Template


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
