"""A search of an archive of ticks: in this process, and by Spark.

    python -m benchmarks.spark.search [--rows 10_000_000] [--master 'local[2]'] [--memory 4g] > result.json

Prints one JSON object. Exits with 1 if two contenders do not find the same matches. Both read the same files: days that
are over are not rewritten. `seconds` is the clock; Spark has been started and each query has been answered once over a
few ticks, so that what is compiled once is compiled. `cpu_seconds` is processor time, of Java and its Python workers
too. On one machine Spark cannot win: it brings rows together by key on disk, and hands them from Java to Python. What
it costs is what it has to win back on several.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import hybrid
from archive.spark.session import spark_session
from benchmarks import answers
from hybrid.database.database import Database
from simulator import stock

MADE_ROWS = 5_000_000
PUSHED_ROWS = 500_000
WARM_UP_ROWS = 100_000

_SKIPPING = """
    MEASURES FIRST(ts) AS start_ts, LAST(ts) AS end_ts, LAST(price) AS top
    AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A B C) WITHIN INTERVAL '5' SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS volume >= 2000, B AS volume = 100, C AS volume >= 2000
) AS m"""
#: By name: the query, and the columns that are compared.
QUERIES = {
    "row by row": (
        """
SELECT symbol, start_ts, bottom, top FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES A.ts AS start_ts, LAST(B.price) AS bottom, LAST(C.price) AS top
    PATTERN (A B+ C+)
    DEFINE B AS price < PREV(price), C AS price > PREV(price)
) AS m""",
        ("symbol", "start_ts", "bottom", "top"),
    ),
    "passing over rows": (
        "SELECT symbol, start_ts, end_ts, top FROM ticks MATCH_RECOGNIZE (\n    PARTITION BY symbol ORDER BY ts"
        + _SKIPPING,
        ("symbol", "start_ts", "end_ts", "top"),
    ),
    "all in one partition": (  # of which Spark makes slices of time
        "SELECT start_ts, end_ts, top FROM ticks MATCH_RECOGNIZE (\n    ORDER BY ts" + _SKIPPING,
        ("start_ts", "end_ts", "top"),
    ),
}


def fill(db: Database, seed: int, rows: int, symbols: int) -> None:
    """Archives ticks; every MADE_ROWS of them prices begin anew."""
    columns = {f.name: f.type for f in stock.TICKS.fields}
    db.create_stream("ticks", columns, time="ts", key="symbol")
    start_us = stock.START_US
    for first in range(0, rows, MADE_ROWS):
        ticks = stock.walk(seed + first, min(MADE_ROWS, rows - first), symbols, start_us)
        start_us = ticks.column("ts").cast(pa.int64())[-1].as_py() + 1
        for start in range(0, ticks.num_rows, PUSHED_ROWS):
            db.push("ticks", ticks.slice(start, PUSHED_ROWS))
    db.flush()


def processor_seconds() -> float | None:
    """Of this process and all below it, Java and its Python workers among them; None where the system does not say."""
    if not Path("/proc/self/stat").exists():
        return None
    parents, used = {}, {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(directory.name)] = int(fields[1])
        used[int(directory.name)] = sum(map(int, fields[11:15]))  # with those of its own that have ended
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return sum(used[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def timed(db: Database, name: str, **how: Any) -> dict[str, Any]:
    text, columns = QUERIES[name]
    begin, used = time.perf_counter(), processor_seconds()
    answer = db.sql(text, **how).arrow()
    seconds, now = time.perf_counter() - begin, processor_seconds()
    return {
        "seconds": round(seconds, 2), "cpu_seconds": None if used is None or now is None else round(now - used, 2),
        "matches": answer.num_rows, "hash": answers.fingerprint(answer, list(columns)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--symbols", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--only", nargs="*", choices=list(QUERIES), default=list(QUERIES))
    given = parser.parse_args()
    session = spark_session(given.master, memory=given.memory)
    found: dict[str, dict[str, Any]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="spark_search_") as directory,
        hybrid.connect(f"{directory}/all", maintenance=False) as db,
        hybrid.connect(f"{directory}/few", maintenance=False) as few,
    ):
        fill(db, given.seed, given.rows, given.symbols)
        fill(few, given.seed, min(WARM_UP_ROWS, given.rows), given.symbols)
        for name in given.only:
            found[name] = {}
            for contender, how in (("embedded", {}), ("spark", {"engine": "spark", "spark": session})):
                timed(few, name, **how)
                result = timed(db, name, **how)
                result["rows_per_second"] = int(given.rows / max(result["seconds"], 0.01))
                found[name][contender] = result
                print(f"{name}, {contender}: {result}", file=sys.stderr, flush=True)
    session.stop()
    agree = all(len({(r["matches"], r["hash"]) for r in each.values()}) == 1 for each in found.values())
    print(json.dumps({
        "rows": given.rows, "symbols": given.symbols, "seed": given.seed, "master": given.master, "queries": found,
        "agree": agree, "machine": answers.machine(),
    }, indent=1))  # fmt: skip
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
