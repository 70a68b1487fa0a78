"""People at a terminal see how far a statement is, once it takes long, and nothing of that when it has ended."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest

import hybrid
from archive import ingest as ingesting
from hybrid.statement import compile_notice, progress
from hybrid.statement.progress import Far, of_statement
from hybrid.watch import backfill
from hybrid.watch.flow import Flow
from query.stopping import Stop, expect, heed, stopping
from tests.waiting import until

ROWS = 200_000
TICKS = pa.table({"ts": range(ROWS), "price": [(i * 7919) % 101 for i in range(ROWS)]})
FALLS = """SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(price) AS low
    PATTERN (A B+) DEFINE B AS price < PREV(price))"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """What was shown, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue())


def terminal(monkeypatch: pytest.MonkeyPatch, patience_s: float = 0.05) -> Terminal:
    """Makes stderr a terminal; called in the test, whose stderr pytest replaces after the fixtures."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    return found


def shows(seen: Terminal, text: str) -> None:
    """Waits until a terminal has shown a text."""
    until(lambda: text in seen.text(), seen=seen.text)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "hybrid-progress"]


def test_long_work_shows_how_far_it_is_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = terminal(monkeypatch)
    done = 0
    with progress.progress(lambda: Far(f"{done} of 4 parts", done, 4)):
        for done in range(5):
            shows(seen, f"{done} of 4 parts")
    assert seen.getvalue().endswith("\x1b[1A\x1b[2K"), "the line is erased"
    assert threads() == []


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = terminal(monkeypatch, 30.0)
    with progress.progress(lambda: Far("work")):
        assert threads() == ["hybrid-progress"]
    assert seen.getvalue() == ""
    assert threads() == []


def test_only_terminals_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.progress(lambda: Far("work")):
        assert threads() == []
    monkeypatch.setattr(sys, "stderr", None)
    with progress.progress(lambda: Far("work")):
        assert threads() == []


def test_work_inside_of_work_shows_only_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = terminal(monkeypatch)
    with progress.progress(lambda: Far("outer")):
        shows(seen, "outer")
        with progress.progress(lambda: Far("inner")):
            assert threads() == ["hybrid-progress"]
            time.sleep(0.2)
        shows(seen, "outer")
    assert "inner" not in seen.text()


def test_the_line_says_that_kernels_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the notice of that does not write into it."""
    seen = terminal(monkeypatch)
    monkeypatch.setattr(compile_notice, "PATIENCE_S", 0.0)
    monkeypatch.setattr(compile_notice, "COMPILED_S", 0.0)
    with progress.progress(lambda: Far("work")):
        shows(seen, "work")
        with compile_notice.noticed():
            shows(seen, compile_notice.TEXT[:40])
        at = seen.text().rindex(compile_notice.TEXT[:40])
        shows(seen, "work")
    assert " 0:00:0" in seen.text()[at:], "a line of progress"
    assert not compile_notice.told_elsewhere


@pytest.mark.parametrize("end", [KeyboardInterrupt, ValueError])
def test_an_error_erases_the_line(end: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = terminal(monkeypatch)

    def work() -> None:
        with progress.progress(lambda: Far("work")):
            shows(seen, "work")
            raise end

    with pytest.raises(end):
        work()
    assert seen.getvalue().endswith("\x1b[1A\x1b[2K")
    assert threads() == []


def slow_batches(monkeypatch: pytest.MonkeyPatch, seen: Terminal) -> None:
    """Makes the first batch last until the line has been drawn."""

    def slowly(rows: int) -> None:
        heed(rows)
        shows(seen, f" of {ROWS:,} rows matched")

    monkeypatch.setattr("matching.drive.heed", slowly)


@pytest.mark.slow
def test_a_statement_tells_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid.sql(FALLS, ticks=TICKS)  # compiles
    seen = terminal(monkeypatch, 0.0)
    slow_batches(monkeypatch, seen)
    found = hybrid.sql(FALLS, ticks=TICKS).arrow()
    assert found.num_rows > 1000


def test_rows_that_are_matched_after_an_input_that_is_read_meanwhile() -> None:
    stop = Stop()
    with stopping(stop):
        heed(9000)
        expect(1000)
        # Before: 9,000 rows of 1,000, "putting their matches together".
        assert of_statement(stop)() == Far("9,000 of 10,000 rows matched", 9000, 10_000)
        expect(500)
        assert stop.total == 10_500


def test_a_backtest_tells_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with hybrid.connect() as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "price": "BIGINT"}, time="ts")
        db.push("ticks", TICKS.set_column(0, "ts", TICKS["ts"].cast(pa.timestamp("us"))))
        seen = terminal(monkeypatch, 0.0)
        slow_batches(monkeypatch, seen)
        rows = db.backtest(FALLS, "1970-01-01").arrow().num_rows
        assert rows > 1000


