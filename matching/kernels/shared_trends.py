"""Counts of trends of many queries at once, by sharing plan: see matching.workload.plan, and matching.kernels.trends
for records.

A node holds what one partition counts in one window. For each set of the plan it has a list of columns. A column
belongs to a snapshot: a record of coefficients for each node of the template in the set (a cell), and the values of the
snapshot, a record for each query. A record is a run of int64: 1 if there are trends; whole numbers, the count first, in
limbs (matching.kernels.trends); the bits of doubles; minima and maxima; and for each of those 1 if there is one. That
of a query has the sums of the query (its layout), and coefficients have those of all queries of the set (its layout).
The record of a query in a cell is the sum of coefficient times value over the
columns. The column of the start has no values: they are 1. A set may also be split: then it has one column, with the
record of each query in each cell itself.

An event that all queries of a set take adds to each column what its cells before have. For what comes from other sets
there is a gate: a snapshot whose values are the sums of the records there, and that serves all events until these
change; so a snapshot is made as often as events of both kinds alternate. Where queries of a set disagree on an event, a
snapshot is made for that event ([SHARING] 2.2, [HAMLET] snapshots).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.limbs import add_limb, add_product_limb, leading_zeros, number_of, subtract_product_limb
from matching.kernels.trends import (
    DONE,
    MORE_LIMBS,
    MORE_NODES,
    MORE_OUTPUT,
    NONE,
    add_float,
    as_double,
    clear,
    crowded,
)

MORE_RECORDS = 5

#: Bits above a product for the number of columns that are added up.
SUM_BITS = 24

#: Bursts whose lengths make the usual one.
BURSTS_KEPT = 16

#: What a column is: of the start, of a snapshot, or of a split set.
OF_START = -1
OF_SNAPSHOT = -2
SPLIT = -3


class Sets(NamedTuple):
    """The tables of a sharing plan.

    Events of kind t come to the cells [kind_begin[t], kind_begin[t + 1]) of op_*: op_set (NONE: of all queries that
    share the node with nobody), op_cell (index in its set), op_class (of the node, for sums), op_same (True if its
    queries have one condition), op_start (all its queries start there), op_outside (some come from elsewhere, by
    gates), op_foreign (some come from other sets). An op has the entries [entry[op], entry[op + 1]), one for each of
    its queries: label, the index of the condition; entry_set, entry_cell and entry_query, the cell and the index in its
    set; and the sources [source[e], source[e + 1]): source_set (NONE: the start), source_cell, source_query (index in
    that set), source_inside (True: passed on by coefficients). The cell itself is its first source.
    inside_cell[inside[op]:inside[op + 1]]: the sources that are passed on. The gates of
    reader[read_by[p]:read_by[p + 1]] end when cell p changes, with p = first[g] + c for cell c of set g.

    Per set: cells, queries, first, starts (True if all its queries start in it), own (True: of one query, split from
    the start), limit: columns above which it splits; burst: kind of event whose bursts decide whether it shares, NONE:
    none. Of query j of set g there is the row m = member[g] + j: member_query, its number; its sums, in their order,
    are at member_map[member_map_of[m]:member_map_of[m + 1]] among those of their kind in the set. Query q has the
    trends of last_*[last[q]:last[q + 1]]: set, cell, query in it.
    """

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


class Layouts(NamedTuple):
    """The records of each layout: those of queries, then of sets; and the sizes of columns, all for numbers of `limbs`
    limbs. Sums of layout i are whole[whole_of[i]:whole_of[i + 1]] and so on, by kind. floats_at, least_at, there_at:
    where they begin in a record; size: of a record. column: int64 (3 * sets,), the size of a column of the start, of a
    snapshot, and split; value_at, own_at: by member, where its values begin in a column of a snapshot, and its records
    in a split one."""

    limbs: int
    queries: int
    whole_of: np.ndarray
    whole: np.ndarray
    floats_of: np.ndarray
    floats: np.ndarray
    least_of: np.ndarray
    least: np.ndarray
    floats_at: np.ndarray
    least_at: np.ndarray
    there_at: np.ndarray
    size: np.ndarray
    column: np.ndarray
    value_at: np.ndarray
    own_at: np.ndarray


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
    """Nodes and what they refer to. heads, counts: int64 (nodes, sets), the first column of a set, and how many it has.
    gates: int64 (nodes, ops), the gate of an op while it has the values of its sources, else NONE.
    of: int32 (partitions, slots), the node of each partition and window; first: int64 (slots,), the first node of each
    open window. columns: see SharedColumn; free: int64 (3 * sets,), the first free column of each set: of starts, of
    snapshots, split ones; a free column keeps its set. bursts: float64 (sets,), the usual length of a burst. data:
    int64, the records of all columns. out: int64 (rows, 3 + size of the largest record of a query): query, partition,
    window and record of closed windows with a trend. gathered: int64 (queries, the same size), room for a snapshot."""

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


# ---- numbers


@inlined
def bits_in(record, at, width):
    """The number of bits of a number without its sign."""
    sign = np.int64(-1) if record[at + width - 1] < 0 else np.int64(0)
    for i in range(width - 1, -1, -1):
        limb = record[at + i] ^ sign
        if limb != 0:
            return 64 * i + 64 - leading_zeros(limb)
    return 0


@inlined
def limbs_in(record, at, width):
    """The limbs of a number up to its highest one, all if it is negative."""
    if record[at + width - 1] < 0:
        return width
    n = width
    while n > 0 and record[at + n - 1] == 0:
        n -= 1
    return n


@inlined
def add_product(to, at, x, x_at, y, y_at, width):
    """Adds the product of two numbers, modulo 2**(64 * width)."""
    n = limbs_in(x, x_at, width)
    m = limbs_in(y, y_at, width)
    for i in range(n):
        limb = x[x_at + i]
        carry = np.int64(0)
        stop = min(m, width - i)
        for j in range(stop):
            to[at + i + j], carry = add_product_limb(to[at + i + j], y[y_at + j], limb, carry)
        j = i + stop
        while carry != 0 and j < width:
            to[at + j], carry = add_limb(to[at + j], carry, np.int64(0))
            j += 1


@inlined
def put_least(to, t, i, k, value, lay, sums, layouts):
    """Puts a value to minimum or maximum i of a record, which is sum k."""
    at, there = t + layouts.least_at[lay] + i, t + layouts.there_at[lay] + i
    if to[there] == 0 or (value > to[at] if sums.least_largest[k] else value < to[at]):
        to[at] = value
        to[there] = 1


@inlined
def add_same(to, t, more, m, lay, width, sums, layouts):
    """Adds the trends of a record to another of the same layout."""
    for n in range(1 + layouts.whole_of[lay + 1] - layouts.whole_of[lay]):
        at = 1 + n * layouts.limbs
        carry = np.int64(0)
        for i in range(width):
            to[t + at + i], carry = add_limb(to[t + at + i], more[m + at + i], carry)
    for i in range(layouts.floats_of[lay + 1] - layouts.floats_of[lay]):
        at = layouts.floats_at[lay] + i
        add_float(to, t + at, number_of(more[m + at]))
    first = layouts.least_of[lay]
    for i in range(layouts.least_of[lay + 1] - first):
        if more[m + layouts.there_at[lay] + i] != 0:
            put_least(to, t, i, layouts.least[first + i], more[m + layouts.least_at[lay] + i], lay, sums, layouts)
    to[t] = 1


@inlined
def add_composed(to, t, c, value, v, member, q, lay, data, width, sets, sums, layouts):
    """Adds to a record of query q the trends that go on from those of a snapshot: each of `value` with each of the
    coefficients at data[c], of layout lay; those of the start have no value: v is NONE."""
    limbs = layouts.limbs
    at_map = sets.member_map_of[member]
    n_whole = layouts.whole_of[q + 1] - layouts.whole_of[q]
    for i in range(n_whole):
        at, mine = t + 1 + (1 + i) * limbs, c + 1 + (1 + sets.member_map[at_map + i]) * limbs
        if v < 0:
            carry = np.int64(0)
            for n in range(width):
                to[at + n], carry = add_limb(to[at + n], data[mine + n], carry)
        else:
            add_product(to, at, data, c + 1, value, v + 1 + (1 + i) * limbs, width)
            add_product(to, at, value, v + 1, data, mine, width)
    if v < 0:
        carry = np.int64(0)
        for n in range(width):
            to[t + 1 + n], carry = add_limb(to[t + 1 + n], data[c + 1 + n], carry)
    else:
        add_product(to, t + 1, data, c + 1, value, v + 1, width)
    at_map += n_whole
    n_floats = layouts.floats_of[q + 1] - layouts.floats_of[q]
    if n_floats > 0:
        ways = as_double(data[c + 1 : c + 1 + width], width)
        trends = 1.0 if v < 0 else as_double(value[v + 1 : v + 1 + width], width)
        for i in range(n_floats):
            at = t + layouts.floats_at[q] + i
            after = number_of(data[c + layouts.floats_at[lay] + sets.member_map[at_map + i]])
            if after != 0.0:
                add_float(to, at, after * trends)
            if v >= 0:
                before = number_of(value[v + layouts.floats_at[q] + i])
                if before != 0.0:
                    add_float(to, at, before * ways)
    at_map += n_floats
    first = layouts.least_of[q]
    for i in range(layouts.least_of[q + 1] - first):
        k, mine = layouts.least[first + i], sets.member_map[at_map + i]
        if data[c + layouts.there_at[lay] + mine] != 0:
            put_least(to, t, i, k, data[c + layouts.least_at[lay] + mine], q, sums, layouts)
        if v >= 0 and value[v + layouts.there_at[q] + i] != 0:
            put_least(to, t, i, k, value[v + layouts.least_at[q] + i], q, sums, layouts)
    to[t] = 1


@inlined
def bits_composed(c, v, member, q, data, width, sets, layouts):
    """More bits than any whole number of a composed record has."""
    limbs = layouts.limbs
    ways, trends = bits_in(data, c + 1, width), bits_in(data, v + 1, width)
    most = ways + trends
    for i in range(layouts.whole_of[q + 1] - layouts.whole_of[q]):
        mine = c + 1 + (1 + sets.member_map[sets.member_map_of[member] + i]) * limbs
        most = max(most, ways + bits_in(data, v + 1 + (1 + i) * limbs, width), trends + bits_in(data, mine, width))
    return most + 1


@inlined
def grow(start, to, trends, m, lay, label, row, width, bits, sums, layouts, values, doubles, valid, t):
    """Adds to the record at to[t] the trends of that at trends[m], of the same layout, with the event; if `start`, one
    trend without events. Returns True if a number may overflow with the next event. See
    matching.kernels.trends.extend."""
    bit = np.int64(1) << label
    limbs = layouts.limbs
    full = False
    first = layouts.whole_of[lay]
    for i in range(layouts.whole_of[lay + 1] - first):
        k = layouts.whole[first + i]
        value = np.int64(0)
        if sums.whole_labels[k] & bit != 0:
            v = sums.whole_value[k]
            if v < 0 or valid[v, row]:
                value = np.int64(1) if v < 0 or sums.whole_ones[k] else values[v, row]
        at = 1 + (i + 1) * limbs
        carry = np.int64(0)
        if start:
            high = np.int64(-1) if value < 0 else np.int64(0)
            for n in range(width):
                to[t + at + n], carry = add_limb(to[t + at + n], value if n == 0 else high, carry)
        else:
            for n in range(width):
                to[t + at + n], carry = add_limb(to[t + at + n], trends[m + at + n], carry)
            carry = np.int64(0)
            if value > 0:
                for n in range(width):
                    to[t + at + n], carry = add_product_limb(to[t + at + n], trends[m + 1 + n], value, carry)
            elif value < 0:
                for n in range(width):
                    to[t + at + n], carry = subtract_product_limb(to[t + at + n], trends[m + 1 + n], -value, carry)
        full |= crowded(to, t + at, width, bits)
    first = layouts.floats_of[lay]
    for i in range(layouts.floats_of[lay + 1] - first):
        k, at = layouts.floats[first + i], layouts.floats_at[lay] + i
        if not start:
            add_float(to, t + at, number_of(trends[m + at]))
        v = sums.float_value[k]
        if sums.float_labels[k] & bit != 0 and valid[v, row] and doubles[v, row] != 0.0:  # 0 times infinity is 0 here
            many = 1.0 if start else as_double(trends[m + 1 : m + 1 + width], width)
            add_float(to, t + at, doubles[v, row] * many)
    first = layouts.least_of[lay]
    for i in range(layouts.least_of[lay + 1] - first):
        k = layouts.least[first + i]
        if not start and trends[m + layouts.there_at[lay] + i] != 0:
            put_least(to, t, i, k, trends[m + layouts.least_at[lay] + i], lay, sums, layouts)
        v = sums.least_value[k]
        if sums.least_labels[k] & bit != 0 and valid[v, row]:
            put_least(to, t, i, k, values[v, row], lay, sums, layouts)
    carry = np.int64(1) if start else np.int64(0)
    for n in range(width):
        to[t + 1 + n], carry = add_limb(to[t + 1 + n], np.int64(0) if start else trends[m + 1 + n], carry)
    to[t] = 1
    return full | crowded(to, t + 1, width, bits)


# ---- columns


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
def drop_columns(room, node, g):
    """Frees the columns of a set."""
    c = room.heads[node, g]
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
    c = room.heads[node, g]
    return c >= 0 and room.columns[c, C_OF] == SPLIT


@inlined
def own_record(sets, layouts, column_at, g, cell, query):
    """Where a query's record in a cell begins, in a split column."""
    member = sets.member[g] + query
    return column_at + layouts.own_at[member] + cell * layouts.size[sets.member_query[member]]


