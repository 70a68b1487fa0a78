"""The four queries, with their events and their constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from query.schema import Field, Schema
from simulator import rfid, stock
from simulator.scenario import MINUTE_US, SECOND_US, START_US, TIMESTAMP, generator, numbered

READINGS = Schema("readings", rfid.FIELDS, time="ts", keys=("tag",))

CLICKS = Schema(
    "clicks", (Field("ts", "TIMESTAMP"), Field("visitor", "BIGINT"), Field("action", "VARCHAR")), time="ts",
    keys=("visitor",),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rise:
    """Q1 has no constants."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Q2: the first volume is above `volume`, the last one below percent / 100 of the one before."""

    volume: int = 1000
    percent: int = 80
    seconds: int = 300


@dataclass(frozen=True, slots=True)
class Path:
    """Q3: four readers in their order, within `minutes`."""

    readers: str = "ABCD"
    minutes: int = 120


@dataclass(frozen=True, slots=True)
class Funnel:
    """Q4: three actions in their order, within `minutes`; counted: how many a visitor, instead of which."""

    counted: bool
    actions: tuple[str, str, str] = ("search", "cart", "pay")
    minutes: int = 90


Constants = Rise | Drop | Path | Funnel


@dataclass(frozen=True, slots=True)
class Question:
    """events: (seed, rows, keys) -> rows in time order, without nulls, all times different. keys: how many partitions
    there are at one time. columns: of the answer. counts: as in benchmarks.v_pattern.measured."""

    name: str
    schema: Schema
    events: Callable[[int, int, int], pa.Table]
    keys: int
    constants: Constants
    text: str
    columns: tuple[str, ...]
    counts: str = ""


def _names(words: tuple[str, ...], at: np.ndarray) -> pa.Array:
    return pa.array(words).take(pa.array(at))


def _times(rows: int, gap_us: int) -> pa.Array:
    return pa.array(START_US + np.arange(rows, dtype=np.int64) * gap_us).view(TIMESTAMP)


# ---- Q1

RISE = """
SELECT symbol, start_ts, top, low FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES A.ts AS start_ts, LAST(B.price) AS top, C.price AS low
    ONE ROW PER MATCH
    AFTER MATCH SKIP PAST LAST ROW
    PATTERN (A B+ C)
    DEFINE B AS price > PREV(price), C AS price < PREV(price)
) AS m"""


def rise() -> Question:
    """Q1: a rising run, then a drop."""
    return Question(
        "rise and drop", stock.TICKS, stock.walk, 1000, Rise(), RISE, ("symbol", "start_ts", "top", "low")
    )


# ---- Q2

#: Volumes are log-normal about VOLUME. One event in nine has more than 1000; a fall by a fifth from one event to the
#: next comes once in some thousand.
VOLUME, VOLUME_SPREAD = 940, 0.048


