"""The V pattern on ticks of many symbols, through this engine and beside hand-written code and other engines.

    python -m benchmarks.v_pattern [--rows 10_000_000] [--only NAME ...] [--no-pin] > result.json

Prints one JSON object. Exits with 1 if two contenders that were given the same rows do not find the same matches.
Everything runs on one core: one thread per library, and the process is pinned to one CPU where the system allows it.
`seconds` is the clock, and what counts; where `cpu_seconds` is well below it, others used that CPU meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import hybrid
from benchmarks import answers, floor, windows
from query.schema import Schema
from simulator import stock

BATCH_ROWS = 65_536
WARM_UP_ROWS = 200_000
PEER_ROWS_MAX = 100_000
PANDAS_VERSION = "0.2.5"  # what make peers installs
PEER_PYTHON = Path(__file__).parent.parent / ".peers" / "bin" / "python"
COLUMNS = ["symbol", "start_ts", "bottom", "top"]

QUERY = """
SELECT symbol, start_ts, bottom, top FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES A.ts AS start_ts, LAST(B.price) AS bottom, LAST(C.price) AS top
    ONE ROW PER MATCH
    AFTER MATCH SKIP PAST LAST ROW
    PATTERN (A B+ C+)
    DEFINE B AS price < PREV(price), C AS price > PREV(price)
) AS m"""

#: Shapes and conditions of the drawn patterns; each variable but A gets a condition, all different.
SHAPES = ("A B+ C+ D", "A B{2,} C", "A (B | C) D+", "A B* C D?", "A B C? D+", "A B+? C{1,3} D")
CONDITIONS = (
    "price < PREV(price)",
    "price > PREV(price)",
    "price = PREV(price)",
    "price <= PREV(price, 2)",
    "volume > 2 * PREV(volume)",
    "volume < PREV(volume)",
    "volume >= 500",
    "price - PREV(price) > 0.05",
    "price BETWEEN 20 AND 90",
)

#: Seconds by the clock, seconds of processor time, and the answer.
Timed = tuple[float, float, pa.Table]


def stopwatch() -> Callable[[], tuple[float, float]]:
    """Starts now; what it returns gives the seconds since, by the clock and of processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    return lambda: (time.perf_counter() - clock, time.process_time() - processor)


def drawn_queries(seed: int, count: int = 3) -> list[str]:
    """Row-local patterns with the measures of QUERY. The same seed gives the same texts."""
    rng = np.random.Generator(np.random.PCG64(seed))
    texts = []
    for shape in rng.permutation(SHAPES)[:count]:
        variables = sorted({letter for letter in shape if letter in "BCD"})
        conditions = rng.permutation(CONDITIONS)[: len(variables)]
        define = ", ".join(f"{v} AS {c}" for v, c in zip(variables, conditions))
        texts.append(
            "SELECT symbol, start_ts, bottom, top FROM ticks MATCH_RECOGNIZE (\n"
            "    PARTITION BY symbol ORDER BY ts\n"
            "    MEASURES FIRST(ts) AS start_ts, FIRST(price) AS bottom, LAST(price) AS top\n"
            f"    PATTERN ({shape})\n    DEFINE {define}\n) AS m"
        )
    return texts


def through_watch(
    ticks: pa.Table, query: str, directory: Path | None = None, schema: Schema = stock.TICKS
) -> Timed:
    """From the first push to the last fetched row. directory: where to archive what is pushed; None keeps no files.
    schema: of the rows, with the name that the query has for them; its time is `ts`."""
    batches = ticks.to_batches(max_chunksize=BATCH_ROWS)
    with hybrid.connect(directory) as db:
        columns = {f.name: f.type for f in schema.fields}
        db.create_stream(schema.name, columns, time="ts", key=schema.keys)
        alerts = db.watch(query)
        found = []
        stop = stopwatch()
        for batch in batches:
            db.push(schema.name, batch)
            found.append(alerts.take())
        db.advance(schema.name, None)
        found.append(alerts.take())
        answer = pa.concat_tables([table for table in found if table is not None])
        return *stop(), answer


def through_sql(ticks: pa.Table, query: str, name: str = "ticks") -> Timed:
    """name: what the query calls the rows."""
    stop = stopwatch()
    answer = hybrid.sql(query, **{name: ticks}).arrow()
    return *stop(), answer


def through_archive(ticks: pa.Table, query: str) -> Timed:
    with tempfile.TemporaryDirectory(prefix="v_pattern_") as directory:
        return through_watch(ticks, query, Path(directory))


def by_hand(function: Callable[[pa.Table], pa.Table]) -> Callable[[pa.Table, str], Timed]:
    def run(ticks: pa.Table, query: str) -> Timed:
        stop = stopwatch()
        answer = function(ticks)
        return *stop(), answer

    return run


def through_pandas_match_recognize(ticks: pa.Table, query: str) -> Timed:
    with tempfile.TemporaryDirectory(prefix="v_pattern_") as directory:
        ticks_path, answer_path = Path(directory, "ticks.arrow"), Path(directory, "answer.arrow")
        with pa.ipc.new_file(ticks_path, ticks.schema) as writer:
            writer.write_table(ticks)
        script = Path(__file__).parent / "peer_pandas.py"
        command = [str(PEER_PYTHON), str(script), str(ticks_path), str(answer_path), query.strip()]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True).stdout
        with pa.ipc.open_file(answer_path) as reader:
            measured = json.loads(output)
            return measured["seconds"], measured["cpu_seconds"], reader.read_all()


