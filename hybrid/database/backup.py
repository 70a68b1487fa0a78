"""A consistent copy of a database, closed or in use by another process.

Data moves from the checkpoints (state of the queries) to the logs (events in memory) to the tables (flushed events):
the events of a checkpoint are in a log or a table before the checkpoint exists, and a segment of a log is removed after
a commit holds its events. The copy reads in the same order. Data that moves during the copy is found at its next
place; data found twice is counted once, by its offset.

Data files never change: a second copy to the same place copies only the new ones. The files that change are small and
are replaced at the end, while the file INCOMPLETE exists. The next copy completes one that a crash has interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from archive import head
from archive.history import LOG
from archive.ingested import LISTS, QUARANTINE
from archive.place import Place
from archive.sums import Damaged, inspect_bytes
from archive.table import Table
from hybrid.database.pattern_file import PATTERNS
from hybrid.database.repair import log_faults
from hybrid.watch.checkpoint import CHECKPOINTS
from hybrid.watch.declaration import INCOMPLETE, STREAM_FILE, TABLE, stream_names
from query.errors import DataError, first_line

#: The directory of a service inside its database, unless configured otherwise.
SERVICE = "_service"
#: The file that marks a copy and holds the versions of its tables.
SNAPSHOT = "_snapshot.json"
_NOT_FINISHED = "hybrid archive snapshot was not finished: run it again\n"
_ATTEMPTS_MAX = 10
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Copied:
    """The size of a copy of a database. streams: number of streams. files, bytes: data files that were copied. known:
    number of data files that the copy already had."""

    streams: int
    files: int
    bytes: int
    known: int


@dataclass(frozen=True, slots=True)
class _Small:
    """The files of a stream that change, by their paths below the database. data: the paths of its data files, below
    the table."""

    name: str
    version: int
    contents: dict[str, bytes]
    data: frozenset[str]


def snapshot(source: Place, target: Place, told: Callable[[int, int], None] = lambda done, total: None) -> Copied:
    """Copies a database to another place, on disk or in a store, or updates an existing copy. told: called with the
    data files copied so far and in all.

    Raises DataError if the source is no database, if the target is not a copy of it or was written to since, if a file
    is damaged (damaged files are never copied), or if a file cannot be read or written."""
    names = stream_names(source)
    if not names:
        raise DataError(f"there is no database {source}", "hybrid.connect creates one")
    inside = f"{target}/".startswith(f"{source}/") or f"{source}/".startswith(f"{target}/")
    if inside:
        raise DataError(f"one of {target} and {source} contains the other", "copy to another place")
    try:
        before = _versions(source, target)
        checkpoints = _checkpoints(source) | _patterns(source)
        files = known = size = 0
        small: list[_Small] = []
        for name in names:
            declaration = (source / name / STREAM_FILE).read_bytes()
            at = f"{name}/{TABLE}"
            logged = _unmoving(source / at / LOG, f"{at}/{LOG}")
            entries, paths, lists = _table(source / at, at)
            new, old, written = _data_files(source / at, target / at, paths, told)
            files, known, size = files + new, known + old, size + written
            version, _ = head.newest([path.rpartition("/")[2] for path in entries])
            contents = {f"{name}/{STREAM_FILE}": declaration, **logged, **entries, **lists}
            small.append(_Small(name, version, contents, frozenset(paths)))
        _check_same(target, small, before)
        _replace(target, small, checkpoints)
        _check_logs(source, target, names)
    except OSError as error:
        message = f"{source} cannot be copied to {target}: {first_line(error)}"
        raise DataError(message, "the database is unchanged; run it again") from error
    return Copied(len(names), files, size, known)


def _check_logs(source: Place, target: Place, names: list[str]) -> None:
    """Raises DataError if the log in a copy is damaged or missing, because the database's log is too."""
    for name in names if target.on_disk else ():
        found = log_faults(target / name)
        if found:
            (target / INCOMPLETE).write_text(_NOT_FINISHED)
            message = f"the log of {name} in {source} is damaged: {found[0].replace(str(target), str(source))}"
            raise DataError(message, f"close the database, hybrid archive repair -d {source}, and copy again")


def _versions(source: Place, target: Place) -> dict[str, int] | None:
    """Returns the versions of the tables in the existing copy, or None if it is unfinished. Begins a new copy, and
    returns None, if there is none."""
    names = target.names()
    if INCOMPLETE in names:
        return None
    if SNAPSHOT in names:
        versions: dict[str, int] = json.loads((target / SNAPSHOT).read_text())["versions"]
        return versions
    if names:
        raise DataError(f"{target} is not empty and is no snapshot", "copy to an empty directory, or to an older copy")
    target.make(private=True)
    (target / INCOMPLETE).write_text(_NOT_FINISHED)
    return None


def _checkpoints(source: Place) -> dict[str, bytes]:
    """Returns the checkpoints and the service's delivery files, to which the newest checkpoint refers."""
    for _ in range(_ATTEMPTS_MAX):
        found = _unmoving(source / CHECKPOINTS, CHECKPOINTS)
        service = source / SERVICE
        kept = ("delivery-", "undelivered-", "files-", "topics-")
        paths = [entry.path for entry in service.entries() if entry.path.startswith(kept)]
        try:
            delivery = {f"{SERVICE}/{path}": (service / path).read_bytes() for path in paths}
        except FileNotFoundError:
            continue
        now = (source / CHECKPOINTS).names()
        if found.keys() == {f"{CHECKPOINTS}/{name}" for name in now if not name.endswith(".part")}:
            return {**found, **delivery}
    raise DataError(f"the checkpoints of {source} changed during each attempt", "run it again under less load")


