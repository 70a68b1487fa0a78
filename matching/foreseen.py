"""Which values functions between rows are probably asked for soon (matching.answers).

A function is foreseen for more rows than the one that asks:
- for the next rows of all partitions, with the values that their last rows asked for (of others);
- for rows that a run may begin with, with the rows that come soon behind them (of pairs);
- with the values at the same distances, in rows of the partition, as rows asked before (of distances);
- under SKIP TILL, where runs wait: for the next rows of the partition, with all values that still wait (of same).
How many of each is by how many of them have been asked for: what is computed for nothing costs as much as a call saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import os
import numpy as np

from matching.asked_rows import AskedLists, SeenRows
from matching.batch import Int64Array
from matching.kernels.asking import OF_DISTANCES, OF_LISTS, OF_OTHERS, OF_PAIRS, OF_SAME, WAYS
from matching.kernels.layout import grown
from matching.program.conditions import AskedFunction
from matching.program.lanes import OPERANDS_MAX
from matching.program.opcodes import OpCode
from matching.program.program import Program
from matching.records import bounds_of, spread
from query.plan.expression import Navigation

#: Lines of one way that are foreseen together, at least and at most; pairs of rows, at least.
FEW, PAIRS, MANY = 64, 1 << 12, 1 << 16
#: The lines that take as long as a call takes without them.
CALL = int(os.environ.get("CALL","4096"))
LESS=int(os.environ.get("LESS","16"))
#: Rows for which the values of an other row are foreseen, at most: so those of many runs end together.
AHEAD = 256
#: What a call counts in what lines were computed for, beside the one after it.
LATELY = 0.9
#: Rows whose values are remembered, at least and at most.
REMEMBERED_MIN, REMEMBERED_MAX = 1 << 12, 1 << 16
#: How far back a function's values have been read: so many ways are foreseen together, as runs that began one after the
#: other read at different distances.
BACKS_MAX = 16
#: No row: the value of an other row is null.
NULL = -1
#: In how many rows of a partition before one a value is looked for.
FAR = 1 << 12

#: Partitions, features, which of these are not null, positions, masks, lines by function and row.
_Block = tuple[Int64Array, np.ndarray, np.ndarray, Int64Array, Int64Array, np.ndarray]
#: Lines, and the index of the row of each among those that are seen.
_Foreseen = tuple[np.ndarray, Int64Array]

def _moved(block: _Block, moved: Int64Array) -> _Block:
    """Returns the rows of a block that are kept. moved: by position, the new one, -1 for rows that are gone."""
    partition, feature, valid, position, mask, lines = block
    position = np.where(position < len(moved), moved[np.minimum(position, len(moved) - 1)], -1)
    kept = position >= 0
    return partition[kept], feature[:, kept], valid[:, kept], position[kept], mask[kept], lines[:, kept]


class _Seen(NamedTuple):
    """The rows of the last blocks. order: their indices by partition; place: of each row in this order; begin: the
    place of the first row of its partition; of: the number of its partition among those that are seen; held: (functions,
    partitions, width) the lines that partitions asked for last, without the values of the row, 0 none; end: of a
    partition, the place behind its last row; fresh: of its first row that has not been taken; until: (functions,
    partitions) up to which place the line of `held` is foreseen; foreseen: for how many rows."""

    feature: np.ndarray
    valid: np.ndarray
    order: Int64Array
    place: Int64Array
    begin: Int64Array
    of: Int64Array
    rows: SeenRows
    held: np.ndarray
    end: Int64Array
    fresh: Int64Array
    until: Int64Array
    foreseen: Int64Array


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

    def place(self, partition: int, line: Int64Array) -> int:
        """Returns the index of values."""
        key = (partition, line.tobytes())
        i = self._index.get(key)
        if i is not None:
            return i
        if len(self._index) == MANY // 4:
            self._clear()
        i = self._index[key] = len(self._index)
        if i == len(self.until):
            self._partition, self.until, self.count, self.line = (
                grown(a, 2 * i) for a in (self._partition, self.until, self.count, self.line)
            )
        self._partition[i], self.line[i], self.count[i] = partition, line, 0
        return i

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


class Foresight:
    """What a program's functions may be asked for soon."""

    def __init__(self, program: Program) -> None:
        asked = program.asked
        self._program = program
        self._width = width_of(program)
        #: by function and way, how many lines are foreseen together; and of the last calls, how many lines were computed,
        #: and how many of these asked for since
        self._size = np.full((len(asked), WAYS), 16 * FEW)
        self._size[:, OF_PAIRS] = PAIRS
        self._computed, self._used = np.zeros((len(asked), WAYS)), np.zeros((len(asked), WAYS))
        self._now = np.zeros((len(asked), WAYS), np.int64)
        #: by function, how far back it has read its values, the last ones last
        self._backs: list[dict[tuple[int | None, ...], None]] = [{} for _ in asked]
        self._others = [_Others(self._width) for _ in asked]
        #: by function, the row of the block up to which pairs of its rows are foreseen; how far apart; and how far they
        #: have been
        self._paired, self._apart, self._farthest = [0] * len(asked), [4] * len(asked), [4] * len(asked)
        #: by function, since then, the calls, and the lines of pairs that were computed
        self._calls, self._of_pairs, self._of_pairs_used = [0] * len(asked), [0] * len(asked), [0] * len(asked)
        #: by function, the row of the block up to which the lines of all partitions are foreseen
        self._foreseen = [0] * len(asked)
        self._blocks: list[_Block] = []
        self._seen: _Seen | None = None
        self._noted = 0
        self.came = 0  # rows of all blocks

    def begin(
        self, partition: Int64Array, feature: np.ndarray, valid: np.ndarray, position: Int64Array, mask: Int64Array
    ) -> dict[str, np.ndarray]:
        """Returns tables of matching.kernels.asking for the rows of a block."""
        count = len(self._program.asked)
        self._seen, self._noted = None, 0
        self.came += len(partition)
        self._foreseen, self._paired = [0] * count, [0] * count
        lines = np.zeros((count, len(partition), self._width), np.int64)
        self._blocks.append((partition, feature, valid[: len(feature)], position, mask, lines))
        remembered = min(REMEMBERED_MAX, max(REMEMBERED_MIN, 16 * len(partition)))
        while sum(len(block[0]) for block in self._blocks[1:]) > remembered:
            del self._blocks[0]
        return {"asked_line": lines, "asked_used": self._now}

    def move(self, moved: Int64Array) -> None:
        """Renumbers rows. moved: by position in the row store, the new one, -1 for rows that are gone."""
        self._blocks, self._seen = [kept for block in self._blocks if len((kept := _moved(block, moved))[0])], None

    def row(self, row: int) -> int:
        """Returns the number of a row of the block among all rows that came."""
        return self.came - len(self._blocks[-1][0]) + row

    def note(self, which: int, ways: Int64Array) -> None:
        """Notes for which ways lines are computed."""
        lines = np.bincount(ways, minlength=WAYS)
        self._computed[which] = LATELY * self._computed[which] + lines
        self._of_pairs[which] += int(lines[OF_PAIRS])

    def soon(
        self, which: int, line: Int64Array, row: int, room: int, lists: AskedLists | None
    ) -> tuple[np.ndarray, Int64Array, Int64Array]:
        """Returns lines that may be asked for soon, by function `which`, for which of the rows that came, and why. row:
        of the block; line: what it asks for. room: the lines that are kept."""
        asked, seen = self._program.asked[which], self._rows()
        here = row + len(seen.order) - len(self._blocks[-1][0])
        self._resize(which, room)
        self._hold(seen, row)
        back = self._distances(seen, here, line, asked)
        if asked.rows is not None:
            assert lists is not None
            found = [(OF_LISTS, self._of_lists(which, asked, line, row, lists, seen, back))]
        elif self._program.ignore:
            found = self._of_waiting(which, asked, line, seen, here, row, back, room)
        else:
            found = self._of_next(which, asked, line, seen, here, row, back)
        return (
            np.concatenate([lines for _, (lines, _) in found]),
            np.concatenate([at for _, (_, at) in found]) + self.came - len(seen.order),
            np.repeat([way for way, _ in found], [len(at) for _, (_, at) in found]),
        )

    def _resize(self, which: int, room: int) -> None:
        """Foresees more of the ways of which much was asked for, and less of others."""
        self._used[which] = used = LATELY * self._used[which] + self._now[which]
        self._of_pairs_used[which] += int(self._now[which, OF_PAIRS])
        self._now[which] = 0
        size, computed = self._size[which], self._computed[which]
        more, less = used >= computed / 8, used < computed / LESS
        least = np.where(np.arange(WAYS) == OF_PAIRS, PAIRS, FEW)
        size[more] = np.minimum(4 * size[more], MANY)
        size[less] = np.maximum(size[less] // 4, least[less])
        np.minimum(size, room // 4, out=size)

    def _hold(self, seen: _Seen, row: int) -> None:
        """Notes what the rows of the block up to one have asked for."""
        lines, before = self._blocks[-1][5][:, self._noted : row + 1], len(seen.order) - len(self._blocks[-1][0])
        rows = np.arange(self._noted, row + 1) + before
        seen.fresh[seen.of[rows]] = seen.place[rows] + 1
        for which, asked in enumerate(self._program.asked):
            some = np.flatnonzero(lines[which, :, 0])
            new, of = self._without_row(asked, lines[which, some]), seen.of[rows[some]]
            changed = of[(seen.held[which, of] != new).any(axis=1)]
            seen.held[which, of] = new
            seen.until[which, changed] = seen.foreseen[which, changed] = 0
        self._noted = row

    def _without_row(self, asked: AskedFunction, lines: np.ndarray) -> np.ndarray:
        """Returns lines without the values of their own row."""
        lines = lines.copy()
        for k, (_, of_row) in enumerate(asked.sources):
            if of_row:
                lines[:, 0], lines[:, 1 + k] = lines[:, 0] & ~(1 << k), 0
        return lines

    def _of_waiting(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, here: int, row: int,
        back: Sequence[int | None], room: int,
    ) -> list[tuple[int, _Foreseen]]:  # fmt: skip
        """Returns the lines of runs that wait for a row."""
        partition, size = int(self._blocks[-1][0][row]), self._size[which]
        same = self._of_same(which, asked, line, seen, here, partition, int(size[OF_SAME]), room)
        found = [(OF_SAME, same)]
        apart = _apart(asked, back)
        if apart is not None and (row >= self._paired[which] or apart > self._farthest[which]):
            self._farthest[which] = len(seen.order)
            found.append((OF_PAIRS, self._pairs(which, asked, seen, here, 1, len(seen.order))))
        if row >= self._foreseen[which]:
            self._foreseen[which] = row + 1 + int(size[OF_OTHERS])
            found.append((OF_OTHERS, self._of_others(which, asked, seen, row, len(seen.order))))
        return found

    def _of_next(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, here: int, row: int,
        back: Sequence[int | None],
    ) -> list[tuple[int, _Foreseen]]:  # fmt: skip
        """Returns the lines of runs that take each row of their partition."""
        size, found = self._size[which], []
        apart = _apart(asked, back)
        if apart is not None:
            self._calls[which] += 1
            calls, pairs, seldom = CALL * self._calls[which], self._of_pairs[which], 4 * self._of_pairs_used[which] < self._of_pairs[which]
            over = apart > self._apart[which] and (calls > 2 * pairs or not seldom)
            if over or row >= self._paired[which]:
                if over:
                    self._apart[which] *= 2
                elif pairs > 2 * calls and seldom:
                    self._apart[which] = max(1, self._apart[which] // 2)
                self._calls[which] = self._of_pairs[which] = self._of_pairs_used[which] = 0
                d = self._apart[which]
                found.append((OF_PAIRS, self._pairs(which, asked, seen, here, d, d)))
        found.append((OF_OTHERS, self._of_others(which, asked, seen, row, self._apart[which])))
        if all(d is not None for d in back):
            backs, size_of = self._backs[which], int(size[OF_DISTANCES])
            backs.pop(tuple(back), None)  # it is the last one now
            backs[tuple(back)] = None
            if len(backs) > BACKS_MAX:
                del backs[next(iter(backs))]
            rows = np.arange(here, min(here + 1 + size_of, len(seen.order)))
            for i, each in enumerate(list(reversed(backs))[: size_of // FEW]):  # most of the last: of a growing match it is new
                many = 1 + max(size_of // len(backs), size_of >> i + 1)
                lines, there = self._lines(which, asked, line, seen, rows[:many], each)
                found.append((OF_DISTANCES, (lines, rows[:many][there])))
        return found

    def _of_same(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, here: int, partition: int, size: int,
        room: int,
    ) -> _Foreseen:  # fmt: skip
        """Returns the lines of this row and the next ones of the partition with the same values of other rows, and with
        all those that were foreseen up to here."""
        others, first = self._others[which], self.came - len(seen.order)
        ours = line.copy()
        for k, (_, of_row) in enumerate(asked.sources):
            if of_row:
                ours[0], ours[1 + k] = ours[0] & ~(1 << k), 0
        i = others.place(partition, ours)
        count = int(others.count[i])
        count = min(4 * max(count, FEW // 4), size, AHEAD)
        at = seen.place[here]
        before = first + int(seen.order[at - 1]) if at > seen.begin[here] else first + here
        rows = seen.order[at : at + 1 + count]
        rows = rows[seen.begin[rows] == seen.begin[here]]
        some = others.up_to(partition, i, before, first + here, max(1, size // len(rows)))
        left = room // 2 - others.foreseen(first + here, some)
        rows = rows[: max(FEW // 16, left // len(some))]
        others.until[some], others.count[some] = first + rows[-1], len(rows) - 1
        lines = np.repeat(others.line[some], len(rows), axis=0)
        for k, (feature, of_row) in enumerate(asked.sources):
            if of_row:
                _put(lines, k, seen, feature, np.tile(rows, len(some)))
        return lines, np.tile(rows, len(some))

    def _pairs(
        self, which: int, asked: AskedFunction, seen: _Seen, here: int, behind: int, apart: int
    ) -> _Foreseen:
        """Returns lines of pairs of rows of a partition: of one that the match may bind, and of one behind it that is
        yet to come, at most so far apart. behind: how many of the rows that have been taken are among the first."""
        size = self._size[which, OF_PAIRS]
        bound = {v for e in asked.operands if isinstance(e, Navigation) for v in e.variables}
        labels = sum(1 << v for v, name in enumerate(self._program.variables) if not bound or name in bound)
        fresh, one = seen.fresh.copy(), seen.fresh - behind
        fresh[seen.of[here]] = seen.place[here]  # others of its runs ask, too
        np.maximum(one, seen.begin[seen.order[seen.end - 1]], out=one)
        rows = 2
        while True:  # of as many rows to come as give about `size` pairs
            rows = min(2 * rows, len(seen.order) - here)
            end = seen.fresh + np.bincount(seen.of[here + 1 : here + rows], minlength=len(fresh))
            many = np.maximum(end - one, 0)
            at, of = spread(one, bounds_of(many)), np.repeat(np.arange(len(one)), many)
            some = seen.rows.mask[at] & labels != 0
            at, of = at[some], of[some]
            low = np.maximum(at + 1, fresh[of])
            many = np.maximum(np.minimum(at + apart + 1, end[of]) - low, 0)
            if 2 * many.sum() > size or here + rows >= len(seen.order):
                break
        self._paired[which] = here + rows - (len(seen.order) - len(self._blocks[-1][0]))
        first, then = seen.order[np.repeat(at, many)], seen.order[spread(low, bounds_of(many))]
        lines = np.zeros((len(first), self._width), np.int64)
        lines[:, 0] = which << OPERANDS_MAX
        for k, (feature, of_row) in enumerate(asked.sources):
            _put(lines, k, seen, feature, then if of_row else first)
        return lines, then

    def _of_others(
        self, which: int, asked: AskedFunction, seen: _Seen, row: int, most: int
    ) -> _Foreseen:
        """Returns the lines of the rows of the block behind one, with the values of other rows that their partitions
        asked for last: of as many rows as have been foreseen with the same ones, or `most` if these are more."""
        count = seen.foreseen[which]
        first = np.maximum(seen.fresh, seen.until[which])
        last = np.minimum(seen.fresh + np.maximum(most, count), seen.end)
        many = np.where(seen.held[which, :, 0] != 0, np.maximum(last - first, 0), 0)
        rows, of = seen.order[spread(first, bounds_of(many))], np.repeat(np.arange(len(many)), many)
        size = int(self._size[which, OF_OTHERS])
        if len(rows) > size:
            near = rows <= np.partition(rows, size)[size]
            rows, of = rows[near], of[near]
            many = np.bincount(of, minlength=len(many))
        seen.until[which] = first + many
        count += many
        lines = seen.held[which, of]
        for k, (feature, of_row) in enumerate(asked.sources):
            if of_row:
                _put(lines, k, seen, feature, rows)
        return lines, rows

    def _of_lists(
        self, which: int, asked: AskedFunction, line: Int64Array, row: int, lists: AskedLists, seen: _Seen,
        back: Sequence[int | None],
    ) -> _Foreseen:  # fmt: skip
        """Returns lines with lists that may be asked for soon, by all partitions."""
        assert asked.rows is not None
        before = len(seen.order) - len(self._blocks[-1][0])
        asking_labels = sum(
            1 << v for v, code in enumerate(self._program.code)
            if any(op == OpCode.ASK and self._program.constants[a] == which for op, a, _ in code)
        )  # fmt: skip
        numbers, at = lists.soon(
            asked.rows.walk, asking_labels, row, before, seen.rows, int(self._size[which, OF_LISTS])
        )
        if None in back:
            own = seen.rows.partition[at] == self._blocks[-1][0][row]
            numbers, at = numbers[own], at[own]
        lines, there = self._lines(which, asked, line, seen, seen.order[at], back)
        operand = len(asked.operands)
        lines[:, 1 + operand] = numbers[there]
        lines[:, 0] |= 1 << operand
        return lines, seen.order[at][there]

    def _rows(self) -> _Seen:
        if self._seen is None:
            partition, feature, valid, position, mask, asked = (
                np.concatenate(parts, axis=axis) if len(parts) > 1 else parts[0]
                for axis, parts in zip((0, 1, 1, 0, 0, 1), zip(*self._blocks))
            )
            order = np.argsort(partition, kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            first = np.flatnonzero(np.diff(partition[order], prepend=-1))
            of = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
            rows = SeenRows(order, partition[order], of, position[order], mask[order])
            held = np.zeros((len(asked), len(first), self._width), np.int64)
            for which, lines in enumerate(asked):
                some = np.flatnonzero(lines[:, 0])
                held[which, of[place[some]]] = self._without_row(self._program.asked[which], lines[some])
            end = np.append(first[1:], len(order))
            before_block = order < len(order) - len(self._blocks[-1][0])
            fresh = first + np.bincount(of[before_block], minlength=len(first))
            until = np.zeros((len(asked), len(first)), np.int64)
            self._seen = _Seen(
                feature, valid, order, place, first[of[place]], of[place], rows, held, end, fresh, until, until.copy()
            )
        return self._seen

    def _distances(self, seen: _Seen, here: int, line: Int64Array, asked: AskedFunction) -> list[int | None]:
        """Returns, by operand, how many rows of the partition before a row it has been read: all of other rows of one
        row, if there is such a row. None if it is not found, NULL if it is null."""
        at, begin = seen.place[here], seen.begin[here]
        rows = seen.order[max(begin, at - FAR) : at + 1]
        found: list[int | None] = []
        of_all = np.ones(len(rows), np.bool_)
        for k, (feature, of_row) in enumerate(asked.sources):
            if of_row or feature < 0:
                found.append(0 if of_row else None)
                continue
            if not (line[0] >> k) & 1:
                found.append(NULL)
                continue
            same = seen.valid[feature, rows] & (seen.feature[feature, rows] == line[1 + k])
            of_all &= same
            places = np.flatnonzero(same)
            found.append(int(len(rows) - 1 - places[-1]) if len(places) else None)
        if of_all.any():
            one = int(len(rows) - 1 - np.flatnonzero(of_all)[-1])
            found = [d if of_row or d in (None, NULL) else one for d, (_, of_row) in zip(found, asked.sources)]
        return found

    def _lines(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, rows: Int64Array,
        back: Sequence[int | None],
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Returns the lines of rows, and which rows have one. back: by operand, how many rows of the partition before,
        None: as in `line`; or NULL."""
        farthest = max((d or 0 for d in back), default=0)
        there = seen.place[rows] - farthest >= seen.begin[rows]
        rows = rows[there]
        lines = np.zeros((len(rows), self._width), np.int64)
        lines[:, 0] = which << OPERANDS_MAX
        for k, d in enumerate(back):
            if d == NULL:
                continue
            if d is None:
                lines[:, 1 + k] = line[1 + k]
                lines[:, 0] |= line[0] & (1 << k)
                continue
            feature, _ = asked.sources[k]
            _put(lines, k, seen, feature, seen.order[seen.place[rows] - d] if d else rows)
        return lines, there


def width_of(program: Program) -> int:
    """Returns how many numbers a line has: which function it is of, the operands, and the list of rows."""
    return 1 + max(len(asked.operands) + (asked.rows is not None) for asked in program.asked)


def _apart(asked: AskedFunction, back: Sequence[int | None]) -> int | None:
    """Returns how far behind one other row a function's row is; None if it reads none, or several."""
    other = {d for d, (_, of_row) in zip(back, asked.sources) if not of_row}
    apart = other.pop() if len(other) == 1 else None
    return apart if apart and apart > 0 else None


def _put(lines: np.ndarray, k: int, seen: _Seen, feature: int, rows: Int64Array) -> None:
    """Puts the values of a feature at rows into lines, as operand k."""
    valid = seen.valid[feature, rows]
    lines[:, 1 + k] = np.where(valid, seen.feature[feature, rows], 0)
    lines[:, 0] = lines[:, 0] & ~(1 << k) | valid.astype(np.int64) << k
