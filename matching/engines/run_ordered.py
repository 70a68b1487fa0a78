"""The engine that counts trends whose neighbours are compared, by trees of values (matching.kernels.ordered)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matching.batch import Int64Array
from matching.engines.engine import NONE_BAD, Arrays, EnginePlan
from matching.engines.run_trends import FUNCTIONS, RunTrends, check_bounds, wider
from matching.kernels import ordered as kernels
from matching.kernels.layout import grown
from matching.kernels.ordered import Trees, TreeTable
from matching.kernels.trends import NONE, Counter
from matching.program.trends import Comparison, Computed, TrendTable
from matching.store import RowStore

#: Of a comparison `before function own`, the function of `own function before`.
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


class RunOrdered(RunTrends):
    """Counts of partial trends by partition, window, state, and the value that later events are compared with."""

    name = "counts of trends by state, window and ordered value"
    tag = "ordered trends"

    def __init__(self, chosen: EnginePlan) -> None:
        super().__init__(chosen)
        self._pool = self._pool._replace(entries=np.zeros((len(self._pool.entries), kernels.COLUMNS), np.int64))
        self._tree_table, self._tree_count = tree_table(self._table)
        self._trees = self._fitting(
            np.zeros((0, self._tree_count), np.int64), np.zeros((0, self._shape.alive + 1), np.int64)
        )

    def _fitting(self, roots: Int64Array, below: Int64Array) -> Trees:
        """Returns trees with as much room as the pool has."""
        pool, labels = self._pool, self._pairs.label_count
        cells, columns = pool.cells.shape[1:]
        return Trees(
            grown(roots, len(pool.nodes), NONE), grown(below, len(pool.entries)),
            np.zeros(kernels.DEPTH_MAX, np.int64), np.zeros(columns, np.int64),
            np.zeros((labels, cells, columns), np.int64), np.zeros((labels, cells), np.bool_),
        )  # fmt: skip

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """See RunTrends.run."""
        partition, ts = store.partition[positions], store.ts[positions]
        doubles = feature.view(np.float64)
        check_bounds(self._table.trends, mask, ts)
        values = self._values(feature, doubles, feature_valid)
        at, count = 0, len(mask)
        while at < count:
            at, status = kernels.step(
                at, count, partition, mask, ts, values, feature, doubles, feature_valid, self._moves, self._pairs,
                self._tree_table, self._sums, self._shape, self._pool, self._trees,
            )  # fmt: skip
            self._make_room(status)

    def _grow(self, names: tuple[str, ...], rows: int) -> None:
        super()._grow(names, rows)
        self._trees = self._fitting(self._trees.roots, self._trees.below)

    def _more_limbs(self) -> None:
        old = self._shape
        super()._more_limbs()
        self._trees = self._fitting(self._trees.roots, wider(self._trees.below, old))

    def snapshot(self) -> Arrays:
        used, kept = int(self._counters[Counter.USED]), int(self._counters[Counter.ENTRIES_USED])
        return super().snapshot() | {"roots": self._trees.roots[:used], "below": self._trees.below[:kept]}

    def restore(self, arrays: Arrays) -> None:
        of = {name: arrays[name] for name in ("roots", "below")}
        self._trees = Trees(**of, **dict.fromkeys(("path", "found", "later", "used"), NONE_BAD))
        super().restore({name: a for name, a in arrays.items() if name not in of})


def tree_table(table: TrendTable) -> tuple[TreeTable, int]:
    """Returns the trees of the conditions of a table that is `ordered`, and how many there are."""
    labels, states = table.labels, table.automaton.states
    of = {(before, v): pair for before, v, pair in table.pairs}
    into: dict[int, list[int]] = {}
    for state in states:
        for name, (to, _) in state.takes.items():
            into.setdefault(to, []).append(labels.index(name))
    trees: dict[tuple[int, int, int], int] = {}
    reads: list[list[tuple[int, int, int]]] = [[] for _ in range(len(states) * len(labels))]
    whole = np.ones(len(reads), np.bool_)
    for s, state in enumerate(states):
        before = sorted(set(into.get(s, ())))
        for v in map(labels.index, state.takes):
            if not any((p, v) in of for p in before):
                continue
            whole[s * len(labels) + v] = False
            for p in before:
                pair = of.get((p, v), ((),))
                for one in pair:  # one alternative, or none
                    function, own, previous = _read(one)
                    tree = trees.setdefault((s, p, previous), len(trees))
                    reads[s * len(labels) + v].append((tree, function, own))
    puts: list[list[tuple[int, int]]] = [[] for _ in reads]
    for (s, p, previous), tree in trees.items():
        puts[s * len(labels) + p].append((tree, previous))
    read_tree, read_function, read_value = _columns([r for listed in reads for r in listed], 3)
    put_tree, put_value = _columns([r for listed in puts for r in listed], 2)
    starts = [np.cumsum([0, *map(len, listed)]).astype(np.int64) for listed in (reads, puts)]
    return TreeTable(
        starts[0], read_tree, read_function, read_value, whole, starts[1], put_tree, put_value
    ), len(trees)  # fmt: skip


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> list[Int64Array]:
    return [np.array([row[i] for row in rows], np.int64) for i in range(count)]


def _read(conditions: tuple[Comparison | Computed, ...]) -> tuple[int, int, int]:
    """Returns the function of `own function before`, and the features of both; ALL and NONE of no condition."""
    if not conditions:
        return kernels.ALL, NONE, NONE
    (c,) = conditions
    assert isinstance(c, Comparison)
    if c.left_before:
        return FUNCTIONS[_TURNED[c.function]], c.right, c.left
    return FUNCTIONS[c.function], c.left, c.right
