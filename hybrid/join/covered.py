"""Keeps the matches of the history pattern (PA) in one interval of history, for all ranges inside it.

This is DejaVu's query-result cache with incremental slide, in the exact form that matching.sharing allows: the interval
is contiguous and grows only to the right, where open runs continue. Keys without a match are known too. Rows of windows
are kept in the same way, each as a match from the first to the last instant of its window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from hybrid.join.candidates import window_bounds_us
from hybrid.rows.answer import Answer, answer_of, output_schema
from hybrid.rows.evidence import NO_EVIDENCE, Evidence, concat, of_windows
from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.drive import advanced, parts, pushed
from matching.emitted import ids_of_windows
from matching.ordering import in_sources
from matching.sharing import replay, sharing_of
from query.language.ast import AfterMatchKind
from query.plan.fingerprint import fingerprint
from query.plan.plan import Plan

#: Most chunks of the output table; more are combined.
PIECES_MAX = 16
#: Partition and place are packed into one integer for comparison: places are below 2**PLACE_BITS.
PLACE_BITS = 40
#: Up to so many events, matching again is cheaper than saving and restoring the state of a matcher.
ANEW_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Cut:
    """Ranges that must be matched again in one partition each, because a match extends beyond them.

    range: number of the range. key: values of the partition columns, row by row. start_us, seq: time and ingest
    sequence of the first event to match."""

    range: Int64Array
    key: pa.Table
    start_us: Int64Array
    seq: Int64Array


class Covered:
    """Matches of a pattern in [low_us, last_us], of the keys whose events were added.

    Add events with `extend`, then call `answer`. matcher: returns a matcher of `widened(plan)` with the given state, or
    a fresh one for None. anew: up to so many events are matched again when later ones are added. Not thread safe."""

    __slots__ = (
        "_anew", "_arranged", "_ended", "_events", "_found", "_kept", "_matcher", "_plan", "_seqs", "_sharing",
        "_sources", "_state", "_times", "events", "last_us", "low_us",
    )  # fmt: skip

    def __init__(
        self, plan: Plan, matcher: Callable[[bytes | None], Matcher], low_us: int, anew: int = ANEW_EVENTS
    ) -> None:
        self._plan = plan
        self._anew = anew
        self._sharing = sharing_of(plan)
        self._matcher = matcher
        self._events: list[EventBatch] | None = []  # all events while they are few; None afterwards, and then:
        self._state: bytes | None = None  # state of the matcher
        self._arranged = Arranged.nothing(plan)
        self._found: list[Matches] = []  # matches that are not arranged yet
        self._ended: Matches | None = None  # further matches if the input ended here
        self._sources: tuple[str, ...] = ()  # open runs refer to sources by number, so numbers never change
        self._seqs: list[Int64Array] = []
        self._times: list[int] = []  # time of the first event of each of these
        self._kept: Arranged | None = None
        self.low_us = low_us
        self.last_us = low_us - 1
        self.events = 0

    def extend(self, batches: Iterable[EventBatch], last_us: int) -> None:
        """Adds the events of its keys in (self.last_us, last_us], in the total order.

        Costs matching them and a snapshot of open runs; while there are few events, matching all of them again. Raises
        the pattern's error; the object is unusable afterwards."""
        if self._events is not None:
            self._arranged, self._found = Arranged.nothing(self._plan), []
        matcher = self._matcher(self._state)
        known = self._events or []
        self._found += pushed(matcher, chain(known, self._placed(batches)))
        self._kept = None
        self.last_us = last_us
        if self._events is None:
            self._found += advanced(matcher, last_us + 1)
            self._state = matcher.snapshot()
        elif len(self._events) > 1:
            self._events = [EventBatch.concat(self._events)]
        self._ended = matcher.advance(None)

    def _placed(self, batches: Iterable[EventBatch]) -> Iterator[EventBatch]:
        """Yields events with their places in the stead of ingest sequences, which it keeps; and keeps them too while
        they are few."""
        for given in batches:
            whole = in_sources(given, self._sources)
            self._sources = whole.sources
            for part in parts(whole):
                place = np.arange(self.events, self.events + len(part))
                self._seqs.append(part.seq)
                self._times.append(int(part.ts_us[0]))
                self.events += len(part)
                batch = EventBatch(part.columns, part.ts_us, part.source, part.offset, place, part.sources)
                if self._events is not None:
                    self._events = [*self._events, batch] if self.events <= self._anew else None
                yield batch

    def __len__(self) -> int:
        """Returns the number of matches."""
        return len(self._arranged) + sum(map(len, self._others()))

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        held = len(self._state or b"") + sum(s.nbytes for s in self._seqs) + self._arranged.nbytes
        held += sum(b.columns.nbytes + 40 * len(b) for b in self._events or ())
        return held + sum(2 * m.rows.nbytes + 64 * len(m) + 48 * len(m.event_seq) for m in self._others())

    def _others(self) -> list[Matches]:
        return [*self._found, *([self._ended] if self._ended is not None and len(self._ended) else [])]

    def _seq(self, places: Int64Array) -> Int64Array:
        """Returns the ingest sequences of its events by their places."""
        if not len(places):
            return places
        begins = np.cumsum([0, *map(len, self._seqs)])
        first = int(np.searchsorted(begins, places.min(), "right")) - 1
        return np.concatenate(self._seqs[first:])[places - begins[first]]

    def places(self, seq: Int64Array, low_us: int) -> Int64Array:
        """Returns the places of its events by their ingest sequences. All have times of low_us or later."""
        at = int(np.searchsorted(np.array(self._times, np.int64), low_us, "left"))
        begin = max(at - 1, 0)
        seqs = np.concatenate(self._seqs[begin:])
        order = np.argsort(seqs, kind="stable")
        return order[np.searchsorted(seqs[order], seq)] + sum(map(len, self._seqs[:begin]))

    def arranged(self) -> Arranged:
        """Returns all matches in the order of answers. Costs arranging new matches and copying the others."""
        if self._kept is None:
            if self._found and self._events is None:  # else the next `extend` finds them again
                self._arranged, self._found = self._arranged.and_more(self._plan, self._found, self._seq), []
            ended = self._others()
            self._kept = self._arranged.and_more(self._plan, ended, self._seq) if ended else self._arranged
        return self._kept

    def answer(
        self, key_of: Callable[[pa.Table, int], Int64Array], keys: Int64Array, low_us: Int64Array, last_us: Int64Array
    ) -> tuple[Int64Array, Int64Array, Cut]:
        """Returns the matches in n ranges inside the interval, as pairs (range, match in `arranged()`) by range, last
        event, first event; and the ranges to be matched again.

        key_of: returns the key of each partition, from a table of partition columns and its number of rows. keys: the
        key of each range; a range covers all partitions of its key."""
        kept = self.arranged()
        key = key_of(kept.partitions, len(kept.bounds) - 1)
        order = np.argsort(key, kind="stable")
        start, stop = np.searchsorted(key[order], keys, "left"), np.searchsorted(key[order], keys, "right")
        lengths = stop - start
        one = np.repeat(np.arange(len(keys)), lengths)
        within = np.arange(len(one)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        partition = order[start[one] + within]
        past_last = self._plan.after.kind is AfterMatchKind.PAST_LAST_ROW
        pair, match, cut, cut_match = replay(
            self._sharing, past_last, kept.bounds, kept.start, kept.start_us, kept.end, kept.end_us, partition,
            low_us[one], last_us[one],
        )  # fmt: skip
        asked = one[pair]
        by = np.lexsort((match, kept.start[match], kept.end[match], asked))
        first = kept.evidence.seq[kept.evidence.bounds[kept.number[cut_match]]]
        again = Cut(one[cut], kept.partitions.take(pa.array(partition[cut])), kept.start_us[cut_match], first)
        return asked[by], match[by], again


@dataclass(frozen=True, slots=True)
class Arranged:
    """Matches by partition, start and order of emission.

    partitions: values of the partition columns, of windows those of GROUP BY; matches of partition p are bounds[p] to
    bounds[p + 1]. number: index of the match in order of detection. start, end: places of its first and last event;
    start_us, end_us: their times. Of a window start and end are its number, the times its first and last instant.

    In order of detection: evidence, and rows: the output rows of match i are row_bounds[i] to row_bounds[i + 1]."""

    partitions: pa.Table
    bounds: Int64Array
    number: Int64Array
    start: Int64Array
    start_us: Int64Array
    end: Int64Array
    end_us: Int64Array
    rows: pa.Table
    row_bounds: Int64Array
    evidence: Evidence

    @staticmethod
    def nothing(plan: Plan) -> Arranged:
        rows, n = output_schema(plan).empty_table(), np.zeros(0, np.int64)
        evidence = NO_EVIDENCE if plan.trends is None else of_windows(np.zeros((0, 2), np.int64))
        return Arranged(
            _partitions(plan, rows), np.zeros(1, np.int64), n, n, n, n, n, rows, np.zeros(1, np.int64), evidence
        )

    def __len__(self) -> int:
        return len(self.number)

    @property
    def nbytes(self) -> int:
        lanes = 0 if self.evidence.lanes is None else self.evidence.lanes.nbytes
        return int(self.rows.nbytes) + 56 * len(self) + 34 * len(self.evidence.seq) + int(lanes)

    def and_more(
        self, plan: Plan, found: Sequence[Matches], seq_of: Callable[[Int64Array], Int64Array]
    ) -> Arranged:
        """Returns these matches and later ones. seq_of: returns ingest sequences by places."""
        whole = answer_of(plan, found)
        n, known = len(whole.evidence), len(self.bounds) - 1
        events, start, end, start_us, end_us = _ends(plan, whole, len(self))
        lengths = np.bincount(whole.match, minlength=n)
        keys = _partitions(plan, whole.live.take(pa.array(np.cumsum(lengths) - lengths)))
        _, code = distinct(pa.concat_tables([self.partitions, keys]), known + n)
        partition = np.full(int(code.max(initial=-1)) + 1, -1)
        partition[code[:known]] = np.arange(known)
        new = np.flatnonzero(partition < 0)
        partition[new] = known + np.arange(len(new))
        mine = partition[code[known:]]
        which, first = np.unique(mine, return_index=True)
        begins = pa.array(first[which >= known])
        order = np.lexsort((np.arange(n), start, mine))
        sizes = np.diff(self.bounds, append=np.full(len(new), self.bounds[-1]))
        there = (np.repeat(np.arange(len(sizes)), sizes) << PLACE_BITS) + self.start
        at = np.searchsorted(there, (mine[order] << PLACE_BITS) + start[order], "right")
        rows = pa.concat_tables([self.rows, whole.live])
        return Arranged(
            pa.concat_tables([self.partitions, keys.take(begins)]),
            np.concatenate([[0], np.cumsum(sizes + np.bincount(mine, minlength=len(sizes)))]),
            np.insert(self.number, at, len(self) + order), np.insert(self.start, at, start[order]),
            np.insert(self.start_us, at, start_us[order]), np.insert(self.end, at, end[order]),
            np.insert(self.end_us, at, end_us[order]),
            rows.combine_chunks() if rows.num_columns and rows.column(0).num_chunks > PIECES_MAX else rows,
            np.concatenate([self.row_bounds, self.row_bounds[-1] + np.cumsum(lengths)]),
            concat([self.evidence, replace(events, seq=seq_of(events.seq))]),
        )  # fmt: skip


def _ends(
    plan: Plan, whole: Answer, before: int
) -> tuple[Evidence, Int64Array, Int64Array, Int64Array, Int64Array]:
    """Returns the evidence of matches, and the places and times of their ends: start, end, start_us, end_us; see
    Arranged. before: number of earlier matches."""
    if plan.trends is None:
        events = whole.evidence
        return events, events.seq[events.bounds[:-1]], events.seq[events.bounds[1:] - 1], *events.span_us(0)
    number = before + np.arange(len(whole))
    start_us, end_us = window_bounds_us(whole.live)
    ids = ids_of_windows(plan, whole.live, fingerprint(plan))
    return of_windows(ids), number, number, start_us, end_us - 1


def _partitions(plan: Plan, rows: pa.Table) -> pa.Table:
    """Returns the columns by which matches are arranged, from output rows, under their own names."""
    columns, first = (plan.partition_by, 0) if plan.trends is None else (plan.trends.group_by, 2)
    names = [column.name for column in columns]
    return rows.select(range(first, first + len(names))).rename_columns(names)


def distinct(keys: pa.Table, n: int) -> tuple[pa.Table, Int64Array]:
    """Returns the distinct rows of a table of n rows, and for each row the index of its distinct row. Nulls are equal.
    Without columns there is one distinct row."""
    code = np.zeros(n, np.int64)
    for column in keys.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        digit = np.asarray(encoded.indices)
        code = np.unique(code * (int(digit.max(initial=0)) + 1) + digit, return_inverse=True)[1].reshape(-1)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return keys.take(pa.array(first)), code.reshape(-1).astype(np.int64)
