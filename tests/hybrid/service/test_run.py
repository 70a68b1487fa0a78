"""`hybrid run` as a process: signals, a file that changes, figures while it runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import hybrid
from hybrid.cli import run as command
from hybrid.service.status import read_status
from tests.hybrid.processes import environment, start, start_anew, status
from tests.waiting import GUARD_S, until

pytestmark = pytest.mark.slow

APP = """
[database]
path = "market"
checkpoint = "300 ms"

[streams.ticks]
columns = { ts = "TIMESTAMP", symbol = "VARCHAR", price = "DOUBLE", volume = "BIGINT" }
time = "ts"
key = "symbol"

[sources.feed]
stream = "ticks"
type = "stock"
events = 100_000
rate = 1000

[queries.large]
sql = "SELECT * FROM ticks MATCH_RECOGNIZE (MEASURES A.symbol AS symbol, A.volume AS v PATTERN (A) DEFINE A AS volume > 2000)"
sinks = ["alerts"]

[sinks.alerts]
type = "file"
path = "alerts.ndjson"
"""  # noqa: E501


def rows(directory: Path) -> list[dict[str, object]]:
    file = directory / "alerts.ndjson"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def told_of(directory: Path) -> dict[str, Any]:
    """The status, without a process for the question; of a service that has not said anything yet, an empty one."""
    try:
        return read_status(directory / "market" / "_service")
    except hybrid.DataError:
        return {"state": "", "queries": {}, "trouble": {}}


@pytest.mark.slow
@pytest.mark.nightly
def test_sigterm_then_on_from_there(tmp_path: Path) -> None:
    """Two runs, each ended by SIGTERM: every event is archived once, every row delivered once."""
    (tmp_path / "app.toml").write_text(APP)
    for run in range(2):
        before = len(rows(tmp_path))
        child = start_anew(tmp_path)
        until(lambda before=before: len(rows(tmp_path)) > before + 5)
        if run == 0:
            until(lambda: told_of(tmp_path)["state"] == "running")
            told = status(tmp_path)
            assert (told["state"], told["code"], told["pid"]) == ("running", 0, child.pid)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=GUARD_S)
        assert child.returncode == 0, said
        assert "stopping" in said
        assert "stopped" in said
    assert status(tmp_path)["state"] == "stopped"
    with hybrid.connect(tmp_path / "market") as db:
        events = db.sql("SELECT count(*) AS n, count(*) FILTER (volume > 2000) AS large FROM ticks").arrow().to_pylist()
        reached = db.reached("ticks").positions
    assert reached == {"stock/1": events[0]["n"]}
    found = rows(tmp_path)
    assert len({row["match_id"] for row in found}) == len(found) == events[0]["large"]


def test_sighup_and_a_changed_file(tmp_path: Path) -> None:
    (tmp_path / "app.toml").write_text(APP)
    child = start(tmp_path)
    until(lambda: rows(tmp_path))
    more = APP + APP[APP.index("[queries") : APP.index("[sinks")].replace("queries.large", "queries.more")
    (tmp_path / "app.toml").write_text(more)  # seen without a signal
    until(lambda: "more" in told_of(tmp_path)["queries"])
    (tmp_path / "app.toml").write_text(APP.replace("volume >", "volum >"))
    child.send_signal(signal.SIGHUP)
    until(lambda: "app" in told_of(tmp_path)["trouble"])
    assert "more" in status(tmp_path)["queries"]
    (tmp_path / "app.toml").write_text(APP)
    child.send_signal(signal.SIGHUP)
    until(lambda: "more" not in told_of(tmp_path)["queries"])
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=GUARD_S)
    assert child.returncode == 0, said
    assert "ticks has no column volum" in said
    assert said.count("reloaded app.toml") >= 2


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """The sink is a server that never answers, which is waited for only once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        (tmp_path / "app.toml").write_text(
            APP.replace('type = "file"\npath = "alerts.ndjson"', f'type = "webhook"\nurl = "{url}"')
        )
        child = start(tmp_path)
        connection, _ = server.accept()
        with connection:
            child.send_signal(signal.SIGTERM)
            until(lambda: "stopping" in child.stderr.readline())
            child.send_signal(signal.SIGTERM)
            child.communicate(timeout=GUARD_S)
            assert child.returncode == -signal.SIGTERM


FALLS = """
[queries.falls]
sql = '''SELECT * FROM ticks MATCH_RECOGNIZE (
  PARTITION BY symbol ORDER BY ts MEASURES A.price AS high, LAST(D.price) AS low, count(*) AS n PATTERN (A D{2,} U)
  DEFINE D AS price < PREV(price), U AS price > PREV(price))'''
sinks = ["alerts"]
"""


def killed(directory: Path, queries: str, lines: list[str], more: Sequence[int], step: int) -> None:
    """Runs a service over a file that grows by `step` lines, and kills it once it has given so many more rows: as often
    as there are numbers in `more`. Then it reads all lines and ends by itself."""
    app = APP[: APP.index("[sources")] + queries + APP[APP.index("[sinks") :]
    (directory / "app.toml").write_text(
        app + '[sources.feed]\nstream = "ticks"\ntype = "file"\npath = "ticks.ndjson"\n'
    )
    with open(directory / "ticks.ndjson", "w", encoding="utf-8") as file:
        for run, least in enumerate(more):
            file.writelines(lines[run * step : (run + 1) * step])
            file.flush()
            child, before = start(directory), len(rows(directory))
            until(lambda before=before, least=least: len(rows(directory)) > before + least)
            time.sleep(0.13 * run)
            child.kill()
            child.communicate(timeout=GUARD_S)
        file.writelines(lines[len(more) * step :])
    (directory / "app.toml").write_text((directory / "app.toml").read_text() + "follow = false\n")
    child = start(directory)
    _, said = child.communicate(timeout=GUARD_S)
    assert child.returncode == 0, said


