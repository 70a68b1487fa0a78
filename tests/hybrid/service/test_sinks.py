"""A service and its sinks: what a sink loses, refuses, delays or says wrongly takes no row away, and is said."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybrid.service.app import App
from hybrid.service.app_file import load
from hybrid.service.connectors import make_sink
from hybrid.service.service import Service
from live.sinks import ndjson, parquet
from live.sinks.base import Sink
from tests import waiting
from tests.hybrid.services import APP, Bench, FakeSink, FakeSource, piece

FILE = APP.replace('type = "stdout"', 'type = "file"\npath = "rows.ndjson"')
PARTS = APP.replace('type = "stdout"', 'type = "file"\nformat = "parquet"\npath = "rows"')
LATE = APP.replace('key = "name"', 'key = "name"\nlate = "late"') + """
[sinks.late]
type = "file"
path = "late.ndjson"
"""
OTHER = APP.replace('sinks = ["alerts"]', 'sinks = ["alerts", "other"]') + """
[sinks.other]
type = "stdout"
"""


class Files(Bench):
    """A bench with the sinks of its file."""

    def _sink(self, table: Any, app: App) -> Any:
        return make_sink(table, app)

    def fall(self, number: int) -> None:
        """Two ticks with one row: (10 * number, 10 * number - 1)."""
        next(iter(self.sources.values())).given.append(piece(10 * number, 10 * number - 1, first=2 * number))
        self.step(3)


def lines(file: Path) -> list[int]:
    """Which falls stand in a file."""
    return [json.loads(line)["high"] // 10 for line in file.read_text().splitlines()]


def parts(directory: Path) -> list[int]:
    return [high // 10 for p in sorted(directory.glob("part-*")) for high in pq.read_table(p)["high"].to_pylist()]


# ---- files that are taken away


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "moved", "replaced", "copied and cut", "compressed"])
def test_a_file_that_is_taken_away_while_rows_are_written(tmp_path: Path, how: str) -> None:
    """As by an operator, and by logrotate with create, copytruncate and compress. Rows behind the last cursor may stand
    in what was taken away, and come again."""
    # Before: the rows went on into the file that was gone ("removed": 2 and 3 stood nowhere), and behind a hole of
    # zeros for "copied and cut"; the status counted 3 rows as written, and said nothing.
    bench = Files(tmp_path, FILE)
    bench.start()
    rows, old = tmp_path / "rows.ndjson", tmp_path / "rows.ndjson.1"
    bench.fall(1)
    bench.pass_s(10)
    bench.step()  # the checkpoint: 1 stands there for good
    bench.fall(2)
    if how == "removed":
        rows.unlink()
    elif how == "moved":
        rows.rename(old)
    elif how == "replaced":
        rows.rename(old)
        rows.touch()
    elif how == "copied and cut":
        shutil.copy(rows, old)
        os.truncate(rows, 0)
    else:
        rows.rename(old)
        shutil.copy(old, tmp_path / "rows.ndjson.1.copy")
        old.unlink()
    bench.fall(3)
    for _ in range(4):
        bench.pass_s(4)
    assert lines(rows) == [2, 3]
    assert bench.status()["trouble"] == {}
    assert any("rows.ndjson was" in said and "1 rows are written again" in said for said in bench.said)
    if how == "moved":
        assert lines(old) == [1, 2]
    bench.stop()
    bench.again()
    bench.start()
    bench.fall(4)
    bench.stop()
    assert lines(rows) == [2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["removed", "moved"])
def test_a_directory_of_parquet_that_is_taken_away(tmp_path: Path, gone: str) -> None:
    # Before: "cannot be written: No such file or directory", until the service was started anew.
    bench = Files(tmp_path, PARTS)
    bench.start()
    bench.fall(1)
    bench.pass_s(10)
    bench.step()
    if gone == "removed":
        shutil.rmtree(tmp_path / "rows")
    else:
        (tmp_path / "rows").rename(tmp_path / "old")
        assert parts(tmp_path / "old") == [1]
    bench.fall(2)
    for _ in range(6):
        bench.pass_s(4)
    assert parts(tmp_path / "rows") == [2]
    assert bench.status()["trouble"] == {}
    assert any("rows was removed, moved or replaced" in said for said in bench.said)
    bench.stop()


@pytest.mark.slow
def test_a_kill_behind_a_rotation(tmp_path: Path) -> None:
    """The cursor is of the file that was moved away, the one that is there is shorter: it is told by its inode."""
    # Before: run as it is: passes, as no file took the place of the one that was moved away. Without the inode: "has 90
    # bytes, and had 180 at the last checkpoint".
    bench = Files(tmp_path, FILE)
    bench.start()
    rows = tmp_path / "rows.ndjson"
    bench.fall(1)
    bench.fall(2)
    bench.pass_s(10)
    bench.step()
    rows.rename(tmp_path / "old")
    bench.fall(3)
    bench.step(3)
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "market", kept)
    whole = rows.read_bytes() if rows.exists() else b""
    bench.stop()
    shutil.rmtree(tmp_path / "market")
    kept.rename(tmp_path / "market")
    rows.write_bytes(whole)
    bench.again()
    bench.start()
    bench.fall(3)
    bench.fall(4)
    assert bench.status()["trouble"] == {}
    bench.stop()
    assert lines(rows) == [3, 4]


# ---- disks and calls that fail


@pytest.mark.slow
def test_parquet_is_tried_again_behind_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: the file was not written before another row came or the service was stopped, and in trouble until then.
    bench = Files(tmp_path, PARTS)
    bench.start()
    bench.fall(1)

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parquet.os, "fsync", full)
        patch.setattr(bench.service.checkpoints, "_begin", lambda: None)  # it needs the disk too
        bench.pass_s(10)
        for _ in range(5):
            bench.pass_s(2)
        assert "No space left" in bench.status()["trouble"]["sink alerts"]
        assert parts(tmp_path / "rows") == []
    for _ in range(5):
        bench.pass_s(4)
    assert parts(tmp_path / "rows") == [1]
    assert "sink alerts" not in bench.status()["trouble"]
    assert bench.status()["sinks"]["alerts"]["unread"] == 0
    bench.stop()


@pytest.mark.slow
def test_what_a_disk_has_refused_comes_again_without_a_new_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that could not be synced may still be read, from memory that the disk has refused: those rows do not count
    as there."""
    # Before: "start from the last checkpoint", for ever; and the start took the rows in memory for written.
    bench = Files(tmp_path, FILE)
    bench.start()
    rows = tmp_path / "rows.ndjson"
    bench.fall(1)
    bench.pass_s(10)
    bench.step()
    bench.fall(2)
    written: list[int] = []
    sync, pwrite = os.fsync, os.pwrite

    def refuse(file: int) -> None:
        if os.path.samestat(os.fstat(file), rows.stat()):
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    with monkeypatch.context() as patch:
        patch.setattr(ndjson.os, "fsync", refuse)
        for _ in range(8):
            bench.pass_s(4)
        assert "Input/output error" in bench.status()["trouble"]["sink alerts"]

    def counted(file: int, data: Any, at: int) -> int:
        if os.path.samestat(os.fstat(file), rows.stat()):
            written.append(len(data))
        return pwrite(file, data, at)

    monkeypatch.setattr(ndjson.os, "pwrite", counted)
    for _ in range(20):
        bench.pass_s(4)
    assert lines(rows) == [1, 2]
    assert len(written) == 1
    assert bench.status()["trouble"] == {}
    bench.stop()


