"""ALL ROWS PER MATCH with five measures on ticks of many symbols, beside the same written by hand.

    python -m benchmarks.all_rows [--rows 10_000_000] [--no-pin] > result.json

Prints one JSON object; exits with 1 if the two do not give the same rows. One core, as in benchmarks.v_pattern.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable

import numba
import numpy as np
import pyarrow as pa

from benchmarks import answers
from benchmarks.v_pattern import one_core, stopwatch, through_sql
from simulator import stock

#: rows, symbols, seed, repeat -> what is printed
Benchmark = Callable[[int, int, int, int], dict[str, object]]
WARM_UP_ROWS = 200_000
COLUMNS = ["symbol", "ts", "variable", "number", "fallen", "first_price", "before", "price", "volume"]

QUERY = """
SELECT * FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol ORDER BY ts
    MEASURES CLASSIFIER() AS variable, MATCH_NUMBER() AS number, coalesce(RUNNING sum(B.price), 0) AS fallen,
             FIRST(price) AS first_price, coalesce(PREV(price), 0) AS before
    ALL ROWS PER MATCH
    AFTER MATCH SKIP PAST LAST ROW
    PATTERN (A B+ C+)
    DEFINE B AS price < PREV(price), C AS price > PREV(price)
) AS m"""


@numba.njit(cache=True, nogil=True)
def _matches(code, price, symbol_count, previous, last, length):
    """One pass as in benchmarks.floor. previous[i]: the row before i of its symbol, -1 none. For each match its last
    row and its number of rows, in order of completion; returns how many."""
    phase = np.zeros(symbol_count, np.int8)
    count = np.zeros(symbol_count, np.int64)
    before = np.full(symbol_count, -1, np.int64)
    found = 0
    for i in range(code.shape[0]):
        s = code[i]
        b = before[s]
        previous[i] = b
        p = price[i]
        q = price[b] if b >= 0 else np.nan
        if phase[s] == 2:
            if p > q:
                count[s] += 1
            else:
                last[found] = b
                length[found] = count[s]
                found += 1
                phase[s] = 0
        elif phase[s] == 1:
            if p < q:
                count[s] += 1
            elif p > q:
                phase[s] = 2
                count[s] += 1
            else:
                phase[s] = 0
        elif p < q:
            phase[s] = 1
            count[s] = 2
        before[s] = i
    for s in range(symbol_count):
        if phase[s] == 2:
            last[found] = before[s]
            length[found] = count[s]
            found += 1
    return found


@numba.njit(cache=True, nogil=True)
def _rows(code, price, symbol_count, previous, last, length, row, variable, number, fallen, first_price, before):
    """The output rows of the matches, in their order; variable: 0 A, 1 B, 2 C."""
    numbers = np.zeros(symbol_count, np.int64)
    end = 0
    for m in range(len(last)):
        begin = end
        end += length[m]
        i = last[m]
        for at in range(end - 1, begin - 1, -1):
            row[at] = i
            i = previous[i]
        numbers[code[last[m]]] += 1
        total = 0.0
        for at in range(begin, end):
            r = row[at]
            q = previous[r]
            falling = q >= 0 and price[r] < price[q]
            variable[at] = 0 if at == begin else (1 if falling else 2)
            if at > begin and falling:
                total += price[r]
            number[at] = numbers[code[r]]
            fallen[at] = total
            first_price[at] = price[row[begin]]
            before[at] = price[q] if q >= 0 else 0.0


def by_hand(ticks: pa.Table) -> pa.Table:
    """What QUERY gives, one numba pass to find the matches and one to write their rows, Arrow to Arrow."""
    symbol = ticks.column("symbol").combine_chunks()
    symbol = (symbol if isinstance(symbol, pa.Array) else symbol.chunk(0)).dictionary_encode()
    code, price = symbol.indices.to_numpy(), ticks.column("price").to_numpy()
    n, symbols = len(ticks), len(symbol.dictionary)
    previous = np.empty(n, np.int64)
    last, length = np.empty(n // 3 + 1, np.int64), np.empty(n // 3 + 1, np.int64)
    found = _matches(code, price, symbols, previous, last, length)
    last, length = last[:found], length[:found]
    m = int(length.sum())
    row, variable, number = np.empty(m, np.int64), np.empty(m, np.int8), np.empty(m, np.int64)
    fallen, first_price, before = np.empty(m), np.empty(m), np.empty(m)
    _rows(code, price, symbols, previous, last, length, row, variable, number, fallen, first_price, before)
    at = pa.array(row)
    return pa.table({
        "symbol": symbol.dictionary.take(pa.array(code[row])), "ts": ticks.column("ts").take(at),
        "variable": pa.array(["A", "B", "C"]).take(pa.array(variable)), "number": number, "fallen": fallen,
        "first_price": first_price, "before": before, "price": price[row], "volume": ticks.column("volume").take(at),
    })  # fmt: skip


def benchmark(rows: int, symbols: int, seed: int, repeat: int) -> dict[str, object]:
    """The object that is printed: both contenders, and how many times as long as by hand the engine takes. The two run
    in turns, so that what else the machine does falls on both."""
    ticks = stock.walk(seed, rows, symbols).combine_chunks()
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
    return head("all_rows", rows, symbols, seed) | compared(rows, times, found, COLUMNS)


def head(benchmark: str, rows: int, symbols: int, seed: int) -> dict[str, object]:
    """What a result begins with."""
    return {
        "benchmark": benchmark, "machine": answers.machine(), "versions": answers.versions(), "rows": rows,
        "symbols": symbols, "seed": seed,
    }  # fmt: skip


def compared(
    rows: int, times: dict[str, list[tuple[float, float]]], found: dict[str, pa.Table], columns: list[str]
) -> dict[str, object]:
    """Medians, counts and hashes of the contenders; `ratio`: the first one's processor seconds to the second one's."""
    contenders: dict[str, dict[str, object]] = {}
    medians = []
    for name, measured in times.items():
        seconds, cpu_seconds = (statistics.median(t) for t in zip(*measured))
        medians.append(cpu_seconds)
        contenders[name] = {
            "rows": rows, "seconds": round(seconds, 4), "cpu_seconds": round(cpu_seconds, 4),
            "events_per_second": round(rows / seconds), "matches": len(found[name]),
            "hash": answers.fingerprint(found[name], columns),
        }  # fmt: skip
    agree = len({(c["matches"], c["hash"]) for c in contenders.values()}) == 1
    return {"contenders": contenders, "ratio": round(medians[0] / medians[1], 2), "agree": agree}


def command(benchmark: Benchmark, module: str, text: str, arguments: list[str] | None) -> int:
    """Runs a benchmark from the command line and prints it as JSON; 1 if its contenders disagree. text: what it is."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=text.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="ticks (default 10_000_000)")
    parser.add_argument("--symbols", type=int, default=1000, help="symbols (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the data (default 1)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the median counts (default 3)")
    parser.add_argument("--no-pin", action="store_true", help="leave the choice of CPUs to the system")
    options = parser.parse_args(arguments)
    with one_core(not options.no_pin):
        result = benchmark(options.rows, options.symbols, options.seed, options.repeat)
    print(json.dumps(result, indent=2))
    return 0 if result["agree"] else 1


def main(arguments: list[str] | None = None) -> int:
    return command(benchmark, "benchmarks.all_rows", __doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
