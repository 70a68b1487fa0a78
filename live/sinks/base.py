"""The Sink protocol, its errors, and the row ids by which a repeated row is recognised."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from live.sinks.json_lines import json_lines
from query.errors import DataError, first_line

#: The columns with the id of a row's match, and of the pair of matches of a joined row.
MATCH_ID = "match_id"
JOIN_ID = "join_id"


class Lost(OSError):
    """Rows written since the last `cursor` may be lost: open the sink again with that cursor and write them again. The
    sink skips those that it still has."""


class Refused(OSError):
    """Rows were rejected for their content, and will be rejected again. rows: their JSON by id (see RowId). A sink that
    raises it has a method `leave_out(id)`, which makes it continue without that row."""

    def __init__(self, what: str, error: object, rows: Mapping[str, str]) -> None:
        first, more = next(iter(rows)), f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        hint = "see the reason; later rows wait, unless `refusals` of the sink sets when to continue without the row"
        super().__init__(f"{what} rejects row {first}{more}: {first_line(error)}\nhint: {hint}")
        self.rows = dict(rows)


class Sink(Protocol):
    """A destination of the rows of live queries, in order. Used from one thread at a time.

    Rows have the column `match_id` (and `join_id` with a history join), as `db.watch(..., evidence=True)` returns them;
    all rows of a match come in one table. Delivery is at least once: after a crash, rows written since the last
    `cursor` are written again with the same ids, so a reader by id has each row once.
    `open`, `write`, `cursor` and `close` raise OSError if a retry may help, and DataError if something must be changed
    first. In both cases nothing is lost, and the call may be repeated. After Lost the sink is opened again.
    """

    def check(self, schema: pa.Schema) -> None:
        """Raises DataError for columns that the sink cannot represent. Called before the first row."""

    def open(self, cursor: str | None) -> None:
        """Starts the sink. cursor: the value of `cursor` at the last checkpoint, None without one. A sink that knows
        which rows it has received since then skips them when they come again."""

    def write(self, rows: pa.Table) -> None:
        """Sends rows. A crash may lose them until `cursor` has returned."""

    def cursor(self) -> str | None:
        """Waits until all rows written are durable. Returns the position for the next `open`, None if the sink needs
        none."""

    def close(self) -> None:
        """Waits as `cursor` does and releases all resources. Does nothing when called again."""


@dataclass(frozen=True, slots=True)
class RowId:
    """The id of one output row.

    match: the id of its match, or a hash of the row if it has none (unmatched rows, matches without events).
    join: the id of the joined pair, or "". number: the index, from 0, among the table's rows of this match and join.
    """

    match: str
    join: str
    number: int

    def __str__(self) -> str:
        return "/".join([self.match, *([self.join] if self.join else []), *([str(self.number)] if self.number else [])])


def check_ids(schema: pa.Schema) -> None:
    """Raises DataError for a schema without the columns of row ids."""
    names = schema.names
    if MATCH_ID not in names:
        message = f"rows without a column {MATCH_ID} have no id and cannot be delivered once"
        raise DataError(message, "db.watch(..., evidence=True) adds it")
    for name in (MATCH_ID, JOIN_ID):
        if names.count(name) > 1:
            raise DataError(f"two columns are named {name}", "rename the one of the outer SELECT")
        if name in names and not pa.types.is_string(schema.field(name).type):
            message = f"the column {name} is {schema.field(name).type}, not the id of a match"
            raise DataError(message, "rename it in the outer SELECT")


def row_ids(rows: pa.Table) -> list[RowId]:
    """Returns the ids of the rows, in order. Raises DataError if the rows have no id columns."""
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
    """Returns the id of a row without a match: a hash of its JSON, 32 hex digits."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Standing:
    """Counts the rows, by match and join, that a file already has and that will come again.

    Rows are counted, not numbered: the first rows of an id that come again are those of the file.
    """

    __slots__ = ("left",)

    def __init__(self, left: Mapping[str, int] | None = None) -> None:
        self.left = Counter(left or {})

    def add(self, match: str, join: str) -> None:
        """Counts a row found in a file."""
        self.left[f"{match}/{join}"] += 1

    def write(self, rows: pa.Table, write: Callable[[pa.Table], None]) -> None:
        """Writes the rows that the file does not have. The counts stay unchanged if `write` raises."""
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
    """Returns an OSError with a hint, in the form of a DataError."""
    return OSError(f"{what}: {first_line(error)}\nhint: {hint}")
