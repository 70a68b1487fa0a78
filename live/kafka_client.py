"""What sources and sinks of Kafka share: the check of their settings, without a broker, and what its errors mean."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from query.errors import DataError

_SERVER = re.compile(r"(?:[a-z_]+://)?(?:\[[0-9a-f:.%]+\]|[\w.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_PROTOCOL = "security.protocol"


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
    text, code = str(error.str()), error.code()
    if code in (kafka._AUTHENTICATION, kafka.SASL_AUTHENTICATION_FAILED):
        return f"the user or the password is refused: {text} (see sasl.username and sasl.password)"
    if code == kafka._SSL:
        return f"TLS fails: {text} (do the brokers speak TLS at this port, with a certificate of ssl.ca.location?)"
    if code in (kafka.TOPIC_AUTHORIZATION_FAILED, kafka.GROUP_AUTHORIZATION_FAILED, kafka.CLUSTER_AUTHORIZATION_FAILED):
        return f"{text}: the user may not (see the ACLs of the brokers)"
    return text
