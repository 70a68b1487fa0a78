"""The evidence of one output row as a tree: matches of patterns of boxes inside the match, down to its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from itertools import groupby
from typing import SupportsIndex

import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.evidence import FIXED
from hybrid.rows.html import cell
from query.errors import DataError
from query.printable import printable


@dataclass(frozen=True, slots=True)
class EvidenceTree:
    """A match, or one of its events. name: of its variable, `V[2]` for the second match of the box V; of the whole the
    number of the output row. begin, end: times of its first and last event. parts: of a match, in order. event: the
    columns of an event, by name."""

    name: str
    begin: datetime
    end: datetime
    parts: tuple[EvidenceTree, ...] = ()
    event: Mapping[str, object] | None = None

    def __str__(self) -> str:
        return self.text()

    def text(self, most: int | None = None) -> str:
        """Returns the tree as text. most: of events of one variable in a row, so many are shown, and the others
        counted, if there are two or more; None: all."""
        return "\n".join(self._lines("", "", most))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        if not self.parts:
            return f"<div>{escape(self._head())}</div>"
        inside = "".join(part._repr_html_() for part in self.parts)
        return (
            f'<details open style="margin-left:1em"><summary>{escape(self._head())}</summary>'
            f'<div style="margin-left:1em">{inside}</div></details>'
        )

    def _head(self) -> str:
        if self.event is None:
            return f"{self.name}  {self.begin} to {self.end}"
        known = ((printable(name), value) for name, value in self.event.items() if value is not None)
        columns = ", ".join(f"{name} {cell(value)}" for name, value in known)
        return f"{self.name}  {self.begin}  {columns}".rstrip()

    def _lines(self, own: str, below: str, most: int | None) -> Iterator[str]:
        yield own + self._head()
        for _, alike in groupby(self.parts, lambda part: (part.name, part.event is None)):
            row = list(alike)
            left_out = 0 if most is None or row[0].event is None else len(row) - most
            left_out = left_out if left_out > 1 else 0  # the line for it takes as much room as the event
            for i, part in enumerate(row):
                last = part is self.parts[-1]
                if left_out and i == len(row) - 1:
                    yield f"{below}├─ {part.name}  ... {left_out:,} more"
                if i < len(row) - 1 - left_out or i == len(row) - 1:
                    yield from part._lines(
                        below + ("└─ " if last else "├─ "), below + ("   " if last else "│  "), most
                    )


def tree_of(evidence: pa.Table, row: int, side: str = "pl") -> EvidenceTree:
    """Returns the evidence of an output row as a tree.

    evidence: as of `Result.evidence()`. side: `pl`, or `pa` for what was found in the history. Raises DataError if the
    row has no evidence."""
    check_row(row)
    mine = pc.and_(pc.equal(evidence.column("row"), row), pc.equal(evidence.column("side"), side))
    lines = evidence.filter(mine).to_pylist()
    if not lines and pc.max(evidence.column("row")).as_py() == -1:
        message = "output rows of this statement do not come from one match each"
        raise DataError(message, "evidence() has the events of all its matches")
    if not lines:
        of = {"pl": "", "pa": " of the history"}.get(side)
        if of is None:
            raise DataError(f"there is no side {side!r:.60}", "the sides are pl, the pattern, and pa, its history")
        raise DataError(f"row {row} has no events{of}", "rows count from 0; side='pa' shows what the history has")
    for line in lines:
        line["path"] = (line["variable"] or "row").split(".")
    time = next((name for name, value in lines[0].items() if name not in FIXED and value == lines[0]["event_time"]), "")
    return _match(f"row {row}", lines, 0, {*FIXED, "path", time})


def counts(value: object) -> bool:
    """True for a whole number that is not negative."""
    return not isinstance(value, bool) and isinstance(value, SupportsIndex) and value.__index__() >= 0


def check_row(row: object) -> None:
    """Raises DataError for what is no number of a row."""
    if not counts(row):
        raise DataError(f"{row!r} is no number of a row", "rows count from 0: tree(0) is the evidence of the first one")


def _match(name: str, lines: Sequence[dict[str, object]], depth: int, hidden: set[str]) -> EvidenceTree:
    parts: list[EvidenceTree] = []
    for (head, is_leaf), inside in groupby(lines, lambda line: (_path(line)[depth], len(_path(line)) == depth + 1)):
        if is_leaf:
            parts += [
                EvidenceTree(head, _time(line), _time(line), (), {k: v for k, v in line.items() if k not in hidden})
                for line in inside
            ]
        else:
            parts.append(_match(head, list(inside), depth + 1, hidden))
    return EvidenceTree(name, parts[0].begin, parts[-1].end, tuple(parts))


def _path(line: Mapping[str, object]) -> list[str]:
    path = line["path"]
    assert isinstance(path, list)
    return path


def _time(line: Mapping[str, object]) -> datetime:
    time = line["event_time"]
    assert isinstance(time, datetime)
    return time
