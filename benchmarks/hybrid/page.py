"""docs/history_experiments.md and its picture, from the JSON of runs over archives of several sizes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sase.page import table

ROOT = Path(__file__).parent.parent.parent
MEASURED = Path(__file__).parent / "measured.json"
PAGE = ROOT / "docs" / "history_experiments.md"
PICTURE = ROOT / "docs" / "history_experiments.svg"
EXPERIMENTS = ("sizes", "selectivity", "windows", "together", "memory", "grid")
STRATEGIES = ("llaa", "sllaa", "alaa", "ollaa", "auto")
#: Ratios of seconds this near to 1 are no difference.
SAME = 0.05
#: The paper's sub-windows, in events.
PAPER_WINDOWS = (500, 3000)
NEAR = 1.25

Result = dict[str, Any]


def merged(before: Result, results: Iterable[Result]) -> Result:
    """What was measured before, with these results in the place of those of the same experiment and size."""
    by = {(r["experiment"], r["events"]): r for r in (*before["results"], *results)}
    return {"results": [by[at] for at in sorted(by, key=lambda at: (EXPERIMENTS.index(at[0]), at[1]))]}


def of(measured: Result, experiment: str) -> list[Result]:
    """The results of an experiment, by the size of the archive."""
    return [r for r in measured["results"] if r["experiment"] == experiment]


def seconds(case: Result, strategy: str) -> float:
    return float(next(r["seconds"] for r in case["runs"] if r["strategy"] == strategy))


def ratio(case: Result, slow: str, quick: str) -> float:
    return seconds(case, slow) / seconds(case, quick)


def spread(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


def listed(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def lines(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def paragraphs(texts: Iterable[str]) -> str:
    return "\n\n".join(texts)


def percent(share: float) -> str:
    return f"{100 * share:g} %"


def runs_of(repeat: int) -> str:
    return "one run" if repeat == 1 else f"medians of {repeat}"


def settings(result: Result) -> str:
    return (
        f"{result['events']:,} archived events of {result['symbols']:,} symbols over {result['days']} days, "
        f"{result['live']:,} live ones; {runs_of(result['repeat'])}."
    )


def with_archive(result: Result) -> str:
    return f"With {result['events']:,} archived events"


def sizes_said(results: list[Result]) -> str:
    """Where ALAA is dearer than LLAA, and where it is not."""
    ratios = {r["events"]: ratio(r["cases"][0], "alaa", "llaa") for r in results}
    places = {
        "longer": [n for n, x in ratios.items() if x > 1 + SAME],
        "shorter": [n for n, x in ratios.items() if x < 1 - SAME],
        f"as long, within {percent(SAME)},": [n for n, x in ratios.items() if abs(x - 1) <= SAME],
    }
    where = "; ".join(f"{how} with {listed(f'{n:,}' for n in at)}" for how, at in places.items() if at)
    text = f"ALAA takes {spread(list(ratios.values()))} times as long as LLAA: {where} archived events."
    if len(places["longer"]) == len(ratios):
        return f"{text} So it is in the paper."
    return (
        f"{text} That differs from the paper. Here ALAA keeps its matches, matches only new events, and does so for "
        "all symbols in one read, whereas LLAA has a read for each live match."
    )


def selectivity_said(result: Result) -> str:
    cases = sorted(result["cases"], key=lambda c: c["share"])
    gains = [ratio(case, "llaa", "ollaa") for case in cases]
    least, most = cases[0]["share"], cases[-1]["share"]
    auto = [seconds(c, "auto") / min(seconds(c, "llaa"), seconds(c, "ollaa")) for c in cases]
    paid = [c["share"] for c, gain in zip(cases, gains, strict=True) if gain > 1 + SAME]
    cheaper = f"OLLAA is cheaper at {listed(map(percent, paid))}" if paid else "OLLAA is nowhere cheaper"
    if len(paid) < len(cases):
        cheaper += ", not elsewhere"
    fades = gains[-1] < gains[0] and bool(paid)
    live = cases[0]["runs"][0]["matches"] / result["live"]
    there = fades and all(c["share"] in paid for c in cases if c["share"] < live)
    how = f"{'fades' if fades else 'does not fade'}, {'as' if there else 'not as'} in the paper"
    return (
        f"{with_archive(result)} LLAA takes {gains[0]:.3g} times as long as OLLAA at {percent(least)}, "
        f"{gains[-1]:.3g} times at {percent(most)}: {cheaper}, and the gain {how}. auto takes {spread(auto)} times "
        f"what the cheaper of the two does."
    )


def windows_said(result: Result) -> str:
    llaa = next(seconds(c, "llaa") for c in result["cases"] if c["sub_window"] is None)
    by = {c["sub_window"]: seconds(c, "sllaa") for c in result["cases"] if c["sub_window"] is not None}
    dearer = [n for n, s in by.items() if s > llaa]
    text = f"{with_archive(result)} SLLAA takes {spread([s / llaa for s in by.values()])} times as long as LLAA"
    text += f", longer with {listed(f'{n:,}' for n in dearer)} events" if dearer else ", less with every sub-window"
    text += f", and least with {min(by, key=lambda n: by[n]):,} events"
    low, high = PAPER_WINDOWS
    inside = {n: s for n, s in by.items() if low <= n <= high}
    if inside:
        best, end = min(inside, key=lambda n: inside[n]), min(inside[min(inside)], inside[max(inside)])
        middle = "is cheapest, as there" if inside[best] < (1 - SAME) * end else "is no cheaper than those at the ends"
        text += f"; of those that the paper has, with {best:,}: one in the middle {middle}"
    return text + "."


def together_said(result: Result) -> str:
    gains = [f"{ratio(c, 'llaa', 'sllaa'):.3g} times as long with {together_case(c)}" for c in result["cases"]]
    return f"{with_archive(result)} LLAA takes, beside SLLAA, {listed(gains)}."


def together_case(case: Result) -> str:
    return f"{case['range_s'] // 60} min of {case['of']} over {case['spread_s'] // 60:,} min"


def memory_said(result: Result) -> str:
    cases = sorted(result["cases"], key=lambda c: c["memory_rows"])
    few, many = cases[0], cases[-1]
    best = min(cases, key=lambda c: seconds(c, "llaa"))
    files = [c["runs"][0]["files"] for c in (few, many)]
    least = f"{seconds(best, 'llaa'):.3g} s with {best['memory_rows']:,}"
    return (
        f"{with_archive(result)} it takes {seconds(few, 'llaa'):.3g} s and leaves {files[0]:,} more files where "
        f"{few['memory_rows']:,} rows are kept in memory, {seconds(many, 'llaa'):.3g} s and {files[1]:,} more where "
        f"{many['memory_rows']:,} are; {'that is the least' if best is many else f'the least is {least}'}."
    )


def auto_to_best(cell: Result) -> float:
    best = min(s for strategy, s in cell["seconds"].items() if strategy != "auto")
    return float(cell["seconds"]["auto"] / best)


def grid_said(result: Result) -> str:
    cells = result["cases"]
    ratios = [auto_to_best(c) for c in cells]
    near = sum(r <= NEAR for r in ratios)
    worst = max(cells, key=auto_to_best)
    best = [min((s for s in c["seconds"] if s != "auto"), key=lambda s: c["seconds"][s]) for c in cells]
    bests = listed(f"{s.upper()} in {best.count(s)}" for s in STRATEGIES if s in best)
    fixed = {s: max(c["seconds"][s] / min(c["seconds"].values()) for c in cells) for s in STRATEGIES if s != "auto"}
    return (
        f"{with_archive(result)} auto takes at most {NEAR:g} times the best of the others in {near} of "
        f"{len(cells)} cells ({100 * near / len(cells):.0f} %); {statistics.median(ratios):.2f} times in the median, "
        f"{max(ratios):.2f} at worst (PL {percent(worst['live_share'])}, PA {percent(worst['share'])}, "
        f"{worst['hours']} h, {worst['live']:,} events). The best of the others is {bests}, and takes "
        f"{spread([min(t for s, t in c['seconds'].items() if s != 'auto') for c in cells])} s. Each of them, chosen "
        f"for all cells, takes at worst this many times the least: "
        f"{listed(f'{s.upper()} {times:.3g}' for s, times in fixed.items())}."
    )


def sizes_part(results: list[Result]) -> str:
    rows = [
        [f"{r['events']:,}", f"{r['live']:,}", f"{r['cases'][0]['runs'][0]['matches']:,}",
         f"{seconds(r['cases'][0], 'alaa'):.3f}", f"{seconds(r['cases'][0], 'llaa'):.3f}",
         f"{ratio(r['cases'][0], 'alaa', 'llaa'):.2f}", str(r["repeat"])]
        for r in results
    ]  # fmt: skip
    head = ["archived events", "live events", "live matches", "ALAA, s", "LLAA, s", "ALAA to LLAA", "median of"]
    return f"""## ALAA and LLAA over the size of the archive

