"""One stream of a database: its intake and its history."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archive.history import LOG, History, archived_schema, check_there
from archive.place import Place
from archive.reader import HistoryReader, RangeRequest
from archive.recent import FILES
from hybrid.rows.inputs import SORTED_MAX
from hybrid.rows.times import show_us
from hybrid.watch.declaration import TABLE, UNPACED, Pace, read_declaration, write_declaration
from hybrid.watch.late import LateEvents, LateShare
from live.stream import Arrival, LiveStream
from live.watermark import BoolArray
from matching.batch import EventBatch
from matching.feed import Feed
from query.errors import warn
from query.schema import Schema

if TYPE_CHECKING:
    from archive.log import Policy


#: In the directory of a stream during a rewind.
REWIND = "rewind.json"


@dataclass(frozen=True, slots=True)
class Owed:
    """Events of one push, and which of them are late, that `Stream.kept` has and `Stream.live` has not taken yet.
    heard_s: when they came, of a monotonic clock."""

    batch: EventBatch
    late: BoolArray
    source: str
    heard_s: float


@dataclass(slots=True)
class Stream:
    """One stream: its intake and its history. The driver reads it as a history."""

    schema: Schema
    live: LiveStream
    kept: History
    directory: Place | None
    dropped_us: int | None = None
    feed: Feed | None = None
    pace: Pace = UNPACED
    heard_s: dict[str, float] = field(default_factory=dict)
    late: LateEvents | None = None
    #: True once a warning has said that an event came late.
    late_said: bool = False
    #: The ingest sequence from which the last checkpoint had late events that nobody had fetched.
    late_since: int | None = None
    lately: LateShare = field(default_factory=LateShare)
    #: news: True if an event has arrived since the last look at the clock. anchor_us: time of the event that was
    #: furthest ahead of the clock at a look, and time of that clock.
    news: bool = False
    anchor_us: tuple[int, int] | None = None
    #: True if the last `save` has failed.
    unsaved: bool = False
    owed: Owed | None = None
    #: How many events the queries take together, by how long they took lately.
    part_rows: int = 2048

    @property
    def watermark_us(self) -> int | None:
        return self.live.watermark_us

    @property
    def ended(self) -> bool:
        return self.live.ended

    @property
    def offsets(self) -> dict[str, int]:
        """Returns the next expected offset of each source, after the owed events."""
        owed = self.owed
        return self.live.offsets if owed is None else {**self.live.offsets, owed.source: int(owed.batch.offset[-1]) + 1}

    def owe(self, arrival: Arrival, source: str, heard_s: float, before: Mapping[str, Any]) -> None:
        """Owes an arrival, whose events `kept` has. before: the state of `live` before it, where it stands again, as
        after a crash between the two."""
        live, owed = LiveStream.from_dict(self.schema, before), Owed(arrival.batch, arrival.late, source, heard_s)
        live.duplicate_count = self.live.duplicate_count
        self.live, self.owed = live, owed  # both or none

    def pay(self, rows: int) -> Arrival:
        """Takes the first owed events, at most so many, into `live`. Returns them."""
        owed = self.owed
        assert owed is not None
        n = len(owed.batch)
        part = self.live.replay(owed.batch.slice(0, min(rows, n)), owed.late[:rows])
        self.owed = None if rows >= n else replace(owed, batch=owed.batch.slice(rows, n), late=owed.late[rows:])
        return part

    @property
    def on_time_count(self) -> int:
        """Returns the number of on-time events taken since the stream was opened."""
        return self.live.accepted_count - self.live.late_count

    @property
    def revision(self) -> object:
        return self.kept.revision

    def begins_us(self) -> int | None:
        first_us, watermark_us, retention_us = self.kept.first_us, self.live.watermark_us, self.schema.retention_us
        if first_us is None or watermark_us is None or retention_us is None:
            return first_us
        return max(first_us, watermark_us - retention_us)

    def files_reach_us(self) -> int | None:
        """Returns the watermark that files alone give a stream, in which no source has sent events or is expected to:
        the time of their last row, less the lateness. None without files."""
        extent, *_ = self.kept.snapshot().extent()
        return None if extent is None or self.live.expected else extent[1] - self.schema.lateness_us

    def reader(self, in_files: bool = False) -> HistoryReader:
        if in_files:
            self.kept.flush()
        return self.kept.snapshot()

    def forget(self) -> None:
        """Removes events older than retention, a tenth of it at a time, or leaves that to the next flush."""
        watermark_us, retention_us = self.live.watermark_us, self.schema.retention_us
        if watermark_us is None or retention_us is None:
            return
        edge_us = watermark_us - retention_us
        if self.kept.beside is not None:
            if self.dropped_us is None or edge_us - self.dropped_us > retention_us // 10:
                self.kept.expire_us = self.dropped_us = edge_us
            return
        first_us = self.kept.first_us
        if first_us is None:
            return
        since_us = first_us if self.dropped_us is None else max(first_us, self.dropped_us)
        if edge_us - since_us > retention_us // 10:
            self.kept.drop_before(edge_us)
            self.dropped_us = edge_us

    def save(self) -> None:
        """Writes the state that the archive does not hold. Atomic."""
        if self.directory is not None:
            watermark_us, expected = self.live.watermark_us, self.live.expected
            self.unsaved = True
            write_declaration(self.directory, self.schema, watermark_us, self.pace, expected, self.kept.is_logged)
            self.unsaved = False

    def reread(self) -> bool:
        """Adopts the changes of the writing process. Returns False if that has declared more columns."""
        assert self.directory is not None
        schema, saved_us, *_ = read_declaration(self.directory)
        if archived_schema(self.directory / TABLE, schema) != self.schema:
            return False
        self.kept.refresh()
        self.live = LiveStream(
            self.schema, self.kept.last_seq + 1, self.kept.offsets, _watermark_of(self.kept, saved_us, self.schema)
        )
        return True

    def hear(self, source: str, now_s: float) -> None:
        """Records an arrival from a source. now_s: of a monotonic clock."""
        self.heard_s[source] = now_s
        self.news = True

    def late_events(self) -> LateEvents:
        """Returns the late events from now on, or after a restart from those on that were not fetched before the last
        checkpoint. Raises DataError if these cannot be read."""
        if self.late is None:
            found = LateEvents(self.live.columns)
            if self.late_since is not None:
                for batch, late in self.kept.snapshot().since(self.late_since):
                    if late.any():
                        found.add(batch, late)
            self.late = found
        return self.late

    def late_mark(self) -> int | None:
        """Returns the ingest sequence from which late events come again after a restart; None if nobody wants them."""
        return self.late_since if self.late is None else self.late.since(self.live.next_seq)

    def held_by(self) -> dict[str, Any] | None:
        """Returns the source that holds the watermark back, the time of its last event and the seconds since; None if
        no event is ahead of that source's watermark."""
        source, watermark_us, newest_us = self.live.holder, self.live.watermark_us, self.live.newest_us
        waited = source in self.live.expected
        if source is None or not (waited or _is_ahead(newest_us, watermark_us, self.schema.lateness_us)):
            return None
        now_s = time.monotonic()
        silent_s = now_s - self.heard_s.get(source, now_s)
        since_s = round(time.time() - silent_s)
        return {"source": source, "since": show_us(since_s * 1_000_000), "silent_s": round(silent_s, 1)}

    def tick(self, now_s: float, earliest_us: int) -> int | None:
        """Applies idle timeout and heartbeat. Returns the watermark if they have raised it. now_s: of a monotonic clock
        that stops while the machine is suspended, when no event can arrive; earliest_us: the time of day without its
        jumps.

        A heartbeat continues from the newest event at the speed of the clock. The time of day matters only if no event
        has arrived since the stream was opened."""
        before = self.live.watermark_us
        newest_us, self.news = self.live.newest_us if self.news else None, False
        if newest_us is not None and (self.anchor_us is None or newest_us > self._now_us(earliest_us)):
            self.anchor_us = newest_us, earliest_us
        if self.pace.idle_us is not None:
            silent_s = self.pace.idle_us / 1e6
            # in the order in which they fell silent, so that the interval between looks does not matter
            for source, heard in sorted(self.heard_s.items(), key=lambda item: item[1]):
                if now_s - heard >= silent_s:
                    self.live.idle([source])
        if self.pace.heartbeat_us is not None and before is not None:
            last = max(self.heard_s.values(), default=now_s)
            if now_s - last >= self.pace.heartbeat_us / 1e6:
                self.live.advance(self._now_us(earliest_us) - self.pace.heartbeat_us - self.schema.lateness_us)
        return self.live.watermark_us if self.live.watermark_us != before else None

    def _now_us(self, earliest_us: int) -> int:
        """Returns the current event time by the clock."""
        if self.anchor_us is None:
            return earliest_us
        newest_us, then_us = self.anchor_us
        return min(earliest_us, newest_us + max(0, earliest_us - then_us))


