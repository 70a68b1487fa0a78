"""Patterns with boxes as one plain pattern: what takes the place of a box, and why most hierarchies have none."""

from __future__ import annotations

import pytest

from query.hierarchy_reference import compose
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.flatten import flattened
from query.plan.plan import Plan
from query.schema import Field, Schema

SCHEMA = Schema(
    "s", (Field("ts", "TIMESTAMP"), Field("s", "VARCHAR"), Field("k", "VARCHAR"), Field("i", "BIGINT")), time="ts"
)


def pattern(
    pattern: str, define: str, *, within: int | None = None, selection: str = "SKIP TILL ANY MATCH", keys: str = "",
    measures: str = "LAST(i) AS n", after: str = "AFTER MATCH NO SKIP",
) -> str:  # fmt: skip
    bound = f"WITHIN INTERVAL {within} MICROSECOND" if within else ""
    by = f"PARTITION BY {keys}" if keys else ""
    return (
        f"SELECT * FROM s MATCH_RECOGNIZE ({by} ORDER BY ts MEASURES {measures} {after} PATTERN {pattern} {bound} "
        f"SELECTION {selection} DEFINE {define})"
    )


def plan_of(outer: str, **modules: str) -> Plan:
    with_ = ", ".join(f"{name} AS ({text})" for name, text in modules.items())
    return bind(parse(f"WITH {with_} {outer}"), lambda name: SCHEMA).factors[-1].plan


X, Y, A = "X AS s = 'x'", "Y AS s = 'y'", "A AS s = 'a'"
VISIT = pattern("(X Y)", f"{X}, {Y} AND i > X.i", within=5, measures="count(*) AS n, X.i AS begun")


def flat(outer: str, **modules: str) -> Plan:
    found = flattened(plan_of(outer, **modules))
    assert isinstance(found, Plan), found
    return found


def reason(outer: str, **modules: str) -> str:
    found = flattened(plan_of(outer, **modules))
    assert isinstance(found, str)
    return found


def test_the_variables_of_a_box_take_its_place() -> None:
    plan = flat(
        pattern("(A V B)", f"{A}, V AS PATTERN visit ON n > 1 AND begun > A.i, B AS i > V.begun AND ts > V.t1",
                within=100, measures="V.n AS n, V.t0 AS t0, V.t1 AS t1, count(*) AS rows, FIRST(ts) AS f"),
        visit=VISIT,
    )  # fmt: skip
    assert plan.boxes == ()
    assert str(plan).split("\n")[3:] == [
        "measures    n BIGINT = count(V_X|V_Y.*)",
        "            t0 TIMESTAMP = LAST(V_X.ts)",
        "            t1 TIMESTAMP = LAST(V_Y.ts)",
        "            rows BIGINT = count(A|V_X|B.*)",
        "            f TIMESTAMP = FIRST(ts)",
        "rows        ONE ROW PER MATCH",
        "after       NO SKIP",
        "pattern     A V_X V_Y B",
        "within      100 microseconds",
        "selection   SKIP TILL ANY MATCH",
        "define      A AS (s = 'a')",
        "            V_X AS (s = 'x')",
        "            V_Y AS (((ts - LAST(V_X.ts)) <= INTERVAL 5 microseconds) AND (s = 'y') AND (i > LAST(V_X.i)) AND "
        "(count(V_X|V_Y.*) > 1) AND (LAST(V_X.i) > LAST(A.i)))",
        "            B AS ((i > LAST(V_X.i)) AND (ts > LAST(V_Y.ts)))",
    ]


def test_a_box_in_a_box_takes_its_place_too() -> None:
    plan = flat(
        pattern("(U | A)", f"U AS PATTERN trip, {A}", measures="count(*) AS n"), visit=VISIT,
        trip=pattern("(A V)", f"{A}, V AS PATTERN visit ON n > 1", within=9, measures="count(*) AS n"),
    )  # fmt: skip
    assert str(plan.pattern) == "U_A U_V_X U_V_Y | A"
    assert "((ts - LAST(U_A.ts)) <= INTERVAL 9 microseconds)" in str(plan)


def test_new_names_are_not_taken() -> None:
    plan = flat(pattern("(V_X V)", "V_X AS s = 'a', V AS PATTERN visit", measures="V.n AS n"), visit=VISIT)
    assert str(plan.pattern) == "V_X V_X_ V_Y"


def test_a_shorter_within_around_a_box_implies_that_of_its_pattern() -> None:
    outer = pattern("(A V)", f"{A}, V AS PATTERN visit", within=5, measures="V.n AS n")
    assert "INTERVAL" not in str(flat(outer, visit=VISIT))


def test_a_plain_pattern_is_itself() -> None:
    plan = plan_of(pattern("(A)", A), visit=VISIT)
    assert flattened(plan) is plan


