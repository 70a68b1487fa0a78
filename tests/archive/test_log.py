"""The write-ahead log: what a push has been answered for is there again, however the process ended, or it is said."""

from __future__ import annotations

import os
import random
import shutil
import struct
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive import log_frames
from archive.history import LOG, History
from archive.log import DAMAGED, TORN, Log, read
from archive.log_frames import LoggedRows, segments
from archive.log_repair import faults, repair
from archive.reader import RangeRequest
from matching.batch import EventBatch
from query.errors import DataError, HybridWarning, NotKept
from query.schema import Field, Schema
from tests.archive.events import TICKS, batch_of, events_of, run_of
from tests.properties.comparing import is_nightly


def logged(directory: Path) -> list[object]:
    """Offsets of rows, and watermarks, in the order of the log."""
    found = read(directory, TICKS)
    found.check()
    out: list[object] = []
    for part in found.entries:
        out += part.batch.offset.tolist() if isinstance(part, LoggedRows) else [part]
    return out


def kept(history: History) -> list[tuple[int, bool]]:
    """Offset of every event that is kept, and whether it is late."""
    whole = history.snapshot().read(RangeRequest(late=True))
    on_time = set(history.snapshot().read(RangeRequest()).offset.tolist())
    return sorted((offset, offset not in on_time) for offset in whole.offset.tolist())


def offsets(history: History) -> list[int]:
    return [offset for offset, _ in kept(history)]


