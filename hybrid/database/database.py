"""The database: streams to push to and to watch, and statements over their archives.

The public methods: each takes the lock, calls the other modules of this package, and issues their warnings.

Long: the docstrings of the public methods are the reference of the Python interface.
"""

from __future__ import annotations

import os
import sys
import threading
import time as clock
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from archive.interrupts import Deferred
from archive.place import place_of
from archive.recent import FILES
from hybrid.database import patterns, streams
from hybrid.database.opened import Opened
from hybrid.database.parts import DatabaseParts
from hybrid.database.queries import why_late
from hybrid.database.reading import answered_live, backtests, input_of, inputs_of
from hybrid.join.spark_ranges import large_ranges
from hybrid.join.strategies import NAMES, TOLERANT, strategy_of
from hybrid.rows.compare import Difference, difference
from hybrid.rows.duck import ANYTHING, Access, interruptible
from hybrid.rows.faults import check_sharing, fault, not_supported
from hybrid.rows.inputs import to_arrow
from hybrid.rows.limited import bytes_of_statements, limited
from hybrid.rows.result import Result
from hybrid.rows.times import duration_us, instant_us, positive_us
from hybrid.rows.words import PrintedText
from hybrid.statement.local_tables import with_local_tables
from hybrid.statement.on_spark import ENGINES, OnSpark
from hybrid.statement.progress import Far, of_rows, of_statement
from hybrid.statement.progress import progress as shown
from hybrid.statement.relations import Relations
from hybrid.statement.statement import answer, explain_in, sql
from hybrid.watch.alerts import Alerts
from hybrid.watch.declaration import (
    TABLE,
    check_query_name,
    declared,
    pace_of,
)  # fmt: skip
from hybrid.watch.flow import Flow
from hybrid.watch.late import LateEvents
from hybrid.watch.listener import Listener
from hybrid.watch.pushed import Pushed
from hybrid.watch.query_spec import SHARING, Asked
from hybrid.watch.rewind import Rewound, begun, finished
from hybrid.watch.shedding import Shed, check_is_shed
from hybrid.watch.shedding import check as check_shed
from hybrid.watch.stream import Reached
from matching.batch import Int64Array
from query.errors import DataError, nearest, public, warn
from query.language.named import pattern_statement
from query.language.parameters import Params, filled
from query.schema import Schema

if TYPE_CHECKING:
    from archive.ingest import IngestReport, Progress
    from archive.log import Policy
    from hybrid.database.backup import Copied


@dataclass(frozen=True, slots=True)
class Held:
    """The events of a stream that are only in memory: rows and bytes. writes: whether the stream has a directory to
    write to. since_s: start of the running write (time.time), None without one. failure: error of the last write."""

    rows: int
    nbytes: int
    writes: bool
    since_s: float | None
    failure: str | None


#: What an import does, by step.
STEPS = {"look": "looking for new files", "read": "reading", "write": "writing"}
#: Methods that only a service needs; completion and the reference leave them out.
OF_SERVICES = frozenset({
    "abandon", "begin_checkpoint", "held", "names_kept", "one_checkpoint", "patterns_in", "reached", "rows_of",
})  # fmt: skip