def test_what_a_statement_does() -> None:
    assert of_statement(Stop())() == Far("reading")
    assert of_statement(Stop(rows=5000))() == Far("5,000 rows matched", 5000, None)
    assert of_statement(Stop(rows=5000, total=9000))() == Far("5,000 of 9,000 rows matched", 5000, 9000)
    assert of_statement(Stop(rows=9000, total=9000))() == Far("9,000 rows matched, putting their matches together")


def pushed(db: hybrid.Database) -> None:
    db.create_stream("ticks", {"ts": "TIMESTAMP", "price": "BIGINT"}, time="ts")
    db.push("ticks", TICKS.set_column(0, "ts", TICKS["ts"].cast(pa.timestamp("us"))))


def waiting(monkeypatch: pytest.MonkeyPatch, seen: Terminal, owner: object, name: str, text: str) -> None:
    """Makes each call of a function wait until a terminal has shown a text."""
    plain = getattr(owner, name)

    def slow(*given: object) -> object:
        shows(seen, text)
        return plain(*given)

    monkeypatch.setattr(owner, name, slow)


def test_a_live_query_that_begins_in_the_past_tells_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    with hybrid.connect() as db:
        pushed(db)
        seen = terminal(monkeypatch, 0.0)
        # Before: nothing, as for the others below.
        waiting(monkeypatch, seen, backfill, "guarded", f" of {ROWS - 1:,} events of the past matched")
        text = FALLS.replace("DEFINE", "WITHIN INTERVAL 1 SECOND DEFINE")
        assert db.watch(text, start="1970-01-01").fetch().num_rows > 1000


def test_a_push_of_many_rows_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with hybrid.connect() as db:
        seen = terminal(monkeypatch, 0.0)
        with monkeypatch.context() as patch:
            waiting(patch, seen, Flow, "give", f"pushing to ticks: {ROWS:,} rows")
            pushed(db)
        before = seen.text()
        db.push("ticks", [{"ts": datetime(1970, 1, 2), "price": 1}])
        assert seen.text() == before, "few rows take no thread"


def test_a_rewind_tells_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    with hybrid.connect() as db:
        pushed(db)
        seen = terminal(monkeypatch, 0.0)
        waiting(monkeypatch, seen, Flow, "give", "0 of 49,999 events replayed")
        db.rewind("ticks", 150_000)


@pytest.mark.slow
def test_an_import_tells_its_rows_unless_the_caller_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text("ts,price\n" + "".join(f"2024-01-01 00:00:{i:02},{i}\n" for i in range(60)))
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "price": "BIGINT"}, time="ts")
        seen = terminal(monkeypatch, 0.0)
        steps: list[object] = []
        db.ingest("ticks", tmp_path / "one.csv", progress=steps.append)
        assert steps
        assert seen.text() == ""
        waiting(monkeypatch, seen, ingesting, "_listed", ": 60 rows")
        db.ingest("ticks", tmp_path / "two.csv")
