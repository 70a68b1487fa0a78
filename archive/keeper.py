"""Two threads beside a database: one flushes what has waited, one keeps its tables in order (compacts, vacuums). So a
long compaction, or a slow store, holds up no flush."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from archive import upkeep
from archive.history import AGE_MAX_S, KEEPER, History
from archive.table import Table

#: How often it looks, and how often it vacuums, in seconds.
EVERY_S = 1.0
VACUUM_EVERY_S = 3600.0
#: How long its end is waited for, in seconds.
STOP_S = 5.0


class Keeper:
    """Started by start, stopped by stop; in between it works on its own. histories: gives those it looks after, as they
    are. What it could not do is told by take_trouble, once, and tried again; of a history that is flushed `beside`
    appends, a flush that failed is told by the history itself (`failure`)."""

    def __init__(self, histories: Callable[[], Iterable[History]], every_s: float = EVERY_S) -> None:
        self._histories = histories
        self._every_s = every_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._full = threading.Event()
        self._trouble: dict[str, str] = {}
        self._failing: dict[str, str] = {}
        # Per table, by its place: the handle, the version it was last looked at, and when it was last vacuumed.
        self._tables: dict[str, Table] = {}
        self._seen: dict[str, int] = {}
        self._vacuumed_s: dict[str, float] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._threads = [threading.Thread(target=run, name=KEEPER, daemon=True) for run in (self._flush, self._run)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns when the threads have ended; a rewrite under way is given up. A thread that a disk or a store keeps
        for longer than STOP_S is left alone: what it does is a commit or nothing, as from another process."""
        self._stopping.set()
        self._full.set()
        until = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._threads = []

    def wake(self) -> None:
        """Memory of a history is full: it is flushed at once."""
        self._full.set()

    def take_trouble(self) -> list[str]:
        """What went wrong since this was last asked."""
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
        """Whether it could be done; what went wrong is told where it is new."""
        what = f"{history.schema.name} {so}"
        try:
            act(history)
        except Exception as error:  # noqa: BLE001  (the thread goes on, whatever one table has)
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
        """Compacts and vacuums one table, if there is something new and nobody else does."""
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
            _ = history.first_us  # looked up here, and not by a query that waits
            if overdue:
                upkeep.vacuum(table)
                self._vacuumed_s[place] = time.monotonic()
            self._seen[place] = table.snapshot().version