def test_killed_and_started_again(tmp_path: Path) -> None:
    """A file that grows, and a service that is killed four times, at times of its own: every event is archived once,
    and by their ids the rows are those of a run that was left in peace."""
    from simulator.stock import walk

    events = walk(7, 40_000, 50)
    lines = [json.dumps(row | {"ts": row["ts"].isoformat()}) + "\n" for row in events.to_pylist()]
    killed(tmp_path, FALLS, lines, (20, 40, 60, 80), 8000)
    expected = hybrid.sql(FALLS.split("'''")[1], ticks=events).arrow().to_pylist()
    found = {row["match_id"]: row for row in rows(tmp_path)}
    assert len(expected) > 500
    wanted = sorted(tuple(row[k] for k in ("symbol", "high", "low", "n")) for row in expected)
    assert sorted(tuple(row[k] for k in ("symbol", "high", "low", "n")) for row in found.values()) == wanted
    with hybrid.connect(tmp_path / "market") as db:
        counted = db.sql("SELECT count(*) AS n, count(DISTINCT (ts, symbol)) AS d FROM ticks").arrow().to_pylist()
    assert counted == [{"n": 40_000, "d": 40_000}]


WINDOWS = """
[queries.trends]
sql = '''SELECT * FROM ticks MATCH_RECOGNIZE (
  PARTITION BY symbol ORDER BY ts GROUP BY symbol MEASURES COUNT(MATCHES) AS n, SUM(A.volume) AS v, MIN(A.price) AS low
  ONE ROW PER WINDOW PATTERN (A+ B) WITHIN 2 SECONDS SLIDE 1 SECOND
  DEFINE A AS count(A.*) = 1 OR abs(price - LAST(A.price, 1)) < 0.2, B AS price > 1.0001 * LAST(A.price))'''
sinks = ["alerts"]

[queries.pairs]
sql = '''FROM ticks TYPE BY symbol PATTERN SEQ(S0001 a, S0002 b) AND S0003+ c
  WITHIN 2 SECONDS SLIDE 1 SECOND RETURN COUNT(*) AS n, SUM(c.volume) AS v'''
sinks = ["alerts"]
"""


def test_killed_while_windows_are_open(tmp_path: Path) -> None:
    """By their ids the rows of windows are those of a run that was left in peace, each once, whatever was open when the
    service was killed."""
    from simulator.stock import walk

    events = walk(7, 20_000, 50)
    lines = [json.dumps(row | {"ts": row["ts"].isoformat()}) + "\n" for row in events.to_pylist()]
    killed(tmp_path, WINDOWS, lines, (20, 20, 20), 5000)
    found = {str(row.pop("match_id")): row for row in rows(tmp_path) if row.pop("query")}
    ends = [lines[n] for n in (5000, 10_000, 15_000)]
    assert len({json.loads(line)["ts"][:19] for line in ends}) == 3  # a window is open at each of them
    wanted = []
    for text in WINDOWS.split("'''")[1::2]:
        listed = hybrid.sql(text, ticks=events).arrow().to_pylist()
        assert len(listed) > 15
        wanted += [{k: v.isoformat() if k.startswith("window") else v for k, v in row.items()} for row in listed]

    def key(row: dict[str, object]) -> str:
        return json.dumps({k: str(v)[:19] if k.startswith("window") else v for k, v in row.items()})

    assert sorted(map(key, found.values())) == sorted(map(key, wanted))


def test_a_database_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "market").write_text("a file")
    (tmp_path / "app.toml").write_text(APP.replace('path = "market"', 'path = "market"\nstate = "state"'))
    child = start(tmp_path)
    _, said = child.communicate(timeout=GUARD_S)
    assert child.returncode == 1
    assert "is a file" in said


def test_top(tmp_path: Path) -> None:
    (tmp_path / "app.toml").write_text(APP)
    child = start(tmp_path)
    until(lambda: rows(tmp_path))
    until(lambda: (tmp_path / "market/_service/status.json").exists())
    options = {"TERM": "dumb", "COLUMNS": "120"}
    with open(tmp_path / "shown", "w", encoding="utf-8") as file:
        top = start_anew(tmp_path, "-m", "hybrid", "top", env=environment() | options, stdout=file)
    # Before: interrupted after 4 s, when on a slow machine it was still importing.
    until(lambda: "large" in (tmp_path / "shown").read_text())
    top.send_signal(signal.SIGINT)
    _, said = top.communicate(timeout=GUARD_S)
    assert top.returncode == 0, said
    assert f"app.toml runs as process {child.pid}" in (tmp_path / "shown").read_text()
    child.terminate()
    child.communicate(timeout=GUARD_S)


def test_sighup_before_the_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: it ended the process without a word."""
    asked: list[bool] = []

    class Running:
        abandoned = False

        def __init__(self, *_: object) -> None:
            self.reloads = SimpleNamespace(asked=False)

        def run(self) -> int:
            asked.append(self.reloads.asked)
            return 0

    monkeypatch.setattr("hybrid.service.service.Service", Running)
    before = signal.getsignal(signal.SIGHUP)
    for number in (None, signal.SIGHUP):
        monkeypatch.setattr("hybrid.cli.run.checked", lambda _, n=number: n is not None and os.kill(os.getpid(), n))
        with pytest.raises(typer.Exit):
            command.run(tmp_path / "app.toml")
    assert asked == [False, True]
    assert signal.getsignal(signal.SIGHUP) == before
