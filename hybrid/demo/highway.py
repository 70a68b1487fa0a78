"""A toll road: which cars were faster than the limit since their last reading at the previous point?"""

from __future__ import annotations

from pathlib import Path

from hybrid.demo.scenario import ScenarioResult, play
from simulator.highway import highway, speed_query

LIMIT_KMH = 120
QUERY = speed_query(LIMIT_KMH)


def run(seed: int = 1, directory: str | Path | None = None, interleaving: int = 0) -> ScenarioResult:
    """Simulates the road of a seed, with delayed and repeated deliveries, and runs the live query."""
    return play(highway(seed, limit_kmh=LIMIT_KMH, interleaving=interleaving), directory)
