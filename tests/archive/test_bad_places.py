"""What can be wrong with files and directories: each is said clearly, and the table stays as it was."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import hybrid
from archive.history import History
from archive.reader import RangeRequest
from archive.table import Table
from archive.upkeep import compact, verify
from query.errors import DataError
from tests.archive.events import START_US, TICKS, batch_of, events_of, run_of
from tests.archive.store import s3_server
from tests.archive.test_store import IMPATIENT


def broken(directory) -> list[str]:
    return [f"{f.path} {f.message}".strip() for f in verify(Table.open(directory)) if f.kind == "broken"]


def filled(directory: Path) -> History:
    history = History(TICKS, directory, memory_rows_max=10**9)
    for first in (0, 90_000, 180_000):  # three days
        history.append(*batch_of(run_of(20_000, first=first)))
        history.flush()
    return history


@pytest.mark.slow
def test_a_day_removed_by_hand(tmp_path):
    history = filled(tmp_path)
    count = len(history.table_snapshot.paths)
    shutil.rmtree(tmp_path / "2024-01-02")
    with pytest.raises(DataError, match=r"cannot be read.*2024-01-02"):
        history.snapshot().read(RangeRequest())
    assert len(history.snapshot().read(RangeRequest(START_US, START_US + 10_000_000))) == 10  # other days can
    (path,) = [p for p in history.table_snapshot.paths if "01-02" in p]
    assert broken(tmp_path) == [f"{path} is missing, with 20,000 events of source default, offsets 90000 to 109999"]
    with pytest.raises(DataError, match="cannot be compacted"):
        list(compact(Table.open(tmp_path), closed_us=2**60))
    history.append(*batch_of(run_of(10, first=300_000)))
    history.flush()
    assert len(Table.open(tmp_path).snapshot().paths) == count + 1


@pytest.mark.slow
def test_a_file_cut_short(tmp_path):
    history = filled(tmp_path)
    path = history.table_snapshot.paths[0]
    whole = (tmp_path / path).read_bytes()
    (tmp_path / path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        History(TICKS, tmp_path).snapshot().read(RangeRequest())
    with pytest.raises(DataError, match="cannot be compacted"):
        list(compact(Table.open(tmp_path), closed_us=2**60))
    lost = "20,000 events of source default, offsets 180000 to 199999"
    assert broken(tmp_path) == [f"{path} has {len(whole) // 2:,} bytes, not {len(whole):,}, with {lost}"]
    (tmp_path / path).write_bytes(whole)
    assert broken(tmp_path) == []
    assert len(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == 60_000


@pytest.mark.slow
def test_a_file_with_another_schema(tmp_path):
    history = filled(tmp_path)
    path = history.table_snapshot.paths[0]
    rows = pq.ParquetFile(tmp_path / path).read()
    other = rows.set_column(2, "price", rows.column("price").cast("string"))
    pq.write_table(other, tmp_path / path)
    size = (tmp_path / path).stat().st_size
    (message,) = broken(tmp_path)
    lost = "20,000 events of source default, offsets 180000 to 199999"
    assert message == f"{path} has {size:,} bytes, not {history.table_snapshot.sizes[0]:,}, with {lost}"
    pq.write_table(rows.drop_columns("price"), tmp_path / path)
    with pytest.raises(DataError, match="cannot be read"):
        History(TICKS, tmp_path).snapshot().read(RangeRequest())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a file system of a given size")
def test_a_full_disk(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(mount)], capture_output=True)
    if made.returncode:
        pytest.skip("only root may mount a small disk")
    try:
        history = History(TICKS, mount / "ticks", memory_rows_max=10**9)
        history.append(*batch_of(run_of(100)))
        history.flush()
        history.append(*batch_of(run_of(60_000, first=100)))
        with pytest.raises(DataError, match="cannot be written") as raised:
            history.flush()
        assert "make room" in str(raised.value)
        assert len(history.snapshot().read(RangeRequest())) == 60_100  # in memory still
        assert broken(mount / "ticks") == []
        assert len(History(TICKS, mount / "ticks").snapshot().read(RangeRequest())) == 100
        subprocess.run(["mount", "-o", "remount,size=50m", str(mount)], check=True)
        history.flush()
        assert len(History(TICKS, mount / "ticks").snapshot().read(RangeRequest())) == 60_100
        assert broken(mount / "ticks") == []
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.slow
def test_no_permission(tmp_path):
    if os.geteuid() == 0:
        # Root may write anywhere; a directory that even root may not change does instead.
        if subprocess.run(["chattr", "+i", str(tmp_path)], capture_output=True).returncode:
            pytest.skip("root may write anywhere here")
        undo = lambda: subprocess.run(["chattr", "-i", str(tmp_path)], check=True)  # noqa: E731
    else:
        tmp_path.chmod(0o500)
        undo = lambda: tmp_path.chmod(0o700)  # noqa: E731
    try:
        with pytest.raises(DataError, match="cannot be opened as an archived stream"):
            History(TICKS, tmp_path / "ticks")
    finally:
        undo()
    history = filled(tmp_path / "ticks")
    assert len(history.snapshot().read(RangeRequest())) == 60_000


@pytest.mark.slow
def test_a_store_gone_between_file_and_commit(tmp_path, monkeypatch):
    with s3_server(tmp_path / "s3") as server:
        from archive.place import place_of

        where = place_of("s3://bucket/ticks", {**server.options, **IMPATIENT})
        history = History(TICKS, where, memory_rows_max=10**9)
        history.append(*batch_of(run_of(10)))
        history.flush()
        history.append(*batch_of(run_of(10, first=10)))
        commit = Table.commit

        def gone(self, *args):
            server.stop()
            commit(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(Table, "commit", gone)
            with pytest.raises(DataError, match="cannot be written"):
                history.flush()
        server.start()
        assert broken(where) == []
        assert [f.kind for f in verify(Table.open(where))] == ["orphan"]
        assert len(History(TICKS, where).snapshot().read(RangeRequest())) == 10
        history.flush()
        assert events_of(History(TICKS, where).snapshot().read(RangeRequest())) == run_of(20)
        assert broken(where) == []


def test_a_directory_that_is_something_else(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be opened as an archived stream"):
        Table.create(tmp_path / "file", TICKS)
    (tmp_path / "log" / "_delta_log").mkdir(parents=True)
    (tmp_path / "log" / "_delta_log" / "00000000000000000000.json").write_text("{")
    with pytest.raises(DataError, match="cannot be opened as an archived stream"):
        Table.open(tmp_path / "log")


@pytest.mark.slow
def test_only_the_owner_enters_a_database_unless_it_was_created_otherwise(tmp_path: Path) -> None:
    # Before: Parquet files that all users could read, beside logs that none could.
    open_to_group = tmp_path / "group"
    open_to_group.mkdir()
    open_to_group.chmod(0o750)
    before = os.umask(0o022)
    try:
        for place in (tmp_path / "data" / "own", open_to_group):
            with hybrid.connect(place) as db:
                db.create_stream("ticks", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
                db.push("ticks", [{"ts": dt.datetime(2024, 1, 1), "v": 1}])
                db.flush()
                db.snapshot(tmp_path / f"copy of {place.name}")
    finally:
        os.umask(before)
    made = ("data", "data/own", "group", "copy of own", "copy of group")
    modes = {name: oct((tmp_path / name).stat().st_mode & 0o777) for name in made}
    assert modes == {name: "0o750" if name == "group" else "0o700" for name in made}
    (file,) = (open_to_group / "ticks" / "table").glob("2024*/*.parquet")
    assert file.stat().st_mode & 0o777 == 0o644
    assert {oct(log.stat().st_mode & 0o777) for log in open_to_group.glob("ticks/table/_log/*.log")} <= {"0o600"}
