"""A pattern over a snapshot: units of keys, each walked in order of time with its partial matches, units in parallel.

A match lies in one partition. So where the first PARTITION BY column that is a key of the stream is cut into ranges,
the matches of all ranges are those of the whole (not under STRICT, which looks at neighbours of any partition). A unit
is one range, or the rows without a key. Its events come in the total order from HistorySnapshot.batches, in bounded
memory, and one Matcher takes them over all files and days. The key column is cut by counting it, so that where files
stand by (key, time), what a unit reads of a day fits into one batch and nothing has to be sorted on disk. A range with
more rows than that, of one key even, is sorted there.

Where the plan allows it, only the surroundings of rows that every match needs are read: see archive.search.prefilter.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias, TypeVar

import archive.snapshot
from archive.recent import KeyRange
from archive.search.prefilter import windows_of
from archive.snapshot import HistorySnapshot
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import run
from query.language.ast import Selection
from query.plan.plan import Plan
from query.schema import Schema

#: Types of a column that can be cut into ranges: stored as they are, and ordered alike by DuckDB, Arrow and Python.
_CUT_TYPES = ("VARCHAR", "TINYINT", "SMALLINT", "INTEGER", "BIGINT")
#: With fewer events a second unit costs more than it saves.
_PARALLEL_ROWS_MIN = 1_000_000
#: Units for each worker, so that one with more work does not keep the others waiting.
_UNITS_PER_WORKER = 4
#: Units are read when all of them together look at no more than so many times the rows there are: as much as one thread
#: costs that reads while the other matches; and what a sort of files costs that overlap in time and are too many rows
#: to be held.
_LOOKS_MAX, _LOOKS_MAX_UNSORTED = 1.5, 4
#: How long the end of a thread is waited for that may be reading, in seconds; it ends with what it reads.
STOP_S = 5.0
#: Matches of a unit that wait to be taken; its worker waits then.
_WAITING_MAX = 8

T = TypeVar("T")

#: Puts events into an order of their own: those of one instant, which are in one batch.
Arrange: TypeAlias = Callable[[Iterator[EventBatch]], Iterator[EventBatch]]


@dataclass(frozen=True, slots=True)
class Unit:
    """What one Matcher walks: a range of values of a key (span); the rows that have none in a column (null); or
    everything."""

    span: KeyRange | None = None
    null: str | None = None


@dataclass(slots=True)
class Report:
    """What a search has done so far, for EXPLAIN and statistics. units: how many, and by which column (None: one unit,
    all in order of time). prefilter: what was read, in words. events: that went through a matcher; total: no fewer
    than there are in the range."""

    units: int = 0
    column: str | None = None
    workers: int = 1
    prefilter: str = ""
    events: int = 0
    total: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def took(self, events: int) -> None:
        with self._lock:
            self.events += events

    def __str__(self) -> str:
        cut = "in order of time" if self.column is None else f"by {self.column}"
        return (
            f"{self.units} {'unit' if self.units == 1 else 'units'} {cut}, {self.workers} at a time; "
            f"{self.prefilter}; {self.events:,} of at most {self.total:,} events matched against the pattern"
        )


def search(
    snapshot: HistorySnapshot,
    plan: Plan,
    low_us: int | None = None,
    high_us: int | None = None,
    *,
    late: bool = False,
    make: Callable[[Plan], Matcher] | None = None,
    arrange: Arrange | None = None,
    workers: int | None = None,
    rows_max: int | None = None,
    prefilter: bool | None = None,
    report: Report | None = None,
) -> Iterator[Matches]:
    """The matches of a plan in the events with low_us <= time < high_us, as a bounded input: those that one Matcher
    finds in all of them, with the same evidence. They come unit by unit, and in a unit in order of emission.

    late: late events are seen too. make: gives the matchers, which run in threads. arrange: for an ORDER BY of more
    than the stream's time. workers: units at a time (None: as many as there are cores). rows_max: events that are held
    for a unit at a time, two or three times over (None: archive.snapshot.BATCH_ROWS_MAX). prefilter: whether to read
    only what may be part of a match (None: where that is possible and worth it). report: filled in on the way.
    Memory: for each worker some batches and archive.scan.SORT_MEMORY, and what the matcher keeps of partial matches.
    Raises what reading and matching raise; the first error ends the search."""
    from matching.matcher import KernelMatcher, make_matcher

    if len(plan.order_by) > 1 and arrange is None:
        raise ValueError("an ORDER BY of its own needs `arrange`")
    make = make or make_matcher
    report = Report() if report is None else report
    rows_max = archive.snapshot.BATCH_ROWS_MAX if rows_max is None else rows_max
    cores = os.cpu_count() or 1 if workers is None else workers
    report.total, largest = snapshot.stretch_rows(low_us, high_us)
    windows, report.prefilter = windows_of(snapshot, plan, low_us, high_us, late, prefilter, report.total)
    units = [Unit()]
    column = key_column(plan, snapshot.schema)
    if windows is None and column is not None:
        parts = -(-largest // rows_max) if largest > rows_max else 1
        # Events that are all in memory would be looked through once for each unit.
        if cores > 1 and (workers is not None or (largest and report.total >= _PARALLEL_ROWS_MIN)):
            parts = max(parts, cores * _UNITS_PER_WORKER)
        if parts > 1:
            cut = units_of(column, snapshot.key_cuts(column, parts, low_us, high_us, late=late))
            looks = snapshot.touched_rows([u.span for u in cut if u.span is not None], low_us, high_us)
            times = _LOOKS_MAX_UNSORTED if largest > rows_max else _LOOKS_MAX
            if workers is not None or looks <= report.total * times:
                units, report.column = cut, column
    report.units, report.workers = len(units), min(cores, len(units))

    def walk(unit: Unit) -> Iterator[Matches]:
        batches = snapshot.batches(
            low_us, high_us, late=late, columns=plan.columns, span=unit.span, windows=windows, rows_max=rows_max,
            keys=None if unit.null is None else {unit.null: [None]},
        )  # fmt: skip
        counted = _counted(batches if len(units) > 1 else _ahead(batches), report)
        matcher = make(plan)
        try:
            yield from run(matcher, counted if arrange is None else arrange(counted))
        finally:
            # At once, also where an error keeps this frame: a thread may be reading, or files may be sorted on disk.
            counted.close()
            batches.close()
            if isinstance(matcher, KernelMatcher):
                matcher.rows.remove(matcher)  # they know each other, and would wait for a look for garbage

    if report.workers == 1:
        for unit in units:
            yield from walk(unit)
        return
    yield from _in_parallel([lambda unit=unit: walk(unit) for unit in units], report.workers)  # type: ignore[misc]


def key_column(plan: Plan, schema: Schema) -> str | None:
    """The column by which the work on a plan may be cut, or None."""
    if plan.selection is Selection.STRICT:
        return None
    keys = {key.lower() for key in schema.keys}
    return next((c.name for c in plan.partition_by if c.name.lower() in keys and c.type in _CUT_TYPES), None)


def units_of(column: str, cuts: list[str] | list[int]) -> list[Unit]:
    """The units between values of a column, and that of the rows without one."""
    edges = [None, *cuts, None]
    spans = [Unit(KeyRange(column, low, end)) for low, end in pairwise(edges)]
    return [*spans, Unit(null=column)]


def _counted(batches: Iterator[EventBatch], report: Report) -> Generator[EventBatch]:
    for batch in batches:
        report.took(len(batch))
        yield batch


class _End:
    """The end of what a thread gives, or the error that it ended with."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def _give(items: Iterator[T], to: queue.Queue[T | _End], stopped: threading.Event) -> None:
    """Puts the items into a queue, and how they end, until it is stopped."""

    def put(item: T | _End) -> bool:
        while not stopped.is_set():
            try:
                to.put(item, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    error: BaseException | None = None
    try:
        for item in items:
            if not put(item):
                break
    except BaseException as raised:  # noqa: BLE001  (it is raised where the items are taken)
        error = raised
    finally:
        if isinstance(items, Generator):
            items.close()
    put(_End(error))


def _taken(parts: queue.Queue[T | _End]) -> Iterator[T]:
    """What a thread has put into a queue, up to its end."""
    while not isinstance(part := parts.get(), _End):
        yield part
    if part.error is not None:
        raise part.error


def _ahead(batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """The batches, of which the next one is read while one is matched."""
    parts: queue.Queue[EventBatch | _End] = queue.Queue(1)
    stopped = threading.Event()
    thread = threading.Thread(target=_give, args=(batches, parts, stopped), name="hybrid-search-reader", daemon=True)
    thread.start()
    try:
        yield from _taken(parts)
    finally:
        stopped.set()
        thread.join(STOP_S)


def _in_parallel(walks: list[Callable[[], Iterator[Matches]]], workers: int) -> Iterator[Matches]:
    """What the walks give, one after the other, while `workers` of them run at a time. Threads: kernels, DuckDB and
    Arrow let go of Python's lock for most of the time. An abandoned iterator stops them."""
    found: list[queue.Queue[Matches | _End]] = [queue.Queue(_WAITING_MAX) for _ in walks]
    left = iter(range(len(walks)))
    lock, stopped = threading.Lock(), threading.Event()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                n = next(left, None)
            if n is None:
                return
            _give(walks[n](), found[n], stopped)

    threads = [threading.Thread(target=work, name=f"hybrid-search-{i}", daemon=True) for i in range(workers)]
    try:
        for thread in threads:
            thread.start()
        for parts in found:
            yield from _taken(parts)
    finally:
        stopped.set()
        for thread in threads:
            thread.join(STOP_S)
