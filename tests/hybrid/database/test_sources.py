"""From sources through a database to its alerts: every event once and every match once, whatever stops half-way."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import hybrid
from live.sources.base import Bad, Source
from live.sources.decode import Decoding
from live.sources.files import FileSettings, FileSource
from live.sources.kafka import KafkaSettings, KafkaSource
from live.sources.mqtt import MqttSettings, MqttSource
from query.schema import Field, Schema
from tests.hybrid.ends import opened_again
from tests.live.servers import kafka_broker, mqtt_broker, publish
from tests.live.sources.test_mqtt import Heard
from tests.waiting import GUARD_S, until

TICKS = Schema("ticks", (Field("ts", "TIMESTAMP"), Field("k", "BIGINT"), Field("v", "BIGINT")), "ts", ("k",))
DIPS = """
    SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY ts MEASURES FIRST(ts) AS first_ts, LAST(v) AS v, count(*) AS n
        PATTERN (A B+ C) DEFINE B AS v < PREV(v), C AS v > PREV(v) + 40)"""


#: A dip between one event of a key and the next. An event that comes twice gives a row again, no other one.
STEPS = """
    SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k ORDER BY ts MEASURES A.ts AS a, B.ts AS b
        AFTER MATCH SKIP TO NEXT ROW
        PATTERN (A B) WITHIN INTERVAL '20' MILLISECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE B AS B.ts = FIRST(A.ts) + INTERVAL 7 MILLISECOND AND B.v < FIRST(A.v) - 30)"""


def event(i: int) -> dict[str, int]:
    return {"ts": 1_704_196_800_000 + i, "k": i % 7, "v": (i * 7919 + i * i % 31) % 101}


def begun(folder: Path, query: str) -> tuple[Any, Any]:
    """The database of a folder, and the alerts of its query."""
    db = opened_again(folder, maintenance=False, log="os", checkpoint="1s")
    if not db.streams():
        db.create_stream("ticks", {f.name: f.type for f in TICKS.fields}, time="ts", key="k", lateness="1s")
    return db, db.watch(query, name="dips", evidence=True)


def copy_of_open(database: Path, to: Path) -> None:
    """Copies the directory of a database that is open, anew if it replaces a file meanwhile."""
    while True:
        try:
            shutil.copytree(database, to)
            return
        except shutil.Error:  # Before: a checkpoint that was written in the background failed the test
            shutil.rmtree(to)


class Pump:
    """Takes what a source gives to a database, and the alerts from it."""

    def __init__(self, folder: Path, source: Source, query: str = DIPS) -> None:
        self.db, self.alerts = begun(folder, query)
        self.source = source
        self.found: dict[str, dict[str, Any]] = {}
        source.open(self.db.streams()["ticks"]["offsets"])

    def until(self, count: int) -> None:
        """Until the stream has so many events."""
        self.steps_until(lambda: self.events() >= count)

    def steps_until(self, holds: Callable[[], object]) -> None:
        until(holds, self.step, lambda: (self.db.streams(), self.source.trouble()))

    def events(self) -> int:
        return int(self.db.streams()["ticks"]["events"])

    def step(self) -> None:
        """One poll."""
        for piece in self.source.poll(0.5):
            assert not isinstance(piece, Bad)
            self.db.push("ticks", piece.rows, piece.source, piece.offsets)
        self.source.kept(self.db.streams()["ticks"]["offsets"])
        self.fetch()

    def fetch(self) -> None:
        for row in self.alerts.fetch().to_pylist():
            assert self.found.setdefault(row["match_id"], row) == row

    def close(self) -> None:
        self.source.close()
        self.db.close()


def expected(count: int, query: str = DIPS) -> list[dict[str, Any]]:
    events = [event(i) for i in range(count)]
    ts = pa.array([e["ts"] for e in events], pa.timestamp("ms")).cast(pa.timestamp("us"))
    ticks = pa.table({"ts": ts, "k": [e["k"] for e in events], "v": [e["v"] for e in events]})
    return hybrid.sql(query, ticks=ticks).arrow().to_pylist()


def same_matches(found: dict[str, dict[str, Any]], count: int) -> None:
    rows = [{name: value for name, value in row.items() if name != "match_id"} for row in found.values()]
    wanted = expected(count)
    assert len(wanted) > count // 100
    assert sorted(map(str, rows)) == sorted(map(str, wanted))


@pytest.mark.slow
def test_kafka_in_and_matches_out_though_the_broker_and_we_stop_half_way(tmp_path):
    count, partitions = 100_000, 3
    with kafka_broker(tmp_path / "broker") as broker:
        servers = {"bootstrap.servers": broker.address, "log_level": 0}
        admin = AdminClient(servers)
        for made in admin.create_topics([NewTopic("ticks", partitions, 1)]).values():
            made.result(GUARD_S)
        producer = ck.Producer({**servers, "linger.ms": 50, "enable.idempotence": True})

        def write(start: int, stop: int) -> None:
            for i in range(start, stop):
                producer.produce("ticks", value=json.dumps(event(i)).encode(), partition=i % 7 % partitions)
                if i % 1000 == 0:
                    producer.poll(0)
            assert producer.flush(GUARD_S) == 0

        settings = KafkaSettings(
            broker.address, ("ticks",), decoding=Decoding(times="ms"), batch=5_000,
            options={"log_level": 0, "reconnect.backoff.max.ms": 500},
        )  # fmt: skip
        # A partition that is first heard of holds the watermark from then on: within the lateness all have been.
        write(0, 300)
        first = Pump(tmp_path / "db", KafkaSource(TICKS, settings))
        first.until(300)
        write(300, count // 2)
        first.until(count // 4)
        while not first.found:  # the client reads one partition, then the other
            first.until(first.events() + 1)
        assert first.events() < count
        broker.stop(signal.SIGKILL)
        time.sleep(1)
        assert all(not isinstance(piece, Bad) for piece in first.source.poll(0.5))  # taken, and lost with us
        broker.start()
        # What is on disk now is what another process finds after the end of this one.
        copy_of_open(tmp_path / "db", tmp_path / "again")
        first.source.close()
        found = dict(first.found)
        first.db.close()

        second = Pump(tmp_path / "again", KafkaSource(TICKS, settings))
        second.found = found
        write(count // 2, count)
        second.until(count)
        second.db.advance("ticks", None)
        second.fetch()
        assert second.db.streams()["ticks"]["late"] == 0
        same_matches(second.found, count)
        stored = second.db.sql("SELECT count(*) AS n, count(DISTINCT ts) AS times FROM ticks").arrow().to_pylist()
        assert stored == [{"n": count, "times": count}]
        second.close()


@pytest.mark.slow
def test_mqtt_in_and_matches_out_though_the_broker_and_we_stop_half_way(tmp_path, record_property):
    count = 40_000
    payloads = [json.dumps(event(i)).encode() for i in range(count)]
    with mqtt_broker(tmp_path / "broker") as broker:
        settings = MqttSettings(
            "127.0.0.1", ("ticks/#",), "reader", broker.port, Decoding(times="ms"), unacknowledged=5_000
        )
        source = Heard(TICKS, settings)
        first = Pump(tmp_path / "db", source, STEPS)
        # Before: 0.2 s after the connection, and what was published before the subscription came was lost.
        first.steps_until(source.subscribed.is_set)
        publish(broker, "ticks/a", payloads[: count // 2])
        first.until(count // 4)
        broker.stop()
        time.sleep(0.5)
        broker.start()
        publish(broker, "ticks/b", payloads[count // 2 :])
        first.until(count * 3 // 4)
        assert not any(isinstance(piece, Bad) for piece in first.source.poll(5))  # taken, and lost with us
        copy_of_open(tmp_path / "db", tmp_path / "again")
        first.close()

        second = Pump(tmp_path / "again", MqttSource(TICKS, settings), STEPS)
        second.found = first.found
        second.until(count)
        last = -1
        while second.events() > last:
            last = second.events()
            second.step()
        second.db.advance("ticks", None)
        second.fetch()
        stored = second.db.sql("SELECT count(*) AS n, count(DISTINCT ts) AS times FROM ticks").arrow().to_pylist()
        assert stored[0]["times"] == count
        record_property("examples", f"{stored[0]['n'] - count:,} of {count:,} events came twice")
        found = {(row["a"], row["b"]) for row in second.found.values()}
        wanted = {(row["a"], row["b"]) for row in expected(count, STEPS)}
        assert len(wanted) > count // 100
        assert found == wanted
        second.close()


@pytest.mark.slow
def test_a_file_that_grows_and_we_are_restarted(tmp_path):
    count = 2_000
    lines = [json.dumps(event(i)) + "\n" for i in range(count)]
    path = tmp_path / "ticks.ndjson"
    path.write_text("".join(lines[: count // 2]) + lines[count // 2][:9])

    def source() -> FileSource:
        return FileSource(TICKS, FileSettings(str(path), times="ms"))

    first = Pump(tmp_path / "db", source())
    first.until(count // 2)
    copy_of_open(tmp_path / "db", tmp_path / "again")
    first.close()
    second = Pump(tmp_path / "again", source())
    second.found = first.found
    with path.open("a") as file:
        file.write(lines[count // 2][9:] + "".join(lines[count // 2 + 1 :]))
    second.until(count)
    second.db.advance("ticks", None)
    second.fetch()
    same_matches(second.found, count)
    second.close()
