"""The choice of sharing plans: matching/workload/graph.py."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings

from matching.workload.cost import EventRates, cost
from matching.workload.graph import WIDTH, Graph, chosen, draw, lightest, moved, sharing_graph, show, update
from matching.workload.plan import SharingPlan, unshared
from matching.workload.template import START, QueryPath, Template, bits, template
from tests.matching.workload.workloads import (
    QA,
    QB,
    QC,
    QE,
    drawn_rates,
    drawn_templates,
    plan_of,
    planned,
    rates,
    sequences,
    written,
)

#: The workloads of [SHARING] as far as its text gives them.
Q2 = sequences({"q1": "FABCD", "q2": "ABCD", "q3": "ECD", "q4": "BCDG"})
Q3 = sequences({"q2": "ABCD", "q4": "BCDG"})
Q4 = sequences({"q1": "FABCD", "q2": "ABCD", "q3": "ECD"})
Q6 = sequences({"q9": "ABCD", "q10": "FABCD"}, {"q9": ("CB", "DA"), "q10": ("CB", "DA")})


def total(template: Template, plan: SharingPlan, of: EventRates) -> float:
    return cost(template, plan, of).total


def is_partition(template: Template, plan: SharingPlan) -> bool:
    """True if each (query, node) is in one set, and each query has all nodes of its sets."""
    cells = [(q, n) for s in plan.sets for q in s.queries for n in s.nodes]
    return sorted(cells) == sorted((q, n) for q, path in enumerate(template.queries) for n in path.labels)


def one_choice(template: Template, plan: SharingPlan) -> bool:
    """True if each query has all its nodes of a strongly connected part in one set."""
    at = plan.set_of()
    return all(
        len({at[q, n] for n in bits(part.nodes) if n in path.labels}) <= 1
        for part in template.parts
        for q, path in enumerate(template.queries)
    )


# Parts


def test_parts_are_in_order_and_closures_are_one():
    made = template({"qa": planned(QA), "qb": planned(QB), "qc": planned(QC)})
    names = [{str(made.nodes[n]) for n in bits(part.nodes)} for part in made.parts]
    assert names.index({"Request"}) > max(names.index({"AppOrder"}), names.index({"WebOrder"}))
    assert names.index({"Pickup", "Travel"}) == names.index({"Request"}) + 1
    assert names[-2:] == [{"Dropoff"}, {"Cancel"}]


def test_a_nested_closure_is_one_part():
    assert [sorted(str(Q6.nodes[n]) for n in bits(part.nodes)) for part in Q6.parts] == [["F"], ["A", "B", "C", "D"]]


def test_parts_of_queries_that_share_nothing_are_together():
    made = sequences({"q1": "ACE", "q2": "BDF"})
    assert "".join(str(made.nodes[n]) for part in made.parts for n in bits(part.nodes)) == "ACEBDF"


@pytest.mark.slow
@settings(max_examples=100)
@given(drawn_templates())
def test_edges_go_to_the_same_part_or_a_later_one(template):
    number = {n: k for k, part in enumerate(template.parts) for n in bits(part.nodes)}
    assert sorted(number) == list(range(len(template.nodes)))
    assert all(number[a] <= number[b] for a, b in template.transitions if a != START)
    for part in template.parts:
        for groups in (part.shapes, part.labelled, part.alike, part.onward, part.rest):
            assert sum(queries for queries, _ in groups) == part.queries


# Worked examples


def test_q3_shares_from_b():
    """Equation (2)'s example: q4 starts at B, where q2 has come from A."""
    of = rates(Q3, A=2, B=1, C=20, D=20, G=1)
    assert written(Q3, lightest(Q3, of)) == {"q2: A", "q2 q4: B C D", "q4: G"}


def test_q3_without_sharing_where_snapshots_are_many():
    of = rates(Q3, A=40, B=40, C=20, D=20, G=20)  # A and B in turn: a gate for every other B
    assert written(Q3, lightest(Q3, of)) == {"q2: A B C D", "q4: B C D G"}