def _patterns(source: Place) -> dict[str, bytes]:
    """Returns the file of named patterns, if there is one."""
    try:
        return {PATTERNS: (source / PATTERNS).read_bytes()}
    except FileNotFoundError:
        return {}


def _unmoving(directory: Place, prefix: str) -> dict[str, bytes]:
    """Returns the files of a directory, none of which was removed while they were read. A file under append is read up
    to its current end."""
    for _ in range(_ATTEMPTS_MAX):
        names = directory.names()
        whole = [name for name in names if not name.endswith(".part")]
        try:
            found = {f"{prefix}/{name}": (directory / name).read_bytes() for name in whole}
        except FileNotFoundError:
            continue
        if set(whole) <= set(directory.names()):
            return found
    raise DataError(f"{directory} changed during each attempt to copy it", "run it again under less load")


def _table(place: Place, prefix: str) -> tuple[dict[str, bytes], dict[str, int], dict[str, bytes]]:
    """Returns, at one version of a table: the files of its log, its data files with their sizes (-1: unknown), and the
    list of input files with the quarantine's log."""
    entries = head.needed(place)
    table = Table.open(place, head.newest(list(entries))[0])
    now = table.opened()
    mark = table.ingest_mark(newest=False)
    lists = {
        f"{prefix}/{LISTS}/{name}": (place / LISTS / name).read_bytes()
        for name in (place / LISTS).names() if name.partition(".")[0] == str(mark)
    }  # fmt: skip
    quarantine = place / QUARANTINE
    logged = [n for n in (quarantine / head.LOG).names() if not n.startswith(".")]
    files = dict(zip(now.paths, now.sizes.tolist()))
    files |= {f"{QUARANTINE}/{name}": -1 for name in quarantine.names() if name.endswith(".parquet")}
    lists |= {f"{prefix}/{QUARANTINE}/{head.LOG}/{n}": (quarantine / head.LOG / n).read_bytes() for n in logged}
    return {f"{prefix}/{head.LOG}/{name}": data for name, data in entries.items()}, files, lists


def _data_files(
    source: Place, target: Place, files: dict[str, int], told: Callable[[int, int], None]
) -> tuple[int, int, int]:
    """Copies the missing data files. Returns the number copied, the number already present, and the bytes copied."""
    there = {entry.path: entry.size for entry in target.entries()}
    todo = [path for path, size in files.items() if path not in there or (size >= 0 and there[path] != size)]
    for folder in {path.rpartition("/")[0] for path in todo}:
        (target / folder if folder else target).make()
    done = 0

    def copy(path: str) -> int:
        data = (source / path).read_bytes()
        try:
            inspect_bytes(path, files[path], data)
        except Damaged as error:
            hint = "damaged files are not copied: run hybrid archive repair first, which sets them aside"
            raise DataError(f"{source} is damaged: {error}", hint) from None
        (target / path).write_bytes(data)
        return len(data)

    with ThreadPoolExecutor(_THREADS) as pool:
        size = 0
        for written in pool.map(copy, todo):
            size += written
            done += 1
            told(done, len(todo))
    return len(todo), len(files) - len(todo), size


def _check_same(target: Place, small: list[_Small], before: dict[str, int] | None) -> None:
    """Raises DataError if a copy was written to or belongs to another database."""
    for one in small:
        log = target / one.name / TABLE / head.LOG
        last, _ = head.newest(log.names())
        if before is not None and last > before.get(one.name, -1):
            raise DataError(f"the snapshot {target} was written to after it was made", "copy to another place")
        for path, data in one.contents.items():
            if f"/{head.LOG}/" in path and path.endswith(".json") and QUARANTINE not in path:
                there = target / path
                if there.exists() and there.read_bytes() != data:
                    raise DataError(f"{target} is the snapshot of another database", "copy to another place")


def _replace(target: Place, small: list[_Small], checkpoints: dict[str, bytes]) -> None:
    """Writes the files that change and removes those that they replace. checkpoints: with the named patterns."""
    versions = {one.name: one.version for one in small}
    (target / INCOMPLETE).write_text(_NOT_FINISHED)
    (target / SNAPSHOT).write_text(json.dumps({"version": 1, "versions": versions}))
    target.sync()
    wanted = dict(checkpoints)
    for one in small:
        wanted |= one.contents
    replaced = [target / CHECKPOINTS, target / SERVICE]
    for one in small:
        at = target / one.name / TABLE
        replaced += [at / LOG, at / head.LOG, at / head.HEAD, at / LISTS]
    folders = {path.rpartition("/")[0] for path in wanted}
    for folder in sorted(folders):
        (target / folder).make()
    for path, data in wanted.items():
        (target / path).write_bytes(data)
    if PATTERNS not in wanted:
        (target / PATTERNS).remove()
    for place in replaced:
        for entry in place.entries():
            path = f"{place}/{entry.path}".removeprefix(f"{target}/")
            if path not in wanted:
                (target / path).remove()
    for one in small:
        table = target / one.name / TABLE
        for entry in table.entries():
            if entry.path.endswith(".parquet") and entry.path[0] != "_" and entry.path not in one.data:
                (table / entry.path).remove()
        head.advance(table)
    for folder in sorted(folders):
        (target / folder).sync()
    (target / INCOMPLETE).remove()
    target.sync()
