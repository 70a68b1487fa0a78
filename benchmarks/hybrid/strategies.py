"""The experiments of [LIVE-ARCHIVE] on strategies: what each costs, over sizes, selectivities, sub-windows and memory.

    python -m benchmarks.hybrid.strategies --directory DIR [--events 10_000_000] [--symbols 1_000] [--days 30]
        [--live 20_000] [--repeat 3] [--only sizes selectivity windows memory grid] > out.json

PL is one marked trade, PA two trades of the symbol behind one another, a cheap and a dear one; how often they come is
set by their bounds. Live events go on where the archive ends, and are pushed in batches of 1,000; each match asks for
the history of its symbol. Seconds by the clock are from the first push to the last row, as medians; every strategy
gives the same rows, of which the hash is printed, or the run fails. DIR keeps the archives, which runs do not change.

sizes: ALAA and LLAA over the size of the archive. selectivity: LLAA, OLLAA and auto over that of PA. windows: LLAA and
SLLAA over the sub-window, in events. memory: LLAA over the rows that are kept in memory before they are archived.
grid: all strategies over selectivities of both sides, ranges and rates; what `auto` takes to the best of them.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import hybrid
from benchmarks import answers
from benchmarks.archive.events import DAY_US, START_US, parser
from benchmarks.hybrid.history import filled, scratch

BATCH_ROWS = 1_000


def query(live_share: float, archive_share: float, hours: float) -> str:
    """PL of that share of events, and PA of that share, in so many hours before."""
    bound = 100 * archive_share**0.5
    return (
        "SELECT pl.symbol, pl.volume, pa.low, pa.high FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts "
        f"MEASURES M.ts AS at, M.volume AS volume PATTERN (M) DEFINE M AS volume < {round(1000 * live_share)}) AS pl "
        f"JOIN HISTORY OF ticks FROM pl.at - INTERVAL {round(hours * 60)} MINUTE TO pl.at MATCH_RECOGNIZE ("
        "PARTITION BY symbol ORDER BY ts MEASURES A.price AS low, B.price AS high PATTERN (A B) "
        f"DEFINE A AS price < {bound:.6f}, B AS price > {100 - bound:.6f}) AS pa ON pa.symbol = pl.symbol"
    )


def live(events: int, symbols: int, seed: int, step_us: int, from_us: int) -> Iterator[pa.Table]:
    """Events behind the archive, in batches."""
    rng = np.random.default_rng(seed)
    names = pa.array([f"S{i:06}" for i in range(symbols)])
    for first in range(0, events, BATCH_ROWS):
        n = min(BATCH_ROWS, events - first)
        ts = from_us + (first + 1 + np.arange(n)) * step_us
        yield pa.table({
            "ts": pa.array(ts).view(pa.timestamp("us")), "symbol": names.take(pa.array(rng.integers(0, symbols, n))),
            "price": np.round(rng.random(n) * 100, 2), "volume": rng.integers(0, 1000, n),
        })  # fmt: skip


def run(
    directory: Path, text: str, batches: Sequence[pa.Table], strategy: str, tolerance: str | None = None
) -> dict[str, Any]:
    """Pushes the batches with a live query, in a copy of a database."""
    found = []
    with scratch(directory) as copy, hybrid.connect(copy, maintenance=False) as db:
        alerts = db.watch(text, strategy=strategy, tolerance=tolerance)
        alerts.fetch()  # what is looked at when a query begins
        began, worked = time.perf_counter(), time.process_time()
        for batch in batches:
            db.push("ticks", batch)
            found.append(alerts.fetch())
        db.advance("ticks", None)
        found.append(alerts.fetch())
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        stats = alerts.stats()
    rows = pa.concat_tables(found)
    return {
        "strategy": strategy, "tolerance": tolerance, "seconds": round(seconds, 3), "cpu": round(cpu, 3),
        "matches": stats["matches"], "rows": rows.num_rows,
        "hash": answers.fingerprint(rows, ["symbol", "volume", "low", "high"]), "reads": stats["history_reads"],
        "kept": stats["history_kept"], "ahead": stats["history_found_ahead"],
    }  # fmt: skip


def compared(
    repeat: int, directory: Path, text: str, batches: Sequence[pa.Table], ways: Sequence[tuple[str, str | None]]
) -> list[dict[str, Any]]:
    """Every strategy as often, in turn; of each the run with the median of seconds."""
    runs: dict[tuple[str, str | None], list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(repeat):
        for way in ways:
            runs[way].append(run(directory, text, batches, *way))
    found = [sorted(each, key=lambda r: r["seconds"])[len(each) // 2] for each in runs.values()]
    if len({(r["matches"], r["rows"], r["hash"]) for r in found}) > 1:
        sys.exit(f"strategies disagree: {found}")
    for r in found:
        shown = ("strategy", "tolerance", "seconds", "cpu", "matches", "rows", "reads", "kept", "ahead")
        print({k: r[k] for k in shown}, file=sys.stderr)
    return found


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(events=10_000_000, symbols=1_000, days=30)
    options.add_argument("--live", type=int, default=20_000)
    options.add_argument("--repeat", type=int, default=3)
    names = ("sizes", "selectivity", "windows", "memory", "grid")
    options.add_argument("--only", nargs="+", choices=names, default=names)
    given = options.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)

    def archive(events: int) -> Path:
        return filled(given.directory / f"{events}", events, given.symbols, given.days, given.seed)

    def pushed(events: int, count: int = given.live) -> list[pa.Table]:
        step_us = given.days * DAY_US // events
        return list(live(count, given.symbols, given.seed + 1, step_us, START_US + events * step_us))

    found: dict[str, Any] = {}
    largest = given.events
    if "sizes" in given.only:
        sizes = [n for n in (10_000, 50_000, 1_000_000, 10_000_000, 50_000_000) if n < largest] + [largest]
        found["sizes"] = [
            {"events": n, "runs": compared(
                given.repeat, archive(n), query(0.002, 0.01, 24), pushed(n), [("alaa", None), ("llaa", None)]
            )}
            for n in sizes
        ]  # fmt: skip
    if "selectivity" in given.only:
        ways = [("llaa", None), ("ollaa", None), ("auto", None)]
        found["selectivity"] = [
            {"archive": share, "runs": compared(
                given.repeat, archive(largest), query(0.02, share, 24), pushed(largest), ways
            )}
            for share in (0.0001, 0.001, 0.01, 0.1)
        ]  # fmt: skip
    if "windows" in given.only:
        step_us = given.days * DAY_US // largest
        ways = [("llaa", None), *(("sllaa", f"{n * step_us} us") for n in (100, 500, 1000, 2000, 3000, 10_000))]
        found["windows"] = compared(given.repeat, archive(largest), query(0.02, 0.01, 24), pushed(largest), ways)
    if "memory" in given.only:
        found["memory"] = []
        for rows in (100, 1_000, 10_000, 100_000):
            with patch("archive.history.MEMORY_ROWS_MAX", rows):
                found["memory"].append({"rows": rows, "runs": compared(
                    given.repeat, archive(largest), query(0.002, 0.01, 24), pushed(largest), [("llaa", None)]
                )})  # fmt: skip
    if "grid" in given.only:
        found["grid"] = grid(given, archive(largest), pushed)
    print(json.dumps({"events": largest, "machine": answers.machine(), "found": found}, indent=1))


def grid(given: Any, directory: Path, pushed: Any) -> dict[str, Any]:
    """What auto takes to the best of the others, cell by cell."""
    ways = [("llaa", None), ("sllaa", None), ("alaa", None), ("ollaa", None), ("auto", None)]
    cells = []
    for live_share in (0.001, 0.01, 0.1):
        for archive_share in (0.0001, 0.01):
            for hours in (1, 24):
                for count in (given.live // 4, given.live):
                    text, batches = query(live_share, archive_share, hours), pushed(given.events, count)
                    runs = compared(given.repeat, directory, text, batches, ways)
                    best = min(r["seconds"] for r in runs if r["strategy"] != "auto")
                    auto = next(r["seconds"] for r in runs if r["strategy"] == "auto")
                    cells.append({
                        "live": live_share, "archive": archive_share, "hours": hours, "events": count,
                        "seconds": {r["strategy"]: r["seconds"] for r in runs}, "auto_to_best": round(auto / best, 2),
                    })  # fmt: skip
                    print(cells[-1], file=sys.stderr)
    ratios = [cell["auto_to_best"] for cell in cells]
    return {
        "cells": cells, "within_1.25": sum(r <= 1.25 for r in ratios) / len(ratios), "worst": max(ratios),
        "median": statistics.median(ratios),
    }  # fmt: skip


if __name__ == "__main__":
    main()
