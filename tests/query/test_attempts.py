"""The conditions that attempts meet, and the longest attempt, counted by hand."""

from __future__ import annotations

from query.attempts import AttemptSummary, ConditionCount, attempts
from tests.query.plan.test_bind import plan_of

SECOND = 1_000_000


def tried(inside: str, prices: list[float], tests_max: int = 1000) -> AttemptSummary:
    (factor,) = plan_of(f"SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts MEASURES 1 AS n {inside})").factors
    ts_us = [i * SECOND for i in range(len(prices))]
    rows = [{"ts": t, "symbol": "p", "price": price, "volume": 1} for t, price in zip(ts_us, prices)]
    return attempts(factor.plan, rows, ts_us, None, tests_max, lambda: False)


def test_conditions_on_the_row_alone_are_counted_over_all_rows() -> None:
    found = tried("PATTERN (A B C) DEFINE A AS price > 5, B AS price < PREV(price), C AS price > 100", [6, 4, 7, 8, 1])
    assert found.conditions == {name: ConditionCount(met, 5, True) for name, met in (("A", 3), ("B", 2), ("C", 0))}
    assert (found.longest, found.waited, found.violated) == (("A", "B"), ("C",), ())
    assert (found.rows, found.matches, found.whole) == (5, 0, True)


def test_others_are_counted_where_they_are_tried() -> None:
    # A at 2 and at 1: the row behind each is tried for B, and the last row has none behind it
    found = tried("PATTERN (A B) DEFINE A AS price < 3, B AS price > 10 * A.price", [2, 9, 1, 9, 2])
    assert found.conditions == {"A": ConditionCount(3, 5, True), "B": ConditionCount(0, 2, False)}
    assert (found.longest, found.waited) == (("A",), ("B",))


def test_a_loop_may_go_on_or_end() -> None:
    found = tried("PATTERN (S A+ (B | C)) DEFINE A AS price > 2, B AS price < 0, C AS price < -1", [1, 3, 4])
    assert (found.longest, found.waited) == (("S", "A", "A"), ("A", "B", "C"))


def test_a_row_that_must_not_occur() -> None:
    text = "PATTERN (A NOT B) WITHIN INTERVAL '9' SECOND DEFINE A AS price = 1, B AS price = 7"
    found = tried(text, [1, 3, 7])
    assert (found.longest, found.waited, found.violated) == (("A",), (), ("B",))
    assert tried(text, [1, 3, 8]).matches == 1


def test_no_row_begins() -> None:
    found = tried("PATTERN (A B) DEFINE A AS price > 9", [1, 2])
    assert (found.longest, found.waited) == ((), ("A",))


def test_tests_are_bounded() -> None:
    text = "PATTERN (A B) SELECTION SKIP TILL NEXT MATCH DEFINE A AS price > 0, B AS price > 1000 * A.price"
    found = tried(text, [1.0] * 50, tests_max=60)
    assert not found.whole
    assert found.conditions["A"] == ConditionCount(50, 50, True)
    assert 0 < found.conditions["B"].tested < 50
