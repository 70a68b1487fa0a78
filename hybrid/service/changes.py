"""What may change in an app file while its service runs, and when its files were last written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid.service.app import App
from query.errors import DataError

_HINT = "stop the service, and start it again with the new file"
_ANEW = "declare a stream of another name, and fill it from this one with hybrid sql and hybrid archive ingest"


class Settling:
    """Says when files that have changed have stayed as they are for `settled_s`: an editor, or a copy, may still be
    writing them. files: as they are now."""

    def __init__(self, files: tuple[Path, ...], settled_s: float) -> None:
        self._known = stamps(files)
        self._settled_s = settled_s
        self._seen, self._since_s = self._known, -1e9

    def changed(self, files: tuple[Path, ...], now_s: float) -> bool:
        """Whether they have changed and settled since they were last taken. now_s: of a clock that never goes back."""
        seen = stamps(files)
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        if seen == self._known or now_s - self._since_s < self._settled_s:
            return False
        self._known = seen
        return True

    def forget(self) -> None:
        """Lets them be changed again, as soon as they have settled."""
        self._known = []


def check_not_emptied(was: App, app: App) -> None:
    """Raises DataError where nothing is left of the queries or of the sources: the file may have been cut."""
    for what in ("queries", "sources"):
        if getattr(was, what) and not getattr(app, what):
            hint = "if that is meant: hybrid ends them at SIGHUP (kill -HUP, docker compose kill -s HUP)"
            raise DataError(f"all {what} are gone from it, and may have been cut off", hint)


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


def stamps(files: tuple[Path, ...]) -> list[tuple[int, int, int] | None]:
    """Which files these are, when they were last written, and their sizes."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            stat = file.stat()
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append(None)
    return found
