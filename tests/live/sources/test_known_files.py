"""Files are known by their bytes: whatever is done to them, while they are followed or between two processes, each
record is taken once, or it is said which are not."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from live.sources import file_readers, files, known_files
from live.sources.base import Bad, Piece
from live.sources.files import FileSettings, FileSource
from query.errors import DataError
from query.schema import Field, Schema

EVENTS = Schema("events", (Field("ts", "TIMESTAMP"), Field("n", "BIGINT")), "ts")


def lines(begin: int, end: int, form: str = "ndjson") -> str:
    times = [f"2024-01-02T{i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}" for i in range(begin, end)]
    if form == "csv":
        return "".join(f"{ts},{i}\n" for ts, i in zip(times, range(begin, end)))
    return "".join(f'{{"ts": "{ts}", "n": {i}}}\n' for ts, i in zip(times, range(begin, end)))


class Reading:
    """A source of files, and an archive that keeps what it gives. numbers: those that came, in order; archived: the
    offset that is expected next from each partition; last: partitions that were over, in order."""

    def __init__(self, path: Path, memory: Path | None, **settings: Any) -> None:
        self.path, self.memory, self.settings = path, memory, settings
        self.archived: dict[str, int] = {}
        self.numbers: list[int] = []
        self.bad: list[Bad] = []
        self.last: list[str] = []
        self.handed: list[tuple[str, int, int]] = []  # partition, offset, number: since the last checkpoint
        OPEN.append(self)
        self.open()

    def open(self) -> None:
        self.source = FileSource(EVENTS, FileSettings(str(self.path), **self.settings), self.memory)
        self.source.open(self.archived)

    def go_on(self, **settings: Any) -> None:
        """Closes it, and begins anew."""
        self.source.close()
        self.settings |= settings
        self.open()

    def poll(self) -> bool:
        out = self.source.poll(0)
        for item in out:
            if isinstance(item, Bad):
                self.bad.append(item)
                continue
            assert isinstance(item, Piece)
            for offset, number in zip(item.offsets.tolist(), item.rows.column(1).to_pylist()):
                assert offset >= self.archived.get(item.source, 0)
                self.archived[item.source] = offset + 1
                self.handed.append((item.source, offset, number))
                self.numbers.append(number)
            self.last += [item.source] if item.last else []
        return bool(out)

    def read(self) -> list[int]:
        """What is there now, and all that was there before."""
        quiet = 0
        while quiet < 3:
            quiet = 0 if self.poll() else quiet + 1
        return self.numbers

    def keep(self) -> None:
        """A checkpoint."""
        self.source.kept(self.archived)
        self.handed.clear()

    def lose(self, count: int) -> None:
        """The process ends without a word, before the last `count` rows were archived."""
        for partition, offset, number in reversed(self.handed[max(0, len(self.handed) - count) :]):
            self.archived[partition] = offset
            self.numbers.remove(number)
        self.archived = {name: offset for name, offset in self.archived.items() if offset}
        self.handed.clear()
        self.source.close()
        self.open()


OPEN: list[Reading] = []


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().source.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.mark.parametrize("form", ["ndjson", "csv"])
@pytest.mark.parametrize("how", ["replaced", "written anew", "shorter", "same beginning"])
def test_a_file_replaced_between_two_processes(folder: Path, how: str, form: str) -> None:
    """Before: the first 2,000 of 12,000 records of the new file were skipped, and nothing was said (where the new one
    was shorter, an error)."""
    path = folder / f"a.{form}"
    header = "ts,n\n" if form == "csv" else ""
    path.write_text(header + lines(0, 2000, form))
    reading = Reading(folder, folder.parent / "known")
    assert reading.read() == list(range(2000))
    reading.keep()
    reading.source.close()
    match how:
        case "replaced":
            (folder / "new").write_text(header + lines(2000, 14000, form))
            os.replace(folder / "new", path)
            new = list(range(2000, 14000))
        case "written anew":
            path.write_text(header + lines(2000, 14000, form))
            new = list(range(2000, 14000))
        case "shorter":
            path.write_text(header + lines(2000, 2100, form))
            new = list(range(2000, 2100))
        case _:
            path.write_text(header + lines(0, 1900, form) + lines(3000, 5000, form))
            new = [*range(1900), *range(3000, 5000)]
    for _ in range(2):
        reading.open()
        with pytest.raises(DataError, match=rf"a\.{form} (was replaced|was truncated).*") as error:
            reading.read()
        assert 'rotation = "follow"' in str(error.value)
        reading.source.close()
    assert reading.numbers == list(range(2000))
    reading.go_on(rotation="follow")
    assert reading.read() == [*range(2000), *new]
    records = 2000 + (form == "csv")
    assert f"was replaced, and the earlier file is not found: {records} of its records were read" in str(
        reading.source.trouble()
    )
    assert list(reading.archived) == [str(path), f"{path}#2"]
    reading.go_on()
    assert len(reading.read()) == 2000 + len(new)
    assert reading.source.trouble() is None
    path.write_text(lines(20_000, 20_010))


@pytest.mark.parametrize("how", ["moved", "link", "relative", "renamed"])
def test_a_directory_under_another_name(folder: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: run without a memory: every record was archived again under the other path, but for the relative one,
    which was known; a file that was renamed while it was followed was a DataError."""
    for k in range(5):
        (folder / f"{k}.ndjson").write_text(lines(k * 10, k * 10 + 10))
    reading = Reading(folder, folder.parent / "known")
    reading.read()
    if how != "link":  # the end of the process comes before its checkpoint, and after it
        reading.keep()
    match how:
        case "moved":
            reading.path = folder.rename(folder.parent / "elsewhere")
        case "link":
            os.symlink(folder, folder.parent / "link")
            reading.path = folder.parent / "link"
        case "relative":
            monkeypatch.chdir(folder)
            reading.path = Path("../in")
        case _:
            (folder / "0.ndjson").rename(folder / "zero.ndjson")
    if how != "renamed":
        reading.go_on()
    with (reading.path / "3.ndjson").open("a") as file:
        file.write(lines(50, 60))
    assert reading.read() == list(range(60))
    assert set(reading.archived) == {str(folder / f"{k}.ndjson") for k in range(5)}
    assert reading.source.trouble() is None
    reading.go_on()
    assert reading.read() == list(range(60))


