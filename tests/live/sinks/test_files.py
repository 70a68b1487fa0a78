from __future__ import annotations

import errno
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from live.sinks import ndjson, parquet
from live.sinks.base import Lost
from live.sinks.ndjson import NdjsonSink
from live.sinks.parquet import ParquetSink
from query.errors import DataError
from tests.live.sinks.rows import Row, matches, table
from tests.properties.comparing import is_nightly


def read_ndjson(path: Path) -> list[Row]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(r["match_id"], r["join_id"], r["n"]) for r in rows]


def read_parquet(directory: Path) -> list[Row]:
    tables = [pq.read_table(path) for path in sorted(directory.glob("part-*"))]
    return [(r["match_id"], r["join_id"], r["n"]) for t in tables for r in t.to_pylist()]


def rows_of(tables: list[pa.Table]) -> list[Row]:
    return [(r["match_id"], r["join_id"], r["n"]) for t in tables for r in t.to_pylist()]


def test_lines_are_appended_and_the_cursor_is_the_length(tmp_path: Path) -> None:
    sink = NdjsonSink(tmp_path / "rows.ndjson")
    sink.check(matches(0, 1).schema)
    sink.open(None)
    sink.write(matches(0, 2))
    cursor = sink.cursor()
    assert json.loads(cursor or "").items() >= {"length": (tmp_path / "rows.ndjson").stat().st_size, "left": {}}.items()
    sink.write(matches(2, 1))
    sink.close()
    sink.close()
    assert (tmp_path / "rows.ndjson").read_text() == (
        '{"symbol":"S0","n":0,"match_id":"0000000000000000","join_id":null}\n'
        '{"symbol":"S1","n":1,"match_id":"0000000000000001","join_id":null}\n'
        '{"symbol":"S2","n":2,"match_id":"0000000000000002","join_id":null}\n'
    )


TABLES = [
    table([("a", None, 0), ("a", None, 1), (None, None, 2)]),
    table([("b", "x", 3), ("b", "y", 4)]),
    table([("c", None, 5), (None, None, 2), ("a", None, 6)]),
]


@pytest.mark.slow
def test_a_file_cut_at_any_byte_gets_each_row_once(tmp_path: Path) -> None:
    path = tmp_path / "rows.ndjson"
    sink = NdjsonSink(path)
    sink.open(None)
    sink.write(TABLES[0])
    cursor = sink.cursor()
    durable = path.stat().st_size
    sink.write(TABLES[1])
    sink.write(TABLES[2])
    whole = path.read_bytes()
    sink.close()
    for cut in range(durable, len(whole) + 1):
        tails = (b"", b"\0" * 7, b"\0\0\n" + whole[-5:])
        for tail in tails if is_nightly() else tails[cut % 3 :: 3]:
            path.write_bytes(whole[:cut] + (tail if cut < len(whole) else b""))
            again = NdjsonSink(path)
            again.open(cursor)
            again.write(pa.concat_tables(TABLES[1:]))
            again.close()
            assert path.read_bytes() == whole, (cut, tail)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ndjson", "parquet"])
@given(data=st.data())
def test_whatever_is_killed_and_taken_up_each_row_stands_once(
    kind: str, data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("sink") / "rows"
    names = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([None, "x"]))
    rows = [(m, j, n) for n, (m, j) in enumerate(data.draw(st.lists(names, min_size=1, max_size=14)))]

    def opened(cursor: str | None) -> NdjsonSink | ParquetSink:
        sink = NdjsonSink(place) if kind == "ndjson" else ParquetSink(place)
        sink.open(cursor)
        return sink

    cursor, checkpoint, durable, at = None, 0, 0, 0
    sink = opened(cursor)
    for step in data.draw(st.lists(st.sampled_from(["write", "write", "checkpoint", "kill"]), max_size=25)):
        if step == "write":
            count = data.draw(st.integers(0, 4))
            sink.write(table(rows[at : at + count]))
            at = min(at + count, len(rows))
        elif step == "checkpoint":
            cursor, checkpoint = sink.cursor(), at
            durable = place.stat().st_size if kind == "ndjson" else 0
        else:
            sink.close_file()
            if isinstance(sink, NdjsonSink):
                cut = data.draw(st.integers(durable, place.stat().st_size))
                os.truncate(place, cut)
                durable = min(durable, cut)
            elif data.draw(st.booleans()):
                (place / f".part-{sink._next:08d}.parquet").write_bytes(b"PAR1 not whole")
            sink, at = opened(cursor), checkpoint
    sink.write(table(rows[at:]))
    sink.close()
    found = read_ndjson(place) if kind == "ndjson" else read_parquet(place)
    assert Counter(found) == Counter(rows)


