"""Acts on what a strategy decides: holds live matches until their history is complete, reads it, joins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.join.candidates import Ranges, numbered
from hybrid.join.correlate import correlate
from hybrid.join.history_cache import HistoryCache
from hybrid.join.spark_ranges import LargeRanges, why_here
from hybrid.join.strategies.base import Costs, Detect, Frontier, Strategy
from hybrid.rows import duck
from hybrid.rows.answer import Answer, answer_of, concat_answers, fitted_answer, output_schema
from matching.batch import Matcher, Matches
from matching.sharing import widened
from query.errors import DataError, QueryError
from query.plan.plan import FactorPlan, HistoryPlan, Plan
from query.plan.typed import ZONED

FAR_US = 2**62
#: What a request for history takes, in seconds, and each of its matches beside that, as long as nothing is known.
REQUEST_S, MATCH_S = 0.005, 0.0005
#: A request for so many matches counts as much as all before it.
SOME = 8


class History(Protocol):
    """One history stream as the driver sees it, at one moment."""

    @property
    def watermark_us(self) -> int | None:
        """No on-time event with time below it can still come; None before the first event."""

    @property
    def ended(self) -> bool:
        """Nothing can still come."""

    @property
    def revision(self) -> object:
        """Changes when something other than new events changes what is kept."""

    def begins_us(self) -> int | None:
        """The first instant of which all is kept: the first event, or the edge of retention; None without events."""

    def reader(self, in_files: bool = False) -> HistoryReader:
        """A snapshot. in_files: what is in memory is written to files first, where that can be. Raises DataError where
        it fails."""


def ranges(history: HistoryPlan, live_alias: str, live: pa.Table) -> Ranges:
    """Evaluates the bounds of a history join over PL's output rows, as DuckDB does. A null bound: an empty range.

    live_alias: SQL, what stands behind AS for them."""
    shifted = _shifted(history, live)
    if shifted is not None:
        return shifted
    connection = duck.cursor(settings=history.settings)
    connection.register("__hybrid_live", live)

    time = history.schema.column(history.schema.time or "").type
    type = time if time == ZONED else "TIMESTAMP"  # as it would be compared with: in the time zone that is set
    low_sql, high_sql = (f"CAST(({sql}) AS {type})" for sql in (history.low_sql, history.high_sql))
    try:
        bounds = connection.sql(f"SELECT {low_sql} AS low, {high_sql} AS high FROM __hybrid_live AS {live_alias}")
        table = bounds.to_arrow_table()
    except duckdb.Error as error:
        raise duck.query_error(error, f"{history.low_sql} {history.high_sql}", code="HQ301") from None
    known = _known(table, "low") & _known(table, "high")
    # DuckDB's infinities are the ends of int64
    low, high = (
        np.clip(np.asarray(table.column(c).cast(pa.int64()).fill_null(0).to_numpy(), np.int64), -FAR_US, FAR_US)
        for c in ("low", "high")
    )
    last = high if history.closed else high - 1
    return Ranges(np.where(known, low, 0), np.where(known, last, -1))


def _shifted(history: HistoryPlan, live: pa.Table) -> Ranges | None:
    """The same without DuckDB, where bounds are a time of the match and a fixed length of time: a matter of
    microseconds. None where that is not so."""
    low, high = history.low_shift, history.high_shift
    if low is None or high is None or history.settings:
        return None
    known, bounds = np.ones(live.num_rows, bool), []
    for shift in (low, high):
        column = live.column(shift.column)
        if column.type != pa.timestamp("us"):
            return None
        us = np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(), np.int64)
        if len(us) and (us.min() < -FAR_US or us.max() > FAR_US):
            return None  # an infinity stays one
        bounds.append(np.clip(us + shift.us, -FAR_US, FAR_US))
        known &= np.asarray(column.is_valid().to_numpy(), bool)
    last = bounds[1] if history.closed else bounds[1] - 1
    return Ranges(np.where(known, bounds[0], 0), np.where(known, last, -1))


def _known(table: pa.Table, column: str) -> np.ndarray:
    return np.asarray(table.column(column).is_valid().to_numpy(), bool)


@dataclass(frozen=True, slots=True)
class _Asked:
    """One history join of the rows that ask: see hybrid.join.correlate. known: bool (n,), nothing can come into the
    range any more. large: bool (n,), Spark searches in the range. last_known_us: the last instant of
    which all is known."""

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

    take() accepts PL's matches; begin() asks the strategy about every one that waits, and what it gives answers those
    whose histories can be read. Rows come out in the order of PL within one answer. Not thread safe, but that an answer
    may be made in another thread while matches are taken.
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
        """in_order: a row waits with the one before it, so that rows always come out in the order of PL. cached: what
        has been found in history is kept for later matches. spark: what searches in large ranges, if anything does."""
        self._factor = factor
        self._in_order = in_order
        self.strategy = strategy
        # Made once: what the kernel cannot do yet is said when a query begins, and nothing is compiled later.
        self._matchers = [None if h.plan is None else _Fresh(make_matcher(numbered(h.plan))) for h in factor.histories]
        self._spark = spark
        live = output_schema(factor.plan)
        #: For each join what searches in its large ranges.
        self._large = [None if spark is None or why_here(h, live) else spark for h in factor.histories]
        self._caches = [
            _cache(h, make_matcher, matcher, large)
            if cached and matcher is not None and HistoryCache.serves(h) else None
            for h, matcher, large in zip(factor.histories, self._matchers, self._large)
        ]
        self._waiting: list[tuple[Answer, tuple[Ranges, ...]]] = []
        self._running: tuple[Answer, tuple[Ranges, ...]] | None = None  # what is being answered
        self._asked: object = None  # the watermarks at which those that wait were last asked about
        #: What the strategy was told last.
        self.costs = Costs()
        self._taken = 0
        self._asked_s = 0.0  # see Costs
        self._request_s: float | None = None  # the least that one took
        self._match_s = MATCH_S  # for one match beside that, of late
        self.read_count = 0
        self.by_spark_count = 0
        self.spark_failed_count = 0
        self.detect_count = 0
        self.incomplete_count = 0
        self.late_left_out = 0

    @property
    def waiting_count(self) -> int:
        """Rows of PL that wait for their history, or are being answered."""
        return sum(len(answer) for answer, _ in self._unanswered)

    @property
    def _unanswered(self) -> list[tuple[Answer, tuple[Ranges, ...]]]:
        return [*([] if self._running is None else [self._running]), *self._waiting]

    def waiting_from_us(self) -> int | None:
        """The least time of the last events of rows that wait, or None if none does."""
        times = [int(answer.evidence.last_us()[answer.match].min()) for answer, _ in self._unanswered]
        return min(times, default=None)

    @property
    def stuck_count(self) -> int:
        """Matches on history from which AFTER MATCH SKIP TO would not have moved on."""
        return sum(m.stuck for m in self._matchers if m is not None)

    @property
    def caches(self) -> list[HistoryCache]:
        """What keeps found history, of the joins that allow it."""
        return [cache for cache in self._caches if cache is not None]

    def stats(self) -> dict[str, Any]:
        """What it has done, and what it waits for."""
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
        """Accepts new PL matches. Raises QueryError if a bound cannot be computed."""
        answer = answer_of(self._factor.plan, found)
        if len(answer):
            self._taken += len(answer)
            bounds = tuple(ranges(h, self._factor.alias_sql, answer.live) for h in self._factor.histories)
            self._waiting.append((answer, bounds))

    def settle(self, histories: Mapping[str, History], late: bool = False, events: int | None = None) -> Answer | None:
        """Answers all that can be answered now, PL's input having ended; or None. See `begin`."""
        request = self.begin(histories, late, None, True, events)
        return None if request is None else self.finish(request())

    def begin(
        self, histories: Mapping[str, History], late: bool, watermark_us: int | None, ended: bool, events: int | None,
        sample: bool = True,
    ) -> Callable[[], Answer] | None:  # fmt: skip
        """What answers the matches that the strategy wants to be answered now, or None if there are none. It may run in
        another thread; then hand to `finish` what it gives, before the next `begin`.

        `histories` is keyed by the lower-case name of the stream; each is read through one snapshot, of now.
        watermark_us, ended: how far PL's input has come; events: of how many events, if that is known. sample: whether
        a sample of history may be read before that, to know what things cost."""
        if not self._waiting:
            return None
        plans = self._factor.histories
        sources = [histories[h.schema.name.lower()] for h in plans]
        reached = (tuple((s.watermark_us, s.ended) for s in sources), watermark_us, ended, len(self._waiting))
        if reached == self._asked:
            return None  # the strategy has said all it can: nothing is new
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
        large = self._in_large(rows, spans, whole, sources, readers)
        wait = np.setdiff1d(np.arange(len(answer)), rows, assume_unique=True)
        # All that may fail comes first: what could not be asked still waits.
        begins_us = [source.begins_us() for source in sources] if len(rows) else []
        self._waiting, self._asked = [], None
        if len(wait):
            kept = tuple(span.take(wait) for span in spans)
            self._waiting = [(answer if not len(rows) else _compact(answer.take(wait)), kept)]
            self._asked = (*reached[:-1], 1)
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
        self, rows: np.ndarray, spans: Sequence[Ranges], whole: Sequence[np.ndarray], sources: Sequence[History],
        readers: list[HistoryReader],
    ) -> list[np.ndarray]:  # fmt: skip
        """For each history whether the range of each of these rows is Spark's. A snapshot that Spark is to search gives
        way to one of the same events without anything in memory: now, since only now nothing else can come."""
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
        """For EXPLAIN: of each history, which ranges Spark searches; nothing where there is no Spark."""
        if self._spark is None:
            return []
        live = output_schema(self._factor.plan)
        reasons = [(h.alias, why_here(h, live)) for h in self._factor.histories]
        return [
            f"spark       no range of {alias}: {why}" if why else f"spark       ranges of {alias} {self._spark}"
            for alias, why in reasons
        ]

    def warm(self, histories: Mapping[str, History]) -> None:
        """Reads the last instant of each history, and matches it: what that has to load and to compile is there when a
        match asks."""
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
                pass  # whoever asks is told

    def finish(self, answer: Answer) -> Answer:
        """The answer, which is handed out by that."""
        self._running = None
        return answer

    def _answered(
        self, answer: Answer, asked: Sequence[_Asked], requests: Sequence[np.ndarray], ahead: bool, late: bool
    ) -> Answer:
        """The answer of those that ask."""
        n = len(answer)
        if ahead:
            self._detect(asked, late)
        before_s = _spent_s(asked)
        at = np.arange(n)  # which of the asked rows each row of the growing answer stems from
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
        """Finds PA ahead where that can be."""
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
        return Frontier(first, last, low, high, ready, watermark_us, ended)

    def _costs(
        self, frontier: Frontier, spans: Sequence[Ranges], sources: Sequence[History], readers: Sequence[HistoryReader],
        events: int | None, late: bool, sample: bool,
    ) -> Costs:  # fmt: skip
        """What the strategy is told of both sides, where it asks."""
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
        """The rows of each request that the strategy wants now, ascending; and whether PA is to be found ahead."""
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
        """What waits, and the counts, for hybrid.watch.saved."""
        waiting = [(answer, [(r.low_us, r.last_us) for r in ranges]) for answer, ranges in self._unanswered]
        counts = {
            "reads": self.read_count, "incomplete": self.incomplete_count, "late": self.late_left_out,
            "by_spark": self.by_spark_count,
        }  # fmt: skip
        return {"waiting": waiting, "counts": counts}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes on from what `save` gave, in a driver of the same factor."""
        self._waiting = [
            (fitted_answer(answer, self._factor), tuple(Ranges(*r) for r in ranges))
            for answer, ranges in saved["waiting"]
        ]
        counts = saved["counts"]
        self.read_count, self.incomplete_count = counts["reads"], counts["incomplete"]
        self.late_left_out, self.by_spark_count = counts["late"], counts.get("by_spark", 0)

    def forget_from(self, seq: int) -> None:
        """Forgets the matches that wait and have an event of the live stream from that ingest sequence on."""
        kept = []
        for answer, ranges in self._waiting:
            evidence = answer.evidence
            newest = np.array([evidence.seq[a:b].max(initial=-1) for a, b in itertools.pairwise(evidence.bounds)])
            rows = np.flatnonzero(newest[answer.match] < seq)
            if len(rows):
                kept.append((_compact(answer.take(rows)), tuple(r.take(rows) for r in ranges)))
        self._waiting, self._asked = kept, None

    def discard(self) -> None:
        """Forgets what waits."""
        self._waiting = []


_AT = "__hybrid_at"


def _spent_s(asked: Sequence[_Asked]) -> float:
    """Seconds that reading and matching the events of some keys has taken by now, where PA can be found ahead."""
    return sum(one.cache.asked_s for one in asked if one.cache is not None)


def _cache(
    history: HistoryPlan, make_matcher: Callable[[Plan], Matcher], anew: _Fresh, spark: LargeRanges | None
) -> HistoryCache:
    assert history.plan is not None
    ahead_max = None if spark is None else spark.events_max
    return HistoryCache(history, _Fresh(make_matcher(widened(history.plan))), anew, ahead_max=ahead_max)


class _Fresh:
    """Gives the one matcher again and again, each time with the state it has now."""

    __slots__ = ("_before", "_empty", "_matcher")

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._empty = matcher.snapshot()
        self._before = 0

    def __call__(self, state: bytes | None = None) -> Matcher:
        """With that state, or as new."""
        self._before += self._matcher.stuck
        self._matcher.restore(self._empty if state is None else state)
        return self._matcher

    @property
    def stuck(self) -> int:
        return self._before + self._matcher.stuck


def _last_known_us(source: History) -> int | None:
    """The last instant of which all is known; None where that is no matter of the watermark."""
    watermark_us = source.watermark_us
    return None if source.ended or watermark_us is None else watermark_us - 1


def _hull(span: Ranges, last_known_us: int | None) -> tuple[int, int]:
    """From the first instant that ranges reach to, up to the last of which all is known."""
    some = span.low_us <= span.last_us
    low_us, last_us = int(span.low_us[some].min(initial=FAR_US)), int(span.last_us[some].max(initial=-FAR_US))
    return low_us, last_us if last_known_us is None else max(last_us, last_known_us)


def _whole(span: Ranges, source: History) -> np.ndarray:
    """For each range whether no event inside it can still come: the watermark is greater than its last instant."""
    if source.ended:
        return np.ones(len(span.low_us), bool)
    watermark_us = source.watermark_us
    return (span.low_us > span.last_us) | (False if watermark_us is None else watermark_us > span.last_us)


def _among(requests: Sequence[np.ndarray], at: np.ndarray) -> list[np.ndarray]:
    """The rows of each request where row i stems from row at[i] (ascending) of those that were asked for."""
    found = []
    for rows in requests:
        start, stop = np.searchsorted(at, rows, "left"), np.searchsorted(at, rows, "right")
        lengths = stop - start
        found.append(np.repeat(start - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum()))
    return found


def _compact(answer: Answer) -> Answer:
    """The same rows without the evidence of matches that no row belongs to."""
    used, match = np.unique(answer.match, return_inverse=True)
    return Answer(answer.live, answer.evidence.take(used), match.reshape(-1), answer.sides)
