"""docs/sharing_experiments.md and its picture, from the JSON of runs of `python -m benchmarks.sharing`.

    python -m benchmarks.sharing.page run1.json run2.json   # puts runs together in measured.json, and writes the page
    python -m benchmarks.sharing.page                       # writes the page anew from measured.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.sharing import picture

ROOT = Path(__file__).parent.parent.parent
MEASURED = Path(__file__).parent / "measured.json"
PAGE = ROOT / "docs" / "sharing_experiments.md"
PICTURE = ROOT / "docs" / "sharing_experiments.svg"

#: Figures of a contender that the page is made of.
KEPT = ("queries", "rows", "hash", "cpu_seconds", "choosing_seconds", "events_per_second", "query_events_per_second",
        "cpu_latency_ms", "peak_bytes")  # fmt: skip
NAMES = {"none": "each alone", "feed": "one feed", "merged": "none", "hamlet": "hamlet", "static": "static",
         "dynamic": "dynamic"}  # fmt: skip

Result = dict[str, Any]


def together(runs: Sequence[Result]) -> Result:
    """Returns one run of several. Raises ValueError if contenders of one did not agree."""
    if any(run["disagreements"] for run in runs):
        raise ValueError("contenders that do not find the same rows")
    results = []
    for run in runs:
        for result in run["results"]:
            contenders = {
                name: {key: told[key] for key in KEPT if key in told} for name, told in result["contenders"].items()
            }
            results.append({**result, "contenders": contenders, "median_of": run["median_of"]})
    return {"machine": runs[0]["machine"], "versions": runs[0]["versions"], "results": results}


def of(measured: Result, experiment: str, by: str | None = None) -> list[Result]:
    """Returns the settings of an experiment."""
    return [r for r in measured["results"] if r["experiment"] == experiment and by in (None, r["by"])]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; all columns but the first to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def contenders_of(results: Sequence[Result]) -> list[str]:
    return [name for name in NAMES if all(name in r["contenders"] for r in results)]


def figures(results: Sequence[Result], head: str, value: Any) -> str:
    """Returns a table with a row for each setting and a column for each contender."""
    names = contenders_of(results)
    rows = [[f"{r['x']:g}", *(value(r["contenders"][name]) for name in names)] for r in results]
    return table([head, *(NAMES[name] for name in names)], rows)


def seconds(told: Result) -> str:
    return f"{told['cpu_seconds']:.2f}"


def latency(told: Result) -> str:
    return f"{told['cpu_latency_ms']['mean']:.1f}"


def throughput(told: Result) -> str:
    return f"{told['query_events_per_second'] / 1e6:.2f}"


def memory(told: Result) -> str:
    return f"{told['peak_bytes'] / 2**20:.0f}"


def choosing(results: Sequence[Result]) -> str:
    """Returns the range of the share that choosing plans takes of a run, static and dynamic."""
    told = [r["contenders"][name] for r in results for name in ("static", "dynamic") if name in r["contenders"]]
    shares = [t["choosing_seconds"] / t["cpu_seconds"] for t in told]
    return f"{min(shares):.1%} to {max(shares):.1%}"


def ratios(results: Sequence[Result], slow: str, quick: str, what: Any) -> str:
    """Returns the range of how many times a figure of one contender that of another is."""
    there = [r["contenders"] for r in results if slow in r["contenders"] and quick in r["contenders"]]
    found = [what(told[slow]) / what(told[quick]) for told in there]
    if not found:
        return ""
    return f"{min(found):.2f} to {max(found):.2f}" if len(found) > 1 else f"{found[0]:.2f}"


def cpu(told: Result) -> float:
    return float(told["cpu_seconds"])


def mean(told: Result) -> float:
    return float(told["cpu_latency_ms"]["mean"])


def peak(told: Result) -> float:
    return float(told["peak_bytes"])


def render(measured: Result) -> str:
    """Returns the page. Long: it is one text."""
    first, third = of(measured, "1"), of(measured, "3")
    second = {by: of(measured, "2", by) for by in ("queries", "length", "depth", "kleene")}
    every = [r for results in second.values() for r in results]
    machine, versions = measured["machine"], measured["versions"]
    used = ", ".join(f"{name} {version}" for name, version in versions.items() if name in ("numba", "numpy"))
    events = {name: f"{rs[0]['events']:,}" for name, rs in (("1", first), ("2", every), ("3", third)) if rs}
    both = [*first, *third]
    rows = [
        ["latency, hamlet / dynamic", "about 9", ratios(first, "hamlet", "dynamic", mean)],
        ["latency, static / dynamic", "about 3", ratios(first, "static", "dynamic", mean)],
        ["throughput, dynamic / hamlet", "1.8", ratios(first, "hamlet", "dynamic", cpu)],
        ["throughput, dynamic / static", "1.5", ratios(first, "static", "dynamic", cpu)],
        ["time, static / dynamic, SEQ", "3 to 5", ratios(second["queries"], "static", "dynamic", cpu)],
        ["time, static / dynamic, Kleene by length", "plot only", ratios(second["length"], "static", "dynamic", cpu)],
        ["time, static / dynamic, nested Kleene", "plot only", ratios(second["depth"], "static", "dynamic", cpu)],
        ["time, static / dynamic, mixed", "up to 3", ratios(second["kleene"], "static", "dynamic", cpu)],
        ["peak memory, dynamic / static", "0.5 to 0.7", ratios(both, "dynamic", "static", peak)],
        ["time, each query alone / dynamic", "", ratios(both, "none", "dynamic", cpu)],
        ["time, one feed / dynamic", "", ratios([*both, *every], "feed", "dynamic", cpu)],
        ["time, without sharing / dynamic", "", ratios([*both, *every], "merged", "dynamic", cpu)],
        ["choosing and changing plans, of the time", "", choosing([*both, *every])],
    ]  # fmt: skip
    short = table(["", "the paper", "here"], [row for row in rows if row[2]])
    names = {
        "queries": ("SEQ queries", "queries"), "length": ("types in a Kleene pattern, 100 queries", "types"),
        "depth": ("nested Kleene patterns, 100 queries", "depth"),
        "kleene": ("share of Kleene queries of 100", "share"),
    }  # fmt: skip
    parts = "\n\n".join(
        f"**By {names[by][0]}.**\n\n{figures(results, names[by][1], seconds)}"
        for by, results in second.items()
        if results
    )
    memories = "\n\n".join(
        f"**{name.capitalize()}, {events[experiment]} events.**\n\n{figures(results, 'queries', memory)}"
        for name, experiment, results in (("stock", "1", first), ("bus", "3", third))
        if results
    )
    return f"""# The experiments of the paper on shared aggregation

