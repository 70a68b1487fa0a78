"""1, 10 and 100 live queries over one stream, together and each alone.

    python -m benchmarks.many [--rows 1_000_000] [--symbols 1_000] [--seed 1] [--no-pin] > result.json

Prints one JSON object; exits with 1 where a query does not find together what it finds alone. One core, as in
benchmarks.v_pattern.
"""

from __future__ import annotations

import argparse
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
from hybrid.database.database import Database
from simulator import stock
from simulator.scenario import generator

COUNTS = (1, 10, 100)
WARM_UP_ROWS = 200_000
SINGLE_ROWS = 2_000
COLUMNS = ["symbol", "start_ts", "first_price", "last_price"]

#: Texts with places for numbers. Most rows meet a condition of the first; few meet one of the others.
TEMPLATES = (
    "PATTERN (A B{{{n},}} C) DEFINE B AS price < PREV(price), C AS price > PREV(price) AND volume >= {volume}",
    "PATTERN (A B C) DEFINE A AS volume >= {rare}, B AS price < PREV(price), C AS price > PREV(price)",
    "PATTERN (A B C) WITHIN INTERVAL '{n}' MINUTE SELECTION SKIP TILL NEXT MATCH "
    "DEFINE A AS volume >= {rare} AND price > {price}, B AS volume >= {rare}, C AS volume < {low}",
    "PATTERN (A B+ C) DEFINE A AS volume >= {rare}, B AS price < PREV(price), C AS price > A.price",
)
NEVER = "PATTERN (A B C) DEFINE A AS volume < {n} - 100, B AS price < PREV(price), C AS price > PREV(price)"


def query(pattern: str) -> str:
    return (
        "SELECT symbol, start_ts, first_price, last_price FROM ticks MATCH_RECOGNIZE (\n"
        "    PARTITION BY symbol ORDER BY ts\n"
        "    MEASURES FIRST(ts) AS start_ts, FIRST(price) AS first_price, LAST(price) AS last_price\n"
        f"    {pattern}) AS m"
    )


def drawn(seed: int, count: int) -> list[str]:
    """Queries drawn from TEMPLATES in turn. The same seed gives the same texts."""
    rng = generator(seed)
    texts = []
    for i in range(count):
        numbers = {
            "n": int(rng.integers(1, 6)), "volume": int(rng.choice([200, 500, 1000])),
            "rare": int(rng.choice([2000, 3000, 5000])), "low": int(rng.choice([300, 500])),
            "price": int(rng.choice([20, 50, 90])),
        }  # fmt: skip
        texts.append(query(TEMPLATES[i % len(TEMPLATES)].format(**numbers)))
    return texts


def opened(texts: list[str]) -> tuple[Database, list[Any]]:
    db = hybrid.connect()
    db.create_stream("ticks", {f.name: f.type for f in stock.TICKS.fields}, time="ts", key="symbol")
    return db, [db.watch(text) for text in texts]


def through(ticks: pa.Table, texts: list[str], batch_rows: int = BATCH_ROWS) -> tuple[float, float, list[pa.Table]]:
    """Seconds by the clock and of processor time from the first push to the last fetched row, and the answers."""
    batches = ticks.to_batches(max_chunksize=batch_rows)
    db, watched = opened(texts)
    with db:
        found: list[list[pa.Table]] = [[] for _ in texts]
        clock, processor = time.perf_counter(), time.process_time()
        for batch in batches:
            db.push("ticks", batch)
            for tables, alerts in zip(found, watched):
                tables.append(alerts.take())
        db.advance("ticks", None)
        for tables, alerts in zip(found, watched):
            tables.append(alerts.take())
        seconds = time.perf_counter() - clock, time.process_time() - processor
    return *seconds, [pa.concat_tables(tables) for tables in found]


def push_of_one_event(ticks: pa.Table, texts: list[str]) -> float:
    """Microseconds of processor time that the median push of one event takes."""
    rows = ticks.slice(0, SINGLE_ROWS).to_batches(max_chunksize=1)
    db, watched = opened(texts)
    with db:
        db.push("ticks", ticks.slice(0, 0))
        took = []
        for row in rows:
            begun = time.process_time()
            db.push("ticks", row)
            took.append((time.process_time() - begun) * 1e6)
        for alerts in watched:
            alerts.take()
    return round(float(np.median(took)), 1)


def benchmark(rows: int, symbols: int, seed: int, counts: list[int]) -> dict[str, Any]:
    """The object that is printed."""
    ticks = stock.walk(seed, rows, symbols)
    texts = drawn(seed, max(counts))
    through(ticks.slice(0, WARM_UP_ROWS), texts[: len(TEMPLATES)])
    push_of_one_event(ticks, texts[: len(TEMPLATES)])

    alone: list[tuple[float, int, str]] = []
    for i, text in enumerate(texts):
        _, cpu, (answer,) = through(ticks, [text])
        alone.append((cpu, len(answer), answers.fingerprint(answer, COLUMNS)))
        print(f"alone {i}: {cpu:.3f} s, {len(answer):,} matches", file=sys.stderr)

    agree = True
    together = []
    for count in counts:
        seconds, cpu, found = through(ticks, texts[:count])
        marks = [(len(answer), answers.fingerprint(answer, COLUMNS)) for answer in found]
        agree &= marks == [one[1:] for one in alone[:count]]
        sum_alone = sum(one[0] for one in alone[:count])
        together.append({
            "queries": count, "seconds": round(seconds, 3), "cpu_seconds": round(cpu, 3),
            "events_per_second": round(rows / cpu), "cpu_seconds_alone": round(sum_alone, 3),
            "ratio": round(sum_alone / cpu, 2), "ns_per_event_and_query": round(1e9 * cpu / rows / count, 2),
            "matches": sum(m for m, _ in marks), "hash": f"{sum(int(h, 16) for _, h in marks) % 2**64:016x}",
            "push_of_one_event_cpu_us": push_of_one_event(ticks, texts[:count]),
        })  # fmt: skip
        print(together[-1], file=sys.stderr)

    most = max(counts)
    _, nothing, _ = through(ticks, texts[:1])
    _, quiet, _ = through(ticks, [*texts[:1], *(query(NEVER.format(n=n)) for n in range(most))])
    result = {
        "benchmark": "many", "rows": rows, "symbols": symbols, "seed": seed, "machine": answers.machine(),
        "versions": answers.versions(),
        "together": together,
        "never_met": {"queries": most, "ns_per_event_and_query": round(1e9 * (quiet - nothing) / rows / most, 3)},
        "agree": agree,
    }  # fmt: skip
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--symbols", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--counts", type=int, nargs="*", default=list(COUNTS))
    parser.add_argument("--no-pin", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    with one_core(not asked.no_pin):
        result = benchmark(asked.rows, asked.symbols, asked.seed, asked.counts)
    print(json.dumps(result, indent=1))
    return 0 if result["agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
