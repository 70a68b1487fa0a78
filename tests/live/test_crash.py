"""kill -9 anywhere between a push and the alert that comes of it: after a restart the archive has each accepted event
once, and the alerts, read by their ids, are those of a run without end. KILLS=200 kills so many times."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from archive.table import Table
from archive.upkeep import verify
from tests.archive.kills import KILLS
from tests.live import crash_child
from tests.live.crash_child import EVENTS, POINTS, SOURCES, event_at

pytestmark = pytest.mark.slow

#: Children begin with everything loaded, and with no thread.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["tests.live.crash_child"])


def run(directory: Path, policy: str | None, seed: int, point: str = "", count: int = 1) -> int | None:
    """Runs a child to its end; how it ended."""
    child = CHILDREN.Process(target=crash_child.run, args=(str(directory), policy, seed, point, count))
    child.start()
    try:
        child.join(120)
    finally:
        child.kill()
    return child.exitcode


@pytest.fixture(scope="module")
def wanted() -> dict[tuple[str, str], list[dict[str, str]]]:
    """The alerts of a run without end."""
    db, alerts = crash_child.opened(None, None)
    for i in range(EVENTS):
        for source in SOURCES:
            db.push("ticks", [event_at(source, i)], source, i)
    db.advance("ticks", None)
    found = by_id(crash_child.rows_of(alerts))
    assert len(found) > 10
    assert len({name for name, _ in found}) == len(crash_child.QUERIES)
    assert db.streams()["ticks"]["late"] == 0
    return found


def by_id(rows: list[list[Any]]) -> dict[tuple[str, str], list[dict[str, str]]]:
    """The rows of each id, each once: a row that comes again is the same."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for name, key, row in rows:
        some = found.setdefault((name, key), [])
        if row not in some:
            some.append(row)
    return found


def written(directory: Path) -> list[list[Any]]:
    """The alerts in the file; a line that was cut short is no alert yet."""
    rows = []
    for line in (directory / "alerts.ndjson").read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            # what was cut short, and what was written behind it: the alert comes again, because it was not kept
            start = line.rfind('["')
            while start > 0:
                try:
                    rows.append(json.loads(line[start:]))
                    break
                except json.JSONDecodeError:
                    start = line.rfind('["', 0, start)
    return rows


def check(directory: Path, wanted: dict[tuple[str, str], list[dict[str, str]]]) -> None:
    assert (directory / "done").exists()
    assert by_id(written(directory)) == wanted
    table = Table.open(directory / "db" / "ticks" / "table")
    db, _ = crash_child.opened(directory / "db", None)
    rows = db.sql("SELECT ts, k, v FROM ticks").arrow().to_pylist()
    sent = [event_at(source, i) for source in SOURCES for i in range(EVENTS)]
    assert sorted(map(str, rows)) == sorted(map(str, sent))
    assert [f for f in verify(table, deep=True) if f.kind == "broken"] == []


@pytest.mark.parametrize(("point", "policy"), [(p, ("fsync", "os", None)[i % 3]) for i, p in enumerate(POINTS)])
def test_killed_at_a_named_point(tmp_path, wanted, point, policy):
    if policy is None and "log" in point:
        policy = "os"
    assert run(tmp_path, policy, 1, point, 2) == -9
    assert run(tmp_path, policy, 2) == 0
    check(tmp_path, wanted)


@pytest.mark.timeout(3600)
def test_many_kills(tmp_path, wanted, capsys):
    rng = random.Random(KILLS)
    hits: Counter[str] = Counter()
    points: list[str] = []
    rounds = 0
    while sum(hits.values()) < KILLS:
        rounds += 1
        directory, policy = tmp_path / str(rounds), rng.choice(("fsync", "os", None))
        directory.mkdir()
        for seed in range(8):
            points = points or rng.sample(POINTS, len(POINTS))
            if run(directory, policy, seed, points[-1], rng.choice((1, 2, 4))) != -9:
                break
            hits[points.pop()] += 1
        if not (directory / "done").exists():
            assert run(directory, policy, 99) == 0
        check(directory, wanted)
    with capsys.disabled():
        sys.stdout.write(f"\n{sum(hits.values())} kills: " + ", ".join(f"{p} {n}" for p, n in hits.items()) + "\n")
    assert KILLS < 100 or min(hits[point] for point in POINTS) >= 5
