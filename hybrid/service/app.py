"""The content of an app file, as frozen tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid.service.app_tables import (
    DatabaseTable,
    LimitsTable,
    MetricsTable,
    SimulatorSourceTable,
    SinkTable,
    SourceTable,
    StreamTable,
)
from hybrid.watch.query_spec import SHARING
from hybrid.watch.shedding import Shed

if TYPE_CHECKING:
    from hybrid.rows.duck import Access


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the app. sinks: their names. reads: the streams, in lower case. shed: load shedding, or None.
    start_us: the event time from which archived events are read first (backfill), or None. sharing: how its trends are
    counted together with others. patterns: the named patterns that it uses, by name in lower case."""

    text: str
    sinks: tuple[str, ...]
    reads: tuple[str, ...]
    shed: Shed | None = None
    start_us: int | None = None
    sharing: str = SHARING
    patterns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class App:
    """The checked content of an app file. path: the file, absolute; relative paths in it start at its directory.
    files: the app file and the files of its queries and patterns. patterns: their texts."""

    path: Path
    files: tuple[Path, ...]
    database: DatabaseTable
    streams: Mapping[str, StreamTable]
    sources: Mapping[str, SourceTable]
    queries: Mapping[str, Query]
    sinks: Mapping[str, SinkTable]
    metrics: MetricsTable | None
    limits: LimitsTable
    patterns: Mapping[str, str] = field(default_factory=dict)

    @property
    def access(self) -> Access:
        """The files that queries may read beside their streams. Raises DataError for a file that does not exist."""
        from hybrid.rows.duck import access_to

        return access_to(False, self.database.files, str(self.path.parent))

    def place(self, path: str) -> str:
        """Returns a path of the file as a path of the process; addresses stay as they are."""
        return path if "://" in path else str(self.path.parent / path)

    def stream(self, name: str) -> StreamTable:
        """Returns a stream's table for its declaration, without max_ahead by default if a simulator feeds it: the times
        of a simulator are not those of the clock."""
        table = self.streams[name]
        reads = [s for s in self.sources.values() if s.stream.lower() == name.lower()]
        if "max_ahead" in table.model_fields_set or not any(isinstance(s, SimulatorSourceTable) for s in reads):
            return table
        return table.model_copy(update={"max_ahead": None})

    @property
    def state(self) -> Path:
        """The local directory of the service: status, cursors, undelivered rows."""
        return state_directory(self.path, self.database.path, self.database.state)


def state_directory(file: Path, path: str | None, state: str | None) -> Path:
    """Returns the directory of a service. file: its app file; path, state: keys of its `database` table."""
    if state is not None:
        return file.parent / state
    if path is not None and "://" not in path:
        return file.parent / path / "_service"
    return file.with_suffix(".service")
