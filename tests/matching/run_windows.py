"""A throwaway engine: a row per window of WITHIN, of the rows that meet the pattern's one condition. Spillable."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import NONE_BAD, Arrays, EnginePlan
from matching.kernels.layout import grown
from matching.program.carried import FIRST_ROW, LAST_ROW, Carried, row_meant
from matching.program.program import Program
from matching.records import Blocks, Coming, Leaving, RecordBlock, one_each
from matching.store import RowStore
from query.plan.expression import Aggregate, Logical, Navigation, walk
from query.plan.plan import Plan

#: A window is [n * WITHIN, (n + 1) * WITHIN). Of a partition: that of its last row, or NONE; the first and the last row
#: in it, how many there are, and how many windows were given.
WINDOW, FIRST, LAST, COUNT, NUMBER = range(5)
NONE = -(2**62)


def windows_of(plan: Plan, program: Program) -> Carried | None:
    """What measures read of a window: its first and last row, and how many rows it has."""
    if program.within_us is None or len(program.variables) != 1:
        return None
    places: dict[object, int] = {}
    for e in (e for m in plan.measures for e in walk(m.expression)):
        if isinstance(e, Navigation):
            places[row_meant(e)] = FIRST_ROW if e.logical is Logical.FIRST else LAST_ROW
        elif isinstance(e, Aggregate):
            places[e] = 0
    return Carried(program, tuple(places.items()))


class RunWindows:
    name = "windows"
    tag = "test windows"
    by_test, defers, settles, specialises = False, False, False, False
    size = stuck = row_bytes = used_bytes = 0
    key_bytes = 8 * 6
    due_yields = True

    def __init__(self, chosen: EnginePlan) -> None:
        assert chosen.runs.within_us is not None
        self._within_us = chosen.runs.within_us
        self._of = np.zeros((0, 5), np.int64)
        self._deadline = np.zeros(0, np.int64)  # per partition the end of its window, also of those that have left
        self._done: list[tuple[int, ...]] = []  # partition, and the columns of its window

    @property
    def decided(self) -> int:
        return len(self._done)

    def reserve(self, partitions: int) -> None:
        have = len(self._of)
        if partitions > have:
            self._of = grown(self._of, max(partitions, 2 * have))
            self._of[have:, WINDOW] = NONE
            self._deadline = grown(self._deadline, len(self._of), -NONE)

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        for row in rows[mask > 0].tolist():
            p, window = int(store.partition[row]), int(store.ts[row]) // self._within_us
            if self._of[p, WINDOW] != window:
                self._close(p)
                self._of[p, [WINDOW, FIRST, COUNT]] = window, row, 0
                self._deadline[p] = (window + 1) * self._within_us
            self._of[p, LAST] = row
            self._of[p, COUNT] += 1

    def _close(self, p: int) -> None:
        if self._of[p, WINDOW] != NONE:
            self._of[p, NUMBER] += 1
            self._done.append((p, *self._of[p].tolist()))
            self._of[p, WINDOW], self._deadline[p] = NONE, -NONE

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        now = np.minimum(watermark_us, held) if len(held) else np.full(len(self._of), watermark_us)
        for p in np.flatnonzero(self._deadline[: len(now)] <= now[: len(self._of)]).tolist():
            self._close(p)

    def finish(self, partitions: int) -> None:
        for p in range(partitions):
            self._close(p)

    def decode(self, store: RowStore, out: Decode) -> None:
        done = np.array(self._done, np.int64).reshape(-1, 6)
        self._done = []
        out.begin(len(done))
        out.bounds = np.arange(len(done) + 1)
        out.partition[:], out.start[:], out.number[:] = done[:, 0], done[:, 1 + FIRST], done[:, 1 + NUMBER]
        out.carried = done[:, [1 + COUNT]]
        out.room(len(done))
        out.rows[:], out.variables[:] = done[:, 1 + LAST], 0
        for name in ("ts", "source", "offset", "seq"):
            setattr(out, name, getattr(store, name)[out.rows])

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        open_ = ids[self._of[ids, WINDOW] != NONE]
        keep[self._of[open_, FIRST]] = keep[self._of[open_, LAST]] = True

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        open_ = ids[self._of[ids, WINDOW] != NONE]
        for column in (FIRST, LAST):
            self._of[open_, column] = row_moved[self._of[open_, column]]

    def busy(self, partition: Int64Array) -> np.ndarray:
        return np.asarray(self._of[partition, WINDOW] != NONE)

    def idle(self, partitions: int) -> np.ndarray:
        return np.asarray(self._deadline[:partitions] == -NONE)

    def forget(self, ids: Int64Array) -> None:
        self._of[ids] = (NONE, 0, 0, 0, 0)
        self._deadline[ids] = -NONE

    def numbers(self, partitions: int) -> Int64Array:
        return self._of[:partitions, NUMBER]

    def snapshot(self) -> Arrays:
        return {"of": self._of, "deadline": self._deadline}

    def restore(self, arrays: Arrays) -> None:
        self._of, self._deadline = arrays["of"], arrays["deadline"]

    # ---- partitions that leave memory

    def states(self, ids: Int64Array) -> Int64Array:
        return np.where(self.busy(ids), 0, -1)

    def weigh(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        return np.zeros(len(ids), np.int64)

    def copy_out(self, store: RowStore, leaving: Leaving) -> Blocks:
        one, of = self._of[leaving.ids], np.arange(len(leaving.ids))
        for column in (FIRST, LAST):
            one[:, column] = leaving.rows.places(one[:, column], of)
        return {"one": RecordBlock(one_each(len(one)), {"of": one})}

    def leave(self, ids: Int64Array) -> None:
        self._of[ids] = (NONE, 0, 0, 0, 0)  # the watermark still asks for their windows: see `due`

    def unmark(self, store: RowStore, place: Int64Array) -> None:
        pass

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        one = blocks["one"].columns["of"]
        for column in (FIRST, LAST):
            one[:, column] += coming.rows
        self._of[coming.ids] = one
        ends = np.where(one[:, WINDOW] == NONE, -NONE, (one[:, WINDOW] + 1) * self._within_us)
        self._deadline[coming.ids] = ends

    def registers(self, blocks: Blocks) -> np.ndarray | None:
        return None

    def due(self, watermark_us: int, wanted: np.ndarray) -> Int64Array:
        n = min(len(wanted), len(self._deadline))
        return np.flatnonzero(wanted[:n] & (self._deadline[:n] <= watermark_us))