def test_an_older_database(folder: Path) -> None:
    """Its partitions are paths, of which nothing more is known. Before as now, under the same path; under another
    spelling each record came again."""
    for k in range(3):
        (folder / f"{k}.ndjson").write_text(lines(k * 10, k * 10 + 10))
    old = Reading(folder, None)
    old.read()
    old.source.close()
    os.symlink(folder, folder.parent / "link")
    for path in (folder, folder.parent / "link"):
        reading = Reading(path, folder.parent / f"known {path.name}")
        reading.source.close()
        reading.archived = dict(old.archived)
        reading.open()
        assert reading.read() == []
        with (folder / "1.ndjson").open("a") as file:
            file.write(lines(100, 110))
        assert reading.read() == list(range(100, 110))
        assert reading.archived == old.archived | {str(folder / "1.ndjson"): 20}
        with (folder / "1.ndjson").open("w") as file:
            file.write(lines(10, 20))
        reading.source.close()
    reading = Reading(folder, folder.parent / "known anew")
    reading.source.close()
    reading.archived = dict(old.archived)
    reading.open()
    reading.read()  # nothing new; it is known from now on all the same
    reading.keep()
    (folder / "2.ndjson").write_text(lines(1000, 1010))
    reading.go_on()
    with pytest.raises(DataError, match=r"2\.ndjson was replaced"):
        reading.read()


