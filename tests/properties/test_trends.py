"""Rows per window: the engine gives those of the reference, whatever the batches, the watermarks and the restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import Matcher, Matches
from matching.matcher import KernelMatcher, make_matcher
from query.errors import QueryError
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import drawn_until, fewer
from tests.trends import (
    ALL_MEASURES,
    EVENTS,
    PATTERNS,
    SELECTIONS,
    Row,
    expected,
    plan_of,
    rows,
    rows_of,
    statement,
)

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
#: Conditions on two neighbours of a trend.
BETWEEN = (
    "A: count(A.*) = 1 OR v >= LAST(A.v, 1)",
    "B: v > LAST(A.v)",
    "A: LAST(A.v, 1) IS NULL OR v <> LAST(A.v, 1); B: v IS NULL OR LAST(A.v) IS NULL OR v > LAST(A.v)",
    "A: count(A.*) > 1 AND d >= LAST(A.d, 1) OR count(A.*) = 1 AND v > 1; B: g = LAST(g, 1) OR h IS NULL",
    "A: m < LAST(m, 1) OR LAST(m, 1) IS NULL; B: d = LAST(A.d) AND v >= LAST(A.v)",
)
#: One that has no engine.
ENUMERATED = "B: g >= LAST(g, 1)"
#: Further ones, which are no comparisons of a value of each. Before: they were enumerated.
COMPUTED = (
    "A: count(A.*) = 1 OR abs(h - LAST(A.h, 1)) < 1; B: d > 1.05 * LAST(A.d) + h",
    "B: h IN (LAST(h, 1), 2) AND v <> LAST(v, 1)",
    "A: NOT (h > LAST(A.h, 1)) OR LAST(m, 1) > m * 1.5; B: h NOT IN (LAST(A.h), 1) OR g = LAST(A.g)",
    "B: CASE WHEN LAST(A.h) > 1 THEN d > 0 WHEN g = LAST(A.g) THEN LAST(A.d) < d ELSE LAST(A.v) IS NULL END",
    "A: h BETWEEN LAST(h, 1) AND LAST(h, 1) + 1 OR LAST(h, 1) IS NULL; B: ts - LAST(ts, 1) < INTERVAL '2' SECOND",
    "A: coalesce(LAST(A.d, 1), 1) - d < 0.5; B: d = LAST(A.d) OR d * LAST(A.h) > 3 AND h > LAST(A.h)",
    "A: g IN (LAST(A.g, 1), 'x'); B: (h > LAST(A.h)) = (d > LAST(A.d)) OR m - LAST(m, 1) > 50",
)


def through(
    matcher: Matcher, events: Sequence[Row], size: int, restart: Callable[[Matcher], Matcher] | None = None
) -> list[Matches]:
    """Returns what a matcher gives for events in batches of `size`, with the watermark of each batch after it."""
    found = []
    whole = batch_of(EVENTS, events)
    for begin in range(0, len(events), size):
        part = whole.slice(begin, min(len(events), begin + size))
        found.append(matcher.push(part))
        if begin % 2:
            found.append(matcher.advance(int(part.ts_us[-1])))
        if restart is not None:
            matcher = restart(matcher)
    return [*found, matcher.advance(None)]


def restarted(plan: Plan) -> Callable[[Matcher], Matcher]:
    def restart(matcher: Matcher) -> Matcher:
        new = make_matcher(plan)
        new.restore(matcher.snapshot())
        return new

    return restart


@pytest.mark.slow
def test_the_engine_gives_the_rows_of_the_reference(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @fewer(4)
    @given(
        pattern=PATTERNS, events=rows(), within=st.sampled_from((3, 5, 10)), slide=st.sampled_from((1, 2, 3, 10)),
        keys=st.sampled_from((("", ""), ("g", ""), ("g", "g"), ("g, h", "h"), ("h, g", "g, h"))),
        selection=SELECTIONS, size=st.integers(1, 4),
        conditions=st.sampled_from(("", ENUMERATED)) | st.sampled_from(BETWEEN) | st.sampled_from(COMPUTED),
    )  # fmt: skip
    def check(
        pattern: str, events: list[Row], within: int, slide: int, keys: tuple[str, str], selection: str, size: int,
        conditions: str,
    ) -> None:  # fmt: skip
        assume("A" in pattern and "B" in pattern)
        text = statement(pattern, within, slide, partition=keys[0], group=keys[1], selection=selection,
                         measures=ALL_MEASURES, conditions=conditions)  # fmt: skip
        counts["drawn"] += 1
        try:
            plan = plan_of(text)
        except QueryError as refused:
            counts[refused.diagnostics[0].message] += 1
            return
        wanted = expected(plan, events)
        matcher = make_matcher(plan)
        engine = matcher.chosen.engine if isinstance(matcher, KernelMatcher) else None
        counts[engine.name if engine is not None else "reference"] += 1
        counts["rows"] += len(wanted)
        counts["several windows"] += len({row[0] for row in wanted}) > 1
        counts["several trends"] += any(row[2 + keys[1].count(",") + bool(keys[1])] > 1 for row in wanted)
        counts["NOT"] += "NOT" in pattern
        counts["between neighbours"] += bool(wanted and engine and conditions)
        counts["computed"] += bool(wanted and engine and conditions in COMPUTED)
        assert engine is not None or conditions not in COMPUTED
        assert rows_of(plan, through(matcher, events, size)) == wanted
        assert rows_of(plan, through(make_matcher(plan), events, size, restarted(plan))) == wanted

    least = dict.fromkeys(("several windows", "several trends", "NOT", "between neighbours", "computed"), 5)
    least |= {"counts of trends by state and window": 10, "reference": 0}
    drawn_until(check, lambda: all(counts[name] > n for name, n in least.items()))
    for name, n in counts.most_common():
        record_property(name, n)
    for name, n in least.items():
        assert counts[name] > n, name


@pytest.mark.slow
@pytest.mark.parametrize("condition", ["v > LAST(A.v, 1)", "v - LAST(A.v, 1) > 0", "g > LAST(A.g, 1)"])
def test_rising_events_by_the_engine_and_by_enumeration(condition: str) -> None:
    text = statement("A+ B", 10, 5, conditions=f"A: count(A.*) = 1 OR {condition}", measures="COUNT(MATCHES) AS n")
    plan = plan_of(text)
    assert isinstance(make_matcher(plan), KernelMatcher) == ("g" not in condition)
    events: list[Row] = [
        {"ts": s * 1_000_000, "type": t, "v": v, "d": None, "m": None, "g": chr(64 + v), "h": None}
        for s, t, v in ((1, "A", 1), (2, "A", 3), (3, "A", 2), (4, "B", 0), (11, "A", 1), (12, "B", 0))
    ]
    wanted: list[tuple[Any, ...]] = expected(plan, events)
    assert wanted[0][2] == 5  # 1, 3, 2, 1 3, 1 2
    for size in (1, 2, 6):
        assert rows_of(plan, through(make_matcher(plan), events, size)) == wanted
        assert rows_of(plan, through(make_matcher(plan), events, size, restarted(plan))) == wanted
