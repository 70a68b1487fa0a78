"""What is wrong with the log of a stream, and how it is set right: what is damaged is set aside, other events stay.

Nothing is deleted. The segments that are damaged get names that end in DAMAGED, and all that could be read of the log
stands in a new one after them, which says by a frame of its own that something is missing there: a database opens with
that, and its events go into files with the next flush.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archive.history import LOG
from archive.log import DAMAGED, Fault, read, write_segment
from archive.log_frames import (
    SUFFIX,
    Buffer,
    Rows,
    lost_frame,
    mark_frame,
    rows_frame,
    schema_frame,
    segments,
    skip_frame,
    tells_time,
)
from archive.place import place_of
from archive.table import Table
from query.schema import Schema


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was done. faults: what was wrong, and what is missing by it; aside: the files as they were; events: how many
    could be read."""

    faults: tuple[Fault, ...]
    aside: tuple[Path, ...]
    events: int


def faults(table: Path, must_be: bool) -> list[Fault]:
    """What is wrong with the log of a stream. table: the directory of its table; must_be: whether its declaration says
    that there is a log. Changes nothing. Raises DataError for a table that cannot be opened, and for a newer format."""
    schema, next_seq, offsets = _expected(table)
    missing = _missing(table / LOG) if must_be else []
    return missing or read(table / LOG, schema, next_seq, offsets).faults


def repair(table: Path, must_be: bool) -> Repaired:
    """Sets the log right, see `faults`; nothing is done where nothing is wrong. The database must not be open. Where it
    is interrupted it is begun again. Raises as `faults` does, and OSError."""
    schema, next_seq, offsets = _expected(table)
    directory = table / LOG
    old = segments(directory)
    found = read(directory, schema, next_seq, offsets)
    wrong = (_missing(directory) if must_be else []) or found.faults
    if not wrong:
        return Repaired((), (), 0)
    directory.mkdir(parents=True, exist_ok=True)
    number = first = found.next_frame
    parts: list[Buffer] = [*schema_frame(number, schema)]
    events = 0
    for entry in found.entries or wrong:
        number += 1
        if isinstance(entry, Rows):
            parts += rows_frame(number, entry.batch, entry.late, tells_time(schema))
            events += len(entry.batch)
        elif isinstance(entry, Fault):
            parts += lost_frame(number, {"what": entry.what, "events": entry.events})
        else:
            parts += mark_frame(number, entry)
    for source, offset in found.skipped.items():
        number += 1
        parts += skip_frame(number, source, offset)
    path = directory / f"{found.segment + 1:020d}{SUFFIX}"
    file, _ = write_segment(path, found.segment + 1, first, number + 1, parts)
    os.close(file)
    place_of(directory).sync()
    aside = tuple(one.rename(f"{one}{DAMAGED}") for one in old)
    place_of(directory).sync()
    return Repaired(tuple(wrong), aside, events)


def _missing(directory: Path) -> list[Fault]:
    return [] if segments(directory) else [Fault(directory, 0, 0, "the log is missing, with events in no file yet")]


def _expected(table: Path) -> tuple[Schema, int, Mapping[str, int]]:
    """The stream, and what its archive expects next: ingest sequence and offsets."""
    opened = Table.open(table)
    snapshot = opened.snapshot()
    return opened.schema, snapshot.boundary_sequence + 1, snapshot.offsets
