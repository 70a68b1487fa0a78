"""All matches of row-local patterns that pass over rows, as one graph: constant time an event, whatever there is to
find.

What a run is does not matter to its conditions, so all runs of a partition in one state are one list. A row that an
edge takes makes one *cell*, which stands for all runs of the edge's state with that row behind them: `child` is the
list of that state as it was. The cell is put in front of the list of the edge's target; lists share their tails and
never change. A path along children from a cell that ends a match is a match read backwards; tECS of [CORE] (Bucchi et
al., PVLDB 2022) with lists for unions. Cells know the latest start below them, so what WITHIN has ended is not walked.

The matches that one row ends come out in order of their first rows, and those of one first row by preference.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import inlined, kernel
from matching.kernels.layout import Parameters
from query.automaton.program import Ignore

P_WITHIN_US = int(Parameters.WITHIN_US)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)
P_IGNORE = int(Parameters.IGNORE)
ANY = int(Ignore.ANY)

#: Before all starts.
LOWEST = -(1 << 63)

OK = 0
ROOM_CELLS = 1
ROOM_FOUND = 2
ROOM_PATH = 3
ERROR = 4
BUDGET = 5


class Counters(IntEnum):
    CELLS = 0
    FOUND = 1
    ROWS = 2
    ENDS = 3  # cells of the row at hand that end matches not enumerated yet
    FAILED_ROW = 4  # 1 + position of a row whose condition cannot be computed
    FAILED_LABEL = 5


C_CELLS = int(Counters.CELLS)
C_FOUND = int(Counters.FOUND)
C_ROWS = int(Counters.ROWS)
C_ENDS = int(Counters.ENDS)
C_FAILED_ROW = int(Counters.FAILED_ROW)
C_FAILED_LABEL = int(Counters.FAILED_LABEL)


class Cells(NamedTuple):
    """row: position of the row taken, edge: by which edge. child: list of what stands before it, -1: it is a first row.
    next: the list behind it. start: the latest start (its time, or for WITHIN n ROWS its ordinal) of the runs of the
    cell, deep: their largest number of rows; rest, deep_rest: the same of the whole list that begins with the cell."""

    row: np.ndarray  # int64
    edge: np.ndarray  # int32
    child: np.ndarray  # int64
    next: np.ndarray  # int64
    start: np.ndarray  # int64
    rest: np.ndarray  # int64
    deep: np.ndarray  # int32
    deep_rest: np.ndarray  # int32


class Lists(NamedTuple):
    """Per partition. head: (partitions, states) int64, first cell of each state's list, -1 none."""

    head: np.ndarray
    ordinal: np.ndarray  # rows seen
    number: np.ndarray  # matches found
    lowest: np.ndarray  # the earliest start that WITHIN had not ended at its last row


class Found(NamedTuple):
    """Matches in order. Rows of match k: [bound[k], bound[k + 1]) of row and edge. The others are room to sort in."""

    bound: np.ndarray
    partition: np.ndarray
    number: np.ndarray
    order: np.ndarray
    other: np.ndarray
    bound_before: np.ndarray
    row: np.ndarray
    edge: np.ndarray  # int32
    row_before: np.ndarray
    edge_before: np.ndarray  # int32


class Scratch(NamedTuple):
    """edge, child: the edges that take the row at hand and the lists they take it behind, one per edge of the program;
    ends: cells of it that end matches; path: a walk, as long as the longest match."""

    edge: np.ndarray
    child: np.ndarray
    ends: np.ndarray
    path: np.ndarray