class Faulty:
    """A sink whose calls go wrong by a list: "" (right), "fails", "says it failed" (what it was asked is done)."""

    def __init__(self, sink: Sink, faults: list[str]) -> None:
        self.sink, self.faults = sink, faults

    def check(self, schema: pa.Schema) -> None: ...

    def _do(self, call: Callable[[], Any]) -> Any:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "fails":
            raise OSError("no")
        found = call()
        if fault:
            raise OSError("yes, but no")
        return found

    def open(self, cursor: str | None) -> None:
        self._do(lambda: self.sink.open(cursor))

    def write(self, rows: pa.Table) -> None:
        self._do(lambda: self.sink.write(rows))

    def cursor(self) -> Any:
        return self._do(self.sink.cursor)

    def close(self) -> None:
        self.sink.close()


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("fault", ["fails", "says it failed"])
@pytest.mark.parametrize("kind", ["lines", "parts"])
@pytest.mark.parametrize("at", range(6))
def test_each_call_that_goes_wrong(tmp_path: Path, kind: str, fault: str, at: int) -> None:
    """The n-th call of a sink of files goes wrong twice: rows are those of an undisturbed run; a write that was done
    and is said to have failed comes again, as delivery at least once does, under the same ids."""
    # Before: run as it is: passes. It guards what held.
    bench = Files(tmp_path, FILE if kind == "lines" else PARTS)
    faults = [""] * at + [fault] * 2
    bench._sink = lambda table, app: Faulty(make_sink(table, app), faults)  # type: ignore[method-assign]
    bench.again()
    bench.start()
    for number in (1, 2, 3):
        bench.fall(number)
        for _ in range(4):
            bench.pass_s(3.0)
    for _ in range(4):
        bench.pass_s(4.0)
    assert bench.status()["trouble"] == {}
    bench.stop()
    found = lines(tmp_path / "rows.ndjson") if kind == "lines" else parts(tmp_path / "rows")
    assert list(dict.fromkeys(found)) == [1, 2, 3]
    assert fault != "fails" or found == [1, 2, 3]
    assert not faults


