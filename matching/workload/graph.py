"""The sharing plan graph: the ways to share a workload part by part, and the lightest path through them.

A part is a strongly connected part of the template: a node, or the nodes of a Kleene closure with those of closures
inside. A node of the graph is a state after a part: the sets that can still grow. It is made from a node before by the
rules of [SHARING] 3.2.1, an edge for each, weighed by what it adds to the cost of the plan:

    inherit  sets take the part along: all their queries have it, and come to it from their nodes; others open gates
    renew    a set ends and its queries go on, in a new set or several, with gates at the part
    merge    queries of several sets go on in a new one
    apart    each query goes on alone, or with those that are the same from here on; of a Kleene closure this is "none"

Decisions that the paper leaves open:

- Parts are gone through in topological order, those of queries that share nothing with the others together. A template
  that branches has a set for each branch. Queries whose trends start at a part form sets as renewed ones do.
- New sets are formed by queries with the same nodes in the part: by all of them, by those with the same conditions, or
  by those that go on to the same nodes (the paper shares transitions, so that these are apart there, too); within the
  sets from which they come, or across these. They are also formed by queries with the same conditions further on, and
  by those that come there from the same nodes as well, up to each of the next FURTHER parts that tell queries apart.
- A set with the column of the start can take along a part at which all its queries start, too (AppOrder OR WebOrder).
- Where some queries of a set leave it and others do not, nothing is inherited. Where nodes before belong to several
  sets, a set with all its queries may take the part along with gates: its own nodes are passed on, and what comes from
  elsewhere opens the gates. In the paper each event there makes a snapshot.
- While others inherit, a set is renewed by itself; of more than RENEWED sets, those that gain most; and all that gain,
  together. The paper asks for a type rarer than the snapshots so far; here, the new set must have fewer columns, which
  a frequent type may give, too: its gates are at most as many as the events before it.
- A part is one choice for each query, so that a closure is taken into a set as a whole. The paper also compares the
  types inside a closure as snapshot types. A plan has no such choice: the nodes at which a closure is entered from
  other sets have gates, and no others.
- Queries that are the same from a part on are not taken apart there: their snapshots are the same, and one set has as
  many columns as each of theirs.

Pruning: of the edges into a node, the lightest is kept. A node is dropped if another one of the same query sets, with
the same nodes for events to come, is lighter and will be for whatever follows. At most `width` nodes of a part are
kept, half of these the lightest so far, half those that seem lightest at the end if nothing is merged any more: the
paper has no such limit, but the choices of parts next to one another would multiply. So the plan is the best that the
rules give if no part has more nodes, and never costs more than that without sharing.

Long: the rules, what they cost and how the graph is shown all read its nodes and edges.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, sqrt

from matching.workload.cost import EventRates, SetCosts, first_of, masks, nodes_of
from matching.workload.plan import SharedSet, SharingPlan, snapshot_nodes, unshared
from matching.workload.template import Bits, Template, TemplatePart, bits, mask

#: Nodes of the graph that are kept after each part.
WIDTH = 8
#: Sets that are renewed one by one at a part: of more, those that gain most.
RENEWED = 4
#: Nodes that a node is compared with before it is kept.
COMPARED = 8
#: A plan that costs less than another costs at most this part of it: sums are rounded.
LIGHTER = 1 - 1e-12
#: A plan in use is changed only for one that costs at most this part of it: the records of all open windows are carried
#: over, and rates of a few windows differ by chance.
WORTH = 1 - 1 / 20
#: Nodes kept after each part where it is asked first whether anything is worth sharing.
NARROW = 2
#: A rate that has become less than so many times another is taken as the same; and one that differs by less than so
#: many standard deviations of what was counted.
MOVED, DEVIATIONS = 1.25, 4
#: A set is kept for queries only if it costs at most this part of what they cost alone.
WORTH_SHARING = 0.85
#: Nodes of a part, and queries of a set, that are shown.
SHOWN, NAMED = 6, 4


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """source: a node, its index; inherited: sets before and after; new: sets that begin."""

    source: int
    rule: str
    weight: float
    inherited: tuple[tuple[Bits, Bits], ...]
    new: tuple[Bits, ...]


@dataclass(slots=True)
class GraphNode:
    """part: the last one gone through, -1 at the start; sets: those that can still grow; weight: that of the lightest
    path to it, whose last edge is the first one; dropped: True if no edge leaves it."""

    part: int
    sets: tuple[Bits, ...]
    weight: float
    edges: list[GraphEdge]
    dropped: bool = False


@dataclass(frozen=True)
class Graph:
    """path: the nodes of the lightest path; plan: that of the path, or without sharing if this costs less."""

    template: Template
    rates: EventRates
    parts: tuple[TemplatePart, ...]
    nodes: tuple[GraphNode, ...]
    path: tuple[int, ...]
    plan: SharingPlan

    def __str__(self) -> str:
        return show(self)


def lightest(template: Template, rates: EventRates) -> SharingPlan:
    """Returns the plan of the lightest path."""
    return sharing_graph(template, rates).plan


def chosen(template: Template, rates: EventRates) -> SharingPlan:
    """Returns the plan of the lightest path, as far as its sets are worthwhile; that without sharing if a narrow search
    finds none that is worth a change from it."""
    return _chosen(SetCosts(template, rates))


def _chosen(costs: SetCosts) -> SharingPlan:
    narrow = worthwhile(costs, _plan(_Search(costs, True, NARROW).run(0, ())[2]))
    if not _shares(narrow) or _total(costs, narrow) > WORTH * sum(c.total for c in costs.alone()):
        return unshared(costs.template)
    wide = worthwhile(costs, _plan(_Search(costs, True, WIDTH).run(0, ())[2]))
    return min(narrow, wide, key=lambda plan: _total(costs, plan))


def _shares(plan: SharingPlan) -> bool:
    return any(len(s.queries) > 1 for s in plan.sets)


def sharing_graph(template: Template, rates: EventRates, prune: bool = True, width: int | None = WIDTH) -> Graph:
    """Returns the graph of a template. prune: False keeps all edges and nodes up to the width."""
    search = _Search(SetCosts(template, rates), prune, width)
    nodes, path, sets = search.run(0, ())
    plan = _plan(sets)
    if _total(search.costs, plan) > LIGHTER * sum(c.total for c in search.costs.alone()):
        plan = unshared(template)
    return Graph(template, rates, search.parts, tuple(nodes), path, plan)


def worthwhile(costs: SetCosts, plan: SharingPlan) -> SharingPlan:
    """Returns the plan without the sets that cost nearly as much as their queries would alone: costs are estimates."""
    kept: list[Bits] = []
    alone: dict[int, int] = {}
    for queries, nodes in map(masks, plan.sets):
        each = [1 << q for q in bits(queries)]
        if len(each) > 1:
            apart = sum(costs.whole(q, nodes).total for q in each)
            if costs.whole(queries, nodes).total <= WORTH_SHARING * apart:
                kept.append((queries, nodes))
                continue
        for q in each:
            alone[q] = alone.get(q, 0) | nodes
    return _plan([*kept, *alone.items()])


def update(
    template: Template, plan: SharingPlan, old: EventRates, new: EventRates, change: float = 0.0
) -> tuple[SharingPlan, str]:
    """Returns the plan for new rates, and why, in a line (Algorithm 1 of [SHARING]). The same plan if none is better.

    If snapshots have become more frequent than a node after them, or their followers rarer than them, the path is built
    anew from this part on. Otherwise it is built anew as a whole: what was not worth sharing may be so by now, which
    the paper does not ask. A plan is replaced by one that costs a twentieth less, and less by what a change costs.
    change: this cost, for each partition and window of the time for which the plan is chosen."""
    if new == old:
        return plan, "unchanged: the same rates"
    if not moved(old, new):
        return plan, "unchanged: rates are nearly the same"
    costs = SetCosts(template, new)
    found = _crossing(template, plan, SetCosts(template, old), costs)
    if found is None:
        better = _chosen(costs)
        nothing = "unchanged: no snapshots have become more frequent than the events after them"
        what, where = "rates have moved", ""
    else:
        before, after = found
        search = _Search(costs, True, WIDTH)
        first = next(k for k, part in enumerate(search.parts) if part.nodes >> after & 1)
        better = worthwhile(costs, _plan(search.run(first, tuple(masks(s) for s in plan.sets))[2]))
        what = f"snapshots at {template.nodes[before]} have become more frequent than {template.nodes[after]}"
        where = f" from {template.nodes[after]} on"
    kept, changed = _total(costs, plan), _total(costs, better)
    if changed > LIGHTER * kept:
        nothing = nothing if found is None else f"unchanged: {what}, but no plan costs less than {kept:.1f}"
        return plan, nothing
    if not pays(kept, changed, change):
        return plan, f"unchanged: {what}, but a cost of {changed:.1f} instead of {kept:.1f} is not worth a change"
    return better, f"changed{where}: {what}; cost {changed:.1f} instead of {kept:.1f}"


def pays(kept: float, changed: float, change: float) -> bool:
    """True if a plan of the cost `changed` is worth a change from one that costs `kept`. change: see `update`."""
    return changed <= WORTH * kept and changed + change < kept


def moved(old: EventRates, new: EventRates) -> bool:
    """True if some rate is another one, by more than chance, or numbers have another size."""
    if max(old.limbs, new.limbs) > MOVED * min(old.limbs, new.limbs):
        return True
    for was, now in zip(old.events, new.events, strict=True):
        apart = DEVIATIONS * sqrt(was / old.windows + now / new.windows)
        if max(was, now) > MOVED * min(was, now) and abs(now - was) > apart:
            return True
    return False


def _crossing(template: Template, plan: SharingPlan, was: SetCosts, now: SetCosts) -> tuple[int, int] | None:
    """Returns a node with snapshots and the first node in or after its set that has become rarer than these."""
    number = numbered(template.parts)
    found: list[tuple[int, int, int]] = []
    for s in plan.sets:
        if len(s.queries) == 1:
            continue
        queries, nodes = masks(s)
        often = now.of(queries, nodes).snapshots
        if not often:
            continue
        before = was.of(queries, nodes).snapshots
        first = snapshot_nodes(template, s) or s.nodes
        for n in bits(nodes | now.after(nodes)):
            have = sum(a.queries for a in now.alike[n]) & queries
            if have and n not in first:
                rare, rarely = now.taken(have, n)[0], was.taken(have, n)[0]
                if often > rare and often * rarely > before * rare:
                    found.append((number[n], first[0], n))
    return min(found)[1:] if found else None


def _plan(sets: Iterable[Bits]) -> SharingPlan:
    found = sorted((tuple(bits(queries)), tuple(bits(nodes))) for queries, nodes in sets)
    return SharingPlan(tuple(SharedSet(queries, nodes) for queries, nodes in found))


def _total(costs: SetCosts, plan: SharingPlan) -> float:
    return sum(costs.whole(*masks(s)).total for s in plan.sets)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A rule used at a part. left: the sets that can grow after it, of those before that have an edge to the part and
    of the new ones."""

    rule: str
    weight: float
    inherited: tuple[tuple[Bits, Bits], ...]
    new: tuple[Bits, ...]
    left: tuple[Bits, ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """Sets that take a part along, and what may be done with the rest of its queries. weight: without new sets; left:
    the sets that can grow after it; new: the new sets, by the rule that makes them."""

    inherited: tuple[tuple[Bits, Bits], ...]
    weight: float
    left: list[Bits]
    rest: int
    new: dict[tuple[Bits, ...], str]

    def add(self, rule: str, new: Iterable[Bits]) -> None:
        self.new.setdefault(tuple(sorted(new)), rule)


@dataclass(frozen=True, slots=True)
class _WayIn:
    """The way to a node of a query. before: the nodes before; starts: True if trends start here; read: values computed
    from a node before it, for one query."""

    node: int
    before: int
    starts: bool
    read: float


@dataclass(frozen=True, slots=True)
class _Known:
    """By part, the queries of a set with an edge to the part, and the values that these compute of it. reach: the
    nodes to which all its queries have an edge, from it or from the start if it has that."""

    inside: dict[int, int]
    values: dict[int, float]
    reach: int


@dataclass(slots=True)
class _Search:
    costs: SetCosts
    prune: bool
    width: int | None
    template: Template = field(init=False)
    parts: tuple[TemplatePart, ...] = field(init=False)
    ahead: list[int] = field(init=False)  # by part: nodes of it and of those after
    open: list[int] = field(init=False)  # by part: nodes with an edge to one of these
    fed: list[int] = field(init=False)  # by part: queries with an edge to it
    further: Sequence[list[tuple[Bits, ...]]] = field(init=False)  # by part: groups by parts further on
    starting: list[tuple[int, int]] = field(init=False)  # nodes at which trends start, and those of which queries
    number: dict[int, int] = field(init=False)  # by node: its part
    own: list[int] = field(init=False)  # by query: its nodes
    ways_in: list[list[_WayIn]] = field(init=False)  # by query: to each of its nodes
    choices: dict[tuple[int, tuple[Bits, ...]], list[_Choice]] = field(default_factory=dict)
    sets: dict[Bits, _Known] = field(default_factory=dict)
    paid: list[dict[Bits, float]] = field(init=False)  # by part
    still: dict[tuple[int, int], bool] = field(default_factory=dict)
    estimates: list[dict[Bits, float]] = field(init=False)  # by part

    def __post_init__(self) -> None:
        self.template = self.costs.template
        self.parts = self.template.parts
        self.ahead = [0] * (len(self.parts) + 1)
        for k in reversed(range(len(self.parts))):
            self.ahead[k] = self.ahead[k + 1] | self.parts[k].nodes
        self.open = [mask(n for n in nodes_of(self.template) if self.costs.succ[n] & a) for a in self.ahead]
        alike = self.costs.alike
        starting = [(n, sum(a.queries for a in here if a.starts)) for n, here in enumerate(alike)]
        self.starting = [(n, queries) for n, queries in starting if queries]
        self.number = numbered(self.parts)
        self.own = [mask(path.labels) for path in self.template.queries]
        self.ways_in = [[] for _ in self.own]
        for n, here in enumerate(alike):
            for a in here:
                read = self.costs.entered(n, self.costs.rates.events[a.label])
                for q in bits(a.queries):
                    self.ways_in[q].append(_WayIn(n, a.before, a.starts, read))
        self.paid = [{} for _ in range(len(self.parts) + 1)]
        self.estimates = [{} for _ in range(len(self.parts) + 1)]
        self.further = self.template.further
        self.fed = [0] * len(self.parts)
        for k, part in enumerate(self.parts):
            for n in bits(part.nodes):
                self.fed[k] |= sum(a.queries for a in alike[n] if a.before & ~part.nodes)

    def run(self, first: int, plan: tuple[Bits, ...]) -> tuple[list[GraphNode], tuple[int, ...], set[Bits]]:
        """Returns the nodes, the lightest path and its sets. first: the part to begin with, those before it shared as
        in the plan."""
        done = ~self.ahead[first]
        begun = {(queries, nodes & done) for queries, nodes in plan if nodes & done}
        nodes = [GraphNode(first - 1, tuple(sorted(s for s in begun if self.grows(first, s))), 0.0, [])]
        level = [0]
        for k in range(first, len(self.parts)):
            found: dict[tuple[Bits, ...], int] = {}
            for source in level:
                self.expand(k, source, nodes, found)
            level = self.keep(k + 1, nodes, sorted(found.values(), key=lambda i: nodes[i].weight))
        at, path = level[0], []
        while nodes[at].edges:
            path.append(at)
            at = nodes[at].edges[0].source
        path.append(at)
        path.reverse()
        sets = set(begun)
        for at in path[1:]:
            edge = nodes[at].edges[0]
            sets.difference_update(before for before, _ in edge.inherited)
            sets.update(after for _, after in edge.inherited)
            sets.update(edge.new)
        return nodes, tuple(path), sets

    def expand(self, k: int, source: int, nodes: list[GraphNode], found: dict[tuple[Bits, ...], int]) -> None:
        """Generates the nodes after a part from one before it."""
        here = nodes[source]
        touched: list[Bits] = []
        rest: list[Bits] = []
        for s in here.sets:
            known = self.known(s)
            (touched if k in known.inside or known.reach & self.parts[k].nodes else rest).append(s)
        for choice in self.choose(k, tuple(touched)):
            sets = tuple(sorted((*rest, *choice.left)))
            weight = here.weight + choice.weight
            edge = GraphEdge(source, choice.rule, choice.weight, choice.inherited, choice.new)
            at = found.get(sets)
            if at is None:
                found[sets] = len(nodes)
                nodes.append(GraphNode(k, sets, weight, [edge]))
            elif weight < nodes[at].weight:
                nodes[at].weight = weight
                nodes[at].edges = [edge] if self.prune else [edge, *nodes[at].edges]
            elif not self.prune:
                nodes[at].edges.append(edge)

    def keep(self, k: int, nodes: list[GraphNode], level: list[int]) -> list[int]:
        """Returns the nodes of a level, sorted by weight, that are not dropped."""
        if self.prune:
            to = self.open[k]
            same: dict[tuple[Bits, ...], list[int]] = {}
            cut: dict[Bits, Bits] = {}
            for i in level:
                # The same query sets, and the same of their nodes that events can still come after.
                node = nodes[i]
                for s in node.sets:
                    if s not in cut:
                        cut[s] = s[0], s[1] & to
                others = same.setdefault(tuple(map(cut.__getitem__, node.sets)), [])
                if any(self.beats(k, nodes[j], node) for j in others[:COMPARED]):
                    node.dropped = True
                else:
                    others.append(i)
            level = [i for i in level if not nodes[i].dropped]
        if self.width is not None and len(level) > self.width:
            light, ahead = self.width // 2, self.estimates[k]
            best: list[tuple[float, int]] = []
            for i in level[light:]:
                nodes[i].dropped = True
                if len(best) < self.width - light or nodes[i].weight < best[-1][0]:
                    for s in nodes[i].sets:
                        if s not in ahead:
                            self.ahead_of(k, s)
                    insort(best, (nodes[i].weight + sum(map(ahead.__getitem__, nodes[i].sets)), i))
                    del best[self.width - light :]
            for _, i in best:
                nodes[i].dropped = False
            level = [i for i in level if not nodes[i].dropped]
        return level

    def ahead_of(self, k: int, s: Bits) -> float:
        """Returns an estimate of what a set will cost from a part on: it takes along what it can or is renewed, never
        merged; the queries that leave it go on in one set for each part."""
        found = self.estimates[k].get(s)
        if found is None:
            j = min((j for j in self.known(s).inside if j >= k), default=-1)
            if j < 0:
                found = 0.0
            elif not s[0] & (s[0] - 1):
                found = self.alone_to_the_end(j, s)
            elif j > k:
                found = self.ahead_of(j, s)
            else:
                found = self.leave(j, s)
            self.estimates[k][s] = found
        return found

    def alone_to_the_end(self, k: int, s: Bits) -> float:
        """Returns the estimate for a query that goes on alone from a part with an edge from its nodes."""
        nodes, own = s[1], self.own[first_of(s[0])]
        for j in range(k, len(self.parts)):
            if self.following(nodes) & own & self.parts[j].nodes:
                nodes |= own & self.parts[j].nodes
        return self.costs.of(s[0], nodes).total - self.value(k, s)

    def following(self, nodes: int) -> int:
        """Returns the nodes to which there is an edge from some nodes."""
        found = 0
        for n in bits(nodes):
            found |= self.costs.succ[n]
        return found

    def leave(self, j: int, s: Bits) -> float:
        """Returns the estimate for a set with an edge to a part, from this part on."""
        own = self.takes_along(j, s)
        found = self.through(j + 1, self.grown(s, own)) if own else inf
        # Renewal is for sets that have many snapshots for many queries.
        if not own or (s[0] & (s[0] - 1) and self.costs.of(*s).snapshots):
            new = [(s[0], own)] if own else _split([self.known(s).inside[j]], self.parts[j].shapes)
            found = min(found, sum(self.through(j + 1, t) for t in (s, *new)))
        return found - self.value(j, s)

    def through(self, k: int, s: Bits) -> float:
        """Returns an estimate of the whole cost of a set from the parts before k on."""
        return self.value(k, s) + self.ahead_of(k, s)

    def beats(self, k: int, one: GraphNode, other: GraphNode) -> bool:
        """True if the first node is lighter than the second, and will be whatever follows."""
        for s, t in zip(one.sets, other.sets):
            if s == t:
                continue
            a, b = self.costs.of(*s), self.costs.of(*t)
            if a.mean > b.mean or a.final > b.final or a.snapshots > b.snapshots:
                return False
            if self.gains(k, s[0]):
                return False
        return one.weight <= other.weight

    def gains(self, k: int, queries: int) -> bool:
        """True if a set of these queries can get columns at nodes ahead that all of them have."""
        found = self.still.get((k, queries))
        if found is None:
            found = False
            for n in bits(self.ahead[k]):
                here = [a for a in self.costs.alike[n] if a.queries & queries]
                if not queries & ~sum(a.queries for a in here):
                    found = found or len({a.label for a in here}) > 1 or any(a.starts for a in here)
            self.still[k, queries] = found
        return found

    def known(self, s: Bits) -> _Known:
        found = self.sets.get(s)
        if found is None and not s[0] & (s[0] - 1):
            found = self.sets[s] = self.known_alone(s)
        if found is None:
            queries, nodes = s
            inside: dict[int, int] = {}
            values: dict[int, float] = {}
            reached: dict[int, int] = {}
            for n, some, computed in self.costs.readers(queries, nodes):
                k = self.number[n]
                inside[k] = inside.get(k, 0) | some
                values[k] = values.get(k, 0.0) + computed
                reached[n] = reached.get(n, 0) | some
            if self.costs.of(queries, nodes).start:
                for n, of in self.starting:
                    if of & queries and not nodes >> n & 1:
                        reached[n] = reached.get(n, 0) | of & queries
            reach = mask(n for n, some in reached.items() if some == queries)
            found = self.sets[s] = _Known(inside, values, reach)
        return found

    def known_alone(self, s: Bits) -> _Known:
        """Returns what is known of nodes that a query counts alone."""
        queries, nodes = s
        inside: dict[int, int] = {}
        values: dict[int, float] = {}
        reach = 0
        for way in self.ways_in[first_of(queries)]:
            if nodes >> way.node & 1:
                continue
            sources = way.before & nodes
            if sources:
                k = self.number[way.node]
                inside[k] = queries
                values[k] = values.get(k, 0.0) + way.read * sources.bit_count()
            if sources or way.starts:
                reach |= 1 << way.node
        return _Known(inside, values, reach)

    def grown(self, s: Bits, own: int) -> Bits:
        """Returns a set with nodes that it takes along."""
        self.costs.grown(*s, own)
        return s[0], s[1] | own

    def read(self, k: int, s: Bits) -> float:
        """Returns the values that are certain to be computed from a set once the parts before k are gone through."""
        known = self.known(s)
        if known.reach & self.ahead[k]:
            return sum(values for j, values in known.values.items() if j < k)
        return sum(known.values.values())

    def choose(self, k: int, touched: tuple[Bits, ...]) -> list[_Choice]:
        """Returns the ways on at a part, by the sets with an edge to it."""
        found = self.choices.get((k, touched))
        if found is None:
            found = self.choices[k, touched] = self._choose(k, touched)
        return found

    def _choose(self, k: int, touched: tuple[Bits, ...]) -> list[_Choice]:
        part = self.parts[k]
        stay = [(s, self.grown(s, own)) for s in touched if (own := self.takes_along(k, s))]
        entering = [self.known(s).inside.get(k, 0) for s in touched]
        joins = [pair for pair in stay if k not in self.known(pair[0]).inside]
        origins = [part.queries]
        for inside in sorted(set(entering)):
            if inside & (inside - 1):
                origins = [m for o in origins for m in (o & inside, o & ~inside) if m]
        alone = _either(inside for inside in entering if not inside & (inside - 1))
        origins = [m for o in origins for m in (o & ~alone, *(1 << q for q in bits(o & alone))) if m]
        now = {s: self.value(k + 1, s) for s in touched}
        base = sum(now.values()) - sum(self.value(k, s) for s in touched)
        grow = {s for s in touched if self.grows(k + 1, s)}
        ways: list[_Way] = []

        def way(inherited: Sequence[tuple[Bits, Bits]]) -> _Way:
            larger = dict(inherited)
            weight = base + sum(self.value(k + 1, after) - now[before] for before, after in inherited)
            left = [larger.get(s, s) for s in touched if s in larger or s in grow]
            left = sorted(s for s in left if s in grow or self.grows(k + 1, s))
            made = _Way(tuple(inherited), weight, left, part.queries & ~_union(s for s, _ in inherited), {})
            ways.append(made)
            return made

        with_gates, taking = list(stay), _union(s for s, _ in stay)
        for s in sorted(touched, key=lambda s: -s[0].bit_count()):
            if not s[0] & taking and (own := self.takes_along(k, s, True)):
                with_gates.append((s, self.grown(s, own)))
                taking |= s[0]
        takings = [stay, [pair for pair in stay if pair not in joins]] if joins else [stay]
        if len(with_gates) > len(stay):
            takings.append(with_gates)
        for taken in takings:
            rule, here = "inherit" if taken else "renew", way(taken)
            rest = here.rest
            left = [o & rest for o in origins if o & rest]
            here.add(rule, _split(left, part.shapes))
            here.add(rule, _split(left, part.alike))
            here.add(rule, _split(left, part.onward))
            here.add("merge", _split([rest], part.shapes))
            here.add("merge", _split([rest], part.labelled))
            here.add("merge", _split([rest], part.onward))
            here.add("apart", _split([rest], part.rest))
            for groups in self.further[k]:
                here.add(rule, _split(left, groups))
                here.add("merge", _split([rest], groups))
        rest = ways[0].rest
        alike = _split([o & rest for o in origins if o & rest], part.alike)
        gains: list[tuple[float, int, Bits]] = []
        for i, (s, grown) in enumerate(stay):
            if not s[0] & (s[0] - 1):
                continue
            renewed = s[0], grown[1] & part.nodes
            if (s, grown) not in joins and self.may_renew(grown, renewed[1]):
                loss = self.through(k + 1, s) + self.through(k + 1, renewed) - self.through(k + 1, grown)
                gains.append((loss, i, renewed))
        gains.sort()
        for _, i, renewed in gains[:RENEWED]:
            way(stay[:i] + stay[i + 1 :]).add("renew", [*alike, renewed])
        better = {i: renewed for loss, i, renewed in gains if loss < 0}
        if len(better) > 1:
            way([pair for i, pair in enumerate(stay) if i not in better]).add("renew", [*alike, *better.values()])
        none = way(())
        none.add("merge", _split([part.queries], part.shapes))
        none.add("merge", _split([part.queries], part.labelled))
        none.add("merge", _split([part.queries], part.onward))
        none.add("apart", _split([part.queries], part.rest))
        names: dict[tuple[tuple[Bits, Bits], ...], tuple[_Way, dict[tuple[Bits, ...], str]]] = {}
        for each in ways:
            _, rules = names.setdefault(each.inherited, (each, {}))
            for new, name in each.new.items():
                rules.setdefault(new, name)
        choices = []
        for each, rules in names.values():
            for new, name in rules.items():
                weight = each.weight + sum([self.value(k + 1, s) for s in new])
                growing = tuple(sorted([*each.left, *[s for s in new if self.grows(k + 1, s)]]))
                choices.append(_Choice(self.rule(k, name, new, entering), weight, each.inherited, new, growing))
        return choices

    def rule(self, k: int, name: str, new: Sequence[Bits], origins: Sequence[int]) -> str:
        """Returns the name of a rule by what it has done."""
        if not new:
            return "inherit"
        if name == "merge" and all(any(not queries & ~origin for origin in origins) for queries, _ in new):
            name = "renew"
        return "start" if name != "apart" and not any(queries & self.fed[k] for queries, _ in new) else name

    def takes_along(self, k: int, s: Bits, gates: bool = False) -> int:
        """Returns the nodes of a part that a set can inherit. gates: also those to which some come from elsewhere."""
        queries, nodes = s
        if queries & (queries - 1):
            own = next((own for have, own in self.parts[k].shapes if not queries & ~have), 0)
        else:
            own = self.own[first_of(queries)] & self.parts[k].nodes
        if not own:
            return 0
        known = self.known(s)
        if known.inside.get(k) != queries and not own & known.reach:
            return 0
        if gates:
            return own if known.inside.get(k) == queries else 0
        for n in bits(own):
            here = [a for a in self.costs.alike[n] if a.queries & queries]
            if here[0].before & ~(nodes | own):
                return 0
            if any(a.before != here[0].before or a.starts != here[0].starts for a in here):
                return 0
        return own

    def may_renew(self, grown: Bits, own: int) -> bool:
        """True if a new set of these nodes has fewer columns than the set that takes them along."""
        kept, new = self.costs.of(*grown), self.costs.of(grown[0], own)
        return new.mean < kept.mean or new.final < kept.final

    def grows(self, k: int, s: Bits) -> bool:
        """True if a set may take along a node of this part or of a later one."""
        return bool(self.known(s).reach & self.ahead[k])

    def value(self, k: int, s: Bits) -> float:
        """Returns the cost of a set that is certain once the parts before k are gone through."""
        found = self.paid[k].get(s)
        if found is None:
            of = self.costs.of(*s)
            found = self.paid[k][s] = of.total + self.read(k, s) * of.reading
        return found


def _split(groups: Iterable[int], by: Iterable[Bits]) -> list[Bits]:
    """Returns the sets that queries form within groups."""
    return [(group & queries, nodes) for group in groups for queries, nodes in by if group & queries]


def _union(of: Iterable[Bits]) -> int:
    """Returns the queries of some sets."""
    return _either(queries for queries, _ in of)


def _either(of: Iterable[int]) -> int:
    found = 0
    for queries in of:
        found |= queries
    return found


def numbered(parts: Iterable[TemplatePart]) -> dict[int, int]:
    """Returns the index of the part of each node."""
    return {n: k for k, part in enumerate(parts) for n in bits(part.nodes)}


def show(graph: Graph) -> str:
    """Returns the graph as text: the parts, their nodes with weights and the edge that is kept, the path marked with
    a star."""
    lines = []
    for k, part in enumerate(graph.parts):
        lines.append(f"{'' if k else 'graph':<12}{_names(graph.template, part.nodes)}")
        found = _shown(graph, k)
        for i in found:
            node = graph.nodes[i]
            edge = node.edges[0]
            marked = "*" if i in graph.path else "-" if node.dropped else " "
            way = f"{edge.rule} from {edge.source} at {edge.weight:.1f}"
            lines.append(f"{'':<12}{marked} {i} weighs {node.weight:.1f}: {_label(graph, edge)}; {way}")
        more = sum(node.part == k for node in graph.nodes) - len(found)
        if more:
            lines.append(f"{'':<12}  {more} more")
    return "\n".join(lines)


def draw(graph: Graph) -> str:
    """Returns the graph as an SVG picture: a column for each part, the lightest nodes of it, dropped ones dashed, the
    path in bold."""
    wide, high, gap = 230, 46, 70
    columns = [[0]] + [_shown(graph, k) for k in range(len(graph.parts))]
    at = {i: (20 + c * (wide + gap), 50 + r * (high + 24)) for c, of in enumerate(columns) for r, i in enumerate(of)}
    width = 40 + len(columns) * (wide + gap) - gap
    height = 60 + max(len(of) for of in columns) * (high + 24)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for c, name in enumerate(["start", *(_names(graph.template, part.nodes) for part in graph.parts)]):
        out.append(f'<text x="{20 + c * (wide + gap)}" y="28" font-weight="bold">{_text(name, 32)}</text>')
    for i, (x, y) in at.items():
        for e, edge in enumerate(graph.nodes[i].edges):
            if edge.source not in at:
                continue
            chosen = e == 0 and i in graph.path and edge.source in graph.path
            left, top = at[edge.source]
            x1, y1, x2, y2 = left + wide, top + high // 2, x, y + high // 2
            style = 'stroke="#c00" stroke-width="3"' if chosen else 'stroke="#999"'
            out.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" {style}/>')
            if chosen:
                out.append(f'<text x="{(x1 + x2) // 2 - 14}" y="{(y1 + y2) // 2 - 5}">{edge.weight:.1f}</text>')
    for i, (x, y) in at.items():
        node = graph.nodes[i]
        style = 'stroke="#c00" stroke-width="3"' if i in graph.path else 'stroke="#666"'
        dashed = ' stroke-dasharray="4 3"' if node.dropped else ""
        label = _label(graph, node.edges[0]) if node.edges else "start"
        rule = f", {node.edges[0].rule}" if node.edges else ""
        out.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="6" fill="#f6f6f6" {style}{dashed}/>')
        out.append(f'<text x="{x + 8}" y="{y + 18}">{_text(label, 34)}<title>{_text(label)}</title></text>')
        out.append(f'<text x="{x + 8}" y="{y + 36}" fill="#555">{i}: {node.weight:.1f}{rule}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def _shown(graph: Graph, k: int) -> list[int]:
    """Returns the nodes of a part to show: that of the path, and the lightest."""
    of = [i for i, node in enumerate(graph.nodes) if node.part == k]
    of.sort(key=lambda i: (i not in graph.path, graph.nodes[i].weight, i))
    return of[:SHOWN]


def _label(graph: Graph, edge: GraphEdge) -> str:
    """Returns the sets of a part as the papers write them: (queries) and the nodes of their snapshots."""
    found = []
    for queries, nodes in (*(after for _, after in edge.inherited), *edge.new):
        of = SharedSet(tuple(bits(queries)), tuple(bits(nodes)))
        names = [graph.template.queries[q].name for q in of.queries[:NAMED]]
        more = f" and {len(of.queries) - NAMED} more" if len(of.queries) > NAMED else ""
        at = snapshot_nodes(graph.template, of)
        found.append(f"({', '.join(names)}{more}) {_names(graph.template, mask(at)) if at else 'start'}")
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return ", ".join(found[:NAMED]) + more


def _names(template: Template, nodes: int) -> str:
    return ", ".join(str(template.nodes[n]) for n in bits(nodes))


def _text(value: str, most: int | None = None) -> str:
    if most is not None and len(value) > most:
        value = value[: most - 1] + "…"
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