@dataclass(frozen=True, slots=True)
class Reached:
    """Progress of a stream. positions: for each source the offset expected next; watermark_us, newest_us (the largest
    event time): None before the first event."""

    positions: dict[str, int]
    watermark_us: int | None
    newest_us: int | None


def reopened(directory: Place, log: Policy | None, epoch: int | None = None, read_only: bool = False) -> Stream:
    """Returns a stream in its last durable state: declaration, sequence, offsets and watermark. epoch, read_only: see
    History. Raises DataError, also if the log is missing."""
    schema, saved_us, pace, expected, logged = read_declaration(directory)
    if (directory / REWIND).exists():
        message = f"{schema.name}: a rewind of its watermark was interrupted: run it again"
        warn(message)
    if logged:
        check_there(Path(directory / TABLE / LOG), schema.name)
        if log is None and not read_only:  # the first flush removes the log; after that it need not exist
            write_declaration(directory, schema, saved_us, pace, expected)
    # A crash may have left the table with columns that the file does not name yet.
    schema = archived_schema(directory / TABLE, schema)
    kept = History(schema, directory / TABLE, log=log, epoch=epoch, read_only=read_only)
    if log is not None and not logged:
        write_declaration(directory, schema, saved_us, pace, expected, logged=True)
    expected = tuple(source for source in expected if source not in kept.offsets)
    watermark_us = _watermark_of(kept, saved_us, schema, bool(expected))
    live = LiveStream(schema, kept.last_seq + 1, kept.offsets, watermark_us)
    live.expect(expected)
    for source, offset in kept.skipped.items():
        live.skip(source, offset)
    now_s = time.monotonic()
    heard_s = dict.fromkeys((*kept.offsets, *expected), now_s)
    return Stream(schema, live, kept, directory, pace=pace, heard_s=heard_s)


