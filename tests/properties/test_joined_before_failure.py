"""A condition or measure that cannot be computed, in a box that is joined with history or in the pattern around it,
ends a live query; what was decided before comes out, however the events come."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybrid
from query.errors import DataError, HybridWarning
from tests.properties.comparing import drawn_until
from tests.properties.test_joined_boxes import COLUMNS, Case, cases, rows_of

#: Where a failure is: a condition and a measure of the box that is joined with history, and of the pattern around it.
PLACES = {
    "condition of the box": ("DEFINE X AS ", "DEFINE X AS {} = 1 AND "),
    "measure of the box": ("LAST(i) AS n AFTER", "LAST(i) + {} - 1 AS n AFTER"),
    "condition around it": ("B AS s = ", "B AS {} = 1 AND s = "),
    "measure around it": ("count(*) AS c", "count(*) AS c, {} AS d"),
}


@st.composite
def failing(draw: st.DrawFn) -> tuple[str, Case]:
    """Returns the place of a failure from some event on, and a query that has it."""
    case = draw(cases())
    rng = random.Random(draw(st.integers(0, 2**32)))
    place = rng.choice([name for name, (before, _) in PLACES.items() if before in case.text])
    event = case.events[rng.randrange(len(case.events) // 2, len(case.events))]
    before, behind = PLACES[place]
    time = "ts" if "condition" in place else "LAST(ts)"
    met = f"{time} >= make_timestamp({event.ts_us})"
    one = behind.format(f"CAST(CASE WHEN {met} THEN 'x' ELSE '1' END AS INTEGER)")
    return place, replace(case, text=case.text.replace(before, one))


def answer(case: Case, pushes: tuple[tuple[str, int], ...]) -> tuple[Counter[str], bool]:
    """Returns the rows of a live query, and whether it fails."""
    rest, found, failed = case.tables, Counter[str](), False
    with hybrid.connect() as db:
        for name in rest:
            db.create_stream(name, COLUMNS, time="ts")
        alerts = db.watch(case.text)
        for stream, n in pushes:
            db.push(stream, rest[stream].slice(0, n))
            rest[stream] = rest[stream].slice(n)
        for name in rest:
            db.advance(name, None)
        try:
            for _ in range(3):
                found += rows_of(alerts.fetch())
        except DataError:
            failed = True
    return found, failed


def one_by_one(case: Case) -> tuple[tuple[str, int], ...]:
    """Returns pushes of one event each, in the order of time."""
    times = [("past", e.ts_us) for e in case.past] + [("events", e.ts_us) for e in case.events]
    return tuple((name, 1) for name, _ in sorted(times, key=lambda one: one[1]))


@pytest.mark.slow
def test_a_failure_takes_no_match_away_that_was_decided_before(record_property: Callable[[str, object], None]) -> None:
    # Before: what the failing push had decided was lost, unless events came one by one.
    seen: Counter[str] = Counter()

    @settings(max_examples=max(40, settings().max_examples // 6))
    @given(drawn=failing())
    def check(drawn: tuple[str, Case]) -> None:
        place, case = drawn
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            each = answer(case, one_by_one(case))
            assert answer(case, case.pushes) == each
        seen["examples"] += 1
        seen[f"{place} fails behind a match"] += each[1] and bool(each[0])

    def met() -> bool:
        return any(seen[f"{what} of the box fails behind a match"] for what in ("condition", "measure"))

    drawn_until(check, met)
    record_property("examples", dict(seen))
    assert met()
