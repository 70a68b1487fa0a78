"""LLAA: each live match requests its own history, once.

The lazy strategy of [LIVE-ARCHIVE]. It reads no history before a live match needs it, so it costs nothing without live
matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import AskArchive, Decision, Frontier


@dataclass(frozen=True, slots=True)
class LLAA:
    """One request for each match, as soon as it is ready."""

    name: str = "llaa"
    sample_s: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: each live match requests its own history, once that is complete"

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        return [AskArchive(row) for row in np.flatnonzero(frontier.ready)[:, None]]
