"""Several processes on one archive at once: two writers, two that compact, a zombie that wakes up, and a reader that
looks all the time. Nothing lost, doubled or torn."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from archive.history import History
from archive.reader import RangeRequest
from archive.table import Table
from archive.upkeep import verify
from tests.archive import crash_child
from tests.archive.crash_child import event_at
from tests.archive.events import TICKS, Event, batch_of, events_of
from tests.forked import Child
from tests.properties.comparing import is_nightly

pytestmark = pytest.mark.slow


class Worker:
    """A process that appends or compacts, as long as it is let."""

    def __init__(self, directory: Path, seed: int, role: str, *sources: str) -> None:
        self.process = Child(crash_child.main, str(directory), str(seed), "anywhere", "0", role, *sources)
        assert self.process.stdout.readline() == "ready\n"
        self.lines: list[str] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)

    def promised(self) -> dict[str, int]:
        kept = [line.split()[1:] for line in list(self.lines) if line.startswith("kept") and line.endswith("\n")]
        return {name: int(number) for name, _, number in (word.partition("=") for word in (kept or [[]])[-1])}

    def kill(self) -> None:
        self.process.kill()
        self._reading.join()
        self.process.stdout.close()


def is_prefix_of_each_source(history: History) -> dict[str, int]:
    """Each source is there from its first event to some event, each once and as it was sent; how many of each."""
    events = events_of(history.snapshot().read(RangeRequest(late=True)))
    found: dict[str, list[int]] = {}
    for event in events:
        sent = event_at(event.source, event.offset, 0)
        assert (event.ts_us, event.symbol, event.price) == (sent.ts_us, sent.symbol, sent.price)
        found.setdefault(event.source, []).append(event.offset)
    for source, offsets in found.items():
        assert sorted(offsets) == list(range(len(offsets))), source
    return {source: len(offsets) for source, offsets in found.items()}


def test_writers_and_compactions_and_a_reader_at_once(tmp_path):
    Table.create(tmp_path, TICKS)
    with ExitStack() as stack:
        children = [
            Worker(tmp_path, 1, "append", "a"), Worker(tmp_path, 2, "append", "bb"),
            Worker(tmp_path, 3, "compact"), Worker(tmp_path, 4, "compact"),
        ]  # fmt: skip
        for child in children:
            stack.callback(child.kill)
        before: dict[str, int] = {}
        looks, wanted = 0, 60 if is_nightly() else 8
        # So often, and until the table has been compacted.
        while looks < wanted or not any("rewritten\n" in child.lines for child in children[2:]):
            promised = {**children[0].promised(), **children[1].promised()}
            seen = is_prefix_of_each_source(History(TICKS, tmp_path))
            for source in {*before, *promised}:
                assert seen.get(source, 0) >= max(before.get(source, 0), promised.get(source, 0))
            before, looks = seen, looks + 1
            assert all(child.process.returncode is None for child in children)
    promised = {**children[0].promised(), **children[1].promised()}
    seen = is_prefix_of_each_source(History(TICKS, tmp_path))
    assert all(seen[source] >= count for source, count in promised.items())
    assert set(seen) == {"a", "bb"}
    assert [f for f in verify(Table.open(tmp_path), deep=True) if f.kind == "broken"] == []


def test_a_zombie_writer_doubles_nothing(tmp_path):
    """A writer stops for a while in the middle of its work; another one takes its place and its source; the first goes
    on with what it held."""
    for seed in range(3):
        directory = tmp_path / str(seed)
        zombie = Worker(directory, seed, "append", "a")
        try:
            while not zombie.promised():
                time.sleep(0.01)
            time.sleep(0.02 * seed)
            os.kill(zombie.process.pid, signal.SIGSTOP)
            heir = Worker(directory, seed + 10, "append", "a")
            try:
                started = len(heir.lines)
                while len(heir.lines) < started + 5:
                    time.sleep(0.01)
                os.kill(zombie.process.pid, signal.SIGCONT)
                more = len(heir.lines) + 5
                while len(heir.lines) < more:
                    time.sleep(0.01)
            finally:
                heir.kill()
        finally:
            zombie.kill()
        seen = is_prefix_of_each_source(History(TICKS, directory))
        assert seen["a"] >= max(zombie.promised()["a"], heir.promised()["a"])


def test_snapshots_of_one_process_while_it_flushes_and_compacts(tmp_path):
    """The seam between memory and files: a reader in the same process never sees a gap or a double."""
    from archive.keeper import Keeper

    history = History(TICKS, tmp_path, memory_rows_max=200)
    keeper = Keeper(lambda: [history], every_s=0.005)
    keeper.start()
    appended, looks, faults, events_in_all = 0, 0, [], 9000 if is_nightly() else 3000

    def look() -> None:
        nonlocal looks
        while not done.is_set():
            low = appended
            try:
                count = is_prefix_of_each_source(history).get("a", 0)
                assert low <= count
            except BaseException as error:  # noqa: BLE001  (told by the test's own thread)
                faults.append(error)
                return
            looks += 1

    done = threading.Event()
    reader = threading.Thread(target=look)
    reader.start()
    try:
        for start in range(0, events_in_all, 30):
            events = [event_at("a", i, i) for i in range(start, start + 30)]
            history.append(*batch_of([Event(*e) for e in events]))
            appended = start + 30
    finally:
        done.set()
        reader.join()
        keeper.stop()
    assert faults == []
    assert looks > 5
    assert is_prefix_of_each_source(history) == {"a": events_in_all}
    assert keeper.take_trouble() == []
