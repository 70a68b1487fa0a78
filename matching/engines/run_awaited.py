"""The engine of single rows that others must not follow: a bounded input, linear in rows (matching.kernels.awaited)."""

from __future__ import annotations

import numpy as np

from matching.batch import TIME_END_US, Int64Array
from matching.decode import Decode
from matching.engines.engine import NONE_BAD, ROOM, Arrays, EnginePlan, check
from matching.kernels import awaited
from matching.kernels.layout import grown
from matching.program.program import Ignore, Program
from matching.store import RowStore

#: After all times, with WITHIN added.
_END_US = 2 * TIME_END_US - 1


class RunAwaited:
    """Keeps one queue of starts. Matches come out by the end of their WITHIN, whatever row ends it: see
    hybrid.statement.rows_met."""

    name = "queue of starts"
    tag = "awaited"
    by_test = False
    defers = True  # none of its conditions fails: see `waits_alone`
    specialises = False
    settles = False
    dates = False
    stuck = 0

    def __init__(self, chosen: EnginePlan) -> None:
        program = chosen.runs
        assert program.within_us is not None
        self._within_us = program.within_us
        self._variable = program.edge_variable[program.edge_start[0]]
        self._behind = sum(1 << v for v in program.absence.behind)
        row, ts, partition, before = np.zeros((4, ROOM), np.int64)
        latest = np.full(ROOM, awaited.NONE, np.int64)
        self._queue = awaited.StartQueue(row, ts, partition, before, np.zeros(ROOM, np.bool_), latest)
        self._numbers = np.zeros(ROOM, np.int64)
        self._begin = self._end = 0
        self._decided: list[tuple[Int64Array, Int64Array, Int64Array]] = []

    @property
    def size(self) -> int:
        return self._end - self._begin

    @property
    def decided(self) -> int:
        return sum(len(row) for row, _, _ in self._decided)

    def reserve(self, partitions: int) -> None:
        """Makes room for this many partitions."""
        before = len(self._numbers)
        if partitions > before:
            self._numbers = grown(self._numbers, max(partitions, 2 * before))
            latest = np.full(len(self._numbers), awaited.NONE, np.int64)
            latest[:before] = self._queue.latest
            self._queue = self._queue._replace(latest=latest)

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions`; feature arrays are not read, and no condition fails."""
        check(sum(a.nbytes for a in self._queue))
        self._room(len(mask))
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        ts = store.ts[positions]
        self._end = awaited.enter(
            store.partition[positions], ts, rows, mask, 1 << self._variable, self._behind, self._within_us, self._queue,
            self._end,
        )  # fmt: skip
        self._hand_out(int(ts[-1]))

    def stay(self, partition: Int64Array, ts: Int64Array, mask: Int64Array) -> np.ndarray:
        """Returns which rows of a whole input, in the total order, are matches, bool (n,)."""
        next_us = np.full(int(partition.max(initial=0)) + 1, _END_US, np.int64)
        stays = np.empty(len(mask), np.bool_)
        awaited.stay(partition, ts.copy(), mask, 1 << self._variable, self._behind, self._within_us, next_us, stays)
        return stays

    def _room(self, more: int) -> None:
        """Makes room for more starts; amortised by doubling."""
        queue, have = self._queue, len(self._queue.row)
        if self._end + more <= have:
            return
        if 2 * self._begin <= self._end:
            of = {name: grown(getattr(queue, name), 2 * have + more) for name in queue._fields if name != "latest"}
            self._queue = queue._replace(**of)
            return
        for name in ("row", "ts", "partition", "before", "dropped"):
            array = getattr(queue, name)
            array[: self.size] = array[self._begin : self._end].copy()
        queue.before[: self.size] -= self._begin
        queue.latest[:] -= self._begin
        np.maximum(queue.latest, awaited.NONE, out=queue.latest)
        self._begin, self._end = 0, self.size
        self._room(more)

    def _hand_out(self, bound_us: int) -> None:
        """Decides the starts whose WITHIN is over before a time."""
        row, partition, number = (np.empty(self.size, np.int64) for _ in range(3))
        self._begin, count = awaited.leave(
            self._begin, self._end, bound_us, self._within_us, self._queue, self._numbers, row, partition, number
        )
        if count:
            self._decided.append((row[:count].copy(), partition[:count].copy(), number[:count].copy()))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Decides the starts whose WITHIN is over; no row is held back."""
        self._hand_out(watermark_us)

    def finish(self, partitions: int) -> None:
        """Decides all that wait."""
        self._hand_out(_END_US)

    def decode(self, store: RowStore, out: Decode) -> None:
        """Writes the decided matches into `out` and forgets them."""
        row, partition, number = (np.concatenate(parts) for parts in zip(*self._decided, strict=True))
        self._decided = []
        count = len(row)
        out.begin(count)
        out.room(count)
        out.bounds = np.arange(count + 1)
        out.rows[:] = out.start[:] = row
        out.variables[:] = self._variable
        out.partition[:], out.number[:] = partition, number

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows of starts that wait."""
        keep[self._queue.row[self._begin : self._end]] = True

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Renumbers rows."""
        row = self._queue.row[self._begin : self._end]
        row[:] = row_moved[row]

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions may have starts that wait, bool (n,)."""
        return np.asarray(self._queue.latest[partition] >= self._begin)

    def idle(self, partitions: int) -> np.ndarray:
        """Returns, per partition, True if no start of it waits, bool (partitions,)."""
        free = np.ones(partitions, np.bool_)
        free[self._queue.partition[self._begin : self._end]] = False
        return free

    def forget(self, ids: Int64Array) -> None:
        """Resets idle partitions to their state before the first row."""
        self._queue.latest[ids] = awaited.NONE
        self._numbers[ids] = 0

    def numbers(self, partitions: int) -> Int64Array:
        """Returns the last MATCH_NUMBER of each partition."""
        return self._numbers[:partitions]

    def snapshot(self) -> Arrays:
        at = {"bounds": np.array([self._begin, self._end]), "numbers": self._numbers}
        return at | self._queue._asdict()

    def restore(self, arrays: Arrays) -> None:
        self._begin, self._end = map(int, arrays["bounds"])
        self._numbers = arrays["numbers"]
        self._queue = awaited.StartQueue(**{name: arrays[name] for name in awaited.StartQueue._fields})


def waits_alone(program: Program) -> bool:
    """True if each match is a single row that waits for the end of WITHIN, a time, and conditions read single rows."""
    start, end = program.edge_start[0], program.edge_start[1]
    absence, beside = program.absence, program.extras.unmatched or program.extras.timeouts or program.strict
    if end - start != 1 or program.within_us is None or not absence.behind or absence.before or any(absence.gaps):
        return False
    ends = program.edge_target[start]
    last = program.accept[ends] and program.edge_start[ends] == program.edge_start[ends + 1]
    reads = any(program.code) or program.registers or program.anchored or program.kept or program.walks
    passes = program.ignore is not Ignore.NONE and not program.accept[0]
    return last and passes and not (reads or beside or program.reach.after or program.reach.ahead)
