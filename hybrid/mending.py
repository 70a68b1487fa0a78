"""Repair of one stream of a database: its declaration, and its table (archive.repair)."""

from __future__ import annotations

import warnings

from archive.place import Place
from archive.repair import Repaired, aside, repair
from archive.table import Table
from hybrid.declaration import STREAM_FILE, TABLE, read_declaration, write_declaration
from query.errors import DataError, HybridWarning, first_line
from query.schema import Schema


def declaration_fault(directory: Place) -> str | None:
    """What is wrong with the declaration in the directory of a stream, or None."""
    found = _declared(directory)
    return found if isinstance(found, str) else None


def mend(directory: Place) -> list[Repaired]:
    """Repairs the stream in a directory as far as it can be; says what it did. No process may have it open. Raises
    DataError where something is lost that nothing says any more."""
    found = _declared(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)  # of what is about to be repaired
        done = repair(directory / TABLE, None if isinstance(found, str) else found)
    if isinstance(found, str):
        moved = aside(directory, STREAM_FILE) if (directory / STREAM_FILE).exists() else ""
        write_declaration(directory, Table.open(directory / TABLE).schema, None)
        what = f"was damaged: it is {moved} now, and" if moved else "was gone: it is"
        again = "declare idle and heartbeat again, if it had them"
        done.append(Repaired(STREAM_FILE, f"{what} made anew as the table says", "", again))
    return done


def _declared(directory: Place) -> Schema | str:
    """How a stream is declared, or what is wrong with its declaration."""
    if not (directory / STREAM_FILE).exists():
        return f"{STREAM_FILE} is gone"
    try:
        return read_declaration(directory)[0]
    except DataError as error:
        return first_line(error)
