"""The template of a workload: the automata of its queries laid on one another ([SHARING] 1.2).

A node is a place of an event type in the patterns: the partial trends whose last event is of this type and at this
place. A query has a node, and an edge to it from the node of the event before, where its pattern has them; its trends
are the partial trends of its last nodes. Each labelled sequence of events has one path in a query, so that the counts
of nodes are those of trends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from query.automaton.trends import trend_automaton
from query.plan.expression import Call, Column, Constant, Expression, conjuncts, show
from query.plan.plan import Plan
from query.plan.trends import Over

#: The source of the edges to the first events of trends.
START = -1

#: Ways to group the queries of new sets by what parts further on tell apart, for each of two kinds of groups.
FURTHER = 3

#: A set of queries and nodes, as bits.
Bits = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TemplateNode:
    """An event type, and which of the places of this type in a pattern it is. type: the constant alone if all types of
    the template are values of one column."""

    type: str
    place: int

    def __str__(self) -> str:
        return self.type if self.place == 0 else f"{self.type} ({self.place + 1})"


@dataclass(frozen=True, slots=True)
class QueryPath:
    """A query in a template. labels: by its nodes, the index of the condition of their events; variables: by its nodes,
    the pattern variable; edges: (node or START, node); last: the nodes at which its trends end; sums: what is added up
    beside the count, alike in two queries if they can have it in one record."""

    name: str
    labels: Mapping[int, int]
    edges: frozenset[tuple[int, int]]
    last: frozenset[int]
    variables: Mapping[int, str] = field(default_factory=dict)
    sums: frozenset[object] = frozenset()

    def before(self, node: int) -> frozenset[int]:
        """Returns the nodes, or START, from which an event comes to a node."""
        return frozenset(a for a, b in self.edges if b == node)


@dataclass(frozen=True, slots=True)
class Alike:
    """Queries that are alike at a node. before: the nodes before, as bits; starts: True if trends start here; label:
    the index of their condition."""

    queries: int
    before: int
    starts: bool
    label: int


@dataclass(frozen=True, slots=True)
class TemplatePart:
    """A strongly connected part of a template. Groups of its queries with the nodes that they have: of the same nodes
    (shapes), also of the same conditions (labelled), also of the same edges to it (alike) or away from it (onward),
    also of the same rest of the pattern (rest)."""

    nodes: int
    queries: int
    shapes: tuple[Bits, ...]
    labelled: tuple[Bits, ...]
    alike: tuple[Bits, ...]
    onward: tuple[Bits, ...]
    rest: tuple[Bits, ...]


@dataclass(frozen=True)
class Template:
    """nodes: of all queries; conditions: of single events, each once; exclusive: True if no event is of two types. It
    has no slots, so that it can keep what is computed from it: plans are compared again and again."""

    nodes: tuple[TemplateNode, ...]
    conditions: tuple[Expression, ...]
    queries: tuple[QueryPath, ...]
    exclusive: bool

    @cached_property
    def transitions(self) -> dict[tuple[int, int], frozenset[int]]:
        """Returns the queries of each edge."""
        found: dict[tuple[int, int], set[int]] = {}
        for q, query in enumerate(self.queries):
            for edge in query.edges:
                found.setdefault(edge, set()).add(q)
        return {edge: frozenset(found[edge]) for edge in sorted(found)}

    @cached_property
    def alike(self) -> tuple[tuple[Alike, ...], ...]:
        """Returns, for each node, the queries that have it, those together that are alike there."""
        found: list[dict[tuple[int, bool, int], int]] = [{} for _ in self.nodes]
        for q, path in enumerate(self.queries):
            before = dict.fromkeys(path.labels, 0)
            starts = dict.fromkeys(path.labels, False)
            for source, node in path.edges:
                if source == START:
                    starts[node] = True
                else:
                    before[node] |= 1 << source
            for n, label in path.labels.items():
                key = before[n], starts[n], label
                found[n][key] = found[n].get(key, 0) | 1 << q
        return tuple(tuple(Alike(queries, *key) for key, queries in at.items()) for at in found)

    @cached_property
    def last(self) -> tuple[int, ...]:
        """Returns, for each node, the queries whose trends end there."""
        return tuple(mask(q for q, p in enumerate(self.queries) if n in p.last) for n in range(len(self.nodes)))

    @cached_property
    def following(self) -> tuple[int, ...]:
        """Returns, for each node, the nodes to which some query has an edge."""
        found = [0] * len(self.nodes)
        for source, node in self.transitions:
            if source != START:
                found[source] |= 1 << node
        return tuple(found)

    @cached_property
    def starts(self) -> tuple[frozenset[int], ...]:
        """Returns, for each query, the conditions of the events with which its trends start."""
        return tuple(frozenset(p.labels[n] for source, n in p.edges if source == START) for p in self.queries)

    @cached_property
    def further(self) -> tuple[list[tuple[Bits, ...]], ...]:
        """Returns, for each part, groups of its queries by what parts further on tell apart."""
        return tuple(_further(self.parts, k) for k in range(len(self.parts)))

    @cached_property
    def pairs(self) -> list[tuple[int, int]]:
        """Returns each query with each of its nodes."""
        return [(q, n) for q, path in enumerate(self.queries) for n in path.labels]

    @cached_property
    def sources(self) -> list[list[int]]:
        """Returns, for each of `pairs`, those from which an event comes to it; their number for the start."""
        number = {pair: i for i, pair in enumerate(self.pairs)}
        queries = self.queries
        return [[len(number) if a == START else number[q, a] for a in queries[q].before(n)] for q, n in self.pairs]

    @cached_property
    def parts(self) -> tuple[TemplatePart, ...]:
        """Returns the strongly connected parts in topological order, those of queries that share no nodes with the
        others together."""
        size = len(self.nodes)
        reach = [1 << n for n in range(size)]
        joined = [1 << n for n in range(size)]
        for path in self.queries:
            every = mask(path.labels)
            for n in path.labels:
                joined[n] |= every
            for source, node in path.edges:
                if source != START:
                    reach[source] |= 1 << node
        for closure in (reach, joined):
            for k in range(size):
                for n in range(size):
                    if closure[n] >> k & 1:
                        closure[n] |= closure[k]
        before = [mask(m for m in range(size) if reach[m] >> n & 1) for n in range(size)]
        loops = {reach[n] & before[n] for n in range(size)}
        order = sorted(loops, key=lambda loop: _place(loop, joined, before))
        return _parts(self, order)

    def __str__(self) -> str:
        lines: list[str] = []
        for (source, node), queries in self.transitions.items():
            start = "start" if source == START else str(self.nodes[source])
            names = ", ".join(self.queries[q].name for q in sorted(queries))
            lines.append(f"{'' if lines else 'template':<12}{start} -> {self.nodes[node]}: {names}")
        for i, query in enumerate(self.queries):
            last = ", ".join(str(self.nodes[n]) for n in sorted(query.last))
            lines.append(f"{'' if i else 'trends':<12}{query.name}: at {last}")
        return "\n".join(lines)


def kinds_of(template: Template) -> list[int]:
    """Returns the kind of the events of each node."""
    if not template.exclusive:
        return [0] * len(template.nodes)
    types = list(dict.fromkeys(node.type for node in template.nodes))
    return [types.index(node.type) for node in template.nodes]


def order_of(template: Template, kind: int) -> list[int] | None:
    """Returns the nodes of a kind so that each is before those that its events come from, None if they are a cycle: an
    event then reads what was there before it."""
    kinds = kinds_of(template)
    left = [n for n, k in enumerate(kinds) if k == kind]
    reads = {n: {a for path in template.queries for a, b in path.edges if b == n and a != n} for n in left}
    out: list[int] = []
    while left:
        ready = [n for n in left if not any(n in reads[m] for m in left)]
        if not ready:
            return None
        out += ready
        left = [n for n in left if n not in ready]
    return out


def template(plans: Mapping[str, Plan]) -> Template:
    """Returns the template of queries by name, plans of trends without negation and without conditions between events.
    Raises QueryError if a pattern is too large."""
    nodes: dict[TemplateNode, int] = {}
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
                    node = nodes.setdefault(TemplateNode(shown, places.get(shown, 0)), len(nodes))
                    places[shown] = places.get(shown, 0) + 1
                    reached[key] = node
                    labels[node] = every.setdefault(condition, len(every))
                    variables[node] = label
                    if end >= 0:
                        last.add(node)
                    if to >= 0:
                        ahead.append((node, to))
                edges.add((source, reached[key]))
        sums = _sums(plan, variables)
        queries.append(QueryPath(name, labels, frozenset(edges), frozenset(last), variables, sums))
    kinds = [kind for kind in types.values() if kind is not None]
    # equal constants of two types, 1 and 1.0, name the same events
    plain = {type(constant) for _, constant in kinds} in ({str}, {int})
    exclusive = len(kinds) == len(types) and len({column for column, _ in kinds}) == 1 and plain
    names = {_shown(kind): str(kind[1]) for kind in kinds} if exclusive else {}
    named = tuple(TemplateNode(names.get(n.type, n.type), n.place) for n in nodes)
    return Template(named, tuple(every), tuple(queries), exclusive)


def _sums(plan: Plan, variables: Mapping[int, str]) -> frozenset[object]:
    """Returns what a plan adds up: of each aggregate its function, its argument and the nodes of its events."""
    assert plan.trends is not None
    found: set[object] = set()
    for a in plan.trends.aggregates:
        nodes = frozenset(n for n, name in variables.items() if not a.variables or name in a.variables)
        if a.over in (Over.SUM, Over.AVG):
            found |= {(Over.SUM, a.argument, nodes), (Over.VALUES, a.argument, nodes)}
        elif a.over is not Over.MATCHES:
            found.add((a.over, a.argument, nodes))
    return frozenset(found)


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


def _place(loop: int, joined: Sequence[int], before: Sequence[int]) -> tuple[int, int, int]:
    """Returns the place of a part in the order: nodes after it have more nodes before them."""
    n = next(bits(loop))
    return next(bits(joined[n])), before[n].bit_count(), n


def _parts(template: Template, order: Sequence[int]) -> tuple[TemplatePart, ...]:
    """Returns the parts of these nodes, with the groups of queries."""
    number: dict[object, int] = {}  # of a condition at a node, and of an edge with the condition of its node
    queries = []
    for path in template.queries:
        labels = mask(number.setdefault(item, len(number)) for item in path.labels.items())
        edges = mask(number.setdefault((e, path.labels[e[1]]), len(number)) for e in path.edges)
        queries.append((mask(path.labels), labels, edges, mask(path.last)))
    at_node, into, out_of = ([0] * len(template.nodes) for _ in range(3))
    starting, later = 0, 0
    for item, i in number.items():
        match item:
            case (int(n), _):
                at_node[n] |= 1 << i
            case ((int(source), int(n)), _):
                into[n] |= 1 << i
                later |= 1 << i
                if source == START:
                    starting |= 1 << i
                else:
                    out_of[source] |= 1 << i
    found = []
    for nodes in order:
        at, to, away = 0, 0, 0
        for n in bits(nodes):
            at, to, away = at | at_node[n], to | into[n], away | out_of[n]
        outside = ~(starting | away)
        later &= ~to
        groups: list[dict[object, Bits]] = [{} for _ in range(5)]
        every = 0
        for q, (has, labels, edges, last) in enumerate(queries):
            own = has & nodes
            if not own:
                continue
            every |= 1 << q
            here, starts = labels & at, not edges & to & outside
            keys = (own, here, edges & to, (here, edges & away), (here, edges & (away | later), last, starts))
            for group, key in zip(groups, keys):
                group[key] = group.get(key, (0, 0))[0] | 1 << q, own
        found.append(TemplatePart(nodes, every, *(tuple(group.values()) for group in groups)))
    return tuple(found)


def _further(parts: Sequence[TemplatePart], k: int) -> list[tuple[Bits, ...]]:
    """Returns groups of the queries of a part that later parts do not tell apart: by their conditions, and also by
    where they come from; up to each of the next parts that tell some apart."""
    found: dict[tuple[Bits, ...], None] = {}
    for kind in ("labelled", "alike"):
        groups: list[Bits] = list(getattr(parts[k], kind))
        left = FURTHER
        for later in parts[k + 1 :]:
            by: tuple[Bits, ...] = getattr(later, kind)
            refined: list[Bits] = []
            for queries, own in groups:
                all_there = not queries & ~later.queries
                refined += [(queries & of, own) for of, _ in by if queries & of] if all_there else [(queries, own)]
            if len(refined) > len(groups):
                groups, left = refined, left - 1
                found[tuple(groups)] = None
            if not left:
                break
    return list(found)


def mask(of: Iterable[int]) -> int:
    return sum(1 << i for i in of)


def bits(of: int) -> Iterator[int]:
    """Yields the positions of the bits that are set, upwards."""
    while of:
        low = of & -of
        yield low.bit_length() - 1
        of ^= low
