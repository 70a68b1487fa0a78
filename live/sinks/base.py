"""What a sink is, and how a row is named so that it can be recognised when it comes again."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from live.sinks.json_lines import json_lines
from query.errors import DataError, first_line

#: The columns that name the match behind a row, and the pair of matches behind a joined one.
MATCH_ID = "match_id"
JOIN_ID = "join_id"


class Lost(OSError):
    """What was written since the last `cursor` may not stand there any more: open the sink again with that cursor, and
    write those rows once more. It leaves out what does stand there."""


class Refused(OSError):
    """Rows were refused for what they are, and will be again. rows: their JSON by id (see RowId). A sink that raises it
    has a method `leave_out(id)`: without that row it goes on."""

    def __init__(self, what: str, error: object, rows: Mapping[str, str]) -> None:
        first, more = next(iter(rows)), f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        hint = "see what it minds; the rows behind it wait, unless `refusals` of the sink says when to go on without it"
        super().__init__(f"{what} does not take row {first}{more}: {first_line(error)}\nhint: {hint}")
        self.rows = dict(rows)


class Sink(Protocol):
    """Where the rows of a live query go, in the order in which they come. Used from one thread at a time.

    Rows carry `match_id` (and `join_id`, with a history join) as columns, as `db.watch(..., evidence=True)` gives them;
    all rows of a match come in one table. Delivery is at least once: what was written after the last `cursor` is
    written again when a run that was killed is taken up, with the same ids, so that whoever reads by id has each row
    once. The methods that reach out raise OSError where trying again may help and DataError where something has to be
    changed first; either way nothing is lost, and the call may be repeated. After Lost it is opened again.
    """

    def check(self, schema: pa.Schema) -> None:
        """Raises DataError for columns that the sink has no form for, before the first row comes."""

    def open(self, cursor: str | None) -> None:
        """Begins. cursor: what `cursor` gave at the last checkpoint; None: there was none. A sink that can tell what
        it has been given since leaves that out when it comes again."""

    def write(self, rows: pa.Table) -> None:
        """Returns when the rows are handed over: a crash may still lose them, until `cursor` has returned."""

    def cursor(self) -> str | None:
        """Waits until all rows written are durable; then where it stands, for the next `open` (None: it does not
        matter)."""

    def close(self) -> None:
        """Waits as `cursor` does, and gives up what it holds. Closing it again does nothing."""


@dataclass(frozen=True, slots=True)
class RowId:
    """The name of one output row.

    match: the id of its match, or, for a row without one (unmatched rows, matches without events), a hash of the row.
    join: the id of the joined pair, or "". number: counts the rows with this match and join in their table, from 0.
    """

    match: str
    join: str
    number: int

    def __str__(self) -> str:
        return "/".join([self.match, *([self.join] if self.join else []), *([str(self.number)] if self.number else [])])


def check_ids(schema: pa.Schema) -> None:
    """Raises DataError for rows that do not carry their ids."""
    names = schema.names
    if MATCH_ID not in names:
        message = f"rows without a column {MATCH_ID} cannot be delivered once: nothing names them"
        raise DataError(message, "db.watch(..., evidence=True) adds it")
    for name in (MATCH_ID, JOIN_ID):
        if names.count(name) > 1:
            raise DataError(f"there are two columns {name}", "give the one of the outer SELECT another name")
        if name in names and not pa.types.is_string(schema.field(name).type):
            message = f"the column {name} is {schema.field(name).type}, not the id of a match"
            raise DataError(message, "give it another name in the outer SELECT")


def row_ids(rows: pa.Table) -> list[RowId]:
    """The names of the rows, in their order. Raises DataError where there are none."""
    check_ids(rows.schema)
    match_ids = rows.column(MATCH_ID).to_pylist()
    if None in match_ids:
        match_ids = [match or unmatched_id(text) for match, text in zip(match_ids, json_lines(rows))]
    join_ids = rows.column(JOIN_ID).to_pylist() if JOIN_ID in rows.column_names else [None] * len(match_ids)
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for match, join in zip(match_ids, join_ids):
        key = (match, join or "")
        found.append(RowId(*key, counts[key]))
        counts[key] += 1
    return found


def unmatched_id(text: str) -> str:
    """What stands for the match id of a row without one: 32 hex digits over its JSON."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Standing:
    """The rows that stand in a file already and will be written again: for each pair of match and join how many.

    They are counted, not numbered: of the rows of one name, the first that come again are those that stand there.
    """

    __slots__ = ("left",)

    def __init__(self, left: Mapping[str, int] | None = None) -> None:
        self.left = Counter(left or {})

    def add(self, match: str, join: str) -> None:
        """A row found in a file."""
        self.left[f"{match}/{join}"] += 1

    def write(self, rows: pa.Table, write: Callable[[pa.Table], None]) -> None:
        """Writes the rows that do not stand there yet. Nothing is ticked off if `write` raises."""
        if not self.left:
            write(rows)
            return
        left, new = self.left.copy(), []
        for i, row in enumerate(row_ids(rows)):
            name = f"{row.match}/{row.join}"
            if left[name] > 0:
                left[name] -= 1
            else:
                new.append(i)
        if new:
            write(rows.take(pa.array(new, pa.int64())))
        self.left = +left


def trouble(what: str, error: object, hint: str) -> OSError:
    """An error of the world outside, told as DataError tells its own."""
    return OSError(f"{what}: {first_line(error)}\nhint: {hint}")
