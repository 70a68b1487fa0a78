"""Two background threads of a database: one flushes buffered events, the other compacts and vacuums tables. A long
compaction does not delay a flush."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from archive import upkeep
from archive.history import AGE_MAX_S, KEEPER, History
from archive.table import Table

#: Seconds between checks, and between vacuums of a table.
EVERY_S = 1.0
VACUUM_EVERY_S = 3600.0
#: Seconds for which `stop` waits for the threads.
STOP_S = 5.0


class Keeper:
    """Background maintenance between `start` and `stop`. histories: returns the current histories. Failures are retried
    and reported once by take_trouble; except failed flushes of a history with `beside`, which are in its
    `failure`."""

    def __init__(self, histories: Callable[[], Iterable[History]], every_s: float = EVERY_S) -> None:
        self._histories = histories
        self._every_s = every_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._full = threading.Event()
        self._trouble: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        # By place of the table: its handle, the last version that was checked, and the time of its last vacuum.
        self._tables: dict[str, Table] = {}
        self._seen: dict[str, int] = {}
        self._vacuumed_s: dict[str, float] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._threads = [threading.Thread(target=run, name=KEEPER, daemon=True) for run in (self._flush, self._run)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stops the threads and waits for them up to STOP_S; a running rewrite is abandoned. A thread that is blocked
        longer by a disk or a store is left to itself: it commits or does nothing, like another process."""
        self._stopping.set()
        self._full.set()
        until = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._threads = []

    def wake(self) -> None:
        """Wakes the flushing thread, because the buffer of a history is full."""
        self._full.set()

    def take_trouble(self) -> list[str]:
        """Returns the new failures since the last call."""
        with self._lock:
            found, self._trouble = list(self._trouble.values()), {}
        return found

    def _flush(self) -> None:
        while not self._stopping.is_set():
            self._full.wait(self._every_s)
            self._full.clear()
            for history in self._histories():
                if self._stopping.is_set():
                    return
                if not self._guarded(history, lambda h: h.flush_older(AGE_MAX_S), "events stay in memory"):
                    self._stopping.wait(self._every_s)
                self._guarded(history, History.drop_due, "events older than its retention stay")

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            for history in self._histories():
                if self._stopping.is_set():
                    return
                self._guarded(history, self._tend, "its table stays as it is")

    def _guarded(self, history: History, act: Callable[[History], object], so: str) -> bool:
        """Calls act; returns True if it succeeded, else records a new failure."""
        what = f"{history.schema.name} {so}"
        try:
            act(history)
        except Exception as error:  # noqa: BLE001  (the thread goes on after any failure of one table)
            said = f"{history.schema.name}: {so}: {error}"
            with self._lock:
                by_itself = history.beside is not None and history.failure == str(error)
                if self._failing.get(what) != said and not by_itself:
                    self._trouble[what] = said
                self._failing[what] = said
            return False
        with self._lock:
            self._failing.pop(what, None)
        return True

    def _tend(self, history: History) -> None:
        """Compacts and vacuums one table if it has changed or is due, unless another process does."""
        snapshot = history.table_snapshot
        if history.directory is None or snapshot is None:
            return
        place = str(history.directory)
        overdue = time.monotonic() - self._vacuumed_s.setdefault(place, time.monotonic()) > VACUUM_EVERY_S
        fresh = self._seen.get(place) != snapshot.version
        if not overdue and not (
            fresh and upkeep.plan_rewrites(snapshot, upkeep.closed_before_us(snapshot, history.schema))
        ):
            self._seen[place] = snapshot.version
            return
        with upkeep.one_at_a_time(history.directory) as mine:
            if not mine:
                return
            table = self._tables.get(place)
            if table is None or table.schema != history.schema:
                table = self._tables[place] = Table.open(history.directory)
            for _ in upkeep.compact(table, stopped=self._stopping.is_set):
                history.refresh()
            _ = history.first_us  # looked up here, so that no query waits for it
            if overdue:
                upkeep.vacuum(table)
                self._vacuumed_s[place] = time.monotonic()
            self._seen[place] = table.snapshot().version
