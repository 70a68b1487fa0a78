"""hybrid archive: stat, compact, expire, verify, on a database with something to do."""

from __future__ import annotations

import json
import re
import shutil
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hybrid
from archive import upkeep
from hybrid.cli import app
from hybrid.statement import statement
from query.errors import DataError

COLUMNS = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}


@pytest.fixture
def market(tmp_path):
    """Three days in 27 files, a second stream without events."""
    with hybrid.connect(tmp_path / "market", maintenance=False) as db:
        db.create_stream("ticks", COLUMNS, time="ts", key="symbol", retention="3 days")
        db.create_stream("quotes", COLUMNS, time="ts", key="symbol")
        for day in (1, 2, 3):
            for hour in range(9):
                times = [datetime(2024, 1, day, hour, minute) for minute in range(60)]
                db.push("ticks", [{"ts": t, "symbol": "AB"[t.minute % 2], "price": float(day)} for t in times])
                db.flush()
    return tmp_path / "market"


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["archive", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def rows(market) -> list[dict]:
    return [json.loads(line) for line in run("stat", "-d", market, "--format", "json")[1].splitlines()]


@pytest.mark.slow
def test_stat_compact_expire_verify(market):
    ticks = {row["stream"]: row for row in rows(market)}["ticks"]
    assert (ticks["files"], ticks["by_key"], ticks["rows"]) == (ticks["files"], 0, 1620)
    assert (ticks["first"], ticks["last"]) == ("2024-01-01 00:00:00", "2024-01-03 08:59:00")
    before = ticks["files"]
    assert run("verify", "-d", market)[0] == 0
    code, _, said = run("compact", "-d", market, "TICKS")
    assert code == 0
    ticks = {row["stream"]: row for row in rows(market)}["ticks"]
    assert f"ticks: {before} files are now {ticks['files']}" in said
    assert ticks["files"] < before
    assert (ticks["by_key"], ticks["rows"]) == (1, 1620)
    run("compact", "-d", market, "--all")
    assert {row["stream"]: row for row in rows(market)}["ticks"]["files"] == 1
    assert "would remove 0 files, 0 events before 2023-12-31 08:59:00" in run("expire", "-d", market, "--dry-run")[2]
    code, _, said = run("expire", "-d", market, "ticks", "--before", "2024-02-01", "--grace", "0")
    assert (code, "removed 1 file, 1,620 events before 2024-02-01 00:00:00" in said) == (0, True)
    assert list((market / "ticks" / "table").glob("2024*/*.parquet")) == []
    assert run("verify", "-d", market, "--deep")[0] == 0


@pytest.mark.slow
def test_verify_fails_where_something_is_wrong(market):
    table = market / "ticks" / "table"
    path = sorted(table.glob("2024*/*.parquet"))[0]
    path.unlink()
    code, out, said = run("verify", "-d", market)
    assert code == 1
    lost = r"60 events of source default, offsets \d+ to \d+"
    assert re.fullmatch(f"ticks: broken: {path.relative_to(table)} is missing, with {lost}\n", out)
    assert "1 fault" in said
    shutil.rmtree(table)
    code, out, _ = run("verify", "-d", market)
    assert code == 1
    assert out.startswith("ticks: broken: there is no archived stream in ")
    with pytest.raises(DataError, match="there is no archived stream"):
        run("stat", "-d", market)


@pytest.mark.slow
def test_names_that_stand_for_nothing(market, tmp_path):
    with pytest.raises(DataError, match="market has no stream tick"):
        run("stat", "-d", market, "tick")
    with pytest.raises(DataError, match=r"database .* does not exist"):
        run("compact", "-d", tmp_path / "absent")
    assert run("expire", "-d", market, "--grace", "-1")[0] == 2


V = (
    "SELECT symbol, count(*) AS n, max(last) AS last FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol "
    "MEASURES LAST(ts) AS last PATTERN (A B) DEFINE A AS price < 3, B AS price > LAST(A.price)) GROUP BY symbol"
)


@pytest.mark.slow
def test_search(market, tmp_path):
    """Day after day prices rise once: the last minute of a day, and the first of the next."""

    def found(*words: str) -> list[dict]:
        code, out, said = run("search", V + " ORDER BY symbol", "-d", market, "--format", "json", *words)
        assert code == 0
        assert said.startswith("ticks: ")
        return [json.loads(line) for line in out.splitlines()]

    assert [(row["symbol"], row["n"]) for row in found()] == [("A", 2), ("B", 2)]
    assert [(row["symbol"], row["n"]) for row in found("--from", "2024-01-02")] == [("A", 1), ("B", 1)]
    assert [row["last"] for row in found("--to", "2024-01-02 00:01")] == ["2024-01-02T00:00:00.000000"]
    with hybrid.connect(market, maintenance=False) as db:
        assert db.sql(V + " ORDER BY symbol").arrow().to_pylist() == [
            {**row, "last": datetime.fromisoformat(row["last"])} for row in found()
        ]
    output = tmp_path / "found.csv"
    assert run("search", V, "-d", market, "--on-time", "-f", "csv", "-o", output)[:2] == (0, "")
    assert output.read_text().startswith('"symbol","n","last"\n')
    with pytest.raises(DataError, match="--from"):
        run("search", V, "-d", market, "--from", "some day")


@pytest.mark.slow
def test_events_before_1970_expire(tmp_path: Path) -> None:
    # Before: `verify --deep` called what had expired lost, for the time until which was not kept.
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("old", {"ts": "TIMESTAMP", "k": "BIGINT"}, time="ts")
        for year in (1949, 1950, 1951):
            db.push("old", [{"ts": datetime(year, 1, 1 + i), "k": i} for i in range(10)])
            db.flush()
    where = ("-d", tmp_path / "db")
    assert "0 faults" in run("verify", *where, "--deep")[2]
    assert "removed 1 file, 10 events" in run("expire", "old", *where, "--before", "1950-01-01")[2]
    code, _, said = run("verify", *where, "--deep")
    assert (code, "0 faults" in said) == (0, True), said
    with hybrid.connect(tmp_path / "db", read_only=True) as db:
        assert db.sql("SELECT count(*) AS n FROM old").arrow().to_pylist() == [{"n": 20}]


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("command", "owner", "work"),
    [
        (["compact"], upkeep, "compact"), (["verify"], upkeep, "verify"),
        (["search", "SELECT 1"], statement, "answer"),
    ],
)  # fmt: skip
def test_ctrl_c_within_duckdb_ends_a_command(
    market, monkeypatch: pytest.MonkeyPatch, command: list[str], owner: Any, work: str
) -> None:
    # Before: a traceback that ended with `RuntimeError: Query interrupted`.
    def pressed(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None  # as DuckDB tells it

    monkeypatch.setattr(owner, work, pressed)
    code, out, _ = run(*command, "-d", market)
    assert (code, out) == (130, "")
