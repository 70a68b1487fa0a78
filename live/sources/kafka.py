"""Topics of Kafka, or of a broker that speaks its protocol, as a source.

A partition is named `topic/partition`. A position is the offset of a message, or offset * 2^20 + row where messages
hold many rows (Decoding.batched). Where reading goes on is decided by the positions given to `open`, never by what a
group has committed; commits only tell those who watch the lag of the group how far we are. Gaps in the offsets
(transactions, compaction) mean nothing.

A broker that is away is tried again without end. Messages that were deleted before they were read (retention) are a
DataError that says which, or are skipped where that is configured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import msgspec
import numpy as np

from live.sources.base import Bad, Piece
from live.sources.decode import ROW_BITS, Decoder, Decoding
from query.errors import DataError
from query.schema import Schema

#: How long, in seconds, one question to a broker may take: which partitions there are, which offsets.
ASK_S = 2.0
#: How often, in seconds, new partitions are looked for; each second where that gave no answer.
LIST_S = 30.0


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """What is read, and from where.

    servers: brokers to begin with, `host:port,host:port`. group: the consumer group whose members share the partitions;
    None: all partitions of the topics are ours, those too that are added later. start: where a partition begins that
    has no position. lost: what happens where a position is no longer in the topic: `skip` goes on at the first offset
    there is, and `trouble` says so until more has come. batch: how many messages a poll takes at most. options: of
    librdkafka, for security and the like; those that this source sets itself cannot be given.
    """

    servers: str
    topics: tuple[str, ...]
    group: str | None = None
    decoding: Decoding = field(default_factory=Decoding)
    start: Literal["earliest", "latest"] = "earliest"
    lost: Literal["error", "skip"] = "error"
    batch: int = 10_000
    options: Mapping[str, Any] = field(default_factory=dict)


class KafkaSource:
    """Events from topics. Resumes."""

    resumes = True
    ended = False

    def __init__(self, schema: Schema, settings: KafkaSettings) -> None:
        self._settings = settings
        self._decoder = Decoder(schema, settings.decoding)
        self._bits = ROW_BITS if settings.decoding.batched else 0
        self._consumer: Any = None
        self._positions: dict[str, int] = {}  # where each partition goes on
        self._assigned: set[tuple[str, int]] = set()
        self._committed: dict[str, int] = {}
        self._list_at = 0.0  # when to look for partitions, of time.monotonic()
        self._away: str | None = None  # what the client says of its brokers
        self._complaints: dict[str, str] = {}  # by topic or partition, until something comes from it
        self._failed: DataError | None = None

    @property
    def partitions(self) -> tuple[str, ...]:
        return tuple(f"{topic}/{partition}" for topic, partition in sorted(self._assigned))

    def open(self, positions: Mapping[str, int]) -> None:
        try:
            import confluent_kafka
        except ImportError:
            hint = "install the extra kafka: pip install 'hybrid[kafka]'"
            raise DataError("Kafka needs confluent-kafka, which is not installed", hint) from None
        self._kafka = confluent_kafka
        settings = self._settings
        ours = {
            "bootstrap.servers": settings.servers,
            "group.id": settings.group or "hybrid",  # without a group it is asked for, and used for nothing
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "statistics.interval.ms": 1000,
            "stats_cb": self._on_statistics,
            "error_cb": self._on_error,
        }
        both = sorted(ours.keys() & settings.options.keys())
        if both:
            raise DataError(f"the option {both[0]} of Kafka is set by the source", "leave it out")
        self._positions = dict(positions)
        try:
            self._consumer = confluent_kafka.Consumer(
                {"topic.metadata.refresh.interval.ms": 30_000, **settings.options, **ours},
                logger=logging.getLogger(__name__),
            )
        except (confluent_kafka.KafkaException, ValueError, TypeError) as error:
            raise DataError(f"the client of Kafka cannot be made: {_said(error)}", "check its options") from error
        if settings.group is not None:
            self._consumer.subscribe(list(settings.topics), on_assign=self._on_assign, on_revoke=self._on_revoke)

    def poll(self, seconds: float) -> list[Piece | Bad]:
        if self._failed is not None:
            raise self._failed
        if self._settings.group is None and time.monotonic() >= self._list_at:
            self._assign_all(min(max(seconds, 0.1), ASK_S))
        # A consume waits until it has all it may take: so it waits for one, and takes what else is there.
        messages = self._consumer.consume(1, seconds)
        if messages and self._settings.batch > 1:
            messages += self._consumer.consume(self._settings.batch - 1, 0)
        good = [message for message in messages if message.error() is None]
        good.sort(key=_partition)  # stable: the order within each partition stays
        out: list[Piece | Bad] = []
        for (topic, partition), group in groupby(good, key=_partition):
            out += self._piece(topic, partition, list(group))
        try:
            for message in messages:
                if message.error() is not None:
                    self._on_message_error(message, message.error())
        except DataError as error:
            self._failed = error
            if not out:
                raise
        return out

    def kept(self, positions: Mapping[str, int]) -> None:
        if self._settings.group is None or self._consumer is None:
            return
        done = []
        for topic, partition in self._assigned:
            name = f"{topic}/{partition}"
            offset = positions.get(name, 0) >> self._bits
            if offset > self._committed.get(name, 0):
                self._committed[name] = offset
                done.append(self._kafka.TopicPartition(topic, partition, offset))
        if done:
            try:
                self._consumer.commit(offsets=done, asynchronous=True)
            except self._kafka.KafkaException:
                pass  # nobody but watchers of the lag reads it, and the next one says it again

    def trouble(self) -> str | None:
        if self._failed is not None:
            return self._failed.message
        if self._away is not None:
            return f"brokers of {self._settings.servers} are away: {self._away}"
        return next(iter(self._complaints.values()), None)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    # ---- which partitions

    def _assign_all(self, seconds: float) -> None:
        """Takes all partitions that the topics have."""
        found = set(self._assigned)
        about: dict[str, Any] = {}
        said = "there is none"
        try:
            # Of all topics: the client goes on for long to believe that one it was asked for by name is not there.
            about = self._consumer.list_topics(timeout=seconds).topics
        except self._kafka.KafkaException as error:
            said = _said(error)
        for topic in self._settings.topics:
            if topic in about and about[topic].error is None and about[topic].partitions:
                self._complaints.pop(topic, None)
                found |= {(topic, partition) for partition in about[topic].partitions}
            elif topic not in {known for known, _ in found}:
                self._complaints[topic] = f"topic {topic} cannot be found: {said}"
        if found != self._assigned:
            self._assign(sorted(found))
        again_s = LIST_S if not self._complaints.keys() & set(self._settings.topics) else 1
        self._list_at = time.monotonic() + again_s

    def _assign(self, partitions: list[tuple[str, int]]) -> None:
        self._assigned = set(partitions)
        wanted = []
        for topic, partition in partitions:
            at = self._positions.get(f"{topic}/{partition}")
            offset = self._start(topic, partition) if at is None else at >> self._bits
            wanted.append(self._kafka.TopicPartition(topic, partition, offset))
        self._consumer.assign(wanted)

    def _start(self, topic: str, partition: int) -> int:
        """Where a partition begins that has no position."""
        if self._settings.start == "earliest":
            return int(self._kafka.OFFSET_BEGINNING)
        try:
            # Where the end is now becomes our position: the end of a later assignment would be behind what came since.
            _, high = self._consumer.get_watermark_offsets(self._kafka.TopicPartition(topic, partition), timeout=ASK_S)
        except self._kafka.KafkaException:
            return int(self._kafka.OFFSET_END)
        self._positions[f"{topic}/{partition}"] = high << self._bits
        return int(high)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        self._assign([(p.topic, p.partition) for p in partitions])

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._assigned.clear()

    # ---- what comes

    def _piece(self, topic: str, partition: int, messages: list[Any]) -> list[Piece | Bad]:
        name = f"{topic}/{partition}"
        self._complaints.pop(name, None)
        self._complaints.pop(topic, None)
        begin = self._positions.get(name, 0)
        offsets = np.array([message.offset() for message in messages], np.int64)
        # The client goes back where partitions were given out anew between two of these messages.
        ahead = offsets >= np.maximum.accumulate(np.concatenate([[begin >> self._bits], offsets[:-1] + 1]))
        if not ahead.all():
            messages, offsets = [messages[i] for i in np.flatnonzero(ahead)], offsets[ahead]
            if not messages:
                return []
        rows, positions, bad = self._decoder.decode(name, [message.value() for message in messages], offsets)
        if begin > int(offsets[0]) << self._bits:
            # We stopped within this message.
            first = int(np.searchsorted(positions, begin))
            rows, positions = rows.slice(first), positions[first:]
            bad = [one for one in bad if one.offset is not None and one.offset >= begin]
        self._positions[name] = (int(offsets[-1]) + 1) << self._bits
        return [*bad, Piece(name, rows, positions, self._positions[name])]

    def _on_message_error(self, message: Any, error: Any) -> None:
        """Raises DataError for what will not mend itself."""
        name = f"{message.topic()}/{message.partition()}"
        if error.fatal():
            raise DataError(f"the client of Kafka gave up: {error.str()}", "see the message of the client")
        if error.code() == self._kafka.KafkaError._AUTO_OFFSET_RESET:
            self._on_lost(message.topic(), message.partition(), error.str())
        elif message.topic() is not None:
            self._complaints[name] = f"{name} cannot be read now: {error.str()}"

    def _on_lost(self, topic: str, partition: int, said: str) -> None:
        """A position that the broker does not have."""
        name = f"{topic}/{partition}"
        wanted = self._positions.get(name)
        at = self._kafka.TopicPartition(topic, partition)
        try:
            low, _ = self._consumer.get_watermark_offsets(at, timeout=ASK_S)
        except self._kafka.KafkaException as error:
            low = None
            self._complaints[name] = f"{name} cannot be read now: {said}; {_said(error)}"
        if low is None or wanted is None or (low <= wanted >> self._bits and "out of range" not in said):
            self._assign(sorted(self._assigned))  # the question was not answered: it is asked again
            return
        offset = wanted >> self._bits
        if low <= offset:
            raise DataError(
                f"{name} goes on at offset {offset}, and the broker does not have it, though it has {low}",
                "the topic was made anew or cut: read it under another name, or with another group of positions",
            )
        gone = f"offsets {offset} to {low - 1} of {name} are gone: the broker deleted them before they were read"
        if self._settings.lost == "error":
            hint = "keep messages for longer; to go on without them set lost to skip"
            raise DataError(gone, hint)
        self._complaints[name] = gone
        self._positions[name] = low << self._bits
        self._assign(sorted(self._assigned))

    # ---- what the client says of its connections

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._failed = DataError(f"the client of Kafka gave up: {error.str()}", "see the message of the client")
        else:
            self._away = str(error.str())

    def _on_statistics(self, text: str) -> None:
        brokers = msgspec.json.decode(text)["brokers"].values()
        up = [broker for broker in brokers if broker["state"] == "UP"]
        without = [broker for broker in brokers if broker["toppars"] and broker["state"] != "UP"]
        if up and not without:
            self._away = None
        elif self._away is None and without:
            self._away = f"{without[0]['name']} does not answer"


def _partition(message: Any) -> tuple[str, int]:
    return message.topic(), message.partition()


def _said(error: BaseException) -> str:
    first = error.args[0] if error.args else error
    return str(first.str() if hasattr(first, "str") else first)
