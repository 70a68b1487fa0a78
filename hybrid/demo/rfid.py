"""A shop: which items leave through the exit without a register reading of their tag in the ten days before?"""

from __future__ import annotations

from pathlib import Path

from hybrid.demo.scenario import ScenarioResult, play
from simulator.rfid import SHOP_QUERY, shop

QUERY = SHOP_QUERY


def run(seed: int = 1, directory: str | Path | None = None, interleaving: int = 0) -> ScenarioResult:
    """Simulates the shop of a seed, with delayed and repeated deliveries, and runs the live query."""
    return play(shop(seed, interleaving=interleaving), directory)
