"""Collects the status of a service, and writes it; judges streams, queries and sinks by their figures."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hybrid.service import account
from hybrid.service.blocked import blocked_streams
from hybrid.service.context import Context
from hybrid.service.intake import Intake
from hybrid.service.outlets import Outlets
from hybrid.service.quarantine import Quarantine
from hybrid.service.queries import ServiceQueries
from hybrid.service.sources import Sources
from hybrid.service.status import SILENT_S, VERSION, delivers, process_began, touch_status, write_status
from hybrid.service.trouble import clock, is_slow, pending_since

#: Seconds between two writes of the status.
STATUS_EVERY_S = 1.0
#: Seconds for which an event too far ahead of the clock is reported.
AHEAD_S = 60.0
#: Seconds for which a watermark may stall while events arrive before it is reported.
STANDS_S = 10.0


class Report:
    """The status of a service. state: "starting", "running", "stopping" or "stopped"; the loop sets it.

    The loop collects the figures; the heartbeat thread writes them with the present state and faults, or the loop does
    if there is no such thread."""

    def __init__(
        self, context: Context, sources: Sources, intake: Intake, queries: ServiceQueries, outlets: Outlets,
        quarantine: Quarantine,
    ) -> None:  # fmt: skip
        self.state = "starting"
        self._context = context
        self._sources, self._intake, self._queries = sources, intake, queries
        self._outlets, self._quarantine = outlets, quarantine
        self._guard = threading.Lock()
        self._status: dict[str, Any] = {}
        self._rates = account.Rates()
        self._stood: dict[str, tuple[str | None, int, float]] = {}
        self._written_s = -1e9
        self._started = self._turned = context.clock.now()
        self._turned_s = context.clock.ticks()

    def status(self) -> dict[str, Any]:
        """Returns the content of the status file; see hybrid.service.status."""
        return self._status

    def start(self) -> None:
        """Writes the first status, without figures."""
        none: dict[str, Any] = {}
        self._add({
            "version": VERSION, "pid": os.getpid(), "host": socket.gethostname(), "began": process_began(os.getpid()),
            "app": str(self._context.app.path), "started": self._started, "streams": none, "queries": none,
            "sources": none, "sinks": none,
        })  # fmt: skip
        self.store()

    def begin(self) -> None:
        """Begins with a database that was opened now."""
        self._written_s, self._rates = -1e9, account.Rates()

    def turn(self) -> None:
        """Notes that the loop turns."""
        self._turned, self._turned_s = self._context.clock.now(), self._context.clock.ticks()

    def is_due(self, now: float) -> bool:
        """True if the figures have to be collected. now: of the monotonic clock."""
        return now - self._written_s >= STATUS_EVERY_S

    def write(self, store: bool) -> None:
        """Collects the figures. store: also writes them, as there is no heartbeat thread to do it."""
        self._written_s = self._context.clock.ticks()
        self._outlets.keep_directory()
        self._take_account(self._context.clock.now())
        if store:
            self.store()

    def store(self) -> None:
        """Writes the figures last collected, with the present state, faults and loop. Thread safe."""
        context = self._context
        now = context.clock.now()
        status = self._add({
            "state": self.state, "written": now, "trouble": context.trouble.faults(),
            "loop": {"turned": self._turned, "doing": context.doing},
        })  # fmt: skip
        if self._outlets.locked and self._outlets.delivery.replaced:
            return  # the status there is that of another service
        try:
            write_status(context.app.state, status)
        except OSError as error:
            touch_status(context.app.state, now)
            context.trouble.fault("status", str(error))
        else:
            context.trouble.well("status")

    def beat(self) -> None:
        """Called by the heartbeat thread: reports a loop that does not turn, and writes the status."""
        busy = self.state == "running" and is_slow(self._context.clock.ticks() - self._turned_s)
        what = f"busy with {self._context.doing} since {clock(self._turned)}" if busy else None
        self._context.trouble.judge("loop", what)
        self.store()

    def _add(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Adds figures to the status, and returns it. A status is never changed, only replaced."""
        with self._guard:
            self._status = {**self._status, **figures}
            return self._status

    def _take_account(self, now: float) -> None:
        """Collects the figures, and judges by them. now: seconds since 1970."""
        context, outlets = self._context, self._outlets
        for what, given in (("sink", outlets.by_name.values()), ("old sink", outlets.leaving)):
            for outlet in given:
                while outlet.notices:
                    context.say(f"{what} {outlet.name}: {outlet.notices.popleft()}")
                context.trouble.judge(f"{what} {outlet.name}", outlet.trouble())
        rates = self._rates
        counts = Counter({f"stream {name}": rows for name, rows in self._intake.rows.items()})
        counts |= Counter({f"query {name}": running.rows for name, running in self._queries.running.items()})
        counts |= Counter({f"sink {name}": outlet.rows_written for name, outlet in outlets.by_name.items()})
        rates.take(context.clock.ticks(), counts)
        streams, queries = self._of_streams(now), self._of_queries()
        sinks = {
            name: account.of_sink(outlet) | {"rate": rates.of(f"sink {name}")}
            for name, outlet in outlets.by_name.items()
        }
        self._add({
            "taken": now, "streams": streams, "queries": queries,
            "sources": {name: account.of_source(reader) for name, reader in self._sources.readers.items()},
            "sinks": sinks, "removed": {name: until for name, (_, until) in self._queries.removed.items()},
            "trouble": context.trouble.faults(),
        })  # fmt: skip

    def _of_streams(self, now: float) -> dict[str, Any]:
        context = self._context
        db, trouble, ticks = context.db, context.trouble, context.clock.ticks
        blocked = blocked_streams(context, self._sources, self._queries, self._outlets)
        known = {name.lower(): told for name, told in db.streams().items()}
        streams = {}
        for name, table in context.app.streams.items():
            key = name.lower()
            told = known[key]
            trouble.judge(f"watermark of {name}", self._stands(name, told, table.idle))
            self._judge_archive(name)
            reached = db.reached(name)
            trouble.judge(f"late events of {name}", account.late_trouble(told["lately"], reached.watermark_us, now))
            refused_s = self._intake.ahead_s.get(key)
            ahead = "events too far ahead of the clock are quarantined in bad.ndjson: check the clock of the sender"
            recent = refused_s is not None and ticks() - refused_s < AHEAD_S
            trouble.judge(f"times of {name}", ahead if recent else None)
            figures = account.of_stream(told, reached, now)
            streams[name] = figures | {
                "rate": self._rates.of(f"stream {key}"), "bad": self._quarantine.bad[key], "waits": blocked.get(key)
            }  # fmt: skip
        return streams

    def _of_queries(self) -> dict[str, Any]:
        queries = {}
        for name, running in self._queries.running.items():
            stats = running.alerts.stats()
            share = stats.get("kept_share", 1)
            sheds = f"overload: it sheds keys and keeps {share:.3g} of them"
            self._context.trouble.judge(f"load of {name}", sheds if share < 1 else None)
            queries[name] = account.of_query(stats, running.failure is not None) | {
                "rows": running.rows, "rate": self._rates.of(f"query {name}"),
                "unread": max((o.unread(name) for o in self._outlets.all()), default=0),
            }  # fmt: skip
        return queries

    def _judge_archive(self, stream: str) -> None:
        """Reports an archive that does not take events of its stream."""
        held, where, trouble = self._context.db.held(stream), f"archive of {stream}", self._context.trouble
        if held.failure is not None:
            trouble.fault(where, f"events stay in memory and cannot be archived now: {held.failure}")
        elif held.since_s is not None and is_slow(time.time() - held.since_s):
            if where not in trouble:
                trouble.fault(where, pending_since(held.since_s))
        else:
            trouble.well(where)

    def _stands(self, name: str, told: Mapping[str, Any], idle: timedelta | None) -> str | None:
        """Returns the report of a watermark that stalls while events arrive, with the source that holds it, or None.
        told: of Database.streams."""
        mark, accepted, now = told["watermark"], told["accepted"], self._context.clock.ticks()
        if told["expected"] and idle is None:
            return f"waits for {', '.join(told['expected'])}, which sent nothing yet; `idle` limits the wait"
        since = self._stood.get(name)
        if told["held_by"] is None or since is None or since[0] != mark:
            since = self._stood[name] = mark, accepted, now
        patience_s = STANDS_S + (0.0 if idle is None else idle.total_seconds())
        if accepted == since[1] or now - since[2] < patience_s:
            return None
        source, silent_s = told["held_by"]["source"], told["held_by"]["silent_s"]
        return f"stalls at {mark} while events arrive: it waits for {source}, {delivers(silent_s)}" + (
            "; `idle` limits the wait" if idle is None and silent_s >= SILENT_S else ""
        )
