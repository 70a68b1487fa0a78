"""Highway scenario: toll points at known kilometres read cars, some of which exceed the speed limit between two points.

Stream `tolls(ts TIMESTAMP, car VARCHAR, point BIGINT, km DOUBLE)`. The speed of a reading at point p at time t is

    (km - previous.km) * 3600000000 / (t - previous.t)      in km/h, with times in microseconds,

where previous is the latest reading of the car at point p - 1 with t - 2 hours <= previous.t < t. It is too fast if

    (km - previous.km) * 3600000000 > limit * (t - previous.t).

Kilometres are multiples of 0.5, so both sides of the comparison are integers below 2**53, exact in int64 and in double.
A reading exactly at the limit is not too fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from query.schema import Field, Schema
from simulator.faults import deliver
from simulator.scenario import HOUR_US, MINUTE_US, SECOND_US, START_US, TIMESTAMP, Scenario, generator, numbered

FIELDS = (Field("ts", "TIMESTAMP"), Field("car", "VARCHAR"), Field("point", "BIGINT"), Field("km", "DOUBLE"))

#: The previous reading is in [t - RANGE_US, t).
RANGE_US = 2 * HOUR_US

#: Microseconds in half an hour: half kilometres * HALF_US = kilometres * 3600000000.
HALF_US = 1_800_000_000


def speed_query(limit_kmh: int = 120) -> str:
    """Returns the query of the scenario. NEAREST takes the latest row that meets ON; WHERE then checks its speed."""
    return f"""\
SELECT pl.car, pl.point, pl.ts, r.ts AS previous_ts,
       (pl.km - r.km) * 3600000000 / (epoch_us(pl.ts) - epoch_us(r.ts)) AS speed_kmh
FROM tolls MATCH_RECOGNIZE (
  PARTITION BY car
  ORDER BY ts
  MEASURES T.ts AS ts, T.point AS point, T.km AS km
  ONE ROW PER MATCH
  PATTERN (T)
  DEFINE T AS point > 0
) AS pl
NEAREST JOIN HISTORY OF tolls FROM pl.ts - INTERVAL '2' HOUR TO pl.ts AS r
  ON r.car = pl.car AND r.point = pl.point - 1
WHERE (pl.km - r.km) * 3600000000 > {limit_kmh} * (epoch_us(pl.ts) - epoch_us(r.ts))
"""


@dataclass(frozen=True, slots=True)
class Passage:
    """Readings of a car, and of another one, around a time t. All times are in microseconds relative to t.

    readings: (time, point). cases: (time, point, time of the joined reading or None). other: readings of the other
    car.
    """

    readings: tuple[tuple[int, int], ...]
    cases: tuple[tuple[int, int, int | None], ...]
    other: tuple[tuple[int, int], ...] = ()


def highway_kinds(here: int, last: int, fast_us: int, slow_us: int, limit_us: int) -> dict[str, Passage]:
    """Returns every kind of reading at point `here` at time 0.

    fast_us, slow_us, limit_us: travel time from the point before: too fast, slow, exactly at the limit. last: the point
    at the end of the long stretch.
    """
    before = here - 1

    def after(*previous: int, joins: int | None) -> Passage:
        """Returns a reading here at 0, with readings at the point before at the times `previous`."""
        return Passage((*((us, before) for us in previous), (0, here)), ((0, here, joins),))

    def long(previous: int, joins: int | None) -> Passage:
        return Passage(((previous, last - 1), (0, last)), ((0, last, joins),))

    def twice(previous: int) -> Passage:
        return Passage(
            ((previous, before), (0, here), (SECOND_US, here)), ((0, here, previous), (SECOND_US, here, previous))
        )

    return {
        "entered_here": after(joins=None),
        "over": after(-fast_us, joins=-fast_us),
        "under": after(-slow_us, joins=-slow_us),
        "at_the_limit": after(-limit_us, joins=-limit_us),
        "1us_over_the_limit": after(-limit_us + 1, joins=-limit_us + 1),
        "1us_under_the_limit": after(-limit_us - 1, joins=-limit_us - 1),
        "previous_2_hours_before": long(-RANGE_US, joins=-RANGE_US),
        "previous_2_hours_less_1us_before": long(-RANGE_US + 1, joins=-RANGE_US + 1),
        "previous_2_hours_and_1us_before": long(-RANGE_US - 1, joins=None),
        "previous_1us_before": after(-1, joins=-1),
        "previous_at_same_time": after(0, joins=None),
        "previous_at_same_time_and_earlier": after(-fast_us, 0, joins=-fast_us),
        "previous_1us_after": after(1, joins=None),
        "previous_after": after(fast_us, joins=None),
        "missed_previous": Passage(((-fast_us, here - 2), (0, here)), ((0, here, None),)),
        "repeated_previous_over": after(-slow_us, -fast_us, joins=-fast_us),  # only the later one is too fast
        "repeated_previous_under": after(-slow_us - SECOND_US, -slow_us, joins=-slow_us),
        "repeated_reading_over": twice(-fast_us),
        "repeated_reading_under": twice(-slow_us),
        "other_point_between": Passage(
            ((-fast_us, before), (-fast_us // 2, here + 2), (0, here)), ((0, here, -fast_us),)
        ),
        "other_car_at_previous": Passage(
            ((0, here),), ((0, here, None),), other=((-fast_us, before), (slow_us - fast_us, here))
        ),
        "other_car_at_same_time": Passage(
            ((-slow_us, before), (0, here)), ((0, here, -slow_us),), other=((-fast_us, before), (0, here))
        ),
    }


HIGHWAY_KINDS = tuple(highway_kinds(2, 9, 1, 2, 3))


@dataclass(frozen=True, slots=True)
class Road:
    """Toll points and speed limit. half_km[p]: position of point p in half kilometres; the last stretch is long."""

    half_km: tuple[int, ...]
    limit_kmh: int

    def travel_us(self, point: int, speed_kmh: float) -> int:
        """Returns the travel time of the stretch that ends at `point`."""
        return round((self.half_km[point] - self.half_km[point - 1]) * HALF_US / speed_kmh)

    def limit_us(self, point: int) -> int:
        """Returns the travel time of the stretch that ends at `point`, exactly at the limit."""
        return (self.half_km[point] - self.half_km[point - 1]) * HALF_US // self.limit_kmh


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading at a point. kind: its kind, or None. joins_us: time of the joined reading, or None."""

    ts_us: int
    car: str
    point: int
    kind: str | None = None
    joins_us: int | None = None