@inlined
def add_value(to, t, sets, room, node, g, cell, query, width, sums, layouts):
    """Adds the record of a query in a cell of a set, in the layout of the query."""
    member = sets.member[g] + query
    q, lay = sets.member_query[member], layouts.queries + g
    c = room.heads[node, g]
    while c >= 0:
        at = room.columns[c, C_AT]
        if room.columns[c, C_OF] == SPLIT:
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
    c = room.heads[node, g]
    while c >= 0:
        at = room.columns[c, C_AT]
        if room.columns[c, C_OF] == SPLIT:
            return np.int64(0)
        coefficient, value = at + cell * layouts.size[lay], at + layouts.value_at[member]
        if room.columns[c, C_OF] != OF_START and room.data[coefficient] != 0 and room.data[value] != 0:
            most = max(most, bits_composed(coefficient, value, member, q, room.data, width, sets, layouts))
        c = room.columns[c, C_NEXT]
    return most


@inlined
def widen_records(data, at, count, lay, width, layouts):
    """Gives the numbers of records of one layout, side by side, one limb more."""
    for r in range(count):
        first = at + r * layouts.size[lay] + 1
        for n in range(1 + layouts.whole_of[lay + 1] - layouts.whole_of[lay]):
            limb = first + n * layouts.limbs + width
            data[limb] = np.int64(-1) if data[limb - 1] < 0 else np.int64(0)


