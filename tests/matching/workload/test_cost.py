"""Costs of sharing plans: matching/workload/cost.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.workload import cost as costs
from matching.workload.cost import Cost, EventRates, cost, show_cost, show_rates, some_and_all
from matching.workload.graph import lightest
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
    # B makes the one column, of 3 records; q4 starts there; C and D, 4 events, meet it; so does G, which reads.
    both = Cost(pass_on=5 + 4, snapshots=3 + 1 + (1 + 2), results=3)
    g = Cost(pass_on=1, snapshots=1, results=3)
    assert cost(Q3, plan, STREAM) == a + both + g
    assert (a + both + g).total == 32
    assert show_cost(Q3, plan, STREAM) == (
        "cost        32.0 (14.0 passed on, 12.0 snapshots, 6.0 results); "
        "unshared 40.0 (26.0 passed on, 8.0 snapshots, 6.0 results)"
    )


def test_columns_grow_with_snapshots():
    """More Bs: more columns for each C and D, while the unshared cost grows by the Bs alone."""
    plan = plan_of(Q3, "q2: A", "q2 q4: B C D", "q4: G")
    few, many = (rates(Q3, A=2, B=b, C=20, D=20, G=1) for b in (1, 30))
    assert cost(Q3, plan, few).total < cost(Q3, unshared(Q3), few).total
    assert cost(Q3, plan, many).total > cost(Q3, unshared(Q3), many).total


def test_snapshots_in_a_row_are_one_column():
    made = sequences({"q1": "AB", "q2": "CB"})
    plan = plan_of(made, "q1: A", "q2: C", "q1 q2: B")
    found = cost(made, plan, rates(made, A=1, B=10, C=1))
    # B: 10 events, all snapshots, one column: a record; a value for each query and event; two results of one column.
    assert found.results == 2 * 3
    assert found.snapshots == (1 + 1) + 2 * 10 * 3 + 1


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
    made_columns = 4 - 4 * 3 / 11
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


def defined(template: Template, plan: SharingPlan, of: EventRates) -> Cost:
    """Returns the cost as the documentation words it, set by set and query by query."""
    at = plan.set_of()
    start, made, takes, passed = [], [], [], []
    for s in plan.sets:
        column, snapshots, every, follow = 0, 0.0, 0.0, 0.0
        for n in s.nodes:
            labels = [template.queries[q].labels[n] for q in s.queries]
            some, agreed = some_and_all(template.conditions, of, set(labels))
            on = passes_on(template, plan, s, n)
            column = max(column, int(on and START in template.queries[s.queries[0]].before(n)))
            makes = some - agreed if on else some
            every, snapshots, follow = every + some, snapshots + makes, follow + makes * max(0.0, makes - 1)
            takes.append(((s, n), some))
            passed.append(((s, n), agreed if on else 0.0))
        start.append(column)
        made.append(snapshots - (follow / every if every else 0))
    mean = [max(1.0, c + m / 2) for c, m in zip(start, made)]
    final = [max(1.0, c + m) for c, m in zip(start, made)]
    on_time, lay, values, results = 0.0, 0.0, 0.0, 0.0
    taken, agreeing = dict(takes), dict(passed)
    for i, s in enumerate(plan.sets):
        lay += len(s.nodes) * final[i]
        for n in s.nodes:
            before = template.queries[s.queries[0]].before(n)
            on_time += taken[s, n] * costs.EVENT
            on_time += agreeing[s, n] * sum(1 if p == START else mean[i] for p in before)
            for q in s.queries:
                path = template.queries[q]
                for p in path.before(n):
                    columns = 0.0 if p == START else mean[at[q, p]]
                    values += (of.events[path.labels[n]] - agreeing[s, n]) * (1 + costs.MULTIPLICATION * columns)
                if n in path.last:
                    results += 1 + costs.MULTIPLICATION * final[i]
    return Cost(on_time, lay + values, results)


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


@pytest.mark.parametrize(
    ("template", "of"),
    [
        (sequences({"q1": "FABCD", "q2": "ABCD", "q3": "ECD"}), dict(A=3, B=5, C=64, D=32, E=3, F=5)),
        (shared_middle("ABC", "KLM", "XYZ"), dict(A=2, B=2, C=2, K=4, L=20, M=20, X=5, Y=5, Z=5)),
        (shared_middle("ABCD", "KL", "XY"), dict(A=1, B=1, C=1, D=1, K=2, L=30, X=3, Y=3)),
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
