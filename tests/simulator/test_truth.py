"""The planted answers, found again by loops over the events that know nothing of how they were made."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest

from simulator.highway import HIGHWAY_KINDS, highway
from simulator.rfid import CHAIN_KINDS, SHOP_KINDS, shop, supply_chain
from simulator.scenario import Scenario
from simulator.security import SECURITY_KINDS, security

SEEDS = [0, 1, 2, 17, 81723]
HOUR = 3_600_000_000
DAY = 24 * HOUR


def microseconds(table: pa.Table) -> list[tuple]:
    """Rows as tuples, times as microseconds."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return list(zip(*(c.to_pylist() for c in columns)))


def shop_alarms(scenario: Scenario) -> list[tuple[str, int]]:
    readings = microseconds(scenario.events("readings"))
    registers = defaultdict(list)
    for ts, tag, reader in readings:
        if reader == "register":
            registers[tag].append(ts)
    alarms = []
    for ts, tag, reader in readings:
        if reader == "exit" and not any(ts - 10 * DAY <= paid < ts for paid in registers[tag]):
            alarms.append((tag, ts))
    return sorted(alarms, key=lambda a: (a[1], a[0]))


def guessed(scenario: Scenario) -> list[tuple[str, str, int, int, int]]:
    """A success, as many failures right before it as lie within 10 minutes, and no success in the 90 days before."""
    by_pair = defaultdict(list)
    for ts, account, device, ok in microseconds(scenario.events("logins")):
        by_pair[account, device].append((ts, ok))
    found = []
    for (account, device), logins in by_pair.items():
        for i, (ts, ok) in enumerate(logins):
            since = max((j + 1 for j in range(i) if logins[j][1]), default=0)
            failures = [t for t, _ in logins[since:i] if ts - t <= HOUR // 6]
            if ok and len(failures) >= 5:
                known = any(other_ok and failures[0] - 90 * DAY <= t < failures[0] for t, other_ok in logins)
                if not known:
                    found.append((account, device, failures[0], ts, len(failures)))
    return sorted(found, key=lambda f: (f[3], f[0]))


def too_fast(scenario: Scenario, limit: int) -> list[tuple[str, int, int, int, float]]:
    readings = microseconds(scenario.events("tolls"))
    by_car = defaultdict(list)
    for reading in readings:
        by_car[reading[1]].append(reading)
    found = []
    for ts, car, point, km in readings:
        before = [r for r in by_car[car] if r[2] == point - 1 and ts - 2 * HOUR <= r[0] < ts]
        if point > 0 and before:
            last = max(before)
            half_km = int(km * 2) - int(last[3] * 2)
            if half_km * 1_800_000_000 > limit * (ts - last[0]):
                speed = (km - last[3]) * 3600000000 / (ts - last[0])
                found.append((car, point, ts, last[0], speed))
    return sorted(found, key=lambda f: (f[2], f[0], f[1]))


def chains(scenario: Scenario) -> list[tuple[str, int, int, int, int]]:
    """Skip till next match: a run per reading at A takes the next reading it waits for and ignores the others."""
    by_tag = defaultdict(list)
    for ts, tag, reader in microseconds(scenario.events("readings")):
        by_tag[tag].append((ts, reader))
    found = []
    for tag, rows in by_tag.items():
        for i, (ts, reader) in enumerate(rows):
            if reader == "A":
                run = [ts]
                for later, at in rows[i + 1 :]:
                    if len(run) < 4 and at == "ABCD"[len(run)]:
                        run.append(later)
                if len(run) == 4 and run[3] - run[0] <= 10 * HOUR:
                    found.append((tag, *run))
    return sorted(found, key=lambda f: (f[4], f[1], f[0]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_shop(seed):
    scenario = shop(seed)
    alarms = shop_alarms(scenario)
    assert microseconds(scenario.truth) == alarms
    assert 30 < len(alarms) < scenario.cases.num_rows / 2
    expected = [(tag, ts) for _, tag, ts, expected in microseconds(scenario.cases) if expected]
    assert expected == alarms


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_security(seed):
    scenario = security(seed)
    found = guessed(scenario)
    assert microseconds(scenario.truth) == found
    assert 15 < len(found) < scenario.cases.num_rows / 2
    expected = [(account, device, ts) for _, account, device, ts, expected in microseconds(scenario.cases) if expected]
    assert expected == [(account, device, ts) for account, device, _, ts, _ in found]


@pytest.mark.parametrize("limit", [120, 100])
@pytest.mark.parametrize("seed", SEEDS)
def test_highway(seed, limit):
    scenario = highway(seed, limit_kmh=limit)
    found = too_fast(scenario, limit)
    assert microseconds(scenario.truth) == found
    assert 50 < len(found) < scenario.cases.num_rows / 2
    expected = {(car, point, ts) for _, car, point, ts, expected in microseconds(scenario.cases) if expected}
    assert expected == {f[:3] for f in found}


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", SEEDS)
def test_supply_chain(seed, ratio):
    scenario = supply_chain(seed, 400, match_ratio=ratio, p_repeated=0.3)
    found = chains(scenario)
    assert microseconds(scenario.truth) == found
    matched = {tag for _, tag, expected in microseconds(scenario.cases) if expected}
    assert matched == {f[0] for f in found}
    assert abs(len(matched) / 400 - ratio) < 0.1


@pytest.mark.parametrize("seed", range(20))
def test_every_kind_is_planted(seed):
    for scenario, kinds in (
        (shop(seed, items=0, copies=1), SHOP_KINDS),
        (highway(seed, cars=0, copies=1), HIGHWAY_KINDS),
        (supply_chain(seed, 8, copies=1), CHAIN_KINDS),
        (security(seed, accounts=0, copies=1), SECURITY_KINDS),
    ):
        assert set(scenario.kinds) == set(kinds)
        assert min(scenario.kinds.values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "kind", "expected"),
    [
        (shop, "register_10_days_before", False),
        (shop, "register_10_days_and_1us_before", True),
        (shop, "register_1us_before_exit", False),
        (shop, "register_at_exit_time", True),
        (shop, "register_after_exit", True),
        (highway, "at_the_limit", False),
        (highway, "1us_over_the_limit", True),
        (highway, "previous_2_hours_before", True),
        (highway, "previous_2_hours_and_1us_before", False),
        (highway, "previous_at_same_time", False),
        (highway, "previous_at_same_time_and_earlier", True),
        (highway, "missed_previous", False),
        (security, "four_failures", False),
        (security, "five_in_exactly_10_minutes", True),
        (security, "five_in_10_minutes_and_1us", False),
        (security, "failures_of_another_account", False),
        (security, "seen_89_days_before", False),
        (security, "seen_90_days_before", False),
        (security, "seen_90_days_and_1us_before", True),
        (security, "seen_91_days_before", True),
        (security, "failed_30_days_before", True),
    ],
)
def test_edges_are_on_the_side_they_should_be(make, kind, expected):
    rows = [row for row in make(4).cases.to_pylist() if row["kind"] == kind]
    assert rows
    assert {row["expected"] for row in rows} == {expected}


@pytest.mark.slow
@pytest.mark.parametrize("make", [shop, highway, security, lambda seed: supply_chain(seed, 300)])
def test_same_seed_same_bytes(make):
    one, again, other = make(5), make(5), make(6)
    assert one.truth.equals(again.truth)
    assert one.cases.equals(again.cases)
    assert len(one.arrivals) == len(again.arrivals)
    for a, b in zip(one.arrivals, again.arrivals):
        assert a[:3] == b[:3]
        assert a.batch.equals(b.batch)
    assert not one.truth.equals(other.truth)


@pytest.mark.parametrize(
    "call",
    [
        lambda: shop(1, days=5),
        lambda: highway(1, points=3),
        lambda: security(1, days=90),
        lambda: highway(1, limit_kmh=130),
        lambda: supply_chain(1, 3),
        lambda: supply_chain(1, 100, match_ratio=2.0),
    ],
)
def test_arguments_that_make_no_sense(call):
    with pytest.raises(ValueError, match=r"must be|points"):
        call()