def test_rows_say_which_query_they_come_from(tmp_path: Path) -> None:
    # Before: rows of two queries in one file could not be told apart.
    (query,) = re.findall(r"\[queries.falls\].*?(?=\[sinks)", FILE, re.DOTALL)
    named = query.replace("[queries.falls]", "[queries.named]").replace("SELECT *", "SELECT *, 'mine' AS query")
    bench = Files(tmp_path, FILE + named)
    bench.start()
    bench.fall(1)
    bench.stop()
    rows = [json.loads(line) for line in (tmp_path / "rows.ndjson").read_text().splitlines()]
    assert sorted((row["query"], row["high"]) for row in rows) == [("falls", 10), ("mine", 10)]


# ---- sinks that are not there yet


@pytest.mark.slow
def test_rows_of_a_sink_that_cannot_be_made_yet_wait_for_it(tmp_path: Path) -> None:
    """Its directory is on a disk that is not mounted yet; late events go the same way."""
    # Before: rows and late events were dropped without a word as long as the sink could not be made.
    (tmp_path / "mnt").mkdir()
    bench = Files(tmp_path, LATE.replace('type = "stdout"', 'type = "file"\npath = "mnt/rows.ndjson"'))
    (tmp_path / "mnt").rmdir()
    source = bench.start()
    bench.fall(5)
    bench.step()
    source.given.append(piece(3, 2, first=2, offset=12))
    for _ in range(3):
        bench.pass_s(2)
    status = bench.status()
    assert "of the file of rows does not exist" in status["trouble"]["sink alerts"]
    assert status["sinks"]["alerts"]["unread"] == status["queries"]["falls"]["unread"] == 1
    assert status["sinks"]["alerts"]["oldest_s"] >= 6
    (tmp_path / "mnt").mkdir()
    for _ in range(10):
        bench.pass_s(2)
    assert lines(tmp_path / "mnt/rows.ndjson") == [5]
    assert len((tmp_path / "late.ndjson").read_text().splitlines()) == 2
    bench.stop()