@called
def widen(sets, room, node, layouts):
    """Gives the numbers of a node one limb more."""
    width = room.nodes[node, WIDTH]
    for g in range(len(sets.cells)):
        c = room.heads[node, g]
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
    if room.heads[node, g] < 0 or is_split(room, node, g):
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
    drop_columns(room, node, g)
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


@inlined
def lay_record(old, o, new, n, lay, was, now):
    """Copies a record from one layout to that of numbers with more limbs."""
    new[n] = old[o]
    for i in range(1 + now.whole_of[lay + 1] - now.whole_of[lay]):
        for limb in range(was.limbs):
            new[n + 1 + i * now.limbs + limb] = old[o + 1 + i * was.limbs + limb]
    for i in range(was.size[lay] - was.floats_at[lay]):
        new[n + now.floats_at[lay] + i] = old[o + was.floats_at[lay] + i]


@kernel
def lay_out(sets, columns, used, old, new, was, now):
    """Copies all columns to layouts with more limbs. Returns how much room they take."""
    end = np.int64(0)
    for c in range(used):
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
    return end


# ---- nodes and windows


@inlined
def new_node(sets, room, partition, window, slot, width):
    counters = room.counters
    node = counters[FREE]
    if node >= 0:
        counters[FREE] = room.nodes[node, NEXT_NODE]
    else:
        node = counters[USED]
        counters[USED] = node + 1
    of = room.nodes[node]
    of[PARTITION] = partition
    of[WINDOW] = window
    of[WIDTH] = width
    of[FULL] = 0
    of[KIND] = NONE
    of[NEXT_NODE] = room.first[slot]
    room.first[slot] = node
    room.of[partition, slot] = node
    room.heads[node] = NONE
    room.counts[node] = 0
    room.gates[node] = NONE
    counters[OPEN] += 1
    counters[OPENED] += 1
    return node


