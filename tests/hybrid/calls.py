"""Calls at the border of a service, each of which can go wrong: those of its files, and of brokers and web servers that
live in the memory of a test.

A call raises, does what it was asked and says that it failed, or hangs and does it then."""

from __future__ import annotations

import builtins
import errno
import io
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

#: What may happen to a call: it fails; it and the next ones of its name fail; it is done, and says that it failed; it
#: comes back late.
RAISES, KEEPS, LIES, HANGS = "raises", "keeps raising", "lies", "hangs"
#: So many calls of a name fail in a row.
ROW = 4
_NUMBER = re.compile(r"\d+|[0-9a-f]{8,}(-[0-9a-f]+)*")


@dataclass(frozen=True, slots=True)
class Point:
    """The how manieth call of a name, from 1, and what happens to it."""

    name: str
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.name} no. {self.number} {self.what}"


@dataclass
class Calls:
    """Counts the calls by their names, and lets one go wrong. hang_s: for how long one hangs."""

    point: Point | None = None
    hang_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    hit: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ours: threading.local = field(default_factory=threading.local)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What this thread does in the block is the test's, and no call."""
        before, self._ours.on = getattr(self._ours, "on", False), True
        try:
            yield
        finally:
            self._ours.on = before

    def do(self, name: str, really: Callable[[], Any], error: Callable[[], Exception]) -> Any:
        if getattr(self._ours, "on", False):
            return really()
        with self._lock:
            self.counts[name] += 1
            number, point = self.counts[name], self.point
        if point is None or point.name != name:
            return really()
        last = point.number + (ROW if point.what == KEEPS else 1)
        if not point.number <= number < last:
            return really()
        self.hit = True
        if point.what == HANGS:
            threading.Event().wait(self.hang_s)
            return really()
        if point.what == LIES or "close" in name.split()[0]:  # a file is closed, whatever the system says of it
            done = really()
            if isinstance(done, _File) or (isinstance(done, int) and name.startswith("open ")):
                done.close() if isinstance(done, _File) else _CLOSE(done)
        raise error()

    def points(self, what: tuple[str, ...]) -> list[Point]:
        """All that can go wrong, after a run in which nothing did."""
        return [Point(n, i + 1, w) for n, count in sorted(self.counts.items()) for i in range(count) for w in what]


# ---- files

_CLOSE = os.close
_PATHS = ("open", "stat", "listdir", "scandir", "mkdir", "unlink", "replace", "rename", "link", "truncate")
_FILES = ("read", "pread", "write", "pwrite", "writev", "fsync", "ftruncate", "fstat", "close")


class _File:
    """A file of Python whose reads, writes and end are calls."""

    def __init__(self, calls: Calls, file: Any, name: str) -> None:
        self._calls, self._file, self._name = calls, file, name

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._file, name)
        if name not in ("read", "readline", "write", "flush", "close"):
            return found
        return lambda *given: self._calls.do(f"file.{name} {self._name}", lambda: found(*given), _eio)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *given: object) -> None:
        self.close()


def _eio() -> OSError:
    return OSError(errno.EIO, "Input/output error")


@contextmanager
def files(calls: Calls, directory: Path) -> Iterator[None]:
    """The calls of files below a directory go through `calls`, until the block ends."""
    root = str(directory) + os.sep
    readlink = os.readlink

    def named(what: str, where: Any) -> str | None:
        """The name of a call; None for what is not below the directory. Numbers are left out."""
        try:
            path = readlink(f"/proc/self/fd/{where}") if isinstance(where, int) else os.fspath(where)
        except (OSError, TypeError):
            return None
        if not isinstance(path, str) or not path.startswith(root):
            return None
        return f"{what} {_NUMBER.sub('#', path[len(root) :])}"

    def wrapped(what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(where: Any = ".", *given: Any, **more: Any) -> Any:
            name = named(what, where)
            if name is None:
                return real(where, *given, **more)
            return calls.do(name, lambda: real(where, *given, **more), _eio)

        return call

    real_open = builtins.open

    def opened(where: Any, *given: Any, **more: Any) -> Any:
        name = named("open", where)
        if name is None:
            return real_open(where, *given, **more)
        path = name.partition(" ")[2]
        if isinstance(where, int):
            return _File(calls, real_open(where, *given, **more), path)
        return calls.do(name, lambda: _File(calls, real_open(where, *given, **more), path), _eio)

    with pytest.MonkeyPatch.context() as patch:
        for what in (*_PATHS, *_FILES):
            patch.setattr(os, what, wrapped(what, getattr(os, what)))
        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)
        yield


# ---- Kafka


@dataclass
class _Message:
    """As confluent_kafka.Message."""

    at: tuple[str, int, int]
    bytes: bytes
    key_: bytes | None = None
    headers_: list[tuple[str, bytes]] | None = None

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return self.at[0]

    def partition(self) -> int:
        return self.at[1]

    def offset(self) -> int:
        return self.at[2]

    def value(self) -> bytes:
        return self.bytes

    def key(self) -> bytes | None:
        return self.key_

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self.headers_


