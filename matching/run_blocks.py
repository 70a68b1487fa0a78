"""The engine of the strategies that pass over rows: runs in a block per partition (matching.kernels.skip_till)."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from matching.batch import Int64Array
from matching.kernels import layout, skip_till, step
from matching.kernels.layout import Counters, Parameters
from matching.kernels.skip_till import Block, Run
from matching.lists import NONE_BAD, Arrays, Decode, Failed, OverBudget, Step, no_rows
from matching.specialise import source_of
from matching.store import RowStore
from query.automaton.program import Program


class RunBlocks:
    """Runs of all partitions, those of one side by side, over one shared match buffer."""

    settles = False
    stuck = 0

    def __init__(self, program: Program, runs_max: int) -> None:
        self.program = program
        self._tables = layout.program_arrays(program, runs_max)
        self._width = Run.REGISTERS + len(program.registers)
        self._start()
        self._blocks = np.zeros((0, len(Block)), np.int64)
        self._buffer = layout.new_buffer(1 << 15)
        self._decided = layout.new_decided(1 << 14)
        self._scratch = layout.new_scratch(program)
        self._counters = np.zeros(len(Counters), np.int64)
        self._heap = layout.Heap(np.zeros(1024, np.int64), np.zeros(1024, np.int64))
        self._special: Step | None = None

    @cached_property
    def source(self) -> str:
        """A module with the kernel written out for the program."""
        return source_of(skip_till, self.program, int(self._tables.parameters[Parameters.RUNS_MAX]))

    def run_by(self, special: Step) -> None:
        """Goes on with the step of a module with that source, which is compiled now unless it is in the cache."""
        special(0, 0, *no_rows(), self._tables, *self._state())
        self._special = special

    def _state(self) -> tuple[object, ...]:
        return self._runs, self._blocks, self._buffer, self._heap, self._decided, self._scratch, self._counters

    def _start(self) -> None:
        """No runs."""
        line = np.zeros((1024, self._width), np.int64)
        self._runs = skip_till.Runs(line, line.view(np.float64), np.full(64, -1, np.int64), np.zeros(1, np.int64))

    @property
    def size(self) -> int:
        """Nodes in the match buffer, live or not."""
        return int(self._counters[Counters.NODES])

    @property
    def decided(self) -> int:
        """Matches decided and not yet decoded."""
        return int(self._counters[Counters.DECIDED])

    def reserve(self, partitions: int) -> None:
        """Room for this many partitions."""
        have = len(self._blocks)
        if partitions > have:
            self._blocks = layout.grown(self._blocks, max(partitions, 2 * have, 1024))
            self._blocks[have:, Block.SIZE] = -1
        if partitions + 2 > len(self._heap.deadline):
            self._heap = layout.Heap(*(layout.grown(a, 2 * partitions + 2) for a in self._heap))

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions`; see matching.lists.RunLists.run."""
        partition, ts = store.partition[positions], store.ts[positions]
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        at, count = 0, len(mask)
        while at < count:
            given = partition, mask, bad, ts, rows, feature, feature.view(np.float64), feature_valid
            run = skip_till.step if self._special is None or len(bad) else self._special
            at, status = run(at, count, *given, self._tables, *self._state())
            match status:
                case step.ROOM:
                    self._grow(int(self._blocks[partition[at], Block.LENGTH]))
                case step.ERROR:
                    c = self._counters
                    raise Failed(int(c[Counters.FAILED_ROW]) - 1, int(c[Counters.FAILED_LABEL]))
                case step.BUDGET:
                    raise OverBudget

    def _grow(self, length: int) -> None:
        """Makes room for one more row of a partition with so many runs, at least twice what there was of what is
        short."""
        c = self._counters
        most = (length + 2) * (int(self._tables.parameters[Parameters.DEGREE]) + 1)
        have, top = len(self._runs.line), int(self._runs.top[0])
        if top + 8 * most > have:
            line = np.zeros((max(2 * have, top + 8 * most), self._width), np.int64)
            line[:top] = self._runs.line[:top]
            self._runs = self._runs._replace(line=line, line_f=line.view(np.float64))
        if c[Counters.NODES] + most > len(self._buffer.row):
            capacity = max(2 * len(self._buffer.row), int(c[Counters.NODES]) + most)
            self._buffer = layout.Buffer(*(layout.grown(a, capacity) for a in self._buffer))
        if c[Counters.DECIDED] + most > len(self._decided.node):
            capacity = max(2 * len(self._decided.node), int(c[Counters.DECIDED]) + most)
            self._decided = layout.Decided(*(layout.grown(a, capacity) for a in self._decided))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Drops the runs that began before watermark - WITHIN; see matching.lists.RunLists.expire."""
        if self.program.within_us is not None:
            skip_till.expire(
                watermark_us, held, self.program.within_us, self._runs, self._blocks, self._heap, self._counters
            )

    def finish(self, partitions: int) -> None:
        """The input has ended."""
        self._start()
        self._blocks[:, [Block.BASE, Block.BEGIN, Block.LENGTH, Block.QUEUED]] = 0
        self._blocks[:, Block.SIZE] = -1
        self._counters[Counters.HEAP] = 0

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

    def mark(self, store: RowStore, partitions: int, keep: np.ndarray) -> None:
        """Marks the rows that runs can reach; to be followed by `move`.

        No node is older than the first row of its run. So if what stands before the oldest run of all is a good part,
        it is cut off and the rest stays, reached or not: a walk over all chains costs far more. Where runs end at
        different times twice as much stays at most, as a run is as long as WITHIN."""
        size = self.size
        oldest = skip_till.oldest_row(partitions, self._runs, self._blocks, store.count)
        self._cut = skip_till.first_behind(oldest, self._buffer, size)
        if 8 * self._cut >= size:
            skip_till.keep_rows(self._cut, size, self._buffer, keep)
            self._live = size - self._cut
            return
        self._cut = -1
        self._moved = np.empty(max(1, size), np.int64)
        self._live = skip_till.mark_live(partitions, self._runs, self._blocks, self._buffer, size, self._moved, keep)

    def move(self, partitions: int, row_moved: Int64Array) -> None:
        """Drops the nodes that `mark` left out and renumbers rows."""
        if self._cut >= 0:
            skip_till.cut(partitions, self._runs, self._blocks, self._buffer, self.size, self._cut, row_moved)
        else:
            skip_till.move_live(
                partitions, self._runs, self._blocks, self._buffer, self.size, self._moved, row_moved
            )
        self._counters[Counters.NODES] = self._live

    def busy(self, partition: Int64Array) -> np.ndarray:
        """Whether these partitions have runs, bool (n,)."""
        return np.asarray(self._blocks[partition, Block.LENGTH] > 0)

    def idle(self, partitions: int) -> np.ndarray:
        """Per partition whether it has no run, bool (partitions,)."""
        return (self._blocks[:partitions, Block.LENGTH] == 0) & (self._blocks[:partitions, Block.QUEUED] == 0)

    def forget(self, ids: Int64Array) -> None:
        """Makes idle partitions what they were before their first row."""
        self._blocks[ids] = 0
        self._blocks[ids, Block.SIZE] = -1

    def snapshot(self) -> Arrays:
        top = int(self._runs.top[0])
        return {
            "counters": self._counters, "line": self._runs.line[:top], "spare": self._runs.spare,
            "blocks": self._blocks, **{f"buffer.{f}": a for f, a in self._buffer._asdict().items()},
            **{f"heap.{f}": a for f, a in self._heap._asdict().items()},
        }  # fmt: skip

    def restore(self, arrays: Arrays) -> None:
        line = layout.grown(arrays["line"], 2 * len(arrays["line"]) + 1024)
        self._runs = skip_till.Runs(line, line.view(np.float64), arrays["spare"], np.array([len(arrays["line"])]))
        self._blocks, self._counters = arrays["blocks"], arrays["counters"]
        self._buffer = layout.Buffer(*(arrays[f"buffer.{f}"] for f in layout.Buffer._fields))
        self._heap = layout.Heap(*(arrays[f"heap.{f}"] for f in layout.Heap._fields))
