"""A service whose store is slow, fails or does not answer: events, matches and status go on, a stop is bounded, and
nothing is lost.

"Before" tells of the code that waited for the store in its loop, run with placeholders for the names that it did not
have.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import hybrid
from archive.place import filesystem_of
from archive.scan import database_of
from hybrid.service.app_file import load
from hybrid.service.pulse import Pulse
from hybrid.service.service import Service
from tests.archive.proxy import Proxy, proxy
from tests.archive.store import Server, s3_server
from tests.waiting import until

pytest.importorskip("localbucket")

APP = """
[database]
path = "s3://bucket/db"
checkpoint = "1s"
state = "state"
[streams.ticks]
columns = { ts = "TIMESTAMP", n = "BIGINT" }
time = "ts"
[sources.feed]
stream = "ticks"
type = "file"
path = "in.ndjson"
[queries.all]
sql = '''SELECT n FROM ticks MATCH_RECOGNIZE (
  ORDER BY ts MEASURES A.n AS n PATTERN (A)) AS m'''
sinks = ["out"]
[sinks.out]
type = "file"
path = "out.ndjson"
[database.options]
"""


class Shop:
    """A service in a directory whose store is behind a proxy; `feed` writes the events that it reads."""

    def __init__(self, directory: Path, server: Server, between: Proxy) -> None:
        self.directory, self.between = directory, between
        self.options = server.options | {"aws_endpoint_url": f"http://127.0.0.1:{between.port}"}
        options = "\n".join(f'{key} = "{value}"' for key, value in self.options.items())
        (directory / "app.toml").write_text(APP + options)
        (directory / "in.ndjson").touch()
        self.sent = 0
        self.said: list[str] = []
        self.service = self.again()

    def again(self) -> Service:
        self.service = Service(load(self.directory / "app.toml"), self.said.append)
        return self.service

    def feed(self, count: int) -> None:
        with open(self.directory / "in.ndjson", "a", encoding="utf-8") as file:
            for _ in range(count):
                second = f"{datetime(2024, 1, 1) + timedelta(seconds=self.sent)}"
                file.write(json.dumps({"ts": second, "n": self.sent}) + "\n")
                self.sent += 1

    def go_on(self, holds: Callable[[], object]) -> None:
        """What `run` does, until something holds."""
        until(holds, self.turn, self.service.status)

    def turn(self) -> None:
        if not self.service.step():
            self.service.context.clock.wait(self.service.context.wake, 0.02)
            self.service.context.wake.clear()

    def rows(self) -> list[dict[str, int]]:
        file = self.directory / "out.ndjson"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def archived(self) -> list[int]:
        with hybrid.connect("s3://bucket/db", storage_options=self.options, read_only=True) as db:
            return [int(n) for n in db.sql("SELECT n FROM ticks ORDER BY n").arrow()["n"].to_pylist()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def shop(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr("archive.keeper.AGE_MAX_S", 0.5)
    monkeypatch.setattr("hybrid.service.trouble.SLOW_S", 0.6)
    for cached in (filesystem_of, database_of):
        cached.cache_clear()
    with proxy(server.port) as between:
        found = Shop(tmp_path, server, between)
        text = (tmp_path / "app.toml").read_text()
        (tmp_path / "app.toml").write_text(text.replace("bucket/db", f"bucket/{tmp_path.name}"))
        found.again()
        found.service.start()
        yield found
        between.delay_s, between.status, between.hangs = 0.0, None, False
        if found.service.outlets.locked:
            found.service.stop()
            found.service.finish()


def status_written(state: Path) -> float:
    """When the status was written last."""
    return float(json.loads((state / "status.json").read_text())["written"])


@pytest.mark.slow
@pytest.mark.nightly
def test_a_slow_store_holds_up_neither_events_nor_status(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: run with the proxy in a process of its own: the status was 28.1 s old, and an event waited for 27.3 s.
    With the proxy in this process nothing even started: deltalake held the interpreter while it waited."""
    shop.feed(10)
    shop.go_on(lambda: len(shop.rows()) == 10)
    monkeypatch.setattr("archive.keeper.AGE_MAX_S", 5.0)
    shop.between.delay_s = 0.25
    requests = shop.between.requests
    written: list[int] = []
    kept = shop.service.checkpoints._end
    shop.service.checkpoints._end = lambda: written.append(1) or kept()  # type: ignore[method-assign,func-returns-value]

    def slow_enough() -> bool:
        told = any("the disk or the store is slow" in said for said in shop.said)
        return bool(written) and told and shop.between.requests - requests > 10

    def more() -> None:
        shop.feed(20)
        shop.go_on(lambda sent=shop.sent: len(shop.rows()) >= sent)

    until(slow_enough, more, lambda: shop.said)
    shop.between.hangs = True  # from now on no answer comes at all, and events and status come all the same
    for _ in range(3):
        before = status_written(shop.service.app.state)
        more()
        shop.go_on(lambda before=before: status_written(shop.service.app.state) > before)
    shop.between.hangs = False
    assert [row["n"] for row in shop.rows()] == list(range(shop.sent))


