"""OLLAA: the pattern with fewer matches is evaluated first.

The lazy strategy with selectivity order of [LIVE-ARCHIVE]. If the live pattern (PL) has fewer matches per event than
the history pattern (PA), each live match requests its own history, as under LLAA. If PA has fewer, PA is precomputed
for all keys, and live matches of keys without a match of PA cost nothing.

The paper then also skips live events of these keys. This implementation matches all live events: matching costs little
compared with a read, a key may get its first match of PA at any time, which would require replaying skipped events, and
LEFT and ANTI joins return exactly these keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import AskArchive, Decision, Detect, Frontier


@dataclass(frozen=True, slots=True)
class OLLAA:
    """Decides by measured selectivities; as LLAA while they are unknown."""

    name: str = "ollaa"
    sample_s: float | None = 0.0

    def __str__(self) -> str:
        return f"{self.name}: the side with fewer matches leads: live matches request, or PA is precomputed"

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        ready = np.flatnonzero(frontier.ready)
        live, archive = frontier.costs.live_selectivity, frontier.costs.archive_selectivity
        if len(ready) and live is not None and archive is not None and archive < live:
            return [Detect(ready)]
        return [AskArchive(row) for row in ready[:, None]]
