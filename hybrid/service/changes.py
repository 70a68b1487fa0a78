"""Detects changes of the app file while its service runs, and checks that they need no restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hybrid.service.app import App
from query.errors import DataError

_HINT = "stop the service, and start it again with the new file"
_ANEW = "declare a stream of another name, and fill it from this one with hybrid sql and hybrid archive ingest"


class Settling:
    """Detects changed files that have stayed unchanged for `settled_s`: before, an editor or a copy may still write
    them. files: the files in their present state."""

    def __init__(self, files: tuple[Path, ...], settled_s: float) -> None:
        self._known = stamps(files)
        self._settled_s = settled_s
        self._seen, self._since_s = self._known, -1e9

    def changed(self, files: tuple[Path, ...], now_s: float) -> bool:
        """Returns True once per change, when the files have settled. now_s: of a monotonic clock."""
        seen = stamps(files)
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        if seen == self._known or now_s - self._since_s < self._settled_s:
            return False
        self._known = seen
        return True

    def forget(self) -> None:
        """Makes the files count as changed again, as soon as they have settled."""
        self._known = []


def check_not_emptied(was: App, app: App) -> None:
    """Raises DataError if all queries, or all sources, were removed: the file may have been truncated."""
    for what in ("queries", "sources"):
        if getattr(was, what) and not getattr(app, what):
            hint = "if that is intended, send SIGHUP (kill -HUP, docker compose kill -s HUP), which ends them"
            raise DataError(f"all {what} were removed from it: is the file truncated?", hint)


def changes_of(was: App, app: App) -> str:
    """Returns what differs between two files, in a line: by kind the names that were added, changed and removed, and
    the number of those that were kept."""
    said = [f"{kind}: changed" for kind in ("database", "limits") if getattr(was, kind) != getattr(app, kind)]
    for kind in ("streams", "patterns", "queries", "sources", "sinks"):
        before, now = getattr(was, kind), getattr(app, kind)
        both = [name for name in now if name in before]
        names = {
            "added": [name for name in now if name not in before],
            "changed": [name for name in both if now[name] != before[name]],
            "removed": [name for name in before if name not in now],
        }
        parts = [f"{verb} {', '.join(those)}" for verb, those in names.items() if those]
        kept = len(both) - len(names["changed"])
        if parts:
            said.append(f"{kind}: {', '.join(parts)}" + (f" ({kept} kept)" if kept else ""))
    return "; ".join(said) or "nothing has changed"


def check_change(was: App, app: App, reads: Mapping[str, Sequence[str]]) -> None:
    """Raises DataError for a change that needs a restart. reads: the streams of each running query, in lower case."""
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
    """Returns (inode, mtime, size) of each file, None if it does not exist."""
    found: list[tuple[int, int, int] | None] = []
    for file in files:
        try:
            stat = file.stat()
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append(None)
    return found
