"""The database: streams that are pushed to, kept and watched; and statements over what was kept."""

from __future__ import annotations

import os
import re
import threading
import time as clock
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from archive.history import KEEPER, History
from archive.interrupts import Deferred
from archive.place import Place, place_of
from archive.recent import FILES
from archive.writer import RENEWER, Writer
from hybrid.database.leaving import Left, watch_over, weakly, writer_of
from hybrid.join.daemons import Daemons
from hybrid.join.requests import POOLS, Asking, pools
from hybrid.join.spark_ranges import large_ranges
from hybrid.join.strategies import NAMES, TOLERANT, strategy_of
from hybrid.join.strategies.base import Strategy
from hybrid.rows.compare import Difference, difference
from hybrid.rows.duck import ANYTHING, Access, binder, check_memory_limit, interruptible
from hybrid.rows.faults import fault, not_supported
from hybrid.rows.inputs import fields_of, to_arrow
from hybrid.rows.outer import Outer
from hybrid.rows.result import Result
from hybrid.rows.times import duration_us, instant_us, positive_us, show_us
from hybrid.statement.explain import explain_live
from hybrid.statement.on_spark import ENGINES, OnSpark
from hybrid.statement.relations import Relations
from hybrid.statement.statement import answer, explain_in
from hybrid.statement.stream_input import StreamInput
from hybrid.watch.alerts import Alerts
from hybrid.watch.backfill import Past
from hybrid.watch.backtest import backtest
from hybrid.watch.chain import outermost, plain, plan_streams
from hybrid.watch.declaration import (
    TABLE,
    check_query_name,
    declared,
    differences,
    otherwise,
    pace_of,
    settings,
    stream_names,
    widened,
    with_columns,
)  # fmt: skip
from hybrid.watch.derived_stream import Pour, rows_as_events
from hybrid.watch.flow import Flow
from hybrid.watch.in_chain import InChain
from hybrid.watch.in_feed import InFeed, new_feed
from hybrid.watch.late import LateEvents
from hybrid.watch.live_query import Events, LiveQuery, guarded
from hybrid.watch.memory import Memory
from hybrid.watch.query_spec import Asked, read_asked
from hybrid.watch.recovery import check_ahead, state_of
from hybrid.watch.rewind import Rewound, finished, rewound
from hybrid.watch.shedding import Shed
from hybrid.watch.shedding import check as check_shed
from hybrid.watch.stream import Reached, Stream, reopened
from hybrid.watch.ticker import TICKER, SteadyClock, Ticker, since_boot_s
from hybrid.watch.waits import waits
from live.stream import LiveStream
from matching.batch import Int64Array
from matching.feed import Member, Unread
from matching.ordering import Ordering
from query.errors import DataError, HybridWarning, first_line, nearest
from query.language import ast
from query.language.cut import lacks_input
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import QueryPlan
from query.schema import Schema

if TYPE_CHECKING:
    from archive.ingest import Progress, Report
    from archive.keeper import Keeper
    from archive.log import Policy
    from hybrid.database.backup import Copied


#: What the thread that writes checkpoints is called, at its beginning.
CHECKPOINTS = "hybrid-checkpoint"


@dataclass(frozen=True, slots=True)
class Held:
    """What of a stream is in memory and in no file: rows and bytes. writes: whether they are to be written at all;
    since_s: when the write that runs began, by time.time, None if none does; failure: why the last one failed."""

    rows: int
    nbytes: int
    writes: bool
    since_s: float | None
    failure: str | None


