"""Counts and sums of trends in windows that overlap much, by panes: O(cells ** 2) an event however many windows hold
it, and a few products of small matrices for each slide. Nothing is ever taken away, so minima and maxima work, too.

A pane is the time between two neighbouring bounds of windows. An event that moves trends from state to state is a
linear map of the records of all states (matching.kernels.trend_records), so a pane of one partition is a matrix: row r
has the records that a single trend in state r before the pane becomes. Rows are begun only for states in which an open
window has a trend, so no number is larger than one that is counted. A window is the product of its panes.

Blocks of panes lie between fixed times, as long as a window. A window is the end of one block and the beginning of the
next (van Herk; two stacks). Of the ends of a block there is one vector each, made from right to left when the first
window that begins inside it closes: the `front`. The beginning is one matrix that grows by a pane with each slide: the
`product`. Since blocks are at fixed times, sums of doubles are the same after a restart in the middle.

Long: what takes events and what closes windows know one layout.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.limbs import trailing_zeros
from matching.kernels.pane_columns import (
    AT,
    BEGUN,
    CLOSED_BEFORE,
    E_AFTER,
    E_ALIVE,
    E_NUMBER,
    E_WIDTH,
    ENDS_FREE,
    ENDS_LEFT,
    ENDS_USED,
    FIRST,
    K_ACTIVE,
    K_AFTER,
    K_BEGUN,
    K_FIRST,
    K_FRONT,
    K_KNOWN,
    K_LAST,
    K_PENDING,
    K_PRODUCT,
    K_ROWS,
    LAST,
    LIVE,
    OUT,
    P_AFTER,
    P_BEFORE,
    P_CHANGED,
    P_FULL,
    P_NUMBER,
    P_ROWS,
    P_WIDTH,
    PANES_FREE,
    PANES_USED,
    PRODUCTS_FREE,
    PRODUCTS_USED,
    VALUE_BITS,
)
from matching.kernels.trend_products import (
    add_product,
    add_wider,
    clear_wide,
    copy_record,
    copy_row,
    limbs_needed,
    row_times,
)
from matching.kernels.trend_records import NONE, add_record, any_crowded, clear, extend, touch
from matching.kernels.trends import left

DONE, MORE_PANES, MORE_FRONT, MORE_PRODUCTS, MORE_OUTPUT = range(5)
#: More limbs of panes, of what is kept beside them, and of what is computed.
MORE_LIMBS, MORE_KEPT_LIMBS, MORE_WIDE_LIMBS = 5, 6, 7


# ---- panes


@inlined
def alive_after(store, pane, states, cells, shape):
    """The states that trends in some states may be in after a pane, bits of both."""
    found = np.int64(0)
    rest = states & store.panes[pane, P_ROWS]
    while rest != 0:
        s = trailing_zeros(rest)
        rest &= rest - 1
        if (store.panes[pane, P_CHANGED] >> s) & 1 == 0:
            found |= np.int64(1) << s
            continue
        for c in range(cells):
            if store.matrices[pane, s * cells + c, shape.alive] != 0:
                found |= np.int64(1) << c
    return found


@called
def alive_now(store, p, cells, shape, kept):
    """The states in which an open window has a trend, and the start."""
    key = store.keys[p]
    states = store.ends[key[K_FRONT], E_ALIVE] if key[K_FRONT] >= 0 else np.int64(0)
    if key[K_ROWS] != 0:
        product = store.products[key[K_PRODUCT]]
        found = np.int64(0)
        for s in range(cells):
            if (states & key[K_ROWS]) >> s & 1 == 1:
                for c in range(cells):
                    if product[s * cells + c, kept.alive] != 0:
                        found |= np.int64(1) << c
        states = found
    states |= key[K_BEGUN]
    pane = key[K_PENDING]
    while pane >= 0:
        states = alive_after(store, pane, states | 1, cells, shape)
        pane = store.panes[pane, P_AFTER]
    return states | 1


@called
def new_pane(store, p, number, rows, cells, width, shape):
    """The pane of a partition after its last one, without events. There is room for one."""
    counters, key = store.counters, store.keys[p]
    pane = counters[PANES_FREE]
    if pane >= 0:
        counters[PANES_FREE] = store.panes[pane, P_AFTER]
    else:
        pane = counters[PANES_USED]
        counters[PANES_USED] = pane + 1
    of = store.panes[pane]
    of[P_NUMBER] = number
    of[P_BEFORE] = key[K_LAST]
    of[P_AFTER] = NONE
    of[P_WIDTH] = width
    of[P_FULL] = 0
    of[P_ROWS] = rows
    of[P_CHANGED] = 0
    for i in range(cells * cells):
        clear(store.matrices[pane, i])
    for r in range(cells):
        if (rows >> r) & 1 == 1:
            store.matrices[pane, r * cells + r, 0] = 1
            store.matrices[pane, r * cells + r, shape.alive] = 1
    if key[K_LAST] >= 0:
        store.panes[key[K_LAST], P_AFTER] = pane
    else:
        key[K_FIRST] = pane
    key[K_LAST] = pane
    if key[K_PENDING] < 0:
        key[K_PENDING] = pane
    return pane


@inlined
def activate(store, p):
    """Makes a partition the last active one. There is room for its product."""
    counters, key = store.counters, store.keys[p]
    for c in range(len(key)):
        key[c] = NONE
    key[K_ACTIVE] = 1
    key[K_ROWS] = 0
    key[K_BEGUN] = 0
    key[K_KNOWN] = 0
    product = counters[PRODUCTS_FREE]
    if product >= 0:
        counters[PRODUCTS_FREE] = store.widths[product, 0]
    else:
        product = counters[PRODUCTS_USED]
        counters[PRODUCTS_USED] = product + 1
    key[K_PRODUCT] = product
    if counters[LAST] >= 0:
        store.keys[counters[LAST], K_AFTER] = p
    else:
        counters[FIRST] = p
    counters[LAST] = p


@inlined
def remove_first(store, p):
    """Frees the first pane of a partition."""
    key = store.keys[p]
    pane = key[K_FIRST]
    after = store.panes[pane, P_AFTER]
    key[K_FIRST] = after
    if after >= 0:
        store.panes[after, P_BEFORE] = NONE
    else:
        key[K_LAST] = NONE
    if key[K_PENDING] == pane:
        key[K_PENDING] = after
    store.panes[pane, P_AFTER] = store.counters[PANES_FREE]
    store.counters[PANES_FREE] = pane


@inlined
def widen_pane(store, pane, shape):
    """Gives the numbers of a pane one limb more."""
    width = store.panes[pane, P_WIDTH]
    for i in range(store.matrices.shape[1]):
        for k in range(shape.whole):
            at = k * shape.limbs + width
            store.matrices[pane, i, at] = np.int64(-1) if store.matrices[pane, i, at - 1] < 0 else np.int64(0)
    store.panes[pane, P_WIDTH] = width + 1
    store.panes[pane, P_FULL] = 0


@inlined
def take_alone(moves, store, pane, label, row, cells, room, sums, shape, values, doubles, valid):
    """Takes an event of one label, in each row of a pane."""
    of, matrix = store.panes[pane], store.matrices[pane]
    width = of[P_WIDTH]
    for e in range(moves.alone_begin[label], moves.alone_begin[label + 1]):
        s = moves.alone_source[e]
        rest = of[P_ROWS]
        while rest != 0:
            r = trailing_zeros(rest)
            rest &= rest - 1
            trends = matrix[r * cells + s]
            if trends[shape.alive] == 0:
                continue
            of[P_CHANGED] |= np.int64(1) << r
            # the end first: the next state may be the source itself
            for way in range(2):
                cell = moves.alone_end[e] if way == 0 else moves.alone_state[e]
                if cell >= 0:
                    record = matrix[r * cells + cell]
                    extend(False, record, trends, label, row, width, sums, shape, values, doubles, valid)
                    if any_crowded(record, width, room, shape):
                        of[P_FULL] = 1


@called
def take_several(moves, store, pane, mask, row, cells, room, sums, shape, values, doubles, valid):
    """Takes an event that has several labels, or is negated, in each row of a pane."""
    of, matrix = store.panes[pane], store.matrices[pane]
    width = of[P_WIDTH]
    rows = of[P_ROWS]
    while rows != 0:
        r = trailing_zeros(rows)
        rows &= rows - 1
        rest = mask & moves.taken
        while rest != 0:
            label = trailing_zeros(rest)
            rest &= rest - 1
            for s in range(moves.states):
                trends = matrix[r * cells + s]
                if (moves.takes[s] >> label) & 1 == 0 or trends[shape.alive] == 0:
                    continue
                e = moves.take_begin[s]
                while moves.take_label[e] != label:
                    e += 1
                for way in range(2):
                    cell = moves.take_state[e] if way == 0 else moves.take_end[e]
                    if cell >= 0:
                        touch(store.touched, store.fresh, cell)
                        extend(False, store.fresh[cell], trends, label, row, width, sums, shape, values, doubles, valid)
        for cell in range(cells):
            record = matrix[r * cells + cell]
            if record[shape.alive] == 0 or moves.breaks[cell] & mask == 0:
                continue
            of[P_CHANGED] |= np.int64(1) << r
            to = left(moves, cell, mask)
            if to >= 0:
                add_record(matrix[r * cells + to], record, width, width, sums, shape)
                if any_crowded(matrix[r * cells + to], width, room, shape):
                    of[P_FULL] = 1
            clear(record)
        for cell in range(cells):
            if store.touched[cell]:
                of[P_CHANGED] |= np.int64(1) << r
                store.touched[cell] = False
                record = matrix[r * cells + cell]
                add_record(record, store.fresh[cell], width, width, sums, shape)
                if any_crowded(record, width, room, shape):
                    of[P_FULL] = 1


# ---- windows


@called
def push(p, moves, sums, shape, kept, wide, store):
    """Puts the first pending pane of a partition into its product."""
    key, cells = store.keys[p], len(moves.breaks)
    pane, slot = key[K_PENDING], key[K_PRODUCT]
    of, product = store.panes[pane], store.products[slot]
    needed_rows = (store.ends[key[K_FRONT], E_ALIVE] if key[K_FRONT] >= 0 else np.int64(0)) | 1
    width = of[P_WIDTH]
    for r in range(cells):
        store.made_widths[r] = 0
        if (needed_rows >> r) & 1 == 0:
            continue
        if key[K_ROWS] == 0:
            if (of[P_ROWS] >> r) & 1 == 1:
                needed = np.int64(1)
                for c in range(cells):
                    if store.matrices[pane, r * cells + c, shape.alive] != 0:
                        needed = max(needed, limbs_needed(store.matrices[pane, r * cells + c], width, shape))
                store.made_widths[r] = needed
        elif (key[K_ROWS] >> r) & 1 == 1:
            states = np.int64(0)
            for s in range(cells):
                store.suffix_widths[s] = width
                if product[r * cells + s, kept.alive] != 0:
                    states |= np.int64(1) << s
            if states & of[P_CHANGED] == 0:
                continue
            needed = row_times(
                store.made, r * cells, product, r * cells, store.widths[slot, r], store.matrices[pane],
                store.suffix_widths, of[P_CHANGED], sums, wide, kept, shape,
            )  # fmt: skip
            if needed < 0:
                return MORE_WIDE_LIMBS
            store.made_widths[r] = needed
        if store.made_widths[r] > kept.limbs:
            return MORE_KEPT_LIMBS
    rows = np.int64(0)
    for r in range(cells):
        used = store.made_widths[r]
        if key[K_ROWS] == 0 and used > 0:
            copy_row(product, r * cells, store.matrices[pane], r * cells, cells, used, kept, shape)
        elif used > 0:
            copy_row(product, r * cells, store.made, r * cells, cells, used, kept, wide)
        if used > 0:
            store.widths[slot, r] = used
            rows |= np.int64(1) << r
    key[K_ROWS] = rows if key[K_ROWS] == 0 else key[K_ROWS] & needed_rows
    key[K_BEGUN] = alive_after(store, pane, key[K_BEGUN] | 1, cells, shape)
    key[K_PENDING] = of[P_AFTER]
    return DONE


@inlined
def free_ends(store, end):
    """Frees an end and the shorter ones."""
    while end >= 0:
        after = store.ends[end, E_AFTER]
        store.ends[end, E_AFTER] = store.counters[ENDS_FREE]
        store.counters[ENDS_FREE] = end
        store.counters[ENDS_LEFT] += 1
        end = after


@called
def turn(p, begin, end, moves, sums, shape, kept, wide, store):
    """Makes the ends of a block, of the panes [begin, end) of a partition, which has no end; it begins a new product.
    Drops the panes before."""
    key, counters, cells = store.keys[p], store.counters, len(moves.breaks)
    while key[K_FIRST] >= 0 and store.panes[key[K_FIRST], P_NUMBER] < begin:
        remove_first(store, p)
    states = np.int64(0)
    count = 0
    last = np.int64(NONE)
    pane = key[K_FIRST]
    while pane >= 0 and store.panes[pane, P_NUMBER] < end:  # rows of trends that began before are of no use
        store.panes[pane, P_ROWS] &= states | 1
        states = alive_after(store, pane, states | 1, cells, shape)
        count += 1
        last = pane
        pane = store.panes[pane, P_AFTER]
    if count > len(store.ends) - counters[ENDS_USED] + counters[ENDS_LEFT]:
        return MORE_FRONT
    for r in range(cells):
        store.suffix_widths[r] = 1
        for c in range(cells):
            clear_wide(store.suffix[r * cells + c], 1, wide)
        store.suffix[r * cells + r, 0] = 1
        store.suffix[r * cells + r, wide.alive] = 1
    front = np.int64(NONE)
    alive, changed = np.int64(0), np.int64(0)
    pane = last
    while pane >= 0:
        of = store.panes[pane]
        rows = of[P_ROWS] & of[P_CHANGED]
        for r in range(cells):
            if (rows >> r) & 1 == 1:
                needed = row_times(
                    store.made, r * cells, store.matrices[pane], r * cells, of[P_WIDTH], store.suffix,
                    store.suffix_widths, changed, sums, wide, shape, wide,
                )  # fmt: skip
                if needed < 0:
                    free_ends(store, front)
                    return MORE_WIDE_LIMBS
                store.made_widths[r] = needed
        for r in range(cells):
            if (rows >> r) & 1 == 1:
                copy_row(store.suffix, r * cells, store.made, r * cells, cells, store.made_widths[r], wide, wide)
                store.suffix_widths[r] = store.made_widths[r]
        changed |= rows
        width = store.suffix_widths[0]
        if width > kept.limbs:
            free_ends(store, front)
            return MORE_KEPT_LIMBS
        new = counters[ENDS_FREE]
        if new >= 0:
            counters[ENDS_FREE] = store.ends[new, E_AFTER]
            counters[ENDS_LEFT] -= 1
        else:
            new = counters[ENDS_USED]
            counters[ENDS_USED] = new + 1
        copy_row(store.vectors[new], 0, store.suffix, 0, cells, width, kept, wide)
        for c in range(cells):
            if store.suffix[c, wide.alive] != 0:
                alive |= np.int64(1) << c
        store.ends[new, E_NUMBER] = of[P_NUMBER]
        store.ends[new, E_AFTER] = front
        store.ends[new, E_WIDTH] = width
        store.ends[new, E_ALIVE] = alive
        front = new
        pane = of[P_BEFORE]
    while key[K_FIRST] >= 0 and store.panes[key[K_FIRST], P_NUMBER] < end:
        remove_first(store, p)
    key[K_FRONT] = front
    key[K_PENDING] = key[K_FIRST]
    key[K_ROWS] = 0
    key[K_BEGUN] = 0
    return DONE


@called
def total(p, moves, sums, kept, wide, store):
    """Puts the finished trends of a window beside the product: its front times the product."""
    key, cells = store.keys[p], len(moves.breaks)
    slot = key[K_PRODUCT]
    product, record, front = store.products[slot], store.made[0], key[K_FRONT]
    width = store.ends[front, E_WIDTH] if front >= 0 else np.int64(1)
    most = np.int64(1)
    for s in range(cells):
        if (key[K_ROWS] >> s) & 1 == 1:
            most = max(most, store.widths[slot, s])
    used = width + most + 1
    if used > wide.limbs:
        return MORE_WIDE_LIMBS
    clear_wide(record, used, wide)
    for s in range(cells):
        if front < 0 and s > 0:
            break
        if front >= 0 and store.vectors[front, s, kept.alive] == 0:
            continue
        if key[K_ROWS] == 0:
            if front >= 0 and moves.results[s]:
                add_wider(record, store.vectors[front, s], width, used, sums, wide, kept)
            continue
        if (key[K_ROWS] >> s) & 1 == 0:
            continue
        for c in range(cells):
            more = product[s * cells + c]
            if not moves.results[c] or more[kept.alive] == 0:
                continue
            if front < 0:
                add_wider(record, more, store.widths[slot, s], used, sums, wide, kept)
            else:
                one = store.vectors[front, s]
                add_product(record, one, more, width, store.widths[slot, s], used, sums, wide, kept, kept)
    needed = limbs_needed(record, used, wide)
    if needed > kept.limbs:
        return MORE_KEPT_LIMBS
    copy_record(product[cells * cells], record, needed, kept.limbs, kept, wide)
    key[K_KNOWN] = 1
    return DONE


@inlined
def close_window(p, k, times, moves, sums, shape, kept, wide, store):
    """Writes the row of a window of an active partition, and lets go of what no later window has."""
    key, counters = store.keys[p], store.counters
    if counters[OUT] == len(store.out):
        return MORE_OUTPUT
    begin = times.per_slide * k
    end = key[K_FRONT]
    while end >= 0 and store.ends[end, E_NUMBER] < begin:
        key[K_FRONT] = store.ends[end, E_AFTER]
        store.ends[end, E_AFTER] = NONE
        free_ends(store, end)
        end = key[K_FRONT]
        key[K_KNOWN] = 0
    block = k // times.block
    block_end = times.per_slide * (block + 1) * times.block
    if k > block * times.block and key[K_FIRST] >= 0 and store.panes[key[K_FIRST], P_NUMBER] < block_end:
        key[K_KNOWN] = 0
        status = turn(p, begin, block_end, moves, sums, shape, kept, wide, store)
        if status != DONE:
            return status
    while key[K_PENDING] >= 0:
        key[K_KNOWN] = 0
        status = push(p, moves, sums, shape, kept, wide, store)
        if status != DONE:
            return status
    if key[K_KNOWN] == 0:
        status = total(p, moves, sums, kept, wide, store)
        if status != DONE:
            return status
    record = store.products[key[K_PRODUCT], len(moves.breaks) ** 2]
    if record[kept.alive] != 0:
        row = store.out[counters[OUT]]
        row[0] = p
        row[1] = k
        for c in range(len(record)):
            row[2 + c] = record[c]
        counters[OUT] += 1
    return DONE


@kernel
def close_before(window, times, moves, sums, shape, kept, wide, store):
    """Closes the open windows before `window`, and writes their rows, in the order of windows. Returns a status; the
    call is to be repeated with more room."""
    counters = store.counters
    if counters[LIVE] == 0:
        counters[LIVE] = 1
        counters[CLOSED_BEFORE] = window
        return DONE
    while counters[CLOSED_BEFORE] < window and counters[FIRST] >= 0:
        k = counters[CLOSED_BEFORE]
        if counters[BEGUN] == 0:
            counters[BEGUN] = 1
            counters[AT] = NONE
        before = counters[AT]
        p = counters[FIRST] if before < 0 else store.keys[before, K_AFTER]
        while p >= 0:
            status = close_window(p, k, times, moves, sums, shape, kept, wide, store)
            if status != DONE:
                return status
            key = store.keys[p]
            after = key[K_AFTER]
            if key[K_FIRST] >= 0 or key[K_FRONT] >= 0:
                before = p
            else:
                if before < 0:
                    counters[FIRST] = after
                else:
                    store.keys[before, K_AFTER] = after
                if after < 0:
                    counters[LAST] = before
                key[K_ACTIVE] = 0
                store.widths[key[K_PRODUCT], 0] = counters[PRODUCTS_FREE]
                counters[PRODUCTS_FREE] = key[K_PRODUCT]
            counters[AT] = before
            p = after
        counters[BEGUN] = 0
        counters[CLOSED_BEFORE] = k + 1
    if window > counters[CLOSED_BEFORE]:
        counters[CLOSED_BEFORE] = window
    return DONE


@kernel
def step(begin, end, partition, mask, ts, values, doubles, valid, times, moves, sums, shape, kept, wide, store):
    """Takes rows [begin, end), in the order of time; the arguments are those of matching.kernels.trends.step. Returns
    (next row, status); the call is to be repeated with more room."""
    counters, cells = store.counters, len(moves.breaks)
    room = counters[VALUE_BITS]
    narrow = room // 63 + 1  # limbs of a number that is 0
    if narrow > shape.limbs:
        return begin, MORE_LIMBS
    number = np.int64(0)
    same_before = np.int64(-0x8000000000000000)  # times before this one are in the same pane
    for row in range(begin, end):
        m = mask[row]
        if m == 0:
            continue
        t = ts[row]
        if t >= same_before:
            slide = t // moves.slide_us
            number = times.per_slide * slide
            same_before = (slide + 1) * moves.slide_us
            if times.per_slide == 2:
                middle = slide * moves.slide_us + times.rest_us
                if t < middle:
                    same_before = middle
                else:
                    number += 1
            first = (t - moves.within_us) // moves.slide_us + 1
            if counters[LIVE] == 0 or first > counters[CLOSED_BEFORE]:
                status = close_before(first, times, moves, sums, shape, kept, wide, store)
                if status != DONE:
                    return row, status
        p = partition[row]
        key = store.keys[p]
        pane = key[K_LAST] if key[K_ACTIVE] == 1 else np.int64(NONE)
        if pane < 0 or store.panes[pane, P_NUMBER] != number:
            states = np.int64(1)
            if key[K_ACTIVE] == 1:
                states = alive_now(store, p, cells, shape, kept)
            some = np.int64(0)
            for s in range(cells):
                if (states >> s) & 1 == 1:
                    some |= moves.breaks[s]
                    if s < moves.states:
                        some |= moves.takes[s]
            if some & m == 0:
                continue
            if counters[PANES_FREE] < 0 and counters[PANES_USED] == len(store.panes):
                return row, MORE_PANES
            if key[K_ACTIVE] != 1:
                if counters[PRODUCTS_FREE] < 0 and counters[PRODUCTS_USED] == len(store.products):
                    return row, MORE_PRODUCTS
                activate(store, p)
            pane = new_pane(store, p, number, states, cells, narrow, shape)
        if store.panes[pane, P_FULL] == 1:
            if store.panes[pane, P_WIDTH] == shape.limbs:
                return row, MORE_LIMBS
            widen_pane(store, pane, shape)
        label_bit = m & moves.taken
        if m & moves.broken == 0 and label_bit & (label_bit - 1) == 0 and (
            label_bit == 0 or label_bit & moves.alone != 0
        ):
            if label_bit != 0:
                label = trailing_zeros(label_bit)
                take_alone(moves, store, pane, label, row, cells, room, sums, shape, values, doubles, valid)
        else:
            take_several(moves, store, pane, m, row, cells, room, sums, shape, values, doubles, valid)
    return end, DONE
