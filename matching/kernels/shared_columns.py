"""The tables of a sharing plan, and where its records are: see matching.workload.plan.

A node holds what one partition counts in one window. For each set of several queries it has a list of columns. A column
belongs to a snapshot: a record of coefficients for each node of the template in the set (a cell), and the values of the
snapshot, a record for each query. The record of a query in a cell is the sum of coefficient times value over the
columns. The column of the start has no values: they are 1. A set may also be split: then it has one column, with the
record of each query in each cell itself. What a query counts alone is a set of its own, which has no columns: it is a
block of its records, by cell.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.shared_records import add_composed, add_same, bits_composed, lay_record, widen_records
from matching.kernels.trend_records import NONE

#: Bits above a product for the number of columns that are added up.
SUM_BITS = 24

#: What a column is: of the start, of a snapshot, or of a split set.
OF_START = -1
OF_SNAPSHOT = -2
SPLIT = -3


class Sets(NamedTuple):
    """The tables of a sharing plan.

    label_kind: the kind of the events of each condition. Events of kind t come to the cells [kind_begin[t],
    kind_begin[t + 1]) of op_*: op_set (NONE: of all queries that share the node with nobody), op_cell (index in its
    set), op_class (of the node, for sums), op_same (True if its queries have one condition), op_start (all its queries
    start there), op_outside (some come from elsewhere, by gates), op_foreign (some come from other sets). An op has the
    entries [entry[op], entry[op + 1]), one for each of its queries: label, the index of the condition; entry_set,
    entry_cell and entry_query, the cell and the index in its set; entry_start, True if trends start there; and the
    sources [source[e], source[e + 1]): source_set (NONE: the start), source_cell, source_query (index in that set),
    source_inside (True: passed on by coefficients). The cell itself is its first source.
    inside_cell[inside[op]:inside[op + 1]]: the sources that are passed on. The gates of reader[read_by[p]:read_by[p +
    1]] end when cell p changes, with p = first[g] + c for cell c of set g.

    Per set, those of one query last: cells, queries, first, starts (True if all its queries start in it), own (True: of
    one query), limit: columns above which it splits; burst: kind of event whose bursts decide whether it shares, NONE:
    none. Of query j of set g there is the row m = member[g] + j: member_query, its number; its sums, in their order,
    are at member_map[member_map_of[m]:member_map_of[m + 1]] among those of their kind in the set. Query q has the
    trends of last_*[last[q]:last[q + 1]]: set, cell, query in it.
    """

    label_kind: np.ndarray
    kind_begin: np.ndarray
    op_set: np.ndarray
    op_cell: np.ndarray
    op_class: np.ndarray
    op_same: np.ndarray
    op_start: np.ndarray
    op_outside: np.ndarray
    op_foreign: np.ndarray
    entry: np.ndarray
    label: np.ndarray
    entry_set: np.ndarray
    entry_cell: np.ndarray
    entry_query: np.ndarray
    entry_start: np.ndarray
    source: np.ndarray
    source_set: np.ndarray
    source_cell: np.ndarray
    source_query: np.ndarray
    source_inside: np.ndarray
    inside: np.ndarray
    inside_cell: np.ndarray
    read_by: np.ndarray
    reader: np.ndarray
    cells: np.ndarray
    queries: np.ndarray
    first: np.ndarray
    starts: np.ndarray
    own: np.ndarray
    limit: np.ndarray
    burst: np.ndarray
    member: np.ndarray
    member_query: np.ndarray
    member_map_of: np.ndarray
    member_map: np.ndarray
    last: np.ndarray
    last_set: np.ndarray
    last_cell: np.ndarray
    last_query: np.ndarray
    within_us: int
    slide_us: int
    bursts: bool


class SharedNode(IntEnum):
    """Columns of the nodes, int64 (nodes, 7)."""

    PARTITION = 0
    NEXT = 1  # of the same window, or the next free one
    WIDTH = 2  # limbs in use
    FULL = 3  # 1: the next event needs one limb more
    WINDOW = 4
    KIND = 5  # of the last event
    BURST = 6  # events of this kind in a row


class SharedColumn(IntEnum):
    """Columns of the columns, int64 (columns, 4)."""

    NEXT = 0  # of the same node and set, or the next free one
    AT = 1  # where it begins in Room.data
    OF = 2  # OF_START, OF_SNAPSHOT or SPLIT
    SET = 3


class SharedCounter(IntEnum):
    """Numbers that outlive a call, int64 (12,)."""

    USED = 0  # nodes ever used
    FREE = 1  # first free one of them
    OPEN = 2  # nodes of open windows
    CLOSED_BEFORE = 3  # windows before this one are closed
    SLOT = 4  # where to go on in a row after a lack of room
    OUT = 5  # rows of output
    VALUE_BITS = 6  # of the largest value of a row, for the room above a number
    LIVE = 7  # 1: CLOSED_BEFORE has been set
    COLUMNS_USED = 8
    DATA_USED = 9
    OPENED = 10  # nodes since the start
    SNAPSHOTS = 11  # columns since the start, besides those of starts


PARTITION = int(SharedNode.PARTITION)
NEXT_NODE = int(SharedNode.NEXT)
WIDTH = int(SharedNode.WIDTH)
FULL = int(SharedNode.FULL)
WINDOW = int(SharedNode.WINDOW)
KIND = int(SharedNode.KIND)
BURST = int(SharedNode.BURST)
C_NEXT = int(SharedColumn.NEXT)
C_AT = int(SharedColumn.AT)
C_OF = int(SharedColumn.OF)
C_SET = int(SharedColumn.SET)
USED = int(SharedCounter.USED)
FREE = int(SharedCounter.FREE)
OPEN = int(SharedCounter.OPEN)
CLOSED_BEFORE = int(SharedCounter.CLOSED_BEFORE)
SLOT = int(SharedCounter.SLOT)
OUT = int(SharedCounter.OUT)
VALUE_BITS = int(SharedCounter.VALUE_BITS)
LIVE = int(SharedCounter.LIVE)
COLUMNS_USED = int(SharedCounter.COLUMNS_USED)
DATA_USED = int(SharedCounter.DATA_USED)
OPENED = int(SharedCounter.OPENED)
SNAPSHOTS = int(SharedCounter.SNAPSHOTS)


class Room(NamedTuple):
    """Nodes and what they refer to. heads: int64 (nodes, sets), the first column of a set, and of a set of one query
    where its block begins in `data`, NONE: it has counted nothing; counts: int64 (nodes, sets of several queries), how
    many columns one has. gates: int64 (nodes, ops), the gate of an op while it has the values of its sources, NOTHING
    while they have none, else NONE. of: int32 (partitions, slots), the node of each partition and window; first: int64
    (slots,), the first node of each open window. columns: see SharedColumn; free: int64 (3 * sets,), the first free
    column of each set: of starts, of snapshots, split ones, or its first free block; a free column keeps its set, and a
    block begins with the next one. bursts: float64 (sets,), the usual length of a burst. data: int64, the records of
    all columns. out: int64 (rows, 3 + size of the largest record of a query): query, partition, window and record of
    closed windows with a trend. gathered: int64 (queries, the same size), room for a snapshot."""

    nodes: np.ndarray
    heads: np.ndarray
    counts: np.ndarray
    gates: np.ndarray
    of: np.ndarray
    first: np.ndarray
    columns: np.ndarray
    free: np.ndarray
    bursts: np.ndarray
    data: np.ndarray
    out: np.ndarray
    gathered: np.ndarray
    counters: np.ndarray


@inlined
def way_of(of):
    """0 for a column of the start, 1 of a snapshot, 2 of a split set."""
    return 2 if of == SPLIT else 0 if of == OF_START else 1


@inlined
def new_column(room, layouts, node, g, of):
    """A column of a node and set, with empty records."""
    counters = room.counters
    way = way_of(of)
    c = room.free[3 * g + way]
    size = layouts.column[3 * g + way]
    if c >= 0:
        room.free[3 * g + way] = room.columns[c, C_NEXT]
    else:
        c = counters[COLUMNS_USED]
        counters[COLUMNS_USED] = c + 1
        room.columns[c, C_AT] = counters[DATA_USED]
        room.columns[c, C_OF] = of
        room.columns[c, C_SET] = g
        counters[DATA_USED] += size
    at = room.columns[c, C_AT]
    for i in range(at, at + size):
        room.data[i] = 0
    room.columns[c, C_NEXT] = room.heads[node, g]
    room.heads[node, g] = c
    room.counts[node, g] += 1
    if way == 1:
        counters[SNAPSHOTS] += 1
    return c


@inlined
def new_block(room, layouts, node, g):
    """The block of a node and a set of one query, with empty records."""
    at = room.free[3 * g + 2]
    size = layouts.column[3 * g + 2]
    if at >= 0:
        room.free[3 * g + 2] = room.data[at]
    else:
        at = room.counters[DATA_USED]
        room.counters[DATA_USED] = at + size
    for i in range(at, at + size):
        room.data[i] = 0
    room.heads[node, g] = at
    return at


@inlined
def drop_set(sets, room, node, g):
    """Frees the columns or the block of a set."""
    c = room.heads[node, g]
    if sets.own[g]:
        if c >= 0:
            room.data[c] = room.free[3 * g + 2]
            room.free[3 * g + 2] = c
            room.heads[node, g] = NONE
        return
    while c >= 0:
        after = room.columns[c, C_NEXT]
        way = way_of(room.columns[c, C_OF])
        room.columns[c, C_NEXT] = room.free[3 * g + way]
        room.free[3 * g + way] = c
        c = after
    room.heads[node, g] = NONE
    room.counts[node, g] = 0


@inlined
def is_split(room, node, g):
    """True if a set of several queries has records of each."""
    c = room.heads[node, g]
    return c >= 0 and room.columns[c, C_OF] == SPLIT


@inlined
def own_record(sets, layouts, column_at, g, cell, query):
    """Where a query's record in a cell begins, in a split column or a block."""
    member = sets.member[g] + query
    return column_at + layouts.own_at[member] + cell * layouts.size[sets.member_query[member]]


