"""The service of `hybrid run`, driven by the test: what goes through it, what fails in it, and what it takes over."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from hybrid.service.app_file import load
from hybrid.service.queries import REMOVED_S
from hybrid.service.service import Service
from live.sources.base import Bad, Piece
from query.errors import DataError
from tests.hybrid.services import APP, Bench, FakeSink, FakeSource, piece, ticks

RISES = """
[queries.rises]
sql = '''
SELECT * FROM ticks MATCH_RECOGNIZE (
  PARTITION BY name ORDER BY ts MEASURES A.price AS high, LAST(B.price) AS low
  PATTERN (A B) WITHIN INTERVAL 1 HOUR DEFINE B AS price > PREV(price)
)'''
sinks = ["other"]

[sinks.other]
type = "stdout"
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    if found.service.outlets.locked:
        found.stop()


@pytest.mark.slow
def test_events_in_rows_out(bench: Bench) -> None:
    source = bench.start()
    source.given += [piece(5, 3, 4), piece(2, 6, first=3)]
    bench.step(4)
    assert source.opened == {}
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    assert all(row["match_id"] for row in bench.sinks["alerts"].rows)
    assert bench.stop() == 0
    assert source.closed
    assert bench.sinks["alerts"].closed
    assert source.acknowledged[-1] == {"feed/0": 5}
    assert bench.said[0] == "running app.toml: 1 source, 1 query, 1 sink"


@pytest.mark.slow
def test_it_goes_on_where_it_was(bench: Bench) -> None:
    """Positions are those of the archive, whether or not the source was told, and cursors those of the checkpoint."""
    source = bench.start()
    source.given.append(piece(5, 3, 4))
    bench.step(4)
    bench.stop()
    bench.again()
    source = bench.start()
    source.given += [piece(3, 4, 2, first=1), Piece("feed/1", ticks(9, 8, first=4, name="y"), None, None)]
    bench.step(4)
    assert source.opened == {"feed/0": 3}
    assert bench.sinks["alerts"].opened == [None, "1"]
    status = bench.status()["streams"]["ticks"]
    assert (status["accepted"], status["duplicates"]) == (6, 2)  # of both runs
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]  # the second began before the restart
    bench.stop()
    with hybrid.connect(bench.file.parent / "market") as db:
        assert db.sql("SELECT count(*) AS n FROM ticks").arrow().to_pylist() == [{"n": 6}]


@pytest.mark.slow
def test_a_query_of_the_file_that_changed_while_it_was_stopped(bench: Bench) -> None:
    """It is replaced; one that is no longer there ends, in a while."""
    bench.file.write_text(APP + RISES)
    bench.again()
    source = bench.start()
    source.given.append(piece(5))
    bench.step(2)
    bench.stop()
    bench.file.write_text(APP.replace("A.price AS high", "A.price * 10 AS high"))
    bench.again()
    source = bench.start()
    assert list(bench.status()["queries"]) == ["falls"]
    bench.pass_s(REMOVED_S)
    assert list(bench.service.db.watching()) == ["falls"]
    source.given.append(piece(3, first=1))
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(50, 3)]


@pytest.mark.slow
def test_a_query_that_was_over_begins_anew(bench: Bench) -> None:
    source = bench.start()
    source.given.append(piece(5, 3))
    source.ends = True
    while not bench.service.done:
        bench.step()
    bench.service.finish()
    bench.again()
    source = bench.start()
    source.given.append(piece(6, 4, first=2))
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (6, 4)]


@pytest.mark.slow
def test_a_query_that_begins_in_the_past_reads_it_once(bench: Bench) -> None:
    source = bench.start()
    source.given += [piece(5, 3, 4)]
    bench.step(2)
    assert bench.stop() == 0
    rises = RISES.replace("[queries.rises]", "[queries.rises]\nstart = 2024-01-01T00:00:01")
    bench.file.write_text(APP + rises.replace("[sinks.other]", "[sinks.other]\n"))
    bench.again()
    source = bench.start()
    source.given += [piece(7, 6, first=3)]
    bench.step(3)
    assert bench.sinks["other"].pairs() == [(3, 4)]
    assert bench.stop() == 0
    bench.again()
    source = bench.start()
    source.given += [piece(8, first=5)]
    bench.step(3)
    assert bench.sinks["other"].pairs() == [(3, 4), (6, 8)]
    assert bench.service.db.watching()["rises"].cursor == 2


