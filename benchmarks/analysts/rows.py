"""The rows of the questions: events of many keys, in an order, with the columns that a question reads and others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from simulator.scenario import MINUTE_US, START_US, TIMESTAMP, generator

#: How the rows are stored: by time, by key and then time, in no order, or by time cut to minutes.
ORDERS = ("time", "key", "shuffled", "ties")
#: Between two events of one key, on average.
GAP_US = 10 * MINUTE_US
ACTIONS = ("look", "scroll", "help", "search", "cart", "pay")
SHARES = (0.4, 0.2, 0.1, 0.15, 0.1, 0.05)
#: Columns that every table has: of the questions, each reads three.
READ = ("ts", "k", "v", "a")


def events(seed: int, rows: int, keys: int, order: str, columns: tuple[str, ...], width: int) -> pa.Table:
    """Returns `rows` events. columns: those that the question reads; width: how many there are, with others that no
    question reads."""
    rng = generator(seed)
    gap_us = max(2, GAP_US // keys)
    ts = START_US + np.cumsum(1 + rng.exponential(gap_us, rows).astype(np.int64))
    if order == "ties":
        ts -= ts % MINUTE_US
    key = rng.integers(0, keys, rows)
    drawn = {
        "ts": ts, "k": key, "v": rng.integers(0, 1000, rows).astype(np.float64),
        "a": np.searchsorted(np.cumsum(SHARES)[:-1], rng.random(rows), side="right").astype(np.int32),
    }  # fmt: skip
    found = {name: drawn[name] for name in columns}
    for i in range(width - len(columns)):
        found[f"x{i}"] = rng.random(rows) if i % 3 else rng.integers(0, 1 << 40, rows)
    index = None
    if order == "key":
        index = np.argsort(key, kind="stable")
    elif order == "shuffled":
        index = rng.permutation(rows)
    if index is not None:
        found = {name: values[index] for name, values in found.items()}
    return pa.table({name: _column(name, values) for name, values in found.items()})


def _column(name: str, values: np.ndarray) -> pa.Array:
    match name[0]:
        case "t":
            return pa.array(values).view(TIMESTAMP)
        case "a":
            return pa.array(ACTIONS).take(pa.array(values))
        case "x" if int(name[1:]) % 4 == 3:
            return pa.array(np.char.mod("t%05d", (values * 100_000).astype(np.int64) % 100_000).astype(object))
        case _:
            return pa.array(values)
