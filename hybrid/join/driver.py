"""Acts on a strategy's decisions: keeps live matches pending until their history is complete, reads it, joins.

PL is the live pattern, PA the history pattern.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.join.bounds import ranges_of
from hybrid.join.candidates import Ranges, numbered, window_bounds_us
from hybrid.join.correlate import correlate
from hybrid.join.history_cache import FAR_US, HistoryCache
from hybrid.join.spark_ranges import LargeRanges, why_here
from hybrid.join.strategies.base import Costs, Detect, Frontier, Strategy
from hybrid.rows.answer import Answer, answer_of, concat_answers, fitted_answer, output_schema
from hybrid.rows.evidence import of_windows
from matching.batch import Matcher, Matches
from matching.emitted import ids_of_windows
from matching.sharing import widened
from query.errors import DataError, QueryError
from query.plan.fingerprint import fingerprint
from query.plan.plan import FactorPlan, HistoryPlan, Plan

#: Initial guesses in seconds: for a request for history, and for each of its matches in addition.
REQUEST_S, PER_MATCH_S = 0.005, 0.0005
#: A request of so many matches weighs as much as all earlier ones in the moving average of the time per match.
SOME = 8


class HistoryStream(Protocol):
    """The driver's view of one history stream at one moment."""

    @property
    def watermark_us(self) -> int | None:
        """Lower bound of the times of later on-time events; None before the first event."""

    @property
    def ended(self) -> bool:
        """True if no event can follow."""

    @property
    def revision(self) -> object:
        """Changes when kept events change in any way other than by new events."""

    def begins_us(self) -> int | None:
        """Returns the first instant of complete history: the first event, or the start of retention; None without
        events."""

    def reader(self, in_files: bool = False) -> HistoryReader:
        """Returns a snapshot. in_files: writes buffered events to files first, where possible. Raises DataError if that
        fails."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One history join of the n requested rows; see hybrid.join.correlate.

    known: bool (n,), True if the range is complete. large: bool (n,), True if Spark searches the range. last_known_us:
    last instant of complete history, None if the watermark does not limit it."""

    plan: HistoryPlan
    reader: HistoryReader
    matcher: _Fresh | None
    cache: HistoryCache | None
    span: Ranges
    known: np.ndarray
    spark: LargeRanges | None
    large: np.ndarray
    begins_us: int | None
    last_known_us: int | None


