"""The stock generators: reproducible, in their ranges, with the shares they promise."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from matching.types import arrow_type
from simulator.stock import SASE_STOCK, TICKS, sase, walk


@pytest.mark.parametrize("make", [sase, walk])
def test_same_seed_same_bytes(make):
    assert make(7, 5000).equals(make(7, 5000))
    assert not make(7, 5000).equals(make(8, 5000))


@pytest.mark.parametrize(("make", "schema"), [(sase, SASE_STOCK), (walk, TICKS)])
@pytest.mark.parametrize("events", [0, 1, 100])
def test_columns_are_those_of_the_schema(make, schema, events):
    table = make(1, events)
    assert table.num_rows == events
    assert [(f.name, f.type) for f in table.schema] == [(f.name, arrow_type(f.type)) for f in schema.fields]
    assert all(column.null_count == 0 for column in table.columns)


def test_sase_has_the_distributions_of_the_paper():
    table = sase(3, 60_000)
    for name, top in (("symbol", 2), ("price", 1000), ("volume", 1000)):
        assert pc.min_max(table[name]).as_py() == {"min": 1, "max": top}
    assert abs(pc.mean(table["volume"]).as_py() - 500.5) < 5
    moves = {"up": 0, "down": 0, "flat": 0}
    last: dict[int, int] = {}
    for symbol, price in zip(table["symbol"].to_pylist(), table["price"].to_pylist()):
        if symbol in last:
            moves["up" if price > last[symbol] else "down" if price < last[symbol] else "flat"] += 1
        last[symbol] = price
    total = sum(moves.values())
    assert abs(moves["up"] / total - 0.7) < 0.01
    assert abs(moves["down"] / total - 0.15) < 0.01
    assert abs(moves["flat"] / total - 0.15) < 0.01


def test_sase_moves_each_symbol_by_one_to_three():
    last: dict[int, int] = {}
    for row in sase(5, 5000, symbols=3).to_pylist():
        if row["symbol"] in last:
            step = (row["price"] - last[row["symbol"]] + 500) % 1000 - 500  # prices go round
            assert -3 <= step <= 3
        last[row["symbol"]] = row["price"]


def test_walk_is_on_the_cent_grid_between_its_walls_with_different_times():
    table = walk(2, 50_000, symbols=50, volatility=0.05, price_max=80.0)
    cents = np.rint(table["price"].to_numpy() * 100)
    assert (cents / 100 == table["price"].to_numpy()).all()
    assert cents.min() >= 100
    assert cents.max() <= 8000
    assert pc.count_distinct(table["symbol"]).as_py() == 50
    assert pc.min(table["volume"]).as_py() >= 100
    gaps = np.diff(table["ts"].cast("int64").to_numpy())
    assert gaps.min() >= 1
    assert 900 < gaps.mean() < 1100


def test_walk_can_have_ties():
    gaps = np.diff(walk(2, 20_000, p_tie=0.25)["ts"].cast("int64").to_numpy())
    assert abs((gaps == 0).mean() - 0.25) < 0.02


@pytest.mark.parametrize("arguments", [{"events": -1}, {"events": 5, "symbols": 0}])
@pytest.mark.parametrize("make", [sase, walk])
def test_arguments_that_make_no_sense(make, arguments):
    with pytest.raises(ValueError, match="must be"):
        make(1, **arguments)
