"""The cost of a sharing plan for each partition and window.

Equations (1) to (4) of [SHARING] count visits of earlier events: |E| x |Ep| additions without sharing, times the
snapshots with it. Here counters are type-grained, one record for each node and column, so that the factor |Ep| falls
away: an event adds records of nodes, whatever the number of earlier events. What is left of the equations:

    (1)  an event of a query that counts alone         its edges, in the one column of the query
    (2)  an event passed on for a set                  its edges in the set x the columns of the set
    (4)  a snapshot: its gate opens                    for each query and edge, the columns of the set before
         an event that adds to a gate                  1
         a result                                      for each query and last node, the columns of the set

The columns of a set are its snapshots in one window: for each node that some of its queries enter from elsewhere, the
gates that open; and each event on which its queries disagree, by itself. They are estimated by events that are evenly
mixed: of e events that all take, b e / (b + e) come first after one of the b events at the nodes elsewhere, and open a
gate; (b + 1) e / (b + e) where trends of some of the queries start, for then the first event opens one, too. If the
node itself is among those elsewhere, each event ends the gate that it has opened: e. An event meets half of the columns
that the window makes, the result meets all. A query that counts alone has one column, whatever it reads: its values
need no coefficients.

All costs of a set come from its queries and nodes alone: that of reading its columns for another set belongs to the set
that is read. It is read as often as gates open there if all queries of the node are one set. The cost of a plan is thus
the sum over its sets. An event of two nodes, where types are not exclusive, counts at both.

`Weights` has the cost of each of these. FITTED are nanoseconds, fitted to the time that the kernels take for plans of
all kinds on an x86-64 machine (`python -m benchmarks.sharing.fit` measures and prints them). With these, an event at a
node where nothing has come costs next to nothing: `Liveness` estimates how often there are partial trends. A record
has numbers for all aggregates of its queries, each of as many limbs as the engine has measured. ADDITIONS are the units
of the equations above: every node is live, and one record added to another costs 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf

import numpy as np

from matching.workload.plan import SharedSet, SharingPlan
from matching.workload.template import Template, bits, mask
from query.plan.expression import Call, Column, Constant, Expression, conjuncts, show

#: Steps of a window in which it is estimated how often nodes are live.
LIVE_STEPS = 16


@dataclass(frozen=True, slots=True)
class Weights:
    """The cost of each operation.

    visit: of a query that counts alone, an event looked at; event: of a set, an event taken; entry: for each of its
    queries, where their conditions differ; column: an edge in one column; addition: a record added to another, for each
    of its limbs `limb` more; snapshot: besides `record`, for each record of a new column, and `own`, for each limb of
    its values; value: a value read for a snapshot; product: a coefficient times a value, for each number
    `product_limb` more by the limbs of both, and product_alone of a query that counts alone; result: the trends of a
    query at a last node. least: columns that a set has at least. live: True if nodes are dead until something comes.
    carried: a record of a query at a node, carried over to another plan."""

    visit: float
    event: float
    entry: float
    column: float
    addition: float
    limb: float
    snapshot: float
    record: float
    own: float
    value: float
    product: float
    product_limb: float
    product_alone: float
    result: float
    least: float
    live: bool
    carried: float = 0.0


ADDITIONS = Weights(
    visit=1, event=1, entry=0, column=0, addition=1, limb=0, snapshot=0, record=1, own=0, value=1, product=2,
    product_limb=0, product_alone=2, result=1, least=1, live=False,
)  # fmt: skip
FITTED = Weights(
    visit=4.4, event=20, entry=6, column=2, addition=23, limb=0.8, snapshot=240, record=44, own=1, value=60,
    product=5, product_limb=25, product_alone=0, result=150, least=0, live=True, carried=150,
)  # fmt: skip
#: Those by which plans are chosen.
WEIGHTS = FITTED


@dataclass(frozen=True, slots=True)
class EventRates:
    """Events of each condition of a template in one partition and window. limbs: of a number, on average. windows: of
    partitions, in which events were counted."""

    events: tuple[float, ...]
    limbs: float = 1.0
    windows: float = inf

    @classmethod
    def measured(cls, counts: Sequence[int], windows: int) -> EventRates:
        """Returns the rates of counts over some number of windows, those of each partition counted apart."""
        return cls(tuple(count / max(1, windows) for count in counts))


@dataclass(frozen=True, slots=True)
class Cost:
    """The parts of a cost: events passed on, snapshots made (columns laid out, values computed), results."""

    pass_on: float = 0.0
    snapshots: float = 0.0
    results: float = 0.0

    @property
    def total(self) -> float:
        return self.pass_on + self.snapshots + self.results

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.pass_on + other.pass_on, self.snapshots + other.snapshots, self.results + other.results)

    def __str__(self) -> str:
        parts = f"{self.pass_on:.1f} passed on, {self.snapshots:.1f} snapshots, {self.results:.1f} results"
        return f"{self.total:.1f} ({parts})"


def cost(template: Template, plan: SharingPlan, rates: EventRates, weights: Weights | None = None) -> Cost:
    """Returns the cost of a plan for each partition and window. weights: WEIGHTS unless given."""
    costs = SetCosts(template, rates, weights)
    return sum((costs.whole(*masks(s)) for s in plan.sets), Cost())


def show_cost(template: Template, plan: SharingPlan, rates: EventRates) -> str:
    """Returns the line of EXPLAIN: the cost of a plan and that of one without sharing."""
    alone = sum(SetCosts(template, rates).alone(), Cost())
    return f"{'cost':<12}{cost(template, plan, rates)}; unshared {alone}"


def masks(of: SharedSet) -> tuple[int, int]:
    """Returns the queries and the nodes of a set as bits."""
    return mask(of.queries), mask(of.nodes)


class Liveness:
    """How often there are partial trends of a query, by its nodes: come, mean: when an event comes, at a node or the
    start before it, and at the node; final: at the end of the window. Events are evenly mixed."""

    __slots__ = ("_come", "_found", "_mean", "_order", "_starts", "final")

    def __init__(self, template: Template, rates: EventRates) -> None:
        pairs, lists = template.pairs, template.sources
        start, most = len(pairs), max(map(len, lists), default=1)
        before = np.array([of + [start + 1] * (most - len(of)) for of in lists]).reshape(len(pairs), most)
        events = np.array([rates.events[template.queries[q].labels[n]] for q, n in pairs])
        often = -np.expm1(-events / LIVE_STEPS)
        there = np.zeros(len(pairs) + 2)
        there[start] = 1
        come, mean = np.zeros(len(pairs)), np.zeros(len(pairs))
        for _ in range(LIVE_STEPS):
            here = there[before].max(axis=1)
            come += here
            mean += there[:-2] / 2
            there[:-2] += often * np.maximum(here - there[:-2], 0)
            mean += there[:-2] / 2
        at = np.array(pairs).reshape(-1, 2).T
        self._come, self._mean, self.final = np.zeros((3, len(template.queries), len(template.nodes)))
        self._come[*at], self._mean[*at], self.final[*at] = come / LIVE_STEPS, mean / LIVE_STEPS, there[:-2]
        known: dict[frozenset[int], int] = {}
        self._starts = [known.setdefault(labels, len(known)) for labels in template.starts]
        self._order = sorted(range(len(self._starts)), key=self._starts.__getitem__)
        self._found: dict[int, tuple[list[float], list[float]]] = {
            1 << q: rows for q, rows in enumerate(zip(self._come.tolist(), self._mean.tolist(), strict=True))
        }

    def some(self, queries: int) -> tuple[list[float], list[float]]:
        """Returns `come` and `mean` for partial trends of any of some queries, by node. Queries whose trends start with
        the same events have them at the same time, others independently."""
        found = self._found.get(queries)
        if found is None:
            rows = [q for q in self._order if queries >> q & 1]
            of_row = [self._starts[q] for q in rows]
            begin = [i for i, start in enumerate(of_row) if not i or start != of_row[i - 1]]
            come, mean = (
                (1 - np.multiply.reduce(1 - np.maximum.reduceat(of[rows], begin))).tolist()
                for of in (self._come, self._mean)
            )
            found = self._found[queries] = come, mean
        return found


#: Of the nodes of a set: 1 if it has the column of the start; events that it takes; entries of queries whose conditions
#: differ; snapshots; edges for each column, and those where there are trends; additions in one column; values computed
#: from its own columns; values computed from the start; results, and those with trends; and the nodes where there are
#: trends.
Sums = tuple[int, float, float, float, float, float, float, float, float, int, float, float]
NONE: Sums = (0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class SetCost:
    """The cost of a set but for what other sets read of it.

    start: 1 if it has the column of the start; snapshots: its other columns at the end of a window; mean, final:
    columns that an event and the result meet; reading: the cost of the value of a query from a node before an event.
    """

    cost: Cost
    total: float
    start: int
    snapshots: float
    mean: float
    final: float
    reading: float
    sums: Sums


class SetCosts:
    """Costs of sets of a template under rates, each computed once. Sets are (queries, nodes) as bits."""

    __slots__ = (
        "_alone", "_entering", "_final", "_found", "_labels", "_numbers", "alike", "last", "live", "rates", "succ",
        "template", "weights",
    )  # fmt: skip

    def __init__(self, template: Template, rates: EventRates, weights: Weights | None = None) -> None:
        """weights: WEIGHTS unless given."""
        self.template, self.rates = template, rates
        self.weights = WEIGHTS if weights is None else weights
        self.live = Liveness(template, rates) if self.weights.live else None
        self._final = [] if self.live is None else self.live.final.T.tolist()
        self._numbers: dict[int, tuple[int, int]] = {}
        self.alike, self.last, self.succ = template.alike, template.last, template.following
        self._alone: dict[tuple[int, int], tuple[float, float, float, float]] = {}
        self._found: dict[tuple[int, int], SetCost] = {}
        self._labels: dict[frozenset[int], tuple[float, float]] = {}
        self._entering: dict[int, tuple[int, float, bool]] = {}

    def whole(self, queries: int, nodes: int) -> Cost:
        """Returns the cost of a set, with all that is read of it."""
        of = self.of(queries, nodes)
        return of.cost + Cost(snapshots=self.read(queries, nodes) * of.reading)

    def alone(self) -> Iterator[Cost]:
        """Yields the cost of each query without sharing."""
        for q, path in enumerate(self.template.queries):
            yield self.whole(1 << q, mask(path.labels))

    def after(self, nodes: int) -> int:
        """Returns the nodes that come after nodes in some query, but for these."""
        found = 0
        for n in bits(nodes):
            found |= self.succ[n]
        return found & ~nodes

    def taken(self, queries: int, node: int) -> tuple[float, float]:
        """Returns the events that some of the queries take at a node, and those that all take."""
        here = self.alike[node]
        if len(here) == 1:
            return self.rates.events[here[0].label], self.rates.events[here[0].label]
        labels = frozenset(a.label for a in here if a.queries & queries)
        if labels not in self._labels:
            self._labels[labels] = some_and_all(self.template.conditions, self.rates, labels)
        return self._labels[labels]

    def of(self, queries: int, nodes: int) -> SetCost:
        found = self._found.get((queries, nodes))
        if found is None:
            if queries & (queries - 1):
                found = self._set_cost(queries, nodes, self._sums(queries, nodes, nodes, NONE))
            else:
                found = self._own_cost(queries, nodes)
            self._found[queries, nodes] = found
        return found

    def numbers(self, queries: int) -> tuple[int, int]:
        """Returns how many numbers a record of a set has, and those of its queries have together."""
        found = self._numbers.get(queries)
        if found is None:
            sums = [self.template.queries[q].sums for q in bits(queries)]
            each = sum(1 + len(of) for of in sums)
            found = self._numbers[queries] = 1 + len(frozenset().union(*sums)), each
        return found

    def coming(self, queries: int, node: int) -> float:
        """Returns how often something comes to a node of some queries that are alike before it."""
        return 1.0 if self.live is None else self.live.some(queries)[0][node]

    def changing(self, queries: int, node: int) -> float:
        """Returns the events at a node that change what some of the queries have there."""
        return self.taken(queries, node)[0] * self.coming(queries, node)

    def grown(self, queries: int, nodes: int, own: int) -> SetCost:
        """Returns the cost of a set that takes along nodes from which no edge leads to its own."""
        key = queries, nodes | own
        found = self._found.get(key)
        if found is None and not queries & (queries - 1):
            return self.of(*key)
        if found is None:
            sums = self._sums(queries, own, nodes | own, self.of(queries, nodes).sums)
            found = self._found[key] = self._set_cost(queries, nodes | own, sums)
        return found

    def read(self, queries: int, nodes: int) -> float:
        """Returns the values that are computed from a set for events of other nodes."""
        return sum(values for _, _, values in self.readers(queries, nodes))

    def readers(self, queries: int, nodes: int) -> Iterator[tuple[int, int, float]]:
        """Yields the other nodes with an edge from a set, queries that have it, and the values computed for these.

        These are taken to go on together, with all others of the node: their values are computed for each gate, and
        for each event on which those of the set disagree. For a node that only one query has, each event reads."""
        for n in bits(self.after(nodes)):
            entering, before, start = self.entering(n)
            for a in self.alike[n]:
                some, sources = a.queries & queries, a.before & nodes
                if some and sources:
                    events = self.rates.events[a.label]
                    if len(self.alike[n]) > 1 or a.queries & (a.queries - 1):
                        more = sum(self.changing(some, m) for m in bits(sources & ~entering))
                        apart = max(0.0, events - self.taken(queries, n)[1])
                        events = apart + alternations(before + more, events - apart, start)
                    yield n, some, some.bit_count() * events * sources.bit_count()

    def entered(self, node: int, events: float) -> float:
        """Returns the values computed for one query of a node before it, for so many events that it takes; see
        `readers`."""
        (a, *others) = self.alike[node]
        if not others and not a.queries & (a.queries - 1):
            return events
        _, before, start = self.entering(node)
        return alternations(before, events, start)

    def entering(self, node: int) -> tuple[int, float, bool]:
        """Returns the nodes from which some query comes to a node, but for those of closures round it, with the events
        of these; and True if some queries start there and others do not."""
        found = self._entering.get(node)
        if found is None:
            here, round_it = self.alike[node], 1 << node
            while more := self.after(round_it):
                round_it |= more
            of: dict[int, int] = {}
            for a in here:
                for m in bits(a.before & ~round_it):
                    of[m] = of.get(m, 0) | a.queries
            before = sum(self.changing(queries, m) for m, queries in of.items())
            found = self._entering[node] = mask(of), before, len({a.starts for a in here}) > 1
        return found

    def _gates(self, queries: int, nodes: int, n: int, inside: int, agreed: float) -> float:
        """Returns how many gates a set makes at a node for the events that all its queries take."""
        reading: dict[int, int] = {}
        starting, every = 0, True
        for a in self.alike[n]:
            if a.queries & queries:
                for m in bits(a.before & ~inside):
                    reading[m] = reading.get(m, 0) | a.queries & queries
                starting, every = starting | a.starts, every and a.starts
        if n in reading:  # each event ends its own gate
            return agreed * self.coming(queries, n)
        before = sum(self.changing(queries if nodes >> m & 1 else some, m) for m, some in reading.items())
        return alternations(before, agreed, bool(starting) and not every)

    def _sums(self, queries: int, own: int, nodes: int, sums: Sums) -> Sums:
        """Returns sums with those of some of the nodes of a set of several queries."""
        start, every, entries, snapshots, passed, grown, once, values, starts, results, ended, alive = sums
        events = self.rates.events
        count = queries.bit_count()
        for n in bits(own):
            here = self.alike[n]
            if len(here) > 1:
                here = tuple(a for a in here if a.queries & queries)
            some, agreed = self.taken(queries, n)
            common, union, starting = here[0].before, 0, 0
            for a in here:
                common &= a.before
                union |= a.before
                starting += a.starts
            inside = common & nodes
            coming = self.coming(queries, n)
            passed += agreed * inside.bit_count()
            grown += agreed * self._living(queries, inside)
            if starting == len(here):
                start = 1
                once += agreed
            gates = 0.0
            outside = union & ~inside
            if outside or 0 < starting < len(here):
                gates = self._gates(queries, nodes, n, inside, agreed)
                once += agreed * coming
            if len(here) > 1 and len({a.label for a in here}) > 1:
                entries += some * count
            for a in here:
                many = (a.queries & queries).bit_count()
                apart = max(0.0, events[a.label] - agreed)
                values += many * gates * (a.before & ~inside & nodes).bit_count()
                values += many * apart * (a.before & nodes).bit_count()
                starts += many * a.starts * (apart if starting == len(here) else apart + gates)
            snapshots += (some - agreed) * coming + gates
            every += some
            last = self.last[n] & queries
            results += last.bit_count()
            ended += sum(self._final[n][q] for q in bits(last)) if self.live is not None else last.bit_count()
            alive += self._living(queries, 1 << n)
        return start, every, entries, snapshots, passed, grown, once, values, starts, results, ended, alive

    def _own_cost(self, queries: int, nodes: int) -> SetCost:
        """Returns the cost of nodes that a query counts alone."""
        w, limbs, cells = self.weights, self.rates.limbs, nodes.bit_count()
        taken, added, ended, alive, results = 0.0, 0.0, 0.0, 0.0, 0
        for n in bits(nodes):
            own = self._alone.get((queries, n))
            if own is None:
                own = self._alone[queries, n] = self._own_node(queries, n)
            taken, added, ended, alive = taken + own[0], added + own[1], ended + own[2], alive + own[3]
            results += self.last[n] & queries != 0
        numbers, _ = self.numbers(queries)
        add = w.addition + w.limb * numbers * limbs
        reading = w.value + w.product_alone
        made = results * w.result + ended * w.product_alone
        if w.live:
            reading += add * alive / cells
            made += ended * add
        columns = max(w.least if w.live is False else 0.0, 1.0)
        cost = Cost(w.visit * taken + add * added, w.record * cells, made)
        return SetCost(cost, cost.total, 1, 0.0, columns, columns, reading, NONE)

    def _own_node(self, queries: int, n: int) -> tuple[float, float, float, float]:
        """Returns of a node that a query counts alone the events taken, the records that these add, the trends that
        end there, and how often there are some."""
        (here,) = [a for a in self.alike[n] if a.queries & queries]
        taken = self.rates.events[here.label]
        ended = 0.0
        if self.last[n] & queries:
            ended = 1.0 if self.live is None else self._final[n][first_of(queries)]
        added = taken * (here.starts + self._living(queries, here.before))
        return taken, added, ended, self._living(queries, 1 << n)

    def _living(self, queries: int, nodes: int) -> float:
        """Returns how many of some nodes have trends when an event comes."""
        if self.live is None:
            return nodes.bit_count()
        mean = self.live.some(queries)[1]
        return sum(mean[n] for n in bits(nodes))

    def _set_cost(self, queries: int, nodes: int, sums: Sums) -> SetCost:
        start, every, entries, snapshots, passed, grown, once, values, starts, results, ended, alive = sums
        w, limbs, cells = self.weights, self.rates.limbs, nodes.bit_count()
        count = queries.bit_count()
        numbers, of_queries = self.numbers(queries)
        least = w.least if w.live is False else 0.0
        mean, final = max(least, start + snapshots / 2), max(least, start + snapshots)
        add = w.addition + w.limb * numbers * limbs
        product = w.product + w.product_limb * of_queries / count * max(1.0, limbs * limbs / 4)
        living = alive / cells
        reading = w.value + product * (living * start + snapshots / 2 if w.live else mean)
        additions = grown * start + passed * snapshots / 2 if w.live else passed * mean
        record = w.record if not w.live else w.record * (1 + numbers * limbs)
        made = snapshots * (w.snapshot + w.own * (count + of_queries * limbs))
        cost = Cost(
            pass_on=w.event * every + w.entry * entries + w.column * passed * mean + add * (additions + once),
            snapshots=record * cells * final + made + w.value * starts + values * reading,
            results=results * w.result + product * (ended * start + results * snapshots if w.live else results * final),
        )
        return SetCost(cost, cost.total, start, snapshots, mean, final, reading, sums)


def alternations(before: float, events: float, start: bool) -> float:
    """Returns how many of some events follow one of those before, all of them evenly mixed. start: the first of the
    events counts in any case."""
    if not before:
        return min(1.0, events) if start else 0.0
    return min(events, (before + start) * events / (before + events))


def first_of(queries: int) -> int:
    """Returns the first of some queries."""
    return (queries & -queries).bit_length() - 1


def nodes_of(template: Template) -> range:
    return range(len(template.nodes))


def some_and_all(conditions: Sequence[Expression], rates: EventRates, labels: Iterable[int]) -> tuple[float, float]:
    """Returns the events that fulfil some of the conditions, and those that fulfil all.

    Conditions of which neither implies the other, by their text, are taken as exclusive: that shares too little rather
    than too much."""
    left = sorted(labels, key=lambda i: (-rates.events[i], i))
    if len(left) == 1:
        return rates.events[left[0]], rates.events[left[0]]
    parts = {i: conjuncts(conditions[i]) for i in left}
    widest: list[int] = []
    for i in left:
        if not any(_implies(parts[i], parts[j]) for j in widest):
            widest = [j for j in widest if not _implies(parts[j], parts[i])] + [i]
    some = sum(rates.events[i] for i in widest)
    least = left[-1]
    nested = all(_implies(parts[least], parts[j]) for j in left)
    return max(some, rates.events[left[0]]), rates.events[least] if nested else 0.0


def _implies(narrow: tuple[Expression, ...], wide: tuple[Expression, ...]) -> bool:
    """True if each part of the wide condition is one of the narrow one, or a comparison that one of these implies."""
    return all(any(n == w or _tighter(n, w) for n in narrow) for w in wide)


def _tighter(narrow: Expression, wide: Expression) -> bool:
    """True for column < 5 and column < 7, and the like."""
    if not (isinstance(narrow, Call) and isinstance(wide, Call) and narrow.function in ("<", "<=", ">", ">=")):
        return False
    if narrow.function[0] != wide.function[0] or wide.function not in ("<", "<=", ">", ">="):
        return False
    (column, low), (other, high) = narrow.arguments, wide.arguments
    if not (isinstance(column, Column) and column == other):
        return False
    if not (isinstance(low, Constant) and isinstance(high, Constant)):
        return False
    if not (isinstance(low.value, (int, float, Decimal)) and isinstance(high.value, (int, float, Decimal))):
        return False
    less, more = (low.value, high.value) if narrow.function[0] == "<" else (high.value, low.value)
    return less < more or (less == more and (narrow.function == wide.function or len(wide.function) == 2))


def show_rates(template: Template, rates: EventRates) -> str:
    """Returns the lines of EXPLAIN: events of each condition for each partition and window."""
    lines = [f"{events:g} of {show(c)}" for c, events in zip(template.conditions, rates.events)]
    return "\n".join(f"{'' if i else 'rates':<12}{line}" for i, line in enumerate(lines))
