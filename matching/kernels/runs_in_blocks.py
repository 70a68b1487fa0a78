"""Runs that stand side by side, a block of lines for each partition: their layout, and how they move in memory.

Blocks have 1 << size lines and are reused. Rows and nodes of runs are marked and renumbered when the store drops some,
and partitions leave memory and come back (matching.tenant). How runs change is in matching.kernels.skip_till.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.match_buffer import mark_chain, mark_one
from matching.program.program import Program


class Run(IntEnum):
    """Columns of a run, followed by its registers and, if rows are negated before a match, by NEAREST and SAID of its
    partition as they were before its first row.

    A line of the state WAITS is that of the waiting matches of a start: NODE is the last node of the one that came
    last, and VALID, where only one of a start waits, the ordinal of its last row."""

    STATE = 0
    FIRST = 1  # ordinal of the first row in its partition
    TS = 2  # time of the first row
    ROW = 3  # position of the first row in the row store
    NODE = 4  # last node in the match buffer
    VALID = 5  # bit r: register r is not null
    PASSED = 6  # bits of the rows passed over; see BAD_SHIFT
    BAD_NODE = 7  # 1 + node of a row passed over whose negated condition could not be computed
    REGISTERS = 8


class Block(IntEnum):
    """Columns of a partition. Its runs are lines [BASE + BEGIN, BASE + BEGIN + LENGTH) of 1 << SIZE (-1: no block).
    Those from NEAREST on are there only if rows are negated before or after a match, or if a match ends runs of
    several partitions."""

    BASE = 0
    BEGIN = 1
    LENGTH = 2
    SIZE = 3
    ORDINAL = 4  # rows seen
    NUMBER = 5  # matches found
    QUEUED = 6  # 1 if it has an entry in the deadline heap
    NEAREST = 7  # time (WITHIN n ROWS: ordinal) of the last row negated before a match
    SAID = 8  # 0: there was none; -1: it meets the condition; > 0: that cannot be computed, see LABEL_BITS
    WAITING = 9  # matches that wait
    RESUME = 10  # of matches that do not overlap: starts before this ordinal give none
    MATCHES = 11  # how many matches of its group, see Groups, came before its runs began


STATE = int(Run.STATE)
FIRST = int(Run.FIRST)
TS = int(Run.TS)
ROW = int(Run.ROW)
NODE = int(Run.NODE)
VALID = int(Run.VALID)
PASSED = int(Run.PASSED)
BAD_NODE = int(Run.BAD_NODE)
REGISTERS = int(Run.REGISTERS)
BASE = int(Block.BASE)
BEGIN = int(Block.BEGIN)
LENGTH = int(Block.LENGTH)
SIZE = int(Block.SIZE)
ORDINAL = int(Block.ORDINAL)
NUMBER = int(Block.NUMBER)
QUEUED = int(Block.QUEUED)
NEAREST = int(Block.NEAREST)
SAID = int(Block.SAID)
WAITING = int(Block.WAITING)
RESUME = int(Block.RESUME)
MATCHES = int(Block.MATCHES)

#: The state of a line of matches that wait.
WAITS = -1
#: SAID of a row whose condition cannot be computed is 1 + (its position in the row store << LABEL_BITS | the label).
LABEL_BITS = 6
LABELS = (1 << LABEL_BITS) - 1


class Groups(NamedTuple):
    """Partitions of which a match of one ends the runs of all: further columns divide the rows (matching.tied), and
    matches may not overlap. The runs of the others go when a row of theirs comes, or with `drop_ended`. group: int64
    (partitions,). matches: int64 (groups,), how many there were."""

    group: np.ndarray
    matches: np.ndarray


class Runs(NamedTuple):
    """line: int64 (n, REGISTERS + registers), runs in blocks of 1 << size lines; line_f: the same memory as float64.
    spare: int64 (64,), the first of the blocks of each size that are free, -1 none; a free block's first number is the
    next one. top: int64 (2,), lines handed out, and how many of them are in free blocks. behind: int64, per node of
    the match buffer that a match which waits ends in, the one of its start that came before it, -1 none; empty if no
    match waits. groups: None if a match ends runs of its own partition only."""

    line: np.ndarray
    line_f: np.ndarray
    spare: np.ndarray
    top: np.ndarray
    behind: np.ndarray
    groups: Groups | None


def width_of(program: Program) -> int:
    """Columns of a line."""
    return REGISTERS + len(program.registers) + (2 if program.absence.before else 0)


def block_columns(program: Program, grouped: bool) -> int:
    """Columns of a partition. grouped: a match ends runs of several partitions."""
    if grouped:
        return len(Block)
    return MATCHES if program.absence.before or program.absence.behind else NEAREST


# ---- room for runs


@called
def size_for(lines):
    """The smallest size of a block of so many lines."""
    size = 1
    while (np.int64(1) << size) < lines:
        size += 1
    return size


@called
def take_block(size, runs):
    """Returns the first line of a free block."""
    base = runs.spare[size]
    if base >= 0:
        runs.spare[size] = runs.line[base, 0]
        runs.top[1] -= np.int64(1) << size
        return base
    base = runs.top[0]
    runs.top[0] = base + (np.int64(1) << size)
    return base


@called
def give_block(base, size, runs):
    runs.line[base, 0] = runs.spare[size]
    runs.spare[size] = base
    runs.top[1] += np.int64(1) << size


@called
def copy_lines(of, count, to, runs):
    width = runs.line.shape[1]
    if to < of:
        for k in range(count):
            for c in range(width):
                runs.line[to + k, c] = runs.line[of + k, c]
    else:
        for k in range(count - 1, -1, -1):
            for c in range(width):
                runs.line[to + k, c] = runs.line[of + k, c]


@called
def make_gap(p, low, write, read, stop, blocks, runs):
    """Runs [low, write) have been written, [read, stop) not read yet: makes room between. Returns the new bounds."""
    written = write - low
    unread = stop - read
    size = blocks[p, SIZE]
    base = blocks[p, BASE]
    to = base
    if size < 0 or 4 * (written + unread + 1) > 3 * (np.int64(1) << size):
        larger = size_for(2 * (written + unread + 1))
        to = take_block(larger, runs)
        room = np.int64(1) << larger
        copy_lines(read, unread, to + room - unread, runs)
        copy_lines(low, written, to, runs)
        if size >= 0:
            give_block(base, size, runs)
        blocks[p, BASE] = to
        blocks[p, SIZE] = larger
    else:  # the written ones come before those not read
        room = np.int64(1) << size
        copy_lines(low, written, to, runs)
        copy_lines(read, unread, to + room - unread, runs)
    return to, to + written, to + room - unread, to + room


@called
def leave_block(p, blocks, runs):
    """The partition has no runs."""
    give_block(blocks[p, BASE], blocks[p, SIZE], runs)
    blocks[p, BASE] = 0
    blocks[p, BEGIN] = 0
    blocks[p, LENGTH] = 0
    blocks[p, SIZE] = -1


@called
def drop_if_ended(p, groups, runs, blocks):
    """Drops the runs of a partition that a match of another one of its group has ended."""
    if groups is None:
        return
    matches = groups.matches[groups.group[p]]
    if blocks[p, MATCHES] != matches:
        blocks[p, MATCHES] = matches
        if blocks[p, SIZE] >= 0:
            leave_block(p, blocks, runs)


@called
def end_group(p, groups, blocks):
    """A match of a partition ends the runs of all others of its group."""
    if groups is None:
        return
    groups.matches[groups.group[p]] += 1
    blocks[p, MATCHES] += 1


@kernel
def drop_ended(groups, runs, blocks):
    """Drops all runs that a match of another partition of their group has ended."""
    for p in range(len(groups.group)):
        drop_if_ended(p, groups, runs, blocks)


# ---- rows and nodes that runs refer to


@kernel
def keep_negated(ids, runs, blocks, keep):
    """Marks the rows before a match whose negated condition cannot be computed."""
    said = runs.line.shape[1] - 1
    for p in ids:
        if blocks[p, SAID] > 0:
            keep[(blocks[p, SAID] - 1) >> LABEL_BITS] = True
        low = blocks[p, BASE] + blocks[p, BEGIN]
        for at in range(low, low + blocks[p, LENGTH]):
            if runs.line[at, said] > 0:
                keep[(runs.line[at, said] - 1) >> LABEL_BITS] = True


@inlined
def moved_row(said, row_moved):
    return 1 + (row_moved[(said - 1) >> LABEL_BITS] << LABEL_BITS | (said - 1) & LABELS)


@kernel
def move_negated(ids, runs, blocks, row_moved):
    """Renumbers the rows that `keep_negated` marks."""
    said = runs.line.shape[1] - 1
    for p in ids:
        if blocks[p, SAID] > 0:
            blocks[p, SAID] = moved_row(blocks[p, SAID], row_moved)
        low = blocks[p, BASE] + blocks[p, BEGIN]
        for at in range(low, low + blocks[p, LENGTH]):
            if runs.line[at, said] > 0:
                runs.line[at, said] = moved_row(runs.line[at, said], row_moved)


@kernel
def oldest_row(ids, runs, blocks, rows):
    """The first row of the oldest run of all; `rows` if there is none."""
    oldest = rows
    for p in ids:
        if blocks[p, LENGTH] > 0:
            row = runs.line[blocks[p, BASE] + blocks[p, BEGIN], ROW]
            oldest = min(oldest, row)
    return oldest


@kernel
def cut_runs(ids, runs, blocks, first, row_moved):
    """Renumbers the nodes and rows of all runs: the nodes before `first` are dropped."""
    for p in ids:
        low = blocks[p, BASE] + blocks[p, BEGIN]
        for at in range(low, low + blocks[p, LENGTH]):
            if runs.line[at, BAD_NODE] > 0:
                runs.line[at, BAD_NODE] -= first
            runs.line[at, NODE] -= first
            runs.line[at, ROW] = row_moved[runs.line[at, ROW]]


@kernel
def cut_waiting(nodes, first, runs):
    """Renumbers the nodes of matches that wait: those before `first` are dropped."""
    for n in range(first, nodes):
        runs.behind[n - first] = max(runs.behind[n] - first, -1)


@kernel
def move_waiting(nodes, runs, moved):
    """Renumbers the nodes of matches that wait. The entries of other nodes are earlier than these, too."""
    for n in range(nodes):
        if moved[n] >= 0:
            behind = runs.behind[n]
            runs.behind[moved[n]] = moved[behind] if behind >= 0 else -1


@kernel
def mark_runs(ids, runs, blocks, buffer, moved, keep):
    """Marks the nodes and rows that runs can reach; see matching.kernels.match_buffer."""
    for p in ids:
        low = blocks[p, BASE] + blocks[p, BEGIN]
        for at in range(low, low + blocks[p, LENGTH]):
            mark_one(runs.line[at, BAD_NODE] - 1, buffer, moved, keep)
            keep[runs.line[at, ROW]] = True
            node = runs.line[at, NODE]
            mark_chain(node, buffer, moved, keep)
            if runs.line[at, STATE] == WAITS:
                while runs.behind[node] >= 0:
                    node = runs.behind[node]
                    mark_chain(node, buffer, moved, keep)


@kernel
def mark_positions(ids, runs, blocks, positions, keep):
    """Marks the rows whose positions are in registers. positions: int64, these registers."""
    for p in ids:
        low = blocks[p, BASE] + blocks[p, BEGIN]
        for at in range(low, low + blocks[p, LENGTH]):
            for r in positions:
                if (runs.line[at, VALID] >> r) & 1 != 0:
                    keep[runs.line[at, REGISTERS + r]] = True


@kernel
def move_positions(ids, runs, blocks, positions, row_moved):
    """Renumbers the rows whose positions are in registers."""
    for p in ids:
        low = blocks[p, BASE] + blocks[p, BEGIN]
        for at in range(low, low + blocks[p, LENGTH]):
            for r in positions:
                if (runs.line[at, VALID] >> r) & 1 != 0:
                    runs.line[at, REGISTERS + r] = row_moved[runs.line[at, REGISTERS + r]]


@kernel
def move_runs(ids, runs, blocks, moved, row_moved):
    """Renumbers the nodes and rows of all runs."""
    for p in ids:
        low = blocks[p, BASE] + blocks[p, BEGIN]
        for at in range(low, low + blocks[p, LENGTH]):
            if runs.line[at, BAD_NODE] > 0:
                runs.line[at, BAD_NODE] = moved[runs.line[at, BAD_NODE] - 1] + 1
            if runs.line[at, NODE] >= 0:
                runs.line[at, NODE] = moved[runs.line[at, NODE]]
            runs.line[at, ROW] = row_moved[runs.line[at, ROW]]


@kernel
def place_blocks(ids, lengths, runs, blocks):
    """Gives each of these partitions, which have none, a block for its runs; there is room for `lines_for`
    lines."""
    for k in range(len(ids)):
        if lengths[k] > 0:
            size = size_for(2 * (lengths[k] + 1))
            blocks[ids[k], BASE] = take_block(size, runs)
            blocks[ids[k], SIZE] = size
            blocks[ids[k], LENGTH] = lengths[k]


@kernel
def lines_for(lengths):
    """Lines of the blocks for so many runs each."""
    lines = 0
    for n in lengths:
        if n > 0:
            lines += np.int64(1) << size_for(2 * (n + 1))
    return lines


@kernel
def leave_blocks(ids, blocks, runs):
    """These partitions have no blocks any more."""
    for p in ids:
        if blocks[p, SIZE] >= 0:
            leave_block(p, blocks, runs)
