"""Kafka as a source: against the mock broker of its client, and against a real one that is killed half-way."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import confluent_kafka as ck
import pytest

from live.sources import kafka
from live.sources.base import Bad, Piece
from live.sources.decode import ROW_BITS, Decoding
from live.sources.kafka import KafkaSettings, KafkaSource
from query.errors import DataError
from query.schema import Field, Schema
from tests.live.servers import free_port, kafka_broker, make_topic
from tests.waiting import GUARD_S, until

NUMBERS = Schema("numbers", (Field("ts", "TIMESTAMP"), Field("n", "BIGINT")), "ts")
MS = Decoding(times="ms")
QUIET = {"log_level": 0}


def payload(n: int) -> bytes:
    return json.dumps({"ts": 1_704_196_800_000 + n, "n": n}).encode()


class Topic:
    """A topic of a broker, to be written to."""

    def __init__(self, producer: Any, servers: str, name: str) -> None:
        self.producer, self.servers, self.name = producer, servers, name

    def write(self, values: Mapping[int, bytes | None] | list[bytes | None], partition: int = 0) -> None:
        for value in values.values() if isinstance(values, dict) else values:
            self.producer.produce(self.name, value=value, partition=partition)
            self.producer.poll(0)
        assert self.producer.flush(GUARD_S) == 0


@pytest.fixture(scope="module")
def mock() -> tuple[Any, str]:
    producer = ck.Producer({"test.mock.num.brokers": 1, "linger.ms": 1, **QUIET})
    (broker,) = producer.list_topics(timeout=GUARD_S).brokers.values()
    return producer, str(broker).split("/")[0]


@pytest.fixture
def topic(mock: tuple[Any, str], request: pytest.FixtureRequest) -> Topic:
    """A topic of four partitions."""
    producer, servers = mock
    name = request.node.name.replace("[", ".").strip("]")
    producer.list_topics(name, timeout=GUARD_S)
    return Topic(producer, servers, name)


class Taken:
    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], int] = {}
        self.bad: list[tuple[str, int | None]] = []
        self.next: dict[str, int] = {}

    def take(self, source: KafkaSource, seconds: float = 0.5) -> bool:
        out = source.poll(seconds)
        for one in out:
            if isinstance(one, Bad):
                self.bad.append((one.source, one.offset))
                continue
            assert isinstance(one, Piece)
            assert one.offsets is not None
            assert one.next is not None
            for offset, n in zip(one.offsets.tolist(), one.rows.column(1).to_pylist()):
                assert offset >= self.next.get(one.source, 0)
                assert (one.source, offset) not in self.rows
                self.rows[one.source, offset] = n
            assert one.next > max([0, *one.offsets.tolist()])
            self.next[one.source] = one.next
        return bool(out)

    def until(self, source: KafkaSource, count: int) -> None:
        """Takes until there are so many rows."""
        until(lambda: len(self.rows) >= count, lambda: self.take(source), lambda: (len(self.rows), source.trouble()))


@pytest.fixture
def sources() -> Iterator[Any]:
    """Makes and opens sources, and closes them."""
    made = []

    def make(topic: Topic, positions: Mapping[str, int] | None = None, **settings: Any) -> KafkaSource:
        given = {"servers": topic.servers, "topics": (topic.name,), "decoding": MS, "options": QUIET, **settings}
        source = KafkaSource(NUMBERS, KafkaSettings(**given))
        made.append(source)
        source.open(positions or {})
        return source

    yield make
    for source in made:
        source.close()


@pytest.mark.slow
def test_all_partitions_and_from_positions(topic: Topic, sources: Any) -> None:
    for partition in range(4):
        topic.write([payload(10 * partition + i) for i in range(5)], partition)
    source, taken = sources(topic, batch=3), Taken()
    taken.until(source, 20)
    assert source.partitions == tuple(f"{topic.name}/{p}" for p in range(4))
    expected = {(f"{topic.name}/{p}", i): 10 * p + i for p in range(4) for i in range(5)}
    assert taken.rows == expected
    assert taken.next == {f"{topic.name}/{p}": 5 for p in range(4)}
    positions = {f"{topic.name}/0": 5, f"{topic.name}/1": 2}
    source, rest = sources(topic, positions), Taken()
    rest.until(source, 13)
    assert not rest.take(source, 0.2)
    assert rest.rows == {key: n for key, n in expected.items() if key[1] >= positions.get(key[0], 0)}
    assert source.trouble() is None
    assert not source.ended


@pytest.mark.slow
def test_a_poll_does_not_wait_for_more_than_there_is(topic: Topic, sources: Any) -> None:
    topic.write([payload(0)])
    source, taken = sources(topic), Taken()
    taken.until(source, 1)
    topic.write([payload(1)])
    assert taken.take(source, 3600)
    assert len(taken.rows) == 2


@pytest.mark.slow
def test_payloads_that_are_no_events(topic: Topic, sources: Any) -> None:
    topic.write([payload(0), b"{", None, payload(3), b"x"])
    source, taken = sources(topic), Taken()
    taken.until(source, 2)
    while taken.next.get(f"{topic.name}/0") != 5:
        assert taken.take(source, 10)
    assert taken.rows == {(f"{topic.name}/0", 0): 0, (f"{topic.name}/0", 3): 3}
    assert taken.bad == [(f"{topic.name}/0", i) for i in (1, 2, 4)]


@pytest.mark.slow
def test_messages_of_many_rows_go_on_within_one(topic: Topic, sources: Any) -> None:
    topic.write([b"\n".join(payload(10 * m + j) for j in range(4)) for m in range(3)])
    name = f"{topic.name}/0"
    settings = {"decoding": Decoding(times="ms", batched=True)}
    source, taken = sources(topic, **settings), Taken()
    taken.until(source, 12)
    expected = {(name, (m << ROW_BITS) + j): 10 * m + j for m in range(3) for j in range(4)}
    assert taken.rows == expected
    assert taken.next == {name: 3 << ROW_BITS}
    begin = (1 << ROW_BITS) + 3
    source, rest = sources(topic, {name: begin}, **settings), Taken()
    rest.until(source, 5)
    assert rest.rows == {key: n for key, n in expected.items() if key[1] >= begin}


@pytest.mark.slow
def test_a_partition_without_position_may_begin_at_its_end(topic: Topic, sources: Any) -> None:
    topic.write([payload(0), payload(1)])
    source, taken = sources(topic, start="latest"), Taken()
    numbers = itertools.count(2)

    def write() -> None:
        topic.write([payload(next(numbers))])  # where the end is, is asked some time after the source was opened
        taken.take(source, 0.2)

    until(lambda: taken.rows, write)
    assert min(taken.rows.values()) >= 2


def fill(topic: Topic) -> int:
    """Writes more than the mock broker keeps; the first offset it has then."""
    topic.write([payload(0)])
    topic.write([payload(i).ljust(50_000) for i in range(1, 200)])
    consumer = ck.Consumer({"bootstrap.servers": topic.servers, "group.id": "any", **QUIET})
    low, high = consumer.get_watermark_offsets(ck.TopicPartition(topic.name, 0), timeout=GUARD_S)
    consumer.close()
    assert 10 < low < high == 200
    return int(low)


def nothing_comes(source: KafkaSource) -> None:
    """Until it raises."""
    until(lambda: source.poll(0.5) != [], lambda: None)
    raise AssertionError("something came")


@pytest.mark.slow
def test_offsets_that_are_gone(topic: Topic, sources: Any) -> None:
    low, name = fill(topic), f"{topic.name}/0"
    source = sources(topic, {name: 5})
    with pytest.raises(DataError, match=f"offsets 5 to {low - 1} of {name} ") as raised:
        nothing_comes(source)
    assert "lost to skip" in raised.value.hint
    with pytest.raises(DataError, match="were deleted by the broker"):
        source.poll(0)
    assert "were deleted by the broker" in str(source.trouble())
    source, taken = sources(topic, {name: 5}, lost="skip"), Taken()
    taken.until(source, 200 - low)
    assert taken.rows == {(name, i): i for i in range(low, 200)}
    assert source.trouble() is None


@pytest.mark.slow
def test_a_position_behind_the_end(topic: Topic, sources: Any) -> None:
    topic.write([payload(0)])
    source = sources(topic, {f"{topic.name}/0": 500})
    with pytest.raises(DataError, match="test_a_position_behind_the_end/0 ends at offset 1, before its position 500"):
        nothing_comes(source)


@pytest.mark.slow
def test_no_broker_and_no_topic(mock: tuple[Any, str], sources: Any) -> None:
    away = Topic(None, f"127.0.0.1:{free_port()}", "t")
    for group in (None, "g"):
        source = sources(away, group=group)
        until(lambda source=source: "are unreachable" in str(source.trouble()), lambda source=source: source.poll(0.2))
        assert source.poll(0) == []
        source.close()
    nowhere = Topic(None, mock[1], "never.made")
    source = sources(nowhere)
    assert source.poll(1) == []
    assert source.trouble() == "topic never.made does not exist"


@pytest.mark.slow
def test_topics_that_are_made_later(tmp_path, sources, monkeypatch):
    monkeypatch.setattr(kafka, "LIST_S", 0.5)
    with kafka_broker(tmp_path) as broker:
        producer = ck.Producer({"bootstrap.servers": broker.address, "linger.ms": 1, **QUIET})
        topic, other = (Topic(producer, broker.address, name) for name in ("first", "other"))
        make_topic(broker.address, "first")
        topic.write([payload(0)])
        source, taken = sources(topic, topics=("first", "other")), Taken()
        taken.until(source, 1)
        until(source.trouble, lambda: source.poll(0.2))
        assert "topic other does not exist" in str(source.trouble())
        make_topic(broker.address, "other")
        other.write([payload(1)])
        taken.until(source, 2)
        assert taken.rows == {("first/0", 0): 0, ("other/0", 0): 1}
        assert source.trouble() is None


@pytest.mark.slow
def test_a_group_says_where_we_are_and_does_not_decide_it(topic: Topic, sources: Any) -> None:
    topic.write([payload(i) for i in range(10)])
    name = f"{topic.name}/0"
    source, taken = sources(topic, group="watched"), Taken()
    taken.until(source, 10)
    source.kept({name: 7, "other/0": 3})
    assert source.poll(1) == []
    source.close()
    consumer = ck.Consumer({"bootstrap.servers": topic.servers, "group.id": "watched", **QUIET})
    assert consumer.committed([ck.TopicPartition(topic.name, 0)], timeout=GUARD_S)[0].offset == 7
    consumer.close()
    source, taken = sources(topic, {name: 2}, group="watched"), Taken()
    taken.until(source, 8)
    assert list(taken.rows.values()) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_settings_that_do_not_hang_together(topic: Topic, sources: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"the Kafka option auto\.offset\.reset is set by Hybrid"):
        sources(topic, options={"auto.offset.reset": "latest"})
    with pytest.raises(DataError, match="rejects its options"):
        sources(topic, options={"no.such.option": "1"})
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(DataError, match=r"which is not installed\nhint: pip install .*kafka"):
        sources(topic)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("group", [None, "readers"])
def test_everything_once_though_the_broker_and_we_are_stopped_half_way(tmp_path, sources, group):
    count, partitions = 100_000, 3
    with kafka_broker(tmp_path) as broker:
        # Without idempotence a producer that is interrupted may write twice, at other offsets.
        producer = ck.Producer(
            {"bootstrap.servers": broker.address, "linger.ms": 50, "enable.idempotence": True, **QUIET}
        )

        def write(start: int, stop: int) -> None:
            for n in range(start, stop):
                producer.produce("numbers", value=payload(n), partition=n % partitions)
                if n % 1000 == 0:
                    producer.poll(0)
            assert producer.flush(GUARD_S) == 0

        topic = Topic(producer, broker.address, "numbers")
        make_topic(broker.address, "numbers", partitions)
        options = {**QUIET, "session.timeout.ms": 6000, "reconnect.backoff.max.ms": 500}
        write(0, count // 2)
        source, taken = sources(topic, group=group, options=options), Taken()
        taken.until(source, count // 4)
        broker.stop(signal.SIGKILL)
        until(source.trouble, lambda: taken.take(source, 0.2))
        assert "unreachable" in str(source.trouble())
        broker.start()
        write(count // 2, count)
        taken.until(source, count * 3 // 4)
        until(lambda: source.trouble() is None, lambda: taken.take(source, 0.2), source.trouble)
        source.kept(taken.next)
        # We are stopped too: what was kept were the rows of all but one partition.
        kept = {**taken.next, "numbers/1": 1000}
        source.close()
        for key in [key for key in taken.rows if key[1] >= kept.get(key[0], 0)]:
            del taken.rows[key]
        taken.next = dict(kept)
        source = sources(topic, kept, group=group, options=options)
        taken.until(source, count)
        assert not taken.take(source, 1)
        assert sorted(taken.rows.values()) == list(range(count))
        by_partition = {f"numbers/{p}": [n for n in range(count) if n % partitions == p] for p in range(partitions)}
        for name, numbers in by_partition.items():
            assert [n for (partition, _), n in sorted(taken.rows.items()) if partition == name] == numbers
        assert taken.bad == []
        source.close()