def test_q4_shares_what_differs_before():
    """EventRates of the text (3.2.2), with C and D eight times as many, and B and E frequent, for which C would have a
    gate as often: the prefixes F, A and E stay apart."""
    of = rates(Q4, A=3, B=20, C=64, D=32, E=30, F=5)
    graph = sharing_graph(Q4, of)
    assert written(Q4, graph.plan) == {"q1: F", "q1 q2: A B C D", "q3: C D E"}
    # A is shared by its gates all the way, at most 3, not renewed at B with 20 events: the text prunes n5 so.
    assert cost(Q4, graph.plan, of).total < total(Q4, plan_of(Q4, "q1: F", "q1 q2: A", "q1 q2: B C D", "q3: E C D"), of)


def test_q2_shares_most_where_queries_are_many():
    """Each of the four queries ten times with another end: they share the middle, whatever comes before."""
    names = {"a": "FABCD", "b": "ABCD", "c": "ECD", "d": "BCD"}
    made = sequences({f"{name}{i}": text + "GHIJKLMNOP"[i] for name, text in names.items() for i in range(10)})
    of = rates(made, A=1, B=1, C=1, D=60, E=1, F=1, **dict.fromkeys("GHIJKLMNOP", 1))
    sharing = [len(s.queries) for s in lightest(made, of).sets if any(str(made.nodes[n]) == "D" for n in s.nodes)]
    assert sharing == [40]


def test_q5_makes_nodes_by_three_rules():
    """The cases 1 to 3 of 3.2.1: from (5,6) E, (7,8) F to J; and case 2 of both sets, where each of these gains."""
    made = sequences({"q5": "AEJK", "q6": "BEJK", "q7": "CFJK", "q8": "DFJK"})
    graph = sharing_graph(made, rates(made, A=3, B=3, C=3, D=3, E=9, F=8, J=2, K=50), prune=False, width=None)
    e, f, j = (1 << [str(n) for n in made.nodes].index(name) for name in "EFJ")
    (before,) = (i for i, node in enumerate(graph.nodes) if node.sets == ((0b11, e), (0b1100, f)))
    edges = [edge for node in graph.nodes for edge in node.edges if edge.source == before]
    ways = {(e.rule, *sorted([*(s for _, s in e.inherited), *e.new])) for e in edges}
    assert ways == {
        ("inherit", (0b11, e | j), (0b1100, f | j)),
        ("renew", (0b11, e | j), (0b1100, j)),
        ("renew", (0b11, j), (0b1100, f | j)),
        ("renew", (0b11, j), (0b1100, j)),
        ("merge", (0b1111, j)),
    }
    assert "q5 q6 q7 q8: J K" in written(made, graph.plan)


def test_q6_takes_a_closure_round_as_one():
    """The nested closure: q9 starts in it, q10 comes from F; snapshots where they enter, at A, for all four types."""
    of = rates(Q6, A=1, B=50, C=50, D=20, F=2)
    plan = lightest(Q6, of)
    assert written(Q6, plan) == {"q10: F", "q9 q10: A B C D"}
    of = rates(Q6, A=30, B=5, C=3, D=15, F=2)  # two Fs change what comes to A from elsewhere: three gates at most
    assert written(Q6, lightest(Q6, of)) == {"q10: F", "q9 q10: A B C D"}
    of = rates(Q6, A=30, B=5, C=3, D=15, F=30)
    assert written(Q6, lightest(Q6, of)) == {"q9: A B C D", "q10: A B C D F"}


def test_q6_with_equal_starts_needs_no_snapshots():
    made = sequences({"q9": "ABCDE", "q10": "ABCDF"}, {"q9": ("CB", "DA"), "q10": ("CB", "DA")})
    plan = lightest(made, rates(made, A=10, B=5, C=3, D=15, E=1, F=1))
    assert written(made, plan) == {"q9 q10: A B C D", "q9: E", "q10: F"}


def test_delivery_shares_the_closure_where_few_orders_come():
    made = template({"qa": planned(QA), "qb": planned(QB), "qc": planned(QC)})
    of = dict.fromkeys(range(len(made.conditions)), 1.0)
    travel, slow = (made.queries[q].labels[[str(n) for n in made.nodes].index("Travel")] for q in (0, 2))
    of[travel], of[slow] = 40.0, 39.0
    plan = lightest(made, EventRates(tuple(of.values())))
    assert "qa qb qc: Request Pickup Travel" in written(made, plan)
    of[slow] = 4.0  # qc disagrees with the others on most of the events of Travel
    plan = lightest(made, EventRates(tuple(of.values())))
    assert not any("qc" in text and "qa" in text for text in written(made, plan) if "Travel" in text)