@pytest.mark.slow
def test_what_waits_for_a_sink_that_is_not_there_is_bounded(tmp_path: Path) -> None:
    """`unread_rows`: the sources wait then, which is said; the events before are archived, and nothing is dropped, over
    a stop as well."""
    # Before: run as it is: all 10 events were taken, nothing waited.
    (tmp_path / "mnt").mkdir()
    limits = "[limits]\nunread_rows = 2\nqueue_rows = 2\n"
    bench = Files(tmp_path, FILE.replace("rows.ndjson", "mnt/rows.ndjson") + limits)
    (tmp_path / "mnt").rmdir()
    source = bench.start()
    source.given += [piece(10 * n, 10 * n - 1, first=2 * n) for n in range(1, 6)]
    for _ in range(8):
        bench.pass_s(1)
    status = bench.status()
    assert status["streams"]["ticks"]["accepted"] == 4
    assert status["trouble"]["source feed"] == "waits: sink alerts has 2 unread rows of falls"
    bench.stop()
    assert any("3 rows are undelivered" in said for said in bench.said)  # one more was read
    left = source.given
    (tmp_path / "mnt").mkdir()
    bench.again()
    bench.start().given += left
    for _ in range(12):
        bench.pass_s(1)
    bench.stop()
    assert lines(tmp_path / "mnt/rows.ndjson") == [1, 2, 3, 4, 5]


# ---- sinks of a file that changes


RENAMED = FILE.replace('sinks = ["alerts"]', 'sinks = ["other"]').replace("[sinks.alerts]", "[sinks.other]")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["A.price AS high", "A.price + 0 AS high", "A.prize AS high"])
def test_rows_find_their_sink_when_it_gets_another_name(tmp_path: Path, text: str) -> None:
    """With the query as it was, with another text of it, and with one that is refused."""
    # Before: with another text, the row that was found and not yet fetched was dropped: its sink was gone by then.
    bench = Bench(tmp_path, APP)
    source = bench.start()
    source.given.append(piece(10, 9, 20))
    for reader in bench.service.sources.readers.values():
        reader.turn()
    bench.service.intake.push({})  # matched, and not fetched
    bench.rewrite(RENAMED.replace("A.price AS high", text))
    for n in range(3):
        source.given.append(piece(19 - n, first=3 + n))
        bench.step(2)
    rows = [pair for sink in bench.sinks.values() for pair in sink.pairs()]
    assert [low for _, low in rows] == [9, 19, 17]
    bench.stop()


@pytest.mark.slow
def test_a_version_that_is_refused_goes_to_the_sinks_that_there_are(tmp_path: Path) -> None:
    # Before: the rows of the old version, which went on, were dropped: its sink was gone.
    trades = """
[streams.trades]
columns = { ts = "TIMESTAMP", name = "VARCHAR", price = "BIGINT" }
time = "ts"
"""
    bench = Bench(tmp_path, APP + trades)
    source = bench.start()
    source.given.append(piece(10, 9))
    bench.step(3)
    bench.rewrite((RENAMED + trades).replace("FROM ticks", "FROM trades"))
    assert "not replaced" in bench.status()["trouble"]["query falls"]
    source.given.append(piece(20, 19, first=2))
    bench.step(3)
    assert bench.sinks["other"].pairs() == [(20, 19)]
    bench.stop()


@pytest.mark.slow
def test_a_sink_that_becomes_another_kind_begins_anew(tmp_path: Path) -> None:
    # Before: '{"length": ...' is no cursor of this sink, at each try, and its rows waited for ever.
    bench = Files(tmp_path, FILE)
    bench.start()
    bench.fall(1)
    bench.pass_s(10)
    bench.step()
    bench.rewrite(PARTS)
    bench.fall(2)
    bench.pass_s(10)
    bench.step(2)
    assert bench.status()["trouble"] == {}
    bench.stop()
    assert (lines(tmp_path / "rows.ndjson"), parts(tmp_path / "rows")) == ([1], [2])
    bench.file.write_text(FILE.replace("rows.ndjson", "more.ndjson"))
    bench.again()
    bench.start()
    bench.fall(3)
    assert bench.status()["trouble"] == {}
    bench.stop()
    assert lines(tmp_path / "more.ndjson") == [3]