The paper (experiment 1, up to 50,000 events): ALAA takes more processor time than LLAA throughout, as it loads all of
history and matches PA in it, where LLAA looks only at what a live match asks for; the paper then leaves ALAA aside.

{table(head, rows)}

{sizes_said(results)}"""


def selectivity_part(results: list[Result]) -> str:
    tables = []
    for result in results:
        rows = [
            [percent(c["share"]), f"{c['runs'][0]['matches']:,}", f"{c['runs'][0]['rows']:,}",
             *(f"{seconds(c, s):.3f}" for s in ("llaa", "ollaa", "auto")), f"{ratio(c, 'llaa', 'ollaa'):.2f}"]
            for c in result["cases"]
        ]  # fmt: skip
        head = ["PA", "live matches", "rows", "LLAA, s", "OLLAA, s", "auto, s", "LLAA to OLLAA"]
        tables.append(f"{settings(result)}\n\n{table(head, rows)}")
    return f"""## The order by selectivity

The paper (experiment 2, 10,000 to 50,000 events): with a fixed selectivity of the live stream OLLAA, which lets the
archive lead, takes less than LLAA; the two approach each other as the selectivity of the archive grows towards that of
the live stream. OLLAA here differs in one thing: it spares reads, but matches the live events of all symbols.

PL is one live event in 50; the first column has the share of archived events that match PA.

