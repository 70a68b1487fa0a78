"""What happens to a service that runs for long: its file is edited, sources fail and come back, memory is short, its
process is stopped, killed, or another one has its number.

"Before" tells of the code that could not do so; "run as it is": with placeholders for the names that it did not have.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.cli.run import top
from hybrid.service.changes import Settling
from hybrid.service.delivery import Delivery
from hybrid.service.queries import REMOVED_S
from hybrid.service.reload import SETTLED_S
from hybrid.service.sources import SOURCE_TRIES
from hybrid.service.status import headline, process_began, read_status, ready, touch_status, write_status
from query.errors import DataError, HybridWarning, NotKept
from tests.hybrid.cli.test_cli import run
from tests.hybrid.inside import checkpoints_of, flow_of
from tests.hybrid.processes import start
from tests.hybrid.service.test_service import RISES
from tests.hybrid.services import APP, Bench, FakeSource, piece
from tests.waiting import until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path, APP + RISES, ("alerts", "other"))
    yield found
    if found.service.outlets.locked:
        found.stop()


def edit(bench: Bench, text: str) -> None:
    """Writes the file, and lets the service find it changed and settled."""
    bench.file.write_text(text)
    for _ in range(int(SETTLED_S) + 3):
        bench.pass_s(1.1)


# ---- a file that is being written


@pytest.mark.slow
def test_a_file_that_is_being_written_is_not_read(bench: Bench) -> None:
    # Before: run as it is: cut at the end of a table it was taken, the query was closed, and (5, 7) was not found.
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    text = APP + RISES
    for end in range(text.index("[queries.rises]"), len(text), 8):  # an editor, or a copy, that takes its time
        bench.file.write_text(text[:end])
        os.utime(bench.file, ns=(end, end))
        bench.pass_s(1.1)
    bench.file.write_text(text)
    for _ in range(5):
        bench.pass_s(1.1)
    source.given += [piece(7, first=1)]
    bench.step(3)
    assert bench.sinks["other"].pairs() == [(5, 7)]
    assert not [said for said in bench.said if "rises" in said]


@pytest.mark.slow
def test_a_query_that_is_gone_for_a_while_goes_on_where_it_was(bench: Bench) -> None:
    # Before: run without `removed`: the query was closed at once and begun anew: (5, 7) was not found, nothing was
    # said.
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    edit(bench, APP)
    assert list(bench.status()["queries"]) == ["falls"]
    assert list(bench.status()["removed"]) == ["rises"]
    assert bench.sinks["other"].closed
    source.given += [piece(7, first=1)]
    bench.step(3)
    edit(bench, APP + RISES)
    assert bench.sinks["other"].pairs() == [(5, 7)]
    assert "query rises: it is in the file again, and continues where it was" in bench.said
    assert bench.status()["removed"] == {}


@pytest.mark.slow
def test_it_goes_on_after_a_restart_too(bench: Bench) -> None:
    # Before: run without `removed`: begun anew, (5, 7) was not found.
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    edit(bench, APP)
    until_s = bench.status()["removed"]["rises"]
    assert bench.stop() == 0
    bench.again()
    source = bench.start()
    assert bench.status()["removed"] == {"rises": until_s}
    source.given += [piece(7, first=1)]
    bench.step(2)
    bench.rewrite(APP)  # SIGHUP says that it is meant
    assert list(bench.service.db.watching()) == ["falls"]


@pytest.mark.slow
def test_a_removed_query_ends_in_time(bench: Bench) -> None:
    # Before: run as it is: it had ended at once.
    bench.start()
    edit(bench, APP)
    assert sorted(bench.service.db.watching()) == ["falls", "rises"]
    bench.pass_s(REMOVED_S)
    assert sorted(bench.service.db.watching()) == ["falls"]
    assert "query rises: it was removed from the file, and ends: its time is over" in bench.said


@pytest.mark.slow
def test_a_removed_query_that_finds_much_ends(bench: Bench) -> None:
    # Before: run as it is: it had ended at once, and nothing was said of it.
    source = bench.start()
    edit(bench, APP + "[limits]\nunread_rows = 2\n")
    source.given += [piece(*(v for i in range(5) for v in (1, 9)))]
    bench.step(3)
    assert sorted(bench.service.db.watching()) == ["falls"]
    assert any("too many pending rows" in said for said in bench.said)


@pytest.mark.slow
def test_a_file_of_which_nothing_is_left_needs_a_signal(bench: Bench) -> None:
    # Before: run as it is: "reloaded app.toml: 1 sources, 0 queries, 0 sinks", no trouble, and (5, 3) was not found.
    source = bench.start()
    rest = APP[: APP.index("[queries.falls]")]
    edit(bench, rest)
    assert "all queries were removed from it" in bench.status()["trouble"]["app"]
    assert sorted(bench.status()["queries"]) == ["falls", "rises"]
    source.given += [piece(5, 3)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    bench.service.reload()
    assert bench.status()["queries"] == {}
    assert bench.status()["trouble"] == {}


def test_settling(tmp_path: Path) -> None:
    # Before: there was no Settling: a file was read as soon as it had changed.
    file = tmp_path / "f"
    file.write_text("a")
    files = Settling((file,), 2.0)
    assert not files.changed((file,), 10)
    file.write_text("ab")
    assert not files.changed((file,), 11)
    file.write_text("abc")
    assert not files.changed((file,), 12.5)
    assert not files.changed((file,), 14)
    assert files.changed((file,), 14.6)
    assert not files.changed((file,), 20)
    files.forget()
    assert files.changed((file,), 21)


# ---- sources that fail

MORE = '[sources.more]\nstream = "ticks"\ntype = "file"\npath = "y"\n'


@pytest.mark.slow
def test_a_source_that_fails_is_tried_again(tmp_path: Path) -> None:
    # Before: run as it is: opened once in 20 s; it stayed failed until a new start.
    bench = Bench(tmp_path, APP + MORE)
    bench.start()
    opened: list[float] = []

    class Failing(FakeSource):
        def open(self, positions: Any) -> None:
            opened.append(bench.seconds)
            if len(opened) < 5:
                raise RuntimeError("no broker")
            super().open(positions)

    bench.sources["more"] = Failing()
    bench.service.sources.readers["more"]._source = bench.sources["more"]
    for _ in range(200):
        bench.pass_s(0.1)
    assert [b - a for a, b in pairwise(opened)] == pytest.approx([1, 2, 4, 8], abs=0.25)
    assert bench.status()["trouble"] == {}
    bench.sources["more"].given += [piece(5, 3, source="more", name="y")]
    bench.step(4)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    assert sum("no broker" in said for said in bench.said) == 1
    bench.stop()


@pytest.mark.slow
def test_a_source_that_cannot_be_made_ends_no_service_that_has_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before: run as it is: the ValueError came out of `start`, which ends a service.
    bench = Bench(tmp_path, APP + MORE)
    make = bench.service.sources.make_source

    def failing(table: Any, *given: Any) -> Any:
        if table is bench.service.app.sources["more"]:
            raise ValueError("sasl.mechanism=NOPE")
        return make(table, *given)

    monkeypatch.setattr(bench.service.sources, "make_source", failing)
    bench.start()
    bench.sources["feed"].given += [piece(5, 3)]
    bench.step(3)
    assert bench.status()["trouble"] == {"source more": "ValueError: sasl.mechanism=NOPE"}
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    assert not bench.service.done
    bench.stop()


@pytest.mark.slow
def test_a_changed_source_that_cannot_be_made_leaves_the_old_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: run as it is: the ValueError came out of `reload`, which ends a service.
    source = bench.start()
    make = bench.service.sources.make_source

    def failing(*given: Any) -> Any:
        raise ValueError("no such option")

    monkeypatch.setattr(bench.service.sources, "make_source", failing)
    bench.rewrite((APP + RISES).replace('"ticks.ndjson"', '"more.ndjson"'))
    source.given += [piece(5, 3)]
    bench.step(3)
    assert not source.closed
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    said = "not applied, the old source keeps running: ValueError: no such option"
    assert bench.status()["trouble"] == {"change of source feed": said}
    monkeypatch.setattr(bench.service.sources, "make_source", make)
    bench.sources.clear()
    bench.pass_s(6)
    assert source.closed
    assert bench.status()["trouble"] == {}
    bench.sources["feed"].given += [piece(4, 2, first=2)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]


@pytest.mark.slow
def test_a_service_whose_only_source_fails_ends(tmp_path: Path) -> None:
    """At once where it has never been read, and else when it has failed again and again."""
    # Before: run as it is: it ended after 0.2 s, "every source has ended", at the first fault.
    bench = Bench(tmp_path)
    bench.start()
    bench.sources["feed"].given += [piece(5, 3), *[OSError("gone")] * (SOURCE_TRIES + 1)]
    for _ in range(600):
        bench.pass_s(0.1)
        if bench.service.done:
            break
    assert bench.service.done
    assert bench.service.finish() == 1
    assert 20 < bench.seconds < 60


@pytest.mark.slow
def test_a_source_that_fails_again_before_that_is_counted_ends_nothing(tmp_path: Path) -> None:
    """Its thread may fail between two looks of the service."""
    # Before: a service with one source ended at its second failure in a row.
    bench = Bench(tmp_path)
    bench.start()
    bench.sources["feed"].given += [piece(5, 3), OSError("gone"), OSError("gone"), piece(4, 2, first=2)]
    bench.step(3)
    first = bench.service.sources.readers["feed"]
    while bench.service.sources.readers["feed"] is first:
        bench.pass_s(0.1)
    bench.service.sources.readers["feed"].turn()
    assert bench.service.sources.readers["feed"].failure == "gone"
    assert not bench.service.done
    for _ in range(40):
        bench.pass_s(0.1)
    assert bench.sinks["alerts"].pairs() == [(5, 3), (4, 2)]
    bench.stop()


@pytest.mark.filterwarnings("ignore:.*stream.json is missing")
def test_a_service_that_cannot_start_says_at_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: OSError, as a traceback of `hybrid run`.
    bench = Bench(tmp_path)

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("hybrid.watch.stream.write_declaration", full)
        with pytest.raises(DataError, match=r"cannot start; declaring streams: .*No space left.*\nhint: free"):
            bench.start()
        bench.service.db.close(False)
    bench.again()
    bench.start()
    bench.stop()


def test_a_stream_whose_end_cannot_be_kept_ends_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for its end comes out then."""
    # Before: OSError out of `step`, and with it the end of the service.
    bench = Bench(tmp_path)
    source = bench.start()
    source.given.append(piece(5, 3))
    source.ends = True
    advance, failures = bench.service.db.advance, [OSError("full"), NotKept("full", "")]

    def failing(*given: Any) -> None:
        if failures:
            raise failures.pop()
        advance(*given)

    monkeypatch.setattr(bench.service.db, "advance", failing)
    bench.step()
    assert "its end cannot be stored: full" in bench.service.context.trouble.faults()["stream ticks"]
    bench.step(4)
    assert bench.service.done
    assert "stream ticks" not in bench.service.context.trouble
    assert bench.service.finish() == 0
    assert bench.sinks["alerts"].pairs() == [(5, 3)]


