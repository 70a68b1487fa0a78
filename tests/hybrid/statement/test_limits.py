"""The limits of a statement: time, memory, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import hybrid
from archive.sorting import sorting
from hybrid.cli import app
from hybrid.rows.duck import interruptible
from query.errors import DataError, QueryError
from query.language import duck as language_duck
from query.stopping import Stop, stopping

N = 60_000
ROWS = pa.table({"ts": np.arange(N), "p": np.arange(N) % 1000 / 10.0, "s": [f"t{i % 7}" for i in range(N)]})
#: Every row begins a run that never ends; it keeps each of its rows, as the next one is bound to another variable.
LONG = """FROM rows MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN ((A C)+ B)
    DEFINE A AS p >= 0, B AS p > 1000 + FIRST(A.p) * FIRST(A.p)) AS m"""
#: The same in the reference.
SLOW = LONG.replace("p > 1000 + FIRST(A.p) * FIRST(A.p)", "damerau_levenshtein(s, FIRST(A.s)) > 1000")
#: The same in DuckDB.
JOINED = "SELECT count(*) FROM range(100_000_000) a, range(100_000) b WHERE a.range * b.range % 7 = 3"

#: Seconds of processor time of the thread that waits; a statement that nothing ends takes minutes of it.
SOON_S = 15


def message_of(run: Callable[[], Any]) -> tuple[str, float]:
    begin = time.thread_time()
    with pytest.raises(QueryError) as caught:
        run()
    return str(caught.value), time.thread_time() - begin


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("text", [LONG, SLOW, JOINED])
@pytest.mark.parametrize("timeout", [0.5, "500 ms", timedelta(milliseconds=500)])
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_a_statement_ends_after_its_timeout(text: str, timeout: Any) -> None:
    for kind in (LONG, SLOW):
        hybrid.sql(kind, rows=ROWS.slice(0, 100))  # compiled
    message, took = message_of(lambda: hybrid.sql(text, timeout=timeout, rows=ROWS))
    assert "HQ602" in message
    assert "timeout of 500 ms" in message
    assert took < SOON_S


@pytest.mark.slow
def test_a_timeout_says_how_far_the_statement_was(monkeypatch: pytest.MonkeyPatch) -> None:
    hybrid.sql(LONG, rows=ROWS.slice(0, 1000))  # compiled: on a busy machine that alone takes the second
    monkeypatch.setattr("matching.drive.ROWS_MAX", 100)
    message, _ = message_of(lambda: hybrid.sql(LONG, timeout=1, rows=ROWS))
    assert "00 rows were matched by then" in message


def test_a_statement_in_time_is_as_without_a_timeout() -> None:
    found = [hybrid.sql(LONG, timeout=t, rows=ROWS.slice(0, 500)).arrow() for t in (None, "1 hour")]
    assert found[0] == found[1]
    assert not any(thread.name == "hybrid-timeout" for thread in threading.enumerate())


_FOUR_S = "sleep_ms(4000 + {})"
#: What a timeout ends: DuckDB in a measure, a condition, around the pattern; in planning, and
#: our own planning.
ELSEWHERE = {
    "measure": f"FROM rows MATCH_RECOGNIZE (ORDER BY ts MEASURES {_FOUR_S.format('A.ts')} AS n PATTERN (A))",
    "condition": LONG.replace("p >= 0", _FOUR_S.format("ts") + " IS NULL"),
    "around": f"SELECT {_FOUR_S.format('n')} FROM rows MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS n PATTERN (A))",
    "union": LONG + " UNION ALL SELECT 1" * 20_000,
    "variables": LONG.replace("(A C)+ B", " ".join(f"V{i}" for i in range(60_000))),
    "list": LONG.replace("p >= 0", "p IN (" + ", ".join(f"{i} + 0" for i in range(60_000)) + ")"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("part", ELSEWHERE)
def test_a_timeout_ends_planning_and_every_call_of_duckdb(part: str) -> None:
    # Before: each row slept its 4 s, and planning ran to its end: 80 s and more.
    if "sleep_ms" in ELSEWHERE[part]:
        hybrid.sql(ELSEWHERE[part].replace("4000", "0"), rows=ROWS.slice(0, 30))  # compiled
    begin = time.monotonic()
    message, _ = message_of(lambda: hybrid.sql(ELSEWHERE[part], timeout=0.3, rows=ROWS.slice(0, 100)))
    assert "HQ602" in message
    assert time.monotonic() - begin < 120, "a guard against hanging"
    assert hybrid.sql("SELECT sleep_ms(5) IS NULL AS x FROM rows", rows=ROWS.slice(0, 1)).fetchall(), "none is left"


def test_a_connection_that_a_timeout_may_interrupt_is_not_used_again() -> None:
    stop = Stop()
    with stopping(stop), language_duck.idle_connection() as connection:
        stop.asked = True
    with language_duck.idle_connection() as other:
        assert other is not connection


@pytest.mark.slow
@pytest.mark.parametrize("text", [
    LONG.replace("p >= 0", f"s <> '{'x' * 10_000_000}'"), f"SELECT '{'x' * 10_000_000}'",
    LONG.replace("count(*)", f"'{'x' * 10_000_000}'"),
], ids=["condition", "alone", "measure"])  # fmt: skip
def test_a_literal_of_ten_megabytes_takes_no_more_than_its_copies(text: str) -> None:
    # Before: a MemoryError, after gigabytes: the regular expression of a string kept each of its letters.
    tracemalloc.start()
    try:
        assert hybrid.sql(text, rows=ROWS.slice(0, 20)) is not None
        assert tracemalloc.get_traced_memory()[1] < 300_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), [
    (LONG.replace("p >= 0", "(" * 500_000 + "true" + ")" * 500_000), "nested deeper than 200"),
    ("SELECT " + "(" * 500_000 + "1" + ")" * 500_000, "nested deeper than 200"),
    (LONG.replace("(A C)+ B", "(" * 500_000 + "A" + ")" * 500_000), "nested deeper than 50"),
    (LONG.replace("(A C)+ B", " ".join(f"V{i}" for i in range(10_000))), "10,000 variables, the maximum is 1,000"),
    (LONG.replace("(A C)+ B", " | ".join(f"V{i}" for i in range(10_000))), "10,000 variables, the maximum is 1,000"),
    (LONG.replace("(A C)+ B", "A{1000000} B"), "more than 30,000 nodes"),
    (LONG.replace("(A C)+ B", "(A{1000}){1000} B"), "more than 30,000 nodes"),
    (LONG.replace("p >= 0", "p" + " + 1" * 20_000 + " > 0"), "depth limit"),
    (LONG.replace("p >= 0", "NOT " * 20_000 + "true"), "depth limit"),
    ("SELECT 1 FROM (" * 300 + LONG + ")" * 300, "nested deeper than 200"),
], ids=range(10))  # fmt: skip
def test_an_absurd_text_is_an_error_of_ours(text: str, message: str) -> None:
    assert message in message_of(lambda: hybrid.sql(text, rows=ROWS.slice(0, 20)))[0]


@pytest.mark.parametrize("timeout", [0, -1, "soon", True, "0s"])
def test_a_timeout_is_a_duration_above_zero(timeout: Any) -> None:
    with pytest.raises(DataError, match="timeout"):
        hybrid.sql(LONG, timeout=timeout, rows=ROWS)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 1e10, "110000 days"])
def test_a_timeout_is_no_longer_than_threads_wait(timeout: Any) -> None:
    # Before: `it must be above 0`, or an OverflowError in the thread that waits, and no timeout.
    with pytest.raises(DataError, match=r"below 292 years\nhint: leave it out"):
        hybrid.sql(LONG, timeout=timeout, rows=ROWS)


@pytest.mark.slow
def test_a_statement_of_a_database_and_of_the_command_line_has_a_timeout(tmp_path: Path) -> None:
    with hybrid.connect() as db:
        assert "HQ602" in message_of(lambda: db.sql(LONG, timeout=0.5, rows=ROWS))[0]
    file = tmp_path / "rows.parquet"
    duckdb.from_arrow(ROWS).write_parquet(str(file))
    out = CliRunner().invoke(app, ["sql", LONG, "-t", f"rows={file}", "--timeout", "500ms"])
    assert isinstance(out.exception, QueryError)
    assert "HQ602" in str(out.exception)


@pytest.mark.slow
@pytest.mark.parametrize("text", [LONG, SLOW])
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
def test_ctrl_c_ends_a_statement_at_once(text: str) -> None:
    """Before: after a batch of 65,536 rows, which may take minutes."""
    def send() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    hybrid.sql(LONG, rows=ROWS.slice(0, 100))
    timer = threading.Timer(0.5, send)
    begin = time.thread_time()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        hybrid.sql(text, rows=ROWS)
    assert time.thread_time() - begin < SOON_S
    timer.join()


@pytest.mark.slow
def test_ctrl_c_ends_a_sort_of_the_archive(tmp_path: Path) -> None:
    """Before: at the end of the sort, 1.2 s later for 5 million rows of `hybrid archive compact`."""
    def send() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def sort() -> None:
        with interruptible(), sorting(str(tmp_path), "1GB") as connection:
            connection.sql("SELECT range FROM range(100_000_000) ORDER BY hash(range)").to_arrow_reader(1)

    timer = threading.Timer(0.5, send)
    begin = time.process_time()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        sort()
    assert time.process_time() - begin < 8, "before: 15 s"
    timer.join()


@pytest.mark.slow
def test_partial_matches_take_no_more_memory_than_memory_limit() -> None:
    """Before: without a limit, 4 GB at 16,000 rows."""
    with hybrid.connect(memory_limit="200MB") as db:
        message, _ = message_of(lambda: db.sql(LONG, rows=ROWS))
    assert "HQ600" in message
    assert "its matches and partial matches take more than 200 MB: the condition of B depends" in message
    assert "raise memory_limit" in message


@pytest.mark.slow
def test_a_process_takes_no_more_than_memory_limit() -> None:
    # Before: 615 MB for a limit of 500 MB, as nodes are there twice while there is made room for more.
    code = f"""
