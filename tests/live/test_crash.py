"""kill -9 anywhere between a push and the alert that comes of it: after a restart the archive has each accepted event
once, and the alerts, read by their ids, are those of a run without end. KILLS=200 kills so many times."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybrid
from archive import partials
from archive.table import Table
from archive.upkeep import verify
from live.sinks.json_lines import json_lines
from tests.archive import partial_segments
from tests.archive.kills import KILLS
from tests.forked import CHILDREN
from tests.live import crash_child, crash_service
from tests.live.crash_child import EVENTS, POINTS, SOURCES, event_at

pytestmark = pytest.mark.slow


def run(
    directory: Path, policy: str | None, seed: int, point: str = "", count: int = 1, child: Any = crash_child
) -> int | None:  # fmt: skip
    """Runs a child to its end; how it ended."""
    process = CHILDREN.Process(target=child.run, args=(str(directory), policy, seed, point, count))
    process.start()
    try:
        process.join(120)
    finally:
        process.kill()
    return process.exitcode


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
    check_archive(directory)


def check_archive(directory: Path) -> None:
    """It has each event once."""
    table = Table.open(directory / "db" / "ticks" / "table")
    with hybrid.connect(directory / "db", maintenance=False) as db:
        rows = db.sql("SELECT ts, k, v FROM ticks").arrow().to_pylist()
    sent = [event_at(source, i) for source in SOURCES for i in range(EVENTS)]
    assert sorted(map(str, rows)) == sorted(map(str, sent))
    assert [f for f in verify(table, deep=True) if f.kind == "broken"] == []
    assert partial_segments.check(directory / "db" / partials.PARTIALS) == []


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("point", "policy"), [(p, ("fsync", "os", None)[i % 3]) for i, p in enumerate(POINTS)])
def test_killed_at_a_named_point(tmp_path, wanted, point, policy):
    if policy is None and "log" in point:
        policy = "os"
    assert run(tmp_path, policy, 1, point, 2) == -9
    assert run(tmp_path, policy, 2) == 0
    check(tmp_path, wanted)


@pytest.fixture(scope="module")
def wanted_in_sinks() -> dict[str, list[str]]:
    """What the sinks of a service that is left in peace have, by the queries of a database in memory."""
    db, alerts = crash_child.opened(None, None)
    for i in range(EVENTS):
        for source in SOURCES:
            db.push("ticks", [event_at(source, i)], source, i)
    db.advance("ticks", None)
    found = {
        name: [json.loads(line) | {"query": name} for line in json_lines(watch.take())]
        for name, watch in alerts.items()
    }
    return {"lines": texts(found["falls"] + found["passing"]), "parts": texts(found["falls"])}


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def check_sinks(directory: Path, wanted: dict[str, list[str]]) -> None:
    """Files have each row once, whatever came twice."""
    assert (directory / "done").exists()
    assert {name: texts(rows) for name, rows in crash_service.rows_in(directory).items()} == wanted
    check_archive(directory)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("point", "policy"), [(p, ("fsync", "os", None)[i % 3]) for i, p in enumerate(crash_service.POINTS)]
)
def test_killed_on_the_way_into_a_sink(tmp_path, wanted_in_sinks, point, policy):
    assert run(tmp_path, policy, 1, point, 2, crash_service) == -9
    assert run(tmp_path, policy, 2, child=crash_service) == 0
    check_sinks(tmp_path, wanted_in_sinks)


@pytest.mark.timeout(3600)
def test_many_kills(tmp_path, wanted, capsys):
    kills = KILLS * len(POINTS) // (len(POINTS) + len(crash_service.POINTS))
    with capsys.disabled():
        killed_often(tmp_path, crash_child, kills, lambda directory: check(directory, wanted))


@pytest.mark.timeout(3600)
def test_many_kills_of_a_service(tmp_path, wanted_in_sinks, capsys):
    kills = -(-KILLS * len(crash_service.POINTS) // (len(POINTS) + len(crash_service.POINTS)))
    with capsys.disabled():
        killed_often(tmp_path, crash_service, kills, lambda directory: check_sinks(directory, wanted_in_sinks))


def killed_often(tmp_path: Path, child: Any, kills: int, check: Callable[[Path], None]) -> None:
    """Kills children at their points in turn, some of them several times over one database."""
    rng = random.Random(kills)
    hits: Counter[str] = Counter()
    points: list[str] = []
    rounds = 0
    while sum(hits.values()) < kills:
        rounds += 1
        directory, policy = tmp_path / str(rounds), rng.choice(("fsync", "os", None))
        directory.mkdir()
        for seed in range(8):
            points = points or rng.sample(child.POINTS, len(child.POINTS))
            if run(directory, policy, seed, points[-1], rng.choice((1, 2, 4)), child) != -9:
                break
            hits[points.pop()] += 1
        if not (directory / "done").exists():
            assert run(directory, policy, 99, child=child) == 0
        check(directory)
    sys.stdout.write(f"\n{sum(hits.values())} kills: " + ", ".join(f"{p} {n}" for p, n in hits.items()) + "\n")
    assert KILLS < 100 or min(hits[point] for point in child.POINTS) >= 5
