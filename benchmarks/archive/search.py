"""Searches over an archive: seconds and the largest resident memory, each in a process of its own.

    python -m benchmarks.archive.search --directory DIR [--events 50_000_000] [--symbols 10_000] [--days 7] > out.json

`open` are the files as they were flushed, `closed` the same events rewritten by (key, time); both must give the same
rows (a count and a hash that does not depend on their order). `carried` is an archive of its own, of which every symbol
begins a match in the first file and ends it in the last (--carried of them, over --files files). DIR keeps the events
for the next run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from archive.reader import RangeRequest
from archive.search.search import SearchReport, search
from benchmarks import answers
from benchmarks.archive.events import DAY_US, SCHEMA, START_US, fill, parser, pieces, ticks
from matching.batch import EventBatch
from matching.drive import run
from matching.matcher import make_matcher
from matching.purpose import Purpose
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan

_TEXT = "SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol {} )"
QUERIES = {
    "single rows": """MEASURES FIRST(ts) AS first_ts, LAST(ts) AS last_ts, count(*) AS n PATTERN (A B+ C)
        DEFINE A AS price > 80, B AS price < 50, C AS price > 80""",
    "the match so far": """MEASURES FIRST(ts) AS first_ts, LAST(ts) AS last_ts, count(*) AS n PATTERN (A B+ C)
        DEFINE B AS price < LAST(A.price) - 40, C AS price > LAST(A.price)""",
    "across symbols": None,
    "rare": """MEASURES FIRST(ts) AS first_ts, LAST(ts) AS last_ts, count(*) AS n PATTERN (A B C)
        WITHIN INTERVAL '1' HOUR DEFINE A AS price < 99, B AS price > 99.95, C AS price < 50""",
}
ACROSS = """SELECT * FROM ticks MATCH_RECOGNIZE (MEASURES FIRST(ts) AS first_ts, LAST(ts) AS last_ts, count(*) AS n
    PATTERN (A B+ C) DEFINE A AS price > 80, B AS price < 50, C AS price > 80)"""
CARRIED = """MEASURES FIRST(ts) AS first_ts, LAST(ts) AS last_ts, count(*) AS n PATTERN (A B* C)
    DEFINE A AS volume = -1, B AS volume >= 0, C AS volume = -2"""
#: Searches that are made in several ways: of all events; without those that can be left out; by a single matcher, so
#: that all partial matches are there at a time.
HOW = {"rare": ("all", "prefilter"), "carried": ("all", "one matcher")}
#: Events between the first and the last file of `carried`, each.
FILLING = 1_000


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--carried", type=int, default=1_000_000)
    options.add_argument("--files", type=int, default=500)
    options.add_argument("--only", nargs="*", help="names of queries")
    options.add_argument("--child", nargs=3, metavar=("ARCHIVE", "QUERY", "HOW"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.child:
        child(given.directory / given.child[0], *given.child[1:])
        return
    for name in ("open", "closed"):
        fill(given.directory / name, pieces(given.events, given.symbols, given.days, given.seed), name == "closed")
    if not given.only or "carried" in given.only:
        fill(given.directory / "carried", carrying(given.carried, given.files, given.seed), closed=False)
    found: dict[str, dict[str, object]] = {}
    for query in (*QUERIES, "carried"):
        if given.only and query not in given.only:
            continue
        runs = {}
        for place in ("carried",) if query == "carried" else ("open", "closed"):
            for how in HOW.get(query, ("all",)):
                command = [sys.executable, "-m", "benchmarks.archive.search", "--directory", str(given.directory)]
                run = subprocess.run(
                    [*command, "--child", place, query, how], capture_output=True, text=True, check=False
                )
                if run.returncode:
                    sys.exit(run.stderr)
                who = place if how == "all" else f"{place}, {how}"
                runs[who] = json.loads(run.stdout)
                print(query, who, runs[who], file=sys.stderr)
        if len({(r["rows"], r["hash"]) for r in runs.values()}) > 1:
            sys.exit(f"{query}: not the same matches: {runs}")
        found[query] = runs
    result = {
        "events": given.events, "symbols": given.symbols, "days": given.days, "seed": given.seed,
        "carried": given.carried, "files": given.files, "machine": answers.machine(), "searches": found,
    }  # fmt: skip
    print(json.dumps(result, indent=1))


def plan_of(query: str) -> Plan:
    text = CARRIED if query == "carried" else QUERIES[query]
    return bind(parse(ACROSS if text is None else _TEXT.format(text), ["ticks"]), lambda _: SCHEMA).factors[0].plan


def child(directory: Path, query: str, how: str) -> None:
    """One search. The hash is made part by part, and no match is kept."""
    snapshot = fill(directory, iter(()), closed=False).snapshot()
    plan = plan_of(query)
    make_matcher(plan)  # the kernels are loaded, and compiled if need be
    report = SearchReport()
    rows, total = 0, 0
    started, worked = time.perf_counter(), time.process_time()
    make = partial(make_matcher, purpose=Purpose.ROWS)
    if how == "one matcher":
        found = run(make(plan), snapshot.batches(RangeRequest(columns=plan.columns)))
    else:
        prefilter = None if how == "prefilter" else False
        found = search(snapshot, plan, make=make, prefilter=prefilter, report=report)
    for matches in found:
        rows += matches.rows.num_rows
        total += int(answers.fingerprint(matches.rows, matches.rows.column_names), 16)
    result = {
        "seconds": round(time.perf_counter() - started, 2),
        "of_processor": round(time.process_time() - worked, 2),
        "memory_mb": resident_mb(),
        "rows": rows,
        "hash": f"{total % 2**64:016x}",
        "how": str(report) if report.units else "one matcher",
    }
    print(json.dumps(result))


def resident_mb() -> int:
    """The most that was resident since the process began: what getrusage says counts the parent before the exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    raise OSError("the system does not say how much memory a process has had")


def carrying(symbols: int, files: int, seed: int) -> Iterator[EventBatch]:
    """Every symbol begins in the first batch and ends in the last; between them, batches with some of each."""
    names = pa.array([f"S{i:07}" for i in range(symbols)])
    step_us = DAY_US // (2 * symbols + files * FILLING)
    first = 0
    for number in range(files):
        rng = np.random.Generator(np.random.PCG64([seed, number]))
        ends = number in (0, files - 1)
        which = np.arange(symbols) if ends else rng.integers(0, symbols, FILLING)
        volume = rng.integers(0, 1000, len(which)) if not ends else np.full(len(which), -1 if number == 0 else -2)
        ts_us = START_US + (first + np.arange(len(which))) * step_us
        yield ticks(ts_us, names.take(pa.array(which)), np.zeros(len(which)), volume, first)
        first += len(which)


if __name__ == "__main__":
    main()
