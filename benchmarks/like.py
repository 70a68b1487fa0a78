"""A string condition, LIKE, on a column of few distinct values and on one of many, beside code by hand.

    python -m benchmarks.like [--rows 10_000_000] [--no-pin] > result.json

Prints one JSON object; exits with 1 where the two do not find the same matches. One core, as in benchmarks.v_pattern.
"""

from __future__ import annotations

import sys

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.all_rows import WARM_UP_ROWS, command, compared, head
from benchmarks.v_pattern import stopwatch, through_sql
from simulator import stock
from simulator.scenario import generator

COLUMNS = ["symbol", "start_ts", "price"]

QUERY = """
SELECT symbol, start_ts, price FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES A.ts AS start_ts, B.price AS price
    PATTERN (A B)
    DEFINE A AS name LIKE 'ab%', B AS price < PREV(price)
) AS m"""


def named(ticks: pa.Table, distinct: int, seed: int) -> pa.Table:
    """The ticks with a column `name` of about so many distinct strings, one in eight of which begins with ab."""
    numbers = generator(seed).integers(0, distinct, len(ticks))
    words, at = np.unique(numbers, return_inverse=True)
    texts = pa.array([f"{('ab', 'ba', 'ac', 'bb', 'ca', 'cb', 'a', '')[w % 8]}{w:x}" for w in words.tolist()])
    return ticks.append_column("name", texts.take(pa.array(at)))


@numba.njit(cache=True, nogil=True)
def _pass(code, price, starts, symbol_count, first, second):
    """One pass: a row whose name fits, then a lower price of the same symbol. Returns how many."""
    before = np.full(symbol_count, -1, np.int64)
    taken = np.zeros(symbol_count, np.bool_)  # the row before is part of a match
    found = 0
    for i in range(code.shape[0]):
        s = code[i]
        b = before[s]
        if b >= 0 and not taken[s] and starts[b] and price[i] < price[b]:
            first[found] = b
            second[found] = i
            found += 1
            taken[s] = True
        else:
            taken[s] = False
        before[s] = i
    return found


def by_hand(ticks: pa.Table) -> pa.Table:
    """What QUERY gives: Arrow's starts_with and one numba pass."""
    symbol = ticks.column("symbol").combine_chunks()
    symbol = (symbol if isinstance(symbol, pa.Array) else symbol.chunk(0)).dictionary_encode()
    code = symbol.indices.to_numpy()
    starts = pc.starts_with(ticks.column("name"), "ab").to_numpy()
    first, second = np.empty(len(ticks) // 2 + 1, np.int64), np.empty(len(ticks) // 2 + 1, np.int64)
    price = ticks.column("price").to_numpy()
    n = _pass(code, price, starts, len(symbol.dictionary), first, second)
    return pa.table({
        "symbol": symbol.dictionary.take(pa.array(code[first[:n]])),
        "start_ts": ticks.column("ts").take(pa.array(first[:n])),
        "price": price[second[:n]],
    })  # fmt: skip


def benchmark(rows: int, symbols: int, seed: int, repeat: int) -> dict[str, object]:
    """The object that is printed; `columns` has one entry for each kind of column."""
    plain = stock.walk(seed, rows, symbols).combine_chunks()
    columns = {}
    for kind, distinct in (("few distinct", 200), ("many distinct", max(rows, 200))):
        ticks = named(plain, distinct, seed).combine_chunks()
        few = ticks.slice(0, min(rows, WARM_UP_ROWS))
        through_sql(few, QUERY)
        by_hand(few)
        times: dict[str, list[tuple[float, float]]] = {"hybrid sql": [], "numba by hand": []}
        found: dict[str, pa.Table] = {}
        for _ in range(repeat):
            seconds, cpu_seconds, found["hybrid sql"] = through_sql(ticks, QUERY)
            times["hybrid sql"].append((seconds, cpu_seconds))
            stop = stopwatch()
            found["numba by hand"] = by_hand(ticks)
            times["numba by hand"].append(stop())
        columns[kind] = compared(rows, times, found, COLUMNS)
    agree = all(c["agree"] for c in columns.values())
    return head("like", rows, symbols, seed) | {"columns": columns, "agree": agree}


def main(arguments: list[str] | None = None) -> int:
    return command(benchmark, "benchmarks.like", __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
