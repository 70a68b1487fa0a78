"""Sharing plans carried out one event at a time, as their definition says, and the operations that this takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from matching.workload.cost import ADDITIONS
from matching.workload.plan import SharedSet, SharingPlan
from matching.workload.template import START, Template


@dataclass
class Column:
    """coefficients: by node; values: by query."""

    coefficients: dict[int, int]
    values: dict[int, int]


@dataclass
class Counting:
    """What a set has counted. gates: by node, the column that has what comes there from elsewhere, until that
    changes; a query alone has none, and one column."""

    of: SharedSet
    columns: list[Column] = field(default_factory=list)
    gates: dict[int, Column] = field(default_factory=dict)


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
            if len(s.of.queries) == 1 or any(START in self._common(s, n) for n in s.of.nodes):
                s.columns.append(Column({}, dict.fromkeys(s.of.queries, 1)))
                self.operations += ADDITIONS.addition * len(s.of.nodes)

    def _common(self, s: Counting, node: int) -> frozenset[int]:
        """Returns the nodes of a set, and the start, from which events come to a node in all its queries."""
        before = [self.template.queries[q].before(node) for q in s.of.queries]
        return frozenset.intersection(*before) & {START, *s.of.nodes}

    def _value(self, q: int, node: int) -> int:
        """Returns the partial trends of a query at a node."""
        columns = self.sets[self.set_of[q, node]].columns
        self.operations += ADDITIONS.value + ADDITIONS.product * len(columns)
        return sum(c.coefficients.get(node, 0) * c.values.get(q, 0) for c in columns)

    def _entering(self, q: int, before: Iterable[int]) -> int:
        """Returns the partial trends with which a query comes to a node."""
        total = 0
        for p in before:
            self.operations += ADDITIONS.addition if p == START else 0
            total += 1 if p == START else self._value(q, p)
        return total

    def push(self, node: int, labels: Iterable[int]) -> None:
        """Takes an event of a node that fulfils these conditions."""
        fulfilled = set(labels)
        changes: list[tuple[Counting, list[int], Column | None]] = []
        for s in self.sets:
            takers = [q for q in s.of.queries if self.template.queries[q].labels.get(node) in fulfilled]
            if node not in s.of.nodes or not takers:
                continue
            self.operations += ADDITIONS.event
            before = {q: self.template.queries[q].before(node) for q in takers}
            if len(takers) < len(s.of.queries):
                values = {q: self._entering(q, before[q]) for q in takers}
                changes.append((s, [], Column({}, values)))
                continue
            common = self._common(s, node)
            added = []
            for c in s.columns:
                added.append(sum(c.coefficients.get(p, 0) for p in common))
                self.operations += ADDITIONS.addition * len(common - {START})
            if START in common:
                added[0] += 1
                self.operations += ADDITIONS.addition
            gate = s.gates.get(node)
            if len(s.of.queries) == 1:
                for p in before[s.of.queries[0]] - common:
                    added[0] += self._value(s.of.queries[0], p)
                    self.operations += ADDITIONS.addition
            elif gate is None and any(before[q] - common for q in takers):
                gate = Column({}, {q: self._entering(q, before[q] - common) for q in takers})
                s.gates[node] = gate
            changes.append((s, added, gate))
        for s, added, gate in changes:
            for c, more in zip(s.columns, added):
                c.coefficients[node] = c.coefficients.get(node, 0) + more
            if gate is not None:
                if not any(c is gate for c in s.columns):
                    s.columns.append(gate)
                    self.operations += ADDITIONS.addition * len(s.of.nodes)
                gate.coefficients[node] = gate.coefficients.get(node, 0) + 1
                self.operations += ADDITIONS.addition
        for s, _, _ in changes:
            for reader in self.sets:
                for n in list(reader.gates):
                    common = self._common(reader, n)
                    if any(
                        node in self.template.queries[q].before(n) - common and self.sets[self.set_of[q, node]] is s
                        for q in reader.of.queries
                    ):
                        del reader.gates[n]

    def close(self) -> list[int]:
        """Returns the number of trends of each query."""
        return [sum(self._value(q, n) for n in sorted(path.last)) for q, path in enumerate(self.template.queries)]
