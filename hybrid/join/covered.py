"""What PA finds in one interval of history, found once and kept for all ranges inside it.

DejaVu's query-result cache with its incremental slide, in the exact form that matching.sharing allows: the interval
grows to the right only, where the runs that were open go on; never in pieces. That a key has no match is known too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from hybrid.rows.answer import answer_of, output_schema
from hybrid.rows.evidence import NO_EVIDENCE, Evidence, concat
from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.drive import advanced, parts, pushed
from matching.ordering import in_sources
from matching.sharing import replay, sharing_of
from query.language.ast import AfterMatchKind
from query.plan.plan import Plan

#: Rows of output stand in so many pieces at most; more are put together.
PIECES_MAX = 16
#: Partition and place are one number to compare: places are below 2**PLACE_BITS.
PLACE_BITS = 40
#: To match so many events again costs less than to keep the state of a matcher and to go on from it.
ANEW_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Cut:
    """Ranges that must be matched anew in one partition each, since a match reaches beyond them. range: which. key: a
    table with the values of the partition's columns, row by row. start_us, seq: the first event that counts."""

    range: Int64Array
    key: pa.Table
    start_us: Int64Array
    seq: Int64Array


class Covered:
    """What a pattern finds in [low_us, last_us], of the keys whose events it has been given.

    Give it events with `extend`, then ask. matcher: gives one of `widened(plan)` with a state, or a new one. anew: so
    many events at most are matched again when others come behind them. Not thread safe."""

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
        self._events: list[EventBatch] | None = []  # all of them while they are few; then the state of their matcher:
        self._state: bytes | None = None
        self._arranged = Arranged.nothing(plan)
        self._found: list[Matches] = []  # what is not arranged yet
        self._ended: Matches | None = None  # what would be found if the input ended here
        self._sources: tuple[str, ...] = ()  # what runs that are open call by number keeps its number
        self._seqs: list[Int64Array] = []
        self._times: list[int] = []  # of the first event of each of these
        self._kept: Arranged | None = None
        self.low_us = low_us
        self.last_us = low_us - 1
        self.events = 0

    def extend(self, batches: Iterable[EventBatch], last_us: int) -> None:
        """Takes its keys' events of (self.last_us, last_us], in the total order. Raises what the pattern fails of; it
        is then of no use. The cost of matching them, and of a snapshot of the runs that are open; while there are few
        events, of matching all of them again."""
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
        """How many matches it knows."""
        return len(self._arranged) + sum(map(len, self._others()))

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        held = len(self._state or b"") + sum(s.nbytes for s in self._seqs) + self._arranged.nbytes
        held += sum(b.columns.nbytes + 40 * len(b) for b in self._events or ())
        return held + sum(2 * m.rows.nbytes + 64 * len(m) + 48 * len(m.event_seq) for m in self._others())

    def _others(self) -> list[Matches]:
        return [*self._found, *([self._ended] if self._ended is not None and len(self._ended) else [])]

    def _seq(self, places: Int64Array) -> Int64Array:
        """The ingest sequences of events of it, by their places."""
        if not len(places):
            return places
        begins = np.cumsum([0, *map(len, self._seqs)])
        first = int(np.searchsorted(begins, places.min(), "right")) - 1
        return np.concatenate(self._seqs[first:])[places - begins[first]]

    def places(self, seq: Int64Array, low_us: int) -> Int64Array:
        """The places of events of it, which all have times of low_us or later."""
        at = int(np.searchsorted(np.array(self._times, np.int64), low_us, "left"))
        begin = max(at - 1, 0)
        seqs = np.concatenate(self._seqs[begin:])
        order = np.argsort(seqs, kind="stable")
        return order[np.searchsorted(seqs[order], seq)] + sum(map(len, self._seqs[:begin]))

    def arranged(self) -> Arranged:
        """What it knows, in the order in which ranges are answered. The cost of arranging what is new, and of copying
        what is not."""
        if self._kept is None:
            if self._found and self._events is None:  # else they are found anew with the next events
                self._arranged, self._found = self._arranged.and_more(self._plan, self._found, self._seq), []
            ended = self._others()
            self._kept = self._arranged.and_more(self._plan, ended, self._seq) if ended else self._arranged
        return self._kept

    def answer(
        self, key_of: Callable[[pa.Table, int], Int64Array], keys: Int64Array, low_us: Int64Array, last_us: Int64Array
    ) -> tuple[Int64Array, Int64Array, Cut]:
        """The matches in n ranges inside the interval: pairs (range, match in `arranged()`), by range, last event,
        first event; and what must be matched anew. key_of: gives the keys of so many partitions, of which the table has
        the columns; keys: that of each range, whose partitions it covers."""
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

    partitions: the values of the partition columns; matches of partition p are bounds[p] to bounds[p + 1]. number:
    which match that is, in the order in which they were found. start, end: the places of first and last event among
    all; start_us, end_us: their times.

    In the order in which they were found: evidence; rows: the output rows of match i are row_bounds[i] to
    row_bounds[i + 1]."""

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
        return Arranged(
            _partitions(plan, rows), np.zeros(1, np.int64), n, n, n, n, n, rows, np.zeros(1, np.int64), NO_EVIDENCE
        )

    def __len__(self) -> int:
        return len(self.number)

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes) + 56 * len(self) + 34 * len(self.evidence.seq)

    def and_more(
        self, plan: Plan, found: Sequence[Matches], seq_of: Callable[[Int64Array], Int64Array]
    ) -> Arranged:
        """With matches that were found behind these. seq_of: gives ingest sequences by places."""
        whole = answer_of(plan, found)
        events, n, known = whole.evidence, len(whole.evidence), len(self.bounds) - 1
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
        start, end = events.seq[events.bounds[:-1]], events.seq[events.bounds[1:] - 1]
        start_us, end_us = events.span_us(0)
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


def _partitions(plan: Plan, rows: pa.Table) -> pa.Table:
    """The partition columns of output rows, by their own names."""
    names = [column.name for column in plan.partition_by]
    return rows.select(range(len(names))).rename_columns(names)


def distinct(keys: pa.Table, n: int) -> tuple[pa.Table, Int64Array]:
    """The distinct rows of a table of n rows, nulls being equal, and for each row which of them it is. Without columns
    there is one."""
    code = np.zeros(n, np.int64)
    for column in keys.columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        digit = np.asarray(encoded.indices)
        code = np.unique(code * (int(digit.max(initial=0)) + 1) + digit, return_inverse=True)[1].reshape(-1)
    _, first, code = np.unique(code, return_index=True, return_inverse=True)
    return keys.take(pa.array(first)), code.reshape(-1).astype(np.int64)