@inlined
def add_value(to, t, sets, room, node, g, cell, query, width, sums, layouts):
    """Adds the record of a query in a cell of a set, in the layout of the query."""
    member = sets.member[g] + query
    q, lay = sets.member_query[member], layouts.queries + g
    c = room.heads[node, g]
    while c >= 0:
        at = c if sets.own[g] else room.columns[c, C_AT]
        if sets.own[g] or room.columns[c, C_OF] == SPLIT:
            record = own_record(sets, layouts, at, g, cell, query)
            if room.data[record] != 0:
                add_same(to, t, room.data, record, q, width, sums, layouts)
            return
        coefficient = at + cell * layouts.size[lay]
        if room.data[coefficient] != 0:
            value = np.int64(NONE)
            some = True
            if room.columns[c, C_OF] != OF_START:
                value = at + layouts.value_at[member]
                some = room.data[value] != 0
            if some:
                add_composed(
                    to, t, coefficient, room.data, value, member, q, lay, room.data, width, sets, sums, layouts
                )
        c = room.columns[c, C_NEXT]


@inlined
def bits_of_value(sets, room, node, g, cell, query, width, layouts):
    """More bits than any whole number of a query's record in a cell has, as products; 0 if there are none."""
    member = sets.member[g] + query
    q, lay = sets.member_query[member], layouts.queries + g
    most = np.int64(0)
    c = np.int64(NONE) if sets.own[g] else room.heads[node, g]
    while c >= 0:
        at = room.columns[c, C_AT]
        if room.columns[c, C_OF] == SPLIT:
            return np.int64(0)
        coefficient, value = at + cell * layouts.size[lay], at + layouts.value_at[member]
        if room.columns[c, C_OF] != OF_START and room.data[coefficient] != 0 and room.data[value] != 0:
            most = max(most, bits_composed(coefficient, value, member, q, room.data, width, sets, layouts))
        c = room.columns[c, C_NEXT]
    return most


