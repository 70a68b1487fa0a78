"""The head of a table's log: what the log has lost is missed, whoever wrote to it, and nobody can take a head back."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from archive import head, layout, log_repair
from archive.history import History
from archive.layout import to_stored, write_files
from archive.place import place_of
from archive.reader import RangeRequest
from archive.repair import repair
from archive.table import Table, _added
from query.errors import DataError, HybridWarning
from tests.archive.events import TICKS, batch_of, events_of, run_of


def filled(directory: Path, commits: int = 4, rows: int = 10) -> History:
    history = History(TICKS, directory, memory_rows_max=10**9)
    for i in range(commits):
        history.append(*batch_of(run_of(rows, first=i * rows)))
        history.flush()
    return history


def last_entry(directory: Path) -> Path:
    return max((directory / "_delta_log").glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["emptied", "removed"])
def test_the_last_commit_is_missed(tmp_path, how):
    # Before: 15,000 of 20,000 rows, no word; verify --deep said 0 faults.
    filled(tmp_path, 4, 5000)
    entry = last_entry(tmp_path)
    if how == "emptied":
        entry.write_bytes(b"")
    else:
        entry.unlink()
    for opens in (lambda: History(TICKS, tmp_path), lambda: Table.open(tmp_path)):
        with pytest.raises(DataError) as raised:
            opens()
        assert f"_delta_log/{entry.name} is {'missing' if how == 'removed' else 'damaged'}" in raised.value.message
        lost = "5,000 events of source default, offsets 15000 to 19999"
        assert f"without it {lost} would be missing" in raised.value.message
        assert "hybrid archive repair" in raised.value.hint


@pytest.mark.slow
def test_the_last_commit_and_its_head_are_missed_by_the_log(tmp_path):
    # Before: 10 of 20 events, no word: nothing but the log says that there were more.
    first = History(TICKS, tmp_path, log="os")
    for i in range(2):
        first.append(*batch_of(run_of(10, first=i * 10)))
        first.flush()
    first.close()
    last_entry(tmp_path).unlink()
    max((tmp_path / "_head").glob("*.head")).unlink()
    with pytest.raises(DataError, match="that precede the log; 10 events are missing, number 10"):
        History(TICKS, tmp_path, log="os")
    assert [str(one.missing) for one in log_repair.faults(tmp_path, True)] == ["; 10 events are missing, number 10 on"]
    (done,) = repair(place_of(tmp_path), TICKS)
    assert "10 events of source default, offsets 10 to 19 were added from it" in str(done)
    assert events_of(History(TICKS, tmp_path, log="os").snapshot().read(RangeRequest())) == run_of(20)


@pytest.mark.slow
def test_an_entry_in_the_middle_and_a_checkpoint(tmp_path):
    # Before: the entry took 10 events with it; a checkpoint with another number of rows was read as it was.
    filled(tmp_path / "whole", 14)
    log = tmp_path / "whole" / "_delta_log"
    (checkpoint,) = (path.name for path in log.glob("*.checkpoint.parquet"))
    for name, at in ((f"{int(checkpoint[:20]) + 2:020}.json", 300), (checkpoint, 900)):
        shutil.copytree(tmp_path / "whole", tmp_path / "t")
        data = bytearray((log / name).read_bytes())
        data[at] ^= 1
        (tmp_path / "t" / "_delta_log" / name).write_bytes(data)
        with pytest.raises(DataError, match=f"_delta_log/{name} is damaged"):
            Table.open(tmp_path / "t")
        shutil.rmtree(tmp_path / "t")


@pytest.mark.slow
def test_the_hint_of_a_checkpoint(tmp_path):
    """One that names no checkpoint is a fault, for Delta reads no further; all else is as good as none."""
    filled(tmp_path, 14)
    hint = tmp_path / "_delta_log" / "_last_checkpoint"
    whole = json.loads(hint.read_text())
    for text in ("", "{", "[]", "{}", json.dumps({**whole, "size": 1}), json.dumps({**whole, "version": 0})):
        hint.write_text(text)
        assert events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == run_of(140)
    hint.write_text(json.dumps({**whole, "version": whole["version"] + 1}))
    with pytest.raises(DataError, match="_delta_log/_last_checkpoint is damaged"):
        History(TICKS, tmp_path)
    (done,) = repair(place_of(tmp_path), TICKS)
    assert str(done).startswith("_delta_log/_last_checkpoint was damaged: moved to _aside/_delta_log-_last_checkpoint")
    assert events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == run_of(140)


def test_a_log_that_is_gone_is_not_begun_anew(tmp_path):
    # Before: an empty table was made over the files.
    filled(tmp_path)
    shutil.rmtree(tmp_path / "_delta_log")
    with pytest.raises(DataError, match=r"_delta_log/0+\.json is missing, and 5 more; without it 40 events"):
        History(TICKS, tmp_path)
    shutil.rmtree(tmp_path / "_head")
    with pytest.raises(DataError, match=r"has data files, 2024-01-01/.* among them, but no log that lists them"):
        History(TICKS, tmp_path)


@pytest.mark.slow
def test_other_programs_may_commit(tmp_path):
    """Of a commit that knows nothing of heads nothing is said; the next one of ours takes it over."""
    history = filled(tmp_path)
    batch, late = batch_of(run_of(5, first=100, source="other"))
    files = write_files(to_stored(batch, late, TICKS), tmp_path, TICKS)
    foreign = DeltaTable(str(tmp_path))
    foreign.create_write_transaction([_added(file) for file in files], "append", foreign.schema())
    entry = last_entry(tmp_path)
    assert int(Table.open(tmp_path).snapshot().rows.sum()) == 45
    history.append(*batch_of(run_of(1, first=40)))
    history.flush()
    assert int(Table.open(tmp_path).snapshot().rows.sum()) == 46
    entry.write_bytes(b"")
    with pytest.raises(DataError, match=f"_delta_log/{entry.name} is damaged; without it 5 events of source other"):
        Table.open(tmp_path)


@pytest.mark.slow
def test_an_entry_that_goes_while_a_writer_goes_on_is_still_missed(tmp_path):
    filled(tmp_path)
    entry = last_entry(tmp_path)
    entry.rename(tmp_path / "away")
    (tmp_path / "_delta_log" / f"{int(entry.stem) + 1:020}.json").write_bytes((tmp_path / "away").read_bytes())
    head.advance(place_of(tmp_path))
    with pytest.raises(DataError, match=f"_delta_log/{entry.name} is missing"):
        Table.open(tmp_path)


@pytest.mark.slow
def test_a_head_only_goes_up(tmp_path, monkeypatch):
    filled(tmp_path)
    newest = max((tmp_path / "_head").glob("*.head"))
    old = head.newest
    with monkeypatch.context() as patch:  # a writer that has looked at the log before the last commit
        patch.setattr(head, "newest", lambda names: (old(names)[0] - 1, old(names)[1]))
        before = newest.read_bytes()
        head.advance(Table.open(tmp_path).directory)
    assert max((tmp_path / "_head").glob("*.head")) == newest
    assert newest.read_bytes() == before
    threads = [threading.Thread(target=head.advance, args=(Table.open(tmp_path).directory,)) for _ in range(8)]
    newest.unlink()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert newest.read_bytes() == before
    assert not list((tmp_path / "_head").glob("*.part"))


@pytest.mark.slow
def test_heads_do_not_pile_up(tmp_path):
    filled(tmp_path, 30)
    names = sorted(path.name for path in (tmp_path / "_head").iterdir())
    assert len(names) <= 9
    assert sum(name.endswith(".parquet") for name in names) <= 3


@pytest.mark.slow
def test_a_head_that_cannot_be_written_holds_nothing_up(tmp_path, monkeypatch):
    history = filled(tmp_path)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(head, "_put", full)
        history.append(*batch_of(run_of(10, first=40)))
        history.flush()
    assert events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == run_of(50)


@pytest.mark.slow
def test_a_damaged_head_is_said_and_nothing_is_missing(tmp_path):
    filled(tmp_path)
    newest = max((tmp_path / "_head").glob("*.head"))
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(HybridWarning, match=f"_head/{newest.name} is damaged .* the log is complete without it"):
        history = History(TICKS, tmp_path)
    history.append(*batch_of(run_of(1, first=40)))
    history.flush()
    assert int(Table.open(tmp_path).snapshot().rows.sum()) == 41


@pytest.mark.slow
def test_a_table_of_an_earlier_release_gets_a_head(tmp_path):
    filled(tmp_path)
    shutil.rmtree(tmp_path / "_head")
    history = History(TICKS, tmp_path)
    history.append(*batch_of(run_of(1, first=40)))
    history.flush()
    last_entry(tmp_path).unlink()
    with pytest.raises(DataError, match="is missing"):
        Table.open(tmp_path)
    assert layout.FORMAT_VERSION == 1


@pytest.mark.slow
def test_a_checkpoint_that_a_loss_of_power_has_torn(tmp_path, monkeypatch):
    # Before: the table could not be opened any more, and why was said by Delta alone.
    with monkeypatch.context() as patch:
        history = filled(tmp_path, 7)
        patch.setattr(head, "advance", lambda directory: None)
        while not list((tmp_path / "_delta_log").glob("*.checkpoint.parquet")):
            n = history.offsets["default"]
            history.append(*batch_of(run_of(10, first=n)))
            history.flush()
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"")
    with pytest.raises(DataError, match=f"_delta_log/{checkpoint.name} is damaged"):
        History(TICKS, tmp_path)
    done = repair(place_of(tmp_path), TICKS)
    assert all("nothing is lost without it" in str(one) for one in done)
    assert events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == run_of(history.offsets["default"])
