"""The engine that aggregates over all trends of windows, without finding one (matching.kernels.trends)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matching.batch import Int64Array
from matching.decode import Decode
from matching.engines.engine import NONE_BAD, Arrays, ClosedWindows, ConditionFailed, EnginePlan
from matching.kernels import trend_steps
from matching.kernels import trends as kernels
from matching.kernels.layout import STACK, grown
from matching.kernels.trend_records import Shape, TrendSums
from matching.kernels.trends import (
    Counter,
    Entry,
    Pairs,
    PassedOver,
    Pool,
    TrendMoves,
    TrendNode,
)
from matching.limits import check_windows
from matching.program.opcodes import OpCode
from matching.program.trends import FLOAT, LEAST, WHOLE, Comparison, Computed, Sum, TrendTable, values_before
from matching.store import RowStore
from matching.trend_steps import has_steps, steps_of
from query.errors import DataError
from query.language.ast import Selection
from query.plan.trends import Trends

#: Initial room for nodes and rows of output.
ROOM = 1 << 8
#: Most limbs of 64 bits of a number: 10^19,000.
LIMBS_MAX = 1 << 10
#: Bits by which a count may grow with one event, besides those of its value.
GROWTH_BITS = 13
#: Further bits where numbers of so many events are added at once.
ENTRIES_BITS = 27
#: After all windows.
END = 1 << 62
#: A time from which on windows may end after the last TIMESTAMP: two of the longest intervals.
FAR_US = 1 << 61

_POLICY = {Selection.SKIP_TILL_ANY: PassedOver.STAYS, Selection.SKIP_TILL_NEXT: PassedOver.STAYS_UNLESS_WAITED_FOR}
#: Arrays of Pool whose rows are nodes, and those whose rows are entries.
_OF_NODES, _OF_ENTRIES = ("nodes", "cells"), ("entries", "sums")
#: Arrays of Pool that are empty between two batches.
_SCRATCH = ("fresh", "single", "touched")


class TooManyTrends(DataError):
    """Raised if a number needs more than LIMBS_MAX limbs."""


class CountsOnly:
    """The methods of engines that count trends: they find no matches and keep no rows."""

    by_test = False
    defers = False
    specialises = False
    settles = False
    stuck = 0
    size = 0

    def decode(self, store: RowStore, out: Decode) -> None:
        """Does nothing: there are no matches to write."""
        out.begin(0)
        out.room(0)

    def mark(self, store: RowStore, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """Does nothing: no count reads a row again."""

    def move(self, ids: Int64Array, row_moved: Int64Array) -> None:
        """Does nothing: no count refers to a row."""

    def forget(self, ids: Int64Array) -> None:
        """Does nothing: an idle partition has no counts."""

    def numbers(self, partitions: int) -> Int64Array:
        """Returns 0: trends have no numbers."""
        return np.zeros(partitions, np.int64)


def check_bounds(trends: Trends, mask: Int64Array, ts: Int64Array) -> None:
    """Raises DataError if a bound of a window of the rows that are taken is no TIMESTAMP. ts: in order."""
    if len(ts) and max(-int(ts[0]), int(ts[-1])) > FAR_US and (taken := mask != 0).any():
        some = ts[taken]
        for windows in (trends.windows(int(some[0])), trends.windows(int(some[-1]))):
            if windows:  # an event may lie between two of them
                check_windows(windows[0] * trends.slide_us, windows[-1] * trends.slide_us + trends.within_us)


def too_large() -> TooManyTrends:
    """Returns the error of a number that needs more than LIMBS_MAX limbs."""
    message = f"a count of trends has more than {64 * LIMBS_MAX:,} bits"
    return TooManyTrends(message, "shorten WITHIN, or make the conditions of the pattern stricter")


class RunTrends(CountsOnly):
    """Counts of partial trends by partition, window and state. It keeps no rows."""

    name = "counts of trends by state and window"
    tag = "trends"

    def __init__(self, chosen: EnginePlan) -> None:
        assert chosen.trends is not None
        table = self._table = chosen.trends
        self._moves = moves_of(table)
        self._sums = sums_of(table.sums)
        self._pairs = pairs_of(table)
        self._apart = bool(self._pairs.grained.any())
        self._has_steps = has_steps(self._moves, len(table.pairs))
        self._slots = -(-table.trends.within_us // table.trends.slide_us)
        in_order = [s.value for s in table.of_kind(LEAST)]
        in_order += [v for _, _, pair in table.pairs for one in pair for c in one for v in c.values]
        self._in_order = [v for v in dict.fromkeys(in_order) if table.features[v][1].floating]
        self._growth_bits = GROWTH_BITS + ENTRIES_BITS * self._apart
        self._shape = self._shape_of(1)
        counters = np.zeros(len(Counter), np.int64)
        counters[[Counter.FREE, Counter.ENTRIES_FREE]] = kernels.NONE
        counters[Counter.VALUE_BITS] = self._growth_bits
        columns, cells = self._shape.alive + 1, len(self._moves.breaks)
        entries = ROOM if self._apart else 0
        self._pool = self._with_scratch(Pool(
            np.zeros((ROOM, len(TrendNode)), np.int64), np.zeros((ROOM, cells, columns), np.int64),
            np.full((0, self._slots), kernels.NONE, np.int32), np.full(self._slots, kernels.NONE, np.int64),
            np.zeros((entries, len(Entry) + len(self._pairs.kept)), np.int64), np.zeros((entries, columns), np.int64),
            np.zeros((ROOM, 2 + columns), np.int64), NONE_BAD, NONE_BAD, NONE_BAD, counters,
        ))  # fmt: skip
        self._steps = steps_of(self._moves, self._sums, self._shape)

    def _shape_of(self, limbs: int) -> Shape:
        """Returns the columns of a record with numbers of so many limbs."""
        whole, floats, least = (len(self._table.of_kind(kind)) for kind in (WHOLE, FLOAT, LEAST))
        first = (1 + whole) * limbs
        return Shape(1 + whole, limbs, first, first + floats, first + floats + least, first + floats + 2 * least)

    def _with_scratch(self, pool: Pool) -> Pool:
        """Returns a pool with room for what an event adds; it adds by one label first if events are kept."""
        cells, columns = pool.cells.shape[1:]
        fresh, single = (np.zeros((cells, columns), np.int64) for _ in range(2))
        return pool._replace(
            fresh=fresh, single=single if self._apart else fresh, touched=np.zeros((2, cells), np.bool_)
        )

    # ---- Engine

    @property
    def _counters(self) -> Int64Array:
        return self._pool.counters

    @property
    def decided(self) -> int:
        return int(self._counters[Counter.OUT])

    def reserve(self, partitions: int) -> None:
        have = len(self._pool.of)
        if partitions > have:
            of = grown(self._pool.of, max(partitions, 2 * have), kernels.NONE)
            self._pool = self._pool._replace(of=of)

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
        by_steps = self._has_steps and self._counters[Counter.VALUE_BITS] < trend_steps.BITS_MAX
        while at < count:
            if by_steps:
                at, status = trend_steps.step(
                    at, count, partition, mask, ts, values, doubles, feature_valid, self._steps, self._sums,
                    self._shape, self._pool,
                )  # fmt: skip
            else:
                at, status = kernels.step(
                    at, count, partition, mask, ts, values, feature, doubles, feature_valid, self._moves, self._pairs,
                    self._sums, self._shape, self._pool,
                )  # fmt: skip
            by_steps = by_steps and status != trend_steps.SEVERAL_LABELS
            self._make_room(status)
            if status == kernels.FAILED:
                position = positions.start + at if isinstance(positions, slice) else int(positions[at])
                failed = ConditionFailed(position, int(self._counters[Counter.FAILED_LABEL]))
                failed.index = at
                raise failed

    def _make_room(self, status: int) -> None:
        """Makes the room that a kernel has asked for. Raises TooManyTrends."""
        match status:
            case kernels.MORE_NODES:
                self._grow(_OF_NODES, 2 * len(self._pool.nodes) + self._slots)
            case kernels.MORE_LIMBS:
                self._more_limbs()
            case kernels.MORE_OUTPUT:
                self._room_for_output()
            case kernels.MORE_ENTRIES:
                more = self._slots * self._pairs.label_count * self._moves.states
                self._grow(_OF_ENTRIES, 2 * len(self._pool.entries) + more)

    def _values(self, feature: np.ndarray, doubles: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Returns whole numbers as they are, and doubles that are compared as int64 in their order; notes the bits of
        the largest whole number that is added."""
        added = [s.value for s in self._table.of_kind(WHOLE) if s.value >= 0 and not s.ones]
        if added and feature.shape[1]:
            of = feature[added] if valid[added].all() else np.where(valid[added], feature[added], 0)
            largest = max(int(of.max()), -int(of.min()))
            bits = self._growth_bits + largest.bit_length()
            if bits > self._counters[Counter.VALUE_BITS]:
                self._counters[Counter.VALUE_BITS] = bits
                self._pool.nodes[:, TrendNode.FULL] = 1  # one limb more is room for 63 bits more
        if not self._in_order:
            return feature
        values = feature.copy()
        values[self._in_order] = in_order(doubles[self._in_order])
        return values

    def _grow(self, names: tuple[str, ...], rows: int) -> None:
        self._pool = self._pool._replace(**{name: grown(getattr(self._pool, name), rows) for name in names})

    def _more_limbs(self) -> None:
        old = self._shape
        if 2 * old.limbs > LIMBS_MAX:
            raise too_large()
        self._shape = self._shape_of(2 * old.limbs)
        self._steps = steps_of(self._moves, self._sums, self._shape)
        pool = self._pool
        # numbers of nodes and entries are as wide as Node.WIDTH says; those of the output continue their sign
        out = np.concatenate([pool.out[:, :2], wider(pool.out[:, 2:], old)], axis=1)
        self._pool = self._with_scratch(
            pool._replace(cells=wider(pool.cells, old), sums=wider(pool.sums, old), out=out)
        )

    def _room_for_output(self) -> None:
        need = int(self._counters[Counter.OUT] + self._counters[Counter.OPEN]) + 1
        if need > len(self._pool.out):
            self._grow(("out",), max(need, 2 * len(self._pool.out)))

    def expire(self, watermark_us: int, held: Int64Array) -> None:
        """Closes the windows that end at the watermark or before."""
        self.close_before((watermark_us - self._moves.within_us) // self._moves.slide_us + 1)

    def finish(self, partitions: int) -> None:
        """Closes all windows."""
        self.close_before(END)

    @property
    def closed_before(self) -> int:
        """Returns the first window that is not closed; before the first event, one before all windows."""
        return int(self._counters[Counter.CLOSED_BEFORE]) if self._counters[Counter.LIVE] else -END

    def close_before(self, window: int) -> None:
        """Closes the windows before `window`."""
        if self._counters[Counter.LIVE]:
            self._room_for_output()
            kernels.close_before(window, self._moves, self._sums, self._shape, self._pool)

    def windows(self) -> ClosedWindows:
        """Returns the rows of closed windows, in the order of windows, and forgets them."""
        out = self._pool.out[: self.decided].copy()
        self._counters[Counter.OUT] = 0
        return closed_windows(out, self._shape)

    def busy(self, partition: Int64Array) -> np.ndarray:
        """True if these partitions have trends in an open window."""
        return np.asarray((self._pool.of[partition] >= 0).any(axis=1))

    def idle(self, partitions: int) -> np.ndarray:
        """True if a partition has no open window, and no row of a closed one is pending."""
        idle = np.asarray(~(self._pool.of[:partitions] >= 0).any(axis=1))
        idle[self._pool.out[: self.decided, 0]] = False
        return idle

    def snapshot(self) -> Arrays:
        pool, counters = self._pool, self._counters
        used, kept = int(counters[Counter.USED]), int(counters[Counter.ENTRIES_USED])
        arrays = {name: array for name, array in pool._asdict().items() if name not in _SCRATCH}
        arrays |= {name: getattr(pool, name)[:used] for name in _OF_NODES}
        arrays |= {name: getattr(pool, name)[:kept] for name in _OF_ENTRIES}
        return arrays | {"out": pool.out[: self.decided]}

    def restore(self, arrays: Arrays) -> None:
        columns, limbs = arrays["cells"].shape[2], 1
        while self._shape_of(limbs).alive + 1 < columns:
            limbs *= 2
        self._shape = self._shape_of(limbs)
        self._steps = steps_of(self._moves, self._sums, self._shape)
        self._pool = self._with_scratch(Pool(**arrays, **dict.fromkeys(_SCRATCH, NONE_BAD)))
        self._grow(_OF_NODES, max(ROOM, len(self._pool.nodes)))
        self._grow(_OF_ENTRIES, max(ROOM, len(self._pool.entries)) if self._apart else 0)
        self._grow(("out",), max(ROOM, self.decided))


def closed_windows(out: np.ndarray, shape: Shape) -> ClosedWindows:
    """Returns closed windows, given their rows as kernels write them: partition, window, record of that shape."""
    partition, window, record = out[:, 0], out[:, 1], out[:, 2:]
    return ClosedWindows(
        partition, window, record[:, : shape.floats].reshape(len(out), shape.whole, shape.limbs),
        np.ascontiguousarray(record[:, shape.floats : shape.least]).view(np.float64),
        record[:, shape.least : shape.there], record[:, shape.there : shape.alive] != 0,
    )  # fmt: skip


def wider(records: np.ndarray, old: Shape) -> np.ndarray:
    """Returns records whose numbers have twice as many limbs, which continue their sign."""
    whole = records[..., : old.floats].reshape(*records.shape[:-1], old.whole, old.limbs)
    sign = np.repeat(whole[..., -1:] >> 63, old.limbs, axis=-1)
    wide = np.concatenate([whole, sign], axis=-1).reshape(*records.shape[:-1], 2 * old.floats)
    return np.concatenate([wide, records[..., old.floats :]], axis=-1)


def in_order(doubles: np.ndarray) -> Int64Array:
    """Returns doubles as int64 in the same order, NaN the largest, -0.0 as 0.0."""
    bits = np.where(np.isnan(doubles), np.nan, doubles + 0.0).view(np.int64)
    return np.asarray(np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits))


