"""A service whose events are ahead of the clock or late, and whose streams are declared otherwise than before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hybrid.service.app_file import AppError, load
from live.sources.base import Piece
from query.errors import NotKept
from tests.hybrid.cli.test_cli import run
from tests.hybrid.inside import flow_of
from tests.hybrid.services import APP, START_US, Bench, piece, ticks

FAR_S = 100 * 365 * 86400  # 2123


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    if found.service.outlets.locked:
        found.stop()


def with_far(prices: list[int], far: list[int], offset: int) -> Piece:
    """A tick a second, those at `far` a century ahead."""
    times = [START_US + (offset + i + FAR_S * (i in far)) * 1_000_000 for i in range(len(prices))]
    columns = {"ts": pa.array(times, pa.int64()).cast(pa.timestamp("us")), "name": ["x"] * len(prices), "price": prices}
    offsets = np.arange(offset, offset + len(prices), dtype=np.int64)
    return Piece("feed/0", pa.RecordBatch.from_pydict(columns), offsets, offset + len(prices))


def letters(bench: Bench) -> list[dict[str, object]]:
    file = bench.file.parent / "market/ticks/bad.ndjson"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


# ---- ahead


@pytest.mark.slow
def test_events_far_ahead_are_quarantined_and_the_others_taken(bench: Bench) -> None:
    """Before: 3 of 3 later events late, nothing quarantined, trouble {}."""
    source = bench.start()
    source.given += [with_far([5, 9, 3, 7], [1, 3], 0), with_far([4, 2], [], 4)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    found = letters(bench)
    assert [(one["source"], one["offset"], json.loads(str(one["raw"]))["price"]) for one in found] == [
        ("feed/0", 1, 9), ("feed/0", 3, 7),
    ]  # fmt: skip
    assert "the time 2123-12-08T00:00:01.000000 is too far ahead of the clock: max_ahead" in str(found[0]["reason"])
    status = bench.status()
    assert (status["streams"]["ticks"]["late"], status["streams"]["ticks"]["bad"]) == (0, 2)
    assert "too far ahead of the clock are quarantined" in status["trouble"]["times of ticks"]
    bench.pass_s(61)
    assert bench.status()["trouble"] == {}


@pytest.mark.slow
def test_what_was_refused_last_is_acknowledged_and_does_not_come_again(bench: Bench) -> None:
    # Before: run as it is: nothing was refused.
    source = bench.start()
    source.given += [with_far([5, 9], [1], 0)]
    bench.step(2)
    bench.service.checkpoint()
    bench.step()
    assert source.acknowledged[-1] == {"feed/0": 2}
    bench.stop()
    bench.again()
    source = bench.start()
    bench.step()
    assert source.opened == {"feed/0": 2}
    source.given += [with_far([9], [0], 1), with_far([3], [], 2)]
    bench.step(3)
    assert len(letters(bench)) == 1, "its verdict stands"
    assert bench.sinks["alerts"].pairs() == [(5, 3)]


def test_a_disk_that_is_full_does_not_quarantine_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: run as it is: nothing was refused, all three events were one push.
    source = bench.start()
    source.given += [with_far([5, 9, 3], [1], 0)]
    push = bench.service.db.push
    calls = 0

    def full(stream: str, rows: pa.RecordBatch, *rest: object) -> int:
        nonlocal calls
        calls += 1
        if len(rows) == 2:
            raise NotKept("no space left")
        return push(stream, rows, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(bench.service.db, "push", full)
        bench.step(2)
        bench.pass_s(2)
        bench.pass_s(2)
    assert calls >= 4
    bench.pass_s(2)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    assert len(letters(bench)) == 1


def test_max_ahead_can_be_off_and_is_so_for_simulators(tmp_path: Path) -> None:
    # Before: run as it is: "streams.ticks has no key max_ahead".
    bench = Bench(tmp_path, APP.replace('key = "name"', 'key = "name"\nmax_ahead = "off"'))
    bench.start().given += [with_far([5, 9, 3], [1], 0)]
    bench.step(2)
    assert (letters(bench), bench.service.db.streams()["ticks"]["late"]) == ([], 1)
    bench.stop()
    simulated = """
