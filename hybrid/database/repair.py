"""Repair of one stream of a database: its declaration, its table (archive.repair) and its log (archive.log_repair)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

from archive import log_repair
from archive.place import Place, place_of
from archive.repair import RepairedFault, aside, repair
from archive.table import Table
from hybrid.database.pattern_file import PATTERNS, patterns_fault
from hybrid.watch.declaration import STREAM_FILE, TABLE, read_declaration, write_declaration
from query.errors import DataError, HybridWarning, first_line
from query.schema import Schema

_AGAIN = "push again what the stream expects by its offsets; the rest from a file: hybrid archive ingest"


def declaration_fault(directory: Place) -> str | None:
    """Returns the fault of the declaration in a stream's directory, or None."""
    found = _declared(directory)
    return found if isinstance(found, str) else None


def log_faults(directory: Place) -> list[str]:
    """Returns the faults of a stream's log. No process may have the stream open."""
    found = _declared(directory)
    if isinstance(found, str) or not directory.on_disk:
        return []
    return [str(fault) for fault in log_repair.faults(Path(directory) / TABLE, found[1])]


def mend(directory: Place) -> list[RepairedFault]:
    """Repairs the stream in a directory and returns the repairs. No process may have it open. Raises DataError if the
    lost information is recorded nowhere else."""
    found = _declared(directory)
    schema, logged = (None, False) if isinstance(found, str) else found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)  # about the faults repaired here
        done = repair(directory / TABLE, schema)
        if directory.on_disk:
            done += _log(Path(directory), logged)
    if isinstance(found, str):
        moved = aside(directory, STREAM_FILE) if (directory / STREAM_FILE).exists() else ""
        write_declaration(directory, Table.open(directory / TABLE).schema, None)
        what = f"was damaged: it is {moved} now, and" if moved else "was missing: it was"
        again = "declare idle and heartbeat again, if it had them"
        done.append(RepairedFault(STREAM_FILE, f"{what} created from the table", "", again))
    return done


def mend_patterns(database: Place) -> list[RepairedFault]:
    """Sets the file of named patterns aside if it is damaged. No process may have the database open."""
    if patterns_fault(database) is None:
        return []
    moved = aside(database, PATTERNS)
    return [RepairedFault(PATTERNS, f"was damaged: it is {moved} now", "", "create its patterns again")]


def _log(directory: Path, logged: bool) -> Iterator[RepairedFault]:
    found = log_repair.repair(directory / TABLE, logged)
    moved = ", ".join(path.name for path in found.aside)
    now = f", its files are {moved} now" if moved else ""
    kept = f"the {found.events:,} events that can be read of it are kept{now}"
    lost = [(fault.events[0], fault.events[1] - 1) for fault in found.faults if fault.events is not None]
    if lost:  # reported below; the gap is then known and no fault
        table = Table.open(place_of(directory / TABLE))
        table.note_gaps([*(table.gaps or []), *lost])
    for fault in found.faults:
        what = str(fault).removeprefix(f"{fault.path} ")
        yield RepairedFault(
            str(fault.path.relative_to(directory)), f"{what}; {kept}", "", _AGAIN if fault.missing else ""
        )


def _declared(directory: Place) -> tuple[Schema, bool] | str:
    """Returns the schema of a stream and whether it has a log, or the fault of its declaration."""
    if not (directory / STREAM_FILE).exists():
        return f"{STREAM_FILE} is missing"
    try:
        schema, _, _, _, logged = read_declaration(directory)
    except DataError as error:
        return first_line(error)
    return schema, logged
