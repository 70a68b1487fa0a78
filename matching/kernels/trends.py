"""Counts and sums of trends by state and window, without a trend: O(states * windows) an event, exact at any size.

A node holds the counts of one partition in one window: for each state of the automaton the partial trends that wait in
it, and for each end the trends that have come to it. Beside each count are sums over the events of these trends, and
minima and maxima. An event with the label v in state s moves nothing: all trends in s are copied to the state that
follows (SKIP TILL ANY MATCH), so that the count there grows by that of s, and each sum by that of s plus the event's
value times that count ([SHARING] unshared online aggregation; COGRA, type-grained). These numbers are a record:
matching.kernels.trend_records.

Long: a pass with events kept, one with counts only, and what closes a window know one layout of nodes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.limbs import add_limb, trailing_zeros
from matching.kernels.predicate import holds
from matching.kernels.trend_records import (
    NONE,
    add_record,
    any_crowded,
    clear,
    extend,
    touch,
)

DONE = 0
MORE_NODES = 1
MORE_LIMBS = 2
MORE_OUTPUT = 3
MORE_ENTRIES = 4
FAILED = 5

#: Functions of comparisons.
IS, EQUAL, UNEQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, COMPUTED = range(8)


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


class Pairs(NamedTuple):
    """Conditions of a label on the event right before it. Of label v after label p (-1: the first event) there are
    the alternatives [begin[i], begin[i + 1]) with i = (p + 1) * labels + v; `any` is True if there are conditions.
    Comparisons of an alternative are rows [of[a], of[a + 1]) of `compare`, int64 (n, 5): function, left and right value
    (NONE: none), and for each 1 if it is one of the event before. A computed one has the index of its bytecode as its
    left value: `code_start`, `code`, `constant` and `stack` are those of matching.kernels.predicate.holds, to which the
    values that are kept are registers; nothing reads `ranks`, asks or walks. kept: the values that are kept of an
    event; kept_bits: True for doubles as they are, not in their order. grained: bool per state, True if events of
    trends in it are kept one by one. labels: bits of the labels that have nothing to do with such a state."""

    any: np.ndarray
    begin: np.ndarray
    of: np.ndarray
    compare: np.ndarray
    code_start: np.ndarray
    code: np.ndarray
    constant: np.ndarray
    constant_f: np.ndarray
    stack: np.ndarray
    stack_f: np.ndarray
    stack_valid: np.ndarray
    ranks: np.ndarray
    asked_keys: np.ndarray
    asked_values: np.ndarray
    asked_known: np.ndarray
    answer: np.ndarray
    kept_of: np.ndarray
    walks: np.ndarray
    walks_f: np.ndarray
    apart: np.ndarray
    at: np.ndarray
    at_f: np.ndarray
    of_rows: np.ndarray
    of_rows_valid: np.ndarray
    rows: np.ndarray
    values: np.ndarray
    roots: np.ndarray
    found: np.ndarray
    tree: np.ndarray
    list_lines: np.ndarray
    list_table: np.ndarray
    list_rows: np.ndarray
    previous: np.ndarray
    row: np.ndarray
    variable: np.ndarray
    kept: np.ndarray
    kept_bits: np.ndarray
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
    """Numbers that outlive a call, int64 (13,)."""

    USED = 0  # nodes ever used
    FREE = 1  # first free one of them
    OPEN = 2  # nodes of open windows
    CLOSED_BEFORE = 3  # windows before this one are closed
    SLOT = 4  # where to go on in a row after MORE_LIMBS or MORE_NODES
    OUT = 5  # rows of output
    VALUE_BITS = 6  # of the largest value of a row, for the room above a number
    LIVE = 7  # 1: CLOSED_BEFORE has been set
    ENTRIES_USED = 8  # entries ever used
    ENTRIES_FREE = 9  # first free one of them
    EVENT = 10  # the number of the event
    FAILED_ROW = 11  # a condition that was read and cannot be computed: its row + 1 (0: none), and its label
    FAILED_LABEL = 12


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
FAILED_ROW = int(Counter.FAILED_ROW)
FAILED_LABEL = int(Counter.FAILED_LABEL)


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


@called
def computed(pairs, code, label, pool, entry, row, bits, valid):
    """True if a condition holds for an event after the event of an entry, by bytecode; notes one that cannot be
    computed."""
    before = pool.entries[entry]
    truth = holds(pairs, code, before[E_VALUES:], before[E_THERE], bits, valid, row, pairs)
    if truth < 0 and pool.counters[FAILED_ROW] == 0:
        pool.counters[FAILED_ROW] = row + 1
        pool.counters[FAILED_LABEL] = label
    return truth == 1


@inlined
def may_follow(pairs, before, label, pool, entry, row, values, bits, valid):
    """True if an event of `label` may come right after the event of an entry, of the label `before`; NONE: after
    none. values, bits: of the event, doubles in their order and as they are."""
    i = (before + 1) * pairs.label_count + label
    if not pairs.any[i]:
        return True
    for a in range(pairs.begin[i], pairs.begin[i + 1]):
        met = True
        for c in range(pairs.of[a], pairs.of[a + 1]):
            one = pairs.compare[c]
            if one[FUNCTION] == COMPUTED:
                met = computed(pairs, one[LEFT], label, pool, entry, row, bits, valid)
                if not met:
                    break
                continue
            x, met = operand(one[LEFT], one[LEFT_BEFORE] == 1, pool, entry, row, values, valid)
            if met and one[FUNCTION] == IS:
                met = x != 0
            elif met:
                y, met = operand(one[RIGHT], one[RIGHT_BEFORE] == 1, pool, entry, row, values, valid)
                met = met and compares(one[FUNCTION], x, y)
            if not met:
                break
        if met:
            return True
    return False


@inlined
def add_entry(pairs, pool, node, state, label, row, record, values, bits, valid):
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
        of[E_VALUES + k] = bits[pairs.kept[k], row] if pairs.kept_bits[k] else values[pairs.kept[k], row]
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
def take_away(moves, pairs, pool, node, state, mask, row, width, sums, shape, values, bits, valid):
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
                gone = may_follow(pairs, pool.entries[entry, E_LABEL], label, pool, entry, row, values, bits, valid)
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
def pass_over(moves, pairs, pool, node, mask, row, width, sums, shape, values, bits, valid):
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
                take_away(moves, pairs, pool, node, cell, mask, row, width, sums, shape, values, bits, valid)
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
def branch(moves, pairs, sums, shape, pool, node, m, row, width, room, apart, values, bits, doubles, valid):
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
                if not may_follow(pairs, np.int64(NONE), label, pool, 0, row, values, bits, valid):
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
                    and may_follow(pairs, pool.entries[entry, E_LABEL], label, pool, entry, row, values, bits, valid)
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
                    if any_crowded(pool.single[cell], width, room, shape):
                        pool.nodes[node, FULL] = 1
                    add_entry(pairs, pool, node, cell, label, row, pool.single[cell], values, bits, valid)
                touch(pool.touched[1], pool.fresh, cell)
                add_record(pool.fresh[cell], pool.single[cell], width, width, sums, shape)
                pool.touched[0, cell] = False
    pass_over(moves, pairs, pool, node, m, row, width, sums, shape, values, bits, valid)
    if pool.nodes[node, START] >= 0:
        pool.nodes[node, START] = left(moves, pool.nodes[node, START], m)
    which = 1 if apart else 0
    for cell in range(len(moves.breaks)):
        if some and pool.touched[which, cell]:
            add_record(pool.cells[node, cell], pool.fresh[cell], width, width, sums, shape)
            pool.touched[which, cell] = False
            if any_crowded(pool.cells[node, cell], width, room, shape):
                pool.nodes[node, FULL] = 1


@inlined
def count_alone(moves, nodes, numbers, node, label, width, room, cells, columns):
    """Takes an event of one label where nothing but trends is counted. The same as `extend` for each take, but over
    `numbers`, all records one after the other: a view of each would cost more than the addition. room: less than 63."""
    of_node = np.uint64(node * cells * columns)
    alive = np.uint64(columns - 1)
    ends = np.uint64(width)
    for e in range(moves.alone_begin[label], moves.alone_begin[label + 1]):
        s = moves.alone_source[e]
        start = moves.starts[s]
        source = of_node + np.uint64(s * columns)
        if nodes[node, START] != s if start else numbers[source + alive] == 0:
            continue
        # the end first: the next state may be the source itself
        for way in range(2):
            cell = moves.alone_end[e] if way == 0 else moves.alone_state[e]
            if cell < 0:
                continue
            to = of_node + np.uint64(cell * columns)
            i = np.uint64(0)
            if start:
                carry = np.int64(1)
                while carry != 0 and i < ends:
                    numbers[to + i], carry = add_limb(numbers[to + i], np.int64(0), carry)
                    i += np.uint64(1)
            else:
                carry = np.int64(0)
                while i < ends:
                    numbers[to + i], carry = add_limb(numbers[to + i], numbers[source + i], carry)
                    i += np.uint64(1)
            numbers[to + alive] = 1
            if numbers[to + ends - np.uint64(1)] >> (62 - room) != 0:  # no count is negative
                nodes[node, FULL] = 1


@kernel
def step(begin, end, partition, mask, ts, values, bits, doubles, valid, moves, pairs, sums, shape, pool):
    """Takes rows [begin, end), in the order of time. mask: labels whose conditions hold; values, bits, doubles:
    (values, rows), doubles as int64 in their order, as their bits and as float64; valid: bool, not null. Returns (next
    row, status); the call is to be repeated with more room. O(windows * states) a row and limb, and for a grained state
    O(its entries)."""
    counters = pool.counters
    slots = len(pool.first)
    room = counters[VALUE_BITS]
    narrow = room // 63 + 1  # limbs of a number that is 0
    if narrow > shape.limbs:
        return begin, MORE_LIMBS
    apart = len(pool.entries) > 0
    nodes, numbers, node_of = pool.nodes, pool.cells.reshape(-1), pool.of
    plain = shape.whole == 1 and shape.floats == shape.there and room < 63
    resumed = counters[SLOT]  # windows of the first row that have taken it
    counters[SLOT] = 0
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
                    counters[SLOT] = resumed
                    return row, MORE_OUTPUT
                close_before(first, moves, sums, shape, pool)
        alone = np.int64(NONE)
        label_bit = m & moves.taken
        if moves.policy == ANY and m & moves.broken == 0 and label_bit & (label_bit - 1) == 0:
            if label_bit & moves.alone & pairs.labels != 0:
                alone = trailing_zeros(label_bit)
        if apart and alone < 0:
            if counters[ENTRIES_USED] + slots * pairs.label_count * moves.states > len(pool.entries):
                counters[SLOT] = resumed
                return row, MORE_ENTRIES
            counters[EVENT] += 1
        p = partition[row]
        for k in range(first + resumed, last + 1):
            slot = slot_of_first + (k - first)
            slot = slot - slots if slot >= slots else slot
            node = np.int64(node_of[p, slot])
            if node < 0:
                if (moves.takes[0] | moves.breaks[0]) & m == 0:
                    continue
                if counters[FREE] < 0 and counters[USED] == len(nodes):
                    counters[SLOT] = k - first
                    return row, MORE_NODES
                node = new_node(pool, p, k, slot, narrow)
            if nodes[node, FULL] == 1:
                if nodes[node, WIDTH] == shape.limbs:
                    counters[SLOT] = k - first
                    return row, MORE_LIMBS
                widen(pool, node, nodes[node, WIDTH], shape)
            width = nodes[node, WIDTH]
            if alone < 0:
                branch(
                    moves, pairs, sums, shape, pool, node, m, row, width, room, apart, values, bits, doubles, valid
                )  # fmt: skip
                continue
            if plain:
                count_alone(moves, nodes, numbers, node, alone, width, room, pool.cells.shape[1], pool.cells.shape[2])
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
                        if any_crowded(record, width, room, shape):
                            pool.nodes[node, FULL] = 1
        resumed = np.int64(0)
        if alone < 0 and counters[FAILED_ROW] != 0:
            return row, FAILED
    return end, DONE
