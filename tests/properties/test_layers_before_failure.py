"""A condition of a layer that cannot be computed ends a query at its event; what was decided before comes out, however
the events come."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.drive import Drive
from matching.matcher import make_matcher
from matching.ordering import Ordering
from query.errors import HybridWarning
from query.plan.plan import Plan
from tests.hierarchies import EVENTS, Event, Hierarchy, Leaf, batch_of, hierarchies, leaves, plan_of
from tests.properties.comparing import FEWER, drawn_alike


def answer(plan: Plan, events: tuple[Event, ...], cuts: list[int]) -> tuple[list[tuple[Leaf, ...]], bool]:
    """What comes out of events that come in pieces, each with a watermark at its last one, and whether it fails."""
    drive, found, whole = Drive(Ordering(EVENTS), make_matcher(plan, lenient=True)), [], batch_of(events)
    for low, high in pairwise(sorted({0, len(events), *cuts})):
        found += drive.push(whole.slice(low, high), int(whole.ts_us[high - 1]))
    return leaves(found), drive.failure is not None


def failing(draw: st.DrawFn, one: Hierarchy) -> str:
    """The statement with a condition that cannot be computed for one of the events."""
    places = [m.start() for m in re.finditer("s = '", one.text)]
    at, event = draw(st.sampled_from(places)), draw(st.integers(len(one.events) // 2, len(one.events) - 1))
    fails = f"CAST(CASE WHEN i = {event} THEN 'x' ELSE '1' END AS INTEGER) = 1 AND "
    return one.text[:at] + fails + one.text[at:]


@pytest.mark.slow
def test_a_failure_takes_no_match_away_that_was_decided_before(record_property: Callable[[str, object], None]) -> None:
    # Before: what the events of a push before the failing one had decided was lost.
    seen: Counter[str] = Counter()

    @drawn_alike
    @FEWER
    @given(one=hierarchies(), data=st.data())
    def check(one: Hierarchy, data: st.DataObject) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            if "s = '" not in one.text:
                return
            plan = plan_of(failing(data.draw, one))
            each, failed = answer(plan, one.events, list(range(len(one.events))))
            cuts = data.draw(st.lists(st.integers(1, len(one.events)), max_size=3))
            assert answer(plan, one.events, cuts) == (each, failed)
            seen["examples"] += 1
            seen["a failure"] += failed
            seen["a failure behind a match"] += failed and bool(each)

    check()
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in seen.items()))
    assert seen["a failure behind a match"] > 0
