"""Shops with RFID readers at shelves, registers, corners and exits, in which thieves work, alone and in rings.

The stream is `readings(ts, shop, person, reader, shelf, items)`. Each person carries a tag (a trolley, a loyalty card)
that the readers read: `shelf` readers every ten seconds, with the shelf and the number of items that lie on it, and
`register`, `corner` (which no camera sees) and `exit` readers in passing.

Four layers of patterns, each made of matches of the one before: visits of a shelf, suspicious visits, thefts, rings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from query.schema import Field, Schema
from simulator.faults import deliver
from simulator.scenario import DAY_US, HOUR_US, MINUTE_US, SECOND_US, START_US, TIMESTAMP, Scenario, generator, numbered

FIELDS = (
    Field("ts", "TIMESTAMP"), Field("shop", "VARCHAR"), Field("person", "VARCHAR"), Field("reader", "VARCHAR"),
    Field("shelf", "VARCHAR"), Field("items", "BIGINT"),
)  # fmt: skip

#: Layer -> its query. A name stands for the matches of the layer before.
LAYERS = {
    "visit": """\
SELECT shop, person, shelf, came, went, before, after
FROM readings MATCH_RECOGNIZE (
  PARTITION BY shop, person
  ORDER BY ts
  MEASURES A.shelf AS shelf, A.ts AS came, LAST(B.ts) AS went, A.items AS before, LAST(B.items) AS after
  AFTER MATCH SKIP PAST LAST ROW
  PATTERN (A B+)
  WITHIN INTERVAL '15' MINUTE
  DEFINE A AS reader = 'shelf',
         B AS reader = 'shelf' AND shelf = A.shelf AND ts <= PREV(ts) + INTERVAL '1' MINUTE
)
""",
    "suspicious": """\
SELECT shop, person, shelf, taken
FROM readings MATCH_RECOGNIZE (
  PARTITION BY shop, person
  ORDER BY ts
  MEASURES V.shelf AS shelf, V.before - V.after AS taken
  PATTERN (V ~P C)
  WITHIN INTERVAL '30' MINUTE
  SELECTION SKIP TILL NEXT MATCH
  DEFINE V AS PATTERN visit ON after < before AND went - came >= INTERVAL '2' MINUTE,
         P AS reader = 'register',
         C AS reader = 'corner'
)
""",
    "theft": """\
SELECT shop, person, shelf, taken
FROM readings MATCH_RECOGNIZE (
  PARTITION BY shop, person
  ORDER BY ts
  MEASURES S.shelf AS shelf, S.taken AS taken
  PATTERN (S ~P X)
  WITHIN INTERVAL '45' MINUTE
  SELECTION SKIP TILL NEXT MATCH
  DEFINE S AS PATTERN suspicious,
         P AS reader = 'register',
         X AS reader = 'exit'
)
""",
    "ring": """\