Section 4 of [SHARING] (Dong, Su, Gao: multi-aggregate query sharing, 2024), on this engine: many queries that count and
aggregate trends, together. Written by `python -m benchmarks.sharing.page` from
[measured.json](../benchmarks/sharing/measured.json); how it is measured:
[benchmarks/sharing](../benchmarks/README.md#sharing).

{machine["cpu"]}, 2 cores, {machine["system"]}, Python {machine["python"]}, {used}. Seconds are those of the processor:
other work ran on both cores all the time (a load of 6 to 18), and contenders took turns. Two runs of one contender
differed by up to a fifth, so smaller differences say nothing. The paper: Java, an i7-1260P, means of 15 runs.

| | |
| --- | --- |
| each alone | a matcher for each query, with rows and conditions of its own |
| one feed | rows, keys and conditions once for all, trends by each query alone |
| none | one engine for all, without a sharing plan |
| hamlet | one engine; events of one repeated type are shared, burst by burst |
| static | one engine; a plan for the first rates |
| dynamic | one engine; a plan that follows the rates: what `db.watch` does |

## In short

{short}

![Latency, throughput, time and memory of the contenders](sharing_experiments.svg)

**Nothing of the paper's gains is seen here**, and dynamic is right to share nothing in most of these workloads. Three
reasons:

- **Without sharing, queries are type-grained here, too.** The paper's baseline adds up the earlier events of a type
  for each new one (its equation 1: |E| x |Ep|). Here each query has one running record for each type, so an event costs
  one addition for each of its edges, and next to nothing where no trend has begun. What remains to be shared is one
  addition of some 25 ns for each query. A snapshot costs some 240 ns, and 60 and more for each query that reads it.
- **Queries differ in what they add up.** A set has a record with the numbers of all its queries; these workloads draw
  one to three aggregates of up to 25 for each query.
- **A window of a partition has few events of a type**, five or six here, and types come evenly mixed, so that most
  events that could be shared open a new gate.

The gain over *each alone* has other reasons: rows, keys and conditions are processed once for all queries. A user has
that by default, in mode dynamic.

Sharing pays for queries that begin alike and for long loops after rare starts, in the kernels: of 24 queries with
starts of their own (1 % of all events) and a loop in common, those of 20,000 events take 3.3 ms without sharing and
2.5 ms with it (`python -m benchmarks.sharing.fit`). Around them, conditions, rows and results take ten times as long.

## Experiment 1: 12 to 120 queries, 60 % with Kleene, stock

{events["1"]} events, {first[0]["keys"]} sectors, rates that change by 3 to 5 times twice. Latency: mean milliseconds of
the processor from the last event of a window to the rows of a query.

{figures(first, "queries", latency)}

Throughput: million events a second, times queries.

{figures(first, "queries", throughput)}

Choosing and changing plans took {choosing(first)} of the time, static and dynamic. In these runs, dynamic looked for
another plan every 50,000 events at most; it is 100,000 now.

## Experiment 2: kinds of workloads, bus

{events["2"]} events, {every[0]["keys"]} areas. Processor seconds.

{parts}

The paper compares graphs with and without pruning, too. Here the search keeps the eight best nodes of each part
([how](internals.md#trends-of-many-queries)); choosing and changing plans took {choosing(every)} of the time: there are
up to two searches in runs as short as these.

## Experiment 3: peak memory

MiB by which a process grows while it counts; rows are thrown away.

{memories}

A plan does not change it: most of it is rows and numbers that all modes keep.
"""


def draw(measured: Result) -> None:
    """Writes the picture."""
    picture.draw(measured, str(PICTURE))


def main(files: Sequence[str]) -> int:
    if files:
        found = together([json.loads(Path(file).read_text(encoding="utf-8")) for file in files])
        MEASURED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    PAGE.write_text(render(measured), encoding="utf-8")
    draw(measured)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
