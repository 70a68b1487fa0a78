"""Checksums of data files: a bit that flips on the disk is found before any reader sees the rows, and named."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archive import layout, sums, upkeep
from archive.history import History
from archive.layout import DataFile
from archive.place import place_of
from archive.reader import RangeRequest
from archive.recent import KeyRange, ResolvedRequest
from archive.sums import digest_of, has_sums, inspect
from archive.table import Table
from query.errors import DataError
from tests.archive.events import START_US, TICKS, batch_of, events_of, run_of


@pytest.fixture
def small_groups(monkeypatch):
    for module in (layout, upkeep):
        monkeypatch.setattr(module, "ROW_GROUP_ROWS", 16)
    monkeypatch.setattr(layout, "_ENOUGH", {"h": 10**9, "D": 16, "M": 16, "Y": 16})


def filled(directory: Path, count: int = 96) -> tuple[History, Path]:
    """One file by key, of several row groups: A, then B, then C."""
    history = History(TICKS, directory, memory_rows_max=10**9)
    history.append(*batch_of(run_of(count)))
    history.flush()
    list(upkeep.compact(Table.open(directory), closed_us=START_US + 86_400_000_000))
    history.refresh()
    (path,) = history.table_snapshot.paths
    return history, directory / path


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def test_a_flipped_bit_is_named_with_what_is_missing(tmp_path, small_groups):
    # Before: 96 events, some with other prices, or an error of the decoder; no word of what was missing.
    history, file = filled(tmp_path)
    ends = sums.read_sums(file.name, file.stat().st_size, lambda start, end: file.read_bytes()[start:end]).ends
    flip(file, int(ends[2]) + 40)  # in the fourth group: of B
    with pytest.raises(DataError) as raised:
        history.snapshot().read(RangeRequest())
    said = f"{file.parent.name}/{file.name} is damaged in row group 4 of 6"
    assert raised.value.message.endswith(f"{said}; missing: 16 events of source default, offsets 49 to 94")
    assert "hybrid archive repair" in raised.value.hint


def test_only_what_is_read_is_checked(tmp_path, small_groups):
    history, file = filled(tmp_path)
    ends = sums.read_sums(file.name, file.stat().st_size, lambda start, end: file.read_bytes()[start:end]).ends
    flip(file, int(ends[2]) + 40)
    snapshot = history.snapshot()
    for key in ("A", "C"):
        found = events_of(snapshot.read(RangeRequest(keys={"symbol": [key]})))
        assert found == [event for event in run_of(96) if event.symbol == key]
    with pytest.raises(DataError, match="row group 4 of 6"):
        snapshot.read(RangeRequest(keys={"symbol": ["B"]}))
    with pytest.raises(DataError, match="row group 4 of 6"):
        snapshot.count_where([])
    with pytest.raises(DataError, match="row group 4 of 6"):
        snapshot.select_sql("recent")
    with pytest.raises(DataError, match="row group 4 of 6"):
        list(snapshot.since(0))
    what = upkeep.Rewrite(history.table_snapshot.paths, 96, "D")
    with pytest.raises(DataError, match="row group 4 of 6"):  # it would be written anew as if nothing were
        upkeep.rewrite(Table.open(tmp_path), history.table_snapshot, what, "1GB", lambda: False)


@pytest.mark.parametrize("at", [-1, -5, -9, -400])
def test_the_footer_is_known_by_the_name(tmp_path, small_groups, at):
    history, file = filled(tmp_path)
    flip(file, at)
    with pytest.raises(DataError, match=r"in its footer; missing: 96 events of source default, offsets 0 to 95"):
        history.snapshot().read(RangeRequest(keys={"symbol": ["A"]}))


@pytest.mark.slow
def test_each_row_group_is_read_once(tmp_path, small_groups, monkeypatch):
    history, _ = filled(tmp_path)
    checked = []
    real = sums.damaged_groups
    monkeypatch.setattr(sums, "damaged_groups", lambda of, some, read: checked.append(some) or real(of, some, read))
    snapshot = history.snapshot()
    for _ in range(2):
        snapshot.read(RangeRequest(keys={"symbol": ["A"]}))
        snapshot.read(RangeRequest())
    assert checked == [[0, 1], [2, 3, 4, 5]]


@pytest.mark.slow
def test_groups_that_may_hold_what_is_wanted(tmp_path, small_groups):
    _, file = filled(tmp_path)
    found, damaged = inspect(place_of(tmp_path), f"{file.parent.name}/{file.name}", file.stat().st_size)
    assert damaged == []

    def groups(low=None, end=None, span=None, **keys) -> list[int]:
        values = {name: pa.array(some, pa.string()) for name, some in keys.items()}
        wanted = ResolvedRequest(low, end, values, True, TICKS.names, span=span)
        return [i for i, held in enumerate(found.may_hold(wanted, "ts")) if held]

    assert groups() == [0, 1, 2, 3, 4, 5]
    assert groups(symbol=["B"]) == [2, 3]
    assert groups(symbol=["A", "C"]) == [0, 1, 4, 5]
    assert groups(symbol=[None]) == []
    assert groups(symbol=["B", None, "a"]) == [2, 3]
    assert groups(symbol=[f"A{i}" for i in range(99)]) == []
    assert groups(symbol=["0"] + [f"B{i}" for i in range(99)]) == [0, 1, 2, 3]  # joined: left out by the bounds alone
    assert groups(START_US + 60_000_000, symbol=["A"]) == [1]
    assert groups(None, START_US) == []
    assert groups(span=KeyRange("symbol", "B", "C")) == [2, 3]
    assert groups(span=KeyRange("_seq", 94, None)) == [3, 5]


@pytest.mark.slow
def test_files_without_checksums_stay_readable(tmp_path):
    history, file = filled(tmp_path)
    table = Table.open(tmp_path)
    plain = file.parent / "part-0.parquet"
    pq.write_table(pq.ParquetFile(file).read(), plain)
    before = table.snapshot()
    statistics = layout.file_statistics(pq.read_table(plain))
    one = DataFile(f"{file.parent.name}/{plain.name}", plain.stat().st_size, 96, statistics)
    assert table.replace(before, before.paths, [one]) is not None
    history.refresh()
    assert events_of(history.snapshot().read(RangeRequest())) == run_of(96)
    assert {finding.kind for finding in upkeep.verify(table, deep=True)} == {"waiting"}
    plain.write_bytes(plain.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"has .* bytes, not"):
        history.snapshot().read(RangeRequest())


def test_pages_have_checksums_for_other_readers(tmp_path):
    _, file = filled(tmp_path)
    column = pq.read_metadata(file).row_group(0).column(2)
    flip(file, column.data_page_offset + column.total_compressed_size - 20)
    with pytest.raises((OSError, pa.ArrowException)):
        pq.ParquetFile(file, page_checksum_verification=True).read()
    assert has_sums(file.name)
    assert digest_of(b"") == "e3b0c44298fc1c14"