class Database:
    """Streams with their archives. Open it with hybrid.connect; close it, or use it as a context manager.

    Methods may be called from several threads; one runs at a time. After an exception the database is as it was before
    the call, and stays usable.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None = None, memory_limit: str | None = None,
        storage_options: Mapping[str, str] | None = None, maintenance: bool = True,
        log: Policy | Literal["default"] | None = "default", checkpoint: Any = None, ticking: bool = True,
        spark: Any = None, spark_events: int | None = None, read_only: bool = False, access: Access = ANYTHING,
        columns: Mapping[str, Mapping[str, str]] | None = None, beside: bool = False,
    ) -> None:  # fmt: skip
        """columns: of streams, with types; what they have not yet they get before their queries go on, as it cannot be
        while these run. beside: a push never writes files, a thread does; whoever pushes sees to it that memory
        suffices (`held`)."""
        self._beside_pushes = beside and path is not None and not read_only
        self._large = large_ranges(spark, spark_events, path is not None)
        self._lock = threading.RLock()
        self._path = place_of(path, storage_options) if path is not None else None
        if log == "default":
            log = "os" if self._path is not None and self._path.on_disk and not read_only else None
        self._log = log
        self._read_only = read_only
        self._writer: Writer | None = None
        every_us = None if checkpoint is None else positive_us(checkpoint, "the time between checkpoints")
        self._checkpoint_every_us = every_us
        self._checkpointed = (0, clock.monotonic())
        self._checkpointing: Future[int] | None = None
        #: What whoever took the checkpoint that this database goes on from has noted in it.
        self.notes: dict[str, str] = {}
        self._named: dict[str, LiveQuery] = {}
        self._ticker: Ticker | None = None
        self._clock = SteadyClock()
        self._by_hand = not ticking
        self._memory_limit = memory_limit
        self._access = access
        self._wider = False
        self._flow = Flow()
        self._streams = self._flow.streams
        self._pushers: set[int] = set()
        self._closed = False
        self._left = Left(self._streams)
        self._when_left: weakref.finalize[..., Any] | None = None
        self._keeper: Keeper | None = None
        self._memory = Memory(None, None)
        if memory_limit is not None:
            check_memory_limit(memory_limit)
            self._memory = Memory(memory_limit, None)
        if self._path is None and read_only:
            raise DataError("a database in memory is nobody's to read", "hybrid.connect(path, read_only=True)")
        if self._path is not None:
            names = self._found(str(path))
            if log is not None and (log not in ("fsync", "os") or not self._path.on_disk):
                raise DataError(
                    f"a log {log!r} cannot be kept in {path}", "open a database on disk with log='fsync' or 'os'"
                )
            if not read_only:
                self._writer = writer_of(self._path, [self._path / name / TABLE for name in names])
            self._left.writer = self._writer
            try:
                # others may have made some
                self._open(self._path, self._found(str(path)), memory_limit, maintenance, columns or {})
            except BaseException:
                if self._ticker is not None:
                    self._ticker.stop()
                self._release()
                raise

    def _found(self, path: str) -> list[str]:
        """The streams of the database at its place, which is made if it is not there."""
        assert self._path is not None
        if self._path.on_disk and os.path.exists(self._path) and not os.path.isdir(self._path):
            raise DataError(f"{path} is a file", "a database is a directory")
        try:
            if not self._read_only:
                self._path.make()
            elif self._path.on_disk and not os.path.exists(self._path):
                raise DataError(f"there is no database {path}", "hybrid.connect creates one, without read_only")
            return stream_names(self._path)
        except OSError as error:
            raise DataError(f"{path} cannot be opened: {first_line(error)}", "check the place") from None

    def _open(
        self, path: Place, names: Sequence[str], memory_limit: str | None, maintenance: bool,
        columns: Mapping[str, Mapping[str, str]],
    ) -> None:  # fmt: skip
        """Goes on where the database was left."""
        for name in names:
            stream = reopened(path / name, self._log, self._epoch, self._read_only)
            twin = self._streams.setdefault(stream.schema.name.lower(), stream)
            if twin is not stream:
                both = " and ".join(str(s.directory) for s in (twin, stream))
                raise DataError(f"two streams have one name: {both}", "names compare without case: move one away")
        if self._read_only:
            return
        self._memory = Memory(memory_limit, path)
        for name, types in columns.items():
            state = self._streams.get(name.lower())
            wider = None if state is None else with_columns(state.schema, types)
            if state is not None and wider is not None:
                self._add_columns(state, wider)
                self._wider = True
        with self._lock:  # queries ask history beside it as soon as they begin
            self._resume()
        self._wind()
        if maintenance:
            from archive.keeper import Keeper

            streams = self._streams
            self._keeper = self._left.keeper = Keeper(lambda: [s.kept for s in list(streams.values())])
            for stream in streams.values() if self._beside_pushes else ():
                stream.kept.beside = self._keeper.wake
            self._keeper.start()
        self._when_left = watch_over(self, self._left)

    @property
    def _epoch(self) -> int | None:
        return None if self._writer is None else self._writer.epoch

    # ---- streams

    def create_stream(
        self,
        name: str,
        columns: Mapping[str, str],
        time: str,
        key: str | Sequence[str] = (),
        order: Sequence[str] = (),
        lateness: Any = None,
        retention: Any = None,
        idle: Any = None,
        heartbeat: Any = None,
        max_ahead: Any = None,
    ) -> None:
        """Declares a stream.

        columns: names with DuckDB types. time: the column of the event time. key: what most queries partition by.
        order: tie columns, which order events of equal time. lateness: how far behind the newest event one may arrive
        and still count as on time ("2s"; None: not at all). retention: how long events are kept ("400 days"; None: for
        ever).
        idle: a source that is silent for so long, by the clock, no longer holds the watermark back ("30s"; None: it
        does for ever). heartbeat: where nothing comes from any source for so long, event time goes on with the clock,
        that far behind it and less the lateness: for streams whose times are those of the clock. max_ahead: an event
        that is further ahead of the clock when it is pushed is refused: one wrong time would make all events after it
        late ("1 hour"; None: any time is taken, as tests, simulations and replays of the future want it).
        Declaring a stream again as it is does nothing; with more columns behind the others it adds them, and events so
        far have nulls there; what else is given from lateness on and differs, counts from now on, with a warning (see
        alter_stream). Raises DataError.
        """
        with interruptible():
            schema = declared(name, columns, time, key, order, 0 if lateness is None else lateness, retention)
        pace = pace_of(idle, heartbeat, max_ahead)
        with self._lock, Deferred():
            self._check_writes("create a stream")
            existing = self._streams.get(name.lower())
            if existing is not None:
                was = existing.schema
                again = replace(schema, lateness_us=was.lateness_us, retention_us=was.retention_us)
                wider = widened(was, again)
                if wider is not None:
                    self._add_columns(existing, wider)
                elif differences(was, again):
                    raise otherwise(was, again)
                values = {
                    "lateness": lateness, "retention": retention, "idle": idle, "heartbeat": heartbeat,
                    "max_ahead": max_ahead,
                }  # fmt: skip
                given = {key: value for key, value in values.items() if value is not None}
                for message in self.alter_stream(name, **given):
                    warnings.warn(f"stream {was.name}: {message}", HybridWarning, stacklevel=2)
                return
            directory = None
            live = LiveStream(schema)
            Ordering(schema)  # refuses tie columns that have no order
            if self._path is not None:
                directory = self._path / schema.name
                directory.make()
            kept = History(schema, directory / TABLE if directory else None, log=self._log, epoch=self._epoch)
            if self._beside_pushes and self._keeper is not None:
                kept.beside = self._keeper.wake
            stream = Stream(schema, live, kept, directory, pace=pace)
            stream.save()
            self._streams[name.lower()] = stream
            self._wind()

    def _add_columns(self, stream: Stream, schema: Schema) -> None:
        """Declares a stream with more columns behind the others; events so far have nulls there."""
        if self._flow.reads(stream):
            message = f"stream {schema.name} cannot take columns while live queries read or feed it"
            raise DataError(message, "close them, declare it, and watch again")
        stream.kept.add_columns(schema)
        stream.live.declare(schema)
        stream.schema = schema
        stream.save()

    def alter_stream(self, name: str, **changed: Any) -> list[str]:
        """Changes of a stream what may change while it is there: `lateness`, `retention`, `idle`, `heartbeat` and
        `max_ahead`, each as in create_stream, None for what it is where it is left out there. What was changed, in
        words.

        A change counts from now on: of events taken before, none becomes late or on time by it, and the watermark never
        goes back. With a longer lateness it waits until the newest events are that far ahead of it; with a shorter one
        it goes on with the next event. With a shorter retention the events behind it go at the next push. Raises
        DataError."""
        with self._lock, Deferred():
            self._check_writes("change a stream")
            state = self._stream(name)
            schema, pace, said = settings(state.schema, state.pace, changed)
            if schema != state.schema:
                self._declare(state, schema)
            if pace != state.pace:
                known = (*state.live.offsets, *state.live.expected)
                state.heard_s = dict.fromkeys(known, clock.monotonic()) | state.heard_s
                state.pace = pace
            if said:
                state.save()
                self._wind()
        if said and self._named:  # events that are matched again from a checkpoint go by the lateness it was taken with
            self._keep_names()
        return said

    def _declare(self, state: Stream, schema: Schema) -> None:
        """Lets a stream, and what reads it, go on with another lateness or retention."""
        state.kept.declare(schema)
        state.live.declare(schema)
        state.schema = schema
        if state.feed is not None:
            state.feed.declare(schema)
        for query in self._flow.queries:
            query.events.declare(schema)

    def streams(self) -> dict[str, dict[str, Any]]:
        """For each stream: its columns, watermark, the offset that is expected next from each source, the sources
        that the watermark waits for because they have sent nothing yet, the source that holds it back and since when
        nothing has come from it (None where nothing does), how many events were accepted, late and redelivered, and of
        the last ones how many there were and how many of them late."""
        with self._lock:
            self._refresh()
            return {
                s.schema.name: {
                    "columns": {f.name: f.type for f in s.schema.fields},
                    "time": s.schema.time,
                    "keys": list(s.schema.keys),
                    "watermark": show_us(s.live.watermark_us),
                    "ended": s.live.ended,
                    "events": s.kept.last_seq + 1,
                    "offsets": s.live.offsets,
                    "expected": list(s.live.expected),
                    "held_by": s.held_by(),
                    "accepted": s.live.accepted_count,
                    "late": s.live.late_count,
                    "duplicates": s.live.duplicate_count,
                    "lately": dict(zip(("events", "late"), s.lately.counts, strict=True)),
                }
                for s in self._streams.values()
            }

    def push(
        self, stream: str, data: Any, source: str = "default", offset: int | Int64Array | None = None
    ) -> int:
        """Takes events (an Arrow table or batch, a frame, a list of dicts) of one source, in the order it sent them.

        offset: position of the first row in its source, or int64 of each row, ascending; makes a retry idempotent.
        Returns how many rows were new, when they are kept (with a log: on disk) and every watch has seen them. All or
        nothing: raises DataError and changes nothing.
        """
        for alerts in [query.alerts for query in self._flow.queries]:
            if alerts.unread_count >= alerts.unread_max:
                alerts.make_room()  # not under the lock: whoever fetches may need it
        with self._lock, Deferred():
            state = self._open_stream(stream)
            if source == FILES:
                raise DataError(f"{FILES} is the source of archived files", "give this source another name")
            self._pushers.add(threading.get_ident())
            ceiling_us, said = self._ceiling(state)
            taken, trouble = self._flow.take(state, data, source, offset, ceiling_us)
            trouble += said + self._beside() + self._checkpoint_if_due()
            for message in trouble:
                warnings.warn(message, HybridWarning, stacklevel=2)
            return taken

    def skip(self, stream: str, source: str, offset: int) -> None:
        """What a source has sent up to an offset and is no event of the stream, as it was refused, is behind it: it is
        not expected again, and dropped if it comes. After a crash that is known from the log, from a checkpoint, or by
        a later event of that source. Raises DataError."""
        with self._lock, Deferred():
            state = self._open_stream(stream)
            if offset >= state.live.offsets.get(source, 0):
                state.kept.skip(source, offset)
                state.live.skip(source, offset)

    def _ceiling(self, state: Stream) -> tuple[int | None, list[str]]:
        """The time that events of a stream may not be beyond, if there is one; and what is to be said of the clock."""
        ahead_us = state.pace.ahead_us
        if ahead_us is None:
            return None, []
        said = self._clock.look(clock.time_ns() // 1000, since_boot_s())
        assert self._clock.latest_us is not None
        return self._clock.latest_us + ahead_us, said

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
    ) -> Report:
        """Archives CSV, NDJSON and Parquet files in a stream: files, directories, globs; paths or URLs.

        One commit for all; what is in the archive already is left out, so that a call may be repeated. Live queries
        do not see the rows; history joins, sql and backtest do. Rows that do not fit are quarantined, and with more
        than `max_bad` of them nothing is archived. Memory is bounded whatever the size. spark: the address of a Spark
        master, or a session, that does it. Raises DataError.
        """
        from archive.checks import Options
        from archive.ingest import Job, format_of, ingest

        with self._lock:
            state = self._open_stream(stream)
        if state.directory is None:
            raise DataError("a database in memory has no archive for files", "hybrid.connect(path) keeps one")
        paths = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        options = Options(delimiter, header, tuple(nulls), timestamp_format, extra, missing)
        named = tuple(str(path) for path in paths)
        job = Job(state.schema, state.directory / TABLE, named, format_of(format), options, changed, max_bad)
        told = progress or (lambda step: None)
        if spark is None:
            report = ingest(job, told)
        else:
            from archive.spark.ingest import ingest as ingest_by_spark

            report = ingest_by_spark(spark, job, told)
        with self._lock:
            state.kept.refresh()
        return report

    def advance(self, stream: str, time: Any) -> None:
        """Raises the stream's watermark to `time` ("2024-01-02 10:00", a datetime, microseconds) without events: no
        event before it will come. None ends the stream. Raises DataError."""
        with self._lock, Deferred():
            state = self._open_stream(stream)
            self._pushers.add(threading.get_ident())
            t_us = None if time is None else instant_us(time, "the time to advance to")
            if t_us is not None:
                state.kept.reach(t_us)
            trouble = self._flow.reach(state, t_us)
            for message in trouble:
                warnings.warn(message, HybridWarning, stacklevel=2)

    def rewind(self, stream: str, to: Any = None) -> Rewound:
        """Sets the watermark of a stream back, as if the events after `to` had never come and the clock had never
        raised it: for when one wrong time has made everything late. to: as in `advance`; None: now.

        The events after it are set aside: they stay in the archive as late ones, and no live query has them. All that
        came since the first of them is judged anew, by the other events alone: what was late for nothing counts. The
        live queries that read the stream go through these events once more, and their rows come out once more, with the
        ids they had where they are the same; rows that were made of events set aside, or of something being absent
        that came late, are not taken back. Takes a checkpoint where queries have names. To be called again after a
        crash in the middle. Raises DataError."""
        with self._lock, Deferred():
            state = self._open_stream(stream)
            to_us = clock.time_ns() // 1000 if to is None else instant_us(to, "the time to rewind to")
            if state.ended:
                raise DataError(f"stream {state.schema.name} has ended", "open the database again: that takes it up")
            fed = [p.target for p in self._flow.pours if state.schema.name.lower() in p.reads]
            if fed:
                message = f"rows of {state.schema.name} go into stream {fed[0]}, and would come twice"
                raise DataError(message, "close the query that feeds it, and watch it again into another stream")
            for query in self._flow.queries:
                self._catch_up(query)
            trouble: list[str] = []
            done = rewound(self._flow, state, to_us, self._memory.spill(), trouble)
            self._share_memory()
            state.save()
            for _ in range(2 if self._named else 0):  # the one that stands in for a broken one is from now too
                self.checkpoint()
            finished(state)
        for message in trouble:
            warnings.warn(message, HybridWarning, stacklevel=2)
        return done

    def expect(self, stream: str, sources: Sequence[str]) -> None:
        """These sources of a stream will send events, as the partitions of a topic do: the watermark waits until each
        has sent one, so that none is late because another was first. With `idle` it does not wait for ever.
        `streams()` says for whom it waits. Takes a checkpoint where queries have names: events that are matched again
        from the one before would not wait for them."""
        with self._lock, Deferred():
            state = self._open_stream(stream)
            new = set(state.live.expected)
            state.live.expect(sources)
            new = set(state.live.expected) - new
            for source in new:
                state.hear(source, clock.monotonic())
            if new:
                state.save()
        if new and self._named:
            self._keep_names()

    def leave(self, stream: str, source: str) -> None:
        """Nothing more comes from a source, as far as is known: it no longer holds the watermark back."""
        with self._lock, Deferred():
            state = self._open_stream(stream)
            before = state.live.watermark_us
            state.live.idle([source])
            reached_us = state.live.watermark_us
            trouble = self._flow.raised(state, reached_us) if reached_us is not None and reached_us != before else []
        for message in trouble:
            warnings.warn(message, HybridWarning, stacklevel=2)

    def tick(self, now_s: float | None = None, wall_us: int | None = None) -> None:
        """Looks at the clocks for the streams with `idle` or `heartbeat`, and for the queries that may leave out keys,
        and takes a checkpoint if one is due. A
        thread of the database does so four times a second; whoever has a clock of his own calls it himself.

        now_s: of time.monotonic; wall_us: microseconds since 1970, UTC. A jump of the latter moves no watermark."""
        boot_s = since_boot_s() if now_s is None else now_s
        now_s = clock.monotonic() if now_s is None else now_s
        wall_us = clock.time_ns() // 1000 if wall_us is None else wall_us
        with self._lock, Deferred():
            if self._closed:
                return
            paced = [s for s in self._streams.values() if s.pace.ticks and not s.live.driven and not s.ended]
            trouble = self._clock.look(wall_us, boot_s) if paced else []
            for state in paced:
                trouble += self._clock.confirm(state.live.newest_us if state.news else None)
            for state in paced:
                assert self._clock.earliest_us is not None
                reached_us = state.tick(now_s, self._clock.earliest_us)
                if reached_us is not None:
                    trouble += self._flow.raised(state, reached_us)
            for query in self._flow.queries:
                if query.events.shedding is not None:
                    trouble += query.events.look(now_s, wall_us, query.name)
            trouble += self._beside() + self._checkpoint_if_due()
        for message in trouble:
            warnings.warn(message, HybridWarning, stacklevel=2)

    # ---- overload

    def shed(self, alerts: Alerts, shed: Shed | None) -> None:
        """How a running query may leave out keys from now on, see `watch`; None takes all of them in again. Raises
        DataError where that needs events that are not kept any more, and QueryError."""
        with self._lock, Deferred():
            query = self._flow.running(alerts)
            if query is None:
                return
            shedding = query.events.shedding
            if shed == (None if shedding is None else shedding.shed):
                return
            if shed is not None:
                check_shed(alerts.plan, self._flow.target(alerts))
            query.events.allow(shed)
            self._wind()

    def _wind(self) -> None:
        """Starts the thread that looks at the clocks, if it is needed and does not run."""
        needed = self._checkpoint_every_us is not None or any(s.pace.ticks for s in self._streams.values())
        needed |= any(q.events.shedding is not None for q in self._flow.queries)
        if needed and self._ticker is None and not self._by_hand:
            self._ticker = self._left.ticker = Ticker(weakly(self.tick))
            self._ticker.start()

    def late(self, stream: str) -> LateEvents:
        """The late events of a stream from now on (the same object at each call). Raises DataError."""
        with self._lock:
            state = self._stream(stream)
            if state.late is None:
                state.late = LateEvents(state.live.columns)
            return state.late

    def _answered(self, query: LiveQuery) -> None:
        """A request of a query is over: somebody takes its answer, unless a push does so before."""
        if not self._closed:
            pools().takers.submit(self._take_answers, query)

    def _take_answers(self, query: LiveQuery) -> None:
        with self._lock, Deferred():
            if not self._closed and query in self._flow.queries:
                guarded(query, LiveQuery.settle)

    def _catch_up(self, query: LiveQuery, seconds: float | None = None) -> None:
        """Returns when no history is being read for a query, or so many seconds are over."""
        until_s = None if seconds is None else clock.monotonic() + seconds
        while query.asking is not None and (running := query.asking.running) is not None:
            wait([running], None if until_s is None else max(0.0, until_s - clock.monotonic()))
            if not running.done():
                break
            self._take_answers(query)
            if query.asking.running is running:
                break  # it is not the database's any more
        self._say_beside()

    def _beside(self) -> list[str]:
        """What has gone wrong lately beside the calls of users: when tables were looked after, and Spark searched."""
        found = [] if self._keeper is None else self._keeper.take_trouble()
        return found if self._large is None else found + self._large.take_trouble()

    def _say_beside(self) -> None:
        for message in self._beside():
            warnings.warn(message, HybridWarning, stacklevel=3)

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
    ) -> Alerts:
        """Starts a live query with an empty state: it sees the events pushed from now on, in the total order.

        start: the time ("2024-01-01") from which on it sees the on-time events that are kept too: it reads them first,
        in the total order, and goes on with those pushed; its rows are those of a backtest from then to now, and then
        of a watch that had begun then. Others may push meanwhile. Of a stream that has only rows of files, these are
        what its watermark follows from then on.
        strategy: when the archive is asked, which changes no row: "llaa" one match at a time, "sllaa" those together
        whose ends lie within `tolerance` of each other ("2s"; None: those that are complete at the same time), "alaa"
        everything ahead of any match, "ollaa" by which pattern is rarer, "auto" by what it costs. evidence: the rows
        carry the identity of their matches too, as last columns: match_id and, with a history join, join_id and
        history_complete. tables: static tables the outer SELECT joins, as they are now. into: a new stream that the
        rows are the events of, for other queries to read (fetch then gives none); time: the column of their time,
        if they have several. name: under which it goes on after a restart, from the last checkpoint: then this
        gives the alerts of the query that goes on. unread_max: so many rows may wait to be fetched (None: 5
        million); then a push waits for the thread that fetches them, or is refused where there is none. shed: lets
        it leave out keys while more comes than can be matched (hybrid.Shed; None: never); `stats()` counts what was
        left out and estimates the recall, and the archive has all of it. Raises QueryError, and DataError for rows
        that cannot be such events, for a name under which another query runs, and for files that cannot be read.
        """
        if self._read_only:
            self._check_writes("watch a stream")
        if strategy not in NAMES:
            raise fault("HQ500", f"there is no strategy {strategy!r}", text, nearest(str(strategy), NAMES))
        if tolerance is not None and strategy not in TOLERANT:
            message = f"under the strategy {strategy} no match waits for others: it takes no tolerance"
            raise fault("HQ500", message, text, f"use strategy={' or '.join(map(repr, TOLERANT))}")
        tolerance_us = None if tolerance is None else duration_us(tolerance, "the tolerance")
        from_us = None if start is None else instant_us(start, "the start of a watch")
        chosen = strategy_of(strategy, tolerance_us)
        asked = None
        if name is not None:
            check_query_name(name)
            static = {key: to_arrow(data, key, self._access) for key, data in (tables or {}).items()}
            asked = Asked(name, text, strategy, tolerance_us, evidence, into, time, static, from_us)
        past = None
        if from_us is not None:
            if into is not None:
                hint = "watch the rows from now on, or db.backtest the past"
                raise not_supported("into= with start=", text, hint)
            with self._lock:
                running = None if asked is None else self._running(asked)
                past = None if running is not None else self._past(text, chosen, tables or {}, evidence, from_us, shed)
            if past is not None:
                past.read()  # without the lock: nothing comes there any more
        with self._lock:
            if asked is not None:
                running = self._running(asked)
                if running is not None:
                    running.unread_max = running.unread_max if unread_max is None else unread_max
                    self.shed(running, shed)
                    return running
            before = list(self._flow.queries)
            try:
                if past is not None:
                    query, plan = past.query, past.plan
                    self._go_on(past)
                else:
                    query, plan = self._start(text, chosen, tables or {}, evidence, into, time, shed)
                query.asked = asked
                if unread_max is not None:
                    query.alerts.unread_max = unread_max
                if asked is not None:
                    self._named[asked.name] = query
                    self._keep_names()
            except BaseException:
                with Deferred():
                    self._withdraw(before)
                raise
            kept_in = self._memory.notes(query.events.spill)
        for message in dict.fromkeys([*waiting(plan, query), *kept_in]):
            warnings.warn(message, HybridWarning, stacklevel=2)
        return query.alerts

    def _start(
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, into: str | None,
        time: str | None, shed: Shed | None = None,
    ) -> tuple[LiveQuery, QueryPlan]:  # fmt: skip
        """A live query that has begun, and its plan."""
        query, plan = self._asked(text, strategy, tables, evidence, into)
        if shed is not None:
            check_shed(plan, into)
        query.events.begin(shed)
        self._has_begun(query)
        if into is not None:
            try:
                self._flow.pours.append(self._poured(plan, query, into, time))
            except Exception:
                self._stop(query)
                raise
        return query, plan

    def _has_begun(self, query: LiveQuery) -> None:
        """Hands what is pushed to a query from now on, and shares memory out anew."""
        self._flow.queries.append(query)
        self._share_memory()
        if query.events.shedding is not None:
            self._wind()

    def _past(
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, from_us: int, shed: Shed | None
    ) -> Past:
        """A live query that is to read the archive before it begins."""
        query, plan = self._asked(text, strategy, tables, evidence, from_us=from_us)
        if shed is not None:
            check_shed(plan, None)
        for state in query.events.streams.values():
            extent, *_ = state.kept.snapshot().extent()
            if state.watermark_us is None and not state.live.expected and extent is not None:
                self._flow.reach(state, extent[1] - state.schema.lateness_us)
        query.events.begin(shed)
        return Past(query, plan, from_us)

    def _go_on(self, past: Past) -> None:
        """Lets a live query begin that has read the archive, with what has come meanwhile."""
        self._check_open()
        over = [s.schema.name for s in past.streams.values() if s.ended]
        if len(over) == len(past.streams):
            raise fault("HQ400", f"stream {over[0]} has ended", past.plan.text, "ask db.sql or db.backtest")
        past.read_rest()
        self._has_begun(past.query)
        guarded(past.query, LiveQuery.settle)

    def _running(self, asked: Asked) -> Alerts | None:
        """The alerts of the query that runs under a name, if there is one."""
        if self._path is None:
            raise DataError("a database in memory has no checkpoints", "hybrid.connect(path), or leave out the name")
        known = self._named.get(asked.name)
        if known is None:
            return None
        if known.asked is None or not known.asked.same(asked):
            raise DataError(
                f"another query runs under the name {asked.name}",
                "db.replace puts a new version in its place, db.watching()[name].close() ends it",
            )
        return known.alerts

    def watching(self) -> dict[str, Alerts]:
        """The alerts of all queries with a name, also of those that go on from a checkpoint."""
        with self._lock:
            return {name: watch.alerts for name, watch in self._named.items()}

    # ---- checkpoints

    def checkpoint(self, notes: Mapping[str, str] | None = None) -> int:
        """Keeps what the queries with a name have become, so that they go on from there after a restart, however the
        process ends; gives its number. notes: what the caller wants to know then (Database.notes).

        Events that are only in memory are written to the archive first, unless the log has them. Others may push
        meanwhile; the state is copied in one go, between two of their batches. Raises DataError; the checkpoint before
        this one then stands."""
        with self._lock, Deferred():
            write = self._copied(notes)
        number = write()
        with self._lock, Deferred():
            self._memory.kept()
        return number

    def begin_checkpoint(self, notes: Mapping[str, str] | None = None) -> Future[int]:
        """Takes a checkpoint as `checkpoint` does, but returns when the state is copied: a thread writes it, and the
        events that are only in memory, while others push. Waits for the one before, if that is still written."""
        with self._lock, Deferred():
            self._checkpointing = _writers(os.getpid()).submit(self._copied(notes))
            return self._checkpointing

    def _copied(self, notes: Mapping[str, str] | None) -> Callable[[], int]:
        """Copies what goes into a checkpoint; what is given writes it, without the lock."""
        from hybrid.watch import checkpoint

        self._check_writes("take a checkpoint")
        path = self._path
        if path is None:
            raise DataError("a database in memory has no checkpoints", "hybrid.connect(path) keeps them")
        if interrupted := self._interrupted():
            raise DataError(
                f"query {interrupted[0]} was interrupted in the middle of a batch: what it has become is not kept",
                "close the database and open it again: its queries go on from the checkpoint before",
            )
        running, self._checkpointing = self._checkpointing, None
        if running is not None and running.exception() is None:  # what is kept on disk for one is that of the last
            self._memory.kept()
        number = self._checkpointed[0] + 1
        self.notes = self.notes if notes is None else dict(notes)
        state = state_of(self._streams, self._named, self.notes)
        self._checkpointed = (number, clock.monotonic())
        reached = [(stream.kept, stream.kept.last_seq) for stream in self._streams.values()]

        def write() -> int:
            if self._log != "fsync":
                for kept, last_seq in reached:
                    kept.flush(last_seq)
            checkpoint.write(path, number, state)
            return number

        return write

    def _interrupted(self) -> list[str]:
        """The names of the queries that an interrupt ended in the middle of a batch."""
        return [name for name, watch in self._named.items() if watch.alerts.interrupted]

    def _keep_names(self) -> None:
        """Takes a checkpoint when a query with a name has begun or ended: what runs then goes on after a crash."""
        try:
            self.checkpoint()
        except DataError as error:
            warnings.warn(f"no checkpoint could be taken: {error}", HybridWarning, stacklevel=3)

    def _checkpoint_if_due(self) -> list[str]:
        every_us = self._checkpoint_every_us
        if every_us is None or not self._named or (clock.monotonic() - self._checkpointed[1]) * 1e6 < every_us:
            return []
        try:
            self.checkpoint()
        except DataError as error:
            return [f"no checkpoint could be taken: {error}"]
        return []

    def _resume(self) -> None:
        """Lets the queries of the last checkpoint go on: with what they had become, and then the events since."""
        from hybrid.watch import checkpoint

        assert self._path is not None
        found = checkpoint.newest(self._path)
        if found is None:
            self._memory.begins_anew()
            return
        number, state = found
        self._checkpointed, self.notes = (number, clock.monotonic()), state["notes"]
        anew: list[LiveQuery] = []
        resumed: list[tuple[LiveQuery, Mapping[str, Any]]] = []
        for name, saved in state["streams"].items():
            stream = self._streams.get(name)
            if stream is None:
                raise DataError(
                    f"the checkpoint knows a stream {name} that is not there",
                    "restore its directory; or remove the directory _checkpoint: queries then begin anew",
                )
            check_ahead(stream, saved["live"]["next_seq"])
            live = {**saved["live"], "ended": False}
            lateness_us = live.get("lateness_us", stream.schema.lateness_us)
            # A crash may have come between a change of the lateness and the checkpoint after it: with the longer one
            # no event that was on time is behind the watermark when it is matched again.
            replayed = replace(stream.schema, lateness_us=max(lateness_us, stream.schema.lateness_us))
            stream.live = LiveStream.from_dict(replayed, live)
        for name, saved in state["queries"].items():
            asked = read_asked(saved["asked"])
            done = saved["alerts"]["over"] is not None
            strategy = strategy_of(asked.strategy, asked.tolerance_us)
            if done:
                query, _ = self._asked(asked.text, strategy, asked.tables, asked.evidence)
            else:
                query, _ = self._start(
                    asked.text, strategy, asked.tables, asked.evidence, asked.into, asked.time
                )
            query.asked = asked
            query.alerts.restore(saved["alerts"])
            if query.driver is not None:
                query.driver.restore(saved["driver"])
            self._named[name] = query
            resumed.append((query, saved))
        members: dict[str, Member | Unread] = {}
        for name, saved in state["streams"].items():
            members |= self._restore_feed(self._streams[name], saved)
        for query, saved in resumed:
            assert query.asked is not None
            if not query.events.restore(saved["own"], members.get(query.asked.name)) and not query.alerts.done:
                anew.append(query)
        self._share_memory()
        self._make_anew(anew, state["version"])
        for name in state["streams"]:
            stream = self._streams[name]
            if not stream.live.driven:  # the rows of a query come again from the query
                for batch, late in stream.kept.snapshot().since(stream.live.next_seq):
                    self._flow.give(stream, stream.live.replay(batch, late))
                logged_us = stream.kept.logged_watermark_us
                if logged_us is not None and (stream.watermark_us is None or logged_us > stream.watermark_us):
                    self._flow.reach(stream, logged_us)
                for source, offset in stream.kept.skipped.items():
                    stream.live.skip(source, offset)
            stream.live.declare(stream.schema)

    def _make_anew(self, queries: Sequence[LiveQuery], version: int) -> None:
        """Lets queries whose state in the checkpoint means something else to this release go on from their events."""
        from hybrid.watch import checkpoint

        if not queries:
            return
        if len(queries) == sum(not query.alerts.done for query in self._named.values()):
            self._memory.begins_anew()
        lost = []
        for query in queries:
            try:
                whole = query.events.replay()
            except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's own)
                query.alerts.fail(error)
                whole = True
            assert query.asked is not None
            lost += [] if whole else [query.asked.name]
        names = [name for name, query in self._named.items() if any(query is one for one in queries)]
        for message in checkpoint.replaced(names, lost, version, self._wider):
            warnings.warn(message, HybridWarning, stacklevel=5)
        self._share_memory()

    def _restore_feed(self, stream: Stream, saved: Mapping[str, Any]) -> dict[str, Member | Unread]:
        """Gives a stream the feed that it had. Returns the members by the names of their queries."""
        names = saved["members"]
        if not names:
            return {}
        stream.feed = new_feed(stream.schema, self._memory.spill())
        members = stream.feed.restore(saved["feed"], [self._named[name].factor.plan for name in names])
        return dict(zip(names, members, strict=True))

    def replace(
        self,
        alerts: Alerts,
        text: str,
        *,
        fresh: bool = False,
        evidence: bool = False,
        tables: Mapping[str, Any] | None = None,
    ) -> Alerts:
        """Puts a new version of a running query over the same stream in its place; matches in progress are not lost.

        The new version is as if it had run since the old one began; what it would have found before now does not come
        out again. Where the two differ only in measures, in how these are shown and in the outer SELECT, all that was
        in progress goes on; otherwise the events since then are replayed from what is kept, or those within WITHIN
        where no others can matter. If they are not kept any more it is a DataError, or with `fresh` a HybridWarning,
        and the new version sees the events from now on. The alerts of the old version keep what it has found, and what
        waits for history still comes there. Raises QueryError, DataError; the old version then goes on.
        """
        with self._lock, Deferred():
            self._check_open()
            old = self._flow.running(alerts)
            if old is None:
                raise DataError("this query is not running", "start the new version with db.watch")
            if self._flow.target(alerts) is not None:
                raise DataError("this query feeds a stream", "close it, and start the new version with db.watch")
            strategy = strategy_of("auto") if old.driver is None else old.driver.strategy
            query, plan = self._asked(text, strategy, tables or {}, evidence)
            was, now = (sorted(q.events.streams) for q in (old, query))
            if was != now:
                hint = "close the old query, and watch the new one"
                message = f"the new version reads {', '.join(now)}, the old one {', '.join(was)}"
                raise fault("HQ400", message, text, hint)
            if old.events.shedding is not None:
                check_shed(plan, None)
            whole = query.events.succeed(old.events, fresh)
            self._has_begun(query)
            if old.asked is not None:
                query.asked = replace(old.asked, text=text, evidence=evidence)
                self._named[old.asked.name] = query
                self._keep_names()
            old.events.leave()
            guarded(old, LiveQuery.settle)
            self._flow.drop_over()
        for message in waiting(plan, query):
            warnings.warn(message, HybridWarning, stacklevel=2)
        if not whole:
            message = "events since the old version began are no longer kept: the new one begins with an empty state"
            warnings.warn(message, HybridWarning, stacklevel=2)
        return query.alerts

    def rows_of(self, text: str, shed: Shed | None = None) -> tuple[pa.Schema, tuple[str, ...]]:
        """What a live query would give, with the identity of its matches, and the streams it would read, in lower case;
        nothing is started. shed: as in `watch`. Raises QueryError."""
        with self._lock:
            query, plan = self._asked(text, strategy_of("auto"), {}, evidence=True)
            if shed is not None:
                check_shed(plan, None)
            return query.alerts.schema, plan_streams(plan)

    def schema(self, stream: str) -> Schema:
        """What a stream is declared as. Raises DataError."""
        with self._lock:
            return self._stream(stream).schema

    def reached(self, stream: str) -> Reached:
        """How far a stream has come. Raises DataError."""
        with self._lock:
            live = self._stream(stream).live
            return Reached(live.offsets, live.watermark_us, live.newest_us)

    def _asked(
        self, text: str, strategy: Strategy, tables: Mapping[str, Any], evidence: bool, into: str | None = None,
        from_us: int | None = None,
    ) -> tuple[LiveQuery, QueryPlan]:  # fmt: skip
        """A live query that may begin, and its plan. from_us: it sees the events that are kept from then on too. Raises
        QueryError."""
        self._check_open()
        parsed, plan, outer, static = self._live_plan(text, tables)
        if into is not None and plan.alert is not None:
            hint = "leave it out, and watch the stream with ALERT ONCE"
            raise not_supported(f"ALERT ONCE on rows that go into {into}", text, hint)
        streams = {name: self._streams[name] for name in plan_streams(plan)}
        joined = [h.schema.name.lower() for h in plan.factors[-1].histories]
        histories = {name: self._streams[name] for name in joined}
        over = [s.schema.name for s in streams.values() if s.ended]
        if len(over) == len(streams):
            raise fault("HQ400", f"stream {over[0]} has ended", text, "ask db.sql or db.backtest")
        spill = self._memory.spill()
        events: Events
        if plain(plan):
            events = InFeed(plan.factors[0], next(iter(streams.values())), spill, from_us)
        else:
            events = InChain(plan, streams, static, spill, from_us, self._access)
        query = LiveQuery(plan.factors[-1], events, histories, strategy, plan.alert is not None, self._large)

        def explained(stage: str) -> str:
            shedding = None if events.shedding is None else str(events.shedding)
            return explain_live(parsed, plan, strategy, stage, query.driver, shedding)

        def stats() -> dict[str, Any]:
            with self._lock:
                return query.stats()

        query.alerts = Alerts(
            outermost(plan), outer, query.lookups, explained, stats, self._may_wait, lambda: self._stop(query),
            evidence, lambda: self._rows_from(query, plan), lambda seconds: self._catch_up(query, seconds),
        )
        if query.driver is not None:
            # what flows on into another stream comes in its turn
            pool = None if into is not None else pools().readers
            query.asking = Asking(query.driver, pool, lambda: self._answered(query))
            query.asking.prepare(histories)
        return query, plan

    def _rows_from(self, query: LiveQuery, plan: QueryPlan) -> int | None:
        """No row whose last event has a time below this can still come out for ALERT ONCE to judge; None: any may."""
        with self._lock:
            lag_us, watermark_us = plan.alert.lag_us if plan.alert is not None else None, query.events.watermark_us
            if lag_us is None or watermark_us is None:
                return None
            waiting_us = query.driver.waiting_from_us() if query.driver is not None else None
            return watermark_us - lag_us if waiting_us is None else min(watermark_us - lag_us, waiting_us)

    def _share_memory(self) -> None:
        """Says to all that hold partial matches, or what was found in history, how much is theirs."""
        feeds = [s.feed for s in self._streams.values() if s.feed is not None]
        self._memory.share_out([*feeds, *(h for q in self._flow.queries for h in q.events.holders)])
        drivers = [q.driver for q in self._flow.queries if q.driver is not None]
        self._memory.share_kept([cache for driver in drivers for cache in driver.caches])

    def _stop(self, query: LiveQuery) -> None:
        """Ends one live query; nothing else changes."""
        with self._lock, Deferred():
            query.events.leave()
            if query.driver is not None:
                query.driver.discard()
            self._flow.remove(query)
            self._share_memory()
            if query.asked is not None and self._named.get(query.asked.name) is query:
                del self._named[query.asked.name]
                if not self._closed:
                    self._keep_names()
            query.alerts.finish("closed")

    def _withdraw(self, before: Sequence[LiveQuery]) -> None:
        """Ends the queries that are not among those before: one that could not begin whole."""
        for query in [q for q in self._flow.queries if q not in before]:
            self._stop(query)
        for stream in self._streams.values():
            if stream.feed is not None:
                stream.feed.keep_only([q.events.member for q in self._flow.queries if q.events.member is not None])
                if not len(stream.feed):
                    stream.feed = None

    def _poured(self, plan: QueryPlan, query: LiveQuery, into: str, time: str | None) -> Pour:
        """Declares the stream that the rows of a new live query go to."""
        reads, target = frozenset(plan_streams(plan)), into.lower()
        upstream = set(reads)
        while more := {name for p in self._flow.pours if p.target in upstream for name in p.reads} - upstream:
            upstream |= more
        if target in upstream:
            raise DataError(f"the rows cannot go into {into}, which they are made of", "choose another name")
        if any(p.target == target for p in self._flow.pours):
            raise DataError(f"stream {into} is fed by a live query already", "choose another name")
        rows = rows_as_events(plan, query.alerts.schema, time)
        keeping = [self._streams[name].schema.retention_us for name in reads]
        retention = None if None in keeping else timedelta(microseconds=max(k for k in keeping if k is not None))
        keys = [c.name for c in plan.factors[-1].plan.partition_by if c.name in rows.columns]
        self.create_stream(into, rows.columns, rows.time, keys, rows.order, rows.lateness, retention)
        state = self._streams[target]
        if state.ended:
            raise DataError(f"stream {into} has ended", "choose another name")
        state.live.driven = True
        return Pour(query.alerts, reads, target, rows.lag_us, lambda: query.events.watermark_us)

    def _may_wait(self) -> bool:
        """Whether another thread may still push: not from the thread that did, nor with one thread only.

        Threads that Python did not start (a debugger's, a test runner's) count if they have pushed: nobody knows
        whether they have ended. Those of Spark's client never push, and live as long as its session."""
        own = threading.get_ident()
        paced = any(s.pace.ticks for s in self._streams.values())
        quiet = (KEEPER, RENEWER) if paced else (KEEPER, RENEWER, TICKER)  # time alone may decide something
        others = [
            t for t in threading.enumerate()
            if t.ident != own and t.name not in quiet and not t.name.startswith((POOLS, CHECKPOINTS))
            and not _is_sparks(t)
        ]
        return not self._closed and own not in self._pushers and any(
            not isinstance(thread, threading._DummyThread) or thread.ident in self._pushers for thread in others
        )

    def _live_plan(
        self, text: str, tables: Mapping[str, Any]
    ) -> tuple[ast.Query, QueryPlan, Outer, dict[str, pa.Table]]:
        """The plan of a live query, what runs its outer SELECT, and the tables that stand still."""
        query = parse(text, tuple(s.schema.name for s in self._streams.values()))
        if not query.factors:
            raise fault("HQ400", "a live query needs FROM stream MATCH_RECOGNIZE (...)", text, "ask db.sql")

        def resolve(name: str) -> Schema:
            stream = self._streams.get(_name(name))
            if stream is None:
                raise LookupError(nearest(name.strip(), [s.schema.name for s in self._streams.values()]))
            return stream.schema

        words = {w.lower() for w in re.findall(r"\w+", text)}
        with interruptible():
            static = {
                name: to_arrow(data, name, self._access) for name, data in tables.items() if name.lower() in words
            }
            relations = {name: fields_of(t) for name, t in static.items()}
            plan = bind(query, resolve, live=True, relations=relations, describe=binder(self._access))
            outer = Outer(outermost(plan), static, self._access)
            outer.schema()  # DuckDB's own view of the outer SELECT, before any event
        return query, plan, outer, static

    def sql(
        self, text: str, *, late: bool = True, engine: str = "embedded", spark: Any = None, **tables: Any
    ) -> Result:
        """Answers one statement over streams (archive and memory, one consistent snapshot) and named tables.

        late: whether late rows are seen; False is what a live query sees. engine: "spark" lets Spark search for the
        patterns over streams, in files only: what is in memory is written first. spark: where, a master's address
        (local[*], spark://host:7077, sc://host:15002), a session, or None for the one that runs or else local[*].
        Rows are the same; without ORDER BY in the outer SELECT they may come in another order.
        Raises QueryError, DataError."""
        if engine not in ENGINES:
            raise fault("HQ500", f"there is no engine {engine!r}", text, nearest(str(engine), ENGINES))
        with self._lock:
            self._check_open()
            self._refresh()
            words = {w.lower() for w in re.findall(r"\w+", text)}
            words |= self._streams.keys() if lacks_input(text) else set()
            asked = {key: stream for key, stream in self._streams.items() if key in words}
            for stream in asked.values():
                if engine == "spark" or ("history" in words and self._may_be_large(stream)):
                    stream.kept.flush()
            streams = {key: _input(stream, late) for key, stream in asked.items()}
        on_spark = OnSpark(spark) if engine == "spark" else None
        with interruptible():
            relations = Relations(
                text, tables, streams, memory_limit=self._memory_limit, spark=on_spark, large=self._large,
                access=self._access,
            )
            with relations.open():
                found = answer(text, relations)
        self._say_beside()
        return found

    def backtest(self, text: str, start: Any, end: Any = None, tables: Mapping[str, Any] | None = None) -> Result:
        """Replays archived events as live: exactly what a watch started at `start` would have found up to `end`.

        Empty state, the on-time events with start <= time < end in the total order, then the watermark at `end`;
        nothing that is pending then comes out. end None: every event kept, and then the end of the stream, as if it had
        been ended by advance(stream, None). Raises QueryError, DataError.
        """
        (result,) = self._backtests((text,), start, end, tables)
        return result

    def compare(
        self, old: str, new: str, start: Any, end: Any = None, tables: Mapping[str, Any] | None = None
    ) -> Difference:
        """Backtests two versions of a query over the same events: the rows that only one of them gives.

        Rows are compared by the values of the columns that both versions have. start, end, tables: as in `backtest`.
        Raises QueryError, DataError."""
        was, now = self._backtests((old, new), start, end, tables)
        return difference(was.arrow(), now.arrow())

    def _backtests(
        self, texts: Sequence[str], start: Any, end: Any, tables: Mapping[str, Any] | None
    ) -> list[Result]:
        """What several queries give over the same events."""
        start_us = instant_us(start, "the start of a backtest")
        end_us = None if end is None else instant_us(end, "the end of a backtest")
        if end_us is not None and start_us > end_us:
            raise DataError("a backtest ends before it starts", "backtest(text, start, end)")
        with self._lock:
            self._check_open()
            self._refresh()
            plans = [self._live_plan(text, tables or {}) for text in texts]
            joined = {h.schema.name.lower() for _, plan, *_ in plans for h in plan.factors[-1].histories}
            for name in joined:
                if self._may_be_large(self._streams[name]):
                    self._streams[name].kept.flush()
            inputs = {key: _input(stream, late=False) for key, stream in self._streams.items()}
        with interruptible():
            found = [backtest(*planned, inputs, start_us, end_us, self._large) for planned in plans]
        self._say_beside()
        return found

    def _may_be_large(self, stream: Stream) -> bool:
        """Whether a range of it may be Spark's, which searches in files only."""
        return self._large is not None and stream.kept.snapshot().rows_max > self._large.events_max

    def explain(self, text: str, stage: str = "all", tables: Mapping[str, Any] | None = None) -> str:
        """What the stages make of a statement over streams and named tables. Reads no events."""
        with self._lock:
            self._check_open()
            streams = {key: _input(stream, late=True) for key, stream in self._streams.items()}
        return explain_in(text, stage, Relations(text, tables or {}, streams, access=self._access))

    # ---- life

    def flush(self) -> None:
        """Writes everything that is only in memory to the archive."""
        with self._lock, Deferred():
            self._check_writes("flush")
            for stream in self._streams.values():
                stream.kept.flush()
                stream.save()

    def snapshot(self, target: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> Copied:
        """Copies the database to a directory or an `s3://` address, as it is now: archive, log and the last checkpoint;
        only what is new where a copy of it is there already. Others may push meanwhile. Raises DataError."""
        from hybrid.database.backup import snapshot

        with self._lock:
            self._check_open()
            if self._path is None:
                raise DataError("a database in memory has nothing to copy", "hybrid.connect(path) keeps one")
            if self._log is None:
                self.flush()
        return snapshot(self._path, place_of(target, storage_options))

    def held(self, stream: str) -> Held:
        """What of a stream is in memory and in no file, and how its writing goes. Raises DataError."""
        with self._lock:
            kept = self._stream(stream).kept
            rows, nbytes = kept.held
            return Held(rows, nbytes, kept.directory is not None, kept.written_since_s, kept.failure)

    def close(self, wait: bool | float = True, checkpoint: bool = True) -> None:
        """Flushes, takes a last checkpoint if queries have names, and ends every iteration over alerts. What is ready
        can still be fetched.

        wait: for history that is being read; so many seconds at the most. What still waits for it then is in the
        checkpoint, if its query has a name. checkpoint: False where nothing has changed since the last one."""
        if self._ticker is not None:  # before the lock, for which it may wait
            self._ticker.stop()
        with self._lock:
            if self._closed:
                return
            try:
                if self._keeper is not None:
                    self._keeper.stop()
                for query in self._flow.queries if wait else ():
                    self._catch_up(query, None if wait is True else wait)
            finally:  # an interrupt ends the waiting, and nothing else
                with Deferred():
                    self._finish(checkpoint)

    def _finish(self, checkpoint: bool) -> None:
        """Writes what is to be kept, and closes."""
        try:
            if self._checkpointing is not None:
                self._checkpointing.exception()  # it is written by then, or could not be
            if not self._read_only:
                self.flush()
            if checkpoint and self._named and not self._interrupted():
                self.checkpoint()
        finally:
            self._closed = True
            for query in self._flow.queries:
                query.alerts.finish()
            self._release()

    def _release(self) -> None:
        """Gives back what it holds of files and of the right to write."""
        try:
            if self._keeper is not None:
                self._keeper.stop()
            for stream in self._streams.values():
                stream.kept.release()
            self._memory.close()
        finally:
            if self._when_left is not None:
                self._when_left.detach()
            if self._writer is not None:
                self._writer.release()

    def end_with_process(self, patience_s: float) -> None:
        """What hybrid.database.leaving does at the end of the process: events in memory go into files. Raises
        DataError if another thread holds the database for longer."""
        if not self._lock.acquire(timeout=patience_s):
            raise DataError(f"another thread uses {self._path}", "close databases before the process ends")
        closed, self._closed = self._closed, True
        self._lock.release()
        if not closed and self._when_left is not None:
            self._when_left.detach()
            self._left.finish()  # without the lock: threads that wait for it are to end

    def abandon(self) -> None:
        """Leaves it as a crash would: nothing more is written, not even at the end of the process. For one whose disk
        or store does not answer."""
        self._closed = True
        if self._when_left is not None:
            self._when_left.detach()

    def disown(self) -> None:
        """What hybrid.database.leaving does in a child after a fork: the database is the parent's. Writes nothing."""
        self._lock = threading.RLock()
        self._closed = True
        if self._when_left is not None:
            self._when_left.detach()
        for stream in self._streams.values():
            stream.kept.release()
        if self._writer is not None:
            self._writer.release()  # the parent's end is to free it, however long the child goes on

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(wait=kind is None or issubclass(kind, Exception))  # who has been interrupted does not wait

    def _check_writes(self, what: str) -> None:
        """Raises DataError where the database is not open for that, and where another process writes it."""
        self._check_open()
        if self._read_only:
            hint = "hybrid.connect(path), without read_only"
            raise DataError(f"this database is open for reading only: it cannot {what}", hint)
        if self._writer is not None:
            self._writer.check()

    def _refresh(self) -> None:
        """Takes over what the process that writes has taken, where this one only reads."""
        if self._read_only and self._path is not None and not self._closed:
            for name in stream_names(self._path):
                known = self._streams.get(name.lower())
                if known is None or not known.reread():
                    stream = reopened(self._path / name, None, read_only=True)
                    self._streams[stream.schema.name.lower()] = stream

    def _check_open(self) -> None:
        if self._closed:
            if self._writer is not None:
                self._writer.check()  # it may be that of a parent
            raise DataError("this database is closed", "open it again with hybrid.connect")

    def _open_stream(self, name: str) -> Stream:
        """A stream that may be pushed to."""
        self._check_writes("take events")
        state = self._stream(name)
        if state.live.driven:
            raise DataError(f"stream {state.schema.name} is fed by a live query", "push to the streams that it reads")
        return state

    def _stream(self, name: str) -> Stream:
        self._check_open()
        found = self._streams.get(str(name).lower())
        if found is None:
            known = [s.schema.name for s in self._streams.values()]
            raise DataError(f"there is no stream {name}", nearest(str(name), known) or "create it with create_stream")
        return found



@cache
def _writers(process: int) -> Executor:
    """The thread of this process that writes checkpoints, one after the other."""
    return Daemons(1, CHECKPOINTS)


def _is_sparks(thread: threading.Thread) -> bool:
    """Whether a thread belongs to the client of Spark, by what it is or runs."""
    from archive.spark.session import PACKAGES

    runs = getattr(thread, "_target", None)
    owners = (type(thread), runs, type(getattr(runs, "__self__", None)))
    return any(str(getattr(o, "__module__", "")).partition(".")[0] in PACKAGES for o in owners)


def waiting(plan: QueryPlan, query: LiveQuery) -> list[str]:
    """Why matches of a live query may come late, and partial ones may never end."""
    found = [waits(f.plan, f.alias if query.asked is None else query.name) for f in plan.factors]
    return list(dict.fromkeys(message for messages in found for message in messages))


def _name(text: str) -> str:
    return text.strip().strip('"').lower()



def _input(stream: Stream, late: bool) -> StreamInput:
    return StreamInput(stream.schema, stream.kept.snapshot(), stream.begins_us(), late)