@kernel
def step(begin, end, partition, mask, bad, ts, row, program, cells, lists, found, scratch, matches_max, counters):
    """Takes rows [begin, end); mask and bad as for matching.kernels.step.step. Returns (next row, status); after a
    ROOM the call is to be repeated with more of it. O(edges) a row, and O(its rows) a match found."""
    skips_any = program.parameters[P_IGNORE] == ANY
    within_us = program.parameters[P_WITHIN_US]
    within_rows = program.parameters[P_WITHIN_ROWS]
    states = len(program.accept)
    edges = len(program.edge_target)
    some_bad = len(bad) > 0
    for i in range(begin, end):
        p = partition[i]
        ordinal = lists.ordinal[p]
        lowest = np.int64(LOWEST)
        here = ts[i]
        if within_us >= 0:
            lowest = here - within_us
        elif within_rows >= 0:
            here = ordinal
            lowest = ordinal - within_rows + 1
        if counters[C_ENDS] == 0:
            if counters[C_CELLS] + edges > len(cells.row):
                return i, ROOM_CELLS
            m = mask[i]
            b = bad[i] if some_bad else np.int64(0)
            # ---- what takes the row; lists change when all of them have been looked at
            made = 0
            for q in range(states):
                head = np.int64(-1)
                if q > 0:
                    head = lists.head[p, q]
                    if head < 0:
                        continue
                    if cells.rest[head] < lowest:
                        lists.head[p, q] = -1
                        continue
                if (m | b) & program.state_mask[q] == 0:
                    continue
                waited_for = False
                for e in range(program.edge_start[q], program.edge_start[q + 1]):
                    v = program.edge_variable[e]
                    if (b >> v) & 1 == 1:
                        counters[C_FAILED_ROW] = row[i] + 1
                        counters[C_FAILED_LABEL] = v
                        return i, ERROR
                    if (m >> v) & 1 == 1:
                        scratch.edge[made] = e
                        scratch.child[made] = head
                        made += 1
                        waited_for |= program.edge_waits[e]
                if q > 0 and waited_for and not skips_any:
                    lists.head[p, q] = -1
            # ---- one cell for each
            ends = 0
            for k in range(made):
                e = scratch.edge[k]
                child = scratch.child[k]
                q = program.edge_target[e]
                c = counters[C_CELLS]
                counters[C_CELLS] = c + 1
                start = here if child < 0 else cells.rest[child]
                deep = 1 if child < 0 else cells.deep_rest[child] + 1
                cells.row[c] = row[i]
                cells.edge[c] = e
                cells.child[c] = child
                cells.start[c] = start
                cells.deep[c] = deep
                behind = lists.head[p, q]
                if behind >= 0 and cells.rest[behind] < lowest:
                    behind = np.int64(-1)
                cells.next[c] = behind
                cells.rest[c] = start if behind < 0 else max(start, cells.rest[behind])
                cells.deep_rest[c] = deep if behind < 0 else max(deep, cells.deep_rest[behind])
                if program.edge_start[q + 1] > program.edge_start[q]:
                    lists.head[p, q] = c
                if program.accept[q]:
                    scratch.ends[ends] = c
                    ends += 1
            counters[C_ENDS] = ends
            lists.lowest[p] = lowest
        if counters[C_ENDS] > 0:
            status = enumerate_ends(p, lowest, cells, lists, found, scratch, matches_max, counters)
            if status != OK:
                return i, status
            counters[C_ENDS] = 0
        lists.ordinal[p] = ordinal + 1
    return end, OK


@kernel
def enumerate_ends(p, lowest, cells, lists, found, scratch, matches_max, counters):
    """Writes the matches that the row at hand ends behind those found so far."""
    before = counters[C_FOUND]
    count = before
    rows = counters[C_ROWS]
    path = scratch.path
    for k in range(counters[C_ENDS]):
        c = scratch.ends[k]
        if cells.deep[c] + 1 > len(path):
            return ROOM_PATH
        path[0] = c
        d = 1
        path[1] = cells.child[c]
        whole = path[1] < 0  # a match of one row
        while d > 0:
            x = path[d]
            if not whole:
                while x >= 0 and cells.rest[x] >= lowest and cells.start[x] < lowest:
                    x = cells.next[x]
                if x < 0 or cells.rest[x] < lowest:
                    d -= 1
                    if d > 0:
                        path[d] = cells.next[path[d]]
                    continue
                path[d] = x
                if cells.child[x] >= 0:
                    d += 1
                    path[d] = cells.child[x]
                    continue
            length = d if whole else d + 1
            if count + 1 >= len(found.bound) or rows + length > len(found.row):
                return ROOM_FOUND
            if count - before >= matches_max:
                return BUDGET
            for j in range(length):
                cell = path[length - 1 - j]
                found.row[rows + j] = cells.row[cell]
                found.edge[rows + j] = cells.edge[cell]
            rows += length
            found.partition[count] = p
            count += 1
            found.bound[count] = rows
            if whole:
                break
            path[d] = cells.next[x]
    in_order = True
    for k in range(before + 1, count):
        if precedes(k, k - 1, found):
            in_order = False
            break
    if not in_order:
        sort(before, count, counters[C_ROWS], rows, found)
    for k in range(before, count):
        lists.number[p] += 1
        found.number[k] = lists.number[p]
    counters[C_FOUND] = count
    counters[C_ROWS] = rows
    return OK


