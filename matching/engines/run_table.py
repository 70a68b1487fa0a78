"""The table engine of a matcher: row-local patterns by one table look-up per row (matching.kernels.table)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import NONE_BAD, ROOM, Arrays, EnginePlan
from matching.kernels import table as kernels
from matching.kernels.layout import grown
from matching.program.determinise import ListTable
from matching.records import Blocks, Coming, Leaving, RecordBlock, one_each, owners
from matching.store import RowStore


class RunTable:
    """Keeps, per partition, the number of its list; per row, the row before it and the transition taken."""

    name = "table of lists"
    tag = "table"
    by_test = True
    defers = False
    specialises = False
    size = 0  # no buffer of its own: the store's rows are the match buffer
    dates = True
    settles = False
    due_yields = True  # the end of the input decides matches
    row_bytes = 8  # of its own, for each row of the store
    used_bytes = 0  # besides those
    key_bytes = 24
    stuck = 0  # it skips past the last row, or to the last of two or more

    def __init__(self, chosen: EnginePlan) -> None:
        table = chosen.table
        assert isinstance(table, ListTable)
        self.strict = chosen.runs.strict
        self._arrays = kernels.table_arrays(table)
        self._lengths = np.array([len(runs) for runs in table.lists], np.int64)
        self._state = np.zeros(ROOM, np.int64)
        self._number = np.zeros(ROOM, np.int64)
        self._last = np.full(ROOM, -1, np.int64)  # last row taken, per partition
        self._trail = np.zeros(ROOM, np.int64)  # per row of the store
        self._decided = kernels.TableDecided(*(np.zeros(ROOM, np.int64) for _ in range(4)))
        self._count = 0
        self._last_partition = -1

    @property
    def decided(self) -> int:
        """Returns the number of decided matches that are not decoded yet."""
        return self._count

    def frontier(self, partitions: int) -> Int64Array:
        """Returns, per partition, the row where the first undecided attempt began; -1: all rows taken are settled."""
        begin = np.empty(partitions, np.int64)
        kernels.first_rows(self._arrays, self._state, self._lengths, self._last, self._trail, begin)
        return begin

    def covered(self, store: RowStore, rows: Int64Array) -> np.ndarray:
        """Returns False for all: plans with unmatched rows do not run here."""
        return np.zeros(len(rows), np.bool_)

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions have runs, bool (n,)."""
        return np.asarray(self._state[partition] != 0)

    def numbers(self, partitions: int) -> Int64Array:
        """Returns the last MATCH_NUMBER of each partition."""
        return self._number[:partitions]

    def reserve(self, partitions: int) -> None:
        if partitions > len(self._state):
            capacity = max(partitions, 2 * len(self._state))
            self._state, self._number = grown(self._state, capacity), grown(self._number, capacity)
            self._last = grown(self._last, capacity, -1)

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions` through the table; feature arrays are not read."""
        if store.count > len(self._trail):
            self._trail = grown(self._trail, max(store.count, 2 * len(self._trail)))
        partition = store.partition[positions]
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        at, before = 0, self._count
        while at < len(mask):
            at, self._count, self._last_partition = kernels.step_table(
                at, len(mask), partition, mask, rows, self.strict, self._last_partition, self._arrays, self._state,
                self._number, self._last, self._trail, self._decided, self._count,
            )  # fmt: skip
            if at < len(mask):
                self._more_decided((self._count - before) * (len(mask) - at) // max(at, 1))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Does nothing: plans with WITHIN do not run here."""

    def finish(self, partitions: int) -> None:
        at = 0
        while at < partitions:
            at, self._count = kernels.finish_table(
                at, partitions, self._arrays, self._state, self._number, self._last, self._trail, self._decided,
                self._count,
            )  # fmt: skip
            if at < partitions:
                self._more_decided()

    def _more_decided(self, expected: int = 0) -> None:
        """Makes room for more decided matches: as many as there are, or as are expected, and those of one row."""
        capacity = len(self._decided.row) + max(len(self._decided.row), expected)
        capacity += len(self._arrays.parent) + len(self._arrays.waiting)
        before, self._decided = self._decided, kernels.TableDecided(*(np.empty(capacity, np.int64) for _ in range(4)))
        for larger, array in zip(self._decided, before, strict=True):
            larger[: self._count] = array[: self._count]

    def decode(self, store: RowStore, out: Decode) -> None:
        count, self._count = self._count, 0
        decided = self._decided
        out.begin(count)
        out.room(store.count + count if count else 0)  # the last row of a match may be the first one of the next
        kernels.read_back(
            decided, count, self._arrays, self._trail, out.bounds, out.rows, out.variables, out.start,
            store.ts, store.source, store.offset, store.seq, out.ts, out.source, out.offset, out.seq,
        )  # fmt: skip
        out.trim()
        out.partition[:] = decided.partition[:count]
        out.number[:] = decided.number[:count]
        out.at = decided.row[:count].copy()

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows that a run or a waiting match can reach; to be followed by `move`. ids: the partitions that
        may have any."""
        kernels.keep_table(
            ids, self._arrays, self._state, self._lengths, self._last, self._trail, keep
        )

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Renumbers rows."""
        kept = np.flatnonzero(row_moved[:-1] >= 0)
        if len(row_moved) > len(self._trail):
            self._trail = grown(self._trail, len(row_moved))
        kernels.move_trail(kept, row_moved, self._trail)
        self._last[ids] = row_moved[self._last[ids]]

    def idle(self, partitions: int) -> np.ndarray:
        """Returns, per partition, True if it has no run and no waiting match, bool (partitions,)."""
        return self._lengths[self._state[:partitions]] == 0

    def forget(self, ids: Int64Array) -> None:
        """Resets idle partitions to their state before the first row."""
        self._state[ids], self._number[ids], self._last[ids] = 0, 0, -1

    def snapshot(self) -> Arrays:
        last = np.array([self._last_partition])
        return {
            "state": self._state, "number": self._number, "last": self._last, "trail": self._trail, "strict": last
        }  # fmt: skip

    def restore(self, arrays: Arrays) -> None:
        self._state, self._number = arrays["state"], arrays["number"]
        self._last, self._trail = arrays["last"], arrays["trail"]
        self._last_partition = int(arrays["strict"][0])

    # ---- partitions that leave memory: see matching.engines.engine.Spillable

    def states(self, ids: Int64Array) -> Int64Array:
        """Returns the list that these partitions wait in, -1 for none."""
        return np.where(self._lengths[self._state[ids]] > 0, self._state[ids], -1)

    def weigh(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        """Returns the bytes of each of these partitions without its rows; to be called after `mark`. place: by
        partition id, the index among them, -1 for others."""
        return np.zeros(len(ids), np.int64)

    def copy_out(self, store: RowStore, leaving: Leaving) -> Blocks:
        """Returns the state of these partitions, in terms of their own rows; to be called after `mark`."""
        ids, rows = leaving.ids, leaving.rows
        last = rows.places(self._last[ids], np.arange(len(ids)))
        word = self._trail[rows.items]
        before = word >> kernels.SHIFT
        inside = (before >= 0) & (before < store.count)
        before = rows.places(np.where(inside, before, -1), owners(rows.bounds))
        one = {"state": self._state[ids], "number": self._number[ids], "last": last}
        trail = (before << kernels.SHIFT) | (word & kernels.TRANSITION)
        return {"one": RecordBlock(one_each(len(ids)), one), "rows": RecordBlock(rows.bounds, {"trail": trail})}

    def leave(self, ids: Int64Array) -> None:
        """Resets partitions that have been copied out to their state before the first row."""
        self.forget(ids)

    def unmark(self, store: RowStore, place: Int64Array) -> None:
        """Clears the marks of partitions that have left. place: 0 or more for these, by partition id; their rows are
        dropped."""

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        """Restores data that was copied out, for partitions that have had no row since."""
        ids, one, rows = coming.ids, blocks["one"].columns, blocks["rows"]
        if coming.count > len(self._trail):
            self._trail = grown(self._trail, max(coming.count, 2 * len(self._trail)))
        self._state[ids], self._number[ids] = one["state"], one["number"]
        self._last[ids] = np.where(one["last"] >= 0, one["last"] + coming.rows, -1)
        begin = coming.count - int(rows.bounds[-1])
        word = rows.columns["trail"]
        before = word >> kernels.SHIFT
        before = np.where(before >= 0, before + coming.rows[owners(rows.bounds)], -1)
        self._trail[begin : coming.count] = (before << kernels.SHIFT) | (word & kernels.TRANSITION)

    def registers(self, blocks: Blocks) -> np.ndarray | None:
        return None

    def due(self, watermark_us: int, wanted: np.ndarray) -> Int64Array:
        """Returns those of the wanted partitions in which the watermark may decide a match."""
        return np.zeros(0, np.int64)
