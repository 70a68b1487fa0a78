"""One query that counts trends beside hand-written numba of the same exactness (`trends_by_hand.py`).

    python -m benchmarks.trends [--rows 1_000_000] [--only "trips"] [--no-pin] > result.json

Two patterns in tumbling windows: A+ B with the count of its trends, and SEQ(S, (SEQ(P, T))+, D) with their count and a
sum over T. `kernel`: from dense codes of types and partitions to the numbers of closed windows. `rows`: from Arrow to
the rows of the query, by the matcher, in batches of 65,536; `sql`: by `hybrid.sql`. Prints one JSON object with the
median processor seconds of each, taken in turns, and their ratio to those by hand; exits with 1 if rows differ.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import hybrid
from benchmarks import answers, trends_by_hand
from benchmarks.v_pattern import one_core, stopwatch
from matching.batch import EventBatch
from matching.engines.choose import choose_engine
from matching.engines.engine import EnginePlan
from matching.engines.run_trends import RunTrends
from matching.matcher import make_matcher
from matching.purpose import Purpose
from matching.store import RowStore
from query.plan.plan import Plan
from query.schema import Field, Schema
from simulator.scenario import START_US, TIMESTAMP, generator

BATCH_ROWS = 65_536
#: Turns of which the median counts; one before them loads the kernels.
REPEAT = 5
WITHIN_US = 60_000_000
EVENTS = Schema(
    "events", (Field("ts", "TIMESTAMP"), Field("type", "VARCHAR"), Field("key", "INTEGER"), Field("v", "BIGINT")),
    time="ts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A query. types: of events, by their codes; shares: of the events, of each type; columns: of the rows. by_hand:
    its kernel; cells: that this keeps for each partition."""

    text: str
    types: str
    shares: tuple[float, ...]
    columns: tuple[str, ...]
    by_hand: Callable[..., int]
    cells: int


QUESTIONS = {
    "A+ B": Asked(
        "RETURN key, COUNT(*) AS n FROM events TYPE BY type PATTERN SEQ(A+ a, B b) WHERE [key] GROUP BY key "
        "WITHIN 60 SECONDS",
        "AB", (0.95, 0.05), ("window_start", "key", "n"), trends_by_hand.kleene, 2,
    ),
    "trips": Asked(
        "RETURN key, COUNT(*) AS n, SUM(t.v) AS s FROM events TYPE BY type "
        "PATTERN SEQ(S s, (SEQ(P p, T t))+, D d) WHERE [key] GROUP BY key WITHIN 60 SECONDS",
        "SPTD", (0.05, 0.45, 0.45, 0.05), ("window_start", "key", "n", "s"), trends_by_hand.trips, 7,
    ),
}  # fmt: skip
#: Partitions, and events of each in a window.
SIZES = ((1, 20), (1, 250), (1, 5_000), (100, 20), (100, 250), (100, 5_000), (10_000, 20))


@dataclass(frozen=True, slots=True)
class Coded:
    """Events as arrays: partition and label, int64 codes; times and values. For the engine, mask: the bit of each
    label; valid: True, for each value."""

    partition: np.ndarray
    label: np.ndarray
    ts: np.ndarray
    values: np.ndarray
    mask: np.ndarray
    valid: np.ndarray

    def __len__(self) -> int:
        return len(self.ts)


def drawn(asked: Asked, rows: int, partitions: int, events: int, seed: int) -> Coded:
    """Events at equal distances, of random types and partitions. events: of a partition in a window, on average."""
    rng = generator(seed)
    ts = START_US + np.arange(rows, dtype=np.int64) * WITHIN_US // (events * partitions)
    label = rng.choice(len(asked.types), rows, p=asked.shares).astype(np.int64)
    partition, values = rng.integers(0, partitions, rows), rng.integers(-20, 80, rows)
    return Coded(partition, label, ts, values, np.int64(1) << label, np.ones((1, rows), np.bool_))


def as_arrow(asked: Asked, coded: Coded) -> pa.Table:
    return pa.table({
        "ts": pa.array(coded.ts).view(TIMESTAMP),
        "type": pa.array(list(asked.types)).take(pa.array(coded.label)),
        "key": pa.array(coded.partition.astype(np.int32)),
        "v": pa.array(coded.values),
    })  # fmt: skip


