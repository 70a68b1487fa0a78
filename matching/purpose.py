"""The use of the matches of a plan."""

from __future__ import annotations

from enum import Enum


class Purpose(Enum):
    """The use of the matches. Saved states contain the names.

    With FOUND_AGAIN, KEPT_ROWS and IDENTIFIED matches have `ends` instead of times and events (matching.batch.Matches);
    LIVE replaces them if the evidence cannot be found again, see matching.engines.choose."""

    MATCHES = "matches with their evidence"
    LIVE = "matches of a live query, with their evidence"
    FOUND_AGAIN = "output rows of a live query, whose evidence is found again when it is asked for"
    KEPT_ROWS = "output rows of a live query whose runs may spill, and keep their rows; evidence is found again"
    IDENTIFIED = "output rows and match ids of a live query, whose evidence is found again when it is asked for"
    ROWS = "output rows without evidence"
    PARTS = "sums of windows, to be put together with those of other partitions"  # see matching.window_parts
    COUNTS = "the number of matches of each partition"
    GRAPH = "all matches as a graph"  # see matching.match_graph

    @property
    def live(self) -> bool:
        """True if the matches are those of a live query."""
        return self is Purpose.LIVE or self.again

    @property
    def again(self) -> bool:
        """True if evidence is found again."""
        return self in (Purpose.FOUND_AGAIN, Purpose.KEPT_ROWS, Purpose.IDENTIFIED)

    @property
    def bare(self) -> bool:
        """True if matches have neither times nor events."""
        return self in (Purpose.ROWS, Purpose.PARTS) or self.again

    @property
    def carries(self) -> bool:
        """True if runs may carry the values that measures read instead of the rows of a match."""
        return self in (Purpose.ROWS, Purpose.FOUND_AGAIN)
