"""The sinks of a service: opened, changed and closed; and their pending rows, stored in the service's directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from hybrid.service.app import App
from hybrid.service.app_tables import SinkTable
from hybrid.service.connectors import target_of
from hybrid.service.context import Context
from hybrid.service.delivery import Delivery
from hybrid.service.quarantine import Quarantine
from hybrid.service.sink_writer import Outlet
from live.sinks.base import Sink

#: Seconds for which it is reported that the directory was removed and created again.
EMPTIED_S = 600.0
#: Note of a checkpoint: the number of the delivery file.
DELIVERY = "delivery"

_EMPTIED = (
    "{} or its content was removed, and is created again: the next checkpoint stores pending rows and the facts about "
    "files again; the facts about topics, and the dead letters of a store, are lost"
)


class Outlets:
    """The sinks of a service. by_name: those of the app file; leaving: removed or changed ones that still have rows.
    emptied: the directory was created again, and no checkpoint has begun since. Used from the thread of the loop."""

    def __init__(
        self, context: Context, quarantine: Quarantine, make_sink: Callable[[SinkTable, App], Sink]
    ) -> None:
        self.make_sink = make_sink
        self.by_name: dict[str, Outlet] = {}
        self.leaving: list[Outlet] = []
        self.emptied = False
        self._context, self._quarantine = context, quarantine
        self._delivery: Delivery | None = None
        self._emptied_s: float | None = None  # time at which its directory was created again

    # ---- the directory

    @property
    def delivery(self) -> Delivery:
        """The delivery file of the locked directory."""
        assert self._delivery is not None
        return self._delivery

    def lock(self) -> None:
        """Locks the directory. Raises DataError if another service runs with it, or if it cannot be used."""
        self._delivery = Delivery(self._context.app.state)

    @property
    def locked(self) -> bool:
        return self._delivery is not None and not self._delivery.closed

    def unlock(self) -> None:
        self.delivery.close()

    def read(self) -> None:
        """Reads the cursors and pending rows of the checkpoint that the database resumed from. Raises DataError if the
        file is damaged."""
        self.delivery.read(self._context.db.notes.get(DELIVERY))

    # ---- sinks

    def open(self, name: str, table: SinkTable) -> None:
        """Creates the outlet of a sink. It takes rows from now on, whether or not the sink can be opened yet."""
        context = self._context
        outlet = Outlet(
            name, partial(self.make_sink, table, context.app), self.delivery.cursor(name, target_of(table)),
            self.delivery.backlog.pop(name, ()), context.app.limits.unread_rows, context.clock.ticks,
            context.clock.now, getattr(table, "refusals", None), partial(self._quarantine.row, name),
        )  # fmt: skip
        self.by_name[name] = outlet
        if context.threads:
            outlet.start()

    def all(self) -> list[Outlet]:
        return [*self.by_name.values(), *self.leaving]

    def leave(self, name: str) -> None:
        """Gives a sink no more rows; `let_go` closes it once it has taken those it has."""
        self.leaving.append(self.by_name.pop(name))

    def let_go(self) -> None:
        """Closes the sinks removed from the file, once they have taken their rows. If a changed sink fails, its rows go
        to the new sink of its name."""
        for outlet in list(self.leaving):
            follower = self.by_name.get(outlet.name)
            if outlet.failures and follower is not None:
                follower.take_over(outlet.undelivered())
            elif outlet.waiting:
                continue
            else:
                outlet.ask()
                if outlet.undelivered():
                    continue
            outlet.close(0.0)
            self.leaving.remove(outlet)
            self._context.trouble.well(f"old sink {outlet.name}")

    def clear(self) -> None:
        """Removes all sinks, which are closed."""
        self.by_name.clear()
        self.leaving.clear()

    # ---- pending rows

    def tell_kept(self) -> None:
        """Reports faults of the rows that the last run left for sinks."""
        for name, parcels in self.delivery.backlog.items():
            rows = sum(parcel.rows.num_rows for parcel in parcels)
            self._context.trouble.fault(
                f"sink {name}",
                f"{rows:,} rows for it are pending in {self._context.app.state}; the app file has no such sink",
            )
        if self.delivery.lost is not None:
            self._context.trouble.fault("delivery", self.delivery.lost)

    def keep_rows(self) -> None:
        """Stores the cursors of sinks and their pending rows, and notes the file for the next checkpoint of the
        database. Called before each checkpoint, also before those that the database takes itself when a query starts,
        is replaced or ends: for the database these rows are fetched. After a crash before that checkpoint, the service
        resumes from the earlier one and its file."""
        outlets = [*self.leaving, *self.by_name.values()]
        cursors = {outlet.name: outlet.cursor for outlet in outlets}  # before the rows: later cursors include more
        kept = {name: list(parcels) for name, parcels in self.delivery.backlog.items()}
        for outlet in outlets:
            kept.setdefault(outlet.name, []).extend(outlet.undelivered())
        sinks = self._context.app.sinks
        targets = {name: target_of(sinks[name]) for name in self.by_name if name in sinks}
        self.keep_directory()
        db = self._context.db
        db.notes = db.notes | {DELIVERY: self.delivery.write(cursors, targets, kept)}

    def rows_kept(self) -> bool:
        """Stores pending rows of sinks. Returns False, and reports it, if that fails: a crash before the next
        checkpoint would then lose them."""
        try:
            self.keep_rows()
        except OSError as error:
            self._context.trouble.fault("outbox", f"{self._context.app.state} cannot be written: {error}")
            return False
        self._context.trouble.well("outbox")
        return True

    def keep_directory(self) -> None:
        """Creates the directory of the service again if it was removed, and reports what was lost with it."""
        now, state, trouble = self._context.clock.ticks(), self._context.app.state, self._context.trouble
        try:
            if self.delivery.make_again():
                self._emptied_s = now
                self.emptied = True  # a checkpoint is due at once: it stores the pending rows again
        except OSError as error:
            hint = "create it for the user of the service, or mount its disk; the service then recovers by itself"
            fault = f"{state} was removed and cannot be created: {error.strerror}; {hint}"
            if self.delivery.replaced:
                here = f"stop this service, process {os.getpid()}"
                fault = f"{state} was removed, and another service runs with a new one: {here}"
            trouble.fault("state", fault)
        else:
            recent = self._emptied_s is not None and now - self._emptied_s < EMPTIED_S
            trouble.judge("state", _EMPTIED.format(state) if recent else None)
