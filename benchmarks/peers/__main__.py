"""Four common queries through this engine, beside code written by hand and other engines.

    python -m benchmarks.peers [--rows 1_000_000] [--keys N] [--seed 1] [--only WORD ...] [--no-pin] > result.json

Prints one JSON object. Exits with 1 if two contenders that were given the same rows do not find the same matches. One
core, as in benchmarks.v_pattern.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

import hybrid
from benchmarks import answers
from benchmarks.peers import frames, limit
from benchmarks.peers.questions import Drop, Funnel, Path, Question, Rise, questions
from benchmarks.v_pattern import (
    BATCH_ROWS,
    PEER_PYTHON,
    PEER_ROWS_MAX,
    Timed,
    by_hand,
    disagreements,
    line,
    measured,
    one_core,
    through_pandas_match_recognize,
    through_sql,
    through_watch,
)

Run = Callable[[pa.Table, str], Timed]
BY_HAND = "numba by hand"
PANDAS = "pandas_match_recognize 0.2.5"


def contenders(question: Question) -> dict[str, Run]:
    """Who answers the question on all of its rows."""
    ours: dict[str, Run] = {"hybrid sql": partial(through_sql, name=question.schema.name)}
    if not question.counts:
        ours["hybrid watch"] = partial(through_watch, schema=question.schema)
    match question.constants:
        case Rise():
            return ours | {
                BY_HAND: by_hand(limit.rise),
                "polars by hand": by_hand(frames.rise_polars),
                "duckdb by hand": by_hand(frames.rise_duckdb),
            }
        case Drop() as constants:
            return ours | {BY_HAND: by_hand(partial(limit.drop, constants=constants))}
        case Path() as constants:
            return ours | {
                BY_HAND: by_hand(partial(limit.path, constants=constants)),
                "polars by hand": by_hand(partial(frames.path_polars, constants=constants)),
            }
        case Funnel() as constants:
            return ours | {BY_HAND: by_hand(partial(limit.funnel, constants=constants))}


def contenders_on_few(question: Question) -> dict[str, Run]:
    """Who answers it too slowly for all rows, with someone to compare with."""
    if isinstance(question.constants, Rise):
        return {f"{BY_HAND}, few rows": by_hand(limit.rise), PANDAS: through_pandas_match_recognize}
    return {}


def asked(question: Question, rows: int, keys: int, seed: int, repeat: int, wanted: Callable[[str], bool],
          say: Callable[[str], None]) -> dict[str, Any]:  # fmt: skip
    """One question with its contenders. keys: 0 for those of the question."""
    keys = keys or question.keys
    events = question.events(seed, rows, keys).combine_chunks()
    few = events.slice(0, min(rows, PEER_ROWS_MAX))
    results: dict[str, dict[str, Any]] = {}
    skipped = {}
    if question.counts:
        skipped["hybrid watch"] = "a count over an unbounded stream is refused"

    def measure(runs: Mapping[str, Run], on: pa.Table, times: int) -> None:
        for name, run in runs.items():
            if not wanted(name):
                continue
            if name == PANDAS and not PEER_PYTHON.exists():
                skipped[name] = "make peers installs it"
                continue
            results[name] = measured(run, on, question.text, times, question.columns, question.counts)
            say(line(name, results[name]))

    measure(contenders(question), events, repeat)
    measure(contenders_on_few(question), few, 1)
    ratios = {}
    for name in ("hybrid sql", "hybrid watch"):
        if name in results and BY_HAND in results:
            least = 0.0001  # of a second: what the times are rounded to
            ratios[name] = round(results[name]["cpu_seconds"] / max(least, results[BY_HAND]["cpu_seconds"]), 2)
    return {
        "query": question.text, "constants": dataclasses.asdict(question.constants), "keys": keys,
        "contenders": results, "skipped": skipped, "ratios": ratios, "disagreements": disagreements(results),
    }  # fmt: skip


def benchmark(rows: int, keys: int, seed: int, repeat: int, only: list[str], progress: bool) -> dict[str, Any]:
    """The object that is printed. `disagreements` in it is empty if all is well. `ratios`: of our processor seconds to
    those by hand."""

    def say(text: str) -> None:
        if progress:
            print(text, file=sys.stderr, flush=True)

    def wanted(name: str) -> bool:
        words = [word for word in only if word not in labels]
        return not words or any(word in name for word in words)

    everything = questions(seed)
    labels = {label: q for label, q in everything.items() if not set(only) & set(everything) or label in only}
    results = {}
    for label, question in labels.items():
        say(f"{label}: {question.name}")
        results[label] = asked(question, rows, keys, seed, repeat, wanted, say)
    wrong = [f"{label}: {text}" for label, r in results.items() for text in r["disagreements"]]
    return {
        "benchmark": "peers", "machine": answers.machine(), "versions": answers.versions(), "seed": seed, "rows": rows,
        "batch_rows": BATCH_ROWS, "median_of": repeat, "questions": results, "disagreements": wrong,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="events of each query (default 1_000_000)")
    parser.add_argument("--keys", type=int, default=0, help="partitions at one time (default: as each query says)")
    parser.add_argument("--seed", type=int, default=1, help="of the events and of the drawn constants (default 1)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the median counts (default 3)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD",
                        help="only these queries (q1, 'q2 drawn'), and contenders with a WORD in the name")  # fmt: skip
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    options = parser.parse_args(arguments)
    # Some of these queries wait for a later row, and watch says so; here that is wanted.
    warnings.simplefilter("ignore", hybrid.HybridWarning)
    with one_core(not options.no_pin):
        result = benchmark(options.rows, options.keys, options.seed, options.repeat, options.only, progress=True)
    print(json.dumps(result, indent=2))
    for text in result["disagreements"]:
        print(text, file=sys.stderr)
    return 1 if result["disagreements"] else 0


if __name__ == "__main__":
    sys.exit(main())
