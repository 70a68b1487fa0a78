"""How long one event takes from its push to its match in hand, with a partial match open for each of a million keys.

    python -m benchmarks.latency [--keys 1_000_000] [--events 200_000] [--plot latency.png] [--no-pin] > result.json

Prints one JSON object. Lateness 0, numeric conditions, one stream in memory, one watch a query. First every key gets an
event that opens a match, in batches. Then events of drawn keys are pushed one at a time, each an Arrow batch of one
row; the clock runs from before `db.push` until `fetch` has given the rows, if there are any, to a callback. Every event
is timed, pauses of the garbage collector, growth and compaction included; the first hundred are not counted. `us` is
the clock, and what counts; `cpu_us` is the processor time of the thread: where others run on that CPU, the clock also
shows how long they had it. `budget_us` is the goal for the 99th percentile. Exits with 1 if a query finds no match.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from typing import Any

import numpy as np
import pyarrow as pa

import hybrid
from benchmarks import answers
from benchmarks.v_pattern import BATCH_ROWS, one_core
from simulator.scenario import MINUTE_US, START_US, TIMESTAMP, generator

BUDGET_US = 1000
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
WARM_UP_EVENTS = 100
OPENING = 5.0

#: Each keeps a run open from a price below 10 until one of at least 90, or for a day.
QUERIES = {
    "conditions on single rows": """
SELECT key, a_ts, price FROM ticks MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY ts
    MEASURES A.ts AS a_ts, C.price AS price
    PATTERN (A B* C)
    DEFINE A AS price < 10, B AS price >= 10 AND price < 90, C AS price >= 90
) AS m""",
    "conditions on the match so far": """
SELECT key, a_ts, price FROM ticks MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY ts
    MEASURES A.ts AS a_ts, C.price AS price
    PATTERN (A B* C) WITHIN INTERVAL '1' DAY
    DEFINE A AS price < 10, B AS price > A.price AND price < A.price + 80, C AS price >= A.price + 80
) AS m""",
    "skip till next match": """
