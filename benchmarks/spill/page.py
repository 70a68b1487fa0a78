"""docs/memory_experiments.md and its picture, from the JSON of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.sase.page import table
from benchmarks.spill.experiments import ROOM, SHORT

ROOT = Path(__file__).parent.parent.parent
MEASURED = Path(__file__).parent / "measured.json"
PAGE = ROOT / "docs" / "memory_experiments.md"
PICTURE = ROOT / "docs" / "memory_experiments.svg"
POLICIES = ("stpm", "tpm", "lru", "due")

Result = dict[str, Any]


def slower(row: Result, policy: str) -> float:
    """Times the processor seconds of unlimited memory."""
    by = row["policies"]
    return float(by[policy]["processor_seconds"] / by["unlimited"]["processor_seconds"])


def misses_table(rows: list[Result]) -> str:
    lines = []
    for row in rows:
        by = row["policies"]
        out = by["due"]["written"]
        cells = [f"{row['ratio']:g}", f"{by['unlimited']['matches']:,}", f"{out:,}"]
        lines.append([*cells, *(f"{by[p]['misses']:,}" for p in POLICIES)])
    return table(["match ratio", "matches", "written (due)", *(f"misses, {p}" for p in POLICIES)], lines)


def time_table(rows: list[Result], what: str) -> str:
    lines = []
    for row in rows:
        first = f"{row['ratio']:g}" if what == "match ratio" else f"{row['events']:,}"
        seconds = row["policies"]["unlimited"]["processor_seconds"]
        lines.append([first, f"{seconds:.2f}", *(f"{slower(row, p):.2f}" for p in POLICIES)])
    return table([what, "unlimited, s", *POLICIES], lines)


def kept_goals(measured: Result) -> str:
    """What was to be reached, and what was."""
    rows = measured["by_ratio"]
    stpm = [row["policies"]["stpm"]["misses"] for row in rows]
    tpm = {row["ratio"]: row["policies"]["tpm"]["misses"] for row in rows if row["ratio"] <= 0.5}
    low = {row["ratio"]: row["policies"]["stpm"]["misses"] for row in rows if row["ratio"] <= 0.5}
    few = all(tpm[ratio] >= 10 * low[ratio] for ratio in tpm)
    largest = max(measured["by_size"], key=lambda row: row["events"], default=None)
    lines = [
        f"- STPM's misses are {min(stpm):,} to {max(stpm):,} over all ratios.",
        f"- At ratios up to 0.5 TPM has {min(tpm.values()):,} to {max(tpm.values()):,} misses: "
        f"{'at least' if few else 'not always'} ten times as many.",
    ]
    if largest is not None:
        policies = " ".join(f"{p.upper()} {slower(largest, p):.2f}," for p in POLICIES).rstrip(",")
        lines.append(
            f"- With {measured['pressure']:g} times more partial matches than fit, {largest['events']:,} events take "
            f"these multiples of the processor seconds with unlimited memory: {policies}."
        )
    return "\n".join(lines)


def render(measured: Result) -> str:
    versions, pressure = measured["versions"], f"{measured['pressure']:g}"
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"""# Partial matches that do not fit in memory

The experiments 5 and 6 of *Live-archive complex event detection*, by `python -m benchmarks.spill --write`
([benchmarks/spill/](../benchmarks/spill)). A miss is a key whose partial matches are read back from disk. All
settings find the same matches: the run compares a count and a hash of them.

An event of kind 1 begins a partial match with a key of its own. With the chance of the match ratio an event of kind 2
follows soon, and one of kind 3 after up to {1 / SHORT:g} times that interval; otherwise nothing follows, and the
partial match is kept until WITHIN is over. {measured["fits"]:,} partial matches fit in memory,
{measured["limit_bytes"]:,} bytes; the last event of a match comes within the time in which
{2 / ROOM * measured["fits"]:,.0f} others begin. WITHIN is so long that {pressure} times as many as fit are in
progress at a ratio of 0.5.

{kept_goals(measured)}

![Misses over the match ratio, time over the match ratio and the data size](memory_experiments.svg)

## Misses over the match ratio

{measured["events"]:,} events.

{misses_table(measured["by_ratio"])}

TPM and LRU evict old partial matches, of which many are needed again at low ratios. STPM and DUE have learnt
that a partial match with two events always completes, and that one with a single event does not if it is older than the
next event ever took. At a ratio of 1 all partial matches fit, and the order of eviction does not matter.

## Time over the match ratio

Processor seconds with unlimited memory, and the ratio of each policy to them.

{time_table(measured["by_ratio"], "match ratio")}

## Time over the data size

At a match ratio of 0.5, with {pressure} times more partial matches than fit once WITHIN has passed for the first time.

{time_table(measured["by_size"], "events")}

{measured["machine"]["cpu"]}, one process; other work ran on the machine, so these are processor seconds, not seconds by
the clock. Median of {measured["repeat"]}. {software}.
"""


def draw(measured: Result) -> None:
    """The picture. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    misses, by_ratio, by_size = figure.subplots(1, 3).flat
    rows, sizes = measured["by_ratio"], measured["by_size"]
    ratios = [row["ratio"] for row in rows]
    for policy in POLICIES:
        misses.plot(ratios, [row["policies"][policy]["misses"] for row in rows], "o-", label=policy)
        by_ratio.plot(ratios, [slower(row, policy) for row in rows], "o-", label=policy)
        by_size.plot([row["events"] for row in sizes], [slower(row, policy) for row in sizes], "o-", label=policy)
    misses.set(yscale="symlog", xlabel="match ratio", ylabel="misses", title="Read back from disk")
    by_ratio.set(xlabel="match ratio", ylabel="times unlimited", title="Processor time", ylim=(0, None))
    by_size.set(xscale="log", xlabel="events", ylabel="times unlimited", title="Processor time", ylim=(0, None))
    for axes in (misses, by_ratio, by_size):
        axes.legend(fontsize="small")
    with matplotlib.rc_context({"svg.hashsalt": "spill"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def write(measured: Result) -> None:
    PAGE.write_text(render(measured), encoding="utf-8")
    draw(measured)
