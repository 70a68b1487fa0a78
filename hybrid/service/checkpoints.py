"""The checkpoints of a service: events, queries and deliveries of one moment, after which sources may acknowledge."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures import wait as wait_for

from hybrid.service.context import Context
from hybrid.service.outlets import DELIVERY, Outlets
from hybrid.service.queries import ServiceQueries
from hybrid.service.sources import Sources
from hybrid.service.trouble import is_slow, pending_since, said
from query.errors import DataError

#: Seconds for sinks to make rows durable at a checkpoint.
SETTLE_S = 5.0


class ServiceCheckpoints:
    """Takes the checkpoints of a service. Used from the thread of the loop."""

    def __init__(self, context: Context, sources: Sources, queries: ServiceQueries, outlets: Outlets) -> None:
        self._context = context
        self._sources, self._queries, self._outlets = sources, queries, outlets
        self._begun_s = 0.0
        self._settle_by: float | None = None  # time until which a due checkpoint waits for sinks
        self._writing: Future[int] | None = None
        self._writing_since = 0.0
        #: Of the checkpoint being written: the number of its delivery file, the positions of its streams, and the
        #: queries that are in no earlier one.
        self._named: tuple[str, dict[str, dict[str, int]]] = "", {}
        self._keeping: frozenset[str] = frozenset()

    def begin(self) -> None:
        """Begins with a database that was opened now."""
        self._begun_s = self._context.clock.ticks()
        self._settle_by = self._writing = None

    def hasten(self) -> None:
        """Makes the next checkpoint due at once."""
        self._begun_s = -1e9

    def turn(self) -> None:
        """Advances the periodic checkpoint. In steps between which events are taken: sinks make rows durable, the state
        is copied, a thread of the database writes it."""
        context = self._context
        now = context.clock.ticks()
        if self._writing is not None:
            if not self._writing.done():
                if is_slow(context.clock.now() - self._writing_since) and "checkpoint" not in context.trouble:
                    context.trouble.fault("checkpoint", pending_since(self._writing_since))
                return
            self._end()
        every_s = context.app.database.checkpoint.total_seconds()
        if (self._outlets.emptied or now - self._begun_s >= every_s) and self._settled(now):
            self._begin()
            if self._writing is not None and self._writing.done():
                self._end()

    def take(self, end: float) -> bool:
        """Takes a checkpoint now and waits for it, until `end` at most. Returns True if it was written."""
        self._begin()
        return self._writing is not None and self._wait_written(end)

    def take_last(self, end: float) -> bool:
        """Takes the last checkpoint, waiting until `end` at most. Returns True if it was written."""
        if self._writing is not None:  # an earlier checkpoint is being written
            self._wait_written(end)
        if self._writing is not None:
            return False
        ticks = self._context.clock.ticks
        for outlet in self._outlets.all():
            outlet.ask()
        until = min(end, ticks() + SETTLE_S)
        for outlet in self._outlets.all():
            outlet.settle(max(0.0, until - ticks()))
        return self.take(end)

    def _settled(self, now: float) -> bool:
        """Asks the sinks to make their rows durable. Returns True once they have, or SETTLE_S have passed; until then
        the loop goes on."""
        if self._settle_by is None:
            self._settle_by = now + SETTLE_S
            for outlet in self._outlets.all():
                outlet.ask()
        if now < self._settle_by and not all(outlet.settled for outlet in self._outlets.all()):
            return False
        self._settle_by = None
        return True

    def _begin(self) -> None:
        """Copies the state, and starts writing it."""
        context = self._context
        context.doing, self._begun_s, self._outlets.emptied = "a checkpoint", context.clock.ticks(), False
        future: Future[int] = Future()
        try:
            self._outlets.keep_rows()
            context.trouble.well("outbox")
            archived = {name: context.db.reached(name).positions for name in self._sources.streams()}
            passed = self._sources.passed
            positions = {
                name: passed[name].begin_checkpoint(at) if name in passed else at for name, at in archived.items()
            }
            if context.app.database.path is None:
                future.set_result(0)
            elif context.threads:
                future = context.db.begin_checkpoint()
            else:
                future.set_result(context.db.checkpoint())
        except (DataError, OSError, MemoryError) as error:
            context.trouble.fault("checkpoint", said(error))
            return
        self._writing, self._writing_since = future, context.clock.now()
        self._named = context.db.notes[DELIVERY], positions
        self._keeping = frozenset(self._queries.unkept)

    def _end(self) -> bool:
        """Finishes a checkpoint whose write has ended: reports a failure, or forgets older deliveries and lets sources
        acknowledge. Returns True if it was written."""
        assert self._writing is not None
        trouble = self._context.trouble
        failure, self._writing = self._writing.exception(), None
        if failure is not None:
            trouble.fault("checkpoint", str(failure) if isinstance(failure, (DataError, OSError)) else repr(failure))
            return False
        delivered, positions = self._named
        self._queries.kept(self._keeping)
        passed = self._sources.passed
        try:
            self._outlets.delivery.forget(delivered)
            for name in positions.keys() & passed.keys():
                passed[name].end_checkpoint()
        except OSError as error:
            trouble.fault("checkpoint", str(error))
        else:
            trouble.well("checkpoint")
        for reader in self._sources.readers.values():
            if reader.stream.lower() in positions:
                reader.kept(positions[reader.stream.lower()])
        return True

    def _wait_written(self, end: float) -> bool:
        """Waits for the checkpoint, until `end` at most. Returns True if it was written."""
        assert self._writing is not None
        wait_for([self._writing], seconds_left(end - self._context.clock.ticks()))
        return self._writing.done() and self._end()


def seconds_left(left: float) -> float | None:
    """Returns seconds as a timeout: at least 0, None for no limit."""
    return None if left == float("inf") else max(0.0, left)
