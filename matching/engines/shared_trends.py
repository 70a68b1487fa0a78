"""The engine that counts the trends of many queries at once, by a sharing plan (matching.kernels.shared_trends)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from matching.batch import Int64Array
from matching.engines.engine import NONE_BAD, Arrays, ClosedWindows, EnginePlan
from matching.engines.run_trends import (
    END,
    GROWTH_BITS,
    LIMBS_MAX,
    CountsOnly,
    check_bounds,
    in_order,
    sums_of,
    too_large,
)
from matching.engines.shared_sets import KINDS, counted_sets, places_of, sets_of
from matching.kernels import shared_trends as kernels
from matching.kernels.layout import grown
from matching.kernels.shared_columns import Room, SharedCounter, SharedNode, lay_out
from matching.kernels.shared_records import Layouts
from matching.program.trends import LEAST, WHOLE, Sum
from matching.store import RowStore
from matching.workload.cost import EventRates

#: Initial room for nodes, columns and rows of output.
ROOM = 1 << 8
#: Records carried over at once from one plan to another.
CARRIED_AT_ONCE = 1 << 15
#: Events after which the limbs in use are looked at: they grow in a window.
LIMBS_EVERY = 500
#: Values make room for so many bits more at once, as each time all nodes get a limb more.
VALUE_STEP = 16

_OF_NODES = ("nodes", "heads", "counts", "gates")


class TooLarge(Exception):
    """A number needs more than LIMBS_MAX limbs. queries: those with the largest ones. position: of the row in the store
    that the others have not taken yet, -1: none; halfway: they have taken it in some of its windows."""

    def __init__(self, queries: frozenset[int]) -> None:
        super().__init__(too_large().message)
        self.queries = queries
        self.position = -1
        self.halfway = False


@dataclass(frozen=True, slots=True)
class Other:
    """Another engine of the same sums, windows and kind of keys, whose queries an engine takes over too. queries: see
    SharedTrends.take_over. partitions: by its partition, that of the engine that takes over."""

    engine: SharedTrends
    queries: Sequence[int]
    partitions: Int64Array


class SharedTrends(CountsOnly):
    """The records of a workload by partition, window, set of the plan and snapshot. It keeps no rows; its own are
    those of `closed`, by query."""

    name = "counts of trends by state, window and snapshot"
    tag = "shared trends"
    decided = 0

    def __init__(self, chosen: EnginePlan) -> None:
        assert chosen.workload is not None
        table = self._table = chosen.workload.table
        plan = self.plan = chosen.workload.plan
        self._sets = sets_of(table, plan, chosen.workload.splitting)
        self._sums = sums_of(table.sums)
        self._slots = -(-table.within_us // table.slide_us)
        least = dict.fromkeys(s.value for s in table.of_kind(LEAST))
        self._in_order = [v for v in least if table.features[v][1].floating]
        self.measured_events = self._span_us = 0
        self._limbs: list[float] = []
        self._last_us: int | None = None
        self.seen = np.zeros(len(table.template.conditions), np.int64)
        self._layouts = self._layouts_of(1)
        counters = np.zeros(len(SharedCounter), np.int64)
        counters[SharedCounter.FREE] = kernels.NONE
        counters[SharedCounter.VALUE_BITS] = GROWTH_BITS
        widest, sets, ops = self._widest, len(self._sets.cells), len(self._sets.op_set)
        shared = int(np.count_nonzero(~self._sets.own))
        self._room = Room(
            np.zeros((ROOM, len(SharedNode)), np.int64), np.zeros((ROOM, sets), np.int64),
            np.zeros((ROOM, shared), np.int64), np.zeros((ROOM, ops), np.int64),
            np.full((0, self._slots), kernels.NONE, np.int32), np.full(self._slots, kernels.NONE, np.int64),
            np.zeros((ROOM, 4), np.int64), np.full(3 * sets, kernels.NONE, np.int64), np.zeros(sets),
            np.zeros(ROOM, np.int64), np.zeros((ROOM, 3 + widest), np.int64),
            np.zeros((len(table.tables), widest), np.int64), counters,
        )  # fmt: skip

    def _layouts_of(self, limbs: int) -> Layouts:
        """Returns the layouts of records with numbers of so many limbs."""
        table, sets = self._table, self._sets
        lists: list[Sequence[int]] = list(table.places)
        lists += [sorted({i for q in s.queries for i in table.places[q]}) for s in counted_sets(self.plan)]
        kinds = [[[_index(table.sums, i) for i in of if table.sums[i].kind == kind] for of in lists] for kind in KINDS]
        count = np.array([[len(of) for of in kind] for kind in kinds], np.int64)
        floats_at = 1 + (1 + count[0]) * limbs
        least_at = floats_at + count[1]
        there_at = least_at + count[2]
        size = there_at + count[2]
        queries = len(table.tables)
        columns, value_at, own_at = [], [], []
        for g in range(len(sets.cells)):
            coefficients = int(sets.cells[g] * size[queries + g])
            value, own = coefficients, 0
            for q in sets.member_query[sets.member[g] : sets.member[g] + sets.queries[g]]:
                value_at.append(value)
                own_at.append(own)
                value += int(size[q])
                own += int(sets.cells[g] * size[q])
            columns += [coefficients, value, own]

        def flat(lists: list[list[int]]) -> tuple[Int64Array, Int64Array]:
            ends = np.cumsum([0, *map(len, lists)]).astype(np.int64)
            return ends, np.array([i for of in lists for i in of], np.int64)

        return Layouts(
            limbs, queries, *flat(kinds[0]), *flat(kinds[1]), *flat(kinds[2]), floats_at, least_at, there_at, size,
            *(np.array(of, np.int64) for of in (columns, value_at, own_at)),
        )  # fmt: skip

    @property
    def _widest(self) -> int:
        """Returns the size of the largest record of a query."""
        return int(self._layouts.size[: self._layouts.queries].max())

    @property
    def _data_max(self) -> int:
        """Returns the room that an event of one node may need: each set split once, a column and a snapshot."""
        columns = self._layouts.column
        return int(2 * columns.sum()) + sum(int(columns[3 * g + 1]) for g in self._sets.op_set if g >= 0)

    @property
    def _counters(self) -> Int64Array:
        return self._room.counters

    @property
    def rows(self) -> int:
        """Returns the number of rows of closed windows."""
        return int(self._counters[SharedCounter.OUT])

    @property
    def limbs(self) -> float:
        """Returns the limbs in use of a number, on average."""
        nodes = self._room.of[self._room.of >= 0]
        return float(self._room.nodes[nodes, SharedNode.WIDTH].mean()) if len(nodes) else 1.0

    @property
    def snapshots(self) -> int:
        """Returns the number of snapshots made so far."""
        return int(self._counters[SharedCounter.SNAPSHOTS])

    @property
    def opened(self) -> int:
        """Returns the number of windows of partitions opened so far."""
        return int(self._counters[SharedCounter.OPENED])

    @property
    def measured_windows(self) -> float:
        """Returns the time since the last call of `measured`, in windows."""
        return max(1, self._span_us) / self._sets.within_us

    def measured(self) -> EventRates:
        """Returns the rates of events since the last call."""
        partitions = max(1, self._counters[SharedCounter.OPEN] / self._slots)
        windows = float(self.measured_windows * partitions)
        limbs = self._limbs or [self.limbs]
        rates = EventRates(tuple((self.seen / windows).tolist()), sum(limbs) / len(limbs), windows)
        self.measured_events, self._span_us, self._limbs = 0, 0, []
        self.seen[:] = 0
        return rates

    def _measure(self, mask: Int64Array, ts: Int64Array) -> None:
        if len(mask):
            self.measured_events += len(mask)
            self._span_us += int(ts[-1]) - (int(ts[0]) if self._last_us is None else self._last_us)
            self._last_us = int(ts[-1])
            kernels.count_labels(mask, self.seen)

    def reserve(self, partitions: int) -> None:
        have = len(self._room.of)
        if partitions > have:
            of = grown(self._room.of, max(partitions, 2 * have), kernels.NONE)
            self._room = self._room._replace(of=of)

    def run(
        self, store: RowStore, positions: Int64Array | slice, mask: Int64Array, feature: np.ndarray,
        feature_valid: np.ndarray, bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        """See matching.engines.engine.Engine.run. Raises TooLarge, and can go on from there;
        and DataError if a bound of a window is no TIMESTAMP."""
        partition, ts, valid = store.partition[positions], store.ts[positions], feature_valid
        doubles = feature.view(np.float64)
        check_bounds(self._table.tables[0].trends, mask, ts)
        values = self._values(feature, doubles, valid)
        self._measure(mask, ts)
        at, count = 0, len(mask)
        while at < count:
            at, status = kernels.step(
                at, count, partition, mask, ts, values, doubles, valid, self._sets, self._sums, self._layouts,
                self._room, self._data_max,
            )  # fmt: skip
            try:
                self._make_room(status)
            except TooLarge as error:
                error.position = positions.start + at if isinstance(positions, slice) else int(positions[at])
                error.halfway = bool(self._counters[SharedCounter.SLOT])
                raise

        missing = self.measured_events // LIMBS_EVERY - len(self._limbs)
        if missing > 0:
            self._limbs += [self.limbs] * missing

    def end_row(self) -> None:
        """Ends a row that was taken in some of its windows: the others do not take it."""
        self._counters[SharedCounter.SLOT] = 0

    def _with_most_bits(self) -> frozenset[int]:
        """Returns the queries with the largest numbers."""
        places = places_of(counted_sets(self.plan))
        read = np.array(list(places.values()), np.int64)
        bits = np.zeros(len(read), np.int64)
        kernels.most_bits(
            self._open_nodes(), read[:, 0].copy(), read[:, 2].copy(), read[:, 1].copy(), self._sets, self._room,
            self._layouts, bits,
        )  # fmt: skip
        return frozenset(q for (q, _), most in zip(places, bits, strict=True) if most == bits.max())

    def _open_nodes(self) -> Int64Array:
        return np.unique(self._room.of[self._room.of >= 0]).astype(np.int64)

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
                self._grow(("data",), 2 * len(room.data) + self._data_max)
                self._grow(("columns",), 2 * len(room.columns) + 3 * len(self._sets.cells) + len(self._sets.op_set))

    def _values(self, feature: np.ndarray, doubles: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """See RunTrends._values."""
        added = [s.value for s in self._table.of_kind(WHOLE) if s.value >= 0 and not s.ones]
        if added and feature.shape[1]:
            of = np.where(valid[added], feature[added], 0)
            largest = max(int(of.max()), -int(of.min())).bit_length()
            bits = GROWTH_BITS + -(-largest // VALUE_STEP) * VALUE_STEP
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
        was, room = self._layouts, self._room
        if 2 * was.limbs > LIMBS_MAX:
            raise TooLarge(self._with_most_bits())
        self._layouts = now = self._layouts_of(2 * was.limbs)
        data = np.zeros(2 * len(room.data), np.int64)  # a record has twice the numbers at most
        end = lay_out(self._sets, room, self._counters[SharedCounter.USED], room.data, data, was, now)
        self._counters[SharedCounter.DATA_USED] = end
        out = np.zeros((len(room.out), 3 + self._widest), np.int64)
        out[:, :3] = room.out[:, :3]
        for q in range(was.queries):
            mine = room.out[:, 0] == q
            out[mine, 3:] = self._laid_out(room.out[mine, 3:], q, was, now)
        gathered = np.zeros((len(room.gathered), self._widest), np.int64)
        self._room = room._replace(data=data, out=out, gathered=gathered)

    def _laid_out(self, records: np.ndarray, q: int, was: Layouts, now: Layouts) -> np.ndarray:
        """Returns records of a query in a layout with more limbs; their numbers continue their sign."""
        out = np.zeros((*records.shape[:-1], self._widest), np.int64)
        out[..., 0] = records[..., 0]
        numbers = int(was.floats_at[q] - 1) // was.limbs
        whole = records[..., 1 : was.floats_at[q]].reshape(*records.shape[:-1], numbers, was.limbs)
        sign = np.repeat(whole[..., -1:] >> 63, now.limbs - was.limbs, axis=-1)
        wide = np.concatenate([whole, sign], axis=-1)
        out[..., 1 : now.floats_at[q]] = wide.reshape(*records.shape[:-1], numbers * now.limbs)
        out[..., now.floats_at[q] : now.size[q]] = records[..., was.floats_at[q] : was.size[q]]
        return out

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Closes the windows that end at the watermark or before."""
        self._close((watermark_us - self._sets.within_us) // self._sets.slide_us + 1)

    def finish(self, partitions: int) -> None:
        """Closes all windows."""
        self._close(END)

    def _close(self, window: int) -> None:
        if self._counters[SharedCounter.LIVE]:
            while (
                status := kernels.close_before(window, self._sets, self._sums, self._layouts, self._room)
            ) != kernels.DONE:
                self._make_room(status)

    @property
    def closed_before(self) -> int | None:
        """Returns the first window that has not been closed; None before the first event."""
        counters = self._counters
        return int(counters[SharedCounter.CLOSED_BEFORE]) if counters[SharedCounter.LIVE] else None

    def close_before(self, window: int) -> None:
        """Closes windows before this one, for which no event can come."""
        self._close(window)

    def closed(self) -> list[ClosedWindows]:
        """Returns the rows of closed windows of each query, in the order of windows, and forgets them."""
        out, of = self._room.out[: self.rows], self._layouts
        self._counters[SharedCounter.OUT] = 0
        order = np.argsort(out[:, 0], kind="stable")
        ends = np.searchsorted(out[order, 0], np.arange(of.queries + 1))
        found = []
        for q in range(of.queries):
            mine = out[order[ends[q] : ends[q + 1]]]
            record, whole = mine[:, 3:], int(of.floats_at[q] - 1) // of.limbs
            found.append(ClosedWindows(
                mine[:, 1], mine[:, 2], record[:, 1 : of.floats_at[q]].reshape(len(mine), whole, of.limbs),
                np.ascontiguousarray(record[:, of.floats_at[q] : of.least_at[q]]).view(np.float64),
                record[:, of.least_at[q] : of.there_at[q]], record[:, of.there_at[q] : of.size[q]] != 0,
            ))  # fmt: skip
        return found

    def take_over(self, old: SharedTrends, queries: Sequence[int], others: Sequence[Other] = ()) -> None:
        """Goes on from another engine over the same rows, in open windows too; that one is unusable then, and the rows
        of its closed windows must have been fetched. queries: for each query the number of the one there that it
        continues, NONE for a new one. others: engines over the same events by rows of their own, with the same windows
        closed; they are unusable then, too. Cost: O(open windows * queries * nodes * columns of their sets)."""
        assert not any(engine.rows for engine in (old, *(o.engine for o in others)))
        self._begin_with(old)
        every = [(old, queries, self._open_nodes(), self._open_nodes())]
        for other in others:
            theirs = other.engine._open_nodes()
            every.append((other.engine, other.queries, theirs, self._opened_like(other, theirs)))
        gone = any(set(range(engine._layouts.queries)) - set(of) for engine, of, _, _ in every)
        places = places_of(counted_sets(self.plan))
        pairs = list(places)
        into = np.array([places[pair] for pair in pairs], np.int64)
        continued = [self._continued(engine, of, pairs) for engine, of, _, _ in every]
        open_nodes = self._open_nodes()
        chunk = max(1, CARRIED_AT_ONCE // max(1, len(pairs)))
        for begin in range(0, len(open_nodes), chunk):
            nodes = open_nodes[begin : begin + chunk]
            values = np.zeros((len(nodes), len(pairs), self._widest), np.int64)
            for (engine, of, theirs, mine), (kept, read) in zip(every, continued, strict=True):
                some = np.flatnonzero(np.isin(mine, nodes))
                here, there = mine[some], theirs[some]
                to = np.searchsorted(nodes, here)
                values = self._carried(engine, of, pairs, kept, read, there, to, values)
                for column in (SharedNode.WIDTH, SharedNode.FULL):
                    most = np.maximum(self._room.nodes[here, column], engine._room.nodes[there, column])
                    self._room.nodes[here, column] = most
            if gone:
                roomy = self._limbs_in(values, pairs) < self._room.nodes[nodes, SharedNode.WIDTH]
                self._room.nodes[nodes[roomy], SharedNode.FULL] = 0
            at = 0
            while at < len(nodes):
                at, status = kernels.load_values(
                    at, nodes, into[:, 0].copy(), into[:, 2].copy(), into[:, 1].copy(), values, self._sets, self._room,
                    self._layouts, self._data_max,
                )  # fmt: skip
                self._make_room(status)

    def _continued(
        self, old: SharedTrends, queries: Sequence[int], pairs: Sequence[tuple[int, int]]
    ) -> tuple[Int64Array, np.ndarray]:
        """Returns which pairs of a query and a node continue those of another engine, and set, query and cell there."""
        where = places_of(counted_sets(old.plan))
        mine, theirs = self._table.template.queries, old._table.template.queries
        # the nodes of a query are in the same order in all templates
        there = {
            (q, n): where[of, m]
            for q, of in enumerate(queries) if of != kernels.NONE
            for n, m in zip(mine[q].labels, theirs[of].labels, strict=True)
        }  # fmt: skip
        kept = [i for i, pair in enumerate(pairs) if pair in there]
        read = np.array([there[pairs[i]] for i in kept], np.int64).reshape(-1, 3)
        return np.array(kept, np.int64), read

    def _carried(
        self, old: SharedTrends, queries: Sequence[int], pairs: Sequence[tuple[int, int]], kept: Int64Array,
        read: np.ndarray, nodes: Int64Array, at: Int64Array, values: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Returns the records of pairs with those of another engine for its nodes, which come to the indices `at`; both
        engines have the same limbs then. kept, read: see `_continued`."""
        while old._layouts.limbs < self._layouts.limbs:
            old._more_limbs()
        records = old._values_of(nodes, read)
        old._continue_sign(records, [queries[pairs[i][0]] for i in kept.tolist()], nodes)
        while self._layouts.limbs < old._layouts.limbs:
            was = self._layouts
            self._more_limbs()
            wide = np.zeros((*values.shape[:2], self._widest), np.int64)
            for i, (q, _) in enumerate(pairs):
                wide[:, i] = self._laid_out(values[:, i], q, was, self._layouts)
            values = wide
        # The sums of a query are in the same order in all workloads, and zeros behind them.
        size = min(values.shape[2], records.shape[2])
        values[at[:, None], kept, :size] = records[..., :size]
        return values

    def _continue_sign(self, records: np.ndarray, queries: Sequence[int], nodes: Int64Array) -> None:
        """Continues the numbers of records of queries to all limbs; they have those of their nodes."""
        of, width = self._layouts, self._room.nodes[nodes, SharedNode.WIDTH][:, None, None, None]
        if not len(nodes) or (width == of.limbs).all():
            return
        above = np.arange(of.limbs) >= width
        for end, at in self._by_numbers(queries):
            whole = records[:, at, 1:end].reshape(len(nodes), len(at), -1, of.limbs)
            last = np.broadcast_to(width - 1, (*whole.shape[:3], 1))
            sign = np.take_along_axis(whole, last, axis=3) >> 63
            records[:, at, 1:end] = np.where(above, sign, whole).reshape(len(nodes), len(at), end - 1)

    def _by_numbers(self, queries: Sequence[int]) -> list[tuple[int, Int64Array]]:
        """Returns the ends of whole numbers in records, and at which indices queries have these."""
        ends = self._layouts.floats_at[np.array(queries, np.int64)]
        return [(int(end), np.flatnonzero(ends == end)) for end in np.unique(ends)]

    def _limbs_in(self, values: np.ndarray, pairs: Sequence[tuple[int, int]]) -> Int64Array:
        """Returns, by node, the limbs that the largest number of its records needs; see `_values_of`."""
        of, most = self._layouts, np.zeros(len(values), np.int64)
        for end, at in self._by_numbers([q for q, _ in pairs]):
            whole = values[:, at, 1:end].reshape(len(values), -1, of.limbs)
            used = (whole != whole[..., -1:] >> 63) * np.arange(1, of.limbs + 1)
            most = np.maximum(most, used.max(axis=(1, 2), initial=0))
        return most

    def _opened_like(self, other: Other, theirs: Int64Array) -> Int64Array:
        """Opens the windows of another engine that are not open here. Returns its nodes here."""
        room = other.engine._room
        partition = other.partitions[room.nodes[theirs, SharedNode.PARTITION]]
        self.reserve(int(partition.max(initial=-1)) + 1)
        self._grow(_OF_NODES, len(self._room.nodes) + len(theirs))
        mine, counters = np.empty(len(theirs), np.int64), other.engine._counters
        window = room.nodes[theirs, SharedNode.WINDOW]
        kernels.open_windows(partition, window, room.nodes[theirs, SharedNode.WIDTH], self._sets, self._room, mine)
        if counters[SharedCounter.VALUE_BITS] != self._counters[SharedCounter.VALUE_BITS]:
            self._room.nodes[:, SharedNode.FULL] = 1  # as in `_values`
        bits = (self._counters[SharedCounter.VALUE_BITS], counters[SharedCounter.VALUE_BITS])
        self._counters[SharedCounter.VALUE_BITS] = max(bits)
        closed = [e.closed_before for e in (self, other.engine) if e.closed_before is not None]
        if closed:
            self._counters[SharedCounter.LIVE], self._counters[SharedCounter.CLOSED_BEFORE] = 1, max(closed)
        return mine

    def _begin_with(self, old: SharedTrends) -> None:
        """Takes the nodes of another engine, without anything in them."""
        room, theirs = self._room, old._room
        counters = theirs.counters.copy()
        counters[[SharedCounter.COLUMNS_USED, SharedCounter.DATA_USED]] = 0
        nodes = theirs.nodes.copy()
        nodes[:, SharedNode.KIND] = kernels.NONE
        n = len(nodes)
        self._room = room._replace(
            nodes=nodes, of=theirs.of.copy(), first=theirs.first.copy(), counters=counters,
            heads=np.full((n, room.heads.shape[1]), kernels.NONE, np.int64),
            counts=np.zeros((n, room.counts.shape[1]), np.int64),
            gates=np.full((n, room.gates.shape[1]), kernels.NONE, np.int64),
        )  # fmt: skip

    def _values_of(self, nodes: Int64Array, read: np.ndarray) -> np.ndarray:
        """Returns the records of pairs, int64 (nodes, pairs, size of the largest one). read: set, query and cell of
        each."""
        at, out = 0, np.zeros((len(nodes), len(read), self._widest), np.int64)
        while at < len(nodes):
            at, status = kernels.values_of(
                at, nodes, read[:, 0].copy(), read[:, 2].copy(), read[:, 1].copy(), self._sets, self._room, self._sums,
                self._layouts, out,
            )  # fmt: skip
            if status != kernels.DONE:
                self._make_room(status)
                at, out = 0, np.zeros((len(nodes), len(read), self._widest), np.int64)
        return out

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions have an open window."""
        return np.asarray((self._room.of[partition] >= 0).any(axis=1))

    def idle(self, partitions: int) -> np.ndarray:
        """True if a partition has no open window, and no row of a closed one is pending."""
        idle = np.asarray(~(self._room.of[:partitions] >= 0).any(axis=1))
        idle[self._room.out[: self._counters[SharedCounter.OUT], 1]] = False
        return idle

    def snapshot(self) -> Arrays:
        room, counters = self._room, self._counters
        used = int(counters[SharedCounter.USED])
        arrays = {name: array for name, array in room._asdict().items() if name != "gathered"}
        arrays |= {name: getattr(room, name)[:used] for name in _OF_NODES}
        arrays["columns"] = room.columns[: counters[SharedCounter.COLUMNS_USED]]
        arrays["data"] = room.data[: counters[SharedCounter.DATA_USED]]
        arrays["limbs"] = np.array([self._layouts.limbs])
        return arrays | {"out": room.out[: self.rows]}

    def restore(self, arrays: Arrays) -> None:
        kept = dict(arrays)
        self._layouts = self._layouts_of(int(kept.pop("limbs")[0]))
        self._room = Room(**kept, gathered=np.zeros((len(self._room.gathered), self._widest), np.int64))
        self._grow(_OF_NODES, max(ROOM, len(self._room.nodes)))
        for name in ("columns", "data", "out"):
            self._grow((name,), max(ROOM, len(getattr(self._room, name))))


def _index(sums: Sequence[Sum], i: int) -> int:
    """Returns the index of a sum among those of its kind."""
    return sum(s.kind == sums[i].kind for s in sums[:i])
