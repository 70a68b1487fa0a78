"""One layer beside a plain pattern: a named pattern alone, without a box, and the same pattern written out.

The two take turns at each push, or statement, so that what else runs on the machine meets both; the processor time of
one by that of the other is a ratio, and the median of those of all rounds is told."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

import hybrid
from benchmarks import answers
from benchmarks.hierarchy.shared import KEYS, SCHEMA, VISIT, stream
from benchmarks.v_pattern import one_core
from hybrid.database.database import Database
from matching.batch import EventBatch

#: Events of a push.
PUSHES = (1_000, 10_000)
EVENTS = 100_000
#: By what is shown: the named pattern, and the plain one of the same columns.
SHOWN = {
    "its columns": ("SELECT k, xv, yv FROM visit", ""),
    "its columns and times": ("SELECT * FROM visit", ", FIRST(ts) AS t0, LAST(ts) AS t1"),
}
#: A named and a plain pattern.
Pair = tuple[str, str]


def texts(shown: str, keys: int) -> Pair:
    """Returns the two statements."""
    named, times = SHOWN[shown]
    return named, VISIT.format(window=20 * keys, more=times)


def opened(batch: EventBatch, keys: int) -> Database:
    """Returns a database with the named pattern and the stream, still without events."""
    db = hybrid.connect()
    types = {field.name: field.type for field in SCHEMA.fields}
    db.create_stream(SCHEMA.name, types, time="ts")
    db.create_pattern("visit", VISIT.format(window=20 * keys, more=""))
    return db


def live(pair: Pair, batch: EventBatch, rows: int, keys: int, turn: int) -> tuple[tuple[float, float], list[pa.Table]]:
    """Pushes events to two live queries in databases of their own. Returns the processor time of each and its rows."""
    with opened(batch, keys) as named, opened(batch, keys) as plain:
        alerts = [db.watch(text) for db, text in zip((named, plain), pair, strict=True)]
        seconds, found = [0.0, 0.0], [[], []]
        for i, start in enumerate(range(0, len(batch), rows)):
            columns = batch.columns.slice(start, rows)
            for side in ((0, 1), (1, 0))[(i + turn) % 2]:
                begun = time.process_time()
                (named, plain)[side].push(SCHEMA.name, columns)
                found[side].append(alerts[side].take())
                seconds[side] += time.process_time() - begun
    return (seconds[0], seconds[1]), [pa.concat_tables(tables) for tables in found]


def statements(pair: Pair, db: Database, turn: int) -> tuple[tuple[float, float], list[pa.Table]]:
    """Runs the two statements over the same events. Returns as `live`."""
    seconds, found = [0.0, 0.0], [None, None]
    for side in ((0, 1), (1, 0))[turn % 2]:
        begun = time.process_time()
        found[side] = db.sql(pair[side]).arrow()
        seconds[side] += time.process_time() - begun
    return (seconds[0], seconds[1]), found


def one_layer(
    pushes: Sequence[int], events: int, repeat: int, seed: int, pin: bool, say: Callable[[str], None], keys: int = KEYS
) -> dict[str, Any]:
    """Returns the object that is printed: for each way to run the two the median of the ratios of `repeat` rounds.
    disagreements: ways in which the two have other rows."""
    batch = stream(events, keys, seed)
    results, wrong = [], []
    say(f"{'run':<16}{'shown':<24}{'plain, s':>10}{'named, s':>10}{'times':>8}{'middle half':>16}{'rows':>8}")
    with one_core(pin), opened(batch, keys) as db:
        db.push(SCHEMA.name, batch.columns)
        db.advance(SCHEMA.name, None)
        for shown in SHOWN:
            pair = texts(shown, keys)
            ways: list[tuple[str, Callable[[int], tuple[tuple[float, float], list[pa.Table]]]]] = [
                (f"push {rows:,}", lambda turn, rows=rows, pair=pair: live(pair, batch, rows, keys, turn))
                for rows in pushes
            ]
            ways.append(("statement", lambda turn, pair=pair: statements(pair, db, turn)))
            for way, act in ways:
                act(0)  # loads what the first run loads
                rounds = [act(turn) for turn in range(repeat)]
                if not all(found[0].equals(found[1].cast(found[0].schema)) for _, found in rounds):
                    wrong.append(f"{way}, {shown}")
                ratios = sorted(named / plain for (named, plain), _ in rounds)
                low, _, high = statistics.quantiles(ratios, n=4) if repeat > 1 else (ratios[0],) * 3
                told = {
                    "run": way, "shown": shown, "times": round(statistics.median(ratios), 3),
                    "middle_half": [round(low, 3), round(high, 3)],
                    "plain_cpu_seconds": round(statistics.median(s[1] for s, _ in rounds), 4),
                    "named_cpu_seconds": round(statistics.median(s[0] for s, _ in rounds), 4),
                    "rows": rounds[0][1][0].num_rows,
                }  # fmt: skip
                results.append(told)
                say(f"{way:<16}{shown:<24}{told['plain_cpu_seconds']:>10.4f}{told['named_cpu_seconds']:>10.4f}"
                    f"{told['times']:>8.3f}{f'{low:.3f} to {high:.3f}':>16}{told['rows']:>8,}")  # fmt: skip
    return {
        "benchmark": "hierarchy, one layer", "machine": answers.machine(), "versions": answers.versions(),
        "median_of": repeat, "events": events, "keys": keys, "results": results, "disagreements": wrong,
    }  # fmt: skip
