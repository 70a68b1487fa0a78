"""The base of engines that follow runs one by one over a match buffer (matching.kernels.step and skip_till)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from types import ModuleType
from typing import NamedTuple

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
from matching.kernels import layout, match_buffer, step
from matching.kernels.jit import key_of
from matching.kernels.layout import Counters
from matching.kernels.records import due_first
from matching.kernels.trees import ITEMS_MAX
from matching.program.conditions import Wanted
from matching.records import Blocks, Coming, Grouped, Leaving, RecordBlock, anew, owners
from matching.specialise import source_of
from matching.store import RowStore
from query.plan.output import Outcome

#: Items of the trees of walks, at most, unless one run has more.
TREE_ITEMS_MAX = 1 << 22
#: A step of matching.kernels.step or skip_till, or one written out for a program.
Step = Callable[..., tuple[int, int]]


class BufferedRuns(ABC):
    """The runs of all partitions over one shared match buffer. The layout and the end of runs depend on the engine and
    its kernel."""

    by_test = False
    defers = True
    dates = True
    specialises = True
    node_bytes = 18
    _moved: Int64Array  # after `mark`, per node its new number, -1 for dropped ones
    _live: int  # nodes that stay
    settles = False  # the unmatched rows follow from `frontier`
    _kernel: ModuleType
    _rows_unchecked = ROWS_UNCHECKED

    def __init__(self, chosen: EnginePlan) -> None:
        self.chosen = chosen
        program = self.program = chosen.runs
        self._tables = layout.program_arrays(program, chosen.runs_max)
        self._buffer = layout.new_buffer(ROOM)
        self._heap = layout.Heap(np.zeros(ROOM, np.int64), np.zeros(ROOM, np.int64))
        self._decided = layout.new_decided(ROOM, len(program.carries or ()))
        self._scratch = layout.new_scratch(program)
        self._counters = np.zeros(len(Counters), np.int64)
        self._links = layout.Links(*(np.zeros(0, np.int64) for _ in layout.Links._fields))
        self._special: Step | None = None
        self.specialises = program.specialises

    def look_up(self, **tables: np.ndarray) -> None:
        """See matching.engines.engine.LookingUp."""
        self._tables = layout.with_tables(self._tables, tables)

    @property
    def _walked(self) -> layout.WalkArrays | None:
        """Returns what is walked over; None if conditions read no rows of a run but by registers."""
        return self._tables.walked if layout.walks_rows(self.program) else None

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of its own, for each row of the store."""
        return 0

    @abstractmethod
    def _state(self) -> tuple[object, ...]:
        """Returns the arguments of a step after the tables of the program."""

    @property
    @abstractmethod
    def used_bytes(self) -> int:
        """Returns the bytes of runs and nodes."""

    @property
    def _decided_bytes(self) -> int:
        return self.decided * (40 + 8 * len(self.program.carries or ()))

    @property
    def _walks_bytes(self) -> int:
        """Returns the bytes of what walks have found."""
        walked = self._walked
        if walked is None:
            return 0
        return 32 * int(walked.tree[0, 0]) + 8 * (len(walked.roots) + len(walked.found)) * self.size

    @abstractmethod
    def _lengths(self, partition: Int64Array) -> Int64Array:
        """Returns the number of runs of these partitions."""

    @abstractmethod
    def _room_for_runs(self, partition: int) -> int:
        """Makes room for the runs of one more row of this partition. Returns the maximum number of its nodes and
        matches."""

    @cached_property
    def source(self) -> str:
        """Returns the source of a module with the kernel written out for the program."""
        return source_of(self._kernel, self.program, self.chosen.runs_max)

    @cached_property
    def key(self) -> str:
        """Returns the key of that module in the cache, since the source is slow to write."""
        return key_of(self._kernel.__name__, self.program, self.chosen.runs_max)

    def run_by(self, special: Step) -> None:
        """Switches to the step of a module with that source, which is compiled now unless it is in the cache."""
        none, feature = np.zeros(0, np.int64), np.zeros((1, 0), np.int64)
        no_rows = none, none, NONE_BAD, none, none, feature, feature.view(np.float64), np.ones((1, 0), np.bool_)
        special(0, 0, *no_rows, self._tables, *self._state())
        self._special = special

    @property
    def size(self) -> int:
        """Returns the number of nodes in the match buffer, live or not."""
        return int(self._counters[Counters.NODES])

    @property
    def decided(self) -> int:
        """Returns the number of decided matches that are not decoded yet."""
        return int(self._counters[Counters.DECIDED])

    @property
    def stuck(self) -> int:
        """Returns the number of matches from which SKIP TO FIRST / LAST would not have moved on; the scan continued one
        row after their start."""
        return int(self._counters[Counters.STUCK])

    def reserve(self, partitions: int) -> None:
        """Makes room for this many partitions."""
        if partitions + 2 > len(self._heap.deadline):
            self._heap = layout.Heap(*(layout.grown(a, 2 * partitions + 2) for a in self._heap))

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """Takes the rows at `positions` through the kernel. bad: like mask, the labels whose conditions cannot be
        computed for the row; empty if all can. Raises ConditionFailed or OverBudget."""
        partition, ts = store.partition[positions], store.clock[positions]
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        at, begun, upto, count, status = 0, 0, 0, len(mask), step.OK
        given = partition, mask, bad, ts, rows, feature, feature.view(np.float64), feature_valid
        try:
            while at < count:
                if at == upto:
                    run, rows_unchecked = self._next_step(partition[at : at + self._rows_unchecked], len(bad) > 0)
                    begun, upto = at, at + rows_unchecked
                if (walked := self._walked) is not None:
                    self._give_nodes(walked)
                at, status = run(at, upto, *given, self._tables, *self._state())
                if status == step.OK:
                    upto = at
                    self._prune(partition[begun:at])
                    check(self.used_bytes + self._decided_bytes + self._walks_bytes)
                match status:
                    case step.ROOM:
                        if not self._prune(partition[at : at + 1]):
                            self._grow(int(partition[at]))
                    case step.ERROR:
                        self._look_for_failure()
                    case step.BUDGET:
                        one = partition[at : at + 1]
                        # a pass over the list has to be worth it: at least a tenth of the runs are of no use
                        if 9 * self._prune(one, all_of=True) < self._lengths(one)[0]:
                            raise OverBudget
        except Unfinished as stopped:
            stopped.index = at - (status == step.ERROR)
            raise

    def _next_step(self, partition: Int64Array, some_bad: bool) -> tuple[Step, int]:
        """Returns what takes the next rows, which are of these partitions, and how many of them until the next check.
        some_bad: conditions of some rows cannot be computed."""
        steps = np.cumsum(self._lengths(partition))
        rows = max(1, int(np.searchsorted(steps, STEPS_UNCHECKED)))
        return self._kernel.step if self._special is None or some_bad else self._special, rows

    def _prune(self, partition: Int64Array, all_of: bool = False) -> int:
        """Drops runs that are of no use, of those partitions that have many more than when it did; all_of: of all of
        them. Returns their number."""
        return 0

    def _give_nodes(self, walked: layout.WalkArrays) -> None:
        """Gives walks the nodes of runs, room for the rows of one, and for what they find of each node."""
        nodes = self._buffer
        values, count = walked.values, len(nodes.row)
        if len(values) <= count:
            values = np.zeros(count + 1, np.int64)
        roots, found, tree = walked.roots, walked.found, walked.tree
        if roots.shape[1] < count:
            more = count - roots.shape[1]
            roots = np.pad(roots, ((0, 0), (0, more)), constant_values=-1)
            found = np.pad(found, ((0, 0), (0, more)))
        enough = 4 * count + ITEMS_MAX
        if any(walk.wanted < Wanted.LIST for walk in self.program.walks) and (
            len(tree) < enough or (2 * tree[0, 0] > len(tree) and len(tree) < TREE_ITEMS_MAX)
        ):
            tree = layout.grown(tree, max(enough, 2 * len(tree)))
        walked = walked._replace(
            previous=nodes.previous, row=nodes.row, variable=nodes.variable, values=values, roots=roots, found=found,
            tree=tree,
        )  # fmt: skip
        self._tables = self._tables._replace(walked=walked)

    def forget_walks(self) -> None:
        """See matching.engines.engine.LookingUp."""
        if self._walked is not None:
            self._walked.roots[:] = -1
            self._walked.tree[0, 0] = 1

    def _look_for_failure(self) -> None:
        if self._counters[Counters.FAILED_ROW]:
            row, label = self._counters[Counters.FAILED_ROW] - 1, self._counters[Counters.FAILED_LABEL]
            self._counters[Counters.FAILED_ROW] = 0
            raise ConditionFailed(int(row), int(label))

    def _grow(self, partition: int) -> None:
        """Makes room for one more row of this partition, at least doubling the arrays that are short."""
        most = self._room_for_runs(partition)
        if self.size + most > len(self._buffer.row):
            # while an array of nodes is copied it is there twice; what walks read is until the next step
            check(self.used_bytes + (self.used_bytes if self.program.kept else 8 * self.size))
            capacity = max(2 * len(self._buffer.row), self.size + most)
            for name in layout.Buffer._fields:
                longer = layout.grown(getattr(self._buffer, name), capacity)
                self._buffer = self._buffer._replace(**{name: longer})
        if self.decided + most > len(self._decided.node):
            self._more_decided(max(2 * len(self._decided.node), self.decided + most))

    def _more_decided(self, capacity: int) -> None:
        self._decided = layout.Decided(*(layout.grown(a, capacity) for a in self._decided))

    # ---- partitions that leave memory: see matching.engines.engine.Spillable

    def _weigh_nodes(self, store: RowStore, ids: Int64Array, place: Int64Array) -> Int64Array:
        """Returns the bytes of the nodes of each partition."""
        live = np.flatnonzero(self._moved >= 0)
        return self.node_bytes * np.bincount(place[store.partition[self._buffer.row[live]]], minlength=len(ids))

    def _nodes_out(self, store: RowStore, leaving: Leaving) -> tuple[Grouped, RecordBlock]:
        """Returns the nodes of partitions, in their order."""
        count = self.size
        row = self._buffer.row[:count]
        of = np.where(self._moved >= 0, leaving.place[store.partition[row]], -1)
        nodes = Grouped(of, len(leaving.ids))
        items, of = nodes.items, owners(nodes.bounds)
        columns = {
            "previous": nodes.places(self._buffer.previous[items], of).astype(np.int32),
            "row": leaving.rows.local[row[items]].astype(np.int32),
            "variable": self._buffer.variable[items],
        }
        return nodes, RecordBlock(nodes.bounds, columns)

    def unmark(self, store: RowStore, place: Int64Array) -> None:
        """See matching.engines.engine.Spillable."""
        live = np.flatnonzero(self._moved >= 0)
        live = live[place[store.partition[self._buffer.row[live]]] < 0]
        self._moved[:] = -1
        self._moved[live] = np.arange(len(live))
        self._live = len(live)

    def _nodes_in(self, coming: Coming, nodes: RecordBlock) -> Int64Array:
        """Adds nodes after the existing ones; returns the first one of each partition."""
        begin, n = self.size, int(nodes.bounds[-1])
        if begin + n > len(self._buffer.row):
            capacity = max(2 * len(self._buffer.row), begin + n)
            self._buffer = layout.Buffer(*(layout.grown(a, capacity) for a in self._buffer))
        base, of = nodes.bounds[:-1] + begin, owners(nodes.bounds)
        self._buffer.previous[begin : begin + n] = anew(nodes.columns["previous"].astype(np.int64), base, of)
        self._buffer.row[begin : begin + n] = nodes.columns["row"] + coming.rows[of]
        self._buffer.variable[begin : begin + n] = nodes.columns["variable"]
        self._counters[Counters.NODES] = begin + n
        return base

    @abstractmethod
    def registers(self, blocks: Blocks) -> np.ndarray | None:
        """See matching.engines.engine.Spillable."""

    def due(self, watermark_us: int, wanted: np.ndarray) -> Int64Array:
        """Returns those of the wanted partitions in which the watermark may decide a match."""
        count = int(self._counters[Counters.HEAP])
        stack, out = np.empty(count + 1, np.int64), np.empty(count, np.int64)
        n = due_first(watermark_us, count, self._heap.deadline, self._heap.partition, wanted, stack, out)
        return out[:n]

    def decode(self, store: RowStore, out: Decode) -> None:
        """Writes the decided matches into `out` and forgets them."""
        count = self.decided
        self._counters[Counters.DECIDED] = 0
        decided = self._decided
        out.begin(count)
        match_buffer.measure_lengths(decided, count, self._buffer, self._links.prior, out.bounds)
        out.room(int(out.bounds[-1]))
        match_buffer.unroll(
            decided, count, self._buffer, self._links.prior, out.bounds, out.rows, out.variables, store.ts,
            store.source, store.offset, store.seq, out.ts, out.source, out.offset, out.seq,
        )  # fmt: skip
        out.start[:] = decided.row[:count]
        out.partition[:] = decided.partition[:count]
        out.number[:] = decided.number[:count]
        out.waiting[:] = decided.waiting[:count]
        out.outcome[out.waiting >= 0] = Outcome.TIMEOUT
        out.at = decided.at[:count].copy()

    def snapshot(self) -> Arrays:
        return {"counters": self._counters, **named("buffer", self._buffer), **named("heap", self._heap)}

    def restore(self, arrays: Arrays) -> None:
        self._counters = arrays["counters"]
        self._buffer = layout.Buffer(**fields("buffer", layout.Buffer, arrays))
        self._heap = layout.Heap(**fields("heap", layout.Heap, arrays))