{paragraphs(tables)}

{lines(map(selectivity_said, results))}"""


def windows_part(results: list[Result]) -> str:
    tables = []
    for result in results:
        alone = next(seconds(c, "llaa") for c in result["cases"] if c["sub_window"] is None)
        rows = [
            ["LLAA" if c["sub_window"] is None else f"{c['sub_window']:,}", f"{c['runs'][0]['seconds']:.3f}",
             f"{alone / c['runs'][0]['seconds']:.2f}", f"{c['runs'][0]['reads']:,}"]
            for c in result["cases"]
        ]  # fmt: skip
        tables.append(f"{settings(result)}\n\n{table(['sub-window', 's', 'LLAA to it', 'reads'], rows)}")
    return f"""## Sub-windows

The paper (experiment 3, sub-windows of 500 to 3,000 events): SLLAA takes less than LLAA throughout, since neighbouring
matches ask together and what their ranges share is read once; best is neither the narrowest nor the widest, but a
sub-window in the middle.

Sub-windows are in events of the live stream.

{paragraphs(tables)}

{lines(map(windows_said, results))}

What a wide sub-window costs is delay: a match waits until its sub-window is over. That is not in these seconds."""


def together_part(results: list[Result]) -> str:
    tables = []
    for result in results:
        rows = [
            [together_case(c), f"{c['runs'][0]['rows']:,}", f"{seconds(c, 'llaa'):.3f}", f"{seconds(c, 'sllaa'):.3f}",
             *(f"{r['reads']:,}" for r in c["runs"]), f"{ratio(c, 'llaa', 'sllaa'):.2f}"]
            for c in result["cases"]
        ]  # fmt: skip
        head = ["ranges", "rows", "LLAA, s", "SLLAA, s", "reads of LLAA", "of SLLAA", "LLAA to SLLAA"]
        tables.append(f"{settings(result)}\n\n{table(head, rows)}")
    return f"""## Matches that come at once