def quiet_stock(seed: int, rows: int, symbols: int) -> pa.Table:
    """The events of stock.sase, each symbol once a second on average, with volumes that hardly change."""
    table = stock.sase(seed, rows, symbols, interval_us=max(1, SECOND_US // symbols))
    volume = VOLUME * np.exp(VOLUME_SPREAD * generator(seed + 1).standard_normal(rows))
    return table.set_column(3, "volume", pa.array(np.rint(volume).astype(np.int64)))


def drop(constants: Drop) -> Question:
    """Q2: query 3 of [SASE]: from a large volume on, all prices above the average so far; then the volume drops."""
    text = f"""
SELECT symbol, start_ts, taken, last_price FROM stock MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES FIRST(A.ts) AS start_ts, count(A.*) AS taken, B.price AS last_price
    PATTERN (A+ B)
    WITHIN INTERVAL '{constants.seconds}' SECOND
    SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS (count(A.*) = 1 AND volume > {constants.volume})
               OR (count(A.*) > 1 AND price * (count(A.*) - 1) > sum(A.price) - price),
           B AS volume < {constants.percent / 100:.2f} * A.volume
) AS m"""
    columns = ("symbol", "start_ts", "taken", "last_price")
    return Question("rise, volume drops", stock.SASE_STOCK, quiet_stock, 1000, constants, text, columns)


# ---- Q3

STATIONS = "ABCDE"
#: How often a tag is read on its way, and how many of these readings are by any reader instead of the one it stands at.
READS_PER_TAG, STRAY = 10, 0.2
TAG_GAP_US = 10 * MINUTE_US


def chain(seed: int, rows: int, tags: int) -> pa.Table:
    """`tags` tags at a time pass the stations in their order, each read READS_PER_TAG times, once in TAG_GAP_US on
    average; when one is through, a new one takes its place."""
    rng = generator(seed)
    place = rng.integers(0, tags, rows)
    order = np.argsort(place, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(place[order]) != 0]) if rows else np.zeros(0, np.int64)
    nth = np.empty(rows, np.int64)  # which reading of its place it is; places begin anywhere on the way
    nth[order] = np.arange(rows) - np.repeat(begins, np.diff(np.r_[begins, rows]))
    nth += rng.integers(0, READS_PER_TAG, tags)[place]
    station = nth % READS_PER_TAG * len(STATIONS) // READS_PER_TAG
    stray = rng.random(rows) < STRAY
    station[stray] = rng.integers(0, len(STATIONS), int(stray.sum()))
    number, at = np.unique(nth // READS_PER_TAG * tags + place, return_inverse=True)
    return pa.table({
        "ts": _times(rows, max(1, TAG_GAP_US // tags)),
        "tag": numbered("T", number.tolist(), 8).take(pa.array(at)),
        "reader": _names(tuple(STATIONS), station),
    })


def path(constants: Path) -> Question:
    """Q3: a tag passes four readers."""
    define = ", ".join(f"{v} AS reader = '{reader}'" for v, reader in zip("ABCD", constants.readers))
    text = f"""
SELECT tag, a_ts, b_ts, c_ts, d_ts FROM readings MATCH_RECOGNIZE (
    PARTITION BY tag ORDER BY ts
    MEASURES A.ts AS a_ts, B.ts AS b_ts, C.ts AS c_ts, D.ts AS d_ts
    PATTERN (A B C D)
    WITHIN INTERVAL '{constants.minutes}' MINUTE
    SELECTION SKIP TILL NEXT MATCH
    DEFINE {define}
) AS m"""
    return Question("path", READINGS, chain, 20_000, constants, text, ("tag", "a_ts", "b_ts", "c_ts", "d_ts"))


# ---- Q4

ACTIONS = ("look", "scroll", "help", "search", "cart", "pay")
ACTION_SHARES = (0.4, 0.2, 0.1, 0.15, 0.1, 0.05)


def clicks(seed: int, rows: int, visitors: int) -> pa.Table:
    """Each visitor does something once a minute on average."""
    rng = generator(seed)
    visitor = rng.integers(1, visitors + 1, rows)
    action = np.searchsorted(np.cumsum(ACTION_SHARES)[:-1], rng.random(rows), side="right")
    return pa.table({
        "ts": _times(rows, max(1, MINUTE_US // visitors)), "visitor": visitor, "action": _names(ACTIONS, action),
    })


def funnel(constants: Funnel) -> Question:
    """Q4: every three actions of a visitor in this order, whatever lies between."""
    define = ", ".join(f"{v} AS action = '{action}'" for v, action in zip("ABC", constants.actions))
    matches = f"""clicks MATCH_RECOGNIZE (
    PARTITION BY visitor ORDER BY ts
    MEASURES A.ts AS a_ts, B.ts AS b_ts, C.ts AS c_ts
    PATTERN (A B C)
    WITHIN INTERVAL '{constants.minutes}' MINUTE
    SELECTION SKIP TILL ANY MATCH
    DEFINE {define}
) AS m"""
    if constants.counted:
        text = f"SELECT visitor, count(*) AS found FROM {matches} GROUP BY visitor"
        return Question("funnel, counted", CLICKS, clicks, 1000, constants, text, ("visitor", "found"), "found")
    text = f"SELECT visitor, a_ts, b_ts, c_ts FROM {matches}"
    return Question("funnel", CLICKS, clicks, 1000, constants, text, ("visitor", "a_ts", "b_ts", "c_ts"))


def questions(seed: int) -> dict[str, Question]:
    """All of them by their labels; q2 and q3 once more with constants that the seed draws."""
    rng = generator(seed)
    drop_drawn = Drop(int(rng.integers(985, 1016)), int(rng.integers(79, 82)), int(rng.integers(150, 401)))
    readers = "".join(STATIONS[i] for i in sorted(rng.choice(len(STATIONS), 4, replace=False)))
    path_drawn = Path(readers, int(rng.integers(90, 181)))
    return {
        "q1": rise(),
        "q2": drop(Drop()),
        "q2 drawn": drop(drop_drawn),
        "q3": path(Path()),
        "q3 drawn": path(path_drawn),
        "q4": funnel(Funnel(counted=False)),
        "q4 counted": funnel(Funnel(counted=True)),
    }
