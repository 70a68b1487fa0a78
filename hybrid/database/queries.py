"""The live queries of a database: how they are asked, begin, take each other's place, and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from datetime import timedelta
from typing import Any

from archive.interrupts import Deferred
from hybrid.database.opened import Opened
from hybrid.database.planned import Planned, planned
from hybrid.join.requests import Asking, pools
from hybrid.join.strategies import strategy_of
from hybrid.join.strategies.base import Strategy
from hybrid.rows.faults import fault, not_supported
from hybrid.statement.explain import explain_live
from hybrid.watch.alerts import Alerts
from hybrid.watch.backfill import Past
from hybrid.watch.chain import outermost, plain
from hybrid.watch.derived_stream import Pour, Rows, rows_as_events
from hybrid.watch.flow import Flow
from hybrid.watch.in_chain import InChain
from hybrid.watch.in_feed import InFeed
from hybrid.watch.live_query import Events, LiveQuery, guarded
from hybrid.watch.memory import Memory
from hybrid.watch.query_spec import Asked
from hybrid.watch.shedding import Shed
from hybrid.watch.shedding import check as check_shed
from hybrid.watch.waits import waits
from query.errors import DataError
from query.plan.plan import QueryPlan

#: Declares the stream that the rows of a query go into: its name, the rows, their keys, and how long they are kept.
Declare = Callable[[str, Rows, Sequence[str], timedelta | None], None]


class Queries:
    """All methods but `catch_up` are called with the lock. memory: what partial matches may take of it.

    may_wait, catch_up: see Alerts. ended: called when a query with a name has been closed; declare: see Declare."""

    def __init__(
        self, opened: Opened, flow: Flow, memory: Memory, may_wait: Callable[[], bool],
        catch_up: Callable[[LiveQuery, float | None], None], ended: Callable[[], None], declare: Declare,
    ) -> None:  # fmt: skip
        self._opened = opened
        self._flow = flow
        self.memory = memory
        self._may_wait = may_wait
        self._catch_up = catch_up
        self._ended = ended
        self._declare = declare

    # ---- asked

    def ask(
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, into: str | None = None,
        from_us: int | None = None,
    ) -> LiveQuery:  # fmt: skip
        """Returns a live query that may begin. from_us: it sees the events that are kept from then on too. Raises
        QueryError."""
        self._opened.check()
        wanted = planned(text, tables, self._opened.streams, self._opened.access)
        plan, streams = wanted.plan, wanted.streams
        if into is not None and plan.alert is not None:
            hint = "leave it out, and watch the stream with ALERT ONCE"
            raise not_supported(f"ALERT ONCE on rows that go into {into}", text, hint)
        check_going(plan, streams)
        spill, large = self.memory.spill(), self._opened.large
        events: Events
        if plain(plan):
            found_again = not (evidence or into is not None or plan.alert is not None or wanted.histories)
            events = InFeed(plan.factors[0], next(iter(streams.values())), spill, from_us, found_again)
        else:
            events = InChain(plan, streams, wanted.static, spill, from_us, self._opened.access)
        query = LiveQuery(plan, events, wanted.histories, strategy, large)
        query.alerts = self._alerts(query, wanted, strategy, evidence)
        if query.driver is not None:
            # what flows on into another stream comes in its turn
            pool = None if into is not None else pools().readers
            query.asking = Asking(query.driver, pool, lambda: self._answered(query))
            query.asking.prepare(wanted.histories)
        return query

    def _alerts(self, query: LiveQuery, wanted: Planned, strategy: Strategy, evidence: bool) -> Alerts:
        def explained(stage: str) -> str:
            shedding = None if query.events.shedding is None else str(query.events.shedding)
            return explain_live(wanted.query, wanted.plan, strategy, stage, query.driver, shedding)

        def stats() -> dict[str, Any]:
            with self._opened.lock:
                return query.stats()

        def rows_from() -> int | None:
            with self._opened.lock:
                return query.rows_from()

        def close() -> None:
            with self._opened.lock, Deferred():
                self.stop(query)

        return Alerts(
            outermost(wanted.plan), wanted.outer, query.lookups, explained, stats, self._may_wait, close, evidence,
            rows_from, lambda seconds: self._catch_up(query, seconds), query.whole,
        )

    # ---- begun

    def start(
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, into: str | None = None,
        time: str | None = None, shed: Shed | None = None,
    ) -> LiveQuery:  # fmt: skip
        """Returns a live query that has begun; see Database.watch."""
        query = self.ask(text, strategy, tables, evidence, into)
        if shed is not None:
            check_shed(query.plan, into)
        query.events.begin(shed)
        self._has_begun(query)
        if into is not None:
            try:
                self._flow.pours.append(self._pour(query, into, time))
            except Exception:
                self.stop(query)
                raise
        return query

    def past(
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, from_us: int, shed: Shed | None
    ) -> Past:
        """Returns a live query that is to read the archive before it begins, without the lock."""
        query = self.ask(text, strategy, tables, evidence, from_us=from_us)
        if shed is not None:
            check_shed(query.plan, None)
        for stream in query.events.streams.values():
            extent, *_ = stream.kept.snapshot().extent()
            if stream.watermark_us is None and not stream.live.expected and extent is not None:
                self._flow.reach(stream, extent[1] - stream.schema.lateness_us)
        query.events.begin(shed)
        return Past(query, from_us)

    def go_on(self, past: Past) -> LiveQuery:
        """Lets a live query begin that has read the archive, with what has come meanwhile."""
        self._opened.check()
        check_going(past.query.plan, past.streams)
        past.read_rest()
        self._has_begun(past.query)
        guarded(past.query, LiveQuery.settle)
        return past.query

    def _has_begun(self, query: LiveQuery) -> None:
        self._flow.queries.append(query)
        self.share_memory()

    def share_memory(self) -> None:
        """Says to all that hold partial matches, or what was found in history, how much is theirs."""
        feeds = [s.feed for s in self._flow.streams.values() if s.feed is not None]
        self.memory.share_out([*feeds, *(h for q in self._flow.queries for h in q.events.holders)])
        drivers = [q.driver for q in self._flow.queries if q.driver is not None]
        self.memory.share_kept([cache for driver in drivers for cache in driver.caches])

    def named(self, asked: Asked) -> LiveQuery | None:
        """Returns the query that runs under a name, if there is one. Raises DataError for another one."""
        if self._opened.path is None:
            raise DataError("a database in memory has no checkpoints", "hybrid.connect(path), or leave out the name")
        known = self._flow.named.get(asked.name)
        if known is not None and (known.asked is None or not known.asked.same(asked)):
            raise DataError(
                f"another query runs under the name {asked.name}",
                "db.replace puts a new version in its place, db.watching()[name].close() ends it",
            )
        return known

    def _pour(self, query: LiveQuery, into: str, time: str | None) -> Pour:
        """Declares the stream that the rows of a new live query go to."""
        reads, target = frozenset(query.events.streams), into.lower()
        upstream = set(reads)
        while more := {name for p in self._flow.pours if p.target in upstream for name in p.reads} - upstream:
            upstream |= more
        if target in upstream:
            raise DataError(f"the rows cannot go into {into}, which they are made of", "choose another name")
        if any(p.target == target for p in self._flow.pours):
            raise DataError(f"stream {into} is fed by a live query already", "choose another name")
        rows = rows_as_events(query.plan, query.alerts.schema, time)
        keeping = [s.schema.retention_us for s in query.events.streams.values()]
        retention = None if None in keeping else timedelta(microseconds=max(k for k in keeping if k is not None))
        keys = [c.name for c in query.factor.plan.partition_by if c.name in rows.columns]
        self._declare(into, rows, keys, retention)
        state = self._flow.streams[target]
        if state.ended:
            raise DataError(f"stream {into} has ended", "choose another name")
        state.live.driven = True
        return Pour(query.alerts, reads, target, rows.lag_us, lambda: query.events.watermark_us)

    # ---- replaced, shed, ended

    def replace(
        self, alerts: Alerts, text: str, tables: Mapping[str, Any], evidence: bool, fresh: bool
    ) -> tuple[LiveQuery, LiveQuery, bool]:
        """Returns the running query, its new version, and whether that is as if it had run since the old one began; to
        be followed by `retire`. See Database.replace."""
        self._opened.check()
        old = self._flow.running(alerts)
        if old is None:
            raise DataError("this query is not running", "start the new version with db.watch")
        if self._flow.target(alerts) is not None:
            raise DataError("this query feeds a stream", "close it, and start the new version with db.watch")
        strategy = strategy_of("auto") if old.driver is None else old.driver.strategy
        new = self.ask(text, strategy, tables, evidence)
        was, now = (sorted(query.events.streams) for query in (old, new))
        if was != now:
            message = f"the new version reads {', '.join(now)}, the old one {', '.join(was)}"
            raise fault("HQ400", message, text, "close the old query, and watch the new one")
        if old.events.shedding is not None:
            check_shed(new.plan, None)
        whole = new.events.succeed(old.events, fresh)
        self._has_begun(new)
        if old.asked is not None:
            new.asked = replace(old.asked, text=text, evidence=evidence)
            self._flow.named[old.asked.name] = new
        return old, new, whole

    def retire(self, old: LiveQuery) -> None:
        """Takes no more events into a query in whose place another one is; what waits for history still comes."""
        old.events.leave()
        guarded(old, LiveQuery.settle)
        self._flow.drop_over()

    def shed(self, alerts: Alerts, shed: Shed | None) -> None:
        """Changes how a running query may leave out keys; see Database.shed."""
        query = self._flow.running(alerts)
        shedding = None if query is None else query.events.shedding
        if query is None or shed == (None if shedding is None else shedding.shed):
            return
        if shed is not None:
            check_shed(alerts.plan, self._flow.target(alerts))
        query.events.allow(shed)

    def stop(self, query: LiveQuery) -> None:
        """Ends one live query; nothing else changes."""
        query.events.leave()
        if query.driver is not None:
            query.driver.discard()
        self._flow.remove(query)
        self.share_memory()
        if query.asked is not None and self._flow.named.get(query.asked.name) is query:
            del self._flow.named[query.asked.name]
            self._ended()
        query.alerts.finish("closed")

    def withdraw(self, before: Sequence[LiveQuery]) -> None:
        """Ends the queries that are not among those before: one that could not begin whole."""
        for query in [q for q in self._flow.queries if q not in before]:
            self.stop(query)
        for stream in self._flow.streams.values():
            if stream.feed is not None:
                stream.feed.keep_only([q.events.member for q in self._flow.queries if q.events.member is not None])
                if not len(stream.feed):
                    stream.feed = None

    # ---- history that is being read

    def _answered(self, query: LiveQuery) -> None:
        """A request of a query is over: somebody takes its answer, unless a push does so before."""
        if not self._opened.closed:
            pools().takers.submit(self._take_answers, query)

    def _take_answers(self, query: LiveQuery) -> None:
        with self._opened.lock, Deferred():
            if not self._opened.closed and query in self._flow.queries:
                guarded(query, LiveQuery.settle)

    def catch_up(self, query: LiveQuery, seconds: float | None = None) -> None:
        """Returns when no history is being read for a query, or so many seconds are over."""
        until_s = None if seconds is None else time.monotonic() + seconds
        while query.asking is not None and (running := query.asking.running) is not None:
            wait([running], None if until_s is None else max(0.0, until_s - time.monotonic()))
            if not running.done():
                break
            self._take_answers(query)
            if query.asking.running is running:
                break  # it is not the database's any more


def check_going(plan: QueryPlan, streams: Mapping[str, Any]) -> None:
    """Raises QueryError where all streams that a live query reads have ended."""
    over = [s.schema.name for s in streams.values() if s.ended]
    if len(over) == len(streams):
        raise fault("HQ400", f"stream {over[0]} has ended", plan.text, "ask db.sql or db.backtest")


def why_late(query: LiveQuery) -> list[str]:
    """Returns why matches may come late, and partial ones may never end."""
    found = [waits(f.plan, f.alias if query.asked is None else query.name) for f in query.plan.factors]
    return list(dict.fromkeys(message for messages in found for message in messages))
