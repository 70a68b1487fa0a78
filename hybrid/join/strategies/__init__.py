"""Strategies decide when history is read, as pure functions of a frontier. The driver acts on their decisions."""

from __future__ import annotations

from hybrid.join.strategies.alaa import ALAA
from hybrid.join.strategies.auto import Auto
from hybrid.join.strategies.base import Strategy
from hybrid.join.strategies.llaa import LLAA
from hybrid.join.strategies.ollaa import OLLAA
from hybrid.join.strategies.sllaa import SLLAA

#: Names of strategies, as users write them.
NAMES = ("alaa", "llaa", "ollaa", "sllaa", "auto")
#: Strategies that take a tolerance.
TOLERANT = ("sllaa", "auto")


def strategy_of(name: str, tolerance_us: int | None = None) -> Strategy:
    """Returns the strategy of a name. tolerance_us: longest wait of a match for others in the same request, in event
    time; None: no wait."""
    match name:
        case "alaa":
            return ALAA()
        case "llaa":
            return LLAA()
        case "ollaa":
            return OLLAA()
        case "sllaa":
            return SLLAA(tolerance_us)
        case "auto":
            return Auto(tolerance_us)
        case _:
            raise ValueError(f"unknown strategy {name}")