#: Tags of the arrays of named tuples in a state, by field: they stay when fields are renamed.
TAGS: Mapping[type[NamedTuple], Mapping[str, str]] = {
    layout.Buffer: {"previous": "previous", "row": "row", "variable": "variable"},
    layout.Heap: {"deadline": "deadline", "partition": "partition"},
    layout.Links: {"prior": "prior", "last": "last"},
    layout.LinkedRuns: {
        "state": "state", "first": "first", "ts": "ts", "row": "row", "node": "node", "next": "next", "valid": "valid",
        "nearest": "nearest", "nearest_bad": "nearest_bad", "registers": "registers", "free": "free",
    },
    layout.Partitions: {
        "head": "head", "length": "length", "ordinal": "ordinal", "number": "number", "resume": "resume",
        "queued": "queued", "nearest": "nearest", "nearest_bad": "nearest_bad", "calm": "calm",
        "calm_length": "calm_length",
    },
}  # fmt: skip


def named(name: str, arrays: NamedTuple) -> Arrays:
    """Returns the arrays of a named tuple, for a state."""
    return {f"{name}.{tag}": getattr(arrays, field) for field, tag in TAGS[type(arrays)].items()}


def fields(name: str, kind: type[NamedTuple], arrays: Arrays) -> Arrays:
    """Returns the inverse of `named`: the arrays by field."""
    return {field: arrays[f"{name}.{tag}"] for field, tag in TAGS[kind].items()}


def group(name: str, arrays: Arrays) -> Arrays:
    """Returns the arrays saved under `name`, by field."""
    return {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
