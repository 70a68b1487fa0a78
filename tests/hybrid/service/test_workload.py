"""A service with many queries of trends that are counted together, whose app file changes under load, and which is
killed while it changes: the rows of each query are those of a run that was left in peace, and each comes once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from simulator.scenario import START_US, TIMESTAMP
from tests.hybrid.processes import start
from tests.waiting import GUARD_S, until

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("KILLS_OF_WORKLOADS", "2"))
SEED = int(os.environ.get("SEED", "7"))
#: Events of a round.
EVENTS = 6_000
QUERIES = 8
APP = """
[database]
path = "db"
checkpoint = "300 ms"

[streams.moves]
columns = { ts = "TIMESTAMP", key = "VARCHAR", type = "VARCHAR", v = "BIGINT", n = "BIGINT" }
time = "ts"
key = "key"
lateness = "5 s"

[sources.feed]
stream = "moves"
type = "file"
path = "moves.ndjson"

[sinks.lines]
type = "file"
path = "lines.ndjson"
"""


def text(i: int) -> str:
    return f"""SELECT {i} AS query, m.* FROM moves MATCH_RECOGNIZE (
      PARTITION BY key ORDER BY ts GROUP BY key
      MEASURES COUNT(MATCHES) AS trends, SUM(B.v) AS total
      ONE ROW PER WINDOW PATTERN (A B+ C) WITHIN 60 SECONDS SLIDE 20 SECONDS SELECTION SKIP TILL ANY MATCH
      DEFINE A AS type = 'A' AND v > {5 * i}, B AS type = 'B' AND v < {90 - i}, C AS type = 'C') AS m"""


def app(queries: set[int]) -> str:
    return APP + "".join(f"\n[queries.q{i}]\nsql = '''{text(i)}'''\nsinks = [\"lines\"]\n" for i in sorted(queries))


def rows(directory: Path) -> list[dict[str, Any]]:
    file = directory / "lines.ndjson"
    written = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in written[: written.rfind("\n") + 1].splitlines()]  # the last one may be coming


def plain(row: dict[str, Any]) -> tuple[str, ...]:
    start, end = (str(row[name]).replace("T", " ")[:19] for name in ("window_start", "window_end"))
    return start, end, row["key"], str(row["trends"]), str(row["total"])


@pytest.mark.timeout(1200)
def test_a_workload_changes_under_load_and_the_service_is_killed(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    count, second = EVENTS * (KILLS + 1), 0
    events: list[dict[str, Any]] = []
    for n in range(count):
        second += rng.choice((0, 0, 0, 1))
        events.append({"ts": START_US + (second - rng.choice((0, 0, 3))) * 1_000_000, "key": rng.choice("abcd"),
                       "type": rng.choice("AABBC"), "v": rng.randrange(100), "n": n})  # fmt: skip
    table = pa.Table.from_pylist(events).set_column(0, "ts", pa.array([e["ts"] for e in events]).view(TIMESTAMP))
    lines = [json.dumps(r | {"ts": r["ts"].isoformat()}) + "\n" for r in table.to_pylist()]
    here = set(range(QUERIES))
    (tmp_path / "app.toml").write_text(app(here))
    with open(tmp_path / "moves.ndjson", "w", encoding="utf-8") as file:
        for turn in range(KILLS):
            file.writelines(lines[turn * EVENTS : (turn + 1) * EVENTS])
            file.flush()
            child, before = start(tmp_path), len(rows(tmp_path))
            until(lambda before=before: len(rows(tmp_path)) > before + 40)
            here = (here - {QUERIES - 1 - turn}) | {QUERIES + turn}  # one query goes, and one comes
            (tmp_path / "app.toml").write_text(app(here))
            child.send_signal(signal.SIGHUP)
            time.sleep(0.4 * rng.random())
            child.kill()
            child.communicate(timeout=GUARD_S)
        file.writelines(lines[KILLS * EVENTS :])
    whole = app(here).replace('"moves.ndjson"', '"moves.ndjson"\nfollow = false')
    (tmp_path / "app.toml").write_text(whole)
    child = start(tmp_path)
    _, said = child.communicate(timeout=GUARD_S)
    assert child.returncode == 0, said
    found = rows(tmp_path)
    assert len({row["match_id"] for row in found}) == len(found)
    for i in range(QUERIES - KILLS):  # those that were there all the time
        expected = hybrid.sql(text(i), moves=table).arrow().to_pylist()
        mine = [row for row in found if row["query"] == i]
        assert len(expected) > 100
        assert sorted(map(plain, mine)) == sorted(map(plain, expected)), i
    for i in range(QUERIES, QUERIES + KILLS):  # those that came: the windows that begin after their first one
        mine = [plain(row) for row in found if row["query"] == i]
        assert mine
        begun = min(row[1] for row in mine)
        expected = hybrid.sql(text(i), moves=table).arrow().to_pylist()
        assert sorted(r for r in mine if r[0] >= begun) == sorted(r for r in map(plain, expected) if r[0] >= begun)
