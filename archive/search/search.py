"""Pattern search over a snapshot: cuts keys into units, matches each unit in time order, several units in parallel.

A match is in one partition. So if the first PARTITION BY column that is a key of the stream is cut into ranges, the
matches of all ranges are the matches of the whole (except under STRICT, which depends on neighbours of any partition).
A unit is one range, or the rows without a key. HistorySnapshot.batches reads its events in the total order and in
bounded memory, and one Matcher takes them through all files and days. The key column is cut by counting its values, so
that in files sorted by (key, time) a unit's rows of a day fit into one batch and need no sorting on disk. Larger
ranges, even of one key, are sorted on disk.

If the plan allows it, only rows near a row that every match needs are read: see archive.search.prefilter.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias, TypeVar

import archive.snapshot
from archive.reader import WHOLE, RangeRequest
from archive.recent import KeyRange
from archive.search.prefilter import windows_of
from archive.snapshot import HistorySnapshot
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import run
from query.language.ast import Selection
from query.plan.boxes import common_keys
from query.plan.plan import Plan
from query.schema import Schema

#: Types of columns that can be cut into ranges: stored unchanged, with the same order in DuckDB, Arrow and Python.
_CUT_TYPES = ("VARCHAR", "TINYINT", "SMALLINT", "INTEGER", "BIGINT")
#: With fewer events a second unit costs more than it saves.
_PARALLEL_ROWS_MIN = 1_000_000
#: Units per worker, so that a large unit does not idle the other workers.
_UNITS_PER_WORKER = 4
#: Units are used if they scan at most this multiple of the rows in all. The first limit compares with one thread that
#: reads while another matches; the second with sorting files that overlap in time and exceed a batch.
_LOOKS_MAX, _LOOKS_MAX_UNSORTED = 1.5, 4
#: Seconds to wait for the end of a thread, which may be in the middle of a read.
STOP_S = 5.0
#: Limit of pending Matches per unit; then its worker waits.
_WAITING_MAX = 8

T = TypeVar("T")

#: Reorders the events of each instant, which are in one batch, by the plan's ORDER BY.
Arrange: TypeAlias = Callable[[Iterator[EventBatch]], Iterator[EventBatch]]


@dataclass(frozen=True, slots=True)
class SearchUnit:
    """The input of one Matcher: a range of values of a key (span), the rows with a null key (null: its column), or all
    rows."""

    span: KeyRange | None = None
    null: str | None = None


@dataclass(slots=True)
class SearchReport:
    """Progress of a search, for EXPLAIN and statistics. units: number of units. column: the column that is cut (None:
    one unit, in time order). workers: units in parallel. prefilter: its decision, in words. events: number of events
    matched. total: upper bound of the events in the range."""

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
    request: RangeRequest = WHOLE,
    *,
    make: Callable[[Plan], Matcher] | None = None,
    arrange: Arrange | None = None,
    workers: int | None = None,
    rows_max: int | None = None,
    prefilter: bool | None = None,
    report: SearchReport | None = None,
) -> Iterator[Matches]:
    """Yields the matches of a plan in the requested events, as a bounded input: the same matches with the same evidence
    as a single Matcher finds. Order: unit by unit, in a unit by emission.

    request: its range and `late` count; keys and columns are those of the plan. make: makes the matchers, which run in
    threads. arrange: required for an ORDER BY of more than the stream's time. workers: units in parallel (None: one per
    core). rows_max: limit of events in a batch of a unit, of which two or three are held (None:
    archive.snapshot.BATCH_ROWS_MAX). prefilter: reads only rows near a possible match (None: if sound and worthwhile).
    report: filled during the search.
    Memory per worker: some batches, archive.scan.SORT_MEMORY, and the matcher's partial matches. Raises the errors of
    reading and matching; the first error ends the search."""
    from matching.matcher import KernelMatcher, make_matcher

    if len(plan.order_by) > 1 and arrange is None:
        raise ValueError("an ORDER BY of several columns requires `arrange`")
    make = make or make_matcher
    report = SearchReport() if report is None else report
    rows_max = archive.snapshot.BATCH_ROWS_MAX if rows_max is None else rows_max
    cores = os.cpu_count() or 1 if workers is None else workers
    report.total, largest = snapshot.stretch_rows(request.low_us, request.end_us)
    windows, report.prefilter = windows_of(snapshot, plan, request, prefilter, report.total)
    units = [SearchUnit()]
    column = key_column(plan, snapshot.schema)
    if windows is None and column is not None:
        parts = -(-largest // rows_max) if largest > rows_max else 1
        # Buffered events are scanned once per unit, so a history in memory is not cut.
        if cores > 1 and (workers is not None or (largest and report.total >= _PARALLEL_ROWS_MIN)):
            parts = max(parts, cores * _UNITS_PER_WORKER)
        if parts > 1:
            cut = units_of(column, snapshot.key_cuts(column, parts, request))
            looks = snapshot.touched_rows([u.span for u in cut if u.span is not None], request.low_us, request.end_us)
            times = _LOOKS_MAX_UNSORTED if largest > rows_max else _LOOKS_MAX
            if workers is not None or looks <= report.total * times:
                units, report.column = cut, column
    report.units, report.workers = len(units), min(cores, len(units))

    def walk(unit: SearchUnit) -> Iterator[Matches]:
        keys = None if unit.null is None else {unit.null: [None]}
        asked = replace(request, keys=keys, columns=plan.columns)
        batches = snapshot.batches(asked, span=unit.span, windows=windows, rows_max=rows_max)
        counted = _counted(batches if len(units) > 1 else _ahead(batches), report)
        matcher = make(plan)
        try:
            yield from run(matcher, counted if arrange is None else arrange(counted))
        finally:
            # Closed explicitly: an error keeps this frame alive, while a thread reads or DuckDB sorts on disk.
            counted.close()
            batches.close()
            if isinstance(matcher, KernelMatcher):
                matcher.rows.remove(matcher)  # breaks a reference cycle, which would wait for garbage collection

    if report.workers == 1:
        for unit in units:
            yield from walk(unit)
        return
    yield from _in_parallel([lambda unit=unit: walk(unit) for unit in units], report.workers)  # type: ignore[misc]


def key_column(plan: Plan, schema: Schema) -> str | None:
    """Returns the column by which a search may be cut into units, or None."""
    if plan.selection is Selection.STRICT or plan.trends is not None:  # a window's rows are of all its partitions
        return None
    keys, common = {key.lower() for key in schema.keys}, common_keys(plan)
    own = (c for c in plan.partition_by if c.name in common)
    return next((c.name for c in own if c.name.lower() in keys and c.type in _CUT_TYPES), None)


def units_of(column: str, cuts: list[str] | list[int]) -> list[SearchUnit]:
    """Returns the units between the cuts of a column, and the unit of rows with null."""
    edges = [None, *cuts, None]
    spans = [SearchUnit(KeyRange(column, low, end)) for low, end in pairwise(edges)]
    return [*spans, SearchUnit(null=column)]


def _counted(batches: Iterator[EventBatch], report: SearchReport) -> Generator[EventBatch]:
    for batch in batches:
        report.took(len(batch))
        yield batch


class _End:
    """Marks the end of a thread's items. error: the error that ended it, or None."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def _give(items: Iterator[T], to: queue.Queue[T | _End], stopped: threading.Event) -> None:
    """Puts the items and an _End into a queue, until stopped."""

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
    except BaseException as raised:  # noqa: BLE001  (raised again by the consumer)
        error = raised
    finally:
        if isinstance(items, Generator):
            items.close()
    put(_End(error))


def _taken(parts: queue.Queue[T | _End]) -> Iterator[T]:
    """Yields the items of a queue up to its _End; raises its error."""
    while not isinstance(part := parts.get(), _End):
        yield part
    if part.error is not None:
        raise part.error


def _ahead(batches: Iterator[EventBatch]) -> Iterator[EventBatch]:
    """Yields the batches, reading the next one in a thread."""
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
    """Yields the matches of the walks, one walk after the other, while `workers` of them run in threads: kernels,
    DuckDB and Arrow release Python's lock most of the time. Closing the iterator stops them."""
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
