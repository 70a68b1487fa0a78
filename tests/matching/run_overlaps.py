"""A throwaway engine over events with an interval: of each key the pairs (A, B) where B begins before A ends."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import NONE_BAD, Arrays, EnginePlan
from matching.program.program import Program
from matching.store import RowStore
from query.plan.expression import Column

#: The column with the end of an event's interval; its time is the beginning.
END = "until"


def overlaps(program: Program) -> bool:
    """Whether it is the pattern (A B) with B beginning before the end of A."""
    reads_end = any(isinstance(e, Column) and e.name == END for e, _ in program.features)
    return reads_end and program.variables == ("A", "B") and bool(program.ignore)


class RunOverlaps:
    name = "overlapping intervals"
    tag = "test overlaps"
    by_test, defers, settles, specialises = False, False, False, False
    stuck = 0

    def __init__(self, chosen: EnginePlan) -> None:
        features = [e.name if isinstance(e, Column) else "" for e, _ in chosen.runs.features]
        self._end = features.index(END)
        self._open: dict[int, list[tuple[int, int]]] = {}  # by partition the rows of A, and their ends
        self._found: list[tuple[int, int, int, int]] = []  # partition, number, the rows of A and B
        self._number: dict[int, int] = {}

    @property
    def size(self) -> int:
        return sum(map(len, self._open.values()))

    @property
    def decided(self) -> int:
        return len(self._found)

    def reserve(self, partitions: int) -> None:
        pass

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        ends = feature[self._end].tolist()
        for row, holds, end in zip(rows.tolist(), mask.tolist(), ends, strict=True):
            p, now = int(store.partition[row]), int(store.ts[row])
            still = [(a, until) for a, until in self._open.get(p, []) if until > now]
            if holds & 2:
                for a, _ in still:
                    self._number[p] = self._number.get(p, 0) + 1
                    self._found.append((p, self._number[p], a, row))
            if holds & 1 and end > now:
                still.append((row, end))
            self._open[p] = still

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        pass

    def finish(self, partitions: int) -> None:
        self._open.clear()

    def decode(self, store: RowStore, out: Decode) -> None:
        found = np.array(self._found, np.int64).reshape(-1, 4)
        self._found = []
        out.begin(len(found))
        out.bounds = 2 * np.arange(len(found) + 1)
        out.room(2 * len(found))
        out.rows[:], out.variables[:] = found[:, 2:].reshape(-1), np.tile(np.array([0, 1], np.int16), len(found))
        out.partition[:], out.number[:], out.start[:] = found[:, 0], found[:, 1], found[:, 2]
        for name in ("ts", "source", "offset", "seq"):
            setattr(out, name, getattr(store, name)[out.rows])

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        for p in ids.tolist():
            keep[[a for a, _ in self._open.get(p, [])]] = True

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        for p in ids.tolist():
            self._open[p] = [(int(row_moved[a]), end) for a, end in self._open.get(p, [])]

    def busy(self, partition: Int64Array) -> np.ndarray:
        return np.array([bool(self._open.get(p)) for p in partition.tolist()], np.bool_)

    def idle(self, partitions: int) -> np.ndarray:
        return ~self.busy(np.arange(partitions))

    def forget(self, ids: Int64Array) -> None:
        for p in ids.tolist():
            self._open.pop(p, None)
            self._number.pop(p, None)

    def numbers(self, partitions: int) -> Int64Array:
        return np.array([self._number.get(p, 0) for p in range(partitions)], np.int64)

    def snapshot(self) -> Arrays:
        rows = [(p, a, end) for p, some in self._open.items() for a, end in some]
        numbers = [*self._number.items()]
        return {
            "open": np.array(rows, np.int64).reshape(-1, 3), "numbers": np.array(numbers, np.int64).reshape(-1, 2)
        }  # fmt: skip

    def restore(self, arrays: Arrays) -> None:
        self._number = dict(arrays["numbers"].tolist())
        self._open = {}
        for p, a, end in arrays["open"].tolist():
            self._open.setdefault(p, []).append((a, end))
