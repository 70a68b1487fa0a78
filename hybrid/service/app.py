"""What an app file says, as frozen tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid.service.app_tables import (
    DatabaseTable,
    LimitsTable,
    MetricsTable,
    SimulatorSource,
    SinkTable,
    SourceTable,
    StreamTable,
)
from hybrid.watch.shedding import Shed

if TYPE_CHECKING:
    from hybrid.rows.duck import Access


@dataclass(frozen=True, slots=True)
class Query:
    """A query as it is run. reads: the streams, in lower case; sinks: their names. shed: how it may leave out keys.
    start_us: from when on it reads what is archived, if it does."""

    text: str
    sinks: tuple[str, ...]
    reads: tuple[str, ...]
    shed: Shed | None = None
    start_us: int | None = None


@dataclass(frozen=True, slots=True)
class App:
    """What an app file says, checked. path: of the file, absolute; relative paths in it are meant from where it lies.
    files: all that it is made of."""

    path: Path
    files: tuple[Path, ...]
    database: DatabaseTable
    streams: Mapping[str, StreamTable]
    sources: Mapping[str, SourceTable]
    queries: Mapping[str, Query]
    sinks: Mapping[str, SinkTable]
    metrics: MetricsTable | None
    limits: LimitsTable

    @property
    def access(self) -> Access:
        """What queries may read beside their streams. Raises DataError for a file that is not there."""
        from hybrid.rows.duck import access_to

        return access_to(False, self.database.files, str(self.path.parent))

    def place(self, path: str) -> str:
        """A path of the file from where the process is; addresses as they are."""
        return path if "://" in path else str(self.path.parent / path)

    def stream(self, name: str) -> StreamTable:
        """A stream as it is to be declared: the times of a simulator are not those of the clock."""
        table = self.streams[name]
        reads = [s for s in self.sources.values() if s.stream.lower() == name.lower()]
        if "max_ahead" in table.model_fields_set or not any(isinstance(s, SimulatorSource) for s in reads):
            return table
        return table.model_copy(update={"max_ahead": None})

    @property
    def state(self) -> Path:
        """The local directory of the service: status, cursors, what is not delivered."""
        return state_directory(self.path, self.database.path, self.database.state)


def state_directory(file: Path, path: str | None, state: str | None) -> Path:
    """The directory of a service. file: its app file; path, state: what the `database` table there says."""
    if state is not None:
        return file.parent / state
    if path is not None and "://" not in path:
        return file.parent / path / "_service"
    return file.with_suffix(".service")