Not in the paper. All matches come in one push, and ask for a part of the day before: ranges that overlap nearly
wholly, of all symbols and of one, and such as are spread over a day, each of the symbol of its match.

{paragraphs(tables)}

{lines(map(together_said, results))}"""


def memory_part(results: list[Result]) -> str:
    tables = []
    for result in results:
        rows = [
            [f"{c['memory_rows']:,}", f"{seconds(c, 'llaa'):.3f}", f"{c['runs'][0]['files']:,}",
             f"{c['runs'][0]['reads']:,}"]
            for c in result["cases"]
        ]  # fmt: skip
        tables.append(f"{settings(result)}\n\n{table(['rows in memory', 'LLAA, s', 'more files', 'reads'], rows)}")
    return f"""## Rows kept in memory

The paper (experiment 4): a small RBuffer means many reads and writes of the database, a larger one fewer; but not
without end, as what it takes is missing for matching.

So many of the latest rows are kept in memory before they are written to the archive; they are pushed 100 at a time.
Small files of the archive are put together meanwhile, so that there may be fewer in the end.

{paragraphs(tables)}

{lines(map(memory_said, results))}

Each live match asks, whatever is in memory, so the number of reads stays. That too much of it starves matching is not
to be seen here: there was memory for both."""


def grid_part(results: list[Result]) -> str:
    tables = []
    for result in results:
        rows = [
            [percent(c["live_share"]), percent(c["share"]), str(c["hours"]), f"{c['live']:,}", f"{c['matches']:,}",
             *(f"{c['seconds'][s]:.3f}" + ("*" if c["rounds"][s] < result["repeat"] else "") for s in STRATEGIES),
             f"{auto_to_best(c):.2f}"]
            for c in result["cases"]
        ]  # fmt: skip
        head = ["PL", "PA", "hours", "live events", "live matches", *(f"{s}, s" for s in STRATEGIES), "auto to best"]
        tables.append(f"### {with_archive(result)}\n\n{runs_of(result['repeat']).capitalize()}.\n\n{table(head, rows)}")
    return f"""## What auto takes to the best

The paper has no strategy that chooses. Here `auto` does, and this is what it takes beside the best of the others, cell
by cell: shares of events that match PL and PA, hours of history that a live match asks for, and live events. Nobody
knows the best one beforehand.

{lines(map(grid_said, results))}

{paragraphs(tables)}

\\* So much longer than the best in the first round that it was not run again."""


PARTS = {
    "sizes": sizes_part, "selectivity": selectivity_part, "windows": windows_part, "together": together_part,
    "memory": memory_part, "grid": grid_part,
}  # fmt: skip


def machines(measured: Result) -> str:
    """Where it was measured; more than one line where runs differ in that."""
    lines = {
        f"{r['machine']['cpu']}, {r['machine']['cores']} cores, {r['machine']['system']}, Python "
        f"{r['machine']['python']}; {', '.join(f'{name} {version}' for name, version in r['versions'].items())}. "
        f"Seed {r['seed']}."
        for r in measured["results"]
    }
    return "\n".join(sorted(lines))


def render(measured: Result) -> str:
    """The page; parts of experiments that were not run are left out."""
    parts = "\n\n".join(part(of(measured, name)) for name, part in PARTS.items() if of(measured, name))
    return f"""# What strategies of asking history cost

