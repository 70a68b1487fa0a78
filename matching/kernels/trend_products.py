"""Products of records of trends: the trends that go on from those of a state as others say, exact at any size. A
number has as many limbs as it needs, so the two, and what comes of them, have different shapes."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined
from matching.kernels.limbs import add_limb, add_product_limb, number_of, subtract_product_limb
from matching.kernels.trend_records import NONE, add_float, as_double, take_least


@inlined
def add_number(to, at, more, of, width, wide):
    """Adds a number of `width` limbs to one of `wide` limbs."""
    carry = np.int64(0)
    for i in range(width):
        to[at + i], carry = add_limb(to[at + i], more[of + i], carry)
    sign = np.int64(-1) if more[of + width - 1] < 0 else np.int64(0)
    for i in range(width, wide):
        to[at + i], carry = add_limb(to[at + i], sign, carry)


@inlined
def add_times(to, at, x, of, width, y, count_width, wide):
    """Adds a number times the count of a record, which is not negative, modulo 2 ** (64 * wide)."""
    for i in range(count_width):
        factor = y[i]
        carry = np.int64(0)
        for j in range(width):
            to[at + i + j], carry = add_product_limb(to[at + i + j], x[of + j], factor, carry)
        j = i + width
        while carry != 0 and j < wide:
            to[at + j], carry = add_product_limb(to[at + j], np.int64(0), np.int64(0), carry)
            j += 1
    if x[of + width - 1] < 0:  # its limbs have been read as a number that is larger by 2 ** (64 * width)
        borrow = np.int64(0)
        for j in range(width, wide):
            factor = y[j - width] if j - width < count_width else np.int64(0)
            to[at + j], borrow = subtract_product_limb(to[at + j], factor, np.int64(1), borrow)


@called
def add_wider(to, more, width, wide, sums, shape, of):
    """Adds the trends of a record with `width` limbs of the shape `of`, to one with `wide` limbs of `shape`."""
    for k in range(shape.whole):
        add_number(to, k * shape.limbs, more, k * of.limbs, width, wide)
    for k in range(len(sums.float_value)):
        add_float(to, shape.floats + k, number_of(more[of.floats + k]))
    for k in range(len(sums.least_value)):
        if more[of.there + k] != 0:
            take_least(to, k, more[of.least + k], sums.least_largest[k], shape)
    to[shape.alive] = 1


@called
def add_product(to, one, two, one_width, two_width, wide, sums, shape, one_shape, two_shape):
    """Adds the trends that go on from those of a record as another one says."""
    add_times(to, np.int64(0), one, np.int64(0), one_width, two, two_width, wide)
    for k in range(1, shape.whole):
        at = k * shape.limbs
        add_times(to, at, one, k * one_shape.limbs, one_width, two, two_width, wide)
        add_times(to, at, two, k * two_shape.limbs, two_width, one, one_width, wide)
    for k in range(len(sums.float_value)):
        before, after = number_of(one[one_shape.floats + k]), number_of(two[two_shape.floats + k])
        if before != 0.0:  # 0 times infinity is 0 here
            add_float(to, shape.floats + k, before * as_double(two, two_width))
        if after != 0.0:
            add_float(to, shape.floats + k, after * as_double(one, one_width))
    for k in range(len(sums.least_value)):
        if one[one_shape.there + k] != 0:
            take_least(to, k, one[one_shape.least + k], sums.least_largest[k], shape)
        if two[two_shape.there + k] != 0:
            take_least(to, k, two[two_shape.least + k], sums.least_largest[k], shape)
    to[shape.alive] = 1


@inlined
def clear_wide(record, wide, shape):
    """Makes a record with `wide` limbs one without trends."""
    for k in range(shape.whole):
        for i in range(wide):
            record[k * shape.limbs + i] = 0
    for c in range(shape.floats, shape.alive + 1):
        record[c] = 0


@inlined
def limbs_needed(record, width, shape):
    """The limbs that the numbers of a record need, of `width`."""
    needed = np.int64(1)
    for k in range(shape.whole):
        at = k * shape.limbs
        top = width
        while top > needed and record[at + top - 1] == (np.int64(-1) if record[at + top - 2] < 0 else np.int64(0)):
            top -= 1
        needed = top
    return needed


@inlined
def copy_record(to, record, width, wide, shape, of):
    """Copies a record with `width` limbs, which go on to `wide` ones."""
    for k in range(shape.whole):
        sign = np.int64(-1) if record[k * of.limbs + width - 1] < 0 else np.int64(0)
        for i in range(wide):
            to[k * shape.limbs + i] = record[k * of.limbs + i] if i < width else sign
    for c in range(shape.alive + 1 - shape.floats):
        to[shape.floats + c] = record[of.floats + c]


@inlined
def copy_row(to, at, of_row, of_at, cells, width, shape, of):
    """Copies the records of a row; those without trends are only marked."""
    for c in range(cells):
        if of_row[of_at + c, of.alive] == 0:
            to[at + c, shape.alive] = 0
        else:
            copy_record(to[at + c], of_row[of_at + c], width, width, shape, of)


@called
def row_times(made, at, row, row_at, width, matrix, widths, changed, sums, wide_shape, shape, of):
    """Makes the row `at` of a matrix: a row of the shape `shape` and with `width` limbs, times a matrix of the shape
    `of`. changed: bits of the rows of the matrix that are not those of a pane without events. Returns the limbs that it
    needs, NONE if there is no room for it."""
    cells = len(widths)
    most = np.int64(0)
    for s in range(cells):
        if (changed >> s) & 1 == 1 and row[row_at + s, shape.alive] != 0 and widths[s] > most:
            most = widths[s]
    wide = width + most + 1
    if wide > wide_shape.limbs:
        return np.int64(NONE)
    for c in range(cells):
        clear_wide(made[at + c], wide, wide_shape)
    for s in range(cells):
        one = row[row_at + s]
        if one[shape.alive] == 0:
            continue
        if (changed >> s) & 1 == 0:
            add_wider(made[at + s], one, width, wide, sums, wide_shape, shape)
            continue
        for c in range(cells):
            two = matrix[s * cells + c]
            if two[of.alive] != 0:
                add_product(made[at + c], one, two, width, widths[s], wide, sums, wide_shape, shape, of)
    needed = np.int64(1)
    for c in range(cells):
        if made[at + c, wide_shape.alive] != 0:
            needed = max(needed, limbs_needed(made[at + c], wide, wide_shape))
    return needed
