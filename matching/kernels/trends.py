"""Counts and sums of trends by state and window, without a trend: O(states * windows) an event, exact at any size.

A node holds the counts of one partition in one window: for each state of the automaton the partial trends that wait in
it, and for each end the trends that have come to it. Beside each count are sums over the events of these trends, and
minima and maxima. An event with the label v in state s moves nothing: all trends in s are copied to the state that
follows (SKIP TILL ANY MATCH), so that the count there grows by that of s, and each sum by that of s plus the event's
value times that count ([SHARING] unshared online aggregation; COGRA, type-grained).

These numbers are the columns of a record of int64: whole numbers, the count first, as two's complement numbers of
`Shape.limbs` limbs of 64 bits, the lowest first, of which WIDTH are in use; then the bits of doubles; then minima and
maxima; then for each of those 1 if there is one; then 1 if there are trends. A whole number becomes wider before an
event could overflow it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.limbs import (
    add_limb,
    add_product_limb,
    bits_of,
    number_of,
    subtract_product_limb,
    trailing_zeros,
)

#: No node, no state, no end.
NONE = -1

DONE = 0
MORE_NODES = 1
MORE_LIMBS = 2
MORE_OUTPUT = 3
MORE_ENTRIES = 4

#: Functions of comparisons.
IS, EQUAL, UNEQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL = range(7)


class PassedOver(IntEnum):
    """The fate of the trends of a state that does not take an event."""

    STAYS = 0  # SKIP TILL ANY MATCH
    STAYS_UNLESS_WAITED_FOR = 1  # SKIP TILL NEXT MATCH
    ENDS = 2  # PARTITION, STRICT


ANY = int(PassedOver.STAYS)
NEXT = int(PassedOver.STAYS_UNLESS_WAITED_FOR)
ENDS = int(PassedOver.ENDS)


class TrendMoves(NamedTuple):
    """An automaton of n states and e ends; cell c < n is state c, cell n + i end i.

    Takes of state s are [take_begin[s], take_begin[s + 1]): label, cell of the next state or NONE, cell of the end that
    is reached or NONE. takes, waits: per state, bits of labels. Violations of cell c are [break_begin[c],
    break_begin[c + 1]): label, and the cell that is left or NONE. breaks: per cell, bits of labels. starts: bool per
    state, True before the first event. results: bool per cell, True if its trends are finished.

    Takes of label v alone are [alone_begin[v], alone_begin[v + 1]): state, next state and end, in an order in which
    each state is read before it grows; there are none if there is no such order, and then `alone` lacks the bit v.
    taken, broken: bits of all labels of takes, and of violations.
    """

    take_begin: np.ndarray
    take_label: np.ndarray
    take_state: np.ndarray
    take_end: np.ndarray
    takes: np.ndarray
    waits: np.ndarray
    break_begin: np.ndarray
    break_label: np.ndarray
    break_to: np.ndarray
    breaks: np.ndarray
    starts: np.ndarray
    results: np.ndarray
    alone_begin: np.ndarray
    alone_source: np.ndarray
    alone_state: np.ndarray
    alone_end: np.ndarray
    alone: int
    taken: int
    broken: int
    policy: int
    states: int
    within_us: int
    slide_us: int


class TrendSums(NamedTuple):
    """The sums beside the counts: whole numbers, doubles, and the smallest or largest values, as int64 in their
    order. *_value: index of the event's value, NONE for the number 1; *_labels: bits of the labels of the events that
    are meant. whole_ones: True to add 1 for each value that is not null, to count them. least_largest: True for MAX."""

    whole_value: np.ndarray
    whole_labels: np.ndarray
    whole_ones: np.ndarray
    float_value: np.ndarray
    float_labels: np.ndarray
    least_value: np.ndarray
    least_labels: np.ndarray
    least_largest: np.ndarray


class Shape(NamedTuple):
    """The columns of a record: numbers of whole numbers and of limbs of each; first column of doubles, of minima, of
    whether there is one, and the column of whether there are trends."""

    whole: int
    limbs: int
    floats: int
    least: int
    there: int
    alive: int


class Pairs(NamedTuple):
    """Conditions of a label on the event right before it. Of label v after label p (-1: the first event) there are
    the alternatives [begin[i], begin[i + 1]) with i = (p + 1) * labels + v; `any` is True if there are conditions.
    Comparisons of an alternative are rows [of[a], of[a + 1]) of `compare`, int64 (n, 5): function, left and right value
    (NONE: none), and for each 1 if it is one of the event before. kept: the values that are kept of an event. grained:
    bool per state, True if events of trends in it are kept one by one. labels: bits of the labels that have nothing to
    do with such a state."""

    any: np.ndarray
    begin: np.ndarray
    of: np.ndarray
    compare: np.ndarray
    kept: np.ndarray
    grained: np.ndarray
    labels: int
    label_count: int


FUNCTION, LEFT, RIGHT, LEFT_BEFORE, RIGHT_BEFORE = range(5)


class Entry(IntEnum):
    """Columns of Pool.entries, before the values that are kept."""

    STATE = 0
    LABEL = 1
    NEXT = 2  # of the same node, or the next free one
    EVENT = 3  # the number of the event
    THERE = 4  # bits of the values that are not null


E_STATE = int(Entry.STATE)
E_LABEL = int(Entry.LABEL)
E_NEXT = int(Entry.NEXT)
E_EVENT = int(Entry.EVENT)
E_THERE = int(Entry.THERE)
E_VALUES = len(Entry)


class TrendNode(IntEnum):
    """Columns of the nodes, int64 (nodes, 7)."""

    PARTITION = 0
    NEXT = 1  # of the same window, or the next free one
    START = 2  # state of the start, NONE if a negated event has ended it
    WIDTH = 3  # limbs in use
    FULL = 4  # 1: the next event needs one limb more
    WINDOW = 5
    ENTRY = 6  # its last entry, NONE: none


PARTITION = int(TrendNode.PARTITION)
NEXT_NODE = int(TrendNode.NEXT)
START = int(TrendNode.START)
WIDTH = int(TrendNode.WIDTH)
FULL = int(TrendNode.FULL)
WINDOW = int(TrendNode.WINDOW)
ENTRY = int(TrendNode.ENTRY)


class Counter(IntEnum):
    """Numbers that outlive a call, int64 (11,)."""

    USED = 0  # nodes ever used
    FREE = 1  # first free one of them
    OPEN = 2  # nodes of open windows
    CLOSED_BEFORE = 3  # windows before this one are closed
    SLOT = 4  # where to go on in a row after MORE_LIMBS
    OUT = 5  # rows of output
    VALUE_BITS = 6  # of the largest value of a row, for the room above a number
    LIVE = 7  # 1: CLOSED_BEFORE has been set
    ENTRIES_USED = 8  # entries ever used
    ENTRIES_FREE = 9  # first free one of them
    EVENT = 10  # the number of the event


USED = int(Counter.USED)
FREE = int(Counter.FREE)
OPEN = int(Counter.OPEN)
CLOSED_BEFORE = int(Counter.CLOSED_BEFORE)
SLOT = int(Counter.SLOT)
OUT = int(Counter.OUT)
VALUE_BITS = int(Counter.VALUE_BITS)
LIVE = int(Counter.LIVE)
ENTRIES_USED = int(Counter.ENTRIES_USED)
ENTRIES_FREE = int(Counter.ENTRIES_FREE)
EVENT = int(Counter.EVENT)


class Pool(NamedTuple):
    """Nodes and what they refer to. cells: int64 (nodes, cells, columns), a record for each. of: int32 (partitions,
    slots), the node of each partition and window; first: int64 (slots,), the first node of each open window. entries:
    int64 (entries, E_VALUES + kept), events of trends that wait in grained states; sums: int64 (entries, columns), the
    record of the trends that end with each. out: int64 (rows, 2 + columns), partition, window and record of closed
    windows with a trend. fresh, single: int64 (cells, columns), room for what an event adds, and for what it adds by
    one label; the same if no state is grained. touched: bool (2, cells), which cells of these are in use."""

    nodes: np.ndarray
    cells: np.ndarray
    of: np.ndarray
    first: np.ndarray
    entries: np.ndarray
    sums: np.ndarray
    out: np.ndarray
    fresh: np.ndarray
    single: np.ndarray
    touched: np.ndarray
    counters: np.ndarray


# ---- numbers and records


@inlined
def add_small(to, value, width):
    """Adds an int64 to a number."""
    carry = np.int64(0)
    high = np.int64(-1) if value < 0 else np.int64(0)
    for i in range(width):
        to[i], carry = add_limb(to[i], value if i == 0 else high, carry)


@inlined
def as_double(record, width):
    """The count of a record, rounded."""
    result = 0.0
    for i in range(width - 1, -1, -1):
        low = record[i] & 0xFFFFFFFF
        high = (record[i] >> 32) & 0xFFFFFFFF
        result = (result * 4294967296.0 + high) * 4294967296.0 + low
    return result


@inlined
def crowded(record, at, width, bits):
    """True if the number at column `at` may overflow when it grows by `bits` bits."""
    top = at + width - 1
    sign = np.int64(-1) if record[top] < 0 else np.int64(0)
    while bits >= 63:
        if top < at or record[top] != sign:
            return True
        bits -= 63
        top -= 1
    if top < at:
        return True
    return (record[top] ^ sign) >> (62 - bits) != 0


@inlined
def any_crowded(record, width, bits, shape):
    full = False
    for k in range(shape.whole):
        full |= crowded(record, k * shape.limbs, width, bits)
    return full


@inlined
def take_least(record, k, value, largest, shape):
    if record[shape.there + k] == 0 or (
        value > record[shape.least + k] if largest else value < record[shape.least + k]
    ):
        record[shape.least + k] = value
        record[shape.there + k] = 1


@inlined
def add_float(record, at, value):
    record[at] = bits_of(number_of(record[at]) + value)


@inlined
def add_record(to, more, width, wide, sums, shape):
    """Adds the trends of a record to another. width: limbs of `more`; wide: of `to`, which continue its sign."""
    for k in range(shape.whole):
        at = k * shape.limbs
        carry = np.int64(0)
        for i in range(width):
            to[at + i], carry = add_limb(to[at + i], more[at + i], carry)
        sign = np.int64(-1) if more[at + width - 1] < 0 else np.int64(0)
        for i in range(width, wide):
            to[at + i], carry = add_limb(to[at + i], sign, carry)
    for k in range(shape.floats, shape.least):
        add_float(to, k, number_of(more[k]))
    for k in range(len(sums.least_value)):
        if more[shape.there + k] != 0:
            take_least(to, k, more[shape.least + k], sums.least_largest[k], shape)
    to[shape.alive] = 1


@inlined
def extend(start, to, trends, label, row, width, sums, shape, values, doubles, valid):
    """Adds to a record the trends of another with the event; if `start`, one trend without events. The two may be the
    same record: its count is read before it grows."""
    bit = np.int64(1) << label
    for k in range(len(sums.whole_value)):
        value = np.int64(0)
        if sums.whole_labels[k] & bit != 0:
            v = sums.whole_value[k]
            if v < 0 or valid[v, row]:
                value = np.int64(1) if v < 0 or sums.whole_ones[k] else values[v, row]
        at = (k + 1) * shape.limbs
        carry = np.int64(0)
        if start:
            high = np.int64(-1) if value < 0 else np.int64(0)
            for i in range(width):
                to[at + i], carry = add_limb(to[at + i], value if i == 0 else high, carry)
            continue
        for i in range(width):
            to[at + i], carry = add_limb(to[at + i], trends[at + i], carry)
        carry = np.int64(0)
        if value > 0:
            for i in range(width):
                to[at + i], carry = add_product_limb(to[at + i], trends[i], value, carry)
        elif value < 0:
            for i in range(width):
                to[at + i], carry = subtract_product_limb(to[at + i], trends[i], -value, carry)
    for k in range(len(sums.float_value)):
        if not start:
            add_float(to, shape.floats + k, number_of(trends[shape.floats + k]))
        v = sums.float_value[k]
        if sums.float_labels[k] & bit != 0 and valid[v, row] and doubles[v, row] != 0.0:  # 0 times infinity is 0 here
            add_float(to, shape.floats + k, doubles[v, row] * (1.0 if start else as_double(trends, width)))
    for k in range(len(sums.least_value)):
        if not start and trends[shape.there + k] != 0:
            take_least(to, k, trends[shape.least + k], sums.least_largest[k], shape)
        v = sums.least_value[k]
        if sums.least_labels[k] & bit != 0 and valid[v, row]:
            take_least(to, k, values[v, row], sums.least_largest[k], shape)
    carry = np.int64(1) if start else np.int64(0)
    for i in range(width):
        to[i], carry = add_limb(to[i], np.int64(0) if start else trends[i], carry)
    to[shape.alive] = 1


@inlined
def clear(record):
    for c in range(len(record)):
        record[c] = 0


@inlined
def touch(touched, records, cell):
    """Begins what an event adds to a cell."""
    if not touched[cell]:
        touched[cell] = True
        clear(records[cell])


# ---- conditions between neighbours, and the events that wait for them


@inlined
def compares(function, x, y):
    if function == LESS:
        return x < y
    if function == GREATER:
        return x > y
    if function == LESS_EQUAL:
        return x <= y
    if function == GREATER_EQUAL:
        return x >= y
    if function == EQUAL:
        return x == y
    return x != y


@inlined
def operand(v, of_before, pool, entry, row, values, valid):
    """A value of the event or of an entry, and whether it is not null."""
    if of_before:
        return pool.entries[entry, E_VALUES + v], (pool.entries[entry, E_THERE] >> v) & 1 == 1
    return values[v, row], valid[v, row]


@inlined
def may_follow(pairs, before, label, pool, entry, row, values, valid):
    """True if an event of `label` may come right after the event of an entry, of the label `before`; NONE: after
    none."""
    i = (before + 1) * pairs.label_count + label
    if not pairs.any[i]:
        return True
    for a in range(pairs.begin[i], pairs.begin[i + 1]):
        holds = True
        for c in range(pairs.of[a], pairs.of[a + 1]):
            one = pairs.compare[c]
            x, holds = operand(one[LEFT], one[LEFT_BEFORE] == 1, pool, entry, row, values, valid)
            if holds and one[FUNCTION] == IS:
                holds = x != 0
            elif holds:
                y, holds = operand(one[RIGHT], one[RIGHT_BEFORE] == 1, pool, entry, row, values, valid)
                holds = holds and compares(one[FUNCTION], x, y)
            if not holds:
                break
        if holds:
            return True
    return False


@inlined
def add_entry(pairs, pool, node, state, label, row, record, values, valid):
    """Keeps an event of trends that wait in a state. record: of these trends."""
    counters = pool.counters
    entry = counters[ENTRIES_FREE]
    if entry >= 0:
        counters[ENTRIES_FREE] = pool.entries[entry, E_NEXT]
    else:
        entry = counters[ENTRIES_USED]
        counters[ENTRIES_USED] = entry + 1
    of = pool.entries[entry]
    of[E_STATE] = state
    of[E_LABEL] = label
    of[E_EVENT] = counters[EVENT]
    of[E_NEXT] = pool.nodes[node, ENTRY]
    pool.nodes[node, ENTRY] = entry
    there = np.int64(0)
    for k in range(len(pairs.kept)):
        of[E_VALUES + k] = values[pairs.kept[k], row]
        there |= np.int64(valid[pairs.kept[k], row]) << k
    of[E_THERE] = there
    for c in range(len(record)):
        pool.sums[entry, c] = record[c]


@inlined
def unlink(pool, node, before, entry):
    """Frees an entry. before: the one before it in its node, NONE if it is the first."""
    after = pool.entries[entry, E_NEXT]
    if before >= 0:
        pool.entries[before, E_NEXT] = after
    else:
        pool.nodes[node, ENTRY] = after
    pool.entries[entry, E_NEXT] = pool.counters[ENTRIES_FREE]
    pool.counters[ENTRIES_FREE] = entry


@inlined
def drop_entries(pool, node, state):
    """Drops the entries of a state, without those of the present event; NONE: all entries."""
    before = np.int64(NONE)
    entry = pool.nodes[node, ENTRY]
    while entry >= 0:
        after = pool.entries[entry, E_NEXT]
        new = pool.entries[entry, E_EVENT] == pool.counters[EVENT]
        if state >= 0 and (new or pool.entries[entry, E_STATE] != state):
            before = entry
        else:
            unlink(pool, node, before, entry)
        entry = after


@inlined
def take_away(moves, pairs, pool, node, state, mask, row, width, sums, shape, values, valid):
    """Drops the entries of a state whose trends may not pass over an event, and adds up the others anew."""
    clear(pool.cells[node, state])
    before = np.int64(NONE)
    entry = pool.nodes[node, ENTRY]
    while entry >= 0:
        after = pool.entries[entry, E_NEXT]
        gone = False
        if pool.entries[entry, E_STATE] == state and pool.entries[entry, E_EVENT] != pool.counters[EVENT]:
            rest = moves.waits[state] & mask
            while rest != 0 and not gone:
                label = trailing_zeros(rest)
                gone = may_follow(pairs, pool.entries[entry, E_LABEL], label, pool, entry, row, values, valid)
                rest &= rest - 1
            if not gone:
                add_record(pool.cells[node, state], pool.sums[entry], width, width, sums, shape)
        if gone:
            unlink(pool, node, before, entry)
        else:
            before = entry
        entry = after


# ---- states, nodes and windows


@inlined
def left(moves, cell, mask):
    """The cell that is left of a state or an end when negated events come, NONE if none is."""
    while cell >= 0 and moves.breaks[cell] & mask != 0:
        for b in range(moves.break_begin[cell], moves.break_begin[cell + 1]):
            if (mask >> moves.break_label[b]) & 1 == 1:
                cell = moves.break_to[b]
                break
    return cell


@called
def pass_over(moves, pairs, pool, node, mask, row, width, sums, shape, values, valid):
    """Ends, moves or keeps the trends that an event does not become part of."""
    for cell in range(len(moves.breaks)):
        record = pool.cells[node, cell]
        if record[shape.alive] == 0:
            continue
        state = cell < moves.states
        grained = state and pairs.grained[cell]
        if state and moves.policy == ENDS:
            clear(record)
            if grained:
                drop_entries(pool, node, cell)
            continue
        if state and moves.policy == NEXT and moves.waits[cell] & mask != 0:
            if grained:
                take_away(moves, pairs, pool, node, cell, mask, row, width, sums, shape, values, valid)
            else:
                clear(record)
            if record[shape.alive] == 0:
                continue
        if moves.breaks[cell] & mask == 0:
            continue
        to = left(moves, cell, mask)
        if to >= 0:
            add_record(pool.cells[node, to], record, width, width, sums, shape)
        clear(record)
        if grained and to >= 0 and pairs.grained[to]:
            entry = pool.nodes[node, ENTRY]
            while entry >= 0:
                if pool.entries[entry, E_STATE] == cell and pool.entries[entry, E_EVENT] != pool.counters[EVENT]:
                    pool.entries[entry, E_STATE] = to
                entry = pool.entries[entry, E_NEXT]
        elif grained:
            drop_entries(pool, node, cell)


@inlined
def new_node(pool, partition, window, slot, width):
    """A node of a partition in a window, at its start."""
    counters = pool.counters
    node = counters[FREE]
    if node >= 0:
        counters[FREE] = pool.nodes[node, NEXT_NODE]
    else:
        node = counters[USED]
        counters[USED] = node + 1
    of = pool.nodes[node]
    of[PARTITION] = partition
    of[WINDOW] = window
    of[START] = 0
    of[WIDTH] = width
    of[FULL] = 0
    of[ENTRY] = NONE
    of[NEXT_NODE] = pool.first[slot]
    pool.first[slot] = node
    pool.of[partition, slot] = node
    counters[OPEN] += 1
    return node


@inlined
def widen(pool, node, width, shape):
    """Gives the numbers of a node and of its entries one limb more."""
    for cell in range(pool.cells.shape[1]):
        for k in range(shape.whole):
            at = k * shape.limbs + width
            pool.cells[node, cell, at] = np.int64(-1) if pool.cells[node, cell, at - 1] < 0 else np.int64(0)
    entry = pool.nodes[node, ENTRY]
    while entry >= 0:
        for k in range(shape.whole):
            at = k * shape.limbs + width
            pool.sums[entry, at] = np.int64(-1) if pool.sums[entry, at - 1] < 0 else np.int64(0)
        entry = pool.entries[entry, E_NEXT]
    pool.nodes[node, WIDTH] = width + 1
    pool.nodes[node, FULL] = 0


@kernel
def close_before(window, moves, sums, shape, pool):
    """Closes the open windows before `window`, writes their rows, in the order of windows, and frees their nodes. The
    output has room for all open nodes."""
    counters = pool.counters
    slots = len(pool.first)
    if counters[LIVE] == 0:
        counters[LIVE] = 1
        counters[CLOSED_BEFORE] = window
        return
    k = counters[CLOSED_BEFORE]
    last = min(window, k + slots)  # no node has a later one
    while k < last:
        slot = k % slots
        node = pool.first[slot]
        while node >= 0:
            after = pool.nodes[node, NEXT_NODE]
            row = pool.out[counters[OUT]]
            clear(row)
            for cell in range(len(moves.breaks)):
                record = pool.cells[node, cell]
                if record[shape.alive] == 0:
                    continue
                if moves.results[cell]:
                    add_record(row[2:], record, pool.nodes[node, WIDTH], shape.limbs, sums, shape)
                clear(record)
            if row[2 + shape.alive] != 0:
                row[0] = pool.nodes[node, PARTITION]
                row[1] = k
                counters[OUT] += 1
            if pool.nodes[node, ENTRY] >= 0:
                drop_entries(pool, node, np.int64(NONE))
            pool.of[pool.nodes[node, PARTITION], slot] = NONE
            pool.nodes[node, NEXT_NODE] = counters[FREE]
            counters[FREE] = node
            counters[OPEN] -= 1
            node = after
        pool.first[slot] = NONE
        k += 1
    if window > counters[CLOSED_BEFORE]:
        counters[CLOSED_BEFORE] = window


@called
def branch(moves, pairs, sums, shape, pool, node, m, row, width, bits, apart, values, doubles, valid):
    """Takes an event that has several labels, or is negated, or comes to a grained state; see `step`."""
    rest = m & moves.taken
    some = rest != 0
    while rest != 0:
        label = trailing_zeros(rest)
        rest &= rest - 1
        for s in range(moves.states):
            if (moves.takes[s] >> label) & 1 == 0:
                continue
            start = moves.starts[s]
            if start:
                if pool.nodes[node, START] != s:
                    continue
                if not may_follow(pairs, np.int64(NONE), label, pool, 0, row, values, valid):
                    continue
            elif pool.cells[node, s, shape.alive] == 0:
                continue
            e = moves.take_begin[s]
            while moves.take_label[e] != label:
                e += 1
            grained = pairs.grained[s] and not start
            entry = pool.nodes[node, ENTRY] if grained else np.int64(0)
            while entry >= 0:
                trends = pool.sums[entry] if grained else pool.cells[node, s]
                if not grained or (
                    pool.entries[entry, E_STATE] == s
                    and pool.entries[entry, E_EVENT] != pool.counters[EVENT]
                    and may_follow(pairs, pool.entries[entry, E_LABEL], label, pool, entry, row, values, valid)
                ):
                    for way in range(2):
                        cell = moves.take_state[e] if way == 0 else moves.take_end[e]
                        if cell >= 0:
                            touch(pool.touched[0], pool.single, cell)
                            extend(start, pool.single[cell], trends, label, row, width, sums, shape, values, doubles,
                                   valid)
                entry = pool.entries[entry, E_NEXT] if grained else np.int64(NONE)
        if not apart:
            continue
        for cell in range(len(moves.breaks)):
            if pool.touched[0, cell]:
                if cell < moves.states and pairs.grained[cell]:
                    if any_crowded(pool.single[cell], width, bits, shape):
                        pool.nodes[node, FULL] = 1
                    add_entry(pairs, pool, node, cell, label, row, pool.single[cell], values, valid)
                touch(pool.touched[1], pool.fresh, cell)
                add_record(pool.fresh[cell], pool.single[cell], width, width, sums, shape)
                pool.touched[0, cell] = False
    pass_over(moves, pairs, pool, node, m, row, width, sums, shape, values, valid)
    if pool.nodes[node, START] >= 0:
        pool.nodes[node, START] = left(moves, pool.nodes[node, START], m)
    which = 1 if apart else 0
    for cell in range(len(moves.breaks)):
        if some and pool.touched[which, cell]:
            add_record(pool.cells[node, cell], pool.fresh[cell], width, width, sums, shape)
            pool.touched[which, cell] = False
            if any_crowded(pool.cells[node, cell], width, bits, shape):
                pool.nodes[node, FULL] = 1


@kernel
def step(begin, end, partition, mask, ts, values, doubles, valid, moves, pairs, sums, shape, pool):
    """Takes rows [begin, end), in the order of time. mask: labels whose conditions hold; values, doubles: (values,
    rows), as int64 in their order and as float64; valid: bool, not null. Returns (next row, status); the call is to be
    repeated with more room. O(windows * states) a row and limb, and for a grained state O(its entries)."""
    counters = pool.counters
    slots = len(pool.first)
    bits = counters[VALUE_BITS]
    narrow = bits // 63 + 1  # limbs of a number that is 0
    if narrow > shape.limbs:
        return begin, MORE_LIMBS
    apart = len(pool.entries) > 0
    first, last, slot_of_first = np.int64(0), np.int64(-1), np.int64(0)
    same_before = np.int64(-0x8000000000000000)  # times before this one have the same windows
    for row in range(begin, end):
        m = mask[row]
        if m == 0 and moves.policy != ENDS:
            continue
        t = ts[row]
        if t >= same_before:
            first = (t - moves.within_us) // moves.slide_us + 1
            last = t // moves.slide_us
            same_before = min((last + 1) * moves.slide_us, first * moves.slide_us + moves.within_us)
            slot_of_first = first % slots
            if counters[LIVE] == 0 or first > counters[CLOSED_BEFORE]:
                if counters[OUT] + counters[OPEN] > len(pool.out) - 1:
                    return row, MORE_OUTPUT
                close_before(first, moves, sums, shape, pool)
        if counters[USED] + slots > len(pool.nodes):
            return row, MORE_NODES
        alone = np.int64(NONE)
        label_bit = m & moves.taken
        if moves.policy == ANY and m & moves.broken == 0 and label_bit & (label_bit - 1) == 0:
            if label_bit & moves.alone & pairs.labels != 0:
                alone = trailing_zeros(label_bit)
        if apart and alone < 0:
            if counters[ENTRIES_USED] + slots * pairs.label_count * moves.states > len(pool.entries):
                return row, MORE_ENTRIES
            counters[EVENT] += 1
        p = partition[row]
        for k in range(first + counters[SLOT], last + 1):
            slot = slot_of_first + (k - first)
            slot = slot - slots if slot >= slots else slot
            node = np.int64(pool.of[p, slot])
            if node < 0:
                if (moves.takes[0] | moves.breaks[0]) & m == 0:
                    continue
                node = new_node(pool, p, k, slot, narrow)
            if pool.nodes[node, FULL] == 1:
                if pool.nodes[node, WIDTH] == shape.limbs:
                    counters[SLOT] = k - first
                    return row, MORE_LIMBS
                widen(pool, node, pool.nodes[node, WIDTH], shape)
            width = pool.nodes[node, WIDTH]
            if alone < 0:
                branch(moves, pairs, sums, shape, pool, node, m, row, width, bits, apart, values, doubles, valid)
                continue
            for e in range(moves.alone_begin[alone], moves.alone_begin[alone + 1]):
                s = moves.alone_source[e]
                start = moves.starts[s]
                if pool.nodes[node, START] != s if start else pool.cells[node, s, shape.alive] == 0:
                    continue
                # the end first: the next state may be the source itself
                for way in range(2):
                    cell = moves.alone_end[e] if way == 0 else moves.alone_state[e]
                    if cell >= 0:
                        record = pool.cells[node, cell]
                        extend(start, record, pool.cells[node, s], alone, row, width, sums, shape, values, doubles,
                               valid)
                        if any_crowded(record, width, bits, shape):
                            pool.nodes[node, FULL] = 1
        counters[SLOT] = 0
    return end, DONE