def test_a_kill_while_rows_come_again_keeps_what_stands(tmp_path: Path) -> None:
    """A checkpoint is taken when only some of the rows behind the last one have come again."""
    path = tmp_path / "rows.ndjson"
    sink = NdjsonSink(path)
    sink.open(None)
    sink.write(matches(0, 4))
    sink.close_file()
    sink.open(None)
    sink.write(matches(0, 2))
    cursor = sink.cursor()
    assert json.loads(cursor or "")["left"] == {f"{2:016x}/": 1, f"{3:016x}/": 1}
    sink.close_file()
    sink.open(cursor)
    sink.write(matches(2, 4))
    sink.close()
    assert [n for _, _, n in read_ndjson(path)] == list(range(6))


def test_a_full_disk_leaves_no_half_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.ndjson"
    sink = NdjsonSink(path)
    sink.open(None)
    sink.write(matches(0, 1))
    real, full = os.pwrite, True

    def pwrite(file: int, data: Any, at: int) -> int:
        if not full:
            return real(file, data, at)
        if len(data) < 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:40], at)

    monkeypatch.setattr(ndjson.os, "pwrite", pwrite)
    whole = path.read_bytes()
    with pytest.raises(OSError, match=r"rows.ndjson cannot be written: No space left on device\nhint: free disk space"):
        sink.write(matches(1, 3))
    assert path.read_bytes() == whole
    full = False
    sink.write(matches(1, 3))
    sink.close()
    assert [n for _, _, n in read_ndjson(path)] == [0, 1, 2, 3]