class Kafka:
    """A broker with one partition of each topic, and its clients: what they keep is what a process keeps."""

    def __init__(self, calls: Calls, topics: tuple[str, ...]) -> None:
        self.calls = calls
        self.topics: dict[str, list[_Message]] = {topic: [] for topic in topics}
        self.committed: dict[str, int] = {}

    def send(self, topic: str, value: bytes, key: bytes | None = None, headers: Any = None) -> _Message:
        log = self.topics[topic]
        log.append(_Message((topic, 0, len(log)), value, key, headers))
        return log[-1]

    def about(self) -> Any:
        topics = {name: SimpleNamespace(error=None, partitions={0: None}) for name in self.topics}
        return SimpleNamespace(topics=topics, controller_id=1)

    def do(self, name: str, really: Callable[[], Any]) -> Any:
        return self.calls.do(f"kafka.{name}", really, self.error)

    @staticmethod
    def error() -> Exception:
        from confluent_kafka import KafkaError, KafkaException

        return KafkaException(KafkaError(KafkaError._TIMED_OUT, "Local: Timed out"))

    @contextmanager
    def clients(self) -> Iterator[None]:
        """The clients of Kafka are clients of this one, until the block ends."""
        import confluent_kafka
        import confluent_kafka.admin

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(confluent_kafka, "Consumer", lambda config, logger=None: _Consumer(self, config))
            patch.setattr(confluent_kafka, "Producer", lambda config, logger=None: _Producer(self))
            patch.setattr(confluent_kafka.admin, "AdminClient", lambda config: _Admin(self))
            yield


class _Consumer:
    def __init__(self, broker: Kafka, config: dict[str, Any]) -> None:
        self._broker, self._config = broker, config
        self._at: dict[str, int] = {}

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return self._broker.do("list_topics", self._broker.about)

    def get_watermark_offsets(self, at: Any, timeout: float = -1, cached: bool = False) -> tuple[int, int]:
        found: tuple[int, int] = self._broker.do("watermarks", lambda: (0, len(self._broker.topics[at.topic])))
        return found

    def assign(self, partitions: list[Any]) -> None:
        now = {p.topic: max(0, p.offset) for p in partitions}
        self._broker.do("assign", lambda: setattr(self, "_at", now))

    def subscribe(self, topics: list[str], on_assign: Any, on_revoke: Any) -> None:
        from confluent_kafka import TopicPartition

        given = [TopicPartition(topic, 0) for topic in topics]
        self._broker.do("subscribe", lambda: setattr(self, "_joins", lambda: on_assign(self, given)))

    def consume(self, count: int, timeout: float = -1) -> list[_Message]:
        found: list[_Message] = self._broker.do("consume", lambda: self._consume(count))
        if not found and timeout > 0:
            time.sleep(min(timeout, 0.02))
        return found

    def _consume(self, count: int) -> list[_Message]:
        joins, self._joins = getattr(self, "_joins", None), None
        if joins is not None:
            joins()
        found = []
        for topic, at in self._at.items():
            found += self._broker.topics[topic][at : at + count - len(found)]
            self._at[topic] = max([at, *(m.offset() + 1 for m in found if m.topic() == topic)])
        return found

    def commit(self, offsets: list[Any], asynchronous: bool) -> None:
        self._broker.do("commit", lambda: self._broker.committed.update({p.topic: p.offset for p in offsets}))

    def close(self) -> None:
        if "stats_cb" in self._config:  # else it was made to check its settings
            self._broker.do("consumer.close", lambda: None)


class _Admin:
    def __init__(self, broker: Kafka) -> None:
        self._broker = broker

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Any]:
        from confluent_kafka import Uuid

        ids = {name: Uuid(7, 1 + i) for i, name in enumerate(self._broker.topics)}
        answers = {name: SimpleNamespace(topic_id=id) for name, id in ids.items()}
        found: dict[str, Any] = self._broker.do(
            "describe_topics",
            lambda: {name: SimpleNamespace(result=lambda s, one=one: one) for name, one in answers.items()},
        )
        return found


