"""docs/sase_experiments.md and its picture, from the JSON of one run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.sase.contenders import CONTENDERS
from benchmarks.sase.experiments import P_RISE_LESS
from benchmarks.sase.questions import Question

ROOT = Path(__file__).parent.parent.parent
MEASURED = Path(__file__).parent / "measured.json"
PAGE = ROOT / "docs" / "sase_experiments.md"
PICTURE = ROOT / "docs" / "sase_experiments.svg"

Result = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown; all columns but the first to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def rate(result: Result, name: str, what: str = "seconds") -> str:
    """Millions of events a second."""
    if name not in result["contenders"]:
        return ""
    return f"{result['events'] / result['contenders'][name][what] / 1e6:.3g}"


def ratio(result: Result, slow: str, quick: str, what: str = "seconds") -> float:
    return result["contenders"][slow][what] / result["contenders"][quick][what]


def times(result: Result, slow: str, quick: str, what: str = "seconds") -> str:
    """How many times the throughput of `slow` that of `quick` is."""
    has = result["contenders"]
    return f"{ratio(result, slow, quick, what):.2f}" if slow in has and quick in has else ""


def each(result: Result, name: str, what: str) -> float:
    """A count of a contender per event."""
    return float(result["contenders"][name][what]) / result["events"]


def per_match(result: Result, name: str, what: str) -> float:
    return result["contenders"][name][what] / max(1, result["contenders"][name]["matches"])


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def window_of(results: list[Result]) -> str:
    return f"W = {results[0]['question']['window']}."


MERGED = "the engine's graph of runs, or of merged runs where conditions read the match so far; it has none for s2"


def render(measured: Result) -> str:
    """The page."""
    parts = {name: [measured["results"][i] for i in at] for name, at in measured["experiments"].items()}
    machine = measured["machine"]
    base = measured["windows"][0]
    paper = Question("s3", "p3", base)
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items() if name == "numba")
    sections = [
        f"""# The experiments of the SASE paper

