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
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import hybrid
from benchmarks import answers
from benchmarks.peers import core, flink
from benchmarks.peers.contenders import BY_HAND, SLOW_ROWS, Contender, Inside, Outside, contenders, unable
from benchmarks.peers.questions import Question, questions
from benchmarks.v_pattern import BATCH_ROWS, PANDAS_VERSION, WARM_UP_ROWS, disagreements, line, measured, one_core

Say = Callable[[str], None]


def outside(contender: Outside, question: Question, events: pa.Table) -> dict[str, Any]:
    """As benchmarks.v_pattern.measured, of one run in another process, with whatever else it measured."""
    times, answer = contender.run(events, min(len(events), WARM_UP_ROWS))
    found = {name: round(seconds, 4) for name, seconds in times.items() if name != "rows"}
    counted = pc.sum(answer[question.counts]).as_py() or 0 if question.counts else len(answer)
    return {"rows": len(events), "events_per_second": round(len(events) / times["seconds"]), "matches": counted,
            "hash": answers.fingerprint(answer, list(question.columns))} | found  # fmt: skip


def sample(runs: Mapping[str, Contender], question: Question, rows: int, keys: int, seed: int, repeat: int,
           say: Say) -> dict[str, Any]:  # fmt: skip
    """All of `runs` on the same events."""
    events = question.events(seed, rows, keys).combine_chunks()
    say(f"  {rows:,} events, {keys:,} keys")
    results: dict[str, dict[str, Any]] = {}
    for name, contender in runs.items():
        match contender:
            case Inside(run):
                results[name] = measured(run, events, question.text, repeat, question.columns, question.counts)
            case Outside(other=other):
                results[name] = outside(contender, question, events) | ({"other": other} if other else {})
        say(line(f"  {name}", results[name]))
    least = 0.0001  # of a second: what the times are rounded to
    ratios = {}
    if BY_HAND in results:
        limit = max(least, results[BY_HAND]["cpu_seconds"])
        ratios = {name: round(r["cpu_seconds"] / limit, 2) for name, r in results.items() if name != BY_HAND}
    same = {name: r for name, r in results.items() if "other" not in r}
    return {
        "rows": rows, "keys": keys, "contenders": results, "ratios": ratios, "disagreements": disagreements(same)
    }  # fmt: skip


def asked(question: Question, rows: int, keys: int, seed: int, repeat: int, smaller: bool,
          wanted: Callable[[str], bool], say: Say) -> dict[str, Any]:  # fmt: skip
    """One question with its contenders. keys: 0 for those of the question. smaller: who is too slow for these rows gets
    fewer of them, with as many fewer keys, beside ours and by hand once more."""
    keys = keys or question.keys
    everyone = contenders(question)
    skipped = {name: why for name, why in unable(question).items() if wanted(name)}
    sizes: dict[int, dict[str, Contender]] = {rows: {}}
    for name, contender in everyone.items():
        if not wanted(name):
            continue
        if isinstance(contender, Outside) and contender.absent:
            skipped[name] = contender.absent
            continue
        size = min(rows, contender.rows_max or rows)
        if size < rows and not smaller:
            skipped[name] = f"too slow for more than {contender.rows_max:,} events"
            continue
        sizes.setdefault(size, {})[name] = contender
    samples = []
    for size, runs in sorted(sizes.items(), reverse=True):
        beside = {n: c for n, c in everyone.items() if n in ("hybrid sql", BY_HAND)} if size < rows else {}
        fewer = max(1, keys * size // min(rows, SLOW_ROWS)) if size < rows else keys
        samples.append(sample(beside | runs, question, size, min(keys, fewer), seed, repeat, say))
    return {
        "name": question.name, "query": question.text, "constants": dataclasses.asdict(question.constants),
        "samples": samples, "skipped": skipped,
    }  # fmt: skip


def benchmark(rows: int, keys: int, seed: int, repeat: int, only: list[str], progress: bool,
              smaller: bool = True) -> dict[str, Any]:  # fmt: skip
    """The object that is printed. `disagreements` in it is empty if all is well. `ratios`: of processor seconds to
    those by hand on the same events."""

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
        results[label] = asked(question, rows, keys, seed, repeat, smaller, wanted, say)
    wrong = [f"{label}: {t}" for label, r in results.items() for s in r["samples"] for t in s["disagreements"]]
    others = {"apache-flink": flink.version(), "pycer": core.version(), "pandas_match_recognize": PANDAS_VERSION}
    return {
        "benchmark": "peers", "machine": answers.machine(),
        "versions": answers.versions() | {name: version for name, version in others.items() if version},
        "seed": seed, "rows": rows, "batch_rows": BATCH_ROWS, "median_of": repeat, "questions": results,
        "disagreements": wrong,
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
