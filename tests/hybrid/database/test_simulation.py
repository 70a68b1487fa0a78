"""A stream in bad weather, by a seed: late events, redeliveries, bursts, Ctrl-C, silent sources, crashes, in any order;
what the live queries say is what the reference says of the events that were on time.

One line replays a failure: SEED=17 python -m pytest tests/hybrid/database/test_simulation.py"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hybrid.database.database import Database
from hybrid.rows.evidence import of_matches
from matching.batch import EventBatch
from matching.by_reference import ReferenceMatcher
from matching.ordering import sort_events
from matching.types import arrow_schema
from query.plan.fingerprint import fingerprint
from tests.hybrid.ends import opened_again
from tests.hybrid.interrupted import interrupted_between_parts

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(12))
START = dt.datetime(2024, 1, 1)
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
QUERIES = {
    "falls": """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k MEASURES FIRST(ts) AS since, LAST(v) AS v
        PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v))""",
    "passing": """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k MEASURES FIRST(ts) AS since, LAST(B.v) AS b
        PATTERN (A B) WITHIN INTERVAL '15' SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS v < 20, B AS v > 60)""",
    "silence": """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k MEASURES FIRST(ts) AS since
        PATTERN (A ~B) WITHIN INTERVAL '8' SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS v < 15, B AS v > 50)""",
}
IDLE_S, LATENESS_S = 20, 3


class Weather:
    """The slow model beside the database: which event has come, and which of them were late."""

    def __init__(self) -> None:
        self.highest: dict[str, int] = {}
        self.awake: set[str] = set()
        self.heard: dict[str, float] = {}
        self.w: int | None = None
        self.expected: dict[str, int] = Counter()
        self.on_time: list[tuple[str, int, int, str, int]] = []
        self.late = 0

    def come(self, source: str, offset: int, at: int, key: str, value: int) -> None:
        if offset < self.expected[source]:
            return
        self.expected[source] = offset + 1
        if self.w is not None and at < self.w:
            self.late += 1
        else:
            self.on_time.append((source, offset, at, key, value))
        self.highest[source] = max(at, self.highest.get(source, at))
        self.awake.add(source)
        self.rise()

    def rise(self) -> None:
        if self.awake:
            reached = min(self.highest[source] for source in self.awake) - LATENESS_S
            self.w = reached if self.w is None else max(self.w, reached)

    def look(self, now: float) -> None:
        for source, heard in sorted(self.heard.items(), key=lambda item: item[1]):
            if now - heard >= IDLE_S:
                self.awake.discard(source)
                self.rise()


def opened(path: Path) -> tuple[Database, dict[str, Any]]:
    db = opened_again(path, maintenance=False, ticking=False, log="os")
    db.create_stream("t", COLUMNS, "ts", "k", lateness=f"{LATENESS_S}s", idle=f"{IDLE_S}s")
    return db, {name: db.watch(text, name=name, evidence=True) for name, text in QUERIES.items()}


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", [SEEDS[0], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[1:])])
def test_bad_weather(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    now = [1000.0]
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now[0])
    impatient = interrupted_between_parts(monkeypatch, 3)
    weather, seen = Weather(), Counter[str]()
    sent: dict[str, list[tuple[int, str, int]]] = {name: [] for name in "xyz"[: rng.integers(1, 4)]}
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in QUERIES}
    db, alerts = opened(tmp_path)
    event_time = 100
    for _ in range(60):
        now[0] += float(rng.random() * 4)
        event_time += int(rng.integers(0, 3))
        source = str(rng.choice(list(sent)))
        match rng.choice(
            ["one", "burst", "late", "again", "silence", "tick", "crash", "checkpoint", "fetch"],
            p=[0.34, 0.14, 0.1, 0.08, 0.06, 0.1, 0.06, 0.06, 0.06],
        ):
            case "silence":
                now[0] += IDLE_S + float(rng.random() * 5)
                event_time += IDLE_S
                seen["all silent"] += 1
                continue
            case "tick":
                _fetch(alerts, found)  # else the clock waits for what a push still owes
                weather.look(now[0])
                db.tick()
                continue
            case "checkpoint":
                db.checkpoint()
                continue
            case "fetch":
                _fetch(alerts, found)
                continue
            case "crash":
                seen["crash"] += 1
                db, alerts = opened(tmp_path)
                # who opens a database hears of all that it knows: from now on they are silent
                weather.heard = dict.fromkeys(weather.highest, now[0])
                continue
            case "again":
                first = max(0, len(sent[source]) - int(rng.integers(1, 6)))
                seen["again"] += len(sent[source]) - first
            case what:
                first = len(sent[source])
                for _ in range(int(rng.integers(5, 30)) if what == "burst" else 1):
                    back = int(rng.integers(5, 40)) if what == "late" else int(rng.integers(0, LATENESS_S))
                    event_time += int(rng.integers(0, 2))
                    key, value = "ab"[rng.integers(0, 2)], int(rng.integers(0, 100))
                    sent[source].append((max(0, event_time - back), key, value))
        rows = [{"ts": START + dt.timedelta(seconds=t), "k": k, "v": v} for t, k, v in sent[source][first:]]
        if rows:
            impatient[0] = int(rng.integers(0, 5))
            try:
                db.push("t", rows, source, first)
            except KeyboardInterrupt:
                seen["Ctrl-C"] += 1
                if db.streams()["t"]["offsets"].get(source, 0) < first + len(rows):  # the last one still owed events
                    db.push("t", rows, source, first)
            impatient[0] = 0
            for i, (t, k, v) in enumerate(sent[source][first:]):
                weather.come(source, first + i, t, k, v)
            weather.heard[source] = now[0]
    db.advance("t", None)
    _fetch(alerts, found)
    assert db.sql("SELECT count(*) AS n FROM t").arrow().column("n").to_pylist() == [sum(map(len, sent.values()))]
    late = _late(db)
    db.close()
    for name, watch in alerts.items():
        plan = watch.plan.factors[0].plan
        assert found[name] == _reference(plan, weather), f"SEED={seed}: {name}"
    assert found["falls"]
    assert weather.late == late
    counts = seen | {"late": late} | {name: len(rows) for name, rows in found.items()}
    record_property("examples", ", ".join(f"{what} {count}" for what, count in counts.items()))


def _late(db: Database) -> int:
    """How many of the events that are kept are marked late."""
    whole, on_time = (
        db.sql("SELECT count(*) AS n FROM t", late=late).arrow().column("n").to_pylist()[0] for late in (True, False)
    )
    return int(whole - on_time)


def _fetch(alerts: dict[str, Any], found: dict[str, dict[str, dict[str, Any]]]) -> None:
    for name, watch in alerts.items():
        for row in watch.fetch().to_pylist():
            assert found[name].setdefault(row["match_id"], row) == row


def _reference(plan: Any, weather: Weather) -> dict[str, dict[str, Any]]:
    """By match id the rows that the reference finds among the events that were on time."""
    names = sorted({source for source, *_ in weather.on_time})
    rows = [{"ts": START + dt.timedelta(seconds=t), "k": k, "v": v} for _, _, t, k, v in weather.on_time]
    columns = pa.RecordBatch.from_pylist(rows, schema=arrow_schema(plan.schema))
    count = np.arange(len(rows), dtype=np.int64)
    batch = EventBatch(
        columns, columns.column(0).cast(pa.int64()).to_numpy(),
        np.array([names.index(source) for source, *_ in weather.on_time], np.int32),
        np.array([offset for _, offset, *_ in weather.on_time], np.int64), count, tuple(names),
    )  # fmt: skip
    matcher = ReferenceMatcher(plan, tuple(names), lenient=True)
    out: dict[str, dict[str, Any]] = {}
    for matches in (matcher.push(sort_events(batch, plan.schema)), matcher.advance(None)):
        ids = of_matches(matches).ids(fingerprint(plan))
        for row, i in zip(matches.rows.to_pylist(), matches.row_match.tolist()):
            out[ids[i]] = {**row, "match_id": ids[i]}
    return out
