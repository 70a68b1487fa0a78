"""Plain conditions beside cheap neighbours, on batch, live and backtest, at n and 4n rows.

    python -m benchmarks.conditions [--rows 20_000] [--keys 100] [--paths batch live backtest] [--kinds times]
        [--cases "s < A.s"] [--limit 10] [--table] > result.json

Prints one JSON object: for each condition and path the processor time at n and 4n rows, the ratio to the neighbour's
at 4n, the growth from n to 4n, the count and the hash of its matches, and whether it falls short: more than 10 times
the neighbour, growth beyond linear, an error, or more than the limit. --table: a table in Markdown instead. Exits
with 1 if the paths do not find the same matches.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks.answers import machine
from benchmarks.conditions.cases import cases
from benchmarks.conditions.measure import GROWTH_MAX, PATHS, TIMES_MAX, measured


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conditions", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=20_000, help="n (default 20,000)")
    parser.add_argument("--keys", type=int, default=100, help="partitions (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the events (default 1)")
    parser.add_argument("--paths", nargs="+", default=list(PATHS), choices=PATHS)
    parser.add_argument("--kinds", nargs="*", help="kinds of conditions (default all)")
    parser.add_argument("--cases", nargs="*", help="conditions, as they are written (default all)")
    parser.add_argument("--limit", type=float, default=10.0, help="processor seconds of a run (default 10)")
    parser.add_argument("--table", action="store_true", help="print a table instead of JSON")
    options = parser.parse_args(arguments)
    chosen = [c for c in cases() if not options.kinds or c.kind in options.kinds]
    if options.cases:
        kept = {c.neighbour for c in chosen if c.name in options.cases}
        chosen = [c for c in chosen if c.name in options.cases or (c.name == c.neighbour and c.name in kept)]
    rows = measured(chosen, options.paths, options.rows, options.keys, options.seed, options.limit,
                    lambda text: print(text, file=sys.stderr, flush=True))  # fmt: skip
    faults = disagreements(rows)
    result = {"machine": machine(), "rows": options.rows, "keys": options.keys, "seed": options.seed,
              "conditions": len(chosen), "short": sum(bool(r["short"]) for r in rows), "measured": rows,
              "disagreements": faults}  # fmt: skip
    print(table(result) if options.table else json.dumps(result, indent=1))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def disagreements(rows: list[dict[str, object]]) -> list[str]:
    """Returns the conditions of which two paths find other matches."""
    found: dict[tuple[str, str], set[tuple[object, ...]]] = {}
    for row in rows:
        for size in ("few", "many"):
            run = row[size]
            assert isinstance(run, dict)
            if run["seconds"] is not None:
                of = f"{row['condition']} ({row['kind']})"
                found.setdefault((of, size), set()).add((run["matches"], run["hash"]))
    return [f"{name}: paths disagree at {size} rows: {sorted(a)}" for (name, size), a in found.items() if len(a) > 1]


def table(result: dict[str, object]) -> str:
    """Returns the result as a table in Markdown, a line for each condition and path."""
    rows = result["measured"]
    assert isinstance(rows, list)
    lines = [
        f"{result['conditions']} conditions at {result['rows']:,} rows and four times as many; {result['short']} of "
        f"{len(rows)} fall short: more than {TIMES_MAX:g} times the neighbour, growth beyond {GROWTH_MAX:g}, or no "
        "answer.",
        "",
        "| kind | condition | path | matches | seconds at 4n | times the neighbour | growth | |",
        "|---|---|---|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        many = row["many"]
        seconds = many["error"] if many["seconds"] is None else f"{many['seconds']:.3f}"
        condition = str(row["condition"]).replace("|", "\\|")
        shown = [row["kind"], f"`{condition}`", row["path"], many["matches"], seconds, row["times"], row["growth"],
                 "falls short" if row["short"] else ""]  # fmt: skip
        lines.append(f"| {' | '.join('' if x is None else str(x) for x in shown)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
