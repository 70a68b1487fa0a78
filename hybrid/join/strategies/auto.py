"""auto: by what things cost here and now.

Matches that are ready ask together, which is never dearer than one by one. Whether PA is better found ahead, for all
keys, is the question of whoever rents skis: nobody knows how many matches are still to come. As long as what has been
spent on asking in vain, with what the matches at hand would cost, is less than half of finding PA ahead, they ask. In
vain is what is beyond the cost of going on with PA found ahead, which each request would have as well. Half, since a
live query goes on for long: then what is spent is at most about one and a half times what the better of both would
have cost. Where the matches end just then, it is three times; waiting for the whole would make it twice, in both cases.
Where many matches are at hand at once it is the better of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hybrid.join.strategies.base import AskArchive, Decision, Detect, Frontier
from hybrid.join.strategies.sllaa import SLLAA

#: Of what finding PA ahead takes, how much may be spent on asking in vain.
SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Auto:
    """tolerance_us: how long a match may wait for others in event time; None: not at all."""

    tolerance_us: int | None = None
    name: str = "auto"
    sample_s: float | None = 0.3

    def __str__(self) -> str:
        waits = "" if self.tolerance_us is None else f"; matches may wait {self.tolerance_us} us for others"
        return f"{self.name}: live matches ask together, or PA is found for all keys where that costs less{waits}"

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        due = SLLAA(self.tolerance_us).decide(frontier)
        if not due:
            return due
        costs = frontier.costs
        rows = np.sort(np.concatenate([decision.rows for decision in due]))
        ask_s = costs.request_s + len(rows) * costs.match_s
        # Nobody comes behind the last, and what has been spent is spent.
        spent_s, share = (0.0, 1.0) if frontier.ended else (costs.asked_s, SHARE)
        if costs.ahead_s is not None and spent_s + ask_s > share * costs.ahead_s:
            return [Detect(rows)]
        return [AskArchive(rows)]