@pytest.mark.parametrize("rotation", ["rename", "copytruncate", "rename and gzip"])
@pytest.mark.parametrize("between", ["running", "stopped"])
def test_rotation_is_followed(folder: Path, rotation: str, between: str) -> None:
    """Before: a DataError while it ran; when it was stopped, as many records of the new file were skipped as had been
    read of the old one, and what was left of the old one was not read."""
    path = folder / "app.ndjson"
    path.write_text(lines(0, 10))
    reading = Reading(path, folder.parent / "known", rotation="follow")
    assert reading.read() == list(range(10))
    reading.keep()
    n = 10
    for number in range(4):
        if between == "stopped":
            reading.source.close()
        with path.open("a") as file:  # not read yet when it is rotated
            file.write(lines(n, n + 5))
        for i in range(number, 0, -1):
            for name in (f"app.ndjson.{i}", f"app.ndjson.{i}.gz"):
                if (folder / name).exists():
                    (folder / name).rename(folder / name.replace(f".{i}", f".{i + 1}"))
        if rotation == "copytruncate":
            shutil.copy(path, folder / "app.ndjson.1")
            if between == "running":
                reading.read()  # while both are there
                if reading.source.trouble():
                    assert "has the same content as" in str(reading.source.trouble())
            os.truncate(path, 0)
        else:
            path.rename(folder / "app.ndjson.1")
            if rotation == "rename and gzip":
                (folder / "app.ndjson.1.gz").write_bytes(gzip.compress((folder / "app.ndjson.1").read_bytes()))
                if between == "stopped":
                    (folder / "app.ndjson.1").unlink()
        with path.open("a") as file:
            file.write(lines(n + 5, n + 9))
        n += 9
        if between == "stopped":
            reading.open()
        reading.read()
        if rotation == "rename and gzip" and between == "running":
            (folder / "app.ndjson.1").unlink()
            reading.read()
        assert reading.numbers == list(range(n))
        assert reading.source.trouble() is None
        if number == 2:
            reading.keep()
    reading.go_on()
    assert reading.read() == list(range(n))
    assert list(reading.archived) == [str(path), *(f"{path}#{k}" for k in range(2, 6))]


def test_several_rotations_while_nobody_looks(folder: Path) -> None:
    # Before: run without a memory and without `rotation`: nothing of the 60 records of the new files was read.
    path = folder / "app.ndjson"
    path.write_text(lines(0, 10))
    reading = Reading(path, folder.parent / "known", rotation="follow")
    reading.read()
    reading.source.close()
    now = time.time()
    (folder / "app.ndjson-20240103.gz").write_bytes(gzip.compress(lines(0, 30).encode()))
    (folder / "app.ndjson-20240104").write_text(lines(30, 40))
    (folder / "app.ndjson-20240105").write_text(lines(40, 60))
    path.write_text(lines(60, 70))
    for name, age_s in (("-20240103.gz", 90), ("-20240104", 80), ("-20240105", 70), ("", 0)):
        os.utime(f"{path}{name}", (now - age_s, now - age_s))
    reading.open()
    assert reading.read() == list(range(70))
    assert reading.source.trouble() is None


@pytest.mark.parametrize("names", [("-20240103", "-20240104", "-20240105.gz"), (".10", ".9.gz", ".1"), (".2.gz", ".1")])
def test_the_name_says_how_old_a_rotated_file_is(folder: Path, names: tuple[str, ...]) -> None:
    """Before: the time of modification said it, which a copy, a restore or a packer sets: a directory that was copied
    without them was read in another order, and all but the newest events came late."""
    path = folder / "app.ndjson"
    now, count = time.time(), len(names)
    for i, name in enumerate((*names, "")):
        text = lines(10 * i, 10 * i + 10).encode()
        Path(f"{path}{name}").write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        os.utime(f"{path}{name}", (now - i, now - i))  # as if the newest had been copied first
    reading = Reading(path, folder.parent / "known", rotation="follow")
    reading.read()
    assert reading.numbers == list(range(10 * count + 10))


def test_what_went_before_it_was_read_is_said(folder: Path) -> None:
    # Before: run without a memory and without `rotation`: a DataError, "has become shorter".
    path = folder / "app.ndjson"
    path.write_text(lines(0, 10) + '{"ts": ')
    reading = Reading(path, folder.parent / "known", rotation="follow")
    reading.read()
    os.truncate(path, 0)
    path.write_text(lines(10, 13))
    assert reading.read() == list(range(13))
    assert "10 of its records were read; its last record was torn" in str(reading.source.trouble())


