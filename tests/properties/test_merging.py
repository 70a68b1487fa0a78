"""Equal runs merged: the same matches as the reference and as the runs apart, cut anywhere, and restored at any
point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.engines.choose import choose_engine, merges_runs
from matching.engines.run_blocks import RunBlocks
from matching.engines.run_merged import RunMerged
from matching.matcher import KernelMatcher
from matching.program.live import count_caps, live_registers, merges
from matching.program.program import Program, assemble
from matching.purpose import Purpose
from query.language.ast import AfterMatchKind
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import AfterMatch, Plan
from tests.engines import matcher_by
from tests.properties.comparing import (
    FEWER,
    answer_of,
    constant,
    drawn_until_told,
    reference_of,
    restored_equals_reference,
    run,
    same_error,
    variants,
)
from tests.strategies import SCHEMA, SKIP_TILL, Row, chains, events, patterns, plans, sometimes


@st.composite
def reading(draw: st.DrawFn, raising: bool = False) -> Plan:
    """A plan for all matches that passes over rows, of which most have conditions on the match so far."""
    shapes = draw(st.sampled_from((chains, patterns)))
    plan = draw(plans(SKIP_TILL, shapes, after=draw(sometimes), anchored=False, raising=raising))
    return replace(plan, after=AfterMatch(AfterMatchKind.NO_SKIP))


def merged_of(plan: Plan) -> Callable[..., KernelMatcher]:
    """Makes matchers of a plan whose equal runs can be merged, unless they are told not to (engine=RunBlocks)."""
    assume(choose_engine(plan, Purpose.GRAPH).engine is RunMerged)
    return partial(matcher_by, plan, engine=RunMerged)


@pytest.mark.slow
def test_merged_runs_equal_the_reference() -> None:
    examples: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=4), plan=reading(), size=st.sampled_from((1, 4, 100)))
    def check(plan: Plan, rows: list[Row], size: int) -> None:
        make = merged_of(plan)
        expected = reference_of(plan, rows)
        for room in (1, 1 << 12):
            with constant("matching.engines.run_graph.ROOM", room):
                matcher = make()
                assert isinstance(matcher.engine, RunMerged)
                assert answer_of(run(matcher, rows, size)) == expected, f"ROOM {room}"
                assert answer_of(run(make(engine=RunBlocks), rows, size)) == expected, f"ROOM {room}, not merged"
        examples["all"] += 1
        examples["several"] += len(expected) > 1
        examples["by default"] += merges(matcher.program)

    def told() -> None:
        assert 8 * examples["several"] >= examples["all"]
        assert 8 * examples["by default"] >= examples["all"]

    drawn_until_told(check, told)


@pytest.mark.slow
@FEWER
@given(rows=events(), plan=reading(), data=st.data())
def test_restoring_a_snapshot_and_dropping_what_no_run_needs_change_nothing(
    plan: Plan, rows: list[Row], data: st.DataObject
) -> None:
    restored_equals_reference(plan, merged_of(plan), rows, data, variants(0, 1 << 15))


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=4), plan=reading(raising=True), size=st.sampled_from((1, 3, 100)))
def test_a_condition_that_cannot_be_computed_is_an_error_where_the_reference_reads_it(
    rows: list[Row], plan: Plan, size: int
) -> None:
    same_error(plan, merged_of(plan), rows, size)


def written(pattern: str, define: str) -> Program:
    text = f"""SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts PATTERN ({pattern})
        SELECTION SKIP TILL NEXT MATCH DEFINE {define})"""
    return assemble(bind(parse(text), lambda _: SCHEMA).factors[0].plan)


@pytest.mark.parametrize(
    ("pattern", "define", "merge"),
    [
        ("A B C", "A AS s = 'a', B AS v > A.v, C AS s = 'c'", True),  # behind B nothing is read
        ("A B C", "A AS s = 'a', B AS s = 'b', C AS v > A.v", False),
        ("A B C", "A AS s = 'a', B AS s = 'b', C AS v > B.v", True),  # the last row alone
        ("A+ B", "A AS s = 'a', B AS v > LAST(A.v)", True),
        ("A+ B", "A AS s = 'a', B AS v > sum(A.v)", False),
        ("A+ B C", "A AS s = 'a', B AS v > sum(A.v), C AS s = 'c'", True),
        ("A+ B", "A AS s = 'a', B AS v > LAST(A.v, 1)", False),
        ("A+ B", "A AS count(A.*) = 1 OR v > LAST(A.v, 1), B AS s = 'b'", True),  # the count matters up to 2
        ("A+ B", "A AS count(A.*) = 1 OR v > count(A.*), B AS s = 'b'", False),
    ],
)
def test_what_is_merged_without_being_asked_for(pattern: str, define: str, merge: bool) -> None:
    program = written(pattern, define)
    assert merges_runs(program)
    assert merges(program) == merge


def test_counts_matter_up_to_what_they_are_compared_with() -> None:
    program = written("A+ B", "A AS count(A.*) < 3 OR v > LAST(A.v, 1), B AS count(A.*) + v > 5 OR count(A.*) = 7")
    assert [r.kind.name for r in program.registers].count("COUNT_ROWS") == 1
    assert set(count_caps(program)) == {-1}
    program = written("A+ B", "A AS count(A.*) < 3 OR v > LAST(A.v, 1), B AS count(A.*) = 7")
    assert sorted(set(count_caps(program))) == [-1, 8]


def test_registers_live_until_their_last_reader() -> None:
    program = written("A B C", "A AS s = 'a', B AS v > A.v, C AS s = 'c'")
    assert live_registers(program) == (frozenset(), frozenset({0}), frozenset(), frozenset())