@pytest.mark.slow
def test_offsets_with_gaps(bench: Bench) -> None:
    source = bench.start()
    rows = piece(5, 3, 4, 2)
    source.given.append(Piece("feed/0", rows.rows, rows.offsets * 2 * (rows.offsets > 1) + rows.offsets, 20))  # type: ignore[operator]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    assert bench.service.db.reached("ticks").positions == {"feed/0": 10}


@pytest.mark.slow
def test_what_is_no_event_is_quarantined(bench: Bench) -> None:
    """A payload that could not be read, and rows that do not fit the stream: the others are taken."""
    source = bench.start()
    wrong = pa.table({"ts": ticks(1, 2, 3, 4)["ts"], "name": ["x"] * 4, "price": [5.0, 3.0, 3.5, 2.0]})
    source.given += [
        Bad("feed/0", 0, b'{"price": ', "it ends too early"), Bad("feed/0", None, b"\xff\xfe", "not UTF-8"),
        Piece("feed/0", wrong, piece(1, 2, 3, 4, offset=1).offsets, 5),
    ]  # fmt: skip
    bench.step(6)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    lines = [json.loads(line) for line in (bench.file.parent / "market/ticks/bad.ndjson").read_text().splitlines()]
    assert [(b["source"], b["offset"]) for b in lines] == [("feed/0", 0), ("feed/0", None), ("feed/0", 3)]
    assert lines[0]["raw"] == '{"price": '
    assert lines[1]["raw_base64"] == "//4="
    assert json.loads(lines[2]["raw"])["price"] == 3.5
    assert "price, row 0: 3.5" in lines[2]["reason"]
    status = bench.status()["streams"]["ticks"]
    assert (status["accepted"], status["bad"]) == (3, 3)


@pytest.mark.slow
def test_a_sink_that_fails_is_tried_again_in_growing_pauses(bench: Bench) -> None:
    source, sink = bench.start(), bench.sinks["alerts"]
    sink.broken = OSError("no route to host")
    source.given += [piece(5, 3), piece(4, 2, first=2)]
    for _ in range(400):
        bench.pass_s(0.1)
    assert [b - a for a, b in zip(sink.tries, sink.tries[1:])] == pytest.approx([1, 2, 4, 8, 16], abs=0.15)
    status = bench.status()
    assert status["trouble"]["sink alerts"].startswith("no route to host (failed 6 times")
    assert status["queries"]["falls"]["unread"] == 2
    assert sum("no route to host" in said for said in bench.said) == 1
    sink.broken = None
    bench.pass_s(60)
    bench.step(4)
    assert sink.pairs() == [(5, 3), (4, 2)]
    assert "trouble" not in bench.status()["trouble"]
    assert "sink alerts: recovered" in bench.said


@pytest.mark.slow
def test_too_many_unread_rows_stop_the_sources_of_that_query_only(tmp_path: Path) -> None:
    second = """
[limits]
unread_rows = 2
queue_rows = 3

[streams.trades]
columns = { ts = "TIMESTAMP", name = "VARCHAR", price = "BIGINT" }
time = "ts"

[sources.trades]
stream = "trades"
type = "file"
path = "x"
"""
    bench = Bench(tmp_path, APP + second + RISES.replace("FROM ticks", "FROM trades"), ("alerts", "other"))
    bench.start()
    feed, trades = bench.sources["feed"], bench.sources["trades"]
    bench.sinks["alerts"].broken = OSError("full")
    feed.given += [piece(9 - i, first=i) for i in range(10)]
    trades.given += [piece(i, first=i) for i in range(10)]
    for _ in range(30):
        bench.pass_s(0.01)
    status = bench.status()
    assert len(bench.sinks["other"].rows) == 5
    assert status["queries"]["falls"]["unread"] == 2
    assert status["streams"]["ticks"]["accepted"] == 4  # two falls of two ticks each, and no more
    assert status["sources"]["feed"]["queued"] == 3
    assert len(feed.given) == 3
    assert status["streams"]["trades"]["accepted"] == 10
    assert status["trouble"]["source feed"] == "waits: sink alerts has 2 unread rows of falls"
    bench.sinks["alerts"].broken = None
    for _ in range(20):
        bench.pass_s(1)
    assert bench.sinks["alerts"].pairs() == [(9, 8), (7, 6), (5, 4), (3, 2), (1, 0)]
    assert bench.status()["trouble"] == {}
    bench.stop()


