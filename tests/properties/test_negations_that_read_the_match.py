"""Negations whose conditions read the match, and rows of the match far back: the kernel gives what the reference gives,
cut anywhere, at every step, and restored at any point."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching.kernels import waiting
from query.language.ast import AfterMatchKind, Selection
from query.plan.expression import Call, Classifier, Expression, Logical
from query.plan.pattern import Negation, variables
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Plan, Within
from tests.properties.comparing import (
    FEWER,
    Answer,
    answer_of,
    compare_at_every_step,
    constant,
    drawn_until_told,
    is_nightly,
    kernel_of,
    kernels_of,
    reference_of,
    restored_equals_reference,
    run,
    same_error,
)
from tests.strategies import (
    BOUNDS,
    COMPARISONS,
    SECOND_US,
    SKIP_TILL,
    SQL_SELECTIONS,
    Row,
    S,
    V,
    X,
    at,
    by_duckdb,
    chains,
    compare,
    events,
    logical,
    patterns,
    plans,
    row_local,
    run_dependent,
)

#: AFTER MATCH SKIP TO that would not move on warns; these tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")


def on_match(draw: st.DrawFn, name: str, names: tuple[str, ...], raising: bool) -> Expression:
    """A condition of a negation on a row of the match, often a rare equality."""
    column = draw(st.sampled_from((V, S, X)))
    which = draw(st.sampled_from(Logical))
    equal = compare(column, draw(st.sampled_from(("=", "=", *COMPARISONS))), logical(which, column, names[:1]))
    condition = draw(st.sampled_from((equal, equal, None))) or draw(run_dependent(name, names, False))
    parts = [condition]
    if draw(st.booleans()):
        parts.append(draw(row_local()))
    if raising:
        parts.append(draw(by_duckdb(name, names, True)))
    return Call("and", tuple(parts), "BOOLEAN") if len(parts) > 1 else condition


@st.composite
def behind(draw: st.DrawFn, raising: bool = False) -> Plan:
    """A plan with negations after the last row of its matches, whose conditions read them."""
    selection = draw(st.sampled_from((*SQL_SELECTIONS, *SKIP_TILL)))
    passes = selection in SKIP_TILL
    plan = draw(plans(
        (selection,), chains if passes else patterns, after=False, no_skip=False, timeouts=False, anchored=not passes,
        opaque=False,
    ))  # fmt: skip
    names = variables(plan.pattern)
    negations = draw(st.sampled_from((("N",), ("N", "M"))))
    parts = plan.pattern.parts if isinstance(plan.pattern, Concatenation) else (plan.pattern,)
    defines = [Define("N", on_match(draw, "N", names, raising))]
    if "M" in negations:
        defines.append(Define("M", draw(row_local())))
    within = draw(st.sampled_from([*BOUNDS, Within(interval_us=4 * SECOND_US), Within(rows=4)]))
    if passes:
        plan = replace(plan, after=AfterMatch(AfterMatchKind.NO_SKIP))
        within = draw(st.sampled_from([*BOUNDS[:5], Within(interval_us=4 * SECOND_US)]))
    return replace(
        plan, pattern=Concatenation((*parts, *map(Negation, negations))), within=within,
        defines=(*plan.defines, *defines),
    )  # fmt: skip


@st.composite
def between(draw: st.DrawFn, raising: bool = False) -> Plan:
    """A plan that passes over rows, with negations between its elements, whose conditions read the elements before."""
    plan = draw(plans(SKIP_TILL, chains, after=False, anchored=False, exclusions=False, opaque=False))
    parts = list(plan.pattern.parts) if isinstance(plan.pattern, Concatenation) else [plan.pattern]
    names = variables(plan.pattern)
    if len(parts) < 2:
        return plan
    where = draw(st.integers(1, len(parts) - 1))
    parts[where:where] = draw(st.sampled_from(([Negation("N")], [Negation("M"), Negation("N")])))
    defines = [Define("N", on_match(draw, "N", names[:where], raising))]
    if Negation("M") in parts:
        defines.append(Define("M", draw(row_local())))
    return replace(plan, pattern=Concatenation(tuple(parts)), defines=(*plan.defines, *defines))


def without(plan: Plan) -> Plan:
    """The plan without its negations."""
    assert isinstance(plan.pattern, Concatenation)
    parts = tuple(part for part in plan.pattern.parts if not isinstance(part, Negation))
    return replace(plan, pattern=Concatenation(parts))


def report(counts: Counter[str]) -> None:
    assert 5 * counts["a match"] >= counts["examples"]
    assert 8 * counts["changed by the negation"] >= counts["examples"]


def note(counts: Counter[str], plan: Plan, rows: list[Row], answer: Answer) -> None:
    counts["examples"] += 1
    counts["a match"] += any(match[0] == "MATCH" for match in answer)
    counts["changed by the negation"] += reference_of(without(plan), rows) != answer


@pytest.mark.slow
@pytest.mark.parametrize("kind", [behind, between])
def test_kernel_equals_reference(kind: object) -> None:
    counts: Counter[str] = Counter()

    @settings(max_examples=settings().max_examples * (5 if is_nightly() else 1) // 2)
    @given(rows=events(min_size=5), plan=kind(), size=st.sampled_from((1, 4, 100)))  # type: ignore[operator]
    def check(rows: list[Row], plan: Plan, size: int) -> None:
        kernel = kernel_of(plan)
        if not kernel.program.absent:
            return
        expected = reference_of(plan, rows)
        assert answer_of(run(kernel, rows, size)) == expected
        note(counts, plan, rows, expected)

    drawn_until_told(check, lambda: report(counts))  # a hundred are too few for the shares that are asserted


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=5), plan=behind(), size=st.sampled_from((1, 4, 100)))
def test_values_and_keys_with_one_hash_are_told_apart(rows: list[Row], plan: Plan, size: int) -> None:
    # Before: a row forbade a match of another key whose value was found in the same bucket.
    def in_one_bucket(found: waiting.Waiting, capacity: int) -> waiting.Waiting:
        return with_room(found, capacity)._replace(buckets=np.full(1, -1, np.int64))

    with_room = waiting.with_room
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "with_room", in_one_bucket)
        assert answer_of(run(kernel_of(plan), rows, size)) == reference_of(plan, rows)


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=5, max_size=10), plan=behind() | between(), data=st.data())
def test_a_match_comes_out_with_the_event_or_watermark_that_decides_it(
    rows: list[Row], plan: Plan, data: st.DataObject
) -> None:
    compare_at_every_step(kernel_of(plan), rows, data)


@pytest.mark.slow
@FEWER
@given(rows=events(), plan=behind() | between(), data=st.data())
def test_restoring_and_dropping_change_nothing(rows: list[Row], plan: Plan, data: st.DataObject) -> None:
    restored_equals_reference(plan, kernels_of(plan), rows, data, (0, 3))


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=5), plan=behind(raising=True) | between(raising=True), size=st.sampled_from((1, 3, 100)))
def test_a_condition_that_cannot_be_computed_is_an_error_where_the_reference_reads_it(
    rows: list[Row], plan: Plan, size: int
) -> None:
    same_error(plan, kernels_of(plan), rows, size)


@st.composite
def far_back(draw: st.DrawFn) -> Plan:
    """A plan whose conditions read rows of the match some rows back, and the variables of rows before."""
    plan = draw(plans(SQL_SELECTIONS, after=False, timeouts=False, opaque=False))
    defines = []
    for define in plan.defines:
        names = draw(st.sampled_from([(), *((n,) for n in variables(plan.pattern))]))
        column = draw(st.sampled_from((V, S)))
        value = logical(Logical.LAST, column, names, draw(st.integers(1, 4)), draw(st.sampled_from((0, 0, -1))))
        reads = compare(value, draw(st.sampled_from(COMPARISONS)), column)
        if draw(st.booleans()):
            reads = compare(at(Classifier(), draw(st.sampled_from((-1, -1, -2, 1)))), "=", draw(st.sampled_from(
                [logical(Logical.FIRST, Classifier(), ()), Classifier()]
            )))  # fmt: skip
        lenient = Call("or", (Call("is_null", (value,), "BOOLEAN"), reads), "BOOLEAN")
        defines.append(replace(define, condition=draw(st.sampled_from([define.condition, lenient, lenient]))))
    return replace(plan, defines=tuple(defines))


@pytest.mark.slow
@given(rows=events(min_size=5), plan=far_back(), size=st.sampled_from((1, 4, 100)))
def test_rows_of_the_match_far_back_are_rows_of_the_partition(rows: list[Row], plan: Plan, size: int) -> None:
    assert plan.selection in (Selection.STRICT, Selection.PARTITION)
    with constant("matching.program.neighbours.NEIGHBOURS_FROM", 0):
        kernel = kernel_of(plan)
    assert answer_of(run(kernel, rows, size)) == reference_of(plan, rows)
