"""docs/performance.md and docs/performance.json: all figures of one run, and the page that shows them.

    python -m benchmarks.performance                    # 1 and 10 million events of each query; an hour or more
    python -m benchmarks.performance --rows 1_000_000   # a draft
    python -m benchmarks.performance --page             # the page anew from the figures there are

`measure` gives the figures, `page` the text from nothing but them, so that no figure is written by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hybrid
from benchmarks import latency
from benchmarks.peers.__main__ import benchmark as through_peers
from benchmarks.peers.contenders import BY_HAND, CEP, READY, SQL
from benchmarks.v_pattern import one_core

DOCS = Path(__file__).parent.parent / "docs"
OURS = "hybrid sql"
SPECIALISED = "hybrid sql, specialised"

#: What is asked of a query: (its labels, what is compared, with whom, at most so many times their processor time).
#: For a contender that is not there, nothing is said.
GOALS: tuple[tuple[tuple[str, ...], str, str, float], ...] = (
    (("q1",), OURS, BY_HAND, 3.0),
    (("q1",), OURS, "polars by hand", 0.25),
    (("q2", "q2 drawn"), SPECIALISED, BY_HAND, 3.0),
    (("q2", "q2 drawn", "q3", "q3 drawn", "q4 counted"), OURS, BY_HAND, 3.0),
    (("q3", "q3 drawn"), OURS, "polars by hand", 1.0),
    (("q4",), OURS, READY, 2.0),
)
#: Flink may be so much faster for each event, at most, than this engine.
FLINK_GOAL = 0.01

INTRO = """# Performance

<!-- Written by `make performance` from docs/performance.json; do not edit. -->

Every figure of this page comes from one run on one machine. The ratios are what carries over to another one.
{machine}

One core: one thread a library, the process pinned to one CPU. Figures of this process are the median of {median} runs
after one on the first rows; those of other processes are one run after a warm-up in the same process. *seconds* are by
the clock, *of processor* is the processor time in them. *hash* is of all matches, whatever their order: equal hashes
are equal answers, and the run fails where they differ. *to by hand* compares the processor time with that of
`numba by hand` on the same events. Where the processor time is well below the seconds, other work ran on that core; the
contender could have been that much faster. [Benchmarks](../benchmarks/README.md) says what each contender is
and what is timed."""

NOTES = """Flink and CORE run in processes of their own and get all events as columns or objects in memory. *seconds* of
Flink are from the first event to the last match in a warm JVM; its job's planning and start are left out and stand
beside it as *with job start*. Flink's MATCH_RECOGNIZE is translated to Flink CEP and run by it. CORE's seconds are from
handing over event objects, made beforehand, to the text of all matches, the only form in which it gives them."""


def measure(rows: list[int], keys: int, seed: int, repeat: int, only: list[str], latency_keys: int,
            latency_events: int) -> dict[str, Any]:  # fmt: skip
    """All figures. rows: of the runs of benchmarks.peers; engines that get fewer rows do so in the first of them."""
    runs = [
        through_peers(n, keys, seed, repeat, only, progress=True, smaller=i == 0)
        for i, n in enumerate(sorted(rows))
    ]
    return {"benchmark": "performance", "peers": runs,
            "latency": latency.benchmark(latency_keys, latency_events, seed, progress=True)}  # fmt: skip


def number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rate(events: float) -> str:
    return f"{number(events / 1e6)} M" if events >= 10_000 else f"{events:,}"


def contender_rows(sample: dict[str, Any]) -> Iterator[str]:
    for name, r in sample["contenders"].items():
        seconds = number(r["seconds"])
        if "job_seconds" in r:
            seconds += f" ({number(r['job_seconds'])} with job start)"
        ratio = "1" if name == BY_HAND else number(sample["ratios"][name]) if name in sample["ratios"] else ""
        shown = f"`{r['hash'][:8]}`" if "other" not in r else "another query"
        yield (
            f"| {name} | {r['rows']:,} | {seconds} | {number(r['cpu_seconds'])} | "
            f"{rate(r['events_per_second'])} | {ratio} | {r['matches']:,} | {shown} |"
        )


def question_section(label: str, asked: dict[str, Any]) -> Iterator[str]:
    constants = ", ".join(f"{name} {show(value)}" for name, value in asked["constants"].items())
    yield f"### {label}: {asked['name']}" + (f" ({constants})" if constants else "")
    yield ""
    yield "| contender | events | seconds | of processor | events/s | to by hand | matches | hash |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|"
    for sample in asked["samples"]:
        yield from contender_rows(sample)
    yield ""
    remarks = {name: r["other"] for s in asked["samples"] for name, r in s["contenders"].items() if "other" in r}
    remarks |= {name: f"no figure: {why}" for name, why in asked["skipped"].items()}
    for name, why in remarks.items():
        yield f"- {name}: {why}."
    if remarks:
        yield ""


def show(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def first(asked: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The result of a contender on the most events it got."""
    return next((s["contenders"][name] for s in asked["samples"] if name in s["contenders"]), None)