# ---- a query that is interrupted


@pytest.mark.slow
def test_a_query_without_memory_goes_back_to_the_checkpoint(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: run as it is: it stayed failed, and (5, 7) was not found.
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)
    bench.pass_s(11)
    bench.step()
    source.given += [piece(7, first=1)]
    watch = flow_of(bench.service.db).named["rises"]
    with monkeypatch.context() as patch:

        def full(*given: Any) -> None:
            raise MemoryError("no memory for 8 GiB")

        patch.setattr(type(watch), "take", full)
        bench.step()
    for _ in range(4):
        bench.step()
    assert bench.sinks["other"].pairs() == [(5, 7)]
    assert any("query falls, rises: interrupted" in said or "query rises" in said for said in bench.said)
    new = bench.sources["feed"]
    new.given += [piece(3, first=2)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(7, 3)]
    before = checkpoints_of(bench.service.db).number
    bench.pass_s(11)
    bench.step()
    assert checkpoints_of(bench.service.db).number > before
    assert bench.status()["trouble"] == {}


@pytest.mark.slow
def test_a_query_that_never_has_memory_is_left_out_by_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: run as it is: the query stayed among the live ones, and with it no checkpoint was taken any more, which
    # trouble said.
    source = bench.start()
    source.given += [piece(5)]
    bench.step(2)

    def full(query: Any, found: Any) -> None:
        if "rises" in flow_of(bench.service.db).named and query is flow_of(bench.service.db).named["rises"]:
            raise MemoryError("no memory for 8 GiB")
        take(query, found)

    take = type(flow_of(bench.service.db).named["rises"]).take
    monkeypatch.setattr(type(flow_of(bench.service.db).named["rises"]), "take", full)
    for i in range(4):
        bench.sources["feed"].given += [piece(7 + i, first=1 + i)]
        bench.step(2)
    trouble = bench.status()["trouble"]
    assert list(trouble) == ["query rises"]
    assert "it is excluded, and its matches in progress are lost" in trouble["query rises"]
    bench.sources["feed"].given += [piece(1, first=9)]
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(10, 1)]
    before = checkpoints_of(bench.service.db).number
    bench.pass_s(11)
    bench.step()
    assert checkpoints_of(bench.service.db).number > before, "checkpoints go on"
    assert list(bench.service.db.watching()) == ["falls"]


