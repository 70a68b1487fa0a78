"""Plans to automata, as they print themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.automaton.compile import _size, compile_plan, is_ambiguous
from query.errors import QueryError
from query.language.ast import RowsPerMatch
from query.plan.expression import Call
from query.plan.pattern import (
    Alternation,
    Empty,
    Exclusion,
    Repeat,
    RowPattern,
)
from tests.plans import END, PRICE, START, A, B, C, D, S, option, plan_of, previous, sequence, star
from tests.strategies import patterns


def edges(pattern: RowPattern) -> list[str]:
    """Each state's edges and acceptance in order of preference, as words."""
    automaton = compile_plan(plan_of(pattern))
    out = []
    for state in automaton.states:
        words = [e.variable for e in state.edges]
        if state.accept_at is not None:
            words.insert(state.accept_at, "accept")
        out.append(f"{state.variable or 'start'}: {' '.join(words)}")
    return out


def test_required_rounds_are_written_out_and_the_last_one_loops() -> None:
    falling = Call("<", (PRICE, previous(PRICE)), "BOOLEAN")
    assert str(compile_plan(plan_of(sequence(S, Repeat(D, 3, None, True)), {"D": falling}))) == (
        "start  begin   S: True                   -> S\n"
        "S      begin   D: (price < PREV(price))  -> D.1\n"
        "D.1    begin   D: (price < PREV(price))  -> D.2\n"
        "D.2    begin   D: (price < PREV(price))  -> D.3\n"
        "D.3    take    D: (price < PREV(price))  -> D.3\n"
        "       accept\n"
        "ignore not (same partition)"
    )


def test_greedy_goes_on_first_and_reluctant_ends_first() -> None:
    assert edges(Repeat(A, 1, None, True)) == ["start: A", "A: A accept"]
    assert edges(Repeat(A, 1, None, False)) == ["start: A", "A: accept A"]
    assert edges(option(A)) == ["start: A accept", "A: accept"]
    assert edges(option(A, greedy=False)) == ["start: accept A", "A: accept"]


def test_the_left_alternative_comes_first() -> None:
    assert edges(sequence(Alternation((B, A)), C)) == ["start: B A", "B: C", "A: C", "C: accept"]


def test_a_round_without_a_row_is_the_last_one() -> None:
    # what its empty first alternative leads to, C, comes before B
    for wrap in (star, option, lambda body: Repeat(body, 1, None, True), lambda body: Repeat(body, 1, 2, True)):
        assert edges(sequence(wrap(Alternation((option(A), B))), C))[0] == "start: A C B"
    # the first of two required rounds is not
    assert edges(sequence(Repeat(Alternation((option(A), B)), 2, None, True), C))[0].startswith("start: A A C B")


def test_loops_over_empty_bodies_end() -> None:
    assert edges(star(option(A))) == ["start: A accept", "A: A accept"]
    assert edges(star(Empty())) == ["start: accept"]
    assert edges(Repeat(Repeat(option(B, greedy=False), 2, None, True), 1, None, True))[0].startswith("start: ")


def test_ambiguity_is_seen() -> None:
    assert not is_ambiguous(compile_plan(plan_of(sequence(A, Repeat(B, 1, None, True), C))))
    assert is_ambiguous(compile_plan(plan_of(Alternation((sequence(A, B), sequence(A, C))))))


def test_anchors_and_exclusion_are_on_the_edges() -> None:
    pattern = sequence(START, A, Exclusion(Repeat(B, 1, None, True)), END)
    shown = {"rows": RowsPerMatch.ALL_SHOW_EMPTY}
    assert str(compile_plan(plan_of(pattern, **shown))) == (
        "start  begin   ^ A: True        -> A\n"
        "A      begin   {- B -} $: True  -> B$\n"
        "       begin   {- B -}: True    -> B\n"
        "B$     accept\n"
        "B      take    {- B -} $: True  -> B$\n"
        "       take    {- B -}: True    -> B\n"
        "ignore not (same partition)"
    )


def test_what_no_row_can_pass_is_not_in_the_automaton() -> None:
    assert edges(sequence(A, START)) == ["start: "]
    assert edges(Alternation((sequence(A, END, B), B))) == ["start: B", "B: accept"]
    assert edges(Alternation((END, B))) == ["start: B", "B: accept"]
    assert edges(star(START)) == ["start: accept"]
    assert edges(Repeat(END, 1, None, True)) == ["start: "]


@pytest.mark.slow
def test_what_may_be_left_out_is_bounded_by_its_edges() -> None:
    # Before: hours, and all memory, for some thousand nodes with an edge from each to each later one.
    for pattern in (Repeat(Repeat(option(A), 70, 70, True), 70, 70, True), Repeat(option(A), 1600, 1600, True)):
        with pytest.raises(QueryError, match=r"HQ600(.|\n)*more than 300,000 edges"):
            compile_plan(plan_of(sequence(pattern, B)))
    assert len(compile_plan(plan_of(sequence(Repeat(option(A), 200, 200, True), B))).states) == 202


def test_too_many_edges_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: a pattern of 1,600 parts that may be left out was refused after half a minute.
    monkeypatch.setattr("query.automaton.compile._closure", None)
    with pytest.raises(QueryError, match=r"HQ600(.|\n)*more than 300,000 edges"):
        compile_plan(plan_of(sequence(Repeat(option(A), 1600, 1600, True), B)))


@pytest.mark.slow
@given(pattern=patterns(), least=st.integers(0, 3), more=st.none() | st.integers(0, 3), copies=st.integers(1, 4))
def test_no_edge_is_counted_that_there_is_not(
    pattern: RowPattern, least: int, more: int | None, copies: int
) -> None:
    rounds = Repeat(pattern, least, None if more is None else max(least + more, 1), True)
    pattern = Repeat(rounds, copies, copies, True)
    made = compile_plan(replace(plan_of(pattern), timeout_rows=True))  # as there is no row that cannot end a match
    assert _size(pattern).edges <= sum(len(state.edges) for state in made.states[1:])
