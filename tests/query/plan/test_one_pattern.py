"""Patterns with boxes as one plain pattern: the order of its matches, the paths of their events, and what may fail."""

from __future__ import annotations

import pytest

from query.plan.expression import show
from query.plan.one_pattern import ElementStep, OnePattern, one_pattern
from tests.hierarchies import over, plan_of, statement

X, Y, A, B = "X AS s = 'x'", "Y AS s = 'y'", "A AS s = 'a'", "B AS s = 'b'"
VISIT = statement("X Y", "ANY", f"{X}, {Y}", measures="X.i AS n")


def found(outermost: str, **modules: str) -> OnePattern | str:
    return one_pattern(plan_of(over(modules, outermost)))


def one(outermost: str, **modules: str) -> OnePattern:
    way = found(outermost, **modules)
    assert isinstance(way, OnePattern), way
    return way


def test_matches_with_one_last_event_are_ordered_by_merged_rows() -> None:
    """By the last and the first event, then by element: that of a box is where its match ends."""
    way = one(statement("A V B", "ANY", f"{A}, V AS PATTERN visit, {B}", 9), visit=VISIT)
    assert way.paths == ("A", "V.X", "V.Y", "B")
    assert [way.paths[i] for i in way.order] == ["B", "A", "V.Y", "V.X"]
    assert [m.name for m in way.placed.measures] == ["n", "#place 0", "#place 1", "#place 2", "#place 3"]
    assert (str(way.plan.pattern), way.layers, way.integers, way.crossing) == ("A V_X V_Y B", 2, (), None)


def test_matches_of_the_last_box_are_ordered_by_their_first_event() -> None:
    long = statement("X A Y", "ANY", f"{X}, {A}, {Y}", measures="X.i AS n")
    way = one(statement("B L", "ANY", f"{B}, L AS PATTERN long", 9), long=long)
    assert [way.paths[i] for i in way.order] == ["L.Y", "L.X", "L.A", "B"]


def test_boxes_in_boxes_and_repeated_ones_have_their_paths() -> None:
    trip = statement("A V", "ANY", f"{A}, V AS PATTERN visit", measures="A.i AS n")
    way = one(statement("T{2} B", "ANY", f"T AS PATTERN trip, {B}", 9), visit=VISIT, trip=trip)
    assert way.paths == ("T.A", "T.V.X", "T.V.Y", "T[2].A", "T[2].V.X", "T[2].V.Y", "B")
    assert [way.paths[i] for i in way.order] == ["B", "T.V.Y", "T.A", "T.V.X", "T[2].V.Y", "T[2].A", "T[2].V.X"]


def test_matches_of_different_variables_have_the_steps_to_each() -> None:
    visits = statement("X+ Y", "ANY", f"{X}, {Y}", measures="count(*) AS n")
    way = one(statement("A V{1,2} B?", "ANY", f"{A}, V AS PATTERN visit, {B}", 9), visit=VISIT)
    assert (str(way.plan.pattern), way.paths, way.order) == ("A (V_X V_Y){1,2} B?", ("A", "V.X", "V.Y", "B"), ())
    first, later = (ElementStep("V", 1, "visit", repeated=True, begins=begins) for begins in (True, False))
    of_visits = (first, ElementStep("X", 0)), (later, ElementStep("Y", 1))
    assert way.steps == ((ElementStep("A", 0),), *of_visits, (ElementStep("B", 2),))
    way = one(statement("V B", "ANY", f"V AS PATTERN visit, {B}", 9), visit=visits)
    box = ElementStep("V", 0, "visit")
    assert way.steps == ((box, ElementStep("X", 0)), (box, ElementStep("Y", 1)), (ElementStep("B", 1),))


@pytest.mark.parametrize(
    ("define", "integers"),
    [("i > X.i", ()), ("i - X.i > 3", ("i",)), ("(i + 2 * X.i) % 7 < 3 AND i IS NOT NULL", ("i",)),
     ("ts - X.ts < INTERVAL 1 SECOND", ()), ("count(*) > 1", ())],
)  # fmt: skip
def test_integers_that_must_be_small(define: str, integers: tuple[str, ...]) -> None:
    visit = statement("X Y", "ANY", f"{X}, {Y} AND {define}", measures="X.i AS n")
    assert one(statement("A V", "ANY", f"{A}, V AS PATTERN visit", 9), visit=visit).integers == integers


