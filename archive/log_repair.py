"""Finds and repairs faults of a stream's log: sets damaged segments aside and keeps the readable events.

Nothing is deleted. A repair renames all segments to names that end in DAMAGED and copies their readable entries into a
new segment, with a `LOST` frame in the place of missing ones. The database then opens, and the next flush writes the
events to files.
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
    LoggedRows,
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
class RepairedLog:
    """Result of a repair. faults: the faults with the missing events. aside: the renamed original segments. events:
    number of events that were kept."""

    faults: tuple[Fault, ...]
    aside: tuple[Path, ...]
    events: int


def faults(table: Path, must_be: bool) -> list[Fault]:
    """Returns the faults of a stream's log. table: the directory of its table. must_be: True if the stream is declared
    with a log. Changes nothing. Raises DataError if the table cannot be opened or the log has a newer format."""
    schema, next_seq, offsets = _expected(table)
    missing = _missing(table / LOG) if must_be else []
    return missing or read(table / LOG, schema, next_seq, offsets).faults


def repair(table: Path, must_be: bool) -> RepairedLog:
    """Repairs the log; does nothing without faults. Parameters and errors as in `faults`; also raises OSError. The
    database must not be open. An interrupted repair can be repeated."""
    schema, next_seq, offsets = _expected(table)
    directory = table / LOG
    old = segments(directory)
    found = read(directory, schema, next_seq, offsets)
    wrong = (_missing(directory) if must_be else []) or found.faults
    if not wrong:
        return RepairedLog((), (), 0)
    directory.mkdir(parents=True, exist_ok=True)
    number = first = found.next_frame
    parts: list[Buffer] = [*schema_frame(number, schema)]
    events = 0
    for entry in found.entries or wrong:
        number += 1
        if isinstance(entry, LoggedRows):
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
    return RepairedLog(tuple(wrong), aside, events)


def _missing(directory: Path) -> list[Fault]:
    return [] if segments(directory) else [Fault(directory, 0, 0, "the log and its unflushed events are missing")]


def _expected(table: Path) -> tuple[Schema, int, Mapping[str, int]]:
    """Returns the schema, the next ingest sequence and the next offset of each source, by the archive."""
    opened = Table.open(table)
    snapshot = opened.snapshot()
    return opened.schema, snapshot.boundary_sequence + 1, snapshot.offsets