@called
def widen(sets, room, node, layouts):
    """Gives the numbers of a node one limb more."""
    width = room.nodes[node, WIDTH]
    for g in range(len(sets.cells)):
        c = room.heads[node, g]
        if sets.own[g]:
            if c >= 0:
                widen_records(room.data, c, sets.cells[g], sets.member_query[sets.member[g]], width, layouts)
            continue
        while c >= 0:
            of, at = room.columns[c, C_OF], room.columns[c, C_AT]
            if of != SPLIT:
                widen_records(room.data, at, sets.cells[g], layouts.queries + g, width, layouts)
            for query in range(sets.queries[g] if of != OF_START else 0):
                member = sets.member[g] + query
                first = at + (layouts.own_at[member] if of == SPLIT else layouts.value_at[member])
                many = sets.cells[g] if of == SPLIT else 1
                widen_records(room.data, first, many, sets.member_query[member], width, layouts)
            c = room.columns[c, C_NEXT]
    room.nodes[node, WIDTH] = width + 1
    room.nodes[node, FULL] = 0


@inlined
def make_wide(sets, room, node, bits, layouts):
    """Makes the numbers of a node wide enough for so many bits; False if records have no room."""
    if bits + 1 > 64 * layouts.limbs:
        return False
    while bits + 1 > 64 * room.nodes[node, WIDTH]:
        widen(sets, room, node, layouts)
    return True


