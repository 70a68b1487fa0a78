"""Ranges of history with very many events, in which Spark searches for PA: which they are, and what may join.

Such a range is searched for by itself, one search for all rows that ask for it, over the files of a snapshot that has
nothing in memory: the driver lets memory be written first. Splitting a range there instead is no way, for matches
may reach from files into memory, and a live range mostly ends with what has come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader
from archive.search.search import search
from archive.snapshot import HistorySnapshot
from hybrid.join.candidates import Candidates, Ranges, keys_of
from hybrid.join.history_cache import HistoryCache
from hybrid.rows.answer import answer_of
from hybrid.rows.evidence import Evidence
from matching.batch import Int64Array, Matches
from matching.types import arrow_type
from query.errors import DataError, QueryError
from query.language.ast import RowsPerMatch
from query.plan.pattern import min_rows
from query.plan.plan import HistoryPlan, Plan

if TYPE_CHECKING:
    from archive.spark.search import Archived

#: Ranges with more events than so many go to Spark, where nobody says otherwise.
SPARK_EVENTS = 100_000_000


@dataclass(frozen=True, slots=True)
class LargeRanges:
    """Ranges with more than `events_max` events are Spark's. where: an address of Spark, or a session; it is started by
    the first search. trouble: why this process searched in Spark's place, until that is said."""

    where: Any
    events_max: int
    trouble: list[str] = field(default_factory=list, compare=False, repr=False)

    def __str__(self) -> str:
        return f"with more than {self.events_max:,} events"

    def large(
        self, reader: HistorySnapshot, ranges: Ranges, known: np.ndarray, cache: HistoryCache | None
    ) -> np.ndarray:
        """bool (n,): for which of n ranges more events would be read than that; by the statistics of files, so that it
        may be fewer. known, cache: what answers ranges nothing more can come into, see correlate."""
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
        """What may join of one range, as one block: what candidates_in gives for it; and whether Spark found it.
        reader: one of files alone. late: late events are searched too.

        Where Spark fails it is asked once more, in a session that answers; then this process searches, in bounded
        memory. Raises DataError, QueryError."""
        from archive.spark.search import Archived

        files = reader.files()
        assert files is not None
        place, table = files
        # Bounds that leave nothing out may lie where Spark knows of no time.
        low = None if low_us <= table.min_us.min(initial=low_us) else low_us
        end = None if last_us >= table.max_us.max(initial=last_us) else last_us + 1
        found = self._by_spark(Archived(place, table, reader.schema, low, end, late), plan)
        if not isinstance(found, str):
            return ranked(plan, found, reader, late), True
        here = list(search(reader, plan, low, end, late=late, arrange=iter))  # what Spark has no order for is not asked
        self.trouble.append(f"a range of the history of {reader.schema.name} was searched without Spark: {found}")
        return ranked(plan, here, reader, late), False

    def _by_spark(self, archived: Archived, plan: Plan) -> list[Matches] | str:
        """The matches in a range, or why Spark does not find them. Raises QueryError."""
        from archive.spark.search import matches
        from archive.spark.session import spark_session, what_failed

        why = ""
        for _ in range(2):
            try:
                return matches(spark_session(self.where), archived, plan, told=True)
            except QueryError:
                raise
            except Exception as error:  # noqa: BLE001  (pyspark, py4j and gRPC complain in many classes)
                said = (error.message, error.hint) if isinstance(error, DataError) else what_failed(error)
                why = "; ".join(filter(None, said))
        return why

    def take_trouble(self) -> list[str]:
        """Why this process searched in Spark's place since this was last asked."""
        found = list(dict.fromkeys(self.trouble))
        self.trouble.clear()
        return found


def large_ranges(where: Any, events_max: int | None, on_disk: bool) -> LargeRanges | None:
    """What the settings of a database say; on_disk: it has files. Raises DataError for what cannot be meant."""
    if where is None:
        if events_max is not None:
            raise DataError("spark_events says which ranges go to Spark, and no Spark is named", "add spark=")
        return None
    if not on_disk:
        raise DataError("a database in memory has no files for Spark", "hybrid.connect(path), or leave spark out")
    if events_max is not None and (isinstance(events_max, bool) or not isinstance(events_max, int) or events_max < 0):
        raise DataError(f"spark_events is {events_max!r}", "a number of events, 100_000_000 say")
    from archive.spark.session import check_where

    check_where(where)
    return LargeRanges(where, SPARK_EVENTS if events_max is None else events_max)


def why_here(history: HistoryPlan, live: pa.Schema) -> str:
    """Why ranges of this join, however large, are read in this process; or nothing. live: the columns of PL.

    Spark gives matches in no order across partitions, and they are put in order by their events: so each has to have
    some. Keys that ON asks for narrow a read, nobody knows how far, and one read serves the ranges of all keys."""
    from archive.spark.search import why_not

    plan = history.plan
    if plan is None:
        return "plain rows are read"
    if keys_of(history, live.empty_table())[0].columns:
        return "ON asks for some keys only"
    if not min_rows(plan.pattern) or plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED or plan.timeout_rows:
        return "it may give rows that are no match of events"
    if plan.after.variables:
        return f"{plan.after} may not move on"
    types = [arrow_type(column.type) for column in plan.partition_by]
    if any(pa.types.is_floating(type) or pa.types.is_nested(type) for type in types):
        return "of equal keys, 0 and -0, Spark may show either"
    refused = why_not(plan)
    return f"Spark has no {refused}" if refused else ""


# ---- the order of what comes back ------------------------------------------------------------------------------------


def ranked(plan: Plan, found: Sequence[Matches], reader: HistoryReader, late: bool) -> Candidates:
    """Matches of one range, none of them empty, as candidates of one block. Those with the same first and last event
    are of one partition, and stand in order of emission."""
    whole = answer_of(plan, found)
    evidence, of = whole.evidence, whole.match
    ends = np.concatenate([evidence.bounds[:-1], evidence.bounds[1:] - 1])
    first, last = np.split(_places(evidence, ends, reader, late), 2)
    order = np.lexsort((np.arange(len(of)), of, first[of], last[of]))
    match = of[order]
    rows = whole.live.take(pa.array(order))
    return Candidates(rows, np.zeros(len(match), np.int64), match, evidence, first[match], last[match])


def _places(evidence: Evidence, at: Int64Array, reader: HistoryReader, late: bool) -> Int64Array:
    """Numbers for some events that ascend with the total order, equal for one event. Of a stream with tie columns, the
    instants that several of them have are read again: evidence does not have these columns."""
    ts_us, source, offset = evidence.ts_us[at], evidence.source[at], evidence.offset[at]
    names = sorted(evidence.sources)
    source = np.array([names.index(name) for name in evidence.sources], np.int64)[source]
    tie = np.zeros(len(at), np.int64)
    if isinstance(reader, HistorySnapshot) and reader.schema.order:
        events = np.unique(np.stack([ts_us, source, offset], axis=1), axis=0)[:, 0]
        shared = np.unique(events[1:][events[1:] == events[:-1]])
        tied = np.flatnonzero(np.isin(ts_us, shared))
        if len(tied):
            there = reader.read_times(shared, late=late, columns=())
            by_seq = np.argsort(there.seq, kind="stable")
            have, seq = there.seq[by_seq], evidence.seq[at][tied]
            found = np.minimum(np.searchsorted(have, seq), len(have) - 1)
            if not len(have) or (have[found] != seq).any():
                raise DataError("some matched events are no longer in the archive", "keep them longer: retention=")
            tie[tied] = by_seq[found]
    keys = np.stack([ts_us, tie, source, offset], axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