def _is_ahead(newest_us: int | None, watermark_us: int | None, lateness_us: int) -> bool:
    return newest_us is not None and (watermark_us is None or newest_us - lateness_us > watermark_us)


def _watermark_of(kept: History, saved_us: int | None, schema: Schema, waits: bool = False) -> int | None:
    """Returns the greatest watermark of three: the saved one, that of the events (unless it waits for other sources),
    and that of the log."""
    found_us = saved_us if waits else _watermark_again(kept, saved_us, schema)
    logged_us = kept.logged_watermark_us
    return found_us if logged_us is None else max(logged_us, logged_us if found_us is None else found_us)


def declare_beside(database: Place, schema: Schema) -> None:
    """Declares a new stream beside the process that writes the database. Raises DataError."""
    from archive.table import Table

    directory = database / schema.name
    directory.make()
    Table.create(directory / TABLE, schema)
    write_declaration(directory, schema, None)


def _watermark_again(kept: History, saved_us: int | None, schema: Schema) -> int | None:
    """Returns the watermark of a reopened stream from its events and the saved one. If all sources have archived newer
    events since it was saved, it is that of the slowest source; otherwise the saved one."""
    # Rows of files are history: they do not bound future events.
    named = {name for name in kept.offsets if name != FILES}
    newest: dict[str, int] = {}
    for batch in kept.snapshot().batches(RangeRequest(saved_us, columns=()), sorted_max=SORTED_MAX):
        for code, name in enumerate(batch.sources):
            times = batch.ts_us[batch.source == code]
            if name in named and len(times):
                newest[name] = int(times[-1])
    if not newest or newest.keys() != named:
        return saved_us
    reached_us = min(newest.values()) - schema.lateness_us
    return reached_us if saved_us is None else max(saved_us, reached_us)
