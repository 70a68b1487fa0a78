"""What sources and sinks of Kafka share: the check of their settings, without a broker, and what its errors mean."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from query.errors import DataError

_SERVER = re.compile(r"(?:[a-z_]+://)?(?:\[[0-9a-f:.%]+\]|[\w.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_PROTOCOL = "security.protocol"
#: What a message of the client begins with, and ends with: it is another one each time.
_WHERE = re.compile(r"^(?:[a-z_]+://)?(\S+?)/(?:bootstrap|\d+): ")
_AFTER = re.compile(r" \(after \d+ms in .*\)$")
#: A cause that was not heard of for so many seconds makes room for another.
CAUSE_S = 10.0
#: Where a connection waits, and what that may mean.
WAITS = {
    "SSL_HANDSHAKE": "it does not go on with TLS: does it speak TLS at this port?",
    "APIVERSION_QUERY": "it does not answer: does it speak Kafka's protocol at this port, and want no TLS?",
    "AUTH_HANDSHAKE": "it does not go on with SASL: does it want it?",
    "AUTH_REQ": "it does not say whether it lets us in",
}


def client_module() -> Any:
    """confluent_kafka. Raises DataError where it is not installed."""
    try:
        import confluent_kafka
    except ImportError:
        hint = "install the extra kafka: pip install 'hybrid[kafka]'"
        raise DataError("Kafka needs confluent-kafka, which is not installed", hint) from None
    return confluent_kafka


def check_client(kind: str, servers: str, options: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Makes a client with these settings that connects to nothing, and lets it go. kind: Consumer or Producer. ours:
    settings that cannot be given. Raises DataError for what the client refuses."""
    kafka = client_module()
    both = sorted((ours.keys() | {"bootstrap.servers", "metadata.broker.list"}) & options.keys())
    if both:
        raise DataError(f"the option {both[0]} of Kafka is set by Hybrid", "leave it out")
    named = [server.strip() for server in servers.split(",")]
    for server in named:
        found = _SERVER.fullmatch(server)
        if found is None or not 0 < int(found[1] or 9092) < 65_536:
            raise DataError(f"{server!r} is no broker of Kafka", "write host:port, several with commas")
    protocol = str(options.get(_PROTOCOL, "plaintext")).lower()
    ignored = sorted(name for name in options if name.startswith("sasl.")) if not protocol.startswith("sasl") else []
    if ignored:
        hint = f"add {_PROTOCOL}, sasl_ssl or sasl_plaintext"
        raise DataError(f"the option {ignored[0]} of Kafka has no effect with {_PROTOCOL} = {protocol}", hint)
    silent = logging.Logger("silent", logging.CRITICAL + 1)
    try:
        client = getattr(kafka, kind)({**options, **ours}, logger=silent)
        if kind == "Consumer":
            client.close()
    except (kafka.KafkaException, ValueError, TypeError) as error:
        hint = "check its options: CONFIGURATION.md of librdkafka has all"
        raise DataError(f"the client of Kafka cannot be made: {said(error)}", hint) from None


def said(error: BaseException) -> str:
    """What an exception of the client says, without its code."""
    cause = error.args[0] if error.args else error
    return str(cause.str()) if hasattr(cause, "str") else str(cause)


def meaning(error: Any) -> str:
    """What an error of the client says, and what to look at where that is known. error: a KafkaError."""
    kafka = client_module().KafkaError
    text, code = _AFTER.sub("", _WHERE.sub(r"\1: ", str(error.str()))), error.code()
    if code in (kafka._AUTHENTICATION, kafka.SASL_AUTHENTICATION_FAILED):
        return f"they do not let us in: {text} (see the options sasl.*)"
    if code == kafka._SSL:
        return f"TLS fails: {text} (see the options ssl.*: do the brokers speak TLS at this port?)"
    if code in (kafka.TOPIC_AUTHORIZATION_FAILED, kafka.GROUP_AUTHORIZATION_FAILED, kafka.CLUSTER_AUTHORIZATION_FAILED):
        return f"{text}: the user may not (see the ACLs of the brokers)"
    return text


class Away:
    """Why brokers are away, of all that a client says of it: the cause rather than what follows from it, and one of
    several that come in turns. said: None as long as they are there."""

    __slots__ = ("_rank", "_seen_s", "said")

    def __init__(self) -> None:
        self.said: str | None = None
        self._rank, self._seen_s = 0, 0.0

    def hear(self, error: Any, now_s: float) -> None:
        """error: a KafkaError; now_s: of a clock that never goes back."""
        kafka = client_module().KafkaError
        text, code = meaning(error), error.code()
        causes = (kafka._SSL, kafka._AUTHENTICATION, kafka.SASL_AUTHENTICATION_FAILED, kafka._RESOLVE)
        rank = 3 if code in causes or "SSL handshake" in text else 1 if code == kafka._ALL_BROKERS_DOWN else 2
        if self.said is None or rank > self._rank or now_s > self._seen_s + CAUSE_S:
            self.said, self._rank = text, rank
        if rank == self._rank:
            self._seen_s = now_s

    def waits(self, text: str, now_s: float) -> None:
        """Nothing was said, and yet there is none."""
        if self.said is None:
            self.said, self._rank, self._seen_s = text, 0, now_s

    def back(self) -> None:
        self.said, self._rank = None, 0