@pytest.mark.parametrize("how", ["copy", "hard link", "link", "gz", "copy of a part", "before it was read"])
def test_the_same_content_twice(folder: Path, how: str) -> None:
    """Before: a copy was archived as well, and so were both of two hard links after a restart; a hard link that
    appeared was a DataError, and so was a .gz."""
    path, twin = folder / "a.ndjson", folder / "b.ndjson"
    path.write_text(lines(0, 200))
    if how == "before it was read":
        shutil.copy(path, twin)
    reading = Reading(folder, folder.parent / "known")
    reading.read()
    match how:
        case "copy":
            shutil.copy(path, twin)
        case "hard link":
            os.link(path, twin)
        case "link":
            os.symlink(path, twin)
        case "gz":
            twin = folder / "a.ndjson.gz"
            twin.write_bytes(gzip.compress(path.read_bytes()))
        case "copy of a part":
            twin.write_text(lines(0, 150))
        case _:
            pass
    for _ in range(2):
        assert reading.read() == list(range(200))
        what = "is the beginning of" if how == "copy of a part" else "has the same content as"
        assert f"{twin} {what} {path}" in str(reading.source.trouble())
        reading.keep()
        reading.go_on()
    if how == "copy of a part":
        with twin.open("a") as file:
            file.write(lines(150, 200))
        reading.read()
        assert f"{twin} has the same content as {path}" in str(reading.source.trouble())
    path.unlink()  # it goes on as the other one
    if how == "link":
        assert reading.read() == list(range(200))
        assert f"{twin} is a link to {path}, which does not exist" in str(reading.source.trouble())
    elif how != "gz":
        with twin.open("a") as file:
            file.write(lines(200, 210))
        assert reading.read() == list(range(210))
        assert reading.source.trouble() is None


@pytest.mark.slow
def test_files_that_begin_alike_are_not_the_same(folder: Path) -> None:
    """Not even where a header of CSV is longer than all that they are known by."""
    names = ",".join(f"c{i}" for i in range(2000))
    assert len(names) > known_files.HEAD_BYTES
    commas = "," * 2000
    for k in range(3):
        (folder / f"{k}.csv").write_text(f"ts,n,{names}\n")
    reading = Reading(folder, folder.parent / "known")
    assert reading.read() == []
    for k in range(3):
        with (folder / f"{k}.csv").open("a") as file:
            file.write("".join(f"{row}{commas}\n" for row in lines(k * 9, k * 9 + 9 - k, "csv").splitlines()))
    assert reading.read() == [*range(9), *range(9, 17), *range(18, 25)]
    assert reading.source.trouble() is None


