"""Checkpoints of a database: what its live queries have become, in one file each, written whole or not at all.

A file is MAGIC, the SHA-256 of the rest, and what hybrid.watch.saved makes of the state. It says how far each stream
had been matched (`next_seq`); all events before that are in the archive or its log by the time the file is there, and
those behind it are matched again from there. An older checkpoint is as good as a newer one,
only slower to go on from.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from typing import Any

from archive.place import Place
from hybrid.watch.saved import load, save, saved_version
from query.errors import DataError, HybridWarning, first_line

#: In the directory of a database.
CHECKPOINTS = "_checkpoint"
#: The number of the format, in each file. Format 2 is read as it is, although the first of its releases knew no matches
#: without events. Of format 1 all is read but how far matches had come, which is found again from the events. A newer
#: format is refused.
VERSION = 3
#: A file beside the streams: which queries the checkpoints are of, so that they are missed if all checkpoints are gone.
NAMES = "_queries.json"
#: So many are kept: the older one in case that the disk has spoilt the newer.
KEPT = 2
_MAGIC = b"hybrid checkpoint\n"
_SUFFIX = ".state"
_START_ANEW = "remove the directory: queries then begin anew, and no event is lost"


def write(database: Place, number: int, state: dict[str, Any]) -> None:
    """Writes a checkpoint, and removes those that are superfluous then. Raises DataError; the older ones then stay."""
    directory = database / CHECKPOINTS
    body = save({"version": VERSION, **state})
    try:
        directory.make()
        data = _MAGIC + hashlib.sha256(body).digest() + body
        (directory / f"{number:020d}{_SUFFIX}").write_bytes(data, private=True)
        directory.sync()
    except OSError as error:
        message = f"a checkpoint in {directory} cannot be written: {first_line(error)}"
        raise DataError(message, "the one before stands: make room or give permission") from error
    _note_names(database, list(state["queries"]))
    try:
        for old in _numbers(directory)[KEPT:]:
            (directory / f"{old:020d}{_SUFFIX}").remove()
    except OSError:
        pass  # those are tried again behind the next one


def newest(database: Place) -> tuple[int, dict[str, Any]] | None:
    """The number of the newest checkpoint that can be read, and its state; None if there is none. Warns of one that
    is broken. Raises DataError if all are, and for one of another version."""
    directory = database / CHECKPOINTS
    broken: list[str] = []
    try:
        numbers = _numbers(directory) if directory.exists() else []
        for number in numbers:
            path = directory / f"{number:020d}{_SUFFIX}"
            data = path.read_bytes()
            body = data[len(_MAGIC) + 32 :]
            if not data.startswith(_MAGIC) or hashlib.sha256(body).digest() != data[len(_MAGIC) : len(_MAGIC) + 32]:
                broken.append(str(path))
                continue
            version = saved_version(body)
            if not isinstance(version, int) or not 1 <= version <= VERSION:
                has = f"the checkpoint {path} has format {version}; this program reads up to {VERSION}"
                hint = f"open the database with the release that wrote it or a later one, or {_START_ANEW}"
                raise DataError(has, hint)
            state = load(body)
            for name in broken:
                message = f"the checkpoint {name} is broken: queries go on from the one before it, nothing is lost"
                warnings.warn(message, HybridWarning, stacklevel=5)
            return number, state
    except OSError as error:
        message = f"the checkpoints in {directory} cannot be read: {first_line(error)}"
        raise DataError(message, "check the place") from None
    if broken:
        message = f"all checkpoints are broken: {', '.join(broken)}"
        raise DataError(message, f"restore one from a copy, or {_START_ANEW}")
    if names := _noted_names(database):
        warnings.warn(
            f"the checkpoints in {directory} are gone, and with them the queries {', '.join(names)}: begin them anew "
            f"with db.watch, no event is lost; the next checkpoint, or removing {database / NAMES}, ends this warning",
            HybridWarning,
            stacklevel=5,
        )
    return None


def replaced(names: Sequence[str], lost: Sequence[str], version: int, wider: bool = False) -> list[str]:
    """What is to be said of queries whose states in a checkpoint could not be read. lost: those of them that may not be
    what they were. wider: whether their streams have got columns since."""
    why = "the checkpoint is of streams with fewer columns" if wider else "the checkpoint is of another release"
    found = [
        f"{why}: {', '.join(names)} went through the events that are kept once more, "
        "and go on where they were"
    ]
    if lost:
        found.append(
            f"of {', '.join(lost)} not all events are kept, or it is not known when they began: a match that depends "
            "on those may be missing, or one too many"
        )
    if version < 2:
        found.append(
            "the checkpoint is of a release with other match ids: rows that were handed out since it was taken come "
            "again under new ids"
        )
    return found


def _note_names(database: Place, names: list[str]) -> None:
    """Writes down which queries there are checkpoints of. Without it a checkpoint is as good."""
    try:
        if _noted_names(database) != names:
            (database / NAMES).write_text(json.dumps({"version": 1, "queries": names}))
    except OSError as error:
        message = f"{database / NAMES} cannot be written: {first_line(error)}; nobody will miss the checkpoints"
        warnings.warn(message, HybridWarning, stacklevel=3)


def _noted_names(database: Place) -> list[str]:
    """What `_note_names` wrote; none where it is gone or broken."""
    try:
        return [str(name) for name in json.loads((database / NAMES).read_text())["queries"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _numbers(directory: Place) -> list[int]:
    """Of the checkpoints in a directory, the newest first."""
    stems = [name.removesuffix(_SUFFIX) for name in directory.names() if name.endswith(_SUFFIX)]
    return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)
