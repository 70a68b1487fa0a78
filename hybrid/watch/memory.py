"""The memory limit for partial matches, pending rows, evidence and history caches, divided among their holders, and the
spill store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from archive.place import Place
from hybrid.join.history_cache import BYTES_MAX, HistoryCache
from hybrid.rows.limited import bytes_of, bytes_of_statements
from hybrid.rows.times import show_us
from hybrid.watch.alerts import Alerts
from hybrid.watch.paged import PAGES, Pages
from matching.budget import Budget

if TYPE_CHECKING:
    from archive.partials import PartialStore
    from matching.spill import Spill, SpillStats

#: The limit if a checkpoint has spilled partial matches, but the database has no limit any more.
UNLIMITED = 1 << 62
#: Pending rows and evidence get the limit divided by this; partial matches get the rest.
FOUND_PART = 4
#: Memory that live queries may always take: below this, a smaller limit only lets partial matches leave memory.
LEAST_BYTES = 64_000_000


class Holder(Protocol):
    """A holder of partial matches: the feed of a stream, or a pattern of a chain."""

    limit_bytes: int


class Memory:
    """The memory limit of a database. limit: as connect takes it, or None; path: of the database, None: in memory."""

    def __init__(self, limit: str | None, path: Place | None) -> None:
        self._limit_bytes = None if limit is None else bytes_of(limit)
        self._store: PartialStore | None = None
        self._budget: Budget | None = None
        #: Files for the rows and evidence of live queries that do not fit.
        self.pages: Pages | None = None
        #: Reason why partial matches cannot leave memory, if any.
        self.why: str | None = None
        if path is None:
            self.why = "a database in memory cannot spill them"
        elif not path.on_disk:
            self.why = "a database in a store has no disk to spill them to"
        else:
            from archive.partials import PARTIALS, PartialStore

            directory = path / PARTIALS
            if limit is not None or directory.exists():
                self._store = PartialStore(directory)
            if limit is not None:
                self.pages = Pages(path / PAGES)

    def spill(self) -> Spill | None:
        """Returns the spill settings of feeds and matchers; None without a store."""
        if self._store is None:
            return None
        from matching.spill import Spill

        return Spill(UNLIMITED if self._limit_bytes is None else self._limit_bytes, self._store)

    def budget(self, queries: int) -> Budget:
        """Returns what partial matches may take at all, without a limit four fifths of the memory of the machine.
        queries: the number of live queries."""
        if self._budget is None:
            given = self._limit_bytes
            self._budget = Budget(max(LEAST_BYTES, bytes_of_statements(None) if given is None else given))
        self._budget.queries = queries
        return self._budget

    def share_out(self, holders: Iterable[Holder]) -> None:
        """Divides the limit, except for the part of pending rows and evidence, equally among the holders."""
        some = list(holders)
        limit_bytes = UNLIMITED if self._limit_bytes is None else self._limit_bytes - self._limit_bytes // FOUND_PART
        for holder in some:
            holder.limit_bytes = limit_bytes // len(some)

    def share_found(self, alerts: Collection[Alerts]) -> None:
        """Divides the part of pending rows and evidence equally among the live queries."""
        if self._limit_bytes is None:
            return
        for one in alerts:
            one.bound(self._limit_bytes // FOUND_PART // len(alerts), self.pages)

    def share_kept(self, caches: Sequence[HistoryCache]) -> None:
        """Divides the memory of history caches equally among them."""
        for cache in caches:
            cache.may_keep(BYTES_MAX // len(caches))

    def begins_anew(self) -> None:
        """Clears the store: no checkpoint refers to its partial matches."""
        if self._store is not None:
            self._store.clear()

    def kept(self) -> None:
        """Tells the store that a checkpoint is durable."""
        if self._store is not None:
            self._store.kept()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def notes(self, stats: Iterable[SpillStats]) -> list[str]:
        """Returns warnings about queries that keep all partial matches in memory although there is a limit."""
        if self._limit_bytes is None:
            return []
        why = dict.fromkeys(self.why or s.why for s in stats)
        return [f"partial matches of this query stay in memory despite the limit: {w}" for w in why if w is not None]


def stats_of(found: Iterable[SpillStats]) -> dict[str, Any]:
    """Returns the statistics of a query's patterns: runs, keys with partial matches in memory; spilled, those on disk;
    read_back, number of misses; rows_held: rows in memory that partial matches need; held_since: time of the oldest of
    them; memory_trouble: why some could not be spilled."""
    some = list(found)
    out: dict[str, Any] = {
        "runs": sum(s.runs for s in some), "spilled": sum(s.out for s in some),
        "read_back": sum(s.read_back for s in some),
    }  # fmt: skip
    oldest = min((s.since_us for s in some if s.since_us is not None), default=None)
    out |= {"rows_held": sum(s.rows for s in some), "held_since": show_us(oldest)}
    trouble = next((s.trouble for s in some if s.trouble is not None), None)
    return out if trouble is None else out | {"memory_trouble": trouble}
