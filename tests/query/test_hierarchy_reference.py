"""Patterns made of patterns, composed by hand."""

from __future__ import annotations

import pytest

from tests.hierarchies import (
    composed,
    events_of,
    factor_of,
    leaves,
    matched,
    output,
    over,
    plan_of,
    shown,
    statement,
)

TYPES = {name: f"{name} AS s = '{name.lower()}'" for name in "ABDEMPXY"}
V = "V AS PATTERN visit"
PAST_LAST_ROW, TO_NEXT_ROW = "AFTER MATCH SKIP PAST LAST ROW", "AFTER MATCH SKIP TO NEXT ROW"


def visit(within_us: int | None = None, *, key: bool = False) -> dict[str, str]:
    return {"visit": statement("X Y", "NEXT", f"{TYPES['X']}, {TYPES['Y']}", within_us, key=key)}


def of(names: str) -> str:
    return ", ".join(TYPES[name] for name in names)


EXAMPLES = {
    "composition, not a flattened run": (
        over(visit(5), statement("A V", "NEXT", f"{of('A')}, {V}", 100)),
        "a1@0 x1@1 x2@10 y1@12", "a1 {x2 y1}"),
    "boxes that share an event do not follow each other": (
        over(visit(), statement("V W", "NEXT", f"{V}, W AS PATTERN visit")),
        "x1@1 x2@2 y1@3 y2@4 x3@5 y3@6", "{x1 y1} {x3 y3} ; {x2 y1} {x3 y3}"),
    "an event inside a box is not after it": (
        over(visit(), statement("V B", "NEXT", f"{V}, B AS s = 'y'")),
        "x1@1 y1@2 y2@3", "{x1 y1} y2"),
    "of overlapping boxes the one that ends first, ties by preference": (
        over({"long": statement("X M Y", "ANY", of("XMY"))}, statement("A L", "NEXT", f"{of('A')}, L AS PATTERN long")),
        "a1@0 x1@1 m1@2 x2@3 m2@4 y1@5 y2@6", "a1 {x1 m1 y1}"),
    "Kleene over boxes": (
        over(visit(), statement("V+ D", "NEXT", f"{V}, {of('D')}")),
        "x1@1 y1@2 x2@3 y2@4 d1@5", "{x1 y1} {x2 y2} d1 ; {x2 y2} d1"),
    "a negated box lies wholly in the gap": (
        over(visit(), statement("A ~V B", "NEXT", f"{V}, {of('AB')}")),
        "x1@0 a1@1 y1@2 b1@3 a2@4 x2@5 y2@6 b2@7", "a1 b1"),
    "an event is negated only before a box begins": (
        over(visit(), statement("A ~P V", "NEXT", f"{V}, {of('AP')}")),
        "a1@0 x1@1 p1@2 y1@3 a2@4 p2@5 x2@6 y2@7", "a1 {x1 y1}"),
    "PREV is the event or match before: b1 comes right after a match": (
        over(visit(), statement("V B", "ANY", f"{V}, {of('B')} AND PREV(i) IS NULL")),
        "x1@1 y1@2 b1@3 b2@4", "{x1 y1} b1"),
    "PREV of a match is an event that it has, or a match that began before": (
        over({"visit": statement("X Y", "ANY", of("XY"))}, statement("V", "ANY", f"{V} ON PREV(t0) = t1")),
        "x1@1 x2@2 y1@3 y2@4", "{x1 y1} ; {x1 y2}"),
    "PREV reads a match that is longer than WITHIN around it": (
        over(visit(), statement("(A B | V)", "ANY", f"{V}, {of('AB')} AND PREV(t1) - PREV(t0) > INTERVAL 5 MICROSECOND",
                                3)),
        "x1@0 a1@8 y1@9 b1@10 a2@11 b2@12", "a1 b1"),
    "WITHIN from the earliest first event": (
        over(visit(), statement("V B", "NEXT", f"{V}, {of('B')}", 5)),
        "x1@0 y1@4 b1@6 x2@7 y2@8 b2@9", "{x2 y2} b2"),
    "PARTITION: events inside a box do not count": (
        over(visit(), statement("A V B", "PARTITION", f"{V}, {of('AB')}")),
        "a1@0 x1@1 z1@2 y1@3 b1@4 a2@5 x2@6 y2@7 z2@8 b2@9", "a1 {x1 y1} b1"),
    "PARTITION: events of another partition do not count": (
        over(visit(key=True), statement("V B", "PARTITION", f"{V}, {of('B')}", key=True)),
        "x1@1{p} y1@2{p} z1@3{q} b1@4{p} x2@5{p} y2@6{p} z2@7{p} b2@8{p}", "{x1 y1} b1"),
    "STRICT: they do": (
        over(visit(key=True), statement("V B", "STRICT", f"{V}, {of('B')}", key=True)),
        "x1@1{p} y1@2{p} z1@3{q} b1@4{p} x2@5{p} z2@6{q} y2@7{p} b2@8{p}", "{x2 y2} b2"),
    "keys are the boxes' too": (
        over(visit(key=True), statement("V B", "NEXT", f"{V}, {of('B')}", key=True)),
        "x1@1 x2@2{q} y1@3{q} y2@4 b1@5{q} b2@6", "{x2 y1} b1 ; {x1 y2} b2"),
    "three layers, a negation in the middle one": (
        over({**visit(), "theft": statement("V ~P E", "NEXT", f"{V}, {of('PE')}")},
             statement("T U", "NEXT", "T AS PATTERN theft, U AS PATTERN theft")),
        "x1@1 y1@2 p1@3 e1@4 x2@5 y2@6 e2@7 x3@8 y3@9 e3@10", "{{x2 y2} e2} {{x3 y3} e3}"),
    "a box is an instant in its own layer only": (
        over({"one": statement("A", "ANY", of("A"))}, statement("A B", "ANY", "A AS PATTERN one, B AS s = 'a'")),
        "a1@0 a2@0", "{a1} a2"),
    "SKIP PAST LAST ROW: no event is in two matches or between the ends of two, the first complete stays": (
        over(visit(), statement("V B", "ANY", f"{V}, {of('B')}", after=PAST_LAST_ROW)),
        "x1@1 y1@2 b1@3 x2@4 b2@5 y2@6 b3@7 b4@8", "{x1 y1} b1 ; {x2 y2} b3"),
    "SKIP PAST LAST ROW: a box that begins inside the match before is no start": (
        over({"long": statement("X M Y", "ANY", of("XMY")), **visit()},
             statement("V | L", "NEXT", f"{V}, L AS PATTERN long", after=PAST_LAST_ROW)),
        "x1@1 x2@2 m1@3 y1@4 x3@5 y2@6", "{x1 m1 y1} ; {x3 y2}"),
    "SKIP TO NEXT ROW: one match of each start, and boxes that begin at one event are two starts": (
        over({"each": statement("X Y", "ANY", of("XY"))}, statement("V B", "ANY", f"V AS PATTERN each, {of('B')}",
             after=TO_NEXT_ROW)),
        "x1@1 y1@2 y2@3 b1@4 b2@5", "{x1 y1} b1 ; {x1 y2} b1"),
    "PARTITION: the preferred match of a start, then behind its last event": (
        over(visit(), statement("V+", "PARTITION", V, after=PAST_LAST_ROW)),
        "x1@1 y1@2 x2@3 y2@4 b1@5 x3@6 y3@7", "{x1 y1} {x2 y2} ; {x3 y3}"),
    "PARTITION: as everywhere this is what is meant without AFTER MATCH": (
        over(visit(), statement("V+", "PARTITION", V, after="")),
        "x1@1 y1@2 x2@3 y2@4 b1@5 x3@6 y3@7", "{x1 y1} {x2 y2} ; {x3 y3}"),
    "PARTITION: a match of each start": (
        over(visit(), statement("V+", "PARTITION", V, after=TO_NEXT_ROW)),
        "x1@1 y1@2 x2@3 y2@4 x3@5 y3@6", "{x1 y1} {x2 y2} {x3 y3} ; {x2 y2} {x3 y3} ; {x3 y3}"),
    "PARTITION: of boxes that may come next the first in order, even if the match ends later": (
        over({"each": statement("X Y", "ANY", of("XY"), 3), "tail": statement("E P", "ANY", of("EP"))},
             statement("A V W", "PARTITION", f"{of('A')}, V AS PATTERN each, W AS PATTERN tail", after=PAST_LAST_ROW)),
        "a1@0 x1@1 y1@2 e1@3 y2@4 e2@5 p1@6 p2@7", "a1 {x1 y1} {e1 p1}"),
    "PARTITION: SKIP TO a variable goes on with what begins there": (
        over(visit(), statement("V B V", "PARTITION", f"{V}, {of('B')}", after="AFTER MATCH SKIP TO LAST V")),
        "x1@1 y1@2 b1@3 x2@4 y2@5 b2@6 x3@7 y3@8", "{x1 y1} b1 {x2 y2} ; {x2 y2} b2 {x3 y3}"),
    "PARTITION: the left alternative is preferred": (
        over(visit(), statement("A (B | V)", "PARTITION", f"A AS s = 'b', {V}, B AS s = 'x'", after=PAST_LAST_ROW)),
        "b1@1 x1@2 y1@3 b2@4 a1@5", "b1 x1"),
    "PARTITION: keys skip apart": (
        over(visit(key=True), statement("V+", "PARTITION", V, key=True, after=PAST_LAST_ROW)),
        "x1@1{p} x2@2{q} y1@3{p} y2@4{q} x3@5{p} y3@6{p} x4@7{q} y4@8{q}", "{x1 y1} {x3 y3} ; {x2 y2} {x4 y4}"),
    "a box of a pattern with boxes that skips": (
        over({**visit(), "pair": statement("V W", "NEXT", f"{V}, W AS PATTERN visit", after=PAST_LAST_ROW)},
             statement("P Q", "NEXT", "P AS PATTERN pair, Q AS PATTERN pair", 100)),
        "x1@1 y1@2 x2@3 y2@4 x3@5 y3@6 x4@7 y4@8", "{{x1 y1} {x2 y2}} {{x3 y3} {x4 y4}}"),
}  # fmt: skip


