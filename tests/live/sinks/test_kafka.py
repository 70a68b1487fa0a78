from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from live.sinks.base import Refused
from live.sinks.kafka import KafkaSink
from query.errors import DataError
from tests.live.sinks.rows import matches, table
from tests.waiting import GUARD_S, until

confluent_kafka = pytest.importorskip("confluent_kafka", reason="needs the extra kafka")


class Cluster:
    """librdkafka's mock cluster, in this process: it lives as long as the client that has made it."""

    def __init__(self) -> None:
        self.client = confluent_kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": ""})
        brokers = self.client.list_topics(timeout=GUARD_S).brokers.values()
        self.servers = ",".join(f"{b.host}:{b.port}" for b in brokers)

    def stop(self) -> None:
        del self.client

    def read(self, topic: str, count: int, different: bool = False) -> list[confluent_kafka.Message]:
        """Returns the first `count` messages of a topic, or until there are `count` different ones, and those that come
        within 0.3 s after them."""
        settings = {"bootstrap.servers": self.servers, "group.id": "test", "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer(settings)
        partitions = consumer.list_topics(topic, timeout=GUARD_S).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, p, 0) for p in partitions])
        found: list[confluent_kafka.Message] = []


        def look() -> None:
            found.extend(m for m in consumer.consume(1000, 0.1) if not m.error())

        until(lambda: len({(m.key(), m.value()) for m in found} if different else found) >= count, look)
        found += [m for m in consumer.consume(1000, 0.3) if not m.error()]
        consumer.close()
        return found


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    if hasattr(cluster, "client"):
        cluster.stop()


@pytest.mark.slow
def test_rows_are_messages_with_the_id_as_key(cluster: Cluster) -> None:
    sink = KafkaSink(cluster.servers, "alerts")
    rows = table([("aa", None, 0), ("aa", None, 1), ("bb", "jj", 2)])
    sink.check(rows.schema)
    sink.open(None)
    sink.write(rows)
    assert sink.cursor() is None
    found = sorted(cluster.read("alerts", 3), key=lambda m: json.loads(m.value())["n"])
    assert [m.key() for m in found] == [b"aa", b"aa", b"bb"]
    assert json.loads(found[2].value()) == {"symbol": "S2", "n": 2, "match_id": "bb", "join_id": "jj"}
    assert found[1].headers() == [("match_id", b"aa"), ("row", b"1")]
    assert found[2].headers() == [("match_id", b"bb"), ("join_id", b"jj"), ("row", b"0")]
    sink.close()
    sink.close()


@pytest.mark.slow
def test_many_rows_arrive_once_and_in_order_of_their_key(cluster: Cluster) -> None:
    sink = KafkaSink(cluster.servers, "alerts", {"queue.buffering.max.messages": 500})
    sink.open(None)
    rows = table([(f"m{n % 7}", None, n) for n in range(20_000)])
    for at in range(0, 20_000, 3_000):
        sink.write(rows.slice(at, 3_000))
    sink.close()
    found = [json.loads(m.value()) for m in cluster.read("alerts", 20_000)]
    assert len(found) == 20_000
    for key in range(7):
        assert [r["n"] for r in found if r["match_id"] == f"m{key}"] == list(range(key, 20_000, 7))


@pytest.mark.slow
def test_messages_that_the_client_gave_up_are_an_error_and_stay(cluster: Cluster) -> None:
    # Before: seconds was 1 and the client looks for messages past message.timeout.ms once a second, so that they were
    # pending at times where the test expected them to have failed.
    sink = KafkaSink(cluster.servers, "alerts", {"message.timeout.ms": 3000, "linger.ms": 0}, seconds=20.0)
    sink.open(None)
    sink.write(matches(0, 1))
    sink.cursor()
    cluster.stop()
    sink.write(matches(1, 2))
    said = r"Kafka topic alerts at .*: 2 rows were not accepted.*\nhint: check that"
    with pytest.raises(OSError, match=said):
        sink.cursor()
    with pytest.raises(OSError, match="2 rows were not accepted"):
        sink.write(matches(3, 1))
    with pytest.raises(OSError, match="2 rows were not accepted"):
        sink.close()


@pytest.mark.slow
@pytest.mark.slow
def test_pending_messages_are_an_error_and_stay(cluster: Cluster) -> None:
    sink = KafkaSink(cluster.servers, "alerts", {"linger.ms": 0}, seconds=3.0)
    sink.open(None)
    sink.write(matches(0, 1))
    sink.cursor()
    cluster.stop()
    sink.write(matches(1, 2))
    said = r"Kafka topic alerts at .*: 2 rows were not acknowledged within 3 s.*\nhint: check that"
    with pytest.raises(OSError, match=said):
        sink.cursor()
    sink.write(matches(3, 1))
    with pytest.raises(OSError, match="3 rows were not acknowledged"):
        sink.close()


@pytest.mark.slow
def test_messages_that_failed_are_sent_again(cluster: Cluster) -> None:
    """The broker is there again: the messages that were given up come, and those behind them."""
    sink = KafkaSink(cluster.servers, "alerts", {"linger.ms": 60_000})  # they wait until somebody flushes
    sink.open(None)
    sink.write(matches(0, 2))
    producer = sink._opened()
    # Before: what was sent again failed once more in flight, and came twice: confluent_kafka takes `blocking` the other
    # way round, so that the purge goes on in the background.
    producer.purge(in_flight=False)
    producer.flush(GUARD_S)
    assert len(sink._failed) == 2
    for attempt in range(5):  # as a caller does: what is left of the purge may take some of them once more
        try:
            sink.write(matches(2, 1))
            break
        except OSError:
            assert attempt < 4
    sink.close()
    assert sorted(json.loads(m.value())["n"] for m in cluster.read("alerts", 3)) == [0, 1, 2]


