"""OLLAA: the pattern with fewer matches leads, and the other side answers.

[LIVE-ARCHIVE], the lazy strategy with selectivity order. Where PL has fewer matches for an event than PA, each live
match asks for its own history, as under LLAA. Where PA has fewer, the archive leads: PA is found for all keys first,
and a live match of a key without one costs nothing. (The paper lets live events of other keys go unmatched, too. But
matching an event costs next to nothing beside a read, a key may get its first match of PA at any moment, so that what
was left out would have to be replayed, and under LEFT and ANTI these are the very keys that are asked for. So detection
goes on for all.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import AskArchive, Decision, Detect, Frontier


@dataclass(frozen=True, slots=True)
class OLLAA:
    """By the selectivities that are known when matches are ready; live leads as long as they are not."""

    name: str = "ollaa"
    sample_s: float | None = 0.0

    def __str__(self) -> str:
        return f"{self.name}: the side with fewer matches leads; live matches ask, or PA is found for all keys first"

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        ready = np.flatnonzero(frontier.ready)
        live, archive = frontier.costs.live_selectivity, frontier.costs.archive_selectivity
        if len(ready) and live is not None and archive is not None and archive < live:
            return [Detect(ready)]
        return [AskArchive(row) for row in ready[:, None]]
