"""Measures over matched rows: which row a navigation means, and aggregates, for many output rows at once.

Matched rows of all matches lie one behind the other; output row k sees the rows [low[k], high[k]) of them. Output rows
that follow each other in one match see growing ranges, so running aggregates go on from where the last one stopped.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import kernel
from matching.kernels.predicate import add_overflows, float_less

COUNT, SUM, MIN, MAX = 0, 1, 2, 3


@kernel
def pick(low, high, variables, mask, from_end, offset, out):
    """out[k]: index of the matched row that FIRST or LAST (from_end) with `offset` means for output row k, else -1.
    mask: bit v set if rows of variable v count."""
    for k in range(len(low)):
        left = offset
        found = np.int64(-1)
        if from_end:
            for j in range(high[k] - 1, low[k] - 1, -1):
                if (mask >> variables[j]) & 1:
                    if left == 0:
                        found = j
                        break
                    left -= 1
        else:
            for j in range(low[k], high[k]):
                if (mask >> variables[j]) & 1:
                    if left == 0:
                        found = j
                        break
                    left -= 1
        out[k] = found


@kernel
def count_rows(low, high, variables, mask, out):
    """out[k]: rows of the variables in `mask` that output row k sees."""
    n = np.int64(0)
    at = np.int64(-1)
    begin = np.int64(-1)
    for k in range(len(low)):
        if low[k] != begin or high[k] < at:
            begin = low[k]
            at = low[k]
            n = 0
        for j in range(at, high[k]):
            if (mask >> variables[j]) & 1:
                n += 1
        at = high[k]
        out[k] = n


@kernel
def fold_ints(low, high, variables, mask, values, valid, kind, out, counts):
    """Sum, minimum or maximum (kind) of int64 values over the rows that output row k sees, and how many were not null.
    Returns False if a sum passed 64 bits."""
    total = np.int64(0)
    n = np.int64(0)
    at = np.int64(-1)
    begin = np.int64(-1)
    for k in range(len(low)):
        if low[k] != begin or high[k] < at:
            begin = low[k]
            at = low[k]
            n = 0
            total = 0
        for j in range(at, high[k]):
            if (mask >> variables[j]) & 1 and valid[j]:
                x = values[j]
                if n == 0:
                    total = x
                elif kind == SUM:
                    if add_overflows(total, x):
                        return False
                    total += x
                elif (kind == MIN and x < total) or (kind == MAX and x > total):
                    total = x
                n += 1
        at = high[k]
        out[k] = total
        counts[k] = n
    return True


@kernel
def fold_floats(low, high, variables, mask, values, valid, kind, out, counts):
    """The same for float64, summed from left to right beginning with 0.0; NaN is the largest."""
    total = 0.0
    n = np.int64(0)
    at = np.int64(-1)
    begin = np.int64(-1)
    for k in range(len(low)):
        if low[k] != begin or high[k] < at:
            begin = low[k]
            at = low[k]
            n = 0
            total = 0.0
        for j in range(at, high[k]):
            if (mask >> variables[j]) & 1 and valid[j]:
                x = values[j]
                if kind == SUM:
                    total += x
                elif n == 0 or (kind == MIN and float_less(x, total)) or (kind == MAX and float_less(total, x)):
                    total = x
                n += 1
        at = high[k]
        out[k] = total
        counts[k] = n
