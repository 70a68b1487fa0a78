"""Kafka and MQTT sinks against real brokers that are restarted half-way: by its id, every row is there once."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from live.sinks.base import Sink
from live.sinks.kafka import KafkaSink
from live.sinks.mqtt import MqttSink
from tests.live import servers
from tests.live.sinks.rows import matches
from tests.waiting import until

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
    pytest.importorskip("confluent_kafka", reason="needs the extra kafka")
    with servers.kafka_broker(tmp_path) as broker:
        servers.make_topic(broker.address, "alerts")
        write_with_a_restart(KafkaSink(broker.address, "alerts"), broker, signal.SIGKILL)
        found = servers.delivered_to_kafka(broker, "alerts", ROWS)
    assert {key: row["n"] for key, row in found.items()} == {f"{n:016x}": n for n in range(ROWS)}


def test_mqtt(tmp_path: Path) -> None:
    pytest.importorskip("paho.mqtt.client", reason="needs the extra mqtt")
    with servers.mqtt_broker(tmp_path) as broker, servers.delivered_to_mqtt(broker, "alerts") as found:
        write_with_a_restart(MqttSink("127.0.0.1", "alerts", broker.port), broker, signal.SIGTERM)
        until(lambda: len(found) >= ROWS)
    assert {key: row["n"] for key, row in found.items()} == {f"{n:016x}": n for n in range(ROWS)}
