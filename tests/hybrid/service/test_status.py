"""What a service says of itself: the file, the tables for people, the Prometheus endpoint."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hybrid.service.status import headline, read_status, rendered
from live.sources.base import Bad
from query.errors import DataError
from tests.hybrid.cli.test_cli import run
from tests.hybrid.services import APP, Bench, piece

RENDERED = """\
app.toml runs as process PID, since 12.0 s

 stream   events   per s             watermark   behind the clock   the newest   late   bad   again
 ──────────────────────────────────────────────────────────────────────────────────────────────────
 ticks         6     0.3   2024-01-01 00:00:03             60 min        2.0 s      1     1       2


 query     state   matches   rows   per s   suppressed   runs   spilled   reads   waiting   unread
 ─────────────────────────────────────────────────────────────────────────────────────────────────
 falls   running         1      1     0.1            0      0         0       0         0        1


 source     state   stream   read ahead
 ──────────────────────────────────────
 feed     reading    ticks            0


 sink     rows   per s   unread   oldest   failures
 ──────────────────────────────────────────────────
 alerts      0     0.0        1    9.0 s          4

sink alerts: no route to host (failed 4 times since 2024-01-01 01:00:03 UTC, again in 8 s)
"""


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """A service with something to say."""
    bench = Bench(tmp_path, APP.replace('key = "name"', 'key = "name"\nlateness = "2s"') + "[metrics]\nport = 0\n")
    source = bench.start()
    bench.sinks["alerts"].broken = OSError("no route to host")
    source.given += [piece(5, 3), piece(5, 3), Bad("feed/0", 2, b"?", "no JSON"), piece(1, first=-20, offset=3)]
    bench.step(4)
    bench.pass_s(3.0)
    source.given += [piece(4, 2, 3, first=3, offset=4)]
    bench.step()
    for _ in range(9):
        bench.pass_s(1.0)
    yield bench
    bench.stop()


def text_of(status: dict[str, Any], now: float) -> str:
    out = io.StringIO()
    Console(file=out, width=110).print(rendered(status, now))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def test_a_narrow_terminal_hides_no_figures() -> None:
    """Before: in 80 columns 66,400 events were shown as 66,…"""
    path = Path("status.json")
    figures = "matches rows rate suppressed runs spilled history_reads waiting_for_history unread"
    query = dict.fromkeys(figures.split(), 12345)
    stream = {
        "accepted": 66_400, "rate": 8_912.5, "ended": False, "watermark": "2026-11-25 01:43:45.500000", "lag_s": 1.0,
        "behind_newest_s": 1.0, "late": 10_000, "bad": 23_456, "duplicates": 34_567, "held_by": None,
    }  # fmt: skip
    status = {
        "state": "running", "pid": 1, "app": str(path), "started": 0.0, "written": 0.0, "sources": {}, "sinks": {},
        "streams": {"ticks": stream}, "queries": {"falls": {"state": "running", **query}}, "trouble": {},
    }  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=80).print(rendered(status, 1.0))
    assert "…" not in out.getvalue()
    assert "66,4" in out.getvalue()


@pytest.mark.slow
def test_tables_for_people(served: Bench) -> None:
    now = served.clock.now()
    status = read_status(served.service.app.state, lambda: now)
    assert text_of(status, now).replace(str(os.getpid()), "PID") == RENDERED


@pytest.mark.slow
def test_rates_are_those_of_the_last_seconds(served: Bench) -> None:
    assert served.service.status()["streams"]["ticks"]["rate"] == pytest.approx(3 / 9, abs=0.1)
    for _ in range(12):
        served.pass_s(1.0)
    assert served.service.status()["streams"]["ticks"]["rate"] == 0.0


@pytest.mark.slow
def test_whether_it_runs(served: Bench) -> None:
    state, now = served.service.app.state, served.clock.now()
    status = read_status(state, lambda: now)
    assert status["state"] == "running"
    silent = read_status(state, lambda: now + 60)
    assert silent["state"] == "silent"
    said = f"app.toml: process {os.getpid()} has given no sign of life for 60.0 s (silent)"
    assert headline(silent, now + 60) == said
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    (state / "status.json").write_text(json.dumps(status | {"pid": int(child.stdout)}))
    gone = read_status(state, lambda: now + 1)
    assert gone["state"] == "gone"
    assert "is not running: process" in headline(gone, now + 1)


@pytest.mark.slow
def test_commands(served: Bench) -> None:
    file, state = served.file, served.service.app.state
    told = json.loads((state / "status.json").read_text())
    # The test's clock stands in 2024: to the command the status is old.
    done = run("status", str(file), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == told | {"state": "silent"}
    shown = run("status", str(file.parent / "market"))
    assert shown.returncode == 1
    assert "has given no sign of life for" in shown.stdout
    assert "no route to host" in shown.stdout


def test_no_service(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no service has run with"):
        read_status(tmp_path)
    done = run("status", str(tmp_path))
    assert done.returncode == 1
    assert "hint: hybrid run app.toml starts one" in done.stderr
    (tmp_path / "status.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        read_status(tmp_path)


@pytest.mark.slow
def test_metrics(served: Bench) -> None:
    port = served.service.metrics.port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    for line in (
        'hybrid_events_total{stream="ticks"} 6.0', 'hybrid_late_events_total{stream="ticks"} 1.0',
        'hybrid_bad_payloads_total{stream="ticks"} 1.0', 'hybrid_duplicate_events_total{stream="ticks"} 2.0',
        'hybrid_watermark_behind_newest_seconds{stream="ticks"} 2.0', 'hybrid_rows_total{query="falls"} 1.0',
        'hybrid_unread_rows{query="falls"} 1.0', 'hybrid_history_reads_total{query="falls"} 0.0',
        'hybrid_sink_failures{sink="alerts"} 4.0', 'hybrid_source_queued_rows{source="feed"} 0.0',
        'hybrid_trouble{where="sink alerts"} 1.0',
    ):  # fmt: skip
        assert line in lines
    assert any(line.startswith('hybrid_watermark_lag_seconds{stream="ticks"} 36') for line in lines)
    assert 'hybrid_runs{query="falls"} 0.0' in lines


@pytest.mark.slow
def test_a_port_that_is_taken(served: Bench, tmp_path: Path) -> None:
    from hybrid.service.metrics import serve

    with pytest.raises(DataError, match=r"metrics cannot listen at 127\.0\.0\.1:"):
        serve("127.0.0.1", served.service.metrics.port, dict)
