"""What the log of a database costs: events a second of `push`, with the log and without, for batches of several sizes.

Ticks go into a database on disk with nothing that watches; it flushes as it does for everybody, so that the time has
the log, the Parquet files and the commits in it. Runs with and without take turns, and the median of each is told.
python -m benchmarks.log [--batches 1 100 10_000] [--events 2_000_000] [--repeat 5] [--directory DIR]"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from typing import Any

import numpy as np
import pyarrow as pa

import hybrid
from benchmarks.answers import machine, versions

POLICIES: tuple[Any, ...] = (None, "os", "fsync")
#: Pushes of small batches are timed over fewer events.
PUSHES_MAX = 5_000


def batches_of(size: int, count: int) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(1)
    names = pa.array([f"S{i:03d}" for i in range(100)])
    out = []
    for i in range(count):
        ts = pa.array(np.arange(i * size, (i + 1) * size) * 1000).cast(pa.timestamp("us"))
        symbol = names.take(pa.array(rng.integers(0, 100, size)))
        out.append(pa.record_batch([ts, symbol, pa.array(rng.random(size))], names=["ts", "symbol", "price"]))
    return out


def seconds(batches: list[pa.RecordBatch], log: Any, directory: str | None) -> tuple[float, float, int]:
    """By the clock and of the processor, and how many events are there afterwards."""
    with tempfile.TemporaryDirectory(dir=directory) as where:
        with hybrid.connect(where, log=log, maintenance=False) as db:
            columns = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}
            db.create_stream("ticks", columns, time="ts", key="symbol")
            db.push("ticks", batches[0])
            began, used = time.perf_counter(), time.process_time()
            for batch in batches[1:]:
                db.push("ticks", batch)
            took = time.perf_counter() - began, time.process_time() - used
        with hybrid.connect(where, read_only=True) as db:
            return *took, db.sql("SELECT count(*) AS n FROM ticks").arrow().to_pylist()[0]["n"]


def main(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 100, 10_000])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--directory", help="Where the databases are made; left out, where temporary files go.")
    given = parser.parse_args(arguments)
    sizes: dict[str, Any] = {}
    for size in given.batches:
        count = max(2, min(PUSHES_MAX, given.events // size))
        batches = batches_of(size, count)
        took: dict[str, list[tuple[float, float, int]]] = {str(log): [] for log in POLICIES}
        for _ in range(given.repeat):
            for log in POLICIES:
                took[str(log)].append(seconds(batches, log, given.directory))
        events = size * (count - 1)
        sizes[str(size)] = {
            log: {
                "events_per_second": round(events / statistics.median(t[0] for t in some)),
                "events_per_cpu_second": round(events / statistics.median(t[1] for t in some)),
                "events": some[0][2],
            }
            for log, some in took.items()
        }
    return {"machine": machine(), "versions": versions(), "repeat": given.repeat, "batches": sizes}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:]), indent=1))
