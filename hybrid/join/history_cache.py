"""Cache of one history join: matches of the history pattern (PA), per interval of history and keys, or of all keys.

A range inside a cached interval needs no read; a range that ends later reads only the events after the interval. A
change of the archive clears the cache. The cache never changes an answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.join.candidates import (
    READ_KEYS_MAX,
    RUN_ROWS_MAX,
    Blocks,
    Candidates,
    JoinKeys,
    Ranges,
    candidates_in,
    read_together,
)
from hybrid.join.covered import Covered, Cut, distinct
from hybrid.rows.inputs import SORTED_MAX
from matching.batch import EventBatch, Int64Array, Matcher
from matching.sharing import Sharing, sharing_of
from query.errors import DataError, QueryError
from query.plan.plan import HistoryPlan, Plan

#: Most bytes of the caches of all joins of a database, and of those of a statement.
BYTES_MAX = 256 << 20
#: An interval longer than this multiple of a range is not extended for it: a new one begins.
STRETCH_MAX = 4
#: Approximate bytes per match and per matched event; and the number of newest events in a sample.
MATCH_BYTES, EVENT_BYTES = 300, 8
SAMPLE_EVENTS = 50_000
#: From so many events on, a measured time updates the time per event; below, the fixed time of extending an interval.
MANY_EVENTS = 20_000
FAR_US = 2**62
#: Least seconds at stake for reading a sample.
SAMPLE_STAKE_S = 0.05
#: Seconds to scan an event, to read and match an event, to begin an interval and to extend one: on one machine, with a
#: pattern of two variables. Measured times scale them to this machine and pattern.
LOOK_S, MATCH_S, BEGIN_S, GO_ON_S = 2e-8, 3e-7, 0.01, 0.0015


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimate of finding PA for all keys. selectivity: matches of PA per event, None if unknown. seconds: expected
    time."""

    selectivity: float | None
    seconds: float


@dataclass(slots=True, eq=False)
class _Piece:
    """One cached interval. read: key filter of its reads (see JoinKeys.used_by), None for all keys. keys: keys that it
    answers."""

    covered: Covered
    read: dict[str, list[Any]] | None
    keys: set[tuple[Any, ...]] = field(default_factory=set)
    nbytes: int = 0


