"""Evidence of live matches that were emitted without their events: the pattern runs again over the archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from hybrid.rows.evidence import Evidence, concat, of_matches
from hybrid.rows.lookup import no_longer_kept, positions_of
from hybrid.statement.statement import live_matcher
from matching.batch import Ends, EventBatch, Int64Array, Matches
from matching.drive import run
from query.plan.plan import Plan


def with_events(
    plan: Plan, found: Sequence[Matches], reader: HistoryReader, since_seq: int, from_us: int | None
) -> list[Matches]:
    """Returns matches of a live query in their order, with their events.

    reader: the events of the stream. since_seq: ingest sequence from which the query reads; from_us: time from which it
    reads, or None. Raises DataError if events were removed, or if the pattern now gives other rows than were emitted.

    Reads all events from the first to the last match. Cost: a search over the events of each partition from its first
    to its last match, and memory for the evidence of all matches."""
    ends = [m.ends for m in found if m.ends is not None]
    first, last = (np.concatenate([getattr(e, name) for e in ends]) for name in ("first_seq", "last_seq"))
    events = _events(plan, ends, reader, since_seq, from_us)

    def places(seq: Int64Array) -> Int64Array:
        return positions_of(events, seq)

    begin, end = places(first), places(last)
    wanted = begin * len(events) + end
    inside = np.flatnonzero(_inside(_partitions(plan, events), begin, end))

    parts: list[Evidence] = []
    rows: list[pa.Table] = []
    codes, owners = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    count = 0
    for m in run(live_matcher(plan), [events.take(inside)]):
        begin_seq, end_seq = m.event_seq[m.event_bounds[:-1]], m.event_seq[m.event_bounds[1:] - 1]
        code = places(begin_seq) * len(events) + places(end_seq)
        ours = np.flatnonzero(np.isin(code, wanted))
        number = np.full(len(m), -1, np.int64)
        number[ours] = count + np.arange(len(ours))
        owner = number[m.row_match]
        parts.append(of_matches(m).take(ours))
        rows.append(m.rows.take(pa.array(np.flatnonzero(owner >= 0))))
        owners.append(owner[owner >= 0])
        codes.append(code[ours])
        count += len(ours)
    code = np.concatenate(codes)
    # Matches with the same ends come out in the same order each time.
    ordered, meant = np.argsort(code, kind="stable"), np.argsort(wanted, kind="stable")
    if not np.array_equal(code[ordered], wanted[meant]):
        raise no_longer_kept()
    index, place = np.empty(count, np.int64), np.empty(count, np.int64)
    index[meant], place[ordered] = ordered, meant
    in_place = pa.array(np.argsort(place[np.concatenate(owners)], kind="stable"))
    _check_same([m.rows for m in found if m.ends is not None], pa.concat_tables(rows).take(in_place))
    return _filled(found, concat(parts).take(index))


def _events(plan: Plan, ends: Sequence[Ends], reader: HistoryReader, since_seq: int, from_us: int | None) -> EventBatch:
    """Returns the events of the query from the first to the last match, in the total order."""
    low_us, high_us = min(e.low_us for e in ends), max(e.high_us for e in ends)
    events = reader.read(RangeRequest(low_us, high_us, closed=True, columns=plan.columns))
    mine = events.seq >= since_seq
    if from_us is not None:
        mine &= events.ts_us >= from_us
    return events if mine.all() else events.take(np.flatnonzero(mine))


def _partitions(plan: Plan, events: EventBatch) -> Int64Array:
    """Returns the number of the partition of each event, int64 (n,)."""
    from matching.keys import Keys  # loads the kernels

    columns = [events.columns.column(c.name) for c in plan.partition_by]
    return Keys([column.type for column in columns]).encode(columns, len(events))


def _inside(partition: Int64Array, begin: Int64Array, end: Int64Array) -> np.ndarray:
    """Returns whether each event lies between the first and the last event of all matches of its partition, bool (n,).

    partition: int64 (n,), in the total order. begin, end: int64, the positions of the first and the last event of each
    match. Events between two matches count: WITHIN n ROWS counts them. Events before the first match do not: they may
    belong to a match of an earlier fetch."""
    n, at = len(partition), np.arange(len(partition))
    first, last = np.full(n, n), np.full(n, -1)
    np.minimum.at(first, partition[begin], begin)
    np.maximum.at(last, partition[end], end)
    return (at >= first[partition]) & (at <= last[partition])


def _check_same(emitted: Sequence[pa.Table], found: pa.Table) -> None:
    """Raises DataError if the rows differ from the emitted ones: the archive then has other events."""
    rows = pa.concat_tables(emitted)
    for name in rows.column_names:
        mine, theirs = rows.column(name), found.column(name)
        if not mine.equals(theirs) and repr(mine.to_pylist()) != repr(theirs.to_pylist()):  # NaN equals nothing
            raise no_longer_kept()


def _filled(found: Sequence[Matches], evidence: Evidence) -> list[Matches]:
    """Returns the matches with their events. evidence: of the matches that have ends instead, in their order."""
    whole: list[Matches] = []
    begin = 0
    for m in found:
        if m.ends is not None:
            own = evidence.take(np.arange(begin, begin + len(m)))
            begin += len(m)
            first_us, last_us = own.span_us(0)
            m = replace(
                m, first_us=first_us, last_us=last_us, event_bounds=own.bounds, event_variable=own.variable,
                event_ts_us=own.ts_us, event_source=own.source, event_offset=own.offset, event_seq=own.seq,
                variables=own.variables, sources=own.sources, ends=None,
            )  # fmt: skip
        whole.append(m)
    return whole

