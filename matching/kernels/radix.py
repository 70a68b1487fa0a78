"""Row numbers by times in no order: a radix sort, least digits first, much faster than comparing; and by ids."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import kernel

#: Bits of a digit: its counts fit into the nearest cache.
DIGIT = 11
PASSES_MAX = 5


def radix_argsort(values: np.ndarray) -> np.ndarray:
    """The row numbers that sort int64 values (n,), n > 0, equal ones in their order; int64 (n,). Cost: a pass for each
    11 bits of the range of the values; what has a wider range than PASSES_MAX of them is compared."""
    low, high = int(values.min()), int(values.max())
    passes = -(-(high - low).bit_length() // DIGIT)
    if passes > PASSES_MAX:
        return np.argsort(values, kind="stable")
    n = len(values)
    keys, order, counts = np.empty((2, n), np.int64), np.empty((2, n), np.int64), np.empty(1 << DIGIT, np.int64)
    return order[_argsort(values, low, passes, keys, order, counts)]


@kernel
def _argsort(values, low, passes, keys, order, counts):
    """Sorts from one row of keys and order into the other, pass by pass; which of them has the result."""
    n = len(values)
    for i in range(n):
        keys[0, i] = values[i] - low
        order[0, i] = i
    side = 0
    for p in range(passes):
        shift = p * DIGIT
        counts[:] = 0
        for i in range(n):
            counts[(keys[side, i] >> shift) & ((1 << DIGIT) - 1)] += 1
        total = 0
        for d in range(1 << DIGIT):
            c = counts[d]
            counts[d] = total
            total += c
        other = 1 - side
        for i in range(n):
            key = keys[side, i]
            d = (key >> shift) & ((1 << DIGIT) - 1)
            at = counts[d]
            counts[d] = at + 1
            keys[other, at] = key
            order[other, at] = order[side, i]
        side = other
    return side


def by_number(numbers: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """The row numbers that sort whole numbers from 0 on (n,), equal ones in their order; int32 (n,), int64 of more
    than 2**31. begins: the first place of each number. Needs no memory but the result and a copy of `begins`."""
    order = np.empty(len(numbers), np.int32 if len(numbers) < 1 << 31 else np.int64)
    _place(numbers, begins.copy(), order)
    return order


@kernel
def _place(numbers, places, order):
    for i in range(len(numbers)):
        at = places[numbers[i]]
        places[numbers[i]] = at + 1
        order[at] = i
