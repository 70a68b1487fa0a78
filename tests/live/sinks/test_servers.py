"""Kafka and MQTT sinks against real brokers that are restarted half-way: by its id, every row is there once."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from live.sinks.base import Sink
from live.sinks.kafka import KafkaSink
from live.sinks.mqtt import MqttSink
from tests.live.sinks.rows import matches

servers = pytest.importorskip("tests.live.servers", reason="the brokers that tests start are not there")
pytestmark = pytest.mark.slow

ROWS = 6_000


def write_with_a_restart(sink: Sink, broker: Any, how: signal.Signals) -> None:
    """Writes all rows; the broker goes away while some are on their way, and comes back a little later."""
    sink.open(None)
    sink.write(matches(0, ROWS // 3))
    sink.cursor()
    sink.write(matches(ROWS // 3, ROWS // 3))
    broker.stop(how)
    later = threading.Timer(1.0, broker.start)
    later.start()
    sink.write(matches(2 * (ROWS // 3), ROWS // 3))
    for attempt in range(5):
        try:
            sink.cursor()
            break
        except OSError:
            assert attempt < 4
    sink.close()
    later.join()


def test_kafka(tmp_path: Path) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    with servers.kafka_broker(tmp_path) as broker:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("alerts", 1, 1)])["alerts"].result(30)
        write_with_a_restart(KafkaSink(broker.address, "alerts"), broker, signal.SIGKILL)
        settings = {"bootstrap.servers": broker.address, "group.id": "test", "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(settings)
        consumer.assign([confluent_kafka.TopicPartition("alerts", 0, 0)])
        found: dict[str, int] = {}
        until = time.monotonic() + 60
        while len(found) < ROWS and time.monotonic() < until:
            for message in consumer.consume(1000, 0.5):
                assert not message.error()
                assert dict(message.headers())["match_id"] == message.key()
                found[message.key().decode()] = json.loads(message.value())["n"]
        consumer.close()
    assert found == {f"{n:016x}": n for n in range(ROWS)}


def test_mqtt(tmp_path: Path) -> None:
    client = pytest.importorskip("paho.mqtt.client", reason="needs the extra mqtt")
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    found: dict[str, int] = {}
    subscribed, lock = threading.Event(), threading.Lock()

    def on_message(of: Any, data: Any, message: Any) -> None:
        ids = dict(message.properties.UserProperty)
        with lock:
            found[ids["match_id"]] = json.loads(message.payload)["n"]

    with servers.mqtt_broker(tmp_path) as broker:
        reader = client.Client(client.CallbackAPIVersion.VERSION2, "reader", protocol=client.MQTTv5)
        reader.on_message = on_message
        reader.on_connect = lambda of, *_: of.subscribe("alerts", qos=1)
        reader.on_subscribe = lambda *_: subscribed.set()
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 600
        reader.connect("127.0.0.1", broker.port, clean_start=False, properties=session)
        reader.loop_start()
        assert subscribed.wait(10)
        write_with_a_restart(MqttSink("127.0.0.1", "alerts", broker.port), broker, signal.SIGTERM)
        until = time.monotonic() + 30
        while len(found) < ROWS and time.monotonic() < until:
            time.sleep(0.05)
        reader.disconnect()
        reader.loop_stop()
    assert found == {f"{n:016x}": n for n in range(ROWS)}