class _Producer:
    """What is produced waits here until it is polled for or flushed; an answer that fails has the fault of the point
    `kafka.deliver`."""

    def __init__(self, broker: Kafka) -> None:
        self._broker = broker
        self._waiting: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return self._broker.do("producer.list_topics", self._broker.about)

    def produce(self, topic: str, value: bytes, key: bytes, headers: Any, on_delivery: Any) -> None:
        sent = (topic, value, key, headers, on_delivery)
        self._broker.do("produce", lambda: self._waiting.append(sent))

    def poll(self, timeout: float = -1) -> int:
        return int(self._broker.do("producer.poll", self._deliver))

    def flush(self, timeout: float = -1) -> int:
        self._broker.do("flush", self._deliver)
        return len(self._waiting)

    def purge(self) -> None:
        self._waiting.clear()

    def _deliver(self) -> int:
        done, self._waiting = self._waiting, []
        for topic, value, key, headers, answer in done:
            message, error = _Message((topic, 0, -1), value, key, headers), None
            try:
                self._broker.do("deliver", lambda m=message: self._broker.send(m.at[0], m.bytes, m.key_, m.headers_))
            except Exception as failure:  # noqa: BLE001  (the client tells of it by the callback)
                error = failure.args[0]
            answer(error, message)
        return len(done)


# ---- MQTT


class Mqtt:
    """A broker that keeps what is published, with the clients that publish to it."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.published: list[tuple[str, bytes]] = []

    def do(self, name: str, really: Callable[[], Any]) -> Any:
        return self.calls.do(f"mqtt.{name}", really, lambda: OSError(errno.ECONNRESET, "Connection reset by peer"))

    @contextmanager
    def clients(self) -> Iterator[None]:
        from paho.mqtt import client

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "Client", lambda *given, **more: _MqttClient(self))
            yield


class _MqttClient:
    """Answers at once, in the thread of whoever asks."""

    def __init__(self, broker: Mqtt) -> None:
        self._broker, self._number, self._up = broker, 0, False
        self.on_connect: Any = None
        self.on_publish: Any = None

    def __getattr__(self, name: str) -> Any:
        if name in ("username_pw_set", "tls_set", "enable_logger", "disable_logger", "loop_stop"):
            return lambda *given, **more: None
        raise AttributeError(name)

    def connect(self, host: str, port: int) -> None:
        self._broker.do("connect", lambda: setattr(self, "_up", True))

    def loop_start(self) -> None:
        if self._up:
            self.on_connect(self, None, None, SimpleNamespace(is_failure=False, value=0), None)

    def is_connected(self) -> bool:
        return self._up

    def publish(self, topic: str, payload: bytes, qos: int, properties: Any) -> Any:
        self._number += 1
        number = self._number
        self._broker.do("publish", lambda: self._take(number, topic, payload))
        return SimpleNamespace(mid=number)

    def _take(self, number: int, topic: str, payload: bytes) -> None:
        refused = False
        try:
            self._broker.do("answer", lambda: self._broker.published.append((topic, payload)))
        except OSError:
            refused = True
        self.on_publish(self, None, number, SimpleNamespace(is_failure=refused, value=0x80 * refused), None)

    def disconnect(self) -> None:
        self._up = False


# ---- a web server


class Web:
    """Takes posts, by their keys."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.posts: list[tuple[str, bytes]] = []

    @contextmanager
    def client(self) -> Iterator[None]:
        import urllib.error
        import urllib.request

        def opened(opener: Any, request: Any, data: Any = None, timeout: float = 0) -> Any:
            post = request.get_header("Idempotency-key"), request.data
            self.calls.do("web.post", lambda: self.posts.append(post), lambda: urllib.error.URLError("timed out"))
            return io.BytesIO(b"")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(urllib.request.OpenerDirector, "open", opened)
            yield


def rows_of(payloads: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(payload) for payload in payloads]


# ---- a store


class Store:
    """An S3-compatible server in this process, whose requests are calls. Of those that fail, every second one is
    answered by the end of the connection, the others with 500."""

    def __init__(self, folder: Path) -> None:
        from localbucket import S3Handler

        self.calls = Calls()
        store = self

        class Handler(S3Handler):  # type: ignore[misc]
            data_root = folder

            def log_message(self, format: str, *given: object) -> None: ...

            def _dispatch(self, action: Any) -> None:
                path, _, query = self.path.partition("?")
                what = "list" if "list-type" in query else self.command
                what += "?" if self.headers.get("If-None-Match") or self.headers.get("If-Match") else ""
                below = "/".join(path.split("/")[3:])  # without the bucket and the database
                name = f"store.{what} {_NUMBER.sub('#', below)}"
                answers, kept = self.wfile, io.BytesIO()
                self.wfile = kept
                try:
                    store.calls.do(name, lambda: super(Handler, self)._dispatch(action), _eio)
                except OSError:
                    self.close_connection = True
                    self.wfile = answers
                    if store.calls.counts[name] % 2:
                        self._headers_buffer: list[bytes] = []
                        self.send_error(500)
                    return
                self.wfile = answers
                answers.write(kept.getvalue())

        (folder / "bucket").mkdir(parents=True)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_endpoint_url": f"http://127.0.0.1:{self._server.server_port}", "aws_allow_http": "true",
            "aws_region": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "thing",
            "max_retries": "2", "retry_timeout": "2s", "timeout": "2s", "connect_timeout": "1s",
        }  # fmt: skip

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
