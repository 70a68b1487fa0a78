"""Search by Spark for the history pattern (PA) in ranges with very many events.

One search serves all rows with the same range. It reads the files of a snapshot without events in memory: the driver
writes these to files first. A range cannot be split at that point instead, as matches may span files and memory, and
most live ranges end at the newest events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.search.search import search
from archive.snapshot import HistorySnapshot
from hybrid.join.candidates import Candidates, Ranges, keys_of, windows_of_blocks
from hybrid.join.history_cache import HistoryCache
from hybrid.rows.answer import answer_of, output_schema
from hybrid.rows.evidence import Evidence
from hybrid.rows.lookup import positions_of
from matching.batch import Int64Array, Matches
from matching.types import arrow_type
from query.errors import DataError, QueryError
from query.language.ast import RowsPerMatch
from query.plan.pattern import min_rows
from query.plan.plan import HistoryPlan, Plan

if TYPE_CHECKING:
    from archive.spark.search import Archived

#: Default of spark_events: ranges with more events go to Spark.
SPARK_EVENTS = 100_000_000


@dataclass(frozen=True, slots=True)
class LargeRanges:
    """Sends ranges with more than `events_max` events to Spark. where: an address of Spark, or a session; the first
    search starts it. trouble: unreported reasons why this process searched instead of Spark."""

    where: Any
    events_max: int
    trouble: list[str] = field(default_factory=list, compare=False, repr=False)

    def __str__(self) -> str:
        return f"with more than {self.events_max:,} events"

    def large(
        self, reader: HistorySnapshot, ranges: Ranges, known: np.ndarray, cache: HistoryCache | None
    ) -> np.ndarray:
        """Returns True for ranges that would read more than events_max events, bool (n,). File statistics give an upper
        bound, so the true number may be smaller. known, cache: as in correlate; cached events are not counted."""
        large = np.zeros(len(ranges.low_us), bool)
        some = np.flatnonzero(ranges.low_us <= ranges.last_us)
        if not len(some):
            return large
        low, last = ranges.low_us[some], ranges.last_us[some]
        if reader.stretch_rows(int(low.min()), int(last.max()) + 1)[0] <= self.events_max:
            return large
        spans, of = np.unique(np.stack([low, last, known[some]], axis=1), axis=0, return_inverse=True)
        far = [
            cache.unread(low_us, last_us, reader) > self.events_max if cache is not None and whole
            else reader.stretch_rows(low_us, last_us + 1)[0] > self.events_max
            for low_us, last_us, whole in spans.tolist()
        ]  # fmt: skip
        large[some] = np.array(far)[of.reshape(-1)]
        return large

    def candidates(
        self, plan: Plan, reader: HistorySnapshot, low_us: int, last_us: int, late: bool
    ) -> tuple[Candidates, bool]:
        """Returns the candidates of one range, as candidates_in does for one block, and True if Spark found them.

        reader: a snapshot of files only. late: includes late events. If Spark fails twice, the second time in a working
        session, this process searches in bounded memory. Raises DataError, QueryError."""
        from archive.spark.search import Archived

        files = reader.files()
        assert files is not None
        place, table = files
        # Drop bounds that exclude nothing: they may be outside of Spark's range of times.
        low = None if low_us <= table.min_us.min(initial=low_us) else low_us
        end = None if last_us >= table.max_us.max(initial=last_us) else last_us + 1
        request = RangeRequest(low, end, late=late)
        found = self._by_spark(Archived(place, table, reader.schema, request), plan)
        if not isinstance(found, str):
            return ranked(plan, found, reader, late, low_us, last_us), True
        # plans that need another order never get here
        here = list(search(reader, plan, request, arrange=iter))
        self.trouble.append(f"a range of the history of {reader.schema.name} was searched without Spark: {found}")
        return ranked(plan, here, reader, late, low_us, last_us), False

    def _by_spark(self, archived: Archived, plan: Plan) -> list[Matches] | str:
        """Returns the matches in a range, or the reason why Spark failed. Raises QueryError."""
        from archive.spark.search import matches
        from archive.spark.session import spark_session, what_failed

        why = ""
        for _ in range(2):
            try:
                return matches(spark_session(self.where), archived, plan, told=True)
            except QueryError:
                raise
            except Exception as error:  # noqa: BLE001  (pyspark, py4j and gRPC raise many classes)
                said = (error.message, error.hint) if isinstance(error, DataError) else what_failed(error)
                why = "; ".join(filter(None, said))
        return why

    def take_trouble(self) -> list[str]:
        """Returns and clears the reasons why this process searched instead of Spark."""
        found = list(dict.fromkeys(self.trouble))
        self.trouble.clear()
        return found


def large_ranges(where: Any, events_max: int | None, on_disk: bool) -> LargeRanges | None:
    """Returns the large-range search of a database's settings, or None without Spark. on_disk: the database has files.
    Raises DataError for invalid settings."""
    if where is None:
        if events_max is not None:
            raise DataError("spark_events needs spark", "add spark=, the Spark that searches large ranges")
        return None
    if not on_disk:
        raise DataError("a database in memory has no files for Spark", "hybrid.connect(path), or leave spark out")
    if events_max is not None and (isinstance(events_max, bool) or not isinstance(events_max, int) or events_max < 0):
        raise DataError(f"spark_events is {events_max!r}", "write a number of events, such as 100_000_000")
    from archive.spark.session import check_where

    check_where(where)
    return LargeRanges(where, SPARK_EVENTS if events_max is None else events_max)


def why_here(history: HistoryPlan, live: pa.Schema) -> str:
    """Returns the reason why this process reads even large ranges of a join, or "". live: the columns of PL.

    Spark returns matches of several partitions in undefined order. Their events restore the order, so no match may be
    empty; windows come in their own order. Keys in ON shrink a read by an unknown factor, and one read serves the
    ranges of all keys."""
    from archive.spark.search import why_not

    plan = history.plan
    if plan is None:
        return "it has plain rows and no pattern"
    if keys_of(history, live.empty_table())[0].columns:
        return "ON selects keys"
    if not min_rows(plan.pattern) or plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED or plan.timeout_rows:
        return "it may return rows without a match of events"
    if plan.after.variables:
        return f"{plan.after} may not move on"
    types = [arrow_type(column.type) for column in plan.partition_by]
    if any(pa.types.is_floating(type) or pa.types.is_nested(type) for type in types):
        return "Spark may return either of the equal keys 0 and -0"
    refused = why_not(plan)
    return f"Spark has no {refused}" if refused else ""


# ---- the order of what comes back ------------------------------------------------------------------------------------


def ranked(
    plan: Plan, found: Sequence[Matches], reader: HistoryReader, late: bool, low_us: int, last_us: int
) -> Candidates:
    """Returns the matches of one range, [low_us, last_us], as candidates of one block. No match may be empty. Matches
    with the same first and last event are of one partition and in order of emission. Rows of windows are in the order
    of windows; those of windows that the range cuts are left out."""
    if plan.trends is not None:
        rows = pa.concat_tables([output_schema(plan).empty_table(), *(m.rows for m in found)])
        span = Ranges(np.array([low_us], np.int64), np.array([last_us], np.int64))
        return windows_of_blocks(plan, rows, np.zeros(rows.num_rows, np.int64), span)
    whole = answer_of(plan, found)
    evidence, of = whole.evidence, whole.match
    ends = np.concatenate([evidence.bounds[:-1], evidence.bounds[1:] - 1])
    first, last = np.split(_places(evidence, ends, reader, late), 2)
    order = np.lexsort((np.arange(len(of)), of, first[of], last[of]))
    match = of[order]
    rows = whole.live.take(pa.array(order))
    return Candidates(rows, np.zeros(len(match), np.int64), match, evidence, first[match], last[match])


def _places(evidence: Evidence, at: Int64Array, reader: HistoryReader, late: bool) -> Int64Array:
    """Returns a number for each event, ascending with the total order, equal for equal events. For a stream with tie
    columns, which evidence lacks, instants shared by several events are read again."""
    ts_us, source, offset = evidence.ts_us[at], evidence.source[at], evidence.offset[at]
    names = sorted(evidence.sources)
    source = np.array([names.index(name) for name in evidence.sources], np.int64)[source]
    tie = np.zeros(len(at), np.int64)
    if isinstance(reader, HistorySnapshot) and reader.schema.order:
        events = np.unique(np.stack([ts_us, source, offset], axis=1), axis=0)[:, 0]
        shared = np.unique(events[1:][events[1:] == events[:-1]])
        tied = np.flatnonzero(np.isin(ts_us, shared))
        if len(tied):
            found = reader.read_times(shared, RangeRequest(late=late, columns=()))
            tie[tied] = positions_of(found, evidence.seq[at][tied])
    keys = np.stack([ts_us, tie, source, offset], axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