@inlined
def precedes(a, b, found):
    """Whether match a comes before match b: by first row, then by preference."""
    at_a, at_b = found.bound[a], found.bound[b]
    while at_a < found.bound[a + 1] and at_b < found.bound[b + 1]:
        if found.row[at_a] != found.row[at_b]:
            return found.row[at_a] < found.row[at_b]
        if found.edge[at_a] != found.edge[at_b]:
            return found.edge[at_a] < found.edge[at_b]
        at_a += 1
        at_b += 1
    return False


@kernel
def sort(begin, end, row_begin, row_end, found):
    """Puts matches [begin, end) in order; merge sort."""
    n = end - begin
    order, other = found.order, found.other
    for k in range(n):
        order[k] = begin + k
    width = 1
    while width < n:
        for low in range(0, n, 2 * width):
            middle = min(low + width, n)
            high = min(low + 2 * width, n)
            left, right = low, middle
            for k in range(low, high):
                if left < middle and (right >= high or not precedes(order[right], order[left], found)):
                    other[k] = order[left]
                    left += 1
                else:
                    other[k] = order[right]
                    right += 1
        order, other = other, order
        width *= 2
    rows, edges, bounds = found.row_before, found.edge_before, found.bound_before
    for j in range(row_end - row_begin):
        rows[j] = found.row[row_begin + j]
        edges[j] = found.edge[row_begin + j]
    for k in range(n + 1):
        bounds[k] = found.bound[begin + k]
    at = row_begin
    for k in range(n):
        low = bounds[order[k] - begin] - row_begin
        high = bounds[order[k] - begin + 1] - row_begin
        for j in range(low, high):
            found.row[at] = rows[j]
            found.edge[at] = edges[j]
            at += 1
        found.bound[begin + k + 1] = at


@kernel
def mark_live(partitions, floor, lists, cells, count, lowest, moved, keep):
    """lowest: int64 (count,), room. moved: int64 (count,), set to the new index of every cell that a list can still
    reach, else -1; keep: bool per row of the store, set for their rows. floor: no start before it counts. Returns the
    number of live cells."""
    moved[:count] = -1
    for p in range(partitions):
        low = max(floor, lists.lowest[p])
        for q in range(lists.head.shape[1]):
            c = lists.head[p, q]
            if c >= 0 and cells.rest[c] < low:
                lists.head[p, q] = -1
            elif c >= 0:
                moved[c] = 0
                lowest[c] = low
    for c in range(count - 1, -1, -1):
        if moved[c] < 0:
            continue
        low = lowest[c]
        child = cells.child[c]
        if cells.start[c] >= low:
            keep[cells.row[c]] = True
            if child >= 0:
                moved[child] = 0
                lowest[child] = low
        behind = cells.next[c]
        if behind >= 0 and cells.rest[behind] < low:
            cells.next[c] = -1
        elif behind >= 0:
            moved[behind] = 0
            lowest[behind] = low
    live = 0
    for c in range(count):
        if moved[c] >= 0:
            moved[c] = live
            live += 1
    return live


@kernel
def move_live(partitions, lists, cells, count, moved, row_moved):
    """Drops the cells that are not live and renumbers rows."""
    for c in range(count):
        to = moved[c]
        if to < 0:
            continue
        cells.row[to] = row_moved[cells.row[c]]
        cells.edge[to] = cells.edge[c]
        # of a cell that WITHIN has ended, kept for what stands behind it, the children may be gone: none is read
        cells.child[to] = moved[cells.child[c]] if cells.child[c] >= 0 else -1
        cells.next[to] = moved[cells.next[c]] if cells.next[c] >= 0 else -1
        cells.start[to] = cells.start[c]
        cells.rest[to] = cells.rest[c]
        cells.deep[to] = cells.deep[c]
        cells.deep_rest[to] = cells.deep_rest[c]
    for p in range(partitions):
        for q in range(lists.head.shape[1]):
            if lists.head[p, q] >= 0:
                lists.head[p, q] = moved[lists.head[p, q]]