@public
class Database:
    """Streams with their archives. Open it with hybrid.connect; close it, or use it as a context manager.

    Methods may be called from several threads; one runs at a time. An exception leaves the database unchanged and
    usable.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, memory_limit: str | None = None,
        storage_options: Mapping[str, str] | None = None, maintenance: bool = True,
        log: Policy | Literal["default"] | None = "default", checkpoint: Any = None, ticking: bool = True,
        spark: Any = None, spark_events: int | None = None, read_only: bool = False, access: Access = ANYTHING,
        columns: Mapping[str, Mapping[str, str]] | None = None, beside: bool = False,
    ) -> None:  # fmt: skip
        """columns: columns with types, by stream; missing ones are added before the queries resume, since a stream with
        running queries takes none. beside: a thread writes files, never a push; the caller then bounds the memory (see
        `held`)."""
        place = None if path is None else place_of(path, storage_options)
        if log == "default":
            log = "os" if place is not None and place.on_disk and not read_only else None
        every_us = None if checkpoint is None else positive_us(checkpoint, "the time between checkpoints")
        large = large_ranges(spark, spark_events, path is not None)
        self._flow = Flow()
        self._opened = Opened(place, log, read_only, access, large, self._flow.streams)
        self._parts = DatabaseParts(self._opened, self._flow, memory_limit, ticking, every_us)
        self._parts.open(str(path), maintenance, columns or {}, beside and not read_only)
        self._memory, self._clocks = self._parts.memory, self._parts.clocks
        self._checkpoints, self._queries = self._parts.checkpoints, self._parts.queries
        self._listeners: list[Listener] = []

    def __repr__(self) -> str:
        opened = self._opened
        place = "in memory" if opened.path is None else repr(str(opened.path))
        state = ", closed" if opened.closed else ", read-only" if opened.read_only else ""
        names = ", ".join(stream.schema.name for stream in list(opened.streams.values())[:12])
        return f"Database({place}{state}; streams: {names or 'none'})"

    def __dir__(self) -> list[str]:
        """Returns what completion shows: the methods for people, not those for a service."""
        return [name for name in super().__dir__() if name not in OF_SERVICES]

    @property
    def _lock(self) -> threading.RLock:
        return self._opened.lock

    @property
    def names_kept(self) -> bool:
        """True if the last start or end of a named query is in a checkpoint."""
        return self._checkpoints.names_kept

    @property
    def notes(self) -> dict[str, str]:
        """Returns the notes of the checkpoint that the database resumed from."""
        return self._checkpoints.notes

    @notes.setter
    def notes(self, notes: dict[str, str]) -> None:
        self._checkpoints.notes = notes

    # ---- streams

    def create_stream(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        time: str,
        key: str | Sequence[str] | None = (),
        order: str | Sequence[str] | None = (),
        lateness: Any = None,
        retention: Any = None,
        idle: Any = None,
        heartbeat: Any = None,
        max_ahead: Any = None,
    ) -> None:
        """Declares a stream.

        columns: names with types of DuckDB or Arrow, or an Arrow schema. time: the column of the event time. key: the
        usual partition columns. order: tie columns, which order events of equal time. lateness: how far an on-time
        event may be behind the newest one ("2s"; None: 0). retention: how long events are kept ("400 days"; None: for
        ever).
        idle: a source that is silent for this long by the clock no longer holds the watermark back ("30s"; None: it
        always does). heartbeat: if all sources are silent for this long, the watermark follows the clock, behind it by
        heartbeat plus lateness; for streams whose event times are clock times. max_ahead: an event further ahead of the
        clock is refused, since one wrong time would make all later events late ("1 hour"; None: any time is accepted,
        for tests, simulations and replays).

        Declaring a stream again unchanged does nothing. New trailing columns are added; older events have nulls there.
        A changed lateness, retention, idle, heartbeat or max_ahead applies from now on, with a warning (see
        alter_stream). Raises DataError.
        """
        with interruptible():
            late = 0 if lateness is None else lateness
            schema = declared(name, columns, time, key or (), order or (), late, retention)
        pace = pace_of(idle, heartbeat, max_ahead)
        values = {
            "lateness": lateness, "retention": retention, "idle": idle, "heartbeat": heartbeat, "max_ahead": max_ahead,
        }  # fmt: skip
        given = {key: value for key, value in values.items() if value is not None}
        for message in self._parts.create_stream(schema, pace, given):
            warn(message)

    def alter_stream(self, name: str, **changed: Any) -> list[str]:
        """Changes settings of a stream: `lateness`, `retention`, `idle`, `heartbeat`, `max_ahead`, as in create_stream
        (None: the default there). Returns a description of each change.

        A change applies from now on: events accepted before stay late or on time, and the watermark never goes back.
        With a longer lateness the watermark waits until the newest event is that far ahead; with a shorter one it
        advances at the next event. With a shorter retention, older events are removed at the next push. Raises
        DataError."""
        return self._parts.alter_stream(name, changed)

    def drop_stream(self, name: str) -> None:
        """Removes a stream with all its events, those of its archive included. Raises DataError if live queries read or
        feed it, or named patterns read it."""
        self._parts.drop_stream(name)

    def streams(self) -> dict[str, dict[str, Any]]:
        """Returns for each stream: its columns, its watermark, the next offset of each source, the expected sources
        that have sent nothing yet, the source that holds the watermark back and the time of its last event (None if
        none does), the numbers of accepted, late and redelivered events, and the numbers of recent and recent late
        events."""
        with self._lock:
            self._opened.refresh()
            return {s.schema.name: streams.described(s) for s in self._flow.streams.values()}

    def push(
        self, stream: str, data: Any, source: str = "default", offset: int | Int64Array | None = None
    ) -> Pushed:
        """Takes events (an Arrow table or batch, a frame, a list of dicts) of one source, in the order it sent them.

        offset: position of the first row in its source, or int64 of each row, ascending; makes a retry idempotent.
        Returns the number of new rows, an int that has also the numbers of late and known ones (Pushed), after
        they are stored (with a log: on disk) and every live query has processed them. Warns of the first late event, if
        a live query reads the stream and nobody asks for `late`. Raises DataError and then changes nothing.
        """
        for alerts in [query.alerts for query in self._flow.queries]:
            if alerts.full:
                alerts.make_room()  # without the lock, which the fetching thread may need
        with of_rows(f"pushing to {stream}:", data), self._parts.changing():
            state = self._opened.fed_stream(stream)
            if source == FILES:
                raise DataError(f"{FILES} is the source of archived files", "give this source another name")
            self._parts.pushers.add(threading.get_ident())
            ceiling_us, said = self._clocks.ceiling(state)
            taken, trouble = self._flow.take(state, data, source, offset, ceiling_us, in_parts=True)
            trouble += said + self._parts.warned_beside() + self._checkpoints.take_if_due()
            for message in trouble:
                warn(message)
            return taken

    def skip(self, stream: str, source: str, offset: int) -> None:
        """Marks the records of a source up to an offset as processed, although they gave no event: they are dropped if
        they come again. After a crash the offset is known from the log, a checkpoint, or a later event of the source.
        Raises DataError."""
        with self._parts.changing():
            state = self._opened.fed_stream(stream)
            if offset >= state.live.offsets.get(source, 0):
                state.kept.skip(source, offset)
                state.live.skip(source, offset)

    def ingest(
        self,
        stream: str,
        inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        format: str | None = None,
        delimiter: str | None = None,
        header: bool = True,
        nulls: Sequence[str] = ("",),
        timestamp_format: str | None = None,
        extra: Literal["ignore", "error"] = "ignore",
        missing: Literal["error", "null"] = "error",
        changed: Literal["error", "add"] = "error",
        max_bad: int | None = None,
        spark: Any = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> IngestReport:
        """Archives CSV, NDJSON and Parquet files in a stream: files, directories, globs; paths or URLs.

        One commit for all. Files already in the archive are skipped, so a call may be repeated. History joins, sql and
        backtest see the rows, live queries do not. Invalid rows are quarantined. Memory is bounded for any size.

        format: csv, ndjson or parquet (None: by suffix). delimiter: of CSV (None: that of comma, semicolon, tab and `|`
        by which the first line has most declared names). header: whether the first line of CSV has the names; without,
        the fields are the declared columns in order. nulls: unquoted texts of CSV that are null. timestamp_format: of
        times in text, as for strptime, or the unit (s, ms, us, ns) of numbers since 1970. extra: columns that are not
        declared are left out or an error. missing: declared columns that a file lacks are an error or null. changed: a
        file whose path was archived with other contents is an error or added as another file. max_bad: with more
        invalid rows nothing is archived (None: any number). spark: address of a Spark master, or a session, to run on.
        progress: called with each step (None: a terminal shows them). Raises DataError.
        """
        from archive.checks import Options
        from archive.ingest import Job, format_of, ingest

        with self._lock:
            state = self._opened.fed_stream(stream)
        if state.directory is None:
            raise DataError("a database in memory has no archive for files", "hybrid.connect(path) keeps one")
        paths = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        options = Options(delimiter, header, tuple(nulls), timestamp_format, extra, missing)
        named = tuple(str(path) for path in paths)
        job = Job(state.schema, state.directory / TABLE, named, format_of(format), options, changed, max_bad)
        far = Far(f"reading files into {stream}")

        def told(step: Progress) -> None:
            nonlocal far
            far = Far(f"{STEPS[step.step]}: {step.rows:,} rows", step.done, step.total)
            if progress is not None:
                progress(step)

        with interruptible(), nullcontext() if progress is not None else shown(lambda: far):
            if spark is None:
                report = ingest(job, told)
            else:
                from archive.spark.ingest import ingest as ingest_by_spark

                report = ingest_by_spark(spark, job, told)
        with self._lock:
            state.kept.refresh()
        return report

    def advance(self, stream: str, time: Any) -> None:
        """Raises the stream's watermark to `time` ("2024-01-02 10:00", a datetime, microseconds) without events: later
        events before it are late. None ends the stream. Raises DataError."""
        with self._parts.changing():
            state = self._opened.fed_stream(stream)
            self._parts.pushers.add(threading.get_ident())
            t_us = None if time is None else instant_us(time, "the time to advance to")
            if t_us is not None:
                state.kept.reach(t_us)
            trouble = self._flow.reach(state, t_us)
            for message in trouble:
                warn(message)

    def rewind(self, stream: str, to: Any = None, *, abandon: bool = False) -> Rewound:
        """Sets the watermark of a stream back, as if the events after `to` had never come and the clock had never
        raised it. Use it after one wrong time has made later events late. to: as in `advance`; None: now.

        The events after `to` are set aside: they stay in the archive as late events, outside of live queries. Lateness
        of the events since the first of them is decided again without them. The live queries of the stream process
        these events again and emit their rows again; unchanged rows keep their ids. Rows that are wrong now, because
        they contain an event set aside or assumed the absence of one that was late, are not retracted. Takes a
        checkpoint if queries have names. After a crash in between, call it again. A Ctrl-C changes nothing, or waits
        for the end; abandon: it does not wait, but leaves the database as a crash does, closed. Raises DataError."""
        far = Far(f"rewinding {stream}")

        def told(now: Far) -> None:
            nonlocal far
            far = now

        with shown(lambda: far), self._parts.changing():
            state = self._opened.fed_stream(stream)
            to_us = clock.time_ns() // 1000 if to is None else instant_us(to, "the time to rewind to")
            streams.check_rewind(self._flow, state)
            for query in self._flow.queries:
                self._parts.catch_up(query)
            trouble: list[str] = []
            try:
                done = streams.rewind(self._flow, state, to_us, self._memory.spill(), trouble, told, abandon)
            except KeyboardInterrupt:
                if abandon and begun(state.directory) is not None:
                    self.abandon()
                raise
            self._queries.share_memory()
            for _ in range(2 if self._flow.named else 0):  # two, as one is the fallback of the other
                self.checkpoint()
            finished(state)
        for message in trouble:
            warn(message)
        return done

    def expect(self, stream: str, sources: Sequence[str]) -> None:
        """Announces sources of a stream, such as the partitions of a topic. The watermark waits until each has sent an
        event, so that lateness does not depend on arrival order; with `idle` the wait is bounded. `streams()` lists the
        sources it waits for. Takes a checkpoint if queries have names: a replay from the previous one would not wait
        for these sources."""
        with self._parts.changing():
            state = self._opened.fed_stream(stream)
            new = streams.expect(state, sources)
        if new and self._flow.named:
            self._checkpoints.keep_names()

    def leave(self, stream: str, source: str) -> None:
        """Stops a source from holding the watermark back, since no more events are expected from it."""
        with self._parts.changing():
            state = self._opened.fed_stream(stream)
            trouble = streams.leave(self._flow, state, source)
        for message in trouble:
            warn(message)

    def tick(self, now_s: float | None = None, wall_us: int | None = None) -> None:
        """Applies the clock: `idle` and `heartbeat` of streams, load shedding of queries, and a checkpoint that is due.
        A thread of the database calls it four times a second; call it yourself to use your own clock.

        now_s: of time.monotonic; wall_us: microseconds since 1970, UTC. A jump of the latter moves no watermark."""
        self._parts.tick(now_s, wall_us)

    # ---- overload

    def shed(self, alerts: Alerts, shed: Shed | None) -> None:
        """Sets the load shedding of a running query, see `watch`; None ends it and readmits all keys. Raises DataError
        if that needs events that are no longer kept, and QueryError."""
        check_is_shed(shed)
        with self._parts.changing():
            self._queries.shed(alerts, shed)
            self._parts.wind()

    def late(self, stream: str) -> LateEvents:
        """Returns the late events of a stream from now on (the same object at each call); after a restart also those
        that were not fetched before the last checkpoint. Raises DataError."""
        with self._lock:
            return self._opened.stream(stream).late_events()

    def forget_late(self, stream: str) -> None:
        """Ends what `late` began: none of the late events until now are handed out again. Raises DataError."""
        with self._lock:
            state = self._opened.stream(stream)
            state.late = state.late_since = None

    # ---- queries

    def watch(
        self,
        text: str,
        strategy: str = "auto",
        tolerance: Any = None,
        evidence: bool = False,
        tables: Mapping[str, Any] | None = None,
        into: str | None = None,
        time: str | None = None,
        name: str | None = None,
        unread_max: int | None = None,
        shed: Shed | None = None,
        start: Any = None,
        sharing: str = SHARING,
        on_match: Callable[[pa.Table], object] | None = None,
        params: Params = None,
    ) -> Alerts:
        """Starts a live query with an empty state over the events pushed from now on, in the total order.

        start: a time ("2024-01-01"): the query first reads the on-time events kept since then, in the total order, and
        goes on with the pushed ones. Its rows are those of a watch started at that time. Others may push meanwhile. If
        a stream has only rows of files, its watermark starts from these.
        strategy: when the archive is queried; the rows are the same. "llaa": for one match at a time; "sllaa": for
        matches whose ends are within `tolerance` ("2s"; None: that complete at the same time) together; "alaa":
        precomputed before any match; "ollaa": by the rarer pattern; "auto": by cost. evidence: the rows end with the
        identity of their matches: match_id and, with a history join, join_id and history_complete. tables: static
        tables for the outer SELECT, as they are now. into: a new stream of the rows for other queries to read (fetch
        then returns none); time: its time column, if there are several. name: the query resumes under this name after a
        restart, from the last checkpoint; this call then returns the alerts of the resumed query. unread_max: the
        number of rows that may wait to be fetched (None: 5 million); beyond it a push waits for the fetching thread,
        or is refused if there is none. shed: leave out keys under overload (hybrid.Shed; None: never); `stats()`
        counts the events left out and estimates the recall, and the archive keeps them. sharing: how the windows of
        ONE ROW PER WINDOW are counted together with those of other queries of the stream; the rows are the same.
        "dynamic": by a plan that follows the rates of events; "static": by one for the first rates; "hamlet": in bursts
        of one type of event; "none": on their own. on_match: called with the rows as they come, as an Arrow table, in a
        thread of its own, instead of `fetch`; `alerts.join()` and `close` wait for it. If it raises, it is not called
        any more, and the rows wait to be fetched. params: as in hybrid.sql, once for all rows. Raises QueryError;
        DataError if the rows cannot be events of `into`, if a different query has this name, or if files cannot be
        read.
        """
        if self._opened.read_only:
            self._opened.check_writes("watch a stream")
        text = text if params is None else filled(text, params)
        strategy = strategy.lower() if isinstance(strategy, str) else strategy
        if strategy not in NAMES:
            raise fault("HQ500", f"there is no strategy {strategy!r}", text, nearest(str(strategy), NAMES))
        if tolerance is not None and strategy not in TOLERANT:
            message = f"the strategy {strategy} takes no tolerance: it never delays a match for others"
            raise fault("HQ500", message, text, f"use strategy={' or '.join(map(repr, TOLERANT))}")
        check_sharing(sharing, text)
        if on_match is not None and not callable(on_match):
            raise DataError(f"on_match is {on_match!r:.60}, no function", "it is called with an Arrow table of rows")
        if unread_max is not None and not (isinstance(unread_max, int) and unread_max > 0):
            raise DataError(f"unread_max is {unread_max!r}, not a number of rows", "give at least 1")
        check_is_shed(shed)
        tolerance_us = None if tolerance is None else duration_us(tolerance, "the tolerance")
        from_us = None if start is None else instant_us(start, "the start of a watch")
        chosen = strategy_of(strategy, tolerance_us)
        asked = None
        if name is not None:
            check_query_name(name)
            static = {key: to_arrow(data, key, self._opened.access) for key, data in (tables or {}).items()}
            with self._lock:
                used = self._opened.used(text, static)
            asked = Asked(name, str(text), strategy, tolerance_us, evidence, into, time, static, from_us, sharing, used)
        given, past = tables or {}, None
        if from_us is not None:
            if into is not None:
                hint = "watch the rows from now on, or db.backtest the past"
                raise not_supported("into= with start=", text, hint)
            with self._parts.settled():
                if asked is None or self._queries.named(asked) is None:
                    past = self._queries.past(text, chosen, given, evidence, from_us, shed, sharing)
            if past is not None:
                with shown(past.far):
                    past.read()  # without the lock: these events no longer change
        with self._parts.settled():
            running = None if asked is None else self._queries.named(asked)
            if running is not None:
                running.alerts.unread_max = running.alerts.unread_max if unread_max is None else unread_max
                self.shed(running.alerts, shed)
                return self._heard(running.alerts, on_match, f"query {name}")
            before = list(self._flow.queries)
            try:
                if past is not None:
                    query = self._queries.go_on(past)
                else:
                    query = self._queries.start(text, chosen, given, evidence, into, time, shed, sharing)
                self._parts.wind()
                query.asked = None if asked is None else replace(asked, patterns=query.alerts.patterns)
                if unread_max is not None:
                    query.alerts.unread_max = unread_max
                if asked is not None:
                    self._flow.named[asked.name] = query
                    self._checkpoints.keep_names()
            except BaseException:
                with Deferred():
                    self._queries.withdraw(before)
                raise
            kept_in = self._memory.notes(query.events.spill)
        for message in dict.fromkeys([*why_late(query), *kept_in]):
            warn(message)
        return self._heard(query.alerts, on_match, "a query" if name is None else f"query {name}")

    def _heard(self, alerts: Alerts, callback: Callable[[pa.Table], object] | None, of: str) -> Alerts:
        """Returns alerts, after a thread begins to hand them to a callback if there is one."""
        if callback is not None:
            with self._lock:
                there = next((one for one in self._listeners if one.runs and one.alerts is alerts), None)
                if there is not None:  # two would share the rows
                    there.callback = callback
                else:
                    self._listen(Listener(alerts, callback, of))
        return alerts

    def _listen(self, listener: Listener) -> None:
        """Keeps a listener, and forgets those that have ended."""
        listener.alerts.heard = listener.wait
        self._listeners = [*(one for one in self._listeners if one.runs), listener]

    def watching(self) -> dict[str, Alerts]:
        """Returns the alerts of all named queries by name, resumed ones included."""
        with self._lock:
            return {name: query.alerts for name, query in self._flow.named.items()}

    # ---- named patterns

    def create_pattern(self, name: str, text: str, replace: bool = False) -> None:
        """Names a pattern: a SELECT from MATCH_RECOGNIZE or PATTERN SEQ over streams of the database. Statements may
        then define variables AS PATTERN name, and read its rows FROM name. The same as `CREATE PATTERN name AS text`
        in `sql`.

        Creating a pattern again unchanged does nothing. replace: replaces one of another text; its columns must be the
        same if other patterns or live queries use it. A live query keeps the texts that it began with, also after a
        restart. Raises QueryError for a text that cannot be answered, HQ222 for a pattern made of itself; DataError."""
        self.create_patterns({name: text}, replace)

    def create_patterns(self, texts: Mapping[str, str], replace: bool = False, force: bool = False) -> None:
        """Names several patterns, all or none, which may use one another. texts: by name. force: even if
        others that use them would not fit any more: live queries keep the texts they began with, and an error about a
        pattern comes when it is used. See create_pattern."""
        with self._lock, Deferred():
            self._opened.check_writes("create a pattern")
            patterns.create(self._opened, self._flow, texts, replace, force)

    def drop_pattern(self, name: str) -> None:
        """Drops a named pattern. Raises DataError if there is none, or if other patterns or live queries use it."""
        with self._lock, Deferred():
            self._opened.check_writes("drop a pattern")
            patterns.drop(self._opened, self._flow, name)

    def patterns(self) -> dict[str, str]:
        """Returns the texts of the named patterns, by name."""
        with self._lock:
            self._opened.check()
            self._opened.refresh()
            return {pattern.name: pattern.text for pattern in self._opened.patterns.values()}

    def patterns_in(self, text: str) -> dict[str, str]:
        """Returns the texts of the named patterns that a statement uses, directly or through others, by name in lower
        case."""
        with self._lock:
            return self._opened.used(text)

    # ---- checkpoints

    def checkpoint(self, notes: Mapping[str, str] | None = None) -> int:
        """Saves the state of the named queries, from which they resume after a restart or a crash. Returns the number
        of the checkpoint. notes: the caller's own data, returned after a restart as Database.notes.

        Events that are only in memory are first written to the archive, unless the log has them. Others may push
        meanwhile; the state is copied between two batches. Raises DataError; the previous checkpoint then stays
        valid."""
        return self._checkpoints.take(notes)

    def one_checkpoint(self) -> AbstractContextManager[None]:
        """Returns a context manager that takes one checkpoint, at its end, for all named queries that start or end
        inside. Otherwise each takes its own, which is slow for a thousand queries. The checkpoint is taken after an
        exception too. After a crash inside, these queries have not started. Warns if the checkpoint fails."""
        return self._checkpoints.one()

    def begin_checkpoint(self, notes: Mapping[str, str] | None = None) -> Future[int]:
        """Takes a checkpoint like `checkpoint`, but returns after the state is copied. A thread writes it, and the
        events that are only in memory, while others push. Waits for an earlier checkpoint still being written."""
        return self._checkpoints.begin(notes)

    def replace(
        self,
        alerts: Alerts | str,
        text: str,
        *,
        fresh: bool = False,
        evidence: bool = False,
        tables: Mapping[str, Any] | None = None,
        sharing: str | None = None,
        params: Params = None,
    ) -> Alerts:
        """Replaces a running query, given by its alerts or its name, with a new version over the same streams, without
        losing matches in progress.

        The new version has the state of a run since the old one began; matches from before now are not emitted again.
        If only measures, their display or the outer SELECT differ, the partial matches are taken over. Otherwise the
        events since then are replayed, or only those of the last WITHIN if older ones cannot matter. If they are no
        longer kept, raises DataError, or with `fresh` warns and starts with an empty state, but for the patterns of
        boxes that did not change: their matches in progress go on. The alerts of the old version keep its rows and
        receive those that wait for history; a callback gets those of the new one after them. sharing: as in `watch`;
        None: as before. params: as in hybrid.sql. Raises QueryError, DataError; the old version then goes on.
        """
        if sharing is not None:
            check_sharing(sharing, text)
        text = text if params is None else filled(text, params)
        with shown(lambda: Far("replaying events for the new version")), self._parts.changing():
            old, query, whole = self._queries.replace(alerts, text, tables or {}, evidence, fresh, sharing)
            self._parts.wind()
            if query.asked is not None:
                self._checkpoints.keep_names()
            self._queries.retire(old)
            for heard in [one for one in self._listeners if one.runs and one.alerts is old.alerts]:
                self._listen(heard.follow(query.alerts))
        for message in why_late(query):
            warn(message)
        if not whole:
            message = "events since the old version began are no longer kept: the new one starts with an empty state"
            warn(message)
        return query.alerts

    def rows_of(self, text: str, shed: Shed | None = None) -> tuple[pa.Schema, tuple[str, ...]]:
        """Returns the schema of a live query's rows, with the identity of its matches, and the streams it reads, in
        lower case, without starting it. shed: as in `watch`. Raises QueryError."""
        with self._lock:
            query = self._queries.ask(text, strategy_of("auto"), {}, evidence=True)
            if shed is not None:
                check_shed(query.plan, None)
            return query.alerts.schema, tuple(query.events.streams)

    def schema(self, stream: str) -> Schema:
        """Returns the declared schema of a stream. Raises DataError."""
        with self._lock:
            return self._opened.stream(stream).schema

    def reached(self, stream: str) -> Reached:
        """Returns the offsets, the watermark and the newest time of a stream. Raises DataError."""
        with self._lock:
            state = self._opened.stream(stream)
            live = state.live
            return Reached(state.offsets, live.watermark_us, live.newest_us)

    def sql(
        self, text: str, *, late: bool = True, as_live: bool = False, engine: str = "embedded", spark: Any = None,
        params: Params = None, timeout: Any = None, **tables: Any,
    ) -> Result:  # fmt: skip
        """Answers one statement over streams (archive and memory, one consistent snapshot) and named tables.

        The last event of a stream ends it, also of one that goes on. Warns of matches that exist only because of that:
        those that wait for what must not follow, and TIMEOUT ROWS.

        late: include late rows; False: the rows that a live query sees. as_live: the rows that a live query has given
        by now, with the same ids: those of a watch that has taken all kept on-time events, with the watermark of each
        stream. The statement must be one that `watch` takes; late has no effect then. engine: "spark" searches for the
        patterns over streams on Spark, which reads files only: events in memory are written first; the rows are the
        same, in no order without ORDER BY in the outer SELECT. spark: a master's address (local[*], spark://host:7077,
        sc://host:15002), a session, or None for the running session or local[*]. params, timeout: as in hybrid.sql.
        tables: as in hybrid.sql.

        CREATE PATTERN and DROP PATTERN return what they did. Raises QueryError, DataError."""
        if engine not in ENGINES:
            raise fault("HQ500", f"there is no engine {engine!r}", text, nearest(str(engine), ENGINES))
        if as_live and engine != "embedded":
            raise not_supported("as_live on Spark", text, "leave engine out")
        text = text if params is None else filled(text, params)
        opened = self._opened
        with interruptible():
            statement = pattern_statement(text)
        if statement is not None:
            with self._lock, Deferred():
                opened.check_writes("create or drop a pattern")
                done = patterns.run(opened, self._flow, text, statement)
            return sql("SELECT name AS pattern, done FROM told", told=[{"name": statement.name, "done": done}])

        def run(tables: Mapping[str, Any]) -> Result:
            if as_live:
                with limited(text, timeout, None) as stop:
                    stop.bytes_max = bytes_of_statements(self._parts.memory_limit)
                    return answered_live(opened, text, tables, stop)
            with self._lock:
                opened.check()
                opened.refresh()
                used = opened.used(text, tables)
                inputs = inputs_of(opened, text, used, late, in_files=engine == "spark")
            on_spark = OnSpark(spark) if engine == "spark" else None
            with limited(text, timeout, None) as stop, shown(of_statement(stop)):
                relations = Relations(
                    text, tables, inputs, memory_limit=self._parts.memory_limit, spark=on_spark, large=opened.large,
                    access=opened.access, patterns=used,
                )
                with relations.open():
                    stop.bytes_max = relations.bytes_max
                    return answer(text, relations)

        caller = sys._getframe(2)
        with interruptible():  # planning included
            found = with_local_tables(run, tables, caller) if opened.access.outside else run(tables)
        self._parts.say_beside()
        return found

    def backtest(
        self, text: str, start: Any, end: Any = None, tables: Mapping[str, Any] | None = None, *,
        params: Params = None, timeout: Any = None,
    ) -> Result:  # fmt: skip
        """Replays archived events as live events. Returns the rows of a watch from `start` to `end`.

        Starts with an empty state, takes the on-time events with start <= time < end in the total order, then the
        watermark at `end`; matches still pending are not emitted. end None: all kept events, then the end of the
        stream, as by advance(stream, None). params, timeout: as in hybrid.sql. Raises QueryError, DataError.
        """
        text = text if params is None else filled(text, params)
        (result,) = self._backtests((text,), start, end, tables, timeout)
        self._parts.say_beside()
        return result

    def compare(
        self, old: str, new: str, start: Any, end: Any = None, tables: Mapping[str, Any] | None = None, *,
        timeout: Any = None,
    ) -> Difference:  # fmt: skip
        """Backtests two versions of a query over the same events. Returns the rows that only one of them gives.

        Rows are compared by the values of the columns that both versions have. start, end, tables, timeout: as in
        `backtest`. Raises QueryError, DataError."""
        was, now = self._backtests((old, new), start, end, tables, timeout)
        self._parts.say_beside()
        return difference(was.arrow(), now.arrow())

    def _backtests(
        self, texts: Sequence[str], start: Any, end: Any, tables: Mapping[str, Any] | None, timeout: Any
    ) -> list[Result]:
        bytes_max = bytes_of_statements(self._parts.memory_limit)
        with limited(texts[-1], timeout, None) as stop:
            stop.bytes_max = bytes_max
            return backtests(self._opened, texts, start, end, tables or {}, stop)

    def explain(self, text: str, stage: str = "all", tables: Mapping[str, Any] | None = None) -> str:
        """Returns the stages of planning of a statement over streams and named tables as text. Reads no events.

        stage: ast, plan, nfab, automaton, program, all of these, or kernel. tables: named tables, as in hybrid.sql.
        Raises QueryError, DataError."""
        with self._lock:
            self._opened.check()
            inputs = {key: input_of(stream, late=True) for key, stream in self._flow.streams.items()}
            used = self._opened.used(text, tables or {})
        relations = Relations(text, tables or {}, inputs, access=self._opened.access, patterns=used)
        return PrintedText(explain_in(text, stage, relations))

    def explain_workload(
        self, texts: Mapping[str, str], sharing: str = SHARING, modes: Mapping[str, str] | None = None,
        tables: Mapping[str, Any] | None = None, patterns: Mapping[str, str] | None = None,
    ) -> str:  # fmt: skip
        """Returns what the statements, by name, share if they are counted together, by the on-time events of the
        streams and the named tables. sharing: as in `watch`; modes: those of single statements. patterns: named
        patterns besides those of the database. Raises QueryError, DataError. Cost: that of the statements."""
        from hybrid.statement.workload import explain_workload

        with self._lock:
            self._opened.check()
            inputs = {key: input_of(stream, late=False) for key, stream in self._flow.streams.items()}
            known = {key: pattern.text for key, pattern in self._opened.patterns.items()} | dict(patterns or {})
        return PrintedText(explain_workload(texts, tables or {}, sharing, modes or {}, known, inputs))

    # ---- flush, snapshot, close

    def flush(self) -> None:
        """Writes all events that are only in memory to the archive."""
        self._parts.flush()

    def snapshot(self, target: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> Copied:
        """Copies the current archive, log and last checkpoint to a directory or an `s3://` address. Updates an existing
        copy with the new files only. Others may push meanwhile. Raises DataError."""
        from hybrid.database.backup import snapshot

        with self._lock:
            self._opened.check()
            if self._opened.path is None:
                raise DataError("a database in memory cannot be copied", "hybrid.connect(path) keeps one")
            if self._opened.log is None:
                self.flush()
        with shown(lambda: Far(f"copying to {target}")):
            return snapshot(self._opened.path, place_of(target, storage_options))

    def held(self, stream: str) -> Held:
        """Returns the events of a stream that are only in memory, and the state of their write. Raises DataError."""
        with self._lock:
            kept = self._opened.stream(stream).kept
            rows, nbytes = kept.held
            return Held(rows, nbytes, kept.directory is not None, kept.written_since_s, kept.failure)

    def close(self, wait: bool | float = True, checkpoint: bool = True) -> None:
        """Hands callbacks their rows, flushes, takes a last checkpoint if queries have names, and ends every iteration
        over alerts. Rows that are ready can still be fetched.

        wait: wait for pending history reads, at most this many seconds. Matches that still wait for history afterwards
        are in the checkpoint, if their query has a name. checkpoint: False if nothing has changed since the last
        one."""
        listeners = [one for one in self._listeners if one.runs]  # in a child after a fork none does
        listeners = [] if not wait or any(one.is_here for one in listeners) else listeners
        try:
            until_s = None if wait is True else clock.monotonic() + wait
            for _ in listeners:  # rows of one function may be made of what another one pushes
                if sum(one.give(until_s) for one in listeners) == 0:  # all of them have been asked
                    break
        finally:  # an interrupt ends only the wait
            self._parts.close(wait, checkpoint)
        for listener in listeners:
            listener.join()

    def abandon(self) -> None:
        """Leaves the database as a crash would: writes nothing more, not even at the end of the process. Use it if the
        disk or store does not answer."""
        self._parts.abandon()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(wait=kind is None or issubclass(kind, Exception))  # after an interrupt, do not wait