@pytest.mark.slow
def test_rows_of_a_sink_that_fails_go_to_the_one_that_takes_its_place(tmp_path: Path) -> None:
    """A broker has moved: what waited for the old address goes to the new one."""
    # Before: the old one was tried for ever, which no status said, and its rows came with the next start.
    bench = Bench(tmp_path, APP)
    source = bench.start()
    old = bench.sinks["alerts"]
    old.broken = OSError("no route to host")
    source.given.append(piece(10, 9))
    bench.step(3)
    bench.sinks = {"alerts": FakeSink()}
    bench.rewrite(FILE)
    source.given.append(piece(20, 19, first=2))
    bench.step(4)
    assert bench.sinks["alerts"].pairs() == [(10, 9), (20, 19)]
    assert old.rows == []
    assert bench.status()["trouble"] == {}
    bench.stop()


@pytest.mark.slow
def test_rows_that_wait_for_a_sink_that_left_the_file_are_told(tmp_path: Path) -> None:
    # Before: they were kept below the state for ever, and nothing said so.
    bench = Bench(tmp_path, APP)
    bench.start()
    bench.sinks["alerts"].broken = OSError("no route to host")
    bench.sources["feed"].given.append(piece(10, 9))
    bench.step(3)
    bench.rewrite(RENAMED)
    assert "no route to host" in bench.status()["trouble"]["old sink alerts"]
    bench.stop()
    bench.sinks = {}
    bench.again()
    bench.start()
    assert bench.status()["trouble"]["sink alerts"].startswith("1 rows for it are pending in")
    bench.stop()
    bench.file.write_text(APP)
    bench.again()
    bench.start()
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(10, 9)]
    assert bench.status()["trouble"] == {}
    bench.stop()


# ---- sinks that are slow


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[Bench, FakeSink, threading.Event]]:
    """A service with threads, one of whose sinks does not return before the event is set."""
    go, stuck = threading.Event(), FakeSink()
    bench = Bench(tmp_path, OTHER, ("alerts", "other"))
    write = stuck.write

    def wait(rows: pa.Table) -> None:
        go.wait(waiting.GUARD_S)
        write(rows)

    stuck.write = wait  # type: ignore[method-assign]
    bench.sinks["alerts"] = stuck
    bench.service = Service(load(bench.file), bench.said.append, None, True, bench._source, bench._sink)
    yield bench, stuck, go
    go.set()


def until(condition: Callable[[], bool], bench: Bench) -> None:
    """Steps until a condition holds."""
    waiting.until(condition, lambda: bench.service.step() or time.sleep(0.005), bench.service.status)


