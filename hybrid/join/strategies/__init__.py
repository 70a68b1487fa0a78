"""When the archive is asked: strategies decide, the driver acts. Pure functions of a frontier."""

from __future__ import annotations

from hybrid.join.strategies.alaa import ALAA
from hybrid.join.strategies.auto import Auto
from hybrid.join.strategies.base import Strategy
from hybrid.join.strategies.llaa import LLAA
from hybrid.join.strategies.ollaa import OLLAA
from hybrid.join.strategies.sllaa import SLLAA

#: Names of strategies, as users write them.
NAMES = ("alaa", "llaa", "ollaa", "sllaa", "auto")
#: Those that let matches wait for others.
TOLERANT = ("sllaa", "auto")


def strategy_of(name: str, tolerance_us: int | None = None) -> Strategy:
    """The strategy of a name. tolerance_us: how long a match may wait for others that ask for history with it; None:
    not at all."""
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
            raise ValueError(f"there is no strategy {name}")
