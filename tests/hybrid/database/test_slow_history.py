"""Processes that are interrupted while something beside them is slow end within seconds, and lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import hybrid
from hybrid.join.daemons import Daemons
from hybrid.join.driver import Driver
from tests.hybrid.slow_child import QUERY
from tests.waiting import GUARD_S, until

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("then", ["fetch", "with", "keeper"])
def test_an_interrupted_process_ends(tmp_path: Path, then: str) -> None:
    """Before: it never did, except with `keeper`: the interpreter waited for the thread that reads history."""
    command = [sys.executable, str(Path(__file__).parents[1] / "slow_child.py"), str(tmp_path / "db"), then]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=GUARD_S)  # the read that it waits for takes an hour
    finally:
        process.kill()
    assert said.endswith("KeyboardInterrupt\n"), said
    assert process.returncode in (1, -signal.SIGINT)
    with hybrid.connect(tmp_path / "db") as db:
        assert db.sql("SELECT count(*) AS n FROM e").arrow().to_pylist() == [{"n": 10}]


def test_daemons_run_calls_in_order_and_no_more_than_so_many_at_a_time() -> None:
    pool, gate = Daemons(2, "hybrid-test"), threading.Event()
    running: list[int] = []

    def call(number: int) -> int:
        running.append(number)
        gate.wait()
        return number * number

    futures = [pool.submit(call, number) for number in range(5)]
    until(lambda: len(running) >= 2)
    time.sleep(0.05)
    assert sorted(running) == [0, 1]
    assert futures[4].cancel()
    gate.set()
    assert [future.result(GUARD_S) for future in futures[:4]] == [0, 1, 4, 9]
    assert sorted(running) == [0, 1, 2, 3]
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 // 0).result(GUARD_S)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("hybrid-test")]
    assert len(threads) == 2
    assert all(thread.daemon for thread in threads)


@pytest.mark.slow
def test_close_and_fetch_wait_as_long_as_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, gate = Driver._answered, threading.Event()

    def slow(self: Driver, *given: object) -> object:
        gate.wait(GUARD_S)
        return real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Driver, "_answered", slow)
    with hybrid.connect(tmp_path) as db:
        db.create_stream("e", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
        db.watch(QUERY, name="slow")
        db.push("e", [{"ts": datetime(2024, 1, 1) + timedelta(seconds=i), "v": i} for i in range(10)])
        db.advance("e", "2024-01-01 00:01:00")
        alerts = db.watching()["slow"]
        assert alerts.fetch(wait=0.05).num_rows == 0
        assert alerts.stats()["waiting_for_history"] == 1
        db.close(wait=0.05)
    gate.set()
    with hybrid.connect(tmp_path) as db:
        assert db.watching()["slow"].fetch().num_rows == 9  # it was in the checkpoint
