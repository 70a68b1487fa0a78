"""ALAA: live and archive are both searched, whatever comes of the other.

[LIVE-ARCHIVE], the active strategy: PA is found for all keys, as far back as any range reaches. That is work for
matches that never ask; it pays where most keys do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import Decision, Detect, Frontier


@dataclass(frozen=True, slots=True)
class ALAA:
    """PA is found ahead, up to each moment in which a live match is ready."""

    name: str = "alaa"
    sample_s: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: the archive is searched for all keys, as far back as ranges reach, and joined with"

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        ready = np.flatnonzero(frontier.ready)
        return [Detect(ready)] if len(ready) else []