def highway(
    seed: int,
    cars: int = 150,
    copies: int = 3,
    points: int = 12,
    hours: int = 12,
    limit_kmh: int = 120,
    p_over: float = 0.08,
    p_missed: float = 0.04,
    p_repeated: float = 0.05,
    lateness_us: int = 10 * MINUTE_US,
    rows_max: int = 64,
    interleaving: int = 0,
) -> Scenario:
    """Returns a scenario of cars on a toll road: which were too fast since their last reading at the previous point?

    The answer (`speed_query(limit_kmh)`) is defined in the module docstring. Points are 5 to 30 km apart; the last
    stretch has 270 km, so that a previous reading of two hours ago is still too fast. Each of `cars` drives one to
    three trips on the short stretches, with some missed and repeated readings. There are at least `copies` readings of
    every kind of `HIGHWAY_KINDS`, each with a separate car. Three sources: gantry p % 3 sends point p. cases: kind,
    car, point, ts, expected; one row per reading of a kind. truth: car, point, ts, previous_ts, speed_kmh; sorted by
    ts, car. interleaving: see `faults.deliver`.
    """
    if points < 8 or copies < 1 or not 60 <= limit_kmh <= 130 or HALF_US % limit_kmh:
        raise ValueError("points: 8 or more, copies: 1 or more, limit_kmh: in [60, 130] and a divisor of 1800000000")
    rng = generator(seed)
    stretches = [0, *rng.integers(10, 61, points - 2).tolist(), 540]
    road = Road(tuple(np.cumsum(stretches).tolist()), limit_kmh)
    names = iter(numbered("car", rng.permutation(cars + 2 * copies * len(HIGHWAY_KINDS)), 4).to_pylist())

    readings: list[Reading] = []
    for _ in range(cars):
        car = next(names)
        start_us = START_US + int(rng.integers(0, hours * HOUR_US // 2))
        for _ in range(int(rng.integers(1, 4))):
            if start_us < START_US + hours * HOUR_US:
                trip = list(_trip(car, start_us, road, p_over, p_missed, p_repeated, rng))
                readings += trip
                start_us = trip[-1].ts_us + int(rng.integers(3 * HOUR_US, 5 * HOUR_US))  # the trip is out of range
    for kind in HIGHWAY_KINDS:
        for _ in range(copies):
            time_us = START_US + int(rng.integers(3 * HOUR_US, hours * HOUR_US))
            readings += _planted(kind, next(names), next(names), time_us, road, rng)
    readings.sort(key=lambda r: (r.ts_us, r.car, r.point))

    schema = Schema("tolls", FIELDS, time="ts", keys=("car",), lateness_us=lateness_us)
    sources = {f"gantry-{i}": _tolls([r for r in readings if r.point % 3 == i], road) for i in range(3)}
    marked = [r for r in readings if r.kind is not None]
    expected = [_too_fast(r, road) for r in marked]
    answer = [r for r, is_expected in zip(marked, expected, strict=True) if is_expected]
    return Scenario(
        "highway",
        seed,
        (schema,),
        deliver(schema, sources, seed, rows_max, interleaving=interleaving),
        speed_query(limit_kmh),
        pa.table(
            {
                "car": pa.array([r.car for r in answer], pa.string()),
                "point": pa.array([r.point for r in answer], pa.int64()),
                "ts": pa.array([r.ts_us for r in answer], TIMESTAMP),
                "previous_ts": pa.array([r.joins_us for r in answer], TIMESTAMP),
                "speed_kmh": pa.array([_speed_kmh(r, road) for r in answer], pa.float64()),
            }
        ),
        pa.table(
            {
                "kind": pa.array([r.kind for r in marked], pa.string()),
                "car": pa.array([r.car for r in marked], pa.string()),
                "point": pa.array([r.point for r in marked], pa.int64()),
                "ts": pa.array([r.ts_us for r in marked], TIMESTAMP),
                "expected": pa.array(expected, pa.bool_()),
            }
        ),
    )


def _too_fast(reading: Reading, road: Road) -> bool:
    """Returns the comparison of the module docstring, in integers."""
    return reading.joins_us is not None and reading.ts_us - reading.joins_us < road.limit_us(reading.point)


def _speed_kmh(reading: Reading, road: Road) -> float:
    assert reading.joins_us is not None
    half_km = road.half_km[reading.point] - road.half_km[reading.point - 1]
    return half_km * HALF_US / (reading.ts_us - reading.joins_us)


def _trip(
    car: str,
    ts_us: int,
    road: Road,
    p_over: float,
    p_missed: float,
    p_repeated: float,
    rng: np.random.Generator,
) -> Iterator[Reading]:
    """Yields the readings of a trip over three points or more from ts_us on, in time order; the first and the last
    point are never missed."""
    points = len(road.half_km)
    entry = int(rng.integers(0, points - 4))
    leave = int(rng.integers(entry + 2, points - 1))
    reads_before: list[int] = []  # times of the readings at the point before
    for point in range(entry, leave + 1):
        over = point > entry and rng.random() < p_over
        if point > entry:
            ts_us += road.travel_us(point, road.limit_kmh * (rng.uniform(1.1, 1.5) if over else rng.uniform(0.5, 0.9)))
        missed = entry < point < leave and rng.random() < p_missed
        reads = [] if missed else [ts_us]
        if reads and rng.random() < p_repeated:
            reads.append(ts_us + int(rng.integers(1, 2 * SECOND_US)))
        for i, read_us in enumerate(reads):
            speed = "over" if over else "under"
            if point == entry:
                kind = "entered_here" if point > 0 else None  # the query excludes point 0
            elif not reads_before:
                kind = "missed_previous"
            elif i > 0:
                kind = f"repeated_reading_{speed}"
            else:
                kind = f"repeated_previous_{speed}" if len(reads_before) > 1 else speed
            yield Reading(read_us, car, point, kind, reads_before[-1] if reads_before else None)
        reads_before = reads
        ts_us = reads[-1] if reads else ts_us


def _planted(kind: str, car: str, other: str, time_us: int, road: Road, rng: np.random.Generator) -> Iterator[Reading]:
    """Yields the readings of one case of a kind on `car`, and those of `other`."""
    here = int(rng.integers(2, len(road.half_km) - 3))
    passage = highway_kinds(
        here,
        len(road.half_km) - 1,
        road.travel_us(here, road.limit_kmh * rng.uniform(1.1, 1.5)),
        road.travel_us(here, road.limit_kmh * rng.uniform(0.5, 0.9)),
        road.limit_us(here),
    )[kind]
    joins = {(when, point): previous for when, point, previous in passage.cases}
    for when, point in passage.readings:
        if (when, point) in joins:
            previous = joins[when, point]
            yield Reading(time_us + when, car, point, kind, None if previous is None else time_us + previous)
        else:
            yield Reading(time_us + when, car, point)
    for i, (when, point) in enumerate(passage.other):
        if i == 0:
            yield Reading(time_us + when, other, point)
        else:
            joins_us = time_us + passage.other[0][0]
            fast = when - passage.other[0][0] < road.limit_us(point)
            yield Reading(time_us + when, other, point, "over" if fast else "under", joins_us)


def _tolls(readings: list[Reading], road: Road) -> pa.Table:
    return pa.table(
        {
            "ts": pa.array([r.ts_us for r in readings], TIMESTAMP),
            "car": pa.array([r.car for r in readings], pa.string()),
            "point": pa.array([r.point for r in readings], pa.int64()),
            "km": pa.array([road.half_km[r.point] / 2 for r in readings], pa.float64()),
        }
    )
