"""Conditions that tie rows of a match together by equality: what is looked up by value gives what the reference gives,
cut anywhere, at every step, restored at any point, and out of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.matcher import KernelMatcher, make_matcher
from matching.spill import Spill
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import TRUE, Call, Column, Constant, Expression, Logical, MatchNumber, Opaque
from query.plan.pattern import Negation, Repeat, RowPattern, Variable, variables
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Measure, Order, Plan, Within
from tests.engines import matcher_by, planned
from tests.events import batch_of
from tests.properties.comparing import (
    FEWER,
    answer_of,
    compare_at_every_step,
    drawn_until,
    drawn_until_told,
    reference_of,
    restored_equals_reference,
    run,
    same_error,
)
from tests.properties.test_idle_keys import remembers, without_numbers
from tests.properties.test_spilled import restored, spills
from tests.strategies import (
    COMPARISONS,
    SCHEMA,
    SECOND_US,
    SKIP_TILL,
    TS,
    K,
    Row,
    S,
    V,
    X,
    aggregate,
    among,
    at,
    by_duckdb,
    chains,
    compare,
    events,
    logical,
    number,
    patterns,
    sometimes,
)

#: A match of one row, for negations behind it.
SINGLE: tuple[RowPattern, ...] = (
    Variable("A"), Variable("A"), Concatenation((Variable("A"),)), Repeat(Variable("A"), 1, 1, True),
)  # fmt: skip
TO_NEXT_ROW = AfterMatch(AfterMatchKind.TO_NEXT_ROW)
BOUNDS = (5, 3, 8, 2, 4, 1, 0)


def local(draw: st.DrawFn) -> Expression:
    """A condition on a row alone, some with the row before it, of any value."""
    return draw(among(
        compare(V, "<>", at(V, -1)), compare(at(S, -2), "=", Constant("a", "VARCHAR")),
        TRUE, TRUE, compare(V, ">", number(1)), compare(V, "<=", number(3)), compare(S, "=", Constant("a", "VARCHAR")),
        compare(S, "<>", Constant("a", "VARCHAR")), Call("is_not_null", (X,), "BOOLEAN"),
    ))  # fmt: skip


def tie(draw: st.DrawFn, name: str, names: tuple[str, ...], column: Column) -> Expression:
    """An equality with a row of the match, mostly with its first one."""
    first, others = names[:1], tuple(n for n in names if n != name)
    group = draw(among(*[first] * 9, (), others or first, (name,)))
    which, offset = draw(among(*Logical)), draw(among(*[0] * 12, 1))
    row = logical(which, column, group, offset)
    return compare(column, "=", row) if draw(among(True, False)) else compare(row, "=", column)


def on_match(names: tuple[str, ...]) -> Expression:
    """A condition that fails for some rows of the match."""
    whole = "CAST(replace(\"_0\" || \"_1\", 'a', '1') AS INTEGER)"
    return compare(Opaque(whole, (S, logical(Logical.LAST, S, names)), "INTEGER"), ">", number(0))


def not_null(draw: st.DrawFn, columns: tuple[Column, ...]) -> list[Expression]:
    return [Call("is_not_null", (column,), "BOOLEAN") for column in columns] if draw(among(True, True, False)) else []


def condition(
    draw: st.DrawFn, name: str, names: tuple[str, ...], columns: tuple[Column, ...], raising: bool
) -> Expression:  # fmt: skip
    parts = [tie(draw, name, names, column) for column in columns] if draw(among(*[True] * 19, False)) else []
    parts.insert(draw(st.integers(0, len(parts))), local(draw))
    if draw(sometimes):
        than = draw(among(logical(Logical.LAST, X, names[:1]), aggregate("max", X, names[:1])))
        parts.append(compare(X, draw(among(*COMPARISONS)), than))
    if raising:
        fails = draw(among(on_match(names[:1]), on_match(names[:1]), None)) or draw(by_duckdb(name, names, True))
        parts.insert(draw(st.integers(0, len(parts))), fails)
        parts += not_null(draw, columns)
    parts = [part for part in parts if part != TRUE] or [TRUE]
    return Call("and", tuple(parts), "BOOLEAN") if len(parts) > 1 else parts[0]


@st.composite
def tying(draw: st.DrawFn, raising: bool = False) -> Plan:
    """A plan of which most variables, negated ones too, are tied to earlier rows of the match by one or two columns."""
    selection = draw(among(*SKIP_TILL, *SKIP_TILL, Selection.PARTITION))
    passes = selection in SKIP_TILL
    shape = chains().filter(lambda p: isinstance(p, Concatenation)) if draw(among(True, True, False)) else patterns()
    pattern = draw(shape) if passes else draw(among(*SINGLE))
    names = variables(pattern)
    parts = list(pattern.parts) if isinstance(pattern, Concatenation) else [pattern]
    columns = draw(among((S,), (V,), (X,), (S, V)))
    within = Within(interval_us=draw(among(*BOUNDS)) * SECOND_US)
    if draw(sometimes) or not passes:
        where = draw(st.integers(1, len(parts)) if draw(among(True, True, False)) else among(0, len(parts)))
        parts[where:where] = [Negation("N"), Negation("M")][: draw(among(1, 1, 2))]
    elif draw(sometimes):
        within = draw(among(None, within, Within(rows=4), Within(rows=7)))
    defines = []
    for n in names:
        alone = n == names[0] and draw(among(True, True, True, False))
        defines.append(Define(n, condition(draw, n, names, () if alone else columns, raising and not alone)))
        if alone and raising:
            defines[-1] = Define(n, Call("and", (local(draw), TRUE, *not_null(draw, columns)), "BOOLEAN"))
    negations = dict.fromkeys(part.name for part in parts if isinstance(part, Negation))
    defines += [Define(n, condition(draw, n, names, columns, raising)) for n in negations]
    kinds = *[AfterMatchKind.NO_SKIP] * 4, *[AfterMatchKind.TO_NEXT_ROW] * 2, AfterMatchKind.PAST_LAST_ROW
    measures = (
        Measure("n", MatchNumber()), Measure("first", logical(Logical.FIRST, TS, ())), Measure("value", columns[0]),
        Measure("sum", aggregate("sum", X, names[:1])), Measure("rows", aggregate("count", None, ())),
    )  # fmt: skip
    return Plan(
        SCHEMA, draw(among((), (), (K,), (K, V))), (Order(TS),), measures[: draw(among(5, 3, 0))],
        draw(among(RowsPerMatch.ONE, RowsPerMatch.ONE, RowsPerMatch.ALL_SHOW_EMPTY)),
        AfterMatch(draw(among(*kinds) if passes else among(*kinds[-2:]))),
        Concatenation(tuple(parts)) if len(parts) > 1 else parts[0], within, selection, (), tuple(defines),
    )  # fmt: skip


def matchers_of(plan: Plan) -> Callable[[], KernelMatcher] | None:
    """Makes matchers of a plan; None if only the reference can run it."""
    if planned(plan).program is None:
        return None
    return lambda: matcher_by(plan, lenient=True)


@pytest.mark.slow
def test_kernel_equals_reference(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @given(rows=events(min_size=5), plan=tying(), size=st.sampled_from((1, 4, 100)))
    def check(rows: list[Row], plan: Plan, size: int) -> None:
        make = matchers_of(plan)
        if make is None:
            return
        matcher, expected = make(), reference_of(plan, rows)
        assert answer_of(run(matcher, rows, size)) == expected
        chosen = matcher.chosen
        counts["examples"] += 1
        counts["a match"] += bool(expected)
        counts["two or more"] += len(expected) > 1
        counts["looked up"] += bool(chosen.looked_up)
        counts["looked up, a match"] += bool(chosen.looked_up and expected)
        counts["looked up, absent rows"] += bool(chosen.looked_up and expected and matcher.program.absent)
        counts["looked up, wait"] += bool(chosen.looked_up and expected and matcher.program.absence.behind)
        counts[f"looked up by {type(matcher.engine).__name__}"] += bool(chosen.looked_up)
        counts[chosen.not_looked_up or "-"] += 1

    def told() -> None:
        for what in ("looked up", "a match"):
            assert 3 * counts[what] >= counts["examples"], what
        for what in ("looked up, a match", "looked up, absent rows"):
            assert 12 * counts[what] >= counts["examples"], what

    drawn_until_told(check, told)
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in counts.items()))


def not_overlapping(plan: Plan) -> Plan:
    """The plan with matches that may not overlap, where rows of other values may lie between."""
    passes = plan.selection in SKIP_TILL
    return replace(plan, after=AfterMatch(AfterMatchKind.PAST_LAST_ROW)) if passes else plan


@pytest.mark.slow
def test_a_match_ends_partial_matches_of_all_values(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @given(
        rows=events(min_size=8, max_size=20, keys=("p", "q")), plan=tying().map(not_overlapping),
        size=st.sampled_from((1, 4, 100)), data=st.data(),
    )  # fmt: skip
    def check(rows: list[Row], plan: Plan, size: int, data: st.DataObject) -> None:
        make = matchers_of(plan)
        if make is None or not (make().chosen.looked_up and plan.after.kind is AfterMatchKind.PAST_LAST_ROW):
            return
        expected = reference_of(plan, rows)
        assert answer_of(run(make(), rows, size)) == expected
        restored_equals_reference(plan, make, rows, data, (0, 3))
        counts["examples"] += 1
        counts["two or more"] += len(expected) > 1
        counts["wait"] += bool(expected and make().program.absence.behind)
        counts["that overlap"] += len(reference_of(replace(plan, after=TO_NEXT_ROW), rows)) > len(expected)

    drawn_until(check, lambda: min(counts["two or more"], counts["that overlap"]) >= 3)
    assert min(counts["two or more"], counts["that overlap"]) >= 3
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in counts.items()))


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=5, max_size=10), plan=tying(), data=st.data())
def test_a_match_comes_out_with_the_event_or_watermark_that_decides_it(
    rows: list[Row], plan: Plan, data: st.DataObject
) -> None:
    make = matchers_of(plan)
    if make is not None:
        compare_at_every_step(make(), rows, data)


@pytest.mark.slow
@FEWER
@given(rows=events(), plan=tying(), data=st.data())
def test_restoring_and_dropping_change_nothing(rows: list[Row], plan: Plan, data: st.DataObject) -> None:
    make = matchers_of(plan)
    if make is not None:
        restored_equals_reference(plan, make, rows, data, (0, 3))


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=5), plan=tying(raising=True), size=st.sampled_from((1, 3, 100)))
def test_a_condition_that_cannot_be_computed_is_an_error_where_the_reference_reads_it(
    rows: list[Row], plan: Plan, size: int
) -> None:
    make = matchers_of(plan)
    # where not all matches are wanted the kernel does not look for those that others have cut
    if make is not None and (plan.after.kind is AfterMatchKind.NO_SKIP or plan.selection is Selection.PARTITION):
        same_error(plan, make, rows, size)


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=8), plan=tying(), sizes=st.lists(st.sampled_from((1, 2, 5)), min_size=14, max_size=14))
def test_matches_come_out_in_the_order_of_their_numbers(rows: list[Row], plan: Plan, sizes: list[int]) -> None:
    make = matchers_of(plan)
    if make is None or not make().chosen.looked_up:
        return
    matcher, at, numbers = make(), 0, list[int]()
    for size in sizes:
        batch = batch_of(SCHEMA, rows[at : at + size], at)
        numbers += matcher.push(batch).number.tolist()
        if size == 2 and len(batch):
            numbers += matcher.advance(int(batch.ts_us[-1])).number.tolist()
        at += size
    numbers += matcher.advance(None).number.tolist()
    if not plan.partition_by:
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.slow
@FEWER
@given(
    rows=events(min_size=8, keys=("p", "q", "r")), plan=tying() | tying().map(not_overlapping), spill=spills(),
    data=st.data(),
)  # fmt: skip
def test_what_leaves_memory_changes_nothing(rows: list[Row], plan: Plan, spill: Spill, data: st.DataObject) -> None:
    if matchers_of(plan) is not None:
        compare_out_of_memory(plan, rows, spill, data)


def compare_out_of_memory(plan: Plan, rows: list[Row], spill: Spill, data: st.DataObject) -> None:
    """Asserts that a matcher whose partitions leave memory, and of which others go on, gives what the reference gives;
    but for the numbers of matches where a partition may have been forgotten."""
    matcher = make_matcher(plan, lenient=True, spill=spill)
    assert isinstance(matcher, KernelMatcher)
    found, at = list[Matches](), 0
    while at < len(rows):
        if data.draw(st.booleans()):
            matcher.rows.compact_at = matcher.rows.forget_at = 0
        size = data.draw(st.sampled_from((1, 1, 2, 5)))
        found.append(matcher.push(batch_of(SCHEMA, rows[at : at + size], at)))
        at += size
        if not data.draw(st.integers(0, 3)):
            matcher = restored(matcher, spill)
    ours, expected = answer_of([*found, matcher.advance(None)]), reference_of(plan, rows)
    if matcher.chosen.looked_up or any(remembers(m.expression) for m in plan.measures):
        assert ours == expected
    else:
        assert without_numbers(ours) == without_numbers(expected)