@pytest.mark.slow
def test_what_a_sink_has_not_taken_is_kept_for_the_next_start(bench: Bench) -> None:
    source = bench.start()
    source.given.append(piece(5, 3))
    bench.step(3)
    bench.sinks["alerts"].broken = OSError("gone")
    source.given.append(piece(4, 2, first=2))
    bench.step(3)
    assert bench.stop() == 0
    assert any("2 rows are undelivered" in said for said in bench.said)  # one may stand there, one cannot
    bench.sinks["alerts"].broken = None
    bench.sinks["alerts"].rows.clear()
    bench.again()
    bench.start()
    bench.step(4)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    bench.stop()
    bench.again()
    bench.start()
    bench.step(4)
    assert len(bench.sinks["alerts"].rows) == 2
    assert not list(bench.service.app.state.glob("undelivered-*"))


@pytest.mark.slow
@pytest.mark.parametrize("together", [True, False])
def test_a_query_that_fails_gives_its_sink_what_it_had_decided_before(tmp_path: Path, together: bool) -> None:
    # Before: rows of the piece of the failing event were lost; the sink had none.
    failing = RISES.replace("price > PREV(price)", "price > PREV(price) AND price + 1 > A.price")
    bench = Bench(tmp_path, APP + failing, ("alerts", "other"))
    source = bench.start()
    prices = (3, 5, 4, 6, 1, 2**63 - 1, 2)
    source.given += [piece(*prices)] if together else [piece(p, first=i) for i, p in enumerate(prices)]
    bench.step(9)
    assert bench.status()["queries"]["rises"]["state"] == "failed"
    assert bench.sinks["other"].pairs() == [(3, 5), (4, 6)]
    bench.stop()
    bench.again()
    bench.start()
    bench.step(4)
    assert len(bench.sinks["other"].rows) == 2
    bench.stop()


@pytest.mark.slow
def test_a_query_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    failing = RISES.replace("A.price AS high", "CAST(A.name AS INTEGER) AS high")
    bench = Bench(tmp_path, APP + failing, ("alerts", "other"))
    source = bench.start()
    source.given += [piece(5, 3, 4), piece(2, first=3)]
    bench.step(4)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    status = bench.status()
    assert status["queries"]["rises"]["state"] == "failed"
    assert "Could not convert string 'x'" in status["trouble"]["query rises"]
    assert status["queries"]["falls"]["state"] == "running"
    source.ends = True
    while not bench.service.done:
        bench.step()
    assert bench.service.finish() == 1


@pytest.mark.slow
def test_a_source_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, APP + '[sources.more]\nstream = "ticks"\ntype = "file"\npath = "y"\n')
    bench.start()
    bench.sources["more"].given += [piece(1, name="z", source="more"), DataError("the file was replaced", "start anew")]
    bench.sources["feed"].given += [piece(5, 3)]
    bench.sources["feed"].says = "the broker is away"
    bench.step(4)
    status = bench.status()
    assert status["trouble"]["source more"].startswith("the file was replaced\nhint: start anew (failed 1 times")
    assert status["trouble"]["source feed"] == "the broker is away"
    assert status["streams"]["ticks"]["accepted"] == 3
    assert not bench.service.done
    bench.sources["feed"].says = None
    bench.sources["feed"].given += [piece(2, first=2)]
    bench.step()
    assert "source feed" not in bench.status()["trouble"]
    bench.stop()


