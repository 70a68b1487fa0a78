"""A read of history that takes long: what it does to live detection, and to the rows.

    python -m benchmarks.hybrid.slow_read [--seconds 30] [--rate 100_000] [--repeat 3] > out.json

Batches of a thousand live events are pushed at a fixed rate, and a thousandth of the events asks an hour of its
symbol's history, in memory. `quick`: nothing is wrong. `slow`: the first read takes `seconds` more, about as long as
the pushes do. `busy` is the share of its time that the thread that pushes is at work or waits, `push` how long a push
takes, in milliseconds; medians of the repeats. Rows must be the same, in one order, or the run fails; `behind` is how
many of them came when all was pushed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

import hybrid
from archive.snapshot import HistorySnapshot
from benchmarks import answers
from benchmarks.archive.events import START_US
from benchmarks.hybrid.history import COLUMNS
from benchmarks.hybrid.strategies import BATCH_ROWS, live, query

SYMBOLS = 1_000


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=30.0)
    options.add_argument("--rate", type=int, default=100_000, help="events a second")
    options.add_argument("--repeat", type=int, default=3)
    given = options.parse_args()
    events = int(given.rate * given.seconds)
    batches = [*live(events, SYMBOLS, 1, 1_000, START_US)]
    runs: dict[str, list[dict[str, Any]]] = {"quick": [], "slow": []}
    found: list[pa.Table] = []
    for _ in range(given.repeat):
        for name, seconds in (("quick", 0.0), ("slow", given.seconds)):
            run, rows = pushed(batches, given.rate, seconds)
            runs[name].append(run)
            found.append(rows)
            print(name, run, file=sys.stderr)
    if not all(rows.equals(found[0]) for rows in found):
        sys.exit(f"rows differ: {[rows.num_rows for rows in found]}")
    middle = {
        name: {key: round(statistics.median(run[key] for run in each), 3) for key in each[0]}
        for name, each in runs.items()
    }
    print(json.dumps({
        "events": events, "rate": given.rate, "seconds": given.seconds, "machine": answers.machine(),
        "rows": found[0].num_rows, "hash": answers.fingerprint(found[0], ["symbol", "low", "high"]), "runs": middle,
    }, indent=1))  # fmt: skip


def pushed(batches: list[pa.Table], rate: int, seconds: float) -> tuple[dict[str, float], pa.Table]:
    """Pushes each batch when it is due; the first read takes so much longer."""
    number = count()

    def slowed(read: Callable[..., Any]) -> Callable[..., Any]:
        def reading(*asked: Any, **how: Any) -> Any:
            if next(number) == 0:
                time.sleep(seconds)
            return read(*asked, **how)

        return reading

    took, found = np.zeros(len(batches)), []
    with hybrid.connect() as db, ExitStack() as stack:
        db.create_stream("ticks", COLUMNS, time="ts", key="symbol")
        alerts = db.watch(query(0.001, 0.05, 1))
        alerts.take()  # what is looked at when a query begins
        for name in ("read", "batches"):
            stack.enter_context(patch.object(HistorySnapshot, name, slowed(getattr(HistorySnapshot, name))))
        began = time.perf_counter()
        for i, batch in enumerate(batches):
            due = began + i * BATCH_ROWS / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            start = time.perf_counter()
            db.push("ticks", batch)
            took[i] = time.perf_counter() - start
            if i % 10 == 9:
                found.append(alerts.take(wait=False))
        until = time.perf_counter() - began
        at_once = sum(len(rows) for rows in found)
        db.advance("ticks", None)
        found.append(alerts.take())
    rows = pa.concat_tables(found)
    p50, p99 = np.percentile(took * 1000, [50, 99])
    return {
        "seconds": until, "busy": float(took.sum() / until), "push_p50": float(p50), "push_p99": float(p99),
        "push_max": float(took.max() * 1000),
        "events_per_second": sum(map(len, batches)) / until, "behind": rows.num_rows - at_once,
    }, rows  # fmt: skip


if __name__ == "__main__":
    main()
