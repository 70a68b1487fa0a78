"""A condition or measure that cannot be computed ends a query at its row; what was decided before comes out, however
the rows come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matcher
from matching.by_reference import ReferenceMatcher
from matching.drive import Drive
from matching.matcher import KernelMatcher, make_matcher
from matching.ordering import Ordering
from query.language.ast import RowsPerMatch
from query.plan.expression import Call, Logical, Opaque
from query.plan.plan import Measure, Plan
from tests.events import batch_of
from tests.properties.comparing import FEWER, Answer, answer_of, drawn_alike, drawn_until_told
from tests.properties.test_skip_till import skipping
from tests.strategies import SCHEMA, Row, S, events, logical, plans

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")


def answer(matcher: Matcher, rows: list[Row], cuts: list[int], ends: bool = True) -> tuple[Answer, bool]:
    """What comes out of rows that come in pieces, each with a watermark at its last row, and whether it fails."""
    drive, found = Drive(Ordering(SCHEMA), matcher), []
    whole = replace(batch_of(SCHEMA, rows), seq=np.arange(len(rows)))
    for low, high in pairwise(sorted({0, len(rows), *cuts})):
        found += drive.push(whole.slice(low, high), int(whole.ts_us[high - 1]))
    found += drive.advance(None) if ends else []
    return answer_of(found), drive.failure is not None


#: Cannot be computed for a row whose text is '!', and holds for every other one.
FAILS = Opaque("CASE WHEN \"_0\" = '!' THEN CAST(\"_0\" AS INTEGER) ELSE 1 END = 1", (S,), "BOOLEAN")


def failing(draw: st.DrawFn, plan: Plan, rows: list[Row]) -> tuple[Plan, list[Row]]:
    """The plan with a condition that fails, or an output that does, and the rows with one that it fails for."""
    at = draw(st.integers(len(rows) // 2, len(rows) - 1))
    rows = [*rows[:at], {**rows[at], "s": "!"}, *rows[at + 1 :]]
    if not plan.defines or draw(st.integers(0, 3)) == 0:
        last = Opaque(FAILS.sql, (logical(Logical.LAST, S, ()),), "BOOLEAN")
        return replace(plan, measures=(*plan.measures, Measure("fails", last))), rows
    k = draw(st.integers(0, len(plan.defines) - 1))
    define = plan.defines[k]
    one = replace(define, condition=Call("and", (FAILS, define.condition), "BOOLEAN"))
    return replace(plan, defines=(*plan.defines[:k], one, *plan.defines[k + 1 :])), rows


@pytest.mark.slow
def test_a_failure_takes_no_row_away_that_was_decided_before(record_property: Callable[[str, object], None]) -> None:
    # Before: what the rows of a push before the failing one had decided was lost.
    seen: Counter[str] = Counter()

    @drawn_alike
    @FEWER
    @given(rows=events(min_size=6), plan=plans(raising=True) | skipping(True), data=st.data())
    def check(rows: list[Row], plan: Plan, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 3)):
            plan, rows = failing(data.draw, plan, rows)
        matcher = make_matcher(plan, lenient=True)
        kernel = matcher if isinstance(matcher, KernelMatcher) else None
        one, failed = answer(make_matcher(plan, lenient=True), rows, list(range(len(rows))))
        cuts = data.draw(st.lists(st.integers(1, len(rows)), max_size=3))
        found = answer(matcher, rows, cuts)
        name = kernel.engine.name if kernel is not None else "reference"  # after the rows, as it may change on the way
        assert found[1] == failed
        if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED and failed:
            # which rows behind the last match are known to be unmatched is not told
            assert [m for m in one if m[0] == "MATCH"] == [m for m in found[0] if m[0] == "MATCH"]
        else:
            assert found[0] == one
            reads_measures = any(m.name == "fails" for m in plan.measures)
            if kernel is not None and not reads_measures:
                # the end of the input decides for all keys at once
                by_reference = answer(ReferenceMatcher(plan, lenient=True), rows, cuts, ends=False)
                assert answer(make_matcher(plan, lenient=True), rows, cuts, ends=False) == by_reference
                seen["asked the reference"] += 1
        seen["examples"] += 1
        seen["a failure"] += failed
        seen["a failure behind a match"] += failed and bool(one)
        if failed and one:
            seen[f"of {name}"] += 1

    def told() -> None:
        assert seen["a failure behind a match"] > 0

    drawn_until_told(check, told)
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in seen.items()))