@pytest.mark.slow
def test_events_that_cannot_be_kept_now_are_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    source = bench.start()
    full = [OSError("no space left on device")] * 3
    push = bench.service.db.push

    def failing(*arguments: Any, **named: Any) -> int:
        if full:
            raise full.pop()
        return push(*arguments, **named)

    monkeypatch.setattr(bench.service.db, "push", failing)
    source.given += [piece(5, 3), piece(4, first=2)]
    bench.step(3)
    assert "no space left" in bench.status()["trouble"]["source feed"]
    for _ in range(5):
        bench.pass_s(1.1)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    assert bench.service.db.reached("ticks").positions == {"feed/0": 3}
    assert bench.status()["trouble"] == {}


@pytest.mark.slow
def test_what_could_not_be_opened_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a sink or a source for which a disk was full stayed closed until the file changed, and in trouble."""
    full = True

    def failing(make: Any) -> Any:
        def made(*given: Any) -> Any:
            if full:
                raise OSError(28, "No space left on device")
            return make(*given)

        return made

    monkeypatch.setattr(bench.service.outlets, "make_sink", failing(bench.service.outlets.make_sink))
    monkeypatch.setattr(bench.service.sources, "make_source", failing(bench.service.sources.make_source))
    bench.start()
    for _ in range(3):
        bench.pass_s(4)
    assert bench.status()["trouble"].keys() == {"sink alerts", "source feed"}
    full = False
    bench.pass_s(6)
    bench.sources["feed"].given += [piece(5, 3), piece(4, first=2)]
    for _ in range(3):
        bench.pass_s(1.1)
    assert bench.status()["trouble"] == {}
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    assert "sink alerts: recovered" in bench.said


@pytest.mark.slow
def test_late_events_go_to_their_sink(tmp_path: Path) -> None:
    text = APP.replace('key = "name"', 'key = "name"\nlate = "late"') + '[sinks.late]\ntype = "stdout"\n'
    bench = Bench(tmp_path, text, ("alerts", "late"))
    source = bench.start()
    source.given += [piece(5, 3), piece(7, first=-20, offset=2), piece(2, first=3)]
    bench.step(5)
    assert bench.sinks["late"].rows == [
        {"ts": ticks(7, first=-20)["ts"][0].as_py(), "name": "x", "price": 7, "_source": "feed/0", "_offset": 2,
         "match_id": "ticks/feed/0/2"}
    ]  # fmt: skip
    assert bench.status()["streams"]["ticks"]["late"] == 1
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    bench.stop()


@pytest.mark.slow
def test_two_sources_of_one_partition(tmp_path: Path) -> None:
    """The second one's events would be taken for those of the first, and be dropped as redelivered."""
    bench = Bench(tmp_path, APP + '[sources.more]\nstream = "ticks"\ntype = "file"\npath = "y"\n')
    bench.start()
    bench.sources["feed"].given.append(piece(5, 3))
    bench.sources["more"].given.append(piece(9, 8))
    bench.step(3)
    status = bench.status()
    assert status["sources"]["more"]["state"] == "failed"
    said = "it reads feed/0, which source feed reads into the same stream\nhint: let one source read it"
    assert status["trouble"]["source more"].startswith(said)
    assert status["streams"]["ticks"]["duplicates"] == 0
    bench.stop()


