"""An archive to be measured: seeded ticks of many symbols, made, appended and forgotten piece by piece."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from archive.history import History
from archive.table import Table
from archive.upkeep import compact
from matching.batch import EventBatch
from matching.types import arrow_schema
from query.schema import Field, Schema

START_US = 1_704_067_200_000_000  # 2024-01-01
DAY_US = 86_400_000_000
#: Rows of a flush.
PIECE_ROWS = 100_000
SCHEMA = Schema(
    "ticks",
    (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE"), Field("volume", "BIGINT")),
    time="ts",
    keys=("symbol",),
)


def parser(description: str | None, directory: bool = True) -> argparse.ArgumentParser:
    """The options of what measures an archive of these events: where it is (which must be said, or need not), how
    large, from which seed."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--directory", type=Path, required=directory)
    options.add_argument("--events", type=int, default=50_000_000)
    options.add_argument("--symbols", type=int, default=10_000)
    options.add_argument("--days", type=int, default=7)
    options.add_argument("--seed", type=int, default=1)
    return options


def pieces(events: int, symbols: int, days: int, seed: int) -> Iterator[EventBatch]:
    """Events at equal distances over so many days, of symbols drawn at random, in pieces of PIECE_ROWS."""
    names = pa.array([f"S{i:06}" for i in range(symbols)])
    step_us = days * DAY_US // events
    for number, first in enumerate(range(0, events, PIECE_ROWS)):
        rng = np.random.Generator(np.random.PCG64([seed, number]))
        at = np.arange(first, min(events, first + PIECE_ROWS))
        yield ticks(
            START_US + at * step_us, names.take(pa.array(rng.integers(0, symbols, len(at)))),
            np.round(rng.random(len(at)) * 100, 2), rng.integers(0, 1000, len(at)), first,
        )  # fmt: skip


def ticks(ts_us: np.ndarray, symbols: pa.Array, prices: np.ndarray, volumes: np.ndarray, first: int) -> EventBatch:
    """Events of one source; offset and sequence count from `first`."""
    columns = [pa.array(ts_us).view(pa.timestamp("us")), symbols, pa.array(prices), pa.array(volumes)]
    at = np.arange(first, first + len(ts_us))
    batch = pa.RecordBatch.from_arrays(columns, schema=arrow_schema(SCHEMA))
    return EventBatch(batch, ts_us, np.zeros(len(at), np.int32), at, at)


def fill(directory: Path, batches: Iterator[EventBatch], closed: bool) -> History:
    """An archive of the events, a file or two for each batch; closed: all of it rewritten by (key, time). What is there
    already stays as it is."""
    history = History(SCHEMA, directory, memory_rows_max=1)
    if history.last_seq < 0:
        for batch in batches:
            history.append(batch, np.zeros(len(batch), np.bool_))
        if closed:
            for _ in compact(Table.open(directory), closed_us=np.iinfo(np.int64).max):
                pass
            history = History(SCHEMA, directory)
    return history
