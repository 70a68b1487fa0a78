"""The live queries of a service: started, replaced, ended, kept for a while after their removal; and their rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from hybrid.service.app import Query
from hybrid.service.context import Context
from hybrid.service.declare import late_rows, named_rows
from hybrid.service.outlets import Outlets
from hybrid.service.trouble import clock, said
from hybrid.watch.alerts import Alerts
from hybrid.watch.chain import plan_streams
from query.errors import DataError, QueryError, own_text

#: Seconds for which a query removed from the app file is kept.
REMOVED_S = 600.0
#: Note of a checkpoint: the queries removed from the app file, with the times until which they are kept.
REMOVED = "removed"

_LEFT_OUT = (
    "it is excluded, and its matches in progress are lost; others continue. Change its text or restart to start it anew"
)


@dataclass(slots=True)
class Running:
    """A running query. before: alerts of replaced versions, which may still have rows. left_out: it was interrupted,
    and checkpoints exclude it."""

    query: Query
    alerts: Alerts
    before: list[Alerts] = field(default_factory=list)
    rows: int = 0
    failure: str | None = None
    left_out: bool = False


class ServiceQueries:
    """The queries of a service. running: by name; removed: those that are no longer in the app file, with the time
    until which they are kept; delayed: those that cannot start now, with the streams they read. Used from the thread of
    the loop."""

    def __init__(self, context: Context, outlets: Outlets) -> None:
        self.running: dict[str, Running] = {}
        self.removed: dict[str, tuple[Running, float]] = {}
        self.delayed: dict[str, tuple[str, ...]] = {}
        #: Started queries that are in no checkpoint yet: after a crash they would start anew and miss events.
        self.unkept: dict[str, tuple[str, ...]] = {}
        self._context, self._outlets = context, outlets
        self._mended: set[str] = set()

    def clear(self) -> None:
        """Forgets the queries of a database that was closed."""
        for kept in (self.running, self.removed, self.delayed, self.unkept):
            kept.clear()

    def start_all(self) -> None:
        """Starts the queries of the app file, or resumes them, with one checkpoint."""
        context = self._context
        queries = context.app.queries
        with context.trouble.warned("queries"), context.db.one_checkpoint():
            for i, (name, query) in enumerate(queries.items(), 1):
                context.doing = f"starting query {name}, {i:,} of {len(queries):,}"
                self.watch(name, query)
            context.doing = "keeping the queries"
        if not context.db.names_kept:
            self.unkept = {name: running.query.reads for name, running in self.running.items()}

    def start_rest(self) -> None:
        """Starts queries that could not start before, for example because of a full disk."""
        for name, query in self._context.app.queries.items():
            if name not in self.running:
                self.watch(name, query)

    def watch(self, name: str, query: Query, anew: bool = False) -> None:
        """Starts a query, or resumes it from the last checkpoint. The only place that does so.

        A query that had ended or failed starts anew with new events: it does not read the archive again. anew: starts
        without backfill."""
        db, trouble = self._context.db, self._context.trouble
        alerts = db.watching().get(name)
        if alerts is not None:
            running = Running(query, alerts)
            if not (alerts.done or alerts.failed):
                self.running[name] = running
                changed = own_text(alerts.plan.text) != query.text or alerts.patterns != query.patterns
                if changed or _shared_otherwise(alerts, query):
                    self._replace(name, running, query)
                else:
                    self._shed(name, running)
                return
            self.running[name] = running
            self.close(name)
            anew = True
        if not self._outlets.rows_kept():
            self.delayed[name] = query.reads  # retried by `start_rest`
            return
        self.delayed.pop(name, None)
        named = name if self._context.app.database.path is not None else None  # in memory there are no checkpoints
        start = None if anew else query.start_us
        try:
            with trouble.warned(f"query {name}"):
                alerts = db.watch(
                    query.text, evidence=True, name=named, shed=query.shed, start=start, sharing=query.sharing
                )
                self.running[name] = Running(query, alerts)
                trouble.well(f"query {name}")
                if db.names_kept:
                    self.unkept.clear()
                else:
                    self.unkept[name] = query.reads
        except (QueryError, DataError) as error:
            trouble.fault(f"query {name}", said(error))

    def update(self, name: str, query: Query) -> None:
        """Applies the app file to a query: starts it, replaces it if its text changed, or updates its settings."""
        running = self.running.get(name)
        if running is None:
            self.watch(name, query)
        elif running.failure is None and (running.query.text, running.query.sharing, running.query.patterns) == (
            query.text, query.sharing, query.patterns
        ):
            running.query = query
            self._shed(name, running)
        else:
            self._replace(name, running, query)

    def _replace(self, name: str, running: Running, query: Query) -> None:
        """Replaces a query by a new version. Keeps the old one if the new one is rejected."""
        trouble = self._context.trouble
        if running.failure is not None:
            self.close(name)
            self.watch(name, query, anew=True)
            return
        self.fetch()
        self._outlets.rows_kept()
        try:
            with trouble.warned(f"query {name}"):
                alerts = self._context.db.replace(running.alerts, query.text, evidence=True, sharing=query.sharing)
        except (QueryError, DataError) as error:
            trouble.fault(f"query {name}", f"not replaced, the old version keeps running: {said(error)}")
            running.query = replace(running.query, sinks=query.sinks)  # its old sinks may be removed
            return
        trouble.well(f"query {name}")
        running.before.append(running.alerts)
        running.alerts, running.query = alerts, query
        self._shed(name, running)

    def _shed(self, name: str, running: Running) -> None:
        """Applies the load shedding of the app file to a running query."""
        try:
            with self._context.trouble.warned(f"query {name}"):
                self._context.db.shed(running.alerts, running.query.shed)
        except (QueryError, DataError) as error:
            self._context.trouble.fault(f"query {name}", f"its `shed` is not applied: {said(error)}")

    def close(self, name: str) -> None:
        """Ends a query, after its rows are passed to its sinks."""
        running = self.running[name]
        self.fetch()
        self._outlets.rows_kept()
        running.alerts.close()
        self.fetch()
        del self.running[name]
        self.unkept.pop(name, None)
        self._context.trouble.well(f"query {name}")

    # ---- rows out

    def fetch(self, wait: bool | float = True) -> bool:
        """Passes rows of queries, and late events, to their sinks. wait: for history that is being read, or seconds of
        that. Returns True if there were rows."""
        busy, trouble = False, self._context.trouble
        for name, stream in self._context.app.streams.items():
            if stream.late is not None and (events := self._context.db.late(name).take()).num_rows:
                busy = True
                self._outlets.by_name[stream.late].put(late_name(name), late_rows(events, name))
        for name, running in self.running.items():
            if running.failure is not None:
                continue
            for alerts in (*running.before, running.alerts):
                try:
                    rows = alerts.take(wait)
                except MemoryError:
                    trouble.fault(f"memory of {name}", "out of memory for its rows: they are fetched again")
                    break
                except Exception as error:  # noqa: BLE001  (a fault of this query only; the others continue)
                    running.failure = said(error)
                    trouble.fault(f"query {name}", running.failure)
                    break
                trouble.well(f"memory of {name}")
                busy |= self._hand_out(name, running, rows)
            running.before = [a for a in running.before if not (a.done or a.failed)]
        return busy

    def _hand_out(self, name: str, running: Running, rows: pa.Table) -> bool:
        if not rows.num_rows:
            return False
        running.rows += rows.num_rows
        rows = named_rows(rows, name)
        for sink in running.query.sinks:
            self._outlets.by_name[sink].put(name, rows)
        return True

    def make_room(self) -> None:
        """Passes rows to sinks if a query has as many unread ones as it may have."""
        if any(a.full for r in self.running.values() for a in (r.alerts, *r.before)):
            self.fetch(wait=False)

    # ---- removed from the app file

    def go_on_removed(self) -> None:
        """Keeps running, for a while, the queries of the checkpoint that are not in the file."""
        context = self._context
        told = json.loads(context.db.notes.get(REMOVED, "{}"))
        for name, alerts in context.db.watching().items():
            if name in context.app.queries:
                continue
            until = float(told.get(name, context.clock.now() + REMOVED_S))
            query = Query(own_text(alerts.plan.text), (), plan_streams(alerts.plan), patterns=alerts.patterns)
            self.removed[name] = Running(query, alerts), until
            if name not in told:
                context.say(f"query {name}: it is no longer in the file; {_kept_until(until)}")
        self._note_removed()

    def remove(self, name: str) -> None:
        """Keeps a query that was removed from the file running for a while, as it may return."""
        self.fetch()
        running = self.running.pop(name)
        self._context.trouble.well(f"query {name}")
        until = self._context.clock.now() + REMOVED_S
        self.removed[name] = running, until
        self._note_removed()
        self._context.say(f"query {name}: it is no longer in the file; {_kept_until(until)}")

    def take_back(self) -> None:
        """Makes the removed queries that are in the file again ordinary ones."""
        for name in [n for n in self.removed if n in self._context.app.queries]:
            self.running[name], _ = self.removed.pop(name)
            self._context.say(f"query {name}: it is in the file again, and continues where it was")
        self._note_removed()

    def end_removed(self, at_once: bool = False) -> None:
        """Ends removed queries whose time is over, that have too many pending rows, or that have failed."""
        context = self._context
        for name, (running, until) in list(self.removed.items()):
            many = sum(a.unread_count for a in (running.alerts, *running.before)) > context.app.limits.unread_rows
            failed = running.alerts.failed or running.alerts.done
            if not (at_once or many or failed or context.clock.now() >= until):
                continue
            why = "it has too many pending rows" if many else "it has failed" if failed else "its time is over"
            if not self._outlets.rows_kept():
                return
            context.say(f"query {name}: it was removed from the file, and ends{'' if at_once else f': {why}'}")
            del self.removed[name]
            self._note_removed()
            running.alerts.close()

    def _note_removed(self) -> None:
        """Notes the removed queries for the next checkpoint of the database."""
        removed = json.dumps({name: until for name, (_, until) in self.removed.items()})
        self._context.db.notes = self._context.db.notes | {REMOVED: removed}

    # ---- interrupted

    def mend(self, go_back: Callable[[], None]) -> None:
        """Recovers queries that were interrupted in the middle of a batch, for example out of memory. Their state is
        invalid and prevents checkpoints, so the service goes back to the last checkpoint, as after a crash, and matches
        the events since then again. A query interrupted again before the next checkpoint is excluded."""
        context, trouble = self._context, self._context.trouble
        broken = [name for name, r in self.running.items() if r.alerts.interrupted and not r.left_out]
        for name in [n for n in broken if n in self._mended or context.app.database.path is None]:
            broken.remove(name)
            running = self.running[name]
            self.fetch(wait=False)
            running.failure, running.left_out = f"{running.failure or 'it was interrupted'}: {_LEFT_OUT}", True
            trouble.fault(f"query {name}", running.failure)
            self._outlets.keep_rows()
            running.alerts.close()
        if broken:
            self._mended.update(broken)
            for name in broken:
                trouble.forget(f"query {name}")
            context.say(f"query {', '.join(broken)}: interrupted in the middle of a batch; all queries go back to the "
                        "last checkpoint, and the events since then are matched again")  # fmt: skip
            go_back()

    def kept(self, names: frozenset[str]) -> None:
        """Called when a checkpoint is durable. names: queries that are in it for the first time."""
        for name in names:
            self.unkept.pop(name, None)
        self._mended.clear()


def _kept_until(until: float) -> str:
    return f"it keeps running until {clock(until)}, in case it returns; SIGHUP ends it at once"


def late_name(stream: str) -> str:
    """Returns the name of a stream's late events among the queries; no query can have it."""
    return f"late events of {stream}"


def _shared_otherwise(alerts: Alerts, query: Query) -> bool:
    """True if the trends of a running query are to be counted in another mode."""
    return alerts.stats().get("sharing", query.sharing) != query.sharing
