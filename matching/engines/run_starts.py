"""The engine of starts: row-local patterns with one match per start, linear in rows (matching.kernels.starts)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import NONE_BAD, ROOM, Arrays, EnginePlan
from matching.kernels import starts as kernels
from matching.kernels.layout import Counters, Heap, grown
from matching.kernels.records import due_first
from matching.kernels.skip_till import queue
from matching.program.starts import StartTable
from matching.records import Blocks, Coming, Leaving, RecordBlock, anew, one_each, owners
from matching.store import RowStore


class RunStarts:
    """Keeps, per partition, the queue of its unsettled starts and their groups; per row, its mask and place in them.

    It settles starts in order itself: matches that AFTER MATCH skips are never emitted; unmatched rows and timeouts
    are, in order (`settles`)."""

    name = "table of starts"
    tag = "starts"
    by_test = True
    defers = False
    specialises = False
    size = 0  # no buffer of its own: the store's rows are the match buffer
    due_yields = True  # WITHIN and the end of the input decide matches
    row_bytes = 8 * kernels.ROW_COLUMNS  # of its own, for each row of the store
    used_bytes = 0  # besides those
    key_bytes = 8 * len(kernels.NEW_PARTITION) + 16
    dates = True
    settles = True  # gives UNMATCHED and TIMEOUT itself, and applies Program.skip

    def __init__(self, chosen: EnginePlan) -> None:
        table = chosen.table
        assert isinstance(table, StartTable)
        picks = () if chosen.picked is None else chosen.picked.picks
        self._picks = chosen.picked is not None
        self._arrays = kernels.table_arrays(table, chosen.runs, picks)
        self._within_us = chosen.runs.within_us
        self._rows = np.zeros((ROOM, kernels.ROW_COLUMNS), np.int64)
        self._partitions = _new_partitions(ROOM)
        self._heap = Heap(np.zeros(ROOM, np.int64), np.zeros(ROOM, np.int64))
        self._decided = np.zeros((ROOM, kernels.DECIDED_COLUMNS + len(picks)), np.int64)
        self._scratch = kernels.StartScratch(
            np.zeros((len(table.configs), 3), np.int64), np.zeros((ROOM, 2), np.int64), np.zeros(1, np.int64)
        )
        self._counters = np.zeros(len(Counters), np.int64)
        self._counters[Counters.LAST_PARTITION] = -1
        self._filled = 0  # rows of the store when rows were last taken

    @property
    def decided(self) -> int:
        """Returns the number of decided entries that are not decoded yet."""
        return int(self._counters[Counters.DECIDED])

    @property
    def stuck(self) -> int:
        """Returns the number of matches from which SKIP TO FIRST / LAST would not have moved on; the scan continued one
        row after them."""
        return int(self._counters[Counters.STUCK])

    def frontier(self, partitions: int) -> Int64Array:
        """Returns, per partition, the row where the first undecided attempt began; -1: all rows taken are settled."""
        return self._partitions[:partitions, kernels.HEAD].copy()

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions have unsettled starts, bool (n,)."""
        return np.asarray(self._partitions[partition, kernels.HEAD] >= 0)

    def numbers(self, partitions: int) -> Int64Array:
        """Returns the last MATCH_NUMBER of each partition."""
        return self._partitions[:partitions, kernels.NUMBER]

    def covered(self, store: RowStore, rows: Int64Array) -> np.ndarray:
        """True if unsettled rows that have been taken lie in a match, bool (n,)."""
        return self._rows[rows, kernels.ORDINAL] <= self._partitions[store.partition[rows], kernels.COVERED]

    def reserve(self, partitions: int) -> None:
        """Makes room for this many partitions."""
        before = len(self._partitions)
        if partitions > before:
            larger = _new_partitions(max(partitions, 2 * before))
            larger[:before] = self._partitions
            self._partitions = larger
        if partitions + 2 > len(self._heap.deadline):
            self._heap = Heap(*(grown(a, 2 * partitions + 2) for a in self._heap))

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions` through the table; feature arrays are not read."""
        self._fill(store.count)
        partition = store.partition[positions]
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        ts = store.clock[positions]
        at, count = 0, len(mask)
        while at < count:
            at, room = kernels.step_starts(
                at, count, partition, mask, rows, ts, self._arrays, self._rows, self._partitions, self._heap,
                self._decided, self._scratch, self._counters,
            )  # fmt: skip
            self._need(room)

    def _fill(self, count: int) -> None:
        """Adopts the number of rows in the store."""
        self._filled = count
        if count > len(self._rows):
            capacity = max(count, 2 * len(self._rows))
            self._rows = grown(self._rows, capacity)
            self._scratch = self._scratch._replace(path=np.zeros((capacity, 2), np.int64))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Settles the starts that began before watermark - WITHIN. held: per partition the time of its first untaken
        row (larger than any: none); empty if there are none."""
        room = -1
        while room:
            room = kernels.expire_starts(
                watermark_us, held, self._arrays, self._rows, self._partitions, self._heap, self._decided,
                self._scratch, self._counters,
            )  # fmt: skip
            self._need(room)

    def finish(self, partitions: int) -> None:
        """Settles all starts at the end of the input."""
        at = 0
        while at < partitions:
            at, room = kernels.finish_starts(
                at, partitions, self._arrays, self._rows, self._partitions, self._decided, self._scratch,
                self._counters,
            )  # fmt: skip
            self._need(room)
        self._counters[Counters.HEAP] = 0
        self._partitions[:, kernels.QUEUED] = 0

    def _need(self, room: int) -> None:
        """Makes room for that many entries in all."""
        if room > len(self._decided):
            self._decided = grown(self._decided, max(room, 2 * len(self._decided)))

    def decode(self, store: RowStore, out: Decode) -> None:
        """Writes the decided entries into `out` and forgets them. Linear in the rows of all matches, unless what
        measures read has been picked."""
        count = self.decided
        self._counters[Counters.DECIDED] = 0
        decided = self._decided
        out.begin(count)
        if self._picks:
            out.bounds = np.arange(count + 1)
            out.rows = decided[:count, kernels.D_END].copy()
            out.variables = np.zeros(count, np.int16)
            out.carried = decided[:count, kernels.D_LENGTH :].T.copy().T  # each column together
        else:
            out.bounds[1:] = np.cumsum(decided[:count, kernels.D_LENGTH])
            out.room(int(out.bounds[-1]))
            kernels.read_forward(
                decided, count, self._arrays, self._rows, self._scratch.path, out.bounds, out.rows, out.variables,
                store.ts, store.source, store.offset, store.seq, out.ts, out.source, out.offset, out.seq,
            )  # fmt: skip
        out.start[:] = decided[:count, kernels.D_START]
        out.partition[:] = decided[:count, kernels.D_PARTITION]
        out.number[:] = decided[:count, kernels.D_NUMBER]
        out.outcome[:] = decided[:count, kernels.D_OUTCOME]
        out.waiting[:] = decided[:count, kernels.D_STATE]
        out.at = decided[:count, kernels.D_AT].copy()

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows from the first unsettled start of each partition on; to be followed by `move`. All decided
        entries have been decoded."""
        assert not self.decided
        self._live = np.zeros(store.count, np.bool_)
        kernels.keep_starts(ids, self._rows, self._partitions, keep, self._live)

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Renumbers rows."""
        kernels.move_starts(len(self._live), self._live, row_moved, self._rows)
        for column in (kernels.HEAD, kernels.LAST, kernels.GROUPS):
            self._partitions[ids, column] = row_moved[self._partitions[ids, column]]
        self._filled = int(np.count_nonzero(row_moved[:-1] >= 0))

    def idle(self, partitions: int) -> np.ndarray:
        """Returns, per partition, True if all its starts are settled, bool (partitions,)."""
        of = self._partitions[:partitions]
        return (of[:, kernels.HEAD] < 0) & (of[:, kernels.QUEUED] == 0)

    def forget(self, ids: Int64Array) -> None:
        """Resets idle partitions to their state before the first row."""
        self._partitions[ids] = kernels.NEW_PARTITION

    def snapshot(self) -> Arrays:
        return {
            "counters": self._counters, "rows": self._rows[: self._filled], "partitions": self._partitions,
            "deadline": self._heap.deadline, "partition": self._heap.partition,
        }  # fmt: skip

    def restore(self, arrays: Arrays) -> None:
        self._counters, self._rows, self._partitions = arrays["counters"], arrays["rows"], arrays["partitions"]
        self._heap = Heap(arrays["deadline"], arrays["partition"])
        self._filled = len(self._rows)
        self._scratch = self._scratch._replace(path=np.zeros((max(1, self._filled), 2), np.int64))

    # ---- partitions that leave memory: see matching.engines.engine.Spillable

    def states(self, ids: Int64Array) -> Int64Array:
        group = self._partitions[ids, kernels.GROUPS]
        return np.where(group >= 0, -1 - self._rows[np.maximum(group, 0), kernels.UP], -1)

    def weigh(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        return np.zeros(len(ids), np.int64)

    def copy_out(self, store: RowStore, leaving: Leaving) -> Blocks:
        ids, rows = leaving.ids, leaving.rows
        one = self._partitions[ids].copy()
        for column in (kernels.HEAD, kernels.LAST, kernels.GROUPS):
            one[:, column] = rows.places(one[:, column], np.arange(len(ids)))
        line = self._rows[rows.items].copy()
        line[~self._live[rows.items]] = 0
        of = owners(rows.bounds)
        for column in (kernels.NEXT, kernels.END, kernels.SIBLING):
            line[:, column] = rows.places(line[:, column], of)
        child = line[:, kernels.UP] >= 0
        for column in (kernels.UP, kernels.LINK):
            line[child, column] = rows.places(line[child, column], of[child])
        head = RecordBlock(one_each(len(ids)), {"partition": one})
        return {"one": head, "rows": RecordBlock(rows.bounds, {"line": line})}

    def leave(self, ids: Int64Array) -> None:
        queued = self._partitions[ids, kernels.QUEUED]
        self.forget(ids)
        self._partitions[ids, kernels.QUEUED] = queued

    def unmark(self, store: RowStore, place: Int64Array) -> None:
        self._live &= place[store.partition[: len(self._live)]] < 0

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        ids, rows = coming.ids, blocks["rows"]
        self._fill(coming.count)
        one, line = blocks["one"].columns["partition"], rows.columns["line"]
        queued = self._partitions[ids, kernels.QUEUED]
        for column in (kernels.HEAD, kernels.LAST, kernels.GROUPS):
            one[:, column] = anew(one[:, column], coming.rows, np.arange(len(ids)))
        one[:, kernels.QUEUED] = queued
        self._partitions[ids] = one
        of = owners(rows.bounds)
        for column in (kernels.NEXT, kernels.END, kernels.SIBLING):
            line[:, column] = anew(line[:, column], coming.rows, of)
        child = line[:, kernels.UP] >= 0
        for column in (kernels.UP, kernels.LINK):
            line[child, column] = anew(line[child, column], coming.rows, of[child])
        self._rows[coming.count - len(line) : coming.count] = line
        if self._within_us is not None:  # of starts from another matcher
            new = ids[(one[:, kernels.HEAD] >= 0) & (queued == 0)]
            first = self._rows[self._partitions[new, kernels.HEAD], kernels.TS]
            queue(new, first + self._within_us, self._heap, self._counters)
            self._partitions[new, kernels.QUEUED] = 1

    def registers(self, blocks: Blocks) -> np.ndarray | None:
        return None

    def due(self, watermark_us: int, wanted: np.ndarray) -> Int64Array:
        count = int(self._counters[Counters.HEAP])
        stack, out = np.empty(count + 1, np.int64), np.empty(count, np.int64)
        n = due_first(watermark_us, count, self._heap.deadline, self._heap.partition, wanted, stack, out)
        return out[:n]


def _new_partitions(capacity: int) -> np.ndarray:
    return np.tile(np.array(kernels.NEW_PARTITION, np.int64), (capacity, 1))
