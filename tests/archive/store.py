"""An S3-compatible server for tests: buckets are folders, on loopback and a free port, stopped with the block."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import GUARD_S, until

# The headers of an answer are a packet of their own: with Nagle's algorithm its body waits 40 ms for their receipt.
_AT_ONCE = "import localbucket; localbucket.S3Handler.disable_nagle_algorithm = True; localbucket.main()"


@dataclass
class Server:
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_endpoint_url": f"http://127.0.0.1:{self.port}", "aws_allow_http": "true", "aws_region": "us-east-1",
            "aws_access_key_id": "any", "aws_secret_access_key": "thing",
        }  # fmt: skip

    def start(self) -> None:
        command = [sys.executable, "-c", _AT_ONCE, "--port", str(self.port), str(self.folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self._answers)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=GUARD_S).close()
        except urllib.error.HTTPError:
            pass
        except OSError:
            assert self.process is not None
            assert self.process.poll() is None
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextmanager
def s3_server(folder: Path) -> Iterator[Server]:
    (folder / "bucket").mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = Server(folder, port)
    server.start()
    try:
        yield server
    finally:
        server.stop()
