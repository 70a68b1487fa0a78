"""A copy of a database is consistent, whatever runs meanwhile: each event up to some point is in it, and once."""

from __future__ import annotations

import shutil
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hybrid
from archive.place import place_of
from archive.table import Table
from archive.upkeep import verify
from hybrid.cli import app
from hybrid.database import backup
from query.errors import DataError
from tests.archive.store import s3_server
from tests.properties.comparing import is_nightly

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "DOUBLE"}
FALLS = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES B.v AS v PATTERN (A B) DEFINE B AS B.v < A.v)"


def rows(first: int, count: int) -> list[dict[str, object]]:
    start, numbers = datetime(2024, 1, 1), range(first, first + count)
    return [{"ts": start + timedelta(seconds=i), "k": "ab"[i % 2], "v": float(i * 7 % 5)} for i in numbers]


def filled(directory: Path, count: int = 40) -> hybrid.Database:
    db = hybrid.connect(directory, maintenance=False, log="os")
    db.create_stream("t", COLUMNS, time="ts", key="k")
    db.watch(FALLS, name="falls")
    db.push("t", rows(0, count), offset=0)
    return db


def events(directory) -> list[float]:
    with hybrid.connect(directory, maintenance=False) as db:
        return [row["v"] for row in db.sql("SELECT v FROM t ORDER BY ts").arrow().to_pylist()]


def wanted(count: int) -> list[float]:
    return [float(row["v"]) for row in rows(0, count)]  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_copy_of_a_running_database(tmp_path):
    # Before: cp -r, of which 2 of 4 could not be opened: the checkpoint had matched what was not in the archive.
    db = filled(tmp_path / "db", 0)
    stop = threading.Event()
    taken = [0]

    def push() -> None:
        while not stop.is_set():
            db.push("t", rows(taken[0], 10), offset=taken[0])
            taken[0] += 10
            if taken[0] % 70 == 0:
                db.flush()
            if taken[0] % 110 == 0:
                db.checkpoint()

    thread = threading.Thread(target=push)
    thread.start()
    try:
        for number in range(6 if is_nightly() else 2):
            before = taken[0]
            if number % 2:
                db.snapshot(tmp_path / "copy")
            else:
                backup.snapshot(place_of(tmp_path / "db"), place_of(tmp_path / "copy"))
            after = taken[0] + 10
            restored = tmp_path / f"restored{number}"
            shutil.copytree(tmp_path / "copy", restored)
            found = events(restored)
            assert before <= len(found) <= after
            assert found == wanted(len(found))
            assert [f for f in verify(Table.open(restored / "t" / "table"), deep=True) if f.kind == "broken"] == []
    finally:
        stop.set()
        thread.join()
        db.close()


@pytest.mark.slow
def test_a_restored_copy_goes_on_without_a_double(tmp_path):
    db = filled(tmp_path / "db", 30)
    db.flush()
    db.checkpoint()
    db.push("t", rows(30, 10), offset=30)
    db.snapshot(tmp_path / "copy")
    db.push("t", rows(40, 10), offset=40)
    alerts = [row["v"] for row in db.watching()["falls"].fetch().to_pylist()]
    db.close()
    shutil.move(tmp_path / "copy", tmp_path / "elsewhere")
    with hybrid.connect(tmp_path / "elsewhere", maintenance=False, log="os") as again:
        assert again.streams()["t"]["offsets"] == {"default": 40}
        again.push("t", rows(30, 20), offset=30)  # the source begins again where it is not sure
        assert [row["v"] for row in again.watching()["falls"].fetch().to_pylist()] == alerts
    assert events(tmp_path / "elsewhere") == wanted(50)


@pytest.mark.slow
def test_only_what_is_new_is_copied(tmp_path):
    db = filled(tmp_path / "db")
    db.flush()
    assert db.snapshot(tmp_path / "copy").files == 1
    db.push("t", rows(40, 5), offset=40)
    db.flush()
    copied = db.snapshot(tmp_path / "copy")
    assert (copied.files, copied.known) == (1, 1)
    again = CliRunner().invoke(app, ["archive", "snapshot", str(tmp_path / "copy"), "-d", str(tmp_path / "db")])
    assert "0 data files of 0 bytes copied, 2 already there" in again.stderr
    db.close()
    assert events(tmp_path / "copy") == wanted(45)


@pytest.mark.slow
def test_a_copy_that_was_not_finished_is_refused_and_finished(tmp_path, monkeypatch):
    db = filled(tmp_path / "db")
    db.flush()
    for stop in ("_data_files", "_replace"):
        with monkeypatch.context() as patch:
            patch.setattr(backup, stop, lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                db.snapshot(tmp_path / stop)
        with pytest.raises(DataError, match="is an unfinished snapshot"):
            hybrid.connect(tmp_path / stop)
        db.snapshot(tmp_path / stop)
        assert events(tmp_path / stop) == wanted(40)
    db.close()


@pytest.mark.slow
def test_what_is_no_copy_of_it_is_left_alone(tmp_path):
    db = filled(tmp_path / "db")
    db.flush()
    with pytest.raises(DataError, match="contains the other"):
        db.snapshot(tmp_path / "db" / "copy")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter").write_text("dear")
    with pytest.raises(DataError, match="is not empty and is no snapshot"):
        db.snapshot(tmp_path / "other")
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["letter"]
    db.snapshot(tmp_path / "copy")
    with hybrid.connect(tmp_path / "copy", maintenance=False) as restored:
        restored.push("t", rows(40, 5), offset=40)
    with pytest.raises(DataError, match="was written to after it was made"):
        db.snapshot(tmp_path / "copy")
    db.close()
    with pytest.raises(DataError, match="there is no database"):
        backup.snapshot(place_of(tmp_path / "nowhere"), place_of(tmp_path / "c"))
    with hybrid.connect() as db, pytest.raises(DataError, match="in memory"):
        db.snapshot(tmp_path / "c")


@pytest.mark.slow
def test_nothing_damaged_is_copied(tmp_path):
    with filled(tmp_path / "db") as db:
        db.flush()
        db.snapshot(tmp_path / "copy")
        db.push("t", rows(40, 5), offset=40)
    file = max((tmp_path / "db" / "t" / "table").glob("2024*/*"), key=lambda path: path.stat().st_mtime_ns)
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match=f"{file.name} is damaged"):
        backup.snapshot(place_of(tmp_path / "db"), place_of(tmp_path / "copy"))
    assert events(tmp_path / "copy") == wanted(40)


@pytest.mark.slow
def test_to_and_from_a_store(tmp_path):
    with s3_server(tmp_path / "s3") as server:
        with filled(tmp_path / "db") as db:
            db.flush()
            db.push("t", rows(40, 5), offset=40)
            db.snapshot("s3://bucket/copy", server.options)
        stored = place_of("s3://bucket/copy", server.options)
        backup.snapshot(stored, place_of(tmp_path / "back"))
        assert events(tmp_path / "back") == wanted(45)
