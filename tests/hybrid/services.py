"""A service in the hands of a test: sources that say what the test lets them say, sinks that fail when told, a clock
that only the test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hybrid.service.app import App
from hybrid.service.app_file import load
from hybrid.service.context import Clock
from hybrid.service.service import Service
from live.sources.base import Bad, Piece
from query.schema import Schema

START_US = 1_704_067_200_000_000  # 2024-01-01

APP = """
[database]
path = "market"
checkpoint = "10s"

[streams.ticks]
columns = { ts = "TIMESTAMP", name = "VARCHAR", price = "BIGINT" }
time = "ts"
key = "name"

[sources.feed]
stream = "ticks"
type = "file"
path = "ticks.ndjson"

[queries.falls]
sql = '''
SELECT * FROM ticks MATCH_RECOGNIZE (
  PARTITION BY name ORDER BY ts MEASURES A.price AS high, LAST(B.price) AS low
  PATTERN (A B) WITHIN INTERVAL 1 HOUR DEFINE B AS price < PREV(price)
)'''
sinks = ["alerts"]

[sinks.alerts]
type = "stdout"
"""


def ticks(*prices: Any, first: int = 0, name: str = "x") -> pa.Table:
    """A tick a second, from the second `first` on."""
    n = len(prices)
    times = pa.array([START_US + (first + i) * 1_000_000 for i in range(n)], pa.int64()).cast(pa.timestamp("us"))
    return pa.table({"ts": times, "name": [name] * n, "price": list(prices)})


def piece(*prices: Any, first: int = 0, name: str = "x", source: str = "feed/0", offset: int | None = None) -> Piece:
    rows = ticks(*prices, first=first, name=name)
    begin = first if offset is None else offset
    return Piece(source, rows, np.arange(begin, begin + len(rows), dtype=np.int64), begin + len(rows))


@dataclass
class FakeSource:
    """Gives one of `given` at each poll; an exception among them is raised."""

    given: list[Piece | Bad | Exception] = field(default_factory=list)
    ends: bool = False
    opened: dict[str, int] | None = None
    acknowledged: list[dict[str, int]] = field(default_factory=list)
    closed: bool = False
    says: str | None = None
    partitions: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        return self.ends and not self.given

    def open(self, positions: Mapping[str, int]) -> None:
        self.opened = dict(positions)

    def poll(self, seconds: float) -> list[Piece | Bad]:
        if not self.given:
            return []
        item = self.given.pop(0)
        if isinstance(item, Exception):
            raise item
        return [item]

    def kept(self, positions: Mapping[str, int]) -> None:
        self.acknowledged.append(dict(positions))

    def trouble(self) -> str | None:
        return self.says

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeSink:
    """Keeps rows; while `broken` is set it is raised instead. cursor: the number of rows."""

    broken: Exception | None = None
    opened: list[str | None] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    tries: list[float] = field(default_factory=list)
    now: Callable[[], float] = lambda: 0.0
    closed: bool = False

    def check(self, schema: pa.Schema) -> None: ...

    def open(self, cursor: str | None) -> None:
        self.opened.append(cursor)

    def write(self, rows: pa.Table) -> None:
        self.tries.append(self.now())
        if self.broken is not None:
            raise self.broken
        self.rows += rows.to_pylist()

    def cursor(self) -> str | None:
        if self.broken is not None:
            raise self.broken
        return str(len(self.rows))

    def close(self) -> None:
        self.closed = True

    def pairs(self) -> list[tuple[int, int]]:
        return [(row["high"], row["low"]) for row in self.rows]


class Bench:
    """A service that the test drives: `step` does everything once, `pass_s` moves the clock."""

    def __init__(self, directory: Path, text: str = APP, sinks: Iterable[str] = ("alerts",)) -> None:
        self.file = directory / "app.toml"
        self.file.write_text(text)
        self.seconds = 0.0
        self.said: list[str] = []
        self.sources: dict[str, FakeSource] = {}
        self.sinks: dict[str, FakeSink] = {name: FakeSink(now=lambda: self.seconds) for name in sinks}
        self.service = self.again()

    def again(self) -> Service:
        """A new service over the same file, with sources that have not been opened."""
        app = load(self.file)
        self.sources = {name: FakeSource() for name in app.sources}
        self.service = Service(app, self.said.append, self.clock, False, self._source, self._sink)
        return self.service

    @property
    def clock(self) -> Clock:
        def wait(event: threading.Event, seconds: float) -> None:
            self.seconds += seconds

        return Clock(lambda: START_US / 1e6 + 3600 + self.seconds, lambda: self.seconds, wait)

    def _source(self, table: Any, schema: Schema, app: App) -> FakeSource:
        name = next(n for n, t in app.sources.items() if t is table)
        return self.sources.setdefault(name, FakeSource())

    def _sink(self, table: Any, app: App) -> FakeSink:
        name = next(n for n, t in app.sinks.items() if t is table)
        return self.sinks.setdefault(name, FakeSink(now=lambda: self.seconds))

    def start(self) -> FakeSource:
        """Starts it; its only or first source."""
        self.service.start()
        return next(iter(self.sources.values()))

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.service.step()

    def pass_s(self, seconds: float) -> None:
        self.seconds += seconds
        self.step()

    def status(self) -> dict[str, Any]:
        self.pass_s(1.0)
        return self.service.status()

    def stop(self) -> int:
        self.service.stop()
        return self.service.finish()

    def rewrite(self, text: str) -> None:
        self.file.write_text(text)
        self.service.reload()
