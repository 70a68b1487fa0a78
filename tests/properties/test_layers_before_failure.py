"""A condition or measure of a layer that cannot be computed ends a query; what was decided before comes out, however
the events come."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.drive import Drive
from matching.matcher import make_matcher
from matching.ordering import Ordering
from query.errors import HybridWarning
from query.plan.plan import Plan
from tests.hierarchies import (
    EVENTS,
    Event,
    Hierarchy,
    Leaf,
    batch_of,
    hierarchies,
    hierarchies_of_all_matches,
    leaves,
    plan_of,
)
from tests.properties.comparing import FEWER, drawn_alike, drawn_until_told, is_quick


def answer(plan: Plan, events: tuple[Event, ...], cuts: list[int]) -> tuple[list[tuple[Leaf, ...]], bool]:
    """What comes out of events that come in pieces, each with a watermark at its last one, and whether it fails."""
    drive, found, whole = Drive(Ordering(EVENTS), make_matcher(plan, lenient=True)), [], batch_of(events)
    for low, high in pairwise(sorted({0, len(events), *cuts})):
        found += drive.push(whole.slice(low, high), int(whole.ts_us[high - 1]))
    return leaves(found), drive.failure is not None


def dense(one: Hierarchy) -> Hierarchy:
    """The hierarchy with two types and twice the events, so that more of them match."""
    text = one.text.replace("'x'", "'a'").replace("'y'", "'b'")
    again = [replace(event, ts_us=event.ts_us + one.events[-1].ts_us + 1) for event in one.events]
    types = {"x": "a", "y": "b"}
    events = tuple(replace(event, type=types.get(event.type, event.type)) for event in (*one.events, *again))
    return replace(one, text=text, events=events)


def failing(draw: st.DrawFn, one: Hierarchy) -> tuple[str, str]:
    """Draws the kind of a failure, and a statement that has it from some event on: in a condition on an event or on
    what a match has so far, or in a measure of a match that ends with an event, in any layer."""
    event = draw(st.integers(len(one.events) // 3, len(one.events) - 1))
    kinds = {
        "a condition on an event": (r"(?=s = ')", f"i = {event}", "{} = 1 AND "),
        "a condition on a match": (r"(?=i > (\w+\(A\.\w\)))", f"i + {{}} >= {event}", "{} = 1 AND "),
        "a measure": (
            r"(?<=ORDER BY ts MEASURES )", f"LAST(ts) >= make_timestamp({one.events[event].ts_us})", "{} AS bad, ",
        ),
    }  # fmt: skip
    places = {what: list(re.finditer(where, one.text)) for what, (where, *_) in kinds.items()}
    what = draw(st.sampled_from([what for what, found in places.items() if found]))
    place, (_, met, form) = draw(st.sampled_from(places[what])), kinds[what]
    text = form.format(f"CAST(CASE WHEN {met.format(*place.groups())} THEN 'x' ELSE '1' END AS INTEGER)")
    return what, one.text[: place.start()] + text + one.text[place.start() :]


@pytest.mark.slow
def test_a_failure_takes_no_match_away_that_was_decided_before(record_property: Callable[[str, object], None]) -> None:
    # Before: what the events of a push before the failing one had decided was lost, also where a measure of a box or a
    # condition of a layer between failed.
    seen: Counter[str] = Counter()

    @drawn_alike
    @FEWER
    @given(one=st.one_of(hierarchies(), hierarchies(("NEXT", "ANY")), hierarchies_of_all_matches()), data=st.data())
    def check(one: Hierarchy, data: st.DataObject) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            one = dense(one) if data.draw(st.booleans()) else one
            what, text = failing(data.draw, one)
            plan = plan_of(text)
            each, failed = answer(plan, one.events, list(range(len(one.events))))
            cuts = data.draw(st.lists(st.integers(1, len(one.events)), max_size=3))
            assert answer(plan, one.events, cuts) == (each, failed)
            seen["examples"] += 1
            seen[f"{what} fails"] += failed
            seen[f"{what} fails behind a match"] += failed and bool(each)

    def told() -> None:
        whats = ("a condition on an event", "a measure")
        assert is_quick() or all(seen[f"{what} fails behind a match"] for what in whats)

    drawn_until_told(check, told)
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in seen.items()))
