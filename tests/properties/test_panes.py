"""Windows that are put together from panes have the rows of windows that are counted one by one, and of the
reference."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from matching.engines.run_panes import RunPanes
from matching.matcher import KernelMatcher, make_matcher
from query.errors import QueryError
from tests.properties.comparing import constant, drawn_until, fewer
from tests.properties.test_trends import restarted, through
from tests.trends import ALL_MEASURES, MEASURES, PATTERNS, Row, expected, plan_of, row, rows, rows_of, statement

pytestmark = pytest.mark.slow
PLACE = "matching.program.trends.PANES_FROM"
WINDOWS = st.sampled_from(((3, 1), (5, 1), (5, 2), (8, 3), (10, 1), (10, 3), (10, 4), (40, 1), (41, 2)))
KEYS = st.sampled_from((("", ""), ("g", ""), ("g", "g"), ("g, h", "h"), ("h, g", "g, h")))
#: Without sums of doubles, whose last digits depend on the order of additions.
EXACT_MEASURES = MEASURES + ", SUM(v) AS sv, AVG(v) AS av, SUM(B.m) AS sm, MIN(d) AS ld, MAX(m) AS hm, COUNT(g) AS cg"


def stream(drawn: int, count: int) -> list[Row]:
    """Returns events in order of time, about four a second, and sometimes none for a while."""
    rng, second, found = random.Random(drawn), 0.0, []
    for _ in range(count):
        second += rng.choice((0, 0.1, 0.25, 0.25, 0.5, 9)) if rng.random() < 0.97 else 60
        found.append(row(
            rng.choice("AAABBBCD"), second, rng.choice((None, 1, 2, -3, 7, 2**62, -(2**63), 2**63 - 1)),
            rng.choice("xy"), d=rng.choice((None, 0.0, 1.5, -2.25)), m=Decimal(rng.randint(-99, 99)) / 100,
            h=rng.choice((1, 2)),
        ))  # fmt: skip
    return found


def test_panes_give_the_rows_of_the_reference(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @fewer(4)
    @given(pattern=PATTERNS, events=rows(), windows=WINDOWS, keys=KEYS, size=st.integers(1, 4))
    def check(pattern: str, events: list[Row], windows: tuple[int, int], keys: tuple[str, str], size: int) -> None:
        assume("A" in pattern and "B" in pattern)
        text = statement(pattern, *windows, partition=keys[0], group=keys[1], measures=ALL_MEASURES)
        try:
            plan = plan_of(text)
        except QueryError:
            return
        wanted = expected(plan, events)
        with constant(PLACE, 2):
            matcher = make_matcher(plan)
            counts["panes"] += isinstance(matcher, KernelMatcher) and isinstance(matcher.engine, RunPanes)
            assert rows_of(plan, through(matcher, events, size)) == wanted
            assert rows_of(plan, through(make_matcher(plan), events, size, restarted(plan))) == wanted
        counts["several windows"] += len({row[0] for row in wanted}) > 1
        counts["NOT"] += bool(wanted) and "NOT" in pattern
        counts["parts of a slide"] += bool(wanted) and windows[0] % windows[1] > 0

    drawn_until(check, lambda: len(counts) == 4 and min(counts.values()) > 5)
    for name, n in counts.most_common():
        record_property(name, n)
    assert len(counts) == 4
    assert min(counts.values()) > 5


def test_panes_give_the_rows_of_windows_that_are_counted_one_by_one(
    record_property: Callable[[str, object], None],
) -> None:
    """Longer streams than the reference can enumerate, over several blocks."""
    counts: Counter[str] = Counter()

    @fewer(8)
    @given(
        pattern=PATTERNS, drawn=st.integers(0, 2**32), count=st.integers(20, 200), windows=WINDOWS, keys=KEYS,
        size=st.sampled_from((9, 30, 61)),
    )  # fmt: skip
    @example(pattern="(A+ B)+", drawn=1, count=200, windows=(40, 1), keys=("", ""), size=30)  # blocks, large numbers
    def check(
        pattern: str, drawn: int, count: int, windows: tuple[int, int], keys: tuple[str, str], size: int
    ) -> None:  # fmt: skip
        assume("A" in pattern and "B" in pattern)
        events = stream(drawn, count)
        text = statement(pattern, *windows, partition=keys[0], group=keys[1], measures=EXACT_MEASURES)
        try:
            plan = plan_of(text)
        except QueryError:
            return
        found = []
        for least in (2, 1 << 30):
            with constant(PLACE, least):
                matcher = make_matcher(plan)
                counts[matcher.engine.tag if isinstance(matcher, KernelMatcher) else ""] += 1
                found.append(rows_of(plan, through(matcher, events, size)))
                found.append(rows_of(plan, through(make_matcher(plan), events, size, restarted(plan))))
        assert found[0] == found[1] == found[2] == found[3]
        counts["more than one block"] += len({of[0] for of in found[0]}) > 2 * windows[0]
        counts["large numbers"] += any(isinstance(v, int) and abs(v) > 2**80 for of in found[0] for v in of)

    met = {"panes": 10, "more than one block": 0, "large numbers": 0}
    drawn_until(check, lambda: all(counts[name] > n for name, n in met.items()))
    for name, n in counts.most_common():
        record_property(name, n)
    assert counts["panes"] > 10
    assert counts["more than one block"]
    assert counts["large numbers"]


@pytest.mark.parametrize("text", [
    "FROM events TYPE BY type PATTERN SEQ(A a, B b) AND C+ c {} RETURN COUNT(*), SUM(c.v), MIN(a.v)",
    "FROM events TYPE BY type PATTERN SEQ(A+ a, NOT(D), B b) AND C c WHERE [g] GROUP BY g {} RETURN COUNT(*), SUM(b.v)",
])  # fmt: skip
def test_both_sides_of_and(text: str) -> None:
    counts: Counter[str] = Counter()

    @fewer(4)
    @given(events=rows(9), size=st.integers(1, 4))
    def check(events: list[Row], size: int) -> None:
        plan = plan_of(text.format("WITHIN 5 SECONDS SLIDE 1 SECOND"))
        wanted = expected(plan, events)
        with constant(PLACE, 2):
            assert rows_of(plan, through(make_matcher(plan), events, size)) == wanted
            assert rows_of(plan, through(make_matcher(plan), events, size, restarted(plan))) == wanted
        counts["rows"] += len(wanted)

    drawn_until(check, lambda: counts["rows"] > 0)
    assert counts["rows"]
