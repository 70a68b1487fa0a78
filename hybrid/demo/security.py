"""Logins: which accounts had their password guessed on a device without a login to them in the 90 days before?"""

from __future__ import annotations

from pathlib import Path

from hybrid.demo.scenario import ScenarioResult, play
from simulator.security import SECURITY_QUERY, security

QUERY = SECURITY_QUERY


def run(seed: int = 1, directory: str | Path | None = None, interleaving: int = 0) -> ScenarioResult:
    """Simulates the logins of a seed, with delayed and repeated deliveries, and runs the live query."""
    return play(security(seed, interleaving=interleaving), directory)