def hit(kind: str, low: str, high: str, shown: str = "") -> dict[str, str]:
    """The visits that are joined with events of type p in a range."""
    visits = statement("X Y", "NEXT", of("XY"), measures="FIRST(ts) AS f, LAST(ts) AS t").replace("SELECT *", "")
    text = f"SELECT pl.f, pl.t{shown} {visits} AS pl {kind} JOIN HISTORY OF events FROM pl.{low} TO pl.{high} AS pa"
    return {"visit": f"{text} ON pa.s = 'p'"}


BEFORE = ("f - INTERVAL 5 MICROSECOND", "f")
JOINED = {
    "a match without the history is no event": (
        over(hit("SEMI", *BEFORE), statement("V B", "NEXT", f"{V}, {of('B')}")),
        "x1@1 y1@2 b1@3 p1@4 x2@5 y2@6 b2@7", "{x2 y2} b2"),
    "a match with it is none": (
        over(hit("ANTI", *BEFORE), statement("V B", "NEXT", f"{V}, {of('B')}")),
        "x1@1 y1@2 b1@3 p1@4 x2@5 y2@6 b2@7", "{x1 y1} b1"),
    "it stands right after its last event, though it is known later": (
        over(hit("SEMI", "t", "t + INTERVAL 3 MICROSECOND"), statement("V B", "NEXT", f"{V}, {of('B')}")),
        "x1@1 y1@2 b1@3 p1@4 x2@7 y2@8 p2@12 b2@13", "{x1 y1} b1"),
    "its columns are those of the history, too": (
        over(hit("NEAREST", *BEFORE, ", pa.i AS m"), statement("V B", "NEXT", f"{V}, B AS s = 'b' AND i - V.m < 4")),
        "p1@0 x1@1 y1@2 p2@3 x2@4 y2@5 b1@6", "{x2 y2} b1"),
    "negated, it is the match with the history that is not there": (
        over(hit("SEMI", *BEFORE), statement("A ~V B", "NEXT", f"{V}, {of('AB')}")),
        "a1@0 x1@1 y1@2 b1@3 a2@4 p1@5 x2@6 y2@7 b2@8", "a1 b1"),
}  # fmt: skip


