"""The service of an app file, over the events and queries of crash_child, with files as sinks, until it is killed;
started by test_crash. All happens in one thread, by a clock of its own, so that a seed is always the same run."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hybrid.service.app_file import load
from hybrid.service.context import Clock
from hybrid.service.delivery import Delivery
from hybrid.service.service import Service
from live.sinks.json_lines import json_lines
from live.sinks.ndjson import NdjsonSink
from live.sources.base import Bad, Piece
from tests.archive.kills import Death
from tests.live.crash_child import EVENTS, FALLS, PASSING, SOURCES, event_at

#: Where rows may stop on their way into files, and the cursors that say how far they came.
POINTS = (
    "lines half written", "lines written", "before sync", "after sync", "part not renamed", "part renamed",
    "cursors not named", "cursors named", "old cursors there", "old cursors removed",
)  # fmt: skip
APP = f"""
[database]
path = "db"
checkpoint = "3s"

[streams.ticks]
columns = {{ ts = "TIMESTAMP", k = "VARCHAR", v = "BIGINT" }}
time = "ts"
key = "k"
lateness = "2s"

[sources.both]
stream = "ticks"
type = "file"
path = "both.ndjson"

[queries.falls]
sql = '''{FALLS}'''
sinks = ["lines", "parts"]

[queries.passing]
sql = '''{PASSING}'''
sinks = ["lines"]

[sinks.lines]
type = "file"
path = "lines.ndjson"

[sinks.parts]
type = "file"
format = "parquet"
path = "parts"
"""
TYPES = pa.schema([("ts", pa.timestamp("us")), ("k", pa.string()), ("v", pa.int64())])


class Both:
    """Both sources of crash_child as partitions of one that resumes: some events of one of them at a time."""

    partitions = SOURCES

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.next = dict.fromkeys(SOURCES, 0)

    @property
    def ended(self) -> bool:
        return all(offset == EVENTS for offset in self.next.values())

    def open(self, positions: Mapping[str, int]) -> None:
        self.next |= positions

    def poll(self, seconds: float) -> list[Piece | Bad]:
        source = SOURCES[self.rng.integers(0, len(SOURCES))]
        begin = self.next[source]
        end = self.next[source] = min(EVENTS, begin + int(self.rng.integers(0, 12)))
        rows = pa.RecordBatch.from_pylist([event_at(source, i) for i in range(begin, end)], TYPES)
        return [Piece(source, rows, np.arange(begin, end, dtype=np.int64), end)]

    def kept(self, positions: Mapping[str, int]) -> None: ...

    def trouble(self) -> str | None:
        return None

    def close(self) -> None: ...


def run(directory: str, policy: str | None, seed: int, point: str, count: int) -> None:
    """Goes on until both sources have ended and all rows are in the sinks, or it dies."""
    _lay_points(Death(point, count))
    rng = np.random.default_rng(seed)
    seconds = 0.0

    def ticks() -> float:
        return seconds

    def wait(event: threading.Event, length: float) -> None:
        nonlocal seconds
        seconds += length

    file = Path(directory) / "app.toml"
    file.write_text(APP if policy is None else APP.replace("[streams", f'log = "{policy}"\n\n[streams', 1))
    service = Service(load(file), lambda said: None, Clock(ticks, ticks, wait), False, lambda *_: Both(rng))
    service.start()
    while not service.done:
        service.step()
        seconds += float(rng.integers(0, 3))
    assert service.finish() == 0
    (Path(directory) / "done").touch()


def rows_in(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """What the sinks have, all of it."""
    lines = (directory / "lines.ndjson").read_text().splitlines()
    parts = [pq.read_table(path) for path in sorted((directory / "parts").glob("*.parquet"))]
    return {
        "lines": [json.loads(line) for line in lines],
        "parts": [json.loads(line) for table in parts for line in json_lines(table)],
    }  # fmt: skip


def _lay_points(death: Death) -> None:
    """Puts the named points where they belong."""
    passing = death.passing
    append, cursor, replace, rename = NdjsonSink._append, NdjsonSink.cursor, os.replace, os.rename

    def appending(self: NdjsonSink, rows: pa.Table) -> None:
        if death.next_at("lines half written"):
            data = "".join(line + "\n" for line in json_lines(rows)).encode()
            os.pwrite(self._opened(), data[: len(data) // 2], self._length)
        passing("lines half written")
        append(self, rows)
        passing("lines written")

    def syncing(self: NdjsonSink) -> str | None:
        passing("before sync")
        found = cursor(self)
        passing("after sync")
        return found

    def renaming(part: Path, path: Path) -> None:
        passing("part not renamed")
        rename(part, path)
        passing("part renamed")

    def naming(part: Path, path: Path) -> None:
        cursors = Path(path).name.startswith("delivery-")
        if cursors:
            passing("cursors not named")
        replace(part, path)
        if cursors:
            passing("cursors named")

    forget = Delivery.forget

    def forgetting(self: Delivery, named: str) -> None:
        passing("old cursors there")
        forget(self, named)
        passing("old cursors removed")

    Delivery.forget = forgetting  # type: ignore[method-assign]
    NdjsonSink._append = appending  # type: ignore[method-assign]
    NdjsonSink.cursor = syncing  # type: ignore[method-assign]
    os.rename = renaming
    os.replace = naming
