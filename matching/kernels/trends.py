"""Counts and sums of trends by state and window, without a trend: O(states * windows) an event, exact at any size.

A node holds the counts of one partition in one window: for each state of the automaton the partial trends that wait in
it, and for each end the trends that have come to it. Beside each count are sums over the events of these trends, and
minima and maxima. An event with the label v in state s moves nothing: all trends in s are copied to the state that
follows (SKIP TILL ANY MATCH), so that the count there grows by that of s, and each sum by that of s plus the event's
value times that count ([SHARING] unshared online aggregation; COGRA, type-grained).

Counts and sums of whole numbers are two's complement numbers of `WIDTH` limbs of 64 bits, the lowest first. A number
becomes wider before an event could overflow it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import inlined, kernel
from matching.kernels.limbs import add_limb, add_product_limb, subtract_product_limb, trailing_zeros

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
    """What happens to the trends of a state that an event does not take."""

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
    """What is added up beside the counts: whole numbers, doubles, and the smallest or largest values, as int64 in their
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


class Pairs(NamedTuple):
    """Conditions of a label on the event right before it. Of label v after label p (-1: the first event) there are
    the alternatives [begin[i], begin[i + 1]) with i = (p + 1) * labels + v; `any` is True if there are conditions.
    Comparisons of an alternative are [of[a], of[a + 1]): function, left and right value (NONE: none), and whether each
    is one of the event before. kept: the values that are kept of an event. grained: bool per state, True if events of
    trends in it are kept one by one. labels: bits of the labels that have nothing to do with such a state."""

    any: np.ndarray
    begin: np.ndarray
    of: np.ndarray
    function: np.ndarray
    left: np.ndarray
    left_before: np.ndarray
    right: np.ndarray
    right_before: np.ndarray
    kept: np.ndarray
    grained: np.ndarray
    labels: int
    label_count: int


class Entries(NamedTuple):
    """Events of trends that wait in grained states, with the sums of the trends that end with each, like the cells of a
    pool. head: int64 (entries, 4), see Entry. values: int64 (entries, kept); there: bool, not null. first: int64
    (nodes,), the last entry of each node. counters: int64 (3,)."""

    head: np.ndarray
    values: np.ndarray
    there: np.ndarray
    whole: np.ndarray
    floats: np.ndarray
    least: np.ndarray
    least_there: np.ndarray
    first: np.ndarray
    counters: np.ndarray


class Entry(IntEnum):
    """Columns of Entries.head."""

    STATE = 0
    LABEL = 1
    NEXT = 2  # of the same node, or the next free one
    EVENT = 3  # the number of the event


E_STATE = int(Entry.STATE)
E_LABEL = int(Entry.LABEL)
E_NEXT = int(Entry.NEXT)
E_EVENT = int(Entry.EVENT)
#: Counters of Entries: entries ever used, the first free one, and the number of the event.
E_USED, E_FREE, E_NUMBER = range(3)


class TrendNode(IntEnum):
    """Columns of the nodes, int64 (nodes, 6)."""

    PARTITION = 0
    NEXT = 1  # of the same window, or the next free one
    START = 2  # state of the start, NONE if a negated event has ended it
    WIDTH = 3  # limbs in use
    FULL = 4  # 1: the next event needs one limb more
    WINDOW = 5


PARTITION = int(TrendNode.PARTITION)
NEXT_NODE = int(TrendNode.NEXT)
START = int(TrendNode.START)
WIDTH = int(TrendNode.WIDTH)
FULL = int(TrendNode.FULL)
WINDOW = int(TrendNode.WINDOW)


class Counter(IntEnum):
    """Numbers that outlive a call, int64 (8,)."""

    USED = 0  # nodes ever used
    FREE = 1  # first free one of them
    OPEN = 2  # nodes of open windows
    CLOSED_BEFORE = 3  # windows before this one are closed
    SLOT = 4  # where to go on in a row after MORE_LIMBS
    OUT = 5  # rows of output
    VALUE_BITS = 6  # of the largest value of a row, for the room above a number
    LIVE = 7  # 1: CLOSED_BEFORE has been set