# ---- whether it runs


def test_a_status_that_cannot_be_written_says_that_it_lives(tmp_path: Path) -> None:
    # Before: run with a touch_status of its own: "silent".
    told = {"version": 1, "state": "running", "pid": os.getpid(), "written": 1000.0, "started": 900.0, "app": "a"}
    write_status(tmp_path, told)
    assert read_status(tmp_path, lambda: 1100.0)["state"] == "silent"
    touch_status(tmp_path, 1100.0)
    assert read_status(tmp_path, lambda: 1101.0)["state"] == "running"


def test_figures_that_are_old_say_so(tmp_path: Path) -> None:
    # Before: run as it is: the figures of long ago without a word.
    told = {
        "version": 1, "state": "running", "pid": os.getpid(), "written": 1000.0, "started": 900.0, "app": "app.toml",
        "streams": {}, "queries": {}, "sources": {}, "sinks": {}, "trouble": {"outbox": "full"},
    }  # fmt: skip
    write_status(tmp_path, told)
    fresh = read_status(tmp_path, lambda: 1001.0)
    assert fresh == told
    assert headline(fresh, 1001.0) == f"app.toml runs as process {os.getpid()}, since 101.0 s"
    touch_status(tmp_path, 1009.0)
    old = read_status(tmp_path, lambda: 1009.0)
    assert old["trouble"] == {
        "outbox": "full", "status": "it cannot be written, and these figures are 9.0 s old: is the disk full?"
    }  # fmt: skip
    assert headline(old, 1009.0) == (
        f"app.toml runs as process {os.getpid()}, since 109.0 s "
        "(these figures are 9.0 s old: the status cannot be written)"
    )
    assert [k for k in old if k != "trouble" and old[k] != told[k]] == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gone", "emptied", "made by another"])
