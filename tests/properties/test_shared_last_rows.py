"""SKIP TO the last row of every match is one table (matching.program.determinise) and gives what the reference gives:
at every step, cut anywhere, compacted, restored at any point, and where a condition cannot be computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.engines.run_table import RunTable
from matching.matcher import KernelMatcher
from matching.program.determinise import shares_last_rows
from query.language.ast import AfterMatchKind
from query.plan.expression import TRUE, Call, Opaque
from query.plan.pattern import Repeat, Variable, variables
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Plan
from tests.engines import matcher_by
from tests.properties.comparing import (
    FEWER,
    answer_of,
    answer_of_restored,
    compare_at_every_step,
    constant,
    drawn_until,
    program_of,
    reference_of,
    run,
    same_error,
    steps_for,
)
from tests.strategies import NAMES, Row, S, compare, events, number, patterns, plans, row_local

#: It cannot be computed for rows whose s is not a.
FAILS = compare(Opaque("CAST(replace(\"_0\", 'a', '1') AS INTEGER)", (S,), "INTEGER"), ">", number(0))


@st.composite
def shared_plans(draw: st.DrawFn, fails: bool = False) -> Plan:
    """Plans with row-local conditions whose matches have two rows or more and end in rows that are skipped to."""
    count = draw(st.integers(1, 2))
    ends: list[str] = list(NAMES[-count:])
    last = draw(patterns(tuple(ends))) if count == 2 else Repeat(Variable(ends[0]), 1, None, draw(st.booleans()))
    pattern = Concatenation((Variable(NAMES[0]), *draw(st.lists(patterns(NAMES[:2]), max_size=1)), last))
    names = variables(pattern)
    either = st.builds(lambda a, b: Call("or", (a, b), "BOOLEAN"), row_local(), row_local())
    condition = st.one_of(st.just(TRUE), row_local(), either, *([st.just(FAILS)] if fails else []))
    plan = replace(
        draw(plans(no_skip=False, after=False, opaque=False, unmatched=False, timeouts=False)),
        pattern=pattern,
        within=None,
        measures=(),
        after=AfterMatch(AfterMatchKind.TO_LAST, tuple(ends)),
        subsets=(("U", tuple(ends)),),
        defines=tuple(Define(name, draw(condition)) for name in names),
    )
    assume(shares_last_rows(program_of(plan)))
    return plan


def table_of(plan: Plan) -> Callable[[], KernelMatcher]:
    """Makes matchers of the plan, by the table that is chosen for it; rejects it if the table is too large."""
    make = partial(matcher_by, plan, program=program_of(plan), lenient=True)
    assume(isinstance(make().engine, RunTable))
    return make


@pytest.mark.slow
def test_a_row_that_ends_a_match_and_begins_the_next_is_in_both(
    record_property: Callable[[str, object], None],
) -> None:
    seen: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=5), plan=shared_plans(), data=st.data())
    def check(plan: Plan, rows: list[Row], data: st.DataObject) -> None:
        make = table_of(plan)
        expected = reference_of(plan, rows)
        for slack in (0, 3):  # compaction after almost every batch
            with constant("matching.rows.SLACK", slack):
                assert answer_of(run(make(), rows, 1 + slack)) == expected, f"SLACK {slack}"
        compare_at_every_step(make(), rows, data)
        assert answer_of_restored(make, rows, steps_for(rows, data)) == expected
        matched = [offset for match in expected for _, offset in match[4]]  # type: ignore[attr-defined]
        seen["examples"] += 1
        seen["a match"] += bool(expected)
        seen["a row in two matches"] += len(set(matched)) < len(matched)

    drawn_until(check, lambda: seen["a row in two matches"] > 0)
    record_property("examples", ", ".join(f"{what} {count}" for what, count in seen.items()))
    assert seen["a row in two matches"] > 0
    assert 4 * seen["a match"] >= seen["examples"]


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=5), plan=shared_plans(fails=True), size=st.sampled_from((1, 3, 100)))
def test_run_lists_go_on_from_the_table_if_a_condition_cannot_be_computed(
    plan: Plan, rows: list[Row], size: int
) -> None:
    same_error(plan, table_of(plan), rows, size)
