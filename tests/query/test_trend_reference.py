"""Trends counted by hand, and by an independent check that tries all labellings of all subsets of events."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from query.errors import QueryError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.expression import Column
from query.plan.plan import Plan
from query.schema import Field, Schema
from query.trend_reference import trend_rows
from tests.independent import trends_check
from tests.independent.trends_check import Condition, Event, Labelled, Pattern, Query

SCHEMA = Schema(
    "e",
    (Field("ts", "TIMESTAMP"), Field("kind", "VARCHAR"), Field("v", "BIGINT"), Field("k", "VARCHAR"),
     Field("g", "VARCHAR")),
    "ts",
)  # fmt: skip
SECOND = 1_000_000


def plan_of(text: str) -> Plan:
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan


def rows_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """The rows of SCHEMA of events."""
    return [{"ts": e["time"] * SECOND, **{c: e[c] for c in ("kind", "v", "k", "g")}} for e in events]


def answer_of(plan: Plan, events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """The rows of a plan, whose measures are aggregates: (start, end, group values..., measures...), in seconds."""
    assert plan.trends is not None
    names = [a.name for a in plan.trends.aggregates]
    shown = [names.index(m.expression.name) for m in plan.measures if isinstance(m.expression, Column)]
    found = trend_rows(plan, rows_of(events), [e["time"] * SECOND for e in events])
    return [(r.start_us // SECOND, r.end_us // SECOND, *r.group, *(r.values[i] for i in shown)) for r in found]


def events_of(text: str) -> list[Event]:
    """`A@1{2,g=x}` is an A at second 1 with v = 2 and g = x."""
    found = []
    for kind, time, inside in re.findall(r"(\w)@(\d+)(?:\{([^}]*)\})?", text):
        values = dict(part.split("=") if "=" in part else ("v", part) for part in inside.split(",") if part)
        v = int(values["v"]) if "v" in values else None
        found.append({"time": int(time), "kind": kind, "v": v, "k": None, "g": values.get("g")})
    return found


KINDS = ", ".join(f"{v} AS kind = '{v}'" for v in "ABC")


@pytest.mark.parametrize(
    ("sase", "sql", "text", "window", "expected"),
    [
        ("SEQ(A+ a, B b)", "A+ B", "A@1{2} A@2{3} B@3 A@4{5} B@5", (10, 10), [(0, 10, 10, 16, 50, 2, 5)]),
        ("(SEQ(A a, B b))+", "(A B)+", "A@1{2} B@2 A@3{3} B@4", (10, 10), [(0, 10, 4, 5, 12, 2, 3)]),
        ("((A a)+)+", "(A+)+", "A@1{1} A@2{2} A@3{4}", (10, 10), [(0, 10, 7, 12, 28, 1, 4)]),
        ("SEQ(A a, NOT(C c), B b)", "A ~C B", "A@1 C@2 A@3 B@4 B@5", (10, 10), [(0, 10, 2, 2, None, None, None)]),
        ("SEQ(A a, B b, NOT(C c))", "A B ~C", "A@1 B@2 C@3 B@4 A@5 B@6", (10, 10),
         [(0, 10, 3, 3, None, None, None)]),
        ("SEQ((A a OR C c), B b)", "(A | C) B", "A@1{1} C@2 B@3", (10, 10), [(0, 10, 2, 1, 1, 1, 1)]),
        ("SEQ(A a, B b)", "A B", "A@1{1} B@3 A@4{7} B@6", (4, 2), [(0, 4, 1, 1, 1, 1, 1), (4, 8, 1, 1, 7, 7, 7)]),
        ("SEQ(A a, B b) GROUP BY g", "A B", "A@1{1,g=x} A@2{2,g=y} B@3{g=x} B@4{g=y}", (10, 10),
         [(0, 10, "x", 1, 1, 1, 1, 1), (0, 10, "y", 1, 1, 2, 2, 2)]),
    ],
)  # fmt: skip
def test_counted_by_hand(
    sase: str, sql: str, text: str, window: tuple[int, int], expected: list[tuple[object, ...]]
) -> None:
    windows = f"WITHIN {window[0]} SECONDS SLIDE {window[1]} SECONDS"
    values = "COUNT(a) AS c, SUM(a.v) AS s, MIN(a.v) AS low, MAX(a.v) AS high"
    statement = f"FROM e TYPE BY kind PATTERN {sase} {windows} RETURN COUNT(*) AS n, {values}"
    groups = "PARTITION BY g GROUP BY g" if "GROUP BY" in sase else ""
    names = {v for v in "ABC" if v in sql}
    defines = ", ".join(f"{v} AS kind = '{v}'" for v in sorted(names))
    twin = (
        f"FROM e MATCH_RECOGNIZE ({groups} MEASURES COUNT(MATCHES) AS n, {values.replace('COUNT(a)', 'COUNT(a.*)')} "
        f"ONE ROW PER WINDOW PATTERN ({sql}) {windows} DEFINE {defines})"
    )
    events = events_of(text)
    assert answer_of(plan_of(statement), events) == expected
    assert answer_of(plan_of(twin), events) == expected


def test_and_pairs_what_each_side_finds() -> None:
    text = "FROM e TYPE BY kind PATTERN {} WITHIN 10 SECONDS RETURN COUNT(*), COUNT(A), SUM(a.v), SUM(x.v)"
    events = events_of("A@1{1} B@2 A@3{4} B@4 C@5")
    # A1B2, A1B4, A3B4 with A1C5, A3C5: the sides share their events
    both = plan_of(text.format("SEQ(A a, B b) AND SEQ(A x, C c)"))
    assert answer_of(both, events) == [(0, 10, 6, 12, 12, 15)]
    guarded = plan_of(text.format("SEQ(A a, B b) AND SEQ(A x, NOT(B n), C c)"))
    assert answer_of(guarded, events) == []
    inside = plan_of(text.format("SEQ(A a, NOT(A n), B b) AND A+ x"))
    assert answer_of(inside, events) == [(0, 10, 6, 14, 15, 20)]


# ---- random queries ------------------------------------------------------------------------------------------------


@dataclass
class Drawn:
    """A pattern as text and for the check, and what its variables take. adjacent: pairs of variables whose events are
    neighbours; loops: those whose own events are."""

    sase: str
    pattern: Pattern
    nullable: bool


@dataclass
class Drawing:
    """A pattern being drawn. variables: with their types, negated ones apart."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    flat: bool
    left: int = 5
    variables: dict[str, str] = field(default_factory=dict)
    negated: dict[str, str] = field(default_factory=dict)
    adjacent: list[tuple[str, str]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)

    def leaf(self, negated: bool = False) -> tuple[str, str]:
        """A new variable and its type."""
        name = f"x{len(self.variables) + len(self.negated)}"
        kind = self.draw(st.sampled_from("AAB"))
        (self.negated if negated else self.variables)[name] = kind
        self.left -= not negated
        return name, kind

    def event(self, looped: bool) -> Drawn:
        name, kind = self.leaf()
        sign = self.draw(st.sampled_from(["", "", "+", "*"]))
        if sign == "+" and not looped:
            self.loops.append(name)
        sase = f"{kind}{sign} {name}"
        one = ("event", name)
        return Drawn(sase, {"": one, "+": ("plus", one), "*": ("star", one)}[sign], sign == "*")

    def sequence(self, depth: int, looped: bool) -> Drawn:
        texts: list[str] = []
        parts: list[Pattern] = []
        nullable = True
        for _ in range(self.draw(st.integers(1, min(3, max(1, self.left))))):
            if self.draw(st.integers(0, 3)) == 0:
                self.negation(texts, parts)
            part = self.event(looped) if self.flat else self.any(depth + 1, looped)
            before = next((p for p in reversed(parts) if p[0] != "not"), None)
            if before is not None and before[0] in ("event", "plus") and part.pattern[0] == "event":
                inner = before if before[0] == "event" else before[1]
                if inner[0] == "event":
                    self.adjacent.append((inner[1], part.pattern[1]))
            texts.append(part.sase)
            parts.append(part.pattern)
            nullable &= part.nullable
            if self.left <= 0:
                break
        if self.draw(st.integers(0, 5)) == 0:
            self.negation(texts, parts)
        return Drawn(f"SEQ({', '.join(texts)})", ("seq", *parts), nullable)

    def negation(self, texts: list[str], parts: list[Pattern]) -> None:
        if len(self.negated) < 2:
            name, kind = self.leaf(negated=True)
            kind = self.negated[name] = self.draw(st.sampled_from("ABC"))
            texts.append(self.draw(st.sampled_from(["NOT({})", "~({})", "~{}"])).format(f"{kind} {name}"))
            parts.append(("not", name))

    def any(self, depth: int, looped: bool) -> Drawn:
        kind = self.draw(st.sampled_from(["event", "event", "sequence", "or", "loop"])) if depth < 3 else "event"
        if self.left <= 1 or kind == "event":
            return self.event(looped)
        if kind == "sequence":
            return self.sequence(depth, looped)
        if kind == "or":
            sides = [self.any(depth + 1, looped), self.any(depth + 1, looped)]
            text = f"({' OR '.join(s.sase for s in sides)})"
            return Drawn(text, ("or", *(s.pattern for s in sides)), any(s.nullable for s in sides))
        body = self.any(depth + 1, True)
        sign, name = self.draw(st.sampled_from([("+", "plus"), ("*", "star")]))
        return Drawn(f"({body.sase}){sign}", (name, body.pattern), body.nullable or name == "star")


