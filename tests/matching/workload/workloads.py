"""Templates of workloads for tests: written as sequences of types, and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from hypothesis import strategies as st

from matching.workload.cost import EventRates
from matching.workload.plan import SharedSet, SharingPlan
from matching.workload.template import START, QueryPath, Template, TemplateNode
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.expression import Call, Column, Constant, Expression
from query.plan.plan import Plan
from query.schema import Field, Schema

COLUMNS = {
    "ts": "TIMESTAMP", "type": "VARCHAR", "driver_id": "BIGINT", "district": "VARCHAR", "speed": "DOUBLE",
    "place": "VARCHAR", "duration": "BIGINT", "size": "BIGINT",
}  # fmt: skip
DELIVERY = Schema("s", tuple(Field(name, kind) for name, kind in COLUMNS.items()), time="ts")
ENDING = "GROUP BY district WITHIN 30 MINUTES SLIDE 5 MINUTES"
#: The workload of [SHARING] 1.1.
QA = (
    "RETURN district, COUNT(*) FROM s TYPE BY type PATTERN SEQ((AppOrder A OR WebOrder W), Request R, "
    f"(SEQ(Pickup P, Travel T))+, Dropoff D) WHERE [driver_id] {ENDING}"
)
QB = (
    "RETURN district, COUNT(*), SUM(T.duration) FROM s TYPE BY type PATTERN SEQ(AppOrder A, Request R, "
    f"(SEQ(Pickup P, Travel T))+, Dropoff D) WHERE [driver_id] AND D.place='pool' {ENDING}"
)
QC = (
    "RETURN district, COUNT(*), AVG(T.speed) FROM s TYPE BY type PATTERN SEQ(AppOrder A, Request R, "
    f"(SEQ(Pickup P, Travel T))+, Cancel C) WHERE [driver_id] AND T.speed < 10 {ENDING}"
)

QE = (
    "RETURN district, COUNT(*) FROM s TYPE BY type PATTERN SEQ(AppOrder A, Request R, "
    f"(SEQ(Pickup P, Travel T))+, Cancel C) WHERE [driver_id] {ENDING}"
)


def planned(text: str) -> Plan:
    return bind(parse(text), lambda _: DELIVERY).factors[0].plan


def is_type(name: str) -> Expression:
    return Call("=", (Column("type", "VARCHAR"), Constant(name, "VARCHAR")), "BOOLEAN")


def and_below(condition: Expression, limit: int) -> Expression:
    below = Call("<", (Column("v", "BIGINT"), Constant(limit, "BIGINT")), "BOOLEAN")
    return Call("and", (condition, below), "BOOLEAN")


def sequences(queries: Mapping[str, str], loops: Mapping[str, Sequence[str]] | None = None) -> Template:
    """Returns the template of sequences of types of one letter. loops: by query, edges back, as "TP" from T to P."""
    names = sorted({t for text in queries.values() for t in text})
    number = {name: n for n, name in enumerate(names)}
    paths = []
    for name, text in queries.items():
        at = [number[t] for t in text]
        edges = {(START, at[0]), *pairwise(at)}
        edges |= {(number[a], number[b]) for a, b in (loops or {}).get(name, ())}
        paths.append(QueryPath(name, {n: n for n in at}, frozenset(edges), frozenset(at[-1:])))
    conditions = tuple(is_type(name) for name in names)
    return Template(tuple(TemplateNode(name, 0) for name in names), conditions, tuple(paths), True)


def rates(template: Template, **events: float) -> EventRates:
    """Returns rates by the names of nodes with one condition each."""
    return EventRates(tuple(float(events[str(n)]) for n in template.nodes))


def written(template: Template, plan: SharingPlan) -> set[str]:
    """Returns the sets of a plan as "q1 q2: A B"."""
    return {
        f"{' '.join(template.queries[q].name for q in s.queries)}: {' '.join(str(template.nodes[n]) for n in s.nodes)}"
        for s in plan.sets
    }


def plan_of(template: Template, *sets: str) -> SharingPlan:
    """Returns the plan of sets as `written` writes them."""
    queries = {query.name: q for q, query in enumerate(template.queries)}
    nodes = {str(node): n for n, node in enumerate(template.nodes)}
    found = []
    for text in sets:
        left, right = text.split(": ")
        found.append(
            SharedSet(tuple(sorted(queries[q] for q in left.split())), tuple(sorted(nodes[n] for n in right.split())))
        )
    return SharingPlan(tuple(sorted(found, key=lambda s: (s.queries, s.nodes))))


@st.composite
def drawn_templates(draw: st.DrawFn, queries: int = 3, nodes: int = 4) -> Template:
    """Draws a template: sequences over a few types, with edges back and past a type, several starts and ends. Three
    conditions of each type: all of its events, some of these, fewer of these."""
    every = [is_type("ABCDEFGH"[n]) for n in range(nodes)]
    conditions = [c for of in every for c in (of, and_below(of, 5), and_below(of, 3))]
    paths = []
    for q in range(draw(st.integers(1, queries))):
        at = draw(st.lists(st.integers(0, nodes - 1), min_size=1, max_size=nodes, unique=True))
        if draw(st.integers(0, 3)):
            at = sorted(at)
        edges = {(START, at[0]), *pairwise(at)}
        some = st.integers(0, len(at) - 1)
        if draw(st.booleans()):  # a closure
            back, to = sorted((draw(some), draw(some)), reverse=True)
            edges.add((at[back], at[to]))
        if len(at) > 2 and draw(st.integers(0, 2)) == 0:  # OR: past a type, or another start
            k = draw(st.integers(0, len(at) - 3))
            edges.add((at[k], at[k + 2]) if draw(st.booleans()) else (START, at[k + 1]))
        last = {at[-1], *([at[draw(some)]] if draw(st.integers(0, 3)) == 0 else [])}
        labels = {n: 3 * n + draw(st.sampled_from((0, 0, 0, 1, 2))) for n in at}
        paths.append(QueryPath(f"q{q}", labels, frozenset(edges), frozenset(last)))
    return Template(tuple(TemplateNode("ABCDEFGH"[n], 0) for n in range(nodes)), tuple(conditions), tuple(paths), True)


@st.composite
def drawn_rates(draw: st.DrawFn, nodes: int = 4) -> EventRates:
    """Draws rates of the conditions of a drawn template."""
    found: list[float] = []
    for _ in range(nodes):
        every = draw(st.sampled_from((0.0, 0.25, 1.0, 2.0, 5.0, 12.0, 40.0)))
        found += [every, every * draw(st.sampled_from((0.1, 0.5, 1.0))), every * 0.1]
    return EventRates(tuple(found))


@st.composite
def drawn_plans(draw: st.DrawFn, template: Template) -> SharingPlan:
    """Draws a plan: of each query the nodes fall into two groups, and some of the queries with the same group share."""
    sets: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for q, path in enumerate(template.queries):
        cut = draw(st.frozensets(st.sampled_from(sorted(path.labels))))
        for part in (path.labels.keys() & cut, path.labels.keys() - cut):
            if part:
                alone = draw(st.booleans())
                sets.setdefault((tuple(sorted(part)), q if alone else -1), []).append(q)
    found = [SharedSet(tuple(queries), nodes) for (nodes, _), queries in sets.items()]
    return SharingPlan(tuple(sorted(found, key=lambda s: (s.queries, s.nodes))))
