"""kill -9 anywhere in a flush: what was promised is there, nothing twice, nothing torn, and work goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from archive.history import History
from tests.archive.crash_child import POINTS, event_at
from tests.archive.events import TICKS, events_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run_until_killed(directory: Path, seed: int, point: str, count: int, seconds: float = 60) -> dict[str, int]:
    """Starts a child, kills it (or waits until it has killed itself), returns the offsets it was last promised."""
    command = [sys.executable, "-m", "tests.archive.crash_child", str(directory), str(seed), point, str(count)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            if point == "anywhere":
                time.sleep(seconds)
            else:
                child.wait(timeout=seconds)
        finally:
            child.kill()
        lines = child.stdout.read().splitlines()
    assert child.returncode == -9
    promised = {}
    for line in lines:
        words = line.split()
        if words and words[0] == "kept":  # the last line may be cut short
            promised = {name: int(number) for name, _, number in (word.partition("=") for word in words[1:])}
    return promised


def check(directory: Path, promised: dict[str, int]) -> None:
    """Each source is there up to some offset, each event once and as it was sent."""
    history = History(TICKS, directory)
    offsets = history.offsets
    for source, offset in promised.items():
        assert offsets.get(source, 0) >= offset
    for late in (False, True):
        events = events_of(history.snapshot().read(None, None, late=late))
        sent = [event_at(source, i, 0) for source, end in offsets.items() for i in range(end)]
        wanted = sorted((e.source, e.offset, e.ts_us, e.symbol, e.price) for e in sent if late or not e.late)
        assert sorted((e.source, e.offset, e.ts_us, e.symbol, e.price) for e in events) == wanted
    seqs = [e.seq for e in events]
    assert len(set(seqs)) == len(seqs)
    assert history.last_seq == max(seqs, default=-1)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(tmp_path, point):
    for seed, count in enumerate((1, 2, 12)):  # 12: around a checkpoint of the log
        promised = run_until_killed(tmp_path, seed, point, count)
        check(tmp_path, promised)


def test_killed_at_any_moment(tmp_path):
    for seed, seconds in enumerate((0.0, 0.013, 0.07, 0.2)):
        promised = run_until_killed(tmp_path, seed, "anywhere", 0, seconds)
        check(tmp_path, promised)
