"""The experiments 1 to 4 of [LIVE-ARCHIVE]: what strategies cost, over sizes, selectivities, sub-windows and memory.

    python -m benchmarks.hybrid.strategies --directory DIR [--events 10_000_000] [--symbols 1_000] [--days 30]
        [--live 20_000] [--together 1_000] [--repeat 3] [--grid-live 400_000] [--grid-repeat 5]
        [--only sizes selectivity windows together memory grid] > result.json
    python -m benchmarks.hybrid.strategies --directory DIR --write  # also measured.json, docs/history_experiments.md
    python -m benchmarks.hybrid.strategies --page  # measures nothing; writes the page and its picture anew

PL is one marked trade, PA two trades of the symbol behind one another, a cheap and a dear one; how often they come is
set by their bounds. Live events go on where the archive ends, and are pushed in batches of 1,000; each match asks for
the history of its symbol. Seconds by the clock are from the first push to the last row, as medians; every strategy
gives the same rows, of which the hash is printed, or the run fails. DIR keeps the archives, which runs do not change.

sizes: ALAA and LLAA over the size of the archive. selectivity: LLAA, OLLAA and auto over that of PA. windows: LLAA and
SLLAA over the sub-window, in events. together: LLAA and SLLAA where many matches come in one push. memory: LLAA over
the rows that are kept in memory before they are archived, in batches of 100. grid: all strategies over selectivities
of both sides, ranges and rates; what `auto` takes to the best of them. Another that takes more than HOPELESS times the
best in the first round of a cell is not run again there.

Results are by experiment and archived events: --write puts those of this run in the place of what measured.json has
for the same, and leaves the rest, so that archives of several sizes are measured one run after the other.
"""

from __future__ import annotations

import json
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
from benchmarks.hybrid import page
from benchmarks.hybrid.history import filled, scratch

BATCH_ROWS = 1_000
SECOND_US = 1_000_000
#: Sizes of the archive below that of --events; the paper's end at 50,000.
SIZES = (10_000, 30_000, 50_000, 1_000_000, 10_000_000, 50_000_000)
#: Of archived events that match PA.
SHARES = (0.0001, 0.001, 0.01, 0.1)
#: In events; the paper's are 500 to 3000.
SUB_WINDOWS = (100, 500, 1000, 1500, 2000, 2500, 3000, 10_000)
MEMORY_ROWS = (100, 1_000, 10_000, 100_000)
HOPELESS = 5.0
#: Of matches that come in one push: what of the same time of the day before each asks for, over how many seconds they
#: come, and how many seconds of history each asks for.
SPREADS = (("all symbols", 60, 60), ("one symbol", 600, 600), ("its own symbol", 86_400, 3_600))

Way = tuple[str, str | None]


def query(
    live_share: float, archive_share: float, hours: float, until: str = "pl.at", on: str = "pa.symbol = pl.symbol"
) -> str:
    """PL of that share of events, and PA of that share, in so many hours before."""
    bound = 100 * archive_share**0.5
    return (
        "SELECT pl.symbol, pl.volume, pa.low, pa.high FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts "
        f"MEASURES M.ts AS at, M.volume AS volume PATTERN (M) DEFINE M AS volume < {round(1000 * live_share)}) AS pl "
        f"JOIN HISTORY OF ticks FROM {until} - INTERVAL {round(hours * 60)} MINUTE TO {until} MATCH_RECOGNIZE ("
        "PARTITION BY symbol ORDER BY ts MEASURES A.price AS low, B.price AS high PATTERN (A B) "
        f"DEFINE A AS price < {bound:.6f}, B AS price > {100 - bound:.6f}) AS pa ON {on}"
    )


def live(
    events: int, symbols: int, seed: int, step_us: int, from_us: int, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.Table]:
    """Events behind the archive, in batches."""
    rng = np.random.default_rng(seed)
    names = pa.array([f"S{i:06}" for i in range(symbols)])
    for first in range(0, events, batch_rows):
        n = min(batch_rows, events - first)
        ts = from_us + (first + 1 + np.arange(n)) * step_us
        yield pa.table({
            "ts": pa.array(ts).view(pa.timestamp("us")), "symbol": names.take(pa.array(rng.integers(0, symbols, n))),
            "price": np.round(rng.random(n) * 100, 2), "volume": rng.integers(0, 1000, n),
        })  # fmt: skip


