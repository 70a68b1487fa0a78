"""The engine that aggregates over all trends of windows that overlap much, by panes (matching.kernels.panes)."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array
from matching.engines import run_trends
from matching.engines.engine import NONE_BAD, Arrays, ClosedWindows, EnginePlan
from matching.engines.run_trends import (
    END,
    GROWTH_BITS,
    CountsOnly,
    check_bounds,
    in_order,
    moves_of,
    sums_of,
    too_large,
    wider,
)
from matching.kernels import panes as kernels
from matching.kernels.layout import grown
from matching.kernels.pane_columns import End, Pane, PaneCounter, PaneKey, Panes, PaneTimes
from matching.kernels.trend_records import Shape
from matching.program.trends import FLOAT, LEAST, WHOLE
from matching.store import RowStore

#: Initial room for panes, and for what else there is of a kind.
ROOM = 1 << 5
#: Arrays of Panes by what their rows are.
_PANES, _ENDS, _PRODUCTS = ("panes", "matrices"), ("ends", "vectors"), ("products", "widths")
#: Arrays of Panes with numbers as wide as those that are kept, and those that are empty between two batches.
_KEPT = ("vectors", "products")
_SCRATCH = ("fresh", "touched", "suffix", "suffix_widths", "made", "made_widths")


class RunPanes(CountsOnly):
    """Counts of partial trends by partition, pane, and pairs of states. It keeps no rows."""

    name = "counts of trends by state and pane"
    tag = "panes"

    def __init__(self, chosen: EnginePlan) -> None:
        assert chosen.trends is not None
        table = self._table = chosen.trends
        trends = table.trends
        self._moves = moves_of(table)
        self._sums = sums_of(table.sums)
        self._cells = len(self._moves.breaks)
        whole, rest = divmod(trends.within_us, trends.slide_us)
        self._times = PaneTimes(1 + (rest > 0), whole, whole + (rest > 0), rest)
        compared = dict.fromkeys(s.value for s in table.of_kind(LEAST))
        self._in_order = [v for v in compared if table.features[v][1].floating]
        self._shape, self._kept, self._wide = self._shape_of(1), self._shape_of(1), self._shape_of(4)
        counters = np.zeros(len(PaneCounter), np.int64)
        free = [PaneCounter.PANES_FREE, PaneCounter.ENDS_FREE, PaneCounter.PRODUCTS_FREE]
        counters[[*free, PaneCounter.FIRST, PaneCounter.LAST]] = kernels.NONE
        counters[PaneCounter.VALUE_BITS] = GROWTH_BITS
        cells, columns = self._cells, self._kept.alive + 1

        def room(*shape: int) -> Int64Array:
            return np.zeros(shape, np.int64)

        self._store = self._with_scratch(Panes(
            room(ROOM, len(Pane)), room(ROOM, cells * cells, columns), room(ROOM, len(End)),
            room(ROOM, cells, columns), room(0, len(PaneKey)), room(ROOM, cells * cells + 1, columns),
            room(ROOM, cells), room(ROOM, 2 + columns), counters, *[NONE_BAD] * len(_SCRATCH),
        ))  # fmt: skip

    def _shape_of(self, limbs: int) -> Shape:
        """Returns the columns of a record with numbers of so many limbs."""
        whole, floats, least = (len(self._table.of_kind(kind)) for kind in (WHOLE, FLOAT, LEAST))
        first = (1 + whole) * limbs
        return Shape(1 + whole, limbs, first, first + floats, first + floats + least, first + floats + 2 * least)

    def _with_scratch(self, store: Panes) -> Panes:
        """Returns a store with room for what an event adds, and for two matrices."""
        cells, wide = self._cells, self._wide.alive + 1
        return store._replace(
            fresh=np.zeros((cells, self._shape.alive + 1), np.int64), touched=np.zeros(cells, np.bool_),
            suffix=np.zeros((cells * cells, wide), np.int64), suffix_widths=np.zeros(cells, np.int64),
            made=np.zeros((cells * cells, wide), np.int64), made_widths=np.zeros(cells, np.int64),
        )  # fmt: skip

    # ---- Engine

    @property
    def _counters(self) -> Int64Array:
        return self._store.counters

    @property
    def decided(self) -> int:
        return int(self._counters[PaneCounter.OUT])

    def reserve(self, partitions: int) -> None:
        have = len(self._store.keys)
        if partitions > have:
            self._store = self._store._replace(keys=grown(self._store.keys, max(partitions, 2 * have)))

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """See matching.engines.engine.Engine.run. Raises TooManyTrends, and DataError if a bound of a window is no
        TIMESTAMP."""
        partition, ts = store.partition[positions], store.ts[positions]
        doubles = feature.view(np.float64)
        check_bounds(self._table.trends, mask, ts)
        values = self._values(feature, doubles, feature_valid)
        at, count = 0, len(mask)
        while at < count:
            at, status = kernels.step(
                at, count, partition, mask, ts, values, doubles, feature_valid, self._times, self._moves, self._sums,
                self._shape, self._kept, self._wide, self._store,
            )  # fmt: skip
            self._make_room(status)

    def _values(self, feature: np.ndarray, doubles: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Returns whole numbers as they are, and doubles that are compared as int64 in their order; notes the bits of
        the largest whole number that is added."""
        added = [s.value for s in self._table.of_kind(WHOLE) if s.value >= 0 and not s.ones]
        if added and feature.shape[1]:
            of = np.where(valid[added], feature[added], 0)
            largest = max(int(of.max()), -int(of.min()))
            bits = GROWTH_BITS + largest.bit_length()
            if bits > self._counters[PaneCounter.VALUE_BITS]:
                self._counters[PaneCounter.VALUE_BITS] = bits
                self._store.panes[:, Pane.FULL] = 1  # one limb more is room for 63 bits more
        if not self._in_order:
            return feature
        values = feature.copy()
        values[self._in_order] = in_order(doubles[self._in_order])
        return values

    def _make_room(self, status: int) -> None:
        """Makes the room that a kernel has asked for. Raises TooManyTrends."""
        match status:
            case kernels.MORE_PANES:
                self._grow(_PANES)
            case kernels.MORE_FRONT:
                self._grow(_ENDS)
            case kernels.MORE_PRODUCTS:
                self._grow(_PRODUCTS)
            case kernels.MORE_OUTPUT:
                self._grow(("out",))
            case kernels.MORE_LIMBS:
                old, self._shape = self._shape, self._wider(self._shape)
                store = self._store._replace(matrices=wider(self._store.matrices, old))
                self._store = self._with_scratch(store)
            case kernels.MORE_KEPT_LIMBS:
                old, self._kept = self._kept, self._wider(self._kept)
                store = self._store
                # numbers are as wide as `ends` and `widths` say; those of output, and beside products, go on
                out = np.concatenate([store.out[:, :2], wider(store.out[:, 2:], old)], axis=1)
                self._store = store._replace(out=out, **{name: wider(getattr(store, name), old) for name in _KEPT})
            case kernels.MORE_WIDE_LIMBS:
                self._wide = self._wider(self._wide, 4)  # a product before it is known how large it is
                self._store = self._with_scratch(self._store)

    def _wider(self, shape: Shape, times: int = 1) -> Shape:
        """Returns a shape with twice as many limbs. Raises TooManyTrends."""
        if 2 * shape.limbs > times * run_trends.LIMBS_MAX:
            raise too_large()
        return self._shape_of(2 * shape.limbs)

    def _grow(self, names: tuple[str, ...]) -> None:
        arrays = {name: getattr(self._store, name) for name in names}
        self._store = self._store._replace(**{name: grown(a, 2 * max(ROOM, len(a))) for name, a in arrays.items()})

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Closes the windows that end at the watermark or before. Raises TooManyTrends."""
        self.close_before((watermark_us - self._moves.within_us) // self._moves.slide_us + 1)

    def finish(self, partitions: int) -> None:
        """Closes all windows. Raises TooManyTrends."""
        self.close_before(END)

    @property
    def closed_before(self) -> int:
        """Returns the first window that is not closed; before the first event, one before all windows."""
        return int(self._counters[PaneCounter.CLOSED_BEFORE]) if self._counters[PaneCounter.LIVE] else -END

    def close_before(self, window: int) -> None:
        """Closes the windows before `window`. Raises TooManyTrends."""
        if not self._counters[PaneCounter.LIVE]:
            return
        status = -1
        while status != kernels.DONE:
            status = kernels.close_before(
                window, self._times, self._moves, self._sums, self._shape, self._kept, self._wide, self._store
            )
            self._make_room(status)

    def windows(self) -> ClosedWindows:
        """Returns the rows of closed windows, in the order of windows, and forgets them."""
        out = self._store.out[: self.decided].copy()
        self._counters[PaneCounter.OUT] = 0
        return run_trends.closed_windows(out, self._kept)

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions have events of trends in an open window."""
        return np.asarray(self._store.keys[partition, PaneKey.ACTIVE] == 1)

    def idle(self, partitions: int) -> np.ndarray:
        """True if a partition has no event in an open window, and no row of a closed one is pending."""
        idle = np.asarray(self._store.keys[:partitions, PaneKey.ACTIVE] != 1)
        idle[self._store.out[: self.decided, 0]] = False
        return idle

    def snapshot(self) -> Arrays:
        store, counters = self._store, self._counters
        arrays = {name: array for name, array in store._asdict().items() if name not in _SCRATCH}
        of = (PaneCounter.PANES_USED, PaneCounter.ENDS_USED, PaneCounter.PRODUCTS_USED)
        for names, used in zip((_PANES, _ENDS, _PRODUCTS), of, strict=True):
            arrays |= {name: getattr(store, name)[: int(counters[used])] for name in names}
        return arrays | {"out": store.out[: self.decided]}

    def restore(self, arrays: Arrays) -> None:
        def shape(columns: int) -> Shape:
            limbs = 1
            while self._shape_of(limbs).alive + 1 < columns:
                limbs *= 2
            return self._shape_of(limbs)

        self._shape, self._kept = shape(arrays["matrices"].shape[2]), shape(arrays["vectors"].shape[2])
        self._store = self._with_scratch(Panes(**arrays, **dict.fromkeys(_SCRATCH, NONE_BAD)))
        for names in (_PANES, _ENDS, _PRODUCTS, ("out",)):
            self._grow(names)