[streams.s]
columns = { ts = "TIMESTAMP", symbol = "VARCHAR", price = "DOUBLE", volume = "BIGINT" }
time = "ts"
[sources.a]
stream = "S"
type = "stock"
"""
    file = tmp_path / "simulated.toml"
    file.write_text(simulated)
    assert load(file).stream("s").max_ahead is None
    file.write_text(simulated.replace('time = "ts"', 'time = "ts"\nmax_ahead = "2 days"'))
    assert str(load(file).stream("s").max_ahead) == "2 days, 0:00:00"
    file.write_text(simulated.replace('time = "ts"', 'time = "ts"\nmax_ahead = "never"'))
    with pytest.raises(AppError, match=r'max_ahead is "never", not a duration'):
        load(file)


# ---- late


@pytest.mark.slow
def test_most_events_late_is_a_trouble(tmp_path: Path) -> None:
    """Before: 3,000 of 3,000 late, and trouble {}."""
    bench = Bench(tmp_path, APP.replace('key = "name"', 'key = "name"\nmax_ahead = "off"'))
    source = bench.start()
    source.given += [with_far([5], [0], 0)]
    source.given += [piece(*range(30), first=1 + 30 * i) for i in range(100)]
    bench.step(101)
    status = bench.status()
    assert status["streams"]["ticks"]["late"] == 3000
    told = status["trouble"]["late events of ticks"]
    assert told.startswith("most of the last events came late: the watermark is ahead of the clock")
    assert "hybrid archive rewind" in told
    assert sum("late events of ticks" in line for line in bench.said) == 1
    bench.stop()
    done = run("archive", "rewind", "-d", str(tmp_path / "market"), "ticks")
    assert done.returncode == 0, done.stderr
    bench.again()
    bench.start()
    bench.step(3)
    status = bench.status()
    assert (status["trouble"], status["streams"]["ticks"]["late"]) == ({}, 1), "the one that is set aside"
    assert len(bench.sinks["alerts"].pairs()) == 99, "one at each piece's beginning but the first"
    bench.stop()


# ---- declared otherwise


LONGER = APP.replace('key = "name"', 'key = "name"\nlateness = "5s"\nretention = "9 days"\nidle = "30s"')


@pytest.mark.slow
def test_changed_settings_at_a_restart(bench: Bench) -> None:
    """Before: the start was refused, `stream ticks already exists with a different declaration`."""
    bench.start().given += [piece(5)]
    bench.step(2)
    bench.stop()
    bench.file.write_text(LONGER)
    assert run("check", str(bench.file)).returncode == 0
    bench.again()
    source = bench.start()
    assert "stream ticks: lateness is 5 s from now on, it was 0 s" in bench.said
    assert "stream ticks: idle is 30 s from now on, it was none" in bench.said
    source.given += [piece(3, first=10), piece(4, first=6, offset=11), piece(1, first=30)]
    bench.step(4)
    assert bench.service.db.streams()["ticks"]["late"] == 0
    assert bench.sinks["alerts"].pairs() == [(5, 4)], "6 s is before 10 s, and both come out in their order"
    bench.stop()
    bench.file.write_text(APP)  # and back
    bench.again()
    bench.start()
    assert "stream ticks: idle is none from now on, it was 30 s" in bench.said
    bench.step()
    assert flow_of(bench.service.db).streams["ticks"].pace.idle_us is None


@pytest.mark.slow
def test_changed_settings_at_a_reload(bench: Bench) -> None:
    """Before: `streams.ticks.lateness cannot change while the service runs`."""
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    bench.rewrite(LONGER)
    assert bench.status()["trouble"] == {}
    assert "stream ticks: retention is 9 d from now on, it was none" in bench.said
    source.given += [piece(3, first=10), piece(4, first=6, offset=11), piece(1, first=30)]
    bench.step(4)
    assert bench.sinks["alerts"].pairs() == [(5, 4)]
    bench.rewrite(APP.replace('key = "name"', 'key = "name"\nlate = "alerts"'))
    source.given += [piece(7, first=31), piece(9, first=2, offset=32)]
    bench.step(4)
    assert bench.sinks["alerts"].rows[-1]["match_id"] == "ticks/feed/0/32", "late events go to their new sink"


@pytest.mark.parametrize(
    ("old", "new", "says", "marked"),
    [
        ('key = "name"', 'key = "price"', "the key of stream ticks is name in the database, but price here", '"price"'),
        ('key = "name"', "", "the key of stream ticks is name in the database, but none here", "ticks"),
        ('price = "BIGINT"', 'price = "DOUBLE"', "column price of stream ticks is BIGINT in the database, but DOUBLE",
         '"DOUBLE"'),
        ('time = "ts"', 'time = "at"', "the time of stream ticks is ts in the database, but at here", '"at"'),
        ('time = "ts"', 'time = "ts"\norder = "price"', "the order of stream ticks is none in the database, but price",
         '"price"'),
    ],
)  # fmt: skip
def test_check_refuses_what_cannot_change(bench: Bench, old: str, new: str, says: str, marked: str) -> None:
    """Before: check said well formed, and the start was refused without a place."""
    bench.start()
    bench.stop()
    text = APP.replace(old, new, 1)
    if "at" in marked:
        text = text.replace('ts = "TIMESTAMP"', 'ts = "TIMESTAMP", at = "TIMESTAMP"')
    bench.file.write_text(text)
    done = run("check", str(bench.file))
    assert done.returncode == 1
    assert says in done.stderr
    line, caret = done.stderr[done.stderr.index(says) :].splitlines()[2:4]
    assert line[caret.index("^") : caret.rindex("^") + 1] == marked
    assert "declare a stream of another name, and fill it from this one with hybrid sql" in done.stderr


WIDER = APP.replace('price = "BIGINT" }', 'price = "BIGINT", venue = "VARCHAR" }')


@pytest.mark.slow
def test_a_column_that_the_file_takes_back(bench: Bench) -> None:
    """A rollback of an added column. Before: an outage, `column venue is left out`."""
    bench.file.write_text(WIDER)
    bench.again()
    rows = ticks(5, 3).append_column("venue", pa.array(["W", "X"]))
    bench.start().given += [Piece("feed/0", rows, np.array([0, 1]), 2)]
    bench.step(2)
    bench.stop()
    bench.file.write_text(APP)
    assert run("check", str(bench.file)).returncode == 0
    bench.again()
    source = bench.start()
    kept = "stream ticks: it keeps its columns venue, which the file does not have: new events have nulls there"
    assert kept in bench.said
    source.given += [piece(4, 1, first=2)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 1)]
    assert letters(bench) == []
    found = bench.service.db.sql("SELECT venue FROM ticks ORDER BY ts").arrow().column("venue").to_pylist()
    assert found == ["W", "X", None, None]


def test_columns_that_come_and_go_at_a_reload(tmp_path: Path) -> None:
    """Before: the source went on with the columns of before, and each of its rows was quarantined; taking the column
    back was refused."""
    narrow, wide = (text[: text.index("[queries")] for text in (APP, WIDER))
    bench = Bench(tmp_path, narrow)
    bench.start()
    schemas: list[tuple[str, ...]] = []
    sources = bench.service.sources
    make = sources.make_source
    sources.make_source = lambda table, schema, app: schemas.append(schema.names) or make(table, schema, app)
    for text in (wide, narrow):
        bench.sources.clear()
        bench.rewrite(text)
        assert bench.status()["trouble"] == {}
    assert schemas == [("ts", "name", "price", "venue"), ("ts", "name", "price")]
    bench.sources["feed"].given += [piece(1, 2)]
    bench.step(2)
    assert (letters(bench), bench.service.db.streams()["ticks"]["accepted"]) == ([], 2)
    bench.stop()


@pytest.mark.slow
def test_a_column_that_is_added_at_a_restart_while_a_query_reads_the_stream(bench: Bench) -> None:
    """Before: the reload said to stop and start again, and the start was refused: `stream ticks cannot take columns
    while live queries read or feed it`."""
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    bench.rewrite(WIDER)
    assert "stop the service, and start it again" in bench.status()["trouble"]["app"]
    bench.stop()
    bench.again()
    rows = ticks(3, first=1).append_column("venue", pa.array(["X"]))
    bench.start().given += [Piece("feed/0", rows, np.array([1]), 2)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3)], "the match in progress goes on"
