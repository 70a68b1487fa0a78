"""Aggregates over matched rows, for many output rows at once.

The aggregated rows of all matches lie one after the other; output row k sees [low[k], high[k]) of them. Output rows
that follow each other in one match see growing ranges, so running aggregates go on from where the last one stopped:
one pass over the rows, and one over the output rows.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.floats import float_less
from matching.kernels.integers import add_overflows
from matching.kernels.jit import kernel

COUNT, SUM, MIN, MAX = 0, 1, 2, 3


@kernel
def fold_ints(low, high, values, valid, kind, out, counts):
    """Count, sum, minimum or maximum (kind) of int64 values over the rows that output row k sees; counts: how many were
    not null. valid: bool, or empty if all are. Returns False if a sum passed 64 bits."""
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
            if len(valid) == 0 or valid[j]:
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
def fold_floats(low, high, values, valid, kind, out, counts):
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
            if len(valid) == 0 or valid[j]:
                x = values[j]
                if kind == SUM:
                    total += x
                elif n == 0 or (kind == MIN and float_less(x, total)) or (kind == MAX and float_less(total, x)):
                    total = x
                n += 1
        at = high[k]
        out[k] = total
        counts[k] = n


@kernel
def choose(low, high, variables, wanted, offset, forward, out):
    """out[k]: the index in [low[k], high[k]) of the first row, or going backward of the last one, of a wanted variable
    but for `offset` such rows; -1 if there is none. wanted: bool per variable. O(rows)."""
    for k in range(len(low)):
        left = offset
        out[k] = -1
        for j in range(high[k] - low[k]):
            at = low[k] + j if forward else high[k] - 1 - j
            if wanted[variables[at]]:
                if left == 0:
                    out[k] = at
                    break
                left -= 1


@kernel
def locate(low, high, rows, wanted, out):
    """out[k]: the index in [low[k], high[k]) at which `rows`, ascending there, holds wanted[k]; -1 if it does not."""
    for k in range(len(low)):
        a, b = low[k], high[k]
        while a < b:
            middle = (a + b) // 2
            if rows[middle] < wanted[k]:
                a = middle + 1
            else:
                b = middle
        out[k] = a if a < high[k] and rows[a] == wanted[k] else -1
