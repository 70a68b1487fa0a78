"""The strategies that pass over rows: the kernel gives what the reference gives, at every step, cut anywhere, and
restored at any point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.engines.run_graph import RunGraph
from matching.program.program import NoKernel, Program, assemble
from query.language.ast import AfterMatchKind
from query.plan.expression import Expression
from query.plan.pattern import Negation
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Plan
from tests.engines import planned
from tests.properties.comparing import (
    FEWER,
    Answer,
    answer_of,
    compare_at_every_step,
    constant,
    drawn_until_told,
    fewer,
    kernel_of,
    kernels_of,
    reference_of,
    restored_equals_reference,
    run,
    same_error,
    variants,
)
from tests.properties.test_absence import PLACES, RARE
from tests.strategies import (
    BOUNDS,
    SCHEMA,
    SECOND_US,
    SKIP_TILL,
    SQL_SELECTIONS,
    Row,
    Within,
    by_duckdb,
    chains,
    events,
    patterns,
    plans,
    row_local,
    sometimes,
)

FAILING = by_duckdb("A", ("A", "B"), True)


@st.composite
def skipping(draw: st.DrawFn, raising: bool = False) -> Plan:
    """A plan that passes over rows, some with negations between its elements, before or behind them."""
    shapes = draw(st.sampled_from((chains, patterns)))
    ahead = draw(sometimes)
    plan = draw(plans(SKIP_TILL, shapes, after=ahead, anchored=False, raising=raising))
    if draw(st.booleans()):  # what a graph can do
        conditions = row_local(ahead) | FAILING if raising else row_local(ahead)
        defines = tuple(Define(d.variable, draw(conditions)) for d in plan.defines)
        plan = replace(plan, defines=defines, after=AfterMatch(AfterMatchKind.NO_SKIP))
    if isinstance(plan.pattern, Concatenation) and draw(st.booleans()):
        parts = list(plan.pattern.parts)
        for name in draw(st.sampled_from((("N",), ("N", "M"), ("N", "N")))):
            parts.insert(draw(st.integers(1, len(parts) - 1)), Negation(name))
        conditions = row_local(ahead) | FAILING if raising else row_local(ahead)
        names = dict.fromkeys(part.name for part in parts if isinstance(part, Negation))
        defines = tuple(Define(name, draw(conditions)) for name in names)
        plan = replace(plan, pattern=Concatenation(tuple(parts)), defines=(*plan.defines, *defines))
    if draw(sometimes):
        plan = at_edges(draw, plan, FAILING if raising else None)
    return plan


def at_edges(draw: st.DrawFn, plan: Plan, failing: st.SearchStrategy[Expression] | None = None) -> Plan:
    """The plan with negations before the first row of its matches, behind the last one, or both. failing: conditions
    that cannot be computed for some rows."""
    before, behind = draw(st.sampled_from([*PLACES, ((), ("O",)), (("O",), ("P",))]))
    parts = plan.pattern.parts if isinstance(plan.pattern, Concatenation) else (plan.pattern,)
    pattern = Concatenation((*map(Negation, before), *parts, *map(Negation, behind)))
    defined = {d.variable for d in plan.defines}
    names = [name for name in dict.fromkeys((*before, *behind)) if name not in defined]
    conditions = RARE | RARE | row_local(False)
    if failing is not None:
        conditions = conditions | failing | failing
    defines = tuple(Define(name, draw(conditions)) for name in names)
    within = plan.within or draw(st.sampled_from([*BOUNDS, Within(interval_us=4 * SECOND_US), Within(rows=4)]))
    return replace(plan, pattern=pattern, within=within, defines=(*plan.defines, *defines))


@st.composite
def waiting(draw: st.DrawFn) -> Plan:
    """A plan whose matches wait until nothing behind them can forbid them, mostly for some rows: their numbers hang on
    the moment at which each is decided. One start has several runs, of which a row concerns only some."""
    plan = draw(plans(SKIP_TILL, patterns, after=False, anchored=False, exclusions=False, opaque=False))
    before, behind = draw(st.sampled_from([((), ("N",)), ((), ("N", "M")), (("N",), ("N",))]))
    parts = plan.pattern.parts if isinstance(plan.pattern, Concatenation) else (plan.pattern,)
    pattern = Concatenation((*map(Negation, before), *parts, *map(Negation, behind)))
    names = [*(d.variable for d in plan.defines), *dict.fromkeys((*before, *behind))]
    defines = tuple(Define(name, draw(RARE if name in "NM" else row_local(False))) for name in names)
    bounds = [*(Within(rows=n) for n in (3, 4, 2, 5, 8)), *(Within(interval_us=n * SECOND_US) for n in (3, 8))]
    after = AfterMatch(draw(st.sampled_from([AfterMatchKind.NO_SKIP, AfterMatchKind.NO_SKIP, plan.after.kind])))
    return replace(plan, pattern=pattern, within=draw(st.sampled_from(bounds)), defines=defines, after=after)


class Tally:
    """What the examples of one property were like."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, plan: Plan, rows: list[Row], answer: Answer) -> None:
        strict = replace(plan, selection=SQL_SELECTIONS[1])
        program = assemble(plan)
        self.counts["examples"] += 1
        self.counts["a match"] += bool(answer)
        self.counts["two or more"] += len(answer) > 1
        self.counts["rows passed over"] += answer != reference_of(strict, rows)
        self.counts["on the match so far"] += any(program.code)
        self.counts["negation"] += bool(program.absence.gaps)
        self.counts["before a match"] += bool(program.absence.before)
        self.counts["behind a match"] += bool(program.absence.behind)
        self.counts["by a graph"] += planned(plan, program=program).engine is RunGraph
        self.counts[plan.selection.value] += 1
        self.counts[str(plan.after)] += 1

    def report(self, record_property: Callable[[str, object], None]) -> None:
        record_property("examples", ", ".join(f"{what} {count:,}" for what, count in self.counts.items()))
        self.check()

    def check(self) -> None:
        for what in ("a match", "rows passed over", "by a graph"):
            few = 10 if self.counts["examples"] < 100 else 5  # of few examples a share says little
            assert few * self.counts[what] >= self.counts["examples"], what