Section 6 of [SASE] (Agrawal, Diao, Gyllstrom, Immerman: Efficient pattern matching over event streams, SIGMOD 2008), on
this engine. Written by `make sase` from one run ([measured.json](../benchmarks/sase/measured.json)); how it
is measured: [benchmarks/sase](../benchmarks/README.md#sase).

{machine["cpu"]}, one core, {machine["system"]}, Python {machine["python"]}, {versions}; seed {measured["seed"]}, least
processor time of {measured["best_of"]} rounds. The paper: Java on a Pentium 4 with 2.8 GHz. So absolute figures are not
comparable, and those of the paper are mostly in plots that its text does not repeat: "plot only" below.

**Query.** All matches of this, here for {paper.name} and W = {paper.window}:

```
{paper.sase}
```

s2 is partition contiguity, s3 skip till next match. P(a[i]): p1 nothing, p2 `a[i].price > a[i-1].price`, p3 the one
above. A starred query has a third event, `Stock c` with `c.price > a[1].price and c.price < a[a.LEN].price`.

**Events.** {measured["windows_per_symbol"]} windows of W events for each of two symbols. A price in [0, 999] goes up
by 1 to 3 with probability 0.7, else down or stays with equal probability; volume is uniform in [1, 1000]. (The paper's
prices are in [1, 1000], and it does not define the price after 1000. If that is 1, half of all runs begin at a price
that no other exceeds, and the matches of p2 are half as long as the paper's.)

**Contenders.** They take the same rows with the same conditions through the same code for conditions, and find the same
matches (count and hash; the run fails otherwise).

| | |
| --- | --- |
| basic | runs one after the other over one shared match buffer (5.2.1): the engine's blocks of runs, for s2 its lists |
| merged | runs with one future are one run (5.2.2): {MERGED} |
| unshared | runs that share nothing, each with a copy of its rows; for this comparison only |
| backtracking | one run at a time, depth first, the others on a stack (5.2.3); for this comparison only |

*Matching* is the time without construction of matches: they are only counted, and by `merged` kept in compressed form.
With *construction* all matches are written out as arrays of rows, variables and identities.""",
        summary(measured, parts),
        first(parts["1"]),
        second(parts["2"], measured["windows"]),
        third(parts["3"]),
        fourth(parts["4"]),
        fifth(parts["5"]),
        sixth(parts["6"], measured["windows"]),
        compressed(parts["6"]),
        less_rising(parts["less rising"], parts["1"]),
    ]
    return "\n\n".join(sections) + "\n"


def summary(measured: Result, parts: dict[str, list[Result]]) -> str:
    merged = [r for r in parts["5"] if "merged" in r["contenders"] and not r["question"]["starred"]]
    starred = [r for r in parts["5"] if "merged" in r["contenders"] and r["question"]["starred"]]
    matching = [r for r in parts["6"] if "merged" in r["contenders"]]
    back = [ratio(r, "backtracking", "basic") for r in parts["3"] if not r["question"]["starred"]]
    star = next(r for r in parts["4"] if r["name"] == "p3* s3")

    def gains(results: list[Result], what: str) -> str:
        if not results:
            return "not measured"
        names = ", ".join(dict.fromkeys(r["name"] for r in results))
        return f"{spread([ratio(r, 'basic', 'merged', what) for r in results])} ({names})"

    rows = [
        ["merging, with construction", "1.4 to 1.5", gains(merged, "seconds")],
        ["the same where many runs lead to few matches", "", gains(starred, "seconds")],
        ["merging, matching alone, W from 500 to 2000", "1.4 to 2.1", gains(matching, "matching_seconds")],
        ["basic over backtracking, all matches, but for p2 s2", "200 to 300", spread(back)],
        ["basic over backtracking, p3* s3, no overlap", "an order of magnitude", times(star, "backtracking", "basic")],
    ]
    return f"""## In short

Ratios of throughput.

{table(["", "the paper", "here"], rows)}

The sections below explain the differences from the paper. Matches are long (hundreds of rows), and writing them
costs more here than finding them, so merging saves a small part of the total
([experiment 5](#experiment-5-merging-with-construction)). And backtracking, written with the same care, has no more
work than the basic algorithm when all matches are wanted ([experiment 3](#experiment-3-backtracking-all-matches)).

![Throughput of the contenders, throughput and cost by window, gain by merging](sase_experiments.svg)"""


def first(results: list[Result]) -> str:
    rows = [
        [
            r["name"], *(rate(r, name) for name in CONTENDERS), f"{r['contenders']['basic']['matches']:,}",
            f"{per_match(r, 'basic', 'rows'):.1f}", f"{2 * each(r, 'unshared', 'runs'):.3g}",
            share(r),
        ]
        for r in results
    ]  # fmt: skip
    head = ["", *CONTENDERS, "matches", "rows of a match", "runs at a time", "matching"]
    return f"""## Experiment 1: iterator predicates and strategies

{window_of(results)} Million events a second with construction; concurrent runs, over both symbols; the share
of matching in the time of `basic`.

{table(head, rows)}

The paper: matches of p1 have 250 events on average, and there are 2 runs at a time; with p2 it is 4.5 events and 0.01
runs under s2, 140 events and 2 runs under s3, and the throughputs of these are an order of magnitude apart; p3 is close
to p1. 60 to 100 % of the cost is matching. Throughputs: plot only."""


def share(result: Result) -> str:
    c = result["contenders"]["basic"]
    return f"{100 * c['matching_seconds'] / c['seconds']:.0f} %"


def by_window(results: list[Result], windows: list[int], cell: Callable[[Result], str]) -> str:
    names = dict.fromkeys(r["name"] for r in results)
    at = {(r["name"], r["question"]["window"]): r for r in results}
    rows = [[name, *(cell(at[name, w]) for w in windows)] for name in names]
    return table(["W", *map(str, windows)], rows)


def second(results: list[Result], windows: list[int]) -> str:
    return f"""## Experiment 2: windows

Million events a second by `basic` with construction:

{by_window(results, windows, lambda r: rate(r, "basic"))}

Output complexity is the number of rows of all matches. Nanoseconds of `basic` for each such row, where there are more
rows than events:

{by_window([r for r in results if r["contenders"]["basic"]["rows"] > r["events"]], windows,
           lambda r: f"{1e9 * r['contenders']['basic']['seconds'] / r['contenders']['basic']['rows']:.2f}")}

The paper: p2 s2 hardly depends on W; p1 s3 and p3 s3 fall with the square of W, as runs and the length of matches both
grow with it; the cost is linear in the output complexity. Figures: plot only."""


def third(results: list[Result]) -> str:
    rows = [
        [
            r["name"], rate(r, "basic"), rate(r, "backtracking"), times(r, "backtracking", "basic"),
            times(r, "backtracking", "basic", "matching_seconds"), f"{each(r, 'unshared', 'runs'):.3g}",
            f"{each(r, 'backtracking', 'read again'):.3g}", f"{per_match(r, 'backtracking', 'late'):.0f}",
        ]
        for r in results
    ]  # fmt: skip
    head = ["", "basic", "backtracking", "ratio", "ratio, matching", "runs an event", "read again", "late"]
    return f"""## Experiment 3: backtracking, all matches

{window_of(results)} Million events a second with construction, and the ratio of basic to backtracking;
runs that `basic` visits for an event; how often backtracking reads an event again; and how many events of the
partition after a match it has read when it finds the match. The starred queries are not part of the paper's experiment.

{table(head, rows)}

The paper: basic has 200 to 300 times the throughput of backtracking in all queries but p2 s2, where they are
comparable; an event is read again 0.6 times on average by queries under s3.

That factor cannot be reached against this baseline. When all matches are wanted every run has to be followed to its
end, in any order: an event costs the basic algorithm one test as a start and one for each run, and backtracking the
same tests, only later ("runs an event" and "read again" are the same number). Reading an event again takes no more time
than reading it at once, as long as a waiting run keeps its values, as in the paper's own
implementation; a factor of hundreds does not follow from 0.6 events read again. Backtracking costs delay,
which the last column shows, while the basic algorithm finds a match with its last event; and it has to keep the events
of the window."""


def fourth(results: list[Result]) -> str:
    rows = [
        [
            r["name"], rate(r, "basic"), rate(r, "unshared"), rate(r, "backtracking"),
            times(r, "backtracking", "basic"), f"{each(r, 'unshared', 'runs'):.3g}",
            f"{each(r, 'backtracking', 'read again'):.3g}", f"{r['contenders']['basic']['matches']:,}",
        ]
        for r in results
    ]  # fmt: skip
    head = ["", "basic", "unshared", "backtracking", "ratio", "runs an event", "read again", "matches"]
    return f"""## Experiment 4: backtracking, matches that do not overlap

{window_of(results)} Of each partition the match that completes first, then the next one after it. Columns as
above.

{table(head, rows)}

The paper: with p3 the two are similar, since a run soon finds its match; with p3* s3 the basic algorithm has an order
of magnitude more throughput. Figures: plot only. Backtracking here reads no event after the best match so far; the
match that it finds first need not complete first."""


def fifth(results: list[Result]) -> str:
    rows = [
        [r["name"], rate(r, "basic"), rate(r, "merged"), times(r, "basic", "merged"),
         PAPER_GAINS.get(r["name"], ""), times(r, "basic", "merged", "matching_seconds"), share(r)]
        for r in results
    ]  # fmt: skip
    head = ["", "basic", "merged", "gain", "the paper's", "gain in matching", "matching, of basic"]
    return f"""## Experiment 5: merging, with construction

{window_of(results)} Million events a second with construction.

{table(head, rows)}

Construction writes every row of every match, merged or not. The paper gives 60 to 100 % of the time to matching; here
the last column has the share, so that a gain in matching changes the total little: if matching took no time at all,
p1 s3 would gain a factor of {1 / (1 - matching_part(results, "p1 s3")):.2f}. And it costs the graph more to construct
a match, as it walks lists of cells, whereas a run has one pointer per row: so a gain may be below 1. Merging
pays where many runs lead to few matches, as in the starred queries, which are not part of the paper's experiment. Under
s2 nothing is merged."""


PAPER_GAINS = {"p1 s3": "1.5", "p2 s3": "1.4", "p3 s3": "1.5"}


def matching_part(results: list[Result], name: str) -> float:
    c = next(r for r in results if r["name"] == name)["contenders"]["basic"]
    return min(0.99, c["matching_seconds"] / c["seconds"])


def sixth(results: list[Result], windows: list[int]) -> str:
    def gain(r: Result) -> str:
        return times(r, "basic", "merged", "matching_seconds") or "-"

    return f"""## Experiment 6: merging, matching alone

Gain in throughput by merging without construction:

{by_window(results, windows, gain)}

With the smallest W a partition has one run at a time (experiment 1 counts both symbols), so there is little to merge;
and every event is tested as a start, merged or not.

The paper: 1.4 to 2.1. p1 has the most runs to merge, p2 gains most where W is large, p3 merges least, since two runs
need the same lowest price. By query and window: plot only."""


def compressed(results: list[Result]) -> str:
    def nodes(r: Result, name: str) -> str:
        return f"{r['contenders'][name]['nodes']:,}" if name in r["contenders"] else "-"

    rows = [
        [f"{r['name']}, W = {r['question']['window']}", f"{r['contenders']['basic']['matches']:,}",
         f"{r['contenders']['basic']['rows']:,}", nodes(r, "basic"), nodes(r, "merged")]
        for r in results
    ]  # fmt: skip
    head = ["", "matches", "rows, verbose", "nodes of the buffer", "cells of the graph"]
    return f"""## Output complexity: verbose and compressed

Verbose output has all rows of all matches; compressed output is the graph that the runs share, decoded on demand
(section 4.2).

{table(head, rows)}"""


def less_rising(results: list[Result], before: list[Result]) -> str:
    rows = [
        [r["name"], rate(r, "basic"), rate(b, "basic"), f"{r['contenders']['basic']['rows']:,}",
         times(r, "backtracking", "basic"), times(r, "basic", "merged", "matching_seconds"),
         times(b, "basic", "merged", "matching_seconds")]
        for r, b in zip(results, before, strict=True)
    ]  # fmt: skip
    head = [
        "", f"basic, p = {P_RISE_LESS}", "basic, p = 0.7", "rows of matches", "basic over backtracking",
        "gain in matching", "gain at 0.7",
    ]  # fmt: skip
    return f"""## Prices that rise less often

p = {P_RISE_LESS}, as in experiment 1.

{table(head, rows)}

The paper: p1 performs the same; p2 and p3 have fewer matches and higher throughput; the lead over backtracking is
smaller, the gain by merging larger. Figures: none."""


def draw(measured: Result) -> None:
    """The picture. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    parts = {name: [measured["results"][i] for i in at] for name, at in measured["experiments"].items()}
    figure = Figure(figsize=(12, 8), layout="constrained")
    bars, windows, cost, gains = figure.subplots(2, 2).flat
    width = 0.8 / len(CONTENDERS)
    for k, name in enumerate(CONTENDERS):
        has = [(i, r) for i, r in enumerate(parts["1"]) if name in r["contenders"]]
        heights = [r["events"] / r["contenders"][name]["seconds"] for _, r in has]
        bars.bar([i + (k - 1.5) * width for i, _ in has], heights, width, label=name)
    bars.set_xticks(range(len(parts["1"])), [r["name"] for r in parts["1"]])
    bars.set(yscale="log", ylabel="events/s", title="Experiments 1, 3, 5: with construction")
    bars.legend(fontsize="small")
    for label in dict.fromkeys(r["name"] for r in parts["2"]):
        line = [r for r in parts["2"] if r["name"] == label]
        basic = [r["contenders"]["basic"] for r in line]
        at = [r["question"]["window"] for r in line]
        windows.plot(at, [r["events"] / b["seconds"] for r, b in zip(line, basic, strict=True)], "o-", label=label)
        cost.plot(
            [b["rows"] / r["events"] for r, b in zip(line, basic, strict=True)],
            [1e6 * b["seconds"] / r["events"] for r, b in zip(line, basic, strict=True)], "o-", label=label,
        )  # fmt: skip
    windows.set(yscale="log", xlabel="W", ylabel="events/s", title="Experiment 2: basic by window")
    cost.set(xscale="log", yscale="log", xlabel="rows of matches an event", ylabel="µs an event",
             title="Experiment 2: cost by output complexity")  # fmt: skip
    for label in dict.fromkeys(r["name"] for r in parts["6"]):
        line = [r for r in parts["6"] if r["name"] == label and "merged" in r["contenders"]]
        if line:
            gain = [ratio(r, "basic", "merged", "matching_seconds") for r in line]
            gains.plot([r["question"]["window"] for r in line], gain, "o-", label=label)
    gains.set(xlabel="W", ylabel="merged / basic", title="Experiment 6: gain by merging, matching alone")
    for axes in (windows, cost, gains):
        axes.legend(fontsize="small")
    with matplotlib.rc_context({"svg.hashsalt": "sase"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def write(measured: Result) -> None:
    PAGE.write_text(render(measured), encoding="utf-8")
    draw(measured)