@kernel
def close_before(window, sets, sums, layouts, room):
    """Closes the open windows before `window`, writes their rows, in the order of windows, and frees their nodes.
    Returns DONE; MORE_LIMBS or MORE_OUTPUT: to be called again with more room."""
    counters = room.counters
    slots = len(room.first)
    if counters[LIVE] == 0:
        counters[LIVE] = 1
        counters[CLOSED_BEFORE] = window
        return DONE
    k = counters[CLOSED_BEFORE]
    last = min(window, k + slots)  # no node has a later one
    queries = len(sets.last) - 1
    while k < last:
        slot = k % slots
        node = room.first[slot]
        while node >= 0:
            if counters[OUT] + queries > len(room.out):
                return MORE_OUTPUT
            width = room.nodes[node, WIDTH]
            most = np.int64(0)
            for i in range(len(sets.last_set)):
                bits = bits_of_value(
                    sets, room, node, sets.last_set[i], sets.last_cell[i], sets.last_query[i], width, layouts
                )
                most = max(most, bits)
            if not make_wide(sets, room, node, most + SUM_BITS, layouts):
                return MORE_LIMBS
            width = room.nodes[node, WIDTH]
            for q in range(queries):
                some = False
                for i in range(sets.last[q], sets.last[q + 1]):
                    some |= room.heads[node, sets.last_set[i]] >= 0
                if not some:
                    continue
                row = room.out[counters[OUT]]
                clear(row)
                for i in range(sets.last[q], sets.last[q + 1]):
                    add_value(
                        row, 3, sets, room, node, sets.last_set[i], sets.last_cell[i], sets.last_query[i], width, sums,
                        layouts,
                    )  # fmt: skip
                if row[3] != 0:
                    for n in range(1 + layouts.whole_of[q + 1] - layouts.whole_of[q]):
                        first = 4 + n * layouts.limbs
                        for limb in range(width, layouts.limbs):
                            row[first + limb] = np.int64(-1) if row[first + width - 1] < 0 else np.int64(0)
                    row[0] = q
                    row[1] = room.nodes[node, PARTITION]
                    row[2] = k
                    counters[OUT] += 1
            for g in range(len(sets.cells)):
                drop_columns(room, node, g)
            after = room.nodes[node, NEXT_NODE]
            room.of[room.nodes[node, PARTITION], slot] = NONE
            room.nodes[node, NEXT_NODE] = counters[FREE]
            counters[FREE] = node
            counters[OPEN] -= 1
            node = after
            room.first[slot] = node
        k += 1
        counters[CLOSED_BEFORE] = k
    if window > counters[CLOSED_BEFORE]:
        counters[CLOSED_BEFORE] = window
    return DONE