SELECT key, a_ts, price FROM ticks MATCH_RECOGNIZE (
    PARTITION BY key ORDER BY ts
    MEASURES A.ts AS a_ts, C.price AS price
    PATTERN (A C) WITHIN INTERVAL '1' DAY
    SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS price < 10, C AS price >= A.price + 80 AND volume > 50
) AS m""",
}


def batch(ts_us: np.ndarray, keys: np.ndarray, prices: np.ndarray) -> pa.RecordBatch:
    columns = [pa.array(ts_us).view(TIMESTAMP), pa.array(keys), pa.array(prices), pa.array(np.full(len(keys), 100))]
    return pa.RecordBatch.from_arrays(columns, names=["ts", "key", "price", "volume"])


def pushed(query: str, keys: int, events: int, seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Nanoseconds of each event by the clock and of processor time, int64 (events,), and the rows that came out.
    A tenth of the drawn events completes the match of its key, and another tenth opens one."""
    rng = generator(seed)
    key, price = rng.integers(0, keys, events), rng.random(events) * 100
    ts_us = START_US + MINUTE_US + np.arange(events, dtype=np.int64)
    rows = [batch(ts_us[i : i + 1], key[i : i + 1], price[i : i + 1]) for i in range(events)]
    received: list[pa.Table] = []
    callback = received.append
    taken, worked = np.zeros(events, np.int64), np.zeros(events, np.int64)
    with hybrid.connect() as db:
        types = {"ts": "TIMESTAMP", "key": "BIGINT", "price": "DOUBLE", "volume": "BIGINT"}
        db.create_stream("ticks", types, time="ts", key="key")
        alerts = db.watch(query)
        for begin in range(0, keys, BATCH_ROWS):
            opened = np.arange(begin, min(keys, begin + BATCH_ROWS))
            db.push("ticks", batch(START_US + opened * MINUTE_US // keys, opened, np.full(len(opened), OPENING)))
        assert not len(alerts.fetch())
        gc.collect()
        for i, row in enumerate(rows):
            processor, start = time.thread_time_ns(), time.perf_counter_ns()
            db.push("ticks", row)
            found = alerts.fetch()
            if found.num_rows:
                callback(found)
            taken[i] = time.perf_counter_ns() - start
            worked[i] = time.thread_time_ns() - processor
    counted = slice(min(WARM_UP_EVENTS, events // 2), None)
    return taken[counted], worked[counted], sum(table.num_rows for table in received)


def percentiles(us: np.ndarray) -> dict[str, float]:
    found = {f"p{p:g}": round(float(v), 1) for p, v in zip(PERCENTILES, np.percentile(us, PERCENTILES))}
    return found | {"max": round(float(us.max()), 1)}


def summary(taken: np.ndarray, worked: np.ndarray, matches: int) -> dict[str, Any]:
    """Percentiles and the greatest in microseconds, and how many events took 2^(i/2) us to 2^((i+1)/2) us."""
    us = taken / 1000
    edges = 2.0 ** (np.arange(int(2 * np.log2(us.min())), int(2 * np.log2(us.max())) + 2) / 2)
    counts, _ = np.histogram(us, edges)
    return {
        "events": len(us), "matches": matches,
        "us": percentiles(us), "cpu_us": percentiles(worked / 1000),
        "over_budget": int(np.count_nonzero(us > BUDGET_US)),
        "histogram": [[round(float(e), 1), int(n)] for e, n in zip(edges, counts) if n],
    }  # fmt: skip


def histogram(result: dict[str, Any], width: int = 40) -> str:
    """The histogram of one query as text, a line a bucket, the bars by the logarithm of their counts."""
    rows = result["histogram"]
    most = np.log10(max(n for _, n in rows) + 1)
    return "\n".join(
        f"{edge:>10,.0f} us {n:>9,} {'#' * max(1, round(width * np.log10(n + 1) / most))}" for edge, n in rows
    )


def plot(result: dict[str, Any], path: str) -> None:
    """The histograms of all queries as a picture. Needs the extra `plot`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, r in result["queries"].items():
        edges, counts = zip(*r["histogram"])
        axes.step(edges, counts, where="post", label=f"{name}, p99 {r['us']['p99']:.0f} us")
    axes.axvline(result["budget_us"], color="grey", linestyle=":", label=f"{result['budget_us']} us")
    axes.set(xscale="log", yscale="log", xlabel="microseconds from push to callback", ylabel="events",
             title=f"one event at a time, {result['keys']:,} keys with an open match")  # fmt: skip
    axes.legend()
    figure.savefig(path, dpi=120)


def benchmark(keys: int, events: int, seed: int, progress: bool) -> dict[str, Any]:
    """The object that is printed."""
    results = {}
    for name, query in QUERIES.items():
        results[name] = {"query": query} | summary(*pushed(query, keys, events, seed))
        if progress:
            shown = f"{name}\n  clock {results[name]['us']}\n  processor {results[name]['cpu_us']}"
            print(f"{shown}\n{histogram(results[name])}", file=sys.stderr, flush=True)
    return {
        "benchmark": "latency", "machine": answers.machine(), "versions": answers.versions(), "seed": seed,
        "keys": keys, "events": events, "budget_us": BUDGET_US, "queries": results,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency", description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys with an open match (default 1_000_000)")
    parser.add_argument("--events", type=int, default=200_000, help="pushed one at a time (default 200_000)")
    parser.add_argument("--seed", type=int, default=1, help="of keys and prices (default 1)")
    parser.add_argument("--plot", metavar="FILE", help="where to draw the histograms, a PNG or SVG file")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", hybrid.HybridWarning)
    with one_core(not options.no_pin):
        result = benchmark(options.keys, options.events, options.seed, progress=True)
    print(json.dumps(result, indent=2))
    if options.plot:
        plot(result, options.plot)
    return 0 if all(r["matches"] for r in result["queries"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
