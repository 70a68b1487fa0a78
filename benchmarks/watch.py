"""Live queries beside the same statements over a table: `db.watch` with fetches, and `hybrid.sql`.

    python -m benchmarks.watch [--rows 1_000_000] [--only "long matches"] [--no-pin] > result.json

The four queries of benchmarks.peers, and one whose matches are about 100 rows long and begin at every row. Events come
in batches of 100,000: into a database in memory, again with the ids of matches (evidence=True), and into one on disk.
Prints one JSON object with the median processor seconds of each, and their ratio to those of `hybrid.sql`; exits with 1
if they do not give the same rows. One core, as in benchmarks.v_pattern.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile

import numpy as np
import pyarrow as pa

import hybrid
from benchmarks import answers
from benchmarks.peers.questions import CLICKS, READINGS, Drop, Funnel, Path, drop, funnel, path, rise
from benchmarks.v_pattern import one_core, stopwatch
from query.schema import Field, Schema
from simulator import stock
from simulator.scenario import START_US, TIMESTAMP, generator

BATCH_ROWS = 100_000
#: Pairs of runs of which the median counts; one pair before them loads the kernels.
REPEAT = 3

#: The case of LONG.
LABEL = "long matches"
LEVELS = Schema("levels", (Field("ts", "TIMESTAMP"), Field("v", "BIGINT")), time="ts")
LONG = """
SELECT first_v, taken, last_v FROM levels MATCH_RECOGNIZE (
    ORDER BY ts
    MEASURES A.v AS first_v, count(B.*) AS taken, C.v AS last_v
    AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A B+ C)
    WITHIN 400 ROWS
    SELECTION SKIP TILL NEXT MATCH
    DEFINE B AS v < 990, C AS v >= 990
) AS m"""


def levels(seed: int, rows: int) -> pa.Table:
    """Numbers below 1,000 at random, one a second: one in a hundred ends the matches that have begun before it."""
    times = START_US + np.arange(rows, dtype=np.int64) * 1_000_000
    return pa.table({"ts": pa.array(times).view(TIMESTAMP), "v": generator(seed).integers(0, 1000, rows)})


def by_sql(schema: Schema, text: str, events: pa.Table) -> pa.Table:
    return hybrid.sql(text, **{schema.name: events}).arrow()


def by_watch(
    schema: Schema, text: str, events: pa.Table, evidence: bool = False, directory: str | None = None
) -> pa.Table:
    with hybrid.connect(directory) as db:
        db.create_stream(schema.name, {f.name: f.type for f in schema.fields}, time="ts", key=list(schema.keys))
        alerts = db.watch(text, evidence=evidence)
        found = []
        for first in range(0, len(events), BATCH_ROWS):
            db.push(schema.name, events.slice(first, BATCH_ROWS))
            found.append(alerts.take())
        db.advance(schema.name, None)
        return pa.concat_tables([*found, alerts.take()])


def with_ids(schema: Schema, text: str, events: pa.Table) -> pa.Table:
    return by_watch(schema, text, events, evidence=True)


def on_disk(schema: Schema, text: str, events: pa.Table) -> pa.Table:
    with tempfile.TemporaryDirectory() as directory:
        return by_watch(schema, text, events, directory=directory)


def compared(schema: Schema, text: str, columns: tuple[str, ...], events: pa.Table, repeat: int) -> dict[str, object]:
    """Medians of each way, in turns, with the number and the hash of their rows. ratios: to sql."""
    ways = {"sql": by_sql, "watch": by_watch, "ids": with_ids, "disk": on_disk}
    times: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, tuple[int, str]] = {}
    for turn in range(repeat + 1):
        for name, run in ways.items():
            stop = stopwatch()
            rows = run(schema, text, events)
            _, cpu_seconds = stop()
            if turn:
                times[name].append(cpu_seconds)
            found[name] = len(rows), answers.fingerprint(rows, list(columns))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return {
        "events": len(events), "cpu_seconds": {name: round(taken, 4) for name, taken in medians.items()},
        "ratios": {name: round(taken / medians["sql"], 2) for name, taken in medians.items() if name != "sql"},
        "matches": {name: count for name, (count, _) in found.items()},
        "hash": {name: fingerprint for name, (_, fingerprint) in found.items()},
        "agree": len({*found.values()}) == 1,
    }  # fmt: skip


def benchmark(rows: int, seed: int, repeat: int, only: str | None = None) -> dict[str, object]:
    """The object that is printed. only: the label of the one case that is run."""
    result: dict[str, object] = {
        "benchmark": "watch", "machine": answers.machine(), "versions": answers.versions(), "rows": rows, "seed": seed,
    }  # fmt: skip
    questions = {
        "q1": (stock.TICKS, rise()), "q2": (stock.SASE_STOCK, drop(Drop())),
        "q3": (READINGS, path(Path())), "q4": (CLICKS, funnel(Funnel(counted=False))),
    }  # fmt: skip
    cases: dict[str, dict[str, object]] = {}
    for label, (schema, asked) in questions.items():
        if only not in (None, label):
            continue
        events = asked.events(seed, rows, asked.keys)
        cases[label] = compared(schema, asked.text, asked.columns, events, repeat)
    if only in (None, LABEL):
        cases[LABEL] = compared(LEVELS, LONG, ("first_v", "taken", "last_v"), levels(seed, rows), repeat)
    return result | {"cases": cases, "agree": all(case["agree"] for case in cases.values())}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="events of each query (default 1_000_000)")
    parser.add_argument("--only", help=f"one case: q1, q2, q3, q4 or '{LABEL}'")
    parser.add_argument("--seed", type=int, default=1, help="of the data (default 1)")
    parser.add_argument("--repeat", type=int, default=REPEAT, help="pairs of runs; the median counts (default 3)")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    options = parser.parse_args(arguments)
    with one_core(not options.no_pin):
        result = benchmark(options.rows, options.seed, options.repeat, options.only)
    print(json.dumps(result, indent=2))
    return 0 if result["agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