def out_of_order(ordered: Int64Array) -> np.ndarray:
    """The inverse of `in_order`."""
    return np.where(ordered < 0, ordered ^ np.int64(2**63 - 1), ordered).view(np.float64)


def moves_of(table: TrendTable) -> TrendMoves:
    """Returns the arrays of an automaton."""
    automaton, bit = table.automaton, {name: v for v, name in enumerate(table.labels)}
    states, ends = automaton.states, automaton.ends
    policy = _POLICY.get(table.selection, PassedOver.ENDS)
    takes = [[(bit[v], to, len(states) + end if end >= 0 else -1) for v, (to, end) in s.takes.items()] for s in states]
    finished = _finished(table) if policy is PassedOver.STAYS else frozenset()
    takes = [[(v, to, -1 if to in finished else end) for v, to, end in of] for of in takes]
    breaks = [[(bit[v], to) for v, to in s.violated.items()] for s in states]
    breaks += [[(bit[v], len(states) + to if to >= 0 else -1) for v, to in end.items()] for end in ends]

    def begins(lists: list[list[tuple[int, ...]]]) -> Int64Array:
        return np.cumsum([0, *map(len, lists)]).astype(np.int64)

    def column(lists: list[list[tuple[int, ...]]], i: int) -> Int64Array:
        return np.array([entry[i] for entries in lists for entry in entries], np.int64)

    def bits(lists: list[list[int]]) -> Int64Array:
        return np.array([sum({1 << v for v in of}) for of in lists], np.int64)

    taken: list[list[tuple[int, ...]]] = [list(t) for t in takes]
    broken: list[list[tuple[int, ...]]] = [list(b) for b in breaks]
    of_label = [[(s, to, end) for s, of in enumerate(takes) for v, to, end in of if v == w] for w in bit.values()]
    in_order = [_in_order(of) for of in of_label]
    ordered = [v for v, of in enumerate(in_order) if of]
    alone: list[list[tuple[int, ...]]] = [list(of or ()) for of in in_order]
    return TrendMoves(
        begins(taken), column(taken, 0), column(taken, 1), column(taken, 2), bits([[t[0] for t in of] for of in taken]),
        bits([[bit[v] for v in s.waits] for s in states]), begins(broken), column(broken, 0), column(broken, 1),
        bits([[b[0] for b in of] for of in broken]), np.isin(np.arange(len(states)), automaton.starts),
        np.array([c >= len(states) or c in finished for c in range(len(states) + len(ends))], np.bool_),
        begins(alone), column(alone, 0), column(alone, 1), column(alone, 2), sum(1 << v for v in ordered),
        sum({1 << t[0] for of in taken for t in of}), sum({1 << b[0] for of in broken for b in of}), int(policy),
        len(states), table.trends.within_us, table.trends.slide_us,
    )  # fmt: skip


