"""SLLAA: neighbouring live matches make a sub-window, and ask for their histories together.

[LIVE-ARCHIVE], the lazy strategy with sub-windows: matches belong to one sub-window while the end of the latest lies no
further than TL behind the end of the earliest, TL being the delay that the user tolerates. What their ranges share is
read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import AskArchive, Decision, Frontier


@dataclass(frozen=True, slots=True)
class SLLAA:
    """One request for each sub-window, once no match can join it any more.

    tolerance_us: TL, in event time; None: no match waits for another, and those that are ready at the same time ask
    together. from_start: a sub-window is measured from the start of its earliest match, as Lemma 1 is printed; then a
    match that is longer than TL is alone. For experiments.
    """

    tolerance_us: int | None = None
    from_start: bool = False
    name: str = "sllaa"
    sample_s: float | None = None

    def __str__(self) -> str:
        waits = "" if self.tolerance_us is None else f"; it may wait {self.tolerance_us} us for others"
        return f"{self.name}: live matches whose history is complete ask for it together{waits}"

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
