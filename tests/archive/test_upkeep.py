"""Compaction, retention, vacuum, verification: nothing lost, nothing doubled, an end, and clear words."""

from __future__ import annotations

import os
import random
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive import layout, upkeep
from archive.history import History
from archive.keeper import Keeper
from archive.layout import BY_KEY, FILE_ROWS_MAX, ROW_GROUP_ROWS, SEQ, is_by_key
from archive.place import place_of
from archive.reader import RangeRequest
from archive.table import Table
from archive.table_snapshot import TableSnapshot
from archive.upkeep import Rewrite, closed_before_us, compact, expire, plan_rewrites, vacuum, verify
from query.errors import DataError
from tests.archive.events import START_US, TICKS, Event, batch_of, events_of, run_of
from tests.properties.comparing import fewer
from tests.waiting import until

DAY_US = 86_400_000_000


def files_of(*files: tuple[str, float, float, int]) -> TableSnapshot:
    """A snapshot with files of (path, first day, last day, rows)."""
    low = np.array([START_US + int(f[1] * DAY_US) for f in files], np.int64)
    high = np.array([START_US + int(f[2] * DAY_US) for f in files], np.int64)
    rows = np.array([f[3] for f in files], np.int64)
    return TableSnapshot(1, tuple(f[0] for f in files), rows, rows, low, high, pa.table({}), (), {}, -1, 0)


def test_a_day_that_is_over_is_rewritten_once():
    open_day = [(f"d/{i}", i / 10, i / 10 + 0.09, 100_000) for i in range(10)]
    table = files_of(*open_day, ("e/0", 1.0, 1.2, 100_000))
    (one,) = plan_rewrites(table, START_US + DAY_US)
    assert one == Rewrite(tuple(f[0] for f in open_day), 1_000_000, "D")
    done = files_of((f"d/{BY_KEY}0", 0, 0.99, 1_000_000), ("e/0", 1.0, 1.2, 100_000))
    assert plan_rewrites(done, START_US + DAY_US) == []


def test_late_events_wait_until_they_are_many():
    day = [(f"d/{BY_KEY}{i}", 0, 0.99, FILE_ROWS_MAX) for i in range(3)]
    late = [(f"d/{i}", 0.5, 0.5, 10) for i in range(8)]
    closed = START_US + DAY_US
    assert plan_rewrites(files_of(*day, *late[:7]), closed) == []
    assert plan_rewrites(files_of(*day, *late), closed) == [Rewrite(tuple(f[0] for f in late), 80, "D")]
    many = ("d/many", 0.1, 0.9, 2 * FILE_ROWS_MAX)
    (one,) = plan_rewrites(files_of(*day, many, *late[:2]), closed)
    assert one.rows == 5 * FILE_ROWS_MAX + 20


def test_files_of_a_day_that_goes_on_are_merged_by_size():
    small = [(f"d/{i}", i / 100, i / 100, 2_000) for i in range(8)]
    large = [(f"d/l{i}", i / 100, i / 100, 200_000) for i in range(7)]
    table = files_of(*large, *small)
    assert plan_rewrites(table, START_US) == [Rewrite(tuple(f[0] for f in small), 16_000, None)]
    assert plan_rewrites(files_of(*large, *small[:7]), START_US) == []


def test_sparse_days_become_months_and_years():
    daily = [(f"x/{i}", i, i + 0.5, 1_000) for i in range(60)]
    found = plan_rewrites(files_of(*daily), START_US + 70 * DAY_US)
    assert {r.unit for r in found} == {"M"}
    assert sorted(p for r in found for p in r.paths) == sorted(f[0] for f in daily)


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1))
@fewer(2)
def test_rewriting_comes_to_an_end_and_keeps_all_rows(seed):
    rng = random.Random(seed)
    files: dict[str, tuple[str, float, float, int]] = {}
    for i in range(rng.randint(0, 60)):
        low = rng.choice([rng.uniform(0, 5), rng.uniform(0, 400)])
        span = rng.choice([0, 0.01, 0.9, rng.uniform(0, 40)])
        mark = rng.choice(["", "", BY_KEY])
        rows = rng.choice([1, 10, 3_000, 50_000, 900_000, FILE_ROWS_MAX])
        files[f"x/{mark}{i}"] = (f"x/{mark}{i}", low, low + span, rows)
    total = sum(f[3] for f in files.values())
    if rng.random() < 0.3:  # a day of many full files
        files |= {f"x/{BY_KEY}f{i}": (f"x/{BY_KEY}f{i}", 2.0, 2.9, FILE_ROWS_MAX) for i in range(rng.randint(9, 30))}
        total = sum(f[3] for f in files.values())
    closed = START_US + int(rng.uniform(0, 450) * DAY_US)
    for step in range(200):
        todo = plan_rewrites(files_of(*files.values()), closed)
        if not todo:
            break
        one = todo[0]
        assert len(set(one.paths)) == len(one.paths)
        taken = [files.pop(path) for path in one.paths]
        assert sum(f[3] for f in taken) == one.rows
        low, high = min(f[1] for f in taken), max(f[2] for f in taken)
        if one.unit is not None:
            assert all(START_US + f[2] * DAY_US < closed + 1 for f in taken)
        rest, part = one.rows, 0
        while rest:
            rows = min(rest, FILE_ROWS_MAX)
            mark = BY_KEY if one.unit is not None else ""
            files[f"x/{mark}n{step}-{part}"] = (f"x/{mark}n{step}-{part}", low, high, rows)
            rest, part = rest - rows, part + 1
    else:
        raise AssertionError("no end")
    assert sum(f[3] for f in files.values()) == total