@called
def split(sets, room, node, g, sums, layouts):
    """Gives each query of a set records of its own; False if they have no room."""
    if sets.own[g] or room.heads[node, g] < 0 or is_split(room, node, g):
        return True
    k, m = sets.cells[g], sets.queries[g]
    most = np.int64(0)
    for cell in range(k):
        for query in range(m):
            most = max(most, bits_of_value(sets, room, node, g, cell, query, room.nodes[node, WIDTH], layouts))
    if not make_wide(sets, room, node, most + SUM_BITS + room.counters[VALUE_BITS], layouts):
        return False
    width = room.nodes[node, WIDTH]
    old = room.heads[node, g]
    count = room.counts[node, g]
    c = new_column(room, layouts, node, g, SPLIT)
    at = room.columns[c, C_AT]
    room.heads[node, g] = old
    for query in range(m):
        for cell in range(k):
            record = own_record(sets, layouts, at, g, cell, query)
            add_value(room.data, record, sets, room, node, g, cell, query, width, sums, layouts)
    room.counts[node, g] = count
    drop_set(sets, room, node, g)
    room.columns[c, C_NEXT] = NONE
    room.heads[node, g] = c
    room.counts[node, g] = 1
    for op in range(len(sets.op_set)):
        if sets.op_set[op] == g:
            room.gates[node, op] = NONE
    return True


@called
def share(sets, room, node, g, layouts):
    """Makes a snapshot of each cell of a split set."""
    if not is_split(room, node, g):
        return
    own = room.heads[node, g]
    at = room.columns[own, C_AT]
    room.heads[node, g] = NONE
    room.counts[node, g] = 0
    if sets.starts[g]:
        new_column(room, layouts, node, g, OF_START)
    for cell in range(sets.cells[g]):
        alive = False
        for query in range(sets.queries[g]):
            alive |= room.data[own_record(sets, layouts, at, g, cell, query)] != 0
        if not alive:
            continue
        to = room.columns[new_column(room, layouts, node, g, OF_SNAPSHOT), C_AT]
        one = to + cell * layouts.size[layouts.queries + g]
        room.data[one] = 1
        room.data[one + 1] = 1
        for query in range(sets.queries[g]):
            record = own_record(sets, layouts, at, g, cell, query)
            member = sets.member[g] + query
            for i in range(layouts.size[sets.member_query[member]]):
                room.data[to + layouts.value_at[member] + i] = room.data[record + i]
    room.columns[own, C_NEXT] = room.free[3 * g + 2]
    room.free[3 * g + 2] = own


@kernel
def lay_out(sets, room, used, old, new, was, now):
    """Copies all columns and the blocks of the first `used` nodes to layouts with more limbs. Returns how much room
    they take."""
    end = np.int64(0)
    columns = room.columns
    for c in range(room.counters[COLUMNS_USED]):
        g, of, at = columns[c, C_SET], columns[c, C_OF], columns[c, C_AT]
        if of != SPLIT:
            lay = now.queries + g
            for cell in range(sets.cells[g]):
                lay_record(old, at + cell * was.size[lay], new, end + cell * now.size[lay], lay, was, now)
        for query in range(sets.queries[g] if of != OF_START else 0):
            member = sets.member[g] + query
            q = sets.member_query[member]
            if of == SPLIT:
                for cell in range(sets.cells[g]):
                    lay_record(
                        old, at + was.own_at[member] + cell * was.size[q], new,
                        end + now.own_at[member] + cell * now.size[q], q, was, now,
                    )  # fmt: skip
            else:
                lay_record(old, at + was.value_at[member], new, end + now.value_at[member], q, was, now)
        columns[c, C_AT] = end
        end += now.column[3 * g + way_of(of)]
    for g in range(len(sets.cells)):
        if not sets.own[g]:
            continue
        room.free[3 * g + 2] = NONE
        q = sets.member_query[sets.member[g]]
        for node in range(used):
            at = room.heads[node, g]
            if at < 0:
                continue
            for cell in range(sets.cells[g]):
                lay_record(old, at + cell * was.size[q], new, end + cell * now.size[q], q, was, now)
            room.heads[node, g] = end
            end += now.column[3 * g + 2]
    return end