USED = int(Counter.USED)
FREE = int(Counter.FREE)
OPEN = int(Counter.OPEN)
CLOSED_BEFORE = int(Counter.CLOSED_BEFORE)
SLOT = int(Counter.SLOT)
OUT = int(Counter.OUT)
VALUE_BITS = int(Counter.VALUE_BITS)
LIVE = int(Counter.LIVE)


class Pool(NamedTuple):
    """Nodes. whole: int64 (nodes, cells, 1 + sums, limbs), the counts first; floats: float64 (nodes, cells, sums);
    least: int64 (nodes, cells, sums), and whether there is one, in least_there; alive: bool (nodes, cells), the count
    is not 0. of: int32 (partitions, slots), the node of each partition and window; first: int64 (slots,), the first
    node of each open window."""

    nodes: np.ndarray
    whole: np.ndarray
    floats: np.ndarray
    least: np.ndarray
    least_there: np.ndarray
    alive: np.ndarray
    of: np.ndarray
    first: np.ndarray
    counters: np.ndarray


class Output(NamedTuple):
    """Rows of closed windows with a trend: int64 (rows, 2) partition and window; sums as in a cell of the pool."""

    keys: np.ndarray
    whole: np.ndarray
    floats: np.ndarray
    least: np.ndarray
    least_there: np.ndarray


class Fresh(NamedTuple):
    """What an event adds to each cell; room for one event. touched: bool (cells,)."""

    whole: np.ndarray
    floats: np.ndarray
    least: np.ndarray
    least_there: np.ndarray
    touched: np.ndarray


@inlined
def add_number(to, value, width):
    """Adds a number to another, both of `width` limbs."""
    carry = np.int64(0)
    for i in range(width):
        to[i], carry = add_limb(to[i], value[i], carry)


@inlined
def add_small(to, value, width):
    """Adds an int64 to a number."""
    carry = np.int64(0)
    high = np.int64(-1) if value < 0 else np.int64(0)
    for i in range(width):
        to[i], carry = add_limb(to[i], value if i == 0 else high, carry)


@inlined
def add_times(to, count, value, width):
    """Adds `count`, which is not negative, times `value` to a number."""
    carry = np.int64(0)
    if value >= 0:
        for i in range(width):
            to[i], carry = add_product_limb(to[i], count[i], value, carry)
    else:
        for i in range(width):
            to[i], carry = subtract_product_limb(to[i], count[i], -value, carry)


@inlined
def as_double(value, width):
    """A number that is not negative, rounded."""
    result = 0.0
    for i in range(width - 1, -1, -1):
        low = value[i] & 0xFFFFFFFF
        high = (value[i] >> 32) & 0xFFFFFFFF
        result = (result * 4294967296.0 + high) * 4294967296.0 + low
    return result


@inlined
def crowded(value, width, bits):
    """True if a number may overflow when it grows by `bits` bits."""
    sign = np.int64(-1) if value[width - 1] < 0 else np.int64(0)
    at = width - 1
    while bits >= 63:
        if at < 0 or value[at] != sign:
            return True
        bits -= 63
        at -= 1
    if at < 0:
        return True
    return (value[at] ^ sign) >> (62 - bits) != 0


@inlined
def touch(fresh, cell, width):
    """Begins what an event adds to a cell."""
    if not fresh.touched[cell]:
        fresh.touched[cell] = True
        for k in range(fresh.whole.shape[1]):
            for i in range(width):
                fresh.whole[cell, k, i] = 0
        for k in range(fresh.floats.shape[1]):
            fresh.floats[cell, k] = 0.0
        for k in range(fresh.least.shape[1]):
            fresh.least_there[cell, k] = False


@inlined
def take_least(least, there, k, value, largest):
    if not there[k] or (value > least[k] if largest else value < least[k]):
        least[k] = value
        there[k] = True


