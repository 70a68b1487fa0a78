"""One process writes a database: a second one is refused by name; readers, and commits to the archive, are not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybrid
from archive import writer
from archive.place import place_of
from query.errors import DataError
from tests.archive.leases import goes_on, stalled
from tests.archive.store import s3_server
from tests.hybrid.database.test_leaving import start, values
from tests.hybrid.ends import killed
from tests.hybrid.inside import flow_of, opened_of
from tests.hybrid.processes import ROOT, environment
from tests.hybrid.writing_child import COLUMNS, events


def made(directory: Path, **options: object) -> hybrid.Database:
    db = hybrid.connect(directory, maintenance=False, **options)
    db.create_stream("ticks", COLUMNS, time="ts", key="k")
    return db


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hybrid", *words], cwd=ROOT, env=environment(), capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_second_process_is_refused_and_readers_are_not(tmp_path):
    """Before: pushes of both were reported as taken, and ids 2 and 3 of 6 were gone."""
    process = start(tmp_path, "slowly")
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "open\n"
        for stopped in (False, True):
            if stopped:
                os.kill(process.pid, signal.SIGSTOP)
            with pytest.raises(DataError) as caught:
                hybrid.connect(tmp_path)
            said = f"is open for writing in process {process.pid} on {os.uname().nodename} since 20"
            assert said in str(caught.value)
            assert "read_only=True" in str(caught.value)
        os.kill(process.pid, signal.SIGCONT)
        with hybrid.connect(tmp_path, read_only=True) as reader:
            counts = []
            for _ in range(5):
                said = [int(process.stdout.readline()) for _ in range(3)]
                found = reader.sql("SELECT count(*) AS n, count(DISTINCT v) AS d FROM ticks").arrow().to_pylist()
                counts.append(found[0]["n"])
                assert found[0]["d"] == found[0]["n"] >= said[-1]
            assert counts == sorted(counts)
        pq.write_table(pa.Table.from_pylist(events(1_000_000, 3)), tmp_path / "old.parquet")
        for words in (
            ("sql", "-d", str(tmp_path), "SELECT count(*) FROM ticks"),
            ("archive", "ingest", "ticks", str(tmp_path / "old.parquet"), "-d", str(tmp_path)),
        ):
            done = cli(*words)
            assert done.returncode == 0, done.stderr
    finally:
        process.kill()
        process.communicate()
    found = values(tmp_path)
    assert found == [*range(len(found) - 3), *range(1_000_000, 1_000_003)]


@pytest.mark.slow
def test_two_in_one_process(tmp_path):
    db = made(tmp_path)
    with pytest.raises(DataError, match="is open for writing in this process since 20"):
        hybrid.connect(tmp_path)
    assert db.push("ticks", events(0, 2)) == 2
    db.close()
    with hybrid.connect(tmp_path) as db:
        assert db.push("ticks", events(2, 2)) == 2
    assert values(tmp_path) == [0, 1, 2, 3]


def test_what_cannot_be_opened_is_not_held(tmp_path):
    made(tmp_path).close()
    file = tmp_path / "ticks" / "stream.json"
    text = file.read_text()
    file.write_text("{")
    with pytest.raises(DataError, match=r"stream\.json is damaged"):
        hybrid.connect(tmp_path)
    file.write_text(text)
    assert values(tmp_path) == []


@pytest.mark.slow
def test_a_lock_that_is_removed(tmp_path):
    """The one that had it is refused at once; what it has taken is there, and nobody's offsets are used twice."""
    first = made(tmp_path)
    first.push("ticks", events(0, 2))
    (tmp_path / writer.WRITER).unlink()
    second = hybrid.connect(tmp_path, maintenance=False)
    second.push("ticks", events(2, 2))
    for act in (lambda: first.push("ticks", events(4, 2)), first.flush, first.checkpoint):
        with pytest.raises(DataError, match=r"_writer was removed or replaced while the database is open"):
            act()
    with pytest.raises(DataError, match="has taken over"):
        flow_of(first).streams["ticks"].kept.flush()
    second.push("ticks", events(4, 2))
    second.close()
    killed(first)
    assert values(tmp_path) == list(range(6))
    with hybrid.connect(tmp_path) as db:
        assert db.streams()["ticks"]["offsets"] == {"default": 6}