@pytest.mark.slow
def test_kernel_equals_reference(record_property: Callable[[str, object], None]) -> None:
    tally = Tally()

    @fewer(2)
    @given(rows=events(min_size=4), plan=skipping(), size=st.sampled_from((1, 4, 100)))
    def check(plan: Plan, rows: list[Row], size: int) -> None:
        kernels = kernels_of(plan)
        expected = reference_of(plan, rows)
        for room in (1, 1 << 12):
            with constant("matching.engines.run_graph.ROOM", room):
                assert answer_of(run(kernels(), rows, size)) == expected, f"ROOM {room}"
        tally.add(plan, rows, expected)

    drawn_until_told(check, tally.check)
    tally.report(record_property)


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=6), plan=waiting(), size=st.sampled_from((1, 4, 100)))
def test_matches_that_wait_come_out_in_the_order_of_the_reference(plan: Plan, rows: list[Row], size: int) -> None:
    assert answer_of(run(kernel_of(plan), rows, size)) == reference_of(plan, rows)


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=4, max_size=10), plan=waiting(), data=st.data())
def test_a_match_that_waits_comes_out_with_the_event_or_watermark_that_decides_it(
    plan: Plan, rows: list[Row], data: st.DataObject
) -> None:
    compare_at_every_step(kernel_of(plan), rows, data)


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=4, max_size=10), plan=skipping(), data=st.data())
def test_a_match_comes_out_with_the_event_or_watermark_that_decides_it(
    plan: Plan, rows: list[Row], data: st.DataObject
) -> None:
    compare_at_every_step(kernel_of(plan), rows, data)


@pytest.mark.slow
@FEWER
@given(rows=events(), plan=skipping(), data=st.data())
def test_restoring_a_snapshot_and_dropping_what_no_run_needs_change_nothing(
    plan: Plan, rows: list[Row], data: st.DataObject
) -> None:
    restored_equals_reference(plan, kernels_of(plan), rows, data, variants(0, 1 << 15))


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=4), plan=skipping(raising=True), size=st.sampled_from((1, 3, 100)))
def test_a_condition_that_cannot_be_computed_is_an_error_where_the_reference_reads_it(
    plan: Plan, rows: list[Row], size: int
) -> None:
    # where not all matches are wanted the kernel does not look for those that others have cut
    assume(plan.after.kind is AfterMatchKind.NO_SKIP)
    same_error(plan, kernels_of(plan), rows, size, variants(0, 1 << 15))


def test_a_negation_that_reads_rows_after_it_runs_through_the_reference() -> None:
    text = """SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS v PATTERN (A NOT N B)
        SELECTION SKIP TILL NEXT MATCH DEFINE A AS s = 'a', B AS s = 'b', N AS v > A.v)"""
    from query.language.parse import parse
    from query.plan.bind import bind

    def program(text: str) -> Program:
        return assemble(bind(parse(text), lambda _: SCHEMA).factors[0].plan)

    assert any(program(text).code)  # Before: NoKernel
    reads = "v > A.v"
    later = [text.replace(reads, "v > B.v"), text.replace(reads, "count(*) > 2"), text.replace("NOT N B", "NOT N A B")]
    for text_of in later:
        with pytest.raises(NoKernel, match="the condition of ~N on rows that a match may take after it"):
            program(text_of)
    at_end = text.replace("NOT N B)", "B NOT N) WITHIN INTERVAL '9' SECOND")
    with pytest.raises(NoKernel, match="~N on the match, under SKIP TILL NEXT MATCH and AFTER MATCH SKIP PAST"):
        program(at_end.replace("PATTERN", "AFTER MATCH SKIP PAST LAST ROW PATTERN"))
    assert any(program(at_end).code)  # Before: NoKernel
