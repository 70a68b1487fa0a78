"""Writes docs/hierarchy_experiments.md from runs of benchmarks.hierarchy:

    python -m benchmarks.hierarchy > local.json; python -m benchmarks.hierarchy --related > related.json
    python -m benchmarks.hierarchy.page local.json related.json > docs/hierarchy_experiments.md

The pictures beside it are drawn by `--plot docs/hierarchy_experiments.svg` and, with `--related`, `--plot
docs/hierarchy_experiments_related.svg`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TITLES = {
    "1": "Layers and length", "3": "Window", "4": "Size of the stream",
}  # fmt: skip
KINDS = ("Conditions on single events", "Conditions that compare with the first event of the layer")
PICTURES = ("hierarchy_experiments.svg", "hierarchy_experiments_related.svg")
HEAD = (
    "| layers | length | window, s | events | matches | hierarchical | flattened | times | chosen | MiB "
    "| MiB flattened | MiB chosen | hced | its matches |\n"
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def page(results: Sequence[dict[str, Any]]) -> str:
    """Returns the page. results: of runs with conditions on single events and with related ones."""
    told = results[0]
    machine, versions = told["machine"], told["versions"]
    rounds = "one round" if told["median_of"] == 1 else f"median of {told['median_of']} rounds"
    lines = [
        "# Patterns made of patterns, in layers and flattened", "",
        "The experiments of *Study of Complex Event Hierarchies Realization Based on Hierarchical Automata Model* "
        "(Jin, Shi, Yi and Yang, 2017), by `python -m benchmarks.hierarchy` with and without `--related` "
        "([benchmarks/hierarchy/](../benchmarks/hierarchy)).", "",
        "A layer is a sequence of 3 to 5 variables, of which the second is a box with the layer below. All layers are "
        f"`SKIP TILL ANY MATCH`, with the same `WITHIN`. One event comes each second, of {_of(told, 'types')} types; "
        "70 % of the events of a type meet the condition of its variable, and a whole match is planted once in "
        f"{_of(told, 'planted')} events. `hierarchical` has a matcher for each layer. `flattened` is the "
        "plain pattern that finds the same matches, in the engine that it gets; `chosen` is what a query gets: one of "
        "the two, or `flattened` with the order of `hierarchical`, until layers take over. `hced` is the paper's "
        "algorithm in plain Python as printed, with callers removed at call and return: its matches are only counted. "
        "The others find the same matches: the run compares a count and a hash of them.", "",
        f"Layers: {_of(told, 'layers')}; length: {_of(told, 'length')}; window: {_of(told, 'within')} s; events: "
        f"{_of(told, 'events')}. Events a second of processor time, "
        f"{rounds} beside other work on the same cores; `times` is the processor time of `hierarchical` by that of "
        "`flattened`. "
        f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, numba {versions['numba']}, numpy "
        f"{versions['numpy']}. Memory is by how much a process of its own grows; -: not measured.", "",
        "## Beside the paper", "", *_findings(results), "",
    ]  # fmt: skip
    for kind, picture, result in zip(KINDS, PICTURES, results):
        lines += [f"## {kind}", ""]
        lines += [f"![Throughput and memory by layers, length, window and events: {kind.lower()}]({picture})", ""]
        for experiment, title in TITLES.items():
            there = [r for r in result["results"] if r["experiment"] == experiment]
            if there:
                lines += [f"### {title}", "", HEAD, *map(_row, there), ""]
    return "\n".join(lines)


def _of(result: dict[str, Any], field: str) -> str:
    values = {r["shape"][field] for r in result["results"]}
    return ", ".join(f"{value:,}" for value in sorted(values))


def _pairs(result: dict[str, Any], what: str) -> list[tuple[float, dict[str, Any]]]:
    """Returns by how many times `hierarchical` has more than `flattened` of something, where both have come to an
    end."""
    found = {}
    for r in result["results"]:
        layered, flat = (r["contenders"][name] for name in ("hierarchical", "flattened"))
        if what in layered and what in flat and flat[what] and r["shape"]["layers"] > 1:
            found[json.dumps(r["shape"])] = layered[what] / flat[what], r
    return list(found.values())


def _spread(pairs: Sequence[tuple[float, dict[str, Any]]]) -> str:
    values = [value for value, _ in pairs]
    return f"{min(values):.1f} to {max(values):.1f} times"


def _findings(results: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| the paper | here |", "|---|---|"]
    times, memory = (
        "; ".join(f"{kind[0].lower()}{kind[1:]} {_spread(_pairs(r, what))}" for kind, r in zip(KINDS, results))
        for what in ("cpu_seconds", "peak_bytes")
    )
    lines.append("| the hierarchy has a higher throughput than the flattened automaton, whatever the layers, length, "
                 "window and stream | with two layers or more, processor time by that of the flattened pattern: "
                 f"{times}. All matches of a lower layer are made, with their events, whether or not a layer above "
                 "takes them |")  # fmt: skip
    lines.append(f"| and less memory | memory by that of the flattened pattern: {memory} |")
    failed = {name: sum("failed" in r["contenders"][name] for result in results for r in result["results"])
              for name in ("hierarchical", "flattened")}  # fmt: skip
    lines.append("| more layers, longer layers and longer windows lower the throughput of both | "
                 "see the tables. Settings with more partial matches than are allowed: "
                 f"{failed['hierarchical']} of `hierarchical`, {failed['flattened']} of `flattened` |")  # fmt: skip
    lines.append("| one layer is the plain automaton | the same matcher; a named pattern costs what it costs written "
                 "out ([benchmarks/](../benchmarks/README.md#hierarchy)) |")  # fmt: skip
    share = [r["contenders"]["hced"]["matches"] / r["contenders"]["flattened"]["matches"]
             for result in results for r in result["results"]
             if r["contenders"]["flattened"].get("matches") and "hced" in r["contenders"]]  # fmt: skip
    if share:
        lines.append("| HCED detects the hierarchy | as printed it finds "
                     f"{100 * min(share):.2g} to {100 * max(share):.2g} % of the matches; it is fast because it has so "
                     "few runs |")  # fmt: skip
    return lines


def _row(r: dict[str, Any]) -> str:
    shape, told = r["shape"], r["contenders"]
    layered, flat, printed = told["hierarchical"], told["flattened"], told.get("hced", {})
    taken = told.get("chosen", {})
    exact = layered if "matches" in layered else flat
    both = "cpu_seconds" in layered and "cpu_seconds" in flat
    cells = [
        str(shape["layers"]), str(shape["length"]), str(shape["within"]), f"{shape['events']:,}",
        f"{exact['matches']:,}" if "matches" in exact else "-", _speed(layered), _speed(flat),
        f"{layered['cpu_seconds'] / flat['cpu_seconds']:.1f}" if both else "-", _speed(taken), _memory(layered),
        _memory(flat), _memory(taken), _speed(printed), f"{printed['matches']:,}" if printed else "-",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _speed(told: dict[str, Any]) -> str:
    if not told:
        return "-"
    return f"{told['events_per_second']:,}" if "events_per_second" in told else "too many partial matches"


def _memory(told: dict[str, Any]) -> str:
    return f"{told['peak_bytes'] / 2**20:.0f}" if "peak_bytes" in told else "-"


if __name__ == "__main__":
    print(page([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]))
