"""The experiments 5 and 6 of [LIVE-ARCHIVE]: partial matches that do not fit in memory, by policy.

    python -m benchmarks.spill [--events 1_000_000] [--sizes 1_000_000 10_000_000] [--no-pin] > result.json
    python -m benchmarks.spill --write   # also writes measured.json, docs/memory_experiments.md and its picture
    python -m benchmarks.spill --page    # writes the page and the picture from measured.json

Prints one JSON object. Exits with 1 if two settings do not find the same matches. One core, as in
benchmarks.v_pattern.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.spill import page
from benchmarks.spill.experiments import RATIOS, experiments
from benchmarks.v_pattern import one_core


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spill", description=__doc__.split("\n\n")[0])
    parser.add_argument("--events", type=int, default=1_000_000, help="of the experiment over the match ratio")
    parser.add_argument("--sizes", type=int, nargs="*", default=[100_000, 300_000, 1_000_000, 3_000_000, 10_000_000],
                        help="events of the experiment over the data size")  # fmt: skip
    parser.add_argument("--ratios", type=float, nargs="+", default=list(RATIOS), help="match ratios (default 0.1 to 1)")
    parser.add_argument("--fits", type=int, default=20_000, help="partial matches that fit in memory (default 20,000)")
    parser.add_argument("--pressure", type=float, default=10.0,
                        help="times as many as fit, where half of them become matches (default 10)")  # fmt: skip
    parser.add_argument("--repeat", type=int, default=3, help="rounds; the median counts (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the events (default 1)")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    parser.add_argument("--write", action="store_true", help="also write the page, its picture and what it is made of")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page anew")
    options = parser.parse_args(arguments)
    if options.page:
        page.write(json.loads(page.MEASURED.read_text(encoding="utf-8")))
        return 0
    with one_core(not options.no_pin):
        result = experiments(
            options.events, options.sizes, options.ratios, options.fits, options.pressure, options.seed,
            options.repeat, lambda text: print(text, file=sys.stderr, flush=True),
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
