"""Login scenario: accounts whose password was guessed from a device that was new to them.

Stream `logins(ts TIMESTAMP, account VARCHAR, device VARCHAR, ok BOOLEAN)`.

`security` is long: ordinary logins and planted cases are drawn in turn from one generator.
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
    numbered,
)

FIELDS = (
    Field("ts", "TIMESTAMP"), Field("account", "VARCHAR"), Field("device", "VARCHAR"), Field("ok", "BOOLEAN"),
)  # fmt: skip

#: Limit from the first failure to the success, inclusive; and age up to which a login makes a device known.
WITHIN_US = 10 * MINUTE_US
KNOWN_US = 90 * DAY_US

SECURITY_QUERY = """\
SELECT pl.account, pl.device, pl.first_ts, pl.success_ts, pl.failures
FROM logins MATCH_RECOGNIZE (
  PARTITION BY account, device
  ORDER BY ts
  MEASURES FIRST(F.ts) AS first_ts, S.ts AS success_ts, count(F.*) AS failures
  ONE ROW PER MATCH
  PATTERN (F{5,} S)
  WITHIN INTERVAL '10' MINUTE
  DEFINE F AS NOT ok, S AS ok
) AS pl
ANTI JOIN HISTORY OF logins FROM pl.first_ts - INTERVAL '90' DAY TO pl.first_ts AS seen
  ON seen.account = pl.account AND seen.device = pl.device AND seen.ok
"""

#: The sources of logins.
DOORS = ("mail", "vpn", "web")


@dataclass(frozen=True, slots=True)
class Login:
    """An attempt. when_us: relative to time 0 of its case. account, device: 0 for those of the case, 1 for others."""

    when_us: int
    ok: bool
    account: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempts of a case. cases: (time, alarm), for account 0 on device 0; the alarm is (time of the first failure,
    number of failures), or None."""

    logins: tuple[Login, ...]
    cases: tuple[tuple[int, tuple[int, int] | None], ...]


def security_kinds(failures_us: tuple[int, ...]) -> dict[str, Attempts]:
    """Returns every kind of case. failures_us: eight ascending times of failures, in the 10 minutes before 0."""
    eight, five, four = failures_us, failures_us[-5:], failures_us[-4:]

    def guessed(times: tuple[int, ...], *more: Login, counts: bool = True) -> Attempts:
        """Returns failures at these times and a success at 0. counts: it is an alarm, with the failures of the last 10
        minutes."""
        inside = [t for t in times if t >= -WITHIN_US]
        fails = tuple(Login(t, False) for t in times)
        return Attempts((*more, *fails, Login(0, True)), ((0, (inside[0], len(inside)) if counts else None),))

    def seen(*days_us: int, counts: bool) -> Attempts:
        """Returns a case with logins from the device so many microseconds before the first failure."""
        return guessed(eight, *(Login(eight[0] - d, True) for d in days_us), counts=counts)

    def elsewhere(count: int, **which: int) -> Attempts:
        """Returns a case whose first `count` failures are of another account or on another device."""
        fails = tuple(Login(t, False, **(which if i < count else {})) for i, t in enumerate(eight))
        return Attempts((*fails, Login(0, True)), ((0, None),))

    between_us = eight[4] - 1
    again = tuple(Login(HOUR_US + t, t == 0) for t in (*eight, 0))
    new = guessed(eight)
    return {
        "new_device": new,
        "five_failures": guessed(five),
        "four_failures": guessed(four, counts=False),
        "five_in_exactly_10_minutes": guessed((-WITHIN_US, *four)),
        "five_in_10_minutes_and_1us": guessed((-WITHIN_US - 1, *four), counts=False),
        "six_in_10_minutes_and_1us": guessed((-WITHIN_US - 1, *five)),
        "success_between": Attempts(
            (*(Login(t, False) for t in eight), Login(between_us, True), Login(0, True)),
            ((between_us, None), (0, None)),
        ),
        "never_a_success": Attempts(tuple(Login(t, False) for t in eight), ((eight[-1], None),)),
        "failures_of_another_account": elsewhere(8, account=1),
        "failures_on_another_device": elsewhere(8, device=1),
        "half_of_another_account": elsewhere(4, account=1),
        "half_on_another_device": elsewhere(4, device=1),
        "seen_89_days_before": seen(89 * DAY_US, counts=False),
        "seen_91_days_before": seen(91 * DAY_US, counts=True),
        "seen_90_days_before": seen(KNOWN_US, counts=False),
        "seen_90_days_less_1us_before": seen(KNOWN_US - 1, counts=False),
        "seen_90_days_and_1us_before": seen(KNOWN_US + 1, counts=True),
        "seen_91_and_30_days_before": seen(91 * DAY_US, 30 * DAY_US, counts=False),
        "seen_1us_before": seen(1, counts=False),
        "failed_30_days_before": guessed(eight, Login(eight[0] - 30 * DAY_US, False)),
        "another_account_30_days_before": guessed(eight, Login(eight[0] - 30 * DAY_US, True, account=1)),
        "another_device_30_days_before": guessed(eight, Login(eight[0] - 30 * DAY_US, True, device=1)),
        "used_afterwards": guessed(eight, Login(HOUR_US, True)),
        "again_an_hour_later": Attempts((*new.logins, *again), (*new.cases, (HOUR_US, None))),
    }


