"""Sharing plans: matching/workload/plan.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from matching.workload.plan import passes_on, snapshot_nodes, unshared
from matching.workload.template import START, Template, template
from tests.matching.workload.executed import Window
from tests.matching.workload.workloads import (
    QA,
    QB,
    QC,
    drawn_plans,
    drawn_templates,
    plan_of,
    planned,
    sequences,
    written,
)

Q3 = sequences({"q2": "ABCD", "q4": "BCDG"})


def test_unshared_has_a_set_for_each_query():
    plan = unshared(Q3)
    assert written(Q3, plan) == {"q2: A B C D", "q4: B C D G"}
    assert [snapshot_nodes(Q3, s) for s in plan.sets] == [(), ()]
    assert plan.set_of() == {(0, 0): 0, (0, 1): 0, (0, 2): 0, (0, 3): 0, (1, 1): 1, (1, 2): 1, (1, 3): 1, (1, 4): 1}


def test_snapshots_where_queries_come_from_different_nodes():
    plan = plan_of(Q3, "q2: A", "q2 q4: B C D", "q4: G")
    a, both, g = plan.sets
    assert not snapshot_nodes(Q3, a)  # the start
    assert snapshot_nodes(Q3, both) == (1,)  # B: after A, and the start
    assert passes_on(Q3, both, 2)
    assert passes_on(Q3, both, 3)
    assert snapshot_nodes(Q3, g) == (4,)  # all of its events: D is in another set
    text = plan.show(Q3)
    assert text.splitlines()[1].strip() == "q2, q4: B, C, D; snapshots at B"
    assert text.splitlines()[0] == "plan        q2: A; snapshots at the start"


def test_snapshots_at_the_entry_of_a_closure():
    made = template({"qa": planned(QA), "qb": planned(QB), "qc": planned(QC)})
    sets = ("qa qb qc: AppOrder", "qa: WebOrder", "qa qb qc: Request Pickup Travel", "qa qb: Dropoff", "qc: Cancel")
    plan = plan_of(made, *sets)
    at = {" ".join(str(made.nodes[n]) for n in snapshot_nodes(made, s)) for s in plan.sets}
    assert at == {"", "Request", "Dropoff", "Cancel"}
    apart = plan_of(made, "qa qb qc: AppOrder", "qa: WebOrder", "qa qb qc: Request", "qa qb qc: Pickup Travel",
                    "qa qb: Dropoff", "qc: Cancel")  # fmt: skip
    at = {" ".join(str(made.nodes[n]) for n in snapshot_nodes(made, s)) for s in apart.sets}
    assert at == {"", "Request", "Pickup", "Dropoff", "Cancel"}  # those that go round, Travel -> Pickup, too


def trends(template: Template, events: Sequence[tuple[int, set[int]]]) -> list[int]:
    """Returns the number of trends of each query, found one by one."""
    found = []
    for path in template.queries:
        count = 0
        for size in range(1, len(events) + 1):
            for chosen in combinations(events, size):
                at = [START, *(n for n, _ in chosen)]
                fits = all(path.labels.get(n) in labels for n, labels in chosen)
                count += fits and at[-1] in path.last and all(edge in path.edges for edge in pairwise(at))
        found.append(count)
    return found


@given(drawn_templates(), st.data())
def test_plans_count_the_trends(template, data):
    """Any plan, on streams of up to seven events, which fulfil one to three conditions of their type."""
    nodes = st.integers(0, len(template.nodes) - 1)
    drawn = data.draw(st.lists(st.tuples(nodes, st.integers(1, 3)), max_size=7))
    events = [(n, {3 * n + i for i in range(level)}) for n, level in drawn]
    plans = unshared(template), data.draw(drawn_plans(template))
    windows = [Window(template, plan) for plan in plans]
    for n, labels in events:
        for window in windows:
            window.push(n, labels)
    alone, shared = (window.close() for window in windows)
    assert alone == shared == trends(template, events)
