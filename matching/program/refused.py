"""The plans that engines run, and the clauses that only the reference can."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from query.automaton.compile import by_labels, compile_plan, is_ambiguous
from query.automaton.nfa import Automaton
from query.language.ast import RowsPerMatch, Selection
from query.plan.expression import is_row_local
from query.plan.pattern import (
    Alternation,
    Anchor,
    Conjunction,
    Empty,
    Exclusion,
    Negation,
    Repeat,
    RowPattern,
    Sequence,
    Variable,
    anchors,
    excludes,
    min_rows,
)
from query.plan.plan import Plan

#: Strategies by which a run may pass over rows.
PASSING = (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)


class NoKernel(Exception):
    """The plan cannot run in the kernel; the message names the construct. instead: what may be written instead."""

    def __init__(self, construct: str, instead: str = "") -> None:
        super().__init__(construct)
        self.instead = instead


def _edge_negation(pattern: RowPattern, before: bool, behind: bool) -> str | None:
    """Returns a negated variable that may come before the first or after the last row of a match. before, behind: True
    if rows of the match always come there."""
    match pattern:
        case Negation(name):
            return None if before and behind else name
        case Sequence(parts):
            for i, part in enumerate(parts):
                rows_before = before or any(map(min_rows, parts[:i]))
                rows_behind = behind or any(map(min_rows, parts[i + 1 :]))
                if (found := _edge_negation(part, rows_before, rows_behind)) is not None:
                    return found
            return None
        case Alternation(choices) | Conjunction(choices):
            return next((n for c in choices if (n := _edge_negation(c, before, behind)) is not None), None)
        case Repeat(body) | Exclusion(body):
            return _edge_negation(body, before, behind)
        case Variable() | Empty() | Anchor():
            return None
        case _:
            assert_never(pattern)


@dataclass(frozen=True, slots=True)
class NegatedEnds:
    """Negated variables before the first row of every match and after the last one, in order; `middle`: the pattern
    between them."""

    before: tuple[str, ...]
    middle: RowPattern
    behind: tuple[str, ...]


def negated_ends(pattern: RowPattern) -> NegatedEnds:
    """Returns the negations at the ends of a pattern."""
    parts = pattern.parts if isinstance(pattern, Sequence) else (pattern,)
    takes = [i for i, part in enumerate(parts) if not isinstance(part, Negation | Anchor | Empty)]
    if not takes:
        return NegatedEnds((), pattern, ())
    first, last = takes[0], takes[-1] + 1
    before = tuple(part.name for part in parts[:first] if isinstance(part, Negation))
    behind = tuple(part.name for part in parts[last:] if isinstance(part, Negation))
    return NegatedEnds(before, Sequence(parts[first:last]), behind)


def refuse(plan: Plan, whole: bool, strict: bool) -> None:
    """Raises NoKernel for clauses that only the reference can run. whole: all matches are wanted; strict: no row of
    another partition may come between."""
    if isinstance(plan.pattern, Conjunction):
        raise NoKernel("AND of two patterns")
    absence = negated_ends(plan.pattern)
    if plan.selection in PASSING:
        if anchors(plan.pattern):
            raise NoKernel(f"an anchor under SELECTION {plan.selection.value}")
    # under STRICT and PARTITION no row lies between two rows of a match: a negation there is met by nothing
    if (name := _edge_negation(absence.middle, False, False)) is not None:
        raise NoKernel(f"the negation ~{name}, at the start or end of some matches only,")
    if absence.before or absence.behind:
        negation = f"the negation ~{(*absence.before, *absence.behind)[0]} at the start or end of a match"
        if plan.within is None:
            raise NoKernel(f"{negation} without WITHIN")
        if whole and plan.selection not in PASSING:
            raise NoKernel(f"{negation} with NO SKIP")
        if plan.timeout_rows:
            raise NoKernel(f"{negation} with TIMEOUT ROWS")
        for absent in absence.before:
            if not is_row_local(plan.condition(absent)):
                raise NoKernel(f"the condition of ~{absent} on the match, which comes after it,")
    if strict and False in anchors(plan.pattern):
        raise NoKernel("$ under SELECTION STRICT")
    if plan.timeout_rows and strict:
        raise NoKernel("TIMEOUT ROWS under SELECTION STRICT")
    if plan.timeout_rows and False in anchors(plan.pattern):
        raise NoKernel("TIMEOUT ROWS of a pattern with $")
    if whole and (plan.timeout_rows or plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED):
        raise NoKernel("TIMEOUT ROWS or WITH UNMATCHED ROWS with NO SKIP")


def automaton_to_run(plan: Plan, whole: bool) -> Automaton:
    """Returns the automaton that engines run. Raises NoKernel if they cannot. whole: all matches are wanted."""
    automaton = compile_plan(plan)
    start = automaton.states[0]
    all_matches = whole or plan.selection in PASSING
    if not all_matches:
        first, at = start.first_accept_at, start.accept_at
        if first is not None and (at is None or first < at):
            raise NoKernel("an empty match after ^")
        return automaton
    if not is_ambiguous(automaton, by_name=True):
        return automaton
    if anchors(plan.pattern) or (excludes(plan.pattern) and plan.rows is not RowsPerMatch.ONE):
        raise NoKernel("finding all matches of a pattern with anchors or {- -} and several ways to read one sequence")
    if any(edge.negated for state in automaton.states for edge in state.edges) and plan.selection in PASSING:
        raise NoKernel("a negation in a pattern with several ways to read one sequence")
    labelled = by_labels(automaton)
    if labelled is None:
        raise NoKernel("a pattern with very many ways to read one sequence")
    return labelled