import resource, numpy as np, pyarrow as pa, hybrid
rows = pa.table({{"ts": np.arange(40_000), "p": np.arange(40_000) % 1000 / 10.0}})
most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with hybrid.connect(memory_limit="300MB") as db:
    db.sql({LONG!r}, rows=rows.slice(0, 50))
    before = most()
    try:
        db.sql({LONG!r}, rows=rows)
    except hybrid.QueryError as error:
        print(error.code, most() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    code, kilobytes = done.stdout.split()
    assert code == "HQ600"
    assert int(kilobytes) * 1024 < 300_000_000


@pytest.mark.slow
def test_matches_of_one_batch_take_no_more_memory_than_memory_limit() -> None:
    text = """FROM rows MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n ALL ROWS PER MATCH AFTER MATCH NO SKIP
        PATTERN (A+) SELECTION SKIP TILL ANY MATCH DEFINE A AS p < 2.1) AS m"""
    with hybrid.connect(memory_limit="100MB") as db:
        message, _ = message_of(lambda: db.sql(text, rows=ROWS.slice(0, 19)))
    assert "HQ600" in message
    assert "more than 100 MB" in message


@pytest.mark.slow
def test_backtests_and_graphs_have_a_timeout_and_a_limit_of_memory() -> None:
    # Before: neither; a backtest took all the memory there was.
    text = LONG.replace("FROM rows", "SELECT * FROM ticks").replace("p > 1000", "p > 1000.0")
    ticks = pa.table({"ts": np.arange(N).astype("datetime64[s]"), "p": np.arange(N) % 1000 / 10.0})
    for memory_limit in ("8GB", "200MB"):
        with hybrid.connect(memory_limit=memory_limit) as db:
            db.create_stream("ticks", {"ts": "TIMESTAMP", "p": "DOUBLE"}, time="ts")
            db.push("ticks", ticks)
            db.backtest(text, "1970-01-01", "1970-01-01 00:01:00")  # compiled
            if memory_limit == "200MB":
                message, _ = message_of(lambda: db.backtest(text, "1970-01-01"))
                assert "HQ600" in message
                assert "more than 200 MB" in message
                continue
            message, took = message_of(lambda: db.backtest(text, "1970-01-01", timeout=0.3))
            assert "HQ602" in message
            assert took < SOON_S
            assert "HQ602" in message_of(lambda: db.compare(text, text, "1970-01-01", timeout=0.3))[0]
    every = LONG.replace("PATTERN ((A C)+ B)", "PATTERN (A B) SELECTION SKIP TILL ANY MATCH")
    hybrid.matches(f"SELECT m.n {every}", rows=ROWS.slice(0, 100))
    message, took = message_of(lambda: hybrid.matches(f"SELECT m.n {every}", timeout=0.3, rows=ROWS))
    assert "HQ602" in message
    assert took < SOON_S
