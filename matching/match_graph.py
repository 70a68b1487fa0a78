"""All matches of a bounded input as the graph they were found in: counted without decoding, decoded in part, or read as
nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matches
from matching.decode import Decode
from matching.drive import run
from matching.engines.engine import EnginePlan
from matching.engines.run_graph import RunGraph
from matching.kernels import graph
from matching.kernels.graph import Kept, Narrow, Unfolding, Wide
from matching.kernels.integers import MANY
from matching.matcher import KernelMatcher
from matching.store import to_arrow
from query.plan.plan import Plan

#: Matches decoded at a time.
BATCH = 65_536


class MatchGraph:
    """The matches of a plan in one input, by the engine of Purpose.GRAPH.

    A path from a kept cell along children, choosing one from each list, is a match from its last row to its first.
    Memory: a cell for each edge that a row took, whatever the number of matches, and the rows."""

    def __init__(self, plan: Plan, chosen: EnginePlan, batches: Iterable[EventBatch]) -> None:
        self._matcher = KernelMatcher(plan, chosen)
        self._matcher.rows.compact_at = sys.maxsize  # all rows are kept
        for _ in run(self._matcher, batches):
            pass  # its matches are in the graph
        self._engine = cast(RunGraph, self._matcher.engine)

    @property
    def size(self) -> int:
        """Returns the number of cells, each of a row and an edge that took it."""
        return self._engine.size

    @cached_property
    def count(self) -> int:
        """Returns the number of matches. O(cells) without WITHIN, else O(cells of one window) for each row that ends
        some."""
        cells = self._engine.cells
        room = max(1, len(cells.wide))
        total, stack = np.zeros(room, np.int64), np.zeros(2 * room + 1, np.int64)
        done = np.full(room, -1, np.int64)
        large: dict[int, dict[int, int]] = {}  # by the lowest start: of `_paths`
        found = 0
        visits = np.unique(self._engine.kept[:, Kept.LOWEST], return_inverse=True)[1].reshape(-1).tolist()
        for visit, (cell, lowest, _) in zip(visits, self._engine.kept.tolist(), strict=True):
            paths = int(graph.count_paths(cell, lowest, cells, total, done, visit, stack))
            found += paths if paths < MANY else self._paths(cell, large.setdefault(lowest, {-1: 0}), lowest)
        return found

    def _paths(self, end: int, total: dict[int, int], lowest: int) -> int:
        """Returns the number of paths like matching.kernels.graph.count_paths, for numbers of any size. total: those of
        the lists known."""
        cells = self._engine.cells
        stack = [int(cells.narrow[end, Narrow.CHILD])]
        while stack:
            x = stack[-1]
            child, behind = int(cells.narrow[x, Narrow.CHILD]), int(cells.narrow[x, Narrow.NEXT])
            live = bool(cells.wide[x, Wide.START] >= lowest)
            if behind >= 0 and cells.wide[behind, Wide.REST] < lowest:
                behind = -1
            waits = [c for c in (behind, child if live else -1) if c not in total]
            stack += waits
            if not waits:
                total[x] = total[behind] + (live and (1 if child < 0 else total[child]))
                stack.pop()
        return total[int(cells.narrow[end, Narrow.CHILD])]

    def decode(self, most: int | None = None) -> Iterator[Matches]:
        """Yields the matches, BATCH at a time, `most` in all if given: in order of their last rows, and those of one
        last row in the order of the graph. They have no numbers (MATCH_NUMBER is 0). O(their rows)."""
        at = np.zeros(len(Unfolding), np.int64)
        at[Unfolding.DEPTH] = -1
        left = most
        while left is None or left > 0:
            self._engine.unfold(BATCH if left is None else min(BATCH, left), at)
            if not self._engine.decided:
                return
            out = Decode()
            self._engine.decode(self._matcher.store, out)
            out.number[:] = 0
            left = None if left is None else left - out.count
            yield self._matcher.matches_of(out)

    def nodes(self) -> pa.Table:
        """Returns the cells, a row each, which `child`, `next` and the nodes of `ends` number from 0: variable,
        event_time, source, offset, child (the list of possible previous events of a match; null: this is the first
        one), next (the rest of the list that begins with this node; null: empty), start (the latest first event of the
        matches through the node, by its time, or for WITHIN n ROWS its position in the partition)."""
        cells, matcher = self._engine.cells, self._matcher
        store, rows = matcher.store, cells.narrow[:, Narrow.ROW]
        sources = pa.array(matcher.sources, pa.string())
        columns = {
            "variable": pa.array(matcher.program.variables, pa.string()).take(pa.array(self._engine.labels)),
            "event_time": to_arrow(store.ts[rows], None, pa.timestamp("us")),
            "source": sources.take(pa.array(store.source[rows])),
            "offset": pa.array(store.offset[rows]),
            "child": _index(cells.narrow[:, Narrow.CHILD]),
            "next": _index(cells.narrow[:, Narrow.NEXT]),
            "start": pa.array(np.ascontiguousarray(cells.wide[:, Wide.START])),
        }
        return pa.table(columns)

    def ends(self) -> pa.Table:
        """Returns the nodes that end matches, in their order: node, and `since`: its matches count whose start is not
        earlier (null: all)."""
        kept = self._engine.kept
        since = np.ascontiguousarray(kept[:, Kept.LOWEST])
        return pa.table({
            "node": np.ascontiguousarray(kept[:, Kept.CELL]), "since": pa.array(since, mask=since == graph.LOWEST)
        })  # fmt: skip


def _index(values: np.ndarray) -> pa.Array:
    return pa.array(values.astype(np.int64), mask=values < 0)
