"""Checkpoints of a database: what its live queries have become, in one file each, written whole or not at all.

A file is MAGIC, the SHA-256 of the rest, and what hybrid.saved makes of the state. It says how far each stream had been
matched (`next_seq`); all events before that are in the archive or its log by the time the file is there, and those
behind it are matched again from there. So an older checkpoint is as good as a newer one, only slower to go on from.
"""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

from archive.place import Place
from hybrid.saved import load, save
from query.errors import DataError, HybridWarning, first_line

#: In the directory of a database.
CHECKPOINTS = "_checkpoint"
#: Of the state; a file with another one is refused.
VERSION = 1
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
        (directory / f"{number:020d}{_SUFFIX}").write_bytes(_MAGIC + hashlib.sha256(body).digest() + body)
        directory.sync()
    except OSError as error:
        message = f"a checkpoint in {directory} cannot be written: {first_line(error)}"
        raise DataError(message, "the one before stands: make room or give permission") from error
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
            state = load(body)
            if state["version"] != VERSION:
                has = f"{path} has version {state['version']}; this program reads {VERSION}"
                raise DataError(has, f"open the database with the release that wrote it, or {_START_ANEW}")
            for name in broken:
                message = f"the checkpoint {name} is broken: queries go on from the one before it, nothing is lost"
                warnings.warn(message, HybridWarning, stacklevel=2)
            return number, state
    except OSError as error:
        message = f"the checkpoints in {directory} cannot be read: {first_line(error)}"
        raise DataError(message, "check the place") from None
    if broken:
        message = f"all checkpoints are broken: {', '.join(broken)}"
        raise DataError(message, f"restore one from a copy, or {_START_ANEW}")
    return None


def _numbers(directory: Place) -> list[int]:
    """Of the checkpoints in a directory, the newest first."""
    stems = [name.removesuffix(_SUFFIX) for name in directory.names() if name.endswith(_SUFFIX)]
    return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)
