"""`hybrid run` as a process that a test starts, looks at and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.programs import Program
from tests.waiting import GUARD_S

ROOT = Path(__file__).parents[2]
_started: list[Program | subprocess.Popen[str]] = []


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def start(directory: Path) -> Program:
    """Starts the service in a child that finds all modules loaded."""
    child = Program(directory, "hybrid", "run", "app.toml")
    _started.append(child)
    return child


def start_anew(directory: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Starts it, or Python with these arguments, as a user does."""
    command = [sys.executable, *(arguments or ("-m", "hybrid", "run", "app.toml"))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment()}
    given: dict[str, Any] = pipes | options
    child = subprocess.Popen(command, cwd=directory, text=True, stdin=subprocess.DEVNULL, **given)
    _started.append(child)
    return child


def end_all() -> None:
    """Ends what a test has left running, and closes its pipes."""
    while _started:
        child = _started.pop()
        child.kill()
        child.communicate(timeout=GUARD_S)


def status(directory: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "hybrid", "status", "app.toml", "--json"], cwd=directory, capture_output=True, text=True,
        env=environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return dict(json.loads(done.stdout), code=done.returncode)
