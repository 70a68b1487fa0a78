"""The experiments 5 and 6 of [LIVE-ARCHIVE]: partial matches that leave memory, over the match ratio and the data size.

An event of kind 1 begins a partial match with a key of its own. With the chance of the match ratio an event of kind 2
follows after SHORT at most, and one of kind 3 after LONG at most behind that, and that is a match; otherwise nothing
follows, and the partial match is kept until WITHIN is over. So there are partial matches that are old and will be asked
for, and others that are young and never will be.

What fits in memory is a number of partial matches (`fits`), the same for all ratios: a third more than wait for an
event that will come where the ratio is 1, so that a policy that knows has room. WITHIN is as long as makes `pressure`
times as many as fit where the ratio is a half.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from archive.partials import PartialStore
from benchmarks import answers
from matching.batch import EventBatch, Int64Array
from matching.feed import Feed, Member
from matching.spill import Policy, Spill
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema
from simulator.scenario import generator

SCHEMA = Schema(
    "e", (Field("ts", "TIMESTAMP"), Field("id", "BIGINT"), Field("kind", "BIGINT"), Field("v", "BIGINT")), "ts", ("id",)
)
QUERY = """SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY id ORDER BY ts MEASURES A.ts AS a, C.ts AS c
    PATTERN (A B C) WITHIN INTERVAL '{within}' MICROSECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS kind = 1, B AS kind = 2 AND v >= A.v, C AS kind = 3 AND v >= A.v)"""
BATCH_ROWS = 8_192
#: Microseconds between two beginnings, on average; and how long the next events take at most, in beginnings.
EVERY_US = 1_000
SHORT = 0.1
#: More than wait for something at the most: some of what fits goes again at once.
ROOM = 1.6
RATIOS = tuple(i / 10 for i in range(1, 11))
POLICIES = (*Policy,)

Result = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """events: about so many; ratio: of beginnings that become a match; fits: partial matches that fit in memory;
    pressure: how many times as many there are where the ratio is a half."""

    events: int
    ratio: float
    fits: int
    pressure: float
    seed: int

    @property
    def long_us(self) -> int:
        """Within which the last event follows: half of it on average."""
        return int(2 * self.fits / ROOM * EVERY_US)

    @property
    def within_us(self) -> int:
        return int(2 * self.pressure * self.fits * EVERY_US)


def events_of(setting: Setting) -> EventBatch:
    """In order of time."""
    rng = generator(setting.seed)
    begun = int(setting.events / (1 + 2 * setting.ratio))
    first = np.cumsum(rng.integers(1, 2 * EVERY_US, begun))
    goes_on = np.flatnonzero(rng.random(begun) < setting.ratio)
    short = int(SHORT * setting.long_us)
    second = first[goes_on] + rng.integers(1, short, len(goes_on))
    third = second + rng.integers(1, setting.long_us, len(goes_on))
    ts = np.concatenate([first, second, third])
    ids = np.concatenate([np.arange(begun), goes_on, goes_on])
    kind = np.repeat([1, 2, 3], [begun, len(goes_on), len(goes_on)])
    order = np.argsort(ts, kind="stable")
    ts, ids, kind = ts[order], ids[order], kind[order]
    columns = pa.record_batch({"ts": pa.array(ts, pa.timestamp("us")), "id": ids, "kind": kind, "v": ids % 1000})
    at = np.arange(len(ts))
    return EventBatch(columns, ts, np.zeros(len(ts), np.int32), at, at)


def plan_of(setting: Setting) -> Plan:
    return bind(parse(QUERY.format(within=setting.within_us)), lambda _: SCHEMA).factors[0].plan


def bytes_each() -> float:
    """What a partial match takes of memory, about: half of them with one event, half with two."""
    setting = Setting(3_000, 1.0, 2_000, 1.0, 1)
    feed = Feed(SCHEMA)
    member = feed.add(plan_of(setting), 0)
    events = events_of(setting)
    some = events.take(np.flatnonzero(events.columns.column("kind").to_numpy() < 3))
    feed.push(some, None)
    stats = member.spill
    return stats.bytes / stats.runs


def run(setting: Setting, policy: Policy | None, limit_bytes: int, events: EventBatch) -> Result:
    """One run over all events; policy None: with no limit."""
    with tempfile.TemporaryDirectory() as directory:
        store = PartialStore(directory)
        feed = Feed(SCHEMA, spill=None if policy is None else Spill(limit_bytes, store, policy))
        member, rows, digest, most = feed.add(plan_of(setting), 0), 0, 0, 0
        begin, processor = time.perf_counter(), time.process_time()
        for at in range(0, len(events), BATCH_ROWS):
            batch = events.slice(at, min(at + BATCH_ROWS, len(events)))
            feed.push(batch, int(batch.ts_us[-1]))
            found, part = taken(member)
            rows, digest = rows + found, (digest + part) % (1 << 61)
            most = max(most, member.spill.bytes if at % (32 * BATCH_ROWS) == 0 else 0)
        seconds, processor = time.perf_counter() - begin, time.process_time() - processor
        stats = member.spill
        assert member.failure is None
        store.close()
    return {
        "seconds": seconds, "processor_seconds": processor, "matches": rows, "hash": f"{digest:x}",
        "misses": stats.read_back, "written": stats.written, "out": stats.out, "bytes": most,
    }  # fmt: skip


def taken(member: Member) -> tuple[int, int]:
    """How many matches, and a hash of their events that does not depend on their order."""
    rows, digest = 0, 0
    for matches in member.take_found():
        rows += len(matches)
        bounds, offset = matches.event_bounds, matches.event_offset
        first, last = offset[bounds[:-1]], offset[bounds[1:] - 1]
        digest += int(mixed(first * 3 + last).sum())
    return rows, digest


def mixed(values: Int64Array) -> Int64Array:
    h = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return ((h ^ (h >> np.uint64(29))) >> np.uint64(24)).astype(np.int64)


def experiments(
    events: int, sizes: Sequence[int], ratios: Sequence[float], fits: int, pressure: float, seed: int, repeat: int,
    say: Say,
) -> Result:  # fmt: skip
    """Both. events: of the first; sizes: of the second, at a ratio of a half."""
    small = Setting(20_000, 0.5, 500, 4.0, 1)
    run(small, Policy.DUE, 100_000, events_of(small))  # compiles
    limit = int(fits * bytes_each())
    result: Result = {
        "benchmark": "spill", "machine": answers.machine(), "versions": answers.versions(), "events": events,
        "fits": fits, "pressure": pressure, "limit_bytes": limit, "seed": seed, "repeat": repeat,
        "by_ratio": [], "by_size": [], "disagreements": [],
    }  # fmt: skip
    for name, settings in (
        ("by_ratio", [Setting(events, ratio, fits, pressure, seed) for ratio in ratios]),
        ("by_size", [Setting(size, 0.5, fits, pressure, seed) for size in sizes]),
    ):
        for setting in settings:
            measured = measure(setting, limit, repeat, say)
            if len({(one["matches"], one["hash"]) for one in measured.values()}) != 1:
                result["disagreements"].append(f"{setting}: {measured}")
            result[name].append({"ratio": setting.ratio, "events": setting.events, "policies": measured})
    return result


def measure(setting: Setting, limit: int, repeat: int, say: Say) -> dict[str, Result]:
    """All policies in turn, so that what disturbs one disturbs all; of each the median time."""
    batch = events_of(setting)
    runs: dict[str, list[Result]] = {}
    for _ in range(repeat):
        for policy in (None, *POLICIES):
            name = "unlimited" if policy is None else policy.value
            runs.setdefault(name, []).append(run(setting, policy, limit, batch))
    out = {}
    for name, results in runs.items():
        median = sorted(results, key=lambda r: r["processor_seconds"])[len(results) // 2]
        out[name] = median
        say(f"{setting.events:,} events, ratio {setting.ratio}, {name}: {median['seconds']:.2f} s, "
            f"{median['processor_seconds']:.2f} s of processor, "
            f"{median['misses']:,} misses, {median['written']:,} written, {median['matches']:,} matches")  # fmt: skip
    return out