@pytest.mark.parametrize("name", JOINED)
def test_boxes_of_rows_joined_with_history(name: str) -> None:
    text, events, expected = JOINED[name]
    plan, given = plan_of(text), events_of(events)
    assert shown(composed(plan, given), given) == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name: str) -> None:
    text, events, expected = EXAMPLES[name]
    plan, given = plan_of(text), events_of(events)
    found = composed(plan, given)
    assert shown(found, given) == expected
    for cuts in ((), range(1, len(given))):
        assert leaves(matched(plan, given, cuts)) == [tuple(match.leaves()) for match in found]


def test_all_rows_are_those_that_the_pattern_reads() -> None:
    shown_rows = "CLASSIFIER() AS c, count(*) AS n, t0 AS began, t1 AS ended, V.n AS inside, FINAL LAST(t1) AS last"
    text = over(visit(), statement("A V+", "PARTITION", f"{of('A')}, {V}", measures=shown_rows,
                                   rows="ALL ROWS PER MATCH", after=PAST_LAST_ROW))  # fmt: skip
    plan, given = plan_of(text), events_of("a1@0 x1@1 y1@2 x2@3 y2@4")
    (match,) = composed(plan, given)
    assert [tuple(row.values()) for row in match.rows] == [
        (0, "A", 1, 0, 0, None, 4, "a", None, 0),
        (2, "V", 2, 1, 2, 2, 4, None, None, None),
        (4, "V", 3, 3, 4, 2, 4, None, None, None),
    ]
    assert output(matched(plan, given)) == [tuple(row.values()) for row in match.rows]


OTHER = {"visit": statement("X Y", "NEXT", of("XY"), source="others")}
BOTH = {"visit": statement("X Y", "NEXT", of("XY"), source="MERGE(events, others)")}

