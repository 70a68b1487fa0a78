"""The engine that counts the trends of many queries at once, by a sharing plan (matching.kernels.shared_trends)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import NONE_BAD, Arrays, ClosedWindows, EnginePlan
from matching.engines.run_trends import END, GROWTH_BITS, LIMBS_MAX, in_order, sums_of, wider
from matching.kernels import shared_trends as kernels
from matching.kernels.layout import grown
from matching.kernels.shared_trends import Room, Sets, SharedCounter, SharedNode
from matching.kernels.trends import Shape
from matching.program.trends import FLOAT, LEAST, WHOLE
from matching.store import RowStore
from matching.workload.plan import SharingPlan
from matching.workload.program import WorkloadTable
from matching.workload.template import START, Template
from query.errors import DataError

#: Initial room for nodes, columns and rows of output.
ROOM = 1 << 8
#: No set splits by itself.
NEVER = 1 << 40

_OF_NODES = ("nodes", "heads", "counts", "versions", "gates")


class SharedTrends:
    """The records of a workload by partition, window, set of the plan and snapshot. It keeps no rows; its own are
    those of `closed`, by query."""

    name = "counts of trends by state, window and snapshot"
    tag = "shared trends"
    by_test = False
    defers = False
    specialises = False
    settles = False
    stuck = 0
    size = 0
    decided = 0

    def __init__(self, chosen: EnginePlan) -> None:
        assert chosen.workload is not None
        table = self._table = chosen.workload.table
        plan = self.plan = chosen.workload.plan
        self._sets = sets_of(table, plan, chosen.workload.splits)
        self._rows_max = _rows_max(self._sets)
        self._sums = sums_of(table.sums)
        self._slots = -(-table.within_us // table.slide_us)
        least = dict.fromkeys(s.value for s in table.of_kind(LEAST))
        self._in_order = [v for v in least if table.features[v][1].floating]
        self._masks = _kind_masks(table.template)
        self._shape = self._shape_of(1)
        counters = np.zeros(len(SharedCounter), np.int64)
        counters[SharedCounter.FREE] = kernels.NONE
        counters[SharedCounter.VALUE_BITS] = GROWTH_BITS
        columns, sets, ops = self._shape.alive + 1, len(plan.sets), len(self._sets.op_set)
        widest = max(len(table.tables), max(len(s.queries) for s in plan.sets)) + 1
        self._room = Room(
            np.zeros((ROOM, len(SharedNode)), np.int64), np.zeros((ROOM, sets), np.int64),
            np.zeros((ROOM, sets), np.int64), np.zeros((ROOM, int(self._sets.cells.sum())), np.int64),
            np.zeros((ROOM, ops), np.int64), np.full((0, self._slots), kernels.NONE, np.int32),
            np.full(self._slots, kernels.NONE, np.int64), np.zeros((ROOM, 4), np.int64),
            np.full(3 * sets, kernels.NONE, np.int64), np.zeros((ROOM, columns), np.int64),
            np.zeros((ROOM, 3 + columns), np.int64), np.zeros((widest, columns), np.int64), counters,
        )  # fmt: skip

    def _shape_of(self, limbs: int) -> Shape:
        whole, floats, least = (len(self._table.of_kind(kind)) for kind in (WHOLE, FLOAT, LEAST))
        first = (1 + whole) * limbs
        return Shape(1 + whole, limbs, first, first + floats, first + floats + least, first + floats + 2 * least)

    @property
    def _counters(self) -> Int64Array:
        return self._room.counters

    @property
    def snapshots(self) -> int:
        """Returns the number of snapshots made so far."""
        return int(self._counters[SharedCounter.SNAPSHOTS])

    @property
    def opened(self) -> int:
        """Returns the number of windows of partitions opened so far."""
        return int(self._counters[SharedCounter.OPENED])

    def reserve(self, partitions: int) -> None:
        have = len(self._room.of)
        if partitions > have:
            of = grown(self._room.of, max(partitions, 2 * have), kernels.NONE)
            self._room = self._room._replace(of=of)

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """See matching.engines.engine.Engine.run. Raises DataError if a number needs more than LIMBS_MAX limbs."""
        partition, ts, valid = store.partition[positions], store.ts[positions], feature_valid
        doubles = feature.view(np.float64)
        values = self._values(feature, doubles, valid)
        kind = self._kinds(mask)
        at, count = 0, len(mask)
        while at < count:
            at, status = kernels.step(
                at, count, partition, mask, kind, ts, values, doubles, valid, self._sets, self._sums, self._shape,
                self._room, self._rows_max,
            )  # fmt: skip
            self._make_room(status)

    def _make_room(self, status: int) -> None:
        room = self._room
        match status:
            case kernels.MORE_NODES:
                self._grow(_OF_NODES, 2 * len(room.nodes) + self._slots)
            case kernels.MORE_LIMBS:
                self._more_limbs()
            case kernels.MORE_OUTPUT:
                self._grow(("out",), 2 * len(room.out) + len(self._table.tables))
            case kernels.MORE_RECORDS:
                self._grow(("records",), 2 * len(room.records) + self._rows_max)
                self._grow(("columns",), 2 * len(room.columns) + 3 * len(self._sets.cells) + len(self._sets.op_set))

    def _kinds(self, mask: Int64Array) -> Int64Array:
        """Returns the kind of each event, NONE where no condition holds."""
        kind = np.full(len(mask), kernels.NONE, np.int64)
        for k, bits in enumerate(self._masks):
            kind[mask & bits != 0] = k
        return kind

    def _values(self, feature: np.ndarray, doubles: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """See RunTrends._values."""
        added = [s.value for s in self._table.of_kind(WHOLE) if s.value >= 0 and not s.ones]
        if added and feature.shape[1]:
            of = np.where(valid[added], feature[added], 0)
            bits = GROWTH_BITS + max(int(of.max()), -int(of.min())).bit_length()
            if bits > self._counters[SharedCounter.VALUE_BITS]:
                self._counters[SharedCounter.VALUE_BITS] = bits
                self._room.nodes[:, SharedNode.FULL] = 1  # one limb more is room for 63 bits more
        if not self._in_order:
            return feature
        values = feature.copy()
        values[self._in_order] = in_order(doubles[self._in_order])
        return values

    def _grow(self, names: tuple[str, ...], rows: int) -> None:
        self._room = self._room._replace(**{name: grown(getattr(self._room, name), rows) for name in names})

    def _more_limbs(self) -> None:
        old, room = self._shape, self._room
        if 2 * old.limbs > LIMBS_MAX:
            raise DataError(
                f"a count of trends has more than {64 * LIMBS_MAX:,} bits",
                "shorten WITHIN, or make the conditions of the pattern stricter",
            )
        self._shape = self._shape_of(2 * old.limbs)
        out = np.concatenate([room.out[:, :3], wider(room.out[:, 3:], old)], axis=1)
        self._room = room._replace(records=wider(room.records, old), gathered=wider(room.gathered, old), out=out)

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Closes the windows that end at the watermark or before."""
        self._close((watermark_us - self._sets.within_us) // self._sets.slide_us + 1)

    def finish(self, partitions: int) -> None:
        """Closes all windows."""
        self._close(END)

    def _close(self, window: int) -> None:
        if self._counters[SharedCounter.LIVE]:
            while (
                status := kernels.close_before(window, self._sets, self._sums, self._shape, self._room)
            ) != kernels.DONE:
                self._make_room(status)

    def closed(self) -> list[ClosedWindows]:
        """Returns the rows of closed windows of each query, in the order of windows, and forgets them."""
        out, shape = self._room.out[: self._counters[SharedCounter.OUT]].copy(), self._shape
        self._counters[SharedCounter.OUT] = 0
        found = []
        for q in range(len(self._table.tables)):
            mine = out[out[:, 0] == q]
            record = mine[:, 3:]
            found.append(ClosedWindows(
                mine[:, 1], mine[:, 2], record[:, : shape.floats].reshape(len(mine), shape.whole, shape.limbs),
                np.ascontiguousarray(record[:, shape.floats : shape.least]).view(np.float64),
                record[:, shape.least : shape.there], record[:, shape.there : shape.alive] != 0,
            ))  # fmt: skip
        return found

    def decode(self, store: RowStore, out: Decode) -> None:
        """Does nothing: there are no matches to write; see `closed`."""
        out.begin(0)
        out.room(0)

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Does nothing: no count reads a row again."""

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Does nothing: no count refers to a row."""

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions have an open window."""
        return np.asarray((self._room.of[partition] >= 0).any(axis=1))

    def idle(self, partitions: int) -> np.ndarray:
        """True if a partition has no open window, and no row of a closed one is pending."""
        idle = np.asarray(~(self._room.of[:partitions] >= 0).any(axis=1))
        idle[self._room.out[: self._counters[SharedCounter.OUT], 1]] = False
        return idle

    def forget(self, ids: Int64Array) -> None:
        """Does nothing: an idle partition has no counts."""

    def numbers(self, partitions: int) -> Int64Array:
        """Returns 0: trends have no numbers."""
        return np.zeros(partitions, np.int64)

    def snapshot(self) -> Arrays:
        room, counters = self._room, self._counters
        used = int(counters[SharedCounter.USED])
        arrays = {name: array for name, array in room._asdict().items() if name != "gathered"}
        arrays |= {name: getattr(room, name)[:used] for name in _OF_NODES}
        arrays["columns"] = room.columns[: counters[SharedCounter.COLUMNS_USED]]
        arrays["records"] = room.records[: counters[SharedCounter.RECORDS_USED]]
        return arrays | {"out": room.out[: counters[SharedCounter.OUT]]}

    def restore(self, arrays: Arrays) -> None:
        columns, limbs = arrays["records"].shape[1], 1
        while self._shape_of(limbs).alive + 1 < columns:
            limbs *= 2
        self._shape = self._shape_of(limbs)
        self._room = Room(**arrays, gathered=np.zeros((len(self._room.gathered), columns), np.int64))
        self._grow(_OF_NODES, max(ROOM, len(self._room.nodes)))
        for name in ("columns", "records", "out"):
            self._grow((name,), max(ROOM, len(getattr(self._room, name))))


def _kind_masks(template: Template) -> list[int]:
    """Returns the conditions of each kind of event: of a type, or all if an event may be of two types."""
    every = kinds_of(template)
    masks = [0] * (max(every) + 1)
    for path in template.queries:
        for node, label in path.labels.items():
            masks[every[node]] |= 1 << label
    return masks


def kinds_of(template: Template) -> list[int]:
    """Returns the kind of the events of each node."""
    if not template.exclusive:
        return [0] * len(template.nodes)
    types = list(dict.fromkeys(node.type for node in template.nodes))
    return [types.index(node.type) for node in template.nodes]


def order_of(template: Template, kind: int) -> list[int] | None:
    """Returns the nodes of a kind so that each is before those that its events come from, None if they are a cycle: an
    event then reads what was there before it."""
    kinds = kinds_of(template)
    left = [n for n, k in enumerate(kinds) if k == kind]
    reads = {n: {a for path in template.queries for a, b in path.edges if b == n and a != n} for n in left}
    out: list[int] = []
    while left:
        ready = [n for n in left if not any(n in reads[m] for m in left)]
        if not ready:
            return None
        out += ready
        left = [n for n in left if n not in ready]
    return out


@dataclass(slots=True)
class _Ops:
    """Lists of what comes to cells, as of kernels.Sets."""

    kind_begin: list[int]
    ops: list[tuple[int, int, int, bool, bool, bool]]
    entry: list[int]
    label: list[int]
    source: list[int]
    sources: list[tuple[int, int, int, bool]]
    inside: list[int]
    inside_cell: list[int]
    outside: list[int]
    outside_at: list[int]


def sets_of(table: WorkloadTable, plan: SharingPlan, split: bool = True) -> Sets:
    """Returns the tables of a plan."""
    template = table.template
    where = plan.set_of()
    cell = [{n: i for i, n in enumerate(s.nodes)} for s in plan.sets]
    query = [{q: j for j, q in enumerate(s.queries)} for s in plan.sets]
    first = np.cumsum([0, *(len(s.nodes) for s in plan.sets)]).astype(np.int64)
    kinds = kinds_of(template)
    of = _Ops([0], [], [0], [], [0], [], [0], [], [0], [])
    starts = [False] * len(plan.sets)
    for kind in range(max(kinds) + 1):
        order = order_of(template, kind)
        assert order is not None
        for node in order:
            for g, s in enumerate(plan.sets):
                if node not in cell[g]:
                    continue
                paths = [template.queries[q] for q in s.queries]
                common = frozenset.intersection(*(p.before(node) for p in paths))
                inside = [n for n in common if n in cell[g]]
                inside.sort(key=lambda n: n != node)  # an event reads its own cell before it grows
                start = START in common
                starts[g] |= start
                labels = [p.labels[node] for p in paths]
                outside = set()
                for q, p in zip(s.queries, paths, strict=True):
                    before = sorted(p.before(node), key=lambda n: n != node)
                    for n in before:
                        if n == START:
                            of.sources.append((kernels.NONE, 0, 0, start))
                            continue
                        there = where[q, n]
                        passed = there == g and n in inside
                        of.sources.append((there, cell[there][n], query[there][q], passed))
                        if not passed:
                            outside.add(int(first[there]) + cell[there][n])
                    of.source.append(len(of.sources))
                    of.label.append(p.labels[node])
                here = of.sources[of.source[-len(paths) - 1] :]
                gated = not all(passed for _, _, _, passed in here)
                of.ops.append((g, cell[g][node], table.classes[node], len(set(labels)) == 1, start, gated))
                of.entry.append(len(of.label))
                of.inside_cell += [cell[g][n] for n in inside]
                of.inside.append(len(of.inside_cell))
                of.outside_at += sorted(outside)
                of.outside.append(len(of.outside_at))
        of.kind_begin.append(len(of.ops))
    last, last_of = [0], []
    for q, p in enumerate(template.queries):
        last_of += [(where[q, n], cell[where[q, n]][n], query[where[q, n]][q]) for n in sorted(p.last)]
        last.append(len(last_of))

    def numbers(values: list[int]) -> Int64Array:
        return np.array(values, np.int64)

    def column(rows: Sequence[tuple[int, ...]], i: int, dtype: type = np.int64) -> np.ndarray:
        return np.array([row[i] for row in rows], dtype)

    alone = [len(s.queries) == 1 for s in plan.sets]
    limit = [0 if one else len(s.queries) if split else NEVER for one, s in zip(alone, plan.sets, strict=True)]
    return Sets(
        numbers(of.kind_begin), column(of.ops, 0), column(of.ops, 1), column(of.ops, 2), column(of.ops, 3, np.bool_),
        column(of.ops, 4, np.bool_), column(of.ops, 5, np.bool_), numbers(of.entry), numbers(of.label),
        numbers(of.source), column(of.sources, 0), column(of.sources, 1), column(of.sources, 2),
        column(of.sources, 3, np.bool_), numbers(of.inside), numbers(of.inside_cell), numbers(of.outside),
        numbers(of.outside_at), numbers([len(s.nodes) for s in plan.sets]),
        numbers([len(s.queries) for s in plan.sets]), first[:-1].copy(), np.array(starts, np.bool_),
        numbers(limit), numbers([kernels.NONE] * len(plan.sets)), numbers(last),
        column(last_of, 0), column(last_of, 1), column(last_of, 2), table.within_us, table.slide_us,
    )  # fmt: skip


def _rows_max(sets: Sets) -> int:
    """Returns the records that an event of one node may need: each set split once, a column and a snapshot."""
    split = int((2 * sets.cells * sets.queries + sets.cells).sum())
    return split + sum(int(sets.cells[g] + sets.queries[g]) for g in sets.op_set)
