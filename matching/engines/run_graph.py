"""The engine for all matches of row-local patterns that skip rows: a graph of cells (matching.kernels.graph)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import (
    NONE_BAD,
    ROOM,
    ROWS_UNCHECKED,
    STEPS_UNCHECKED,
    Arrays,
    ConditionFailed,
    EnginePlan,
    OverBudget,
    Unfinished,
    check,
)
from matching.kernels import graph, layout
from matching.kernels.graph import GraphCounters, Kept, Lists, Narrow
from matching.purpose import Purpose
from matching.records import Blocks, Coming, Grouped, Leaving, RecordBlock, anew, one_each, owners
from matching.store import RowStore

#: Maximum number of matches that one row may end.
MATCHES_MAX = 1_000_000
#: Of one row of a match that has been found, while its batch goes on.
FOUND_BYTES = 24
#: The arrays that grow with the longest match, or the longest list of partial matches.
PATH = ("path", "bottom", "stack")


class RunGraph:
    """The runs of all partitions as lists per state over shared cells. With Purpose.GRAPH matches are not enumerated;
    the cells that end matches, and all other cells, are kept for matching.match_graph."""

    name = "graph of runs"
    tag = "graph"
    by_test = False
    defers = True
    specialises = False
    settles = False
    due_yields = False  # neither WITHIN nor the end of the input decides matches
    row_bytes = 0  # of its own, for each row of the store
    stuck = 0
    _slots = len(GraphCounters)

    def __init__(self, chosen: EnginePlan) -> None:
        program = self.program = chosen.runs
        keeps = chosen.purpose is Purpose.GRAPH
        #: number of rows of each match, if it is constant and only the rows are needed
        length = self._length = 0 if chosen.chain is None else len(chosen.chain.variables)
        self._tables = layout.program_arrays(program, chosen.runs_max)
        self._states = len(program.accept)
        self._variables = self._tables.edge_variable.astype(np.int16)
        self._lists = self._fresh(0)
        self._cells = graph.new_cells(8 * ROOM)
        self._found = graph.FoundPaths(*(
            np.zeros(4 * ROOM if "row" in name or "edge" in name else ROOM, np.int32 if "edge" in name else np.int64)
            for name in graph.FoundPaths._fields
        ))  # fmt: skip
        edges = len(program.edge_target)
        sizes = (edges, edges, edges, *[min(64, ROOM)] * len(PATH))
        kept = np.zeros((ROOM if keeps else 0, len(Kept)), np.int64)
        edge, child, ends, path, bottom, stack = (np.zeros(size, np.int64) for size in sizes)
        self._scratch = graph.GraphScratch(edge, child, ends, path, bottom, stack, kept)
        self._counters = np.zeros(self._slots, np.int64)
        self._counters[GraphCounters.KEPT] = 0 if keeps else -1
        self._counters[GraphCounters.LENGTH] = length
        self._part = 1  # rows that it takes between two checks
        #: earlier starts have expired
        self._floor = graph.LOWEST

    def look_up(self, **tables: np.ndarray) -> None:
        """See matching.engines.engine.LookingUp."""
        self._tables = layout.with_tables(self._tables, tables)

    def _fresh(self, partitions: int) -> np.ndarray:
        """Returns lists of partitions without rows."""
        lists = np.full((partitions, graph.lists_width(self._states)), -1, np.int64)
        lists[:, Lists.WANTED] = self._tables.state_mask[0]
        lists[:, Lists.LOWEST] = graph.LOWEST
        lists[:, [Lists.NUMBER, Lists.ORDINAL]] = 0
        return lists

    @property
    def size(self) -> int:
        """Returns the number of cells, live or not."""
        return int(self._counters[GraphCounters.CELLS])

    @property
    def decided(self) -> int:
        """Returns the number of matches found and not decoded yet."""
        return int(self._counters[GraphCounters.FOUND])

    def reserve(self, partitions: int) -> None:
        """Makes room for this many partitions."""
        have = len(self._lists)
        if partitions > have:
            self._lists = np.concatenate([self._lists, self._fresh(max(partitions, 2 * have, ROOM) - have)])

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions`; see matching.engines.engine.Engine.run."""
        partition, ts = store.partition[positions], store.clock[positions]
        if self.program.within_us is not None and not self.program.reach.after:  # no earlier row can come
            self._floor = max(self._floor, int(ts[-1]) - self.program.within_us)
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        at, upto, count = 0, 0, len(mask)
        found = int(self._counters[GraphCounters.ROWS])
        try:
            while at < count:
                if at == upto:
                    upto = min(at + self._part, count)
                at, status = self._step(at, upto, partition, mask, bad, ts, rows, feature, feature_valid)
                if at == upto:
                    before, found = found, int(self._counters[GraphCounters.ROWS])
                    check(self.used_bytes + FOUND_BYTES * found)
                    # where rows end many matches, fewer rows come at once
                    many = found - before > STEPS_UNCHECKED
                    self._part = max(1, self._part // 16) if many else min(ROWS_UNCHECKED, 2 * self._part)
                match status:
                    case graph.ROOM_CELLS:
                        self._more_cells(int(partition[at]))
                    case graph.ROOM_KEPT:
                        kept = layout.grown(self._scratch.kept, 2 * len(self._scratch.kept))
                        self._scratch = self._scratch._replace(kept=kept)
                    case graph.ROOM_FOUND | graph.ROOM_PATH:
                        self._more_found(status)
                    case graph.ERROR:
                        c = self._counters
                        raise ConditionFailed(int(c[GraphCounters.FAILED_ROW]) - 1, int(c[GraphCounters.FAILED_LABEL]))
                    case graph.BUDGET:
                        raise OverBudget
        except Unfinished as stopped:
            stopped.index = at
            raise

    def numbers(self, partitions: int) -> Int64Array:
        """Returns the last MATCH_NUMBER of each partition."""
        return self._lists[:partitions, Lists.NUMBER]

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions may have runs, bool (n,)."""
        return np.asarray((self._lists[partition, Lists.HEAD + 1 : Lists.HEAD + self._states] >= 0).any(axis=1))

    def _step(
        self, at: int, count: int, partition: Int64Array, mask: Int64Array, bad: Int64Array, ts: Int64Array,
        rows: Int64Array, feature: np.ndarray, feature_valid: np.ndarray,
    ) -> tuple[int, int]:  # fmt: skip
        return graph.step(
            at, count, partition, mask, bad, ts, rows, self._tables, self._cells, self._lists, self._found,
            self._scratch, MATCHES_MAX, self._counters,
        )  # fmt: skip

    def _more_found(self, status: int) -> None:
        """Makes room for more matches, or for longer ones."""
        if status == graph.ROOM_FOUND:
            self._found = graph.FoundPaths(*(layout.grown(a, 2 * len(a)) for a in self._found))
            return
        more = {n: layout.grown(getattr(self._scratch, n), 2 * len(self._scratch.path)) for n in PATH}
        self._scratch = self._scratch._replace(**more)

    def _more_cells(self, partition: int) -> None:
        """Makes room for the cells of one more row of this partition, and for as many as exist."""
        self._room_for_cells(2 * len(self._cells.wide) + len(self._tables.edge_target))

    def _room_for_cells(self, capacity: int) -> None:
        self._cells = graph.cells_of(layout.grown(self._cells.wide, capacity))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Ends the runs that began before watermark - WITHIN; see matching.engines.run_lists.RunLists.expire."""
        if self.program.within_us is not None:
            now = min([watermark_us, *([int(held.min())] if len(held) else [])])
            self._floor = max(self._floor, now - self.program.within_us)

    def finish(self, partitions: int) -> None:
        """Does nothing at the end of the input."""
        self._lists[:, Lists.HEAD + 1 :] = -1

    # ---- cells kept for matching.match_graph

    @property
    def cells(self) -> graph.Cells:
        """See matching.kernels.graph.Cells."""
        return graph.cells_of(self._cells.wide[: self.size])

    @property
    def labels(self) -> Int64Array:
        """Returns the label of the row of each cell."""
        return self._tables.edge_variable[self.cells.narrow[:, Narrow.EDGE]]

    @property
    def kept(self) -> np.ndarray:
        """See matching.kernels.graph.Kept."""
        return self._scratch.kept[: self._counters[GraphCounters.KEPT]]

    def unfold(self, most: int, at: Int64Array) -> None:
        """Finds the next matches of the kept cells, `most` at most; to be followed by `decode`. at: the position, see
        matching.kernels.graph.Unfolding."""
        status = graph.ROOM_PATH
        while status != graph.OK:
            status = graph.unfold(most, len(self.kept), at, self._cells, self._found, self._scratch, self._counters)
            if status != graph.OK:
                assert not self.decided
                self._more_found(status)

    def decode(self, store: RowStore, out: Decode) -> None:
        """Writes the matches found into `out` and forgets them."""
        count, rows = int(self._counters[GraphCounters.FOUND]), int(self._counters[GraphCounters.ROWS])
        self._counters[[GraphCounters.FOUND, GraphCounters.ROWS]] = 0
        found = self._found
        out.begin(count)
        if self._length:
            out.rows, out.variables = found.row[:rows], np.zeros(0, np.int16)  # read before the next step
            out.partition[:] = found.partition[:count]
            out.number[:] = found.number[:count]
            return
        out.bounds[:] = found.bound[: count + 1]
        if out.bare:
            out.rows = found.row[:rows].copy()
            out.variables = self._variables[found.edge[:rows]]
        else:
            out.room(rows)
            graph.unroll(
                rows, found.row, found.edge, self._tables.edge_variable, store.ts, store.source, store.offset,
                store.seq, out.rows, out.variables, out.ts, out.source, out.offset, out.seq,
            )  # fmt: skip
        out.start[:] = out.rows[out.bounds[:-1]]
        out.partition[:] = found.partition[:count]
        out.number[:] = found.number[:count]

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows that runs can reach; to be followed by `move`."""
        self._moved = np.full(max(1, self.size), -1, np.int64)
        lowest = np.empty(max(1, self.size), np.int64)
        self._mark_lists(ids, lowest)
        self._remaining = graph.mark_cells(self._cells, self.size, lowest, self._moved, keep)

    def _mark_lists(self, ids: Int64Array, lowest: Int64Array) -> None:
        graph.mark_lists(ids, self._states, self._floor, self._lists, self._cells, lowest, self._moved)

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Drops the cells that `mark` did not reach and renumbers rows."""
        graph.move_cells(self._cells, self.size, self._moved, row_moved)
        self._move_lists(ids)
        self._counters[GraphCounters.CELLS] = self._remaining

    def _move_lists(self, ids: Int64Array) -> None:
        graph.move_lists(ids, self._states, self._lists, self._moved)

    def idle(self, partitions: int) -> np.ndarray:
        """Returns, per partition, True if it has no run, bool (partitions,). To be called after `move`, which drops
        those that WITHIN has ended."""
        return ~self.busy(np.arange(partitions))

    def forget(self, ids: Int64Array) -> None:
        """Resets idle partitions to their state before the first row."""
        self._lists[ids] = self._fresh(1)

    def snapshot(self) -> Arrays:
        floor, cells = np.array([self._floor]), self._cells.wide[: self.size]
        return {"counters": self._counters, "floor": floor, "cells": cells, "lists": self._lists}

    def restore(self, arrays: Arrays) -> None:
        self._counters = arrays["counters"]
        self._floor = int(arrays["floor"][0])
        self._cells = graph.cells_of(layout.grown(arrays["cells"], max(8 * ROOM, self.size)))
        self._lists = arrays["lists"]

    # ---- partitions that leave memory: see matching.engines.engine.Spillable

    @property
    def used_bytes(self) -> int:
        return 32 * self.size

    @property
    def key_bytes(self) -> int:
        return 8 * self._lists.shape[1]

    def states(self, ids: Int64Array) -> Int64Array:
        some = self._lists[ids, Lists.HEAD + 1 : Lists.HEAD + self._states] >= 0
        return np.where(some.any(axis=1), self._states - 1 - some[:, ::-1].argmax(axis=1), -1)

    def _own(self, ids: Int64Array) -> Int64Array:
        """Returns, for each live cell, the index of its partition among these, else -1."""
        owner = np.full(max(1, self.size), -1, np.int64)
        self._own_lists(ids, owner)
        graph.own_cells(self.size, self._cells, self._moved, owner)
        return owner[: self.size]

    def _own_lists(self, ids: Int64Array, owner: Int64Array) -> None:
        graph.own_lists(self._states, ids, self._lists, owner)

    def weigh(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        owner = self._own(ids)
        return 32 * np.bincount(owner[owner >= 0], minlength=len(ids))

    def _cells_out(self, leaving: Leaving) -> tuple[Grouped, RecordBlock]:
        """Returns the cells of partitions, in their order."""
        cells = Grouped(self._own(leaving.ids), len(leaving.ids))
        self._left = cells.items
        of = owners(cells.bounds)
        narrow, wide = self._cells.narrow[cells.items], self._cells.wide[cells.items]
        # an expired cell may be kept for later cells although its row was dropped: none is read
        columns = {
            "row": leaving.rows.places(narrow[:, Narrow.ROW], of).astype(np.int32), "edge": narrow[:, Narrow.EDGE],
            "child": cells.places(narrow[:, Narrow.CHILD], of).astype(np.int32),
            "next": cells.places(narrow[:, Narrow.NEXT], of).astype(np.int32), "start": wide[:, graph.START],
            "rest": wide[:, graph.REST],
        }  # fmt: skip
        return cells, RecordBlock(cells.bounds, columns)

    def _cells_in(self, coming: Coming, cells: RecordBlock) -> Int64Array:
        """Adds cells after the existing ones; returns the first one of each partition."""
        begin, n = self.size, int(cells.bounds[-1])
        if begin + n > len(self._cells.wide):
            self._room_for_cells(max(2 * len(self._cells.wide), begin + n))
        base, of, columns = cells.bounds[:-1] + begin, owners(cells.bounds), cells.columns
        narrow, wide = self._cells.narrow[begin : begin + n], self._cells.wide[begin : begin + n]
        narrow[:, Narrow.ROW] = anew(columns["row"], coming.rows, of)
        narrow[:, Narrow.EDGE] = columns["edge"]
        narrow[:, Narrow.CHILD] = anew(columns["child"], base, of)
        narrow[:, Narrow.NEXT] = anew(columns["next"], base, of)
        wide[:, graph.START], wide[:, graph.REST] = columns["start"], columns["rest"]
        self._counters[GraphCounters.CELLS] = begin + n
        return base

    def copy_out(self, store: RowStore, leaving: Leaving) -> Blocks:
        n = len(leaving.ids)
        cells, kept = self._cells_out(leaving)
        lists = self._lists[leaving.ids]
        for q in range(1, self._states):
            lists[:, Lists.HEAD + q] = cells.places(lists[:, Lists.HEAD + q], np.arange(n))
        return {"one": RecordBlock(one_each(n), {"lists": lists}), "cells": kept}

    def leave(self, ids: Int64Array) -> None:
        self.forget(ids)

    def unmark(self, store: RowStore, place: Int64Array) -> None:
        self._moved[self._left] = -1
        stay = np.flatnonzero(self._moved >= 0)
        self._moved[stay] = np.arange(len(stay))
        self._remaining = len(stay)

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        base = self._cells_in(coming, blocks["cells"])
        lists = blocks["one"].columns["lists"]
        for q in range(1, self._states):
            lists[:, Lists.HEAD + q] = anew(lists[:, Lists.HEAD + q], base, np.arange(len(base)))
        self._lists[coming.ids] = lists

    def registers(self, blocks: Blocks) -> np.ndarray | None:
        return None

    def due(self, watermark_us: int, wanted: np.ndarray) -> Int64Array:
        return np.zeros(0, np.int64)
