"""What sources and sinks of MQTT share: a client that connects to nothing yet, and the reasons why it cannot."""

from __future__ import annotations

import logging
import ssl
import sys
from typing import Any

from query.errors import DataError

#: The reasons that the broker gives, by MQTT 5: of the same client id elsewhere; of a user, or an address, it refuses.
TAKEN_OVER = 0x8E
_REFUSED = {0x86: "see user and password", 0x87: "see user and password", 0x85: "see client_id", 0x8A: "it is banned"}


def make_client(
    host: str, client_id: str, user: str | None, password: str | None, tls: bool, log: logging.Logger, **options: Any
) -> Any:
    """A client of MQTT 5, not connected. Raises DataError for what it refuses, and where it is not installed."""
    try:
        from paho.mqtt import client as mqtt
    except ImportError:
        hint = "install the extra mqtt: pip install 'hybrid[mqtt]'"
        raise DataError("MQTT needs paho-mqtt, which is not installed", hint) from None
    try:
        fits = bool(host.encode("idna")) and not any(c in host for c in " /")
    except UnicodeError:
        fits = False
    if not fits:
        raise DataError(f"{host!r} is no host of an MQTT broker", "write a name or an address, without the port")
    try:
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, **options)
        client.username_pw_set(user, password)
        if tls:
            client.tls_set()
    except (ValueError, OSError) as error:
        raise DataError(f"the client of MQTT cannot be made: {error}", "check its settings") from None
    client.enable_logger(log)
    return client


def refusal(reason: Any) -> str:
    """Why a broker refuses the connection. reason: a ReasonCode."""
    hint = _REFUSED.get(reason.value)
    return f"refuses the connection: {reason}" + (f" ({hint})" if hint else "")


def no_connection(tls: bool, error: BaseException | None = None) -> str:
    """Why there is no connection. error: what was raised, by default what is being handled."""
    match error or sys.exc_info()[1]:
        case ssl.SSLCertVerificationError() as why:
            return f"is not trusted: {why.verify_message}"
        case ssl.SSLError() as why:
            return f"does not speak TLS at this port, or not ours: {why.reason or why}"
        case ConnectionResetError() as why if tls:
            return f"is away: {why.strerror} (does it speak TLS at this port?)"
        case OSError() as why:
            return f"is away: {why.strerror or why}"
        case _:
            return "is away: there is no answer"


def closed_early(tls: bool) -> str:
    """Why a connection ends before the broker has answered."""
    return "is away: the connection has ended without an answer" + ("" if tls else " (does this port want TLS?)")