def opened_quietly(directory: Path) -> tuple[History, list[str]]:
    """The history of a directory, and what was warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        history = History(TICKS, directory, log="os")
    return history, [str(warning.message) for warning in said]


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
    assert events_of(again.snapshot().read(RangeRequest())) == events_of(history.snapshot().read(RangeRequest()))
    again.append(*batch_of(run_of(2, first=8)))
    assert offsets(History(TICKS, tmp_path)) == list(range(10))
    assert segments(tmp_path / LOG) == [], "without a log what was in it is in files"


def test_rows_of_any_kind_come_back_as_they_were(tmp_path):
    """Several sources, gaps in offsets and sequence, times that are not microseconds, nulls, nested columns."""
    fields = (Field("d", "DATE"), Field("name", "VARCHAR"), Field("list", "DOUBLE[]"), Field("odd", "UBIGINT"))
    schema = Schema("odd", fields, time="d")
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array([19_000, 19_001, 19_002], pa.date32()), pa.array([None, "ä", "\U0001f600"]),
            pa.array([[1.0, None], None, []], pa.list_(pa.field("item", pa.float64()))),
            pa.array([2**64 - 1, None, 0], pa.uint64()),
        ],
        schema=log_frames.arrow_schema(schema),
    )  # fmt: skip
    ts_us = np.array([19_000, 19_001, 19_002], np.int64) * 86_400_000_000
    batch = EventBatch(
        columns, ts_us, np.array([1, 0, 1], np.int32), np.array([3, 0, 9]), np.array([0, 2, 3]), ("ünder", "b"),
    )  # fmt: skip
    late = np.array([True, False, False])
    log = Log(tmp_path, schema, "os")
    log.append(batch, late)
    log.append(batch.slice(1, 2), late[1:2])
    log.append(replace(batch, source=np.zeros(3, np.int32), offset=np.arange(3), seq=np.arange(4, 7)), ~late)
    first, second, third = read(tmp_path, schema).entries
    assert isinstance(first, LoggedRows)
    assert first.batch.columns.equals(columns)
    assert (first.batch.ts_us.tolist(), first.batch.offset.tolist()) == (ts_us.tolist(), [3, 0, 9])
    assert [first.batch.sources[i] for i in first.batch.source] == ["b", "ünder", "b"]
    assert (first.batch.seq.tolist(), first.late.tolist()) == ([0, 2, 3], late.tolist())
    assert isinstance(second, LoggedRows)
    assert second.batch.columns.equals(columns.slice(1, 1))
    assert (second.batch.sources, second.batch.seq.tolist(), second.late.tolist()) == (("ünder",), [2], [False])
    assert isinstance(third, LoggedRows)
    assert (third.batch.offset.tolist(), third.late.tolist()) == ([0, 1, 2], [False, True, True])


@pytest.mark.slow
def test_a_flush_ends_what_was_logged(tmp_path):
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(5)))
    history.reach(5)
    history.flush()
    history.append(*batch_of(run_of(2, first=5)))
    assert len(segments(tmp_path / LOG)) == 1
    assert logged(tmp_path / LOG) == [5, 5, 6]
    again = History(TICKS, tmp_path, log="os")
    assert (offsets(again), again.logged_watermark_us) == (list(range(7)), 5)
    again.flush()
    assert len(segments(tmp_path / LOG)) == 1, "so that it is seen if the log is removed"
    for _ in range(3):
        History(TICKS, tmp_path, log="os").close()
    assert len(segments(tmp_path / LOG)) == 1
    assert History(TICKS, tmp_path, log="os").logged_watermark_us == 5
    assert History(TICKS, tmp_path).last_seq == 6


def test_a_crash_between_commit_and_log_doubles_nothing(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(5)))
    monkeypatch.setattr("pathlib.Path.unlink", lambda path, missing_ok=False: None)
    history.flush()
    history.append(*batch_of(run_of(2, first=5)))
    assert logged(tmp_path / LOG) == list(range(7))
    assert offsets(History(TICKS, tmp_path, log="os")) == list(range(7))


def test_a_flush_that_fails_keeps_the_log(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(5)))
    with monkeypatch.context() as patch:
        patch.setattr("archive.table.write_files", lambda *args: (_ for _ in ()).throw(OSError("disk full")))
        for _ in range(20):
            with pytest.raises(DataError, match="disk full"):
                history.flush()
    assert len(segments(tmp_path / LOG)) == 2, "a keeper that tries again does not make a segment each time"
    history.append(*batch_of(run_of(1, first=5)))
    again = History(TICKS, tmp_path, log="os")
    assert offsets(again) == list(range(6))
    again.flush()
    assert logged(tmp_path / LOG) == []


# ---- ends of files


@pytest.mark.slow
@given(data=st.data())
def test_wherever_a_file_ends(tmp_path_factory, data):
    """What stands before is read and what is pushed afterwards follows it; if something is missing that was
    answered for, that is said. Before: nothing was said, and the file was cut."""
    directory = tmp_path_factory.mktemp("log")
    log = Log(directory, TICKS, "os")
    sizes = [os.path.getsize(segments(directory)[0])]
    for first in (0, 2, 4):
        log.append(*batch_of(run_of(2, first=first)))
        sizes.append(os.path.getsize(segments(directory)[0]))
    log.close()
    (path,) = segments(directory)
    before = path.read_bytes()
    cut = data.draw(st.integers(0, sizes[-1]))
    now = before[:cut]
    if data.draw(st.booleans()):
        now += bytes(data.draw(st.integers(1, 50)))  # room that the file system had reserved
    path.write_bytes(now)
    whole = 2 * sum(now[:size] == before[:size] for size in sizes[1:])
    found = read(directory, TICKS)
    assert path.read_bytes() == now
    if now[: sizes[0]] != before[: sizes[0]] or len(now) < sizes[0]:
        assert found.faults, "a segment is never without its head"
        return
    assert logged(directory) == list(range(whole))
    missing = 3 - whole // 2
    assert [f"the last {missing} appends are missing" in said for said in found.dropped] == [True] * (missing > 0)
    log = Log(directory, TICKS, "os", found.segment, found.next_frame)
    log.append(*batch_of(run_of(1, first=whole)))
    assert logged(directory) == list(range(whole + 1))
    assert read(directory, TICKS).dropped == [], "it is said once"


@pytest.mark.slow
def test_an_append_that_was_not_finished_is_passed_over(tmp_path, monkeypatch):
    """A crash in the middle of a write leaves that: nobody was answered for it."""
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(3)))
    (path,) = segments(tmp_path / LOG)
    whole = path.read_bytes()
    other = tmp_path.with_name("other")
    shutil.copytree(tmp_path, other)
    history.append(*batch_of(run_of(5, first=3)))
    frame = path.read_bytes()[len(whole) :]
    for length in (1, 3, 4, 20, 32, 33, 100, len(frame) - 1):
        directory = tmp_path.with_name(f"left {length}")
        shutil.copytree(other, directory)
        with open(directory / LOG / path.name, "ab") as file:
            file.write(frame[:length])
        again, said = opened_quietly(directory)
        assert (offsets(again), said) == ([0, 1, 2], [])
        again.append(*batch_of(run_of(2, first=3)))
        assert offsets(History(TICKS, directory)) == [0, 1, 2, 3, 4]
        assert not list((directory / LOG).glob(f"*{TORN}"))


def test_the_end_that_is_damaged_is_said_and_kept(tmp_path):
    # Before: 1 of 2 appends gone without a word, and the file cut.
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(2)))
    (path,) = segments(tmp_path / LOG)
    size = path.stat().st_size
    history.append(*batch_of(run_of(2, first=2)))
    data = bytearray(path.read_bytes())
    data[-9] ^= 4
    path.write_bytes(data)
    with pytest.warns(HybridWarning, match=rf"ticks: the log .* after byte {size}: the last 1 appends are missing"):
        again = History(TICKS, tmp_path, log="os")
    assert offsets(again) == [0, 1]
    assert Path(f"{path}{TORN}").read_bytes() == bytes(data[size:])
    assert path.read_bytes() == bytes(data)
    again.append(*batch_of(run_of(1, first=2)))
    assert opened_quietly(tmp_path)[1] == []


# ---- damage elsewhere


def thousand(directory: Path) -> History:
    """A history whose log has a hundred appends of ten events."""
    history = History(TICKS, directory, log="os")
    for first in range(0, 1000, 10):
        history.append(*batch_of(run_of(10, first=first)))
    return history


@pytest.mark.slow
def test_a_flipped_bit_in_a_length_is_no_torn_end(tmp_path):
    # Before: 10 of 1,000 events left, no warning, the file cut from 465,401 to 5,051 bytes.
    thousand(tmp_path)
    (path,) = segments(tmp_path / LOG)
    whole = path.read_bytes()
    frames = log_frames.read_segment(path).frames
    data = bytearray(whole)
    data[frames[3].at + 16] ^= 0x40  # of the length of the third append
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        History(TICKS, tmp_path, log="os")
    said = str(caught.value)
    assert f"{path} is broken at byte {frames[3].at:,} of {len(data):,}: 1 appends are unreadable" in said
    assert "10 events are missing, number 20 on (offsets of default 20 to 29)" in said
    assert "hybrid archive repair" in said
    assert path.read_bytes() == bytes(data), "opening changes nothing"
    assert [str(f) for f in faults(tmp_path, True)] == [said.split("\n")[0]]

    done = repair(tmp_path, True)
    assert (done.events, [aside.name for aside in done.aside]) == (990, [path.name + DAMAGED])
    assert done.aside[0].read_bytes() == bytes(data)
    assert done.faults[0].sources == {"default": (20, 30)}
    again, warned = opened_quietly(tmp_path)
    assert (offsets(again), warned) == ([*range(20), *range(30, 1000)], [])
    assert repair(tmp_path, True).faults == ()
    again.close()
    assert offsets(History(TICKS, tmp_path, log="os")) == [*range(20), *range(30, 1000)]


def refusal(directory: Path) -> str | None:
    """What is said where a damaged copy of a history is not opened."""
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    try:
        opened_quietly(copy)
    except DataError as error:
        return str(error).replace(str(copy), str(directory))
    finally:
        shutil.rmtree(copy)
    return None


def damages(data: bytes, rng: random.Random, count: int) -> list[bytes]:
    """The same with one bit flipped, at any place; cut; emptied."""
    found = [b""]
    for _ in range(count):
        at = rng.randrange(len(data))
        found.append(data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :])
        found.append(data[: rng.randrange(len(data))])
    return found


@pytest.mark.slow
def test_no_damage_is_silent(tmp_path_factory):
    """Each damage of each segment either changes no answer, or is said; repair keeps all that can be read. Before:
    flips in lengths and tags, and all cuts, were silent. NIGHTLY_DAMAGE=1 flips each bit and cuts at each length."""
    origin = tmp_path_factory.mktemp("origin")
    history = History(TICKS, origin, log="os")
    history.append(*batch_of(run_of(4)))
    history.flush()
    history.append(*batch_of(run_of(4, first=4)))
    assert history._log is not None
    history._log.rotate()
    history.append(*batch_of(run_of(4, first=8)))
    history.reach(9)
    history.append(*batch_of(run_of(4, first=12)))
    rng, silent, said = random.Random(7), 0, 0
    for name in [path.name for path in segments(origin / LOG)]:
        data = (origin / LOG / name).read_bytes()
        some: list[bytes | None] = [None, *damages(data, rng, 25 if is_nightly() else 15)]
        if os.environ.get("NIGHTLY_DAMAGE"):
            flips = (data[:i] + bytes([data[i] ^ 1 << b]) + data[i + 1 :] for i in range(len(data)) for b in range(8))
            some = [None, *flips, *(data[:i] for i in range(len(data)))]
        for damaged in some:
            directory = tmp_path_factory.mktemp("damaged")
            shutil.rmtree(directory)
            shutil.copytree(origin, directory)
            target = directory / LOG / name
            if damaged is None:
                target.unlink()
            else:
                target.write_bytes(damaged)
            error = refusal(directory)
            if error is not None:
                said += 1
                assert str(directory) in error
                assert damaged is None or target.read_bytes() == damaged
                done = repair(directory, True)
                assert done.faults
                again, warned = opened_quietly(directory)
                assert len(offsets(again)) == 4 + done.events
            else:
                again, warned = opened_quietly(directory)
                whole = offsets(again) == list(range(16))
                silent, said = silent + (whole and not warned), said + bool(warned)
                assert whole or warned, (name, damaged)
            shutil.rmtree(directory)
    assert said > 50
    assert silent > 1


def test_a_segment_that_is_missing(tmp_path):
    history = History(TICKS, tmp_path, log="os")
    assert history._log is not None
    for first in (0, 2, 4):
        history.append(*batch_of(run_of(2, first=first)))
        history._log.rotate()
    one, two, _, four = segments(tmp_path / LOG)
    for gone, what in (
        (one, "its events do not follow those of the archive; 2 events are missing, number 0 on"),
        (two, "segments 2 to 2 are missing; 2 events are missing, number 2 on \\(offsets of default 2 to 3\\)"),
        (four, "the following segment 4 is missing"),
    ):
        aside = gone.rename(tmp_path / "aside")
        with pytest.raises(DataError, match=what):
            History(TICKS, tmp_path, log="os")
        aside.rename(gone)
    assert offsets(History(TICKS, tmp_path, log="os")) == list(range(6))


def test_an_append_that_could_not_be_taken_back_does_not_count(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, log="fsync")
    history.append(*batch_of(run_of(2)))

    def refused(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", refused)
        patch.setattr("os.ftruncate", refused)
        with pytest.raises(DataError, match="No space left"):
            history.append(*batch_of(run_of(3, first=2)))
    other = [replace_price(event) for event in run_of(2, first=2)]
    history.append(*batch_of(other))
    again = History(TICKS, tmp_path, log="fsync")
    assert events_of(again.snapshot().read(RangeRequest(2 * 10**15))) == []
    assert [e.price for e in events_of(again.snapshot().read(RangeRequest()))][2:] == [-1.0, -1.0]


def replace_price(event):
    return event._replace(price=-1.0)


# ---- disks that are full, and logs that are removed


def test_a_full_disk_takes_nothing(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, log="fsync")
    history.append(*batch_of(run_of(2)))
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(DataError, match=r"log of ticks .* cannot be written: .*No space left"):
            history.append(*batch_of(run_of(2, first=2)))
    assert offsets(history) == [0, 1]
    history.append(*batch_of(run_of(2, first=2)))
    assert offsets(History(TICKS, tmp_path, log="fsync")) == [0, 1, 2, 3]


def test_a_disk_that_is_full_in_the_middle_of_an_append(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(2)))
    writev = os.writev
    with monkeypatch.context() as patch:

        def some(file, parts):
            if len(parts) == 1:
                raise OSError(28, "No space left on device")
            return writev(file, parts[:1])

        patch.setattr("os.writev", some)
        with pytest.raises(DataError, match="No space left"):
            history.append(*batch_of(run_of(2, first=2)))
    for first in (2, 4):
        history.append(*batch_of(run_of(2, first=first)))
    assert logged(tmp_path / LOG) == list(range(6))


def test_no_room_for_a_new_segment(tmp_path, monkeypatch):
    """The flush goes on, the log is longer for it, and gets short again once there is room."""
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(2)))
    with monkeypatch.context() as patch:
        patch.setattr("archive.log.write_segment", lambda *args: (_ for _ in ()).throw(OSError(28, "No space left")))
        history.flush()
        history.append(*batch_of(run_of(2, first=2)))
        assert logged(tmp_path / LOG) == [0, 1, 2, 3]
    history.append(*batch_of(run_of(1, first=4)))
    history.flush()
    assert logged(tmp_path / LOG) == []
    assert offsets(History(TICKS, tmp_path, log="os")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("what", ["directory", "segment"])
def test_a_log_that_is_removed_while_it_is_written(tmp_path, what):
    # Before: the descriptor wrote into nowhere, and the events were gone with the process.
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(2)))
    if what == "directory":
        shutil.rmtree(tmp_path / LOG)
    else:
        segments(tmp_path / LOG)[0].unlink()
    with pytest.warns(HybridWarning, match="was removed while it was written; the 2 events in memory were"):
        history.append(*batch_of(run_of(2, first=2)))
    history.append(*batch_of(run_of(2, first=4)))
    assert logged(tmp_path / LOG) == [2, 3, 4, 5]
    assert offsets(History(TICKS, tmp_path, log="os")) == list(range(6))


def test_a_flush_beside_it_takes_no_file_from_an_append(tmp_path, monkeypatch):
    # Before: OSError (Bad file descriptor), or the links of another file that had got its number.
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(2)))
    flushing = threading.Thread(target=history.flush)
    plain = os.fstat

    def slow(file):
        if not flushing.ident and threading.current_thread() is threading.main_thread():
            flushing.start()
            flushing.join(0.5)  # begins a segment, if nothing keeps it from that
        return plain(file)

    monkeypatch.setattr(os, "fstat", slow)
    history.append(*batch_of(run_of(2, first=2)))
    assert flushing.ident, "the append looks at its file"
    flushing.join()
    assert offsets(History(TICKS, tmp_path, log="os")) == [0, 1, 2, 3]


def test_two_that_take_one_log_for_their_own(tmp_path):
    """A segment is never written over: the second one to begin it is refused."""
    first, second = Log(tmp_path, TICKS, "os"), Log(tmp_path, TICKS, "os", 1, 1)
    second.append(*batch_of(run_of(2)))
    first.append(*batch_of(run_of(2)))
    assert first.rotate() == []
    first.close()
    with pytest.raises(DataError, match=r"cannot be written: .*File exists"):
        first.append(*batch_of(run_of(2, first=2)))
    assert logged(tmp_path) == [0, 1]


def test_a_stream_that_is_removed_while_it_is_written(tmp_path):
    history = History(TICKS, tmp_path / "t", log="os")
    history.append(*batch_of(run_of(2)))
    shutil.move(tmp_path / "t", tmp_path / "away")
    shutil.copytree(tmp_path / "away" / "_delta_log", tmp_path / "kept" / "_delta_log")
    shutil.rmtree(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(NotKept, match="was removed while it was written, and the 2 events in memory cannot be"):
            history.append(*batch_of(run_of(2, first=2)))
    shutil.copytree(tmp_path / "kept", tmp_path / "t", dirs_exist_ok=True)
    with pytest.warns(HybridWarning, match="the 2 events in memory were archived and a new log was begun"):
        history.append(*batch_of(run_of(2, first=2)))
    assert offsets(History(TICKS, tmp_path / "t", log="os")) == [0, 1, 2, 3]


# ---- formats


def test_a_log_of_the_releases_before_is_read(tmp_path):
    """Two segments that release 0.1 has written, with late rows and a watermark."""
    shutil.copytree(Path(__file__).parent / "logs" / "format-0", tmp_path / LOG)
    history = History(TICKS, tmp_path, log="os")
    assert (kept(history), history.logged_watermark_us) == ([(i, i in (1, 4)) for i in range(10)], 77)
    assert [(e.ts_us, e.price) for e in events_of(history.snapshot().read(RangeRequest()))] == [
        (e.ts_us, e.price) for e in run_of(10) if e.offset not in (1, 4)
    ]
    history.append(*batch_of(run_of(2, first=10)))
    again = History(TICKS, tmp_path, log="os")
    assert offsets(again) == list(range(12))
    again.flush()
    assert logged(tmp_path / LOG) == [77]


def test_damage_of_a_log_of_the_releases_before(tmp_path):
    shutil.copytree(Path(__file__).parent / "logs" / "format-0", tmp_path / LOG)
    first, _ = segments(tmp_path / LOG)
    whole = first.read_bytes()
    frames = log_frames.read_segment(first).frames
    first.write_bytes(whole[: frames[1].at] + b"\xff" + whole[frames[1].at + 1 :])  # a length
    with pytest.raises(DataError, match=f"is broken at byte {frames[1].at} of .*5 events are missing, number 0 on"):
        History(TICKS, tmp_path, log="os")
    done = repair(tmp_path, True)
    assert (done.events, len(done.aside)) == (5, 2)
    assert offsets(History(TICKS, tmp_path)) == list(range(5, 10))
    shutil.rmtree(tmp_path / LOG)
    shutil.copytree(Path(__file__).parent / "logs" / "format-0", tmp_path / LOG)


def test_a_torn_end_of_a_log_of_the_releases_before(tmp_path):
    shutil.copytree(Path(__file__).parent / "logs" / "format-0", tmp_path / LOG)
    last = segments(tmp_path / LOG)[-1]
    os.truncate(last, last.stat().st_size - 3)
    history, said = opened_quietly(tmp_path)
    assert (offsets(history), said) == (list(range(8)), [])
    history.append(*batch_of(run_of(3, first=8)))
    assert offsets(History(TICKS, tmp_path, log="os")) == list(range(11))


def test_a_newer_format_is_refused(tmp_path):
    thousand(tmp_path)
    (path,) = segments(tmp_path / LOG)
    head = bytearray(path.read_bytes())
    head[12:16] = struct.pack("<I", 7)
    head[32:36] = struct.pack("<I", log_frames.zlib.crc32(head[:32]))
    path.write_bytes(head)
    with pytest.raises(DataError, match=r"format 7; this program reads formats up to 1\nhint: open the database with"):
        History(TICKS, tmp_path, log="os")


def test_rows_logged_before_a_column_was_added(tmp_path):
    wider = replace(TICKS, fields=(*TICKS.fields, Field("venue", "VARCHAR")))
    history = History(TICKS, tmp_path, log="os")
    history.append(*batch_of(run_of(2)))
    again = History(wider, tmp_path, log="os")
    assert again.snapshot().read(RangeRequest()).columns.column("venue").to_pylist() == [None, None]


# ---- beside the process that writes


@pytest.mark.slow
def test_a_reader_sees_what_is_in_the_log_once(tmp_path):
    # Before: a second opening took the log for its own.
    writer = History(TICKS, tmp_path, log="os")
    reader = History(TICKS, tmp_path, read_only=True)
    for first in range(0, 40, 4):
        writer.append(*batch_of(run_of(4, first=first)))
        if first % 12 == 0:
            writer.flush()
        files = sorted(path.name for path in (tmp_path / LOG).iterdir())
        reader.refresh()
        assert (offsets(reader), reader.last_seq) == (list(range(first + 4)), first + 3)
        reader.flush()
        assert sorted(path.name for path in (tmp_path / LOG).iterdir()) == files
    assert offsets(History(TICKS, tmp_path, log="os")) == list(range(40))


@pytest.mark.slow
def test_a_reader_beside_a_log_that_is_rotated_all_the_time(tmp_path):
    writer, taken, over = History(TICKS, tmp_path, log="os"), [0], threading.Event()

    def write() -> None:
        while not over.is_set():
            writer.append(*batch_of(run_of(2, first=taken[0])))
            taken[0] += 2
            if taken[0] % 3 == 0:
                writer.flush()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        reader = History(TICKS, tmp_path, read_only=True)
        for _ in range(30):
            before = taken[0]
            reader.refresh()
            found = offsets(reader)
            assert found == list(range(len(found)))
            assert len(found) >= before
            assert not [path for path in (tmp_path / LOG).iterdir() if path.name.endswith(TORN)]
    finally:
        over.set()
        thread.join()
    assert offsets(History(TICKS, tmp_path, log="os")) == list(range(taken[0]))
