"""Input of a strategy (Frontier) and its output (Decision)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from matching.batch import Int64Array
from query.plan.expression import show_interval


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of both sides, measured while the query runs. PL is the live pattern, PA the history pattern.

    live_selectivity, archive_selectivity: matches of PL, and of PA, per event; None if unknown. ahead_s: expected
    seconds to precompute PA for all keys, as far back as the ranges of ready matches reach and up to now, beyond
    cached intervals; None if unknown, impossible or too large for memory. request_s: least seconds of a request for
    history. match_s: seconds per match of a request in addition. asked_s: seconds spent on requests since the last
    precompute, beyond the cost of extending it at each request.
    """

    live_selectivity: float | None = None
    archive_selectivity: float | None = None
    ahead_s: float | None = None
    request_s: float = 0.0
    match_s: float = 0.0
    asked_s: float = 0.0

    def __str__(self) -> str:
        def known(value: float | None, factor: int = 1, unit: str = "") -> str:
            return "unknown" if value is None else f"{factor * value:.3g}{unit}"

        live, archived = known(self.live_selectivity), known(self.archive_selectivity)
        return (
            f"{known(self.request_s, 1000)} ms per request and {known(self.match_s, 1000)} ms per match, "
            f"{known(self.asked_s, 1000)} ms wasted so far; "
            f"precompute for all keys: {known(self.ahead_s, 1000, ' ms')}; "
            f"matches per event: {live} live, {archived} archived"
        )


@dataclass(frozen=True, slots=True)
class Frontier:
    """The n pending live matches of one query, in the order of PL, and the progress of its input.

    first_us, last_us: int64 (n,), times of the first and last event of each match. low_us, high_us: int64 (n,), first
    and last instant of its history ranges (low > high: all are empty). ready: bool (n,), True if the ranges are
    complete or the join is AS KNOWN. watermark_us: of PL's input, lower bound of the times of later events; None before
    the first event. ended: no event can follow.
    """

    first_us: Int64Array
    last_us: Int64Array
    low_us: Int64Array
    high_us: Int64Array
    ready: np.ndarray
    watermark_us: int | None
    ended: bool
    costs: Costs = Costs()

    def __len__(self) -> int:
        return len(self.ready)


@dataclass(frozen=True, slots=True)
class AskArchive:
    """Reads the history of these matches (indices in the frontier, ascending) in one request, and joins it."""

    rows: Int64Array


@dataclass(frozen=True, slots=True)
class Detect:
    """Precomputes PA for all keys, as far back as the ranges of these matches reach and up to now, and joins it. Later
    matches use it too. If PA cannot be precomputed, the matches request history."""

    rows: Int64Array


Decision = AskArchive | Detect


class Strategy(Protocol):
    """Decides when pending matches read history. The driver calls `decide` after each new match or watermark.

    Matches of a decision must be ready, and in one decision only; other matches stay pending. `decide` must read only
    its argument. Decisions never change a row, only when and how history is read."""

    @property
    def name(self) -> str: ...

    @property
    def sample_s(self) -> float | None:
        """None if the strategy ignores costs. Else the least expected seconds of a precompute for which a sample of
        history is read; below, costs are estimated without a sample."""
        ...

    def __str__(self) -> str:
        """Returns the line of EXPLAIN."""
        ...

    def decide(self, frontier: Frontier) -> Sequence[Decision]:
        """Returns decisions about ready matches."""
        ...


def show_wait(tolerance_us: int | None) -> str:
    """Returns the part of EXPLAIN about the wait of a match for others; empty without one."""
    return "" if tolerance_us is None else f"; matches wait up to {show_interval(tolerance_us)} for others"