@pytest.mark.slow
def test_a_copy_of_a_directory_that_is_open(tmp_path):
    db = made(tmp_path / "db")
    db.push("ticks", events(0, 2))
    shutil.copytree(tmp_path / "db", tmp_path / "copy")
    assert values(tmp_path / "copy") == [0, 1]
    db.push("ticks", events(2, 2))
    db.close()
    assert values(tmp_path / "db") == [0, 1, 2, 3]


@pytest.mark.slow
def test_what_a_reader_refuses(tmp_path):
    with made(tmp_path) as db:
        db.push("ticks", events(0, 5))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    os.chmod(tmp_path / writer.WRITER, 0o444)
    query = "SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k PATTERN (A B) DEFINE B AS v > PREV(v))"
    with hybrid.connect(tmp_path, read_only=True) as db:
        for act in (
            lambda: db.push("ticks", events(5, 1)), db.checkpoint, db.flush, lambda: db.advance("ticks", None),
            lambda: db.watch(query, name="q"), lambda: db.watch(query), lambda: db.create_stream("b", COLUMNS, "ts"),
            lambda: db.expect("ticks", ["x"]), lambda: db.ingest("ticks", "x.csv"),
        ):  # fmt: skip
            with pytest.raises(DataError, match="is open for reading only"):
                act()
        assert db.sql("SELECT count(*) AS n FROM ticks").arrow().to_pylist() == [{"n": 5}]
        assert len(db.backtest(query, "2024-01-01").arrow()) == 2
        assert db.streams()["ticks"]["offsets"] == {"default": 5}
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    with pytest.raises(DataError, match="there is no database"):
        hybrid.connect(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_a_reader_sees_streams_and_columns_that_come_later(tmp_path):
    db = made(tmp_path)
    with hybrid.connect(tmp_path, read_only=True) as reader:
        db.create_stream("more", COLUMNS, time="ts")
        db.push("more", events(0, 2))
        db.create_stream("ticks", {**COLUMNS, "w": "DOUBLE"}, time="ts", key="k")
        db.push("ticks", [event | {"w": 1.5} for event in events(0, 2)])
        assert sorted(reader.streams()) == ["more", "ticks"]
        assert reader.sql("SELECT sum(w) AS w FROM ticks").arrow().to_pylist() == [{"w": 3.0}]
        assert reader.streams()["ticks"]["watermark"] == db.streams()["ticks"]["watermark"]
    db.close()


@pytest.mark.slow
def test_a_lease_in_a_store(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "RENEW_S", 0.1)
    with s3_server(tmp_path) as server:
        place, options = "s3://bucket/db", server.options
        where = place_of(f"{place}/{writer.WRITER}", options)

        def connect(**more):
            return hybrid.connect(place, storage_options=options, maintenance=False, **more)

        first = connect()
        first.create_stream("ticks", COLUMNS, time="ts", key="k")
        first.push("ticks", events(0, 2))
        first.flush()
        with pytest.raises(DataError, match="is open for writing in this process since 20"):
            connect()
        with connect(read_only=True) as reader:
            assert reader.streams()["ticks"]["offsets"] == {"default": 2}
        # the first one is stopped for longer than its lease; the second one takes over
        stalled(opened_of(first).writer)
        monkeypatch.setattr(writer, "LEASE_S", -1.0)
        second = connect()
        monkeypatch.setattr(writer, "LEASE_S", 30.0)
        assert json.loads(where.read_text())["epoch"] == opened_of(second).epoch > (opened_of(first).epoch or 0)
        second.push("ticks", events(2, 2))
        second.flush()
        first.push("ticks", events(4, 2))  # it does not know yet: its events stay in memory
        with pytest.raises(DataError, match="another process has taken over s3://bucket/db/ticks/table"):
            first.flush()
        goes_on(opened_of(first).writer)
        with pytest.raises(DataError, match="has been taken over by this process since"):
            first.push("ticks", events(4, 2))
        second.push("ticks", events(4, 1))
        second.close()
        killed(first)
        said = json.loads(where.read_text())
        assert said["released"]
        # a process that has crashed on another host holds it until its lease runs out, on this one no longer
        where.write_text(json.dumps(said | {"released": False, "host": "elsewhere", "run": "of before"}))
        with pytest.raises(DataError, match=f"is open for writing in process {os.getpid()} on elsewhere since 20"):
            connect()
        where.write_text(json.dumps(said | {"released": False, "run": "of before"}))
        with connect() as third:
            assert third.streams()["ticks"]["offsets"] == {"default": 5}
            assert third.sql("SELECT v FROM ticks ORDER BY v").arrow().column("v").to_pylist() == [0, 1, 2, 3, 4]