@pytest.mark.slow
def test_a_sink_that_hangs_holds_up_nothing(
    hanging: tuple[Bench, FakeSink, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps go on, another sink gets its rows, checkpoints are taken, and the status says since when it hangs."""
    # Before: each checkpoint stood for five seconds, and with it the loop: the longest step was 5.0 s.
    bench, stuck, go = hanging
    monkeypatch.setattr("hybrid.service.sink_writer.SLOW_S", 0.2)
    monkeypatch.setattr("hybrid.service.checkpoints.SETTLE_S", 2.0)
    monkeypatch.setattr("hybrid.service.report.STATUS_EVERY_S", 0.05)
    source = bench.start()
    source.given.append(piece(10, 9))
    until(lambda: len(bench.sinks["other"].rows) == 1, bench)
    bench.service.checkpoints.hasten()
    steps, acknowledged = itertools.count(), len(source.acknowledged)

    def step() -> None:
        next(steps)
        bench.service.step()
        time.sleep(0.005)

    waiting.until(lambda: len(source.acknowledged) > acknowledged, step, bench.service.status)
    assert source.acknowledged[-1] == {"feed/0": 2}
    assert next(steps) > 10  # while the checkpoint waits
    until(lambda: "sink alerts" in bench.service.status()["trouble"], bench)
    said = bench.service.status()["trouble"]["sink alerts"]
    assert said.startswith("the call to write to it has not returned since 20")
    assert bench.service.status()["sinks"]["alerts"]["oldest_s"] > 0.1
    go.set()
    until(lambda: len(stuck.rows) == 1 and "sink alerts" not in bench.service.status()["trouble"], bench)
    assert bench.stop() == 0


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_sink_that_hangs(
    hanging: tuple[Bench, FakeSink, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are kept, and come with the next start, to the others not again."""
    # Before: run as it is: passes. It guards what held.
    bench, _, go = hanging
    monkeypatch.setattr("hybrid.service.checkpoints.SETTLE_S", 0.2)
    monkeypatch.setattr("hybrid.service.service.DRAIN_S", 0.2)
    bench.start().given.append(piece(10, 9))
    until(lambda: len(bench.sinks["other"].rows) == 1, bench)
    assert bench.stop() == 0
    assert any("1 rows are undelivered" in said for said in bench.said)
    go.set()
    bench.sinks["alerts"] = FakeSink()
    bench.again()
    bench.start()
    bench.step(3)
    assert (len(bench.sinks["alerts"].rows), len(bench.sinks["other"].rows)) == (1, 1)
    bench.stop()


@pytest.mark.slow
def test_a_sink_that_is_slower_than_its_rows_is_told(tmp_path: Path) -> None:
    # Before: only its sources said that they wait, not since when.
    bench = Bench(tmp_path, APP + "[limits]\nunread_rows = 2\n")
    source, sink = bench.start(), bench.sinks["alerts"]
    sink.cursor = lambda: None  # type: ignore[method-assign]
    sink.write = lambda rows: None  # type: ignore[method-assign]
    outlet = bench.service.outlets.by_name["alerts"]
    outlet.turn = lambda: False  # type: ignore[method-assign]
    source.given += [piece(10 * n, 10 * n - 1, first=2 * n) for n in range(1, 5)]
    for _ in range(6):
        bench.pass_s(1)
    said = bench.status()["trouble"]["sink alerts"]
    assert said.startswith("rows come faster than it takes them: 2 pending since 2024-01-01 01:00:0")
    first = said
    assert bench.status()["trouble"]["sink alerts"] == first
    del outlet.turn  # type: ignore[attr-defined]
    for _ in range(12):
        bench.pass_s(2)
    assert bench.status()["trouble"] == {}
    bench.stop()


@pytest.mark.slow
def test_two_services_with_one_file_of_rows(tmp_path: Path) -> None:
    # Before: they wrote into each other's lines.
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = Files(tmp_path / "a", FILE.replace("rows.ndjson", "../rows.ndjson"))
    two = Files(tmp_path / "b", FILE.replace("rows.ndjson", "../rows.ndjson"))
    one.start()
    two.start()
    one.fall(1)
    two.fall(2)
    assert "is locked by another sink, of this service or another" in two.status()["trouble"]["sink alerts"]
    assert lines(tmp_path / "rows.ndjson") == [1]
    one.stop()
    for _ in range(3):
        two.pass_s(4)
    assert two.status()["trouble"] == {}
    two.stop()
    assert lines(tmp_path / "rows.ndjson") == [1, 2]


def test_fakes_are_sinks() -> None:
    fake: Sink = FakeSink()
    faulty: Sink = Faulty(fake, [])
    source = FakeSource()
    assert (faulty.cursor(), source.ended) == ("0", False)