@inlined
def extend(start, whole, floats, least, least_there, fresh, cell, label, row, width, sums, values, doubles, valid):
    """Adds to `cell` trends with the event: those whose sums are given, or, if `start`, one trend without events."""
    touch(fresh, cell, width)
    bit = np.int64(1) << label
    to = fresh.whole[cell]
    count = whole[0]
    if start:
        add_small(to[0], np.int64(1), width)
    else:
        add_number(to[0], count, width)
    for k in range(len(sums.whole_value)):
        if not start:
            add_number(to[k + 1], whole[k + 1], width)
        if sums.whole_labels[k] & bit == 0:
            continue
        value = np.int64(1)
        v = sums.whole_value[k]
        if v >= 0:
            if not valid[v, row]:
                continue
            if not sums.whole_ones[k]:
                value = values[v, row]
        if start:
            add_small(to[k + 1], value, width)
        else:
            add_times(to[k + 1], count, value, width)
    for k in range(len(sums.float_value)):
        if not start:
            fresh.floats[cell, k] += floats[k]
        v = sums.float_value[k]
        if sums.float_labels[k] & bit != 0 and valid[v, row] and doubles[v, row] != 0.0:  # 0 times infinity is 0 here
            fresh.floats[cell, k] += doubles[v, row] * (1.0 if start else as_double(count, width))
    for k in range(len(sums.least_value)):
        if not start and least_there[k]:
            take_least(fresh.least[cell], fresh.least_there[cell], k, least[k], sums.least_largest[k])
        v = sums.least_value[k]
        if sums.least_labels[k] & bit != 0 and valid[v, row]:
            take_least(fresh.least[cell], fresh.least_there[cell], k, values[v, row], sums.least_largest[k])


@inlined
def merge(single, fresh, cell, width, sums):
    """Adds what an event brings by one label to what it brings."""
    touch(fresh, cell, width)
    for k in range(fresh.whole.shape[1]):
        add_number(fresh.whole[cell, k], single.whole[cell, k], width)
    for k in range(fresh.floats.shape[1]):
        fresh.floats[cell, k] += single.floats[cell, k]
    for k in range(fresh.least.shape[1]):
        if single.least_there[cell, k]:
            take_least(fresh.least[cell], fresh.least_there[cell], k, single.least[cell, k], sums.least_largest[k])
    single.touched[cell] = False


@inlined
def join(pool, node, cell, fresh, width, sums, bits):
    """Adds what an event brings to a cell."""
    for k in range(fresh.whole.shape[1]):
        add_number(pool.whole[node, cell, k], fresh.whole[cell, k], width)
        if crowded(pool.whole[node, cell, k], width, bits):
            pool.nodes[node, FULL] = 1
    for k in range(fresh.floats.shape[1]):
        pool.floats[node, cell, k] += fresh.floats[cell, k]
    for k in range(fresh.least.shape[1]):
        if fresh.least_there[cell, k]:
            take_least(pool.least[node, cell], pool.least_there[node, cell], k, fresh.least[cell, k],
                       sums.least_largest[k])
    pool.alive[node, cell] = True
    fresh.touched[cell] = False


@inlined
def clear(pool, node, cell):
    """A cell without trends."""
    pool.alive[node, cell] = False
    pool.whole[node, cell] = 0
    pool.floats[node, cell] = 0.0
    pool.least_there[node, cell] = False


