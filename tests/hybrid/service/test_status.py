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

from hybrid.cli.run import _said
from hybrid.service.status import headline, lines, read_status, rendered
from live.sources.base import Bad
from query.errors import DataError
from tests.hybrid.cli.test_cli import run
from tests.hybrid.services import APP, Bench, piece
from tests.waiting import GUARD_S

RENDERED = """\
app.toml runs as process PID, since 12.0 s

                                               behind     the
stream  events  per s            watermark  the clock  newest  late  bad  again
ticks        6    0.3  2024-01-01 00:00:03     60 min   2.0 s     1    1      2

query    state  matches  rows  per s  unread
falls  running        1     1    0.1       1

                          read
source    state  stream  ahead
feed    reading   ticks      0

sink    rows  per s  unread  oldest  failures
alerts     0    0.0       1   9.0 s         4

sink alerts: no route to host (failed 4 times since 2024-01-01 01:00:03 UTC,
again in 8 s)
"""
LINES = """\
app.toml runs as process PID, since 12.0 s
stream ticks: events 6, per s 0.3, watermark 2024-01-01 00:00:03, behind the clock 60 min, \
the newest 2.0 s, late 1, bad 1, again 2
query falls: state running, matches 1, rows 1, per s 0.1, suppressed 0, runs 0, spilled 0, reads 0, waiting 0, unread 1
source feed: state reading, stream ticks, read ahead 0
sink alerts: rows 0, per s 0.0, unread 1, oldest 9.0 s, failures 4
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


def text_of(status: dict[str, Any], now: float, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(rendered(status, now, width))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def large(name: str) -> dict[str, Any]:
    """A status with a stream and a query of this name and long figures."""
    figures = "matches rows rate suppressed runs spilled history_reads waiting_for_history unread"
    query = dict.fromkeys(figures.split(), 12345)
    stream = {
        "accepted": 66_400, "rate": 8_912.5, "ended": False, "watermark": "2026-11-25 01:43:45.500000", "lag_s": 1.0,
        "behind_newest_s": 1.0, "late": 10_000, "bad": 23_456, "duplicates": 34_567_890, "held_by": None,
    }  # fmt: skip
    return {
        "state": "running", "pid": 1, "app": "app.toml", "started": 0.0, "written": 0.0, "sources": {}, "sinks": {},
        "streams": {name: stream}, "queries": {name: {"state": "running", **query}}, "trouble": {},
    }  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", ["ticks", "a_query_with_a_name_of_forty_letters____"])
def test_a_terminal_of_any_width_hides_no_figures(width: int, name: str) -> None:
    """Before: in 80 columns 66,400 events were shown as 66,…; later a figure had two lines."""
    text = text_of(large(name), 1.0, width)
    assert max(map(len, text.splitlines())) <= width
    for figure in (name, "66,400", "8,912.5", "2026-11-25 01:43:45", "10,000", "23,456", "34.6 M", "12,345"):
        assert figure in text


def test_pipes_get_a_line_for_each_thing_with_all_digits() -> None:
    assert lines(large("ticks"), 1.0) == [
        "app.toml runs as process 1, since 1.0 s",
        "stream ticks: events 66,400, per s 8,912.5, watermark 2026-11-25 01:43:45, behind the clock 1.0 s, "
        "the newest 1.0 s, late 10,000, bad 23,456, again 34,567,890",
        "query ticks: state running, matches 12,345, rows 12,345, per s 12,345, suppressed 12,345, runs 12,345, "
        "spilled 12,345, reads 12,345, waiting 12,345, unread 12,345",
    ]


@pytest.mark.parametrize(
    ("silent_s", "told"),
    [
        (0.0, "which is behind the others"), (None, "which is behind the others"), (9.9, "which is behind the others"),
        (10.0, "which has sent nothing for 10.0 s"), (7200.0, "which has sent nothing for 2 h"),
    ],
)  # fmt: skip
def test_only_a_source_that_sends_nothing_is_told_so(silent_s: float | None, told: str) -> None:
    """Before: `silent since` of a source that had just delivered, and was behind."""
    status = large("ticks")
    status["streams"]["ticks"] |= {"held_by": "feed/0", "held_since": "2026-11-25 01:43:45", "held_s": silent_s}
    said = f"the watermark of ticks waits for feed/0, {told}"
    assert said in lines(status, 1.0)
    assert said in text_of(status, 1.0)
    assert "silent" not in text_of(status, 1.0)


@pytest.mark.parametrize("value", ["99,999", "100 k", "123 k", "1.23 M", "45.7 M", "1.00 G", "-123 k", "8,912.5"])
def test_large_figures_have_three_digits(value: str) -> None:
    given = {"99,999": 99_999, "100 k": 100_000, "123 k": 123_456, "1.23 M": 1_234_567, "45.7 M": 45_678_901,
             "1.00 G": 1_000_000_000, "-123 k": -123_456, "8,912.5": 8_912.5}[value]  # fmt: skip
    status = large("ticks")
    status["queries"]["ticks"]["runs"] = given
    assert value in text_of(status, 1.0, 200)


@pytest.mark.slow
def test_tables_for_people(served: Bench) -> None:
    now = served.clock.now()
    status = read_status(served.service.app.state, lambda: now)
    assert text_of(status, now).replace(str(os.getpid()), "PID") == RENDERED
    assert "\n".join(lines(status, now)).replace(str(os.getpid()), "PID") + "\n" == LINES


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
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=GUARD_S) as answer:
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


def test_a_status_has_no_control_characters_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Before: the answer of a webhook, or the name of a file, forged lines and colours.
    bench = Bench(tmp_path)
    bench.start()
    forged = "sorry\x1b[2J\r\n2024-01-01 00:00:00 all is well"
    bench.sinks["alerts"].broken = OSError(forged)
    next(iter(bench.sources.values())).given.append(piece(5, 3))
    bench.step(3)
    told = bench.status()
    console = Console(file=io.StringIO(), width=200)
    console.print(rendered(told, told["written"], 200))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for text in ("\n".join(lines(told, told["written"])), shown):
        assert "\x1b" not in text
        assert "\r" not in text
        assert r"sorry\x1b[2J\r" in text
        assert not any(line.startswith("2024-01-01 00:00:00 all") for line in text.split("\n"))
    _said(bench.said[-1] + forged)
    bench.stop()
    logged = capsys.readouterr().err
    assert "\x1b" not in logged
    assert not any(line.startswith("2024-01-01 00:00:00 all") for line in logged.split("\n"))
