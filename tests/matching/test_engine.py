"""A new engine is one file and one line in `choose_engine`: two throwaway engines go all the ordinary ways.

Their answers are worked out by a few lines of plain Python.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from matching.batch import Matches
from matching.engines import choose
from matching.engines.engine import EnginePlan, WantedRows
from matching.engines.run_lists import RunLists
from matching.feed import Feed, Member
from matching.matcher import KernelMatcher
from matching.purpose import Purpose
from matching.spill import Spill
from query.errors import DataError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema
from tests.events import batch_of
from tests.matching import run_overlaps, run_windows
from tests.matching.memory_store import MemoryStore
from tests.properties.comparing import fewer
from tests.strategies import SCHEMA, SECOND_US, Row, events

WINDOWS = """SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES FIRST(A.ts) AS since, count(*) AS n, LAST(A.v) AS v
    PATTERN (A) WITHIN INTERVAL '5' SECOND DEFINE A AS v > 0) AS m"""
OVERLAPS = """SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS a, B.ts AS b
    AFTER MATCH NO SKIP PATTERN (A B) SELECTION SKIP TILL ANY MATCH
    DEFINE A AS s = 'a', B AS s = 'b' AND B.ts < A.until) AS m"""
INTERVALS = Schema("e", (*SCHEMA.fields, Field("until", "TIMESTAMP")), time="ts", keys=("k",))

FEWER = fewer(5)
#: The line that each engine takes.
LINES = {
    "windows": "if gives_matches and (seen := windows_of(plan, program)): return by(RunWindows, 'test', carried=seen)",
    "overlaps": "if gives_matches and overlaps(program): return by(RunOverlaps, 'test')",
}


def with_line(line: str) -> Callable[..., EnginePlan]:
    """choose_engine with one line more, before the other engines."""
    source, first = inspect.getsource(choose.choose_engine), "    if gives_matches and (table"
    assert source.count(first) == 1
    names = {**vars(choose), **vars(run_windows), **vars(run_overlaps)}
    exec(source.replace(first, f"    {line}\n{first}"), names)
    chosen: Callable[..., EnginePlan] = names["choose_engine"]
    return chosen


@pytest.fixture(scope="module", autouse=True)
def two_more_engines() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        chosen = with_line("\n    ".join(LINES.values()))
        patch.setattr("matching.matcher.choose_engine", chosen)
        patch.setattr("matching.engines.choose.choose_engine", chosen)
        yield


def plan_of(text: str, schema: Schema = SCHEMA) -> Plan:
    return bind(parse(text), lambda _: schema).factors[0].plan


def rows_of(found: list[Matches]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for m in found for row in m.rows.to_pylist()), key=repr)


def in_windows(rows: list[Row]) -> list[tuple[Any, ...]]:
    """By hand: key, first time, number of rows, last value, of those with v > 0 in each window."""
    windows: dict[Any, list[Row]] = {}
    for row in rows:
        if row["v"] is not None and row["v"] > 0:  # type: ignore[operator]
            windows.setdefault((row["k"], row["ts"] // (5 * SECOND_US)), []).append(row)  # type: ignore[operator]
    by_hand = [(k, w[0]["ts"], len(w), w[-1]["v"]) for (k, _), w in windows.items()]
    return [(k, pa.scalar(ts, pa.timestamp("us")).as_py(), *more) for k, ts, *more in by_hand]


def overlapping(rows: list[Row]) -> list[tuple[Any, ...]]:
    """By hand: key and the beginnings of an A and a later B that begins before A ends."""
    pairs = [
        (a["k"], a["ts"], b["ts"])
        for i, a in enumerate(rows) for b in rows[i + 1 :]
        if a["k"] == b["k"] and a["s"] == "a" and b["s"] == "b" and b["ts"] < a["until"]  # type: ignore[operator]
    ]  # fmt: skip
    return [(k, *(pa.scalar(t, pa.timestamp("us")).as_py() for t in times)) for k, *times in pairs]


@st.composite
def with_ends(draw: st.DrawFn) -> list[Row]:
    return [{**row, "until": row["ts"] + draw(st.integers(0, 6)) * SECOND_US} for row in draw(events())]  # type: ignore[operator]


def fed(
    plan: Plan, schema: Schema, rows: list[Row], cuts: list[int], spill: Spill | None, restarts: set[int]
) -> list[tuple[Any, ...]]:
    """The rows of a live query of a feed that is restored before some pushes, from what it was."""
    feed = Feed(schema, spill=spill)
    member = feed.add(plan, 0)
    found: list[Matches] = []
    for i, (a, b) in enumerate(pairwise([0, *cuts, len(rows)])):
        if i in restarts:
            found += member.take_found()
            state, _ = feed.snapshot([member])
            feed = Feed(schema, spill=None if spill is None else Spill(spill.limit_bytes, MemoryStore()))
            (again,) = feed.restore(state, [plan])
            assert isinstance(again, Member)
            member = again
        feed.push(batch_of(schema, rows[a:b], a), int(rows[b]["ts"]) if b < len(rows) else None)  # type: ignore[call-overload]
    feed.advance(None)
    assert member.failure is None
    return rows_of(found + member.take_found())


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=2), data=st.data())
def test_a_row_per_window_is_what_python_counts(rows: list[Row], data: st.DataObject) -> None:
    """Live, with and without spilling, through restarts."""
    plan = plan_of(WINDOWS)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows) - 1))))
    restarts = data.draw(st.sets(st.integers(1, 1 + len(cuts)), max_size=2))
    for limit in (None, 0, 600):
        spill = None if limit is None else Spill(limit, MemoryStore())
        assert fed(plan, SCHEMA, rows, cuts, spill, restarts) == sorted(in_windows(rows), key=repr), limit


@pytest.mark.slow
@FEWER
@given(rows=with_ends(), data=st.data())
def test_overlapping_intervals_are_what_python_finds(rows: list[Row], data: st.DataObject) -> None:
    plan = plan_of(OVERLAPS, INTERVALS)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)))))[: len(rows)]
    restarts = data.draw(st.sets(st.integers(1, 1 + len(cuts)), max_size=2))
    assert fed(plan, INTERVALS, rows, cuts, Spill(0, MemoryStore()), restarts) == sorted(overlapping(rows), key=repr)


def table_of(rows: list[Row]) -> pa.Table:
    times = {n: pa.array([row[n] for row in rows], pa.timestamp("us")) for n in ("ts", "until")}
    return pa.table({**{n: pa.array([row[n] for row in rows]) for n in ("k", "s", "v")}, **times})


ROWS: list[Row] = [
    {"ts": i * SECOND_US, "k": "pq"[i % 3 == 0], "s": "ab"[i % 2], "v": i % 4 - 1, "until": (i + i % 5) * SECOND_US}
    for i in range(40)
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "by_hand", "engine"), [(WINDOWS, in_windows, "windows"), (OVERLAPS, overlapping, "overlapping intervals")]
)
@pytest.mark.filterwarnings("ignore:partial matches of m may be kept for ever:query.errors.HybridWarning")
def test_statements_and_live_queries_run_by_them(
    text: str, by_hand: Callable[[list[Row]], list[tuple[Any, ...]]], engine: str, tmp_path: Path
) -> None:
    expected = sorted(by_hand(ROWS), key=repr)
    assert len(expected) > 5
    answer = hybrid.sql(text, e=table_of(ROWS))
    assert sorted(map(tuple, (row.values() for row in answer.arrow().to_pylist())), key=repr) == expected
    assert f"\nengine      {engine}\nwhy         test\n" in answer.explain("program")
    with hybrid.connect(tmp_path, maintenance=False) as db:
        db.create_stream("e", TYPES, time="ts", key="k")
        live = db.watch(text)
        for row in table_of(ROWS).to_pylist():
            db.push("e", [row])
        db.advance("e", None)
        assert sorted((tuple(row.values()) for row in live.fetch().to_pylist()), key=repr) == expected


TYPES = {"ts": "TIMESTAMP", "k": "VARCHAR", "s": "VARCHAR", "v": "BIGINT", "until": "TIMESTAMP"}


def test_a_plan_says_what_it_can_do() -> None:
    windows, overlaps = (
        choose.choose_engine(plan, Purpose.LIVE) for plan in (plan_of(WINDOWS), plan_of(OVERLAPS, INTERVALS))
    )
    assert (windows.resident, windows.wanted, windows.specialised) == (None, WantedRows.RUNS, False)
    assert overlaps.resident == "the engine, overlapping intervals, keeps them in memory"
    assert str(overlaps).endswith(f"memory      partial matches stay in memory: {overlaps.resident}")
    assert str(windows).endswith("memory      with a limit, partial matches leave memory by key (policy due)")


def test_a_condition_that_fails_ends_a_query_whose_engine_cannot_wait() -> None:
    """Run lists would go on, and cannot stand for an engine of another kind."""
    plan = plan_of(WINDOWS.replace("v > 0", "v * v > 0"))
    matcher = KernelMatcher(plan, choose.choose_engine(plan, Purpose.MATCHES))
    rows = [{"ts": i, "k": "p", "s": "a", "v": v, "x": 0.0} for i, v in enumerate((1, 2**40))]
    with pytest.raises(DataError, match="v"):
        matcher.push(batch_of(SCHEMA, rows))
    assert not isinstance(matcher.engine, RunLists)