def history_of(directory: Path, events: list[Event], step: int) -> History:
    history = History(TICKS, directory, memory_rows_max=10**9)
    for start in range(0, len(events), step):
        history.append(*batch_of(events[start : start + step]))
        history.flush()
    return history


def days(count: int) -> list[Event]:
    """Events of three days, five symbols and no symbol, two sources, in order of arrival."""
    rng = np.random.default_rng(count)
    ts = np.sort(rng.integers(0, 3 * DAY_US, count)) + START_US
    symbols = [None if i % 11 == 0 else "ABCDE"[i % 5] for i in range(count)]
    return [Event(int(t), symbols[i], float(i), None, "ab"[i % 2], i // 2, i) for i, t in enumerate(ts)]


def files_on_disk(directory: Path) -> set[str]:
    """Data files, without the checkpoints of the log."""
    found = {str(path.relative_to(directory)) for path in directory.rglob("*.parquet")}
    return {path for path in found if not path.startswith("_")}


def in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda e: (e.ts_us, e.source, e.offset))


@pytest.fixture
def small_files(monkeypatch):
    """Layout in small, so that a few rows make many files and row groups."""
    for module in (layout, upkeep):
        monkeypatch.setattr(module, "ROW_GROUP_ROWS", 16)
        monkeypatch.setattr(module, "FILE_ROWS_MAX", 64)
    monkeypatch.setattr(layout, "_ENOUGH", {"h": 10**9, "D": 16, "M": 16, "Y": 16})


@pytest.mark.slow
def test_compaction_changes_nothing_that_is_read(tmp_path, small_files):
    events = days(1000)
    history = history_of(tmp_path, events, 40)
    before = history.snapshot()
    table = Table.open(tmp_path)
    done = list(compact(table))
    assert done
    history.refresh()
    after = history.snapshot()
    for snapshot in (before, after, History(TICKS, tmp_path).snapshot()):
        assert events_of(snapshot.read(RangeRequest())) == in_order(events)
    for key in ("A", None):
        wanted = [e for e in in_order(events) if e.symbol == key]
        assert events_of(after.read(RangeRequest(keys={"symbol": [key]}))) == wanted
    assert list(compact(table)) == []
    assert {f.kind for f in verify(table, deep=True)} == {"waiting"}
    closed = [p for p in table.snapshot().paths if is_by_key(p)]
    assert {p.split("/")[0] for p in closed} == {"2024-01-01", "2024-01-02"}
    for path in closed:
        rows = pq.ParquetFile(tmp_path / path).read()
        times = rows["ts"].cast("int64").to_pylist()
        keys = [(key is None, key or "", t) for key, t in zip(rows["symbol"].to_pylist(), times)]
        assert keys == sorted(keys)
        assert len(keys) <= 64


@pytest.mark.slow
def test_one_key_reads_few_row_groups_of_a_closed_day(tmp_path, small_files):
    history_of(tmp_path, days(2000), 100)
    table = Table.open(tmp_path)
    list(compact(table))
    snapshot = table.snapshot()
    first_day = [p for p in snapshot.paths if p.startswith(f"2024-01-01/{BY_KEY}")]
    some = [p for p in snapshot.files(START_US, START_US + DAY_US - 1, {"symbol": pa.array(["B"])}) if p in first_day]
    assert 0 < len(some) < len(first_day) / 3


@pytest.mark.slow
def test_compaction_loses_a_race_and_goes_on(tmp_path, small_files, monkeypatch):
    events = days(300)
    history_of(tmp_path, events, 30)
    one, other = Table.open(tmp_path), Table.open(tmp_path)
    before = one.snapshot()
    what = plan_rewrites(before, closed_before_us(before, TICKS))[0]
    assert len(list(compact(other))) == 1
    assert not upkeep.rewrite(one, before, what, "1GB", lambda: False)
    on_disk = files_on_disk(tmp_path)
    assert on_disk == set(before.paths) | set(other.snapshot().paths)  # what was written in vain is gone
    assert events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == in_order(events)


@pytest.mark.slow
def test_a_stopped_compaction_leaves_nothing(tmp_path, small_files):
    history_of(tmp_path, days(300), 30)
    before = files_on_disk(tmp_path)
    table = Table.open(tmp_path)
    asked = iter([False, True])
    assert list(compact(table, stopped=lambda: next(asked, True))) == []
    assert files_on_disk(tmp_path) == before


@pytest.mark.slow
def test_a_compaction_is_stopped_while_it_sorts(tmp_path, small_files, monkeypatch):
    # Before: when the sort had ended and a file was written, up to seconds later, for which closing a database waited.
    history_of(tmp_path, days(300), 30)
    before = files_on_disk(tmp_path)
    endless = "(SELECT sum(hash(range)) FROM range(1_000_000_000_000))"
    monkeypatch.setattr(upkeep, "sorted_by", lambda schema, unit: f"{endless} + {SEQ}")
    asked = threading.Event()

    def stopped() -> bool:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
        return asked.is_set()

    assert list(compact(Table.open(tmp_path), stopped=stopped)) == []
    assert asked.is_set()
    assert files_on_disk(tmp_path) == before


@pytest.mark.slow
def test_retention_and_vacuum(tmp_path, small_files):
    events = days(1000)
    history_of(tmp_path, events, 40)
    table = Table.open(tmp_path)
    list(compact(table))
    reader = History(TICKS, tmp_path).snapshot()
    files, rows = expire(table, START_US + DAY_US)
    assert files > 0
    assert rows == sum(e.ts_us < START_US + DAY_US for e in events)
    assert len(events_of(reader.read(RangeRequest()))) == 1000  # an older snapshot still has them
    on_disk = files_on_disk(tmp_path)
    assert vacuum(table, grace_hours=1) == []
    waiting = vacuum(table, grace_hours=0, dry_run=True)
    assert set(waiting) == on_disk - set(table.snapshot().paths)
    assert vacuum(table, grace_hours=0) == waiting
    assert files_on_disk(tmp_path) == set(table.snapshot().paths)
    assert len(events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest()))) == 1000 - rows
    with pytest.raises(DataError, match="read before are not in the archive any more"):
        reader.read(RangeRequest())


