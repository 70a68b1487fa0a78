"""The conditions of a program on rows: the rows that the engine needs, their bits of the mask, and what cannot be
computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from matching.array_lanes import Values, truth
from matching.batch import EventBatch, Int64Array
from matching.features import RowValues, duckdb_values
from matching.kernels.layout import grown
from matching.kernels.select import rows_that_matter
from matching.program.lanes import INT64_MAX
from matching.program.opcodes import OpCode
from matching.program.program import Ignore, Program
from matching.rows import Attempt
from matching.store import RowStore
from query.errors import DataError, Overflows
from query.plan.expression import TRUE, Expression, children

#: A block of this many rows, many of them wanted, is taken whole.
DENSE_ROWS_MIN = 256

NO_ROWS = np.zeros(0, np.int64)

#: One kind of condition that rows are tested for: index of its row value (-1: always true), first row, last row of the
#: partition; and its bits of the mask.
_Test = tuple[int, bool, bool, tuple[int, ...]]


class Looked(NamedTuple):
    """The conditions on some rows. wanted: indices of the rows that the engine needs, None: all; of these, tests: for
    each kind of condition whether a row meets it; features: values for registers. failing: positions whose values
    cannot be computed, None: none."""

    tests: list[np.ndarray]
    features: list[Values]
    failing: list[np.ndarray | None] | None
    wanted: Int64Array | None

    def head(self, count: int) -> Looked:
        """Returns them for the first rows, all of them wanted, none of which fails."""
        features = [(v[:count], None if ok is None else ok[:count]) for v, ok in self.features]
        return Looked([met[:count] for met in self.tests], features, None, None)


class Tested(NamedTuple):
    """Rows that conditions were tested on. some: which meet one, or have one that cannot be computed; local: which meet
    each of RowTests.local, None if one cannot be computed."""

    some: np.ndarray
    local: list[np.ndarray] | None


#: No row of a block is wanted.
NOTHING = Looked([], [], None, NO_ROWS)


class Hot:
    """The partitions that may have runs. everywhere: all of them."""

    __slots__ = ("_some", "everywhere")

    def __init__(self) -> None:
        self.everywhere = True
        self._some = np.zeros(0, np.bool_)

    def of(self, partitions: int) -> np.ndarray:
        """Returns, per partition, True if it may have runs; from now on it is told by `put`."""
        if self.everywhere:
            self._some = np.ones(max(partitions, len(self._some)), np.bool_)
            self.everywhere = False
        self._grow(partitions)
        return self._some

    def put(self, ids: Int64Array, hot: np.ndarray | bool, partitions: int) -> None:
        """Notes which of these partitions may have runs; not while `everywhere`. partitions: how many there are."""
        self._grow(partitions)
        self._some[ids] = hot

    def forget(self, ids: Int64Array) -> None:
        """Notes that these partitions have no runs."""
        self._some[ids[ids < len(self._some)]] = False

    def _grow(self, partitions: int) -> None:
        if len(self._some) < partitions:
            self._some = grown(self._some, max(partitions, 2 * len(self._some)))


class RowTests:
    """The conditions of a program, tested on rows.

    by_test: the engine reads a bit for each kind of condition, not for each label. wants_all: it needs all rows.
    wants_meeting: it gets the rows that meet a condition, and no others. local: the row-local conditions, which are the
    first row values. looks_at_runs: which rows are wanted depends on `hot`."""

    def __init__(self, program: Program, by_test: bool, wants_all: bool, wants_meeting: bool = False) -> None:
        self.program = program
        self.hot = Hot()
        self._wants_all = wants_all
        self._wants_meeting = wants_meeting
        self._always = 0
        places = {v: v for v in range(len(program.labels))}
        if by_test:
            places = {v: i for i, same in enumerate(program.tests) for v in same[:1]}
        else:
            self._always = sum(1 << v for v in places if v not in program.tested)
        local: dict[Expression, int] = {}
        self._tests: list[_Test] = []
        first = set(program.edge_variable[program.edge_start[0] : program.edge_start[1]])
        self._first_tests = [i for i, same in enumerate(program.tests) if first.intersection(same)]
        for same in program.tests:
            v = same[0]
            at = -1
            if program.local[v] != TRUE:
                at = local.setdefault(program.local[v], len(local))
            bits = tuple(places[w] for w in same if w in places)
            self._tests.append((at, program.labels[v].first_row, program.labels[v].last_row, bits))
        self.local = tuple(local)
        self._tested = len(program.tested) == len(program.labels)
        self.looks_at_runs = not (wants_meeting or (self._tested and program.ignore is Ignore.NONE))
        #: runs ignore a row that meets no condition
        self.passes_over = self._tested and program.ignore is not Ignore.NONE

    def look(self, store: RowStore, positions: Int64Array | slice, attempt: Attempt, partitions: int) -> Looked:
        """Evaluates the conditions on the rows at `positions`, at least one, given the values that they read."""
        values, failing = attempt
        tests: list[np.ndarray] = []
        for at, first, last, _ in self._tests:
            met = truth(values[at]) if at >= 0 else np.ones(length(positions), np.bool_)
            if first:
                met = met & store.first[positions]
            if last:
                met = met & (store.next[positions] < 0)
            tests.append(met)
        features = values[len(self.local) :]
        fails = any(failed is not None for failed in failing)
        wanted: Int64Array | None
        if self._wants_meeting:
            self.hot.everywhere = True
            wanted = np.flatnonzero(_any([*tests, *(failed for failed in failing if failed is not None)]))
        elif fails or self._wants_all:
            self.hot.everywhere = True
            return Looked(tests, features, failing if fails else None, None)
        else:
            wanted = self._wanted(store, positions, tests, partitions)
        if wanted is None or len(wanted) == length(positions):
            return Looked(tests, features, failing if fails else None, None)
        if not len(wanted):
            return NOTHING
        features = [(v[wanted], None if ok is None else ok[wanted]) for v, ok in features]
        of_wanted = [None if failed is None else failed[wanted] for failed in failing] if fails else None
        return Looked([met[wanted] for met in tests], features, of_wanted, wanted)

    def met(self, store: RowStore, values: RowValues, batch: EventBatch) -> Tested:
        """Looks which rows meet a condition, or have one that cannot be computed. store: empty, of rows that do not
        know their neighbours; values: of `local`."""
        store.show(batch, np.zeros(len(batch), np.int64))
        found, failing = values.attempt(store, slice(0, len(batch)))
        local = [truth(value) for value in found]
        bad = [failed for failed in failing if failed is not None]
        return Tested(_any([*self.of_local(local, len(batch)), *bad]), None if bad else local)

    def of_local(self, local: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
        """Returns, for each kind of condition, which of `count` rows meet it. local: which meet each of `local`; no
        condition reads whether a row is the first or last one."""
        return [local[at] if at >= 0 else np.ones(count, np.bool_) for at, *_ in self._tests]

    def _wanted(
        self, store: RowStore, positions: Int64Array | slice, tests: list[np.ndarray], partitions: int
    ) -> Int64Array | None:
        """Returns the indices of the rows at `positions` that can change the state of partitions; None: take all.
        tests: for each kind of condition whether a row meets it."""
        begins = _any([tests[i] for i in self._first_tests])
        if len(begins) >= DENSE_ROWS_MIN and 16 * int(np.count_nonzero(begins)) > len(begins):
            self.hot.everywhere = True
            if not self.passes_over:
                return None
            meeting = np.flatnonzero(_any(tests))
            return meeting if 2 * len(meeting) <= len(begins) else None
        hot = self.hot.of(partitions)
        if len(begins) >= DENSE_ROWS_MIN and not begins.any() and not hot.any():
            return NO_ROWS
        out = np.empty(len(begins), np.int64)
        passes = self.program.ignore is not Ignore.NONE
        some = _any(tests) if self._tested else np.ones(len(begins), np.bool_)
        count = rows_that_matter(store.partition[positions], begins, some, hot, passes, out)
        return out[:count]

    def mask(self, count: int, tests: list[np.ndarray]) -> Int64Array:
        """Returns the masks of `count` rows. tests: for each kind of condition whether a row meets it."""
        # one byte a row if that is enough: this dominates the time of simple queries
        narrow = len(self.program.labels) < 8
        bits_of: np.ndarray = np.full(count, self._always, np.uint8 if narrow else np.int64)
        for met, (_, _, _, bits) in zip(tests, self._tests, strict=True):
            for bit in bits:
                bits_of |= met.view(np.uint8) << bit if narrow else np.left_shift(met, bit, dtype=np.int64)
        return bits_of.astype(np.int64, copy=False)

    # ---- conditions that cannot be computed

    def bad(self, failing: list[np.ndarray | None], mask: Int64Array) -> Int64Array:
        """Returns, like the mask, the labels whose conditions cannot be computed whatever the match so far is."""
        bad = np.zeros(len(mask), np.int64)
        for label in range(len(self.program.labels)):
            local, *registers = self._reads(label)
            if local >= 0 and (failed := failing[local]) is not None:
                bad |= failed.astype(np.int64) << label
            for index in registers:
                if (failed := failing[index]) is not None:  # read only if the row-local part holds
                    bad |= (failed.astype(np.int64) << label) & mask
        return bad

    def with_failing(self, failing: list[np.ndarray | None], feature_valid: np.ndarray) -> np.ndarray:
        """Returns which features are not null, followed by which of them cannot be computed: an error if a condition
        reads them."""
        wider = np.concatenate([feature_valid, np.zeros_like(feature_valid)])
        for f, failed in enumerate(failing[len(self.local) :]):
            if failed is not None:
                wider[len(feature_valid) + f] = failed
        return wider

    def _reads(self, label: int) -> tuple[int, ...]:
        """Returns indices of row values: the row-local condition of a label (-1: always true), then the values of its
        row that its registers and walks read."""
        program = self.program
        local, variable = program.local[label], program.labels[label].variable
        registers = () if label in program.absent else program.registers
        features = {r.feature for r in registers if not r.variables or variable in r.variables} - {-1}
        if label not in program.absent:
            features |= program.walked_of(variable)
        return (
            self.local.index(local) if local in self.local else -1,
            *(len(self.local) + f for f in sorted(features)),
        )

    def why(self, values: RowValues, store: RowStore, position: int, label: int) -> DataError:
        """Returns the error of a condition at a row of the store."""
        _, failing = values.attempt(store, np.array([position], np.int64))
        features = {len(self.local) + a for op, a, _ in self.program.code[label] if op == OpCode.FEATURE}
        for index in (*self._reads(label), *sorted(features)):
            if index >= 0 and failing[index] is not None:
                return values.why(store, position, index)
        code = self.program.code[label]
        if (refused := self._refused(values, store, label)) is not None:
            return refused
        highest = [self.program.constants[b] for op, _, b in code if op in (OpCode.FIT, OpCode.TO_INTEGER)]
        if highest or any(op == OpCode.REFUSE for op, _, _ in code):
            of = f"the condition of {self.program.labels[label].variable}"
            # the type, or that of a part of the condition, may have more than 64 bits
            wide = INT64_MAX in highest or any(op == OpCode.RESCALE for op, _, _ in code)
            return (Overflows if wide else DataError)(
                f"{of} cannot be computed at {_when(store, position)}: "
                "a cast, or a function, does not take one of its values, or a number is too large",
                "guard it with TRY(...), TRY_CAST or CASE",
            )
        return Overflows(
            f"the condition of {self.program.labels[label].variable} overflows or divides by zero at "
            f"{_when(store, position)}",
            "widen the type (CAST to DOUBLE or HUGEINT) or guard the condition with CASE",
        )


    def _refused(self, values: RowValues, store: RowStore, label: int) -> DataError | None:
        """Returns DuckDB's error of a value of an earlier row, if a condition reads one that cannot be computed."""
        for (op, register, _), (does, _, _) in pairwise(self.program.code[label]):
            if op == OpCode.REGISTER and does == OpCode.REFUSE:
                fails, _ = self.program.features[self.program.registers[register].feature]
                try:
                    duckdb_values([children(fails)[0]], store, slice(0, store.count), values.settings)
                except DataError as error:
                    return error
        return None


def _when(store: RowStore, position: int) -> str:
    """Returns the time of a row, UTC; of rows without one, which have the time 0, words."""
    us = int(store.ts[position])
    return str(np.datetime64(us, "us")).replace("T", " ").removesuffix(".000000") if us else "one of the rows"


def first_failure(values: RowValues, store: RowStore, positions: Int64Array | slice) -> DataError:
    """Returns the error of the first condition that cannot be computed for one of the rows at `positions`."""
    rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
    _, failing = values.attempt(store, positions)
    at, index = min((int(failed.argmax()), i) for i, failed in enumerate(failing) if failed is not None)
    return values.why(store, int(rows[at]), index)


def length(positions: Int64Array | slice) -> int:
    """Returns the number of rows at positions."""
    return positions.stop - positions.start if isinstance(positions, slice) else len(positions)


def _any(tests: list[np.ndarray]) -> np.ndarray:
    """Returns where one of the tests holds; there is at least one."""
    return tests[0] if len(tests) == 1 else np.asarray(np.logical_or.reduce(tests))
