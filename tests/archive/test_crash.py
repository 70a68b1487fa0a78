"""kill -9 anywhere in an append, a rewrite, retention or vacuum: what was promised is there, nothing twice, nothing
torn, and work goes on. KILLS=100 kills so many times, at all points in turn (`make nightly`)."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from archive.history import History
from archive.reader import RangeRequest
from archive.table import Table
from archive.upkeep import verify
from tests.archive import crash_child
from tests.archive.crash_child import APPENDING, MAINTAINING, POINTS, event_at
from tests.archive.events import TICKS, events_of
from tests.archive.kills import KILLS
from tests.forked import Child
from tests.waiting import GUARD_S

pytestmark = pytest.mark.slow


class Promised(NamedTuple):
    """What a killed process said: offsets that are kept, and the time before which it took out what it could."""

    offsets: dict[str, int]
    edge_us: int | None


def run_until_killed(
    directory: Path, seed: int, point: str, count: int, seconds: float = GUARD_S, role: str = "append"
) -> Promised:
    """Starts a child, kills it (or waits until it has killed itself), returns what it was last promised."""
    child = Child(crash_child.main, str(directory), str(seed), point, str(count), role)
    with child.stdout:
        try:
            assert child.stdout.readline() == "ready\n"
            if point == "anywhere":
                time.sleep(seconds)
            else:
                child.wait(seconds)
        finally:
            child.kill()
        lines = child.stdout.read().splitlines(keepends=True)
    assert child.returncode == -9
    promised, edge_us = {}, None
    for line in lines:
        words = line.split()
        if not line.endswith("\n"):
            continue  # the last line may be cut short
        if words[0] == "kept":
            promised = {name: int(number) for name, _, number in (word.partition("=") for word in words[1:])}
        if words[0] == "old":
            edge_us = max(edge_us or 0, int(words[1]))
    return Promised(promised, edge_us)


def check(directory: Path, promised: Promised) -> None:
    """Each source is there up to some offset, each event once and as it was sent, but for what was taken out."""
    history = History(TICKS, directory)
    offsets = history.offsets
    for source, offset in promised.offsets.items():
        assert offsets.get(source, 0) >= offset
    for late in (False, True):
        events = events_of(history.snapshot().read(RangeRequest(late=late)))
        sent = [event_at(source, i, 0) for source, end in offsets.items() for i in range(end)]
        wanted = sorted((e.source, e.offset, e.ts_us, e.symbol, e.price) for e in sent if late or not e.late)
        found = sorted((e.source, e.offset, e.ts_us, e.symbol, e.price) for e in events)
        if promised.edge_us is not None:
            assert set(found) <= set(wanted)
            assert len(set(found)) == len(found)
            wanted, found = ([e for e in some if e[2] >= promised.edge_us] for some in (wanted, found))
        assert found == wanted
    seqs = [e.seq for e in events]
    assert len(set(seqs)) == len(seqs)
    assert history.last_seq >= max(seqs, default=-1)
    if promised.edge_us is None:
        assert history.last_seq == max(seqs, default=-1)
    assert [f for f in verify(Table.open(directory), deep=True) if f.kind == "broken"] == []


@pytest.mark.thinned(2)
@pytest.mark.parametrize("point", APPENDING)
def test_killed_at_a_named_point(tmp_path, point):
    for seed, count in enumerate((1, 2, 12)):  # 12: around a checkpoint of the log
        promised = run_until_killed(tmp_path, seed, point, count)
        check(tmp_path, promised)


def test_killed_at_any_moment(tmp_path):
    for seed, seconds in enumerate((0.0, 0.013, 0.07, 0.2)):
        promised = run_until_killed(tmp_path, seed, "anywhere", 0, seconds)
        check(tmp_path, promised)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("point", MAINTAINING)
def test_killed_while_it_maintains(tmp_path, point):
    promised = run_until_killed(tmp_path, 1, point, 2, role="maintain")
    check(tmp_path, promised)
    again = run_until_killed(tmp_path, 2, point, 1, role="maintain")  # goes on from there
    edges = [edge for edge in (promised.edge_us, again.edge_us) if edge is not None]
    check(tmp_path, Promised(again.offsets, max(edges, default=None)))


@pytest.mark.timeout(3600)
def test_many_kills(tmp_path, capsys):
    rng = random.Random(KILLS)
    hits: Counter[str] = Counter()
    edge_us = None
    for number in range(KILLS):
        point = POINTS[number % len(POINTS)] if 10 * number < 9 * KILLS else "anywhere"
        directory = tmp_path / str(number // 20)  # twenty kills, one after the other, of one archive
        edge_us = None if number % 20 == 0 else edge_us
        count, seconds = rng.choice((1, 2, 3, 5)), rng.uniform(0, 1) if point == "anywhere" else 120
        promised = run_until_killed(directory, number, point, count, seconds, role="maintain")
        hits[point] += 1
        edge_us = max((edge for edge in (edge_us, promised.edge_us) if edge is not None), default=None)
        check(directory, Promised(promised.offsets, edge_us))
    with capsys.disabled():
        sys.stdout.write(f"\n{KILLS} kills: " + ", ".join(f"{point} {count}" for point, count in hits.items()) + "\n")
    assert KILLS < 60 or min(hits[point] for point in POINTS) >= 3
