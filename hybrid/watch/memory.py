"""How much of memory partial matches may hold, and what has been found in history, shared out among all that hold some;
and where partial matches go that do not fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from archive.place import Place
from hybrid.join.history_cache import BYTES_MAX, HistoryCache
from hybrid.rows.times import show_us
from hybrid.watch.alerts import Alerts
from hybrid.watch.paged import PAGES, Pages
from query.errors import DataError

if TYPE_CHECKING:
    from archive.partials import PartialStore
    from matching.spill import Spill, SpillStats

UNITS = {"": 1, **{f"{p}b": 1000**i for i, p in enumerate(("", "k", "m", "g", "t"))}}
UNITS |= {f"{p}ib": 1024**i for i, p in enumerate(("k", "m", "g", "t"), 1)}
#: Where a checkpoint has partial matches on disk, and there is no limit any more.
UNLIMITED = 1 << 62
#: One part in so many of the limit is for rows that wait to be fetched, and for what evidence needs; the others are for
#: partial matches.
FOUND_PART = 4


class Holder(Protocol):
    """What holds partial matches: the feed of a stream, a pattern of a query over several."""

    limit_bytes: int


class Memory:
    """The limit of a database. limit: as connect takes it, or None; path: where the database is, None: in memory."""

    def __init__(self, limit: str | None, path: Place | None) -> None:
        self._limit_bytes = None if limit is None else bytes_of(limit)
        self._store: PartialStore | None = None
        #: Where rows and evidence of live queries go that do not fit.
        self.pages: Pages | None = None
        #: Why nothing can leave memory, whatever is asked.
        self.why: str | None = None
        if path is None:
            self.why = "a database in memory has no place for them"
        elif not path.on_disk:
            self.why = "a database in a store has no place on disk for them"
        else:
            from archive.partials import PARTIALS, PartialStore

            directory = path / PARTIALS
            if limit is not None or directory.exists():
                self._store = PartialStore(directory)
            if limit is not None:
                self.pages = Pages(path / PAGES)

    def spill(self) -> Spill | None:
        """What feeds and matchers are made with."""
        if self._store is None:
            return None
        from matching.spill import Spill

        return Spill(UNLIMITED if self._limit_bytes is None else self._limit_bytes, self._store)

    def share_out(self, holders: Iterable[Holder]) -> None:
        """Each has as much of the limit, but for the part of what has been found, as every other."""
        some = list(holders)
        limit_bytes = UNLIMITED if self._limit_bytes is None else self._limit_bytes - self._limit_bytes // FOUND_PART
        for holder in some:
            holder.limit_bytes = limit_bytes // len(some)

    def share_found(self, alerts: Collection[Alerts]) -> None:
        """Each may have as much of its rows and evidence in memory as every other."""
        if self._limit_bytes is None:
            return
        for one in alerts:
            one.bytes_max, one.pages = self._limit_bytes // FOUND_PART // len(alerts), self.pages
            one.keep_within()

    def share_kept(self, caches: Sequence[HistoryCache]) -> None:
        """Each may keep as much of what it has found as every other."""
        for cache in caches:
            cache.may_keep(BYTES_MAX // len(caches))

    def begins_anew(self) -> None:
        """There is no checkpoint that knows of partial matches on disk."""
        if self._store is not None:
            self._store.clear()

    def kept(self) -> None:
        """A checkpoint is on disk."""
        if self._store is not None:
            self._store.kept()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def notes(self, stats: Iterable[SpillStats]) -> list[str]:
        """What is to be said of queries that keep all partial matches in memory, where there is a limit."""
        if self._limit_bytes is None:
            return []
        why = dict.fromkeys(self.why or s.why for s in stats)
        return [f"partial matches of this query stay in memory, whatever the limit: {w}" for w in why if w is not None]


def stats_of(found: Iterable[SpillStats]) -> dict[str, Any]:
    """Of the patterns of a query: runs, the keys with partial matches in memory; spilled, those that are on disk;
    read_back, how often one came back from there; rows_held: the rows in memory that partial matches need; held_since:
    the time of the oldest of them; memory_trouble: what went wrong when some were to leave."""
    some = list(found)
    out: dict[str, Any] = {
        "runs": sum(s.runs for s in some), "spilled": sum(s.out for s in some),
        "read_back": sum(s.read_back for s in some),
    }  # fmt: skip
    oldest = min((s.since_us for s in some if s.since_us is not None), default=None)
    out |= {"rows_held": sum(s.rows for s in some), "held_since": show_us(oldest)}
    trouble = next((s.trouble for s in some if s.trouble is not None), None)
    return out if trouble is None else out | {"memory_trouble": trouble}


def bytes_of(limit: str) -> int:
    """An amount of memory as DuckDB reads it: '2GB' is 2 * 1000**3 bytes, '2GiB' 2 * 1024**3. Raises DataError."""
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z]*)\s*", limit)
    unit = None if found is None else UNITS.get(found[2].lower().rstrip("s") if found[2].lower() != "s" else "?")
    if found is None or unit is None:
        raise DataError(f"memory_limit is {limit!r}, which is no amount of memory", "write it as '2GB' or '500MB'")
    return int(float(found[1]) * unit)
