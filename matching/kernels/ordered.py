"""Counts of trends where an event is compared with the one right before it: O(log n) an event instead of O(n).

An event may follow those of an open window whose value is, for example, smaller than its own. The trends that end with
each value are a node of a treap by value, with the record of its subtree (matching.kernels.trend_records), so that
those below a bound are a few records. Trends only come in a window, so minima and maxima work as sums do. The priority
of a node is a hash of its value: the tree has one shape whatever the order of the events.

Nodes of trees are entries of matching.kernels.trends, with other columns: they are freed and become wider with those.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.limbs import trailing_zeros
from matching.kernels.trend_records import NONE, add_record, any_crowded, clear, extend
from matching.kernels.trends import (
    CLOSED_BEFORE,
    DONE,
    E_NEXT,
    E_VALUES,
    ENTRIES_FREE,
    ENTRIES_USED,
    ENTRY,
    EQUAL,
    FREE,
    FULL,
    GREATER,
    GREATER_EQUAL,
    LESS,
    LESS_EQUAL,
    LIVE,
    MORE_ENTRIES,
    MORE_LIMBS,
    MORE_NODES,
    MORE_OUTPUT,
    OPEN,
    OUT,
    SLOT,
    START,
    UNEQUAL,
    USED,
    VALUE_BITS,
    WIDTH,
    close_before,
    may_follow,
    new_node,
    widen,
)

#: Columns of entries that are nodes of a tree: the value, and the nodes with smaller and with larger ones.
VALUE, SMALLER, LARGER = range(E_VALUES, E_VALUES + 3)
COLUMNS = E_VALUES + 3
#: All trends, whatever their value.
ALL = -1
#: More levels than a tree of hashed priorities has.
DEPTH_MAX = 1 << 10


class TreeTable(NamedTuple):
    """The trees of an automaton. Trends of state s that an event with label v may continue are in the trees
    [read_begin[i], read_begin[i + 1]) with i = s * labels + v: a tree, a function, as in Pairs.compare with the event's
    value to the left, ALL: none is compared, and the event's value. whole: bool, by the same i, True if it may continue
    all trends of the state. Trends that an event with label p leads to state s are put into the trees
    [put_begin[i], put_begin[i + 1]) with i = s * labels + p: a tree, and the event's value, NONE: 0."""

    read_begin: np.ndarray
    read_tree: np.ndarray
    read_function: np.ndarray
    read_value: np.ndarray
    whole: np.ndarray
    put_begin: np.ndarray
    put_tree: np.ndarray
    put_value: np.ndarray


class Trees(NamedTuple):
    """Beside the nodes and entries of a pool: the root of each tree, int64 (nodes, trees); the record of each subtree,
    int64 (entries, columns). path, found, later: room for a path through a tree, for the trends that an event may
    continue, and for those that it adds by label and cell; used: bool (labels, cells), which of these are in use."""

    roots: np.ndarray
    below: np.ndarray
    path: np.ndarray
    found: np.ndarray
    later: np.ndarray
    used: np.ndarray


@inlined
def priority(value):
    """A hash of a value, by which its node is above others."""
    x = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@called
def add_below(entries, own, below, entry, width, sums, shape):
    """Adds up the subtree of a node anew. own, below: the records of nodes, and of their subtrees."""
    record = below[entry]
    clear(record)
    add_record(record, own[entry], width, width, sums, shape)
    for side in (SMALLER, LARGER):
        child = entries[entry, side]
        if child >= 0:
            add_record(record, below[child], width, width, sums, shape)


@inlined
def place_of(pool, root, value):
    """The node with a value, NONE if there is none."""
    entry = root
    while entry >= 0 and pool.entries[entry, VALUE] != value:
        entry = pool.entries[entry, SMALLER if value < pool.entries[entry, VALUE] else LARGER]
    return entry


