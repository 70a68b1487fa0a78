"""DuckDB's order of doubles."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import inlined


@inlined
def float_less(x, y):
    """NaN equals itself and is the largest."""
    if np.isnan(x):
        return False
    return x < y or np.isnan(y)


@inlined
def float_equal(x, y):
    return x == y or (np.isnan(x) and np.isnan(y))


@inlined
def to_float(x, divisor):
    """An integer of a scale, whose divisor is 10**scale, as a double."""
    return x / divisor


@inlined
def float_larger(x, y, xv, yv):
    """Returns the larger of those that are there."""
    if xv and yv:
        return y if float_less(x, y) else x
    return x if xv else y


@inlined
def float_smaller(x, y, xv, yv):
    """Returns the smaller of those that are there."""
    if xv and yv:
        return y if float_less(y, x) else x
    return x if xv else y
