"""Live queries over random events, with large ranges searched for by Spark or without it, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

import hybrid
from hybrid.watch.alerts import Alerts
from tests.hybrid.inside import caught_up

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us")), ("n", pa.int64()), ("k", pa.string()), ("s", pa.string()), ("v", pa.int64())]
)
COLUMNS = {"ts": "TIMESTAMP", "n": "BIGINT", "k": "VARCHAR", "s": "VARCHAR", "v": "BIGINT"}
NOW_US = 1_700_000_000_000_000

KINDS = ("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN", "NEAREST JOIN", "LEFT NEAREST JOIN")
RANGES = (
    "FROM pl.at - INTERVAL 20 SECOND TO pl.at",
    "FROM pl.at - INTERVAL 12 SECOND TO pl.at + INTERVAL 4 SECOND",
    "FROM TIMESTAMP '2000-01-01' TO pl.at AS KNOWN",
    "FROM TIMESTAMP '290000-01-01 (BC)' TO TIMESTAMP '290000-01-01'",
)
PATTERNS = (
    "PARTITION BY k ORDER BY ts MEASURES U.n AS n, U.v AS v PATTERN (A U) DEFINE U AS v > A.v",
    "PARTITION BY k ORDER BY ts MEASURES A.n AS n, B.v AS v AFTER MATCH NO SKIP PATTERN (A B) "
    "WITHIN INTERVAL 5 SECOND SELECTION SKIP TILL ANY MATCH DEFINE B AS v > A.v",
    "PARTITION BY k, s ORDER BY ts MEASURES MATCH_NUMBER() AS number, CLASSIFIER() AS c ALL ROWS PER MATCH "
    "PATTERN (A B+) DEFINE B AS v <> PREV(v)",
    "ORDER BY ts MEASURES FIRST(A.n) AS n, LAST(A.v) AS v PATTERN (A{2} B) SELECTION STRICT DEFINE B AS v >= A.v",
    "PARTITION BY k ORDER BY ts MEASURES A.n AS n, A.v AS v AFTER MATCH SKIP TO NEXT ROW PATTERN (A) DEFINE A AS v > 1",
)  # fmt: skip
CONDITIONS = ("pa.v >= pl.pv", "TRUE", "pa.k = pl.k", "pa.k = pl.k AND pa.v > 4")


@dataclass(frozen=True)
class Case:
    """A live query and what is pushed: several sources, late events, and many at the same instant."""

    query: str
    ties: tuple[str, ...]
    pushes: tuple[tuple[str, pa.Table], ...]
    strategy: str


def case(seed: int, kind: str | None = None, range_: str | None = None) -> Case:
    random = Random(seed)
    pattern = random.choice(PATTERNS)
    kind = kind or random.choice(KINDS)
    on = random.choice((*CONDITIONS[:2], *CONDITIONS) if "PARTITION BY k" in pattern else CONDITIONS[:2])
    history = random.choice(RANGES) if range_ is None else range_
    silent = kind in ("SEMI JOIN", "ANTI JOIN")
    query = (
        f"SELECT pl.pn, {'pl.pv' if silent else 'pa.*'} FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts "
        f"MEASURES P.n AS pn, P.ts AS at, P.v AS pv PATTERN (P) DEFINE P AS s = 'p') AS pl "
        f"{kind} HISTORY OF e {history} MATCH_RECOGNIZE ({pattern}) AS pa ON {on}"
    )
    pushes = []
    for push in range(6):
        rows: list[dict[str, Any]] = []
        for _ in range(random.randint(1, 12)):
            seconds = 5 * push + random.randint(-4, 4)
            values = random.choice("abc"), random.choice("ppqrst"), random.randint(0, 9)
            at_us, n = NOW_US + seconds * 1_000_000, random.randint(0, 3) * 100 + len(rows)
            rows.append(dict(zip(SCHEMA.names, (at_us, n, *values))))
        pushes.append((random.choice(("x", "y", "a")), pa.Table.from_pylist(rows, SCHEMA)))
    ties = random.choice(((), ("v",), ("v", "n")))
    return Case(query, ties, tuple(pushes), random.choice(("llaa", "sllaa", "auto", "alaa")))


def opened(path: Path, case: Case, spark: Any = None, spark_events: int | None = None) -> Any:
    """A database with the stream of a case and nothing in it."""
    db = hybrid.connect(path, spark=spark, spark_events=spark_events)
    db.create_stream("e", COLUMNS, time="ts", key="k", order=case.ties, lateness="3s")
    return db


def watched(db: Any, case: Case) -> tuple[list[Any], pa.Table, Alerts]:
    """The rows of a live query in their order, their evidence, and its alerts."""
    alerts = db.watch(case.query, strategy=case.strategy, evidence=True)
    found = []
    for source, rows in case.pushes:
        db.push("e", rows, source=source)
        found += settled(db, alerts)
    db.advance("e", None)
    found += settled(db, alerts)
    return found, alerts.evidence(), alerts


def settled(db: Any, alerts: Alerts) -> list[Any]:
    """The rows that come of what has been pushed, all of them, so that each is asked for at the same moment."""
    caught_up(db)
    return alerts.fetch().to_pylist()