@inlined
def put(pool, trees, node, tree, value, record, width, room, sums, shape):
    """Adds the trends of a record to those with a value. There is room for an entry."""
    counters, entries = pool.counters, pool.entries
    known = place_of(pool, trees.roots[node, tree], value)
    first = priority(value)
    at, before, side = trees.roots[node, tree], np.int64(NONE), 0
    while at >= 0 and (known >= 0 or priority(entries[at, VALUE]) >= first):
        add_record(trees.below[at], record, width, width, sums, shape)
        if at == known:
            add_record(pool.sums[at], record, width, width, sums, shape)
            if any_crowded(pool.sums[at], width, room, shape):
                pool.nodes[node, FULL] = 1
            return
        before = at
        side = SMALLER if value < entries[at, VALUE] else LARGER
        at = entries[at, side]
    new = counters[ENTRIES_FREE]
    if new >= 0:
        counters[ENTRIES_FREE] = entries[new, E_NEXT]
    else:
        new = counters[ENTRIES_USED]
        counters[ENTRIES_USED] = new + 1
    for c in range(entries.shape[1]):
        entries[new, c] = NONE
    entries[new, E_NEXT] = pool.nodes[node, ENTRY]
    pool.nodes[node, ENTRY] = new
    entries[new, VALUE] = value
    for c in range(len(record)):
        pool.sums[new, c] = record[c]
    if any_crowded(record, width, room, shape):
        pool.nodes[node, FULL] = 1
    if before >= 0:
        entries[before, side] = new
    else:
        trees.roots[node, tree] = new
    # what was there goes below the new node, split by its value
    small, small_side, large, large_side = new, SMALLER, new, LARGER
    count = 0
    while at >= 0:
        trees.path[count] = at
        count += 1
        if entries[at, VALUE] < value:
            entries[small, small_side] = at
            small, small_side = at, LARGER
        else:
            entries[large, large_side] = at
            large, large_side = at, SMALLER
        at = entries[at, LARGER if entries[at, VALUE] < value else SMALLER]
    entries[small, small_side] = NONE
    entries[large, large_side] = NONE
    while count > 0:
        count -= 1
        add_below(entries, pool.sums, trees.below, trees.path[count], width, sums, shape)
    add_below(entries, pool.sums, trees.below, new, width, sums, shape)


@inlined
def add_side(to, pool, trees, root, value, smaller, equal, width, sums, shape):
    """Adds the trends with values on one side of a value, and perhaps those with that value."""
    near, far = (SMALLER, LARGER) if smaller else (LARGER, SMALLER)
    at = root
    while at >= 0:
        here = pool.entries[at, VALUE]
        same = here == value
        if (same and equal) or (not same and (here < value) == smaller):
            add_record(to, pool.sums[at], width, width, sums, shape)
        if same or (here < value) == smaller:
            child = pool.entries[at, near]
            if child >= 0:
                add_record(to, trees.below[child], width, width, sums, shape)
            if same:
                return
            at = pool.entries[at, far]
        else:
            at = pool.entries[at, near]


@inlined
def add_found(to, pool, trees, root, function, value, width, sums, shape):
    """Adds the trends that an event with a value may continue."""
    if function == ALL:
        if root >= 0:
            add_record(to, trees.below[root], width, width, sums, shape)
    elif function == EQUAL:
        at = place_of(pool, root, value)
        if at >= 0:
            add_record(to, pool.sums[at], width, width, sums, shape)
    else:
        if function in (GREATER, GREATER_EQUAL, UNEQUAL):
            add_side(to, pool, trees, root, value, True, function == GREATER_EQUAL, width, sums, shape)
        if function in (LESS, LESS_EQUAL, UNEQUAL):
            add_side(to, pool, trees, root, value, False, function == LESS_EQUAL, width, sums, shape)


