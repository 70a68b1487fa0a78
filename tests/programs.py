"""Programs run by children that are forked (tests.forked): they load neither Python nor numba, DuckDB and Arrow anew,
which takes longer than most of them."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

from tests.forked import CHILDREN
from tests.in_memory import MEMORY

_STREAMS = ("stdout", "stderr")


class Program:
    """A module in a child, as `python -m` runs it; with the names of subprocess.Popen."""

    def __init__(self, directory: Path, module: str, *arguments: str) -> None:
        self._place = tempfile.TemporaryDirectory(dir=MEMORY)
        given = (self._place.name, str(directory), module, *arguments)
        for name in _STREAMS:
            Path(self._place.name, name).touch()
        self.stderr = open(Path(self._place.name, "stderr"), encoding="utf-8")  # noqa: SIM115  (closed by communicate)
        self._process = CHILDREN.Process(target=_child, args=given)
        self._process.start()
        self._said = ("", "")

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for its end; returns what it wrote."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        if not self.stderr.closed:
            out, error = (Path(self._place.name, name).read_text(encoding="utf-8") for name in _STREAMS)
            self._said = out, error
            self.stderr.close()
            self._place.cleanup()
        return self._said


def run_text(text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Runs a text as `python -W error -c` does."""
    return _ended(Program(directory, "", text))


def run_module(directory: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a module as `python -m` does."""
    return _ended(Program(directory, module, *arguments))


def _ended(program: Program) -> subprocess.CompletedProcess[str]:
    try:
        said = program.communicate(timeout=300)
    finally:
        program.kill()
    assert program.returncode is not None
    return subprocess.CompletedProcess((), program.returncode, *said)


def _child(place: str, directory: str, module: str, *arguments: str) -> None:
    os.chdir(directory)
    for number, name in enumerate(_STREAMS, 1):
        file = os.open(Path(place, name), os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        setattr(sys, name, open(number, "w", buffering=1, encoding="utf-8", closefd=False))  # noqa: SIM115  (to the end)
    try:
        if module:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            warnings.simplefilter("error")
            exec(compile(arguments[0], "<text>", "exec"), {"__name__": "__main__"})
    except Exception:  # noqa: BLE001  (whatever the program raises)
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
