"""Acts on what a strategy decides: holds live matches until their history is complete, reads it, joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa

from hybrid import duck
from hybrid.correlate import Answer, Reader, answer_of, concat_answers, correlate, numbered
from hybrid.strategies.base import AskArchive, Discard, Frontier, Strategy, Wait
from matching.batch import Matcher, Matches
from query.plan.plan import FactorPlan, HistoryPlan, Plan

FAR_US = 2**62


class History(Protocol):
    """One history stream as the driver sees it, at one moment."""

    @property
    def watermark_us(self) -> int | None:
        """No on-time event with time below it can still come; None before the first event."""

    @property
    def ended(self) -> bool:
        """Nothing can still come."""

    def begins_us(self) -> int | None:
        """The first instant of which all is kept: the first event, or the edge of retention; None without events."""

    def reader(self) -> Reader:
        """A snapshot."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """The history ranges of n rows for one join: first and last instant inside; low > last is an empty range."""

    low_us: np.ndarray
    last_us: np.ndarray


def ranges(history: HistoryPlan, live_alias: str, live: pa.Table) -> Ranges:
    """Evaluates the bounds of a history join over PL's output rows, as DuckDB does. A null bound: an empty range.

    live_alias: SQL, what stands behind AS for them."""
    connection = duck.cursor()
    connection.register("__hybrid_live", live)

    low_sql, high_sql = (f"CAST(({sql}) AS TIMESTAMP)" for sql in (history.low_sql, history.high_sql))
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


def _known(table: pa.Table, column: str) -> np.ndarray:
    return np.asarray(table.column(column).is_valid().to_numpy(), bool)


class Driver:
    """The history side of one pattern factor.

    take() accepts PL's matches; settle() asks the strategy about every one that waits and returns the answers of those
    whose histories could be read. Rows come out in the order of PL within one settle. Not thread safe.
    """

    __slots__ = (
        "_asked", "_factor", "_in_order", "_matchers", "_strategy", "_waiting", "incomplete_count", "late_left_out",
        "read_count",
    )  # fmt: skip

    def __init__(
        self, factor: FactorPlan, strategy: Strategy, make_matcher: Callable[[Plan], Matcher], in_order: bool = False
    ) -> None:
        """in_order: a row waits with the one before it, so that rows always come out in the order of PL."""
        self._factor = factor
        self._in_order = in_order
        self._strategy = strategy
        # Made once: what the kernel cannot do yet is said when a query begins, and nothing is compiled later.
        self._matchers = [None if h.plan is None else _Fresh(make_matcher(numbered(h.plan))) for h in factor.histories]
        self._waiting: list[tuple[Answer, tuple[Ranges, ...]]] = []
        self._asked: object = None  # the watermarks at which those that wait were last asked about
        self.read_count = 0
        self.incomplete_count = 0
        self.late_left_out = 0

    @property
    def waiting_count(self) -> int:
        """Rows of PL that wait for their history."""
        return sum(len(answer) for answer, _ in self._waiting)

    def waiting_from_us(self) -> int | None:
        """The least time of the last events of rows that wait, or None if none does."""
        times = [int(answer.evidence.last_us()[answer.match].min()) for answer, _ in self._waiting]
        return min(times, default=None)

    @property
    def stuck_count(self) -> int:
        """Matches on history from which AFTER MATCH SKIP TO would not have moved on."""
        return sum(m.stuck for m in self._matchers if m is not None)

    def stats(self) -> dict[str, Any]:
        """What it has done, and what it waits for."""
        return {
            "strategy": self._strategy.name,
            "waiting_for_history": self.waiting_count,
            "history_reads": self.read_count,
            "history_incomplete": self.incomplete_count,
            "late_left_out": self.late_left_out,
        }

    def take(self, found: Sequence[Matches]) -> None:
        """Accepts new PL matches. Raises QueryError if a bound cannot be computed."""
        answer = answer_of(self._factor.plan, found)
        if len(answer):
            bounds = tuple(ranges(h, self._factor.alias_sql, answer.live) for h in self._factor.histories)
            self._waiting.append((answer, bounds))

    def settle(self, histories: Mapping[str, History], late: bool = False) -> Answer | None:
        """Answers what can be answered now, or None. `histories` is keyed by the lower-case name of the stream; each is
        read through one snapshot."""
        if not self._waiting:
            return None
        plans = self._factor.histories
        sources = [histories[h.schema.name.lower()] for h in plans]
        frontier_now = (tuple((s.watermark_us, s.ended) for s in sources), len(self._waiting))
        if frontier_now == self._asked:
            return None  # the strategy has said all it can: nothing is new
        answer = concat_answers([a for a, _ in self._waiting])
        n = len(answer)
        low = [np.concatenate([r[k].low_us for _, r in self._waiting]) for k in range(len(plans))]
        last = [np.concatenate([r[k].last_us for _, r in self._waiting]) for k in range(len(plans))]
        ask, drop = np.ones(n, bool), np.zeros(n, bool)
        whole = [np.zeros(n, bool) for _ in plans]
        for k, (plan, source) in enumerate(zip(plans, sources)):
            watermark_us, ended = source.watermark_us, source.ended
            for i in range(n):
                frontier = Frontier(int(low[k][i]), int(last[k][i]), plan.as_known, watermark_us, ended)
                match self._strategy.decide(frontier):
                    case AskArchive(complete=is_complete):
                        whole[k][i] = is_complete
                    case Wait():
                        ask[i] = False
                    case Discard():
                        ask[i], drop[i] = False, True
                    case other:
                        raise NotImplementedError(f"{self._strategy.name} decided {other}: not supported yet")
        if self._in_order and not (ask | drop).all():
            first = int(np.argmin(ask | drop))
            ask[first:], drop[first:] = False, False
        wait = np.flatnonzero(~ask & ~drop)
        rows = np.flatnonzero(ask)
        self._waiting, self._asked = [], None
        if len(wait):
            kept = tuple(Ranges(a[wait], b[wait]) for a, b in zip(low, last))
            self._waiting = [(answer if len(wait) == n else _compact(answer.take(wait)), kept)]
            self._asked = (frontier_now[0], 1)
        if not len(rows):
            return None
        answer = answer if len(rows) == n else answer.take(rows)
        at = np.arange(len(rows))  # which of the asked rows each row of the growing answer stems from
        asked = [(a[rows], b[rows], w[rows]) for a, b, w in zip(low, last, whole)]
        for plan, source, matcher, (low_us, last_us, complete) in zip(plans, sources, self._matchers, asked):
            begins_us = source.begins_us()
            complete = complete & (low_us >= begins_us if begins_us is not None else low_us > last_us)
            self.read_count += 1
            self.incomplete_count += int(np.count_nonzero(~complete))
            before = len(answer)
            live = answer.live.append_column(_AT, pa.array(np.arange(before)))
            tagged = Answer(live, answer.evidence, answer.match, answer.sides)
            reader = source.reader()
            joined = correlate(
                plan, self._factor, tagged, low_us[at], last_us[at], complete[at], reader, matcher, late
            )
            self.late_left_out += getattr(reader, "late_left_out", 0)
            at = at[joined.live.column(_AT).to_numpy()]
            answer = Answer(joined.live.drop_columns([_AT]), joined.evidence, joined.match, joined.sides)
        return answer

    def save(self) -> dict[str, Any]:
        """What waits, and the counts, for hybrid.saved."""
        waiting = [(answer, [(r.low_us, r.last_us) for r in ranges]) for answer, ranges in self._waiting]
        counts = {"reads": self.read_count, "incomplete": self.incomplete_count, "late": self.late_left_out}
        return {"waiting": waiting, "counts": counts}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes on from what `save` gave, in a driver of the same factor."""
        self._waiting = [(answer, tuple(Ranges(*r) for r in ranges)) for answer, ranges in saved["waiting"]]
        counts = saved["counts"]
        self.read_count, self.incomplete_count = counts["reads"], counts["incomplete"]
        self.late_left_out = counts["late"]

    def discard(self) -> None:
        """Forgets what waits."""
        self._waiting = []


_AT = "__hybrid_at"


class _Fresh:
    """Gives the one matcher again and again, each time with the state it has now."""

    __slots__ = ("_before", "_empty", "_matcher")

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._empty = matcher.snapshot()
        self._before = 0

    def __call__(self) -> Matcher:
        self._before += self._matcher.stuck
        self._matcher.restore(self._empty)
        return self._matcher

    @property
    def stuck(self) -> int:
        return self._before + self._matcher.stuck


def _compact(answer: Answer) -> Answer:
    """The same rows without the evidence of matches that no row belongs to."""
    used, match = np.unique(answer.match, return_inverse=True)
    return Answer(answer.live, answer.evidence.take(used), match.reshape(-1), answer.sides)
