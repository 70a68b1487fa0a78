"""Matches kept as a graph: decoded they are those of the reference, in part as in whole, and counted as many."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.engines.choose import choose_engine
from matching.engines.run_merged import RunMerged
from matching.match_graph import MatchGraph
from matching.program.program import Program
from matching.purpose import Purpose
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import Answer, answer_of, constant, drawn_until_told, program_of, reference_of
from tests.properties.test_counting import counted
from tests.properties.test_merging import reading
from tests.strategies import SCHEMA, Row, events

#: The reference takes minutes for an example of many more matches; counts of any size have a test of their own.
MATCHES_MAX = 5_000


def graph_of(plan: Plan, rows: list[Row], size: int, program: Program | None = None) -> MatchGraph:
    """program: that of the plan; else it is worked out."""
    chosen = choose_engine(plan, Purpose.GRAPH, program)
    if chosen.engine is None:
        assume(False)
    cuts = [*range(0, len(rows), size), len(rows)]
    return MatchGraph(plan, chosen, (batch_of(SCHEMA, rows[a:b], a) for a, b in pairwise(cuts)))


def without_numbers(answer: Answer) -> list[tuple[object, ...]]:
    """Outcome, times, matched events of every match, without its number and what may depend on it."""
    return sorted(((outcome, *times, found) for outcome, _, *times, found, _ in answer), key=repr)


@pytest.mark.slow
def test_a_graph_decoded_equals_the_reference() -> None:
    examples: Counter[str] = Counter()

    @given(
        rows=events(min_size=4), plan=st.one_of(counted(), *[reading()] * 3), size=st.sampled_from((1, 4, 100)),
        batch=st.sampled_from((1, 3, 100)), limit=st.integers(0, 12),
    )  # fmt: skip
    def check(plan: Plan, rows: list[Row], size: int, batch: int, limit: int) -> None:
        program = program_of(plan)
        chosen = choose_engine(plan, Purpose.GRAPH, program)
        assume(chosen.engine is not None)
        while graph_of(plan, rows, size, program).count > MATCHES_MAX:
            rows = rows[:-1]  # whatever the count was, that of the rows left is compared with the reference
        expected = without_numbers(reference_of(plan, rows))
        for room in (1, 1 << 12):
            with constant("matching.engines.run_graph.ROOM", room), constant("matching.match_graph.BATCH", batch):
                graph = graph_of(plan, rows, size, program)
                whole, some = list(graph.decode()), list(graph.decode(limit))
            assert without_numbers(answer_of(whole)) == expected, f"ROOM {room}"
            assert graph.count == len(expected), f"ROOM {room}"
            assert sum(map(len, some)) == min(limit, len(expected)), f"ROOM {room}"
            firsts = [[t for m in part for t in m.event_ts_us.tolist()] for part in (some, whole)]
            assert firsts[0] == firsts[1][: len(firsts[0])], f"ROOM {room}"
        examples["all"] += 1
        examples["several"] += len(expected) > 1
        examples["merged"] += chosen.engine is RunMerged

    def told() -> None:
        assert 4 * examples["several"] >= examples["all"]
        assert 8 * examples["merged"] >= examples["all"]

    drawn_until_told(check, told)


def plan_of(pattern: str, define: str, within: str = "") -> Plan:
    text = f"""SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN ({pattern}) {within}
        SELECTION SKIP TILL ANY MATCH DEFINE {define})"""
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan


def rows_of(words: str) -> list[Row]:
    return [{"ts": i, "k": "p", "s": w, "v": i, "x": 0.0} for i, w in enumerate(words)]


@pytest.mark.slow
def test_counts_of_any_size() -> None:
    for n in (3, 62, 63, 64, 65, 300):
        assert graph_of(plan_of("A+", "A AS s = 'a'"), rows_of("a" * n), 100).count == 2**n - 1
        within = graph_of(plan_of("A B+ C", "A AS s = 'a', B AS s = 'b', C AS s = 'c'", f"WITHIN {n + 2} ROWS"),
                          rows_of("aa" + "b" * n + "c" + "c"), 100)  # fmt: skip
        assert within.count == 2**n - 1  # the first A is too far from both C, the second one from the last
        merged = graph_of(plan_of("A+", "A AS count(A.*) = 1 OR v > LAST(A.v, 1)"), rows_of("a" * n), 100)
        assert merged.count == 2**n - 1


def test_a_few_of_very_many_are_decoded_at_once() -> None:
    found = graph_of(plan_of("A+ B", "A AS s = 'a', B AS s = 'b'"), rows_of("a" * 500 + "b"), 100)
    assert found.count == 2**500 - 1
    some = list(found.decode(1000))
    assert sum(map(len, some)) == 1000
    assert len({tuple(m.event_offset[a:b].tolist()) for m in some for a, b in pairwise(m.event_bounds)}) == 1000
    assert found.size == 500 + 499 + 1  # a row may begin a match, go on with one, or end one


def test_the_nodes_and_ends_are_the_matches() -> None:
    """Walked by hand as the documentation says."""
    words = "abbacbca"
    found = graph_of(plan_of("A B+ C", "A AS s = 'a', B AS s = 'b', C AS s = 'c'", "WITHIN 5 ROWS"), rows_of(words), 3)
    nodes = found.nodes().to_pylist()

    def list_of(at: int | None) -> list[int]:
        return [] if at is None else [at, *list_of(nodes[at]["next"])]

    def paths(at: int) -> list[list[int]]:
        if nodes[at]["child"] is None:
            return [[at]]
        return [[*path, at] for before in list_of(nodes[at]["child"]) for path in paths(before)]

    walked = set()
    for end in found.ends().to_pylist():
        for path in paths(end["node"]):
            if nodes[path[0]]["offset"] >= end["since"]:  # for WITHIN n ROWS, its place in the partition
                walked.add(tuple((nodes[n]["variable"], nodes[n]["offset"]) for n in path))
    decoded = {found[4] for found in answer_of(list(found.decode()))}
    assert walked == decoded
    assert len(walked) == found.count > 3
