"""The engine for strategies that skip rows: runs in a block per partition (matching.kernels.skip_till), and looked up
by the value for which they wait where there are many (matching.kernels.by_value)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.buffered_runs import BufferedRuns, Step
from matching.engines.engine import ROOM, Arrays, EnginePlan, check
from matching.kernels import by_value, layout, match_buffer, runs_in_blocks, skip_till, step
from matching.kernels.layout import Counters, Parameters
from matching.kernels.runs_in_blocks import Block, Run
from matching.program.carried import POSITION
from matching.program.equalities import equalities_of_steps
from matching.records import Blocks, Coming, Leaving, anew, bounds_of, one_each, owners, spread
from matching.records import RecordBlock as Part
from matching.store import RowStore

#: After a step in which more than one of so many runs was a candidate, so many steps read all of them.
CANDIDATES_FEW, STEPS_READING_ALL = 8, 64
#: Runs that have been read one by one before some are looked up, whose kernel takes seconds to compile at first.
READ_FIRST = 1 << 20
#: Bytes of an entry of a look-up by value, with its share of the buckets.
_ENTRY_BYTES = 8 * (by_value.ENTRY + 3)


class RunBlocks(BufferedRuns):
    """Runs of all partitions, grouped by partition."""

    name = "blocks of runs"
    tag = "blocks"
    _kernel = skip_till
    looks_up_steps = True  # see matching.kernels.by_value

    def __init__(self, chosen: EnginePlan) -> None:
        super().__init__(chosen)
        program = self.program
        self._width = runs_in_blocks.width_of(program)
        self._groups: runs_in_blocks.Groups | None = None
        if chosen.grouped:
            self._groups = runs_in_blocks.Groups(np.zeros(0, np.int64), np.zeros(1, np.int64))
        self._start()
        self._blocks = np.zeros((0, runs_in_blocks.block_columns(program, chosen.grouped)), np.int64)
        #: registers with positions of rows
        features = [feature for feature, _ in program.features]
        position = features.index(POSITION) if POSITION in features else None
        of = [r for r, register in enumerate(program.registers) if register.feature == position]
        self._positions = np.array(of, np.int64)
        equalities = equalities_of_steps(program)
        self._lookup = by_value.no_entries(program, equalities) if equalities else None
        self._has_entries = False  # there may be some, and lines of runs that have ended
        self._reading_all = 0  # steps to come that look nothing up
        self._read = 0  # runs that steps have read one by one, at least

    def _next_step(self, partition: Int64Array, some_bad: bool) -> tuple[Step, int]:
        """See BufferedRuns."""
        if self._lookup is None:
            return super()._next_step(partition, some_bad)
        candidates, lines = self._lookup.seen.tolist()
        self._lookup.seen[:] = 0
        if candidates * CANDIDATES_FEW > lines:
            self._reading_all = STEPS_READING_ALL
        lengths = self._lengths(partition)
        if self._reading_all == 0 and self._read >= READ_FIRST and lengths.max(initial=0) >= self._lookup.long[0]:
            return self._look_up, len(partition)
        self._reading_all = max(0, self._reading_all - 1)
        self._put_together(partition)
        step, rows = super()._next_step(partition, some_bad)
        self._read += int(lengths[:rows].sum())
        return step, rows

    def _look_up(self, *given: Any) -> tuple[int, int]:
        """A step of matching.kernels.by_value."""
        self._has_entries = True
        step: Step = by_value.step
        return step(*given, self._lookup)

    def _put_together(self, ids: Int64Array) -> None:
        """Drops the lines of runs that have ended, and the entries, of these partitions."""
        if self._has_entries:
            by_value.leave(ids, self._runs, self._blocks, self._lookup)

    def _forget_entries(self) -> None:
        """Drops all entries; no line is one of a run that has ended."""
        if self._lookup is not None:
            self._lookup = by_value.with_room(self._lookup, ROOM, len(self._blocks))
            self._has_entries = False

    def _without_entries(self, more: int) -> None:
        """Drops all entries, and makes room for those of all runs and `more`, and as many again."""
        if self._lookup is not None:
            self._put_together(np.arange(len(self._blocks)))
            runs = int(self._blocks[:, Block.LENGTH].sum())
            entries = 2 * (runs + more) * len(self._lookup.label) + ROOM
            check(self.used_bytes + _ENTRY_BYTES * entries)
            self._lookup = by_value.with_room(self._lookup, entries, len(self._blocks))
            self._has_entries = False

    def _state(self) -> tuple[object, ...]:
        return self._runs, self._blocks, self._buffer, self._heap, self._decided, self._scratch, self._counters

    def _start(self) -> None:
        """Sets up empty blocks."""
        line = np.zeros((ROOM, self._width), np.int64)
        behind = np.zeros(len(self._buffer.row) if self.program.absence.behind else 0, np.int64)
        self._runs = runs_in_blocks.Runs(
            line, line.view(np.float64), np.full(64, -1, np.int64), np.zeros(2, np.int64), behind, self._groups
        )

    def reserve(self, partitions: int) -> None:
        """Makes room for this many partitions."""
        super().reserve(partitions)
        have = len(self._blocks)
        if partitions > have:
            self._blocks = layout.grown(self._blocks, max(partitions, 2 * have, ROOM))
            self._blocks[have:, Block.SIZE] = -1
            if self._lookup is not None:
                self._lookup = by_value.with_partitions(self._lookup, len(self._blocks))

    def put_groups(self, ids: Int64Array, groups: Int64Array) -> None:
        """See matching.engines.engine.Grouping."""
        assert self._groups is not None
        group, matches = self._groups
        if len(self._blocks) > len(group):
            group = layout.grown(group, len(self._blocks))
        group[ids] = groups
        most = int(groups.max(initial=0))
        if most >= len(matches):
            matches = layout.grown(matches, max(most + 1, 2 * len(matches)))
        self._take_groups(runs_in_blocks.Groups(group, matches))

    def _take_groups(self, groups: runs_in_blocks.Groups) -> None:
        self._groups = groups
        self._runs = self._runs._replace(groups=groups)

    def _drop_ended(self) -> None:
        """Drops the runs that matches of other partitions have ended."""
        if self._groups is not None:
            runs_in_blocks.drop_ended(self._groups, self._runs, self._blocks)

    def _lengths(self, partition: Int64Array) -> Int64Array:
        """See BufferedRuns."""
        return np.asarray(self._blocks[partition, Block.LENGTH])

    def _room_for_runs(self, partition: int) -> int:
        """See BufferedRuns."""
        length = int(self._blocks[partition, Block.LENGTH])
        most = (length + 2) * (int(self._tables.parameters[Parameters.DEGREE]) + 1)
        have, top = len(self._runs.line), int(self._runs.top[0])
        if top + 8 * most > have:
            self._more_lines(top + 8 * most)
        return most

    def _more_lines(self, needed: int) -> None:
        line = layout.grown(self._runs.line, max(2 * len(self._runs.line), needed))
        self._runs = self._runs._replace(line=line, line_f=line.view(np.float64))

    def _grow(self, partition: int) -> None:
        """See BufferedRuns."""
        super()._grow(partition)
        if self.program.absence.behind:
            self._runs = self._runs._replace(behind=layout.grown(self._runs.behind, len(self._buffer.row)))
            self._room_to_decide(partition)
        if self._lookup is not None and self._has_entries:
            most = self._room_for_runs(partition)
            if int(self._lookup.used[0]) + most * len(self._lookup.label) > len(self._lookup.entry):
                self._without_entries(most)

    def _room_to_decide(self, partition: int) -> None:
        """Makes room for the waiting matches of a partition, besides those of one row."""
        needed = self.decided + int(self._blocks[partition, Block.WAITING]) + self._room_for_runs(partition)
        if needed > len(self._decided.node):
            self._more_decided(max(2 * len(self._decided.node), needed))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Drops the runs that began before watermark - WITHIN; see matching.engines.run_lists.RunLists.expire."""
        if self.program.within_us is None:
            return
        state = self._tables, self._runs, self._blocks, self._heap
        while skip_till.expire(watermark_us, held, *state, self._decided, self._counters) == step.ROOM:
            self._room_to_decide(int(self._heap.partition[0]))

    def finish(self, partitions: int) -> None:
        """Ends all runs at the end of the input."""
        at = 0 if self.program.absence.behind else partitions
        state = self._tables, self._runs, self._blocks
        while (at := skip_till.finish(at, partitions, *state, self._decided, self._counters)) < partitions:
            self._room_to_decide(at)
        self._start()
        self._forget_entries()
        self._blocks[:, [Block.BASE, Block.BEGIN, Block.LENGTH, Block.QUEUED]] = 0
        self._blocks[:, Block.SIZE] = -1
        self._counters[Counters.HEAP] = 0

    def decode(self, store: RowStore, out: Decode) -> None:
        """See BufferedRuns. For a program with registers, writes the last row of each match and the registers."""
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
        out.at = self._decided.at[:count].copy()

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows that runs can reach, and unless `exact` perhaps more; to be followed by `move`.

        No node is older than the first row of its run, unless rows wait for those behind them (NEXT). So if a large
        part of the nodes precedes the oldest run, that part is dropped and the rest stays, reached or not: walking all
        chains costs far more. If runs end at different times, at most twice as much stays, as a run is as long as
        WITHIN."""
        self._drop_ended()
        size = self.size
        self._cut = -1
        if self.program.absence.before:
            runs_in_blocks.keep_negated(ids, self._runs, self._blocks, keep)
        if self.program.carries is not None:
            runs_in_blocks.mark_positions(ids, self._runs, self._blocks, self._positions, keep)
        elif not (exact or self.program.reach.after) and self._mark_behind(store, ids, size, keep):
            return
        self._moved = np.full(size, -1, np.int64)
        runs_in_blocks.mark_runs(ids, self._runs, self._blocks, self._buffer, self._moved, keep)
        self._live = match_buffer.number(size, self._moved)

    def _mark_behind(self, store: RowStore, ids: Int64Array, size: int, keep: np.ndarray) -> bool:
        """Marks all nodes from the oldest run's first row on, if that is worthwhile."""
        oldest = runs_in_blocks.oldest_row(ids, self._runs, self._blocks, store.count)
        cut = match_buffer.first_behind(oldest, self._buffer, size)
        if 8 * cut < size:
            return False
        match_buffer.keep_rows(cut, size, self._buffer, keep)
        self._cut, self._live = cut, size - cut
        return True

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Drops the nodes without marks and renumbers rows."""
        if self._cut >= 0:
            match_buffer.cut_nodes(self.size, self._cut, self._buffer, row_moved)
            runs_in_blocks.cut_runs(ids, self._runs, self._blocks, self._cut, row_moved)
            if self.program.absence.behind:
                runs_in_blocks.cut_waiting(self.size, self._cut, self._runs)
        else:
            match_buffer.move_nodes(self.size, self._buffer, self._moved, row_moved)
            runs_in_blocks.move_runs(ids, self._runs, self._blocks, self._moved, row_moved)
            runs_in_blocks.move_positions(ids, self._runs, self._blocks, self._positions, row_moved)
            if self.program.absence.behind:
                runs_in_blocks.move_waiting(self.size, self._runs, self._moved)
        if self.program.absence.before:
            runs_in_blocks.move_negated(ids, self._runs, self._blocks, row_moved)
        self._counters[Counters.NODES] = self._live

    def numbers(self, partitions: int) -> Int64Array:
        """Returns the last MATCH_NUMBER of each partition."""
        return self._blocks[:partitions, Block.NUMBER]

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions have runs, bool (n,)."""
        return np.asarray(self._blocks[partition, Block.LENGTH] > 0)

    def idle(self, partitions: int) -> np.ndarray:
        """Returns, per partition, True if it has no run, bool (partitions,)."""
        self._drop_ended()
        return (self._blocks[:partitions, Block.LENGTH] == 0) & (self._blocks[:partitions, Block.QUEUED] == 0)

    def forget(self, ids: Int64Array) -> None:
        """Resets idle partitions to their state before the first row."""
        self._blocks[ids] = 0
        self._blocks[ids, Block.SIZE] = -1
        if self._lookup is not None:
            self._lookup.entered[ids] = False

    def snapshot(self) -> Arrays:
        self._put_together(np.arange(len(self._blocks)))
        line = self._runs.line[: int(self._runs.top[0])]
        kept = {"line": line, "spare": self._runs.spare, "behind": self._runs.behind, "blocks": self._blocks}
        if self._groups is not None:
            kept |= {"group": self._groups.group, "group_matches": self._groups.matches}
        return super().snapshot() | kept

    def restore(self, arrays: Arrays) -> None:
        super().restore(arrays)
        line = layout.grown(arrays["line"], 2 * len(arrays["line"]) + ROOM)
        sizes = arrays["blocks"][:, Block.SIZE]
        top = np.array([len(arrays["line"]), len(arrays["line"]) - int((1 << sizes[sizes >= 0]).sum())])
        if self._groups is not None:
            self._groups = runs_in_blocks.Groups(arrays["group"], arrays["group_matches"])
        self._runs = runs_in_blocks.Runs(
            line, line.view(np.float64), arrays["spare"], top, arrays["behind"], self._groups
        )
        self._blocks = arrays["blocks"]
        self._forget_entries()

    # ---- partitions that leave memory: see matching.engines.engine.Spillable

    @property
    def due_yields(self) -> bool:
        """True if WITHIN, or the end of the input, decides matches."""
        return bool(self.program.absence.behind)

    @property
    def used_bytes(self) -> int:
        lines = int(self._runs.top[0] - self._runs.top[1])
        entries = 0 if self._lookup is None else int(self._lookup.used[0])
        return 8 * self._width * lines + (self.node_bytes + 8 * self.due_yields) * self.size + _ENTRY_BYTES * entries

    @property
    def key_bytes(self) -> int:
        return 8 * self._blocks.shape[1] + 16

    def states(self, ids: Int64Array) -> Int64Array:
        some = self._blocks[ids, Block.LENGTH] > 0
        first = np.where(some, self._blocks[ids, Block.BASE] + self._blocks[ids, Block.BEGIN], 0)
        return np.where(some, np.maximum(self._runs.line[first, Run.STATE], 0), -1)

    def weigh(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        size = self._blocks[ids, Block.SIZE]
        lines = np.where(size >= 0, np.int64(1) << np.maximum(size, 0), 0)
        return 8 * self._width * lines + self._weigh_nodes(store, ids, place)

    def copy_out(self, store: RowStore, leaving: Leaving) -> Blocks:
        ids, rows, n = leaving.ids, leaving.rows, len(leaving.ids)
        self._put_together(ids)
        nodes, kept = self._nodes_out(store, leaving)
        one = self._blocks[ids]
        bounds = bounds_of(one[:, Block.LENGTH])
        of = owners(bounds)
        line = self._runs.line[spread(one[:, Block.BASE] + one[:, Block.BEGIN], bounds)]
        line[:, Run.ROW] = rows.places(line[:, Run.ROW], of)
        line[:, Run.NODE] = nodes.places(line[:, Run.NODE], of)
        line[:, Run.BAD_NODE] = nodes.places(line[:, Run.BAD_NODE] - 1, of) + 1
        if self.program.absence.before:
            line[:, -1] = _said(line[:, -1], lambda at: rows.places(at, of))
            one[:, Block.SAID] = _said(one[:, Block.SAID], lambda at: rows.places(at, np.arange(n)))
        if self.program.absence.behind:
            behind = nodes.places(self._runs.behind[nodes.items], owners(nodes.bounds))
            kept = Part(kept.bounds, {**kept.columns, "behind": behind.astype(np.int32)})
        return {"one": Part(one_each(n), {"block": one}), "runs": Part(bounds, {"line": line}), "nodes": kept}

    def leave(self, ids: Int64Array) -> None:
        queued = self._blocks[ids, Block.QUEUED]
        runs_in_blocks.leave_blocks(ids, self._blocks, self._runs)
        self.forget(ids)
        self._blocks[ids, Block.QUEUED] = queued
        if self._has_entries:
            self._without_entries(0)

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        ids, n = coming.ids, len(coming.ids)
        base = self._nodes_in(coming, blocks["nodes"])
        one, line, bounds = blocks["one"].columns["block"], blocks["runs"].columns["line"], blocks["runs"].bounds
        of = owners(bounds)
        line[:, Run.ROW] = anew(line[:, Run.ROW], coming.rows, of)
        line[:, Run.NODE] = anew(line[:, Run.NODE], base, of)
        line[:, Run.BAD_NODE] = anew(line[:, Run.BAD_NODE] - 1, base, of) + 1
        if self.program.absence.before:
            line[:, -1] = _said(line[:, -1], lambda at: at + coming.rows[of])
            one[:, Block.SAID] = _said(one[:, Block.SAID], lambda at: at + coming.rows[np.arange(n)])
        if self.program.absence.behind:
            behind = layout.grown(self._runs.behind, len(self._buffer.row))
            of_nodes = owners(blocks["nodes"].bounds)
            came = anew(blocks["nodes"].columns["behind"].astype(np.int64), base, of_nodes)
            behind[self.size - len(came) : self.size] = came
            self._runs = self._runs._replace(behind=behind)
        lengths = np.diff(bounds)
        top, more = int(self._runs.top[0]), int(runs_in_blocks.lines_for(lengths))
        if top + more > len(self._runs.line):
            self._more_lines(top + more)
        queued = self._blocks[ids, Block.QUEUED]
        for column in (Block.BASE, Block.BEGIN, Block.LENGTH):
            one[:, column] = 0
        one[:, Block.SIZE] = -1
        one[:, Block.QUEUED] = queued
        self._blocks[ids] = one
        runs_in_blocks.place_blocks(ids, lengths, self._runs, self._blocks)
        self._runs.line[spread(self._blocks[ids, Block.BASE], bounds)] = line
        if self.program.within_us is not None:
            unqueued = np.flatnonzero((lengths > 0) & (queued == 0))
            first = line[bounds[:-1][unqueued], Run.TS]
            skip_till.queue(ids[unqueued], first + self.program.within_us, self._heap, self._counters)
            self._blocks[ids[unqueued], Block.QUEUED] = 1

    def registers(self, blocks: Blocks) -> np.ndarray | None:
        count = len(self.program.registers)
        return blocks["runs"].columns["line"][:, Run.REGISTERS : Run.REGISTERS + count]


def _said(said: Int64Array, place: Callable[[Int64Array], Int64Array]) -> Int64Array:
    """Returns SAID with other positions of rows. place: returns the new one of each."""
    at = place((said - 1) >> runs_in_blocks.LABEL_BITS)
    return np.where(said > 0, 1 + (at << runs_in_blocks.LABEL_BITS | (said - 1) & runs_in_blocks.LABELS), said)
