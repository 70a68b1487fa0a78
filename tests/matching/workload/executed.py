"""Sharing plans carried out one event at a time, as their definition says, and the operations that this takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from matching.workload.cost import ADDITION, EVENT, MULTIPLICATION
from matching.workload.plan import SharedSet, SharingPlan, passes_on
from matching.workload.template import START, Template


@dataclass
class Column:
    """coefficients: by node; values: by query."""

    coefficients: dict[int, int]
    values: dict[int, int]


@dataclass
class Counting:
    """What a set has counted. at: the node of its last event if that made a snapshot, else None."""

    of: SharedSet
    columns: list[Column] = field(default_factory=list)
    at: int | None = None


@dataclass
class Window:
    """One partition and window. operations: their cost with the constants of the model."""

    template: Template
    plan: SharingPlan
    operations: float = 0.0

    def __post_init__(self) -> None:
        self.sets = [Counting(s) for s in self.plan.sets]
        self.set_of = self.plan.set_of()
        for s in self.sets:
            if any(START in self._before(s, n) and passes_on(self.template, self.plan, s.of, n) for n in s.of.nodes):
                s.columns.append(Column({}, dict.fromkeys(s.of.queries, 1)))
                self.operations += ADDITION * len(s.of.nodes)

    def _before(self, s: Counting, node: int) -> frozenset[int]:
        return self.template.queries[s.of.queries[0]].before(node)

    def _value(self, q: int, node: int) -> int:
        """Returns the partial trends of a query at a node."""
        columns = self.sets[self.set_of[q, node]].columns
        self.operations += ADDITION + MULTIPLICATION * len(columns)
        return sum(c.coefficients.get(node, 0) * c.values.get(q, 0) for c in columns)

    def push(self, node: int, labels: Iterable[int]) -> None:
        """Takes an event of a node that fulfils these conditions."""
        fulfilled = set(labels)
        changes: list[tuple[Counting, list[int], dict[int, int]]] = []
        for s in self.sets:
            takers = [q for q in s.of.queries if self.template.queries[q].labels.get(node) in fulfilled]
            if node not in s.of.nodes or not takers:
                continue
            self.operations += EVENT
            if len(takers) == len(s.of.queries) and passes_on(self.template, self.plan, s.of, node):
                before = self._before(s, node)
                added = []
                for c in s.columns:
                    added.append(sum(c.coefficients.get(p, 0) for p in before))
                    self.operations += ADDITION * len(before - {START})
                if START in before:
                    added[0] += 1
                    self.operations += ADDITION
                changes.append((s, added, {}))
            else:
                values = {}
                for q in takers:
                    values[q] = 0
                    for p in self.template.queries[q].before(node):
                        self.operations += ADDITION if p == START else 0
                        values[q] += 1 if p == START else self._value(q, p)
                changes.append((s, [], values))
        for s, added, values in changes:
            if values and s.at == node:
                for q, value in values.items():
                    s.columns[-1].values[q] = s.columns[-1].values.get(q, 0) + value
            elif values:
                s.columns.append(Column({node: 1}, values))
                self.operations += ADDITION * len(s.of.nodes)
            else:
                for c, more in zip(s.columns, added):
                    c.coefficients[node] = c.coefficients.get(node, 0) + more
            s.at = node if values else None

    def close(self) -> list[int]:
        """Returns the number of trends of each query."""
        return [sum(self._value(q, n) for n in sorted(path.last)) for q, path in enumerate(self.template.queries)]
