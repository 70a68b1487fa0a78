"""Six questions of analysts through this engine, beside DuckDB's window functions and Polars.

    python -m benchmarks.analysts [--rows 5_000_000 ...] [--keys 1 1_000 1_000_000] [--orders time key shuffled ties]
                                  [--columns 3 20] [--sources arrow parquet] [--only WORD ...] > result.json

Prints one JSON object, and tables of ratios to standard error. Exits with 1 if two contenders do not find the same
rows. Each contender runs in a process of its own, on one thread; what counts is its processor time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import answers
from benchmarks.analysts.contenders import CONTENDERS, SOURCES, measured, write
from benchmarks.analysts.questions import QUESTIONS
from benchmarks.analysts.rows import ORDERS, events


def asked(
    directory: Path, labels: list[str], rows: int, keys: int, order: str, width: int, source: str,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:  # fmt: skip
    """Returns a sample for each question over rows of one kind."""
    samples = []
    for reads, group in itertools.groupby(labels, key=lambda label: QUESTIONS[label].reads):
        path = directory / "events.parquet"
        write(events(options.seed, rows, keys, order, reads, width), path)
        for label in group:
            results = {
                name: measured(path, label, name, source, order == "ties", options.repeat)
                for name in CONTENDERS if name in options.contenders
            }  # fmt: skip
            hashes = {(r.get("rows"), r.get("hash")) for r in results.values()}
            sample = {"question": label, "rows": rows, "keys": keys, "order": order, "columns": width,
                      "source": source, "contenders": results, "agreed": len(hashes) == 1}  # fmt: skip
            print(line(sample), file=sys.stderr, flush=True)
            samples.append(sample)
    return samples


def ratio(sample: dict[str, Any], measure: str, other: str = "duckdb") -> float | None:
    """Returns the ratio of ours to another contender's; None unless both were measured."""
    ours, theirs = (sample["contenders"].get(name, {}).get(measure) for name in ("hybrid", other))
    return round(ours / theirs, 2) if ours is not None and theirs else None


def line(sample: dict[str, Any]) -> str:
    """Returns a sample as a row of a Markdown table: processor seconds, and peaks of memory in MiB."""
    found = sample["contenders"]
    times = [f"{found[n]['cpu_seconds']:.2f}" if "cpu_seconds" in found.get(n, {}) else "-" for n in CONTENDERS]
    peaks = [str(found[n]["peak_mib"]) if "peak_mib" in found.get(n, {}) else "-" for n in CONTENDERS]
    ratios = [str(ratio(sample, m, n)) for m, n in
              (("cpu_seconds", "duckdb"), ("cpu_seconds", "polars"), ("peak_mib", "duckdb"))]  # fmt: skip
    errors = [f"{name}: {r['error']}" for name, r in found.items() if "error" in r]
    kind = [sample["question"], f"{sample['rows']:,}", f"{sample['keys']:,}", sample["order"], str(sample["columns"]),
            sample["source"]]  # fmt: skip
    end = "" if sample["agreed"] else " NOT THE SAME ROWS " + "; ".join(errors)
    return "| " + " | ".join([*kind, *times, *ratios[:2], *peaks, ratios[2]]) + " |" + end


HEAD = """| question | rows | keys | order | columns | source | hybrid | DuckDB | Polars | to DuckDB | to Polars | MiB | DuckDB | Polars | ratio |
|---|---:|---:|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""  # noqa: E501


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analysts", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000])
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 1_000, 1_000_000])
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS))
    parser.add_argument("--columns", type=int, nargs="+", default=[3], help="3 are read")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=["arrow"])
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--only", nargs="+", choices=list(QUESTIONS), default=list(QUESTIONS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=2, help="runs; the fastest counts (default 2)")
    options = parser.parse_args(arguments)
    labels = [label for label in QUESTIONS if label in options.only]
    samples: list[dict[str, Any]] = []
    print(HEAD, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="analysts_") as directory:
        kinds = itertools.product(options.rows, options.keys, options.orders, options.columns, options.sources)
        for rows, keys, order, width, source in kinds:
            samples += asked(Path(directory), labels, rows, keys, order, width, source, options)
    wrong = [line(sample) for sample in samples if not sample["agreed"]]
    result = {"benchmark": "analysts", "machine": answers.machine(), "versions": answers.versions(),
              "seed": options.seed, "repeat": options.repeat, "samples": samples, "disagreements": wrong}  # fmt: skip
    print(json.dumps(result, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
