"""Trends that are found by the values of their last events have the rows of lists of events, and of the reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.engines.run_ordered import RunOrdered
from matching.matcher import KernelMatcher, make_matcher
from matching.program.trends import TrendTable
from query.errors import QueryError
from tests.properties.comparing import drawn_until, fewer
from tests.properties.test_trends import restarted, through
from tests.trends import ALL_MEASURES, MEASURES, PATTERNS, Row, expected, plan_of, row, rows, rows_of, statement

pytestmark = pytest.mark.slow
#: Conditions of one comparison; those of B where an A comes right before it.
COMPARED = st.sampled_from((
    "A: count(A.*) = 1 OR v >= LAST(A.v, 1)", "A: count(A.*) = 1 OR v < LAST(A.v, 1)",
    "A: count(A.*) = 1 OR LAST(A.d, 1) < d", "A: count(A.*) = 1 OR m <> LAST(A.m, 1)", "B: v > LAST(A.v)",
    "B: v <> LAST(A.v)", "B: g = LAST(A.g)", "B: LAST(A.m) <= m", "B: h > LAST(h, 1)", "A: ts > LAST(ts, 1)",
))  # fmt: skip
#: And of two, which few trends meet: they are drawn as often.
BOTH = st.sampled_from((
    "A: count(A.*) = 1 OR d <= LAST(A.d, 1); B: v <> LAST(A.v)",
    "A: count(A.*) = 1 OR v > LAST(A.v, 1); B: d = LAST(A.d)",
))
FREE = st.sampled_from(("A+ B", "(A+ B)+", "(A | A A) B A*")) | PATTERNS.filter(
    lambda pattern: "NOT" not in pattern and "A" in pattern and "B" in pattern
)
WINDOWS = st.sampled_from(((3, 1), (5, 2), (10, 1), (10, 10), (20, 3)))
KEYS = st.sampled_from((("", ""), ("g", ""), ("g", "g")))


def is_ordered(matcher: object) -> bool:
    return isinstance(matcher, KernelMatcher) and isinstance(matcher.engine, RunOrdered)


def test_trees_give_the_rows_of_the_reference(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @fewer(2)
    @given(
        pattern=FREE, events=rows(types="AAABBC"), windows=WINDOWS, keys=KEYS, size=st.integers(1, 4),
        conditions=COMPARED | BOTH,
    )  # fmt: skip
    def check(
        pattern: str, events: list[Row], windows: tuple[int, int], keys: tuple[str, str], size: int, conditions: str
    ) -> None:
        text = statement(pattern, *windows, partition=keys[0], group=keys[1], measures=ALL_MEASURES,
                         conditions=conditions)  # fmt: skip
        try:
            plan = plan_of(text)
        except QueryError:
            return
        matcher = make_matcher(plan)
        assume(is_ordered(matcher))  # unless no event follows one that it is compared with
        wanted = expected(plan, events)
        assert rows_of(plan, through(matcher, events, size)) == wanted
        assert rows_of(plan, through(make_matcher(plan), events, size, restarted(plan))) == wanted
        counts["ordered"] += 1
        counts["rows"] += bool(wanted)
        counts["both"] += bool(wanted) and ";" in conditions

    drawn_until(check, lambda: min((counts[n] for n in ("ordered", "rows", "both")), default=0) > 5)
    for name, n in counts.most_common():
        record_property(name, n)
    assert min(counts[n] for n in ("ordered", "rows", "both")) > 5


def test_trees_give_the_rows_of_lists(record_property: Callable[[str, object], None]) -> None:
    """Longer windows than the reference can enumerate."""
    counts: Counter[str] = Counter()

    @fewer(8)
    @given(
        pattern=FREE, drawn=st.integers(0, 2**32), count=st.integers(20, 200), windows=WINDOWS, keys=KEYS,
        size=st.sampled_from((9, 30, 61)), conditions=COMPARED | BOTH, either=st.booleans(),
    )  # fmt: skip
    def check(
        pattern: str, drawn: int, count: int, windows: tuple[int, int], keys: tuple[str, str], size: int,
        conditions: str, either: bool,
    ) -> None:  # fmt: skip
        rng = random.Random(drawn)
        events = [
            row(rng.choice("AAABB"), i / 8, rng.choice((None, *range(-9, 9), 2**62, -(2**63))), rng.choice("xy"),
                d=rng.choice((None, 0.0, 1.5, -2.25, float("nan"), -0.0)), m=rng.choice((None, 1, 2)),
                h=rng.choice((1, 2, 3)))
            for i in range(count)
        ]  # fmt: skip
        measures = MEASURES + ", SUM(v) AS sv, MIN(h) AS lh, MAX(m) AS hm, COUNT(g) AS cg"
        text = statement(pattern, *windows, partition=keys[0], group=keys[1], measures=measures,
                         conditions=conditions)  # fmt: skip
        if either:  # an event may be both
            text = text.replace("type = 'B'", "h > 1")
        try:
            plan = plan_of(text)
        except QueryError:
            return
        matcher = make_matcher(plan)
        assume(is_ordered(matcher))
        found = rows_of(plan, through(matcher, events, size))
        assert rows_of(plan, through(make_matcher(plan), events, size, restarted(plan))) == found
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrendTable, "ordered", property(lambda self: False))
            assert rows_of(plan, through(make_matcher(plan), events, size)) == found
        counts["rows"] += bool(found)
        counts["either"] += bool(found) and either
        counts["large numbers"] += any(isinstance(v, int) and abs(v) > 2**80 for of in found for v in of)

    drawn_until(check, lambda: min((counts[n] for n in ("rows", "either", "large numbers")), default=0) > 3)
    for name, n in counts.most_common():
        record_property(name, n)
    assert min(counts[n] for n in ("rows", "either", "large numbers")) > 3
