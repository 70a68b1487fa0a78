"""Answers of DuckDB to kernels: values of functions between rows, computed for many runs at a time.

A kernel that comes upon values whose answer it does not know calls `Answers`. One call of DuckDB costs as much as a
thousand values, so the answers that other runs will ask for soon are computed with it: those of the values at the same
distance, in rows of the partition, of the rows that come next; if the same values are asked again for each row, of
these and of the next rows of the partition; and of the next rows of other partitions, with the values that these asked
for last. Which these are changes no result: what is not known is asked.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from matching.asked_rows import AskedLists, SeenRows, aggregated, is_of_list, of_list
from matching.batch import Int64Array
from matching.features import Codes, attempted, lazy, leaf_sql, project
from matching.kernels import asking
from matching.kernels.asking import FAILS, IS_NULL, IS_VALUE, KEY, KNOWN, NUMBER, ROW, UNKNOWN, VALUE
from matching.kernels.layout import grown
from matching.not_computed import not_computed
from matching.program.conditions import AskedFunction
from matching.program.lanes import DAY_US, OPERANDS_MAX, Lane, Unit
from matching.program.opcodes import OpCode
from matching.program.program import Program
from matching.records import bounds_of, spread
from matching.store import lanes
from matching.walked import KeptValues
from query.errors import DataError
from query.language.duck import Settings
from query.plan.expression import Aggregate, Navigation, to_sql
from query.stopping import heed

#: Lines that are computed together, at least and at most.
FEW, MANY = 64, 1 << 16
#: Rows for which the values of an other row are foreseen, at most: so those of many runs end together.
AHEAD = 256
#: What a call counts in what lines were computed for, beside the one after it.
LATELY = 0.9
#: Lines of the table.
LINES_MIN, LINES_MAX = 1 << 13, 1 << 20
#: Rows whose values are remembered, at least and at most.
REMEMBERED_MIN, REMEMBERED_MAX = 1 << 12, 1 << 16
#: How far back a function's values have been read: so many ways are foreseen together, as runs that began one after the
#: other read at different distances.
BACKS_MAX = 16
#: In how many rows of a partition before one a value is looked for.
FAR = 1 << 12

_numbers = itertools.count(1)
_answering: weakref.WeakValueDictionary[int, Answers] = weakref.WeakValueDictionary()


#: Partitions, features, which of these are not null, positions, masks.
_Block = tuple[Int64Array, np.ndarray, np.ndarray, Int64Array, Int64Array]
#: Lines, and the index of the row of each among those that are seen.
_Foreseen = tuple[np.ndarray, Int64Array]


def _moved(block: _Block, moved: Int64Array) -> _Block:
    """Returns the rows of a block that are kept. moved: by position, the new one, -1 for rows that are gone."""
    partition, feature, valid, position, mask = block
    position = np.where(position < len(moved), moved[np.minimum(position, len(moved) - 1)], -1)
    kept = position >= 0
    return partition[kept], feature[:, kept], valid[:, kept], position[kept], mask[kept]


class _Seen(NamedTuple):
    """The rows of the last blocks. order: their indices by partition; place: of each row in this order; begin: the
    place of the first row of its partition."""

    feature: np.ndarray
    valid: np.ndarray
    order: Int64Array
    place: Int64Array
    begin: Int64Array
    rows: SeenRows


class _Others:
    """The values of other rows with which a function has been asked. line: int64 (n, width), with 0 for those of the
    row; until: (n,), of all rows that came, the last one for which they were foreseen; count: (n,), for how many."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._clear()

    def _clear(self) -> None:
        self._index: dict[tuple[int, bytes], int] = {}
        self._partition = np.zeros(FEW, np.int64)
        self.until, self.count = np.zeros(FEW, np.int64), np.zeros(FEW, np.int64)
        self.line = np.zeros((FEW, self._width), np.int64)

    def place(self, partition: int, line: Int64Array) -> tuple[int, bool]:
        """Returns the index of values, and whether they have been asked before."""
        key = (partition, line.tobytes())
        i = self._index.get(key)
        if i is not None:
            return i, True
        if len(self._index) == MANY // 4:
            self._clear()
        i = self._index[key] = len(self._index)
        if i == len(self.until):
            self._partition, self.until, self.count, self.line = (
                grown(a, 2 * i) for a in (self._partition, self.until, self.count, self.line)
            )
        self._partition[i], self.line[i], self.count[i] = partition, line, 0
        return i, False

    def up_to(self, partition: int, one: int, before: int, row: int, most: int) -> Int64Array:
        """Returns the indices of the values of a partition that are foreseen up to a row, or little further, or up to
        the row before: the last ones, and one that is asked for there."""
        n = len(self._index)
        ends = self.until[:n]
        near = (ends >= before) & (ends <= row + self.count[:n] // 4) & (self._partition[:n] == partition)
        near[one] = False
        return np.append(one, np.flatnonzero(near)[::-1][: most - 1])

    def foreseen(self, row: int, but: Int64Array) -> int:
        """Returns how many lines of rows from one on are foreseen, at most, but for those of some values."""
        n = len(self._index)
        return int(self.count[:n][self.until[:n] >= row].sum() - self.count[but].sum())


def _lines_for(lines: int) -> int:
    """Returns the size of a table that is to have so many lines: few of them lose their places to others."""
    return min(LINES_MAX, max(LINES_MIN, 1 << (4 * lines).bit_length()))


class Answers:
    """The answers that a matcher knows. codes: of its texts. failure: DuckDB's error of the first line that failed."""

    def __init__(self, program: Program, settings: Settings) -> None:
        self._asked = program.asked
        self._program = program
        self._of_nothing: dict[Aggregate, pa.Array] = {}
        self._settings = settings
        self._width = 1 + max(len(asked.operands) + (asked.rows is not None) for asked in program.asked)
        self._out = np.zeros(KEY + 1 + OPERANDS_MAX, np.int64)
        self._out[NUMBER] = next(_numbers)
        _answering[int(self._out[NUMBER])] = self
        self._size = [1024] * len(program.asked)  # lines that are computed together
        #: by function, how many lines the last calls computed, and how many answers were known between them
        self._computed_of, self._known_of = [0.0] * len(program.asked), [0.0] * len(program.asked)
        #: by function, how far back it has read its values, the last ones last
        self._backs: list[dict[tuple[int | None, ...], None]] = [{} for _ in program.asked]
        #: by function and partition, the line that was asked last
        self._held: dict[tuple[int, int], Int64Array] = {}
        self._others = [_Others(self._width) for _ in program.asked]
        #: by function, the row of the block up to which pairs of its rows are foreseen, and how far apart
        self._paired, self._apart = [0] * len(program.asked), [0] * len(program.asked)
        self._came = 0  # rows of all blocks
        #: by function, the row of the block up to which the lines of all partitions are foreseen
        self._foreseen = [0] * len(program.asked)
        self._blocks: list[_Block] = []
        self._seen: _Seen | None = None
        self._error: BaseException | None = None
        self._failed = False
        self.failure: DataError | None = None
        self._of_block = 0  # lines that a block puts into the table: as many as one of the last ones
        self._used = self._before = 0
        self.forget()

    def forget(self) -> None:
        """Forgets all answers."""
        self._note_block()
        self._used = self._before = 0
        self._lists = AskedLists(self._program) if any(asked.rows for asked in self._asked) else None
        self._empty(_lines_for(self._of_block))

    def _empty(self, lines: int) -> None:
        self._keys = np.zeros((lines, self._width), np.int64)
        self._values, self._known = np.zeros(lines, np.int64), np.zeros(lines, np.int8)
        self._row = np.zeros(lines, np.int64)  # of all that came, the one for which a line was foreseen

    @property
    def is_full(self) -> bool:
        """True if everything is to be forgotten before a block of rows begins."""
        return self._lists is not None and self._lists.is_full

    def begin(
        self, codes: Codes, partition: Int64Array, feature: np.ndarray, valid: np.ndarray, position: Int64Array,
        mask: Int64Array, kept: KeptValues | None, nodes: int,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Returns the tables of matching.kernels.asking for the rows of a block. feature, valid: values by row.
        position: of the rows in the row store. kept: what is kept of all rows there. nodes: how many runs have."""
        self._codes, self._seen, self._kept = codes, None, kept
        self._came += len(partition)
        self._foreseen = [0] * len(self._asked)
        self._paired = [0] * len(self._asked)
        self._blocks.append((partition, feature, valid[: len(feature)], position, mask))
        remembered = min(REMEMBERED_MAX, max(REMEMBERED_MIN, 16 * len(partition)))
        while sum(len(block[0]) for block in self._blocks[1:]) > remembered:
            del self._blocks[0]
        self._note_block()
        wanted = _lines_for(max(self._used + self._of_block, 8 * len(partition)))
        if wanted > len(self._known):
            self._grow(wanted)
        of_lists = {} if self._lists is None else self._lists.begin(partition, position, nodes)
        return of_lists | {
            "asked_keys": self._keys, "asked_values": self._values, "asked_known": self._known, "answer": self._out,
        }  # fmt: skip

    def _note_block(self) -> None:
        """Notes how many lines the last block has put into the table."""
        if self._used > self._before:
            self._of_block = max(self._of_block - self._of_block // 8, self._used - self._before)
        self._before = self._used

    def _grow(self, lines: int) -> None:
        keys, values, known, rows = self._keys, self._values, self._known, self._row
        there = np.flatnonzero((known >= FAILS) & (known != UNKNOWN))
        self._empty(lines)
        places = np.empty(len(there), np.int64)
        asking.put_new(keys[there], rows[there], self._keys, self._known, self._row, self._came, places)
        some = np.flatnonzero(places >= 0)
        asking.put_values(places[some], known[there[some]], values[there[some]], self._values, self._known)

    def move(self, moved: Int64Array) -> None:
        """Renumbers rows. moved: by position in the row store, the new one, -1 for rows that are gone."""
        if self._lists is not None:
            self._lists.move(moved)
            # rows that runs keep, so that their lists are foreseen
            self._blocks, self._seen = [kept for block in self._blocks if len((kept := _moved(block, moved))[0])], None

    def end(self) -> None:
        """Raises what has been raised while a kernel asked."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    # ---- called by kernels

    def answer(self) -> int:
        """Computes the line that `_out` asks for, and others; puts its value into `_out`. Returns what is known."""
        if self._error is not None:  # the kernel is about to end
            return FAILS
        try:
            heed()
            return self._answer()
        except BaseException as error:  # noqa: BLE001  kernels know none: it is raised after them
            self._error = error
            return FAILS

    def _answer(self) -> int:
        out = self._out
        which = int(out[KEY]) >> OPERANDS_MAX
        asked = self._asked[which]
        self._known_of[which] = known = LATELY * self._known_of[which] + int(out[KNOWN])
        out[KNOWN] = 0
        size = self._size[which]
        if known >= self._computed_of[which] / 8:
            size = min(MANY, len(self._known) // 4, 4 * size)
        elif known < self._computed_of[which] / 64:
            size = max(FEW, size // 4)
        self._size[which] = size
        line = out[KEY : KEY + self._width].copy()
        seen = self._rows()
        first, row = self._came - len(seen.order), self._came - len(self._blocks[-1][0]) + int(out[ROW])
        soon = self._soon(which, asked, line, seen, int(out[ROW]), size)
        lines = np.concatenate([line[None], *(of for of, _ in soon)])
        rows = np.concatenate([[row], *(first + at for _, at in soon)])
        places = np.empty(len(lines), np.int64)
        asking.put_new(lines, rows, self._keys, self._known, self._row, row, places)
        some = np.flatnonzero(places >= 0)
        assert some[0] == 0, "the line that is asked is not known"
        self._computed_of[which] = LATELY * self._computed_of[which] + len(some)
        try:
            values, now = self._computed(asked, lines[some])
        except DataError:  # not one that TRY catches
            self._known[places[some]] = UNKNOWN
            try:
                values, now = self._computed(asked, line[None])
            except DataError:
                if asked.rows is None:
                    raise
                return FAILS  # an aggregate
            out[VALUE] = values[0]
            return int(now[0])
        asking.put_values(places[some], now, values, self._values, self._known)
        self._used += len(some)
        out[VALUE] = values[0]
        return int(now[0])

    def _computed(self, asked: AskedFunction, lines: np.ndarray) -> tuple[Int64Array, np.ndarray]:
        """Returns the values of lines, and what is known of each."""
        columns, names = {}, {}
        for k, operand in enumerate(asked.operands):
            lane = asked.lanes[k]
            columns[f"v{k}"] = self._column(lines[:, 1 + k], (lines[:, 0] >> k) & 1 == 1, operand.type, lane)
            names[operand] = _sql_of(f"v{k}", operand.type)
        if asked.rows is not None:
            for j, (e, column) in enumerate(zip(asked.rows.aggregates, self._of_lists(asked, lines), strict=True)):
                columns[f"a{j}"] = column
                names[e] = of_list(e, f"a{j}") if is_of_list(e) else leaf_sql(f"a{j}", e.type)
        columns["_"] = pa.nulls(len(lines))
        text = to_sql(lazy(asked.expression), names)
        array, failed = attempted(columns, text, self._settings)
        numbers, valid = lanes(array, asked.lane.floating)
        now = np.full(len(lines), IS_VALUE, np.int8)
        if valid is not None:
            now[~valid] = IS_NULL
        if failed is not None:
            now[failed] = FAILS
            if not self._failed:
                self._failed, self.failure = True, self._why(asked, columns, text, int(failed.argmax()))
        return np.ascontiguousarray(numbers).view(np.int64), now

    def _why(self, asked: AskedFunction, columns: dict[str, pa.Array], text: str, at: int) -> DataError | None:
        """Returns DuckDB's error of a line; None if its number is beyond 64 bits only."""
        try:
            project({name: column.slice(at, 1) for name, column in columns.items()}, [text], DataError, self._settings)
        except DataError as error:
            return not_computed("a condition", [asked.expression], error.message)
        return None

    def _of_lists(self, asked: AskedFunction, lines: np.ndarray) -> list[pa.Array]:
        """Returns the aggregates of a function at each line, or lists of their values (matching.asked_rows)."""
        assert asked.rows is not None
        assert self._lists is not None
        assert self._kept is not None
        numbers = lines[:, 1 + len(asked.operands)]
        of_line = None
        if asked.operands:
            numbers, of_line = np.unique(numbers, return_inverse=True)
        rows, bounds = self._lists.expanded(numbers)
        columns = []
        for value, f in zip(asked.rows.inputs, asked.rows.features, strict=True):
            lane = self._program.features[f][1]
            bits, valid = self._kept.of(f, rows)
            columns.append(self._column(bits, valid, value.type, lane))
        found = aggregated(asked.rows, columns, bounds, self._settings, _sql_of, self._of_nothing)
        return found if of_line is None else [array.take(pa.array(of_line)) for array in found]

    def _column(self, bits: Int64Array, there: np.ndarray, type: str, lane: Lane) -> pa.Array:
        """Returns the values of a lane, which are given by their bits, as DuckDB takes them."""
        mask = ~there
        if lane.unit is Unit.CODE:
            encoder = self._codes.encoders.get(lane.coded)
            if encoder is None or not there.any():
                return pa.nulls(len(bits), pa.string() if encoder is None else encoder.type)
            if there.all():
                return encoder.of(bits)
            some = np.flatnonzero(there)
            index = np.zeros(len(bits), np.int64)
            index[some] = np.arange(len(some))
            return encoder.of(bits[some]).take(pa.array(index, mask=mask))
        if lane.floating:
            return pa.array(np.ascontiguousarray(bits).view(np.float64), mask=mask)
        if lane.boolean:
            return pa.array(bits != 0, mask=mask)
        if lane.scale or type.startswith("DECIMAL"):
            words = np.stack([bits, bits >> 63], 1)
            whole = pa.Array.from_buffers(pa.decimal128(38, lane.scale), len(bits), [None, pa.py_buffer(words)])
            return whole.take(pa.array(np.arange(len(bits)), mask=mask)) if mask.any() else whole
        numbers = pa.array(bits, mask=mask)
        match type:
            case "TIMESTAMP":
                return numbers.view(pa.timestamp("us"))
            case "TIMESTAMP WITH TIME ZONE":
                return numbers.view(pa.timestamp("us", "UTC"))
            case "DATE":
                return numbers.cast(pa.int32()).view(pa.date32())
            case "TIME":
                return numbers.view(pa.time64("us"))
        return numbers

    # ---- what is asked soon

    def _soon(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, row: int, size: int
    ) -> list[_Foreseen]:
        """Returns lines that may be asked for soon. row: of the block."""
        here = row + len(seen.order) - len(self._blocks[-1][0])
        partition = int(self._blocks[-1][0][row])
        back = self._distances(seen, here, line, asked)
        if asked.rows is not None:
            return self._soon_of_lists(which, asked, line, row, size, seen, back)
        if len(self._held) > MANY:
            self._held.clear()
        self._held[which, partition] = line
        found = [self._of_same(which, asked, line, seen, here, partition, size, None in back)]
        other = {d for d, (_, of_row) in zip(back, asked.sources) if not of_row}
        of_pairs = len(other) == 1 and other != {0}
        if of_pairs and (apart := other.pop()) is not None:
            if row >= self._paired[which] or apart > self._apart[which]:
                found.append(self._pairs(which, asked, seen, here, apart, size))
        if row >= self._foreseen[which]:
            self._foreseen[which] = row + 1 + size
            found.append(self._of_others(which, asked, seen, row, size))
        if all(d is not None for d in back) and not self._program.ignore:
            backs = self._backs[which]
            backs.pop(tuple(back), None)  # it is the last one now
            backs[tuple(back)] = None
            if len(backs) > BACKS_MAX:
                del backs[next(iter(backs))]
            rows = np.arange(here, min(here + 1 + size, len(seen.order)))
            for i, each in enumerate(reversed(backs)):  # most of the last: of a growing match it is new
                many = 1 + max(size // len(backs), size >> i + 1)
                lines, there = self._lines(which, asked, line, seen, rows[:many], each)
                found.append((lines, rows[:many][there]))
        return found

    def _of_same(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, here: int, partition: int, size: int,
        far: bool,
    ) -> _Foreseen:  # fmt: skip
        """Returns the lines of this row and the next ones of the partition with the same values of other rows, if these
        are asked again, or are far; and with all those that were foreseen up to here."""
        others, first = self._others[which], self._came - len(seen.order)
        ours = line.copy()
        for k, (_, of_row) in enumerate(asked.sources):
            if of_row:
                ours[0], ours[1 + k] = ours[0] & ~(1 << k), 0
        i, again = others.place(partition, ours)
        count = int(others.count[i])
        count = min(4 * max(count, FEW // 4), size, AHEAD) if again or far or self._program.ignore else 0
        at = seen.place[here]
        before = first + int(seen.order[at - 1]) if at > seen.begin[here] else first + here
        rows = seen.order[at : at + 1 + count]
        rows = rows[seen.begin[rows] == seen.begin[here]]
        some = others.up_to(partition, i, before, first + here, max(1, size // len(rows)))
        room = len(self._known) // 2 - others.foreseen(first + here, some)
        rows = rows[: max(FEW // 16, room // len(some))]
        others.until[some], others.count[some] = first + rows[-1], len(rows) - 1
        lines = np.repeat(others.line[some], len(rows), axis=0)
        for k, (feature, of_row) in enumerate(asked.sources):
            if of_row:
                _put(lines, k, seen, feature, np.tile(rows, len(some)))
        return lines, np.tile(rows, len(some))

    def _pairs(
        self, which: int, asked: AskedFunction, seen: _Seen, here: int, apart: int, size: int
    ) -> _Foreseen:
        """Returns lines of pairs of rows of a partition: of one that the match may bind, and of one behind it that is
        yet to come, at most twice as far apart as ever. apart: of a row and the one other row that was read."""
        farthest = len(seen.order) if self._program.ignore else max(self._apart[which], 2 * apart)
        self._apart[which] = farthest
        begin = here if self._program.ignore else here - farthest
        bound = {v for e in asked.operands if isinstance(e, Navigation) for v in e.variables}
        labels = sum(1 << v for v, name in enumerate(self._program.variables) if not bound or name in bound)
        rows = 2
        while True:  # of as many rows to come as give about `size` pairs
            rows = min(2 * rows, len(seen.order) - here)
            places = np.flatnonzero((seen.order >= begin) & (seen.order < here + rows))
            at, of, taken = np.arange(len(places)), seen.rows.partition[places], seen.order[places] < here
            first, last = np.searchsorted(of, of, "left"), np.searchsorted(of, of, "right") - 1
            so_far = np.append(0, np.cumsum(taken))
            fresh = first + so_far[last + 1] - so_far[first]
            low = np.maximum(at + 1, fresh)
            many = np.maximum(np.minimum(at + farthest, last) - low + 1, 0)
            many[seen.rows.mask[places] & labels == 0] = 0
            if 2 * many.sum() > size or here + rows >= len(seen.order):
                break
        self._paired[which] = here + rows - (len(seen.order) - len(self._blocks[-1][0]))
        one, two = np.repeat(at, many), spread(low, bounds_of(many))
        lines = np.zeros((len(one), self._width), np.int64)
        lines[:, 0] = which << OPERANDS_MAX
        for k, (feature, of_row) in enumerate(asked.sources):
            _put(lines, k, seen, feature, seen.order[places[two if of_row else one]])
        return lines, seen.order[places[two]]

    def _of_others(self, which: int, asked: AskedFunction, seen: _Seen, row: int, size: int) -> _Foreseen:
        """Returns the lines of the rows of the block from one on, with the values of other rows that their partitions
        asked for last."""
        block = self._blocks[-1][0]
        rows = np.arange(row + 1, min(row + 1 + size, len(block)))
        distinct, of = np.unique(block[rows], return_inverse=True)
        last = [self._held.get((which, partition)) for partition in distinct.tolist()]
        known = np.array([one is not None for one in last], np.bool_)
        if not known.any():
            return np.zeros((0, self._width), np.int64), rows[:0]
        held = np.array([np.zeros(self._width, np.int64) if one is None else one for one in last])
        rows, lines = rows[known[of]] + len(seen.order) - len(block), held[of[known[of]]]
        for k, (feature, of_row) in enumerate(asked.sources):
            if of_row:
                _put(lines, k, seen, feature, rows)
        return lines, rows

    def _soon_of_lists(
        self, which: int, asked: AskedFunction, line: Int64Array, row: int, size: int, seen: _Seen,
        back: Sequence[int | None],
    ) -> list[_Foreseen]:  # fmt: skip
        """Returns lines with lists that may be asked for soon, by all partitions."""
        assert asked.rows is not None
        assert self._lists is not None
        before = len(seen.order) - len(self._blocks[-1][0])
        asking_labels = sum(
            1 << v for v, code in enumerate(self._program.code)
            if any(op == OpCode.ASK and self._program.constants[a] == which for op, a, _ in code)
        )  # fmt: skip
        numbers, at = self._lists.soon(asked.rows.walk, asking_labels, row, before, seen.rows, size)
        if None in back:
            own = seen.rows.partition[at] == self._blocks[-1][0][row]
            numbers, at = numbers[own], at[own]
        lines, there = self._lines(which, asked, line, seen, seen.order[at], back)
        operand = len(asked.operands)
        lines[:, 1 + operand] = numbers[there]
        lines[:, 0] |= 1 << operand
        return [(lines, seen.order[at][there])]

    def _rows(self) -> _Seen:
        if self._seen is None:
            partition, feature, valid, position, mask = (
                np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0] for parts in zip(*self._blocks)
            )
            order = np.argsort(partition, kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            first = np.flatnonzero(np.diff(partition[order], prepend=-1))
            begin = np.empty_like(order)
            begin[order] = np.repeat(first, np.diff(np.append(first, len(order))))
            of = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
            rows = SeenRows(order, partition[order], of, position[order], mask[order])
            self._seen = _Seen(feature, valid, order, place, begin, rows)
        return self._seen

    def _distances(self, seen: _Seen, here: int, line: Int64Array, asked: AskedFunction) -> list[int | None]:
        """Returns, by operand, how many rows of the partition before a row it has been read: all of other rows of one
        row, if there is such a row. None if it is not found."""
        at, begin = seen.place[here], seen.begin[here]
        rows = seen.order[max(begin, at - FAR) : at + 1]
        found: list[int | None] = []
        of_all = np.ones(len(rows), np.bool_)
        for k, (feature, of_row) in enumerate(asked.sources):
            if of_row or feature < 0:
                found.append(0 if of_row else None)
                continue
            valid = seen.valid[feature, rows]
            same = valid & (seen.feature[feature, rows] == line[1 + k]) if (line[0] >> k) & 1 else ~valid
            of_all &= same
            places = np.flatnonzero(same)
            found.append(int(len(rows) - 1 - places[-1]) if len(places) else None)
        if of_all.any():
            one = int(len(rows) - 1 - np.flatnonzero(of_all)[-1])
            found = [d if of_row or d is None else one for d, (_, of_row) in zip(found, asked.sources)]
        return found

    def _lines(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, rows: Int64Array,
        back: Sequence[int | None],
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Returns the lines of rows, and which rows have one. back: by operand, how many rows of the partition before,
        None: as in `line`."""
        farthest = max((d or 0 for d in back), default=0)
        there = seen.place[rows] - farthest >= seen.begin[rows]
        rows = rows[there]
        lines = np.zeros((len(rows), self._width), np.int64)
        lines[:, 0] = which << OPERANDS_MAX
        for k, d in enumerate(back):
            if d is None:
                lines[:, 1 + k] = line[1 + k]
                lines[:, 0] |= line[0] & (1 << k)
                continue
            feature, _ = asked.sources[k]
            _put(lines, k, seen, feature, seen.order[seen.place[rows] - d] if d else rows)
        return lines, there


def _put(lines: np.ndarray, k: int, seen: _Seen, feature: int, rows: Int64Array) -> None:
    """Puts the values of a feature at rows into lines, as operand k."""
    valid = seen.valid[feature, rows]
    lines[:, 1 + k] = np.where(valid, seen.feature[feature, rows], 0)
    lines[:, 0] = lines[:, 0] & ~(1 << k) | valid.astype(np.int64) << k


def _sql_of(name: str, type: str) -> str:
    """Returns a column of Answers._column in its DuckDB type. An INTERVAL is a difference of two times, which has days
    and a rest."""
    if type == "INTERVAL":
        return f'to_days(("{name}" // {DAY_US})::INTEGER) + to_microseconds("{name}" % {DAY_US})'
    return f"CAST({leaf_sql(name, type)} AS {type})"


def _called(number: int) -> int:
    return _answering[number].answer()


asking.answer_by(_called)
