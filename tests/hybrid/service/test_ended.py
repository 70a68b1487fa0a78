"""A service that is ended at moments of no choice of its own, by SIGKILL, SIGTERM and SIGINT, while its files are
rotated: rows are those of a service that was left in peace, once and in order. ENDS=50 ends it so many times."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import hybrid
from hybrid.service.status import read_status
from simulator.stock import walk
from tests.hybrid.processes import start
from tests.hybrid.service.test_brokers import COUNT, Topics, check, running
from tests.live import servers
from tests.programs import Program
from tests.waiting import GUARD_S, until

pytestmark = pytest.mark.slow

ENDS = int(os.environ.get("ENDS", "3"))
SEED = int(os.environ.get("SEED", "7"))
#: Events a round: enough for matches in each.
EVENTS = 2_000
HOW = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
FALLS = """
SELECT * FROM ticks MATCH_RECOGNIZE (
  PARTITION BY symbol ORDER BY ts MEASURES A.price AS high, LAST(D.price) AS low, count(*) AS n
  PATTERN (A D{2,} U) DEFINE D AS price < PREV(price), U AS price > PREV(price))"""
BEFORE = """
SELECT m.symbol, m.n, m.low, h.low AS earlier FROM ticks MATCH_RECOGNIZE (
  PARTITION BY symbol ORDER BY ts MEASURES FIRST(ts) AS start, LAST(D.price) AS low, U.n AS n
  PATTERN (A D{4,} U) DEFINE D AS price < PREV(price), U AS price > PREV(price)) AS m
LEFT JOIN HISTORY OF ticks FROM m.start - INTERVAL 1 HOUR TO m.start
  MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES LAST(D.price) AS low
    PATTERN (A D{3,} U) DEFINE D AS price < PREV(price), U AS price > PREV(price)) AS h
  ON h.symbol = m.symbol AND h.low < m.low"""
APP = f"""
[database]
path = "market"
checkpoint = "300 ms"

[streams.ticks]
columns = {{ ts = "TIMESTAMP", n = "BIGINT", symbol = "VARCHAR", price = "DOUBLE" }}
time = "ts"
key = "symbol"

[sources.feed]
stream = "ticks"
type = "file"
path = "in"

[queries.falls]
sql = '''{FALLS}'''
sinks = ["lines", "parts"]

[queries.before]
sql = '''{BEFORE}'''
sinks = ["lines"]

[sinks.lines]
type = "file"
path = "lines.ndjson"

