"""Costs of sharing plans: matching/workload/cost.py."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.workload import cost as costs
from matching.workload.cost import Cost, EventRates, cost, show_cost, show_rates, some_and_all
from matching.workload.graph import WORTH_SHARING, chosen, lightest, worthwhile
from matching.workload.plan import SharingPlan, passes_on, unshared
from matching.workload.template import START, QueryPath, Template
from query.plan.expression import Call, Column, Constant
from tests.matching.workload.executed import Window
from tests.matching.workload.workloads import (
    and_below,
    drawn_plans,
    drawn_rates,
    drawn_templates,
    is_type,
    plan_of,
    rates,
    sequences,
    written,
)

Q3 = sequences({"q2": "ABCD", "q4": "BCDG"})
#: The stream a1, a2, b1, c1, c2, d1, d2, g1 of [SHARING] 2.2.
STREAM = rates(Q3, A=2, B=1, C=2, D=2, G=1)


def test_rates_of_counts():
    assert EventRates.measured([6, 0, 9], 3) == EventRates((2.0, 0.0, 3.0))
    assert EventRates.measured([6], 0) == EventRates((6.0,))


def test_unshared_example():
    """q2: 7 events, 2 start, 1 + 2 + 2 pass an edge; 4 records of one column; a value of one column. q4 likewise."""
    assert cost(Q3, unshared(Q3), STREAM) == Cost(pass_on=14 + 12, snapshots=4 + 4, results=3 + 3)


def test_shared_example():
    plan = plan_of(Q3, "q2: A", "q2 q4: B C D", "q4: G")
    # A: 2 events start, one column of one record, read by the one B of q2 (an addition and a multiplication).
    a = Cost(pass_on=2 + 2, snapshots=1 + 3)
    # B opens the one gate, of 3 records, and adds to it; q4 starts there; C and D, 4 events, meet it; so does G, which
    # reads it and adds what it reads.
    both = Cost(pass_on=5 + 1 + 4, snapshots=3 + 1 + (1 + 2), results=3)
    g = Cost(pass_on=1 + 1, snapshots=1, results=3)
    assert cost(Q3, plan, STREAM) == a + both + g
    assert (a + both + g).total == 34
    assert show_cost(Q3, plan, STREAM) == (
        "cost        34.0 (16.0 passed on, 12.0 snapshots, 6.0 results); "
        "unshared 40.0 (26.0 passed on, 8.0 snapshots, 6.0 results)"
    )


def test_columns_grow_with_snapshots():
    """More As and Bs that alternate: more columns for each C and D, while the unshared cost grows by these alone."""
    plan = plan_of(Q3, "q2: A", "q2 q4: B C D", "q4: G")
    few, many = (rates(Q3, A=n, B=n, C=20, D=20, G=1) for n in (1, 30))
    assert cost(Q3, plan, few).total < cost(Q3, unshared(Q3), few).total
    assert cost(Q3, plan, many).total > cost(Q3, unshared(Q3), many).total


def test_a_gate_serves_the_events_until_what_comes_there_changes():
    made = sequences({"q1": "AB", "q2": "CB"})
    plan = plan_of(made, "q1: A", "q2: C", "q1 q2: B")
    found = cost(made, plan, rates(made, A=1, B=10, C=1))
    # B: 10 events, 2 before them; a column for each gate, of one record; of each, two values, read from A and C.
    gates = 2 * 10 / (2 + 10)
    assert found.pass_on == (1 + 1) * 12
    assert found.snapshots == pytest.approx((1 + 1) + gates + 2 * gates * 3)
    assert found.results == pytest.approx(2 * (1 + 2 * gates))
    often = cost(made, plan, rates(made, A=1, B=1000, C=1))
    assert often.snapshots == pytest.approx(2 + 2 * 1000 / 1002 * 7)  # Before: as many snapshots as Bs.


def test_a_start_opens_a_gate():
    assert costs.alternations(0, 5, False) == 0
    assert costs.alternations(0, 5, True) == 1
    assert costs.alternations(0, 0.25, True) == 0.25
    assert costs.alternations(3, 5, False) == 15 / 8
    assert costs.alternations(3, 5, True) == 20 / 8
    assert costs.alternations(3, 0.5, True) == 0.5  # no more than events


def test_events_that_end_their_own_gate_make_a_snapshot_each():
    """q1 goes round at B, q2 does not: what q1 has there is read anew by each B."""
    made = sequences({"q1": "AB", "q2": "AB"}, {"q1": ("BB",)})
    shared = plan_of(made, "q1 q2: A B")
    found = cost(made, shared, rates(made, A=1, B=10))
    # The column of the start and those of ten gates, of two records each; a value each, met by half the columns.
    assert found.snapshots == 2 * 11 + 10 * (1 + 2 * 6)
    assert found.pass_on == (1 + 1) + 10 * (1 + 1 + 6)


def test_a_query_alone_has_one_column():
    """What it reads of a set is added to its records, event by event."""
    made = sequences({"q1": "ABC", "q2": "ABD"})
    plan = plan_of(made, "q1 q2: A B", "q1: C", "q2: D")
    found = cost(made, plan, rates(made, A=1, B=1, C=10, D=10))
    assert found.results == 2 * 3
    assert found.snapshots == 2 + 1 + 1 + 20 * 3
    assert found.pass_on == 2 + 2 + 20 * (1 + 1)


def test_conditions_of_a_set_differ():
    """An event that one of two queries takes makes a snapshot, and both cost more as these are more."""
    conditions = (is_type("A"), is_type("B"), and_below(is_type("B"), 5))
    edges = frozenset({(START, 0), (0, 1)})
    paths = (QueryPath("q1", {0: 0, 1: 1}, edges, frozenset({1})), QueryPath("q2", {0: 0, 1: 2}, edges, frozenset({1})))
    made = Template(sequences({"q": "AB"}).nodes, conditions, paths, True)
    plan = plan_of(made, "q1 q2: A B")
    same = cost(made, plan, EventRates((1.0, 10.0, 10.0)))
    assert same.snapshots == 2  # the column of the start
    some = cost(made, plan, EventRates((1.0, 10.0, 6.0)))
    made_columns = 4  # one for each event of disagreement, whatever follows
    values = 4 * (1 + 2 * (1 + made_columns / 2))
    assert some.snapshots == pytest.approx(2 * (1 + made_columns) + values)
    assert some.pass_on == pytest.approx(11 + 1 + 6 * (1 + made_columns / 2))


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (is_type("A"), and_below(is_type("A"), 5), (10, 4)),
        (and_below(is_type("A"), 7), and_below(is_type("A"), 5), (10, 4)),
        (is_type("A"), is_type("B"), (14, 0)),
        (and_below(is_type("A"), 5), and_below(is_type("B"), 5), (14, 0)),
    ],
)
def test_events_of_some_and_of_all_conditions(one, other, found):
    assert some_and_all((one, other), EventRates((10.0, 4.0)), (0, 1)) == found
    assert some_and_all((other, one), EventRates((4.0, 10.0)), (1, 0)) == found


def test_comparisons_that_imply_one_another():
    def compare(function: str, value: int) -> Call:
        return Call(function, (Column("v", "BIGINT"), Constant(value, "BIGINT")), "BOOLEAN")

    def nested(narrow: Call, wide: Call) -> bool:
        return some_and_all((wide, narrow), EventRates((10.0, 4.0)), (0, 1)) == (10, 4)

    other = Call("<", (Column("w", "BIGINT"), Constant(5, "BIGINT")), "BOOLEAN")
    assert nested(compare("<", 5), compare("<=", 5))
    assert nested(compare(">", 5), compare(">=", 5))
    assert nested(compare(">", 6), compare(">", 5))
    assert not nested(compare("<=", 5), compare("<", 5))
    assert not nested(compare(">", 5), compare(">", 6))
    assert not nested(compare(">", 5), compare("<", 5))
    assert not nested(compare("<", 5), other)


def test_more_than_two_conditions():
    of = [is_type("A"), and_below(is_type("A"), 5), and_below(is_type("A"), 3)]
    assert some_and_all(of, EventRates((10.0, 4.0, 1.0)), (0, 1, 2)) == (10, 1)
    assert some_and_all([*of, is_type("B")], EventRates((10.0, 4.0, 1.0, 2.0)), (0, 1, 2, 3)) == (12, 0)


def test_rates_are_shown():
    made = sequences({"q": "AB"})
    assert show_rates(made, rates(made, A=2, B=0.5)).splitlines() == [
        "rates       2 of (type = 'A')",
        "            0.5 of (type = 'B')",
    ]


def mixed(before: float, events: float, start: bool) -> float:
    """Returns the gates that open if events are evenly mixed with those before."""
    if before == 0:
        return min(1.0, events) if start else 0.0
    return min(events, (before + (1 if start else 0)) / (before + events) * events)


def elsewhere(template: Template, of: EventRates, users: Mapping[int, set[int]]) -> float:
    """Returns the events at nodes, by the queries that come from each."""
    found = 0.0
    for node, queries in users.items():
        labels = {template.queries[q].labels[node] for q in queries}
        found += some_and_all(template.conditions, of, labels)[0]
    return found


def round_of(template: Template, node: int) -> set[int]:
    """Returns the nodes that come after a node in some query, and it."""
    found = {node}
    for _ in template.nodes:
        found |= {b for path in template.queries for a, b in path.edges if a in found}
    return found


def sources(queries: Iterable[int], template: Template, node: int, but: Collection[int]) -> dict[int, set[int]]:
    """Returns the nodes from which queries come to a node, with these queries."""
    found: dict[int, set[int]] = {}
    for q in queries:
        for p in template.queries[q].before(node) - {START, *but}:
            found.setdefault(p, set()).add(q)
    return found


def defined(template: Template, plan: SharingPlan, of: EventRates) -> Cost:
    """Returns the cost as the documentation words it, set by set and query by query."""
    on_time, snapshots, results = 0.0, 0.0, 0.0
    for s in plan.sets:
        alone = len(s.queries) == 1
        start, made, each, values, begun = alone, 0.0, 0.0, 0.0, 0.0
        for n in s.nodes:
            paths = {q: template.queries[q] for q in s.queries}
            some, agreed = some_and_all(template.conditions, of, {path.labels[n] for path in paths.values()})
            common = frozenset.intersection(*(path.before(n) for path in paths.values())) & {START, *s.nodes}
            start = start or START in common
            on_time += some * costs.ADDITIONS.event + agreed * (START in common)
            each += agreed * len(common - {START})
            users = sources(s.queries, template, n, common)
            beginning = START not in common and any(START in path.before(n) for path in paths.values())
            if alone:
                on_time += agreed * len(users)
                continue
            gates = 0.0
            if users or beginning:
                assert not passes_on(template, s, n)
                on_time += agreed
                of_all = {p: set(s.queries) if p in s.nodes else queries for p, queries in users.items()}
                gates = agreed if n in users else mixed(elsewhere(template, of, of_all), agreed, beginning)
            made += some - agreed + gates
            for path in paths.values():
                apart = of.events[path.labels[n]] - agreed
                values += apart * len(path.before(n) & set(s.nodes))
                values += gates * len((path.before(n) - common) & set(s.nodes))
                begun += apart * (START in path.before(n)) + gates * (START in path.before(n) - common)
        for n in range(len(template.nodes)):
            having = [q for q, path in enumerate(template.queries) if n in path.labels]
            entered = sources(having, template, n, round_of(template, n))
            starting = {START in template.queries[q].before(n) for q in having}
            for q in set(having) & set(s.queries) if n not in s.nodes else ():
                path = template.queries[q]
                read = path.before(n) & set(s.nodes)
                if read:
                    alike = {
                        p
                        for p in set(having) & set(s.queries)
                        if (template.queries[p].before(n), template.queries[p].labels[n])
                        == (path.before(n), path.labels[n])
                    }
                    before = elsewhere(template, of, {**dict.fromkeys(read, alike), **entered})
                    events = of.events[path.labels[n]]
                    if len(having) > 1:
                        together = {template.queries[p].labels[n] for p in set(having) & set(s.queries)}
                        agreed = some_and_all(template.conditions, of, together)[1]
                        events = events - agreed + mixed(before, agreed, len(starting) > 1)
                    values += len(read) * events
        mean, final = max(1.0, start + made / 2), max(1.0, start + made)
        on_time += each * mean
        snapshots += len(s.nodes) * final + begun + values * (1 + costs.ADDITIONS.product * mean)
        results += sum(len(template.queries[q].last & set(s.nodes)) for q in s.queries) * (
            1 + costs.ADDITIONS.product * final
        )
    return Cost(on_time, snapshots, results)


@pytest.mark.slow
@given(drawn_templates(), drawn_rates(), st.data())
def test_cost_is_as_defined(template, of, data):
    plan = data.draw(drawn_plans(template))
    found, expected = cost(template, plan, of), defined(template, plan, of)
    assert found.pass_on == pytest.approx(expected.pass_on)
    assert found.snapshots == pytest.approx(expected.snapshots)
    assert found.results == pytest.approx(expected.results)


def shared_middle(starts: str, middle: str, ends: str) -> Template:
    """Returns the template of a query for each start and end, which share a closure in the middle."""
    queries = {f"q{a}{b}": a + middle + b for a in starts for b in ends}
    return sequences(queries, dict.fromkeys(queries, (middle[-1] + middle[0],)))


#: Queries that come from other nodes, start or join at those of a closure.
STARTING = sequences(
    {"q1": "AKLX", "q2": "KLX", "q3": "BKLY", "q4": "KLY", "q5": "LX", "q6": "LY"},
    dict.fromkeys(("q1", "q2", "q3", "q4"), ("LK",)),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "of"),
    [
        (sequences({"q1": "FABCD", "q2": "ABCD", "q3": "ECD"}), dict(A=3, B=5, C=64, D=32, E=3, F=5)),
        (shared_middle("ABC", "KLM", "XYZ"), dict(A=2, B=2, C=2, K=4, L=20, M=20, X=5, Y=5, Z=5)),
        (shared_middle("ABCD", "KL", "XY"), dict(A=1, B=1, C=1, D=1, K=2, L=30, X=3, Y=3)),
        (Q3, dict(A=4, B=6, C=30, D=30, G=5)),
        (STARTING, dict(A=3, B=3, K=15, L=25, X=10, Y=10)),
    ],
)
def test_cost_is_near_that_of_the_operations(template, of):
    """In the mean of 40 windows: within 5 % without sharing, within a tenth with it."""
    drawn, found = random.Random(7), rates(template, **of)
    plans = unshared(template), lightest(template, found)
    measured = [0.0, 0.0]
    for _ in range(40):
        events = []
        for n in range(len(template.nodes)):
            events += [n] * round(found.events[n] * drawn.uniform(0.5, 1.5))
        drawn.shuffle(events)
        windows = [Window(template, plan) for plan in plans]
        for n in events:
            for window in windows:
                window.push(n, (n,))
        assert windows[0].close() == windows[1].close()
        measured = [m + window.operations / 40 for m, window in zip(measured, windows)]
    alone, shared = (cost(template, plan, found).total for plan in plans)
    assert measured[0] == pytest.approx(alone, rel=0.05)
    assert measured[1] == pytest.approx(shared, rel=0.1)
    assert measured[1] < measured[0]
    assert shared < alone


def test_nodes_are_dead_until_something_comes():
    made = sequences({"q": "ABC"})
    dead = costs.Liveness(made, rates(made, A=0, B=50, C=50))
    assert dead.some(1) == ([1.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert dead.final.tolist() == [[0.0, 0.0, 0.0]]
    often = costs.Liveness(made, rates(made, A=100, B=100, C=100))
    assert often.final.min() > 0.99
    assert 1 > often.some(1)[1][0] > often.some(1)[1][1] > often.some(1)[1][2] > 0.8
    rare = costs.Liveness(made, rates(made, A=1, B=1, C=1))
    come, mean = rare.some(1)
    # one event or more of A by the end; and by a time evenly drawn
    assert rare.final[0, 0] == pytest.approx(1 - math.exp(-1))
    assert mean[0] == pytest.approx(math.exp(-1), rel=0.01)
    assert come[1] == pytest.approx(mean[0], rel=0.1)


def test_a_set_is_live_if_one_of_its_queries_is():
    # Before: if the first one was. A set whose first query never begins had no snapshots and cost nothing.
    made = sequences({"q0": "AC", "q1": "BC", "q2": "BC"})
    live = costs.Liveness(made, rates(made, A=0, B=1, C=50))
    c = [str(n) for n in made.nodes].index("C")
    assert live.some(0b001)[0][c] == 0
    assert live.some(0b011)[0][c] == pytest.approx(live.some(0b010)[0][c])
    assert live.some(0b110)[0][c] == pytest.approx(live.some(0b010)[0][c])  # they begin with the same events
    equal = costs.Liveness(made, rates(made, A=1, B=1, C=50))
    one, both = equal.some(0b001)[0][c], equal.some(0b011)[0][c]
    assert both == pytest.approx(1 - (1 - one) ** 2)
    of = costs.SetCosts(made, rates(made, A=0, B=1, C=50), costs.FITTED)
    assert of.of(0b011, 1 << c).snapshots > 0.3


def test_a_query_alone_costs_little_while_nothing_has_come():
    made = sequences({"q": "ABC"})
    dead, live = (cost(made, unshared(made), rates(made, A=a, B=500, C=500), costs.FITTED) for a in (0, 20))
    assert dead.pass_on == 1000 * costs.FITTED.visit
    assert live.pass_on > 4 * dead.pass_on


def test_a_record_has_the_numbers_of_its_queries():
    made = sequences({"q1": "AB", "q2": "AB", "q3": "AB"})
    paths = [replace(p, sums=frozenset(of)) for p, of in zip(made.queries, ("xy", "xy", "z"))]
    made = replace(made, queries=tuple(paths))
    of = costs.SetCosts(made, rates(made, A=1, B=1), costs.FITTED)
    assert [of.numbers(queries) for queries in (0b1, 0b11, 0b111)] == [(3, 3), (3, 6), (4, 8)]
    alike, other = (of.whole(queries, 0b11).total for queries in (0b011, 0b101))
    assert alike < other


def test_a_set_is_kept_where_it_is_clearly_lighter(monkeypatch: pytest.MonkeyPatch):
    """Queries that begin alike are counted together; one event of each type is not worth it; nor is a set for two."""
    monkeypatch.setattr(costs, "WEIGHTS", costs.FITTED)
    made = sequences({f"q{i}": "ABC" + end for i, end in enumerate("DEFGHI")})
    often = rates(made, A=20, B=20, C=20, **dict.fromkeys("DEFGHI", 1))
    assert "q0 q1 q2 q3 q4 q5: A B C" in written(made, chosen(made, often))
    apart = sequences({f"q{i}": start + "BC" for i, start in enumerate("DEFGHI")})
    few = rates(apart, B=1, C=1, **dict.fromkeys("DEFGHI", 1))
    assert chosen(apart, few) == unshared(apart)
    found = costs.SetCosts(made, often)
    alone = [f"q{i}: A B C" for i in range(2, 6)] + [f"q{i}: {end}" for i, end in enumerate("DEFGHI")]
    both = plan_of(made, "q0 q1: A B C", *alone)
    assert worthwhile(found, unshared(made)) == unshared(made)
    assert (worthwhile(found, both) == unshared(made)) == (
        found.whole(0b11, 0b111).total > WORTH_SHARING * 2 * found.whole(0b1, 0b111).total
    )