@pytest.mark.slow
def test_vacuum_finds_orphans_and_leaves_young_ones(tmp_path):
    history_of(tmp_path, run_of(10), 10)
    table = Table.open(tmp_path)
    rows = pq.ParquetFile(tmp_path / table.snapshot().paths[0]).read()
    layout.write_files(rows, tmp_path, TICKS)
    (name,) = files_on_disk(tmp_path) - set(table.snapshot().paths)
    orphan = tmp_path / name
    (found,) = verify(table)
    assert (found.kind, found.path) == ("orphan", name)
    assert vacuum(table) == []
    old = time.time() - 30 * 3600
    os.utime(orphan, (old, old))
    assert vacuum(table) == [found.path]
    assert not orphan.exists()
    assert verify(table, deep=True) == []


def broken(directory: Path, deep: bool = False) -> list[tuple[str, str]]:
    return [(f.path, f.message) for f in verify(Table.open(directory), deep) if f.kind == "broken"]


@pytest.mark.slow
def test_verify_says_what_is_wrong(tmp_path):
    history = history_of(tmp_path, days(1000), 500)
    table = Table.open(tmp_path)
    first, second = table.snapshot().paths[:2]
    assert broken(tmp_path, deep=True) == []
    whole = (tmp_path / first).read_bytes()
    (tmp_path / first).write_bytes(whole[:-100])
    lost = ", with 500 events of sources a to b, offsets 250 to 499"
    assert broken(tmp_path) == [(first, f"has {len(whole) - 100:,} bytes, not {len(whole):,}{lost}")]
    (tmp_path / first).write_bytes(whole[:-100] + bytes(100))
    ((path, message),) = broken(tmp_path)
    assert path == first
    assert message == f"is damaged in its footer{lost}"
    with pytest.raises(DataError, match="cannot be read"):
        history.snapshot().read(RangeRequest())
    (tmp_path / first).unlink()
    assert broken(tmp_path) == [(first, f"is missing{lost}")]
    (tmp_path / first).write_bytes(whole)
    other = pq.ParquetFile(tmp_path / second).read().slice(0, 3)
    pq.write_table(other, tmp_path / first)
    table = Table.open(tmp_path)
    sizes = table.snapshot().sizes
    assert broken(tmp_path)[0][1].startswith(f"has {(tmp_path / first).stat().st_size:,} bytes, not {sizes[0]:,}")