def test_a_measure_of_a_box_must_be_possible_too() -> None:
    visit = statement("X Y", "ANY", f"{X}, {Y}", measures="X.i * Y.i AS n")
    outer = statement("A V", "ANY", f"{A}, V AS PATTERN visit ON n > 2", 9)
    assert one(outer, visit=visit).integers == ("i",)
    total = statement("X Y", "ANY", f"{X}, {Y}", measures="sum(i) AS n, sum(i) + X.i AS m")
    assert one(outer, visit=total).integers == ("i",)
    cubes = statement("X Y", "ANY", f"{X}, {Y}", measures="X.i * Y.i * Y.i AS n")
    assert str(found(outer, visit=cubes)).startswith("the measure n may fail")


@pytest.mark.parametrize(
    ("why", "outer", "visit"),
    [
        ("the pattern has no WITHIN", statement("A V", "ANY", f"{A}, V AS PATTERN visit"), VISIT),
        ("the pattern is SELECTION SKIP TILL NEXT", statement("A V", "NEXT", f"{A}, V AS PATTERN visit", 9), VISIT),
        ("matches differ in their variables", statement("A+? V", "ANY", f"{A}, V AS PATTERN visit", 9), VISIT),
        ("matches differ in their variables", statement("(A | B) V", "ANY", f"{A}, {B}, V AS PATTERN visit", 9), VISIT),
        ("matches differ in their variables", statement("A+ V", "ANY", f"{A}, V AS PATTERN visit", 9),
         statement("X (Y | B)", "ANY", f"{X}, {Y}, {B}", measures="count(*) AS n")),
        ("NEXT is read", statement("A V", "ANY", f"{A}, V AS PATTERN visit", 9),
         statement("X Y", "ANY", f"{X}, {Y} AND i > NEXT(i)", measures="X.i AS n")),
        ("a negation at an edge", statement("A V ~B", "ANY", f"{A}, V AS PATTERN visit, {B}", 9), VISIT),
        ("the condition of Y may fail", statement("A V", "ANY", f"{A}, V AS PATTERN visit", 9),
         statement("X Y", "ANY", f"{X}, {Y} AND levenshtein(s, X.k) < 3", measures="X.i AS n")),
        ("the condition of V may fail", statement("A V", "ANY", f"{A}, V AS PATTERN visit ON m::INT > 3", 9),
         statement("X Y", "ANY", f"{X}, {Y}", measures="X.k AS m")),
    ],
)  # fmt: skip
def test_why_layers_run(why: str, outer: str, visit: str) -> None:
    assert str(found(outer, visit=visit)).startswith(why)


@pytest.mark.parametrize(
    ("define", "computed", "integers"),
    [
        ("lower(s) = lower(X.s)", [], ()), ("strlen(s) > 1", [], ()), ("s LIKE 'y%'", [], ()),
        ("k::INT > 3", ["((s = 'y') AND (CAST(k AS INTEGER) > 3))"], ()),
        ("k::INT > X.i", ["CAST(k AS INTEGER)"], ()),
        ("k::BIGINT - X.k::BIGINT > 3", ["CAST(k AS BIGINT)"], ("#computed 0",)),
        ("sqrt(PREV(i)) > 3", ["((sqrt(i)) > 3)"], ()), ("PREV(i) < 3 AND i < PREV(X.i, 2)", [], ()),
        ("i - PREV(i) < 3", [], ("i",)), ("sum(X.k::INT) > 3", ["CAST(k AS INTEGER)"], ("#computed 0",)),
    ],
)  # fmt: skip
def test_what_may_fail_of_one_event_is_computed_beforehand(
    define: str, computed: list[str], integers: tuple[str, ...]
) -> None:
    visit = statement("X Y", "ANY", f"{X}, {Y} AND {define}", measures="X.i AS n")
    way = one(statement("A V", "ANY", f"{A}, V AS PATTERN visit", 9), visit=visit)
    assert ([show(c.value) for c in way.computed], way.integers) == (computed, integers)


def test_events_inside_and_around_a_box_are_compared_at_once() -> None:
    compares = statement("X Y", "ANY", f"{X}, {Y} AND i > X.i", measures="X.i AS n")
    equal = statement("X Y", "ANY", f"{X}, {Y} AND i = X.i", measures="X.i AS n")
    outer = statement("A V B", "ANY", f"{A}, V AS PATTERN visit, {B} AND i > A.i", 9)
    for visit, crossing in ((VISIT, None), (compares, ("V", False)), (equal, ("V", True))):
        way = one(outer, visit=visit)
        assert (None if way.crossing is None else (way.crossing.path, way.crossing.few)) == crossing
