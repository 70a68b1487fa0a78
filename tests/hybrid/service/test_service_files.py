"""The files that a service keeps for its deliveries: who may read them, where they may be, how large they become, and
what it says when one of them is damaged."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybrid.service import dead_letters
from hybrid.service.status import STATUS_FILE, read_status
from live.sources.base import Bad
from query.errors import DataError
from tests.archive.damage import ALL, Point, points, try_all
from tests.hybrid.services import APP, START_US, Bench, piece

SECONDS = float(os.environ.get("DAMAGE_SECONDS", "1"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    if found.service.outlets.locked:
        found.stop()


# ---- who may read them


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_files_with_rows_are_their_owners(tmp_path: Path, umask: int) -> None:
    # Before: with umask 0 they were 0666, else 0644; with 0277 they were 0400, and could not be written again.
    before = os.umask(umask)
    try:
        bench = Bench(tmp_path, APP.replace('checkpoint = "10s"', 'checkpoint = "10s"\nlog = "os"'))
    finally:
        os.umask(0o022)
    os.umask(umask)
    try:
        bench.sinks["alerts"].broken = OSError("gone")
        bench.start().given += [piece(5, 3), Bad("feed/0", 2, b"?", "no JSON")]
        bench.step(4)
        bench.pass_s(11)
        bench.pass_s(1)
        state = tmp_path / "market" / "_service"
        kept = [*state.rglob("*"), *tmp_path.rglob("bad.ndjson"), *tmp_path.rglob("_checkpoint/*"),
                *tmp_path.rglob("_log/*"), *tmp_path.rglob("_partials/*")]  # fmt: skip
        modes = {str(p.relative_to(tmp_path)): oct(p.stat().st_mode & 0o777) for p in kept if p.is_file()}
        bench.stop()
    finally:
        os.umask(before)
    names = " ".join(modes)
    for name in ("lock", STATUS_FILE, "delivery-", "undelivered-", "bad.ndjson", ".state", "_log/"):
        assert name in names
    assert {name: mode for name, mode in modes.items() if mode != "0o600"} == {}


def test_a_dead_letter_file_of_an_older_release_becomes_its_owners(tmp_path: Path) -> None:
    # Before: seen by a script: it stayed 0644.
    file = tmp_path / "bad.ndjson"
    file.write_text('{"a": 1}\n')
    file.chmod(0o644)
    dead_letters.append(file, "{}", 1000)
    assert file.stat().st_mode & 0o777 == 0o600


# ---- a directory of somebody else


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o733])
def test_a_state_directory_of_another_user(bench: Bench, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be closed, readable, or writable and not readable: its path is named, and what to do."""
    # Before (run as another user): PermissionError as a traceback, for each of them.
    bench.start()
    bench.stop()
    state = bench.service.app.state
    listdir, opened = os.listdir, os.open

    def listing(path: object = ".") -> list[str]:
        if str(path) == str(state) and not mode & 0o4:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listdir(path)  # type: ignore[call-overload, no-any-return]

    def opening(path: object, flags: int, *given: int, **more: int) -> int:
        if str(path).startswith(str(state)) and flags & os.O_CREAT and not mode & 0o2:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, flags, *given, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listing)
        patch.setattr(os, "open", opening)
        said = r"the directory .*_service of the service cannot be used: Permission denied: .*_service.*\nhint: give it"
        with pytest.raises(DataError, match=said):
            bench.again().start()
    bench.again().start()


# ---- how large they become


def test_a_full_file_of_dead_letters_that_cannot_be_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: its descriptor was closed twice, the second time perhaps that of a file opened meanwhile.
    file = tmp_path / "bad.ndjson"
    dead_letters.append(file, '"first"', 1000)
    opened, closed, plain = dead_letters.open_private, [], os.close

    def opening(path: Path, flags: int) -> int:
        if not path.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, flags)

    def closing(number: int) -> None:
        closed.append(number)
        plain(number)

    monkeypatch.setattr(dead_letters, "open_private", opening)
    monkeypatch.setattr(dead_letters.os, "close", closing)
    with pytest.raises(OSError, match="No space left"):
        dead_letters.append(file, '"second"', 10)
    assert len(closed) == 1


