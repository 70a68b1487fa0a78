"""Stock prices: the generator of the [SASE] experiments, and a realistic random walk of ticks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from query.schema import Field, Schema
from simulator.scenario import SECOND_US, START_US, TIMESTAMP, generator, numbered

SASE_STOCK = Schema(
    "stock",
    (Field("ts", "TIMESTAMP"), Field("symbol", "BIGINT"), Field("price", "BIGINT"), Field("volume", "BIGINT")),
    time="ts",
    keys=("symbol",),
)

TICKS = Schema(
    "ticks",
    (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE"), Field("volume", "BIGINT")),
    time="ts",
    keys=("symbol",),
)


def sase(
    seed: int,
    events: int,
    symbols: int = 2,
    p_rise: float = 0.7,
    price_max: int = 1000,
    volume_max: int = 1000,
    step_max: int = 3,
    start_us: int = START_US,
    interval_us: int = SECOND_US,
) -> pa.Table:
    """Returns the stock stream of the [SASE] experiments (section 6): the columns of `SASE_STOCK`, in order of ts.

    symbol: uniform in [1, symbols]. price, in [1, price_max]: the first is uniform; each event moves the price of its
    symbol by a uniform 1 to step_max, up with probability p_rise and down with (1 - p_rise) / 2, and else leaves it.
    A price beyond price_max wraps around to 1, and vice versa (the paper does not define this; at the defaults it is
    less than one event in 500). volume: uniform in [1, volume_max]. One event every interval_us. O(events).
    """
    if events < 0 or symbols < 1 or not 0 <= p_rise <= 1:
        raise ValueError("events must be 0 or more, symbols 1 or more, p_rise in [0, 1]")
    rng = generator(seed)
    symbol = rng.integers(0, symbols, events)
    move = rng.random(events)
    direction = np.where(move < p_rise, 1, np.where(move < p_rise + (1 - p_rise) / 2, -1, 0))
    step = direction * rng.integers(1, step_max + 1, events)
    first_price = rng.integers(0, price_max, symbols)
    return pa.table(
        {
            "ts": _times(start_us + np.arange(events, dtype=np.int64) * interval_us),
            "symbol": symbol + 1,
            "price": (first_price[symbol] + _sums_by_symbol(symbol, step)) % price_max + 1,
            "volume": rng.integers(1, volume_max + 1, events),
        }
    )


def walk(
    seed: int,
    events: int,
    symbols: int = 1000,
    start_us: int = START_US,
    mean_gap_us: float = 1000.0,
    p_tie: float = 0.0,
    volatility: float = 0.0004,
    price_max: float = 2000.0,
) -> pa.Table:
    """Returns market ticks: the columns of `TICKS` (symbols `S0000` and so on), in order of ts.

    Symbols differ in trading frequency (rank r in proportion to 1 / (r + 10)) and in price. A price is a random walk on
    whole cents, as a double, between 1.00 and price_max, with normal steps of `volatility` times the first price.
    Rounding to cents leaves it unchanged at one tick in three (cheap symbols) to one in fifty (expensive ones). volume:
    log-normal, in lots of 100. Times have exponential gaps with a mean of mean_gap_us and are distinct, except that
    each tick has the time of the one before with probability p_tie. O(events log symbols), about 0.4 us per event.
    """
    if events < 0 or symbols < 1 or mean_gap_us < 1 or not 0 <= p_tie <= 1:
        raise ValueError("events must be 0 or more, symbols 1 or more, mean_gap_us 1 or more, p_tie in [0, 1]")
    rng = generator(seed)
    names = rng.permutation(symbols)  # makes the number in a name independent of the trading frequency
    share = np.cumsum(1.0 / (np.arange(symbols) + 10.0))
    symbol = names[np.minimum(np.searchsorted(share, rng.random(events) * share[-1], side="right"), symbols - 1)]
    gap = 1 + rng.exponential(mean_gap_us - 1, events).astype(np.int64)
    if p_tie > 0:
        gap[rng.random(events) < p_tie] = 0
    first_cents = np.exp(rng.normal(np.log(5000.0), 0.8, symbols)).astype(np.int64)
    scale = np.maximum(first_cents * volatility, 1.2)
    step = np.rint(rng.standard_normal(events) * scale[symbol]).astype(np.int64)
    cents = _folded(first_cents[symbol] + _sums_by_symbol(symbol, step), 100, int(price_max * 100))
    lots = 1 + np.exp(rng.standard_normal(events) * 1.1 + 0.5).astype(np.int64)
    return pa.table(
        {
            "ts": _times(start_us + np.cumsum(gap) - (gap[0] if events else 0)),
            "symbol": numbered("S", range(symbols), 4).take(pa.array(symbol)),
            "price": cents / 100.0,
            "volume": lots * 100,
        }
    )


def _times(us: np.ndarray) -> pa.Array:
    return pa.array(us.astype(np.int64, copy=False)).view(TIMESTAMP)


def _sums_by_symbol(symbol: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Returns for each event the sum of its symbol's steps up to and including it. int64 (n,)."""
    if not len(symbol):
        return np.zeros(0, np.int64)
    code = symbol.astype(np.uint16) if symbol.max() < 2**16 else symbol  # 16 bits sort by radix
    order = np.argsort(code, kind="stable")
    sums = np.cumsum(step[order])
    ordered = symbol[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    before = np.r_[0, sums[begins[1:] - 1]]
    result = np.empty(len(step), np.int64)
    result[order] = sums - np.repeat(before, np.diff(np.r_[begins, len(step)]))
    return result


def _folded(x: np.ndarray, low: int, high: int) -> np.ndarray:
    """Returns x reflected into [low, high]; steps keep their size except at a bound."""
    span = high - low
    return high - np.abs((x - low) % (2 * span) - span)