[sinks.parts]
type = "file"
format = "parquet"
path = "parts"
"""


class Feed:
    """A directory of files that a writer fills one after the other; each takes a name behind the one before."""

    def __init__(self, directory: Path, lines: list[str], rng: random.Random) -> None:
        self.directory, self.lines, self.rng = directory, lines, rng
        self.written = self.files = 0
        directory.mkdir(parents=True)

    def write(self, count: int, pause_s: float = 0.0) -> None:
        """Appends so many records, in some steps, and goes on with another file now and then."""
        end = min(self.written + count, len(self.lines))
        while self.written < end:
            some = min(self.rng.randint(1, 700), end - self.written)
            with open(self.directory / f"ticks-{self.files:05}.ndjson", "a", encoding="utf-8") as file:
                file.writelines(self.lines[self.written : self.written + some])
            self.written += some
            self.files += self.rng.random() < 0.3
            time.sleep(pause_s * self.rng.random())


def taken(directory: Path, child: Program) -> int:
    assert child.poll() is None, child.communicate()[1]
    try:
        told = read_status(directory / "market/_service")
    except hybrid.DataError:
        return 0
    return int(told["streams"]["ticks"]["events"]) if told["pid"] == child.pid and told["streams"] else 0


def in_files(directory: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each query, in their order: those of falls from both sinks."""
    rows = [json.loads(line) for line in (directory / "lines.ndjson").read_text().splitlines()]
    parts = [row for path in sorted((directory / "parts").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    return {
        "falls": [row for row in rows if "high" in row],
        "before": [row for row in rows if "earlier" in row],
        "parts": parts,
    }


def to_the_end(directory: Path, child: Program, count: int) -> None:
    until(lambda: taken(directory, child) == count)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate(timeout=GUARD_S)
    assert child.returncode == 0, said


@pytest.mark.timeout(3600)
def test_files_are_rotated_and_the_service_is_ended(tmp_path: Path) -> None:
    # Before: run as it is with ENDS=2: 291 rows of falls were missing.
    rng = random.Random(SEED)
    count = EVENTS * (ENDS + 1)
    table = walk(SEED, count, 20).drop_columns("volume")
    lines = [json.dumps(r | {"ts": r["ts"].isoformat(), "n": n}) + "\n" for n, r in enumerate(table.to_pylist())]
    directory, peace = tmp_path / "ended", tmp_path / "peace"
    for place in (directory, peace):
        place.mkdir()
        (place / "app.toml").write_text(APP)
    feed = Feed(directory / "in", lines, rng)
    for _ in range(ENDS):
        feed.write(rng.randint(0, EVENTS // 2))
        child = start(directory)
        try:
            if rng.random() < 0.8:  # else it is ended while it starts
                until(lambda child=child: taken(directory, child) > 0)
            feed.write(rng.randint(0, EVENTS // 2), 0.05)
            time.sleep(rng.random())
            child.send_signal(rng.choice(HOW))
            child.communicate(timeout=GUARD_S)
        finally:
            child.kill()
            child.communicate()
    feed.write(count)
    child = start(directory)
    try:
        to_the_end(directory, child, count)
    finally:
        child.kill()
        child.communicate()
    (peace / "in").mkdir()
    (peace / "in/ticks-00000.ndjson").write_text("".join(lines))
    child = start(peace)
    try:
        to_the_end(peace, child, count)
    finally:
        child.kill()
        child.communicate()
    for place in (directory, peace):
        with hybrid.connect(place / "market", read_only=True) as db:
            told = db.sql("SELECT count(*) AS n, count(DISTINCT n) AS d FROM ticks").arrow().to_pylist()
        assert told == [{"n": count, "d": count}]
    found, wanted = in_files(directory), in_files(peace)
    assert len(wanted["falls"]) > 100
    assert len(wanted["before"]) > 10
    for name, rows in wanted.items():
        assert [_content(row) for row in found[name]] == [_content(row) for row in rows], name
    assert [row["match_id"] for row in found["falls"]] == [row["match_id"] for row in found["parts"]]


def _content(row: dict[str, Any]) -> dict[str, Any]:
    """Without the ids: they name events, which stand in other files here."""
    return {name: value for name, value in row.items() if name not in ("match_id", "join_id")}


@pytest.mark.timeout(3600)
@pytest.mark.skipif(ENDS < 10, reason="test_brokers has fewer ends between topics; ENDS=50 for these")
def test_between_topics_the_service_is_ended(tmp_path: Path) -> None:
    # Before: run as it is with ENDS=4: passes. It guards what held.
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    rng = random.Random(SEED)
    table = walk(7, COUNT, 50)
    events = table.drop_columns("volume").append_column("n", [list(range(COUNT))])
    with servers.kafka_broker(tmp_path) as broker:
        topics = Topics(tmp_path, broker, events)
        for part in range(ENDS):
            with running(tmp_path) as child:
                topics.send(part * COUNT // (ENDS + 1), (part + 1) * COUNT // (ENDS + 1))
                if rng.random() < 0.8:
                    until(lambda child=child: taken(tmp_path, child) > 0)
                time.sleep(rng.random())
                child.send_signal(rng.choice(HOW))
                child.communicate(timeout=GUARD_S)
        with running(tmp_path) as child:
            topics.send(ENDS * COUNT // (ENDS + 1), COUNT)
            topics.end(child)
            to_the_end(tmp_path, child, COUNT + 3)
        check(tmp_path, broker, events)