def goals(run: dict[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """(question, what is compared, measured, at most)."""
    for labels, name, other, most in GOALS:
        for label in labels:
            whole = run["questions"].get(label, {"samples": [{"contenders": {}}]})["samples"][0]["contenders"]
            if name in whole and other in whole:
                took, least = whole[name]["cpu_seconds"], max(0.0001, whole[other]["cpu_seconds"])
                yield label, f"{name} to {other}", took / least, most
    for label, asked in run["questions"].items():
        ours = first(asked, OURS)
        for name in (CEP, SQL):
            theirs = first(asked, name)
            if ours is not None and theirs is not None:
                ratio = (ours["cpu_seconds"] / ours["rows"]) / (theirs["cpu_seconds"] / theirs["rows"])
                yield label, f"{OURS} to {name}, processor time an event", ratio, FLINK_GOAL


def goal_section(run: dict[str, Any]) -> Iterator[str]:
    yield "| query | processor time of | measured | goal: at most | met |"
    yield "|---|---|---:|---:|---|"
    for label, what, measured, most in goals(run):
        yield f"| {label} | {what} | {measured:.3g} | {most:g} | {'yes' if measured <= most else 'no'} |"
    yield ""


def latency_section(result: dict[str, Any]) -> Iterator[str]:
    names = list(next(iter(result["queries"].values()))["us"])
    yield (
        f"{result['keys']:,} keys with an open match each, lateness 0; then {result['events']:,} events pushed one at "
        f"a time, from before `db.push` to the rows in the hands of a callback, in microseconds. Goal: p99 below "
        f"{result['budget_us']:,}."
    )
    yield ""
    yield f"| query | | {' | '.join(names)} | above {result['budget_us']:,} | met |"
    yield f"|---|---|{'---:|' * len(names)}---:|---|"
    for name, r in result["queries"].items():
        for column, of in (("us", "clock"), ("cpu_us", "processor")):
            cells = " | ".join(f"{r[column][p]:,.0f}" for p in names)
            above, met = ("", "")
            if column == "us":
                above, met = f"{r['over_budget']:,}", "yes" if r["us"]["p99"] < result["budget_us"] else "no"
            yield f"| {name} | {of} | {cells} | {above} | {met} |"
    yield ""
    for name, r in result["queries"].items():
        yield f"Events by their time, {name}; bars by the logarithm of the number:"
        yield ""
        yield "```"
        yield latency.histogram(r)
        yield "```"
        yield ""


def page(figures: dict[str, Any]) -> str:
    """The page, from nothing but the figures."""
    runs = figures["peers"]
    machine, versions = runs[0]["machine"], runs[0]["versions"]
    about = (
        f"{machine['cpu']}, {machine['cores']} cores of which one was used, {machine['system']}, "
        f"Python {machine['python']}; {', '.join(f'{name} {version}' for name, version in versions.items())}; "
        f"seed {runs[0]['seed']}."
    )
    lines = [INTRO.format(machine=about, median=runs[0]["median_of"]), ""]
    for run in runs:
        lines += [f"## {run['rows']:,} events", "", *goal_section(run)]
        for label, asked in run["questions"].items():
            lines += question_section(label, asked)
    lines += ["## How other engines are timed", "", NOTES, "", "## One event at a time", ""]
    lines += latency_section(figures["latency"])
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.performance", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000], help="events of each query")
    parser.add_argument("--keys", type=int, default=0, help="as of benchmarks.peers")
    parser.add_argument("--seed", type=int, default=1, help="of all events and of the drawn constants (default 1)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the median counts (default 3)")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="as of benchmarks.peers")
    parser.add_argument("--latency-keys", type=int, default=1_000_000, help="--keys of benchmarks.latency")
    parser.add_argument("--latency-events", type=int, default=200_000, help="--events of benchmarks.latency")
    parser.add_argument("--folder", type=Path, default=DOCS, help="where performance.json and performance.md go")
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page anew")
    options = parser.parse_args(arguments)
    file: Path = options.folder / "performance.json"
    if not options.page:
        warnings.simplefilter("ignore", hybrid.HybridWarning)
        with one_core(True):
            figures = measure(options.rows, options.keys, options.seed, options.repeat, options.only,
                              options.latency_keys, options.latency_events)  # fmt: skip
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    figures = json.loads(file.read_text(encoding="utf-8"))
    (options.folder / "performance.md").write_text(page(figures), encoding="utf-8")
    wrong = [text for run in figures["peers"] for text in run["disagreements"]]
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