def test_dead_letters_make_room_for_newer_ones(tmp_path: Path) -> None:
    # Before: one file, which grew until the disk was full.
    text = APP + "[limits]\ndead_letter_bytes = 2000\n"
    bench = Bench(tmp_path, text)
    source = bench.start()
    for n in range(240):
        source.given.append(Bad("feed/0", n, b"?" * 30, "no JSON"))
    for _ in range(250):
        bench.step()
    folder = tmp_path / "market" / "ticks"
    files = [folder / "bad.ndjson", *(folder / f"bad.ndjson.{i}" for i in range(1, dead_letters.KEPT + 1))]
    assert sorted(folder.glob("bad*")) == sorted(files)
    assert all(file.stat().st_size <= 2000 for file in files)
    offsets = [json.loads(line)["offset"] for file in reversed(files) for line in file.read_text().splitlines()]
    assert offsets == list(range(240 - len(offsets), 240))
    assert "dead letters of ticks: the oldest file, bad.ndjson.9, was deleted for newer ones" in bench.said
    assert bench.status()["streams"]["ticks"]["bad"] == 240
    bench.stop()


def test_a_dead_letter_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk takes it back, and it is said; behind a line that a crash has cut a new one begins."""
    # Before: seen by a script, with a file that may not grow: the beginning of the line stayed, and the next one stood
    # behind it on the same line.
    bench = Bench(tmp_path)
    source = bench.start()
    real = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:20])

    with monkeypatch.context() as patch:
        patch.setattr(dead_letters.os, "write", full)
        source.given.append(Bad("feed/0", 0, b"one", "no JSON"))
        bench.step(2)
    file = tmp_path / "market" / "ticks" / "bad.ndjson"
    assert file.read_text() == ""
    said = bench.status()["trouble"]["dead letters of ticks"]
    assert "No space left on device; missing there: " in said
    assert '"raw": "one"' in said
    file.write_text('{"source": "fe')
    source.given.append(Bad("feed/0", 1, b"two", "no JSON"))
    bench.step(2)
    assert [line[:14] for line in file.read_text().splitlines()] == ['{"source": "fe', '{"source": "fe']
    assert json.loads(file.read_text().splitlines()[1])["raw"] == "two"
    assert bench.status()["trouble"] == {}
    bench.stop()


@pytest.mark.slow
def test_a_sink_that_is_down_for_long_makes_no_file_of_each_row(tmp_path: Path) -> None:
    """A checkpoint writes the rows of a query as one, and the next start hands them over in their order."""
    # Before: a file, and a sync of it, for each fetch: 100 files here, at each checkpoint.
    bench = Bench(tmp_path)
    bench.sinks["alerts"].broken = OSError("gone")
    source = bench.start()
    source.given += [piece(10 * n, 10 * n - 1, first=2 * n) for n in range(1, 101)]
    for _ in range(110):
        bench.step()
        bench.service.intake.push({})
        bench.service.queries.fetch(wait=False)
    bench.service.checkpoint()
    state = bench.service.app.state
    assert len(list(state.rglob("*.arrow"))) == 1
    bench.stop()
    bench.sinks["alerts"].broken = None
    bench.again()
    bench.start()
    bench.step(4)
    assert [low for _, low in bench.sinks["alerts"].pairs()] == [10 * n - 1 for n in range(1, 101)]
    bench.stop()


@pytest.mark.slow
def test_a_state_directory_that_is_full_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, when a partition appears, and at a reload: it is said, and over once there is room."""
    # Before: OSError out of `step` and `start`, and with it the end of the service.
    bench = Bench(tmp_path)

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hybrid.service.delivery._write", full)
        source = bench.start()
        source.partitions = ("feed/0",)
        source.given += [piece(5, 3, 4)]
        bench.step(3)
        assert "No space left" in bench.status()["trouble"]["outbox"]
        assert bench.status()["streams"]["ticks"]["accepted"] == 0
    for _ in range(3):
        bench.pass_s(6)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    with monkeypatch.context() as patch:
        patch.setattr("hybrid.service.delivery._write", full)
        bench.rewrite(APP.replace("A.price AS high", "A.price + 0 AS high"))
        assert "No space left" in bench.status()["trouble"]["outbox"]
    source.given += [piece(2, first=3)]
    for _ in range(3):
        bench.pass_s(6)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    assert bench.status()["trouble"] == {}
    bench.stop()


