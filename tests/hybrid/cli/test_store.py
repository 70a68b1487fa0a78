"""The command line with a database in a store: every command that takes one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

import hybrid
from archive.place import filesystem_of
from archive.scan import database_of
from simulator.rfid import shop
from tests.archive.store import s3_server
from tests.hybrid.cli.test_cli import QUERY, run

pytest.importorskip("fsspec")
WHERE = "s3://bucket/db"


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.options.items():
            patch.setenv(name.upper(), value)
        for cached in (filesystem_of, database_of):  # they remember the environment
            cached.cache_clear()
        with hybrid.connect(WHERE) as db:
            db.create_stream("t", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
            db.push("t", [{"ts": datetime(2024, 1, 1, second=i), "v": v} for i, v in enumerate((3, 1, 2))])
        yield


# Before: "there is no database s3:/bucket/db" of the first four; the demo was kept in a local directory s3:.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("sql", QUERY, "-d", WHERE, "-f", "json"), '{"a":3,"b":1}'),
        (("backtest", QUERY, "-d", WHERE, "--from", "2024-01-01", "-f", "json"), '{"a":3,"b":1}'),
        (("explain", QUERY, "-d", WHERE, "--stage", "plan"), "pattern     A B"),
        (("check", QUERY, "-d", WHERE), ""),
        (("archive", "stat", "-d", WHERE, "-f", "json"), '"rows":3'),
        (("archive", "search", QUERY, "-d", WHERE, "-f", "json"), '{"a":3,"b":1}'),
        (("archive", "verify", "-d", WHERE), ""),
        (("archive", "compact", "-d", WHERE), ""),
        (("archive", "expire", "-d", WHERE, "--dry-run"), ""),
    ],
)
def test_a_database_in_a_store(words: tuple[str, ...], expected: str) -> None:
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@pytest.mark.slow
def test_files_into_a_store_and_what_they_give(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("ts,v\n2024-01-01 00:00:00,7\n2024-01-01 00:00:01,5\n")
    done = run("archive", "ingest", "t", str(tmp_path / "t.csv"), "-d", "s3://bucket/files", "--time", "ts")
    assert done.returncode == 0, done.stderr
    found = run("sql", QUERY, "-d", "s3://bucket/files/", "-f", "json")
    assert json.loads(found.stdout) == {"a": 7, "b": 5}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["sql", "explain", "check"])
def test_no_database_in_a_store(command: str) -> None:
    done = run(command, QUERY, "-d", "s3://bucket/nowhere")
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "error: database s3://bucket/nowhere does not exist")


@pytest.mark.slow
def test_a_store_that_is_none() -> None:
    done = run("sql", QUERY, "-d", "gs://bucket/db")
    assert (done.returncode, "neither a directory nor an s3:// address" in done.stderr) == (1, True)
    for command in ("status", "top"):
        done = run(command, WHERE)
        assert (done.returncode, "name its app file: hybrid status app.toml" in done.stderr) == (1, True)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_demo_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hybrid.demo.rfid.shop", partial(shop, items=100))
    done = run("demo", "rfid", "-d", "s3://bucket/demo", "--picture", str(tmp_path / "picture.png"))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "s3:").exists()
    assert "readings" in run("archive", "stat", "-d", "s3://bucket/demo", "-f", "json").stdout
    assert run("demo", "rfid", "-d", "s3://bucket/demo").returncode == 2
