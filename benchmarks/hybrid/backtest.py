"""Backtests over a large archive: events a second on one core, and that the rows are those of a live run.

    python -m benchmarks.hybrid.backtest --directory DIR [--events 50_000_000] [--symbols 10_000] [--days 365]
                                         [--live 1_000_000] [--repeat 3] > out.json

`scan` reads the columns that a valley needs, in the total order, and matches nothing. `valleys` matches often (a
match for each five events), `crashes` hardly ever, `joined` is `crashes` with a history join, `stacked` a pattern over
the rows of `crashes`. The process runs on one core. Seconds are those of the processor, medians of the repeats;
`clock` has the same by the clock, which other processes slow down. `as_live`: so many rows came when the first events
of the archive were pushed, in batches, to a database in memory that watches, and were found again by a watch that
began there in the middle, with `start`; they must be those of a backtest of that stretch, in their order, or the run
fails. DIR keeps the database, which the run does not change.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import hybrid
from archive.reader import RangeRequest
from benchmarks import answers
from benchmarks.archive.events import parser
from benchmarks.hybrid.history import COLUMNS, VALLEY, filled, scratch
from hybrid.database.database import Database
from hybrid.rows.inputs import SORTED_MAX
from query.errors import HybridWarning
from tests.hybrid.inside import flow_of

START = "2024-01-01"
CRASH = (
    "MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES FIRST(A.ts) AS since, LAST(B.ts) AS until, "
    "LAST(B.price) AS low PATTERN (A B{2,}) WITHIN INTERVAL 1 DAY "
    "DEFINE A AS price > 99, B AS price < PREV(price) / 2)"
)
QUERIES = {
    "valleys": f"SELECT * FROM ticks {VALLEY} AS m",
    "crashes": f"SELECT * FROM ticks {CRASH} AS m",
    "joined": (
        f"SELECT m.symbol, m.until, h.low AS before FROM ticks {CRASH} AS m JOIN HISTORY OF ticks "
        f"FROM m.since - INTERVAL 1 DAY TO m.since {CRASH} AS h ON h.symbol = m.symbol"
    ),
    "stacked": (
        f"SELECT * FROM (SELECT * FROM ticks {CRASH} AS c) MATCH_RECOGNIZE (ORDER BY until "
        "MEASURES FIRST(until) AS first, LAST(until) AS last PATTERN (X Y) DEFINE Y AS low < PREV(low)) AS m"
    ),
}


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(days=365)
    options.add_argument("--live", type=int, default=1_000_000, help="so many events are pushed too")
    options.add_argument("--repeat", type=int, default=3)
    given = options.parse_args()
    warnings.simplefilter("ignore", HybridWarning)  # that a valley waits for the next event of its symbol
    filled(given.directory, given.events, given.symbols, given.days, given.seed)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found: dict[str, Any] = {}
    with scratch(given.directory) as copy, hybrid.connect(copy, maintenance=False) as db:
        checked = {name: same_as_live(db, query, given.live) for name, query in QUERIES.items()}
        found["scan"] = measured(lambda: scanned(db), given.events, given.repeat)
        for name, query in QUERIES.items():
            run = measured(lambda query=query: len(db.backtest(query, START)), given.events, given.repeat)
            found[name] = {**run, "as_live": checked[name]}
            print(name, found[name], file=sys.stderr)
    head = {"events": given.events, "days": given.days, "machine": answers.machine()}
    print(json.dumps({**head, "runs": found}, indent=1))


def scanned(db: Database) -> int:
    snapshot = flow_of(db).streams["ticks"].kept.snapshot()
    columns = ("ts", "symbol", "price")
    return sum(map(len, snapshot.batches(RangeRequest(columns=columns), sorted_max=SORTED_MAX)))


def measured(act: Callable[[], int], events: int, repeat: int) -> dict[str, Any]:
    rows, seconds, clock = {act()}, [], []  # the first loads the kernels
    for _ in range(repeat):
        began, began_clock = time.process_time(), time.perf_counter()
        rows.add(act())
        seconds.append(time.process_time() - began)
        clock.append(time.perf_counter() - began_clock)
    if len(rows) > 1:
        sys.exit(f"runs disagree: {rows}")
    middle = statistics.median(seconds)
    return {
        "rows": rows.pop(), "seconds": round(middle, 3), "clock": round(statistics.median(clock), 3),
        "events_per_second": round(events / middle),
    }  # fmt: skip


def same_as_live(db: Database, query: str, events: int) -> int:
    """Pushes the first events to what watches, one from the beginning and one that begins in the middle; how many rows
    all of them and the backtest give, in one order."""
    tables: list[pa.Table] = []
    left = events
    for batch in flow_of(db).streams["ticks"].kept.snapshot().batches():
        part = batch.columns.slice(0, left)
        tables += [pa.table(part.slice(at, 50_000)) for at in range(0, part.num_rows, 50_000)]
        left -= part.num_rows
        if not left:
            break
    end = tables[-1].column("ts")[-1].as_py()  # the watermark that the last event leaves
    expected = db.backtest(query, START, end).arrow()
    with hybrid.connect() as live:
        live.create_stream("ticks", COLUMNS, time="ts", key="symbol")
        alerts = [live.watch(query, unread_max=1 << 40)]
        for number, table in enumerate(tables):
            if number == len(tables) // 2:
                alerts.append(live.watch(query, start=START, unread_max=1 << 40))
            last = number == len(tables) - 1
            live.push("ticks", table.slice(0, table.num_rows - 1) if last else table)
        live.advance("ticks", end)
        for found in alerts:
            rows = found.take()
            if not rows.equals(expected):
                sys.exit(f"live gives {rows.num_rows} rows, a backtest {expected.num_rows}, or others: {query}")
    return int(expected.num_rows)


if __name__ == "__main__":
    main()
