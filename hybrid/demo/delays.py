"""Real flights in three layers: delays of aircraft that grow, waves of them at one airport, and days with waves at all.

The data is that of hybrid.demo.flights. Delays of different aircraft grow at the same time, and boxes follow each
other: so the first layer becomes a stream of its own, in which each of its matches is an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc

from hybrid.database.database import Database
from hybrid.demo.flights import COLUMNS, departures
from hybrid.rows.evidence_tree import EvidenceTree

GROWTH = """\
SELECT tailnum, origin, began, went_on, ended, first_delay, second_delay, delay
FROM departures MATCH_RECOGNIZE (
  PARTITION BY tailnum
  ORDER BY ts
  MEASURES A.ts AS began, B.ts AS went_on, C.ts AS ended, C.origin AS origin,
           A.dep_delay AS first_delay, B.dep_delay AS second_delay, C.dep_delay AS delay
  PATTERN (A B C)
  WITHIN INTERVAL '1' DAY
  DEFINE B AS dep_delay > PREV(dep_delay),
         C AS dep_delay > PREV(dep_delay) AND dep_delay >= 60
)
"""

#: Over the stream of the rows of GROWTH, by the end of each.
LAYERS = {
    "wave": """\
SELECT origin, aircraft, worst
FROM growths MATCH_RECOGNIZE (
  PARTITION BY origin
  ORDER BY ended
  MEASURES count(*) AS aircraft, max(delay) AS worst
  AFTER MATCH SKIP PAST LAST ROW
  PATTERN (A{3,})
  WITHIN INTERVAL '2' HOUR
)
""",
    "bad_day": """\
SELECT first, second, third, aircraft
FROM growths MATCH_RECOGNIZE (
  ORDER BY ended
  MEASURES J.origin AS first, K.origin AS second, L.origin AS third,
           J.aircraft + K.aircraft + L.aircraft AS aircraft
  PATTERN (J K L)
  WITHIN INTERVAL '12' HOUR
  SELECTION SKIP TILL NEXT MATCH
  DEFINE J AS PATTERN wave,
         K AS PATTERN wave ON origin <> J.origin,
         L AS PATTERN wave ON origin <> J.origin AND origin <> K.origin
)
""",
}
QUERY = "\n".join(f"CREATE PATTERN {name} AS\n{text}" for name, text in LAYERS.items())


@dataclass(frozen=True, slots=True)
class DelaysResult:
    """Result of the demo. rows: layer -> its rows. worst_row: number of the bad day with most aircraft. tree: of it.
    departures: how many there were."""

    rows: Mapping[str, pa.Table]
    worst_row: int
    tree: EvidenceTree
    departures: int


@contextmanager
def airports(directory: str | Path | None = None) -> Iterator[Database]:
    """Yields a database with both streams and the patterns, in a temporary directory, or in `directory`, which is kept.
    """
    place = TemporaryDirectory(prefix="hybrid-demo-") if directory is None else nullcontext(str(directory))
    with place as path, Database(path) as db:
        db.create_stream("departures", COLUMNS, time="ts", key="tailnum")
        db.watch(GROWTH, into="growths", time="ended")
        db.create_patterns(LAYERS)
        yield db


def run(db: Database, batch_rows: int = 5_000) -> DelaysResult:
    """Replays the departures of the year as live, watches all layers, and returns their rows. db: see `airports`."""
    table = departures()
    alerts = {"growth": db.watch(GROWTH)} | {name: db.watch(f"SELECT * FROM {name}") for name in LAYERS}
    for start in range(0, table.num_rows, batch_rows):
        db.push("departures", table.slice(start, batch_rows), source="new york")
    db.advance("departures", None)
    rows = {name: found.take() for name, found in alerts.items()}
    aircraft = rows["bad_day"]["aircraft"]
    worst_row = pc.index(aircraft, pc.max(aircraft)).as_py()
    return DelaysResult(rows, worst_row, alerts["bad_day"].tree(worst_row), table.num_rows)
