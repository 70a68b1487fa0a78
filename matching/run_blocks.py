"""The engine of the strategies that pass over rows: runs in a block per partition (matching.kernels.skip_till)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.buffered_runs import Arrays, BufferedRuns
from matching.decode import Decode
from matching.kernels import layout, match_buffer, skip_till, step
from matching.kernels.layout import Counters, Parameters
from matching.kernels.skip_till import Block
from matching.store import RowStore
from query.automaton.carried import POSITION
from query.automaton.program import Program


class RunBlocks(BufferedRuns):
    """Runs of all partitions, those of one side by side."""

    _kernel = skip_till

    def __init__(self, program: Program, runs_max: int) -> None:
        super().__init__(program, runs_max)
        self._width = skip_till.width_of(program)
        self._start()
        self._blocks = np.zeros((0, skip_till.block_columns(program)), np.int64)
        #: registers with positions of rows
        features = [feature for feature, _ in program.features]
        position = features.index(POSITION) if POSITION in features else None
        of = [r for r, register in enumerate(program.registers) if register.feature == position]
        self._positions = np.array(of, np.int64)

    def _state(self) -> tuple[object, ...]:
        return self._runs, self._blocks, self._buffer, self._heap, self._decided, self._scratch, self._counters

    def _start(self) -> None:
        """No runs."""
        line = np.zeros((1024, self._width), np.int64)
        behind = np.zeros(len(self._buffer.row) if self.program.absent_behind else 0, np.int64)
        self._runs = skip_till.Runs(
            line, line.view(np.float64), np.full(64, -1, np.int64), np.zeros(1, np.int64), behind
        )

    def reserve(self, partitions: int) -> None:
        """Room for this many partitions."""
        super().reserve(partitions)
        have = len(self._blocks)
        if partitions > have:
            self._blocks = layout.grown(self._blocks, max(partitions, 2 * have, 1024))
            self._blocks[have:, Block.SIZE] = -1

    def _room_for_runs(self, partition: int) -> int:
        """See BufferedRuns."""
        length = int(self._blocks[partition, Block.LENGTH])
        most = (length + 2) * (int(self._tables.parameters[Parameters.DEGREE]) + 1)
        have, top = len(self._runs.line), int(self._runs.top[0])
        if top + 8 * most > have:
            line = np.zeros((max(2 * have, top + 8 * most), self._width), np.int64)
            line[:top] = self._runs.line[:top]
            self._runs = self._runs._replace(line=line, line_f=line.view(np.float64))
        return most

    def _grow(self, partition: int) -> None:
        """See BufferedRuns."""
        super()._grow(partition)
        if self.program.absent_behind:
            self._runs = self._runs._replace(behind=layout.grown(self._runs.behind, len(self._buffer.row)))
            self._room_to_decide(partition)

    def _room_to_decide(self, partition: int) -> None:
        """Room for the matches of a partition that wait, beside those that one row makes."""
        needed = self.decided + int(self._blocks[partition, Block.WAITING]) + self._room_for_runs(partition)
        if needed > len(self._decided.node):
            self._more_decided(max(2 * len(self._decided.node), needed))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Drops the runs that began before watermark - WITHIN; see matching.run_lists.RunLists.expire."""
        if self.program.within_us is None:
            return
        state = self._tables, self._runs, self._blocks, self._heap
        while skip_till.expire(watermark_us, held, *state, self._decided, self._counters) == step.ROOM:
            self._room_to_decide(int(self._heap.partition[0]))

    def finish(self, partitions: int) -> None:
        """The input has ended."""
        at = 0 if self.program.absent_behind else partitions
        state = self._tables, self._runs, self._blocks
        while (at := skip_till.finish(at, partitions, *state, self._decided, self._counters)) < partitions:
            self._room_to_decide(at)
        self._start()
        self._blocks[:, [Block.BASE, Block.BEGIN, Block.LENGTH, Block.QUEUED]] = 0
        self._blocks[:, Block.SIZE] = -1
        self._counters[Counters.HEAP] = 0

    def decode(self, store: RowStore, out: Decode) -> None:
        """See BufferedRuns. Of a program that carries registers, the last row of each match and the registers."""
        if self.program.carries is None:
            super().decode(store, out)
            return
        count = self.decided
        self._counters[Counters.DECIDED] = 0
        out.begin(count)
        out.bounds = np.arange(count + 1)
        out.rows = self._decided.node[:count].copy()
        out.variables = np.zeros(count, np.int16)
        out.start[:] = self._decided.row[:count]
        out.partition[:] = self._decided.partition[:count]
        out.number[:] = self._decided.number[:count]
        out.carried = self._decided.carried[:count].copy()

    def mark(self, store: RowStore, partitions: int, keep: np.ndarray) -> None:
        """Marks the rows that runs can reach; to be followed by `move`.

        No node is older than the first row of its run. So if what stands before the oldest run of all is a good part,
        it is cut off and the rest stays, reached or not: a walk over all chains costs far more. Where runs end at
        different times twice as much stays at most, as a run is as long as WITHIN."""
        size = self.size
        self._cut = -1
        if self.program.absent_before:
            skip_till.keep_negated(partitions, self._runs, self._blocks, keep)
        if self.program.carries is not None:
            skip_till.mark_positions(partitions, self._runs, self._blocks, self._positions, keep)
        elif self._mark_behind(store, partitions, size, keep):
            return
        self._moved = np.full(size, -1, np.int64)
        skip_till.mark_runs(partitions, self._runs, self._blocks, self._buffer, self._moved, keep)
        self._live = match_buffer.number(size, self._moved)

    def _mark_behind(self, store: RowStore, partitions: int, size: int, keep: np.ndarray) -> bool:
        """Marks all nodes from the oldest run's first row on, if that is worth while."""
        oldest = skip_till.oldest_row(partitions, self._runs, self._blocks, store.count)
        cut = match_buffer.first_behind(oldest, self._buffer, size)
        if 8 * cut < size:
            return False
        match_buffer.keep_rows(cut, size, self._buffer, keep)
        self._cut, self._live = cut, size - cut
        return True

    def move(self, partitions: int, row_moved: Int64Array) -> None:
        """Drops the nodes that `mark` left out and renumbers rows."""
        if self._cut >= 0:
            match_buffer.cut_nodes(self.size, self._cut, self._buffer, row_moved)
            skip_till.cut_runs(partitions, self._runs, self._blocks, self._cut, row_moved)
            if self.program.absent_behind:
                skip_till.cut_waiting(self.size, self._cut, self._runs)
        else:
            match_buffer.move_nodes(self.size, self._buffer, self._moved, row_moved)
            skip_till.move_runs(partitions, self._runs, self._blocks, self._moved, row_moved)
            skip_till.move_positions(partitions, self._runs, self._blocks, self._positions, row_moved)
            if self.program.absent_behind:
                skip_till.move_waiting(self.size, self._runs, self._moved)
        if self.program.absent_before:
            skip_till.move_negated(partitions, self._runs, self._blocks, row_moved)
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
        line = self._runs.line[: int(self._runs.top[0])]
        kept = {"line": line, "spare": self._runs.spare, "behind": self._runs.behind, "blocks": self._blocks}
        return super().snapshot() | kept

    def restore(self, arrays: Arrays) -> None:
        super().restore(arrays)
        line = layout.grown(arrays["line"], 2 * len(arrays["line"]) + 1024)
        top = np.array([len(arrays["line"])])
        self._runs = skip_till.Runs(line, line.view(np.float64), arrays["spare"], top, arrays["behind"])
        self._blocks = arrays["blocks"]
