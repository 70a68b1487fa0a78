"""Where sources go on in a stream behind payloads that were refused, of which the archive has nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from live.sources.base import Piece
from live.sources.marks import Marks, Passed, Told

#: So much of the end of a file of dead letters is compared with those that come after a start.
LAST_BYTES = 1 << 20


def last_lines(file: Path) -> frozenset[str]:
    """The last lines of a file, of which a crash may let some come again; none where it cannot be read."""
    try:
        with open(file, "rb") as data:
            size = data.seek(0, 2)
            data.seek(max(0, size - LAST_BYTES))
            return frozenset(data.read().decode(errors="replace").split("\n"))
    except OSError:
        return frozenset()


class PassedPayloads:
    """Of one stream. Each counts only where the archive ends with the event that was before it, so that a crash, or a
    return to an earlier state, takes it back with the events. Used from one thread."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._passed: dict[str, Passed] = {}
        self._due: dict[str, Passed] = {}

    def note(self, piece: Piece, archived: int | None) -> None:
        """All of a piece is pushed, and what is bad before its end is quarantined. archived: the offset that the
        archive expects next of its partition."""
        if piece.next is not None and piece.next > (archived or 0):
            self._passed[piece.source] = Passed(archived, piece.next)

    def positions(self, archived: Mapping[str, int]) -> dict[str, int]:
        """Where the partitions go on when they are opened. archived: the offsets that the archive expects next. Raises
        DataError where the file of the marks cannot be read."""
        return Told(passed=self._passed).positions(self._marks.read().positions(archived))

    def begin_checkpoint(self, archived: Mapping[str, int]) -> dict[str, int]:
        """Where the partitions go on once the checkpoint that begins now is durable."""
        self._due = {name: one for name, one in self._passed.items() if archived.get(name) == one.at}
        return {**archived, **{name: one.next for name, one in self._due.items()}}

    def end_checkpoint(self) -> None:
        """It is durable. Raises OSError, and DataError as `positions` does."""
        due, self._due = self._due, {}
        self._marks.keep(passed=due)
