"""Logins: which accounts were guessed on a device that nobody had logged in to them from in the 90 days before?"""

from __future__ import annotations

from pathlib import Path

from hybrid.demo.scenario import Outcome, play
from simulator.security import SECURITY_QUERY, security

QUERY = SECURITY_QUERY


def run(seed: int = 1, directory: str | Path | None = None, interleaving: int = 0) -> Outcome:
    """Simulates the logins of a seed, delays and repeated deliveries included, and asks the question live."""
    return play(security(seed, interleaving=interleaving), directory)
