"""The engine of AND: each side's trends are counted alone, and the numbers of a closed window are multiplied."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np

from matching.batch import Int64Array
from matching.engines.engine import NONE_BAD, Arrays, ClosedWindows, EnginePlan
from matching.engines.run_ordered import RunOrdered
from matching.engines.run_panes import RunPanes
from matching.engines.run_trends import CountsOnly, RunTrends
from matching.program.trends import LEAST, WHOLE, Computed, TrendTable
from matching.store import RowStore
from matching.trend_numbers import limbs_of, whole_numbers


class RunConjoined(CountsOnly):
    """Trends of AND in a window and partition are pairs of any trends of its sides, which share no variable: so their
    number is the product of those of the sides, and a sum over the events of a side is that side's sum once for each
    trend of the others."""

    name = "counts of trends of each side of AND"
    tag = "conjoined trends"

    def __init__(self, chosen: EnginePlan) -> None:
        assert chosen.trends is not None
        table = self._table = chosen.trends
        self._sides: list[RunPanes | RunTrends] = []
        for side in sides_of(table):
            engine = RunPanes if table.by_panes else RunOrdered if table.ordered and side.pairs else RunTrends
            self._sides.append(engine(replace(chosen, trends=side)))

    @property
    def decided(self) -> int:
        """Returns how many rows there may be: those of the side with the fewest."""
        return min(side.decided for side in self._sides)

    def reserve(self, partitions: int) -> None:
        for side in self._sides:
            side.reserve(partitions)

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        for side in self._sides:
            side.run(store, positions, mask, feature, feature_valid, bad)
        self._align()

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        for side in self._sides:
            side.expire(watermark_us, held)
        self._align()

    def finish(self, partitions: int) -> None:
        for side in self._sides:
            side.finish(partitions)
        self._align()

    def _align(self) -> None:
        """Closes the same windows of all sides; a side closes some by itself when it takes a later event."""
        closed = max(side.closed_before for side in self._sides)
        for side in self._sides:
            side.close_before(closed)
        if not self.decided:  # the rows of the other sides are in no pair
            for side in self._sides:
                side.windows()

    def windows(self) -> ClosedWindows:
        """Returns the rows of closed windows in which each side has a trend, in the order of windows."""
        found = [side.windows() for side in self._sides]
        places = [
            {at: i for i, at in enumerate(zip(w.window.tolist(), w.partition.tolist(), strict=True))} for w in found
        ]
        common = [at for at in places[0] if all(at in other for other in places[1:])]
        return self._product([_rows(w, [place[at] for at in common]) for w, place in zip(found, places, strict=True)])

    def _product(self, sides: list[ClosedWindows]) -> ClosedWindows:
        """Returns the rows of pairs, given those of each side, of the same windows and partitions."""
        n = len(sides[0])
        numbers = [whole_numbers(side.whole, np.arange(n), n) for side in sides]
        count = reduce(np.multiply, (of[:, :1] for of in numbers))
        whole = sum(of[:, 1:] * (count // of[:, :1]) for of in numbers)
        floats = np.zeros_like(sides[0].floats)
        for side, of in zip(sides, numbers, strict=True):
            times = np.array([_double(c // o) for c, o in zip(count[:, 0], of[:, 0], strict=True)], np.float64)
            floats += np.where(side.floats == 0.0, 0.0, side.floats * times[:, None])  # 0 times infinity is 0 here
        least, there = sides[0].least.copy(), sides[0].least_there.copy()
        for side in sides[1:]:
            for k, s in enumerate(self._table.of_kind(LEAST)):
                better = np.maximum if s.largest else np.minimum
                both = better(least[:, k], side.least[:, k])
                one = np.where(there[:, k], least[:, k], side.least[:, k])
                least[:, k] = np.where(there[:, k] & side.least_there[:, k], both, one)
            there |= side.least_there
        limbs = limbs_of(np.concatenate([count, whole], axis=1), 1 + len(self._table.of_kind(WHOLE)))
        return ClosedWindows(sides[0].partition, sides[0].window, limbs, floats, least, there)

    def busy(self, partition: Int64Array) -> np.ndarray:
        return np.asarray(np.logical_or.reduce([side.busy(partition) for side in self._sides]))

    def idle(self, partitions: int) -> np.ndarray:
        return np.asarray(np.logical_and.reduce([side.idle(partitions) for side in self._sides]))

    def snapshot(self) -> Arrays:
        return {f"{i}.{name}": a for i, side in enumerate(self._sides) for name, a in side.snapshot().items()}

    def restore(self, arrays: Arrays) -> None:
        for i, side in enumerate(self._sides):
            start = f"{i}."
            side.restore({name.removeprefix(start): a for name, a in arrays.items() if name.startswith(start)})


def sides_of(table: TrendTable) -> list[TrendTable]:
    """Returns the table of each side of AND: its automaton, and the conditions of its labels. Labels, features and sums
    are those of all sides; no event of one has a label of another."""
    found = []
    for automaton in table.automata:
        own = {table.labels.index(v) for state in automaton.states for v in state.takes}
        pairs = tuple(pair for pair in table.pairs if pair[1] in own)
        computed = {c.code for _, _, pair in pairs for one in pair for c in one if isinstance(c, Computed)}
        code = tuple(of if i in computed else () for i, of in enumerate(table.code))
        found.append(replace(table, automaton=automaton, others=(), pairs=pairs, code=code))
    return found


def _rows(w: ClosedWindows, at: list[int]) -> ClosedWindows:
    return ClosedWindows(w.partition[at], w.window[at], w.whole[at], w.floats[at], w.least[at], w.least_there[at])


def _double(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf")
