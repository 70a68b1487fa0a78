"""Counts of trends of many queries at once, by sharing plan: see matching.kernels.shared_columns.

An event that all queries of a set take adds to each column what its cells before have. For what comes from other sets
there is a gate: a snapshot whose values are the sums of the records there, and that serves all events until these
change; so a snapshot is made as often as events of both kinds alternate. Where queries of a set disagree on an event, a
snapshot is made for that event ([SHARING] 2.2, [HAMLET] snapshots). What a query counts alone, and reads of itself
alone, needs none of this: most events come to such cells.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.limbs import add_limb, trailing_zeros
from matching.kernels.shared_columns import (
    BURST,
    C_AT,
    C_NEXT,
    C_OF,
    CLOSED_BEFORE,
    COLUMNS_USED,
    DATA_USED,
    FREE,
    FULL,
    KIND,
    LIVE,
    NEXT_NODE,
    OF_SNAPSHOT,
    OF_START,
    OPEN,
    OPENED,
    OUT,
    PARTITION,
    SLOT,
    SPLIT,
    SUM_BITS,
    USED,
    VALUE_BITS,
    WIDTH,
    WINDOW,
    add_value,
    bits_of_value,
    drop_set,
    is_split,
    make_wide,
    new_block,
    new_column,
    own_record,
    share,
    split,
    widen,
)
from matching.kernels.shared_records import bits_in, grow
from matching.kernels.trend_records import NONE, clear
from matching.kernels.trends import DONE, MORE_LIMBS, MORE_NODES, MORE_OUTPUT

MORE_RECORDS = 5

#: The gate of an op to which nothing has come.
NOTHING = -2

#: Bursts whose lengths make the usual one.
BURSTS_KEPT = 16


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
                drop_set(sets, room, node, g)
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


@called
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


@called
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


@inlined
def take_alone(sets, room, node, op, mask, row, width, bits, sums, layouts, values, doubles, valid):
    """Takes an event in a cell of queries that count it alone and read nothing else."""
    label = sets.op_class[op]
    data = room.data
    for e in range(sets.entry[op], sets.entry[op + 1]):
        if (mask >> sets.label[e]) & 1 == 0:
            continue
        g = sets.entry_set[e]
        own = room.heads[node, g]
        if own < 0:
            if not sets.entry_start[e]:
                continue
            own = new_block(room, layouts, node, g)
        q = sets.member_query[sets.member[g]]
        size = layouts.size[q]
        to = own + sets.entry_cell[e] * size
        changed, full = False, False
        for s in range(sets.source[e], sets.source[e + 1]):
            start = sets.source_set[s] < 0
            m = own + sets.source_cell[s] * size
            if start or data[m] != 0:
                full = grow(
                    start, data, data, m, q, label, row, width, bits, sums, layouts, values, doubles, valid, to
                )
                changed = True
        if changed:
            end_gates(sets, room, node, g, sets.entry_cell[e])
            if full:
                room.nodes[node, FULL] = 1


@inlined
def take_apart(sets, room, node, op, mask, row, width, bits, sums, layouts, values, doubles, valid):
    """Takes an event in cells of split sets, and of queries that count it alone and read other sets."""
    label = sets.op_class[op]
    data = room.data
    for e in range(sets.entry[op], sets.entry[op + 1]):
        if (mask >> sets.label[e]) & 1 == 0:
            continue
        g = sets.entry_set[e]
        own = room.heads[node, g]
        if own >= 0 and not sets.own[g]:
            own = room.columns[own, C_AT]
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
                if sets.own[g]:
                    own = new_block(room, layouts, node, g)
                else:
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


@inlined
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
        some = entering == NONE and gather(sets, room, node, op, mask, not agreed, width, sums, layouts)
        if agreed and not some and entering == NONE:
            room.gates[node, op] = NOTHING
        if some:
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


@inlined
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
    if alone or not agreed or (sets.op_outside[op] and room.gates[node, op] == NONE):
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
def most_bits(nodes, pair_set, pair_cell, pair_query, sets, room, layouts, out):
    """Writes the bits of the largest whole number of pairs of a query and a cell in some nodes, as products where they
    are composed; out: int64 (pairs,)."""
    for node in nodes:
        width = room.nodes[node, WIDTH]
        for j in range(len(pair_set)):
            g, cell, query = pair_set[j], pair_cell[j], pair_query[j]
            out[j] = max(out[j], bits_of_value(sets, room, node, g, cell, query, width, layouts))
            c = room.heads[node, g]
            if c >= 0 and (sets.own[g] or room.columns[c, C_OF] == SPLIT):
                q = sets.member_query[sets.member[g] + query]
                at = own_record(sets, layouts, c if sets.own[g] else room.columns[c, C_AT], g, cell, query) + 1
                for n in range(1 + layouts.whole_of[q + 1] - layouts.whole_of[q]):
                    out[j] = max(out[j], bits_in(room.data, at + n * layouts.limbs, width))


@kernel
def open_windows(partition, window, width, sets, room, out):
    """Writes the nodes of windows of partitions, opened where they are not open. width: the limbs that they need."""
    slots = len(room.first)
    for i in range(len(partition)):
        slot = window[i] % slots
        node = np.int64(room.of[partition[i], slot])
        if node < 0:
            node = new_node(sets, room, partition[i], window[i], slot, width[i])
        out[i] = node


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
            own = room.heads[node, g]
            if own < 0 and sets.own[g]:
                own = new_block(room, layouts, node, g)
            elif own < 0:
                own = new_column(room, layouts, node, g, SPLIT)
            at = own_record(sets, layouts, own if sets.own[g] else room.columns[own, C_AT], g, cell, query)
            for c in range(layouts.size[sets.member_query[sets.member[g] + query]]):
                room.data[at + c] = values[i, j, c]
        for g in range(len(sets.cells)):
            if not sets.own[g] and room.heads[node, g] >= 0:
                share(sets, room, node, g, layouts)
    return len(nodes), DONE


# ---- rows


@kernel
def step(begin, end, partition, mask, ts, values, doubles, valid, sets, sums, layouts, room, data_max):
    """Takes rows [begin, end), in the order of time. mask: bits of the conditions that hold. data_max: the room in
    Room.data that an event of a node may need at most. Returns (next row, status); the call is to be repeated with more
    room. O(windows * columns of the sets that take it) a row and limb."""
    counters = room.counters
    slots = len(room.first)
    bits = counters[VALUE_BITS]
    narrow = bits // 63 + 1  # limbs of a number that is 0
    if narrow > layouts.limbs:
        return begin, MORE_LIMBS
    first, last, slot_of_first = np.int64(0), np.int64(-1), np.int64(0)
    same_before = np.int64(-0x8000000000000000)  # times before this one have the same windows
    for row in range(begin, end):
        m = mask[row]
        if m == 0:
            continue
        t = sets.label_kind[trailing_zeros(m)]
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
                if sets.op_set[op] >= 0 or sets.op_foreign[op]:
                    count = takers(sets, op, m)
                    if count > 0 and not prepare(sets, room, node, op, m, count, bits, sums, layouts):
                        counters[SLOT] = k - first
                        return row, MORE_LIMBS
            width = room.nodes[node, WIDTH]
            for op in range(sets.kind_begin[t], sets.kind_begin[t + 1]):
                g = sets.op_set[op]
                if g < 0 and not sets.op_foreign[op]:
                    take_alone(sets, room, node, op, m, row, width, bits, sums, layouts, values, doubles, valid)
                    continue
                count = takers(sets, op, m)
                if count == 0:
                    continue
                if g < 0 or is_split(room, node, g):
                    take_apart(sets, room, node, op, m, row, width, bits, sums, layouts, values, doubles, valid)
                else:
                    agreed = count == sets.queries[g]
                    take_shared(
                        sets, room, node, op, m, agreed, row, width, bits, sums, layouts, values, doubles, valid
                    )
        counters[SLOT] = 0
    return end, DONE


@kernel
def count_labels(mask, seen):
    """Counts the rows of each label."""
    for row in range(len(mask)):
        rest = mask[row]
        while rest != 0:
            seen[trailing_zeros(rest)] += 1
            rest &= rest - 1
