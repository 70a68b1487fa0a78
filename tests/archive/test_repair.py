"""Repair of each kind of damage: what was set aside, what is missing, and how to take it in again; and it is so."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from archive import layout, upkeep
from archive.history import History
from archive.ingest import Job, ingest
from archive.place import place_of
from archive.reader import RangeRequest
from archive.repair import repair
from archive.table import Table
from query.errors import DataError
from tests.archive.events import START_US, TICKS, batch_of, events_of, run_of
from tests.archive.store import s3_server
from tests.archive.test_sums import flip


@pytest.fixture
def small_groups(monkeypatch):
    for module in (layout, upkeep):
        monkeypatch.setattr(module, "ROW_GROUP_ROWS", 16)
    monkeypatch.setattr(layout, "_ENOUGH", {"h": 10**9, "D": 16, "M": 16, "Y": 16})


def filled(where, commits: int = 3, rows: int = 20) -> History:
    history = History(TICKS, where, memory_rows_max=10**9)
    for i in range(commits):
        history.append(*batch_of(run_of(rows, first=i * rows)))
        history.flush()
    return history


def mend(directory, schema=TICKS) -> list[str]:
    """What a repair says; behind it nothing is at fault."""
    done = [str(one) for one in repair(place_of(directory), schema)]
    assert [f for f in upkeep.verify(Table.open(directory), deep=True) if f.kind == "broken"] == []
    assert repair(place_of(directory), schema) == []
    return done


def events(directory) -> list:
    return events_of(History(TICKS, directory).snapshot().read(RangeRequest(late=True)))


def aside(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "_aside").iterdir())


@pytest.mark.slow
def test_nothing_to_repair(tmp_path):
    filled(tmp_path)
    assert mend(tmp_path) == []
    assert not (tmp_path / "_aside").exists()


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["last", "checkpoint", "all"])
def test_the_log_is_put_back(tmp_path, name):
    filled(tmp_path, 12)
    log = tmp_path / "_delta_log"
    if name == "all":
        shutil.rmtree(log)
    else:
        file = max(log.glob("*.json" if name == "last" else "*.checkpoint.parquet"))
        before = file.read_bytes()
        file.write_bytes(before[:-1])
    done = mend(tmp_path)
    assert events(tmp_path) == run_of(240)
    if name != "all":
        assert file.read_bytes() == before
        moved = f"_aside/_delta_log-{file.name}"
        assert done == [f"_delta_log/{file.name} was damaged: moved to {moved}, restored from its copy"]
        assert (tmp_path / moved).read_bytes() == before[:-1]


@pytest.mark.slow
def test_a_row_group_is_lost_and_the_others_are_kept(tmp_path, small_groups):
    history = filled(tmp_path, 1, 96)
    list(upkeep.compact(Table.open(tmp_path), closed_us=START_US + 86_400_000_000))
    upkeep.vacuum(Table.open(tmp_path), grace_hours=0)
    history.refresh()
    (path,) = history.table_snapshot.paths
    flip(tmp_path / path, 40)
    (done,) = mend(tmp_path)
    moved = f"_aside/{path.replace('/', '-')}"
    assert done.startswith(
        f"{path} is damaged in row group 1 of 6: moved to {moved}, its other 80 events written to another file; "
        "missing: 16 events of source default, offsets 0 to 45; "
    )
    assert done.endswith("hybrid archive ingest")
    assert (tmp_path / moved).exists()
    assert events(tmp_path) == [e for e in run_of(96) if e.symbol != "A" or e.offset > 45]
    upkeep.vacuum(Table.open(tmp_path), grace_hours=0)
    assert (tmp_path / moved).exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "footer", "short"])
def test_a_file_is_lost(tmp_path, how):
    path = filled(tmp_path).table_snapshot.paths[-1]
    file = tmp_path / path
    if how == "gone":
        file.unlink()
    elif how == "footer":
        flip(file, -20)
    else:
        file.write_bytes(file.read_bytes()[:-20])
    (done,) = mend(tmp_path)
    assert "missing: 20 events of source default, offsets" in done
    assert len(events(tmp_path)) == 40
    history = History(TICKS, tmp_path)
    assert history.offsets == {"default": 60}
    history.append(*batch_of(run_of(5, first=60)))
    history.flush()
    assert len(events(tmp_path)) == 45


@pytest.mark.slow
def test_what_an_older_file_still_has_is_taken_from_there(tmp_path, small_groups):
    history = filled(tmp_path, 4, 24)
    list(upkeep.compact(Table.open(tmp_path), closed_us=START_US + 86_400_000_000))
    history.refresh()
    (path,) = history.table_snapshot.paths
    flip(tmp_path / path, -20)
    done = mend(tmp_path)
    assert f"{path} is damaged in its footer" in done[0]
    assert sorted(int(one.rpartition(" to ")[2].split()[0]) for one in done[1:]) == [23, 47, 71, 95]
    assert all("events of source default" in one and one.endswith("were added from it") for one in done[1:])
    assert events(tmp_path) == run_of(96)


@pytest.mark.slow
def test_a_lost_commit_of_a_table_without_heads(tmp_path):
    # Before: verify --deep said 0 faults, and the file was deleted a day later.
    filled(tmp_path)
    shutil.rmtree(tmp_path / "_head")
    max((tmp_path / "_delta_log").glob("*.json")).unlink()
    table = Table.open(tmp_path)
    (fault,) = [f for f in upkeep.verify(table, deep=True) if f.kind == "broken"]
    assert fault.message.startswith("is not in the table, but alone has 20 events of source default, offsets 40 to 59")
    (done,) = mend(tmp_path)
    there = "20 events of source default, offsets 40 to 59 were added from it"
    assert done == f"{fault.path} was not in the table: {there}"
    assert events(tmp_path) == run_of(60)
    assert History(TICKS, tmp_path).last_seq == 59


@pytest.mark.slow
def test_no_log_at_all(tmp_path):
    given = tmp_path / "given.csv"
    given.write_text("ts,symbol,price,rank\n2023-12-31,A,1,1\n")
    where = tmp_path / "t"
    ingest(Job(TICKS, place_of(where), (str(given),)))
    filled(where)
    before = events(where)
    shutil.rmtree(where / "_delta_log")
    shutil.rmtree(where / "_head")
    with pytest.raises(DataError, match="stream's declaration are lost"):
        repair(place_of(where))
    assert len(mend(where)) == 5
    assert events(where) == before
    assert ingest(Job(TICKS, place_of(where), (str(given),))).known == 1


@pytest.mark.slow
def test_input_files_are_archived_again(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"ts,symbol,price,rank\n2023-12-31,{name},1,1\n2023-12-30,{name},1,1\n")
    where = place_of(tmp_path / "t")
    for name in ("a", "b"):
        ingest(Job(TICKS, where, (str(tmp_path / f"{name}.csv"),)))
    (path,) = [p for p in Table.open(where).snapshot().paths if b"hybrid" in (tmp_path / "t" / p).read_bytes()][:1]
    flip(tmp_path / "t" / path, 40)
    lost = "b" if "offsets 4294967296 to" in "".join(map(str, repair(where))) else "a"
    job = Job(TICKS, where, (str(tmp_path / "a.csv"), str(tmp_path / "b.csv")))
    report = ingest(job)
    assert (report.files, report.rows, report.known) == (1, 2, 1)
    assert sorted(e.symbol for e in events(tmp_path / "t")) == ["a", "a", "b", "b"]
    assert lost in "ab"
    assert mend(tmp_path / "t") == []


@pytest.mark.slow
def test_the_list_of_input_files(tmp_path):
    (tmp_path / "a.csv").write_text("ts,symbol,price,rank\n2023-12-31,A,1,1\n")
    job = Job(TICKS, place_of(tmp_path / "t"), (str(tmp_path / "a.csv"),))
    ingest(job)
    (file,) = (tmp_path / "t" / "_ingest").glob("*.list")
    flip(file, 300)
    with pytest.raises(DataError, match=f"{file.name}, cannot be read"):
        ingest(job)
    assert mend(tmp_path / "t") == [f"_ingest/{file.name} was damaged: it was restored from its copy"]
    assert ingest(job).known == 1


@pytest.mark.slow
def test_copies_beside_the_head(tmp_path):
    filled(tmp_path, 12)
    copy = max((tmp_path / "_head").glob("*.checkpoint.parquet"))
    newest = max((tmp_path / "_head").glob("*.head"))
    for file in (copy, newest):
        before = file.read_bytes()
        file.write_bytes(before[:-1])
        (done,) = mend(tmp_path)
        assert done.startswith(f"_head/{file.name} was damaged")
        assert file.read_bytes() == before
    assert aside(tmp_path) == sorted(f"_head-{file.name}" for file in (copy, newest))


@pytest.mark.slow
def test_in_a_store(tmp_path):
    with s3_server(tmp_path / "s3") as server:
        where = place_of("s3://bucket/ticks", server.options)
        history = filled(where)
        folder = tmp_path / "s3" / "bucket" / "ticks"
        entry = max((folder / "_delta_log").glob("*.json"))
        entry.unlink()
        with pytest.raises(DataError, match=f"_delta_log/{entry.name} is missing"):
            History(TICKS, where)
        (done,) = mend(where)
        assert "restored from its copy" in done
        assert events(where) == run_of(60)
        flip(folder / history.table_snapshot.paths[0], 40)
        (done,) = mend(where)
        assert "is damaged in its only row group" in done
        assert len(events(where)) == 40
