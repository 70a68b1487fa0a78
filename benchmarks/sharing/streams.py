"""The streams of [SHARING] section 4.1.1, by seed: like its stock and bus data, simulated types, and its deliveries.

All have `ts`, `type`, a key by which queries partition, and whole numbers as attributes: sums of doubles would differ
in their last digits between contenders that add in different orders. Rates change from phase to phase, as the paper's
do, by 3 to 5 times: in each phase a type either has its rate or so many times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from query.schema import Field, Schema
from simulator.scenario import MINUTE_US, SECOND_US, START_US, TIMESTAMP, generator, numbered

#: By how many times a rate changes from phase to phase.
CHANGE = (3.0, 5.0)
#: Sectors, areas, keys or drivers.
KEYS = 512
#: Phases of a stream: with as many events as benchmarks have by default, each is longer than a window.
PHASES = 3
#: Unique trips of the paper's bus data.
TRIPS = 4_368

STOCK = Schema(
    "stock",
    (Field("ts", "TIMESTAMP"), Field("type", "VARCHAR"), Field("company", "VARCHAR"), Field("sector", "BIGINT"),
     Field("open", "BIGINT"), Field("high", "BIGINT"), Field("low", "BIGINT"), Field("close", "BIGINT"),
     Field("volume", "BIGINT")),
    time="ts", keys=("sector",),
)  # fmt: skip
BUS = Schema(
    "bus",
    (Field("ts", "TIMESTAMP"), Field("type", "VARCHAR"), Field("trip", "BIGINT"), Field("area", "BIGINT"),
     Field("congestion", "BIGINT"), Field("delay", "BIGINT")),
    time="ts", keys=("area",),
)  # fmt: skip
DELIVERY = Schema(
    "delivery",
    (Field("ts", "TIMESTAMP"), Field("type", "VARCHAR"), Field("driver_id", "BIGINT"), Field("district", "VARCHAR"),
     Field("speed", "BIGINT"), Field("place", "VARCHAR"), Field("duration", "BIGINT")),
    time="ts", keys=("driver_id",),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stream:
    """events: in order of time, with the columns of `schema`. types: of the column `type`. levels: by numeric
    attribute, those of its quartiles that some values exceed. phases_us: the times at which phases begin."""

    schema: Schema
    events: pa.Table
    types: tuple[str, ...]
    levels: Mapping[str, tuple[int, ...]]
    phases_us: tuple[int, ...]

    @property
    def key(self) -> str:
        return self.schema.keys[0]


def stock(seed: int, events: int, phases: int = PHASES, keys: int = KEYS, types: int = 16) -> Stream:
    """Returns ticks by the minute. A company has one at most in each minute, and in the time of its rate (0.05 to 0.2 a
    minute, times its change in some phases); the companies of a minute come in any order.

    `type`: each `sector`, the key, has one company of each type; with one sector types are companies, as in the paper,
    which has 3,258 of them. close: a random walk in
    cents with steps of 0.2 %; open: the close before; high and low: at most 10 cents above and below both. volume:
    log-normal, in lots of 100.
    """
    rng = generator(seed)
    companies = keys * types
    share = rng.uniform(0.05, 0.2, companies)
    times_us, company, starts = _arrivals(rng, events, share, np.arange(companies) % types, phases, by_minute=True)
    step = rng.standard_normal(events)
    first = np.exp(rng.normal(np.log(5_000), 0.6, companies)).astype(np.int64) + 200
    close = np.maximum(first[company] + _walked(company, np.rint(step * 0.002 * first[company]).astype(np.int64)), 100)
    before = _before(company, close, first)
    above, below = rng.integers(0, 11, (2, events))
    lots = 1 + np.exp(rng.standard_normal(events) * 1.1 + 0.5).astype(np.int64)
    names = numbered("S", range(types), 2 if types <= 100 else 4)
    columns = {
        "ts": _times(times_us), "type": names.take(pa.array(company % types)),
        "company": numbered("C", range(companies), 6).take(pa.array(company)), "sector": company // types,
        "open": before, "high": np.maximum(before, close) + above,
        "low": np.minimum(before, close) - below, "close": close, "volume": lots * 100,
    }  # fmt: skip
    return _stream(STOCK, columns, names, ("close", "volume"), starts)


def bus(seed: int, events: int, phases: int = PHASES, keys: int = KEYS, lines: int = 16) -> Stream:
    """Returns positions of buses. `type`: the line. A bus for each line and area reports 1 to 3 times in 20 minutes,
    times the change of the line in some phases; times are in microseconds.

    trip: of the TRIPS of the paper, a new one each hour. `area`, the key: where the bus is; it moves to the next one
    every 40 minutes. congestion: 1 for a third of all lines and quarters of an hour, else 0. delay, in seconds: a
    random walk of the trip, which rises by 20 a report in congestion and else falls by 10.
    """
    rng = generator(seed)
    buses = lines * keys
    line = np.arange(buses) % lines
    times_us, which, starts = _arrivals(rng, events, rng.uniform(0.05, 0.15, buses), line, phases)
    minute = (times_us - START_US) // MINUTE_US
    quarters = int(minute[-1]) // 15 + 1 if events else 1
    congestion = (rng.random((lines, quarters)) < 1 / 3)[line[which], minute // 15].astype(np.int64)
    step = np.rint(rng.normal(0, 30, events) + np.where(congestion, 20, -10)).astype(np.int64)
    trip = which + buses * (minute // 60)
    names = numbered("L", range(lines), 2)
    columns = {
        "ts": _times(times_us), "type": names.take(pa.array(line[which])), "trip": trip % TRIPS,
        "area": (which // lines + minute // 40) % keys, "congestion": congestion, "delay": _walked(trip, step),
    }  # fmt: skip
    return _stream(BUS, columns, names, ("congestion", "delay"), starts)


def simulated(
    seed: int, events: int, phases: int = PHASES, keys: int = KEYS, types: int = 16, attributes: int = 2,
    largest: int = 1000,
) -> Stream:  # fmt: skip
    """Returns events of types A, B, C and so on (26 at most) with attributes a0, a1, ..., uniform from 0 to `largest`.
    A type comes 0.05 to 0.2 times a minute for each key, times its change in some phases. The paper's: 5,000 events."""
    rng = generator(seed)
    of = np.arange(types * keys) % types
    times_us, which, starts = _arrivals(rng, events, rng.uniform(0.05, 0.2, types)[of], of, phases)
    names = pa.array([chr(ord("A") + i) for i in range(types)])
    numbers = tuple(f"a{i}" for i in range(attributes))
    kinds = [Field("ts", "TIMESTAMP"), Field("type", "VARCHAR"), Field("k", "BIGINT")]
    schema = Schema("simulated", (*kinds, *(Field(n, "BIGINT") for n in numbers)), time="ts", keys=("k",))
    columns = {"ts": _times(times_us), "type": names.take(pa.array(which % types)), "k": which // types}
    columns |= {n: rng.integers(0, largest + 1, events) for n in numbers}
    return _stream(schema, columns, names, numbers, starts)


def delivery(seed: int, events: int, phases: int = 1, keys: int = KEYS, districts: int = 8) -> Stream:
    """Returns the orders of drivers, who are the keys. A driver stays in one district.

    A driver has one order after the other, 1 to 15 minutes apart: AppOrder (60 %) or WebOrder, Request 1 to 3 minutes
    later, then 1 to 4 rounds of a Pickup and 1 to 3 Travels of 2 to 8 minutes each, then Dropoff (85 %) or Cancel.
    speed of a Travel: 3 to 60, in a jam, which a third of all orders have, 3 to 12; duration of a Travel: the seconds
    that it took; place of a Dropoff: pool, home or office. Elsewhere they are null. phases: 1, as rates do not change.
    """
    if phases != 1:
        raise ValueError("the rates of deliveries stay the same")
    rng = generator(seed)
    rows: list[tuple[int, str, int, int | None, str | None, int | None]] = []
    free_us = START_US + rng.integers(0, 30 * MINUTE_US, keys)
    last_us = 0
    while len(rows) < events or int(free_us.min()) <= last_us:  # orders overlap: more events than wanted
        if len(rows) >= events and not last_us:
            last_us = sorted(row[0] for row in rows)[events - 1]
        driver = int(free_us.argmin())
        us = int(free_us[driver])
        rows.append((us, "AppOrder" if rng.random() < 0.6 else "WebOrder", driver, None, None, None))
        us += int(rng.integers(1, 3 * 60)) * SECOND_US
        rows.append((us, "Request", driver, None, None, None))
        fastest = 13 if rng.random() < 1 / 3 else 61
        for _ in range(int(rng.integers(1, 5))):
            us += int(rng.integers(10, 3 * 60)) * SECOND_US
            rows.append((us, "Pickup", driver, None, None, None))
            for _ in range(int(rng.integers(1, 4))):
                took = int(rng.integers(2 * 60, 8 * 60))
                us += took * SECOND_US
                rows.append((us, "Travel", driver, int(rng.integers(3, fastest)), None, took))
        us += int(rng.integers(10, 60)) * SECOND_US
        place = ("pool", "home", "office")[int(rng.integers(0, 3))]
        done = rng.random() < 0.85
        rows.append((us, "Dropoff" if done else "Cancel", driver, None, place if done else None, None))
        free_us[driver] = us + int(rng.integers(60, 15 * 60)) * SECOND_US
    rows.sort(key=lambda row: (row[0], row[2]))
    times, kinds, who, speed, where, duration = ([row[i] for row in rows[:events]] for i in range(6))
    district = rng.integers(0, districts, keys)
    columns = {
        "ts": _times(np.array(times, np.int64)), "type": pa.array(kinds, pa.string()),
        "driver_id": pa.array(who, pa.int64()), "district": numbered("D", district[np.array(who, np.int64)], 2),
        "speed": pa.array(speed, pa.int64()), "place": pa.array(where, pa.string()),
        "duration": pa.array(duration, pa.int64()),
    }  # fmt: skip
    types = pa.array(["AppOrder", "WebOrder", "Request", "Pickup", "Travel", "Dropoff", "Cancel"])
    return _stream(DELIVERY, columns, types, ("speed", "duration"), [START_US])


#: By name: seed, numbers of events, of phases and of keys -> stream. More keys are more events a minute.
STREAMS: dict[str, Callable[[int, int, int, int], Stream]] = {
    "stock": stock, "bus": bus, "simulated": simulated, "delivery": delivery,
}  # fmt: skip


def _arrivals(
    rng: np.random.Generator, events: int, rate: np.ndarray, kind: np.ndarray, phases: int, by_minute: bool = False
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Returns times and sources of events, and when phases begin. rate: of each source, per minute; kind: its type, all
    sources of which change together. by_minute: one event at most per source and minute, at its begin."""
    high = rng.uniform(*CHANGE, int(kind.max()) + 1)
    changed = rng.random((phases, len(high))) < 0.5
    changed[0] = False
    rates = rate * np.where(changed, high, 1.0)[:, kind]
    expected = -np.expm1(-rates) if by_minute else rates
    minutes = max(1, round(events / expected.sum()))  # of a phase
    found_us, sources = [], []
    starts, missing, phase = [], events, 0
    while missing > 0:
        start_us = START_US + phase * minutes * MINUTE_US
        if phase < phases:
            starts.append(start_us)
        counts = rng.poisson(rates[min(phase, phases - 1)], (minutes, len(rate)))
        if by_minute:
            counts = np.minimum(counts, 1)
        minute, source = np.divmod(np.repeat(np.arange(counts.size), counts.ravel()), len(rate))
        within = rng.integers(0, MINUTE_US, len(minute))
        order = np.argsort(minute * MINUTE_US + within, kind="stable")[:missing]
        found_us.append(start_us + minute[order] * MINUTE_US + (0 if by_minute else within[order]))
        sources.append(source[order])
        missing -= len(order)
        phase += 1
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *found_us]), np.concatenate([nothing, *sources]), starts


def _grouped(group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the order of rows by group, and where in it groups begin."""
    order = np.argsort(group, kind="stable")
    return order, np.flatnonzero(np.diff(group[order], prepend=-1))


def _walked(group: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Returns for each row the sum of the steps of its group up to it."""
    order, begins = _grouped(group)
    sums = np.cumsum(step[order])
    before = np.r_[0, sums][begins]
    found = np.empty_like(step)
    found[order] = sums - np.repeat(before, np.diff(np.r_[begins, len(step)]))
    return found


def _before(group: np.ndarray, value: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Returns for each row the value of the row before it in its group, or `first` of the group."""
    order, begins = _grouped(group)
    shifted = np.roll(value[order], 1)
    shifted[begins] = first[group[order][begins]]
    found = np.empty_like(value)
    found[order] = shifted
    return found


def _times(us: np.ndarray) -> pa.Array:
    return pa.array(us.astype(np.int64, copy=False)).view(TIMESTAMP)


def _stream(
    schema: Schema, columns: Mapping[str, object], types: pa.Array, numbers: tuple[str, ...], starts: list[int]
) -> Stream:
    table = pa.table({f.name: columns[f.name] for f in schema.fields})
    levels = {}
    for name in numbers:
        values = table[name].drop_null().to_numpy()
        quartiles = sorted({int(v) for v in np.quantile(values, (0.25, 0.5, 0.75))}) if len(values) else [0]
        levels[name] = tuple(v for v in quartiles if v < values.max(initial=1)) or tuple(quartiles)
    return Stream(schema, table, tuple(types.to_pylist()), levels, tuple(starts))