def _finished(table: TrendTable) -> frozenset[int]:
    """Returns the states whose trends are all finished, each with the event that led there, and stay so: no end of
    their own is needed."""
    automaton = table.automaton
    into: dict[int, set[int]] = {}
    for state in automaton.states:
        for to, end in state.takes.values():
            into.setdefault(to, set()).add(end)
    plain = {e for e, over in enumerate(automaton.ends) if not over}
    return frozenset(
        s for s, ends in into.items() if s >= 0 and ends <= plain and not automaton.states[s].violated
    )


def _in_order(takes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]] | None:
    """Returns takes of one label (state, next state, end) so that each state is read before it grows, None if there is
    no such order."""
    left = list(takes)
    out: list[tuple[int, int, int]] = []
    while left:
        # a state may grow when no take that is left reads it, or only the one that lets it grow
        reads = {s for s, _, _ in left}
        ready = [t for t in left if t[1] == t[0] or t[1] not in reads]
        if not ready:
            return None
        out += ready
        left = [t for t in left if t not in ready]
    return out


#: By function of a comparison, its number in the kernel.
FUNCTIONS = {"is": kernels.IS, "=": kernels.EQUAL, "<>": kernels.UNEQUAL, "<": kernels.LESS, "<=": kernels.LESS_EQUAL,
              ">": kernels.GREATER, ">=": kernels.GREATER_EQUAL}  # fmt: skip


