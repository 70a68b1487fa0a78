"""Evidence of live matches that were emitted without their events: the pattern runs again over the archive."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from hybrid.rows.answer import concat_matches
from hybrid.rows.evidence import of_matches
from hybrid.rows.lookup import no_longer_kept
from hybrid.statement.statement import live_matcher
from matching.batch import Ends, EventBatch, Int64Array, Matches
from matching.drive import run
from query.plan.expression import MatchNumber, walk
from query.plan.plan import Plan

#: Approximate number of events that are found at a time.
EVENTS_MAX = 250_000
#: Approximate number of matches for which the archive is read at a time.
MATCHES_MAX = 65_536


def with_events(
    plan: Plan, found: Sequence[Matches], reader: HistoryReader, since_seq: int, from_us: int | None,
    events_max: int = EVENTS_MAX,
) -> Iterator[Matches]:  # fmt: skip
    """Yields matches of a live query in their order, with their events, in parts of about `events_max` events. A
    contiguous match has all events of the partition from its first to its last one; others are searched.

    reader: the events of the stream. since_seq: ingest sequence from which the query reads; from_us: time from which it
    reads, or None. Raises DataError if events were removed, or if the pattern now gives other rows than were emitted.

    Cost: a search over the events of each partition, from its first to its last match of a part. Memory: the evidence
    of a part, and the events from the first to the last match of about MATCHES_MAX."""
    size = 100.0  # events of a match; then that of the matches before
    for some in _together(found):
        if some.ends is None:
            yield some
            continue
        read = _Read(plan, some.ends, reader, since_seq, from_us)
        ends = _part_ends(some.ends)
        begin = 0
        while begin < len(some):
            wanted = min(begin + max(1, int(events_max / size)), len(some))
            end = int(ends[np.searchsorted(ends, wanted)])
            wanted_part = _slice(some, begin, end)
            part = read.all_between(wanted_part) if len(wanted_part.event_variable) else read.search(wanted_part)
            size = max(1.0, len(part.event_seq) / len(part))
            yield part
            begin = end


def _together(found: Sequence[Matches]) -> Iterator[Matches]:
    """Yields matches of several pushes together, about MATCHES_MAX at a time; those with events as they are."""
    waiting: list[Matches] = []
    for m in found:
        if waiting and (m.ends is None or sum(map(len, waiting)) + len(m) > MATCHES_MAX):
            yield concat_matches(waiting)
            waiting = []
        if m.ends is None:
            yield m
        elif len(m):
            waiting.append(m)
    if waiting:
        yield concat_matches(waiting)


def _part_ends(ends: Ends) -> Int64Array:
    """Returns the positions at which a part may end: matches with the same ends are searched together."""
    n = len(ends.first_seq)
    order = np.lexsort((ends.last_seq, ends.first_seq))
    differs = np.diff(ends.first_seq[order]) | np.diff(ends.last_seq[order])
    group = np.empty(n, np.int64)
    group[order] = np.concatenate([[0], np.cumsum(differs != 0)])
    last = np.zeros(n, np.int64)
    np.maximum.at(last, group, np.arange(n))
    return np.flatnonzero(np.maximum.accumulate(last[group]) == np.arange(n)) + 1


def _slice(m: Matches, begin: int, end: int) -> Matches:
    """Returns matches [begin, end), which have ends."""
    assert m.ends is not None
    low, high = np.searchsorted(m.row_match, (begin, end))
    bounds = m.event_bounds[begin : end + 1]
    return replace(
        m, rows=m.rows.slice(low, high - low), row_match=m.row_match[low:high] - begin, number=m.number[begin:end],
        event_bounds=bounds - bounds[0], event_variable=m.event_variable[bounds[0] : bounds[-1]],
        outcome=None if m.outcome is None else m.outcome[begin:end], ids=None if m.ids is None else m.ids[begin:end],
        ends=replace(m.ends, first_seq=m.ends.first_seq[begin:end], last_seq=m.ends.last_seq[begin:end]),
    )  # fmt: skip


class _Read:
    """The events of a query from the first to the last of some matches, in the total order."""

    def __init__(
        self, plan: Plan, ends: Ends, reader: HistoryReader, since_seq: int, from_us: int | None
    ) -> None:  # fmt: skip
        from matching.keys import Keys  # loads the kernels

        self._plan = plan
        events = reader.read(RangeRequest(ends.low_us, ends.high_us, closed=True, columns=plan.columns))
        mine = events.seq >= since_seq
        if from_us is not None:
            mine &= events.ts_us >= from_us
        self._events = events if mine.all() else events.take(np.flatnonzero(mine))
        columns = [self._events.columns.column(c.name) for c in plan.partition_by]
        self._partition = Keys([column.type for column in columns]).encode(columns, len(self._events))
        self._order = np.argsort(self._events.seq, kind="stable")
        self._seq = self._events.seq[self._order]

    def _places(self, seq: Int64Array) -> Int64Array:
        """Returns the positions of ingest sequences. Raises DataError if one is missing."""
        at = np.minimum(np.searchsorted(self._seq, seq), len(self._seq) - 1)
        if not len(self._seq) or (self._seq[at] != seq).any():
            raise no_longer_kept()
        return self._order[at]

    def all_between(self, m: Matches) -> Matches:
        """Returns contiguous matches, at least one, with their events instead of their ends: all events of their
        partition in between. m: has the variables of these events."""
        assert m.ends is not None
        events = self._events
        by_partition = np.argsort(self._partition, kind="stable")
        rank = np.empty(len(events), np.int64)
        rank[by_partition] = np.arange(len(events))
        begin, end = (rank[self._places(seq)] for seq in (m.ends.first_seq, m.ends.last_seq))
        lengths = np.diff(m.event_bounds)
        if (end - begin + 1 != lengths).any():
            raise no_longer_kept()
        rows = by_partition[np.arange(m.event_bounds[-1]) + np.repeat(begin - m.event_bounds[:-1], lengths)]
        ts_us = events.ts_us[rows]
        return replace(
            m, first_us=ts_us[m.event_bounds[:-1]], last_us=ts_us[m.event_bounds[1:] - 1], event_ts_us=ts_us,
            event_source=events.source[rows], event_offset=events.offset[rows], event_seq=events.seq[rows],
            sources=events.sources, ends=None,
        )  # fmt: skip

    def search(self, m: Matches) -> Matches:
        """Returns matches, at least one, with their events instead of their ends."""
        assert m.ends is not None
        n = len(self._events)
        begin, end = self._places(m.ends.first_seq), self._places(m.ends.last_seq)
        wanted = begin * n + end
        found, code = [], [np.zeros(0, np.int64)]
        for more in run(live_matcher(self._plan), [self._between(begin, end)]):
            first, last = more.event_seq[more.event_bounds[:-1]], more.event_seq[more.event_bounds[1:] - 1]
            codes = self._places(first) * n + self._places(last)
            ours = np.flatnonzero(np.isin(codes, wanted))
            found.append(_taken(more, ours))
            code.append(codes[ours])
        # Matches with the same ends come out in the same order each time.
        codes = np.concatenate(code)
        ordered, meant = np.argsort(codes, kind="stable"), np.argsort(wanted, kind="stable")
        if not np.array_equal(codes[ordered], wanted[meant]):
            raise no_longer_kept()
        index = np.empty(len(m), np.int64)
        index[meant] = ordered
        whole = _taken(concat_matches(found), index)
        numbered = [x.name for x in self._plan.measures if any(isinstance(e, MatchNumber) for e in walk(x.expression))]
        _check_same(m.rows, whole.rows, numbered)
        return replace(whole, rows=m.rows, row_match=m.row_match, number=m.number, ids=m.ids)

    def _between(self, begin: Int64Array, end: Int64Array) -> EventBatch:
        """Returns the events between the first and the last event of all matches of their partition.

        begin, end: int64, the positions of the first and the last event of each match. Events between two matches
        count: WITHIN n ROWS counts them. Events before the first match do not: they may belong to an earlier match."""
        low, high = int(begin.min()), int(end.max()) + 1
        partition, at = self._partition[low:high], np.arange(low, high)
        count = int(self._partition.max()) + 1
        first, last = np.full(count, high), np.full(count, -1)
        np.minimum.at(first, self._partition[begin], begin)
        np.maximum.at(last, self._partition[end], end)
        return self._events.take(at[(at >= first[partition]) & (at <= last[partition])])


def _taken(m: Matches, index: Int64Array) -> Matches:
    """Returns the matches at `index`, which have events, in that order."""
    evidence = of_matches(m).take(index)
    place = np.full(len(m), -1, np.int64)
    place[index] = np.arange(len(index))
    owner = place[m.row_match]
    rows = np.flatnonzero(owner >= 0)
    rows = rows[np.argsort(owner[rows], kind="stable")]
    first_us, last_us = evidence.span_us(0)
    return Matches(
        m.rows.take(pa.array(rows)), owner[rows], m.number[index], first_us, last_us, evidence.bounds,
        evidence.variable, evidence.ts_us, evidence.source, evidence.offset, evidence.seq, evidence.variables,
        evidence.sources, None if m.outcome is None else m.outcome[index],
    )  # fmt: skip


def _check_same(emitted: pa.Table, found: pa.Table, numbered: Collection[str]) -> None:
    """Raises DataError if the rows differ from the emitted ones: the archive then has other events. numbered: columns
    that depend on MATCH_NUMBER, which restarts with each search."""
    for name in [name for name in emitted.column_names if name not in numbered]:
        mine, theirs = emitted.column(name), found.column(name)
        if not mine.equals(theirs) and repr(mine.to_pylist()) != repr(theirs.to_pylist()):  # NaN equals nothing
            raise no_longer_kept()