@inlined
def grow(pool, node, source, cell, label, row, width, sums, values, doubles, valid, bits):
    """Adds to `cell` the trends of state `source` (NONE: the start) with the event, at once: no trend of `source` is
    new. source and cell may be the same."""
    bit = np.int64(1) << label
    to = pool.whole[node, cell]
    count = pool.whole[node, max(source, 0), 0]
    full = False
    for k in range(len(sums.whole_value)):
        if source >= 0:
            add_number(to[k + 1], pool.whole[node, source, k + 1], width)
        if sums.whole_labels[k] & bit != 0:
            value = np.int64(1)
            v = sums.whole_value[k]
            if v >= 0:
                value = np.int64(0)
                if valid[v, row]:
                    value = np.int64(1) if sums.whole_ones[k] else values[v, row]
            if source >= 0:
                add_times(to[k + 1], count, value, width)
            else:
                add_small(to[k + 1], value, width)
        full |= crowded(to[k + 1], width, bits)
    for k in range(len(sums.float_value)):
        if source >= 0:
            pool.floats[node, cell, k] += pool.floats[node, source, k]
        v = sums.float_value[k]
        if sums.float_labels[k] & bit != 0 and valid[v, row] and doubles[v, row] != 0.0:  # 0 times infinity is 0 here
            pool.floats[node, cell, k] += doubles[v, row] * (as_double(count, width) if source >= 0 else 1.0)
    for k in range(len(sums.least_value)):
        if source >= 0 and pool.least_there[node, source, k]:
            take_least(pool.least[node, cell], pool.least_there[node, cell], k, pool.least[node, source, k],
                       sums.least_largest[k])
        v = sums.least_value[k]
        if sums.least_labels[k] & bit != 0 and valid[v, row]:
            take_least(pool.least[node, cell], pool.least_there[node, cell], k, values[v, row], sums.least_largest[k])
    if source >= 0:
        add_number(to[0], count, width)
    else:
        add_small(to[0], np.int64(1), width)
    full |= crowded(to[0], width, bits)
    if full:
        pool.nodes[node, FULL] = 1
    pool.alive[node, cell] = True


@inlined
def left(moves, cell, mask):
    """The cell that is left of a state or an end when negated events come, NONE if none is."""
    while cell >= 0 and moves.breaks[cell] & mask != 0:
        for b in range(moves.break_begin[cell], moves.break_begin[cell + 1]):
            if (mask >> moves.break_label[b]) & 1 == 1:
                cell = moves.break_to[b]
                break
    return cell


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
def may_follow(pairs, before, label, entries, entry, row, values, valid):
    """True if an event of `label` may come right after the event of an entry, of the label `before`; NONE: after
    none."""
    i = (before + 1) * pairs.label_count + label
    if not pairs.any[i]:
        return True
    for a in range(pairs.begin[i], pairs.begin[i + 1]):
        holds = True
        for c in range(pairs.of[a], pairs.of[a + 1]):
            v = pairs.left[c]
            if pairs.left_before[c]:
                there = entries.there[entry, v]
                x = entries.values[entry, v]
            else:
                there = valid[v, row]
                x = values[v, row]
            if pairs.function[c] == IS:
                holds = there and x != 0
            elif there:
                v = pairs.right[c]
                if pairs.right_before[c]:
                    holds = entries.there[entry, v] and compares(pairs.function[c], x, entries.values[entry, v])
                else:
                    holds = valid[v, row] and compares(pairs.function[c], x, values[v, row])
            else:
                holds = False
            if not holds:
                break
        if holds:
            return True
    return False


@inlined
def add_entry(pairs, entries, node, state, label, row, fresh, values, valid):
    """Keeps an event of trends that wait in a state."""
    entry = entries.counters[E_FREE]
    if entry >= 0:
        entries.counters[E_FREE] = entries.head[entry, E_NEXT]
    else:
        entry = entries.counters[E_USED]
        entries.counters[E_USED] = entry + 1
    entries.head[entry, E_STATE] = state
    entries.head[entry, E_LABEL] = label
    entries.head[entry, E_EVENT] = entries.counters[E_NUMBER]
    entries.head[entry, E_NEXT] = entries.first[node]
    entries.first[node] = entry
    for k in range(len(pairs.kept)):
        entries.values[entry, k] = values[pairs.kept[k], row]
        entries.there[entry, k] = valid[pairs.kept[k], row]
    for k in range(fresh.whole.shape[1]):
        for i in range(fresh.whole.shape[2]):
            entries.whole[entry, k, i] = fresh.whole[state, k, i]
    for k in range(fresh.floats.shape[1]):
        entries.floats[entry, k] = fresh.floats[state, k]
    for k in range(fresh.least.shape[1]):
        entries.least[entry, k] = fresh.least[state, k]
        entries.least_there[entry, k] = fresh.least_there[state, k]


@inlined
def drop_entries(entries, node, state):
    """Drops the entries of a state, without those of the present event; NONE: all entries."""
    before = np.int64(NONE)
    entry = entries.first[node]
    while entry >= 0:
        after = entries.head[entry, E_NEXT]
        new = entries.head[entry, E_EVENT] == entries.counters[E_NUMBER]
        if state >= 0 and (new or entries.head[entry, E_STATE] != state):
            before = entry
        else:
            unlink(entries, node, before, entry)
        entry = after


