"""The answer of the stock demo in plain Python, slow and explicit. Imports nothing of the project.

The question. Live are the rows from 2012-01-01 on, history is every row.
- PL, per symbol, in order of date, with empty state on 2012-01-01: `S D{3,}`, greedy, AFTER MATCH SKIP PAST LAST ROW;
  D: close < PREV(close). start_ts = date of S, last_price = close of the last D. The live stream ends with the data.
- History of a PL match: the rows of the same symbol with start_ts - 730 days <= date < start_ts, as an input of its own
  (PREV is null at its first row).
- PA on it: `S D+ U* T`, greedy, AFTER MATCH SKIP PAST LAST ROW; D: close < PREV(close); U: close > PREV(close);
  T: close > PREV(close) AND close > S.close. bottom = lowest close of the D rows.
- A pair is in the answer if bottom BETWEEN 0.9 * last_price AND 1.1 * last_price.
"""

from __future__ import annotations

import sys
from datetime import date, datetime, time, timedelta
from pathlib import Path

import pyarrow.parquet as pq

STOCKS = Path(__file__).parents[2] / "hybrid" / "demo" / "data" / "stocks.parquet"
LIVE_FROM = date(2012, 1, 1)
HISTORY = timedelta(days=730)

Day = tuple[date, float]  # a row of one symbol: its date and its close
Row = tuple[str, datetime, float, datetime, datetime, float]


def falls(days: list[Day], i: int) -> bool:
    """Close below that of the row before; false at the first row, where PREV is null."""
    return i > 0 and days[i][1] < days[i - 1][1]


def rises(days: list[Day], i: int) -> bool:
    return i > 0 and days[i][1] > days[i - 1][1]


def fall_from(days: list[Day], start: int) -> int | None:
    """`S D{3,}` with S at `start`: the index behind the preferred match, or None."""
    end = start + 1
    while end < len(days) and falls(days, end):
        end += 1
    return end if end - (start + 1) >= 3 else None


def tick_from(days: list[Day], start: int) -> tuple[int, int] | None:
    """`S D+ U* T` with S at `start`: the index behind the last D and the index of T of the preferred match, or None.

    Backtracking in the order of preference: the most D first, then the most U.
    """
    most_falls = start + 1
    while most_falls < len(days) and falls(days, most_falls):
        most_falls += 1
    for d_end in range(most_falls, start + 1, -1):  # D+ has at least one row
        most_rises = d_end
        while most_rises < len(days) and rises(days, most_rises):
            most_rises += 1
        for t in range(most_rises, d_end - 1, -1):  # U* may have none
            if t < len(days) and rises(days, t) and days[t][1] > days[start][1]:
                return d_end, t
    return None


def falling_stretches(days: list[Day]) -> list[tuple[date, float]]:
    """(start_ts, last_price) of every match of PL in the rows of one symbol."""
    found = []
    i = 0
    while i < len(days):
        end = fall_from(days, i)
        if end is None:
            i += 1
        else:
            found.append((days[i][0], days[end - 1][1]))
            i = end
    return found


def ticks(days: list[Day]) -> list[tuple[date, date, float]]:
    """(pa_start_ts, pa_end_ts, bottom) of every match of PA in one slice of history."""
    found = []
    i = 0
    while i < len(days):
        shape = tick_from(days, i)
        if shape is None:
            i += 1
        else:
            d_end, t = shape
            found.append((days[i][0], days[t][0], min(close for _, close in days[i + 1 : d_end])))
            i = t + 1
    return found


def midnight(day: date) -> datetime:
    return datetime.combine(day, time())


def answer(path: Path | str = STOCKS) -> list[Row]:
    """All pairs, sorted: (symbol, start_ts, last_price, pa_start_ts, pa_end_ts, bottom). Times are naive UTC."""
    by_symbol: dict[str, list[Day]] = {}
    for row in pq.read_table(path, columns=["symbol", "date", "close"]).to_pylist():
        by_symbol.setdefault(row["symbol"], []).append((row["date"], row["close"]))
    pairs: list[Row] = []
    for symbol, days in by_symbol.items():
        days.sort()
        for start, last_price in falling_stretches([day for day in days if day[0] >= LIVE_FROM]):
            slice_ = [day for day in days if start - HISTORY <= day[0] < start]
            for pa_start, pa_end, bottom in ticks(slice_):
                if 0.9 * last_price <= bottom <= 1.1 * last_price:
                    pairs.append((symbol, midnight(start), last_price, midnight(pa_start), midnight(pa_end), bottom))
    return sorted(pairs)


if __name__ == "__main__":
    sys.stdout.write(f"{len(answer(*sys.argv[1:2]))} rows\n")