def test_a_flattened_run_takes_the_first_event_and_dies() -> None:
    """The counter-example: composition finds A {X@10, Y@12}, a plain pattern takes X@1."""
    nearest = "SKIP TILL NEXT MATCH"
    visit = pattern("(X Y)", f"{X}, {Y}", within=5)
    outer = pattern("(A V)", f"{A}, V AS PATTERN visit", within=100, selection=nearest, measures="V.n AS n")
    assert reason(outer, visit=visit).startswith("the pattern is SELECTION SKIP TILL NEXT MATCH")
    rows = [{"ts": t, "s": s, "k": None, "i": t} for s, t in (("a", 0), ("x", 1), ("x", 10), ("y", 12))]
    (found,) = compose(plan_of(outer, visit=visit), rows, [0, 1, 10, 12])
    assert found.leaves() == [("A", 0), ("V.X", 2), ("V.Y", 3)]


def test_boxes_of_single_events_may_be_under_any_strategy() -> None:
    tall = pattern("(X)", X, selection="PARTITION", after="", measures="X.i AS n")
    for selection in ("SKIP TILL NEXT MATCH", "STRICT"):
        outer = pattern("(A V)", f"{A}, V AS PATTERN tall", selection=selection, measures="V.n AS n")
        assert flat(outer, tall=tall).selection.value == selection
        loop = pattern("(A+ V)", f"{A}, V AS PATTERN tall", selection=selection, measures="V.n AS n")
        assert reason(loop, tall=tall).startswith(f"the pattern is SELECTION {selection}")


V, KLEENE = "V AS PATTERN visit", pattern("(X Y+)", f"{X}, {Y}")


@pytest.mark.parametrize(
    ("why", "outer", "visit"),
    [
        ("visit is SELECTION SKIP TILL NEXT MATCH", pattern("(A V)", f"{A}, {V}", measures="V.n AS n"),
         pattern("(X Y)", f"{X}, {Y}", selection="SKIP TILL NEXT MATCH")),
        ("visit is SELECTION PARTITION", pattern("(A V)", f"{A}, {V}", measures="V.n AS n"),
         pattern("(X Y)", f"{X}, {Y}", selection="PARTITION")),
        ("visit has AFTER MATCH SKIP TO NEXT ROW", pattern("(A V)", f"{A}, {V}", measures="V.n AS n"),
         pattern("(X Y)", f"{X}, {Y}", after="AFTER MATCH SKIP TO NEXT ROW")),
        ("visit is joined with history", pattern("(A V)", f"{A}, {V}", measures="V.n AS n"),
         pattern("(X Y)", f"{X}, {Y}", measures="LAST(ts) AS n") + " AS pl SEMI JOIN HISTORY OF s "
         "FROM pl.n - INTERVAL 5 MICROSECOND TO pl.n AS pa ON pa.s = 'p'"),
        ("visit has ^", pattern("(A V)", f"{A}, {V}", measures="V.n AS n"), pattern("(^ X Y)", f"{X}, {Y}")),
        ("V is negated", pattern("(A ~V Y)", f"{A}, {V}, {Y}"), VISIT),
        ("~N of visit may lie at an edge", pattern("(A V)", f"{A}, {V}", measures="V.n AS n"),
         pattern("(~N X Y)", f"{X}, {Y}, N AS s = 'n'", within=5)),
        ("visit has a negation, and V is inside", pattern("(A V?)", f"{A}, {V}", measures="A.i AS n"),
         pattern("(X ~N Y)", f"{X}, {Y}, N AS s = 'n'")),
        ("visit is not partitioned like", pattern("(A V)", f"{A}, {V}", measures="V.n AS n"),
         pattern("(X Y)", f"{X}, {Y}", keys="k")),
        ("visit may match nothing", pattern("(A V)", f"{A}, {V}", measures="V.n AS n"), pattern("(X*)", X)),
        ("the condition of V holds of whole matches", pattern("(A V)", f"{A}, {V} ON n > 1", measures="V.n AS n"),
         KLEENE),
        ("V may occur twice, and the events", pattern("(A V+)", f"{A}, {V}", measures="A.i AS n"), KLEENE),
        ("V may occur twice, and conditions", pattern("(A V+)", f"{A}, {V}", measures="A.i AS n"),
         pattern("(X Y)", f"{X}, {Y} AND count(*) > 1")),
        ("V may occur twice, and its visit.n", pattern("(A V+ Y)", f"{A}, {V}, {Y} AND i > V.n", measures="A.i AS n"),
         pattern("(X Y)", f"{X}, {Y}", measures="count(*) AS n")),
        ("V may be missing where its visit.n", pattern("(A V? Y)", f"{A}, {V}, {Y} AND i > V.n", measures="A.i AS n"),
         pattern("(X Y)", f"{X}, {Y}", measures="count(*) AS n")),
        ("i of the last row is read", pattern("(A V)", f"{A}, {V}", measures="i AS n"), VISIT),
        ("max over values of matches", pattern("(A V)", f"{A}, {V}", measures="max(V.n) AS n"), VISIT),
        ("rows of the match are counted", pattern("(V A)", f"{A}, {V}", measures="FIRST(i) AS n"), VISIT),
        ("CLASSIFIER()", pattern("(V A)", f"{A}, {V}", measures="CLASSIFIER() AS n"), VISIT),
    ],
)  # fmt: skip
def test_what_has_no_plain_pattern_says_why(why: str, outer: str, visit: str) -> None:
    assert reason(outer, visit=visit).startswith(why)
