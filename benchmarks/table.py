"""The tables of benchmarks/README.md from the JSON of a benchmark: python -m benchmarks.table < result.json"""

from __future__ import annotations

import json
import sys
from typing import Any


def table(result: dict[str, Any]) -> str:
    """Markdown: what the machine was, then a line for each contender, then one for each drawn pattern."""
    machine, versions = result["machine"], result["versions"]
    lines = [
        f"{result['rows']:,} ticks, {result['symbols']:,} symbols, seed {result['seed']}; {machine['cpu']}, "
        f"{machine['cores']} cores of which one was used, {machine['system']}, Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ".",
        "",
        "| contender | rows | seconds | of processor | events/s | matches |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    rows = list(result["contenders"].items())
    for drawn in result["drawn"]:
        pattern = drawn["query"].split("PATTERN ")[1].splitlines()[0].replace("|", "\\|")
        rows += [(f"{name}, `{pattern}`", drawn[name]) for name in ("hybrid watch", "hybrid sql")]
    for name, r in rows:
        lines.append(
            f"| {name} | {r['rows']:,} | {r['seconds']:.3g} | {r['cpu_seconds']:.3g} | "
            f"{r['events_per_second'] / 1e6:.3g} M | {r['matches']:,} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.load(sys.stdin)))