def run(
    directory: Path, text: str, batches: Sequence[pa.Table], strategy: str, tolerance: str | None
) -> dict[str, Any]:
    """Pushes the batches with a live query, in a copy of a database. files: of the archive, written meanwhile."""
    found = []
    with scratch(directory) as copy, hybrid.connect(copy, maintenance=False) as db:
        files = len(list(copy.rglob("*.parquet")))
        alerts = db.watch(text, strategy=strategy, tolerance=tolerance)
        alerts.take()  # what is looked at when a query begins
        began, worked = time.perf_counter(), time.process_time()
        for batch in batches:
            db.push("ticks", batch)
            found.append(alerts.take())
        db.advance("ticks", None)
        found.append(alerts.take())
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        stats = alerts.stats()
        files = len(list(copy.rglob("*.parquet"))) - files
    rows = pa.concat_tables(found)
    return {
        "strategy": strategy, "tolerance": tolerance, "seconds": round(seconds, 4), "cpu": round(cpu, 4),
        "matches": stats["matches"], "rows": rows.num_rows,
        "hash": answers.fingerprint(rows, ["symbol", "volume", "low", "high"]), "reads": stats["history_reads"],
        "kept": stats["history_kept"], "ahead": stats["history_found_ahead"], "files": files,
    }  # fmt: skip


