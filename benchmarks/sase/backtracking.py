"""One run at a time, depth first: the backtracking baseline of [SASE] section 5.2.3.

Each partition has one run that is followed, the singleton run, until it matches or fails. Where it could go on in more
than one way it takes the way that leads forward and puts the others on a stack; the last one put there is followed
next, over events that have been read before. When the stack is empty the scan for a start goes back to the event behind
the last start.

What the paper leaves open is decided for the baseline's benefit: a run that waits on the stack keeps its values, its
rows are a prefix of the one path that is being followed, and it goes on behind the event at which it split. If matches
may not overlap, the one that is complete first is wanted ("the shortest"); the search then reads no event behind the
best one found so far.

It takes all events at once, partition by partition. Delivered one by one they would be read in the same order; only,
a match would come out when the singleton run gets to it, instead of with its last event.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from benchmarks.sase.runs import DONE, FOUND_ROOM, counted, decode, larger_found, new_found, refuse, taken
from matching.batch import Int64Array
from matching.decode import Decode
from matching.kernels import layout
from matching.kernels.jit import inlined, kernel
from matching.kernels.layout import Parameters, ProgramArrays
from matching.program.program import Ignore, Mode, Program
from matching.store import RowStore

P_MODE = int(Parameters.MODE)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)
P_COUNTS = int(Parameters.COUNT_REGISTERS)
P_DEGREE = int(Parameters.DEGREE)
P_IGNORE = int(Parameters.IGNORE)
ALL = int(Mode.ALL)
NONE = int(Ignore.NONE)
ANY = int(Ignore.ANY)


class At(IntEnum):
    """Where the search is: partition, next event to try as a start (-1: the partition has not begun), runs on the
    stack, last event of the best match (-1: none) and its rows; events behind the latest one read; and what has been
    counted: events read again, and over all matches the events read before they were found."""

    PARTITION = 0
    START = 1
    STACK = 2
    BEST_END = 3
    BEST_LENGTH = 4
    READ = 5
    AGAIN = 6
    LATE = 7


A_PARTITION = int(At.PARTITION)
A_START = int(At.START)
A_STACK = int(At.STACK)
A_BEST_END = int(At.BEST_END)
A_BEST_LENGTH = int(At.BEST_LENGTH)
A_READ = int(At.READ)
A_AGAIN = int(At.AGAIN)
A_LATE = int(At.LATE)


class Stack(NamedTuple):
    """Runs that wait. event: where each goes on, counted in its partition; length: how much of the path is its own."""

    state: np.ndarray
    event: np.ndarray
    first: np.ndarray
    valid: np.ndarray
    length: np.ndarray
    label: np.ndarray  # of its last row, which is not in the path yet
    row: np.ndarray  # that row, -1: it is the path's own
    registers: np.ndarray  # (room, registers)
    registers_f: np.ndarray


class Path(NamedTuple):
    """Rows of the run that is followed, or of the best match."""

    row: np.ndarray
    label: np.ndarray  # int16


class Scratch(NamedTuple):
    """Register values: of the run that is followed, before its last row, and of a run without rows."""

    held: np.ndarray
    other: np.ndarray
    none: np.ndarray


@inlined
def precedes(path, length, best, best_length):
    """Whether the path is preferred to the best match, by rows and labels in order, as greedy patterns prefer them."""
    for k in range(min(length, best_length)):
        if path.row[k] != best.row[k]:
            return path.row[k] < best.row[k]
        if path.label[k] != best.label[k]:
            return path.label[k] < best.label[k]
    return False


@inlined
def put(stack, at, state, event, first, valid, length, held):
    """Lets a run wait whose rows are in the path."""
    s = at[A_STACK]
    at[A_STACK] = s + 1
    stack.state[s] = state
    stack.event[s] = event
    stack.first[s] = first
    stack.valid[s] = valid
    stack.length[s] = length
    stack.row[s] = -1
    for r in range(len(held)):
        stack.registers[s, r] = held[r]


@inlined
def write(path, length, p, construct, found):
    """Adds a match."""
    at = found.total[1]
    if construct:
        for k in range(length):
            found.row[at + k] = path.row[k]
            found.label[at + k] = path.label[k]
        found.partition[found.total[0]] = p
        found.bound[found.total[0] + 1] = at + length
    found.total[0] += 1
    found.total[1] = at + length


@inlined
def room_for(matches, rows, found):
    return found.total[0] + matches < len(found.bound) and found.total[1] + rows <= len(found.row)


@kernel
def search(
    begin, row, mask, feature, feature_f, feature_valid, construct, program, stack, path, best, found, at, scratch,
    conditions,
):  # fmt: skip
    """Follows runs until all events are read (DONE), or until there is no room for matches (FOUND_ROOM).

    begin: (partitions + 1,), events [begin[p], begin[p + 1]) of the other arrays are those of partition p, in order.
    construct: whether matches are written, or only counted with their rows.

    Long: the search goes forward and back over one stack."""
    everything = program.parameters[P_MODE] == ALL
    ignore = program.parameters[P_IGNORE]
    within_rows = program.parameters[P_WITHIN_ROWS]
    degree = program.parameters[P_DEGREE]
    registers = len(program.register_kind)
    while at[A_PARTITION] < len(begin) - 1:
        p = at[A_PARTITION]
        if at[A_START] < 0:
            at[A_START] = begin[p]
            at[A_READ] = begin[p]
            at[A_BEST_END] = -1
        while True:
            best_end = at[A_BEST_END]
            last = begin[p + 1] if best_end < 0 else best_end + 1
            # ---- the run to follow: the last one that waits, or the next start
            if at[A_STACK] > 0:
                s = at[A_STACK] - 1
                at[A_STACK] = s
                state = stack.state[s]
                event = stack.event[s]
                first = stack.first[s]
                valid = stack.valid[s]
                length = stack.length[s]
                if stack.row[s] >= 0:
                    path.row[length - 1] = stack.row[s]
                    path.label[length - 1] = stack.label[s]
                for r in range(registers):
                    scratch.held[r] = stack.registers[s, r]
            elif at[A_START] < last:
                event = at[A_START]
                at[A_START] = event + 1
                state = np.int64(0)
                first = event
                valid = program.parameters[P_COUNTS]
                length = np.int64(0)
                for r in range(registers):
                    scratch.held[r] = scratch.none[r]
            elif best_end >= 0:
                if construct and not room_for(1, within_rows, found):
                    return FOUND_ROOM
                write(best, at[A_BEST_LENGTH], p, construct, found)
                at[A_LATE] += at[A_READ] - 1 - best_end
                at[A_START] = best_end + 1
                at[A_BEST_END] = -1
                continue
            else:
                break
            # ---- follow it until it fails or ends in a match
            until = min(last, first + within_rows)
            while event < until:
                if construct and not room_for(degree, degree * (length + 1), found):
                    put(stack, at, state, event, first, valid, length, scratch.held)
                    return FOUND_ROOM
                if event < at[A_READ]:
                    at[A_AGAIN] += 1
                else:
                    at[A_READ] = event + 1
                m = mask[event]
                passes = ignore != NONE and length > 0
                top = at[A_STACK]
                if m & program.state_mask[state] != 0:
                    for e in range(program.edge_start[state], program.edge_start[state + 1]):
                        v = program.edge_variable[e]
                        after = taken(
                            program, v, scratch.held, stack.registers[top], stack.registers_f[top], valid, m, feature,
                            feature_f, feature_valid, event, conditions,
                        )  # fmt: skip
                        if after < 0:
                            continue
                        if ignore != NONE and ignore != ANY and program.edge_waits[e]:
                            passes = False
                        q = program.edge_target[e]
                        if program.accept[q]:
                            path.row[length] = row[event]
                            path.label[length] = v
                            if everything:
                                write(path, length + 1, p, construct, found)
                                at[A_LATE] += at[A_READ] - 1 - event
                            elif at[A_BEST_END] < 0 or event < at[A_BEST_END] or (
                                event == at[A_BEST_END] and precedes(path, length + 1, best, at[A_BEST_LENGTH])
                            ):
                                for k in range(length + 1):
                                    best.row[k] = path.row[k]
                                    best.label[k] = path.label[k]
                                at[A_BEST_END] = event
                                at[A_BEST_LENGTH] = length + 1
                                until = min(until, event + 1)
                        if program.edge_start[q + 1] > program.edge_start[q]:
                            stack.state[top] = q
                            stack.event[top] = event + 1
                            stack.first[top] = first
                            stack.valid[top] = after
                            stack.length[top] = length + 1
                            stack.row[top] = row[event]
                            stack.label[top] = v
                            top += 1
                event += 1
                if top == at[A_STACK]:
                    if passes:
                        continue
                    break
                # ---- on along the last edge, which leads forward; what else it could do waits
                top -= 1
                taker = (stack.state[top], stack.valid[top], stack.label[top])
                for r in range(registers):
                    scratch.other[r] = scratch.held[r]
                    scratch.held[r] = stack.registers[top, r]
                at[A_STACK] = top
                if passes:
                    put(stack, at, state, event, first, valid, length, scratch.other)
                state, valid = taker[0], taker[1]
                path.row[length] = row[event - 1]
                path.label[length] = taker[2]
                length += 1
        at[A_PARTITION] = p + 1
        at[A_START] = -1
    return DONE


def forward_last(tables: ProgramArrays) -> ProgramArrays:
    """The edges of each state in order of their targets."""
    bounds = zip(tables.edge_start[:-1], tables.edge_start[1:], strict=True)
    order = np.concatenate([a + np.argsort(tables.edge_target[a:b], kind="stable") for a, b in bounds]).astype(np.int64)
    waits = tables.edge_waits[order] if len(tables.edge_waits) else tables.edge_waits
    return tables._replace(
        edge_variable=tables.edge_variable[order], edge_target=tables.edge_target[order], edge_waits=waits
    )


class Backtracking:
    """All matches of the rows of a store. construct: whether matches are written.

    again: events read again; late: over all matches, how many more events of the partition had been read when the match
    was found."""

    def __init__(self, program: Program, construct: bool) -> None:
        refuse(program)
        assert program.within_rows is not None
        self._construct = construct
        self._tables = forward_last(layout.program_arrays(program, 0))
        self._found = new_found(1 << 12, max(1 << 16, 4 * program.within_rows))
        window, registers = program.within_rows, len(program.registers)
        room = (window + 2) * (int(self._tables.parameters[Parameters.DEGREE]) + 1)
        values = np.zeros((room, registers), np.int64)
        plain = (np.zeros(room, np.int64) for _ in Stack._fields[:-2])
        self._stack = Stack(*(*plain, values, values.view(np.float64)))
        self._path, self._best = (
            Path(np.zeros(window + 1, np.int64), np.zeros(window + 1, np.int16)) for _ in range(2)
        )
        self._scratch = Scratch(*(np.zeros(registers, np.int64) for _ in Scratch._fields))
        self._conditions = layout.new_scratch(program)
        self._at = np.zeros(len(At), np.int64)
        self._at[At.START] = -1

    @property
    def again(self) -> int:
        return int(self._at[At.AGAIN])

    @property
    def late(self) -> int:
        return int(self._at[At.LATE])

    def search(
        self, begin: Int64Array, rows: Int64Array, mask: Int64Array, feature: np.ndarray, feature_valid: np.ndarray
    ) -> bool:
        """Goes on; see `search`. Returns whether all events are read: if not, matches are to be fetched before the next
        call."""
        while True:
            status = search(
                begin, rows, mask, feature, feature.view(np.float64), feature_valid, self._construct, self._tables,
                self._stack, self._path, self._best, self._found, self._at, self._scratch, self._conditions,
            )  # fmt: skip
            if status == DONE or self._found.total[0]:
                return status == DONE
            self._found = larger_found(self._found)

    def decode(self, store: RowStore, out: Decode) -> None:
        decode(self._found, store, out)

    def counted(self) -> tuple[int, int]:
        return counted(self._found)
