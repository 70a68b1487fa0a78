"""Patterns made of patterns, composed by hand."""

from __future__ import annotations

import pytest

from tests.hierarchies import composed, events_of, leaves, matched, over, plan_of, shown, statement

TYPES = {name: f"{name} AS s = '{name.lower()}'" for name in "ABDEMPXY"}
V = "V AS PATTERN visit"


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


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name: str) -> None:
    text, events, expected = EXAMPLES[name]
    plan, given = plan_of(text), events_of(events)
    found = composed(plan, given)
    assert shown(found, given) == expected
    for cuts in ((), range(1, len(given))):
        assert leaves(matched(plan, given, cuts)) == [tuple(match.leaves()) for match in found]


def test_paths_name_the_layers_of_an_event() -> None:
    text, events, _ = EXAMPLES["Kleene over boxes"]
    plan, given = plan_of(text), events_of(events)
    first, _ = composed(plan, given)
    assert first.leaves() == [("V.X", 0), ("V.Y", 1), ("V[2].X", 2), ("V[2].Y", 3), ("D", 4)]
