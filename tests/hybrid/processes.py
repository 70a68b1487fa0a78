"""`hybrid run` as a process that a test starts, looks at and ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.programs import Program

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def start(directory: Path) -> Program:
    """Starts the service in a child that finds all modules loaded."""
    return Program(directory, "hybrid", "run", "app.toml")


def start_anew(directory: Path) -> subprocess.Popen[str]:
    """Starts it as a user does."""
    return subprocess.Popen(
        [sys.executable, "-m", "hybrid", "run", "app.toml"], cwd=directory, text=True, stdin=subprocess.DEVNULL,
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def until(what: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def status(directory: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "hybrid", "status", "app.toml", "--json"], cwd=directory, capture_output=True, text=True,
        env=environment(), stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return dict(json.loads(done.stdout), code=done.returncode)