def test_what_a_disk_has_refused_is_not_called_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = NdjsonSink(tmp_path / "rows.ndjson")
    sink.open(None)
    sink.write(matches(0, 1))

    def refuse(file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(ndjson.os, "fsync", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            sink.cursor()
    for call in (sink.cursor, lambda: sink.write(matches(1, 1)), sink.close):
        with pytest.raises(OSError, match="start from the last checkpoint"):
            call()
    sink.open(None)
    sink.write(matches(0, 2))
    sink.close()
    assert [n for _, _, n in read_ndjson(tmp_path / "rows.ndjson")] == [0, 1]


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    for text in ("a note", "a note\n", '{"a": 1}\n', "[1]\n", '{"match_id": 5\n'):
        path.write_text(text)
        with pytest.raises(DataError, match="notes: the line at byte 0 is not a row of a live query"):
            NdjsonSink(path).open(None)
        assert path.read_text() == text
    with pytest.raises(DataError, match="notes is a file"):
        ParquetSink(path)
    with pytest.raises(DataError, match="not a regular file"):
        NdjsonSink(tmp_path)
    with pytest.raises(DataError, match="of the file of rows does not exist"):
        NdjsonSink(tmp_path / "nowhere" / "rows")


def test_a_file_that_was_cut_is_refused_and_one_that_was_moved_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "rows.ndjson"
    sink = NdjsonSink(path)
    sink.open(None)
    sink.write(matches(0, 3))
    cursor = sink.cursor()
    sink.close()
    os.truncate(path, 30)
    with pytest.raises(DataError, match=r"has 30 bytes, but had \d+ at the last checkpoint"):
        sink.open(cursor)
    path.rename(tmp_path / "old")
    sink.open(cursor)
    sink.write(matches(3, 1))
    sink.close()
    assert [n for _, _, n in read_ndjson(path)] == [3]


def test_a_cursor_of_another_sink_is_refused(tmp_path: Path) -> None:
    for cursor in ("", "7", '{"next": 3, "left": {}}', '{"length": "x", "left": {}}'):
        with pytest.raises(DataError, match="invalid cursor of this sink"):
            NdjsonSink(tmp_path / "rows").open(cursor)


def test_parquet_files_are_written_at_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetSink(tmp_path / "rows")
    sink.check(matches(0, 1).schema)
    sink.open(None)
    sink.write(matches(0, 2))
    sink.write(matches(2, 1))
    assert os.listdir(tmp_path / "rows") == []
    assert json.loads(sink.cursor() or "") == {"next": 1, "left": {}}
    assert json.loads(sink.cursor() or "") == {"next": 1, "left": {}}
    monkeypatch.setattr(parquet, "FILE_ROWS", 2)
    sink.write(matches(3, 2))
    sink.write(matches(5, 1))
    assert sorted(os.listdir(tmp_path / "rows")) == ["part-00000000.parquet", "part-00000001.parquet"]
    sink.close()
    assert [n for _, _, n in read_parquet(tmp_path / "rows")] == list(range(6))


def test_parquet_rows_stay_until_the_disk_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetSink(tmp_path / "rows")
    sink.open(None)
    sink.write(matches(0, 2))

    def refuse(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(parquet.os, "fsync", refuse)
        with pytest.raises(OSError, match=r"part-00000000.parquet cannot be written: .*No space left"):
            sink.cursor()
    assert read_parquet(tmp_path / "rows") == []
    sink.close()
    assert [n for _, _, n in read_parquet(tmp_path / "rows")] == [0, 1]


def test_queries_with_other_columns_share_a_parquet_sink(tmp_path: Path) -> None:
    """A file for each set of columns; the rows of each stay in their order, and none is written twice."""
    # Before: ArrowInvalid at each cursor, for ever, also where a query was replaced by one with other columns.
    sink = ParquetSink(tmp_path)
    sink.open(None)
    others = [matches(first, 2).drop_columns("symbol") for first in (100, 102)]
    for rows in (matches(0, 3), others[0], matches(3, 2), others[1]):
        sink.write(rows)
    sink.cursor()
    files = [pq.read_table(file) for file in sorted(tmp_path.glob("*.parquet"))]
    assert [file["n"].to_pylist() for file in files] == [[0, 1, 2, 3, 4], [100, 101, 102, 103]]
    sink.close_file()
    sink.open(None)
    sink.write(others[0])
    sink.write(matches(3, 4))
    sink.close()
    files = [pq.read_table(file)["n"].to_pylist() for file in sorted(tmp_path.glob("*.parquet"))]
    assert files == [[0, 1, 2, 3, 4], [100, 101, 102, 103], [5, 6]]


def test_a_parquet_sink_that_cannot_write_its_last_rows_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that follows, after a reload, has the directory for itself."""
    # Before: "written by another sink", until the process ended.
    sink = ParquetSink(tmp_path)
    sink.open(None)
    sink.write(matches(0, 3))

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            sink.close()
    follower = ParquetSink(tmp_path)
    follower.open(None)
    follower.write(matches(0, 3))
    follower.close()
    assert [row[2] for row in read_parquet(tmp_path)] == [0, 1, 2]


def test_a_broken_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "part-00000003.parquet").write_bytes(b"no Parquet at all")
    with pytest.raises(DataError, match="has a file that cannot be read"):
        ParquetSink(tmp_path).open(None)


def test_columns_that_parquet_has_no_form_for_are_refused_at_the_start(tmp_path: Path) -> None:
    schema = pa.schema({"match_id": pa.string(), "took": pa.month_day_nano_interval()})
    with pytest.raises(DataError, match="Parquet cannot represent the column took"):
        ParquetSink(tmp_path).check(schema)
    NdjsonSink(tmp_path / "rows").check(schema)
    with pytest.raises(DataError, match="evidence=True"):
        NdjsonSink(tmp_path / "rows").check(pa.schema({"a": pa.int64()}))


def test_a_sink_that_is_not_open_says_so(tmp_path: Path) -> None:
    for sink in (NdjsonSink(tmp_path / "rows"), ParquetSink(tmp_path / "more")):
        with pytest.raises(DataError, match="is not open"):
            sink.write(matches(0, 1))


# ---- files that are not what they were


def damaged(path: Path, how: str) -> None:
    match how:
        case "removed":
            path.unlink()
        case "replaced":
            path.rename(path.with_suffix(".1"))
            path.write_text("")
        case "cut":
            os.truncate(path, 0)
        case "added to":
            with open(path, "a") as file:
                file.write("a note\n")


@pytest.mark.parametrize("how", ["removed", "replaced", "cut", "added to"])
@pytest.mark.parametrize("call", ["write", "cursor"])
def test_a_file_that_is_no_longer_ours_is_told_before_and_behind_rows(tmp_path: Path, how: str, call: str) -> None:
    # Before: both calls returned; the rows went into a file without a name, behind a hole, or over the note.
    path = tmp_path / "rows.ndjson"
    sink = NdjsonSink(path)
    sink.open(None)
    sink.write(matches(0, 2))
    cursor = sink.cursor()
    sink.write(matches(2, 2))
    damaged(path, how)
    with pytest.raises(Lost, match=r"rows.ndjson (was (removed|truncated)|has 7 bytes written by another program)"):
        sink.write(matches(4, 1)) if call == "write" else sink.cursor()
    if how == "added to":
        with pytest.raises(DataError, match="is not a row of a live query"):
            sink.open(cursor)
        return
    sink.open(cursor)
    sink.write(matches(2, 3))
    sink.close()
    assert [n for _, _, n in read_ndjson(path)] == [2, 3, 4]


def test_a_file_that_took_the_place_of_another_is_read_from_its_beginning(tmp_path: Path) -> None:
    """While the sink was closed: its bytes before the cursor tell, whatever its length; a copy of the old one fits."""
    # Before: lines of it were taken for those behind the cursor, which began in the middle of one: an error for ever.
    path = tmp_path / "rows.ndjson"
    sink = NdjsonSink(path)
    sink.open(None)
    sink.write(matches(0, 3))
    cursor = sink.cursor()
    sink.close()
    whole = path.read_bytes()
    path.unlink()
    other = NdjsonSink(path)
    other.open(None)
    other.write(matches(10, 5))
    other.close()
    sink.open(cursor)
    sink.write(matches(12, 5))
    sink.close()
    assert [n for _, _, n in read_ndjson(path)] == list(range(10, 17))
    path.rename(tmp_path / "moved")
    path.write_bytes(whole)
    sink.open(cursor)
    assert not sink._standing.left
    sink.close()


def test_cursors_of_older_releases_are_read(tmp_path: Path) -> None:
    # Before: run as it is: passes, with the one form that there was.
    path = tmp_path / "rows.ndjson"
    sink = NdjsonSink(path)
    sink.open(None)
    sink.write(matches(0, 3))
    found = json.loads(sink.cursor() or "")
    sink.close()
    sink.open(json.dumps({"length": found["length"], "left": {}}))
    sink.write(matches(3, 1))
    sink.close()
    assert [n for _, _, n in read_ndjson(path)] == [0, 1, 2, 3]


@pytest.mark.parametrize("make", [NdjsonSink, ParquetSink])
def test_two_sinks_of_one_path_do_not_mix(tmp_path: Path, make: Any) -> None:
    """However the path is spelled; the second one is open as soon as the first is closed."""
    # Before: both wrote, each at its own idea of the end: torn lines, and parts that the other one replaced.
    (tmp_path / "link").symlink_to(tmp_path)
    one, two = make(tmp_path / "rows"), make(tmp_path / "link" / "rows")
    one.open(None)
    one.write(matches(0, 1))
    with pytest.raises(OSError, match=r"rows is locked by another sink, of this service or another\nhint: "):
        two.open(None)
    one.close()
    two.open(None)
    two.write(matches(1, 1))
    two.close()
    found = read_ndjson(tmp_path / "rows") if make is NdjsonSink else read_parquet(tmp_path / "rows")
    assert [n for _, _, n in found] == [0, 1]


def test_what_says_that_it_failed_and_was_done_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename of a Parquet file, and a write of lines."""
    # Before: run as it is: passes. It guards what held.
    pwrite, rename = os.pwrite, os.rename
    yes = [True, True]

    def done(call: Any) -> Any:
        def doing(*given: Any) -> Any:
            found = call(*given)
            if yes and yes.pop():
                raise OSError(errno.EIO, "Input/output error")
            return found

        return doing

    monkeypatch.setattr(ndjson.os, "pwrite", done(pwrite))
    monkeypatch.setattr(parquet.os, "rename", done(rename))
    for make, read in ((NdjsonSink, read_ndjson), (ParquetSink, read_parquet)):
        yes[:] = [True, True]
        path = tmp_path / make.__name__
        sink = make(path)
        sink.open(None)
        for rows in (matches(0, 2), matches(2, 1)):
            for _ in range(3):
                try:
                    sink.write(rows)
                    break
                except OSError:
                    pass
        for _ in range(3):
            try:
                sink.cursor()
                break
            except OSError:
                pass
        sink.close()
        assert [n for _, _, n in read(path)] == [0, 1, 2]
        assert not yes
