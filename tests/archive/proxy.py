"""A proxy in front of a server of a test: it delays each request, answers it with an HTTP error, or lets it hang."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Listens on loopback at `port` and passes bytes on to the server's port. Set while it runs: delay_s, before each
    request; status, an HTTP error that answers each request instead of the server; hangs, nothing is answered."""

    def __init__(self, server_port: int) -> None:
        self.delay_s = 0.0
        self.status: int | None = None
        self.hangs = False
        self.requests = 0
        self._server_port = server_port
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        # Before: connections that a client kept for later kept their threads, and tests of iterations over alerts,
        # which wait while another thread may push, hung after them.
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # unlike close, wakes a thread that waits
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
            self._ends += client, server
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asks = threading.Event()  # the last bytes came from the client
            threading.Thread(target=self._answers, args=(server, client, asks), daemon=True).start()
            while data := client.recv(1 << 16):
                if not asks.is_set():
                    self.requests += 1
                    asks.set()
                    time.sleep(self.delay_s)
                while self.hangs:
                    time.sleep(0.02)
                if self.status is not None:
                    client.sendall(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % self.status)
                    return
                server.sendall(data)

    @staticmethod
    def _answers(server: socket.socket, client: socket.socket, asks: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                asks.clear()
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


@contextmanager
def proxy(server_port: int) -> Iterator[Proxy]:
    found = Proxy(server_port)
    try:
        yield found
    finally:
        found.close()