@inlined
def unlink(entries, node, before, entry):
    """Frees an entry. before: the one before it in its node, NONE if it is the first."""
    after = entries.head[entry, E_NEXT]
    if before >= 0:
        entries.head[before, E_NEXT] = after
    else:
        entries.first[node] = after
    entries.head[entry, E_NEXT] = entries.counters[E_FREE]
    entries.counters[E_FREE] = entry


@inlined
def rename_entries(entries, node, state, to):
    """Gives entries of a state another one."""
    entry = entries.first[node]
    while entry >= 0:
        if entries.head[entry, E_STATE] == state and entries.head[entry, E_EVENT] != entries.counters[E_NUMBER]:
            entries.head[entry, E_STATE] = to
        entry = entries.head[entry, E_NEXT]


@inlined
def widen_entries(entries, node, width):
    """Gives the numbers of a node's entries a limb more."""
    entry = entries.first[node]
    while entry >= 0:
        for k in range(entries.whole.shape[1]):
            low = entries.whole[entry, k, width - 1]
            entries.whole[entry, k, width] = np.int64(-1) if low < 0 else np.int64(0)
        entry = entries.head[entry, E_NEXT]


@inlined
def take_away(moves, pairs, pool, entries, node, state, mask, row, width, sums, values, valid):
    """Drops the entries of a state whose trends may not pass over an event, and adds up the others anew."""
    clear(pool, node, state)
    before = np.int64(NONE)
    entry = entries.first[node]
    while entry >= 0:
        after = entries.head[entry, E_NEXT]
        old = entries.head[entry, E_EVENT] != entries.counters[E_NUMBER]
        gone = False
        if old and entries.head[entry, E_STATE] == state:
            rest = moves.waits[state] & mask
            while rest != 0 and not gone:
                gone = may_follow(
                    pairs, entries.head[entry, E_LABEL], trailing_zeros(rest), entries, entry, row, values, valid
                )
                rest &= rest - 1
            if not gone:
                pool.alive[node, state] = True
                for k in range(pool.whole.shape[2]):
                    add_number(pool.whole[node, state, k], entries.whole[entry, k], width)
                for k in range(pool.floats.shape[2]):
                    pool.floats[node, state, k] += entries.floats[entry, k]
                for k in range(pool.least.shape[2]):
                    if entries.least_there[entry, k]:
                        take_least(pool.least[node, state], pool.least_there[node, state], k, entries.least[entry, k],
                                   sums.least_largest[k])
        if gone:
            unlink(entries, node, before, entry)
        else:
            before = entry
        entry = after


@inlined
def pass_over(moves, pairs, pool, entries, node, mask, row, width, sums, values, valid):
    """What an event does to the trends that it does not become part of."""
    for cell in range(len(moves.breaks)):
        if not pool.alive[node, cell]:
            continue
        grained = cell < moves.states and pairs.grained[cell]
        if cell < moves.states and moves.policy == ENDS:
            clear(pool, node, cell)
            if grained:
                drop_entries(entries, node, cell)
            continue
        if cell < moves.states and moves.policy == NEXT and moves.waits[cell] & mask != 0:
            if grained:
                take_away(moves, pairs, pool, entries, node, cell, mask, row, width, sums, values, valid)
            else:
                clear(pool, node, cell)
            if not pool.alive[node, cell]:
                continue
        if moves.breaks[cell] & mask != 0:
            to = left(moves, cell, mask)
            if to >= 0:
                for k in range(pool.whole.shape[2]):
                    add_number(pool.whole[node, to, k], pool.whole[node, cell, k], width)
                for k in range(pool.floats.shape[2]):
                    pool.floats[node, to, k] += pool.floats[node, cell, k]
                for k in range(pool.least.shape[2]):
                    if pool.least_there[node, cell, k]:
                        take_least(pool.least[node, to], pool.least_there[node, to], k, pool.least[node, cell, k],
                                   sums.least_largest[k])
                pool.alive[node, to] = True
            clear(pool, node, cell)
            if grained and to >= 0 and pairs.grained[to]:
                rename_entries(entries, node, cell, to)
            elif grained:
                drop_entries(entries, node, cell)


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
    pool.nodes[node, PARTITION] = partition
    pool.nodes[node, WINDOW] = window
    pool.nodes[node, START] = 0
    pool.nodes[node, WIDTH] = width
    pool.nodes[node, FULL] = 0
    pool.nodes[node, NEXT_NODE] = pool.first[slot]
    pool.first[slot] = node
    pool.of[partition, slot] = node
    counters[OPEN] += 1
    return node