CONTENDERS: dict[str, Callable[[pa.Table, str], Timed]] = {
    "hybrid watch": through_watch,
    "hybrid sql": through_sql,
    "hybrid watch, archiving": through_archive,
    "numba by hand": by_hand(floor.v_pattern),
    "polars by hand": by_hand(windows.v_pattern_polars),
    "duckdb by hand": by_hand(windows.v_pattern_duckdb),
}


def measured(
    run: Callable[[pa.Table, str], Timed],
    ticks: pa.Table,
    query: str,
    repeat: int,
    columns: Sequence[str] = COLUMNS,
    counts: str = "",
) -> dict[str, object]:
    """Median seconds of `repeat` runs after one on the first rows, which loads and compiles what there is to load.
    columns: of the answer. counts: the one that counts matches, where a row of the answer stands for many."""
    run(ticks.slice(0, min(len(ticks), WARM_UP_ROWS)), query)
    times = []
    gc.collect()
    gc.freeze()  # what importing has left is looked through before no run
    for _ in range(repeat):
        gc.collect()
        seconds, cpu_seconds, answer = run(ticks, query)
        times.append((seconds, cpu_seconds))
    median, cpu_median = (statistics.median(t) for t in zip(*times))
    return {
        "rows": len(ticks),
        "seconds": round(median, 4),
        "cpu_seconds": round(cpu_median, 4),
        "events_per_second": round(len(ticks) / median),
        "matches": (pc.sum(answer[counts]).as_py() or 0) if counts else len(answer),
        "hash": answers.fingerprint(answer, list(columns)),
    }


def line(name: str, result: dict[str, object]) -> str:
    """What is said of a contender on the way."""
    busy = f"{result['cpu_seconds']} of {result['seconds']} s"
    return f"{name:<30}{result['events_per_second']:>14,} events/s{result['matches']:>12,} matches  {busy:>20}"


def disagreements(results: dict[str, dict[str, object]]) -> list[str]:
    """What is wrong between contenders that were given the same number of rows."""
    wrong = []
    first: dict[object, str] = {}
    for name, result in results.items():
        reference = first.setdefault(result["rows"], name)
        for what in ("matches", "hash"):
            if result[what] != results[reference][what]:
                wrong.append(f"{what}: {name} has {result[what]}, {reference} has {results[reference][what]}")
    return wrong


@contextlib.contextmanager
def one_core(pin: bool) -> Iterator[None]:
    """One Arrow thread and, where the system can do it, one CPU for the process, until the end of the block."""
    threads = pa.cpu_count()
    pa.set_cpu_count(1)
    before = os.sched_getaffinity(0) if pin and hasattr(os, "sched_setaffinity") else None
    if before:
        os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        pa.set_cpu_count(threads)
        if before:
            os.sched_setaffinity(0, before)


def benchmark(rows: int, symbols: int, seed: int, repeat: int, only: list[str], progress: bool) -> dict[str, object]:
    """The object that is printed. `disagreements` in it is empty if all is well."""

    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    def wanted(name: str) -> bool:
        return not only or any(word in name for word in only)

    ticks = stock.walk(seed, rows, symbols).combine_chunks()
    results: dict[str, dict[str, object]] = {}
    for name, run in CONTENDERS.items():
        if wanted(name):
            results[name] = measured(run, ticks, QUERY, repeat)
            say(line(name, results[name]))
    skipped = {}
    peer = f"pandas_match_recognize {PANDAS_VERSION}"
    if wanted(peer) and PEER_PYTHON.exists():
        few = ticks.slice(0, PEER_ROWS_MAX)
        results["numba by hand, few rows"] = measured(CONTENDERS["numba by hand"], few, QUERY, 1)
        results[peer] = measured(through_pandas_match_recognize, few, QUERY, 1)
        say(line(peer, results[peer]))
    elif wanted(peer):
        skipped[peer] = "make peers installs it"
    wrong = disagreements(results)
    drawn = []
    if wanted("drawn"):
        for query in drawn_queries(seed):
            found = {name: measured(CONTENDERS[name], ticks, query, repeat) for name in ("hybrid watch", "hybrid sql")}
            wrong += disagreements(found)
            drawn.append({"query": query, **found})
            for name, result in found.items():
                say(line(f"{name.removeprefix('hybrid ')}, {query.split('PATTERN ')[1].splitlines()[0]}", result))
    return {
        "benchmark": "v_pattern", "machine": answers.machine(), "versions": answers.versions(),
        "seed": seed, "rows": rows, "symbols": symbols, "batch_rows": BATCH_ROWS, "median_of": repeat,
        "contenders": results, "skipped": skipped, "drawn": drawn, "disagreements": wrong,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.v_pattern", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="ticks (default 10_000_000)")
    parser.add_argument("--symbols", type=int, default=1000, help="symbols (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the ticks and of the drawn patterns (default 1)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the median counts (default 3)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="only those with a WORD in the name")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    options = parser.parse_args(arguments)
    # `B+ C+` waits for the row that ends it, and watch says so; here that is wanted.
    warnings.simplefilter("ignore", hybrid.HybridWarning)
    with one_core(not options.no_pin):
        result = benchmark(options.rows, options.symbols, options.seed, options.repeat, options.only, progress=True)
    print(json.dumps(result, indent=2))
    for line in result["disagreements"]:  # type: ignore[attr-defined]
        print(line, file=sys.stderr)
    return 1 if result["disagreements"] else 0


if __name__ == "__main__":
    sys.exit(main())