# ---- events


@inlined
def takers(sets, op, mask):
    """How many queries of the set take an event; all if they have one condition."""
    first, last = sets.entry[op], sets.entry[op + 1]
    if sets.op_same[op]:
        return last - first if (mask >> sets.label[first]) & 1 == 1 else 0
    count = 0
    for e in range(first, last):
        count += (mask >> sets.label[e]) & 1
    return count


@inlined
def end_gates(sets, room, node, g, cell):
    """Ends the gates that read a cell."""
    place = sets.first[g] + cell
    for i in range(sets.read_by[place], sets.read_by[place + 1]):
        room.gates[node, sets.reader[i]] = NONE


@inlined
def bits_read(sets, room, node, op, mask, everything, width, layouts):
    """More bits than any number has that is computed from the sources of an op."""
    most = np.int64(0)
    for e in range(sets.entry[op], sets.entry[op + 1]):
        if (mask >> sets.label[e]) & 1 == 0:
            continue
        for s in range(sets.source[e], sets.source[e + 1]):
            if sets.source_set[s] >= 0 and (everything or not sets.source_inside[s]):
                bits = bits_of_value(
                    sets, room, node, sets.source_set[s], sets.source_cell[s], sets.source_query[s], width, layouts
                )
                most = max(most, bits)
    return most


