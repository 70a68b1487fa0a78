"""Golden answers on every engine: the 25 worked examples, and cases at the edges of what a query means.

A case file has `== events` (a table), `== query` (the text behind PARTITION BY k ORDER BY ts) and `== matches` (one a
line, in order of emission; `()` is an empty match, `none` means that there is no match). A query is asked of the events
above it: `== query in [low, high]` of those with low <= ts <= high alone, `== query filtered by [low, high]` of all,
but without the matches that reach out of the range. `== matches at watermark t` are those out by then, when more rows
may come. Times are seconds.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from matching.batch import Matcher, Matches
from matching.by_reference import DuckEvaluation, ReferenceMatcher
from matching.matcher import make_matcher
from query.errors import HybridWarning
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.reference import find
from query.schema import Field, Schema
from tests.events import batch_of

HERE = Path(__file__).parent

Row = dict[str, object]
Answer = list[tuple[tuple[str, str], ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """One answer to one query. watermark_us: None where the input has ended. only, filtered: ranges in seconds."""

    name: str
    rows: tuple[Row, ...]
    query: str
    only: tuple[int, int] | None
    filtered: tuple[int, int] | None
    watermark_us: int | None
    matches: Answer


def read_table(lines: list[str]) -> tuple[Row, ...]:
    head, *body = ([cell.strip() for cell in line.split("|")] for line in lines)
    rows = []
    for cells in body:
        given = dict(zip(head, cells, strict=True))
        event, ts, key = given.pop("event"), given.pop("ts"), given.pop("k", "p")
        letters = re.match("[a-z]+", event)
        assert letters
        numbers: Row = {name: None if cell == "null" else int(cell) for name, cell in given.items()}
        rows.append({"event": event, "ts": int(ts) * 1_000_000, "k": key, "s": letters[0]} | numbers)
    return tuple(rows)


def read_matches(lines: list[str]) -> Answer:
    """`A=a1,a2 B=b1` -> (A, a1), (A, a2), (B, b1)."""
    if lines == ["none"]:
        return []
    parts = [[part.split("=") for part in line.split() if part != "()"] for line in lines]
    return [tuple((name, e) for name, events in line for e in events.split(",")) for line in parts]


def read_case(path: Path) -> list[Case]:
    cases: list[Case] = []
    rows: tuple[Row, ...] = ()
    query, only, filtered = "", None, None
    sections = re.split(r"^== ", path.read_text(), flags=re.MULTILINE)[1:]
    for section in sections:
        head, *lines = [line for line in section.splitlines() if line.strip() and not line.startswith("#")]
        span = re.search(r"\[(\d+), (\d+)\]", head)
        bounds = (int(span[1]), int(span[2])) if span else None
        match head.split()[0]:
            case "events":
                rows = read_table(lines)
            case "query":
                query, only, filtered = "\n".join(lines), None, None
                if " in " in head:
                    only = bounds
                elif bounds:
                    filtered = bounds
            case "matches":
                at = re.search(r"at watermark ([\d.]+)", head)
                watermark_us = int(Decimal(at[1]) * 1_000_000) if at else None
                name = f"{path.stem}-{len(cases) + 1}"
                cases.append(Case(name, rows, query, only, filtered, watermark_us, read_matches(lines)))
            case _:
                raise ValueError(f"{path.name}: {head}")
    return cases


PATHS = [*sorted(HERE.glob("worked/*.case")), *sorted(HERE.glob("edges/*.case"))]
CASES = [case for path in PATHS for case in read_case(path)]


def plan_of(case: Case) -> Plan:
    return bound(case.query, tuple(name for name in case.rows[0] if name not in ("event", "ts", "k", "s")))


@cache
def bound(query: str, numbers: tuple[str, ...]) -> Plan:
    fields = [("event", "VARCHAR"), ("ts", "TIMESTAMP"), ("k", "VARCHAR"), ("s", "VARCHAR")]
    fields += [(name, "BIGINT") for name in numbers]
    schema = Schema("e", tuple(Field(name, type) for name, type in fields), time="ts")
    text = f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts\n{query}\n)"
    return bind(parse(text), lambda name: schema).factors[0].plan


def in_range(ts_us: object, bounds: tuple[int, int]) -> bool:
    assert isinstance(ts_us, int)
    return bounds[0] * 1_000_000 <= ts_us <= bounds[1] * 1_000_000


def answer(case: Case, engine: Callable[[Plan, list[Row], int | None], Answer]) -> Answer:
    rows = [row for row in case.rows if case.only is None or in_range(row["ts"], case.only)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)  # the slow path, and negations that cannot act
        found = engine(plan_of(case), rows, case.watermark_us)
    if case.filtered is not None:
        times = {row["event"]: row["ts"] for row in rows}
        found = [match for match in found if all(in_range(times[event], case.filtered) for _, event in match)]
    return found


def by_find(plan: Plan, rows: list[Row], watermark_us: int | None) -> Answer:
    ts_us = [int(str(row["ts"])) for row in rows]
    found = find(plan, rows, ts_us, evaluate=DuckEvaluation(), watermark_us=watermark_us, ended=watermark_us is None)
    return [tuple((name, str(rows[index]["event"])) for name, index in match.labels) for match in found]


def by_matcher(make: Callable[[Plan], Matcher], size: int) -> Callable[[Plan, list[Row], int | None], Answer]:
    def engine(plan: Plan, rows: list[Row], watermark_us: int | None) -> Answer:
        matcher = make(plan)
        batch = batch_of(plan.schema, rows)
        matches = [matcher.push(batch.slice(i, min(i + size, len(batch)))) for i in range(0, len(batch), size)]
        matches.append(matcher.advance(watermark_us))
        return [match for part in matches for match in labels_of(part, rows)]

    return engine


def labels_of(matches: Matches, rows: list[Row]) -> Answer:
    found = []
    for low, high in zip(matches.event_bounds[:-1], matches.event_bounds[1:], strict=True):
        names = [matches.variables[v] for v in matches.event_variable[low:high]]
        events = [str(rows[offset]["event"]) for offset in matches.event_offset[low:high]]
        found.append(tuple(zip(names, events, strict=True)))
    return found


ENGINES = {
    "reference": by_find,
    "reference matcher, 1 row": by_matcher(ReferenceMatcher, 1),
    "reference matcher, all rows": by_matcher(ReferenceMatcher, 1000),
    "matcher, 1 row": by_matcher(make_matcher, 1),
    "matcher, 7 rows": by_matcher(make_matcher, 7),
    "matcher, all rows": by_matcher(make_matcher, 1000),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=pytest.mark.slow if i % 4 else ()) for i, c in enumerate(CASES)]
)
def test_worked_example(case: Case, engine: str) -> None:
    assert answer(case, ENGINES[engine]) == case.matches


def test_all_worked_examples_are_here() -> None:
    assert [path.stem for path in PATHS][:25] == [f"{i:02d}" for i in range(1, 26)]
    assert len(CASES) >= 100
