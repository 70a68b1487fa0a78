"""The template of a workload: the automata of its queries laid on one another ([SHARING] 1.2).

A node is a place of an event type in the patterns: the partial trends whose last event is of this type and at this
place. A query has a node, and an edge to it from the node of the event before, where its pattern has them; its trends
are the partial trends of its last nodes. Each labelled sequence of events has one path in a query, so that the counts
of nodes are those of trends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from query.automaton.trends import trend_automaton
from query.plan.expression import Call, Column, Constant, Expression, conjuncts, show
from query.plan.plan import Plan

#: The source of the edges to the first events of trends.
START = -1


@dataclass(frozen=True, slots=True)
class Node:
    """An event type, and which of the places of this type in a pattern it is. type: the constant alone if all types of
    the template are values of one column."""

    type: str
    place: int

    def __str__(self) -> str:
        return self.type if self.place == 0 else f"{self.type} ({self.place + 1})"


@dataclass(frozen=True, slots=True)
class QueryPath:
    """A query in a template. labels: by its nodes, the index of the condition of their events; variables: by its nodes,
    the pattern variable; edges: (node or START, node); last: the nodes at which its trends end."""

    name: str
    labels: Mapping[int, int]
    edges: frozenset[tuple[int, int]]
    last: frozenset[int]
    variables: Mapping[int, str] = field(default_factory=dict)

    def before(self, node: int) -> frozenset[int]:
        """Returns the nodes, or START, from which an event comes to a node."""
        return frozenset(a for a, b in self.edges if b == node)


@dataclass(frozen=True, slots=True)
class Template:
    """nodes: of all queries; conditions: of single events, each once; exclusive: True if no event is of two types."""

    nodes: tuple[Node, ...]
    conditions: tuple[Expression, ...]
    queries: tuple[QueryPath, ...]
    exclusive: bool

    def transitions(self) -> dict[tuple[int, int], frozenset[int]]:
        """Returns the queries of each edge."""
        found: dict[tuple[int, int], set[int]] = {}
        for q, query in enumerate(self.queries):
            for edge in query.edges:
                found.setdefault(edge, set()).add(q)
        return {edge: frozenset(found[edge]) for edge in sorted(found)}

    def __str__(self) -> str:
        lines: list[str] = []
        for (source, node), queries in self.transitions().items():
            start = "start" if source == START else str(self.nodes[source])
            names = ", ".join(self.queries[q].name for q in sorted(queries))
            lines.append(f"{'' if lines else 'template':<12}{start} -> {self.nodes[node]}: {names}")
        for i, query in enumerate(self.queries):
            last = ", ".join(str(self.nodes[n]) for n in sorted(query.last))
            lines.append(f"{'' if i else 'trends':<12}{query.name}: at {last}")
        return "\n".join(lines)


def template(plans: Mapping[str, Plan]) -> Template:
    """Returns the template of queries by name, plans of trends without negation and without conditions between events.
    Raises QueryError if a pattern is too large."""
    nodes: dict[Node, int] = {}
    every: dict[Expression, int] = {}
    types: dict[Expression, tuple[Expression, object] | None] = {}
    queries = []
    for name, plan in plans.items():
        states = trend_automaton(plan.pattern).states
        reached: dict[tuple[str, int, int], int] = {}
        places: dict[str, int] = {}
        labels: dict[int, int] = {}
        variables: dict[int, str] = {}
        edges: set[tuple[int, int]] = set()
        last: set[int] = set()
        ahead: list[tuple[int, int]] = [(START, 0)]
        while ahead:
            source, state = ahead.pop(0)
            for label, (to, end) in states[state].takes.items():
                key = (label, to, end)
                if key not in reached:
                    condition = plan.condition(label)
                    kind = _type(condition)
                    types[condition] = kind
                    shown = show(condition) if kind is None else _shown(kind)
                    node = nodes.setdefault(Node(shown, places.get(shown, 0)), len(nodes))
                    places[shown] = places.get(shown, 0) + 1
                    reached[key] = node
                    labels[node] = every.setdefault(condition, len(every))
                    variables[node] = label
                    if end >= 0:
                        last.add(node)
                    if to >= 0:
                        ahead.append((node, to))
                edges.add((source, reached[key]))
        queries.append(QueryPath(name, labels, frozenset(edges), frozenset(last), variables))
    kinds = [kind for kind in types.values() if kind is not None]
    # equal constants of two types, 1 and 1.0, name the same events
    plain = {type(constant) for _, constant in kinds} in ({str}, {int})
    exclusive = len(kinds) == len(types) and len({column for column, _ in kinds}) == 1 and plain
    names = {_shown(kind): str(kind[1]) for kind in kinds} if exclusive else {}
    named = tuple(Node(names.get(n.type, n.type), n.place) for n in nodes)
    return Template(named, tuple(every), tuple(queries), exclusive)


def _shown(kind: tuple[Expression, object]) -> str:
    return f"{show(kind[0])} = {kind[1]!r}"


def _type(condition: Expression) -> tuple[Expression, object] | None:
    """Returns the column and the constant by which a condition names an event type."""
    for part in conjuncts(condition):
        if isinstance(part, Call) and part.function == "=":
            left, right = part.arguments
            if isinstance(left, Column) and isinstance(right, Constant):
                return left, right.value
            if isinstance(right, Column) and isinstance(left, Constant):
                return right, left.value
    return None