def pairs_of(table: TrendTable) -> Pairs:
    """Returns the arrays of the conditions between two events, and the states whose events are kept for them."""
    n, automaton = len(table.labels), table.automaton
    of = {(before, v): pair for before, v, pair in table.pairs}
    kept = values_before(table.pairs)
    bit = {name: v for v, name in enumerate(table.labels)}
    into: dict[int, set[int]] = {}
    for state in automaton.states:
        for name, (to, _) in state.takes.items():
            into.setdefault(to, set()).add(bit[name])
    broken = [(s, to) for s, state in enumerate(automaton.states) for to in state.violated.values()]
    for _ in automaton.states:  # a state that is left may be left again
        for s, to in broken:
            into.setdefault(to, set()).update(into.get(s, set()))
    grained = np.array([
        any((before, bit[name]) in of for before in into.get(s, ()) for name in state.takes)
        for s, state in enumerate(automaton.states)
    ], np.bool_)  # fmt: skip
    plain = 0
    for name, v in bit.items():
        reads = [s for s, state in enumerate(automaton.states) if name in state.takes]
        leads = [automaton.states[s].takes[name][0] for s in reads]
        if not any(grained[s] for s in (*reads, *(t for t in leads if t >= 0))) and (-1, v) not in of:
            plain |= 1 << v
    alternatives = [of.get((before, v), ()) for before in range(-1, n) for v in range(n)]
    flat = [one for pair in alternatives for one in pair]
    each = [c for one in flat for c in one]

    def place(feature: int, before: bool) -> int:
        return kept.index((feature, False)) if before and feature >= 0 else feature

    def compared(c: Comparison | Computed) -> tuple[int, ...]:
        if isinstance(c, Computed):
            return kernels.COMPUTED, c.code, kernels.NONE, 0, 0
        sides = (c.left, c.left_before), (c.right, c.right_before)
        return (FUNCTIONS[c.function], *(place(*side) for side in sides), *(before for _, before in sides))

    code = [
        (op, kept.index((a, True)) if op == OpCode.REGISTER else a, b) for of in table.code for op, a, b in of
    ]
    constants = np.zeros(len(table.constants), np.int64)
    for i, value in enumerate(table.constants):
        constants[i] = np.float64(value).view(np.int64) if isinstance(value, float) else value
    stack = np.zeros(STACK, np.int64)
    return Pairs(
        np.array([(before, v) in of for before in range(-1, n) for v in range(n)], np.bool_),
        np.cumsum([0, *map(len, alternatives)]).astype(np.int64), np.cumsum([0, *map(len, flat)]).astype(np.int64),
        np.array([compared(c) for c in each], np.int64).reshape(-1, 5),
        np.cumsum([0, *map(len, table.code)]).astype(np.int64), np.array(code, np.int64).reshape(-1, 3),
        constants, constants.view(np.float64), stack, stack.view(np.float64), np.zeros(STACK, np.bool_), stack[:1],
        None, None,
        np.array([v for v, _ in kept], np.int64), np.array([bits for _, bits in kept], np.bool_), grained, plain, n,
    )  # fmt: skip


def sums_of(sums: Sequence[Sum]) -> TrendSums:
    """Returns the arrays of what is added up."""
    whole, floats, least = ([s for s in sums if s.kind == kind] for kind in (WHOLE, FLOAT, LEAST))

    def numbers(values: list[int]) -> Int64Array:
        return np.array(values, np.int64)

    def labels(of: list[Sum]) -> Int64Array:
        return numbers([sum(1 << v for v in s.labels) for s in of])

    return TrendSums(
        numbers([s.value for s in whole]), labels(whole), np.array([s.ones for s in whole], np.bool_),
        numbers([s.value for s in floats]), labels(floats), numbers([s.value for s in least]), labels(least),
        np.array([s.largest for s in least], np.bool_),
    )  # fmt: skip
