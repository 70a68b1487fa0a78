"""The independent stock check: it imports nothing of ours, is right on small inputs, and agrees with a third way."""

from __future__ import annotations

import ast
import re
import sys
from datetime import date, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.independent import stock_check

CHECK = Path(stock_check.__file__)


def imported(path: Path) -> set[str]:
    """The first names of all modules a file imports, in whatever place."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(str(node.module).split(".")[0])
        elif isinstance(node, ast.Name) and node.id in ("__import__", "exec", "eval", "importlib"):
            pytest.fail(f"{path.name} uses {node.id}")
    return names


def test_it_imports_nothing_of_ours():
    names = imported(CHECK)
    assert "pyarrow" in names
    assert names - set(sys.stdlib_module_names) <= {"pyarrow", "duckdb"}


def write(path: Path, first: date, closes: list[float]) -> Path:
    days = [first + timedelta(days=i) for i in range(len(closes))]
    pq.write_table(pa.table({"date": days, "symbol": ["A"] * len(closes), "close": closes}), path)
    return path


def test_a_fall_that_finds_one_tick(tmp_path):
    # 2011-12-20 ...: a tick 10 9 8 9 11 from the 21st to the 25th; live from 2012-01-01: 9 8.5 8.4 8.1 9
    before = [10, 10, 9, 8, 9, 11, 11, 11, 11, 11, 11, 11]
    path = write(tmp_path / "s.parquet", date(2011, 12, 20), [*map(float, before), 9.0, 8.5, 8.4, 8.1, 9.0])
    assert stock_check.answer(path) == [
        ("A", datetime(2012, 1, 1), 8.1, datetime(2011, 12, 21), datetime(2011, 12, 25), 8.0)
    ]


def test_the_shape_of_a_fall():
    def found(closes):
        return stock_check.falling_stretches([(date(2012, 1, 1 + i), c) for i, c in enumerate(closes)])

    assert found([5, 4, 3]) == []
    assert found([5, 4, 3, 2]) == [(date(2012, 1, 1), 2)]
    assert found([5, 4, 3, 3]) == []
    # The second match begins behind the last row of the first.
    assert found([9, 8, 7, 6, 7, 6, 5, 4]) == [(date(2012, 1, 1), 6), (date(2012, 1, 5), 4)]


def test_the_shape_of_a_tick():
    def found(closes):
        return [
            (a.day, b.day, bottom)
            for a, b, bottom in stock_check.ticks([(date(2012, 1, 1 + i), c) for i, c in enumerate(closes)])
        ]

    assert found([5, 4, 6]) == [(1, 3, 4)]
    assert found([5, 4, 5]) == []  # the last U is not above S
    assert found([7, 5, 4, 6]) == [(2, 4, 4)]  # from 7 it fails, from 5 it does not
    assert found([5, 4, 6, 7, 3, 8]) == [(1, 4, 4)]  # 7 is taken, so it cannot be the S of 3, 8
    assert found([5, 4, 6, 6, 5, 7]) == [(1, 3, 4), (4, 6, 5)]
    assert found([5]) == []


def by_regular_expression(path: Path) -> list[stock_check.Row]:
    """The same question with letters for rows: F falls, R rises, = neither, and the first row of an input is =."""
    table = pq.read_table(path).sort_by([("symbol", "ascending"), ("date", "ascending")])
    result = []
    for symbol in sorted(set(table["symbol"].to_pylist())):
        rows = table.filter(pc.equal(table["symbol"], symbol))
        dates, closes = rows["date"].to_pylist(), rows["close"].to_pylist()
        steps = "=" + "".join("F" if b < a else "R" if b > a else "=" for a, b in pairwise(closes))
        live = next((i for i, d in enumerate(dates) if d >= date(2012, 1, 1)), len(dates))
        for fall in re.finditer(r".F{3,}", "=" * (live < len(dates)) + steps[live + 1 :]):
            start, price = dates[live + fall.start()], closes[live + fall.end() - 1]
            low = next(i for i, d in enumerate(dates) if d >= start - timedelta(days=730))
            high = dates.index(start)
            letters, at = "=" * (low < high) + steps[low + 1 : high], 0
            while tick := re.compile(r".(F+)R+").search(letters, at):
                first, last = low + tick.start(), low + tick.end() - 1
                if closes[last] > closes[first]:
                    at = tick.end()
                    bottom = closes[low + tick.end(1) - 1]
                    if 0.9 * price <= bottom <= 1.1 * price:
                        times = [datetime.combine(d, datetime.min.time()) for d in (start, dates[first], dates[last])]
                        result.append((symbol, times[0], price, times[1], times[2], bottom))
                else:
                    at = tick.start() + 1
    return sorted(result)


@pytest.mark.slow
def test_two_ways_agree_on_the_data_of_the_demo():
    answer = stock_check.answer()
    assert answer == by_regular_expression(stock_check.STOCKS)
    assert len(answer) == 1920
    assert {row[0] for row in answer} == {"AAPL", "FB", "GOOG", "IBM", "MSFT"}


def test_the_data_of_the_demo():
    table = pq.read_table(stock_check.STOCKS)
    assert table.num_rows == 12_154
    assert stock_check.STOCKS.stat().st_size < 400_000
    assert table.column_names == ["date", "symbol", "open", "high", "low", "close", "volume", "adj_close"]
    assert table.group_by("symbol").aggregate([("date", "min"), ("date", "count")]).sort_by("symbol").to_pylist() == [
        {"symbol": "AAPL", "date_min": date(2000, 3, 1), "date_count": 3270},
        {"symbol": "FB", "date_min": date(2012, 5, 18), "date_count": 196},
        {"symbol": "GOOG", "date_min": date(2004, 8, 19), "date_count": 2148},
        {"symbol": "IBM", "date_min": date(2000, 3, 1), "date_count": 3270},
        {"symbol": "MSFT", "date_min": date(2000, 3, 1), "date_count": 3270},
    ]
    record = (stock_check.STOCKS.parent / "stocks.LICENSE.txt").read_text(encoding="utf-8")
    assert '"recorded_license": "Public domain"' in record
    assert '"status": "source-verified"' in record
    assert "5abadf99b2d394f920120a27de6f0df129859d71d4cfb0bf661bcc99446ab1fd" in record