@called
def take(moves, pairs, table, sums, shape, pool, trees, node, m, row, width, room, values, bits, doubles, valid):
    """Takes an event that comes from or to a state with trees, or has several labels."""
    cells = len(moves.results)
    rest = m & moves.taken
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
            i = s * pairs.label_count + label
            apart = pairs.grained[s] and not start and not table.whole[i]
            if apart:
                clear(trees.found)
                for r in range(table.read_begin[i], table.read_begin[i + 1]):
                    v = table.read_value[r]
                    if v < 0 or valid[v, row]:
                        value = np.int64(0) if v < 0 else values[v, row]
                        root = trees.roots[node, table.read_tree[r]]
                        add_found(
                            trees.found, pool, trees, root, table.read_function[r], value, width, sums, shape
                        )  # fmt: skip
                if trees.found[shape.alive] == 0:
                    continue
            trends = trees.found if apart else pool.cells[node, s]
            e = moves.take_begin[s]
            while moves.take_label[e] != label:
                e += 1
            for way in range(2):
                cell = moves.take_state[e] if way == 0 else moves.take_end[e]
                if cell >= 0:
                    if not trees.used[label, cell]:
                        trees.used[label, cell] = True
                        clear(trees.later[label, cell])
                    extend(start, trees.later[label, cell], trends, label, row, width, sums, shape, values, doubles,
                           valid)
    # what the event adds is not continued by the event itself
    rest = m & moves.taken
    while rest != 0:
        label = trailing_zeros(rest)
        rest &= rest - 1
        for cell in range(cells):
            if not trees.used[label, cell]:
                continue
            trees.used[label, cell] = False
            record = trees.later[label, cell]
            if cell < moves.states and pairs.grained[cell]:
                i = cell * pairs.label_count + label
                for r in range(table.put_begin[i], table.put_begin[i + 1]):
                    v = table.put_value[r]
                    if v < 0 or valid[v, row]:
                        value = np.int64(0) if v < 0 else values[v, row]
                        put(pool, trees, node, table.put_tree[r], value, record, width, room, sums, shape)
            add_record(pool.cells[node, cell], record, width, width, sums, shape)
            if any_crowded(pool.cells[node, cell], width, room, shape):
                pool.nodes[node, FULL] = 1


@inlined
def widen_all(pool, trees, node, shape):
    """Gives the numbers of a node, of its entries and of their subtrees one limb more."""
    width = pool.nodes[node, WIDTH]
    entry = pool.nodes[node, ENTRY]
    while entry >= 0:
        for k in range(shape.whole):
            at = k * shape.limbs + width
            trees.below[entry, at] = np.int64(-1) if trees.below[entry, at - 1] < 0 else np.int64(0)
        entry = pool.entries[entry, E_NEXT]
    widen(pool, node, width, shape)


@kernel
def step(begin, end, partition, mask, ts, values, bits, doubles, valid, moves, pairs, table, sums, shape, pool, trees):
    """Takes rows [begin, end) as matching.kernels.trends.step does. O(windows * states * log n) a row and limb, of n
    values of earlier events in a window."""
    counters = pool.counters
    slots = len(pool.first)
    room = counters[VALUE_BITS]
    narrow = room // 63 + 1  # limbs of a number that is 0
    if narrow > shape.limbs:
        return begin, MORE_LIMBS
    most = len(table.put_tree)
    resumed = counters[SLOT]  # windows of the first row that have taken it
    counters[SLOT] = 0
    first, last, slot_of_first = np.int64(0), np.int64(-1), np.int64(0)
    same_before = np.int64(-0x8000000000000000)  # times before this one have the same windows
    for row in range(begin, end):
        m = mask[row]
        if m & moves.taken == 0:
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
        if counters[ENTRIES_USED] + slots * most > len(pool.entries):
            counters[SLOT] = resumed
            return row, MORE_ENTRIES
        label_bit = m & moves.taken
        alone = np.int64(NONE)
        if label_bit & (label_bit - 1) == 0 and label_bit & moves.alone & pairs.labels != 0:
            alone = trailing_zeros(label_bit)
        p = partition[row]
        for k in range(first + resumed, last + 1):
            slot = slot_of_first + (k - first)
            slot = slot - slots if slot >= slots else slot
            node = np.int64(pool.of[p, slot])
            if node < 0:
                if moves.takes[0] & m == 0:
                    continue
                if counters[FREE] < 0 and counters[USED] == len(pool.nodes):
                    counters[SLOT] = k - first
                    return row, MORE_NODES
                node = new_node(pool, p, k, slot, narrow)
                for i in range(trees.roots.shape[1]):
                    trees.roots[node, i] = NONE
            if pool.nodes[node, FULL] == 1:
                if pool.nodes[node, WIDTH] == shape.limbs:
                    counters[SLOT] = k - first
                    return row, MORE_LIMBS
                widen_all(pool, trees, node, shape)
            width = pool.nodes[node, WIDTH]
            if alone < 0:
                take(
                    moves, pairs, table, sums, shape, pool, trees, node, m, row, width, room, values, bits, doubles,
                    valid,
                )  # fmt: skip
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
    return end, DONE
