"""Trend statements of SASE+ run as an independent check says: tests/independent/trends_check.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.matcher import KernelMatcher, make_matcher
from query.errors import QueryError
from query.plan.output import output_columns
from query.plan.plan import Plan
from tests.events import batch_of
from tests.independent import trends_check
from tests.independent.trends_check import Event, Query
from tests.properties.comparing import drawn_alike, drawn_until
from tests.query.test_trend_reference import EVENTS, SCHEMA, plan_of, queries, rows_of


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_statements_give_the_rows_of_the_independent_check(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @drawn_alike
    @given(queries(), EVENTS, st.integers(1, 8), st.integers(0, 3))
    def check(query: tuple[str, Query, bool], events: list[Event], size: int, restarted: int) -> None:
        text, meant, _ = query
        try:
            plan = plan_of(text)
        except QueryError:
            return  # the property of the reference says of which
        matcher = make_matcher(plan)
        engine = matcher.chosen.engine if isinstance(matcher, KernelMatcher) else None
        counts["reference" if engine is None else engine.name] += 1
        whole = batch_of(SCHEMA, rows_of(events))
        parts = [whole.slice(i, min(len(events), i + size)) for i in range(0, len(events), size)]
        found = []
        for i, part in enumerate(parts):
            if i == restarted:
                matcher, state = make_matcher(plan), matcher.snapshot()
                matcher.restore(state)
            found.append(matcher.push(part))
        found.append(matcher.advance(None))
        rows = [row for m in found for row in m.rows.to_pylist()]
        wanted = trends_check.rows(meant, events)
        counts["rows"] += len(wanted)
        assert [seconds(plan, row) for row in rows] == wanted

    least = {"counts of trends by state and window": 50, "counts of trends of each side of AND": 10, "rows": 100}
    drawn_until(check, lambda: all(counts[name] > n for name, n in least.items()))
    for name, n in counts.most_common():
        record_property(name, n)
    for name, n in least.items():
        assert counts[name] > n, name


def seconds(plan: Plan, row: dict[str, Any]) -> tuple[Any, ...]:
    """A row with times in seconds and whole numbers as numbers."""
    start, end, *rest = zip(row.values(), output_columns(plan), strict=True)
    times = [(t - datetime(1970, 1, 1)) // timedelta(seconds=1) for t, _ in (start, end)]
    return (*times, *(int(v) if f.type == "BIGNUM" and v is not None else v for v, f in rest))
