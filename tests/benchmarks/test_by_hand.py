"""The hand-written contenders answer the same question: checked against a scan that is slow and obvious."""

from __future__ import annotations

import pyarrow as pa
import pytest

from benchmarks import answers, floor, windows
from simulator import stock

NAMES = ["symbol", "start_ts", "bottom", "top"]


def obvious(ticks: pa.Table) -> pa.Table:
    """`A B+ C+`, B falling, C rising, SKIP PAST LAST ROW: for each start the longest falls, then the longest rises."""
    found = []
    for symbol in sorted(set(ticks["symbol"].to_pylist())):
        rows = [row for row in ticks.to_pylist() if row["symbol"] == symbol]
        price = [row["price"] for row in rows]
        start = 0
        while start < len(rows):
            low = start
            while low + 1 < len(rows) and price[low + 1] < price[low]:
                low += 1
            high = low
            while high + 1 < len(rows) and price[high + 1] > price[high]:
                high += 1
            if start < low < high:
                found.append((symbol, rows[start]["ts"], price[low], price[high]))
                start = high + 1
            else:
                start += 1
    columns = list(zip(*found)) or [()] * 4
    types = [pa.string(), pa.timestamp("us"), pa.float64(), pa.float64()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types)], names=NAMES)


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("events", [0, 1, 2, 3, 40, 400])
@pytest.mark.parametrize("seed", range(8))
def test_contenders_agree_with_the_obvious_scan(seed: int, events: int) -> None:
    ticks = stock.walk(seed, events, symbols=3)
    expected = obvious(ticks)
    assert events < 40 or len(expected) > 0
    for contender in (floor.v_pattern, windows.v_pattern_polars, windows.v_pattern_duckdb):
        answer = contender(ticks)
        assert len(answer) == len(expected), contender.__name__
        assert answers.fingerprint(answer, NAMES) == answers.fingerprint(expected, NAMES), contender.__name__


def test_a_chain_of_short_valleys_matches_every_second_one() -> None:
    price = [5.0, 4.0, 6.0, 3.0, 7.0, 2.0, 8.0, 1.0, 9.0]
    ticks = pa.table({
        "ts": pa.array(range(len(price)), pa.timestamp("us")),
        "symbol": pa.array(["S"] * len(price)),
        "price": price,
    })
    for contender in (floor.v_pattern, windows.v_pattern_polars, windows.v_pattern_duckdb):
        answer = contender(ticks).sort_by("start_ts")
        assert answer["bottom"].to_pylist() == [4.0, 2.0], contender.__name__
        assert answer["top"].to_pylist() == [6.0, 8.0], contender.__name__


def test_fingerprint_sees_values_not_order_or_types() -> None:
    table = pa.table({"symbol": ["a", "b", "a"], "start_ts": pa.array([1, 2, 3], pa.timestamp("us")),
                      "bottom": [1.0, 2.0, 3.0], "top": [4.0, 5.0, 6.0]})
    same = table.take([2, 0, 1]).set_column(0, "symbol", pa.array(["a", "a", "b"]).dictionary_encode())
    other = table.set_column(2, "bottom", pa.array([1.0, 2.0, 3.5]))
    swapped = table.set_column(0, "symbol", pa.array(["b", "a", "a"]))
    prints = [answers.fingerprint(t, NAMES) for t in (table, same, other, swapped)]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3
