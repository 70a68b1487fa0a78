"""From the threads of sources into the database: pushed, or quarantined, or kept for a retry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hybrid.service.app_tables import SourceTable
from hybrid.service.context import Context
from hybrid.service.declare import lacks
from hybrid.service.outlets import Outlets
from hybrid.service.quarantine import Quarantine
from hybrid.service.queries import ServiceQueries
from hybrid.service.source_reader import Reader
from hybrid.service.sources import Sources
from hybrid.service.trouble import said
from live.sources.base import Bad, Piece
from live.stream import Ahead
from matching.batch import Int64Array
from matching.checked import shown_rows
from matching.types import arrow_schema
from query.errors import DataError, NotKept

#: Seconds between two clock ticks of the database; seconds before events that could not be stored are pushed again.
TICK_EVERY_S, RETRY_S = 0.25, 1.0
#: Pieces of one source that are taken before the next source has its turn.
TURN_PIECES = 16


class Intake:
    """Pushes the events of sources. rows: the number of events pushed; ahead_s: the time of the last event rejected as
    too far ahead of the clock; both by stream in lower case. Used from the thread of the loop."""

    def __init__(
        self, context: Context, sources: Sources, queries: ServiceQueries, outlets: Outlets, quarantine: Quarantine
    ) -> None:
        self.rows: Counter[str] = Counter()
        self.ahead_s: dict[str, float] = {}
        self._context = context
        self._sources, self._queries = sources, queries
        self._outlets, self._quarantine = outlets, quarantine
        self._ended: set[str] = set()
        #: The source that owns a partition, by stream and partition; the last offset reported as too far ahead.
        self._owners: dict[tuple[str, str], str] = {}
        self._ahead_told: dict[tuple[str, str], int] = {}
        self._retry_s: dict[str, float] = {}  # time of the next attempt, by source whose events could not be stored
        self._ticked_s = 0.0

    def begin(self) -> None:
        """Begins with a database that was opened now."""
        self._ticked_s = self._context.clock.ticks()

    def clear(self) -> None:
        """Forgets the sources and streams of a database that was closed."""
        self._owners.clear()
        self._retry_s.clear()
        self._ended.clear()

    def push(self, blocked: Mapping[str, str]) -> bool:
        """Pushes what sources have read, some of each in turn, except for blocked streams. Returns True if there was
        something."""
        busy, ticks, trouble = False, self._context.clock.ticks, self._context.trouble
        for reader in self._sources.readers.values():
            stream = reader.stream.lower()
            if reader.name in self._retry_s and stream not in blocked:
                pass  # its fault remains until its events are stored
            elif reader.failure is not None:
                trouble.fault(f"source {reader.name}", reader.failure + self._sources.again(reader))
            elif reader.trouble is not None:
                trouble.fault(f"source {reader.name}", reader.trouble)
            elif stream in blocked:
                trouble.fault(f"source {reader.name}", f"waits: {blocked[stream]}")
            elif reader.reads:
                trouble.well(f"source {reader.name}")
            if stream in blocked or ticks() < self._retry_s.get(reader.name, 0.0):
                continue
            if not self._expect(reader):
                continue
            for _ in range(TURN_PIECES):
                item = reader.take()
                if item is None:
                    break
                busy = True
                if not self._item(reader, item):
                    break
        return busy

    def tick(self, blocked: Mapping[str, str]) -> None:
        """Passes a clock tick to the database, except while sources wait for the service: these are not silent."""
        now = self._context.clock.ticks()
        if now - self._ticked_s >= TICK_EVERY_S and not blocked and all(now >= s for s in self._retry_s.values()):
            self._ticked_s = now
            with self._context.trouble.warned("clock"):
                self._context.db.tick()

    def end_streams(self) -> bool:
        """Ends the streams whose sources have all ended, so that matches that wait for more events are emitted.
        Returns True if a stream ended."""
        db, trouble = self._context.db, self._context.trouble
        over = self.to_end()
        for name in over:
            try:
                with trouble.warned(f"stream {name}"):
                    db.advance(name, None)
            except (OSError, NotKept) as error:  # retried by the next turn
                trouble.fault(f"stream {name}", f"its end cannot be stored: {said(error)}")
                continue
            except DataError as error:
                trouble.fault(f"stream {name}", str(error))
            else:
                trouble.well(f"stream {name}")
            self._ended.add(name)
        return any(name in self._ended for name in over)

    def to_end(self) -> list[str]:
        """Returns the streams that have not ended although all their sources have."""
        return [n for n in self._sources.streams() if n not in self._ended and self._sources.all_ended(n)]

    def open_rest(self) -> None:
        """Opens the sources of the app file that are not open, and applies changed tables."""
        for name, table in self._context.app.sources.items():
            if name not in self._sources.readers:
                self._sources.open(name, table)
            elif self._sources.tables[name] != table:
                self._change_source(name, table)

    def _change_source(self, name: str, table: SourceTable) -> None:
        """Replaces a source by its changed table. Keeps the old one if the new one cannot be made."""
        where = f"change of source {name}"
        source = self._sources.made(name, table, where, "not applied, the old source keeps running: ")
        if source is not None:
            self._context.trouble.well(where)
            self.close_source(name)
            self._sources.read(name, table, source)

    def close_source(self, name: str) -> None:
        """Stops reading a source, pushes what was read, and closes it. A source that can resume reads again what cannot
        be pushed now."""
        reader = self._sources.readers[name]
        reader.pause(1.0)
        while (item := reader.take()) is not None:
            if not self._item(reader, item):
                break
        self._sources.drop(name)
        self._retry_s.pop(name, None)
        self._owners = {partition: owner for partition, owner in self._owners.items() if owner != name}
        self._context.trouble.well(f"source {name}")

    def _expect(self, reader: Reader) -> bool:
        """Makes the watermark wait for partitions that have sent nothing yet: otherwise it would advance with the first
        one read, and the others would be late. Returns False if that cannot be stored now."""
        new = [p for p in reader.partitions if (reader.stream.lower(), p) not in self._owners]
        if new:
            if not self._outlets.rows_kept():
                return False
            try:
                with self._context.trouble.warned(f"stream {reader.stream}"):
                    self._context.db.expect(reader.stream, new)
            except (OSError, NotKept) as error:
                self._not_stored(reader, error)
                return False
            self._retry_s.pop(reader.name, None)
        for partition in new:
            self._owners[reader.stream.lower(), partition] = reader.name
        return True

    def _not_stored(self, reader: Reader, error: Exception) -> None:
        self._retry_s[reader.name] = self._context.clock.ticks() + RETRY_S
        self._context.trouble.fault(f"source {reader.name}", f"its events cannot be stored: {error}")

    def _item(self, reader: Reader, item: Piece | Bad) -> bool:
        """Pushes a piece, or quarantines a payload. Returns False if the source has to wait, or is refused."""
        if isinstance(item, Bad):
            self._quarantine.payload(reader.stream.lower(), item)
            return True
        return self._piece(reader, item)

    def _piece(self, reader: Reader, piece: Piece) -> bool:
        """Pushes the rows of a piece. Returns False if they cannot be stored now, and are retried, or are refused."""
        db = self._context.db
        self._retry_s.pop(reader.name, None)
        owner = self._owner_of(reader, piece.source)
        if owner != reader.name:
            # Events are identified by their partition: those of the second source would count as redelivered, or,
            # if the sources spell a path in two ways, all events would be stored twice.
            reader.fail(
                f"it reads {reader.path_of(piece.source) or piece.source}, which source {owner} reads into the same "
                "stream\nhint: let one source read it, and start again"
            )
            return False
        if reader.stream.lower() in self._ended:
            reader.fail(f"stream {reader.stream} has ended: restart the service to resume it")
            return False
        try:
            self._rows(reader.stream, piece.source, piece.rows, piece.offsets)
            archived = db.reached(reader.stream).positions.get(piece.source)
            self._sources.passed[reader.stream.lower()].note(piece, archived)
            if piece.last:
                with self._context.trouble.warned(f"stream {reader.stream}"):
                    db.leave(reader.stream, piece.source)
        except (OSError, NotKept) as error:
            # Rows of it that were accepted already are recognised by their offsets.
            reader.give_back(piece)
            self._not_stored(reader, error)
            return False
        return True

    def _owner_of(self, reader: Reader, partition: str) -> str:
        """Returns the source that owns a partition: the first one that read it, or the same file by another path, into
        this stream."""
        stream = reader.stream.lower()
        owner = self._owners.get((stream, partition))
        if owner is not None:
            return owner
        path = reader.path_of(partition)
        for other in self._sources.readers.values():
            if path is not None and other is not reader and other.stream.lower() == stream:
                twin = other.partition_at(path)
                if twin is not None and self._owners.get((stream, twin)) == other.name:
                    return other.name
        self._owners[stream, partition] = reader.name
        return reader.name

    def _rows(self, stream: str, source: str, rows: Any, offsets: Int64Array | None) -> None:
        """Pushes rows. Rows that do not fit are found by bisection and quarantined."""
        n = len(rows)
        if not n:
            return
        self._queries.make_room()  # otherwise the push would be rejected
        try:
            with self._context.trouble.warned(f"stream {stream}"):
                self.rows[stream.lower()] += self._context.db.push(stream, self._whole(stream, rows), source, offsets)
        except NotKept:
            raise  # a fault of the store, not of the rows
        except Ahead as error:
            self._too_far_ahead(stream, source, rows, offsets, error)
        except DataError as error:
            if n == 1:
                raw = _shown(rows).encode(errors="backslashreplace")
                place = None if offsets is None else int(offsets[0])
                self._quarantine.payload(stream.lower(), Bad(source, place, raw, error.message))
                return
            for part in (slice(0, n // 2), slice(n // 2, n)):
                some = rows.slice(part.start, part.stop - part.start)
                self._rows(stream, source, some, None if offsets is None else offsets[part])

    def _whole(self, stream: str, rows: Any) -> Any:
        """Returns rows with nulls in the columns of the stream that the app file no longer has."""
        schema = self._context.db.schema(stream)
        table = next(t for n, t in self._context.app.streams.items() if n.lower() == stream.lower())
        for name in lacks(schema, table):
            rows = rows.append_column(name, pa.nulls(len(rows), arrow_schema(schema).field(name).type))
        return rows

    def _too_far_ahead(self, stream: str, source: str, rows: Any, offsets: Int64Array | None, error: Ahead) -> None:
        """Quarantines the events that are too far ahead of the clock, and pushes the others. The source then counts as
        read to the end of these rows, so the quarantined events are not checked again."""
        for row in np.flatnonzero(error.rows).tolist():
            place = None if offsets is None else int(offsets[row])
            raw = _shown(rows.slice(row, 1)).encode(errors="backslashreplace")
            if place is None or place > self._ahead_told.get((stream.lower(), source), -1):
                self._quarantine.payload(stream.lower(), Bad(source, place, raw, error.of(row)))
            if place is not None:  # a retry of these rows does not report it again
                self._ahead_told[stream.lower(), source] = place
        self.ahead_s[stream.lower()] = self._context.clock.ticks()
        kept = np.flatnonzero(~error.rows)
        self._rows(stream, source, rows.take(pa.array(kept)), None if offsets is None else offsets[kept])
        if offsets is not None:
            self._context.db.skip(stream, source, int(offsets[-1]))


def _shown(rows: Any) -> str:
    """Returns a single row as JSON."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    # Arrow's to_pylist() raises for times that Python cannot represent.
    return shown_rows(rows, [0])[0] if isinstance(rows, pa.Table) else json.dumps(next(iter(rows)), default=str)
