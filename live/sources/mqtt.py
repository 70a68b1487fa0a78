"""Topics of an MQTT 5 broker as a source, with QoS 1: at least once.

A message is acknowledged when its rows are durable. Until then the broker keeps it, as long as the session lives, and
sends it again after each reconnection. So no message is lost by a restart of this process, nor by one of a broker that
stores its sessions on disk. A message may come twice: one that was returned and not yet acknowledged when the
connection broke. MQTT has no message identity to detect this. If it matters, events need their own id, and queries
must use it.

A QoS 0 message is sent once, and is lost if the connection or this process fails before the message is durable.

There are no positions: rows are counted. The partition is named by the client id.
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
    """Settings of an MQTT source.

    topics: filters, `plant/+/temperature`; `$share/group/filter` is shared among clients. client_id: names the session
    at the broker: keep it, and give it to one source only. session_s: seconds for which the broker keeps the session
    of a disconnected client. unacknowledged: most messages that the broker sends before it waits for acknowledgements,
    1 to 65,535 (the broker may allow fewer). tls: encrypts the connection, with the system's certificates.
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


#: Seconds for which a poll collects messages that keep coming; it waits a tenth of that for the next one.
_GATHER_S = 0.02
#: So many lost connections within so many seconds are reported, even while connected.
_ENDS, _ENDS_S = 3, 60.0
_LOG = logging.getLogger(__name__)
#: A filter without a subscription.
_NO_TOPIC = "hybrid/no/topic"


@dataclass(frozen=True, slots=True)
class _Message:
    connection: int  # number of its connection: packet identifiers are valid within one connection
    mid: int  # packet identifier; 0 with QoS 0, which is not acknowledged
    payload: bytes
    duplicate: bool


class MqttSource:
    """Reads events from topics. Does not resume from positions: the broker keeps unacknowledged messages. Raises
    DataError for invalid settings, without contacting a broker."""

    ended = False

    def __init__(self, schema: Schema, settings: MqttSettings) -> None:
        self._settings = settings
        self._decoder = Decoder(schema, settings.decoding)
        self._client: Any = None
        self._new_client()
        # Bounded for brokers that exceed `unacknowledged`, as Mosquitto 2.0 does once it has queued messages. A full
        # queue makes the connection wait; it may break and be made again.
        self._queue: queue.Queue[_Message] = queue.Queue(2 * settings.unacknowledged)
        self._closing = False
        self._answered = threading.Event()  # set by the answer to the last request before disconnecting
        # Messages returned and not acknowledged, each with the count of rows up to and including its own.
        self._pending: deque[tuple[int, _Message]] = deque()
        self._count = 0  # rows returned, including those of earlier processes
        self._lock = threading.Lock()  # between the reader's thread and the client's; for the four below
        self._connection = 0
        self._connected = False
        self._said: str | None = "is unreachable: no connection yet"  # of the broker; if connected, of the session
        self._refused = False  # the broker refused the last attempt to connect
        # Monotonic times at which connections ended, and whether the broker reported a takeover of the client id.
        self._ends: deque[tuple[float, bool]] = deque(maxlen=100)
        self._told_qos_0 = False
        self._failed: DataError | None = None
        #: Number of messages that the broker marked as sent before.
        self.duplicates = 0

    @property
    def partitions(self) -> tuple[str, ...]:
        return (self._settings.client_id,)

    def _new_client(self) -> Any:
        """Checks all settings and returns a client that is not connected."""
        settings = self._settings
        if not settings.client_id or not settings.topics or not 1 <= settings.unacknowledged <= 65_535:
            raise DataError(f"an MQTT source needs a client_id, topics, and 1 to 65,535 unacknowledged: {settings}")
        client = make_client(
            settings.host, settings.client_id, settings.username, settings.password, settings.tls, _LOG, manual_ack=True
        )
        from paho.mqtt import client as mqtt

        for topic in settings.topics:
            if not topic or mqtt.Client._filter_wildcard_len_check(topic.encode()) != mqtt.MQTT_ERR_SUCCESS:
                raise DataError(f"invalid MQTT topic filter {topic!r}", "for example plant/+/temperature or plant/#")
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
            self._client.loop_start()  # no effect, unless an unexpected error has ended the client's thread
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
        """Returns the messages received. Waits up to `seconds` for the first one and then, if it may wait, while more
        keep coming: the client's thread cannot read while the reader's runs, so without a wait each poll would return
        one message."""
        try:
            messages = [self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()]
        except queue.Empty:
            return []
        until = time.monotonic() + min(seconds, _GATHER_S)
        came = self._queue.qsize()  # no other thread takes from it
        while True:
            messages += [self._queue.get_nowait() for _ in range(came)]
            if time.monotonic() >= until:
                return messages
            time.sleep(_GATHER_S / 10)
            came = self._queue.qsize()
            if not came:
                return messages

    def kept(self, positions: Mapping[str, int]) -> None:
        """Acknowledges the messages whose rows are all durable, by the count of rows, and messages without rows among
        them."""
        count = positions.get(self._settings.client_id, 0)
        with self._lock:
            while self._pending and self._pending[0][0] <= count:
                _, message = self._pending.popleft()
                # A message of an earlier connection is sent again, and that copy will be acknowledged. Its old packet
                # identifier may belong to another message now.
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
        maybe = "" if any(lately) else f"the connection ended at least {_ENDS} times in {_ENDS_S:g} s; if "
        twin = (
            f"{maybe}another client connects as {id}, each disconnects the other, and a message that one acknowledges "
            "does not reach the other: give each its own client_id"
        )
        return twin if said is None else f"{said}; {twin}"

    def close(self) -> None:
        """Disconnects. The broker keeps the session and the unacknowledged messages."""
        if self._client is not None:
            # Acknowledgements have no answer, and closing a connection with unread data discards them. The broker
            # answers in order, so its answer to a later request confirms them.
            if self._connected and self._client.unsubscribe(_NO_TOPIC)[0] == 0:
                self._answered.wait(1)
            self._closing = True
            self._client.disable_logger()  # it would log the end of the connection
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
            said = f"the broker has no session {self._settings.client_id}: messages published meanwhile are lost"
            self._said = said if forgotten else None
            self._connection += 1
            self._connected, self._refused = True, False
        # Retained messages come with a new subscription only, not with every connection.
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
                self._said = f"is unreachable: {reason}"
            elif not self._refused:  # keeps the reason of a refusal
                self._said = closed_early(self._settings.tls)
            self._connected = False

    def _on_subscribe(self, client: Any, data: Any, mid: int, reasons: list[Any], properties: Any) -> None:
        for topic, reason in zip(self._settings.topics, reasons):
            if reason.is_failure:
                hint = "check the permissions of the user, and the topic filter"
                self._failed = DataError(f"the broker refuses the subscription to {topic}: {reason}", hint)

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        taken = _Message(self._connection, message.mid, message.payload, message.dup)
        if not taken.mid and not self._told_qos_0:
            self._told_qos_0 = True
            _LOG.warning(
                "%s comes with QoS 0: messages published while this source or its connection is down are lost; "
                "publish with QoS 1", message.topic,
            )  # fmt: skip
        while not self._closing:
            try:
                self._queue.put(taken, timeout=0.1)
                return
            except queue.Full:
                pass