# ---- damage


def make(directory: Path) -> Bench:
    """A service that was stopped with rows that its sink had not taken; two rows of before are in the sink."""
    bench = Bench(directory)
    source = bench.start()
    source.given += [piece(5, 3), piece(9, 8, first=2)]
    bench.step(4)
    bench.pass_s(11)
    bench.step(2)
    bench.sinks["alerts"].broken = OSError("gone")
    source.given += [piece(7, 6, first=4), piece(4, 2, first=6), Bad("feed/0", 8, b"?", "no JSON")]
    bench.step(4)
    bench.stop()
    bench.sinks["alerts"].broken = None
    return bench


@pytest.mark.slow
def test_each_file_of_deliveries_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emptied, cut, removed, a bit flipped: the rows that waited come, or the file is named."""
    # Before: a flipped bit in rows that waited was delivered, one in their list sent them to no sink, and without the
    # list they were gone; nothing was said.
    monkeypatch.setattr(os, "fsync", lambda file: None)
    intact, work = tmp_path / "intact", tmp_path / "work"
    work.mkdir()
    bench = make(work)
    shutil.copytree(work, intact)
    expected = [(7, 6), (4, 2)]
    folder = Path("market") / "_service"

    def ask(point: Point) -> tuple[bool, str]:
        shutil.rmtree(work)
        shutil.copytree(intact, work)
        if point.what:
            point.apply(work / folder)
        sink = bench.sinks["alerts"]
        sink.rows.clear()
        bench.said.clear()
        bench.again()
        try:
            bench.start()
            bench.step(3)
        except DataError:
            if hasattr(bench.service, "db"):
                bench.service.db.close(False)
            raise
        troubles = str(bench.status()["trouble"])
        bench.stop()
        return sink.pairs() == expected, "\n".join(bench.said) + troubles

    same, said = ask(Point("", ""))
    assert same, said
    found = list(points(intact / folder, ("lock",)))
    counts, silent = try_all(found, SECONDS, ALL, ask)
    assert silent[:3] == []
    removed = sum(times for kind, times in counts.items() if kind.startswith("remove"))
    assert removed >= len({point.path for point in found})  # of the rest as many as there is time for


@pytest.mark.slow
def test_deliveries_of_older_releases_are_read(tmp_path: Path) -> None:
    """They have no checksums, and do not say where their cursors are meant."""
    # Before: there was one form of them.
    bench = make(tmp_path)
    (file,) = bench.service.app.state.glob("delivery-*.json")
    told = json.loads(file.read_text())
    undelivered = [[sink, query] for sink, query, _ in told["undelivered"]]
    file.write_text(json.dumps({"version": 1, "cursors": told["cursors"], "undelivered": undelivered}))
    bench.sinks["alerts"].rows.clear()
    bench.again()
    bench.start()
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(7, 6), (4, 2)]
    assert bench.sinks["alerts"].opened[-1] == told["cursors"]["alerts"]
    bench.stop()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 1}', '{"version": 1, "state": "running"}', "\0"])
def test_a_status_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    # Before: AttributeError and KeyError for what is JSON and no status.
    (tmp_path / STATUS_FILE).write_text(text)
    with pytest.raises(DataError, match=STATUS_FILE):
        read_status(tmp_path, lambda: START_US / 1e6)
