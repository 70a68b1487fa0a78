"""The events of matches that came out without them: the pattern runs once more over the rows they lie in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from hybrid.rows.evidence import Evidence, concat, of_matches
from hybrid.statement.statement import live_matcher
from matching.batch import Ends, EventBatch, Int64Array, Matches
from matching.drive import run
from query.errors import DataError
from query.plan.plan import Plan


def with_events(
    plan: Plan, found: Sequence[Matches], reader: HistoryReader, since_seq: int, from_us: int | None
) -> list[Matches]:
    """Returns matches of a live query in their order, all of them with their events.

    reader: has the events of the stream; those from since_seq, and with a time from from_us on (None: all), are for the
    query. Raises DataError where the matches are not found again.

    Reads the events from the first to the last one of these matches. Cost: that of a search over those of them which
    lie in a match (with WITHIN n ROWS over all), and memory for the evidence of all."""
    ends = [m.ends for m in found if m.ends is not None]
    first, last = (np.concatenate([getattr(e, name) for e in ends]) for name in ("first_seq", "last_seq"))
    events = _events(plan, ends, reader, since_seq, from_us)
    order = np.argsort(events.seq, kind="stable")
    in_order = events.seq[order]

    def places(seq: Int64Array) -> Int64Array:
        return order[_at(in_order, seq)]

    begin, end = places(first), places(last)
    wanted = begin * len(events) + end
    if plan.within is not None and plan.within.rows is not None:
        inside = np.arange(len(events))  # rows between two matches count
    else:
        inside = np.flatnonzero(_covered(_partitions(plan, events), begin, end))

    parts: list[Evidence] = []
    rows: list[pa.Table] = []
    codes: list[Int64Array] = [np.zeros(0, np.int64)]
    for m in run(live_matcher(plan), [events.take(inside)]):
        begin_seq, end_seq = m.event_seq[m.event_bounds[:-1]], m.event_seq[m.event_bounds[1:] - 1]
        code = places(begin_seq) * len(events) + places(end_seq)
        ours = np.flatnonzero(np.isin(code, wanted))
        parts.append(of_matches(m).take(ours))
        rows.append(m.rows.take(pa.array(ours)))
        codes.append(code[ours])
    code = np.concatenate(codes)
    # Several matches may have the same ends: they come out in the same order each time.
    ordered, meant = np.argsort(code, kind="stable"), np.argsort(wanted, kind="stable")
    if not np.array_equal(code[ordered], wanted[meant]):
        raise _gone()
    index = np.empty(len(wanted), np.int64)
    index[meant] = ordered
    _check_same([m.rows for m in found if m.ends is not None], pa.concat_tables(rows).take(pa.array(index)))
    return _filled(found, concat(parts).take(index))


def _events(
    plan: Plan, ends: Sequence[Ends], reader: HistoryReader, since_seq: int, from_us: int | None
) -> EventBatch:
    low_us, high_us = min(e.low_us for e in ends), max(e.high_us for e in ends)
    events = reader.read(RangeRequest(low_us, high_us, closed=True, columns=plan.columns))
    mine = events.seq >= since_seq
    if from_us is not None:
        mine &= events.ts_us >= from_us
    return events if mine.all() else events.take(np.flatnonzero(mine))


def _at(in_order: Int64Array, seq: Int64Array) -> Int64Array:
    """Returns where ingest sequences stand among these. Raises DataError where one is not there."""
    at = np.searchsorted(in_order, seq)
    if len(seq) and (int(at.max()) == len(in_order) or (in_order[at] != seq).any()):
        raise _gone()
    return at


def _partitions(plan: Plan, events: EventBatch) -> Int64Array:
    """Returns for each event the number of its partition."""
    from matching.keys import Keys  # loads the kernels

    columns = [events.columns.column(c.name) for c in plan.partition_by]
    return Keys([column.type for column in columns]).encode(columns, len(events))


def _covered(partition: Int64Array, begin: Int64Array, end: Int64Array) -> np.ndarray:
    """Returns whether each event lies between the first and the last event of a match of its partition, bool (n,)."""
    n = len(partition)
    order = np.argsort(partition, kind="stable")
    rank = np.empty(n, np.int64)
    rank[order] = np.arange(n)
    change = np.bincount(rank[begin], minlength=n + 1) - np.bincount(rank[end] + 1, minlength=n + 1)
    inside = np.zeros(n, np.bool_)
    inside[order] = np.cumsum(change[:n]) > 0
    return inside


def _check_same(emitted: Sequence[pa.Table], found: pa.Table) -> None:
    """Raises DataError where rows are not those that came out: other events are kept, or they are late by now."""
    rows = pa.concat_tables(emitted)
    for name in rows.column_names:
        mine, theirs = rows.column(name), found.column(name)
        if not mine.equals(theirs) and repr(mine.to_pylist()) != repr(theirs.to_pylist()):  # NaN equals nothing
            raise _gone()


def _filled(found: Sequence[Matches], evidence: Evidence) -> list[Matches]:
    """Returns the matches with their evidence, that of those without in one."""
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


def _gone() -> DataError:
    return DataError("some matched events are no longer in the archive", "set a longer retention=")
