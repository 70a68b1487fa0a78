"""What was planted in the shops, found again by loops over the readings that know nothing of how they were made."""

from __future__ import annotations

import pyarrow as pa
import pytest

from simulator.thieves import RING_KINDS, SINGLE_KINDS, Thieves, thieves
from tests.independent import rings_check

pytestmark = pytest.mark.slow

def microseconds(table: pa.Table) -> list[tuple]:
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return list(zip(*(c.to_pylist() for c in columns)))


def found_again(scenario: Thieves) -> dict[str, list[tuple]]:
    return rings_check.answer(microseconds(scenario.scenario.events("readings")))


@pytest.mark.parametrize("seed", [0, 1, 2, 17, 81723])
def test_each_layer_is_what_was_planted(seed: int) -> None:
    scenario = thieves(seed, visitors=150)
    found = found_again(scenario)
    for name, table in scenario.truths.items():
        assert sorted(microseconds(table)) == found[name], name
    assert {name: table.num_rows for name, table in scenario.truths.items() if name != "visit"} == {
        "suspicious": 68, "theft": 64, "ring": 8,
    }  # fmt: skip


def test_those_who_work_at_the_same_time_are_planted_too() -> None:
    scenario = thieves(3, visitors=50)
    begins = {(c["shop"], c["shelf"]) for c in scenario.scenario.cases.to_pylist() if c["kind"] == "together"}
    assert {row[:2] for row in found_again(scenario)["together"]} == begins
    assert len(found_again(scenario)["together"]) == 2


def test_every_kind_is_there() -> None:
    scenario = thieves(5, visitors=60, copies=3)
    assert scenario.scenario.kinds == dict.fromkeys(sorted(RING_KINDS), 3)
    kinds = set(scenario.people["kind"].to_pylist())
    assert kinds == {*SINGLE_KINDS, *RING_KINDS, "buyer", "visitor"}


def test_what_the_readings_do_not_show_is_planted_as_such() -> None:
    people = thieves(4, visitors=60).people.to_pylist()
    hidden = {one["kind"] for one in people if one["stole"] and not one["thefts"]}
    assert hidden == {"quick", "no_corner", "missed_at_the_exit", "missed_at_the_shelf"}
    assert {one["kind"] for one in people if one["thefts"] and not one["stole"]} == {"bystander"}


def test_another_order_of_arrival_has_the_same_events() -> None:
    one, other = (thieves(6, visitors=40, interleaving=i).scenario for i in (0, 1))
    assert one.arrivals != other.arrivals
    assert one.events("readings").equals(other.events("readings"))


def test_readings_are_missed_and_repeated() -> None:
    rows = microseconds(thieves(7, visitors=100).scenario.events("readings"))
    at_shelves = [row for row in rows if row[3] == "shelf"]
    assert len(at_shelves) - len(set(at_shelves)) > 100
    before: dict[str, tuple] = {}
    missed = 0
    for row in at_shelves:
        last = before.get(row[2])
        missed += last is not None and last[4] == row[4] and 15_000_000 < row[0] - last[0] < 60_000_000
        before[row[2]] = row
    assert missed > 100