The experiments 1 to 4 of *Live-archive complex event detection*, the paper that ALAA, LLAA, OLLAA and SLLAA are from,
on this engine, and all of them beside `auto`. Written by `python -m benchmarks.hybrid.strategies --write`
([benchmarks/hybrid/](../benchmarks/hybrid)) from [measured.json](../benchmarks/hybrid/measured.json).
[Live meets history](hybrid.md#strategies) describes the strategies. All give the same rows: the run compares a count
and a hash.

The paper's prototype was C++ over MySQL on a Pentium with 2.5 GHz, its archives had 10,000 to 50,000 events, and its
figures are in plots only. So this page compares which strategy costs more, where and why, not seconds.

PL is one marked trade, PA a cheap trade of the symbol followed directly by an expensive one; live events continue where
the archive ends and are pushed 1,000 at a time. Seconds are by the clock, from the first push to the last row. The
history range of a live match is the 24 hours of its symbol before it, unless stated otherwise.

{machines(measured)}

![Seconds of strategies over the archive, the selectivity, the sub-window, rows in memory, matches at once; auto to \
the best]\
(history_experiments.svg)

{parts}
"""


def draw(measured: Result) -> None:
    """The picture. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    sizes, selectivity, windows, together, memory, grid = figure.subplots(2, 3).flat
    results = of(measured, "sizes")
    for strategy in ("alaa", "llaa") if results else ():
        at = [r["events"] for r in results]
        sizes.plot(at, [seconds(r["cases"][0], strategy) for r in results], "o-", label=strategy)
    archives = sorted({r["events"] for name in EXPERIMENTS[1:] for r in of(measured, name)})
    styles = dict(zip(archives, ("o:", "s--", "^-", "v-."), strict=False))
    for k, strategy in enumerate(("llaa", "ollaa", "auto")):
        for r in of(measured, "selectivity"):
            line = [seconds(c, strategy) for c in r["cases"]]
            selectivity.plot([100 * c["share"] for c in r["cases"]], line, styles.get(r["events"], "x-"),
                             color=f"C{k}", label=f"{strategy}, {r['events']:,}")  # fmt: skip
    for k, r in enumerate(of(measured, "windows")):
        by = [c for c in r["cases"] if c["sub_window"] is not None]
        alone = next(seconds(c, "llaa") for c in r["cases"] if c["sub_window"] is None)
        windows.plot([c["sub_window"] for c in by], [seconds(c, "sllaa") / alone for c in by],
                     styles.get(r["events"], "x-"), color=f"C{k}", label=f"{r['events']:,}")  # fmt: skip
    for k, r in enumerate(of(measured, "together")):
        together.plot([together_case(c) for c in r["cases"]], [ratio(c, "sllaa", "llaa") for c in r["cases"]],
                      styles.get(r["events"], "x-")[0], color=f"C{k}", label=f"{r['events']:,}")  # fmt: skip
    for k, r in enumerate(of(measured, "memory")):
        memory.plot([c["memory_rows"] for c in r["cases"]], [seconds(c, "llaa") for c in r["cases"]],
                    styles.get(r["events"], "x-"), color=f"C{k}", label=f"{r['events']:,}")  # fmt: skip
    for k, r in enumerate(of(measured, "grid")):
        ratios = sorted(auto_to_best(c) for c in r["cases"])
        grid.plot([100 * (i + 1) / len(ratios) for i in range(len(ratios))], ratios, styles.get(r["events"], "x-"),
                  color=f"C{k}", label=f"{r['events']:,}")  # fmt: skip
    if of(measured, "windows"):
        windows.axvspan(*PAPER_WINDOWS, color="0.9", label="the paper's")
    grid.axhline(NEAR, color="0.7", label=f"{NEAR:g}")
    sizes.set(xscale="log", yscale="log", xlabel="archived events", ylabel="s", title="ALAA and LLAA")
    selectivity.set(xscale="log", yscale="log", xlabel="archived events that match PA, %", ylabel="s",
                    title="Selectivity, by archived events")  # fmt: skip
    windows.set(xscale="log", xlabel="sub-window, events", ylabel="SLLAA to LLAA", title="Sub-windows", ylim=(0, None))
    together.set(ylabel="SLLAA to LLAA", title="Matches at once", ylim=(0, None))
    together.tick_params("x", labelsize="xx-small")
    memory.set(xscale="log", xlabel="rows in memory", ylabel="s", title="LLAA by rows in memory", ylim=(0, None))
    grid.set(xlabel="cells, %", ylabel="auto to the best of the others", title="auto")
    for axes in (sizes, selectivity, windows, together, memory, grid):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="x-small")
    with matplotlib.rc_context({"svg.hashsalt": "history"}):
        figure.savefig(PICTURE, metadata={"Date": None})


def write(measured: Result) -> None:
    PAGE.write_text(render(measured), encoding="utf-8")
    draw(measured)
