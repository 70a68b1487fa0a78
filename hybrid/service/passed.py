"""Positions of sources after rejected payloads, of which the archive has no events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from live.sources.base import Piece
from live.sources.marks import Marks, Passed, Told

#: Bytes at the end of a file of dead letters that are compared with those that come after a start.
LAST_BYTES = 1 << 20


def last_lines(file: Path) -> frozenset[str]:
    """Returns the last lines of a file, some of which may come again after a crash; none if it cannot be read."""
    try:
        with open(file, "rb") as data:
            size = data.seek(0, 2)
            data.seek(max(0, size - LAST_BYTES))
            return frozenset(data.read().decode(errors="replace").split("\n"))
    except OSError:
        return frozenset()


class PassedPayloads:
    """Positions after rejected payloads of one stream. A position is valid only if the archive ends with the event
    before it, so a crash, or a return to an earlier state, invalidates it with the events. Used from one thread."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._passed: dict[str, Passed] = {}
        self._due: dict[str, Passed] = {}

    def note(self, piece: Piece, archived: int | None) -> None:
        """Notes the end of a piece whose rows were pushed and whose bad payloads were quarantined. archived: the offset
        of its partition that the archive expects next."""
        if piece.next is not None and piece.next > (archived or 0):
            self._passed[piece.source] = Passed(archived, piece.next)

    def positions(self, archived: Mapping[str, int]) -> dict[str, int]:
        """Returns the positions at which partitions are opened. archived: the offsets that the archive expects next.
        Raises DataError if the file of the marks is damaged."""
        return Told(passed=self._passed).positions(self._marks.read().positions(archived))

    def begin_checkpoint(self, archived: Mapping[str, int]) -> dict[str, int]:
        """Returns the positions of the partitions once the checkpoint that begins now is durable."""
        self._due = {name: one for name, one in self._passed.items() if archived.get(name) == one.at}
        return {**archived, **{name: one.next for name, one in self._due.items()}}

    def end_checkpoint(self) -> None:
        """Stores the positions of the checkpoint, which is durable now. Raises OSError, and DataError as `positions`
        does."""
        due, self._due = self._due, {}
        self._marks.keep(passed=due)
