"""Variables that take any row: those whose names say that more was meant are warned about."""

from __future__ import annotations

import warnings

import pytest

from query.errors import HybridWarning
from tests.query.plan.test_bind import plan_of


def warned(inside: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan_of(f"SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts MEASURES 1 AS n {inside})")
    assert all(w.category is HybridWarning for w in caught)
    return [str(w.message) for w in caught]


def test_a_mistyped_variable_warns_at_its_place() -> None:
    # Before: BYU took any row, and nothing said so.
    (message,) = warned("PATTERN (SEARCH BUY BYU+) DEFINE SEARCH AS price > 1, BUY AS price > 2")
    head, _, line, caret, hint = message.split("\n")
    assert head == "BYU has no condition in DEFINE: it takes any row"
    assert line[caret.index("^") :].startswith("BYU+")
    assert caret.endswith("^^^ any row")
    assert hint == "hint: did you mean BUY? DEFINE BYU AS true says that any row is meant"


@pytest.mark.parametrize(("inside", "names"), [
    ("PATTERN (SEARCH BYU) DEFINE SEARCH AS price > 1", ["BYU"]),
    ("PATTERN (UP (HIGH | LOW) TAIL*) DEFINE UP AS price > 1", ["HIGH", "LOW", "TAIL"]),
    ("PATTERN (SEARCH PAY PAY) DEFINE SEARCH AS price > 1", ["PAY"]),  # once for a variable
    ("PATTERN (FIRST_ONE SECOND_ONE)", ["SECOND_ONE"]),
    ("PATTERN (PERMUTE(UP, LOW) DOWN) DEFINE UP AS price > 1, LOW AS price > 2", ["DOWN"]),
])  # fmt: skip
def test_names_that_mean_more(inside: str, names: list[str]) -> None:
    said = [f"{name} has no condition in DEFINE: it takes any row" for name in names]
    assert [message.split("\n")[0] for message in warned(inside)] == said


def test_a_negated_variable_without_a_condition_warns() -> None:
    (message,) = warned("PATTERN (SEARCH NOT BYU) WITHIN INTERVAL '1' HOUR SELECTION SKIP TILL NEXT MATCH "
                        "DEFINE SEARCH AS price > 1")  # fmt: skip
    assert message.startswith("BYU has no condition in DEFINE: any row is one\n")


@pytest.mark.parametrize("inside", [
    "PATTERN (START DOWN+ UP+) DEFINE DOWN AS price < PREV(price), UP AS price > PREV(price)",
    "PATTERN ((START DOWN+ | BEGIN UP+)) DEFINE DOWN AS price < PREV(price), UP AS price > PREV(price)",
    "PATTERN (REST* BUY) DEFINE BUY AS price > 1",
    "PATTERN (S N*) DEFINE N AS price > 1",
    "PATTERN (W{5} X) DEFINE X AS price > 1",
    "PATTERN (A X*? B2) DEFINE A AS price > 1",
    "PATTERN (SEARCH ANY* BUY) DEFINE SEARCH AS price > 1, BUY AS price > 2",
    "PATTERN (SEARCH ANYTHING BUY) DEFINE SEARCH AS price > 1, BUY AS price > 2",
    "PATTERN (SEARCH \"REST\") DEFINE SEARCH AS price > 1",
    "PATTERN (SEARCH BYU) DEFINE SEARCH AS price > 1, BYU AS true",
])  # fmt: skip
def test_idioms_are_quiet(inside: str) -> None:
    assert warned(inside) == []


def test_windows_warn_too() -> None:
    inside = "MEASURES COUNT(MATCHES) AS m ONE ROW PER WINDOW PATTERN (UP+ LOW) WITHIN INTERVAL '1' HOUR"
    with pytest.warns(HybridWarning, match="^LOW has no condition in DEFINE: it takes any row"):
        plan_of(f"SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts {inside} DEFINE UP AS price > 1)")


def test_explain_says_any_row() -> None:
    plan = plan_of("SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts MEASURES 1 AS n PATTERN (A B C) "
                   "DEFINE B AS price > 1, C AS true)")  # fmt: skip
    lines = str(plan).split("\n")
    shown = [line[12:] for line in lines[next(i for i, line in enumerate(lines) if line.startswith("define")) :]]
    assert [line.split()[:2] for line in shown] == [["A", "any"], ["B", "AS"], ["C", "any"]]
