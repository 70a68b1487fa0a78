"""Checkpoints of a database: the state of its live queries, in one file each, written whole or not at all.

A file is MAGIC, the SHA-256 of the rest, and the state as hybrid.watch.saved encodes it. It records how far each stream
was matched (`next_seq`). All earlier events are in the archive or its log before the file exists; later ones are
matched again from there. An older checkpoint gives the same answer as a newer one, only later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from archive.place import Place
from hybrid.watch.saved import load, save, saved_version
from query.errors import DataError, first_line, warn

#: In the directory of a database.
CHECKPOINTS = "_checkpoint"
#: The version of the format, in each file. Format 2 is read as is, although its first releases had no matches without
#: events. A file of format 1 is read, except for the progress of its matches, which is rebuilt from the events. A newer
#: format is refused.
VERSION = 3
#: A file beside the streams that names the queries in the checkpoints, so that a loss of all checkpoints is noticed.
NAMES = "_queries.json"
#: Number of checkpoints kept: the older one is the fallback if the newer one is damaged on disk.
KEPT = 2
_MAGIC = b"hybrid checkpoint\n"
_SUFFIX = ".state"
_START_ANEW = "remove the directory: queries then start empty, and no event is lost"


def write(database: Place, number: int, state: dict[str, Any]) -> None:
    """Writes a checkpoint and removes superfluous ones. Raises DataError; the older ones are kept then."""
    directory = database / CHECKPOINTS
    body = save({"version": VERSION, **state})
    try:
        directory.make()
        data = _MAGIC + hashlib.sha256(body).digest() + body
        (directory / f"{number:020d}{_SUFFIX}").write_bytes(data, private=True)
        directory.sync()
    except OSError as error:
        message = f"a checkpoint in {directory} cannot be written: {first_line(error)}"
        hint = "the previous checkpoint remains valid: free disk space or grant write permission"
        raise DataError(message, hint) from error
    _note_names(database, list(state["queries"]))
    try:
        for old in _numbers(directory)[KEPT:]:
            (directory / f"{old:020d}{_SUFFIX}").remove()
    except OSError:
        pass  # retried after the next checkpoint


def newest(database: Place) -> tuple[int, dict[str, Any]] | None:
    """Returns the number and state of the newest readable checkpoint; None if there is none. Warns of a damaged one.
    Raises DataError if all are damaged, or if one has a newer version."""
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
                message = f"the checkpoint {name} is damaged: queries resume from the previous one, and nothing is lost"
                warn(message)
            return number, state
    except OSError as error:
        message = f"the checkpoints in {directory} cannot be read: {first_line(error)}"
        raise DataError(message, "check the path and its permissions") from None
    if broken:
        message = f"all checkpoints are damaged: {', '.join(broken)}"
        raise DataError(message, f"restore one from a copy, or {_START_ANEW}")
    if names := _noted_names(database):
        warn(f"the checkpoints in {directory} are missing, and with them the queries {', '.join(names)}: start them "
            f"again with db.watch, no event is lost; the next checkpoint, or removing {database / NAMES}, ends this "
            "warning")
    return None


def replaced(names: Sequence[str], lost: Sequence[str], version: int, wider: bool = False) -> list[str]:
    """Returns warnings about queries whose states in a checkpoint could not be read. lost: those of them that may have
    missed events. wider: True if their streams have got columns since."""
    writer = "for streams with fewer columns" if wider else "by another release"
    found = [
        f"the checkpoint was written {writer}: {', '.join(names)} replayed the kept events and resumed where they were"
    ]
    if lost:
        found.append(
            f"events of {', '.join(lost)} are no longer kept, or their beginning is unknown: a match that depends "
            "on those may be missing or superfluous"
        )
    if version < 2:
        found.append(
            "the checkpoint was written by a release with other match ids: rows delivered since then come "
            "again under new ids"
        )
    return found


def _note_names(database: Place, names: list[str]) -> None:
    """Writes the names of the queries in the checkpoints. Checkpoints are valid without this file."""
    try:
        if _noted_names(database) != names:
            (database / NAMES).write_text(json.dumps({"version": 1, "queries": names}))
    except OSError as error:
        path = database / NAMES
        message = f"{path} cannot be written: {first_line(error)}; a loss of the checkpoints will not be noticed"
        warn(message)


def _noted_names(database: Place) -> list[str]:
    """Returns the names that `_note_names` wrote; none if the file is missing or damaged."""
    try:
        return [str(name) for name in json.loads((database / NAMES).read_text())["queries"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _numbers(directory: Place) -> list[int]:
    """Returns the numbers of the checkpoints in a directory, the newest first."""
    stems = [name.removesuffix(_SUFFIX) for name in directory.names() if name.endswith(_SUFFIX)]
    return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)
