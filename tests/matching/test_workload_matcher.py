"""Queries that are counted together have the rows that each has on its own, by whatever sharing plan."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.matcher import make_matcher
from matching.workload.plan import SharedSet, SharingPlan, unshared
from matching.workload.program import shareable, workload_key
from matching.workload.sharing_mode import Splitting
from matching.workload.template import Template, template
from matching.workload_matcher import WorkloadMatcher
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import fewer
from tests.trends import EVENTS, MEASURES, Row, expected, plan_of, read_rows, row, rows_of, statement

pytestmark = pytest.mark.slow  # its kernels take half a minute to compile

PATTERNS = (
    "A+ B", "A B+ C", "(A B)+ C", "A (B C)+ D", "D (B C)+", "A (B|C)+ D", "(A (B C)+)+ D", "B+", "C B+ D", "A? B+",
    "A B* C", "A+ (B C+)+ D", "(A|D) (B C)+ A",
)  # fmt: skip
COLUMNS = ("COUNT(MATCHES) AS n", "COUNT(MATCHES) AS n, COUNT(*) AS c, SUM(v) AS s, MIN(d) AS ld, SUM(d) AS sd")


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Plan]:
    """One to four queries with the same windows and keys."""
    within, slide = draw(st.sampled_from([(4, 4), (6, 2), (5, 3), (20, 20)]))
    group = draw(st.sampled_from(["", "g"]))
    plans = {}
    for i in range(draw(st.integers(1, 4))):
        pattern = draw(st.sampled_from(PATTERNS))
        bounds = {v: draw(st.sampled_from(["", "v > 0", "v < 2", "v > -2"])) for v in "ABCD" if v in pattern}
        conditions = "; ".join(f"{v}: {bound}" for v, bound in bounds.items() if bound)
        measures = draw(st.sampled_from([*COLUMNS, *([MEASURES] if "A" in pattern else [])]))
        text = statement(pattern, within, slide, partition="g", group=group, conditions=conditions, measures=measures)
        plans[f"q{i}"] = plan_of(text)
    return plans


@st.composite
def sharing_plans(draw: st.DrawFn, of: Template) -> SharingPlan:
    """Any partition of queries and nodes into sets, whether it is a good one or not."""
    left = {(q, n) for q, path in enumerate(of.queries) for n in path.labels}
    sets = []
    while left:
        q, n = draw(st.sampled_from(sorted(left)))
        others = sorted({x for x, m in left if m == n and x != q})
        queries = sorted({q, *(x for x in others if draw(st.booleans()))})
        more = sorted({m for _, m in left if m != n and all((x, m) in left for x in queries)})
        nodes = sorted({n, *(m for m in more if draw(st.booleans()))})
        sets.append(SharedSet(tuple(queries), tuple(nodes)))
        left -= {(x, m) for x in queries for m in nodes}
    return SharingPlan(tuple(sets))


@st.composite
def streams(draw: st.DrawFn, most: int = 40) -> list[Row]:
    types, ts, events = draw(st.sampled_from(["ABCD", "BC", "ABBBCCCD"])), 0.0, []
    for _ in range(draw(st.integers(1, most))):
        ts += draw(st.sampled_from([0, 0.2, 0.2, 0.5, 1]))
        value = draw(st.sampled_from([None, 0.5, 1.5, -2.0]))
        events.append(row(draw(st.sampled_from(types)), ts, draw(st.integers(-3, 5)), draw(st.sampled_from("xy")),
                          d=value))  # fmt: skip
    return events


def counted(
    plans: dict[str, Plan], sharing: SharingPlan | None, events: list[Row], size: int = 1000,
    splitting: Splitting = Splitting.BY_SNAPSHOTS, restored: bool = False,
) -> dict[str, list[tuple[Any, ...]]]:  # fmt: skip
    """Returns the rows of each query. size: events of a batch; restored: goes on in a new matcher in the middle."""
    matcher = WorkloadMatcher(plans, sharing, splitting=splitting)
    found: dict[str, list[Matches]] = {name: [] for name in plans}
    for begin in range(0, len(events), size):
        for name, matches in matcher.push(batch_of(EVENTS, events[begin : begin + size], begin)).items():
            found[name].append(matches)
        if restored and begin <= len(events) / 2 < begin + size:
            new = WorkloadMatcher(plans, sharing, splitting=splitting)
            new.restore(matcher.snapshot())
            matcher = new
    for name, matches in matcher.advance(None).items():
        found[name].append(matches)
    return {name: rows_of(plan, found[name]) for name, plan in plans.items()}


@fewer(2)
@given(st.data())
def test_any_sharing_plan_gives_the_rows_of_the_reference(data: st.DataObject) -> None:
    plans = data.draw(workloads())
    sharing = data.draw(sharing_plans(template(plans)))
    events = data.draw(streams())
    size, restored = data.draw(st.tuples(st.integers(1, 50), st.booleans()))
    splitting = data.draw(st.sampled_from(Splitting))
    found = counted(plans, sharing, events, size, splitting, restored)
    assert found == {name: expected(plan, events) for name, plan in plans.items()}


@fewer(2)
@given(st.data())
def test_a_workload_changes_while_it_runs(data: st.DataObject) -> None:
    """Queries come and go, and plans change, in the middle of windows: the rows of each are those of its events."""
    everything = data.draw(workloads())
    events = data.draw(streams())
    cuts = sorted(data.draw(st.sets(st.integers(0, len(events)), max_size=4)) | {0, len(events)})
    names, since = list(everything), dict.fromkeys(everything, 0)
    matcher: WorkloadMatcher | None = None
    found: dict[str, list[Matches]] = {name: [] for name in everything}
    for begin, end in pairwise(cuts):
        now = {name: everything[name] for name in data.draw(st.permutations(names))}
        for name in names:
            if len(now) > 1 and data.draw(st.integers(0, 3)) == 0:
                now.pop(name)
        sharing = data.draw(st.none() | sharing_plans(template(now)))
        splitting = data.draw(st.sampled_from(Splitting))
        if matcher is None:
            matcher = WorkloadMatcher(now, sharing, splitting=splitting)
        else:
            gone = [name for name in matcher.plans if name not in now]
            came = [name for name in now if name not in matcher.plans]
            for name in gone:
                found[name] = []
            for name in came:
                since[name], found[name] = begin, []
            matcher.change(now, sharing, splitting)
        for name, matches in matcher.push(batch_of(EVENTS, events[begin:end], begin)).items():
            found[name].append(matches)
    assert matcher is not None
    for name, matches in matcher.advance(None).items():
        found[name].append(matches)
        plan = everything[name]
        assert rows_of(plan, found[name]) == expected(plan, events[since[name] :]), name


def alone(plan: Plan, events: list[Row]) -> list[tuple[Any, ...]]:
    """Returns the rows of a query in an engine of its own."""
    matcher = make_matcher(plan)
    return rows_of(plan, [matcher.push(batch_of(EVENTS, events)), matcher.advance(None)])


def many(count: int, seed: int) -> list[Row]:
    random = np.random.default_rng(seed)
    return [row(random.choice(list("ABBBBCCCD")), i / 10, int(random.integers(-3, 5)), "x") for i in range(count)]


@pytest.mark.parametrize("splitting", Splitting)
@pytest.mark.parametrize("seed", range(3))
def test_counts_of_any_size_are_equal_in_all_plans(seed: int, splitting: Splitting) -> None:
    """Numbers of some hundred bits are multiplied, and wide ones meet narrow ones."""
    patterns = ("A (B C)+ D", "D (B C)+ A", "A+ (B C)+ D", "C (B C)+ D")
    measures = "COUNT(MATCHES) AS n, COUNT(*) AS c, SUM(v) AS s, MIN(v) AS lo"
    plans = {
        f"q{i}": plan_of(statement(p, 50, 25, measures=measures, conditions="C: v > -2" if i == 2 else ""))
        for i, p in enumerate(patterns)
    }
    events = many(700, seed)
    of = template(plans)
    loop = [n for n, node in enumerate(of.nodes) if node.type in "BC" and node.place == 0]
    sets = [SharedSet((0, 1, 2), tuple(loop[:2]))]
    shared = {(q, n) for q in (0, 1, 2) for n in loop[:2]}
    for q, path in enumerate(of.queries):
        own = tuple(sorted(n for n in path.labels if (q, n) not in shared))
        sets.append(SharedSet((q,), own))
    want = {name: alone(plan, events) for name, plan in plans.items()}
    assert max(int(n) for _, _, n, *_ in want["q2"]) > 2**100
    assert counted(plans, SharingPlan(tuple(sets)), events, 90, splitting) == want
    assert counted(plans, unshared(of), events) == want


def test_the_start_is_a_snapshot_of_its_own() -> None:
    """Queries that begin alike are counted once: no snapshot is made, however many there are."""
    patterns = ("A (B C)+ D", "A (B C)+ A", "A (B C)+")
    plans = {f"q{i}": plan_of(statement(p, 100, 100, measures=COLUMNS[0])) for i, p in enumerate(patterns)}
    of = template(plans)
    first = tuple(n for n in range(len(of.nodes)) if all(n in path.labels for path in of.queries))
    rest = [SharedSet((q,), tuple(sorted(set(p.labels) - set(first)))) for q, p in enumerate(of.queries)]
    sharing = SharingPlan((SharedSet((0, 1, 2), first), *(s for s in rest if s.nodes)))
    matcher = WorkloadMatcher(plans, sharing)
    events = many(80, 5)
    matcher.push(batch_of(EVENTS, events))
    assert len(first) == 3
    assert matcher.engine.snapshots == 0
    assert counted(plans, sharing, events) == {name: alone(plan, events) for name, plan in plans.items()}


def test_a_set_with_more_snapshots_than_queries_splits() -> None:
    plans = {f: plan_of(statement(f"{f} (B C)+", 1000, 1000, measures=COLUMNS[0])) for f in "AD"}
    of = template(plans)
    loop = tuple(n for n in range(len(of.nodes)) if all(n in path.labels for path in of.queries))
    own = [SharedSet((q,), tuple(sorted(set(p.labels) - set(loop)))) for q, p in enumerate(of.queries)]
    sharing = SharingPlan((SharedSet((0, 1), loop), *own))
    events = read_rows(" ".join(f"{'AD'[i % 2]}@{3 * i} B@{3 * i + 1} C@{3 * i + 2}" for i in range(40)))
    made = {}
    for splitting in (Splitting.BY_SNAPSHOTS, Splitting.NEVER):
        matcher = WorkloadMatcher(plans, sharing, splitting=splitting)
        matcher.push(batch_of(EVENTS, events))
        made[splitting] = matcher.engine.snapshots
        assert counted(plans, sharing, events, splitting=splitting) == {n: alone(p, events) for n, p in plans.items()}
    assert made == {Splitting.BY_SNAPSHOTS: 3, Splitting.NEVER: 40}


def test_queries_that_cannot_be_counted_together() -> None:
    def why(text: str) -> str | None:
        return shareable(plan_of(text))

    assert why(statement("A (NOT C) B", 4, 4)) == "its pattern has a negation"
    assert why(statement("A B", 4, 4, conditions="B: v > LAST(A.v)")) == "a condition links two events"
    assert why(statement("A B", 4, 4, selection="SELECTION SKIP TILL NEXT MATCH")) == (
        "its selection is SKIP TILL NEXT MATCH"
    )
    assert why(statement("A B", 4, 4)) is None
    # Before: an AssertionError when it was counted.
    assert why(statement("(A B)+", 4, 4).replace("type = 'A'", "v > 0").replace("type = 'B'", "v > 1")) == (
        "the same event may fulfil several variables of a loop"
    )
    keys = [workload_key(plan_of(statement("A B", 4, slide))) for slide in (4, 2, 4)]
    assert keys[0] == keys[2] != keys[1]
