"""Shared by the Kafka source and sink: checks settings without a broker, and explains errors of the client."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from query.errors import DataError
from query.extras import not_installed

_SERVER = re.compile(r"(?:[a-z_]+://)?(?:\[[0-9a-f:.%]+\]|[\w.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_PROTOCOL = "security.protocol"
#: Prefix and suffix of client messages that differ each time.
_WHERE = re.compile(r"^(?:[a-z_]+://)?(\S+?)/(?:bootstrap|\d+): ")
_AFTER = re.compile(r" \(after \d+ms in .*\)$")
#: A cause that was not reported for so many seconds gives way to another.
CAUSE_S = 10.0
#: The probable fault, by the state in which a connection hangs.
WAITS = {
    "SSL_HANDSHAKE": "the TLS handshake does not complete: does the broker use TLS at this port?",
    "APIVERSION_QUERY": "it does not answer: does it speak Kafka's protocol at this port, without TLS?",
    "AUTH_HANDSHAKE": "the SASL handshake does not complete: does the broker use SASL?",
    "AUTH_REQ": "the broker does not answer the authentication request",
}


def client_module() -> Any:
    """Returns the module confluent_kafka. Raises DataError if it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        raise not_installed("Kafka needs confluent-kafka", "kafka") from None
    return confluent_kafka


def check_client(kind: str, servers: str, options: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Checks settings by a client that is made and closed without a connection. kind: Consumer or Producer. options:
    of the user. ours: settings that options may not set. Raises DataError for settings that the client rejects."""
    kafka = client_module()
    both = sorted((ours.keys() | {"bootstrap.servers", "metadata.broker.list"}) & options.keys())
    if both:
        raise DataError(f"the Kafka option {both[0]} is set by Hybrid", "leave it out")
    named = [server.strip() for server in servers.split(",")]
    for server in named:
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found[1] or 9092) < 65_536:
            raise DataError(f"invalid Kafka broker {server!r}", "write host:port, separated by commas")
    protocol = str(options.get(_PROTOCOL, "plaintext")).lower()
    ignored = sorted(name for name in options if name.startswith("sasl.")) if not protocol.startswith("sasl") else []
    if ignored:
        hint = f"add {_PROTOCOL}, sasl_ssl or sasl_plaintext"
        raise DataError(f"the Kafka option {ignored[0]} has no effect with {_PROTOCOL} = {protocol}", hint)
    silent = logging.Logger("silent", logging.CRITICAL + 1)
    try:
        client = getattr(kafka, kind)({**options, **ours}, logger=silent)
        if kind == "Consumer":
            client.close()
    except (kafka.KafkaException, ValueError, TypeError) as error:
        hint = "check the options: CONFIGURATION.md of librdkafka lists all"
        raise DataError(f"the Kafka client rejects its options: {said(error)}", hint) from None


def said(error: BaseException) -> str:
    """Returns the message of a client exception, without its code."""
    cause = error.args[0] if error.args else error
    return str(cause.str()) if hasattr(cause, "str") else str(cause)


def meaning(error: Any) -> str:
    """Returns the message of a client error, with a hint if the cause is known. error: a KafkaError."""
    kafka = client_module().KafkaError
    text, code = _AFTER.sub("", _WHERE.sub(r"\1: ", str(error.str()))), error.code()
    if code in (kafka._AUTHENTICATION, kafka.SASL_AUTHENTICATION_FAILED):
        return f"authentication failed: {text} (see the options sasl.*)"
    if code == kafka._SSL:
        return f"TLS failed: {text} (see the options ssl.*: do the brokers use TLS at this port?)"
    if code in (kafka.TOPIC_AUTHORIZATION_FAILED, kafka.GROUP_AUTHORIZATION_FAILED, kafka.CLUSTER_AUTHORIZATION_FAILED):
        return f"{text}: the user has no permission (see the ACLs of the brokers)"
    return text


class Away:
    """Chooses the reason why brokers are unreachable from the errors of a client: causes before consequences, and one
    of several that alternate. said: the reason, None while brokers are reachable."""

    __slots__ = ("_rank", "_seen_s", "said")

    def __init__(self) -> None:
        self.said: str | None = None
        self._rank, self._seen_s = 0, 0.0

    def hear(self, error: Any, now_s: float) -> None:
        """Takes an error of the client. error: a KafkaError. now_s: of a monotonic clock."""
        kafka = client_module().KafkaError
        text, code = meaning(error), error.code()
        causes = (kafka._SSL, kafka._AUTHENTICATION, kafka.SASL_AUTHENTICATION_FAILED, kafka._RESOLVE)
        rank = 3 if code in causes or "SSL handshake" in text else 1 if code == kafka._ALL_BROKERS_DOWN else 2
        if self.said is None or rank > self._rank or now_s > self._seen_s + CAUSE_S:
            self.said, self._rank = text, rank
        if rank == self._rank:
            self._seen_s = now_s

    def waits(self, text: str, now_s: float) -> None:
        """Takes a reason of the lowest rank, for brokers that are unreachable without an error."""
        if self.said is None:
            self.said, self._rank, self._seen_s = text, 0, now_s

    def back(self) -> None:
        """Forgets the reason: brokers are reachable."""
        self.said, self._rank = None, 0