def delivery(texts: dict[str, str], **of: float) -> tuple[Template, EventRates]:
    """Returns the template of deliveries, and one event of each condition but of these types and of slow travels."""
    made = template({name: planned(text) for name, text in texts.items()})
    found = dict.fromkeys(range(len(made.conditions)), 1.0)
    for name, rate in of.items():
        node = [str(n) for n in made.nodes].index(name.removesuffix("_slow"))
        found[made.queries[2 if name.endswith("_slow") else 0].labels[node]] = rate
    return made, EventRates(tuple(found.values()))


def test_queries_begin_together_that_go_on_together():
    """qa has a start of its own. Before: those at the start were all together or alone."""
    texts = {"qa": QA, "qb": QB, "qc": QC, "qe": QE}
    made, of = delivery(texts, AppOrder=5.0, WebOrder=40.0, Request=8.0, Travel=40.0, Travel_slow=4.0)
    plan = lightest(made, of)
    assert {"qa qb qe: Pickup Travel", "qb qc qe: AppOrder Request"} <= written(made, plan)
    before = plan_of(
        made, "qa: WebOrder", "qa qb qc qe: AppOrder", "qa qb qc qe: Request", "qa qb qe: Pickup Travel",
        "qc: Pickup Travel", "qa qb: Dropoff", "qc qe: Cancel",
    )  # fmt: skip
    assert total(made, plan, of) < 0.95 * total(made, before, of)


def test_a_set_takes_a_part_along_with_gates():
    """Trends from rare X and Y open gates, and those from frequent A are passed on. Before: renewed at C."""
    made = sequences({"q1": "ACD", "q2": "ACD", "qx": "X", "qy": "Y"})
    a, c, d, x, y = (next(n for n, node in enumerate(made.nodes) if str(node) == name) for name in "ACDXY")

    def path(name: str, other: int) -> QueryPath:
        edges = {(START, a), (START, other), (a, c), (other, c), (c, d)}
        return QueryPath(name, {n: n for n in (a, c, d, other)}, frozenset(edges), frozenset({d}))

    made = Template(made.nodes, made.conditions, (path("q1", x), path("q2", y)), True)
    plan = lightest(made, rates(made, A=30, C=40, D=40, X=1, Y=1))
    assert written(made, plan) == {"q1 q2: A C D", "q1: X", "q2: Y"}


def test_snapshots_are_renewed_at_a_rarer_type():
    made = sequences({f"q{i}": "DEFGHIJK"[i] + "ABC" for i in range(8)})
    of = rates(made, A=60, B=1, C=100, **dict.fromkeys("DEFGHIJK", 1))
    assert "q0 q1 q2 q3 q4 q5 q6 q7: B C" in written(made, lightest(made, of))


def test_two_starts_of_one_query_are_one_set():
    """Without it, a query that begins with A or B could not be without sharing."""
    made = sequences({"q": "ABC"}, {"q": ("AC",)})
    path = made.queries[0]
    edges = frozenset({(START, 0), (START, 1), (0, 2), (1, 2)})
    made = Template(made.nodes, made.conditions, (type(path)(path.name, path.labels, edges, path.last),), True)
    assert written(made, lightest(made, rates(made, A=5, B=5, C=50))) == {"q: A B C"}


# Properties


def paths(graph: Graph) -> Iterator[tuple[float, SharingPlan]]:
    """Yields the weight and the plan of each path of a graph."""
    ends = [i for i, node in enumerate(graph.nodes) if node.part == len(graph.parts) - 1]

    def back(at: int) -> Iterator[tuple[float, frozenset[tuple[int, int]]]]:
        if not graph.nodes[at].edges:
            yield 0.0, frozenset()
        for edge in graph.nodes[at].edges:
            for weight, sets in back(edge.source):
                after = (sets - {s for s, _ in edge.inherited}) | {s for _, s in edge.inherited} | set(edge.new)
                yield weight + edge.weight, after

    for end in ends:
        for weight, sets in back(end):
            texts = [
                f"{' '.join(graph.template.queries[q].name for q in bits(queries))}: "
                f"{' '.join(str(graph.template.nodes[n]) for n in bits(nodes))}"
                for queries, nodes in sets
            ]
            yield weight, plan_of(graph.template, *texts)