class Driver:
    """The history side of one pattern factor.

    take() accepts PL's matches. begin() asks the strategy about all pending matches and returns the call that answers
    the chosen ones. Rows of one answer are in the order of PL. Not thread safe, except that this call may run in
    another thread while matches are taken.
    """

    __slots__ = (
        "_asked", "_asked_s", "_caches", "_factor", "_in_order", "_large", "_match_s", "_matchers", "_request_s",
        "_running", "_spark", "_taken", "_waiting", "by_spark_count", "costs", "detect_count", "incomplete_count",
        "late_left_out", "read_count", "spark_failed_count", "strategy",
    )  # fmt: skip

    def __init__(
        self, factor: FactorPlan, strategy: Strategy, make_matcher: Callable[[Plan], Matcher], in_order: bool = False,
        cached: bool = True, spark: LargeRanges | None = None,
    ) -> None:  # fmt: skip
        """in_order: a row stays pending as long as an earlier one, so that all rows are in the order of PL. cached:
        keeps matches of history for later rows. spark: searches large ranges (None: no Spark)."""
        self._factor = factor
        self._in_order = in_order
        self.strategy = strategy
        # Made once: a construct without a kernel is reported when the query starts, and nothing is compiled later.
        self._matchers = [None if h.plan is None else _Fresh(make_matcher(numbered(h.plan))) for h in factor.histories]
        self._spark = spark
        live = output_schema(factor.plan)
        #: For each join, the search of its large ranges, or None.
        self._large = [None if spark is None or why_here(h, live) else spark for h in factor.histories]
        self._caches = [
            _cache(h, make_matcher, matcher, large)
            if cached and matcher is not None and HistoryCache.serves(h) else None
            for h, matcher, large in zip(factor.histories, self._matchers, self._large)
        ]
        self._waiting: list[tuple[Answer, tuple[Ranges, ...]]] = []
        self._running: tuple[Answer, tuple[Ranges, ...]] | None = None  # rows that are being answered
        self._asked: object = None  # watermarks at the strategy's last decision about the pending rows
        #: The costs at the strategy's last decision.
        self.costs = Costs()
        self._taken = 0
        self._asked_s = 0.0  # see Costs
        self._request_s: float | None = None  # minimum of all requests
        self._match_s = PER_MATCH_S  # moving average per match, beyond _request_s
        self.read_count = 0
        self.by_spark_count = 0
        self.spark_failed_count = 0
        self.detect_count = 0
        self.incomplete_count = 0
        self.late_left_out = 0

    @property
    def waiting_count(self) -> int:
        """Number of rows of PL that are pending or being answered."""
        return sum(len(answer) for answer, _ in self._unanswered)

    @property
    def _unanswered(self) -> list[tuple[Answer, tuple[Ranges, ...]]]:
        return [*([] if self._running is None else [self._running]), *self._waiting]

    def waiting_from_us(self) -> int | None:
        """Returns the earliest time of a last event among pending rows, of windows of their ends, or None. An empty
        match has none: its range is made of nulls, and empty."""
        windows = self._factor.plan.trends is not None
        times = [
            window_bounds_us(answer.live)[1] if windows else answer.evidence.span_us(FAR_US)[1][answer.match]
            for answer, _ in self._unanswered
        ]
        return min((int(t.min()) for t in times), default=None)

    @property
    def stuck_count(self) -> int:
        """Number of history matches after which AFTER MATCH SKIP TO would not have moved on."""
        return sum(m.stuck for m in self._matchers if m is not None)

    @property
    def caches(self) -> list[HistoryCache]:
        """The caches of the joins that allow one."""
        return [cache for cache in self._caches if cache is not None]

    def stats(self) -> dict[str, Any]:
        """Returns counters for monitoring."""
        return {
            "strategy": self.strategy.name,
            "waiting_for_history": self.waiting_count,
            "history_reads": self.read_count,
            "history_by_spark": self.by_spark_count,
            "history_spark_failed": self.spark_failed_count,
            "history_kept": sum(cache.hits for cache in self.caches),
            "history_found_ahead": self.detect_count,
            "history_incomplete": self.incomplete_count,
            "late_left_out": self.late_left_out,
        }

    def take(self, found: Sequence[Matches]) -> None:
        """Accepts new matches of PL. If a bound cannot be computed, raises QueryError, and accepts those before it."""
        plan = self._factor.plan
        answer = answer_of(plan, found)
        if plan.trends is not None:  # a match for each row
            answer = replace(answer, events=of_windows(ids_of_windows(plan, answer.live, fingerprint(plan))))
        try:
            self._accept(answer)
        except QueryError:
            fit, failing = 0, len(answer)
            while failing - fit > 1:  # so many can be computed, and so many cannot
                middle = (fit + failing) // 2
                try:
                    self._bounds(answer.take(np.arange(middle)))
                    fit = middle
                except QueryError:
                    failing = middle
            self._accept(_compact(answer.take(np.arange(fit))))
            raise

    def _accept(self, answer: Answer) -> None:
        if len(answer):
            self._waiting.append((answer, self._bounds(answer)))
            self._taken += len(answer)

    def _bounds(self, answer: Answer) -> tuple[Ranges, ...]:
        return tuple(ranges_of(h, self._factor.alias_sql, answer.live) for h in self._factor.histories)

    def settle(
        self, histories: Mapping[str, HistoryStream], late: bool = False, events: int | None = None
    ) -> Answer | None:
        """Answers all pending matches that can be answered at the end of PL's input. None if there are none. See
        `begin`."""
        request = self.begin(histories, late, None, True, events)
        return None if request is None else self.finish(request())

    def begin(
        self, histories: Mapping[str, HistoryStream], late: bool, watermark_us: int | None, ended: bool,
        events: int | None,
        sample: bool = True, most: int | None = None,
    ) -> Callable[[], Answer] | None:  # fmt: skip
        """Returns a call that answers the matches chosen by the strategy, or None if it chose none. most: answers no
        more than so many at once, in the order of PL.

        The call may run in another thread. Pass its result to `finish` before the next `begin`. histories: by the
        lower-case name of the stream; each is read through one current snapshot. watermark_us, ended: progress of PL's
        input. events: number of its events so far, if known. sample: allows reading a sample of history first, to
        estimate costs."""
        if not self._waiting:
            return None
        plans = self._factor.histories
        sources = [histories[h.schema.name.lower()] for h in plans]
        reached = (tuple((s.watermark_us, s.ended) for s in sources), watermark_us, ended, len(self._waiting))
        if reached == self._asked:
            return None  # nothing changed since the strategy's last decision
        answer = concat_answers([a for a, _ in self._waiting])
        spans = [Ranges.concat([r[k] for _, r in self._waiting]) for k in range(len(plans))]
        whole = [_whole(span, source) for span, source in zip(spans, sources)]
        for cache, source in zip(self._caches, sources):
            if cache is not None:
                cache.see(source.revision)
        readers = [source.reader() for source in sources]
        frontier = self._frontier(answer, spans, whole, watermark_us, ended)
        self.costs = self._costs(frontier, spans, sources, readers, events, late, sample)
        frontier = replace(frontier, costs=self.costs)
        requests, ahead = self._decided(frontier)
        rows = np.sort(np.concatenate(requests)) if requests else np.empty(0, np.int64)
        if cut := most is not None and len(rows) > most:
            rows = rows[:most]
            requests = [some for request in requests if len(some := request[request <= rows[-1]])]
        large = self._in_large(rows, spans, whole, sources, readers)
        wait = np.setdiff1d(np.arange(len(answer)), rows, assume_unique=True)
        # Everything that may fail precedes this line, so that rows of a failed request stay pending.
        begins_us = [source.begins_us() for source in sources] if len(rows) else []
        self._waiting, self._asked = [], None
        if len(wait):
            kept = tuple(span.take(wait) for span in spans)
            self._waiting = [(answer if not len(rows) else _compact(answer.take(wait)), kept)]
            self._asked = None if cut else (*reached[:-1], 1)
        if not len(rows):
            return None
        requests = [np.searchsorted(rows, request) for request in requests]
        answer = answer if not len(wait) else answer.take(rows)
        asked = [
            _Asked(
                plan, reader, matcher, cache, span.take(rows), known[rows], spark, far, begin_us,
                _last_known_us(source),
            )
            for plan, source, reader, matcher, cache, span, known, spark, far, begin_us in zip(
                plans, sources, readers, self._matchers, self._caches, spans, whole, self._large, large, begins_us,
                strict=True,
            )
        ]
        self._running = (answer, tuple(a.span for a in asked))
        return partial(self._answered, answer, asked, requests, ahead, late)

    def _in_large(
        self, rows: np.ndarray, spans: Sequence[Ranges], whole: Sequence[np.ndarray], sources: Sequence[HistoryStream],
        readers: list[HistoryReader],
    ) -> list[np.ndarray]:  # fmt: skip
        """Returns for each history True for the rows whose range Spark searches, bool (n,).

        Replaces a snapshot that Spark searches by one of the same events, all in files: here, while no event can be
        added."""
        found = []
        for k, (spark, cache, source) in enumerate(zip(self._large, self._caches, sources)):
            reader, large = readers[k], np.zeros(len(rows), bool)
            if spark is not None and isinstance(reader, HistorySnapshot):
                large = spark.large(reader, spans[k].take(rows), whole[k][rows], cache)
                if large.any() and reader.files() is None:
                    readers[k] = reader = source.reader(in_files=True)
                if not isinstance(reader, HistorySnapshot) or reader.files() is None:
                    large[:] = False
            found.append(large)
        return found

    def show_spark(self) -> list[str]:
        """Returns EXPLAIN lines, one per history: the ranges that Spark searches. Empty without Spark."""
        if self._spark is None:
            return []
        live = output_schema(self._factor.plan)
        reasons = [(h.alias, why_here(h, live)) for h in self._factor.histories]
        return [
            f"spark       no range of {alias}: {why}" if why else f"spark       ranges of {alias} {self._spark}"
            for alias, why in reasons
        ]

    def warm(self, histories: Mapping[str, HistoryStream]) -> None:
        """Reads and matches the last instant of each history, so that code is loaded and compiled before the first
        request."""
        for history, cache in zip(self._factor.histories, self._caches):
            reader = histories[history.schema.name.lower()].reader()
            between = reader.extent()[0] if isinstance(reader, HistorySnapshot) else None
            if between is None:
                continue
            columns = None if history.plan is None else history.plan.columns
            try:
                events = reader.read(RangeRequest(between[1], between[1], closed=True, columns=columns))
                if cache is not None:
                    cache.warm(events)
            except (QueryError, DataError):
                pass  # the first request reports it

    def finish(self, answer: Answer) -> Answer:
        """Returns the answer; its rows are no longer pending."""
        self._running = None
        return answer

    def take_back(self) -> None:
        """Lets the rows of a request that has failed be pending again, and forgets PA that was found ahead: this may
        have failed in events of no range."""
        self._waiting, self._running, self._asked = self._unanswered, None, None
        self._caches = [None for _ in self._caches]

    def pending(self) -> tuple[Answer, tuple[Ranges, ...]]:
        """Returns the pending rows, at least one, in the order of PL, and their ranges."""
        if len(self._waiting) > 1:
            spans = zip(*(ranges for _, ranges in self._waiting), strict=True)
            whole = concat_answers([answer for answer, _ in self._waiting])
            self._waiting = [(whole, tuple(Ranges.concat(list(of)) for of in spans))]
        return self._waiting[0]

    def keep(self, rows: np.ndarray) -> None:
        """Keeps only some of the rows of `pending`, by their indices, ascending."""
        answer, spans = self.pending()
        self._waiting = [(_compact(answer.take(rows)), tuple(span.take(rows) for span in spans))] if len(rows) else []
        self._asked = None

    def leave_out_first(self) -> None:
        """Forgets the first pending row, which cannot be joined, and those that are answered behind it if events come
        one by one."""
        answer, spans = self.pending()
        frontier = self._frontier(answer, spans, [np.ones(len(answer), bool)] * len(spans), None, False)
        answered_us = np.maximum(frontier.last_us, frontier.high_us)
        self.keep(np.flatnonzero(answered_us < (-FAR_US if self._in_order else answered_us[0])))

    def _answered(
        self, answer: Answer, asked: Sequence[_Asked], requests: Sequence[np.ndarray], ahead: bool, late: bool
    ) -> Answer:
        """Returns the answer of the requested rows."""
        n = len(answer)
        if ahead:
            self._detect(asked, late)
        before_s = _spent_s(asked)
        at = np.arange(n)  # for each row of the growing answer, the requested row that it comes from
        for one in asked:
            begins_us, span = one.begins_us, one.span
            complete = one.known & (
                span.low_us >= begins_us if begins_us is not None else span.low_us > span.last_us
            )
            self.incomplete_count += int(np.count_nonzero(~complete))
            live = answer.live.append_column(_AT, pa.array(np.arange(len(answer))))
            tagged = Answer(live, answer.evidence, answer.match, answer.sides)
            joined, reads, searches, failures = correlate(
                one.plan, self._factor, tagged, span.take(at), complete[at], _among(requests, at), one.reader,
                one.matcher, late, one.cache, one.known[at], one.spark, one.large[at],
            )
            self.read_count += reads
            self.by_spark_count += searches
            self.spark_failed_count += failures
            self.late_left_out += getattr(one.reader, "late_left_out", 0)
            at = at[joined.live.column(_AT).to_numpy()]
            answer = Answer(joined.live.drop_columns([_AT]), joined.evidence, joined.match, joined.sides)
        if not ahead:
            took_s = _spent_s(asked) - before_s
            going_on_s = sum(one.cache.go_on_s for one in asked if one.cache is not None)
            self._asked_s = max(0.0, self._asked_s + took_s - going_on_s)
            self._request_s = took_s if self._request_s is None else min(took_s, self._request_s)
            self._match_s += ((took_s - self._request_s) / n - self._match_s) * n / (n + SOME)
            sample_s = self.strategy.sample_s
            for one in asked:
                if sample_s is not None and one.cache is not None:
                    hull = _hull(one.span, one.last_known_us)
                    one.cache.learn(*hull, one.reader, late, self._asked_s, sample_s)
        return answer

    def _detect(self, asked: Sequence[_Asked], late: bool) -> None:
        """Finds PA for all keys ahead of later requests, for the joins that allow it."""
        for one in asked:
            if one.cache is None or not one.known.any():
                continue
            low_us, last_us = _hull(one.span.take(np.flatnonzero(one.known)), one.last_known_us)
            before = one.cache.reads
            one.cache.detect(low_us, last_us, one.reader, late)
            self.read_count += one.cache.reads - before
        self.detect_count += 1
        self._asked_s = 0.0

    def _frontier(
        self, answer: Answer, spans: Sequence[Ranges], whole: Sequence[np.ndarray], watermark_us: int | None,
        ended: bool,
    ) -> Frontier:  # fmt: skip
        n = len(answer)
        ready = np.ones(n, bool)
        low, high = np.full(n, FAR_US), np.full(n, -FAR_US)
        for plan, span, known in zip(self._factor.histories, spans, whole):
            ready &= known | plan.as_known
            some = span.low_us <= span.last_us
            low = np.where(some, np.minimum(low, span.low_us), low)
            high = np.where(some, np.maximum(high, span.last_us), high)
        first, last = (times[answer.match] for times in answer.evidence.span_us(-FAR_US))
        if self._factor.plan.trends is not None:
            first, last = window_bounds_us(answer.live)
        return Frontier(first, last, low, high, ready, watermark_us, ended)

    def _costs(
        self, frontier: Frontier, spans: Sequence[Ranges], sources: Sequence[HistoryStream],
        readers: Sequence[HistoryReader],
        events: int | None, late: bool, sample: bool,
    ) -> Costs:  # fmt: skip
        """Returns the costs for strategies that use them; defaults for others."""
        sample_s = self.strategy.sample_s
        if sample_s is None or not frontier.ready.any():
            return Costs()
        ready = np.flatnonzero(frontier.ready)
        request_s = REQUEST_S if self._request_s is None else self._request_s
        stake_s = self._asked_s + request_s + len(ready) * self._match_s
        archive, ahead_s = None, None
        for cache, span, source, reader in zip(self._caches, spans, sources, readers):
            if cache is None:
                continue
            low_us, last_us = _hull(span.take(ready), _last_known_us(source))
            if sample:
                cache.learn(low_us, last_us, reader, late, stake_s, sample_s)
            estimate = cache.estimate(low_us, last_us, reader)
            if estimate is None:
                continue
            if estimate.selectivity is not None:
                archive = max(archive or 0.0, estimate.selectivity)
            ahead_s = (ahead_s or 0.0) + estimate.seconds
        live = self._taken / events if events else None
        return Costs(live, archive, ahead_s, request_s, self._match_s, self._asked_s)

    def _decided(self, frontier: Frontier) -> tuple[list[np.ndarray], bool]:
        """Returns the rows of each request that the strategy chose, ascending, and True if PA is to be found ahead."""
        decisions = self.strategy.decide(frontier)
        requests = [decision.rows for decision in decisions]
        if self._in_order and requests:
            asked = np.zeros(len(frontier), bool)
            asked[np.concatenate(requests)] = True
            if not asked.all():
                until = int(np.argmin(asked))
                requests = [r[r < until] for r in requests if len(r) and r[0] < until]
        return requests, any(isinstance(decision, Detect) for decision in decisions)

    def save(self) -> dict[str, Any]:
        """Returns the pending rows and the counts, for hybrid.watch.saved."""
        waiting = [(answer, [(r.low_us, r.last_us) for r in ranges]) for answer, ranges in self._unanswered]
        counts = {
            "reads": self.read_count, "incomplete": self.incomplete_count, "late": self.late_left_out,
            "by_spark": self.by_spark_count,
        }  # fmt: skip
        return {"waiting": waiting, "counts": counts}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores the result of `save`, in a driver of the same factor."""
        self._waiting = [
            (fitted_answer(answer, self._factor), tuple(Ranges(*r) for r in ranges))
            for answer, ranges in saved["waiting"]
        ]
        counts = saved["counts"]
        self.read_count, self.incomplete_count = counts["reads"], counts["incomplete"]
        self.late_left_out, self.by_spark_count = counts["late"], counts.get("by_spark", 0)

    def forget_from(self, seq: int | None, watermark_us: int | None) -> None:
        """Forgets pending matches with a live event of ingest sequence `seq` or later (None: whose last one the
        watermark has not reached), and windows that were open before it. watermark_us: before it."""
        kept = []
        for answer, ranges in self._waiting:
            closed_us = -FAR_US if watermark_us is None else watermark_us
            evidence = answer.evidence
            if self._factor.plan.trends is not None:
                rows = np.flatnonzero(window_bounds_us(answer.live)[1] <= closed_us)
            elif seq is None:
                last_us = evidence.ts_us[evidence.bounds[1:] - 1]
                rows = np.flatnonzero(last_us[answer.match] < closed_us)
            else:
                newest = np.array([evidence.seq[a:b].max(initial=-1) for a, b in itertools.pairwise(evidence.bounds)])
                rows = np.flatnonzero(newest[answer.match] < seq)
            if len(rows):
                kept.append((_compact(answer.take(rows)), tuple(r.take(rows) for r in ranges)))
        self._waiting, self._asked = kept, None

    def discard(self) -> None:
        """Forgets all pending rows."""
        self._waiting = []


_AT = "__hybrid_at"


def _spent_s(asked: Sequence[_Asked]) -> float:
    """Returns the seconds spent so far on reading and matching events of some keys, in joins whose PA can be found
    ahead."""
    return sum(one.cache.asked_s for one in asked if one.cache is not None)


def _cache(
    history: HistoryPlan, make_matcher: Callable[[Plan], Matcher], anew: _Fresh, spark: LargeRanges | None
) -> HistoryCache:
    assert history.plan is not None
    ahead_max = None if spark is None else spark.events_max
    return HistoryCache(history, _Fresh(make_matcher(widened(history.plan))), anew, ahead_max=ahead_max)


class _Fresh:
    """Returns one matcher again and again, reset to its initial or a given state."""

    __slots__ = ("_before", "_empty", "_matcher")

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._empty = matcher.snapshot()
        self._before = 0

    def __call__(self, state: bytes | None = None) -> Matcher:
        """Returns the matcher with `state`, or with its initial state."""
        self._before += self._matcher.stuck
        self._matcher.restore(self._empty if state is None else state)
        return self._matcher

    @property
    def stuck(self) -> int:
        return self._before + self._matcher.stuck


def _last_known_us(source: HistoryStream) -> int | None:
    """Returns the last instant of complete history; None if the watermark does not limit it."""
    watermark_us = source.watermark_us
    return None if source.ended or watermark_us is None else watermark_us - 1


def _hull(span: Ranges, last_known_us: int | None) -> tuple[int, int]:
    """Returns the first instant of non-empty ranges, and the later of their last instant and last_known_us."""
    some = span.low_us <= span.last_us
    low_us, last_us = int(span.low_us[some].min(initial=FAR_US)), int(span.last_us[some].max(initial=-FAR_US))
    return low_us, last_us if last_known_us is None else max(last_us, last_known_us)


def _whole(span: Ranges, source: HistoryStream) -> np.ndarray:
    """Returns True for each complete range, bool (n,): the watermark is greater than its last instant."""
    if source.ended:
        return np.ones(len(span.low_us), bool)
    watermark_us = source.watermark_us
    return (span.low_us > span.last_us) | (False if watermark_us is None else watermark_us > span.last_us)


def _among(requests: Sequence[np.ndarray], at: np.ndarray) -> list[np.ndarray]:
    """Returns the rows of each request after joins, where row i comes from requested row at[i] (ascending)."""
    found = []
    for rows in requests:
        start, stop = np.searchsorted(at, rows, "left"), np.searchsorted(at, rows, "right")
        lengths = stop - start
        found.append(np.repeat(start - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum()))
    return found


def _compact(answer: Answer) -> Answer:
    """Returns the same rows without the evidence of matches that have no row."""
    used, match = np.unique(answer.match, return_inverse=True)
    return Answer(answer.live, answer.evidence.take(used), match.reshape(-1), answer.sides)
