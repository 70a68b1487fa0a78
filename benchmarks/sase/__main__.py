"""The experiments of [SASE] section 6: this engine, without sharing, with merging, and by backtracking.

    python -m benchmarks.sase [--windows 500 1000 1500 2000] [--per-symbol 200] [--seed 1] [--no-pin] > result.json
    python -m benchmarks.sase --write   # also writes measured.json, docs/sase_experiments.md and its picture
    python -m benchmarks.sase --page    # writes the page and the picture from measured.json

Prints one JSON object. Exits with 1 if two contenders do not find the same matches. One core, as in
benchmarks.v_pattern.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.sase import page
from benchmarks.sase.experiments import WINDOWS, WINDOWS_PER_SYMBOL, experiments
from benchmarks.v_pattern import one_core


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sase", description=__doc__.split("\n\n")[0])
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS), metavar="W",
                        help="events of a partition that a window spans; the first for the experiments with one window")
    parser.add_argument("--per-symbol", type=int, default=WINDOWS_PER_SYMBOL,
                        help="windows of events for each symbol (default 200)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the events (default 1)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds; the quickest counts (default 5)")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    parser.add_argument("--write", action="store_true", help="also write the page, its picture and what it is made of")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page anew")
    options = parser.parse_args(arguments)
    if options.page:
        page.write(json.loads(page.MEASURED.read_text(encoding="utf-8")))
        return 0
    with one_core(not options.no_pin):
        result = experiments(
            options.windows, options.per_symbol, options.seed, options.repeat,
            lambda text: print(text, file=sys.stderr, flush=True),
        )  # fmt: skip
    text = json.dumps(result, indent=1)
    print(text)
    for fault in result["disagreements"]:
        print(fault, file=sys.stderr)
    if result["disagreements"]:
        return 1
    if options.write:
        page.MEASURED.write_text(text + "\n", encoding="utf-8")
        page.write(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
