"""Records of trends: counts, sums, minima and maxima in columns of int64, exact at any size.

Whole numbers come first, the count before all others, as two's complement numbers of `Shape.limbs` limbs of 64 bits,
the lowest first, of which WIDTH are in use; then the bits of doubles; then minima and maxima; then for each of those 1
if there is one; then 1 if there are trends. A whole number becomes wider before an event could overflow it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.kernels.jit import inlined
from matching.kernels.limbs import (
    add_limb,
    add_product_limb,
    bits_of,
    number_of,
    subtract_product_limb,
)

#: No node, no state, no end.
NONE = -1


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
