"""The experiments of [HIERARCHY]: patterns made of patterns, in layers and flattened.

    python -m benchmarks.hierarchy [--experiment 1 2 3 4] [--contenders hierarchical chosen] > result.json
    python -m benchmarks.hierarchy --shared 10    # so many live queries over one pattern, beside one
    python -m benchmarks.hierarchy --one-layer    # a named pattern alone, beside the same pattern written out
    python -m benchmarks.hierarchy --experiment 4 --layers 3 --events 1_000_000 10_000_000 --types 1000

Prints one JSON object, and a table on standard error. Exits with 1 if `hierarchical`, `flattened` and `chosen` do not
find the same matches; those of `hced` are only counted. One core, as in benchmarks.v_pattern; each contender and
setting in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.hierarchy import picture
from benchmarks.hierarchy.contenders import CONTENDERS
from benchmarks.hierarchy.experiments import EVENTS, LAYERS, LENGTHS, WINDOWS, experiments, settings
from benchmarks.hierarchy.one_layer import EVENTS as EVENTS_ONE_LAYER
from benchmarks.hierarchy.one_layer import PUSHES as PUSHES_ONE_LAYER
from benchmarks.hierarchy.one_layer import one_layer
from benchmarks.hierarchy.shared import EVENTS as EVENTS_SHARED
from benchmarks.hierarchy.shared import PUSHES, shared
from benchmarks.hierarchy.workloads import Shape


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hierarchy", description=__doc__.split("\n\n")[0])
    base = Shape()
    parser.add_argument("--experiment", nargs="+", default=["1", "2", "3", "4"], choices=["1", "2", "3", "4"],
                        help="1: layers; 2: length of a layer; 3: window; 4: events (default all)")  # fmt: skip
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=list(CONTENDERS),
                        help="default all")  # fmt: skip
    parser.add_argument("--layers", type=int, nargs="+", default=list(LAYERS), help="default 1 to 5")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="of a layer (default 3 to 5)")
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS), help="in seconds (default 100 to 250)")
    parser.add_argument("--events", type=int, nargs="+", default=list(EVENTS),
                        help="in experiment 4; the last one in the others (default 5_000 to 25_000)")  # fmt: skip
    parser.add_argument("--length", type=int, default=base.length, help="in experiments 3 and 4 (default 3)")
    parser.add_argument("--within", type=int, default=base.within, help="in experiments 1, 2 and 4 (default 150)")
    parser.add_argument("--types", type=int, default=base.types,
                        help=f"event types: more of them, fewer matches (default {base.types})")  # fmt: skip
    parser.add_argument("--planted", type=int, default=base.planted,
                        help=f"a match begins once in so many events; 0: none (default {base.planted})")  # fmt: skip
    parser.add_argument("--shared", type=int, metavar="N", help="instead: N live queries over one pattern, beside one")
    parser.add_argument("--one-layer", action="store_true",
                        help="instead: a named pattern beside the same written out")  # fmt: skip
    parser.add_argument("--pushes", type=int, nargs="+",
                        help="events of a push, with --shared or --one-layer (default of each)")  # fmt: skip
    parser.add_argument("--related", action="store_true", help="conditions compare with the first event of the layer")
    parser.add_argument("--seed", type=int, default=1, help="of streams (default 1)")
    parser.add_argument("--repeat", type=int, default=3, help="rounds; the median counts (default 3)")
    parser.add_argument("--plot", metavar="FILE", help="where to draw the results (needs matplotlib)")
    parser.add_argument("--here", action="store_true", help="all in this process, without figures of memory")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    options = parser.parse_args(arguments)
    if options.shared:
        events = EVENTS_SHARED if options.events == list(EVENTS) else options.events[-1]
        pushes, pin = options.pushes or PUSHES, not options.no_pin
        return _told(shared(options.shared, pushes, events, options.repeat, options.seed, pin, _say))
    if options.one_layer:
        events = EVENTS_ONE_LAYER if options.events == list(EVENTS) else options.events[-1]
        pushes, pin = options.pushes or PUSHES_ONE_LAYER, not options.no_pin
        return _told(one_layer(pushes, events, options.repeat, options.seed, pin, _say))
    base = Shape(length=options.length, within=options.within, events=options.events[-1], types=options.types,
                 planted=options.planted, related=options.related)  # fmt: skip
    asked = [
        setting
        for experiment in options.experiment
        for setting in settings(
            experiment, base, options.seed, layers=options.layers, lengths=options.lengths, windows=options.windows,
            events=options.events,
        )
    ]  # fmt: skip
    result = experiments(
        asked, options.contenders, options.repeat, not options.no_pin,
        _say, options.here,
    )  # fmt: skip
    if options.plot:
        picture.draw(result, options.plot)
    return _told(result)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _told(result: dict[str, Any]) -> int:
    """Prints a result; returns the exit code."""
    print(json.dumps(result, indent=1))
    for fault in result["disagreements"]:
        _say(fault)
    return 1 if result["disagreements"] else 0


if __name__ == "__main__":
    sys.exit(main())
