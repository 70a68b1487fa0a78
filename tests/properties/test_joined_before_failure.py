"""A condition or measure that cannot be computed, in a query that is joined with history, in such a box or in the
pattern around it, ends a live query; what was decided before comes out, however the events come."""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from query.errors import DataError, HybridWarning, QueryError
from tests.hybrid.ends import opened_again
from tests.properties.comparing import drawn_until, fewer
from tests.properties.test_joined_boxes import COLUMNS, Case, cases, rows_of

#: Where a failure is: a condition and a measure of the box that is joined with history, and of the pattern around it.
PLACES = {
    "condition of the box": ("DEFINE X AS ", "DEFINE X AS {} = 1 AND "),
    "measure of the box": ("LAST(i) AS n AFTER", "LAST(i) + {} - 1 AS n AFTER"),
    "ON of the box": ("AS pa ON ", "AS pa ON {} = 1 AND "),
    "range of the box": ("FROM pl.f - ", "FROM pl.f - {} * "),
    "condition of its history": ("DEFINE P AS ", "DEFINE P AS {} = 1 AND "),
    "measure of its history": ("MEASURES LAST(i) AS m", "MEASURES LAST(i) + {} - 1 AS m"),
    "condition around it": ("B AS s = ", "B AS {} = 1 AND s = "),
    "measure around it": ("count(*) AS c", "count(*) AS c, {} AS d"),
}

#: Those of a query that is joined with history.
JOINS = ("ON of the box", "range of the box", "condition of its history", "measure of its history")


@st.composite
def failing(draw: st.DrawFn) -> tuple[str, Case]:
    """Returns the place of a failure from some event on, and a query that has it."""
    case = draw(cases())
    rng = random.Random(draw(st.integers(0, 2**32)))
    place = rng.choice([name for name, (before, _) in PLACES.items() if before in case.text])
    event = case.events[rng.randrange(len(case.events) // 2, len(case.events))]
    before, behind = PLACES[place]
    time = "ts" if "condition" in place else "LAST(ts)" if "measure" in place else "pl.t"
    met = f"{time} >= make_timestamp({event.ts_us})"
    one = behind.format(f"CAST(CASE WHEN {met} THEN 'x' ELSE '1' END AS INTEGER)")
    return place, replace(case, text=case.text.replace(before, one))


def alone(case: Case) -> Case:
    """Returns the query of its box."""
    return replace(case, text=case.text[len("WITH hit AS (") : case.text.index(") SELECT * FROM")])


def answer(case: Case, pushes: tuple[tuple[str, int], ...], directory: Path | None = None) -> tuple[Counter[str], bool]:
    """Returns the rows of a live query, and whether it fails. directory: the process ends behind one of the pushes, and
    the next one goes on there."""
    rest, found, failed = case.tables, dict[str, str](), False
    named = {"evidence": True} if directory is None else {"name": "q", "evidence": True}

    def opened(path: Path | None) -> tuple[hybrid.Database, hybrid.Alerts]:
        db = hybrid.connect() if path is None else opened_again(path, maintenance=False, log="os")
        for name in rest:
            db.create_stream(name, COLUMNS, time="ts")
        return db, db.watch(case.text, **named)

    def fetch() -> bool:
        """Adds the rows that are there. Returns True if the query has failed."""
        try:
            for _ in range(3):
                rows = alerts.fetch()
                for i, name in enumerate(rows.column("match_id").to_pylist()):
                    (found[name],) = rows_of(rows.slice(i, 1))
        except (DataError, QueryError):
            return True
        return False

    db, alerts = opened(directory)
    for i, (stream, n) in enumerate(pushes):
        db.push(stream, rest[stream].slice(0, n))
        rest[stream] = rest[stream].slice(n)
        if directory is not None and i == case.kill:
            failed = failed or fetch()
            db.checkpoint()
            copy = directory.with_name(f"{directory.name}-left")
            shutil.copytree(directory, copy)
            db.close()
            db, alerts = opened(copy)
    for name in rest:
        db.advance(name, None)
    failed = fetch() or failed
    db.close()
    return Counter(found.values()), failed


def answers(case: Case, directory: Path) -> tuple[tuple[Counter[str], bool], tuple[Counter[str], bool]]:
    """Returns the answer event by event, and that in the pushes of a case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        each = answer(case, one_by_one(case))
        return each, answer(case, case.pushes, directory if case.kill >= 0 else None)


def one_by_one(case: Case) -> tuple[tuple[str, int], ...]:
    """Returns pushes of one event each, in the order of time."""
    times = [("past", e.ts_us) for e in case.past] + [("events", e.ts_us) for e in case.events]
    return tuple((name, 1) for name, _ in sorted(times, key=lambda one: one[1]))


@pytest.mark.slow
def test_a_failure_takes_no_match_away_that_was_decided_before(
    tmp_path_factory: pytest.TempPathFactory, record_property: Callable[[str, object], None]
) -> None:
    # Before: what the failing push had decided was lost, unless events came one by one.
    seen: Counter[str] = Counter()

    @fewer(6, by_day=8)
    @given(drawn=failing())
    def check(drawn: tuple[str, Case]) -> None:
        place, case = drawn
        each, pushed = answers(case, tmp_path_factory.mktemp("db"))
        assert pushed == each
        seen["examples"] += 1
        seen[f"{place} fails behind a match"] += each[1] and bool(each[0])

    def met() -> bool:
        return any(seen[f"{what} of the box fails behind a match"] for what in ("condition", "measure"))

    drawn_until(check, met)
    record_property("examples", dict(seen))
    assert met()


@pytest.mark.slow
def test_a_failure_to_join_takes_no_row_away_that_was_decided_before(
    tmp_path_factory: pytest.TempPathFactory, record_property: Callable[[str, object], None]
) -> None:
    # Before: the rows that the failing push had decided were lost.
    seen: Counter[str] = Counter()

    @fewer(6, by_day=8)
    @given(drawn=failing().filter(lambda drawn: drawn[0] in JOINS))
    def check(drawn: tuple[str, Case]) -> None:
        place, case = drawn
        each, pushed = answers(alone(case), tmp_path_factory.mktemp("db"))
        if place == "range of the box":  # fails with its match: the histories may be behind it, or ahead
            assert pushed[1] == each[1]
            assert case.past or pushed[0] >= each[0]
        else:
            assert pushed == each
        seen["examples"] += 1
        seen[f"{place} fails behind a row"] += each[1] and bool(each[0])

    drawn_until(check, lambda: seen["ON of the box fails behind a row"] > 0)
    record_property("examples", dict(seen))
    assert seen["ON of the box fails behind a row"]
