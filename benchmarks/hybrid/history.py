"""A database whose archive is large, to be asked by live queries: seeded ticks of many symbols."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hybrid
from benchmarks.archive.events import fill, pieces
from hybrid.watch.declaration import TABLE

COLUMNS = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE", "volume": "BIGINT"}
#: A valley: falls, then rises above where it began.
VALLEY = (
    "MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES S.price AS top, LAST(D.price) AS bottom, "
    "LAST(U.ts) AS until PATTERN (S D+ U+) DEFINE D AS price < PREV(price), U AS price > PREV(price))"
)


def filled(directory: Path, events: int, symbols: int, days: int, seed: int) -> Path:
    """The database with these events, which stays where it is there already; days that are over are closed."""
    if not (directory / "ticks").exists():
        with hybrid.connect(directory, maintenance=False, log=None) as db:  # what fills the table has none
            db.create_stream("ticks", COLUMNS, time="ts", key="symbol")
        fill(directory / "ticks" / TABLE, pieces(events, symbols, days, seed), closed=True)
        hybrid.connect(directory, maintenance=False).close()  # finds the watermark, and writes it down
    return directory


@contextmanager
def scratch(directory: Path) -> Iterator[Path]:
    """A database with the same files, of which those of data are shared, to be pushed to and forgotten."""
    with tempfile.TemporaryDirectory(dir=directory.parent) as place:
        copy = Path(place) / "db"
        shutil.copytree(directory, copy, copy_function=_shared)
        yield copy


def _shared(source: str, target: str) -> None:
    """Data files never change; others, the lock of the writer among them, are a database's own."""
    (os.link if source.endswith(".parquet") else shutil.copy2)(source, target)
