"""SLLAA: live matches of one sub-window share a request for history.

The lazy strategy with sub-windows of [LIVE-ARCHIVE]. The matches of a sub-window end at most TL after its earliest
match; TL is the tolerated delay. Shared parts of their ranges are read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import AskArchive, Decision, Frontier, show_wait


@dataclass(frozen=True, slots=True)
class SLLAA:
    """One request per sub-window, as soon as no further match can belong to it.

    tolerance_us: TL, in event time; None: no match waits for another, and matches that are ready together share a
    request. from_start: measures a sub-window from the start of its earliest match, as printed in Lemma 1; a match
    longer than TL is then alone. For experiments.
    """

    tolerance_us: int | None = None
    from_start: bool = False
    name: str = "sllaa"
    sample_s: float | None = None

    def __str__(self) -> str:
        return f"{self.name}: live matches with complete history share a request{show_wait(self.tolerance_us)}"

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        ready = np.flatnonzero(frontier.ready)
        if not len(ready):
            return []
        if self.tolerance_us is None:
            return [AskArchive(ready)]
        ready = ready[np.argsort(frontier.last_us[ready], kind="stable")]
        begins = (frontier.first_us if self.from_start else frontier.last_us)[ready]
        ends = frontier.last_us[ready]
        decided: list[Decision] = []
        at = 0
        while at < len(ready):
            until_us = int(begins[at]) + self.tolerance_us
            stop = max(at + 1, int(np.searchsorted(ends, until_us, "right")))
            over = frontier.watermark_us is not None and frontier.watermark_us > until_us
            if frontier.ended or over:
                decided.append(AskArchive(np.sort(ready[at:stop])))
            at = stop
        return decided
