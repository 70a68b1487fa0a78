"""Topics of Kafka, or of a broker that speaks its protocol, as a source.

A partition is named `topic/partition`, or `topic@2/partition` for a topic that was made anew once and is read from its
beginning by option. A position is the offset of a message, or offset * 2^20 + row where messages hold many rows
(Decoding.batched). Where reading goes on is decided by the positions given to `open`, never by what a group has
committed; commits only tell those who watch the lag of the group how far we are. Gaps in the offsets (transactions,
compaction) mean nothing.

A position says something of one topic only. So the id that brokers give a topic is kept (live.sources.marks) before its
first event is handed out, and asked for again when the source is opened and every few seconds; and a position beyond
the end of a partition is seen from what the client fetches. Nothing is read of a topic until that is settled.

A broker that is away is tried again without end. Messages that were deleted before they were read (retention) are a
DataError that says which, or are skipped where that is configured.
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
from live.sources.base import Bad, Piece, Place
from live.sources.decode import ROW_BITS, Decoder, Decoding
from live.sources.marks import Marks, Passed, Topic
from query.errors import DataError
from query.schema import Schema

#: How long, in seconds, one question to a broker may take: which partitions and offsets there are, which topic it is.
ASK_S = 2.0
#: How often, in seconds, new partitions are looked for, and whether topics are still the same; each second where that
#: gave no answer.
LIST_S, CHECK_S = 30.0, 5.0
#: So many times in a row, a second apart, no broker is there, or a partition ends before its position.
BEYOND = 3
#: A member of a group that has no partition for so long, in seconds, says so.
WAITS_S = 10.0
#: Settings of the client that questions are asked with: those of the connection.
_CONNECTION = ("security.", "sasl.", "ssl.", "enable.ssl.", "https.", "socket.", "broker.", "client.", "resolve.")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """What is read, and from where.

    servers: brokers to begin with, `host:port,host:port`. group: the consumer group whose members share the partitions;
    None: all partitions of the topics are ours, those too that are added later. start: where the partitions begin that
    a topic has when it is read first; `latest`: their ends, which are kept at once. Partitions that are added later are
    read from their beginning. lost: what happens where a position is no longer in the topic: `skip` goes on at the
    first offset there is, and `trouble` says so until more has come. recreated: what happens where the topic is another
    one than was read, by its id or because it is shorter: an error, or it is read `anew`, as partitions of its own.
    batch: how many messages a poll takes at most. options: of librdkafka, for security and the like; those that this
    source sets itself cannot be given.
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
    """Events from topics. Resumes. marks: what is kept beside the positions. Raises DataError for settings that the
    client refuses, without asking a broker."""

    resumes = True
    ended = False

    def __init__(self, schema: Schema, settings: KafkaSettings, marks: Marks | None = None) -> None:
        self._settings = settings
        self._marks = Marks() if marks is None else marks
        self._decoder = Decoder(schema, settings.decoding)
        self._bits = ROW_BITS if settings.decoding.batched else 0
        self._ours = {
            "group.id": settings.group or "hybrid",  # without a group it is asked for, and used for nothing
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "statistics.interval.ms": 1000,
        }
        check_client("Consumer", settings.servers, settings.options, self._ours)
        shares = settings.options.get("partition.assignment.strategy", ""), settings.options.get("group.protocol", "")
        if settings.group is not None and ("cooperative" in str(shares[0]) or str(shares[1]).lower() == "consumer"):
            hint = "leave out partition.assignment.strategy and group.protocol, or choose range or roundrobin"
            raise DataError("the members of a group take all their partitions at once, not one by one", hint)
        self._kafka = client_module()
        self._consumer: Any = None
        self._admin: Any = None
        self._positions: dict[str, int] = {}  # where each partition goes on
        self._assigned: set[tuple[str, int]] = set()  # given out to us
        self._reading: set[tuple[str, int]] = set()  # of those, the ones that the client fetches
        self._topics: dict[str, Topic] = {}  # which topics they are
        self._settled: set[str] = set()  # those known to be the ones that were read
        self._over: list[str] = []  # partitions of topics before they were made anew, to be told as over
        self._committed: dict[str, int] = {}
        self._list_at = self._check_at = 0.0  # when to look for partitions, and at topics, of time.monotonic()
        self._without_since = 0.0  # since when no partition is ours
        self._away = Away()
        self._down_s = 0  # for how long no broker has been there
        self._complaints: dict[str, str] = {}  # by topic or partition, until something comes from it; "" of the group
        self._ends: dict[str, int] = {}
        self._beyond: Counter[str] = Counter()  # how often in a row a partition ended before its position
        self._cuts: dict[str, str] = {}  # topics of which that is certain, and what was seen
        self._lost: Counter[str] = Counter()
        self._failed: DataError | None = None

    @property
    def partitions(self) -> tuple[str, ...]:
        return tuple(self._name(topic, partition) for topic, partition in sorted(self._assigned))

    def places(self) -> dict[str, Place]:
        """How far each partition of ours is read, in offsets of messages."""
        return {
            name: Place(self._positions[name] >> self._bits if name in self._positions else None,
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

        self._admin = AdminClient({**connection, **servers, "log_level": 0})  # the consumer says the same
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
        # A consume waits until it has all it may take: so it waits for one, and takes what else is there.
        messages = self._consumer.consume(1, seconds)
        if messages and self._settings.batch > 1:
            messages += self._consumer.consume(self._settings.batch - 1, 0)
        good = [message for message in messages if message.error() is None and _partition(message) in self._reading]
        good.sort(key=_partition)  # stable: the order within each partition stays
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
                pass  # nobody but watchers of the lag reads it, and the next one says it again

    def trouble(self) -> str | None:
        if self._failed is not None:
            return self._failed.message
        if self._away.said is not None:
            return f"brokers of {self._settings.servers} are away: {self._away.said}"
        if self._complaints:
            return next(iter(self._complaints.values()))
        group = self._settings.group
        if group is not None and not self._assigned and time.monotonic() > self._without_since + WAITS_S:
            topics = ", ".join(self._settings.topics)
            return f"group {group} has given us no partition of {topics}: it has more members than there are partitions"
        return None

    def close(self) -> None:
        self._admin = None
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    # ---- which partitions

    def _name(self, topic: str, partition: int) -> str:
        generation = self._topics[topic].generation
        return f"{topic}/{partition}" if generation == 1 else f"{topic}@{generation}/{partition}"

    def _list(self, seconds: float) -> None:
        """Takes all partitions that the topics have."""
        found = set(self._assigned)
        about: dict[str, Any] = {}
        why = ""
        try:
            # Of all topics: the client goes on for long to believe that one it was asked for by name is not there.
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
                said_of_it = f"looked up: {why}" if why else "found: there is none"
                self._complaints[topic] = f"topic {topic} cannot be {said_of_it}"
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
        consumer.assign([])  # the group waits for that; brokers are asked later, outside of the client's call
        self._check_at = 0.0

    def _on_revoke(self, consumer: Any, partitions: list[Any]) -> None:
        self._assigned, self._reading = set(), set()
        self._without_since = time.monotonic()

    def _settle(self) -> None:
        """Looks whether the topics are those that were read, and reads what is ours of them; nothing of the others.
        Raises DataError for one that is not."""
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
        """Whether what is read of a topic may be handed out, with all that is known of it on disk."""
        known, told = self._topics[topic], self._marks.read()
        if topic in ids and known.id is not None and ids[topic] != known.id:
            self._recreated(topic, ids[topic], f"its id is {ids[topic]}, and was {known.id}")
            return True
        if topic not in ids and known.id is not None:
            if topic not in self._settled:
                self._complaints[f"{topic}?"] = f"topic {topic} is not read: its brokers do not say if it is the same"
            return topic in self._settled
        # What could not be written, as it was said, may have been.
        self._positions = {n: one.next for n, one in told.passed.items() if one.at is None} | self._positions
        if topic in told.topics and topic not in ids:
            return True
        passed: dict[str, Passed] = {}
        if topic not in told.topics and self._settings.start == "latest":
            ends = self._ends_of(topic)
            if ends is None:
                self._complaints[f"{topic}?"] = f"topic {topic} is not read: its brokers do not say where it ends"
                return False
            passed = {name: Passed(None, end << self._bits) for name, end in ends.items()}
        now = Topic(ids.get(topic), known.generation)
        self._marks.keep({topic: now}, passed)
        self._topics[topic] = now
        self._positions |= {name: one.next for name, one in passed.items()}
        return True

    def _ids(self, topics: list[str]) -> dict[str, str]:
        """What brokers say which topics they are, of those for which they do."""
        found: dict[str, str] = {}
        if not topics:
            return found
        try:
            if self._consumer.list_topics(timeout=ASK_S).controller_id < 0:
                return found  # only a controller is asked
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
        """Where the partitions of a topic end that have no position; None where brokers do not say."""
        ends = {}
        try:
            for partition in self._consumer.list_topics(timeout=ASK_S).topics[topic].partitions:
                name = self._name(topic, partition)
                if name not in self._positions:
                    at = self._kafka.TopicPartition(topic, partition)
                    ends[name] = int(self._consumer.get_watermark_offsets(at, timeout=ASK_S)[1])
        except (self._kafka.KafkaException, KeyError, TypeError):  # TypeError: None, for it took too long
            return None
        return ends

    def _recreated(self, topic: str, id: str | None, why: str) -> None:
        """A topic is another one than was read."""
        known = self._topics[topic]
        if self._settings.recreated == "error":
            hint = (
                f"to read it from its beginning, as partitions {topic}@{known.generation + 1}/0 and so on, "
                "set recreated to anew; or read it into another stream"
            )
            raise DataError(f"topic {topic} is not the one that was read: {why}; it was made anew", hint)
        now = Topic(id, known.generation + 1)
        before = [name for name in self._positions if _generation(topic, name) == known.generation]
        self._marks.keep({topic: now})
        self._topics[topic] = now
        self._over += before
        for name in before:
            self._complaints.pop(name, None)
        self._reading = {one for one in self._reading if one[0] != topic}
        name = self._name(topic, 0)
        _LOG.warning("topic %s was made anew: %s; it is read from its beginning, as %s and so on", topic, why, name)

    def _fetch(self) -> None:
        """Lets the client fetch what we read, each partition from its position."""
        wanted = []
        for topic, partition in sorted(self._reading):
            at = self._positions.get(self._name(topic, partition))
            offset = self._kafka.OFFSET_BEGINNING if at is None else at >> self._bits
            wanted.append(self._kafka.TopicPartition(topic, partition, offset))
        self._beyond.clear()
        self._consumer.assign(wanted)

    # ---- what comes

    def _last(self, name: str) -> Piece:
        rows, positions, _ = self._decoder.decode(name, [], np.zeros(0, np.int64))
        return Piece(name, rows, positions, self._positions[name], last=True)

    def _piece(self, topic: str, partition: int, messages: list[Any]) -> list[Piece | Bad]:
        name = self._name(topic, partition)
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
        topic, codes = message.topic(), self._kafka.KafkaError
        if error.fatal():
            raise DataError(f"the client of Kafka gave up: {error.str()}", "see the message of the client")
        if topic not in self._topics:
            self._complaints[""] = f"group {self._settings.group} gives out no partitions: {meaning(error)}"
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes._LOG_TRUNCATION):
            if (topic, message.partition()) in self._reading:
                self._on_lost(topic, message.partition(), error.str())
        elif error.code() in (codes._UNKNOWN_TOPIC, codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_PARTITION):
            # It may be made anew by now: nothing of it is read until that is known.
            self._complaints[topic] = f"topic {topic} cannot be found: {error.str()}"
            self._settled.discard(topic)
            self._list_at = self._check_at = 0.0
        else:
            name = self._name(topic, message.partition()) if message.partition() >= 0 else topic
            self._complaints[name] = f"{name} cannot be read now: {meaning(error)}"

    def _on_lost(self, topic: str, partition: int, what: str) -> None:
        """A position that the broker does not have."""
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
            self._fetch()  # the question was not answered: it is asked again
            return
        offset = wanted >> self._bits
        if low <= offset:
            self._cut(topic, f"{name} goes on at offset {offset}, and ends at {high}")
            return
        gone = (
            f"offsets {offset} to {low - 1} of {name} are gone, {low - offset:,} of them: "
            "the broker deleted them before they were read"
        )
        if self._settings.lost == "error":
            hint = "keep messages for longer; to go on without them set lost to skip"
            raise DataError(gone, hint)
        _LOG.warning("%s; reading goes on at %d", gone, low)
        self._lost[name] += low - offset
        self._complaints[name] = gone
        self._positions[name] = low << self._bits
        self._fetch()

    def _cut(self, topic: str, why: str) -> None:
        """A partition of a topic ends before its position."""
        try:
            self._recreated(topic, self._ids([topic]).get(topic), why)
        except OSError as error:
            self._cannot_write(topic, error)
        self._check_at = 0.0

    def _cannot_write(self, topic: str, error: OSError) -> None:
        self._settled.discard(topic)
        self._complaints[f"{topic}?"] = f"topic {topic} is not read: what is known of it cannot be written: {error}"

    # ---- what the client says of its connections

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._failed = DataError(f"the client of Kafka gave up: {error.str()}", "see the message of the client")
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
            self._away.waits(waits[0] if waits else "none answers", time.monotonic())
        elif without:
            self._away.waits(f"{without[0]['name']} does not answer", time.monotonic())
        for topic, partition in sorted(self._reading):
            about = told["topics"].get(topic, {}).get("partitions", {}).get(str(partition))
            if about is not None and about["hi_offset"] >= 0:
                self._on_end(topic, partition, about["hi_offset"])

    def _on_end(self, topic: str, partition: int, end: int) -> None:
        """Where a partition ends, as the last fetch has said. A broker that does not refuse a position beyond lets the
        client wait there until new messages have grown past it, and those before are never seen."""
        name = self._name(topic, partition)
        self._ends[name] = end
        offset = self._positions.get(name, 0) >> self._bits
        self._beyond[name] = self._beyond[name] + 1 if offset > end else 0
        if self._beyond[name] >= BEYOND:  # dealt with outside of the client's call
            self._cuts[topic] = f"{name} goes on at offset {offset}, and ends at {end}"


def _partition(message: Any) -> tuple[str, int]:
    return message.topic(), message.partition()


def _generation(topic: str, name: str) -> int | None:
    """How the manieth topic of its name a partition belongs to; None for one of another topic."""
    found = re.fullmatch(re.escape(topic) + r"(?:@(\d+))?/\d+", name)
    return None if found is None else int(found[1] or 1)
