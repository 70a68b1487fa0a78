"""Kafka topics, or those of a broker that speaks its protocol, as a source.

A partition is named `topic/partition`, or `topic@2/partition` for a topic that was recreated once and is read anew by
option. A position is the offset of a message, or offset * 2^20 + row if messages are batched (Decoding.batched).
Reading continues at the positions given to `open`, never at the committed offsets of a group; commits only show the lag
to monitoring. Gaps in the offsets (transactions, compaction) are ignored.

A position is valid for one topic only. The topic id assigned by the brokers is therefore stored (live.sources.marks)
before the first event is returned, and compared when the source is opened and every few seconds. A position after the
end of a partition is detected from the fetches of the client. A topic is not read until its identity is confirmed.

An unreachable broker is retried without end. Messages deleted before they were read (retention) raise a DataError that
names them, or are skipped if so configured.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import msgspec
import numpy as np

from live.kafka_client import WAITS, Away, check_client, client_module, meaning, said
from live.sources.base import Bad, PartitionProgress, Piece
from live.sources.decode import ROW_BITS, Decoder, Decoding
from live.sources.marks import Marks, Passed, Topic
from query.errors import DataError
from query.schema import Schema

#: Timeout in seconds of one request for partitions, offsets or topic ids.
ASK_S = 2.0
#: Seconds between two searches for new partitions, and between two checks of topic ids; one second after a failed one.
LIST_S, CHECK_S = 30.0, 5.0
#: Number of consecutive observations, one second apart, before brokers count as unreachable or a topic as truncated.
BEYOND = 3
#: Seconds without a partition after which a member of a group reports it.
WAITS_S = 10.0
#: Prefixes of the connection settings, which the admin client shares.
_CONNECTION = ("security.", "sasl.", "ssl.", "enable.ssl.", "https.", "socket.", "broker.", "client.", "resolve.")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Settings of a Kafka source.

    servers: bootstrap brokers, `host:port,host:port`. group: the consumer group whose members share the partitions;
    None: reads all partitions of the topics, including new ones.
    start: the beginning of reading for partitions that exist when a topic is first read; `latest`: their ends, which
    are stored at once. Partitions added later are read from their beginning.
    lost: handling of a position whose messages were deleted; `skip` continues at the first offset available, and
    `trouble` reports it until more messages come.
    recreated: handling of a topic that was recreated, by its id or because it is shorter: `error`, or `anew`: it is
    read from its beginning, under new partition names.
    batch: most messages of one poll. options: settings of librdkafka, such as security; not those that this source
    sets itself.
    """

    servers: str
    topics: tuple[str, ...]
    group: str | None = None
    decoding: Decoding = field(default_factory=Decoding)
    start: Literal["earliest", "latest"] = "earliest"
    lost: Literal["error", "skip"] = "error"
    recreated: Literal["error", "anew"] = "error"
    batch: int = 10_000
    options: Mapping[str, Any] = field(default_factory=dict)