@inlined
def give(moves, pool, node, out, sums):
    """Writes the row of a closed window: its trends of all ends."""
    counters = pool.counters
    width = pool.nodes[node, WIDTH]
    at = counters[OUT]
    any_end = False
    for cell in range(len(moves.breaks)):
        if not moves.results[cell] or not pool.alive[node, cell]:
            continue
        if not any_end:
            any_end = True
            out.keys[at, 0] = pool.nodes[node, PARTITION]
            out.keys[at, 1] = pool.nodes[node, WINDOW]
            out.whole[at] = 0
            out.floats[at] = 0.0
            out.least_there[at] = False
        # numbers in the output have all limbs: those above `width` continue the sign
        for k in range(pool.whole.shape[2]):
            carry = np.int64(0)
            sign = np.int64(-1) if pool.whole[node, cell, k, width - 1] < 0 else np.int64(0)
            for i in range(pool.whole.shape[3]):
                limb = pool.whole[node, cell, k, i] if i < width else sign
                out.whole[at, k, i], carry = add_limb(out.whole[at, k, i], limb, carry)
        for k in range(pool.floats.shape[2]):
            out.floats[at, k] += pool.floats[node, cell, k]
        for k in range(pool.least.shape[2]):
            if pool.least_there[node, cell, k]:
                take_least(out.least[at], out.least_there[at], k, pool.least[node, cell, k], sums.least_largest[k])
    if any_end:
        counters[OUT] = at + 1


@kernel
def close_before(window, moves, sums, pool, entries, out):
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
            give(moves, pool, node, out, sums)
            for cell in range(len(moves.breaks)):
                if pool.alive[node, cell]:
                    clear(pool, node, cell)
            if len(entries.head):
                drop_entries(entries, node, np.int64(NONE))
            pool.of[pool.nodes[node, PARTITION], slot] = NONE
            pool.nodes[node, NEXT_NODE] = counters[FREE]
            counters[FREE] = node
            counters[OPEN] -= 1
            node = after
        pool.first[slot] = NONE
        k += 1
    if window > counters[CLOSED_BEFORE]:
        counters[CLOSED_BEFORE] = window