@pytest.mark.slow
def test_a_store_that_fails_is_a_trouble_with_its_code(shop: Shop) -> None:
    """Before: run so: no "503" in `trouble` within 60 s, only "Generic S3 error" of a checkpoint; a step waited for up
    to 2.0 s."""
    shop.feed(10)
    shop.go_on(lambda: len(shop.rows()) == 10)
    shop.between.status = 503
    shop.feed(10)
    shop.go_on(lambda: "503" in shop.service.context.trouble.faults().get("archive of ticks", ""))
    assert "events stay in memory" in shop.service.context.trouble.faults()["archive of ticks"]
    shop.feed(10)
    shop.go_on(lambda: len(shop.rows()) == 30)
    shop.between.status = None
    shop.go_on(lambda: not shop.service.context.trouble.faults())
    assert sum("503" in said for said in shop.said if said.startswith("archive")) <= 3
    shop.service.stop()
    assert shop.service.finish() == 0
    assert [row["n"] for row in shop.rows()] == list(range(30))


@pytest.mark.slow
def test_memory_is_bounded_where_a_store_takes_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: run so: `step` waited in a checkpoint for the store, and was not back after 60 s.
    monkeypatch.setattr("hybrid.service.blocked.MEMORY_ROWS_MAX", 100)
    shop.service.app.limits.__dict__["queue_rows"] = 50
    shop.feed(10)
    shop.go_on(lambda: len(shop.rows()) == 10)
    shop.between.hangs = True

    def full() -> bool:
        return "memory is full of events" in shop.service.context.trouble.faults().get("source feed", "")

    for _ in range(6):
        shop.feed(50)
        # Before: 15 turns; a machine that reads nothing in those took all of it in one piece.
        shop.go_on(lambda: full() or shop.service.db.held("ticks").rows == shop.sent)
    assert full()
    assert shop.service.db.held("ticks").rows < 310
    shop.between.hangs = False
    shop.go_on(lambda: len(shop.rows()) == 310)
    assert [row["n"] for row in shop.rows()] == list(range(310))


@pytest.mark.slow
def test_a_stop_is_bounded_and_loses_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: by a script, with 250 ms a request: it ended after 21.6 s. The test itself, where the store hangs, had
    not ended after 100 s."""
    monkeypatch.setattr("hybrid.service.service.STOP_S", 2.0)
    monkeypatch.setattr("hybrid.service.checkpoints.SETTLE_S", 1.0)
    monkeypatch.setattr("hybrid.service.service.DRAIN_S", 1.0)
    shop.feed(10)
    shop.go_on(lambda: len(shop.rows()) == 10)
    shop.between.hangs = True
    shop.feed(10)
    shop.go_on(lambda: len(shop.rows()) == 20)
    shop.service.stop()
    assert shop.service.finish() == 1  # though the store hangs for ever
    assert shop.service.abandoned
    assert any("the disk or the store does not answer" in said for said in shop.said)
    shop.between.hangs = False
    monkeypatch.setattr("archive.writer.LEASE_S", 0.0)  # this process has not ended, and still renews it
    shop.again().start()
    shop.feed(10)
    shop.go_on(lambda: len(shop.rows()) == 30)
    assert [row["n"] for row in shop.rows()] == list(range(30))


@pytest.mark.slow
def test_the_pulse_ends_a_process_that_is_busy() -> None:
    """Before: there was no Pulse: the handlers of signals waited until the main thread was back from the store."""
    codes: list[int] = []
    beats: list[int] = []
    late: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    pulse = Pulse(lambda: beats.append(1), 0.3, lambda: late.append(1), codes.append)
    try:
        with pulse.signals():
            pulse.start()
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: codes)
            assert codes[0] == 1
            assert late
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: 128 + signal.SIGTERM in codes)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert beats
