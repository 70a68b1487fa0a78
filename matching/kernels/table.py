"""The table kernel: row-local patterns whose lists of runs are the states of one table (matching.program.determinise).

A row costs one look-up and one store; the match buffer is a trail with one word a row (the row before in the partition
and the transition taken), read backwards when a match is handed out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, kernel
from matching.program.determinise import TRANSITIONS_MAX, ListTable

#: A word of the trail is (position of the row before in its partition) << SHIFT | transition.
SHIFT = 13
TRANSITION = (1 << SHIFT) - 1
assert TRANSITIONS_MAX <= TRANSITION


class TableArrays(NamedTuple):
    """masks: int64 (1,); next, emitted: int64 per transition; item_start: int64 (transitions + 1,) into parent and
    variable; waiting_start: int64 (lists + 1,) into waiting, the items of a list that are matches."""

    masks: np.ndarray
    next: np.ndarray
    emitted: np.ndarray
    item_start: np.ndarray
    parent: np.ndarray
    variable: np.ndarray
    waiting_start: np.ndarray
    waiting: np.ndarray


def table_arrays(table: ListTable) -> TableArrays:
    items = [item for t in table.transitions for item in t.items]
    starts = np.zeros(len(table.transitions) + 1, np.int64)
    starts[1:] = np.cumsum([len(t.items) for t in table.transitions])
    waiting = [[i for i, state in enumerate(runs) if state < 0] for runs in table.lists]
    waiting_start = np.zeros(len(table.lists) + 1, np.int64)
    waiting_start[1:] = np.cumsum([len(w) for w in waiting])

    def ints(values: list[int]) -> np.ndarray:
        return np.array(values, np.int64)

    return TableArrays(
        ints([table.masks]), ints([t.next for t in table.transitions]), ints([t.emitted for t in table.transitions]),
        starts, ints([p for p, _ in items]), ints([v for _, v in items]), waiting_start,
        ints([i for w in waiting for i in w]),
    )  # fmt: skip


class TableDecided(NamedTuple):
    """Matches decided by one call, in order: the row at which the walk back begins, and the item of its transition."""

    row: np.ndarray
    item: np.ndarray
    partition: np.ndarray
    number: np.ndarray


@called
def end_runs(p, table, state, number, last, trail, decided, n):
    """All runs of partition p fail; the matches that waited are decided. Returns the new count of decided matches."""
    at = state[p]
    row = last[p]
    for w in range(table.waiting_start[at], table.waiting_start[at + 1]):
        number[p] += 1
        decided.row[n] = row
        decided.item[n] = table.waiting[w] + table.emitted[trail[row] & TRANSITION]
        decided.partition[n] = p
        decided.number[n] = number[p]
        n += 1
    state[p] = 0
    return n


@kernel
def step_table(
    begin, end, partition, mask, row, strict, last_partition, table, state, number, last, trail, decided, n
):  # fmt: skip
    """Takes the rows [begin, end) through the table; returns (next row, decided matches, partition of the last row).

    partition, mask, row: int64; mask has a bit a tested variable. state, number: per partition its list and its last
    MATCH_NUMBER; last: per partition the position of its last row, -1 none; trail: one word per row of the store.
    Stops early when `decided` may be too small. O(rows).
    """
    masks = table.masks[0]
    room = len(decided.row) - (len(table.parent) + len(table.waiting) + 2)
    for i in range(begin, end):
        if n > room:
            return i, n, last_partition
        p = partition[i]
        if strict and last_partition != p:
            if last_partition >= 0:
                n = end_runs(last_partition, table, state, number, last, trail, decided, n)
            last_partition = p
        transition = state[p] * masks + mask[i]
        position = row[i]
        trail[position] = (last[p] << SHIFT) | transition
        last[p] = position
        state[p] = table.next[transition]
        for j in range(table.emitted[transition]):
            number[p] += 1
            decided.row[n] = position
            decided.item[n] = j
            decided.partition[n] = p
            decided.number[n] = number[p]
            n += 1
    return end, n, last_partition


@kernel
def finish_table(begin, count, table, state, number, last, trail, decided, n):
    """The input has ended for partitions [begin, count); returns (next partition, decided matches)."""
    for p in range(begin, count):
        if n + len(table.waiting) + 1 > len(decided.row):
            return p, n
        n = end_runs(p, table, state, number, last, trail, decided, n)
    return count, n


@kernel
def read_back(
    decided, count, table, trail, bounds, rows, variables, start,
    ts, source, offset, seq, out_ts, out_source, out_offset, out_seq,
):  # fmt: skip
    """Reads each match back along the trail; writes its rows in order with their variables and identities (these if
    there is room for them), the running number of matched rows (bounds) and the row where it began. Of one partition,
    two matches share no more than the last row of the one and the first of the other."""
    n = 0
    bounds[0] = 0
    for k in range(count):
        r = decided.row[k]
        word = trail[r]
        at = table.item_start[word & TRANSITION] + decided.item[k]
        begin = n
        while True:
            v = table.variable[at]
            if v >= 0:
                rows[n] = r
                variables[n] = v
                n += 1
            parent = table.parent[at]
            if parent < 0:
                break
            r = word >> SHIFT
            word = trail[r]
            transition = word & TRANSITION
            at = table.item_start[transition] + parent + table.emitted[transition]
        start[k] = r
        bounds[k + 1] = n
        low, high = begin, n - 1
        while low < high:
            rows[low], rows[high] = rows[high], rows[low]
            variables[low], variables[high] = variables[high], variables[low]
            low += 1
            high -= 1
    for i in range(n if len(out_ts) > 0 else 0):
        r = rows[i]
        out_ts[i] = ts[r]
        out_source[i] = source[r]
        out_offset[i] = offset[r]
        out_seq[i] = seq[r]


@kernel
def keep_table(ids, table, state, list_length, last, trail, keep):
    """Marks the rows that a run or a waiting match of any partition can be read back to: those of the first item of the
    list, which began earliest. list_length: items of each list."""
    for p in ids:
        if list_length[state[p]] == 0:
            continue
        r = last[p]
        word = trail[r]
        transition = word & TRANSITION
        at = table.item_start[transition] + table.emitted[transition]
        while True:
            keep[r] = True
            parent = table.parent[at]
            if parent < 0:
                break
            r = word >> SHIFT
            word = trail[r]
            transition = word & TRANSITION
            at = table.item_start[transition] + parent + table.emitted[transition]


@kernel
def first_rows(table, state, list_length, last, trail, begin):
    """Finds, per partition, the row where the first item of its list began; -1: it is empty. begin: (partitions,)."""
    for p in range(len(begin)):
        begin[p] = -1
        if list_length[state[p]] == 0:
            continue
        r = last[p]
        word = trail[r]
        transition = word & TRANSITION
        at = table.item_start[transition] + table.emitted[transition]
        while table.parent[at] >= 0:
            parent = table.parent[at]
            r = word >> SHIFT
            word = trail[r]
            transition = word & TRANSITION
            at = table.item_start[transition] + parent + table.emitted[transition]
        begin[p] = r


@kernel
def move_trail(kept, row_moved, trail):
    """Keeps the words of the rows `kept`, in order, and renumbers the rows they point to; -1 where one has left. A row
    that was never taken has a word that means nothing."""
    for i in range(len(kept)):
        word = trail[kept[i]]
        before = word >> SHIFT
        before = row_moved[before] if 0 <= before < len(row_moved) else -1
        trail[i] = (before << SHIFT) | (word & TRANSITION)
