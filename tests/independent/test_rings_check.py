"""The independent checks of layers: they import nothing of ours, and are right on small inputs."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.independent import delays_check, rings_check
from tests.independent.rings_check import MINUTE, answer
from tests.independent.test_stock_check import imported

Readings = list[tuple[int, str, str, str, str | None, int | None]]


@pytest.mark.parametrize("check", [rings_check, delays_check])
def test_they_import_nothing_of_ours(check: object) -> None:
    names = imported(Path(str(check.__file__)))  # type: ignore[attr-defined]
    assert names - set(sys.stdlib_module_names) <= {"tests"}  # delays_check reads the flights by flights_check


def trip(person: str, begin: int, taken: int = 1, minutes: int = 3, then: str = "corner exit") -> Readings:
    """At the shelf once a minute, and then past other readers once a minute."""
    stay = [(begin + i, "shelf", "gin", 9 - taken * (i > 0)) for i in range(minutes + 1)]
    passed = [(begin + minutes + i, reader, None, None) for i, reader in enumerate(then.split(), 1)]
    return [(at * MINUTE, "s", person, reader, shelf, items) for at, reader, shelf, items in [*stay, *passed]]


def counts(*trips: Readings) -> dict[str, int]:
    return {name: len(rows) for name, rows in answer(sorted(row for one in trips for row in one)).items()}


@pytest.mark.parametrize(("one", "layers"), [
    (trip("a", 0), 3), (trip("a", 0, taken=0), 1), (trip("a", 0, minutes=2), 3), (trip("a", 0, minutes=1), 1),
    (trip("a", 0, minutes=0), 0), (trip("a", 0, then="register corner exit"), 1),
    (trip("a", 0, then="corner register exit"), 2), (trip("a", 0, then="corner"), 2), (trip("a", 0, then="exit"), 1),
])  # fmt: skip
def test_a_trip_goes_as_far_as_its_readings(one: Readings, layers: int) -> None:
    assert list(counts(one).values()) == [1] * layers + [0] * (5 - layers)


def test_readings_more_than_a_minute_apart_are_two_visits() -> None:
    one = trip("a", 0, minutes=5)
    later = [(ts + (ts > 2 * MINUTE), *rest) for ts, *rest in one]
    assert counts(one)["visit"] == 1
    assert counts(later)["visit"] == 2  # type: ignore[arg-type]


def test_a_ring_is_three_persons_one_after_the_other_within_an_hour() -> None:
    a, b, c = trip("a", 0), trip("b", 10), trip("c", 20)
    assert (counts(a, b, c)["ring"], counts(a, b, c)["together"]) == (1, 0)
    assert counts(a, b, trip("a", 20))["ring"] == 0
    assert counts(a, b, trip("c", 55))["ring"] == 1
    assert counts(a, b, trip("c", 56))["ring"] == 0
    assert counts(a, b, c, trip("d", 30))["ring"] == 2
    assert (counts(a, trip("b", 1), trip("c", 2))["ring"], counts(a, trip("b", 1), trip("c", 2))["together"]) == (0, 1)


def growth(origin: str, minute: int, tailnum: str = "N1") -> delays_check.Growth:
    at = datetime(2013, 1, 1) + timedelta(minutes=minute)
    return tailnum, origin, at, at, at, 0, 30, 60


def test_a_wave_is_all_of_two_hours_from_three_on() -> None:
    def found(*minutes: int) -> list[int]:
        return [wave.aircraft for wave in delays_check.waves([growth("JFK", m) for m in minutes], "JFK")]

    assert found(0, 60) == []
    assert found(0, 60, 120) == [3]
    assert found(0, 60, 121, 122) == [3]
    assert found(0, 1, 2, 3, 120, 121, 122, 123) == [5, 3]


def test_a_bad_day_has_waves_of_three_airports_one_after_the_other() -> None:
    def found(**minutes: int) -> int:
        ordered = sorted((growth(o, m + i) for o, m in minutes.items() for i in range(3)), key=lambda g: g[4])
        waves = [wave for origin in ("EWR", "JFK", "LGA") for wave in delays_check.waves(ordered, origin)]
        return len(list(delays_check.bad_days(waves)))

    assert found(EWR=0, JFK=10, LGA=20) == 1
    assert found(EWR=0, JFK=1, LGA=20) == 0
    assert found(EWR=0, JFK=10, LGA=718) == 1
    assert found(EWR=0, JFK=10, LGA=719) == 0
    assert found(EWR=0, JFK=10) == 0
