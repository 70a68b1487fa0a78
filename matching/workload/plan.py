"""Sharing plans: which queries of a workload count which nodes together, and from which snapshots.

A set counts partial trends of its nodes for all its queries at once, as coefficients of snapshots. A snapshot is a
variable with a value for each query: the number of trends with which these enter the set. The partial trends of a query
at a node are then the sum of coefficient times value over the snapshots of the set. An event that all queries of the
set take takes along the coefficients of the nodes that are before it in all of them and in this set; a set in which all
queries start at a node has one snapshot for that, the start of the window, whose value is 1. What else comes to the
node, from other sets or for some of the queries only, is the value of a snapshot, its gate: the first event makes it,
and the events after it add 1 to its coefficient until an event changes what comes there. An event that only some
queries of the set take makes a snapshot of its own, with all that comes to the node for these.

A query that shares a node with nobody is a set of its own. It needs no snapshots, even where events come from other
sets: their values are added to its own as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from matching.workload.template import START, Template


@dataclass(frozen=True, slots=True)
class SharedSet:
    """queries and nodes: indices in the template, in order; each of the queries has each of the nodes."""

    queries: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """Each (query, node) of the template is in exactly one of the sets."""

    sets: tuple[SharedSet, ...]

    def set_of(self) -> dict[tuple[int, int], int]:
        """Returns the index of the set of each (query, node)."""
        return {(q, n): i for i, s in enumerate(self.sets) for q in s.queries for n in s.nodes}

    def show(self, template: Template) -> str:
        """Returns the lines of EXPLAIN."""
        lines: list[str] = []
        for s in self.sets:
            names = ", ".join(template.queries[q].name for q in s.queries)
            nodes = ", ".join(str(template.nodes[n]) for n in s.nodes)
            at = ", ".join(str(template.nodes[n]) for n in snapshot_nodes(template, s)) or "the start"
            lines.append(f"{'' if lines else 'plan':<12}{names}: {nodes}; snapshots at {at}")
        return "\n".join(lines)


def passes_on(template: Template, of: SharedSet, node: int) -> bool:
    """True if coefficients take along all that comes to a node: no event that all queries of the set take opens a gate
    there."""
    before = template.queries[of.queries[0]].before(node)
    inside = before <= {START, *of.nodes}
    return inside and all(template.queries[q].before(node) == before for q in of.queries)


def snapshot_nodes(template: Template, of: SharedSet) -> tuple[int, ...]:
    """Returns the nodes of a set that have gates: those where snapshots are made even if all its queries take the
    events, though not by each of these."""
    return tuple(n for n in of.nodes if not passes_on(template, of, n))


def unshared(template: Template) -> SharingPlan:
    """Returns the plan in which each query counts on its own."""
    return SharingPlan(tuple(SharedSet((q,), tuple(sorted(p.labels))) for q, p in enumerate(template.queries)))
