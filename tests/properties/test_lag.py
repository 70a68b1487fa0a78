"""How late rows come out: none lies further behind the watermark than its plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import Matcher, Matches
from matching.by_reference import ReferenceMatcher
from matching.matcher import make_matcher
from query.errors import QueryError
from query.language.ast import RowsPerMatch
from query.plan.expression import Column
from query.plan.fingerprint import fingerprint
from query.plan.lag import lag_us
from query.plan.plan import Measure, Plan
from tests.events import batch_of
from tests.properties.comparing import drawn_until_told
from tests.properties.test_absence import absences
from tests.strategies import SCHEMA, SECOND_US, SKIP_TILL, SQL_SELECTIONS, Row, Within, chains, events, plans, sometimes

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")

LAST = Measure("last_time", Column("ts", "TIMESTAMP"))


@st.composite
def bounded_plans(draw: st.DrawFn) -> Plan:
    """A plan whose rows have a bound, mostly; the last measure is the time of the last event, for one row per match."""
    plan = draw(
        st.one_of(
            plans((*SKIP_TILL, *SQL_SELECTIONS), negations=True, after=False, anchored=False),
            plans((*SKIP_TILL, *SQL_SELECTIONS), chains, negations=True),
            absences(),
        )
    )
    if draw(sometimes):
        plan = replace(plan, within=Within(interval_us=draw(st.integers(0, 6)) * SECOND_US))
    if plan.rows is RowsPerMatch.ONE:
        plan = replace(plan, measures=(*plan.measures, LAST))
    return plan


def steps(matcher: Matcher, rows: list[Row], size: int, ahead_us: int) -> list[tuple[int, Matches]]:
    """What comes out after each watermark: rows in order, and now and then nothing for a while."""
    found: list[tuple[int, Matches]] = []
    w = -(2**62)
    for at in range(0, len(rows), size):
        part = batch_of(SCHEMA, rows[at : at + size], at)
        found.append((w, matcher.push(part)))
        reached = int(part.ts_us[-1])
        behind = int(rows[at + size]["ts"]) if at + size < len(rows) else reached + ahead_us  # type: ignore[call-overload]
        for to in (reached, min(reached + ahead_us, behind)):
            found.append((w, matcher.advance(to)))
            w = max(w, to)
    found.append((w, matcher.advance(None)))
    return found


@pytest.mark.slow
def test_no_row_is_later_than_its_plan_says(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str] = Counter()

    @given(
        plan=bounded_plans(), rows=events(min_size=4), size=st.sampled_from((1, 1, 3)),
        ahead=st.sampled_from((0, 1, SECOND_US, 3 * SECOND_US)), by_reference=sometimes,
    )  # fmt: skip
    def check(plan: Plan, rows: list[Row], size: int, ahead: int, by_reference: bool) -> None:
        of_last = lag_us(plan, LAST.name) if plan.rows is RowsPerMatch.ONE else None
        of_first = lag_us(plan, None)
        seen["examples"] += 1
        if of_last is None and of_first is None:
            seen["no bound"] += 1
            return
        matcher = ReferenceMatcher(plan, lenient=True) if by_reference else make_matcher(plan, lenient=True)
        try:
            found = steps(matcher, rows, size, ahead)
        except QueryError:
            assume(False)
            raise
        seen["lag 0"] += of_last == 0
        seen["a match"] += any(len(matches) > 0 for _, matches in found)
        for w, matches in found:
            for times, lag in ((matches.last_us, of_last), (matches.first_us, of_first)):
                if lag is not None and len(times):
                    assert int(np.min(times)) >= w - lag, (fingerprint(plan), w, lag)

    def told() -> None:
        assert 5 * seen["lag 0"] >= seen["examples"]
        assert 4 * seen["a match"] >= seen["examples"]

    drawn_until_told(check, told)
    record_property("examples", dict(seen))
