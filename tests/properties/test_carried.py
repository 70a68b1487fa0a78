"""Output rows without evidence: the same as the reference's, from runs that carry what measures read and from every
other engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.engines.run_blocks import RunBlocks
from matching.matcher import KernelMatcher
from matching.program.carried import carry
from matching.program.program import Program, assemble
from matching.purpose import Purpose
from query.language.ast import AfterMatchKind, RowsPerMatch
from query.plan.expression import Aggregate, Call, Expression, Logical, MatchNumber, Navigation
from query.plan.pattern import Sequence as Concatenation
from query.plan.pattern import Variable
from query.plan.plan import AfterMatch, Define, Measure, Plan
from tests.engines import matcher_by
from tests.properties.comparing import FEWER, by_reference, constant, drawn_until, program_of, run, variants
from tests.properties.test_skip_till import skipping
from tests.properties.test_specialised import swapped
from tests.strategies import SQL_SELECTIONS, TS, Row, S, V, X, events, plans, row_local, sometimes, variables


@st.composite
def carried(draw: st.DrawFn) -> Plan:
    """A plan that passes over rows, whose measures read counts and single rows of a match."""
    plan = draw(skipping())
    if draw(sometimes):  # what is a chain
        places = draw(st.lists(st.sampled_from("ABC"), min_size=2, max_size=4))
        defines = tuple(Define(name, draw(row_local(False))) for name in sorted({*places}))
        pattern = Concatenation(tuple(map(Variable, places)))
        plan = replace(plan, pattern=pattern, defines=defines, after=AfterMatch(AfterMatchKind.NO_SKIP))
    names = variables(plan.pattern)
    groups = st.sampled_from([*((n,) for n in names), tuple(names[:2]), ()])
    column = st.sampled_from((V, X, S, TS))

    def navigation(which: Logical, c: Expression, of: tuple[str, ...], n: int) -> Expression:
        return Navigation(c, of, which, n, 0, False, c.type)

    row = st.builds(navigation, st.sampled_from(Logical), column, groups, st.integers(0, 2))
    number = st.builds(lambda of: Aggregate("count", None, of, False, False, "BIGINT"), groups)
    both = st.builds(
        lambda n, of, which: Call("+", (n, Navigation(V, of, which, 0, 0, False, "BIGINT")), "BIGINT"),
        number, groups, st.sampled_from(Logical),
    )  # fmt: skip
    shown = draw(st.lists(st.one_of(row, row, number, both, column, st.just(MatchNumber())), min_size=1, max_size=4))
    measures = tuple(Measure(f"m{i}", e) for i, e in enumerate(shown))
    return replace(plan, measures=measures, rows=RowsPerMatch.ONE, timeout_rows=False)


def bare(plan: Plan, program: Program | None = None) -> KernelMatcher:
    """program: that of the plan; else it is worked out."""
    return matcher_by(plan, purpose=Purpose.ROWS, program=program or program_of(plan), lenient=True)


def rows_of(found: Sequence[Matches]) -> list[tuple[object, ...]]:
    """Output rows with number and outcome of their matches, sorted; NaN prints as itself."""
    out = []
    for matches in found:
        shown = matches.rows.to_pylist() if matches.rows.num_columns else [None] * len(matches.row_match)
        for row, match in zip(shown, matches.row_match.tolist(), strict=True):
            outcome = 0 if matches.outcome is None else int(matches.outcome[match])
            out.append((outcome, int(matches.number[match]), repr(row)))
    return sorted(out)


def reference_rows(plan: Plan, rows: list[Row]) -> list[tuple[object, ...]]:
    return rows_of([by_reference(plan, rows)])


@pytest.mark.slow
def test_runs_that_carry_what_measures_read_equal_the_reference(
    record_property: Callable[[str, object], None],
) -> None:
    counts: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=4), plan=carried(), size=st.sampled_from((1, 3, 100)))
    def check(plan: Plan, rows: list[Row], size: int) -> None:
        program = program_of(plan)
        expected = reference_rows(plan, rows)
        for slack in variants(0, 1 << 15):
            with constant("matching.rows.SLACK", slack):
                matcher = bare(plan, program)
                assert rows_of(run(matcher, rows, size)) == expected, f"SLACK {slack}"
        counts["examples"] += 1
        counts["a match"] += bool(expected)
        counts["carried"] += isinstance(matcher.engine, RunBlocks) and matcher.engine.program.carries is not None
        counts["positions carried"] += isinstance(matcher.engine, RunBlocks) and bool(matcher.engine.program.carries)
        counts["a chain"] += matcher.chosen.chain is not None

    met = ("a match", "carried", "positions carried", "a chain")
    drawn_until(check, lambda: all(counts[what] for what in met))
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in counts.items()))
    for what in met:
        few = counts["examples"] < 100  # of which a share says little
        assert 6 * counts[what] >= counts["examples"] or (few and counts[what]), what


@pytest.mark.slow
def test_so_do_those_of_a_kernel_written_for_the_program() -> None:
    counts: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=4), plan=carried(), size=st.sampled_from((1, 4, 100)), swap=st.integers(0, 6))
    def check(plan: Plan, rows: list[Row], size: int, swap: int) -> None:
        matcher = bare(plan)
        # Before: a kernel was written out with the order of texts, which has no place in it, and could not be run.
        assume(isinstance(matcher.engine, RunBlocks) and matcher.engine.specialises)
        found = rows_of(swapped(matcher, rows, size, swap))
        assert found == reference_rows(plan, rows)
        counts["a match"] += bool(found)

    drawn_until(check, lambda: counts["a match"] > 0)
    assert counts["a match"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*would not move on:query.errors.HybridWarning")
@FEWER
@given(rows=events(), plan=plans(SQL_SELECTIONS) | skipping(), size=st.sampled_from((1, 4, 100)))
def test_rows_without_evidence_are_those_of_every_engine(plan: Plan, rows: list[Row], size: int) -> None:
    assert rows_of(run(bare(plan), rows, size)) == reference_rows(plan, rows)


def test_measures_that_need_the_rows_of_a_match_are_not_carried() -> None:
    from query.language.parse import parse
    from query.plan.bind import bind
    from tests.strategies import SCHEMA

    def carries(measures: str, rows: str = "ONE ROW PER MATCH") -> bool:
        text = f"""SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {measures} {rows}
            PATTERN (A+ B) WITHIN INTERVAL '1' MINUTE SELECTION SKIP TILL NEXT MATCH DEFINE A AS v > LAST(A.v, 1)) m"""
        plan = bind(parse(text), lambda _: SCHEMA).factors[0].plan
        return carry(plan, assemble(plan)) is not None

    assert carries("FIRST(A.v) AS a, LAST(A.v, 2) + B.v AS b, count(*) AS n, MATCH_NUMBER() AS m, B.s AS s")
    for measures in ("sum(A.v) AS s", "count(A.v) AS n", "CLASSIFIER() AS c", "PREV(A.v) AS p"):
        assert not carries(measures)
    assert not carries("A.v AS a", "ALL ROWS PER MATCH")
