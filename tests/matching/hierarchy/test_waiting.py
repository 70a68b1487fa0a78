"""Boxes whose pattern waits, with keys of their own: what the time has decided is there before later rows."""

from __future__ import annotations

import pytest

from matching.purpose import Purpose
from tests.hierarchies import Event, composed, events_of, leaves, matched, output, over, plan_of, shown

WAVE = """SELECT k, n FROM events MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES count(*) AS n
    AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+) WITHIN INTERVAL 2 MICROSECOND
    DEFINE A AS s <> 'c', B AS s <> 'c')"""
TWO = """SELECT * FROM events MATCH_RECOGNIZE (ORDER BY ts MEASURES V.n AS n, W.k AS k PATTERN (V W)
    WITHIN INTERVAL 20 MICROSECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE V AS PATTERN {below}, W AS PATTERN {below} ON k <> V.k)"""
PAIR = """SELECT k, n FROM events MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES V.n AS n
    PATTERN (C V) WITHIN INTERVAL 6 MICROSECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE C AS s = 'c', V AS PATTERN wave)"""

# q1 q2 have no event of their key after them, and are decided by time; r1 r2 by r3, which is 4 later
EVENTS = events_of("q1@3{q} p1@3{p} q2@3{q} r1@3{r} r2@4{r} r3@8{r}")


@pytest.mark.parametrize("cuts", [[], [1], [3], [5], [1, 2, 3, 4, 5]])
@pytest.mark.parametrize("watermarks", [False, True])
def test_a_match_that_waits_is_before_one_of_another_key_that_does_not(cuts: list[int], watermarks: bool) -> None:
    # Before: without a watermark {r1 r2} was passed on alone, as q had no further event; {q1 q2} came too late for it.
    plan = plan_of(over({"wave": WAVE}, TWO.format(below="wave")))
    expected = composed(plan, EVENTS)
    assert shown(expected, EVENTS) == "{q1 q2} {r1 r2}"
    found = matched(plan, EVENTS, cuts, watermarks=watermarks)
    assert leaves(found) == [tuple(match.leaves()) for match in expected]
    assert output(matched(plan, EVENTS, cuts, watermarks=watermarks, purpose=Purpose.ROWS)) == [(2, "r")]


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [[], [1], [4], [1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize("restart", [False, True])
def test_so_does_a_layer_in_between(cuts: list[int], restart: bool) -> None:
    events: list[Event] = events_of("c1@3{q} q1@4{q} q2@4{q} c2@5{r} r1@5{r} r2@6{r} r3@30{r}")
    plan = plan_of(over({"wave": WAVE, "pair": PAIR}, TWO.format(below="pair")))
    expected = composed(plan, events)
    found = matched(plan, events, cuts, restart=restart)
    assert leaves(found) == [tuple(match.leaves()) for match in expected]
    assert shown(expected, events) == "{c1 {q1 q2}} {c2 {r1 r2}}"