@inlined
def gather(sets, room, node, op, mask, everything, width, sums, layouts):
    """Computes the values of a snapshot, for the queries that take an event; True if there is a trend."""
    some = False
    first = sets.entry[op]
    for e in range(first, sets.entry[op + 1]):
        to = room.gathered[e - first]
        clear(to)
        if (mask >> sets.label[e]) & 1 == 0:
            continue
        for s in range(sets.source[e], sets.source[e + 1]):
            if sets.source_inside[s] and not everything:
                continue
            if sets.source_set[s] < 0:
                carry = np.int64(1)
                for i in range(width):
                    to[1 + i], carry = add_limb(to[1 + i], np.int64(0), carry)
                to[0] = 1
            else:
                add_value(
                    to, 0, sets, room, node, sets.source_set[s], sets.source_cell[s], sets.source_query[s], width, sums,
                    layouts,
                )  # fmt: skip
        some |= to[0] != 0
    return some


@called
def take_split(sets, room, node, op, mask, row, width, bits, sums, layouts, values, doubles, valid):
    """Takes an event in cells of split sets."""
    label = sets.op_class[op]
    data = room.data
    for e in range(sets.entry[op], sets.entry[op + 1]):
        if (mask >> sets.label[e]) & 1 == 0:
            continue
        g = sets.entry_set[e]
        head = room.heads[node, g]
        own = room.columns[head, C_AT] if head >= 0 else np.int64(NONE)
        q = sets.member_query[sets.member[g] + sets.entry_query[e]]
        changed = False
        full = False
        for s in range(sets.source[e], sets.source[e + 1]):
            other = sets.source_set[s]
            start = other < 0
            trends, m = data, np.int64(0)
            if other == g:
                if own < 0:
                    continue
                m = own_record(sets, layouts, own, g, sets.source_cell[s], sets.source_query[s])
                if data[m] == 0:
                    continue
            elif not start:
                if room.heads[node, other] < 0:
                    continue
                trends = room.gathered[0]
                clear(trends)
                add_value(
                    trends, 0, sets, room, node, other, sets.source_cell[s], sets.source_query[s], width, sums, layouts
                )
                if trends[0] == 0:
                    continue
            if own < 0:
                own = room.columns[new_column(room, layouts, node, g, SPLIT), C_AT]
            to = own_record(sets, layouts, own, g, sets.entry_cell[e], sets.entry_query[e])
            full = grow(
                start, data, trends, m, q, label, row, width, bits, sums, layouts, values, doubles, valid, to
            )
            changed = True
        if changed:
            end_gates(sets, room, node, g, sets.entry_cell[e])
            if full:
                room.nodes[node, FULL] = 1


@called
def take_shared(sets, room, node, op, mask, agreed, row, width, bits, sums, layouts, values, doubles, valid):
    """Takes an event in a cell of a set by its columns. agreed: all its queries take it."""
    g, cell, label = sets.op_set[op], sets.op_cell[op], sets.op_class[op]
    data = room.data
    lay = layouts.queries + g
    size = layouts.size[lay]
    changed = False
    entering = np.int64(NONE)
    if not agreed or sets.op_outside[op]:
        if agreed:
            entering = room.gates[node, op]
        if entering < 0 and gather(sets, room, node, op, mask, not agreed, width, sums, layouts):
            entering = new_column(room, layouts, node, g, OF_SNAPSHOT)
            if agreed:
                room.gates[node, op] = entering
            for query in range(sets.queries[g]):
                member = sets.member[g] + query
                at = room.columns[entering, C_AT] + layouts.value_at[member]
                for i in range(layouts.size[sets.member_query[member]]):
                    data[at + i] = room.gathered[query, i]
    c = room.heads[node, g] if agreed else entering
    while c >= 0:
        base = room.columns[c, C_AT]
        to = base + cell * size
        mine = c == entering or (agreed and sets.op_start[op] and room.columns[c, C_OF] == OF_START)
        begins = mine
        full = False
        if agreed:
            for i in range(sets.inside[op], sets.inside[op + 1]):
                m = base + sets.inside_cell[i] * size
                if data[m] != 0:
                    full = grow(
                        False, data, data, m, lay, label, row, width, bits, sums, layouts, values, doubles, valid, to
                    )
                    mine = True
        if begins:
            full = grow(True, data, data, to, lay, label, row, width, bits, sums, layouts, values, doubles, valid, to)
        changed |= mine
        if full:
            room.nodes[node, FULL] = 1
        c = room.columns[c, C_NEXT] if agreed else np.int64(NONE)
    if changed:
        end_gates(sets, room, node, g, cell)


