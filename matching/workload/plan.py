"""Sharing plans: which queries of a workload count which nodes together, and from which snapshots.

A set counts partial trends of its nodes for all its queries at once, as coefficients of snapshots. A snapshot is a
variable with a value for each query: the number of trends with which these enter the set. The partial trends of a query
at a node are then the sum of coefficient times value over the snapshots of the set. An event takes the coefficients of
the nodes before along if all queries of the set take it, from nodes of this set; a set whose queries all start in it
has one snapshot for that, the start of the window, whose value is 1. Any other event of the set makes a snapshot, for
which the values of its queries are computed. A query that shares a node with nobody is a set of its own.
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
            at = ", ".join(str(template.nodes[n]) for n in snapshot_nodes(template, self, s)) or "the start"
            lines.append(f"{'' if lines else 'plan':<12}{names}: {nodes}; snapshots at {at}")
        return "\n".join(lines)


def passes_on(template: Template, plan: SharingPlan, of: SharedSet, node: int) -> bool:
    """True if an event at a node that all queries of the set take makes no snapshot."""
    before = template.queries[of.queries[0]].before(node)
    inside = before <= {START, *of.nodes}
    return inside and all(template.queries[q].before(node) == before for q in of.queries)


def snapshot_nodes(template: Template, plan: SharingPlan, of: SharedSet) -> tuple[int, ...]:
    """Returns the nodes of a set whose events make a snapshot even if all its queries take them."""
    return tuple(n for n in of.nodes if not passes_on(template, plan, of, n))


def unshared(template: Template) -> SharingPlan:
    """Returns the plan in which each query counts on its own."""
    return SharingPlan(tuple(SharedSet((q,), tuple(sorted(p.labels))) for q, p in enumerate(template.queries)))
