"""ALAA: live stream and archive are both searched, independent of each other.

The active strategy of [LIVE-ARCHIVE]. It finds the history pattern (PA) for all keys, as far back as any range reaches.
That includes keys without a live match, so it pays if most keys have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import Decision, Detect, Frontier


@dataclass(frozen=True, slots=True)
class ALAA:
    """Precomputes PA for all keys, up to now, whenever a live match is ready."""

    name: str = "alaa"
    sample_s: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: searches the archive for all keys, as far back as ranges reach, and joins live matches"

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        ready = np.flatnonzero(frontier.ready)
        return [Detect(ready)] if len(ready) else []
