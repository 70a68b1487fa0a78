"""What was pushed is kept, however the process ends: in order, by an exception, without close, or by kill -9."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.database.leaving import collect
from query.errors import DataError
from tests.archive.kills import KILLS
from tests.hybrid.processes import ROOT, environment, start_anew
from tests.hybrid.writing_child import COLUMNS, events
from tests.waiting import GUARD_S


def start(directory: Path, how: str, count: int = 2, **options: Any) -> subprocess.Popen[str]:
    given = json.dumps(options)
    return start_anew(ROOT, "-m", "tests.hybrid.writing_child", str(directory), given, how, str(count))


def values(directory: Path) -> list[int]:
    with hybrid.connect(directory, maintenance=False) as db:
        return db.sql("SELECT v FROM ticks ORDER BY v").arrow().column("v").to_pylist()


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("how", ["end", "exit", "raise", "gc"])
def test_without_close_events_go_into_files(tmp_path, how):
    """Also without a log. Before: 10 of 10 rows gone, rc 0, nothing said."""
    process = start(tmp_path, how, log=None)
    out, error = process.communicate(timeout=GUARD_S)
    assert process.returncode == (how == "raise")
    assert ("ValueError: of the user's own" in error) == (how == "raise")
    assert "hybrid:" not in error
    assert ("{'default': 10}" in out) == (how == "gc")
    assert not list((tmp_path / "ticks" / "table" / "_log").glob("*.log")) or how == "gc"
    assert values(tmp_path) == list(range(10))


@pytest.mark.slow
def test_a_database_on_disk_has_its_log(tmp_path):
    # Before: 10 of 10 rows gone.
    process = start(tmp_path, "_exit", maintenance=False)
    process.communicate(timeout=GUARD_S)
    assert process.returncode == 0
    assert list((tmp_path / "ticks" / "table").glob("20*")) == [], "nothing ran at its end"
    assert values(tmp_path) == list(range(10))


@pytest.mark.slow
def test_a_child_after_a_fork(tmp_path):
    process = start(tmp_path, "fork")
    out, error = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0
    assert f"was opened by process {process.pid}, before a fork" in out
    assert "{'default': 12}" in out
    assert "hybrid:" not in error
    assert values(tmp_path) == list(range(12))


@pytest.mark.slow
def test_threads_that_wait_for_a_database_do_not_hold_up_the_end(tmp_path):
    """A ticker, a keeper, and a thread of the user's that never stops pushing."""
    text = """if True:
        import itertools, sys, threading, time, warnings, hybrid
        from tests.hybrid.writing_child import COLUMNS, events
        db = hybrid.connect(sys.argv[1], log=None, checkpoint="1s")
        db.create_stream("ticks", COLUMNS, time="ts", idle="1s")
        pushing = lambda: [db.push("ticks", events(i, 1)) for i in itertools.count()]
        threading.Thread(target=pushing, daemon=True).start()
        time.sleep(1)
        while db.streams()["ticks"]["events"] < 100: time.sleep(0.01)
        print(db.streams()["ticks"]["events"])
        """
    done = subprocess.run(
        [sys.executable, "-c", text, str(tmp_path)], cwd=ROOT, env=environment(), capture_output=True, text=True,
        timeout=GUARD_S,
    )  # fmt: skip
    assert done.returncode == 0
    assert "was not closed" not in done.stderr
    found = values(tmp_path)
    assert found == list(range(len(found)))
    assert len(found) >= int(done.stdout) >= 100


@pytest.mark.slow
def test_a_database_that_nobody_has_any_more(tmp_path):
    db = hybrid.connect(tmp_path, log=None)
    db.create_stream("ticks", COLUMNS, time="ts", idle="30s")  # with a keeper and a ticker
    db.push("ticks", events(0, 3))
    del db
    collect()
    assert values(tmp_path) == [0, 1, 2]


@pytest.mark.slow
def test_the_log_is_left_to_who_wants_a_cache(tmp_path):
    with hybrid.connect(tmp_path) as db:
        db.create_stream("ticks", COLUMNS, time="ts")
        db.push("ticks", events(0, 3))
    assert len(list((tmp_path / "ticks" / "table" / "_log").glob("*.log"))) == 1
    with hybrid.connect(tmp_path, log=None) as db:
        db.push("ticks", events(3, 3))
    assert list((tmp_path / "ticks" / "table" / "_log").glob("*.log")) == []
    with hybrid.connect(tmp_path, log=None):
        pass
    assert values(tmp_path) == list(range(6))


def test_a_log_that_is_missing_is_said(tmp_path):
    # Before: opened without a word, and what was in it was gone.
    with hybrid.connect(tmp_path) as db:
        db.create_stream("ticks", COLUMNS, time="ts")
    (segment,) = (tmp_path / "ticks" / "table" / "_log").glob("*.log")
    segment.unlink()
    for read_only in (False, True):
        with pytest.raises(DataError, match=r"the log of ticks in .*_log is missing(.|\n)*hybrid archive repair"):
            hybrid.connect(tmp_path, read_only=read_only)


@pytest.mark.timeout(7200)
@pytest.mark.slow
def test_killed_at_any_moment(tmp_path, record_property):
    """Every event that was taken is there, once. KILLS=200 kills so many times (`make nightly`)."""
    rng = random.Random(KILLS)
    taken = 0
    for number in range(KILLS):
        count = rng.choice((1, 1, 7, 300))
        process = start(tmp_path / str(number // 20), "never", count, maintenance=rng.random() < 0.5)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "open\n"
            time.sleep(rng.uniform(0, 0.6))
        finally:
            process.kill()
        said = [int(line) for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        process.stdout.close()
        assert process.stderr is not None
        process.stderr.close()
        process.wait()
        if number % 20 == 0:
            taken = 0
        taken = max([taken, *said])
        found = values(tmp_path / str(number // 20))
        assert found == list(range(len(found)))
        assert taken <= len(found) <= taken + count
        taken = len(found)
    record_property("kills", KILLS)
    assert os.path.isdir(tmp_path / "0")


LONG = """
import hybrid, signal
db = hybrid.connect()
db.sql("SELECT 1")
print("ready", flush=True)
try:
    db.sql("SELECT count(*) FROM range(200000) a, range(100000) b WHERE (a.range * b.range) % 7 = 3")
except KeyboardInterrupt:
    again = db.sql("SELECT 2 AS n").arrow().to_pylist()
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler, again)
"""


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.4, 0.9])
def test_a_ctrl_c_ends_a_long_statement_whenever_it_comes(after_s: float) -> None:
    # Before: DuckDB dropped it where it came while the statement was planned, and the statement ran on for minutes.
    child = start_anew(ROOT, "-c", LONG, stderr=None)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(after_s)
    child.send_signal(signal.SIGINT)
    said, _ = child.communicate(timeout=GUARD_S)
    assert said == "interrupted True [{'n': 2}]\n"
