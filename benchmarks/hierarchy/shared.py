"""Live queries over one named pattern: what many cost beside one, by the number of events of a push, and what the
search of the pattern alone costs, which all of them share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import answers
from benchmarks.hierarchy.contenders import events_sum
from benchmarks.v_pattern import one_core
from hybrid.rows.merged import Merged
from hybrid.watch.merged_feed import shared_input
from matching.batch import EventBatch
from matching.feed import Feed
from matching.hierarchy.searches import Origin, Searches
from matching.ordering import sort_events
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import FactorPlan
from query.schema import Field, Schema
from simulator.scenario import START_US, TIMESTAMP, generator

MILLISECOND_US = 1_000
#: Events of a push.
PUSHES = (100, 1_000, 10_000, 50_000)
KEYS = 1_000
EVENTS = 300_000
SCHEMA = Schema(
    "seen", (Field("ts", "TIMESTAMP"), Field("k", "BIGINT"), Field("s", "VARCHAR"), Field("v", "DOUBLE")), time="ts"
)
#: The pattern that queries have in common.
VISIT = (
    "SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES X.v AS xv, Y.v AS yv{more}"
    " PATTERN (X M+ Y) WITHIN INTERVAL {window} MILLISECOND SELECTION SKIP TILL NEXT MATCH"
    " DEFINE X AS s = 'x', M AS s IN ('e', 'p', 'z') AND v > X.v, Y AS s = 'y')"
)
#: By what the queries are made of: two boxes, a box and an event, a box and an event of another stream, or of another
#: one for each query.
UPPERS = {
    "boxes": ("seen", "(V U)", "V AS PATTERN visit ON yv > {least}, U AS PATTERN visit ON yv < 0.2"),
    "events": ("seen", "(V E)", "V AS PATTERN visit ON yv > {least}, E AS s = 'e' AND v > 0.9"),
    "streams": ("bought", "(V E)", "V AS PATTERN visit ON yv > {least}, E AS v > 0.9"),
    "different": ("bought{i}", "(V E)", "V AS PATTERN visit ON yv > {least}, E AS v > 0.5"),
}


def stream(events: int, keys: int, seed: int) -> EventBatch:
    """Returns the events: one each millisecond."""
    rng = generator(seed)
    kinds = np.array(["x", "y", "e", "p", "z"])[rng.choice(5, events, p=[0.1, 0.1, 0.1, 0.05, 0.65])]
    times = START_US + np.arange(events) * MILLISECOND_US
    columns = pa.RecordBatch.from_pydict({
        "ts": pa.array(times).cast(TIMESTAMP), "k": rng.integers(0, keys, events), "s": kinds, "v": rng.random(events),
    })  # fmt: skip
    at = np.arange(events)
    return EventBatch(columns, times, np.zeros(events, np.int32), at, at)


def queries(kind: str, count: int, keys: int) -> list[FactorPlan]:
    """Returns queries that differ in a condition on the visit that they have in common."""
    source, pattern, defines = UPPERS[kind]
    head = "MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES"
    window = f"WITHIN INTERVAL {20 * keys} MILLISECOND SELECTION SKIP TILL NEXT MATCH DEFINE"
    visit = f"WITH visit AS ({VISIT.format(window=20 * keys, more='')})"
    texts = (
        f"{visit} SELECT * FROM {source.format(i=i)} {head} V.xv AS xv PATTERN {pattern} {window} "
        f"{defines.format(least=0.8 + 0.1 * i / count)})"
        for i in range(count)
    )
    return [bind(parse(text), lambda name: replace(SCHEMA, name=name)).factors[-1] for text in texts]


def read_by(factor: FactorPlan, events: EventBatch, count: int) -> tuple[Schema, EventBatch]:
    """Returns the input of a query: the events or, of one over two streams, those of kind e as the second one, merged
    with the others. Of `count` second streams each has an equal part of these."""
    if not factor.members:
        return SCHEMA, events
    merged, parts = shared_input(factor), []
    of_second = np.asarray(events.columns.column("s")) == "e"
    turn = (np.cumsum(of_second) - 1) % count
    for k, member in enumerate(merged.members):
        number = member.name.removeprefix("bought")
        mine = ~of_second if member.name == "seen" else of_second & (turn == int(number)) if number else of_second
        parts.append(merged.events(k, events.take(np.flatnonzero(mine))))
    return merged.schema, sort_events(EventBatch.concat(parts), merged.schema)


def pushed(
    factors: Sequence[FactorPlan], events: EventBatch, rows: int, count: int = 1
) -> tuple[float, list[tuple[int, int]]]:
    """Pushes events to live queries, so many at a time. Returns the processor time, and of each query the number and a
    hash of its matches. count: see `read_by`."""
    searches, feeds, members = Searches(), dict[Merged | None, tuple[Feed, EventBatch]](), []
    for factor in factors:
        merged = shared_input(factor) if factor.members else None
        if merged not in feeds:
            schema, read = read_by(factor, events, count)
            streams = {m.name: m.name for m in factor.members} or {SCHEMA.name: SCHEMA.name}
            feeds[merged] = Feed(schema, origin=Origin(searches, streams, lambda stream: 0)), read
        members.append(feeds[merged][0].add(factor.plan, 0))
    ahead_us = 1 if factors[0].members else 0  # no event waits for the next push
    found: list[tuple[int, int]] = [(0, 0)] * len(members)
    seconds = 0.0
    for start in range(0, len(events), rows):
        first_us, last_us = (int(events.ts_us[i]) for i in (start, min(start + rows, len(events)) - 1))
        pushes = [
            (feed, read.slice(*np.searchsorted(read.ts_us, [first_us, last_us + 1]).tolist()))
            for feed, read in feeds.values()
        ]
        begun = time.process_time()
        for feed, batch in pushes:
            feed.push(batch, last_us + ahead_us)
        taken = [member.take_found() for member in members]
        seconds += time.process_time() - begun
        for q, matches in enumerate(taken):
            count, total = found[q]
            found[q] = count + sum(map(len, matches)), (total + sum(map(events_sum, matches))) % 2**64
    failures = [member.failure for member in members if member.failure is not None]
    if failures:
        raise failures[0]
    return seconds, found


def searched_alone(events: EventBatch, rows: int, keys: int) -> float:
    """Returns the processor time of a live query over the pattern alone."""
    plan = bind(parse(VISIT.format(window=20 * keys, more="")), lambda name: SCHEMA).factors[-1].plan
    feed = Feed(SCHEMA)
    member = feed.add(plan, 0)
    begun = time.process_time()
    for start in range(0, len(events), rows):
        batch = events.slice(start, min(start + rows, len(events)))
        feed.push(batch, int(batch.ts_us[-1]))
        member.take_found()
    return time.process_time() - begun


def shared(
    count: int, pushes: Sequence[int], events: int, repeat: int, seed: int, pin: bool, say: Callable[[str], None],
    keys: int = KEYS,
) -> dict[str, Any]:  # fmt: skip
    """Returns the object that is printed: for each kind of query and size of a push the processor time of one query and
    of `count`, and that of the pattern alone. disagreements: queries that find other matches beside others than
    alone."""
    results, wrong = [], []
    batch = stream(events, keys, seed)
    say(f"{'queries':<10}{'push':>8}{'one, s':>10}{f'{count}, s':>10}{'times':>8}{'alone, s':>10}{'matches':>10}")
    with one_core(pin):
        for kind in UPPERS:
            plans = queries(kind, count, keys)
            alone = [pushed([plan], batch, max(pushes), count)[1][0] for plan in plans]
            for rows in pushes:
                one, many, visits = [], [], []
                for _ in range(repeat):
                    one.append(pushed(plans[:1], batch, rows, count)[0])
                    seconds, found = pushed(plans, batch, rows, count)
                    many.append(seconds)
                    visits.append(searched_alone(batch, rows, keys))
                    wrong += [f"{kind}, push {rows}, query {q}" for q in range(count) if found[q] != alone[q]]
                told = {
                    "queries": kind, "push": rows, "one_cpu_seconds": round(statistics.median(one), 4),
                    "many_cpu_seconds": round(statistics.median(many), 4),
                    "times": round(statistics.median(m / o for m, o in zip(many, one, strict=True)), 2),
                    "pattern_cpu_seconds": round(statistics.median(visits), 4),
                    "matches": sum(n for n, _ in alone),
                }  # fmt: skip
                results.append(told)
                say(f"{kind:<10}{rows:>8,}{told['one_cpu_seconds']:>10.3f}{told['many_cpu_seconds']:>10.3f}"
                    f"{told['times']:>8.2f}{told['pattern_cpu_seconds']:>10.3f}{told['matches']:>10,}")  # fmt: skip
    return {
        "benchmark": "hierarchy, shared", "machine": answers.machine(), "versions": answers.versions(),
        "median_of": repeat, "queries": count, "events": events, "keys": keys, "results": results,
        "disagreements": wrong,
    }  # fmt: skip
