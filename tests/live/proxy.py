"""A proxy between a client and a broker that delays, cuts, resets and stalls connections."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.live.servers import free_port


class Proxy:
    """Listens on a port of loopback and passes bytes on to `port`, which may be set later.

    delay_s: how much later bytes arrive, in both directions. stalled: nothing is passed on, and connections stay.
    refusing: new connections are reset at once. silent: what the broker answers is swallowed, so that it has done what
    it was asked and the client never hears of it; such a connection ends with `reset`.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.listens_at = free_port()
        self.delay_s = 0.0
        self.stalled = self.refusing = self.silent = False
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", self.listens_at))
        self._open: set[socket.socket] = set()
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Ends all connections, with what is under way."""
        for end in list(self._open):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)

    def halve(self) -> None:
        """Reports to both ends of each connection that the other one sends nothing more; they stay open otherwise."""
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._closing = True
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self.connections += 1
        with client, suppress(OSError):
            if self.refusing:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            with socket.create_connection(("127.0.0.1", self.port)) as broker:
                ends = {client, broker}
                self._open |= ends
                try:
                    self._pass_on(client, broker)
                finally:
                    self._open -= ends

    def _pass_on(self, client: socket.socket, broker: socket.socket) -> None:
        with selectors.DefaultSelector() as ready:
            for end, other in ((client, broker), (broker, client)):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(end, selectors.EVENT_READ, other)
            while not self._closing:
                if self.stalled:
                    time.sleep(0.02)
                    continue
                for key, _ in ready.select(0.05):
                    data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not data:
                        return
                    time.sleep(self.delay_s)
                    if not (self.silent and key.fileobj is broker):
                        key.data.sendall(data)


@contextmanager
def proxy(port: int = 0) -> Iterator[Proxy]:
    found = Proxy(port)
    try:
        yield found
    finally:
        found.close()
