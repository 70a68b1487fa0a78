"""Topics of an MQTT 5 broker as a source, with QoS 1: at least once.

A message is acknowledged when its rows are durable here, not before. What is not acknowledged the broker keeps, as long
as the session lives, and sends again after each new connection. So nothing is lost, by a restart of ours or, where it
keeps its sessions on disk, of the broker; and a message may come twice: those that were handed out and not yet
acknowledged when the connection broke. MQTT has no identity by which to tell them apart. Where that matters, events
need an id of their own, and queries that read it.

What is published with QoS 0 the broker sends once, and keeps for nobody who is away: it is lost where a connection, or
we, break before it is kept.

There are no positions: rows are counted. The partition has the client's id for its name.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from live.mqtt_client import TAKEN_OVER, closed_early, make_client, no_connection, refusal
from live.sources.base import Bad, Piece
from live.sources.decode import ROW_BITS, Decoder, Decoding
from query.errors import DataError
from query.schema import Schema


@dataclass(frozen=True, slots=True)
class MqttSettings:
    """What is read, and from where.

    topics: filters, `plant/+/temperature`; one is shared among clients as `$share/group/filter`. client_id: names the
    session at the broker: keep it, and give it to one source only. session_s: how long the broker keeps the session
    while we are away, in seconds. unacknowledged: how many messages the broker may send before it waits for us to have
    kept them, 1 to 65,535 (it may allow fewer itself). tls: whether to encrypt, with the certificates of the system.
    """

    host: str
    topics: tuple[str, ...]
    client_id: str
    port: int = 1883
    decoding: Decoding = field(default_factory=Decoding)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    session_s: int = 7 * 86_400
    keepalive_s: int = 30
    unacknowledged: int = 65_535


#: How long a poll goes on taking while messages come, in seconds, and ten times as long as it waits for the next.
_GATHER_S = 0.02
#: A connection that has ended so many times in so many seconds is told, when it is there again too.
_ENDS, _ENDS_S = 3, 60.0
_LOG = logging.getLogger(__name__)
#: A filter that nobody subscribes to.
_NO_TOPIC = "hybrid/no/topic"


@dataclass(frozen=True, slots=True)
class _Message:
    connection: int  # the how manieth connection it came by: packet identifiers mean nothing in another
    mid: int  # 0 with QoS 0, which is not acknowledged
    payload: bytes
    duplicate: bool


class MqttSource:
    """Events from topics. Does not resume from a position; the broker keeps what is not acknowledged. Raises DataError
    for settings that do not fit, without asking a broker."""

    resumes = False
    ended = False

    def __init__(self, schema: Schema, settings: MqttSettings) -> None:
        self._settings = settings
        self._decoder = Decoder(schema, settings.decoding)
        self._client: Any = None
        self._new_client()
        # Bounded, though a broker that keeps to `unacknowledged` never fills it: Mosquitto 2.0 does not, once it has
        # queued. Then its connection waits, and may break and be made again.
        self._queue: queue.Queue[_Message] = queue.Queue(2 * settings.unacknowledged)
        self._closing = False
        self._answered = threading.Event()  # to what is asked when we leave
        # Messages handed out and not acknowledged: how many rows had been, with its own, and which it is.
        self._pending: deque[tuple[int, _Message]] = deque()
        self._count = 0  # rows handed out, and those before this process
        self._lock = threading.Lock()  # between our thread and the client's; for the four below
        self._connection = 0
        self._connected = False
        self._said: str | None = "is away: there is no connection yet"  # of the broker; while connected, of the session
        self._refused = False  # the last attempt to connect
        # When connections ended lately, of time.monotonic(), and whether the broker said that another took our place.
        self._ends: deque[tuple[float, bool]] = deque(maxlen=100)
        self._told_qos_0 = False
        self._failed: DataError | None = None
        #: Messages that the broker has marked as sent before.
        self.duplicates = 0

    @property
    def partitions(self) -> tuple[str, ...]:
        return (self._settings.client_id,)

    def _new_client(self) -> Any:
        """A client that is not connected, with all settings checked."""
        settings = self._settings
        if not settings.client_id or not settings.topics or not 1 <= settings.unacknowledged <= 65_535:
            raise DataError(f"an MQTT source needs a client_id, topics, and 1 to 65,535 unacknowledged: {settings}")
        client = make_client(
            settings.host, settings.client_id, settings.username, settings.password, settings.tls, _LOG, manual_ack=True
        )
        from paho.mqtt import client as mqtt

        for topic in settings.topics:
            if not topic or mqtt.Client._filter_wildcard_len_check(topic.encode()) != mqtt.MQTT_ERR_SUCCESS:
                raise DataError(f"{topic!r} is no filter of MQTT topics", "for example plant/+/temperature or plant/#")
        return client

    def open(self, positions: Mapping[str, int]) -> None:
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        settings = self._settings
        self._count = positions.get(settings.client_id, 0)
        client = self._new_client()
        client.reconnect_delay_set(1, 10)
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = lambda *_: self._answered.set()
        client.on_message = self._on_message
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = settings.session_s
        properties.ReceiveMaximum = settings.unacknowledged
        client.connect_async(
            settings.host, settings.port, settings.keepalive_s, clean_start=False, properties=properties
        )
        client.loop_start()
        self._client = client

    def poll(self, seconds: float) -> list[Piece | Bad]:
        if self._failed is not None:
            raise self._failed
        messages = self._taken(seconds)
        if not messages:
            self._client.loop_start()  # without effect, unless something that it does not expect has ended its thread
            return []
        numbers = np.arange(len(messages), dtype=np.int64)
        name = self._settings.client_id
        rows, positions, bad = self._decoder.decode(name, [message.payload for message in messages], numbers)
        if self._settings.decoding.batched:
            positions >>= ROW_BITS
        behind = (self._count + np.searchsorted(positions, numbers, "right")).tolist()
        self._pending.extend(zip(behind, messages))
        self._count += rows.num_rows
        self.duplicates += sum(message.duplicate for message in messages)
        return [*(Bad(name, None, one.raw, one.reason) for one in bad), Piece(name, rows, None, None)]

    def _taken(self, seconds: float) -> list[_Message]:
        """What is there; waits so long for the first message, and, if it may wait, for others while they keep coming:
        the client's thread reads nothing while Python runs in ours, so that a message at a time would be all there is.
        """
        try:
            messages = [self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()]
        except queue.Empty:
            return []
        until = time.monotonic() + min(seconds, _GATHER_S)
        came = self._queue.qsize()  # we are the only one who takes
        while True:
            messages += [self._queue.get_nowait() for _ in range(came)]
            if time.monotonic() >= until:
                return messages
            time.sleep(_GATHER_S / 10)
            came = self._queue.qsize()
            if not came:
                return messages

    def kept(self, positions: Mapping[str, int]) -> None:
        """Acknowledges the messages all of whose rows are kept, by the count of rows; and those without rows behind
        which nothing waits."""
        count = positions.get(self._settings.client_id, 0)
        with self._lock:
            while self._pending and self._pending[0][0] <= count:
                _, message = self._pending.popleft()
                # One of an earlier connection has been sent again, and that copy will be acknowledged; its packet
                # identifier may mean another message by now.
                if message.mid and self._connected and message.connection == self._connection:
                    self._client.ack(message.mid, 1)

    def trouble(self) -> str | None:
        if self._failed is not None:
            return self._failed.message
        where, id = f"{self._settings.host}:{self._settings.port}", self._settings.client_id
        with self._lock:
            said = self._said if self._connected else f"the broker {where} {self._said}"
            lately = [sure for at, sure in self._ends if time.monotonic() < at + _ENDS_S]
        if not any(lately) and len(lately) < _ENDS:
            return said
        maybe = "" if any(lately) else f"the connection has ended {_ENDS} times and more in {_ENDS_S:g} s; if "
        twin = (
            f"{maybe}another client connects as {id}, each throws the other out, and what one has acknowledged the "
            "other does not get: give each a client_id of its own"
        )
        return twin if said is None else f"{said}; {twin}"

    def close(self) -> None:
        """Leaves; the session stays, with what is not acknowledged."""
        if self._client is not None:
            # Acknowledgements have no answer, and a connection that is closed with something unread takes them with it.
            # The broker answers in order: what it answers behind them says that it has them.
            if self._connected and self._client.unsubscribe(_NO_TOPIC)[0] == 0:
                self._answered.wait(1)
            self._closing = True
            self._client.disable_logger()  # it complains of the connection that we end
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None

    # ---- in the client's thread

    def _on_connect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        from paho.mqtt.subscribeoptions import SubscribeOptions

        if reason.is_failure:
            with self._lock:
                self._said, self._refused = refusal(reason), True
            return
        with self._lock:
            forgotten = not flags.session_present and (self._connection > 0 or self._count > 0)
            said = f"the broker knew no session {self._settings.client_id}: what came while we were away is lost"
            self._said = said if forgotten else None
            self._connection += 1
            self._connected, self._refused = True, False
        # Retained messages come with a new subscription only, not with each connection.
        options = SubscribeOptions(qos=1, retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB)
        client.subscribe([(topic, options) for topic in self._settings.topics])

    def _on_connect_fail(self, client: Any, data: Any) -> None:
        with self._lock:
            self._said, self._refused = no_connection(self._settings.tls), False

    def _on_disconnect(self, client: Any, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._lock:
            if self._connected and not self._closing:
                self._ends.append((time.monotonic(), reason.value == TAKEN_OVER))
            if self._connected:
                self._said = f"is away: {reason}"
            elif not self._refused:  # or it has been said why
                self._said = closed_early(self._settings.tls)
            self._connected = False

    def _on_subscribe(self, client: Any, data: Any, mid: int, reasons: list[Any], properties: Any) -> None:
        for topic, reason in zip(self._settings.topics, reasons):
            if reason.is_failure:
                hint = "may this user read it, and is it a topic filter?"
                self._failed = DataError(f"the broker does not let us read {topic}: {reason}", hint)

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        taken = _Message(self._connection, message.mid, message.payload, message.dup)
        if not taken.mid and not self._told_qos_0:
            self._told_qos_0 = True
            _LOG.warning(
                "%s comes with QoS 0: what is published while this source or its connection is down is lost; "
                "publish with QoS 1", message.topic,
            )  # fmt: skip
        while not self._closing:
            try:
                self._queue.put(taken, timeout=0.1)
                return
            except queue.Full:
                pass