@pytest.mark.slow
def test_a_broker_that_is_not_there_is_an_error() -> None:
    sink = KafkaSink("127.0.0.1:1", "alerts", seconds=0.3)
    with pytest.raises(OSError, match=r"Kafka topic alerts at 127.0.0.1:1: .*\nhint: check that the brokers run"):
        sink.open(None)


@pytest.mark.slow
def test_a_row_that_is_too_large_is_named(cluster: Cluster) -> None:
    sink = KafkaSink(cluster.servers, "alerts", {"message.max.bytes": 1000})
    sink.open(None)
    with pytest.raises(Refused, match=r"rejects row a+: 2,\d+ bytes .message.max.bytes of .*\nhint: .*`refusals`"):
        sink.write(table([("a" * 2000, None, 0)]))
    sink.write(matches(0, 1))
    sink.close()


@pytest.mark.slow
@pytest.mark.parametrize("where", ["sink", "broker"])
def test_without_a_row_that_is_refused_the_others_arrive(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Whether the client refuses it at once, or the broker later."""
    # Before: it was sent again for ever, and nothing behind it arrived.
    if where == "broker":
        made = KafkaSink._made
        monkeypatch.setattr(KafkaSink, "_made", lambda self: Refusing(made(self), b"large"))
    sink = KafkaSink(cluster.servers, "alerts", {"message.max.bytes": 1000} if where == "sink" else None)
    sink.open(None)
    key = "large" if where == "broker" else "large" * 400
    rows = table([("aa", None, 0), (key, None, 1), (key, None, 2), ("bb", None, 3)])
    refused: dict[str, str] = {}
    for _ in range(5):
        try:
            sink.write(rows)
            sink.cursor()
            break
        except Refused as error:
            for id in error.rows:
                sink.leave_out(id)
            refused |= error.rows
    sink.close()
    assert {id: json.loads(text)["n"] for id, text in refused.items()} == {key: 1, f"{key}/1": 2}
    found = {(m.key(), json.loads(m.value())["n"]) for m in cluster.read("alerts", 2, different=True)}
    # Before: aa, which is sent with each attempt, counted twice, and bb was not waited for.
    assert found == {(b"aa", 0), (b"bb", 3)}


def test_settings_that_do_not_fit_are_refused() -> None:
    for config in ({"no.such.setting": 1}, {"acks": "0"}):
        with pytest.raises(DataError, match="the Kafka client rejects its options: "):
            KafkaSink("127.0.0.1:1", "alerts", config)


def test_rows_need_a_sink_that_is_open() -> None:
    with pytest.raises(DataError, match="the sink of Kafka topic alerts is not open"):
        KafkaSink("127.0.0.1:1", "alerts").write(matches(0, 1))


class Refusing:
    """A producer whose broker says of the messages with a key that they are too large."""

    def __init__(self, producer: confluent_kafka.Producer, key: bytes) -> None:
        self.producer, self.key = producer, key
        self.answers: list[tuple[object, object]] = []

    def produce(self, topic: str, value: bytes, key: bytes, headers: object, on_delivery: Any) -> None:
        if key != self.key:
            self.producer.produce(topic, value, key, headers=headers, on_delivery=on_delivery)
            return
        message = SimpleNamespace(key=lambda: key, value=lambda: value, headers=lambda: headers)
        self.answers.append((on_delivery, message))

    def flush(self, seconds: float) -> int:
        answers, self.answers = self.answers, []
        for answer, message in answers:
            answer(confluent_kafka.KafkaError(confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE), message)  # type: ignore[operator]
        return self.producer.flush(seconds)

    def __len__(self) -> int:
        return len(self.producer)

    def __getattr__(self, name: str) -> object:
        return getattr(self.producer, name)


class Lying:
    """A producer that says of some messages, once, that they failed, though they are in the topic."""

    def __init__(self, producer: confluent_kafka.Producer, lies: set[bytes]) -> None:
        self.producer, self.lies = producer, lies

    def produce(self, topic: str, value: bytes, key: bytes, headers: object, on_delivery: object) -> None:
        def answer(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            if error is None and key in self.lies:
                self.lies.discard(key)
                error = confluent_kafka.KafkaError(confluent_kafka.KafkaError._MSG_TIMED_OUT)
            on_delivery(error, message)  # type: ignore[operator]

        self.producer.produce(topic, value, key, headers=headers, on_delivery=answer)

    def __len__(self) -> int:
        return len(self.producer)

    def __getattr__(self, name: str) -> object:
        return getattr(self.producer, name)


@pytest.mark.slow
def test_messages_that_were_taken_and_said_to_have_failed_come_again_by_the_same_id(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = {f"{n:016x}".encode() for n in (1, 4)}
    made = KafkaSink._made
    monkeypatch.setattr(KafkaSink, "_made", lambda self: Lying(made(self), lies))
    sink = KafkaSink(cluster.servers, "alerts")
    sink.open(None)
    sink.write(matches(0, 6))
    with pytest.raises(OSError, match="2 rows were not accepted"):
        sink.cursor()
    assert sink.cursor() is None
    sink.close()
    found = [(m.key(), m.value()) for m in cluster.read("alerts", 8)]
    assert len(found) == 8
    assert sorted(json.loads(value)["n"] for _, value in set(found)) == [0, 1, 2, 3, 4, 5]
