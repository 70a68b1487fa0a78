"""RFID readings of a shop with shelf, register and exit.

The stream is `readings(ts TIMESTAMP, tag VARCHAR, reader VARCHAR)`.
"""

from __future__ import annotations

from dataclasses import dataclass

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
