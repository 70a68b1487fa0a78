"""Records of queries and of sets, and their layouts: see matching.kernels.shared_columns.

A record is a run of int64: 1 if there are trends; whole numbers, the count first, in limbs (matching.kernels.trends);
the bits of doubles; minima and maxima; and for each of those 1 if there is one. That of a query has the sums of the
query (its layout), and coefficients have those of all queries of the set (its layout).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.kernels.jit import inlined
from matching.kernels.limbs import add_limb, add_product_limb, leading_zeros, number_of, subtract_product_limb
from matching.kernels.trend_records import add_float, as_double, crowded


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


@inlined
def widen_records(data, at, count, lay, width, layouts):
    """Gives the numbers of records of one layout, side by side, one limb more."""
    for r in range(count):
        first = at + r * layouts.size[lay] + 1
        for n in range(1 + layouts.whole_of[lay + 1] - layouts.whole_of[lay]):
            limb = first + n * layouts.limbs + width
            data[limb] = np.int64(-1) if data[limb - 1] < 0 else np.int64(0)


@inlined
def lay_record(old, o, new, n, lay, was, now):
    """Copies a record from one layout to that of numbers with more limbs."""
    new[n] = old[o]
    for i in range(1 + now.whole_of[lay + 1] - now.whole_of[lay]):
        for limb in range(was.limbs):
            new[n + 1 + i * now.limbs + limb] = old[o + 1 + i * was.limbs + limb]
    for i in range(was.size[lay] - was.floats_at[lay]):
        new[n + now.floats_at[lay] + i] = old[o + was.floats_at[lay] + i]
