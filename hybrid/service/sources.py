"""The sources of a service: opened, opened again after a failure, and closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hybrid.service.app import App
from hybrid.service.app_tables import SourceTable
from hybrid.service.connectors import marks_of
from hybrid.service.context import Context
from hybrid.service.declare import lacks
from hybrid.service.passed import PassedPayloads
from hybrid.service.source_reader import Reader
from hybrid.service.trouble import said
from live.sources.base import Source
from query.schema import Schema

#: First and longest pause in seconds before a failed source is opened again; the pause doubles. Number of consecutive
#: failures after which a source counts as ended if all others have.
SOURCE_RETRY_S, SOURCE_RETRY_MAX_S, SOURCE_TRIES = 1.0, 60.0, 5


@dataclass(slots=True)
class _Failed:
    """A failed source: the reader of the last failure, the number of consecutive failures, and the time of the next
    attempt."""

    reader: Reader
    tries: int
    at_s: float


class Sources:
    """The sources of a service. make_source: creates one, not opened. readers: the present reader of each; tables: its
    table; passed: positions after rejected payloads, by stream in lower case. Used from the thread of the loop."""

    def __init__(self, context: Context, make_source: Callable[[SourceTable, Schema, App], Source]) -> None:
        self.make_source = make_source
        self.readers: dict[str, Reader] = {}
        self.tables: dict[str, SourceTable] = {}
        self.passed: dict[str, PassedPayloads] = {}
        self._context = context
        self._failed: dict[str, _Failed] = {}

    def open(self, name: str, table: SourceTable) -> None:
        """Starts to read a source. Reports the fault if it cannot be made."""
        source = self.made(name, table, f"source {name}", "")
        if source is not None:
            self.read(name, table, source)

    def made(self, name: str, table: SourceTable, where: str, so: str) -> Source | None:
        """Returns a source, not opened, or None if it cannot be made. Reports the fault at `where`, with the prefix
        `so`."""
        app, db = self._context.app, self._context.db
        try:
            schema, key = db.schema(table.stream), table.stream.lower()
            lacking = lacks(schema, next(t for n, t in app.streams.items() if n.lower() == key))
            if key not in self.passed:
                self.passed[key] = PassedPayloads(marks_of(app, table.stream))
            self.passed[key].positions(db.reached(table.stream).positions)  # before the old one ends
            read = replace(schema, fields=tuple(f for f in schema.fields if f.name not in lacking))
            return self.make_source(table, read, app)
        except Exception as error:  # noqa: BLE001  (a fault of this source only; the others continue)
            self._context.trouble.fault(where, so + said(error))
            return None

    def read(self, name: str, table: SourceTable, source: Source) -> None:
        """Starts to read a source that was made."""
        context = self._context
        positions = self.passed[table.stream.lower()].positions(context.db.reached(table.stream).positions)
        reader = Reader(name, table.stream, source, positions, context.app.limits.queue_rows, context.wake)
        self.readers[name], self.tables[name] = reader, table
        if context.threads:
            reader.start()

    def retry(self) -> None:
        """Opens failed sources again, with growing pauses, after what they had read is pushed."""
        now = self._context.clock.ticks()
        for name, reader in list(self.readers.items()):
            if reader.failure is None:
                if reader.reads:
                    self._failed.pop(name, None)
                continue
            if reader.refused:
                continue
            failed = self._failed.get(name)
            if failed is None or failed.reader is not reader:
                tries = 0 if failed is None else failed.tries
                pause_s = min(SOURCE_RETRY_MAX_S, SOURCE_RETRY_S * 2**tries)
                self._failed[name] = _Failed(reader, tries + 1, now + pause_s)
            elif now >= failed.at_s and not reader.queued:
                source = self.made(name, self.tables[name], f"source {name}", "")
                if source is None:
                    failed.at_s = now + SOURCE_RETRY_MAX_S
                    continue
                reader.close(0.0)
                self.read(name, self.tables[name], source)

    def again(self, reader: Reader) -> str:
        """Returns the number of failures of a source and the time until the next attempt, as text, or ""."""
        failed = self._failed.get(reader.name)
        if failed is None or failed.reader is not reader or reader.refused:
            return ""
        left_s = max(0.0, failed.at_s - self._context.clock.ticks())
        return f" (failed {failed.tries} times, again in {left_s:.0f} s)"

    @property
    def over(self) -> bool:
        """True if there are sources, and each has ended or counts as ended."""
        return bool(self.readers) and all(r.ended or self._is_given_up(r) for r in self.readers.values())

    def _is_given_up(self, reader: Reader) -> bool:
        """True if a failed source counts as ended once all others have: its failure is permanent, it was never read, or
        it failed more than SOURCE_TRIES times in a row."""
        if reader.failure is None:
            return False
        failed = self._failed.get(reader.name)
        # A failure that `retry` has not seen yet counts too.
        tries = 0 if failed is None else failed.tries + (failed.reader is not reader)
        return reader.refused or tries > SOURCE_TRIES or (tries <= 1 and not reader.reads)

    def streams(self) -> list[str]:
        """Returns the streams that sources feed, in lower case."""
        return list(dict.fromkeys(r.stream.lower() for r in self.readers.values()))

    def all_ended(self, stream: str) -> bool:
        """True if all sources of a stream, in lower case, have ended."""
        return all(r.ended for r in self.readers.values() if r.stream.lower() == stream)

    def drop(self, name: str) -> None:
        """Closes and removes a source."""
        self.readers[name].close(1.0)
        del self.readers[name], self.tables[name]
        self._failed.pop(name, None)

    def clear(self) -> None:
        """Removes all sources, which are closed."""
        for kept in (self.readers, self.tables, self.passed, self._failed):
            kept.clear()