@pytest.mark.slow
@pytest.mark.parametrize("memory", [True, False])
def test_what_is_no_file_or_cannot_be_read(folder: Path, memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a FIFO hung the source for ever, a .gz ended it, an unreadable directory was an empty one."""
    (folder / "a.ndjson").write_text(lines(0, 10))
    (folder / "empty.ndjson").touch()
    os.mkfifo(folder / "fifo.ndjson")
    (folder / "not_there.ndjson").symlink_to(folder / "nothing")
    (folder / "below").mkdir()
    (folder / "below" / "b.ndjson").write_text(lines(10, 20))
    (folder / "torn.ndjson.gz").write_bytes(gzip.compress(lines(20, 3000).encode())[:-30])
    (folder / "broken.ndjson.gz").write_bytes(b"not compressed")
    (folder / "p.parquet.gz").write_bytes(b"?")
    reading = Reading(folder, folder.parent / "known" if memory else None)
    reading.read()
    assert set(reading.numbers) >= set(range(20))
    said = "\n".join(reading.source._troubles())
    for part in (
        "fifo.ndjson is a FIFO, not a file", "is a link to", "torn.ndjson.gz cannot be read yet: ",
        "broken.ndjson.gz cannot be read yet: Not a gzipped file", "p.parquet.gz is not read, as it is compressed",
    ):  # fmt: skip
        assert part in said
    assert reading.source.trouble() == said.replace("\n", "; ")  # Before: the first one, "(and 4 more)"
    walked, opened = os.walk, open

    def walk(top: str, onerror: Any) -> Any:
        onerror(PermissionError(13, "Permission denied", str(folder / "below")))
        return ((f, d, n) for f, d, n in walked(top) if not f.endswith("below"))

    def refuse(path: Any, *args: Any, **more: Any) -> Any:
        if str(path).endswith("a.ndjson"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "walk", walk)
        patch.setattr("builtins.open", refuse)
        with opened(folder / "a.ndjson", "a") as file:
            file.write(lines(3000, 3010))
        reading.read()
        said = "\n".join(reading.source._troubles())
        assert "below cannot be read: Permission denied" in said
        assert "a.ndjson cannot be read yet: Permission denied" in said
        time.sleep(files.QUIET_S + 0.1)
        reading.poll()
        assert reading.last == []  # what cannot be seen is not gone
    (folder / "torn.ndjson.gz").write_bytes(gzip.compress(lines(20, 3000).encode()))
    (folder / "fifo.ndjson").unlink()
    assert sorted(reading.read()) == list(range(3010))
    assert "torn" not in "\n".join(reading.source._troubles())


@pytest.mark.parametrize("what", ["FIFO", "directory"])
def test_what_takes_the_place_of_the_file(folder: Path, what: str) -> None:
    # Before: run without a memory: a FIFO in its place hung the source.
    path = folder / "a.ndjson"
    path.write_text(lines(0, 10))
    reading = Reading(path, folder.parent / "known")
    reading.read()
    path.unlink()
    assert reading.read() == list(range(10))
    assert str(reading.source.trouble()) == f"{path} was removed"
    path.mkdir() if what == "directory" else os.mkfifo(path)
    reading.read()
    told = f"{path} was removed" if what == "directory" else f"{path} is a FIFO, not a file"
    assert told in str(reading.source.trouble())
    path.rmdir() if what == "directory" else path.unlink()
    path.write_text(lines(0, 20))
    assert reading.read() == list(range(20))
    assert reading.source.trouble() is None


def test_parquet_by_its_content(folder: Path) -> None:
    """Before: skipped, or archived again."""

    def write(path: Path, begin: int, end: int) -> None:
        times = pa.array([i * 1_000_000 for i in range(begin, end)], pa.timestamp("us"))
        pq.write_table(pa.table({"ts": times, "n": list(range(begin, end))}), path)

    write(folder / "a.parquet", 0, 100)
    reading = Reading(folder, folder.parent / "known")
    reading.read()
    reading.keep()
    (folder / "a.parquet").rename(folder / "b.parquet")
    shutil.copy(folder / "b.parquet", folder / "c.parquet")
    reading.go_on()
    assert reading.read() == list(range(100))
    assert "c.parquet has the same content as" in str(reading.source.trouble())
    write(folder / "a.parquet", 100, 300)
    assert reading.read() == list(range(300))
    reading.keep()
    write(folder / "a.parquet", 300, 500)
    reading.go_on()
    with pytest.raises(DataError, match=r"a\.parquet was replaced"):
        reading.read()
    reading.go_on(rotation="follow")
    assert reading.read() == list(range(500))


def test_reading_goes_on_at_a_mark(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file is not read from its start at each start. Before: it was."""
    path = folder / "a.csv"
    path.write_text("ts,n\n" + lines(0, 50_000, "csv"))
    reading = Reading(path, folder.parent / "known")
    reading.read()
    reading.keep()
    taken: list[int] = []
    read = file_readers.TextFile._taken

    def counted(self: file_readers.TextFile, data: bytes, final: bool) -> list[Piece | Bad]:
        taken.append(len(data))
        return read(self, data, final)

    monkeypatch.setattr(file_readers.TextFile, "_taken", counted)
    with path.open("a") as file:
        file.write(lines(50_000, 50_010, "csv"))
    reading.go_on()
    assert reading.read() == list(range(50_010))
    assert sum(taken) < 1000


@pytest.mark.parametrize("what", ["flipped", "cut", "emptied", "removed", "another format"])
def test_a_memory_that_is_damaged(folder: Path, what: str) -> None:
    """It is said, or what it said is not needed; never is a record taken twice."""
    # Before: there was no such file.
    for k in range(3):
        (folder / f"{k}.ndjson").write_text(lines(k * 10, k * 10 + 10))
    memory = folder.parent / "known"
    reading = Reading(folder, memory)
    reading.read()
    reading.keep()
    reading.source.close()
    assert memory.stat().st_mode & 0o777 == 0o600
    whole = memory.read_bytes()
    flips = range(0, 8 * len(whole), 37) if what == "flipped" else [0]
    for flip in flips:
        match what:
            case "flipped":
                data = bytearray(whole)
                data[flip // 8] ^= 1 << flip % 8
                memory.write_bytes(data)
            case "cut":
                memory.write_bytes(whole[:-20])
            case "emptied":
                memory.write_bytes(b"")
            case "removed":
                memory.unlink()
            case _:
                memory.write_bytes(known_files._line({"version": 2}))
        try:
            reading.open()
        except DataError:
            assert what in ("flipped", "emptied", "another format")
        else:
            assert reading.read() == list(range(30))
            reading.source.close()
            # a bit of the last line end: as if that line were being written
            assert what in ("cut", "removed") or flip // 8 == len(whole) - 1


def test_a_memory_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is handed out of which is not known what it is; it is tried again."""
    # Before: there was no such file: run without it, its records were handed out.
    reading = Reading(folder, folder.parent / "known")
    (folder / "a.ndjson").write_text(lines(0, 10))
    with monkeypatch.context() as patch:

        def full(number: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "fsync", full)
        assert reading.read() == []
        assert "cannot be stored: No space left" in str(reading.source.trouble())
    assert reading.read() == list(range(10))
    with (folder / "a.ndjson").open("a") as file:
        file.write(lines(10, 20))
    reading.read()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        reading.keep()
        assert "No space left" in str(reading.source.trouble())
    (folder / "b.ndjson").write_text(lines(20, 30))
    assert reading.read() == list(range(30))
    assert reading.source.trouble() is None
    reading.go_on()
    assert reading.read() == list(range(30))


def test_a_memory_without_its_archive(folder: Path) -> None:
    """A database in memory begins anew, whatever its state directory says."""
    # Before: run without a memory: passes. It guards what held.
    (folder / "a.ndjson").write_text(lines(0, 10))
    reading = Reading(folder, folder.parent / "known")
    reading.read()
    reading.keep()
    reading.archived.clear()
    reading.go_on()
    assert reading.read() == [*range(10), *range(10)]
    reading.archived.clear()
    (folder / "a.ndjson").write_text(lines(10, 30))
    reading.go_on()
    assert reading.read() == [*range(10), *range(10), *range(10, 30)]
    assert reading.source.trouble() is None


@pytest.mark.slow
def test_the_memory_stays_small(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: there was no such file.
    monkeypatch.setattr(known_files, "LOG_BYTES", 2000)
    path = folder / "a.ndjson"
    reading = Reading(folder, folder.parent / "known")
    for i in range(100):
        with path.open("a") as file:
            file.write(lines(i, i + 1))
        reading.poll()
        reading.keep()
    assert (folder.parent / "known").stat().st_size < 3000
    reading.go_on()
    assert reading.read() == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_anything_in_any_order(tmp_path: Path, seed: int) -> None:
    """Files that grow, are rotated, packed, moved, copied, removed when they were read; processes that end at any
    moment: each record comes once."""
    # Before: run without a memory and without `rotation`: each of the twelve fails, nine with records that came twice
    # or not at all, three with a DataError.
    rng = random.Random(seed)
    folder, n, rotated = tmp_path / "in", 0, 0
    folder.mkdir()
    live = "app.ndjson"
    reading = Reading(folder, tmp_path / "known", rotation="follow")
    torn = ""
    for _ in range(120):
        match rng.choice(["write", "write", "write", "torn", "poll", "poll", "read", "keep", "stop", "lose", "rotate",
                          "pack", "move", "copy", "remove"]):  # fmt: skip
            case "write":
                count = rng.choice([1, 3, 200])
                with (folder / live).open("a") as file:
                    file.write((torn and torn[9:]) + lines(n + bool(torn), n + count))
                torn, n = "", n + count
            case "torn":
                if not torn:
                    torn = lines(n, n + 1)
                    with (folder / live).open("a") as file:
                        file.write(torn[:9])
            case "poll":
                reading.poll()
            case "read":
                reading.read()
                assert sorted(reading.numbers) == list(range(n))
            case "keep":
                reading.keep()
            case "stop":
                reading.go_on()
            case "lose":
                reading.lose(rng.choice([0, 2, 500]))
            case "rotate":
                if not torn and (folder / live).exists():
                    rotated += 1
                    (folder / live).rename(folder / f"{live}.{1000 - rotated}")
            case "pack":
                plain = [p for p in folder.glob(f"{live}.*") if p.suffix != ".gz" and not p.name.endswith(".copy")]
                if plain:
                    path = rng.choice(plain)
                    path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
                    if rng.random() < 0.5:
                        path.unlink()
            case "move":
                folder = reading.path = folder.rename(tmp_path / f"in{n}{rng.random()}")
                reading.lose(0) if rng.random() < 0.5 else reading.go_on()
            case "copy":
                if (folder / live).exists():
                    reading.read()
                    shutil.copy(folder / live, folder / "copy.ndjson")
                    reading.read()
                    (folder / "copy.ndjson").unlink()
            case _:
                reading.read()
                reading.keep()
                old = sorted(folder.glob(f"{live}.*"))
                if old:
                    rng.choice(old).unlink()
    if torn:
        with (folder / live).open("a") as file:
            file.write(torn[9:])
        n += 1
    reading.read()
    assert sorted(reading.numbers) == list(range(n))


# ---- what is known of files is gone


def test_what_is_known_is_written_again_where_it_was_removed(tmp_path: Path) -> None:
    """While it runs: a file that is renamed before the next start is recognised all the same."""
    # Before: it went on writing to the file that was gone, and all of b.ndjson was archived again: 10 events, then 20.
    folder, memory = tmp_path / "in", tmp_path / "state" / "known"
    folder.mkdir()
    memory.parent.mkdir()
    (folder / "a.ndjson").write_text(lines(0, 10))
    reading = Reading(folder, memory)
    while reading.poll():
        pass
    shutil.rmtree(memory.parent)
    memory.parent.mkdir()
    reading.source.kept(reading.archived)
    assert reading.source.trouble() is None
    (folder / "a.ndjson").rename(folder / "b.ndjson")
    reading.go_on()
    while reading.poll():
        pass
    assert reading.numbers == list(range(10))


def test_files_that_may_come_again_as_what_was_known_is_gone_are_named(tmp_path: Path) -> None:
    # Before: the events of c.ndjson came again, and nothing was said.
    folder, memory = tmp_path / "in", tmp_path / "known"
    folder.mkdir()
    for i, name in enumerate("ab"):
        (folder / f"{name}.ndjson").write_text(lines(10 * i, 10 * i + 10))
    reading = Reading(folder, memory)
    while reading.poll():
        pass
    memory.unlink()
    reading.go_on()
    while reading.poll():
        pass
    assert (reading.numbers, reading.source.trouble()) == (list(range(20)), None)  # they are known by their paths
    memory.unlink()
    (folder / "a.ndjson").rename(folder / "c.ndjson")
    reading.go_on()
    while reading.poll():
        pass
    assert reading.source.trouble() == (
        f"{folder}/c.ndjson is read as a new file, because the facts about files ({memory}) were removed: "
        f"if it is {folder}/a.ndjson, its events are archived twice"
    )
    (folder / "d.ndjson").write_text(lines(30, 31))
    reading.go_on()
    while reading.poll():
        pass
    assert reading.source.trouble() is None