# ---- by hand


#: Partitions and windows of rows, and their numbers: int64 (rows, numbers, limbs).
Numbers = tuple[np.ndarray, np.ndarray, np.ndarray]


def kernel_by_hand(
    asked: Asked, partition: np.ndarray, label: np.ndarray, ts: np.ndarray, values: np.ndarray, partitions: int
) -> Numbers:
    most = int(min(len(ts), ((ts[-1] - ts[0]) // WITHIN_US + 2) * partitions))
    limbs = 2
    while True:
        cells = np.zeros((asked.cells, partitions, limbs), np.int64)
        width, live = np.zeros(partitions, np.int64), np.zeros(partitions, np.int64)
        out_partition, out_window = np.empty(most, np.int64), np.empty(most, np.int64)
        out = np.empty((most, len(asked.columns) - 2, limbs), np.int64)
        found = asked.by_hand(
            partition, label, ts, values, WITHIN_US, limbs, cells, width, live, out_partition, out_window, out
        )
        if found >= 0:
            return out_partition[:found], out_window[:found], out[:found]
        limbs *= 2


def rows_by_hand(asked: Asked, events: pa.Table) -> pa.Table:
    type = events["type"].combine_chunks().dictionary_encode()
    key = events["key"].combine_chunks().dictionary_encode()
    codes = np.array([asked.types.index(name) for name in type.dictionary.to_pylist()])
    partition, window, numbers = kernel_by_hand(
        asked, key.indices.to_numpy().astype(np.int64), codes[type.indices.to_numpy()],
        events["ts"].combine_chunks().view(pa.int64()).to_numpy(), events["v"].to_numpy(), len(key.dictionary),
    )  # fmt: skip
    start = pa.array(window * WITHIN_US).view(TIMESTAMP)
    columns = {"window_start": start, "key": key.dictionary.take(pa.array(partition))}
    for k, name in enumerate(asked.columns[2:]):
        of = numbers[:, k]
        columns[name] = pa.array([
            str(int.from_bytes(row, "little", signed=True)) for row in map(np.ndarray.tobytes, of)
        ], pa.string())  # fmt: skip
    return pa.table(columns)


# ---- through the engine


def kernel_of_engine(chosen: EnginePlan, coded: Coded, partitions: int) -> Numbers:
    engine = chosen.make()
    assert isinstance(engine, RunTrends)
    store = RowStore({}, (), pa.schema([]), False)
    store.ts, store.partition = coded.ts, coded.partition
    engine.reserve(partitions)
    values = coded.values.reshape(1, -1)
    engine.run(store, slice(0, len(coded)), coded.mask, values, coded.valid)
    engine.finish(partitions)
    found = engine.windows()
    return found.partition, found.window, found.whole


def rows_of_engine(plan: Plan, events: pa.Table) -> pa.Table:
    matcher = make_matcher(plan, purpose=Purpose.ROWS)
    found, first = [], 0
    for columns in events.to_batches(max_chunksize=BATCH_ROWS):
        ts = columns.column("ts").view(pa.int64()).to_numpy()
        at = np.arange(first, first + len(ts), dtype=np.int64)
        found.append(matcher.push(EventBatch(columns, ts, np.zeros(len(ts), np.int32), at, at)).rows)
        first += len(ts)
    return pa.concat_tables([*found, matcher.advance(None).rows])


def by_sql(asked: Asked, events: pa.Table) -> pa.Table:
    return hybrid.sql(asked.text, events=events).arrow()


# ---- measured


def in_turns(contenders: dict[str, Callable[[], object]], repeat: int) -> tuple[dict[str, float], dict[str, object]]:
    """Returns the median processor seconds of each, and what each has returned."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    found: dict[str, object] = {}
    gc.collect()
    gc.freeze()  # what importing has left is looked through before no run
    for turn in range(repeat + 1):
        for name, run in contenders.items():
            found.pop(name, None)
            gc.collect()
            stop = stopwatch()
            found[name] = run()
            _, cpu_seconds = stop()
            if turn:
                times[name].append(cpu_seconds)
    return {name: statistics.median(taken) for name, taken in times.items()}, found


def hash_of(rows: pa.Table, columns: tuple[str, ...]) -> str:
    """Returns the hash of rows, with keys and numbers as text: digits come in several types."""
    shown = {name: rows[name] if name == columns[0] else pc.cast(rows[name], pa.string()) for name in columns}
    return answers.fingerprint(pa.table(shown), list(columns))


def case(asked: Asked, rows: int, partitions: int, events: int, seed: int, repeat: int) -> dict[str, object]:
    coded = drawn(asked, rows, partitions, events, seed)
    table = as_arrow(asked, coded)
    plan = hybrid.plan(asked.text, {"events": EVENTS}).factors[0].plan
    chosen = choose_engine(plan, Purpose.ROWS)
    contenders: dict[str, Callable[[], object]] = {
        "kernel by hand": lambda: kernel_by_hand(
            asked, coded.partition, coded.label, coded.ts, coded.values, partitions
        ),
        "kernel": lambda: kernel_of_engine(chosen, coded, partitions),
        "rows by hand": lambda: rows_by_hand(asked, table),
        "rows": lambda: rows_of_engine(plan, table),
        "sql": lambda: by_sql(asked, table),
    }
    seconds, found = in_turns(contenders, repeat)
    answered: dict[str, pa.Table] = {name: found[name] for name in ("rows by hand", "rows", "sql")}  # type: ignore[misc]
    hashes = {name: hash_of(answer, asked.columns) for name, answer in answered.items()}
    by_hand = answered["rows by hand"]
    counted: dict[str, int] = {name: len(found[name][0]) for name in ("kernel by hand", "kernel")}  # type: ignore[index]
    matches = {name: len(answer) for name, answer in answered.items()} | counted
    return {
        "rows": rows, "partitions": partitions, "events": events,
        "digits": pc.max(pc.utf8_length(by_hand["n"])).as_py() or 0,
        "cpu_seconds": {name: round(taken, 5) for name, taken in seconds.items()},
        "nanoseconds_an_event": {name: round(1e9 * taken / rows, 1) for name, taken in seconds.items()},
        "ratios": {
            "kernel": round(seconds["kernel"] / seconds["kernel by hand"], 2),
            "rows": round(seconds["rows"] / seconds["rows by hand"], 2),
            "sql": round(seconds["sql"] / seconds["rows by hand"], 2),
        },
        "matches": matches, "hash": hashes,
        "agree": len({*hashes.values()}) == len({*matches.values()}) == 1,
    }  # fmt: skip


def benchmark(rows: int, seed: int, repeat: int, only: str, progress: bool) -> dict[str, object]:
    """The object that is printed. only: a word of the labels of the cases that are run."""
    cases: dict[str, dict[str, object]] = {}
    for name, asked in QUESTIONS.items():
        for partitions, events in SIZES:
            label = f"{name}, {partitions:,} x {events:,}"
            if only in label:
                found = cases[label] = case(asked, rows, partitions, events, seed, repeat)
                if progress:
                    print(f"{label:<22}{found['nanoseconds_an_event']} {found['ratios']}", file=sys.stderr, flush=True)
    return {
        "benchmark": "trends", "machine": answers.machine(), "versions": answers.versions(), "rows": rows, "seed": seed,
        "median_of": repeat, "cases": cases, "agree": all(found["agree"] for found in cases.values()),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trends", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="events of each case (default 1_000_000)")
    parser.add_argument("--only", default="", metavar="WORD", help="only the cases with this in their label")
    parser.add_argument("--seed", type=int, default=1, help="of the events (default 1)")
    parser.add_argument("--repeat", type=int, default=REPEAT, help="turns; the median counts (default 5)")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    options = parser.parse_args(arguments)
    with one_core(not options.no_pin):
        result = benchmark(options.rows, options.seed, options.repeat, options.only, progress=True)
    print(json.dumps(result, indent=2))
    return 0 if result["agree"] else 1


if __name__ == "__main__":
    sys.exit(main())
