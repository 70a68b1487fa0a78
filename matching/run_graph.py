"""The engine for all matches of row-local patterns that pass over rows: a graph of cells (matching.kernels.graph)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.kernels import graph, layout
from matching.kernels.graph import Counters
from matching.lists import NONE_BAD, Arrays, Decode, Failed, OverBudget
from matching.store import RowStore
from query.automaton.program import Program

#: Most matches that one row may end.
MATCHES_MAX = 1_000_000


class RunGraph:
    """The runs of all partitions as lists per state over shared cells."""

    settles = False
    stuck = 0

    def __init__(self, program: Program) -> None:
        self.program = program
        self._tables = layout.program_arrays(program, 0)
        states, edges = len(program.accept), len(program.edge_target)
        self._lists = graph.Lists(np.full((0, states), -1, np.int64), *(np.zeros(0, np.int64) for _ in range(3)))
        self._cells = graph.Cells(*(
            np.zeros(1 << 15, np.int32 if name in ("edge", "deep", "deep_rest") else np.int64)
            for name in graph.Cells._fields
        ))  # fmt: skip
        self._found = graph.Found(*(
            np.zeros(1 << (14 if "row" in name or "edge" in name else 12), np.int32 if "edge" in name else np.int64)
            for name in graph.Found._fields
        ))  # fmt: skip
        self._scratch = graph.Scratch(*(np.zeros(size, np.int64) for size in (edges, edges, edges, 64)))
        self._counters = np.zeros(len(Counters), np.int64)
        #: no start before it counts any more
        self._floor = graph.LOWEST

    @property
    def size(self) -> int:
        """Cells, live or not."""
        return int(self._counters[Counters.CELLS])

    @property
    def decided(self) -> int:
        """Matches found and not yet decoded."""
        return int(self._counters[Counters.FOUND])

    def reserve(self, partitions: int) -> None:
        """Room for this many partitions."""
        have = len(self._lists.ordinal)
        if partitions > have:
            capacity = max(partitions, 2 * have, 1024)
            lists = self._lists
            self._lists = graph.Lists(
                layout.grown(lists.head, capacity, -1), layout.grown(lists.ordinal, capacity),
                layout.grown(lists.number, capacity), layout.grown(lists.lowest, capacity, graph.LOWEST),
            )  # fmt: skip

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions`; see matching.lists.RunLists.run."""
        partition, ts = store.partition[positions], store.ts[positions]
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        at, count = 0, len(mask)
        while at < count:
            at, status = graph.step(
                at, count, partition, mask, bad, ts, rows, self._tables, self._cells, self._lists, self._found,
                self._scratch, MATCHES_MAX, self._counters,
            )  # fmt: skip
            match status:
                case graph.ROOM_CELLS:
                    capacity = 2 * len(self._cells.row) + len(self._tables.edge_target)
                    self._cells = graph.Cells(*(layout.grown(a, capacity) for a in self._cells))
                case graph.ROOM_FOUND:
                    self._found = graph.Found(*(layout.grown(a, 2 * len(a)) for a in self._found))
                case graph.ROOM_PATH:
                    path = layout.grown(self._scratch.path, 2 * len(self._scratch.path))
                    self._scratch = self._scratch._replace(path=path)
                case graph.ERROR:
                    c = self._counters
                    raise Failed(int(c[Counters.FAILED_ROW]) - 1, int(c[Counters.FAILED_LABEL]))
                case graph.BUDGET:
                    raise OverBudget

    def busy(self, partition: Int64Array) -> np.ndarray:
        """Whether these partitions may have runs, bool (n,)."""
        return np.asarray((self._lists.head[partition] >= 0).any(axis=1))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """No run that began before watermark - WITHIN counts; see matching.lists.RunLists.expire."""
        if self.program.within_us is not None:
            now = min([watermark_us, *([int(held.min())] if len(held) else [])])
            self._floor = max(self._floor, now - self.program.within_us)

    def finish(self, partitions: int) -> None:
        """The input has ended."""
        self._lists.head[:] = -1

    def decode(self, store: RowStore, out: Decode) -> None:
        """Writes the matches found into `out` and forgets them."""
        count, rows = int(self._counters[Counters.FOUND]), int(self._counters[Counters.ROWS])
        self._counters[[Counters.FOUND, Counters.ROWS]] = 0
        found = self._found
        out.begin(count)
        out.room(rows)
        out.bounds[:] = found.bound[: count + 1]
        out.rows[:] = at = found.row[:rows]
        out.variables[:] = self._tables.edge_variable[found.edge[:rows]]
        out.ts[:], out.source[:] = store.ts[at], store.source[at]
        out.offset[:], out.seq[:] = store.offset[at], store.seq[at]
        out.start[:] = at[out.bounds[:-1]]
        out.partition[:] = found.partition[:count]
        out.number[:] = found.number[:count]

    def mark(self, store: RowStore, partitions: int, keep: np.ndarray) -> None:
        """Marks the rows that runs can reach; to be followed by `move`."""
        self._moved = np.empty(max(1, self.size), np.int64)
        room = np.empty(max(1, self.size), np.int64)
        self._live = graph.mark_live(
            partitions, self._floor, self._lists, self._cells, self.size, room, self._moved, keep
        )

    def move(self, partitions: int, row_moved: Int64Array) -> None:
        """Drops the cells that `mark` did not reach and renumbers rows."""
        graph.move_live(partitions, self._lists, self._cells, self.size, self._moved, row_moved)
        self._counters[Counters.CELLS] = self._live

    def idle(self, partitions: int) -> np.ndarray:
        """Per partition whether it has no run, bool (partitions,). To be asked behind `move`, which drops those that
        WITHIN has ended."""
        return np.all(self._lists.head[:partitions] < 0, axis=1)

    def forget(self, ids: Int64Array) -> None:
        """Makes idle partitions what they were before their first row."""
        new = graph.Lists(np.array(-1), np.array(0), np.array(0), np.array(graph.LOWEST))
        for array, value in zip(self._lists, new, strict=True):
            array[ids] = value

    def snapshot(self) -> Arrays:
        arrays = {"counters": self._counters, "floor": np.array([self._floor])}
        for name, group in (("cells", self._cells), ("lists", self._lists)):
            arrays |= {f"{name}.{field}": array for field, array in group._asdict().items()}
        return arrays

    def restore(self, arrays: Arrays) -> None:
        self._counters = arrays["counters"]
        self._floor = int(arrays["floor"][0])
        self._cells = graph.Cells(*(arrays[f"cells.{field}"] for field in graph.Cells._fields))
        self._lists = graph.Lists(*(arrays[f"lists.{field}"] for field in graph.Lists._fields))