def count_paths(graph: Graph) -> int:
    ways: list[int] = []
    for node in graph.nodes:
        ways.append(sum(ways[e.source] for e in node.edges) if node.edges else 1)
    return sum(w for w, node in zip(ways, graph.nodes) if node.part == len(graph.parts) - 1)


@pytest.mark.slow
@given(drawn_templates(), drawn_rates())
def test_pruning_keeps_the_lightest_path(template, of):
    pruned, full = (sharing_graph(template, of, prune, None) for prune in (True, False))
    assert total(template, pruned.plan, of) == pytest.approx(total(template, full.plan, of))
    assert len(pruned.nodes) <= len(full.nodes)


@pytest.mark.slow
@settings(max_examples=100)
@given(drawn_templates(4, 5), drawn_rates(5))
def test_plan_is_a_partition_with_one_choice_for_closures(template, of):
    plan = lightest(template, of)
    assert is_partition(template, plan)
    assert one_choice(template, plan)
    assert total(template, plan, of) <= total(template, unshared(template), of)


@pytest.mark.slow
@settings(max_examples=100)
@given(drawn_templates(3, 3), drawn_rates(3))
def test_lightest_path_is_the_lightest_of_all(template, of):
    """The weights of all paths are the costs of their plans, and none costs less."""
    full = sharing_graph(template, of, prune=False, width=None)
    assume(count_paths(full) <= 2000)
    best = None
    for weight, plan in paths(full):
        assert is_partition(template, plan)
        assert one_choice(template, plan)
        found = total(template, plan, of)
        assert weight == pytest.approx(found)
        best = found if best is None else min(best, found)
    for prune in (True, False):
        assert total(template, sharing_graph(template, of, prune, None).plan, of) == pytest.approx(best)


@pytest.mark.slow
@settings(max_examples=100)
@given(drawn_templates(3, 3), drawn_rates(3))
def test_no_sharing_is_a_path(template, of):
    full = sharing_graph(template, of, prune=False, width=None)
    assume(count_paths(full) <= 2000)
    distinct = {(q.edges, q.last, tuple(sorted(q.labels.items()))) for q in template.queries}
    plans = {plan for _, plan in paths(full)}
    assert unshared(template) in plans or len(distinct) < len(template.queries)


def test_a_narrow_graph_costs_no_more_than_no_sharing():
    made = sequences({f"q{i}": "DEFGHIJK"[i] + "ABC" for i in range(8)})
    of = rates(made, A=60, B=40, C=100, **dict.fromkeys("DEFGHIJK", 1))
    for width in (1, 2, 5):
        assert total(made, sharing_graph(made, of, width=width).plan, of) <= total(made, unshared(made), of)


def test_a_workload_of_120_queries():
    """Ten starts, a common middle with rare first events, twelve ends: twelve queries of a start share it, then ten
    of an end share the middle and the end."""
    names = {f"q{i}{j}": "ABCDEFGHIJ"[i] + "KLMNOP" + "QRSTUVWXYZab"[j] for i in range(10) for j in range(12)}
    made = sequences(names, dict.fromkeys(names, ("PN",)))
    of = EventRates(tuple(1.0 if str(n) in "ABCDEFGHIJK" else 20.0 for n in made.nodes))
    graph = sharing_graph(made, of)
    assert is_partition(made, graph.plan)
    assert one_choice(made, graph.plan)
    assert total(made, graph.plan, of) < total(made, unshared(made), of) / 8
    assert sorted(len(s.queries) for s in graph.plan.sets) == 12 * [10] + 10 * [12]


@pytest.mark.slow
def test_sequences_that_merge_late_are_found():
    # Before: 7,166 at this width, as the nodes kept were those that seem lightest if nothing is merged any more.
    drawn = random.Random(4)
    texts = [drawn.choice("ABCDEF") + "KLMN"[: drawn.choice((3, 4, 4))] + drawn.choice("STUVWX") for _ in range(120)]
    made = sequences({f"q{i}": text for i, text in enumerate(texts)})
    of = EventRates(tuple(drawn.choice((1.0, 3.0, 8.0, 20.0)) for _ in made.nodes))
    narrow, wide = (total(made, sharing_graph(made, of, width=width).plan, of) for width in (WIDTH, 64))
    assert narrow == pytest.approx(wide)
    assert wide == pytest.approx(5451, abs=1)