@kernel
def step(
    begin, end, partition, mask, ts, values, doubles, valid, moves, pairs, sums, pool, entries, out, fresh, single
):
    """Takes rows [begin, end), in the order of time. mask: labels whose conditions hold; values, doubles: (values,
    rows), as int64 in their order and as float64; valid: bool, not null. single: as fresh, or fresh itself if no state
    is grained. Returns (next row, status); the call is to be repeated with more room. O(windows * states) a row and
    limb, and for a grained state O(its entries)."""
    counters = pool.counters
    slots = len(pool.first)
    bits = counters[VALUE_BITS]
    narrow = bits // 63 + 1  # limbs of a number that is 0
    if narrow > pool.whole.shape[3]:
        return begin, MORE_LIMBS
    apart = len(entries.head) > 0
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
                if counters[OUT] + counters[OPEN] > len(out.keys):
                    return row, MORE_OUTPUT
                close_before(first, moves, sums, pool, entries, out)
        if counters[USED] + slots > len(pool.nodes):
            return row, MORE_NODES
        alone = np.int64(NONE)
        label_bit = m & moves.taken
        if moves.policy == ANY and m & moves.broken == 0 and label_bit & (label_bit - 1) == 0:
            if label_bit & moves.alone & pairs.labels != 0:
                alone = trailing_zeros(label_bit)
        if apart and alone < 0:
            if entries.counters[E_USED] + slots * pairs.label_count * moves.states > len(entries.head):
                return row, MORE_ENTRIES
            entries.counters[E_NUMBER] += 1
        p = partition[row]
        for k in range(first + counters[SLOT], last + 1):
            slot = slot_of_first + (k - first)
            slot = slot - slots if slot >= slots else slot
            node = np.int64(pool.of[p, slot])
            if node < 0:
                if (moves.takes[0] | moves.breaks[0]) & m == 0:
                    continue
                node = new_node(pool, p, k, slot, narrow)
            width = pool.nodes[node, WIDTH]
            if pool.nodes[node, FULL] == 1:
                if width == pool.whole.shape[3]:
                    counters[SLOT] = k - first
                    return row, MORE_LIMBS
                for cell in range(len(moves.breaks)):
                    for j in range(pool.whole.shape[2]):
                        low = pool.whole[node, cell, j, width - 1]
                        pool.whole[node, cell, j, width] = np.int64(-1) if low < 0 else np.int64(0)
                if apart:
                    widen_entries(entries, node, width)
                width += 1
                pool.nodes[node, WIDTH] = width
                pool.nodes[node, FULL] = 0
            if alone >= 0:
                for e in range(moves.alone_begin[alone], moves.alone_begin[alone + 1]):
                    s = moves.alone_source[e]
                    source = s
                    if moves.starts[s]:
                        if pool.nodes[node, START] != s:
                            continue
                        source = np.int64(NONE)
                    elif not pool.alive[node, s]:
                        continue
                    # the end first: the next state may be the source itself
                    if moves.alone_end[e] >= 0:
                        grow(pool, node, source, moves.alone_end[e], alone, row, width, sums, values, doubles, valid,
                             bits)
                    if moves.alone_state[e] >= 0:
                        grow(pool, node, source, moves.alone_state[e], alone, row, width, sums, values, doubles, valid,
                             bits)
                continue
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
                        if not may_follow(pairs, np.int64(NONE), label, entries, 0, row, values, valid):
                            continue
                    elif not pool.alive[node, s]:
                        continue
                    e = moves.take_begin[s]
                    while moves.take_label[e] != label:
                        e += 1
                    for cell in (moves.take_state[e], moves.take_end[e]):
                        if cell < 0:
                            continue
                        if start or not pairs.grained[s]:
                            extend(start, pool.whole[node, s], pool.floats[node, s], pool.least[node, s],
                                   pool.least_there[node, s], single, cell, label, row, width, sums, values, doubles,
                                   valid)
                            continue
                        entry = entries.first[node]
                        while entry >= 0:
                            if (
                                entries.head[entry, E_STATE] == s
                                and entries.head[entry, E_EVENT] != entries.counters[E_NUMBER]
                                and may_follow(pairs, entries.head[entry, E_LABEL], label, entries, entry, row, values,
                                               valid)
                            ):
                                extend(False, entries.whole[entry], entries.floats[entry], entries.least[entry],
                                       entries.least_there[entry], single, cell, label, row, width, sums, values,
                                       doubles, valid)
                            entry = entries.head[entry, E_NEXT]
                if apart:
                    for cell in range(len(moves.breaks)):
                        if single.touched[cell]:
                            if cell < moves.states and pairs.grained[cell]:
                                for j in range(single.whole.shape[1]):
                                    if crowded(single.whole[cell, j], width, bits):
                                        pool.nodes[node, FULL] = 1
                                add_entry(pairs, entries, node, cell, label, row, single, values, valid)
                            merge(single, fresh, cell, width, sums)
            pass_over(moves, pairs, pool, entries, node, m, row, width, sums, values, valid)
            if pool.nodes[node, START] >= 0:
                pool.nodes[node, START] = left(moves, pool.nodes[node, START], m)
            if some:
                for cell in range(len(moves.breaks)):
                    if fresh.touched[cell]:
                        join(pool, node, cell, fresh, width, sums, bits)
        counters[SLOT] = 0
    return end, DONE
