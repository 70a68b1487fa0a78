"""Children of tests that are to die: forked from a process in which everything is loaded and no thread runs. Started
anew, each would take more time to load us than to do its work."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TextIO

CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload([
    "tests.warm", "tests.archive.crash_child", "tests.archive.ingest_child", "tests.live.crash_child",
    "tests.live.crash_service",
])  # fmt: skip


class Child:
    """A process that runs `main`, whose output is read here."""

    def __init__(self, main: Callable[..., object], *arguments: str) -> None:
        reader, writer = CHILDREN.Pipe(duplex=False)
        self._process = CHILDREN.Process(target=_printing, args=(writer, main, arguments))
        self._process.start()
        writer.close()
        self.stdout: TextIO = open(os.dup(reader.fileno()), encoding="utf-8")  # noqa: SIM115  (closed by kill)
        reader.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None as long as it runs."""
        return self._process.exitcode

    def wait(self, seconds: float) -> int | None:
        """Waits for its end; returns how it ended."""
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _printing(output: Connection, main: Callable[..., object], arguments: tuple[str, ...]) -> None:
    sys.stdout = os.fdopen(os.dup(output.fileno()), "w", encoding="utf-8")
    output.close()
    main(*arguments)
    sys.stdout.flush()
