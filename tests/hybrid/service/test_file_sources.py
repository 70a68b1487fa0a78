"""A service that follows files: what becomes of its rows, and of its watermark, when files are replaced, rotated, moved
and finished."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hybrid
from hybrid.service.connectors import make_source
from hybrid.service.service import Service
from hybrid.service.status import rendered
from tests.hybrid.services import APP, Bench, piece
from tests.waiting import until

FOLDER = APP.replace('path = "ticks.ndjson"', 'path = "in"')


class Files(Bench):
    """A service with real sources."""

    def again(self) -> Service:
        super().again()
        self.service.sources.make_source = make_source
        return self.service

    def until(self, done: Callable[[], bool]) -> None:
        until(done, self.step, lambda: (self.said, self.service.status()))

    @property
    def archived(self) -> list[int]:
        """The prices that the archive has."""
        with hybrid.connect(self.file.parent / "market", read_only=True) as db:
            return [row["price"] for row in db.sql("SELECT price FROM ticks ORDER BY price").arrow().to_pylist()]


def lines(begin: int, end: int, name: str = "x") -> str:
    """A tick a second; every third one falls."""
    rows = []
    for i in range(begin, end):
        ts = f"2024-01-01T{i // 3600:02}:{i // 60 % 60:02}:{i % 60:02}"
        rows.append(f'{{"ts": "{ts}", "name": "{name}", "price": {i if i % 3 else i - 2}}}\n')
    return "".join(rows)


def prices(begin: int, end: int) -> list[int]:
    return sorted(i if i % 3 else i - 2 for i in range(begin, end))


def falls(begin: int, end: int) -> int:
    """How many falls there are in such ticks."""
    return sum(1 for i in range(begin + 1, end) if i % 3 == 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Files]:
    (tmp_path / "in").mkdir()
    found = Files(tmp_path, FOLDER)
    yield found
    if found.service.outlets.locked:
        found.stop()


def accepted(bench: Files) -> int:
    return int(bench.service.db.streams()["ticks"]["events"])


@pytest.mark.slow
def test_a_file_replaced_while_the_service_is_down(bench: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: the first 200 records of the new file were skipped, trouble {}."""
    path = bench.file.parent / "in" / "a.ndjson"
    path.write_text(lines(0, 200))
    bench.service.start()
    bench.until(lambda: accepted(bench) == 200)
    assert bench.stop() == 0
    path.write_text(lines(1000, 2200))
    bench.again().start()
    bench.until(lambda: "source feed" in bench.status()["trouble"])
    assert "a.ndjson was replaced or rewritten" in bench.service.status()["trouble"]["source feed"]
    assert accepted(bench) == 200
    bench.stop()
    bench.file.write_text(FOLDER.replace('type = "file"', 'type = "file"\nrotation = "follow"'))
    bench.again().start()
    bench.until(lambda: accepted(bench) == 1400)
    assert "the earlier file is not found: 200 of its records were read" in bench.status()["trouble"]["source feed"]
    monkeypatch.setattr("live.sources.files.TOLD_S", 0.0)  # as when its ten minutes are over
    bench.until(lambda: "source feed" not in bench.status()["trouble"])
    assert "source feed: recovered" in bench.said
    bench.stop()
    assert bench.archived == sorted(prices(0, 200) + prices(1000, 2200))


@pytest.mark.slow
def test_a_directory_that_is_moved_with_its_app(bench: Files, tmp_path: Path) -> None:
    """Before: every record was archived again."""
    for k in range(3):
        (tmp_path / "in" / f"{k}.ndjson").write_text(lines(k * 100, k * 100 + 100))
    bench.service.start()
    bench.until(lambda: accepted(bench) == 300)
    bench.stop()
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("in", "market", "app.toml"):
        (tmp_path / name).rename(moved / name)
    bench.file = moved / "app.toml"
    bench.again().start()
    with (moved / "in" / "2.ndjson").open("a") as file:
        file.write(lines(300, 310))
    bench.until(lambda: accepted(bench) == 310)
    bench.step(5)
    bench.stop()
    assert bench.archived == prices(0, 310)


