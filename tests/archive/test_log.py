"""The write-ahead log: what a push has been answered for is there again, however the process ended."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive.history import LOG, History
from archive.log import Log, read, segments
from query.errors import DataError
from query.schema import Field
from tests.archive.events import TICKS, batch_of, events_of, run_of


def logged(directory) -> list[object]:
    """Offsets of rows, and watermarks, in the order of the log."""
    found: list[object] = []
    for part in read(directory):
        found += [part] if isinstance(part, int) else part.column("_offset").to_pylist()
    return found


def kept(history: History) -> list[tuple[int, bool]]:
    """Offset of every event that is kept, and whether it is late."""
    whole = history.snapshot().read(None, None, late=True)
    on_time = set(history.snapshot().read(None, None).offset.tolist())
    return sorted((offset, offset not in on_time) for offset in whole.offset.tolist())


@pytest.mark.parametrize("policy", ["fsync", "os"])
def test_what_was_pushed_is_there_again(tmp_path, policy):
    history = History(TICKS, tmp_path, log=policy)
    batch, _ = batch_of(run_of(5))
    late = np.array([False, True, False, False, True])
    history.append(batch, late)
    history.reach(77)
    history.append(*batch_of(run_of(3, first=5)))
    # the process ends here: nothing was flushed
    again = History(TICKS, tmp_path, log=policy)
    assert kept(again) == [(i, i in (1, 4)) for i in range(8)]
    assert (again.last_seq, again.offsets, again.logged_watermark_us) == (7, history.offsets, 77)
    assert events_of(again.snapshot().read(None, None)) == events_of(history.snapshot().read(None, None))
    again.append(*batch_of(run_of(2, first=8)))
    assert [o for o, _ in kept(History(TICKS, tmp_path))] == list(range(10))
    assert segments(tmp_path / LOG) == [], "without a log what was in it is in files"


def test_a_flush_ends_what_was_logged(tmp_path):
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(5)))
    history.reach(5)
    history.flush()
    history.append(*batch_of(run_of(2, first=5)))
    assert len(segments(tmp_path / LOG)) == 1
    assert logged(tmp_path / LOG) == [5, 5, 6]
    again = History(TICKS, tmp_path, log="os")
    assert ([o for o, _ in kept(again)], again.logged_watermark_us) == (list(range(7)), 5)
    again.flush()
    assert History(TICKS, tmp_path).last_seq == 6


def test_a_crash_between_commit_and_log_doubles_nothing(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(5)))
    monkeypatch.setattr("pathlib.Path.unlink", lambda path, missing_ok=False: None)
    history.flush()
    history.append(*batch_of(run_of(2, first=5)))
    assert logged(tmp_path / LOG) == list(range(7))
    again = History(TICKS, tmp_path, log="os")
    assert [o for o, _ in kept(again)] == list(range(7))


def test_a_flush_that_fails_keeps_the_log(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(5)))
    with monkeypatch.context() as patch:
        patch.setattr("archive.table.write_files", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(DataError, match="disk full"):
            history.flush()
    history.append(*batch_of(run_of(1, first=5)))
    assert [o for o, _ in kept(History(TICKS, tmp_path, log="os"))] == list(range(6))
    history.flush()
    assert logged(tmp_path / LOG) == []


@given(data=st.data())
def test_a_torn_end_is_cut_off(tmp_path_factory, data):
    """Wherever the file ends, what stands before is read, and what is pushed afterwards stands behind it."""
    directory = tmp_path_factory.mktemp("log")
    log = Log(directory, TICKS, "os")
    sizes = []
    for first in (0, 2, 4):
        log.append(*batch_of(run_of(2, first=first)))
        sizes.append(os.path.getsize(segments(directory)[0]))
    log.close()
    (path,) = segments(directory)
    before = path.read_bytes()
    cut = data.draw(st.integers(0, sizes[-1]))
    os.truncate(path, cut)
    if data.draw(st.booleans()):
        with open(path, "ab") as file:
            file.write(bytes(data.draw(st.integers(1, 50))))  # room that the file system had reserved
    now = path.read_bytes()
    whole = 2 * sum(now[:size] == before[:size] for size in sizes)
    assert logged(directory) == list(range(whole))
    log = Log(directory, TICKS, "os")
    log.append(*batch_of(run_of(1, first=whole)))
    assert logged(directory) == list(range(whole + 1))


def test_a_log_that_is_broken_elsewhere_is_an_error(tmp_path):
    log = Log(tmp_path, TICKS, "os")
    log.append(*batch_of(run_of(2)))
    size = os.path.getsize(segments(tmp_path)[0])
    log.append(*batch_of(run_of(2, first=2)))
    log.close()
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: size - 9] + b"\x55" + whole[size - 8 :])
    with pytest.raises(DataError, match=r"log is broken at byte .* of"):
        logged(tmp_path)
    path.write_bytes(whole[:-1])
    Log(tmp_path, TICKS, "os").append(*batch_of(run_of(1)))
    with pytest.raises(DataError, match="is broken at byte"):
        logged(tmp_path)  # nobody has cut it off before going on: not what a crash leaves


def test_a_full_disk_takes_nothing(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, log="fsync")
    history.append(*batch_of(run_of(2)))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(DataError, match=r"log of ticks .* cannot be written: .*No space left"):
            history.append(*batch_of(run_of(2, first=2)))
    assert [o for o, _ in kept(history)] == [0, 1]
    history.append(*batch_of(run_of(2, first=2)))
    assert [o for o, _ in kept(History(TICKS, tmp_path, log="fsync"))] == [0, 1, 2, 3]


def test_rows_logged_before_a_column_was_added(tmp_path):
    wider = replace(TICKS, fields=(*TICKS.fields, Field("venue", "VARCHAR")))
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(2)))
    again = History(wider, tmp_path, log="os")
    assert again.snapshot().read(None, None).columns.column("venue").to_pylist() == [None, None]
