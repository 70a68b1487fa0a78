"""Rows as messages of a Kafka topic."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from live.kafka_client import Away, check_client, client_module, meaning, said
from live.sinks.base import Refused, RowId, check_ids, row_ids, trouble
from live.sinks.json_lines import check_json, json_lines
from query.errors import DataError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

#: Longest single wait in seconds for room in the queue of the client.
_STEP_SECONDS = 0.1

_LOG = logging.getLogger(__name__)

Headers = list[tuple[str, str | bytes | None]]


class KafkaSink:
    """Sends one message per row: its JSON, with the match id as key, and match_id, join_id and row (the index of the
    row in its match) as headers. At least once, by id; in order within a key.

    Unacknowledged messages are kept and sent again; `cursor` waits for all of them. servers: host:port, separated by
    commas. config: more settings of librdkafka. seconds: longest wait of one call. Needs the extra `kafka`.
    """

    __slots__ = (
        "_away", "_config", "_failed", "_first_error", "_left_out", "_producer", "_refused", "_seconds", "_servers",
        "_topic",
    )  # fmt: skip

    def __init__(
        self, servers: str, topic: str, config: Mapping[str, Any] | None = None, seconds: float = 30.0
    ) -> None:
        self._servers = servers
        self._topic = topic
        ours = {"enable.idempotence": True}
        check_client("Producer", servers, config or {}, ours)
        self._config = {
            "linger.ms": 20, **(config or {}), **ours, "bootstrap.servers": servers, "error_cb": self._on_error
        }  # fmt: skip
        self._seconds = seconds
        self._producer: Producer | None = None
        #: Failed messages (key, value, headers), to be sent again.
        self._failed: list[tuple[bytes, bytes, Headers]] = []
        self._first_error: KafkaError | None = None
        #: Failed messages that the broker rejected for their content, by row id; and the ids of rows to skip.
        self._refused: dict[str, str] = {}
        self._left_out: set[str] = set()
        self._away = Away()  # errors since the last acknowledgement

    def _made(self) -> Producer:
        kafka = client_module()
        producer: Producer = kafka.Producer(self._config, logger=_LOG)
        return producer

    def _on_error(self, error: KafkaError) -> None:
        self._away.hear(error, time.monotonic())

    def check(self, schema: pa.Schema) -> None:
        check_ids(schema)
        check_json(schema)

    def open(self, cursor: str | None) -> None:
        from confluent_kafka import KafkaException

        producer = self._made()
        try:
            producer.list_topics(self._topic, timeout=self._seconds)
        except KafkaException as error:
            raise self._trouble(said(error)) from None
        self._producer, self._failed, self._first_error = producer, [], None
        self._refused, self._left_out = {}, set()

    def write(self, rows: pa.Table) -> None:
        self._again()
        until = time.monotonic() + self._seconds
        for text, row in zip(json_lines(rows), row_ids(rows)):
            if str(row) not in self._left_out:
                self._send(row.match.encode(), text.encode(), _headers(row), until)
        self._opened().poll(0)

    def _send(self, key: bytes, value: bytes, headers: Headers, until: float) -> None:
        from confluent_kafka import KafkaException

        producer = self._opened()
        while True:
            try:
                producer.produce(self._topic, value, key, headers=headers, on_delivery=self._delivered)
                return
            except BufferError:
                producer.poll(_STEP_SECONDS)
                if time.monotonic() > until:
                    raise self._trouble(f"{len(producer):,} rows are pending") from None
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if cause.fatal():
                    self._first_error = cause
                    raise self._trouble(cause.str()) from None
                if cause.code() in _refusing():
                    what = _too_large(value) + cause.str()
                    raise Refused(f"Kafka topic {self._topic}", what, {_id(key, headers): value.decode()}) from None
                raise self._trouble(cause.str()) from None

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._first_error = self._first_error or error
            headers: Any = message.headers()  # a list where a list was sent
            key, value = message.key() or b"", message.value() or b""
            self._failed.append((key, value, headers or []))
            if error.code() in _refusing():
                self._refused[_id(key, headers or [])] = value.decode()
        else:
            self._away.back()

    def _again(self) -> None:
        """Sends failed messages again. Raises OSError until they are acknowledged."""
        if self._first_error is None:
            return
        if self._first_error.fatal():
            self._renew()
        failed, self._failed, self._first_error, self._refused = self._failed, [], None, {}
        until = time.monotonic() + self._seconds
        for i, message in enumerate(failed):
            try:
                self._send(*message, until)
            except (OSError, DataError):
                self._failed += failed[i:]
                raise
        self._flush()

    def _renew(self) -> None:
        """Replaces a producer after a fatal error, which stops it for good. Its messages become failed messages."""
        old = self._opened()
        old.purge()
        old.flush(self._seconds)
        self._producer = self._made()

    def _flush(self) -> None:
        left = self._opened().flush(self._seconds)
        if self._failed:
            why = meaning(self._first_error) if self._first_error is not None else ""
            if self._refused:
                why = _too_large(next(iter(self._refused.values())).encode()) + why
                raise Refused(f"Kafka topic {self._topic}", why, self._refused)
            raise self._trouble(f"{len(self._failed):,} rows were not accepted: {why}")
        if left:
            raise self._trouble(f"{left:,} rows were not acknowledged within {self._seconds:g} s")

    def leave_out(self, id: str) -> None:
        self._left_out.add(id)
        self._failed = [message for message in self._failed if _id(message[0], message[2]) != id]
        self._refused.pop(id, None)

    def cursor(self) -> str | None:
        self._again()
        self._flush()
        self._left_out = set()
        return None

    def close(self) -> None:
        if self._producer is not None:
            try:
                self.cursor()
            finally:
                self._producer = None

    def _opened(self) -> Producer:
        if self._producer is None:
            raise DataError(f"the sink of Kafka topic {self._topic} is not open", "open it first")
        return self._producer

    def _trouble(self, what: str) -> OSError:
        what = f"{what}; {self._away.said}" if self._away.said is not None else what
        hint = "check that the brokers run and accept messages for it; unacknowledged rows are sent again"
        return trouble(f"Kafka topic {self._topic} at {self._servers}", what, hint)


def _refusing() -> tuple[int, ...]:
    """Returns the codes of errors about a message, not about the broker, the topic or the user."""
    from confluent_kafka import KafkaError

    return KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG, KafkaError._BAD_MSG


def _too_large(value: bytes) -> str:
    return f"{len(value):,} bytes (message.max.bytes of the sink, max.message.bytes of the topic): "


def _id(key: bytes, headers: Headers) -> str:
    """Returns the row id of a message."""
    said = {name: value.decode() if isinstance(value, bytes) else str(value) for name, value in headers}
    return str(RowId(key.decode(), said.get("join_id", ""), int(said.get("row", 0))))


def _headers(row: RowId) -> Headers:
    join: Headers = [("join_id", row.join.encode())] if row.join else []
    return [("match_id", row.match.encode()), *join, ("row", str(row.number).encode())]
