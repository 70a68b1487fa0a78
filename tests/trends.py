"""Statements of ONE ROW PER WINDOW for tests: their plans, random patterns and events, and their rows as tuples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from matching.batch import Matches
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema
from query.trend_reference import trend_rows

SECOND = 1_000_000
EVENTS = Schema(
    "events",
    (Field("ts", "TIMESTAMP"), Field("type", "VARCHAR"), Field("v", "BIGINT"), Field("d", "DOUBLE"),
     Field("m", "DECIMAL(10,2)"), Field("g", "VARCHAR"), Field("h", "INTEGER")),
    time="ts",
)  # fmt: skip
MEASURES = "COUNT(MATCHES) AS n, COUNT(A.*) AS c, SUM(A.v) AS s, MIN(A.v) AS lo, MAX(A.v) AS hi"
ALL_MEASURES = MEASURES + (
    ", COUNT(v) AS cv, AVG(v) AS av, SUM(d) AS sd, MIN(d) AS ld, MAX(B.d) AS hd, AVG(A.d) AS ad, SUM(B.m) AS sm, "
    "MAX(m) AS hm, COUNT(B.g) AS cg, MAX(ts) AS ht"
)

Row = dict[str, Any]


def row(type: str, second: float, v: int | None = None, g: str | None = None, **more: object) -> Row:
    return {"ts": int(second * SECOND), "type": type, "v": v, "d": None, "m": None, "g": g, "h": None} | more


def read_rows(text: str) -> list[Row]:
    """Returns the events of a text such as `A@1{2} B@3{g=x} C@4`: type, second, and v or g."""
    rows = []
    for word in text.split():
        found = re.fullmatch(r"(\w+)@(\d+)(?:\{(.*)\})?", word)
        assert found is not None
        given = dict(part.split("=") if "=" in part else ("v", part) for part in (found[3] or "").split(",") if part)
        rows.append(row(found[1], int(found[2]), int(given["v"]) if "v" in given else None, given.get("g")))
    return rows


def statement(
    pattern: str, within: int, slide: int, *, partition: str = "", group: str = "", selection: str = "",
    measures: str = MEASURES, conditions: str = "", source: str = "events",
) -> str:  # fmt: skip
    """Returns the text of a statement. pattern: over A, B, C and D, events of the type of that name. within, slide: in
    seconds. conditions: `A: x > 1; B: y > 2`, besides the types."""
    more = dict(part.split(":", 1) for part in conditions.split(";") if part.strip())
    more = {name.strip(): condition for name, condition in more.items()}
    names = sorted(set(re.findall(r"\b[A-D]\b", pattern)))
    defined = [f"{n} AS type = '{n}'" + (f" AND ({more[n]})" if n in more else "") for n in names]
    clauses = [
        f"PARTITION BY {partition}" * bool(partition), "ORDER BY ts", f"GROUP BY {group}" * bool(group),
        f"MEASURES {measures} ONE ROW PER WINDOW PATTERN ({pattern})",
        f"WITHIN {within} SECONDS SLIDE {slide} SECONDS", selection, f"DEFINE {', '.join(defined)}",
    ]  # fmt: skip
    return f"SELECT * FROM {source} MATCH_RECOGNIZE ({' '.join(c for c in clauses if c)}) AS m"


def plan_of(text: str) -> Plan:
    return bind(parse(text), lambda _: EVENTS).factors[0].plan


def expected(plan: Plan, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Returns the rows of the reference: start and end of the window, the group, and the aggregates."""
    return [
        (r.start_us, r.end_us, *r.group, *r.values) for r in trend_rows(plan, rows, [each["ts"] for each in rows])
    ]


def rows_of(plan: Plan, found: Sequence[Matches]) -> list[tuple[Any, ...]]:
    """Returns rows of a matcher like those of the reference, for measures that are bare aggregates."""
    trends = plan.trends
    assert trends is not None
    kinds = ["time", "time", *("" for _ in trends.group_by), *(a.type for a in trends.aggregates)]
    sums = ["", "", *("" for _ in trends.group_by), *(a.over.value for a in trends.aggregates)]
    return [
        tuple(_value(v, kind, over) for v, kind, over in zip(each.values(), kinds, sums, strict=True))
        for m in found
        for each in m.rows.to_pylist()
    ]


def _value(value: Any, kind: str, over: str) -> Any:
    from decimal import Decimal

    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    if value is not None and kind == "BIGNUM":
        return int(value)
    return Decimal(value) if value is not None and kind == "VARCHAR" and over == "sum" else value


# ---- random ones

PATTERNS = st.recursive(
    st.sampled_from(("A", "B")),
    lambda inner: st.one_of(
        st.lists(inner | st.sampled_from(("NOT C", "NOT D")), min_size=2, max_size=4).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.tuples(inner, inner).map(lambda sides: f"({sides[0]} | {sides[1]})"),
        st.tuples(inner, st.sampled_from(("+", "*", "?", "{2}", "{1,2}", "{2,}", "{0,2}"))).map(
            lambda of: f"({of[0]}){of[1]}"
        ),
    ),
    max_leaves=6,
)
SELECTIONS = st.sampled_from(
    ("", "", "SELECTION SKIP TILL NEXT MATCH", "SELECTION PARTITION", "SELECTION STRICT")
)
VALUES = st.sampled_from((None, 1, 2, -3, 7, 2**62, -(2**63), 2**63 - 1))


@st.composite
def rows(draw: st.DrawFn, most: int = 7, types: str = "AABBCD") -> list[Row]:
    """At most `most` events in order of time, with ties."""
    second, found = 0, []
    for _ in range(draw(st.integers(1, most))):
        second += draw(st.sampled_from((0, 1, 1, 2, 3)))
        found.append(row(
            draw(st.sampled_from(types)), second, draw(VALUES), draw(st.sampled_from(("x", "y", None))),
            d=draw(st.sampled_from((None, 0.0, 1.5, -2.25, 8.0))), h=draw(st.sampled_from((1, 2, None))),
            m=draw(st.none() | st.decimals(-99, 99, places=2)),
        ))  # fmt: skip
    return found
