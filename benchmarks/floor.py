"""The practical limit: the V pattern written by hand in numba, from an Arrow table to an Arrow table."""

from __future__ import annotations

import numba
import numpy as np
import pyarrow as pa


@numba.njit(cache=True, nogil=True)
def _pass(code, ts, price, symbol_count, out_code, out_start, out_bottom, out_top):
    """One pass over ticks in time order with one state per symbol. Returns the number of matches.

    code: int32 (n,) in [0, symbol_count); ts: int64 (n,); price: float64 (n,). out_*: at least n // 3 long.
    phase: 0 waiting, 1 falling, 2 rising. A row that ends a rise with a fall cannot take the row before it as its A,
    because that row belongs to the match just found.
    """
    phase = np.zeros(symbol_count, np.int8)
    last_ts = np.zeros(symbol_count, np.int64)
    last_price = np.full(symbol_count, np.nan)
    start = np.zeros(symbol_count, np.int64)
    bottom = np.zeros(symbol_count, np.float64)
    found = 0
    for i in range(code.shape[0]):
        s = code[i]
        p = price[i]
        before = last_price[s]
        if phase[s] == 2:
            if not p > before:
                out_code[found] = s
                out_start[found] = start[s]
                out_bottom[found] = bottom[s]
                out_top[found] = before
                found += 1
                phase[s] = 0
        elif phase[s] == 1:
            if p < before:
                bottom[s] = p
            elif p > before:
                phase[s] = 2
            else:
                phase[s] = 0
        elif p < before:
            phase[s] = 1
            start[s] = last_ts[s]
            bottom[s] = p
        last_ts[s] = ts[i]
        last_price[s] = p
    for s in range(symbol_count):
        if phase[s] == 2:
            out_code[found] = s
            out_start[found] = start[s]
            out_bottom[found] = bottom[s]
            out_top[found] = last_price[s]
            found += 1
    return found


def v_pattern(ticks: pa.Table) -> pa.Table:
    """Columns symbol, start_ts, bottom, top; one row per match, in order of completion.

    ticks: symbol string, ts timestamp[us], price double, without nulls, in time order.
    """
    symbol = ticks.column("symbol").combine_chunks()
    symbol = (symbol if isinstance(symbol, pa.Array) else symbol.chunk(0)).dictionary_encode()
    code = symbol.indices.to_numpy()
    ts = ticks.column("ts").combine_chunks().cast(pa.int64()).to_numpy()
    price = ticks.column("price").to_numpy()
    size = len(ticks) // 3 + 1
    out_code, out_start = np.empty(size, np.int32), np.empty(size, np.int64)
    out_bottom, out_top = np.empty(size), np.empty(size)
    n = _pass(code, ts, price, len(symbol.dictionary), out_code, out_start, out_bottom, out_top)
    return pa.table({
        "symbol": symbol.dictionary.take(pa.array(out_code[:n])),
        "start_ts": pa.array(out_start[:n]).cast(pa.timestamp("us")),
        "bottom": pa.array(out_bottom[:n]),
        "top": pa.array(out_top[:n]),
    })
