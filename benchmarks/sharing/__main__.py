"""The experiments of [SHARING]: workloads of trend aggregates, with and without sharing.

    python -m benchmarks.sharing [--experiment 1 2 3 delivery] [--events 200_000] [--modes none feed] > result.json
    python -m benchmarks.sharing --experiment 1 --queries 12 120 --plot sharing.svg

Prints one JSON object, and a table on standard error. Exits with 1 if two contenders do not find the same rows. One
core, as in benchmarks.v_pattern; each contender and setting in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.sharing import picture
from benchmarks.sharing.contenders import CONTENDERS
from benchmarks.sharing.experiments import DEPTHS, LENGTHS, SHARES, experiments, settings
from benchmarks.sharing.streams import KEYS, PHASES, STREAMS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing", description=__doc__.split("\n\n")[0])
    parser.add_argument("--experiment", nargs="+", default=["1", "2", "3"], choices=["1", "2", "3", "delivery"],
                        help="1: latency and throughput; 2: time by kind of workload; 3: memory; delivery: the queries "
                        "of the paper's example (default 1 2 3)")  # fmt: skip
    parser.add_argument("--modes", nargs="+", default=["none", "feed"], choices=list(CONTENDERS),
                        help="contenders; the others are compared with the first (default none feed)")  # fmt: skip
    parser.add_argument("--events", type=int, default=200_000, help="of each stream (default 200_000)")
    parser.add_argument("--queries", type=int, nargs="+", default=[], metavar="N",
                        help="sizes of workloads (default 12 to 120; 40 to 200 in experiment 2)")  # fmt: skip
    parser.add_argument("--size", type=int, default=100, metavar="N",
                        help="queries of the workloads by length, depth and share (default 100)")  # fmt: skip
    parser.add_argument("--core-queries", type=int, default=30, metavar="N",
                        help="queries of a workload that share a core (default 30)")  # fmt: skip
    parser.add_argument("--lengths", type=int, nargs="*", default=list(LENGTHS), help="types in a Kleene pattern")
    parser.add_argument("--depths", type=int, nargs="*", default=list(DEPTHS), help="nested Kleene patterns")
    parser.add_argument("--shares", type=float, nargs="*", default=list(SHARES), help="shares of Kleene queries")
    parser.add_argument("--stream", nargs="+", default=[], choices=[n for n in STREAMS if n != "delivery"],
                        help="instead of those of the paper")  # fmt: skip
    parser.add_argument("--phases", type=int, default=PHASES, help="times of different rates (default 3; 1: steady)")
    parser.add_argument("--keys", type=int, default=KEYS, help="partitions (default 512): more events a minute")
    parser.add_argument("--no-conditions", action="store_true", help="queries without conditions on attributes")
    parser.add_argument("--seed", type=int, default=1, help="of streams and queries (default 1)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds; the median counts (default 3)")
    parser.add_argument("--plot", metavar="FILE", help="where to draw the results (needs matplotlib)")
    parser.add_argument("--here", action="store_true", help="all in this process, without figures of memory")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    options = parser.parse_args(arguments)
    asked = [
        setting
        for experiment in options.experiment
        for setting in settings(
            experiment, options.events, options.seed, queries=options.queries, size=options.size,
            lengths=options.lengths, depths=options.depths, shares=options.shares, streams=options.stream,
            phases=options.phases, keys=options.keys, conditions=not options.no_conditions,
            core_queries=options.core_queries,
        )
    ]  # fmt: skip
    result = experiments(
        asked, options.modes, options.repeat, not options.no_pin,
        lambda text: print(text, file=sys.stderr, flush=True), options.here,
    )  # fmt: skip
    print(json.dumps(result, indent=1))
    for fault in result["disagreements"]:
        print(fault, file=sys.stderr)
    if options.plot:
        picture.draw(result, options.plot)
    return 1 if result["disagreements"] else 0


if __name__ == "__main__":
    sys.exit(main())