SELECT shop, shelf, first, second, third, taken
FROM readings MATCH_RECOGNIZE (
  PARTITION BY shop, shelf
  ORDER BY ts
  MEASURES A.person AS first, B.person AS second, C.person AS third, A.taken + B.taken + C.taken AS taken
  PATTERN (A B C)
  WITHIN INTERVAL '1' HOUR
  SELECTION SKIP TILL NEXT MATCH
  DEFINE A AS PATTERN theft,
         B AS PATTERN theft ON person <> A.person,
         C AS PATTERN theft ON person <> A.person AND person <> B.person
)
""",
}

#: Persons at work at the same time are no ring: boxes follow each other. The rows of the thefts need not.
TOGETHER_QUERY = """\
SELECT shop, shelf, first, second, third
FROM theft MATCH_RECOGNIZE (
  PARTITION BY shop, shelf
  ORDER BY t1
  MEASURES A.person AS first, B.person AS second, C.person AS third
  PATTERN (A B C)
  WITHIN INTERVAL '1' HOUR
  SELECTION SKIP TILL NEXT MATCH
  DEFINE B AS person <> A.person AND t0 < A.t1,
         C AS person <> A.person AND person <> B.person AND t0 < A.t1
)
"""

SHOPS = ("north", "south", "west")
SHELVES = ("perfume", "razors", "spirits")
STOCK = 60
#: Shops open at 10. Each shop and stretch of two hours has one planted case; shelves are filled up in between.
OPENS_US, STRETCH_US, STRETCHES = 10 * HOUR_US, 2 * HOUR_US, 6
STEP_US = 10 * SECOND_US


@dataclass(frozen=True, slots=True)
class Stay:
    """A person at a shelf. took_us: when an item was taken; unread: from when to when no reading was made."""

    shelf: str
    begin_us: int
    end_us: int
    took_us: tuple[int, ...] = ()
    unread: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Trip:
    """One person in a shop. suspicious, thefts: the number of each stay to which that layer is expected to belong.
    stole: True if something was taken and not paid for."""

    kind: str
    shop: str
    person: str
    stays: tuple[Stay, ...]
    registers_us: tuple[int, ...] = ()
    corners_us: tuple[int, ...] = ()
    exits_us: tuple[int, ...] = ()
    suspicious: tuple[int, ...] = ()
    thefts: tuple[int, ...] = ()
    stole: bool = False


@dataclass(frozen=True, slots=True)
class Thieves:
    """A scenario of thieves. truths: layer -> what it must find, with the columns of its query and t0 and t1, sorted.
    people: one row each, `kind`, `shop`, `person`, `stole` (what happened) and `thefts` (what the readings show)."""

    scenario: Scenario
    truths: Mapping[str, pa.Table]
    people: pa.Table


#: Kinds of a single person, and how a trip of each differs from that of a thief whom all readers see.
SINGLE_KINDS = (
    "thief", "two_shelves", "read_twice_at_the_exit", "paid_before_the_corner", "paid_after_the_corner", "put_back",
    "quick", "no_corner", "missed_at_the_exit", "missed_at_the_shelf", "bystander",
)  # fmt: skip
RING_KINDS = (
    "ring", "ring_of_four", "in_exactly_an_hour", "in_an_hour_and_1us", "two_only", "one_comes_again", "one_pays",
    "two_shelves_of_three", "together",
)  # fmt: skip


def _thief(kind: str, shop: str, person: str, shelf: str, begin_us: int, rng: np.random.Generator) -> Trip:
    """Returns a trip of a thief whom all readers see: at the shelf, in the corner, through the exit, in 7 to 10
    minutes."""
    end_us = begin_us + int(rng.integers(18, 25)) * STEP_US
    took_us = begin_us + int(rng.integers(7, 11)) * STEP_US + SECOND_US
    corner_us = end_us + int(rng.integers(60, 120)) * SECOND_US
    exit_us = corner_us + int(rng.integers(120, 180)) * SECOND_US
    return Trip(
        kind, shop, person, (Stay(shelf, begin_us, end_us, (took_us,)),), (), (corner_us,), (exit_us,), (0,), (0,), True
    )


def _single(
    kind: str, shop: str, shelves: Sequence[str], begin_us: int, names: Iterator[str], rng: np.random.Generator
) -> list[Trip]:
    """Returns the trips of one of `SINGLE_KINDS`."""
    trip = _thief(kind, shop, next(names), shelves[0], begin_us, rng)
    (stay,), (corner_us,), (exit_us,) = trip.stays, trip.corners_us, trip.exits_us
    match kind:
        case "two_shelves":
            before_us = begin_us - 5 * MINUTE_US
            other = Stay(shelves[1], before_us, before_us + 3 * MINUTE_US, (before_us + MINUTE_US + SECOND_US,))
            trip = replace(trip, stays=(other, stay), suspicious=(0, 1), thefts=(0, 1))
        case "read_twice_at_the_exit":
            trip = replace(trip, exits_us=(exit_us, exit_us + 2 * SECOND_US, exit_us + 5 * SECOND_US))
        case "paid_before_the_corner":
            paid_us = (stay.end_us + corner_us) // 2
            trip = replace(trip, registers_us=(paid_us,), suspicious=(), thefts=(), stole=False)
        case "paid_after_the_corner":
            paid_us = (exit_us + corner_us) // 2
            trip = replace(trip, registers_us=(paid_us,), thefts=(), stole=False)
        case "put_back":
            trip = replace(trip, stays=(replace(stay, took_us=()),), suspicious=(), thefts=(), stole=False)
        case "quick":
            short = Stay(stay.shelf, begin_us, begin_us + 90 * SECOND_US, (begin_us + 45 * SECOND_US,))
            trip = replace(trip, stays=(short,), suspicious=(), thefts=())
        case "no_corner":
            trip = replace(trip, corners_us=(), suspicious=(), thefts=())
        case "missed_at_the_exit":
            trip = replace(trip, exits_us=(), thefts=())
        case "missed_at_the_shelf":  # the item goes while nobody reads: two visits, and in neither anything is taken
            (took_us,) = stay.took_us
            unread = (took_us - 35 * SECOND_US, took_us + 35 * SECOND_US)
            trip = replace(trip, stays=(replace(stay, unread=unread),), suspicious=(), thefts=())
        case "bystander":  # looks at the same shelf at that time, takes nothing, and goes the same way
            stayed = Stay(stay.shelf, begin_us + 3 * SECOND_US, stay.end_us + 3 * SECOND_US)
            later_us = 30 * SECOND_US
            other_trip = replace(
                trip, person=next(names), stays=(stayed,), corners_us=(corner_us + later_us,),
                exits_us=(exit_us + later_us,), stole=False,
            )
            return [replace(trip, kind="thief"), other_trip]
    return [trip]


def _ring(
    kind: str, shop: str, shelves: Sequence[str], begin_us: int, names: Iterator[str], rng: np.random.Generator
) -> tuple[list[Trip], list[tuple[int, int, int]]]:
    """Returns the trips of one of `RING_KINDS`, and which of them are rings."""
    trips: list[Trip] = []
    for _ in range({"ring_of_four": 4, "two_only": 2}.get(kind, 3)):
        trips.append(_thief(kind, shop, next(names), shelves[0], begin_us, rng))
        gap_us = MINUTE_US + int(rng.integers(0, 90)) * SECOND_US
        begin_us = begin_us + MINUTE_US if kind == "together" else trips[-1].exits_us[0] + gap_us
    hour_us = trips[0].stays[0].begin_us + HOUR_US
    match kind:
        case "ring":
            return trips, [(0, 1, 2)]
        case "ring_of_four":
            return trips, [(0, 1, 2), (1, 2, 3)]
        case "in_exactly_an_hour" | "in_an_hour_and_1us":
            exact = kind == "in_exactly_an_hour"
            last = _thief(kind, shop, trips[2].person, shelves[0], hour_us - 12 * MINUTE_US, rng)
            trips[2] = replace(last, exits_us=(hour_us + (0 if exact else 1),))
            return trips, [(0, 1, 2)] if exact else []
        case "one_comes_again":
            trips[2] = replace(trips[2], person=trips[0].person)
        case "one_pays":
            paid_us = trips[1].corners_us[0] - 20 * SECOND_US
            trips[1] = replace(trips[1], registers_us=(paid_us,), suspicious=(), thefts=(), stole=False)
        case "two_shelves_of_three":
            trips[1] = replace(trips[1], stays=(replace(trips[1].stays[0], shelf=shelves[1]),))
    return trips, []


def _visitors(
    count: int, begins_us: Sequence[int], names: Iterator[str], rng: np.random.Generator
) -> Iterator[Trip]:
    """Returns trips of people who steal nothing: they look, and some of them take, pay, and pass the corner."""
    for _ in range(count):
        at_us = begins_us[int(rng.integers(len(begins_us)))] + int(rng.integers(0, 80 * 60)) * SECOND_US
        buys, stays = bool(rng.random() < 0.6), []
        for shelf in rng.permutation(SHELVES)[: int(rng.integers(1, 4))].tolist():
            end_us = at_us + int(rng.integers(7, 37)) * STEP_US
            took = (at_us + int(rng.integers(2, 6)) * STEP_US + SECOND_US,) if buys and rng.random() < 0.7 else ()
            stays.append(Stay(shelf, at_us, end_us, took))
            at_us = end_us + int(rng.integers(30, 180)) * SECOND_US
        register_us = at_us + int(rng.integers(30, 120)) * SECOND_US
        corner_us = register_us + int(rng.integers(30, 120)) * SECOND_US
        taken = any(stay.took_us for stay in stays)
        yield Trip(
            "buyer" if taken else "visitor", SHOPS[int(rng.integers(len(SHOPS)))], next(names), tuple(stays),
            (register_us,) if taken else (), (corner_us,) if rng.random() < 0.4 else (), (corner_us + MINUTE_US,),
        )


class _Shelves:
    """How many items lie on each shelf, at any time."""

    def __init__(self, trips: Iterable[Trip]) -> None:
        taken: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        for trip in trips:
            for stay in trip.stays:
                for us in stay.took_us:
                    taken[self._key(trip.shop, stay.shelf, us)].append(us)
        self._taken = {key: np.sort(np.array(times)) for key, times in taken.items()}

    def items(self, shop: str, shelf: str, us: int) -> int:
        taken = self._taken.get(self._key(shop, shelf, us))
        return STOCK if taken is None else STOCK - int(np.searchsorted(taken, us, side="right"))

    @staticmethod
    def _key(shop: str, shelf: str, us: int) -> tuple[str, str, int]:
        return shop, shelf, us // STRETCH_US  # shops open at the begin of one


Row = tuple[int, str, str, str, str | None, int | None]


def _read(stay: Stay, p_missed: float, rng: np.random.Generator) -> list[int]:
    """Returns when a stay is read: every ten seconds, with misses, but never at an end or three in a row."""
    read, missed = [], 0
    for us in range(stay.begin_us, stay.end_us + 1, STEP_US):
        at_us = us if us == stay.begin_us else us + int(rng.integers(-2_000, 2_000)) * 1_000
        edge = us == stay.begin_us or us + STEP_US > stay.end_us
        unread = stay.unread is not None and stay.unread[0] <= at_us <= stay.unread[1]
        if unread or (not edge and missed < 2 and rng.random() < p_missed):
            missed += not unread
            continue
        read.append(at_us)
        missed = 0
    return read


def thieves(
    seed: int,
    visitors: int = 400,
    copies: int = 2,
    p_missed: float = 0.1,
    p_double: float = 0.05,
    lateness_us: int = 30 * MINUTE_US,
    rows_max: int = 128,
    interleaving: int = 0,
) -> Thieves:
    """Returns a scenario of three shops over some days, with `copies` of each of `SINGLE_KINDS` and `RING_KINDS`, among
    `visitors` who steal nothing.

    A reading at a shelf is missed with probability p_missed and made twice with probability p_double. Events are
    delivered late, in batches and twice: see `faults.deliver`. The scenario's query is that of rings over the layers
    `LAYERS`, and its cases those of `RING_KINDS`.
    """
    rng = generator(seed)
    kinds = [*SINGLE_KINDS, *RING_KINDS] * copies
    days = -(-len(kinds) // (len(SHOPS) * STRETCHES))
    begins_us = [
        START_US + day * DAY_US + OPENS_US + i * STRETCH_US for day in range(days) for i in range(STRETCHES)
    ]
    cells = [(shop, us) for us in begins_us for shop in SHOPS]
    people = visitors + 5 * len(kinds)
    names = iter(numbered("p", rng.permutation(people), 4).to_pylist())
    trips: list[Trip] = []
    rings: list[tuple[Trip, Trip, Trip]] = []
    cases: list[tuple[str, str, str, int, bool]] = []
    for kind, cell in zip(kinds, rng.permutation(len(cells)).tolist(), strict=False):
        shop, begin_us = cells[cell]
        begin_us += int(rng.integers(10 * 60, 25 * 60)) * SECOND_US
        shelves = rng.permutation(SHELVES).tolist()
        if kind in SINGLE_KINDS:
            trips += _single(kind, shop, shelves, begin_us, names, rng)
            continue
        own, found = _ring(kind, shop, shelves, begin_us, names, rng)
        trips += own
        rings += [(own[i], own[j], own[k]) for i, j, k in found]
        cases.append((kind, shop, shelves[0], begin_us, bool(found)))
    alone = [(trip.shop, trip.stays[0]) for trip in trips if trip.kind in ("put_back", "missed_at_the_shelf")]
    trips += [_apart(trip, alone) for trip in _visitors(visitors, begins_us, names, rng)]
    shelves_now = _Shelves(trips)
    trips = [_unsuspected(trip, shelves_now) for trip in trips]
    read = [[_read(stay, p_missed, rng) for stay in trip.stays] for trip in trips]
    schema = Schema("readings", FIELDS, time="ts", keys=("person",), lateness_us=lateness_us)
    rows = sorted(_rows(trips, read, shelves_now, p_double, rng))
    sources = {
        reader: _table([row for row in rows if row[3] == reader]) for reader in ("shelf", "register", "corner", "exit")
    }
    truths = _truths(trips, read, rings, shelves_now)
    scenario = Scenario(
        "thieves", seed, (schema,), deliver(schema, sources, seed, rows_max, interleaving=interleaving),
        "SELECT * FROM ring", truths["ring"],
        pa.table({
            "kind": [case[0] for case in cases], "shop": [case[1] for case in cases],
            "shelf": [case[2] for case in cases], "t0": pa.array([case[3] for case in cases], TIMESTAMP),
            "expected": [case[4] for case in cases],
        }),
    )  # fmt: skip
    told = pa.table({
        "kind": [trip.kind for trip in trips], "shop": [trip.shop for trip in trips],
        "person": [trip.person for trip in trips], "stole": [trip.stole for trip in trips],
        "thefts": [len(trip.thefts) for trip in trips],
    })  # fmt: skip
    return Thieves(scenario, truths, told)


def _apart(trip: Trip, alone: Iterable[tuple[str, Stay]]) -> Trip:
    """Returns a trip that takes nothing from a shelf while one stands there who is to see no item go."""
    guarded = [stay for shop, stay in alone if shop == trip.shop]
    stays = tuple(
        replace(stay, took_us=tuple(
            us for us in stay.took_us
            if not any(g.shelf == stay.shelf and g.begin_us - STEP_US <= us <= g.end_us + STEP_US for g in guarded)
        )) for stay in trip.stays
    )  # fmt: skip
    return replace(trip, stays=stays)


def _unsuspected(trip: Trip, shelves: _Shelves) -> Trip:
    """Returns the trip of a visitor without the corner, if items that others took went while she looked."""
    if trip.kind != "visitor" or not trip.corners_us:
        return trip

    def items(stay: Stay, us: int) -> int:
        return shelves.items(trip.shop, stay.shelf, us)

    went = any(items(stay, stay.begin_us) > items(stay, stay.end_us + STEP_US) for stay in trip.stays)
    return replace(trip, corners_us=()) if went else trip


def _rows(
    trips: Sequence[Trip], read: Sequence[Sequence[Sequence[int]]], shelves: _Shelves, p_double: float,
    rng: np.random.Generator,
) -> Iterator[Row]:  # fmt: skip
    for trip, its_read in zip(trips, read, strict=True):
        for stay, times in zip(trip.stays, its_read, strict=True):
            for us in times:
                row = (us, trip.shop, trip.person, "shelf", stay.shelf, shelves.items(trip.shop, stay.shelf, us))
                yield from [row] * (1 + int(rng.random() < p_double))
        for reader, passed in (
            ("register", trip.registers_us), ("corner", trip.corners_us), ("exit", trip.exits_us)
        ):  # fmt: skip
            yield from ((us, trip.shop, trip.person, reader, None, None) for us in passed)


def _truths(
    trips: Sequence[Trip], read: Sequence[Sequence[Sequence[int]]], rings: Sequence[tuple[Trip, Trip, Trip]],
    shelves: _Shelves,
) -> dict[str, pa.Table]:  # fmt: skip
    """Returns what each layer must find, from what was planted."""
    visits, suspicious, thefts = [], [], []
    taken: dict[tuple[str, int], int] = {}
    for trip, its_read in zip(trips, read, strict=True):
        for i, (stay, times) in enumerate(zip(trip.stays, its_read, strict=True)):
            parts = [times]
            if stay.unread is not None:
                parts = [[us for us in times if us < stay.unread[0]], [us for us in times if us > stay.unread[1]]]
            who = (trip.shop, trip.person, stay.shelf)
            for part in parts:
                before, after = (shelves.items(trip.shop, stay.shelf, part[j]) for j in (0, -1))
                visits.append((*who, part[0], part[-1], before, after, part[0], part[-1]))
            taken[trip.person, stay.begin_us] = before - after
            row = (*who, before - after, stay.begin_us)
            if i in trip.suspicious:
                suspicious.append((*row, trip.corners_us[0]))
            if i in trip.thefts:
                thefts.append((*row, trip.exits_us[0]))
    together = [
        (first.shop, first.stays[0].shelf, first.person, second.person, third.person,
         sum(taken[trip.person, trip.stays[0].begin_us] for trip in (first, second, third)),
         first.stays[0].begin_us, third.exits_us[0])
        for first, second, third in rings
    ]  # fmt: skip
    return {
        "visit": _sorted(visits, "shop person shelf came went before after t0 t1"),
        "suspicious": _sorted(suspicious, "shop person shelf taken t0 t1"),
        "theft": _sorted(thefts, "shop person shelf taken t0 t1"),
        "ring": _sorted(together, "shop shelf first second third taken t0 t1"),
    }


def _sorted(rows: Sequence[tuple[object, ...]], columns: str) -> pa.Table:
    """Returns rows as a table, by t1, t0 and all columns."""
    names = columns.split()
    rows = sorted(rows, key=lambda row: (row[-1], row[-2], row))
    return pa.table({
        name: pa.array([row[i] for row in rows], _type(name)) for i, name in enumerate(names)
    })  # fmt: skip


def _type(name: str) -> pa.DataType:
    if name in ("ts", "came", "went", "t0", "t1"):
        return TIMESTAMP
    return pa.int64() if name in ("before", "after", "taken", "items") else pa.string()


def _table(rows: Sequence[Row]) -> pa.Table:
    return pa.table({
        field.name: pa.array([row[i] for row in rows], _type(field.name)) for i, field in enumerate(FIELDS)
    })  # fmt: skip
