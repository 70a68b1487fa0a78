"""One thread beside a database that keeps its tables in order: flushes what has waited, compacts, vacuums."""

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


class Keeper:
    """Started by start, stopped by stop; in between it works on its own. histories: gives those it looks after, as they
    are. What it could not do is told by take_trouble, once, and tried again."""

    def __init__(self, histories: Callable[[], Iterable[History]], every_s: float = EVERY_S) -> None:
        self._histories = histories
        self._every_s = every_s
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._trouble: dict[str, str] = {}
        # Per table, by its place: the handle, the version it was last looked at, and when it was last vacuumed.
        self._tables: dict[str, Table] = {}
        self._seen: dict[str, int] = {}
        self._vacuumed_s: dict[str, float] = {}
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=KEEPER, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended; a rewrite under way is given up."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_trouble(self) -> list[str]:
        """What went wrong since this was last asked."""
        with self._lock:
            found, self._trouble = list(self._trouble.values()), {}
        return found

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            for history in self._histories():
                if self._stopping.is_set():
                    return
                self._guarded(history, lambda h: h.flush_older(AGE_MAX_S), "events stay in memory")
                self._guarded(history, self._tend, "its table stays as it is")

    def _guarded(self, history: History, act: Callable[[History], object], so: str) -> None:
        try:
            act(history)
        except Exception as error:  # noqa: BLE001  (the thread goes on, whatever one table has)
            with self._lock:
                self._trouble[f"{history.schema.name} {so}"] = f"{history.schema.name}: {so}: {error}"

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
            if overdue:
                upkeep.vacuum(table)
                self._vacuumed_s[place] = time.monotonic()
            self._seen[place] = table.snapshot().version