@called
def prepare(sets, room, node, op, mask, count, bits, sums, layouts):
    """Makes the columns of a cell's set ready for an event, and its numbers wide enough. False: records lack limbs."""
    g = sets.op_set[op]
    if g < 0:
        if sets.op_foreign[op]:
            most = bits_read(sets, room, node, op, mask, True, room.nodes[node, WIDTH], layouts)
            return most == 0 or make_wide(sets, room, node, most + SUM_BITS + bits, layouts)
        return True
    if room.heads[node, g] < 0:
        if sets.burst[g] != NONE:
            new_column(room, layouts, node, g, SPLIT)
        elif sets.starts[g]:
            new_column(room, layouts, node, g, OF_START)
    if not is_split(room, node, g) and room.counts[node, g] > sets.limit[g]:
        if not split(sets, room, node, g, sums, layouts):
            return False
    alone = is_split(room, node, g)
    if alone and not sets.op_foreign[op]:
        return True
    agreed = count == sets.queries[g]
    if alone or not agreed or (sets.op_outside[op] and room.gates[node, op] < 0):
        most = bits_read(sets, room, node, op, mask, alone or not agreed, room.nodes[node, WIDTH], layouts)
        if most > 0:
            return make_wide(sets, room, node, most + SUM_BITS + bits, layouts)
    return True


@called
def turn(sets, room, node, kind, sums, layouts):
    """Ends the burst of a node and begins one of another kind; False if records lack limbs. A set of which a burst ends
    splits; one of which a burst begins shares if that takes fewer additions, by the usual length of its bursts
    ([HAMLET]; a number of the split set costs one for each event and query)."""
    before = room.nodes[node, KIND]
    for g in range(len(sets.cells)):
        if sets.burst[g] == NONE:
            continue
        if sets.burst[g] == before:
            if not split(sets, room, node, g, sums, layouts):
                return False
            room.bursts[g] += (room.nodes[node, BURST] - room.bursts[g]) / BURSTS_KEPT
        if sets.burst[g] == kind:
            queries, snapshots = sets.queries[g], sets.cells[g] + 1
            apart = room.bursts[g] * queries
            together = room.bursts[g] * snapshots + 2 * snapshots * queries
            if together < apart:
                share(sets, room, node, g, layouts)
    room.nodes[node, KIND] = kind
    room.nodes[node, BURST] = 0
    return True


# ---- from one plan to another


@kernel
def values_of(begin, nodes, pair_set, pair_cell, pair_query, sets, room, sums, layouts, out):
    """Writes the records of pairs of a query and a cell, for nodes from `begin` on, to out: int64 (nodes, pairs, size
    of the largest record of a query). Returns (next node, status)."""
    for i in range(begin, len(nodes)):
        node = nodes[i]
        most = np.int64(0)
        for j in range(len(pair_set)):
            bits = bits_of_value(
                sets, room, node, pair_set[j], pair_cell[j], pair_query[j], room.nodes[node, WIDTH], layouts
            )
            most = max(most, bits)
        if most > 0 and not make_wide(sets, room, node, most + SUM_BITS + room.counters[VALUE_BITS], layouts):
            return i, MORE_LIMBS
        width = room.nodes[node, WIDTH]
        for j in range(len(pair_set)):
            clear(out[i, j])
            add_value(
                out[i, j], 0, sets, room, node, pair_set[j], pair_cell[j], pair_query[j], width, sums, layouts
            )
    return len(nodes), DONE


