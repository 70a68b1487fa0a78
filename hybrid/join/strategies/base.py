"""What a strategy sees (Frontier), and what it may decide (Decision)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from matching.batch import Int64Array


@dataclass(frozen=True, slots=True)
class Costs:
    """What is known of both sides, measured while the query runs.

    live_selectivity, archive_selectivity: matches of PL, and of PA, for one event; None as long as nobody knows.
    ahead_s: seconds that finding PA for all keys, as far back as the ranges of those that are ready reach and up to
    now, is expected to take, without what has been found already; None: nobody knows, or it cannot be found ahead of
    any range, or would not fit into memory. request_s: seconds that reading and matching the history of a request takes
    at the least; match_s: that each of its matches takes beside that. asked_s: seconds that have been spent on asking
    since PA was found ahead last, beyond what it would have taken to go on with it each time.
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
            f"{known(self.request_s, 1000)} ms to ask for history, and {known(self.match_s, 1000)} ms for each match, "
            f"{known(self.asked_s, 1000)} ms in vain so far; "
            f"all keys ahead: {known(self.ahead_s, 1000, ' ms')}; "
            f"matches for an event: {live} live, {archived} archived"
        )


@dataclass(frozen=True, slots=True)
class Frontier:
    """The live matches of one query that wait, n of them in the order of PL, and how far its input has come.

    first_us, last_us: int64 (n,), the times of the first and the last event of each match. low_us, high_us: int64 (n,),
    the first and the last instant of its history range, of all of them where it joins several (low > high: nothing is
    in them). ready: bool (n,), nothing that belongs into the range can still come, or the query takes what is known.
    watermark_us: of PL's input, no event below it can still come; None before the first event. ended: nothing can come
    at all.
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
    """Read the history of these matches (numbers in the frontier, ascending) in one request, and join."""

    rows: Int64Array


@dataclass(frozen=True, slots=True)
class Detect:
    """Find PA for all keys, as far back as the ranges of these matches reach and up to now, and join them with that.
    Later matches are answered by it too. Where PA cannot be found ahead, they ask."""

    rows: Int64Array


Decision = AskArchive | Detect


class Strategy(Protocol):
    """Decides about all that waits. Matches that are in no decision wait on; those that are must be ready, and each is
    in one. The driver asks whenever a match is new or a watermark has moved; it must not read anything but its
    argument, and what it decides never changes a row, only when and how history is read."""

    @property
    def name(self) -> str: ...

    @property
    def sample_s(self) -> float | None:
        """None where it does not look at the costs of a frontier. Else how many seconds finding PA ahead must be
        expected to take for a sample of history to be worth its read; without one there is an expectation only."""
        ...

    def __str__(self) -> str:
        """What it does, for EXPLAIN."""
        ...

    def decide(self, frontier: Frontier) -> Sequence[Decision]: ...
