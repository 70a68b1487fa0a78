"""From a live match to its joined row: one key and days of history, in a large archive.

    python -m benchmarks.hybrid.latency --directory DIR [--events 50_000_000] [--symbols 10_000] [--days 30]
                                        [--back 7] [--matches 300] [--processes 5] > out.json

An event completes PL at once; the clock runs from before its push until `fetch` has given its joined rows. `warm` are
matches of drawn symbols in one process, the first ten left out; `again` are second matches of symbols that have asked
before; `first` is the first match of a new process, which has asked nothing before, for each of some processes.
Milliseconds by the clock. Says how many rows came out and a hash of them: the same for every strategy, or the run
fails. DIR keeps the database, which the run does not change.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hybrid
from benchmarks import answers
from benchmarks.archive.events import START_US, parser
from benchmarks.hybrid.history import VALLEY, filled, scratch

WARM_UP = 10
STRATEGIES = ("llaa", "sllaa", "auto")


def query(days: int) -> str:
    """A marked trade, and the deep valleys of its symbol in the days before."""
    return (
        "SELECT pl.symbol, pa.top, pa.bottom, pa.until FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts "
        "MEASURES M.ts AS at PATTERN (M) DEFINE M AS volume < 0) AS pl "
        f"JOIN HISTORY OF ticks FROM pl.at - INTERVAL {days} DAY TO pl.at {VALLEY} AS pa "
        "ON pa.symbol = pl.symbol AND pa.top - pa.bottom > 90"
    )


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(days=30)
    options.add_argument("--back", type=int, default=7)
    options.add_argument("--matches", type=int, default=300)
    options.add_argument("--processes", type=int, default=5)
    options.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = options.parse_args()
    filled(given.directory, given.events, given.symbols, given.days, given.seed)
    if given.child:
        print(json.dumps(asked(given.directory, given.child, given.back, 1, given.symbols, int(given.seed))))
        return
    found: dict[str, Any] = {}
    for strategy in STRATEGIES:
        run = asked(given.directory, strategy, given.back, given.matches, given.symbols, given.seed)
        firsts = []
        for number in range(given.processes):
            command = [sys.executable, "-m", "benchmarks.hybrid.latency", *sys.argv[1:], "--child", strategy]
            child = subprocess.run(
                [*command, "--seed", str(given.seed + 1 + number)], capture_output=True, text=True, check=True
            )
            firsts.append(json.loads(child.stdout)["first"])
        found[strategy] = {**run, "first": shown(firsts)}
        print(strategy, found[strategy], file=sys.stderr)
    if len({(run["rows"], run["hash"]) for run in found.values()}) > 1:
        sys.exit(f"strategies disagree: {found}")
    print(json.dumps({"events": given.events, "machine": answers.machine(), "strategies": found}, indent=1))


def asked(directory: Path, strategy: str, back: int, matches: int, symbols: int, seed: int) -> dict[str, Any]:
    """One process: every symbol drawn asks twice."""
    rng = np.random.default_rng(seed)
    drawn = rng.choice(symbols, min(symbols, matches), replace=False)
    took: dict[str, list[float]] = {"warm": [], "again": []}
    rows: list[pa.Table] = []
    with scratch(directory) as copy, hybrid.connect(copy, maintenance=False) as db:
        alerts = db.watch(query(back), strategy=strategy)
        reached = db.reached("ticks").newest_us or START_US
        for again in ("warm", "again"):
            for symbol in drawn:
                reached += 1000
                batch = pa.table({
                    "ts": pa.array([reached], pa.timestamp("us")), "symbol": [f"S{symbol:06}"], "price": [50.0],
                    "volume": pa.array([-1], pa.int64()),
                })  # fmt: skip
                began = time.perf_counter()
                db.push("ticks", batch)
                found = alerts.take()
                took[again].append(1000 * (time.perf_counter() - began))
                rows.append(found)
        stats = alerts.stats()
    table = pa.concat_tables(rows)
    first = took["warm"][0]
    skip = WARM_UP if matches > 2 * WARM_UP else 0
    return {
        "first": first, "warm": shown(took["warm"][skip:]), "again": shown(took["again"][skip:]),
        "rows": table.num_rows, "hash": answers.fingerprint(table, ["symbol", "top", "bottom"]),
        "reads": stats["history_reads"],
    }  # fmt: skip


def shown(milliseconds: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(milliseconds, [50, 99])
    return {"p50": round(float(p50), 2), "p99": round(float(p99), 2), "max": round(max(milliseconds), 2)}


if __name__ == "__main__":
    main()