class HistoryCache:
    """Cached matches of PA of one history join. Not thread safe.

    matcher: returns a matcher of `widened(plan)` with the given state, or a fresh one for None. anew: returns a fresh
    matcher of `numbered(plan)`. reads: number of reads made. hits: number of ranges answered without a read.
    """

    def __init__(
        self, history: HistoryPlan, matcher: Callable[[bytes | None], Matcher], anew: Callable[[], Matcher],
        bytes_max: int = BYTES_MAX, ahead_max: int | None = None,
    ) -> None:  # fmt: skip
        """ahead_max: most events that finding PA ahead may read at once (None: no limit)."""
        assert history.plan is not None
        self._plan: Plan = history.plan
        self._matcher = matcher
        self._anew = anew
        self.bytes_max = bytes_max
        self._ahead_max = ahead_max
        self._bytes = 0
        self._pieces: dict[int, _Piece] = {}  # least recently used first
        self._of: dict[tuple[Any, ...], int] = {}
        self._all: _Piece | None = None
        self._count = 0
        self._revision: object = None
        self._failed = False
        self._too_large = False  # the matches of all keys do not fit
        # Of all keys: matched events and their matches; and for large extensions, measured and expected seconds.
        self._events = self._matches = 0
        self._many_s = self._expected_s = 0.0
        self._beside_s: float | None = None  # measured fixed seconds of extending an interval
        #: Seconds spent on reading and matching the events of some keys.
        self.asked_s = 0.0
        self.reads = 0
        self.hits = 0

    @staticmethod
    def serves(history: HistoryPlan) -> bool:
        """True if ranges of this join may share matches."""
        return history.plan is not None and sharing_of(history.plan) is not Sharing.NOTHING

    def see(self, revision: object) -> None:
        """Clears the cache if the revision of the history changed."""
        if revision != self._revision:
            self._revision = revision
            self.forget()

    def may_keep(self, bytes_max: int) -> None:
        """Sets the limit of memory in bytes."""
        if bytes_max > self.bytes_max:
            self._too_large = False
        self.bytes_max = bytes_max

    def forget(self) -> None:
        """Clears the cache."""
        self._pieces, self._of, self._all, self._bytes = {}, {}, None, 0

    def covers(self, low_us: int) -> bool:
        """True if an interval of all keys begins at low_us or earlier."""
        return self._all is not None and self._all.covered.low_us <= low_us

    def learn(
        self, low_us: int, last_us: int, reader: HistoryReader, late: bool, stake_s: float, least_s: float
    ) -> None:
        """Matches a sample, the newest events of history, to measure costs. Does nothing if costs were measured before,
        or unless finding PA in [low_us, last_us] of all keys is expected to take more than least_s and could take less
        than stake_s, the seconds at stake."""
        if self._failed or self._events or stake_s < SAMPLE_STAKE_S or not isinstance(reader, HistorySnapshot):
            return
        look_s, match_s = _expected(low_us, last_us, reader)
        if look_s > stake_s or look_s + match_s < least_s:
            return
        from_us = reader.time_before_last(SAMPLE_EVENTS)
        sample = Covered(self._plan, self._matcher, -FAR_US if from_us is None else from_us)
        self._measured(sample, _events(reader, from_us, FAR_US, None, late, self._plan.columns), FAR_US, reader)

    def warm(self, events: EventBatch) -> None:
        """Matches some events to load and compile code. Raises the pattern's error."""
        Covered(self._plan, self._matcher, -FAR_US).extend([events], FAR_US)

    def estimate(self, low_us: int, last_us: int, reader: HistoryReader) -> Estimate | None:
        """Returns the estimate of finding PA in [low_us, last_us] of all keys, beyond cached intervals. None if that is
        impossible or would not fit."""
        if self._failed or self._too_large or not isinstance(reader, HistorySnapshot):
            return None
        known = self._all if self.covers(low_us) else None
        events = _unread(known, low_us, last_us, reader)
        if self._ahead_max is not None and events > self._ahead_max:
            return None
        selectivity = self._matches / self._events if self._events else None
        in_all = events + (known.covered.events if known is not None else 0)
        if in_all * ((selectivity or 0.0) * MATCH_BYTES + EVENT_BYTES) > self.bytes_max:
            return None
        if not events:
            return Estimate(selectivity, 0.0)
        if known is None:
            return Estimate(selectivity, self._pace * (BEGIN_S + sum(_expected(low_us, last_us, reader))))
        more_s = sum(_expected(known.covered.last_us + 1, last_us, reader))
        return Estimate(selectivity, self.go_on_s + self._pace * more_s)

    @property
    def go_on_s(self) -> float:
        """Least seconds of extending the interval of all keys, even by few events."""
        return self._pace * GO_ON_S if self._beside_s is None else self._beside_s

    @property
    def _pace(self) -> float:
        """Ratio of measured to expected seconds of large extensions."""
        return self._many_s / self._expected_s if self._expected_s else 1.0

    def _measured(
        self, covered: Covered, events: Iterator[EventBatch], last_us: int, of_all: HistoryReader | None
    ) -> None:
        """Extends an interval and measures the time. On an error of the pattern, disables the cache instead. of_all:
        the reader, if these are events of all keys, which update the estimates; else None."""
        before, found, begin_us, began_s = covered.events, len(covered), covered.last_us + 1, time.perf_counter()
        try:
            covered.extend(events, last_us)
            if of_all is not None:
                covered.arranged()
        except (QueryError, DataError):
            self._failed = True
            self.forget()
            return
        took_s = time.perf_counter() - began_s
        if of_all is None:
            self.asked_s += took_s
            return
        more = covered.events - before
        self._events += more
        self._matches += len(covered) - found
        if more >= MANY_EVENTS and isinstance(of_all, HistorySnapshot):
            self._many_s += took_s
            self._expected_s += sum(_expected(begin_us, last_us, of_all)) + (0.0 if before else BEGIN_S)
        elif 0 < more < MANY_EVENTS:
            beside_s = max(0.0, took_s - self._pace * more * MATCH_S)
            known_s = self._beside_s
            self._beside_s = beside_s if known_s is None else known_s + (beside_s - known_s) / 4

    def unread(self, low_us: int, last_us: int, reader: HistorySnapshot) -> int:
        """Returns an upper bound of the events to be read for a range of a join without keys."""
        return _unread(None if self._failed else self._piece((), low_us, last_us), low_us, last_us, reader)

    def detect(self, low_us: int, last_us: int, reader: HistoryReader, late: bool) -> None:
        """Finds PA in [low_us, last_us] of all keys ahead of any range. The interval must be complete. Does nothing if
        the result did not fit into memory before, or would read more than ahead_max events."""
        if self._failed or self._too_large:
            return
        known = self._all
        length_us = max(last_us - low_us, 1)
        if known is None or known.covered.low_us > low_us or last_us - known.covered.low_us > STRETCH_MAX * length_us:
            # begin a little earlier, for later ranges that do
            margin_us = length_us // 16 if low_us > -FAR_US else 0
            known = _Piece(Covered(self._plan, self._matcher, low_us - margin_us), None)
        if self._ahead_max is not None and isinstance(reader, HistorySnapshot):
            if _unread(known, known.covered.low_us, last_us, reader) > self._ahead_max:
                return
        if known.covered.last_us < last_us and not self._extend(known, last_us, reader, late):
            return
        self._too_large = known.nbytes > self.bytes_max
        self._all = None if self._too_large else known
        self._evict()

    def candidates(
        self, keys: JoinKeys, codes: Int64Array, ranges: Ranges, rows: Int64Array, reader: HistoryReader, late: bool
    ) -> Iterator[tuple[Int64Array, Candidates | None]]:
        """Yields the candidates of the rows of one request, in parts: the rows, and their candidates, whose block is
        the row's index in the part. Candidates None: the cache cannot answer these rows. rows: row numbers, indices
        into codes and ranges, with complete ranges."""
        low_us, last_us = ranges.low_us, ranges.last_us
        rows = rows[low_us[rows] <= last_us[rows]]
        if self._failed:
            yield rows, None
            return
        mine: dict[int, list[int]] = {}
        pieces: dict[int, _Piece] = {}
        new: list[int] = []
        of: dict[int, tuple[Any, ...]] = {}
        for row in rows.tolist():
            code = int(codes[row])
            key = of.setdefault(code, keys.values_of(code))
            piece = self._piece(key, int(low_us[row]), int(last_us[row]))
            if piece is None:
                new.append(row)
                continue
            mine.setdefault(id(piece), []).append(row)
            pieces[id(piece)] = piece
        for number, asked in mine.items():
            piece, at = pieces[number], np.array(asked, np.int64)
            until = int(last_us[at].max())
            if piece.covered.last_us >= until:
                self.hits += len(at)
            elif not self._extend(piece, until, reader, late):
                yield at, None
                continue
            yield at, self._answer(piece, keys, codes[at], low_us[at], last_us[at], reader, late)
        waiting = np.array(new, np.int64)
        for group in read_together(reader, codes[waiting], low_us[waiting], last_us[waiting]):
            at = waiting[group]
            piece = _Piece(Covered(self._plan, self._matcher, int(low_us[at].min())), keys.used_by(codes[at]))
            if not self._extend(piece, int(last_us[at].max()), reader, late):
                yield at, None
                continue
            self._keep(piece, {of[int(code)] for code in np.unique(codes[at])})
            yield at, self._answer(piece, keys, codes[at], low_us[at], last_us[at], reader, late)

    def _piece(self, key: tuple[Any, ...], low_us: int, last_us: int) -> _Piece | None:
        if self.covers(low_us):
            return self._all
        number = self._of.get(key)
        if number is None:
            return None
        piece = self._pieces[number]
        covered = piece.covered
        if covered.low_us > low_us or last_us - covered.low_us > STRETCH_MAX * max(last_us - low_us, 1):
            return None
        self._pieces[number] = self._pieces.pop(number)
        return piece

    def _keep(self, piece: _Piece, keys: set[tuple[Any, ...]]) -> None:
        if piece.read is None and keys != {()}:
            self._all = piece if piece.nbytes <= self.bytes_max else self._all
            return
        self._count += 1
        self._pieces[self._count] = piece
        self._bytes += piece.nbytes
        piece.keys = keys
        for key in keys:
            before = self._of.get(key)
            self._of[key] = self._count
            if before is not None:
                self._pieces[before].keys.discard(key)
                if not self._pieces[before].keys:
                    self._drop(before)
        self._evict()

    @property
    def nbytes(self) -> int:
        """Returns the bytes in memory."""
        return self._bytes + (0 if self._all is None else self._all.nbytes)

    def _evict(self) -> None:
        while self._pieces and self.nbytes > self.bytes_max:
            self._drop(next(iter(self._pieces)))

    def _drop(self, number: int) -> None:
        piece = self._pieces.pop(number)
        self._bytes -= piece.nbytes
        for key in piece.keys:
            del self._of[key]

    def _extend(self, piece: _Piece, last_us: int, reader: HistoryReader, late: bool) -> bool:
        """Extends a piece to last_us. False if the pattern failed: its error may come from events outside of all
        ranges, so each range is then matched by itself."""
        covered = piece.covered
        events = _events(reader, covered.last_us + 1, last_us, piece.read, late, self._plan.columns)
        self._measured(covered, events, last_us, reader if piece.read is None else None)
        if self._failed:
            return False
        self.reads += 1
        held = any(piece is one for one in self._pieces.values())
        self._bytes -= piece.nbytes if held else 0
        piece.nbytes = covered.nbytes
        self._bytes += piece.nbytes if held else 0
        if piece is self._all and piece.nbytes > self.bytes_max:
            self._all, self._too_large = None, True
        self._evict()
        return True

    def _answer(
        self, piece: _Piece, keys: JoinKeys, codes: Int64Array, low_us: Int64Array, last_us: Int64Array,
        reader: HistoryReader, late: bool,
    ) -> Candidates:  # fmt: skip
        """Returns the candidates of n ranges inside the interval of a piece; the block is the number of the range."""
        covered = piece.covered

        def key_of(partitions: pa.Table, count: int) -> Int64Array:
            return keys.codes([partitions.column(c) for c in keys.columns], count)

        block, match, cut = covered.answer(key_of, codes, low_us, last_us)
        kept = covered.arranged()
        number = kept.number[match]
        begins, lengths = kept.row_bounds[number], kept.row_bounds[number + 1] - kept.row_bounds[number]
        at = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        whose = np.repeat(np.arange(len(match)), lengths)
        found = Candidates(
            kept.rows.take(pa.array(at)), block[whose], whose, kept.evidence.take(number), kept.start[match][whose],
            kept.end[match][whose],
        )  # fmt: skip
        if not len(cut.range):
            return found
        for rest in self._cut(covered, cut, last_us, piece.read, reader, late):
            found = rest.behind(found)
        return found

    def _cut(
        self, covered: Covered, cut: Cut, last_us: Int64Array, read: dict[str, list[Any]] | None, reader: HistoryReader,
        late: bool,
    ) -> Iterator[Candidates]:  # fmt: skip
        """Yields the candidates of ranges cut by a match, by matching them again from the first event of that match."""
        names = [column.name for column in self._plan.partition_by]
        until = last_us[cut.range]
        _, codes = distinct(cut.key, len(until))
        for group in read_together(reader, codes, cut.start_us, until):
            low, last = int(cut.start_us[group].min()), int(until[group].max())
            keys = read if read is not None else _values(cut.key.take(pa.array(group)))
            batch = reader.read(RangeRequest(low, last, closed=True, keys=keys, late=late, columns=self._plan.columns))
            self.reads += 1
            place = covered.places(batch.seq, low)
            table = pa.Table.from_batches([batch.columns]).select(names)
            _, code = distinct(pa.concat_tables([cut.key.take(pa.array(group)), table]), len(group) + len(batch))
            wanted, have = code[: len(group)], code[len(group) :]
            order = np.argsort(have, kind="stable")
            start, stop = np.zeros(len(group), np.int64), np.zeros(len(group), np.int64)
            first = covered.places(cut.seq[group], low)
            for i, number in enumerate(wanted):
                a, b = np.searchsorted(have[order], [number, number + 1])
                start[i] = a + np.searchsorted(place[order[a:b]], first[i], "left")
                stop[i] = a + np.searchsorted(batch.ts_us[order[a:b]], until[group[i]], "right")
            blocks = Blocks(order, start, stop, np.arange(len(group)), np.arange(len(group)))
            for chunk in blocks.chunks(RUN_ROWS_MAX):
                found = candidates_in(self._plan, batch, chunk, self._anew)
                whose = cut.range[group[chunk.member]][found.block]
                first_at, last_at = place[found.first], place[found.last]
                yield Candidates(found.rows, whose, found.match, found.evidence, first_at, last_at)


