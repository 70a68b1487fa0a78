"""What may change in an app file while its service runs, and when its files were last written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid.app import App
from query.errors import DataError

_HINT = "stop the service, and start it again with the new file"
_ANEW = "declare a stream of another name, and fill it from this one with hybrid sql and hybrid archive ingest"


def check_change(was: App, app: App, reads: Mapping[str, Sequence[str]]) -> None:
    """Raises DataError for a change that needs a new start. reads: the streams of each query that runs, in lower
    case."""
    for key in ("path", "options", "memory_limit", "log", "state", "files"):
        if getattr(app.database, key) != getattr(was.database, key):
            raise DataError(f"database.{key} cannot change while the service runs", _HINT)
    if app.metrics != was.metrics:
        raise DataError("metrics cannot change while the service runs", _HINT)
    for name, stream in app.streams.items():
        before = next((s for n, s in was.streams.items() if n.lower() == name.lower()), None)
        if before is None or before == stream:
            continue
        for key in ("time", "key", "order"):
            one, other = getattr(before, key), getattr(stream, key)
            if one != other:
                raise DataError(f"streams.{name}.{key} cannot change: it is {_shown(one)}, not {_shown(other)}", _ANEW)
        old = {column.lower(): type for column, type in before.columns.items()}
        for column, type in stream.columns.items():
            if type != old.get(column.lower(), type):
                message = f"streams.{name}.columns.{column} cannot change: it is {old[column.lower()]}, not {type}"
                raise DataError(message, _ANEW)
        readers = [query for query, streams in reads.items() if name.lower() in streams]
        if readers and {column.lower() for column in stream.columns} - old.keys():
            message = f"streams.{name} cannot get columns while queries read it: {', '.join(readers)}"
            raise DataError(message, _HINT)


def _shown(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value) or "none"


def stamps(files: tuple[Path, ...]) -> list[tuple[int, int] | None]:
    """When files were last written, and their sizes."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            stat = file.stat()
            found.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append(None)
    return found