@pytest.mark.slow
def test_partitions_that_have_sent_nothing_are_waited_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two partitions the first is read far ahead: the other's events are not late for that. A third, which stays
    silent, is given up in time."""
    bench.file.write_text(APP.replace('key = "name"', 'key = "name"\nidle = "30s"'))
    bench.again()
    source = bench.start()
    source.partitions = ("a", "b", "c")
    source.given += [piece(9, 8, 7, 6, source="a"), piece(5, 3, name="y", source="b"), piece(2, first=3, source="b")]
    now = time.monotonic()
    monkeypatch.setattr("hybrid.database.database.clock.monotonic", lambda: now)
    bench.step(4)
    assert bench.status()["streams"]["ticks"]["late"] == 0
    assert bench.sinks["alerts"].rows == []
    now += 31
    bench.pass_s(1)
    bench.step(2)
    assert sorted(bench.sinks["alerts"].pairs()) == [(5, 3), (9, 8)]  # what lies at the watermark still waits
    assert bench.status()["streams"]["ticks"]["late"] == 0


@pytest.mark.slow
def test_without_idle_it_says_for_whom_the_watermark_waits(bench: Bench) -> None:
    source = bench.start()
    source.partitions = ("a", "b")
    source.given += [piece(9, 8, source="a")]
    bench.step(2)
    said = "waits for b, which sent nothing yet; `idle` limits the wait"
    assert bench.status()["trouble"] == {"watermark of ticks": said}
    source.given += [piece(5, 3, name="y", source="b")]
    bench.step(2)
    assert bench.status()["trouble"] == {}
    assert bench.status()["streams"]["ticks"]["late"] == 0


@pytest.mark.slow
def test_a_partition_that_is_over_does_not_hold_back_the_others(bench: Bench) -> None:
    source = bench.start()
    over = piece(5, 3, source="old")
    new, end = piece(9, 8, 7, first=10, offset=0, name="y"), Piece("old", over.rows.slice(2), None, 2, True)
    source.given += [over, new, end]
    bench.step(2)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (9, 8)]


@pytest.mark.slow
def test_it_ends_when_every_source_has_ended(bench: Bench) -> None:
    """The stream ends with its sources, so that what waits comes out: the last rows, which lateness holds back."""
    bench.file.write_text(APP.replace('key = "name"', 'key = "name"\nlateness = "1 hour"'))
    bench.again()
    source = bench.start()
    source.given += [piece(5, 3, 4, 2)]
    source.ends = True
    bench.step(5)
    assert bench.service.done
    assert bench.service.finish() == 0
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    assert bench.said[-2:] == ["every source has ended", "stopped"]


@pytest.mark.slow
def test_checkpoints(bench: Bench) -> None:
    """Every so often; the source then hears how far it is durable, never before."""
    source = bench.start()
    source.given += [piece(5, 3)]
    bench.step(3)
    assert source.acknowledged == []
    bench.pass_s(10)
    bench.step()
    assert source.acknowledged == [{"feed/0": 2}]
    (file,) = bench.service.app.state.glob("delivery-*.json")
    assert json.loads(file.read_text())["cursors"] == {"alerts": "1"}
    bench.pass_s(1)
    assert len(source.acknowledged) == 1


@pytest.mark.slow
def test_a_checkpoint_that_fails_acknowledges_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    source = bench.start()
    source.given += [piece(5, 3)]
    bench.step(3)
    with monkeypatch.context() as patch:
        patch.setattr(bench.service.db, "checkpoint", lambda: (_ for _ in ()).throw(OSError("disk full")))
        bench.pass_s(10)
        bench.step()
    assert source.acknowledged == []
    assert len(list(bench.service.app.state.glob("delivery-*.json"))) > 1  # that of the checkpoint before is there
    assert bench.status()["trouble"]["checkpoint"] == "disk full"
    bench.pass_s(10)
    bench.step()
    assert source.acknowledged == [{"feed/0": 2}]
    assert bench.status()["trouble"] == {}


@pytest.mark.slow
def test_a_full_disk_quarantines_nothing_and_is_over_with_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: events that a full log refused were taken for bad ones, one by one, and left out.
    bench.file.write_text(bench.file.read_text().replace('checkpoint = "10s"', 'checkpoint = "10s"\nlog = "os"'))
    bench.again()
    source = bench.start()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("archive.log.write_all", full)
        patch.setattr("hybrid.service.report.write_status", full)
        source.given += [piece(5, 3, 4, 2)]
        for _ in range(3):
            bench.pass_s(2)
            bench.step(3)
        assert "No space left" in bench.service.context.trouble.faults()["source feed"]
        assert "No space left" in bench.service.context.trouble.faults()["status"]
    for _ in range(3):
        bench.pass_s(2)
        bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    assert bench.status()["trouble"] == {}
    assert bench.status()["streams"]["ticks"]["bad"] == 0
    assert not list(bench.file.parent.rglob("bad.ndjson"))


@pytest.mark.slow
def test_a_full_disk_is_said_once_until_events_are_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: each second, before it was tried again, "source feed: well again", and then the trouble anew.
    source = bench.start()
    push = bench.service.db.push

    def full(*given: Any, **named: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench.service.db, "push", full)
    source.given += [piece(5, 3)]
    source.says = "a.ndjson.1 is no file that can be read"  # which would be said in turns with it
    for _ in range(20):
        bench.pass_s(0.7)
    assert "No space left" in bench.status()["trouble"]["source feed"]
    assert len([said for said in bench.said if said.startswith("source feed: ")]) == 2  # once each
    monkeypatch.setattr(bench.service.db, "push", push)
    source.says = None
    for _ in range(3):
        bench.pass_s(1.1)
    assert bench.status()["trouble"] == {}
    assert [said for said in bench.said if said.startswith("source feed: ")][2:] == ["source feed: recovered"]
    assert bench.sinks["alerts"].pairs() == [(5, 3)]


def test_two_services_with_one_state(bench: Bench) -> None:
    bench.start()
    with pytest.raises(DataError, match="another service runs with"):
        Service(load(bench.file), print, threads=False).start()


@pytest.mark.slow
def test_cursors_that_cannot_be_read(bench: Bench) -> None:
    bench.start()
    bench.stop()
    (file,) = bench.service.app.state.glob("delivery-*.json")
    file.write_text("{")
    with pytest.raises(DataError, match=r"delivery-\d+\.json cannot be read"):
        bench.again().start()


# ---- reload


COUNTED = """
[queries.{name}]
{sharing}sql = '''
SELECT window_start, trends AS high, 0 AS low FROM ticks MATCH_RECOGNIZE (
  PARTITION BY name ORDER BY ts MEASURES COUNT(MATCHES) AS trends ONE ROW PER WINDOW
  PATTERN (A B) WITHIN 10 SECONDS SLIDE 10 SECONDS SELECTION SKIP TILL ANY MATCH
  DEFINE A AS price > 4, B AS price < {below}
)'''
sinks = ["alerts"]
"""


@pytest.mark.slow
def test_reload_and_restart_change_how_trends_are_counted(bench: Bench) -> None:
    """In the middle of a window, and it is the window that it would have been."""

    def app(one: str, other: str) -> str:
        return APP + COUNTED.format(name="c1", sharing=one, below=4) + COUNTED.format(name="c2", sharing=other, below=3)

    def shown() -> list[tuple[str | None, int]]:
        queries = bench.status()["queries"]
        return [(queries[name]["sharing"], queries[name]["counted_with"]) for name in ("falls", "c1", "c2")]

    bench.file.write_text(app("", ""))
    bench.again()
    source = bench.start()
    source.given.append(piece(5, 6))
    bench.step(3)
    assert shown() == [(None, 0), ("dynamic", 1), ("dynamic", 1)]
    bench.rewrite(app("", 'sharing = "static"\n'))
    source.given.append(piece(2, first=2))
    bench.step(3)
    assert shown() == [(None, 0), ("dynamic", 0), ("static", 0)]
    assert bench.stop() == 0
    bench.file.write_text(app('sharing = "static"\n', 'sharing = "static"\n'))
    bench.again()
    source = bench.start()
    source.given += [piece(1, first=3), piece(9, first=40)]
    bench.step(4)
    assert shown() == [(None, 0), ("static", 1), ("static", 1)]
    counts = [row["high"] for row in bench.sinks["alerts"].rows if "window_start" in row]
    assert sorted(counts) == ["4", "4"]


@pytest.mark.slow
def test_reload_keeps_what_is_unchanged(tmp_path: Path) -> None:
    """A match in progress of an unchanged query comes out; new ones start, removed ones stop."""
    bench = Bench(tmp_path, APP, ("alerts", "other"))
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    assert bench.sinks["alerts"].rows == []
    bench.rewrite(APP + RISES)
    source.given += [piece(3, 4, first=1)]
    bench.step(3)
    # Before: only how many there were of each kind, whatever had changed.
    assert bench.said[-1] == "reloaded app.toml: queries: added rises (1 kept); sinks: added other (1 kept)"
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    assert bench.sinks["other"].pairs() == [(3, 4)]
    bench.rewrite(APP)
    source.given += [piece(6, 7, first=3)]
    bench.step(3)
    assert bench.sinks["other"].pairs() == [(3, 4)]
    assert bench.sinks["other"].closed
    assert not source.closed
    assert list(bench.status()["queries"]) == ["falls"]
    bench.stop()


@pytest.mark.slow
def test_reload_replaces_a_changed_query_without_losing_its_matches(bench: Bench) -> None:
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    bench.rewrite(APP.replace("A.price AS high", "A.price * 10 AS high"))
    source.given += [piece(3, first=1)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(50, 3)]
    assert bench.said[-1] == "reloaded app.toml: queries: changed falls"


@pytest.mark.slow
def test_reload_by_a_change_of_the_file(bench: Bench) -> None:
    bench.start()
    bench.step(2)
    bench.file.write_text(APP + RISES)
    for _ in range(4):
        bench.pass_s(1.1)
    assert list(bench.status()["queries"]) == ["falls", "rises"]


def test_a_file_with_faults_changes_nothing(bench: Bench) -> None:
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    bench.rewrite(APP.replace("B AS price", "B AS prize"))
    assert "ticks has no column prize" in bench.status()["trouble"]["app"]
    before = APP[: APP.index("B AS price") + len("B AS ")]
    place = f"app.toml:{before.count(chr(10)) + 1}:{len(before) - before.rindex(chr(10))}"
    assert place in bench.status()["trouble"]["app"]
    source.given += [piece(3, first=1)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    bench.rewrite(APP)
    assert bench.status()["trouble"] == {}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('path = "market"', 'path = "other"', "database.path cannot change while the service runs"),
        ('key = "name"', 'key = "price"', "the key of stream ticks is name in the database, but price here"),
        ('price = "BIGINT" }', 'price = "DOUBLE" }', "column price of stream ticks is BIGINT in the database"),
        ('price = "BIGINT" }', 'price = "BIGINT", more = "BIGINT" }', "cannot get columns while queries read it"),
        ("[streams.ticks]", "[metrics]\nport = 9100\n[streams.ticks]", "metrics cannot change while"),
    ],
)
def test_changes_that_need_a_new_start(bench: Bench, old: str, new: str, says: str) -> None:
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    bench.rewrite(APP.replace(old, new) + RISES)
    assert says in bench.status()["trouble"]["app"]
    assert list(bench.status()["queries"]) == ["falls"]
    source.given += [piece(3, first=1)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]


@pytest.mark.slow
def test_reload_of_sources_sinks_and_streams(bench: Bench) -> None:
    source, sink = bench.start(), bench.sinks["alerts"]
    source.given += [piece(5, 3)]
    bench.step(3)
    old_source, old_sink = source, sink
    source.given += [piece(4, first=2)]
    old_source_given = piece(2, first=3)
    bench.service.sources.readers["feed"].turn()  # read, and not pushed yet
    bench.sources.clear()
    bench.sinks.clear()
    text = APP.replace('"ticks.ndjson"', '"more.ndjson"').replace('type = "stdout"', 'type = "file"\npath = "a"')
    text += '[streams.trades]\ncolumns = { ts = "TIMESTAMP" }\ntime = "ts"\n'
    bench.rewrite(text)
    bench.step()
    assert (old_source.closed, old_sink.closed) == (True, True)
    new = bench.sources["feed"]
    assert new.opened == {"feed/0": 3}
    new.given.append(old_source_given)
    bench.step(3)
    assert old_sink.pairs() == [(5, 3)]
    assert bench.sinks["alerts"].pairs() == [(4, 2)]
    assert list(bench.status()["streams"]) == ["ticks", "trades"]


@pytest.mark.slow
def test_a_query_that_cannot_be_replaced_goes_on(bench: Bench) -> None:
    """The new version reads another stream."""
    trades = APP.replace("[sources.feed]", '[streams.trades]\ncolumns = { ts = "TIMESTAMP", name = "VARCHAR", price = "BIGINT" }\ntime = "ts"\n[sources.feed]')  # noqa: E501
    bench.file.write_text(trades)
    bench.again()
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    bench.rewrite(trades.replace("FROM ticks", "FROM trades"))
    assert "not replaced, the old version keeps running" in bench.status()["trouble"]["query falls"]
    source.given += [piece(3, first=1)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]


# ---- simulators


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rfid", "highway"])
def test_a_simulator_gives_the_planted_truth(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.highway import highway
    from simulator.rfid import shop

    of_shop, of_road = partial(shop, items=100), partial(highway, cars=40)
    monkeypatch.setattr("hybrid.service.simulated.shop", of_shop)
    monkeypatch.setattr("hybrid.service.simulated.highway", of_road)
    full = of_shop(3) if kind == "rfid" else of_road(3)
    schema = full.schemas[0]
    columns = ", ".join(f'{f.name} = "{f.type}"' for f in schema.fields)
    (tmp_path / "q.sql").write_text(full.query)
    (tmp_path / "app.toml").write_text(f"""
