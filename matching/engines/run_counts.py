"""The engine that counts all matches of row-local patterns that skip rows (matching.kernels.counts)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import NONE_BAD, ROOM, Arrays, ConditionFailed, EnginePlan
from matching.kernels import counts, layout
from matching.kernels.counts import Counted, Node, PathCounters
from matching.store import RowStore
from query.errors import DataError


class TooManyMatches(DataError):
    """Raised if a partition has more matches than a BIGINT can hold."""


class RunCounts:
    """The number of runs of each partition in each state. It keeps no rows and finds no matches."""

    name = "counts by state"
    tag = "counts"
    by_test = False
    defers = True
    specialises = False
    settles = False
    stuck = 0
    decided = 0

    def __init__(self, chosen: EnginePlan) -> None:
        program = self.program = chosen.runs
        self._moves = counts.moves_of(program, layout.program_arrays(program, 0))
        states = self._states = len(self._moves.mask) - 1
        self._partitions = self._fresh(0)
        self._nodes = np.zeros((ROOM, Node.RUNS + states), np.int64)
        self._matrix, self._old = np.zeros(states * states, np.int64), np.zeros(states, np.int64)
        self._counters = np.zeros(len(PathCounters), np.int64)
        self._counters[PathCounters.FREE] = -1

    def _fresh(self, partitions: int) -> np.ndarray:
        """Returns partitions without rows."""
        states = self._states
        within = self.program.within_us is not None or self.program.within_rows is not None
        fresh = np.zeros((partitions, Counted.STATES + states + within * states**2), np.int64)
        fresh[:, [Counted.FRONT, Counted.BACK]] = -1
        return fresh

    @property
    def size(self) -> int:
        """Returns 0: `move` can drop nothing. Rows after WITHIN leave by themselves."""
        return 0

    def numbers(self, partitions: int) -> Int64Array:
        """Returns the number of matches of each partition so far."""
        return self._partitions[:partitions, Counted.TOTAL]

    def reserve(self, partitions: int) -> None:
        """Makes room for this many partitions."""
        have = len(self._partitions)
        if partitions > have:
            more = self._fresh(max(partitions, 2 * have, ROOM) - have)
            self._partitions = np.concatenate([self._partitions, more])

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions`; see matching.engines.engine.Engine.run. Raises
        TooManyMatches."""
        partition, ts = store.partition[positions], store.ts[positions]
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        at, count = 0, len(mask)
        while at < count:
            at, status = counts.step(
                at, count, partition, mask, bad, ts, rows, self._moves, self._partitions, self._nodes, self._matrix,
                self._old, self._counters,
            )  # fmt: skip
            match status:
                case counts.ROOM:
                    self._nodes = layout.grown(self._nodes, 2 * len(self._nodes))
                case counts.ERROR:
                    c = self._counters
                    raise ConditionFailed(int(c[PathCounters.FAILED_ROW]) - 1, int(c[PathCounters.FAILED_LABEL]))
                case counts.TOO_MANY:
                    raise TooManyMatches(
                        "count(*): a partition has 2^63 - 1 matches or more, more than a BIGINT can hold",
                        "shorten WITHIN" if self.program.within_us is not None else "add WITHIN",
                    )

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions may have runs, bool (n,)."""
        of = self._partitions[partition]
        back = of[:, Counted.STATES : Counted.STATES + self._states].any(axis=1)
        return np.asarray(back | (of[:, Counted.FRONT] >= 0))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Does nothing: runs that WITHIN has ended leave with the next row."""

    def finish(self, partitions: int) -> None:
        """Does nothing: no match waits."""

    def decode(self, store: RowStore, out: Decode) -> None:
        """Does nothing: there are no matches to write."""
        out.begin(0)
        out.room(0)

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Does nothing: no run reads a row again."""

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Does nothing: no run refers to a row."""

    def idle(self, partitions: int) -> np.ndarray:
        """Returns False for all: the counts are read at the end."""
        return np.zeros(partitions, np.bool_)

    def forget(self, ids: Int64Array) -> None:
        """Does nothing: no partition is idle."""

    def snapshot(self) -> Arrays:
        nodes = self._nodes[: self._counters[PathCounters.NODES]]
        return {"counters": self._counters, "partitions": self._partitions, "nodes": nodes}

    def restore(self, arrays: Arrays) -> None:
        self._counters = arrays["counters"]
        self._partitions = arrays["partitions"]
        self._nodes = layout.grown(arrays["nodes"], max(ROOM, len(arrays["nodes"])))