class KafkaSource:
    """Reads events from topics. Resumes from positions. marks: facts stored beside the positions. Raises DataError for
    settings that the client rejects, without contacting a broker."""

    ended = False

    def __init__(self, schema: Schema, settings: KafkaSettings, marks: Marks | None = None) -> None:
        self._settings = settings
        self._marks = Marks() if marks is None else marks
        self._decoder = Decoder(schema, settings.decoding)
        self._bits = ROW_BITS if settings.decoding.batched else 0
        self._ours = {
            "group.id": settings.group or "hybrid",  # required by the client, unused without a group
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "statistics.interval.ms": 1000,
        }
        check_client("Consumer", settings.servers, settings.options, self._ours)
        shares = settings.options.get("partition.assignment.strategy", ""), settings.options.get("group.protocol", "")
        if settings.group is not None and ("cooperative" in str(shares[0]) or str(shares[1]).lower() == "consumer"):
            hint = "leave out partition.assignment.strategy and group.protocol, or choose range or roundrobin"
            raise DataError("cooperative rebalancing is not supported: a group is assigned as a whole", hint)
        self._kafka = client_module()
        self._consumer: Any = None
        self._admin: Any = None
        self._positions: dict[str, int] = {}  # next position, by partition
        self._assigned: set[tuple[str, int]] = set()  # (topic, partition)
        self._reading: set[tuple[str, int]] = set()  # the assigned ones that the client fetches
        self._topics: dict[str, Topic] = {}  # identities, by topic
        self._settled: set[str] = set()  # topics of confirmed identity
        self._over: list[str] = []  # partitions of earlier generations, to be reported as ended
        self._committed: dict[str, int] = {}
        self._list_at = self._check_at = 0.0  # monotonic times of the next search for partitions and check of ids
        self._without_since = 0.0  # monotonic time since which no partition is assigned
        self._away = Away()
        self._down_s = 0  # seconds without any broker
        self._complaints: dict[str, str] = {}  # by topic or partition until its next message; "" for the group
        self._ends: dict[str, int] = {}
        self._beyond: Counter[str] = Counter()  # consecutive observations of an end before the position, by partition
        self._cuts: dict[str, str] = {}  # truncated topics, with the observation
        self._lost: Counter[str] = Counter()  # messages deleted before they were read, by partition
        self._failed: DataError | None = None

    @property
    def partitions(self) -> tuple[str, ...]:
        return tuple(self._name(topic, partition) for topic, partition in sorted(self._assigned))

    def places(self) -> dict[str, PartitionProgress]:
        """Returns the progress of each assigned partition, in offsets of messages."""
        return {
            name: PartitionProgress(self._positions[name] >> self._bits if name in self._positions else None,
                        self._ends.get(name), self._lost[name])
            for name in self.partitions
        }  # fmt: skip

    def open(self, positions: Mapping[str, int]) -> None:
        settings = self._settings
        told = self._marks.read()
        self._positions = told.positions(positions)
        for topic in settings.topics:
            known = told.topics.get(topic, Topic(None))
            generations = {name: _generation(topic, name) for name in positions}
            newest = max([known.generation, *(g for g in generations.values() if g is not None)])
            self._topics[topic] = Topic(known.id if newest == known.generation else None, newest)
            self._over += [name for name, g in generations.items() if g is not None and g < newest]
        servers = {"bootstrap.servers": settings.servers}
        self._consumer = self._kafka.Consumer(
            {
                "topic.metadata.refresh.interval.ms": 30_000, **settings.options, **self._ours, **servers,
                "stats_cb": self._on_statistics, "error_cb": self._on_error,
            },
            logger=_LOG,
        )  # fmt: skip
        connection = {name: value for name, value in settings.options.items() if name.startswith(_CONNECTION)}
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({**connection, **servers, "log_level": 0})  # the consumer logs the same
        self._without_since = time.monotonic()
        if settings.group is not None:
            self._consumer.subscribe(list(settings.topics), on_assign=self._on_assign, on_revoke=self._on_revoke)

    def poll(self, seconds: float) -> list[Piece | Bad]:
        if self._failed is not None:
            raise self._failed
        try:
            if self._settings.group is None and time.monotonic() >= self._list_at:
                self._list(min(max(seconds, 0.1), ASK_S))
            for topic in list(self._cuts):
                self._cut(topic, self._cuts.pop(topic))
            if self._assigned and time.monotonic() >= self._check_at:
                self._settle()
        except DataError as error:
            self._failed = error
            raise
        # `consume` waits until it has all it may take: so wait for one message, then take what else is available.
        messages = self._consumer.consume(1, seconds)
        if messages and self._settings.batch > 1:
            messages += self._consumer.consume(self._settings.batch - 1, 0)
        good = [message for message in messages if message.error() is None and _partition(message) in self._reading]
        good.sort(key=_partition)  # stable: keeps the order within each partition
        out: list[Piece | Bad] = [self._last(name) for name in self._over]
        self._over.clear()
        for (topic, partition), group in groupby(good, key=_partition):
            out += self._piece(topic, partition, list(group))
        try:
            for message in messages:
                if message.error() is not None:
                    self._on_message_error(message, message.error())
        except DataError as error:
            self._failed = error
        if self._failed is not None and not out:
            raise self._failed
        return out

    def kept(self, positions: Mapping[str, int]) -> None:
        if self._settings.group is None or self._consumer is None:
            return
        done = []
        for topic, partition in self._assigned:
            name = self._name(topic, partition)
            offset = positions.get(name, 0) >> self._bits
            if offset > self._committed.get(name, 0):
                self._committed[name] = offset
                done.append(self._kafka.TopicPartition(topic, partition, offset))
        if done:
            try:
                self._consumer.commit(offsets=done, asynchronous=True)
            except self._kafka.KafkaException:
                pass  # only monitoring reads it, and the next commit includes it

    def trouble(self) -> str | None:
        if self._failed is not None:
            return self._failed.message
        if self._away.said is not None:
            return f"brokers of {self._settings.servers} are unreachable: {self._away.said}"
        if self._complaints:
            return next(iter(self._complaints.values()))
        group = self._settings.group
        if group is not None and not self._assigned and time.monotonic() > self._without_since + WAITS_S:
            topics = ", ".join(self._settings.topics)
            return f"group {group} has assigned no partition of {topics}: it has more members than partitions"
        return None

    def close(self) -> None:
        self._admin = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    # ---- assignment of partitions

    def _name(self, topic: str, partition: int) -> str:
        generation = self._topics[topic].generation
        return f"{topic}/{partition}" if generation == 1 else f"{topic}@{generation}/{partition}"

    def _list(self, seconds: float) -> None:
        """Assigns all partitions of the topics."""
        found = set(self._assigned)
        about: dict[str, Any] = {}
        why = ""
        try:
            # Lists all topics: asked for one by name, the client caches for long that it does not exist.
            about = self._consumer.list_topics(timeout=seconds).topics
        except self._kafka.KafkaException as error:
            why = said(error)
        for topic in self._settings.topics:
            if topic in about and about[topic].error is None and about[topic].partitions:
                self._complaints.pop(topic, None)
                found |= {(topic, partition) for partition in about[topic].partitions}
            elif topic in about and about[topic].error is not None:
                self._complaints[topic] = f"topic {topic} cannot be read: {meaning(about[topic].error)}"
            elif topic not in {known for known, _ in found} or about:
                said_of_it = f"cannot be looked up: {why}" if why else "does not exist"
                self._complaints[topic] = f"topic {topic} {said_of_it}"
        if found != self._assigned:
            self._assigned = found
            self._check_at = 0.0
        again_s = LIST_S if not self._complaints.keys() & set(self._settings.topics) else 1
        self._list_at = time.monotonic() + again_s

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        self._assigned = {(p.topic, p.partition) for p in partitions}
        self._reading = set()
        self._complaints.clear()
        if not partitions:
            self._without_since = time.monotonic()
        consumer.assign([])  # the group waits for it; requests to brokers come later, outside of the client's callback
        self._check_at = 0.0

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._assigned, self._reading = set(), set()
        self._without_since = time.monotonic()

    def _settle(self) -> None:
        """Checks the identity of the assigned topics, and reads only those confirmed. Raises DataError for a recreated
        topic, unless it is configured to be read anew."""
        topics = sorted({topic for topic, _ in self._assigned})
        ids = self._ids(topics)
        for topic in topics:
            try:
                if self._same(topic, ids):
                    self._settled.add(topic)
                    self._complaints.pop(f"{topic}?", None)
                if topic in ids:
                    self._complaints.pop(topic, None)
            except OSError as error:
                self._cannot_write(topic, error)
        reading = {(topic, partition) for topic, partition in self._assigned if topic in self._settled}
        if reading != self._reading:
            self._reading = reading
            self._fetch()
        self._check_at = time.monotonic() + (CHECK_S if self._settled.issuperset(topics) else 1)

    def _same(self, topic: str, ids: Mapping[str, str]) -> bool:
        """Returns True if the identity of a topic is confirmed and stored, so that its events may be returned."""
        known, told = self._topics[topic], self._marks.read()
        if topic in ids and known.id is not None and ids[topic] != known.id:
            self._recreated(topic, ids[topic], f"its id is {ids[topic]}, and was {known.id}")
            return True
        if topic not in ids and known.id is not None:
            if topic not in self._settled:
                self._complaints[f"{topic}?"] = f"topic {topic} is not read: its brokers report no id to compare"
            return topic in self._settled
        # An earlier write that raised may still have reached the disk.
        self._positions = {n: one.next for n, one in told.passed.items() if one.at is None} | self._positions
        if topic in told.topics and topic not in ids:
            return True
        passed: dict[str, Passed] = {}
        if topic not in told.topics and self._settings.start == "latest":
            ends = self._ends_of(topic)
            if ends is None:
                self._complaints[f"{topic}?"] = f"topic {topic} is not read: its brokers do not report its ends"
                return False
            passed = {name: Passed(None, end << self._bits) for name, end in ends.items()}
        now = Topic(ids.get(topic), known.generation)
        self._marks.keep({topic: now}, passed)
        self._topics[topic] = now
        self._positions |= {name: one.next for name, one in passed.items()}
        return True

    def _ids(self, topics: list[str]) -> dict[str, str]:
        """Returns the topic ids that the brokers report, by topic."""
        found: dict[str, str] = {}
        if not topics:
            return found
        try:
            if self._consumer.list_topics(timeout=ASK_S).controller_id < 0:
                return found  # only the controller answers
            asked = self._admin.describe_topics(self._kafka.TopicCollection(topics), request_timeout=ASK_S)
        except self._kafka.KafkaException:
            return found
        for topic, answer in asked.items():
            try:
                id = answer.result(ASK_S + 1).topic_id
            except (self._kafka.KafkaException, TimeoutError):
                continue
            if id is not None and (id.get_most_significant_bits(), id.get_least_significant_bits()) != (0, 0):
                found[topic] = str(id)
        return found

    def _ends_of(self, topic: str) -> dict[str, int] | None:
        """Returns the end offsets of a topic's partitions without a position; None if the brokers do not answer."""
        ends = {}
        try:
            for partition in self._consumer.list_topics(timeout=ASK_S).topics[topic].partitions:
                name = self._name(topic, partition)
                if name not in self._positions:
                    at = self._kafka.TopicPartition(topic, partition)
                    ends[name] = int(self._consumer.get_watermark_offsets(at, timeout=ASK_S)[1])
        except (self._kafka.KafkaException, KeyError, TypeError):  # TypeError: None, after a timeout
            return None
        return ends

    def _recreated(self, topic: str, id: str | None, why: str) -> None:
        """Handles a recreated topic: raises DataError, or begins its next generation."""
        known = self._topics[topic]
        if self._settings.recreated == "error":
            hint = (
                f"to read it from its beginning, as partitions {topic}@{known.generation + 1}/0 and so on, "
                "set recreated to anew; or read it into another stream"
            )
            raise DataError(f"topic {topic} was recreated: {why}", hint)
        now = Topic(id, known.generation + 1)
        before = [name for name in self._positions if _generation(topic, name) == known.generation]
        self._marks.keep({topic: now})
        self._topics[topic] = now
        self._over += before
        for name in before:
            self._complaints.pop(name, None)
        self._reading = {one for one in self._reading if one[0] != topic}
        name = self._name(topic, 0)
        _LOG.warning("topic %s was recreated: %s; it is read from its beginning, as %s and so on", topic, why, name)

    def _fetch(self) -> None:
        """Makes the client fetch each partition being read from its position."""
        wanted = []
        for topic, partition in sorted(self._reading):
            at = self._positions.get(self._name(topic, partition))
            offset = self._kafka.OFFSET_BEGINNING if at is None else at >> self._bits
            wanted.append(self._kafka.TopicPartition(topic, partition, offset))
        self._beyond.clear()
        self._consumer.assign(wanted)

    # ---- messages

    def _last(self, name: str) -> Piece:
        rows, positions, _ = self._decoder.decode(name, [], np.zeros(0, np.int64))
        return Piece(name, rows, positions, self._positions[name], last=True)

    def _piece(self, topic: str, partition: int, messages: list[Any]) -> list[Piece | Bad]:
        name = self._name(topic, partition)
        self._complaints.pop(name, None)
        self._complaints.pop(topic, None)
        begin = self._positions.get(name, 0)
        offsets = np.array([message.offset() for message in messages], np.int64)
        # The client goes back if partitions were reassigned between two of these messages.
        ahead = offsets >= np.maximum.accumulate(np.concatenate([[begin >> self._bits], offsets[:-1] + 1]))
        if not ahead.all():
            messages, offsets = [messages[i] for i in np.flatnonzero(ahead)], offsets[ahead]
            if not messages:
                return []
        rows, positions, bad = self._decoder.decode(name, [message.value() for message in messages], offsets)
        if begin > int(offsets[0]) << self._bits:
            # Reading stopped within this message.
            first = int(np.searchsorted(positions, begin))
            rows, positions = rows.slice(first), positions[first:]
            bad = [one for one in bad if one.offset is not None and one.offset >= begin]
        self._positions[name] = (int(offsets[-1]) + 1) << self._bits
        return [*bad, Piece(name, rows, positions, self._positions[name])]

    def _on_message_error(self, message: Any, error: Any) -> None:
        """Reports an error of the client. Raises DataError for permanent faults."""
        topic, codes = message.topic(), self._kafka.KafkaError
        if error.fatal():
            raise DataError(f"fatal error of the Kafka client: {error.str()}", "see the message of the client")
        if topic not in self._topics:
            self._complaints[""] = f"group {self._settings.group} assigns no partitions: {meaning(error)}"
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes._LOG_TRUNCATION):
            if (topic, message.partition()) in self._reading:
                self._on_lost(topic, message.partition(), error.str())
        elif error.code() in (codes._UNKNOWN_TOPIC, codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_PARTITION):
            # It may have been recreated: it is not read until its identity is confirmed.
            self._complaints[topic] = f"topic {topic} cannot be found: {error.str()}"
            self._settled.discard(topic)
            self._list_at = self._check_at = 0.0
        else:
            name = self._name(topic, message.partition()) if message.partition() >= 0 else topic
            self._complaints[name] = f"{name} cannot be read now: {meaning(error)}"

    def _on_lost(self, topic: str, partition: int, what: str) -> None:
        """Handles a position that the broker does not have."""
        name = self._name(topic, partition)
        wanted = self._positions.get(name)
        at = self._kafka.TopicPartition(topic, partition)
        try:
            low, high = self._consumer.get_watermark_offsets(at, timeout=ASK_S) or (None, None)
        except self._kafka.KafkaException as error:
            low = high = None
            self._complaints[name] = f"{name} cannot be read now: {what}; {said(error)}"
        if low is None or high is None or wanted is None:
            self._fetch()
            return
        if low <= wanted >> self._bits <= high and "out of range" not in what:
            self._fetch()  # the offsets do not explain the error: fetch again
            return
        offset = wanted >> self._bits
        if low <= offset:
            self._cut(topic, f"{name} ends at offset {high}, before its position {offset}")
            return
        gone = (
            f"offsets {offset} to {low - 1} of {name} ({low - offset:,} offsets) were deleted by the broker before "
            "they were read"
        )
        if self._settings.lost == "error":
            hint = "keep messages for longer; to continue without them set lost to skip"
            raise DataError(gone, hint)
        _LOG.warning("%s; reading continues at %d", gone, low)
        self._lost[name] += low - offset
        self._complaints[name] = gone
        self._positions[name] = low << self._bits
        self._fetch()

    def _cut(self, topic: str, why: str) -> None:
        """Handles a topic of which a partition ends before its position."""
        try:
            self._recreated(topic, self._ids([topic]).get(topic), why)
        except OSError as error:
            self._cannot_write(topic, error)
        self._check_at = 0.0

    def _cannot_write(self, topic: str, error: OSError) -> None:
        self._settled.discard(topic)
        self._complaints[f"{topic}?"] = f"topic {topic} is not read: its identity cannot be stored: {error}"

    # ---- errors and statistics of the client

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._failed = DataError(f"fatal error of the Kafka client: {error.str()}", "see the message of the client")
        else:
            self._away.hear(error, time.monotonic())

    def _on_statistics(self, text: str) -> None:
        told = msgspec.json.decode(text)
        brokers = told["brokers"].values()
        up = [broker for broker in brokers if broker["state"] == "UP"]
        without = [broker for broker in brokers if broker["toppars"] and broker["state"] != "UP"]
        self._down_s = 0 if up else self._down_s + 1
        if up and not without:
            self._away.back()
        elif self._down_s >= BEYOND:
            waits = [WAITS[broker["state"]] for broker in brokers if broker["state"] in WAITS]
            self._away.waits(waits[0] if waits else "no broker answers", time.monotonic())
        elif without:
            self._away.waits(f"{without[0]['name']} does not answer", time.monotonic())
        for topic, partition in sorted(self._reading):
            about = told["topics"].get(topic, {}).get("partitions", {}).get(str(partition))
            if about is not None and about["hi_offset"] >= 0:
                self._on_end(topic, partition, about["hi_offset"])

    def _on_end(self, topic: str, partition: int, end: int) -> None:
        """Takes the end of a partition, as the last fetch reported it. Detects a position after it: a broker that does
        not reject such a position makes the client wait there, and the messages below it would never be read."""
        name = self._name(topic, partition)
        self._ends[name] = end
        offset = self._positions.get(name, 0) >> self._bits
        self._beyond[name] = self._beyond[name] + 1 if offset > end else 0
        if self._beyond[name] >= BEYOND:  # handled outside of the client's callback
            self._cuts[topic] = f"{name} ends at offset {end}, before its position {offset}"


def _partition(message: Any) -> tuple[str, int]:
    return message.topic(), message.partition()


def _generation(topic: str, name: str) -> int | None:
    """Returns the generation of the topic that a partition belongs to; None for a partition of another topic."""
    found = re.fullmatch(re.escape(topic) + r"(?:@(\d+))?/\d+", name)
    return None if found is None else int(found[1] or 1)