def test_a_directory_that_is_removed_is_made_again(bench: Bench, how: str) -> None:
    # Before: run as it is: nothing was said of it. By a script: gone, it stayed away and (5, 3) was lost with the
    # crash; emptied or made by another, rows were kept in it, and a second service could take it.
    source = bench.start()
    bench.sinks["alerts"].broken = OSError("no route to host")
    source.given += [piece(5, 3)]
    bench.step(3)
    state = bench.service.app.state
    shutil.rmtree(state)
    if how != "gone":
        state.mkdir()
    if how == "made by another":
        (state / "lock").touch()
    bench.pass_s(1.1)
    bench.pass_s(1.1)
    assert read_status(state, bench.clock.now)["trouble"]["state"].startswith(f"{state} or its content was removed")
    assert sum(said.startswith("state: ") for said in bench.said) == 1
    with pytest.raises(DataError, match="another service runs with"):
        Delivery(state)
    for _ in range(12):
        bench.pass_s(60.0)
    assert "state" not in bench.status()["trouble"]
    bench.service.outlets.unlock()  # as a crash
    bench.service.db.close()
    bench.sinks["alerts"].broken = None
    bench.again().start()
    bench.step(3)
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    assert "delivery" not in bench.status()["trouble"]


def test_a_service_that_another_one_has_replaced_leaves_its_status_alone(bench: Bench) -> None:
    # Before: after `rm -rf` of the database and a second start, both wrote their figures to one file in turn.
    bench.start()
    state = bench.service.app.state
    shutil.rmtree(state)
    other = Delivery(state)
    (state / "status.json").write_text("that of the other")
    bench.pass_s(1.1)
    bench.pass_s(1.1)
    assert (state / "status.json").read_text() == "that of the other"
    (said,) = (said for said in bench.said if said.startswith("state: "))
    assert said == (
        f"state: {state} was removed, and another service runs with a new one: stop this service, process {os.getpid()}"
    )
    other.close()
    bench.pass_s(1.1)
    assert read_status(state, bench.clock.now)["trouble"]["state"].startswith(f"{state} or its content was removed")


