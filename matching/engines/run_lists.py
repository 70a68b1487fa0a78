"""The general engine of a matcher: run lists through the interpreted kernel (matching.kernels.step)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.engines.buffered_runs import BufferedRuns, Step, fields, named
from matching.engines.engine import NONE_BAD, ROOM, ROWS_UNCHECKED, Arrays, EnginePlan
from matching.kernels import dominated, layout, match_buffer, skip_till, step
from matching.kernels import waiting as looked_up
from matching.kernels.layout import Counters, Parameters
from matching.program.dominance import Dominance, dominance
from matching.program.equalities import equalities_behind
from matching.program.program import Program
from matching.records import Blocks, Coming, Leaving, RecordBlock, anew, bounds_of, one_each, owners
from matching.store import RowStore

#: Length of a list from which on runs that are dominated are looked for.
LEAST_PRUNED = 32


class RunLists(BufferedRuns):
    """Runs of all partitions as linked lists in order of preference."""

    name = "run lists"
    tag = "lists"
    _kernel = step
    due_yields = True  # WITHIN and the end of the input decide matches
    finds_waiting = True  # see matching.kernels.waiting
    key_bytes = 8 * 10 + 1 + 16

    def __init__(self, chosen: EnginePlan) -> None:
        super().__init__(chosen)
        self._runs = layout.new_runs(ROOM, len(self.program.registers))
        self._partitions = layout.new_partitions(ROOM)
        self._counters[Counters.FREE] = ROOM
        self._counters[Counters.LAST_PARTITION] = -1
        self._waiting = looked_up.no_entries(self.program, equalities_behind(self.program))
        self._entered = True  # all matches that wait
        self._folds = self.program.folds
        found = dominance(self.program)
        self._dominated = None if found is None else _dominated(self.program, found)
        self._calm = () if found is None else found.rows  # of other rows no run may be missing
        self._dropped = False  # runs may be, of those that were dominated by others than equal ones
        self._long = True  # some list was, when it was last looked at

    def _next_step(self, partition: Int64Array, some_bad: bool) -> tuple[Step, int]:
        """See BufferedRuns. Where runs of all starts may go, lists are looked at often as long as they get long."""
        if self._dominated is not None and not self._dominated.of_start:
            self._rows_unchecked = LEAST_PRUNED if self._long else min(2 * self._rows_unchecked, ROWS_UNCHECKED)
        return super()._next_step(partition[: self._rows_unchecked], some_bad)

    def _prune(self, partition: Int64Array, all_of: bool = False) -> int:
        """See BufferedRuns."""
        if self._dominated is None:
            return 0
        longest = int(self._lengths(partition).max(initial=0))
        self._long = longest > LEAST_PRUNED
        if not self._long:
            return 0
        if all_of:
            self._dominated.length[partition] = 0
        if 4 * longest > len(self._dominated.best):
            self._dominated = self._dominated._replace(best=np.empty(8 * longest, np.int64))
        count = int(dominated.prune_long(
            partition, LEAST_PRUNED, self._dominated, self._runs, self._partitions, self._counters
        ))  # fmt: skip
        self._dropped |= count > 0 and bool(self._dominated.better.any())
        return count

    def misses(self, feature: np.ndarray, valid: np.ndarray) -> bool:
        """True if runs have gone for which rows with these features may decide otherwise than for those that stayed."""
        return self._dropped and any(
            ((feature[f] < low) | (feature[f] > high))[valid[f]].any() for f, low, high in self._calm
        )

    def whole(self) -> RunLists:
        """Returns an engine without rows, with the step of this one, of which runs go only if they equal others."""
        new = RunLists(self.chosen)
        assert new._dominated is not None
        new._dominated = new._dominated._replace(better=np.zeros_like(new._dominated.better))
        new._special = self._special
        return new

    @property
    def row_bytes(self) -> int:
        return 8 * self._folds

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """See BufferedRuns.run."""
        if self._folds:
            rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
            self._room_for_rows(store.count)
            step.link_rows(store.partition[positions], rows, self._links)
        super().run(store, positions, mask, feature, feature_valid, bad)

    def _room_for_rows(self, rows: int) -> None:
        if rows > len(self._links.prior):
            prior = layout.grown(self._links.prior, max(rows, 2 * len(self._links.prior)))
            self._links = self._links._replace(prior=prior)

    def unfold(self) -> None:
        """Gives each row of a run a node from now on, as in states of earlier releases."""
        self._folds = self.specialises = False
        self._tables.parameters[Parameters.FOLDS] = 0

    def _state(self) -> tuple[object, ...]:
        if not self._entered:
            self._enter_all(0)
        return (
            self._runs, self._buffer, self._partitions, self._heap, self._decided, self._scratch, self._counters,
            self._waiting,
        )  # fmt: skip

    def _enter_all(self, more: int) -> None:
        """Enters all matches that wait anew, with room for as many again and more."""
        self._entered = True
        if self._waiting is None or not len(self._waiting.label):
            return
        partitions = len(self._partitions.head)
        count = looked_up.count_pending(partitions, self._runs, self._partitions) * len(self._waiting.label)
        capacity = 2 * (count + more) + ROOM
        self._waiting = looked_up.with_room(self._waiting, capacity)
        looked_up.enter_all(partitions, self._runs, self._partitions, self._waiting)

    def frontier(self, partitions: int) -> Int64Array:
        """Returns, per partition, the row where the first undecided attempt began; -1: all rows taken are settled."""
        head = self._partitions.head[:partitions]
        return np.where(head >= 0, self._runs.row[np.maximum(head, 0)], -1)

    def covered(self, store: RowStore, rows: Int64Array) -> np.ndarray:
        """Returns False for all: see matching.unmatched."""
        return np.zeros(len(rows), np.bool_)

    def numbers(self, partitions: int) -> Int64Array:
        """Returns the last MATCH_NUMBER of each partition."""
        return self._partitions.number[:partitions]

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions have runs, bool (n,)."""
        return np.asarray(self._partitions.head[partition] >= 0)

    def go_on(self, numbers: Int64Array, stuck: int) -> None:
        """Continues the counts of another engine: MATCH_NUMBER per partition, and `stuck`."""
        self.reserve(len(numbers))
        self._partitions.number[: len(numbers)] = numbers
        self._counters[Counters.STUCK] = stuck

    def reserve(self, partitions: int) -> None:
        """Makes room for this many partitions."""
        super().reserve(partitions)
        if partitions > len(self._partitions.head):
            capacity = max(partitions, 2 * len(self._partitions.head))
            self._partitions = layout.grown_partitions(self._partitions, capacity)
        if self._dominated is not None and len(self._partitions.head) > len(self._dominated.length):
            length = layout.grown(self._dominated.length, len(self._partitions.head), LEAST_PRUNED)
            self._dominated = self._dominated._replace(length=length)
        if self._folds and len(self._partitions.head) > len(self._links.last):
            last = layout.grown(self._links.last, len(self._partitions.head), -1)
            self._links = self._links._replace(last=last)

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Drops the runs that began before watermark - WITHIN and decides the matches that waited for them. held: per
        partition the time of its first untaken row (larger than any: none); empty if there are none."""
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
        """Decides all waiting matches at the end of the input."""
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

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Marks the rows that runs or waiting matches can reach; to be followed by `move`."""
        self._moved = np.full(self.size, -1, np.int64)
        step.mark_runs(ids, self._runs, self._partitions, self._buffer, self._moved, keep)
        if self._folds:
            step.mark_linked(ids, self._runs, self._partitions, self._links, keep)
        self._live = match_buffer.number(self.size, self._moved)

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Drops the nodes that `mark` did not reach and renumbers rows."""
        match_buffer.move_nodes(self.size, self._buffer, self._moved, row_moved)
        step.move_runs(ids, self._runs, self._partitions, self._moved, row_moved)
        if self._folds:
            step.move_links(ids, min(len(row_moved), len(self._links.prior)), self._links, row_moved)
        self._counters[Counters.NODES] = self._live
        self._entered = False  # nodes have other numbers

    def idle(self, partitions: int) -> np.ndarray:
        """Returns, per partition, True if it has no run and no waiting match, bool (partitions,)."""
        return (self._partitions.head[:partitions] < 0) & ~self._partitions.queued[:partitions]

    def forget(self, ids: Int64Array) -> None:
        """Resets idle partitions to their state before the first row."""
        for array, new in zip(self._partitions, layout.new_partitions(1), strict=True):
            array[ids] = new[0]
        if self._folds:
            self._links.last[ids] = -1
        if self._dominated is not None:
            self._dominated.length[ids] = LEAST_PRUNED

    def _lengths(self, partition: Int64Array) -> Int64Array:
        """See BufferedRuns."""
        return np.asarray(self._partitions.length[partition])

    def _room_for_runs(self, partition: int) -> int:
        """See BufferedRuns."""
        c = self._counters
        calm = int(self._partitions.calm_length[partition])
        length = int(self._partitions.length[partition]) - calm
        if c[Counters.LAST_PARTITION] >= 0:
            length += int(self._partitions.length[c[Counters.LAST_PARTITION]])
        most = (length + 2) * (int(self._tables.parameters[Parameters.DEGREE]) + 1) + calm
        if c[Counters.FREE] < 2 * most:
            capacity = max(2 * len(self._runs.state), len(self._runs.state) + 2 * most)
            self._runs, c[Counters.FREE] = layout.grown_runs(self._runs, capacity, int(c[Counters.FREE]))
        waiting = self._waiting
        if waiting is not None and waiting.used[0] + most * len(waiting.label) > len(waiting.item):
            self._enter_all(most * len(waiting.label))
        return most

    def snapshot(self) -> Arrays:
        own = {"stamp": self._scratch.stamp, "visited": self._scratch.visited}
        if self._folds:
            rows = int(self._links.last.max(initial=-1)) + 1
            own |= named("links", self._links._replace(prior=self._links.prior[:rows]))
        return super().snapshot() | own | named("runs", self._runs) | named("partitions", self._partitions)

    def restore(self, arrays: Arrays) -> None:
        super().restore(arrays)
        self._dropped = True
        runs = fields("runs", layout.LinkedRuns, arrays)
        self._runs = layout.LinkedRuns(registers_f=runs["registers"].view(np.float64), **runs)  # one memory
        self._partitions = layout.Partitions(**fields("partitions", layout.Partitions, arrays))
        if "links.last" in arrays:
            self._links = layout.Links(**fields("links", layout.Links, arrays))
        elif self._folds:
            self.unfold()
        self._scratch.stamp[:] = arrays["stamp"]
        self._scratch.visited[:] = arrays["visited"]
        self._entered = False

    # ---- partitions that leave memory: see matching.engines.engine.Spillable

    @property
    def _item_bytes(self) -> int:
        return 76 + 8 * self._runs.registers.shape[1]

    @property
    def used_bytes(self) -> int:
        items = len(self._runs.state) - int(self._counters[Counters.FREE])
        return self._item_bytes * items + self.node_bytes * self.size

    def states(self, ids: Int64Array) -> Int64Array:
        head = self._partitions.head[ids]
        return np.where(head >= 0, np.maximum(self._runs.state[np.maximum(head, 0)], 0), -1)

    def weigh(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        items = self._item_bytes * self._partitions.length[ids]
        return items + self._weigh_nodes(store, ids, place)

    def _items(self, ids: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns the items of partitions in order, and the beginnings of each."""
        bounds = bounds_of(self._partitions.length[ids])
        items = np.empty(int(bounds[-1]), np.int64)
        step.items_of(ids, bounds, self._runs, self._partitions, items)
        return items, bounds

    def copy_out(self, store: RowStore, leaving: Leaving) -> Blocks:
        ids, n = leaving.ids, len(leaving.ids)
        nodes, kept = self._nodes_out(store, leaving)
        items, bounds = self._items(ids)
        of = owners(bounds)
        runs = {name: getattr(self._runs, name)[items] for name in ITEM}
        runs["row"] = leaving.rows.places(runs["row"], of)
        runs["node"] = nodes.places(runs["node"], of)
        bad = nodes.places(runs["nearest_bad"] - 1, of) + 1
        runs["nearest_bad"] = np.where(runs["state"] >= 0, bad, 0)
        one = {name: getattr(self._partitions, name)[ids] for name in PARTITION}
        one["nearest_bad"] = nodes.places(one["nearest_bad"] - 1, np.arange(n)) + 1
        return {"one": RecordBlock(one_each(n), one), "runs": RecordBlock(bounds, runs), "nodes": kept}

    def leave(self, ids: Int64Array) -> None:
        items, _ = self._items(ids)
        free = int(self._counters[Counters.FREE])
        self._runs.free[free : free + len(items)] = items
        self._counters[Counters.FREE] = free + len(items)
        queued = self._partitions.queued[ids]
        self.forget(ids)
        self._partitions.queued[ids] = queued
        self._entered = False

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        ids, n, self._dropped = coming.ids, len(coming.ids), True
        if self._folds:
            self._room_for_rows(coming.count)
            step.link_block(ids, coming.rows, coming.count, self._links)
        base = self._nodes_in(coming, blocks["nodes"])
        one, runs, bounds = blocks["one"].columns, dict(blocks["runs"].columns), blocks["runs"].bounds
        count, of = int(bounds[-1]), owners(bounds)
        free = int(self._counters[Counters.FREE])
        if free < count:
            capacity = max(2 * len(self._runs.state), len(self._runs.state) + count)
            self._runs, free = layout.grown_runs(self._runs, capacity, free)
        slots = self._runs.free[free - count : free][::-1].copy()
        self._counters[Counters.FREE] = free - count
        runs["row"] = anew(runs["row"], coming.rows, of)
        runs["node"] = anew(runs["node"], base, of)
        runs["nearest_bad"] = anew(runs["nearest_bad"] - 1, base, of) + 1
        for name in ITEM:
            getattr(self._runs, name)[slots] = runs[name]
        following = np.append(slots[1:], -1)
        following[bounds[1:][np.diff(bounds) > 0] - 1] = -1
        self._runs.next[slots] = following[: len(slots)]
        for name in PARTITION:
            getattr(self._partitions, name)[ids] = one[name]
        some, calm = np.diff(bounds) > 0, one["calm_length"]
        known = np.append(slots, -1)
        self._partitions.head[ids] = np.where(some, known[bounds[:-1]], -1)
        self._partitions.calm[ids] = np.where(calm > 0, known[bounds[:-1] + calm - 1], -1)
        self._partitions.nearest_bad[ids] = anew(one["nearest_bad"] - 1, base, np.arange(n)) + 1
        self._entered = False
        if self.program.within_us is not None:  # of runs from another matcher
            new = ids[some & ~self._partitions.queued[ids]]
            first = self._runs.ts[self._partitions.head[new]]
            skip_till.queue(new, first + self.program.within_us, self._heap, self._counters)
            self._partitions.queued[new] = True

    def registers(self, blocks: Blocks) -> np.ndarray | None:
        return blocks["runs"].columns["registers"]


def _dominated(program: Program, found: Dominance) -> dominated.Dominated:
    """Returns the tables by which runs are dropped."""
    live = np.zeros((len(program.accept), len(program.registers)), np.bool_)
    for state, registers in enumerate(found.live):
        live[state, list(registers)] = True
    floating = np.array([r.lane.floating for r in program.registers], np.bool_)
    none, better, caps = np.zeros(0, np.int64), np.array(found.better, np.int64), np.array(found.caps, np.int64)
    safe, positive = np.array(found.safe, np.int64).reshape(-1, 2), np.array(found.positive, np.bool_)
    return dominated.Dominated(live, better, caps, floating, np.bool_(found.of_start), safe, positive, none, none)


#: The fields of an item except links, and of a partition except positions of items and of the deadline heap.
ITEM = ("state", "first", "ts", "row", "node", "valid", "nearest", "nearest_bad", "registers")
PARTITION = ("length", "ordinal", "number", "resume", "nearest", "nearest_bad", "calm_length")
