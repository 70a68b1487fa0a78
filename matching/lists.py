"""The general engine of a matcher: run lists through the interpreted kernel (matching.kernels.step)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from matching.batch import Int64Array
from matching.kernels import layout, step
from matching.kernels.layout import Counters, Parameters
from matching.specialise import source_of
from matching.store import RowStore
from query.automaton.program import Program
from query.plan.output import Outcome

Arrays = dict[str, np.ndarray]


PER_MATCH = ("start", "partition", "number", "outcome", "waiting")
PER_ROW = ("rows", "variables", "ts", "source", "offset", "seq")


class OverBudget(Exception):
    """A partition has more partial matches than allowed."""


class Failed(Exception):
    """A condition that was read cannot be computed: args are the position of its row and its label."""


NONE_BAD = np.zeros(0, np.int64)


#: A step of matching.kernels.step or skip_till, or one written out for a program.
Step = Callable[..., tuple[int, int]]


def no_rows() -> tuple[np.ndarray, ...]:
    """What a step is given of rows, for none: as the first call, it has the step compiled."""
    none, feature = np.zeros(0, np.int64), np.zeros((1, 0), np.int64)
    return none, none, NONE_BAD, none, none, feature, feature.view(np.float64), np.ones((1, 0), np.bool_)


class Decode:
    """Where an engine writes decided matches: per match bounds (n + 1), start row, partition, number, outcome
    (query.plan.output.Outcome) and, of a TIMEOUT, the state it waited in (else -1); per matched row its position,
    variable and identity."""

    def begin(self, count: int) -> None:
        self.count = count
        self.bounds = np.zeros(count + 1, np.int64)
        self.start = np.empty(count, np.int64)
        self.partition = np.empty(count, np.int64)
        self.number = np.empty(count, np.int64)
        self.outcome = np.zeros(count, np.int8)
        self.waiting = np.full(count, -1, np.int64)

    def room(self, total: int) -> None:
        """Room for `total` matched rows."""
        self.rows = np.empty(total, np.int64)
        self.variables = np.empty(total, np.int16)
        self.ts = np.empty(total, np.int64)
        self.source = np.empty(total, np.int32)
        self.offset = np.empty(total, np.int64)
        self.seq = np.empty(total, np.int64)

    def take(self, index: Int64Array) -> Decode:
        """The matches at `index`, in that order."""
        lengths = np.diff(self.bounds)[index]
        out = Decode()
        out.begin(len(index))
        out.bounds[1:] = np.cumsum(lengths)
        at = np.arange(int(out.bounds[-1])) - np.repeat(out.bounds[:-1] - self.bounds[index], lengths)
        for name in PER_MATCH:
            setattr(out, name, getattr(self, name)[index])
        for name in PER_ROW:
            setattr(out, name, getattr(self, name)[at])
        return out

    def then(self, other: Decode) -> Decode:
        """These matches and then those."""
        out = Decode()
        out.begin(self.count + other.count)
        out.bounds = np.concatenate([self.bounds, other.bounds[1:] + self.bounds[-1]])
        for name in (*PER_MATCH, *PER_ROW):
            setattr(out, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        return out

    def trim(self) -> None:
        """Drops the room beyond the last bound."""
        total = int(self.bounds[-1])
        for name in PER_ROW:
            setattr(self, name, getattr(self, name)[:total].copy())


class RunLists:
    """Runs of all partitions as linked lists in order of preference, over one shared match buffer."""

    settles = False  # which rows are unmatched is found out from `frontier`

    def __init__(self, program: Program, runs_max: int) -> None:
        self.program = program
        self._tables = layout.program_arrays(program, runs_max)
        self._runs = layout.new_runs(4096, len(program.registers))
        self._buffer = layout.new_buffer(1 << 15)
        self._partitions = layout.new_partitions(1024)
        self._heap = layout.Heap(np.zeros(1024, np.int64), np.zeros(1024, np.int64))
        self._decided = layout.new_decided(1 << 14)
        self._scratch = layout.new_scratch(program)
        self._counters = np.zeros(len(Counters), np.int64)
        self._counters[Counters.FREE] = 4096
        self._counters[Counters.LAST_PARTITION] = -1
        self._special: Step | None = None

    @cached_property
    def source(self) -> str:
        """A module with the kernel written out for the program."""
        return source_of(step, self.program, int(self._tables.parameters[Parameters.RUNS_MAX]))

    def run_by(self, special: Step) -> None:
        """Goes on with the step of a module with that source, which is compiled now unless it is in the cache."""
        special(0, 0, *no_rows(), self._tables, *self._state())
        self._special = special

    def _state(self) -> tuple[object, ...]:
        return (
            self._runs, self._buffer, self._partitions, self._heap, self._decided, self._scratch, self._counters,
        )  # fmt: skip

    @property
    def size(self) -> int:
        """Nodes in the match buffer, live or not."""
        return int(self._counters[Counters.NODES])

    @property
    def decided(self) -> int:
        """Matches decided and not yet decoded."""
        return int(self._counters[Counters.DECIDED])

    @property
    def stuck(self) -> int:
        """Matches behind which SKIP TO FIRST / LAST would not have moved on; the scan went on one row behind their
        start."""
        return int(self._counters[Counters.STUCK])

    def frontier(self, partitions: int) -> Int64Array:
        """Per partition the row where the first attempt began that is not decided; -1: all rows taken are settled."""
        head = self._partitions.head[:partitions]
        return np.where(head >= 0, self._runs.row[np.maximum(head, 0)], -1)

    def busy(self, partition: Int64Array) -> np.ndarray:
        """Whether these partitions have runs, bool (n,)."""
        return np.asarray(self._partitions.head[partition] >= 0)

    def go_on(self, numbers: Int64Array, stuck: int) -> None:
        """Counts on from what another engine has found: MATCH_NUMBER per partition, and `stuck`."""
        self.reserve(len(numbers))
        self._partitions.number[: len(numbers)] = numbers
        self._counters[Counters.STUCK] = stuck

    def reserve(self, partitions: int) -> None:
        """Room for this many partitions."""
        if partitions > len(self._partitions.head):
            capacity = max(partitions, 2 * len(self._partitions.head))
            self._partitions = layout.grown_partitions(self._partitions, capacity)
        if partitions + 2 > len(self._heap.deadline):
            self._heap = layout.Heap(*(layout.grown(a, 2 * partitions + 2) for a in self._heap))

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions` through the kernel. bad: like mask, the labels whose conditions cannot be
        computed for the row; empty if all can. Raises Failed or OverBudget."""
        partition, ts = store.partition[positions], store.ts[positions]
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        at, count = 0, len(mask)
        while at < count:
            given = partition, mask, bad, ts, rows, feature, feature.view(np.float64), feature_valid
            run = step.step if self._special is None or len(bad) else self._special
            at, status = run(at, count, *given, self._tables, *self._state())
            if status == step.ROOM:
                self._grow(int(partition[at]))
            elif status == step.ERROR:
                self._look_for_failure()
            elif status == step.BUDGET:
                raise OverBudget

    def _look_for_failure(self) -> None:
        if self._counters[Counters.FAILED_ROW]:
            raise Failed(int(self._counters[Counters.FAILED_ROW]) - 1, int(self._counters[Counters.FAILED_LABEL]))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Drops the runs that began before watermark - WITHIN and decides what waited for them. held: per partition the
        time of its first row that is there but not taken (larger than any: none); empty where none is held."""
        status = step.ROOM
        while status == step.ROOM:
            status = step.expire(
                watermark_us, held, self._tables, self._runs, self._buffer, self._partitions, self._heap,
                self._decided, self._counters,
            )  # fmt: skip
            if status == step.ROOM:
                p = int(self._heap.partition[0])
                self._more_decided(2 * len(self._decided.node) + int(self._partitions.length[p]))
        self._look_for_failure()

    def finish(self, partitions: int) -> None:
        """The input has ended: decides all that waits."""
        at = 0
        while at < partitions:
            at = step.finish(
                at, partitions, self._tables, self._runs, self._buffer, self._partitions, self._decided, self._counters
            )
            if at < partitions:
                self._more_decided(2 * len(self._decided.node) + int(self._partitions.length[at]))
        self._counters[Counters.HEAP] = 0
        self._partitions.queued[:] = False
        self._look_for_failure()

    def decode(self, store: RowStore, out: Decode) -> None:
        """Writes the decided matches into `out` and forgets them."""
        count = int(self._counters[Counters.DECIDED])
        self._counters[Counters.DECIDED] = 0
        decided = self._decided
        out.begin(count)
        step.measure_lengths(decided, count, self._buffer, out.bounds)
        out.room(int(out.bounds[-1]))
        step.unroll(
            decided, count, self._buffer, out.bounds, out.rows, out.variables, store.ts, store.source, store.offset,
            store.seq, out.ts, out.source, out.offset, out.seq,
        )  # fmt: skip
        out.start[:] = decided.row[:count]
        out.partition[:] = decided.partition[:count]
        out.number[:] = decided.number[:count]
        out.waiting[:] = decided.waiting[:count]
        out.outcome[out.waiting >= 0] = Outcome.TIMEOUT

    def mark(self, store: RowStore, partitions: int, keep: np.ndarray) -> None:
        """Marks the rows that runs or waiting matches can reach; to be followed by `move`."""
        self._moved = np.empty(max(1, self.size), np.int64)
        self._live = step.mark_live(
            partitions, self._runs, self._partitions, self._buffer, self.size, self._moved, keep
        )

    def move(self, partitions: int, row_moved: Int64Array) -> None:
        """Drops the nodes that `mark` did not reach and renumbers rows."""
        step.move_live(partitions, self._runs, self._partitions, self._buffer, self.size, self._moved, row_moved)
        self._counters[Counters.NODES] = self._live

    def idle(self, partitions: int) -> np.ndarray:
        """Per partition whether it has no run and no match that waits, bool (partitions,)."""
        return (self._partitions.head[:partitions] < 0) & ~self._partitions.queued[:partitions]

    def forget(self, ids: Int64Array) -> None:
        """Makes idle partitions what they were before their first row."""
        for array, new in zip(self._partitions, layout.new_partitions(1), strict=True):
            array[ids] = new[0]

    def _more_decided(self, capacity: int) -> None:
        self._decided = layout.Decided(*(layout.grown(a, capacity) for a in self._decided))

    def _grow(self, partition: int) -> None:
        """Makes room for one more row of this partition, at least twice what there was of what is short."""
        c = self._counters
        calm = int(self._partitions.calm_length[partition])
        length = int(self._partitions.length[partition]) - calm
        if c[Counters.LAST_PARTITION] >= 0:
            length += int(self._partitions.length[c[Counters.LAST_PARTITION]])
        most = (length + 2) * (int(self._tables.parameters[Parameters.DEGREE]) + 1) + calm
        if c[Counters.FREE] < 2 * most:
            capacity = max(2 * len(self._runs.state), len(self._runs.state) + 2 * most)
            self._runs, c[Counters.FREE] = layout.grown_runs(self._runs, capacity, int(c[Counters.FREE]))
        if c[Counters.NODES] + most > len(self._buffer.row):
            capacity = max(2 * len(self._buffer.row), int(c[Counters.NODES]) + most)
            self._buffer = layout.Buffer(*(layout.grown(a, capacity) for a in self._buffer))
        if c[Counters.DECIDED] + most > len(self._decided.node):
            self._more_decided(max(2 * len(self._decided.node), int(c[Counters.DECIDED]) + most))

    def snapshot(self) -> Arrays:
        arrays = {"counters": self._counters, "stamp": self._scratch.stamp, "visited": self._scratch.visited}
        for name, group in (("runs", self._runs), ("buffer", self._buffer), ("partitions", self._partitions),
                            ("heap", self._heap)):  # fmt: skip
            arrays |= {f"{name}.{field}": array for field, array in group._asdict().items() if field != "registers_f"}
        return arrays

    def restore(self, arrays: Arrays) -> None:
        def group(name: str, fields: tuple[str, ...]) -> Arrays:
            return {field: arrays[f"{name}.{field}"] for field in fields if f"{name}.{field}" in arrays}

        runs = group("runs", layout.Runs._fields)
        self._runs = layout.Runs(registers_f=runs["registers"].view(np.float64), **runs)
        self._buffer = layout.Buffer(**group("buffer", layout.Buffer._fields))
        self._partitions = layout.Partitions(**group("partitions", layout.Partitions._fields))
        self._heap = layout.Heap(**group("heap", layout.Heap._fields))
        self._counters = arrays["counters"]
        self._scratch.stamp[:] = arrays["stamp"]
        self._scratch.visited[:] = arrays["visited"]