@pytest.mark.slow
def test_warnings_of_the_database_are_in_the_log(bench: Bench, recwarn: pytest.WarningsRecorder) -> None:
    # Before: `hybrid run` printed a HybridWarning with the file and line of our code.
    source = bench.start()
    source.given += [piece(5, 3)]
    bench.step(3)
    bench.stop()
    newest = max((bench.file.parent / "market" / "_checkpoint").glob("*.state"))
    newest.write_bytes(newest.read_bytes()[:-9])
    bench.said.clear()
    bench.again().start()
    assert [said for said in bench.said if said.startswith("database: ") and str(newest.name) in said]
    assert not [one for one in recwarn if one.category is HybridWarning]


def test_a_directory_that_cannot_be_made_again(tmp_path: Path) -> None:
    """Its parent is gone, as where a disk is away: nothing is made there, and it goes on when that is back."""
    # Before: run as it is: no trouble "state", only "[Errno 2]" for two files in it, which stood when it was back.
    text = APP.replace('path = "market"', 'path = "market"\nstate = "disk/state"')
    bench = Bench(tmp_path, text)
    source = bench.start()
    (tmp_path / "disk").rename(tmp_path / "away")
    source.given += [piece(5, 3)]
    for _ in range(3):
        bench.pass_s(1.1)
    said = bench.status()["trouble"]["state"]
    why = "was removed and cannot be created: No such file or directory; create it for the user of the service"
    assert said.startswith(f"{tmp_path / 'disk' / 'state'} {why}")
    assert not (tmp_path / "disk").exists()
    assert bench.sinks["alerts"].pairs() == [(5, 3)]
    (tmp_path / "away").rename(tmp_path / "disk")
    bench.pass_s(1.1)
    assert bench.status()["trouble"] == {}
    assert bench.stop() == 0


@pytest.mark.slow
def test_what_is_over_in_time_is_over_for_a_source_that_has_ended_too(bench: Bench) -> None:
    # Before: run as it is: the trouble stood on.
    source = bench.start()
    source.says = "a.ndjson was replaced, and the earlier file is not found: 2 of its records were read"
    source.given += [piece(5, 3)]
    source.ends = True
    bench.step(3)
    assert "a.ndjson was replaced" in bench.status()["trouble"]["source feed"]
    source.says = None
    assert bench.status()["trouble"] == {}
    assert [said for said in bench.said if said.startswith("source feed: ")][1:] == ["source feed: recovered"]


def test_a_process_with_its_number_is_not_it(tmp_path: Path) -> None:
    # Before: run with a process_began of its own: "running".
    told = {"version": 1, "state": "running", "pid": os.getpid(), "written": time.time(), "app": "a", "started": 0.0}
    host = {"host": socket.gethostname(), "began": process_began(os.getpid())}
    write_status(tmp_path, told | host)
    assert read_status(tmp_path)["state"] == "running"
    write_status(tmp_path, told | host | {"began": 1})
    assert read_status(tmp_path)["state"] == "gone"


