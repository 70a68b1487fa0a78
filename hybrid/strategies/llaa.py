"""LLAA: live detection leads, the archive answers. Each complete live match asks for its history range once.

[LIVE-ARCHIVE], the lazy strategy: no history is read before a live match needs it, so it costs nothing while the live
pattern is silent.
"""

from __future__ import annotations

from dataclasses import dataclass

from hybrid.strategies.base import AskArchive, Decision, Frontier, Wait


@dataclass(frozen=True, slots=True)
class LLAA:
    """Ask as soon as the range is complete, or at once AS KNOWN; wait otherwise."""

    name: str = "llaa"

    def decide(self, frontier: Frontier) -> Decision:
        if frontier.complete or frontier.as_known:
            return AskArchive(frontier.low_us, frontier.last_us, frontier.complete)
        return Wait()
