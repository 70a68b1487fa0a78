"""Resident memory on a stream that never ends: ever new keys through a query with a window of ten minutes.

    python -m benchmarks.memory [--events 100_000_000] [--keys 100_000] [--only NAME ...] [--plot FILE] > result.json

Prints one JSON object. Exits with 1 if memory grows: if the largest resident size of the last half of a run is more
than `--most` times that of its second quarter.

`keys` keys are alive at a time. Each has READS events, about one a minute, and then makes place for a new one, so that
an event in READS brings a key that was never seen. Each query runs in a process of its own. What is pushed is kept for
the ten minutes of the window.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import hybrid
from benchmarks import answers
from simulator.scenario import MINUTE_US, START_US, TIMESTAMP, generator

BATCH_ROWS = 65_536
READS = 10
KINDS = ("look", "search", "cart", "pay")
SAMPLES = 400
FIELDS = {"ts": "TIMESTAMP", "visitor": "VARCHAR", "kind": "VARCHAR", "price": "BIGINT"}

_HEAD = """
SELECT visitor, first_ts, last_ts FROM visits MATCH_RECOGNIZE (
    PARTITION BY visitor ORDER BY ts
    MEASURES FIRST(ts) AS first_ts, LAST(ts) AS last_ts"""
#: By name; each is run by another engine.
QUERIES = {
    "passing over rows": f"""{_HEAD}
    PATTERN (A B C) WITHIN INTERVAL '10' MINUTE SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS kind = 'search', B AS kind = 'cart', C AS kind = 'pay'
) AS m""",
    "row by row": f"""{_HEAD}
    PATTERN (A B* C) WITHIN INTERVAL '10' MINUTE
    DEFINE A AS kind = 'search', B AS kind <> 'pay', C AS kind = 'pay'
) AS m""",
    "the match so far": f"""{_HEAD}
    PATTERN (A B+ C) WITHIN INTERVAL '10' MINUTE
    DEFINE A AS kind = 'search', B AS price > A.price, C AS price < A.price
) AS m""",
}


def batches(seed: int, events: int, keys: int) -> Iterator[pa.RecordBatch]:
    """The events in time order, BATCH_ROWS at a time; all times are different."""
    rng = generator(seed)
    seen = rng.integers(0, READS, keys)  # events of each place; places begin anywhere in the life of their key
    gap_us = max(1, MINUTE_US // keys)
    for start in range(0, events, BATCH_ROWS):
        n = min(BATCH_ROWS, events - start)
        place = rng.integers(0, keys, n)
        order = np.argsort(place, kind="stable")
        begins = np.flatnonzero(np.r_[True, np.diff(place[order]) != 0])
        lengths = np.diff(np.r_[begins, n])
        nth = np.empty(n, np.int64)
        nth[order] = np.arange(n) - np.repeat(begins, lengths)
        nth += seen[place]
        seen[place[order[begins]]] += lengths
        number = nth // READS * keys + place
        yield pa.RecordBatch.from_pydict({
            "ts": pa.array(START_US + (start + np.arange(n, dtype=np.int64)) * gap_us).view(TIMESTAMP),
            "visitor": pc.binary_join_element_wise("V", pa.array(number).cast(pa.string()), ""),
            "kind": pa.array(KINDS).take(pa.array(rng.integers(0, len(KINDS), n))),
            "price": pa.array(rng.integers(1, 100, n)),
        })  # fmt: skip


def resident_bytes() -> int:
    """Of this process, now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def one_run(query: str, events: int, keys: int, seed: int) -> dict[str, Any]:
    """The events through one watch; resident sizes at about SAMPLES times."""
    every = max(1, -(-events // BATCH_ROWS) // SAMPLES)
    sizes: list[tuple[int, int]] = []
    matches = pushed = 0
    seconds = cpu_seconds = 0.0
    with hybrid.connect() as db:
        db.create_stream("visits", FIELDS, time="ts", key="visitor", retention="10 minutes")
        alerts = db.watch(query)
        for i, batch in enumerate(batches(seed, events, keys)):
            begin, cpu_begin = time.perf_counter(), time.process_time()
            db.push("visits", batch)
            matches += alerts.fetch().num_rows
            seconds += time.perf_counter() - begin
            cpu_seconds += time.process_time() - cpu_begin
            pushed += batch.num_rows
            if i % every == 0 or pushed == events:
                sizes.append((pushed, resident_bytes()))

    def most(low: float, high: float) -> int:
        return max(size for at, size in sizes if low * events < at <= high * events)

    before, after = most(0.25, 0.5), most(0.5, 1.0)
    return {
        "query": query, "matches": matches, "seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3),
        "events_per_second": round(events / seconds),
        "second_quarter_bytes": before, "last_half_bytes": after, "ratio": round(after / before, 4),
        "events": [at for at, _ in sizes], "resident_bytes": [size for _, size in sizes],
    }  # fmt: skip


def benchmark(events: int, keys: int, seed: int, names: list[str], most: float) -> dict[str, Any]:
    """The object that is printed. `growing`: names of the queries whose memory grows."""
    runs: dict[str, Any] = {}
    for name in names:
        command = [sys.executable, "-m", "benchmarks.memory", "--here", name]
        command += [f"--events={events}", f"--keys={keys}", f"--seed={seed}"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True).stdout
        runs[name] = run = json.loads(output)
        megabytes = [round(run[f"{part}_bytes"] / 2**20) for part in ("second_quarter", "last_half")]
        say = f"{name:<20}{run['events_per_second']:>12,} events/s  {run['matches']:>12,} matches"
        say += f"  {run['cpu_seconds']} of {run['seconds']} s"
        print(f"{say}  {megabytes[0]:>6} MiB, then {megabytes[1]:>6} MiB", file=sys.stderr, flush=True)
    return {
        "benchmark": "memory", "machine": answers.machine(), "versions": answers.versions(), "seed": seed,
        "events": events, "keys": keys, "most": most, "queries": runs,
        "growing": [name for name, run in runs.items() if run["ratio"] > most],
    }  # fmt: skip


def plot(result: dict[str, Any], path: str) -> None:
    """Resident size against events, one line a query."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4))
    for name, run in result["queries"].items():
        axes.plot([at / 1e6 for at in run["events"]], [size / 2**20 for size in run["resident_bytes"]], label=name)
    axes.set_xlabel("million events")
    axes.set_ylabel("resident MiB")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{result['keys']:,} keys alive at a time, a window of ten minutes")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.split("\n\n")[0])
    parser.add_argument("--events", type=int, default=100_000_000, help="of each query (default 100_000_000)")
    parser.add_argument("--keys", type=int, default=100_000, help="alive at a time (default 100_000)")
    parser.add_argument("--seed", type=int, default=1, help="of the events (default 1)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only queries with a NAME in theirs")
    parser.add_argument("--most", type=float, default=1.05, help="largest ratio that is flat (default 1.05)")
    parser.add_argument("--plot", metavar="FILE", help="where to draw the sizes (needs matplotlib)")
    parser.add_argument("--here", choices=QUERIES, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", hybrid.HybridWarning)
    if options.here:
        print(json.dumps(one_run(QUERIES[options.here], options.events, options.keys, options.seed)))
        return 0
    names = [name for name in QUERIES if not options.only or any(word in name for word in options.only)]
    result = benchmark(options.events, options.keys, options.seed, names, options.most)
    if options.plot:
        plot(result, options.plot)
    print(json.dumps(result, indent=2))
    for name in result["growing"]:
        print(f"{name}: memory grows by {result['queries'][name]['ratio']}", file=sys.stderr)
    return 1 if result["growing"] else 0


if __name__ == "__main__":
    sys.exit(main())