@kernel
def load_values(begin, nodes, pair_set, pair_cell, pair_query, values, sets, room, layouts, data_max):
    """Makes the columns of empty nodes from the records of pairs; see `values_of`. Returns (next node, status)."""
    counters = room.counters
    pairs = len(pair_set)
    for i in range(begin, len(nodes)):
        node = nodes[i]
        if counters[DATA_USED] + data_max > len(room.data) or (
            counters[COLUMNS_USED] + len(sets.cells) + pairs > len(room.columns)
        ):
            return i, MORE_RECORDS
        for j in range(pairs):
            if values[i, j, 0] == 0:
                continue
            g, cell, query = pair_set[j], pair_cell[j], pair_query[j]
            if room.heads[node, g] < 0:
                new_column(room, layouts, node, g, SPLIT)
            at = own_record(sets, layouts, room.columns[room.heads[node, g], C_AT], g, cell, query)
            for c in range(layouts.size[sets.member_query[sets.member[g] + query]]):
                room.data[at + c] = values[i, j, c]
        for g in range(len(sets.cells)):
            if not sets.own[g] and room.heads[node, g] >= 0:
                share(sets, room, node, g, layouts)
    return len(nodes), DONE


# ---- rows


@kernel
def step(begin, end, partition, mask, kind, ts, values, doubles, valid, sets, sums, layouts, room, data_max):
    """Takes rows [begin, end), in the order of time. mask: bits of the conditions that hold; kind: the kind of event,
    NONE for a row that nobody takes. data_max: the room in Room.data that an event of
    a node may need at most. Returns (next row,
    status); the call is to be repeated with more room. O(windows * columns of the sets that take it) a row and limb."""
    counters = room.counters
    slots = len(room.first)
    bits = counters[VALUE_BITS]
    narrow = bits // 63 + 1  # limbs of a number that is 0
    if narrow > layouts.limbs:
        return begin, MORE_LIMBS
    first, last, slot_of_first = np.int64(0), np.int64(-1), np.int64(0)
    same_before = np.int64(-0x8000000000000000)  # times before this one have the same windows
    for row in range(begin, end):
        t = kind[row]
        if t < 0:
            continue
        m = mask[row]
        if ts[row] >= same_before:
            first = (ts[row] - sets.within_us) // sets.slide_us + 1
            last = ts[row] // sets.slide_us
            same_before = min((last + 1) * sets.slide_us, first * sets.slide_us + sets.within_us)
            slot_of_first = first % slots
            if counters[LIVE] == 0 or first > counters[CLOSED_BEFORE]:
                status = close_before(first, sets, sums, layouts, room)
                if status != DONE:
                    return row, status
        if counters[USED] + slots > len(room.nodes):
            return row, MORE_NODES
        p = partition[row]
        for k in range(first + counters[SLOT], last + 1):
            slot = slot_of_first + (k - first)
            slot = slot - slots if slot >= slots else slot
            if counters[DATA_USED] + data_max > len(room.data) or (
                counters[COLUMNS_USED] + 3 * len(sets.cells) + len(sets.op_set) > len(room.columns)
            ):
                counters[SLOT] = k - first
                return row, MORE_RECORDS
            node = np.int64(room.of[p, slot])
            if node < 0:
                node = new_node(sets, room, p, k, slot, narrow)
            if room.nodes[node, FULL] == 1:
                if room.nodes[node, WIDTH] == layouts.limbs:
                    counters[SLOT] = k - first
                    return row, MORE_LIMBS
                widen(sets, room, node, layouts)
            if sets.bursts:
                if room.nodes[node, KIND] != t and not turn(sets, room, node, t, sums, layouts):
                    counters[SLOT] = k - first
                    return row, MORE_LIMBS
                room.nodes[node, BURST] += 1
            for op in range(sets.kind_begin[t], sets.kind_begin[t + 1]):
                count = takers(sets, op, m)
                if count > 0 and not prepare(sets, room, node, op, m, count, bits, sums, layouts):
                    counters[SLOT] = k - first
                    return row, MORE_LIMBS
            width = room.nodes[node, WIDTH]
            for op in range(sets.kind_begin[t], sets.kind_begin[t + 1]):
                count = takers(sets, op, m)
                if count == 0:
                    continue
                g = sets.op_set[op]
                if g < 0 or is_split(room, node, g):
                    take_split(sets, room, node, op, m, row, width, bits, sums, layouts, values, doubles, valid)
                else:
                    agreed = count == sets.queries[g]
                    take_shared(
                        sets, room, node, op, m, agreed, row, width, bits, sums, layouts, values, doubles, valid
                    )
        counters[SLOT] = 0
    return end, DONE
