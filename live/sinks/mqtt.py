"""Rows as messages of an MQTT 5 topic."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from live.mqtt_client import closed_early, make_client, no_connection, refusal
from live.sinks.base import RowId, check_ids, row_ids, trouble
from live.sinks.json_lines import check_json, json_lines
from query.errors import DataError

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

_LOG = logging.getLogger(__name__)
_SILENT = "it does not answer"
#: Most unacknowledged messages; `write` waits before it sends more.
WAITING_MAX = 10_000


class MqttSink:
    """Publishes one message per row with QoS 1: its JSON, with match_id, join_id and row (the index of the row in its
    match) as user properties. At least once, by id.

    The client reconnects by itself and sends unacknowledged messages again; `cursor` waits for all of them. tls:
    encrypts the connection, with the system's certificates. seconds: longest wait of one call. Needs the extra `mqtt`.
    """

    __slots__ = (
        "_changed", "_client", "_client_id", "_early", "_failed", "_host", "_last", "_password", "_port", "_seconds",
        "_tls", "_topic", "_user", "_waiting",
    )  # fmt: skip

    def __init__(
        self, host: str, topic: str, port: int = 1883, user: str | None = None, password: str | None = None,
        tls: bool = False, client_id: str = "", seconds: float = 30.0,
    ) -> None:  # fmt: skip
        if not topic or any(c in topic for c in "+#\0"):
            raise DataError(f"invalid MQTT topic {topic!r}", "a topic to publish to has no + or #")
        self._host, self._port, self._topic = host, port, topic
        self._user, self._password, self._tls, self._client_id = user, password, tls, client_id
        self._seconds = seconds
        self._client: Client | None = None
        self._changed = threading.Condition()
        #: Unacknowledged messages, by packet identifier, and messages that the broker rejected.
        self._waiting: dict[int, tuple[bytes, RowId]] = {}
        self._failed: list[tuple[bytes, RowId]] = []
        #: Answers that came before `publish` had returned the packet identifier.
        self._early: dict[int, Any] = {}
        self._last = _SILENT
        self._made()  # raises DataError for invalid settings

    def _made(self) -> Client:
        client: Client = make_client(self._host, self._client_id, self._user, self._password, self._tls, _LOG)
        return client

    def check(self, schema: pa.Schema) -> None:
        check_ids(schema)
        check_json(schema)

    def open(self, cursor: str | None) -> None:
        client = self._made()
        client.on_connect, client.on_publish = self._connected, self._published
        client.on_connect_fail, client.on_disconnect = self._not_connected, self._disconnected
        with self._changed:
            self._waiting, self._failed, self._early, self._last = {}, [], {}, _SILENT
        try:
            client.connect(self._host, self._port)
        except OSError as error:
            raise self._trouble(f"the broker {no_connection(self._tls, error)}") from error
        client.loop_start()
        self._client = client
        with self._changed:
            self._changed.wait_for(lambda: client.is_connected() or self._last != _SILENT, self._seconds)
        if not client.is_connected():
            self._stop()
            raise self._trouble(self._last)

    # ---- called by the client's thread

    def _connected(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self._last = f"the broker {refusal(reason)}" if reason.is_failure else ""
            self._changed.notify_all()

    def _not_connected(self, client: Client, data: Any) -> None:
        with self._changed:
            self._last = f"the broker {no_connection(self._tls)}"

    def _disconnected(self, client: Client, data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            if self._last == _SILENT:
                self._last = f"the broker {closed_early(self._tls)}"
            self._last = self._last or f"the connection is lost: {reason}"

    def _published(self, client: Client, data: Any, number: int, reason: Any, properties: Any) -> None:
        with self._changed:
            if number in self._waiting:
                self._answered(number, reason)
            else:
                self._early[number] = reason

    def _answered(self, number: int, reason: Any) -> None:
        message = self._waiting.pop(number)
        if reason.is_failure:
            self._failed.append(message)
            self._last = f"the broker rejects the rows: {reason}"
        self._changed.notify_all()

    # ---- called by the owner

    def write(self, rows: pa.Table) -> None:
        self._again()
        until = time.monotonic() + self._seconds
        for text, row in zip(json_lines(rows), row_ids(rows)):
            self._send(text.encode(), row, until)

    def _send(self, payload: bytes, row: RowId, until: float) -> None:
        client = self._opened()
        with self._changed:
            room = self._changed.wait_for(lambda: len(self._waiting) < WAITING_MAX, until - time.monotonic())
            if not room:
                raise self._trouble(self._last or f"{WAITING_MAX:,} rows are pending")
        # Outside of the lock: the client's thread holds its own lock while it calls `_published`.
        number = client.publish(self._topic, payload, qos=1, properties=_properties(row)).mid
        with self._changed:
            self._waiting[number] = (payload, row)
            if number in self._early:
                self._answered(number, self._early.pop(number))

    def _again(self) -> None:
        """Publishes rejected messages again."""
        with self._changed:
            failed, self._failed = self._failed, []
        if not failed:
            return
        until = time.monotonic() + self._seconds
        for i, message in enumerate(failed):
            try:
                self._send(*message, until)
            except OSError:
                self._failed += failed[i:]
                raise
        self._wait()

    def _wait(self) -> None:
        self._opened()
        with self._changed:
            done = self._changed.wait_for(lambda: not self._waiting, self._seconds)
            if self._failed:
                raise self._trouble(self._last)
            if not done:
                left = f"{len(self._waiting):,} rows were not acknowledged within {self._seconds:g} s"
                raise self._trouble(f"{left}; {self._last}" if self._last else left)

    def cursor(self) -> str | None:
        self._again()
        self._wait()
        return None

    def close(self) -> None:
        if self._client is not None:
            try:
                self.cursor()
            finally:
                self._stop()

    def _stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()
            client.loop_stop()

    def _opened(self) -> Client:
        if self._client is None:
            raise DataError(f"the sink of MQTT topic {self._topic} is not open", "open it first")
        return self._client

    def _trouble(self, what: object) -> OSError:
        hint = "check that the broker runs and accepts messages for the topic; unacknowledged rows are sent again"
        return trouble(f"MQTT topic {self._topic} at {self._host}:{self._port}", what, hint)


def _properties(row: RowId) -> Properties:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.PUBLISH)
    properties.PayloadFormatIndicator = 1  # UTF-8
    properties.ContentType = "application/json"
    join = [("join_id", row.join)] if row.join else []
    properties.UserProperty = [("match_id", row.match), *join, ("row", str(row.number))]
    return properties