SECURITY_KINDS = tuple(security_kinds(tuple(range(-8, 0))))


def security(
    seed: int,
    accounts: int = 60,
    copies: int = 2,
    days: int = 110,
    lateness_us: int = 30 * MINUTE_US,
    rows_max: int = 64,
    interleaving: int = 0,
) -> Scenario:
    """Returns a scenario of logins of some months: which passwords were guessed on a device without a login to the
    account in the 90 days before?

    The answer (`SECURITY_QUERY`): five or more failures of one account on one device without a success in between, then
    a success at most 10 minutes after the first of them; only failures of these 10 minutes count. And no success of
    that account on that device in [first failure - 90 days, first failure); failures do not make a device known.
    `accounts` ordinary accounts log in on one to three devices, with up to three failures. There are `copies` cases of
    every kind of `SECURITY_KINDS`, each with a separate account and device. Three sources, `DOORS`. cases: kind,
    account, device, success_ts, expected; one row per success (without one: per last failure). truth: account, device,
    first_ts, success_ts, failures; sorted by success_ts, account. interleaving: see `faults.deliver`. Long: what it
    plants is told here, and drawn and answered below it.
    """
    if days < 95 or copies < 1 or accounts < 0:
        raise ValueError("days must be 95 or more, to have 91 days before a case, and copies 1 or more")
    rng = generator(seed)
    planted = len(SECURITY_KINDS) * copies
    people = iter(numbered("user", rng.permutation(accounts + 2 * planted), 4).to_pylist())
    machines = iter(numbered("dev", rng.permutation(3 * accounts + 2 * planted), 4).to_pylist())

    logins: list[tuple[int, str, str, bool]] = []
    for _ in range(accounts):
        account = next(people)
        for _ in range(int(rng.integers(1, 4))):
            device = next(machines)
            for day in np.flatnonzero(rng.random(days) < rng.uniform(0.02, 0.3)).tolist():
                since_us = START_US + day * DAY_US + 8 * HOUR_US + int(rng.integers(0, 8 * HOUR_US))
                waits_us = rng.integers(2 * SECOND_US, 40 * SECOND_US, int(rng.choice(4, p=(0.7, 0.2, 0.07, 0.03))))
                logins.extend((since_us + int(us), account, device, False) for us in np.cumsum(waits_us))
                logins.append((since_us + int(waits_us.sum()) + MINUTE_US, account, device, True))

    cases: list[tuple[str, str, str, int, tuple[int, int] | None]] = []
    for kind in SECURITY_KINDS:
        for _ in range(copies):
            who, where = (next(people), next(people)), (next(machines), next(machines))
            time_us = START_US + 92 * DAY_US + int(rng.integers(0, (days - 93) * DAY_US))
            seconds = np.sort(-rng.choice(np.arange(6, WITHIN_US // SECOND_US - 5, 2), 8, replace=False))
            failures_us = seconds * SECOND_US + rng.integers(0, SECOND_US, 8)
            attempts = security_kinds(tuple(failures_us.tolist()))[kind]
            logins.extend((time_us + o.when_us, who[o.account], where[o.device], o.ok) for o in attempts.logins)
            for when_us, alarm in attempts.cases:
                first = None if alarm is None else (time_us + alarm[0], alarm[1])
                cases.append((kind, who[0], where[0], time_us + when_us, first))

    schema = Schema("logins", FIELDS, time="ts", keys=("account", "device"), lateness_us=lateness_us)
    logins.sort()
    door = rng.integers(0, len(DOORS), len(logins))
    sources = {name: _logins([x for x, d in zip(logins, door) if d == i]) for i, name in enumerate(DOORS)}
    cases.sort(key=lambda case: (case[3], case[1]))
    alarms = [(account, device, *alarm, us) for _, account, device, us, alarm in cases if alarm is not None]
    return Scenario(
        "security",
        seed,
        (schema,),
        deliver(schema, sources, seed, rows_max, interleaving=interleaving),
        SECURITY_QUERY,
        pa.table(
            {
                "account": pa.array([a for a, _, _, _, _ in alarms], pa.string()),
                "device": pa.array([d for _, d, _, _, _ in alarms], pa.string()),
                "first_ts": pa.array([us for _, _, us, _, _ in alarms], TIMESTAMP),
                "success_ts": pa.array([us for _, _, _, _, us in alarms], TIMESTAMP),
                "failures": pa.array([n for _, _, _, n, _ in alarms], pa.int64()),
            }
        ),
        pa.table(
            {
                "kind": pa.array([kind for kind, _, _, _, _ in cases], pa.string()),
                "account": pa.array([a for _, a, _, _, _ in cases], pa.string()),
                "device": pa.array([d for _, _, d, _, _ in cases], pa.string()),
                "success_ts": pa.array([us for _, _, _, us, _ in cases], TIMESTAMP),
                "expected": pa.array([alarm is not None for _, _, _, _, alarm in cases], pa.bool_()),
            }
        ),
    )


def _logins(rows: list[tuple[int, str, str, bool]]) -> pa.Table:
    return pa.table(
        {
            "ts": pa.array([us for us, _, _, _ in rows], TIMESTAMP),
            "account": pa.array([account for _, account, _, _ in rows], pa.string()),
            "device": pa.array([device for _, _, device, _ in rows], pa.string()),
            "ok": pa.array([ok for _, _, _, ok in rows], pa.bool_()),
        }
    )
