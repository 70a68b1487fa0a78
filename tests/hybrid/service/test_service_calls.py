"""Each call of a service to its files, a broker, a web server or a store that fails, does what it was asked and says
that it failed, or hangs: rows and archive are those of a service to which nothing happened, or the difference is told.

A service runs, with one such call, and ends as it was told to or is killed; the next one finds the rest. Some of all
calls here, by a seed; CALLS_SECONDS=3600 tries for so long (make nightly)."""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

import hybrid
from archive.place import filesystem_of
from archive.scan import database_of
from hybrid.service.app_file import load
from hybrid.service.context import Clock
from hybrid.service.service import Service
from query.errors import DataError, QueryError
from tests.archive.leases import claims_fail
from tests.hybrid.calls import HANGS, KEEPS, LIES, RAISES, Calls, Kafka, Mqtt, Point, Store, Web, files, rows_of
from tests.hybrid.ends import killed
from tests.hybrid.services import START_US
from tests.live import servers
from tests.live.proxy import proxy
from tests.waiting import GUARD_S

pytestmark = [
    pytest.mark.filterwarnings("ignore::query.errors.HybridWarning"),
    # A process that is ended closes nothing.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SECONDS = float(os.environ.get("CALLS_SECONDS", "1"))
SEED = int(os.environ.get("SEED", "7"))
#: Events of each of two parts: the second one comes after a new start.
COUNT = 12

QUERIES = """
[streams.ticks]
columns = { ts = "TIMESTAMP", n = "BIGINT", price = "BIGINT" }
time = "ts"

[queries.falls]
sql = '''
SELECT * FROM ticks MATCH_RECOGNIZE (
  ORDER BY ts MEASURES A.n AS high, LAST(B.n) AS low PATTERN (A B) DEFINE B AS price < PREV(price))'''
sinks = [SINKS]

[queries.before]
sql = '''
SELECT m.n, h.earlier FROM ticks MATCH_RECOGNIZE (
  ORDER BY ts MEASURES FIRST(ts) AS start, U.n AS n PATTERN (A U) DEFINE U AS price > PREV(price) + 2) AS m
LEFT JOIN HISTORY OF ticks FROM m.start - INTERVAL 1 HOUR TO m.start
  MATCH_RECOGNIZE (ORDER BY ts MEASURES B.n AS earlier PATTERN (A B) DEFINE B AS price < PREV(price)) AS h
  ON h.earlier < m.n'''
sinks = [SINKS]
"""
FILES = """
[database]
path = "market"
checkpoint = "2s"
[sources.feed]
stream = "ticks"
type = "file"
path = "in"
[sinks.lines]
type = "file"
path = "lines.ndjson"
[sinks.parts]
type = "file"
format = "parquet"
path = "parts"
""" + QUERIES.replace("SINKS", '"lines", "parts"')
BROKERS = """
[database]
path = "market"
checkpoint = "2s"
[sources.feed]
stream = "ticks"
type = "kafka"
brokers = "kafka:9092"
topic = "ticks"
[sinks.kafka]
type = "kafka"
brokers = "kafka:9092"
topic = "alerts"
[sinks.mqtt]
type = "mqtt"
host = "mqtt"
topic = "alerts"
[sinks.web]
type = "webhook"
url = "http://web/alerts"
""" + QUERIES.replace("SINKS", '"kafka", "mqtt", "web"')
GROUP = BROKERS.replace('topic = "ticks"', 'topic = "ticks"\ngroup = "g"\nstart = "latest"')
ENDS = FILES.replace('path = "in"', 'path = "in"\nfollow = false')
STORE = FILES.replace('"market"', '"s3://bucket/DB"\nstate = "state"').replace('"2s"', '"200 ms"')


def lines(begin: int, end: int) -> list[bytes]:
    """Events, a second apart, as JSON."""
    found = []
    for n in range(begin, end):
        ts = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(START_US // 1_000_000 + n))
        found.append(json.dumps({"ts": ts, "n": n, "price": n * 7 % 11}).encode())
    return found


@dataclass
class Told:
    """What a run has left: rows by sink, in their order; events of the archive; what was said; how it went wrong."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    events: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    broken: str = ""
    #: By life the ids that each sink had at its end.
    stages: list[dict[str, set[str]]] = field(default_factory=list)


class World:
    """A directory with an app, and what is around it. The clock is the test's, unless `threads`."""

    def __init__(
        self, directory: Path, text: str, calls: Calls, threads: bool = False, store: Store | None = None
    ) -> None:
        self.directory, self.calls, self.threads = directory, calls, threads
        self.seconds = 0.0
        self.said: list[str] = []
        self.kafka, self.mqtt, self.web = Kafka(calls, ("ticks", "alerts")), Mqtt(calls), Web(calls)
        (directory / "in").mkdir(parents=True)
        self.path, self.options = str(directory / "market"), dict[str, str]()
        if store is not None:
            store.calls, self.options = calls, store.options
            self.path = f"s3://bucket/{next(_NUMBERS)}"
            text = text.replace("s3://bucket/DB", self.path) + "[database.options]\n"
            text += "".join(f'{key} = "{value}"\n' for key, value in self.options.items())
        (directory / "app.toml").write_text(text)
        self.service: Service | None = None

    def feed(self, begin: int, end: int) -> None:
        with self.calls.left_out(), open(self.directory / "in" / f"{begin:03}.ndjson", "wb") as file:
            file.writelines(line + b"\n" for line in lines(begin, end))
        for line in lines(begin, end):
            self.kafka.send("ticks", line)

    @contextmanager
    def around(self) -> Iterator[None]:
        with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
            for one in (self.kafka.clients(), self.mqtt.clients(), self.web.client()):
                stack.enter_context(one)
            if self.threads:
                for name, seconds in QUICK.items():
                    patch.setattr(name, seconds)
            else:
                ours = SimpleNamespace(monotonic=lambda: self.seconds, sleep=lambda s: None, time=time.time)
                for module in ("live.sources.kafka", "live.sinks.kafka"):
                    patch.setattr(f"{module}.time", ours)
            patch.setattr(os, "fsync", lambda file: None)
            stack.enter_context(files(self.calls, self.directory))
            yield

    @property
    def clock(self) -> Clock:
        if self.threads:
            return Clock()

        def wait(event: threading.Event, seconds: float) -> None:
            self.seconds += seconds

        return Clock(lambda: START_US / 1e6 + 3600 + self.seconds, lambda: self.seconds, wait)

    def start(self) -> None:
        """Starts the service as a supervisor does: again, where it says why it cannot."""
        for attempt in range(6):
            with self.calls.left_out():
                app = load(self.directory / "app.toml")
            self.service = Service(app, self.said.append, self.clock, self.threads)
            try:
                self.service.start()
                return
            except (DataError, OSError) as error:
                self.said.append(f"start: {type(error).__name__}: {error}")
                self.let_go()
                if attempt == 5:
                    raise
            self.seconds += 5

    def let_go(self) -> None:
        """The process ends here."""
        with self.calls.left_out():
            self._let_go()

    def _let_go(self) -> None:
        assert self.service is not None
        for reader in self.service.sources.readers.values():
            reader._source = None
        for outlet in self.service.outlets.all():
            close = getattr(outlet._sink, "close_file", None)
            if close is not None:
                close()
        if hasattr(self.service, "db"):
            killed(self.service.db)
        if self.service.outlets.locked:
            self.service.outlets.unlock()
        self.service = None
        gc.collect()
        for file in os.listdir("/proc/self/fd"):  # what it has not closed
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{file}").startswith(f"{self.directory}{os.sep}"):
                    os.dup2(_NOTHING, int(file))

    def go_on(self, until: Callable[[], bool], seconds: float) -> bool:
        """Lets it run until something holds, for so long at the most; whether it does."""
        assert self.service is not None
        end, steps = self.service.context.clock.ticks() + seconds, 0
        while not until() and not self.service.done:
            if self.service.context.clock.ticks() > end:
                return False
            if not self.service.step():
                if self.threads:
                    self.service.context.clock.wait(self.service.context.wake, 0.01)
                    self.service.context.wake.clear()
                else:
                    self.seconds += 0.3
                    steps += 1
                    time.sleep(0.0005 if steps < 100 else 0.02)  # for the thread that asks history
        return True

    def waits_for_history(self) -> bool:
        """Whether a match of a running query waits for what its history is."""
        assert self.service is not None
        with self.calls.left_out():
            stats = [running.alerts.stats() for running in self.service.queries.running.values()]
        return any(one.get("waiting_for_history", 0) for one in stats)

    def delivered(self) -> dict[str, list[dict[str, Any]]]:
        """What each sink has."""
        with self.calls.left_out():
            return self._delivered()

    def _delivered(self) -> dict[str, list[dict[str, Any]]]:
        found = {}
        if (self.directory / "lines.ndjson").exists():
            with open(self.directory / "lines.ndjson", "rb") as file:
                found["lines"] = rows_of([line for line in file.read().splitlines(keepends=True) if line[-1:] == b"\n"])
        parts = sorted((self.directory / "parts").glob("part-*.parquet"))
        found["parts"] = [row for path in parts for row in pq.read_table(str(path)).to_pylist()]
        found["kafka"] = rows_of([m.value() for m in self.kafka.topics["alerts"]])
        found["mqtt"] = rows_of([payload for _, payload in self.mqtt.published])
        found["web"] = rows_of([payload for _, payload in self.web.posts])
        return {name: rows for name, rows in found.items() if rows}


_NUMBERS = itertools.count()
#: What is waited for, in seconds, where time is the machine's.
QUICK = {
    "archive.keeper.AGE_MAX_S": 0.1,
    "hybrid.service.trouble.SLOW_S": 0.4,
    "hybrid.service.checkpoints.SETTLE_S": 0.5,
    "hybrid.service.service.DRAIN_S": 1.0,
    "hybrid.service.service.STOP_S": 6.0,
    "hybrid.service.sink_writer.RETRY_S": 0.05,
    "hybrid.service.sources.SOURCE_RETRY_S": 0.05,
    "hybrid.service.service.OPEN_EVERY_S": 0.2,
    "hybrid.service.report.STATUS_EVERY_S": 0.1,
    "hybrid.service.reload.LOOK_EVERY_S": 0.1,
}
_NOTHING = os.open(os.devnull, os.O_RDWR)


def names(rows: list[dict[str, Any]]) -> set[str]:
    return {f"{row['match_id']}/{row.get('join_id')}" for row in rows}


def ran(
    directory: Path, text: str, calls: Calls, expected: Told | None, kill: bool = False, threads: bool = False,
    store: Store | None = None,
) -> Told:  # fmt: skip
    """What is left of two lives of a service. expected: what is waited for; None: as long as it takes to be quiet."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    world = World(directory, text, calls, threads, store)
    told = Told(said=world.said)
    patience = 30.0 if threads else 150.0
    with world.around():
        try:
            ends = "follow = false" in text
            for life in (1,) if ends else (1, 2):
                if life == 1 or "latest" not in text:
                    world.feed((life - 1) * COUNT, life * COUNT)
                if ends:
                    world.feed(COUNT, 2 * COUNT)
                world.start()
                assert world.service is not None
                if "latest" in text:
                    world.go_on(lambda: False, 3)
                    world.feed((life - 1) * COUNT, life * COUNT)
                if expected is None:
                    world.go_on(lambda: False, 2 if threads else 12)
                    quiet, before = 0, world.delivered()
                    # History is asked in real time. Before: on a busy machine it was quiet before the answer came.
                    while (quiet < 3 or world.waits_for_history()) and not world.service.done:
                        time.sleep(0.05)
                        world.go_on(lambda: False, 0.1 if threads else 1.5)
                        quiet, before = (quiet + 1 if world.delivered() == before else 0), world.delivered()
                else:
                    wanted = expected.stages[life - 1]
                    for _ in range(6):
                        world.go_on(lambda wanted=wanted: _has(world, wanted), patience)
                        if _has(world, wanted) or ends or not world.service.done:
                            break
                        world.service.finish()  # its only source was given up: a supervisor starts it again
                        world.start()
                    if not kill:
                        world.go_on(lambda: False, 0.3 if threads else 3)
                told.stages.append({name: names(rows) for name, rows in world.delivered().items()})
                assert world.service is not None
                world.service.status()
                if kill:
                    world.let_go()
                else:
                    world.service.stop()
                    world.service.finish()
                    world.said.append(f"trouble at the end: {world.service.context.trouble.faults()}")
        except Exception:  # noqa: BLE001  (whatever it is, it has ended the service)
            told.broken = traceback.format_exc()[-2000:]
            if world.service is not None:
                world.let_go()
    told.rows = world.delivered()
    try:
        calls.point = None
        with hybrid.connect(world.path, storage_options=world.options or None, read_only=not kill) as db:
            told.events = [int(n) for n in db.sql("SELECT n FROM ticks ORDER BY ts, n").arrow()["n"].to_pylist()]
    except (DataError, QueryError, OSError) as error:
        told.broken += f"\nthe archive: {error}"
    return told


@cache
def undisturbed(directory: Path, text: str) -> tuple[Told, Calls]:
    """Returns what a service has done in a directory where no call fails, and its calls."""
    calls = Calls()
    return ran(directory, text, calls, None), calls


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the directory of all apps. Ids of rows depend on it, so several tests share one undisturbed run."""
    return tmp_path_factory.mktemp("calls") / "app"


def _has(world: World, wanted: dict[str, set[str]]) -> bool:
    found = world.delivered()
    return all(name in found and names(found[name]) >= rows for name, rows in wanted.items())


def difference(expected: Told, told: Told) -> tuple[str, str]:
    """What of a run differs from the undisturbed one, and how; "" where nothing does. Sinks that read their files
    themselves have each row once, those of a query in order; the others each row, by its id."""
    if told.broken:
        return "service", told.broken
    if told.events != expected.events:
        return "events", f"{told.events}"
    for sink, rows in expected.rows.items():
        files = sink in ("lines", "parts")
        for query, column in (("falls", "high"), ("before", "earlier")):
            mine = [json.dumps(row) for row in rows if column in row]
            found = [json.dumps(row) for row in told.rows.get(sink, []) if column in row]
            once = found if files else sorted(dict.fromkeys(found))
            if once != (mine if files else sorted(mine)):
                return f"{sink} {query}", f"lost {Counter(mine) - Counter(once)}, more {Counter(once) - Counter(mine)}"
    return "", ""


def is_told(what: str, told: Told) -> bool:
    """Whether somebody who reads the log knows what differs: the source, the archive, the sink or the query of it is
    named."""
    named = ["source feed: ", "archive of ticks: ", "checkpoint: "]
    if what not in ("events", "service"):
        sink, query = what.split()
        named += [f"sink {sink}: ", f"query {query}: "]
    return what != "service" and any(said.startswith(tuple(named)) for said in told.said)


def runs(
    directory: Path, text: str, what: tuple[str, ...], seconds: float, threads: bool = False,
    store: Store | None = None, only: tuple[str, ...] = ("",), hang_s: float = 0.0, least: int = 4,
) -> Counter[str]:  # fmt: skip
    """Tries points until the time is over, and as many as `least`: some of each name first. How it went, counted."""
    if threads:
        expected = ran(directory, text, Calls(), None, threads=threads, store=store)
    else:
        expected, _ = undisturbed(directory, text)
    assert difference(expected, expected) == ("", "")
    assert min(len(rows) for rows in expected.rows.values()) > 20
    plans = []
    for kill in (False,) if threads or text == ENDS else (False, True):
        calls = Calls()
        again = ran(directory, text, calls, expected, kill, threads, store)
        assert difference(expected, again) == ("", ""), again.said
        plans += [(point, kill) for point in calls.points(what) if point.name.startswith(only)]
    random.Random(SEED).shuffle(plans)
    first = {(point.name, point.what): (point, kill) for point, kill in plans}
    chosen = list(first.values())
    random.Random(SEED).shuffle(chosen)
    end, counts = time.monotonic() + seconds, Counter[str]()
    order = (*chosen, *(one for one in plans if first[one[0].name, one[0].what] != one))
    for tried, (point, kill) in enumerate(order):
        if tried >= least and time.monotonic() > end:  # a machine that is busy tries a few all the same
            break
        calls = Calls(point, hang_s)
        told = ran(directory, text, calls, expected, kill, threads, store)
        differs, how = difference(expected, told)
        assert not differs or is_told(differs, told), f"{point}, {'killed' if kill else 'stopped'}: {how}\n{told.said}"
        counts[f"{point.what}: {'told' if differs else 'same'}"] += 1
        counts["not reached"] += not calls.hit
    sys.stdout.write(f"\n{sum(counts.values()) - counts['not reached']:,} of {len(plans):,} points: {dict(counts)}\n")
    return counts


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """The end of each process that is played here collects garbage: not that of all tests before."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.timeout(2 * SECONDS + 600)
@pytest.mark.parametrize("text", [FILES, ENDS, BROKERS, GROUP], ids=["files", "ends", "brokers", "group"])
def test_calls_that_fail(place: Path, text: str) -> None:
    """Of files, brokers and a web server: they fail once or several times, or do it and say that they failed."""
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    pytest.importorskip("paho.mqtt.client", reason="needs the extra mqtt")
    counts = runs(place, text, (RAISES, LIES, KEEPS), SECONDS / 2)
    assert sum(counts.values()) > 3


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(2 * SECONDS + 600)
def test_calls_that_hang(tmp_path: Path) -> None:
    """Here for 0.6 s, which is longer than a service waits here for anything; for 10 s where all are tried."""
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    pytest.importorskip("paho.mqtt.client", reason="needs the extra mqtt")
    hang_s = 0.6 if SECONDS < 60 else 10.0
    only = ("kafka.", "mqtt.", "web.", "fsync", "open", "replace")
    counts = runs(tmp_path / "app", BROKERS, (HANGS,), SECONDS / 2, True, None, only, hang_s)
    assert counts["hangs: same"] > 0


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 600)
def test_calls_of_a_store(tmp_path: Path) -> None:
    """Requests are answered with 500 or by the end of the connection, done or not, or late."""
    pytest.importorskip("localbucket")
    for cached in (filesystem_of, database_of):
        cached.cache_clear()
    store = Store(tmp_path / "s3")
    try:
        what = (RAISES, LIES, KEEPS, HANGS)
        hang_s = 1.5 if SECONDS < 60 else 10.0
        counts = runs(tmp_path / "app", STORE, what, SECONDS, True, store, ("store.",), hang_s, least=2)
    finally:
        store.close()
    assert sum(counts.values()) > 1


@pytest.mark.slow
def test_brokers_behind_a_network_that_delays_cuts_halves_and_hangs(tmp_path: Path) -> None:
    """Events come from Kafka and rows go to Kafka and MQTT, both through proxies: each event is kept once, and each row
    comes, by its id. Everything hangs for 2 s here, for 10 s where all calls are tried."""
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    pytest.importorskip("paho.mqtt.client", reason="needs the extra mqtt")
    from confluent_kafka import Producer

    expected = ran(tmp_path / "app", BROKERS, Calls(), None)
    hang_s, said = 2.0 if SECONDS < 60 else 10.0, list[str]()
    with ExitStack() as stack:
        to_kafka, to_mqtt = stack.enter_context(proxy()), stack.enter_context(proxy())
        kafka = stack.enter_context(
            servers.kafka_broker(tmp_path, durable=False, advertised=to_kafka.listens_at)
        )  # fmt: skip
        mqtt = stack.enter_context(servers.mqtt_broker(tmp_path / "mqtt"))
        to_kafka.port, to_mqtt.port = kafka.port, mqtt.port
        found = stack.enter_context(servers.delivered_to_mqtt(mqtt, "alerts"))
        for topic in ("ticks", "alerts"):
            servers.make_topic(kafka.address, topic)
        text = BROKERS.replace("kafka:9092", f"127.0.0.1:{to_kafka.listens_at}").partition("[sinks.web]")[0]
        text = text.replace('host = "mqtt"', f'host = "127.0.0.1"\nport = {to_mqtt.listens_at}') + QUERIES
        text = text.replace("SINKS", '"kafka", "mqtt"', 1).replace("SINKS", '"kafka"')  # joined rows share a match id
        (tmp_path / "app.toml").write_text(text.replace('"2s"', '"300 ms"'))
        for name, seconds in QUICK.items():
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(name, seconds)
        producer = Producer({"bootstrap.servers": kafka.address, "enable.idempotence": True, "log_level": 0})
        service = Service(load(tmp_path / "app.toml"), said.append)
        service.start()

        def go_on(seconds: float, until: Callable[[], bool] = lambda: False) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end and not until():
                if not service.step():
                    service.context.clock.wait(service.context.wake, 0.02)
                    service.context.wake.clear()

        ways = ("delay_s", "refusing", "stalled", "silent", "halved")
        faults = [(one, what) for one in (to_kafka, to_mqtt) for what in ways]
        random.Random(SEED).shuffle(faults)
        sent = lines(0, 2 * COUNT)
        for between, what in faults:
            for _ in range(2 * COUNT // len(faults)):
                producer.produce("ticks", sent.pop(0), partition=0)
            producer.poll(0)
            if what == "halved":
                between.halve()
            else:
                setattr(between, what, 0.3 if what == "delay_s" else True)
            if what == "refusing":
                between.reset()
            go_on(hang_s)
            if what != "halved":
                setattr(between, what, 0.0 if what == "delay_s" else False)
            if what == "silent":
                between.reset()
            go_on(0.3)
        for line in sent:
            producer.produce("ticks", line, partition=0)
        producer.flush(GUARD_S)
        wanted = {row["match_id"] for row in expected.rows["mqtt"] if "high" in row}
        go_on(GUARD_S, lambda: set(found) >= wanted and not any(o.rows_unread for o in service.outlets.all()))
        service.stop()
        assert service.finish() == 0
        assert set(found) == wanted, said
        assert names(rows_of(list(servers.values_in_kafka(kafka, "alerts", 1)))) == names(expected.rows["kafka"])
    with hybrid.connect(tmp_path / "market", read_only=True) as db:
        events = db.sql("SELECT n FROM ticks ORDER BY n").arrow()["n"].to_pylist()
    assert events == list(range(2 * COUNT))


# ---- what was lost, or ended the service, when this was first tried


@pytest.mark.slow
def test_a_lease_is_given_back_where_a_database_cannot_be_opened(tmp_path: Path) -> None:
    """A store that does not answer in the middle of it keeps nobody out for longer than that."""
    # Before: "is open for writing in this process", until the lease ran out.
    pytest.importorskip("localbucket")
    store = Store(tmp_path / "s3")
    try:
        hybrid.connect("s3://bucket/db", storage_options=store.options).close()
        with pytest.MonkeyPatch.context() as patch:
            claims_fail(patch, OSError("503"))
            with pytest.raises(DataError, match="cannot be opened for writing: 503"):
                hybrid.connect("s3://bucket/db", storage_options=store.options)
        hybrid.connect("s3://bucket/db", storage_options=store.options).close()
    finally:
        store.close()


LAST = -1


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("text", "name", "number", "what", "kill"),
    [
        # Before: a file whose last block could not be read once was never read again: 12 of 24 events, no trouble.
        pytest.param(FILES, "file.read in/#.ndjson", LAST, LIES, False, id="read"),
        # Before: a file that is read once was passed over where it could not be written down which one it is: 0 events.
        pytest.param(ENDS, "file.flush market/_service/files-feed.log.part", 1, KEEPS, False, id="known files"),
        # Before: a topic that is read from its end was read from its beginning: 12 events more.
        pytest.param(GROUP, "close market/_service", 4, RAISES, True, id="marks"),
        # Before: OSError out of `step`, and with it the end of the service.
        pytest.param(BROKERS, "fsync market/ticks/stream.json.part", 2, LIES, False, id="declaration"),
        pytest.param(BROKERS, "fstat market/_writer", 15, RAISES, False, id="lock"),
        # Before: the query began anew after a kill, and the match across it was not found.
        pytest.param(FILES, "file.write market/_checkpoint/#.state.part", 2, KEEPS, True, id="first checkpoint"),
        # Before: OSError out of `finish`.
        pytest.param(BROKERS, "file.close market/_service/lock", LAST, LIES, False, id="state"),
    ],
)
def test_one_call(place: Path, text: str, name: str, number: int, what: str, kill: bool) -> None:
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    pytest.importorskip("paho.mqtt.client", reason="needs the extra mqtt")
    expected, calls = undisturbed(place, text)
    point = Point(name, calls.counts[name] if number == LAST else number, what)
    calls = Calls(point)
    told = ran(place, text, calls, expected, kill)
    assert calls.hit
    assert difference(expected, told) == ("", ""), told.said