#: Events with a mark are of the stream `others`.
OF_TWO_STREAMS = {
    "a box reads its own stream": (
        over(OTHER, statement("A V B", "NEXT", f"{of('AB')}, {V}", 100)),
        "a1@0 x1@1 x2@2' y1@3 y2@4' b1@5' b2@6", "a1 {x2 y2} b2"),
    "a variable reads FROM only": (
        over(OTHER, statement("V Y", "NEXT", f"{V}, {of('Y')}")),
        "x1@1' y1@2' y2@3' y3@4", "{x1 y1} y3"),
    "a match and an event of equal time are ordered as in MERGE: by the name of the stream": (
        over(OTHER, statement("V B", "NEXT", f"{V}, {of('B')}")),
        "x1@1' b1@2 y1@2' b2@3", "{x1 y1} b2"),
    "STRICT: events of another stream do not count": (
        over(OTHER, statement("A V B", "STRICT", f"{of('AB')}, {V}")),
        "a1@0 z1@1' x1@2' y1@3' z2@4' b1@5 a2@6 z3@7 x2@8' y2@9' b2@10", "a1 {x1 y1} b1"),
    "STRICT: events of FROM inside a box do not count": (
        over(OTHER, statement("A V B", "STRICT", f"{of('AB')}, {V}")),
        "a1@0 x1@1' z1@2 y1@3' b1@4", "a1 {x1 y1} b1"),
    "PARTITION: events of FROM with other keys do not count": (
        over({"visit": statement("X Y", "NEXT", of("XY"), key=True, source="others")},
             statement("V B", "PARTITION", f"{V}, {of('B')}", key=True)),
        "x1@1{p}' y1@2{p}' z1@3{q} z2@4{p}' b1@5{p} x2@6{p}' y2@7{p}' z3@8{p} b2@9{p}", "{x1 y1} b1"),
    "a box over both streams": (
        over(BOTH, statement("A V B", "NEXT", f"{of('AB')}, {V}")),
        "a1@0 x1@1 y1@2' b1@3", "a1 {x1 y1} b1"),
    "a box in one of two streams": (
        over({"visit": statement("X Y", "NEXT", of("XY"))},
             statement("A V B", "NEXT", f"{of('AB')}, {V}", source="MERGE(events, others)")),
        "a1@0' x1@1 y1@2' y2@3 b1@4'", "a1 {x1 y2} b1"),
    "a negated box of another stream": (
        over(OTHER, statement("A ~V B", "NEXT", f"{V}, {of('AB')}")),
        "a1@0 x1@1' b1@2 y1@3' a2@4 x2@5' y2@6' b2@7", "a1 b1"),
    "three layers over two streams": (
        over({**OTHER, "theft": statement("V ~P E", "NEXT", f"{V}, {of('PE')}")},
             statement("T Y", "NEXT", f"T AS PATTERN theft, {of('Y')}", source="others")),
        "x1@1' y1@2' p1@3' e1@4 y2@5 y3@6'", "{{x1 y1} e1} y3"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TWO_STREAMS)
def test_worked_examples_of_two_streams(name: str) -> None:
    text, events, expected = OF_TWO_STREAMS[name]
    factor, given = factor_of(text), events_of(events)
    found = composed(factor.plan, given, factor=factor)
    assert shown(found, given) == expected
    for cuts in ((), range(1, len(given))):
        matches = matched(factor.plan, given, cuts, factor=factor)
        assert leaves(matches) == [tuple(match.leaves()) for match in found]


def test_a_layer_waits_by_the_time_of_events_that_it_does_not_read() -> None:
    # Before: the box came out behind the event that ended its wait, and the match was lost.
    below = {"p": statement("X", "NEXT", of("X")), "q": statement("Y", "NEXT", of("Y"))}
    below["alone"] = statement("P ~Q", "NEXT", "P AS PATTERN p, Q AS PATTERN q", 3)
    plan = plan_of(over(below, statement("V A", "NEXT", f"V AS PATTERN alone, {of('A')}", 20)))
    given = events_of("x1@0 a1@0 a2@1 z1@3 z2@4 a3@5 z3@9")
    found = composed(plan, given)
    assert shown(found, given) == "{{x1}} a1"
    assert leaves(matched(plan, given)) == [tuple(match.leaves()) for match in found]


def test_paths_name_the_layers_of_an_event() -> None:
    text, events, _ = EXAMPLES["Kleene over boxes"]
    plan, given = plan_of(text), events_of(events)
    first, _ = composed(plan, given)
    assert first.leaves() == [("V.X", 0), ("V.Y", 1), ("V[2].X", 2), ("V[2].Y", 3), ("D", 4)]
