"""What the matches of a plan are wanted for."""

from __future__ import annotations

from enum import Enum


class Purpose(Enum):
    """What matches are wanted for. The names are in states.

    FOUND_AGAIN, KEPT_ROWS and IDENTIFIED are replaced by LIVE if the evidence cannot be found again, see
    matching.engines.choose. Matches then have `ends` instead of times and events (matching.batch.Matches)."""

    MATCHES = "matches with their evidence"
    LIVE = "matches of a live query, with their evidence"
    FOUND_AGAIN = "output rows of a live query, whose evidence is found again when it is asked for"
    KEPT_ROWS = "output rows of a live query whose runs may leave memory; evidence is found again"  # keep their rows
    IDENTIFIED = "output rows and match ids of a live query, whose evidence is found again when it is asked for"
    ROWS = "output rows without evidence"
    COUNTS = "the number of matches of each partition"
    GRAPH = "all matches as a graph"  # see matching.match_graph

    @property
    def live(self) -> bool:
        """Returns whether matches are those of a live query."""
        return self is Purpose.LIVE or self.again

    @property
    def again(self) -> bool:
        """Returns whether evidence is found again."""
        return self in (Purpose.FOUND_AGAIN, Purpose.KEPT_ROWS, Purpose.IDENTIFIED)

    @property
    def bare(self) -> bool:
        """Returns whether matches come without times and events."""
        return self is Purpose.ROWS or self.again

    @property
    def carries(self) -> bool:
        """Returns whether runs may carry what measures read instead of the rows of a match."""
        return self in (Purpose.ROWS, Purpose.FOUND_AGAIN)
