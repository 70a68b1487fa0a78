from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from live.sinks.mqtt import MqttSink
from query.errors import DataError
from tests.live.sinks.rows import matches, table
from tests.waiting import GUARD_S

pytest.importorskip("paho.mqtt", reason="needs the extra mqtt")

CONNECT, CONNACK, PUBLISH, PUBACK, PINGREQ, PINGRESP = 1, 2, 3, 4, 12, 13
NOT_AUTHORISED, QUOTA_EXCEEDED, NO_SUBSCRIBERS = 0x87, 0x97, 0x10


@dataclass
class Message:
    topic: str
    payload: dict[str, object]
    properties: dict[str, object]
    again: bool


@dataclass
class Script:
    """What the broker does. connect: the reason of each CONNACK. publish: of the n-th PUBACK (from 1); None: no answer,
    and the connection is closed."""

    connect: int = 0
    publish: Callable[[int], int | None] = lambda n: 0
    messages: list[Message] = field(default_factory=list)


class Broker:
    """The packets of MQTT 5 that a publisher needs, on loopback, by a script: what a real broker does too seldom."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        self.connections: list[socket.socket] = []
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            self.connections.append(connection)
            with connection:
                try:
                    while self.packet(connection):
                        pass
                except OSError:
                    pass

    def stop(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for connection in self.connections:
            connection.close()
        self.thread.join()

    def packet(self, connection: socket.socket) -> bool:
        """Answers one packet; whether the connection stays."""
        kind, body = read_packet(connection)
        if kind >> 4 == CONNECT:
            connection.sendall(bytes([CONNACK << 4, 3, 0, self.script.connect, 0]))
            return self.script.connect < 0x80
        if kind >> 4 == PUBLISH:
            number, message = parse_publish(kind, body)
            self.script.messages.append(message)
            reason = self.script.publish(len(self.script.messages))
            if reason is not None:
                connection.sendall(bytes([PUBACK << 4, 4, *number, reason, 0]))
            return reason is not None
        if kind >> 4 == PINGREQ:
            connection.sendall(bytes([PINGRESP << 4, 0]))
            return True
        return False


def read_packet(connection: socket.socket) -> tuple[int, bytes]:
    def read(count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = connection.recv(count - len(data))
            if not part:
                raise ConnectionError
            data += part
        return data

    kind, length, shift = read(1)[0], 0, 0
    while True:
        digit = read(1)[0]
        length |= (digit & 127) << shift
        shift += 7
        if digit < 128:
            return kind, read(length)


def parse_publish(kind: int, body: bytes) -> tuple[bytes, Message]:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    assert kind >> 1 & 3 == 1, "QoS 1"
    size = int.from_bytes(body[:2], "big")
    topic, number, rest = body[2 : 2 + size], body[2 + size : 4 + size], body[4 + size :]
    properties = Properties(PacketTypes.PUBLISH)
    _, used = properties.unpack(rest)
    return number, Message(topic.decode(), json.loads(rest[used:]), properties.json(), bool(kind & 8))


@pytest.fixture
def broker() -> Iterator[Callable[[Script], Broker]]:
    started: list[Broker] = []

    def start(script: Script) -> Broker:
        started.append(Broker(script))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def test_rows_are_messages_with_the_id_as_property(broker: Callable[[Script], Broker]) -> None:
    server = broker(Script(publish=lambda n: NO_SUBSCRIBERS))
    sink = MqttSink("127.0.0.1", "alerts/stock", server.port)
    rows = table([("aa", None, 0), ("aa", None, 1), ("bb", "jj", 2)])
    sink.check(rows.schema)
    sink.open(None)
    sink.write(rows)
    assert sink.cursor() is None
    sink.close()
    sink.close()
    found = server.script.messages
    assert [m.topic for m in found] == ["alerts/stock"] * 3
    assert found[2].payload == {"symbol": "S2", "n": 2, "match_id": "bb", "join_id": "jj"}
    assert found[1].properties["UserProperty"] == [("match_id", "aa"), ("row", "1")]
    assert found[2].properties["UserProperty"] == [("match_id", "bb"), ("join_id", "jj"), ("row", "0")]
    assert found[0].properties["ContentType"] == "application/json"


@pytest.mark.slow
def test_many_rows_arrive_in_order(broker: Callable[[Script], Broker]) -> None:
    server = broker(Script())
    sink = MqttSink("127.0.0.1", "alerts", server.port)
    sink.open(None)
    sink.write(matches(0, 500))
    sink.write(matches(500, 500))
    sink.close()
    assert [m.payload["n"] for m in server.script.messages] == list(range(1000))


@pytest.mark.slow
def test_what_a_lost_connection_has_not_answered_is_sent_again(broker: Callable[[Script], Broker]) -> None:
    server = broker(Script(publish=lambda n: None if n == 3 else 0))
    sink = MqttSink("127.0.0.1", "alerts", server.port)
    sink.open(None)
    sink.write(matches(0, 5))
    sink.cursor()
    sink.close()
    found = server.script.messages
    assert {m.payload["n"] for m in found} == {0, 1, 2, 3, 4}
    assert any(m.again for m in found)


def test_what_a_broker_refuses_is_an_error_and_sent_again(broker: Callable[[Script], Broker]) -> None:
    server = broker(Script(publish=lambda n: QUOTA_EXCEEDED if n <= 2 else 0))
    sink = MqttSink("127.0.0.1", "alerts", server.port)
    sink.open(None)
    sink.write(matches(0, 2))
    said = r"MQTT topic alerts at 127.0.0.1:\d+: the broker rejects the rows: Quota exceeded\nhint: "
    with pytest.raises(OSError, match=said):
        sink.cursor()
    sink.write(matches(2, 1))
    sink.close()
    assert [m.payload["n"] for m in server.script.messages] == [0, 1, 0, 1, 2]


@pytest.mark.slow
def test_a_broker_that_does_not_answer_is_an_error(broker: Callable[[Script], Broker]) -> None:
    go = threading.Event()

    def wait(n: int) -> int:
        go.wait(GUARD_S)
        return 0

    server = broker(Script(publish=wait))
    sink = MqttSink("127.0.0.1", "alerts", server.port, seconds=0.3)
    sink.open(None)
    sink.write(matches(0, 2))
    with pytest.raises(OSError, match=r"2 rows were not acknowledged within 0.3 s"):
        sink.cursor()
    go.set()
    sink.close()
    assert [m.payload["n"] for m in server.script.messages] == [0, 1]


@pytest.mark.slow
def test_no_more_rows_wait_than_agreed(broker: Callable[[Script], Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("live.sinks.mqtt.WAITING_MAX", 2)
    go = threading.Event()

    def wait(n: int) -> int:
        go.wait(GUARD_S)
        return 0

    server = broker(Script(publish=wait))
    sink = MqttSink("127.0.0.1", "alerts", server.port, seconds=0.3)
    sink.open(None)
    with pytest.raises(OSError, match="2 rows are pending"):
        sink.write(matches(0, 3))
    go.set()
    sink.write(matches(2, 1))
    sink.close()
    assert [m.payload["n"] for m in server.script.messages] == [0, 1, 2]


@pytest.mark.slow
def test_a_refused_connection_says_why(broker: Callable[[Script], Broker]) -> None:
    server = broker(Script(connect=NOT_AUTHORISED))
    sink = MqttSink("127.0.0.1", "alerts", server.port, user="me", password="wrong")
    with pytest.raises(OSError, match=r"refuses the connection: Not authorized \(see user and password\)\nhint: "):
        sink.open(None)


def test_a_broker_that_is_not_there_is_an_error() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(OSError, match=r"MQTT topic alerts at 127.0.0.1:\d+: .*refused"):
            MqttSink("127.0.0.1", "alerts", port).open(None)


def test_settings_that_do_not_fit_are_refused() -> None:
    for topic in ("", "alerts/#", "+/a"):
        with pytest.raises(DataError, match="invalid MQTT topic"):
            MqttSink("127.0.0.1", topic)
    with pytest.raises(DataError, match="the sink of MQTT topic alerts is not open"):
        MqttSink("127.0.0.1", "alerts").write(matches(0, 1))
