"""RFID readings: a supply chain with readers A to D, and a shop with shelf, register and exit.

Both are streams `readings(ts TIMESTAMP, tag VARCHAR, reader VARCHAR)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from query.schema import Field, Schema
from simulator.faults import deliver
from simulator.scenario import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    START_US,
    TIMESTAMP,
    Scenario,
    generator,
    in_batches,
    numbered,
)

FIELDS = (Field("ts", "TIMESTAMP"), Field("tag", "VARCHAR"), Field("reader", "VARCHAR"))

#: How far back a register reading pays for an exit: [exit - PAID_US, exit).
PAID_US = 10 * DAY_US

SHOP_QUERY = """\
SELECT pl.tag, pl.exit_ts
FROM readings MATCH_RECOGNIZE (
  PARTITION BY tag
  ORDER BY ts
  MEASURES E.ts AS exit_ts
  ONE ROW PER MATCH
  PATTERN (E)
  DEFINE E AS reader = 'exit'
) AS pl
ANTI JOIN HISTORY OF readings FROM pl.exit_ts - INTERVAL '10' DAY TO pl.exit_ts AS r
  ON r.tag = pl.tag AND r.reader = 'register'
"""

CHAIN_WITHIN_US = 10 * HOUR_US

CHAIN_QUERY = """\
SELECT tag, a_ts, b_ts, c_ts, d_ts
FROM readings MATCH_RECOGNIZE (
  PARTITION BY tag
  ORDER BY ts
  MEASURES A.ts AS a_ts, B.ts AS b_ts, C.ts AS c_ts, D.ts AS d_ts
  ONE ROW PER MATCH
  PATTERN (A B C D)
  WITHIN INTERVAL '10' HOUR
  SELECTION SKIP TILL NEXT MATCH
  DEFINE A AS reader = 'A', B AS reader = 'B', C AS reader = 'C', D AS reader = 'D'
) AS m
"""


@dataclass(frozen=True, slots=True)
class Visit:
    """Readings of one item around an exit, in microseconds relative to it. exits: (time, True for an alarm)."""

    registers: tuple[int, ...]
    exits: tuple[tuple[int, bool], ...]
    on_shelf: bool = True


def shop_kinds(pay_us: int) -> dict[str, Visit]:
    """Returns every kind of visit to the shop. pay_us: time from payment to exit. See PAID_US."""
    quiet, alarm = (0, False), (0, True)
    return {
        "paid": Visit((-pay_us,), (quiet,)),
        "stolen": Visit((), (alarm,)),
        "register_10_days_before": Visit((-PAID_US,), (quiet,)),
        "register_10_days_and_1us_before": Visit((-PAID_US - 1,), (alarm,)),
        "register_10_days_less_1us_before": Visit((-PAID_US + 1,), (quiet,)),
        "register_1us_before_exit": Visit((-1,), (quiet,)),
        "register_at_exit_time": Visit((0,), (alarm,)),
        "register_1us_after_exit": Visit((1,), (alarm,)),
        "register_after_exit": Visit((pay_us,), (alarm,)),
        "register_too_old_and_again": Visit((-PAID_US - 1, -pay_us), (quiet,)),
        "repeated_register": Visit((-pay_us, -pay_us, -pay_us + 2 * SECOND_US), (quiet,)),
        "repeated_exit_paid": Visit((-pay_us,), (quiet, (2 * SECOND_US, False), (5 * SECOND_US, False))),
        "repeated_exit_stolen": Visit((), (alarm, (2 * SECOND_US, True), (5 * SECOND_US, True))),
        "register_between_two_exits": Visit((SECOND_US,), (alarm, (2 * SECOND_US, False))),
        "missed_shelf_paid": Visit((-pay_us,), (quiet,), on_shelf=False),
        "missed_shelf_stolen": Visit((), (alarm,), on_shelf=False),
        "register_of_other_tag": Visit((), (alarm,)),
        "exit_at_time_of_paid_exit": Visit((), (alarm,)),
    }


SHOP_KINDS = tuple(shop_kinds(MINUTE_US))

#: Kinds with a second, paid tag -> time by which it leaves after the planted one.
_COMPANION_AFTER_US = {"register_of_other_tag": SECOND_US, "exit_at_time_of_paid_exit": 0}


def shop(
    seed: int,
    items: int = 600,
    copies: int = 3,
    days: int = 14,
    p_stolen: float = 0.03,
    lateness_us: int = 30 * MINUTE_US,
    rows_max: int = 64,
    interleaving: int = 0,
) -> Scenario:
    """Returns a scenario of a shop over some days, with readers at shelf, register and exit: which items left unpaid?

    The answer (`SHOP_QUERY`): every exit reading without a register reading of its tag in [exit - 10 days, exit). The
    `items` ordinary items are stolen with probability p_stolen, else paid. There are at least `copies` items of every
    kind of `SHOP_KINDS`. Three sources: shelf, register and exit. cases: kind, tag, exit_ts, expected; one row per exit
    reading. truth: tag, exit_ts; sorted by exit_ts, tag. interleaving: see `faults.deliver`.
    """
    if days < 12 or copies < 1:
        raise ValueError("days must be 12 or more, to have 10 days before an exit, and copies 1 or more")
    rng = generator(seed)
    kinds = ["stolen" if stolen else "paid" for stolen in rng.random(items) < p_stolen]
    kinds += [kind for kind in SHOP_KINDS for _ in range(copies)]
    companions = sum(kind in _COMPANION_AFTER_US for kind in kinds)
    tags = iter(numbered("tag", rng.permutation(len(kinds) + companions), 5).to_pylist())

    readings: list[tuple[int, str, str]] = []
    cases: list[tuple[str, str, int, bool]] = []

    def visit(kind: str, exit_us: int, pay_us: int) -> None:
        tag, plan = next(tags), shop_kinds(pay_us)[kind]
        readings.extend((exit_us + r, tag, "register") for r in plan.registers)
        if plan.on_shelf:
            since_us = exit_us + min(0, *plan.registers, 0)
            ages_us = rng.integers(MINUTE_US, 2 * DAY_US, int(rng.integers(3, 9)))
            readings.extend((max(since_us - int(age_us), START_US), tag, "shelf") for age_us in ages_us)
        for after_us, expected in plan.exits:
            readings.append((exit_us + after_us, tag, "exit"))
            cases.append((kind, tag, exit_us + after_us, expected))

    for i, kind in enumerate(kinds):
        first_day = 0 if i < items else 10
        day = int(rng.integers(first_day, days))
        exit_us = START_US + day * DAY_US + 10 * HOUR_US + int(rng.integers(0, 9 * HOUR_US))
        pay_us = int(rng.integers(30 * SECOND_US, 20 * MINUTE_US))
        visit(kind, exit_us, pay_us)
        if kind in _COMPANION_AFTER_US:  # its register reading is pay_us before the exit of the planted tag
            later_us = _COMPANION_AFTER_US[kind]
            visit("paid", exit_us + later_us, pay_us + later_us)

    schema = Schema("readings", FIELDS, time="ts", keys=("tag",), lateness_us=lateness_us)
    readings.sort()
    sources = {
        reader: _readings([row for row in readings if row[2] == reader]) for reader in ("shelf", "register", "exit")
    }
    cases.sort(key=lambda case: (case[2], case[1]))
    return Scenario(
        "rfid shop",
        seed,
        (schema,),
        deliver(schema, sources, seed, rows_max, interleaving=interleaving),
        SHOP_QUERY,
        pa.table(
            {
                "tag": pa.array([tag for _, tag, _, expected in cases if expected], pa.string()),
                "exit_ts": pa.array([us for _, _, us, expected in cases if expected], TIMESTAMP),
            }
        ),
        pa.table(
            {
                "kind": pa.array([kind for kind, _, _, _ in cases], pa.string()),
                "tag": pa.array([tag for _, tag, _, _ in cases], pa.string()),
                "exit_ts": pa.array([us for _, _, us, _ in cases], TIMESTAMP),
                "expected": pa.array([expected for _, _, _, expected in cases], pa.bool_()),
            }
        ),
    )


def _readings(rows: list[tuple[int, str, str]]) -> pa.Table:
    return pa.table(
        {
            "ts": pa.array([us for us, _, _ in rows], TIMESTAMP),
            "tag": pa.array([tag for _, tag, _ in rows], pa.string()),
            "reader": pa.array([reader for _, _, reader in rows], pa.string()),
        }
    )


#: Kinds of tags in the supply chain.
CHAIN_KINDS = (
    "complete",
    "missed_a_reader",
    "too_slow",
    "exactly_10_hours",
    "10_hours_and_1us",
    "10_hours_less_1us",
    "second_reading_at_a_in_time",
    "repeated_at_every_reader",
)
_COMPLETE, _MISSED, _TOO_SLOW, _EXACT, _OVER, _UNDER, _SECOND_A, _REPEATED = range(8)


def supply_chain(
    seed: int,
    tags: int,
    match_ratio: float = 0.5,
    p_missed: float = 0.5,
    p_repeated: float = 0.1,
    copies: int = 3,
    mean_gap_us: int = SECOND_US,
    batch_rows: int = 65_536,
) -> Scenario:
    """Returns a scenario of tags that pass readers A, B, C, D: `SEQ(A; B; C; D)` within 10 hours ([LIVE-ARCHIVE],
    [SASE]). Vectorised.

    A new tag enters every mean_gap_us on average. A share match_ratio passes all four readers in 1 to 9 hours. Of the
    rest, a share p_missed misses one of the four readings, and the others take 10 to 20 hours. Each reading is repeated
    once or twice within 20 s with probability p_repeated, always before the tag's next reader. There are at least
    `copies` tags of each of `CHAIN_KINDS`.

    The answer (`CHAIN_QUERY`), under skip till next match: for every reading at A the first at B, C and D, if the last
    is at most 10 hours (inclusive) after A. truth: tag, a_ts, b_ts, c_ts, d_ts; sorted by d_ts, a_ts, tag. cases: kind,
    tag, expected (True if the tag has a match). One source, in time order, lateness 0. O(n log n). Long: what it plants
    is told here, and drawn and answered below it.
    """
    planted = len(CHAIN_KINDS) * copies
    if tags < planted or copies < 1 or not 0 <= match_ratio <= 1:
        raise ValueError(f"tags must be {planted} or more, copies 1 or more, match_ratio in [0, 1]")
    rng = generator(seed)
    unmatched = np.where(rng.random(tags) < p_missed, _MISSED, _TOO_SLOW)
    kind = np.where(rng.random(tags) < match_ratio, _COMPLETE, unmatched)
    kind[:planted] = np.repeat(np.arange(len(CHAIN_KINDS)), copies)
    rng.shuffle(kind)

    entry_us = START_US + np.cumsum(rng.integers(0, 2 * mean_gap_us + 1, tags))
    total_us = rng.integers(HOUR_US, 9 * HOUR_US, tags)  # from A to D
    slow = kind == _TOO_SLOW
    total_us[slow] = rng.integers(CHAIN_WITHIN_US + 2 * MINUTE_US, 2 * CHAIN_WITHIN_US, slow.sum())
    total_us[kind == _EXACT] = CHAIN_WITHIN_US
    total_us[(kind == _OVER) | (kind == _SECOND_A)] = CHAIN_WITHIN_US + 1
    total_us[kind == _UNDER] = CHAIN_WITHIN_US - 1
    share = 0.2 + rng.random((tags, 3))  # keeps the shortest gap longer than all repeats of a reading
    share /= share.sum(axis=1, keepdims=True)
    first_us = np.empty((tags, 4), np.int64)
    first_us[:, 0] = entry_us
    first_us[:, 1] = entry_us + (share[:, 0] * total_us).astype(np.int64)
    first_us[:, 2] = first_us[:, 1] + (share[:, 1] * total_us).astype(np.int64)
    first_us[:, 3] = entry_us + total_us

    reads = np.where(rng.random((tags, 4)) < p_repeated, 2 + rng.integers(0, 2, (tags, 4)), 1)
    reads[kind >= _EXACT] = 1
    reads[kind == _SECOND_A, 0] = 2
    reads[kind == _REPEATED] = 3
    missed = np.flatnonzero(kind == _MISSED)
    reads[missed, rng.integers(0, 4, len(missed))] = 0

    later_us = np.cumsum(rng.integers(SECOND_US, 10 * SECOND_US, (tags, 4, 3)), axis=2)
    ts_us = np.repeat(first_us[:, :, None], 3, axis=2)
    ts_us[:, :, 1:] += later_us[:, :, :2]
    read = np.arange(3) < reads[:, :, None]  # bool (tags, reader, number of the reading)

    name = numbered("tag", rng.permutation(tags), 8)
    row_tag, row_reader, _ = np.nonzero(read)
    row_us = ts_us[read]
    order = np.argsort(row_us, kind="stable")
    events = pa.table(
        {
            "ts": pa.array(row_us[order]).view(TIMESTAMP),
            "tag": name.take(pa.array(row_tag[order])),
            "reader": pa.array(["A", "B", "C", "D"], pa.string()).take(pa.array(row_reader[order])),
        }
    )
    in_time = first_us[:, 3:] - ts_us[:, 0, :] <= CHAIN_WITHIN_US
    starts: np.ndarray = read[:, 0, :] & np.all(reads > 0, axis=1, keepdims=True) & in_time  # (tags, number at A)
    match_tag, match_read = np.nonzero(starts)
    matches = {"a_ts": ts_us[match_tag, 0, match_read]}
    matches |= {f"{reader}_ts": first_us[match_tag, i] for i, reader in enumerate("bcd", 1)}
    truth = pa.table(
        {"tag": name.take(pa.array(match_tag))} | {key: pa.array(us).view(TIMESTAMP) for key, us in matches.items()}
    )
    schema = Schema("readings", FIELDS, time="ts", keys=("tag",))
    return Scenario(
        "rfid supply chain",
        seed,
        (schema,),
        in_batches("readings", "readers", events, batch_rows),
        CHAIN_QUERY,
        truth.sort_by([("d_ts", "ascending"), ("a_ts", "ascending"), ("tag", "ascending")]),
        pa.table(
            {
                "kind": pa.array(list(CHAIN_KINDS), pa.string()).take(pa.array(kind)),
                "tag": name,
                "expected": pa.array(starts.any(axis=1)),
            }
        ),
    )