# Updates

MOVING = sequences({f"q{i}": "DEFGHIJK"[i] + "ABC" for i in range(8)})
STARTS = dict.fromkeys("DEFGHIJK", 1)


def test_update_keeps_the_plan_if_nothing_changed():
    of = rates(MOVING, A=1, B=60, C=100, **STARTS)
    plan = lightest(MOVING, of)
    assert update(MOVING, plan, of, of)[0] is plan
    # Followers more frequent, snapshots rarer, other types: none of these can change a plan.
    for other in (dict(A=1, B=90, C=200), dict(A=0.5, B=60, C=100)):
        found, why = update(MOVING, plan, of, rates(MOVING, **other, **STARTS))
        assert found is plan
        assert why == "unchanged: no snapshots have become more frequent than the events after them"
    found, why = update(MOVING, plan, of, of)
    assert why == "unchanged: the same rates"


def test_update_renews_snapshots_that_became_frequent():
    old, new = (rates(MOVING, A=a, B=b, C=100, **STARTS) for a, b in ((1, 60), (60, 1)))
    plan = lightest(MOVING, old)
    all_of = "q0 q1 q2 q3 q4 q5 q6 q7"
    assert f"{all_of}: A B C" in written(MOVING, plan)
    found, why = update(MOVING, plan, old, new)
    assert {f"{all_of}: A", f"{all_of}: B C"} <= written(MOVING, found)
    assert why.startswith("changed from B on: snapshots at A have become more frequent than B; cost ")
    assert total(MOVING, found, new) < total(MOVING, plan, new)


def test_update_renews_at_a_follower_that_became_rare():
    old, new = (rates(MOVING, A=5, B=b, C=100, **STARTS) for b in (60, 0.2))
    plan = lightest(MOVING, old)
    found, why = update(MOVING, plan, old, new)
    assert total(MOVING, found, new) < total(MOVING, plan, new)
    assert why.startswith("changed from B on: ")


def test_update_says_that_nothing_is_better():
    old, new = (rates(Q3, A=2, B=b, C=20, D=20, G=1) for b in (1, 1.5))
    plan = plan_of(Q3, "q2: A", "q2 q4: B C D", "q4: G")
    found, why = update(Q3, plan, old, new)
    assert found is plan
    assert why.startswith("unchanged: snapshots at B have become more frequent than G, but no plan costs less than ")


def test_update_does_not_change_a_plan_for_little():
    # Before: any plan that cost less; the records of all open windows were carried over for it.
    old = rates(MOVING, A=1, B=60, C=100, **STARTS)
    plan = lightest(MOVING, old)
    little, more = (rates(MOVING, A=10, B=b, C=100, **STARTS) for b in (3.75, 3))
    better = lightest(MOVING, little)
    assert 0.95 < total(MOVING, better, little) / total(MOVING, plan, little) < 0.99
    found, why = update(MOVING, plan, old, little)
    assert found is plan
    assert why.startswith("unchanged: snapshots at A have become more frequent than B, but a cost of ")
    assert why.endswith(" is not worth a change")
    found, why = update(MOVING, plan, old, more)
    assert total(MOVING, found, more) < 0.95 * total(MOVING, plan, more)
    assert why.startswith("changed from B on: ")


def test_update_begins_to_share_when_rates_move():
    # Before: where nothing was shared, nothing ever was, whatever the rates.
    old, new = (rates(MOVING, A=a, B=60, C=100, **dict.fromkeys("DEFGHIJK", a)) for a in (60, 1))
    assert chosen(MOVING, old) == unshared(MOVING)
    found, why = update(MOVING, unshared(MOVING), old, new)
    assert found == chosen(MOVING, new) != unshared(MOVING)
    assert why.startswith("changed: rates have moved; cost ")


def test_update_does_not_change_a_plan_that_does_not_pay_for_it():
    old, new = (rates(MOVING, A=a, B=b, C=100, **STARTS) for a, b in ((1, 60), (60, 1)))
    plan = lightest(MOVING, old)
    better, _ = update(MOVING, plan, old, new)
    gain = total(MOVING, plan, new) - total(MOVING, better, new)
    assert update(MOVING, plan, old, new, 0.99 * gain)[0] == better
    found, why = update(MOVING, plan, old, new, 1.01 * gain)
    assert found is plan
    assert why.endswith(" is not worth a change")


