"""The live queries of a database: create, start, replace, shed, stop."""

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
from hybrid.watch.derived_stream import DerivedDeclaration, Pour, held_rows, rows_as_events
from hybrid.watch.flow import Flow
from hybrid.watch.in_chain import InChain
from hybrid.watch.in_feed import InFeed
from hybrid.watch.in_merged import InMerged
from hybrid.watch.live_query import Events, LiveQuery, guarded
from hybrid.watch.memory import Memory
from hybrid.watch.merged_feed import over_merged
from hybrid.watch.query_spec import SHARING, Asked
from hybrid.watch.shedding import Shed
from hybrid.watch.shedding import check as check_shed
from hybrid.watch.waits import waits
from matching.purpose import Purpose
from matching.workload.sharing_mode import SharingMode
from query.errors import DataError, nearest
from query.plan.plan import QueryPlan

#: Declares the target stream of a query's rows: name, rows, keys, retention.
Declare = Callable[[str, DerivedDeclaration, Sequence[str], timedelta | None], None]


class Queries:
    """All methods except `catch_up` are called with the lock. memory: the memory budget of partial matches.

    may_wait, catch_up: see Alerts. ended: called after a named query was closed. declare: see Declare."""

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

    # ---- create

    def ask(
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, into: str | None = None,
        from_us: int | None = None, sharing: str = SHARING, patterns: Mapping[str, str] | None = None,
    ) -> LiveQuery:  # fmt: skip
        """Returns a live query that has not started. from_us: it also reads kept events from this time on. sharing: see
        Database.watch. patterns: the named patterns that it uses; None: those of the database. Raises QueryError."""
        opened = self._opened
        opened.check()
        used = opened.used(text, tables) if patterns is None else patterns
        wanted = planned(text, tables, opened.streams, opened.access, used)
        plan, streams = wanted.plan, wanted.streams
        if into is not None and plan.alert is not None:
            hint = "leave it out, and watch the stream with ALERT ONCE"
            raise not_supported(f"ALERT ONCE on rows that go into {into}", text, hint)
        check_going(plan, streams)
        spill, large, shared = self.memory.spill(), self._opened.large, self._flow.searches
        events: Events
        if over_merged(plan):
            events = InMerged(plan.factors[0], streams, self._flow.merged, spill, shared, from_us)
        elif plain(plan):
            asked = Purpose.IDENTIFIED if evidence else Purpose.FOUND_AGAIN
            purpose = Purpose.LIVE if into is not None or plan.alert is not None or wanted.histories else asked
            mode = mode_of(sharing) if plan.factors[0].plan.trends is not None else None
            events = InFeed(plan.factors[0], next(iter(streams.values())), spill, shared, from_us, purpose, mode)
        else:
            events = InChain(plan, streams, wanted.static, spill, from_us, self._opened.access, strategy)
        in_order = into is not None
        query = LiveQuery(wanted.query, plan, events, wanted.histories, strategy, large, sharing, in_order)
        query.alerts = self._alerts(query, wanted, strategy, evidence)
        if query.driver is not None:
            # rows that feed another stream keep their order
            pool = None if into is not None else pools().readers
            query.asking = Asking(query.driver, pool, lambda: self._answered(query))
            query.asking.prepare(query.histories)
        return query

    def _alerts(self, query: LiveQuery, wanted: Planned, strategy: Strategy, evidence: bool) -> Alerts:
        def explained(stage: str) -> str:
            shedding = None if query.events.shedding is None else str(query.events.shedding)
            member = query.events.member
            running = None if member is None or member.kernel is None else member.kernel.chosen
            sharing = "" if member is None else member.show()
            why_layers = None if member is None else member.why_layers
            return explain_live(
                wanted.query, wanted.plan, strategy, stage, query.driver, shedding, running, sharing, why_layers
            )

        def stats() -> dict[str, Any]:
            with self._opened.lock:
                return query.stats()

        def rows_from() -> int | None:
            with self._opened.lock:
                return query.rows_from()

        def close() -> None:
            with self._opened.lock, Deferred():
                self._flow.settle()
                self.stop(query)

        return Alerts(
            outermost(wanted.plan), wanted.outer, query.lookups, explained, stats, self._may_wait, close, evidence,
            rows_from, lambda seconds: self._catch_up(query, seconds), query.whole, wanted.patterns,
        )

    # ---- start

    def start(
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, into: str | None = None,
        time: str | None = None, shed: Shed | None = None, sharing: str = SHARING,
        patterns: Mapping[str, str] | None = None,
    ) -> LiveQuery:  # fmt: skip
        """Starts a live query and returns it; see Database.watch. patterns: as of `ask`."""
        query = self.ask(text, strategy, tables, evidence, into, sharing=sharing, patterns=patterns)
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
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, from_us: int,
        shed: Shed | None, sharing: str,
    ) -> Past:  # fmt: skip
        """Returns a live query that reads the archive before it starts; the read takes no lock."""
        query = self.ask(text, strategy, tables, evidence, from_us=from_us, sharing=sharing)
        if shed is not None:
            check_shed(query.plan, None)
        for stream in query.events.streams.values():
            if stream.watermark_us is None and (reached_us := stream.files_reach_us()) is not None:
                self._flow.reach(stream, reached_us)
        query.events.begin(shed)
        return Past(query, from_us, self.memory.budget(1 + len(self._flow.queries)))

    def go_on(self, past: Past) -> LiveQuery:
        """Starts a live query that has read the archive, after it has read the events pushed meanwhile."""
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
        """Divides the memory budget among the holders of partial matches, the live queries, and the history caches."""
        self._flow.budget = self.memory.budget(len(self._flow.queries))
        feeds = [s.feed for s in self._flow.streams.values() if s.feed is not None]
        feeds += [merged.feed for merged in self._flow.merged]
        self.memory.share_out([*feeds, *(h for q in self._flow.queries for h in q.events.holders)])
        self.memory.share_found([q.alerts for q in self._flow.queries])
        drivers = [q.driver for q in self._flow.queries if q.driver is not None]
        drivers += [driver for q in self._flow.queries for driver in q.events.drivers]
        self.memory.share_kept([cache for driver in drivers for cache in driver.caches])

    def named(self, asked: Asked) -> LiveQuery | None:
        """Returns the running query of this name, or None. Raises DataError if it is a different query."""
        if self._opened.path is None:
            raise DataError("a database in memory has no checkpoints", "hybrid.connect(path), or leave out the name")
        known = self._flow.named.get(asked.name)
        was = None if known is None else known.asked
        if was is not None and was.same(replace(asked, patterns=was.patterns)):
            older = [name for name, text in was.patterns.items() if asked.patterns.get(name) != text]
            if not older:
                return known
            message = f"query {asked.name} runs with an earlier text of pattern {', '.join(older)}"
            raise DataError(message, f"db.replace({asked.name!r}, text) installs the query with the new text")
        if known is not None:
            raise DataError(
                f"another query runs under the name {asked.name}",
                f"db.replace({asked.name!r}, text) installs a new version, "
                f"db.watching()[{asked.name!r}].close() ends the query",
            )
        return None

    def _pour(self, query: LiveQuery, into: str, time: str | None) -> Pour:
        """Declares the target stream of a new live query's rows."""
        reads, target = query.reads, into.lower()
        upstream = set(reads)
        while more := {name for p in self._flow.pours if p.target in upstream for name in p.reads} - upstream:
            upstream |= more
        if target in upstream:
            message = f"the query reads {into}, directly or through other queries: its rows cannot go into it"
            raise DataError(message, "choose another name")
        if any(p.target == target for p in self._flow.pours):
            raise DataError(f"another live query already feeds stream {into}", "choose another name")
        rows = rows_as_events(query.plan, query.alerts.schema, time)
        keeping = [s.schema.retention_us for s in query.events.streams.values()]
        retention = None if None in keeping else timedelta(microseconds=max(k for k in keeping if k is not None))
        keys = [c.name for c in query.factor.plan.partition_by if c.name in rows.columns]
        self._declare(into, rows, keys, retention)
        state = self._flow.streams[target]
        if state.ended:
            raise DataError(f"stream {into} has ended", "choose another name")
        state.live.driven = True
        query.held = held_rows(query.plan, rows, into)
        return Pour(query.alerts, reads, target, rows.lag_us, lambda: query.reached_us, query.held)

    # ---- replace, shed, stop

    def replace(
        self, alerts: Alerts | str, text: str, tables: Mapping[str, Any], evidence: bool, fresh: bool,
        sharing: str | None = None,
    ) -> tuple[LiveQuery, LiveQuery, bool]:  # fmt: skip
        """Starts the new version of a query, given by its alerts or its name. Returns the old one, the new one, and
        whether the new one has the state of a run since the old one began. Call `retire` next. See Database.replace."""
        self._opened.check()
        if isinstance(alerts, str):
            if alerts not in self._flow.named:
                raise DataError(f"no query has the name {alerts}", nearest(alerts, list(self._flow.named)))
            alerts = self._flow.named[alerts].alerts
        old = self._flow.running(alerts)
        if old is None:
            raise DataError("this query is not running", "start the new version with db.watch")
        if self._flow.target(alerts) is not None:
            raise DataError("this query feeds a stream", "close it, and start the new version with db.watch")
        strategy = strategy_of("auto") if old.driver is None else old.driver.strategy
        new = self.ask(text, strategy, tables, evidence, sharing=sharing or old.sharing)
        was, now = (sorted(query.events.streams) for query in (old, new))
        if was != now:
            message = f"the new version reads {', '.join(now)}, the old one {', '.join(was)}"
            raise fault("HQ400", message, text, "close the old query, and watch the new one")
        if old.events.shedding is not None:
            check_shed(new.plan, None)
        try:
            with self._flow.within_budget():
                whole = new.events.succeed(old.events, fresh)
        except BaseException:
            self.withdraw(self._flow.queries)
            raise
        self._has_begun(new)
        if old.asked is not None:
            new.asked = replace(
                old.asked, text=text, evidence=evidence, sharing=new.sharing, patterns=new.alerts.patterns
            )
            self._flow.named[old.asked.name] = new
        return old, new, whole

    def retire(self, old: LiveQuery) -> None:
        """Stops the input of a replaced query. Its matches that wait for history are still emitted."""
        old.events.leave()
        guarded(old, LiveQuery.settle)
        self._flow.drop_over()

    def shed(self, alerts: Alerts, shed: Shed | None) -> None:
        """Changes the load shedding of a running query; see Database.shed."""
        query = self._flow.running(alerts)
        shedding = None if query is None else query.events.shedding
        if query is None or shed == (None if shedding is None else shedding.shed):
            return
        if shed is not None:
            check_shed(alerts.plan, self._flow.target(alerts))
        with self._flow.within_budget():
            query.events.allow(shed)

    def stop(self, query: LiveQuery) -> None:
        """Ends one live query."""
        self._flow.give_held(query)
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
        """Ends the queries that are not in `before`, which failed while starting, and what only they read."""
        for query in [q for q in self._flow.queries if q not in before]:
            self.stop(query)
        for stream in self._flow.streams.values():
            if stream.feed is not None:
                stream.feed.keep_only([q.events.member for q in self._flow.queries if q.events.member is not None])
                if not len(stream.feed):
                    stream.feed = None
        for merged in self._flow.merged:
            merged.feed.keep_only([q.events.member for q in self._flow.queries if q.events.member is not None])
        self._flow.merged[:] = [merged for merged in self._flow.merged if len(merged.feed)]

    # ---- history reads

    def _answered(self, query: LiveQuery) -> None:
        """Callback on request completion: schedules collection of the answer unless a push collects it first."""
        if not self._opened.closed:
            pools().takers.submit(self._take_answers, query)

    def _take_answers(self, query: LiveQuery) -> None:
        with self._opened.lock, Deferred():
            if not self._opened.closed and query in self._flow.queries:
                guarded(query, LiveQuery.settle)

    def catch_up(self, query: LiveQuery, seconds: float | None = None) -> None:
        """Waits until a query has got all pushed events and no history is being read for it, at most `seconds`."""
        until_s = None if seconds is None else time.monotonic() + seconds
        with self._opened.lock, Deferred():
            self._flow.settle(until_s)
        while query.asking is not None and (running := query.asking.running) is not None:
            wait([running], None if until_s is None else max(0.0, until_s - time.monotonic()))
            if not running.done():
                break
            self._take_answers(query)
            if query.asking.running is running:
                break  # the database is closed, or the query has ended


def mode_of(sharing: str) -> SharingMode | None:
    """Returns how trends are counted together; None: each query on its own."""
    return None if sharing == SharingMode.NONE.value else SharingMode(sharing)


def check_going(plan: QueryPlan, streams: Mapping[str, Any]) -> None:
    """Raises QueryError if all streams that a live query reads have ended."""
    over = [s.schema.name for s in streams.values() if s.ended]
    if len(over) == len(streams):
        raise fault("HQ400", f"stream {over[0]} has ended", plan.text, "use db.sql or db.backtest")


def why_late(query: LiveQuery) -> list[str]:
    """Returns warnings about matches that may be delayed and partial matches that may never end."""
    found = [waits(f.plan, f.alias if query.asked is None else query.name) for f in query.plan.factors]
    return list(dict.fromkeys(message for messages in found for message in messages))
