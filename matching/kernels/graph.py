"""All matches of row-local patterns that pass over rows, as one graph: constant time an event, whatever there is to
find.

What a run is does not matter to its conditions, so all runs of a partition in one state are one list. A row that an
edge takes makes one *cell*, which is all runs of the edge's state followed by that row: its child is the
list of that state as it was. The cell is put in front of the list of the edge's target; lists share their tails and
never change. A path along children from a cell that ends a match is a match read backwards; tECS of [CORE] (Bucchi et
al., PVLDB 2022) with lists for unions. Cells know the latest start below them, so what WITHIN has ended is not walked.

The matches that one row ends come out in order of their first rows, and those of one first row by preference.

Cells and partitions are rows of matrices, 32 and 64 bytes each where possible: what is read together lies together.

Long: the graph is made, read, counted and moved here, and all of these know its layout.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.integers import many_sum
from matching.kernels.jit import called, inlined, kernel
from matching.kernels.layout import Parameters
from matching.program.program import Ignore

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
ROOM_KEPT = 6


class GraphCounters(IntEnum):
    CELLS = 0
    FOUND = 1
    ROWS = 2
    ENDS = 3  # cells of the row at hand that end matches not enumerated yet
    FAILED_ROW = 4  # 1 + position of a row whose condition cannot be computed
    FAILED_LABEL = 5
    KEPT = 6  # ends of matches kept for later, -1: they are enumerated at once
    LENGTH = 7  # rows of each match, if the pattern is a chain and only the rows are asked for; else 0


C_CELLS = int(GraphCounters.CELLS)
C_FOUND = int(GraphCounters.FOUND)
C_ROWS = int(GraphCounters.ROWS)
C_ENDS = int(GraphCounters.ENDS)
C_FAILED_ROW = int(GraphCounters.FAILED_ROW)
C_FAILED_LABEL = int(GraphCounters.FAILED_LABEL)
C_KEPT = int(GraphCounters.KEPT)
C_LENGTH = int(GraphCounters.LENGTH)


class Cells(NamedTuple):
    """Two views of one memory, 32 bytes a cell: wide, int64 (n, 4), narrow, int32 (n, 8). There is room for
    fewer than 2**31 cells and rows in memory."""

    wide: np.ndarray
    narrow: np.ndarray


class Narrow(IntEnum):
    """Columns of `Cells.narrow`, followed by those of Wide."""

    ROW = 0  # position of the row taken
    EDGE = 1  # by which edge
    CHILD = 2  # list of the cells before it; -1: it is a first row
    NEXT = 3  # the list after it; -1: none


class Wide(IntEnum):
    """Columns of `Cells.wide`; before them are those of Narrow."""

    START = 2  # the latest start (its time, or for WITHIN n ROWS its ordinal) of the runs of the cell
    REST = 3  # the same of the whole list that begins with the cell


ROW = int(Narrow.ROW)
EDGE = int(Narrow.EDGE)
CHILD = int(Narrow.CHILD)
NEXT = int(Narrow.NEXT)
START = int(Wide.START)
REST = int(Wide.REST)


def cells_of(wide: np.ndarray) -> Cells:
    return Cells(wide, wide.view(np.int32))


def new_cells(capacity: int) -> Cells:
    return cells_of(np.zeros((capacity, 4), np.int64))


class Lists(IntEnum):
    """Columns of the partitions, int64 (partitions, lists_width(states)). State 0 has no list."""

    WANTED = 0  # the labels that some list, or a start, waits for
    LOWEST = 1  # the earliest start that WITHIN had not ended at its last row
    NUMBER = 2  # matches found
    HEAD = 3  # and following: first cell of each state's list, -1 none
    ORDINAL = 3  # in the place of state 0, for WITHIN n ROWS: rows seen


L_WANTED = int(Lists.WANTED)
L_LOWEST = int(Lists.LOWEST)
L_NUMBER = int(Lists.NUMBER)
L_HEAD = int(Lists.HEAD)
L_ORDINAL = int(Lists.ORDINAL)


def lists_width(states: int) -> int:
    """Columns of Lists for so many states: whole cache lines."""
    return -(-(L_HEAD + states) // 8) * 8


class Kept(IntEnum):
    """Columns of the ends kept, int64 (n, 3)."""

    CELL = 0  # that ends matches
    LOWEST = 1  # no start before it counts
    PARTITION = 2


K_CELL = int(Kept.CELL)
K_LOWEST = int(Kept.LOWEST)
K_PARTITION = int(Kept.PARTITION)


class Unfolding(IntEnum):
    """The position of the enumeration of kept ends."""

    END = 0  # index of the end at hand
    DEPTH = 1  # of its path, -1: not begun
    TOP = 2  # of the stack


U_END = int(Unfolding.END)
U_DEPTH = int(Unfolding.DEPTH)
U_TOP = int(Unfolding.TOP)


class FoundPaths(NamedTuple):
    """Matches in order. Rows of match k: [bound[k], bound[k + 1]) of row and edge. The others are room for the matches
    of one row before they are put in order: match k has the rows [new_bound[k], new_bound[k + 1]) of new_row and
    new_edge, and first[k] is the first of them."""

    bound: np.ndarray
    partition: np.ndarray
    number: np.ndarray
    row: np.ndarray
    edge: np.ndarray  # int32
    new_bound: np.ndarray
    first: np.ndarray
    order: np.ndarray
    other: np.ndarray
    new_row: np.ndarray
    new_edge: np.ndarray  # int32


class GraphScratch(NamedTuple):
    """edge, child: the edges that take the row at hand and the lists before it, one per edge of the program;
    ends: cells of it that end matches; path: the cells of one match, from its end, and bottom: where the cells to try
    next at each of its places begin in `stack`, as long as the longest list; kept: ends kept for later."""

    edge: np.ndarray
    child: np.ndarray
    ends: np.ndarray
    path: np.ndarray
    bottom: np.ndarray
    stack: np.ndarray
    kept: np.ndarray


@inlined
def window(t, ordinal, within_us, within_rows):
    """The earliest start that counts at a row, and what the row is as a start: its time, or of WITHIN n ROWS its
    ordinal."""
    if within_us >= 0:
        return t - within_us, t
    if within_rows >= 0:
        return ordinal - within_rows + 1, ordinal
    return np.int64(LOWEST), t


@inlined
def take_row(p, mask, bad, row, lowest, skips_any, program, cells, lists, scratch, counters):
    """Notes the edges that take a row and the lists before it; lists that may not ignore it end. Returns their number,
    -1 if the condition of one cannot be computed."""
    made = 0
    for q in range(len(program.accept)):
        if (mask | bad) & program.state_mask[q] == 0:
            continue
        head = np.int64(-1)
        if q > 0:
            head = lists[p, L_HEAD + q]
            if head < 0:
                continue
            if cells.wide[head, REST] < lowest:
                lists[p, L_HEAD + q] = -1
                continue
        waited_for = False
        for e in range(program.edge_start[q], program.edge_start[q + 1]):
            v = program.edge_variable[e]
            if (bad >> v) & 1 == 1:
                counters[C_FAILED_ROW] = row + 1
                counters[C_FAILED_LABEL] = v
                return -1
            if (mask >> v) & 1 == 1:
                scratch.edge[made] = e
                scratch.child[made] = head
                made += 1
                waited_for |= program.edge_waits[e]
        if q > 0 and waited_for and not skips_any:
            lists[p, L_HEAD + q] = -1
    return made


@inlined
def link_cell(c, row, edge, child, behind, here, lowest, cells):
    """Fills cell c for a row that an edge takes: after the list `child` (-1: it is a first row, the start `here`), and
    in front of the list `behind` (-1: none) unless WITHIN has ended that."""
    start = here if child < 0 else cells.wide[child, REST]
    rest = start
    if behind >= 0:
        if cells.wide[behind, REST] < lowest:
            behind = np.int64(-1)
        else:
            rest = max(start, cells.wide[behind, REST])
    cells.narrow[c, ROW] = row
    cells.narrow[c, EDGE] = edge
    cells.narrow[c, CHILD] = child
    cells.narrow[c, NEXT] = behind
    cells.wide[c, START] = start
    cells.wide[c, REST] = rest


@kernel
def step(begin, end, partition, mask, bad, ts, row, program, cells, lists, found, scratch, matches_max, counters):
    """Takes rows [begin, end); mask and bad as for matching.kernels.step.step. Returns (next row, status); after a
    ROOM the call is to be repeated with more of it. O(edges) a row that some list waits for, and O(its rows) a match
    found.

    Longer than other kernels: with functions for its cells and labels, too, it takes a sixth longer to compile."""
    skips_any = program.parameters[P_IGNORE] == ANY
    within_us = program.parameters[P_WITHIN_US]
    within_rows = program.parameters[P_WITHIN_ROWS]
    edges = len(program.edge_target)
    some_bad = len(bad) > 0
    some = np.int64(0)
    for labels in program.state_mask:
        some |= labels
    resumed = counters[C_ENDS] > 0
    for i in range(begin, end):
        m = mask[i]
        b = bad[i] if some_bad else np.int64(0)
        p = partition[i]
        ordinal = np.int64(0)
        if within_rows >= 0:
            ordinal = lists[p, L_ORDINAL]
            lists[p, L_ORDINAL] = ordinal + 1
        elif (m | b) & some == 0:
            continue
        if not resumed and (m | b) & lists[p, L_WANTED] == 0:
            continue
        lowest, here = window(ts[i], ordinal, within_us, within_rows)
        if not resumed:
            if counters[C_CELLS] + edges > len(cells.wide):
                if within_rows >= 0:
                    lists[p, L_ORDINAL] = ordinal
                return i, ROOM_CELLS
            # lists change when all of them have been looked at
            made = take_row(p, m, b, row[i], lowest, skips_any, program, cells, lists, scratch, counters)
            if made < 0:
                return i, ERROR
            ends = 0
            c = counters[C_CELLS]
            for k in range(made):
                e = scratch.edge[k]
                q = program.edge_target[e]
                behind = np.int64(-1)
                if program.edge_start[q + 1] > program.edge_start[q]:
                    behind = lists[p, L_HEAD + q]
                    lists[p, L_HEAD + q] = c
                link_cell(c, row[i], e, scratch.child[k], behind, here, lowest, cells)
                if program.accept[q]:
                    scratch.ends[ends] = c
                    ends += 1
                c += 1
            counters[C_CELLS] = c
            counters[C_ENDS] = ends
            wanted = program.state_mask[0]
            for q in range(1, len(program.accept)):
                if lists[p, L_HEAD + q] >= 0:
                    wanted |= program.state_mask[q]
            lists[p, L_WANTED] = wanted
            lists[p, L_LOWEST] = lowest
        resumed = False
        if counters[C_ENDS] > 0:
            if counters[C_LENGTH] > 0:
                status = enumerate_chain(p, lowest, cells, lists, found, scratch, matches_max, counters)
            else:
                status = enumerate_ends(p, lowest, cells, lists, found, scratch, matches_max, counters)
            if status != OK:
                if within_rows >= 0:
                    lists[p, L_ORDINAL] = ordinal
                return i, status
            counters[C_ENDS] = 0
            drop_ends(program, row[i], cells, counters)
    return end, OK


@inlined
def drop_ends(program, row, cells, counters):
    """Drops the last cells as long as they only ended matches of this row, which have been enumerated: no list has
    them."""
    c = counters[C_CELLS] - 1
    while counters[C_KEPT] < 0 and c >= 0 and cells.narrow[c, ROW] == row:
        q = program.edge_target[cells.narrow[c, EDGE]]
        if program.edge_start[q + 1] > program.edge_start[q]:
            break
        counters[C_CELLS] = c
        c -= 1


@inlined
def push_list(x, lowest, cells, stack, top):
    """Puts the cells of a list that WITHIN has not ended on the stack, the oldest on top. Returns its new height, -1 if
    there is no room."""
    while x >= 0 and cells.wide[x, REST] >= lowest:
        if cells.wide[x, START] >= lowest:
            if top >= len(stack):
                return np.int64(-1)
            stack[top] = x
            top += 1
        x = cells.narrow[x, NEXT]
    return top


@inlined
def enumerate_ends(p, lowest, cells, lists, found, scratch, matches_max, counters):
    """Writes the matches that the row at hand ends after those found so far, or keeps their ends."""
    if counters[C_KEPT] >= 0:
        kept = counters[C_KEPT]
        if kept + counters[C_ENDS] > len(scratch.kept):
            return ROOM_KEPT
        for k in range(counters[C_ENDS]):
            scratch.kept[kept, K_CELL] = scratch.ends[k]
            scratch.kept[kept, K_LOWEST] = lowest
            scratch.kept[kept, K_PARTITION] = p
            kept += 1
        counters[C_KEPT] = kept
        return OK
    path = scratch.path
    bottom = scratch.bottom
    stack = scratch.stack
    before = counters[C_FOUND]
    count = 0
    rows = 0
    in_order = True
    for k in range(counters[C_ENDS]):
        # the end is a list of one, so that a match of one row is no case of its own
        path[0] = scratch.ends[k]
        stack[0] = path[0]
        bottom[0] = 0
        top = np.int64(1)
        d = 0
        while d >= 0:
            if top == bottom[d]:
                d -= 1
                continue
            top -= 1
            x = stack[top]
            path[d] = x
            if cells.narrow[x, CHILD] >= 0:
                d += 1
                if d >= len(path):
                    return ROOM_PATH
                bottom[d] = top
                top = push_list(cells.narrow[x, CHILD], lowest, cells, stack, top)
                if top < 0:
                    return ROOM_PATH
                continue
            if before + count + 1 >= len(found.bound) or counters[C_ROWS] + rows + d >= len(found.row):
                return ROOM_FOUND
            if count >= matches_max:
                return BUDGET
            found.first[count] = cells.narrow[x, ROW]
            for j in range(d, -1, -1):
                cell = path[j]
                found.new_row[rows] = cells.narrow[cell, ROW]
                found.new_edge[rows] = cells.narrow[cell, EDGE]
                rows += 1
            found.order[count] = count
            found.new_bound[count + 1] = rows
            if count > 0 and in_order and precedes(count, count - 1, found):
                in_order = False
            count += 1
    swapped = False
    if not in_order:
        swapped = sort(count, found)
    number = lists[p, L_NUMBER]
    at = counters[C_ROWS]
    for k in range(count):
        m = found.other[k] if swapped else found.order[k]
        for j in range(found.new_bound[m], found.new_bound[m + 1]):
            found.row[at] = found.new_row[j]
            found.edge[at] = found.new_edge[j]
            at += 1
        found.bound[before + k + 1] = at
        found.partition[before + k] = p
        number += 1
        found.number[before + k] = number
    lists[p, L_NUMBER] = number
    counters[C_FOUND] = before + count
    counters[C_ROWS] = at
    return OK


@inlined
def precedes(a, b, found):
    """True if new match a comes before new match b: by first row, then by preference."""
    if found.first[a] != found.first[b]:
        return found.first[a] < found.first[b]
    at_a, at_b = found.new_bound[a], found.new_bound[b]
    while at_a < found.new_bound[a + 1] and at_b < found.new_bound[b + 1]:
        if found.new_row[at_a] != found.new_row[at_b]:
            return found.new_row[at_a] < found.new_row[at_b]
        if found.new_edge[at_a] != found.new_edge[at_b]:
            return found.new_edge[at_a] < found.new_edge[at_b]
        at_a += 1
        at_b += 1
    return False


@inlined
def goes_before(a, b, length, found):
    """True if new match a of a chain comes before new match b: by first row, then by the next one, and so on."""
    if found.first[a] != found.first[b]:
        return found.first[a] < found.first[b]
    for k in range(1, length):
        if found.new_row[a * length + k] != found.new_row[b * length + k]:
            return found.new_row[a * length + k] < found.new_row[b * length + k]
    return False


@inlined
def merge(low, middle, high, order, other, length, found):
    """Merges the stretches [low, middle) and [middle, high) of `order` into `other`. length: rows of each match of a
    chain, else 0."""
    left, right = low, middle
    for k in range(low, high):
        right_first = left == middle
        if left < middle and right < high:
            if length > 0:
                right_first = goes_before(order[right], order[left], length, found)
            else:
                right_first = precedes(order[right], order[left], found)
        if right_first:
            other[k] = order[right]
            right += 1
        else:
            other[k] = order[left]
            left += 1


@called
def sort(n, found):
    """Puts the n new matches in order; merge sort over stretches that are sorted by insertion. Returns whether `other`
    has the order, instead of `order`."""
    order, other = found.order, found.other
    width = 8
    for low in range(0, n, width):
        for k in range(low + 1, min(low + width, n)):
            at = k
            while at > low and precedes(k, order[at - 1], found):
                order[at] = order[at - 1]
                at -= 1
            order[at] = k
    swapped = False
    while width < n:
        for low in range(0, n, 2 * width):
            merge(low, min(low + width, n), min(low + 2 * width, n), order, other, 0, found)
        order, other = other, order
        swapped = not swapped
        width *= 2
    return swapped


@inlined
def enumerate_chain(p, lowest, cells, lists, found, scratch, matches_max, counters):
    """Like enumerate_ends, for a chain, whose matches have so many rows each and end in one cell: of these only the
    rows. They are found backwards, the latest rows first, in runs that differ in their first rows alone."""
    length = counters[C_LENGTH]
    path = scratch.path
    if length > len(path):
        return ROOM_PATH
    before, at = counters[C_FOUND], counters[C_ROWS]
    narrow, wide = cells.narrow, cells.wide
    count = 0
    runs = 0
    path[0] = scratch.ends[0]
    d = min(1, length - 1)
    if d == 1:
        path[1] = narrow[path[0], CHILD]
    while True:
        x = path[d]
        if d == length - 1:
            first_of_run = count
            while x >= 0 and wide[x, REST] >= lowest:
                if wide[x, START] >= lowest:
                    if before + count + 1 >= len(found.bound) or at + (count + 1) * length > len(found.row):
                        return ROOM_FOUND
                    if count >= matches_max:
                        return BUDGET
                    here = count * length
                    found.first[count] = narrow[x, ROW]
                    found.new_row[here] = narrow[x, ROW]
                    for k in range(1, length):
                        found.new_row[here + k] = narrow[path[length - 1 - k], ROW]
                    count += 1
                x = narrow[x, NEXT] if length > 1 else np.int64(-1)
            if count > first_of_run:
                found.new_bound[runs] = first_of_run
                runs += 1
        elif x >= 0 and wide[x, REST] >= lowest:
            if wide[x, START] >= lowest:
                d += 1
                path[d] = narrow[x, CHILD]
            else:
                path[d] = narrow[x, NEXT]
            continue
        if d <= 1:
            break
        d -= 1
        path[d] = narrow[path[d], NEXT]
    found.new_bound[runs] = count
    swapped = merge_runs(count, runs, length, found)
    number = lists[p, L_NUMBER]
    for k in range(count):
        m = found.other[k] if swapped else found.order[k]
        for j in range(length):
            found.row[at + j] = found.new_row[m * length + j]
        at += length
        found.partition[before + k] = p
        number += 1
        found.number[before + k] = number
    lists[p, L_NUMBER] = number
    counters[C_FOUND] = before + count
    counters[C_ROWS] = at
    return OK


@called
def merge_runs(count, runs, length, found):
    """Puts new matches in order: run r is [new_bound[r], new_bound[r + 1]), and all are found backwards. Returns
    whether `other` has the order, instead of `order`."""
    order, other, bound = found.order, found.other, found.new_bound
    for k in range(count):
        order[k] = count - 1 - k
    for r in range((runs + 1) // 2):  # read from the back, runs begin elsewhere
        bound[r], bound[runs - r] = count - bound[runs - r], count - bound[r]
    if runs % 2 == 0:
        bound[runs // 2] = count - bound[runs // 2]
    swapped = False
    width = 1
    while width < runs:
        for r in range(0, runs, 2 * width):
            middle, high = bound[min(r + width, runs)], bound[min(r + 2 * width, runs)]
            merge(bound[r], middle, high, order, other, length, found)
        order, other = other, order
        swapped = not swapped
        width *= 2
    return swapped


@kernel
def unfold(most, count, at, cells, found, scratch, counters):
    """Writes the next matches of `count` kept ends, `most` at most and as many as there is room for, those of one end
    in the order of the graph: by the row before the last one, then by the row before that, and so on. at: see
    Unfolding. O(rows written), and O(its length) a list entered."""
    path = scratch.path
    bottom = scratch.bottom
    stack = scratch.stack
    found_now = 0
    rows = 0
    end, d, top = at[U_END], at[U_DEPTH], at[U_TOP]
    status = OK
    while end < count:
        lowest = scratch.kept[end, K_LOWEST]
        if d < 0:
            path[0] = scratch.kept[end, K_CELL]
            stack[0] = path[0]
            bottom[0] = 0
            top = np.int64(1)
            d = np.int64(0)
        if top == bottom[d]:
            d -= 1
            if d < 0:
                end += 1
            continue
        x = stack[top - 1]
        child = cells.narrow[x, CHILD]
        if child >= 0:
            if d + 1 >= len(path):
                status = ROOM_PATH if found_now == 0 else OK
                break
            above = push_list(child, lowest, cells, stack, top - 1)
            if above < 0:
                stack[top - 1] = x  # as it was, to be tried again
                status = ROOM_PATH if found_now == 0 else OK
                break
            path[d] = x
            d += 1
            bottom[d] = top - 1
            top = above
            continue
        if found_now == most:
            break
        if found_now + 1 >= len(found.bound):
            status = ROOM_FOUND if found_now == 0 else OK
            break
        if rows + d >= len(found.row):
            status = ROOM_FOUND if found_now == 0 else OK
            break
        top -= 1
        path[d] = x
        for j in range(d, -1, -1):
            found.row[rows] = cells.narrow[path[j], ROW]
            found.edge[rows] = cells.narrow[path[j], EDGE]
            rows += 1
        found.partition[found_now] = scratch.kept[end, K_PARTITION]
        found_now += 1
        found.bound[found_now] = rows
    at[U_END], at[U_DEPTH], at[U_TOP] = end, d, top
    counters[C_FOUND] = found_now
    counters[C_ROWS] = rows
    return status


@kernel
def count_paths(cell, lowest, cells, total, done, visit, stack):
    """Returns the number of matches of a kept end; MANY means so many or more. total, done: int64 (cells,); done is
    `visit` where total has the paths of the list that begins with the cell, of those with starts from `lowest` on.
    stack: longer than two times the cells. O(cells it can reach)."""
    if cells.narrow[cell, CHILD] < 0:
        return np.int64(1)
    stack[0] = cells.narrow[cell, CHILD]
    top = 1
    while top > 0:
        x = stack[top - 1]
        if done[x] == visit:
            top -= 1
            continue
        child = cells.narrow[x, CHILD] if cells.wide[x, START] >= lowest else np.int64(-1)
        behind = cells.narrow[x, NEXT]
        if behind >= 0 and cells.wide[behind, REST] < lowest:
            behind = np.int64(-1)
        waits = False
        if child >= 0 and done[child] != visit:
            stack[top] = child
            top += 1
            waits = True
        if behind >= 0 and done[behind] != visit:
            stack[top] = behind
            top += 1
            waits = True
        if waits:
            continue
        count = np.int64(0)
        if cells.wide[x, START] >= lowest:
            count = np.int64(1) if child < 0 else total[child]
        if behind >= 0:
            count = many_sum(count, total[behind])
        total[x] = count
        done[x] = visit
        top -= 1
    return total[cells.narrow[cell, CHILD]]


@kernel
def unroll(count, row, edge, edge_variable, ts, source, offset, seq,
           out_rows, out_variable, out_ts, out_source, out_offset, out_seq):  # fmt: skip
    """Rows and edges of the matches found, as their rows with variables and identities."""
    for j in range(count):
        at = row[j]
        out_rows[j] = at
        out_variable[j] = edge_variable[edge[j]]
        out_ts[j] = ts[at]
        out_source[j] = source[at]
        out_offset[j] = offset[at]
        out_seq[j] = seq[at]


@kernel
def mark_lists(ids, states, floor, lists, cells, lowest, moved):
    """Marks the first cells of all lists, see `mark_cells`; drops the lists that WITHIN has ended."""
    for p in ids:
        low = max(floor, lists[p, L_LOWEST])
        for q in range(1, states):
            c = lists[p, L_HEAD + q]
            if c >= 0 and cells.wide[c, REST] < low:
                lists[p, L_HEAD + q] = -1
            elif c >= 0:
                moved[c] = 0
                lowest[c] = low


@kernel
def mark_cells(cells, count, lowest, moved, keep):
    """moved: int64 (count,), 0 for the first cell of each list, else -1; set to the new index of every cell that these
    can reach, else -1. lowest: int64 (count,), for these the earliest start that counts; room for the others. keep:
    bool per row of the store, set for their rows. Returns the number of live cells."""
    for c in range(count - 1, -1, -1):
        if moved[c] < 0:
            continue
        low = lowest[c]
        child = cells.narrow[c, CHILD]
        if cells.wide[c, START] >= low:
            keep[cells.narrow[c, ROW]] = True
            if child >= 0:
                moved[child] = 0
                lowest[child] = low
        behind = cells.narrow[c, NEXT]
        if behind >= 0 and cells.wide[behind, REST] < low:
            cells.narrow[c, NEXT] = -1
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
def move_cells(cells, count, moved, row_moved):
    """Drops the cells that are not live and renumbers rows."""
    for c in range(count):
        to = moved[c]
        if to < 0:
            continue
        child = cells.narrow[c, CHILD]
        behind = cells.narrow[c, NEXT]
        cells.narrow[to, ROW] = row_moved[cells.narrow[c, ROW]]
        cells.narrow[to, EDGE] = cells.narrow[c, EDGE]
        # of a cell that WITHIN has ended, kept for the cells after it, the children may have been dropped: none is read
        cells.narrow[to, CHILD] = moved[child] if child >= 0 else -1
        cells.narrow[to, NEXT] = moved[behind] if behind >= 0 else -1
        cells.wide[to, START] = cells.wide[c, START]
        cells.wide[to, REST] = cells.wide[c, REST]


@kernel
def move_lists(ids, states, lists, moved):
    """Renumbers the first cells of all lists."""
    for p in ids:
        for q in range(1, states):
            if lists[p, L_HEAD + q] >= 0:
                lists[p, L_HEAD + q] = moved[lists[p, L_HEAD + q]]


@kernel
def own_lists(states, ids, lists, owner):
    """owner: per cell, set to the place of its partition among `ids` for the first cell of each of its lists."""
    for k in range(len(ids)):
        for q in range(1, states):
            c = lists[ids[k], L_HEAD + q]
            if c >= 0:
                owner[c] = k


@kernel
def own_cells(count, cells, moved, owner):
    """owner: int64 (count,), -1 but for first cells; set for all live cells (`mark_cells`) below them. Cells of one
    partition are below cells of that partition only."""
    for c in range(count - 1, -1, -1):
        if moved[c] >= 0 and owner[c] >= 0:
            child = cells.narrow[c, CHILD]
            behind = cells.narrow[c, NEXT]
            if child >= 0 and moved[child] >= 0:
                owner[child] = owner[c]
            if behind >= 0 and moved[behind] >= 0:
                owner[behind] = owner[c]
