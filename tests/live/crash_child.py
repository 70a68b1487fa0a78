"""A process that takes events, matches them and writes alerts until it is killed; started by test_crash.

It dies by SIGKILL at the count-th time it gets to a named point ("": never), and says in a file when it is through."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import hybrid
from archive import history, layout, log, partials
from archive.history import History
from archive.partials import PartialStore
from archive.place import Place
from archive.table import Table
from hybrid.database.database import Database
from hybrid.watch import checkpoint
from live.stream import LiveStream
from matching.feed import Feed
from tests.archive.kills import Death

#: Where a push may end.
PUSHING = ("accepted", "log half written", "log written", "in memory", "matched")
#: And a checkpoint, a flush, and what writes alerts.
KEEPING = (
    "state copied", "file half written", "before commit", "after commit", "before log removed", "log removed",
    "checkpoint half written", "checkpoint not named", "checkpoint named",
)  # fmt: skip
WRITING = ("fetched", "alert half written", "alert written")
#: And what sends partial matches to the disk.
SPILLING = (
    "partials half written", "partials written", "partials read back", "partials worn", "partials named",
    "before partials removed", "partials removed",
)  # fmt: skip
POINTS = (*PUSHING, *KEEPING, *WRITING, *SPILLING)

EVENTS = 60  # of each source
LIMIT = "200 B"  # what partial matches may hold
SOURCES = ("x", "y")
START = dt.datetime(2024, 1, 1)
FALLS = """
    SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES FIRST(ts) AS since, LAST(v) AS v, count(*) AS n
        PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v))"""
PASSING = """
    SELECT m.k, b, h.v AS before FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES FIRST(A.ts) AS a, LAST(B.v) AS b
        PATTERN (A ~C B) WITHIN INTERVAL '20' SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS v < 10, B AS v > 80, C AS v = 50) AS m
    LEFT JOIN HISTORY OF ticks FROM m.a - INTERVAL 30 SECOND TO m.a AS h ON h.k = m.k AND h.v > 95"""
QUERIES = {"falls": FALLS, "passing": PASSING}


def event_at(source: str, offset: int) -> dict[str, Any]:
    """The event of that identity. None is late: each source is in order to two seconds, and so is lateness."""
    rng = np.random.default_rng((ord(source), offset))
    at = dt.timedelta(seconds=offset, microseconds=int(rng.integers(0, 2_000_000)))
    return {"ts": START + at, "k": "ab"[rng.integers(0, 2)], "v": int(rng.integers(0, 100))}


def opened(directory: Path | None, policy: Any, limit: str | None = None) -> tuple[Database, dict[str, Any]]:
    """The database with its stream and queries. None: in memory, to say what is wanted."""
    db = hybrid.connect(directory, limit, maintenance=False, log=policy)
    if not db.streams():
        db.create_stream("ticks", {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}, "ts", "k", lateness="2s")
    names = {name: None if directory is None else name for name in QUERIES}
    return db, {name: db.watch(text, name=names[name], evidence=True) for name, text in QUERIES.items()}


def rows_of(alerts: dict[str, Any]) -> list[list[Any]]:
    """What is ready: query, id, which row of that id, and the row."""
    out: list[list[Any]] = []
    for name, watch in alerts.items():
        for row in watch.fetch().to_pylist():
            out.append([name, row.pop("join_id", None) or row["match_id"], {k: str(v) for k, v in row.items()}])
    return out


def run(directory: str, policy: str | None, seed: int, point: str, count: int) -> None:
    """Goes on until all events of both sources are taken, or it dies."""
    death = Death(point, count)
    _lay_points(death)
    partials.SEGMENT_BYTES, partials.WORN = 1_000, 0.9
    db, alerts = opened(Path(directory) / "db", policy, LIMIT)
    rng = np.random.default_rng(seed)
    sink = os.open(Path(directory) / "alerts.ndjson", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write() -> None:
        rows = rows_of(alerts)
        if not rows:
            return
        death.passing("fetched")
        data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if death.next_at("alert half written"):
            os.write(sink, data[: len(data) // 2])
        death.passing("alert half written")
        os.write(sink, data)
        death.passing("alert written")

    while True:
        offsets = db.streams()["ticks"]["offsets"]
        if all(offsets.get(source) == EVENTS for source in SOURCES):
            break
        for source in SOURCES:
            first = offsets.get(source, 0)
            most = 1 if len(offsets) < len(SOURCES) else int(rng.integers(0, 12))
            events = [event_at(source, i) for i in range(first, min(first + most, EVENTS))]
            if events and (source in offsets or first == 0):
                db.push("ticks", events, source, first)
        write()
        match rng.integers(0, 4):
            case 0:
                db.checkpoint()
            case 1:
                db.flush()
    db.advance("ticks", None)
    write()
    db.close()
    (Path(directory) / "done").touch()


def _lay_points(death: Death) -> None:
    """Puts the named points where they belong."""
    passing, after = death.passing, death.after
    LiveStream.accept = after(LiveStream.accept, "accepted")  # type: ignore[method-assign]
    History.append = after(History.append, "in memory")  # type: ignore[method-assign]
    Feed.push = after(Feed.push, "matched")  # type: ignore[method-assign]
    write_all, put, commit = log.write_all, layout.put_file, Table.commit
    write, replace, unlink = checkpoint.write, os.replace, Path.unlink

    def log_write(file: int, parts: list[Any]) -> int:
        if death.next_at("log half written"):
            data = b"".join(map(bytes, parts))
            os.write(file, data[: len(data) // 2])
        passing("log half written")
        length = write_all(file, parts)
        passing("log written")
        return length

    def parquet(path: Place, data: memoryview) -> None:
        put(path, data)
        if death.next_at("file half written"):
            os.truncate(path, os.path.getsize(path) // 2)
        passing("file half written")

    def committing(self: Table, *args: Any) -> None:
        passing("before commit")
        commit(self, *args)
        passing("after commit")

    def removing(self: Path, missing_ok: bool = False) -> None:
        what = {".log": "log", ".partials": "partials"}.get(self.suffix)
        if what is not None:
            passing(f"before {what} removed")
        unlink(self, missing_ok)
        if what is not None:
            passing(f"{what} removed")

    def keeping(*args: Any) -> None:
        passing("state copied")
        write(*args)
        passing("checkpoint named")

    def naming(part: str, path: str) -> None:
        if path.endswith(".state"):
            if death.next_at("checkpoint half written"):
                os.truncate(part, os.path.getsize(part) // 2)
            passing("checkpoint half written")
            passing("checkpoint not named")
        replace(part, path)

    write_partials, worn = partials.write_all, PartialStore.worn

    def partials_write(file: int, data: np.ndarray) -> None:
        if death.next_at("partials half written"):
            os.write(file, data.data[: len(data) // 2])
        passing("partials half written")
        write_partials(file, data)
        passing("partials written")

    def looking(self: PartialStore, places: Any) -> np.ndarray:
        found = worn(self, places)
        if found.any():
            passing("partials worn")
        return found

    partials.write_all = partials_write
    PartialStore.worn = looking  # type: ignore[method-assign]
    PartialStore.read = after(PartialStore.read, "partials read back")  # type: ignore[method-assign]
    PartialStore.manifest = after(PartialStore.manifest, "partials named")  # type: ignore[method-assign]
    log.write_all = log_write
    layout.put_file = parquet
    Table.commit = committing
    Path.unlink = removing  # type: ignore[method-assign]
    checkpoint.write = keeping
    os.replace = naming
    assert history.LOG
