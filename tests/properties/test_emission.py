"""In which order matches come out: what ALERT ONCE builds on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.by_reference import ReferenceMatcher
from matching.matcher import KernelMatcher
from query.errors import DataError, QueryError
from query.plan.lag import in_order_of_last_events, last_event_lag_us
from query.plan.pattern import min_rows
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import FEWER, kernel_of
from tests.strategies import SCHEMA, Row, events, plans

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")

#: Partition, offset and time of the last event, and all events, of each match.
Order = list[tuple[object, int, int, tuple[int, ...]]]


def order_of(found: Sequence[Matches], rows: Sequence[Row], plan: Plan) -> Order:
    """The matches in the order in which they came out; those without events are left out."""
    out: Order = []
    for matches in found:
        bounds = matches.event_bounds.tolist()
        for i in range(len(matches)):
            offsets = tuple(matches.event_offset[bounds[i] : bounds[i + 1]].tolist())
            if offsets:
                last = rows[offsets[-1]]
                key = tuple(repr(last[c.name]) for c in plan.partition_by)
                out.append((key, offsets[-1], int(matches.last_us[i]), offsets))
    return out


def cut(
    matcher: KernelMatcher | ReferenceMatcher, rows: Sequence[Row], data: st.DataObject
) -> tuple[list[Matches], list[tuple[int, list[Matches]]]]:
    """All that comes of the rows in batches of any size, with the watermarks behind them; and the same by watermark."""
    at, found, by_watermark = 0, list[Matches](), list[tuple[int, list[Matches]]]()
    while at < len(rows):
        size = data.draw(st.integers(1, 8))
        pushed = matcher.push(batch_of(SCHEMA, rows[at : at + size], at))
        at += size
        bound = rows[at]["ts"] if at < len(rows) else int(rows[-1]["ts"]) + 20_000_000  # type: ignore[call-overload]
        watermark = int(bound)  # type: ignore[call-overload]
        step = [pushed, matcher.advance(watermark)] if data.draw(st.booleans()) else [pushed]
        found += step
        if len(step) == 2:
            by_watermark.append((watermark, step))
    return [*found, matcher.advance(None)], by_watermark


@pytest.mark.slow
@FEWER
@given(rows=events(), plan=plans(), data=st.data())
def test_matches_of_a_partition_come_in_one_order_and_those_with_their_last_event_all_do(
    rows: list[Row], plan: Plan, data: st.DataObject
) -> None:
    assume(min_rows(plan.pattern))
    engines: list[KernelMatcher | ReferenceMatcher] = [kernel_of(plan), kernel_of(plan)]
    if data.draw(st.booleans()):
        engines.append(ReferenceMatcher(plan, lenient=True))
    try:
        runs = [cut(engine, rows, data) for engine in engines]
    except (DataError, QueryError):
        assume(False)
        raise
    orders = [order_of(found, rows, plan) for found, _ in runs]
    keys = {key for key, *_ in orders[0]}
    for order in orders[1:]:
        for key in keys:
            assert [m for m in order if m[0] == key] == [m for m in orders[0] if m[0] == key]
    if in_order_of_last_events(plan):
        for order in orders:
            assert order == orders[0]
            assert [last for _, last, _, _ in order] == sorted(last for _, last, _, _ in order)


@pytest.mark.slow
@FEWER
@given(rows=events(), plan=plans(), data=st.data())
def test_no_last_event_is_further_behind_the_watermark_than_the_plan_says(
    rows: list[Row], plan: Plan, data: st.DataObject
) -> None:
    assume(min_rows(plan.pattern))
    lag_us = last_event_lag_us(plan)
    assume(lag_us is not None)
    assert lag_us is not None
    try:
        found, by_watermark = cut(kernel_of(plan), rows, data)
    except DataError:
        assume(False)
        raise
    for watermark, step in by_watermark:
        position = next(i for i, m in enumerate(found) if m is step[-1]) + 1
        times = np.concatenate([np.empty(0, np.int64), *(m.last_us for m in found[position:])])
        assert not len(times) or int(times.min()) >= watermark - lag_us