@pytest.mark.slow
def test_verify_counts_each_event_once(tmp_path):
    history_of(tmp_path, run_of(20), 20)
    table = Table.open(tmp_path)
    before = table.snapshot()
    rows = pq.ParquetFile(tmp_path / before.paths[0]).read()
    some = rows.slice(5, 2)
    table.replace(before, [], layout.write_files(some, tmp_path, TICKS))
    offsets = sorted(some["_offset"].to_pylist())
    assert broken(tmp_path, deep=True) == [("", f"event {i} of source default is archived 2 times") for i in offsets]
    assert broken(tmp_path) == []


def test_one_process_maintains(tmp_path):
    place = place_of(tmp_path)
    with upkeep.one_at_a_time(place) as mine, upkeep.one_at_a_time(place) as theirs:
        assert (mine, theirs) == (True, False)
    with upkeep.one_at_a_time(place) as mine:
        assert mine


@pytest.mark.slow
def test_the_keeper_flushes_compacts_and_tells(tmp_path, small_files, monkeypatch):
    monkeypatch.setattr("archive.keeper.AGE_MAX_S", 0.05)
    history = History(TICKS, tmp_path, memory_rows_max=10**9)
    keeper = Keeper(lambda: [history], every_s=0.01)
    keeper.start()
    try:
        events = days(400)
        for start in range(0, 400, 20):
            history.append(*batch_of(events[start : start + 20]))
            until(lambda end=start + 20: history.table_snapshot.rows.sum() == end)
        until(lambda: any(is_by_key(path) for path in history.table_snapshot.paths))
        assert keeper.take_trouble() == []
        wanted = in_order(events)
        assert events_of(history.snapshot().read(RangeRequest())) == wanted
        (tmp_path / "_delta_log").rename(tmp_path / "away")
        history.append(*batch_of(run_of(1, "c")))
        told: list[str] = []
        until(lambda: told.extend(keeper.take_trouble()) or told)
        assert "ticks: events stay in memory: the archive of ticks" in told[0]
        (tmp_path / "away").rename(tmp_path / "_delta_log")
        until(lambda: history.table_snapshot.rows.sum() == 401)
    finally:
        keeper.stop()


def test_flush_by_bytes_and_by_age(tmp_path):
    history = History(TICKS, tmp_path, memory_rows_max=10**9, memory_bytes_max=3000)
    history.append(*batch_of(run_of(20)))
    assert history.table_snapshot.rows.sum() == 0
    history.append(*batch_of(run_of(40, first=20)))
    assert history.table_snapshot.rows.sum() == 60
    assert not history.flush_older(0.0)
    history.append(*batch_of(run_of(1, first=60)))
    assert not history.flush_older(60.0)
    assert history.flush_older(0.0)
    assert history.table_snapshot.rows.sum() == 61


@pytest.mark.slow
def test_a_day_of_a_stream_without_keys(tmp_path, small_files):
    schema = replace(TICKS, keys=())
    history = History(schema, tmp_path, memory_rows_max=10**9)
    for start in range(0, 300, 30):
        history.append(*batch_of(days(300)[start : start + 30]))
        history.flush()
    list(compact(Table.open(tmp_path)))
    assert len(events_of(History(schema, tmp_path).snapshot().read(RangeRequest()))) == 300
    assert {f.kind for f in verify(Table.open(tmp_path), deep=True)} == {"waiting"}


@pytest.mark.slow
def test_row_groups_and_files_are_of_the_stated_sizes(tmp_path):
    n = ROW_GROUP_ROWS * 3 + 7
    events = run_of(n, step_us=1_000)
    history = History(TICKS, tmp_path, memory_rows_max=10**9)
    history.append(*batch_of(events))
    history.append(*batch_of([Event(START_US + 2 * DAY_US, "A", 1.0, None, "default", n, n)]))
    history.flush()
    table = Table.open(tmp_path)
    list(compact(table))
    (closed,) = [p for p in table.snapshot().paths if is_by_key(p)]
    metadata = pq.ParquetFile(tmp_path / closed).metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [ROW_GROUP_ROWS] * 3 + [7]