[streams.{schema.name}]
columns = {{ {columns} }}
time = "ts"
key = "{schema.keys[0]}"
lateness = "{schema.lateness_us} us"
[sources.made]
type = "{kind}"
stream = "{schema.name}"
seed = 3
[queries.asked]
file = "q.sql"
sinks = ["found"]
[sinks.found]
type = "file"
path = "found.ndjson"
""")
    service = Service(load(tmp_path / "app.toml"), lambda said: None, threads=False)
    service.start()
    while not service.done:
        service.step()
    assert service.finish() == 0
    found = [json.loads(line) for line in (tmp_path / "found.ndjson").read_text().splitlines()]
    keys = [n for n in full.truth.column_names if not pa.types.is_timestamp(full.truth.schema.field(n).type)]
    expected = sorted(tuple(row[k] for k in keys) for row in full.truth.to_pylist())
    assert len(expected) > 10
    assert sorted(tuple(row[k] for k in keys) for row in found) == expected


def test_fakes_are_sources_and_sinks() -> None:
    """What the tests use has the shape of the real ones."""
    from live.sinks.base import Sink
    from live.sources.base import Source

    source: Source = FakeSource()
    sink: Sink = FakeSink()
    assert not source.ended
    assert sink.cursor() == "0"


@pytest.mark.slow
def test_a_query_may_shed_and_says_so(bench: Bench) -> None:
    """The events are of 2024: by the clock they come years too late."""
    shed = 'shed = { lag = "10s", after = "0s", least = 0.5 }'
    bench.file.write_text(APP.replace('sinks = ["alerts"]', f'sinks = ["alerts"]\n{shed}'))
    bench.again()
    source = bench.start()
    for i in range(8):
        source.given.append(piece(5, 3, first=2 * i, name=f"k{i}"))
        status = bench.status()
    query = status["queries"]["falls"]
    assert query["kept_share"] == 0.5
    assert status["trouble"]["load of falls"] == "overload: it sheds keys and keeps 0.5 of them"
    assert status["streams"]["ticks"]["accepted"] == 16
    stats = bench.service.db.watching()["falls"].stats()
    assert stats["events_matched"] + stats["events_shed"] == 16
    assert query["shed"] == stats["events_shed"] > 0
    assert sum("query falls keeps 0.5 of its keys" in line for line in bench.said) == 1
    bench.rewrite(APP)
    status = bench.status()
    assert "load of falls" not in status["trouble"]
    assert status["queries"]["falls"]["kept_share"] is None
    for i in range(8):  # all keys go on
        source.given.append(piece(9, 8, first=100 + 2 * i, name=f"k{i}"))
        bench.pass_s(1.0)
    bench.step(4)
    assert [high for high, _ in bench.sinks["alerts"].pairs()][-8:] == [9] * 8
