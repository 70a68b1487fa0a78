"""Negated rows before and behind a match: the kernel gives what the reference gives, at every step, cut anywhere, and
restored at any point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.program.program import NoKernel, assemble
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.output import Outcome
from query.plan.pattern import Negation
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import Define, Plan
from tests.properties.comparing import (
    FEWER,
    Answer,
    answer_of,
    compare_at_every_step,
    drawn_until_told,
    kernel_of,
    kernels_of,
    reference_of,
    restored_equals_reference,
    run,
    same_error,
    variants,
)
from tests.strategies import (
    BOUNDS,
    SCHEMA,
    SECOND_US,
    SQL_SELECTIONS,
    TRUE,
    Constant,
    Row,
    S,
    V,
    Within,
    aggregate,
    by_duckdb,
    compare,
    events,
    logical,
    number,
    plans,
    row_local,
    sometimes,
)
from tests.strategies import Logical as Which

#: AFTER MATCH SKIP TO that would not move on warns; these tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")

PLACES: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    ((), ("N",)), ((), ("N", "M")), (("N",), ()), (("M", "N"), ()), (("N",), ("M",)), (("N",), ("N",)),
]  # fmt: skip
RARE = st.sampled_from(
    [compare(V, "=", number(5)), compare(V, "=", number(3)), compare(S, "=", Constant("c", "VARCHAR"))]
)
FAILING = by_duckdb("A", ("A", "B"), True)


@st.composite
def absences(draw: st.DrawFn, raising: bool = False) -> Plan:
    """A plan with negations before the first row of its matches, behind the last one, or both."""
    ahead = draw(sometimes)
    plan = draw(plans(SQL_SELECTIONS, after=ahead, no_skip=False, timeouts=False, raising=raising))
    before, behind = draw(st.sampled_from(PLACES))
    parts = plan.pattern.parts if isinstance(plan.pattern, Concatenation) else (plan.pattern,)
    pattern = Concatenation((*map(Negation, before), *parts, *map(Negation, behind)))
    conditions = RARE | RARE | row_local(ahead)
    if raising:
        conditions = conditions | FAILING | FAILING
    defines = tuple(Define(name, draw(conditions)) for name in dict.fromkeys((*before, *behind)))
    within = draw(st.sampled_from([*BOUNDS, Within(interval_us=4 * SECOND_US), Within(rows=4)]))
    return replace(plan, pattern=pattern, within=within, defines=(*plan.defines, *defines))


class Tally:
    """What the examples of one property were like."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, plan: Plan, rows: list[Row], answer: Answer) -> None:
        inner = replace(plan, pattern=positive(plan))
        self.counts["examples"] += 1
        self.counts["a match"] += any(match[0] == Outcome.MATCH.name for match in answer)
        self.counts["changed by the negation"] += reference_of(inner, rows) != answer
        self.counts["unmatched rows"] += any(match[0] == Outcome.UNMATCHED.name for match in answer)
        self.counts["on the match so far"] += any(assemble(plan).code)

    def report(self, record_property: Callable[[str, object], None]) -> None:
        record_property("examples", ", ".join(f"{what} {count:,}" for what, count in self.counts.items()))
        self.check()

    def check(self) -> None:
        for what in ("a match", "changed by the negation", "on the match so far"):
            assert 5 * self.counts[what] >= self.counts["examples"], what


def positive(plan: Plan) -> Concatenation:
    assert isinstance(plan.pattern, Concatenation)
    return Concatenation(tuple(part for part in plan.pattern.parts if not isinstance(part, Negation)))


@pytest.mark.slow
def test_kernel_equals_reference(record_property: Callable[[str, object], None]) -> None:
    tally = Tally()

    @given(rows=events(min_size=5), plan=absences(), size=st.sampled_from((1, 4, 100)))
    def check(plan: Plan, rows: list[Row], size: int) -> None:
        kernel = kernel_of(plan)
        expected = reference_of(plan, rows)
        assert answer_of(run(kernel, rows, size)) == expected
        tally.add(plan, rows, expected)

    drawn_until_told(check, tally.check)
    tally.report(record_property)


@pytest.mark.slow
@given(rows=events(min_size=5, max_size=10), plan=absences(), data=st.data())
def test_a_match_comes_out_with_the_event_or_watermark_that_decides_it(
    plan: Plan, rows: list[Row], data: st.DataObject
) -> None:
    compare_at_every_step(kernel_of(plan), rows, data)


@pytest.mark.slow
@FEWER  # as of the other kinds of patterns: test_fresh restores matchers of all of them, with new examples each time
@given(rows=events(), plan=absences(), data=st.data())
def test_restoring_a_snapshot_and_dropping_what_no_run_needs_change_nothing(
    plan: Plan, rows: list[Row], data: st.DataObject
) -> None:
    restored_equals_reference(plan, kernels_of(plan), rows, data, variants(0, 3, 1 << 15))


@pytest.mark.slow
@given(rows=events(min_size=5), plan=absences(raising=True), size=st.sampled_from((1, 3, 100)))
def test_a_condition_that_cannot_be_computed_is_an_error_where_the_reference_reads_it(
    plan: Plan, rows: list[Row], size: int
) -> None:
    same_error(plan, kernels_of(plan), rows, size, variants(0, 1 << 15))


def test_a_negation_before_a_match_that_reads_it_runs_through_the_reference() -> None:
    plan = replace(
        _simple(), defines=(Define("A", TRUE), Define("N", compare(V, ">", logical(Which.LAST, V, ("A",)))))
    )
    counts = compare(aggregate("count", None, ()), ">", number(1))
    for behind in (plan, replace(plan, defines=(Define("A", TRUE), Define("N", counts)))):
        assert any(assemble(behind).code)  # Before: NoKernel
        assert isinstance(behind.pattern, Concatenation)
        before = replace(behind, pattern=Concatenation(behind.pattern.parts[::-1]))
        with pytest.raises(NoKernel, match="the condition of ~N on the match, which comes after it,"):
            assemble(before)


def _simple() -> Plan:
    text = """SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS v PATTERN (A NOT N)
        WITHIN INTERVAL '10' SECOND DEFINE A AS s = 'a', N AS s = 'b')"""
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan
