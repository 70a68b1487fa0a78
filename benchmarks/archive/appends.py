"""Appends to an archive: milliseconds of one flush (files, fsync, commit), and of 2,000 of them one after the other.

    python -m benchmarks.archive.appends [--appends 2_000] [--rows 2_000] > out.json

By the clock, on the disk of the directory for temporary files. `with upkeep`: a keeper merges files beside it, as it
does beside a database; `without` shows what it is for. Each says how many events are in the table at the end, read
back, and a hash of them; the run fails if the two disagree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from archive.history import History
from archive.keeper import Keeper
from archive.reader import RangeRequest
from archive.table import Table
from benchmarks import answers
from benchmarks.archive.events import SCHEMA, START_US, ticks
from matching.batch import EventBatch

SIZES = (1_000, 10_000, 100_000)
#: Looks of the keeper, in seconds: the 2,000 appends of some minutes stand for hours of flushes.
EVERY_S = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--appends", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--repeat", type=int, default=21)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found: dict[str, object] = {"machine": answers.machine(), "appends": given.appends, "rows": given.rows}
    found["one"] = {f"{size:,} rows": one(size, given.repeat, given.seed) for size in given.sizes}
    many_ = {"with upkeep": many(given, True), "without": many(given, False)}
    if len({(r["events"], r["hash"]) for r in many_.values()}) > 1:
        sys.exit(f"not the same events: {many_}")
    found["many"] = many_
    print(json.dumps(found, indent=1))


def batches(rows: int, count: int, seed: int) -> Iterator[EventBatch]:
    """Batches of one source, a second of events for every thousand rows."""
    names = pa.array([f"S{i:04}" for i in range(1_000)])
    rng = np.random.default_rng(seed)
    for number in range(count):
        first = number * rows
        at = np.arange(first, first + rows)
        symbols = names.take(pa.array(rng.integers(0, 1_000, rows)))
        prices, volumes = np.round(rng.random(rows) * 100, 2), rng.integers(0, 1000, rows)
        yield ticks(START_US + at * 1_000, symbols, prices, volumes, first)


def one(rows: int, repeat: int, seed: int) -> dict[str, float]:
    """Of a table with few files."""
    with tempfile.TemporaryDirectory() as directory:
        history = History(SCHEMA, directory, memory_rows_max=10**9)
        seconds = [appended(history, batch) for batch in batches(rows, repeat, seed)]
    return {"median_ms": ms(seconds, 0.5), "p95_ms": ms(seconds, 0.95)}


def many(given: argparse.Namespace, upkeep: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        history = History(SCHEMA, directory, memory_rows_max=10**9)
        keeper = Keeper(lambda: [history], every_s=EVERY_S)
        if upkeep:
            keeper.start()
        try:
            seconds = [appended(history, batch) for batch in batches(given.rows, given.appends, given.seed)]
        finally:
            if upkeep:
                keeper.stop()
        if trouble := keeper.take_trouble():
            sys.exit(str(trouble))
        quarter = max(1, len(seconds) // 4)
        kept = pa.Table.from_batches([History(SCHEMA, Path(directory)).snapshot().read(RangeRequest()).columns])
        times = kept.column("ts").cast(pa.int64())
        return {
            "median_ms_by_quarter": [ms(seconds[i * quarter : (i + 1) * quarter], 0.5) for i in range(4)],
            "p99_ms_by_quarter": [ms(seconds[i * quarter : (i + 1) * quarter], 0.99) for i in range(4)],
            "seconds": round(sum(seconds), 2),
            "files": len(Table.open(directory).snapshot().paths),
            "events": kept.num_rows,
            "hash": answers.fingerprint(kept.set_column(0, "ts", times), list(SCHEMA.names)),
        }


def appended(history: History, batch: EventBatch) -> float:
    started = time.perf_counter()
    history.append(batch, np.zeros(len(batch), np.bool_))
    history.flush()
    return time.perf_counter() - started


def ms(seconds: list[float], part: float) -> float:
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * part))], 2)


if __name__ == "__main__":
    main()
