"""auto: decides by measured costs whether to request history or to precompute the history pattern (PA).

Ready matches share one request, which never costs more than separate ones. Precomputing PA for all keys is a ski-rental
problem, as the number of later matches is unknown. Matches request history as long as the wasted cost so far, plus the
cost of the ready matches, is below half the cost of precomputing PA. Wasted cost is the cost of requests beyond the
cost of extending a precomputed PA at each request.

The share is a half because live queries run for long: the total is then at most about 1.5 times the cheaper choice. If
matches end right after the precompute, it is 3 times. A share of one would give 2 times in both cases. If many matches
are ready at once, the choice is the cheaper one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import AskArchive, Decision, Detect, Frontier, show_wait
from hybrid.join.strategies.sllaa import SLLAA

#: Wasted cost allowed before PA is precomputed, as a share of the cost of precomputing.
SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Auto:
    """The ski-rental rule. tolerance_us: longest wait of a match for others, in event time; None: no wait."""

    tolerance_us: int | None = None
    name: str = "auto"
    sample_s: float | None = 0.3

    def __str__(self) -> str:
        does = "ready live matches share a request, or PA is precomputed for all keys if cheaper"
        return f"{self.name}: {does}{show_wait(self.tolerance_us)}"

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        due = SLLAA(self.tolerance_us).decide(frontier)
        if not due:
            return due
        costs = frontier.costs
        rows = np.sort(np.concatenate([decision.rows for decision in due]))
        ask_s = costs.request_s + len(rows) * costs.match_s
        # At the end of the input no match can follow, so only the ready matches count.
        spent_s, share = (0.0, 1.0) if frontier.ended else (costs.asked_s, SHARE)
        if costs.ahead_s is not None and spent_s + ask_s > share * costs.ahead_s:
            return [Detect(rows)]
        return [AskArchive(rows)]