COMPARED = {"<": operator.lt, ">=": operator.ge, "<>": operator.ne}


def compared(op: str, one: object, other: object) -> bool:
    """A comparison in SQL as a condition: null is false."""
    return one is not None and other is not None and bool(COMPARED[op](one, other))


def holds(
    kind: str, local: tuple[str, int] | None, earlier: tuple[str, str] | None, loop: tuple[str, str] | None,
    e: Event, before: Sequence[Labelled],
) -> bool:  # fmt: skip
    """local: v against a constant; earlier: v against that of the event before, which has to be of a variable; loop:
    the same from the second event of the variable on."""
    if e["kind"] != kind or (local is not None and not compared(local[0], e["v"], local[1])):
        return False
    last_name, last = before[-1] if before else ("", {"v": None})
    if earlier is not None and not (last_name == earlier[1] and compared(earlier[0], e["v"], last["v"])):
        return False
    if loop is None or all(name != loop[1] for name, _ in before):
        return True
    return last_name == loop[1] and compared(loop[0], e["v"], last["v"])


@st.composite
def queries(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[str, Query, bool]:
    """A statement, the same for the check, and whether a trend might have no event."""
    strategy = draw(st.sampled_from(["ANY", "ANY", "ANY", "PARTITION", "NEXT"]))
    drawing = Drawing(draw, strategy == "NEXT")
    sides = []
    for _ in range(2 if strategy == "ANY" and draw(st.integers(0, 3)) == 0 else 1):
        drawing.left = 3 if sides else drawing.left
        sides.append(drawing.sequence(0, False) if drawing.flat else drawing.any(0, False))
    written: list[str] = []
    conditions: dict[str, Condition] = {}
    ops = st.sampled_from(sorted(COMPARED))
    for name, kind in {**drawing.variables, **drawing.negated}.items():
        local = earlier = loop = None
        if draw(st.integers(0, 3)) == 0:
            local = (draw(ops), draw(st.integers(0, 2)))
            written.append(f"{name}.v {local[0]} {local[1]}")
        pairs = [one for one, other in drawing.adjacent if other == name]
        if pairs and draw(st.booleans()):
            earlier = (draw(ops), pairs[0])
            written.append(f"{name}.v {earlier[0]} {pairs[0]}.v")
        if name in drawing.loops and draw(st.booleans()):
            loop = (draw(ops), name)
            written.append(f"{name}[i].v {loop[0]} {name}[i-1].v")
        conditions[name] = partial(holds, kind, local, earlier, loop)
    keys, groups = draw(st.sampled_from([((), ()), (("k",), ()), (("g",), ("g",)), (("k", "g"), ("g",))]))
    tests = [c for c in keys if c not in groups or draw(st.booleans())]
    written += [f"[{', '.join(tests)}]"] if tests else []
    names = list(drawing.variables)
    chosen = draw(st.sampled_from(names))
    several = [n for n in names if drawing.variables[n] == drawing.variables[chosen]]
    listed = {"ANY": "skip_till_any_match", "PARTITION": "partition_contiguity", "NEXT": "skip_till_next_match"}
    strict = f"{listed[strategy]}({', '.join(names)}) "
    body = " AND ".join(draw(st.permutations(written)))
    if strategy == "ANY" and draw(st.booleans()):
        where = f"WHERE {body}" if body else ""
    else:
        where = f"WHERE {strict}{{ {body} }}"
    within = draw(st.sampled_from([1, 3, 6, 8, 8]))
    slide = draw(st.none() | st.integers(1, 9))
    kind = drawing.variables[chosen]
    returned = (
        f"COUNT(*), COUNT({chosen}), COUNT({kind}), COUNT({chosen}.v) AS spoken, SUM({kind}.v), AVG({chosen}.v), "
        f"MIN({chosen}.v), MAX({kind}.v)"
    )
    one, all_of = (chosen,), tuple(several)
    aggregates = (
        ("count", (), ""), ("count", one, ""), ("count", all_of, ""), ("count", one, "v"), ("sum", all_of, "v"),
        ("avg", one, "v"), ("min", one, "v"), ("max", all_of, "v"),
    )  # fmt: skip
    pattern = " AND ".join(s.sase for s in sides)
    text = " ".join([
        f"FROM e TYPE BY kind PATTERN {pattern} {where}", f"GROUP BY {', '.join(groups)}" if groups else "",
        f"WITHIN {within} SECONDS", f"SLIDE {slide} SECONDS" if slide else "", f"RETURN {returned}",
    ])  # fmt: skip
    if draw(st.booleans()) or ("{" in where and not groups and not slide):
        head, tail = text.split(" RETURN ")
        text = f"RETURN {tail} {head}"
    query = Query(
        tuple(s.pattern for s in sides), conditions, within, slide or within, keys, groups, strategy, aggregates
    )
    return text, query, any(s.nullable for s in sides)


EVENTS = st.lists(
    st.fixed_dictionaries({
        "time": st.sampled_from([-2, 0, 1, 2, 3, 4, 5, 6, 7]), "kind": st.sampled_from("AAAABBC"),
        "v": st.sampled_from([0, 1, 1, 2, 3, None]), "k": st.sampled_from(["x", "x", "x", "x", None]),
        "g": st.sampled_from(["a", "a", "a", "b", None]),
    }),
    min_size=4,
    max_size=8,
).map(lambda events: sorted(events, key=lambda e: e["time"]))  # fmt: skip


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 5)
@given(queries(), EVENTS)
def test_random_trends_are_those_of_the_independent_check(query: tuple[str, Query, bool], events: list[Event]) -> None:
    text, meant, nullable = query
    try:
        plan = plan_of(text)
    except QueryError as error:
        if nullable and {d.message for d in error.diagnostics} == {"a trend has an event at least"}:
            return
        raise
    expected = trends_check.rows(meant, events)
    event(f"{meant.strategy}, {len(meant.sides)} sides, {'some' if expected else 'no'} rows")
    assert answer_of(plan, events) == expected
