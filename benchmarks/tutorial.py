"""The questions of the tutorial over a million rows: seconds of the second run, as for somebody who asks again.

    python -m benchmarks.tutorial [--rows 1_000_000] > result.json

Prints one JSON object, and a table to standard error. The texts are those of docs/tutorial.md. Exits with 1 if a
question has no rows.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hybrid
from benchmarks import answers
from simulator.scenario import generator

PAGE = Path(__file__).parent.parent / "docs" / "tutorial.md"
PAGES = np.array(["search", "product", "cart", "buy", "help"])
#: Rows for one person, and for one share.
CLICKS, DAYS = 50, 1_000


def questions(page: str) -> dict[str, str]:
    """Returns the statements of a document by their headings; further ones under one heading are numbered."""
    found: dict[str, str] = {}
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        for number, text in enumerate(re.findall(r"^```sql\n(.*?)^```$", section, re.MULTILINE | re.DOTALL), 1):
            found[title if number == 1 else f"{title}, {number}"] = text
    return found


def tables(rows: int, seed: int) -> dict[str, pd.DataFrame]:
    """Returns frames with the columns of the tutorial's: clicks some minutes apart, walks of prices, a machine."""
    rng = generator(seed)
    people, shares = -(-rows // CLICKS), -(-rows // DAYS)
    begin = pd.Timestamp("2024-03-01")
    order = np.argsort(rng.random(people * CLICKS), kind="stable")[:rows]
    at = np.cumsum(rng.exponential(12 / people, rows))  # each person clicks every twelve minutes or so
    clicks = pd.DataFrame({
        "who": [f"p{i:06}" for i in (order % people).tolist()],
        "ts": begin + pd.to_timedelta(np.round(at * 60e6).astype(np.int64), "us"),
        "page": PAGES[rng.choice(len(PAGES), rows, p=(0.35, 0.35, 0.15, 0.05, 0.1))],
    })  # fmt: skip
    days = np.arange(rows)
    prices = pd.DataFrame({
        "day": begin + pd.to_timedelta(days // shares, "D"),
        "symbol": [f"S{i:04}" for i in (days % shares).tolist()],
        "price": np.round(100 + rng.normal(0, 3, rows), 1),
    })  # fmt: skip
    celsius = 20 + rng.normal(0, 0.2, rows) + 5 * (rng.random(rows) < 0.001)
    temperatures = pd.DataFrame({"ts": begin + pd.to_timedelta(days, "min"), "celsius": np.round(celsius, 2)})
    return {"clicks": clicks, "prices": prices, "temperatures": temperatures}


def benchmark(rows: int, seed: int) -> dict[str, Any]:
    """Returns the seconds of the first and the second run of each question, and the number of its rows."""
    given = tables(rows, seed)
    found = {}
    for name, text in questions(PAGE.read_text(encoding="utf-8")).items():
        seconds, processor = [], []
        for _ in range(2):
            began = time.perf_counter(), time.process_time()
            count = len(hybrid.sql(text, **given))
            seconds.append(round(time.perf_counter() - began[0], 3))
            processor.append(round(time.process_time() - began[1], 3))
        found[name] = {"rows": count, "first_s": seconds[0], "second_s": seconds[1], "processor_s": processor[1]}
        print(f"| {name} | {count:,} | {seconds[1]} | {processor[1]} |", file=sys.stderr, flush=True)
    return {"benchmark": "tutorial", "machine": answers.machine(), "versions": answers.versions(), "rows": rows,
            "seed": seed, "questions": found}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tutorial", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    print("| question | rows | seconds | of processor |\n|---|---:|---:|---:|", file=sys.stderr)
    result = benchmark(options.rows, options.seed)
    print(json.dumps(result, indent=2))
    return 0 if all(question["rows"] for question in result["questions"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