@pytest.mark.slow
@pytest.mark.parametrize("between", ["running", "down"])
def test_finished_files_stop_counting(bench: Files, between: str) -> None:
    """Before: the first file held the watermark for ever: no rows from the second one on, after a restart neither."""
    folder = bench.file.parent / "in"
    (folder / "a.ndjson").write_text(lines(0, 100))
    bench.service.start()
    bench.until(lambda: accepted(bench) == 100)
    if between == "down":
        bench.stop()
        (folder / "a.ndjson").unlink()
        (folder / "b.ndjson").write_text(lines(100, 200))
        bench.again().start()
    (folder / "b.ndjson").write_text(lines(100, 200))
    bench.until(lambda: len(bench.sinks["alerts"].rows) >= falls(0, 200) - 1)
    (folder / "c.ndjson").write_text(lines(200, 300))
    bench.until(lambda: len(bench.sinks["alerts"].rows) >= falls(0, 300) - 1)
    assert accepted(bench) == 300
    assert bench.status()["streams"]["ticks"]["held_by"] is None
    assert bench.service.status()["streams"]["ticks"]["late"] == 0


@pytest.mark.slow
def test_files_that_grow_side_by_side_wait_for_each_other(bench: Files) -> None:
    """Neither of them is over: no event of one is late because the other was read first."""
    # Before: run as it is: passes. It guards what held.
    folder = bench.file.parent / "in"
    bench.service.start()
    ends = (0, 1, 50, 100, 101)
    for begin, end in itertools.pairwise(ends):
        for name in ("a", "b", "c"):
            with (folder / f"{name}.ndjson").open("a") as file:
                file.write(lines(begin, end, name))
            os.utime(folder / f"{name}.ndjson", (time.time() - 3600,) * 2)  # quiet for long
            bench.step(4)
    bench.until(lambda: accepted(bench) == 303)
    bench.step(10)
    assert bench.status()["streams"]["ticks"]["late"] == 0


@pytest.mark.slow
def test_who_holds_the_watermark_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: status "running", no trouble, and no word of who it is."""
    bench = Bench(tmp_path)
    source = bench.start()
    source.given += [piece(5, 3, source="feed/0"), piece(9, 7, 8, first=0, source="feed/1", name="y")]
    bench.step(4)
    query = next(iter(bench.service.db.watching().values()))
    for k in range(3, 16):
        source.given.append(piece(7, first=k, source="feed/1", name="y"))
        bench.pass_s(1.0)
    status = bench.status()
    told = status["streams"]["ticks"]
    assert told["held_by"] == "feed/0"
    assert told["held_since"].startswith(time.strftime("%Y-", time.gmtime()))
    assert told["held_s"] >= 0
    assert bench.service.db.streams()["ticks"]["held_by"]["source"] == "feed/0"
    assert query.stats()["held_by"]["source"] == "feed/0"
    trouble = status["trouble"]["watermark of ticks"]  # its last event came just now, by the clock of the machine
    stalls = "stalls at 2024-01-01 00:00:01 while events arrive: it waits for feed/0, which"
    assert trouble == f"{stalls} is behind the others"
    assert "the watermark of ticks waits for feed/0, which is behind the others" in _text(status, bench.clock.now())
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60, time=time.time)
    with monkeypatch.context() as moved:
        moved.setattr("hybrid.watch.stream.time", later)
        status = bench.status()
    trouble = status["trouble"]["watermark of ticks"]
    # Before: "for 60.", and a busy machine was at 61.3 s.
    assert re.fullmatch(rf"{stalls} has sent nothing for \d+\.\d s; `idle` limits the wait", trouble)
    assert "the watermark of ticks waits for feed/0, which has sent nothing for " in _text(status, bench.clock.now())
    source.given.append(piece(7, first=60, source="feed/0"))
    assert "watermark of ticks" not in bench.status()["trouble"]
    assert bench.service.status()["streams"]["ticks"]["held_by"] == "feed/1"
    assert "watermark of ticks: recovered" in bench.said
    for _ in range(30):  # nothing arrives: that is no trouble
        bench.pass_s(1.0)
    assert "watermark of ticks" not in bench.status()["trouble"]
    bench.stop()


def _text(status: dict[str, Any], now: float) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as captured:
        console.print(rendered(status, now))
    return captured.get()


@pytest.mark.slow
def test_what_is_kept_is_in_a_copy_of_the_database(bench: Files, tmp_path: Path) -> None:
    # Before: there was no such file.
    (tmp_path / "in" / "a.ndjson").write_text(lines(0, 100))
    bench.service.start()
    bench.until(lambda: accepted(bench) == 100)
    bench.stop()
    from archive.place import place_of
    from hybrid.database.backup import snapshot

    snapshot(place_of(tmp_path / "market"), place_of(tmp_path / "copy"))
    assert (tmp_path / "copy" / "_service" / "files-feed.log").read_bytes() == (
        tmp_path / "market" / "_service" / "files-feed.log"
    ).read_bytes()