def _unread(piece: _Piece | None, low_us: int, last_us: int, reader: HistorySnapshot) -> int:
    """Returns an upper bound of the events to be read to answer [low_us, last_us] from a piece."""
    begin_us = low_us if piece is None else piece.covered.last_us + 1
    return reader.stretch_rows(begin_us, last_us + 1)[0] if begin_us <= last_us else 0


def _expected(low_us: int, last_us: int, reader: HistorySnapshot) -> tuple[float, float]:
    """Returns the expected seconds to scan, and to read and match, the events of [low_us, last_us], unscaled."""
    looked_at, _ = reader.stretch_rows(low_us, last_us + 1)
    return looked_at * LOOK_S, reader.about_rows(low_us, last_us) * MATCH_S


def _values(keys: pa.Table) -> dict[str, list[Any]] | None:
    """Returns the key filter of a read for these partitions, or None for all keys."""
    found = {name: pc.unique(keys.column(name)) for name in keys.column_names}
    exact = {
        name: values.to_pylist() for name, values in found.items()
        if len(values) <= READ_KEYS_MAX and not (pa.types.is_floating(values.type) or pa.types.is_nested(values.type))
    }  # fmt: skip
    return exact or None


def _events(
    reader: HistoryReader, low_us: int | None, last_us: int, keys: Mapping[str, Sequence[Any]] | None, late: bool,
    columns: Sequence[str],
) -> Iterator[EventBatch]:  # fmt: skip
    """Yields the events of [low_us, last_us] in the total order: in batches from a snapshot without keys, else in one.
    """
    request = RangeRequest(low_us, last_us, closed=True, keys=keys, late=late, columns=columns)
    if isinstance(reader, HistorySnapshot) and keys is None:
        yield from reader.batches(request, sorted_max=SORTED_MAX)
    else:
        yield reader.read(request)
