"""Shared by the MQTT source and sink: creates the client, and explains failed connections."""

from __future__ import annotations

import logging
import ssl
import sys
from typing import Any

from query.errors import DataError
from query.extras import not_installed

#: Reason codes of MQTT 5: session taken over by the same client id; hints for refused connections.
TAKEN_OVER = 0x8E
_REFUSED = {0x86: "see user and password", 0x87: "see user and password", 0x85: "see client_id", 0x8A: "it is banned"}


def make_client(
    host: str, client_id: str, user: str | None, password: str | None, tls: bool, log: logging.Logger, **options: Any
) -> Any:
    """Returns an MQTT 5 client that is not connected. Raises DataError for settings that it rejects, and if paho-mqtt
    is not installed."""
    try:
        from paho.mqtt import client as mqtt
    except ImportError:
        raise not_installed("MQTT needs paho-mqtt", "mqtt") from None
    try:
        fits = bool(host.encode("idna")) and not any(c in host for c in " /")
    except UnicodeError:
        fits = False
    if not fits:
        raise DataError(f"invalid MQTT broker host {host!r}", "write a name or an address, without the port")
    try:
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, **options)
        client.username_pw_set(user, password)
        if tls:
            client.tls_set()
    except (ValueError, OSError) as error:
        raise DataError(f"the MQTT client rejects its settings: {error}", "check them") from None
    client.enable_logger(log)
    return client


def refusal(reason: Any) -> str:
    """Returns why a broker refuses the connection. reason: a ReasonCode."""
    hint = _REFUSED.get(reason.value)
    return f"refuses the connection: {reason}" + (f" ({hint})" if hint else "")


def no_connection(tls: bool, error: BaseException | None = None) -> str:
    """Returns why there is no connection. error: the exception, by default the one being handled."""
    match error or sys.exc_info()[1]:
        case ssl.SSLCertVerificationError() as why:
            return f"is not trusted: {why.verify_message}"
        case ssl.SSLError() as why:
            return f"does not use TLS at this port, or no compatible one: {why.reason or why}"
        case ConnectionResetError() as why if tls:
            return f"is unreachable: {why.strerror} (does it use TLS at this port?)"
        case OSError() as why:
            return f"is unreachable: {why.strerror or why}"
        case _:
            return "is unreachable: no answer"


def closed_early(tls: bool) -> str:
    """Returns why a connection ended before the broker answered."""
    return "is unreachable: the connection ended without an answer" + ("" if tls else " (does this port require TLS?)")