def test_rates_that_differ_by_chance_have_not_moved():
    def counted(events: float, windows: float, limbs: float = 1.0) -> EventRates:
        return EventRates((50.0, events), limbs, windows)

    assert not moved(counted(1.0, 10), counted(2.0, 10))  # ten events, and twenty
    assert moved(counted(1.0, 100), counted(2.0, 100))
    assert not moved(counted(1.0, 1e6), counted(1.2, 1e6))
    assert moved(counted(1.0, 1e6), counted(1.0, 1e6, 2.0))
    of = rates(Q3, A=2, B=1, C=20, D=20, G=1)
    plan = lightest(Q3, of)
    found, why = update(Q3, plan, of, rates(Q3, A=2.1, B=1, C=20, D=20, G=1))
    assert (found, why) == (plan, "unchanged: rates are nearly the same")


@pytest.mark.slow
@settings(max_examples=100)
@given(drawn_templates(4, 4), drawn_rates(4), drawn_rates(4))
def test_update_is_never_worse(template, old, new):
    plan = lightest(template, old)
    found, why = update(template, plan, old, new)
    assert is_partition(template, found)
    assert one_choice(template, found)
    if found is plan:
        assert why.startswith("unchanged: ")
    else:
        assert total(template, found, new) <= 0.95 * total(template, plan, new)


@pytest.mark.slow
@settings(max_examples=100)
@given(drawn_templates(4, 4), drawn_rates(4), drawn_rates(4))
def test_update_takes_any_plan(template, old, new):
    plan = unshared(template)
    found, _ = update(template, plan, old, new)
    assert is_partition(template, found)
    assert total(template, found, new) <= total(template, plan, new)


# Text and picture


def test_graph_is_shown():
    of = rates(Q3, A=2, B=1, C=20, D=20, G=1)
    graph = sharing_graph(Q3, of)
    text = show(graph)
    assert str(graph) == text
    lines = text.splitlines()
    assert lines[0] == "graph       A"
    assert [line.strip() for line in lines if ":" not in line and " more" not in line][1:] == ["B", "C", "D", "G"]
    chosen = [line.split("weighs")[1] for line in lines if line.strip().startswith("*")]
    assert len(chosen) == 5
    assert "(q2, q4) B; merge from" in chosen[1]
    assert "(q2, q4) B; inherit from" in chosen[2]
    last = float(chosen[-1].split(":")[0])
    assert last == pytest.approx(total(Q3, graph.plan, of), abs=0.05)


def test_large_graphs_are_shown_in_part():
    text = show(sharing_graph(MOVING, rates(MOVING, A=5, B=4, C=100, **STARTS)))
    assert "(q0, q1, q2, q3 and 4 more)" in text
    made = template({"qa": planned(QA), "qb": planned(QB), "qc": planned(QC)})
    graph = sharing_graph(made, EventRates((20.0, 10.0, 10.0, 3.0, 20.0, 3.0, 0.3, 18.0, 0.5)), prune=False)
    closure = next(k for k, part in enumerate(graph.parts) if part.nodes.bit_count() == 2)
    many = sum(node.part == closure for node in graph.nodes)
    lines = show(graph).splitlines()
    at = lines.index(f"{'':<12}Pickup, Travel")
    assert lines[at + 7] == f"{'':<14}{many - 6} more"


def test_picture_is_xml_with_the_path():
    of = rates(Q4, A=3, B=20, C=64, D=32, E=30, F=5)
    graph = sharing_graph(Q4, of, prune=False)
    picture = draw(graph)
    root = ET.fromstring(picture)
    name = "{http://www.w3.org/2000/svg}"
    bold = [r for r in root.iter(f"{name}rect") if r.get("stroke-width") == "3"]
    assert len(bold) == len(graph.path) == len(graph.parts) + 1
    assert len([r for r in root.iter(f"{name}line") if r.get("stroke-width") == "3"]) == len(graph.parts)
    assert "(q1, q2) A" in "".join(root.itertext())


def test_names_in_the_picture_are_escaped():
    made = sequences({"a<b&c": "AB", "d": "AC"})
    picture = draw(sharing_graph(made, rates(made, A=1, B=1, C=1)))
    assert "(a<b&c, d) start" in "".join(ET.fromstring(picture).itertext())
