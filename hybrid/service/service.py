"""`hybrid run`: the life of a service: it starts, turns its loop, goes back after an interruption, and stops.

The thread of `run` pushes events, fetches rows and passes them to sinks. Each source and each sink has its own thread
(hybrid.service.source_reader, hybrid.service.sink_writer). Threads of the database write files and checkpoints, and a
heartbeat thread writes the status (hybrid.service.pulse). So none of them blocks the others.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import FrameType
from typing import Any

from archive.history import KEEPER
from archive.place import make_private
from archive.writer import RENEWER
from hybrid.database.database import Database
from hybrid.join.daemons import Daemons
from hybrid.rows.words import counted
from hybrid.service.app import App
from hybrid.service.app_tables import SinkTable, SourceTable
from hybrid.service.blocked import blocked_streams
from hybrid.service.checkpoints import ServiceCheckpoints, seconds_left
from hybrid.service.client_log import ClientLog
from hybrid.service.connectors import TOPICS, make_sink, make_source
from hybrid.service.context import Clock, Context
from hybrid.service.declare import declare_all, declare_patterns
from hybrid.service.intake import Intake
from hybrid.service.outlets import Outlets
from hybrid.service.pulse import Pulse
from hybrid.service.quarantine import Quarantine
from hybrid.service.queries import ServiceQueries
from hybrid.service.reload import Reload
from hybrid.service.repeated import Repeated
from hybrid.service.report import Report
from hybrid.service.sink_writer import Outlet
from hybrid.service.source_reader import Reader
from hybrid.service.sources import Sources
from hybrid.service.trouble import Trouble
from live.sinks.base import Sink
from live.sources.base import Source
from query.errors import DataError
from query.schema import Schema

#: Seconds for the last rows, and for closing, at the end.
DRAIN_S = 5.0
#: Longest duration of a stop in seconds, whatever a store does; and more seconds for the process to exit.
STOP_S, STOP_MORE_S = 20.0, 5.0
#: Seconds between two attempts to open or start the rest.
OPEN_EVERY_S = 5.0

_UNKEPT = (
    "events that it has not taken are in the log, or are read again at the next start; without a log, those of a "
    "source that cannot resume are lost"
)


class Service:
    """Runs an app file. say: writes a log line. threads: False makes `step` do all work itself, in order.

    Call `start`, then `step` until `done`, then `finish`; or `run`, which does all three. `start` raises DataError if
    the database cannot be opened. Later faults are logged, shown in the status and retried; the rest keeps running.
    """

    def __init__(
        self, app: App, say: Callable[[str], None], clock: Clock | None = None, threads: bool = True,
        sources: Callable[[SourceTable, Schema, App], Source] = make_source,
        sinks: Callable[[SinkTable, App], Sink] = make_sink,
    ) -> None:  # fmt: skip
        self.context = context = Context(app, say, clock or Clock(), threads, Trouble(say), Repeated(say))
        self.quarantine = Quarantine(context)
        self.sources = Sources(context, sources)
        self.outlets = Outlets(context, self.quarantine, sinks)
        self.queries = ServiceQueries(context, self.outlets)
        self.intake = Intake(context, self.sources, self.queries, self.outlets, self.quarantine)
        self.checkpoints = ServiceCheckpoints(context, self.sources, self.queries, self.outlets)
        self.reloads = Reload(context, self.sources, self.intake, self.queries, self.outlets)
        self.report = Report(context, self.sources, self.intake, self.queries, self.outlets, self.quarantine)
        self.client_log = ClientLog(context.repeated, context.clock.ticks)
        self.metrics: Any = None
        self._stopping = False
        self._opened_s = 0.0
        self._pulse: Pulse | None = None
        #: True if it ended without waiting for a store that does not answer.
        self.abandoned = False

    @property
    def app(self) -> App:
        return self.context.app

    @property
    def db(self) -> Database:
        return self.context.db

    def start(self) -> None:
        """Opens the database, declares the streams, and starts sinks, queries and sources. Raises DataError if that is
        impossible."""
        context = self.context
        make_private(context.app.state)
        self.outlets.lock()
        try:
            self.report.start()
            if context.threads:
                self._pulse = self._pulse or self._heartbeat()
                self._pulse.start()
            if context.app.metrics is not None:
                from hybrid.service.metrics import serve

                self.metrics = serve(context.app.metrics.host, context.app.metrics.port, self.status)
            if context.app.database.path is None:  # the facts about topics are dropped with the events
                for file in context.app.state.glob(f"{TOPICS}*.json"):
                    file.unlink()
            self._begin()
        except OSError as error:
            self.outlets.unlock()
            hint = "free disk space, check the disk and permissions, and start it again: nothing is lost"
            raise DataError(f"the service cannot start; {context.doing or 'its state'}: {error}", hint) from error
        except BaseException:
            self.outlets.unlock()
            raise
        sources, queries, sinks = self.sources.readers, self.queries.running, self.outlets.by_name
        context.say(f"running {context.app.path.name}: {counted(len(sources), 'source')}, "
                    f"{counted(len(queries), 'query')}, {counted(len(sinks), 'sink')}")  # fmt: skip

    def _begin(self) -> None:
        """Starts everything from the last checkpoint."""
        context, app = self.context, self.context.app
        context.doing = "opening the database"
        given = app.database
        with context.trouble.warned("database"):
            context.db = Database(
                None if given.path is None else app.place(given.path), given.memory_limit, dict(given.options) or None,
                log="default" if given.log is None else None if given.log == "none" else given.log, ticking=False,
                spark=given.spark, spark_events=given.spark_events, access=app.access, beside=context.threads,
                columns={name: stream.columns for name, stream in app.streams.items()},
            )  # fmt: skip
        try:
            self.outlets.read()
        except DataError:
            self.outlets.unlock()
            context.db.close()
            raise
        context.doing = "declaring streams"
        declare_all(context)
        declare_patterns(context)
        for part in (self.report, self.checkpoints, self.intake, self.reloads):
            part.begin()
        self._opened_s = context.clock.ticks()
        for name, table in app.sinks.items():
            self.outlets.open(name, table)
        self.queries.go_on_removed()
        self.queries.start_all()
        context.doing = "opening sources"
        for name, source in app.sources.items():
            self.sources.open(name, source)
        self.outlets.tell_kept()
        self.report.state = "running"

    def _go_back(self) -> None:
        """Restarts from the last checkpoint, as a new process would after a crash."""
        context = self.context
        context.doing = "going back to the last checkpoint"
        ends: list[Reader | Outlet] = [*self.sources.readers.values(), *self.outlets.all()]
        for one in ends:
            one.close(2.0)
        try:
            context.db.close(False)  # takes no checkpoint with an interrupted query
        except (DataError, OSError) as error:
            context.say(f"closing the database failed: {error}")
        self.outlets.unlock()
        self.outlets.lock()
        for part in (self.queries, self.sources, self.intake, self.outlets):
            part.clear()
        self._begin()

    def run(self) -> int:
        """Runs until SIGTERM or SIGINT, or until every source has ended. Returns the exit code. Call it in the main
        thread."""
        clock, wake = self.context.clock, self.context.wake
        handlers = {s: signal.signal(s, self._signalled) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        self.client_log.start()
        self._pulse = self._heartbeat() if self.context.threads else None
        try:
            with nullcontext() if self._pulse is None else self._pulse.signals():
                self.start()
                while not self.done:
                    if not self.step():
                        clock.wait(wake, 0.1)
                        wake.clear()
                return self.finish()
        finally:
            self.client_log.stop()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _heartbeat(self) -> Pulse:
        return Pulse(self.report.beat, STOP_S + STOP_MORE_S, self._end_late)

    def _end_late(self) -> None:
        self.context.say(f"ends while still busy with {self.context.doing}: {_UNKEPT}")

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.reloads.asked = True
        else:
            self.stop()
            for again in (signal.SIGTERM, signal.SIGINT):
                signal.signal(again, signal.SIG_DFL)  # a second one ends the process at once
        self.context.wake.set()

    def stop(self) -> None:
        """Requests the end: no more is read, and what was read is pushed and delivered."""
        self._stopping = True
        self.context.wake.set()

    @property
    def done(self) -> bool:
        """True if a stop was requested, or all sources have ended and everything is delivered."""
        if self._stopping:
            return True
        return self.sources.over and not any(o.waiting for o in self.outlets.all()) and not self.intake.to_end()

    def step(self) -> bool:
        """Runs one turn of the loop: pushes events, passes rows to sinks, does what is due. Returns True if there was
        anything to push or to pass."""
        context = self.context
        self.report.turn()
        context.doing = "events"
        self.reloads.turn()
        self.queries.mend(self._go_back)
        if not context.threads:
            for reader in self.sources.readers.values():
                reader.turn()
        blocked = blocked_streams(context, self.sources, self.queries, self.outlets)
        busy = self.intake.push(blocked)
        self.intake.tick(blocked)
        busy |= self.intake.end_streams()
        busy |= self.queries.fetch(wait=False)
        if not context.threads:
            for outlet in self.outlets.all():
                busy |= outlet.turn()
        self.outlets.let_go()
        self.checkpoints.turn()
        self.sources.retry()
        self.queries.end_removed()
        now = context.clock.ticks()
        if now - self._opened_s >= OPEN_EVERY_S:
            self._open_rest()
        if self.report.is_due(now):
            self.report.write(self._pulse is None)
            context.repeated.tell(now)
        return busy

    def _open_rest(self) -> None:
        """Opens sources and starts queries that could not be before, for example because of a full disk."""
        self._opened_s = self.context.clock.ticks()
        if self.queries.unkept:
            self.checkpoints.hasten()
        self.queries.start_rest()
        self.intake.open_rest()

    def reload(self, asked: bool = True) -> None:
        """Applies the changes of the app file now. asked: as if requested by SIGHUP: removed queries end at once."""
        self.reloads.reload(asked)

    def checkpoint(self) -> bool:
        """Takes a checkpoint now and waits for it. Returns True if it was written."""
        return self.checkpoints.take(self.context.clock.ticks() + STOP_S)

    def status(self) -> dict[str, Any]:
        """Returns the content of the status file; see hybrid.service.status."""
        return self.report.status()

    def finish(self) -> int:
        """Pushes and delivers what was read, takes a checkpoint, and closes everything. Returns the exit code. Takes
        STOP_S at most after a requested stop."""
        context, outlets = self.context, self.outlets
        ticks = context.clock.ticks
        over = not self._stopping
        self.report.state, context.doing = "stopping", "the last events"
        context.say("stopping" if not over else "every source has ended")
        until = ticks() + DRAIN_S
        end = float("inf") if over else ticks() + STOP_S
        for reader in self.sources.readers.values():
            reader.pause(until - ticks())
        # After a requested stop, matches that wait for history stay in the checkpoint.
        wait = over or context.app.database.path is None
        while self.intake.push({}) and ticks() < until:
            self.queries.fetch(wait is True or max(0.0, until - ticks()))
        self.queries.fetch(wait is True or max(0.0, until - ticks()))
        while any(o.waiting and not o.failures for o in outlets.all()) and ticks() < until:
            if not context.threads:
                for outlet in outlets.all():
                    outlet.turn()
            else:
                context.clock.wait(context.wake, 0.02)
        context.doing = "the last checkpoint"
        checkpointed = self.checkpoints.take_last(end)
        self.report.write(self._pulse is None)
        context.repeated.tell(ticks(), all=True)
        until = min(end, ticks() + DRAIN_S)
        ends: list[Reader | Outlet] = [*self.sources.readers.values(), *outlets.all()]
        for one in ends if context.threads else ():
            one.close(0.0)  # requests all to close before waiting for one of them
        for one in ends:
            one.close(max(0.0, until - ticks()))
        undelivered = sum(p.rows.num_rows for o in outlets.all() for p in o.undelivered())
        if undelivered:
            context.say(f"{undelivered:,} rows are undelivered; they are kept in {self.app.state} for the next start")
        failed = [r.name for r in self.sources.readers.values() if r.failure is not None]
        failed += [name for name, running in self.queries.running.items() if running.failure is not None]
        context.doing = "closing the database"
        try:
            self._close_database(wait, checkpointed, end)
        except (DataError, OSError, TimeoutError) as error:
            context.say(f"closing the database failed: {error}")
            failed.append("database")
            over = True
        if self.metrics is not None:
            self.metrics.close()
        if self._pulse is not None:
            self._pulse.stop()
        self.report.state = "stopped"
        self.report.store()
        outlets.unlock()
        context.say("stopped")
        return 1 if over and failed else 0

    def _close_database(self, wait: bool, checkpointed: bool, end: float) -> None:
        """Closes the database. Raises TimeoutError if that takes longer than `end`; the database is then left as after
        a crash."""
        db = self.context.db
        if not self.context.threads:
            db.close(wait, not checkpointed)
            return
        closer = Daemons(1, "hybrid-close")
        closing = closer.submit(db.close, wait, not checkpointed)
        closer.shutdown(wait=False)
        try:
            closing.result(seconds_left(end - self.context.clock.ticks()))
        except TimeoutError:
            if closing.done():
                raise
            self.abandoned = True
            db.abandon()
            raise TimeoutError(f"the disk or the store does not answer: {_UNKEPT}") from None
        # A thread that a store keeps waiting would keep the process too.
        self.abandoned = any(thread.name in (KEEPER, RENEWER) for thread in threading.enumerate())
