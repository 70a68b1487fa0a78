"""Time to the first row of a small query: in a warm process, and in a new one with its kernels in the disk cache.

    python -m benchmarks.first_row [--rows 1_000] [--runs 20] [--processes 5] > result.json

Prints one JSON object with medians and where the time goes. Every warm run has another text, so nothing is remembered.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import statistics
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa

import hybrid
from benchmarks import answers
from benchmarks.v_pattern import stopwatch
from simulator import stock

#: Modules by whose functions the time of a warm query is told apart, the innermost first.
PARTS = {
    "parse": ("query/language/parse.py", "parse"),
    "bind": ("query/plan/bind.py", "bind"),
    "match and measure": ("hybrid/statement/statement.py", "answer_factor"),
    "outer select": ("hybrid/rows/outer.py", "run"),
}

COLD = """
import time
begin = time.perf_counter()
import pyarrow as pa
arrow = time.perf_counter()
import hybrid
imported = time.perf_counter()
n = {rows}
ticks = pa.table({{
    "symbol": ["S%d" % (i % 7) for i in range(n)], "ts": pa.array(range(n), pa.int64()).cast(pa.timestamp("us")),
    "price": [float(i * 7919 % 101) for i in range(n)],
}})
ready = time.perf_counter()
found = hybrid.sql({query!r}, ticks=ticks).arrow()
done = time.perf_counter()
print(len(found), arrow - begin, imported - arrow, done - ready)
"""


def query(number: int) -> str:
    """A V pattern with a constant of its own."""
    return f"""
SELECT symbol, start_ts, bottom, top FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES A.ts AS start_ts, LAST(B.price) AS bottom, LAST(C.price) + {number} AS top
    PATTERN (A B+ C+)
    DEFINE B AS price < PREV(price), C AS price > PREV(price)
) AS m"""


def warm(ticks: pa.Table, runs: int) -> dict[str, object]:
    """Median milliseconds of one statement, and of its parts (by the profiler, which makes them longer)."""
    times, processor = [], []
    for number in range(-3, runs):
        stop = stopwatch()
        answer = hybrid.sql(query(number), ticks=ticks).arrow()
        seconds, cpu_seconds = stop()
        if number >= 0:
            times.append(1000 * seconds)
            processor.append(1000 * cpu_seconds)
    profile = cProfile.Profile()
    for number in range(runs, 2 * runs):
        profile.runcall(lambda text: hybrid.sql(text, ticks=ticks).arrow(), query(number))
    parts = {}
    for (file, _, function), row in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        for part, (name, called) in PARTS.items():
            if file.endswith(name) and function == called:
                parts[part] = max(parts.get(part, 0.0), round(1000 * row[3] / runs, 2))
    return {
        "milliseconds": round(statistics.median(times), 2), "worst": round(max(times), 2),
        "cpu_milliseconds": round(statistics.median(processor), 2), "matches": len(answer),
        "hash": answers.fingerprint(answer, ["symbol", "start_ts", "bottom"]), "profiled": parts,
    }  # fmt: skip


def cold(rows: int, processes: int) -> dict[str, object]:
    """Median seconds of a new process from its start to its end, and inside it; the first one, which may compile, does
    not count."""
    code = COLD.format(rows=rows, query=query(0))
    whole: list[float] = []
    processor: list[float] = []
    inside: list[list[float]] = []
    for number in range(processes + 1):
        begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", code]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True).stdout
        if number:
            whole.append(time.perf_counter() - begin)
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            processor.append(used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime)
            inside.append([float(word) for word in output.split()])
    matches, arrow, imported, first = np.median(np.array(inside), axis=0).tolist()
    return {
        "seconds": round(statistics.median(whole), 3), "cpu_seconds": round(statistics.median(processor), 3),
        "import pyarrow": round(arrow, 3), "import hybrid": round(imported, 3),
        "sql": round(first, 3), "matches": int(matches),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_row", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000, help="rows of the input (default 1_000)")
    parser.add_argument("--runs", type=int, default=20, help="statements in the warm process (default 20)")
    parser.add_argument("--processes", type=int, default=5, help="new processes (default 5)")
    options = parser.parse_args(arguments)
    result = {
        "benchmark": "first_row", "machine": answers.machine(), "versions": answers.versions(), "rows": options.rows,
        "warm": warm(stock.walk(1, options.rows, 20), options.runs), "cold": cold(options.rows, options.processes),
    }  # fmt: skip
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
