"""The demos find what they must: the independent answer on real prices, and exactly the planted truth elsewhere."""

from __future__ import annotations

from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hybrid.demo import stock
from hybrid.demo.scenario import play
from hybrid.engine import Database
from query.errors import HybridWarning
from simulator.highway import HIGHWAY_KINDS, highway
from simulator.rfid import SHOP_KINDS, shop
from tests.independent import stock_check

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
