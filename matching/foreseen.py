"""Foresees the lines that functions between rows will be asked for soon (matching.answers). A line has the values of a
row and those of other rows of its match.

- of others: for the next rows of all partitions, with what their last rows asked for;
- of pairs: for each row that a run may bind, with the next rows behind it, since nobody knows which run fails where;
- of distances: with rows that are as far away as those of rows that have asked;
- of waiting: for the next rows of all partitions, with all that their last rows asked for, since under SKIP TILL many
  runs wait;
- of lists: aggregates over the rows of the match (matching.asked_rows).
How many of each is by how many of them are asked for then: a line that nobody asks for costs something, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from matching.asked_rows import AskedLists, SeenRows
from matching.batch import Int64Array
from matching.kernels.asking import ASKED, OF_DISTANCES, OF_LISTS, OF_OTHERS, OF_PAIRS, OF_WAITING, UNKNOWN, WAYS
from matching.program.conditions import AskedFunction
from matching.program.lanes import OPERANDS_MAX
from matching.program.opcodes import OpCode
from matching.program.program import Program
from matching.records import bounds_of, spread
from query.plan.expression import Navigation

#: Lines of one way that are foreseen together, at least and at most; pairs of rows, at least.
FEW, PAIRS, MANY = 64, 1 << 12, 1 << 16
#: How many lines take as long as a call takes beside them, about.
CALL = 1 << 11
#: Rows of a partition for which values that wait are foreseen, at most.
AHEAD = 256
#: What a call counts in what lines were computed for, beside the one after it.
LATELY = 0.9
#: Rows whose values are remembered, at least and at most.
REMEMBERED_MIN, REMEMBERED_MAX = 1 << 12, 1 << 18
#: How far back a function's values have been read: so many ways are foreseen together, as runs that began one after the
#: other read at different distances.
BACKS_MAX = 16
#: That many of them at most, where one row is read from a distance that does not grow: LAST(v, 3).
FIXED = 4
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


def _joined(blocks: Sequence[_Block]) -> _Block:
    """Returns the rows of all blocks."""
    if len(blocks) == 1:
        return blocks[0]
    columns = zip(*blocks, strict=True)
    return tuple(np.concatenate(parts, axis) for axis, parts in zip((0, 1, 1, 0, 0, 1), columns))  # type: ignore[return-value]


class _Seen(NamedTuple):
    """The rows of the last blocks. order: their indices by partition; place: of each row in this order; of: the number
    of its partition. By partition, begin, end: the places of its first row and behind its last one; fresh: of the first
    row that has not been taken. By function and partition, held: (.., .., width) the line that was asked last, without
    the values of its row, 0 none; asked: the place of the last row that asked before the one that is taken, -1 none;
    until: up to which place the line of `held` is foreseen; ahead: for how many rows it has been."""

    feature: np.ndarray
    valid: np.ndarray
    order: Int64Array
    place: Int64Array
    of: Int64Array
    rows: SeenRows
    begin: Int64Array
    end: Int64Array
    fresh: Int64Array
    held: np.ndarray
    asked: np.ndarray
    until: np.ndarray
    ahead: np.ndarray

    def fresh_at(self, here: int) -> Int64Array:
        """Returns `fresh` while a row is taken: others of its runs may ask, too."""
        fresh = self.fresh.copy()
        fresh[self.of[here]] = self.place[here]
        return fresh


@dataclass(slots=True)
class _Pairs:
    """How pairs of rows are foreseen: up to which row of the block, at most how many rows of a partition apart; and
    since then, how many lines were computed, how many of them asked for, and how many calls came."""

    until: int = 0
    apart: int = 4
    computed: int = 0
    used: int = 0
    calls: int = 0

    def begin(self, row: int, apart: int) -> bool:
        """True if pairs are to be foreseen from a row on: they are no more, or not far enough. Of the cost of calls and
        that of lines that are not asked for, none is to be twice the other."""
        self.calls += 1
        calls, seldom = CALL * self.calls, self.used < self.computed / 4
        near = apart > self.apart and (calls > 2 * self.computed or not seldom)
        if not near and row < self.until:
            return False
        if near:
            self.apart *= 2
        elif self.computed > 2 * calls and seldom:
            self.apart = max(1, self.apart // 2)
        self.computed = self.used = self.calls = 0
        return True


class KnownLines(NamedTuple):
    """The table of matching.kernels.asking: lines, what is known of each, and of all rows that came the last one for
    which it was foreseen, or that asked for it; and why it is known."""

    keys: np.ndarray
    known: np.ndarray
    row: Int64Array
    way: np.ndarray


class Foresight:
    """Foresees the lines of a program's functions."""

    def __init__(self, program: Program) -> None:
        asked = program.asked
        self._program = program
        self._width = width_of(program)
        #: by function and way, how many lines are foreseen together; of the last calls, how many lines were computed,
        #: and how many of them asked for; and how many since the last call
        self._size = np.full((len(asked), WAYS), 16 * FEW)
        self._least = np.full(WAYS, FEW)
        self._least[OF_PAIRS] = self._least[OF_WAITING] = PAIRS
        self._computed, self._used = np.zeros((len(asked), WAYS)), np.zeros((len(asked), WAYS))
        self._new = np.zeros((len(asked), WAYS), np.int64)
        #: by function, how far back it has read its values, the last ones last
        self._backs: list[dict[tuple[int | None, ...], None]] = [{} for _ in asked]
        self._pairs_of = [_Pairs() for _ in asked]
        self._blocks: list[_Block] = []
        self._remembered = 0  # rows of blocks before the last ones
        self._seen: _Seen | None = None
        self._noted = 0  # up to which row of the block it is known what was asked for
        self.came = 0  # rows of all blocks

    def begin(
        self, partition: Int64Array, feature: np.ndarray, valid: np.ndarray, position: Int64Array, mask: Int64Array
    ) -> dict[str, np.ndarray]:
        """Returns tables of matching.kernels.asking for the rows of a block."""
        count = len(self._program.asked)
        self._seen, self._noted = None, 0
        self.came += len(partition)
        for pairs in self._pairs_of:
            pairs.until = 0
        blocks, small = self._blocks, REMEMBERED_MIN // 4
        while len(blocks) > 1 and len(blocks[-2][0]) <= len(blocks[-1][0]) < small:  # rows may come one by one
            blocks[-2:] = [_joined(blocks[-2:])]
        lines = np.zeros((count, len(partition), self._width), np.int64)
        # the row store writes over its partitions when it moves rows
        blocks.append((partition.copy(), feature, valid[: len(feature)], position, mask, lines))
        kept = max(REMEMBERED_MIN, 16 * len(partition), self._remembered - self._remembered // 8)
        self._remembered = min(REMEMBERED_MAX, kept)
        while sum(len(block[0]) for block in blocks[1:]) > self._remembered:
            del blocks[0]
        return {"asked_line": lines, "asked_used": self._new}

    def move(self, moved: Int64Array) -> None:
        """Renumbers rows. moved: by position in the row store, the new one, -1 for rows that are gone."""
        self._blocks, self._seen = [kept for block in self._blocks if len((kept := _moved(block, moved))[0])], None

    def row(self, row: int) -> int:
        """Returns the number of a row of the block among all rows that came."""
        return self.came - len(self._blocks[-1][0]) + row

    def _before(self, seen: _Seen) -> int:
        """Returns how many rows are seen before the block."""
        return len(seen.order) - len(self._blocks[-1][0])

    def line_at(self, which: int, position: int) -> np.ndarray | None:
        """Returns the line (1, width) that a row of the last block asked for last; None if there is none. position: in
        the row store."""
        positions, lines = self._blocks[-1][3], self._blocks[-1][5][which]
        line = lines[positions == position][:1]
        return line if len(line) and line[0, 0] else None

    def note(self, which: int, ways: Int64Array) -> None:
        """Notes for which ways lines are computed."""
        lines = np.bincount(ways, minlength=WAYS)
        self._computed[which] = LATELY * self._computed[which] + lines
        self._pairs_of[which].computed += int(lines[OF_PAIRS])

    def soon(
        self, which: int, line: Int64Array, row: int, table: KnownLines, lists: AskedLists | None
    ) -> tuple[np.ndarray, Int64Array, Int64Array]:
        """Returns lines that may be asked for soon, by function `which`, for which of the rows that came, and why. row:
        of the block; line: what it asks for."""
        asked, seen = self._program.asked[which], self._rows()
        here = row + self._before(seen)
        self._resize(which, len(table.known))
        self._take(seen, row, which, line)
        back = self._distances(seen, here, line, asked)
        if asked.rows is not None:
            assert lists is not None
            found = [(OF_LISTS, self._of_lists(which, asked, line, row, lists, seen, back))]
        elif self._program.ignore:
            found = self._of_runs_that_wait(which, asked, line, seen, here, row, back, table)
        else:
            found = self._of_runs_that_go(which, asked, line, seen, here, row, back, table)
        return (
            np.concatenate([lines for _, (lines, _) in found]),
            np.concatenate([at for _, (_, at) in found]) + self.came - len(seen.order),
            np.repeat([way for way, _ in found], [len(at) for _, (_, at) in found]),
        )

    def _resize(self, which: int, room: int) -> None:
        """Foresees more of the ways of which much was asked for, and less of others."""
        self._used[which] = used = LATELY * self._used[which] + self._new[which]
        self._pairs_of[which].used += int(self._new[which, OF_PAIRS])
        self._new[which] = 0
        size, computed = self._size[which], self._computed[which]
        more, less = used >= computed / 8, used < computed / 16
        size[more] *= 4
        size[less] //= 4
        np.clip(size, self._least, min(MANY, room // 4), out=size)

    def _take(self, seen: _Seen, row: int, which: int, line: Int64Array) -> None:
        """Notes what the rows of the block before one have asked for, and a line of this row."""
        lines, before = self._blocks[-1][5], self._before(seen)
        taken = np.arange(self._noted, row + 1)
        seen.fresh[seen.of[taken + before]] = seen.place[taken + before] + 1
        self._hold(seen, lines, taken[:-1], before)
        self._noted = max(self._noted, row)
        held, of = self._without_row(self._program.asked[which], line[None])[0], seen.of[row + before]
        if (seen.held[which, of] != held).any():
            seen.held[which, of], seen.until[which, of], seen.ahead[which, of] = held, 0, 0

    def _hold(self, seen: _Seen, lines: np.ndarray, rows: Int64Array, before: int) -> None:
        """Notes what rows have asked for. lines: by function and row; before: the rows that are seen before these."""
        for which, asked in enumerate(self._program.asked):
            some = rows[lines[which, rows, 0] != 0]
            held, of = self._without_row(asked, lines[which, some]), seen.of[some + before]
            changed = of[(seen.held[which, of] != held).any(axis=1)]
            seen.held[which, of], seen.asked[which, of] = held, seen.place[some + before]
            seen.until[which, changed] = seen.ahead[which, changed] = 0

    def _without_row(self, asked: AskedFunction, lines: np.ndarray) -> np.ndarray:
        """Returns lines without the values of their own row."""
        lines = lines.copy()
        for k, (_, of_row) in enumerate(asked.sources):
            if of_row:
                lines[:, 0], lines[:, 1 + k] = lines[:, 0] & ~(1 << k), 0
        return lines

    def _of_runs_that_wait(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, here: int, row: int,
        back: Sequence[int | None], table: KnownLines,
    ) -> list[tuple[int, _Foreseen]]:  # fmt: skip
        """Returns the lines of runs that wait for rows."""
        found = [(OF_WAITING, self._of_waiting(which, asked, line, seen, here, table))]
        if row >= self._pairs_of[which].until and _apart(asked, back) is not None:
            found.append((OF_PAIRS, self._of_pairs(which, asked, seen, here, 1, len(seen.order))))
        return found

    def _of_runs_that_go(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, here: int, row: int,
        back: Sequence[int | None], table: KnownLines,
    ) -> list[tuple[int, _Foreseen]]:  # fmt: skip
        """Returns the lines of runs that take each row of their partition."""
        pairs, found, apart = self._pairs_of[which], [], _apart(asked, back)
        if apart is None:  # of several rows, or of one that is remembered no more
            found.append((OF_WAITING, self._of_waiting(which, asked, line, seen, here, table)))
        elif pairs.begin(row, apart):
            found.append((OF_PAIRS, self._of_pairs(which, asked, seen, here, pairs.apart, pairs.apart)))
        found.append((OF_OTHERS, self._of_others(which, asked, seen, pairs.apart)))
        if None not in back:
            backs, size = self._backs[which], int(self._size[which, OF_DISTANCES])
            backs.pop(tuple(back), None)  # it is the last one now
            backs[tuple(back)] = None
            if len(backs) > BACKS_MAX:
                del backs[next(iter(backs))]
            rows = np.arange(here, min(here + 1 + size, len(seen.order)))
            ways = list(reversed(backs))[: size // FEW]
            if apart is not None and len(ways) > FIXED:  # a match that grows: pairs have all of its distances
                ways = []
            for i, each in enumerate(ways):
                many = 1 + max(size // len(backs), size >> i + 1)  # most of the last: of a growing match it is new
                lines, there = self._lines(which, asked, line, seen, rows[:many], each)
                found.append((OF_DISTANCES, (lines, rows[:many][there])))
        return found

    def _of_waiting(
        self, which: int, asked: AskedFunction, line: Int64Array, seen: _Seen, here: int, table: KnownLines
    ) -> _Foreseen:
        """Returns the lines of the next rows of all partitions with all that their last rows asked for, and of a row
        with what it asks for."""
        size, first = int(self._size[which, OF_WAITING]), self.came - len(seen.order)
        last, own = first + np.where(seen.asked[which] < 0, here, seen.order[seen.asked[which]]), seen.of[here]
        some = np.flatnonzero((table.row >= last.min()) & (table.way == ASKED) & (table.known != UNKNOWN))
        some = some[table.keys[some, 0] >> OPERANDS_MAX == which]
        rows = table.row[some]
        of = seen.of[np.minimum(rows - first, here)]
        waits = (rows == last[of]) | ((rows == first + here) & (of == own))
        lines = self._without_row(asked, np.concatenate([line[None], table.keys[some[waits]]]))
        of = np.append(own, of[waits])
        start = seen.fresh_at(here)[of]
        if len(of) > size:  # each has one row at least: those of the partitions whose rows come first
            near = np.append(0, 1 + np.argsort(seen.order[np.minimum(start[1:], len(seen.order) - 1)])[: size - 1])
            lines, start, of = lines[near], start[near], of[near]
        many = np.clip(seen.end[of] - start, 0, min(AHEAD, max(1, size // len(of))))
        return self._of_rows(asked, np.repeat(lines, many, axis=0), seen, seen.order[spread(start, bounds_of(many))])

    def _of_rows(self, asked: AskedFunction, lines: np.ndarray, seen: _Seen, rows: Int64Array) -> _Foreseen:
        """Returns lines with the values of rows of their own."""
        for k, (feature, of_row) in enumerate(asked.sources):
            if of_row:
                _put(lines, k, seen, feature, rows)
        return lines, rows

    def _of_pairs(
        self, which: int, asked: AskedFunction, seen: _Seen, here: int, behind: int, apart: int
    ) -> _Foreseen:
        """Returns lines of pairs of rows of a partition: of one that the match may bind, and of one behind it that is
        yet to come, at most so far apart. behind: how many of the rows that have been taken are among the first."""
        size, block = self._size[which, OF_PAIRS], self._before(seen)
        bound = {v for e in asked.operands if isinstance(e, Navigation) for v in e.variables}
        labels = sum(1 << v for v, name in enumerate(self._program.variables) if not bound or name in bound)
        fresh, begin = seen.fresh_at(here), np.maximum(seen.fresh - behind, seen.begin)
        rows = 2
        while True:  # of as many rows to come as give about `size` pairs
            rows = min(2 * rows, len(seen.order) - here)
            end = seen.fresh + np.bincount(seen.of[here + 1 : here + rows], minlength=len(fresh))
            np.minimum(end, seen.end, out=end)
            many = np.maximum(end - begin, 0)
            at, of = spread(begin, bounds_of(many)), np.repeat(np.arange(len(many)), many)
            some = seen.rows.mask[at] & labels != 0
            at, of = at[some], of[some]
            low = np.maximum(at + 1, fresh[of])
            many = np.maximum(np.minimum(at + apart + 1, end[of]) - low, 0)
            if 2 * many.sum() > size or here + rows >= len(seen.order):
                break
        self._pairs_of[which].until = here + rows - block
        one, two = seen.order[np.repeat(at, many)], seen.order[spread(low, bounds_of(many))]
        lines = np.zeros((len(one), self._width), np.int64)
        lines[:, 0] = which << OPERANDS_MAX
        for k, (feature, of_row) in enumerate(asked.sources):
            _put(lines, k, seen, feature, two if of_row else one)
        return lines, two

    def _of_others(self, which: int, asked: AskedFunction, seen: _Seen, most: int) -> _Foreseen:
        """Returns the lines of the next rows of all partitions with the values of other rows that they asked for last:
        of as many rows as have been foreseen with the same ones, or of `most` if these are more."""
        ahead, size = seen.ahead[which], int(self._size[which, OF_OTHERS])
        first = np.maximum(seen.fresh, seen.until[which])
        last = np.minimum(seen.fresh + np.maximum(most, ahead), seen.end)
        many = np.where(seen.held[which, :, 0] != 0, np.maximum(last - first, 0), 0)
        rows, of = seen.order[spread(first, bounds_of(many))], np.repeat(np.arange(len(many)), many)
        if len(rows) > size:  # the ones that come first
            near = rows <= np.partition(rows, size)[size]
            rows, of = rows[near], of[near]
            many = np.bincount(of, minlength=len(many))
        seen.until[which] = first + many
        ahead += many
        return self._of_rows(asked, seen.held[which, of], seen, rows)

    def _of_lists(
        self, which: int, asked: AskedFunction, line: Int64Array, row: int, lists: AskedLists, seen: _Seen,
        back: Sequence[int | None],
    ) -> _Foreseen:  # fmt: skip
        """Returns lines with lists that may be asked for soon, by all partitions."""
        assert asked.rows is not None
        before = self._before(seen)
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
        """Returns the rows of the last blocks, as they are when the first one of a block asks."""
        if self._seen is None:
            partition, feature, valid, position, mask, asked = _joined(self._blocks)
            order = np.argsort(partition, kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            begin = np.flatnonzero(np.diff(partition[order], prepend=-1))
            end = np.append(begin[1:], len(order))
            of = np.repeat(np.arange(len(begin)), end - begin)
            rows = SeenRows(order, partition[order], of, position[order], mask[order])
            taken = order < len(order) - len(self._blocks[-1][0])
            shape = len(asked), len(begin)
            self._seen = _Seen(
                feature, valid, order, place, of[place], rows, begin, end,
                begin + np.bincount(of[taken], minlength=len(begin)), np.zeros((*shape, self._width), np.int64),
                np.full(shape, -1), np.zeros(shape, np.int64), np.zeros(shape, np.int64),
            )  # fmt: skip
            self._hold(self._seen, asked, np.arange(len(order) - len(self._blocks[-1][0])), 0)
        return self._seen

    def _distances(self, seen: _Seen, here: int, line: Int64Array, asked: AskedFunction) -> list[int | None]:
        """Returns, by operand, how many rows of the partition before a row it has been read: all of other rows of one
        row, if there is such a row. None if it is not found, NULL if it is null."""
        at, begin = seen.place[here], seen.begin[seen.of[here]]
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
        there = seen.place[rows] - farthest >= seen.begin[seen.of[rows]]
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