def test_a_service_on_another_host(tmp_path: Path) -> None:
    # Before: run as it is: "gone".
    told = {"version": 1, "state": "running", "pid": 2**22 + 1, "written": 1000.0, "app": "a.toml", "host": "mars"}
    told["started"] = 900.0
    write_status(tmp_path, told)
    assert read_status(tmp_path, lambda: 1001.0)["state"] == "running"
    silent = read_status(tmp_path, lambda: 1060.0)
    assert silent["state"] == "silent"
    said = f"a.toml: process {2**22 + 1} on mars has given no sign of life for 60.0 s (silent)"
    assert headline(silent, 1060.0) == said


@pytest.mark.slow
def test_live_and_ready(tmp_path: Path) -> None:
    # Before: run as it is: there were no such flags, exit code 2 for each.
    told = {
        "version": 1, "state": "running", "pid": os.getpid(), "written": time.time(), "app": "app.toml",
        "started": time.time(), "loop": {"turned": time.time(), "doing": "events"},
    }  # fmt: skip
    (tmp_path / "app.toml").write_text('[database]\npath = "db"\nstate = "state"\n')
    state = tmp_path / "state"
    state.mkdir()
    codes = []
    for change in ({}, {"loop": {"turned": time.time() - 60, "doing": "a checkpoint"}}, {"state": "starting"},
                   {"state": "stopped"}):  # fmt: skip
        write_status(state, told | change | {"written": time.time() + 30})
        codes.append([run("status", str(tmp_path / "app.toml"), flag).returncode for flag in ("--live", "--ready")])
    assert codes == [[0, 0], [0, 1], [0, 1], [1, 1]]
    assert ready(told, time.time())


@pytest.mark.slow
def test_a_process_that_is_stopped_and_killed(tmp_path: Path) -> None:
    """SIGSTOP, SIGCONT, kill -9; and what was taken before that is not read again, for the log has it."""
    # Before: run as it is: stopped, it was never "halted" within the 60 s that are waited.
    (tmp_path / "app.toml").write_text(APP.replace('checkpoint = "10s"', 'checkpoint = "1 hour"'))
    lines = "".join(f'{{"ts": "2024-01-01 00:00:0{i}", "name": "x", "price": {9 - i}}}\n' for i in range(6))
    (tmp_path / "ticks.ndjson").write_text(lines)
    child = start(tmp_path)
    state = tmp_path / "market/_service"
    until(lambda: (state / "status.json").exists() and read_status(state)["streams"])
    until(lambda: read_status(state)["streams"]["ticks"]["accepted"] == 6)
    os.kill(child.pid, signal.SIGSTOP)
    until(lambda: read_status(state)["state"] == "halted")
    assert run("status", str(tmp_path / "app.toml"), "--live").returncode == 1
    os.kill(child.pid, signal.SIGCONT)
    until(lambda: read_status(state)["state"] == "running")
    child.kill()
    child.communicate()
    assert read_status(state)["state"] == "gone"
    with hybrid.connect(tmp_path / "market", read_only=True) as db:
        assert db.streams()["ticks"]["events"] == 6
    child = start(tmp_path)
    until(lambda: read_status(state)["state"] == "running" and read_status(state)["streams"])
    with open(tmp_path / "ticks.ndjson", "a", encoding="utf-8") as file:
        file.write('{"ts": "2024-01-01 00:00:07", "name": "x", "price": 1}\n')
    until(lambda: read_status(state)["streams"]["ticks"]["events"] == 7)
    told = read_status(state)["streams"]["ticks"]
    assert (told["accepted"], told["duplicates"], told["bad"]) == (7, 0, 0)
    child.send_signal(signal.SIGTERM)
    child.communicate()
    assert read_status(state)["state"] == "stopped"


def test_top_goes_on_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Before: run as it is: it ended, "there is no service with ...".
    told = {
        "version": 1, "state": "stopped", "pid": os.getpid(), "written": time.time(), "app": "app.toml",
        "started": time.time(), "streams": {}, "queries": {}, "sources": {}, "sinks": {}, "trouble": {},
    }  # fmt: skip
    write_status(tmp_path, told)
    looks: list[bool] = []

    def sleep(seconds: float) -> None:
        (tmp_path / "status.json").unlink(missing_ok=True)
        looks.append(True)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("hybrid.cli.run.time.sleep", sleep)
    top(str(tmp_path))
    assert len(looks) == 3
    assert "no service has run with" in capsys.readouterr().out