def compared(
    repeat: int, directory: Path, text: str, batches: Sequence[pa.Table], ways: Sequence[Way],
    hopeless: float | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Every strategy as often, in turn; of each the run with the median of seconds, and how many there were (rounds).

    hopeless: more than so many times the best in the first round, and a strategy other than auto is not run again.
    """
    runs: dict[Way, list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(repeat):
        firsts = {way: each[0]["seconds"] for way, each in runs.items() if each}
        for way in ways:
            again = way not in firsts or way[0] == "auto" or firsts[way] <= (hopeless or np.inf) * min(firsts.values())
            if again:
                runs[way].append(run(directory, text, batches, *way))
    found = [sorted(each, key=lambda r: r["seconds"])[len(each) // 2] | {"rounds": len(each)} for each in runs.values()]
    if len({(r["matches"], r["rows"], r["hash"]) for r in found}) > 1:
        sys.exit(f"strategies disagree: {found}")
    for r in found:
        print({k: v for k, v in r.items() if k != "hash"}, file=sys.stderr)
    return found


def main(arguments: list[str] | None = None) -> int:
    options = parser(__doc__, directory=False)
    options.set_defaults(events=10_000_000, symbols=1_000, days=30)
    options.add_argument("--live", type=int, default=20_000, help="events that are pushed (default 20,000)")
    options.add_argument("--together", type=int, default=1_000, help="events that come in one push (default 1,000)")
    options.add_argument("--repeat", type=int, default=3, help="rounds; the median counts (default 3)")
    options.add_argument("--grid-live", type=int, default=400_000,
                         help="events of the grid's cells, and a fourth of it (default 400,000)")  # fmt: skip
    options.add_argument("--grid-repeat", type=int, default=5, help="rounds of the grid (default 5)")
    options.add_argument("--only", nargs="+", choices=page.EXPERIMENTS, default=page.EXPERIMENTS)
    options.add_argument("--write", action="store_true", help="also write the page, its picture and what it is made of")
    options.add_argument("--page", action="store_true", help="measure nothing; write the page anew")
    given = options.parse_args(arguments)
    if given.page:
        page.write(json.loads(page.MEASURED.read_text(encoding="utf-8")))
        return 0
    if given.directory is None:
        options.error("--directory is needed to measure")
    given.directory.mkdir(parents=True, exist_ok=True)
    results = []
    for result in experiments(given):
        results.append(result)
        if given.write:  # at once, for hours lie between the first and the last
            there = page.MEASURED.exists()
            before = json.loads(page.MEASURED.read_text(encoding="utf-8")) if there else {"results": []}
            measured = page.merged(before, results)
            page.MEASURED.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
            page.write(measured)
    print(json.dumps({"results": results}, indent=1))
    return 0


def experiments(given: Any) -> Iterator[dict[str, Any]]:
    """Results, each by itself: experiment, archived events, what they depend on, and the cases with their runs."""
    largest = given.events

    def archive(events: int) -> Path:
        return filled(given.directory / f"{events}", events, given.symbols, given.days, given.seed)

    def pushed(events: int, count: int = given.live, batch_rows: int = BATCH_ROWS) -> list[pa.Table]:
        step_us = given.days * DAY_US // events
        from_us = START_US + events * step_us
        return list(live(count, given.symbols, given.seed + 1, step_us, from_us, batch_rows))

    def result(experiment: str, cases: list[dict[str, Any]], events: int = largest) -> dict[str, Any]:
        of_grid = experiment == "grid"
        return {
            "experiment": experiment, "events": events, "symbols": given.symbols, "days": given.days,
            "live": {"together": given.together, "grid": given.grid_live}.get(experiment, given.live),
            "repeat": given.grid_repeat if of_grid else given.repeat, "seed": given.seed,
            "machine": answers.machine(), "versions": answers.versions(), "cases": cases,
        }  # fmt: skip

    # What is compiled and read once is not the first strategy's to pay.
    run(archive(largest), query(0.02, 0.01, 24), pushed(largest, 2 * BATCH_ROWS), "llaa", None)
    if "sizes" in given.only:
        for n in [*(n for n in SIZES if n < largest), largest]:
            runs = compared(
                given.repeat, archive(n), query(0.002, 0.01, 24), pushed(n), [("alaa", None), ("llaa", None)]
            )
            yield result("sizes", [{"runs": runs}], n)
    if "selectivity" in given.only:
        ways: list[Way] = [("llaa", None), ("ollaa", None), ("auto", None)]
        yield result("selectivity", [
            {"share": share, "runs": compared(
                given.repeat, archive(largest), query(0.02, share, 24), pushed(largest), ways
            )}
            for share in SHARES
        ])  # fmt: skip
    if "windows" in given.only:
        step_us = given.days * DAY_US // largest
        ways = [("llaa", None), *(("sllaa", f"{n * step_us} us") for n in SUB_WINDOWS)]
        runs = compared(given.repeat, archive(largest), query(0.02, 0.01, 24), pushed(largest), ways)
        yield result("windows", [
            {"sub_window": n, "runs": [r]} for n, r in zip([None, *SUB_WINDOWS], runs, strict=True)
        ])  # fmt: skip
    if "together" in given.only:
        yield result("together", [
            {"of": of, "spread_s": spread_s, "range_s": range_s,
             "runs": at_once(given, archive(largest), of, spread_s, range_s)}
            for of, spread_s, range_s in SPREADS
        ])  # fmt: skip
    if "memory" in given.only:
        cases = []
        batches = pushed(largest, batch_rows=MEMORY_ROWS[0])
        for rows in MEMORY_ROWS:
            with patch("archive.history.MEMORY_ROWS_MAX", rows):
                runs = compared(given.repeat, archive(largest), query(0.002, 0.01, 24), batches, [("llaa", None)])
            cases.append({"memory_rows": rows, "runs": runs})
        yield result("memory", cases)
    if "grid" in given.only:
        yield result("grid", list(grid(given, archive(largest), pushed)))


def at_once(given: Any, directory: Path, of: str, spread_s: int, range_s: int) -> list[dict[str, Any]]:
    """Matches in one push, spread over some seconds of event time: of all symbols, of one, or each of its own."""
    on = "pa.low < pl.volume" if of == "all symbols" else "pa.symbol = pl.symbol"
    text = query(1.0, SHARES[-1], range_s / 3600, "pl.at - INTERVAL 1 DAY", on)
    symbols = 1 if of == "one symbol" else given.symbols
    from_us = START_US + given.days * DAY_US
    n = given.together
    batches = list(live(n, symbols, given.seed + 1, spread_s * SECOND_US // n, from_us, n))
    return compared(given.repeat, directory, text, batches, [("llaa", None), ("sllaa", None)])


def grid(given: Any, directory: Path, pushed: Any) -> Iterator[dict[str, Any]]:
    """Cells: where they stand, and seconds and rounds by strategy."""
    ways = [("llaa", None), ("sllaa", None), ("alaa", None), ("ollaa", None), ("auto", None)]
    for live_share in (0.001, 0.01, 0.1):
        for archive_share in (0.0001, 0.01):
            for hours in (1, 24):
                for count in (given.grid_live // 4, given.grid_live):
                    text, batches = query(live_share, archive_share, hours), pushed(given.events, count)
                    runs = compared(given.grid_repeat, directory, text, batches, ways, HOPELESS)
                    cell = {
                        "live_share": live_share, "share": archive_share, "hours": hours, "live": count,
                        "matches": runs[0]["matches"], "rows": runs[0]["rows"],
                        "seconds": {r["strategy"]: r["seconds"] for r in runs},
                        "rounds": {r["strategy"]: r["rounds"] for r in runs},
                    }  # fmt: skip
                    print(cell, file=sys.stderr)
                    yield cell


if __name__ == "__main__":
    sys.exit(main())
